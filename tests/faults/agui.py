"""What an AG-UI agent does wrong in the tests that every backend passes, and what becomes of it.

Nobody can ask it for the rest of a run: what breaks its body is a turn that has failed, and nothing
is ever sent again.
"""

from __future__ import annotations

import functools
from typing import Any

from proxy.scripted.faults import (
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
from tests.faults.faulty import REFUSALS, Becomes, Faulty
from tests.support.many import many

__all__ = ["FAULTS"]

LOST = "backend_session_lost"

UNREADABLE = b'data: {"type":"TEXT_MESSAGE_CONTENT","delta":"\xff\n\n'

PLACES = (0, 1, 2, 5, 9)

RECOVERED: list[Fault] = [
    Stall(5, 0.02),
    SlowHead(0.05),
    Garbage(4, b'data: {"type":"FROM_THE_FUTURE","a":1}\n\n'),
    Garbage(4, b": a comment\n\n"),
]

REFUSED: list[tuple[Fault, str]] = [
    (Status(401), "backend_refused"),
    *((Status(status), f"http_{status}") for status in (400, 403, 404, 409, 410, 422, 425, 429)),
    *((Status(status), f"http_{status}") for status in (500, 503)),
    (Redirect(), "http_302"),
    (Redirect(status=307), "http_307"),
]

SENT = [
    *(Becomes(fault, code) for fault, code in REFUSED),
    # From something in between: the agent may be at work.
    Becomes(Status(502), "http_502", "is not known"),
    Becomes(Status(504), "http_504", "is not known"),
    Becomes(Silence(done=False), "backend_timeout", "is not known"),
    Becomes(Silence(done=True), "backend_timeout", "is not known"),
    Becomes(WrongContentType(), "backend_protocol", "not with an event stream"),
    *(Becomes(Cut(after_event=place), LOST, "cannot be asked") for place in PLACES),
    *(Becomes(Cut(after_event=place, clean=True), LOST, "cannot be asked") for place in PLACES),
    *(Becomes(Reset(after_event=place), LOST, "cannot be asked") for place in (0, 2)),
    *(Becomes(HalfClose(after_event=place), LOST, "cannot be asked") for place in (0, 2)),
    *(Becomes(HalfFrame(place), LOST, "cannot be asked") for place in (0, 2)),
    *(Becomes(Stall(place), LOST, "cannot be asked") for place in PLACES),
    Becomes(Stall(5, data=UNREADABLE), LOST, "cannot be asked"),
    Becomes(SlowHead(0.05)),
]


def says(body: Any) -> str | None:
    """The message of a run that begins a turn."""
    last = body["messages"][-1]
    if "resume" in body or last["role"] != "user":
        return None
    content = last["content"]
    return content if isinstance(content, str) else str(content)


def answers(body: Any) -> str | None:
    """The one answer of a run that resumes."""
    (entry,) = body.get("resume") or [{}]
    payload = entry.get("payload", {})
    return str(payload["approved"]) if "approved" in payload else None


FAULTS = Faulty(
    create="run",
    stream="run",
    message="run",
    answer="run",
    says=says,
    answers=answers,
    approval="True",
    recovered=RECOVERED,
    split={"run": {("run", 1): SplitCharacters()}},
    differing={},
    broken=b'data: {"type":"\xff\xfe\n\n',
    unreadable=UNREADABLE,
    calls=functools.partial(many, "ManyCalls", "agui"),
    refused=REFUSED,
    sent=SENT,
    at_once=True,
    unanswered=[
        *(Status(status) for status in sorted({*REFUSALS, 422} - {502, 504})),
        Redirect(),
    ],
)
