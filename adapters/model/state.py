"""What is open in a session, and the laws that its log obeys (design section 3), as checks.

Theory of operation. A log is a list of events. `LogState` is the fold of it: for every thread the
open turn, blocks, calls and step, for the session the open interactions and unsettled inputs.
`LogState.apply` takes the next event: it checks the event against `TURN_TABLE` (which events may
come in which state of their thread's turn, and what state follows) and against the laws on what is
open, raises `LawBroken` with the number of the law, and else folds the event in.

Two rules for this file. It only says what is wrong, it never repairs: that is the normalizer's. And
a law that is not checked here does not exist.

Why one module: a fold for each kind of event, and all change the one state of the log.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from adapters.model import events as ev
from adapters.model.base import shape_of
from adapters.model.session_info import SessionInfo
from adapters.model.stored import adapter_of


class Turn(enum.StrEnum):
    """The states of a thread's turn."""

    IDLE = "idle"
    RUNNING = "running"
    PAUSED = "paused"


_ANY = frozenset(Turn)
_OPEN = frozenset({Turn.RUNNING, Turn.PAUSED})
_RUNNING = frozenset({Turn.RUNNING})
_IDLE = frozenset({Turn.IDLE})

TURN_TABLE: dict[str, tuple[frozenset[Turn], Turn | None]] = {
    # event type: (states it may come in, state that follows or None for "as before")
    "turn.started": (_IDLE, Turn.RUNNING),
    "turn.paused": (_OPEN, Turn.PAUSED),
    "turn.resumed": (frozenset({Turn.PAUSED}), Turn.RUNNING),
    "turn.ended": (_OPEN, Turn.IDLE),
    # The agent's work: only while it works.
    "step.started": (_RUNNING, None),
    "step.ended": (_OPEN, None),
    "text.delta": (_RUNNING, None),
    "text.completed": (_OPEN, None),
    "reasoning.delta": (_RUNNING, None),
    "reasoning.completed": (_OPEN, None),
    "tool.input_delta": (_RUNNING, None),
    "tool.called": (_RUNNING, None),
    "tool.progressed": (_OPEN, None),
    "tool.returned": (_OPEN, None),
    "result.produced": (_RUNNING, None),
    "guidance.received": (_OPEN, None),
    "interaction.requested": (_OPEN, None),
    # A message may join a turn or wait outside of one; what is said of an open interaction may come
    # at any time.
    "message.received": (_ANY, None),
    "interaction.answered": (_ANY, None),
    "interaction.updated": (_ANY, None),
    "interaction.resolved": (_ANY, None),
    # The rest belongs to the session and never opens a turn (law 2).
    **dict.fromkeys(
        (
            "session.started",
            "session.updated",
            "session.ended",
            "input.accepted",
            "input.settled",
            "thread.started",
            "thread.updated",
            "thread.ended",
            "thread.message",
            "context.compacted",
            "context.cleared",
            "memory.updated",
            "state.updated",
            "activity.updated",
            "usage.reported",
            "error.reported",
            "outcome.evaluated",
            "notice",
            "gap",
            "native",
        ),
        (_ANY, None),
    ),
}

RECEIVED_KINDS = frozenset({"message", "steer"})
"""Kinds of input that become part of the conversation: by a message, or by guidance."""

PAUSE_UPKEEP = frozenset(
    {
        "turn.paused",
        "turn.resumed",
        "turn.ended",
        "interaction.requested",
        "interaction.answered",
        "interaction.updated",
        "interaction.resolved",
        # These settle what was open before the pause and are not work.
        "tool.returned",
        "tool.progressed",
        "text.completed",
        "reasoning.completed",
        "step.ended",
    }
)
"""What may come between a change of what a paused turn waits for and the pause that names it."""


class LawBroken(ValueError):
    """The log breaks a law; `law` is its number in design section 3."""

    def __init__(self, law: int, message: str) -> None:
        super().__init__(f"law {law}: {message}")
        self.law = law


@dataclasses.dataclass(slots=True)
class OpenTurn:
    """A turn that has not ended.

    `stale` when a pause has to follow (law 6), `fresh` when a pause was the last of its events.
    `last_step` is the highest step that has started. `stopped` has what was open when the backend
    took an interrupt of the turn, and ends with it; None while it took none. `asked` has the
    backend's ids of the newest requests made in the turn, each with the call that it is about and
    the backend's id of the event that made it.
    """

    turn_id: str
    paused_on: str | None = None
    named: tuple[str, ...] = ()
    stale: bool = False
    fresh: bool = False
    last_step: int = -1
    stopped: tuple[str, ...] | None = None
    asked: dict[str, tuple[str | None, str | None]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class OpenBlock:
    """A text or reasoning block that is not completed; `parts` are its deltas, `size` is how many
    characters they have."""

    block_id: str
    message_id: str
    index: int
    parts: list[str] = dataclasses.field(default_factory=list)
    size: int = 0

    def add(self, text: str) -> None:
        """Take the next delta."""
        self.parts.append(text)
        self.size += len(text)

    def joined(self) -> str:
        """Return the text so far, and keep it in one piece: who asks next gets the same one."""
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""


@dataclasses.dataclass(slots=True)
class Thread:
    """What is open in one thread."""

    turn: OpenTurn | None = None
    text: OpenBlock | None = None
    reasoning: OpenBlock | None = None
    step: int | None = None
    calls: dict[str, None] = dataclasses.field(default_factory=dict)
    ended: bool = False

    @property
    def state(self) -> Turn:
        """Return the state of the thread's turn."""
        if self.turn is None:
            return Turn.IDLE
        return Turn.RUNNING if self.turn.paused_on is None else Turn.PAUSED


@dataclasses.dataclass(slots=True)
class OpenInteraction:
    """An interaction that is not resolved, and who has claimed it."""

    event: ev.InteractionRequested
    claimed_by: str | None = None

    @property
    def native_id(self) -> str:
        """Return the backend's id of it."""
        return self.event.native_id or self.event.request_id


@dataclasses.dataclass(slots=True)
class OpenInput:
    """An input that is not settled."""

    kind: str
    trace: str | None = None


RECENT_IDS = 256
"""Ids of each kind that are remembered after they are over: a backend that comes back repeats its
last turn, not its hundredth last. About 40 bytes each in a snapshot."""


BLOCK_TEXT = 2**19
"""Characters of a block that is streamed: models write at most 128,000 tokens at a time. A longer
one goes on as another block, since the end of a block, and each record of a face with its text so
far, have all of it in one step."""

OPEN_TEXT = 2**21
"""The same of all open blocks of a session; each thread has two."""


@dataclasses.dataclass(slots=True)
class RecentIds:
    """The newest ids of a kind; `total` counts all that there were."""

    total: int = 0
    kept: dict[str, None] = dataclasses.field(default_factory=dict)

    def add(self, name: str) -> None:
        """Take an id; the oldest is forgotten when there are too many.

        The normalizer writes `name~2` for a name that comes back: such a name stays known.
        """
        native = name.rpartition("~")[0]
        if native in self.kept:
            del self.kept[native]
            self.kept[native] = None
        if name not in self.kept:
            self.total += 1
            self.kept[name] = None
        if len(self.kept) > RECENT_IDS:
            del self.kept[next(iter(self.kept))]

    def discard(self, name: str) -> None:
        """Forget an id."""
        self.kept.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self.kept

    def __len__(self) -> int:
        return len(self.kept)


@dataclasses.dataclass(slots=True)
class LogState:
    """The fold of a session's log: start empty, `apply` every event in order.

    It stays small however long the log is. What is open is kept whole: a turn with its calls for
    each thread, the text of the open blocks, interactions and inputs until they are settled. Of
    what is over the newest `RECENT_IDS` of each kind are remembered (turns, calls, interactions,
    received messages, threads): within these an id is unique and a repeat is recognised. One that
    comes back after more than that many others is taken for new.
    """

    seq: int = 0
    at: int = 0
    begun: bool = False
    about: SessionInfo = dataclasses.field(default_factory=SessionInfo)
    threads: dict[str, Thread] = dataclasses.field(default_factory=lambda: {ev.MAIN: Thread()})
    interactions: dict[str, OpenInteraction] = dataclasses.field(default_factory=dict)
    resolved: dict[str, str] = dataclasses.field(default_factory=dict)
    inputs: dict[str, OpenInput] = dataclasses.field(default_factory=dict)
    unreceived: RecentIds = dataclasses.field(default_factory=RecentIds)
    received: RecentIds = dataclasses.field(default_factory=RecentIds)
    turn_ids: RecentIds = dataclasses.field(default_factory=RecentIds)
    call_ids: RecentIds = dataclasses.field(default_factory=RecentIds)
    request_ids: RecentIds = dataclasses.field(default_factory=RecentIds)
    over: RecentIds = dataclasses.field(default_factory=RecentIds)
    block_ids: int = 0
    open_text: int = 0

    @property
    def ended(self) -> str | None:
        """Return how the session ended, None while it goes on."""
        return self.about.ended

    @property
    def archived_at(self) -> int | None:
        """Return when the session was archived, None where it is not."""
        return self.about.archived_at

    def thread(self, thread_id: str) -> Thread:
        """Return what is open in a thread; one that was not announced is empty."""
        return self.threads.get(thread_id) or Thread()

    @property
    def busy(self) -> bool:
        """Say whether any thread has an open turn."""
        for thread in self.threads.values():
            if thread.turn is not None:
                return True
        return False

    @property
    def stopping(self) -> bool:
        """Say whether an interrupt is accepted whose outcome is not known yet."""
        for input_ in self.inputs.values():
            if input_.kind == "interrupt":
                return True
        return False

    @property
    def stopped(self) -> bool:
        """Say whether the backend took an interrupt of the turn that is open."""
        turn = self.threads[ev.MAIN].turn
        return turn is not None and turn.stopped is not None

    def drops(self, request_id: str) -> bool:
        """Say whether an interaction is about to end with a turn that is being stopped."""
        turn = self.thread(ev.MAIN).turn
        named = turn is not None and turn.stopped is not None and request_id in turn.stopped
        return named or (self.busy and self.stopping)

    @property
    def status(self) -> str:
        """Return the session's state as the journal keeps it.

        One of `idle`, `running`, `paused`, `ended`, `deleted`.
        """
        if self.about.ended is not None:
            return "deleted" if self.about.ended == "deleted" else "ended"
        status = "idle"
        for thread in self.threads.values():
            if thread.turn is not None:
                if thread.turn.paused_on is None:
                    return "running"
                status = "paused"
        return status

    def request_of(self, native_id: str) -> str | None:
        """Return the open interaction that a backend names: the newest of that id."""
        for request_id, open_ in reversed(self.interactions.items()):
            if open_.native_id == native_id:
                return request_id
        return None

    def waiting_on(self, thread_id: str) -> tuple[str, ...]:
        """Return the open interactions of a thread and those shown on it, oldest first (law 6)."""
        found = []
        for request_id, open_ in self.interactions.items():
            if thread_id in (open_.event.thread_id, open_.event.shown_on):
                found.append(request_id)
        return tuple(found)

    def is_answered(self, thread_id: str | None) -> bool:
        """Say whether something is open in a thread and all of it has an answer on its way: nobody
        is waited for, so no pause names it (law 6)."""
        answered = False
        for open_ in self.interactions.values():
            if thread_id in (open_.event.thread_id, open_.event.shown_on):
                if open_.claimed_by is None:
                    return False
                answered = True
        return answered

    def snapshot(self) -> bytes:
        """Return the state as JSON."""
        for thread in self.threads.values():
            for block in (thread.text, thread.reasoning):
                if block is not None:
                    # One long text is written many times as fast as its pieces.
                    block.joined()
        return adapter_of(LogState).dump_json(self)

    @classmethod
    def restore(cls, snapshot: bytes) -> LogState:
        """Return the state that `snapshot` gave."""
        found: LogState = adapter_of(LogState).validate_json(snapshot)
        return found

    def apply_entry(self, entry: ev.Entry) -> None:
        """Take the next entry of the log.

        Raises:
            LawBroken: the entry may not come here; the state is as before.
        """
        if entry.seq != self.seq + 1:
            raise LawBroken(1, f"seq {entry.seq} follows {self.seq}")
        if entry.at < self.at:
            raise LawBroken(1, f"at {entry.at} of seq {entry.seq} is before {self.at}")
        self.apply(entry.event)
        self.seq = entry.seq
        self.at = entry.at

    def apply(self, event: ev.Event) -> None:
        """Take the next event, without its place in the log.

        Raises:
            LawBroken: the event may not come here; the state is as before.
        """
        type_ = event.TYPE
        ended = self.about.ended
        if ended is not None and not (
            isinstance(event, ev.SessionEnded) and ended != "deleted" and event.outcome == "deleted"
        ):
            raise LawBroken(8, f"`{type_}` after the session ended")
        thread = self.thread(event.thread_id)
        states, follows = TURN_TABLE[type_]
        turn = thread.turn
        state = (
            Turn.IDLE if turn is None else Turn.RUNNING if turn.paused_on is None else Turn.PAUSED
        )
        if state not in states:
            raise LawBroken(2, f"`{type_}` in thread `{event.thread_id}` whose turn is {state}")
        if turn is not None:
            if event.turn_id != turn.turn_id and (states is not _ANY or event.turn_id is not None):
                raise LawBroken(
                    2, f"`{type_}` of turn `{event.turn_id}` while `{turn.turn_id}` is open"
                )
            if turn.stale and type_ not in PAUSE_UPKEEP and states is not _ANY:
                raise LawBroken(6, f"`{type_}` before a pause that names the open interactions")
        elif event.turn_id is not None and states is _ANY:
            raise LawBroken(2, f"`{type_}` of turn `{event.turn_id}`, which is not open")
        check = _APPLY.get(type_)
        if check is not None:
            check(self, thread, event)
        self.begun = True
        self.threads[event.thread_id] = thread
        if turn is not None:
            turn.fresh = follows is Turn.PAUSED
            if follows is Turn.IDLE:
                thread.turn = None

    def extend(self, event: ev.TextDelta | ev.ReasoningDelta) -> bool:
        """Take more of a block that is open, in a turn that runs: nearly all events are that, and
        `apply` would do the same. Return False where it is something else, and take nothing."""
        values = event.__dict__
        thread = self.threads.get(values["thread_id"])
        # Where the session has ended no turn is open.
        if thread is None or (turn := thread.turn) is None:
            return False
        block = thread.text if event.TYPE == "text.delta" else thread.reasoning
        if (
            block is None
            or block.block_id != values["block_id"]
            or turn.turn_id != values["turn_id"]
            or turn.paused_on is not None
            or turn.stale
        ):
            return False
        text = values["text"]
        size = len(text)
        if block.size + size > BLOCK_TEXT or self.open_text + size > OPEN_TEXT:
            return False
        block.parts.append(text)
        block.size += size
        self.open_text += size
        turn.fresh = False
        return True

    def has_room(self, block: OpenBlock, text: str) -> bool:
        """Say whether a block may have a piece more, within `BLOCK_TEXT` and `OPEN_TEXT`."""
        size = len(text)
        return block.size + size <= BLOCK_TEXT and self.open_text + size <= OPEN_TEXT

    # One method per type that has more to it than the table.

    def _session_started(self, thread: Thread, event: ev.SessionStarted) -> None:
        if self.begun:
            raise LawBroken(1, "`session.started` is seq 1 and comes once")
        self.about.apply(event)

    def _session_updated(self, thread: Thread, event: ev.SessionUpdated) -> None:
        self.about.apply(event)

    def _session_ended(self, thread: Thread, event: ev.SessionEnded) -> None:
        if self.busy:
            raise LawBroken(2, "`session.ended` while a turn is open")
        self.about.apply(event)

    def _input_accepted(self, thread: Thread, event: ev.InputAccepted) -> None:
        if event.command_id in self.inputs:
            raise LawBroken(7, f"input `{event.command_id}` is accepted twice")
        self.inputs[event.command_id] = OpenInput(event.kind, event.trace)

    def _input_settled(self, thread: Thread, event: ev.InputSettled) -> None:
        open_ = self.inputs.get(event.command_id)
        if open_ is None:
            raise LawBroken(
                7, f"input `{event.command_id}` is settled, but was not accepted or is settled"
            )
        del self.inputs[event.command_id]
        if open_.kind in RECEIVED_KINDS and event.outcome == "taken":
            self.unreceived.add(event.command_id)
        turn = self.thread(ev.MAIN).turn
        if open_.kind == "interrupt" and event.outcome == "taken" and turn is not None:
            turn.stopped = tuple(self.interactions)

    def _message_received(self, thread: Thread, event: ev.MessageReceived) -> None:
        if event.command_id is not None:
            if event.command_id not in self.unreceived:
                raise LawBroken(
                    7, f"message of input `{event.command_id}` was not taken, or came before"
                )
            self.unreceived.discard(event.command_id)
            self.received.add(event.command_id)

    def _guidance_received(self, thread: Thread, event: ev.GuidanceReceived) -> None:
        if event.command_id is not None:
            self.unreceived.discard(event.command_id)
            self.received.add(event.command_id)

    def _turn_started(self, thread: Thread, event: ev.TurnStarted) -> None:
        if not event.turn_id or event.turn_id in self.turn_ids:
            raise LawBroken(2, f"turn id `{event.turn_id}` is missing or was used before")
        self.turn_ids.add(event.turn_id)
        thread.turn = OpenTurn(event.turn_id)

    def _turn_paused(self, thread: Thread, event: ev.TurnPaused) -> None:
        assert thread.turn is not None
        open_ = self.waiting_on(event.thread_id)
        if event.on == "input" and (set(event.request_ids) != set(open_) or not open_):
            raise LawBroken(6, f"the pause names {event.request_ids}, open are {open_}")
        if event.on != "input" and event.request_ids:
            raise LawBroken(6, f"a pause on {event.on} names no interactions")
        thread.turn.paused_on = event.on
        thread.turn.named = event.request_ids
        thread.turn.stale = False

    def _turn_resumed(self, thread: Thread, event: ev.TurnResumed) -> None:
        assert thread.turn is not None
        thread.turn.paused_on = None
        thread.turn.named = ()
        thread.turn.stale = False

    def _turn_ended(self, thread: Thread, event: ev.TurnEnded) -> None:
        if thread.text is not None or thread.reasoning is not None:
            raise LawBroken(3, "the turn ends with an open block")
        if thread.calls:
            raise LawBroken(4, f"the turn ends with open calls {list(thread.calls)}")
        open_ = [i for i, o in self.interactions.items() if o.event.thread_id == event.thread_id]
        if open_:
            raise LawBroken(5, f"the turn ends with open interactions {open_}")
        if thread.step is not None:
            raise LawBroken(2, f"the turn ends with step {thread.step} open")

    def _step_started(self, thread: Thread, event: ev.StepStarted) -> None:
        if thread.step is not None:
            raise LawBroken(2, f"step {event.step_index} starts while {thread.step} is open")
        thread.step = event.step_index
        if thread.turn is not None:
            thread.turn.last_step = max(thread.turn.last_step, event.step_index)

    def _step_ended(self, thread: Thread, event: ev.StepEnded) -> None:
        if thread.step != event.step_index:
            raise LawBroken(2, f"step {event.step_index} ends, open is {thread.step}")
        thread.step = None

    def _text_delta(self, thread: Thread, event: ev.TextDelta) -> None:
        block = thread.text
        if block is None:
            block = thread.text = OpenBlock(event.block_id, event.message_id, event.index)
            self.block_ids += 1
        elif block.block_id != event.block_id:
            raise LawBroken(3, f"text block `{event.block_id}` while `{block.block_id}` is open")
        block.add(event.text)
        self.open_text += len(event.text)

    def _text_completed(self, thread: Thread, event: ev.TextCompleted) -> None:
        block = thread.text
        if block is not None and block.block_id != event.block_id:
            raise LawBroken(3, f"text block `{event.block_id}` while `{block.block_id}` is open")
        _check_whole(block, event)
        if block is None:
            self.block_ids += 1
        else:
            self.open_text -= block.size
        thread.text = None

    def _reasoning_delta(self, thread: Thread, event: ev.ReasoningDelta) -> None:
        block = thread.reasoning
        if block is None:
            block = thread.reasoning = OpenBlock(event.block_id, event.message_id, event.index)
            self.block_ids += 1
        elif block.block_id != event.block_id:
            raise LawBroken(
                3, f"reasoning block `{event.block_id}` while `{block.block_id}` is open"
            )
        block.add(event.text)
        self.open_text += len(event.text)

    def _reasoning_completed(self, thread: Thread, event: ev.ReasoningCompleted) -> None:
        block = thread.reasoning
        if block is not None and block.block_id != event.block_id:
            raise LawBroken(
                3, f"reasoning block `{event.block_id}` while `{block.block_id}` is open"
            )
        _check_whole(block, event)
        if block is None:
            self.block_ids += 1
        else:
            self.open_text -= block.size
        thread.reasoning = None

    def _tool_called(self, thread: Thread, event: ev.ToolCalled) -> None:
        if event.call_id in self.call_ids:
            raise LawBroken(4, f"call `{event.call_id}` is made twice")
        self.call_ids.add(event.call_id)
        thread.calls[event.call_id] = None

    def _tool_progressed(self, thread: Thread, event: ev.ToolProgressed) -> None:
        if event.call_id not in thread.calls:
            raise LawBroken(4, f"progress of call `{event.call_id}`, which is not open")

    def _tool_returned(self, thread: Thread, event: ev.ToolReturned) -> None:
        if event.call_id not in thread.calls:
            raise LawBroken(4, f"result of call `{event.call_id}`, which is not open")
        del thread.calls[event.call_id]

    def _interaction_requested(self, thread: Thread, event: ev.InteractionRequested) -> None:
        if event.request_id in self.interactions or event.request_id in self.request_ids:
            raise LawBroken(5, f"interaction `{event.request_id}` is requested twice")
        self.request_ids.add(event.request_id)
        self.interactions[event.request_id] = open_ = OpenInteraction(event)
        if thread.turn is not None:
            asked = thread.turn.asked
            native = None if event.native is None else event.native.id
            asked[open_.native_id] = event.call_id, native
            if len(asked) > RECENT_IDS:
                del asked[next(iter(asked))]
        self._set_changed(event)

    def _interaction_answered(self, thread: Thread, event: ev.InteractionAnswered) -> None:
        open_ = self._open(event.request_id)
        if event.state == "claimed":
            if open_.claimed_by is not None:
                raise LawBroken(5, f"interaction `{event.request_id}` has a claim")
            open_.claimed_by = event.command_id
        else:
            if open_.claimed_by is None:
                raise LawBroken(5, f"interaction `{event.request_id}` has no claim to release")
            open_.claimed_by = None
            # Law 6: the agent took an input and now waits again.
            self._set_changed(open_.event)

    def _interaction_updated(self, thread: Thread, event: ev.InteractionUpdated) -> None:
        self._open(event.request_id)

    def _interaction_resolved(self, thread: Thread, event: ev.InteractionResolved) -> None:
        open_ = self._open(event.request_id)
        del self.interactions[event.request_id]
        self.resolved[event.request_id] = event.outcome
        if len(self.resolved) > RECENT_IDS:
            del self.resolved[next(iter(self.resolved))]
        self._set_changed(open_.event)

    def _open(self, request_id: str) -> OpenInteraction:
        open_ = self.interactions.get(request_id)
        if open_ is None:
            raise LawBroken(5, f"interaction `{request_id}` is not open")
        return open_

    def _set_changed(self, event: ev.InteractionRequested) -> None:
        for thread_id in {event.thread_id, event.shown_on}:
            thread = self.threads.get(thread_id) if thread_id is not None else None
            turn = thread.turn if thread is not None else None
            if turn is not None and turn.paused_on == "input" and not self.is_answered(thread_id):
                turn.stale = True

    def _thread_ended(self, thread: Thread, event: ev.ThreadEnded) -> None:
        if thread.turn is not None:
            raise LawBroken(2, f"thread `{event.thread_id}` ends while its turn is open")
        thread.ended = True
        self.over.add(event.thread_id)
        if len(self.threads) > 2 * RECENT_IDS:
            self._forget_threads()

    def _forget_threads(self) -> None:
        """Forget the threads that ended long ago, so that a repeated end of one is taken anew."""
        for thread_id, thread in list(self.threads.items()):
            idle = thread.turn is None and not thread.calls
            if thread.ended and idle and thread_id not in self.over and thread_id != ev.MAIN:
                del self.threads[thread_id]


def _check_whole(block: OpenBlock | None, event: ev.TextCompleted | ev.ReasoningCompleted) -> None:
    """Check law 3: the deltas are the text, or the difference is marked as a repair."""
    written = block.joined() if block is not None else ""
    if event.status != "discarded" and written != event.text and not _is_repair(event):
        raise LawBroken(
            3,
            f"block `{event.block_id}`: the deltas end in {written[-80:]!r}, "
            f"the text in {event.text[-80:]!r}",
        )


REPAIRED = "repaired"
"""The key in `extra` of a completed block whose text differs from its deltas: the text is right."""


def _is_repair(event: ev.Event) -> bool:
    return event.extra is not None and REPAIRED in event.extra


_APPLY: dict[str, Callable[[LogState, Thread, Any], None]] = {
    ev.SessionStarted.TYPE: LogState._session_started,
    ev.SessionUpdated.TYPE: LogState._session_updated,
    ev.SessionEnded.TYPE: LogState._session_ended,
    ev.InputAccepted.TYPE: LogState._input_accepted,
    ev.InputSettled.TYPE: LogState._input_settled,
    ev.MessageReceived.TYPE: LogState._message_received,
    ev.GuidanceReceived.TYPE: LogState._guidance_received,
    ev.TurnStarted.TYPE: LogState._turn_started,
    ev.TurnPaused.TYPE: LogState._turn_paused,
    ev.TurnResumed.TYPE: LogState._turn_resumed,
    ev.TurnEnded.TYPE: LogState._turn_ended,
    ev.StepStarted.TYPE: LogState._step_started,
    ev.StepEnded.TYPE: LogState._step_ended,
    ev.TextDelta.TYPE: LogState._text_delta,
    ev.TextCompleted.TYPE: LogState._text_completed,
    ev.ReasoningDelta.TYPE: LogState._reasoning_delta,
    ev.ReasoningCompleted.TYPE: LogState._reasoning_completed,
    ev.ToolCalled.TYPE: LogState._tool_called,
    ev.ToolProgressed.TYPE: LogState._tool_progressed,
    ev.ToolReturned.TYPE: LogState._tool_returned,
    ev.InteractionRequested.TYPE: LogState._interaction_requested,
    ev.InteractionAnswered.TYPE: LogState._interaction_answered,
    ev.InteractionUpdated.TYPE: LogState._interaction_updated,
    ev.InteractionResolved.TYPE: LogState._interaction_resolved,
    ev.ThreadEnded.TYPE: LogState._thread_ended,
}

SNAPSHOT_SHAPE = shape_of(
    ev.Event.state_version,
    *(LogState, SessionInfo, Thread, OpenTurn, OpenBlock, OpenInteraction, OpenInput, RecentIds),
)
"""Of the snapshots of a state: one of another shape is ignored."""
