"""The connection to a backend that calls us: what it is told is the answer to a request of its own
that waits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from adapters.model.base import Call, Response
from proxy.upstream.client import Load, Upstream, no_files

RETURN_SECONDS = 5.0
"""How long a decision waits for a sender that is not there: after a restart of ours it asks again.
Ours."""


@dataclasses.dataclass(slots=True, eq=False)
class WaitingSender:
    """A sender whose request waits for a decision; it is `there` while its connection is open."""

    there: Callable[[], bool]
    decided: asyncio.Future[bytes]


@dataclasses.dataclass(slots=True, eq=False)
class Mailbox(Upstream):
    """The senders of one backend that wait, by the key of what they wait for."""

    _waiting: dict[str, list[WaitingSender]] = dataclasses.field(default_factory=dict, init=False)
    _news: dict[str, asyncio.Event] = dataclasses.field(default_factory=dict, init=False)

    @property
    def count(self) -> int:
        """Return how many senders wait and have not left."""
        return sum(one.there() for senders in self._waiting.values() for one in senders)

    @contextlib.contextmanager
    def wait(self, key: str, there: Callable[[], bool]) -> Iterator[asyncio.Future[bytes]]:
        """Give what a sender gets its decision by, for as long as it waits."""
        sender = WaitingSender(there, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key, []).append(sender)
        if (news := self._news.pop(key, None)) is not None:
            news.set()
        try:
            yield sender.decided
        finally:
            sender.decided.cancel()
            left = [one for one in self._waiting[key] if one is not sender]
            if left:
                self._waiting[key] = left
            else:
                del self._waiting[key]

    async def call(self, call: Call, load: Load = no_files, trace: str | None = None) -> Response:
        """Give a decision to all who wait for it: 200 where there is one, else 410."""
        key = call.request.path.rpartition("/")[2]
        body = call.request.body or b""
        if self._decide(key, body):
            return Response(200, backend=self._name)
        news = self._news.setdefault(key, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETURN_SECONDS):
                await news.wait()
        if self._news.get(key) is news:
            del self._news[key]
        return Response(200 if self._decide(key, body) else 410, backend=self._name)

    def _decide(self, key: str, body: bytes) -> bool:
        there = [one for one in self._waiting.get(key, ()) if one.there()]
        for one in there:
            if not one.decided.done():
                one.decided.set_result(body)
        return bool(there)
