"""Frames that wait: what happens between two streams is told at the beginning of the next one."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.wire.jsonvalue import format_json

WAITING_MOST = 64
WAITING_BYTES = 256 * 1024
"""Frames that wait, and bytes of their JSON; more of them get a stream of their own, because all of
them are written in one step."""


@dataclasses.dataclass(slots=True)
class WaitingFrame:
    """A frame that waits for the next stream; `about` is the thread or the message that it belongs
    to."""

    type: str
    members: dict[str, Any]
    about: str = ""


@dataclasses.dataclass(slots=True)
class WaitingFrames:
    """The frames that wait, oldest first, and how many bytes their JSON has."""

    frames: list[WaitingFrame] = dataclasses.field(default_factory=list)
    size: int = 0

    def put(self, type_: str, members: dict[str, Any], about: str = "") -> None:
        """Keep a frame for the next stream."""
        self.frames.append(WaitingFrame(type_, members, about))
        self.size += len(format_json(members))

    def take(self) -> list[WaitingFrame]:
        """Return the frames and forget them."""
        frames, self.frames, self.size = self.frames, [], 0
        return frames

    @property
    def full(self) -> bool:
        """Say whether these are too many for the beginning of another stream."""
        return len(self.frames) >= WAITING_MOST or self.size > WAITING_BYTES
