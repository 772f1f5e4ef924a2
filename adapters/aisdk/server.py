"""Serves AI SDK UI: the log of a session becomes the streams of its messages (`streams`).

`start` is written when an input of this face is accepted, before any backend has heard of it.

Every frame has its cursor as `id`, which clients ignore.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from adapters.aisdk import asked, said, streams, wire, work
from adapters.aisdk.state import SHAPE, Kept, State, dump, load
from adapters.aisdk.writer import Writer, put_data
from adapters.model import events as ev
from adapters.model.base import Encoder, EncoderContext, Frame


class AisdkEncoder(Encoder):
    """The encoder of a chat's messages."""

    dialect = wire.DIALECT
    version = 1
    shape = SHAPE

    def __init__(self, context: EncoderContext) -> None:
        old = context.settings.get(wire.RELEASE) == wire.OLD
        ask_tool = str(context.settings.get(wire.ASK_TOOL, wire.ASK))
        self._w = Writer(State(), context.session_id, old=old, ask_tool=ask_tool)

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
            streams.tell_waiting(w)
            self.next_cursor = w.s.cursor
        return w.out

    def snapshot(self) -> bytes:
        return dump(self._w.s)

    def restore(self, snapshot: bytes) -> None:
        self._w.s = s = load(snapshot)
        self.next_cursor = s.cursor

    # What the face asks besides.

    def stream_of(self, command_id: str) -> tuple[Kept, int] | None:
        """Return the stream that an input of this face became, and where it begins there."""
        key, cursor = self.state.begun.get(command_id, ("", 0))
        kept = next((kept for kept in self.state.kept if kept.key == key), None)
        return None if kept is None else (kept, cursor)

    def lacking(self, message: str | None, steps: int) -> Kept | None:
        """Return the first stream with a step that a page lacks of a message of which it shows so
        many steps."""
        return next(
            (
                one
                for one in self.state.kept
                if one.message == message and 0 < one.steps >= steps and self.steps_of(one)
            ),
            None,
        )

    def steps_of(self, kept: Kept) -> int:
        """Return how many steps a stream has."""
        streams_ = [one for one in self.state.kept if one.message == kept.message]
        later = streams_[streams_.index(kept) + 1 :]
        if later:
            return later[0].steps - kept.steps
        # The last one of a message that is over goes to its end, wherever that is.
        return self.state.steps - kept.steps if kept.message == self.state.message else 1

    def after(self, request_id: str) -> Kept | None:
        """Return the stream that came after the one in which a request was told that is over."""
        key = self.state.after.get(request_id)
        kept = self.state.kept
        places = [place for place, one in enumerate(kept) if one.key == key]
        if not places or places[0] + 1 >= len(kept):
            return None
        found = kept[places[0] + 1]
        return found if found.message == kept[places[0]].message else None

    def end_of(self, message: str) -> int:
        """Return the cursor behind all that is written of a message."""
        tails = [one.tail for one in self.state.kept if one.message == message]
        return self.next_cursor if tails[-1] is None else tails[-1] + 1

    @property
    def running(self) -> Kept | None:
        """Return the stream that is open."""
        return self.state.kept[-1] if self.state.stream is not None else None

    @property
    def shows_more(self) -> bool:
        """Say whether the last message has something for a page that comes back: a stream that is
        open, or what others went on with."""
        s = self.state
        if s.stream is not None:
            return True
        return bool(s.kept) and not s.ended and not s.kept[-1].own

    @property
    def asks(self) -> bool:
        """Say whether something is asked, and was told."""
        return any(one.stream for one in self.state.requests.values())

    def omitted(self) -> frozenset[int]:
        """Return the frames of the last message that say nothing to a page which reads it from its
        begin: where earlier streams end and later ones begin, and what is asked no more."""
        s = self.state
        streams_ = [one for one in s.kept if one.message == s.message]
        starts = [one.start for one in streams_[1:]]
        tails = [one.tail for one in streams_[:-1] if one.tail is not None]
        return frozenset((*starts, *tails, *s.gone))

    def message_of(self, request_id: str) -> str | None:
        """Return the message in which a request was told."""
        one = self.state.requests.get(request_id)
        streams_ = [kept for kept in self.state.kept if one is not None and kept.key == one.stream]
        return streams_[0].message if streams_ else None

    def approvals(self) -> dict[str, str]:
        """Return the calls that wait for an approval, with the requests: a page may end such a call
        by itself."""
        return {
            one.call: name
            for name, one in self.state.requests.items()
            if one.call is not None and one.event.kind == "approval"
        }

    def has_of(self, known: Sequence[str]) -> bool:
        """Say whether some of these messages are of this session, or nothing was said in it."""
        s = self.state
        heard = {*s.heard.ids, *s.heard.again}
        ours = any(name.startswith(self._w.ids) or name in heard for name in known)
        return ours or not s.messages

    def calls(self) -> dict[str, str]:
        """Return the calls whose output answers an open request, with those."""
        return {
            one.call: name
            for name, one in self.state.requests.items()
            if one.call is not None and (self._w.old or one.event.kind != "approval")
        }


# The session.


def _session_started(w: Writer, event: ev.SessionStarted) -> None:
    w.s.opening = said.notes_of((event.options or {}).get(wire.NOTES))


def _session_updated(w: Writer, event: ev.SessionUpdated) -> None:
    told = _fields(event, "title", "archived_at", "replaced_by")
    if told:
        put_data(w, "session", told, key="session")


def _session_ended(w: Writer, event: ev.SessionEnded) -> None:
    s = w.s
    if s.ended:
        return
    s.ended, s.batch = True, None
    s.later.clear()
    s.awaited.clear()
    s.requests.clear()
    if s.stream is None:
        # A comment: nobody reads, and whose stream is over has nothing more to hear.
        w.frame(b": the session has ended\n\n")
    elif event.outcome == "completed" and event.error is None:
        streams.close(w)
    else:
        words = f"The session has ended: {event.outcome}."
        streams.fail(w, event.error or ev.ErrorInfo(code="session_ended", message=words))
    w.out[-1] = w.out[-1]._replace(end="session")


# Turns of the main thread.


def _turn_started(w: Writer, event: ev.TurnStarted) -> None:
    if event.thread_id == ev.MAIN:
        w.s.turn = True
        w.s.halted = w.s.paused = False
        streams.start(w, anew=True)


def _turn_paused(w: Writer, event: ev.TurnPaused) -> None:
    if event.thread_id == ev.MAIN:
        streams.turn_paused(w, event)


def _turn_resumed(w: Writer, event: ev.TurnResumed) -> None:
    if event.thread_id == ev.MAIN:
        streams.resume(w)


def _turn_ended(w: Writer, event: ev.TurnEnded) -> None:
    if event.thread_id == ev.MAIN:
        streams.turn_ended(w, event)
        said.begin_later(w)


def _guidance_received(w: Writer, event: ev.GuidanceReceived) -> None:
    said.said_elsewhere(w, event.thread_id, event.text, {"kind": "guidance"})


# Requests.


def _interaction_answered(w: Writer, event: ev.InteractionAnswered) -> None:
    one = w.s.requests.get(event.request_id)
    if one is None:
        return
    one.claimed = event.state == "claimed"
    if not one.claimed:
        one.in_vain = True
        streams.waits(w)


def _interaction_updated(w: Writer, event: ev.InteractionUpdated) -> None:
    one = w.s.requests.get(event.request_id)
    if one is not None:
        details = {**(one.event.details or {}), **event.details}
        one.event = one.event.model_copy(update={"details": details})
        if one.stream:
            asked.tell_state(w, one, "open")


# What the protocol has no chunk for.


def _thread_updated(w: Writer, event: ev.ThreadUpdated) -> None:
    if event.thread_id in w.s.children and event.name is not None:
        w.s.children[event.thread_id] = event.name


def _thread_message(w: Writer, event: ev.ThreadMessage) -> None:
    names = {"direction": event.direction, "from": event.sender, "to": event.recipient}
    told = {name: value for name, value in names.items() if value is not None}
    put_data(w, "thread-message", {**told, "text": ev.text_of(event.content)})


def _context_compacted(w: Writer, event: ev.ContextCompacted) -> None:
    if event.phase == "completed":
        put_data(w, "compacted", _fields(event, "before_tokens", "after_tokens", "strategy"))


def _context_cleared(w: Writer, _: ev.ContextCleared) -> None:
    put_data(w, "cleared", {})


def _memory_updated(w: Writer, event: ev.MemoryUpdated) -> None:
    put_data(w, "memory", event.value)


def _error_reported(w: Writer, event: ev.ErrorReported) -> None:
    put_data(w, "error", _fields(event, "code", "message", "retry", "details"))


def _outcome_evaluated(w: Writer, event: ev.OutcomeEvaluated) -> None:
    names = ("outcome_id", "phase", "iteration", "result", "explanation")
    put_data(w, "outcome", _fields(event, *names))


def _notice(w: Writer, event: ev.Notice) -> None:
    put_data(w, "notice", _fields(event, "level", "text", "kind", "call_id", "details"))


def _gap(w: Writer, event: ev.Gap) -> None:
    put_data(w, "gap", _fields(event, "reason", "cursor_from", "cursor_to"))


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
    "tool.input_delta": work.tool_input_delta,
    "tool.called": work.tool_called,
    "tool.progressed": work.tool_progressed,
    "tool.returned": work.tool_returned,
    "interaction.requested": work.requested,
    "interaction.answered": _interaction_answered,
    "interaction.updated": _interaction_updated,
    "interaction.resolved": asked.resolved,
    "thread.started": work.thread_started,
    "thread.updated": _thread_updated,
    "thread.ended": work.thread_ended,
    "thread.message": _thread_message,
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
