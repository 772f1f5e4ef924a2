"""What waits for a backend is bounded, whoever says how much."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

from adapters import commands as cmd
from adapters import events as ev
from adapters.base import Call
from adapters.errors import DragomanError, ErrorCode
from adapters.state import LogState
from proxy.errors import UpstreamUnavailable
from proxy.gate import SLICE_SECONDS
from proxy.session import admission as rooms
from proxy.session.record import NEXT_SECONDS
from proxy.session.work import RETRY_SECONDS
from proxy.upstream.client import Upstream
from tests.support.running import BACKEND, Run
from tests.support.waiting import SOON_S, settled, until


def said(text: str) -> cmd.SendMessage:
    return cmd.SendMessage(content=(ev.Text(text=text),), policy="queue")


async def test_messages_that_wait_have_a_bound_and_answers_pass_them(run: Run) -> None:
    running = await run("memory:")
    client = await running.eve().create("script: approve")
    asked = (await client.read_turn()).requests[0]["requestId"]
    session = await running.live(client.session_id)
    for number in range(rooms.MOST_WAITING):
        await session.submit([said(f"script: text {number}")], by="local", face="eve")
    with pytest.raises(DragomanError, match="128 messages waiting") as caught:
        await session.submit([said("one more")], by="local", face="eve")
    assert caught.value.code is ErrorCode.RATE_LIMITED
    assert len(session.queued()) == rooms.MOST_WAITING
    # What they wait for is not refused.
    answer = cmd.AnswerInteraction(request_id=asked, decision="allow")
    await session.submit([answer], by="local", face="eve")
    await until(lambda: len(session.state.inputs) < rooms.MOST_WAITING)
    await session.submit([said("one more")], by="local", face="eve")
    await session.submit([cmd.Delete()], by="local", face="eve")


async def test_long_messages_that_wait_have_a_bound_of_bytes(run: Run) -> None:
    running = await run("memory:", engine={"pace": 0.2})
    client = await running.eve().create("script: slow 1000")
    session = await running.live(client.session_id)
    await until(lambda: session.state.busy)
    text = "x" * (rooms.WAITING_BYTES // 2)
    for _ in range(2):
        await session.submit([said(text)], by="local", face="eve")
    with pytest.raises(DragomanError, match="2 messages waiting"):
        await session.submit([said("one more")], by="local", face="eve")
    await session.submit([cmd.Delete()], by="local", face="eve")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("eve/to/{b}/eve/v1/session/{s}", {"message": "more"}, 429),
        (
            "herm/to/{b}/v1/sessions/{s}/events",
            {"events": [{"type": "user.steer", "message": "more"}]},
            429,
        ),
    ],
    ids=["eve", "herm"],
)
async def test_a_face_says_in_its_own_form_when_to_come_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], status: int
) -> None:
    monkeypatch.setattr(rooms, "MOST_WAITING", 1)
    running = await run("memory:", engine={"pace": 0.2})
    client = await running.eve().create("script: slow 1000")
    session = await running.live(client.session_id)
    await until(lambda: session.state.busy)
    await session.submit([said("waits")], by="local", face="eve")
    url = f"http://127.0.0.1:{running.port}/as/{path.format(b=BACKEND, s=client.session_id)}"
    async with running.http.post(url, json=body) as response:
        answer = json.loads(await response.read())
        assert response.status == status, answer
        assert response.headers["Retry-After"] == "2"
    await session.submit([cmd.Delete()], by="local", face="eve")


async def test_stops_have_a_bound_too_and_a_deletion_finds_room(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "MOST_INPUTS", 3)
    running = await run("memory:", engine={"pace": 0.2})
    client = await running.eve().create("script: slow 1000")
    session = await running.live(client.session_id)
    await until(lambda: session.state.busy)
    for _ in range(3):
        await session.submit([said("waits")], by="local", face="eve")
    title = cmd.UpdateSession(title="x")
    with pytest.raises(DragomanError, match="3 inputs on their way"):
        await session.submit([title], by="local", face="eve")
    await session.submit([cmd.Delete()], by="local", face="eve")


async def test_a_command_with_a_file_is_stored_as_it_was_checked_last(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await run("memory:", engine={"pace": 0.2})
    client = await running.eve().create("script: slow 1000")
    session = await running.live(client.session_id)
    await until(lambda: session.state.busy)
    check, seen = rooms.Admission.check, list[cmd.SendMessage]()

    def changing(self: rooms.Admission, command: cmd.AnyCommand, state: LogState) -> Any:
        # What a steering is carried as depends on what runs.
        checked = check(self, command, state)
        assert isinstance(checked, cmd.SendMessage)
        content = (*checked.content, ev.Text(text=f"looked at {len(seen)}"))
        seen.append(checked.model_copy(update={"content": content}))
        return seen[-1]

    monkeypatch.setattr(rooms.Admission, "check", changing)
    await session.submit([said("look")], by="local", face="eve", blobs={"a": b"a file"})
    assert len(seen) == 2
    (row,) = session.queued()
    assert row.body == cmd.encode_command(seen[1])
    monkeypatch.undo()
    await session.submit([cmd.Delete()], by="local", face="eve")


async def test_who_comes_while_a_session_leaves_memory_is_told_when_to_come_again(run: Run) -> None:
    running = await run("memory:")
    client = await running.eve().create("hello")
    session = await running.live(client.session_id)
    await settled(session)
    session.close()
    with pytest.raises(DragomanError, match="loaded anew") as caught:
        await session.submit([said("more")], by="local", face="eve")
    assert caught.value.details == {"retry_after": RETRY_SECONDS}


async def test_who_waited_for_the_same_commit_goes_on_in_turns_with_room_for_it(run: Run) -> None:
    running = await run("memory:")
    client = await running.eve().create("hello")
    session = await running.live(client.session_id)
    await settled(session)
    done: list[int] = []
    each: list[int] = []

    async def tell(number: int) -> None:
        await session.tell([ev.SessionUpdated(thread_id=ev.MAIN, title=f"title {number}")])
        done.append(number)

    async def look() -> None:
        while True:
            each.append(len(done))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await asyncio.gather(*(tell(number) for number in range(60)))
    looking.cancel()
    # They are stored in one turn of the loop, and go on in their order.
    assert done == list(range(60))
    most = max(after - before for before, after in itertools.pairwise(each))
    assert most <= SLICE_SECONDS / NEXT_SECONDS + 1


async def test_streams_that_break_together_are_opened_again_a_few_in_a_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 24
    running = await run("memory:", engine={"pace": 0.2})
    clients = [running.eve().create("script: slow 1000") for _ in range(count)]
    ids = [client.session_id for client in await asyncio.gather(*clients)]
    sessions = [await running.live(session_id) for session_id in ids]
    await until(lambda: all(session.state.busy for session in sessions))
    again, waiting, opened = asyncio.Event(), list[float](), list[str]()
    each: list[int] = []

    async def sleep(seconds: float) -> None:
        if again.is_set():
            await asyncio.sleep(seconds)
        waiting.append(seconds)
        await again.wait()

    def stream(call: Call, *_: Any) -> Any:
        opened.append(call.name)
        raise UpstreamUnavailable("away", sent=False)

    async def look() -> None:
        while len(opened) < count:
            each.append(len(opened))
            await asyncio.sleep(0)

    monkeypatch.setattr(sessions[0]._clock, "sleep", sleep)
    await running.stop_backend(BACKEND)
    await until(lambda: len(waiting) >= count)
    monkeypatch.setattr(Upstream, "stream", staticmethod(stream))
    again.set()
    await asyncio.wait_for(look(), SOON_S)
    most = max(after - before for before, after in itertools.pairwise(each))
    assert most <= SLICE_SECONDS / NEXT_SECONDS + 1
    monkeypatch.undo()
