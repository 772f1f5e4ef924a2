"""Backends cut texts between the two UTF-16 units of a character: the character is one again, and
half of one is U+FFFD."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.model import events as ev
from adapters.model.normalizer import Rule
from adapters.offline.translate import TranslateOptions, make_source
from adapters.wire.jsonvalue import Halved, JsonError, mended_json, parse_json
from tests.support.each import each
from tests.support.slipped import conversation, slipped
from tests.wire import FIXTURES

CASE = FIXTURES / "cases" / "eve-surrogate.ndjson"

HIGH, LOW = "\ud83d", "\ude00"


def eve(kind: str, **data: object) -> bytes:
    return b"%b\n" % json.dumps({"type": kind, "data": data}).encode()


def herm(kind: str, number: int, **payload: object) -> bytes:
    envelope = {"id": f"e{number}", "type": kind, "sequence": number, "payload": payload}
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps(envelope).encode())


def engine(name: str, **payload: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps(payload).encode())


def agents(kind: str, **members: object) -> bytes:
    return b"event: message\ndata: %b\n\n" % json.dumps({"type": kind, **members}).encode()


def agui(name: str, **members: object) -> bytes:
    return b"data: %b\n\n" % json.dumps({"type": name, **members}).encode()


def words(number: int, text: str) -> bytes:
    content = [{"type": "text", "text": text}]
    return herm("agent.message", number, delta=True, content=content)


BEGIN = {
    "eve": eve("turn.started", sequence=0, turnId="turn_0"),
    "herm": herm("session.status_running", 1),
    "engine": engine("thread_lifecycle", phase="started", task_id="t", turn_id="u"),
    "agui": agui("RUN_STARTED", threadId="t", runId="u"),
    "managed-agents": agents("session.status_running", id="sevt_1"),
}
END = {
    "eve": eve("turn.completed", sequence=0, turnId="turn_0") + eve("session.waiting"),
    "herm": herm("session.status_idle", 90, reason="end_turn"),
    "engine": engine("thread_lifecycle", phase="completed", task_id="t", turn_id="u"),
    "agui": agui("RUN_FINISHED", threadId="t", runId="u"),
    "managed-agents": agents("session.status_idle", id="sevt_9", stop_reason={"type": "end_turn"}),
}


def pieces(dialect: str, *texts: str) -> bytes:
    """A text in pieces, as a dialect streams it."""
    match dialect:
        case "eve":
            return b"".join(eve("message.appended", messageDelta=text) for text in texts)
        case "herm":
            return b"".join(words(number, text) for number, text in enumerate(texts, 2))
        case "agui":
            return agui("TEXT_MESSAGE_START", messageId="m", role="assistant") + b"".join(
                agui("TEXT_MESSAGE_CONTENT", messageId="m", delta=text) for text in texts
            )
        case "managed-agents":
            started = {"type": "agent.message", "id": "sevt_2"}
            return agents("event_start", event=started) + b"".join(
                agents("event_delta", event_id="sevt_2", delta=previewed(text)) for text in texts
            )
        case _:
            return b"".join(engine("text_delta", text=text) for text in texts)


def previewed(text: str) -> dict[str, object]:
    return {"type": "content_delta", "index": 0, "content": {"type": "text", "text": text}}


def read(dialect: str, data: bytes) -> tuple[list[ev.Event], dict[str, int]]:
    source = make_source(dialect, TranslateOptions())
    found = [entry.event for entry in [*source.feed(data), *source.close()]]
    for event in found:
        # No half of a character is in it.
        parse_json(ev.encode_event(event))
    return found, source.repairs


def texts_of(events: list[ev.Event]) -> tuple[list[str], list[str]]:
    deltas = [event.text for event in events if isinstance(event, ev.TextDelta)]
    return deltas, [event.text for event in events if isinstance(event, ev.TextCompleted)]


CUTS: list[tuple[tuple[str, ...], list[str], int, int]] = [
    (("a" + HIGH, LOW + "b"), ["a", "\U0001f600b"], 2, 1),
    (("a" + HIGH, LOW, "b"), ["a", "\U0001f600", "b"], 2, 1),
    ((HIGH, LOW + HIGH, LOW), ["\U0001f600", "\U0001f600"], 3, 2),
    (("a" + HIGH, "b"), ["a", "\ufffdb"], 1, 0),
    (("a" + HIGH, HIGH, LOW), ["a", "\ufffd", "\U0001f600"], 3, 1),
    (("a", LOW + "b"), ["a", "\ufffdb"], 1, 0),
    (("a" + HIGH,), ["a", "\ufffd"], 1, 0),
    (("a" + LOW + HIGH + "b", "c"), ["a\ufffd\ufffdb", "c"], 1, 0),
]


@each("dialect", BEGIN)
@each(("cut", "deltas", "mended", "joined"), CUTS)
def test_halves_of_a_character_are_joined_or_replaced(
    dialect: str, cut: tuple[str, ...], deltas: list[str], mended: int, joined: int
) -> None:
    data = BEGIN[dialect] + pieces(dialect, *cut) + END[dialect]
    events, repairs = read(dialect, data)
    found, whole = texts_of(events)
    assert found == deltas
    assert whole == ["".join(deltas)]
    assert repairs.get(Rule.HALF_CHARACTER, 0) == mended
    assert repairs.get(Rule.JOINED_CHARACTER, 0) == joined
    assert [event.outcome for event in events if isinstance(event, ev.TurnEnded)] == ["completed"]


def test_a_record_that_also_has_all_so_far_is_read() -> None:
    events, repairs = read("eve", CASE.read_bytes())
    assert texts_of(events) == (["hi ", "\U0001f600 there"], ["hi \U0001f600 there"])
    (returned,) = [event for event in events if isinstance(event, ev.ToolReturned)]
    assert returned.output == "page cut at 8000 \ufffd"
    (asked,) = [event for event in events if isinstance(event, ev.InteractionRequested)]
    assert asked.request_id == "aitxt-1"
    assert "\ufffd" in ev.encode_event(asked).decode()
    assert isinstance(events[-1], ev.TurnPaused)
    assert repairs == {"half-character": 4, "joined-character": 1}


def test_the_inputs_of_tools_that_are_written_at_once_are_joined_each_by_itself() -> None:
    def piece(call: str, text: str) -> bytes:
        return eve("action.input.appended", callId=call, toolName="x", inputTextDelta=text)

    data = piece("c1", "a" + HIGH) + piece("c2", "b" + HIGH) + piece("c1", LOW) + piece("c2", "c")
    events, _ = read("eve", BEGIN["eve"] + data + END["eve"])
    found = [(e.call_id, e.text) for e in events if isinstance(e, ev.ToolInputDelta)]
    assert found == [("c1", "a"), ("c2", "b"), ("c1", "\U0001f600"), ("c2", "\ufffdc")]


def test_blocks_of_one_delta_are_joined() -> None:
    content = [{"type": "text", "text": "a" + HIGH}, {"type": "text", "text": LOW + HIGH}]
    data = herm("agent.message", 2, delta=True, content=content) + words(3, LOW)
    events, _ = read("herm", BEGIN["herm"] + data + END["herm"])
    assert texts_of(events)[0] == ["a\U0001f600", "\U0001f600"]


@pytest.mark.parametrize(
    "data",
    [
        rb'["\ud83d"',
        rb'{"a":"\ud83d","b":NaN}',
        rb'"\ud83d' + b'\xff"',
        b"[" * 200 + rb'"\ud83d"' + b"]" * 200,
        b"nonsense",
    ],
)
def test_what_is_also_wrong_otherwise_is_no_json(data: bytes) -> None:
    with pytest.raises(JsonError):
        mended_json(data)


def test_halves_are_mended_everywhere_and_known_at_the_ends_of_texts() -> None:
    value: Any = mended_json(rb'{"\ud83d":["x\ude00y",1,"\ud83d\ude00"],"b":"\ude00 \ud83d"}')
    assert value == {"\ufffd": ["x\ufffdy", 1, "\U0001f600"], "b": "\ufffd \ufffd"}
    assert type(value["\ufffd"][0]) is str
    assert isinstance(value["b"], Halved)
    assert value["b"].halves == f"{LOW} {HIGH}"
    with pytest.raises(JsonError):
        parse_json(rb'"\ud83d"')


@pytest.mark.parametrize(
    ("dialect", "place"),
    [("eve", 4), ("herm", 4), ("engine", 1), ("agui", 4), ("managed-agents", 4)],
)
async def test_a_backend_over_http_cuts_characters(
    tmp_path: Path, dialect: str, place: int
) -> None:
    if dialect == "herm":
        # Numbers would leave a hole.
        data = words(2, f"a{HIGH}") + words(3, f"{LOW}b")
        data = data.replace(b'"sequence": 2, ', b"").replace(b'"sequence": 3, ', b"")
    else:
        data = pieces(dialect, f"a{HIGH}", f"{LOW}b")
    async with slipped(tmp_path, dialect, data, place) as dragoman:
        events = await conversation(dragoman)
        metrics = (await dragoman.get("/metrics")).decode()
    deltas = [event["text"] for event in events if event["type"] == "text.delta"]
    assert [text for text in deltas if text in ("a", "\U0001f600b")] == ["a", "\U0001f600b"]
    assert [event["outcome"] for event in events if event["type"] == "turn.ended"] == ["completed"]
    assert not [event for event in events if event["type"] == "error.reported"]
    for rule, count in (("half-character", 2), ("joined-character", 1)):
        line = f'dragoman_repairs_total{{dialect="{dialect}",rule="{rule}"}} {count}.0'
        assert line in metrics
