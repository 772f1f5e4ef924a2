"""What an Engine's turn does: text, reasoning, tools, and what is told beside it (section 8)."""

from __future__ import annotations

from typing import Any

from adapters.engine import wire
from adapters.engine.client import early_results, interactions, turns
from adapters.engine.client.state import (
    IN_ANY,
    EngineClientState,
    EngineFrame,
    EngineToolCall,
    Kind,
)
from adapters.model import events as ev
from adapters.model import raw
from adapters.wire.jsonvalue import format_json, int_of, name_of, number_of, rest_of

_TEXT = IN_ANY | {"text"}
_CALL = IN_ANY | {"tool", "tool_call_id", "input"}
_RESULT = IN_ANY | {"tool_call_id", "output", "error"}
_USAGE = IN_ANY | {"input_tokens", "output_tokens", "cache_hit_tokens"}
_COMPACTION = IN_ANY | {"before_tokens", "after_tokens", "strategy"}
"""Members that the model knows."""

KEPT_BYTES = 256 * 1024
"""Bytes of the frames of open calls whose inputs are remembered, for a permission that is asked
later; ours."""

# Text.


def text(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `text_delta`."""
    return _delta(s, seen, "text")


def thinking(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `thinking_delta`."""
    return _delta(s, seen, "reasoning")


def _delta(s: EngineClientState, seen: EngineFrame, kind: Kind) -> list[ev.Event]:
    words = seen.payload.get("text")
    if not isinstance(words, str):
        return unknown(s, seen)
    out = interactions.infer_resolved(s)
    block = s.block
    if block.kind is not None and (block.kind != kind or block.over):
        out += turns.end_block(s)
    out += turns.in_step(s, seen.native)
    if block.kind is None:
        block.kind = kind
        block.number += 1
        block.index += 1
    make = ev.TextDelta if kind == "text" else ev.ReasoningDelta
    out.append(
        raw.delta_of(
            make,
            words,
            thread_id=ev.MAIN,
            turn_id=s.turn,
            block_id=f"b{block.number}",
            message_id=f"m{s.messages}",
            index=block.index,
            native=seen.native,
            extra=rest_of(seen.payload, _TEXT),
        )
    )
    return out


def block_start(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `content_block_start`."""
    if seen.payload.get("block_type") == "tool_use":
        out = turns.in_step(s, seen.native)
        s.calls_in_step = True
        return out + turns.end_block(s, "tool-calls")
    return turns.end_block(s) + turns.in_step(s, seen.native)


def block_stop(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `content_block_stop`."""
    if s.block.kind == "text":
        # Whether this text was the answer or led to a tool shows in what follows.
        s.block.over = True
        return []
    return turns.end_block(s)


# Tools.


def tool_call(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `tool_call` (section 8.6)."""
    payload = seen.payload
    named = name_of(payload.get("tool_call_id"))
    if named is not None and named in s.alone:
        # Its result was told without it.
        return unknown(s, seen)
    out = interactions.infer_resolved(s) + turns.in_step(s, seen.native)
    s.calls_in_step = True
    out += turns.end_block(s, "tool-calls")
    call_id = named
    if call_id is None:
        s.unnamed_calls += 1
        call_id = f"call-{s.unnamed_calls}"
    tool = name_of(payload.get("tool")) or "unknown"
    # A dotted name belongs to a connector (section 8.6).
    server = tool.partition(".")[0] if "." in tool else None
    returned = early_results.take(s, named, call_id, tool)
    if not returned:
        _open(s, call_id, EngineToolCall(tool, payload.get("input"), size=seen.size))
    out.append(
        ev.ToolCalled(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            call_id=call_id,
            name=tool,
            kind="mcp" if server else "builtin",
            server=server,
            input=payload.get("input"),
            input_known="input" in payload,
            native=seen.native,
            extra=rest_of(payload, _CALL),
        )
    )
    return out + returned


def _open(s: EngineClientState, call_id: str, call: EngineToolCall) -> None:
    """Remember a call, with its input where there is room for it."""
    before = s.calls.get(call_id)
    others = sum([one.size for one in s.calls.values() if one.kept and one is not before])
    if others + call.size > KEPT_BYTES:
        call.kept, call.input = False, None
    s.calls[call_id] = call


def tool_result(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `tool_result` (section 8.7)."""
    payload = seen.payload
    call_id = _returning_call(s, seen)
    out: list[ev.Event] = []
    ask = s.ask
    if ask is not None and (ask.call_id in (None, call_id) or ask.given is not None):
        # Another tool may report while one waits for a person (section 9.1).
        out = interactions.infer_resolved(s)
    out += turns.in_turn(s, seen.native)
    if s.ask is None:
        out += turns.end_step(s, None, None, synthetic=True)
    extra = rest_of(payload, _RESULT) or {}
    call = s.calls.pop(call_id, None)
    if call is None and isinstance(payload.get("tool"), str):
        extra["name"] = payload["tool"]
    error = payload.get("error")
    failed = error is not None
    rejected = error == wire.PERMISSION_DENIED
    event = ev.ToolReturned(
        thread_id=ev.MAIN,
        turn_id=s.turn,
        call_id=call_id,
        output=payload.get("output"),
        is_error=failed,
        error=_tool_error(error) if failed else None,
        status="rejected" if rejected else "failed" if failed else "completed",
        native=seen.native,
        extra=extra or None,
    )
    if call is None:
        return out + early_results.keep(s, seen, event)
    return [*out, event]


def _returning_call(s: EngineClientState, seen: EngineFrame) -> str:
    """Return the call of a result: by id, else the oldest that is unanswered (section 8.7)."""
    call_id = name_of(seen.payload.get("tool_call_id"))
    if call_id is not None:
        return call_id
    waiting = list(s.calls)
    if s.ask is not None and s.ask.given is None:
        # What waits for a person cannot return yet.
        waiting = [name for name in waiting if name != s.ask.call_id] or waiting
    return waiting[0] if waiting else f"call-of-frame-{seen.native.frame}"


def _tool_error(error: Any) -> ev.ErrorInfo:
    """Read `tool_result.error`: text or an object, which is not documented (section 8.7)."""
    if isinstance(error, dict):
        code, message = error.get("code"), error.get("message")
        return ev.ErrorInfo(
            code=code if isinstance(code, str) else "tool_failed",
            message=message if isinstance(message, str) else format_json(error).decode(),
            details=error,
        )
    words = error if isinstance(error, str) else format_json(error).decode()
    return ev.ErrorInfo(
        code=words if words == wire.PERMISSION_DENIED else "tool_failed", message=words
    )


# What is told beside the work.


def usage(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `usage`: it ends the model call."""
    payload = seen.payload
    told = ev.Usage(
        input_tokens=int_of(payload.get("input_tokens")),
        output_tokens=int_of(payload.get("output_tokens")),
        cache_read_tokens=int_of(payload.get("cache_hit_tokens")),
        extra=rest_of(payload, _USAGE),
    )
    if s.step is not None:
        return turns.end_step(s, seen.native, told, synthetic=False)
    return [
        ev.UsageReported(
            thread_id=ev.MAIN, turn_id=s.turn, usage=told, scope="call", native=seen.native
        )
    ]


def memory(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `working_memory_update`."""
    return [
        ev.MemoryUpdated(thread_id=ev.MAIN, turn_id=s.turn, value=seen.payload, native=seen.native)
    ]


def compaction(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `compaction_event` (section 8.11)."""
    payload = seen.payload
    strategy = payload.get("strategy")
    return [
        ev.ContextCompacted(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            before_tokens=number_of(payload.get("before_tokens")),
            after_tokens=number_of(payload.get("after_tokens")),
            strategy=strategy if isinstance(strategy, str) else None,
            native=seen.native,
            extra=rest_of(payload, _COMPACTION),
        )
    ]


def unknown(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take what has no meaning here: it survives to a frontend of the same dialect."""
    return [
        ev.Native(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            dialect=wire.DIALECT,
            name=seen.name or "message",
            frame=seen.payload,
            native=seen.native,
        )
    ]
