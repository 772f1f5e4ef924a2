"""The sessions of the scripted Managed Agents service: turns that play scripts into the events of
threads.

A turn is a task of its own; streams and lists read what it wrote. `ScriptedManagedAgents` keeps the
sessions and the rules about them: messages are queued while a turn runs and refused while calls
wait, several calls may wait at once, an interrupt jumps the queue. "Live page" is what others
recorded of the real service, the default; "page" is what its documentation says; "other server" is
a third party's.

Why one module: a turn plays each kind of beat, and the rules of the session are checked at each.
"""

import asyncio
import datetime as dt
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, assert_never

from proxy.base.clock import Clock
from proxy.scripted.backend import FollowedConversation, Refusal, ScriptedBackend
from proxy.scripted.faults import Faults
from proxy.scripted.managed_agents_frames import BODIES, EVENTS, OTHERS, saying
from proxy.scripted.managed_agents_requests import bad
from proxy.scripted.scripts import (
    ApproveAllBeat,
    ApproveBeat,
    AskBeat,
    AskSealedBeat,
    Beat,
    CompactBeat,
    DelegateBeat,
    FailBeat,
    LimitBeat,
    OddBeat,
    ProduceBeat,
    RememberBeat,
    RunBeat,
    SayBeat,
    SignInBeat,
    ThinkBeat,
    ToolCall,
    UseCustomToolBeat,
    beats_for,
    lacking,
)
from proxy.scripted.templates import dump_sorted

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ManagedAgentsVariant:
    """One choice for each thing in which the live page, the page and other servers differ. The
    defaults are the live page's.

    Args:
        inputs: a message, an interrupt and a confirmation are streamed once, when they are
            processed (live page, section 1), twice, first without a time (page, section 6.5), or
            once and without a time for ever (other server, section 3).
        idle_names_answered: whether the first idle after an answer still names its call (live page,
            section 1).
        partial_idle: whether an idle follows when some of several calls are answered; other server,
            section 3: no.
        while_waiting: a message while calls wait is refused (live page, section 3) or queued (page,
            section 4.1).
        while_running: a message while a turn runs is queued (live page, section 3) or a 409 (other
            server, section 3).
        archived_status: of a send to an archived session: 400 (live page, section 3) or 409 (page,
            section 4.2).
        fresh_stream: a stream starts live or replays the history (other server, section 3).
        frame_names: frames are named `message` (live page, section 1) or by type (page, 6.2).
        previews: whether `event_deltas` is heeded (page, section 9; other server, section 3).
        usage: whether `session.usage` comes before an idle (live page, section 1).
        list_order: events are listed by their times (live page, section 2) or as they were stored
            (other server, section 6).
        interrupt_idle: an interrupt of an idle session brings nothing else (live page, section 1)
            or another idle (other server, section 3).
        interrupt_reason: what an interrupted turn gives (page, 4.1; other server, section 3).
        interrupt_id: whether the event of an interrupt has an id (page, section 6.5).
        permissions: a call says `evaluated_permission`, or its policy where it asks (other server,
            section 3).
        result_names: results name the event of the call, or an id that the call has besides (other
            server, section 3).
        reason_ids: where `requires_action` has its ids (page, section 7.3).
        error_form: `session.error` has an object (page, section 8) or is flat (other server, 3).
        failure: how a failed turn ends: idle, terminated (live page, section 3), refused by the
            model (page, section 7.3), or retried and well (page, section 8).
        spans: whether `span.model_request_*` are sent (page, section 7.4).
        create_status: 200 (page, section 3.1) or 201 (other server, section 3).
        initial_events: whether a create takes them, a budget and overrides; else it is 422 (other
            server, section 3).
        after_answer: a message right after the last answer is taken or refused once (live page,
            section 3).
        self_hosted: the client runs the built-in tools (page, section 4.1).
        page_limit: the most entries of a page; none but the documented without.
        strict: refuse unknown members, parameters and missing headers (page, section 1).
    """

    inputs: Literal["once", "twice", "unprocessed"] = "once"
    idle_names_answered: bool = True
    partial_idle: bool = True
    while_waiting: Literal["refused", "queued"] = "refused"
    while_running: Literal["queued", "conflict"] = "queued"
    archived_status: Literal[400, 409] = 400
    fresh_stream: Literal["live", "history"] = "live"
    frame_names: Literal["message", "type"] = "message"
    previews: bool = True
    usage: bool = True
    list_order: Literal["processed", "stored"] = "processed"
    interrupt_idle: Literal["nothing", "idle"] = "nothing"
    interrupt_reason: Literal["end_turn", "interrupted"] = "end_turn"
    interrupt_id: bool = True
    permissions: Literal["evaluated", "policy"] = "evaluated"
    result_names: Literal["event", "own"] = "event"
    reason_ids: Literal["flat", "nested"] = "flat"
    error_form: Literal["object", "flat"] = "object"
    failure: Literal["exhausted", "terminated", "refusal", "rescheduled"] = "exhausted"
    spans: bool = True
    create_status: Literal[200, 201] = 200
    initial_events: bool = True
    after_answer: Literal["taken", "refused_once"] = "taken"
    self_hosted: bool = False
    page_limit: int | None = None
    strict: bool = True


DEFAULT = ManagedAgentsVariant()

ANSWERS: Mapping[str, str] = {
    "user.tool_confirmation": "tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
    "user.tool_result": "tool_use_id",
}
"""The events that answer a call, and the member in which each names it (page, section 4.1)."""

_WORK = ("user.message", "user.define_outcome")
_SHOWN_TWICE = ("user.message", "user.interrupt", "user.tool_confirmation", "system.message")
_ALLOWED = (
    "only `user.tool_confirmation`, `user.custom_tool_result`, `user.tool_result`, or "
    "`user.interrupt` may be sent"
)
_END_TURN: Mapping[str, object] = {"type": "end_turn"}


def blocks(text: str) -> list[dict[str, str]]:
    """Return a text as one block."""
    return [{"type": "text", "text": text}]


def moment(micros: int) -> dt.datetime:
    """Return Unix microseconds as a time."""
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=micros)


def _written(micros: int, digits: str = "microseconds") -> str:
    return moment(micros).isoformat(timespec=digits).replace("+00:00", "Z")


@dataclass(slots=True)
class StoredEvent:
    """An event of a thread; `at` are Unix microseconds, None until it is processed."""

    event: Event
    at: int | None


@dataclass(slots=True)
class StreamedEvent:
    """What streams of a thread send; `preview` is the type that a reader must have asked for."""

    data: Event
    preview: str = ""

    @property
    def previewed(self) -> str:
        """Return the id of the event that this previews."""
        started = self.data.get("event")
        return str(started["id"] if started else self.data["event_id"])


@dataclass(slots=True)
class ScriptedThread:
    """One thread: what it is, what it holds, and the task of a child."""

    id: str
    agent_name: str
    parent: str | None
    created_at: str
    status: str = "idle"
    archived_at: str | None = None
    stored: list[StoredEvent] = field(default_factory=list)
    streamed: list[StreamedEvent] = field(default_factory=list)
    runner: asyncio.Task[None] | None = None
    interrupts: list[StoredEvent] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call that somebody else answers: which event does, and the answer once it came. `held` is a
    result that waits until earlier calls are answered."""

    id: str
    thread: ScriptedThread
    takes: str
    answered: asyncio.Future[Event]
    held: StoredEvent | None = None


@dataclass(slots=True)
class ScriptedSession(FollowedConversation):
    """One session: what it is, its threads, what runs and what it waits for.

    A test sets `stuck`: the running turn then never ends and says nothing, as after a kill of the
    real server in a turn; an interrupt frees it.
    """

    id: str
    record: Event
    primary: ScriptedThread
    threads: dict[str, ScriptedThread]
    status: str = "idle"
    turns: int = 0
    runner: asyncio.Task[None] | None = None
    interrupts: list[StoredEvent] = field(default_factory=list)
    queue: deque[StoredEvent] = field(default_factory=deque)
    open: dict[str, OpenCall] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    newest_answered: str | None = None
    at_budget: bool = False
    stuck: bool = False
    usage: dict[str, int] = field(
        default_factory=lambda: {
            "input_tokens": 0,
            "output_tokens": 0,
            "cache_read_input_tokens": 0,
        }
    )

    def waiting(self) -> list[str]:
        """Return the ids of the calls that wait for an answer."""
        return [call.id for call in self.open.values() if call.held is None]

    def drop_calls(self, thread: ScriptedThread | None = None) -> None:
        """Forget the calls that wait, of one thread or of all: nobody can answer them any more."""
        for call in list(self.open.values()):
            if thread is None or call.thread is thread:
                del self.open[call.id]
                self.over.add(call.id)
                call.answered.cancel()


class ScriptedManagedAgents(ScriptedBackend[ScriptedSession]):
    """The state of one scripted Managed Agents service: sessions, requests received and refused."""

    def __init__(
        self,
        *,
        key: str | None,
        variant: ManagedAgentsVariant,
        faults: Faults,
        clock: Clock,
        pace: float,
        heartbeat_s: float,
    ) -> None:
        """See `create_managed_agents_app` for the arguments."""
        super().__init__(
            "scripted managed agents", credential=key, faults=faults, clock=clock, pace=pace
        )
        self.variant = variant
        self.heartbeat_s = heartbeat_s
        self._started_ms = clock.now()
        self._numbers: dict[str, int] = {}
        self._newest = 0

    def new_id(self, kind: str) -> str:
        """Return an id that no other service has given, not even before a restart."""
        self._numbers[kind] = self._numbers.get(kind, 0) + 1
        return f"{kind}_{self._started_ms:x}{self._numbers[kind]:04d}"

    def stamp(self, *, millisecond: bool = False) -> int:
        """Return Unix microseconds later than any before; where asked, a whole millisecond."""
        at = max(self._newest + 1, self.clock.now() * 1000)
        if millisecond:
            at = -(-at // 1000) * 1000
        self._newest = at
        return at

    def now(self) -> str:
        """Return the time as sessions and threads have it."""
        return _written(self.stamp())

    # Sessions.

    def talk(self, session_id: str) -> ScriptedSession:
        """Return a session.

        Raises:
            Refusal: 404, there is none.
        """
        talk = self.talks.get(session_id)
        if talk is None:
            raise Refusal(404, "not_found_error", f"Session {session_id} was not found.")
        return talk

    def thread(self, talk: ScriptedSession, thread_id: str) -> ScriptedThread:
        """Return a thread of a session.

        Raises:
            Refusal: 404, there is none.
        """
        thread = talk.threads.get(thread_id)
        if thread is None:
            raise Refusal(404, "not_found_error", f"Thread {thread_id} was not found.")
        return thread

    def create(self, members: Mapping[str, Any]) -> ScriptedSession:
        """Make a session, and begin the work that it was created with (page, section 3.1)."""
        agent = members["agent"]
        named = {"id": agent} if isinstance(agent, str) else dict(agent)
        named["type"] = "agent"
        resolved = BODIES["session"].inner("agent", **named)
        now = self.now()
        session_id = self.new_id("sesn")
        record = BODIES["session"].filled(
            id=session_id,
            agent=resolved,
            environment_id=members["environment_id"],
            title=members.get("title"),
            metadata=dict(members.get("metadata", {})),
            resources=members.get("resources", []),
            vault_ids=members.get("vault_ids", []),
            budget=members.get("budget"),
            outcome_evaluations=[],
            created_at=now,
            updated_at=now,
        )
        primary = ScriptedThread(self.new_id("sthr"), str(resolved["name"]), None, now)
        talk = ScriptedSession(session_id, record, primary, {primary.id: primary})
        self.talks[session_id] = talk
        for event in members.get("initial_events", ()):
            ManagedAgentsInputs(self, talk).apply(event)
        self.go_on(talk)
        return talk

    def describe(self, talk: ScriptedSession) -> Event:
        """Return the session object (page, section 3.2)."""
        return {**talk.record, "status": talk.status, "usage": dict(talk.usage)}

    def describe_thread(self, talk: ScriptedSession, thread: ScriptedThread) -> Event:
        """Return the thread object (page, section 10)."""
        return BODIES["thread"].filled(
            id=thread.id,
            session_id=talk.id,
            parent_thread_id=thread.parent,
            agent=BODIES["thread"].inner("agent", name=thread.agent_name),
            status=thread.status,
            archived_at=thread.archived_at,
            created_at=thread.created_at,
            updated_at=thread.created_at,
        )

    def update(self, talk: ScriptedSession, changes: Mapping[str, Any]) -> None:
        """Change a session; the stream tells what changed (page, section 3.3).

        Raises:
            Refusal: 400, the agent of a session that is not idle, or an archived session.
        """
        if talk.status == "terminated":
            raise bad(f"Cannot update archived session: {talk.id}")
        if "agent" in changes and talk.status != "idle":
            raise bad("agent: can only be changed while the session is idle")
        changed: Event = {}
        metadata = {**talk.record["metadata"], **(changes.get("metadata") or {})}
        given = {
            **{name: changes[name] for name in ("title", "budget") if name in changes},
            "agent": {**talk.record["agent"], **changes.get("agent", {})},
            "metadata": {k: v for k, v in metadata.items() if v is not None},
        }
        for name, value in given.items():
            if talk.record[name] != value:
                talk.record[name] = changed[name] = value
        if not changed:
            return
        talk.record["updated_at"] = self.now()
        # What was taken away is told as null, unlike what was never set.
        self.place(talk, {**saying(EVENTS["session.updated"]), **changed})
        if "budget" in changed:
            talk.at_budget = False
            self.go_on(talk)

    def archive(self, talk: ScriptedSession) -> None:
        """End a session and keep what it holds (page, section 3.3; live page, section 1).

        Raises:
            Refusal: 400, it runs.
        """
        self._check_rests(talk, "archive")
        talk.record["archived_at"] = talk.record["archived_at"] or self.now()
        if talk.status != "terminated":
            self.lose(talk)
            self.terminate(talk)

    def terminate(self, talk: ScriptedSession) -> None:
        """Tell the streams that a session is over."""
        talk.status = talk.primary.status = "terminated"
        talk.queue.clear()
        self.write(talk, "session.status_terminated")

    def delete(self, talk: ScriptedSession) -> None:
        """Forget a session; open streams are told and end (page, section 3.3).

        Raises:
            Refusal: 400, it runs.
        """
        self._check_rests(talk, "delete")
        self.lose(talk)
        for thread in talk.threads.values():
            said = saying(EVENTS["session.deleted"])
            data = {"id": self.new_id("sevt"), "processed_at": self.now(), **said}
            thread.streamed.append(StreamedEvent(data))
        del self.talks[talk.id]
        talk.wake()

    def _check_rests(self, talk: ScriptedSession, what: str) -> None:
        if talk.status in ("running", "rescheduling"):
            raise bad(f"Cannot {what} session while it is {talk.status}: {talk.id}")

    def archive_thread(self, talk: ScriptedSession, thread: ScriptedThread) -> None:
        """End a thread, and what it waits for (page, section 10).

        Raises:
            Refusal: 400, it runs, or is the primary one.
        """
        if thread.status == "running" or thread is talk.primary:
            raise bad(f"Cannot archive thread {thread.id}: it runs, or is the primary thread")
        if thread.archived_at is None:
            thread.archived_at = self.now()
            self.thread_status(talk, thread, "terminated")
            if thread.runner is not None and not thread.runner.done():
                talk.drop_calls(thread)
                thread.runner.cancel()

    def lose(self, talk: ScriptedSession) -> None:
        """Forget the running turn, as a killed container does: no event tells of it."""
        runner, talk.runner = talk.runner, None
        if runner is not None:
            runner.cancel()
        talk.drop_calls()
        if talk.status != "terminated":
            for thread in talk.threads.values():
                thread.status = "idle" if thread.status == "running" else thread.status
            talk.status = "idle"

    # Events.

    def write(
        self, talk: ScriptedSession, name: str, /, *threads: ScriptedThread, **members: object
    ) -> Event:
        """Put an event in its place in threads, the primary one without any."""
        said = saying(EVENTS[name], **members)
        return self.place(talk, said, *threads)

    def place(self, talk: ScriptedSession, said: Event, /, *threads: ScriptedThread) -> Event:
        """Put an event as it is said in its place in threads, with an id and a time."""
        thinks = said["type"] == "agent.thinking"
        at = self.stamp(millisecond=thinks)
        written = _written(at, "milliseconds" if thinks else "microseconds")
        event = {"id": self.new_id("sevt"), "processed_at": written, **said}
        for thread in threads or (talk.primary,):
            thread.stored.append(StoredEvent(event, at))
            thread.streamed.append(StreamedEvent(event))
        talk.wake()
        return event

    def copy(self, talk: ScriptedSession, event: Event, thread: ScriptedThread) -> None:
        """Put the newest event of another thread into this one too, with the same time."""
        thread.stored.append(StoredEvent(event, self._newest))
        thread.streamed.append(StreamedEvent(event))
        talk.wake()

    def preview(
        self, talk: ScriptedSession, thread: ScriptedThread, kind: str, data: Event
    ) -> None:
        """Show streams of a thread a part of an event that is still to come (page, section 9)."""
        if self.variant.previews:
            thread.streamed.append(StreamedEvent(data, kind))
            talk.wake()

    def thread_status(
        self, talk: ScriptedSession, thread: ScriptedThread, status: str, **members: object
    ) -> None:
        """Give a thread a status; a child's has the same id on both streams (live page, 1)."""
        thread.status = status
        both = (talk.primary,) if thread is talk.primary else (talk.primary, thread)
        self.write(
            talk,
            f"session.thread_status_{status}",
            *both,
            session_thread_id=thread.id,
            agent_name=thread.agent_name,
            **members,
        )

    def running(self, talk: ScriptedSession) -> None:
        """Say that the session and its primary thread run."""
        talk.status = "running"
        self.write(talk, "session.status_running")
        self.thread_status(talk, talk.primary, "running")

    def idle(self, talk: ScriptedSession, reason: Mapping[str, object], **members: object) -> None:
        """Say that the session is idle, and what it has used."""
        if self.variant.usage:
            budget = talk.record["budget"]
            self.write(talk, "session.usage", usage=dict(talk.usage), budget=budget)
        talk.status = "idle"
        self.write(talk, "session.status_idle", stop_reason=dict(reason), **members)

    def requires(self, ids: Sequence[str]) -> Event:
        """Return the reason of an idle that waits for answers (page, section 7.3)."""
        named = {"event_ids": list(ids)}
        if self.variant.reason_ids == "nested":
            return {"type": "requires_action", "requires_action": named}
        return {"type": "requires_action", **named}

    def frame(self, item: StreamedEvent) -> bytes:
        """Write what a stream sends: one line of data, members sorted (live page, section 1)."""
        names = self.variant.frame_names
        name = "message" if names == "message" else item.data["type"]
        return f"event: {name}\ndata: {dump_sorted(item.data)}\n\n".encode()

    def listed(self, thread: ScriptedThread) -> list[StoredEvent]:
        """Return the events of a thread in the order of its list (live page, section 2)."""
        if self.variant.list_order == "stored":
            return list(thread.stored)
        last = self._newest + 1
        return sorted(thread.stored, key=lambda one: last if one.at is None else one.at)

    # Inputs.

    def take(self, talk: ScriptedSession, batch: Sequence[Event]) -> list[Event]:
        """Take a batch as a whole and return its events as they are stored (page, section 4).

        Raises:
            Refusal: 400 or 409, the session is over, waits, runs, or the answer is to nothing.
        """
        if self.stopping.is_set():
            raise Refusal(503, "api_error", "This service is going away.")
        if talk.status == "terminated":
            raise Refusal(
                self.variant.archived_status,
                "invalid_request_error",
                f"Cannot send events to archived session: {talk.id}",
            )
        inputs = ManagedAgentsInputs(self, talk)
        inputs.check(batch)
        taken = [inputs.apply(event) for event in batch]
        self.go_on(talk)
        return [stored.event for stored in taken if stored is not None]

    def process(self, talk: ScriptedSession, stored: StoredEvent) -> None:
        """Give an input its time, and show it."""
        if self.variant.inputs == "unprocessed" or stored.at is not None:
            return
        stored.at = self.stamp()
        stored.event = {**stored.event, "processed_at": _written(stored.at)}
        talk.primary.streamed.append(StreamedEvent(stored.event))
        talk.wake()

    def go_on(self, talk: ScriptedSession) -> None:
        """Begin the next turn where none runs and something is queued."""
        if talk.runner is not None or talk.at_budget or talk.status == "terminated":
            return
        if not talk.queue or self.stopping.is_set():
            return
        talk.turns += 1
        stage = ManagedAgentsStage(self, talk, talk.primary)
        first = talk.queue.popleft()
        # Running from here on, for a client that asks before the turn's first step.
        talk.status = "running"
        talk.runner = self._tasks.start(stage.play(first), f"{talk.id} turn {talk.turns}")

    def start_child(
        self, talk: ScriptedSession, stage: "ManagedAgentsStage", beats: Sequence[Beat]
    ) -> asyncio.Task[None]:
        """Begin the work of a child."""
        return self._tasks.start(stage.work(beats), f"{talk.id} {stage.thread.id}")


@dataclass(slots=True, eq=False)
class ManagedAgentsInputs:
    """Checks and applies what is sent to one session (page, section 4)."""

    service: ScriptedManagedAgents
    talk: ScriptedSession

    def check(self, batch: Sequence[Event]) -> None:
        """Check a batch before any of it counts.

        Raises:
            Refusal: 400 or 409, it waits, runs, or the answer is to nothing.
        """
        waiting, answered = self.talk.waiting(), False
        for place, event in enumerate(batch):
            where = f"Invalid {event['type']} event at events[{place}]"
            thread = event.get("session_thread_id")
            if thread is not None and thread not in self.talk.threads:
                raise bad(f"{where}: there is no thread {thread}")
            match event["type"]:
                case "user.interrupt":
                    calls = self.talk.open.values()
                    stopped = {call.id for call in calls if thread in (None, call.thread.id)}
                    waiting = [name for name in waiting if name not in stopped]
                case "user.message" | "user.define_outcome":
                    self._check_work(where, waiting)
                case "system.message":
                    if waiting and not answered:
                        raise bad(_waits(where, waiting))
                case _:
                    self._check_answer(where, event, waiting)
                    waiting.remove(event[ANSWERS[event["type"]]])
            answered = event["type"] in ("user.tool_result", "user.custom_tool_result")

    def _check_work(self, where: str, waiting: Sequence[str]) -> None:
        variant = self.service.variant
        if self.talk.at_budget:
            raise bad(f"{where}: the session has reached its budget; {_ALLOWED}")
        if waiting:
            if variant.while_waiting == "refused":
                raise bad(_waits(where, waiting))
        elif self.talk.runner is not None and variant.while_running == "conflict":
            raise Refusal(409, "conflict_error", f"Session {self.talk.id} is running.")
        name, self.talk.newest_answered = self.talk.newest_answered, None
        if name is not None and variant.after_answer == "refused_once":
            raise bad(_waits(where, [name]))

    def _check_answer(self, where: str, event: Event, waiting: Sequence[str]) -> None:
        member = ANSWERS[event["type"]]
        name = event[member]
        if name not in waiting:
            if waiting and name in self.talk.over:
                raise bad(_waits(where, waiting))
            raise bad(f"{where}: {member} {name} matches no tool-use event that waits in it")
        call = self.talk.open[name]
        if call.takes != event["type"]:
            raise bad(f"{where}: {member} {name} takes a {call.takes}")
        if event.get("session_thread_id") not in (None, call.thread.id):
            raise bad(f"{where}: {name} is a call of thread {call.thread.id}")
        self.talk.take_answer()

    def apply(self, event: Event) -> StoredEvent | None:
        """Take one event; returns it as it is stored, or nothing where it is not."""
        match event["type"]:
            case "user.interrupt":
                return None if self.talk.at_budget else self._interrupt(event)
            case "user.message":
                stored = self._receive(event)
                self.talk.queue.append(stored)
            case "user.define_outcome":
                outcome = {**event, "outcome_id": self.service.new_id("outc")}
                stored = self._receive(outcome)
                self.service.process(self.talk, stored)
                self.talk.queue.append(stored)
            case "system.message":
                stored = self._receive(event)
                if self.talk.queue:
                    self.talk.queue.append(stored)
                else:
                    self.service.process(self.talk, stored)
            case _:
                stored = self._answer(event)
        return stored

    def _receive(self, event: Event) -> StoredEvent:
        """Store an input that is still to be processed."""
        template = EVENTS[event["type"]]
        known = template.payload().keys() - {"type"}
        said = saying(template, **{name: event[name] for name in event if name in known})
        unnamed = said["type"] == "user.interrupt" and not self.service.variant.interrupt_id
        name = "" if unnamed else self.service.new_id("sevt")
        stored = StoredEvent({"id": name, "processed_at": None, **said}, None)
        self.talk.primary.stored.append(stored)
        shows = self.service.variant.inputs
        if shows == "unprocessed" or (shows == "twice" and said["type"] in _SHOWN_TWICE):
            self.talk.primary.streamed.append(StreamedEvent(stored.event))
            self.talk.wake()
        return stored

    def _interrupt(self, event: Event) -> StoredEvent:
        stored = self._receive(event)
        thread = self.talk.threads.get(
            event.get("session_thread_id", self.talk.primary.id), self.talk.primary
        )
        runner = self.talk.runner if thread is self.talk.primary else thread.runner
        if runner is None or runner.done():
            self.service.process(self.talk, stored)
            if thread is self.talk.primary and self.service.variant.interrupt_idle == "idle":
                self.service.idle(self.talk, {"type": self.service.variant.interrupt_reason})
            return stored
        interrupts = self.talk.interrupts if thread is self.talk.primary else thread.interrupts
        if not interrupts:
            # A task that is cancelled before its first step never ends its turn.
            asyncio.get_running_loop().call_soon(runner.cancel)
        interrupts.append(stored)
        return stored

    def _answer(self, event: Event) -> StoredEvent:
        """Take an answer. A result of a later call waits until the earlier ones are answered (live
        page, section 1)."""
        call = self.talk.open[event[ANSWERS[event["type"]]]]
        if call.thread is not self.talk.primary:
            event = {**event, "session_thread_id": call.thread.id}
        call.held = self._receive(event)
        self.talk.over.add(call.id)
        self.talk.newest_answered = call.id
        if event["type"] == "user.tool_confirmation":
            self._settle(call, call.held)
        for other in list(self.talk.open.values()):
            if other.held is None:
                break
            self._settle(other, other.held)
        return call.held

    def _settle(self, call: OpenCall, stored: StoredEvent) -> None:
        self.service.process(self.talk, stored)
        del self.talk.open[call.id]
        if call.thread is not self.talk.primary:
            said = {k: v for k, v in stored.event.items() if k not in ("id", "processed_at")}
            del said["session_thread_id"]
            self.service.place(self.talk, said, call.thread)
        call.answered.set_result(stored.event)


def _waits(where: str, waiting: Sequence[str]) -> str:
    """Return the words of the live page, section 3."""
    return f"{where}: waiting on responses to events [{', '.join(waiting)}]; {_ALLOWED}"


def _words(event: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the text of an input, and a description of each file in it."""
    if event["type"] == "user.define_outcome":
        return str(event["description"]), ()
    content = event["content"]
    text = "\n".join(block["text"] for block in content if block["type"] == "text")
    files = []
    for block in content:
        if block["type"] != "text":
            source = block["source"]
            name = source.get("media_type") or source.get("url") or source.get("file_id")
            files.append(f"a file, {block['type']} {name}")
    return text, tuple(files)


class _TurnOver(Exception):
    """The turn has ended, and its end is told."""


@dataclass(slots=True)
class _PreviewedMessage:
    """A message that is streamed as previews alone."""

    id: str
    pieces: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Called:
    """A call that was made: its event's id, and the name by which its result refers to it."""

    id: str
    named: str
    mcp: bool


@dataclass(slots=True, eq=False)
class ManagedAgentsStage:
    """Plays beats into one thread of a session."""

    service: ScriptedManagedAgents
    talk: ScriptedSession
    thread: ScriptedThread
    _message: _PreviewedMessage | None = field(init=False, default=None)
    _request: str | None = field(init=False, default=None)
    _unanswered: dict[str, _Called] = field(init=False, default_factory=dict)
    _child: "ManagedAgentsStage | None" = field(init=False, default=None)
    _said: list[str] = field(init=False, default_factory=list)

    @property
    def _primary(self) -> bool:
        return self.thread is self.talk.primary

    def emit(self, name: str, /, **members: object) -> Event:
        """Write one event of this thread."""
        return self.service.write(self.talk, name, self.thread, **members)

    async def play(self, first: StoredEvent) -> None:
        """Play a turn to its end, then begin the next."""
        talk, service = self.talk, self.service
        mine = asyncio.current_task()
        try:
            self._begin(first)
            text, files = _words(first.event)
            for beat in beats_for(text, turn=talk.turns, attachments=files):
                await self._beat(beat)
            self._end_request()
            if first.event["type"] == "user.define_outcome":
                await self._evaluate(first.event)
            await self._pause()
            self._finish()
        except asyncio.CancelledError:
            if not talk.interrupts or talk.runner is not mine:
                raise
            self._interrupted()
        except _TurnOver:
            pass
        finally:
            if self._child is not None and self._child.thread.runner is not None:
                self._child.thread.runner.cancel()
            if talk.runner is mine:
                talk.runner = None
                self._process_interrupts()
                service.go_on(talk)
                talk.wake()

    def _begin(self, first: StoredEvent) -> None:
        service, talk = self.service, self.talk
        if service.variant.inputs == "twice":
            service.process(talk, first)
        service.running(talk)
        service.process(talk, first)
        while talk.queue and talk.queue[0].event["type"] == "system.message":
            service.process(talk, talk.queue.popleft())

    def _finish(self) -> None:
        talk = self.talk
        reason = _END_TURN
        if talk.record["budget"] is not None:
            talk.at_budget = True
            reason = {"type": "budget_reached"}
        self._rest(reason)

    def _rest(self, reason: Mapping[str, object], **members: object) -> None:
        """Say that the thread is idle, and then the session."""
        self._thread_idle(reason, **members)
        self.service.idle(self.talk, reason, **members)

    def _thread_idle(self, reason: Mapping[str, object], **members: object) -> None:
        self.service.thread_status(
            self.talk, self.thread, "idle", stop_reason=dict(reason), **members
        )

    async def work(self, beats: Sequence[Beat]) -> None:
        """Play the beats of a child; its coordinator tells the end."""
        try:
            for beat in beats:
                await self._beat(beat)
            self._end_request()
        except asyncio.CancelledError:
            if not self.thread.interrupts:
                raise
            self.cut()
            while self.thread.interrupts:
                self.service.process(self.talk, self.thread.interrupts.pop(0))
            self._thread_idle(_END_TURN)

    def cut(self) -> None:
        """Close what is open, as an interrupt does: no message, an error for each open call."""
        self._end_request(failed=True)
        for called in list(self._unanswered.values()):
            self._result(called, "The call was interrupted.", failed=True)
        self.talk.drop_calls(self.thread)

    def _interrupted(self) -> None:
        """Tell the end of an interrupted turn (live page, section 1)."""
        child, self._child = self._child, None
        if child is not None and child.thread.runner is not None:
            child.cut()
            child._thread_idle(_END_TURN)
            child.thread.runner.cancel()
        self.cut()
        self._process_interrupts()
        self._rest({"type": self.service.variant.interrupt_reason})

    def _process_interrupts(self) -> None:
        while self.talk.interrupts:
            self.service.process(self.talk, self.talk.interrupts.pop(0))

    async def _pause(self, seconds: float = 0.0) -> None:
        await self.service.pause(seconds)
        if self.talk.stuck:
            await asyncio.get_running_loop().create_future()

    async def _beat(self, beat: Beat) -> None:
        await self._pause()
        match beat:
            case ThinkBeat():
                self._think()
            case SayBeat(pieces, gap_s):
                await self._say(pieces, gap_s)
            case RunBeat(calls):
                await self._run(calls)
            case ApproveBeat():
                await self._approve((beat,))
            case ApproveAllBeat(approvals):
                await self._approve(approvals)
            case UseCustomToolBeat():
                await self._custom(beat)
            case DelegateBeat() if self._primary:
                await self._delegate(beat)
            case CompactBeat():
                self._end_request()
                self.emit("agent.thread_context_compacted")
            case OddBeat():
                self._close_message()
                odd = {"type": "agent.future_event", "anything": 1}
                self.service.place(self.talk, odd, self.thread)
                await self._say(("Something new: ",))
            case FailBeat():
                await self._fail(beat)
            case AskBeat():
                await self._lack("questions to ask")
            case RememberBeat():
                await self._lack("event for notes")
            case AskSealedBeat() | SignInBeat() | LimitBeat() | ProduceBeat() | DelegateBeat():
                await self._lack(lacking(beat))
            case _:
                assert_never(beat)

    async def _lack(self, what: str) -> None:
        await self._say((f"Managed Agents has no {what}.",))

    # Model requests and what they say.

    def _open_request(self) -> None:
        if self._request is None:
            self._request = ""
            if self.service.variant.spans:
                self._request = self.emit("span.model_request_start")["id"]

    def _end_request(self, *, failed: bool = False) -> None:
        """End a model request; one that failed leaves no message (page, section 9)."""
        if failed:
            self._message = None
        self._close_message()
        if self._request is None:
            return
        started, self._request = self._request, None
        usage: Event = EVENTS["span.model_request_end"].inner("model_usage")
        for name in self.talk.usage:
            self.talk.usage[name] += usage[name]
        if started:
            self.emit(
                "span.model_request_end",
                model_request_start_id=started,
                is_error=failed,
                model_usage=usage,
            )

    def _start_preview(self, kind: str) -> str:
        name = self.service.new_id("sevt")
        data = EVENTS["event_start"].filled(event={"type": kind, "id": name})
        self.service.preview(self.talk, self.thread, kind, data)
        return name

    def _think(self) -> None:
        self._close_message()
        self._open_request()
        name = self._start_preview("agent.thinking")
        said = {**saying(EVENTS["agent.thinking"]), "id": name}
        self.service.place(self.talk, said, self.thread)

    async def _say(self, pieces: Sequence[str], gap_s: float = 0.0) -> None:
        for piece in pieces:
            await self._pause(gap_s)
            self._open_request()
            if self._message is None:
                self._message = _PreviewedMessage(self._start_preview("agent.message"))
            self._message.pieces.append(piece)
            self._said.append(piece)
            template = EVENTS["event_delta"]
            content = {"type": "text", "text": piece}
            data = template.filled(
                event_id=self._message.id, delta=template.inner("delta", content=content)
            )
            self.service.preview(self.talk, self.thread, "agent.message", data)

    def _close_message(self) -> None:
        """Write the message whose pieces were previewed."""
        message, self._message = self._message, None
        if message is not None:
            said = saying(EVENTS["agent.message"], content=blocks("".join(message.pieces)))
            self.service.place(self.talk, {**said, "id": message.id}, self.thread)

    # Calls.

    def _call(self, call: ToolCall, *, asks: bool = False) -> _Called:
        """Write the use of a tool. A child's that asks is on the session's stream too (page,
        section 10)."""
        self._close_message()
        self._open_request()
        policy = self.service.variant.permissions == "policy"
        # A connector's tool has a dotted name in the story (engine page, section 8.6).
        server, dot, tool = call.tool.partition(".")
        mcp = bool(dot)
        members: Event = {"name": tool if mcp else call.tool, "input": dict(call.input)}
        own = None
        if self.service.variant.result_names == "own":
            own = members["tool_use_id"] = self.service.new_id("call")
        name = "agent.mcp_tool_use" if mcp else "agent.tool_use"
        if policy or own:
            asking = OTHERS[name].payload() if policy and asks else {}
            kept = ("permission_policy", "requires_confirmation")
            said = saying(OTHERS[name], **members, **{k: asking[k] for k in kept if k in asking})
        else:
            said = saying(EVENTS[name], **members)
        if mcp and not policy:
            said["mcp_server_name"] = server
        if not policy:
            said["evaluated_permission"] = "ask" if asks else "allow"
        event = self._use(said, shared=asks)
        called = _Called(event["id"], own or event["id"], mcp)
        self._unanswered[event["id"]] = called
        return called

    def _use(self, said: Event, *, shared: bool) -> Event:
        event = self.service.place(self.talk, said, self.thread)
        if shared and not self._primary:
            crossed = {**event, "session_thread_id": self.thread.id}
            self.service.copy(self.talk, crossed, self.talk.primary)
        return event

    def _result(self, called: _Called, text: str, *, failed: bool) -> None:
        self._unanswered.pop(called.id, None)
        members = {"content": blocks(text), "is_error": failed}
        if called.mcp:
            self.emit("agent.mcp_tool_result", mcp_tool_use_id=called.named, **members)
        else:
            self.emit("agent.tool_result", tool_use_id=called.named, **members)

    def _returns(self, called: _Called, call: ToolCall) -> None:
        self._result(called, call.error or str(call.output), failed=call.error is not None)

    async def _run(self, calls: Sequence[ToolCall]) -> None:
        made = [(self._call(call, asks=False), call) for call in calls]
        hosted = self.service.variant.self_hosted
        theirs = [(called, call) for called, call in made if hosted and not called.mcp]
        if theirs:
            await self._answers([called.id for called, _ in theirs], "user.tool_result")
            for called, _ in theirs:
                self._unanswered.pop(called.id)
        self._end_request()
        for called, call in reversed([one for one in made if one not in theirs]):
            await self._pause()
            self._returns(called, call)

    async def _answers(self, ids: Sequence[str], takes: str) -> list[Event]:
        """Say that answers are needed, wait for all of them, go on (page, section 7.6)."""
        self._end_request()
        loop = asyncio.get_running_loop()
        futures: dict[str, asyncio.Future[Event]] = {}
        for name in ids:
            futures[name] = loop.create_future()
            self.talk.over.discard(name)
            self.talk.open[name] = OpenCall(name, self.thread, takes, futures[name])
        self._wait_idle(ids)
        left = list(ids)
        while left:
            await asyncio.wait(
                [futures[name] for name in left], return_when=asyncio.FIRST_COMPLETED
            )
            before, left = left, [name for name in left if not futures[name].done()]
            named = before if self.service.variant.idle_names_answered else left
            if left and self.service.variant.partial_idle:
                self._wait_idle(named)
        self._resume(before)
        return [futures[name].result() for name in ids]

    def _wait_idle(self, ids: Sequence[str]) -> None:
        self._rest(self.service.requires(ids))

    def _resume(self, answered: Sequence[str]) -> None:
        """Say that the session runs again. After a child's call its coordinator runs and is idle
        at once, and an idle of the session may still name the call (live page, section 1)."""
        service, talk = self.service, self.talk
        service.running(talk)
        if self._primary:
            return
        service.thread_status(talk, talk.primary, "idle", stop_reason=dict(_END_TURN))
        if service.variant.idle_names_answered:
            service.idle(talk, service.requires(answered))
            talk.status = "running"
            service.write(talk, "session.status_running")
        service.thread_status(talk, self.thread, "running")

    async def _approve(self, approvals: Sequence[ApproveBeat]) -> None:
        self.talk.refusals = sum(beat.refusals for beat in approvals)
        made = [self._call(beat.call, asks=True) for beat in approvals]
        answers = await self._answers([called.id for called in made], "user.tool_confirmation")
        hosted = self.service.variant.self_hosted
        for beat, called, answer in zip(approvals, made, answers, strict=True):
            if answer["result"] == "deny":
                words = answer.get("deny_message") or "The user denied this call."
                self._result(called, words, failed=True)
            elif hosted and not called.mcp:
                await self._answers([called.id], "user.tool_result")
                self._unanswered.pop(called.id)
            else:
                self._returns(called, beat.call)
        for beat, answer in zip(approvals, answers, strict=True):
            await self._say(beat.granted if answer["result"] == "allow" else beat.denied)

    async def _custom(self, beat: UseCustomToolBeat) -> None:
        self._close_message()
        self._open_request()
        said = saying(EVENTS["agent.custom_tool_use"], name=beat.tool, input=dict(beat.input))
        event = self._use(said, shared=True)
        (answer,) = await self._answers([event["id"]], "user.custom_tool_result")
        words = "".join(block.get("text", "") for block in answer.get("content", ()))
        if answer.get("is_error"):
            words = f"an error, {words}"
        await self._say((beat.reply.replace("{result}", words),))

    # Children.

    async def _delegate(self, beat: DelegateBeat) -> None:
        """Give a child its work; the coordinator is idle until the child has answered (page,
        section 10; live page, section 1)."""
        service, talk = self.service, self.talk
        self._end_request()
        child = ScriptedThread(service.new_id("sthr"), beat.name, self.thread.id, service.now())
        talk.threads[child.id] = child
        self.emit("session.thread_created", session_thread_id=child.id, agent_name=beat.name)
        service.thread_status(talk, child, "running")
        task = blocks(beat.task)
        self.emit(
            "agent.thread_message_sent",
            to_session_thread_id=child.id,
            to_agent_name=beat.name,
            content=task,
        )
        service.write(
            talk,
            "agent.thread_message_received",
            child,
            from_session_thread_id=self.thread.id,
            from_agent_name=self.thread.agent_name,
            content=task,
        )
        self._thread_idle(_END_TURN)
        stage = self._child = ManagedAgentsStage(service, talk, child)
        child.runner = service.start_child(talk, stage, beat.beats)
        await asyncio.wait([child.runner])
        self._child = None
        ended = child.status == "running"
        if ended:
            said = blocks("".join(stage._said))
            stage.emit(
                "agent.thread_message_sent", to_session_thread_id=self.thread.id, content=said
            )
        if talk.status != "running":
            talk.status = "running"
            self.emit("session.status_running")
        service.thread_status(talk, self.thread, "running")
        if ended:
            self.emit(
                "agent.thread_message_received",
                from_session_thread_id=child.id,
                from_agent_name=beat.name,
                content=said,
            )
            stage._thread_idle(_END_TURN)

    # Ends.

    async def _fail(self, beat: FailBeat) -> None:
        service, talk = self.service, self.talk
        self._open_request()
        self._end_request(failed=True)
        message = f"{beat.code}: {beat.message}"
        match service.variant.failure:
            case "exhausted":
                self._error(message, "exhausted")
                talk.queue.clear()
                self._rest({"type": "retries_exhausted"})
                raise _TurnOver
            case "terminated":
                self._error(message, "terminal")
                service.thread_status(talk, self.thread, "terminated")
                service.terminate(talk)
                raise _TurnOver
            case "refusal":
                template = EVENTS["session.status_idle"]
                details = template.inner("stop_details", explanation=message)
                self._rest({"type": "refusal"}, stop_details=details)
                raise _TurnOver
            case "rescheduled":
                self._error(message, "retrying")
                talk.status = "rescheduling"
                service.write(talk, "session.status_rescheduled")
                service.thread_status(talk, self.thread, "rescheduled")
                await self._pause(1.0)
                service.running(talk)
                await self._say(("The second try went well.", f" (turn {talk.turns})"))

    def _error(self, message: str, retry: str) -> None:
        if self.service.variant.error_form == "flat":
            said = saying(OTHERS["session.error"], message=message, error_type="ModelError")
            self.service.place(self.talk, said)
            return
        error = EVENTS["session.error"].inner(
            "error", message=message, retry_status={"type": retry}
        )
        self.service.write(self.talk, "session.error", error=error)

    async def _evaluate(self, outcome: Event) -> None:
        """Judge the work, once more after a revision where that is allowed (page, section 7.4)."""
        name = outcome["outcome_id"]
        for iteration, result in enumerate(_verdicts(outcome.get("max_iterations", 3))):
            at = {"outcome_id": name, "iteration": iteration}
            start = self.emit("span.outcome_evaluation_start", **at)
            await self._pause()
            self.emit("span.outcome_evaluation_ongoing", **at)
            end = self.emit(
                "span.outcome_evaluation_end",
                **at,
                outcome_evaluation_start_id=start["id"],
                result=result,
                explanation="It rhymes." if result == "satisfied" else "It does not rhyme.",
                usage=EVENTS["span.outcome_evaluation_end"].inner("usage"),
            )
            if result != "satisfied":
                await self._say(("I have revised it.",))
                self._end_request()
        self.talk.record["outcome_evaluations"].append(
            BODIES["outcome"].filled(
                **at,
                description=outcome["description"],
                result=result,
                completed_at=end["processed_at"],
            )
        )


def _verdicts(iterations: int) -> Iterator[str]:
    if iterations > 1:
        yield "needs_revision"
    yield "satisfied"
