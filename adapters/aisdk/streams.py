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
from adapters.aisdk.frames import ChunkWriter, open_step, put_data
from adapters.aisdk.interactions import is_approval, show
from adapters.aisdk.state import ChatStream
from adapters.model import events as ev
from adapters.serving.tokens import TokenTotals


def begin(w: ChunkWriter, *, own: bool, anew: bool, ids: list[str] | None = None) -> None:
    """Begin a stream; with `anew` it writes a new message."""
    s = w.s
    s.streams += 1
    s.stream = key = str(s.streams)
    s.pauses.paused = False
    metadata: dict[str, Any] = {}
    if anew or s.message is None:
        s.messages += 1
        s.message, s.begin = f"{w.ids}{s.messages}", s.cursor
        s.asks.clear()
        s.gone.clear()
        s.tools, s.steps = False, 0
        metadata = {"messageMetadata": {wire.OURS: {"session": w.session_id}}}
    s.step, s.digest = False, None
    s.tokens = TokenTotals()
    cursor = w.write("start", {"messageId": s.message, **metadata})
    s.kept.append(ChatStream(key, s.message, cursor, own, s.steps, ids=ids or []))
    del s.kept[:-64]
    for call in s.calls.values():
        call.message = call.message or s.message
    for one in s.later.take():
        if one.about in ("", s.message):
            if one.type in ("text-start", "tool-input-start"):
                open_step(w)
                s.tools = s.tools or one.type == "tool-input-start"
            w.write(one.type, one.members)
        else:
            put_result(w, one.type, one.members)


def put_result(w: ChunkWriter, type_: str, members: dict[str, Any]) -> None:
    """Tell the result of a call of an earlier message: none of another may stand in this one."""
    given = {name: members[name] for name in ("output", "errorText") if name in members}
    state = type_.removeprefix("tool-")
    put_data(w, "result", {"toolCallId": members["toolCallId"], "state": state, **given})


def start(w: ChunkWriter, *, anew: bool = False) -> None:
    """Have a stream open."""
    if w.s.stream is None:
        begin(w, own=False, anew=anew)


def join(w: ChunkWriter) -> int:
    """Let a page read on in the open stream; return the cursor at which it begins."""
    end_step(w)
    return w.s.cursor


def tell_waiting(w: ChunkWriter) -> None:
    """Tell what waits for the next stream in one of its own, where it is too much."""
    s = w.s
    if s.stream is not None or not s.later.full:
        return
    if s.later.frames[-1].type not in ("text-start", "text-delta"):
        begin(w, own=False, anew=False)
        close(w)
        s.pauses.paused = s.pauses.halted


# Ends.


def close(w: ChunkWriter, outcome: str = "completed") -> None:
    """End the stream as the thread is: it waits for something, or it is at rest."""
    s = w.s
    asked = s.pauses.unanswered
    _show(w, asked)
    _end_inputs(w)
    end_step(w)
    if s.tools and not asked:
        open_step(w)
        end_step(w)
    if outcome == "interrupted":
        w.write("abort")
    metadata: dict[str, Any] = {wire.OURS: {"outcome": "asked" if asked else outcome}}
    if s.tokens.totals:
        metadata["usage"] = dict(s.tokens.totals[""])
    if s.model:
        metadata["model"] = s.model
    members: dict[str, Any] = {"messageMetadata": metadata}
    if not w.old:
        rest = "stop" if outcome == "completed" else "other"
        members["finishReason"] = "tool-calls" if asked else rest
    w.write("finish", members)
    _over(w)


def fail(w: ChunkWriter, error: ev.ErrorInfo) -> None:
    """End the stream with an error; pages read nothing behind it."""
    _end_inputs(w)
    end_step(w)
    put_data(w, "failure", error.model_dump(exclude_none=True))
    w.write("error", {"errorText": error.message or error.code})
    _over(w)


def _over(w: ChunkWriter) -> None:
    s = w.s
    last = w.out.pop()
    s.cursor = last.cursor
    # The last chunk and the end are one frame: who reads on is told neither.
    data = last.data.partition(b"\n")[2]
    s.kept[-1].tail = w.frame(data + wire.DONE, end=True)
    s.stream, s.over_at = None, w.at


def _end_inputs(w: ChunkWriter) -> None:
    """End calls that were being written and never made."""
    calls = w.s.calls
    for call_id in [name for name, call in calls.items() if not call.called]:
        del calls[call_id]
        members = {"toolCallId": call_id, "errorText": "The call was not made."}
        w.write("tool-output-error", members)


def end_step(w: ChunkWriter) -> None:
    """End the open step."""
    end_thinking(w)
    end_text(w)
    if w.s.step:
        w.write("finish-step")
        w.s.step = False


def end_text(w: ChunkWriter) -> None:
    """End the open text."""
    s = w.s
    if s.text is not None:
        w.write("text-end", {"id": s.text.shown_as})
        s.cut, s.text = s.text.id, None


def end_thinking(w: ChunkWriter, *, withheld: bool = False) -> None:
    """End the open reasoning."""
    s = w.s
    if s.thinking is not None:
        more = {"providerMetadata": {wire.OURS: {"withheld": True}}} if withheld else {}
        w.write("reasoning-end", {"id": s.thinking.shown_as, **more})
        s.thinking = None


# Turns.


def waits(w: ChunkWriter) -> None:
    """End the open stream where the agent waits for a person who reads here."""
    s = w.s
    inputs, requests = s.inputs, s.pauses.requests
    declined = any(one.declines for one in inputs.awaited.values())
    asked = [] if declined else s.pauses.unanswered
    if not s.pauses.paused or inputs.under_way or inputs.batch is not None or not asked:
        return
    if all(requests[name].shown_in for name in asked) and s.stream is None:
        return
    start(w)
    s.pauses.paused = True
    if all(_elsewhere(requests[name].event) for name in asked):
        # What comes of it is not said here: the page reads on.
        _show(w, asked)
        return
    close(w)


def _show(w: ChunkWriter, names: list[str]) -> None:
    """Tell requests. Pages send answers by themselves when all calls of the last step are done, so
    calls that ask have a step of their own, unless an approval is asked about one of this step."""
    untold = [asked for name in names if not (asked := w.s.pauses.requests[name]).shown_in]
    if untold and w.s.tools and not any(is_approval(w, asked.event) for asked in untold):
        end_step(w)
    for asked in untold:
        show(w, asked)


def _elsewhere(event: ev.InteractionRequested) -> bool:
    return event.kind == "authorization" or not event.answerable
