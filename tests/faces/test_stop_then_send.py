"""A person presses stop, types and sends, while the backend is still at the end of the turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from yarl import URL

from adapters.model import events as ev
from proxy.app.app import create_app
from tests.faces.test_refused_messages import PAGES, AguiPage, Face, names, said
from tests.support.dragoman import starts
from tests.support.serving import serve as serve_app
from tests.support.waiting import SOON_S, settled

serve = starts(Face)


async def working(
    serve: Any, page: type[AguiPage], pace: float = 0.2
) -> tuple[Face, AguiPage, str]:
    """Return a page whose agent is in the middle of a long answer, a word every `pace` seconds."""
    face = await serve("memory:", options={"pace": pace}, speed=1.0)
    client = page(face)
    client.say("script: slow 200")
    return face, client, face.face(client.dialect, face.dialect)


async def accepted(face: Face, session_id: str) -> int:
    log = await face.log(session_id)
    return sum(isinstance(one, ev.InputAccepted) and one.kind == "message" for one in log)


async def ends(face: Face) -> list[ev.TurnEnded]:
    (row,) = await face.sessions.journal.sessions(limit=10)
    live = await face.live(row.id)
    await settled(live)
    return [one for one in await face.log(row.id) if isinstance(one, ev.TurnEnded)]


@contextlib.asynccontextmanager
async def other_listener(face: Face) -> AsyncIterator[str]:
    """Serve the same sessions at another address, as to the other processes of a cluster."""
    runner, port = await serve_app(create_app(face.sessions))
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("listener", ["the same", "another"])
@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_words_behind_a_page_that_left_wait_for_the_end_of_its_turn(
    serve: Any, page: type[AguiPage], listener: str
) -> None:
    face, client, url = await working(serve, page)
    async with face.http.post(f"{url}?on_leave=stop", json=client.body) as response:
        await response.content.readuntil(b"tick")
        response.close()
    client.hear("tick 0")
    client.say("what is new?")
    async with asyncio.timeout(SOON_S), other_listener(face) as other:
        if listener == "another":
            url = other + URL(url).path
        async with face.http.post(f"{url}?on_leave=stop", json=client.body) as response:
            text = await response.text()
    assert (response.status, "what is new?" in text) == (200, True)
    # The answer is one of its own: nothing of the turn that was stopped stands in it.
    assert "tick" not in text
    assert [one.outcome for one in await ends(face)] == ["interrupted", "completed"]
    assert said(face) == ["script: slow 200", "what is new?"]


async def test_words_behind_a_stop_of_a_page_wait_for_the_end_of_its_turn(serve: Any) -> None:
    _, page = PAGES
    # The turn ends with its next word: all is said before, on a slow machine too.
    face, client, url = await working(serve, page, pace=4.0)
    async with face.http.post(url, json=client.body) as response:
        await response.content.readuntil(b"tick")
        async with face.http.post(f"{url}/{client.body['id']}/stop") as stopped:
            assert await stopped.json() == {"success": True}
        client.hear("tick 0")
        (row,) = await face.sessions.journal.sessions(limit=10)
        answers = []
        for words in ("one", "two"):
            client.say(words)
            answers.append(asyncio.create_task(client.post()))
            while await accepted(face, row.id) < 1 + len(answers):
                assert not answers[-1].done(), answers[-1].result()
                await asyncio.sleep(0.01)
        rest = await response.text()
    async with asyncio.timeout(SOON_S):
        (_, first), (_, second) = await asyncio.gather(*answers)
    assert '"type":"abort"' in rest
    assert ("“one”" in first, "“two”" in first) == (True, False)
    assert ("“one”" in second, "“two”" in second) == (False, True)
    assert [one.outcome for one in await ends(face)] == ["interrupted", "completed", "completed"]


@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_a_page_that_stays_keeps_its_turn(serve: Any, page: type[AguiPage]) -> None:
    face, client, url = await working(serve, page)
    async with face.http.post(f"{url}?on_leave=stop", json=client.body) as response:
        await response.content.readuntil(b"tick")
        other = page(face)
        other.say("and me?")
        other.messages[0]["id"] = "b-0"
        async with face.http.post(f"{url}?on_leave=stop", json=other.body) as refused:
            assert refused.status == 409
            assert "dgs_" not in await refused.text()
        response.close()
    assert [one.outcome for one in await ends(face)] == ["interrupted"]
