"""Frames that cannot be read to their end: what they say of ids, pauses and ends counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.model import events as ev
from adapters.model.base import Call, Request
from adapters.offline.translate import TranslateOptions, make_source
from adapters.registry import DIALECTS
from adapters.wire.framing import TORN
from adapters.wire.partial_recovery import block_of, salvage
from tests.pairs.backends import properties_of
from tests.support.each import each
from tests.support.slipped import conversation, slipped

LONG = "x" * 2_000

READ: list[tuple[bytes, dict[str, Any]]] = [
    (b'{"type":"a","data":{"x":1,"y":"ab', {"type": "a", "data": {"x": 1}}),
    (b'{"a":[1,-2.5,{"b":nu', {"a": [1, -2.5, {}]}),
    (b'{"a":12', {}),
    (b'{"a":12 ,"b":tr', {"a": 12}),
    (b'{"a":1} junk', {"a": 1}),
    (b'{"a":1 "b":2}', {"a": 1}),
    (b'{"a" 1}', {}),
    (b'{"a":{},"b":[],"c":null,"d', {"a": {}, "b": [], "c": None}),
    (b'{"a":"\\ud83d","b":"\\q"}', {"a": "\ufffd"}),
    (b'{"a":"\xff","b":tru', {"a": "\ufffd"}),
    (b'{"a":"%b' % LONG.encode(), {"a": f"{LONG[:1000]}…"}),
    (b'{"a":"%b\\ud8' % LONG.encode(), {"a": f"{LONG[:1000]}…"}),
    (b"{oops", {}),
    (b"[1]", {}),
    (b"", {}),
]


@each(("data", "value"), READ)
def test_what_is_whole_is_read_up_to_where_it_makes_no_sense(
    data: bytes, value: dict[str, Any]
) -> None:
    assert salvage(data) == value


def test_it_is_bounded() -> None:
    assert salvage(b'{"a":' * 100)
    deep = json.dumps(salvage(b'{"a":' * 100_000))
    assert deep.count("a") < 20
    assert len(salvage(b'{"a":[' + b"1," * 100_000)["a"]) < 1_001
    assert salvage(b'{"a":"' + b"x" * 2**20 + b'","b":1}').keys() == {"a"}
    assert salvage(b'{"a":' + b"1" * 5_000 + b"}") == {}


def test_the_begin_of_a_frame_of_an_event_stream_has_its_name() -> None:
    block = b'id: 1\nevent: tick\ndata: {"a":1,\ndata:"b":'
    assert block_of(block) == ("tick", b'{"a":1,\n"b":')


def cut(dialect: str, name: str, payload: dict[str, Any]) -> bytes:
    """A frame whose JSON breaks off where `payload` has its last member."""
    if dialect == "eve":
        text = json.dumps({"type": name, "data": payload})
        return text[:-2].encode() + b',"more":"' + b"y" * 100 + b"\n"
    if dialect == "herm":
        text = json.dumps({"id": f"e-{name}", "type": name, "payload": {"type": name, **payload}})
        return f'event: {name}\ndata: {text[:-2]},"more":"yyy\n\n'.encode()
    if dialect == "managed-agents":
        name, payload = "message", {"type": name, "id": f"sevt_{name}", **payload}
    if dialect == "agui":
        payload = {"type": name, **payload}
        return f'data: {json.dumps(payload)[:-1]},"more":"yyy\n\n'.encode()
    return f'event: {name}\ndata: {json.dumps(payload)[:-1]},"more":"yyy\n\n'.encode()


T = {"sequence": 0, "turnId": "turn_0"}
BEGIN = {
    "eve": b'{"type":"turn.started","data":{"sequence":0,"turnId":"turn_0"}}\n',
    "herm": b'event: session.status_running\ndata: {"id":"e1","payload":{}}\n\n',
    "engine": b'event: thread_lifecycle\ndata: {"phase":"started","task_id":"t","turn_id":"u"}\n\n',
    "agui": b'data: {"type":"RUN_STARTED","threadId":"t","runId":"u"}\n\n',
    "managed-agents": b'data: {"id":"sevt_1","type":"session.status_running"}\n\n',
}
ASK = "interaction.requested"
CALL = {"kind": "tool-call", "callId": "c1", "toolName": "x"}
ASKED = {"requestId": "r", "kind": "tool-approval", "action": CALL}
ENDED = {"phase": "completed", "task_id": "t", "turn_id": "u"}
IDLE = {"reason": "end_turn"}
RUN = {"threadId": "t", "runId": "u"}
RETURNED = {"toolCallId": "c1", "messageId": "m1"}
ASKS = {**RUN, "outcome": {"type": "interrupt", "interrupts": [{"id": "r", "reason": "approval"}]}}
RESTS = {"stop_reason": {"type": "end_turn"}}
USE = {"name": "x", "input": {}, "evaluated_permission": "ask"}
ENDS: list[tuple[str, str, dict[str, Any], str]] = [
    ("eve", "turn.completed", T, "turn.ended"),
    ("eve", "turn.failed", {**T, "code": "c"}, "turn.ended"),
    (
        "eve",
        "input.requested",
        {**T, "requests": [{"requestId": "r", "kind": "tool-approval", "action": CALL}]},
        "interaction.requested",
    ),
    ("eve", "action.result", {**T, "result": CALL}, "tool.returned"),
    ("herm", "session.status_idle", IDLE, "turn.ended"),
    (
        "herm",
        "agent.tool_use",
        {"id": "c1", "tool": "x", "requires_action": True},
        "interaction.requested",
    ),
    (
        "herm",
        "agent.clarify_request",
        {"request_id": "r", "question": "?"},
        "interaction.requested",
    ),
    ("herm", "agent.tool_result", {"tool_use_id": "c1"}, "tool.returned"),
    (
        "engine",
        "thread_lifecycle",
        {"phase": "completed", "task_id": "t", "turn_id": "u"},
        "turn.ended",
    ),
    ("engine", "error", {"code": "c", "message": "m"}, "turn.ended"),
    (
        "engine",
        "hitl_request",
        {"request_id": "r", "kind": "permission"},
        "interaction.requested",
    ),
    ("engine", "tool_result", {"tool_call_id": "c1"}, "tool.returned"),
    ("agui", "RUN_FINISHED", RUN, "turn.ended"),
    ("agui", "RUN_ERROR", {"message": "m", "code": "c"}, "turn.ended"),
    ("agui", "RUN_FINISHED", ASKS, "interaction.requested"),
    ("agui", "TOOL_CALL_RESULT", RETURNED, "tool.returned"),
    ("managed-agents", "session.status_idle", RESTS, "turn.ended"),
    ("managed-agents", "agent.tool_use", USE, "tool.called"),
    ("managed-agents", "agent.tool_result", {"tool_use_id": "c1"}, "tool.returned"),
]


@pytest.mark.parametrize(("dialect", "name", "payload", "wanted"), ENDS)
def test_an_end_a_pause_or_a_result_that_breaks_off_counts(
    dialect: str, name: str, payload: dict[str, Any], wanted: str
) -> None:
    source = make_source(dialect, TranslateOptions())
    data = BEGIN[dialect] + cut(dialect, name, payload)
    entries = [*source.feed(data), *source.close()]
    if dialect == "engine" and name == "error":
        # It waits for the second of its two ends.
        wanted = "error.reported"
    types = [entry.event.TYPE for entry in entries]
    assert wanted in types
    assert source.skipped == 1
    for entry in entries:
        if isinstance(entry.event, ev.ToolReturned):
            assert entry.event.output or entry.event.content


def test_a_record_that_has_its_type_behind_its_data_is_known_by_what_it_has() -> None:
    begin = b'{"data":{"requests":[{"requestId":"r","kind":"question","prompt":"' + b"y" * 5_000
    source = make_source("eve", TranslateOptions())
    entries = [*source.feed(BEGIN["eve"] + begin + b"\n"), *source.close()]
    (asked,) = [e.event for e in entries if isinstance(e.event, ev.InteractionRequested)]
    assert asked.request_id == "r"
    assert asked.prompt is not None
    assert asked.prompt.endswith("…")


MORE = b"y" * 8_192
LIVE = {
    "eve": cut("eve", "turn.failed", T)[:-1] + MORE + b'"}}\n',
    "herm": cut("herm", "session.status_idle", IDLE)[:-2] + MORE + b"\n\n",
    "engine": cut("engine", "thread_lifecycle", {"phase": "completed"})[:-2] + MORE + b"\n\n",
    "agui": cut("agui", "RUN_FINISHED", RUN)[:-2] + MORE + b"\n\n",
    "managed-agents": cut("managed-agents", "session.status_idle", RESTS)[:-2] + MORE + b"\n\n",
}


@pytest.mark.parametrize("dialect", LIVE)
async def test_a_turn_ends_over_http_with_a_frame_that_is_too_large(
    tmp_path: Path, dialect: str
) -> None:
    settings = "max_frame_bytes = 4096"
    async with slipped(tmp_path, dialect, LIVE[dialect], 3, settings) as dragoman:
        events = await conversation(dragoman)
    told = [event["message"] for event in events if event["type"] == "error.reported"]
    assert any("longer than the limit of 4096 bytes" in message for message in told)
    at = [event["type"] for event in events]
    after = at[at.index("error.reported") :]
    assert "text.delta" not in after[: after.index("turn.ended")]


def over_large(dialect: str, name: str, payload: dict[str, Any]) -> bytes:
    """The same frame, longer than the limit."""
    frame = cut(dialect, name, payload)
    end = {"eve": b'"}}\n'}.get(dialect, b"\n\n")
    return frame.rstrip(b"\n") + MORE + end


WAITS = [
    ("eve", "input.requested", {**T, "requests": [ASKED]}),
    ("herm", "agent.clarify_request", {"request_id": "r", "question": "?"}),
    ("engine", "hitl_request", {"request_id": "r", "kind": "permission"}),
]


@pytest.mark.parametrize(("dialect", "name", "payload"), WAITS)
async def test_a_request_in_a_frame_that_is_too_large_is_asked_over_http(
    tmp_path: Path, dialect: str, name: str, payload: dict[str, Any]
) -> None:
    frame = over_large(dialect, name, payload)
    async with slipped(tmp_path, dialect, frame, 3, "max_frame_bytes = 4096") as dragoman:
        events = await conversation(dragoman)
    asked = [event["request_id"] for event in events if event["type"] == ASK]
    assert asked == ["r"]
    # The backend goes on: nobody is waited for any more.
    assert [event["type"] for event in events].count("interaction.resolved") == 1


RESULTS = [
    ("eve", "action.result", {**T, "result": CALL}),
    ("herm", "agent.tool_result", {"tool_use_id": "c1"}),
    ("engine", "tool_result", {"tool_call_id": "c1"}),
    ("agui", "TOOL_CALL_RESULT", RETURNED),
    ("managed-agents", "agent.tool_result", {"tool_use_id": "c1"}),
]


@pytest.mark.parametrize(("dialect", "name", "payload"), RESULTS)
async def test_a_result_in_a_frame_that_is_too_large_is_told_over_http(
    tmp_path: Path, dialect: str, name: str, payload: dict[str, Any]
) -> None:
    frame = over_large(dialect, name, payload)
    async with slipped(tmp_path, dialect, frame, 3, "max_frame_bytes = 4096") as dragoman:
        events = await conversation(dragoman)
    returned = {e["call_id"]: e for e in events if e["type"] == "tool.returned"}
    assert "longer than the limit" in json.dumps(returned["c1"])


@pytest.mark.parametrize("dialect", [name for name in LIVE if properties_of(name).reopens])
def test_what_a_body_ends_in_comes_again_and_is_not_used(dialect: str) -> None:
    codec = DIALECTS[dialect].client
    assert codec is not None
    call = Call("stream", Request("GET", "/"), stream=True)
    (told,) = codec({"task_id": "t"}).garbage(call, LIVE[dialect][:200], TORN, 1)
    assert isinstance(told, ev.ErrorReported)
