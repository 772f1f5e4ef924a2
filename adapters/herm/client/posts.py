"""Requests to a Herm gateway, and what it says when it refuses one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multidict import CIMultiDict, MultiDict

from adapters.herm import wire
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Request, Response
from adapters.wire.errors import ErrorCode, NotSupported
from adapters.wire.jsonvalue import compact, format_json
from adapters.wire.url_paths import path_of

_JSON = {"Accept": "application/json"}


def _request(name: str, method: str, path: str, body: Any, command_id: str | None) -> Call:
    headers = CIMultiDict(_JSON)
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = compact(format_json(body))
    return Call(name, Request(method, path, headers=headers, body=data), command_id=command_id)


def create(
    agent: str,
    user_id: str | None,
    title: str | None,
    metadata: Mapping[str, Any],
    command_id: str,
) -> Call:
    """Return the call that makes a session (section 2.2)."""
    body: dict[str, Any] = {}
    if user_id is not None:
        body["userId"] = user_id
    if title is not None:
        body["title"] = title
    if metadata:
        body["metadata"] = metadata
    return _request("create", "POST", path_of(wire.AGENTS, agent, "sessions"), body, command_id)


def events(session: str, body: dict[str, Any], command_id: str) -> Call:
    """Return the POST of one event or of several (section 3)."""
    path = wire.session_path(session, "events")
    return _request("events", "POST", path, body, command_id)


def look(session: str, command_id: str | None = None) -> Call:
    """Return the call that reads the session object."""
    return _request("session", "GET", wire.session_path(session), None, command_id)


def administer(
    session: str, command_id: str, command: cmd.Archive | cmd.Reset | cmd.Delete | cmd.UpdateSession
) -> Call:
    """Return the call of a command that concerns the session as a whole."""
    match command:
        case cmd.Archive() | cmd.Reset():
            path = wire.session_path(session, "archive")
            return _request(command.TYPE, "POST", path, None, command_id)
        case cmd.Delete():
            return _request("delete", "DELETE", wire.session_path(session), None, command_id)
        case cmd.UpdateSession():
            changes: dict[str, Any] = {}
            if command.title is not None:
                changes["title"] = command.title
            if command.metadata is not None:
                changes["metadata"] = command.metadata
            path = wire.session_path(session)
            return _request("update_session", "PATCH", path, changes, command_id)
    raise NotSupported(f"herm: nothing carries `{command.TYPE}`")


def stream(session: str, last_id: str) -> Call:
    """Return the call that opens the stream, after the event that was seen last (section 4.3)."""
    headers = CIMultiDict({"Accept": "text/event-stream", "Cache-Control": "no-cache"})
    if last_id:
        headers[wire.LAST_EVENT_ID] = last_id
    path = wire.session_path(session, "events", "stream")
    return Call("stream", Request("GET", path, headers=headers), stream=True)


def page(session: str, number: int, cursor: str | None, *, newest_first: bool) -> Call:
    """Return the call that reads a page of the list (section 4.2)."""
    query = MultiDict({"limit": str(wire.LIMIT_MOST)})
    if newest_first:
        query["order"] = "desc"
    if cursor is not None:
        query["cursor"] = cursor
    path = wire.session_path(session, "events")
    return Call(f"list {number}", Request("GET", path, query, CIMultiDict(_JSON)))


def refusal(response: Response) -> ev.ErrorInfo:
    """Return what an error body says, in any of the three forms of section 6; any other is
    quoted."""
    if response.status == 401:
        return raw.credential_refused(response)
    body = raw.json_of(response)
    if isinstance(body, dict):
        error = body.get("error")
        source = error if isinstance(error, dict) else body
        code = source.get("code") if isinstance(source.get("code"), str) else None
        if code is None and isinstance(error, str):
            code = error
        if code is not None:
            message = source.get("message")
            return raw.refused(response, code, message if isinstance(message, str) else code)
    return raw.quoted(response)


def no_id(response: Response) -> ev.ErrorInfo:
    """Return what is wrong with the answer of a create that names no session."""
    return ev.ErrorInfo(
        code=str(ErrorCode.BACKEND_PROTOCOL),
        message=f"Herm answered a create with {response.status} and no usable session id.",
    )


def retry_after(response: Response) -> int | None:
    """Return after how many milliseconds to try again, if that is said."""
    text = response.headers.get("Retry-After", "")
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 4 else None
