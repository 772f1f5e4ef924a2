"""The check of a backend by the control API of a running server."""

from __future__ import annotations

import asyncio

import pytest

from proxy.config.settings import BackendSettings
from proxy.control.api import ErrorOut
from proxy.control.checks import BackendCheckOut
from proxy.upstream import readiness
from proxy.upstream.backend_check import CheckResult
from tests.support.dragoman import BACKEND_KEY
from tests.support.keys import key_of
from tests.support.proxied import proxied

CHECK = "/api/v1/backends/{}/check"
GONE = {"name": "gone", "dialect": "engine", "url": "http://127.0.0.1:9"}


async def test_a_backend_is_checked_as_the_command_does() -> None:
    async with proxied(backends=("engine", GONE)) as running:
        status, body = await running.request("GET", CHECK.format("engine"))
        found = BackendCheckOut.model_validate(body)
        assert (status, found.ok, found.configured_dialect) == (200, True, "engine")
        things = (found.reachable, found.credential, found.dialect, found.streaming)
        assert {one.state for one in things} == {"ok"}
        assert BACKEND_KEY not in str(body)
        status, body = await running.request("GET", CHECK.format("gone"))
        failed = BackendCheckOut.model_validate(body)
        assert (status, failed.ok, failed.reachable.state) == (200, False, "failed")
        assert failed.reachable.kind == "connection_refused"
        assert "nothing listens on port 9" in failed.reachable.text
        assert failed.dialect.state == "not_asked"


async def test_many_who_ask_at_once_cause_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = readiness.Readiness._ask

    async def counting(self: readiness.Readiness, backend: BackendSettings) -> CheckResult:
        asked.append(backend.name)
        return await ask(self, backend)

    monkeypatch.setattr(readiness.Readiness, "_ask", counting)
    async with proxied() as running:
        path = CHECK.format("engine")
        answers = await asyncio.gather(*[running.request("GET", path) for _ in range(8)])
    assert {status for status, _ in answers} == {200}
    assert asked == ["engine"]


async def test_only_an_administrator_has_a_backend_checked() -> None:
    keys = (key_of("ann"), key_of("boss", admin=True))
    async with proxied(keys=keys) as running:
        for name, key, wanted in (
            ("engine", "k-boss", (200, "")),
            ("engine", "k-ann", (403, "forbidden")),
            ("none", "k-ann", (403, "forbidden")),
            ("none", "k-boss", (404, "not_found")),
            ("engine", None, (401, "unauthorized")),
        ):
            status, body = await running.request("GET", CHECK.format(name), key=key)
            code = "" if status == 200 else ErrorOut.model_validate(body).error.code
            assert (status, code) == wanted, (name, key)
