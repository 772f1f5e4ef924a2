"""What the encoder knows of a session or of one of its threads: one typed record, which snapshots
have."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import TypeAdapter

from adapters.model.base import shape_of
from adapters.serving.tokens import TokenTotals


@dataclasses.dataclass(slots=True)
class InputRecord:
    """An input as its event shows it: `fields` are its members but the id and the time. `at` is its
    time in microseconds, None as long as the backend has not taken it up, and `cursor` the place
    where it was. `system` is what the
    application says behind it, and `request` what it answers."""

    id: str
    kind: str
    fields: dict[str, Any]
    at: int | None = None
    cursor: int = 0
    system: list[Any] | None = None
    request: str | None = None


@dataclasses.dataclass(slots=True)
class ShownUse:
    """An open call and the event that shows it. `known` says that its input was, `answered` that
    the application gives its result."""

    id: str
    type: str
    thread: str
    fields: dict[str, Any]
    known: bool = True
    answered: bool = False


@dataclasses.dataclass(slots=True)
class RequestRecord:
    """A request, and the event that its answer names. `own` says that this was made for it, `call`
    which call it is about, `tool` whether its answer is a tool's result. One that is `over` is
    recognised."""

    id: str
    type: str
    thread: str
    kind: str
    own: bool = False
    call: str | None = None
    over: bool = False


@dataclasses.dataclass(slots=True)
class ChildRecord:
    """A child thread: its times are Unix milliseconds."""

    name: str
    parent: str
    kind: str
    created: int
    updated: int
    status: str = "idle"
    ended: int | None = None


@dataclasses.dataclass(slots=True)
class OutcomeRecord:
    """What work is judged by: its id as it is shown, and what was said of it last."""

    id: str
    description: str = ""
    iteration: int = 0
    result: str | None = None
    explanation: str | None = None
    completed_at: int | None = None


@dataclasses.dataclass(slots=True)
class OpenMessage:
    """A text or reasoning that is not whole: the id of its event, and the words that were previewed
    where somebody may want them."""

    id: str
    words: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class ManagedAgentsState:
    """`cursor` is that of the newest frame, `stamp` the newest time that was shown, in
    microseconds. `running` says that the thread works, `over` that nothing follows but the
    deletion. `error` is the message that was told last in the turn.

    `message` and `thinking` are open, `cut` are the words of one that was cut off, `blocks` those
    of a message that has more, `rested` is why the thread rests. `request` is the id of the open
    model request's event, which is `made_up` where the backend tells of none. `calls` are by id,
    `requests` by canonical id, `inputs` by command, the newest ones; `waiting` are those without a
    time. `children` are by id, `evaluations` are the ids of events that began a round, by outcome.
    `outcomes` are by the backend's id. The thread has worked for `active_ms`, and works `since`
    then.
    """

    cursor: int = 0
    stamp: int = 0
    agent: str = ""
    running: bool = False
    over: bool = False
    error: str = ""
    message: OpenMessage | None = None
    cut: str = ""
    rested: dict[str, Any] | None = None
    blocks: list[Any] = dataclasses.field(default_factory=list)
    thinking: OpenMessage | None = None
    request: str | None = None
    made_up: bool = False
    calls: dict[str, ShownUse] = dataclasses.field(default_factory=dict)
    requests: dict[str, RequestRecord] = dataclasses.field(default_factory=dict)
    inputs: dict[str, InputRecord] = dataclasses.field(default_factory=dict)
    waiting: list[str] = dataclasses.field(default_factory=list)
    children: dict[str, ChildRecord] = dataclasses.field(default_factory=dict)
    evaluations: dict[str, str] = dataclasses.field(default_factory=dict)
    outcomes: dict[str, OutcomeRecord] = dataclasses.field(default_factory=dict)
    active_ms: int = 0
    since: int = 0
    tokens: TokenTotals = dataclasses.field(default_factory=TokenTotals)
    usage: dict[str, Any] = dataclasses.field(default_factory=dict)


SHAPE = shape_of(
    1,
    *(
        ManagedAgentsState,
        InputRecord,
        ShownUse,
        RequestRecord,
        ChildRecord,
        OpenMessage,
        OutcomeRecord,
    ),
    TokenTotals,
)
"""The number of all these fields."""

FORM: TypeAdapter[ManagedAgentsState] = TypeAdapter(ManagedAgentsState)
"""Reads a snapshot."""
