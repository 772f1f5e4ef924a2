"""How a backend stands, as the requests to it show: counted, and told to the operator when it
changes.

Each kind of trouble is told once, until the backend is well again; a backend that comes and goes is
told of each kind once in `AGAIN_SECONDS`.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import time
from collections.abc import Callable

from proxy.base.metrics import BackendCounts
from proxy.base.outcomes import BLAMED, Code, MessageOutcome

AGAIN_SECONDS = 60.0
"""How long a kind of trouble that was over is not told again."""

_log = logging.getLogger(__name__)


class Trouble(enum.StrEnum):
    """What is wrong with a backend."""

    DNS = "dns"
    CONNECTION = "connection"
    TLS = "tls"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    STREAM = "stream_lost"
    CREDENTIAL = "credential"
    DIALECT = "dialect"
    ERROR = "error"
    MESSAGES = "messages"


_SAID = {
    Trouble.DNS: "cannot be found by its host name",
    Trouble.CONNECTION: "takes no connection",
    Trouble.TLS: "has no TLS that can be trusted",
    Trouble.TIMEOUT: "does not answer in time",
    Trouble.BROKEN: "closes connections without an answer",
    Trouble.STREAM: "lost a stream",
    Trouble.CREDENTIAL: "refuses the proxy's credential",
    Trouble.DIALECT: "does not speak its dialect, or another version of it",
    Trouble.ERROR: "answers with an error",
    Trouble.MESSAGES: "does not do its work",
}
"""What each is in words, after the name of the backend."""

_OVER_BY_A_STREAM = frozenset({Trouble.STREAM, Trouble.DIALECT})
"""What only a stream that opens shows to be over."""

FAILED_MOST = 3
"""Messages in a row that fail by a backend's doing before it counts as down."""

FAILED_SECONDS = 600.0
"""How long they count. A server that is sent nothing, since its backend is down, would never learn
that it is up."""


@dataclasses.dataclass(slots=True, eq=False)
class Health:
    """How one configured backend stands: by the requests to it, and by what became of the messages
    that it was given. `counts` are its numbers."""

    name: str
    url: str
    _: dataclasses.KW_ONLY
    monotonic: Callable[[], float] = time.monotonic
    _open: set[Trouble] = dataclasses.field(default_factory=set, init=False)
    _told: dict[Trouble, float] = dataclasses.field(default_factory=dict, init=False)
    _skipped: int = dataclasses.field(default=0, init=False)
    _skipped_at: float | None = dataclasses.field(default=None, init=False)
    _failed: int = dataclasses.field(default=0, init=False)
    _failed_at: float = dataclasses.field(default=0.0, init=False)
    _failed_by: Code | None = dataclasses.field(default=None, init=False)
    counts: BackendCounts = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.counts = BackendCounts(self.name, lambda: self.failing is None)
        self.counts.expect(Trouble)

    @property
    def failing(self) -> Code | None:
        """Return why the last messages failed, None where the backend does its work."""
        recent = self.monotonic() - self._failed_at < FAILED_SECONDS
        return self._failed_by if self._failed >= FAILED_MOST and recent else None

    @property
    def up(self) -> bool | None:
        """Say whether the backend answers and does its work, None before it was asked."""
        return None if self.counts.up is None else self.counts.up and self.failing is None

    def concluded(self, outcome: MessageOutcome, code: Code) -> None:
        """Take note of how a message ended."""
        if outcome is MessageOutcome.COMPLETED and code is Code.OK:
            self._failed = 0
            self._over(self._open & {Trouble.MESSAGES})
        elif code in BLAMED:
            now = self.monotonic()
            if now - self._failed_at >= FAILED_SECONDS:
                self._failed = 0
                self._open.discard(Trouble.MESSAGES)
            self._failed += 1
            self._failed_at = now
            self._failed_by = code
            if self._failed >= FAILED_MOST:
                why = f"its last {self._failed} messages failed, the newest with {code}"
                self.trouble(Trouble.MESSAGES, why)

    def trouble(self, kind: Trouble, why: str) -> None:
        """Take note of trouble; `why` is for the operator."""
        self.counts.troubled(kind)
        now, told = self.monotonic(), self._told.get(kind)
        if kind in self._open or (told is not None and now - told < AGAIN_SECONDS):
            return
        self._open.add(kind)
        self._told[kind] = now
        _log.warning(
            "backend `%s` %s: %s",
            *(self.name, _SAID[kind], why),
            extra={"backend": self.name, "kind": str(kind), "url": self.url},
        )

    def failed(self, kind: Trouble, why: str) -> None:
        """Take note of a request without an answer."""
        self.counts.failed()
        self.trouble(kind, why)

    def answered(self, status: int) -> None:
        """Take note of an answer."""
        self.counts.answered(status)
        if status >= 500:
            self.trouble(Trouble.ERROR, f"it answers {status}")
        elif self._open:
            keep = {*_OVER_BY_A_STREAM, Trouble.MESSAGES}
            self._over(self._open - (keep if status < 300 else {*keep, Trouble.CREDENTIAL}))

    def opened(self) -> None:
        """Take note of a stream that opened."""
        if self._open:
            self._over(self._open - {Trouble.MESSAGES})

    def _over(self, kinds: set[Trouble]) -> None:
        if not kinds:
            return
        self._open -= kinds
        _log.warning(
            "backend `%s` is back again",
            self.name,
            extra={"backend": self.name, "kind": "back", "url": self.url},
        )

    def skipped(self, session_id: str, why: str) -> None:
        """Take note of a frame that could not be read."""
        self._skipped += 1
        now = self.monotonic()
        # Those between are counted.
        if self._skipped_at is not None and now - self._skipped_at < 10.0:
            return
        count, self._skipped, self._skipped_at = self._skipped, 0, now
        _log.warning(
            "session `%s`: a frame of backend `%s` is skipped: %s",
            *(session_id, self.name, why),
            extra={"backend": self.name, "kind": "frame_skipped", "count": count},
        )
