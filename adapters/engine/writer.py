"""Writes frames: each has a stamp, which is its cursor, and belongs to the turn that is shown."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.engine.state import EngineTaskState
from adapters.engine.wire import format_time, is_native
from adapters.model import events as ev
from adapters.model.base import Frame
from adapters.wire.framing import on_one_line
from adapters.wire.jsonvalue import format_json

_OURS = frozenset({"timestamp", "task_id", "turn_id"})
"""Members that the face writes itself."""


@dataclasses.dataclass(slots=True)
class EngineWriter:
    """The state of a task's encoder, and the frames that the entry of time `at` has given so
    far."""

    s: EngineTaskState
    session_id: str
    thread_id: str
    out: list[Frame] = dataclasses.field(default_factory=list)
    at: int = 0
    second: int = -1
    second_text: bytes = b""

    @property
    def task_id(self) -> str:
        """Return the task's name: the frontend's own where it chose one, else the public id."""
        return self.s.task_id or self.session_id

    def write(
        self,
        name: str,
        payload: dict[str, Any],
        source: ev.Event | None = None,
        *,
        end: bool = False,
    ) -> None:
        """Write a frame; members of the source that the model does not know come back. `end` says
        that it ends the turn's body."""
        if source is not None and source.extra and is_native(source):
            payload = {**unknown_members(source.extra, name), **payload}
        self.frame(name, format_json(payload), end=end)

    def frame(self, name: str, payload: bytes, *, end: bool = False) -> None:
        """Write a frame with a payload in JSON."""
        s = self.s
        s.stamp = stamp = max(s.stamp + 1, self.at)
        second, ms = divmod(stamp, 1000)
        if second != self.second:
            # Most frames have the second of the one before.
            self.second, self.second_text = second, format_time(stamp)[:-5].encode()
        comma = b"" if payload == b"{}" else b","
        data = b'event: %b\ndata: %b%b"timestamp":"%b.%03dZ"}\n\n'
        data %= (name.encode(), on_one_line(payload[:-1]), comma, self.second_text, ms)
        self.out.append(Frame(stamp, data, "turn" if end else None, s.turn))


def unknown_members(extra: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the members of a source that may be written again: none of ours, and `text` for deltas
    only (section 13)."""
    deltas = ("text_delta", "thinking_delta")
    return {
        key: value
        for key, value in extra.items()
        if key not in _OURS and (key != "text" or name in deltas)
    }
