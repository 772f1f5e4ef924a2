"""What a demo is told: by options and, as `serve` is, by the environment."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from proxy import cli
from proxy.base import logs
from proxy.base.errors import ConfigError
from proxy.tools import demo
from tests.support.demos import running
from tests.support.keys import credential
from tests.support.ports import free_port

PAGE, OTHER = "http://localhost:5173", "https://app.example.com"
SHARED = "Access-Control-Allow-Origin"


@pytest.fixture(autouse=True)
def levels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Leave the log of the tests alone; the levels that a demo would set."""
    found: list[str] = []
    monkeypatch.setattr(logs, "configure", lambda *, level, **_: found.append(level))
    return found


async def shared_with(url: str, page: str, key: str | None = None) -> str | None:
    """Return the origin that may read an answer, as the answer to a page says it."""
    headers = {"Origin": page, **credential(key)}
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{url}/api/v1/sessions", headers=headers) as answer,
    ):
        found: str | None = answer.headers.get(SHARED)
        return found


async def test_pages_of_the_origins_that_an_option_names_may_use_a_demo() -> None:
    async with running(origins=[PAGE, OTHER]) as (url, _):
        assert await shared_with(url, PAGE) == PAGE
        assert await shared_with(url, OTHER) == OTHER
        assert await shared_with(url, "http://localhost:5174") is None


async def test_the_environment_counts_for_a_demo(levels: list[str]) -> None:
    port = free_port()
    environ = {
        "SERVER__LISTEN": f"localhost:{port}",
        "SERVER__ALLOWED_ORIGINS": json.dumps([PAGE]),
        "LOG__LEVEL": "error",
        "ROUTES": json.dumps([{"name": "mine", "backends": ["herm"]}]),
    }
    async with running(environ, port=None) as (url, key):
        assert url == f"http://localhost:{port}"
        assert key is None
        assert await shared_with(url, PAGE) == PAGE
        async with aiohttp.ClientSession() as http, http.get(f"{url}/as/agui/to/mine") as answer:
            assert answer.status == 200
    assert levels == ["error"]


async def test_options_override_the_environment_of_a_demo(levels: list[str]) -> None:
    environ = {
        "SERVER__LISTEN": "0.0.0.0:1",
        "SERVER__ALLOWED_ORIGINS": json.dumps([OTHER]),
    }
    async with running(environ, host="127.0.0.1", origins=[PAGE]) as (url, key):
        assert url.startswith("http://127.0.0.1:")
        assert key is None
        assert await shared_with(url, PAGE) == PAGE
        assert await shared_with(url, OTHER) is None
    assert levels == ["warning"]


async def test_a_demo_has_a_key_of_its_own_beside_those_of_the_environment() -> None:
    keys = [{"name": "web", "sha256": hashlib.sha256(b"k-web").hexdigest()}]
    async with running({"KEYS": json.dumps(keys)}, origins=["*"]) as (url, key):
        assert key is not None
        for known in (key, "k-web"):
            assert await shared_with(url, PAGE, known) == "*"
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"{url}/as/agui/to/herm/threads/t", headers=credential(known)) as answer,
            ):
                # The key is known, the thread is not.
                assert answer.status == 404


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"JOURNAL__URL": "sqlite:///kept.db"}, "takes no `journal.url`"),
        ({"SERVR__LISTEN": "127.0.0.1:0"}, "DRAGOMAN_SERVR__LISTEN"),
        ({"SERVER__LISTEN": "nowhere"}, "`nowhere` is not an address"),
        ({"SERVER__HEARTBEAT_SECONDS": "60"}, "`heartbeat_seconds`: must be at most 10"),
        ({"LOG__LEVEL": "loud"}, "DRAGOMAN_LOG__LEVEL"),
    ],
)
async def test_what_of_the_environment_is_not_for_a_demo_is_told(
    environ: dict[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {f"DRAGOMAN_{name}": value for name, value in environ.items()}
    with pytest.raises(ConfigError) as caught:
        await demo.run_demo(
            environ=names,
            host=None,
            port=0,
            ready=lambda *_: pytest.fail("it has started"),
            stop=asyncio.Event(),
        )
    assert why in caught.value.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("origin", "why"),
    [("localhost:5173", "`localhost:5173` is not an origin"), ("*", "name the origins")],
)
def test_an_origin_that_a_demo_cannot_allow_is_told_by_its_option(origin: str, why: str) -> None:
    done = CliRunner().invoke(cli.main, ["demo", "--port", "0", "--origin", origin])
    assert done.exit_code == 2
    assert "`--origin`: " in done.stderr
    assert why in done.stderr
