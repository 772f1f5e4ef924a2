"""Records about sign-ins."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from adapters.eve import wire
from adapters.eve.client.parts import EveParts
from adapters.eve.client.reports import as_late
from adapters.eve.client.state import InputRequest, StreamRecord, ThreadState
from adapters.eve.client.values import CS_KEYS, rest_of
from adapters.model import events as ev
from adapters.wire.errors import CODE_LIMIT, cut
from adapters.wire.jsonvalue import name_of

_SIGN_IN_OUTCOMES: dict[str, ev.InteractionOutcome] = {
    "authorized": "approved",
    "declined": "denied",
    "failed": "failed",
    "timed-out": "expired",
}

_SIGN_IN_KEYS = {
    "url": "url",
    "userCode": "user_code",
    "instructions": "instructions",
    "displayName": "display_name",
    "expiresAt": "expires_at",
}

_REQUIRED_KEYS = CS_KEYS | {"name", "description", "authorization", "attemptId", "taskId"}

_AUTHORIZED_KEYS = CS_KEYS | {"name", "outcome", "reason", "attemptId", "principalId", "taskId"}


@dataclasses.dataclass(slots=True)
class SignInRecords:
    """Where the agent needs somebody to sign in."""

    parts: EveParts

    def _sign_in_id(self, data: dict[str, Any]) -> str:
        attempt = name_of(data.get("attemptId"))
        if attempt is not None:
            return attempt
        name, turn = (cut(str(data.get(field)), CODE_LIMIT) for field in ("name", "turnId"))
        return f"sign-in:{name}:{turn}:{data.get('stepIndex')}"

    def authorization_required(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        s = self.parts.state
        data = record.data
        request_id = self._sign_in_id(data)
        if request_id in s.asks.open:
            return []
        number = 2
        while request_id in s.resolved:
            # T has no ids: the same step may ask again.
            request_id = f"{self._sign_in_id(data)}:{number}"
            number += 1
        asking = line
        task = data.get("taskId")
        if isinstance(task, str) and task in s.tasks:
            asking = s.lines[s.tasks[task]]
        if asking.done or (asking is line and self.parts.turns.is_late(line, data)):
            return as_late(line, record)
        asking.held.decide_all("allow")
        out: list[ev.Event] = []
        if asking.turn is None and asking is not line:
            turn_id = f"{asking.thread}:turn_{max(asking.sequence + 1, 0)}"
            asking.native = None
            out.append(self.parts.turns.begin(asking, turn_id, None, synthetic=True))
        elif line.turn is None:
            out += self.parts.turns.in_turn(line, record)
        told = data.get("authorization")
        told = told if isinstance(told, dict) else {}
        details = {"service": data.get("name")} if isinstance(data.get("name"), str) else {}
        for theirs, ours in _SIGN_IN_KEYS.items():
            if theirs in told:
                details[ours] = told[theirs]
        extra = rest_of(data, _REQUIRED_KEYS) or {}
        hook = data.get("webhookUrl")
        if isinstance(hook, str):
            extra[wire.WEBHOOK] = True
        rest = rest_of(told, frozenset(_SIGN_IN_KEYS))
        if rest:
            extra["authorization"] = rest
        opened = InputRequest(
            kind="authorization",
            thread_id=asking.thread,
            shown_on=line.thread if asking is not line else None,
            turn=asking.native,
            shown_turn=line.native if asking is not line else None,
            name=data.get("name"),
            webhook=hook if isinstance(hook, str) else None,
        )
        self.parts.requests.open_request(request_id, opened)
        out.append(
            ev.InteractionRequested(
                thread_id=asking.thread,
                turn_id=self.parts.turns.current(asking),
                request_id=request_id,
                shown_on=line.thread if asking is not line else None,
                kind="authorization",
                prompt=str(data.get("description") or ""),
                details=details or None,
                expires_at=_moment(told.get("expiresAt")),
                native=record.native,
                extra=extra or None,
            )
        )
        if self.parts.server.folds and line.turn is not None:
            # T and S1 have no boundary here (section 8.2), and the agent waits all the same.
            line.paused = "input"
            out.append(
                ev.TurnPaused(
                    thread_id=line.thread,
                    turn_id=line.turn,
                    on="input",
                    native=record.native,
                    synthetic=True,
                )
            )
        return out

    def authorization_completed(self, line: ThreadState, record: StreamRecord) -> list[ev.Event]:
        data = record.data
        request_id = data.get("attemptId")
        if request_id not in self.parts.state.asks.open:
            request_id = next(
                (
                    key
                    for key, request in self.parts.state.asks.open.items()
                    if request.kind == "authorization" and request.name == data.get("name")
                ),
                None,
            )
        if not isinstance(request_id, str):
            return []
        by, reason = data.get("principalId"), data.get("reason")
        return self.parts.resolution.resolve(
            request_id,
            _SIGN_IN_OUTCOMES.get(str(data.get("outcome")), "unknown"),
            record.native,
            by=by if isinstance(by, str) else None,
            reason=reason if isinstance(reason, str) else None,
            extra=rest_of(data, _AUTHORIZED_KEYS),
        )


def _moment(value: object) -> int | None:
    """Return an ISO time as Unix milliseconds, or None where it is not one."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return round(moment.timestamp() * 1000)
