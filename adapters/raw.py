"""What client codecs say to the normalizer: raw events, their words, and their JSON.

A raw event is a canonical one with the backend's own ids, which need not obey the laws yet, or one
of the few that exist between a codec and the normalizer only (`BlockEnded`). What all codecs say in
the same words is made here: what became of an input, what a backend refused, that a request may be
answered again, that nobody knows whether something arrived, that bytes made no sense.

Codecs keep raw events back, as a tool call until its permission is known, and store them with their
state: `dump` and `load` are their JSON, `Raw` is the type of a field that holds one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator

from adapters import events as ev
from adapters.base import Response
from adapters.errors import CODE_LIMIT, DETAILS_LIMIT, OFFENDING_LIMIT, ErrorCode, cut
from adapters.jsonvalue import JsonError, format_json, parse_json

__all__ = [
    "BlockEnded",
    "InputOutcome",
    "Raw",
    "dump",
    "garbled",
    "in_doubt",
    "json_of",
    "load",
    "quoted",
    "refused",
    "released",
    "settled",
]

InputOutcome = Literal["taken", "refused", "unknown"]
"""What becomes of an input that was sent to a backend."""


class BlockEnded(ev.Event):
    """The open block of `block` is over, and its text is what was streamed.

    For dialects that stream deltas and never repeat the whole. A block with deltas becomes
    `text.completed` or `reasoning.completed`; without an open block nothing.
    """

    type: Literal["raw.block_ended"] = "raw.block_ended"
    block: Literal["text", "reasoning"]
    status: Literal["complete", "partial", "discarded"] = "complete"
    finish_reason: str | None = None


# Words that all dialects use.


def settled(command_id: str, outcome: InputOutcome, error: ev.ErrorInfo | None = None) -> ev.Event:
    """Say what became of an input."""
    return ev.InputSettled(
        thread_id=ev.MAIN,
        command_id=command_id,
        outcome=outcome,
        reason=None if error is None else error.message,
        error=error,
    )


def released(
    request_id: str, command_id: str, *, thread_id: str = ev.MAIN, turn_id: str | None = None
) -> ev.Event:
    """Say that the answer of a command did not count: the request may be answered again."""
    return ev.InteractionAnswered(
        thread_id=thread_id,
        turn_id=turn_id,
        request_id=request_id,
        command_id=command_id,
        by="backend",
        state="released",
    )


def in_doubt(message: str, code: str = "input_in_doubt") -> ev.Event:
    """Say that it is not known whether an input arrived, and that it is looked for."""
    return ev.ErrorReported(
        thread_id=ev.MAIN, code=code, message=message, retry="retrying", synthetic=True
    )


def garbled(
    dialect: str,
    reason: str,
    offending: bytes,
    *,
    thread_id: str = ev.MAIN,
    turn_id: str | None = None,
) -> ev.Event:
    """Say that a backend sent what its dialect does not allow; the stream goes on."""
    return ev.ErrorReported(
        thread_id=thread_id,
        turn_id=turn_id,
        code=str(ErrorCode.BACKEND_PROTOCOL),
        message=f"{dialect}: {reason}",
        details={"offending": _shown(offending)},
        synthetic=True,
    )


def refused(code: str, message: str, details: ev.JsonObject | None = None) -> ev.ErrorInfo:
    """Return what a backend says of a request that it refuses, cut to what a person reads."""
    if details and len(format_json(details)) > DETAILS_LIMIT:
        details = None
    return ev.ErrorInfo(code=cut(code, CODE_LIMIT), message=cut(message), details=details or None)


def quoted(response: Response, backend: str) -> ev.ErrorInfo:
    """Return a refusal whose body is of no form that `backend` is known to use."""
    return ev.ErrorInfo(
        code=f"http_{response.status}",
        message=f"{backend} answered {response.status}: {_shown(response.body)}",
    )


def json_of(response: Response) -> Any:
    """Return the value of an answer's body, None where it is empty or no JSON."""
    try:
        return parse_json(response.body) if response.body else None
    except JsonError:
        return None


def _shown(data: bytes) -> str:
    return data[:OFFENDING_LIMIT].decode("utf-8", "backslashreplace")


# Raw events as JSON.


def dump(event: ev.Event) -> dict[str, Any]:
    """Return a raw event as a JSON object."""
    value = parse_json(ev.encode_event(event))
    assert isinstance(value, dict)
    return value


def load(value: Any) -> ev.Event:
    """Return what `dump` gave.

    Raises:
        ValueError: it is no raw event.
    """
    if not isinstance(value, dict):
        raise ValueError("a raw event is an object")
    if value.get("type") == BlockEnded.TYPE:
        return BlockEnded.model_validate(ev.members_of(value))
    return ev.decode_event(value)


Raw = Annotated[ev.Event, PlainValidator(load), PlainSerializer(dump)]
"""A raw event as a field of a state that pydantic reads and writes."""
