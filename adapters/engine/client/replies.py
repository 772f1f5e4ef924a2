"""What became of the requests to an Engine, also where nobody knows.

An answer whose reply was lost is looked for: what is pending tells (section 10.3). While the
request is still listed, the answer has not arrived.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from adapters.driving.doubts import Evidence, LookVerdict
from adapters.driving.part import PartOutput
from adapters.engine import wire
from adapters.engine.client import interactions
from adapters.engine.client.posts import pending
from adapters.engine.client.state import EngineClientState, EngineFrame
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Response
from adapters.wire.errors import DragomanError
from adapters.wire.jsonvalue import name_of, time_of

NOTHING_PENDING = "NOTHING_PENDING"
"""The error code of an answer for which nothing waits; the page names none."""


_NOT_DELIVERED = ev.ErrorInfo(code="not_delivered", message="The answer did not reach the Engine.")
"""Of an answer whose request is pending still."""


def refusal(response: Response) -> ev.ErrorInfo:
    """Return what an error body says; one without `error`, or that is not JSON, is quoted (4.1)."""
    body = _error_body(response)
    if is_of_credential(response):
        return raw.credential_refused(response)
    if body is None:
        return raw.quoted(response)
    details = body.get("details")
    return raw.refused(
        response,
        body["error"],
        str(body.get("message") or body["error"]),
        details if isinstance(details, dict) else None,
    )


def is_of_credential(response: Response) -> bool:
    """Say whether an answer refuses our key: one 401 is of a connector's (section 4.3)."""
    if response.status != 401:
        return False
    body = _error_body(response)
    return body is None or body["error"] != wire.MCP_TOKEN_EXPIRED


def _error_body(response: Response) -> dict[str, Any] | None:
    body = raw.json_of(response)
    return body if isinstance(body, dict) and isinstance(body.get("error"), str) else None


def _is_doubtful(response: Response) -> bool:
    """Say whether the Engine may have taken what it was sent, whatever the status says.

    500 is an unexpected failure (section 4.2); 502 and 504 without the Engine's own body are from
    something in between.
    """
    if response.status == 500:
        return True
    return response.status in (502, 504) and _error_body(response) is None


def _listed(response: Response) -> list[Any] | None:
    """Return the records of an answer of `/hitl/pending`, None for another answer (10.3)."""
    body = raw.json_of(response) if _is_ok(response) else None
    found = body.get("pending") if isinstance(body, dict) else None
    return found if isinstance(found, list) else None


def _is_ok(response: Response) -> bool:
    """Say whether a request was carried out."""
    return 200 <= response.status < 300


# What came of a call.


def reply(s: EngineClientState, task: str, call: Call, response: Response, now: int) -> PartOutput:
    """Hear the reply to a call, or what came in the place of a stream."""
    match call.name:
        case "replay":
            return PartOutput()
        case "execute":
            if _is_ok(response) or _is_doubtful(response):
                # It may run (section 4.2, 500): replay will show.
                return PartOutput()
            return PartOutput(s.ledger.settle(_command_of(call), "refused", refusal(response)))
        case "answered":
            return _not_pending(s, task, _command_of(call), _listed(response))
        case _ if call.command_id not in s.ledger.open:
            # The stream was faster than the reply, and has told.
            return PartOutput()
        case "pending":
            return _looked_up(s, task, _command_of(call), _listed(response), now)
        case _:
            return _answered(s, _command_of(call), response)


def no_reply(
    s: EngineClientState, task: str, call: Call, error: DragomanError, *, sent: bool, now: int
) -> PartOutput:
    """Record that a call got no reply; `sent` is false when the Engine surely never saw it."""
    info = raw.error_info(error)
    match call.name:
        case "replay":
            return PartOutput()
        case "execute":
            # It may run: replay will show, or `give_up` says that nothing is known.
            return (
                PartOutput()
                if sent
                else PartOutput(s.ledger.settle(_command_of(call), "refused", info))
            )
        case "answered":
            return _not_pending(s, task, _command_of(call), None)
        case "look":
            return PartOutput()
        case _ if call.command_id not in s.ledger.open:
            return PartOutput()
        case "pending":
            return _looked_up(s, task, _command_of(call), None, now)
        case _ if sent:
            return _doubt(s, _command_of(call), info)
        case _:
            return _not_taken(s, _command_of(call), info)


def _command_of(call: Call) -> str:
    assert call.command_id is not None
    return call.command_id


# An answer.


def _answered(s: EngineClientState, command_id: str, response: Response) -> PartOutput:
    """Hear the reply to an answer."""
    if _is_ok(response):
        return PartOutput(s.ledger.settle(command_id, "taken"))
    error = refusal(response)
    if _is_doubtful(response):
        return _doubt(s, command_id, error)
    if response.status in (404, 410):
        # Section 10.1: nothing is pending for this task, so somebody else has answered, or it is
        # forgotten; but so says a gateway that has lost its way to the Engine.
        return PartOutput((), [pending("answered", command_id)])
    return _not_taken(s, command_id, error)


def _not_taken(s: EngineClientState, command_id: str, error: ev.ErrorInfo) -> PartOutput:
    """Record that an answer did not count: the open request can be answered again."""
    told = s.ledger.settle(command_id, "refused", error)
    return PartOutput([*told, *s.asks.release(command_id, s.turn)])


def forget(s: EngineClientState, command_ids: Collection[str]) -> list[ev.Event]:
    """Expect nothing more of commands: what they answered can be answered again."""
    out: list[ev.Event] = []
    for command_id in command_ids:
        s.ledger.drop(command_id)
        s.doubts.forget(command_id)
        out += s.asks.release(command_id, s.turn)
    return out


def _doubt(s: EngineClientState, command_id: str, error: ev.ErrorInfo) -> PartOutput:
    """Say that an answer may have arrived, and look: what is pending tells."""
    message = f"{error.message} What is pending will show whether the answer arrived."
    return PartOutput([raw.in_doubt(message, error.code, quote=error.quote)], [look(s, command_id)])


def look(s: EngineClientState, command_id: str) -> Call:
    """Ask what is pending: it tells what became of an answer."""
    s.doubts.look(command_id)
    return pending("pending", command_id)


def _looked_up(
    s: EngineClientState, task: str, command_id: str, found: list[Any] | None, now: int
) -> PartOutput:
    """Hear what is pending, None where it could not be read."""
    match s.doubts.hear(command_id, _evidence(s, task, command_id, found), now):
        case LookVerdict.TAKEN:
            return PartOutput(s.ledger.settle(command_id, "taken"))
        case LookVerdict.UNKNOWN:
            return PartOutput(s.ledger.settle(command_id, "unknown"))
        case LookVerdict.LOST:
            return _not_taken(s, command_id, _NOT_DELIVERED)
        case LookVerdict.TELL:
            message = "What is pending still names the request; it will be asked once more."
            return PartOutput([raw.in_doubt(message)])
        case LookVerdict.WAIT:
            return PartOutput()


def _evidence(
    s: EngineClientState, task: str, command_id: str, found: list[Any] | None
) -> Evidence:
    """Say what a list shows of an answer."""
    if s.asks.given_by(command_id) is None:
        # The request is resolved, or there is another one: the turn went on.
        return Evidence.SHOWN
    if found is None:
        return Evidence.UNREAD
    return Evidence.MISSING if _is_open(s, task, found) else Evidence.SHOWN


def _is_open(s: EngineClientState, task: str, found: list[Any]) -> bool:
    """Say whether records of `/hitl/pending` have the request that we wait for."""
    for item in found:
        if isinstance(item, dict):
            request_id = item.get("request_id")
            if request_id == s.asked if request_id is not None else item.get("task_id") == task:
                return True
    return False


def _not_pending(
    s: EngineClientState, task: str, command_id: str, found: list[Any] | None
) -> PartOutput:
    """Hear what is pending after an answer that the Engine has no request for."""
    if command_id not in s.ledger.open:
        # The stream was faster, and has told.
        return PartOutput()
    error = _NOT_DELIVERED
    if found is None or not _is_open(s, task, found):
        message = "The Engine says that nothing waits for this answer."
        error = ev.ErrorInfo(code=NOTHING_PENDING, message=message)
    told = _not_taken(s, command_id, error)
    return PartOutput([*told.events, *_answered_elsewhere(s, task, found).events])


def _answered_elsewhere(s: EngineClientState, task: str, found: list[Any] | None) -> PartOutput:
    """Hear what is pending after a 404: a request that is listed can be answered again."""
    if s.ask is None or s.ask.given is not None:
        # The stream has told, or what becomes of the next answer will.
        return PartOutput()
    if found is not None and _is_open(s, task, found):
        return PartOutput()
    return PartOutput(interactions.infer_resolved(s))


# What is asked when the stream tells nothing.


def looked(
    s: EngineClientState, task: str, response: Response, after: int | None, now: int
) -> PartOutput:
    """Take what is pending: a request may be over that the turn waits for, and one be asked that
    the stream did not show. `after` is the newest time that the stream has told: what was asked
    before that was shown, and is over where it is not open."""
    found = _listed(response)
    if found is None or s.turn is None or s.ending is not None:
        return PartOutput()
    out = list(_answered_elsewhere(s, task, found).events)
    for item in found:
        if not isinstance(item, dict) or item.get("task_id") != task:
            continue
        at = time_of(item.get("created_at"))
        if name_of(item.get("request_id")) is None or at is None or at <= (after or 0):
            continue
        native = ev.NativeRef(dialect=wire.DIALECT, type="hitl_request", at=item["created_at"])
        out += interactions.requested(s, EngineFrame("hitl_request", item, native, now, 0))
    return PartOutput(out)
