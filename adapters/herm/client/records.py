"""What must survive a restart: typed, and JSON as it stands."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeVar

import orjson

from adapters.driving.again import Again
from adapters.driving.asks import InteractionLedger
from adapters.driving.doubts import UncertainInput, UncertainInputs
from adapters.driving.echoes import EchoLedger
from adapters.driving.queue import MessageQueue
from adapters.model import events as ev

T = TypeVar("T")

KEPT = 64
"""Inputs and posted ids that are remembered until their echo is seen."""

KEPT_BYTES = 256 * 1024
"""What is remembered of the inputs of open calls, of texts that are held back, and of messages of
others: as much as a model writes in one answer."""

OVER = 256
"""Ids of requests and calls that are over and are remembered, so that a pause that names them once
more asks nothing."""


@dataclasses.dataclass(slots=True)
class PendingMessage:
    """A message that its turn has not shown yet.

    It is not posted as long as it waits (`again`) for the end of a turn, or since it was refused
    for now. `sequence` is the number that the backend gave it.
    """

    command_id: str
    content: list[Any]
    blocks: list[dict[str, str]]
    policy: str
    settled: bool = False
    sequence: int | None = None
    again: Again = dataclasses.field(default_factory=Again)


@dataclasses.dataclass(slots=True)
class PostedInput:
    """An input that was posted; `key` tells its echo.

    `message` is what it becomes where it was to steer a turn that is over, or what follows where it
    is to interrupt one. `step`: it was taken, and another input of the same command follows.
    `other`: it was surely not taken, and is to be posted otherwise: as a lone object, or as the
    other kind of sealed answer.
    """

    command_id: str
    key: str
    settled: bool = False
    message: PendingMessage | None = None
    step: bool = False
    other: Literal["single", "other"] | None = None

    @property
    def interrupts(self) -> bool:
        """Whether it interrupts for a message, which is to follow it."""
        return self.key.startswith("user.interrupt") and self.message is not None


@dataclasses.dataclass(slots=True)
class FirstCommand:
    """The command that a session is made for, as JSON."""

    command_id: str
    command: dict[str, Any]


@dataclasses.dataclass(slots=True)
class ForeignMessage:
    """A message of somebody else before its turn."""

    id: str
    text: str


@dataclasses.dataclass(slots=True)
class HermAnswer:
    """The answer of a request, by a command of ours or by somebody else; `answer` as JSON."""

    command_id: str | None
    outcome: ev.InteractionOutcome
    scope: Literal["once", "session", "always"] | None
    answer: dict[str, Any]

    @property
    def claims(self) -> bool:
        """Whether the log has a claim of its command: every command that answers has one."""
        return True

    @property
    def reply(self) -> ev.Answer | None:
        """The answer as the log has it."""
        return ev.Answer(**self.answer) if self.answer else None


@dataclasses.dataclass(slots=True)
class HermInteraction:
    """Something that is asked; `envelope` is the id of what showed it, `labels` say what an option
    posts. It is `gone` when a pause names it no more: the agent's next work shows that it was
    answered."""

    kind: ev.InteractionKind
    call: str | None = None
    envelope: str | None = None
    answer: HermAnswer | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    gone: bool = False

    @property
    def thread_id(self) -> str:
        """Where it is asked."""
        return ev.MAIN

    @property
    def call_id(self) -> str | None:
        """The call that it is about."""
        return self.call

    @property
    def native_name(self) -> str | None:
        """What a pause may name it by, beside its id."""
        return self.envelope

    @property
    def given(self) -> HermAnswer | None:
        """What was answered."""
        return self.answer

    @given.setter
    def given(self, given: HermAnswer | None) -> None:
        self.answer = given


@dataclasses.dataclass(slots=True)
class HermToolCall:
    """A tool's call that has not returned; `asked` and `denied` are of its permission. Its input
    has `size` bytes, and is not `kept` where it was too long to remember. The backend does not run
    a `custom` one, and shows no result of it."""

    tool: str
    input: Any = None
    preview: str | None = None
    envelope: str | None = None
    asked: bool = False
    denied: bool = False
    size: int = 0
    kept: bool = True
    custom: bool = False


@dataclasses.dataclass(slots=True)
class HermTurnEnd:
    """How a turn ends whose calls may still return; `at` is when the backend came to rest."""

    outcome: Literal["completed", "failed", "interrupted"]
    at: int
    error: ev.ErrorInfo | None = None
    native: ev.NativeRef | None = None
    extra: dict[str, Any] | None = None


@dataclasses.dataclass(slots=True)
class HermStreamPosition:
    """How far the stream was read, and the blocks that it is in: what deltas change."""

    # Frames fed.
    frames: int = 0
    # The highest numbers of stored envelopes and of deltas, the newest id of the stream.
    mark: int = 0
    delta_mark: int = 0
    last_id: str = ""
    # Up to here every number was listed, or came on the stream without a hole.
    listed: int = 0
    blocks: int = 0
    # The open blocks, by the kind of text.
    texts: dict[str, str] = dataclasses.field(default_factory=dict)

    def dump(self) -> bytes:
        """Return what is stored of it, as JSON: its fields in their order."""
        return orjson.dumps([getattr(self, field.name) for field in dataclasses.fields(self)])


@dataclasses.dataclass(slots=True)
class HermClientState:
    """The rest, each part in the module that writes it. A delta does not change it, unless it is
    held back."""

    session: str | None = None
    form: Literal["events", "single"] | None = None
    posted: bool = False
    wanted: bool = False
    title: str | None = None
    # Turns.
    turn: str | None = None
    turns: int = 0
    paused: bool = False
    interrupting: bool = False
    # The end that waits for results, and when the newest piece of a late turn came.
    ending: HermTurnEnd | None = None
    late_at: int | None = None
    # Deltas that are held back, by the kind of text.
    withheld: dict[str, str] = dataclasses.field(default_factory=dict)
    # Tools, what is asked, threads.
    calls: dict[str, HermToolCall] = dataclasses.field(default_factory=dict)
    requests: dict[str, HermInteraction] = dataclasses.field(default_factory=dict)
    # Ids of what was answered or has returned, and the tools of calls that turns have left.
    over: list[str] = dataclasses.field(default_factory=list)
    left: dict[str, str] = dataclasses.field(default_factory=dict)
    threads: list[str] = dataclasses.field(default_factory=list)
    ended_threads: list[str] = dataclasses.field(default_factory=list)
    unnamed_threads: int = 0
    # Inputs.
    pending: PendingMessage | None = None
    later: list[PendingMessage] = dataclasses.field(default_factory=list)
    doubts: UncertainInputs = dataclasses.field(default_factory=UncertainInputs)
    first: FirstCommand | None = None
    inbox: list[ForeignMessage] = dataclasses.field(default_factory=list)
    sent: list[PostedInput] = dataclasses.field(default_factory=list)
    ids: dict[str, str] = dataclasses.field(default_factory=dict)
    inputs_mark: int = 0
    lists_inputs: bool = False
    # Stored envelopes without a number that can be used: their ids and what they say alone tell
    # that they are known.
    unnumbered: list[str] = dataclasses.field(default_factory=list)
    # Numbers that inputs have: a stream need not show them.
    inputs: list[int] = dataclasses.field(default_factory=list)

    # The parts, made over the fields, which are stored flat.

    @property
    def asks(self) -> InteractionLedger[HermInteraction]:
        """What is asked, and what was answered."""
        return InteractionLedger(self.requests)

    @property
    def echoes(self) -> EchoLedger[PostedInput]:
        """What was posted, and the ids of its echoes."""
        return EchoLedger(self.sent, self.ids)

    @property
    def queue(self) -> MessageQueue[PendingMessage]:
        """The message that is next, and those behind it."""
        return MessageQueue(self)

    @property
    def works(self) -> bool:
        """Whether a turn is open that the backend has not ended."""
        return self.turn is not None and self.ending is None and self.late_at is None

    def dump(self) -> bytes:
        """Return what is stored of it, as JSON."""
        return ev.format_state(self)

    def put_over(self, *names: str | None) -> None:
        """Remember ids of what asks nothing any more."""
        self.over = [*(n for n in self.over if n not in names), *filter(None, names)][-OVER:]

    def put_back(self, *names: str | None) -> None:
        """Forget that ids are over: they are used again."""
        if any(name in self.over for name in names):
            self.over = [name for name in self.over if name not in names]


RECORDS = (
    *(HermStreamPosition, HermClientState, HermTurnEnd, PendingMessage, Again, PostedInput),
    *(UncertainInputs, UncertainInput, FirstCommand, ForeignMessage, HermAnswer, HermInteraction),
    HermToolCall,
)
"""All that is stored of a session."""


def become(record: T, other: T) -> None:
    """Give a record the fields of another one: the modules hold it."""
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        setattr(record, field.name, getattr(other, field.name))
