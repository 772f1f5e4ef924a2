"""What a turn shows: texts, tools and results, and what child threads do."""

from __future__ import annotations

from typing import Any

import orjson

from adapters.herm import wire
from adapters.herm.state import ToolUse
from adapters.herm.writer import HermWriter
from adapters.model import events as ev
from adapters.model.normalizer import ABANDONED
from adapters.wire.jsonvalue import format_json

_TYPES = {
    "text.delta": "agent.message",
    "text.completed": "agent.message",
    "reasoning.delta": "agent.thinking",
    "reasoning.completed": "agent.thinking",
}
_USES = {"mcp": "agent.mcp_tool_use", "custom": "agent.custom_tool_use"}


# Texts.


def delta(w: HermWriter, event: ev.TextDelta | ev.ReasoningDelta) -> None:
    """Write a piece; not one that we added to a text that was never streamed: the final has it."""
    s, type_ = w.s, _TYPES[event.TYPE]
    streamed = type_ in s.texts and not s.native
    if event.thread_id != ev.MAIN or (event.synthetic and not streamed):
        return
    if s.cut:
        close_cut(w, event)
    if type_ not in s.texts:
        s.texts.append(type_)
    if event.extra is not None or len(event.text) > wire.MAX_BLOCK_TEXT:
        content = wire.text_blocks(event.text)
        w.write(event, type_, {"delta": True, "content": content}, listed=False)
        return
    payload = b'{"type":"%b","delta":true,"content":[{"type":"text","text":%b}]}'
    payload %= (type_.encode(), orjson.dumps(event.text))
    w.put(event, type_, payload, listed=False)


def completed(w: HermWriter, event: ev.TextCompleted | ev.ReasoningCompleted) -> None:
    """Write the whole of a text."""
    s, type_, text = w.s, _TYPES[event.TYPE], event.text
    if isinstance(event, ev.TextCompleted) and event.content is not None:
        text = ev.text_of(event.content)
    if event.thread_id != ev.MAIN:
        if type_ == "agent.message" and text and event.status != "discarded":
            _from_child(w, event, wire.text_blocks(text))
        return
    streamed = type_ in s.texts
    if streamed:
        s.texts.remove(type_)
    if event.synthetic and event.status == "partial" and s.native:
        # A Herm leaves a text open that its turn's end cuts off: the end will show who did.
        s.cut[type_] = text
        return
    if event.status == "discarded":
        # Section 9: what was streamed must be closed, and this was taken back.
        text = ""
    if not text and not streamed and not wire.is_native(event):
        return
    payload: dict[str, Any] = {"delta": False, "content": wire.text_blocks(text)}
    if event.status != "complete":
        payload["status"] = event.status
    w.write(event, type_, payload)


def close_cut(w: HermWriter, event: ev.Event) -> None:
    """Close the texts that were cut, and not by a Herm that ended its turn."""
    for type_, text in w.s.cut.items():
        payload = {"delta": False, "content": wire.text_blocks(text), "status": "partial"}
        w.write(event, type_, payload)
    w.s.cut.clear()


def result_produced(w: HermWriter, event: ev.ResultProduced) -> None:
    """Write a result as a message."""
    content = wire.text_blocks(format_json(event.value).decode())
    if event.thread_id == ev.MAIN:
        w.write(event, "agent.message", {"delta": False, "content": content})
    else:
        _from_child(w, event, content)


# Tools.


def tool_called(w: HermWriter, event: ev.ToolCalled) -> None:
    """Write a call, and keep it for its result."""
    input_ = event.input
    if not isinstance(input_, dict):
        input_ = {} if input_ is None else {"value": input_}
    if event.thread_id != ev.MAIN:
        use = {"id": event.call_id, "tool": event.name, "input": input_}
        words = f"{event.name} {format_json(input_).decode()}"
        _from_child(w, event, wire.text_blocks(words), tool_use=use)
        return
    call = ToolUse(
        tool=event.name,
        kind=event.kind,
        server=event.server,
        input=input_,
        preview=event.preview if event.preview is not None else event.label,
        known=event.input_known,
        asked=event.permission == "ask",
    )
    write_use(w, event, event.call_id, call)
    w.s.calls[event.call_id] = call


def write_use(w: HermWriter, event: ev.Event, use_id: str, call: ToolUse) -> None:
    """Write a call under its payload id."""
    type_ = _USES.get(call.kind, "agent.tool_use")
    payload: dict[str, Any] = {"id": use_id, "tool": call.tool, "input": call.input}
    if type_ != "agent.custom_tool_use":
        payload["status"] = "running"
        if call.preview is not None:
            payload["preview"] = call.preview
        if type_ == "agent.mcp_tool_use" and call.server and not wire.is_native(event):
            payload["server_name"] = call.server
        if call.asked:
            payload["requires_action"] = True
    call.sequence = w.write(event, type_, payload)


def tool_returned(w: HermWriter, event: ev.ToolReturned) -> None:
    """Write the result of a call."""
    if event.error is not None and event.error.code == ABANDONED and event.synthetic:
        # Only closes the call: a result that did not come is not written.
        w.s.calls.pop(event.call_id, None)
        return
    if event.thread_id != ev.MAIN:
        result = {"tool_use_id": event.call_id, "is_error": event.is_error}
        _from_child(w, event, _result_blocks(event, known=True), tool_result=result)
        return
    call = w.s.calls.pop(event.call_id, None) or ToolUse("unknown", "builtin")
    if call.kind == "custom" and (call.answered or event.synthetic):
        # Section 5: the application's own `user.custom_tool_result` is the record.
        return
    payload = {
        "tool_use_id": event.call_id,
        "tool": call.tool,
        "status": "completed" if event.status == "completed" else "failed",
        "content": _result_blocks(event, known=call.known),
        "is_error": event.is_error,
    }
    w.write(event, f"agent.{'mcp_' if call.kind == 'mcp' else ''}tool_result", payload)


def _result_blocks(event: ev.ToolReturned, *, known: bool) -> list[dict[str, str]]:
    """Return what a tool gave as text blocks: an input learnt late before it, the reason of a
    failure behind it."""
    native, error, texts = wire.is_native(event), event.error, []
    if event.input is not None and not known:
        texts.append(f"Input: {format_json(event.input).decode()}")
    if event.content is not None:
        texts += [ev.text_of((block,)) for block in event.content]
    elif isinstance(event.output, str):
        if event.output or error is None or native:
            texts.append(event.output)
    elif event.output is not None:
        texts.append(format_json(event.output).decode())
    if error is not None and not native and not any(error.message in text for text in texts):
        texts.append(error.message)
    return [block for text in texts for block in wire.text_blocks(text)]


# Child threads, which have no stream of their own here.


def thread_started(w: HermWriter, event: ev.ThreadStarted) -> None:
    """Keep the name of a child, and write what it was sent; a Herm has written that."""
    name = event.name or "agent"
    w.s.threads[event.thread_id] = name
    if wire.is_native(event):
        return
    payload = {
        "thread_id": event.thread_id,
        "from_thread_id": event.parent,
        "to_thread_id": event.thread_id,
        "name": name,
        "status": "started",
        "content": [],
    }
    w.write(event, "agent.thread_message_sent", payload)


def thread_ended(w: HermWriter, event: ev.ThreadEnded) -> None:
    """Write how a child ended, and what came of it."""
    content: list[dict[str, str]] = []
    if event.error is not None:
        content = wire.text_blocks(event.error.message)
    elif event.output is not None:
        said = event.output
        content = wire.text_blocks(said if isinstance(said, str) else format_json(said).decode())
    if not wire.is_native(event):
        _from_child(w, event, content, event.status)
    w.s.threads.pop(event.thread_id, None)


def thread_message(w: HermWriter, event: ev.ThreadMessage) -> None:
    """Write a message from or to a child."""
    type_ = f"agent.thread_message_{event.direction}"
    content = wire.blocks_of(event.content)
    if wire.is_native(event):
        w.write(event, type_, {"content": content} if content else {})
        return
    child = event.recipient if event.direction == "sent" else event.sender
    payload: dict[str, Any] = {"thread_id": child}
    if event.sender is not None:
        payload["from_thread_id"] = event.sender
    if event.recipient is not None:
        payload["to_thread_id"] = event.recipient
    payload["name"] = w.s.threads.get(child or "", "agent")
    payload |= {"status": "running", "content": content}
    w.write(event, type_, payload)


def _from_child(
    w: HermWriter,
    event: ev.Event,
    content: list[dict[str, str]],
    status: str = "running",
    **members: Any,
) -> None:
    """Write what a child says or does."""
    payload = {
        "thread_id": event.thread_id,
        "from_thread_id": event.thread_id,
        "name": w.s.threads.get(event.thread_id, "agent"),
        "status": status,
        "content": content,
        **members,
    }
    w.write(event, "agent.thread_message_received", payload)
