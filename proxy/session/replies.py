"""What a session knows of the requests that gave its inputs: whether one comes again, and what
became of its reply. `proxy.base.repeats` says what a repeat is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from adapters.model import commands as cmd
from proxy.base.clock import Clock
from proxy.base.repeats import REQUEST, SeenRequest, Submission, identity
from proxy.base.rows import AliasKind
from proxy.journal.base import Journal, Write
from proxy.session.record import Record


def noted(
    submission: Submission | None, request_id: str, commands: Iterable[cmd.AnyCommand | None]
) -> dict[str, Any]:
    """Return what is stored of a request with its commands."""
    if submission is None:
        return {}
    sealed = any(getattr(command, "sealed", None) is not None for command in commands)
    return {REQUEST: identity(submission, request_id, sealed=sealed)}


class Replies:
    """The replies to the newest requests of one session."""

    __slots__ = ("_clock", "_journal", "_key", "_record")

    def __init__(self, key: int, *, journal: Journal, clock: Clock, record: Record) -> None:
        """Begin; `key` is the journal's for the session."""
        self._key = key
        self._journal = journal
        self._clock = clock
        self._record = record

    def repeated(self, submission: Submission) -> list[str] | None:
        """Return the ids of the commands that a request gave which this one repeats, or None: then
        it is new.

        Raises:
            DragomanError: its `Idempotency-Key` is another request's.
        """
        known = self._record.requests.find(submission, self._clock.now())
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
        known = self._record.requests.get(request_id)
        if submission is not None and known is not None:
            submission.accept(known, self._replied)

    def _replied(self, request: SeenRequest, whole: bool) -> None:
        """Hear whether the reply to a request was written to its end."""
        if not whole:
            request.lost_at = self._clock.now()
            self._name(AliasKind.LOST, request)

    def _name(self, kind: AliasKind, request: SeenRequest) -> None:
        name = (kind, request.id)
        self._journal.submit(Write(self._key, aliases=[name], at=self._record.at))
