"""What a request's head and body may cost: codings, sizes, the budget of all bodies, deadlines."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import gzip
import io
import json
import random
import socket
import threading
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from adapters import bulk
from adapters.errors import DragomanError, ErrorCode
from adapters.eve import requests
from adapters.registry import faces
from proxy import bodies
from proxy.routes.entry import TAKES
from proxy.settings import ListenerSettings
from tests.support.proxied import Proxied, Served, proxied
from tests.support.waiting import SOON_S, until
from tests.support.watched import watched

MIB = 2**20
BUDGET = MIB // 2
"""What all bodies may take in tests of that: a text that fills it is taken."""

POSTS = {
    "eve": ("/as/eve/to/engine/eve/v1/session", {"message": "hello"}),
    "engine": ("/as/engine/to/engine/execute", {"message": "hello", "task_id": "t-1"}),
    "herm": ("/as/herm/to/engine/v1/agents/engine/sessions", {"title": "hello"}),
    "control": ("/api/v1/prune", {"older_than_seconds": 3600, "dry_run": True}),
}
"""A route of each face that reads a body, and one that it takes."""

LARGE = "/as/eve/to/engine/eve/v1/session"
"""A route that takes files."""


class Raw:
    """A connection whose bytes are written by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def begin(self, path: str, length: int | None, *headers: str, body: bytes = b"") -> None:
        """Send a head, and what is given of the body; without a length it comes in chunks."""
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        lines = (f"POST {path} HTTP/1.1", "Host: localhost", framing, *headers)
        self.send("\r\n".join((*lines, "", "")).encode("utf-8", "surrogateescape") + body)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and body of an answer that has a length."""
        async with asyncio.timeout(SOON_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(head[0].split()[1]), headers, json.loads(body) if body else None

    async def closed(self) -> bytes:
        """Return what comes until the server closes the connection; a client that still sends may
        lose it."""
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(SOON_S):
                return await self.reader.read()
        return b""

    def stop_reading(self) -> None:
        transport = self._writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()

    @property
    def is_closed(self) -> bool:
        """Say whether the connection was closed, also to who does not read."""
        return self._writer.transport.is_closing()

    async def aclose(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def connected(dragoman: Proxied) -> AsyncIterator[Raw]:
    """Give a connection to the proxy."""
    at = urlsplit(dragoman.url)
    raw = Raw(*await asyncio.open_connection(at.hostname, at.port))
    try:
        yield raw
    finally:
        await raw.aclose()


def said(face: str, status: int, body: Any) -> str:
    """Return what a refusal says, after a look at whether it has its face's form."""
    match face:
        case "eve":
            assert body["ok"] is False
            assert isinstance(body["error"], str)
            return str(body["error"])
        case "engine":
            codes = {400: "BAD_REQUEST", 408: "REQUEST_TIMEOUT", 413: "TOO_LARGE"}
            codes |= {415: "UNSUPPORTED_MEDIA", 503: "OVERLOADED"}
            assert body["error"] == codes[status]
            return str(body["message"])
        case "herm":
            codes = {408: "request_timeout", 503: "unavailable"}
            assert body["error"]["code"] == codes.get(status, "validation_error")
        case _:
            codes = {400: "invalid_request", 408: "request_timeout", 413: "too_large"}
            codes |= {415: "unsupported_media", 503: "overloaded"}
            assert body["error"]["code"] == codes[status]
    return str(body["error"]["message"])


# Content codings.


@pytest.mark.parametrize("face", POSTS)
@pytest.mark.parametrize(
    "coding",
    ["gzip", "GZip", "x-gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip", "nonsense"],
)
async def test_a_content_coding_is_refused_before_anything_is_inflated(
    face: str, coding: str
) -> None:
    path, _ = POSTS[face]
    bomb = gzip.compress(b" " * 72 * MIB)
    async with proxied() as dragoman, connected(dragoman) as raw:
        with patch.object(zlib, "decompressobj", side_effect=AssertionError("inflated")):
            raw.begin(path, len(bomb), f"Content-Encoding: {coding}", body=bomb)
            status, _, body = await raw.answer()
    assert status == 415
    assert f"`Content-Encoding: {coding}` is not taken" in said(face, status, body)


@pytest.mark.parametrize("face", POSTS)
async def test_a_coding_that_is_no_text_is_refused(face: str) -> None:
    path, _ = POSTS[face]
    async with proxied() as dragoman, connected(dragoman) as raw:
        raw.begin(path, 0, "Content-Encoding: gz\udcff")
        status, _, body = await raw.answer()
    assert status == 415
    assert "`Content-Encoding: gz\\udcff` is not taken" in said(face, status, body)


@pytest.mark.parametrize("face", POSTS)
async def test_two_headers_of_a_coding_are_one_chain(face: str) -> None:
    path, _ = POSTS[face]
    server = {"content_encodings": ["gzip"]}
    async with proxied(server=server) as dragoman, connected(dragoman) as raw:
        raw.begin(path, 0, "Content-Encoding: gzip", "Content-Encoding: gzip")
        status, _, body = await raw.answer()
    assert status == 415
    assert "only gzip, and one at a time, is" in said(face, status, body)


@pytest.mark.parametrize("face", POSTS)
@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
async def test_identity_is_no_coding(face: str, coding: str) -> None:
    path, value = POSTS[face]
    async with proxied() as dragoman:
        headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
        data = json.dumps(value).encode()
        async with dragoman.http.post(dragoman.url + path, data=data, headers=headers) as response:
            assert response.status < 300


@pytest.mark.parametrize("face", POSTS)
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_coding_that_is_asked_for_is_undone(face: str, coding: str) -> None:
    path, value = POSTS[face]
    data = json.dumps(value).encode()
    packed = gzip.compress(data) if coding == "gzip" else zlib.compress(data)
    async with proxied(server={"content_encodings": ["gzip", "deflate"]}) as dragoman:
        headers = {"Content-Encoding": coding.upper(), "Content-Type": "application/json"}
        url = dragoman.url + path
        async with dragoman.http.post(url, data=packed, headers=headers) as response:
            assert response.status < 300
        await until(lambda: dragoman.sessions.bodies.budget.taken == 0)


@pytest.mark.parametrize("level", [0, 9])
async def test_a_long_packed_body_is_given_to_the_inflater_in_slices(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It copies what it does not take: all of 60 MiB at once, for each piece, took 6 s.
    given: list[int] = []
    work = bodies.Bodies.work

    async def noted(own: bodies.Bodies, size: int, do: Any, *arguments: Any) -> Any:
        if len(arguments) == 2 and isinstance(arguments[0], bytes):
            given.append(len(arguments[0]))
        return await work(own, size, do, *arguments)

    monkeypatch.setattr(bodies.Bodies, "work", noted)
    path, value = POSTS["eve"]
    assert isinstance(value, dict)
    noise = random.Random(1).randbytes(450_000).hex()
    data = json.dumps({**value, "clientContext": noise}).encode()
    packed = gzip.compress(data, level)
    async with proxied(server={"content_encodings": ["gzip"]}) as dragoman:
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        url = dragoman.url + path
        async with dragoman.http.post(url, data=io.BytesIO(packed), headers=headers) as response:
            assert response.status < 300, await response.text()
    assert max(given) <= 64 * 1024
    assert sum(given) < 2 * len(packed) + 64 * 1024


@pytest.mark.parametrize("face", POSTS)
@pytest.mark.parametrize("harm", ["cut", "noise", "damaged", "more", "nothing"])
async def test_a_body_that_is_not_what_its_coding_says_is_refused(face: str, harm: str) -> None:
    path, value = POSTS[face]
    packed = gzip.compress(json.dumps(value).encode())
    match harm:
        case "cut":
            packed = packed[:-6]
        case "noise":
            packed = b"no gzip at all"
        case "damaged":
            packed = packed[:12] + b"\xff\xff\xff" + packed[15:]
        case "more":
            packed += packed
        case _:
            packed = b""
    async with proxied(server={"content_encodings": ["gzip"]}) as dragoman:
        async with connected(dragoman) as raw:
            raw.begin(path, len(packed), "Content-Encoding: gzip", body=packed)
            status, _, body = await raw.answer()
        assert status == 400
        assert "`Content-Encoding`" in said(face, status, body)
        assert dragoman.sessions.bodies.budget.taken == 0


async def test_what_comes_of_a_coding_has_a_limit_and_a_ratio() -> None:
    server = {"content_encodings": ["gzip"], "max_body_bytes": 4 * MIB}
    value = {"message": "hello", "clientContext": "x" * 6 * MIB}
    ratio = gzip.compress(json.dumps(value).encode())
    value["clientContext"] = "".join(f"{n * n}," for n in range(900_000))
    size = gzip.compress(json.dumps(value).encode())
    assert len(ratio) < 20_000
    async with proxied(server=server) as dragoman:
        for packed, limit in ((ratio, bodies.RATIO * len(ratio) + bodies.SMALL), (size, 4 * MIB)):
            async with connected(dragoman) as raw:
                raw.begin(LARGE, len(packed), "Content-Encoding: gzip", body=packed)
                status, _, body = await raw.answer()
            assert status == 413
            assert said("eve", status, body) == f"The body is larger than {limit} bytes."
        assert dragoman.sessions.bodies.budget.taken == 0


# Sizes.


def undeclared(routes: list[web.AbstractRoute]) -> list[str]:
    """Return the routes that may have a body and do not say how large it is."""
    return [
        f"{route.method} {route.resource and route.resource.canonical}"
        for route in routes
        if route.method not in ("GET", "HEAD", "DELETE", "*")
        and not hasattr(route.handler, TAKES)
        # These read no body: what they do stands in their path.
        and not (route.resource and route.resource.canonical.endswith("/archive"))
        and route.handler.__qualname__ != "_not_served.<locals>.refuse"
    ]


@pytest.mark.parametrize("dialect", [None, *sorted(faces())])
async def test_every_route_that_reads_a_body_declares_how_large_it_may_be(
    dialect: str | None,
) -> None:
    listeners = [] if dialect is None else [listener(dialect)]
    async with proxied(listeners=tuple(listeners)) as dragoman:
        (served,) = dragoman.listeners or [Served(dragoman.url, dragoman.routes)]
        assert undeclared(list(served.routes)) == []
        declared = {getattr(route.handler, TAKES, None) for route in served.routes}
        assert declared <= {bodies.SMALL, bodies.ANSWER, bodies.TEXT, bodies.FILES}


def listener(dialect: str) -> ListenerSettings:
    """Return a listener of a dialect at any port."""
    table = {"listen": "127.0.0.1:0", "dialect": dialect, "route": "engine"}
    return ListenerSettings.model_validate(table)


async def test_a_route_that_declares_nothing_is_found() -> None:
    async def forgets(_: web.Request) -> web.StreamResponse:
        return web.Response()

    app = web.Application()
    app.router.add_post("/new", forgets)
    assert undeclared(list(app.router.routes())) == ["POST /new"]


@pytest.mark.parametrize("face", POSTS)
async def test_a_length_over_the_limit_is_refused_before_the_body_comes(face: str) -> None:
    path, _ = POSTS[face]
    limit = 2 * MIB if face in ("eve", "engine") else bodies.SMALL
    async with proxied(server={"max_body_bytes": 2 * MIB}) as dragoman, connected(dragoman) as raw:
        # Nothing of the body is ever sent.
        raw.begin(path, limit + 1)
        status, _, body = await raw.answer()
    assert status == 413
    assert said(face, status, body) == f"The body is larger than {limit} bytes."


@pytest.mark.parametrize("face", POSTS)
async def test_a_body_in_chunks_is_refused_where_it_passes_the_limit(face: str) -> None:
    path, _ = POSTS[face]
    async with proxied(server={"max_body_bytes": 1024}) as dragoman:
        async with connected(dragoman) as raw:
            raw.begin(path, None, body=b"401\r\n" + b"x" * 1025)
            status, _, body = await raw.answer()
        assert status == 413
        assert said(face, status, body) == "The body is larger than 1024 bytes."
        assert dragoman.sessions.bodies.budget.taken == 0


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_route_that_reads_no_body_lets_nobody_send_a_large_one(method: str) -> None:
    async with proxied() as dragoman:
        session_id = await dragoman.say("hello")
        path = f"/api/v1/sessions/{session_id}"
        async with connected(dragoman) as raw:
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70000\r\n\r\n"
            raw.send(head.encode())
            status, _, _ = await raw.answer()
        assert status == 413


# What is in a body.


@pytest.mark.parametrize("face", POSTS)
async def test_a_body_of_too_many_values_is_refused(face: str) -> None:
    path, _ = POSTS[face]
    if face == "control":
        # What takes more than a title there, is an answer.
        async with proxied() as dragoman:
            session_id = await dragoman.say("script: approve")
            asked = await dragoman.asked(session_id)
            path = f"/api/v1/sessions/{session_id}/interactions/{asked.request_id}"
            status, body = await dragoman.request("POST", path, json=[0] * 30_000)
    else:
        async with proxied() as dragoman:
            numbers: dict[str, Any] = {"more": [0] * 30_000}
            data = json.dumps(numbers, separators=(",", ":"))
            status, body = await dragoman.request("POST", path, data=data)
    assert status == 413
    assert said(face, status, body) == f"The body has more than {bulk.VALUES} values."


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (POSTS["eve"][0], {"message": [{"type": "text", "text": "a"}] * 257}, "256 parts"),
        (
            POSTS["eve"][0] + "/dgs_0",
            {"inputResponses": [{"requestId": "a", "text": "b"}] * 257},
            "256 entries",
        ),
        (
            POSTS["engine"][0],
            {"message": "a", "task_id": "t", "media": [{"type": "text", "text": "a"}] * 257},
            "256 blocks",
        ),
    ],
    ids=["parts", "answers", "blocks"],
)
async def test_a_message_of_too_many_parts_is_refused(path: str, value: Any, what: str) -> None:
    async with proxied() as dragoman:
        status, body = await dragoman.request("POST", path, json=value)
    assert status == 400
    assert what in json.dumps(body)


async def test_a_batch_of_too_many_events_is_refused() -> None:
    async with proxied() as dragoman:
        session_id = await dragoman.say("hello")
        path = f"/as/herm/to/engine/v1/sessions/{session_id}/events"
        events = [{"type": "user.interrupt"}] * 101
        status, body = await dragoman.request("POST", path, json={"events": events})
    assert (status, said("herm", status, body)) == (400, "The batch has more than 100 events.")


async def test_files_may_be_large_and_words_may_not() -> None:
    text = base64.b64encode(b"x" * 3 * MIB).decode()
    file = {"type": "file", "mediaType": "image/png", "data": text}
    async with proxied() as dragoman:
        files = io.BytesIO(json.dumps({"message": [file, file]}).encode())
        status, _ = await dragoman.request("POST", LARGE, data=files)
        assert status == 202
        for words in ({"message": text}, {"message": "a", "clientContext": {"a": text}}):
            data = io.BytesIO(json.dumps(words).encode())
            status, body = await dragoman.request("POST", LARGE, data=data)
            assert status == 413
            assert "Without its files" in said("eve", status, body)


async def test_a_large_body_is_worked_on_in_a_thread_of_its_own() -> None:
    threads: list[str] = []
    parse = requests.parse_create

    def noted(*given: Any, **options: Any) -> requests.Create:
        threads.append(threading.current_thread().name)
        return parse(*given, **options)

    async with proxied() as dragoman:
        with patch.object(requests, "parse_create", noted):
            for size in (bodies.AT_ONCE, bodies.AT_ONCE + 1):
                status, _ = await dragoman.request("POST", LARGE, data=message(size))
                assert status == 202
    assert threads == [threading.main_thread().name, "bodies_0"]


async def test_a_large_body_is_told_to_come_again_when_the_server_stops() -> None:
    async with proxied() as dragoman:
        await dragoman.sessions.aclose()
        with pytest.raises(DragomanError) as refused:
            await dragoman.sessions.bodies.work(bodies.AT_ONCE + 1, len, b"")
    assert refused.value.code is ErrorCode.STOPPING


HOSTILE = {
    "lists": b'{"message":"a","clientContext":{"a":[' + b"[]," * 10 * MIB + b"[]]}}",
    "names": b'{"message":"a",' + b'"a":1,' * 5 * MIB + b'"b":1}',
    "blanks": b'{"message":"a"' + b" " * 32 * MIB + b"}",
    "digits": b'{"message":"a","clientContext":{"a":' + b"9" * 32 * MIB + b"}}",
    "escapes": b'{"message":"' + b"\\n" * 16 * MIB + b'"}',
    "words": b'{"message":"' + b"a" * 32 * MIB + b'"}',
    "no end": b'{"message":"' + b"a" * 32 * MIB,
    "no JSON": b"\x00" * 32 * MIB,
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_body_of_32_mib_is_refused(tmp_path: Path, kind: str) -> None:
    body = HOSTILE[kind]
    table = '[[backends]]\nname = "engine"\ndialect = "engine"\nurl = "http://127.0.0.1:9"\n'
    # In a process of its own: where tests have left much that is free on the heap, a body stands
    # there until it has no room to grow.
    async with watched(tmp_path, table) as dragoman:
        at = urlsplit(dragoman.url)
        head = f"POST {LARGE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"

        def post() -> bytes:
            with socket.create_connection((at.hostname, at.port or 0), SOON_S) as connection:
                connection.sendall(head.encode())
                connection.sendall(body)
                return connection.recv(4096)

        for _ in range(2):
            answer = await asyncio.to_thread(post)
            assert answer.startswith(b"HTTP/1.1 4")


# The budget of all bodies.


def message(size: int) -> bytes:
    """Return an eve message of that many bytes."""
    empty = len(json.dumps({"message": ""}))
    return json.dumps({"message": "x" * (size - empty)}).encode()


@contextlib.asynccontextmanager
async def filled(dragoman: Proxied) -> AsyncIterator[Raw]:
    """Give a connection whose half-sent body takes the whole budget of 1 MiB."""
    async with connected(dragoman) as raw:
        size = BUDGET + bodies.SMALL
        raw.begin(LARGE, size, body=message(size)[:-1])
        await until(lambda: dragoman.sessions.bodies.budget.taken == BUDGET - 1)
        yield raw


async def test_what_a_body_takes_of_the_budget_is_given_back_when_it_is_answered() -> None:
    async with proxied(server={"max_bodies_bytes": BUDGET}) as dragoman:
        async with filled(dragoman) as raw:
            raw.send(b"}")
            status, _, _ = await raw.answer()
            assert status == 202
        assert dragoman.sessions.bodies.budget.taken == 0


@pytest.mark.parametrize("face", ["eve", "engine"])
async def test_a_body_beyond_the_budget_is_told_to_come_again(face: str) -> None:
    path, _ = POSTS[face]
    async with proxied(server={"max_bodies_bytes": BUDGET}) as dragoman, filled(dragoman) as first:
        async with connected(dragoman) as raw:
            raw.begin(path, 2 * bodies.SMALL, body=b"x" * 2 * bodies.SMALL)
            status, headers, body = await raw.answer()
        assert status == 503
        assert headers["retry-after"] == str(bodies.RETRY_SECONDS)
        assert "try again" in said(face, status, body)
        # The one that was there is not disturbed.
        first.send(b"}")
        assert (await first.answer())[0] == 202


async def test_a_herm_event_beyond_the_budget_is_told_to_come_again() -> None:
    async with proxied(server={"max_bodies_bytes": BUDGET}) as dragoman, filled(dragoman):
        session_id = await dragoman.say("hello")
        async with connected(dragoman) as raw:
            path = f"/as/herm/to/engine/v1/sessions/{session_id}/events"
            raw.begin(path, 2 * bodies.SMALL, body=b"x" * 2 * bodies.SMALL)
            status, headers, body = await raw.answer()
        assert (status, headers["retry-after"]) == (503, str(bodies.RETRY_SECONDS))
        assert "try again" in said("herm", status, body)


async def test_an_answer_by_the_control_api_beyond_the_budget_is_told_to_come_again() -> None:
    async with proxied(server={"max_bodies_bytes": BUDGET}) as dragoman, filled(dragoman):
        session_id = await dragoman.say("script: approve")
        request = await dragoman.asked(session_id)
        async with connected(dragoman) as raw:
            path = f"/api/v1/sessions/{session_id}/interactions/{request.request_id}"
            raw.begin(path, 2 * bodies.SMALL, body=b"x" * 2 * bodies.SMALL)
            status, headers, body = await raw.answer()
        assert (status, headers["retry-after"]) == (503, str(bodies.RETRY_SECONDS))
        assert "try again" in said("control", status, body)


async def test_small_bodies_are_taken_while_the_budget_is_used_up() -> None:
    async with proxied(server={"max_bodies_bytes": BUDGET}) as dragoman, filled(dragoman):
        for path, value in POSTS.values():
            async with dragoman.http.post(dragoman.url + path, json=value) as response:
                assert response.status < 300


async def test_a_body_larger_than_the_budget_is_never_told_to_come_again() -> None:
    async with proxied(server={"max_bodies_bytes": BUDGET}) as dragoman:
        size = BUDGET + bodies.SMALL + 1
        async with connected(dragoman) as raw:
            raw.begin(LARGE, size)
            status, _, body = await raw.answer()
        assert (status, said("eve", 413, body)) == (
            413,
            f"The body is larger than {size - 1} bytes.",
        )
        assert dragoman.sessions.bodies.budget.taken == 0


async def test_a_client_that_leaves_in_its_body_gives_the_budget_back() -> None:
    async with proxied(server={"max_bodies_bytes": BUDGET}) as dragoman:
        async with filled(dragoman):
            pass
        await until(lambda: dragoman.sessions.bodies.budget.taken == 0)


@pytest.mark.parametrize(
    ("tail", "status"), [(b"]", 400), (b"", 408)], ids=["a refusal", "a deadline"]
)
async def test_a_refused_body_gives_the_budget_back(tail: bytes, status: int) -> None:
    server = {"max_bodies_bytes": BUDGET, "body_timeout_seconds": 0.5 if status == 408 else 20}
    with patch.object(bodies, "SLOWEST", 100 * MIB):
        async with proxied(server=server) as dragoman, filled(dragoman) as raw:
            raw.send(tail)
            assert (await raw.answer())[0] == status
            assert dragoman.sessions.bodies.budget.taken == 0


async def test_a_failure_of_ours_gives_the_budget_back() -> None:
    async with proxied(server={"max_bodies_bytes": BUDGET}) as dragoman, filled(dragoman) as raw:
        with patch.object(dragoman.sessions, "create_with", side_effect=RuntimeError("broken")):
            raw.send(b"}")
            assert (await raw.answer())[0] == 500
        assert dragoman.sessions.bodies.budget.taken == 0


async def test_work_that_goes_on_without_its_client_holds_its_part_of_the_budget() -> None:
    goes_on = asyncio.Event()
    async with proxied(server={"max_bodies_bytes": BUDGET}) as dragoman:
        create = dragoman.sessions.create_with
        begun = asyncio.Event()

        async def slowly(*given: Any, **options: Any) -> Any:
            begun.set()
            await goes_on.wait()
            return await create(*given, **options)

        with patch.object(dragoman.sessions, "create_with", slowly):
            async with filled(dragoman) as raw:
                raw.send(b"}")
                await begun.wait()
            # Longer than it takes to see that the client is gone.
            async with connected(dragoman) as other:
                other.begin("/api/v1/prune", 2, body=b"{}")
                await other.answer()
            assert dragoman.sessions.bodies.budget.taken == BUDGET
            goes_on.set()
            await until(lambda: dragoman.sessions.bodies.budget.taken == 0)


async def test_a_stream_gives_its_part_of_the_budget_back_when_its_message_is_accepted() -> None:
    async with proxied(server={"max_bodies_bytes": BUDGET}) as dragoman, connected(dragoman) as raw:
        # Blanks are JSON as well.
        data = json.dumps({"message": "script: approve", "task_id": "t"}).encode() + b" " * (
            BUDGET // 2
        )
        raw.begin("/as/engine/to/engine/execute", len(data), body=data)
        await raw.reader.readuntil(b"hitl_request")
        assert dragoman.sessions.bodies.budget.taken == 0


# Deadlines.


@pytest.mark.parametrize("face", POSTS)
async def test_a_half_sent_body_is_given_up(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.connections.LINGERING_SECONDS", 0.1)
    path, _ = POSTS[face]
    async with (
        proxied(server={"body_timeout_seconds": 0.1}) as dragoman,
        connected(dragoman) as raw,
    ):
        raw.begin(path, 100, body=b"{")
        status, _, body = await raw.answer()
        assert status == 408
        assert "too slowly" in said(face, status, body)
        assert await raw.closed() == b""


async def drip(raw: Raw, data: bytes) -> None:
    """Send a byte every 20 ms, until the server is gone."""
    with contextlib.suppress(ConnectionError):
        for byte in data:
            raw.send(bytes([byte]))
            await asyncio.sleep(0.02)


async def test_a_body_that_drips_is_given_up() -> None:
    async with proxied(server={"body_timeout_seconds": 0.2}) as dragoman:
        async with connected(dragoman) as raw:
            raw.begin(LARGE, 1000)
            dripping = asyncio.create_task(drip(raw, b"x" * 1000))
            status, _, _ = await raw.answer()
            dripping.cancel()
        assert status == 408


async def test_a_body_that_comes_at_the_slowest_rate_is_taken() -> None:
    server = {"body_timeout_seconds": 0.2}
    data = message(1000)
    with patch.object(bodies, "SLOWEST", 1):
        async with proxied(server=server) as dragoman, connected(dragoman) as raw:
            raw.begin(LARGE, len(data))
            for start in range(0, len(data), 20):
                raw.send(data[start : start + 20])
                await asyncio.sleep(0.02)
            assert (await raw.answer())[0] == 202


async def test_a_stream_outlives_the_deadlines_of_head_and_body() -> None:
    server = {"body_timeout_seconds": 0.1, "heartbeat_seconds": 0.2}
    async with proxied(server=server) as dragoman, connected(dragoman) as raw:
        data = json.dumps({"message": "script: approve", "task_id": "t"}).encode()
        raw.begin("/as/engine/to/engine/execute", len(data), body=data)
        await raw.reader.readuntil(b"hitl_request")
        await asyncio.sleep(0.3)
        async with asyncio.timeout(SOON_S):
            await raw.reader.readuntil(b"heartbeat")


def has_taken(budget: bodies.Budget, size: int) -> bool:
    """Say whether bodies take just so many bytes."""
    return budget.taken == size


async def test_strangers_keep_no_large_message_out() -> None:
    eve = {"name": "eve", "dialect": "eve", "url": "http://127.0.0.1:9"}
    async with proxied(backends=["engine", eve]) as dragoman, contextlib.AsyncExitStack() as stack:
        taken = dragoman.sessions.bodies
        # Callbacks need no key. Each of these has sent all but a byte.
        path = "/as/eve/to/eve/eve/v1/connections/linear/callback/x"
        while taken.strangers.taken + bodies.ANSWER <= taken.strangers.most:
            before = taken.strangers.taken
            raw = await stack.enter_async_context(connected(dragoman))
            raw.begin(path, bodies.ANSWER, body=bytes(bodies.ANSWER - 1))
            there = before + bodies.ANSWER - 1 - bodies.SMALL
            await until(functools.partial(has_taken, taken.strangers, there))
        assert taken.budget.taken == 0
        for number, status in ((path, 503), (LARGE, 202)):
            raw = await stack.enter_async_context(connected(dragoman))
            raw.begin(number, bodies.ANSWER, body=message(bodies.ANSWER))
            assert (await raw.answer())[0] == status
