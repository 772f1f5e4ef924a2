"""Forwards a request to the process that has its session, and its answer back, piece by piece.

A request goes to one process and no further. What becomes of it when that process dies:

* it was not reached, or says that it does not have the session any more: nothing was done, and the
  caller looks again who has it;
* it breaks off before it answers, or its place in the journal is taken: nobody knows whether it
  carried the request out. One that may be sent twice is asked of the next process; any other breaks
  off for the client too, as it does where a single server is killed;
* it breaks off in the middle of an answer: so does the answer to the client, which comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
import time

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from adapters.wire.errors import DragomanError
from proxy.base import metrics
from proxy.base.errors import JournalError
from proxy.base.rows import NodeRow
from proxy.base.tasks import Tasks
from proxy.http.seals import HEADER, SealChecker, digest, seal
from proxy.journal.base import Journal, SharedNode

ELSEWHERE = 421
"""The status by which a process says that it does not have the session of a request (RFC 9110,
section 15.5.20: Misdirected Request)."""

MARK = "Dragoman-Elsewhere"
"""The header that tells such an answer from a backend's."""

BEFORE = "before"
"""What it says where the request came before. `aiohttp` sends one again on another connection, if
its method may be repeated and the connection was kept and is broken."""

LOOK_SECONDS = 0.5
"""How often it is looked whether those who are asked still have their places."""

CONNECT_SECONDS = 1.0
"""How long a connection to another process may take."""

SENT_SECONDS = CONNECT_SECONDS + 0.25
"""After so long a request that has no answer has a connection: it may have been carried out."""

_HOP_BY_HOP = frozenset(
    name.lower()
    for name in (
        *("Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "TE"),
        *("Trailer", "Transfer-Encoding", "Upgrade", HEADER),
    )
)

_SAFE = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})
"""The methods that change nothing (RFC 9110, section 9.2.1)."""

_ADDED = (hdrs.USER_AGENT, hdrs.CONTENT_TYPE, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING)

_log = logging.getLogger(__name__)


class ForwardRefused(Exception):
    """The other process takes no request of this one."""


class _Failure(enum.Enum):
    """Why there is no answer."""

    NOT_REACHED = enum.auto()
    BROKE_OFF = enum.auto()


class AnswerCut(ConnectionError):
    """The process that answered is gone in the middle of its answer."""


@dataclasses.dataclass(slots=True, eq=False)
class _ForwardedRequest:
    """A request that is with another process, and what came of it so far."""

    request: asyncio.Task[aiohttp.ClientResponse | _Failure]
    begun: float = dataclasses.field(default_factory=time.monotonic)
    answer: aiohttp.ClientResponse | None = None
    lost: bool = False

    def lose(self) -> None:
        """End it: the place of that process is taken. One that may still be without a connection
        is left alone: it will have none, and nothing was done."""
        if self.answer is not None:
            self.lost = True
            self.answer.close()
        elif time.monotonic() - self.begun > SENT_SECONDS:
            self.lost = True
            self.request.cancel()


@dataclasses.dataclass(slots=True, eq=False)
class Forwarder:
    """Forwards requests between the processes that share `journal`; `node` is this one."""

    journal: Journal
    node: SharedNode
    secret: bytes
    http: aiohttp.ClientSession
    tasks: Tasks
    checker: SealChecker = dataclasses.field(init=False)
    # The requests that are with each process.
    _asked: dict[int, list[_ForwardedRequest]] = dataclasses.field(init=False, default_factory=dict)
    _watch: asyncio.Task[None] | None = dataclasses.field(init=False, default=None)

    def __post_init__(self) -> None:
        self.checker = SealChecker(self.secret, lambda: self.node.number, self.node.time)

    async def forward(
        self, request: web.Request, target: str, body: bytes, owner: NodeRow
    ) -> web.StreamResponse | None:
        """Let another process answer a request, whose path and query there are `target`; None where
        nothing was done and who has the session is to be asked again.

        Raises:
            AnswerCut: it broke off.
            ForwardRefused: it does not know this process.
        """
        ask = self._ask(request, target, body, owner)
        asked = _ForwardedRequest(self.tasks.start(ask, name="forward"))
        there = self._asked.setdefault(owner.number, [])
        there.append(asked)
        if self._watch is None or self._watch.done():
            self._watch = self.tasks.start(self._look(), name="watch those who are asked")
        try:
            try:
                answer = await asked.request
            except asyncio.CancelledError:
                if asked.lost:
                    _check_repeatable(request)
                    return None
                # The client has left.
                asked.request.cancel()
                raise
            if answer is _Failure.NOT_REACHED:
                return None
            if answer is _Failure.BROKE_OFF:
                _check_repeatable(request)
                return None
            asked.answer = answer
            if MARK in answer.headers:
                if answer.status != ELSEWHERE:
                    _log.warning(
                        "%s refuses what is forwarded to it: %s",
                        *(owner.url, (await answer.text(errors="replace"))[:1000]),
                        extra={"kind": "forward_refused"},
                    )
                    raise ForwardRefused(owner.url)
                answer.close()
                if answer.headers[MARK] == BEFORE:
                    _check_repeatable(request)
                return None
            metrics.FORWARDED.inc()
            return await self._answer(request, answer)
        finally:
            there.remove(asked)
            if not there:
                self._asked.pop(owner.number, None)

    async def _ask(
        self, request: web.Request, target: str, body: bytes, owner: NodeRow
    ) -> aiohttp.ClientResponse | _Failure:
        headers = CIMultiDict(
            (name, value)
            for name, value in request.headers.items()
            if name.lower() not in _HOP_BY_HOP
        )
        large = len(body) > 256 * 1024
        hashed = await asyncio.to_thread(digest, body) if large else digest(body)
        headers[HEADER] = seal(
            self.secret,
            sender=self.node.number,
            receiver=owner.number,
            at=self.node.time(),
            method=request.method,
            target=target,
            body=hashed,
        )
        headers[hdrs.CONTENT_LENGTH] = str(len(body))
        try:
            return await self.http.request(
                request.method,
                URL(owner.url + target, encoded=True),
                headers=headers,
                data=body,
                allow_redirects=False,
                auto_decompress=False,
                skip_auto_headers=_ADDED,
                timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS),
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            _log.debug("node %d at %s is not reached: %s", owner.number, owner.url, error)
            return _Failure.NOT_REACHED
        except (aiohttp.ClientError, OSError) as error:
            _log.debug("node %d at %s broke off: %s", owner.number, owner.url, error)
            return _Failure.BROKE_OFF

    async def _answer(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                response.headers.add(name, value)
        try:
            await response.prepare(request)
            while piece := await answer.content.readany():
                metrics.FORWARDED_BYTES.inc(len(piece))
                await response.write(piece)
            await response.write_eof()
        except aiohttp.ClientError as error:
            # A clean end would tell the client that this was all.
            if request.transport is not None:
                request.transport.abort()
            raise AnswerCut("the answer broke off") from error
        finally:
            # Also where the client has left: who answers learns of it.
            answer.close()
        return response

    async def _look(self) -> None:
        """Tell those who wait for a process whose place is taken."""
        while self._asked:
            await asyncio.sleep(LOOK_SECONDS)
            with contextlib.suppress(JournalError, DragomanError):
                there = {node.number for node in await self.journal.nodes()}
                for number, waiting in list(self._asked.items()):
                    for asked in () if number in there else list(waiting):
                        asked.lose()


def _check_repeatable(request: web.Request) -> None:
    """Check that a request may be sent twice.

    Raises:
        AnswerCut: it may not; its client is cut off.
    """
    if request.method in _SAFE or "Idempotency-Key" in request.headers:
        return
    if request.transport is not None:
        request.transport.abort()
    raise AnswerCut("the process that has the session broke off")
