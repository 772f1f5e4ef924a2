"""Writes envelopes: each has the next sequence of its session, which is its cursor."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal, NamedTuple

import orjson

from adapters.herm import wire
from adapters.herm.state import HermState, InputEnvelope
from adapters.model import events as ev
from adapters.model.base import Frame
from adapters.model.state import REPAIRED
from adapters.wire.framing import on_one_line
from adapters.wire.jsonvalue import format_json

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Envelope(NamedTuple):
    """One envelope: `body` is its JSON.

    `listed`: it is in lists (section 4.4: deltas and titles are not). `streamed`: it is on the
    stream. `update`: it takes the place of the envelope with the same sequence, in lists only.
    `end`: after it the stream of a deleted session ends.
    """

    sequence: int
    type: str
    body: bytes
    listed: bool = True
    streamed: bool = True
    update: bool = False
    end: bool = False


@dataclasses.dataclass(slots=True)
class HermWriter:
    """The state of a session's encoder, and the envelopes that the entry of time `now` has given so
    far. `prefix` stands before the numbers in their ids."""

    s: HermState
    session_id: str
    out: list[Envelope] = dataclasses.field(default_factory=list)
    now: str = ""
    prefix: bytes = dataclasses.field(init=False)
    session_json: bytes = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.prefix = wire.event_id(self.session_id, "").encode()
        self.session_json = orjson.dumps(self.session_id)

    def write(self, event: ev.Event, type_: str, payload: dict[str, Any], **marks: bool) -> int:
        """Write an envelope and return its sequence; members of the source that the model does not
        know come back. `marks` are those of `Envelope`."""
        more, status = b"", b'"complete"'
        if event.extra is not None and wire.is_native(event):
            # A result without a call keeps the tool's name for the normalizer.
            ours = (REPAIRED, "envelope", "name" if event.TYPE == "tool.returned" else "")
            for key, value in event.extra.items():
                if key not in ours and key not in payload:
                    payload[key] = value
            rest = event.extra.get("envelope")
            if isinstance(rest, dict):
                rest = dict(rest)
                status = format_json(rest.pop("status", "complete"))
                more = b"," + format_json(rest)[1:-1] if rest else b""
        content = format_json({"type": type_, **payload})
        return self.put(event, type_, content, more, status, **marks)

    def put(
        self,
        event: ev.Event,
        type_: str,
        payload: bytes,
        more: bytes = b"",
        status: bytes = b'"complete"',
        **marks: bool,
    ) -> int:
        """Write an envelope with a payload in JSON, and return its sequence."""
        sequence, at = self._next(), self._created(event).encode()
        body = (
            b'{"id":"%b%d","type":"%b","sessionId":%b,"sequence":%d,"status":%b,'
            b'"payload":%b,"processedAt":"%b","createdAt":"%b"%b}'
        )
        body %= (
            *(self.prefix, sequence, type_.encode(), self.session_json, sequence, status),
            *(payload, at, at, more),
        )
        self.out.append(Envelope(sequence, type_, body, **marks))
        return sequence

    def place(self, event: ev.Event, record: InputEnvelope) -> None:
        """Write the envelope of an input."""
        record.sequence, record.created = self._next(), self._created(event)
        self.show(record, record.sequence)

    def show(self, record: InputEnvelope, sequence: int, **marks: bool) -> None:
        """Write an input as it is now; no stream shows it."""
        type_, body = record.payload["type"], self.input_body(record)
        self.out.append(Envelope(sequence, type_, body, streamed=False, **marks))

    def input_body(self, record: InputEnvelope) -> bytes:
        """Return the envelope of an input as it is now."""
        envelope: dict[str, Any] = {
            "id": wire.event_id(self.session_id, record.sequence),
            "type": record.payload["type"],
            "sessionId": self.session_id,
            "sequence": record.sequence,
            "status": record.status,
            "payload": record.payload,
            "processedAt": record.processed,
            "createdAt": record.created,
        }
        if record.error is not None:
            envelope["error"] = record.error
        return format_json(envelope)

    def frame(self, made: Envelope) -> Frame:
        """Return an envelope as a frame of the stream."""
        end: Literal["session"] | None = "session" if made.end else None
        if not made.streamed:
            # A comment: the stream's cursor passes the place, its readers see nothing.
            return Frame(made.sequence, b": %b\n\n" % made.type.encode(), end)
        data = b"event: %b\nid: %b%d\ndata: %b\n\n"
        data %= (made.type.encode(), self.prefix, made.sequence, on_one_line(made.body))
        return Frame(made.sequence, data, end)

    def _next(self) -> int:
        self.s.sequence += 1
        return self.s.sequence

    def _created(self, event: ev.Event) -> str:
        """Return the time to show: the backend's own where it does not go back, else ours (section
        4.1)."""
        native, at, s = event.native, self.now, self.s
        if native is not None and native.dialect == wire.DIALECT and native.at is not None:
            theirs = _TIME.fullmatch(native.at) is not None and native.at >= s.shown_at
            at = native.at if theirs else at
        s.shown_at = max(at, s.shown_at)
        return s.shown_at
