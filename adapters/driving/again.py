"""What was refused for now, or is to wait for something else, and when it is sent.

    at the backend --refused for now, to wait--> waits --its time, let go--> ready --sent--> (back)
          ^                                                                                    |
          +------------------------------------------------------------------------------------+

Refused for now means surely not taken: a backend that is busy, that starts, that has had too much.
How often and for how long such a thing is tried is a `Patience`, a value of the dialect's; whose
input it is, and how it is sent, is the codec's. Each input that may wait has an `Again` of its own,
which is stored with it: a restart goes on waiting, and doubts nothing that was only refused.
"""

from __future__ import annotations

import dataclasses

from adapters.driving.part import CodecPart


@dataclasses.dataclass(frozen=True, slots=True)
class Patience:
    """How something is tried again: after `first_ms`, then after twice as long each time up to
    `most_ms`, for `for_ms` after it was refused first and `tries` times at most."""

    first_ms: int
    most_ms: int
    for_ms: int | None = None
    tries: int | None = None

    def wait(self, tries: int) -> int:
        """Return how many milliseconds after so many tries the next one comes."""
        # Not the power of many tries, which is a number of as many digits.
        return min(self.most_ms, self.first_ms << min(tries, 32))

    def is_over(self, waited_ms: int, tries: int) -> bool:
        """Say whether it is tried no more."""
        late = self.for_ms is not None and waited_ms >= self.for_ms
        return late or (self.tries is not None and tries >= self.tries)


@dataclasses.dataclass(slots=True)
class Again(CodecPart):
    """`waits` says that it is not sent yet, `at` when it is (Unix milliseconds; None: once it is
    let go), `ready` that it is now. It was refused `tries` times, first at `since`."""

    waits: bool = False
    at: int | None = None
    ready: bool = False
    since: int | None = None
    tries: int = 0

    @property
    def due(self) -> int | None:
        return self.at if self.waits else None

    def wait(self, at: int | None = None) -> None:
        """Record that it is to wait, until a time or until it is let go."""
        self.waits, self.at, self.ready = True, at, False

    def refused(self, now: int, patience: Patience, asked_ms: int | None = None) -> bool:
        """Record that it was refused for now; say whether it is tried again: after what the backend
        asked for, else as the patience says."""
        if self.since is None:
            self.since = now
        if patience.is_over(now - self.since, self.tries):
            return False
        self.wait(now + (patience.wait(self.tries) if asked_ms is None else asked_ms))
        self.tries += 1
        return True

    def let_go(self) -> None:
        """Record that it need not wait any more."""
        if self.waits:
            self.at, self.ready = None, True

    def tick(self, now: int) -> None:
        """Hear what time it is."""
        if self.at is not None and now >= self.at:
            self.let_go()

    def sent(self) -> None:
        """Record that it is being sent."""
        self.waits, self.at, self.ready = False, None, False
