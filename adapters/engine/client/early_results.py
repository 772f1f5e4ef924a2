"""Results that come before their calls: each waits for its call, and for `HOLD_MS` at most."""

from __future__ import annotations

from adapters.engine.client.state import EarlyResult, EngineClientState, EngineFrame
from adapters.model import events as ev
from adapters.wire.jsonvalue import name_of

MOST_EARLY = 64
"""Results that wait, and ids of results that were told without their calls; ours."""


def keep(s: EngineClientState, seen: EngineFrame, event: ev.ToolReturned) -> list[ev.Event]:
    """Keep a result until its call comes; of too many the oldest is told."""
    call_id, tool = name_of(seen.payload.get("tool_call_id")), seen.payload.get("tool")
    named = tool if isinstance(tool, str) else None
    s.early.append(EarlyResult(event, call_id, named, seen.now))
    return _tell(s, len(s.early) - MOST_EARLY)


def take(s: EngineClientState, named: str | None, call_id: str, tool: str) -> list[ev.Event]:
    """Return the result of a call that has come: its id tells, or its tool where there is none."""
    for one in s.early:
        if one.call_id == named if named or one.call_id else one.tool in (None, tool):
            s.early.remove(one)
            extra = {k: v for k, v in (one.event.extra or {}).items() if k != "name"}
            told = {"call_id": call_id, "extra": extra or None}
            return [one.event.model_copy(update=told)]
    return []


def due(s: EngineClientState) -> int | None:
    """Return when the oldest result is told without its call."""
    return s.early[0].due if s.early else None


def tick(s: EngineClientState, now: int) -> list[ev.Event]:
    """Return the results that have waited long enough."""
    return _tell(s, sum(now >= one.due for one in s.early))


def let_go(s: EngineClientState) -> list[ev.Event]:
    """Return all results that wait."""
    return _tell(s, len(s.early))


def _tell(s: EngineClientState, most: int) -> list[ev.Event]:
    told, s.early = s.early[: max(most, 0)], s.early[max(most, 0) :]
    s.alone = [*s.alone, *(one.call_id for one in told if one.call_id)][-MOST_EARLY:]
    return [one.event for one in told]
