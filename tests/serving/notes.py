"""What a dialect notes with the commands of a request, for these tests."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class SomeNotes:
    """The least that a dialect notes."""

    parts: int = 1
    left_out: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    ignored: list[str] = dataclasses.field(default_factory=list)
    context: str | None = None
