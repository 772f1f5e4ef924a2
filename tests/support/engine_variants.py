"""The forms that the engine page leaves open, each by itself and all together."""

from __future__ import annotations

from collections.abc import Mapping

from proxy.scripted.engine_turns import Variant

__all__ = ["LEAST", "VARIANTS"]

VARIANTS: Mapping[str, Variant] = {
    "no tool ids": Variant(tool_call_id=False),
    "results first": Variant(result_first=True),
    "results first, no tool ids": Variant(result_first=True, tool_call_id=False),
    "error only": Variant(failure="error"),
    "errored only": Variant(failure="errored"),
    "errored first": Variant(failure="errored_error"),
    "heartbeats without time": Variant(heartbeat_timestamp=False),
    "short lifecycle": Variant(short_lifecycle=True),
    "no blocks": Variant(blocks=False),
    "request before call": Variant(call_before_request=False),
    "options as objects": Variant(options="objects"),
    "no options": Variant(options="absent"),
    "unnamed resolution": Variant(resolved_request_id=False),
    "no usage": Variant(usage=False),
    "replay ends": Variant(replay_tails=False),
    "odd framing": Variant(tolerance=True),
}

LEAST = Variant(
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
