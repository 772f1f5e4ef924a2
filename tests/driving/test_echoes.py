"""Echoes: state, what is heard, what follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from adapters.driving.echoes import MOST, EchoLedger
from adapters.model import events as ev
from adapters.model.raw import settled
from tests.support.each import each

NO = ev.ErrorInfo(code="no", message="No.")


@dataclasses.dataclass(slots=True)
class Posted:
    command_id: str
    key: str = "k"
    settled: bool = False
    message: str | None = None
    step: bool = False


def echoes(*inputs: Posted, **ids: str) -> EchoLedger[Posted]:
    return EchoLedger(list(inputs), ids)


TAKEN = settled("c", "taken")
STEP = Posted("c", "stop", step=True)


@each(
    ("before", "heard", "told", "after"),
    [
        # What was taken waits for its echo, and no message follows it.
        (
            echoes(Posted("c", message="more"), Posted("d")),
            lambda e: e.settle("c", "taken"),
            [TAKEN],
            echoes(Posted("c", settled=True), Posted("d")),
        ),
        (
            echoes(Posted("c")),
            lambda e: e.settle("c", "refused", NO),
            [settled("c", "refused", NO)],
            echoes(),
        ),
        (
            echoes(Posted("c")),
            lambda e: e.settle("c", "unknown"),
            [settled("c", "unknown")],
            echoes(),
        ),
        # A command is settled once; one that is not remembered is settled all the same.
        (
            echoes(Posted("c", settled=True)),
            lambda e: e.settle("c", "refused", NO),
            [],
            echoes(Posted("c", settled=True)),
        ),
        (echoes(), lambda e: e.settle("c", "taken"), [TAKEN], echoes()),
        # A step is not what settles a command, and waits for its echo whatever becomes of it.
        (
            echoes(STEP, Posted("c")),
            lambda e: e.settle("c", "refused", NO),
            [settled("c", "refused", NO)],
            echoes(STEP),
        ),
        # What is posted again is there once.
        (
            echoes(Posted("c", settled=True), Posted("d")),
            lambda e: e.expect(Posted("c")),
            None,
            echoes(Posted("d"), Posted("c")),
        ),
        (
            echoes(*(Posted(f"c{n}") for n in range(MOST))),
            lambda e: e.expect(Posted("c")),
            None,
            echoes(*(Posted(f"c{n}") for n in range(1, MOST)), Posted("c")),
        ),
        # An echo is of the oldest input with its key, and then of no other one.
        (echoes(Posted("c"), Posted("d")), lambda e: e.find("k"), Posted("c"), None),
        (echoes(Posted("c")), lambda e: e.find("other"), None, None),
        (
            echoes(Posted("c"), Posted("c")),
            lambda e: e.seen(e.sent[1]),
            None,
            echoes(Posted("c")),
        ),
        (
            echoes(Posted("c"), Posted("c", "stop")),
            lambda e: e.know("id k", "c", "k"),
            None,
            echoes(Posted("c", "stop"), **{"id k": "c"}),
        ),
        (
            echoes(**{f"i{n}": "c" for n in range(MOST)}),
            lambda e: e.know("new", "c", "k"),
            None,
            echoes(**{f"i{n}": "c" for n in range(1, MOST)}, new="c"),
        ),
        # What is asked of them.
        (echoes(Posted("c")), lambda e: (e.was_sent("c"), e.was_sent("d")), (True, False), None),
        (echoes(STEP, Posted("c")), lambda e: e.unsettled("c"), Posted("c"), None),
        (echoes(STEP, Posted("c", settled=True)), lambda e: e.unsettled("c"), None, None),
        (echoes(STEP, Posted("c"), Posted("d")), lambda e: e.of("c", "k"), [Posted("c")], None),
        # A command is forgotten but for its steps, or with them.
        (
            echoes(STEP, Posted("c"), Posted("d")),
            lambda e: e.forget("c"),
            None,
            echoes(STEP, Posted("d")),
        ),
        (echoes(STEP, Posted("c")), lambda e: e.forget("c", "stop"), None, echoes(Posted("c"))),
        (echoes(STEP, Posted("c"), Posted("d")), lambda e: e.drop("c"), None, echoes(Posted("d"))),
    ],
)
def test_an_input_is_settled_once_and_waits_for_its_own_echo(
    before: EchoLedger[Posted],
    heard: Callable[[EchoLedger[Posted]], Any],
    told: Any,
    after: EchoLedger[Posted] | None,
) -> None:
    found: EchoLedger[Posted] = EchoLedger(
        [dataclasses.replace(one) for one in before.sent], dict(before.ids)
    )
    sent, ids = found.sent, found.ids
    assert heard(found) == told
    assert found == (before if after is None else after)
    # A dialect keeps the same list and the same dictionary.
    assert found.sent is sent
    assert found.ids is ids
