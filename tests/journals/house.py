"""The proxy over all scripted backends, and a person who speaks each dialect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
from yarl import URL

from proxy.app.app import create_app
from proxy.app.server import opened_sessions
from proxy.base.clock import IdSource, ManualClock
from proxy.config.settings import Settings
from proxy.session import Session
from proxy.sessions.sessions import Sessions
from tests.journals.backends import Scripted
from tests.pairs.frontends import Frontend
from tests.pairs.table import PEOPLE
from tests.support.journals import sqlite
from tests.support.serving import HOST, close, serve
from tests.support.waiting import SOON_S, idle

__all__ = ["BACKENDS", "FACES", "House", "Talk", "asks", "at_rest", "backends"]

FACES = tuple(PEOPLE)

BACKENDS: Mapping[str, tuple[str, Any]] = {
    "herm": ("herm", "S2"),
    "eve": ("eve", "S2"),
    "engine": ("engine", "S2"),
    "eve-t": ("eve", "T"),
    "eve-s1": ("eve", "S1"),
    "managed-agents": ("managed-agents", "S2"),
}
"""The backends by name: dialect and, of an eve, generation."""

CALM_TURNS = 20


class House:
    """Backends, a proxy over them, and who talks to it. `clock` and `ids` are the proxy's."""

    def __init__(
        self, folder: Path, clock: ManualClock, ids: IdSource, backends: Mapping[str, Scripted]
    ) -> None:
        self.folder = folder
        self.clock = clock
        self.ids = ids
        self.backends = backends
        self.http: aiohttp.ClientSession
        self.sessions: Sessions
        self.port = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.people: list[Frontend] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        settings = Settings.model_validate(
            {
                "backends": tuple(backend.settings for backend in self.backends.values()),
                "journal": {"url": sqlite(self.folder), "window_ms": 0},
            }
        )
        stack = self._stack
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self.http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=timeout)
        )
        self.sessions = await stack.enter_async_context(
            opened_sessions(settings, clock=self.clock, ids=self.ids)
        )
        runner, self.port = await serve(create_app(self.sessions))
        stack.push_async_callback(close, runner)
        stack.push_async_callback(self.sessions.aclose)
        stack.push_async_callback(self._leave)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for person in self.people:
            await person.close()

    def face(self, dialect: str, backend: str) -> str:
        """The base URL of a face on a backend."""
        return f"http://{HOST}:{self.port}/as/{dialect}/to/{backend}"

    async def ask(self, method: str, url: str, body: Any = None) -> tuple[int, Any]:
        """Ask the proxy; return the status and the JSON that came."""
        if url.startswith("/"):
            url = f"http://{HOST}:{self.port}{url}"
        async with self.http.request(method, url, json=body) as response:
            await response.read()
            is_json = "json" in response.content_type and "ndjson" not in response.content_type
            return response.status, await response.json() if is_json else None

    def leave_asking(self, method: str, url: str, body: Any) -> None:
        """Ask the proxy without waiting for the answer, which may never come."""
        self.leave(self.ask(method, url, body))

    def leave(self, asking: Coroutine[Any, Any, Any]) -> None:
        """Do something without waiting for it."""
        self.tasks.append(asyncio.create_task(asking))

    async def live(self, session_id: str) -> Session:
        """The session in memory, loaded where needed."""
        return await self.sessions.get(session_id, owner=None, route=None)

    async def calm(self) -> None:
        """Return when nothing has happened for a while: what is left waits for a clock. The while
        is counted in turns, since a busy machine may give it none for long."""
        seen: list[int] = []
        turns = 0
        while turns < CALM_TURNS:
            sizes = [backend.size() for backend in self.backends.values()]
            sizes.append(self.sessions.journal.stored)
            turns = turns + 1 if sizes == seen else 0
            seen = sizes
            await asyncio.sleep(0.003)


def at_rest(live: Session) -> bool:
    """Say whether nothing of a session is under way, in its log or out of it."""
    return idle(live) and live.idle


def _open(live: Session) -> list[Any]:
    return [o.event for o in live.state.interactions.values() if o.claimed_by is None]


def asks(live: Session) -> bool:
    """Say whether a session has an open request that nobody has answered."""
    return bool(_open(live))


class Talk:
    """One session: a person at a face, in front of a backend."""

    def __init__(self, house: House, case: str, face: str, backend: str, id: str = "") -> None:
        self.house = house
        self.case = case
        self.face = face
        self.backend = backend
        self.id = id
        self._person: Frontend | None = None

    @property
    def name(self) -> str:
        """How it is called in the fixture."""
        return f"{self.face} on {self.backend}: {self.case}"

    @property
    def scripted(self) -> Scripted:
        """Its backend."""
        return self.house.backends[self.backend]

    async def live(self) -> Session:
        """The session."""
        return await self.house.live(self.id)

    async def when(self, holds: Callable[[Session], bool]) -> Session:
        """Return the session once that holds of it. It may leave the memory, and come back."""
        async with asyncio.timeout(SOON_S):
            while not holds(live := await self.live()):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        return live

    def text(self, words: str) -> str:
        """The words of a message, by which it is known at the backend."""
        return f"({self.name})\n{words}"

    async def say(self, words: str, *, wait: bool = True) -> None:
        """Say something through the own face; without `wait` its answer may never come."""
        text = self.text(words)
        match self.face:
            case "eve":
                await self._say_eve(text, wait=wait)
            case "herm":
                await self._say_herm(text, wait=wait)
            case "engine":
                await self._say_engine(text)
            case _:
                await self.say_as_person(text)

    async def _post(self, url: str, body: Any, *, wait: bool) -> Any:
        if not wait:
            self.house.leave_asking("POST", url, body)
            return None
        status, answer = await self.house.ask("POST", url, body)
        assert status in (200, 201, 202), (self.name, status, answer)
        return answer

    async def _say_eve(self, text: str, *, wait: bool) -> None:
        url = self.house.face("eve", self.backend) + "/eve/v1/session"
        if self.id:
            await self._post(f"{url}/{self.id}", {"message": text}, wait=wait)
        else:
            self.id = (await self._post(url, {"message": text}, wait=True))["sessionId"]

    async def _say_herm(self, text: str, *, wait: bool) -> None:
        url = self.house.face("herm", self.backend) + "/v1"
        if not self.id:
            made = await self._post(f"{url}/agents/{self._agent}/sessions", {}, wait=True)
            self.id = made["id"]
        event = {"type": "user.message", "content": [{"type": "text", "text": text}]}
        await self._post(f"{url}/sessions/{self.id}/events", {"events": [event]}, wait=wait)

    @property
    def _agent(self) -> str:
        return "agent_K4" if self.scripted.dialect == "herm" else self.backend

    async def _say_engine(self, text: str) -> None:
        url = self.house.face("engine", self.backend) + "/execute"
        body = {"task_id": self.name, "message": text}
        await self._stored(lambda: self.house.leave_asking("POST", url, body))

    async def say_as_person(self, text: str) -> None:
        """Say something as the person does whom a dialect brings: see `tests.pairs.table`."""
        person = self._person
        if person is None:
            url = self.house.face(self.face, self.backend)
            person = PEOPLE[self.face](self.house.http, url, self.id or None)
            self._person = person
            self.house.people.append(person)
            if self.id:
                await person.attach()
        await self._stored(lambda: self.house.leave(person.say(text)))

    async def _stored(self, ask: Callable[[], None]) -> None:
        """Ask what is answered by the stream of a turn, which may last, and does not name the
        session; return when something of it is stored."""
        # A new session has more than its start: some dialects make it before anything is said.
        before = (await self.live()).state.seq if self.id else 1
        known = {row.id for row in await self.house.sessions.journal.sessions(limit=1000)}
        ask()
        while not self.id:
            found = await self.house.sessions.journal.sessions(limit=1000)
            self.id = next((row.id for row in found if row.id not in known), "")
        await self.when(lambda live: live.state.seq > before)

    async def queue(self, words: str) -> None:
        """Say something that waits for the turn to end, through an eve client on the same
        session."""
        url = self.house.face("eve", self.backend) + f"/eve/v1/session/{self.id}"
        await self._post(url, {"message": self.text(words), "turnPolicy": "queue"}, wait=True)

    async def control(self, name: str, *, wait: bool = True) -> None:
        """Reset the session or cancel its turn, through an eve client."""
        url = self.house.face("eve", self.backend) + f"/eve/v1/session/{self.id}/{name}"
        await self._post(url, None, wait=wait)

    async def asked(self) -> Any:
        """Wait for an open request that nobody has answered, and return it."""
        live = await self.when(asks)
        return _open(live)[0]

    async def answer(self, asked: Any, *, sealed: str | None = None, wait: bool = True) -> None:
        """Answer a request, whatever it asks: yes, the first option, some words."""
        given: dict[str, Any]
        match asked.kind:
            case "authorization":
                await self._sign_in(asked)
                return
            case "approval" | "limit":
                given = {"decision": "allow"}
            case "secret" | "sudo":
                given = {"skip": True} if sealed is None else {"sealed": sealed}
            case _ if asked.options:
                given = {"option_ids": [asked.options[0].id]}
            case _:
                given = {"text": "as you like"}
        url = f"/api/v1/sessions/{self.id}/interactions/{asked.request_id}"
        if not wait:
            self.house.leave_asking("POST", url, given)
            return
        status, answer = await self.house.ask("POST", url, given)
        assert status == 202, (self.name, status, answer)

    async def _sign_in(self, asked: Any) -> None:
        # The provider sends the browser of who signed in back to the agent's server, which has
        # another port than it had when the fixture was written.
        back = URL(URL(asked.details["url"]).query["back"])
        async with self.house.http.get(back.with_port(self.scripted.port)) as page:
            # It may be asked for again before its end is seen: the agent's server knows it no more.
            assert page.status in (200, 404), (self.name, page.status)

    async def rests(self) -> None:
        """Wait until nothing is under way."""
        await self.when(at_rest)

    async def read(self, cursor: int = 0) -> list[tuple[int, bytes]]:
        """Return the frames that its face shows from a cursor on."""
        feed = (await self.live()).feeds.get(self.face)
        await feed.catch_up()
        return [(f.cursor, f.data) async for piece in feed.read(cursor) for f in piece]


@contextlib.asynccontextmanager
async def backends(names: Iterable[str]) -> AsyncIterator[dict[str, Scripted]]:
    """Serve new backends."""
    made: dict[str, Scripted] = {}
    try:
        for name in names:
            made[name] = Scripted(name, *BACKENDS[name])
            await made[name].start()
        yield made
    finally:
        for backend in made.values():
            await backend.stop()
