"""What a session knows of the requests that gave its inputs: whether one comes again, and what
became of its reply. `proxy.base.repeats` says what a repeat is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from adapters.model import commands as cmd
from proxy.base.clock import Clock
from proxy.base.repeats import REQUEST, SeenRequest, Submission, identity
from proxy.base.rows import AliasKind
from proxy.journal.base import Journal, Write
from proxy.session.log_writer import LogWriter


def noted(
    submission: Submission | None, request_id: str, commands: Iterable[cmd.AnyCommand | None]
) -> dict[str, Any]:
    """Return what is stored of a request with its commands."""
    if submission is None:
        return {}
    sealed = any(getattr(command, "sealed", None) is not None for command in commands)
    return {REQUEST: identity(submission, request_id, sealed=sealed)}


@dataclasses.dataclass(slots=True, eq=False)
class RequestReplies:
    """The replies to the newest requests of one session; `key` is the journal's for it."""

    key: int
    _: dataclasses.KW_ONLY
    journal: Journal
    clock: Clock
    log: LogWriter

    def repeated(self, submission: Submission) -> list[str] | None:
        """Return the ids of the commands that a request gave which this one repeats, or None: then
        it is new.

        Raises:
            DragomanError: its `Idempotency-Key` is another request's.
        """
        known = self.log.requests.find(submission, self.clock.now())
        if known is None:
            return None
        if known.lost_at is not None:
            known.lost_at = None
            self._name(AliasKind.REPEATED, known)
        known.retry = max(known.retry, submission.retry)
        submission.accept(known, self._replied)
        return known.ids

    def accepted(self, submission: Submission | None, request_id: str) -> None:
        """Let a request that was stored tell what becomes of its reply."""
        known = self.log.requests.get(request_id)
        if submission is not None and known is not None:
            submission.accept(known, self._replied)

    def _replied(self, request: SeenRequest, whole: bool) -> None:
        """Hear whether the reply to a request was written to its end."""
        if not whole:
            request.lost_at = self.clock.now()
            self._name(AliasKind.LOST, request)

    def _name(self, kind: AliasKind, request: SeenRequest) -> None:
        name = (kind, request.id)
        self.journal.submit(Write(self.key, aliases=[name], at=self.log.at))
