"""The encoder of the managed-agents face: a log becomes the events of its streams and lists."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from multidict import MultiDict

from adapters.managed_agents.pages import EventPage
from adapters.managed_agents.requests import PageQuery, parse_list
from adapters.managed_agents.server import PREVIEWS, ManagedAgentsEncoder
from adapters.model import events as ev
from adapters.model.base import EncoderContext
from adapters.model.normalizer import Normalizer
from adapters.model.state import LogState
from tests.support.managed_agents_client import StreamChecker, check_join
from tests.test_laws import streams

SESSION = "dgs_1"
M = ev.MAIN
CHILD = "child-1"
GOLDENS = [
    path
    for path in sorted(Path("fixtures/golden").rglob("canonical.ndjson"))
    # It has what comes after the types that the strict client knows.
    if path.parent.name != "managed-agents-documented-07-tolerance"
]


def context(thread: str = M, *previews: str) -> EncoderContext:
    return EncoderContext(SESSION, b"s" * 32, thread, settings={PREVIEWS: previews})


def entries(events: Iterable[ev.Event]) -> list[ev.Entry]:
    return [ev.Entry(seq, 1000, SESSION, event) for seq, event in enumerate(events, 1)]


def streamed(log: Sequence[ev.Entry], thread: str = M, *previews: str) -> list[dict[str, Any]]:
    """Return what a reader sees who was there from the beginning, checked as a client checks it."""
    encoder = ManagedAgentsEncoder(context(thread, *previews))
    checker = StreamChecker(thread=thread != M, previews=previews)
    assert checker.feed(b": connected\n\n") == []
    cursor, found = 0, []
    for entry in log:
        for frame in encoder.feed(entry):
            assert frame.cursor > cursor
            cursor = frame.cursor
            found += checker.feed(frame.data)
    checker.close()
    return found


def listed(log: Sequence[ev.Entry], limit: int, *, descending: bool = False) -> list[Any]:
    """Return a list, page by page, each page made of parts that begin anywhere before."""
    newest = ManagedAgentsEncoder(context())
    for entry in log:
        newest.feed(entry)
    found: list[Any] = []
    query = PageQuery(limit, descending)
    order = "desc" if descending else "asc"
    while True:
        page = EventPage(query, order, newest.next_cursor - 1, newest.waiting)
        while (at := page.wanted) is not None:
            encoder, first = _before(log, at)
            page.begin(encoder)
            for entry in log[first:]:
                if not page.add(entry):
                    break
            page.end()
        answer = json.loads(page.out)
        found += answer["data"]
        if answer["next_page"] is None:
            return found
        assert answer["data"]
        position, pin = _cursor(answer["next_page"], order)
        query = PageQuery(limit, descending, position, pin)


def _before(log: Sequence[ev.Entry], at: int) -> tuple[ManagedAgentsEncoder, int]:
    """Return an encoder some entries before a cursor, and how many it was fed with."""
    probe, places = ManagedAgentsEncoder(context()), [0]
    for number, entry in enumerate(log, 1):
        probe.feed(entry)
        if probe.next_cursor <= at:
            places.append(number)
    place = max(0, places[-1] - 3)
    encoder = ManagedAgentsEncoder(context())
    for entry in log[:place]:
        encoder.feed(entry)
    again = ManagedAgentsEncoder(context())
    again.restore(encoder.snapshot())
    return again, place


def _cursor(text: str, order: str) -> tuple[int, int]:
    query = MultiDict({"page": text, "order": order})
    found = parse_list(query, default=1, most=1, order="asc")
    assert found.position is not None
    assert found.pin is not None
    return found.position, found.pin


def check(log: Sequence[ev.Entry]) -> None:
    """Check that list and stream of a log are the same, whatever the pages."""
    state = LogState()
    for entry in log:
        state.apply_entry(entry)
    seen = streamed(log)
    ids = [one["id"] for one in seen if one["processed_at"] is not None]
    assert len(set(ids)) == len(ids)
    everything = listed(log, 1000)
    check_join(seen, everything)
    assert [one for one in everything if one["processed_at"] is not None] == [
        one for one in seen if one["processed_at"] is not None
    ]
    assert listed(log, 3) == everything
    assert listed(log, 3, descending=True) == everything[::-1]
    previewed = streamed(log, M, "agent.message", "agent.thinking")
    assert [one for one in previewed if not one["type"].startswith("event_")] == seen


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: path.parent.name)
def test_lists_and_streams_of_every_golden_log_are_the_same(path: Path) -> None:
    log = [ev.Entry.decode(line) for line in path.read_bytes().splitlines()]
    check([entry._replace(session_id=SESSION) for entry in log])


def test_lists_and_streams_of_every_kind_of_event_are_the_same() -> None:
    lines = Path("fixtures/canonical/every-type.ndjson").read_bytes().splitlines()
    check([ev.Entry.decode(line)._replace(session_id=SESSION) for line in lines])


@given(streams())
@settings(max_examples=30)
def test_lists_and_streams_of_any_log_are_the_same(frames: list[list[ev.Event]]) -> None:
    normalizer = Normalizer()
    check(entries(event for frame in frames for event in normalizer.feed(frame)))


def started(**more: Any) -> list[ev.Event]:
    return [ev.SessionStarted(thread_id=M, agent={"name": "Gardener"}, **more)]


def accepted(command: str, text: str = "hello", **more: Any) -> ev.InputAccepted:
    return ev.InputAccepted(
        thread_id=M,
        command_id=command,
        kind="message",
        content=(ev.Text(text=text),),
        policy="queue",
        by="web",
        **more,
    )


def received(command: str, text: str = "hello") -> list[ev.Event]:
    content = (ev.Text(text=text),)
    return [
        ev.InputSettled(thread_id=M, command_id=command, outcome="taken"),
        ev.MessageReceived(thread_id=M, message_id=command, content=content, command_id=command),
    ]


def turn(cause: Any = "message") -> ev.TurnStarted:
    return ev.TurnStarted(thread_id=M, turn_id="t1", cause=cause)


def over(outcome: Any = "completed", **more: Any) -> ev.TurnEnded:
    return ev.TurnEnded(thread_id=M, turn_id="t1", outcome=outcome, **more)


def types(seen: Iterable[dict[str, Any]]) -> list[str]:
    return [one["type"] for one in seen]


def test_a_message_that_wakes_the_agent_is_shown_once_behind_the_events_that_say_so() -> None:
    events = [*started(), accepted("c1"), turn(), *received("c1"), over()]
    seen = streamed(entries(events))
    assert types(seen) == [
        "session.status_running",
        "session.thread_status_running",
        "user.message",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]
    assert seen[2]["processed_at"] is not None


def test_a_message_that_waits_is_shown_twice_and_moves_in_lists() -> None:
    events = [*started(), accepted("c1"), turn(), *received("c1"), accepted("c2", "and then?")]
    seen = streamed(entries(events))
    assert seen[-1]["processed_at"] is None
    waiting = listed(entries(events), 1000)
    assert waiting[-1] == seen[-1]
    more = [*events, over(), turn("queue").model_copy(update={"turn_id": "t2"})]
    more += [*received("c2", "and then?"), over().model_copy(update={"turn_id": "t2"})]
    seen = streamed(entries(more))
    shown = [one for one in seen if one["type"] == "user.message"]
    assert [one["processed_at"] is None for one in shown] == [False, True, False]
    assert shown[1]["id"] == shown[2]["id"]
    assert types(listed(entries(more), 1000)).count("user.message") == 2


def test_a_refused_message_leaves_nobody_waiting() -> None:
    refusal = ev.InputSettled(thread_id=M, command_id="c1", outcome="refused", reason="It is full.")
    seen = streamed(entries([*started(), accepted("c1"), refusal]))
    assert types(seen) == [
        "session.status_running",
        "session.thread_status_running",
        "user.message",
        "session.error",
        "session.thread_status_idle",
        "session.usage",
        "session.status_idle",
    ]
    assert "It is full." in seen[3]["error"]["message"]
    assert seen[3]["error"]["retry_status"] == {"type": "exhausted"}
    assert seen[-1]["stop_reason"] == {"type": "retries_exhausted"}


def test_a_failed_turn_says_why_before_it_is_idle() -> None:
    error = ev.ErrorInfo(code="model_overloaded_error", message="The model is busy.")
    events = [*started(), accepted("c1"), turn(), *received("c1"), over("failed", error=error)]
    seen = streamed(entries(events))
    assert seen[3]["error"] == {
        "type": "model_overloaded_error",
        "message": "The model is busy.",
        "retry_status": {"type": "exhausted"},
    }
    assert seen[-1]["stop_reason"] == {"type": "retries_exhausted", "outcome": "failed"}


def text(words: str, *, block: str = "b1", status: Any = "complete") -> list[ev.Event]:
    more: Any = {"thread_id": M, "turn_id": "t1", "block_id": block, "message_id": block}
    pieces = [words[:3], words[3:]]
    return [
        *(ev.TextDelta(text=piece, **more) for piece in pieces),
        ev.TextCompleted(text=words, status=status, **more),
    ]


def test_previews_have_the_id_of_the_message_that_ends_them() -> None:
    events = [*started(), accepted("c1"), turn(), *received("c1"), *text("It grows."), over()]
    seen = streamed(entries(events), M, "agent.message")
    previews = [one for one in seen if one["type"].startswith("event_")]
    assert [one["type"] for one in previews] == ["event_start", "event_delta", "event_delta"]
    (message,) = (one for one in seen if one["type"] == "agent.message")
    assert previews[0]["event"] == {"type": "agent.message", "id": message["id"]}
    assert message["content"] == [{"type": "text", "text": "It grows."}]


def test_who_comes_in_the_middle_of_a_message_gets_what_was_previewed() -> None:
    encoder = ManagedAgentsEncoder(context(M, "agent.message"))
    events = [*started(), accepted("c1"), turn(), *received("c1"), *text("It grows.")]
    log = entries(events)
    for entry in log[:-1]:
        encoder.feed(entry)
    checker = StreamChecker(previews=["agent.message"], late=True)
    seen = checker.feed(b": connected\n\n" + encoder.opening())
    seen += [one for frame in encoder.feed(log[-1]) for one in checker.feed(frame.data)]
    assert types(seen) == ["event_start", "event_delta", "agent.message"]


def test_a_message_that_was_cut_off_has_no_event() -> None:
    events = [*started(), turn(), *text("It gro", status="partial"), over("interrupted")]
    seen = streamed(entries(events), M, "agent.message")
    assert "agent.message" not in types(seen)
    (end,) = (one for one in seen if one["type"] == "span.model_request_end")
    assert end["is_error"] is True


def ask(kind: Any = "question", **more: Any) -> list[ev.Event]:
    request = {
        "thread_id": M,
        "turn_id": "t1",
        "request_id": "r1",
        "kind": kind,
        "prompt": "Which?",
    }
    return [
        ev.InteractionRequested(**{**request, **more}),
        ev.TurnPaused(thread_id=M, turn_id="t1", on="input", request_ids=("r1",)),
    ]


def test_a_question_is_a_use_of_the_reserved_tool() -> None:
    options = (ev.Option(id="a", label="Upper"), ev.Option(id="b", label="Lower"))
    events = [*started(), turn(), *ask(options=options)]
    seen = streamed(entries(events))
    (use,) = (one for one in seen if one["type"] == "agent.custom_tool_use")
    assert (use["name"], use["input"]) == (
        "dragoman_ask",
        {
            "kind": "question",
            "question": "Which?",
            "options": [{"id": "a", "label": "Upper"}, {"id": "b", "label": "Lower"}],
            "freeform": False,
        },
    )
    assert seen[-1]["stop_reason"] == {"type": "requires_action", "event_ids": [use["id"]]}


@pytest.mark.parametrize("kind", ["secret", "sudo", "unknown", "authorization"])
def test_what_nothing_answers_here_can_only_be_declined(kind: str) -> None:
    seen = streamed(entries([*started(), turn(), *ask(kind)]))
    (use,) = (one for one in seen if one["type"] == "agent.custom_tool_use")
    assert [one["id"] for one in use["input"]["options"]] == ["decline"]


def call(thread: str = M, **more: Any) -> ev.ToolCalled:
    given: Any = {"turn_id": "t1", "call_id": "k1", "name": "bash", "input": {"command": "ls"}}
    return ev.ToolCalled(thread_id=thread, **{**given, **more})


def test_an_answer_is_shown_before_what_it_causes() -> None:
    answer = ev.InputAccepted(
        thread_id=M,
        command_id="c2",
        kind="answer",
        request_id="r1",
        details={"decision": "deny", "reason": "Not today."},
        by="web",
    )
    claim = ev.InteractionAnswered(thread_id=M, request_id="r1", command_id="c2", by="web")
    events = [
        *(*started(), turn(), call(permission="ask"), *ask("approval", call_id="k1")),
        *(answer, claim),
        ev.TurnResumed(thread_id=M, turn_id="t1"),
        ev.InputSettled(thread_id=M, command_id="c2", outcome="taken"),
    ]
    # The agent went on before the answer to the answer came.
    seen = streamed(entries(events))
    (use,) = (one for one in seen if one["type"] == "agent.tool_use")
    assert types(seen)[-3:] == [
        "user.tool_confirmation",
        "session.status_running",
        "session.thread_status_running",
    ]
    assert {**seen[-3], "id": "", "processed_at": ""} == {
        "type": "user.tool_confirmation",
        "tool_use_id": use["id"],
        "result": "deny",
        "deny_message": "Not today.",
        "id": "",
        "processed_at": "",
    }


def child() -> list[ev.Event]:
    return [
        ev.ThreadStarted(thread_id=CHILD, parent=M, name="Cellar", call_id="k0"),
        ev.TurnStarted(thread_id=CHILD, turn_id="t2", cause="background"),
        call(CHILD, turn_id="t2", permission="ask"),
        ev.InteractionRequested(
            thread_id=CHILD,
            turn_id="t2",
            request_id="r1",
            shown_on=M,
            kind="approval",
            prompt="",
            call_id="k1",
        ),
        ev.TurnPaused(thread_id=CHILD, turn_id="t2", on="input", request_ids=("r1",)),
    ]


def test_a_child_has_a_stream_of_its_own_and_its_ask_is_on_both() -> None:
    log = entries([*started(), turn(), *child()])
    main, own = streamed(log), streamed(log, CHILD)
    (here,) = (one for one in main if one["type"] == "agent.tool_use")
    (there,) = (one for one in own if one["type"] == "agent.tool_use")
    assert here["id"] == there["id"]
    assert here["session_thread_id"] == CHILD
    assert "session_thread_id" not in there
    status = "session.thread_status_idle"
    # Times are those of a stream: events of one moment differ by a microsecond.
    times = {"processed_at": ""}
    both = [[{**one, **times} for one in seen if one["type"] == status] for seen in (main, own)]
    assert both[0] == both[1]
    assert both[0][0]["stop_reason"] == {"type": "requires_action", "event_ids": [here["id"]]}


def test_a_snapshot_goes_on_as_its_encoder_would() -> None:
    lines = Path("fixtures/canonical/every-type.ndjson").read_bytes().splitlines()
    log = [ev.Entry.decode(line) for line in lines]
    one = ManagedAgentsEncoder(context(M, "agent.message"))
    for entry in log:
        other = ManagedAgentsEncoder(context(M, "agent.message"))
        other.restore(one.snapshot())
        assert other.next_cursor == one.next_cursor
        assert other.feed(entry) == one.feed(entry)
        assert other.snapshot() == one.snapshot()


def test_guidance_is_shown_where_it_was_taken_up_and_not_when_the_agent_goes_on() -> None:
    steer = ev.InputAccepted(
        thread_id=M, command_id="c2", kind="steer", details={"text": "Shorter."}, by="web"
    )
    events = [
        *(*started(), turn(), call(permission="ask"), *ask("approval", call_id="k1"), steer),
        ev.InteractionResolved(thread_id=M, request_id="r1", outcome="approved"),
        ev.TurnResumed(thread_id=M, turn_id="t1"),
    ]
    assert "user.message" not in types(streamed(entries(events)))
    events += [
        ev.InputSettled(thread_id=M, command_id="c2", outcome="taken"),
        ev.GuidanceReceived(thread_id=M, turn_id="t1", text="Shorter.", command_id="c2"),
    ]
    shown = streamed(entries(events))[-1]
    assert (shown["type"], shown["content"]) == (
        "user.message",
        [{"type": "text", "text": "Shorter."}],
    )
