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
    interactions,
    lists,
    posts,
    replies,
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
from adapters.wire.jsonvalue import JsonError, mended_json, parse_json, text_of
from adapters.wire.partial_recovery import block_of

RUNNING_PATIENCE_MS = 3_600_000
PAUSED_PATIENCE_MS = 72 * 3_600_000
"""How long silence is borne on a stream that opens: of a turn, for a tool of an hour, and of one
that waits for a person, for whom the service sets no deadline (live page, section 4). Ours."""

LOOK_AGAIN_MS = 2_000
"""How long after a session that rests without an end of its turn the list is read again. Ours."""

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
        self._lists: dict[str, lists.ThreadList] = {}
        self._number = 0
        self._past: set[str] = set()
        # The turn or message that the session object denies, when to ask again, and whether.
        self._denied: str | None = None
        self._ask_at: int | None = None
        self._asks = False
        self._last: ev.TextDelta | None = None
        self.wake_at = None

    def started(self, event: ev.SessionStarted) -> None:
        own = (event.options or {}).get(wire.OPTIONS)
        self._made = {
            "title": event.title,
            "metadata": dict(event.metadata or {}),
            "agent": (event.agent or {}).get("id"),
            "options": own if isinstance(own, dict) else {},
        }

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        posts.check(command)

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        self._kept.touched = self._s.wanted = True
        if self._s.session is None:
            return self._create(command_id, command)
        return self._post(command_id, command)

    def _create(self, command_id: str, command: cmd.AnyCommand) -> Call:
        made, settings = self._made, self._settings
        agent = settings.get("agent") or made.get("agent")
        environment = settings.get("environment_id") or made.get("options", {}).get(
            "environment_id"
        )
        if agent is None or environment is None:
            raise NotSupported(
                "managed-agents: no agent or no environment is configured: set "
                "`create = { agent = …, environment_id = … }`"
            )
        if isinstance(command, cmd.UpdateSession):
            made["title"] = command.title or made.get("title")
            made["metadata"] = {**made.get("metadata", {}), **(command.metadata or {})}
        self._s.waiting = replies.wait_for_session(command_id, command)
        options = {
            name: value
            for name, value in made.get("options", {}).items()
            if name in ("resources", "vault_ids", "budget") and value
        }
        metadata = made.get("metadata") or {}
        return posts.create(agent, environment, made.get("title"), metadata, options, command_id)

    def _post(self, command_id: str, command: cmd.AnyCommand) -> Call:
        s = self._s
        assert s.session is not None
        match command:
            case cmd.SendMessage():
                events = posts.message(command)
                if s.waiting is None or s.waiting.command_id != command_id:
                    s.waiting = replies.wait_for_session(command_id, command)
                s.waiting.again.sent()
            case cmd.Interrupt():
                events = [{"type": "user.interrupt"}]
                if command.thread_id not in (None, ev.MAIN):
                    events[0]["session_thread_id"] = command.thread_id
            case cmd.AnswerInteraction():
                events = interactions.answer(s, command_id, command)
            case cmd.ToolResult():
                events = interactions.tool_result(s, command_id, command)
            case cmd.DefineOutcome():
                told = command.model_dump(mode="json", exclude_none=True)
                names = ("description", "rubric", "max_iterations")
                more = {name: told[name] for name in names if name in told}
                events = [{"type": "user.define_outcome", **more}]
            case _:
                if isinstance(command, cmd.Archive | cmd.Reset):
                    # Its event may come before the answer.
                    s.archived = True
                return posts.administer(s.session, command_id, command)
        s.ledger.expect(posts.sent_event(command_id, command, events))
        return posts.send(s.session, events, command_id)

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        """Look for the input in the list: what is there was taken."""
        self._kept.touched = True
        s = self._s
        if s.session is None:
            # Nothing was said yet: a session that was perhaps made is empty, another is made.
            return self._create(command_id, command)
        waiting = s.waiting
        if waiting is not None and waiting.command_id == command_id and waiting.again.waits:
            return None
        sendable = (cmd.SendMessage, cmd.Interrupt, cmd.AnswerInteraction, cmd.ToolResult)
        if not isinstance(command, (*sendable, cmd.DefineOutcome)):
            return None
        if command_id not in s.ledger.open:
            try:
                self._post(command_id, command)
            except NotSupported:
                # What it answers is over, so that it arrived, or is pointless.
                return None
        s.doubts.look(command_id)
        return self._read(s.main)

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
            calls.append(self._post(waiting.command_id, command))
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
            s.calls.append(self._read(thread, now, joins=True))
        return []

    def _read(self, thread: AgentThread, now: int = 0, *, joins: bool = False) -> Call:
        """Begin to read a thread's list; what waits for one that is abandoned waits for this."""
        assert self._s.session is not None
        self._number += 1
        before = self._lists.get(thread.thread_id)
        found = lists.ThreadList(thread, self._number, now, joins)
        if before is not None and not joins:
            found.frames = [*(before.ready or ()), *before.frames]
            found.joins = before.joins
        self._lists[thread.thread_id] = found
        return lists.call_of(self._s.session, found)

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
                return self._not_open(call)
            case "create":
                return replies.created(s, call, response)
            case "send" if replies.is_doubtful(response):
                return self._doubt(call, posts.refusal(response), now)
            case "send":
                return replies.sent(s, call, response, now)
            case "session":
                return self._looked(response, now)
            case "terminated":
                return ends.told_terminated(s, response, now)
            case name if name in _ADMINISTRATION:
                return replies.administered(s, call, response, now)
            case _:
                return self._listed(call, response, now)

    def _not_open(self, call: Call) -> list[ev.Event]:
        self._live.discard(call.thread_id)
        if call.thread_id == ev.MAIN:
            self._tried, self._opens = True, False
        return []

    def _doubt(self, call: Call, error: ev.ErrorInfo, now: int) -> list[ev.Event]:
        """Look whether inputs arrived that got no sure answer; they are never sent again."""
        s = self._s
        out = replies.unanswered(s, call, error, sent=True)
        if s.waiting is not None and s.waiting.command_id in call.command_ids:
            s.waiting = None
        if s.session is not None and s.doubts.open:
            s.calls.append(self._read(s.main, now))
        return out

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        self._kept.touched = True
        info = raw.error_info(error)
        out: list[ev.Event] = []
        match call.name:
            case "stream":
                out = self._not_open(call)
            case "session" | "terminated":
                pass
            case "create":
                out = replies.not_created(self._s, call, info)
            case "send" if sent:
                out = self._doubt(call, info, now)
            case "send":
                out = replies.unanswered(self._s, call, info, sent=False)
            case name if name in _ADMINISTRATION:
                outcome: Any = "unknown" if sent else "refused"
                assert call.command_id is not None
                self._s.archived = self._s.archived and name not in ("archive", "reset")
                out = [raw.settled(call.command_id, outcome, info)]
            case _:
                out = self._not_listed(call, info.message, now)
        self._set_alarm()
        return out

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

    def _looked(self, response: Response, now: int) -> list[ev.Event]:
        """Hear the session object. That nothing runs, without an end that the list has, is believed
        when it says so twice with the list read between."""
        s = self._s
        message = s.ledger.message
        subject = s.main.turn or (message.command_id if message is not None else None)
        denied, self._denied = self._denied, None
        if not ends.denies(s, response) or (denied == subject and self._ask_at is None):
            self._ask_at = None
            out = ends.looked(s, response)
            if s.archived and s.waiting is not None and s.waiting.again.waits:
                out += replies.refused(s, s.waiting.command_id, ends.ARCHIVED)
            return out
        self._denied = subject
        if self._ask_at is None:
            self._ask_at = now + LOOK_AGAIN_MS
        return []

    @property
    def patience(self) -> int:  # type: ignore[override]
        if self._s.main.turn is None or not self._opens:
            return 60_000
        return PAUSED_PATIENCE_MS if self._s.main.paused == "input" else RUNNING_PATIENCE_MS

    # Lists.

    def _listed(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        found = self._reading(call)
        if found is None:
            return []
        more = lists.take_page(found, response)
        assert self._s.session is not None
        if more is None:
            if response.status in (400, 422) and lists.restart(found):
                self._s.calls.append(lists.call_of(self._s.session, found))
                return []
            final = response.status in (404, 405, 410, 501)
            return self._not_listed(call, f"HTTP {response.status}", now, final=final)
        if not more:
            return self._work_off(found, now, read=True)
        if lists.is_long(found):
            out = [lists.gap(found.thread, "the list is too long")]
            return out + self._work_off(found, now, read=True)
        self._s.calls.append(lists.call_of(self._s.session, found))
        return []

    def _reading(self, call: Call) -> lists.ThreadList | None:
        found = self._lists.get(call.thread_id)
        return found if found is not None and call.name == f"list {found.number}" else None

    def _not_listed(self, call: Call, why: str, now: int, *, final: bool = False) -> list[ev.Event]:
        found = self._reading(call)
        if found is None or not lists.failed(found, now, final=final):
            return []
        out: list[ev.Event] = []
        if found.joins:
            out.append(lists.gap(found.thread, f"the events could not be listed: {why}"))
        return out + self._work_off(found, now, read=False)

    def _work_off(
        self, found: lists.ThreadList, now: int, *, read: bool | None = None
    ) -> list[ev.Event]:
        """Process some of what was listed and what waited, in order."""
        if found.ready is None:
            lists.finish(found, read=bool(read))
        assert found.ready is not None
        out: list[ev.Event] = []
        for _ in range(lists.SLICE):
            if not found.ready:
                break
            one = found.ready.popleft()
            out += self._take(found.thread, one.event, one.frame, one.size, now, place=one.at)
        if found.ready:
            return out
        del self._lists[found.thread.thread_id]
        if found.thread.is_main:
            out += replies.looked_up(self._s, now, found.begun, lists.evidence(found))
            if self._asks and self._s.session is not None:
                self._asks = False
                self._s.calls.append(posts.look(self._s.session))
        return out

    # Time.

    def tick(self, now: int) -> list[ev.Event]:
        self._kept.touched = True
        s = self._s
        out: list[ev.Event] = []
        for found in list(self._lists.values()):
            if found.ready is not None:
                out += self._work_off(found, now)
            elif found.retry_at is not None and now >= found.retry_at:
                found.retry_at = None
                assert s.session is not None
                s.calls.append(lists.call_of(s.session, found))
        if s.waiting is not None:
            s.waiting.again.tick(now)
        for thread in list(s.threads.values()):
            if thread.rests_at is not None and now >= thread.rests_at:
                out += turns.rest_by_time(s, thread, now)
        due = s.doubts.due_at(now)
        if due and ev.MAIN not in self._lists and s.session is not None:
            s.doubts.looking.update(due)
            s.calls.append(self._read(s.main, now))
        if self._ask_at is not None and now >= self._ask_at:
            # Once more, with the list before.
            self._ask_at, self._asks = None, True
            s.calls.append(self._read(s.main, now))
        self._set_alarm()
        return out

    def _set_alarm(self) -> None:
        s = self._s
        times = [s.doubts.due if ev.MAIN not in self._lists else None, self._ask_at]
        times.append(None if s.waiting is None else s.waiting.again.due)
        times += [thread.rests_at for thread in s.threads.values()]
        times += [0 if one.ready is not None else one.retry_at for one in self._lists.values()]
        self.wake_at = soonest(*times)

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
        self._live, self._lists = set(), {}
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
            return self._error_frame(thread, value, now)
        if not isinstance(value, dict):
            return self._unread(call, frame.event, frame.data, "it is not a JSON object", now)
        if not isinstance(value.get("type"), str):
            value["type"] = frame.event
        if not value["type"]:
            return self._unread(call, frame.event, frame.data, "the event has no type", now)
        self._frames += 1
        found = self._lists.get(call.thread_id)
        if found is not None:
            full = lists.wait(found, value, self._frames, len(frame.data))
            if not full:
                return mended
            out = [*mended, lists.gap(thread, "too many came before the events were listed")]
            out += self._work_off(found, now, read=False)
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

    def _error_frame(self, thread: AgentThread, value: Any, now: int) -> list[ev.Event]:
        """Report an error that ends a stream (section 6.2), and ask how things are."""
        body = value.get("error", value) if isinstance(value, dict) else {}
        body = body if isinstance(body, dict) else {"message": str(body)}
        code = text_of(body.get("type")) or "error"
        self._frames += 1
        if self._s.session is not None and self._s.main.turn is not None:
            self._s.calls.append(posts.look(self._s.session))
        return [
            ev.ErrorReported(
                thread_id=thread.thread_id,
                turn_id=thread.turn,
                code=code,
                message=text_of(body.get("message")) or "The service ended the stream.",
                retry="retrying",
                native=ev.NativeRef(dialect=wire.DIALECT, type="error", frame=self._frames),
            )
        ]

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        if reason == TORN:
            self._frames += 1
            return [self._garbled(call, offending, reason)]
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
        out = [self._garbled(call, data if offending is None else offending, shown)]
        event = frames.salvaged(data, reason)
        if event is None or call.thread_id in self._lists:
            # A list that is read has it whole.
            return out
        thread = self._s.thread(call.thread_id)
        return out + self._take(thread, event, self._frames, len(data), now)

    def _garbled(self, call: Call, offending: bytes, reason: str) -> ev.Event:
        thread = self._s.thread(call.thread_id)
        return raw.garbled(
            wire.DIALECT, reason, offending, thread_id=thread.thread_id, turn_id=thread.turn
        )


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
