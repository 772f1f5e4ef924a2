"""`memory = "page"`: a frontend whose own history counts, and not what the session has."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.model import events as ev
from tests.faces.test_refused_messages import PAGES, AguiPage, names, said
from tests.support.alone import Alone
from tests.support.clocks import SPEED
from tests.support.dragoman import starts

HISTORY = "This conversation began on another system."


class Face(Alone):
    def __init__(self, journal: Any, *, settings: Any) -> None:
        super().__init__(journal, dialect="herm", settings=settings, speed=SPEED)


serve = starts(Face)


def settings(page: type[AguiPage], memory: str = "page") -> dict[str, Any]:
    return {page.dialect: {"memory": memory}}


async def sessions(face: Face) -> list[str]:
    rows = await face.sessions.journal.sessions(limit=10)
    return [row.id for row in sorted(rows, key=lambda row: row.key)]


@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_a_page_that_forgets_begins_a_conversation_under_the_same_name(
    serve: Any, page: type[AguiPage]
) -> None:
    face = await serve("memory:", settings=settings(page))
    client = page(face)
    await client.go_on("one")
    first = client.messages[-1]["id"] = _id_in(await client.go_on("two"))
    assert first
    assert len(await sessions(face)) == 1
    client.messages = []
    client.posts = 0
    client.say("afresh")
    client.messages[0]["id"] = "n-1"
    _, text = await client.post()
    client.hear("An answer.")
    client.messages[-1]["id"] = _id_in(text)
    # Its repeat, and what is said behind it, are in the same one.
    repeat = page(face)
    repeat.messages = client.messages[:1]
    await repeat.post()
    await client.go_on("and on")
    one, two = await sessions(face)
    assert said(face) == ["one", "two", "afresh", "and on"]
    (follows,) = [e for e in await face.log(two) if getattr(e, "predecessor", None)]
    assert follows.predecessor == one
    assert not [e for e in await face.log(two) if isinstance(e, ev.Gap)]


@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_what_a_page_has_said_before_is_handed_over_with_its_first_words(
    serve: Any, page: type[AguiPage]
) -> None:
    face = await serve("memory:", settings=settings(page))
    client = page(face)
    client.say("My name is Ada.", pdf=True)
    client.hear("Hello, Ada.")
    await client.go_on("Who am I?")
    (told,) = said(face)
    assert HISTORY in told
    for words in ("User: My name is Ada.", "[file: ", "Assistant: Hello, Ada."):
        assert words in told
    assert told.endswith("|Who am I?")
    (session,) = await sessions(face)
    started, *_ = await face.log(session)
    assert isinstance(started, ev.SessionStarted)
    assert {one["what"] for one in (started.options or {})["history"]} >= {"messages of people"}
    received = [e for e in await face.log(session) if isinstance(e, ev.MessageReceived)]
    assert [ev.text_of(one.content) for one in received] == ["Who am I?"]


@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_the_session_has_the_memory_where_nothing_else_is_said(
    serve: Any, page: type[AguiPage]
) -> None:
    face = await serve("memory:", settings=settings(page, "server"))
    client = page(face)
    await client.go_on("one")
    client.messages = []
    client.say("two")
    client.messages[0]["id"] = "n-1"
    await client.post()
    assert len(await sessions(face)) == 1


async def test_a_route_may_have_it_otherwise(serve: Any) -> None:
    page = PAGES[0]
    routes = [{"name": "own", "backends": ["herm"], "agui": {"memory": "page"}}]
    face = await serve("memory:", settings={"routes": routes})
    client = page(face)
    client.say("My name is Ada.")
    client.hear("Hello, Ada.")
    await client.go_on("Who am I?")
    assert said(face) == ["Who am I?"]
    other = page(face)
    other.route = "own"
    other.messages = client.messages[:2]
    await other.go_on("Who am I?")
    assert HISTORY in said(face)[-1]


def _id_in(text: str) -> str:
    return text.rpartition('"messageId":"')[2].partition('"')[0]
