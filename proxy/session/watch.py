"""When the backend is asked how a turn stands, since its stream alone would leave it open for ever.

A frame that says the end may never come, or may come so that nobody can read it. So the backend is
asked when a turn that runs was silent for `quiet` ms, and soon when a frame could not be read and
nothing came after it: where the turn goes on, the frame was neither its end nor a pause. After each
question in vain the next one waits twice as long.

Nothing here is stored: a restart begins to wait anew.
"""

from __future__ import annotations

import dataclasses
from typing import TypeGuard

from adapters.model import events as ev
from adapters.wire.errors import ErrorCode

__all__ = ["UNREAD_MOST", "Watch", "is_unread"]

UNREAD_MOST = 20
"""Frames in a row that cannot be read, and none between them that can, after which a turn fails."""

QUIET_MOST = 600_000
"""The longest time between two questions, in ms."""

SKIPPED_MS = 1_000
"""How long nothing comes after a frame that could not be read until the backend is asked."""

STOPPED_MS = 5_000
"""How long an interrupt may show nothing until the backend is asked."""


def is_unread(event: ev.Event) -> TypeGuard[ev.ErrorReported]:
    """Say whether an event reports a frame that could not be read."""
    return (
        isinstance(event, ev.ErrorReported)
        and event.synthetic
        and event.code == ErrorCode.BACKEND_PROTOCOL
        and "offending" in (event.details or {})
    )


@dataclasses.dataclass(slots=True)
class Watch:
    """How long ago something came. All times are in ms.

    `unread` counts the frames that could not be read since one could; `doubts` says that the
    backend is to be asked about one of them.
    """

    quiet: int
    watching: bool = False
    unread: int = 0
    doubts: bool = False
    _since: int = 0
    _wait: int = 0
    # When it was asked because of a frame that could not be read.
    _asked: int | None = None

    def begin(self, now: int) -> None:
        """Begin to watch a turn."""
        if not self.watching:
            self.watching = True
            self._since, self._wait = now, self.quiet

    def heard(self, now: int) -> None:
        """Take note that something came which can be read."""
        self._since, self._wait, self.unread, self.doubts = now, self.quiet, 0, False

    def hurry(self, now: int) -> None:
        """Take note of an interrupt: it has to show something soon."""
        self._since, self._wait = now, min(STOPPED_MS, self.quiet)

    def skipped(self, now: int) -> bool:
        """Take note of a frame that could not be read; say whether to ask soon.

        A stream of such frames asks once in `quiet` ms.
        """
        self.unread += 1
        if self._asked is not None and now - self._asked < self.quiet:
            return False
        self._asked, self.doubts = now, True
        self._since, self._wait = now, min(SKIPPED_MS, self.quiet)
        return True

    def asked(self, now: int) -> None:
        """Take note that the backend is being asked."""
        self.doubts = False
        self._since, self._wait = now, min(2 * max(self._wait, self.quiet), QUIET_MOST)

    @property
    def due(self) -> int:
        """When to ask next, if nothing comes."""
        return self._since + self._wait
