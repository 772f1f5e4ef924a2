"""What must survive a restart of a conversation with an AG-UI agent: little, since a restart cuts
the run that is under way, and what was said is in the log."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, NamedTuple

from adapters.agui import wire
from adapters.driving.asks import InteractionAnswer, InteractionLedger
from adapters.driving.held import HeldToolCalls
from adapters.driving.ledger import InputLedger, SentInput
from adapters.driving.part import NOT_STORED
from adapters.driving.runs import BackendRuns, GatheredRequest, Run
from adapters.model import events as ev
from adapters.model.stored import adapter_of

Kind = Literal["text", "reasoning"]

KEPT_BYTES = 256 * 1024
"""Bytes of the inputs of open calls that are remembered, for what is asked about them. Ours."""

RESULT_HOLD_MS = 250
"""How long the result of a call waits for what says more of it: that it has failed, or what the
call was given. Ours."""


BUSY_MS = 1_000
"""After how long a run is asked for once more that an agent refused, since it was busy with the one
that was left. Ours."""


@dataclasses.dataclass(slots=True)
class AguiInterrupt(GatheredRequest):
    """What a run has ended with. `form` says how it is answered: by `resume`, by the older
    `command`, whose event had `value`, by a `map` of all answers there, by a message of a tool, or
    of the `call` that asks, whose tool is `value`.
    Of its payload `yes_no` says that it has `approved`, `reasoned` that a reason may be beside it,
    `member` which one has the words, empty where the words are the payload."""

    form: Literal["resume", "command", "map", "tool", "call"] = "resume"
    yes_no: bool = False
    reasoned: bool = True
    member: str = ""
    value: Any = None


@dataclasses.dataclass(slots=True)
class AguiToolCall:
    """A call without result. `told` says that the log has it, `known` that it has its input, which
    is kept where there is room for it. `about` is the call that it asks for a yes to: then it is a
    request and the log has no such call; `hint` are its words. Of one that was `asked` about a yes
    the application knows no result."""

    name: str
    parent: str | None = None
    told: bool = False
    known: bool = False
    asked: bool = False
    about: str = ""
    hint: str = ""
    args: Annotated[list[str], NOT_STORED] = dataclasses.field(default_factory=list)
    input: Annotated[Any, NOT_STORED] = None
    size: Annotated[int, NOT_STORED] = 0
    opaque: Annotated[str | None, NOT_STORED] = None


@dataclasses.dataclass(slots=True)
class HeldResult:
    """The result of a call, since some time. `asks_input` says that it waits for the input of the
    call as well."""

    event: ev.ToolReturned
    message_id: str
    at: int
    asks_input: bool = False


@dataclasses.dataclass(slots=True)
class AguiBlock:
    """The block of text or reasoning that the body is in, and how many frames and blocks there
    were: it changes with every delta. `closed` is reasoning whose end came, and whose opaque value
    may follow."""

    frames: int = 0
    kind: Kind | None = None
    message: str = ""
    number: int = 0
    closed: bool = False


@dataclasses.dataclass(slots=True)
class AguiClientState:
    """What must survive a restart, besides how far the body was read; and what concerns the body
    only."""

    turn: str | None = None
    turns: int = 0
    step: int | None = None
    steps: int = 0
    calls_in_step: bool = False
    calls: dict[str, AguiToolCall] = dataclasses.field(default_factory=dict)
    # `streams` says that a text was streamed in this turn, `returned` are the calls whose results
    # are told: a snapshot in a later run of the turn has them too.
    streams: bool = False
    returned: list[str] = dataclasses.field(default_factory=list)
    # What a stop took back, and the agent may still wait for; `withdraws` says that it is told so.
    dropped: dict[str, AguiInterrupt] = dataclasses.field(default_factory=dict)
    withdraws: Annotated[bool, NOT_STORED] = False
    # How many exchanges were left out of what the agent was sent, as people were told.
    left_out: int = 0
    # The parts.
    runs: BackendRuns = dataclasses.field(default_factory=BackendRuns)
    ledger: InputLedger[SentInput] = dataclasses.field(default_factory=InputLedger)
    asks: InteractionLedger[AguiInterrupt] = dataclasses.field(default_factory=InteractionLedger)
    held: HeldToolCalls = dataclasses.field(default_factory=HeldToolCalls)
    # Of the body; `legacy` are the older form's interrupts, each with the name that the graph gave,
    # `first` is the frame of `RUN_STARTED`, `foreign` the open message of another role.
    legacy: Annotated[list[tuple[str | None, Any]], NOT_STORED] = dataclasses.field(
        default_factory=list
    )
    first: Annotated[int, NOT_STORED] = 0
    chunk: Annotated[str, NOT_STORED] = ""
    foreign: Annotated[str, NOT_STORED] = ""
    result: Annotated[HeldResult | None, NOT_STORED] = None
    # The reasoning of the model call, and the message in which it is told once more.
    thought: Annotated[list[str], NOT_STORED] = dataclasses.field(default_factory=list)
    again: Annotated[str, NOT_STORED] = ""
    # In the place: it changes with every delta.
    block: Annotated[AguiBlock, NOT_STORED] = dataclasses.field(default_factory=AguiBlock)

    def details_of(self, call_id: str) -> dict[str, Any]:
        """Return what a request about a call says of it."""
        call = self.calls[call_id]
        return {"tool": call.name, **({"input": call.input} if call.size else {})}

    def dump(self) -> bytes:
        """Return what is stored of it, as JSON: all but the block."""
        return _ADAPTER.dump_json(self)


_ADAPTER = adapter_of(AguiClientState)

BLOCK = tuple(field.name for field in dataclasses.fields(AguiBlock))
"""The order in which a place has the block's fields."""

RECORDS = (
    *(AguiClientState, AguiBlock, AguiToolCall, AguiInterrupt),
    *(BackendRuns, Run, InputLedger, SentInput),
    *(InteractionLedger, InteractionAnswer, HeldToolCalls),
)
"""What is stored: a change in one of them is a new version."""


class AguiEvent(NamedTuple):
    """An event on its way to what handles it."""

    name: str
    payload: dict[str, Any]
    native: ev.NativeRef
    now: int

    @property
    def extra(self) -> dict[str, Any] | None:
        """What an application has put beside: it stays with what the event becomes."""
        found = self.payload.get("metadata")
        return {"metadata": found} if isinstance(found, dict) and found else None


def native_of(payload: dict[str, Any], frame: int, name: str | None = None) -> ev.NativeRef:
    """Return where the events of a frame come from; `name` is what the agent calls it."""
    at = payload.get("timestamp")
    return ev.NativeRef(
        dialect=wire.DIALECT,
        id=name,
        type=str(payload.get("type")),
        at=str(at) if isinstance(at, int | float) else None,
        frame=frame,
    )
