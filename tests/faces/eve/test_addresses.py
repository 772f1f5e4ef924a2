"""Addresses inside records lead back to us, below a base path and at a listener's root.

A sign-in is completed and a child's stream followed; a terminal program joins what another frontend
began.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

import proxy.sessions.backends
from proxy.app.app import create_app, create_listener
from proxy.app.server import opened_sessions
from proxy.config.settings import Settings
from proxy.http.bodies import RETRY_SECONDS
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.eve import create_eve_app
from proxy.scripted.eve_turns import EveVariant, Generation
from proxy.sessions.backends import MOST_STRANGERS
from tests.proof.attack.wire import listening
from tests.support.dragoman import BACKEND_KEY, backend_settings
from tests.support.engine_client import EngineClient
from tests.support.eve_client import EveClient
from tests.support.keys import key_of
from tests.support.ports import free_port
from tests.support.serving import HOST, served
from tests.support.waiting import SOON_S

RECORDED = Path(__file__).parents[3] / "fixtures/wire/eve"
PLACES = ("base", "root")


def recorded(release: str, part: int) -> list[dict[str, Any]]:
    """The records of a recorded sign-in, before (1) and after (2) the provider's return."""
    path = RECORDED / f"eve-{release}/server/sign-in.0{part}.ndjson"
    return [json.loads(line) for line in path.read_text().splitlines() if line]


class SigningEve:
    """Replays the recorded sign-in of a release; the provider's return sets it free."""

    def __init__(self, release: str) -> None:
        self.tokens = release.startswith("0.30")
        first, rest = recorded(release, 1), recorded(release, 2)
        hook = next(r["data"]["webhookUrl"] for r in first if "webhookUrl" in r.get("data", {}))
        self.path = URL(hook, encoded=True).raw_path
        # The second recording is a read from the start, or of what came after the first.
        known = {record["meta"]["id"] for record in first}
        self._records = [*first, *(r for r in rest if r["meta"]["id"] not in known)]
        self._held = len(first)
        self._free = asyncio.Event()
        self.returned: list[web.Request] = []
        self.bodies: list[bytes] = []

    def app(self) -> web.Application:
        """Its routes: create, stream, and the connection callback (sections 4, 7 and 9.4)."""
        app = web.Application()
        app.router.add_post("/eve/v1/session", self._create)
        app.router.add_get("/eve/v1/session/{id}/stream", self._stream)
        app.router.add_route("*", "/eve/v1/connections/{tail:.+}", self._back)
        app.router.add_post("/eve/v1/callback/{token}", self._back)
        return app

    async def _create(self, request: web.Request) -> web.Response:
        if not await request.read():
            # Sections 1 and 4.1: before 0.59 a session begins with its first message.
            return web.json_response({"error": "Invalid JSON body."}, status=400)
        name = "wrun_01M7ZWBZBGV3XM1QSGT5X1CR31"
        body = {"ok": True, "sessionId": name}
        body |= {"continuationToken": "eve:t"} if self.tokens else {"status": "accepted"}
        return web.json_response(body, status=202, headers={"x-eve-session-id": name})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        headers = {
            "content-type": "application/x-ndjson; charset=utf-8",
            "x-eve-stream-version": "21" if self.tokens else "26",
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(b"\n")
        for index, record in enumerate(self._records):
            if index == self._held:
                await self._free.wait()
            if index >= int(request.query.get("startIndex", 0)):
                await response.write(json.dumps(record).encode() + b"\n")
        await asyncio.Event().wait()
        return response

    async def _back(self, request: web.Request) -> web.Response:
        self.returned.append(request)
        self.bodies.append(await request.read())
        if request.path.startswith("/eve/v1/callback/"):
            return web.json_response({"ok": True}, status=202)
        if request.rel_url.raw_path != self.path:
            return web.Response(status=404, text="Nothing is pending.")
        self._free.set()
        page = "<p>You may close this window.</p>"
        return web.Response(text=page, content_type="text/html", headers={"set-cookie": "a=b"})


class House:
    """A Dragoman over one backend, below a base path and at the root of a listener."""

    def __init__(self, backend: web.Application, dialect: str = "eve") -> None:
        self._backend, self._dialect = backend, dialect
        self._stack = contextlib.AsyncExitStack()
        self.bases: dict[str, str] = {}
        self.http: aiohttp.ClientSession

    async def __aenter__(self) -> House:
        enter = self._stack.enter_async_context
        self.http = await enter(aiohttp.ClientSession())
        backend = backend_settings("b", self._dialect, await enter(served(self._backend)))
        settings = Settings.model_validate(
            {
                "journal": {"url": "memory:"},
                "backends": (backend,),
                "listeners": [{"listen": f"{HOST}:0", "dialect": "eve", "route": "b"}],
            }
        )
        sessions = await enter(opened_sessions(settings))
        main = await enter(served(create_app(sessions)))
        root = await enter(served(create_listener(sessions, settings.listeners[0])))
        self.engine = f"{main}/as/engine/to/b"
        self.bases = {"base": f"{main}/as/eve/to/b", "root": root}
        self._stack.push_async_callback(sessions.aclose)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def client(self, place: str) -> EveClient:
        """A strict eve client at one of the two addresses."""
        return EveClient(self.http, self.bases[place], form="all")


async def until(stream: AsyncIterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Read to the next record of a type and return its data."""
    async with asyncio.timeout(SOON_S):
        async for record in stream:
            if record["type"] == kind:
                data: dict[str, Any] = record["data"]
                return data
    raise AssertionError(f"no {kind}")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("release", ["0.30.8", "0.80.1"])
async def test_a_sign_in_is_completed_by_the_address_in_its_record(
    place: str, method: str, release: str
) -> None:
    eve = SigningEve(release)
    async with House(eve.app()) as house:
        client = house.client(place)
        session = await client.create("read the ledger")
        async with aclosing(session.stream(0)) as records:
            hook = (await until(records, "authorization.required"))["webhookUrl"]
            assert eve.path.rpartition("/")[2] not in hook
            address = URL(client.host + hook, encoded=True).with_query(code="c1", state="s1")
            form = {"code": "c2"} if method == "POST" else None
            headers = {"Authorization": "Bearer of-somebody", "Cookie": "c=d"}
            async with house.http.request(method, address, data=form, headers=headers) as answer:
                assert (answer.status, answer.content_type) == (200, "text/html")
                assert "close this window" in await answer.text()
                assert "set-cookie" not in answer.headers
                # What the page runs is of no origin, least of all of ours.
                assert answer.headers["content-security-policy"] == "sandbox allow-scripts"
                assert answer.headers["x-content-type-options"] == "nosniff"
            assert (await until(records, "authorization.completed"))["outcome"] == "authorized"
            assert (await until(records, "message.completed"))["message"]
        (back,) = eve.returned
        assert dict(back.query) == {"code": "c1", "state": "s1"}
        assert (back.method, eve.bodies[0]) == (method, b"code=c2" if method == "POST" else b"")
        assert not {"authorization", "cookie"} & {name.lower() for name in back.headers}
        # Its token is worth nothing once the sign-in is over.
        async with house.http.get(address) as again:
            assert again.status == 404


@pytest.mark.parametrize("place", PLACES)
async def test_callbacks_with_tokens_of_the_backend_are_the_backends_to_judge(place: str) -> None:
    eve = SigningEve("0.80.1")
    async with House(eve.app()) as house:
        base = house.bases[place]
        told = {"kind": "turn.completed", "callId": "c"}
        address = URL(f"{base}/eve/v1/callback/tok%3A1", encoded=True)
        async with house.http.post(address, json=told) as answer:
            assert (answer.status, await answer.json()) == (202, {"ok": True})
        assert json.loads(eve.bodies[0]) == told
        assert eve.returned[0].rel_url.raw_path == "/eve/v1/callback/tok%3A1"
        nothing = f"{base}/eve/v1/connections/ledger/callback/attempt/dgs_none.{'0' * 32}"
        async with house.http.get(nothing) as answer:
            assert answer.status == 404
        own = URL(base + eve.path, encoded=True)
        async with house.http.get(own) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("status", ["000", "101", "600", "999"])
async def test_a_status_that_is_none_is_not_passed_on(status: str) -> None:
    # To a proxy before us a 101 would say that all that follows is the client's own affair.
    head = f"HTTP/1.1 {status} X\r\nUpgrade: x\r\nConnection: upgrade\r\nContent-Length: 0\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode())
        await writer.drain()

    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        port = await enter(listening(talk))
        backend = backend_settings("b", "eve", f"http://{HOST}:{port}")
        tables = {"journal": {"url": "memory:"}, "backends": (backend,)}
        settings = Settings.model_validate(tables)
        sessions = await enter(opened_sessions(settings))
        main = await enter(served(create_app(sessions)))
        stack.push_async_callback(sessions.aclose)
        http = await enter(aiohttp.ClientSession())
        async with http.post(f"{main}/as/eve/to/b/eve/v1/callback/t", json={}) as answer:
            told = await answer.json()
        assert (answer.status, told["ok"]) == (502, False)


@pytest.mark.parametrize("answers", [False, True])
async def test_a_stranger_does_not_hear_where_a_backend_is_nor_what_it_said(answers: bool) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"a word of the house\r\n\r\n")
        await writer.drain()

    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        port = await enter(listening(talk)) if answers else free_port()
        backend = backend_settings("b", "eve", f"http://{HOST}:{port}")
        tables = {"journal": {"url": "memory:"}, "backends": (backend,), "keys": (key_of("a"),)}
        settings = Settings.model_validate(tables)
        sessions = await enter(opened_sessions(settings))
        main = await enter(served(create_app(sessions)))
        stack.push_async_callback(sessions.aclose)
        http = await enter(aiohttp.ClientSession())
        async with http.post(f"{main}/as/eve/to/b/eve/v1/callback/t", json={}) as answer:
            told = await answer.json()
        assert (answer.status, told["ok"]) == (503, False)
        assert told["error"] == "The backend gives no answer now; try again."


async def test_strangers_hold_a_limited_number_of_connections_to_a_backend() -> None:
    waiting = asyncio.Semaphore(0)
    go_on = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        waiting.release()
        await go_on.wait()
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        port = await enter(listening(talk))
        backends = tuple(backend_settings(n, "eve", f"http://{HOST}:{port}") for n in "bc")
        tables = {"journal": {"url": "memory:"}, "backends": backends, "keys": (key_of("a"),)}
        settings = Settings.model_validate(tables)
        sessions = await enter(opened_sessions(settings))
        main = await enter(served(create_app(sessions)))
        stack.push_async_callback(sessions.aclose)
        http = await enter(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))

        async def call_back(backend: str) -> tuple[int, str | None]:
            url = f"{main}/as/eve/to/{backend}/eve/v1/callback/t"
            async with http.post(url, json={}) as answer:
                return answer.status, answer.headers.get("Retry-After")

        async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
            held = [group.create_task(call_back("b")) for _ in range(MOST_STRANGERS)]
            for _ in held:
                await waiting.acquire()
            assert await call_back("b") == (503, str(RETRY_SECONDS))
            # Those of another backend are others'.
            other = group.create_task(call_back("c"))
            await waiting.acquire()
            go_on.set()
        assert {task.result()[0] for task in [*held, other]} == {202}
        assert (await call_back("b"))[0] == 202


async def test_who_does_not_read_an_answer_holds_a_place_and_it_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy.sessions.backends, "MOST_STRANGERS", 1)
    # More than the two ends' buffers take.
    monkeypatch.setattr(proxy.sessions.backends, "STRANGERS_BYTES", 32 * 2**20)
    size = 32 * 2**20

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        await writer.drain()

    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        port = await enter(listening(talk))
        backends = (backend_settings("b", "eve", f"http://{HOST}:{port}"),)
        tables = {"journal": {"url": "memory:"}, "backends": backends, "keys": (key_of("a"),)}
        settings = Settings.model_validate(tables)
        sessions = await enter(opened_sessions(settings))
        main = await enter(served(create_app(sessions)))
        stack.push_async_callback(sessions.aclose)
        http = await enter(aiohttp.ClientSession())
        url = f"{main}/as/eve/to/b/eve/v1/callback/t"
        async with http.post(url, json={}) as unread:
            # Its head is here, and the rest is not read.
            assert unread.status == 200
            async with http.post(url, json={}) as other:
                assert (other.status, other.headers["Retry-After"]) == (503, str(RETRY_SECONDS))
            assert len(await unread.read()) == size
        async with http.post(url, json={}) as answer:
            assert (answer.status, len(await answer.read())) == (200, size)
        size += 1
        async with http.post(url, json={}) as answer:
            assert (answer.status, "no answer now" in await answer.text()) == (503, True)


async def snapshot(http: aiohttp.ClientSession, session: str, **query: int) -> list[dict[str, Any]]:
    """Read the records of a session up to now (section 7.1)."""
    async with http.get(f"{session}/stream", params={"follow": "0", **query}) as answer:
        assert answer.status == 200
        return [json.loads(line) for line in (await answer.text()).split("\n") if line]


def engine() -> web.Application:
    """A scripted Engine."""
    return BACKENDS["engine"](ScriptedOptions(key=BACKEND_KEY, pace=0.0))


async def test_a_backend_of_another_dialect_takes_no_callbacks() -> None:
    async with House(engine(), "engine") as house:
        for path in ("callback/t", "task-input/t", "connections/n/callback/t"):
            async with house.http.post(f"{house.bases['base']}/eve/v1/{path}", json={}) as answer:
                assert answer.status == 404
                told = await answer.json()
                assert told["ok"] is False
                assert "only eve backends take callbacks" in told["error"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("generation", ["T", "S2"])
async def test_a_childs_stream_is_followed_at_both_of_its_addresses(
    place: str, generation: Generation
) -> None:
    app = create_eve_app(variant=EveVariant(generation), pace=0.0, key=BACKEND_KEY)
    async with House(app) as house:
        client = house.client(place)
        session = await client.create("script: child")
        (called,) = (await session.read_turn()).data("subagent.called")
        child, call = called["childSessionId"], called["callId"]
        relayed = f"/eve/v1/session/{session.session_id}/subagents/{call}/{child}/stream"
        for path in (None, relayed):
            async with aclosing(client.child(child, path).stream(0)) as records:
                told = await until(records, "message.completed")
                assert told["message"] == "The north tower is 84 m tall."


@pytest.mark.parametrize("place", PLACES)
async def test_a_create_with_the_header_joins_what_another_frontend_began(place: str) -> None:
    async with House(engine(), "engine") as house:
        engine_client = EngineClient(house.http, house.engine)
        assert (await engine_client.turn("script: text", "task")).outcome == "completed"
        async with aclosing(engine_client.execute("script: approve", "task")) as live:
            async for seen in live:
                if seen.event == "hitl_request":
                    break
        url = f"{house.bases[place]}/eve/v1/session"
        headers = {"X-Dragoman-Session": "task"}
        async with house.http.post(url, json={"message": "watch"}, headers=headers) as answer:
            assert answer.status == 202
            joined = await answer.json()
        address = f"{url}/{joined['sessionId']}"
        first = await snapshot(house.http, address)
        # From the start of the last turn on, and the message that joined was not said.
        assert first[0]["type"] == "turn.started"
        said = [r["data"]["message"] for r in first if r["type"] == "message.received"]
        assert said == ["script: approve"]
        (asked,) = (r["data"]["requests"][0] for r in first if r["type"] == "input.requested")
        given = {"requestId": asked["requestId"], "optionId": "approve"}
        body = {"inputResponses": [given], "continuationToken": joined["continuationToken"]}
        async with house.http.post(address, json=body) as answer:
            assert (answer.status, (await answer.json())["sessionId"]) == (202, joined["sessionId"])
        live_at = f"{address}/stream?startIndex={len(first)}"
        rest: list[dict[str, Any]] = []
        async with asyncio.timeout(SOON_S), house.http.get(live_at) as stream:
            async for line in stream.content:
                rest += [json.loads(line)] if line.strip() else []
                if rest and rest[-1]["type"] == "session.waiting":
                    break
        assert any("Done, 4.1 GB freed." in str(r["data"].get("message")) for r in rest)
        assert await snapshot(house.http, address) == first + rest
        assert await snapshot(house.http, address, startIndex=-2) == rest[-2:]
        # An id that no create was given counts from a record that is not there.
        _, number, name = joined["sessionId"].split("_", 2)
        async with house.http.get(f"{url}/dgv_{int(number) + 900}_{name}/stream") as answer:
            assert (answer.status, (await answer.json())["ok"]) == (404, False)
        headers = {"X-Dragoman-Session": "nobody"}
        async with house.http.post(url, json={"message": "watch"}, headers=headers) as answer:
            assert (answer.status, (await answer.json())["ok"]) == (404, False)


async def test_a_sign_in_is_completed_at_the_backend_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eve, other = SigningEve("0.80.1"), SigningEve("0.80.1")
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        http = await enter(aiohttp.ClientSession())
        urls = [await enter(served(one.app())) for one in (other, eve)]
        tables = {
            "journal": {"url": "memory:"},
            "backends": [
                backend_settings(name, "eve", url)
                for name, url in zip(("other", "own"), urls, strict=True)
            ],
            "routes": [{"name": "both", "backends": [{"name": "other"}, {"name": "own"}]}],
        }
        settings = Settings.model_validate(tables)
        sessions = await enter(opened_sessions(settings))
        main = await enter(served(create_app(sessions)))
        stack.push_async_callback(sessions.aclose)
        drawn = [0.9]
        monkeypatch.setattr(sessions.ids, "fraction", lambda: drawn[0])
        client = EveClient(http, f"{main}/as/eve/to/both", form="all")
        session = await client.create("read the ledger")
        async with aclosing(session.stream(0)) as records:
            hook = (await until(records, "authorization.required"))["webhookUrl"]
            # Whichever backend the next session would go to.
            drawn[0] = 0.0
            async with http.get(URL(client.host + hook, encoded=True)) as answer:
                assert answer.status == 200
            assert (await until(records, "authorization.completed"))["outcome"] == "authorized"
        assert [back.rel_url.raw_path for back in eve.returned] == [eve.path]
        assert other.returned == []
