"""A strict Engine client against Dragoman's Engine face, with a scripted Engine behind it."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import adapters.engine
from adapters.contract.mapping import parse_mapping
from adapters.model.commands import Delete
from proxy.scripted.faults import Faults, Status
from tests.faces.engine.conftest import Face, Serve, without_heartbeats
from tests.faults.faulty import Plan
from tests.support.dragoman import BACKEND_KEY
from tests.support.engine_client import (
    Disconnected,
    EngineClient,
    EngineEvent,
    EngineTurn,
    Expect,
    Refused,
)
from tests.support.engine_variants import VARIANTS
from tests.support.keys import key_of
from tests.support.serving import HOST
from tests.support.waiting import SOON_S, until

SCRIPTS = {
    "text": "completed",
    "reason": "completed",
    "tool": "completed",
    "tools": "completed",
    "toolfail": "completed",
    "approve": "completed",
    "approve2": "completed",
    "approve-twice": "completed",
    "ask": "completed",
    "askopen": "completed",
    "custom": "completed",
    "secret": "completed",
    "sudo": "completed",
    "child": "completed",
    "childask": "completed",
    "structured": "completed",
    "long 300": "completed",
    "fail": "failed",
    "failmid": "failed",
    "compact": "completed",
    "memory": "completed",
    "unknown": "completed",
}

MAPPING = parse_mapping((Path(adapters.engine.__file__).parent / "MAPPING.md").read_text())


OWN_NAMES = {"settings": {"task_ids_of": "local"}}
"""What lets the Engine know a task by the name that its frontend gave it."""


def first_choice(request: Mapping[str, Any]) -> dict[str, Any]:
    """The first answer that a request offers."""
    if request["kind"] == "permission":
        return {"answer": "yes"}
    return {"answer": (request.get("options") or ["Nadia"])[0]}


async def collect(stream: AsyncIterator[EngineEvent]) -> EngineTurn:
    turn = EngineTurn()
    async for seen in stream:
        turn.events.append(seen)
    return turn


async def body_of(face: Face, message: str, task_id: str, **members: Any) -> bytes:
    """The bytes of a whole turn, heartbeats left out."""
    request = {"message": message, "task_id": task_id, **members}
    async with face.post("/execute", json=request) as response:
        assert response.status == 200, await response.text()
        return without_heartbeats(await response.read())


def stamps(body: bytes) -> list[str]:
    """The stamp of each frame."""
    return re.findall(r'"timestamp":"([^"]*)"}\n\n', body.decode())


def milliseconds(stamp: str) -> int:
    """A stamp as `after` takes it."""
    return round(dt.datetime.fromisoformat(stamp).timestamp() * 1000)


# Turns.


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_strict_client_accepts_every_script(serve: Serve, script: str) -> None:
    face = await serve()
    turn = await face.client().turn(f"script: {script}", "task", first_choice)
    assert turn.outcome == SCRIPTS[script]
    assert turn.payloads("thread_lifecycle")[0]["task_id"] == "task"


@pytest.mark.parametrize("name", VARIANTS)
async def test_every_form_that_the_page_leaves_open_becomes_the_one_that_clients_expect(
    serve: Serve, name: str
) -> None:
    face = await serve(engine={"variant": VARIANTS[name]})
    for script in ("tool", "tools", "approve", "ask", "failmid", "unknown"):
        turn = await face.client().turn(f"script: {script}", f"task {script}", first_choice)
        assert turn.outcome == SCRIPTS[script]
        assert turn.text
        assert len(turn.payloads("tool_call")) == len(turn.payloads("tool_result"))
        assert len(turn.payloads("hitl_request")) == (script in ("approve", "ask"))


async def test_a_task_goes_on_where_it_was(serve: Serve) -> None:
    face = await serve(table=OWN_NAMES)
    client = face.client()
    first = await client.turn("script: text", "survey-12")
    second = await client.turn("script: text", "survey-12")
    assert first.text.endswith("(turn 1)")
    assert second.text.endswith("(turn 2)")
    assert {request["task_id"] for request in face.requests("execute")} == {"survey-12"}


@pytest.mark.parametrize("task_id", ["a/b?c#d", "日本 %2F", "x" * 4000, "a\nb"])
async def test_a_task_may_have_any_name(serve: Serve, task_id: str) -> None:
    face = await serve()
    turn = await face.client().turn("script: approve", task_id, ["yes"])
    assert turn.outcome == "completed"
    replayed = await collect(face.client().replay(0, task_id))
    assert replayed.text == turn.text


def masked_members(event: str) -> set[str]:
    """The members of an event that are ours, as the mapping lists them."""
    return {
        row.native.partition(".")[2]
        for row in MAPPING.events
        if row.native.startswith((f"{event}.", "(any event)."))
        and (row.masked or row.qualifier == "ours")
    }


IDS = re.compile(r"\b(?:hitl|call|turn)-[0-9a-f]+-\d+\b")


def comparable(turn: EngineTurn) -> list[tuple[str, dict[str, Any]]]:
    """The frames of a turn without what the mapping masks; ids by the order of their appearance."""
    numbers: dict[str, str] = {}
    frames = []
    for seen in turn.events:
        row = MAPPING.event.get(seen.event)
        if seen.event == "heartbeat" or (row is not None and row.masked):
            continue
        masked = masked_members(seen.event)
        payload = {name: value for name, value in seen.payload.items() if name not in masked}
        text = IDS.sub(
            lambda found: numbers.setdefault(found[0], f"id {len(numbers)}"), json.dumps(payload)
        )
        frames.append((seen.event, json.loads(text)))
    return frames


@pytest.mark.parametrize("script", SCRIPTS)
async def test_engine_in_and_engine_out_are_equal_but_for_what_is_ours(
    serve: Serve, script: str
) -> None:
    face = await serve()
    backend = face.settings.backends[0]
    direct = EngineClient(face.http, backend.url, BACKEND_KEY, expect=Expect(known_types=False))
    expected = await direct.turn(f"script: {script}", "direct", first_choice)
    turn = await face.client().turn(f"script: {script}", "proxied", first_choice)
    assert comparable(turn) == comparable(expected)


def test_the_mask_leaves_what_counts() -> None:
    assert masked_members("text_delta") == {"timestamp", "task_id", "turn_id"}
    assert "question" not in masked_members("hitl_request")
    assert "input" not in masked_members("tool_call")
    assert MAPPING.event["content_block_start"].masked


# Replay.


@pytest.mark.parametrize("journal", ["memory:", "sqlite"])
async def test_replay_from_every_stamp_gives_the_live_frames_byte_for_byte(
    serve: Serve, journal: str
) -> None:
    face = await serve(journal)
    bodies = [await body_of(face, f"script: {name}", "task") for name in ("tool", "failmid")]
    live = b"".join(bodies)
    for restart in (False, True):
        if restart and journal == "memory:":
            break
        if restart:
            await face.restart()
        assert await face.raw("after=0&task_id=task") == live
        for stamp in stamps(live):
            rest = live[live.index(stamp.encode() + b'"}\n\n') + len(stamp) + len(b'"}\n\n') :]
            assert await face.raw(f"after={milliseconds(stamp)}&task_id=task") == rest
            before = await face.raw(f"after={milliseconds(stamp) - 1}&task_id=task")
            assert before.endswith(rest)
            assert before != rest


async def test_a_reader_of_replay_follows_the_running_turn_to_its_end(serve: Serve) -> None:
    face = await serve()
    client = face.client()
    async with aclosing(client.execute("script: approve", "task")) as live:
        seen = [await anext(live)]
        while seen[-1].event != "hitl_request":
            seen.append(await anext(live))
        reader = asyncio.ensure_future(collect(client.replay(0, "task")))
        await client.respond("task", "yes")
        seen += [event async for event in live]
    replayed = await reader
    assert [e for e in replayed.events if e.event != "heartbeat"] == [
        e for e in seen if e.event != "heartbeat"
    ]


async def test_a_turn_survives_its_client(serve: Serve) -> None:
    face = await serve()
    client = face.client()
    async with aclosing(client.execute("script: approve", "task")) as live:
        async for seen in live:
            if seen.event == "hitl_request":
                break
    (record,) = await client.pending()
    assert record["request_id"] == seen.payload["request_id"]
    await client.respond("task", "yes")
    turn = await collect(client.replay(milliseconds(seen.payload["timestamp"]), "task"))
    assert turn.types[0] == "hitl_resolved"
    assert turn.outcome == "completed"


async def test_the_same_words_after_a_stream_that_broke_off_are_said_anew(serve: Serve) -> None:
    face = await serve(engine={"pace": 0.2})
    client = face.client()
    async with aclosing(client.execute("script: slow 3", "left")) as events:
        await anext(events)
    # It knows that its message was taken, and reads on by replay.
    assert (await collect(client.replay(0, "left"))).outcome == "completed"
    assert (await client.turn("script: slow 3", "left")).text.endswith("(turn 2)")
    assert len(face.requests("execute")) == 2


async def test_an_open_request_is_answered_after_a_restart(serve: Serve) -> None:
    face = await serve("sqlite")
    client = face.client()
    async with aclosing(client.execute("script: approve", "task")) as live:
        async for seen in live:
            if seen.event == "hitl_request":
                break
    before = await client.pending()
    await face.restart()
    assert await client.pending() == before
    reader = asyncio.ensure_future(collect(client.replay(0, "task")))
    resumed = await client.respond("task", "no", feedback="keep it")
    assert resumed["request_id"] == before[0]["request_id"]
    turn = await reader
    assert turn.outcome == "completed"
    (result,) = turn.payloads("tool_result")
    assert result["error"] == "permission_denied"
    assert "You added: keep it" in turn.text


async def test_replay_without_a_task_is_of_the_most_recently_active_one(serve: Serve) -> None:
    face = await serve()
    assert await face.raw("after=0") == b""
    one = await body_of(face, "script: text", "one")
    two = await body_of(face, "script: text", "two")
    assert await face.raw("") == two
    one += await body_of(face, "script: text", "one")
    assert await face.raw("after=0") == one
    assert await face.raw(f"after={milliseconds(stamps(one)[-1])}") == b""
    # The clock of a client may run ahead.
    assert await face.raw("after=9007199254740991&task_id=one") == b""


async def test_what_is_older_than_three_hours_has_left_the_buffer(serve: Serve) -> None:
    face = await serve(speed=1.0)
    clock: Any = face.sessions.clock
    old = await body_of(face, "script: text", "task")
    assert await face.raw("task_id=task") == old
    # Stamps of one millisecond go ahead of the clock, by one for each frame.
    clock._start += 3 * 3_600_000 + 1000
    new = await body_of(face, "script: reason", "task")
    assert await face.raw("task_id=task") == new
    await until(lambda: True)
    async with aclosing(face.client().execute("script: approve", "task")) as live:
        async for seen in live:
            if seen.event == "hitl_request":
                break
    # A paused task keeps 72 hours.
    clock._start += 71 * 3_600_000
    await until(lambda: face.sessions.readers == 0)
    reader = asyncio.ensure_future(face.raw("task_id=task"))
    # Once the task has its answer it pauses no more.
    await until(lambda: face.sessions.readers == 1)
    await face.client().respond("task", "yes")
    assert (await reader).startswith(new)


async def test_heartbeats_repeat_the_last_stamp_and_are_never_replayed(serve: Serve) -> None:
    face = await serve(settings={"server": {"heartbeat_seconds": 0.05}})
    client = face.client()
    seen = []
    async with aclosing(client.execute("script: approve", "task")) as live:
        async for event in live:
            seen.append(event)
            if [e.event for e in seen[-3:]] == ["hitl_request", "heartbeat", "heartbeat"]:
                await client.respond("task", "yes")
    place = next(i for i, e in enumerate(seen) if e.event == "hitl_request") + 1
    for event in seen[place : place + 2]:
        assert event.event == "heartbeat"
        assert event.payload == {"timestamp": seen[place - 1].payload["timestamp"]}
    assert b"heartbeat" not in await face.raw("task_id=task")


# One turn at a time.


async def test_a_busy_task_and_a_paused_one_are_refused(serve: Serve) -> None:
    face = await serve(engine={"pace": 1.0})
    client = face.client()
    async with aclosing(client.execute("script: slow 40", "busy")) as live:
        await anext(live)
        with pytest.raises(Refused) as refused:
            await client.turn("hello", "busy")
        assert (refused.value.status, refused.value.code) == (409, "TASK_BUSY")
    async with aclosing(client.execute("script: approve", "paused")) as live:
        async for seen in live:
            if seen.event == "hitl_request":
                break
        with pytest.raises(Refused) as refused:
            await client.turn("hello", "paused")
        assert (refused.value.status, refused.value.code) == (409, "HITL_REQUIRED")
        await client.respond("paused", "no")
        assert [e async for e in live][-1].payload["phase"] == "completed"


async def test_two_first_messages_of_one_task_make_one_session(serve: Serve) -> None:
    face = await serve("sqlite", engine={"pace": 1.0})
    client = face.client()
    answers = await asyncio.gather(
        *(client.turn("script: slow 3", "same") for _ in range(5)), return_exceptions=True
    )
    turns = [answer for answer in answers if isinstance(answer, EngineTurn)]
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    assert len(turns) == 1
    assert [(r.status, r.code) for r in refused] == [(409, "TASK_BUSY")] * 4
    assert len(await face.sessions.journal.sessions()) == 1
    assert len(face.requests("execute")) == 1


async def test_tasks_run_beside_each_other(serve: Serve) -> None:
    face = await serve()
    client = face.client()
    turns = await asyncio.gather(
        *(client.turn(f"script: long {n}", f"task {n}") for n in range(100, 110))
    )
    for n, turn in zip(range(100, 110), turns, strict=True):
        assert f"tick {n - 1} " in turn.text
        assert f"tick {n} " not in turn.text
        assert {p["task_id"] for p in turn.payloads("thread_lifecycle")} == {f"task {n}"}


async def test_the_same_name_is_another_task_for_another_key(serve: Serve) -> None:
    face = await serve(settings={"keys": [key_of("anna"), key_of("bert")]})
    anna, bert = face.client("k-anna"), face.client("k-bert")
    await anna.turn("script: text", "main")
    turn = await bert.turn("script: text", "main")
    assert turn.text.endswith("(turn 1)")
    assert len({request["task_id"] for request in face.requests("execute")}) == 2
    assert await face.raw("task_id=main", "k-anna") != await face.raw("task_id=main", "k-bert")
    async with aclosing(anna.execute("script: approve", "mine")) as live:
        async for seen in live:
            if seen.event == "hitl_request":
                break
    assert await bert.pending() == []
    with pytest.raises(Refused) as refused:
        await bert.respond("mine", "yes")
    assert (refused.value.status, refused.value.code) == (404, "TASK_NOT_FOUND")
    body = {"request_id": seen.payload["request_id"], "answer": "yes"}
    with pytest.raises(Refused) as refused:
        await bert.post("/hitl/respond", json.dumps(body).encode())
    assert refused.value.code == "NOTHING_PENDING"
    (session,) = [
        row for row in await face.sessions.journal.sessions(owner="anna") if row.state == "paused"
    ]
    with pytest.raises(Refused) as refused:
        await anna.turn("hello", session.id)
    assert refused.value.code == "HITL_REQUIRED"
    # To others the id of a session is a name as any: nobody learns that it is one.
    turn = await bert.turn("script: text", session.id)
    assert turn.text.endswith("(turn 1)")
    assert len(await face.sessions.journal.sessions(owner="anna")) == 2


# Answers.


@pytest.mark.parametrize(
    ("answer", "sent"),
    [("yes", "yes"), ("Y", "yes"), (" TRUE ", "yes"), ("allow", "yes"), ("n", "no"), ("No", "no")],
)
async def test_a_permission_takes_yes_and_no_as_people_spell_them(
    serve: Serve, answer: str, sent: str
) -> None:
    face = await serve(table=OWN_NAMES)
    await face.client().turn("script: approve", "task", [answer])
    assert face.requests("respond") == [{"task_id": "task", "answer": sent}]


@pytest.mark.parametrize("answer", ["", "maybe", "yes please", "always", "1", "no way"])
async def test_what_is_neither_yes_nor_no_is_refused_and_the_request_stays_open(
    serve: Serve, answer: str
) -> None:
    face = await serve()
    client = face.client()
    async with aclosing(client.execute("script: approve", "task")) as live:
        async for seen in live:
            if seen.event == "hitl_request":
                break
        with pytest.raises(Refused) as refused:
            await client.respond("task", answer)
        assert (refused.value.status, refused.value.code) == (400, "BAD_REQUEST")
        assert [r["request_id"] for r in await client.pending()] == [seen.payload["request_id"]]
        assert face.requests("respond") == []
        await client.respond("task", "yes")
        assert [e async for e in live][-1].payload["phase"] == "completed"


UNKNOWN = {(name, number): Status(404) for name in ("respond", "pending") for number in (1, 2)}


@pytest.mark.parametrize(
    ("refusals", "status", "word", "open_"),
    [
        # The Engine does not know the request any more.
        (UNKNOWN, 404, "NOTHING_PENDING", 0),
        # It lists it, and so it was something in between that did not find its way.
        ({("respond", 1): Status(404)}, 502, "LLM_PROVIDER_ERROR", 1),
        ({("respond", 1): Status(422)}, 502, "LLM_PROVIDER_ERROR", 1),
    ],
)
async def test_nobody_says_resumed_of_an_answer_that_the_backend_did_not_take(
    serve: Serve, refusals: Plan, status: int, word: str, open_: int
) -> None:
    face = await serve(engine={"faults": Faults(refusals)})
    client = face.client()
    async with aclosing(client.execute("script: approve", "task")) as live:
        async for seen in live:
            if seen.event == "hitl_request":
                break
        with pytest.raises(Refused) as refused:
            await client.respond("task", "yes")
        assert (refused.value.status, refused.value.code) == (status, word)
        assert len(await client.pending()) == open_


async def test_an_answer_may_name_the_request_and_counts_once(serve: Serve) -> None:
    face = await serve()
    client = face.client()
    async with aclosing(client.execute("script: ask", "task")) as live:
        async for seen in live:
            if seen.event == "hitl_request":
                break
        request_id = seen.payload["request_id"]
        for body in (
            {"request_id": "hitl-other", "answer": "07:40"},
            {"request_id": "hitl-other", "task_id": "task", "answer": "07:40"},
        ):
            with pytest.raises(Refused) as refused:
                await client.post("/hitl/respond", json.dumps(body).encode())
            assert (refused.value.status, refused.value.code) == (404, "NOTHING_PENDING")
        given = {"request_id": request_id, "answer": "09:10"}
        resumed = await client.post("/hitl/respond", json.dumps(given).encode())
        assert resumed == {"status": "resumed", "request_id": request_id}
        turn = EngineTurn([e async for e in live])
    assert "09:10" in turn.text
    with pytest.raises(Refused) as refused:
        await client.respond("task", "09:10")
    assert (refused.value.status, refused.value.code) == (404, "NOTHING_PENDING")


async def test_words_and_files_of_an_answer_reach_the_agent(serve: Serve) -> None:
    face = await serve()
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    }
    turn = await face.client().turn(
        "script: askopen",
        "task",
        lambda _: {"answer": "Nadia {x}", "feedback": "in full", "content_blocks": [picture]},
    )
    assert "the name Nadia {x}" in turn.text
    assert "You added: in full" in turn.text
    (sent,) = face.requests("respond")
    assert sent["content_blocks"] == [picture]


# Messages.


async def test_media_options_and_files_reach_an_engine_as_they_came(serve: Serve) -> None:
    face = await serve(table=OWN_NAMES)
    png = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    url = {"type": "url", "url": "https://img.example/tower.jpg"}
    data_url = {**png, "data": "data:image/png;base64,iVBORw0KGgo="}
    await face.client().turn(
        "look",
        "task",
        media=[{"type": "image", "source": source} for source in (png, data_url, url)],
        direct=True,
        effort="high",
    )
    (sent,) = face.requests("execute")
    assert sent == {
        "message": "look",
        "task_id": "task",
        "media": [{"type": "image", "source": source} for source in (png, png, url)],
        "direct": True,
        "super_thinking": True,
    }


@pytest.mark.parametrize("status", [409, 422, 429, 500, 502, 503, 504])
async def test_a_message_that_the_backend_refuses_ends_its_body_with_an_error(
    serve: Serve, status: int
) -> None:
    # What may have been taken is looked for, for a minute of patience.
    face = await serve(engine={"faults": Faults({("execute", 1): Status(status)})}, speed=200.0)
    turn = await face.client().turn("hello", "task")
    assert turn.types == ["started", "error", "errored"]
    assert turn.payloads("error")[0]["message"]
    live = await face.raw("task_id=task")
    assert [name.decode() for name in re.findall(rb"event: (\w+)\n", live)] == [
        "thread_lifecycle",
        "error",
        "thread_lifecycle",
    ]
    assert (await face.client().turn("hello", "task")).outcome == "completed"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/execute", b""),
        ("/execute", b"{"),
        ("/execute", b"[]"),
        ("/execute", b'{"task_id":"t"}'),
        ("/execute", b'{"message":"m"}'),
        ("/execute", b'{"message":"","task_id":"t"}'),
        ("/execute", b'{"message":"m","task_id":7}'),
        ("/execute", b'{"message":"m","task_id":"t","media":{}}'),
        ("/execute", b'{"message":"m","task_id":"t","media":[{"type":"image"}]}'),
        ("/execute", b'{"message":"m","task_id":"t","direct":"yes"}'),
        ("/execute", b'{"message":"m","task_id":"t","edit_message_id":"a","retry_message_id":"b"}'),
        ("/hitl/respond", b"{}"),
        ("/hitl/respond", b'{"task_id":"t"}'),
        ("/hitl/respond", b'{"task_id":"t","answer":true}'),
        ("/hitl/respond", b'{"answer":"yes"}'),
    ],
)
async def test_bad_bodies_are_400_and_leave_no_task_behind(
    serve: Serve, path: str, body: bytes
) -> None:
    face = await serve()
    with pytest.raises(Refused) as refused:
        await face.client().post(path, body)
    assert (refused.value.status, refused.value.code) == (400, "BAD_REQUEST")
    assert await face.sessions.journal.sessions() == []


@pytest.mark.parametrize("after", ["-1", "now", "1.5", "99999999999999999"])
async def test_a_time_that_is_none_is_400(serve: Serve, after: str) -> None:
    face = await serve()
    with pytest.raises(Refused) as refused:
        await face.client().get(f"/execute/replay?after={after}")
    assert (refused.value.status, refused.value.code) == (400, "BAD_REQUEST")


async def test_a_body_that_is_too_large_is_413_in_the_own_form(serve: Serve) -> None:
    face = await serve(settings={"server": {"max_body_bytes": 2048}})
    with pytest.raises(Refused) as refused:
        await face.client().turn("x" * 4000, "task")
    assert (refused.value.status, refused.value.code) == (413, "TOO_LARGE")


# The rest of the routes.


async def test_keys_come_before_everything_but_health(serve: Serve) -> None:
    face = await serve(settings={"keys": [key_of("anna")]})
    client = face.client("wrong")
    health = await client.health()
    assert health["subsystems"] == {}
    for path, body in (("/execute", b"{"), ("/hitl/respond", b"{"), ("/rpc", b"{}")):
        with pytest.raises(Refused) as refused:
            await client.post(path, body)
        assert (refused.value.status, refused.value.code) == (401, "INVALID_KEY")
    for path in ("/execute/replay", "/hitl/pending", "/skills", "/nothing"):
        with pytest.raises(Refused) as refused:
            await client.get(path)
        assert (refused.value.status, refused.value.code) == (401, "INVALID_KEY")


async def test_other_paths_and_methods_get_the_standard_body(serve: Serve) -> None:
    face = await serve()
    client = face.client()
    for path in ("/skills", "/memory/soul", "/openapi.json", "/v1"):
        with pytest.raises(Refused) as refused:
            await client.get(path)
        assert (refused.value.status, refused.value.code) == (404, "NOT_FOUND")
    for path in ("/execute", "/hitl/respond"):
        with pytest.raises(Refused) as refused:
            await client.get(path)
        assert (refused.value.status, refused.value.code) == (405, "METHOD_NOT_ALLOWED")
    with pytest.raises(Refused) as refused:
        await client.get("/execute/replay?task_id=unknown")
    assert (refused.value.status, refused.value.code) == (404, "TASK_NOT_FOUND")
    with pytest.raises(Refused) as refused:
        await client.respond("unknown", "yes")
    assert (refused.value.status, refused.value.code) == (404, "TASK_NOT_FOUND")
    other = EngineClient(face.http, face.url.replace("to/engine", "to/nowhere"))
    with pytest.raises(Refused) as refused:
        await other.turn("hello", "task")
    assert (refused.value.status, refused.value.code) == (404, "NOT_FOUND")


# Sessions of other faces.


async def test_a_turn_of_an_eve_frontend_is_in_replay_and_its_request_is_answered_here(
    serve: Serve,
) -> None:
    face = await serve()
    eve = f"http://{HOST}:{face.port}/as/eve/to/engine/eve/v1/session"
    async with face.http.post(eve, json={"message": "script: approve"}) as response:
        session_id = (await response.json())["sessionId"]
    client = face.client()
    async with asyncio.timeout(SOON_S):
        while not (records := await client.pending()):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    assert records[0]["task_id"] == session_id
    reader = asyncio.ensure_future(collect(client.replay(0)))
    await client.respond(session_id, "yes")
    turn = await reader
    assert turn.outcome == "completed"
    (received,) = turn.payloads("message_received")
    assert received["message"] == "script: approve"
    assert received["kind"] == "message"
    follow_up = await client.turn("script: text", session_id)
    assert follow_up.text.endswith("(turn 2)")
    assert follow_up.payloads("message_received") == []


async def test_a_deleted_task_is_gone_and_its_name_stays_taken(serve: Serve) -> None:
    face = await serve()
    client = face.client()
    await client.turn("script: text", "task")
    (row,) = await face.sessions.journal.sessions()
    session = await face.live(row.id)
    await session.submit([Delete()], by="local", face="control")
    with pytest.raises(Refused) as refused:
        await client.turn("hello", "task")
    assert (refused.value.status, refused.value.code) == (404, "TASK_NOT_FOUND")
    with pytest.raises(Refused) as refused:
        await collect(client.replay(0, "task"))
    assert (refused.value.status, refused.value.code) == (404, "TASK_NOT_FOUND")


async def test_a_body_ends_without_a_result_when_the_server_stops(serve: Serve) -> None:
    face = await serve("sqlite")
    client = face.client(expect=Expect(stamped=True, known_types=False, error_first=False))
    live = client.execute("script: approve", "task")
    async for seen in live:
        if seen.event == "hitl_request":
            break
    await face.stop()
    rest = [event async for event in _until_cut(live)]
    assert rest == []
    await face.start()
    reader = asyncio.ensure_future(collect(client.replay(milliseconds(seen.payload["timestamp"]))))
    await client.respond("task", "yes")
    assert (await reader).outcome == "completed"


async def _until_cut(live: AsyncIterator[EngineEvent]) -> AsyncIterator[EngineEvent]:
    try:
        async for event in live:
            yield event
    except (Disconnected, aiohttp.ClientError):
        return
