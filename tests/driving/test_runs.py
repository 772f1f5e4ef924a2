"""Runs whose body is all that tells of them, and the answers that are gathered for one."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import TypeAdapter

from adapters.driving import runs
from adapters.driving.asks import InteractionAnswer, InteractionLedger
from adapters.driving.ledger import InputLedger, SentInput
from adapters.driving.runs import BackendRuns, GatheredRequest, Run
from adapters.model import events as ev

YES = {"payload": {"approved": True}}
ERROR = ev.ErrorInfo(code="no", message="No.")


@dataclasses.dataclass(slots=True)
class Parts:
    """The parts of a codec that a run concerns: two requests are open."""

    runs: BackendRuns = dataclasses.field(default_factory=BackendRuns)
    asks: InteractionLedger[GatheredRequest] = dataclasses.field(default_factory=InteractionLedger)
    ledger: InputLedger[SentInput] = dataclasses.field(default_factory=InputLedger)

    def __post_init__(self) -> None:
        for name in ("r1", "r2"):
            self.asks.ask(name, GatheredRequest("approval"))

    def give(self, number: int, *, kept: bool = False) -> None:
        given = InteractionAnswer(f"a{number}", "approved", scope="once")
        runs.gather(self.asks, self.ledger, f"r{number}", given, YES)
        if kept:
            self.runs.kept.append(f"r{number}")

    def tell(self) -> list[ev.Event]:
        return runs.tell_kept(self.runs, self.asks, self.ledger, "t")

    def begin(self) -> Run:
        given = runs.answers_of(self.asks)
        self.runs.current = run = Run("run", list(given.values()), given)
        return run

    def work(self) -> list[ev.Event]:
        return runs.show_work(self.runs, self.asks, self.ledger, "t", None)

    def refuse(self, run: Run) -> list[ev.Event]:
        return runs.refuse_answers(run, self.asks, self.ledger, "t", ERROR)


def told(events: list[ev.Event]) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case ev.InputSettled(command_id=name, outcome=outcome):
                out.append((name, outcome))
            case ev.InteractionResolved(request_id=name, outcome=outcome, synthetic=ours):
                out.append((name, outcome, ours))
            case ev.InteractionAnswered(request_id=name, state=state):
                out.append((name, state))
            case ev.Notice(kind=kind, text=text):
                out.append((kind, text))
            case _:
                out.append((event.TYPE,))
    return out


def test_answers_are_complete_when_each_request_has_one() -> None:
    parts = Parts()
    assert not runs.is_complete(parts.asks)
    parts.give(1)
    assert not runs.is_complete(parts.asks)
    parts.give(2)
    assert runs.is_complete(parts.asks)
    assert runs.answers_of(parts.asks) == {"r1": "a1", "r2": "a2"}
    parts.asks.clear()
    assert not runs.is_complete(parts.asks)


def test_an_answer_that_is_kept_is_told_once_with_how_many_are_missing() -> None:
    parts = Parts()
    parts.give(1, kept=True)
    assert parts.runs.due == 0
    assert told(parts.tell()) == [
        ("a1", "taken"),
        ("r1", "approved", True),
        ("answers_kept", "The agent goes on when 1 more of 2 requests are answered."),
    ]
    again = parts.tell()
    parts.runs.kept.append("r1")
    assert [again, parts.tell()] == [[], []]


def test_what_is_over_or_was_taken_back_is_not_told_as_kept() -> None:
    parts = Parts()
    parts.runs.kept += ["gone", "r1"]
    assert parts.tell() == []
    assert parts.runs.kept == []


def test_the_last_answer_needs_no_word_of_those_that_are_missing() -> None:
    parts = Parts()
    parts.give(1, kept=True)
    parts.give(2)
    assert told(parts.tell()) == [("a1", "taken"), ("r1", "approved", True)]


def test_the_first_work_of_a_run_takes_its_answers() -> None:
    parts = Parts()
    parts.give(1, kept=True)
    parts.tell()
    parts.give(2)
    parts.begin()
    assert told(parts.work()) == [
        ("a2", "taken"),
        ("r2", "approved", False),
        ("turn.resumed",),
    ]
    assert not parts.asks.open
    assert parts.work() == []


def test_a_run_without_answers_resumes_nothing_and_none_shows_no_work() -> None:
    parts = Parts()
    assert parts.work() == []
    parts.runs.current = Run("run", ["k1"])
    assert parts.work() == []
    assert parts.runs.current.working
    assert parts.runs.take() is not None
    assert parts.runs.take() is None


def test_refused_answers_can_be_given_again() -> None:
    parts = Parts()
    parts.give(1)
    parts.give(2)
    run = parts.begin()
    assert told(parts.refuse(run)) == [
        *(("a1", "refused"), ("r1", "released")),
        *(("a2", "refused"), ("r2", "released")),
    ]
    assert not runs.is_complete(parts.asks)
    assert runs.answers_of(parts.asks) == {}


def test_what_is_over_for_frontends_stays_answered_when_a_run_is_refused() -> None:
    parts = Parts()
    parts.give(1, kept=True)
    parts.tell()
    parts.give(2)
    run = parts.begin()
    assert told(parts.refuse(run)) == [("a2", "refused"), ("r2", "released")]
    parts.give(2)
    assert runs.is_complete(parts.asks)


def test_refused_answers_to_what_is_over_are_settled() -> None:
    parts = Parts()
    parts.give(1)
    run = parts.begin()
    del parts.asks.open["r1"]
    assert told(parts.refuse(run)) == [("a1", "refused")]


def test_what_is_forgotten_has_no_answer_any_more() -> None:
    parts = Parts()
    parts.give(1)
    parts.give(2)
    forgotten = runs.forget(parts.asks, parts.ledger, ["a1", "nobody"])
    assert told(forgotten) == [("r1", "released")]
    assert list(parts.ledger.open) == ["a2"]
    assert parts.asks.open["r1"].reply is None
    assert not runs.is_complete(parts.asks)


def test_a_run_comes_back_as_it_was_stored_but_that_it_was_cut() -> None:
    adapter = TypeAdapter(BackendRuns)
    run = Run("r", ["a1", "k"], {"r1": "a1"}, working=True)
    full = BackendRuns(run, ["s"], ["r1"], cut=True)
    again = adapter.validate_json(adapter.dump_json(full))
    assert again == dataclasses.replace(full, cut=False)
    assert not hasattr(again, "__dict__")


def test_a_cut_run_is_due_at_once() -> None:
    assert BackendRuns(cut=True).due == 0
    assert BackendRuns(current=Run("r")).due is None
