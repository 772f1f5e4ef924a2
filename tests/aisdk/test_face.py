"""The AI SDK face over HTTP: what is new of a history, coming back, answers, and refusals."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from adapters.model import events as ev
from adapters.model.commands import AnswerInteraction
from tests.support.aisdk_client import AisdkClient, Body, Page, Refused, tools_of
from tests.support.alone import Alone
from tests.support.clocks import SPEED
from tests.support.dragoman import starts
from tests.support.waiting import SOON_S, settled, until


class Face(Alone):
    """A Dragoman as pages see it."""

    def __init__(
        self, journal: Any, *, dialect: str = "engine", pace: float = 0.0, settings: Any = None
    ) -> None:
        speed = 1.0 if pace else SPEED
        super().__init__(
            journal, dialect=dialect, options={"pace": pace}, settings=settings, speed=speed
        )

    @property
    def url(self) -> str:
        return self.face("aisdk", self.dialect)


serve = starts(Face)


class Talk:
    """A page that posts to a face, at one of its addresses."""

    def __init__(self, face: Face, chat: str = "c-1", *, at: str = "/api/chat") -> None:
        profile = "5" if at.startswith("/v5") else "6"
        self.page = Page(chat, profile=profile)
        self.client = AisdkClient(face.http, face.url + at)

    async def post(self, body: Body) -> list[dict[str, Any]]:
        async with asyncio.timeout(SOON_S), aclosing(self.client.post(self.page, body)) as chunks:
            return [chunk async for chunk in chunks]

    async def say(self, words: str, **more: Any) -> list[dict[str, Any]]:
        return await self.post(self.page.say(words, **more))

    async def resume(self, **query: str) -> list[dict[str, Any]]:
        resumed = self.client.resume(self.page, **query)
        async with asyncio.timeout(SOON_S), aclosing(resumed) as chunks:
            return [chunk async for chunk in chunks]

    async def approve(self, yes: bool) -> list[dict[str, Any]]:
        part = next(p for p in self.calls if p["state"] == "approval-requested")
        return await self.post(self.page.go_on(self.page.approve(part["approval"]["id"], yes)))

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [part for m in self.page.messages for part in tools_of(m["parts"])]

    @property
    def text(self) -> str:
        parts = [p for m in self.page.messages if m["role"] == "assistant" for p in m["parts"]]
        return "".join(part["text"] for part in parts if part["type"] == "text")


@pytest.fixture
async def face(serve: Any) -> Face:
    started: Face = await serve("memory:")
    return started


def said(face: Face) -> list[str]:
    sent = [json.loads(one.body) for one in face.backend.received if one.route == "execute"]
    return [one["message"] for one in sent]


@pytest.mark.parametrize("at", ["/api/chat", "", "/v5/api/chat", "/v5", "/api/chat/"])
async def test_only_what_is_new_is_said_at_each_address(face: Face, at: str) -> None:
    talk = Talk(face, at=at.rstrip("/"))
    await talk.say("one")
    await talk.say("two")
    assert said(face) == ["one", "two"]


async def test_words_are_said_again_where_the_page_asks_for_it(face: Face) -> None:
    talk = Talk(face)
    await talk.say("one")
    await talk.post(talk.page.regenerate())
    await talk.say("two", edits="client-1")
    assert said(face) == ["one", "one", "two"]
    assert [m["role"] for m in talk.page.messages] == ["user", "assistant"]


async def test_an_answer_takes_the_place_of_the_first_where_all_is_sent(serve: Any) -> None:
    face: Face = await serve("memory:", dialect="agui")
    talk = Talk(face)
    await talk.say("one")
    await talk.say("two")
    await talk.post(talk.page.regenerate())
    await talk.say("three", edits=talk.page.messages[0]["id"])
    bodies = [json.loads(one.body) for one in face.backend.received]
    sent = [[m["content"] for m in b["messages"] if m["role"] == "user"] for b in bodies]
    assert sent == [["one"], ["one", "two"], ["one", "two"], ["three"]]


async def test_the_same_request_again_is_a_repeat(face: Face) -> None:
    one, two = Talk(face), Talk(face)
    assert await one.say("one") == await two.say("one")
    assert said(face) == ["one"]


async def test_a_message_that_came_while_the_agent_worked_is_said_with_the_next_one(
    serve: Any,
) -> None:
    face = await serve("memory:", pace=0.05)
    first, second = Talk(face), Talk(face)
    answer = asyncio.create_task(first.say("script: slow 20"))
    await until(lambda: len(said(face)) == 1)
    second.page.prefix = "another"
    with pytest.raises(Refused) as caught:
        await second.say("me too")
    assert (caught.value.status, caught.value.code) == (409, "busy")
    await answer
    await second.say("and me")
    await second.say("and now?")
    assert said(face) == ["script: slow 20", "me too\nand me", "and now?"]


async def test_an_approval_is_answered_by_the_history_and_goes_on_in_its_message(
    face: Face,
) -> None:
    talk = Talk(face)
    await talk.say("script: approve")
    await talk.approve(True)
    (call,) = talk.calls
    assert call["state"] == "output-available"
    assert "Done, 4.1 GB freed." in talk.text
    assert len(talk.page.messages) == 2
    # It stands in every later history.
    await talk.say("two")
    assert said(face)[-1] == "two"


async def test_an_answer_that_its_page_has_seen_to_the_end_is_nothing_new(face: Face) -> None:
    talk = Talk(face)
    await talk.say("script: ask")
    (ask,) = talk.calls
    await talk.post(talk.page.go_on(talk.page.output(ask["toolCallId"], "07:40")))
    text = talk.text
    assert text
    # Another page may say the same, and has what came of it already.
    body = {**talk.page.go_on(), "messageId": None}
    body["messages"].append({"id": "e", "role": "user", "parts": []})
    with pytest.raises(Refused, match="neither a text nor a file"):
        await talk.post(body)
    part = {**talk.calls[0], "output": "07:41"}
    talk.page.messages[-1]["parts"][talk.page.messages[-1]["parts"].index(talk.calls[0])] = part
    with pytest.raises(Refused, match="nothing new"):
        await talk.post(talk.page.go_on())
    assert talk.text == text


async def test_release_5_answers_by_the_output_of_a_call(face: Face) -> None:
    talk = Talk(face, at="/v5/api/chat")
    await talk.say("script: approve")
    ask = next(call for call in talk.calls if call["type"] == "tool-dragoman_ask")
    message = talk.page.output(ask["toolCallId"], {"approved": False})
    # The stock predicate posts it.
    assert talk.page.resends() == ["tool calls"]
    await talk.post(talk.page.go_on(message))
    assert "Understood" in talk.text


async def test_a_page_that_comes_back_is_shown_what_is_open_and_nothing_that_is_read(
    face: Face,
) -> None:
    talk, again = Talk(face), Talk(face)
    assert await talk.resume() == []
    await talk.say("script: approve")
    # Who stores its messages has the request; the vendor's servers tell such a page nothing.
    assert await talk.resume() == []
    await again.resume(on_return="replay")
    assert [call["state"] for call in again.calls] == ["approval-requested"]
    await again.approve(True)
    assert await again.resume() == []
    # The first page answers late, and is given what came of it.
    await talk.approve(False)
    assert talk.calls[0]["state"] == "output-available"
    assert talk.text == again.text


async def test_what_another_dialect_went_on_with_is_shown(face: Face) -> None:
    talk = Talk(face)
    start = (await talk.say("script: approve"))[0]
    session = start["messageMetadata"]["dragoman"]["session"]
    at_work = await face.live(session)
    (ask,) = at_work.open_interactions()
    answer = AnswerInteraction(request_id=ask.request_id, decision="allow")
    await at_work.submit([answer], by="somebody", face="herm")
    await settled(at_work)
    await talk.resume()
    assert "Done, 4.1 GB freed." in talk.text


async def test_a_turn_goes_on_when_its_page_leaves_and_is_shown_when_it_is_back(
    serve: Any,
) -> None:
    face = await serve("memory:", pace=0.02)
    talk = Talk(face)
    body = talk.page.say("script: slow 10")
    chunks = talk.client.post(talk.page, body)
    session = (await anext(chunks))["messageMetadata"]["dragoman"]["session"]
    await chunks.aclose()
    await settled(await face.live(session))
    again = Talk(face)
    again.page.messages = [m for m in talk.page.messages if m["role"] == "user"]
    await again.resume()
    assert "tick 9 " in again.text
    assert await again.resume() == []


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_page_stops_by_a_route_or_by_leaving_where_it_says_so(
    serve: Any, leaves: bool
) -> None:
    face = await serve("memory:", dialect="eve", pace=0.05)
    talk = Talk(face)
    if leaves:
        talk.client.url += "?on_leave=stop"
    chunks = talk.client.post(talk.page, talk.page.say("script: slow 200"))
    session = (await anext(chunks))["messageMetadata"]["dragoman"]["session"]
    if leaves:
        async for chunk in chunks:
            if chunk["type"] == "text-delta":
                break
        await chunks.aclose()
    else:
        stopping = asyncio.create_task(talk.client.stop(talk.page))
        kinds = [chunk["type"] async for chunk in chunks]
        await stopping
        assert kinds[-2:] == ["abort", "finish"]
    await settled(await face.live(session))
    (ended,) = [e for e in await face.log(session) if isinstance(e, ev.TurnEnded)]
    assert ended.outcome == "interrupted"


async def test_a_chat_outlives_a_restart_and_an_answer_that_nobody_read_is_shown(
    serve: Any, tmp_path: Path
) -> None:
    face = await serve(f"sqlite:///{tmp_path}/j.db", pace=0.02)
    talk = Talk(face)
    body = talk.page.say("script: slow 30")
    async with face.http.post(talk.client.url, json=body) as answer:
        start = await answer.content.readuntil(b"text-delta")
        await face.sessions.aclose()
        rest = await answer.read()
    assert b'{"type":"error"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    (session,) = set(re.findall(r"dgs_[a-z0-9]+", start.decode()))
    await face.restart()
    await settled(await face.live(session))
    again = Talk(face)
    again.page.messages = talk.page.messages[:1]
    await again.resume()
    assert "tick 29 " in again.text
    assert await again.resume() == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/chat", 405, "method_not_allowed"),
        ("POST", "/api/completion", 404, "not_found"),
        ("DELETE", "/api/chat/c-1/stream", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_there_is_refused(
    face: Face, method: str, path: str, status: int, code: str
) -> None:
    client = AisdkClient(face.http, face.url)
    with pytest.raises(Refused) as caught:
        await client.ask(method, face.url + path, {})
    assert (caught.value.status, caught.value.code) == (status, code)


async def test_a_history_that_says_nothing_is_refused_and_ends_every_loop(face: Face) -> None:
    talk = Talk(face)
    await talk.say("one")
    with pytest.raises(Refused, match="nothing new"):
        await talk.post(talk.page.go_on())
    part = {
        "type": "tool-x",
        "toolCallId": "k",
        "state": "approval-responded",
        "input": {},
        "approval": {"id": "never", "approved": True},
    }
    talk.page.messages[-1]["parts"].append(part)
    with pytest.raises(Refused) as caught:
        await talk.post(talk.page.go_on())
    assert (caught.value.status, caught.value.code) == (404, "unknown_interaction")
    assert said(face) == ["one"]


async def test_words_that_are_said_again_answer_no_question(face: Face) -> None:
    talk = Talk(face)
    await talk.say("script: askopen")
    await talk.post(talk.page.regenerate())
    assert said(face) == ["script: askopen"] * 2
    await talk.say("Ada")
    assert "The ticket carries the name Ada." in talk.text


async def test_words_wait_until_what_is_asked_is_answered_where_a_setting_says_so(
    serve: Any,
) -> None:
    face = await serve("memory:", settings={"aisdk": {"words_while_asked": "refuse"}})
    talk = Talk(face)
    await talk.say("script: approve")
    with pytest.raises(Refused) as caught:
        await talk.say("what about the cat?")
    assert (caught.value.status, caught.value.code) == (409, "paused")
    # Both come in one request, and the answer first.
    del talk.page.messages[-1]
    asked = talk.calls[0]["approval"]["id"]
    talk.page.approve(asked, True)
    await talk.say("what about the cat?")
    assert "Done, 4.1 GB freed." in talk.text
    assert "You said: “what about the cat?”." in talk.text
    assert said(face)[-1] == "what about the cat?"


async def test_a_body_over_its_limit_is_refused_and_says_nothing(face: Face) -> None:
    talk = Talk(face)
    with pytest.raises(Refused) as caught:
        await talk.say("x" * 2_000_000)
    assert (caught.value.status, caught.value.code) == (413, "too_large")
    assert said(face) == []
