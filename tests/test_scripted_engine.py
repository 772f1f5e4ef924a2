"""The scripted Engine, driven by the strict Engine client: scripts, variants, refusals, faults."""

import asyncio
import dataclasses
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from proxy.base.clock import ManualClock
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.backend import Refusal
from proxy.scripted.engine import ENGINE, create_engine_app
from proxy.scripted.engine_frames import BODIES, FRAMES
from proxy.scripted.engine_requests import ExecuteBody
from proxy.scripted.engine_turns import EngineVariant, ScriptedEngine
from proxy.scripted.faults import (
    Cut,
    Fault,
    Faults,
    Garbage,
    HalfFrame,
    LoseTurn,
    Redirect,
    Silence,
    SlowHead,
    Stall,
    Status,
    WrongContentType,
)
from proxy.scripted.scripts import SCRIPT_NAMES, FailBeat, SayBeat, beats_for
from proxy.scripted.templates import Template, dump
from tests.support.each import each
from tests.support.engine_client import (
    Disconnected,
    EngineClient,
    EngineEvent,
    EngineTurn,
    Expect,
    ProtocolViolation,
    Refused,
    StreamChecker,
)
from tests.support.waiting import SOON_S

RECORDINGS = Path(__file__).parent.parent / "fixtures" / "wire" / "engine"
KEY = "k-local-9"

Served = tuple[EngineClient, ScriptedEngine]
Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start scripted Engines; each call gives a strict client of a new one and its state."""
    closing: list[Callable[[], Awaitable[None]]] = []

    async def start(*, expect: Expect | None = None, **options: Any) -> Served:
        app = create_engine_app(**{"key": KEY, "pace": 0.0, **options})
        server = TestServer(app)
        await server.start_server(shutdown_timeout=1.0)
        session = aiohttp.ClientSession()
        closing.extend((session.close, server.close))
        return EngineClient(session, str(server.make_url("")), KEY, expect=expect), app[ENGINE]

    yield start
    for close in closing:
        await close()


class WatchedClock(ManualClock):
    """A clock that knows how many calls wait for it, so that a test moves it at the right time."""

    def __init__(self) -> None:
        # The first timestamp of the recordings.
        super().__init__(start=1_780_992_900_000)
        self._sleeping = 0
        self._slept = asyncio.Condition()

    async def sleep(self, seconds: float) -> None:
        self._sleeping += 1
        async with self._slept:
            self._slept.notify_all()
        try:
            await super().sleep(seconds)
        finally:
            self._sleeping -= 1

    async def until_sleeping(self, count: int = 1) -> None:
        async with asyncio.timeout(SOON_S), self._slept:
            await self._slept.wait_for(lambda: self._sleeping >= count)


async def collect(stream: AsyncIterator[EngineEvent]) -> EngineTurn:
    turn = EngineTurn()
    async for seen in stream:
        turn.events.append(seen)
    return turn


async def until_gone(stream: AsyncIterator[EngineEvent]) -> EngineTurn:
    """Collect the events of a stream that must end without its turn's end."""
    turn = EngineTurn()

    async def read() -> None:
        async for seen in stream:
            turn.events.append(seen)

    with pytest.raises(Disconnected):
        await read()
    return turn


def recorded(name: str, task_id: str | None = None) -> EngineTurn:
    """Read a recording with the strict client's own parser."""
    checker = StreamChecker(task_id, expect=Expect(full_lifecycle=False))
    turn = EngineTurn(checker.feed((RECORDINGS / name).read_bytes()))
    checker.close()
    return turn


# Templates and recordings


@each("name", FRAMES)
def test_every_frame_stands_in_the_recording_that_it_names(name: str) -> None:
    template = FRAMES[name]
    lines = (RECORDINGS / template.source).read_text().splitlines()
    block = f"event: {template.type}\ndata: {template.data}"
    assert block in "\n".join(lines)
    assert dump(template.payload()) == template.data


@pytest.mark.parametrize("name", [name for name in BODIES if BODIES[name].source.endswith("json")])
def test_every_body_is_the_recording_that_it_names(name: str) -> None:
    template = BODIES[name]
    body = Template(template.source, "", (RECORDINGS / template.source).read_text())
    assert template.payload() == body.payload()


def test_a_template_refuses_a_member_that_its_source_lacks() -> None:
    with pytest.raises(KeyError, match="no member `turn_id` in text_delta"):
        FRAMES["text"].filled(text="x", turn_id="turn-1")


@pytest.mark.parametrize(
    ("script", "recording", "answers"),
    [
        ("text", "01-plain-text.sse", []),
        ("tool", "02-thinking-and-tool.sse", []),
        ("approve", "03-hitl-permission-yes.sse", ["yes"]),
        ("ask", "04-hitl-question.sse", ["09:10"]),
        ("failmid", "06-error-mid-stream.sse", []),
    ],
)
async def test_a_script_plays_the_events_of_its_recording(
    serve: Serve, script: str, recording: str, answers: list[str]
) -> None:
    checker = StreamChecker(expect=Expect(error_first=False))
    sample = EngineTurn(checker.feed((RECORDINGS / recording).read_bytes()))
    blocks = any(seen.event == "content_block_start" for seen in sample.events)
    variant = EngineVariant(blocks=blocks, failure="error")
    client, _ = await serve(variant=variant, expect=Expect(error_first=False))
    played = await client.turn(f"script: {script}", "task", answers)
    assert played.types == sample.types
    assert played.text.removesuffix(" (turn 1)") == sample.text
    assert played.thinking == sample.thinking
    for event in ("tool_call", "tool_result", "error"):
        assert [{**payload, "tool_call_id": None} for payload in played.payloads(event)] == [
            {**payload, "tool_call_id": None} for payload in sample.payloads(event)
        ]


# Scripts


async def test_any_other_message_is_quoted_in_the_answer(serve: Serve) -> None:
    client, _ = await serve()
    turn = await client.turn("How tall is the tower?", "survey-12")
    assert turn.text == "You said: “How tall is the tower?”. (turn 1)"
    assert turn.outcome == "completed"


async def test_follow_ups_count_their_turns_by_task(serve: Serve) -> None:
    client, _ = await serve()
    texts = [(await client.turn("hi", task)).text for task in ("a", "a", "b", "a")]
    assert [text.rpartition("(")[2] for text in texts] == [
        "turn 1)",
        "turn 2)",
        "turn 1)",
        "turn 3)",
    ]


async def test_reasoning_comes_before_the_text_in_a_block_of_its_own(serve: Serve) -> None:
    client, _ = await serve()
    turn = await client.turn("script: reason", "t")
    assert turn.thinking.startswith("The failing test")
    assert turn.types == [
        "started",
        "content_block_start",
        "thinking_delta",
        "content_block_stop",
        "content_block_start",
        "text_delta",
        "content_block_stop",
        "usage",
        "completed",
    ]


async def test_parallel_tools_are_both_called_before_the_first_returns(serve: Serve) -> None:
    client, _ = await serve()
    turn = await client.turn("script: tools", "t")
    calls = [call["tool_call_id"] for call in turn.payloads("tool_call")]
    results = [result["tool_call_id"] for result in turn.payloads("tool_result")]
    order = [seen.event for seen in turn.events if seen.event.startswith("tool_")]
    assert order == ["tool_call", "tool_call", "tool_result", "tool_result"]
    assert results == calls[::-1]
    assert turn.payloads("tool_result")[0]["output"] == "DROP TABLE u;\n"


async def test_a_failing_tool_does_not_end_the_turn(serve: Serve) -> None:
    client, _ = await serve()
    turn = await client.turn("script: toolfail", "t")
    (result,) = turn.payloads("tool_result")
    assert result["error"] == "connector token expired"
    assert turn.outcome == "completed"


async def test_a_refused_permission_fails_the_call_and_the_turn_completes(serve: Serve) -> None:
    client, _ = await serve()
    turn = await client.turn(
        "script: approve",
        "ops-34",
        lambda request: {"answer": "no", "feedback": "Do not touch exports."},
    )
    (result,) = turn.payloads("tool_result")
    assert (result["output"], result["error"]) == ("", "permission_denied")
    assert "I left /srv/exports/2024 alone." in turn.text
    assert "You added: Do not touch exports." in turn.text
    assert turn.outcome == "completed"


async def test_two_permissions_come_one_after_the_other(serve: Serve) -> None:
    client, _ = await serve()
    turn = await client.turn("script: approve2", "t", ["yes", "no"])
    first, second = turn.payloads("hitl_request")
    assert first["request_id"] != second["request_id"]
    assert [result.get("error") for result in turn.payloads("tool_result")] == [
        None,
        "permission_denied",
    ]
    assert "4.1 GB freed." in turn.text
    assert "left /etc/hosts alone" in turn.text


async def test_an_open_question_takes_any_text_and_files(serve: Serve) -> None:
    client, _ = await serve()
    image = {"type": "image", "source": {"type": "url", "url": "https://img.example/id.png"}}
    turn = await client.turn(
        "script: askopen",
        "t",
        lambda request: {"answer": "{Ada}", "content_blocks": [image]},
    )
    (request,) = turn.payloads("hitl_request")
    assert request["kind"] == "question"
    assert "options" not in request
    assert "The ticket carries the name {Ada}." in turn.text
    assert "I received image at https://img.example/id.png." in turn.text


async def test_files_of_a_message_are_told_in_the_text(serve: Serve) -> None:
    client, _ = await serve()
    turn = await client.turn(
        "Which plant is this?",
        "garden-17",
        media=[
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": "image/png",
                    "data": "iVBORw0KGgo=",
                },
            },
            {
                "type": "document",
                "source": {"type": "url", "url": "https://plants.example/leaf.pdf"},
            },
        ],
        super_thinking=True,
    )
    assert "I received image image/png of 8 bytes." in turn.text
    assert "I received document at https://plants.example/leaf.pdf." in turn.text


@pytest.mark.parametrize(("script", "count"), [("long 700", 700), ("long", 1000), ("slow 7", 7)])
async def test_long_and_slow_write_as_many_deltas_as_asked(
    serve: Serve, script: str, count: int
) -> None:
    client, _ = await serve()
    turn = await client.turn(f"script: {script}", "t")
    assert turn.text == "".join(f"tick {n} " for n in range(count)) + " (turn 1)"
    assert len(turn.payloads("text_delta")) == count + 1


async def test_slow_waits_a_tenth_of_a_second_before_each_delta(serve: Serve) -> None:
    clock = WatchedClock()
    client, _ = await serve(clock=clock, pace=1.0)
    stream = client.execute("script: slow 3", "t")
    seen = [await anext(stream)]
    for number in range(3):
        # The turn, and the reader's heartbeat.
        await clock.until_sleeping(2)
        await clock.advance(0.1)
        while seen[-1].payload.get("text") != f"tick {number} ":
            seen.append(await anext(stream))
    seen += [event async for event in stream]
    # The last delta is 300 ms after the start; four more frames follow, each with its own stamp.
    assert seen[-1].payload["timestamp"] == "2026-06-09T08:15:00.304Z"


async def test_a_failure_before_any_text_is_only_a_failure(serve: Serve) -> None:
    client, _ = await serve()
    turn = await client.turn("script: fail", "t")
    assert turn.types == ["started", "error", "errored"]
    (error,) = turn.payloads("error")
    assert error["details"] == {"retry_after": 12}
    again = await client.turn("still there?", "t")
    assert again.text.endswith("(turn 2)")


async def test_a_failure_in_the_middle_keeps_the_text_before_it(serve: Serve) -> None:
    client, _ = await serve(variant=EngineVariant(blocks=False))
    turn = await client.turn("script: failmid", "t")
    assert turn.types == ["started", "text_delta", "error", "errored"]
    assert turn.text == "The first lighthouse was built on "
    assert turn.payloads("error")[0]["error"] == "LLM_PROVIDER_ERROR"


async def test_compaction_and_notes_have_their_events(serve: Serve) -> None:
    client, _ = await serve()
    turn = await client.turn("script: compact", "t")
    assert turn.payloads("compaction_event") == [
        {"before_tokens": 31200, "after_tokens": 9400, "strategy": "summary"}
    ]
    turn = await client.turn("script: memory", "t")
    assert turn.payloads("working_memory_update") == [
        {"key": "files_to_check", "value": ["a.sql", "b.sql"]}
    ]


async def test_an_undocumented_event_and_field_come_when_asked_for(serve: Serve) -> None:
    client, _ = await serve(expect=Expect(known_types=False))
    turn = await client.turn("script: unknown", "t")
    assert turn.payloads("future_event_kind") == [{"anything": 1}]
    assert turn.payloads("text_delta")[0] == {"text": "Something new: ", "extra_field": True}
    assert turn.outcome == "completed"


@pytest.mark.parametrize(
    ("script", "missing"),
    [
        ("custom", "tools that the application runs"),
        ("secret", "secrets to ask for"),
        ("sudo", "passwords to ask for"),
        ("child", "child agents"),
        ("childask", "child agents"),
        ("structured", "structured results"),
        ("signin", "sign-in to ask for"),
        ("limit", "limit to ask about"),
    ],
)
async def test_what_the_engine_lacks_is_said_in_text(
    serve: Serve, script: str, missing: str
) -> None:
    client, _ = await serve()
    turn = await client.turn(f"script: {script}", "t")
    assert f"The Engine has no {missing}." in turn.text
    assert turn.outcome == "completed"


async def test_an_unknown_script_names_the_known_ones(serve: Serve) -> None:
    client, _ = await serve()
    turn = await client.turn("script: dance", "t")
    assert "There is no script `dance`" in turn.text
    assert ", ".join(SCRIPT_NAMES) in turn.text


@each("name", SCRIPT_NAMES)
def test_every_script_ends_with_its_turn_number_or_fails(name: str) -> None:
    last = beats_for(f"Client context:\nscript: dance\nscript: {name}", turn=4)[-1]
    assert isinstance(last, FailBeat) or (
        isinstance(last, SayBeat) and last.pieces[-1] == " (turn 4)"
    )


def test_the_last_line_that_names_a_script_counts() -> None:
    assert beats_for("script: fail\n  script:  text \nplease", turn=1) == beats_for(
        "script: text", turn=1
    )


# Variants


@pytest.mark.parametrize(
    ("variant", "expect"),
    [
        (EngineVariant(tool_call_id=False), Expect(tool_ids=False)),
        (EngineVariant(short_lifecycle=True), Expect(full_lifecycle=False)),
        (EngineVariant(resolved_request_id=False), Expect(resolved_ids=False)),
        (EngineVariant(tolerance=True), Expect(plain_framing=False)),
    ],
)
@pytest.mark.parametrize("script", ["tools", "approve2", "ask", "reason"])
async def test_a_lenient_reader_reads_a_variant_and_a_strict_one_refuses_it(
    serve: Serve, variant: EngineVariant, expect: Expect, script: str
) -> None:
    lenient, _ = await serve(variant=variant, expect=expect)
    plain, _ = await serve()
    answers = {"approve2": ["yes", "no"], "ask": ["07:40"]}.get(script, [])
    turn = await lenient.turn(f"script: {script}", "t", answers)
    reference = await plain.turn(f"script: {script}", "t", answers)
    assert turn.text == reference.text
    assert turn.types == reference.types
    shows = {
        "tool_call_id": script in ("tools", "approve2"),
        "resolved_request_id": script in ("approve2", "ask"),
        "short_lifecycle": True,
        "tolerance": True,
    }
    changed = [name for name in shows if getattr(variant, name) != getattr(EngineVariant(), name)]
    if shows[changed[0]]:
        lenient.expect = Expect()
        with pytest.raises(ProtocolViolation):
            await lenient.turn(f"script: {script}", "strict", answers)


@pytest.mark.parametrize(
    ("failure", "types"),
    [
        ("error", ["error"]),
        ("errored", ["errored"]),
        ("error_errored", ["error", "errored"]),
        ("errored_error", ["errored", "error"]),
    ],
)
async def test_a_failed_turn_ends_in_each_of_the_orders_the_page_allows(
    serve: Serve, failure: str, types: list[str]
) -> None:
    client, _ = await serve(
        variant=EngineVariant(failure=failure),  # type: ignore[arg-type]
        expect=Expect(error_first=False),
    )
    turn = await client.turn("script: fail", "t")
    assert turn.types == ["started", *types]
    assert turn.outcome == "failed"
    client.expect = Expect()
    if failure == "error_errored":
        await client.turn("script: fail", "t")
    else:
        with pytest.raises(ProtocolViolation):
            await client.turn("script: fail", "t")


async def test_without_blocks_and_usage_neither_comes(serve: Serve) -> None:
    client, _ = await serve(variant=EngineVariant(blocks=False, usage=False))
    turn = await client.turn("script: tool", "t")
    assert turn.types == [
        "started",
        "thinking_delta",
        "text_delta",
        "tool_call",
        "tool_result",
        "text_delta",
        "completed",
    ]


async def test_a_gated_call_may_come_after_its_request(serve: Serve) -> None:
    client, _ = await serve(variant=EngineVariant(call_before_request=False, blocks=False))
    turn = await client.turn("script: approve", "t", ["no"])
    assert turn.types == [
        "started",
        "text_delta",
        "usage",
        "hitl_request",
        "hitl_resolved",
        "tool_call",
        "tool_result",
        "text_delta",
        "usage",
        "completed",
    ]


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("strings", ["07:40", "09:10"]),
        ("objects", [{"label": "07:40"}, {"label": "09:10"}]),
        ("absent", None),
    ],
)
async def test_options_come_in_each_form(serve: Serve, form: Any, options: object) -> None:
    client, _ = await serve(variant=EngineVariant(options=form))
    turn = await client.turn("script: ask", "t", ["09:10"])
    (request,) = turn.payloads("hitl_request")
    assert request.get("options") == options
    assert "Holding a seat on the 09:10." in turn.text


@pytest.mark.parametrize("timed", [True, False])
async def test_heartbeats_come_while_paused_and_are_not_replayed(serve: Serve, timed: bool) -> None:
    clock = WatchedClock()
    client, _ = await serve(clock=clock, variant=EngineVariant(heartbeat_timestamp=timed))
    stream = client.execute("script: ask", "trip-08")
    seen = [await anext(stream)]
    while seen[-1].event != "hitl_request":
        seen.append(await anext(stream))
    for _ in range(2):
        await clock.until_sleeping()
        await clock.advance(10)
        seen.append(await anext(stream))
    beats = [event.payload for event in seen if event.event == "heartbeat"]
    times = ["2026-06-09T08:15:10.000Z", "2026-06-09T08:15:20.000Z"]
    assert beats == [{"timestamp": time} if timed else {} for time in times]
    await client.respond("trip-08", "07:40")
    seen += [event async for event in stream]
    replayed = await collect(client.replay(0))
    assert replayed.events == [event for event in seen if event.event != "heartbeat"]


async def test_heartbeats_come_in_real_time_too(serve: Serve) -> None:
    client, _ = await serve(heartbeat_s=0.005)
    stream = client.execute("script: ask", "t")
    while (await anext(stream)).event != "heartbeat":
        pass
    await client.respond("t", "07:40")
    assert [seen async for seen in stream][-1].payload["phase"] == "completed"


async def test_a_lenient_engine_ignores_what_it_does_not_know(serve: Serve) -> None:
    client, _ = await serve(variant=EngineVariant(strict=False))
    turn = await client.turn("hi", "t", temperature=0.3)
    assert turn.outcome == "completed"


async def test_tolerant_framing_shows_every_oddity_of_the_recording(serve: Serve) -> None:
    client, _ = await serve(
        variant=EngineVariant(tolerance=True), expect=Expect(plain_framing=False)
    )
    turn = await client.turn("script: tool", "t")
    async with aiohttp.request(
        "GET",
        f"{client._base}/execute/replay?after=0",
        headers={"X-Engine-Key": KEY},
    ) as response:
        raw = await response.read()
    for oddity in (b": comment", b"\r\n", b"data: {\ndata: ", b"event:thread", b"id: "):
        assert oddity in raw or (oddity == b"event:thread" and b"\nevent:" in raw)
    assert turn.outcome == "completed"
    tolerant = StreamChecker(expect=Expect(plain_framing=False, known_types=False))
    for byte in (RECORDINGS / "09-tolerance.sse").read_bytes():
        tolerant.feed(bytes([byte]))
    tolerant.close()


# Turns, buffers and replay


async def test_a_turn_goes_on_when_its_client_leaves(serve: Serve) -> None:
    client, _ = await serve()
    stream = client.execute("script: tool", "t")
    assert (await anext(stream)).payload["phase"] == "started"
    await stream.aclose()
    turn = await collect(client.replay(0, "t"))
    assert turn.outcome == "completed"
    assert turn.text.endswith("(turn 1)")


async def test_a_replay_follows_a_running_turn_to_its_end(serve: Serve) -> None:
    client, _ = await serve()
    live = client.execute("script: approve", "t")
    seen = [await anext(live)]
    while seen[-1].event != "hitl_request":
        seen.append(await anext(live))
    replay = asyncio.ensure_future(collect(client.replay(0, "t")))
    await client.respond("t", "yes")
    seen += [event async for event in live]
    assert (await replay).events == seen


async def test_a_replay_may_end_early(serve: Serve) -> None:
    client, _ = await serve(variant=EngineVariant(replay_tails=False))
    live = client.execute("script: ask", "t")
    while (await anext(live)).event != "hitl_request":
        pass
    partial = await until_gone(client.replay(0, "t"))
    assert partial.events[-1].event == "hitl_request"
    await client.respond("t", "07:40")
    assert [event async for event in live][-1].payload["phase"] == "completed"
    assert (await collect(client.replay(0, "t"))).outcome == "completed"


async def test_after_is_exclusive_and_stamps_rise_by_each_event(serve: Serve) -> None:
    clock = WatchedClock()
    client, _ = await serve(clock=clock)
    first = await client.turn("script: text", "t")
    second = await client.turn("script: text", "t")
    whole = await collect(client.replay(0, "t"))
    assert whole.events == first.events + second.events
    start = clock.now()
    sizes = [len((await collect(client.replay(start + n, "t"))).events) for n in range(1, 24)]
    assert sizes[0] == len(whole.events) - 1
    assert all(before - after in (0, 1) for before, after in pairwise(sizes))
    assert sizes[-1] == 0


async def test_a_replay_without_a_task_is_about_the_most_recent_one(serve: Serve) -> None:
    client, _ = await serve()
    assert (await collect(client.replay(0))).events == []
    await client.turn("one", "a")
    await client.turn("two", "b")
    await client.turn("three", "a")
    assert "three" in (await collect(client.replay(0))).text
    assert "two" in (await collect(client.replay(0, "b"))).text
    assert (await collect(client.replay(0, "no-such-task"))).events == []


@pytest.mark.parametrize(
    ("script", "hours", "kept"),
    [("text", 2.9, True), ("text", 3.1, False), ("ask", 71.0, True), ("ask", 73.0, False)],
)
async def test_a_buffer_lives_three_hours_and_three_days_while_paused(
    serve: Serve, script: str, hours: float, kept: bool
) -> None:
    clock = WatchedClock()
    client, _ = await serve(clock=clock, variant=EngineVariant(replay_tails=False))
    stream = client.execute(f"script: {script}", "t")
    async for seen in stream:
        if seen.event == "hitl_request":
            break
    await stream.aclose()
    await clock.advance(hours * 3600)
    replay = until_gone if script == "ask" and kept else collect
    assert bool((await replay(client.replay(0, "t"))).events) is kept


async def test_a_busy_task_and_a_paused_one_refuse_a_second_turn(serve: Serve) -> None:
    client, engine = await serve(clock=WatchedClock(), pace=1.0)
    running = client.execute("script: slow", "busy")
    await anext(running)
    with pytest.raises(Refused) as busy:
        await client.turn("again", "busy")
    assert (busy.value.status, busy.value.code) == (409, "TASK_BUSY")
    paused = client.execute("script: ask", "paused")
    while (await anext(paused)).event != "hitl_request":
        pass
    with pytest.raises(Refused) as waiting:
        await client.turn("again", "paused")
    assert (waiting.value.status, waiting.value.code) == (409, "HITL_REQUIRED")
    assert (await client.turn("hi", "free")).outcome == "completed"
    assert [refusal.status for refusal in engine.refusals] == [409, 409]


async def test_pending_lists_all_tasks_and_a_second_answer_finds_nothing(serve: Serve) -> None:
    client, _ = await serve()
    assert await client.pending() == []
    streams = [client.execute("script: approve", task) for task in ("a", "b")]
    for stream in streams:
        while (await anext(stream)).event != "hitl_request":
            pass
    assert [record["task_id"] for record in await client.pending()] == ["a", "b"]
    await client.respond("b", "yes")
    with pytest.raises(Refused) as twice:
        await client.respond("b", "yes")
    assert twice.value.status == 404
    with pytest.raises(Refused) as unknown:
        await client.respond("c", "yes")
    assert unknown.value.status == 404
    await client.respond("a", "no")
    for stream in streams:
        assert [seen async for seen in stream][-1].payload["phase"] == "completed"
    assert await client.pending() == []


@pytest.mark.parametrize("answer", ["Yes", "y", "true", "", "always", " yes"])
async def test_a_permission_takes_exactly_yes_or_no_and_stays_open(
    serve: Serve, answer: str
) -> None:
    client, _ = await serve()
    stream = client.execute("script: approve", "t")
    while (await anext(stream)).event != "hitl_request":
        pass
    with pytest.raises(Refused) as refused:
        await client.respond("t", answer)
    assert refused.value.status == 422
    assert len(await client.pending()) == 1
    await client.respond("t", "yes")
    assert [seen async for seen in stream][-1].payload["phase"] == "completed"


# Requests


async def test_the_key_is_checked_before_anything_else(serve: Serve) -> None:
    client, engine = await serve()
    client._headers["X-Engine-Key"] = "wrong"
    for request in (
        client.post("/execute", b"{not json"),
        client.post("/hitl/respond", b"{}"),
        client.get("/hitl/pending"),
        client.get("/execute/replay?after=x"),
        client.get("/no/such/route"),
    ):
        with pytest.raises(Refused) as refused:
            await request
        assert (refused.value.status, refused.value.code) == (401, "INVALID_KEY")
    assert (await client.health())["status"] == "ok"
    assert len(engine.refusals) == 5


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/execute"),
        ("POST", "/execute/replay"),
        ("POST", "/hitl/pending"),
        ("GET", "/hitl/respond"),
        ("POST", "/rpc"),
        ("GET", "/skills"),
        ("GET", "/openapi.json"),
        ("DELETE", "/health"),
        ("POST", "/execute/"),
    ],
)
async def test_every_other_route_is_404_in_the_pages_form(
    serve: Serve, method: str, path: str
) -> None:
    client, _ = await serve()
    with pytest.raises(Refused) as refused:
        await client._json(method, path)
    assert refused.value.status == 404
    assert refused.value.body.keys() == {"error", "message", "details"}


def media(source: object, kind: str = "image") -> bytes:
    return dump(
        {"message": "x", "task_id": "t", "media": [{"type": kind, "source": source}]}
    ).encode()


PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{not json", 400),
        (b"\xff", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"message":"x"}', 400),
        (b'{"task_id":"t"}', 400),
        (b'{"message":"x","task_id":5}', 422),
        (b'{"message":null,"task_id":"t"}', 422),
        (b'{"message":"","task_id":"t"}', 422),
        (b'{"message":"x","task_id":""}', 422),
        (b'{"message":"x","task_id":"t","direct":"yes"}', 422),
        (b'{"message":"x","task_id":"t","super_thinking":1}', 422),
        (b'{"message":"x","task_id":"t","effort":"high"}', 422),
        (b'{"message":"x","task_id":"t","stream":true}', 422),
        (b'{"message":"x","task_id":"t","edit_message_id":3}', 422),
        (b'{"message":"x","task_id":"t","edit_message_id":"a","retry_message_id":"b"}', 422),
        (b'{"message":"x","task_id":"t","media":{}}', 422),
        (b'{"message":"x","task_id":"t","media":["x"]}', 422),
        (media(PNG, "picture"), 422),
        (media(PNG, "audio"), 422),
        (media({**PNG, "data": "data:image/png;base64,iVBORw0KGgo="}), 422),
        (media({**PNG, "data": "not base64!"}), 422),
        (media({**PNG, "data": ""}), 422),
        (media({**PNG, "media_type": "image/tiff"}), 422),
        (media({**PNG, "filename": "x.png"}), 422),
        (media({"type": "base64", "data": "iVBORw0KGgo="}), 422),
        (media({"type": "url", "url": "file:///etc/passwd"}), 422),
        (media({"type": "url"}), 422),
        (media({"type": "file", "file_id": "f"}), 422),
        (media("x"), 422),
    ],
)
async def test_a_body_that_the_page_does_not_allow_is_refused(
    serve: Serve, body: bytes, status: int
) -> None:
    client, engine = await serve()
    with pytest.raises(Refused) as refused:
        await client.post("/execute", body)
    assert refused.value.status == status
    assert engine.received[-1].body == body
    assert (await collect(client.replay(0))).events == []


async def test_a_body_of_another_content_type_is_refused(serve: Serve) -> None:
    client, _ = await serve()
    with pytest.raises(Refused) as refused:
        await client.post("/execute", b'{"message":"x","task_id":"t"}', "text/plain")
    assert refused.value.status == 422


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDINGS.glob("*.request.json")))
async def test_every_recorded_request_is_accepted(serve: Serve, name: str) -> None:
    client, _ = await serve()
    body = (RECORDINGS / name).read_bytes()
    route = "/hitl/respond" if "respond" in name else "/execute"
    if route == "/hitl/respond":
        with pytest.raises(Refused) as refused:
            await client.post(route, body)
        assert refused.value.status == 404
    else:
        with pytest.raises(ProtocolViolation, match="an answer is not JSON"):
            await client.post(route, body)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"no", 400),
        (b'{"answer":"yes"}', 400),
        (b'{"task_id":"t"}', 400),
        (b'{"task_id":"t","answer":true}', 422),
        (b'{"task_id":"t","answer":"yes","request_id":"hitl-1"}', 422),
        (b'{"task_id":"t","answer":"yes","feedback":null}', 422),
        (b'{"task_id":"t","answer":"yes","content_blocks":[{"type":"text"}]}', 422),
    ],
)
async def test_an_answer_that_the_page_does_not_allow_is_refused(
    serve: Serve, body: bytes, status: int
) -> None:
    client, _ = await serve()
    with pytest.raises(Refused) as refused:
        await client.post("/hitl/respond", body)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("?after=", 400),
        ("?after=x", 400),
        ("?after=-1", 400),
        ("?after=1.5", 400),
        ("?after=0&limit=3", 422),
    ],
)
async def test_a_replay_without_a_time_is_refused(serve: Serve, query: str, status: int) -> None:
    client, _ = await serve()
    with pytest.raises(Refused) as refused:
        await client.get(f"/execute/replay{query}")
    assert refused.value.status == status


# Faults


@pytest.mark.parametrize("number", [0, 1, 4])
async def test_a_cut_breaks_the_body_after_that_event_of_that_request(
    serve: Serve, number: int
) -> None:
    faults = Faults({("execute", 2): Cut(after_event=number)})
    client, _ = await serve(faults=faults)
    assert (await client.turn("script: tool", "a")).outcome == "completed"
    broken = await until_gone(client.execute("script: tool", "b"))
    assert len(broken.events) == number
    whole = await collect(client.replay(0, "b"))
    assert whole.outcome == "completed"
    assert whole.events[:number] == broken.events


@pytest.mark.parametrize("clean", [True, False])
async def test_a_cut_at_a_byte_leaves_exactly_that_many_bytes(serve: Serve, clean: bool) -> None:
    whole, _ = await serve(clock=WatchedClock())
    client, _ = await serve(
        clock=WatchedClock(), faults=Faults({("execute", 1): Cut(at_byte=333, clean=clean)})
    )
    bodies = []
    for one in (whole, client):
        body, broken = b"", False
        request = one._request("POST", "/execute", json={"message": "script: tool", "task_id": "t"})
        async with request as response:
            try:
                async for data in response.content.iter_any():
                    body += data
            except aiohttp.ClientPayloadError:
                broken = True
        bodies.append(body)
    assert bodies[1] == bodies[0][:333]
    assert broken is not clean


async def test_half_a_frame_is_followed_by_an_orderly_end(serve: Serve) -> None:
    client, _ = await serve(faults=Faults({("execute", 1): HalfFrame(3)}))
    with pytest.raises(Disconnected, match="inside an event"):
        async for _ in client.execute("script: text", "t"):
            pass


async def test_a_lost_turn_leaves_nothing_to_replay(serve: Serve) -> None:
    client, _ = await serve(faults=Faults({("execute", 1): LoseTurn(2)}))
    broken = await until_gone(client.execute("script: ask", "t"))
    assert len(broken.events) == 2
    assert (await collect(client.replay(0, "t"))).events == []
    assert await client.pending() == []
    again = await client.turn("script: text", "t")
    assert again.text.endswith("(turn 2)")


async def test_a_lost_turn_does_not_end_the_one_that_took_its_place(serve: Serve) -> None:
    _, engine = await serve(clock=WatchedClock(), pace=1.0)
    lost = engine.begin(ExecuteBody("script: ask", "t", ()))
    async with asyncio.timeout(SOON_S):
        while not engine.pending():
            await lost.task.changed.wait()
    engine.lose(lost.task)
    engine.begin(ExecuteBody("script: slow", "t", ()))
    assert lost.runner is not None
    await asyncio.wait([lost.runner])
    with pytest.raises(Refusal, match="TASK_BUSY"):
        engine.begin(ExecuteBody("again", "t", ()))


async def test_garbage_comes_in_between_and_the_stream_goes_on(serve: Serve) -> None:
    client, _ = await serve(faults=Faults({("execute", 1): Garbage(2)}))
    with pytest.raises(ProtocolViolation, match="not UTF-8"):
        await client.turn("script: text", "t")
    noise = Garbage(2, b"event: future_event_kind\ndata: {}\n\n")
    client, _ = await serve(
        faults=Faults({("execute", 1): noise}), expect=Expect(known_types=False)
    )
    turn = await client.turn("script: text", "t")
    assert turn.events[2].event == "future_event_kind"
    assert turn.outcome == "completed"


async def test_a_stall_holds_events_and_heartbeats_back(serve: Serve) -> None:
    clock = WatchedClock()
    client, _ = await serve(clock=clock, faults=Faults({("execute", 1): Stall(2, 30.0)}))
    stream = client.execute("script: text", "t")
    for _ in range(2):
        await anext(stream)
    await clock.until_sleeping()
    await clock.advance(29)
    rest = asyncio.ensure_future(collect(stream))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not rest.done()
    await clock.advance(1)
    assert [seen.event for seen in (await rest).events].count("heartbeat") == 0
    assert (await collect(client.replay(0, "t"))).outcome == "completed"


async def test_a_stall_for_ever_ends_with_the_backend(serve: Serve) -> None:
    client, engine = await serve(faults=Faults({("execute", 1): Stall(1)}))
    stream = client.execute("script: text", "t")
    await anext(stream)
    rest = asyncio.ensure_future(until_gone(stream))
    for _ in range(200):
        await asyncio.sleep(0)
    assert not rest.done()
    await engine.stop()
    async with asyncio.timeout(SOON_S):
        await rest
    with pytest.raises(Refused, match="503"):
        await client.turn("script: text", "t")


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Status(401), 401, "INVALID_KEY"),
        (Status(403), 403, "PERMISSION_DENIED"),
        (Status(404), 404, "TASK_NOT_FOUND"),
        (Status(409), 409, "HITL_REQUIRED"),
        (Status(422), 422, "CONTEXT_OVERFLOW"),
        (Status(429, retry_after=8), 429, "LLM_RATE_LIMITED"),
        (Status(500), 500, None),
        (Status(502), 502, "LLM_PROVIDER_ERROR"),
        (Status(503), 503, "MIGRATION_REQUIRED"),
        (Status(504), 504, None),
        (Status(503, body=b""), 503, None),
        (Redirect(), 302, None),
        (Redirect("https://elsewhere.example/execute", 307), 307, None),
    ],
)
@pytest.mark.parametrize("route", ["execute", "respond"])
async def test_a_status_on_purpose_refuses_one_request_and_changes_nothing(
    serve: Serve, fault: Fault, status: int, code: str | None, route: str
) -> None:
    client, engine = await serve(faults=Faults({(route, 1): fault}))
    if route == "execute":
        with pytest.raises(Refused) as refused:
            await client.turn("script: text", "t")
        turn = await client.turn("script: text", "t")
        assert turn.text.endswith("(turn 1)")
    else:
        stream = client.execute("script: ask", "t")
        while (await anext(stream)).event != "hitl_request":
            pass
        with pytest.raises(Refused) as refused:
            await client.respond("t", "07:40")
        assert len(await client.pending()) == 1
    assert (refused.value.status, refused.value.code) == (status, code)
    if status == 429:
        assert refused.value.body["details"] == {"retry_after": 8}
    if status in (302, 307):
        assert "elsewhere" in refused.value.headers["Location"]
    assert engine.refusals == []


@pytest.mark.parametrize("route", ["execute", "replay", "respond", "pending", "health"])
async def test_a_wrong_content_type_is_only_a_wrong_content_type(serve: Serve, route: str) -> None:
    client, _ = await serve(faults=Faults({(route, 1): WrongContentType()}))
    stream = client.execute("script: ask", "t")
    if route == "execute":
        with pytest.raises(ProtocolViolation):
            await anext(stream)
        return
    while (await anext(stream)).event != "hitl_request":
        pass
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "replay": lambda: collect(client.replay(0)),
        "respond": lambda: client.respond("t", "07:40"),
        "pending": client.pending,
        "health": client.health,
    }
    with pytest.raises(ProtocolViolation):
        await calls[route]()


@pytest.mark.parametrize("done", [True, False])
async def test_silence_sends_no_byte_whether_or_not_the_turn_begins(
    serve: Serve, done: bool
) -> None:
    client, engine = await serve(faults=Faults({("execute", 1): Silence(done=done)}))
    silent = asyncio.ensure_future(client.turn("script: text", "t"))
    while engine.faults.requests["execute"] == 0:
        await client.health()
    assert not silent.done()
    assert bool((await collect(client.replay(0, "t"))).events) is done
    await engine.stop()
    with pytest.raises(aiohttp.ClientError):
        await silent


async def test_a_silent_answer_is_taken_all_the_same(serve: Serve) -> None:
    client, engine = await serve(faults=Faults({("respond", 1): Silence()}))
    stream = client.execute("script: ask", "t")
    while (await anext(stream)).event != "hitl_request":
        pass
    silent = asyncio.ensure_future(client.respond("t", "07:40"))
    assert "Holding a seat on the 07:40." in "".join(
        [seen.payload.get("text", "") async for seen in stream]
    )
    assert not silent.done()
    await engine.stop()
    with pytest.raises(aiohttp.ClientError):
        await silent


async def test_a_slow_head_comes_after_its_time(serve: Serve) -> None:
    clock = WatchedClock()
    client, _ = await serve(clock=clock, faults=Faults({("execute", 1): SlowHead(5.0)}))
    slow = asyncio.ensure_future(client.turn("script: text", "t"))
    await clock.until_sleeping()
    assert (await collect(client.replay(0, "t"))).outcome == "completed"
    assert not slow.done()
    await clock.advance(5)
    assert (await slow).outcome == "completed"


async def test_a_fault_of_streams_on_another_route_is_a_mistake_of_the_test() -> None:
    faults = Faults({("pending", 1): Cut(after_event=1)})
    with pytest.raises(ValueError, match="has no stream"):
        faults.take("pending", stream=False)
    with pytest.raises(ValueError, match="either"):
        Cut()


def test_seeded_faults_are_the_same_in_any_order() -> None:
    one, two = Faults.seeded(7, rate=0.5), Faults.seeded(7, rate=0.5)
    routes = ["execute", "replay"] * 40
    drawn = [(route, one.take(route, stream=True)) for route in routes]
    other = [(route, two.take(route, stream=True)) for route in sorted(routes)]
    assert sorted(map(repr, drawn)) == sorted(map(repr, other))
    kinds = {type(fault).__name__ for _, fault in drawn if fault is not None}
    assert len(kinds) >= 3
    assert 20 <= sum(fault is not None for _, fault in drawn) <= 60
    assert one.take("health", stream=False) is None


# The strict client itself


def body(*frames: tuple[str, object]) -> bytes:
    return b"".join(f"event: {event}\ndata: {dump(data)}\n\n".encode() for event, data in frames)


def lifecycle(phase: str, second: int) -> tuple[str, object]:
    members = {"phase": phase, "task_id": "t", "turn_id": "u"}
    return "thread_lifecycle", {**members, "timestamp": f"2026-06-09T08:15:{second:02}.000Z"}


STARTED, COMPLETED = lifecycle("started", 0), lifecycle("completed", 9)
CALL = ("tool_call", {"tool": "bash", "tool_call_id": "c", "input": {}})
RESULT = ("tool_result", {"tool_call_id": "c", "output": ""})
ASKED = ("hitl_request", FRAMES["permission"].filled(request_id="h", task_id="t"))
RESOLVED = ("hitl_resolved", {"request_id": "h", "task_id": "t"})
TEXT = ("text_delta", {"text": "x"})
ERROR = ("error", {"error": "LLM_PROVIDER_ERROR", "message": "m"})
ERRORED = lifecycle("errored", 9)


@each(
    ("data", "reason"),
    [
        (body(TEXT, COMPLETED), "first event is not `started`"),
        (body(STARTED, STARTED), "a second `started`"),
        (body(STARTED, COMPLETED, TEXT), "after the end"),
        (body(STARTED, ERROR, TEXT), "after the end"),
        (body(STARTED, ERROR, ERROR), "after the end"),
        (body(STARTED, ERROR, ERRORED, ERRORED), "after the end"),
        (body(STARTED, ("heartbeat", {"text": "x"})), "`text` outside"),
        (body(STARTED, ("text_delta", {"text": 5})), "`text` is not a str"),
        (body(STARTED, RESULT), "without its call"),
        (body(STARTED, CALL, RESULT, RESULT), "without its call"),
        (body(STARTED, CALL, CALL), "same id"),
        (body(STARTED, ("tool_call", {"tool": "x", "input": {}})), "`tool_call_id`"),
        (body(STARTED, ASKED, TEXT), "goes on while a request is open"),
        (body(STARTED, ASKED, COMPLETED), "completed while a request"),
        (body(STARTED, ASKED, RESOLVED, ASKED), "the same request twice"),
        (body(STARTED, RESOLVED), "nothing was open"),
        (body(STARTED, ("mystery", {})), "undocumented event type"),
        (body(STARTED, lifecycle("paused", 1)), "unknown phase"),
        (body(lifecycle("started", 5), lifecycle("completed", 4)), "goes back"),
        (body(STARTED, ERRORED), "`errored` before `error`"),
        (body(STARTED).replace(b"\n", b"\r\n"), "carriage return"),
        (b": hello\n\n" + body(STARTED), "not one `event:` and one `data:`"),
        (b"id: 1\n" + body(STARTED), "not one `event:` and one `data:`"),
        (b"data: {}\nevent: usage\n\n", "the first line"),
        (b"event: usage\ndata:{}\n\n", "the second line"),
        (b"event: usage\ndata: []\n\n", "not a JSON object"),
        (b"event: usage\ndata: {\n\n", "not JSON"),
        (
            body(STARTED, ("content_block_start", {"block_index": 0, "block_type": "image"})),
            "`block_type`",
        ),
        (
            body(
                STARTED, ("content_block_start", {"block_index": 0, "block_type": "thinking"}), TEXT
            ),
            "inside of a thinking block",
        ),
        (
            body(
                STARTED,
                (
                    "usage",
                    {"input_tokens": 1, "output_tokens": 1, "cache_hit_tokens": 2},
                ),
            ),
            "more cached tokens",
        ),
    ],
)
def test_the_strict_client_names_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolViolation, match=reason):
        StreamChecker("t").feed(data)
    piecemeal = StreamChecker("t")
    with pytest.raises(ProtocolViolation, match=reason):
        [piecemeal.feed(bytes([byte])) for byte in data]


def test_the_strict_client_wants_both_halves_of_a_failure() -> None:
    checker = StreamChecker("t")
    checker.feed(body(STARTED, ERROR))
    with pytest.raises(ProtocolViolation, match="not followed by `errored`"):
        checker.close()
    checker.feed(body(ERRORED))
    checker.close()


def test_only_a_replay_may_begin_between_the_halves_of_a_failure() -> None:
    checker = StreamChecker("t", replay=True)
    checker.feed(
        body(("heartbeat", {}), ERRORED, lifecycle("started", 10), lifecycle("completed", 11))
    )
    checker.close()
    for before in (TEXT, STARTED):
        checker = StreamChecker("t", replay=True)
        with pytest.raises(ProtocolViolation, match="`errored` before `error`"):
            checker.feed(body(before, ERRORED))


def test_a_request_may_be_said_again_while_it_is_open_and_no_other_one() -> None:
    checker = StreamChecker("t")
    checker.feed(body(STARTED, ASKED, ASKED, RESOLVED, COMPLETED))
    checker.close()
    other = ("hitl_request", FRAMES["permission"].filled(request_id="i", task_id="t"))
    with pytest.raises(ProtocolViolation, match="goes on while a request is open"):
        StreamChecker("t").feed(body(STARTED, ASKED, other))


def test_the_strict_client_can_demand_rising_stamps_everywhere() -> None:
    checker = StreamChecker("t", expect=dataclasses.replace(Expect(), stamped=True))
    checker.feed(body(STARTED))
    at = {"timestamp": "2026-06-09T08:15:01.000Z"}
    checker.feed(body(("text_delta", {"text": "x", **at}), ("heartbeat", at)))
    with pytest.raises(ProtocolViolation, match="stands still"):
        checker.feed(body(("text_delta", {"text": "x", **at})))
    checker = StreamChecker("t", expect=Expect(stamped=True))
    checker.feed(body(STARTED))
    with pytest.raises(ProtocolViolation, match="without `timestamp`"):
        checker.feed(body(TEXT))


@pytest.mark.parametrize(
    "name",
    [
        "01-plain-text.sse",
        "01b-plain-text-short-form.sse",
        "02-thinking-and-tool.sse",
        "03-hitl-permission-yes.sse",
        "04-hitl-question.sse",
        "05-hitl-permission-denied.sse",
        "06b-error-then-errored-lifecycle.sse",
        "07c-replay-from-zero.sse",
        "08-long-turn.sse",
    ],
)
def test_the_strict_client_accepts_every_whole_recording(name: str) -> None:
    assert recorded(name).outcome is not None


@pytest.mark.parametrize("name", ["06d-abrupt-eof.sse", "07a-interrupted.sse"])
def test_a_body_without_a_terminal_event_is_a_disconnect(name: str) -> None:
    with pytest.raises(Disconnected):
        recorded(name)


# The command


def test_every_backend_of_the_list_is_an_application() -> None:
    for build in BACKENDS.values():
        assert build(ScriptedOptions(key=KEY, pace=0.0)).router is not None


async def test_the_command_serves_until_it_is_told_to_stop() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "proxy",
        "scripted",
        "engine",
        "--key",
        KEY,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(SOON_S):
        line = (await process.stdout.readline()).decode()
        assert line.startswith("listening on http://127.0.0.1:")
        async with aiohttp.ClientSession() as session:
            client = EngineClient(session, line.split()[-1], KEY)
            assert (await client.turn("script: text", "t")).outcome == "completed"
            left = client.execute("script: ask", "t")
            await anext(left)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
