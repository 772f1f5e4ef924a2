"""The ledger: state, what is heard, what follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adapters.driving.ledger import InputLedger, SentInput
from adapters.model import events as ev
from adapters.model.raw import settled
from tests.support.each import each

WORDS = (ev.Text(text="go"),)
NO = ev.ErrorInfo(code="no", message="No.")

Books = InputLedger[SentInput]


def message(*, taken: bool = False, name: str = "m") -> SentInput:
    return SentInput(name, "message", WORDS, taken)


def answer() -> SentInput:
    return SentInput("a", "answer")


def steer(*, taken: bool = False) -> SentInput:
    return SentInput("s", "steer", WORDS, taken)


def books(*inputs: SentInput) -> Books:
    ledger: Books = InputLedger()
    for input_ in inputs:
        ledger.expect(input_)
    return ledger


RECEIPT = ev.MessageReceived(
    thread_id=ev.MAIN,
    turn_id="t",
    message_id="m",
    content=WORDS,
    command_id="m",
    synthetic=True,
)
GUIDANCE = ev.GuidanceReceived(
    thread_id=ev.MAIN, turn_id="t", text="go", command_id="s", synthetic=True
)
STEERED = RECEIPT.model_copy(update={"turn_id": None, "message_id": "s", "command_id": "s"})
SHOWN = ev.NativeRef(dialect="d", id="1")
TAKEN_M, TAKEN_A = settled("m", "taken"), settled("a", "taken")


@each(
    ("before", "heard", "told", "after"),
    [
        # A message that was taken owes its receipt, anything else is done with.
        ([message()], lambda b: b.settle("m", "taken"), [TAKEN_M], [message(taken=True)]),
        ([answer()], lambda b: b.settle("a", "taken"), [TAKEN_A], []),
        (
            [SentInput("s", "steer")],
            lambda b: b.settle("s", "taken"),
            [settled("s", "taken")],
            [SentInput("s", "steer", taken=True)],
        ),
        # What was not taken owes nothing.
        ([message()], lambda b: b.settle("m", "refused", NO), [settled("m", "refused", NO)], []),
        ([message()], lambda b: b.settle("m", "unknown"), [settled("m", "unknown")], []),
        ([answer()], lambda b: b.settle("a", "refused", NO), [settled("a", "refused", NO)], []),
        # Each is settled once, no matter who tells first.
        ([message(taken=True)], lambda b: b.settle("m", "taken"), [], [message(taken=True)]),
        ([message(taken=True)], lambda b: b.settle("m", "refused", NO), [], [message(taken=True)]),
        ([], lambda b: b.settle("a", "taken"), [], []),
        # The receipt is proof.
        ([message()], lambda b: b.receive("m", "t"), [TAKEN_M, RECEIPT], []),
        ([message(taken=True)], lambda b: b.receive("m", "t"), [RECEIPT], []),
        ([], lambda b: b.receive("m", "t"), [], []),
        ([answer()], lambda b: b.receive("a", "t"), [TAKEN_A], []),
        # Of steering it is guidance, where there is a turn.
        ([steer(taken=True)], lambda b: b.receive("s", "t"), [GUIDANCE], []),
        ([steer(taken=True)], lambda b: b.receive("s", None), [STEERED], []),
        # What the backend shows of it is in it.
        (
            [message(taken=True)],
            lambda b: b.receive("m", "t", native=SHOWN, synthetic=False, extra={"more": 1}),
            [
                RECEIPT.model_copy(
                    update={"native": SHOWN, "synthetic": False, "extra": {"more": 1}}
                )
            ],
            [],
        ),
        # Nothing more will show.
        (
            [message(taken=True), message(name="n"), answer()],
            lambda b: b.lost(NO),
            [
                RECEIPT.model_copy(update={"turn_id": None}),
                settled("n", "unknown", NO),
                settled("a", "unknown", NO),
            ],
            [],
        ),
        ([message(), answer()], lambda b: b.drop("m"), None, [answer()]),
        ([answer()], lambda b: b.drop("m"), None, [answer()]),
        # What is sent again is expected anew.
        ([message(taken=True)], lambda b: b.expect(message()), None, [message()]),
        # One is settled, and the others wait on.
        (
            [answer(), message()],
            lambda b: b.settle("a", "taken"),
            [TAKEN_A],
            [message()],
        ),
        ([answer(), message()], lambda b: b.drop_message(), None, [answer()]),
        ([answer()], lambda b: b.drop_message(), None, [answer()]),
    ],
)
def test_an_input_is_settled_once_and_received_once(
    before: list[SentInput],
    heard: Callable[[Books], Any],
    told: list[ev.Event] | None,
    after: list[SentInput],
) -> None:
    ledger = books(*before)
    assert heard(ledger) == told
    assert ledger == books(*after)


def test_the_message_on_its_way_is_the_oldest() -> None:
    assert books(answer()).message is None
    ledger = books(answer(), message(name="m1"), message(name="m2"))
    assert ledger.message == message(name="m1")
    ledger.settle("m1", "taken")
    assert ledger.message == message(name="m1", taken=True)
    ledger.receive("m1", None)
    assert ledger.message == message(name="m2")
