"""Which request is a repeat of an earlier one, and what that one gave.

A repeat is recognised only where its client could not know that the earlier one was accepted, or
says that it sends it again: the earlier reply was seen to break off, or the request has an
`Idempotency-Key` (or eve's `operationId`) of an earlier one, or an `x-stainless-retry-count` above
0. Equal content alone is never a repeat, and neither is it after a crash: nobody knows then whether
the reply was written.

A request that has names in its body, as its face reads them, is a repeat of the one that gave the
same names to the session, and of no other, whatever its headers say.

What identifies a request is stored with the first command that it gives, or with the session that
it makes; so a repeat is recognised also after a restart.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from multidict import MultiMapping

from adapters.model import events as ev
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.rows import AliasKind

REQUEST = "request"
"""The key in an accepted input's `details`, and in a new session's `options`: what identifies the
request that they are of."""

LOST_MS = 5 * 60_000
"""How long a request whose reply broke off may come again without saying so: a person who has seen
an error tries again within minutes, and later says it anew."""

RETRY_MS = 15 * 60_000
"""How long a request that calls itself a retry is one: these SDKs wait 10 minutes for an answer
before they try again."""

KEY_MS = 24 * 3_600_000
"""How long an `Idempotency-Key` holds within a session, as is usual for it."""

REQUESTS_KEPT = 64
"""The newest requests of a session that are remembered: a client repeats its last one."""


@dataclasses.dataclass(slots=True)
class SeenRequest:
    """A request that was accepted. `ids` are those of its commands, `id` is its own.

    `body` is None where it is not compared: it held a secret, and then not even a hash is kept,
    or it was not done, or has `names`, which stand for it. `lost_at` is when its reply broke off,
    `retry` the number of the last try that was answered with it.
    """

    id: str
    body: str | None
    key: str | None
    at: int
    ids: list[str]
    lost_at: int | None = None
    retry: int = 0
    names: str | None = None
    submission: Submission | None = None


class Submission:
    """A request that gives commands, from its begin to the end of its reply."""

    __slots__ = ("_accepted", "_lost", "_reachable", "_tell", "body", "key", "names", "retry")

    def __init__(
        self,
        method: str,
        path: str,
        headers: MultiMapping[str],
        body: bytes,
        reachable: Callable[[], bool],
    ) -> None:
        named = hashlib.sha256(f"{method} {path}\n".encode("utf-8", "surrogateescape"))
        named.update(body)
        self.body = named.hexdigest()[:32]
        key = headers.get("Idempotency-Key")
        self.key = None if key is None else _digest(key)
        self.names: str | None = None
        retry = headers.get("x-stainless-retry-count", "")
        fits = retry.isascii() and retry.isdigit() and len(retry) <= 4
        self.retry = int(retry) if fits else 0
        self._reachable = reachable
        self._accepted: SeenRequest | None = None
        self._tell: Callable[[SeenRequest, bool], None] | None = None
        self._lost = False

    @property
    def same(self) -> str:
        """What an equal request has as well."""
        return self.names or self.key or self.body

    def name(self, names: Collection[str]) -> None:
        """Let the request be known by names in its body, if it has any, and by nothing else."""
        if names:
            self.names = _digest(json.dumps(sorted(set(names))))
            self.key = None

    @property
    def leaving(self) -> bool:
        """Say whether the reply, which is not over, is about to break off."""
        return not self._reachable()

    def accept(self, accepted: SeenRequest, tell: Callable[[SeenRequest, bool], None]) -> None:
        """Hear as what the request was accepted; `tell` hears whether its reply was written to its
        end."""
        self._accepted = accepted
        if self._lost:
            tell(accepted, False)
            return
        self._tell = tell
        accepted.submission = self

    def over(self, *, whole: bool) -> None:
        """Record that the reply is over, and whether it was written to its end; to a client that is
        gone it was not. Of an accepted request what is said first counts."""
        whole = whole and self._reachable()
        self._lost = not whole
        accepted, tell = self._accepted, self._tell
        if accepted is not None and tell is not None:
            # The session goes on remembering it, and is to leave memory without a collection.
            self._tell = accepted.submission = None
            tell(accepted, whole)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


@dataclasses.dataclass(slots=True, eq=False)
class RecentRequests:
    """The newest requests that a session has accepted."""

    _known: dict[str, SeenRequest] = dataclasses.field(init=False, default_factory=dict)

    def get(self, request_id: str) -> SeenRequest | None:
        """Return the request with this id, if it is remembered."""
        return self._known.get(request_id)

    def hear(self, event: ev.Event, at: int) -> None:
        """Hear an event: an input, what became of one, or that the session was made."""
        if isinstance(event, ev.InputSettled):
            if event.outcome != "taken":
                self._was_not_done(event.command_id)
            return
        if isinstance(event, ev.InputAccepted):
            value, ids = (event.details or {}).get(REQUEST), [event.command_id]
        elif isinstance(event, ev.SessionStarted):
            value, ids = (event.options or {}).get(REQUEST), []
        else:
            return
        if not isinstance(value, dict):
            return
        known = self._known.get(value["id"])
        if known is not None:
            known.ids += ids
            return
        made = SeenRequest(
            value["id"],
            value.get("body"),
            value.get("key"),
            at,
            ids,
            retry=value.get("retry", 0),
            names=value.get("names"),
        )
        self._known[made.id] = made
        if len(self._known) > REQUESTS_KEPT:
            del self._known[next(iter(self._known))]

    def _was_not_done(self, command_id: str) -> None:
        """Record that a command was not done, in sight of everybody: who asks for it again, without
        the key of the first time, asks anew."""
        for known in self._known.values():
            if command_id in known.ids:
                known.body = known.names = None

    def find(self, submission: Submission, now: int) -> SeenRequest | None:
        """Return the request that another one repeats, or None; it does so once for each reply that
        broke off.

        Raises:
            DragomanError: with the code KEY_REUSED, it has the key of another request.
        """
        for known in reversed(self._known.values()):
            if submission.names is not None:
                if known.names == submission.names:
                    return known
                continue
            if submission.key is not None:
                if known.key != submission.key or now - known.at > KEY_MS:
                    continue
                if known.body not in (None, submission.body):
                    raise DragomanError(
                        "This `Idempotency-Key` was sent with another request; "
                        "each request needs one of its own.",
                        code=ErrorCode.KEY_REUSED,
                    )
                return known
            if known.body != submission.body:
                continue
            if known.submission is not None and known.submission.leaving:
                # Also where nobody has noticed yet that its client is gone.
                known.submission.over(whole=False)
            if known.lost_at is not None and now - known.lost_at <= LOST_MS:
                return known
            if submission.retry > known.retry and now - known.at <= RETRY_MS:
                return known
        return None

    def lose(self, names: Collection[tuple[str, str]]) -> None:
        """Hear which replies broke off before the session was loaded, from its aliases."""
        for known in self._known.values():
            if (AliasKind.LOST, known.id) in names and (AliasKind.REPEATED, known.id) not in names:
                known.lost_at = known.at

    def dump(self) -> list[list[Any]]:
        """Return what a snapshot keeps."""
        return [
            [k.id, k.body, k.key, k.at, k.ids, None, k.retry, k.names] for k in self._known.values()
        ]

    def restore(self, value: list[list[Any]]) -> None:
        """Take up what a snapshot kept."""
        self._known = {made[0]: SeenRequest(*made) for made in value}


def identity(submission: Submission, request_id: str, *, sealed: bool) -> Mapping[str, str | int]:
    """Return what is stored of a request; of one that holds a secret only its key or names."""
    value: dict[str, str | int] = {"id": request_id}
    if submission.retry:
        value["retry"] = submission.retry
    if submission.names is not None:
        value["names"] = submission.names
    elif not sealed:
        value["body"] = submission.body
    if submission.key is not None:
        value["key"] = submission.key
    return value
