"""What arrives at an eve backend through the routes that need no key, byte by byte.

The backend is an origin that records targets as they were sent, and requests are written by hand:
clients and servers of HTTP normalize paths.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from urllib.parse import quote, unquote

import pytest

from adapters.wire.url_paths import is_segment
from proxy.app.app import create_app
from proxy.app.server import opened_sessions
from proxy.config.settings import Settings
from tests.support.dragoman import BACKEND_KEY, backend_settings
from tests.support.keys import key_of
from tests.support.names import HOSTILE
from tests.support.origin import Origin, head, serve_origin
from tests.support.proxied import proxied
from tests.support.raw import exchange
from tests.support.serving import served

ANSWER = head("202 Accepted", "Content-Length: 0")

ROUND = 300
"""Paths of the seeded test: 2 s."""


@contextlib.asynccontextmanager
async def guarded(*keys: str) -> AsyncIterator[tuple[str, Origin]]:
    """A Dragoman with a key in front of an eve; gives the face's host and the backend."""
    async with serve_origin() as origin, contextlib.AsyncExitStack() as stack:
        tables = {
            "journal": {"url": "memory:"},
            "backends": (backend_settings("r", "eve", origin.url),),
            "keys": tuple(key_of(name) for name in keys),
        }
        sessions = await stack.enter_async_context(opened_sessions(Settings.model_validate(tables)))
        app = create_app(sessions)
        yield await stack.enter_async_context(served(app)), origin
        await sessions.aclose()


def escaped(name: str) -> bytes:
    """A name with every byte of it percent-encoded."""
    return b"".join(b"%%%02x" % byte for byte in name.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "path",
    [
        b"connections/%2e%2e/callback/%2e%2e/session",
        b"connections/../callback/../session",
        b"connections/.%2e/callback/%2E./session",
        b"connections/x/callback/..\\..\\..\\admin",
        b"connections/x/callback/..%5c..%5c..%5cadmin",
        b"connections/x/callback/..%2f..%2f..%2fsession",
        b"connections/x/callback/%252e%252e/session",
        b"connections/x/callback/t%0d%0aX-Admin:%201",
        b"connections/x/callback/%00",
        b"connections/x/callback/%ff",
        b"connections/x/callback/\xff",
        b"callback/..",
        b"callback/%2e%2e",
        b"callback/..%2f..%2fadmin",
        b"callback/..%5c..%5cadmin",
        b"task-input/%2e%2e%2fsession",
        b"task-input/\\..\\session",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_callback_without_a_key_leads_to_no_other_path_of_the_backend(
    method: str, path: bytes
) -> None:
    async with guarded("a") as (url, origin):
        origin.answers = [ANSWER]
        target = b"/as/eve/to/r/eve/v1/" + path
        status, _, body = await exchange(url, method, target, body=b"{}")
        assert status in (400, 401, 404)
        # aiohttp itself refuses bytes that no target has.
        assert b'"ok":false' in body or b'"error":true' in body or b"\xff" in path
        assert origin.asked == []


async def test_a_callback_reaches_the_backend_as_its_own_segments_and_without_a_credential() -> (
    None
):
    async with guarded("a") as (url, origin):
        told = {
            b"connections/ledger/callback/eve:t": "connections/ledger/callback/eve%3At",
            b"connections/a%20b/callback/7/t%3A1?code=c%26d": (
                "connections/a%20b/callback/7/t%3A1?code=c%26d"
            ),
            b"connections/%e6%97%a5/callback/t;x=1": ("connections/%E6%97%A5/callback/t%3Bx%3D1"),
            b"%63allback/t~1": "callback/t~1",
            b"task-input/50%25": "task-input/50%25",
        }
        for path, arrived in told.items():
            origin.answers = [ANSWER]
            # Also where a part of the prefix is quoted, or the target is a whole URL.
            for prefix in (b"/as/eve/to/r/eve/v1/", b"/as/eve/to/%72/%65ve/v1/"):
                origin.answers = [ANSWER]
                key = b"Authorization: Bearer " + BACKEND_KEY.encode()
                status, _, _ = await exchange(url, "POST", prefix + path, key, body=b"{}")
                assert status == 202
                asked = origin.asked.pop()
                assert asked.target == f"/eve/v1/{arrived}"
                assert "Authorization" not in asked.headers


async def test_whatever_the_names_are_the_backend_gets_the_segments_that_were_meant() -> None:
    chance = random.Random(20)
    pieces = [*HOSTILE, "session", "ledger", "eve:t", "a b", "日本", "%", "%zz", ";", "@", "?", "#"]
    async with guarded("a") as (url, origin):
        for _ in range(ROUND):
            kind = chance.choice(["connections", "callback", "task-input"])
            name, token = ("".join(chance.choices(pieces, k=chance.randint(1, 3))) for _ in "nt")
            written = [
                escaped(one)
                if chance.random() < 0.5
                else quote(one, "", errors="surrogatepass").encode()
                for one in (name, token)
            ]
            target = b"/as/eve/to/r/eve/v1/"
            if kind == "connections":
                target += b"connections/%b/callback/%b" % (written[0], written[1])
                meant = ["connections", name, "callback", token]
            else:
                target += kind.encode() + b"/" + written[1]
                meant = [kind, token]
            origin.answers = [ANSWER]
            status, _, _ = await exchange(url, "POST", target, body=b"{}")
            assert status < 500
            if status != 202:
                assert origin.asked == []
                continue
            path = origin.asked.pop().target
            assert path.isascii()
            assert [unquote(part) for part in path.split("/")] == ["", "eve", "v1", *meant]
            assert all(map(is_segment, meant))


@pytest.mark.parametrize("junk", [b"text/\x01html", b"text/\xff", b"\x7f", b"text/html; a=\x0b"])
async def test_a_header_of_a_callbacks_answer_that_is_none_is_not_passed_on(junk: bytes) -> None:
    async with guarded("a") as (url, origin):
        top = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\nContent-Type: "
        origin.answers = [top + junk + b"\r\ntraceparent: 00-1\r\nX-Other: 1\r\n\r\nok"]
        status, headers, body = await exchange(
            url, "GET", b"/as/eve/to/r/eve/v1/connections/a/callback/t"
        )
        # Some of these aiohttp's client refuses by itself: then it is the backend's fault.
        assert (status, body) == (200, b"ok") or status in (502, 503)
        assert junk.decode("latin-1") not in headers.get("Content-Type", "")
        assert "X-Other" not in headers


@pytest.mark.parametrize("junk", [b"a\x01b", b"a\x7f", b"\xff", b"a\x00b", b"a\x0bb"])
@pytest.mark.parametrize("name", [b"Content-Type", b"traceparent", b"Baggage"])
async def test_a_header_of_a_callback_that_is_none_is_refused_and_not_sent(
    name: bytes, junk: bytes
) -> None:
    async with guarded("a") as (url, origin):
        origin.answers = [ANSWER]
        target = b"/as/eve/to/r/eve/v1/callback/t"
        status, _, _ = await exchange(url, "POST", target, name + b": " + junk, body=b"{}")
        assert status == 400
        assert origin.connections == 0


@pytest.mark.parametrize("gone", ["no longer kept", "without its backend", "deleted"])
async def test_who_calls_back_does_not_learn_of_a_session_that_is_gone(gone: str) -> None:
    async with serve_origin() as origin:
        eve = backend_settings("r", "eve", origin.url).model_dump()
        async with proxied(backends=("engine", eve), keys=(key_of("a"),)) as dragoman:
            name = await dragoman.say("hello", key="k-a")
            await dragoman.until_idle(name)
            sessions = dragoman.sessions
            if gone == "without its backend":
                sessions.cache.forget(name)
                left = [one for one in sessions.settings.backends if one.name == "r"]
                sessions.settings = sessions.settings.model_copy(update={"backends": tuple(left)})
            elif gone == "deleted":
                await dragoman.request("DELETE", f"/api/v1/sessions/{name}", key="k-a")
            else:
                body = {"max_bytes": 0}
                await dragoman.request("POST", "/api/v1/prune", key="k-a", json=body)
            for one in (name, "dgs_nobody"):
                origin.answers = [ANSWER]
                path = f"/as/eve/to/r/eve/v1/connections/x/callback/{one}.{'0' * 32}"
                assert (await dragoman.request("GET", path))[0] == 202
