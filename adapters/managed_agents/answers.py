"""Answers of the face: the bodies of its routes, and errors in the dialect's own words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from adapters.contract.faces import Backend
from adapters.contract.faces.answers import USUAL_STATUS, json_answer, say_when_to_retry
from adapters.managed_agents import wire
from adapters.managed_agents.state import ManagedAgentsState
from adapters.model.base import Response
from adapters.model.session_info import SessionInfo
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json

_SINCE = "2026-04-01T00:00:00Z"
"""When what a route has was made: it has always been there."""

_IDENTITY = {"type": "service_account"}


def data_answer(bodies: Iterable[bytes], **cursors: str | None) -> Response:
    """Return a list; the rows are JSON. `cursors` lead to other pages (section 1.2)."""
    more = b"".join(b',"%b":%b' % (k.encode(), format_json(v)) for k, v in cursors.items())
    answer = json_answer(200, {})
    return dataclasses.replace(answer, body=b'{"data":[%b]%b}' % (b",".join(bodies), more))


# What a route has: one agent and one environment.


def agent_object(backend: Backend, system: Any = None) -> dict[str, Any]:
    """Return the one agent of a route."""
    return {
        **_agent(backend.agent, backend.name, f"{backend.dialect}/{backend.name}", 1),
        "metadata": {},
        "created_at": _SINCE,
        "updated_at": _SINCE,
        "archived_at": None,
        "system": system,
    }


def _agent(id_: str, name: str, model: str, version: int) -> dict[str, Any]:
    return {
        "id": id_,
        "type": "agent",
        "version": version,
        "name": name,
        "description": None,
        "model": {"id": model, "speed": "standard"},
        "system": None,
        "tools": [],
        "mcp_servers": [],
        "skills": [],
        "multiagent": None,
        "execution_identity": _IDENTITY,
    }


def environment_id(route: str) -> str:
    """Return the id of the one environment of a route."""
    return f"env_{route}"


def environment_object(id_: str, name: str) -> dict[str, Any]:
    """Return an environment: where the backend works is not known here."""
    return {
        "id": id_,
        "type": "environment",
        "name": name,
        "description": None,
        "config": {
            "type": "cloud",
            "networking": {"type": "unrestricted"},
            "packages": {
                "type": "packages",
                **{name: [] for name in ("apt", "cargo", "gem", "go", "npm", "pip")},
            },
        },
        "metadata": {},
        "created_at": _SINCE,
        "updated_at": _SINCE,
        "archived_at": None,
    }


# Sessions and threads.


def session_object(
    session_id: str,
    status: str,
    about: SessionInfo,
    created_at: int,
    updated_at: int,
    *,
    ask_tool: str = wire.ASK_TOOL,
    shown: ManagedAgentsState | None = None,
) -> dict[str, Any]:
    """Return the session object (section 3.2); times are Unix milliseconds. `shown` is what the
    encoder knows, where it is looked at: what was used is only there."""
    kept = wire.options_of(about.options)
    archived = about.archived_at
    updated = max(updated_at, created_at)
    return {
        "id": session_id,
        "type": "session",
        "status": "terminated" if about.ended or archived is not None else status,
        "agent": _session_agent(about, kept, ask_tool),
        "environment_id": str(kept.get("environment_id", "")),
        "title": about.title or None,
        "metadata": about.metadata,
        "resources": kept.get("resources") or [],
        "vault_ids": kept.get("vault_ids") or [],
        "outcome_evaluations": [] if shown is None else _evaluations(shown),
        "budget": kept.get("budget"),
        "deployment_id": kept.get("deployment_id"),
        "stats": {"duration_seconds": (updated - created_at) / 1000, **_active(shown)},
        "usage": {} if shown is None else shown.usage,
        "archived_at": None if archived is None else wire.iso(archived * 1000),
        "created_at": wire.iso(created_at * 1000),
        "updated_at": wire.iso(updated * 1000),
    }


def _active(shown: ManagedAgentsState | None) -> dict[str, float]:
    return {} if shown is None else {"active_seconds": shown.active_ms / 1000}


def _evaluations(shown: ManagedAgentsState) -> list[dict[str, Any]]:
    """Return what was said last of each outcome that the work was judged by."""
    return [
        {
            "type": "outcome_evaluation",
            "outcome_id": one.id,
            "description": one.description,
            "iteration": one.iteration,
            "result": one.result,
            "explanation": one.explanation,
            "completed_at": None if one.completed_at is None else wire.iso(one.completed_at * 1000),
        }
        for one in shown.outcomes.values()
        if one.result is not None
    ]


def _session_agent(about: SessionInfo, kept: Mapping[str, Any], ask_tool: str) -> dict[str, Any]:
    """Return the agent of a session. It has the tool that asks: a program that answers custom tools
    finds it there."""
    given = about.agent
    name, model = given.get("name"), given.get("model")
    id_ = given.get("id") or name or "agent"
    version = given.get("version")
    found = _agent(
        str(id_),
        str(name or id_),
        str(model or "unknown"),
        version if isinstance(version, int) else int(kept.get("version") or 1),
    )
    own = kept.get("agent")
    if isinstance(own, dict):
        found |= own
    schema = {
        "type": "object",
        "properties": {"question": {"type": "string"}, "options": {"type": "array"}},
    }
    found["tools"] = [
        *found["tools"],
        {
            "type": "custom",
            "name": ask_tool,
            "description": "Asks the person: answer with the id of an option, or with words.",
            "input_schema": schema,
        },
    ]
    return found


def thread_objects(
    session_id: str, status: str, s: ManagedAgentsState, created_at: int, updated_at: int
) -> dict[str, dict[str, Any]]:
    """Return the threads of a session by id, the primary one first (section 10)."""
    primary = wire.primary_thread(session_id)
    found = {
        primary: _thread(session_id, primary, None, s.agent, status, created_at, updated_at, None)
    }
    found[primary]["usage"] = s.usage
    for name, child in s.children.items():
        thread = _thread(
            session_id,
            name,
            wire.thread_name(session_id, child.parent),
            child.name,
            child.status,
            child.created,
            child.updated,
            child.ended,
        )
        if child.kind == "advisor":
            thread["agent"] = {"type": "advisor", "model": thread["agent"]["model"]}
        found[name] = thread
    return found


def _thread(
    session_id: str,
    name: str,
    parent: str | None,
    agent: str,
    status: str,
    created_at: int,
    updated_at: int,
    ended: int | None,
) -> dict[str, Any]:
    return {
        "id": name,
        "type": "session_thread",
        "session_id": session_id,
        "parent_thread_id": parent,
        "agent": _agent(agent, agent, "unknown", 1),
        "status": status,
        "archived_at": None if ended is None else wire.iso(ended * 1000),
        "created_at": wire.iso(created_at * 1000),
        "updated_at": wire.iso(max(updated_at, created_at) * 1000),
        "stats": None,
        "usage": None,
        "workflow_run_id": None,
    }


def status_of(state: str, *, working: bool = False) -> str:
    """Return how a session stands; `state` is as the journal keeps it. A message on its way is work
    too."""
    if state in ("ended", "deleted"):
        return "terminated"
    return "running" if state == "running" or (working and state == "idle") else "idle"


# Errors (section 12).


def refusal(error: DragomanError, trace: str, error_id: str | None = None) -> Response:
    """Return the answer for an error. What a repeat cannot cure says so: SDKs post again what was
    refused with 409 or failed with 5xx."""
    status = _STATUSES[error.code]
    message = error.message
    if error_id is not None:
        message = f"This went wrong here; the log has it under `{error_id}`."
    body: dict[str, Any] = {
        "type": "error",
        "error": {"type": _TYPES.get(status, "api_error"), "message": message},
        "request_id": f"req_{trace}",
    }
    answer = json_answer(status, body)
    if error_id is not None or status in (400, 404, 405, 413):
        answer.headers["x-should-retry"] = "false"
    return say_when_to_retry(answer, error.details)


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
"""By status; the rest is `api_error`."""

_STATUSES: Mapping[ErrorCode, int] = {
    **USUAL_STATUS,
    ErrorCode.UNKNOWN_INTERACTION: 400,
    ErrorCode.ALREADY_ANSWERED: 400,
    ErrorCode.BUSY: 400,
    ErrorCode.PAUSED: 400,
    ErrorCode.NOT_ACTIVE: 400,
    ErrorCode.KEY_REUSED: 400,
    ErrorCode.UNSUPPORTED_MEDIA: 400,
    ErrorCode.CURSOR_EXPIRED: 404,
}
