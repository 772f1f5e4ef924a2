"""Open interactions: state, what is heard, what follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from adapters.driving.asks import (
    InteractionAnswer,
    InteractionLedger,
    PendingInteraction,
    Resolution,
)
from adapters.model import events as ev
from adapters.model.raw import released

WORDS = ev.Answer(text="blue")
YES = InteractionAnswer("c", "approved", ev.Answer(option_ids=("approve",)), "once")
STOP = InteractionAnswer("c", "denied", claims=False)
THEIRS = InteractionAnswer(None, "approved")


def asks(
    given: InteractionAnswer | None = None, *, thread_id: str = ev.MAIN
) -> InteractionLedger[PendingInteraction]:
    found: InteractionLedger[PendingInteraction] = InteractionLedger()
    found.ask("q", PendingInteraction("question"))
    found.ask("r", PendingInteraction("approval", thread_id, "call", given))
    return found


@pytest.mark.parametrize(
    ("before", "heard", "told", "after"),
    [
        (asks(), lambda a: a.give("r", YES), None, asks(YES)),
        # The newest answer counts.
        (asks(YES), lambda a: a.give("r", STOP), None, asks(STOP)),
        (asks(YES), lambda a: a.given_by("c"), "r", asks(YES)),
        (asks(YES), lambda a: a.given_by("d"), None, asks(YES)),
        # What did not count is released, and said of what has a claim.
        (asks(YES), lambda a: a.release("c", "t"), [released("r", "c", turn_id="t")], asks()),
        (asks(STOP), lambda a: a.release("c", "t"), [], asks()),
        (
            asks(YES, thread_id="child"),
            lambda a: a.release("c"),
            [released("r", "c", thread_id="child")],
            asks(thread_id="child"),
        ),
        # The answer of somebody else stays.
        (asks(YES), lambda a: a.release("d", "t"), [], asks(YES)),
        (asks(), lambda a: a.release("c", "t"), [], asks()),
        (asks(YES), lambda a: a.clear(), None, InteractionLedger()),
        # Somebody else may answer, where we have not.
        (asks(), lambda a: a.give_elsewhere("r", THEIRS), None, asks(THEIRS)),
        (asks(YES), lambda a: a.give_elsewhere("r", THEIRS), None, asks(YES)),
        (asks(), lambda a: a.give_elsewhere("s", THEIRS), None, asks()),
        # A request is found by its id, and by the call that it is about.
        (asks(), lambda a: (a.find("r"), a.find("s")), ("r", None), asks()),
        (asks(), lambda a: (a.of_call("call"), a.of_call("c")), ("r", None), asks()),
        # Work shows that is answered what an answer was given to, or else the only one.
        (asks(YES), lambda a: a.answered(), ["r"], asks(YES)),
        (asks(), lambda a: a.answered(), [], asks()),
        (
            InteractionLedger({"q": PendingInteraction("question")}),
            lambda a: a.answered(),
            ["q"],
            InteractionLedger({"q": PendingInteraction("question")}),
        ),
    ],
)
def test_an_answer_is_given_and_released(
    before: InteractionLedger[PendingInteraction],
    heard: Callable[[InteractionLedger[PendingInteraction]], Any],
    told: Any,
    after: InteractionLedger[PendingInteraction],
) -> None:
    assert heard(before) == told
    assert before == after


AT: dict[str, Any] = {"thread_id": ev.MAIN, "turn_id": "t", "request_id": "r"}


@pytest.mark.parametrize(
    ("given", "said", "event"),
    [
        # What the backend does not say was as it was answered.
        (
            YES,
            {"synthetic": True},
            ev.InteractionResolved(
                **AT, outcome="approved", answer=YES.answer, scope="once", synthetic=True
            ),
        ),
        (STOP, {}, ev.InteractionResolved(**AT, outcome="denied")),
        # Somebody has answered elsewhere.
        (None, {}, ev.InteractionResolved(**AT, outcome="unknown")),
        # What the backend says counts.
        (
            YES,
            {"outcome": "answered", "answer": WORDS, "scope": None, "by": "ann"},
            ev.InteractionResolved(**AT, outcome="answered", answer=WORDS, by="ann"),
        ),
        (None, {"outcome": "expired"}, ev.InteractionResolved(**AT, outcome="expired")),
    ],
)
def test_an_interaction_is_resolved_once(
    given: InteractionAnswer | None, said: dict[str, Any], event: ev.InteractionResolved
) -> None:
    found = asks(given)
    assert found.resolve("r", "t", **said) == Resolution(given, event)
    assert list(found.open) == ["q"]
    assert found.resolve("r", "t", **said) is None


def test_a_child_s_interaction_is_resolved_on_its_thread() -> None:
    found = asks(thread_id="child").resolve("r", None)
    assert found is not None
    assert (found.event.thread_id, found.event.turn_id) == ("child", None)


@dataclasses.dataclass(slots=True)
class Named:
    """A record of a dialect, which has names and ends of its own."""

    given: InteractionAnswer | None = None
    native_name: str | None = None
    gone: bool = False
    thread_id: str = ev.MAIN
    call_id: str | None = None


def test_a_record_of_a_dialect_has_a_name_at_the_backend_and_may_be_gone() -> None:
    found: InteractionLedger[Named] = InteractionLedger(
        {"q": Named(native_name="e-1"), "e-1": Named(), "r": Named(gone=True)}
    )
    assert [found.find(name) for name in ("q", "e-1", "e-2")] == ["q", "e-1", None]
    del found.open["e-1"]
    assert found.find("e-1") == "q"
    assert found.answered() == ["r"]
