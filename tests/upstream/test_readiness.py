"""A backend is checked before sessions go there; what was found counts for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from adapters.wire.errors import DragomanError, ErrorCode
from proxy.config.settings import BackendSettings, Settings
from proxy.upstream import readiness
from proxy.upstream.backend_check import CheckResult
from proxy.upstream.findings import Finding, Kind
from proxy.upstream.health import Health
from proxy.upstream.readiness import KEPT_SECONDS, Readiness
from tests.support.waiting import until

BACKEND = BackendSettings(name="mine", dialect="engine", url="http://127.0.0.1:9")
OK = Finding("ok")
WELL = CheckResult("mine", "engine", BACKEND.url, OK, OK, OK, OK)
REFUSED = CheckResult(
    "mine", "engine", BACKEND.url, OK, Finding("failed", "it refuses", Kind.CREDENTIAL_REFUSED)
)


class Asked:
    """A backend that gives answers in order, the last again and again, each once it may."""

    def __init__(self, *answers: CheckResult) -> None:
        self.answers = list(answers)
        self.times = 0
        self.now = 100.0
        self.may = asyncio.Event()
        self.may.set()

    async def check(self, *_: object) -> CheckResult:
        """Answer."""
        self.times += 1
        await self.may.wait()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http


def ready(asked: Asked, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> Readiness:
    monkeypatch.setattr(readiness, "check_backend", asked.check)
    settings = Settings(backends=(BACKEND,))
    health = {"mine": Health("mine", BACKEND.url)}
    return Readiness(settings, http, health, monotonic=lambda: asked.now)


async def test_a_poll_asks_a_backend_once_in_a_while(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(REFUSED, WELL)
    found = ready(asked, http, monkeypatch)
    for _ in range(100):
        assert await found.check(BACKEND) == REFUSED
    assert asked.times == 1
    asked.now += KEPT_SECONDS + 0.1
    assert await found.check(BACKEND) == WELL
    assert asked.times == 2


async def test_many_at_once_ask_a_backend_once(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(REFUSED)
    found = ready(asked, http, monkeypatch)
    asked.may.clear()
    polls = [asyncio.create_task(found.check(BACKEND)) for _ in range(10)]
    gates = [asyncio.create_task(found.require(BACKEND)) for _ in range(10)]
    await until(lambda: asked.times > 0)
    asked.may.set()
    assert set(await asyncio.gather(*polls)) == {REFUSED}
    for gate in gates:
        with pytest.raises(DragomanError, match="is not ready: it refuses"):
            await gate
    assert asked.times == 1


async def test_what_failed_is_asked_anew_before_something_is_done(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(REFUSED, REFUSED, WELL)
    found = ready(asked, http, monkeypatch)
    await found.check(BACKEND)
    asked.now += 0.1
    with pytest.raises(DragomanError) as refused:
        await found.require(BACKEND)
    assert refused.value.code is ErrorCode.BACKEND_NOT_READY
    assert refused.value.details == {
        "backend": "mine",
        "check": "credential",
        "kind": "credential_refused",
    }
    asked.now += 0.1
    assert await found.require(BACKEND) == []
    asked.now += 0.1
    # And what is well counts for a moment there too.
    assert await found.require(BACKEND) == []
    assert asked.times == 3


async def test_a_check_that_takes_too_long_is_a_failure(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(WELL)
    asked.may.clear()
    monkeypatch.setattr(readiness, "CHECK_SECONDS", 0.01)
    found = await ready(asked, http, monkeypatch).check(BACKEND)
    assert found.reachable.kind is Kind.TIMEOUT
    assert "within 0.01 s" in found.why


def test_a_stream_that_is_not_asked_for_is_nothing_to_tell() -> None:
    quiet = CheckResult("mine", "eve", BACKEND.url, OK, OK, OK, Finding("not asked", "an effect"))
    assert quiet.notices == []
    held = CheckResult(
        "mine", "eve", BACKEND.url, OK, OK, OK, Finding("unknown", "no stream began")
    )
    assert held.notices == ["Backend `mine`: its streaming is not known: no stream began."]
    several = Finding("failed", "correct `url`. If it speaks TLS, write https://.", Kind.NOT_HTTP)
    assert CheckResult("mine", "eve", BACKEND.url, several).why.endswith("write https://.")
    # What failed says it all.
    assert REFUSED.notices == []
