"""What a Herm does wrong in the tests that every backend passes, and what becomes of it.

What a stream missed the list brings back: whole blocks, and no deltas (page, section 4.4).
"""

from __future__ import annotations

import functools
from typing import Any

from proxy.scripted.faults import (
    Altered,
    Cut,
    Duplicate,
    Fault,
    Garbage,
    HalfClose,
    HalfFrame,
    Redirect,
    Reorder,
    Reset,
    Silence,
    SlowHead,
    SplitCharacters,
    Stall,
    Status,
    WrongContentType,
)
from tests.faults.conversation import told
from tests.faults.faulty import GUESSING, REFUSALS, Becomes, Differing, Faulty
from tests.support.many import many

__all__ = ["FAULTS"]

BROKEN = b'event: x\ndata: {"type":"\xff\xfe\n\n'

# Not before the first event: without a position a new stream begins live, and half a text whose
# begin is missed is a repair that the strict client refuses.
RECOVERED: list[Fault] = [
    *(Cut(after_event=place) for place in (2, 7, 12)),
    *(Cut(after_event=place, clean=True) for place in (1, 6, 11)),
    *(Cut(at_byte=place) for place in (900, 1500)),
    *(Reset(after_event=place) for place in (2, 7, 12)),
    Reset(at_byte=1500),
    *(HalfClose(after_event=place) for place in (1, 6, 11)),
    HalfClose(at_byte=1500),
    *(HalfFrame(place) for place in (5, 11)),
    *(Duplicate(place) for place in (0, 3, 8)),
    *(Reorder(place) for place in range(8)),
    *(Garbage(place, BROKEN) for place in (0, 4, 12)),
    Garbage(5, b"data: [1,2]\n\n"),
    Garbage(5, b"\x00\xff\r\n\n"),
    Garbage(3, b'data: {"type":"from.the.future","a":1}\n\n'),
    Stall(6),
    Stall(5, 0.02),
    SlowHead(0.05),
    Silence(done=True),
    Silence(done=False),
    WrongContentType(),
    Redirect(),
    *(Status(status) for status in REFUSALS),
]


def differing(place: int) -> Differing:
    """An envelope counts as it came first, from the list or from the stream, and comes once."""
    plan: dict[tuple[str, int], Fault] = {
        ("stream", number): Altered(*GUESSING) for number in (1, 2, 3)
    }
    if place:
        plan["stream", 1] = Cut(after_event=place)
    return Differing(plan, guessed=(None, None) if place else (True, True))


SENT = [
    Becomes(Status(401), "backend_refused"),
    Becomes(Status(403), "forbidden"),
    Becomes(Status(404), "not_found"),
    Becomes(Status(410), "server_error"),
    Becomes(Status(425), "server_error"),
    # Whether a server took what it failed on only its list can tell.
    *(Becomes(Status(status), "not_arrived") for status in (500, 502, 503, 504)),
    Becomes(Redirect(), "http_302"),
    Becomes(Silence(done=True)),
    Becomes(SlowHead(0.05)),
    Becomes(WrongContentType()),
]


def says(body: Any) -> str | None:
    """The text of a `user.message`."""
    texts = [
        block["text"]
        for event in body.get("events", ())
        if event["type"] == "user.message"
        for block in event["content"]
    ]
    return "".join(texts) if texts else None


def answers(body: Any) -> str | None:
    """The result of a `user.tool_confirmation`."""
    for event in body.get("events", ()):
        if event["type"] == "user.tool_confirmation":
            result: str = event["result"]
            return result
    return None


FAULTS = Faulty(
    create="create",
    stream="stream",
    message="post",
    answer="post",
    says=says,
    answers=answers,
    approval="allow",
    recovered=RECOVERED,
    seen=functools.partial(told, without=("text.delta", "reasoning.delta", "session.updated")),
    split={"stream": {("stream", 1): SplitCharacters()}},
    differing={place: differing(place) for place in (0, *range(2, 13))},
    broken=BROKEN,
    unreadable=b'event: agent.message\nid: evt_x\ndata: {"id":"evt_x",\xff\n\n',
    calls=functools.partial(many, "ManyCalls", "herm"),
    refused=[
        (Status(401), "backend_refused"),
        (Status(403), "forbidden"),
        (Status(404), "not_found"),
        (Status(409), "deployment_not_ready"),
        (Status(410), "server_error"),
        (Status(425), "server_error"),
        (Status(429), "rate_limited"),
        (Status(503), "server_error"),
        (Status(500, body=b"\xff\x00<html>"), "http_500"),
        (Redirect(), "http_302"),
    ],
    sent=SENT,
    at_once=True,
    # By 404 and 410 it says that nothing waits for the answer. Its 409 here is of a deployment that
    # is not ready.
    unanswered=[
        *(Status(status) for status in REFUSALS if status not in (404, 410)),
        Redirect(),
        Silence(done=False),
    ],
)
