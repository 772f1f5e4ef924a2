"""Scripted backends that can be brought to where they were: what they were sent is noted, and sent
again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from proxy.base.clock import ManualClock, SeededIds
from proxy.scripted.eve_turns import EveVariant, Generation
from proxy.scripted.faults import Faults, Silence, Status
from tests.support.dragoman import BACKEND_KEY, KNOWN, backend_settings
from tests.support.serving import HOST, close, serve
from tests.support.waiting import until

__all__ = ["START", "Scripted"]

START = 1_767_225_600_000
"""When every fixture begins, Unix milliseconds: the first one of 2026."""

SEED = 5

OWN_HEADERS = ("anthropic-beta", "anthropic-version")
"""Without these a service of Managed Agents refuses a request."""

LOST = Silence(done=False)

TURNS = 100
"""A backend that did nothing in so many turns of the event loop waits for its clock or a request:
it has no other threads and no other waits. So a busy machine only makes a replay slower."""


class Scripted:
    """One scripted backend whose time stands still.

    `generation` is that of an eve. `steps` are what it was sent and what was done to it,
    `late` the requests on which it acts after the kill.
    """

    def __init__(self, name: str, dialect: str, generation: Generation = "S2") -> None:
        self.name = name
        self.dialect = dialect
        self.generation: Generation = generation
        self.steps: list[dict[str, Any]] = []
        self.late: list[dict[str, Any]] = []
        self.clock = ManualClock(START)
        self.faults = Faults()
        self.state: Any = None
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._noting = True
        self._is_late = False

    @property
    def _shows(self) -> Shows:
        return SHOWS[self.dialect]

    @property
    def settings(self) -> Any:
        """Its table in the configuration."""
        return backend_settings(self.name, self.dialect, f"http://{HOST}:{self.port}")

    async def start(self) -> None:
        """Serve it."""
        options: dict[str, Any] = {
            "key": BACKEND_KEY,
            "clock": self.clock,
            "faults": self.faults,
            "pace": 1.0,
        }
        if self.dialect == "eve":
            options |= {"ids": SeededIds(SEED), "variant": EveVariant(self.generation)}
        known = KNOWN[self.dialect]
        app = known.create(**options)
        self.state = app[known.state]
        app.middlewares.insert(0, self._note)
        self._runner, self.port = await serve(app)

    async def stop(self) -> None:
        """Serve it no more."""
        if self._runner is not None:
            await close(self._runner)

    @web.middleware
    async def _note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "GET" and self._noting:
            body = await request.read()
            steps = self.late if self._is_late else self.steps
            self._is_late = False
            steps.append(
                {
                    "do": "request",
                    "method": request.method,
                    "path": request.path_qs,
                    "host": request.host,
                    "type": request.headers.get("Content-Type", ""),
                    "own": {k: v for k, v in request.headers.items() if k in OWN_HEADERS},
                    "body": base64.b64encode(body).decode(),
                }
            )
        return await handler(request)

    def lose(self, route: str, *, taken: bool) -> None:
        """Let the next request, which is one of that route, stay without an answer. One that is
        `taken` is acted on after the kill only: nobody has seen anything of it before."""
        if taken:
            self._is_late = True
        else:
            self.steps.append({"do": "lose", "route": route})
        self._plan(route, LOST)

    def refuse(self, route: str, status: int, retry_after: int | None, body: str | None) -> None:
        """Refuse the next request of a route."""
        step = {"status": status, "retry_after": retry_after, "body": body}
        self.steps.append({"do": "refuse", "route": route, **step})
        self._plan(route, _refusal(step))

    def _plan(self, route: str, fault: Silence | Status) -> None:
        self.faults.plan[route, self.faults.requests[route] + 1] = fault

    async def advance(self, seconds: float) -> None:
        """Let its time pass."""
        self.steps.append({"do": "advance", "seconds": seconds})
        await self.clock.advance(seconds)

    async def replay(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Bring it to where another one was after these steps."""
        self._noting = False
        self.steps += [dict(step) for step in steps]
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            for step in steps:
                match step["do"]:
                    case "lose":
                        self._plan(step["route"], LOST)
                    case "refuse":
                        self._plan(step["route"], _refusal(step))
                    case "advance":
                        await self.clock.advance(step["seconds"])
                        await self._still()
                    case _:
                        await self._send_again(http, step)
        self._noting = True

    async def _send_again(self, http: aiohttp.ClientSession, step: Mapping[str, Any]) -> None:
        credential = self.settings.credential
        # An eve names its own address in what it shows: it has it from the request.
        headers = {
            credential.header: credential.value,
            "Host": step["host"],
            "Content-Type": step["type"],
            **step.get("own", {}),
        }
        url = f"http://{HOST}:{self.port}{step['path']}"
        body = base64.b64decode(step["body"])
        received = len(self.state.received)

        async def send() -> None:
            async with http.request(step["method"], url, data=body, headers=headers) as response:
                await response.read()

        # The stream of a turn may last, and some answers never come.
        sending = asyncio.create_task(send())
        await until(lambda: len(self.state.received) > received)
        await self._still()
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
            await sending

    async def _still(self) -> None:
        """Return when it does nothing any more until its time passes or a request comes."""
        size = -1
        while size != self.size():
            size = self.size()
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def size(self) -> int:
        """How much it was sent and has done."""
        done = sum(len(self._shows.log(talk)) for talk in self.state.talks.values())
        return done + len(self.state.received)

    def histories(self) -> dict[str, list[bytes]]:
        """What each of its sessions has shown and been sent, in order."""
        return {
            name: [self._shows.entry(one) for one in self._shows.log(talk)]
            for name, talk in self.state.talks.items()
        }

    def digests(self) -> dict[str, str]:
        """A digest of each history."""
        return {
            name: f"{len(history)} {hashlib.sha256(b'|'.join(history)).hexdigest()[:16]}"
            for name, history in self.histories().items()
        }

    def said(self) -> list[str]:
        """The messages that it has taken, of all its sessions."""
        return list(self._shows.said(self))


def _refusal(step: Mapping[str, Any]) -> Status:
    body = None if step["body"] is None else step["body"].encode()
    return Status(step["status"], retry_after=step["retry_after"], body=body)


class Shows(NamedTuple):
    """What the scripted backends of a dialect have of their sessions: the `log` of one, an `entry`
    of it as bytes, and which messages they have taken."""

    log: Callable[[Any], Sequence[Any]]
    entry: Callable[[Any], bytes]
    said: Callable[[Scripted], Iterator[str]]


def _streamed(talk: Any) -> Sequence[Any]:
    return [one for thread in talk.threads.values() for one in thread.streamed]


def _stamped(entry: Any) -> bytes:
    return b"%d %b" % (entry.stamp, entry.data)


def _envelope(entry: Any) -> bytes:
    return json.dumps(entry.envelope, sort_keys=True).encode()


def _sorted(entry: Any) -> bytes:
    return json.dumps(entry.data, sort_keys=True).encode()


def _shown(scripted: Scripted) -> Iterator[Any]:
    for history in scripted.histories().values():
        yield from map(json.loads, history)


def _said_to_herm(scripted: Scripted) -> Iterator[str]:
    for value in _shown(scripted):
        if value["type"] == "user.message":
            yield "".join(block["text"] for block in value["payload"]["content"])


def _said_to_eve(scripted: Scripted) -> Iterator[str]:
    for value in _shown(scripted):
        if value["type"] == "message.received":
            yield value["data"]["message"]


def _executed(scripted: Scripted) -> Iterator[str]:
    """Yield the messages that an Engine was sent and has taken: no frame of it repeats them."""
    lost = False
    for step in scripted.steps:
        if step["do"] == "request" and step["path"] == "/execute":
            if not lost:
                yield json.loads(base64.b64decode(step["body"]))["message"]
            lost = False
        elif step.get("route") == "execute":
            lost = True


def _posted(scripted: Scripted) -> Iterator[str]:
    """Yield the messages that sessions of Managed Agents have taken, also those that are queued."""
    for talk in scripted.state.talks.values():
        for stored in talk.primary.stored:
            if stored.event["type"] == "user.message":
                yield "".join(block["text"] for block in stored.event["content"])


SHOWS: Mapping[str, Shows] = {
    "engine": Shows(attrgetter("buffer"), _stamped, _executed),
    "eve": Shows(attrgetter("log"), attrgetter("data"), _said_to_eve),
    "herm": Shows(attrgetter("entries"), _envelope, _said_to_herm),
    "managed-agents": Shows(_streamed, _sorted, _posted),
}
"""Dialect -> what its scripted backends have."""
