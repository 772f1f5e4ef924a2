"""What the body of a request may cost: codings, sizes, all bodies together, one deadline."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import io
import json
import logging
from collections.abc import AsyncIterator
from typing import Any, get_args
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from adapters.contract.faces import Size
from adapters.registry import faces
from proxy.config.settings import ListenerSettings
from proxy.entry.entry import TAKES
from proxy.http import bodies
from tests.support.proxied import Proxied, Served, proxied
from tests.support.waiting import SOON_S, until

MOST_TAKEN = ", the most that is taken here."
MIB = 2**20
MOST = MIB // 2
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
async def test_a_content_coding_is_refused_before_its_body_is_read(face: str, coding: str) -> None:
    path, _ = POSTS[face]
    bomb = gzip.compress(b" " * MIB)
    async with proxied() as dragoman, connected(dragoman) as raw:
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
@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
async def test_identity_is_no_coding(face: str, coding: str) -> None:
    path, value = POSTS[face]
    async with proxied() as dragoman:
        headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
        data = json.dumps(value).encode()
        async with dragoman.http.post(dragoman.url + path, data=data, headers=headers) as response:
            assert response.status < 300


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
        declared = {getattr(route.handler, TAKES, "small") for route in served.routes}
        # A session of an archive is taken line by line.
        assert declared <= {*get_args(Size), 4 * 2**30}


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
    assert said(face, status, body) == f"The body is larger than {limit} bytes{MOST_TAKEN}"


@pytest.mark.parametrize("face", POSTS)
async def test_a_body_in_chunks_is_refused_where_it_passes_the_limit(face: str) -> None:
    path, _ = POSTS[face]
    async with proxied(server={"max_body_bytes": 1024}) as dragoman:
        async with connected(dragoman) as raw:
            raw.begin(path, None, body=b"401\r\n" + b"x" * 1025)
            status, _, body = await raw.answer()
        assert status == 413
        assert said(face, status, body) == f"The body is larger than 1024 bytes{MOST_TAKEN}"
        assert dragoman.sessions.bodies.under_way == 0


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
    async with proxied(server={"max_text_bytes": 8 * MIB}) as dragoman:
        data = io.BytesIO(json.dumps({"message": text}).encode())
        status, _ = await dragoman.request("POST", LARGE, data=data)
        assert status == 202


@pytest.mark.parametrize(
    "body",
    [
        b'{"message":"a","clientContext":{"a":[' + b"[]," * 10 * MIB + b"[]]}}",
        b'{"message":"a",' + b'"a":1,' * 5 * MIB + b'"b":1}',
        b'{"message":"a"' + b" " * 32 * MIB + b"}",
        b'{"message":"' + b"\\n" * 16 * MIB + b'"}',
        b'{"message":"' + b"a" * 32 * MIB,
        b"\x00" * 32 * MIB,
    ],
    ids=["lists", "names", "blanks", "escapes", "no end", "no JSON"],
)
async def test_a_large_body_of_nonsense_is_refused(body: bytes) -> None:
    async with proxied() as dragoman:
        status, _ = await dragoman.request("POST", LARGE, data=io.BytesIO(body))
    assert status in (400, 413)


async def test_a_text_of_many_commas_is_taken() -> None:
    async with proxied() as dragoman:
        status, _ = await dragoman.request("POST", LARGE, json={"message": "1,22,\n" * 140_000})
    assert status == 202


# All bodies together.


def message(size: int) -> bytes:
    """Return an eve message of that many bytes."""
    empty = len(json.dumps({"message": ""}))
    return json.dumps({"message": "x" * (size - empty)}).encode()


@contextlib.asynccontextmanager
async def filled(**server: Any) -> AsyncIterator[tuple[Proxied, Raw]]:
    """Give a proxy, and a connection whose half-sent body takes all that bodies may."""
    server = {"max_bodies_bytes": MOST, **server}
    async with proxied(server=server) as dragoman, connected(dragoman) as raw:
        raw.begin(LARGE, MOST, body=message(MOST)[:-1])
        await until(lambda: dragoman.sessions.bodies.under_way == MOST - 1)
        yield dragoman, raw


@pytest.mark.parametrize("face", ["eve", "engine", "herm", "control"])
async def test_a_body_beyond_what_all_may_take_is_told_to_come_again(face: str) -> None:
    async with filled() as (dragoman, first):
        path = POSTS[face][0]
        if face in ("herm", "control"):
            session_id = await dragoman.say("script: approve")
            asked = await dragoman.asked(session_id)
            path = f"/api/v1/sessions/{session_id}/interactions/{asked.request_id}"
        if face == "herm":
            path = f"/as/herm/to/engine/v1/sessions/{session_id}/events"
        async with connected(dragoman) as raw:
            raw.begin(path, 2 * bodies.SMALL, body=b"x" * 2 * bodies.SMALL)
            status, headers, body = await raw.answer()
        assert (status, headers["retry-after"]) == (503, str(bodies.RETRY_SECONDS))
        assert "try again" in said(face, status, body)
        # Small ones are taken, and the one that was there is not disturbed.
        for path, value in POSTS.values():
            async with dragoman.http.post(dragoman.url + path, json=value) as response:
                assert response.status < 300
        first.send(b"}")
        assert (await first.answer())[0] == 202
        assert dragoman.sessions.bodies.under_way == 0


async def test_a_body_larger_than_all_may_take_is_never_told_to_come_again() -> None:
    async with proxied(server={"max_bodies_bytes": MOST}) as dragoman:
        async with connected(dragoman) as raw:
            raw.begin(LARGE, MOST + 1)
            status, _, body = await raw.answer()
        text = f"The body is larger than {MOST} bytes{MOST_TAKEN}"
        assert (status, said("eve", 413, body)) == (413, text)


async def test_a_client_that_leaves_in_its_body_counts_no_longer() -> None:
    async with filled() as (dragoman, raw):
        await raw.aclose()
        await until(lambda: dragoman.sessions.bodies.under_way == 0)


@pytest.mark.parametrize(
    ("tail", "status"), [(b"]", 400), (b"", 408)], ids=["a refusal", "a deadline"]
)
async def test_a_refused_body_counts_no_longer(tail: bytes, status: int) -> None:
    async with filled(body_timeout_seconds=0.5 if status == 408 else 20) as (dragoman, raw):
        raw.send(tail)
        assert (await raw.answer())[0] == status
        assert dragoman.sessions.bodies.under_way == 0


async def test_what_was_accepted_goes_on_without_its_client() -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()
    async with filled() as (dragoman, raw):
        create = dragoman.sessions.create_with
        done: list[Any] = []

        async def slowly(*given: Any, **options: Any) -> Any:
            begun.set()
            await goes_on.wait()
            made = await create(*given, **options)
            done.append(made)
            return made

        with patch.object(dragoman.sessions, "create_with", slowly):
            raw.send(b"}")
            await begun.wait()
            await raw.aclose()
            # Longer than it takes to see that the client is gone.
            assert (await dragoman.request("GET", "/healthz"))[0] == 200
            goes_on.set()
            await until(lambda: len(done) == 1)


# One deadline.


@pytest.mark.parametrize("face", POSTS)
async def test_a_half_sent_body_is_given_up(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.http.connections.LINGERING_SECONDS", 0.1)
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


async def test_a_body_that_drips_is_given_up() -> None:
    async with proxied(server={"body_timeout_seconds": 0.3}) as dragoman:
        async with connected(dragoman) as raw:
            raw.begin(LARGE, 1000)
            for _ in range(10):
                raw.send(b"x")
                await asyncio.sleep(0.02)
            status, _, _ = await raw.answer()
        assert status == 408


async def test_a_body_whose_framing_breaks_is_given_up_and_is_no_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = {"body_timeout_seconds": 0.3}
    async with proxied(server=server) as dragoman, connected(dragoman) as raw:
        raw.begin(LARGE, None, body=b"5\r\n{")
        # When another request is answered this one is being read.
        assert (await dragoman.request("GET", "/healthz"))[0] == 200
        raw.send(b"    \r\nnonsense\r\n")
        status, _, _ = await raw.answer()
    assert status in (400, 408)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_stream_outlives_the_deadline_of_its_body() -> None:
    server = {"body_timeout_seconds": 0.1, "heartbeat_seconds": 0.2}
    async with proxied(server=server) as dragoman, connected(dragoman) as raw:
        data = json.dumps({"message": "script: approve", "task_id": "t"}).encode()
        raw.begin("/as/engine/to/engine/execute", len(data), body=data)
        await raw.reader.readuntil(b"hitl_request")
        assert dragoman.sessions.bodies.under_way == 0
        await asyncio.sleep(0.3)
        async with asyncio.timeout(SOON_S):
            await raw.reader.readuntil(b"heartbeat")
