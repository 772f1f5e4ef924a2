"""Text, reasoning and results."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from adapters.eve.client.cursors import StreamCursors, block_id, message_id
from adapters.eve.client.reports import as_native
from adapters.eve.client.state import StreamCursor, StreamRecord, ThreadState
from adapters.eve.client.turns import EveTurns
from adapters.eve.client.values import CS_KEYS, rest_of
from adapters.model import events as ev
from adapters.model import raw

APPENDED_KEYS = CS_KEYS | {
    "messageDelta",
    "messageSoFar",
    "messageOffset",
    "reasoningDelta",
    "reasoningSoFar",
    "reasoningOffset",
}

_COMPLETED_KEYS = CS_KEYS | {"message", "finishReason"}

_REASONING_KEYS = CS_KEYS | {"reasoning"}

_RESULT_KEYS = CS_KEYS | {"result"}


@dataclasses.dataclass(slots=True)
class TextBlocks:
    """What the agent says."""

    cursors: StreamCursors
    turns: EveTurns

    def end_blocks(
        self, line: ThreadState, status: Literal["partial", "discarded"]
    ) -> list[ev.Event]:
        """End the blocks that are open."""
        out: list[ev.Event] = []
        cursor = self.cursors.of(line.thread)
        kinds: tuple[Literal["reasoning", "text"], ...] = ("reasoning", "text")
        for kind in kinds:
            if getattr(cursor, kind):
                setattr(cursor, kind, False)
                out.append(
                    raw.BlockEnded(
                        thread_id=line.thread,
                        turn_id=line.turn,
                        block=kind,
                        status=status,
                        synthetic=True,
                    )
                )
        return out

    def _open_block(self, line: ThreadState, kind: Literal["reasoning", "text"]) -> StreamCursor:
        cursor = self.cursors.of(line.thread)
        if not getattr(cursor, kind):
            setattr(cursor, kind, True)
            cursor.blocks += 1
        return cursor

    def appended(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        is_text = record.type == "message.appended"
        piece = record.data.get("messageDelta" if is_text else "reasoningDelta")
        if not isinstance(piece, str):
            return as_native(line, record)
        out = self.turns.in_turn(line, record)
        cursor = self._open_block(line, "text" if is_text else "reasoning")
        make = ev.TextDelta if is_text else ev.ReasoningDelta
        out.append(
            raw.delta_of(
                make,
                piece,
                thread_id=line.thread,
                turn_id=self.turns.current(line),
                block_id=block_id(line, cursor),
                message_id=message_id(line, cursor),
                native=record.native,
                extra=rest_of(record.data, APPENDED_KEYS),
            )
        )
        return out

    def message_completed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        text, reason = data.get("message"), data.get("finishReason")
        out = self.turns.in_turn(line, record)
        extra = rest_of(data, _COMPLETED_KEYS) or {}
        fields: dict[str, Any] = {
            "thread_id": line.thread,
            "turn_id": self.turns.current(line),
            "finish_reason": reason if isinstance(reason, str) else None,
            "native": record.native,
        }
        if not isinstance(text, str):
            extra["message"] = None
            cursor = self.cursors.of(line.thread)
            if cursor.text:
                # T may leave the whole out (section 9.2): what was streamed is the text.
                cursor.text = False
                return [*out, raw.BlockEnded(block="text", extra=extra, **fields)]
            text = ""
        cursor = self._open_block(line, "text")
        cursor.text = False
        return [
            *out,
            ev.TextCompleted(
                block_id=block_id(line, cursor),
                message_id=message_id(line, cursor),
                text=text,
                extra=extra or None,
                **fields,
            ),
        ]

    def reasoning_completed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        text = record.data.get("reasoning")
        out = self.turns.in_turn(line, record)
        cursor = self._open_block(line, "reasoning")
        cursor.reasoning = False
        return [
            *out,
            ev.ReasoningCompleted(
                thread_id=line.thread,
                turn_id=self.turns.current(line),
                block_id=block_id(line, cursor),
                message_id=message_id(line, cursor),
                text=text if isinstance(text, str) else "",
                native=record.native,
                extra=rest_of(record.data, _REASONING_KEYS),
            ),
        ]

    def result_completed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        return [
            *self.turns.in_turn(line, record),
            ev.ResultProduced(
                thread_id=line.thread,
                turn_id=self.turns.current(line),
                value=record.data.get("result"),
                native=record.native,
                extra=rest_of(record.data, _RESULT_KEYS),
            ),
        ]
