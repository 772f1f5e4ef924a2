"""The codec: hears what the session reports, asks the parts and the modules, and keeps the time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import orjson

from adapters.driving.part import PartOutput, soonest
from adapters.engine import wire
from adapters.engine.alignment import Decision, MarkedFrame, StreamPosition, mark_of, mark_of_text
from adapters.engine.client import (
    early_results,
    frames,
    interactions,
    posts,
    replies,
    turn_end,
    turns,
)
from adapters.engine.client.state import (
    BLOCK,
    RECORDS,
    EngineBlock,
    EngineClientState,
    EngineFrame,
    native_of,
)
from adapters.engine.client.streams import EngineStreams, known_of
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Ability, Call, ClientCodec, CloseReason, Response, Support
from adapters.model.stored import CodecCheckpoint, fill, newest
from adapters.wire.errors import SESSION_LOST, DragomanError, NotSupported
from adapters.wire.framing import TORN
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import JsonError, mended_json, parse_json

SLICE = 64
"""Frames of a replay that waited and are processed at once: so many hold nobody else up."""


class EngineClient(ClientCodec):
    """The client codec. `settings`: `task_id` names the session; `interrupt` may be `deny`."""

    dialect = wire.DIALECT
    framing: Literal["sse", "ndjson"] = "sse"
    history = Ability(Support.EMULATED, "as text before the next message")
    records = RECORDS
    filled = (EngineClientState, EngineBlock)
    refuses_credential = staticmethod(replies.is_of_credential)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._task: str = settings["task_id"]
        self._denies = settings.get("interrupt") == "deny"
        self.abilities: Mapping[str, Ability] = (
            posts.ABILITIES_DENYING if self._denies else posts.ABILITIES
        )
        self._s = EngineClientState()
        self._reached = StreamPosition()
        self._kept = CodecCheckpoint(EngineClient, "the state of an Engine's session")
        self._streams = EngineStreams()
        # The last delta of the open block, from which the next one is made, and its native name.
        self._last: ev.TextDelta | ev.ReasoningDelta | None = None
        self._last_name = ""
        self._calls: list[Call] = []
        self.wake_at = None

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        ability = self.abilities[command.TYPE]
        if ability.support is Support.IMPOSSIBLE:
            raise NotSupported(f"engine: `{command.TYPE}` is impossible: {ability.how}")
        posts.check(command)
        if isinstance(command, cmd.Interrupt):
            posts.check_deniable(self._s.ask)

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        self._kept.touched = True
        match command:
            case cmd.SendMessage():
                call = posts.execute(self._task, command_id, command)
                turns.expect(self._s, command_id, command)
                self._streams.sent(call)
                return call
            case cmd.AnswerInteraction():
                ask = self._s.asks.open.get(command.request_id)
                if ask is None:
                    # An answer is addressed by task (section 10.1): it would go to another request.
                    raise NotSupported(
                        f"engine: request `{command.request_id}` is not the one that waits"
                    )
                call = posts.respond(self._task, command_id, command, ask.kind)
            case cmd.Interrupt() if self._denies:
                posts.check_deniable(self._s.ask)
                call = posts.deny(self._task, command_id)
            case _:
                raise NotSupported(f"engine: nothing carries `{command.TYPE}`")
        interactions.give(self._s, command_id, command)
        return call

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        self._kept.touched = True
        match command:
            case cmd.SendMessage():
                # Evidence is a turn in replay that we have not seen; `streams` asks for it.
                turns.expect(self._s, command_id, command)
                self._streams.sent(None)
                return None
            case cmd.Interrupt() if not self._denies:
                return None
            case cmd.AnswerInteraction() | cmd.Interrupt():
                interactions.give(self._s, command_id, command)
                return replies.look(self._s, command_id)
            case _:
                return None

    def unknown(self, command_ids: Collection[str], now: int) -> list[ev.Event]:
        self._kept.touched = True
        out = replies.forget(self._s, command_ids)
        self._set_alarm()
        return out

    def take_calls(self) -> list[Call]:
        calls, self._calls = self._calls, []
        return calls

    def streams(self) -> tuple[Call, ...]:
        s = self._s
        if self._streams.live is not None or self._streams.rest:
            return ()
        if s.turn is None and s.ledger.message is None:
            return ()
        if s.ending is not None and s.ending.error is not None:
            # All is known; the turn's end only waits for `tick`.
            return ()
        return (posts.replay(self._task, self._reached.time),)

    # What came of calls.

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        self._last = None
        self._streams.opened(call, self._reached, idle=self._s.turn is None)
        if call.name == "replay":
            return []
        assert call.command_id is not None
        return self._s.ledger.settle(call.command_id, "taken")

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        if call.stream:
            self._streams.over(call)
        if call.name == "look":
            return self._follow(
                replies.looked(self._s, self._task, response, self._reached.time, now)
            )
        return self._follow(replies.reply(self._s, self._task, call, response, now))

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        self._kept.touched = True
        if call.stream:
            self._streams.over(call)
        return self._follow(replies.no_reply(self._s, self._task, call, error, sent=sent, now=now))

    def _follow(self, out: PartOutput) -> list[ev.Event]:
        """Take up what follows from a reply."""
        self._calls += out.calls
        self._set_alarm()
        return list(out.events)

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        self._kept.touched = True
        if self._streams.live is not call:
            return []
        decision = self._streams.closed(reason)
        if reason is CloseReason.STOPPED:
            return []
        out = self._take_sorted(decision, now)
        if self._streams.rest:
            self._streams.ended = reason
        else:
            out += turn_end.end_with_body(self._s, reason)
        self._set_alarm()
        return out

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        self._kept.touched = True
        self._last = None
        self._streams.drop()
        before = self._s.turns
        out = turn_end.lost(self._s, raw.error_info(error, SESSION_LOST))
        if self._s.turns != before:
            self._streams.turn_begun()
        self._set_alarm()
        return out

    def look(self, now: int) -> bool:
        # The replay tells whether the turn is over; what is asked is listed too.
        self._calls.append(posts.pending("look"))
        return True

    @property
    def patience(self) -> int:  # type: ignore[override]
        return self._streams.patience(paused=self._s.ask is not None)

    # Time.

    def tick(self, now: int) -> list[ev.Event]:
        self._kept.touched = True
        s = self._s
        decision = self._streams.tick(now)
        out = self._work_off(now, SLICE) if decision is None else self._take_sorted(decision, now)
        out += s.held.tick(now)
        if not self._streams.rest:
            out += early_results.tick(s, now)
        if s.end_due is not None and now >= s.end_due and not self._streams.rest:
            out += turn_end.end(s)
        self._calls += [replies.look(s, command_id) for command_id in s.doubts.due_at(now)]
        self._set_alarm()
        return out

    def _set_alarm(self) -> None:
        s = self._s
        self.wake_at = soonest(
            s.held.due, early_results.due(s), s.end_due, s.doubts.due, self._streams.due
        )

    # The state.

    @property
    def frames(self) -> int:
        return self._reached.frames

    @property
    def position(self) -> bytes:
        return self._kept.position(self._place(), self._s.dump)

    def _place(self) -> bytes:
        block = self._s.block
        # Once for each event, and of our own numbers only: nothing in it needs a check.
        return orjson.dumps(
            [self._reached.dump(), [block.kind, block.over, block.number, block.index]]
        )

    def snapshot(self) -> bytes:
        return self._kept.snapshot(self._place(), self._s.dump())

    @property
    def changed(self) -> bool:
        return self._kept.changed(self._s.dump)

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        if stored := newest(*self._kept.restore(snapshot, position)):
            (reached, block), state = stored
            self._reached = StreamPosition.load(reached)
            self._s = fill(EngineClientState, state)
            self._s.block = fill(EngineBlock, dict(zip(BLOCK, block, strict=True)))
        self._last = None
        self._streams = EngineStreams()
        self._set_alarm()

    # Frames.

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, SseFrame)
        name = frame.event
        if name == "heartbeat":
            return []
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
        # The hot path: the next piece of the open block.
        last = self._last
        if (
            last is not None
            and not mended
            and name == self._last_name
            and type(payload) is dict
            and len(payload) == 1
            and type(text := payload.get("text")) is str
        ):
            reached = self._reached
            reached.count(mark_of_text(name, text))
            # The next delta is made after the newest one: what these have in common goes with it.
            self._last = delta = ev.next_delta(last, text, reached.frames)
            return [delta]
        if type(payload) is not dict:
            payload = None
        elif payload.get("task_id") not in (None, self._task):
            # Section 11.3: replay has no task parameter, so other tasks may be between ours.
            return []
        self._streams.torn = False
        return mended + self._read(known_of(name, payload, frame.data), now)

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        self._streams.torn = True
        mark = mark_of("", None, offending)
        return self._read(MarkedFrame("", None, offending, mark, reason=reason), now)

    def _read(self, frame: MarkedFrame, now: int) -> list[ev.Event]:
        """Make events of a frame: of a replay, where that is not known yet."""
        if self._streams.rest:
            # Behind what waits, which gets shorter with each frame that comes.
            self._streams.rest.append(frame)
            out = self._work_off(now, 2)
            self._set_alarm()
            return out
        if self._streams.alignment is None:
            return self._take(frame, now)
        in_turn = self._s.turn is not None
        out = self._take_sorted(self._streams.sort(frame, now, in_turn=in_turn), now)
        self._set_alarm()
        return out

    def _take_sorted(self, decision: Decision | None, now: int) -> list[ev.Event]:
        """Take what of a replay is new, and say where something may be missing before it."""
        out: list[ev.Event] = []
        if decision is None:
            return out
        if decision.gap is not None:
            after = self._reached.time
            self._reached.part()
            out.append(
                ev.Gap(
                    thread_id=ev.MAIN,
                    turn_id=self._s.turn,
                    reason=decision.gap,
                    cursor_from=None if after is None else str(after),
                    synthetic=True,
                )
            )
        self._streams.rest.extend(decision.frames)
        return out + self._work_off(now, SLICE)

    def _work_off(self, now: int, most: int) -> list[ev.Event]:
        """Process some of the frames that wait; the others have their turn next.

        Never as far as between two turns: a message that is sent there would be taken for that of a
        turn that waits.
        """
        out: list[ev.Event] = []
        streams = self._streams
        while streams.rest and (most > 0 or self._s.turn is None):
            out += self._take(streams.rest.popleft(), now)
            most -= 1
        if streams.rest:
            # The next delta that comes stands behind them.
            self._last = None
        elif (reason := streams.ended) is not None:
            streams.ended = None
            out += turn_end.end_with_body(self._s, reason)
        return out

    def _take(self, frame: MarkedFrame, now: int) -> list[ev.Event]:
        """Make events of a frame that is new."""
        touched, self._kept.touched = self._kept.touched, True
        self._last = None
        s, streams, reached = self._s, self._streams, self._reached
        name, payload = frame.name, frame.payload
        if payload is None:
            return self._take_garbled(frame, now)
        streams.went_on()
        reached.count(frame.mark, frame.time, frame.begins)
        native = native_of(name, payload, reached.frames)
        seen = EngineFrame(name, payload, native, now, len(frame.data))
        if frames.is_late(s, name, payload, may_begin=streams.may_begin):
            return frames.late(s, seen)
        before = s.turns
        out = frames.meaning(s, seen)
        if s.turns != before:
            streams.turn_begun()
        last = out[-1] if out else None
        if name in _DELTAS and isinstance(last, ev.TextDelta | ev.ReasoningDelta):
            if len(payload) == 1 and s.ending is None:
                self._last, self._last_name = last, name
            if len(out) == 1:
                # A delta alone has changed nothing but the position.
                self._kept.touched = touched
                return out
        self._set_alarm()
        return out

    def _take_garbled(self, frame: MarkedFrame, now: int) -> list[ev.Event]:
        if self._streams.is_echo(frame.mark):
            return []
        self._reached.count_garbled(frame.mark, framed=frame.reason is None)
        reason = frame.reason
        if reason is None:
            reason = f"event `{frame.name or 'message'}`: the payload is not a JSON object"
        garbled = raw.garbled(wire.DIALECT, reason, frame.data, turn_id=self._s.turn)
        out = frames.hold(self._s, [garbled], frame.name, now)
        if reason != TORN:
            s, streams, before = self._s, self._streams, self._s.turns
            seen = frames.salvaged(frame, self._task, self._reached.frames, now)
            if seen is not None and not frames.is_late(
                s, seen.name, seen.payload, may_begin=streams.may_begin
            ):
                out += frames.meaning(s, seen)
            if s.turns != before:
                streams.turn_begun()
        self._set_alarm()
        return out


_DELTAS = frozenset({"text_delta", "thinking_delta"})
