"""Plays the agent's part of a script: to a session it is the client codec of a backend.

It opens no stream. A command is compared with the cues that are left; what the script says next is
played as time passes, up to the next cue that waits for a person. A command that fits no cue is
refused, and the refusal says what was recorded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Ability, Call, ClientCodec, CloseReason, Request, Response, Support
from adapters.model.stored import CodecCheckpoint, fill
from adapters.offline.replay.script import (
    AnswerMeaning,
    ReplayCue,
    ReplayScript,
    ReplayStep,
    said_by,
    words_of,
)
from adapters.wire.errors import DragomanError, NotSupported, cut
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import format_json

_CONTENT: TypeAdapter[tuple[ev.Content, ...]] = TypeAdapter(
    tuple[ev.Content, ...], config=ConfigDict(defer_build=True)
)

_KEPT_HERE = Ability(Support.EMULATED, "kept here")
_NOT_THERE = Ability(Support.IMPOSSIBLE, "the capture has none")
_ALWAYS = frozenset({"send_message", "answer", "tool_result"})
_LOCAL = frozenset({"reset", "archive", "delete", "update_session"})


@dataclasses.dataclass(slots=True)
class ReplayState:
    """How far it is played. By the number of a cue, `given` has the command that gave it, `said`
    the content of a message that the script does not have, and `owed` the place of an event that
    its cue was not there for. `since` is when the event before was due,
    None after what a person did: that took its own time.
    """

    place: int = 0
    given: dict[str, str] = dataclasses.field(default_factory=dict)
    said: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    owed: dict[str, int] = dataclasses.field(default_factory=dict)
    since: float | None = None


class ReplayClient(ClientCodec):
    """Replays one script to one session.

    Args:
        script: what to play.
        dialect: of the backend that was recorded.
        speed: how many times as fast as it was recorded; infinite for without waiting.
        name: the session's id at the backend.
    """

    framing: Literal["sse", "ndjson"] = "ndjson"
    records: ClassVar[tuple[type, ...]] = (ReplayState,)
    filled: ClassVar[tuple[type, ...]] = (ReplayState,)

    def __init__(self, script: ReplayScript, dialect: str, speed: float, name: str) -> None:
        self._script = script
        self._speed = speed
        self._name = name
        self.dialect = dialect
        self.abilities: Mapping[str, Ability] = abilities_of(script)
        self.wake_at = None
        self._s = ReplayState()
        self._kept = CodecCheckpoint(ReplayClient, "the state of a replay")

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        ability = self.abilities[command.TYPE]
        if ability.support is Support.IMPOSSIBLE:
            raise NotSupported(f"replay: `{command.TYPE}` is impossible: {ability.how}")
        if command.TYPE in _LOCAL or isinstance(command, cmd.CreateSession):
            return
        # A message may wait here behind others, so each that is left may be its.
        left = self._left(command)
        if not any(_fits(cue, command, self._script) for _, cue in left):
            raise NotSupported(_mismatch(left, command, self._script))

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        self._kept.touched = True
        if not isinstance(command, cmd.CreateSession):
            left = self._left(command)
            number, cue = left[0] if left else (-1, None)
            if cue is None or not _fits(cue, command, self._script):
                raise NotSupported(_mismatch(left, command, self._script))
            self._s.given[str(number)] = command_id
            if isinstance(command, cmd.SendMessage) and cue.words is None:
                content = [block.model_dump(mode="json") for block in command.content]
                self._s.said[str(number)] = content
        return Call("replay", Request("POST", "/"), command_id=command_id)

    def _left(self, command: cmd.AnyCommand) -> list[tuple[int, ReplayCue]]:
        """Return the cues that a command of this kind may be, in their order."""
        name, request_id = command.TYPE, getattr(command, "request_id", None)
        if isinstance(command, cmd.ToolResult):
            name, request_id = "answer", _request_of(self._script, command.call_id)
        cues = ((number, self._script.cue(number)) for number in range(len(self._script.cues)))
        return [
            (number, cue)
            for number, cue in cues
            if str(number) not in self._s.given
            and (cue.request_id == request_id if name == "answer" else cue.name == name)
        ]

    # What the session tells of calls. They always arrive.

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        self._kept.touched = True
        out: list[ev.Event] = []
        given = {command_id: int(number) for number, command_id in self._s.given.items()}
        for command_id in call.command_ids:
            number = given.get(command_id)
            cue = None if number is None else self._script.cue(number)
            if cue is None or cue.refused is None:
                out.append(raw.settled(command_id, "taken"))
            else:
                out.append(raw.settled(command_id, "refused", cue.refused))
                if cue.request_id is not None:
                    out.append(raw.released(cue.request_id, command_id))
            owed = None if number is None else self._s.owed.pop(str(number), None)
            if owed is not None:
                out.append(self._event(owed))
        return out + self._play(now)

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        return [raw.settled(command_id, "unknown") for command_id in call.command_ids]

    # It has no streams.

    def streams(self) -> tuple[Call, ...]:
        return ()

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        return []

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        return []

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        return []

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        return []

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        return []

    def look(self, now: int) -> bool:
        return False

    # Playing.

    def tick(self, now: int) -> list[ev.Event]:
        self._kept.touched = True
        return self._play(now)

    def _play(self, now: int) -> list[ev.Event]:
        """Play what is due, up to a cue that waits; `wake_at` is when there is more."""
        state, steps = self._s, self._script.steps
        out: list[ev.Event] = []
        self.wake_at = None
        while state.place < len(steps):
            step = steps[state.place]
            if isinstance(step, ReplayCue):
                if step.waits:
                    state.since = None
                    if str(self._script.cues.index(state.place)) not in state.given:
                        return out
            else:
                due = self._due(state.place, now)
                # So many events are played in one go.
                if due > now or len(out) >= 64:
                    self.wake_at = max(math.ceil(due), now)
                    return out
                state.since = due
                if step.cue is None or str(step.cue) in state.given:
                    out.append(self._event(state.place))
                else:
                    state.owed[str(step.cue)] = state.place
            state.place += 1
        return out

    def _due(self, place: int, now: int) -> float:
        """Return when an event is due: as long after the one before it as it was recorded."""
        step, before = self._script.steps[place], self._script.steps[place - 1] if place else None
        assert isinstance(step, ReplayStep)
        if self._s.since is None or not isinstance(before, ReplayStep) or math.isinf(self._speed):
            return float(now)
        return self._s.since + max(step.at - before.at, 0) / self._speed

    def _event(self, place: int) -> ev.Event:
        step = self._script.steps[place]
        assert isinstance(step, ReplayStep)
        if step.cue is None:
            return step.event
        given: dict[str, Any] = {"command_id": self._s.given.get(str(step.cue))}
        if (said := self._s.said.get(str(step.cue))) is not None:
            given["content"] = _CONTENT.validate_python(said)
        return step.event.model_copy(update=given)

    # What is stored.

    @property
    def native_id(self) -> str | None:
        return self._name

    @property
    def frames(self) -> int:
        return self._s.place

    @property
    def position(self) -> bytes:
        return self._kept.position(b"%d" % self._s.place, self._state)

    def snapshot(self) -> bytes:
        return self._kept.snapshot(b"%d" % self._s.place, self._state())

    @property
    def changed(self) -> bool:
        return self._kept.changed(self._state)

    def _state(self) -> bytes:
        return format_json(dataclasses.asdict(self._s))

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        first, later = self._kept.restore(snapshot, position)
        for stored in (later, first):
            if len(stored) > 1:
                self._s = fill(ReplayState, stored[1])
                # What was under way goes on.
                self.wake_at = 0
                break


def abilities_of(script: ReplayScript) -> dict[str, Ability]:
    """Return what a replay takes: what the script has a cue for, and what needs no agent."""
    cues = [script.cue(number) for number in range(len(script.cues))]
    names = {cue.name for cue in cues} | _ALWAYS
    if any(cue.name == "send_message" and (cue.asked or not cue.waits) for cue in cues):
        # It took messages in the middle of a turn.
        names.add("steer")
    abilities = {}
    for name in cmd.COMMAND_TYPES:
        if name in names:
            abilities[name] = Ability(Support.NATIVE)
        elif name in _LOCAL or name == "create_session":
            abilities[name] = _KEPT_HERE
        elif name == "steer":
            abilities[name] = Ability(Support.EMULATED, "queued as the next message")
        else:
            abilities[name] = _NOT_THERE
    return abilities


def _request_of(script: ReplayScript, call_id: str) -> str | None:
    found = (name for name, asked in script.requests.items() if asked.call_id == call_id)
    return next(found, None)


def _said(command: cmd.AnyCommand, script: ReplayScript) -> AnswerMeaning | str | None:
    """Return what a command means, for a comparison with its cue."""
    match command:
        case cmd.AnswerInteraction():
            request = script.requests.get(command.request_id)
            if request is None:
                return None
            return said_by(command, request, decision=command.decision, skipped=command.skip)
        case cmd.ToolResult():
            return AnswerMeaning(failed=command.is_error)
        case cmd.SendMessage():
            return words_of(command.content)
        case cmd.Steer():
            return words_of([ev.Text(text=command.text)])
        case _:
            return None


def _fits(cue: ReplayCue, command: cmd.AnyCommand, script: ReplayScript) -> bool:
    said = _said(command, script)
    if isinstance(said, AnswerMeaning):
        return cue.said is None or cue.said == said
    return cue.words is None or said is None or cue.words == said


def _mismatch(
    left: list[tuple[int, ReplayCue]], command: cmd.AnyCommand, script: ReplayScript
) -> str:
    """Say what was recorded in place of a command, for people."""
    given = _quoted(_said(command, script)) or f"`{command.TYPE}`"
    if not left:
        return f"replay: {given} was not recorded, and nothing of its kind is left in the capture"
    cue = left[0][1]
    recorded = _quoted(cue.said or cue.words) or f"`{cue.name}`"
    return f"replay: {recorded} was recorded here, and {given} was said"


def _quoted(said: AnswerMeaning | str | None) -> str:
    if isinstance(said, str):
        return f"the message `{cut(said, 200)}`"
    return "" if said is None else str(said)
