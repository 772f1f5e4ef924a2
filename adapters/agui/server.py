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

from pydantic import TypeAdapter

from adapters.agui import content, inputs, runs, wire
from adapters.agui.frames import RunWriter, put_custom
from adapters.agui.state import NOTES, SHAPE, RunRecord, RunState
from adapters.model import events as ev
from adapters.model.base import EncoderContext
from adapters.serving import notes, pauses
from adapters.serving.encoder import TableEncoder
from adapters.serving.ids import ids_of

_STATE: TypeAdapter[RunState] = TypeAdapter(RunState)


class AguiEncoder(TableEncoder[RunWriter, RunState]):
    """The encoder of a thread's runs; children are its subagents."""

    dialect = wire.DIALECT
    version = 1
    shape = SHAPE

    def __init__(self, context: EncoderContext) -> None:
        name = context.session_id
        writer = RunWriter(RunState(), name, ids_of(wire.MESSAGE, name))
        super().__init__(writer, _HANDLERS, _next_cursor, _STATE, runs.tell_waiting)

    # What the face asks besides.

    def run_of(self, command_id: str) -> RunRecord | None:
        """Return the run that an input of this face became."""
        key, _ = self.state.inputs.begun.get(command_id, ("", 0))
        return next((kept for kept in self.state.kept if kept.key == key), None)

    def start_for(self, kept: RunRecord, known: Sequence[str], *, modern: bool) -> int:
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
        """Return where the first run begins that a client with messages of these ids has not seen;
        None where it has seen all, or a frontend of this dialect has asked for it."""
        last = self.state.kept[-1] if self.state.kept else None
        if last is None or last.name != runs.name_of(self._w, last.key):
            return None
        return None if self._is_known(last, known) else self.start_for(last, known, modern=modern)

    def _is_known(self, kept: RunRecord, known: Sequence[str]) -> bool:
        """Say whether a client that has messages of these ids was there in a run, or behind it."""
        newest = max((self._number_of(name) for name in known), default=0)
        return kept.first < newest or not set(known).isdisjoint(kept.ids)

    def _number_of(self, message_id: str) -> int:
        number = message_id.removeprefix(self._w.ids)
        ours = number != message_id and number.isascii() and number.isdecimal()
        return int(number) if ours and len(number) < 16 else 0

    def calls(self) -> dict[str, str]:
        """Return the calls that answer open requests, with those."""
        found: dict[str, str] = {}
        for name, request in self.state.pauses.requests.items():
            if request.call is not None:
                found.setdefault(request.call, name)
            elif request.shown_in:
                found[wire.ASK_CALL + name] = name
        return found


def _next_cursor(s: RunState) -> int:
    return s.stamp + 1 if s.stamp else 0


def _session_started(w: RunWriter, event: ev.SessionStarted) -> None:
    options = event.options or {}
    chosen = options.get(wire.THREAD_OPTION)
    if isinstance(chosen, str):
        w.s.thread = chosen
    w.s.inputs.opening = NOTES.read(options.get(wire.NOTES))


def _session_ended(w: RunWriter, event: ev.SessionEnded) -> None:
    s = w.s
    if s.ended:
        return
    s.ended = True
    s.inputs.ended()
    s.pauses.requests.clear()
    runs.start(w)
    put_custom(w, "session", {"ended": event.outcome})
    if event.outcome == "completed" and event.error is None:
        runs.close(w)
    else:
        words = f"The session has ended: {event.outcome}."
        runs.fail(w, event.error or ev.ErrorInfo(code="session_ended", message=words))
    w.out[-1] = w.out[-1]._replace(end="session")


_HANDLERS: dict[str, Callable[[RunWriter, Any], object]] = {
    **notes.handlers(put_custom),
    **pauses.handlers(runs.start, runs.start, runs.waits, inputs.turn_ended),
    "session.started": _session_started,
    "session.ended": _session_ended,
    "input.accepted": inputs.input_accepted,
    "input.settled": inputs.input_settled,
    "message.received": inputs.said_elsewhere,
    "guidance.received": inputs.said_elsewhere,
    "step.started": content.step_started,
    "step.ended": content.step_ended,
    "text.delta": content.delta,
    "text.completed": content.text_completed,
    "reasoning.delta": content.delta,
    "reasoning.completed": content.reasoning_completed,
    "tool.called": content.tool_called,
    "tool.progressed": content.tool_progressed,
    "tool.returned": content.tool_returned,
    "interaction.requested": runs.requested,
    "interaction.updated": lambda w, event: w.s.pauses.updated(event),
    "interaction.resolved": runs.resolved,
    "thread.started": content.thread_started,
    "thread.updated": content.thread_updated,
    "thread.ended": content.thread_ended,
    "result.produced": content.result_produced,
    "usage.reported": content.count_tokens,
    "native": content.passed_on,
    "state.updated": content.state_updated,
    "activity.updated": content.activity_updated,
}
