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


@dataclasses.dataclass(frozen=True, slots=True)
class WatchLimits:
    """How long a backend may show nothing, in ms."""

    unread: int = 20
    """Frames in a row that cannot be read, with no other between them, after which a turn fails."""
    quiet: int = 600_000
    """The longest time between two questions."""
    skipped: int = 1_000
    """From a frame that could not be read until the backend is asked, if nothing comes."""
    stopped: int = 5_000
    """From an interrupt until the backend is asked, if it shows nothing."""
    stop_ends: int = 10_000
    """From a person's stop until what the backend does not end is ended here."""
    owed: int = 30_000
    """From a message that was taken until the backend is asked, if it shows nothing."""
    owed_ends: int = 100_000
    """From a message that was taken until nothing is expected of it any more."""
    asked: int = 2_000
    """From a question until the backend is asked again."""


LIMITS = WatchLimits()


def is_unread(event: ev.Event) -> TypeGuard[ev.ErrorReported]:
    """Say whether an event reports a frame that could not be read."""
    return (
        isinstance(event, ev.ErrorReported)
        and event.synthetic
        and event.code == ErrorCode.BACKEND_PROTOCOL
        and event.quote is not None
    )


@dataclasses.dataclass(slots=True)
class Watch:
    """How long ago something came. All times are in ms.

    `active` says that something is noted since it rested. `unread` counts the frames that could not
    be read since one could, `skips` all of them; `doubts` says that the backend is to be asked
    about one of them.
    """

    quiet: int
    watching: bool = False
    active: bool = False
    unread: int = 0
    skips: int = 0
    doubts: bool = False
    _since: int = 0
    _wait: int = 0
    # When it was asked because of a frame that could not be read.
    _asked: int | None = None
    # When it was asked last, whatever for.
    _looked: int | None = None
    # When a person has stopped what runs, whether that person went on since, and since when a
    # message owes its turn.
    _stopped: int | None = None
    _lifted: bool = False
    _owed: int | None = None

    def begin(self, now: int, *, owed: bool = False) -> None:
        """Begin to watch a turn, or a message that was taken and whose turn is `owed`."""
        self.active = True
        if not self.watching:
            self.watching = True
            self._since, self._wait = now, min(self.quiet, LIMITS.owed) if owed else self.quiet
            self._owed = now if owed else None
        elif not owed:
            self._owed = None

    def rest(self) -> None:
        """Take note that nothing runs and nothing is owed."""
        self.watching, self._stopped, self._owed = False, None, None
        self.active = self._lifted = False

    def heard(self, now: int) -> None:
        """Take note that something came which can be read."""
        self._since, self._wait, self.unread, self.doubts = now, self.quiet, 0, False
        if self._owed is not None:
            self._owed = now

    def stop(self, now: int) -> bool:
        """Take note that a person stops what runs: it has to show something soon, and to end. Say
        whether that is new."""
        if self._stopped is not None or self._lifted:
            return False
        self.active = True
        self._stopped = now
        self.hurry(now)
        return True

    def lift(self, *, lifted: bool = True) -> None:
        """Take note that who has stopped what runs goes on with it, by an answer: it has not to
        end. Another stop counts anew."""
        self.active = True
        self._lifted = lifted
        if lifted:
            self._stopped = None

    def hurry(self, now: int) -> None:
        """Take note of an interrupt: it has to show something soon."""
        self._since, self._wait = now, min(LIMITS.stopped, self.quiet)

    def skipped(self, now: int) -> bool:
        """Take note of a frame that could not be read; say whether to ask soon.

        A stream of such frames asks once in `quiet` ms.
        """
        self.unread += 1
        self.skips += 1
        if self._asked is not None and now - self._asked < self.quiet:
            return False
        self._asked, self.doubts = now, True
        self._since, self._wait = now, min(LIMITS.skipped, self.quiet)
        return True

    def asked(self, now: int) -> None:
        """Take note that the backend is being asked."""
        self.doubts = False
        self._looked = now
        self._since, self._wait = now, min(2 * max(self._wait, self.quiet), LIMITS.quiet)

    def may_ask(self, now: int) -> bool:
        """Say whether the last question is some time ago."""
        return self._looked is None or now - self._looked >= LIMITS.asked

    @property
    def is_stopped(self) -> bool:
        """Say whether a person has stopped what runs."""
        return self._stopped is not None

    @property
    def due(self) -> int:
        """When to ask next, if nothing comes."""
        return self._since + self._wait

    @property
    def ends(self) -> int | None:
        """When what is open ends here, if the backend does not end it: None for never."""
        if self._stopped is not None:
            return self._stopped + LIMITS.stop_ends
        return None if self._owed is None else self._owed + LIMITS.owed_ends
