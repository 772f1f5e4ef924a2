"""Requests that are not text or not HTTP, on every route: refused in the dialect's form, without an
error of ours."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import ClientConnectionResetError, web

from proxy.base.metrics import REGISTRY
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied
from tests.support.raw import exchange, sent
from tests.support.waiting import SOON_S
from tests.wire import served

READ = (
    b"Accept",
    b"Idempotency-Key",
    b"Last-Event-ID",
    b"Origin",
    b"X-Dragoman-Session",
    b"baggage",
    b"content-type",
    b"traceparent",
    b"tracestate",
    b"x-stainless-retry-count",
)
"""The headers that are used."""

NO_TEXT = b"\xff\xfe"
FACES = tuple(served())


def targets(dragoman: Proxied) -> Iterator[tuple[str, bytes]]:
    """Every route that there is, with names in it."""
    for route in dragoman.routes:
        assert route.resource is not None
        path = route.resource.canonical.replace("{route}", "engine")
        method = "POST" if route.method == "*" else route.method
        yield method, re.sub(r"{[^}]*}", "x", path).encode()


def check_form(target: bytes, status: int, body: bytes) -> None:
    """Check that a refusal is one of its dialect; how other ones look, their own tests say."""
    assert status == 400
    if target.startswith(b"/as/aisdk"):
        # Its pages show the body as it is.
        assert body.endswith(b".")
        assert body.decode().isprintable()
        return
    told: Any = json.loads(body)
    if target.startswith(b"/as/eve/"):
        assert told["ok"] is False
        assert isinstance(told["error"], str)
    elif target.startswith(b"/as/engine/"):
        assert told["error"] == "BAD_REQUEST"
    elif target.startswith(b"/as/herm/"):
        assert told["error"]["code"] == "validation_error"
    elif not target.startswith(b"/as/"):
        assert told["error"]["code"] == "invalid_request"


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that a client sends is logged as an error."""
    caplog.set_level(logging.INFO)
    yield
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("keys", [(), ("a",)])
async def test_headers_that_are_no_text_are_refused_on_every_route(keys: tuple[str, ...]) -> None:
    async with proxied(keys=tuple(map(key_of, keys))) as dragoman:
        for method, target in targets(dragoman):
            if method == "HEAD":
                continue
            status, _, body = await exchange(dragoman.url, method, target, host=NO_TEXT)
            check_form(target, status, body)
        for name in READ:
            for target in (b"/as/%b/to/engine/v1" % face.encode() for face in FACES):
                line = b"%b: a%b" % (name, NO_TEXT)
                status, _, body = await exchange(dragoman.url, "POST", target, line, body=b"{}")
                check_form(target, status, body)


@pytest.mark.parametrize("keys", [(), ("a",)])
@pytest.mark.parametrize("where", [b"/%ff", b"?x=%ff", b"/%ed%a0%80", b"?%c0%ae=1"])
async def test_targets_that_are_no_text_are_refused_on_every_face(
    keys: tuple[str, ...], where: bytes
) -> None:
    async with proxied(keys=tuple(map(key_of, keys))) as dragoman:
        for start in (
            *(b"/as/%b/to/engine/v1" % face.encode() for face in FACES),
            b"/api/v1",
            b"/x",
        ):
            for method in ("GET", "POST"):
                target = start + where
                status, _, body = await exchange(dragoman.url, method, target)
                check_form(target, status, body)


async def test_what_nobody_reads_may_be_any_bytes() -> None:
    async with proxied(keys=(key_of("a"),)) as dragoman:
        lines = (b"User-Agent: M\xfcller", b"Authorization: Bearer k-a", b"Cookie: \xff")
        status, _, _ = await exchange(dragoman.url, "GET", b"/api/v1/sessions", *lines)
        assert status == 200
        line = b"Authorization: Bearer \xff"
        status, _, _ = await exchange(dragoman.url, "GET", b"/api/v1/sessions", line)
        assert status == 401


@pytest.mark.parametrize("keys", [(), ("a",)])
@pytest.mark.parametrize(
    "host", [b"[", b"a b", b"x:y", b"]", b"[::1", b"a@b", b"\xe6\x97\xa5", b"a." * 200, b"[]@"]
)
async def test_a_host_that_is_none_is_refused_and_is_no_error_of_ours(
    keys: tuple[str, ...], host: bytes
) -> None:
    async with proxied(keys=tuple(map(key_of, keys))) as dragoman:
        for target in (b"/as/eve/to/engine/x", b"/as/herm/to/engine/x", b"/x", b"/api/v1/x"):
            status, _, body = await exchange(dragoman.url, "GET", target, host=host)
            assert status == 400
            assert b"is not a host" in body
        for good in (b"[::1]:80", b"my_service.local", b"xn--bcher-kva.example:8787"):
            line = b"Authorization: Bearer k-a"
            status, _, _ = await exchange(dragoman.url, "GET", b"/api/v1/x", line, host=good)
            assert status == (404 if keys or b"::1" in good else 403)


async def test_an_origin_of_odd_characters_is_refused() -> None:
    async with proxied() as dragoman:
        for origin in ("http://" + "\ufdfa." * 2000, "http://[]@", "null", "x" * 8000):
            line = b"Origin: " + origin.encode()
            status, _, _ = await exchange(dragoman.url, "GET", b"/healthz", line, host=b"localhost")
            assert status == 403


async def test_a_session_whose_name_no_header_can_carry_is_shown_all_the_same() -> None:
    async with proxied() as dragoman:
        for name in ("a\nb", "a\r\nX-Admin: 1", "a\tb", "日本"):
            body = {"message": "hello", "task_id": name}
            url = "/as/engine/to/engine/execute"
            assert (await dragoman.request("POST", url, json=body))[0] == 200
            path = "".join(f"%{byte:02x}" for byte in name.encode()).encode()
            for ask in (b"/stream?follow=0", b""):
                target = b"/as/eve/to/engine/eve/v1/session/" + path + ask
                method = "GET" if ask else "POST"
                status, headers, _ = await exchange(
                    dragoman.url, method, target, body=b"" if ask else b'{"message":"again"}'
                )
                assert status in (200, 202)
                assert "X-Admin" not in headers
                shown = headers["x-eve-session-id"]
                assert shown in (name, name.replace("\n", "%0A").replace("\r", "%0D"))
            await dragoman.until_idle(
                (await dragoman.sessions.get(name, owner="local", route="engine")).id, turns=2
            )


HOSTILE_NUMBERS = (
    *("NaN", "Infinity", "-Infinity", "1e308", "1e400", "-1e308", str(2**63), str(2**70), "-1"),
    *("1" * 400, "1" * 5000, "0.5", "-0", '"1"', "null", "true", "[]", "{}"),
)


@pytest.mark.parametrize("number", HOSTILE_NUMBERS)
async def test_no_number_in_a_body_is_an_error_of_ours(number: str) -> None:
    async with proxied() as dragoman:
        session = await dragoman.say("hello")
        await dragoman.until_idle(session)
        names = ("older_than_seconds", "max_bytes", "max_bytes_per_backend")
        bodies = [("/api/v1/prune", f'{{"{name}":{number},"dry_run":true}}') for name in names]
        bodies += [
            ("/api/v1/prune", f'{{"max_bytes":{2**62},"dry_run":{number}}}'),
            ("/as/engine/to/engine/execute", f'{{"message":"x","task_id":"t","media":{number}}}'),
            ("/as/engine/to/engine/execute", f'{{"message":"x","task_id":{number}}}'),
            ("/as/engine/to/engine/execute", f'{{"message":{number},"task_id":"u"}}'),
            ("/as/engine/to/engine/hitl/respond", f'{{"answer":{number},"task_id":"t"}}'),
            ("/as/eve/to/engine/eve/v1/session", f'{{"message":{number}}}'),
            ("/as/eve/to/engine/eve/v1/session", f'{{"message":"x","mode":{number}}}'),
            ("/as/eve/to/engine/eve/v1/session", f'{{"message":"x","protocolVersion":{number}}}'),
            ("/as/eve/to/engine/eve/v1/session", f'{{"message":"x","clientContext":{number}}}'),
            ("/as/eve/to/engine/eve/v1/session", f'{{"message":"x","outputSchema":{number}}}'),
            ("/as/herm/to/engine/v1/agents/engine/sessions", f'{{"title":{number}}}'),
            (
                "/as/herm/to/engine/v1/agents/engine/sessions",
                f'{{"metadata":{{"a":{number}}},"userId":{number}}}',
            ),
            (
                f"/as/herm/to/engine/v1/sessions/{session}/events",
                f'{{"type":"user.message","content":[{{"type":"text","text":"x","n":{number}}}]}}',
            ),
        ]
        for path, body in bodies:
            status, _, answer = await exchange(
                dragoman.url,
                "POST",
                path.encode(),
                b"Content-Type: application/json",
                body=body.encode(),
            )
            assert status < 500, (path, body, answer)


@pytest.mark.parametrize(
    "number", [*HOSTILE_NUMBERS, "", " ", "%00", "1%00", "\u0661", "+1", "1_0"]
)
async def test_no_number_in_a_query_or_a_header_is_an_error_of_ours(number: str) -> None:
    async with proxied() as dragoman:
        session = await dragoman.say("hello")
        await dragoman.until_idle(session)
        eve = f"/as/eve/to/engine/eve/v1/session/{session}/stream?follow=0&startIndex="
        herm = f"/as/herm/to/engine/v1/sessions/{session}"
        asks = [
            *(f"{eve}{number}", f"{eve}0&streamControlVersion={number}"),
            f"/as/eve/to/engine/eve/v1/session/dgv_{number}_{session}/stream?follow=0",
            *(f"/api/v1/sessions?{name}={number}" for name in ("limit", "before", "state")),
            f"/api/v1/sessions?route={number}",
            f"/api/v1/sessions/{session}/events?follow=0&after={number}",
            f"/api/v1/sessions/{session}/events?follow={number}&after={2**62}",
            *(
                f"/as/engine/to/engine/execute/replay?{name}={number}"
                for name in ("after", "task_id")
            ),
            f"/as/engine/to/engine/execute/replay?task_id={session}&after={number}",
            *(f"{herm}/events?{name}={number}" for name in ("limit", "cursor", "after", "order")),
            *(
                f"/as/herm/to/engine/v1/sessions?{name}={number}"
                for name in ("limit", "cursor", "status", "agentId", "metadata")
            ),
        ]
        for ask in asks:
            target = ask.encode().replace(b" ", b"+")
            target = b"".join(b"%%%02x" % byte if byte > 126 else bytes((byte,)) for byte in target)
            status, _, answer = await exchange(dragoman.url, "GET", target)
            assert status < 500, (ask, answer)
        if number.isascii() and "%" not in number:
            line = f"x-stainless-retry-count: {number}".encode()
            body = b'{"message":"again"}'
            target = f"/as/eve/to/engine/eve/v1/session/{session}".encode()
            assert (await exchange(dragoman.url, "POST", target, line, body=body))[0] < 500
            for path in (f"{herm}/events/stream", f"/api/v1/sessions/{session}/events?follow=0"):
                line = f"Last-Event-ID: {number}".encode()
                async with asyncio.timeout(SOON_S):
                    # HEAD: a body of Herm's would not end.
                    found = await exchange(dragoman.url, "HEAD", path.encode(), line)
                assert found[0] < 500


async def test_a_limit_that_a_client_names_for_prune_must_fit() -> None:
    async with proxied() as dragoman:
        for body in (
            {"older_than_seconds": 1e308},
            {"older_than_seconds": -1},
            {"max_bytes": 2**70},
            {"max_bytes_per_backend": 2**70},
        ):
            status, told = await dragoman.request("POST", "/api/v1/prune", json=body)
            assert (status, told["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n\x16\x03\x01\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA\x00B: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: junk\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_counted_and_is_no_line_of_the_log(junk: bytes) -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("dragoman_malformed_requests_total") or 0.0

    async with proxied() as dragoman:
        before = counted()
        answer = await sent(dragoman.url, junk)
        assert answer.startswith(b"HTTP/1.")
        assert b" 400 " in answer.split(b"\r\n")[0]
        assert counted() == before + 1


async def test_who_expects_to_go_on_is_told_to() -> None:
    async with proxied() as dragoman:
        data = b"POST /api/v1/prune HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        data += b"Expect: 100-Continue\r\nContent-Length: 2\r\n\r\n{}"
        answer = await sent(dragoman.url, data)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 ")


@pytest.mark.parametrize("name", [b"Content-Encoding", b"Transfer-Encoding", b"Content-Length"])
async def test_what_a_refusal_quotes_of_a_body_s_headers_can_be_sent(name: bytes) -> None:
    async with proxied() as dragoman:
        for face in FACES:
            target = b"/as/%b/to/engine/v1/x" % face.encode()
            line = name + b": " + NO_TEXT
            status, _, _ = await exchange(dragoman.url, "POST", target, line)
            assert 400 <= status < 500


async def test_a_client_that_leaves_while_it_is_answered_is_no_error_of_ours() -> None:
    async def leaves(request: web.Request) -> web.StreamResponse:
        # As aiohttp raises it where the other end was found gone in the write before.
        raise ClientConnectionResetError("Cannot write to closing transport")

    def add(app: web.Application) -> None:
        app.router.add_get("/leaves", leaves)

    async with proxied(change=add) as dragoman:
        await exchange(dragoman.url, "GET", b"/leaves")
