"""What waits for a backend is bounded, no matter who says how much."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.state import LogState
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.session import admission as rooms
from tests.support.running import BACKEND, Run
from tests.support.waiting import settled, until


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
    assert caught.value.details == {"retry_after": 1}
