"""The encoder that faces share: one typed state, a writer of frames, and a table of functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from adapters.model.base import Encoder, Frame
from adapters.model.events import Entry, format_state
from adapters.wire.jsonvalue import parse_json

StateT = TypeVar("StateT")


@dataclasses.dataclass(slots=True)
class ShownBlock:
    """An open text or reasoning, and the id of the message or the part that shows it."""

    id: str
    shown_as: str


@dataclasses.dataclass(slots=True)
class EncoderWriter(Generic[StateT]):
    """The state of a session's encoder, and the frames that an entry has given so far. `at` is the
    time of the entry, `ids` what stands before the numbers in the ids of the session's messages."""

    s: StateT
    session_id: str
    ids: str = ""
    out: list[Frame] = dataclasses.field(default_factory=list)
    at: int = 0


WriterT = TypeVar("WriterT", bound=EncoderWriter[Any])
Handlers = Mapping[str, Callable[[WriterT, Any], object]]
"""By the type of an event the function that writes what it gives."""


class TableEncoder(Encoder, Generic[WriterT, StateT]):
    """An encoder whose functions stand in a table. It is complete: a dialect gives it a writer, the
    table, the cursor that follows from a state, the form of that, and what is done after each
    event."""

    def __init__(
        self,
        writer: WriterT,
        handlers: Handlers[WriterT],
        next_cursor: Callable[[StateT], int],
        form: TypeAdapter[StateT],
        after: Callable[[WriterT], None] | None = None,
    ) -> None:
        self._w = writer
        self._handlers = handlers
        self._after = after
        self._next_cursor = next_cursor
        self._form = form

    @property
    def state(self) -> StateT:
        """Return what is known of the session."""
        state: StateT = self._w.s
        return state

    def is_ours(self, message_id: str) -> bool:
        """Say whether a message has an id that this session gave."""
        return message_id.startswith(self._w.ids)

    def feed(self, entry: Entry) -> list[Frame]:
        w, event = self._w, entry.event
        w.out, w.at = [], entry.at
        handler = self._handlers.get(event.TYPE)
        if handler is not None:
            handler(w, event)
            if self._after is not None:
                self._after(w)
            self.next_cursor = self._next_cursor(w.s)
        return w.out

    def snapshot(self) -> bytes:
        return format_state(self._w.s)

    def restore(self, snapshot: bytes) -> None:
        self._w.s = self._form.validate_python(parse_json(snapshot))
        self.next_cursor = self._next_cursor(self._w.s)
