"""Whether a journal can store now: the log says once that it cannot, and once that it can again."""

from __future__ import annotations

import logging
import time

from proxy.base.errors import JournalError, JournalUnavailable

_log = logging.getLogger(__name__)


class StorageState:
    """What became of the last writes of the journal `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failed = 0
        self._since = 0.0
        self._tried = 0.0
        self.trouble: str | None = None

    def failed(self, error: JournalError, *, writes: int = 1) -> None:
        """Hear of a write that failed, or with `writes=0` that any would."""
        if not isinstance(error, JournalUnavailable):
            # Its own fault: others are stored.
            return
        self._failed += writes
        if self.trouble is None:
            self.trouble = error.whole
            self._since = time.monotonic()
            _log.warning(
                "%s: nothing is stored, and what is sent to a session is answered with 503",
                error.whole,
                extra={"kind": "journal"},
            )

    def back(self) -> None:
        """Say that it can store again, since that was tried."""
        if self.trouble is not None:
            _log.warning(
                "the journal `%s` is back: it stores again, after %.0f s in which %d writes failed",
                self._name,
                time.monotonic() - self._since,
                self._failed,
                extra={"kind": "journal_back"},
            )
            self.trouble = None
            self._failed = 0

    def is_due(self) -> bool:
        """Say whether to try it now: it failed, and was not tried just before."""
        now = time.monotonic()
        # That one write is stored says little: a small one may find room on a disk that is full.
        if self.trouble is None or now - self._tried < 1.0:
            return False
        self._tried = now
        return True
