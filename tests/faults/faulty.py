"""What the tests of faults have to know of a backend.

Each dialect that can be driven says it in `tests/faults/<folder>.py`, as `FAULTS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proxy.scripted.faults import Fault, Redirect, Silence, Status
from tests.faults.conversation import Conversation, told

__all__ = [
    "GUESSING",
    "REFUSALS",
    "Becomes",
    "Differing",
    "Faulty",
    "Plan",
]

Plan = Mapping[tuple[str, int], Fault]
"""Route of the backend, number of the request -> what goes wrong."""

REFUSALS = (401, 403, 404, 409, 410, 425, 429, 500, 502, 503, 504)
"""The statuses with which a backend may refuse what it would take at another time."""


class Becomes(NamedTuple):
    """What becomes of a message: it is answered, or its turn fails with a code, and with words."""

    fault: Fault
    code: str | None = None
    words: str = ""


class Differing(NamedTuple):
    """A stream that says «guessing» for «rounding» when it is read again.

    `guessed` says of each text whether it has the other word; where it is None, either may be.
    `gap` are words of the reason with which that is told, empty where nothing tells it.
    """

    plan: Plan
    guessed: tuple[bool | None, bool | None]
    gap: str = ""


GUESSING = (b"rounding", b"guessing")
"""What is altered in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty:
    """How a backend is driven in these tests, and its rows in each of them.

    Routes are those of the scripted backend.

    Args:
        create: the route of the first request for a session.
        stream: the route whose first body shows the first turn.
        message: the route of a follow-up.
        answer: the route of an answer to what the agent asks.
        says: the message that the JSON body of a request carries, or None.
        answers: the answer that it carries, or None.
        approval: the answer that lets `script: approve` go on.
        recovered: faults of the stream that nothing is seen of.
        seen: what a disturbed conversation is compared by; the fault is None in an undisturbed one.
        split: plans that split characters, by name; each request of a plan is sent once.
        differing: by place.
        broken: a frame of a known kind whose JSON and UTF-8 are broken.
        unreadable: one that breaks off in the middle of a text.
        calls: so many frames of calls that do not return.
        too_many: how many of these are more calls than are read at once, and than may be open.
        refused: faults of the first request, with the code that its turn fails with.
        sent: what becomes of a message.
        at_once: whether a first message goes where a follow-up does.
        unanswered: faults by which an answer does not arrive.
        generations: name -> further arguments of the scripted backend.
    """

    create: str
    stream: str
    message: str
    answer: str
    says: Callable[[Any], str | None]
    answers: Callable[[Any], str | None]
    approval: str
    recovered: Sequence[Fault]
    seen: Callable[[Conversation, Fault | None], Awaitable[Sequence[object]]] = told
    split: Mapping[str, Plan]
    differing: Mapping[int, Differing]
    broken: bytes
    unreadable: bytes
    calls: Callable[[int], bytes]
    too_many: int = 4_000
    refused: Sequence[tuple[Fault, str]]
    sent: Sequence[Becomes]
    at_once: bool
    unanswered: Sequence[Fault] = (
        *(Status(status) for status in REFUSALS),
        Redirect(),
        Silence(done=False),
    )
    generations: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
