"""What a supervisor asks: whether the process lives, and whether it takes work."""

from __future__ import annotations

from tests.support.keys import key_of
from tests.support.proxied import proxied


async def test_health_needs_no_key_and_says_nothing_of_what_is_going_on() -> None:
    async with proxied(keys=(key_of("a"),)) as dragoman:
        assert await dragoman.request("GET", "/healthz") == (200, {"status": "ok"})
        assert await dragoman.request("GET", "/readyz") == (200, {"status": "ready"})
        await dragoman.say("hello", key="k-a")
        assert await dragoman.request("GET", "/readyz") == (200, {"status": "ready"})


async def test_a_stopping_server_lives_but_is_not_ready() -> None:
    async with proxied() as dragoman:
        await dragoman.sessions.aclose()
        assert await dragoman.request("GET", "/healthz") == (200, {"status": "ok"})
        assert await dragoman.request("GET", "/readyz") == (503, {"status": "stopping"})
