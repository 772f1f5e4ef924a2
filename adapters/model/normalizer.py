"""Makes any backend's stream obey the laws, by named and counted rules.

Client codecs say what their frames mean; the normalizer sees to it that what reaches the log is
lawful: it opens turns that were not announced, closes what a turn leaves behind, adds the rest of a
text whose end was never streamed, drops what is said twice. All that it adds is marked `synthetic`.
Each rule has a name in `Rule`; `repairs` counts how often each was used. What comes for a turn that
is over goes to `late`. An event that no rule can make lawful survives as `Native`.

Why one module: a rule for each kind of event, and all read and change the one state of the log.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from adapters.model import events as ev
from adapters.model.raw import BlockEnded, CharactersRepaired, CutDelta, Delta, with_text
from adapters.model.state import (
    PAUSE_UPKEEP,
    RECEIVED_KINDS,
    RECENT_IDS,
    REPAIRED,
    TURN_TABLE,
    LawBroken,
    LogState,
    OpenBlock,
    OpenTurn,
    RecentIds,
    Thread,
    Turn,
)
from adapters.wire.jsonvalue import REPLACEMENT

E = TypeVar("E", bound=ev.Event)
Received = TypeVar("Received", ev.MessageReceived, ev.GuidanceReceived)


class Rule(enum.StrEnum):
    """The repairs, by name."""

    OPEN_TURN = "open-turn"
    SAME_TURN = "same-turn"
    END_PREVIOUS_TURN = "end-previous-turn"
    END_OPEN_TURN = "end-open-turn"
    RENAME_TURN = "rename-turn"
    OUTSIDE_TURN = "outside-turn"
    RESUME = "resume"
    PAUSE_AGAIN = "pause-again"
    PAUSE_NAMES = "pause-names"
    SAME_PAUSE = "same-pause"
    EMPTY_PAUSE = "empty-pause"
    ANSWERED_PAUSE = "answered-pause"
    LATE = "late"
    CLOSE_BLOCK = "close-block"
    LONG_BLOCK = "long-block"
    MISSING_DELTA = "missing-delta"
    HALF_CHARACTER = "half-character"
    JOINED_CHARACTER = "joined-character"
    TEXT_DIFFERS = "text-differs"
    CLOSE_STEP = "close-step"
    OPEN_STEP = "open-step"
    ABANDONED_CALL = "abandoned-call"
    RENAME_CALL = "rename-call"
    RESULT_WITHOUT_CALL = "result-without-call"
    SECOND_RESULT = "second-result"
    REPEATED_INTERACTION = "repeated-interaction"
    RENAME_INTERACTION = "rename-interaction"
    UNKNOWN_INTERACTION = "unknown-interaction"
    SECOND_CLAIM = "second-claim"
    LEFT_INTERACTION = "left-interaction"
    ECHO_SETTLES = "echo-settles"
    SECOND_SETTLEMENT = "second-settlement"
    SECOND_RECEIPT = "second-receipt"
    FOREIGN_RECEIPT = "foreign-receipt"
    SESSION_STARTED_AGAIN = "session-started-again"
    AFTER_END = "after-end"
    UNREPAIRED = "unrepaired"


ABANDONED = "abandoned"
"""The error code of a call that its turn left behind."""

END_MISSING = "turn_end_missing"
"""The error code of a turn whose end the backend never told, seen because the next one started."""

_OUTCOME_OF_THREAD = {"completed": "completed", "failed": "failed", "cancelled": "interrupted"}


class Normalizer:
    """Repairs the events of one session. `state` is the fold of what it let through."""

    def __init__(
        self, state: LogState | None = None, *, totals: collections.Counter[Rule] | None = None
    ) -> None:
        """Begin after what `state` is the fold of. `totals` counts for others too."""
        self.state = state if state is not None else LogState()
        self.repairs: collections.Counter[Rule] = collections.Counter()
        self._totals = totals if totals is not None else collections.Counter()
        self.late: list[ev.Event] = []
        self._out: list[ev.Event] = []
        self._asked = False
        self._released: set[str | None] = set()
        # Deltas that ended inside of a character: its first half, and the delta that it is if the
        # other one does not come.
        self._halves: dict[_Place, tuple[int, Delta]] = {}

    def feed(self, events: Iterable[ev.Event]) -> list[ev.Event]:
        """Take the raw events of one frame in order, return the lawful ones that they become."""
        out = self._out = []
        for event in events:
            if self._halves:
                event = self._after_half(event)
            type_ = event.TYPE
            if type_ in ev.DELTAS and self.state.extend(event):  # type: ignore[arg-type]
                out.append(event)
                continue
            rule = _RULES.get(type_)
            try:
                if self.state.about.ended is not None and type_ != "session.ended":
                    self._drop(Rule.AFTER_END, event)
                elif rule is not None:
                    rule(self, event)
                else:
                    self._pass(self._anywhere(event))
            except LawBroken as broken:
                self._keep(event, broken)
        if self._asked:
            self._pause_again()
        # Drop the reference: an idle session must not keep its last batch alive.
        self._out = []
        return out

    # What rules are made of.

    def _pass(self, event: ev.Event) -> None:
        self.state.apply(event)
        self._out.append(event)

    def _count(self, rule: Rule) -> None:
        self.repairs[rule] += 1
        self._totals[rule] += 1

    def _add(self, rule: Rule, event: ev.Event) -> None:
        self._count(rule)
        self._pass(event)

    def _drop(self, rule: Rule, event: ev.Event) -> None:
        self._count(rule)
        self.late.append(event)
        # Enough to look at, and not enough to fill memory, though each may have a megabyte.
        del self.late[:-128]

    def _keep(self, event: ev.Event, broken: LawBroken) -> None:
        self._count(Rule.UNREPAIRED)
        dialect = event.native.dialect if event.native is not None else "canonical"
        if self.state.ended is None:
            self._pass(
                ev.Native(
                    thread_id=event.thread_id,
                    dialect=dialect,
                    name=event.TYPE,
                    frame=event.model_dump(mode="json", exclude_defaults=True),
                    native=event.native,
                    synthetic=True,
                    extra={"reason": str(broken)},
                )
            )

    # Characters that were cut.

    def _cut_delta(self, event: CutDelta) -> None:
        """Join the halves of a character that stand in two deltas."""
        delta, before = event.delta, event.before
        place = _place_of(delta)
        first, _ = self._halves.pop(place, (None, None))
        text = delta.text
        if first is not None and before is not None:
            self._count(Rule.JOINED_CHARACTER)
            text = _character(first, before) + text
        elif first is not None or before is not None:
            text = REPLACEMENT + text
        if event.after is not None:
            self._halves[place] = event.after, with_text(delta, REPLACEMENT)
        if text or event.after is None:
            self._write(with_text(delta, text))

    def _after_half(self, event: ev.Event) -> ev.Event:
        """Write U+FFFD where an event shows that the other half of a character does not come."""
        if event.TYPE in _BESIDE:
            return event
        delta = event.delta if isinstance(event, CutDelta) else event
        here = _place_of(delta) if isinstance(delta, Delta) else None
        for place in list(self._halves):
            thread_id, type_, block = place
            if thread_id != event.thread_id and event.TYPE != "session.ended":
                continue
            if here is not None and (place == here or here[1] != type_ or here[1] in _MANY):
                # Blocks that are open beside each other.
                continue
            _, rest = self._halves.pop(place)
            whole = type_.replace("delta", "completed") == event.TYPE
            if not (whole and getattr(event, "block_id", None) == block):
                # The whole text has what it ends with.
                self._write(rest)
        if isinstance(event, Delta) and here is not None and here in self._halves:
            del self._halves[here]
            return with_text(event, REPLACEMENT + event.text)
        return event

    def _write(self, delta: Delta) -> None:
        """Take a delta that is made of what codecs said."""
        if not isinstance(delta, ev.ToolInputDelta) and self.state.extend(delta):
            self._out.append(delta)
            return
        try:
            _RULES[delta.TYPE](self, delta)
        except LawBroken as broken:
            self._keep(delta, broken)

    def _mended(self, event: CharactersRepaired) -> None:
        self._count(Rule.HALF_CHARACTER)

    def _in_turn(self, event: E) -> E | None:
        """Make the event one of the open turn, or return None when it is late.

        Opens, resumes or replaces the turn as needed.
        """
        thread = self.state.thread(event.thread_id)
        turn = thread.turn
        if turn is None or event.turn_id != turn.turn_id:
            if turn is None or not _is_of(event.turn_id, turn):
                if event.turn_id and event.turn_id in self.state.turn_ids:
                    self._drop(Rule.LATE, event)
                    return None
                if turn is not None:
                    self._end_previous(event)
                self._add(
                    Rule.OPEN_TURN,
                    ev.TurnStarted(
                        thread_id=event.thread_id,
                        turn_id=event.turn_id or self._turn_id(event.thread_id),
                        cause="unknown",
                        synthetic=True,
                    ),
                )
                turn = self.state.thread(event.thread_id).turn
                assert turn is not None
            if event.turn_id != turn.turn_id:
                event = event.model_copy(update={"turn_id": turn.turn_id})
        if turn.paused_on is not None:
            if Turn.PAUSED not in TURN_TABLE[event.TYPE][0]:
                self._resume(event)
            elif turn.stale and event.TYPE not in PAUSE_UPKEEP:
                self._pause_again()
                if turn.stale:
                    # Nothing is left to wait for.
                    self._resume(event)
        return event

    def _resume(self, event: ev.Event) -> None:
        self._add(
            Rule.RESUME,
            ev.TurnResumed(thread_id=event.thread_id, turn_id=event.turn_id, synthetic=True),
        )

    def _anywhere(self, event: Any) -> Any:
        """Make an event that may stand outside of turns name the open turn or none."""
        if event.turn_id is None:
            return event
        thread = self.state.threads.get(event.thread_id)
        turn = thread.turn if thread is not None else None
        if turn is not None and event.turn_id == turn.turn_id:
            return event
        turn_id = turn.turn_id if turn is not None and _is_of(event.turn_id, turn) else None
        if turn_id is None and event.turn_id:
            self._count(Rule.OUTSIDE_TURN)
        return event.model_copy(update={"turn_id": turn_id})

    def _turn_id(self, thread_id: str) -> str:
        prefix = "turn" if thread_id == ev.MAIN else f"turn-{thread_id}"
        number = self.state.turn_ids.total
        while (turn_id := f"{prefix}-{number}") in self.state.turn_ids:
            number += 1
        return turn_id

    def _end_previous(self, event: ev.Event) -> None:
        self._count(Rule.END_PREVIOUS_TURN)
        self._turn_ended(
            ev.TurnEnded(
                thread_id=event.thread_id,
                outcome="failed",
                error=ev.ErrorInfo(
                    code=END_MISSING, message="The backend started a turn without ending this one."
                ),
                synthetic=True,
            )
        )

    def _settle(self, event: ev.TurnEnded, thread: Thread) -> None:
        """Close all that an ending turn leaves behind, in the order in which readers need it."""
        thread_id, turn_id = event.thread_id, event.turn_id
        status: ev.BlockStatus = "complete" if event.outcome == "completed" else "partial"
        for block, make in (
            (thread.reasoning, ev.ReasoningCompleted),
            (thread.text, ev.TextCompleted),
        ):
            if block is not None:
                self._add(Rule.CLOSE_BLOCK, _completed(make, thread_id, turn_id, block, status))
        # One for all: there may be hundreds, and they are closed in one step.
        why = ev.ErrorInfo(code=ABANDONED, message="The turn ended before the tool returned.")
        for call_id in list(thread.calls):
            self._add(
                Rule.ABANDONED_CALL,
                ev.ToolReturned(
                    thread_id=thread_id,
                    turn_id=turn_id,
                    call_id=call_id,
                    is_error=True,
                    status="interrupted",
                    error=why,
                    synthetic=True,
                ),
            )
        if thread.step is not None:
            self._add(
                Rule.CLOSE_STEP,
                ev.StepEnded(
                    thread_id=thread_id,
                    turn_id=turn_id,
                    step_index=thread.step,
                    error=event.error,
                    synthetic=True,
                ),
            )
        for request_id, open_ in list(self.state.interactions.items()):
            if open_.event.thread_id == thread_id:
                self._asked = True
                self._add(
                    Rule.LEFT_INTERACTION,
                    ev.InteractionResolved(
                        thread_id=thread_id,
                        turn_id=turn_id,
                        request_id=request_id,
                        outcome="cancelled" if event.outcome == "interrupted" else "withdrawn",
                        synthetic=True,
                    ),
                )

    def _pause_again(self) -> None:
        """Name what a paused turn waits for now, where the source leaves that to us (law 6)."""
        self._asked = False
        released, self._released = self._released, set()
        for thread_id, thread in self.state.threads.items():
            turn = thread.turn
            if turn is None or not (turn.stale or (thread_id in released and _rests(thread))):
                continue
            left = self.state.waiting_on(thread_id)
            if left:
                self._add(
                    Rule.PAUSE_AGAIN,
                    ev.TurnPaused(
                        thread_id=thread_id,
                        turn_id=turn.turn_id,
                        on="input",
                        request_ids=left,
                        synthetic=True,
                    ),
                )

    # The rules, by event type.

    def _session_started(self, event: ev.SessionStarted) -> None:
        event = self._anywhere(event)
        if not self.state.begun:
            self._pass(event)
            return
        self._add(
            Rule.SESSION_STARTED_AGAIN,
            ev.SessionUpdated(
                thread_id=event.thread_id,
                agent=event.agent,
                title=event.title,
                metadata=event.metadata,
                options=event.options,
                native=event.native,
                extra=event.extra,
            ),
        )

    def _session_ended(self, event: ev.SessionEnded) -> None:
        if self.state.ended is not None:
            if event.outcome == "deleted" and self.state.ended != "deleted":
                self._pass(self._anywhere(event))
            else:
                self._drop(Rule.AFTER_END, event)
            return
        for thread_id, thread in list(self.state.threads.items()):
            if thread.turn is not None:
                failed = event.outcome == "failed"
                self._end_open(thread_id, "failed" if failed else "interrupted", event.error)
        self._pass(self._anywhere(event))

    def _thread_ended(self, event: ev.ThreadEnded) -> None:
        thread = self.state.thread(event.thread_id)
        if thread.ended and thread.turn is None:
            self._drop(Rule.LATE, event)
            return
        if thread.turn is not None:
            self._end_open(event.thread_id, _OUTCOME_OF_THREAD[event.status], event.error)
        self._pass(self._anywhere(event))

    def _end_open(self, thread_id: str, outcome: Any, error: ev.ErrorInfo | None) -> None:
        self._count(Rule.END_OPEN_TURN)
        self._turn_ended(
            ev.TurnEnded(thread_id=thread_id, outcome=outcome, error=error, synthetic=True)
        )

    def _turn_started(self, event: ev.TurnStarted) -> None:
        thread = self.state.thread(event.thread_id)
        turn = thread.turn
        if turn is not None:
            if _is_of(event.turn_id, turn):
                self._count(Rule.SAME_TURN)
                return
            self._end_previous(event)
        if not event.turn_id:
            event = event.model_copy(update={"turn_id": self._turn_id(event.thread_id)})
        elif event.turn_id in self.state.turn_ids:
            self._count(Rule.RENAME_TURN)
            ours = _unused(event.turn_id, self.state.turn_ids)
            event = event.model_copy(update={"turn_id": ours})
        self._pass(event)

    def _turn_paused(self, event: ev.TurnPaused) -> None:
        open_: tuple[str, ...] = ()
        if event.on == "input":
            open_ = self.state.waiting_on(event.thread_id)
            if not open_:
                self._drop(Rule.EMPTY_PAUSE, event)
                return
            if self.state.is_answered(event.thread_id):
                # Between two answers that came at once: a release says it after all.
                self._count(Rule.ANSWERED_PAUSE)
                return
        if (placed := self._in_turn(event)) is None:
            return
        event = placed
        turn = self.state.threads[event.thread_id].turn
        assert turn is not None
        if set(event.request_ids) != set(open_):
            if {self._request_id(name) for name in event.request_ids} - set(open_):
                self._count(Rule.PAUSE_NAMES)
            event = event.model_copy(update={"request_ids": open_})
        if turn.fresh and turn.paused_on == event.on and set(turn.named) == set(open_):
            self._count(Rule.SAME_PAUSE)
            return
        self._pass(event)

    def _turn_resumed(self, event: ev.TurnResumed) -> None:
        thread = self.state.thread(event.thread_id)
        if thread.state is not Turn.PAUSED:
            # Working already: nothing to say.
            self._count(Rule.RESUME)
            return
        resumed = self._in_turn(event)
        if resumed is not None and thread.state is Turn.PAUSED:
            self._pass(resumed)

    def _turn_ended(self, event: ev.TurnEnded) -> None:
        thread = self.state.thread(event.thread_id)
        turn = thread.turn
        if turn is None or not _is_of(event.turn_id, turn):
            known = self.state.turn_ids
            if event.turn_id in known if event.turn_id else known:
                # The end of a turn that has ended, or of none.
                self._drop(Rule.LATE, event)
                return
            placed = self._in_turn(event)
            assert placed is not None
            event = placed
            thread = self.state.thread(event.thread_id)
            turn = thread.turn
            assert turn is not None
        if event.turn_id != turn.turn_id:
            event = event.model_copy(update={"turn_id": turn.turn_id})
        self._settle(event, thread)
        self._pass(event)

    def _step_started(self, event: ev.StepStarted) -> None:
        if (placed := self._in_turn(event)) is None:
            return
        event = placed
        thread = self.state.thread(event.thread_id)
        if thread.step is not None:
            self._close_step(event, thread.step)
        self._pass(event)

    def _close_step(self, event: ev.Event, step: int) -> None:
        self._add(
            Rule.CLOSE_STEP,
            ev.StepEnded(
                thread_id=event.thread_id, turn_id=event.turn_id, step_index=step, synthetic=True
            ),
        )

    def _step_ended(self, event: ev.StepEnded) -> None:
        if (placed := self._in_turn(event)) is None:
            return
        event = placed
        thread = self.state.thread(event.thread_id)
        assert thread.turn is not None
        if thread.step != event.step_index:
            if event.step_index <= thread.turn.last_step or thread.state is Turn.PAUSED:
                self._drop(Rule.LATE, event)
                return
            if thread.step is not None:
                self._close_step(event, thread.step)
            self._add(
                Rule.OPEN_STEP,
                ev.StepStarted(
                    thread_id=event.thread_id,
                    turn_id=event.turn_id,
                    step_index=event.step_index,
                    synthetic=True,
                ),
            )
        self._pass(event)

    def _delta(self, event: Any) -> None:
        event = self._in_turn(event)
        if event is None:
            return
        thread = self.state.threads[event.thread_id]
        block = thread.text if event.TYPE == "text.delta" else thread.reasoning
        if block is not None and _goes_on(event, block):
            event = event.model_copy(update={"block_id": block.block_id})
        if block is not None and block.block_id == event.block_id:
            if not self.state.has_room(block, event.text):
                self._close_block(Rule.LONG_BLOCK, event, block)
                event = event.model_copy(update={"block_id": _next_id(block.block_id)})
        elif block is not None:
            self._close_block(Rule.CLOSE_BLOCK, event, block)
        self._pass(event)

    def _close_block(self, rule: Rule, event: Any, block: OpenBlock) -> None:
        is_text = event.TYPE in ("text.delta", "text.completed")
        make = ev.TextCompleted if is_text else ev.ReasoningCompleted
        self._add(rule, _completed(make, event.thread_id, event.turn_id, block, "complete"))

    def _completed(self, event: Any) -> None:
        event = self._in_turn(event)
        if event is None:
            return
        thread = self.state.threads[event.thread_id]
        is_text = event.TYPE == "text.completed"
        block = thread.text if is_text else thread.reasoning
        if block is not None and _goes_on(event, block):
            # What was too long for one block: the rest of it is what this one has.
            whole = block.joined()
            event = event.model_copy(update={"block_id": block.block_id, "text": whole})
        if block is not None and block.block_id != event.block_id:
            self._close_block(Rule.CLOSE_BLOCK, event, block)
            block = None
        written = block.joined() if block is not None else ""
        if event.status != "discarded" and event.text != written:
            if event.text.startswith(written):
                if thread.state is Turn.PAUSED:
                    self._resume(event)
                make_delta = ev.TextDelta if is_text else ev.ReasoningDelta
                self._add(
                    Rule.MISSING_DELTA,
                    make_delta(
                        thread_id=event.thread_id,
                        turn_id=event.turn_id,
                        block_id=event.block_id,
                        message_id=event.message_id,
                        index=event.index,
                        text=event.text[len(written) :],
                        native=event.native,
                        synthetic=True,
                    ),
                )
            else:
                self._count(Rule.TEXT_DIFFERS)
                event = event.model_copy(update={"extra": {**(event.extra or {}), REPAIRED: True}})
        self._pass(event)

    def _block_ended(self, event: BlockEnded) -> None:
        thread = self.state.thread(event.thread_id)
        turn = thread.turn
        if turn is None or not _is_of(event.turn_id, turn):
            self._drop(Rule.LATE, event)
            return
        is_text = event.block == "text"
        block = thread.text if is_text else thread.reasoning
        if block is None:
            return
        make = ev.TextCompleted if is_text else ev.ReasoningCompleted
        completed = _completed(make, event.thread_id, turn.turn_id, block, event.status)
        fields: dict[str, Any] = {
            "native": event.native,
            "extra": event.extra,
            "synthetic": event.synthetic,
        }
        if is_text:
            fields["finish_reason"] = event.finish_reason
        self._pass(completed.model_copy(update=fields))

    def _work(self, event: ev.Event) -> None:
        """Take an event of a turn that needs nothing but its turn."""
        placed = self._in_turn(event)
        if placed is not None:
            self._pass(placed)

    def _tool_called(self, event: ev.ToolCalled) -> None:
        if (placed := self._in_turn(event)) is None:
            return
        event = placed
        if event.call_id in self.state.call_ids:
            self._count(Rule.RENAME_CALL)
            ours = _unused(event.call_id, self.state.call_ids)
            event = event.model_copy(update={"call_id": ours})
        self._pass(event)

    def _call_id(self, thread: Thread, call_id: str) -> str | None:
        """Return our id of the open call that the backend names, or None."""
        if call_id in thread.calls:
            return call_id
        for known in reversed(thread.calls):
            if known.rpartition("~")[0] == call_id:
                return known
        return None

    def _tool_progressed(self, event: ev.ToolProgressed) -> None:
        call_id = self._call_id(self.state.thread(event.thread_id), event.call_id)
        if call_id is None:
            self._drop(Rule.LATE, event)
            return
        if (placed := self._in_turn(event)) is None:
            return
        event = placed
        if call_id not in self.state.threads[event.thread_id].calls:
            self._drop(Rule.LATE, event)
            return
        self._pass(
            event if call_id == event.call_id else event.model_copy(update={"call_id": call_id})
        )

    def _tool_returned(self, event: ev.ToolReturned) -> None:
        thread = self.state.thread(event.thread_id)
        if self._call_id(thread, event.call_id) is None and event.call_id in self.state.call_ids:
            self._drop(Rule.SECOND_RESULT, event)
            return
        if (placed := self._in_turn(event)) is None:
            return
        event = placed
        # Looked up again: the turn that had the call may just have been ended by this event.
        thread = self.state.thread(event.thread_id)
        call_id = self._call_id(thread, event.call_id)
        if call_id is None:
            if event.call_id in self.state.call_ids:
                self._drop(Rule.SECOND_RESULT, event)
                return
            if thread.state is Turn.PAUSED:
                self._resume(event)
            self._add(
                Rule.RESULT_WITHOUT_CALL,
                ev.ToolCalled(
                    thread_id=event.thread_id,
                    turn_id=event.turn_id,
                    call_id=event.call_id,
                    name=_name_of(event),
                    input=event.input,
                    input_known=event.input is not None,
                    permission="allow",
                    native=event.native,
                    synthetic=True,
                ),
            )
        elif call_id != event.call_id:
            event = event.model_copy(update={"call_id": call_id})
        self._pass(event)

    def _interaction_requested(self, event: ev.InteractionRequested) -> None:
        state, native_id = self.state, event.request_id
        turn = state.thread(event.thread_id).turn
        if state.request_of(native_id) is not None and (
            turn is None or _is_of(event.turn_id, turn)
        ):
            self._drop(Rule.REPEATED_INTERACTION, event)
            return
        if (placed := self._in_turn(event)) is None:
            return
        event = placed
        if event.call_id is not None:
            call_id = self._call_id(state.thread(event.thread_id), event.call_id)
            if call_id is not None and call_id != event.call_id:
                event = event.model_copy(update={"call_id": call_id})
        if self._was_asked(event):
            self._drop(Rule.REPEATED_INTERACTION, event)
            return
        if native_id in state.interactions or native_id in state.request_ids:
            self._count(Rule.RENAME_INTERACTION)
            ours = _unused(native_id, state.request_ids)
            event = event.model_copy(update={"request_id": ours, "native_id": native_id})
        elif event.native_id is not None:
            # A log that is played again: its names are those of the backend there.
            event = event.model_copy(update={"native_id": None})
        self._asked = True
        self._pass(event)

    def _was_asked(self, event: ev.InteractionRequested) -> bool:
        """Say whether a request is one of a turn that is open, told again. In a later turn, about
        another call, or by another event of the backend's it is a new one."""
        if self.state.request_of(event.request_id) is not None:
            return True
        native = None if event.native is None else event.native.id
        for thread in self.state.threads.values():
            if thread.turn is not None and event.request_id in thread.turn.asked:
                call_id, told_by = thread.turn.asked[event.request_id]
                other_call = event.call_id is not None and event.call_id != call_id
                other_event = None not in (native, told_by) and native != told_by
                return not (other_call or other_event)
        return False

    def _request_id(self, request_id: str) -> str:
        """Return our id of the open request that is named: by our id, or by the backend's."""
        if request_id in self.state.interactions:
            return request_id
        return self.state.request_of(request_id) or request_id

    def _input_accepted(self, event: ev.InputAccepted) -> None:
        event = self._anywhere(event)
        if event.request_id is not None:
            request_id = self._request_id(event.request_id)
            if request_id != event.request_id:
                event = event.model_copy(update={"request_id": request_id})
        self._pass(event)

    def _interaction_follow_up(self, event: Any) -> None:
        request_id = self._request_id(event.request_id)
        if request_id != event.request_id:
            event = event.model_copy(update={"request_id": request_id})
        open_ = self.state.interactions.get(request_id)
        if open_ is None:
            self._drop(Rule.UNKNOWN_INTERACTION, event)
            return
        if event.TYPE == "interaction.answered" and (
            (event.state == "claimed") is (open_.claimed_by is not None)
        ):
            # A claim on what is claimed, or the release of what is free.
            self._drop(Rule.SECOND_CLAIM, event)
            return
        self._asked = True
        self._pass(self._anywhere(event))
        if event.TYPE == "interaction.answered" and event.state == "released":
            # What was not shown as a pause, for it had its answer, is one now.
            self._released |= {open_.event.thread_id, open_.event.shown_on}

    def _input_settled(self, event: ev.InputSettled) -> None:
        if event.command_id not in self.state.inputs:
            self._drop(Rule.SECOND_SETTLEMENT, event)
            return
        self._pass(self._anywhere(event))

    def _message_received(self, event: ev.MessageReceived) -> None:
        if (received := self._received(event)) is None:
            return
        event = received
        turn = self.state.thread(event.thread_id).turn
        over = event.turn_id in self.state.turn_ids and (
            turn is None or not _is_of(event.turn_id, turn)
        )
        # Words of a person are never late: they stand outside of turns then.
        if over or not event.turn_id:
            self._pass(self._anywhere(event))
        else:
            self._work(event)

    def _guidance_received(self, event: ev.GuidanceReceived) -> None:
        received = self._received(event)
        if received is not None:
            self._work(received)

    def _received(self, event: Received) -> Received | None:
        """Bring an input and its receipt into order (law 7); None for a second receipt."""
        command_id = event.command_id
        if command_id is None or command_id in self.state.unreceived:
            return event
        if command_id in self.state.received:
            self._drop(Rule.SECOND_RECEIPT, event)
            return None
        input_ = self.state.inputs.get(command_id)
        if input_ is not None:
            # The echo came before the answer to our request: it proves that the input was taken.
            self._add(
                Rule.ECHO_SETTLES,
                ev.InputSettled(
                    thread_id=event.thread_id,
                    command_id=command_id,
                    outcome="taken",
                    synthetic=True,
                ),
            )
            if input_.kind in RECEIVED_KINDS:
                return event
        # Said, but not by an input that is known as a message: the words stay.
        self._count(Rule.FOREIGN_RECEIPT)
        return event.model_copy(update={"command_id": None})


_Place = tuple[str, str, str]
"""The thread, type and block of deltas that go on with each other."""

_MANY = frozenset({ev.ToolInputDelta.TYPE})
"""Types of deltas that have several blocks open at once."""

_BESIDE = frozenset(
    {
        *("raw.mended", "native", "notice", "error.reported", "usage.reported", "tool.progressed"),
        *("input.accepted", "input.settled", "session.updated", "memory.updated"),
        *("state.updated", "activity.updated"),
    }
)
"""Types of events that may stand between the deltas of one block."""


def _place_of(delta: Delta) -> _Place:
    block = delta.call_id if isinstance(delta, ev.ToolInputDelta) else delta.block_id
    return delta.thread_id, delta.TYPE, block


def _character(high: int, low: int) -> str:
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))


def _is_of(turn_id: str | None, turn: OpenTurn) -> bool:
    """Say whether the backend means the open turn: by its id, before we changed it, or by none."""
    return not turn_id or turn_id == turn.turn_id or turn_id == turn.turn_id.rpartition("~")[0]


def _goes_on(event: Any, block: OpenBlock) -> bool:
    """Say whether a backend means by its block the open one, in which a longer one goes on."""
    return bool(block.block_id.rpartition("~")[0] == event.block_id)


def _next_id(block_id: str) -> str:
    """Return the id of the block in which one goes on that is too long."""
    native, _, number = block_id.rpartition("~")
    goes_on = native and number.isascii() and number.isdigit()
    return f"{native}~{int(number) + 1}" if goes_on else f"{block_id}~2"


def _rests(thread: Thread) -> bool:
    """Say whether a turn that is not paused shows no work either."""
    return (
        thread.state is Turn.RUNNING
        and thread.step is None
        and thread.text is None
        and thread.reasoning is None
    )


def _unused(native: str, used: RecentIds) -> str:
    """Return our id for a native one that was used before; what is before `~` is the native id."""
    # Beyond what is remembered, a number that no forgotten one had.
    number = 2 if used.total <= RECENT_IDS else used.total
    while f"{native}~{number}" in used:
        number += 1
    return f"{native}~{number}"


def _name_of(event: ev.ToolReturned) -> str:
    name = (event.extra or {}).get("name")
    return name if isinstance(name, str) and name else "unknown"


def _completed(
    make: Any, thread_id: str, turn_id: str | None, block: OpenBlock, status: ev.BlockStatus
) -> Any:
    return make(
        thread_id=thread_id,
        turn_id=turn_id,
        block_id=block.block_id,
        message_id=block.message_id,
        index=block.index,
        text=block.joined(),
        status=status,
        synthetic=True,
    )


_RULES: dict[str, Callable[[Normalizer, Any], None]] = {
    "session.started": Normalizer._session_started,
    "session.ended": Normalizer._session_ended,
    "thread.ended": Normalizer._thread_ended,
    "turn.started": Normalizer._turn_started,
    "turn.paused": Normalizer._turn_paused,
    "turn.resumed": Normalizer._turn_resumed,
    "turn.ended": Normalizer._turn_ended,
    "step.started": Normalizer._step_started,
    "step.ended": Normalizer._step_ended,
    "text.delta": Normalizer._delta,
    "text.completed": Normalizer._completed,
    "reasoning.delta": Normalizer._delta,
    "reasoning.completed": Normalizer._completed,
    "raw.block_ended": Normalizer._block_ended,
    "raw.cut_delta": Normalizer._cut_delta,
    "raw.mended": Normalizer._mended,
    "tool.input_delta": Normalizer._work,
    "tool.called": Normalizer._tool_called,
    "tool.progressed": Normalizer._tool_progressed,
    "tool.returned": Normalizer._tool_returned,
    "result.produced": Normalizer._work,
    "guidance.received": Normalizer._guidance_received,
    "interaction.requested": Normalizer._interaction_requested,
    "input.accepted": Normalizer._input_accepted,
    "interaction.answered": Normalizer._interaction_follow_up,
    "interaction.updated": Normalizer._interaction_follow_up,
    "interaction.resolved": Normalizer._interaction_follow_up,
    "input.settled": Normalizer._input_settled,
    "message.received": Normalizer._message_received,
}
