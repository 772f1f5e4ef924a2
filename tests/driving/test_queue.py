"""The queue of messages: state, what is heard, what follows."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

from adapters.driving.again import Again
from adapters.driving.queue import MessageQueue
from tests.support.each import each


@dataclasses.dataclass(slots=True)
class Message:
    command_id: str
    settled: bool = False
    again: Again = dataclasses.field(default_factory=Again)


@dataclasses.dataclass(slots=True)
class Record:
    pending: Message | None = None
    later: list[Message] = dataclasses.field(default_factory=list)


def record(next_: Message | None = None, *later: Message) -> Record:
    return Record(next_, list(later))


def held(name: str = "m", at: int | None = None) -> Message:
    return Message(name, again=Again(waits=True, at=at))


def ready(name: str = "m") -> Message:
    return Message(name, again=Again(waits=True, ready=True))


M, N = Message("m"), Message("n")


@each(
    ("before", "heard", "told", "after"),
    [
        # One message is next, and the others follow it in their order.
        (record(), lambda q: q.add(Message("m")), True, record(M)),
        (record(M), lambda q: q.add(Message("n")), False, record(M, N)),
        (record(Message("m", settled=True)), lambda q: q.add(Message("m")), True, record(M)),
        (record(), lambda q: q.hold(Message("m"), busy=True), True, record(held())),
        (record(), lambda q: q.hold(Message("m"), busy=False), False, record(ready())),
        (record(M), lambda q: q.hold(Message("n"), busy=True), False, record(M, N)),
        # It is sent when its time has come; the first of the others only to a backend that is free.
        (record(ready()), lambda q: q.ready(free=False), ready(), record(ready())),
        (record(held()), lambda q: q.ready(free=True), None, record(held())),
        (record(M, N), lambda q: q.ready(free=True), None, record(M, N)),
        (record(None, M, N), lambda q: q.ready(free=True), ready(), record(ready(), N)),
        (record(None, M), lambda q: q.ready(free=False), None, record(None, M)),
        (record(), lambda q: q.ready(free=True), None, record()),
        (record(held()), lambda q: q.turn_over(), None, record(ready())),
        (record(M), lambda q: q.turn_over(), None, record(M)),
        (record(), lambda q: q.turn_over(), None, record()),
        (record(held(at=5)), lambda q: q.tick(5), None, record(ready())),
        (record(held(at=5)), lambda q: q.tick(4), None, record(held(at=5))),
        (record(held(at=5)), lambda q: q.due, 5, None),
        (record(M), lambda q: q.due, None, None),
        (record(), lambda q: q.due, None, None),
        # A turn that begins is that of one that was sent.
        (record(M), lambda q: q.sent, M, None),
        (record(held()), lambda q: q.sent, None, None),
        (record(), lambda q: q.sent, None, None),
        (record(M, N), lambda q: (q.is_next("m"), q.is_next("n")), (True, False), None),
        # What was taken is told once.
        (
            record(Message("m")),
            lambda q: q.settle(),
            Message("m", True),
            record(Message("m", True)),
        ),
        (record(Message("m", True)), lambda q: q.settle(), None, record(Message("m", True))),
        (record(), lambda q: q.settle(), None, record()),
        # What was not sent.
        (record(held(), N), lambda q: q.unsent(), [N, held()], None),
        (record(M, N), lambda q: q.unsent(), [N], None),
        (record(M, N), lambda q: q.drop("m"), None, record(None, N)),
        (record(M, N), lambda q: q.drop("n"), None, record(M)),
        (record(M, N), lambda q: q.drop_next(), None, record(None, N)),
    ],
)
def test_one_message_is_next_and_the_others_wait(
    before: Record,
    heard: Callable[[MessageQueue[Message]], Any],
    told: Any,
    after: Record | None,
) -> None:
    found = copy.deepcopy(before)
    assert heard(MessageQueue(found)) == told
    assert found == (before if after is None else after)
