"""What a service of Managed Agents does wrong in the tests that every backend passes, and what
becomes of it.

Its stream repeats nothing: what a broken one missed the list brings back, whole events and no
deltas (page, sections 5 and 9).
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
    Reset,
    Silence,
    SlowHead,
    SplitCharacters,
    Stall,
    Status,
    WrongContentType,
)
from proxy.scripted.managed_agents_turns import ManagedAgentsVariant
from tests.faults.conversation import told
from tests.faults.faulty import GUESSING, REFUSALS, Becomes, Differing, Faulty
from tests.support.many import many

__all__ = ["DOCUMENTED", "FAULTS", "OTHER"]

DOCUMENTED = ManagedAgentsVariant(
    inputs="twice",
    idle_names_answered=False,
    while_waiting="queued",
    archived_status=409,
    frame_names="type",
    usage=False,
    interrupt_id=False,
    reason_ids="nested",
)
"""As the documentation has it, where that is not what was recorded."""

OTHER = ManagedAgentsVariant(
    inputs="unprocessed",
    idle_names_answered=False,
    partial_idle=False,
    while_running="conflict",
    archived_status=409,
    fresh_stream="history",
    frame_names="type",
    usage=False,
    list_order="stored",
    interrupt_idle="idle",
    interrupt_reason="interrupted",
    permissions="policy",
    result_names="own",
    error_form="flat",
    failure="terminated",
    spans=False,
    create_status=201,
    initial_events=False,
    strict=False,
)
"""A third party's server, but for the previews: by them tests see that a turn is under way."""

BROKEN = b'event: message\ndata: {"type":"\xff\xfe\n\n'

# The script `tool` has 22 frames: 6 and 13 begin previews, 8 and 17 are the whole texts.
PLACES = (0, 1, 2, 3, 6, 7, 8, 10, 13, 15, 17, 19, 21)

RECOVERED: list[Fault] = [
    *(Cut(after_event=place) for place in PLACES),
    *(Cut(after_event=place, clean=True) for place in PLACES),
    *(Cut(at_byte=place) for place in (60, 1000, 1250, 2600, 3500)),
    *(Reset(after_event=place) for place in (0, 2, 7, 15)),
    *(Reset(at_byte=place) for place in (60, 2600)),
    *(HalfClose(after_event=place) for place in (0, 2, 7, 15)),
    HalfClose(at_byte=2600),
    *(HalfFrame(place) for place in (0, 7, 17, 21)),
    # Not of a preview: it has no id, so nothing tells a piece that comes twice.
    *(Duplicate(place) for place in (0, 2, 9, 21)),
    *(Garbage(place, BROKEN) for place in (0, 4, 7, 16)),
    Garbage(5, b"data: [1,2]\n\n"),
    Garbage(5, b"\x00\xff\r\n\n"),
    Garbage(3, b'event: message\ndata: {"type":"agent.of_the_future","a":1}\n\n'),
    *(Stall(place) for place in (0, 2, 7, 15)),
    Stall(5, 0.02),
    SlowHead(0.05),
    Silence(done=True),
    Silence(done=False),
    WrongContentType(),
    Redirect(),
    *(Status(status) for status in REFUSALS),
]


def differing(place: int) -> Differing:
    """A whole text counts as it came first, from the stream or from the list, and comes once."""
    plan: dict[tuple[str, int], Fault] = {
        ("stream", number): Altered(*GUESSING) for number in (1, 2, 3)
    }
    if place:
        plan["stream", 1] = Cut(after_event=place)
    return Differing(plan, guessed=(None, None) if place else (True, True))


SENT = [
    Becomes(Status(401), "backend_refused"),
    Becomes(Status(403), "permission_error"),
    Becomes(Status(404), "not_found_error"),
    Becomes(Status(410), "api_error"),
    Becomes(Status(422), "invalid_request_error"),
    Becomes(Status(425), "api_error"),
    # Whether a service took what it failed on only its list can tell.
    *(Becomes(Status(status), "not_arrived") for status in (408, 500, 502, 503, 504, 529)),
    Becomes(Status(500, body=b"\xff\x00<html>"), "not_arrived"),
    Becomes(Silence(done=False), "not_arrived"),
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
    message="send",
    answer="send",
    says=says,
    answers=answers,
    approval="allow",
    recovered=RECOVERED,
    seen=functools.partial(told, without=("text.delta", "session.updated")),
    split={"stream": {("stream", 1): SplitCharacters()}},
    differing={place: differing(place) for place in (0, 2, 6, 7, 8, 13, 15, 17, 21)},
    broken=BROKEN,
    unreadable=b'event: message\ndata: {"type":"agent.message",\xff\n\n',
    calls=functools.partial(many, "ManyCalls", "managed-agents"),
    refused=[
        (Status(401), "backend_refused"),
        (Status(403), "permission_error"),
        (Status(404), "not_found_error"),
        (Status(409), "conflict_error"),
        (Status(410), "api_error"),
        (Status(425), "api_error"),
        (Status(429), "rate_limit_error"),
        (Status(503), "api_error"),
        (Status(500, body=b"\xff\x00<html>"), "http_500"),
        (Redirect(), "http_302"),
    ],
    sent=SENT,
    at_once=True,
    generations={"": {}, "documented": {"variant": DOCUMENTED}, "other": {"variant": OTHER}},
)
