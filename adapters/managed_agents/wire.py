"""Managed Agents as it is on the wire: names, limits and the few shapes that many modules share.

Source: the types of the vendor's SDKs (Python 2.14.0, TypeScript 1.14.0), its documentation, and
what others recorded of the service, as the two managed-agents pages of this project restate them.
Sections are those of the first page; where the second one differs, it counts.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from adapters.captures.secrets import DeltaFormat
from adapters.model.events import MAIN, Event
from adapters.serving.ids import ids_of

DIALECT = "managed-agents"

SESSIONS = "/v1/sessions"
"""Section 2."""

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
}
"""What every request to the service has (section 1)."""

PREVIEWED = ("agent.message", "agent.thinking")
"""Section 9: the events whose previews a connection may ask for."""

MAX_PREVIEWS = 100
MAX_INITIAL_EVENTS = 50
MAX_SYSTEM_BLOCKS = 1_000
MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
"""Sections 3.1, 4.1 and 9."""

MAX_EVENTS = 100
"""Events of one send: the page names no limit, and each is a command."""

LIMIT_DEFAULT = 1_000
SESSIONS_DEFAULT = 20
SESSIONS_MOST = 100
"""Entries of a page of events or threads (sections 5 and 10), and of sessions, for which the page
names none."""

CONNECTED = b": connected\n\n"
KEEP_ALIVE = b":keepalive\n\n"
KEEP_ALIVE_SECONDS = 25.0
"""The first bytes of a stream, and those of a silent one (live page, section 1)."""

ASK_TOOL = "dragoman_ask"
"""The custom tool that asks a person for what the protocol has no event for. Ours."""

OPTIONS = "managed_agents"
"""The key in a session's options for what a create says that is of this API alone: `environment_id`
and the `version` of the agent."""

TOLD = ("agent", "environment_id", "deployment_id", "resources", "vault_ids", "budget")
"""Members of a session object that say what it was made with (section 3.2)."""


def told_options(told: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the service says that a session was made with, as options: each has its own key,
    so that one that changes is one that is told."""
    return {f"{OPTIONS}.{name}": told[name] for name in TOLD if name in told} or None


def options_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of this API in a session's options."""
    own = options.get(OPTIONS)
    told = {name: options[f"{OPTIONS}.{name}"] for name in TOLD if f"{OPTIONS}.{name}" in options}
    return {**(own if isinstance(own, dict) else {}), **told}


BLOCKS = "blocks"
BLOCK = "block"
"""Members of `extra` of a text that the service sent: how many blocks its message has, and what the
model does not know of the block."""

STATUS_RUNNING = "session.status_running"
STATUS_IDLE = "session.status_idle"
THREAD_RUNNING = "session.thread_status_running"
THREAD_IDLE = "session.thread_status_idle"
TERMINATED = "session.status_terminated"

RESULTS = {
    "agent.tool_use": ("agent.tool_result", "tool_use_id"),
    "agent.mcp_tool_use": ("agent.mcp_tool_result", "mcp_tool_use_id"),
    "agent.custom_tool_use": ("agent.tool_result", "tool_use_id"),
}
"""A use -> the type of its result, and the member that names the use (section 7.2)."""


def primary_thread(session: str) -> str:
    """Return the id of a session's primary thread, which has one too (section 10)."""
    return f"sthr_{session}"


def session_of(thread: str) -> str | None:
    """Return the session whose primary thread has an id, if it is one of those."""
    return thread.removeprefix("sthr_") if thread.startswith("sthr_") else None


def thread_name(session: str, thread_id: str) -> str:
    """Return the id of a thread as it is shown."""
    return primary_thread(session) if thread_id == MAIN else thread_id


def event_ids(session: str) -> str:
    """Return what the ids of a session's events begin with."""
    return ids_of("sevt_", session)


def is_native(event: Event) -> bool:
    """Say whether an event was made of what such a service sent."""
    return event.native is not None and event.native.dialect == DIALECT


def iso(micros: int) -> str:
    """Return Unix microseconds as RFC 3339 with six digits, in UTC (live page, section 1)."""
    moment = datetime.datetime.fromtimestamp(micros // 1_000_000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{micros % 1_000_000:06d}Z"


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LAST = datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC)


def micros_of(text: Any) -> int | None:
    """Return an RFC 3339 time as Unix microseconds; one without a zone is in UTC. None for all that
    is not a time, and for one behind which no later ones can be written."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    if moment >= _LAST:
        return None
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


DELTAS = (
    DeltaFormat(
        "event_delta",
        ("delta", "content", "text"),
        ends=("agent.message", "span.model_request_end", STATUS_IDLE),
    ),
)
"""The frames that have more of a text (section 9)."""
