"""Work: steps, texts, reasoning, calls and results of the agent and its children.

The texts of children are data parts: a message of a page has one speaker. Their calls are calls
like others, since a page can only approve a call that it shows.
"""

from __future__ import annotations

import re
from typing import Any

from adapters.aisdk.frames import ChunkWriter, open_step, put, put_data, put_text, words
from adapters.aisdk.state import ShownCall
from adapters.aisdk.streams import end_step, end_text, end_thinking, put_result
from adapters.model import events as ev
from adapters.serving.encoder import ShownBlock
from adapters.serving.results import digest_of, digest_of_text
from adapters.wire.framing import on_one_line
from adapters.wire.jsonvalue import JsonError, format_json, parse_json

_COUNTS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cachedInputTokens",
    "reasoning_tokens": "reasoningTokens",
}


# Steps.


def step_started(w: ChunkWriter, event: ev.StepStarted) -> None:
    """End the step before; the next one shows with what stands in it."""
    if event.thread_id != ev.MAIN or w.s.stream is None:
        return
    end_step(w)
    w.s.model, w.s.tokens.told = event.model or w.s.model, None


def step_ended(w: ChunkWriter, event: ev.StepEnded) -> None:
    """Count the tokens of a step. It ends with the next one: results belong into it."""
    count_tokens(w, event)
    if event.error is not None and w.s.stream is not None:
        put_data(w, "error", event.error.model_dump(exclude_none=True))


def count_tokens(w: ChunkWriter, event: ev.StepEnded | ev.UsageReported) -> None:
    """Count the tokens of a call."""
    w.s.tokens.count(event, _COUNTS, sum_as="totalTokens")


# Blocks.


def delta(w: ChunkWriter, event: ev.TextDelta | ev.ReasoningDelta) -> None:
    """Write more of a block."""
    s = w.s
    if event.thread_id != ev.MAIN or s.stream is None or not event.text:
        return
    if isinstance(event, ev.TextDelta):
        type_, block = b"text-delta", s.text
        if block is None or block.id != event.block_id:
            block = s.text = _open(w, "text", event.block_id)
    else:
        type_, block = b"reasoning-delta", s.thinking
        if block is None or block.id != event.block_id:
            block = s.thinking = _open(w, "reasoning", event.block_id)
    text = on_one_line(format_json(event.text))
    data = b'data: {"type":"%b","id":"%b","delta":%b}\n\n'
    w.frame(data % (type_, block.shown_as.encode(), text))


def _open(w: ChunkWriter, kind: str, block_id: str) -> ShownBlock:
    end_thinking(w)
    end_text(w)
    _next_step(w)
    block = ShownBlock(block_id, w.next_part())
    w.write(f"{kind}-start", {"id": block.shown_as})
    return block


def _next_step(w: ChunkWriter) -> None:
    """Have a step open in which no call has its result: what the model says to that is a step of
    its own, also where the backend tells of none."""
    if w.s.returned:
        end_step(w)
    open_step(w)


def text_completed(w: ChunkWriter, event: ev.TextCompleted) -> None:
    """End a text; one that was not streamed, or not as it came to be, is told whole."""
    s, text = w.s, event.text
    if event.thread_id != ev.MAIN:
        told = {"thread": event.thread_id, "name": s.children.get(event.thread_id), "text": text}
        put_data(w, "child-text", told)
        _contents(w, event)
        return
    shown = s.text is not None and s.text.id == event.block_id
    repaired = bool((event.extra or {}).get("repaired"))
    if shown:
        end_text(w)
        if repaired or event.status == "discarded":
            # The part before this one does not count.
            put_data(w, "discarded", {"repaired": repaired})
    is_new = repaired or not (shown or s.cut == event.block_id)
    if text and event.status != "discarded" and is_new:
        if s.stream is not None:
            end_thinking(w)
            _next_step(w)
        put_text(w, text)
    _contents(w, event)
    if event.status == "complete":
        s.digest = digest_of_text(text)


def _contents(w: ChunkWriter, event: ev.TextCompleted) -> None:
    """Tell what stands in place of words."""
    if event.content and w.s.stream is not None:
        end_thinking(w)
        _next_step(w)
    for number, block in enumerate(event.content or ()):
        name = f"{event.block_id}-{number}"
        match block:
            case ev.Text() if event.text:
                pass
            case ev.Text():
                put_text(w, block.text)
            case ev.File(ref=ev.Url(url=url), media_type=media_type) if media_type:
                put(w, "file", {"url": url, "mediaType": media_type})
            case ev.SearchResult(source=url) if re.match(r"(?i)https?://", url):
                put(w, "source-url", {"sourceId": name, "url": url, "title": block.title})
            case ev.SearchResult():
                source = {"sourceId": name, "mediaType": "text/plain", "title": block.title}
                put(w, "source-document", source)
            case _:
                put_data(w, "content", block.model_dump(mode="json", exclude_none=True))


def reasoning_completed(w: ChunkWriter, event: ev.ReasoningCompleted) -> None:
    """End reasoning; that some is withheld is told too."""
    s = w.s
    if event.thread_id != ev.MAIN:
        if event.text:
            told = {"thread": event.thread_id, "text": event.text}
            put_data(w, "child-reasoning", told)
        return
    if s.stream is None:
        return
    shown = s.thinking is not None and s.thinking.id == event.block_id
    if not shown and event.withheld:
        s.thinking = _open(w, "reasoning", event.block_id)
    if shown or event.withheld:
        end_thinking(w, withheld=event.withheld)


def result_produced(w: ChunkWriter, event: ev.ResultProduced) -> None:
    """Tell a result, also as text unless the agent has just said it."""
    if event.thread_id == ev.MAIN:
        put_data(w, "result-value", event.value)
        if digest_of(event.value) != w.s.digest:
            if w.s.stream is not None:
                end_step(w)
                open_step(w)
            put_text(w, words(event.value))


# Tools.


def tool_input_delta(w: ChunkWriter, event: ev.ToolInputDelta) -> None:
    """Write more of an input while the model writes it."""
    s = w.s
    if s.stream is None or s.message is None:
        return
    call = s.calls.get(event.call_id)
    if call is None:
        if event.name is None:
            return
        open_step(w)
        end_text(w)
        end_thinking(w)
        s.tools = True
        call = s.calls[event.call_id] = ShownCall(s.message, s.steps, called=False)
        w.write("tool-input-start", {"toolCallId": event.call_id, "toolName": event.name})
    if event.text and not call.called and call.message == s.message:
        members = {"toolCallId": event.call_id, "inputTextDelta": event.text}
        w.write("tool-input-delta", members)


def tool_called(w: ChunkWriter, event: ev.ToolCalled) -> None:
    """Write a call; what the protocol has no field for is a part beside it."""
    s = w.s
    known = s.calls.get(event.call_id)
    called = {"toolCallId": event.call_id, "toolName": event.name}
    if s.stream is not None and event.thread_id == ev.MAIN:
        end_thinking(w)
        end_text(w)
    if s.stream is not None:
        open_step(w)
        s.tools = True
    if known is None:
        put(w, "tool-input-start", called)
        message = s.message if s.stream is not None and s.message is not None else ""
        known = s.calls[event.call_id] = ShownCall(message, s.steps)
    known.called, known.name = True, event.name
    put(w, "tool-input-available", {**called, "input": event.input if event.input_known else None})
    names = ("server", "label", "preview")
    told = {name: value for name in names if (value := getattr(event, name)) is not None}
    if event.kind != "builtin":
        told["kind"] = event.kind
    if event.thread_id != ev.MAIN:
        told["thread"] = event.thread_id
    if told:
        put_data(w, "call", {"toolCallId": event.call_id, **told}, key=f"call-{event.call_id}")


def tool_progressed(w: ChunkWriter, event: ev.ToolProgressed) -> None:
    """Tell an interim output."""
    call = w.s.calls.get(event.call_id)
    here = call is not None and call.message == w.s.message and w.s.stream is not None
    if w.old or not here or event.output is None:
        key = f"progress-{event.call_id}"
        told = {"toolCallId": event.call_id, "output": event.output}
        put_data(w, "progress", told, key=key)
        return
    members = {"toolCallId": event.call_id, "output": event.output}
    w.write("tool-output-available", {**members, "providerExecuted": True, "preliminary": True})


def tool_returned(w: ChunkWriter, event: ev.ToolReturned) -> None:
    """Write a result."""
    s = w.s
    call = s.calls.pop(event.call_id, None) or ShownCall("none", 0)
    here = call.message == s.message and s.stream is not None
    if event.input is not None:
        called = {"toolCallId": event.call_id, "input": event.input}
        if here and s.step and call.step == s.steps:
            # In its own step the same call is told anew, in another it would be one more.
            w.write("tool-input-available", {**called, "toolName": call.name})
        else:
            put_data(w, "input", called)
    type_, given = _result(w, event, call)
    members = {"toolCallId": event.call_id, **given}
    if not call.page and type_ != "tool-output-denied":
        # It says that no page is to give this result.
        members["providerExecuted"] = True
    words_of_denial = {}
    if type_ == "tool-output-denied" and event.error is not None and event.error.message:
        # The chunk has no place for them.
        words_of_denial = {"errorText": event.error.message}
    if here or (s.stream is None and call.message != "none"):
        put(w, type_, members, message=call.message)
        s.returned = s.step
        if words_of_denial:
            put_result(w, type_, {**members, **words_of_denial})
    else:
        put_result(w, type_, {**members, **words_of_denial})


def _result(w: ChunkWriter, event: ev.ToolReturned, call: ShownCall) -> tuple[str, dict[str, Any]]:
    error = event.error
    if event.status == "rejected":
        if call.approval and not w.old:
            return "tool-output-denied", {}
        reason = "" if error is None else error.message
        return "tool-output-error", {"errorText": f"Denied: {reason}" if reason else "Denied."}
    output = _output(event, call)
    if event.is_error or event.status != "completed" or (error is not None and output is None):
        said = words(output) if output not in (None, "") else ""
        reason = "" if error is None else error.message or error.code
        return "tool-output-error", {"errorText": said or reason or event.status}
    return "tool-output-available", {"output": output}


def _output(event: ev.ToolReturned, call: ShownCall) -> Any:
    output = event.output
    if event.content:
        plain = all(isinstance(block, ev.Text) for block in event.content)
        blocks = [block.model_dump(mode="json", exclude_none=True) for block in event.content]
        output = ev.text_of(event.content) if plain else blocks
    if call.page and isinstance(output, str) and output[:1] in ("{", "["):
        # The page gave it, as JSON.
        try:
            return parse_json(output.encode())
        except (JsonError, UnicodeEncodeError):
            return output
    return output


# Children.


def thread_started(w: ChunkWriter, event: ev.ThreadStarted) -> None:
    """Tell that a child is at work."""
    w.s.children[event.thread_id] = event.name
    _child(w, event.thread_id, {"name": event.name, "status": "running", "call": event.call_id})


def thread_updated(w: ChunkWriter, event: ev.ThreadUpdated) -> None:
    """Keep the name of a child."""
    if event.thread_id in w.s.children and event.name is not None:
        w.s.children[event.thread_id] = event.name


def thread_ended(w: ChunkWriter, event: ev.ThreadEnded) -> None:
    """Tell what came of a child."""
    if event.thread_id == ev.MAIN:
        return
    name = w.s.children.pop(event.thread_id, None)
    error = None if event.error is None else event.error.model_dump(exclude_none=True)
    told = {"name": name, "status": event.status, "output": event.output, "error": error}
    _child(w, event.thread_id, told)


def _child(w: ChunkWriter, thread: str, told: dict[str, Any]) -> None:
    known = {name: value for name, value in told.items() if value is not None}
    put_data(w, "child", {"thread": thread, **known}, key=f"child-{thread}")
