"""Strict clients that come back: one person per dialect, with a cursor that outlives connections.

A person reads for as long as the session lasts. Whatever ends a connection, they come back with
their cursor, as the dialect's own clients do. What they have in the end is `frames`, each once and
in order, and every frame was checked by the strict client of its dialect.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.support import engine_client, eve_client, herm_client
from tests.support.engine_client import EngineClient, EngineEvent
from tests.support.eve_client import EveClient, EveSession, Form
from tests.support.herm_client import HermClient

__all__ = [
    "BROKEN",
    "PEOPLE",
    "Ask",
    "Boundary",
    "EnginePerson",
    "EvePerson",
    "HermPerson",
    "Person",
    "passing",
]

BROKEN = (
    aiohttp.ClientError,
    ConnectionError,
    TimeoutError,
    herm_client.Disconnected,
    engine_client.Disconnected,
)
"""What a client gets when the connection breaks, or nobody is there."""

_REFUSED = (herm_client.Refused, eve_client.Refused, engine_client.Refused)
_VIOLATIONS = (
    herm_client.ProtocolViolation,
    eve_client.ProtocolViolation,
    engine_client.ProtocolViolation,
)

BACK_S = 0.02
"""How soon a person comes back after a connection broke: the clients' own waits are longer, and the
proof is about what they get, not about when."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What the agent waits for: an approval, or a question with or without options."""

    id: str
    approval: bool
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Boundary:
    """The agent stopped working here: for good, or until the asks are answered."""

    place: int
    asks: tuple[Ask, ...]


class Person(abc.ABC):
    """A person with one session.

    Args:
        http: the HTTP client to use, a connection for each request.
        url: the base URL of the face.
        name: a name that nobody else has.
    """

    dialect: str

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        self.http = http
        self.url = url
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

    @abc.abstractmethod
    async def say(self, text: str) -> None:
        """Send a message. Raises a `Refused`, or one of `BROKEN`: then nobody knows."""

    @abc.abstractmethod
    async def answer(self, ask: Ask, yes: bool) -> None:
        """Answer what the agent waits for."""

    @abc.abstractmethod
    async def steer(self, text: str) -> None:
        """Guide the running turn."""

    @abc.abstractmethod
    async def interrupt(self, note: str) -> None:
        """Stop the running turn; the note goes along where the dialect has a place for it."""

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
            except _REFUSED as refusal:
                if not passing(refusal):
                    self.violations.append(f"the stream is refused: {refusal}"[:400])
                    await asyncio.sleep(1.0)
                await asyncio.sleep(BACK_S)
            except _VIOLATIONS as violation:
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

    def facts_of(self, frames: list[Any]) -> list[Any]:
        """Return frames in the form that `facts` reads."""
        return frames


def passing(refusal: BaseException) -> bool:
    """Say whether a refusal is about this moment only: the server comes or goes."""
    return isinstance(refusal, _REFUSED) and refusal.status >= 500


class HermPerson(Person):
    """At a Herm client: `Last-Event-ID` is the cursor (herm page, section 4.3)."""

    dialect = "herm"
    session = ""

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        super().__init__(http, url, name)
        self._client = HermClient(http, url)
        self._open: dict[str, Ask] = {}
        self._answered: set[str] = set()

    async def open(self) -> None:
        agents = (await self._client.call("GET", "/v1/agents"))[1]
        self.session = (await self._client.create(agents["data"][0]["id"]))["id"]

    async def say(self, text: str) -> None:
        await self._client.say(self.session, text)

    async def answer(self, ask: Ask, yes: bool) -> None:
        event: dict[str, Any]
        if ask.approval:
            result = "allow" if yes else "deny"
            event = {"type": "user.tool_confirmation", "tool_use_id": ask.id, "result": result}
        else:
            words = ask.options[0] if ask.options else "Basil"
            event = {"type": "user.clarify_result", "request_id": ask.id, "answer": words}
        await self._client.post(self.session, event)

    async def steer(self, text: str) -> None:
        await self._client.post(self.session, {"type": "user.steer", "message": text})

    async def interrupt(self, note: str) -> None:
        await self._client.post(self.session, {"type": "user.interrupt", "message": note})

    @property
    def address(self) -> str:
        """The session's public id."""
        return self.session

    async def again(self) -> list[Any]:
        last = self.frames[-1]["id"] if self.frames else None
        found: list[Any] = []
        if last is None:
            return found
        async with aclosing(self._client.stream(self.session, query="?after=0")) as stream:
            async for envelope in stream:
                if envelope:
                    found.append(envelope)
                if envelope and envelope["id"] == last:
                    break
        return found

    async def _connect(self) -> None:
        last = self.frames[-1]["id"] if self.frames else None
        query = "" if last else "?after=0"
        async with aclosing(self._client.stream(self.session, last, query=query)) as stream:
            async for envelope in stream:
                if envelope:
                    if self.frames and envelope["sequence"] <= self.frames[-1]["sequence"]:
                        raise herm_client.ProtocolViolation("`sequence` goes back", envelope)
                    self._take(envelope)

    def _see(self, frame: Any) -> None:
        payload = frame["payload"]
        match payload["type"]:
            case "agent.tool_use" | "agent.mcp_tool_use" if payload.get("requires_action"):
                self._open[payload["id"]] = Ask(payload["id"], approval=True)
            case "agent.clarify_request":
                id_ = payload["request_id"]
                self._open[id_] = Ask(id_, False, tuple(payload.get("choices") or ()))
            case "session.status_idle":
                reason = payload["stop_reason"]
                if reason["type"] == "requires_action":
                    self._boundary(*(self._open[id_] for id_ in reason["event_ids"]))
                else:
                    self._boundary()


class EvePerson(Person):
    """At an eve client of the face's own form: the count of records is the cursor.

    In form `tokens` a session is made with its first message; what a broken request made is in a
    session of its own then, which nobody reads.
    """

    dialect = "eve"

    def __init__(
        self, http: aiohttp.ClientSession, url: str, name: str, form: Form = "all"
    ) -> None:
        super().__init__(http, url, name)
        # Dragoman writes blank lines in silence, as readers must bear (section 7.3).
        self._client = EveClient(http, url, form=form, beats=True)
        self._session: EveSession | None = None
        self._open: dict[str, Ask] = {}
        self._held: dict[str, Ask] = {}
        self._previous = ""

    @property
    def session(self) -> EveSession:
        """Return the session, which is open."""
        assert self._session is not None
        return self._session

    @property
    def nameless(self) -> bool:
        """Say whether the next message makes a session."""
        return self._session is None

    async def open(self) -> None:
        if self._client.form == "tokens":
            return
        async with self.http.post(f"{self.url}/eve/v1/session", data=b"") as response:
            if response.status >= 300:
                raise eve_client.Refused(response.status, await response.text(), {})
            body = await response.json()
        self._session = self._client.attach(body["sessionId"], token=body.get("continuationToken"))

    async def say(self, text: str) -> None:
        if self._session is None:
            self._session = await self._client.create(text)
        else:
            await self._session.send(text)

    async def answer(self, ask: Ask, yes: bool) -> None:
        if ask.approval:
            await self.session.respond(ask.id, "approve" if yes else "deny")
        elif ask.options:
            await self.session.respond(ask.id, ask.options[0])
        else:
            await self.session.respond(ask.id, text="Basil")

    async def steer(self, text: str) -> None:
        # A client of the token generation knows no policies.
        policy: Any = {} if self._client.form == "tokens" else {"turn_policy": "steer"}
        await self.session.send(text, **policy)

    async def interrupt(self, note: str) -> None:
        await self.session.cancel()

    @property
    def address(self) -> str:
        """The session's public id."""
        return self.session.session_id

    async def again(self) -> list[Any]:
        late = self._client.attach(self.session.session_id)
        if self._client.form != "tokens":
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
        if self._session is None:
            await asyncio.sleep(BACK_S)
            return
        async with aclosing(self.session.stream()) as records:
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
                    options = tuple(option["id"] for option in request.get("options", ()))
                    approval = request["kind"] == "tool-approval"
                    id_ = request["requestId"]
                    self._open[id_] = Ask(id_, approval, options)
            case "input.resolved":
                for resolution in data["resolutions"]:
                    self._open.pop(resolution["requestId"], None)
            case "turn.failed" | "turn.cancelled":
                self._open.clear()
            case "turn.waiting" if self._client.form == "newest" and data["on"] == "input":
                # Its pauses hold their turn, and nothing else says so.
                self._boundary(*self._open.values())
            case "session.waiting":
                token = data.get("continuationToken")
                if token is not None:
                    self.session.token = token
                self._boundary(*self._open.values())
        self._previous = frame["type"]


class EnginePerson(Person):
    """At an Engine client: `after` in ms is the cursor, each message is a body (section 11)."""

    dialect = "engine"

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        super().__init__(http, url, name)
        # Some events are ours: the page tells clients to ignore what they do not know (8).
        expect = engine_client.Expect(stamped=True, known_types=False)
        self._client = EngineClient(http, url, expect=expect)
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

    async def say(self, text: str) -> None:
        """`POST /execute`; its body is read by who has all that was before, else the replay is."""
        body = self._client.execute(text, self.name)
        try:
            first = await anext(body)
        except BaseException as broken:
            self._behind = True
            self._doubtful = self._doubtful or not isinstance(broken, engine_client.Refused)
            self._requests += 1
            self._wanted.set()
            await body.aclose()
            raise
        self._requests += 1
        behind = self._behind or self._doubtful or _ms(first) <= self._stamp
        self._behind, self._doubtful = True, False
        if behind:
            await body.aclose()
        else:
            self._take(first)
            self._body = body
        self._wanted.set()

    async def answer(self, ask: Ask, yes: bool) -> None:
        if ask.approval:
            words = "yes" if yes else "no"
        else:
            words = ask.options[0] if ask.options else "Basil"
        await self._client.respond(self.name, words, request_id=ask.id)

    async def waiting(self) -> list[Ask]:
        records = [r for r in await self._client.pending() if r["task_id"] == self.name]
        return [_asked(record) for record in records]

    async def steer(self, text: str) -> None:
        raise NotImplementedError

    async def interrupt(self, note: str) -> None:
        raise NotImplementedError

    async def again(self) -> list[Any]:
        found: list[Any] = []
        async with aclosing(self._client.replay(0, self.name)) as events:
            async for event in events:
                if event.event != "heartbeat":
                    found.append(event)
                # A replay follows a turn that runs; what came later is not asked for.
                if _ms(event) >= self._stamp:
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
            body = self._client.replay(self._stamp, self.name)
        try:
            async with aclosing(body) as events:
                async for event in events:
                    if event.event != "heartbeat" and _ms(event) > self._stamp:
                        self._take(event)
        except engine_client.Refused as refusal:
            # A task of which no message was taken yet.
            if refusal.status != 404 or self.frames:
                raise
            return
        # The body ended in order, at the end of a turn; nobody but us begins another. What we asked
        # for meanwhile may have begun after it.
        self._behind = self._requests != requests

    def _take(self, frame: Any) -> None:
        self._stamp = _ms(frame)
        super()._take(frame)

    def _see(self, frame: Any) -> None:
        name, payload = frame
        match name:
            case "hitl_request":
                self._boundary(_asked(payload))
            case "thread_lifecycle" if payload["phase"] != "started":
                self._boundary()


def _asked(record: Mapping[str, Any]) -> Ask:
    given = record.get("options") or ()
    options = tuple(o if isinstance(o, str) else o["label"] for o in given)
    return Ask(record["request_id"], record["kind"] == "permission", options)


def _ms(frame: EngineEvent) -> int:
    return round(dt.datetime.fromisoformat(frame.payload["timestamp"]).timestamp() * 1000)


PEOPLE: dict[str, type[Person]] = {"herm": HermPerson, "eve": EvePerson, "engine": EnginePerson}
