"""Turns and model calls: where they begin and end, also where no hook says so (section 2.1).

A turn begins with `pre_llm_call` and ends with `on_session_end`, which an error of the model leaves
out. So a turn also ends when the next one begins, and after a silence.
"""

from __future__ import annotations

from typing import Any

from adapters.driving.part import soonest
from adapters.hermes_agent.client.posts import decision
from adapters.hermes_agent.client.state import (
    MOST_PAST,
    HermesState,
    HermesThread,
    Hook,
    ModelResult,
)
from adapters.model import events as ev
from adapters.wire.errors import SESSION_LOST
from adapters.wire.jsonvalue import int_of, text_of

FAILED_MS = 5_000
"""How long a turn goes on after a model call that Hermes does not repeat: its end comes at once,
where one comes. Ours."""

RETRIED_MS = 300_000
"""How long it goes on after a model call that Hermes repeats: it may wait for minutes. Ours."""

SILENT_MS = 3 * 3_600_000
"""How long a turn goes on without a hook while a tool runs, which may take hours: a Hermes that was
killed says nothing more. Ours; a setting may say otherwise."""

THINKING_MS = 1_800_000
"""The same while the model works. Ours."""

BETWEEN_MS = 600_000
"""The same while nothing is open: Hermes ends some turns by itself without a hook, and may compact
what was said before it goes on. Ours."""

_SILENT = "No hook came for so long that the turn counts as over; Hermes may have been stopped."

OVER = "The turn of this call is over."
"""What a call that still waits is told at the end of its turn."""


# Begin.


def is_late(thread: HermesThread, seen: Hook) -> bool:
    """Say whether a hook is of a turn that is over."""
    return seen.turn is not None and seen.turn != thread.turn and seen.turn in thread.past


def work(s: HermesState, thread: HermesThread, seen: Hook) -> list[ev.Event]:
    """Let a thread work on the turn that a hook is of, also where its begin did not come."""
    turn = seen.turn
    if thread.turn is not None and turn in (None, thread.turn):
        thread.fails_at = None
        return []
    return begin(s, thread, seen, partial=True)


def begin(
    s: HermesState, thread: HermesThread, seen: Hook, *, partial: bool = False, **about: Any
) -> list[ev.Event]:
    """Begin a turn; the one before it has died without a word."""
    out = died(s, thread, seen.native)
    s.unnamed += 1
    thread.turn = seen.turn or f"turn-{s.unnamed}"
    thread.step, thread.steps, thread.request, thread.streamed = None, 0, None, None
    thread.last = None
    if thread.turn != thread.before:
        thread.told, thread.over, thread.way, thread.said = [], [], None, ""
    thread.error = thread.fails_at = None
    thread.calls.clear()
    return [
        *out,
        ev.TurnStarted(
            **thread.of(seen.native),
            cause="unknown" if partial else "message",
            partial=partial,
            synthetic=partial,
            **about,
        ),
    ]


# Model calls.


def step(
    s: HermesState, thread: HermesThread, seen: Hook, *, synthetic: bool = False
) -> list[ev.Event]:
    """Begin a model call, where it is not open."""
    out = work(s, thread, seen)
    request = text_of(seen.args.get("api_request_id")) or "request"
    if thread.request == request and thread.step is not None:
        return out
    if request in thread.told:
        return out
    out += tell_last(thread)
    out += end_step(thread, seen.native)
    thread.step, thread.steps = thread.steps, thread.steps + 1
    thread.request = request
    return [
        *out,
        ev.StepStarted(
            **thread.of(seen.native),
            step_index=thread.step,
            model=seen.text("model"),
            synthetic=synthetic,
            extra=None if synthetic else seen.rest("model", "user_message"),
        ),
    ]


def end_step(thread: HermesThread, native: ev.NativeRef | None, **said: Any) -> list[ev.Event]:
    """End the model call that is open."""
    index, thread.step = thread.step, None
    thread.request = None
    if index is None:
        return []
    return [
        ev.StepEnded(**thread.of(native), step_index=index, synthetic=not said, **said),
    ]


def usage_of(value: Any) -> ev.Usage | None:
    """Return the tokens of a model call: `input_tokens` are those that were not cached, where
    `prompt_tokens` has all."""
    if not isinstance(value, dict):
        return None
    count = {name: int_of(value.get(name)) for name in _TOKENS}
    whole = count["prompt_tokens"]
    if whole is None and count["input_tokens"] is not None:
        whole = count["input_tokens"] + sum(count[name] or 0 for name in _CACHED)
    rest = {name: more for name, more in value.items() if name not in _TOKENS}
    return ev.Usage(
        input_tokens=whole,
        output_tokens=count["output_tokens"],
        cache_read_tokens=count["cache_read_tokens"],
        cache_write_tokens=count["cache_write_tokens"],
        reasoning_tokens=count["reasoning_tokens"],
        extra=rest or None,
    )


_CACHED = ("cache_read_tokens", "cache_write_tokens")
_TOKENS = (*_CACHED, "input_tokens", "output_tokens", "reasoning_tokens", "prompt_tokens")


# End.


def end(
    s: HermesState,
    thread: HermesThread,
    native: ev.NativeRef | None,
    outcome: Any,
    error: ev.ErrorInfo | None = None,
    **about: Any,
) -> list[ev.Event]:
    """End the turn; what it leaves open is left to the normalizer."""
    if thread.turn is None:
        return []
    out = tell_last(thread)
    for name, ask in list(s.asks.open.items()):
        if ask.thread_id != thread.thread_id:
            continue
        del s.asks.open[name]
        if ask.key:
            s.decide(ask.key, OVER)
            s.calls.append(decision(ask.key, OVER))
    out.append(ev.TurnEnded(**thread.of(native), outcome=outcome, error=error, **about))
    thread.before, thread.turn = thread.turn, None
    thread.step, thread.request, thread.streamed = None, None, None
    thread.paused = False
    thread.error = thread.fails_at = None
    thread.calls.clear()
    return out


def died(
    s: HermesState, thread: HermesThread, native: ev.NativeRef | None = None
) -> list[ev.Event]:
    """End a turn that no hook has ended: with the error of its last model call, where that
    failed."""
    if thread.turn is None:
        return []
    turn = thread.turn
    outcome = "interrupted" if thread.error is None else "failed"
    out = end(s, thread, native, outcome, thread.error, synthetic=True)
    put_past(thread, turn)
    return out


def put_past(thread: HermesThread, turn: str) -> None:
    """Remember a turn that is over."""
    thread.past = [*(name for name in thread.past if name != turn), turn][-MOST_PAST:]


def tell_last(thread: HermesThread, text: str | None = None) -> list[ev.Event]:
    """Tell the end of a model call that waits, and its text, which is `text` where the whole turn's
    is another one."""
    last, thread.last = thread.last, None
    if last is None:
        return []
    words = "" if last.told else text or last.text
    out = [whole_text(thread, last, words)] if words else []
    return out + end_step(
        thread, last.native, finish_reason=last.finish, usage=last.usage, extra=last.extra
    )


def whole_text(thread: HermesThread, block: ModelResult, text: str) -> ev.Event:
    """Return the whole text of a block."""
    thread.said = text
    return ev.TextCompleted(
        **thread.of(block.native),
        block_id=block.block_id,
        message_id=block.block_id,
        text=text,
        finish_reason=block.finish,
    )


# Time.


def due(s: HermesState, silent: int) -> int | None:
    """Return when a turn ends that has gone silent."""
    return soonest(*(_due(s, thread, silent) for thread in s.threads.values()))


def _due(s: HermesState, thread: HermesThread, silent: int) -> int | None:
    if thread.turn is None:
        return None
    if thread.fails_at is not None:
        return thread.fails_at
    if any(ask.key and ask.thread_id == thread.thread_id for ask in s.asks.open.values()):
        # The gate waits, which has an end of its own.
        return None
    if thread.calls:
        return thread.heard + silent
    return thread.heard + min(silent, BETWEEN_MS if thread.step is None else THINKING_MS)


def tick(s: HermesState, silent: int, now: int) -> list[ev.Event]:
    """End the turns that have gone silent."""
    out: list[ev.Event] = []
    for thread in s.threads.values():
        at = _due(s, thread, silent)
        if at is None or now < at:
            continue
        if thread.error is not None:
            out += died(s, thread)
            continue
        lost = ev.ErrorInfo(code=str(SESSION_LOST), message=_SILENT)
        out += end(s, thread, None, "failed", lost, synthetic=True)
    return out
