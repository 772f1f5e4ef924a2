"""What must survive a restart, and what a lost connection makes anew. All parts share it."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, TypeVar

from adapters.driving.again import Again
from adapters.driving.asks import InteractionAnswer, InteractionLedger, PendingInteraction
from adapters.driving.held import HeldToolCalls
from adapters.driving.ledger import InputLedger, SentInput
from adapters.driving.silence import SilenceTimers
from adapters.model import events as ev
from adapters.model.raw import Raw

SAID_MOST = 64
"""Messages of a turn that are remembered to know those of a step that is tried again."""

Generation = Literal["T", "S1", "S2"]


@dataclasses.dataclass(slots=True)
class StreamCursor:
    """How far the stream of a thread was read, and the blocks that it is in: what deltas change."""

    count: int = 0
    text: bool = False
    reasoning: bool = False
    blocks: int = 0


@dataclasses.dataclass(slots=True)
class EveToolCall:
    """A call of a turn, asked for in the step of that number (`ThreadState.steps`); `doubted` where
    that step is tried again and has not asked for it again yet."""

    kind: ev.CallKind
    step: int
    returned: bool = False
    doubted: bool = False


TurnOutcome = Literal["completed", "failed", "interrupted", "over_budget"]

ChildStatus = Literal["completed", "failed", "cancelled"]


@dataclasses.dataclass(slots=True)
class PendingEnd:
    """The end of a turn that waits for its boundary; `bounded` where that has come, and may be
    taken back."""

    outcome: TurnOutcome
    error: ev.ErrorInfo | None = None
    native: ev.NativeRef | None = None
    extra: dict[str, Any] | None = None
    bounded: bool = False


@dataclasses.dataclass(slots=True)
class ContextChange:
    """A change of the context outside of turns, which waits for the usage that it led to."""

    event: Raw


@dataclasses.dataclass(slots=True)
class ChildOutcome:
    """The end of a child, as its parent has told it."""

    status: ChildStatus
    output: Any = None
    error: ev.ErrorInfo | None = None
    native: ev.NativeRef | None = None
    extra: dict[str, Any] | None = None
    synthetic: bool = False


@dataclasses.dataclass(slots=True)
class Settlement:
    """An `approval.settled`: its data as they came."""

    data: dict[str, Any]
    native: ev.NativeRef


@dataclasses.dataclass(slots=True)
class Agent:
    """Who works in a thread, as far as is known."""

    id: str | None
    name: str | None
    model: str | None


@dataclasses.dataclass(slots=True)
class ThreadState:
    """One thread: where its stream is, and what is open in it; deltas of an open block leave it."""

    thread: str
    parent: str | None = None
    session: str | None = None
    path: str | None = None
    name: str | None = None
    # The canonical turn, the eve turn in it, and the last canonical one that is over.
    turn: str | None = None
    native: str | None = None
    sequence: int = -1
    last: str | None = None
    # The eve turns that are over for good: the highest number, and the newest names with how each
    # has ended.
    over: int = -1
    ended: dict[str, str] = dataclasses.field(default_factory=dict)
    # It has ended, and was cancelled afterwards: the boundary of that is still to come.
    taken_back: bool = False
    # It was written before the boundary that follows it had come.
    owed: bool = False
    turns: int = 0
    # `closed`: eve ended its turn at a pause, ours is open. `empty`: this eve turn has not worked.
    # `named`: the requests that were open when eve last said that it waits. `unrelayed`: those of a
    # child that its parent does not show yet: it would take no answer.
    closed: bool = False
    paused: str | None = None
    named: list[str] = dataclasses.field(default_factory=list)
    unrelayed: dict[str, None] = dataclasses.field(default_factory=dict)
    empty: bool = True
    heard: str | None = None
    # What T has put aside and says again in its next turn; how many steps there were before it was
    # heard in this one.
    aside: str = ""
    heard_at: int = 0
    step: int | None = None
    step_turn: str | None = None
    steps: int = 0
    # Steps of the eve turns that are folded into this one: theirs begin at 0 again.
    step_base: int = 0
    step_top: int = -1
    step_open: bool = False
    step_done: bool = True
    # Those calls of a turn that have not returned, and some that have; digests of the messages of
    # the eve turn.
    calls: dict[str, EveToolCall] = dataclasses.field(default_factory=dict)
    # A step is tried again: `retried`, and the requests that it has not asked again yet.
    retried: bool = False
    doubted: dict[str, None] = dataclasses.field(default_factory=dict)
    said: dict[str, None] = dataclasses.field(default_factory=dict)
    deliveries: list[str] = dataclasses.field(default_factory=list)
    # The deliveries that the start of the turn has named.
    owners: list[str] = dataclasses.field(default_factory=list)
    agent: Agent | None = None
    ending: PendingEnd | ContextChange | None = None
    ending_at: int = 0
    # An approval that has shown nothing but its `approval.settled`.
    settled: Settlement | None = None
    settled_at: int = 0
    held: HeldToolCalls = dataclasses.field(default_factory=HeldToolCalls)
    # What `EveClientState.tasks` knows a child by.
    names: list[str] = dataclasses.field(default_factory=list)
    # A child that is over: `outcome` waits for its own stream, then it is `done`.
    outcome: ChildOutcome | None = None
    outcome_at: int = 0
    done: bool = False
    closed_stream: bool = False


@dataclasses.dataclass(slots=True)
class EveMessage(SentInput):
    """A message on its way. The stream shows it under its `delivery`, once that is known, or with
    the words `flat`; or as the first message of the session that it `creates`. `step` names the
    first of those that were posted together."""

    flat: str = ""
    delivery: str | None = None
    creates: bool = False
    step: str | None = None


@dataclasses.dataclass(slots=True)
class InputAnswer(InteractionAnswer):
    """An answer; `taken` when the log knows that it was. `step` names the first of those
    that were posted together, `place` is the one that it has among them."""

    taken: bool = False
    step: str | None = None
    place: int = 0


@dataclasses.dataclass(slots=True)
class InputRequest(PendingInteraction):
    """Something that is asked: on its own thread, and where `shown_on` names another one on that
    too; `turn` and `shown_turn` are the eve turns it was asked in there, `step` is the step of its
    own thread (`ThreadState.steps`). `name` is what a sign-in is known by, as the wire has it."""

    shown_on: str | None = None
    options: tuple[ev.Option, ...] = ()
    freeform: bool = False
    turn: str | None = None
    shown_turn: str | None = None
    step: int = 0
    name: Any = None
    webhook: str | None = None
    given: InputAnswer | None = None


@dataclasses.dataclass(slots=True)
class FirstMessage:
    """The message that a session is being made for: the bodies of the create with it and of the
    follow-up, as JSON, and what is to be sent now. A body is empty where it is not posted so."""

    command_id: str
    create: str
    message: str
    next: Literal["info", "create", "message"] | None = None


@dataclasses.dataclass(slots=True)
class Retry:
    """A request that was refused for now and is sent again. `body` is JSON without the token."""

    command_id: str | None
    also: list[str]
    name: str
    path: str
    body: str | None
    again: Again

    def is_about(self, command_id: str) -> bool:
        """Say whether a command is in it."""
        return command_id == self.command_id or command_id in self.also


@dataclasses.dataclass(slots=True)
class Stray:
    """An answer whose request was over without it, in or after `turn`: its command, and the words
    that it may become."""

    command_id: str
    turn: str | None
    words: list[str]


@dataclasses.dataclass(slots=True)
class PendingInterrupt:
    """An interrupt that waits for the turn that answers open, until `at` once they are there."""

    command_id: str
    at: int | None = None


@dataclasses.dataclass(slots=True)
class Stop:
    """A cancel that is to be sent now, of an eve turn or of whatever runs; it may be that of a
    command."""

    turn: str | None
    command_id: str | None = None


@dataclasses.dataclass(slots=True)
class EveClientState:
    """What must survive a restart, besides the cursors."""

    session: str | None = None
    token: str | None = None
    generation: Generation | None = None
    version: list[int] | None = None
    # The version of streams that was refused, as the server names it.
    foreign: str | None = None
    # Until when the session's stream is read, which tells whether it is over.
    doubted_until: int | None = None
    model: str | None = None
    ended: bool = False
    lines: dict[str, ThreadState] = dataclasses.field(default_factory=dict)
    tasks: dict[str, str] = dataclasses.field(default_factory=dict)
    ledger: InputLedger[EveMessage] = dataclasses.field(default_factory=InputLedger)
    asks: InteractionLedger[InputRequest] = dataclasses.field(default_factory=InteractionLedger)
    # Answers to what was over before they were posted, by the requests: what they become shows.
    late: dict[str, InputAnswer] = dataclasses.field(default_factory=dict)
    # Requests that are over, with the canonical turns of the threads that they were asked in.
    resolved: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    # Of all threads: the calls that have returned.
    returned: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    silence: SilenceTimers = dataclasses.field(default_factory=SilenceTimers)
    # Those of the newest turn that has ended, or since.
    strays: list[Stray] = dataclasses.field(default_factory=list)
    first: FirstMessage | None = None
    retries: list[Retry] = dataclasses.field(default_factory=list)
    cancel: PendingInterrupt | None = None
    # What T makes unsaid when a cancel stops the turn that approvals have just resumed: refusals of
    # these approvals; whether that turn was told to stop; the refusals of the turn before, which it
    # may still take back; and what it has made unsaid, as a `turn.cancelled` shows.
    # They are on the wire as they are here.
    answered: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    stopping: bool = False
    lapsed: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    unsaid: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    reset_at: int | None = None
    orphans_at: int | None = None
    # A turn was cancelled: when it is over if nothing more of it comes, and after what silence.
    gone_at: int | None = None
    gone_after: int = 0
    # A reset has failed, and nothing has come since.
    mistrusted: bool = False
    # The server has not known the turn that is to be cancelled: when it is told again.
    cancel_at: int | None = None
    stop: Stop | None = None
    control: int = 0


RECORDS: tuple[type, ...] = (
    StreamCursor,
    ThreadState,
    EveClientState,
    EveToolCall,
    HeldToolCalls,
    PendingEnd,
    ContextChange,
    ChildOutcome,
    Settlement,
    Agent,
    InputLedger,
    EveMessage,
    SilenceTimers,
    InteractionLedger,
    InputRequest,
    InputAnswer,
    FirstMessage,
    Retry,
    Again,
    Stray,
    PendingInterrupt,
    Stop,
)


class StreamRecord(NamedTuple):
    """One event of a stream, taken apart."""

    type: str
    data: dict[str, Any]
    deliveries: dict[str, None]
    native: ev.NativeRef
    now: int


@dataclasses.dataclass(slots=True)
class ConnectionState:
    """What a restart makes anew, of the connection."""

    # When the main stream was opened, if it is, and how many frames there were; how often in a row
    # it has ended at once.
    opened_at: int | None = None
    opened_frames: int = 0
    ended_at_once: int = 0
    # The server was asked which it is.
    informed: bool = False
    # The threads whose streams were refused.
    refused: set[str] = dataclasses.field(default_factory=set)


T = TypeVar("T")


def become(record: T, other: T) -> None:
    """Give a record the fields of another one: the parts hold it."""
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        setattr(record, field.name, getattr(other, field.name))
