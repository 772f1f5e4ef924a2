"""What a turn shows: steps, blocks of text and reasoning, tools, tokens and results (section 8)."""

from __future__ import annotations

from typing import Any

import orjson

from adapters.engine import wire
from adapters.engine.writer import EngineWriter, unknown_members
from adapters.model import events as ev
from adapters.model.normalizer import ABANDONED
from adapters.serving.results import digest_of, digest_of_text
from adapters.wire.jsonvalue import format_json

# Steps and tokens.


def step_started(w: EngineWriter, _: ev.StepStarted) -> None:
    """Count blocks and tokens anew."""
    close_block(w)
    w.s.blocks = 0
    w.s.call_usage, w.s.step_usage = False, None


def step_ended(w: EngineWriter, event: ev.StepEnded) -> None:
    """Write the tokens of a step, unless a report has told them."""
    if event.usage is not None and not w.s.call_usage:
        w.s.step_usage = _write_usage(w, event.usage, event)


def usage_reported(w: EngineWriter, event: ev.UsageReported) -> None:
    """Write the tokens of a call. Clients sum them, so totals of the turn or the session are left
    out (section 14, point 3)."""
    if event.scope != "call":
        return
    tokens = _tokens(event.usage)
    if tokens is not None and tokens == w.s.step_usage and not wire.is_native(event):
        # Some backends tell it with the model call's end and again.
        w.s.step_usage = None
    elif _write_usage(w, event.usage, event) is not None:
        w.s.call_usage = True


def _write_usage(w: EngineWriter, usage: ev.Usage, event: ev.Event) -> dict[str, int] | None:
    tokens = _tokens(usage)
    if tokens is not None:
        extra = unknown_members(usage.extra or {}, "usage") if wire.is_native(event) else {}
        w.write("usage", {**extra, **tokens})
    return tokens


def _tokens(usage: ev.Usage) -> dict[str, int] | None:
    """Return the three counts of `usage`, or None where the source knows no tokens."""
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    return {
        "input_tokens": usage.input_tokens or 0,
        "output_tokens": usage.output_tokens or 0,
        "cache_hit_tokens": usage.cache_read_tokens or 0,
    }


# Blocks.


def delta(w: EngineWriter, event: ev.TextDelta | ev.ReasoningDelta) -> None:
    """Write more of a block."""
    s = w.s
    if event.TYPE == "text.delta":
        kind, name = "text", "text_delta"
    else:
        kind, name = "thinking", "thinking_delta"
    if s.block != kind or s.cut is not None:
        _open_block(w, kind)
    if event.extra is not None and wire.is_native(event):
        w.write(name, {"text": event.text}, event)
    else:
        w.frame(name, b'{"text":%b}' % orjson.dumps(event.text))


def _open_block(w: EngineWriter, kind: str) -> None:
    """Begin a block; blocks never nest, so one that is interrupted goes on as another one."""
    close_block(w)
    w.s.block = kind
    w.write("content_block_start", {"block_index": w.s.blocks, "block_type": kind})


def close_block(w: EngineWriter) -> None:
    """End the open block, if there is one."""
    s = w.s
    if s.block is None:
        return
    payload: dict[str, Any] = {"block_index": s.blocks, "block_type": s.block}
    if s.cut is not None:
        payload["status"] = s.cut
    w.write("content_block_stop", payload)
    s.block = s.cut = None
    s.blocks += 1


def _end_block(w: EngineWriter, kind: str, status: str) -> None:
    """Record that a block is over. One that was cut stays open until something else begins: half a
    text must not look like an answer, and a turn that fails closes nothing."""
    if w.s.block != kind:
        return
    if status == "complete":
        close_block(w)
    else:
        w.s.cut = status


def text_completed(w: EngineWriter, event: ev.TextCompleted) -> None:
    """End a text, and remember it where it may be the result."""
    complete = event.status == "complete"
    if event.content and not event.text and complete:
        # Something that is not text stands here: an image, a redacted block.
        _open_block(w, "text")
        w.write("text_delta", {"text": ev.text_of(event.content)})
    _end_block(w, "text", event.status)
    if complete and (digest := digest_of_text(event.text)) is not None:
        w.s.said.append(digest)
        # A result that is one of these is not shown again: an agent says its result last.
        del w.s.said[:-64]


def reasoning_completed(w: EngineWriter, event: ev.ReasoningCompleted) -> None:
    """End reasoning."""
    _end_block(w, "thinking", event.status)


def result_produced(w: EngineWriter, event: ev.ResultProduced) -> None:
    """Write a result as a text, unless the agent has said it."""
    if digest_of(event.value) not in w.s.said:
        _open_block(w, "text")
        w.write("text_delta", {"text": format_json(event.value).decode()})
        close_block(w)


# Tools.


def tool_called(w: EngineWriter, event: ev.ToolCalled) -> None:
    """Write a call, in a block of its own (section 8.6)."""
    _open_block(w, "tool_use")
    tool = event.name
    if event.kind == "mcp" and event.server and not tool.startswith(f"{event.server}."):
        # The name of a connector's tool is dotted.
        tool = f"{event.server}.{tool}"
    payload: dict[str, Any] = {
        "tool": tool,
        "tool_call_id": event.call_id,
        "input": event.input if event.input_known else {},
    }
    told = {"preview": event.preview, "label": event.label}
    payload |= {name: value for name, value in told.items() if value is not None}
    if event.kind not in ("builtin", "mcp"):
        payload["kind"] = event.kind
    w.write("tool_call", payload, event)
    close_block(w)


def tool_returned(w: EngineWriter, event: ev.ToolReturned) -> None:
    """Write the result of a call (section 8.7)."""
    if event.error is not None and event.error.code == ABANDONED and event.synthetic:
        # Only closes the call: a result that never came is not invented.
        return
    close_block(w)
    payload: dict[str, Any] = {"tool_call_id": event.call_id, "output": _output(event)}
    if event.is_error or event.status == "rejected":
        payload["error"] = _failure(event)
    if event.status == "interrupted":
        payload["status"] = event.status
    if event.status == "rejected" and event.error is not None:
        reason = event.error.message
        if reason and reason != payload["error"]:
            payload["reason"] = reason
    if event.input is not None:
        payload["input"] = event.input
    w.write("tool_result", payload, event)


def _output(event: ev.ToolReturned) -> Any:
    """Return the output of a call: JSON, or its blocks as their text where all are text (8.7)."""
    if event.output is not None or not event.content:
        if event.output is None and (event.is_error or not event.output_known):
            return ""
        return event.output
    if all(isinstance(block, ev.Text) for block in event.content):
        return ev.text_of(event.content)
    return [block.model_dump(mode="json", exclude_none=True) for block in event.content]


def _failure(event: ev.ToolReturned) -> Any:
    """Return `error` of a failed call: the message, or the object that an Engine sent (8.7)."""
    if event.status == "rejected":
        return wire.PERMISSION_DENIED
    if event.error is None:
        return "failed"
    if wire.is_native(event) and event.error.details is not None:
        return event.error.details
    return event.error.message or event.error.code
