"""What must survive a restart of an Engine session, typed, and what of it earlier releases stored.

`EngineClientState` changes with what happens; its `block` and `StreamPosition` change with every
delta. These two are the place that `adapters.model.stored.CodecCheckpoint` speaks of.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, NamedTuple

from adapters.driving.asks import InteractionAnswer, InteractionLedger, PendingInteraction
from adapters.driving.doubts import UncertainInput, UncertainInputs
from adapters.driving.held import HOLD_MS, HeldToolCalls
from adapters.driving.ledger import InputLedger, SentInput
from adapters.driving.part import NOT_STORED
from adapters.engine import wire
from adapters.engine.alignment import StreamPosition, Trail
from adapters.model import events as ev
from adapters.model.raw import Raw
from adapters.model.stored import adapter_of

END_HOLD_MS = 2_000
"""How long a failed turn waits for the second of its two ends (design section 3; page 9.3)."""

Kind = Literal["text", "reasoning"]


@dataclasses.dataclass(slots=True)
class EngineToolCall:
    """A call without result; `asked` when a person was asked about it. `size` is how many bytes its
    frame had; the input is not `kept` where there are many such bytes."""

    tool: str
    input: Any = None
    asked: bool = False
    size: int = 0
    kept: bool = True


@dataclasses.dataclass(slots=True)
class EarlyResult:
    """A result that came before its call, at a time; neither may have an id."""

    event: Raw
    call_id: str | None
    tool: str | None
    at: int

    @property
    def due(self) -> int:
        """When it is told without its call."""
        return self.at + HOLD_MS


@dataclasses.dataclass(slots=True)
class EngineTurnEnd:
    """How the turn ends, as the first of its terminal events has said; others may add to it.

    `at` is when it came.
    """

    outcome: Literal["completed", "failed"]
    at: int = 0
    error: ev.ErrorInfo | None = None
    native: ev.NativeRef | None = None
    extra: dict[str, Any] | None = None


@dataclasses.dataclass(slots=True)
class EngineBlock:
    """The block of text or reasoning that the stream is in; `over` when its end was announced."""

    kind: Kind | None = None
    over: bool = False
    number: int = 0
    index: int = 0


@dataclasses.dataclass(slots=True)
class EngineClientState:
    """What must survive a restart, besides how far the stream was read."""

    # The turn and the step that are open, and how many there were.
    turn: str | None = None
    last_turn: str | None = None
    turns: int = 0
    step: int | None = None
    steps: int = 0
    calls_in_step: bool = False
    messages: int = 0
    ending: EngineTurnEnd | None = None
    # Calls without result, and how many had no name of their own.
    calls: dict[str, EngineToolCall] = dataclasses.field(default_factory=dict)
    unnamed_calls: int = 0
    # Results that wait for their calls, and the ids of those that were told without.
    early: list[EarlyResult] = dataclasses.field(default_factory=list)
    alone: list[str] = dataclasses.field(default_factory=list)
    unnamed_asks: int = 0
    # The parts.
    ledger: InputLedger[SentInput] = dataclasses.field(default_factory=InputLedger)
    doubts: UncertainInputs = dataclasses.field(default_factory=UncertainInputs)
    asks: InteractionLedger[PendingInteraction] = dataclasses.field(
        default_factory=InteractionLedger
    )
    held: HeldToolCalls = dataclasses.field(default_factory=HeldToolCalls)
    # In the place: it changes with every delta.
    block: Annotated[EngineBlock, NOT_STORED] = dataclasses.field(default_factory=EngineBlock)

    @property
    def asked(self) -> str | None:
        """The request that the turn waits for: one at a time (section 8.8)."""
        return next(iter(self.asks.open), None)

    @property
    def ask(self) -> PendingInteraction | None:
        """The same as a record."""
        return next(iter(self.asks.open.values()), None)

    @property
    def end_due(self) -> int | None:
        """When a turn that failed waits no more for its other end."""
        return None if self.ending is None else self.ending.at + END_HOLD_MS

    def dump(self) -> bytes:
        """Return what is stored of it, as JSON: all but the block."""
        return _ADAPTER.dump_json(self)


_ADAPTER = adapter_of(EngineClientState)

BLOCK = tuple(field.name for field in dataclasses.fields(EngineBlock))
"""The order in which a place has the block's fields."""

RECORDS = (
    *(
        StreamPosition,
        Trail,
        EngineBlock,
        EngineClientState,
        EngineToolCall,
        EarlyResult,
        EngineTurnEnd,
    ),
    *(
        InputLedger,
        SentInput,
        UncertainInputs,
        UncertainInput,
        InteractionLedger,
        PendingInteraction,
        InteractionAnswer,
        HeldToolCalls,
    ),
)
"""What is stored: a change in one of them is a new version."""


class EngineFrame(NamedTuple):
    """A frame on its way to what handles it; `size` is how many bytes it has."""

    name: str
    payload: dict[str, Any]
    native: ev.NativeRef
    now: int
    size: int


IN_ANY = frozenset({"task_id", "turn_id", "timestamp"})
"""Members that any event may have (section 8.1)."""


def native_of(name: str, payload: dict[str, Any], frame: int) -> ev.NativeRef:
    """Return where the events of a frame come from."""
    at = time_in(payload)
    return ev.NativeRef(
        dialect=wire.DIALECT, type=name, at=at if isinstance(at, str) else None, frame=frame
    )


def time_in(payload: dict[str, Any]) -> Any:
    """Return the time in a payload; a request may have its own only (section 8.8)."""
    at = payload.get("timestamp")
    return payload.get("created_at") if at is None else at
