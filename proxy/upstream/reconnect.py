"""When to try a backend again: a value, so that a test can ask it anything.

Waiting grows from `first` to `most`, with jitter so that many sessions do not come back in the same
moment; anything new from the backend resets it. How long all of it may take is the codec's
`patience`: it knows what its dialect promises.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator


@dataclasses.dataclass(slots=True)
class Backoff:
    """The waits of one stream. `fraction` draws from 0 up to 1: a seed decides the jitter."""

    fraction: Callable[[], float]
    # The eve clients start with the same (eve page, section 7.5).
    first: int = 250
    # A backend that is back is found within it.
    most: int = 15_000
    attempts: int = 0
    since: int | None = None

    def next_wait(self, now: int) -> int:
        """Return milliseconds to wait before the next attempt: half fixed, half drawn."""
        if self.since is None:
            self.since = now
        ceiling = min(self.most, self.first << min(self.attempts, 16))
        self.attempts += 1
        return ceiling // 2 + int(self.fraction() * (ceiling // 2 + 1))

    def exhausted(self, now: int, patience: int) -> bool:
        """Say whether nothing new came for `patience` milliseconds."""
        return self.since is not None and now - self.since >= patience

    def reset(self) -> None:
        """Record that something new came."""
        self.attempts = 0
        self.since = None


@dataclasses.dataclass(slots=True, eq=False)
class Attempts:
    """The waits of all streams of a session that are wanted, by their threads."""

    _waits: dict[str, Backoff] = dataclasses.field(default_factory=dict, init=False)

    @contextlib.contextmanager
    def at(self, thread_id: str, waits: Backoff) -> Iterator[Backoff]:
        """Know the waits of a stream while it is wanted."""
        self._waits[thread_id] = waits
        try:
            yield waits
        finally:
            if self._waits.get(thread_id) is waits:
                del self._waits[thread_id]

    def since(self, is_open: Callable[[str], bool]) -> int | None:
        """Return since when nothing new comes of a stream that is not open."""
        away = [
            waits.since
            for thread_id, waits in self._waits.items()
            if waits.since is not None and not is_open(thread_id)
        ]
        return min(away, default=None)
