"""Streams: which are read, and what their opening and closing tell."""

from __future__ import annotations

import dataclasses
from typing import Any

from multidict import CIMultiDict, MultiDict

from adapters.eve import wire
from adapters.eve.client.parts import EveParts
from adapters.eve.client.server_profile import is_read, not_read
from adapters.eve.client.state import ThreadState
from adapters.eve.client.turn_end import TurnEnd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, CloseReason, Request, Response
from adapters.wire.errors import SESSION_LOST, DragomanError
from adapters.wire.url_paths import path_of, rebuilt

STREAMS_MOST = 64
"""Streams of a session that are read at once, its own and its children's; the next one is opened
when one is over. Each is a connection, and who announces thousands of children would get as many.
Ours."""


@dataclasses.dataclass(slots=True)
class EveStreams:
    """The streams of the session and of its children."""

    parts: EveParts
    turn_end: TurnEnd

    def streams(self) -> tuple[Call, ...]:
        """Return what is to be read now."""
        s = self.parts.state
        if s.session is None or s.ended or s.foreign is not None:
            return ()
        main = s.lines[ev.MAIN]
        busy = main.turn is not None or main.ending is not None
        answered = any(request.given is not None for request in s.asks.open.values())
        sent = s.ledger.open or answered or s.late or s.silence.open
        waits = s.control or s.reset_at or s.cancel or s.doubted_until
        wanted = busy or sent or waits
        calls = [self._stream(main)] if wanted else []
        for thread in self.parts.child_index.readable:
            if len(calls) == STREAMS_MOST:
                break
            line = s.lines[thread]
            # A child whose end is told is read to its end, also when its parent's turn is over.
            over = line.outcome is not None
            if over or (wanted and (busy or line.turn is not None)):
                calls.append(self._stream(line))
        return tuple(calls)

    def _stream(self, line: ThreadState) -> Call:
        """Return the call that reads a thread on, the same one as long as nothing of it changes."""
        cursor = self.parts.cursors.by_thread.get(line.thread)
        count = 0 if cursor is None else cursor.count
        session = self.parts.state.session if line.thread == ev.MAIN else line.session
        known = (count, line.path, session, self.parts.state.generation)
        before = self.parts.child_index.calls_of.get(line.thread)
        if before is None or before[0] != known:
            before = self.parts.child_index.calls_of[line.thread] = (
                known,
                self._stream_from(line, count),
            )
        return before[1]

    def _stream_from(self, line: ThreadState, count: int) -> Call:
        # The backend said where it is: what is not a path of segments is not asked for.
        path = None if line.path is None else rebuilt(line.path)
        if path is None:
            session = self.parts.state.session if line.thread == ev.MAIN else line.session
            assert session is not None
            path = path_of(wire.SESSION_PATH, session, "stream")
        query = MultiDict({wire.START_INDEX_QUERY: str(count)})
        # From 0.57 on this asks for heartbeats and a lease (section 7.4); others ignore it.
        query[wire.STREAM_CONTROL_VERSION_QUERY] = wire.STREAM_CONTROL_VERSION
        if self.parts.state.generation == "T":
            # Section 7.2: T shows a session that it has lost as an empty stream. S says 404, and
            # would end the body at the tail.
            query[wire.INCLUDE_TAIL_INDEX_QUERY] = "1"
        headers = CIMultiDict({"Accept": "application/x-ndjson"})
        request = Request("GET", path, query, headers)
        return Call("stream", request, stream=True, thread_id=line.thread)

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        """Record that a stream is open."""
        self.parts.connection.refused.discard(call.thread_id)
        out: list[ev.Event] = []
        text = head.headers.get(wire.STREAM_VERSION_HEADER)
        if text is not None:
            if not is_read(text):
                return self.refuse(call.thread_id, text)
            version = int(text)
            if version != 21 and self.parts.state.version is None:
                self.parts.server.know("T" if version < 21 else "S1" if version < 26 else "S2")
        if call.thread_id == ev.MAIN:
            self.parts.connection.opened_at, self.parts.connection.opened_frames = (
                now,
                self.parts.cursors.frames,
            )
            if self.parts.state.silence.listen(now):
                # The time is stored with this: a restart goes on waiting, and does not begin again.
                out.append(raw.in_doubt("eve: the stream will show what became of an input."))
            out += self._check_tail(head)
        return out

    def refuse(self, thread_id: str, version: str) -> list[ev.Event]:
        """End what a stream would tell whose version is not read: nothing of it is, and nothing is
        said into its session any more."""
        s = self.parts.state
        line = s.lines.get(thread_id)
        if s.foreign is not None or line is None or line.closed_stream:
            return []
        error = raw.error_info(not_read(version[:20]))
        report = ev.ErrorReported(
            thread_id=thread_id, code=error.code, message=error.message, synthetic=True
        )
        if thread_id != ev.MAIN:
            self.parts.child_index.close_stream(line)
            return [report, *self.turn_end.end_child(line)]
        s.foreign = version[:20]
        first, s.first = s.first, None
        unsaid = [] if first is None else self.parts.inputs.not_sent(first.command_id, error)
        return [report, *unsaid, *self.turn_end.lost(error, error.code)]

    def refuse_line(self, thread_id: str, value: dict[str, Any]) -> list[ev.Event] | None:
        """Refuse a stream by a line, if that is one of version 27 whatever the head says: what
        happens and what grows have lines of their own there (eve 27 page, section 3)."""
        if isinstance(value.get("facts"), list) or isinstance(value.get("progress"), dict):
            return self.refuse(thread_id, wire.FACTS_STREAM_VERSION)
        return None

    def _check_tail(self, head: Response) -> list[ev.Event]:
        """End what runs when the log is empty that had records: the session is not there any more.
        One that is only shorter may be a copy that lags."""
        cursor = self.parts.cursors.of(ev.MAIN)
        if head.headers.get(wire.STREAM_TAIL_INDEX_HEADER) != "-1" or not cursor.count:
            return []
        cursor.count = 0
        self.parts.state.lines[ev.MAIN].sequence = -1
        message = "eve: the session's stream is empty, and has shown records already"
        return self.turn_end.lost(ev.ErrorInfo(code=SESSION_LOST, message=message))

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        """Record that a stream has ended."""
        line = self.parts.state.lines.get(call.thread_id)
        if call.thread_id == ev.MAIN:
            at_once = (
                self.parts.connection.opened_at is not None
                # A lease, a restart or a host's limit on the time of a request ends a body later.
                and now - self.parts.connection.opened_at < 5_000
            )
            silent = self.parts.cursors.frames == self.parts.connection.opened_frames
            ended = reason is CloseReason.ENDED and at_once and silent
            self.parts.connection.ended_at_once = (
                self.parts.connection.ended_at_once + 1 if ended else 0
            )
            self.parts.connection.opened_at = None
        out: list[ev.Event] = []
        if line is not None and reason is CloseReason.ENDED:
            if line.settled is not None:
                out += self.parts.resolution.settle(line, line.settled)
            out += self.parts.calls.decide_and_release(line)
            out += self.turn_end.flush(line)
        return out

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        """Record that a stream is not to be had."""
        line = self.parts.state.lines.get(thread_id)
        if thread_id != ev.MAIN and line is not None:
            self.parts.child_index.close_stream(line)
            self.parts.connection.refused.discard(thread_id)
            return self.turn_end.end_child(line)
        out = self.turn_end.lost(raw.error_info(error, SESSION_LOST))
        return out

    @property
    def patience(self) -> int:
        """Return how long nothing new is borne: who opens streams may be silent for long."""
        if self.parts.connection.refused:
            # The clients give up after about 45 s (section 7.5); we can wait longer: 10 minutes.
            return 600_000
        # A body ends in order when its log is closed (section 7.3). One that does so at once and
        # brings nothing, five times in a row (the clients' own limit, section 7.5) and for a
        # minute, has no more to tell. Times ours.
        if self.parts.connection.ended_at_once >= 5:
            return 60_000
        day = 24 * 3_600_000
        # Section 8.1: a session lives 30 days by default, and a pause may last as long. Else
        # silence is not a fault: T is silent while a tool runs (7.3).
        return 30 * day if self.parts.state.asks.open else day
