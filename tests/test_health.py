"""What a supervisor asks: whether the process lives, and whether it takes work."""

from __future__ import annotations

from proxy.config.settings import BackendSettings
from tests.support.keys import key_of
from tests.support.proxied import proxied


async def test_health_needs_no_key_and_says_nothing_of_what_is_going_on() -> None:
    async with proxied(keys=(key_of("a"),)) as dragoman:
        assert await dragoman.request("GET", "/healthz") == (200, {"status": "ok"})
        assert await dragoman.request("GET", "/readyz") == (200, {"status": "ready"})
        await dragoman.say("hello", key="k-a")
        assert await dragoman.request("GET", "/readyz") == (200, {"status": "ready"})


async def test_a_server_is_not_ready_where_the_backends_count_and_one_refuses_its_key() -> None:
    wrong = {"key": "another"}
    async with proxied(engine=wrong, backends=("strict",), keys=(key_of("a"),)) as dragoman:
        status, body = await dragoman.request("GET", "/readyz?backends=1")
        assert await dragoman.request("GET", "/readyz") == (200, {"status": "ready"})
    assert status == 503
    # Nobody needs a key for it: it has no address, and no variable's name.
    assert body == {
        "status": "backends_down",
        "backends": ["strict"],
        "why": {"strict": "credential_refused"},
    }


async def test_a_backend_that_is_never_driven_does_not_count() -> None:
    later = {"name": "later", "dialect": "hermes-agent", "url": "hooks:"}
    async with proxied(backends=[BackendSettings.model_validate(later)]) as dragoman:
        ready = await dragoman.request("GET", "/readyz?backends=1")
    assert ready == (200, {"status": "ready"})


async def test_a_stopping_server_lives_but_is_not_ready() -> None:
    async with proxied() as dragoman:
        await dragoman.sessions.aclose()
        assert await dragoman.request("GET", "/healthz") == (200, {"status": "ok"})
        assert await dragoman.request("GET", "/readyz") == (503, {"status": "stopping"})
