"""The Herm encoder: canonical events in, envelopes out; and what survives a snapshot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.herm.answers import messages_of, session_object
from adapters.herm.hitl import REQUESTS_KEPT
from adapters.herm.server import HermEncoder
from adapters.herm.wire import position_of
from adapters.model import events as ev
from adapters.model.base import EncoderContext
from adapters.model.normalizer import ABANDONED
from adapters.model.session_info import SessionInfo
from adapters.wire.framing.sse import SseFrame, SseParser
from tests.support.herm_client import Envelope, Expect, StreamChecker, check_envelope

SESSION = "dgs_1"
AT = 1_781_775_000_000
M: dict[str, Any] = {"thread_id": ev.MAIN, "turn_id": "t1"}
S: dict[str, Any] = {"thread_id": ev.MAIN}


def encoder() -> HermEncoder:
    return HermEncoder(EncoderContext(session_id=SESSION, secret=b""))


def entries(events: Sequence[ev.CanonicalEvent]) -> list[ev.Entry]:
    return [ev.Entry(n, AT + n, SESSION, event) for n, event in enumerate(events, start=1)]


def streamed(*events: Any, made: HermEncoder | None = None) -> list[Envelope]:
    """Return the envelopes of the stream, each frame checked."""
    made = made or encoder()
    checker = StreamChecker(SESSION, resumed=True, expect=Expect(payload_ids=False))
    out = []
    for entry in entries(events):
        for frame in made.feed(entry):
            found = checker.feed(frame.data)
            assert [seen["sequence"] for seen in found] in ([frame.cursor], [])
            out += found
    checker.close()
    return out


def listed(*events: Any) -> list[Envelope]:
    """Return the envelopes of the list."""
    made, kept = encoder(), {}
    for entry in entries(events):
        for one in made.envelopes(entry):
            if one.listed:
                kept[one.sequence] = json.loads(one.body)
    for seen in kept.values():
        check_envelope(seen, SESSION)
    return list(kept.values())


def payloads(*events: Any) -> list[Envelope]:
    return [seen["payload"] for seen in streamed(*events)]


def block(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


STARTED = ev.TurnStarted(**M, cause="message")
ENDED = ev.TurnEnded(**M, outcome="completed")


def call(**fields: Any) -> ev.ToolCalled:
    return ev.ToolCalled(**{**M, "call_id": "c1", "name": "shell", "input": {"x": 1}, **fields})


def asks(kind: ev.InteractionKind = "approval", **fields: Any) -> ev.InteractionRequested:
    return ev.InteractionRequested(
        **{**M, "request_id": "r1", "kind": kind, "prompt": "Sure?", **fields}
    )


def test_a_frame_has_three_lines_and_an_id_that_is_a_position() -> None:
    (frame,) = encoder().feed(entries([STARTED])[0])
    event, id_, data = frame.data.decode().rstrip("\n").split("\n")
    assert event == "event: session.status_running"
    assert id_ == "id: evt_dgs_1_1"
    seen = json.loads(data.removeprefix("data: "))
    assert list(seen) == [
        *("id", "type", "sessionId", "sequence", "status", "payload", "processedAt", "createdAt")
    ]
    assert position_of(seen["id"], SESSION) == frame.cursor == seen["sequence"] == 1
    assert position_of(seen["id"], "dgs_2") is None
    assert position_of("evt_dgs_1_x", SESSION) is None


def test_text_comes_as_deltas_and_is_closed_by_the_whole() -> None:
    out = payloads(
        STARTED,
        ev.TextDelta(**M, block_id="b", message_id="m", text="Here "),
        ev.TextDelta(**M, block_id="b", message_id="m", text="it is."),
        ev.TextCompleted(**M, block_id="b", message_id="m", text="Here it is."),
    )
    assert out[1:] == [
        {"type": "agent.message", "delta": True, "content": block("Here ")},
        {"type": "agent.message", "delta": True, "content": block("it is.")},
        {"type": "agent.message", "delta": False, "content": block("Here it is.")},
    ]


def test_deltas_and_titles_are_in_no_list_and_take_numbers() -> None:
    events = (
        STARTED,
        ev.TextDelta(**M, block_id="b", message_id="m", text="Hi"),
        ev.TextCompleted(**M, block_id="b", message_id="m", text="Hi"),
        ev.SessionUpdated(**S, title="Greeting"),
        ENDED,
    )
    assert [seen["sequence"] for seen in streamed(*events)] == [1, 2, 3, 4, 5]
    assert [seen["sequence"] for seen in listed(*events)] == [1, 3, 5]


def test_a_cut_text_is_closed_with_what_came_and_a_discarded_one_with_nothing() -> None:
    cases: tuple[tuple[ev.BlockStatus, str], ...] = (("partial", "Hal"), ("discarded", ""))
    for status, text in cases:
        out = payloads(
            STARTED,
            ev.TextDelta(**M, block_id="b", message_id="m", text="Hal"),
            ev.TextCompleted(**M, block_id="b", message_id="m", text="Hal", status=status),
        )
        assert out[-1] == {
            "type": "agent.message",
            "delta": False,
            "content": block(text),
            "status": status,
        }


def test_words_that_were_never_streamed_are_not_streamed_by_us() -> None:
    out = payloads(
        STARTED,
        ev.TextDelta(**M, block_id="b", message_id="m", text="Whole", synthetic=True),
        ev.TextCompleted(**M, block_id="b", message_id="m", text="Whole"),
    )
    assert [payload.get("delta") for payload in out] == [None, False]


@pytest.mark.parametrize("length", [20_000, 20_001, 60_000])
def test_text_over_twenty_thousand_characters_is_split_into_blocks(length: int) -> None:
    text = "é" * length
    out = payloads(
        STARTED,
        ev.TextDelta(**M, block_id="b", message_id="m", text=text),
        ev.TextCompleted(**M, block_id="b", message_id="m", text=text),
    )
    for payload in out[1:]:
        parts = [item["text"] for item in payload["content"]]
        assert max(map(len, parts)) <= 20_000
        assert "".join(parts) == text


def test_an_ask_that_is_known_is_in_the_tool_use() -> None:
    out = payloads(
        STARTED,
        call(permission="ask", preview="ls"),
        asks(call_id="c1"),
        ev.TurnPaused(**M, on="input", request_ids=("r1",)),
    )
    assert out[1:] == [
        {
            "type": "agent.tool_use",
            "id": "c1",
            "tool": "shell",
            "input": {"x": 1},
            "status": "running",
            "preview": "ls",
            "requires_action": True,
        },
        {
            "type": "session.status_idle",
            "stop_reason": {"type": "requires_action", "event_ids": ["c1"]},
        },
    ]


@pytest.mark.parametrize("permission", ["unknown", "allow"])
def test_an_ask_that_comes_late_repeats_the_tool_use_with_its_id(permission: Any) -> None:
    out = payloads(STARTED, call(permission=permission), asks(call_id="c1"))
    first, second = out[1:]
    assert "requires_action" not in first
    assert second == {**first, "preview": "Sure?", "requires_action": True}


def test_an_ask_without_a_call_gets_a_tool_use_of_its_own_and_a_result() -> None:
    out = payloads(
        STARTED,
        asks(details={"tool": "bash", "input": {"command": "ls"}}),
        ev.TurnPaused(**M, on="input", request_ids=("r1",)),
        ev.InteractionResolved(**M, request_id="r1", outcome="denied"),
        ev.TurnResumed(**M),
    )
    assert (out[1]["id"], out[1]["tool"], out[1]["input"]) == ("r1", "bash", {"command": "ls"})
    assert out[2]["stop_reason"]["event_ids"] == ["r1"]
    assert (out[3]["type"], out[3]["tool_use_id"], out[3]["is_error"]) == (
        "agent.tool_result",
        "r1",
        True,
    )


def test_a_childs_ask_is_on_the_main_line_with_what_it_is_about() -> None:
    out = payloads(
        STARTED,
        ev.ThreadStarted(thread_id="child", parent=ev.MAIN, name="cleaner"),
        asks(
            thread_id="child",
            turn_id="c",
            shown_on=ev.MAIN,
            call_id="other",
            details={"tool": "bash", "input": {"command": "rm"}},
        ),
        ev.TurnPaused(**M, on="input", request_ids=("r1",)),
    )
    assert out[2]["thread_id"] == "child"
    assert out[2]["input"] == {"command": "rm"}
    assert out[3]["stop_reason"]["event_ids"] == ["r1"]


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (
            asks(
                "question", options=(ev.Option(id="a", label="Aye"), ev.Option(id="b", label="Bee"))
            ),
            {"type": "agent.clarify_request", "question": "Sure?", "choices": ["Aye", "Bee"]},
        ),
        (
            asks("question", freeform=True),
            {"type": "agent.clarify_request", "question": "Sure?", "choices": None},
        ),
        (
            asks("limit"),
            {"type": "agent.clarify_request", "question": "Sure?", "choices": ["continue", "stop"]},
        ),
        (
            asks("authorization", details={"url": "https://x.example", "user_code": "AB-1"}),
            {
                "type": "agent.clarify_request",
                "question": "Sure?\nhttps://x.example\nAB-1",
                "choices": ["cancel"],
            },
        ),
        (asks("sudo"), {"type": "agent.sudo_request", "prompt": "Sure?"}),
        (
            asks("secret", details={"env_var": "TOKEN"}),
            {"type": "agent.secret_request", "prompt": "Sure?", "env_var": "TOKEN"},
        ),
        (
            asks("unknown"),
            {"type": "agent.clarify_request", "question": "Sure?", "choices": None},
        ),
    ],
)
def test_each_kind_of_question_has_its_event(
    asked: ev.InteractionRequested, shown: Envelope
) -> None:
    assert payloads(STARTED, asked)[1] == {"request_id": "r1", **shown}


def test_a_custom_tools_result_is_the_users_and_no_event_of_the_agent() -> None:
    out = payloads(
        STARTED,
        call(kind="custom"),
        asks("tool_result", call_id="c1"),
        ev.TurnPaused(**M, on="input", request_ids=("r1",)),
        ev.InteractionAnswered(**S, request_id="r1", command_id="k1", by="ann"),
        ev.ToolReturned(**M, call_id="c1", output="12"),
        ev.InteractionResolved(**M, request_id="r1", outcome="answered"),
        ev.TurnResumed(**M),
    )
    assert [payload["type"] for payload in out] == [
        "session.status_running",
        "agent.custom_tool_use",
        "session.status_idle",
        "session.status_running",
    ]
    assert out[2]["stop_reason"]["event_ids"] == ["c1"]


def test_a_custom_tool_without_a_call_is_answered_without_an_event_of_the_agent() -> None:
    out = payloads(
        STARTED,
        asks("tool_result", details={"tool": "lookup", "input": {"key": 1}}),
        ev.InteractionAnswered(**S, request_id="r1", command_id="k1", by="ann"),
        ev.InteractionResolved(**M, request_id="r1", outcome="answered"),
    )
    assert [payload["type"] for payload in out] == [
        "session.status_running",
        "agent.custom_tool_use",
    ]


def test_results_are_text_and_say_why_they_failed() -> None:
    def result(**fields: Any) -> Envelope:
        return payloads(STARTED, call(), ev.ToolReturned(**M, call_id="c1", **fields))[2]

    assert result(output={"n": 1})["content"] == block('{"n":1}')
    assert result(output="x")["status"] == "completed"
    error = ev.ErrorInfo(code="permission_denied", message="No.")
    denied = result(output="", is_error=True, error=error, status="rejected")
    assert (denied["status"], denied["is_error"], denied["content"]) == (
        "failed",
        True,
        block("No."),
    )
    file = ev.File(media_type="image/png", name="a.png", ref=ev.Url(url="https://x.example"))
    assert result(content=(file,))["content"] == block("[file: a.png (image/png)]")


def test_a_result_that_never_came_is_not_written() -> None:
    error = ev.ErrorInfo(code=ABANDONED, message="gone")
    left = ev.ToolReturned(
        **M, call_id="c1", is_error=True, status="interrupted", error=error, synthetic=True
    )
    assert [p["type"] for p in payloads(STARTED, call(), left, ENDED)][1:] == [
        "agent.tool_use",
        "session.status_idle",
    ]


@pytest.mark.parametrize(
    ("outcome", "error", "reason"),
    [
        ("completed", None, {"type": "end_turn"}),
        ("interrupted", None, {"type": "end_turn", "outcome": "interrupted"}),
        (
            "failed",
            ev.ErrorInfo(code="BAD", message="It broke."),
            {"type": "error", "message": "BAD: It broke."},
        ),
        (
            "refused",
            ev.ErrorInfo(code="policy", message="No."),
            {"type": "error", "message": "refused: policy: No.", "outcome": "refused"},
        ),
        (
            "over_budget",
            None,
            {
                "type": "error",
                "message": "The turn ended: over_budget.",
                "outcome": "over_budget",
            },
        ),
    ],
)
def test_every_outcome_has_a_stop_reason(outcome: Any, error: Any, reason: Envelope) -> None:
    ended = ev.TurnEnded(**M, outcome=outcome, error=error)
    assert payloads(STARTED, ended)[1]["stop_reason"] == reason


@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        ("failed", ev.ErrorInfo(code="boom", message="It broke."), "boom: It broke."),
        ("failed", None, "The session failed."),
        ("terminated", None, "The session was terminated."),
    ],
)
def test_a_session_that_ends_badly_says_how(outcome: Any, error: Any, message: str) -> None:
    (idle,) = payloads(ev.SessionEnded(**S, outcome=outcome, error=error))
    assert idle["stop_reason"] == {"type": "error", "message": message}


def test_a_pause_on_tasks_writes_nothing() -> None:
    out = payloads(STARTED, ev.TurnPaused(**M, on="tasks"), ev.TurnResumed(**M), ENDED)
    assert [p["type"] for p in out] == ["session.status_running", "session.status_idle"]


def test_a_childs_words_and_tools_come_as_thread_messages() -> None:
    child: dict[str, Any] = {"thread_id": "child", "turn_id": "c"}
    out = payloads(
        ev.ThreadStarted(thread_id="child", parent=ev.MAIN, name="scout"),
        ev.ToolCalled(**child, call_id="k", name="look", input={"at": "it"}),
        ev.ToolReturned(**child, call_id="k", output="seen"),
        ev.TextDelta(**child, block_id="b", message_id="m", text="Done"),
        ev.TextCompleted(**child, block_id="b", message_id="m", text="Done"),
        ev.ThreadEnded(thread_id="child", status="completed", output="Done"),
    )
    assert [(p["type"].rpartition("_")[2], p["status"]) for p in out] == [
        ("sent", "started"),
        ("received", "running"),
        ("received", "running"),
        ("received", "running"),
        ("received", "completed"),
    ]
    assert out[1]["tool_use"] == {"id": "k", "tool": "look", "input": {"at": "it"}}
    assert out[2]["tool_result"] == {"tool_use_id": "k", "is_error": False}
    assert {p["name"] for p in out} == {"scout"}


def test_lost_events_are_shown() -> None:
    gap = ev.Gap(**S, reason="cut", cursor_from="4")
    assert payloads(gap) == [{"type": "session.gap", "reason": "cut", "from": "4"}]


def test_a_frame_of_another_dialect_is_not_shown_and_one_of_herm_is() -> None:
    frame = {"type": "agent.weather", "degrees": 19}
    ours = ev.Native(**S, dialect="herm", name="agent.weather", frame=frame)
    theirs = ev.Native(**S, dialect="eve", name="agent.weather", frame=frame)
    made = encoder()
    (shown,) = made.feed(entries([ours])[0])
    assert json.loads(shown.data.split(b"data: ")[1])["payload"] == frame
    assert made.feed(entries([theirs])[0]) == []


# Inputs.


def accepted(kind: ev.InputKind = "message", **fields: Any) -> ev.InputAccepted:
    given: dict[str, Any] = {"command_id": "k1", "by": "ann", "face": "herm", **S}
    if kind == "message":
        given["content"] = (ev.Text(text="Hello"),)
    return ev.InputAccepted(**{**given, "kind": kind, **fields})


def test_an_input_is_pending_then_complete_under_one_id_and_never_streamed() -> None:
    made = encoder()
    first, second = entries([accepted(), ev.InputSettled(**S, command_id="k1", outcome="taken")])
    (frame,) = made.feed(first)
    assert frame.data == b": user.message\n\n"
    (pending,) = map(json.loads, made.inputs(["k1"]))
    assert (pending["status"], pending["processedAt"]) == ("pending", None)
    assert pending["payload"] == {"type": "user.message", "content": block("Hello")}
    assert made.feed(second) == []
    (complete,) = map(json.loads, made.inputs(["k1"]))
    assert complete["status"] == "complete"
    assert complete["processedAt"] is not None
    assert {**complete, "status": "", "processedAt": 0} == {
        **pending,
        "status": "",
        "processedAt": 0,
    }


def test_a_refused_input_says_so() -> None:
    out = listed(
        accepted(), ev.InputSettled(**S, command_id="k1", outcome="refused", reason="Busy.")
    )
    assert (out[0]["status"], out[0]["error"]) == (
        "failed",
        {"code": "refused", "message": "Busy."},
    )


def test_the_input_of_another_face_stands_where_it_was_processed() -> None:
    out = listed(
        accepted(face="eve"),
        STARTED,
        ev.InputSettled(**S, command_id="k1", outcome="taken"),
        ev.MessageReceived(**M, message_id="k1", content=(ev.Text(text="Hello"),), command_id="k1"),
        ENDED,
    )
    assert [seen["type"] for seen in out] == [
        "session.status_running",
        "user.message",
        "session.status_idle",
    ]
    assert [seen["sequence"] for seen in out] == [1, 2, 3]


@pytest.mark.parametrize(
    ("asked", "fields", "payload"),
    [
        (
            asks(call_id="c1"),
            {"details": {"decision": "allow", "scope": "always"}},
            {
                "type": "user.tool_confirmation",
                "tool_use_id": "c1",
                "result": "allow",
                "scope": "always",
            },
        ),
        (
            asks("question", options=(ev.Option(id="a", label="Aye"),)),
            {"details": {"option_ids": ["a"]}},
            {"type": "user.clarify_result", "request_id": "r1", "answer": "Aye"},
        ),
        (
            asks("tool_result"),
            {"content": (ev.Text(text="12"),)},
            {
                "type": "user.custom_tool_result",
                "tool_use_id": "r1",
                "content": block("12"),
                "is_error": False,
            },
        ),
        (asks("sudo"), {}, {"type": "user.sudo_result", "request_id": "r1"}),
        (asks("secret"), {}, {"type": "user.secret_result", "request_id": "r1"}),
    ],
)
def test_an_answer_is_shown_as_the_event_it_is(asked: Any, fields: Any, payload: Envelope) -> None:
    out = listed(
        STARTED, call(permission="ask"), asked, accepted("answer", request_id="r1", **fields)
    )
    assert out[-1]["payload"] == payload


def test_requests_are_found_by_each_of_their_names() -> None:
    made = encoder()
    for entry in entries([STARTED, call(permission="ask"), asks(call_id="c1")]):
        made.feed(entry)
    assert {made.request_of(name) for name in ("r1", "c1", "evt_dgs_1_2")} == {"r1"}
    assert made.request_of("evt_dgs_1_1") is None
    assert made.request_of("nothing") is None


def test_requests_that_are_over_are_forgotten_oldest_first() -> None:
    made = encoder()
    number = 0
    for turn in range(REQUESTS_KEPT + 10):
        for event in (
            asks("question", request_id=f"r{turn}"),
            ev.InteractionResolved(**M, request_id=f"r{turn}", outcome="answered"),
        ):
            number += 1
            made.feed(ev.Entry(number, AT, SESSION, event))
    assert made.request_of("r0") is None
    assert made.request_of(f"r{REQUESTS_KEPT}") is not None
    assert len(json.loads(made.snapshot())["requests"]) == REQUESTS_KEPT


# State, facts.

STORY = (
    ev.SessionStarted(**S, title="A"),
    accepted(),
    ev.InputSettled(**S, command_id="k1", outcome="taken"),
    STARTED,
    ev.TextDelta(**M, block_id="b", message_id="m", text="Hi"),
    ev.TextCompleted(**M, block_id="b", message_id="m", text="Hi"),
    call(permission="ask"),
    asks(call_id="c1"),
    ev.TurnPaused(**M, on="input", request_ids=("r1",)),
    accepted("answer", command_id="k2", request_id="r1", details={"decision": "allow"}),
    ev.InteractionAnswered(**S, request_id="r1", command_id="k2", by="ann"),
    ev.InputSettled(**S, command_id="k2", outcome="taken"),
    ev.InteractionResolved(**M, request_id="r1", outcome="approved"),
    ev.TurnResumed(**M),
    ev.ToolReturned(**M, call_id="c1", output="ok"),
    ev.SessionUpdated(**S, title="B"),
    ENDED,
)


@given(st.integers(0, len(STORY)))
def test_a_restored_encoder_goes_on_where_it_was(place: int) -> None:
    made, whole = encoder(), encoder()
    story = entries(STORY)
    expected = [frame for entry in story for frame in whole.feed(entry)]
    before = [frame for entry in story[:place] for frame in made.feed(entry)]
    again = encoder()
    again.restore(made.snapshot())
    assert again.next_cursor == made.next_cursor
    assert [*before, *(f for entry in story[place:] for f in again.feed(entry))] == expected
    assert again.snapshot() == whole.snapshot()
    assert [frame.cursor for frame in expected] == list(range(1, len(expected) + 1))


def test_times_are_the_backends_where_they_do_not_go_back() -> None:
    def at(time: str) -> ev.NativeRef:
        return ev.NativeRef(dialect="herm", at=time)

    out = streamed(
        ev.TurnStarted(**M, cause="message", native=at("2030-01-01T00:00:00.000Z")),
        ev.TurnEnded(**M, outcome="completed", native=at("2029-01-01T00:00:00.000Z")),
        ev.TurnStarted(thread_id=ev.MAIN, turn_id="t2", cause="message", native=at("soon")),
    )
    assert [seen["createdAt"] for seen in out] == ["2030-01-01T00:00:00.000Z"] * 3


def test_the_session_object_is_the_fold_of_the_sessions_own_events() -> None:
    about = SessionInfo()
    for event in (
        ev.SessionStarted(
            **S,
            agent={"id": "a", "version": 1},
            title="T",
            metadata={"x": 1, "y": 2},
            options={"userId": "u"},
        ),
        ev.SessionUpdated(**S, title="U", metadata={"x": None, "z": 3}),
        ENDED,
    ):
        about.apply(event)
    assert session_object("s", "running", about, AT, AT) == {
        "id": "s",
        "agentId": "a",
        "agentVersion": 1,
        "userId": "u",
        "title": "U",
        "metadata": {"y": 2, "z": 3},
        "status": "running",
        "createdAt": "2026-06-18T09:30:00Z",
        "updatedAt": "2026-06-18T09:30:00Z",
    }
    about.apply(ev.SessionUpdated(**S, archived_at=AT))
    assert session_object("s", "running", about, AT, AT)["status"] == "archived"
    ended = SessionInfo(ended="failed")
    assert session_object("s", "ended", ended, AT, AT)["status"] == "error"


def test_the_history_has_who_said_what() -> None:
    made = encoder()
    found = [one for entry in entries(STORY) for one in made.envelopes(entry) if not one.update]
    assert [(m["role"], m["content"]) for m in messages_of(found)] == [
        ("user", block("Hello")),
        ("agent", block("Hi")),
    ]


def test_a_message_that_no_face_sent_is_listed_with_its_words_and_a_childs_is_not() -> None:
    said: dict[str, Any] = {"message_id": "m1", "content": (ev.Text(text="Hello"),)}
    (shown,) = listed(
        ev.MessageReceived(thread_id="child", turn_id="t2", **said),
        ev.MessageReceived(**S, **said),
    )
    assert shown["payload"] == {"type": "user.message", "content": block("Hello")}


@given(st.text(st.sampled_from("a\r\n\x00\u2028: "), max_size=8))
def test_a_type_that_a_backend_made_up_is_one_line_of_its_frame(rest: str) -> None:
    name = f"agent.{rest}"
    frame = {"type": name, "note": "x"}
    log = entries([ev.Native(**S, dialect="herm", name=name, frame=frame)])
    for made in (made for entry in log for made in encoder().feed(entry)):
        assert len(made.data.decode().replace("\r", "\n").split("\n")) == 5
        (read,) = SseParser().feed(made.data)
        assert isinstance(read, SseFrame)
        assert read.event == name.replace("\r", "\ufffd")
