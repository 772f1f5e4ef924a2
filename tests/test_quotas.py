"""What one key may have of what all keys share, and how one that wants more hears of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiohttp import ClientResponse

from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.metrics import REGISTRY
from proxy.config.settings import LimitSettings
from proxy.http.quotas import Quotas
from tests.support.keys import credential, key_of
from tests.support.proxied import Proxied, proxied
from tests.support.waiting import SOON_S, until


class Time:
    """A clock that tests move."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def quotas(time: Time) -> Quotas:
    limits = LimitSettings(streams_per_key=10, readers_per_key=1, new_sessions_per_minute=30)
    return Quotas(limits, time)


def refused(kind: str) -> float:
    return REGISTRY.get_sample_value("dragoman_over_limit_total", {"kind": kind}) or 0.0


def test_a_key_has_as_many_streams_as_it_may_and_one_more_when_one_is_closed(
    quotas: Quotas,
) -> None:
    before = refused("streams")
    with contextlib.ExitStack() as nine, quotas.held("ann", "streams"):
        for _ in range(9):
            nine.enter_context(quotas.held("ann", "streams"))
        with pytest.raises(DragomanError) as told, quotas.held("ann", "streams"):
            pass
        assert told.value.code == ErrorCode.RATE_LIMITED
        assert told.value.details["retry_after"] >= 1
        assert "all of its streams open, 10;" in told.value.message
        # Another key's, and another kind, are counted by themselves.
        with quotas.held("bob", "streams"), quotas.held("ann", "readers"):
            pass
        nine.close()
        with quotas.held("ann", "streams"):
            pass
    assert refused("streams") == before + 1


def test_a_stream_that_fails_is_counted_no_longer(quotas: Quotas) -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="x"), quotas.held("ann", "readers"):
            raise ValueError("x")


def test_sessions_are_made_as_fast_as_a_key_may_make_them(quotas: Quotas, time: Time) -> None:
    for _ in range(30):
        quotas.count_session("ann")
    with pytest.raises(DragomanError) as told:
        quotas.count_session("ann")
    assert told.value.code == ErrorCode.RATE_LIMITED
    assert told.value.details["retry_after"] == 2
    quotas.count_session("bob")
    time.seconds += 1.0
    with pytest.raises(DragomanError):
        quotas.count_session("ann")
    time.seconds += 1.0
    quotas.count_session("ann")
    with pytest.raises(DragomanError):
        quotas.count_session("ann")
    time.seconds += 3600.0
    for _ in range(30):
        quotas.count_session("ann")
    with pytest.raises(DragomanError):
        quotas.count_session("ann")


def test_a_key_and_kind_are_logged_once_until_it_has_less_again(
    quotas: Quotas, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    def flood() -> None:
        with contextlib.ExitStack() as ten:
            for _ in range(10):
                ten.enter_context(quotas.held("ann", "streams"))
            for _ in range(5):
                with pytest.raises(DragomanError):
                    ten.enter_context(quotas.held("ann", "streams"))

    def make() -> None:
        for _ in range(40):
            with contextlib.suppress(DragomanError):
                quotas.count_session("ann")

    with caplog.at_level(logging.WARNING):
        flood()
        assert [one.getMessage() for one in caplog.records] == [
            "key `ann` is refused more streams: see [limits]; not logged again until it has less"
        ]
        flood()
        assert len(caplog.records) == 2
        make()
        make()
        assert len(caplog.records) == 3
        time.seconds += 120
        make()
        assert len(caplog.records) == 4


FACES: Mapping[str, tuple[str, str, Mapping[str, Any] | None]] = {
    "eve": ("GET", "eve/v1/session/{session}/stream", None),
    "engine": (
        "POST",
        "execute",
        {"message": "script: approve", "task_id": "another", "stream": True},
    ),
    "herm": ("GET", "v1/sessions/{session}/events/stream", None),
    "agui": (
        "POST",
        "",
        {
            "threadId": "t",
            "runId": "r",
            "messages": [{"id": "m", "role": "user", "content": "hello"}],
            "tools": [],
            "context": [],
            "state": {},
            "forwardedProps": {},
        },
    ),
    "aisdk": (
        "POST",
        "",
        {
            "id": "t",
            "trigger": "submit-message",
            "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
        },
    ),
}
"""Dialect -> the request of a stream."""


@contextlib.asynccontextmanager
async def limited(**limits: int) -> AsyncIterator[Proxied]:
    keys = (key_of("ann"), key_of("bob"), key_of("ops", admin=True))
    async with proxied(limits=limits, keys=keys) as running:
        yield running


@contextlib.asynccontextmanager
async def opened(
    dragoman: Proxied, key: str, method: str, path: str, body: Any = None
) -> AsyncIterator[ClientResponse]:
    """Open a stream, and read nothing of it."""
    async with dragoman.http.request(
        method, dragoman.url + path, json=body, headers=credential(f"k-{key}")
    ) as response:
        yield response


@pytest.mark.parametrize("dialect", FACES)
async def test_a_stream_too_many_is_refused_in_the_dialects_form_before_anything_is_taken(
    dialect: str,
) -> None:
    method, path, body = FACES[dialect]
    async with limited(streams_per_key=1) as dragoman, asyncio.timeout(SOON_S):
        first = await dragoman.say("script: approve", key="k-ann")
        await dragoman.asked(first)
        eve = f"/as/eve/to/engine/eve/v1/session/{first}/stream"
        before = len(dragoman.sessions)
        url = f"/as/{dialect}/to/engine/{path.format(session=first)}".rstrip("/")
        async with opened(dragoman, "ann", "GET", eve) as response:
            assert response.status == 200
            async with opened(dragoman, "ann", method, url, body) as second:
                assert second.status == 429, await second.text()
                assert int(second.headers["Retry-After"]) >= 1
                # The errors of AI SDK UI are texts.
                texts = dialect == "aisdk"
                assert second.content_type == ("text/plain" if texts else "application/json")
                assert "all of its streams open" in await second.text()
            assert len(dragoman.sessions) == before
            # Others notice nothing.
            other = await dragoman.say("hello", key="k-bob")
            beside = f"/as/eve/to/engine/eve/v1/session/{other}/stream"
            async with opened(dragoman, "bob", "GET", beside) as theirs:
                assert theirs.status == 200
        await until(lambda: not dragoman.sessions.quotas._open)
        async with opened(dragoman, "ann", "GET", eve) as response:
            assert response.status == 200


async def test_a_reader_of_the_control_api_too_many_is_refused() -> None:
    async with limited(readers_per_key=1) as dragoman, asyncio.timeout(SOON_S):
        session_id = await dragoman.say("hello", key="k-ann")
        events = f"/api/v1/sessions/{session_id}/events"
        async with opened(dragoman, "ann", "GET", f"{events}?follow=1") as response:
            assert response.status == 200
            async with opened(dragoman, "ann", "GET", events) as second:
                assert second.status == 429
                assert int(second.headers["Retry-After"]) >= 1
                error = (await second.json())["error"]
                assert error["code"] == "rate_limited"
                assert "all of its readers of the control API open, 1;" in error["message"]
            # What ends by itself, and an administrator, are not in its way.
            status, _ = await dragoman.request("GET", f"/api/v1/sessions/{session_id}", key="k-ann")
            assert status == 200
            async with opened(dragoman, "ops", "GET", events) as theirs:
                assert theirs.status == 200


async def test_a_session_too_many_within_a_minute_is_refused_and_an_old_one_goes_on() -> None:
    async with limited(new_sessions_per_minute=1) as dragoman, asyncio.timeout(SOON_S):
        session_id = await dragoman.say("hello", key="k-ann")
        path = "/as/eve/to/engine/eve/v1/session"
        async with opened(dragoman, "ann", "POST", path, {"message": "hello"}) as second:
            assert second.status == 429
            assert int(second.headers["Retry-After"]) >= 1
        await dragoman.say("again", session_id, key="k-ann")
        await dragoman.say("hello", key="k-bob")
