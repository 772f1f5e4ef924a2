"""What a turn does: messages and previews, tools, model requests, usage, errors (section 7).

Why one module: a handler for each event of a turn, and all read and change the same thread.
"""

from __future__ import annotations

import math
from typing import Any

from adapters.managed_agents import wire
from adapters.managed_agents.client import contents, interactions, turns
from adapters.managed_agents.client.state import (
    KEPT_BYTES,
    AgentsState,
    AgentThread,
    OpenToolUse,
    ReceivedEvent,
    ThreadPreview,
    digest_of,
    unknown,
)
from adapters.model import events as ev
from adapters.model import raw
from adapters.wire.errors import code_of, cut
from adapters.wire.jsonvalue import format_json, int_of, name_of, text_of

_USES = {
    "agent.tool_use": "builtin",
    "agent.mcp_tool_use": "mcp",
    "agent.custom_tool_use": "custom",
}

# Messages.


def preview_start(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `event_start`: a message begins (section 9). Of thinking nothing more comes."""
    event = seen.event.get("event")
    event = event if isinstance(event, dict) else {}
    id_ = name_of(event.get("id"))
    if id_ is None or event.get("type") != "agent.message":
        return []
    if thread.turn is None or thread.known.has(digest_of(id_), None):
        # It waited for a list, which has the end of its turn, or the whole message.
        return []
    if thread.preview.event_id != id_:
        thread.preview = ThreadPreview(id_)
    else:
        # Of a stream before this one: what came between is not known.
        thread.preview.torn = True
    return []


def preview_delta(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `event_delta`: more of a message. One without its begin adds nothing: the whole message
    has it."""
    delta = seen.event.get("delta")
    content = delta.get("content") if isinstance(delta, dict) else None
    text = content.get("text") if isinstance(content, dict) else None
    preview = thread.preview
    if not isinstance(text, str) or not isinstance(delta, dict):
        return [unknown(thread, seen)]
    if preview.torn or preview.event_id != seen.event.get("event_id") or delta.get("index"):
        # Of the blocks of a message the first one is previewed: the others come with the whole.
        return []
    out = turns.work(s, thread, seen)
    block = {
        "thread_id": thread.thread_id,
        "turn_id": thread.turn,
        "block_id": preview.event_id,
        "message_id": preview.event_id,
        "native": seen.native.model_copy(update={"id": preview.event_id}),
    }
    return [*out, raw.delta_of(ev.TextDelta, text, **block)]


def block_id(message: str, index: int) -> str:
    """Return the id of a block of a message."""
    return message if index == 0 else f"{message}.{index}"


def message(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `agent.message`: the whole of it, block by block."""
    out = turns.work(s, thread, seen)
    thread.preview.event_id = ""
    name = seen.id or f"message-{seen.native.frame}"
    blocks = contents.shown(seen.event.get("content"))
    rest = seen.rest("content")
    for index, block in enumerate(blocks or (ev.Text(text=""),)):
        extra = dict(rest or {}) if index == 0 else {}
        if len(blocks) > 1:
            extra[wire.BLOCKS] = len(blocks)
        is_text = isinstance(block, ev.Text)
        if is_text and block.extra is not None:
            extra[wire.BLOCK] = block.extra
        out.append(
            ev.TextCompleted(
                **thread.of(seen.native),
                block_id=block_id(name, index),
                message_id=name,
                index=index,
                text=block.text if is_text else "",
                content=None if is_text else (block,),
                extra=extra or None,
            )
        )
    return out


def thinking(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `agent.thinking`, whose text is withheld (a third party's server shows some)."""
    out = turns.work(s, thread, seen)
    name = seen.id or f"thinking-{seen.native.frame}"
    words = contents.words(seen.event.get("content"))
    out.append(
        ev.ReasoningCompleted(
            **thread.of(seen.native),
            block_id=name,
            message_id=name,
            text=words,
            withheld=not words,
            extra=seen.rest(),
        )
    )
    return out


# Tools.


def tool_use(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take a use of a tool, whose name is the event's id (section 7.2). A child's that waits for an
    answer is shown on the session's stream too, under the same id (section 10)."""
    owner, out = thread, list[ev.Event]()
    if thread.is_main and seen.text("session_thread_id") is not None:
        named, out = turns.named_thread(s, thread, seen)
        owner = named or thread
    use_id = seen.id or f"use-{seen.native.frame}"
    custom = seen.type == "agent.custom_tool_use"
    if use_id not in owner.uses and use_id not in s.over:
        out += turns.work(s, owner, seen)
        owner.uses_in_step = True
        out.append(_called(s, owner, seen, use_id))
    use = owner.uses.get(use_id)
    if use is not None and (custom or use.permission == "ask"):
        # A result may be sent as soon as this comes (section 4.1).
        out += interactions.ask(s, owner, use_id, seen.native)
    return out


def _called(s: AgentsState, thread: AgentThread, seen: ReceivedEvent, use_id: str) -> ev.Event:
    event = seen.event
    tool = text_of(event.get("name")) or "unknown"
    permission: Any = event.get("evaluated_permission")
    if permission not in ("allow", "ask", "deny"):
        permission = "unknown"
    custom = seen.type == "agent.custom_tool_use"
    size = len(format_json(event.get("input")))
    kept = size + sum(use.size for use in thread.uses.values() if use.kept) <= KEPT_BYTES
    thread.uses[use_id] = OpenToolUse(
        tool,
        custom,
        permission,
        name_of(event.get("tool_use_id")),
        event.get("input") if kept else None,
        size,
        kept,
    )
    evaluation = event.get("evaluation")
    known = ("name", "input", "evaluated_permission", "evaluation", "mcp_server_name")
    kind: Any = _USES[seen.type]
    return ev.ToolCalled(
        **thread.of(seen.native),
        call_id=use_id,
        name=tool,
        kind=kind,
        server=text_of(event.get("mcp_server_name")),
        input=event.get("input"),
        input_known="input" in event,
        permission=permission,
        evaluation=evaluation if isinstance(evaluation, dict) else None,
        extra=seen.rest(*known, "session_thread_id"),
    )


def tool_result(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take what a tool returned: by the use's event, else by the name that a server gives it, else
    that of the oldest use."""
    member = "mcp_tool_use_id" if seen.type == "agent.mcp_tool_result" else "tool_use_id"
    named = seen.text(member) or seen.text("tool_use_id")
    use_id = _use_of(thread, named) or named or seen.id
    out: list[ev.Event] = []
    if thread.turn is None:
        out += turns.work(s, thread, seen)
    failed = seen.event.get("is_error") is True
    use = thread.uses.get(use_id)
    request = s.asks.open.get(use_id)
    if request is not None:
        denied = failed and request.given is not None and request.given.outcome == "denied"
        # Of an answer that nobody has seen an error says nothing: a tool may fail.
        said = {} if request.given else {"outcome": "unknown" if failed else "approved"}
        if request.given is None and thread.interrupting:
            said = {"outcome": "cancelled"}
        out += interactions.resolve(s, use_id, seen.native, **said)
        rejected = denied
    else:
        rejected = failed and use is not None and use.denied
    thread.uses.pop(use_id, None)
    s.put_over(use_id)
    status: Any = "completed"
    if failed:
        status = "rejected" if rejected else "failed"
        if thread.interrupting:
            status = "interrupted"
    output, content = contents.output(seen.event.get("content"))
    extra = seen.rest(member, "content", "is_error") or {}
    error = None
    if failed:
        words = cut(contents.words(seen.event.get("content")) or "The tool failed.")
        code = "permission_denied" if rejected else "tool_failed"
        error = ev.ErrorInfo(code=code, message=words)
    out.append(
        ev.ToolReturned(
            **thread.of(seen.native),
            call_id=use_id,
            output=output,
            content=content,
            is_error=failed,
            error=error,
            status=status,
            extra=extra or None,
        )
    )
    return out


def _use_of(thread: AgentThread, named: str | None) -> str | None:
    if named in thread.uses:
        return named
    by_alias = (key for key, use in thread.uses.items() if named and use.alias == named)
    found = next(by_alias, None)
    if found is None and named is None:
        found = next((key for key, use in thread.uses.items() if not use.custom), None)
    return found


# Model requests and usage.


def request_start(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `span.model_request_start`."""
    out = turns.work(s, thread, seen)
    thread.step, thread.steps = thread.steps, thread.steps + 1
    thread.uses_in_step = False
    return [
        *out,
        ev.StepStarted(
            **thread.of(seen.native),
            step_index=thread.step,
            extra=seen.rest(),
        ),
    ]


def request_end(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `span.model_request_end`; what was previewed and did not come was cut off (section
    9)."""
    if thread.step is None or thread.turn is None:
        return []
    out: list[ev.Event] = []
    if thread.preview.event_id:
        thread.preview = ThreadPreview()
        out.append(
            raw.BlockEnded(
                thread_id=thread.thread_id,
                turn_id=thread.turn,
                block="text",
                status="partial",
                synthetic=True,
            )
        )
    failed = seen.event.get("is_error") is True
    error = None
    if failed:
        error = ev.ErrorInfo(code="model_request_failed", message="The model request failed.")
    step, thread.step = thread.step, None
    finish = None if failed else "tool-calls" if thread.uses_in_step else "stop"
    out.append(
        ev.StepEnded(
            **thread.of(seen.native),
            step_index=step,
            finish_reason=finish,
            usage=model_usage(seen.event.get("model_usage")),
            error=error,
            extra=seen.rest("model_request_start_id", "model_usage", "is_error"),
        )
    )
    return out


_TOKENS = {
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "cache_creation",
    "list_cost",
}


def model_usage(value: Any) -> ev.Usage | None:
    """Return tokens (sections 3.2 and 7.4): ours include the cached ones."""
    if not isinstance(value, dict):
        return None
    read = int_of(value.get("cache_read_input_tokens"))
    written = int_of(value.get("cache_creation_input_tokens"))
    lifetimes = value.get("cache_creation")
    rest = {name: more for name, more in value.items() if name not in _TOKENS}
    if isinstance(lifetimes, dict):
        counts = [count for one in lifetimes.values() if (count := int_of(one)) is not None]
        written = sum(counts) if counts and written is None else written
        rest["cache_creation"] = lifetimes
    plain = int_of(value.get("input_tokens"))
    total = None if plain is None else plain + (read or 0) + (written or 0)
    cost, price = None, value.get("list_cost")
    if isinstance(price, dict):
        cost = _dollars(price)
        if cost is None:
            rest["list_cost"] = price
    return ev.Usage(
        input_tokens=total,
        output_tokens=int_of(value.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cost_usd=cost,
        extra=rest or None,
    )


def _dollars(price: dict[str, Any]) -> float | None:
    amount = price.get("amount")
    if price.get("currency") != "USD" or not isinstance(amount, str | int | float):
        return None
    try:
        dollars = float(amount) / 100
    except (ValueError, OverflowError):
        return None
    return dollars if math.isfinite(dollars) else None


def usage(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.usage`."""
    found = model_usage(seen.event.get("usage"))
    if found is None:
        return [unknown(thread, seen)]
    return [
        ev.UsageReported(
            **thread.of(seen.native),
            usage=found,
            scope="session",
            extra=seen.rest("usage"),
        )
    ]


# Told beside the work.


def error(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.error`, which ends nothing (section 8): the status that follows does. A third
    party's server writes its members flat."""
    event = seen.event
    inner = event.get("error")
    said: dict[str, Any] = inner if isinstance(inner, dict) else {}
    if not said:
        known = {"id", "type", "processed_at", "error"}
        said = {name: value for name, value in event.items() if name not in known}
        said.setdefault("type", said.pop("error_type", None))
        if isinstance(inner, str):
            said.setdefault("message", inner)
    code = code_of(said.get("type"), "unknown_error")
    words = cut(text_of(said.get("message")) or code)
    retry = said.get("retry_status")
    retry = retry.get("type") if isinstance(retry, dict) else retry
    details = {k: v for k, v in said.items() if k not in ("type", "message", "retry_status")}
    thread.error = ev.ErrorInfo(code=code, message=words, details=details or None)
    return [
        ev.ErrorReported(
            **thread.of(seen.native),
            code=code,
            message=words,
            retry=retry if retry in ("retrying", "exhausted", "terminal") else None,
            details=details or None,
            extra=seen.rest("error") if isinstance(inner, dict) else None,
        )
    ]


def outcome(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take the evaluation of an outcome (section 7.4)."""
    event, phase = seen.event, seen.type.rpartition("_")[2]
    phases: dict[str, Any] = {"start": "started", "ongoing": "ongoing", "end": "ended"}
    name = name_of(event.get("outcome_id"))
    if name is None or phase not in phases:
        return [unknown(thread, seen)]
    known = ("outcome_id", "iteration", "result", "explanation", "usage")
    return [
        ev.OutcomeEvaluated(
            **thread.of(seen.native),
            outcome_id=name,
            phase=phases[phase],
            iteration=int_of(event.get("iteration")) or 0,
            result=text_of(event.get("result")),
            explanation=text_of(event.get("explanation")),
            usage=model_usage(event.get("usage")),
            extra=seen.rest(*known, "outcome_evaluation_start_id"),
        )
    ]


def compacted(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `agent.thread_context_compacted`."""
    return [
        ev.ContextCompacted(
            thread_id=thread.thread_id, turn_id=thread.turn, native=seen.native, extra=seen.rest()
        )
    ]


def thread_created(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.thread_created`."""
    name = seen.text("session_thread_id")
    if name is None or name in (s.primary, ev.MAIN):
        return [unknown(thread, seen)]
    found, out = turns.child(s, name, seen, seen.rest("session_thread_id", "agent_name"))
    found.followed = True
    return out


def thread_message(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take what threads say to each other, relative to the thread whose stream has it."""
    sent = seen.type == "agent.thread_message_sent"
    member, name = ("to_session_thread_id", "to_agent_name")
    if not sent:
        member, name = ("from_session_thread_id", "from_agent_name")
    other = s.thread_of(seen.event.get(member))
    here = thread.thread_id
    return [
        ev.ThreadMessage(
            thread_id=here,
            turn_id=thread.turn,
            direction="sent" if sent else "received",
            sender=here if sent else other,
            recipient=other if sent else here,
            content=contents.shown(seen.event.get("content")),
            native=seen.native,
            extra=seen.rest(member, name, "content"),
        )
    ]


def agent_of(agent: Any) -> dict[str, Any] | None:
    """Return an agent as the model has it; the whole of it is in the session's options."""
    if not isinstance(agent, dict):
        return None
    model = agent.get("model")
    model = model.get("id") if isinstance(model, dict) else model
    told = {name: agent.get(name) for name in ("id", "name", "version")} | {"model": model}
    return {name: value for name, value in told.items() if isinstance(value, str | int)}


def updated(s: AgentsState, thread: AgentThread, seen: ReceivedEvent) -> list[ev.Event]:
    """Take `session.updated`: what changed; a third party's server shows the whole session."""
    event = seen.event
    whole = event.get("session")
    told: dict[str, Any] = whole if isinstance(whole, dict) else event
    title, metadata, agent = told.get("title"), told.get("metadata"), told.get("agent")
    return [
        ev.SessionUpdated(
            thread_id=ev.MAIN,
            title=title if isinstance(title, str) else None,
            metadata=metadata if isinstance(metadata, dict) else None,
            agent=agent_of(agent),
            options=wire.told_options(told),
            native=seen.native,
            extra=None if whole else seen.rest("title", "metadata"),
        )
    ]
