"""Serves AG-UI: the log of a session becomes the events of its runs (`runs`).

`RUN_STARTED` is written when an input of this face is accepted, before any backend has heard of it,
under the name that the frontend gave the run; other runs get a name of ours. Its `input` has the
messages that began it, which clients add where they do not have them.

Every event has a `timestamp`, max(previous + 1, `at`): the cursor, which is its `id` as well. Ids
of messages are `msg-` and a number, so that the face knows them again in the histories that clients
send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from adapters.agui import runs, said, wire, work
from adapters.agui.state import SHAPE, Kept, State, dump, load
from adapters.agui.writer import Writer, put_custom
from adapters.model import events as ev
from adapters.model.base import Encoder, EncoderContext, Frame


class AguiEncoder(Encoder):
    """The encoder of a thread's runs; children are its subagents."""

    dialect = wire.DIALECT
    version = 1
    shape = SHAPE

    def __init__(self, context: EncoderContext) -> None:
        self._w = Writer(State(), context.session_id)

    @property
    def state(self) -> State:
        """Return what is known of the session."""
        return self._w.s

    def feed(self, entry: ev.Entry) -> list[Frame]:
        w, event = self._w, entry.event
        w.out, w.at = [], entry.at
        handler = _HANDLERS.get(event.TYPE)
        if handler is not None:
            handler(w, event)
            runs.tell_waiting(w)
            self.next_cursor = w.s.stamp + 1 if w.s.stamp else 0
        return w.out

    def snapshot(self) -> bytes:
        return dump(self._w.s)

    def restore(self, snapshot: bytes) -> None:
        self._w.s = s = load(snapshot)
        self.next_cursor = s.stamp + 1 if s.stamp else 0

    # What the face asks besides.

    def run_of(self, command_id: str) -> Kept | None:
        """Return the run that an input of this face became."""
        key = self.state.begun.get(command_id)
        return next((kept for kept in self.state.kept if kept.key == key), None)

    def start_for(self, kept: Kept, known: Sequence[str], *, modern: bool) -> int:
        """Return where the body of a run begins for a client that has messages of these ids: with
        what came behind them, if it was not there.

        A client without any of ours is given its run alone: it may hold back what it has, and what
        it has must not be streamed again. Neither is an error before a run, which clients before
        1.0 may take for its end.
        """
        first = kept.start
        before = [one for one in self.state.kept if one.start < kept.start]
        for one in reversed(before):
            if self._is_known(one, known) or (one.failed and not modern):
                return first
            if one.last > one.first or one.ids:
                first = one.start
        # None of them is known: nothing says where it is.
        return kept.start

    def start_behind(self, known: Sequence[str], *, modern: bool) -> int | None:
        """Return where that begins which others did and a client with messages of these ids lacks;
        None where it lacks nothing, or a frontend of this dialect has asked for it."""
        last = self.state.kept[-1] if self.state.kept else None
        if last is None or last.name != runs.name_of(self._w, last.key):
            return None
        return None if self._is_known(last, known) else self.start_for(last, known, modern=modern)

    def _is_known(self, kept: Kept, known: Sequence[str]) -> bool:
        """Say whether a client that has messages of these ids was there in a run, or behind it."""
        newest = max((self._number_of(name) for name in known), default=0)
        return kept.first < newest or not set(known).isdisjoint(kept.ids)

    def _number_of(self, message_id: str) -> int:
        number = message_id.removeprefix(self._w.ids)
        ours = number != message_id and number.isascii() and number.isdecimal()
        return int(number) if ours and len(number) < 16 else 0

    def has_of(self, known: Sequence[str]) -> bool:
        """Say whether some of these messages are of this session, or nothing was said in it."""
        s = self.state
        heard = {*s.heard.ids, *s.heard.again}
        return any(self.is_ours(name) or name in heard for name in known) or not s.messages

    def is_ours(self, message_id: str) -> bool:
        """Say whether a message has an id that this session gave."""
        return message_id.startswith(self._w.ids)

    def calls(self) -> dict[str, str]:
        """Return the calls that answer open requests, with those."""
        found: dict[str, str] = {}
        for name, asked in self.state.requests.items():
            if asked.call is not None:
                found.setdefault(asked.call, name)
            elif asked.ask:
                found[wire.ASK_CALL + name] = name
        return found


# The session.


def _session_started(w: Writer, event: ev.SessionStarted) -> None:
    options = event.options or {}
    chosen = options.get(wire.THREAD_OPTION)
    if isinstance(chosen, str):
        w.s.thread = chosen
    w.s.opening = said.notes_of(options.get(wire.NOTES))


def _session_updated(w: Writer, event: ev.SessionUpdated) -> None:
    told = _fields(event, "title", "archived_at", "replaced_by")
    if told:
        put_custom(w, "session", told)


def _session_ended(w: Writer, event: ev.SessionEnded) -> None:
    s = w.s
    if s.ended:
        return
    s.ended, s.batch = True, None
    s.later.clear()
    s.awaited.clear()
    s.requests.clear()
    runs.start(w)
    put_custom(w, "session", {"ended": event.outcome})
    if event.outcome == "completed" and event.error is None:
        runs.close(w)
    else:
        words = f"The session has ended: {event.outcome}."
        runs.fail(w, event.error or ev.ErrorInfo(code="session_ended", message=words))
    w.out[-1] = w.out[-1]._replace(end="session")


# Turns of the main thread.


def _turn_started(w: Writer, event: ev.TurnStarted) -> None:
    if event.thread_id == ev.MAIN:
        w.s.turn = True
        w.s.halted = w.s.paused = False
        runs.start(w)


def _turn_paused(w: Writer, event: ev.TurnPaused) -> None:
    if event.thread_id == ev.MAIN:
        runs.turn_paused(w, event)


def _turn_resumed(w: Writer, event: ev.TurnResumed) -> None:
    if event.thread_id == ev.MAIN:
        runs.resume(w)


def _turn_ended(w: Writer, event: ev.TurnEnded) -> None:
    if event.thread_id == ev.MAIN:
        runs.turn_ended(w, event)
        said.begin_later(w)


def _guidance_received(w: Writer, event: ev.GuidanceReceived) -> None:
    said.said_elsewhere(w, event.thread_id, event.text, {"kind": "guidance"})


def _thread_updated(w: Writer, event: ev.ThreadUpdated) -> None:
    child = w.s.children.get(event.thread_id)
    if child is not None and event.name is not None:
        child.name = event.name


# Requests.


def _interaction_answered(w: Writer, event: ev.InteractionAnswered) -> None:
    asked = w.s.requests.get(event.request_id)
    if asked is None:
        return
    asked.claimed = event.state == "claimed"
    if not asked.claimed:
        asked.in_vain = True
        w.s.shown = [name for name in w.s.shown if name != event.request_id]
        runs.waits(w)


def _interaction_updated(w: Writer, event: ev.InteractionUpdated) -> None:
    asked = w.s.requests.get(event.request_id)
    if asked is not None:
        details = {**(asked.event.details or {}), **event.details}
        asked.event = asked.event.model_copy(update={"details": details})


# What the protocol has no event for.


def _tool_progressed(w: Writer, event: ev.ToolProgressed) -> None:
    put_custom(w, "progress", {"toolCallId": event.call_id, "output": event.output})


def _context_compacted(w: Writer, event: ev.ContextCompacted) -> None:
    if event.phase == "completed":
        put_custom(w, "compacted", _fields(event, "before_tokens", "after_tokens", "strategy"))


def _context_cleared(w: Writer, _: ev.ContextCleared) -> None:
    put_custom(w, "cleared", {})


def _memory_updated(w: Writer, event: ev.MemoryUpdated) -> None:
    put_custom(w, "memory", event.value)


def _error_reported(w: Writer, event: ev.ErrorReported) -> None:
    put_custom(w, "error", _fields(event, "code", "message", "retry", "details"))


def _outcome_evaluated(w: Writer, event: ev.OutcomeEvaluated) -> None:
    names = ("outcome_id", "phase", "iteration", "result", "explanation")
    put_custom(w, "outcome", _fields(event, *names))


def _notice(w: Writer, event: ev.Notice) -> None:
    put_custom(w, "notice", _fields(event, "level", "text", "kind", "call_id", "details"))


def _gap(w: Writer, event: ev.Gap) -> None:
    put_custom(w, "gap", _fields(event, "reason", "cursor_from", "cursor_to"))


def _fields(event: ev.Event, *names: str) -> dict[str, Any]:
    """Return some fields of an event, those that are null left out."""
    return event.model_dump(mode="json", include=set(names), exclude_none=True)


_HANDLERS: dict[str, Callable[[Writer, Any], None]] = {
    "session.started": _session_started,
    "session.updated": _session_updated,
    "session.ended": _session_ended,
    "input.accepted": said.input_accepted,
    "input.settled": said.input_settled,
    "message.received": said.message_received,
    "guidance.received": _guidance_received,
    "turn.started": _turn_started,
    "turn.paused": _turn_paused,
    "turn.resumed": _turn_resumed,
    "turn.ended": _turn_ended,
    "step.started": work.step_started,
    "step.ended": work.step_ended,
    "text.delta": work.delta,
    "text.completed": work.text_completed,
    "reasoning.delta": work.delta,
    "reasoning.completed": work.reasoning_completed,
    "tool.called": work.tool_called,
    "tool.progressed": _tool_progressed,
    "tool.returned": work.tool_returned,
    "interaction.requested": work.requested,
    "interaction.answered": _interaction_answered,
    "interaction.updated": _interaction_updated,
    "interaction.resolved": said.resolved,
    "thread.started": work.thread_started,
    "thread.updated": _thread_updated,
    "thread.ended": work.thread_ended,
    "thread.message": work.thread_message,
    "result.produced": work.result_produced,
    "context.compacted": _context_compacted,
    "context.cleared": _context_cleared,
    "memory.updated": _memory_updated,
    "usage.reported": work.usage_reported,
    "error.reported": _error_reported,
    "outcome.evaluated": _outcome_evaluated,
    "notice": _notice,
    "gap": _gap,
}
