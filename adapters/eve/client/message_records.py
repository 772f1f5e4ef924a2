"""Messages that the server has received: those of ours, and those of others."""

from __future__ import annotations

import dataclasses

from adapters.eve import wire
from adapters.eve.client.contents import content_of
from adapters.eve.client.parts import EveParts
from adapters.eve.client.reports import as_late, as_native
from adapters.eve.client.state import SAID_MOST, EveMessage, StreamRecord, ThreadState
from adapters.eve.client.values import C_KEYS, digest_of, rest_of
from adapters.model import events as ev
from adapters.wire.errors import OFFENDING_LIMIT
from adapters.wire.jsonvalue import format_json, text_of

_RECEIVED_KEYS = C_KEYS | {"message", "parts"}


@dataclasses.dataclass(slots=True)
class MessageRecords:
    """What is said to the agent."""

    parts: EveParts

    def message_received(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        if data.get("kind") == "task.result":
            # What a task has brought is not a word of the user.
            return as_native(line, record)
        late = self.parts.turns.is_late(line, data)
        text = data.get("message")
        whole = text = text if isinstance(text, str) else ""
        native_turn = text_of(data.get("turnId"))
        new = record.deliveries.keys() - line.deliveries
        if line.aside and all(item.flat != text for item in self.parts.state.ledger.open.values()):
            if text == line.aside:
                line.heard, line.heard_at = text, line.steps
                return []
            text = text.removeprefix(f"{line.aside}\n\n")
        said = digest_of(native_turn, text)
        if late and said in line.said and not new:
            return []
        item = self._matching(line, record, text, by_words=not late or line.turn is None)
        if item is None and said in line.said and not new:
            # A retried step repeats it under the same coordinates (section 8.1).
            return []
        if late and item is None:
            return as_late(line, record)
        line.deliveries = list(record.deliveries) or line.deliveries
        line.said[said] = None
        if len(line.said) > SAID_MOST:
            del line.said[next(iter(line.said))]
        line.heard, line.heard_at = self._to_remember(line, whole), line.steps
        line.held.decide_all("unknown")
        out: list[ev.Event] = []
        if line.turn is None or line.paused is not None:
            was_empty = line.empty
            out += self.parts.turns.in_turn(line, record)
            line.empty = was_empty or line.turns == 0
        if item is None:
            answer = self.parts.requests.said_as_answer(line, text)
            out.append(
                ev.MessageReceived(
                    thread_id=line.thread,
                    turn_id=self.parts.turns.current(line),
                    message_id=answer or record.native.id or f"message-{self.parts.cursors.frames}",
                    command_id=answer,
                    content=content_of(data, text),
                    native=record.native,
                    extra=rest_of(data, _RECEIVED_KEYS),
                )
            )
            return out
        if item.step is not None:
            out += self.parts.inputs.arrived(item)
        else:
            s = self.parts.state
            s.silence.forget(item.command_id)
            s.retries = [r for r in s.retries if r.command_id != item.command_id]
        return out + self.parts.state.ledger.receive(
            item.command_id,
            self.parts.turns.current(line),
            native=record.native,
            synthetic=False,
            extra=rest_of(data, _RECEIVED_KEYS),
        )

    def too_long(self, line: ThreadState, offending: bytes, now: int) -> list[ev.Event]:
        """Hear how a record begins that is too long to be read: that of a message says the words
        twice. One of ours whose words begin in the same way has its receipt."""
        said = offending[:OFFENDING_LIMIT].partition(b'"message":')[2]
        # It is known by its words if they are half of what is kept of a record: the names before
        # them take some 70 bytes in all recordings.
        if len(said) < OFFENDING_LIMIT // 2:
            return []
        for item in self.parts.state.ledger.open.values():
            text = item.flat
            # A character may be twelve bytes of a record: the record of a shorter one is read.
            if len(text) < 64 * 1024:
                continue
            if format_json(text[: len(said)]).startswith(said):
                delivery = item.delivery
                native = ev.NativeRef(dialect=wire.DIALECT, type="message.received")
                deliveries = {} if delivery is None else {delivery: None}
                record = StreamRecord(
                    "message.received", {"message": text}, deliveries, native, now
                )
                return self.message_received(line, record)
        return []

    def _to_remember(self, line: ThreadState, text: str) -> str:
        """Return what is remembered of a message: only a T says or takes it again."""
        # A T says a message to a child again after a pause in which it had put it aside; a longer
        # one is shown a second time then.
        short = line.thread == ev.MAIN or len(text) <= 4_096
        return text if short and self.parts.state.generation in (None, "T") else ""

    def _matching(
        self, line: ThreadState, record: StreamRecord, text: str, *, by_words: bool
    ) -> EveMessage | None:
        """Return the message of ours that a record reports: by its delivery, else by its words."""
        if line.thread != ev.MAIN:
            return None
        pending = self.parts.state.ledger.open.values()
        for item in pending:
            mine = item.delivery is not None and item.delivery in record.deliveries
            if mine and (item.delivery not in line.deliveries or item.flat == text):
                return item
        if not by_words:
            return None
        # A record without names is of whose the turn is.
        loose = [
            item
            for item in pending
            if item.delivery is None
            or (not record.deliveries and (not line.owners or item.delivery in line.owners))
        ]
        for item in loose:
            if item.flat == text or item.creates:
                return item
        # T names no deliveries: one message is on its way, and one message came.
        if self.parts.state.generation == "T" and len(loose) == 1 and loose[0].taken:
            return loose[0]
        return None
