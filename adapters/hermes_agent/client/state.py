"""What must survive a restart of a session that is watched by its hooks, typed.

A session has threads: that of the agent, and one for each child, which has hooks under a session id
of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Annotated, Any, NamedTuple

from adapters.driving.asks import InteractionAnswer, InteractionLedger, PendingInteraction
from adapters.driving.held import HeldToolCalls
from adapters.driving.ledger import InputLedger, SentInput
from adapters.driving.part import NOT_STORED
from adapters.hermes_agent import wire
from adapters.model import events as ev
from adapters.model.stored import adapter_of
from adapters.wire.jsonvalue import int_of, name_of, rest_of

MOST_DELIVERIES = 128
"""Deliveries that are known by a hash of their ids. Ours: a sender repeats one within seconds."""

MOST_PAST = 8
"""Turns of a thread that are known to be over: what comes late is of one of the last. Ours."""

MOST_DECIDED = 64
"""Calls whose decision is remembered, for a hook that comes once more. Ours."""

_NOISE = frozenset(
    {
        *("telemetry_schema_version", "middleware_trace", "conversation_history", "request"),
        *("request_messages", "task_id", "turn_id", "api_request_id", "session_id"),
    }
)
"""Arguments that are said in another way, or are what the model was sent: see MAPPING.md."""


@dataclasses.dataclass(slots=True)
class GatedCall(PendingInteraction):
    """A call that waits for a person, by its `key`, until `due` (Unix ms) at the latest; one that
    another surface asks about has no key."""

    key: str = ""
    due: int = 0
    pattern: str = ""


@dataclasses.dataclass(slots=True)
class HermesCall:
    """A call that has not returned. `denied` says that the gate blocked it."""

    name: str
    denied: bool = False


@dataclasses.dataclass(slots=True)
class ModelResult:
    """A model call that is over and whose end is not told yet: its text, unless that was `told`,
    and what it ended with. Of one without tools the text of the whole turn is waited for, of others
    the `calls` that it asked for: they are of this step."""

    block_id: str
    text: str
    native: ev.NativeRef
    finish: str | None = None
    usage: ev.Usage | None = None
    extra: dict[str, Any] | None = None
    told: bool = False
    calls: int = 0


@dataclasses.dataclass(slots=True)
class HermesThread:
    """A thread. `turn` is the id that Hermes gives it, `before` that of the turn before, which may
    go on after a silence, and `past` are those that Hermes has ended.

    `request` is the model call that is open, `streamed` the block of it that has deltas: those of
    one `way`, since they have no ids. `told` are the calls of the model whose text was told, `said`
    is the last text, `over` are the calls of tools that have returned, all of this turn. `error` is
    that of a model call that failed, and `fails_at` when the turn ends with it if nothing more
    comes. `heard` is when the last hook came.
    """

    thread_id: str = ev.MAIN
    turn: str | None = None
    before: str | None = None
    paused: bool = False
    step: int | None = None
    steps: int = 0
    request: str | None = None
    streamed: str | None = None
    way: str | None = None
    told: list[str] = dataclasses.field(default_factory=list)
    said: str = ""
    last: ModelResult | None = None
    error: ev.ErrorInfo | None = None
    fails_at: int | None = None
    heard: int = 0
    calls: dict[str, HermesCall] = dataclasses.field(default_factory=dict)
    over: list[str] = dataclasses.field(default_factory=list)
    past: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_main(self) -> bool:
        """Whether it is the agent's own."""
        return self.thread_id == ev.MAIN

    def of(self, native: ev.NativeRef | None) -> dict[str, Any]:
        """Return what an event of its turn has."""
        return {"thread_id": self.thread_id, "turn_id": self.turn, "native": native}


@dataclasses.dataclass(slots=True)
class GatewayHook:
    """A hook of the gateway that is not heard yet, the place of its frame, and when it came."""

    value: dict[str, Any]
    frame: int
    at: int


@dataclasses.dataclass(slots=True)
class HermesState:
    """What must survive a restart, besides how many hooks came."""

    session: str | None = None
    # Whether hooks of the agent itself come: those of the gateway tell less of the same. Whether
    # only those of the gateway come; until one is known, they wait.
    agent_hooks: bool = False
    only_gateway: bool = False
    gateway: list[GatewayHook] = dataclasses.field(default_factory=list)
    unnamed: int = 0
    threads: dict[str, HermesThread] = dataclasses.field(
        default_factory=lambda: {ev.MAIN: HermesThread()}
    )
    asks: InteractionLedger[GatedCall] = dataclasses.field(default_factory=InteractionLedger)
    ledger: InputLedger[SentInput] = dataclasses.field(default_factory=InputLedger)
    held: HeldToolCalls = dataclasses.field(default_factory=HeldToolCalls)
    # Why a call was blocked, or nothing where it was allowed, by its key.
    decided: dict[str, str] = dataclasses.field(default_factory=dict)
    deliveries: list[str] = dataclasses.field(default_factory=list)
    # `Call`s that are to be done besides commands.
    calls: Annotated[list[Any], NOT_STORED] = dataclasses.field(default_factory=list)

    @property
    def main(self) -> HermesThread:
        """The agent's own thread."""
        return self.threads[ev.MAIN]

    def thread_of(self, session: str | None) -> HermesThread:
        """Return the thread that has a session id of Hermes: a child's, else the agent's own."""
        return self.threads.get(session or ev.MAIN, self.main)

    def is_new(self, delivery: str | None) -> bool:
        """Say whether a delivery comes for the first time, and remember it."""
        if delivery is None:
            return True
        known = hashlib.blake2b(delivery.encode("utf-8", "replace"), digest_size=6).hexdigest()
        if known in self.deliveries:
            return False
        self.deliveries = [*self.deliveries, known][-MOST_DELIVERIES:]
        return True

    def decide(self, key: str, blocked: str) -> None:
        """Remember what became of a call that waited."""
        self.decided[key] = blocked
        for old in list(self.decided)[:-MOST_DECIDED]:
            del self.decided[old]

    def dump(self) -> bytes:
        """Return what is stored of it, as JSON."""
        return _ADAPTER.dump_json(self)


_ADAPTER = adapter_of(HermesState)

RECORDS = (
    *(HermesState, HermesThread, HermesCall, ModelResult, GatewayHook, HeldToolCalls),
    *(InputLedger, SentInput, InteractionLedger, GatedCall, InteractionAnswer),
)
"""What is stored: a change in one of them is a new version."""


class Hook(NamedTuple):
    """A hook on its way to what handles it. `args` are its arguments but those of a tool, `now` is
    our time in Unix ms, `waits` how many ms its sender waits for a decision."""

    name: str
    session: str | None
    tool: str | None
    input: Any
    args: dict[str, Any]
    native: ev.NativeRef
    now: int
    whole: dict[str, Any]
    waits: int | None

    @property
    def way(self) -> str:
        """By which way it came; nothing for a webhook."""
        ours = self.whole.get(wire.OURS)
        return str(ours.get("way")) if isinstance(ours, dict) else ""

    @property
    def dropped(self) -> int:
        """How many hooks before it did not arrive, of any session of the same Hermes."""
        ours = self.whole.get(wire.OURS)
        count = int_of(ours.get("dropped")) if isinstance(ours, dict) else None
        return max(count or 0, 0)

    @property
    def turn(self) -> str | None:
        """The turn's id."""
        return name_of(self.args.get("turn_id"))

    def text(self, name: str) -> str | None:
        """Return an argument that is a text with something in it."""
        value = self.args.get(name)
        return value if isinstance(value, str) and value else None

    def rest(self, *known: str) -> dict[str, Any] | None:
        """Return the arguments that are not known, and where it ran."""
        rest = rest_of(self.args, {*_NOISE, *known}) or {}
        for name in ("cwd", "profile"):
            if isinstance(self.whole.get(name), str):
                rest[name] = self.whole[name]
        return rest or None


_TOP = frozenset({"hook_event_name", "tool_name", "tool_input", "session_id", "cwd", "profile"})
_DELIVERED = frozenset({"delivery_id", "timestamp", "extra", wire.OURS})


def hook_of(value: dict[str, Any], frame: int, now: int) -> Hook:
    """Return a hook as it is handled: shell form (section 3.2), with what a delivery adds."""
    extra = value.get("extra")
    args = dict(extra) if isinstance(extra, dict) else {}
    # What is not in the form is kept beside the arguments.
    args |= rest_of(value, _TOP | _DELIVERED) or {}
    at = value.get("timestamp")
    native = ev.NativeRef(
        dialect=wire.DIALECT,
        id=name_of(value.get("delivery_id")),
        type=value["hook_event_name"],
        at=at if isinstance(at, str) else None,
        frame=frame,
    )
    return Hook(
        value["hook_event_name"],
        name_of(value.get("session_id")) or name_of(args.get("parent_session_id")),
        name_of(value.get("tool_name")),
        value.get("tool_input"),
        args,
        native,
        now,
        value,
        wire.waits_for(value),
    )


def unknown(s: HermesState, seen: Hook) -> ev.Event:
    """Return what has no meaning here, without what the model was sent."""
    thread = s.thread_of(seen.session)
    return ev.Native(
        **thread.of(seen.native), dialect=wire.DIALECT, name=seen.name, frame=seen.rest() or {}
    )
