"""What the encoder knows of a session: one typed state, which snapshots copy."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.model.base import shape_of
from adapters.serving.encoder import ShownBlock
from adapters.serving.inputs import InputBatch, InputBatches, NotesForm, PendingInput
from adapters.serving.later import WaitingFrame, WaitingFrames
from adapters.serving.messages import SaidMessages
from adapters.serving.pauses import Pauses, ShownRequest
from adapters.serving.tokens import TokenTotals


@dataclasses.dataclass(slots=True)
class RunNotes:
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


NOTES = NotesForm(RunNotes)


@dataclasses.dataclass(slots=True)
class OpenRun:
    """The run that is open. `own` says that a frontend of this dialect asked for it."""

    key: str
    id: str
    own: bool = False
    modern: bool = False
    asks: bool = False
    tokens: TokenTotals = dataclasses.field(default_factory=TokenTotals)
    result: Any = None


@dataclasses.dataclass(slots=True)
class RunRecord:
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
class ThreadOutput:
    """What is open of a thread: `cut` is a block whose message the end of a run has closed, `last`
    the message to which calls belong."""

    text: ShownBlock | None = None
    thinking: ShownBlock | None = None
    cut: str | None = None
    last: str | None = None
    step: str | None = None
    model: str | None = None


@dataclasses.dataclass(slots=True)
class Subagent:
    """A thread below the main one."""

    name: str | None
    parent: str
    call: str | None = None


@dataclasses.dataclass(slots=True)
class RunState:
    """`lines` is what is open of each thread, `announced` are children that the run shows at work,
    `finished` those that are done. `given` are calls whose result the frontend itself gave, and
    their session has not told yet."""

    stamp: int = 0
    thread: str | None = None
    messages: int = 0
    runs: int = 0
    run: OpenRun | None = None
    kept: list[RunRecord] = dataclasses.field(default_factory=list)
    pauses: Pauses = dataclasses.field(default_factory=Pauses)
    inputs: InputBatches[RunNotes] = dataclasses.field(default_factory=InputBatches)
    later: WaitingFrames = dataclasses.field(default_factory=WaitingFrames)
    lines: dict[str, ThreadOutput] = dataclasses.field(default_factory=dict)
    children: dict[str, Subagent] = dataclasses.field(default_factory=dict)
    announced: list[str] = dataclasses.field(default_factory=list)
    finished: list[str] = dataclasses.field(default_factory=list)
    given: list[str] = dataclasses.field(default_factory=list)
    digest: str | None = None
    modern: bool = False
    asks: bool = False
    ended: bool = False


SHAPE = shape_of(
    1,
    *(RunState, RunNotes, OpenRun, RunRecord, ShownBlock, ThreadOutput, Subagent),
    *(Pauses, ShownRequest, InputBatches, InputBatch, PendingInput, SaidMessages),
    *(WaitingFrames, WaitingFrame, TokenTotals),
)
"""The number of all these fields."""
