"""What an eve of any generation does wrong in the tests that every backend passes, and what becomes
of it.
"""

from __future__ import annotations

import functools
from typing import Any

from proxy.scripted.eve_turns import EveVariant
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
from tests.faults.conversation import told
from tests.faults.faulty import GUESSING, Becomes, Differing, Faulty
from tests.support.houses import GENERATIONS
from tests.support.many import many

__all__ = ["FAULTS"]

BROKEN = b'{"type":"message.appended","data":{"text":"\xff\n'

RECOVERED: list[Fault] = [
    *(Cut(after_event=place) for place in (0, 7)),
    *(Cut(after_event=place, clean=True) for place in (1, 11)),
    *(Cut(at_byte=place) for place in (1, 1500)),
    *(Reset(after_event=place) for place in (0, 7)),
    Reset(at_byte=1500),
    *(HalfClose(after_event=place) for place in (1, 11)),
    HalfClose(at_byte=1500),
    *(HalfFrame(place) for place in (0, 5)),
    *(Duplicate(place) for place in (0, 4, 12, 17)),
    *(Garbage(place, BROKEN) for place in (0, 12)),
    Garbage(5, b"[1,2]\n"),
    Garbage(5, b"\x00\xff\r\n\n"),
    Garbage(3, b'{"type":"from.the.future","data":{"a":1}}\n'),
    *(Stall(place) for place in (0, 6)),
    Stall(5, 0.02),
    SlowHead(0.05),
    Silence(done=True),
    Silence(done=False),
    WrongContentType(),
    Redirect(),
    # Section 7.5: 404, 409, 425 and 5xx pass, and so may what is not an answer of an eve.
    *(Status(status) for status in (404, 409, 425, 429, 500, 503)),
]


def differing(place: int) -> Differing:
    """No record is read twice, so nothing can be seen to differ but a whole text from its pieces:
    the whole one counts."""
    plan: dict[tuple[str, int], Fault] = {
        ("stream", 1): Cut(after_event=place),
        ("stream", 2): Altered(*GUESSING),
    }
    return Differing(plan, guessed=(False, None if place > 13 else True))


UNCERTAIN = "no_evidence"

SENT = [
    Becomes(Status(401), "backend_refused"),
    *(Becomes(Status(status), f"http_{status}") for status in (404, 409, 410, 425, 429)),
    Becomes(Redirect(), "http_302"),
    # Whether a server took what it failed on only its stream can tell.
    *(Becomes(Status(status), UNCERTAIN) for status in (500, 502, 503, 504)),
    Becomes(Silence(done=False), UNCERTAIN),
    Becomes(Silence(done=True)),
    Becomes(SlowHead(0.05)),
    Becomes(WrongContentType()),
]


def says(body: Any) -> str | None:
    """The message of a create or of a follow-up."""
    said: str | None = body.get("message")
    return said


def answers(body: Any) -> str | None:
    """The option of the one answer of a follow-up."""
    option: str | None = body["inputResponses"][0]["optionId"] if "inputResponses" in body else None
    return option


FAULTS = Faulty(
    create="create",
    stream="stream",
    message="message",
    answer="message",
    says=says,
    answers=answers,
    approval="approve",
    recovered=RECOVERED,
    seen=told,
    split={"stream": {("stream", 1): SplitCharacters()}},
    differing={place: differing(place) for place in range(11, 19)},
    broken=BROKEN,
    unreadable=b'{"type":"message.appended","data":{"text":"\xff\n',
    calls=functools.partial(many, "ManyCalls", "eve"),
    # A hundred calls in each frame: a turn that ends with them is over and does not fail.
    too_many=80,
    refused=[
        (Status(401), "backend_refused"),
        *((Status(status), f"http_{status}") for status in (404, 409, 410, 425, 429)),
        (Status(500, body=b"\xff\x00<html>"), "http_500"),
        (Status(503), "http_503"),
        (Redirect(), "http_302"),
    ],
    sent=SENT,
    # The first message of some generations goes with the session.
    at_once=False,
    generations={name: {"variant": EveVariant(name)} for name in GENERATIONS},
)
