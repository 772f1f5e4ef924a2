"""Streams: a stream is what one answer has, from a message or an answer of a page, or the agent's
own start, to the end of the turn or to its next pause.

A message of the agent may have several: what follows an answer goes on with the message that asked,
under its id. What happens between two streams is told at the beginning of the next one. Pages send
again by themselves where the last step has calls that are all done, so such a message ends with an
empty step of its own, which shows by the metadata of `finish`.
"""

from __future__ import annotations

from typing import Any

from adapters.aisdk import wire
from adapters.aisdk.asked import is_approval, show
from adapters.aisdk.state import Kept
from adapters.aisdk.writer import Writer, open_step, put_data
from adapters.model import events as ev

STREAMS_KEPT = 64
"""Streams of which is known where they are."""

WAITING_MOST = 64
WAITING_BYTES = 256 * 1024
"""Chunks that wait for the next stream, and what they weigh; more of them get one of their own: all
of them are written in one step."""

_OUTCOMES: dict[str, str] = {
    "failed": "The turn failed; the backend gave no reason.",
    "refused": "The model refused.",
    "exhausted": "The retries are exhausted.",
    "over_budget": "The budget is used up.",
}
"""Outcome of a turn without an error of its own -> words."""


def begin(w: Writer, *, own: bool, anew: bool, ids: list[str] | None = None) -> None:
    """Begin a stream; with `anew` it writes a new message."""
    s = w.s
    s.streams += 1
    s.stream = key = str(s.streams)
    s.paused = False
    metadata: dict[str, Any] = {}
    if anew or s.message is None:
        s.messages += 1
        s.message, s.begin = f"{w.ids}{s.messages}", s.cursor
        s.asks.clear()
        s.gone.clear()
        s.tools, s.steps = False, 0
        metadata = {"messageMetadata": {wire.OURS: {"session": w.session_id}}}
    s.step, s.digest = False, None
    s.usage, s.told = {}, None
    cursor = w.write("start", {"messageId": s.message, **metadata})
    s.kept.append(Kept(key, s.message, cursor, own, s.steps, ids=ids or []))
    del s.kept[:-STREAMS_KEPT]
    for call in s.calls.values():
        call.message = call.message or s.message
    waiting, s.waiting, s.waits = s.waiting, [], 0
    for one in waiting:
        if one.message in ("", s.message):
            if one.type in ("text-start", "tool-input-start"):
                open_step(w)
                s.tools = s.tools or one.type == "tool-input-start"
            w.write(one.type, one.members)
        else:
            put_result(w, one.type, one.members)


def put_result(w: Writer, type_: str, members: dict[str, Any]) -> None:
    """Tell the result of a call of an earlier message: none of another may stand in this one."""
    given = {name: members[name] for name in ("output", "errorText") if name in members}
    state = type_.removeprefix("tool-")
    put_data(w, "result", {"toolCallId": members["toolCallId"], "state": state, **given})


def start(w: Writer, *, anew: bool = False) -> None:
    """Have a stream open."""
    if w.s.stream is None:
        begin(w, own=False, anew=anew)


def join(w: Writer) -> int:
    """Let a page read on in the open stream; return the cursor at which it begins."""
    end_step(w)
    return w.s.cursor


def tell_waiting(w: Writer) -> None:
    """Tell what waits for the next stream in one of its own, where it is too much."""
    s = w.s
    full = len(s.waiting) >= WAITING_MOST or s.waits > WAITING_BYTES
    if s.stream is None and full and s.waiting[-1].type not in ("text-start", "text-delta"):
        begin(w, own=False, anew=False)
        close(w)
        s.paused = s.halted


# Ends.


def close(w: Writer, outcome: str = "completed") -> None:
    """End the stream as the thread is: it waits for something, or it is at rest."""
    s = w.s
    asked = unanswered(w)
    _show(w, asked)
    _end_inputs(w)
    end_step(w)
    if s.tools and not asked:
        open_step(w)
        end_step(w)
    if outcome == "interrupted":
        w.write("abort")
    metadata: dict[str, Any] = {wire.OURS: {"outcome": "asked" if asked else outcome}}
    if s.usage:
        metadata["usage"] = dict(s.usage)
    if s.model:
        metadata["model"] = s.model
    members: dict[str, Any] = {"messageMetadata": metadata}
    if not w.old:
        rest = "stop" if outcome == "completed" else "other"
        members["finishReason"] = "tool-calls" if asked else rest
    w.write("finish", members)
    _over(w)


def fail(w: Writer, error: ev.ErrorInfo) -> None:
    """End the stream with an error; pages read nothing behind it."""
    _end_inputs(w)
    end_step(w)
    put_data(w, "failure", error.model_dump(exclude_none=True))
    w.write("error", {"errorText": error.message or error.code})
    _over(w)


def _over(w: Writer) -> None:
    s = w.s
    last = w.out.pop()
    s.cursor = last.cursor
    # The last chunk and the end are one frame: who reads on is told neither.
    data = last.data.partition(b"\n")[2]
    s.kept[-1].tail = w.frame(data + wire.DONE, end=True)
    s.stream, s.over_at = None, w.at


def _end_inputs(w: Writer) -> None:
    """End calls that were being written and never made."""
    calls = w.s.calls
    for call_id in [name for name, call in calls.items() if not call.called]:
        del calls[call_id]
        members = {"toolCallId": call_id, "errorText": "The call was not made."}
        w.write("tool-output-error", members)


def end_step(w: Writer) -> None:
    """End the open step."""
    end_thinking(w)
    end_text(w)
    if w.s.step:
        w.write("finish-step")
        w.s.step = False


def end_text(w: Writer) -> None:
    """End the open text."""
    s = w.s
    if s.text is not None:
        w.write("text-end", {"id": s.text.part})
        s.cut, s.text = s.text.id, None


def end_thinking(w: Writer, *, withheld: bool = False) -> None:
    """End the open reasoning."""
    s = w.s
    if s.thinking is not None:
        more = {"providerMetadata": {wire.OURS: {"withheld": True}}} if withheld else {}
        w.write("reasoning-end", {"id": s.thinking.part, **more})
        s.thinking = None


# Turns.


def unanswered(w: Writer) -> list[str]:
    """Return the requests that nobody answers just now."""
    return [name for name, asked in w.s.requests.items() if not asked.claimed]


def waits(w: Writer) -> None:
    """End the open stream where the agent waits for a person who reads here."""
    s = w.s
    under_way = any(not one.queued for one in s.awaited.values())
    declined = any(one.declines for one in s.awaited.values())
    asked = [] if declined else unanswered(w)
    if not s.paused or under_way or s.batch is not None or not asked:
        return
    if all(s.requests[name].stream for name in asked) and s.stream is None:
        return
    start(w)
    s.paused = True
    if all(_elsewhere(s.requests[name].event) for name in asked):
        # What comes of it is not said here: the page reads on.
        _show(w, asked)
        return
    close(w)


def _show(w: Writer, names: list[str]) -> None:
    """Tell requests. Pages send answers by themselves when all calls of the last step are done, so
    calls that ask have a step of their own, unless an approval is asked about one of this step."""
    untold = [asked for name in names if not (asked := w.s.requests[name]).stream]
    if untold and w.s.tools and not any(is_approval(w, asked.event) for asked in untold):
        end_step(w)
    for asked in untold:
        show(w, asked)


def _elsewhere(event: ev.InteractionRequested) -> bool:
    return event.kind == "authorization" or not event.answerable


def resume(w: Writer) -> None:
    """Record that the main thread works."""
    w.s.halted = w.s.paused = False
    start(w)


def turn_paused(w: Writer, event: ev.TurnPaused) -> None:
    """Record that the main thread waits."""
    s = w.s
    s.halted = s.paused = event.on == "input"
    if s.halted:
        waits(w)
    else:
        # It waits for nobody: what its children do is shown in a stream.
        start(w)


def turn_ended(w: Writer, event: ev.TurnEnded) -> None:
    """End the stream with the turn."""
    s = w.s
    s.turn = s.halted = s.paused = False
    start(w)
    if any(not one.behind for one in s.awaited.values()):
        # A turn of the agent's own came before that of the message: the stream goes on to that.
        end_step(w)
        put_data(w, "turn", {"outcome": event.outcome})
    elif event.outcome in ("completed", "interrupted"):
        close(w, event.outcome)
    else:
        words = _OUTCOMES[event.outcome]
        fail(w, event.error or ev.ErrorInfo(code=event.outcome, message=words))
