"""A strict client of Claude Managed Agents: what the vendor's SDKs read, plus every check that can
be made.

It opens the stream before it sends, reads frames of exactly two lines, joins stream and list by id,
and raises `ProtocolViolation` for whatever a client that keeps to the pages of the protocol would
stumble over. The sections are those of the first page.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import aiohttp

from tests.support.strictness import SILENCE_S, Disconnected, ProtocolViolation, refuse
from tests.support.strictness import Refused as AnyRefused

__all__ = ["Event", "ManagedAgentsClient", "Refused", "StreamChecker", "check_join", "message"]

Event = dict[str, Any]

_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
_THREAD = {"session_thread_id": str, "agent_name": str}
_USE = {"name": str, "input": dict}
_OURS = ("predecessor", "replaced_by")
"""Members of `session.updated` that a Dragoman adds."""

_SHAPES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "user.message": ({"content": list}, set()),
    "user.interrupt": ({}, {"session_thread_id"}),
    "user.tool_confirmation": (
        {"tool_use_id": str, "result": str},
        {"deny_message", "session_thread_id"},
    ),
    "user.custom_tool_result": (
        {"custom_tool_use_id": str, "content": list},
        {"is_error", "session_thread_id"},
    ),
    "user.tool_result": (
        {"tool_use_id": str, "content": list, "is_error": bool},
        {"session_thread_id"},
    ),
    "user.define_outcome": (
        {"outcome_id": str, "description": str, "rubric": dict},
        {"max_iterations"},
    ),
    "system.message": ({"content": list}, set()),
    "agent.message": ({"content": list}, set()),
    "agent.thinking": ({}, set()),
    "agent.tool_use": (_USE, {"evaluated_permission", "evaluation", "session_thread_id"}),
    "agent.mcp_tool_use": (
        {**_USE, "mcp_server_name": str},
        {"evaluated_permission", "evaluation", "session_thread_id"},
    ),
    "agent.custom_tool_use": (_USE, {"session_thread_id"}),
    "agent.tool_result": ({"tool_use_id": str, "content": list, "is_error": bool}, set()),
    "agent.mcp_tool_result": ({"mcp_tool_use_id": str, "content": list, "is_error": bool}, set()),
    "agent.thread_message_sent": (
        {"to_session_thread_id": str, "content": list},
        {"to_agent_name"},
    ),
    "agent.thread_message_received": (
        {"from_session_thread_id": str, "content": list},
        {"from_agent_name"},
    ),
    # The last member is Dragoman's own.
    "agent.thread_context_compacted": ({}, {"cleared"}),
    "session.status_running": ({}, set()),
    "session.status_rescheduled": ({}, set()),
    "session.status_terminated": ({}, set()),
    "session.deleted": ({}, set()),
    "session.status_idle": ({"stop_reason": dict}, {"stop_details"}),
    "session.error": ({"error": dict}, set()),
    "session.updated": ({}, {"agent", "budget", "metadata", "title", *_OURS}),
    "session.usage": ({"usage": dict}, {"budget"}),
    "session.thread_created": (_THREAD, {"workflow_run_id", "tool_use_id"}),
    "session.thread_status_running": (_THREAD, set()),
    "session.thread_status_rescheduled": (_THREAD, set()),
    "session.thread_status_terminated": (_THREAD, set()),
    "session.thread_status_idle": ({**_THREAD, "stop_reason": dict}, {"stop_details"}),
    "span.model_request_start": ({}, set()),
    "span.model_request_end": (
        {"model_request_start_id": str, "is_error": bool, "model_usage": dict},
        {"content"},
    ),
    "span.outcome_evaluation_start": ({"outcome_id": str, "iteration": int}, set()),
    "span.outcome_evaluation_ongoing": ({"outcome_id": str, "iteration": int}, set()),
    "span.outcome_evaluation_end": (
        {
            "outcome_id": str,
            "iteration": int,
            "outcome_evaluation_start_id": str,
            "result": str,
            "explanation": str,
            "usage": dict,
        },
        set(),
    ),
}
"""Event -> members that it has, and those that it may have besides (section 7)."""

_REASONS = {"end_turn", "requires_action", "retries_exhausted", "budget_reached", "refusal"}
_USES = {"agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"}
_BLOCKS = {"text", "image", "document", "search_result", "redacted"}
_TWICE = {"user.message", "system.message"}


class Refused(AnyRefused):
    """The server answered with an error status."""

    @property
    def code(self) -> str | None:
        """Return `error.type` (section 12)."""
        if not isinstance(self.body, dict) or self.body.get("type") != "error":
            return None
        code: str = self.body["error"]["type"]
        return code


_NULLABLE = {"processed_at", "budget"}


def check_event(event: Event) -> None:
    """Check what every stored event has, listed or streamed.

    Raises:
        ProtocolViolation: a member is missing, wrong or unknown.
    """
    kind = event.get("type")
    if str(kind).startswith("workflow_run."):
        # Section 7.5: they pass as they are.
        return
    if kind not in _SHAPES:
        raise ProtocolViolation("an unknown type", event)
    needed, optional = _SHAPES[kind]
    if not isinstance(event.get("id"), str) or not event["id"]:
        raise ProtocolViolation("an event without an id", event)
    for name, type_ in needed.items():
        value = event.get(name)
        if not isinstance(value, type_) or (type_ is int and isinstance(value, bool)):
            raise ProtocolViolation(f"`{name}` is not a {type_.__name__}", event)
    more = event.keys() - needed.keys() - optional - {"id", "type", "processed_at"}
    if more:
        raise ProtocolViolation(f"unknown members {sorted(more)}", event)
    # Members that are not set are left out (live page, section 1).
    unset = [name for name in event if event[name] is None and name not in _NULLABLE]
    if unset:
        raise ProtocolViolation(f"null stands in {unset}", event)
    at = event.get("processed_at", "")
    if at is None and kind.startswith(("user.", "system.")):
        return
    if not isinstance(at, str) or not _TIME.match(at):
        raise ProtocolViolation("`processed_at` is not a time with six digits", event)
    for block in event.get("content", ()):
        if block.get("type") not in _BLOCKS:
            raise ProtocolViolation("an unknown block", event)
    reason = event.get("stop_reason")
    if reason is not None and reason.get("type") not in _REASONS:
        raise ProtocolViolation("an unknown stop reason", event)
    if kind == "session.error":
        _check_error(event["error"], event)


def _check_error(error: Event, event: Event) -> None:
    retry = error.get("retry_status", {}).get("type")
    if not isinstance(error.get("type"), str) or not isinstance(error.get("message"), str):
        raise ProtocolViolation("an error without type or message", event)
    if retry not in ("retrying", "exhausted", "terminal"):
        raise ProtocolViolation("an error of an unknown retry status", event)


class StreamChecker:
    """Checks the frames of one stream: bytes in, events out, previews among them.

    Args:
        thread: it is a child's stream, which has no `session.status_*` (section 10).
        previews: the types that it asked for.
        late: it was opened in the middle of what is streamed.
    """

    def __init__(
        self, *, thread: bool = False, previews: Sequence[str] = (), late: bool = False
    ) -> None:
        self._thread = thread
        self._previews = previews
        self._late = late
        self._rest = b""
        self._begun = False
        self._ids: dict[str, str | None] = {}
        self._newest = ""
        self._running: bool | None = None
        self._open: dict[str, str] = {}
        self._started: set[str] = set()
        self._uses: set[str] = set()
        self._request: str | None = None
        self._usage = False
        self._over = False
        self.comments = 0

    def feed(self, data: bytes) -> list[Event]:
        """Take bytes, return the events that are complete."""
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        return [event for block in blocks if (event := self._block(block)) is not None]

    def close(self) -> None:
        """Take the end of the stream, in order: nothing may be cut."""
        if self._rest:
            raise Disconnected(f"the stream ends inside a frame: {self._rest[:200]!r}")

    def _block(self, block: bytes) -> Event | None:
        if block.startswith(b":"):
            if block not in (b": connected", b":keepalive"):
                raise ProtocolViolation("an unknown comment", block)
            self.comments += 1
            self._begun = True
            return None
        if not self._begun:
            raise ProtocolViolation("the stream does not begin with `: connected`", block)
        head, _, rest = block.partition(b"\n")
        if head != b"event: message" or not rest.startswith(b"data: ") or b"\n" in rest:
            raise ProtocolViolation("a frame is not `event: message` and one `data:`", block)
        event: Event = json.loads(rest.removeprefix(b"data: "))
        if self._over:
            raise ProtocolViolation("something follows the deletion", event)
        if event["type"] in ("event_start", "event_delta"):
            self._preview(event)
        else:
            check_event(event)
            self._check(event)
        return event

    def _preview(self, event: Event) -> None:
        if event["type"] == "event_start":
            kind, name = event["event"]["type"], event["event"]["id"]
            if kind not in self._previews:
                raise ProtocolViolation("a preview that nobody asked for", event)
            if name in self._started:
                raise ProtocolViolation("a preview begins twice", event)
            self._started.add(name)
            self._open[name] = ""
            return
        name, delta = event["event_id"], event["delta"]
        if name not in self._open:
            raise ProtocolViolation("a delta without its start", event)
        if delta["type"] != "content_delta" or delta.get("index", 0) != 0:
            raise ProtocolViolation("a delta of an unknown form", event)
        self._open[name] += delta["content"]["text"]

    def _check(self, event: Event) -> None:
        kind, name, at = event["type"], event["id"], event["processed_at"]
        if name in self._ids and not (kind in _TWICE and self._ids[name] is None and at):
            raise ProtocolViolation("an id comes twice", event)
        self._ids[name] = at
        if at is not None:
            if at <= self._newest:
                raise ProtocolViolation("times do not rise", event)
            self._newest = at
        previewed = self._open.pop(name, None)
        if previewed is not None and kind == "agent.message":
            text = "".join(block.get("text", "") for block in event["content"])
            if not text.startswith(previewed):
                raise ProtocolViolation(f"the preview was {previewed!r}", event)
        getattr(self, f"_{kind.replace('.', '_')}", self._nothing)(event)
        if kind in _USES:
            self._uses.add(name)
        if kind.startswith("session.status_") and self._thread:
            raise ProtocolViolation("a session's status on a child's stream", event)

    def _nothing(self, event: Event) -> None:
        del event

    def _session_status_running(self, event: Event) -> None:
        if self._running is True:
            raise ProtocolViolation("a second `status_running`", event)
        self._running = True

    def _session_status_idle(self, event: Event) -> None:
        if not self._usage:
            raise ProtocolViolation("no `session.usage` before an idle", event)
        self._running, self._usage = False, False
        if self._request is not None:
            raise ProtocolViolation("a model request is open at an idle", event)
        reason = event["stop_reason"]
        if reason["type"] == "requires_action":
            ids = reason.get("event_ids")
            strange = [one for one in ids if one not in self._uses] if not self._late else []
            if not ids or strange:
                raise ProtocolViolation(f"`event_ids` name {strange or 'nothing'}", event)

    def _session_usage(self, event: Event) -> None:
        self._usage = True

    def _session_deleted(self, event: Event) -> None:
        self._over = True

    def _span_model_request_start(self, event: Event) -> None:
        if self._request is not None:
            raise ProtocolViolation("a second model request", event)
        self._request = event["id"]

    def _span_model_request_end(self, event: Event) -> None:
        if self._request != event["model_request_start_id"] and not self._late:
            raise ProtocolViolation("the end of another model request", event)
        if self._open and not event["is_error"]:
            raise ProtocolViolation(f"previews without an end: {self._open}", event)
        self._request = None
        self._open.clear()

    def _agent_message(self, event: Event) -> None:
        if self._request is None and not self._late:
            raise ProtocolViolation("output outside of a model request", event)

    def _agent_tool_result(self, event: Event) -> None:
        if event["tool_use_id"] not in self._uses and not self._late:
            raise ProtocolViolation("a result without its tool use", event)

    def _agent_mcp_tool_result(self, event: Event) -> None:
        if event["mcp_tool_use_id"] not in self._uses and not self._late:
            raise ProtocolViolation("a result without its tool use", event)


def check_join(streamed: Sequence[Event], listed: Sequence[Event]) -> None:
    """Check that a list is what a reader who never left holds, joined by id: an input once, at the
    place where it was processed.

    Raises:
        ProtocolViolation: an event is missing, differs, or stands elsewhere.
    """
    for event in listed:
        check_event(event)
    held = [one for one in streamed if one.get("processed_at") is not None]
    ids = {one["id"] for one in held}
    shared = [one for one in listed if one["id"] in ids]
    if shared != held:
        raise ProtocolViolation("the list differs from the stream", (shared, held))
    if len({one["id"] for one in listed}) < len(listed):
        raise ProtocolViolation("the list has an id twice", listed)


class ManagedAgentsClient:
    """Talks to one face as an SDK of today does.

    Args:
        http: the HTTP client to use.
        url: the base URL.
        key: the API key; sent as a bearer token.
    """

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str = "") -> None:
        self._http = http
        self._base = url.rstrip("/")
        self._headers = {
            "accept": "application/json",
            "anthropic-beta": "managed-agents-2026-04-01",
            "anthropic-version": "2026-10-21",
            "authorization": f"Bearer {key or 'none'}",
        }

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        params: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Do a request and return the JSON of a 2xx.

        Raises:
            Refused: the answer is an error status; its form is checked (section 12).
        """
        all_headers = {**self._headers, **(headers or {})}
        if data is None and body is not None:
            data = json.dumps(body).encode()
        if data is not None:
            all_headers["content-type"] = "application/json"
        async with self._http.request(
            method, self._base + path, data=data, params=params, headers=all_headers
        ) as response:
            try:
                await refuse(response, Refused)
            except Refused as refused:
                _check_refusal(refused)
                raise
            if response.content_type != "application/json":
                raise ProtocolViolation("an answer that is not JSON", response.headers)
            if not response.headers.get("request-id"):
                raise ProtocolViolation("an answer without `request-id`", response.headers)
            return await response.json()

    async def create(self, **members: Any) -> Event:
        """Make a session of the route's agent and environment."""
        agents = await self.call("GET", "/v1/agents")
        environments = await self.call("GET", "/v1/environments")
        body = {
            "agent": agents["data"][0]["id"],
            "environment_id": environments["data"][0]["id"],
            **members,
        }
        return check_session(await self.call("POST", "/v1/sessions", body))

    async def send(self, session: str, *events: Event) -> list[Event]:
        """Send a batch; return the stored events."""
        path = f"/v1/sessions/{session}/events"
        stored: list[Event] = (await self.call("POST", path, {"events": [*events]}))["data"]
        for event in stored:
            check_event(event)
        return stored

    async def all_of(self, path: str, **params: Any) -> list[Event]:
        """Return all entries of a list, page by page."""
        found: list[Event] = []
        query = [
            (name, str(one))
            for name, value in params.items()
            for one in (value if isinstance(value, list) else [value])
        ]
        page: str | None = None
        while True:
            more = [] if page is None else [("page", page)]
            answer = await self.call("GET", path, params=[*query, *more])
            if not answer["data"] and answer["next_page"]:
                raise ProtocolViolation("an empty page with a cursor", answer)
            found += answer["data"]
            page = answer["next_page"]
            if not page:
                return found

    async def events(self, session: str, **params: Any) -> list[Event]:
        """Return the stored events of a session."""
        return await self.all_of(f"/v1/sessions/{session}/events", **params)

    async def stream(
        self,
        session: str,
        *,
        thread: str | None = None,
        previews: Sequence[str] = (),
        late: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Yield `{}` once the stream is open, then its events."""
        checker = StreamChecker(thread=thread is not None, previews=previews, late=late)
        path = f"/v1/sessions/{session}/events/stream"
        if thread is not None:
            path = f"/v1/sessions/{session}/threads/{thread}/stream"
        timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
        async with self._http.get(
            self._base + path,
            headers=self._headers,
            params=[("event_deltas[]", name) for name in previews],
            timeout=timeout,
        ) as response:
            await refuse(response, Refused)
            if response.content_type != "text/event-stream":
                raise ProtocolViolation("not an event stream", response.headers)
            yield {}
            try:
                async for data in response.content.iter_any():
                    for event in checker.feed(data):
                        yield event
            except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as broken:
                raise Disconnected(str(broken)) from broken
            checker.close()


def _check_refusal(refused: Refused) -> None:
    body = refused.body
    if not isinstance(body, dict) or refused.code is None:
        raise ProtocolViolation("an error without its envelope", body)
    if not body["error"].get("message") or not str(body.get("request_id")).startswith("req_"):
        raise ProtocolViolation("an error without a message or a request", body)
    if refused.status == 409:
        raise ProtocolViolation("a 409, which SDKs repeat", body)


def message(text: str) -> Event:
    """Return a `user.message` of one block."""
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


_SESSION: Mapping[str, type | tuple[type, ...]] = {
    "id": str,
    "type": str,
    "status": str,
    "agent": dict,
    "environment_id": str,
    "metadata": dict,
    "resources": list,
    "vault_ids": list,
    "outcome_evaluations": list,
    "stats": dict,
    "usage": dict,
    "created_at": str,
    "updated_at": str,
}


def check_session(body: Event) -> Event:
    """Check a session object and return it (section 3.2)."""
    for name, kind in _SESSION.items():
        if not isinstance(body.get(name), kind):
            raise ProtocolViolation(f"`{name}` of a session is wrong", body)
    if body["type"] != "session":
        raise ProtocolViolation("not a session", body)
    if body["status"] not in ("idle", "running", "rescheduling", "terminated"):
        raise ProtocolViolation("a session of an unknown status", body)
    return body
