"""Notes: events that a protocol has no event for, as a name and a value."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.model import events as ev
from adapters.serving.notes import Note, handlers, note_of

AT: dict[str, Any] = {"thread_id": ev.MAIN}
PATCH = {"op": "remove", "path": "/n"}

TOLD: list[tuple[ev.Event, Note | None]] = [
    (
        ev.SessionUpdated(**AT, title="Cats", options={"secret": 1}, replaced_by="s2"),
        Note("session", {"title": "Cats", "replaced_by": "s2"}),
    ),
    (ev.SessionUpdated(**AT, options={"secret": 1}), None),
    (ev.ContextCompacted(**AT, before_tokens=9.0), Note("compacted", {"before_tokens": 9.0})),
    (ev.ContextCompacted(**AT, phase="started", before_tokens=9.0), None),
    (ev.ContextCompacted(**AT), Note("compacted", {})),
    (ev.ContextCleared(**AT), Note("cleared", {})),
    # The quote is for who runs this.
    (
        ev.ErrorReported(**AT, code="c", message="m", details={"n": None}, quote="token"),
        Note("error", {"code": "c", "message": "m", "details": {"n": None}}),
    ),
    (
        ev.OutcomeEvaluated(**AT, outcome_id="o", phase="ended", iteration=2, result="good"),
        Note("outcome", {"outcome_id": "o", "phase": "ended", "iteration": 2, "result": "good"}),
    ),
    (
        ev.Notice(**AT, text="slow", kind="load", call_id="c"),
        Note("notice", {"level": "info", "text": "slow", "kind": "load", "call_id": "c"}),
    ),
    (ev.Gap(**AT, reason="lost", cursor_to="7"), Note("gap", {"reason": "lost", "cursor_to": "7"})),
    (ev.MemoryUpdated(**AT, value=None), Note("memory", None)),
    (ev.StateUpdated(**AT, value={"n": 1}), Note("state", {"value": {"n": 1}})),
    (ev.StateUpdated(**AT, value=None), Note("state", {})),
    (ev.StateUpdated(**AT, patch=(PATCH,)), Note("state", {"patch": [PATCH]})),
    (
        ev.ActivityUpdated(**AT, activity_id="a", kind="PLAN", content={"n": 1}),
        Note("activity", {"activity_id": "a", "kind": "PLAN", "content": {"n": 1}}),
    ),
    (
        ev.ThreadMessage(
            **AT,
            direction="sent",
            recipient="child",
            content=(ev.Text(text="a"), ev.Text(text="b")),
        ),
        Note("thread_message", {"direction": "sent", "to": "child", "text": "a\nb"}),
    ),
    (
        ev.ThreadMessage(**AT, direction="received", sender="child"),
        Note("thread_message", {"direction": "received", "from": "child", "text": ""}),
    ),
]


@pytest.mark.parametrize(("event", "note"), TOLD)
def test_an_event_becomes_its_note_without_what_is_null(event: ev.Event, note: Note | None) -> None:
    assert note_of(event) == note


def test_every_event_with_a_note_is_told_by_the_function_that_writes_it() -> None:
    def put(told: list[Note], name: str, value: Any) -> None:
        told.append(Note(name, value))

    table = handlers(put)
    assert set(table) == {event.TYPE for event, _ in TOLD}
    told: list[Note] = []
    for event, _ in TOLD:
        table[event.TYPE](told, event)
    assert told == [note for _, note in TOLD if note is not None]
