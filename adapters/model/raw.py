"""What client codecs say to the normalizer: raw events, their words, and their JSON.

A raw event is a canonical one with the backend's own ids, which need not obey the laws yet, or one
of the few that exist between a codec and the normalizer only (`BlockEnded`, `CutDelta`,
`CharactersRepaired`). What all codecs say in the same words is made here: what became of an input,
what a backend refused, that a request may be answered again, that nobody knows whether something
arrived, that bytes made no sense.

Codecs keep raw events back, as a tool call until its permission is known, and store them with their
state: `dump` and `load` are their JSON, `Raw` is the type of a field that holds one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator

from adapters.model import events as ev
from adapters.model.base import Response
from adapters.wire.errors import (
    DETAILS_LIMIT,
    OFFENDING_LIMIT,
    DragomanError,
    ErrorCode,
    code_of,
    cut,
)
from adapters.wire.jsonvalue import (
    REPLACEMENT,
    Halved,
    JsonError,
    format_json,
    mended_json,
    parse_json,
)

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


Delta = ev.TextDelta | ev.ReasoningDelta | ev.ToolInputDelta


def _a_delta(value: Any) -> Delta:
    event = value if isinstance(value, ev.Event) else load(value)
    if not isinstance(event, Delta):
        raise ValueError("a cut delta is a delta")
    return event


class CutDelta(ev.Event):
    """A delta that was cut inside of a character: `before` is the second half of one, which stands
    before its text, `after` the first half of one, behind it. Both are numbers of UTF-16 units.
    """

    type: Literal["raw.cut_delta"] = "raw.cut_delta"
    delta: Annotated[Delta, PlainValidator(_a_delta), PlainSerializer(lambda delta: dump(delta))]
    before: int | None = None
    after: int | None = None

    def whole(self) -> Delta:
        """Return the delta with U+FFFD for each half."""
        before, after = (REPLACEMENT * (half is not None) for half in (self.before, self.after))
        return with_text(self.delta, f"{before}{self.delta.text}{after}")


class CharactersRepaired(ev.Event):
    """A frame had halves of characters, in whose place stands U+FFFD now."""

    type: Literal["raw.mended"] = "raw.mended"


def mended(thread_id: str = ev.MAIN) -> ev.Event:
    """Say that a frame was mended."""
    return CharactersRepaired(thread_id=thread_id)


def delta_of(make: Callable[..., Delta], text: str, **fields: Any) -> ev.Event:
    """Return a delta, or a `CutDelta` where its text was cut inside of a character."""
    if not isinstance(text, Halved):
        return make(text=text, **fields)
    halves = text.halves
    before = after = None
    if "\udc00" <= halves[0] <= "\udfff":
        before, halves = ord(halves[0]), halves[1:]
    if "\ud800" <= halves[-1:] <= "\udbff":
        after, halves = ord(halves[-1]), halves[:-1]
    delta = make(text=str(Halved.of(halves)), **fields)
    if before is None and after is None:
        return delta
    return CutDelta(
        thread_id=delta.thread_id,
        turn_id=delta.turn_id,
        native=delta.native,
        delta=delta,
        before=before,
        after=after,
    )


def with_text(delta: Delta, text: str) -> Delta:
    """Return a delta with another text."""
    return delta.model_copy(update={"text": text})


def halved(texts: Iterable[str]) -> str:
    """Return texts as one, which remembers the halves of characters that they have."""
    found = [text.halves if isinstance(text, Halved) else text for text in texts]
    return Halved.of(_joined("".join(found)))


def _joined(text: str) -> str:
    """Return a text in which halves that stand together are characters."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


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


def in_doubt(message: str, code: str = "input_in_doubt", *, quote: str | None = None) -> ev.Event:
    """Say that it is not known whether an input arrived, and that it is looked for."""
    return ev.ErrorReported(
        thread_id=ev.MAIN,
        code=code,
        message=message,
        retry="retrying",
        quote=quote,
        synthetic=True,
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
        quote=_shown(offending),
        synthetic=True,
    )


def error_info(error: DragomanError, code: str | None = None) -> ev.ErrorInfo:
    """Return an error as the log tells it, under another `code` if that is given."""
    return ev.ErrorInfo(code=code or str(error.code), message=error.message, quote=error.quote)


def refused(
    response: Response, code: object, message: str, details: ev.JsonObject | None = None
) -> ev.ErrorInfo:
    """Return what a backend says of a request that it refuses, cut to what a person reads.

    What it says of a failure of its own is for who runs it, and words are no code.
    """
    code = code_of(code, _status_code(response))
    if response.status >= 500:
        return ev.ErrorInfo(
            code=code,
            message=f"{_who(response)} failed with {response.status}.",
            status=response.status,
            quote=_shown(response.body),
        )
    if details and len(format_json(details)) > DETAILS_LIMIT:
        details = None
    return ev.ErrorInfo(
        code=code, message=cut(message), details=details or None, status=response.status
    )


def credential_refused(response: Response) -> ev.ErrorInfo:
    """Return the refusal of the credential that the proxy shows a backend: its own words would
    tell a frontend of a header that it never sent."""
    return ev.ErrorInfo(
        code=str(ErrorCode.BACKEND_REFUSED),
        message=refusal_of(response),
        status=response.status,
    )


def refusal_of(response: Response) -> str:
    """Return in words that a backend refuses the credential that the proxy shows it."""
    return f"{_who(response)} refused the proxy's credential."


def quoted(response: Response) -> ev.ErrorInfo:
    """Return a refusal whose body is of no form that the backend's dialect has."""
    return ev.ErrorInfo(
        code=_status_code(response),
        message=f"{_who(response)} answered {response.status}, not in a form of its dialect.",
        status=response.status,
        quote=_shown(response.body) or None,
    )


def _who(response: Response) -> str:
    return f"Backend `{response.backend}`" if response.backend else "The backend"


def _status_code(response: Response) -> str:
    return f"http_{response.status}"


def json_of(response: Response) -> Any:
    """Return the value of an answer's body, None where it is empty or no JSON."""
    try:
        return value_of(response.body) if response.body else None
    except JsonError:
        return None


def value_of(body: bytes) -> Any:
    """Return the value of an answer's body; halves of characters are mended.

    Raises:
        JsonError: it is not JSON.
    """
    try:
        return parse_json(body)
    except JsonError:
        return mended_json(body)


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
        ValueError: it is not a raw event.
    """
    if not isinstance(value, dict):
        raise ValueError("a raw event is an object")
    if value.get("type") == BlockEnded.TYPE:
        return BlockEnded.model_validate(ev.members_of(value))
    if value.get("type") == CutDelta.TYPE:
        return CutDelta.model_validate(ev.members_of(value))
    return ev.decode_event(value)


Raw = Annotated[ev.Event, PlainValidator(load), PlainSerializer(dump)]
"""A raw event as a field of a state that pydantic reads and writes."""
