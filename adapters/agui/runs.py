"""Runs: a run is a stretch of the main thread's work, from a message, an answer or the agent's own
start to the end of the turn or to its next pause.

So a turn that asks is several runs, each of which is closed as all clients want it: what is open is
ended before the terminal event. What happens between two runs is told at the beginning of the next
one. A run that no frontend of this dialect asked for never ends with `RUN_ERROR`: it may stand
before another one in a body, and clients before 0.0.59 take nothing behind an error.
"""

from __future__ import annotations

from typing import Any

from adapters.agui import wire
from adapters.agui.frames import RunWriter, about, announce, at_work, put, put_custom
from adapters.agui.interactions import interrupt_of
from adapters.agui.state import OpenRun, RunNotes, RunRecord
from adapters.model import events as ev
from adapters.serving.ids import ids_of
from adapters.serving.pauses import ShownRequest
from adapters.wire.jsonvalue import format_json

_OPEN = ("_START", "_CONTENT", "_ARGS")
"""Events of what is not whole yet."""


def begin(w: RunWriter, notes: RunNotes | None, messages: list[dict[str, Any]]) -> None:
    """Begin a run; without `notes` one that no frontend of this dialect asked for."""
    s = w.s
    s.runs += 1
    key = str(s.runs)
    if notes is not None:
        s.modern, s.asks = notes.modern, notes.asks
    name = None if notes is None else notes.run
    s.run = OpenRun(key, name or name_of(w, key), notes is not None, s.modern, s.asks)
    s.pauses.paused, s.digest = False, None
    ids = {"threadId": w.thread_id, "runId": s.run.id}
    members: dict[str, Any] = {**ids, "protocolVersion": wire.PROTOCOL_VERSION}
    if messages:
        # All but the words stand for what clients before 1.0 want there.
        rest: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
        members["input"] = {**ids, "messages": messages, **rest}
    first = s.messages
    w.write("RUN_STARTED", members)
    kept = RunRecord(
        key, s.run.id, s.stamp, first, first, ids=[message["id"] for message in messages]
    )
    s.kept.append(kept)
    del s.kept[:-64]
    for one in s.later.take():
        announce(w, one.about)
        w.write(one.type, one.members, one.about)


def name_of(w: RunWriter, key: str) -> str:
    """Return what a run is called that no frontend of this dialect asked for."""
    return ids_of(f"{wire.OURS}-", w.session_id) + key


def start(w: RunWriter) -> None:
    """Have a run open."""
    if w.s.run is None:
        begin(w, None, [])


def tell_waiting(w: RunWriter) -> None:
    """Tell what waits for the next run in one of its own, where it is too much."""
    s = w.s
    if s.run is None and s.later.full and not s.later.frames[-1].type.endswith(_OPEN):
        start(w)
        close(w)
        s.pauses.paused = s.pauses.halted


# Ends.


def close(w: RunWriter) -> None:
    """End the run as the thread is: it waits for something, or it is at rest."""
    pauses = w.s.pauses
    pauses.shown = pauses.unanswered
    asked = [pauses.requests[name] for name in pauses.shown]
    calls = [one.call for one in asked if one.call is not None]
    interrupts = [one for one in asked if one.call is None]
    if interrupts and not w.run.modern:
        _show_asks(w, interrupts)
    if interrupts and (w.run.modern or not w.run.asks):
        shown = [_interrupt(w, one) for one in interrupts]
        finish(w, {"type": "interrupt", "interrupts": shown})
    elif calls and w.run.modern:
        finish(w, {"type": "success", "pendingToolCallIds": calls})
    else:
        # Without an outcome where something is left open: clients before 1.0 took a success for
        # the end of the calls.
        finish(w, None if asked else {"type": "success"})


def _interrupt(w: RunWriter, asked: ShownRequest) -> dict[str, Any]:
    interrupt = interrupt_of(asked.event)
    if w.run.modern and asked.event.thread_id in w.s.announced:
        interrupt["subagentRunId"] = asked.event.thread_id
    return interrupt


def _show_asks(w: RunWriter, interrupts: list[ShownRequest]) -> None:
    """Show requests as calls of a tool, which clients answer that know no interrupts."""
    for asked in interrupts:
        if asked.shown_in:
            continue
        asked.shown_in = w.run.key
        interrupt = interrupt_of(asked.event)
        given = {"interruptId": interrupt["id"], **interrupt["metadata"][wire.OURS]}
        given |= {name: interrupt[name] for name in ("message", "responseSchema")}
        show_call(w, ev.MAIN, wire.ASK_CALL + asked.event.request_id, wire.ASK, given)


def show_call(w: RunWriter, thread: str, call_id: str, name: str, arguments: Any) -> None:
    """Write a whole call that no backend has made."""
    line = at_work(w, thread)
    assert line is not None
    if line.last is None:
        line.last = w.next_message()
        w.write("TEXT_MESSAGE_START", {"messageId": line.last, "role": "assistant"}, thread)
        w.write("TEXT_MESSAGE_END", {"messageId": line.last}, thread)
    called = {"toolCallId": call_id}
    named = {**called, "toolCallName": name, "parentMessageId": line.last}
    w.write("TOOL_CALL_START", named, thread)
    text = format_json(arguments).decode()
    w.write("TOOL_CALL_ARGS", {**called, "delta": text}, thread)
    w.write("TOOL_CALL_END", called, thread)


def finish(
    w: RunWriter, outcome: dict[str, Any] | None, told: dict[str, Any] | None = None
) -> None:
    """End the run well; `told` is what the protocol has no outcome for."""
    run = w.run
    _close_lines(w)
    members: dict[str, Any] = {"threadId": w.thread_id, "runId": run.id}
    if run.result is not None and (outcome is None or outcome["type"] == "success"):
        members["result"] = run.result
    if outcome is not None:
        members["outcome"] = outcome
    w.write("RUN_FINISHED", {**members, **_used(run), **about(told or {})})
    _over(w, failed=False)


def fail(w: RunWriter, error: ev.ErrorInfo) -> None:
    """End the run with an error."""
    run = w.run
    _close_lines(w)
    message = error.message or error.code
    told: dict[str, Any] = {"message": message, "code": error.code}
    if not run.own:
        details = {"details": error.details} if error.details else {}
        put_custom(w, "turn_failed", {**told, **details})
        finish(w, None, {"outcome": "failed"})
        return
    more = about({"details": error.details} if error.details else {})
    w.write("RUN_ERROR", {**told, **_used(run), **more})
    _over(w, failed=True)


def _over(w: RunWriter, *, failed: bool) -> None:
    w.end_body()
    w.s.run = None
    kept = w.s.kept[-1]
    kept.last, kept.failed = w.s.messages, failed


def _used(run: OpenRun) -> dict[str, Any]:
    usage = [
        {**({"model": model} if model else {}), **counts}
        for model, counts in run.tokens.totals.items()
    ]
    return {"usage": usage} if usage else {}


def _close_lines(w: RunWriter) -> None:
    """End what is open: a run leaves nothing behind."""
    s = w.s
    for thread in list(s.lines):
        close_line(w, thread)
        if thread in s.finished:
            del s.lines[thread]
    for thread in reversed(s.announced):
        if w.run.modern:
            w.write("SUBAGENT_FINISHED", {"outcome": {"type": "suspended"}}, thread)
    s.announced.clear()
    s.finished.clear()


def close_line(w: RunWriter, thread: str) -> None:
    """End what is open of a thread."""
    line = w.s.lines[thread]
    end_thinking(w, thread)
    if line.text is not None:
        line.cut = line.text.id
        end_text(w, thread)
    if line.step is not None:
        w.write("STEP_FINISHED", {"stepName": line.step}, thread)
        line.step = None
    line.last = None


def close_main(w: RunWriter) -> None:
    """End what is open of the main thread."""
    if ev.MAIN in w.s.lines:
        close_line(w, ev.MAIN)


def end_text(w: RunWriter, thread: str, told: dict[str, Any] | None = None) -> None:
    """End the open text of a thread."""
    line = w.s.lines[thread]
    if line.text is not None:
        w.write("TEXT_MESSAGE_END", {"messageId": line.text.shown_as, **about(told or {})}, thread)
        line.text = None


def end_thinking(w: RunWriter, thread: str, told: dict[str, Any] | None = None) -> None:
    """End the open reasoning of a thread, message and span."""
    line = w.s.lines[thread]
    if line.thinking is not None:
        named = {"messageId": line.thinking.shown_as}
        w.write("REASONING_MESSAGE_END", {**named, **about(told or {})}, thread)
        w.write("REASONING_END", named, thread)
        line.thinking = None


# Turns.


def waits(w: RunWriter) -> None:
    """End the open run where the agent waits for a person, or tell that in one of its own."""
    inputs, pauses = w.s.inputs, w.s.pauses
    asked = pauses.unanswered
    if not pauses.paused or inputs.under_way or inputs.batch is not None or not asked:
        return
    if w.s.run is None:
        if asked == pauses.shown:
            return
        start(w)
        pauses.paused = True
    close(w)


# Requests.


def requested(w: RunWriter, event: ev.InteractionRequested) -> None:
    """Keep a request for the end of the run; one for a result without a call gets a call."""
    asked = w.s.pauses.requested(event)
    if event.kind == "tool_result":
        asked.call = event.call_id or event.request_id
        if event.call_id is None:
            details = event.details or {}
            name = str(details.get("tool") or "tool_result")
            given = details.get("input", {"prompt": event.prompt})
            if at_work(w, event.thread_id) is not None:
                show_call(w, event.thread_id, asked.call, name, given)


def resolved(w: RunWriter, event: ev.InteractionResolved) -> None:
    """Tell that a request is over; where it was shown as a call, the call has a result."""
    asked = w.s.pauses.resolved(event)
    if asked is None:
        return
    told: dict[str, Any] = {"outcome": event.outcome}
    if event.reason is not None:
        told["reason"] = event.reason
    put_custom(w, "resolved", {"interruptId": event.request_id, **told})
    call_id = wire.ASK_CALL + event.request_id
    if not asked.shown_in:
        return
    if call_id in w.s.given:
        w.s.given.remove(call_id)
        return
    name = w.next_message()
    members = {"messageId": name, "toolCallId": call_id, "role": "tool"}
    put(w, "TOOL_CALL_RESULT", {**members, "content": format_json(told).decode()})
