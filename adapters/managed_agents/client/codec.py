"""The codec: hears what the session reports, asks the modules, and keeps the time.

A session is made with the first command, then its stream is opened, then the command is posted: a
stream delivers what is emitted after it was opened (section 6.1).

Why one module: it is what a session asks of a codec, each a method that hands on to a module below.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from adapters.driving.part import soonest
from adapters.managed_agents import wire
from adapters.managed_agents.client import (
    ends,
    frames,
    inputs,
    lists,
    posts,
    replies,
    sends,
    turns,
)
from adapters.managed_agents.client.state import RECORDS, AgentsState, AgentThread, received
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Ability, Call, ClientCodec, CloseReason, Response, Support
from adapters.model.stored import CodecCheckpoint, fill, newest
from adapters.wire.errors import SESSION_LOST, DragomanError, NotSupported
from adapters.wire.framing import TORN
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import JsonError, mended_json, parse_json
from adapters.wire.partial_recovery import block_of

RUNNING_PATIENCE_MS = 3_600_000
PAUSED_PATIENCE_MS = 72 * 3_600_000
"""How long silence is borne on a stream that opens: of a turn, for a tool of an hour, and of one
that waits for a person, for whom the service sets no deadline (live page, section 4). Ours."""

_ADMINISTRATION = ("archive", "reset", "delete", "update_session", "archive_thread")


class ManagedAgentsClient(ClientCodec):
    """The client codec. `settings`: `agent` and `environment_id` are what a create names."""

    dialect = wire.DIALECT
    framing: Literal["sse", "ndjson"] = "sse"
    history = Ability(Support.EMULATED, "as text before the next message")
    abilities: Mapping[str, Ability] = posts.ABILITIES
    records = RECORDS
    filled = (AgentsState,)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._single = settings.get("single_stream", False)
        self._s = AgentsState()
        self._kept = CodecCheckpoint(ManagedAgentsClient, "the state of a Managed Agents session")
        self._frames = 0
        self._made: dict[str, Any] = {}
        # What a lost connection or a restart makes anew.
        self._live: set[str] = set()
        self._tried = self._opens = False
        self._lists = lists.ThreadLists(self._s)
        self._past: set[str] = set()
        self._denial = ends.Denial()
        self._last: ev.TextDelta | None = None
        self.wake_at = None

    def started(self, event: ev.SessionStarted) -> None:
        self._made = sends.made_with(event)

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        posts.check(command)

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        self._kept.touched = self._s.wanted = True
        if self._s.session is None:
            return sends.create(self._s, self._settings, self._made, command_id, command)
        return sends.post(self._s, command_id, command)

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        """Look for the input in the list: what is there was taken."""
        self._kept.touched = True
        s = self._s
        if s.session is None:
            # Nothing was said yet: a session that was perhaps made is empty, another is made.
            return sends.create(s, self._settings, self._made, command_id, command)
        waiting = s.waiting
        if waiting is not None and waiting.command_id == command_id and waiting.again.waits:
            return None
        sendable = (cmd.SendMessage, cmd.Interrupt, cmd.AnswerInteraction, cmd.ToolResult)
        if not isinstance(command, (*sendable, cmd.DefineOutcome)):
            return None
        if command_id not in s.ledger.open:
            try:
                sends.post(s, command_id, command)
            except NotSupported:
                # What it answers is over, so that it arrived, or is pointless.
                return None
        s.doubts.look(command_id)
        return self._lists.begin(s.main)

    def unknown(self, command_ids: Collection[str], now: int) -> list[ev.Event]:
        self._kept.touched = True
        out = replies.forget(self._s, command_ids)
        self._set_alarm()
        return out

    @property
    def held_back(self) -> Collection[str]:
        waiting = self._s.waiting
        waits = waiting is not None and waiting.again.waits and self._s.session is not None
        return [waiting.command_id] if waits and waiting is not None else []

    def take_calls(self) -> list[Call]:
        s = self._s
        calls, s.calls = s.calls, []
        waiting = s.waiting
        ready = self._tried or ev.MAIN in self._live
        if waiting is not None and s.session is not None and ready and waiting.again.ready:
            command = cmd.decode_command(dict(waiting.command))
            waiting.again.sent()
            calls.append(sends.post(s, waiting.command_id, command))
        self._kept.touched = self._kept.touched or bool(calls)
        return calls

    def streams(self) -> tuple[Call, ...]:
        s = self._s
        if s.session is None or not s.wanted:
            return ()
        wanted = [s.main, *(one for one in s.threads.values() if one.followed and not one.is_main)]
        return tuple(
            posts.stream(s.session, thread)
            for thread in wanted
            if thread.thread_id not in self._live
        )

    @property
    def native_id(self) -> str | None:
        return self._s.session

    # What came of calls.

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        s, name = self._s, call.thread_id
        thread = s.thread(name)
        self._live.add(name)
        if thread.is_main:
            self._tried = self._opens = True
        self._last = None
        thread.preview.torn = bool(thread.preview.event_id)
        # What a stream repeats of the past is known by its time.
        self._past.add(name)
        begins = thread.is_main and s.waiting is not None and s.waiting.again.waits
        if s.session is not None and not (begins and not thread.known.recent):
            s.calls.append(self._lists.begin(thread, now, joins=True))
        return []

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        out = self._respond(call, response, now)
        waiting = self._s.waiting
        if call.name != "create" and waiting is not None and not waiting.again.waits:
            self._s.waiting = waiting if waiting.command_id not in call.command_ids else None
        self._set_alarm()
        return out

    def _respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        s = self._s
        match call.name:
            case "stream":
                self._closed(call)
                return []
            case "create":
                return replies.created(s, call, response)
            case "send" if replies.is_doubtful(response):
                replies.doubt(s, call)
                s.calls += [self._lists.begin(s.main, now)] if s.doubts.open else []
                return []
            case "send":
                return replies.sent(s, call, response, now)
            case "session":
                return self._denial.looked(s, response, now)
            case "terminated":
                return ends.told_terminated(s, response, now)
            case name if name in _ADMINISTRATION:
                return replies.administered(s, call, response, now)
            case _:
                found = self._lists.of(call)
                if found is None:
                    return []
                return self._work_off(found, now, self._lists.listed(found, response, now))

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        self._kept.touched = True
        s, info = self._s, raw.error_info(error)
        out: list[ev.Event] = []
        match call.name:
            case "stream":
                self._closed(call)
            case "session" | "terminated":
                pass
            case "create":
                out = replies.not_created(s, call, info)
            case "send" if sent:
                replies.doubt(s, call)
                s.calls += [self._lists.begin(s.main, now)] if s.doubts.open else []
            case "send":
                out = replies.not_sent(s, call, info)
            case name if name in _ADMINISTRATION:
                outcome: Any = "unknown" if sent else "refused"
                assert call.command_id is not None
                s.archived = s.archived and name not in ("archive", "reset")
                out = [raw.settled(call.command_id, outcome, info)]
            case _:
                found = self._lists.of(call)
                if found is not None:
                    missing = self._lists.failed(found, info.message, now)
                    out = self._work_off(found, now, missing)
        self._set_alarm()
        return out

    def _closed(self, call: Call) -> None:
        """Record that a stream cannot be had."""
        self._live.discard(call.thread_id)
        if call.thread_id == ev.MAIN:
            self._tried, self._opens = True, False

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        self._kept.touched = True
        self._live.discard(call.thread_id)
        self._last = None
        thread = self._s.thread(call.thread_id)
        if not thread.is_main and thread.turn is None and reason is CloseReason.ENDED:
            thread.followed = False
        if self._single and reason is CloseReason.ENDED and thread.is_main:
            # Of a recorded body nothing follows.
            return turns.settle_rests(self._s, now)
        return []

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        self._kept.touched = True
        info = raw.error_info(error, SESSION_LOST)
        s = self._s
        if thread_id != ev.MAIN:
            thread = s.thread(thread_id)
            thread.followed = False
            thread.error = thread.error or info
            return turns.end_child(s, thread, None)
        s.wanted = False
        out: list[ev.Event] = []
        waiting, s.waiting = s.waiting, None
        if waiting is not None and waiting.again.waits:
            # It was not sent, so that the ledger does not have it.
            out.append(raw.settled(waiting.command_id, "refused", info))
        message = s.ledger.message
        if message is not None and message.taken and s.main.turn is None:
            out += turns.begin(s, s.main, None, synthetic=True)
        out += ends.end_all(s, info, None)
        return out + inputs.lost(s, info)

    def look(self, now: int) -> bool:
        # The stream is opened anew and what it missed is listed; then the object tells the rest.
        if self._s.session is not None:
            self._s.calls.append(posts.look(self._s.session))
        return True

    @property
    def patience(self) -> int:  # type: ignore[override]
        if self._s.main.turn is None or not self._opens:
            return 60_000
        return PAUSED_PATIENCE_MS if self._s.main.paused == "input" else RUNNING_PATIENCE_MS

    # Lists.

    def _work_off(
        self, found: lists.ThreadList, now: int, missing: list[ev.Event] | None = None
    ) -> list[ev.Event]:
        """Process some of what was listed and what waited, in order, once all of it is there."""
        out = missing or []
        if found.ready is None:
            return out
        for _ in range(lists.SLICE):
            if not found.ready:
                break
            one = found.ready.popleft()
            out += self._take(found.thread, one.event, one.frame, one.size, now, place=one.at)
        if found.ready:
            return out
        del self._lists.open[found.thread.thread_id]
        if found.thread.is_main:
            out += replies.looked_up(self._s, now, found.begun, lists.evidence(found))
            self._denial.listed(self._s)
        return out

    # Time.

    def tick(self, now: int) -> list[ev.Event]:
        self._kept.touched = True
        s = self._s
        out: list[ev.Event] = []
        self._lists.retry(now)
        for found in list(self._lists.open.values()):
            if found.ready is not None:
                out += self._work_off(found, now)
        if s.waiting is not None:
            s.waiting.again.tick(now)
        for thread in list(s.threads.values()):
            if thread.rests_at is not None and now >= thread.rests_at:
                out += turns.rest_by_time(s, thread, now)
        due = s.doubts.due_at(now)
        if due and ev.MAIN not in self._lists.open and s.session is not None:
            s.doubts.looking.update(due)
            s.calls.append(self._lists.begin(s.main, now))
        if self._denial.is_due(now):
            # Once more, with the list before.
            s.calls.append(self._lists.begin(s.main, now))
        self._set_alarm()
        return out

    def _set_alarm(self) -> None:
        s = self._s
        times = [s.doubts.due if ev.MAIN not in self._lists.open else None, self._denial.due]
        times.append(None if s.waiting is None else s.waiting.again.due)
        times += [thread.rests_at for thread in s.threads.values()]
        self.wake_at = soonest(*times, self._lists.due)

    # The state.

    @property
    def frames(self) -> int:
        return self._frames

    @property
    def position(self) -> bytes:
        return self._kept.position(b"%d" % self._frames, self._s.dump)

    def snapshot(self) -> bytes:
        return self._kept.snapshot(b"%d" % self._frames, self._s.dump())

    @property
    def changed(self) -> bool:
        return self._kept.changed(self._s.dump)

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        if stored := newest(*self._kept.restore(snapshot, position)):
            self._frames = stored[0]
            self._s = fill(AgentsState, stored[1])
        if self._s.session is None:
            self._s.waiting = None
        self._live, self._lists = set(), lists.ThreadLists(self._s)
        self._last = None
        self._set_alarm()

    # Frames.

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, SseFrame)
        if frame.event == "ping":
            return []
        mended: list[ev.Event] = []
        value: Any
        try:
            value = parse_json(frame.data)
        except JsonError:
            try:
                value = mended_json(frame.data)
            except JsonError as error:
                return self._unread(call, frame.event, frame.data, str(error), now)
            mended.append(raw.mended())
        thread = self._s.thread(call.thread_id)
        last = self._last
        if last is not None and not mended and _goes_on(value, last, call.thread_id):
            # The hot path: the next piece of the message that is previewed.
            self._frames += 1
            self._last = ev.next_delta(last, value["delta"]["content"]["text"], self._frames)
            return [self._last]
        if frame.event == "error" or (isinstance(value, dict) and value.get("type") == "error"):
            self._frames += 1
            return frames.error_frame(self._s, thread, value, self._frames)
        if not isinstance(value, dict):
            return self._unread(call, frame.event, frame.data, "it is not a JSON object", now)
        if not isinstance(value.get("type"), str):
            value["type"] = frame.event
        if not value["type"]:
            return self._unread(call, frame.event, frame.data, "the event has no type", now)
        self._frames += 1
        found = self._lists.open.get(call.thread_id)
        if found is not None:
            full = lists.wait(found, value, self._frames, len(frame.data))
            if not full:
                return mended
            out = [*mended, lists.gap(thread, "too many came before the events were listed")]
            lists.finish(found, read=False)
            out += self._work_off(found, now)
            self._set_alarm()
            return out
        return mended + self._take(thread, value, self._frames, len(frame.data), now)

    def _take(
        self,
        thread: AgentThread,
        event: dict[str, Any],
        frame: int,
        size: int,
        now: int,
        *,
        place: int | None = None,
    ) -> list[ev.Event]:
        """Return what an event means that is the next one of its thread."""
        touched, self._kept.touched = self._kept.touched, True
        self._last = None
        s, seen = self._s, received(event, frame, now, size)
        preview = seen.type in frames.PREVIEWS
        name = thread.thread_id
        turn, waits = s.main.turn, s.main.paused
        past = not frame or name in self._past
        out = frames.take(s, thread, seen, place, by_time=past)
        if frame and not preview and out:
            # What comes is new: the stream repeats nothing more.
            self._past.discard(name)
        if turn is not None and s.main.turn is None and s.waiting is not None:
            s.waiting.again.let_go()
        if preview and len(out) == 1 and isinstance(out[0], ev.TextDelta):
            self._last = out[0]
            self._kept.touched = touched
            return out
        if not preview or s.main.turn != turn or s.main.paused != waits:
            self._set_alarm()
        return out

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        if reason == TORN:
            self._frames += 1
            return [frames.garbled(self._s.thread(call.thread_id), offending, reason)]
        name, data = block_of(offending)
        return self._unread(call, name, data, reason, now, offending)

    def _unread(
        self,
        call: Call,
        name: str,
        data: bytes,
        reason: str,
        now: int,
        offending: bytes | None = None,
    ) -> list[ev.Event]:
        """Report a frame that is not an event; what can be read of one that counts is taken."""
        self._kept.touched = True
        self._frames += 1
        self._last = None
        shown = f"event `{name or 'message'}`: {reason}"
        thread = self._s.thread(call.thread_id)
        out = [frames.garbled(thread, data if offending is None else offending, shown)]
        event = frames.salvaged(data, reason)
        if event is None or call.thread_id in self._lists.open:
            # A list that is read has it whole.
            return out
        return out + self._take(thread, event, self._frames, len(data), now)


def _goes_on(value: Any, last: ev.TextDelta, thread_id: str) -> bool:
    """Say whether a frame is the next piece of a message, and nothing else."""
    match value:
        case {
            "type": "event_delta",
            "event_id": str(name),
            "delta": {"content": {"text": str(text)}} as delta,
        }:
            same = name == last.message_id and (delta.get("index") or 0) == last.index
            return same and last.thread_id == thread_id and type(text) is str
    return False
