"""PostgreSQL is away: each face says so in its own form, and when to come again. No backend is
asked, and when PostgreSQL is back the same session goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from proxy.base.errors import JournalUnavailable
from proxy.journal.postgres import _writer
from tests.support.dragoman import Start
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.running import Live, Running
from tests.support.waiting import SOON_S, until

pytestmark = pytest.mark.postgres

Run = Start[Running]

CHOSEN = "c-1"
"""The name of a session where frontends choose it."""

NOWHERE = "nowhere"
"""The name of nothing, which nobody knows while the journal cannot be asked."""

TEXT = JournalUnavailable.SHOWN


class Ask(NamedTuple):
    """A request at a face."""

    method: str
    path: str
    body: Any = None


Say = Callable[[str, str, Mapping[str, Any]], Ask]
"""Makes the request that says something in a session, which was made by such an answer."""


@dataclasses.dataclass(frozen=True)
class Face:
    """How a face is asked: `made` makes a session, where the first message does not; in `reads`
    `{s}` stands for a session. `refusals` are the bodies of refusals, without what is only in
    one."""

    say: Say
    reads: tuple[str, ...]
    refusals: tuple[Any, ...]
    made: Ask | None = None
    named: str = "id"


def _run(session: str, text: str, _: Mapping[str, Any]) -> Ask:
    said = {"id": f"m-{text}", "role": "user", "content": text}
    body = {"threadId": session, "runId": f"r-{text}", "messages": [said], "state": {}}
    return Ask("POST", "", {**body, "tools": [], "context": [], "forwardedProps": {}})


def _chat(session: str, text: str, _: Mapping[str, Any]) -> Ask:
    said = {"id": f"m-{text}", "role": "user", "parts": [{"type": "text", "text": text}]}
    body = {"id": session, "messages": [said], "trigger": "submit-message"}
    return Ask("POST", "/api/chat", body)


def _execute(session: str, text: str, _: Mapping[str, Any]) -> Ask:
    return Ask("POST", "/execute", {"message": text, "task_id": session})


def _eve(session: str, text: str, made: Mapping[str, Any]) -> Ask:
    body = {"message": text, "continuationToken": made["continuationToken"]}
    return Ask("POST", f"/eve/v1/session/{session}", body)


def _events(session: str, text: str, _: Mapping[str, Any]) -> Ask:
    said = {"type": "user.message", "content": [{"type": "text", "text": text}]}
    return Ask("POST", f"/v1/sessions/{session}/events", {"events": [said]})


_SESSIONS = (
    "/v1/sessions",
    "/v1/sessions/{s}",
    "/v1/sessions/{s}/events",
    "/v1/sessions/{s}/events/stream",
)

FACES = {
    "agui": Face(_run, ("/threads/{s}",), ({"error": TEXT, "code": "journal_unavailable"},)),
    "aisdk": Face(_chat, ("/api/chat/{s}/stream",), (TEXT,)),
    "engine": Face(
        _execute,
        ("/execute/replay?after=0&task_id={s}", "/hitl/pending"),
        ({"error": "UNAVAILABLE", "message": TEXT},),
    ),
    "eve": Face(
        _eve,
        ("/eve/v1/session/{s}/stream",),
        ({"ok": False, "error": TEXT}, {"ok": False, "error": "Session stream unavailable."}),
        made=Ask("POST", "/eve/v1/session", {"message": "hello"}),
        named="sessionId",
    ),
    "herm": Face(
        _events,
        _SESSIONS,
        ({"error": {"code": "unavailable", "message": TEXT}},),
        made=Ask("POST", "/v1/agents/engine/sessions", {}),
    ),
    "managed-agents": Face(
        _events,
        _SESSIONS,
        ({"type": "error", "error": {"type": "api_error", "message": TEXT}},),
        made=Ask("POST", "/v1/sessions", {"agent": "engine", "environment_id": "env_engine"}),
    ),
}


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    with postgres_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("proxy.journal.postgres.journal.PATIENCE_SECONDS", 0.2)


@contextlib.asynccontextmanager
async def away(server: PostgresServer) -> AsyncIterator[None]:
    """Stop a server, and start it again."""
    await asyncio.to_thread(server.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


class Answer(NamedTuple):
    """What a face answers; the body as JSON where it is."""

    status: int
    body: Any
    later: str | None


async def asked(running: Running, base: str, ask: Ask) -> Answer:
    """Ask, and return the answer."""
    async with (
        asyncio.timeout(SOON_S),
        running.http.request(ask.method, base + ask.path, json=ask.body) as response,
    ):
        text = await response.text()
        body = json.loads(text) if response.content_type == "application/json" else text
        return Answer(response.status, body, response.headers.get("Retry-After"))


async def is_ready(running: Running) -> bool:
    """Whether it says that it takes work."""
    return (await asked(running, url_of(running), Ask("GET", "/readyz"))).status == 200


def url_of(running: Running) -> str:
    return f"http://127.0.0.1:{running.port}"


async def until_ready(running: Running, ready: bool) -> None:
    async with asyncio.timeout(SOON_S):
        while await is_ready(running) is not ready:  # noqa: ASYNC110 - it tells of no event
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("dialect", FACES)
async def test_each_face_says_in_its_form_that_nothing_is_stored_and_goes_on_after(
    run: Run, own: PostgresServer, dialect: str
) -> None:
    running, face = await run(own.new_url()), FACES[dialect]
    at = functools.partial(asked, running, running.face(dialect, "engine"))
    made: Mapping[str, Any] = {}
    if face.made is not None:
        made = (await at(face.made)).body
    session = made.get(face.named, CHOSEN)
    if dialect != "eve":
        assert (await at(face.say(session, "hello", made))).status < 300
    await until(lambda: len(running.requests("execute")) == 1)
    (row,) = await running.sessions.journal.sessions()
    live = await running.live(row.id)
    await until(lambda: not live.state.busy)

    async with away(own):
        asks = [face.made or face.say("new", "hello", made)]
        for name in (session, NOWHERE):
            asks.append(face.say(name, "while it is away", made))
            asks += [Ask("GET", path.replace("{s}", name)) for path in face.reads]
        for ask in asks:
            answer = await at(ask)
            assert (answer.status, answer.later) == (503, "2"), ask
            if isinstance(answer.body, dict):
                answer.body.pop("request_id", None)
                assert answer.body.pop("details", {"retry_after": 2}) == {"retry_after": 2}
            assert answer.body in face.refusals, ask
        listed = await asked(running, url_of(running), Ask("GET", "/api/v1/sessions"))
        assert (listed.status, listed.later) == (503, "2")
        await until_ready(running, False)
        assert len(running.requests("execute")) == 1
    await until_ready(running, True)
    assert (await at(face.say(session, "and again", made))).status < 300
    await until(lambda: len(running.requests("execute")) == 2)
    assert [body["message"] for body in running.requests("execute")] == ["hello", "and again"]
    assert [one.id for one in await running.sessions.journal.sessions()] == [row.id]


async def test_what_was_running_goes_on_and_is_stored_whole(run: Run, own: PostgresServer) -> None:
    running = await run(own.new_url(), engine={"pace": 0.05}, speed=1.0)
    client = running.eve()
    session = await client.create("script: slow 40")
    live = await running.live(session.session_id)
    await until(lambda: live.state.busy)
    async with Live(running, session.session_id) as reader:
        await reader.count(5)
        async with away(own):
            await until_ready(running, False)
        await until_ready(running, True)
    async with asyncio.timeout(SOON_S):
        turn = await session.read_turn()
    # What was shown is stored, all of it.
    assert reader.lines == (await running.lines(session.session_id))[: len(reader.lines)]
    assert turn.text == "".join(f"tick {n} " for n in range(40)) + " (turn 1)"
    assert len(running.requests("execute")) == 1
