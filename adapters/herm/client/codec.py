"""The contract: what a session asks of the codec, handed on to the modules that it concerns.

A session is made at the backend with the first command, then the stream is opened, then the command
is posted, so that nothing of the first turn is missed (herm page, section 4.3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Literal

from adapters.driving.doubts import UncertainInput
from adapters.herm import wire
from adapters.herm.client import posts
from adapters.herm.client.abilities import ABILITIES, check
from adapters.herm.client.answers import SEALED_NAMES
from adapters.herm.client.asks import HermRequests
from adapters.herm.client.catching_up import CatchingUp
from adapters.herm.client.doubts import LostInputLookup
from adapters.herm.client.echoes import InputEchoes
from adapters.herm.client.inputs import HermInputs
from adapters.herm.client.numbers import Numbers
from adapters.herm.client.reading import EnvelopeReader
from adapters.herm.client.records import (
    RECORDS,
    HermClientState,
    HermStreamPosition,
    PostedInput,
    become,
)
from adapters.herm.client.sessions import HermSession
from adapters.herm.client.texts import TextRuns
from adapters.herm.client.turns import HermTurns
from adapters.herm.client.work import EnvelopeHandlers
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Ability, Call, ClientCodec, CloseReason, Response, Support
from adapters.model.stored import CodecCheckpoint, fill, newest
from adapters.wire.errors import SESSION_LOST, DragomanError, NotSupported
from adapters.wire.framing.sse import SseFrame

RUNNING_PATIENCE_MS = 3_600_000
"""How long a turn may be silent on a stream that opens: a tool of an hour. The page names no
figure."""

PAUSED_PATIENCE_MS = 72 * 3_600_000
"""How long an answer may take on a stream that opens: the longest that a dialect of ours
promises."""

_DELTAS = frozenset({ev.TextDelta.TYPE, ev.ReasoningDelta.TYPE})

_PLACE_FIELDS = tuple(field.name for field in dataclasses.fields(HermStreamPosition))

_ADMINISTRATION = ("archive", "reset", "delete", "update_session")


class HermClient(ClientCodec):
    """The client codec. `settings`: `agent` and `user_id` are what a create names, `task_id` is the
    session's known name."""

    dialect = wire.DIALECT
    framing: Literal["sse", "ndjson"] = "sse"
    history = Ability(Support.EMULATED, "as text before the next message")
    abilities: Mapping[str, Ability] = ABILITIES
    records = RECORDS
    filled = (HermStreamPosition, HermClientState)

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._calls: list[Call] = []
        self._single = settings.get("single_stream", False)
        self._s = s = HermClientState()
        self._at = at = HermStreamPosition()
        self._kept = CodecCheckpoint(HermClient, "the state of a Herm's session")
        self._sessions = HermSession(s, settings)
        self._numbers = Numbers(s, at)
        self._texts = TextRuns(s, at, self._numbers)
        self._asks = HermRequests(s)
        self._inputs = HermInputs(s, self._numbers, self._asks)
        self._turns = HermTurns(s, self._texts, self._asks, self._inputs)
        in_doubt = LostInputLookup(s, self._inputs, self._asks)
        self._catching_up = CatchingUp(s, at, self._numbers, self._calls)
        work = EnvelopeHandlers(s, at, self._texts, self._asks, self._turns)
        self._reading = EnvelopeReader(
            s,
            at,
            self._calls,
            self._numbers,
            self._texts,
            InputEchoes(s, self._numbers, self._asks, self._inputs),
            self._turns,
            work,
            in_doubt,
            self._catching_up,
        )
        # What a lost connection or a restart makes anew.
        self._live = False
        self._tried = False
        self._opens = False
        self.wake_at = None

    def started(self, event: ev.SessionStarted) -> None:
        self._sessions.started(event)

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        check(command)

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        self._kept.touched = self._s.wanted = True
        if self._s.session is None:
            return self._sessions.create(command_id, command)
        return self._inputs.submit(command_id, command)

    def submit_answers(
        self,
        answers: Mapping[str, cmd.AnswerInteraction],
        beside: tuple[str, cmd.SendMessage] | None = None,
    ) -> Call | None:
        """No message is taken while a turn runs (section 3.1): one beside the answers waits."""
        self._kept.touched = True
        return self._inputs.post_answers(answers) if len(answers) > 1 else None

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        """Look for the envelope of a command in the list: what is there was taken."""
        self._kept.touched = True
        s, inputs, sessions = self._s, self._inputs, self._sessions
        if s.session is None:
            # Nothing was said yet: a session that was perhaps made is empty, and another is made.
            return sessions.create(command_id, command) if sessions.has_agent else None
        if inputs.is_to_be_posted(command_id):
            return None
        if not isinstance(
            command, cmd.SendMessage | cmd.Steer | cmd.Interrupt | cmd.AnswerInteraction
        ):
            return None
        item = s.echoes.unsettled(command_id)
        other = None if item is None else item.other
        if other or not s.echoes.was_sent(command_id):
            # A crash came before the state was stored, or before it was posted otherwise: what was
            # sent is worked out again, and not sent as it was.
            try:
                call = inputs.submit(command_id, command)
            except NotSupported:
                # It has become pointless, but not undone: the list may show it all the same,
                # though no echo is known as its own.
                s.sent.append(PostedInput(command_id, ""))
            else:
                if other:
                    inputs.post_otherwise(call, other)
                    return None
        # How long it was doubted before a restart counts.
        s.doubts.open.setdefault(command_id, UncertainInput())
        return self._catching_up.start()

    def unknown(self, command_ids: Collection[str], now: int) -> list[ev.Event]:
        self._kept.touched = True
        return [event for name in command_ids for event in self._inputs.forget(name)]

    def take_calls(self) -> list[Call]:
        calls = [*self._calls, *self._inputs.take()]
        self._calls.clear()
        if self._s.session is not None and (self._live or self._tried):
            # The stream is open, or cannot be had: then the list tells what it would have.
            first = self._inputs.first()
            calls += [] if first is None else [first]
        self._kept.touched = self._kept.touched or bool(calls)
        return calls

    def streams(self) -> tuple[Call, ...]:
        if self._live or self._s.session is None or not self._s.wanted:
            return ()
        return (posts.stream(self._s.session, self._at.last_id),)

    @property
    def native_id(self) -> str | None:
        return self._s.session

    # What came of calls.

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        self._live = self._tried = self._opens = True
        self._catching_up.opened()
        self._numbers.opened()
        joined = bool(self._at.mark or self._s.posted)
        self._texts.opened(joined=joined)
        if joined:
            self._calls.append(self._catching_up.start(now))
        return []

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        out = self._answered(call, response, now)
        self._set_alarm()
        return out

    def _answered(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        match call.name:
            case "stream":
                self._live, self._tried, self._opens = False, True, False
                return []
            case "create":
                return self._sessions.created(call, response)
            case "events":
                if response.status >= 500:
                    out = self._unsure(call)
                else:
                    out = self._inputs.posted(call, response, now)
                    if out and self._s.paused and not self._s.requests:
                        out.append(self._turns.resumed(None, synthetic=True))
                # It may tell the number that a frame waits for.
                return out + self._reading.go_on(now)
            case "session":
                out, idle = self._sessions.looked(response)
                if idle and self._s.works and not self._s.paused:
                    # Its end is in a list that is read now, or in none.
                    start = self._catching_up.start(look=True, ends=self._s.turn)
                    self._calls.append(start)
                return out
            case name if name in _ADMINISTRATION:
                return self._sessions.administered(call, response, now)
            case _:
                return self._catching_up.listed(call, response, now) + self._reading.work_off(now)

    @property
    def held_back(self) -> Collection[str]:
        return self._inputs.held_back()

    def _unsure(self, call: Call) -> list[ev.Event]:
        """Look whether commands arrived that got no sure answer; they are never posted again."""
        self._s.doubts.open.update((name, UncertainInput()) for name in call.command_ids)
        self._calls.append(self._catching_up.start())
        return []

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        self._kept.touched = True
        info = raw.error_info(error)
        out: list[ev.Event] = []
        match call.name:
            case "stream":
                self._live, self._tried, self._opens = False, True, False
            case "session":
                pass
            case "events" if sent:
                out = self._unsure(call)
            case name if name in ("events", "create", *_ADMINISTRATION):
                out = self._inputs.not_done(call, info, sent=sent)
            case _:
                out = self._catching_up.failed(call, info.message, now) + self._reading.work_off(
                    now
                )
        self._set_alarm()
        return out

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        self._live = False
        self._catching_up.drop()
        # Of a recorded body nothing follows.
        return self._turns.settle() if self._single and reason is CloseReason.ENDED else []

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        info = raw.error_info(error, SESSION_LOST)
        s = self._s
        self._kept.touched, s.wanted = True, False
        out = self._turns.settle()
        pending = s.pending
        waiting = self._inputs.never_posted()
        if pending is not None and not pending.again.waits and s.turn is None:
            if pending.settled:
                out += self._turns.begin(None, synthetic=True)
            else:
                out.append(raw.settled(pending.command_id, "unknown", info))
        if s.turn is not None:
            out += self._turns.end("failed", info, None)
        for message in waiting:
            out += self._inputs.settle(message.command_id, "refused", info)
        s.pending, s.later = None, []
        return out

    def look(self, now: int) -> bool:
        if self._s.session is not None:
            # The session object tells whether anything runs, and the stream what that is.
            self._calls.append(posts.look(self._s.session))
        return True

    @property
    def patience(self) -> int:  # type: ignore[override]
        """Return how long silence is borne on a stream that opens; a backend that is away has a
        minute."""
        if self._s.turn is None or not self._opens:
            return 60_000
        return PAUSED_PATIENCE_MS if self._s.paused else RUNNING_PATIENCE_MS

    def tick(self, now: int) -> list[ev.Event]:
        self._kept.touched = True
        catching_up = self._catching_up
        self._s.queue.tick(now)
        if catching_up.hole_at is not None and now >= catching_up.hole_at:
            self._calls.append(catching_up.start(now, hole=True))
        out = self._reading.work_off(now) if catching_up.retry(now) else []
        if not catching_up.waits:
            out += self._turns.tick(now)
        due = self._s.doubts.due_at(now)
        if catching_up.fill is None and due and self._s.session is not None:
            self._calls.append(catching_up.start(now, look=True))
        self._set_alarm()
        return out

    def _set_alarm(self) -> None:
        fill = self._catching_up.fill
        times = [self._s.queue.due, self._catching_up.hole_at]
        if not self._catching_up.waits:
            # What was missed may still come.
            times.append(self._turns.due)
        times.append(self._s.doubts.due if fill is None else fill.retry_at)
        self.wake_at = min((at for at in times if at is not None), default=None)

    # The state.

    @property
    def frames(self) -> int:
        return self._at.frames

    @property
    def position(self) -> bytes:
        return self._kept.position(self._at.dump(), self._s.dump)

    def snapshot(self) -> bytes:
        return self._kept.snapshot(self._at.dump(), self._s.dump())

    @property
    def changed(self) -> bool:
        return self._kept.changed(self._s.dump)

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        first, later = self._kept.restore(snapshot, position)
        if stored := newest(first, later):
            place = newest(*(part[0] if part else [] for part in (first, later)))
            become(self._at, fill(HermStreamPosition, dict(zip(_PLACE_FIELDS, place, strict=True))))
            become(self._s, fill(HermClientState, stored[1]))
        self._live = False
        if self._s.session is None:
            self._s.pending = None
        self._set_alarm()

    # Frames.

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        assert isinstance(frame, SseFrame)
        touched, self._kept.touched = self._kept.touched, True
        waited, due = self._catching_up.waits, self._turns.due
        out = self._reading.feed(frame, now)
        changed = self._turns.due != due
        if waited or self._catching_up.waits or changed:
            self._set_alarm()
        if len(out) == 1 and not changed and out[0].TYPE in _DELTAS:
            # A delta alone has changed nothing but the place.
            self._kept.touched = touched
        return out

    def seals(self, frame: SseFrame | bytes) -> bool:
        data = frame.data if isinstance(frame, SseFrame) else frame
        return any(name in data for name in SEALED_NAMES)

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        self._kept.touched = True
        out = self._reading.garbage(offending, reason, now)
        self._set_alarm()
        return out
