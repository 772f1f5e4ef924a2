"""Watches a session that began elsewhere with an unmodified `anthropic`, and denies what it asks.

It runs in an environment of its own: `deny.py URL SESSION REASON` prints a JSON line: the types of
the events, the messages, and the tools that asked.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic  # type: ignore[import-not-found,unused-ignore]


def words(event: Any) -> str:
    """Return the text of an event's blocks."""
    return "".join(block.text for block in event.content if block.type == "text")


def watch(url: str, session: str, reason: str) -> dict[str, Any]:
    """Deny what is asked, and read to the end of the turn."""
    sdk = anthropic.Anthropic(base_url=url, api_key="sk-demo", max_retries=0, timeout=120)
    events = sdk.beta.sessions.events
    found: list[Any] = []
    with events.stream(session) as stream:
        # What was before the stream.
        found += events.list(session, limit=1000)
        asking = {event.id: event for event in found if event.type.endswith("tool_use")}
        _deny(sdk, session, found[-1].stop_reason.event_ids, reason)
        for event in stream:
            found.append(event)
            if event.type == "session.status_idle" and event.stop_reason.type == "end_turn":
                break
    texts = [words(event) for event in found if event.type in ("user.message", "agent.message")]
    tools = [asking[name].name for name in found_ids(found)]
    return {"types": [event.type for event in found], "texts": texts, "asked": tools}


def found_ids(found: list[Any]) -> list[str]:
    """Return the ids of what asked."""
    idle = [event for event in found if event.type == "session.status_idle"]
    return [
        name
        for event in idle
        if event.stop_reason.type == "requires_action"
        for name in event.stop_reason.event_ids
    ]


def _deny(sdk: Any, session: str, names: list[str], reason: str) -> None:
    deny = {"type": "user.tool_confirmation", "result": "deny", "deny_message": reason}
    sdk.beta.sessions.events.send(session, events=[{**deny, "tool_use_id": one} for one in names])


if __name__ == "__main__":
    print(json.dumps(watch(*sys.argv[1:])))
