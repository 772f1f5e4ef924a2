"""Web pages of other origins: those that the configuration names, and nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.config.settings import ListenerSettings, ServerSettings, Settings
from tests.asks import NAMES, filled, posted
from tests.support.keys import credential, key_of
from tests.support.proxied import Proxied, proxied
from tests.wire import served

PAGE = "https://app.example.com"
OTHER = "https://evil.example.com"
FACES = {
    **{name: f"/as/{name}/to/engine{filled(posted(name), NAMES)}" for name in served()},
    "control": "/api/v1/prune",
    "health": "/as/eve/to/engine/eve/v1/health",
    "nothing": "/nothing",
    "no route": "/as/eve/to/nobody/eve/v1/session",
}
"""A path of each face, and of none."""

NOT_FOR_PAGES = {"x-accel-buffering", "x-vercel-ai-ui-message-stream"}
"""Headers of ours that tell a page nothing: the second is what the vendor's own servers send."""

ALLOWED = {"allowed_origins": [PAGE, "http://localhost:5173"]}
KEYS = pytest.mark.parametrize("key", [None, "k-a"])


def tables(key: str | None, **server: Any) -> dict[str, Any]:
    return {"server": server, "keys": () if key is None else (key_of("a"),)}


async def heads(
    dragoman: Proxied, method: str, path: str, origin: str | None, **options: Any
) -> tuple[int, Mapping[str, str]]:
    """Ask as the page of an origin; read the whole answer, and return its head."""
    headers = {} if origin is None else {"Origin": origin}
    headers |= credential(options.pop("key", None)) | options.pop("headers", {})
    url = dragoman.url + path
    async with dragoman.http.request(method, url, headers=headers, **options) as answer:
        if "stream" not in path:
            await answer.read()
        return answer.status, answer.headers


def check_shared(headers: Mapping[str, str], origin: str = PAGE) -> None:
    assert headers["Access-Control-Allow-Origin"] == origin
    assert headers["Vary"] == "Origin"
    exposed = headers["Access-Control-Expose-Headers"].split(", ")
    assert {"x-eve-session-id", "x-eve-stream-version", "retry-after"} <= set(exposed)
    own = {name.lower() for name in headers if name.lower().startswith("x-")} - NOT_FOR_PAGES
    assert own <= set(exposed)
    assert "Access-Control-Allow-Credentials" not in headers
    assert "Set-Cookie" not in headers


def check_kept(headers: Mapping[str, str]) -> None:
    assert [name for name in headers if name.lower().startswith("access-control-")] == []


async def check_refused(
    dragoman: Proxied, path: str, origin: str, asked: Mapping[str, str]
) -> None:
    """Check that a preflight is refused, and that the refusal names the setting to change."""
    headers = {"Origin": origin, **asked}
    async with dragoman.http.options(dragoman.url + path, headers=headers) as answer:
        assert answer.status == 403
        check_kept(answer.headers)
        why = (await answer.json())["error"]["message"]
        assert origin in why
        assert "`server.allowed_origins`" in why


@KEYS
@pytest.mark.parametrize("origin", [OTHER, "http://localhost:5173", "null"])
async def test_the_refusal_of_a_preflight_names_the_setting_to_change(
    origin: str, key: str | None
) -> None:
    async with proxied(**tables(key)) as dragoman:
        await check_refused(
            dragoman, "/api/v1/sessions", origin, {"Access-Control-Request-Method": "GET"}
        )


@KEYS
@pytest.mark.parametrize("face", FACES)
async def test_a_preflight_of_an_allowed_origin_is_answered_without_a_key(
    face: str, key: str | None
) -> None:
    asked = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    async with proxied(**tables(key, **ALLOWED)) as dragoman:
        status, headers = await heads(dragoman, "OPTIONS", FACES[face], PAGE, headers=asked)
        assert status == 204
        check_shared(headers)
        assert headers["Access-Control-Allow-Methods"] == "GET, HEAD, POST, PATCH, DELETE"
        assert headers["Access-Control-Allow-Headers"] == asked["Access-Control-Request-Headers"]
        assert headers["Access-Control-Max-Age"] == "600"
        await check_refused(dragoman, FACES[face], OTHER, asked)
        # What is not a list of headers is not repeated.
        asked["Access-Control-Request-Headers"] = "a b; c"
        _, headers = await heads(dragoman, "OPTIONS", FACES[face], PAGE, headers=asked)
        assert "Access-Control-Allow-Headers" not in headers


@KEYS
@pytest.mark.parametrize("face", FACES)
async def test_every_answer_and_error_says_that_an_allowed_page_may_read_it(
    face: str, key: str | None
) -> None:
    path = FACES[face]
    async with proxied(**tables(key, **ALLOWED)) as dragoman:
        body = {"message": "hello", "task_id": "t"}
        for sent in ({"json": body}, {"json": body, "key": key}, {"data": b"{"}, {"data": b"\xff"}):
            _, headers = await heads(dragoman, "POST", path, PAGE, **sent)
            check_shared(headers)
        _, headers = await heads(dragoman, "OPTIONS", path, PAGE)
        check_shared(headers)
        _, headers = await heads(dragoman, "GET", f"{path}?x=%ff", PAGE)
        check_shared(headers)
        _, headers = await heads(dragoman, "POST", path, OTHER, json=body, key=key)
        check_kept(headers)
        assert headers["Vary"] == "Origin"
        _, headers = await heads(dragoman, "POST", path, None, json=body, key=key)
        check_kept(headers)
        assert headers["Vary"] == "Origin"


@KEYS
async def test_streams_of_every_face_can_be_read_by_an_allowed_page(key: str | None) -> None:
    async with proxied(**tables(key, **ALLOWED)) as dragoman:
        session = await dragoman.say("hello", key=key)
        await dragoman.until_idle(session)
        for path in (
            f"/as/eve/to/engine/eve/v1/session/{session}/stream",
            f"/as/eve/to/engine/eve/v1/session/{session}/stream?follow=0",
            f"/as/engine/to/engine/execute/replay?task_id={session}&stream=1",
            f"/as/herm/to/engine/v1/sessions/{session}/events/stream",
            f"/api/v1/sessions/{session}/events?follow=1&stream=1",
        ):
            for origin in (PAGE, OTHER):
                if origin == OTHER and key is None:
                    continue
                status, headers = await heads(dragoman, "GET", path, origin, key=key)
                assert status == 200
                if origin == PAGE:
                    check_shared(headers)
                else:
                    check_kept(headers)
        status, headers = await heads(
            dragoman, "POST", FACES["engine"], PAGE, key=key, json={"message": "a", "task_id": "s"}
        )
        assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/event-stream")
        check_shared(headers)


@KEYS
async def test_a_listener_answers_allowed_pages_too(key: str | None) -> None:
    listener = ListenerSettings(listen="127.0.0.1:0", dialect="eve", route="engine")
    async with proxied(**tables(key, **ALLOWED), listeners=(listener,)) as dragoman:
        url = dragoman.listeners[0].url + "/eve/v1/session"
        asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
        async with dragoman.http.options(url, headers=asked) as answer:
            assert answer.status == 204
            check_shared(answer.headers)


@KEYS
@pytest.mark.parametrize("face", FACES)
async def test_nothing_is_said_to_any_page_where_no_origin_is_allowed(
    face: str, key: str | None
) -> None:
    asked = {"Access-Control-Request-Method": "POST"}
    async with proxied(**tables(key)) as dragoman:
        for method in ("OPTIONS", "GET", "POST"):
            for origin in (PAGE, "http://localhost:5173", None):
                status, headers = await heads(
                    dragoman, method, FACES[face], origin, headers=asked, key=key
                )
                check_kept(headers)
                assert "Vary" not in headers
                assert status != 204
                if key is None and origin == PAGE:
                    assert status == 403


@pytest.mark.parametrize("face", FACES)
async def test_without_keys_only_origins_that_are_named_and_loopback_hosts_are_served(
    face: str,
) -> None:
    asked = {"Access-Control-Request-Method": "POST"}
    async with proxied(**tables(None, **ALLOWED)) as dragoman:
        for origin in (OTHER, "null", f"{PAGE}.evil.example.com", f"{PAGE}:8443", PAGE.upper()):
            for method in ("OPTIONS", "POST"):
                found = await heads(dragoman, method, FACES[face], origin, headers=asked, json={})
                assert found[0] == 403
                check_kept(found[1])
        rebound = {"Host": "app.example.com", **asked}
        for method in ("OPTIONS", "POST"):
            for page in (PAGE, None):
                found = await heads(dragoman, method, FACES[face], page, headers=rebound, json={})
                assert found[0] == 403


async def test_with_keys_every_origin_can_be_allowed() -> None:
    async with proxied(**tables("k-a", allowed_origins=["*"])) as dragoman:
        status, headers = await heads(dragoman, "GET", "/api/v1/sessions", OTHER, key="k-a")
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, "*")
        assert "Vary" not in headers
        asked = {"Access-Control-Request-Method": "DELETE"}
        status, headers = await heads(dragoman, "OPTIONS", "/x", OTHER, headers=asked)
        assert (status, headers["Access-Control-Allow-Origin"]) == (204, "*")
        # The key is what is asked for.
        assert (await heads(dragoman, "GET", "/api/v1/sessions", OTHER))[0] == 401


def test_without_keys_every_origin_cannot_be_allowed() -> None:
    with pytest.raises(ValidationError, match="name the origins"):
        Settings.model_validate({"server": {"allowed_origins": [PAGE, "*"]}})


@pytest.mark.parametrize(
    "origin",
    [
        *("https://app.example.com/", "https://app.example.com/x", "app.example.com", "null", ""),
        *("HTTPS://app.example.com", "https://App.example.com", "https://app.example.com:443"),
        *(
            "http://app.example.com:80",
            "https://*.example.com",
            "https://app.example.com:b",
            "https://u@app.example.com",
            "https://app.example.com?b",
        ),
        *(
            "https://app.example.com\n",
            "https://",
            "https://app.example.com:0",
            "https://app.example.com x",
        ),
    ],
)
def test_what_no_browser_sends_is_no_origin(origin: str) -> None:
    with pytest.raises(ValidationError, match="is not an origin"):
        ServerSettings.model_validate({"allowed_origins": [origin]})


@pytest.mark.parametrize(
    "origin",
    ["http://localhost:5173", "https://a.b-c.example", "http://[::1]:8080", "tauri://localhost"],
)
def test_an_origin_is_written_as_a_browser_sends_it(origin: str) -> None:
    assert ServerSettings.model_validate({"allowed_origins": [origin]}).allowed_origins == (origin,)
