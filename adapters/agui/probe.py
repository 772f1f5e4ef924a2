"""What an AG-UI agent is asked to learn whether it is one: the protocol has no request but a run,
so one that lacks all that a run has, which every server refuses before it begins."""

from __future__ import annotations

from typing import Any

from multidict import CIMultiDict

from adapters.agui import wire
from adapters.contract.probing import Generation, Probe, Question
from adapters.model.base import Call, Request
from adapters.wire.jsonvalue import format_json

_HEADERS = CIMultiDict({"Content-Type": "application/json", "Accept": "text/event-stream"})


def _refused(status: int, body: Any) -> bool:
    """Say whether an answer misses the name of the thread."""
    said = format_json(body)
    return status in (400, 422) and (b"threadId" in said or b"thread_id" in said)


def _generation(_: Any) -> Generation:
    return Generation("no answer but a run tells a version")


def _stream(_: Any) -> str:
    return "a stream is a run, which would make the agent work"


PROBE = Probe(
    header="Authorization",
    framing="sse",
    keyed=Question(
        Call("check", Request("POST", wire.RUN, headers=_HEADERS, body=b"{}")), _refused
    ),
    generation=_generation,
    stream=_stream,
)
"""A run without members."""
