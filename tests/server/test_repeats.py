"""What counts as a repeat, on all faces: a lost reply, a declared retry, never equal content."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from adapters.model import events as ev
from proxy.scripted.faults import Faults, Status
from proxy.session import snapshots
from proxy.sessions.retention_limits import RetentionLimits
from tests.server.conftest import Serve
from tests.support.houses import HermAndEngine
from tests.support.journals import CrashJournal
from tests.support.serving import HOST
from tests.support.waiting import SOON_S, settled, until

FACES = ("eve", "engine", "herm")
TASK = "7f0c3a52-6a53-4c0e-9d2e-1f2f3a4b5c6d"
Body = Mapping[str, Any]


class Talk:
    """One conversation through one face, request by request."""

    def __init__(self, house: HermAndEngine, face: str) -> None:
        self.house = house
        self.face = face
        self.id = ""

    def _create(self, text: str) -> tuple[str, Body]:
        match self.face:
            case "eve":
                return "/eve/v1/session", {"message": text}
            case "engine":
                return "/execute", {"task_id": TASK, "message": text}
            case _:
                return "/v1/agents/agent_K4/sessions", {"title": text}

    def _say(self, text: str) -> tuple[str, Body]:
        match self.face:
            case "eve":
                return f"/eve/v1/session/{self.id}", {"message": text}
            case "engine":
                return self._create(text)
            case _:
                event = {"type": "user.message", "content": [{"type": "text", "text": text}]}
                return f"/v1/sessions/{self.id}/events", {"events": [event]}

    async def _post(
        self, path: str, body: Body, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        url = self.house.face(self.face, "herm") + path
        async with self.house.http.post(url, json=body, headers=headers) as response:
            return response.status, (await response.read()).decode()

    async def begin(self, text: str = "hi") -> None:
        """Make the session, and let a first turn end."""
        status, body = await self._post(*self._create(text))
        assert status < 300, body
        self.id = await self._newest()
        if self.face == "herm":
            await self.say(text)
        await settled(await self.house.live(self.id))

    async def say(self, text: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Say something and read the whole reply."""
        return await self._post(*self._say(text), headers)

    async def create(self, text: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Make a session."""
        return await self._post(*self._create(text), headers)

    async def say_and_leave(self, text: str, *, create: bool = False) -> None:
        """Send a request and be gone before there is a reply."""
        path, body = self._create(text) if create else self._say(text)
        url = self.house.face(self.face, "herm") + path
        data = json.dumps(body).encode()
        head = (
            f"POST {url.partition(str(self.house.port))[2]} HTTP/1.1\r\nHost: {HOST}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        _, writer = await asyncio.open_connection(HOST, self.house.port)
        writer.write(head.encode() + data)
        writer.close()

    async def _newest(self) -> str:
        return (await self.house.sessions.journal.sessions())[0].id

    async def messages(self) -> list[str]:
        """The ids of the messages that were accepted."""
        return [
            event.command_id
            for event in await self.house.log(self.id)
            if isinstance(event, ev.InputAccepted)
        ]


@pytest.mark.parametrize("face", FACES)
async def test_the_same_text_twice_is_two_turns(serve: Serve, face: str) -> None:
    house = await serve()
    talk = Talk(house, face)
    await talk.begin("continue")
    for _ in range(2):
        status, body = await talk.say("continue")
        assert status < 300, body
        await settled(await house.live(talk.id))
    assert len(house.posts()) == 3


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("face", FACES)
async def test_what_is_sent_again_because_its_reply_was_lost_is_done_once(
    serve: Serve, face: str, restart: bool
) -> None:
    house = await serve("sqlite")
    talk = Talk(house, face)
    await talk.begin()
    await talk.say_and_leave("continue")
    await until(lambda: len(house.posts()) == 2)
    await settled(await house.live(talk.id))
    if restart:
        await house.restart()
    status, body = await talk.say("continue")
    assert status < 300, body
    if face != "engine":
        first = (await talk.messages())[-1]
        assert first in body or json.loads(body)["data"][0]["status"] == "complete"
    else:
        assert "continue" in body
        assert '"phase":"completed"' in body
    assert len(house.posts()) == 2
    # The reply of the repeat was whole: from here on the same words are new ones.
    if restart:
        await house.restart()
    status, body = await talk.say("continue")
    assert status < 300, body
    await settled(await house.live(talk.id))
    assert len(house.posts()) == 3
    assert len(await talk.messages()) == 3


@pytest.mark.parametrize("face", ["eve", "herm"])
async def test_what_is_sent_again_is_done_once_however_often_its_reply_is_lost(
    serve: Serve, face: str
) -> None:
    house = await serve("sqlite")
    talk = Talk(house, face)
    await talk.begin()
    journal = house.sessions.journal
    key = (await journal.session(talk.id)).key
    for known in ("lost", "repeated"):
        await talk.say_and_leave("continue")
        async with asyncio.timeout(SOON_S):
            while known not in dict(await journal.aliases(key)):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
    status, body = await talk.say("continue")
    assert status < 300, body
    await settled(await house.live(talk.id))
    assert len(house.posts()) == 2


@pytest.mark.parametrize("face", ["eve", "herm"])
async def test_a_reply_that_finds_no_connection_is_lost_and_no_fault_of_ours(
    serve: Serve,
    face: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = await serve("sqlite")
    talk = Talk(house, face)
    await talk.begin()
    write_eof = web.Response.write_eof

    async def broken(response: web.Response, data: bytes = b"") -> None:
        request = response._req
        assert request is not None
        if not request.path.startswith("/as/"):
            await write_eof(response, data)
            return
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError

    with monkeypatch.context() as patched:
        patched.setattr(web.Response, "write_eof", broken)
        with pytest.raises(aiohttp.ClientError):
            await talk.say("continue")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    status, body = await talk.say("continue")
    assert status < 300, body
    await settled(await house.live(talk.id))
    assert len(house.posts()) == 2


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("face", ["eve", "herm"])
async def test_a_create_whose_reply_was_lost_makes_one_session(
    serve: Serve, face: str, restart: bool
) -> None:
    house = await serve("sqlite")
    talk = Talk(house, face)

    async def made() -> int:
        return len(await house.sessions.journal.sessions())

    async with house.http.get(house.face(face, "herm")):
        # The first request to a face waits for it to be loaded, and its client leaves at once.
        pass
    await talk.say_and_leave("hello", create=True)
    await until(lambda: len(house.sessions) == 1)
    session = (await house.sessions.journal.sessions())[0].id
    await settled(await house.live(session))
    if restart:
        await house.restart()
    status, body = await talk.create("hello")
    assert status < 300, body
    assert session in body
    assert await made() == 1
    await talk.create("hello")
    assert await made() == 2


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    "header", [{"x-stainless-retry-count": "1"}, {"Idempotency-Key": "k-1"}], ids=["retry", "key"]
)
async def test_a_declared_repeat_is_done_once(
    serve: Serve, face: str, header: Mapping[str, str], restart: bool
) -> None:
    house = await serve("sqlite")
    talk = Talk(house, face)
    await talk.begin()
    first = header if "Idempotency-Key" in header else {"x-stainless-retry-count": "0"}
    before = await talk.say("continue", first)
    await settled(await house.live(talk.id))
    if restart:
        await house.restart()
    after = await talk.say("continue", header)
    assert after[0] == before[0]
    assert len(house.posts()) == 2
    if face == "engine":
        # The stream of that turn, frame by frame.
        assert after == before
    # What was answered to its first try again is not a repeat of that, except by a key.
    status, body = await talk.say("continue", header)
    assert status < 300, body
    await settled(await house.live(talk.id))
    assert len(house.posts()) == (2 if "Idempotency-Key" in header else 3)


@pytest.mark.parametrize("face", FACES)
async def test_what_is_in_a_snapshot_is_recognised_too(
    serve: Serve, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_ENTRIES", 2)
    house = await serve("sqlite")
    talk = Talk(house, face)
    await talk.begin()
    declared = {"Idempotency-Key": "k-1"}
    for text, headers in (("one", declared), ("two", {}), ("three", {})):
        await talk.say(text, headers)
        await settled(await house.live(talk.id))
    await house.restart()
    status, body = await talk.say("one", declared)
    assert status < 300, body
    status, body = await talk.say("two", {"x-stainless-retry-count": "1"})
    assert status < 300, body
    assert len(house.posts()) == 4


@pytest.fixture
async def begun(serve: Serve, face: str) -> Talk:
    """A conversation of one turn."""
    talk = Talk(await serve("sqlite"), face)
    await talk.begin()
    return talk


@pytest.mark.parametrize("face", FACES)
async def test_two_with_one_key_at_the_same_time_are_one(begun: Talk) -> None:
    headers = {"Idempotency-Key": "k-1"}
    first, second = await asyncio.gather(begun.say("go", headers), begun.say("go", headers))
    assert first[0] == second[0] < 300
    await settled(await begun.house.live(begun.id))
    assert len(begun.house.posts()) == 2


@pytest.mark.parametrize("face", FACES)
async def test_a_key_of_another_request_is_refused(begun: Talk) -> None:
    headers = {"Idempotency-Key": "k-1"}
    await begun.say("one", headers)
    await settled(await begun.house.live(begun.id))
    status, body = await begun.say("two", headers)
    assert status == 409
    assert "idempotency_key_conflict" in body.lower()
    assert len(begun.house.posts()) == 2


@pytest.mark.parametrize("face", ["eve", "herm"])
async def test_a_create_with_a_key_is_one(serve: Serve, face: str) -> None:
    house = await serve("sqlite")
    talk = Talk(house, face)
    headers = {"Idempotency-Key": "k-1"}
    await talk.create("hello", headers)
    session = (await house.sessions.journal.sessions())[0].id
    await settled(await house.live(session))
    await house.restart()
    _, body = await talk.create("hello", headers)
    assert session in body
    status, _ = await talk.create("another", headers)
    assert status == 409
    assert len(await house.sessions.journal.sessions()) == 1


@pytest.mark.parametrize("face", ["eve", "herm"])
async def test_the_key_of_a_create_holds_as_long_as_its_session(
    serve: Serve, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.base.repeats.REQUESTS_KEPT", 1)
    house = await serve("sqlite")
    talk = Talk(house, face)
    headers = {"Idempotency-Key": "k-1"}
    await talk.create("hello", headers)
    (talk.id,) = [row.id for row in await house.sessions.journal.sessions()]
    await settled(await house.live(talk.id))
    await talk.say("more")
    await settled(await house.live(talk.id))
    _, body = await talk.create("hello", headers)
    assert talk.id in body
    await house.sessions.prune(RetentionLimits(age=-1))
    status, _ = await talk.create("hello", headers)
    assert status == 410
    assert [row.id for row in await house.sessions.journal.sessions()] == [talk.id]


async def test_a_create_whose_message_was_refused_makes_another_session(
    serve: Serve,
) -> None:
    house = await serve(herm={"faults": Faults({("post", 1): Status(401)})})
    talk = Talk(house, "eve")
    for count in ("0", "1"):
        status, _ = await talk.create("hello", {"x-stainless-retry-count": count})
        assert status == 202
        await settled(await house.live(await talk._newest()))
    assert len(await house.sessions.journal.sessions()) == 2


@pytest.mark.parametrize("face", FACES)
async def test_a_crash_between_what_was_accepted_and_its_reply(serve: Serve, face: str) -> None:
    journal = CrashJournal()
    house = await serve(journal, speed=20.0)
    talk = Talk(house, face)
    await talk.begin()
    # The message is stored, and nobody hears of it.
    journal.crash_at(1, confirmed=False)
    declared = {"Idempotency-Key": "k"}
    lost = asyncio.create_task(talk.say("continue", declared))
    await journal.crashed.wait()
    await house.restart()
    with pytest.raises(aiohttp.ClientError):
        await lost
    status, body = await talk.say("continue", declared)
    assert status < 300, body
    await settled(await house.live(talk.id))
    assert len(await talk.messages()) == 2
    # Without a key nobody can know whether the reply was written, so it is said twice.
    await talk.say("continue")
    assert len(await talk.messages()) == 3
