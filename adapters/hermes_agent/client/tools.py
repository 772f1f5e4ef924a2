"""Calls of tools, the gate before them, and the approvals that other surfaces ask for (sections 2.1
and 2.3).

A gated call waits: its sender's request is answered with the decision. What a person answered is
remembered by the call's key, so that the same call by another way, or sent again after a restart,
gets the same decision and asks nobody twice.
"""

from __future__ import annotations

from typing import Any

from adapters.driving.asks import InteractionAnswer
from adapters.driving.part import soonest
from adapters.hermes_agent import wire
from adapters.hermes_agent.client import turns
from adapters.hermes_agent.client.posts import decision
from adapters.hermes_agent.client.state import (
    GatedCall,
    HermesCall,
    HermesState,
    HermesThread,
    Hook,
)
from adapters.model import events as ev
from adapters.wire.errors import cut
from adapters.wire.jsonvalue import JsonError, name_of, number_of, parse_json, text_of

OPTIONS = (
    ev.Option(id="allow", label="Allow", decision="allow", scope="once", style="primary"),
    ev.Option(id="deny", label="Deny", decision="deny", style="danger"),
)
"""What a person can answer a gated call: ours, since the gate is."""

_SHOWN = 2_000
"""Characters of a command that a prompt shows; the details have all of it. Ours."""

_CALL = ("tool_call_id", "result", "duration_ms", "status", "error_type", "error_message")


# Calls.


def called(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `pre_tool_call`: a call, and where its sender waits, the question whether it may run."""
    call_id = _call_of(thread, seen)
    out = turns.work(s, thread, seen)
    if call_id not in thread.calls and call_id not in thread.over:
        out.append(_called(thread, seen, call_id, "unknown" if seen.waits is None else "ask"))
        out += _last_of_step(thread)
    if seen.waits is not None:
        s.held.decide(call_id, "ask")
        out += _gate(s, thread, seen, call_id)
    return out


def _last_of_step(thread: HermesThread) -> list[ev.Event]:
    """End the model call whose last call this is."""
    last = thread.last
    if last is None or not last.told:
        return []
    last.calls -= 1
    return [] if last.calls > 0 else turns.tell_last(thread)


def _call_of(thread: HermesThread, seen: Hook) -> str:
    named = name_of(seen.args.get("tool_call_id"))
    if named is not None:
        return named
    # One without an id is the call of that tool which is open.
    own = (name for name, call in thread.calls.items() if call.name == (seen.tool or "unknown"))
    unnamed = f"call-{seen.native.id or seen.native.frame}"
    return next(own, unnamed) if seen.name == "post_tool_call" else unnamed


def _called(thread: HermesThread, seen: Hook, call_id: str, permission: ev.Permission) -> ev.Event:
    name = seen.tool or "unknown"
    thread.calls[call_id] = HermesCall(name)
    server = name.split("__")[1] if name.startswith("mcp__") and name.count("__") > 1 else None
    kind: Any = "mcp" if server else "subagent" if name == "delegate_task" else "builtin"
    return ev.ToolCalled(
        **thread.of(seen.native),
        call_id=call_id,
        name=name,
        kind=kind,
        server=server,
        input=seen.input,
        input_known=seen.input is not None,
        permission=permission,
        extra=seen.rest(*_CALL),
    )


def returned(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `post_tool_call`, which also comes for a call that was blocked."""
    call_id = _call_of(thread, seen)
    if call_id in thread.over:
        return []
    out = turns.work(s, thread, seen)
    blocked = seen.args.get("status") == "blocked"
    if call_id not in thread.calls:
        out.append(_called(thread, seen, call_id, "deny" if blocked else "allow"))
    out += turns.tell_last(thread)
    call = thread.calls.pop(call_id)
    thread.over.append(call_id)
    result, status = seen.args.get("result"), seen.args.get("status")
    output = _value_of(result)
    # A command that a person denied is an error there, and says so in words (section 2.1).
    denied = blocked or call.denied or _says_blocked(output)
    failed = denied or status == "error"
    s.held.decide(call_id, "deny" if denied else "allow")
    out += _resolve_call(s, thread, seen, call_id, "denied" if denied else "approved")
    error = None
    if failed:
        words = seen.text("error_message") or _error_in(output) or "The tool failed."
        code = "permission_denied" if denied else seen.text("error_type") or "tool_failed"
        error = ev.ErrorInfo(code=code, message=cut(words))
    out.append(
        ev.ToolReturned(
            **thread.of(seen.native),
            call_id=call_id,
            output=output,
            output_known="result" in seen.args,
            is_error=failed,
            error=error,
            status="rejected" if denied else "failed" if failed else "completed",
            duration_ms=number_of(seen.args.get("duration_ms")),
            extra=seen.rest(*_CALL),
        )
    )
    return out


def _value_of(result: Any) -> Any:
    """Return a result, which is mostly JSON in a text."""
    if not isinstance(result, str) or result[:1] not in ("{", "["):
        return result
    try:
        return parse_json(result)
    except JsonError:
        return result


def _says_blocked(output: Any) -> bool:
    return (_error_in(output) or "").startswith("BLOCKED:")


def _error_in(output: Any) -> str | None:
    return text_of(output.get("error")) if isinstance(output, dict) else None


# The gate.


def _gate(s: HermesState, thread: HermesThread, seen: Hook, call_id: str) -> list[ev.Event]:
    """Ask whether a call may run; who has the decision gets it again."""
    assert seen.waits is not None
    key = wire.call_key(seen.whole)
    if key in s.decided:
        s.calls.append(decision(key, s.decided[key]))
        return []
    request_id = f"gate-{key}"
    until = seen.now + seen.waits
    ask = s.asks.open.get(request_id)
    if ask is not None:
        # It came by another way too, or again: the last one to wait waits longest.
        ask.due = max(ask.due, until)
        return []
    s.asks.ask(request_id, GatedCall("approval", thread.thread_id, call_id, key=key, due=until))
    thread.paused = True
    command = seen.input.get("command") if isinstance(seen.input, dict) else None
    details = {"tool": seen.tool, "input": seen.input}
    prompt = f"May `{seen.tool}` run?"
    if isinstance(command, str):
        details["command"] = command
        prompt = f"May `{seen.tool}` run this?\n\n{command[:_SHOWN]}"
    asked = ev.InteractionRequested(
        **thread.of(seen.native),
        request_id=request_id,
        kind="approval",
        prompt=prompt,
        options=OPTIONS,
        call_id=call_id,
        shown_on=None if thread.is_main else ev.MAIN,
        details=details,
        expires_at=until,
    )
    return [*turns.tell_last(thread), asked, _paused(s, thread, seen.native)]


def _paused(s: HermesState, thread: HermesThread, native: ev.NativeRef | None) -> ev.Event:
    open_ = [name for name, ask in s.asks.open.items() if ask.thread_id == thread.thread_id]
    return ev.TurnPaused(**thread.of(native), on="input", request_ids=tuple(open_))


def give(s: HermesState, command_id: str, request_id: str, given: InteractionAnswer) -> str | None:
    """Remember the answer to a gated call; return its key, or None where it waits no more."""
    ask = s.asks.open.get(request_id)
    if ask is None or not ask.key:
        return None
    s.asks.give(request_id, given)
    return ask.key


def delivered(s: HermesState, command_id: str) -> list[ev.Event]:
    """Record that the sender of a call has its decision."""
    request_id = s.asks.given_by(command_id)
    told = s.ledger.settle(command_id, "taken")
    if request_id is None:
        return told
    ask = s.asks.open[request_id]
    assert ask.given is not None
    thread = s.thread_of(ask.thread_id)
    allowed = ask.given.outcome == "approved"
    reason = ask.given.answer.reason if ask.given.answer else None
    s.decide(ask.key, "" if allowed else reason or DENIED)
    if not allowed and ask.call_id in thread.calls:
        thread.calls[ask.call_id].denied = True
    return [*told, *_resolve(s, request_id, None)]


DENIED = "A person denied it."
"""What the model is told of a denial without a reason."""


def undelivered(s: HermesState, command_id: str, error: ev.ErrorInfo) -> list[ev.Event]:
    """Record that the sender of a call waits no more: it has blocked the call."""
    request_id = s.asks.given_by(command_id)
    out = s.ledger.settle(command_id, "refused", error)
    if request_id is None:
        return out
    thread = s.thread_of(s.asks.open[request_id].thread_id)
    out += s.asks.release(command_id, thread.turn)
    s.decide(s.asks.open[request_id].key, error.message)
    return out + _resolve(s, request_id, None, outcome="expired", reason=error.message)


def _resolve(
    s: HermesState, request_id: str, native: ev.NativeRef | None, **said: Any
) -> list[ev.Event]:
    """Resolve what was asked, and let the turn go on where nothing else is asked."""
    thread = s.thread_of(s.asks.open[request_id].thread_id)
    found = s.asks.resolve(request_id, thread.turn, native=native, synthetic=native is None, **said)
    assert found is not None
    out: list[ev.Event] = []
    if found.given is not None and found.given.command_id is not None:
        out += s.ledger.settle(found.given.command_id, "taken")
    out.append(found.event)
    if not any(ask.thread_id == thread.thread_id for ask in s.asks.open.values()):
        if thread.paused:
            out.append(ev.TurnResumed(**thread.of(native), synthetic=native is None))
        thread.paused = False
    elif thread.paused:
        out.append(_paused(s, thread, native))
    return out


def _resolve_call(
    s: HermesState, thread: HermesThread, seen: Hook, call_id: str, outcome: Any
) -> list[ev.Event]:
    """Resolve what is still asked about a call that has returned: it ran, or it was blocked, and
    nobody here knows by whom."""
    out: list[ev.Event] = []
    for name, ask in list(s.asks.open.items()):
        if ask.thread_id == thread.thread_id and ask.call_id == call_id:
            said = {} if ask.given is not None else {"outcome": outcome}
            if ask.key and ask.given is None and outcome == "denied":
                said = {"outcome": "expired"}
            out += _resolve(s, name, seen.native, **said)
    return out


# Approvals at other surfaces.


def approval(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `pre_approval_request`: somebody is asked elsewhere, which can only be watched."""
    out = turns.work(s, thread, seen)
    call_id = name_of(seen.args.get("tool_call_id"))
    if call_id not in thread.calls:
        # The gate of another plugin names none.
        call_id = next(reversed(thread.calls), None)
    pattern = f"{seen.args.get('pattern_key')}\n{seen.args.get('command')}"
    if any(a.pattern == pattern and a.call_id == call_id for a in s.asks.open.values()):
        return out
    s.unnamed += 1
    request_id = f"approval-{s.unnamed}"
    s.asks.ask(request_id, GatedCall("approval", thread.thread_id, call_id, pattern=pattern))
    thread.paused = True
    if call_id is not None:
        s.held.decide(call_id, "ask")
    command = seen.text("command")
    details = seen.rest("tool_call_id", "description") or {}
    asked = ev.InteractionRequested(
        **thread.of(seen.native),
        request_id=request_id,
        kind="approval",
        prompt=seen.text("description") or command or "Hermes asks for an approval.",
        answerable=False,
        call_id=call_id,
        shown_on=None if thread.is_main else ev.MAIN,
        details=details or None,
    )
    return [*out, *turns.tell_last(thread), asked, _paused(s, thread, seen.native)]


_CHOICES: dict[str, tuple[Any, Any]] = {
    "once": ("approved", "once"),
    "session": ("approved", "session"),
    "always": ("approved", "always"),
    "smart_approve": ("approved", "once"),
    "deny": ("denied", None),
    "smart_deny": ("denied", None),
    "timeout": ("expired", None),
}


def approved(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Take `post_approval_response`: of the oldest question about the same that is open."""
    pattern = f"{seen.args.get('pattern_key')}\n{seen.args.get('command')}"
    name = next((id_ for id_, ask in s.asks.open.items() if ask.pattern == pattern), None)
    if name is None:
        return []
    choice = seen.text("choice") or ""
    outcome, scope = _CHOICES.get(choice, ("unknown", None))
    by = seen.text("decided_by") or ("hermes" if choice.startswith("smart_") else None)
    call = thread.calls.get(s.asks.open[name].call_id or "")
    if call is not None and outcome != "approved":
        call.denied = True
    return _resolve(s, name, seen.native, outcome=outcome, scope=scope, by=by)


# Time.


def due(s: HermesState) -> int | None:
    """Return when a gated call is blocked that nobody has decided."""
    return soonest(*(a.due for a in s.asks.open.values() if a.key and a.given is None))


def tick(s: HermesState, now: int) -> list[ev.Event]:
    """Block the calls that nobody has decided in time."""
    out: list[ev.Event] = []
    for name, ask in list(s.asks.open.items()):
        if not ask.key or ask.given is not None or now < ask.due:
            continue
        s.decide(ask.key, IN_TIME)
        s.calls.append(decision(ask.key, IN_TIME))
        thread = s.thread_of(ask.thread_id)
        if ask.call_id in thread.calls:
            thread.calls[ask.call_id].denied = True
        out += _resolve(s, name, None, outcome="expired", reason=IN_TIME)
    return out


IN_TIME = "Nobody answered in time."
