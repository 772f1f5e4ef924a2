"""What the encoder knows of a session: one typed state, of which snapshots are made."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import TypeAdapter

from adapters.contract.faces.history import Heard
from adapters.model.base import shape_of
from adapters.model.events import ErrorInfo, InteractionRequested, format_state
from adapters.wire.jsonvalue import parse_json


@dataclasses.dataclass(slots=True)
class Notes:
    """What is noted with the commands of a request: how many these are, the ids of the messages
    that they say and of those that are left out, with the reason, whether the stream goes on with
    an earlier message, the members that reach no agent, and a digest of what the application says
    to it."""

    parts: int = 1
    said: list[str] = dataclasses.field(default_factory=list)
    left_out: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    goes_on: bool = False
    ignored: list[str] = dataclasses.field(default_factory=list)
    context: str | None = None


@dataclasses.dataclass(slots=True)
class Kept:
    """A stream: what one answer has, from `start` to `[DONE]`. `message` is what it writes, `start`
    the cursor of its first frame and `tail` that of its last one, None while it is open. `own` says
    that a page asked for it, `steps` how many the message had before, `ids` are the messages of the
    page that began it."""

    key: str
    message: str
    start: int
    own: bool
    steps: int
    tail: int | None = None
    ids: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Batch:
    """The commands of a request that are being accepted, one after the other. `error` is what they
    were refused with while they waited."""

    notes: Notes
    commands: list[str] = dataclasses.field(default_factory=list)
    error: ErrorInfo | None = None


@dataclasses.dataclass(slots=True)
class Awaited:
    """An input whose fate is open. One that is `queued` comes behind the turn that is open, and one
    that is `behind` has a stream of its own behind it. With `declines` whatever is asked is
    declined for it."""

    message: bool
    queued: bool = False
    behind: bool = False
    declines: bool = False
    ids: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Block:
    """An open text or reasoning, and the id of its part."""

    id: str
    part: str


@dataclasses.dataclass(slots=True)
class Call:
    """A call without a result: the message that has it, nothing while it waits for the next one.
    `step` counts the steps of its message. `page` says that the page gives the result."""

    message: str
    step: int
    name: str = ""
    page: bool = False
    approval: bool = False
    called: bool = True


@dataclasses.dataclass(slots=True)
class Asked:
    """An open request. `call` is the call that it is about, or that asks it. `stream` is the one in
    which it was told, nothing before. `in_vain` says that it was answered and the answer came to
    nothing."""

    event: InteractionRequested
    call: str | None = None
    claimed: bool = False
    in_vain: bool = False
    stream: str = ""


@dataclasses.dataclass(slots=True)
class Waiting:
    """A chunk that waits for the next stream; `message` is the one that it is about, if any."""

    type: str
    members: dict[str, Any]
    message: str = ""


@dataclasses.dataclass(slots=True)
class State:
    """`turn`, `halted` and `paused` say how the main thread stands: at work or waiting, waiting for
    a person, and whether that is still to be told. `stream` is the key of the open one. Of the
    message that is written, `begin` is its first cursor, `steps` counts its steps, `asks` has the
    cursors at which approvals were asked, `gone` those of them that are answered, and `tools` says
    that its last step has calls, `returned` that one of these has its result. `later` are requests
    whose words were said while the turn was being stopped. `after` has the
    stream in which each request was told that is over, `over_at` is when the last stream ended.
    """

    cursor: int = 0
    messages: int = 0
    streams: int = 0
    stream: str | None = None
    message: str | None = None
    begin: int = 0
    kept: list[Kept] = dataclasses.field(default_factory=list)
    asks: dict[str, int] = dataclasses.field(default_factory=dict)
    gone: list[int] = dataclasses.field(default_factory=list)
    step: bool = False
    steps: int = 0
    tools: bool = False
    returned: bool = False
    parts: int = 0
    text: Block | None = None
    thinking: Block | None = None
    cut: str | None = None
    calls: dict[str, Call] = dataclasses.field(default_factory=dict)
    turn: bool = False
    halted: bool = False
    paused: bool = False
    opening: Notes | None = None
    batch: Batch | None = None
    later: list[Batch] = dataclasses.field(default_factory=list)
    awaited: dict[str, Awaited] = dataclasses.field(default_factory=dict)
    heard: Heard = dataclasses.field(default_factory=Heard)
    begun: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    waiting: list[Waiting] = dataclasses.field(default_factory=list)
    waits: int = 0
    children: dict[str, str | None] = dataclasses.field(default_factory=dict)
    requests: dict[str, Asked] = dataclasses.field(default_factory=dict)
    after: dict[str, str] = dataclasses.field(default_factory=dict)
    usage: dict[str, int] = dataclasses.field(default_factory=dict)
    told: dict[str, int] | None = None
    model: str | None = None
    digest: str | None = None
    ignored: list[str] = dataclasses.field(default_factory=list)
    context: str | None = None
    over_at: int = 0
    ended: bool = False


SHAPE = shape_of(1, State, Notes, Kept, Batch, Awaited, Block, Call, Asked, Waiting, Heard)
"""The number of all these fields."""

_STATE: TypeAdapter[State] = TypeAdapter(State)
NOTES: TypeAdapter[Notes] = TypeAdapter(Notes)
"""Reads what is noted with an input."""


def dump(state: State) -> bytes:
    """Return the state as JSON."""
    return format_state(state)


def load(snapshot: bytes) -> State:
    """Return the state that `dump` wrote."""
    return _STATE.validate_python(parse_json(snapshot))
