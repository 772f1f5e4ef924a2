"""What the encoder knows of a task: one typed record, which snapshots copy."""

from __future__ import annotations

import dataclasses

from pydantic import TypeAdapter

from adapters.model.base import shape_of
from adapters.model.events import ErrorInfo, InteractionRequested, format_state
from adapters.wire.jsonvalue import parse_json


@dataclasses.dataclass(slots=True)
class MessageTurn:
    """The turn that a message of this face became; `start` is the stamp of its first frame."""

    command_id: str
    turn_id: str
    start: int


@dataclasses.dataclass(slots=True)
class RefusedMessage:
    """A message of this face that the backend did not take, and why."""

    command_id: str
    error: ErrorInfo


@dataclasses.dataclass(slots=True)
class HitlRequest:
    """An open request, asked at a time; `claimed` while an answer to it is on its way."""

    event: InteractionRequested
    at: int
    claimed: bool = False


@dataclasses.dataclass(slots=True)
class EngineTaskState:
    """`turn` is the turn that is shown, `start` the stamp of its first frame, `inside` the turn
    that the backend is in, `awaited` the message whose turn is shown before it has begun.

    `block` is the type of the open block, `cut` how it ended where it must not look whole, `blocks`
    the index of the next one. `step_usage` are the tokens that the end of a step told, `call_usage`
    says that a report came before that. `said` has digests of texts of the turn that are JSON.
    `inputs` are the messages under way, with whether they are of this face. `turns` are those of
    its newest messages.
    """

    stamp: int = 0
    task_id: str | None = None
    turn: str | None = None
    start: int = 0
    block: str | None = None
    blocks: int = 0
    cut: str | None = None
    call_usage: bool = False
    step_usage: dict[str, int] | None = None
    said: list[str] = dataclasses.field(default_factory=list)
    inputs: dict[str, bool] = dataclasses.field(default_factory=dict)
    awaited: str | None = None
    inside: str | None = None
    turns: list[MessageTurn] = dataclasses.field(default_factory=list)
    refused: list[RefusedMessage] = dataclasses.field(default_factory=list)
    requests: dict[str, HitlRequest] = dataclasses.field(default_factory=dict)
    shown: str | None = None
    ended: bool = False


SHAPE = shape_of(1, EngineTaskState, MessageTurn, RefusedMessage, HitlRequest)
"""The number of all these fields."""

_STATE: TypeAdapter[EngineTaskState] = TypeAdapter(EngineTaskState)


def dump(state: EngineTaskState) -> bytes:
    """Return the state as JSON."""
    return format_state(state)


def load(snapshot: bytes) -> EngineTaskState:
    """Return the state that `dump` wrote."""
    return _STATE.validate_python(parse_json(snapshot))
