"""What becomes of a message that was refused, at the faces that get whole conversations: clients
keep it, and send it with every later request."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from proxy.scripted.faults import Faults, Status
from tests.support.alone import Alone
from tests.support.clocks import SPEED
from tests.support.dragoman import starts
from tests.support.each import each
from tests.support.waiting import SOON_S, until

PDF = "JVBERi0xLjQ="
"""Of a file, which no Herm takes."""


class Face(Alone):
    def __init__(
        self, journal: Any, *, dialect: str = "herm", options: Any = None, speed: float = SPEED
    ) -> None:
        super().__init__(journal, dialect=dialect, options=options, speed=speed)


serve = starts(Face)


class AguiPage:
    """A client of AG-UI with its conversation."""

    dialect = "agui"
    chat = "t"
    route = ""

    def __init__(self, face: Alone) -> None:
        self.face = face
        self.messages: list[dict[str, Any]] = []
        self.posts = 0

    def say(self, words: str, *, pdf: bool = False) -> None:
        file = {"type": "document", "source": {"type": "data", "value": PDF, "mimeType": "a/pdf"}}
        content = [{"type": "text", "text": words}, file] if pdf else words
        self.messages.append({"id": f"m-{len(self.messages)}", "role": "user", "content": content})

    @property
    def body(self) -> dict[str, Any]:
        self.posts += 1
        run: dict[str, Any] = {"threadId": self.chat, "runId": f"r-{self.posts}"}
        rest: dict[str, Any] = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
        return {**run, "messages": self.messages, **rest}

    def hear(self, words: str) -> None:
        name = f"a-{len(self.messages)}"
        self.messages.append({"id": name, "role": "assistant", "content": words})

    async def post(self) -> tuple[int, str]:
        url = self.face.face(self.dialect, self.route or self.face.dialect)
        async with (
            asyncio.timeout(SOON_S),
            self.face.http.post(url, data=io.BytesIO(json.dumps(self.body).encode())) as response,
        ):
            text = await response.text()
        return response.status, text

    async def go_on(self, words: str) -> str:
        """Say words that are answered."""
        self.say(words)
        status, text = await self.post()
        assert status == 200, text
        self.hear("An answer.")
        return text


class AisdkPage(AguiPage):
    """A page of AI SDK UI with its chat."""

    dialect = "aisdk"

    def say(self, words: str, *, pdf: bool = False) -> None:
        parts: list[dict[str, Any]] = [{"type": "text", "text": words}]
        if pdf:
            url = f"data:application/pdf;base64,{PDF}"
            parts.append({"type": "file", "mediaType": "application/pdf", "url": url})
        self.messages.append({"id": f"m-{len(self.messages)}", "role": "user", "parts": parts})

    def hear(self, words: str) -> None:
        parts = [{"type": "step-start"}, {"type": "text", "text": words, "state": "done"}]
        name = f"a-{len(self.messages)}"
        self.messages.append({"id": name, "role": "assistant", "parts": parts})

    @property
    def body(self) -> dict[str, Any]:
        return {"id": self.chat, "trigger": "submit-message", "messages": self.messages}


PAGES = [AguiPage, AisdkPage]
names = [page.dialect for page in PAGES]


def said(face: Face) -> list[str]:
    """Return what the backend was told, in order."""
    posted = [json.loads(one.body) for one in face.backend.received if one.route == "post"]
    events = [event for value in posted for event in value.get("events", [value])]
    return [
        "|".join(block["text"] for block in event["content"])
        for event in events
        if event["type"] == "user.message"
    ]


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_a_file_that_the_backend_cannot_take_is_refused_and_later_words_go_through(
    serve: Any, page: type[AguiPage], begun: bool
) -> None:
    face = await serve("memory:")
    client = page(face)
    if begun:
        await client.go_on("hello")
    client.say("read this", pdf=True)
    for _ in range(2):
        status, text = await client.post()
        assert (status, "a file is impossible" in text) == (400, True)
    told = await client.go_on("never mind the file")
    assert told.count("This message was refused") == 1
    assert "a file is impossible" in told
    assert "refused" not in await client.go_on("and now?")
    assert said(face)[-2:] == ["never mind the file", "and now?"]
    (row,) = await face.sessions.journal.sessions(limit=10)
    assert await face.sessions.journal.blobs(row.key) == []


@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_a_message_that_is_too_long_or_cannot_be_read_is_left_out(
    serve: Any, page: type[AguiPage]
) -> None:
    face = await serve("memory:")
    client = page(face)
    await client.go_on("hello")
    client.say("x" * 1_100_000)
    assert (await client.post())[0] == 413
    client.say("and this")
    broken: Any = {"parts": [{"type": "text", "text": 1}], "content": 1}
    client.messages[-1] |= broken
    assert (await client.post())[0] == 400
    told = await client.go_on("never mind")
    assert told.count("This message was refused") == 2
    assert said(face) == ["hello", "never mind"]


@each("status", [400, 413, 422])
@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_what_the_backend_refuses_for_what_it_is_is_told_once_and_never_said_again(
    serve: Any, page: type[AguiPage], status: int
) -> None:
    fault = Status(status, body=b'{"error":{"code":"no","message":"Not that."}}')
    face = await serve("memory:", options={"faults": Faults({("post", 2): fault})})
    client = page(face)
    await client.go_on("hello")
    client.say("something odd")
    assert "Not that." in (await client.post())[1]
    assert "Not that." not in await client.go_on("something else")
    assert said(face) == ["hello", "something odd", "something else"]


@pytest.mark.parametrize("heard", [False, True])
@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_what_the_backend_refuses_for_when_it_is_is_said_with_the_next_words(
    serve: Any, page: type[AguiPage], heard: bool
) -> None:
    fault = Status(404, body=b'{"error":{"code":"not_found","message":"Not now."}}')
    face = await serve("memory:", options={"faults": Faults({("post", 2): fault})})
    client = page(face)
    await client.go_on("hello")
    client.say("one")
    assert "Not now." in (await client.post())[1]
    if heard:
        # Some clients have begun a message of the agent by then.
        client.hear("")
    await client.go_on("two")
    assert said(face) == ["hello", "one", "one|two"]


@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_words_that_came_while_the_agent_worked_are_said_with_the_next_ones(
    serve: Any, page: type[AguiPage]
) -> None:
    face = await serve("memory:", options={"pace": 0.05}, speed=1.0)
    client, other = page(face), page(face)
    client.say("script: slow 10")
    answer = asyncio.create_task(client.post())

    await until(lambda: len(said(face)) == 1)
    other.say("me too")
    other.messages[0]["id"] = "b-0"
    status, text = await other.post()
    assert status == 409
    assert "dgs_" not in text
    await answer
    await other.go_on("and me")
    assert said(face) == ["script: slow 10", "me too|and me"]
