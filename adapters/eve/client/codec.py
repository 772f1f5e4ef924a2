"""The contract: what a session asks of the codec, handed on to the parts that it concerns.

It takes frames apart, and knows the hot path: the next piece of an open text goes by all parts.
"""

from __future__ import annotations

import collections
import dataclasses
import zlib
from collections.abc import Collection, Mapping
from typing import Any, Literal

import orjson

from adapters.eve import wire
from adapters.eve.client.alarms import EveAlarms
from adapters.eve.client.commands import EveCommands
from adapters.eve.client.cursors import block_id, message_id
from adapters.eve.client.dispatcher import RecordDispatcher
from adapters.eve.client.parts import EveParts
from adapters.eve.client.replies import EveReplies
from adapters.eve.client.server_profile import is_read
from adapters.eve.client.state import (
    RECORDS,
    EveClientState,
    StreamCursor,
    ThreadState,
    become,
)
from adapters.eve.client.streams import EveStreams
from adapters.eve.client.text_blocks import APPENDED_KEYS
from adapters.eve.client.turn_end import TurnEnd
from adapters.eve.client.values import rest_of
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Ability, Call, ClientCodec, CloseReason, Response, Support
from adapters.model.state import RECENT_IDS
from adapters.model.stored import CodecCheckpoint, fill, newest
from adapters.wire.errors import DragomanError
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import JsonError, mended_json, name_of, parse_json

_CURSOR_FIELDS = tuple(field.name for field in dataclasses.fields(StreamCursor))


class EveClient(ClientCodec):
    """The client codec. `settings` may have the `session_id` of a session that exists, and
    `single_stream` where the streams of children are not read.
    """

    dialect = wire.DIALECT
    framing: Literal["sse", "ndjson"] = "ndjson"
    history = Ability(Support.EMULATED, "as text before the next message")
    records = RECORDS
    filled = (StreamCursor, EveClientState)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._s = s = EveClientState()
        s.lines[ev.MAIN] = ThreadState(ev.MAIN)
        s.session = settings.get("session_id")
        # A recorded body is one stream: nothing else is read.
        reads_children = not settings.get("single_stream", False)
        self._kept = CodecCheckpoint(EveClient, "the state of an eve's session")
        # The token of the last snapshot: no position has one.
        self._stored_token: str | None = None
        self._recent: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._parts = parts = EveParts(s)
        turn_end = TurnEnd(parts)
        self._commands = EveCommands(parts)
        self._reading = RecordDispatcher(parts, turn_end, reads_children)
        self._replies = EveReplies(parts, turn_end)
        self._streams = EveStreams(parts, turn_end)
        self._alarms = EveAlarms(parts, turn_end)
        self._parts.index()
        self.wake_at = None

    def _set_alarm(self) -> None:
        self.wake_at = self._alarms.next()

    # What it is.

    @property
    def abilities(self) -> Mapping[str, Ability]:  # type: ignore[override]
        return self._parts.server.abilities

    @property
    def native_id(self) -> str | None:
        return self._s.session

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        self._commands.check(command)

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        self._kept.touched = True
        return self._commands.submit(command_id, command)

    def submit_answers(
        self,
        answers: Mapping[str, cmd.AnswerInteraction],
        beside: tuple[str, cmd.SendMessage] | None = None,
    ) -> Call | None:
        self._kept.touched = True
        return self._commands.submit_answers(answers, beside)

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        self._kept.touched = True
        return self._commands.recover(command_id, command)

    def unknown(self, command_ids: Collection[str], now: int) -> list[ev.Event]:
        self._kept.touched = True
        return [event for name in command_ids for event in self._parts.inputs.forget(name)]

    def take_calls(self) -> list[Call]:
        calls = self._commands.take_calls()
        self._kept.touched = self._kept.touched or bool(calls)
        return calls

    def webhook(self, request_id: str) -> str | None:
        return self._parts.requests.webhook(request_id)

    # What came of calls.

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        try:
            return self._replies.respond(call, response, now)
        finally:
            self._set_alarm()

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        self._kept.touched = True
        try:
            return self._replies.failed(call, error, sent=sent, now=now)
        finally:
            self._set_alarm()

    # Streams.

    def streams(self) -> tuple[Call, ...]:
        return self._streams.streams()

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        out = self._streams.opened(call, head, now)
        self._kept.touched = True
        self._set_alarm()
        return out

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        self._kept.touched = True
        out = self._streams.closed(call, reason, now)
        self._set_alarm()
        return out

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        self._kept.touched = True
        out = self._streams.give_up(error, now, thread_id=thread_id)
        self._set_alarm()
        return out

    @property
    def patience(self) -> int:  # type: ignore[override]
        return self._streams.patience

    def tick(self, now: int) -> list[ev.Event]:
        self._kept.touched = True
        out = self._alarms.tick(now)
        self._set_alarm()
        return out

    # The state.

    @property
    def frames(self) -> int:
        return self._parts.cursors.frames

    @property
    def position(self) -> bytes:
        return self._kept.position(
            self._parts.cursors.stored(self._parts.cursors.moved), self._state
        )

    def snapshot(self) -> bytes:
        self._stored_token = self._s.token
        cursors = self._parts.cursors.stored(self._parts.cursors.by_thread)
        self._parts.cursors.moved.clear()
        return self._kept.snapshot(cursors, self._state(), orjson.dumps(self._stored_token))

    @property
    def changed(self) -> bool:
        return self._kept.changed(self._state) or self._s.token != self._stored_token

    def _state(self) -> bytes:
        """Return the state without the token, which is stored beside it."""
        return ev.format_state(dataclasses.replace(self._s, token=None))

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        s, at = self._s, self._parts.cursors
        first, later = self._kept.restore(snapshot, position)
        if len(stored := newest(first, later)) > 1:
            become(s, fill(EveClientState, stored[1]))
            # Of a position the token is that of the snapshot before.
            self._stored_token = s.token = stored[2] if len(stored) > 2 else None
        for part in (first, later):
            if part:
                at.frames, cursors = part[0]
                for thread in [name for name in cursors if name in s.lines]:
                    known = dataclasses.astuple(at.of(thread))
                    fields = zip(_CURSOR_FIELDS, newest([*known], cursors[thread]), strict=True)
                    at.by_thread[thread] = fill(StreamCursor, dict(fields))
        self._parts.index()
        self._parts.child_index.calls_of.clear()
        self._recent.clear()
        self._parts.connection.refused = set()
        self._parts.connection.opened_at = None
        if s.foreign is not None and is_read(s.foreign):
            # A release before this one has refused it.
            s.foreign = None
        if s.generation is not None:
            self._parts.server.set_abilities()
        self._set_alarm()

    # Frames.

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, bytes)
        thread = call.thread_id
        mended: list[ev.Event] = []
        try:
            value = parse_json(frame)
        except JsonError:
            try:
                value = mended_json(frame)
            except JsonError as error:
                return self.garbage(call, frame, str(error), now)
            mended.append(raw.mended(thread))
        if type(value) is not dict or not isinstance(value.get("type"), str):
            return self._no_event(call, frame, value, now)
        s, cursors = self._s, self._parts.cursors
        cursors.frames += 1
        line = s.lines.get(thread)
        if line is None or s.foreign is not None:
            # A child that is over for so long that it is forgotten, or what was on the way when the
            # version of the stream was refused.
            return []
        if thread == ev.MAIN and (s.mistrusted or s.gone_at is not None):
            self._parts.cancellation.heard(now)
            self._kept.touched = True
        type_: str = value["type"]  # type: ignore[assignment]
        data: Any = value.get("data")
        meta: Any = value.get("meta")
        if type(data) is not dict:
            data = {}
        if type(meta) is not dict:
            meta = {}
        id_, at = name_of(meta.get("id")), meta.get("at")
        if id_ is not None:
            key = f"{thread}/{id_}"
            check = zlib.crc32(frame)
            if self._recent.get(key) == check:
                # Not counted: a place too early brings it once more, one too late loses a record.
                return []
            self._recent[key] = check
            if len(self._recent) > RECENT_IDS:
                self._recent.popitem(last=False)
        cursor = cursors.of(thread)
        cursor.count += 1
        native = ev.NativeRef(
            dialect="eve",
            id=id_,
            type=type_,
            at=name_of(at),
            frame=cursors.frames,
        )
        # The hot path: the next piece of the open block.
        if (
            cursor.text
            and type_ == "message.appended"
            and not line.held.events
            and line.ending is None
            and line.settled is None
            and line.paused is None
            and not line.empty
            and (data.get("turnId") == line.native or not self._parts.turns.is_late(line, data))
        ):
            piece = data.get("messageDelta")
            if type(piece) is str and not mended:
                return [
                    ev.TextDelta(
                        thread_id=thread,
                        turn_id=line.turn,
                        block_id=block_id(line, cursor),
                        message_id=message_id(line, cursor),
                        text=piece,
                        native=native,
                        extra=rest_of(data, APPENDED_KEYS),
                    )
                ]
        self._kept.touched = True
        out = self._reading.read(call, line, frame, data, meta.get("deliveryIds"), native, now)
        if self._parts.timers.heap or self.wake_at is not None or self._alarms.is_waiting():
            self._set_alarm()
        return mended + out if mended else out

    def _no_event(self, call: Call, frame: bytes, value: Any, now: int) -> list[ev.Event]:
        if type(value) is dict:
            if "$eve" in value:
                # A control record is not an event and is not counted (section 7.4).
                return []
            refused = self._streams.refuse_line(call.thread_id, value)
            if refused is not None:
                self._kept.touched = True
                self._set_alarm()
                return refused
        return self.garbage(call, frame, "a line is not an event", now)

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        if self._s.foreign is not None:
            return []
        self._kept.touched = True
        return self._reading.garbage(call, offending, reason, now)
