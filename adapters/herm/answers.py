"""Answers of the Herm face: the bodies of its routes, and errors in the dialect's own words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from multidict import CIMultiDict

from adapters.contract.faces import Backend
from adapters.contract.faces.answers import USUAL_STATUS, say_when_to_retry
from adapters.herm import wire
from adapters.herm.writer import Envelope
from adapters.model.base import Response
from adapters.model.session_info import SessionInfo
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json

USER_ID = "userId"
"""A member of a create (section 2.2), kept in the `options` of `session.started`."""


class HermRefusal(ClientProtocolError):
    """A request that a session refuses as it is now, with a code that is Herm's own."""

    code = ErrorCode.NOT_ACTIVE

    def __init__(self, code_text: str, message: str) -> None:
        super().__init__(message)
        self.code_text = code_text


def json_response(status: int, body: object) -> Response:
    """Return an answer with a JSON body."""
    return _response(status, format_json(body))


def _response(status: int, body: bytes) -> Response:
    return Response(status, CIMultiDict({"content-type": "application/json"}), body)


def events_answer(bodies: Iterable[bytes]) -> Response:
    """Return the answer to a POST of events: the accepted ones as envelopes (section 3)."""
    return _response(202, b'{"data":[%b]}' % b",".join(bodies))


def page_answer(rows: Iterable[bytes], cursor: str | None) -> Response:
    """Return a page of a list (sections 2.3 and 4.2); the rows are JSON."""
    body = b'{"data":[%b],"nextCursor":%b}' % (b",".join(rows), format_json(cursor))
    return _response(200, body)


def agent_object(backend: Backend) -> dict[str, Any]:
    """Return the one agent of a route as an agent definition (section 2.1)."""
    return {
        "id": backend.agent,
        "name": backend.name,
        "model": f"{backend.dialect}/{backend.name}",
        "version": 1,
        "instructions": "",
        **{name: [] for name in ("tools", "mcpServers", "skills")},
        "metadata": {},
    }


def error_response(status: int, code: str, message: str) -> Response:
    """Return an error in the form that section 6 asks a server to send."""
    return json_response(status, {"error": {"code": code, "message": message}})


def refusal(error: DragomanError) -> Response:
    """Return the answer for an error (section 6); codes that the page does not have are ours."""
    if isinstance(error, HermRefusal):
        return error_response(409, error.code_text, error.message)
    code = _WORDS.get(error.code, "server_error")
    answer = error_response(_STATUSES[error.code], code, error.message)
    return say_when_to_retry(answer, error.details)


_NAMED = (
    *(ErrorCode.UNAUTHORIZED, ErrorCode.FORBIDDEN, ErrorCode.NOT_FOUND, ErrorCode.NOT_SUPPORTED),
    *(ErrorCode.METHOD_NOT_ALLOWED, ErrorCode.REQUEST_TIMEOUT, ErrorCode.ALREADY_ANSWERED),
    *(ErrorCode.KEY_REUSED, ErrorCode.CURSOR_EXPIRED, ErrorCode.RATE_LIMITED),
)
_WORDS: Mapping[ErrorCode, str] = {
    **{code: str(code) for code in _NAMED},
    ErrorCode.STALE_TOKEN: "not_found",
    ErrorCode.INVALID_REQUEST: "validation_error",
    ErrorCode.UNSUPPORTED_MEDIA: "validation_error",
    ErrorCode.TOO_LARGE: "validation_error",
    ErrorCode.BUSY: "turn_running",
    ErrorCode.PAUSED: "turn_running",
    ErrorCode.NOT_ACTIVE: "session_ended",
    ErrorCode.UNKNOWN_INTERACTION: "unknown_request",
    ErrorCode.JOURNAL_UNAVAILABLE: "unavailable",
    ErrorCode.OVERLOADED: "unavailable",
    ErrorCode.STOPPING: "unavailable",
}
"""What an error is called, some as here; the others are `server_error`."""

_STATUSES = {
    **USUAL_STATUS,
    ErrorCode.UNKNOWN_INTERACTION: 400,
    ErrorCode.BACKEND_UNAVAILABLE: 502,
}


def not_served(method: str, path: str) -> Response:
    """Return the answer of a route that the page has and this proxy does not serve."""
    why = "agents are configured at the backend, not through the proxy"
    return error_response(501, "not_supported", f"`{method} {path}` is not served: {why}.")


def no_route(method: str, path: str, hint: str) -> Response:
    """Return the answer for an unknown path, with what to write; old clients are told apart
    (section 7)."""
    if "/v1/deployments" in path:
        hint = "Deployments, threads and runs are the older generation, which is not served."
    return error_response(404, "not_found", f"There is no `{method} {path[:200]}`. {hint}")


def session_object(
    session_id: str, state: str, about: SessionInfo, created_at: int, updated_at: int
) -> dict[str, Any]:
    """Return the session object (section 2.2); times are Unix milliseconds."""
    agent, version = about.agent.get("id"), about.agent.get("version")
    user = about.options.get(USER_ID)
    value: dict[str, Any] = {
        "id": session_id,
        "agentId": agent if isinstance(agent, str) else "",
        "agentVersion": version if isinstance(version, int) else 1,
        "userId": user if isinstance(user, str) else None,
        "title": about.title,
        "metadata": about.metadata,
        "status": _status(about, state),
        "createdAt": wire.iso_seconds(created_at),
        "updatedAt": wire.iso_seconds(max(updated_at, created_at)),
    }
    if about.archived_at is not None:
        value["archivedAt"] = wire.iso_seconds(about.archived_at)
    more = {"predecessor": about.predecessor, "replacedBy": about.replaced_by}
    return value | {name: other for name, other in more.items() if other is not None}


def _status(about: SessionInfo, state: str) -> str:
    # Section 2.3; the state is as the journal keeps it.
    if about.archived_at is not None:
        return "archived"
    if about.ended in ("failed", "terminated"):
        return "error"
    return "running" if state == "running" else "idle"


def messages_of(envelopes: Iterable[Envelope]) -> list[dict[str, Any]]:
    """Return the history that a session object shows (section 2.3): `role` is `user` or `agent`."""
    messages = []
    for made in envelopes:
        if made.type in ("user.message", "agent.message") and made.listed and not made.update:
            # What becomes of an input later changes none of its words.
            envelope, role = orjson.loads(made.body), made.type.removesuffix(".message")
            content, created = envelope["payload"]["content"], envelope["createdAt"]
            messages.append({"role": role, "content": content, "createdAt": created})
    return messages
