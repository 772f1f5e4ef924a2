"""What a scenario may come to in a pair: the cells of the table of `tests.pairs.table`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NATIVE", "Carried", "Cell", "Form", "Native", "Refused", "Says"]


@dataclass(frozen=True, slots=True)
class Native:
    """It goes through as what it is."""


@dataclass(frozen=True, slots=True)
class Carried:
    """It arrives in another form."""

    how: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The face refuses it in its own form. `why` are words of the refusal's text."""

    status: int
    code: str | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Says:
    """The backend's agent says that it has no such thing."""

    words: str


Cell = Native | Carried | Refused | Says

Form = Native | Carried
"""How a thing goes through that is not refused."""

NATIVE = Native()
