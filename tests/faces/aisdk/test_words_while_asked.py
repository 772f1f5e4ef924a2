"""A page whose person goes on while something is asked: types, asks for the answer again, edits, or
whose library ends the open call itself. The vendor's own server answers the words, and so do we."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from adapters.model import events as ev
from proxy.scripted.faults import Faults, Status
from tests.support.aisdk_client import AisdkClient, Body, Page, Refused, tools_of
from tests.support.alone import Alone
from tests.support.clocks import SPEED
from tests.support.dragoman import starts
from tests.support.each import each
from tests.support.waiting import SOON_S

ASKS = {
    "herm": ["approve", "approve2", "approve-twice", "ask", "custom", "secret", "sudo"],
    "eve": ["approve", "approve2", "approve-twice", "ask", "childask", "limit"],
    "engine": ["approve", "approve-twice", "ask"],
}
"""Scripts that ask something which words alone do not answer."""

CELLS = [(dialect, script) for dialect, scripts in ASKS.items() for script in scripts]

ECHO = {"ask": "Holding a seat on the never mind."}
"""What the agent says to words that answer an open question; else it repeats them."""


class Face(Alone):
    def __init__(self, journal: Any, *, dialect: str, options: Any = None) -> None:
        super().__init__(journal, dialect=dialect, options=options, speed=SPEED)

    @property
    def url(self) -> str:
        return self.face("aisdk", self.dialect)


serve = starts(Face)


class Person:
    """Somebody at a page."""

    def __init__(self, face: Face, at: str = "/api/chat", chat: str = "c-1") -> None:
        self.face = face
        self.page = Page(chat, profile="5" if at.startswith("/v5") else "6")
        self.client = AisdkClient(face.http, face.url + at)
        self.session = ""

    async def post(self, body: Body) -> list[dict[str, Any]]:
        async with asyncio.timeout(SOON_S), aclosing(self.client.post(self.page, body)) as chunks:
            found = [chunk async for chunk in chunks]
        ours = found[0].get("messageMetadata", {}).get("dragoman", {})
        self.session = ours.get("session", self.session)
        return found

    async def say(self, words: str) -> list[dict[str, Any]]:
        return await self.post(self.page.say(words))

    @property
    def text(self) -> str:
        parts = [p for m in self.page.messages if m["role"] == "assistant" for p in m["parts"]]
        return "".join(part["text"] for part in parts if part["type"] == "text")

    async def log(self, type_: type[Any]) -> list[Any]:
        return [one for one in await self.face.log(self.session) if isinstance(one, type_)]


def types(person: Person) -> Body:
    return person.page.say("never mind")


def edits(person: Person) -> Body:
    first = person.page.messages[0]
    body = person.page.say("never mind", edits=first["id"])
    return body


def edits_as_another(person: Person) -> Body:
    """As assistant-ui does: what led to the question is gone, and the words have a new id."""
    person.page.messages.clear()
    return person.page.say("never mind")


def closes(person: Person) -> Body:
    """As assistant-ui does: what is open is ended by the page, then the words are said. These
    answer nothing then."""
    for part in tools_of(person.page.messages[-1]["parts"]):
        if part["state"] in ("approval-requested", "input-available"):
            part["state"] = "output-error"
            part["errorText"] = "User cancelled tool call by sending a new message."
            part.pop("approval", None)
    return person.page.say("never mind")


@each("goes_on", [types, edits, edits_as_another, closes])
@each(("dialect", "script"), CELLS)
@pytest.mark.parametrize("at", ["/api/chat", "/v5/api/chat"])
async def test_words_are_answered_in_one_stream_whatever_is_asked(
    serve: Any, at: str, dialect: str, script: str, goes_on: Callable[[Person], Body]
) -> None:
    face = await serve("memory:", dialect=dialect)
    person = Person(face, at)
    await person.say(f"script: {script}")
    before = len(await person.log(ev.InteractionRequested))
    assert before > 0
    chunks = await person.post(goes_on(person))
    echo = "You said: “never mind”."
    assert (ECHO.get(script, echo) if goes_on is types else echo) in person.text
    assert (chunks[0]["type"], chunks[-1]["type"]) == ("start", "finish")
    live = await face.live(person.session)
    assert not live.open_interactions()
    for one in await person.log(ev.InteractionResolved):
        assert one.outcome in ("denied", "skipped", "cancelled", "answered", "withdrawn"), one
    await person.say("and now?")
    assert "You said: “and now?”." in person.text


@each(("dialect", "script"), CELLS)
async def test_what_is_asked_is_asked_again_where_the_answer_is_wanted_again(
    serve: Any, dialect: str, script: str
) -> None:
    face = await serve("memory:", dialect=dialect)
    person = Person(face)
    await person.say(f"script: {script}")
    await person.post(person.page.regenerate())
    live = await face.live(person.session)
    asked = [one.request_id for one in await person.log(ev.InteractionRequested)]
    open_ = [one.request_id for one in live.open_interactions()]
    assert open_
    assert asked[-len(open_) :] == open_
    # One that was asked for the second time, once the first was declined, is declined too.
    assert len(asked) == 2 * len(open_) + (script == "approve-twice")


async def test_words_beside_a_stream_that_waits_for_a_sign_in_have_one_of_their_own(
    serve: Any,
) -> None:
    face = await serve("memory:", dialect="eve")
    person = Person(face)
    async with asyncio.timeout(SOON_S):
        body = person.client.post(person.page, person.page.say("script: signin"))
        async with aclosing(body) as chunks:
            async for chunk in chunks:
                if chunk["type"] == "data-dragoman-request":
                    break
            chunks_of_words = asyncio.create_task(person.say("never mind"))
            async for chunk in chunks:
                last = chunk
        first = person.page.messages[1]["id"]
        begun, *_ = await chunks_of_words
    assert last["type"] in ("finish", "error")
    assert begun["messageId"] != first
    assert "You said: “never mind”." in person.text
    assert [one["role"] for one in person.page.messages] == ["user", "assistant"] * 2


async def test_a_turn_is_stopped_whose_request_the_backend_does_not_let_be_declined(
    serve: Any,
) -> None:
    faults = Faults({("post", 2): Status(422, body=b'{"error":{"code":"no","message":"No."}}')})
    face = await serve("memory:", dialect="herm", options={"faults": faults})
    person = Person(face)
    await person.say("script: approve")
    await person.say("never mind")
    assert "You said: “never mind”." in person.text
    (resolved,) = await person.log(ev.InteractionResolved)
    assert resolved.outcome == "cancelled"
    first, second = await person.log(ev.TurnEnded)
    assert (first.outcome, second.outcome) == ("interrupted", "completed")
    assert not (await face.live(person.session)).working


async def test_words_are_refused_where_nothing_can_be_declined_or_stopped(serve: Any) -> None:
    faults = Faults({("respond", number): Status(422) for number in (1, 2)})
    face = await serve("memory:", dialect="engine", options={"faults": faults})
    person = Person(face)
    await person.say("script: approve")
    for _ in range(2):
        last = (await person.say("never mind"))[-1]
        assert (last["type"], "could not be declined" in last["errorText"]) == ("error", True)
    await person.say("and now?")
    assert "You said: “never mind\nnever mind\nand now?”." in person.text


async def test_an_old_answer_that_does_not_fit_takes_no_words_down_with_it(serve: Any) -> None:
    face = await serve("memory:", dialect="herm")
    person = Person(face, "/v5/api/chat")
    await person.say("script: approve")
    asks = [part for part in tools_of(person.page.messages[-1]["parts"]) if "output" not in part]
    with pytest.raises(Refused):
        await person.post(person.page.go_on(person.page.output(asks[-1]["toolCallId"], 7)))
    await person.say("never mind")
    assert "You said: “never mind”." in person.text
    (resolved,) = await person.log(ev.InteractionResolved)
    assert resolved.outcome == "denied"
