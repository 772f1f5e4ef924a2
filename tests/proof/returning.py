"""Strict clients that come back: one person per dialect, with a cursor that outlives connections.

A person reads for as long as the session lasts. Whatever ends a connection, they come back with
their cursor, as the dialect's own clients do. What they have in the end is `frames`, each once and
in order, and every frame was checked by the strict client of its dialect.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.people import Ask, EnginePerson, EvePerson, HermPerson, Person
from tests.support.engine_client import EngineClient, EngineEvent, Expect
from tests.support.eve_client import EveClient, Form
from tests.support.herm_client import HermClient
from tests.support.strictness import Disconnected, ProtocolViolation, Refused

__all__ = [
    "BROKEN",
    "RETURNING",
    "Boundary",
    "EngineReturning",
    "EveReturning",
    "HermReturning",
    "Returning",
    "passing",
]

BROKEN = (aiohttp.ClientError, ConnectionError, TimeoutError, Disconnected)
"""What a client gets when the connection breaks, or nobody is there."""

BACK_S = 0.02
"""How soon a person comes back after a connection broke: the clients' own waits are longer, and the
proof is about what they get, not about when."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The agent stopped working here: for good, or until the asks are answered."""

    place: int
    asks: tuple[Ask, ...]


class Returning(Person):
    """A person who comes back. A request of theirs raises a `Refused`, or one of `BROKEN`: then
    nobody knows whether it arrived.

    Args:
        http: the HTTP client to use, a connection for each request.
        url: the base URL of the face.
        name: a name that nobody else has.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        super().__init__(http, url)
        self.name = name
        self.frames: list[Any] = []
        self.boundaries: list[Boundary] = []
        self.violations: list[str] = []
        self.connections = 0
        self.changed = asyncio.Event()
        self._closed = False

    @abc.abstractmethod
    async def open(self) -> None:
        """Make the session; may be called again after it broke."""

    @property
    def address(self) -> str:
        """The session's public id; empty where the dialect does not show it."""
        return ""

    async def waiting(self) -> list[Ask]:
        """Ask what the agent waits for, where the stream does not say it again."""
        return []

    @abc.abstractmethod
    async def again(self) -> list[Any]:
        """Read the session from its beginning, as somebody who comes late."""

    @abc.abstractmethod
    async def _connect(self) -> None:
        """Read on from the cursor until the connection ends."""

    async def read(self) -> None:
        """Read until `close`, coming back whenever the connection ends."""
        while not self._closed:
            self.connections += 1
            try:
                await self._connect()
            except BROKEN:
                await asyncio.sleep(BACK_S)
            except Refused as refusal:
                if not passing(refusal):
                    self.violations.append(f"the stream is refused: {refusal}"[:400])
                    await asyncio.sleep(1.0)
                await asyncio.sleep(BACK_S)
            except ProtocolViolation as violation:
                self.violations.append(str(violation)[:400])
                self.changed.set()
                await asyncio.sleep(BACK_S)
                if len(self.violations) > 3:
                    return

    @property
    def nameless(self) -> bool:
        """Say whether there is no session yet that the person could come back to."""
        return False

    def close(self) -> None:
        """Come back no more."""
        self._closed = True

    def _take(self, frame: Any) -> None:
        self.frames.append(frame)
        self._see(frame)
        self.changed.set()

    @abc.abstractmethod
    def _see(self, frame: Any) -> None:
        """Note a boundary."""

    def _boundary(self, *asks: Ask) -> None:
        self.boundaries.append(Boundary(len(self.frames), asks))


def passing(refusal: BaseException) -> bool:
    """Say whether a refusal is about this moment only: the server comes or goes."""
    return isinstance(refusal, Refused) and refusal.status >= 500


class HermReturning(HermPerson, Returning):
    """At a Herm client: `Last-Event-ID` is the cursor (herm page, section 4.3)."""

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        super().__init__(http, url, name)
        self.client = HermClient(http, url)
        self._open: dict[str, Ask] = {}

    @property
    def address(self) -> str:
        """The session's public id."""
        return self.session or ""

    async def again(self) -> list[Any]:
        last = self.frames[-1]["id"] if self.frames else None
        found: list[Any] = []
        if last is None:
            return found
        async with aclosing(self.client.stream(self.address, query="?after=0")) as stream:
            async for envelope in stream:
                if envelope:
                    found.append(envelope)
                if envelope and envelope["id"] == last:
                    break
        return found

    async def _connect(self) -> None:
        last = self.frames[-1]["id"] if self.frames else None
        query = "" if last else "?after=0"
        async with aclosing(self.client.stream(self.address, last, query=query)) as stream:
            async for envelope in stream:
                if envelope:
                    if self.frames and envelope["sequence"] <= self.frames[-1]["sequence"]:
                        raise ProtocolViolation("`sequence` goes back", envelope)
                    self._take(envelope)

    def _see(self, frame: Any) -> None:
        payload = frame["payload"]
        ask = self.ask_of(payload)
        if ask is not None:
            self._open[ask.id] = ask
        match payload["type"]:
            case "session.status_idle":
                reason = payload["stop_reason"]
                if reason["type"] == "requires_action":
                    self._boundary(*(self._open[id_] for id_ in reason["event_ids"]))
                else:
                    self._boundary()


class EveReturning(EvePerson, Returning):
    """At an eve client of the face's own form: the count of records is the cursor.

    In form `tokens` a session is made with its first message; what a broken request made is in a
    session of its own then, which nobody reads.
    """

    def __init__(
        self, http: aiohttp.ClientSession, url: str, name: str, form: Form = "all"
    ) -> None:
        super().__init__(http, url, name)
        # Dragoman writes blank lines in silence, as readers must bear (section 7.3).
        self.client = EveClient(http, url, form=form, beats=True)
        self._open: dict[str, Ask] = {}
        self._held: dict[str, Ask] = {}
        self._previous = ""

    @property
    def nameless(self) -> bool:
        """Say whether the next message makes a session."""
        return self.eve is None

    @property
    def address(self) -> str:
        """The session's public id."""
        return self.opened.session_id

    async def again(self) -> list[Any]:
        late = self.client.attach(self.opened.session_id)
        if self.client.form != "tokens":
            return [record async for record in late.stream(0, follow=False)]
        # The token generation follows always: who comes late leaves when they have caught up.
        found: list[Any] = []
        async with aclosing(late.stream(0)) as records:
            async for record in records:
                found.append(record)
                if len(found) >= len(self.frames):
                    break
        return found

    async def _connect(self) -> None:
        if self.eve is None:
            await asyncio.sleep(BACK_S)
            return
        async with aclosing(self.opened.stream()) as records:
            async for record in records:
                self._take(record)

    def _see(self, frame: Any) -> None:
        data = frame.get("data", {})
        match frame["type"]:
            case "turn.started":
                # A turn that was closed at its pause goes on as another.
                self._held, self._open = self._open, {}
            case "turn.completed" if self._previous == "turn.started":
                # A boundary for who said something meanwhile: what was asked is asked still.
                self._open, self._held = {**self._held, **self._open}, {}
            case "input.requested":
                for request in data["requests"]:
                    ask = self.ask_of(request)
                    self._open[ask.id] = ask
            case "input.resolved":
                for resolution in data["resolutions"]:
                    self._open.pop(resolution["requestId"], None)
            case "turn.failed" | "turn.cancelled":
                self._open.clear()
            case "turn.waiting" if self.client.form == "newest" and data["on"] == "input":
                # Its pauses hold their turn, and nothing else says so.
                self._boundary(*self._open.values())
            case "session.waiting":
                token = data.get("continuationToken")
                if token is not None:
                    self.opened.token = token
                self._boundary(*self._open.values())
        self._previous = frame["type"]


class EngineReturning(EnginePerson, Returning):
    """At an Engine client: `after` in ms is the cursor, each message is a body (section 11)."""

    by_id = True

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        super().__init__(http, url, name)
        # Some events are ours: the page tells clients to ignore what they do not know (8).
        expect = Expect(stamped=True, known_types=False)
        self.client = EngineClient(http, url, expect=expect)
        self.task = name
        self._stamp = 0
        self._body: AsyncGenerator[EngineEvent, None] | None = None
        self._wanted = asyncio.Event()
        # Whether frames may be missing before those of the next body, as they are while one is
        # read, and whether a request that broke off may have begun a turn, or may yet.
        self._behind = False
        self._doubtful = False
        self._requests = 0

    async def open(self) -> None:
        """Nothing: the client names the task."""

    async def say(self, text: str, *, policy: str | None = None, **extras: Any) -> None:
        """`POST /execute`; its body is read by who has all that was before, else the replay is."""
        body = self.execute(text, **extras)
        try:
            first = await anext(body)
        except BaseException as broken:
            self._behind = True
            self._doubtful = self._doubtful or not isinstance(broken, Refused)
            self._requests += 1
            self._wanted.set()
            await body.aclose()
            raise
        self._requests += 1
        behind = self._behind or self._doubtful or self.stamp(first) <= self._stamp
        self._behind, self._doubtful = True, False
        if behind:
            await body.aclose()
        else:
            self._take(first)
            self._body = body
        self._wanted.set()

    async def waiting(self) -> list[Ask]:
        records = [r for r in await self.client.pending() if r["task_id"] == self.task]
        return [self.ask_of(record) for record in records]

    async def again(self) -> list[Any]:
        found: list[Any] = []
        async with aclosing(self.client.replay(0, self.task)) as events:
            async for event in events:
                if event.event != "heartbeat":
                    found.append(event)
                # A replay follows a turn that runs; what came later is not asked for.
                if self.stamp(event) >= self._stamp:
                    break
        return found

    async def _connect(self) -> None:
        body, self._body = self._body, None
        if body is None:
            # Between turns there is nothing to read: look from time to time, or when told to.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.25):
                    await self._wanted.wait()
            self._wanted.clear()
            body, self._body = self._body, None
        requests = self._requests
        self._behind = True
        if body is None:
            body = self.client.replay(self._stamp, self.task)
        try:
            async with aclosing(body) as events:
                async for event in events:
                    if event.event != "heartbeat" and self.stamp(event) > self._stamp:
                        self._take(event)
        except Refused as refusal:
            # A task that has taken no message yet.
            if refusal.status != 404 or self.frames:
                raise
            return
        # The body ended in order, at the end of a turn; nobody but us begins another. What we asked
        # for meanwhile may have begun after it.
        self._behind = self._requests != requests

    def _take(self, frame: Any) -> None:
        self._stamp = self.stamp(frame)
        super()._take(frame)

    def _see(self, frame: Any) -> None:
        name, payload = frame
        match name:
            case "hitl_request":
                self._boundary(self.ask_of(payload))
            case "thread_lifecycle" if payload["phase"] != "started":
                self._boundary()


RETURNING: dict[str, type[Returning]] = {
    "herm": HermReturning,
    "eve": EveReturning,
    "engine": EngineReturning,
}
