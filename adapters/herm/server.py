"""Serves Herm: the log of a session becomes the envelopes of its stream and of its lists.

`sequence` counts the envelopes of the session, deltas, titles and `user.*` included, and an id is
`evt_` + session + `_` + sequence, so that any id is a position: a list has gaps, a stream has none
but the `user.*` envelopes, which are comments there (herm page, sections 4.3 and 4.4; whether they
are echoed is not documented, so they are not). All is a pure function of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from adapters.herm import content, hitl, inputs, turns, wire
from adapters.herm.state import FORM, SHAPE, HermState
from adapters.herm.writer import Envelope, HermWriter
from adapters.model import events as ev
from adapters.model.base import Encoder, EncoderContext, Frame
from adapters.wire.jsonvalue import parse_json


class HermEncoder(Encoder):
    """The encoder of a session's one stream. `envelopes` is what lists are made of, `feed` what the
    stream is made of."""

    dialect = wire.DIALECT
    version = 1
    shape = SHAPE
    next_cursor = 1

    def __init__(self, context: EncoderContext) -> None:
        self._w = HermWriter(HermState(), context.session_id)

    def feed(self, entry: ev.Entry) -> list[Frame]:
        return [self._w.frame(made) for made in self.envelopes(entry) if not made.update]

    def envelopes(self, entry: ev.Entry) -> list[Envelope]:
        """Return the envelopes that an entry gives, and those that it changes."""
        w, event = self._w, entry.event
        w.out = []
        handler = _HANDLERS.get(event.TYPE)
        if handler is not None:
            w.now = wire.iso(entry.at)
            handler(w, event)
            self.next_cursor = w.s.sequence + 1
        return w.out

    def snapshot(self) -> bytes:
        return ev.format_state(self._w.s)

    def restore(self, snapshot: bytes) -> None:
        self._w.s = FORM.validate_python(parse_json(snapshot))
        self.next_cursor = self._w.s.sequence + 1

    # What the face asks besides.

    def request_of(self, name: str) -> str | None:
        """Return the canonical id of the request that a frontend names, by any of its ids."""
        return hitl.find(self._w.s, name, self._w.session_id)

    def inputs(self, command_ids: Iterable[str]) -> list[bytes]:
        """Return the envelopes of the newest inputs, as they are now; those that have none are left
        out."""
        records = (self._w.s.inputs.get(command_id) for command_id in command_ids)
        return [self._w.input_body(r) for r in records if r is not None and r.sequence is not None]

    def inputs_now(self) -> dict[int, bytes]:
        """Return the envelopes of the newest inputs, as they are now, by sequence."""
        return {
            record.sequence: self._w.input_body(record)
            for record in self._w.s.inputs.values()
            if record.sequence is not None
        }


# What is told beside the turns.


def _session_started(w: HermWriter, event: ev.SessionStarted) -> None:
    w.s.title = event.title


def _session_updated(w: HermWriter, event: ev.SessionUpdated) -> None:
    if event.title is not None and event.title != w.s.title:
        w.s.title = event.title
        w.write(event, wire.TITLE_UPDATED, {"title": event.title}, listed=False)


def _gap(w: HermWriter, event: ev.Gap) -> None:
    payload: dict[str, Any] = {"reason": event.reason}
    if event.cursor_from is not None:
        payload["from"] = event.cursor_from
    if event.cursor_to is not None:
        payload["to"] = event.cursor_to
    w.write(event, wire.GAP, payload)


def _native(w: HermWriter, event: ev.Native) -> None:
    if event.dialect != wire.DIALECT or not isinstance(event.frame, dict) or not event.name:
        return
    if event.name.startswith(("agent.", "session.")) and "\n" not in event.name:
        # A lone CR ends a line of SSE too: what follows would be lines of ours.
        name = event.name.replace("\r", "\ufffd")
        w.write(event, name, {k: v for k, v in event.frame.items() if k != "type"})


_HANDLERS: dict[str, Callable[[HermWriter, Any], None]] = {
    "session.started": _session_started,
    "session.updated": _session_updated,
    "session.ended": turns.session_ended,
    "input.accepted": inputs.accepted,
    "input.settled": inputs.settled,
    "message.received": inputs.received,
    "guidance.received": inputs.received,
    "turn.started": turns.running,
    "turn.resumed": turns.running,
    "turn.paused": turns.turn_paused,
    "turn.ended": turns.turn_ended,
    "text.delta": content.delta,
    "text.completed": content.completed,
    "reasoning.delta": content.delta,
    "reasoning.completed": content.completed,
    "tool.called": content.tool_called,
    "tool.returned": content.tool_returned,
    "interaction.requested": hitl.requested,
    "interaction.answered": hitl.answered,
    "interaction.resolved": hitl.resolved,
    "result.produced": content.result_produced,
    "thread.started": content.thread_started,
    "thread.ended": content.thread_ended,
    "thread.message": content.thread_message,
    "gap": _gap,
    "native": _native,
}
