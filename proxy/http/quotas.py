"""How much each key may have of what all keys share: open streams, readers of the control API, new
sessions. One that asks for more is refused until it has less; nobody else notices."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base import metrics
from proxy.config.settings import LimitSettings
from proxy.http.bodies import RETRY_SECONDS

Kind = Literal["streams", "readers"]

_log = logging.getLogger(__name__)


class Quotas:
    """What the keys have of each kind now."""

    def __init__(self, settings: LimitSettings, monotonic: Callable[[], float]) -> None:
        self._limits: Mapping[Kind, int] = {
            "streams": settings.streams_per_key,
            "readers": settings.readers_per_key,
        }
        self._rate = settings.new_sessions_per_minute
        self._monotonic = monotonic
        self._open: Counter[tuple[str, Kind]] = Counter()
        # How many sessions a key may make less than at rest, and when that was so.
        self._made: dict[str, tuple[float, float]] = {}
        self._told: set[tuple[str, str]] = set()

    @contextmanager
    def held(self, key: str, kind: Kind) -> Iterator[None]:
        """Count a stream, or a reader, of a key for as long as the context lasts.

        Raises:
            DragomanError: the key has as many as it may have.
        """
        limit, at = self._limits[kind], (key, kind)
        if self._open[at] >= limit:
            raise self._refused(
                *(key, kind, RETRY_SECONDS),
                f"This key has all of its {_NAMES[kind]} open, {limit}; close one",
            )
        self._open[at] += 1
        try:
            yield
        finally:
            self._open[at] -= 1
            if _is_under(self._open[at], limit):
                self._told.discard(at)
            if not self._open[at]:
                del self._open[at]

    def count_session(self, key: str) -> None:
        """Count a session that a key makes.

        Raises:
            DragomanError: the key has made as many within a minute as it may make.
        """
        now, each = self._monotonic(), 60.0 / self._rate
        made, since = self._made.get(key, (0.0, now))
        made = max(made - (now - since) / each, 0.0)
        if made + 1 > self._rate:
            seconds = math.ceil((made + 1 - self._rate) * each)
            text = f"This key has made {self._rate} sessions within a minute, the most that it may"
            raise self._refused(key, "sessions", seconds, text)
        if _is_under(made, self._rate):
            self._told.discard((key, "sessions"))
        self._made[key] = (made + 1, now)

    def _refused(self, key: str, kind: str, seconds: int, text: str) -> DragomanError:
        metrics.count_over_limit(kind)
        if (key, kind) not in self._told:
            self._told.add((key, kind))
            _log.warning(
                "key `%s` is refused more %s: see [limits]; not logged again until it has less",
                *(key, _NAMES[kind]),
            )
        return DragomanError(
            f"{text}, or try again later.",
            code=ErrorCode.RATE_LIMITED,
            details={"retry_after": max(seconds, 1)},
        )


_NAMES = {
    "streams": "streams",
    "readers": "readers of the control API",
    "sessions": "new sessions",
}


def _is_under(count: float, limit: int) -> bool:
    """Say whether a key is well under a limit: one that stays just at it is told of once."""
    return count <= limit * 9 // 10
