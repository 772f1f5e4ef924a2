"""Gateway hooks (section 4): less of what the agent's own hooks tell, cut at 500 characters and
without ids. They count only where no others come: the first ones wait for those, since the gateway
tells of a turn before the agent does."""

from __future__ import annotations

import contextlib
from typing import Any

from adapters.driving.part import soonest
from adapters.hermes_agent.client import turns
from adapters.hermes_agent.client.messages import content_of
from adapters.hermes_agent.client.state import (
    GatewayHook,
    HermesState,
    HermesThread,
    Hook,
    ModelResult,
)
from adapters.model import events as ev
from adapters.wire.jsonvalue import JsonError, int_of, parse_json, text_of

START = "gateway:agent:start"

BUILT_MS = 60_000
"""How long the first hooks wait for the agent's own while it is built. Ours."""

BEHIND_MS = 2_000
"""How much later the agent's own may come once it works. Ours."""


def hold(s: HermesState, seen: Hook) -> None:
    """Let a hook wait."""
    s.gateway.append(GatewayHook(seen.whole, seen.native.frame or 0, seen.now))


def due(s: HermesState) -> int | None:
    """Return when hooks have waited long enough."""
    return soonest(
        *(
            one.at + (BUILT_MS if one.value["hook_event_name"] == START else BEHIND_MS)
            for one in s.gateway
        )
    )


def session_start(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `session:start`."""
    return [ev.SessionUpdated(thread_id=ev.MAIN, native=seen.native, extra=seen.rest())]


def turn_start(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `agent:start`."""
    out = turns.begin(s, thread, seen, extra=seen.rest("message"))
    content = content_of(seen.args.get("message"))
    name = f"{thread.turn}:message"
    said = ev.MessageReceived(**thread.of(seen.native), message_id=name, content=content)
    return [*out, said] if content else out


def step(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `agent:step`: a model call begins; the tools of the one before have returned."""
    out = turns.work(s, thread, seen)
    index = int_of(seen.args.get("iteration")) or thread.steps + 1
    tools = seen.args.get("tools")
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict):
            out += _tool(thread, seen, tool, f"{thread.turn}:call-{index - 1}-{place + 1}")
    out += turns.end_step(thread, seen.native)
    thread.step, thread.steps = thread.steps, thread.steps + 1
    begun = ev.StepStarted(**thread.of(seen.native), step_index=thread.step)
    return [*out, begun]


def _tool(thread: HermesThread, seen: Hook, tool: dict[str, Any], call_id: str) -> list[ev.Event]:
    arguments = tool.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(JsonError):
            arguments = parse_json(arguments)
    called = ev.ToolCalled(
        **thread.of(seen.native),
        call_id=call_id,
        name=text_of(tool.get("name")) or "unknown",
        input=arguments,
        permission="allow",
    )
    result = ev.ToolReturned(
        **thread.of(seen.native),
        call_id=call_id,
        output=tool.get("result"),
        output_known="result" in tool,
    )
    return [called, result]


def turn_end(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `agent:end`."""
    if thread.turn is None:
        return []
    text = seen.args.get("response")
    if isinstance(text, str) and text:
        thread.last = ModelResult(f"{thread.turn}:final", text, seen.native, "stop")
    return turns.end(s, thread, seen.native, "completed", extra=seen.rest("response"))
