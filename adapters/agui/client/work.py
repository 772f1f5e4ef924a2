"""What a run does: text, reasoning and tools, streamed whole or in chunks."""

from __future__ import annotations

from typing import Any, Literal

from adapters.agui import wire
from adapters.agui.client import turns
from adapters.agui.client.state import (
    KEPT_BYTES,
    AguiClientState,
    AguiEvent,
    AguiToolCall,
    HeldResult,
    Kind,
)
from adapters.model import events as ev
from adapters.model import raw
from adapters.wire.errors import code_of, cut
from adapters.wire.jsonvalue import JsonError, format_json, name_of, parse_json, rest_of

# Text and reasoning.


def block_start(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take the start of a message: what is in it begins a block. An empty one names only what calls
    belong to."""
    role = seen.payload.get("role")
    if seen.name == "TEXT_MESSAGE_START":
        s.foreign = ""
        if role not in (None, "assistant"):
            s.foreign = name_of(seen.payload.get("messageId")) or ""
            return unknown(s, seen)
    return turns.end_block(s, native=seen.native) if s.block.closed else []


def text(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `TEXT_MESSAGE_CONTENT`."""
    if s.foreign and s.foreign == name_of(seen.payload.get("messageId")):
        return unknown(s, seen)
    return _delta(s, seen, "text")


def reasoning(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `REASONING_MESSAGE_CONTENT`, and `THINKING_TEXT_MESSAGE_CONTENT`, which has no id. ADK
    tells what it has streamed once more, as a whole and in an open text."""
    name, words = name_of(seen.payload.get("messageId")), seen.payload.get("delta")
    if name and isinstance(words, str):
        if s.block.kind == "text" and s.thought and words == "".join(s.thought):
            s.again = name
        if name == s.again:
            return []
    out = _delta(s, seen, "reasoning")
    if isinstance(words, str):
        s.thought.append(words)
    return out


def text_end(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `TEXT_MESSAGE_END`."""
    named = name_of(seen.payload.get("messageId"))
    if s.foreign and s.foreign == named:
        s.foreign = ""
        return unknown(s, seen)
    if s.block.kind != "text" or named not in (None, s.block.message):
        return []
    return turns.end_block(s, native=seen.native, extra=seen.extra)


def reasoning_end(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take the end of reasoning: what its agent wants back may follow."""
    if s.block.kind == "reasoning":
        s.block.closed = True
    return []


def reasoning_over(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `REASONING_END` and `THINKING_END`."""
    return turns.end_block(s, native=seen.native) if s.block.kind == "reasoning" else []


def chunk(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take more of a message that has no start and no end of its own."""
    name = name_of(seen.payload.get("messageId"))
    kind: Kind = "reasoning" if seen.name == wire.REASONING_CHUNK else "text"
    out: list[ev.Event] = []
    if name is not None and name != s.chunk:
        out += close_chunk(s, seen.native)
        s.chunk = name
    if not s.chunk or not seen.payload.get("delta"):
        return out
    payload = {**seen.payload, "messageId": s.chunk}
    return out + _delta(s, seen._replace(payload=payload), kind)


def close_chunk(s: AguiClientState, native: ev.NativeRef) -> list[ev.Event]:
    """End what chunks have begun: any event that is not one does."""
    name, s.chunk = s.chunk, ""
    if name in s.calls:
        return _called(s, name, native)
    ends = name and s.block.message == name
    return turns.end_block(s, native=native) if ends else []


def _delta(s: AguiClientState, seen: AguiEvent, kind: Kind) -> list[ev.Event]:
    words = seen.payload.get("delta")
    if not isinstance(words, str):
        return unknown(s, seen)
    block = s.block
    message = name_of(seen.payload.get("messageId")) or block.message or f"{kind}-{block.number}"
    out: list[ev.Event] = []
    if block.kind is not None and (block.kind != kind or block.message != message or block.closed):
        out += turns.end_block(s, native=seen.native)
    out += turns.in_step(s, seen.native)
    if block.kind is None:
        block.kind, block.message = kind, message
        block.number += 1
    s.streams = s.streams or kind == "text"
    make = ev.TextDelta if kind == "text" else ev.ReasoningDelta
    out.append(
        raw.delta_of(
            make,
            words,
            thread_id=ev.MAIN,
            turn_id=s.turn,
            block_id=f"b{block.number}",
            message_id=message,
            native=seen.native,
            extra=seen.extra,
        )
    )
    return out


def whole_text(s: AguiClientState, message: str, words: str, seen: AguiEvent) -> list[ev.Event]:
    """Tell a text that was never streamed."""
    payload = {"messageId": message, "delta": words}
    out = _delta(s, seen._replace(payload=payload), "text")
    return out + turns.end_block(s, native=seen.native)


# Tools.


def call_start(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `TOOL_CALL_START`. A run that resumes may tell a call again."""
    call_id = name_of(seen.payload.get("toolCallId"))
    name = name_of(seen.payload.get("toolCallName"))
    if call_id is None or name is None:
        return unknown(s, seen)
    if call_id in s.calls:
        return turns.works(s, seen.native)
    out = turns.end_block(s, "tool-calls", native=seen.native) + turns.in_step(s, seen.native)
    s.calls_in_step = True
    s.calls[call_id] = AguiToolCall(name, name_of(seen.payload.get("parentMessageId")))
    if call_id in s.returned:
        s.returned.remove(call_id)
    return out


def call_args(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `TOOL_CALL_ARGS`."""
    call_id = name_of(seen.payload.get("toolCallId")) or s.chunk
    call, delta = s.calls.get(call_id), seen.payload.get("delta")
    if call is None or call.told or not isinstance(delta, str) or not delta:
        return []
    call.args.append(delta)
    if call.name in wire.ASKING_CALLS:
        return []
    return [
        raw.delta_of(
            ev.ToolInputDelta,
            delta,
            thread_id=ev.MAIN,
            turn_id=s.turn,
            call_id=call_id,
            name=call.name,
            native=seen.native,
        )
    ]


def call_end(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `TOOL_CALL_END`."""
    call_id = name_of(seen.payload.get("toolCallId"))
    return [] if call_id is None else _called(s, call_id, seen.native)


def call_chunk(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `TOOL_CALL_CHUNK`."""
    name = name_of(seen.payload.get("toolCallId"))
    out: list[ev.Event] = []
    if name is not None and name != s.chunk:
        out += close_chunk(s, seen.native)
        s.chunk = name
        out += call_start(s, seen)
    return out + call_args(s, seen)


def _called(s: AguiClientState, call_id: str, native: ev.NativeRef) -> list[ev.Event]:
    """Tell a call whose arguments are all here. LangGraph leaves out their first piece: then its
    snapshot has them."""
    call = s.calls.get(call_id)
    if call is None or call.told:
        return []
    text = "".join(call.args)
    value, known = _arguments(text)
    call.told, call.known = True, known
    if known and len(text) + sum(one.size for one in s.calls.values()) <= KEPT_BYTES:
        call.input, call.size = value, len(text)
    call.args.clear()
    if call.name in wire.ASKING_CALLS and _asks(call, value):
        s.held.decide(call.about, "ask")
        return []
    extra: dict[str, Any] = {}
    if call.parent is not None:
        extra["parentMessageId"] = call.parent
    if not known and text:
        extra["arguments"] = text
    if call.opaque is not None:
        extra["encryptedValue"] = call.opaque
    return [
        ev.ToolCalled(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            call_id=call_id,
            name=call.name,
            input=value,
            input_known=known,
            extra=extra or None,
            native=native.model_copy(update={"id": call_id}),
        )
    ]


def _asks(call: AguiToolCall, value: Any) -> bool:
    """Take the input of a call that asks for a yes to another one, as ADK writes it or an Agent
    Framework; say whether it does."""
    match value:
        case {"originalFunctionCall": {"id": str(about)}}:
            call.about = about
        case {"function_call_id": str(about)}:
            call.about = about
        case _:
            return False
    match value:
        case {"toolConfirmation": {"hint": str(hint)}}:
            call.hint = hint
    return True


def _arguments(text: str) -> tuple[Any, bool]:
    """Return what a call is given, and whether all of it is here."""
    try:
        return (parse_json(text), True) if text else (None, False)
    except JsonError:
        return None, False


def call_result(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `TOOL_CALL_RESULT`."""
    call_id = name_of(seen.payload.get("toolCallId"))
    if call_id is None:
        return unknown(s, seen)
    content = seen.payload.get("content")
    match _arguments(content) if isinstance(content, str) else None:
        case ({"error": str(words)}, _) if words.startswith(wire.UNCONFIRMED):
            # It has not run: its own result follows.
            s.held.decide(call_id, "ask")
            return turns.works(s, seen.native)
    return returned(s, call_id, seen.payload, seen)


def returned(
    s: AguiClientState, call_id: str, message: dict[str, Any], seen: AguiEvent
) -> list[ev.Event]:
    """Take a message of a tool, streamed or in a snapshot: it waits for what says more of it."""
    if call_id in s.returned:
        return []
    out = turns.works(s, seen.native)
    if call_id in s.calls:
        out += _called(s, call_id, seen.native)
    if not s.asks.open:
        out += turns.end_step(s, seen.native)
    call = s.calls.pop(call_id, None)
    s.returned.append(call_id)
    output, content = _output(message.get("content"))
    status, error = _failure(message, output)
    name = name_of(message.get("messageId")) or name_of(message.get("id")) or f"result-{call_id}"
    extra = {"messageId": name, **(seen.extra or {})}
    event = ev.ToolReturned(
        thread_id=ev.MAIN,
        turn_id=s.turn,
        call_id=call_id,
        output=output,
        content=content,
        is_error=error is not None,
        error=error,
        status=status,
        native=seen.native,
        extra=extra,
    )
    s.result = HeldResult(event, name, seen.now, call is not None and not call.known)
    return out


_Status = Literal["completed", "failed", "rejected"]


def _failure(message: dict[str, Any], output: Any) -> tuple[_Status, ev.ErrorInfo | None]:
    """Return what a result says of a failure: the protocol has a place for one in messages only, so
    a Dragoman that serves an agent says it in `metadata`."""
    words = message.get("error")
    if words == "error" or (words is None and message.get("status") == "error"):
        # A LangGraph marks a failure, and says in the content why.
        words = output if isinstance(output, str) else "The tool failed."
    if isinstance(words, str) and words:
        return "failed", ev.ErrorInfo(code="tool_failed", message=cut(words))
    match message.get("metadata"):
        case {wire.OURS: {"isError": True, **told}}:
            words = output if isinstance(output, str) else "The tool failed."
            error = ev.ErrorInfo(code="tool_failed", message=cut(words))
            match told.get("error"):
                case {"code": str(code), "message": str(said)}:
                    error = ev.ErrorInfo(code=code_of(code, "tool_failed"), message=cut(said))
            return ("rejected" if told.get("status") == "rejected" else "failed"), error
    return "completed", None


def _output(content: Any) -> tuple[Any, tuple[ev.Content, ...] | None]:
    """Return a result: as a value where its text is exactly that one's, so that nothing is lost."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        if texts and all(isinstance(one, str) for one in texts):
            return None, tuple(ev.Text(text=str(one)) for one in texts)
        return content, None
    if not isinstance(content, str) or content[:1] not in ("{", "["):
        return content, None
    try:
        value = parse_json(content)
    except JsonError:
        return content, None
    return (value, None) if format_json(value).decode() == content else (content, None)


# Values that an agent wants to have back.


def encrypted(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `REASONING_ENCRYPTED_VALUE`, which follows what it names: it stays with that."""
    named, value = name_of(seen.payload.get("entityId")), seen.payload.get("encryptedValue")
    if named is None or not isinstance(value, str):
        return unknown(s, seen)
    extra = {"encryptedValue": value}
    if s.result is not None and named in (s.result.message_id, s.result.event.call_id):
        return turns.let_result_go(s, extra=extra, **_marked(value, s.result.event))
    if s.block.closed and s.block.message == named:
        return turns.end_block(s, native=seen.native, extra=extra)
    call = s.calls.get(named)
    if seen.payload.get("subtype") == "tool-call" and call is not None and not call.told:
        call.opaque = value
        return []
    for place, event in enumerate(s.held.events):
        if isinstance(event, ev.ToolCalled) and event.call_id == named:
            more = {**(event.extra or {}), **extra}
            s.held.events[place] = event.model_copy(update={"extra": more})
            return []
    return unknown(s, seen)


def _marked(value: str, result: ev.ToolReturned) -> dict[str, Any]:
    """Return what the mark of a Pydantic AI behind a result says: its stream has no other word for
    a tool that has failed, or was denied."""
    try:
        found = parse_json(value)
    except JsonError:
        return {}
    match found:
        case {"pydantic_ai": {"outcome": "failed" | "retried"}}:
            status, code = "failed", "tool_failed"
        case {"pydantic_ai": {"outcome": "denied"}}:
            status, code = "rejected", "permission_denied"
        case _:
            return {}
    words = result.output if isinstance(result.output, str) else "The tool failed."
    error = ev.ErrorInfo(code=code, message=cut(words))
    return {"is_error": True, "error": error, "status": status}


# The rest.


def ignored(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take what only repeats what else is told."""
    return []


def unknown(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take what has no meaning here: it survives to a frontend of the same dialect."""
    return [
        ev.Native(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            dialect=wire.DIALECT,
            name=seen.name,
            frame=rest_of(seen.payload, frozenset({"rawEvent"})) or {},
            native=seen.native,
        )
    ]
