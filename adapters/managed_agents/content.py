"""What a turn shows: model requests, texts, tools and their results, and what they use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.managed_agents import blocks, wire
from adapters.managed_agents.state import OpenMessage, OutcomeRecord, ShownUse
from adapters.managed_agents.writer import EventWriter, delta_frame
from adapters.model import events as ev
from adapters.model.normalizer import ABANDONED
from adapters.model.state import REPAIRED
from adapters.wire.jsonvalue import format_json

_TOKENS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
}
"""A field of `Usage` -> its name here (section 7.4). On a session's usage what is written to the
cache is told by its lifetime, which the model does not know."""


# Model requests.


def begin_request(w: EventWriter, event: ev.Event) -> None:
    """Say that a model request has begun, where its backend does not tell; the service itself
    does."""
    if w.s.request is None and not wire.is_native(event):
        w.s.request = w.write(event, "span.model_request_start", {}, role="request")
        w.s.made_up = True


def end_request(
    w: EventWriter,
    event: ev.Event,
    usage: ev.Usage | None = None,
    *,
    failed: bool = False,
) -> None:
    """Say that the open model request is over, if there is one. What it said before it was cut off
    has no event: it stands here, in a member of ours."""
    s = w.s
    if s.request is None:
        return
    name, s.request = s.request, None
    cut, s.cut = s.cut, ""
    failed = failed or s.message is not None or s.thinking is not None
    s.message = s.thinking = None
    role = "" if isinstance(event, ev.StepEnded) else "request-end"
    fields = {
        "model_request_start_id": name,
        "is_error": failed,
        "model_usage": _model_usage(usage),
        **({"content": [_text(cut)]} if cut else {}),
    }
    w.write(event, "span.model_request_end", fields, role=role)


def step_started(w: EventWriter, event: ev.StepStarted) -> None:
    """Begin a model request."""
    if w.is_own(event):
        end_request(w, event)
        w.s.request = w.write(event, "span.model_request_start", {})
        w.s.made_up = False


def step_ended(w: EventWriter, event: ev.StepEnded) -> None:
    """End a model request, and count its tokens."""
    if w.is_own(event):
        _count(w, event)
        if not w.s.made_up:
            end_request(w, event, event.usage, failed=event.error is not None)


def _model_usage(usage: ev.Usage | None) -> dict[str, Any]:
    told = {name: getattr(usage, field, None) or 0 for field, name in _TOKENS.items()}
    _take_off(told)
    extra = {} if usage is None else usage.extra or {}
    return {**told, **({"speed": extra["speed"]} if "speed" in extra else {})}


# Usage.


def usage_reported(w: EventWriter, event: ev.UsageReported) -> None:
    """Count tokens; what is told of the whole session counts by itself."""
    if event.scope == "session" and event.thread_id == ev.MAIN:
        take_usage(w, event, event.usage)
    elif w.is_own(event):
        _count(w, event)


def _count(w: EventWriter, event: ev.StepEnded | ev.UsageReported) -> None:
    w.s.tokens.count(event, _TOKENS)
    totals = w.s.tokens.totals.get("", {})
    if totals:
        w.s.usage.update(_of_session(totals))


def take_usage(w: EventWriter, event: ev.Event, usage: ev.Usage) -> None:
    """Take what the session has used so far."""
    told = ((name, getattr(usage, field)) for field, name in _TOKENS.items())
    w.s.usage.update(_of_session({name: count for name, count in told if count is not None}))
    if usage.cost_usd is not None:
        cents = f"{usage.cost_usd * 100:.0f}"
        w.s.usage["list_cost"] = {"amount": cents, "currency": "USD"}
    own = wire.is_native(event)
    extra = usage.extra or {}
    # Of its own sessions the service tells what was written by its lifetime, and more.
    names = extra if own else {"active_seconds", "server_tool_use"} & extra.keys()
    w.s.usage.update({name: extra[name] for name in names})


def _take_off(counts: dict[str, int]) -> None:
    """Take the cached tokens off what went in, which counts them in the model and not here."""
    if "input_tokens" in counts:
        cached = ("cache_read_input_tokens", "cache_creation_input_tokens")
        left = counts["input_tokens"] - sum(counts.get(name) or 0 for name in cached)
        counts["input_tokens"] = max(left, 0)


def _of_session(counts: Mapping[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = dict(counts)
    _take_off(found)
    written = found.pop("cache_creation_input_tokens", None)
    if written is not None:
        found["cache_creation"] = {"ephemeral_5m_input_tokens": written}
    return found


# Texts.


def text_delta(w: EventWriter, event: ev.TextDelta) -> None:
    """Preview a piece of a message."""
    if not w.is_own(event) or not (event.text or w.s.message):
        return
    begin_request(w, event)
    s = w.s
    wanted = "agent.message" in w.previews
    if s.message is None:
        s.message = OpenMessage(w.id_of(event))
        if wanted:
            _preview_start(w, "agent.message", s.message.id)
    if wanted:
        s.message.words.append(event.text)
        w.preview_json(delta_frame(s.message.id, event.text))


def text_completed(w: EventWriter, event: ev.TextCompleted) -> None:
    """Write a message that is whole; any other has no event, and the end of its request says so."""
    if not w.is_own(event):
        return
    opened, w.s.message = w.s.message, None
    if event.status != "complete":
        if opened is not None:
            w.s.message = opened
            w.s.cut = event.text if event.status == "partial" else ""
            if w.s.made_up:
                end_request(w, event, failed=True)
        return
    content = blocks.shown(event.content) if event.content else None
    if content is None and not event.text and not wire.is_native(event):
        return
    if opened is not None and event.extra is not None and REPAIRED in event.extra:
        # What was previewed is not how it begins: that message has no end.
        w.s.message = opened
        end_request(w, event, failed=True)
        opened = None
    begin_request(w, event)
    name = None if opened is None else opened.id
    content = content or [{"type": "text", "text": event.text, **_block_extra(event)}]
    rest = event.extra or {}
    if wire.is_native(event) and rest.get(wire.BLOCKS):
        # One message of the service has several: they come at once.
        w.s.blocks = [*(w.s.blocks if event.index else ()), *content]
        if event.index + 1 < rest[wire.BLOCKS]:
            w.s.message = opened
            return
        content, w.s.blocks = w.s.blocks, []
    w.write(event, "agent.message", {"content": content}, id_=name)


def _block_extra(event: ev.TextCompleted) -> dict[str, Any]:
    """Return the members of a block of the service's that the model does not know."""
    found = (event.extra or {}).get(wire.BLOCK) if wire.is_native(event) else None
    return found if isinstance(found, dict) else {}


def result_produced(w: EventWriter, event: ev.ResultProduced) -> None:
    """Write a result as a message with its JSON."""
    if w.is_own(event):
        begin_request(w, event)
        text = format_json(event.value).decode()
        w.write(event, "agent.message", {"content": [{"type": "text", "text": text}]})


def reasoning_delta(w: EventWriter, event: ev.ReasoningDelta) -> None:
    """Say that the agent thinks; its words have no place here."""
    if w.is_own(event) and w.s.thinking is None:
        begin_request(w, event)
        w.s.thinking = OpenMessage(w.id_of(event))
        if "agent.thinking" in w.previews:
            _preview_start(w, "agent.thinking", w.s.thinking.id)


def reasoning_completed(w: EventWriter, event: ev.ReasoningCompleted) -> None:
    """Say that the agent has thought."""
    if not w.is_own(event):
        return
    opened, w.s.thinking = w.s.thinking, None
    if opened is not None or event.status == "complete":
        # Without words there is no difference between some of it and all.
        begin_request(w, event)
        w.write(event, "agent.thinking", {}, id_=None if opened is None else opened.id)


def _preview_start(w: EventWriter, type_: str, name: str) -> None:
    w.preview({"type": "event_start", "event": {"type": type_, "id": name}})


def cut_off(w: EventWriter, event: ev.Event) -> None:
    """Close what is previewed and has no end."""
    if w.s.message is not None or w.s.thinking is not None:
        end_request(w, event, failed=True)


# Tools.


def tool_called(w: EventWriter, event: ev.ToolCalled) -> None:
    """Write a call, and keep it for its result; the session's stream keeps those of children, which
    may ask."""
    type_ = {"mcp": "agent.mcp_tool_use", "custom": "agent.custom_tool_use"}.get(
        event.kind, "agent.tool_use"
    )
    input_ = event.input
    if not event.input_known:
        input_ = {} if event.preview is None else {"preview": event.preview}
    if not isinstance(input_, dict):
        input_ = {} if input_ is None else {"value": input_}
    fields: dict[str, Any] = {"name": event.name, "input": input_}
    if type_ != "agent.custom_tool_use":
        if event.permission != "unknown":
            fields["evaluated_permission"] = event.permission
        if event.evaluation is not None:
            fields["evaluation"] = event.evaluation
    if type_ == "agent.mcp_tool_use" and (event.server or not wire.is_native(event)):
        fields["mcp_server_name"] = event.server or ""
    use = ShownUse(w.id_of(event), type_, event.thread_id, fields, event.input_known)
    if w.is_own(event):
        begin_request(w, event)
        w.write(event, type_, fields)
    elif not w.is_primary:
        return
    w.s.calls[event.call_id] = use


def tool_returned(w: EventWriter, event: ev.ToolReturned) -> None:
    """Write the result of a call. That of a custom tool is the application's own event."""
    use = w.s.calls.pop(event.call_id, None)
    if not w.is_own(event):
        return
    if event.error is not None and event.error.code == ABANDONED and event.synthetic:
        # Only closes the call: a result that did not come is not written.
        return
    if use is not None and use.type == "agent.custom_tool_use":
        if use.answered:
            return
        if event.native is not None and event.native.type == "user.custom_tool_result":
            # Another application of the service has given it.
            fields = {"custom_tool_use_id": use.id, "content": blocks.shown(event.content)}
            failed = {"is_error": True} if event.is_error else {}
            w.write(event, event.native.type, {**fields, **failed})
            return
    if w.s.made_up:
        end_request(w, event)
    type_, member = wire.RESULTS[use.type if use is not None else "agent.tool_use"]
    name = event.call_id if use is None else use.id
    known = use is None or use.known
    fields = {member: name, "content": _result_blocks(event, known=known)}
    w.write(event, type_, {**fields, "is_error": event.is_error})


def _result_blocks(event: ev.ToolReturned, *, known: bool) -> list[dict[str, Any]]:
    """Return what a tool gave: an input learnt late before it, the reason of a failure behind
    it."""
    found: list[dict[str, Any]] = []
    if event.input is not None and not known:
        found.append(_text(f"Input: {format_json(event.input).decode()}"))
    if event.content is not None:
        found += blocks.shown(event.content)
    elif isinstance(event.output, str):
        if event.output or event.error is None:
            found.append(_text(event.output))
    elif event.output is not None:
        found.append(_text(format_json(event.output).decode()))
    if event.error is not None and not wire.is_native(event):
        message = event.error.message
        if not any(message in str(block.get("text")) for block in found):
            found.append(_text(message))
    return found


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


# Beside.


def compacted(w: EventWriter, event: ev.ContextCompacted | ev.ContextCleared) -> None:
    """Say that the context is shorter now; `cleared` is ours."""
    if not w.is_own(event):
        return
    if isinstance(event, ev.ContextCleared):
        w.write(event, "agent.thread_context_compacted", {"cleared": True})
    elif event.phase == "completed":
        w.write(event, "agent.thread_context_compacted", {})


def outcome_evaluated(w: EventWriter, event: ev.OutcomeEvaluated) -> None:
    """Write a round of judging the work."""
    if not w.is_own(event):
        return
    outcome = w.s.outcomes.setdefault(event.outcome_id, OutcomeRecord(event.outcome_id))
    outcome.iteration = event.iteration
    if event.phase == "ended":
        outcome.result, outcome.explanation = event.result or "", event.explanation
        outcome.completed_at = w.at
    fields: dict[str, Any] = {"outcome_id": outcome.id, "iteration": event.iteration}
    phase = {"started": "start", "ongoing": "ongoing", "ended": "end"}[event.phase]
    if event.phase == "ended":
        fields |= {
            "outcome_evaluation_start_id": w.s.evaluations.pop(event.outcome_id, ""),
            "result": event.result or "",
            "explanation": event.explanation or "",
            "usage": _model_usage(event.usage),
        }
    name = w.write(event, f"span.outcome_evaluation_{phase}", fields)
    if event.phase == "started":
        w.s.evaluations[event.outcome_id] = name


def native(w: EventWriter, event: ev.Native) -> None:
    """Write an event of this dialect that the model does not know."""
    if event.dialect != wire.DIALECT or not isinstance(event.frame, dict) or not event.name:
        return
    if w.is_own(event):
        ours = ("id", "type", "processed_at")
        w.write(event, event.name, {k: v for k, v in event.frame.items() if k not in ours})
