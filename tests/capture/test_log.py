"""The log of a capture: each record once, however often and from where its client read it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from adapters.captures import (
    BadCapture,
    Capture,
    CapturedEvent,
    CapturedRequest,
    CapturedResponse,
    CaptureHead,
    ExchangeEnd,
    body_of,
    format_record,
    read_capture,
)
from adapters.managed_agents.captured import CAPTURED as MANAGED_AGENTS
from adapters.model import events as ev
from adapters.offline.captured_log import log_of
from adapters.offline.translate import TranslateOptions, make_source
from adapters.wire.errors import NotSupported
from tests.test_project import REPOSITORY

WIRE = REPOSITORY / "fixtures" / "wire"

MEDIA = {"eve": "application/x-ndjson; charset=utf-8"}

Spoken = tuple[str, str, bytes, bytes]
"""Method and target of a request, its body, and the body of its answer."""


def capture(dialect: str | None, spoken: Sequence[Spoken], status: int = 200) -> Capture:
    records: list[object] = [CaptureHead(made_by="a test", at=1.0, dialect=dialect, session="s1")]
    for number, (method, target, said, answer) in enumerate(spoken, 1):
        media = "application/json" if answer[:1] == b"{" and method == "POST" else None
        media = media or MEDIA.get(dialect or "", "text/event-stream")
        at = float(number)
        records.append(
            CapturedRequest(exchange=number, side="backend", at=at, method=method, target=target)
        )
        if said:
            records.append(body_of(number, "request", at, said))
        headers = (("Content-Type", media),)
        records.append(CapturedResponse(exchange=number, at=at, status=status, headers=headers))
        records += [
            body_of(number, "response", at, answer[:7]),
            body_of(number, "response", at, answer[7:]),
        ]
        records.append(ExchangeEnd(exchange=number, at=at, how="ended"))
    lines = [format_record(record) for record in records]  # type: ignore[arg-type]
    return read_capture(lines, "x.ndjson")


def translated(dialect: str, body: bytes) -> list[ev.Entry]:
    source = make_source(dialect, TranslateOptions(session_id="s1"))
    return [*source.feed(body), *source.close()]


def recorded(dialect: str, name: str) -> bytes:
    (file,) = sorted((WIRE / dialect).rglob(name))[:1]
    return file.read_bytes()


def eve() -> bytes:
    return recorded("eve", "approval-approve.01.ndjson")


def stream(at: int | None, body: bytes) -> Spoken:
    query = "" if at is None else f"?startIndex={at}"
    return "GET", f"/eve/v1/session/s1/stream{query}", b"", body


def test_a_stream_that_is_read_in_parts_is_the_same_as_in_one() -> None:
    lines = [line for line in eve().splitlines(keepends=True) if line.strip()]
    whole = translated("eve", eve())
    assert len(lines) > 10
    parts = [
        stream(None, b"".join(lines[:4]) + lines[4][:9]),
        stream(2, b"\n" + b"".join(lines[2:8])),
        stream(8, b"\n\n" + b"".join(lines[8:])),
        stream(0, b"".join(lines)),
    ]
    found = log_of(capture("eve", parts))
    assert found.log == whole
    assert found.notes == []


def test_records_that_nobody_read_are_told() -> None:
    lines = [line for line in eve().splitlines(keepends=True) if line.strip()]
    parts = [
        stream(None, b"".join(lines[:2])),
        stream(4, b"".join(lines[4:])),
        stream(-2, lines[-1]),
    ]
    found = log_of(capture("eve", parts))
    assert found.notes[:2] == [
        "records 2 to 3 were not recorded",
        "exchange 3 begins 2 records before the end, which nothing counts: it is left out",
    ]
    assert found.log


def test_envelopes_of_a_herm_that_come_twice_count_once() -> None:
    body = sorted((WIRE / "herm").rglob("*.sse"))[0].read_bytes()
    whole = translated("herm", body)
    half = body[: len(body) // 2]
    target = "/v1/sessions/s1/events/stream"
    found = log_of(capture("herm", [("GET", target, b"", half), ("GET", target, b"", body)]))
    assert [entry.event for entry in found.log] == [entry.event for entry in whole]


def managed_event(number: int, type_: str) -> bytes:
    data = json.dumps({"id": f"sevt_{number}", "processed_at": None, "type": type_})
    return b"event: message\ndata: %b\n\n" % data.encode()


@pytest.mark.parametrize("prefix", ["", "/as/managed-agents/to/main"])
def test_the_streams_of_a_managed_session_give_its_events_and_those_of_threads_are_told(
    prefix: str,
) -> None:
    first, second, third = (managed_event(n, "agent.thinking") for n in (1, 2, 3))
    session = f"{prefix}/v1/sessions/s1"
    spoken = [
        ("GET", f"{session}/events/stream?beta=true", b"", b": connected\n\n" + first + second[:9]),
        ("GET", f"{session}/threads/sthr_2/stream?beta=true", b"", third),
        ("GET", f"{session}/events/stream", b"", b":keepalive\n\n" + first + second),
    ]
    notes: list[str] = []
    streams = capture("managed-agents", spoken).of_side("backend")
    assert list(MANAGED_AGENTS.new(streams, notes)) == [first, first, second]
    assert notes == [
        "exchange 2 is the stream of the thread sthr_2, whose events are not read: it is left out"
    ]


@pytest.mark.parametrize("prefix", ["", "/some/base"])
@pytest.mark.parametrize("query", ["", "?beta=true"])
@pytest.mark.parametrize(
    ("path", "session"),
    [
        ("/v1/sessions", None),
        ("/v1/sessions/sesn_1", "sesn_1"),
        ("/v1/sessions/sesn%201/archive", "sesn 1"),
        ("/v1/sessions/sesn_1/events/stream", "sesn_1"),
        ("/v1/sessions/sesn_1/threads/sthr_2/stream", "sesn_1"),
        ("/v1/agents/agent_1", None),
    ],
)
def test_the_path_names_a_managed_session(
    prefix: str, query: str, path: str, session: str | None
) -> None:
    naming = MANAGED_AGENTS.naming
    assert naming.of_request(prefix + path + query, b"") == session
    made = b'{"id": "sesn_3", "type": "session"}'
    expected = "sesn_3" if path == "/v1/sessions" else None
    assert naming.of_answer(prefix + path + query, made) == expected


def engine_body() -> bytes:
    frames = [
        ("thread_lifecycle", {"phase": "started", "task_id": "s1", "turn_id": "t1"}),
        ("text_delta", {"text": "Hel"}),
        ("text_delta", {"text": "lo."}),
        ("thread_lifecycle", {"phase": "completed", "task_id": "s1", "turn_id": "t1"}),
    ]
    body = b""
    for number, (name, data) in enumerate(frames):
        data = {**data, "timestamp": f"2026-06-09T08:15:0{number}.000Z"}
        body += b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps(data).encode())
    return body


def test_a_replay_of_an_engine_adds_what_is_above_the_newest_stamp() -> None:
    body = engine_body()
    cut = body.index(b"event: text_delta", body.index(b"Hel"))
    spoken = [
        ("POST", "/execute", b'{"task_id":"s1","message":"hi"}', body[: cut + 20]),
        ("GET", "/execute/replay?after=0&task_id=s1", b"", body),
    ]
    found = log_of(capture("engine", spoken))
    texts = [e.event.text for e in found.log if isinstance(e.event, ev.TextDelta)]
    assert texts == ["Hel", "lo."]
    said = [e.event for e in found.log if isinstance(e.event, ev.MessageReceived)]
    assert [one.content for one in said] == [(ev.Text(text="hi"),)]
    assert sum(isinstance(e.event, ev.TurnEnded) for e in found.log) == 1
    assert found.notes == []


def test_what_was_refused_was_not_said() -> None:
    spoken = [("POST", "/execute", b'{"task_id":"s1","message":"hi"}', b'{"error":"x"}')]
    found = log_of(capture("engine", spoken, 409))
    assert [entry.event.TYPE for entry in found.log] == ["session.started"]
    assert found.notes == ["exchange 1 was not accepted"]


def test_a_capture_with_a_log_of_its_own_is_read_by_that() -> None:
    entry = ev.Entry(1, 1_000, "s1", ev.SessionStarted(thread_id="main"))
    head = CaptureHead(made_by="a test", at=1.0)
    lines = [
        format_record(head),
        format_record(CapturedEvent(at=1.0, entry=json.loads(entry.encode()))),
    ]
    assert log_of(read_capture(lines, "x.ndjson")).log == [entry]


def test_a_capture_that_does_not_say_what_it_is_needs_to_be_told() -> None:
    nameless = capture(None, [stream(None, eve())])
    with pytest.raises(BadCapture, match="does not say which dialect it is of"):
        log_of(nameless)
    with pytest.raises(NotSupported, match="Captures of `hermes-agent` cannot be read yet"):
        log_of(nameless, "hermes-agent")


def test_a_capture_that_was_cut_says_so() -> None:
    lines = [
        format_record(CaptureHead(made_by="a test", at=1.0, dialect="eve")),
        b'{"type":"requ',
    ]
    assert log_of(read_capture(lines, "x.ndjson")).notes == [
        "it was cut off: line 2 is not whole: the recorder was stopped in it"
    ]
