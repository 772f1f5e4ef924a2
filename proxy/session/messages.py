"""What becomes of the messages of one session: each that was accepted ends once.

A message is over when it is settled without being taken, or with the turn that it became part of.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from adapters.model import events as ev
from adapters.model.state import RECEIVED_KINDS
from adapters.wire.errors import SESSION_LOST
from proxy.base.outcomes import SETTLED, STOP_UNCONFIRMED, Code, MessageOutcome

HEARD = frozenset(
    one.TYPE
    for one in (
        ev.InputAccepted,
        ev.InputSettled,
        ev.MessageReceived,
        ev.GuidanceReceived,
        ev.TurnStarted,
        ev.TurnEnded,
        ev.ErrorReported,
        ev.SessionEnded,
    )
)
"""The types of the events that `MessageTracker.hear` looks at."""

_BACKEND = "backend"
"""Who gave an input that the backend got from others than us."""

_ENDS_HERE = frozenset({SESSION_LOST, SETTLED, STOP_UNCONFIRMED})
"""The codes of errors after which nothing more is heard of what the backend has taken."""

_TURNS: Mapping[str, tuple[MessageOutcome, Code]] = {
    "completed": (MessageOutcome.COMPLETED, Code.OK),
    "interrupted": (MessageOutcome.COMPLETED, Code.INTERRUPTED),
    "failed": (MessageOutcome.FAILED, Code.AGENT_ERROR),
    "refused": (MessageOutcome.REFUSED, Code.AGENT_REFUSED),
    "exhausted": (MessageOutcome.FAILED, Code.EXHAUSTED),
    "over_budget": (MessageOutcome.FAILED, Code.OVER_BUDGET),
}
"""How the messages of a turn end, by the outcome of the turn."""


class MessageResult(NamedTuple):
    """A message that is over, the face that it came in by, and the `traceparent` that it came
    with."""

    command_id: str
    face: str | None
    outcome: MessageOutcome
    code: Code
    trace: str | None = None


class _Stage(enum.StrEnum):
    ACCEPTED = "accepted"
    TAKEN = "taken"
    IN_TURN = "in_turn"
    """It is part of the turn that runs, or of the next one."""


@dataclasses.dataclass(slots=True)
class _MessageProgress:
    face: str | None
    trace: str | None
    stage: _Stage = _Stage.ACCEPTED

    def end(self, name: str, outcome: MessageOutcome, code: Code) -> MessageResult:
        return MessageResult(name, self.face, outcome, code, self.trace)


@dataclasses.dataclass(slots=True, eq=False)
class MessageTracker:
    """The messages of one session that are not over."""

    _open: dict[str, _MessageProgress] = dataclasses.field(default_factory=dict, init=False)

    @property
    def trace(self) -> str | None:
        """Return the `traceparent` of the first message that the backend works on."""
        working = [one for one in self._open.values() if one.stage is not _Stage.ACCEPTED]
        # A message may be taken for the next turn while one runs.
        working.sort(key=lambda one: one.stage is not _Stage.IN_TURN)
        return working[0].trace if working else None

    def hear(self, event: ev.Event) -> list[MessageResult]:
        """Hear an event of one of the types in `HEARD`; return the messages that end with it."""
        if event.thread_id != ev.MAIN:
            return []
        match event:
            case ev.InputAccepted():
                if event.kind in RECEIVED_KINDS and event.by != _BACKEND:
                    self._open[event.command_id] = _MessageProgress(event.face, event.trace)
            case ev.InputSettled():
                return self._settle(event)
            case ev.MessageReceived() | ev.GuidanceReceived():
                if (one := self._open.get(event.command_id or "")) is not None:
                    one.stage = _Stage.IN_TURN
            case ev.TurnStarted():
                for one in self._open.values():
                    if one.stage is _Stage.TAKEN:
                        one.stage = _Stage.IN_TURN
            case ev.TurnEnded():
                outcome, default = _TURNS[event.outcome]
                return self._end(outcome, Code.of(event.error, default), _Stage.IN_TURN)
            case ev.ErrorReported() if event.synthetic and event.code in _ENDS_HERE:
                # A turn that never began does not end either.
                stopped = event.code == STOP_UNCONFIRMED
                outcome = MessageOutcome.COMPLETED if stopped else MessageOutcome.FAILED
                info = ev.ErrorInfo(code=event.code, message="")
                return self._end(outcome, Code.of(info, Code.OTHER), _Stage.TAKEN)
            case ev.SessionEnded():
                failed = event.outcome == "failed"
                outcome = MessageOutcome.FAILED if failed else MessageOutcome.COMPLETED
                code = Code.of(event.error, Code.AGENT_ERROR) if failed else Code.SESSION_ENDED
                return self._end(outcome, code, *_Stage)
        return []

    def _settle(self, event: ev.InputSettled) -> list[MessageResult]:
        name = event.command_id
        one = self._open.get(name)
        if one is None:
            return []
        if event.outcome == "taken":
            if one.stage is _Stage.ACCEPTED:
                one.stage = _Stage.TAKEN
            return []
        del self._open[name]
        match event.outcome:
            case "withdrawn":
                return [one.end(name, MessageOutcome.WITHDRAWN, Code.WITHDRAWN)]
            case "unknown":
                return [
                    one.end(name, MessageOutcome.UNKNOWN, Code.of(event.error, Code.NO_EVIDENCE))
                ]
        return [one.end(name, MessageOutcome.REFUSED, Code.of(event.error, Code.OTHER))]

    def _end(self, outcome: MessageOutcome, code: Code, *stages: _Stage) -> list[MessageResult]:
        over = [name for name, one in self._open.items() if one.stage in stages]
        return [self._open.pop(name).end(name, outcome, code) for name in over]

    def dump(self) -> list[list[str | None]]:
        """Return what `restore` takes."""
        return [[name, one.face, one.trace, one.stage] for name, one in self._open.items()]

    def restore(self, value: Any) -> None:
        """Put back what `dump` gave.

        Raises:
            ValueError, TypeError: it is of no use.
        """
        self._open = {
            name: _MessageProgress(face, trace, _Stage(stage)) for name, face, trace, stage in value
        }
