"""What the events of a run mean: one handler for each, and what waits for what comes next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from adapters.agui import wire
from adapters.agui.client import interrupts, snapshots, turns, work
from adapters.agui.client.state import BUSY_MS, RESULT_HOLD_MS, AguiClientState, AguiEvent
from adapters.driving import runs
from adapters.driving.runs import Run
from adapters.model import events as ev
from adapters.wire.errors import code_of, cut
from adapters.wire.jsonvalue import int_of, name_of, text_of
from adapters.wire.partial_recovery import salvage

# Runs.


def started(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `RUN_STARTED`: a run that resumes goes on with its turn when it works."""
    run = s.runs.current
    s.first = s.block.frames
    return [] if run is not None and run.answers else turns.in_turn(s, seen.native)


def finished(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `RUN_FINISHED`: the turn is over, or waits for people or for the application."""
    if interrupts.still_asked(s, seen):
        return _withdraw(s)
    s.dropped = {}
    out = turns.works(s, seen.native) + _usage(s, seen.payload.get("usage"), seen)
    s.runs.take()
    if (result := seen.payload.get("result")) is not None:
        out += turns.end_step(s, seen.native)
        out.append(
            ev.ResultProduced(thread_id=ev.MAIN, turn_id=s.turn, value=result, native=seen.native)
        )
    found = seen.payload.get("outcome")
    outcome: dict[str, Any] = found if isinstance(found, dict) else {}
    asked = outcome.get("interrupts")
    if outcome.get("type") == "interrupt" and isinstance(asked, list) and asked:
        return out + interrupts.requested(s, asked, seen)
    if s.legacy:
        return out + interrupts.legacy(s, seen)
    left = interrupts.left_open(s)
    if left and outcome.get("type") != "cancelled":
        # Its own calls an agent finishes before its run ends.
        return out + interrupts.pending(s, left, seen)
    ended = "interrupted" if outcome.get("type") == "cancelled" else "completed"
    return out + turns.end(s, ended, None, seen.native, seen.extra)


def failed(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `RUN_ERROR`: a run that resumes and has shown nothing refuses the answers by it."""
    code, words = seen.payload.get("code"), text_of(seen.payload.get("message"))
    kept = code_of(code, "run_error")
    error = ev.ErrorInfo(
        code=kept,
        message=cut(words or "The run failed; the agent gave no reason."),
        details={"code": code} if code is not None and kept != code else None,
    )
    if interrupts.still_asked(s, seen):
        return _withdraw(s)
    run = s.runs.current
    if _is_busy(s, run, code):
        s.runs.busy = BUSY_MS
        return []
    if run is not None and run.answers and not run.working:
        s.runs.take()
        return runs.refuse_answers(run, s.asks, s.ledger, s.turn, error)
    out = turns.works(s, seen.native) + _usage(s, seen.payload.get("usage"), seen)
    s.runs.take()
    return out + turns.end(s, "failed", error, seen.native, seen.extra)


def _withdraw(s: AguiClientState) -> list[ev.Event]:
    """Have what was taken back cancelled, and the message asked for again: it was not heard."""
    s.legacy = []
    s.withdraws, s.runs.busy = True, 0
    return []


def withdrawn(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take an event of the run in which the agent is told what was taken back: what it says to that
    nobody hears."""
    if seen.name not in _SETTLING:
        return []
    s.withdraws, s.dropped = False, {}
    if seen.name == "RUN_ERROR":
        return failed(s, seen)
    s.runs.busy = 0
    return turns.in_turn(s, seen.native)


def _is_busy(s: AguiClientState, run: Run | None, code: Any) -> bool:
    """Say whether an agent has begun nothing of a run, since it is busy with the one that was left:
    a Strands puts that away after its body is closed."""
    if run is None or not run.follows_stop or run.working or s.block.frames != s.first + 1:
        return False
    run.follows_stop = False
    return isinstance(code, str) and "BUSY" in code.upper()


def _usage(s: AguiClientState, found: Any, seen: AguiEvent) -> list[ev.Event]:
    """Return the tokens of a run, by model: it tells them for all its calls at once."""
    out: list[ev.Event] = []
    for one in found if isinstance(found, list) else ():
        if not isinstance(one, dict):
            continue
        told = ev.Usage(
            input_tokens=int_of(one.get("inputTokens")),
            output_tokens=int_of(one.get("outputTokens")),
            cache_read_tokens=int_of(one.get("cachedInputTokens")),
            cache_write_tokens=int_of(one.get("cacheWriteInputTokens")),
            reasoning_tokens=int_of(one.get("reasoningTokens")),
            extra={name: one[name] for name in ("provider", "model") if name in one} or None,
        )
        out.append(
            ev.UsageReported(
                thread_id=ev.MAIN, turn_id=s.turn, usage=told, scope="call", native=seen.native
            )
        )
    return out


def custom(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `CUSTOM`, one of which asks."""
    if seen.payload.get("name") == wire.ON_INTERRUPT:
        of_graph = seen.payload.get("rawEvent")
        name = name_of(of_graph.get("id")) if isinstance(of_graph, dict) else None
        s.legacy.append((name, seen.payload.get("value")))
        # Whether it is new the end of the run shows.
        return []
    return work.unknown(s, seen)


_Handler = Callable[[AguiClientState, AguiEvent], list[ev.Event]]

HANDLERS: Mapping[str, _Handler] = {
    "RUN_STARTED": started,
    "RUN_FINISHED": finished,
    "RUN_ERROR": failed,
    "TEXT_MESSAGE_START": work.block_start,
    "TEXT_MESSAGE_CONTENT": work.text,
    "TEXT_MESSAGE_END": work.text_end,
    "TEXT_MESSAGE_CHUNK": work.chunk,
    "REASONING_START": work.ignored,
    "REASONING_MESSAGE_START": work.block_start,
    "REASONING_MESSAGE_CONTENT": work.reasoning,
    "REASONING_MESSAGE_END": work.reasoning_end,
    wire.REASONING_CHUNK: work.chunk,
    "REASONING_END": work.reasoning_over,
    "REASONING_ENCRYPTED_VALUE": work.encrypted,
    "THINKING_START": work.ignored,
    "THINKING_TEXT_MESSAGE_START": work.block_start,
    "THINKING_TEXT_MESSAGE_CONTENT": work.reasoning,
    "THINKING_TEXT_MESSAGE_END": work.reasoning_end,
    "THINKING_END": work.reasoning_over,
    "TOOL_CALL_START": work.call_start,
    "TOOL_CALL_ARGS": work.call_args,
    "TOOL_CALL_END": work.call_end,
    "TOOL_CALL_CHUNK": work.call_chunk,
    "TOOL_CALL_RESULT": work.call_result,
    "STATE_SNAPSHOT": snapshots.state,
    "STATE_DELTA": snapshots.state_delta,
    "ACTIVITY_SNAPSHOT": snapshots.activity,
    "ACTIVITY_DELTA": snapshots.activity,
    "MESSAGES_SNAPSHOT": snapshots.messages,
    "CUSTOM": custom,
    # It repeats what the other events say, and is most of what a LangGraph sends.
    "RAW": work.ignored,
}

_CHUNKS = frozenset({"TEXT_MESSAGE_CHUNK", wire.REASONING_CHUNK, "TOOL_CALL_CHUNK", "RAW"})
"""Events that do not end what chunks have begun."""

_BESIDE = frozenset({"RAW", "STEP_STARTED", "STEP_FINISHED", "REASONING_ENCRYPTED_VALUE"})
"""Events that say nothing of the order of work."""

_SETTLING = frozenset({"RUN_FINISHED", "RUN_ERROR"})
"""Events after which nothing more will show of calls that are held."""


_SALVAGED = frozenset({"RUN_FINISHED", "RUN_ERROR", "TOOL_CALL_RESULT"})
"""Events that count though the rest of them cannot be read: without them a run would not end, or
would wait for the result of a call."""


def salvaged(data: bytes, reason: str) -> dict[str, Any] | None:
    """Return what can be read of an event that cannot be read to its end; None where that means
    nothing."""
    payload = salvage(data)
    if name_of(payload.get("type")) not in _SALVAGED:
        return None
    if payload["type"] == "TOOL_CALL_RESULT":
        payload.setdefault("content", reason)
    return payload


def meaning(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Return what an event means, as far as that may be told now."""
    if s.withdraws:
        return withdrawn(s, seen)
    before: list[ev.Event] = []
    if s.chunk and seen.name not in _CHUNKS:
        before += work.close_chunk(s, seen.native)
    if s.result is not None and seen.name not in _BESIDE and not _may_say_input(s, seen):
        before += turns.let_result_go(s)
    for call_id in interrupts.asked_calls(seen.name, seen.payload):
        s.held.decide(call_id, "ask")
    # Behind its call, which may be held still.
    out = _keep(s, before, seen.now) if before else []
    return out + _hold(s, HANDLERS.get(seen.name, work.unknown)(s, seen), seen)


def _may_say_input(s: AguiClientState, seen: AguiEvent) -> bool:
    """Say whether an event may have the input that the result which waits asks for."""
    held = s.result
    snapshot = seen.name in ("STATE_SNAPSHOT", "MESSAGES_SNAPSHOT")
    return snapshot and held is not None and held.asks_input


def _hold(s: AguiClientState, events: list[ev.Event], seen: AguiEvent) -> list[ev.Event]:
    """Let events through, or keep them behind a call whose permission is not known yet: a call that
    returns has run, and a run that ends has asked for what waits."""
    if seen.name == "TOOL_CALL_RESULT" and (named := seen.payload.get("toolCallId")):
        out = s.held.keep(events, seen.now)
        s.held.decide(named, "allow")
        return out + s.held.go()
    if seen.name in _SETTLING:
        return s.held.let_go() + events
    return _keep(s, events, seen.now)


def _keep(s: AguiClientState, events: list[ev.Event], now: int) -> list[ev.Event]:
    """Let events through, or keep them behind a call that is held."""
    returned = [event.call_id for event in events if isinstance(event, ev.ToolReturned)]
    out = s.held.keep(events, now)
    for call_id in returned:
        s.held.decide(call_id, "allow")
    return out + (s.held.go() if returned else [])


def tick(s: AguiClientState, now: int) -> list[ev.Event]:
    """Return what has waited long enough."""
    out = s.held.tick(now)
    if s.result is not None and now >= s.result.at + RESULT_HOLD_MS:
        out += _keep(s, turns.let_result_go(s), now)
    return out
