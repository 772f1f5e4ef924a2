"""Serves Managed Agents: the log of a session becomes the events of its streams and lists.

An event has the same id in each of them, and a list holds what the stream held: nothing is resumed,
clients join the two by id (section 6.4). All is a pure function of the log. Previews are frames of
those streams only that asked for them: there they count as frames, and an event has the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from adapters.managed_agents import asks, content, inputs, threads, turns, wire
from adapters.managed_agents.state import FORM, SHAPE, ManagedAgentsState, RequestRecord
from adapters.managed_agents.writer import EventWriter, ListedEvent, delta_frame, input_bodies
from adapters.model import events as ev
from adapters.model.base import EncoderContext, Frame
from adapters.serving.encoder import TableEncoder
from adapters.wire.jsonvalue import format_json

PREVIEWS = "previews"
ASK_TOOL = "ask_tool"
"""Settings that shape frames: the types of events that are previewed, and the name of the tool that
asks."""


class ManagedAgentsEncoder(TableEncoder[EventWriter, ManagedAgentsState]):
    """The encoder of a thread's stream, and of its lists."""

    dialect = wire.DIALECT
    version = 1
    shape = SHAPE
    next_cursor = 1

    def __init__(self, context: EncoderContext) -> None:
        name, settings = context.session_id, context.settings
        writer = EventWriter(
            ManagedAgentsState(agent=context.agent),
            name,
            wire.event_ids(name),
            thread=context.thread_id,
            previews=frozenset(settings.get(PREVIEWS, ())),
            ask_tool=settings.get(ASK_TOOL) or wire.ASK_TOOL,
        )
        super().__init__(writer, _HANDLERS, lambda s: s.cursor + 1, FORM)

    def feed(self, entry: ev.Entry) -> list[Frame]:
        self._w.seq, self._w.listed = entry.seq, []
        return super().feed(entry)

    # What the face asks besides.

    @property
    def listed(self) -> list[ListedEvent]:
        """Return the events that the newest entry gave."""
        return self._w.listed

    def waiting(self, cursor: int) -> list[tuple[str, bytes]]:
        """Return the inputs that waited at a frame, as they are now, as type and JSON: they stand
        at the end of lists."""
        records = self.state.inputs.items()
        return self.inputs(name for name, one in records if one.at is None or one.cursor > cursor)

    def inputs(self, command_ids: Iterable[str]) -> list[tuple[str, bytes]]:
        """Return the events of the newest inputs, as they are now, as type and JSON."""
        records = (self.state.inputs.get(command_id) for command_id in command_ids)
        return [one for record in records if record is not None for one in input_bodies(record)]

    def stops_nothing(self, now: int) -> bytes:
        """Return the event of an interrupt that found nothing to stop: it is stored nowhere."""
        fields = {"type": "user.interrupt", "id": f"{self._w.ids}idle-{now}"}
        return format_json({**fields, "processed_at": wire.iso(now * 1000)})

    def request_of(self, name: str) -> tuple[str, RequestRecord] | None:
        """Return the request that a frontend names, with its canonical id."""
        return asks.find(self.state.requests, name)

    def call_of(self, name: str) -> str | None:
        """Return the open call that a frontend names."""
        return next((call for call, use in self.state.calls.items() if use.id == name), None)

    def opening(self) -> bytes:
        """Return the preview of a message that is open: who comes in the middle gets it whole."""
        message, previews = self.state.message, self._w.previews
        if message is None or "agent.message" not in previews:
            return b""
        start = {"type": "event_start", "event": {"type": "agent.message", "id": message.id}}
        frames = (format_json(start), delta_frame(message.id, "".join(message.words)))
        return b"".join([b"event: message\ndata: %b\n\n" % frame for frame in frames])


def _session_started(w: EventWriter, event: ev.SessionStarted) -> None:
    name = (event.agent or {}).get("name")
    if isinstance(name, str) and name:
        w.s.agent = name


def _resumed(w: EventWriter, event: ev.TurnResumed) -> None:
    if w.is_own(event):
        inputs.take_up(w, event)
    turns.started(w, event)


def _turn_ended(w: EventWriter, event: ev.TurnEnded) -> None:
    if w.is_own(event):
        inputs.take_up(w, event)
    turns.ended(w, event)


_HANDLERS: dict[str, Callable[[EventWriter, Any], object]] = {
    "session.started": _session_started,
    "session.updated": turns.session_updated,
    "session.ended": turns.session_ended,
    "input.accepted": inputs.accepted,
    "input.settled": inputs.settled,
    "message.received": inputs.received,
    "guidance.received": inputs.received,
    "turn.started": turns.started,
    "turn.resumed": _resumed,
    "turn.paused": turns.paused,
    "turn.ended": _turn_ended,
    "step.started": content.step_started,
    "step.ended": content.step_ended,
    "text.delta": content.text_delta,
    "text.completed": content.text_completed,
    "reasoning.delta": content.reasoning_delta,
    "reasoning.completed": content.reasoning_completed,
    "tool.called": content.tool_called,
    "tool.returned": content.tool_returned,
    "interaction.requested": asks.requested,
    "interaction.answered": asks.answered,
    "interaction.resolved": asks.resolved,
    "thread.started": threads.thread_started,
    "thread.updated": threads.thread_updated,
    "thread.ended": threads.thread_ended,
    "thread.message": threads.thread_message,
    "result.produced": content.result_produced,
    "context.compacted": content.compacted,
    "context.cleared": content.compacted,
    "usage.reported": content.usage_reported,
    "outcome.evaluated": content.outcome_evaluated,
    "error.reported": turns.error_reported,
    "gap": turns.gap,
    "native": content.native,
}
