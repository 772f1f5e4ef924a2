"""What an Engine does wrong in the tests that every backend passes, and what becomes of it.

A broken stream is replayed from its beginning, so a client's records are the very same.
"""

from __future__ import annotations

import functools
from typing import Any

from proxy.scripted.faults import (
    Altered,
    Cut,
    Fault,
    Garbage,
    HalfClose,
    HalfFrame,
    Redirect,
    Reset,
    Silence,
    SlowHead,
    SplitCharacters,
    Stall,
    Status,
    WrongContentType,
)
from tests.faults.conversation import Conversation
from tests.faults.faulty import GUESSING, REFUSALS, Becomes, Differing, Faulty
from tests.support.many import many
from tests.support.resumed import masked

__all__ = ["FAULTS"]

# The script `tool` has 20 frames, and each kind of frame that is not a request.
PLACES = (0, 1, 2, 5, 9, 12, 17)

RECOVERED: list[Fault] = [
    *(Cut(after_event=place) for place in PLACES),
    *(Cut(after_event=place, clean=True) for place in PLACES),
    *(Cut(at_byte=place) for place in (1, 60, 333, 700, 1100, 1500)),
    *(Reset(after_event=place) for place in (0, 2, 9, 17)),
    *(Reset(at_byte=place) for place in (1, 700)),
    *(HalfClose(after_event=place) for place in (0, 2, 9, 17)),
    *(HalfClose(at_byte=place) for place in (1, 700)),
    *(HalfFrame(place) for place in PLACES),
    *(Garbage(place) for place in (0, 3, 12)),
    Garbage(4, b"event: text_delta\ndata: [1, 2]\n\n"),
    Garbage(4, b"event: text_delta\ndata: {}\n\n"),
    Garbage(4, b"\x00\xff\xfe\r\r\n\n: \xff\n\ndata\n\n"),
    Garbage(4, b'event: from_the_future\ndata: {"a":1}\n\n'),
    *(Stall(place) for place in (0, 2, 12)),
    Stall(5, 0.02),
    SlowHead(0.05),
    Silence(done=True),
]


async def seen(conversation: Conversation, fault: Fault | None) -> list[str]:
    """The records of the client."""
    found = masked(conversation.session.log)
    if isinstance(fault, Garbage) and b"from_the_future" not in fault.data:
        # A broken frame may stand where a block began, and is not part of the conversation.
        found = [line for line in found if "dragoman.gap" not in line]
    return found


def differing(place: int) -> Differing:
    """What was shown stays, what came first by the replay is the replay's."""
    plan: dict[tuple[str, int], Fault] = {
        ("replay", number): Altered(*GUESSING) for number in (1, 2, 3)
    }
    plan["execute", 1] = Cut(after_event=place)
    return Differing(plan, guessed=(False, place <= 14), gap="differs")


REFUSED: list[tuple[Fault, str]] = [
    (Status(401), "backend_refused"),
    (Status(403), "PERMISSION_DENIED"),
    (Status(404), "TASK_NOT_FOUND"),
    (Status(409), "HITL_REQUIRED"),
    (Status(410), "http_410"),
    (Status(422), "CONTEXT_OVERFLOW"),
    (Status(425), "http_425"),
    (Status(429, retry_after=8), "LLM_RATE_LIMITED"),
    (Status(502), "LLM_PROVIDER_ERROR"),
    (Status(503), "MIGRATION_REQUIRED"),
    (Status(400, body=b'{"error": {"deep": true}}'), "http_400"),
    (Redirect(), "http_302"),
    (Redirect(status=307), "http_307"),
]

LOST = "backend_session_lost"

SENT = [
    *(Becomes(fault, code) for fault, code in REFUSED),
    # The Engine did not write it: a gateway in between may have given up on a turn that runs, and
    # only replay can tell.
    Becomes(Status(500), LOST, "500"),
    Becomes(Status(504), LOST, "504"),
    Becomes(Status(500, body=b"\xff\x00<html>"), LOST, "500"),
    Becomes(Silence(done=False), LOST),
    Becomes(Silence(done=True)),
    Becomes(SlowHead(0.05)),
    Becomes(WrongContentType()),
]


def says(body: Any) -> str | None:
    """The message of `POST /execute`."""
    said: str | None = body.get("message")
    return said


def answers(body: Any) -> str | None:
    """The answer of `POST /hitl/respond`."""
    answer: str | None = body.get("answer")
    return answer


FAULTS = Faulty(
    create="execute",
    stream="execute",
    message="execute",
    answer="respond",
    says=says,
    answers=answers,
    approval="yes",
    recovered=RECOVERED,
    seen=seen,
    split={
        "execute": {("execute", 1): SplitCharacters()},
        "replay": {("execute", 1): Cut(after_event=2), ("replay", 1): SplitCharacters()},
    },
    differing={place: differing(place) for place in (14, 15, 16, 17, 18)},
    broken=Garbage().data,
    unreadable=b'event: text_delta\ndata: {"text":"\xff\n\n',
    calls=functools.partial(many, "ManyCalls", "engine"),
    refused=REFUSED,
    sent=SENT,
    at_once=True,
    unanswered=[
        *(Status(status) for status in sorted({*REFUSALS, 422})),
        Redirect(),
        Silence(done=False),
    ],
)
