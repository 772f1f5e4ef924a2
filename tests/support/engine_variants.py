"""The forms that the engine page leaves open, each by itself and all together."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.scripted.engine_turns import EngineVariant

__all__ = ["LEAST", "VARIANTS"]

VARIANTS: Mapping[str, EngineVariant] = {
    "no tool ids": EngineVariant(tool_call_id=False),
    "results first": EngineVariant(result_first=True),
    "results first, no tool ids": EngineVariant(result_first=True, tool_call_id=False),
    "error only": EngineVariant(failure="error"),
    "errored only": EngineVariant(failure="errored"),
    "errored first": EngineVariant(failure="errored_error"),
    "heartbeats without time": EngineVariant(heartbeat_timestamp=False),
    "short lifecycle": EngineVariant(short_lifecycle=True),
    "no blocks": EngineVariant(blocks=False),
    "request before call": EngineVariant(call_before_request=False),
    "options as objects": EngineVariant(options="objects"),
    "no options": EngineVariant(options="absent"),
    "unnamed resolution": EngineVariant(resolved_request_id=False),
    "no usage": EngineVariant(usage=False),
    "replay ends": EngineVariant(replay_tails=False),
    "odd framing": EngineVariant(tolerance=True),
}

LEAST = EngineVariant(
    tool_call_id=False,
    failure="errored",
    heartbeat_timestamp=False,
    short_lifecycle=True,
    blocks=False,
    call_before_request=False,
    options="objects",
    resolved_request_id=False,
    usage=False,
    replay_tails=False,
)
"""An Engine that leaves out whatever the page allows it to."""
