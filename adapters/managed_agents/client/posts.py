"""Requests to the service: commands as what carries them, what none carries, and its refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multidict import CIMultiDict, MultiDict

from adapters.managed_agents import wire
from adapters.managed_agents.client import contents
from adapters.managed_agents.client.state import AgentThread, SentEvent
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Ability, Call, Request, Response, Support
from adapters.model.file_body import body_of
from adapters.wire.errors import ErrorCode, NotSupported
from adapters.wire.jsonvalue import text_of
from adapters.wire.url_paths import path_of

PAGE = 200
"""Events of a page that is asked for. Ours: the newest few are what was missed."""

WAITING = "waiting on responses to events"
"""The words of a refusal by which clients tell that the service waits (live page, section 3)."""

ARCHIVED = "archived session"
"""Those of a refusal by a session that is over, whatever its status (live page, section 3)."""

ABILITIES: dict[str, Ability] = {
    "create_session": Ability(Support.NATIVE),
    "send_message": Ability(Support.NATIVE),
    "steer": Ability(Support.EMULATED, "queued as the next message"),
    "interrupt": Ability(Support.NATIVE),
    "answer": Ability(Support.NATIVE),
    "tool_result": Ability(Support.NATIVE),
    "compact": Ability(Support.IMPOSSIBLE, "the service compacts by itself (section 7.2)"),
    "clear": Ability(Support.IMPOSSIBLE, "the service has no route for it (section 2)"),
    "reset": Ability(Support.EMULATED, "the session is archived there and ends here", local=False),
    "archive": Ability(Support.NATIVE),
    "archive_thread": Ability(Support.NATIVE),
    "delete": Ability(Support.NATIVE),
    "define_outcome": Ability(Support.NATIVE),
    "update_session": Ability(Support.NATIVE),
}


def check(command: cmd.AnyCommand) -> None:
    """Check that the service can carry a command and every field of it.

    Raises:
        NotSupported: it cannot.
    """
    ability = ABILITIES[command.TYPE]
    if ability.support is Support.IMPOSSIBLE:
        raise NotSupported(f"managed-agents: `{command.TYPE}` is impossible: {ability.how}")
    match command:
        case cmd.SendMessage():
            for name in ("output_schema", "edit_of", "retry_of"):
                if getattr(command, name) is not None:
                    raise NotSupported(
                        f"managed-agents: `{name}` is impossible: no field carries it (4.1)"
                    )
            contents.posted(command.content, command.client_context)
        case cmd.AnswerInteraction():
            if command.sealed is not None:
                raise NotSupported(
                    "managed-agents: a sealed answer is impossible: none is asked (7.6)"
                )
            contents.posted(command.content)
        case cmd.ToolResult():
            contents.posted(command.content)
        case _:
            pass


# Requests.


def _request(
    name: str, method: str, path: str, body: Any = None, command_id: str | None = None, **more: Any
) -> Call:
    headers = CIMultiDict({"Accept": "application/json", **wire.HEADERS})
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = body_of(body)
    request = Request(method, path, more.pop("query", MultiDict()), headers, data)
    return Call(name, request, command_id=command_id, **more)


def create(
    agent: Any,
    environment: str,
    title: str | None,
    metadata: Mapping[str, Any],
    command_id: str,
) -> Call:
    """Return the call that makes a session (section 3.1), with members only that say something: a
    third party's server refuses those that it does not know."""
    body: dict[str, Any] = {"agent": agent, "environment_id": environment}
    if title is not None:
        body["title"] = title
    if metadata:
        body["metadata"] = dict(metadata)
    return _request("create", "POST", wire.SESSIONS, body, command_id)


def send(session: str, events: list[dict[str, Any]], command_id: str) -> Call:
    """Return the call that posts events (section 4)."""
    path = path_of(wire.SESSIONS, session, "events")
    return _request("send", "POST", path, {"events": events}, command_id)


def look(session: str, name: str = "session") -> Call:
    """Return the call that reads the session object; its `name` says what for."""
    return _request(name, "GET", path_of(wire.SESSIONS, session))


def administer(session: str, command_id: str, command: cmd.AnyCommand) -> Call:
    """Return the call of a command that concerns the session as a whole, or one thread of it."""
    path = path_of(wire.SESSIONS, session)
    match command:
        case cmd.Archive() | cmd.Reset():
            return _request(command.TYPE, "POST", f"{path}/archive", None, command_id)
        case cmd.ArchiveThread(thread_id=str(thread)):
            path = path_of(path, "threads", thread, "archive")
            return _request(command.TYPE, "POST", path, None, command_id, thread_id=thread)
        case cmd.Delete():
            return _request(command.TYPE, "DELETE", path, None, command_id)
        case cmd.UpdateSession():
            told = {"title": command.title, "metadata": command.metadata, "agent": command.agent}
            changes = {name: value for name, value in told.items() if value is not None}
            return _request(command.TYPE, "POST", path, changes, command_id)
    raise NotSupported(f"managed-agents: nothing carries `{command.TYPE}`")


def stream(session: str, thread: AgentThread) -> Call:
    """Return the call that opens a thread's stream, with previews (sections 6.1 and 9)."""
    path = path_of(wire.SESSIONS, session)
    path = f"{path}/events/stream" if thread.is_main else path_of(path, "threads", thread.thread_id)
    path = path if thread.is_main else f"{path}/stream"
    query = MultiDict([("event_deltas[]", name) for name in wire.PREVIEWED])
    headers = CIMultiDict(
        {"Accept": "text/event-stream", "Cache-Control": "no-cache", **wire.HEADERS}
    )
    request = Request("GET", path, query, headers)
    return Call("stream", request, stream=True, thread_id=thread.thread_id)


def page(
    session: str, thread: AgentThread, number: int, cursor: str | None, *, newest_first: bool
) -> Call:
    """Return the call that reads a page of a thread's list (section 5): of a child's one knows
    `limit` and `page` only."""
    query = MultiDict({"limit": str(PAGE)})
    path = path_of(wire.SESSIONS, session)
    if thread.is_main:
        if newest_first:
            query["order"] = "desc"
    else:
        path = path_of(path, "threads", thread.thread_id)
    if cursor is not None:
        query["page"] = cursor
    return _request(
        f"list {number}", "GET", f"{path}/events", query=query, thread_id=thread.thread_id
    )


# Inputs as events.


def message(command: cmd.SendMessage) -> list[dict[str, Any]]:
    """Return the events of a message: what is said to the system stands behind it (section 4.1)."""
    events: list[dict[str, Any]] = []
    content = contents.posted(command.content, command.client_context)
    if content:
        events.append({"type": "user.message", "content": content})
    return [*events, *system(command.system)]


def system(content: tuple[Any, ...] | None) -> list[dict[str, Any]]:
    """Return the event of what is said to the system, where there is something."""
    return [{"type": "system.message", "content": contents.posted(content)}] if content else []


def key_of(event: Mapping[str, Any]) -> str:
    """Return what tells an input's event from those of others: what it is about, or says."""
    type_ = str(event.get("type"))
    about = text_of(event.get("tool_use_id")) or text_of(event.get("custom_tool_use_id"))
    if about is None and type_ in ("user.message", "system.message"):
        about = contents.words(event.get("content"))
    if about is None and type_ == "user.define_outcome":
        about = text_of(event.get("description"))
    if about is None:
        about = text_of(event.get("session_thread_id")) or ""
    return f"{type_} {about}"


def sent_event(command_id: str, command: cmd.AnyCommand, events: list[dict[str, Any]]) -> SentEvent:
    """Return what is remembered of an input that is posted as `events`."""
    content = command.content if isinstance(command, cmd.SendMessage) else ()
    return SentEvent(command_id, command.KIND, content, keys=[*map(key_of, events)])


# Refusals.


def refusal(response: Response) -> ev.ErrorInfo:
    """Return what an error body says (section 12); one of another form is quoted."""
    if response.status == 401:
        return raw.credential_refused(response)
    error = _error_of(response)
    if error is None:
        return raw.quoted(response)
    details = error.get("details")
    code: object = error.get("type")
    if isinstance(details, dict) and text_of(details.get("error_code")):
        code = details["error_code"]
    words = text_of(error.get("message")) or str(code)
    return raw.refused(response, code, words, details if isinstance(details, dict) else None)


def _error_of(response: Response) -> dict[str, Any] | None:
    body = raw.json_of(response)
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) and text_of(error.get("type")) else None


def retry_after(response: Response) -> int | None:
    """Return after how many milliseconds to try again, where that is said."""
    for name, factor in (("retry-after-ms", 1), ("Retry-After", 1_000)):
        text = response.headers.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 7:
            return min(int(text) * factor, 600_000)
    return None


def without_id(response: Response) -> ev.ErrorInfo:
    """Return what is wrong with the answer of a create that names no session."""
    return ev.ErrorInfo(
        code=str(ErrorCode.BACKEND_PROTOCOL),
        message=f"The service answered a create with {response.status} and no usable session id.",
    )
