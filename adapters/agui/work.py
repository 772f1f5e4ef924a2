"""Work: steps, texts, reasoning, calls and results of the agent and its children."""

from __future__ import annotations

from typing import Any

from adapters.agui import wire
from adapters.agui.runs import close_line, end_text, end_thinking, show_call
from adapters.agui.state import Asked, Block, Child, Line
from adapters.agui.writer import (
    Writer,
    about,
    announce,
    at_work,
    put,
    put_custom,
    put_message,
)
from adapters.contract.faces.results import digest_of, digest_of_text
from adapters.model import events as ev
from adapters.model.normalizer import ABANDONED
from adapters.wire.jsonvalue import format_json

MODELS_KEPT = 16
"""Models of which a run counts the tokens; those of further ones are counted without a name."""

FINISHED_KEPT = 256
"""Children of a run that are known to be done."""

_COUNTS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cachedInputTokens",
    "cache_write_tokens": "cacheWriteInputTokens",
    "reasoning_tokens": "reasoningTokens",
}


# Steps.


def step_started(w: Writer, event: ev.StepStarted) -> None:
    """Begin a step; its name is counted."""
    line = at_work(w, event.thread_id)
    if line is None:
        return
    close_line(w, event.thread_id)
    line.model, w.run.told = event.model, None
    line.step = f"step {event.step_index + 1}"
    if event.thread_id != ev.MAIN and not w.run.modern:
        line.step = f"{event.thread_id}: {line.step}"
    w.write("STEP_STARTED", {"stepName": line.step}, event.thread_id)


def step_ended(w: Writer, event: ev.StepEnded) -> None:
    """End a step, and count its tokens."""
    line = w.s.lines.get(event.thread_id)
    if w.s.run is None:
        return
    if event.usage is not None:
        _count(w, event.usage, None if line is None else line.model)
    if line is None or line.step is None:
        return
    error = event.error
    told = {} if error is None else {"error": error.model_dump(exclude_none=True)}
    w.write("STEP_FINISHED", {"stepName": line.step, **about(told)}, event.thread_id)
    line.step = None


def usage_reported(w: Writer, event: ev.UsageReported) -> None:
    """Count the tokens of a call: totals of the turn or the session are none of a run."""
    if event.scope == "call" and w.s.run is not None:
        line = w.s.lines.get(event.thread_id)
        _count(w, event.usage, None if line is None else line.model)


def _count(w: Writer, usage: ev.Usage, model: str | None) -> None:
    """Add the tokens of a call, unless they were just told: some backends tell them twice."""
    counts = ((name, getattr(usage, field)) for field, name in _COUNTS.items())
    tokens: dict[str, int] = {name: count for name, count in counts if count is not None}
    run = w.run
    if not tokens or tokens == run.told:
        run.told = None
        return
    run.told = tokens
    if model not in run.usage and len(run.usage) >= MODELS_KEPT:
        model = None
    counted = run.usage.setdefault(model or "", {})
    for name, count in tokens.items():
        counted[name] = counted.get(name, 0) + count


# Blocks.


def delta(w: Writer, event: ev.TextDelta | ev.ReasoningDelta) -> None:
    """Write more of a block."""
    thread = event.thread_id
    line = at_work(w, thread)
    if line is None or not event.text:
        # Clients before 0.0.50 refuse an empty delta.
        return
    if isinstance(event, ev.TextDelta):
        block, type_ = line.text, "TEXT_MESSAGE_CONTENT"
        if block is None or block.id != event.block_id:
            block = _open_text(w, line, thread, event.block_id)
    else:
        block, type_ = line.thinking, "REASONING_MESSAGE_CONTENT"
        if block is None or block.id != event.block_id:
            block = _open_thinking(w, line, thread, event.block_id)
    tag = b""
    if thread != ev.MAIN and w.run.modern:
        tag = b',"subagentRunId":%b' % format_json(thread)
    rest = b'"messageId":"%b","delta":%b%b}'
    w.frame(type_, rest % (block.message.encode(), format_json(event.text), tag))


def _open_text(w: Writer, line: Line, thread: str, block_id: str) -> Block:
    end_text(w, thread)
    line.last = name = w.next_message()
    line.text = Block(block_id, name)
    members = {"messageId": name, "role": "assistant"}
    child = w.s.children.get(thread)
    if child is not None and child.name:
        members["name"] = child.name
    w.write("TEXT_MESSAGE_START", members, thread)
    return line.text


def _open_thinking(w: Writer, line: Line, thread: str, block_id: str) -> Block:
    end_thinking(w, thread)
    name = w.next_message()
    line.thinking = Block(block_id, name)
    w.write("REASONING_START", {"messageId": name}, thread)
    w.write("REASONING_MESSAGE_START", {"messageId": name, "role": "reasoning"}, thread)
    return line.thinking


def text_completed(w: Writer, event: ev.TextCompleted) -> None:
    """End a text; one that was not streamed, or not as it came to be, is told whole."""
    thread = event.thread_id
    line = at_work(w, thread) or w.s.lines.get(thread) or Line()
    text = event.text or ev.text_of(event.content)
    shown = line.text is not None and line.text.id == event.block_id
    repaired = bool((event.extra or {}).get("repaired"))
    told: dict[str, Any] = {} if event.status == "complete" else {"status": event.status}
    if event.content and not event.text:
        told["content"] = [block.model_dump(mode="json") for block in event.content]
    if shown:
        end_text(w, thread, {"status": "discarded"} if repaired else told)
    if text and (repaired or not shown) and line.cut != event.block_id:
        line.last = put_message(w, thread, "assistant", text, told)
    if event.status == "complete" and thread == ev.MAIN:
        w.s.digest = digest_of_text(event.text)


def reasoning_completed(w: Writer, event: ev.ReasoningCompleted) -> None:
    """End reasoning; that some is withheld is told too."""
    line = at_work(w, event.thread_id)
    if line is None:
        return
    told: dict[str, Any] = {} if event.status == "complete" else {"status": event.status}
    shown = line.thinking is not None and line.thinking.id == event.block_id
    if event.withheld:
        told["withheld"] = True
        if not shown:
            _open_thinking(w, line, event.thread_id, event.block_id)
            shown = True
    if shown:
        end_thinking(w, event.thread_id, told)


def result_produced(w: Writer, event: ev.ResultProduced) -> None:
    """Tell a result, unless the agent has just said it."""
    if event.thread_id == ev.MAIN:
        if w.s.run is not None:
            w.run.result = event.value
        if digest_of(event.value) == w.s.digest:
            return
    put_message(w, event.thread_id, "assistant", format_json(event.value).decode(), {})


# Tools.


def tool_called(w: Writer, event: ev.ToolCalled) -> None:
    """Write a call, as one of the message that the model answered with."""
    thread = event.thread_id
    line = at_work(w, thread) or Line()
    if line.text is not None:
        end_text(w, thread)
    if line.last is None:
        line.last = put_message(w, thread, "assistant", "", {})
    fields = ("server", "label", "preview")
    told = {name: value for name in fields if (value := getattr(event, name)) is not None}
    if event.kind != "builtin":
        told["kind"] = event.kind
    called = {"toolCallId": event.call_id}
    named = {**called, "toolCallName": event.name, "parentMessageId": line.last}
    put(w, "TOOL_CALL_START", {**named, **about(told)}, thread)
    if event.input_known:
        text = format_json(event.input).decode()
        put(w, "TOOL_CALL_ARGS", {**called, "delta": text}, thread)
    put(w, "TOOL_CALL_END", called, thread)


def tool_returned(w: Writer, event: ev.ToolReturned) -> None:
    """Write a result, which is always a string."""
    s, thread = w.s, event.thread_id
    if event.error is not None and event.error.code == ABANDONED and event.synthetic:
        # Only closes the call: a result that never came is not invented.
        return
    if event.call_id in s.given:
        # Its result is a message of the frontend, which has it.
        s.given.remove(event.call_id)
        return
    if (line := s.lines.get(thread)) is not None:
        if s.run is not None:
            end_text(w, thread)
        line.last = None
    told: dict[str, Any] = {}
    if event.is_error or event.status != "completed":
        told = {"isError": event.is_error, "status": event.status}
        if event.error is not None:
            told["error"] = event.error.model_dump(exclude_none=True)
    if event.input is not None:
        told["input"] = event.input
    result = {"messageId": w.next_message(), "toolCallId": event.call_id, "role": "tool"}
    put(w, "TOOL_CALL_RESULT", {**result, "content": _output(event), **about(told)}, thread)


def _output(event: ev.ToolReturned) -> str:
    if event.content:
        return ev.text_of(event.content)
    if event.output is not None and not (event.output == "" and event.error):
        told = event.output
        return told if isinstance(told, str) else format_json(told).decode()
    if event.status == "rejected":
        reason = "" if event.error is None else event.error.message
        return f"Denied: {reason}" if reason else "Denied."
    return "" if event.error is None else event.error.message or event.error.code


def requested(w: Writer, event: ev.InteractionRequested) -> None:
    """Keep a request for the end of the run; one for a result without a call gets a call."""
    asked = Asked(event)
    if event.kind == "tool_result":
        asked.call = event.call_id or event.request_id
        if event.call_id is None:
            details = event.details or {}
            name = str(details.get("tool") or "tool_result")
            given = details.get("input", {"prompt": event.prompt})
            if at_work(w, event.thread_id) is not None:
                show_call(w, event.thread_id, asked.call, name, given)
    w.s.requests[event.request_id] = asked


# Children.


def thread_started(w: Writer, event: ev.ThreadStarted) -> None:
    """Keep what a child is, and announce it."""
    w.s.children[event.thread_id] = Child(event.name, event.parent, event.call_id)
    if w.s.run is not None:
        announce(w, event.thread_id)


def thread_ended(w: Writer, event: ev.ThreadEnded) -> None:
    """End a child's line."""
    s, thread = w.s, event.thread_id
    if thread == ev.MAIN:
        return
    child = s.children.get(thread) or Child(None, ev.MAIN)
    told = {"name": child.name or thread, "status": event.status}
    if event.output is not None:
        told["output"] = event.output
    if s.run is None or thread in s.finished:
        put_custom(w, "child_ended", told)
    else:
        announce(w, thread)
        if thread in s.lines:
            close_line(w, thread)
        s.announced.remove(thread)
        s.finished.append(thread)
        del s.finished[:-FINISHED_KEPT]
        _end_child(w, event, told)
    s.children.pop(thread, None)
    s.lines.pop(thread, None)


def _end_child(w: Writer, event: ev.ThreadEnded, told: dict[str, Any]) -> None:
    if not w.run.modern:
        w.write("CUSTOM", {"name": f"{wire.OURS}.child_ended", "value": told})
    elif event.status == "failed":
        error = event.error or ev.ErrorInfo(code="failed", message="The child failed.")
        members = {"message": error.message or error.code, "code": error.code}
        w.write("SUBAGENT_ERROR", members, event.thread_id)
    else:
        result = {} if event.output is None else {"result": event.output}
        w.write("SUBAGENT_FINISHED", result, event.thread_id)


def thread_message(w: Writer, event: ev.ThreadMessage) -> None:
    """Tell what threads say to each other."""
    names = {"direction": event.direction, "from": event.sender, "to": event.recipient}
    told = {name: value for name, value in names.items() if value is not None}
    put_custom(w, "thread_message", {**told, "text": ev.text_of(event.content)})
