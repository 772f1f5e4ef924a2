"""What must survive a restart of a session of the service, typed.

A session has threads: the primary one, whose stream is the session's, and children with streams of
their own. What is open in one of them is an `AgentThread`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Annotated, Any, Literal, NamedTuple

from adapters.driving.again import Again
from adapters.driving.asks import InteractionAnswer, InteractionLedger, PendingInteraction
from adapters.driving.doubts import UncertainInput, UncertainInputs
from adapters.driving.ledger import InputLedger, SentInput
from adapters.driving.part import NOT_STORED
from adapters.managed_agents import wire
from adapters.model import events as ev
from adapters.model.stored import adapter_of
from adapters.wire.jsonvalue import name_of, rest_of

MOST_KNOWN = 128
"""Events of a thread that are known by their ids; older ones are known by their time. Ours."""

MOST_OWN = 64
"""Ids of inputs of ours that are remembered, and of answered uses. Ours."""

KEPT_BYTES = 256 * 1024
"""What is remembered of the inputs of open uses, for a permission that is asked later; ours."""


@dataclasses.dataclass(slots=True)
class SentEvent(SentInput):
    """An input that was posted. `keys` tell its events from those of others; it was `shown` before
    it was taken up."""

    keys: list[str] = dataclasses.field(default_factory=list)
    shown: bool = False


@dataclasses.dataclass(slots=True)
class WaitingCommand:
    """A command, as JSON, that is sent as soon as the session is made and its stream is open, or a
    message that was refused for now."""

    command_id: str
    command: dict[str, Any]
    again: Again = dataclasses.field(default_factory=Again)


@dataclasses.dataclass(slots=True)
class KnownEvents:
    """Which events were seen: `recent` have the time (Unix microseconds) by a hash of the id, and
    what is older than `floor` was seen too."""

    recent: dict[str, int] = dataclasses.field(default_factory=dict)
    floor: int = 0

    def has(self, name: str, at: int | None) -> bool:
        """Say whether an event was seen; `at` is None where its time says nothing."""
        return name in self.recent or (at is not None and at < self.floor)

    def add(self, name: str, at: int) -> None:
        """Record that an event was seen."""
        self.recent[name] = at
        self.forget(MOST_KNOWN)

    def forget(self, most: int) -> None:
        """Know no more than so many by their ids."""
        while len(self.recent) > most:
            oldest = next(iter(self.recent))
            self.floor = max(self.floor, self.recent.pop(oldest) + 1)


@dataclasses.dataclass(slots=True)
class OpenToolUse:
    """A tool use that has not returned. `alias` is another name by which a server calls it. Its
    input has `size` bytes, and is not `kept` where there are many such bytes."""

    tool: str
    custom: bool = False
    permission: ev.Permission = "unknown"
    alias: str | None = None
    input: Any = None
    size: int = 0
    kept: bool = True
    denied: bool = False


@dataclasses.dataclass(slots=True)
class UseRequest(PendingInteraction):
    """A use that waits for an answer; `named` by an idle, so that one without it says that it is
    over."""

    named: bool = False


@dataclasses.dataclass(slots=True)
class ThreadPreview:
    """A message that is previewed, by its event's id. It is `torn` where pieces may be missing: the
    whole event has them."""

    event_id: str = ""
    torn: bool = False


@dataclasses.dataclass(slots=True)
class AgentThread:
    """A thread. `paused` says what its turn waits for, `interrupting` that the turn was
    interrupted, `error` what was reported last in the turn. A child is `followed` while its own
    stream is to be read; it `rests` since the session has said so and its own stream has not."""

    thread_id: str = ev.MAIN
    name: str | None = None
    turn: str | None = None
    paused: Literal["input", "tasks", "retry"] | None = None
    interrupting: bool = False
    error: ev.ErrorInfo | None = None
    step: int | None = None
    steps: int = 0
    uses_in_step: bool = False
    uses: dict[str, OpenToolUse] = dataclasses.field(default_factory=dict)
    followed: bool = False
    ended: bool = False
    rests: dict[str, Any] | None = None
    rests_at: int | None = None
    known: KnownEvents = dataclasses.field(default_factory=KnownEvents)
    preview: Annotated[ThreadPreview, NOT_STORED] = dataclasses.field(default_factory=ThreadPreview)

    @property
    def is_main(self) -> bool:
        """Whether it is the session's primary thread."""
        return self.thread_id == ev.MAIN

    def of(self, native: ev.NativeRef | None) -> dict[str, Any]:
        """Return what an event of its turn has, made of what the service said."""
        return {"thread_id": self.thread_id, "turn_id": self.turn, "native": native}


@dataclasses.dataclass(slots=True)
class AgentsState:
    """What must survive a restart, besides how many frames came."""

    session: str | None = None
    # The primary thread's id, once it is told.
    primary: str | None = None
    wanted: bool = False
    archived: bool = False
    ended: bool = False
    turns: int = 0
    threads: dict[str, AgentThread] = dataclasses.field(
        default_factory=lambda: {ev.MAIN: AgentThread()}
    )
    # Inputs: on their way, in doubt, waiting; the ids of those that are known.
    ledger: InputLedger[SentEvent] = dataclasses.field(default_factory=InputLedger)
    doubts: UncertainInputs = dataclasses.field(default_factory=UncertainInputs)
    waiting: WaitingCommand | None = None
    own: dict[str, str] = dataclasses.field(default_factory=dict)
    # The turn that begins with our message, until it is told; messages of others before a turn.
    begun_by_us: str | None = None
    inbox: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # What is asked, and the ids of uses that were answered or have returned.
    asks: InteractionLedger[UseRequest] = dataclasses.field(default_factory=InteractionLedger)
    over: list[str] = dataclasses.field(default_factory=list)
    # Why the session came to its end, until it is known whether it was archived.
    fatal: ev.ErrorInfo | None = None
    # `Call`s that are to be done besides commands.
    calls: Annotated[list[Any], NOT_STORED] = dataclasses.field(default_factory=list)

    @property
    def main(self) -> AgentThread:
        """The primary thread."""
        return self.threads[ev.MAIN]

    def thread(self, thread_id: str) -> AgentThread:
        """Return a thread that is known."""
        if thread_id not in self.threads:
            self.threads[thread_id] = AgentThread(thread_id)
        return self.threads[thread_id]

    def thread_of(self, native: Any) -> str | None:
        """Return the thread that has an id of the service's; None for none."""
        found = name_of(native)
        return ev.MAIN if found is not None and found == self.primary else found

    def works(self) -> bool:
        """Say whether the session works on a turn."""
        return self.main.turn is not None

    def remember(self, event_id: str, command_id: str) -> None:
        """Record which command an event is of."""
        self.own[event_id] = command_id
        for old in list(self.own)[:-MOST_OWN]:
            del self.own[old]

    def put_over(self, *names: str) -> None:
        """Remember uses that ask nothing any more."""
        self.over = [*(name for name in self.over if name not in names), *names][-MOST_OWN:]

    def dump(self) -> bytes:
        """Return what is stored of it, as JSON."""
        return _ADAPTER.dump_json(self)


_ADAPTER = adapter_of(AgentsState)

RECORDS = (
    *(AgentsState, AgentThread, OpenToolUse, KnownEvents, WaitingCommand, Again),
    *(InputLedger, SentInput, SentEvent, UncertainInputs, UncertainInput),
    *(InteractionLedger, UseRequest, InteractionAnswer),
)
"""What is stored: a change in one of them is a new version."""


class ReceivedEvent(NamedTuple):
    """An event on its way to what handles it. `at` is its time in Unix microseconds, None where it
    has none; `frame` is 0 where it was listed; `now` is our time in milliseconds."""

    type: str
    id: str
    event: dict[str, Any]
    at: int | None
    native: ev.NativeRef
    now: int
    size: int

    def rest(self, *known: str) -> dict[str, Any] | None:
        """Return the members that are not known."""
        return rest_of(self.event, {*_COMMON, *known})

    def text(self, name: str) -> str | None:
        """Return a member that is a name."""
        return name_of(self.event.get(name))


_COMMON = frozenset({"id", "type", "processed_at"})


def received(event: dict[str, Any], frame: int, now: int, size: int) -> ReceivedEvent:
    """Return an event as it is handled."""
    type_, id_ = event["type"], name_of(event.get("id")) or ""
    time = event.get("processed_at")
    native = ev.NativeRef(
        dialect=wire.DIALECT,
        id=id_ or None,
        type=type_,
        at=time if isinstance(time, str) else None,
        frame=frame or None,
    )
    return ReceivedEvent(type_, id_, event, wire.micros_of(time), native, now, size)


def digest_of(event_id: str) -> str:
    """Return what an event is known by that was processed."""
    return hashlib.blake2b(event_id.encode("utf-8", "replace"), digest_size=6).hexdigest()


def hash_of(seen: ReceivedEvent) -> str:
    """Return what an event is known by: an input that has no time yet comes once more, and one
    without an id (section 6.5) is known by its time."""
    name = seen.id or f"{seen.type} {seen.event.get('processed_at')}"
    digest = digest_of(name)
    return digest if seen.at is not None else f"{digest}?"


def unknown(thread: AgentThread, seen: ReceivedEvent) -> ev.Event:
    """Return what has no meaning here: it survives to a frontend of the same dialect."""
    return ev.Native(
        thread_id=thread.thread_id,
        turn_id=thread.turn,
        dialect=wire.DIALECT,
        name=seen.type,
        frame=seen.event,
        native=seen.native,
    )
