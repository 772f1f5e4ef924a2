"""What a backend can be asked without any effect there, to learn whether it is what it is said to
be: no question makes a session, sends a message or starts a turn.

Each dialect says in a `Probe` what these questions are and how their answers are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from adapters.model.base import Call


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question, and whether its answer, a status and a JSON value, is one of the dialect."""

    call: Call
    fits: Callable[[int, Any], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """What a server is of its dialect, and why it cannot be driven, where that is so."""

    name: str = ""
    refused: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """How a backend of one dialect is asked.

    `open` needs no credential, `keyed` needs the one that stands in the header `header`. `below`
    is what all paths begin with: no base URL ends with it. `generation` reads the answer to
    `keyed`, and `stream` gives a call that opens a stream, or says why there is none to ask for.
    """

    header: str
    framing: Literal["sse", "ndjson"]
    keyed: Question
    generation: Callable[[Any], Generation]
    stream: Callable[[Any], Call | str]
    open: Question | None = None
    below: str = ""

    @property
    def first(self) -> Question:
        """Return what is asked first."""
        return self.open or self.keyed
