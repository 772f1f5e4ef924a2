"""Blobs that were put and that no session names yet."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(slots=True, eq=False)
class UnreferencedBlobs:
    """How often each blob was put for a write that has not come yet.

    Two may put the same file at the same time, also for different owners. It stays until each of
    them has named it, or will not.
    """

    _times: collections.Counter[str] = dataclasses.field(
        init=False, default_factory=collections.Counter
    )

    def put(self, sha256: str) -> None:
        """Record that a blob is put."""
        self._times[sha256] += 1

    def over(self, names: Iterable[str]) -> None:
        """Record that blobs are named by a write, or will be by none."""
        for sha256 in names:
            if self._times[sha256] > 1:
                self._times[sha256] -= 1
            else:
                # Also one that was put before this process: a name alone is not kept.
                del self._times[sha256]

    def now(self) -> frozenset[str]:
        """Return the blobs that somebody may name next."""
        return frozenset(self._times)
