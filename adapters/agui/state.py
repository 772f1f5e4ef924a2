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
    """What is noted with the commands of a request. `said` are ids of messages with the number of
    their blocks, `answers` the tool messages that answer: request -> message and call. `asks` says
    that the frontend has the tool `dragoman_ask`, `modern` that it declared 1.0 or later. `passed`
    are answers to what is not open, `left_out` messages that are not said, with the reason,
    `ignored` members that reach no agent."""

    run: str | None = None
    parts: int = 1
    modern: bool = False
    asks: bool = False
    said: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    answers: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    passed: list[str] = dataclasses.field(default_factory=list)
    left_out: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    ignored: list[str] = dataclasses.field(default_factory=list)
    context: str | None = None


@dataclasses.dataclass(slots=True)
class Run:
    """The run that is open. `own` says that a frontend of this dialect asked for it."""

    key: str
    id: str
    own: bool = False
    modern: bool = False
    asks: bool = False
    usage: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    told: dict[str, int] | None = None
    result: Any = None


@dataclasses.dataclass(slots=True)
class Kept:
    """A run that began at cursor `start`, under the name `name`. `first` and `last` count our
    messages before it and at its end, `ids` are the frontend's messages in it."""

    key: str
    name: str
    start: int
    first: int
    last: int
    failed: bool = False
    ids: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Batch:
    """The commands of a request that are being accepted, one after the other. `error` is what they
    were refused with while they waited."""

    notes: Notes
    messages: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    commands: list[str] = dataclasses.field(default_factory=list)
    error: ErrorInfo | None = None


@dataclasses.dataclass(slots=True)
class Awaited:
    """An input whose fate is open: its messages, and the calls that it answers. One that is
    `queued` comes behind the turn that is open, and one that is `behind` has a run of its own
    behind it."""

    message: bool
    queued: bool = False
    behind: bool = False
    ids: list[str] = dataclasses.field(default_factory=list)
    calls: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Block:
    """An open block and the message that shows it."""

    id: str
    message: str


@dataclasses.dataclass(slots=True)
class Line:
    """What is open of a thread: `cut` is a block whose message the end of a run has closed, `last`
    the message to which calls belong."""

    text: Block | None = None
    thinking: Block | None = None
    cut: str | None = None
    last: str | None = None
    step: str | None = None
    model: str | None = None


@dataclasses.dataclass(slots=True)
class Child:
    """A thread below the main one."""

    name: str | None
    parent: str
    call: str | None = None


@dataclasses.dataclass(slots=True)
class Asked:
    """An open request. `call` is the call whose result it wants, `ask` whether it is shown as a
    call of the tool `dragoman_ask`. `in_vain` says that it was answered and the answer came to
    nothing."""

    event: InteractionRequested
    claimed: bool = False
    in_vain: bool = False
    call: str | None = None
    ask: bool = False


@dataclasses.dataclass(slots=True)
class Waiting:
    """An event that waits for the next run."""

    type: str
    members: dict[str, Any]
    thread: str


@dataclasses.dataclass(slots=True)
class State:
    """`turn`, `halted` and `paused` say how the main thread stands: at work or waiting, waiting for
    a person, and whether that is still to be told. `shown` are the requests that were told last.
    `later` are requests whose words were said while the turn was being stopped."""

    stamp: int = 0
    thread: str | None = None
    messages: int = 0
    runs: int = 0
    run: Run | None = None
    kept: list[Kept] = dataclasses.field(default_factory=list)
    turn: bool = False
    halted: bool = False
    paused: bool = False
    shown: list[str] = dataclasses.field(default_factory=list)
    opening: Notes | None = None
    batch: Batch | None = None
    later: list[Batch] = dataclasses.field(default_factory=list)
    awaited: dict[str, Awaited] = dataclasses.field(default_factory=dict)
    heard: Heard = dataclasses.field(default_factory=Heard)
    begun: dict[str, str] = dataclasses.field(default_factory=dict)
    waiting: list[Waiting] = dataclasses.field(default_factory=list)
    waits: int = 0
    lines: dict[str, Line] = dataclasses.field(default_factory=dict)
    children: dict[str, Child] = dataclasses.field(default_factory=dict)
    announced: list[str] = dataclasses.field(default_factory=list)
    finished: list[str] = dataclasses.field(default_factory=list)
    requests: dict[str, Asked] = dataclasses.field(default_factory=dict)
    given: list[str] = dataclasses.field(default_factory=list)
    digest: str | None = None
    modern: bool = False
    asks: bool = False
    context: str | None = None
    ignored: list[str] = dataclasses.field(default_factory=list)
    ended: bool = False


SHAPE = shape_of(
    1, State, Notes, Run, Kept, Batch, Awaited, Block, Line, Child, Asked, Waiting, Heard
)
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
