"""The heads of event streams: what stands between us and a page passes each piece on at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from adapters.contract.faces import Stream, Submit, TurnBody
from adapters.registry import faces
from tests.asks import filled
from tests.support.proxied import proxied
from tests.support.waiting import SOON_S
from tests.wire import served

STREAMS = ("text/event-stream", "application/x-ndjson")


def check(headers: Mapping[str, str], where: str) -> None:
    assert headers["Content-Type"].split(";")[0] in STREAMS, where
    said = headers["Cache-Control"].split(", ")
    # Else proxies that compress answers keep a stream back until it ends.
    assert "no-transform" in said, where
    assert {"no-cache", "no-store"} & set(said), where
    assert headers["X-Accel-Buffering"] == "no", where


@pytest.mark.parametrize("dialect", served())
async def test_no_stream_that_begins_with_a_message_may_be_changed_on_the_way(dialect: str) -> None:
    for route in faces()[dialect].routes:
        if isinstance(route.does, Submit) and isinstance(route.does.answer, TurnBody):
            check(route.does.answer.headers(), f"{route.method} {route.path}")


@pytest.mark.parametrize("dialect", served())
async def test_no_stream_that_is_read_may_be_changed_on_the_way(dialect: str) -> None:
    async with proxied() as dragoman:
        session = await dragoman.say("script: approve")
        await dragoman.asked(session)
        names = {"session": session, "agent": "engine", "thread": f"sthr_{session}"}
        for route in faces()[dialect].routes:
            if not isinstance(route.does, Stream):
                continue
            path = f"/as/{dialect}/to/engine{filled(route.path, names)}"
            query = filled(dict(route.example.query), names) if route.example else {}
            async with (
                asyncio.timeout(SOON_S),
                dragoman.http.get(dragoman.url + path, params=query) as answer,
            ):
                assert answer.status == 200, path
                check(answer.headers, path)


async def test_no_stream_of_the_control_api_may_be_changed_on_the_way() -> None:
    async with proxied() as dragoman:
        session = await dragoman.say("script: approve")
        await dragoman.asked(session)
        url = f"{dragoman.url}/api/v1/sessions/{session}/events"
        for accept in STREAMS:
            headers = {"Accept": accept}
            async with asyncio.timeout(SOON_S), dragoman.http.get(url, headers=headers) as answer:
                check(answer.headers, accept)
