"""What an Engine asks, what was answered, and what shows that an answer arrived.

One request is open at a time. `hitl_resolved` says that it is over and not how (section 8.9), and
may be left out; then work of the turn is the evidence.
"""

from __future__ import annotations

import itertools
from typing import Any

from adapters.driving.asks import InteractionAnswer, PendingInteraction
from adapters.driving.ledger import SentInput
from adapters.engine.client import turns
from adapters.engine.client.state import IN_ANY, EngineClientState, EngineFrame, EngineToolCall
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.interactions import answer_of
from adapters.wire.jsonvalue import name_of, rest_of

_REQUEST = IN_ANY | {
    *("request_id", "kind", "question", "options"),
    *("created_at", "tool", "input", "tool_call_id"),
}
_RESOLVED = IN_ANY | {"request_id"}
"""Members that the model knows."""

APPROVAL_OPTIONS = (
    ev.Option(id="approve", label="Yes", decision="allow", scope="once", style="primary"),
    ev.Option(id="deny", label="No", decision="deny", style="danger"),
)
"""A permission takes yes or no and names no ids (section 10.1); these are ours."""


def allows(command: cmd.AnswerInteraction) -> bool:
    """Say whether an answer to a permission is a yes."""
    if command.decision is not None:
        return command.decision == "allow"
    return APPROVAL_OPTIONS[0].id in command.option_ids


def give(
    s: EngineClientState, command_id: str, command: cmd.AnswerInteraction | cmd.Interrupt
) -> None:
    """Remember an answer, where what it answers is still open. An interrupt denies."""
    s.ledger.expect(SentInput(command_id, command.KIND))
    if isinstance(command, cmd.Interrupt):
        if s.asked is not None:
            s.asks.give(s.asked, InteractionAnswer(command_id, "denied", claims=False))
    elif (ask := s.asks.open.get(command.request_id)) is not None:
        s.asks.give(command.request_id, _given(command_id, command, ask.kind))


def _given(
    command_id: str, command: cmd.AnswerInteraction, kind: ev.InteractionKind
) -> InteractionAnswer:
    """Return what is remembered of an answer: `hitl_resolved` does not say it (section 8.9)."""
    answer = answer_of(command)
    if kind != "approval":
        return InteractionAnswer(command_id, "skipped" if command.skip else "answered", answer)
    if allows(command):
        return InteractionAnswer(command_id, "approved", answer, scope="once")
    return InteractionAnswer(command_id, "denied", answer)


def requested(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `hitl_request` (section 8.8)."""
    payload, native = seen.payload, seen.native
    request_id = name_of(payload.get("request_id"))
    if request_id is None:
        s.unnamed_asks += 1
        request_id = f"hitl-{s.unnamed_asks}"
    if request_id in s.asks.open:
        # Told again, to one who reconnects for example.
        return []
    out = infer_resolved(s) + turns.in_turn(s, native)
    out += turns.end_step(s, None, None, synthetic=True)
    question = payload.get("question")
    question = question if isinstance(question, str) else ""
    approval = payload.get("kind") == "permission"
    call_id = _asking_call(s, payload, question) if approval else None
    details: dict[str, Any] = {}
    if call_id is not None:
        call = s.calls[call_id]
        call.asked = True
        details = {"tool": call.tool}
        if call.kept:
            details["input"] = call.input
        s.held.decide(call_id, "ask")
    # Not documented; shown where they are present (section 8.8).
    details |= {key: payload[key] for key in ("tool", "input") if payload.get(key) is not None}
    s.asks.ask(
        request_id, PendingInteraction("approval" if approval else "question", call_id=call_id)
    )
    out.append(
        ev.InteractionRequested(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            request_id=request_id,
            kind="approval" if approval else "question",
            prompt=question,
            options=APPROVAL_OPTIONS if approval else _options(payload.get("options")),
            freeform=not approval,
            call_id=call_id,
            details=details or None,
            native=native,
            extra=_unknown_of(seen, call_id) or None,
        )
    )
    out.append(ev.TurnPaused(thread_id=ev.MAIN, turn_id=s.turn, on="input", native=native))
    return out


def _unknown_of(seen: EngineFrame, call_id: str | None) -> dict[str, Any]:
    """Return what a request says that the model does not know, or that means nothing here."""
    payload = seen.payload
    extra = rest_of(payload, _REQUEST) or {}
    if call_id is None and payload.get("tool_call_id") is not None:
        extra["tool_call_id"] = payload["tool_call_id"]
    kind = payload.get("kind")
    if kind == "permission" and payload.get("options") is not None:
        extra["options"] = payload["options"]
    if kind not in ("permission", "question") and "kind" in payload:
        extra["kind"] = kind
    return extra


def _asking_call(s: EngineClientState, payload: dict[str, Any], question: str) -> str | None:
    """Return the open call that a permission is about (section 8.8).

    By id, else by what the question quotes and the tool it names, else the oldest.
    """
    named, tool = payload.get("tool_call_id"), payload.get("tool")
    calls = {call_id: call for call_id, call in s.calls.items() if not call.asked}
    if isinstance(named, str) and named:
        return named if named in calls else None
    best, best_score = None, -1
    # So much is enough to see which call it is about; ours.
    question = question[:4_000]
    for call_id, call in calls.items():
        if isinstance(tool, str) and tool != call.tool:
            continue
        score = 2 * _quotes(question, call) + (tool == call.tool or call.tool in question)
        if score > best_score:
            best, best_score = call_id, score
    return best


def _quotes(question: str, call: EngineToolCall) -> bool:
    # An input may have many values, and all are looked for in the question.
    values = itertools.islice(call.input.values(), 16) if isinstance(call.input, dict) else ()
    return any(isinstance(v, str) and len(v) > 2 and v in question for v in values)


def _options(value: object) -> tuple[ev.Option, ...] | None:
    """Read `options`: absent, texts, or objects with a label (section 8.8)."""
    if not isinstance(value, list) or not value:
        return None
    options = []
    for item in value:
        fields = item if isinstance(item, dict) else {"label": item}
        label = next((fields[k] for k in ("label", "text", "value", "id") if fields.get(k)), None)
        if isinstance(label, str | int | float) and not isinstance(label, bool):
            description = fields.get("description")
            options.append(
                ev.Option(
                    id=str(label),
                    label=str(label),
                    description=description if isinstance(description, str) else None,
                )
            )
    return tuple(options) or None


def resolved(s: EngineClientState, seen: EngineFrame) -> list[ev.Event]:
    """Take `hitl_resolved` (section 8.9)."""
    named = seen.payload.get("request_id")
    if isinstance(named, str) and named and named not in s.asks.open:
        return []
    return _resolve(s, native=seen.native, extra=rest_of(seen.payload, _RESOLVED))


def infer_resolved(s: EngineClientState) -> list[ev.Event]:
    """Take work after a request as the evidence where `hitl_resolved` was left out."""
    return _resolve(s, inferred=True)


def _resolve(
    s: EngineClientState,
    *,
    native: ev.NativeRef | None = None,
    extra: dict[str, Any] | None = None,
    inferred: bool = False,
) -> list[ev.Event]:
    """Resolve what is asked: it refers to the request pending on this stream (section 8.9)."""
    request_id = s.asked
    if request_id is None:
        return []
    found = s.asks.resolve(request_id, s.turn, native=native, synthetic=inferred, extra=extra)
    assert found is not None
    out: list[ev.Event] = []
    if found.given is not None and found.given.command_id is not None:
        # The effect proves that the answer arrived, whatever becomes of the request's reply.
        out += s.ledger.settle(found.given.command_id, "taken")
        s.doubts.forget(found.given.command_id)
    out.append(found.event)
    out.append(ev.TurnResumed(thread_id=ev.MAIN, turn_id=s.turn, native=native, synthetic=inferred))
    return out
