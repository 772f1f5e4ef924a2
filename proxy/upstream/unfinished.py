"""What is held of backends' lines, frames and answers that have not ended yet.

A line may be long, since it may carry a file, and it may come slowly. So each stream may hold one,
but not all of them at the same time; nor may all answers.
"""

from __future__ import annotations

from adapters.framing.ndjson import DEFAULT_MAX_LINE_BYTES
from proxy.errors import UpstreamUnavailable

__all__ = ["Share", "Unfinished"]

MOST_BYTES = 8 * DEFAULT_MAX_LINE_BYTES
"""Bytes of what is unfinished in memory: the lines of eight of the largest files at a time."""

SMALL_BYTES = 64 * 1024
"""What a stream may hold uncounted: a thousand of them hold 64 MB."""


class Unfinished:
    """The budget of all streams and answers; `taken` is what they hold."""

    def __init__(self, limit: int = MOST_BYTES) -> None:
        self.limit = limit
        self.taken = 0


class Share:
    """What one of them holds of it."""

    __slots__ = ("_budget", "_held")

    def __init__(self, budget: Unfinished) -> None:
        self._budget = budget
        self._held = 0

    def hold(self, size: int) -> None:
        """Hear how many bytes of an unfinished line the stream holds.

        Raises:
            UpstreamUnavailable: all streams together hold too much.
        """
        size = size if size > SMALL_BYTES else 0
        if size == self._held:
            return
        self._budget.taken += size - self._held
        grows, self._held = size > self._held, size
        if grows and self._budget.taken > self._budget.limit:
            raise UpstreamUnavailable(
                "Backends send too much at the same time that does not end; this was given up.",
                sent=True,
            )

    def release(self) -> None:
        """Hold nothing any more."""
        self._budget.taken -= self._held
        self._held = 0
