"""The codec: hears the hooks of one session, asks the modules, and keeps the time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from adapters.driving.ledger import SentInput
from adapters.driving.part import soonest
from adapters.hermes_agent import wire
from adapters.hermes_agent.client import children, gateway, messages, posts, tools, turns
from adapters.hermes_agent.client.state import (
    RECORDS,
    HermesState,
    HermesThread,
    Hook,
    hook_of,
    unknown,
)
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Ability, Call, ClientCodec, CloseReason, Response
from adapters.model.stored import CodecCheckpoint, fill, newest
from adapters.wire.errors import SESSION_LOST, DragomanError, NotSupported
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import JsonError, mended_json, name_of, parse_json

Handler = Callable[[HermesState, HermesThread, Hook], list[ev.Event]]

_HANDLERS: dict[str, Handler] = {
    "on_session_start": messages.session_start,
    "pre_llm_call": messages.turn_start,
    "pre_api_request": messages.request_start,
    "post_api_request": messages.request_end,
    "api_request_error": messages.request_error,
    "pre_tool_call": tools.called,
    "post_tool_call": tools.returned,
    "pre_approval_request": tools.approval,
    "post_approval_response": tools.approved,
    "subagent_start": children.started,
    "subagent_stop": children.stopped,
    "post_llm_call": messages.answered,
    "on_session_end": messages.turn_end,
    "on_session_finalize": messages.finalized,
    "on_session_reset": messages.reset,
    "on_stream_start": messages.stream_start,
    "on_stream_delta": messages.stream_delta,
    "on_stream_end": messages.stream_end,
    "on_interim_message": messages.interim,
}
"""Hooks of the agent (sections 2.1 and 2.2)."""

_GATEWAY: dict[str, Handler] = {
    "gateway:session:start": gateway.session_start,
    "gateway:agent:start": gateway.turn_start,
    "gateway:agent:step": gateway.step,
    "gateway:agent:end": gateway.turn_end,
}
"""Hooks of the gateway (section 4)."""

_TURN_OF_GATEWAY = frozenset(_GATEWAY) - {"gateway:session:start"}

_WORK = frozenset(_HANDLERS) - {
    *("on_session_start", "on_session_finalize", "on_session_reset"),
    *("subagent_start", "subagent_stop"),
}
"""Hooks that are of a turn: those of one that is over come late."""

_PASSES = frozenset({"pre_approval_request", "pre_tool_call", "post_tool_call", "subagent_start"})
"""Hooks that may tell the permission of a call that is held, so that it is not let go before."""

NOT_WAITING = "The hook waits no more: Hermes has blocked the call."


class HermesHooksClient(ClientCodec):
    """The client codec. `settings`: `patience_seconds` is how long a turn may go on without
    a hook."""

    dialect = wire.DIALECT
    framing: Literal["sse", "ndjson"] = "ndjson"
    abilities: Mapping[str, Ability] = posts.ABILITIES
    records = RECORDS
    filled = (HermesState,)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        seconds = settings.get("patience_seconds")
        self._silent = turns.SILENT_MS if seconds is None else round(seconds * 1000)
        self._s = HermesState()
        self._kept = CodecCheckpoint(HermesHooksClient, "the state of a Hermes session")
        self._frames = 0
        self.wake_at = None

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        posts.check(command)

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        self._kept.touched = True
        if not isinstance(command, cmd.AnswerInteraction):
            raise NotSupported(f"hermes-agent: nothing carries `{command.TYPE}`")
        given = posts.given(command_id, command)
        key = tools.give(self._s, command_id, command.request_id, given)
        if key is None:
            raise NotSupported(f"hermes-agent: request `{command.request_id}` is not open any more")
        self._s.ledger.expect(SentInput(command_id, command.KIND))
        blocked = "" if given.outcome == "approved" else command.reason or tools.DENIED
        return posts.decision(key, blocked, command_id)

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        # The hook that waited asks again after a restart, and a decision that it has does no harm.
        if self._s.asks.given_by(command_id) is None:
            return None
        assert isinstance(command, cmd.AnswerInteraction)
        return self.submit(command_id, command)

    def unknown(self, command_ids: Collection[str], now: int) -> list[ev.Event]:
        self._kept.touched = True
        out: list[ev.Event] = []
        for command_id in command_ids:
            self._s.ledger.drop(command_id)
            out += self._s.asks.release(command_id)
        self._set_alarm()
        return out

    def take_calls(self) -> list[Call]:
        calls, self._s.calls = self._s.calls, []
        return calls

    def streams(self) -> tuple[Call, ...]:
        return ()

    @property
    def native_id(self) -> str | None:
        return self._s.session

    # What came of calls.

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        return []

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        if call.command_id is None:
            return []
        if response.status == 200:
            out = tools.delivered(self._s, call.command_id)
        else:
            error = ev.ErrorInfo(code="not_waiting", message=NOT_WAITING, status=response.status)
            out = tools.undelivered(self._s, call.command_id, error)
        self._set_alarm()
        return out

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        self._kept.touched = True
        if call.command_id is None:
            return []
        out = tools.undelivered(self._s, call.command_id, raw.error_info(error))
        self._set_alarm()
        return out

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        # The end of a recording: nothing of the agent's own comes any more.
        self._kept.touched = True
        out = self._hear_gateway(now)
        self._set_alarm()
        return out

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        self._kept.touched = True
        info = raw.error_info(error, SESSION_LOST)
        out = self._hear_gateway(now)
        out += self._s.held.let_go()
        for thread in self._s.threads.values():
            out += turns.end(self._s, thread, None, "failed", info, synthetic=True)
        self._set_alarm()
        return out

    def look(self, now: int) -> bool:
        # Nothing can be asked of a Hermes: its silence has an end of its own.
        return False

    # Time.

    def tick(self, now: int) -> list[ev.Event]:
        self._kept.touched = True
        s, held = self._s, self._s.held
        out = held.tick(now)
        due = gateway.due(s)
        if due is not None and now >= due:
            out += self._hear_gateway(now)
        out += held.keep(tools.tick(s, now), now)
        out += held.keep(turns.tick(s, self._silent, now), now)
        self._set_alarm()
        return out

    def _hear_gateway(self, now: int) -> list[ev.Event]:
        """Hear the hooks of the gateway that wait: there are none of the agent's own."""
        s = self._s
        waiting, s.gateway = s.gateway, []
        s.only_gateway = s.only_gateway or bool(waiting)
        hooks = (hook_of(one.value, one.frame, now) for one in waiting)
        return [event for seen in hooks for event in self._heard(seen)]

    def _set_alarm(self) -> None:
        s = self._s
        self.wake_at = soonest(s.held.due, tools.due(s), turns.due(s, self._silent), gateway.due(s))

    # Hooks.

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, bytes)
        self._kept.touched = True
        self._frames += 1
        mended: list[ev.Event] = []
        value: Any
        try:
            value = parse_json(frame)
        except JsonError as error:
            try:
                value = mended_json(frame)
                mended.append(raw.mended())
            except JsonError:
                return [raw.garbled(self.dialect, f"a hook is not JSON: {error}", frame)]
        if not isinstance(value, dict) or name_of(value.get("hook_event_name")) is None:
            return [raw.garbled(self.dialect, "a hook has no `hook_event_name`", frame)]
        out = mended + self._hear(hook_of(value, self._frames, now))
        self._set_alarm()
        return out

    def _hear(self, seen: Hook) -> list[ev.Event]:
        s = self._s
        if not s.is_new(seen.native.id) and seen.waits is None:
            return []
        named = seen.session
        if s.session is None and named is not None:
            s.session = named
        if not seen.name.startswith(wire.GATEWAY):
            s.agent_hooks = True
            s.gateway.clear()
        elif seen.name in _TURN_OF_GATEWAY and not s.only_gateway and not s.agent_hooks:
            gateway.hold(s, seen)
            return []
        return self._heard(seen)

    def _heard(self, seen: Hook) -> list[ev.Event]:
        s = self._s
        thread = s.thread_of(_thread_name(s, seen))
        handler = (_GATEWAY if seen.name in _GATEWAY else _HANDLERS).get(seen.name)
        if seen.name in _GATEWAY and s.agent_hooks:
            # The agent's own hooks tell more.
            return []
        if handler is None:
            return [*self._held(seen), unknown(s, seen)]
        if seen.name in _WORK and turns.is_late(thread, seen):
            return [*self._held(seen), unknown(s, seen)]
        thread.heard = seen.now
        out = self._held(seen) + _gap(thread, seen)
        return out + self._in_order(handler(s, thread, seen), seen)

    def _held(self, seen: Hook) -> list[ev.Event]:
        """Let go what is held, where a hook is not about its permission."""
        if seen.name in _PASSES:
            return []
        return self._s.held.let_go()

    def _in_order(self, events: list[ev.Event], seen: Hook) -> list[ev.Event]:
        """Hold calls whose permission is not known yet, and what comes after them."""
        held = self._s.held
        out = held.keep(events, seen.now)
        for event in events:
            if isinstance(event, ev.ToolCalled) and event.permission != "unknown":
                held.decide(event.call_id, event.permission)
        return out + held.go()

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        self._frames += 1
        return [raw.garbled(self.dialect, reason, offending)]

    # The state.

    @property
    def frames(self) -> int:
        return self._frames

    def _place(self) -> bytes:
        return b"%d" % self._frames

    @property
    def position(self) -> bytes:
        return self._kept.position(self._place(), self._s.dump)

    def snapshot(self) -> bytes:
        return self._kept.snapshot(self._place(), self._s.dump())

    @property
    def changed(self) -> bool:
        return self._kept.changed(self._s.dump)

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        if stored := newest(*self._kept.restore(snapshot, position)):
            frames, state = stored
            if type(frames) is not int:
                raise ValueError("the place of a Hermes session is a number")
            self._frames = frames
            self._s = fill(HermesState, state)
        self._set_alarm()


def _gap(thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Say that hooks are missing, where their sender says so."""
    if not seen.dropped:
        return []
    reason = f"{seen.dropped} hooks of this Hermes did not arrive; some may be of this session."
    return [ev.Gap(**thread.of(seen.native), reason=reason)]


def _thread_name(s: HermesState, seen: Hook) -> str | None:
    """Return the session id of the thread that a hook is of. An approval has none: its turn's id
    begins with it."""
    if seen.session is not None:
        return seen.session
    return next((name for name in wire.sessions_of(seen.whole) if name in s.threads), None)
