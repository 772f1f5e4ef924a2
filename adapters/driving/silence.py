"""Inputs whose answer was lost, of a backend without a list: its stream shows what has arrived.

    doubted --the stream is open--> awaited --silence--> unseen
       |                               |
       +-------------------------------+--shown, or told otherwise--> (forgotten)

What the stream has not shown `RECOVER_MS` after it was open is unseen: nobody will know of it. The
time is stored: a restart goes on waiting, and does not begin again. But as long as the stream is
closed its silence says nothing, and after it was opened again it is read for `CATCH_UP_MS` first:
the time at which it was opened concerns the connection, and is handed in.

`adapters.driving.doubts` is the part where a list can be read.
"""

from __future__ import annotations

import dataclasses

from adapters.driving.part import CodecPart, soonest

RECOVER_MS = 10_000
"""How long the stream may take to show a command that a crash or a lost answer left in doubt."""

CATCH_UP_MS = 1_000
"""How long a stream that was opened again is read until its silence counts: what it holds already
comes at once. Ours."""


@dataclasses.dataclass(slots=True)
class SilenceTimers(CodecPart):
    """When silence decides, by the ids of the commands in doubt; None until a stream was open."""

    open: dict[str, int | None] = dataclasses.field(default_factory=dict)

    def doubt(self, command_id: str, now: int | None = None) -> None:
        """Record that an input may have arrived; `now` where the stream is open that is to show it.
        A time that was set before stands.
        """
        if self.open.get(command_id) is None:
            self.open[command_id] = None if now is None else now + RECOVER_MS

    def listen(self, now: int) -> bool:
        """Record that the stream is open which is to show what is in doubt; say whether a time is
        new.
        """
        new = [command_id for command_id, at in self.open.items() if at is None]
        self.open.update(dict.fromkeys(new, now + RECOVER_MS))
        return bool(new)

    def due_since(self, opened_at: int | None) -> int | None:
        """Return when silence decides next, of a stream that is open since some time; None for one
        that is closed.
        """
        if opened_at is None:
            return None
        first = soonest(*self.open.values())
        return None if first is None else max(first, opened_at + CATCH_UP_MS)

    def unseen(self, now: int, opened_at: int | None) -> list[str]:
        """Return what the stream should have shown by now."""
        due = self.due_since(opened_at)
        if due is None or now < due:
            return []
        return [name for name, at in self.open.items() if at is not None and at <= now]

    def forget(self, command_id: str) -> bool:
        """Record that the fate of an input is known; say whether it was in doubt."""
        return self.open.pop(command_id, self) is not self

    def clear(self) -> None:
        """Record that the stream shows nothing more."""
        self.open.clear()
