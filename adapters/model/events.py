"""The canonical model: every event that a session's log can hold, and the entries of that log.

An `Event` says what happened; codecs and the normalizer make them. An `Entry` is an event with its
place in the log: `seq` (1, 2, 3 … without gaps), `at` (Unix milliseconds when we journaled it) and
the session. Events are frozen pydantic models, one class per type, named as the type in CamelCase;
`CanonicalEvent` is their union.

Fields of a source that the model does not know survive in `extra`; a whole event that it does not
know survives as `Native`. Ids (`turn_id`, `call_id`, `request_id`) are the backend's own where they
are unique in the session.

Why one module: it is the catalogue of all events, and how they are written and read.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar, cast, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from adapters.model.stored import StoredType, take_version, version_member
from adapters.wire.jsonvalue import format_json, parse_json

MAIN = "main"
"""The `thread_id` of a session's main line."""

JsonObject = dict[str, Any]


class Model(BaseModel):
    """A frozen value without unknown fields: what is unknown belongs into `extra`, on purpose."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="constants", defer_build=True
    )


class NativeRef(Model):
    """Where an event came from: the backend's own id, type and time, and the number of its source
    frame.
    """

    dialect: str
    id: str | None = None
    type: str | None = None
    at: str | None = None
    frame: int | None = None


class ErrorInfo(Model):
    """A failure: a stable `code`, a `message` for people, and what else the source said. `status`
    is that of the HTTP answer by which a backend refused something. `quote` is for who runs this:
    what the source wrote that is not its dialect's, and may name addresses and credentials."""

    code: str
    message: str
    details: JsonObject | None = None
    status: int | None = None
    quote: str | None = None


class Usage(Model):
    """Tokens of one call, one turn or the session so far.

    `input_tokens` includes the cached ones.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost_usd: float | None = None
    extra: JsonObject | None = None


def _always() -> Any:
    """Return a field that is always written: a default would be left out, so it has none, and
    `Block` fills it in."""
    return Field()


class Block(Model):
    """A value that says its own `type`, also where defaults are left out: `type` has none, the
    class fills it in.
    """

    TYPE: ClassVar[str]

    type: str

    def __init__(self, **data: Any) -> None:
        super().__init__(**{"type": self.TYPE, **data})

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.TYPE = get_args(cls.model_fields["type"].annotation)[0]


class Text(Block):
    """Words."""

    type: Literal["text"] = _always()
    text: str
    extra: JsonObject | None = None


class Blob(Block):
    """A file kept by us, once, by the hash of its bytes."""

    type: Literal["blob"] = _always()
    sha256: str


class Url(Block):
    """A file that lives elsewhere."""

    type: Literal["url"] = _always()
    url: str


class FileId(Block):
    """A file that a backend of `dialect` knows under `id`."""

    type: Literal["file_id"] = _always()
    dialect: str
    id: str


FileRef = Annotated[Blob | Url | FileId, Field(discriminator="type")]


class File(Block):
    """A file or an image; `size` is in bytes, of the decoded content.

    A mere URL may come without media type.
    """

    type: Literal["file"] = _always()
    media_type: str | None = None
    name: str | None = None
    size: int | None = None
    ref: FileRef
    extra: JsonObject | None = None


class Redacted(Block):
    """Content that the source withholds."""

    type: Literal["redacted"] = _always()
    extra: JsonObject | None = None


class SearchResult(Block):
    """A search hit with its source."""

    type: Literal["search_result"] = _always()
    source: str
    title: str
    content: tuple[Text, ...] = ()
    extra: JsonObject | None = None


class Other(Block):
    """A content block that has no canonical meaning; `value` is the block as it came."""

    type: Literal["other"] = _always()
    dialect: str
    value: Any


Content = Annotated[Text | File | Redacted | SearchResult | Other, Field(discriminator="type")]


class Option(Model):
    """One choice of an interaction; what it decides, where the source says so."""

    id: str
    label: str
    decision: Literal["allow", "deny"] | None = None
    scope: Literal["once", "session", "always"] | None = None
    style: Literal["primary", "danger", "default"] | None = None
    description: str | None = None


class Answer(Model):
    """What was answered: the options chosen, the words, the content; never a sealed value."""

    option_ids: tuple[str, ...] = ()
    text: str | None = None
    content: tuple[Content, ...] | None = None
    reason: str | None = None
    is_error: bool = False


class Event(Model, StoredType):
    """What all events have. `synthetic` marks what the normalizer or the session added."""

    TYPE: ClassVar[str]
    state_version: ClassVar[int] = 1

    type: str
    thread_id: str
    turn_id: str | None = None
    native: NativeRef | None = None
    synthetic: bool = False
    extra: JsonObject | None = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.TYPE = cls.model_fields["type"].default


class SessionStarted(Event):
    """Always seq 1, written when the session is made.

    `agent` has the keys `id`, `name`, `model`, `version` where known; `options` is what else the
    dialect's create said.
    """

    type: Literal["session.started"] = "session.started"
    agent: JsonObject | None = None
    title: str | None = None
    metadata: JsonObject | None = None
    options: JsonObject | None = None


class SessionUpdated(Event):
    """Something about the session changed; archived is a state, not an end.

    `backend` says which backend goes on with it from here: its keys are `name`, `dialect`, `leg`,
    `before` (the name of the one that had it) and `history`, a list of what went over and how
    faithfully.
    """

    type: Literal["session.updated"] = "session.updated"
    agent: JsonObject | None = None
    title: str | None = None
    metadata: JsonObject | None = None
    archived_at: int | None = None
    predecessor: str | None = None
    replaced_by: str | None = None
    options: JsonObject | None = None
    backend: JsonObject | None = None


class SessionEnded(Event):
    """Nothing follows, but its deletion."""

    type: Literal["session.ended"] = "session.ended"
    outcome: Literal["completed", "failed", "terminated", "deleted"]
    error: ErrorInfo | None = None


InputKind = Literal["message", "steer", "interrupt", "answer", "system", "outcome", "control"]
Policy = Literal["reject", "queue", "steer", "interrupt", "withdraw", "decline"]


class InputAccepted(Event):
    """A frontend's input was taken in; written before the frontend gets its 2xx.

    `name` is the command's type and `details` its fields that have no place of their own here. `by`
    is the key that sent it and `face` the dialect it came in; an input that somebody sent to the
    backend directly has `by` "backend". `trace` is the `traceparent` of the request that brought it
    (W3C Trace Context), under which the backend is asked as well.
    """

    type: Literal["input.accepted"] = "input.accepted"
    command_id: str
    kind: InputKind
    message_id: str | None = None
    content: tuple[Content, ...] | None = None
    request_id: str | None = None
    policy: Policy | None = None
    name: str | None = None
    details: JsonObject | None = None
    by: str
    face: str | None = None
    trace: str | None = None


class InputSettled(Event):
    """The backend took an input, or will not."""

    type: Literal["input.settled"] = "input.settled"
    command_id: str
    outcome: Literal["taken", "refused", "withdrawn", "unknown"]
    reason: str | None = None
    error: ErrorInfo | None = None


class MessageReceived(Event):
    """A message became part of the conversation."""

    type: Literal["message.received"] = "message.received"
    message_id: str
    content: tuple[Content, ...]
    command_id: str | None = None


class GuidanceReceived(Event):
    """Steering became part of the running turn."""

    type: Literal["guidance.received"] = "guidance.received"
    text: str
    command_id: str | None = None


class TurnStarted(Event):
    """The agent starts to work; `partial` when we attached in the middle."""

    type: Literal["turn.started"] = "turn.started"
    cause: Literal["message", "answer", "queue", "background", "unknown"]
    partial: bool = False


class TurnPaused(Event):
    """The turn waits, and stays open. `request_ids` names exactly the open interactions when `on`
    is `input`.

    `usage` is of the session so far.
    """

    type: Literal["turn.paused"] = "turn.paused"
    on: Literal["input", "tasks", "retry"]
    request_ids: tuple[str, ...] = ()
    usage: Usage | None = None


class TurnResumed(Event):
    """The agent works again; interactions may still be open."""

    type: Literal["turn.resumed"] = "turn.resumed"


class TurnEnded(Event):
    """The agent waits for the next input. `usage` is of the session so far."""

    type: Literal["turn.ended"] = "turn.ended"
    outcome: Literal["completed", "failed", "interrupted", "refused", "exhausted", "over_budget"]
    error: ErrorInfo | None = None
    usage: Usage | None = None


class StepStarted(Event):
    """One model call begins; `step_index` counts from 0 in its turn."""

    type: Literal["step.started"] = "step.started"
    step_index: int
    model: str | None = None


class StepEnded(Event):
    """One model call ended, well or with an `error`."""

    type: Literal["step.ended"] = "step.ended"
    step_index: int
    finish_reason: str | None = None
    usage: Usage | None = None
    error: ErrorInfo | None = None


class _Delta(Event):
    """More of a block. `index` is the block's place in its message.

    `_around` is what its JSON has in common with that of the other deltas of its block: deltas come
    by thousands, see `next_delta`. It is not part of the value.
    """

    __slots__ = ("_around",)

    block_id: str
    message_id: str
    index: int = 0
    text: str


class TextDelta(_Delta):
    """More of an assistant text."""

    type: Literal["text.delta"] = "text.delta"


BlockStatus = Literal["complete", "partial", "discarded"]


class TextCompleted(Event):
    """The whole text of a block. A cut block is `partial`, a repeated step's is `discarded`.

    `content` is what stands here in place of text: an image, a redacted block.
    """

    type: Literal["text.completed"] = "text.completed"
    block_id: str
    message_id: str
    index: int = 0
    text: str
    content: tuple[Content, ...] | None = None
    status: BlockStatus = "complete"
    finish_reason: str | None = None


class ReasoningDelta(_Delta):
    """More of the agent's reasoning."""

    type: Literal["reasoning.delta"] = "reasoning.delta"


class ReasoningCompleted(Event):
    """The whole reasoning of a block; `withheld` where the source says that there was some, but not
    what.
    """

    type: Literal["reasoning.completed"] = "reasoning.completed"
    block_id: str
    message_id: str
    index: int = 0
    text: str
    status: BlockStatus = "complete"
    withheld: bool = False


DELTAS = frozenset({TextDelta.TYPE, ReasoningDelta.TYPE})
"""Types that come by thousands: a log is mostly these, and what is done for each of them counts."""


class ToolInputDelta(Event):
    """A piece of a tool's input as the model writes it; need not be followed by a call."""

    type: Literal["tool.input_delta"] = "tool.input_delta"
    call_id: str
    name: str | None = None
    text: str


CallKind = Literal["builtin", "mcp", "custom", "subagent", "skill", "workflow", "remote"]
Permission = Literal["allow", "ask", "deny", "unknown"]


class ToolCalled(Event):
    """The agent calls a tool. `input_known` is false where the backend tells the input only with
    the result.

    `name` is as the backend says it; `server` is the connector it belongs to, which a dotted name
    may repeat.
    """

    type: Literal["tool.called"] = "tool.called"
    call_id: str
    name: str
    kind: CallKind = "builtin"
    server: str | None = None
    input: Any = None
    input_known: bool = True
    preview: str | None = None
    label: str | None = None
    permission: Permission = "unknown"
    evaluation: JsonObject | None = None


class ToolProgressed(Event):
    """An interim output of a running call; the last one counts."""

    type: Literal["tool.progressed"] = "tool.progressed"
    call_id: str
    output: Any = None


class ToolReturned(Event):
    """The one result of a call: JSON in `output`, or blocks in `content`. `duration_ms` where the
    source tells it.

    `output_known` is false where the backend never tells it.
    """

    type: Literal["tool.returned"] = "tool.returned"
    call_id: str
    output: Any = None
    output_known: bool = True
    content: tuple[Content, ...] | None = None
    is_error: bool = False
    error: ErrorInfo | None = None
    status: Literal["completed", "failed", "rejected", "interrupted"] = "completed"
    input: Any = None
    duration_ms: float | None = None


InteractionKind = Literal[
    "approval", "question", "secret", "sudo", "tool_result", "authorization", "limit", "unknown"
]
SEALED_KINDS: frozenset[str] = frozenset({"secret", "sudo", "unknown"})
"""Kinds whose answer must reach the backend and nothing else; what is not known may be a secret."""


class InteractionRequested(Event):
    """The agent waits for a person or an application. `native_id` is the backend's own id of it
    where that was used before in the session, so that `request_id` is another one.

    `answerable` is false for what is asked elsewhere and can only be watched. Keys of `details`: of
    a call `tool`, `input`, `command`; of a sign-in `service`, `url`, `user_code`, `instructions`,
    `display_name`; of a limit `limit_kind`, `limit`, `used_tokens`.
    """

    type: Literal["interaction.requested"] = "interaction.requested"
    request_id: str
    native_id: str | None = None
    shown_on: str | None = None
    kind: InteractionKind
    prompt: str
    options: tuple[Option, ...] | None = None
    freeform: bool = False
    answerable: bool = True
    call_id: str | None = None
    details: JsonObject | None = None
    expires_at: int | None = None


class InteractionAnswered(Event):
    """The claim on an interaction: at most one that is not released."""

    type: Literal["interaction.answered"] = "interaction.answered"
    request_id: str
    command_id: str
    by: str
    state: Literal["claimed", "released"] = "claimed"


class InteractionUpdated(Event):
    """News about an open interaction."""

    type: Literal["interaction.updated"] = "interaction.updated"
    request_id: str
    details: JsonObject


InteractionOutcome = Literal[
    "approved",
    "denied",
    "answered",
    "skipped",
    "expired",
    "cancelled",
    "withdrawn",
    "failed",
    "unknown",
]


class InteractionResolved(Event):
    """The backend showed that an interaction is over; only its evidence writes this."""

    type: Literal["interaction.resolved"] = "interaction.resolved"
    request_id: str
    outcome: InteractionOutcome
    answer: Answer | None = None
    scope: Literal["once", "session", "always"] | None = None
    reason: str | None = None
    by: str | None = None


class ThreadStarted(Event):
    """A child agent (or tool run) with a line of its own begins; `thread_id` is the child's."""

    type: Literal["thread.started"] = "thread.started"
    parent: str
    name: str | None = None
    kind: Literal["agent", "tool", "remote", "advisor"] = "agent"
    call_id: str | None = None
    task_id: str | None = None
    native_id: str | None = None
    path: str | None = None
    agent: JsonObject | None = None


class ThreadUpdated(Event):
    """What a backend tells of a child after its start: where its own stream is, what it is."""

    type: Literal["thread.updated"] = "thread.updated"
    native_id: str | None = None
    path: str | None = None
    name: str | None = None
    kind: Literal["agent", "tool", "remote", "advisor"] | None = None
    agent: JsonObject | None = None


class ThreadEnded(Event):
    """A child is done."""

    type: Literal["thread.ended"] = "thread.ended"
    status: Literal["completed", "failed", "cancelled"]
    output: Any = None
    error: ErrorInfo | None = None


class ThreadMessage(Event):
    """Threads talk to each other; `sender` and `recipient` are thread ids."""

    type: Literal["thread.message"] = "thread.message"
    direction: Literal["sent", "received"]
    sender: str | None = None
    recipient: str | None = None
    content: tuple[Content, ...] = ()


class ResultProduced(Event):
    """A structured result of the turn."""

    type: Literal["result.produced"] = "result.produced"
    value: Any


class ContextCompacted(Event):
    """History was summarised, or is about to be."""

    type: Literal["context.compacted"] = "context.compacted"
    phase: Literal["started", "completed"] = "completed"
    before_tokens: float | None = None
    after_tokens: float | None = None
    strategy: str | None = None
    model: str | None = None


class ContextCleared(Event):
    """History was dropped."""

    type: Literal["context.cleared"] = "context.cleared"


class MemoryUpdated(Event):
    """The agent wrote to its notes."""

    type: Literal["memory.updated"] = "memory.updated"
    value: Any


class StateUpdated(Event):
    """The state that an agent shares with its application: the whole `value`, or what a `patch`
    (JSON Patch, RFC 6902) changes of it."""

    type: Literal["state.updated"] = "state.updated"
    value: Any = None
    patch: tuple[Any, ...] | None = None


class ActivityUpdated(Event):
    """What an agent shows of its work besides words and calls, such as a plan: the whole `content`,
    or what a `patch` changes of it. `kind` says what it is, in the application's own words."""

    type: Literal["activity.updated"] = "activity.updated"
    activity_id: str
    kind: str
    content: JsonObject | None = None
    patch: tuple[Any, ...] | None = None


class UsageReported(Event):
    """Tokens used by one call, the turn, or the session so far."""

    type: Literal["usage.reported"] = "usage.reported"
    usage: Usage
    scope: Literal["call", "turn", "session"] = "call"


class ErrorReported(Event):
    """Something failed; by itself it does not end the turn. `quote` is as in `ErrorInfo`."""

    type: Literal["error.reported"] = "error.reported"
    code: str
    message: str
    retry: Literal["retrying", "exhausted", "terminal"] | None = None
    details: JsonObject | None = None
    quote: str | None = None


class OutcomeEvaluated(Event):
    """A round of judging the work against a defined outcome."""

    type: Literal["outcome.evaluated"] = "outcome.evaluated"
    outcome_id: str
    phase: Literal["started", "ongoing", "ended"]
    iteration: int
    result: str | None = None
    explanation: str | None = None
    usage: Usage | None = None


class Notice(Event):
    """A status line or a warning."""

    type: Literal["notice"] = "notice"
    level: Literal["debug", "info", "warning", "error"] = "info"
    text: str
    kind: str | None = None
    call_id: str | None = None
    details: JsonObject | None = None


class Gap(Event):
    """Events are missing here, and we say so; `cursor_from` and `cursor_to` are the backend's
    positions, where known.
    """

    type: Literal["gap"] = "gap"
    reason: str
    cursor_from: str | None = None
    cursor_to: str | None = None


class Native(Event):
    """A frame without canonical meaning; it reaches frontends of its own dialect.

    `name` is its native type.
    """

    type: Literal["native"] = "native"
    dialect: str
    name: str | None = None
    frame: Any


CanonicalEvent = (
    SessionStarted
    | SessionUpdated
    | SessionEnded
    | InputAccepted
    | InputSettled
    | MessageReceived
    | GuidanceReceived
    | TurnStarted
    | TurnPaused
    | TurnResumed
    | TurnEnded
    | StepStarted
    | StepEnded
    | TextDelta
    | TextCompleted
    | ReasoningDelta
    | ReasoningCompleted
    | ToolInputDelta
    | ToolCalled
    | ToolProgressed
    | ToolReturned
    | InteractionRequested
    | InteractionAnswered
    | InteractionUpdated
    | InteractionResolved
    | ThreadStarted
    | ThreadUpdated
    | ThreadEnded
    | ThreadMessage
    | ResultProduced
    | ContextCompacted
    | ContextCleared
    | MemoryUpdated
    | StateUpdated
    | ActivityUpdated
    | UsageReported
    | ErrorReported
    | OutcomeEvaluated
    | Notice
    | Gap
    | Native
)

EVENT_TYPES: dict[str, type[Event]] = {cls.TYPE: cls for cls in CanonicalEvent.__args__}
"""Every canonical type by its name."""

_QUOTING = frozenset(
    name for name, cls in EVENT_TYPES.items() if {"error", "quote"} & cls.model_fields.keys()
)
"""The types of the events that may have a quote."""

_ADAPTER: TypeAdapter[CanonicalEvent] = TypeAdapter(
    Annotated[CanonicalEvent, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)


def members_of(value: JsonObject) -> JsonObject:
    """Return the members of a stored event as the events of today have them.

    Raises:
        StoredByNewer: its version is not known yet.
    """
    return take_version(Event, "an event", value)


def decode_event(value: JsonObject) -> CanonicalEvent:
    """Return the event that `value`, a JSON object with a `type`, describes.

    Raises:
        StoredByNewer: its version is not known yet.
        ValueError: the type is unknown, or a field is missing, unknown or wrong; the text names
            the field.
    """
    try:
        return _ADAPTER.validate_python(members_of(value))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:]) or "type"
        raise ValueError(f"canonical event: `{place}`: {first['msg']}") from error


def encode_event(event: Event) -> bytes:
    """Return the event as one JSON object, defaults left out; its version first, then `type`."""
    return _object(b"{", event)


def _object(begin: bytes, event: Event) -> bytes:
    """Return `begin`, the members of an event's object and its closing brace."""
    if isinstance(event, _Delta):
        try:
            before, between = _get_around(event)
        except AttributeError:
            pass
        else:
            values = event.__dict__
            text = values["text"]
            frame = values["native"].frame
            return b"%b%b%d%b%b}" % (begin, before, frame, between, orjson.dumps(text))
    # `thread_id` has no default, so the object is never empty. Defaults are left out: a log of
    # deltas is mostly deltas.
    dumped = event.__pydantic_serializer__.to_json(event, exclude_defaults=True)
    head = b'%b%b"type":"%b",' % (begin, VERSION_MEMBER, event.TYPE.encode())
    return head + dumped[1:]


def format_state(state: Any) -> bytes:
    """Return the JSON of a codec's state, a dataclass: events in it as they are stored, and values
    of the model without their defaults.

    Raises:
        JsonError: as `format_json`.
    """
    try:
        return orjson.dumps(state, default=_stored)
    except orjson.JSONEncodeError:
        # It has an integer beyond 64 bits, as an input that waits may.
        return format_json(json.loads(json.dumps(state, default=_plain)))


def _stored(value: Any) -> Any:
    return orjson.Fragment(encode_event(value)) if isinstance(value, Event) else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return parse_json(encode_event(value))
    if isinstance(value, Model):
        return value.model_dump(mode="json", exclude_defaults=True)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


VERSION_MEMBER = version_member(Event)
"""What stands first in a stored event; empty for version 1."""

Delta = TypeVar("Delta", bound=TextDelta | ReasoningDelta)

_set_dict = BaseModel.__dict__["__dict__"].__set__
_set_fields_set = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__
_set_around = _Delta.__dict__["_around"].__set__
_get_around = _Delta.__dict__["_around"].__get__


def next_delta(block: Delta, text: str, frame: int) -> Delta:
    """Return the delta of the same block that is `text` and came with source frame `frame`.

    It takes half the time of the constructor, because what is known to fit is not validated.
    """
    values = block.__dict__.copy()
    values["text"] = text
    native = values["native"]
    if native is None:
        return cast("Delta", _alike(block, values))
    reference = native.__dict__.copy()
    reference["frame"] = frame
    values["native"] = _alike(native, reference)
    delta: Delta = _alike(block, values)
    try:
        around = _get_around(block)
    except AttributeError:
        around = _around(delta)
    _set_around(delta, around)
    return delta


def _alike(model: Any, values: dict[str, Any]) -> Any:
    copy = object.__new__(type(model))
    _set_dict(copy, values)
    _set_fields_set(copy, model.__pydantic_fields_set__)
    _set_extra(copy, None)
    _set_private(copy, None)
    return copy


def _around(delta: _Delta) -> tuple[bytes, bytes]:
    """Return what stands before the number of the source frame in a delta's members, and between
    it and the text."""
    assert delta.native is not None
    native = _alike(delta.native, {**delta.native.__dict__, "frame": 0})
    members = _object(b"", _alike(delta, {**delta.__dict__, "native": native, "text": ""}))
    # No text has an unescaped quote, and all before the frame are texts; `text` is the last member.
    before, name, rest = members.partition(b'"frame":')
    return before + name, rest.removeprefix(b"0").removesuffix(b'""}')


class Entry(NamedTuple):
    """An event in its place: position `seq` of the session, `at` in Unix milliseconds.

    A tuple, because one is made for every event and a tuple is made three times as fast as a
    frozen dataclass.
    """

    seq: int
    at: int
    session_id: str
    event: Event

    def encode(self) -> bytes:
        """Return the entry as one JSON object: the public form of the canonical log."""
        session_id = orjson.dumps(self.session_id)
        begin = b'{"seq":%d,"at":%d,"session_id":%b,' % (self.seq, self.at, session_id)
        return _object(begin, self.event)

    def encode_row(self) -> bytes:
        """Return the entry as the journal keeps it: the row already knows its session."""
        return _object(b'{"seq":%d,"at":%d,' % (self.seq, self.at), self.event)

    @classmethod
    def decode(cls, line: bytes | str, *, session_id: str | None = None) -> Self:
        """Return the entry of a line that `encode` or `encode_row` wrote.

        Raises:
            StoredByNewer: its version is not known yet.
            ValueError: the line is not an entry; the text names the field.
        """
        value = parse_json(line)
        if not isinstance(value, dict):
            raise ValueError("canonical event: expected a JSON object")
        try:
            seq, at = value.pop("seq"), value.pop("at")
            session = value.pop("session_id", session_id)
        except KeyError as error:
            raise ValueError(f"canonical event: `{error.args[0]}` is missing") from error
        if not isinstance(seq, int) or not isinstance(at, int) or not isinstance(session, str):
            raise ValueError("canonical event: `seq` and `at` are integers, `session_id` is text")
        return cls(seq, at, session, decode_event(value))

    def without_quote(self) -> Self:
        """Return the entry without what is only for who runs this: what frontends are shown."""
        event = self.event
        if event.TYPE not in _QUOTING:
            return self
        error = getattr(event, "error", None)
        if isinstance(event, ErrorReported) and event.quote is not None:
            event = event.model_copy(update={"quote": None})
        elif isinstance(error, ErrorInfo) and error.quote is not None:
            plain = error.model_copy(update={"quote": None})
            event = event.model_copy(update={"error": plain})
        return self if event is self.event else self._replace(event=event)


def text_of(content: tuple[Any, ...] | None) -> str:
    """Return the words of `content`, blocks joined by a line break; a file is shown as `[file: name
    (type)]`.
    """
    parts: list[str] = []
    for block in content or ():
        match block:
            case Text():
                parts.append(block.text)
            case File():
                parts.append(f"[file: {block.name or 'unnamed'} ({block.media_type or 'file'})]")
            case SearchResult():
                parts.append(
                    "\n".join([block.title, block.source, *(t.text for t in block.content)])
                )
            case Redacted():
                parts.append("[redacted]")
            case Other():
                parts.append(format_json(block.value).decode())
    return "\n".join(parts)
