"""What a face shows of a log, its own dialect's client codec reads back.

Conversations are generated, made lawful by the normalizer, shown by a face, and read by the client
codec of the same dialect. What no pair may drop (design section 5) is the same in both logs: the
words of the agent, tool names, inputs, outputs and error state, what was asked, and the outcome of
turns. `OUTCOMES` and `_said` hold what MAPPING.md declares of the rest.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.agui import wire
from adapters.model import events as ev
from adapters.model.normalizer import Normalizer
from adapters.offline.translate import TranslateOptions, make_sink, make_source
from tests.wire import driven, forms

FACES = [(name, form or "all") for name, form, _ in forms() if name in driven()]

OUTCOMES: dict[str, dict[str, str]] = {
    "herm": {"interrupted": "completed", "refused": "failed", "over_budget": "failed"},
    "engine": {"interrupted": "failed", "refused": "failed", "over_budget": "failed"},
    "eve": {"refused": "failed"},
    # Runs that no frontend of its own asked for end well: `metadata` and events say the rest.
    "agui": dict.fromkeys(("interrupted", "failed", "refused", "over_budget"), "completed"),
}
"""Dialect -> what an outcome is read as, where MAPPING.md declares it approximated."""

LIMIT = "SESSION_TOKEN_LIMIT_REACHED"
"""What an eve says of a used-up budget (eve page, section 9.1)."""

words = st.text(st.sampled_from('aß☃🧊 \n"{}\\'), min_size=1, max_size=12)
values = st.dictionaries(st.sampled_from(["a", "b"]), words | st.integers(), max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> list[ev.Event]:
    """Draw the raw events of some turns of the main thread, in a lawful order."""
    out: list[ev.Event] = []
    for number in range(draw(st.integers(1, 3))):
        at: dict[str, Any] = {"thread_id": ev.MAIN, "turn_id": f"turn_{number}"}
        out.append(ev.TurnStarted(cause="message", **at))
        for step in range(draw(st.integers(0, 3))):
            out.append(ev.StepStarted(step_index=step, model="m", **at))
            place = f"{number}-{step}"
            if draw(st.booleans()):
                out += _block(draw, place, "reasoning", at)
            if draw(st.booleans()):
                out += _block(draw, place, "text", at)
            called = draw(st.sampled_from(["", "run", "ask"]))
            if called:
                out += _call(draw, place, called == "ask", at)
            reason = "tool-calls" if called else "stop"
            out.append(ev.StepEnded(step_index=step, finish_reason=reason, **at))
        outcome = draw(st.sampled_from(["completed", "failed", "interrupted", "refused"]))
        outcome = draw(st.sampled_from([outcome, outcome, "over_budget"]))
        error = None
        if outcome in ("failed", "over_budget"):
            code = LIMIT if outcome == "over_budget" else "PUMP_LOST"
            error = ev.ErrorInfo(code=code, message=draw(words))
        out.append(ev.TurnEnded(outcome=outcome, error=error, **at))  # type: ignore[arg-type]
    return out


def _block(draw: st.DrawFn, place: str, kind: str, at: dict[str, Any]) -> list[ev.Event]:
    pieces = draw(st.lists(words, min_size=1, max_size=3))
    fields = {"block_id": f"{kind}-{place}", "message_id": f"m-{place}", **at}
    delta, whole = (
        (ev.TextDelta, ev.TextCompleted)
        if kind == "text"
        else (ev.ReasoningDelta, ev.ReasoningCompleted)
    )
    found: list[ev.Event] = [delta(text=piece, **fields) for piece in pieces]
    return [*found, whole(text="".join(pieces), **fields)]


def _call(draw: st.DrawFn, place: str, asks: bool, at: dict[str, Any]) -> list[ev.Event]:
    call_id, given_ = f"call-{place}", draw(values)
    call = ev.ToolCalled(
        call_id=call_id,
        name=draw(st.sampled_from(["run", "mcp__a__b", "get.weather"])),
        input=given_,
        permission="ask" if asks else "allow",
        **at,
    )
    out: list[ev.Event] = [call]
    if asks:
        request_id = f"ask-{place}"
        out += [
            ev.InteractionRequested(
                request_id=request_id,
                kind="approval",
                prompt=draw(words),
                call_id=call_id,
                details={"tool": call.name, "input": given_},
                **at,
            ),
            ev.TurnPaused(on="input", **at),
            ev.InteractionResolved(request_id=request_id, outcome="approved", scope="once", **at),
            ev.TurnResumed(**at),
        ]
    failed = draw(st.booleans())
    output = draw(words)
    error = ev.ErrorInfo(code="ACTION_RESULT_FAILED", message=output) if failed else None
    returned = ev.ToolReturned(
        call_id=call_id,
        output=output,
        is_error=failed,
        error=error,
        status="failed" if failed else "completed",
        **at,
    )
    return [*out, returned]


def log_of(raw: list[ev.Event]) -> list[ev.Entry]:
    """Return raw events as a log."""
    events = Normalizer().feed([ev.SessionStarted(thread_id=ev.MAIN), *raw])
    return [ev.Entry(seq, seq, "s", event) for seq, event in enumerate(events, 1)]


def _said(entry: ev.Entry, dialect: str, calls: dict[str, str]) -> tuple[Any, ...] | None:
    """Return what no pair may drop of an event, as it is after its way through a dialect; `calls`
    are the ids of calls as they are compared."""
    match entry.event:
        case ev.ReasoningCompleted() as event if dialect == "managed-agents":
            # Its wire has no text of it (page, section 7.2).
            return event.TYPE, event.status
        case ev.TextCompleted() | ev.ReasoningCompleted() as event:
            return event.TYPE, event.text, event.status
        case ev.ToolCalled() as event:
            return event.TYPE, calls[event.call_id], event.name, event.input
        case ev.ToolReturned() as event:
            return event.TYPE, calls[event.call_id], event.output, event.is_error
        case ev.InteractionRequested() as event:
            # These name the request of a call by the call (Herm page, section 4.5).
            by_call = dialect in ("herm", "managed-agents")
            call = calls.get(event.call_id or "")
            return event.TYPE, call if by_call else event.request_id, event.kind, call
        case ev.InteractionResolved() as event:
            # No frame of Herm and of an Engine tells it (Herm page 4.6, Engine page 8.9). One of
            # Managed Agents tells an answer that was an input, which this is not.
            return event.TYPE, event.outcome if dialect == "eve" else "unknown"
        case ev.TurnEnded() as event:
            return event.TYPE, event.outcome
    return None


def told(log: list[ev.Entry], dialect: str) -> list[tuple[Any, ...]]:
    """Return what no pair may drop of a log, in order."""
    called = [entry.event.call_id for entry in log if isinstance(entry.event, ev.ToolCalled)]
    # A service of Managed Agents gives calls ids of its own.
    own = dialect == "managed-agents"
    calls = {name: f"call {n}" if own else name for n, name in enumerate(called)}
    return [
        said
        for entry in log
        if not _asks_as_a_call(entry) and (said := _said(entry, dialect, calls)) is not None
    ]


def _asks_as_a_call(entry: ev.Entry) -> bool:
    """Whether an event is of the call by which an AG-UI frontend that knows no interrupts is asked:
    it stands beside the interrupt."""
    event = entry.event
    if not isinstance(event, ev.ToolCalled | ev.ToolReturned):
        return False
    return event.call_id.startswith(wire.ASK_CALL)


@pytest.mark.parametrize(("dialect", "form"), FACES)
@given(raw=conversations())
@settings(max_examples=150, deadline=None)
def test_what_a_face_says_its_own_client_reads(
    dialect: str, form: str, raw: list[ev.Event]
) -> None:
    log = log_of(raw)
    sink = make_sink(dialect, TranslateOptions(form=form))
    source = make_source(dialect, TranslateOptions())
    body = b"".join(map(sink, log))
    read = [*source.feed(body), *source.close()]
    wanted, got = told(log, dialect), told(read, dialect)
    kinds = OUTCOMES.get(dialect, {})
    assert got == [
        (said[0], kinds.get(said[1], said[1])) if said[0] == "turn.ended" else said
        for said in wanted
    ]
