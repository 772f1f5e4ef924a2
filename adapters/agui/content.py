"""Work: steps, texts, reasoning, calls and results of the agent and its children."""

from __future__ import annotations

from typing import Any

from adapters.agui import wire
from adapters.agui.frames import (
    RunWriter,
    about,
    announce,
    at_work,
    put,
    put_custom,
    put_message,
)
from adapters.agui.runs import close_line, end_text, end_thinking
from adapters.agui.state import Subagent, ThreadOutput
from adapters.model import events as ev
from adapters.model.normalizer import ABANDONED
from adapters.serving.encoder import ShownBlock
from adapters.serving.results import digest_of, digest_of_text
from adapters.wire.jsonvalue import format_json

_COUNTS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cachedInputTokens",
    "cache_write_tokens": "cacheWriteInputTokens",
    "reasoning_tokens": "reasoningTokens",
}


# Steps.


def step_started(w: RunWriter, event: ev.StepStarted) -> None:
    """Begin a step; its name is counted."""
    line = at_work(w, event.thread_id)
    if line is None:
        return
    close_line(w, event.thread_id)
    line.model, w.run.tokens.told = event.model, None
    line.step = f"step {event.step_index + 1}"
    if event.thread_id != ev.MAIN and not w.run.modern:
        line.step = f"{event.thread_id}: {line.step}"
    w.write("STEP_STARTED", {"stepName": line.step}, event.thread_id)


def step_ended(w: RunWriter, event: ev.StepEnded) -> None:
    """End a step, and count its tokens."""
    if w.s.run is None:
        return
    count_tokens(w, event)
    line = w.s.lines.get(event.thread_id)
    if line is None or line.step is None:
        return
    error = event.error
    told = {} if error is None else {"error": error.model_dump(exclude_none=True)}
    w.write("STEP_FINISHED", {"stepName": line.step, **about(told)}, event.thread_id)
    line.step = None


def count_tokens(w: RunWriter, event: ev.StepEnded | ev.UsageReported) -> None:
    """Count the tokens of a call, under the model of the step."""
    if w.s.run is not None:
        line = w.s.lines.get(event.thread_id)
        told = (event.usage.extra or {}).get("model") if event.usage is not None else None
        model = told if isinstance(told, str) else None if line is None else line.model
        w.run.tokens.count(event, _COUNTS, model)


# Blocks.


def delta(w: RunWriter, event: ev.TextDelta | ev.ReasoningDelta) -> None:
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
    w.frame(type_, rest % (block.shown_as.encode(), format_json(event.text), tag))


def _open_text(w: RunWriter, line: ThreadOutput, thread: str, block_id: str) -> ShownBlock:
    end_text(w, thread)
    line.last = name = w.next_message()
    line.text = ShownBlock(block_id, name)
    members = {"messageId": name, "role": "assistant"}
    child = w.s.children.get(thread)
    if child is not None and child.name:
        members["name"] = child.name
    w.write("TEXT_MESSAGE_START", members, thread)
    return line.text


def _open_thinking(w: RunWriter, line: ThreadOutput, thread: str, block_id: str) -> ShownBlock:
    end_thinking(w, thread)
    name = w.next_message()
    line.thinking = ShownBlock(block_id, name)
    w.write("REASONING_START", {"messageId": name}, thread)
    w.write("REASONING_MESSAGE_START", {"messageId": name, "role": "reasoning"}, thread)
    return line.thinking


def text_completed(w: RunWriter, event: ev.TextCompleted) -> None:
    """End a text; one that was not streamed, or not as it came to be, is told whole."""
    thread = event.thread_id
    line = at_work(w, thread) or w.s.lines.get(thread) or ThreadOutput()
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


def reasoning_completed(w: RunWriter, event: ev.ReasoningCompleted) -> None:
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


def result_produced(w: RunWriter, event: ev.ResultProduced) -> None:
    """Tell a result, unless the agent has just said it."""
    if event.thread_id == ev.MAIN:
        if w.s.run is not None:
            w.run.result = event.value
        if digest_of(event.value) == w.s.digest:
            return
    put_message(w, event.thread_id, "assistant", format_json(event.value).decode(), {})


# Tools.


def tool_called(w: RunWriter, event: ev.ToolCalled) -> None:
    """Write a call, as one of the message that the model answered with."""
    thread = event.thread_id
    line = at_work(w, thread) or ThreadOutput()
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


def tool_returned(w: RunWriter, event: ev.ToolReturned) -> None:
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


def tool_progressed(w: RunWriter, event: ev.ToolProgressed) -> None:
    """Tell an interim output."""
    put_custom(w, "progress", {"toolCallId": event.call_id, "output": event.output})


# What an agent shares with its application.


def state_updated(w: RunWriter, event: ev.StateUpdated) -> None:
    """Write the shared state, or what has changed of it."""
    if event.patch is not None:
        put(w, "STATE_DELTA", {"delta": list(event.patch)}, event.thread_id)
    elif event.value is not None:
        # Clients of 1.0 take a null for a state, and those before ignore it.
        put(w, "STATE_SNAPSHOT", {"snapshot": event.value}, event.thread_id)


def activity_updated(w: RunWriter, event: ev.ActivityUpdated) -> None:
    """Write an activity, under the name that its agent gave it."""
    named = {"messageId": event.activity_id, "activityType": event.kind}
    if event.patch is not None:
        put(w, "ACTIVITY_DELTA", {**named, "patch": list(event.patch)}, event.thread_id)
    else:
        more = {name: value for name, value in (event.extra or {}).items() if name == "replace"}
        content = {"content": event.content or {}, **more}
        put(w, "ACTIVITY_SNAPSHOT", {**named, **content}, event.thread_id)


# What an agent of this dialect tells besides.


def passed_on(w: RunWriter, event: ev.Native) -> None:
    """Write what means nothing to other dialects as it came."""
    if event.dialect != wire.DIALECT or event.name not in wire.PASSED_ON:
        return
    if not isinstance(event.frame, dict):
        return
    members = {k: v for k, v in event.frame.items() if k not in ("type", "timestamp")}
    put(w, event.name, members, event.thread_id)


# Children.


def thread_started(w: RunWriter, event: ev.ThreadStarted) -> None:
    """Keep what a child is, and announce it."""
    w.s.children[event.thread_id] = Subagent(event.name, event.parent, event.call_id)
    if w.s.run is not None:
        announce(w, event.thread_id)


def thread_updated(w: RunWriter, event: ev.ThreadUpdated) -> None:
    """Keep the name of a child."""
    child = w.s.children.get(event.thread_id)
    if child is not None and event.name is not None:
        child.name = event.name


def thread_ended(w: RunWriter, event: ev.ThreadEnded) -> None:
    """End a child's line."""
    s, thread = w.s, event.thread_id
    if thread == ev.MAIN:
        return
    child = s.children.get(thread) or Subagent(None, ev.MAIN)
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
        # Children of a run that are done: the newest.
        del s.finished[:-256]
        _end_child(w, event, told)
    s.children.pop(thread, None)
    s.lines.pop(thread, None)


def _end_child(w: RunWriter, event: ev.ThreadEnded, told: dict[str, Any]) -> None:
    if not w.run.modern:
        w.write("CUSTOM", {"name": f"{wire.OURS}.child_ended", "value": told})
    elif event.status == "failed":
        error = event.error or ev.ErrorInfo(code="failed", message="The child failed.")
        members = {"message": error.message or error.code, "code": error.code}
        w.write("SUBAGENT_ERROR", members, event.thread_id)
    else:
        result = {} if event.output is None else {"result": event.output}
        w.write("SUBAGENT_FINISHED", result, event.thread_id)
