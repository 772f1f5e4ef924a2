"""Serves AI SDK UI: the log of a session becomes the streams of its messages (`streams`).

`start` is written when an input of this face is accepted, before any backend has heard of it. Every
frame has its cursor as `id`, which clients ignore.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from adapters.aisdk import content, inputs, interactions, streams, wire
from adapters.aisdk.frames import ChunkWriter, put_data
from adapters.aisdk.state import NOTES, SHAPE, ChatState, ChatStream
from adapters.model import events as ev
from adapters.model.base import EncoderContext
from adapters.serving import notes, pauses
from adapters.serving.encoder import TableEncoder
from adapters.serving.ids import ids_of

_STATE: TypeAdapter[ChatState] = TypeAdapter(ChatState)


class AisdkEncoder(TableEncoder[ChunkWriter, ChatState]):
    """The encoder of a chat's messages."""

    dialect = wire.DIALECT
    version = 1
    shape = SHAPE

    def __init__(self, context: EncoderContext) -> None:
        writer = ChunkWriter(
            ChatState(),
            context.session_id,
            ids_of(wire.MESSAGE, context.session_id),
            old=context.settings.get(wire.RELEASE) == wire.OLD,
            ask_tool=str(context.settings.get(wire.ASK_TOOL, wire.ASK)),
        )
        super().__init__(writer, _HANDLERS, lambda s: s.cursor, _STATE, streams.tell_waiting)

    # What the face asks besides.

    def stream_of(self, command_id: str) -> tuple[ChatStream, int] | None:
        """Return the stream that an input of this face became, and where it begins there."""
        key, cursor = self.state.inputs.begun.get(command_id, ("", 0))
        kept = next((kept for kept in self.state.kept if kept.key == key), None)
        return None if kept is None else (kept, cursor)

    def lacking(self, message: str | None, steps: int) -> ChatStream | None:
        """Return the first stream of a message that has steps which a page does not show yet: it
        shows `steps`."""
        mine = (one for one in self.state.kept if one.message == message)
        return next((one for one in mine if 0 < one.steps >= steps and self.steps_of(one)), None)

    def steps_of(self, kept: ChatStream) -> int:
        """Return how many steps a stream has."""
        streams_ = [one for one in self.state.kept if one.message == kept.message]
        later = streams_[streams_.index(kept) + 1 :]
        if later:
            return later[0].steps - kept.steps
        # The last one of a message that is over goes to its end, wherever that is.
        return self.state.steps - kept.steps if kept.message == self.state.message else 1

    def after(self, request_id: str) -> ChatStream | None:
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
    def running(self) -> ChatStream | None:
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
        return any(one.shown_in for one in self.state.pauses.requests.values())

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
        one = self.state.pauses.requests.get(request_id)
        streams_ = [
            kept for kept in self.state.kept if one is not None and kept.key == one.shown_in
        ]
        return streams_[0].message if streams_ else None

    def approvals(self) -> dict[str, str]:
        """Return the calls that wait for an approval, with the requests: a page may end such a call
        by itself."""
        return {
            one.call: name
            for name, one in self.state.pauses.requests.items()
            if one.call is not None and one.event.kind == "approval"
        }

    def calls(self) -> dict[str, str]:
        """Return the calls whose output answers an open request, with those."""
        return {
            one.call: name
            for name, one in self.state.pauses.requests.items()
            if one.call is not None and (self._w.old or one.event.kind != "approval")
        }


def _session_started(w: ChunkWriter, event: ev.SessionStarted) -> None:
    w.s.inputs.opening = NOTES.read((event.options or {}).get(wire.NOTES))


def _session_ended(w: ChunkWriter, event: ev.SessionEnded) -> None:
    s = w.s
    if s.ended:
        return
    s.ended = True
    s.inputs.ended()
    s.pauses.requests.clear()
    if s.stream is None:
        # A comment: nobody reads, and whose stream is over has nothing more to hear.
        w.frame(b": the session has ended\n\n")
    elif event.outcome == "completed" and event.error is None:
        streams.close(w)
    else:
        words = f"The session has ended: {event.outcome}."
        streams.fail(w, event.error or ev.ErrorInfo(code="session_ended", message=words))
    w.out[-1] = w.out[-1]._replace(end="session")


_HANDLERS: dict[str, Callable[[ChunkWriter, Any], object]] = {
    **notes.handlers(
        lambda w, name, value: put_data(w, name, value, key=name if name == "session" else None)
    ),
    **pauses.handlers(
        lambda w: streams.start(w, anew=True), streams.start, streams.waits, inputs.turn_ended
    ),
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
    "tool.input_delta": content.tool_input_delta,
    "tool.called": content.tool_called,
    "tool.progressed": content.tool_progressed,
    "tool.returned": content.tool_returned,
    "interaction.requested": lambda w, event: w.s.pauses.requested(event),
    "interaction.updated": interactions.updated,
    "interaction.resolved": interactions.resolved,
    "thread.started": content.thread_started,
    "thread.updated": content.thread_updated,
    "thread.ended": content.thread_ended,
    "result.produced": content.result_produced,
    "usage.reported": content.count_tokens,
}
