"""The codec: hears what the session reports, asks the functions, and keeps the time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import orjson

from adapters.agui import wire
from adapters.agui.client import frames, interrupts, outcomes, posts, requests, turns
from adapters.agui.client.state import (
    BLOCK,
    RECORDS,
    RESULT_HOLD_MS,
    AguiBlock,
    AguiClientState,
    AguiEvent,
    native_of,
)
from adapters.driving import runs
from adapters.driving.part import soonest
from adapters.driving.runs import Run
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Ability, Call, ClientCodec, CloseReason, Response, Support
from adapters.model.conversation import Conversation
from adapters.model.stored import CodecCheckpoint, fill, newest
from adapters.wire.errors import SESSION_LOST, DragomanError, ErrorCode, NotSupported
from adapters.wire.framing import TORN
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import JsonError, mended_json, parse_json
from adapters.wire.partial_recovery import block_of

_DELTA = "TEXT_MESSAGE_CONTENT"


class AguiClient(ClientCodec):
    """The client codec. `settings`: `task_id` is the name of the thread."""

    dialect = wire.DIALECT
    framing: Literal["sse", "ndjson"] = "sse"
    abilities: Mapping[str, Ability] = posts.ABILITIES
    history = Ability(Support.NATIVE, "as messages of the conversation")
    remembers = False
    records = RECORDS
    filled = (AguiClientState, AguiBlock)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._thread: str = settings["task_id"]
        self._s = AguiClientState()
        self._kept = CodecCheckpoint(AguiClient, "the state of an AG-UI conversation")
        # The last delta of the open block, from which the next one is made.
        self._last: ev.TextDelta | None = None
        # The run that is asked for once more.
        self._again: Call | None = None
        self.wake_at = None

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        ability = self.abilities[command.TYPE]
        if ability.support is Support.IMPOSSIBLE:
            raise NotSupported(f"agui: `{command.TYPE}` is impossible: {ability.how}")
        posts.check(command)
        if isinstance(command, cmd.SendMessage):
            name = command.edit_of or command.retry_of
            if name is not None and self._said.place_of(name) is None:
                raise NotSupported(f"agui: message `{name}` is not one of this conversation's")

    @property
    def _said(self) -> Conversation:
        return self.conversation or Conversation()

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        self._kept.touched = True
        s = self._s
        match command:
            case cmd.SendMessage():
                return requests.message(s, self._thread, self._said, command_id, command)
            case cmd.AnswerInteraction():
                if command.request_id not in s.asks.open:
                    raise NotSupported(f"agui: request `{command.request_id}` is not open any more")
                interrupts.give(s, command_id, command)
                call = requests.resume(s, self._thread, self._said)
                if call is None:
                    s.runs.kept.append(command.request_id)
                    self._set_alarm()
                return call
            case cmd.Interrupt():
                s.runs.stops.append(command_id)
                return posts.leave(command_id)
            case _:
                raise NotSupported(f"agui: nothing carries `{command.TYPE}`")

    def submit_answers(
        self,
        answers: Mapping[str, cmd.AnswerInteraction],
        beside: tuple[str, cmd.SendMessage] | None = None,
    ) -> Call | None:
        # They go one by one, and the last of them takes the others with it. Words beside them are
        # the next run's: some agents lose what comes beside a `resume`.
        return None

    def unknown(self, command_ids: Collection[str], now: int) -> list[ev.Event]:
        self._kept.touched = True
        s, run = self._s, self._s.runs.current
        s.runs.stops = [name for name in s.runs.stops if name not in command_ids]
        if run is None or not set(command_ids).intersection(run.commands):
            return runs.forget(s.asks, s.ledger, list(command_ids))
        # It may have been sent, and must not be sent again.
        s.runs.cut = False
        out = self._cut(runs.RESTARTED)
        self._set_alarm()
        return out

    def streams(self) -> tuple[Call, ...]:
        # Nothing opens the body of a run again; only one that was not begun is asked for again.
        return () if self._again is None else (self._again,)

    # What came of calls.

    def _run_of(self, call: Call) -> Run | None:
        """Return the run that a call has asked for: the body of the one before may end after its
        run, when the next one is asked for already."""
        run = self._s.runs.current
        if run is None or not call.stream:
            return None
        return run if not run.commands or call.command_id in run.commands else None

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        self._last = self._again = None
        s, run = self._s, self._run_of(call)
        if run is None:
            return []
        out = outcomes.left_out(s, self._said)
        return out if run.answers else [*s.ledger.settle(run.commands[0], "taken"), *out]

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        s, run = self._s, self._run_of(call)
        if run is None:
            return []
        self._again = None
        if 200 <= response.status < 300:
            # A run, but nothing of it can be read.
            kind = response.headers.get("Content-Type", "").partition(";")[0][:80]
            words = f"The agent answered with `{kind}` and not with an event stream."
            return self.opened(call, response, now) + self._cut(
                words, str(ErrorCode.BACKEND_PROTOCOL)
            )
        error = posts.refusal(response)
        if response.status in (502, 504):
            # From something in between: the agent may be at work.
            words = f"{error.message} Whether the agent began is not known."
            return turns.cut(s, error.model_copy(update={"message": words}))
        s.runs.take()
        return outcomes.refused(s, run, error)

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        self._kept.touched = True
        s, run = self._s, self._run_of(call)
        if run is None:
            return []
        self._again = None
        if sent:
            return self._cut(f"{error.message} {_UNKNOWN}", str(error.code), quote=error.quote)
        s.runs.take()
        return outcomes.refused(s, run, raw.error_info(error))

    def _cut(
        self, words: str, code: str = SESSION_LOST, *, quote: str | None = None
    ) -> list[ev.Event]:
        self._last = self._again = None
        return turns.cut(self._s, ev.ErrorInfo(code=code, message=words, quote=quote))

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        self._kept.touched = True
        self._last = None
        out: list[ev.Event] = []
        if reason is CloseReason.STOPPED:
            self._again = None
            out = outcomes.stopped(self._s)
        elif self._run_of(call) is not None and (wait := self._s.runs.busy) is not None:
            self._s.runs.busy, self._s.runs.again_at = None, now + wait
        elif self._run_of(call) is not None:
            ended = reason is CloseReason.ENDED
            out = self._cut(runs.INCOMPLETE if ended else runs.BROKEN)
        self._set_alarm()
        return out

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        self._kept.touched = True
        out = self._cut(error.message, quote=error.quote)
        self._set_alarm()
        return out

    def look(self, now: int) -> bool:
        # Nothing can be asked, and to break the body would stop the agent.
        return False

    # Time.

    def tick(self, now: int) -> list[ev.Event]:
        self._kept.touched = True
        self._last = None
        s, out = self._s, list[ev.Event]()
        if s.runs.cut:
            s.runs.cut = False
            out += self._cut(runs.RESTARTED)
        if s.runs.again_at is not None and s.runs.current is not None and now >= s.runs.again_at:
            s.runs.again_at = None
            self._again = requests.again(s, self._thread, self._said, s.runs.current)
        out += runs.tell_kept(s.runs, s.asks, s.ledger, s.turn)
        out += frames.tick(s, now)
        self._set_alarm()
        return out

    def _set_alarm(self) -> None:
        s = self._s
        held = None if s.result is None else s.result.at + RESULT_HOLD_MS
        self.wake_at = soonest(s.runs.due, s.held.due, held)

    # The state.

    @property
    def frames(self) -> int:
        return self._s.block.frames

    @property
    def position(self) -> bytes:
        return self._kept.position(self._place(), self._s.dump)

    def _place(self) -> bytes:
        block = self._s.block
        # Once for each event, and of our own numbers only but for the name of the message.
        return orjson.dumps([[getattr(block, name) for name in BLOCK]])

    def snapshot(self) -> bytes:
        return self._kept.snapshot(self._place(), self._s.dump())

    @property
    def changed(self) -> bool:
        return self._kept.changed(self._s.dump)

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        if stored := newest(*self._kept.restore(snapshot, position)):
            (block,), state = stored
            self._s = fill(AguiClientState, state)
            self._s.block = fill(AguiBlock, dict(zip(BLOCK, block, strict=True)))
        # The body that was read has no reader any more.
        self._s.runs.cut = self._s.runs.current is not None
        self._last = None
        self._set_alarm()

    # Frames.

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, SseFrame)
        payload: Any
        mended: list[ev.Event] = []
        try:
            payload = parse_json(frame.data)
        except JsonError:
            try:
                payload = mended_json(frame.data)
                mended.append(raw.mended())
            except JsonError:
                payload = None
        s, last = self._s, self._last
        s.block.frames += 1
        if type(payload) is not dict or type(name := payload.get("type")) is not str:
            words = "an event is not a JSON object with a `type`"
            told = raw.garbled(wire.DIALECT, words, frame.data, turn_id=s.turn)
            return [told, *self._salvaged(call, frame.data, words, now)]
        # The hot path: the next piece of the open text.
        if (
            last is not None
            and name == _DELTA
            and not mended
            and payload.get("messageId") == s.block.message
            and type(text := payload.get("delta")) is str
            and "metadata" not in payload
        ):
            self._last = delta = ev.next_delta(last, text, s.block.frames)
            return [delta]
        self._last = None
        self._kept.touched = True
        return mended + self._take(call, name, payload, now)

    def _take(self, call: Call, name: str, payload: dict[str, Any], now: int) -> list[ev.Event]:
        s, out = self._s, self._begin_unasked(name, payload)
        if self._run_of(call) is None:
            # Behind the end of its run.
            return out
        seen = AguiEvent(name, payload, native_of(payload, s.block.frames), now)
        out += frames.meaning(s, seen)
        if name == _DELTA and out and isinstance(first := out[-1], ev.TextDelta):
            self._last = first if first.extra is None and s.block.kind == "text" else None
        self._set_alarm()
        return out

    def _begin_unasked(self, name: str, payload: dict[str, Any]) -> list[ev.Event]:
        """Begin a run that nobody here asked for: the next one of a recording, or of a body that
        has several. What was asked before it is answered."""
        s = self._s
        if s.runs.current is not None or name not in ("RUN_STARTED", "RUN_ERROR"):
            return []
        s.runs.current = Run(str(payload.get("runId") or ""))
        out: list[ev.Event] = []
        for request_id, asked in list(s.asks.open.items()):
            if asked.form == "tool":
                s.calls.pop(request_id, None)
            found = s.asks.resolve(request_id, s.turn)
            if found is not None:
                out.append(found.event)
        if out:
            out.append(ev.TurnResumed(thread_id=ev.MAIN, turn_id=s.turn, synthetic=True))
        return out

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        self._kept.touched = True
        self._last = None
        if reason == TORN:
            # The end of a body that broke, which `closed` tells.
            return []
        self._s.block.frames += 1
        told = raw.garbled(wire.DIALECT, reason, offending, turn_id=self._s.turn)
        _, data = block_of(offending)
        return [told, *self._salvaged(call, data, reason, now)]

    def _salvaged(self, call: Call, data: bytes, reason: str, now: int) -> list[ev.Event]:
        """Take what can be read of an event that counts."""
        self._last = None
        self._kept.touched = True
        payload = frames.salvaged(data, reason)
        return [] if payload is None else self._take(call, payload["type"], payload, now)


_UNKNOWN = "Whether the agent has begun, and what it has done, is not known."
