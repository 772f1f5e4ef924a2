"""From frames and listed envelopes to what they mean.

What says that an envelope is not new is in `numbers`, why one may have to wait in `catching_up`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from adapters.driving.doubts import LOOKS, Evidence
from adapters.herm import wire
from adapters.herm.client import posts
from adapters.herm.client.catching_up import CatchingUp, Fill
from adapters.herm.client.doubts import LostInputLookup
from adapters.herm.client.echoes import InputEchoes
from adapters.herm.client.envelopes import (
    ENVELOPE_KEYS,
    ReceivedEnvelope,
    id_of,
    sequence_of,
    text_in,
)
from adapters.herm.client.numbers import Numbers
from adapters.herm.client.records import HermClientState, HermStreamPosition
from adapters.herm.client.texts import TextRuns
from adapters.herm.client.turns import HermTurns
from adapters.herm.client.work import EnvelopeHandlers
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call
from adapters.wire.framing import TORN
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import (
    JsonError,
    format_json,
    mended_json,
    name_of,
    parse_json,
    rest_of,
)
from adapters.wire.partial_recovery import block_of, salvage
from adapters.wire.url_paths import is_header_value

_TOOLS = frozenset(
    {
        *("agent.tool_use", "agent.mcp_tool_use"),
        *("agent.tool_result", "agent.mcp_tool_result"),
    }
)

_SALVAGED = _TOOLS | {
    *("agent.custom_tool_use", "agent.clarify_request", "agent.sudo_request"),
    *("agent.secret_request", wire.STATUS_IDLE),
}
"""Types of envelopes whose ids and ends count, though the rest of them cannot be read."""

TURN_LOST = "turn_end_missing"
"""The error code of a turn that the backend has no more, while it keeps the session."""


@dataclasses.dataclass(slots=True, eq=False)
class EnvelopeReader:
    """Gives each envelope to the function that knows its type."""

    state: HermClientState
    place: HermStreamPosition
    calls: list[Call]
    numbers: Numbers
    texts: TextRuns
    echoes: InputEchoes
    turns: HermTurns
    work: EnvelopeHandlers
    in_doubt: LostInputLookup
    catching_up: CatchingUp
    _handlers: dict[str, Callable[[ReceivedEnvelope], list[ev.Event]]] = dataclasses.field(
        init=False
    )

    def __post_init__(self) -> None:
        self._handlers = {
            "agent.message": self.work.text,
            "agent.thinking": self.work.text,
            "agent.tool_use": self.work.tool_use,
            "agent.mcp_tool_use": self.work.tool_use,
            "agent.custom_tool_use": self.work.tool_use,
            "agent.tool_result": self.work.tool_result,
            "agent.mcp_tool_result": self.work.tool_result,
            "agent.clarify_request": self.work.clarify,
            "agent.sudo_request": self.work.sudo,
            "agent.secret_request": self.work.secret,
            "agent.thread_message_sent": self.work.thread_sent,
            "agent.thread_message_received": self.work.thread_received,
            wire.STATUS_RUNNING: self.turns.running,
            wire.STATUS_IDLE: self.turns.idle,
            wire.TITLE_UPDATED: self.work.title_updated,
            wire.GAP: self.work.gap,
        }

    def feed(self, frame: SseFrame, now: int) -> list[ev.Event]:
        """Take a frame of the stream."""
        mended: list[ev.Event] = []
        try:
            envelope = parse_json(frame.data)
        except JsonError:
            try:
                envelope = mended_json(frame.data)
            except JsonError as error:
                return self._garbage_frame(frame, str(error), now)
            mended.append(raw.mended())
        if not isinstance(envelope, dict):
            return self._garbage_frame(frame, "the data is not a JSON object", now)
        if not isinstance(envelope.get("type"), str):
            payload = envelope.get("payload")
            type_ = payload.get("type") if isinstance(payload, dict) else None
            envelope["type"] = type_ if isinstance(type_, str) else frame.event
        if not envelope["type"]:
            return self._garbage_frame(frame, "the envelope has no type", now)
        if "id" not in envelope and frame.id:
            envelope["id"] = frame.id
        at, catching_up = self.place, self.catching_up
        if self.numbers.is_old(envelope):
            self.texts.passed(envelope)
            return []
        at.frames += 1
        if catching_up.waits or catching_up.find_hole(envelope, now):
            return mended + self._wait(envelope, len(frame.data), now)
        out = self._take(envelope, at.frames, now)
        id_ = name_of(frame.id)
        if id_ is not None and is_header_value(id_):
            at.last_id = id_
        return mended + out if mended else out

    def _wait(self, envelope: dict[str, Any], size: int, now: int) -> list[ev.Event]:
        may_fill = self.catching_up.wait(envelope, size)
        if self.catching_up.is_full:
            return self.catching_up.wait_no_more() + self.work_off(now)
        return self.go_on(now) if may_fill else []

    def _take(self, envelope: dict[str, Any], frame: int, now: int) -> list[ev.Event]:
        """Return what one envelope means, whether it was streamed or listed (`frame` 0)."""
        type_ = envelope.get("type")
        if not isinstance(type_, str):
            return []
        payload = envelope.get("payload")
        if not isinstance(payload, dict):
            # Lenient: an event without its envelope.
            payload = {k: v for k, v in envelope.items() if k not in ENVELOPE_KEYS or k == "type"}
        if type_.startswith("user."):
            self.state.lists_inputs = self.state.lists_inputs or not frame
            return self.echoes.shown(type_, envelope, payload)
        if self.numbers.is_old(envelope):
            return []
        out = self._misnumbered(envelope)
        self.texts.join(envelope)
        self.numbers.count(envelope)
        native = ev.NativeRef(
            dialect=wire.DIALECT,
            id=id_of(envelope) or None,
            type=type_,
            at=text_in(envelope, "createdAt"),
            frame=frame or None,
        )
        complete = envelope.get("status") == "complete"
        known = ENVELOPE_KEYS | {"status"} if complete else ENVELOPE_KEYS
        rest = rest_of(envelope, known) if envelope.get("payload") is payload else None
        seen = ReceivedEnvelope(type_, envelope, payload, native, rest, now)
        handler = self._handlers.get(type_)
        if handler is None:
            return [*out, self.work.unknown(seen)]
        out += handler(seen)
        if frame:
            self.texts.passed(envelope)
        return out

    # The list beside the stream.

    def go_on(self, now: int) -> list[ev.Event]:
        """Process what waits, where nothing is missing before it."""
        catching_up = self.catching_up
        if not catching_up.is_free:
            return []
        if catching_up.fill is not None:
            # The list cannot be had, and is not needed.
            return catching_up.filled(catching_up.fill, read=False) + self.work_off(now)
        catching_up.put_in_order()
        return self.work_off(now)

    def work_off(self, now: int) -> list[ev.Event]:
        """Process some of what was listed and what waited, when the list is read."""
        fill = self.catching_up.fill
        if fill is None or not fill.works:
            return []
        out: list[ev.Event] = []
        for frame, envelope in self.catching_up.some(fill, now):
            out += self._take(envelope, frame, now)
        return out + self._worked_off(fill, now) if fill.over else out

    def _worked_off(self, fill: Fill, now: int) -> list[ev.Event]:
        """Settle what a list decides, all of which is processed."""
        s = self.state
        self.catching_up.end(fill)
        if fill.orders:
            return []
        unread = None
        if not fill.read:
            # A list that was asked for so often is as good as so many.
            unread = Evidence.GONE if fill.attempts >= LOOKS else Evidence.UNREAD
        out = self.in_doubt.look(now, unread, fill.begun)
        if not s.works or s.paused or fill.told or s.session is None:
            return out
        if fill.ends != s.turn:
            # The list does not say what became of the turn: the session object knows whether it
            # still runs.
            self.calls.append(posts.look(s.session))
        elif fill.lists_status:
            message = "Herm's session is idle, and its list has no end of the turn."
            error = ev.ErrorInfo(code=TURN_LOST, message=message)
            out += self.turns.end("failed", error, None, synthetic=True)
        else:
            out += self.turns.end("completed", None, None, synthetic=True)
        return out

    # What is not an envelope.

    def _garbage_frame(self, frame: SseFrame, reason: str, now: int) -> list[ev.Event]:
        """Report a frame that is not an envelope; the stream goes on."""
        self.place.frames += 1
        name = frame.event or "message"
        out = [self._garbled(frame.data, f"event `{name}`: {reason}")]
        return out + self._salvaged(frame.event, frame.data, reason, now)

    def garbage(self, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        """Return the report of bytes that are not a frame, and what they mean all the same."""
        name, data = block_of(offending)
        out = [self._garbled(offending, reason)]
        return out if reason == TORN else out + self._salvaged(name, data, reason, now)

    def _salvaged(self, name: str, data: bytes, reason: str, now: int) -> list[ev.Event]:
        """Return what an envelope means that cannot be read to its end: the list has it whole, but
        nothing asks for that behind what the agent waits at."""
        envelope = salvage(data)
        payload = envelope.get("payload")
        type_ = name_of(envelope.get("type")) or name
        if type_ not in _SALVAGED or not isinstance(payload, dict):
            return []
        asks = type_ not in _TOOLS or payload.get("requires_action") is True
        if not asks and sequence_of(envelope) is not None:
            # The next number shows that it is missing.
            return []
        envelope["type"] = type_
        if type_.endswith("tool_result"):
            payload.setdefault("content", reason)
        if self.numbers.is_old(envelope) or self.catching_up.waits:
            return []
        return self._take(envelope, self.place.frames, now)

    def _misnumbered(self, envelope: dict[str, Any]) -> list[ev.Event]:
        """Report a number that cannot be one of a sequence; the envelope is good without it."""
        number = envelope.get("sequence")
        if type(number) not in (int, float) or sequence_of(envelope) is not None:
            return []
        reason = "`sequence` is not a number from 0 to 2^53"
        return [self._garbled(format_json({"sequence": number}), reason)]

    def _garbled(self, offending: bytes, reason: str) -> ev.Event:
        return raw.garbled(wire.DIALECT, reason, offending, turn_id=self.state.turn)
