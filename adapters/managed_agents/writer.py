"""Writes events: each stored one has an id, a time, and a place in the lists and on the stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import orjson

from adapters.managed_agents import wire
from adapters.managed_agents.state import InputRecord, ManagedAgentsState
from adapters.model import events as ev
from adapters.model.base import Frame
from adapters.model.state import REPAIRED
from adapters.serving.encoder import EncoderWriter
from adapters.wire.framing import on_one_line
from adapters.wire.jsonvalue import format_json


class ListedEvent(NamedTuple):
    """A stored event as lists have it: its cursor, type, time in microseconds and JSON."""

    cursor: int
    type: str
    at: int
    body: bytes


@dataclasses.dataclass(slots=True)
class EventWriter(EncoderWriter[ManagedAgentsState]):
    """The state of an encoder, and what the entry of place `seq` has given so far: frames of the
    stream, and events for lists. `thread` is the thread whose stream it is, `previews` are the
    types of events that are previewed."""

    thread: str = ev.MAIN
    previews: Collection[str] = ()
    ask_tool: str = wire.ASK_TOOL
    seq: int = 0
    listed: list[ListedEvent] = dataclasses.field(default_factory=list)

    @property
    def is_primary(self) -> bool:
        """Say whether it is the session's stream."""
        return self.thread == ev.MAIN

    def is_own(self, event: ev.Event) -> bool:
        """Say whether an event belongs to the thread."""
        return event.thread_id == self.thread

    def name_of(self, thread_id: str) -> str:
        """Return a thread's id as it is shown."""
        return wire.thread_name(self.session_id, thread_id)

    def id_of(self, event: ev.Event, role: str = "") -> str:
        """Return the id of what an entry gives: the service's own, else one of the entry's place.

        The same entry gives the same id on each stream; where it gives several events, each has a
        `role`, a word.
        """
        native = event.native
        if not role and native is not None and native.dialect == wire.DIALECT and native.id:
            return native.id
        return f"{self.ids}{self.seq}{role and '-'}{role}"

    def write(
        self,
        event: ev.Event,
        type_: str,
        fields: Mapping[str, Any],
        *,
        role: str = "",
        id_: str | None = None,
    ) -> str:
        """Write an event with a time, and return its id. Members of the source that the model does
        not know come back."""
        name = id_ or self.id_of(event, role)
        members = {"type": type_, "id": name, **fields}
        at = self._stamp(event)
        if event.extra is not None and not role and wire.is_native(event):
            for key, value in event.extra.items():
                if key not in _OURS:
                    members.setdefault(key, value)
        self._put(type_, members, at)
        return name

    def write_input(self, event: ev.Event, record: InputRecord) -> None:
        """Write an input that is taken up now."""
        record.at = self._stamp(event)
        type_ = str(record.fields["type"])
        self._put(type_, {"id": record.id, **record.fields}, record.at)
        record.cursor = self.s.cursor
        if record.system is not None:
            self._put("system.message", _system(record), self._stamp(event))

    def echo(self, record: InputRecord) -> None:
        """Stream an input that waits; lists have it at their end."""
        for _, body in input_bodies(record):
            self._frame(body)

    def preview(self, members: Mapping[str, Any]) -> None:
        """Stream the beginning of a preview."""
        self._frame(format_json(members))

    def preview_json(self, body: bytes) -> None:
        """Stream more of a preview, which is JSON."""
        self._frame(body)

    def end(self) -> None:
        """Let the stream end behind what was written last."""
        self.out[-1] = self.out[-1]._replace(end="session")

    def _put(self, type_: str, members: dict[str, Any], at: int) -> None:
        body = format_json({**members, "processed_at": wire.iso(at)})
        self._frame(body)
        self.listed.append(ListedEvent(self.s.cursor, type_, at, body))

    def _frame(self, body: bytes) -> None:
        self.s.cursor += 1
        data = b"event: message\ndata: %b\n\n" % on_one_line(body)
        self.out.append(Frame(self.s.cursor, data))

    def _stamp(self, event: ev.Event) -> int:
        """Return the time to show: the service's own where it does not go back, else ours. Events
        of one moment differ by a microsecond (live page, section 1)."""
        s, at = self.s, self.at * 1000
        if wire.is_native(event):
            assert event.native is not None
            theirs = wire.micros_of(event.native.at)
            at = at if theirs is None or theirs <= s.stamp else theirs
        s.stamp = max(s.stamp + 1, at)
        return s.stamp


_OURS = frozenset({REPAIRED, wire.BLOCKS, wire.BLOCK})
"""Members of `extra` that no event of the service has."""


def _system(record: InputRecord) -> dict[str, Any]:
    return {"type": "system.message", "id": f"{record.id}-system", "content": record.system}


def input_bodies(record: InputRecord) -> list[tuple[str, bytes]]:
    """Return the events of an input as they are now, as type and JSON."""
    values = [{"id": record.id, **record.fields}]
    if record.system is not None:
        values.append(_system(record))
    times = (None if record.at is None else wire.iso(record.at + more) for more in (0, 1))
    return [
        (str(value["type"]), format_json({**value, "processed_at": at}))
        for value, at in zip(values, times, strict=False)
    ]


def delta_frame(id_: str, text: str) -> bytes:
    """Return a piece of a message as JSON; made for each delta of a model."""
    return (
        b'{"type":"event_delta","event_id":%b,"delta":{"type":"content_delta","index":0,'
        b'"content":{"type":"text","text":%b}}}' % (orjson.dumps(id_), orjson.dumps(text))
    )
