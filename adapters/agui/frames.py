"""Writes events: each is a frame whose cursor is its time, and belongs to the open run."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.agui import wire
from adapters.agui.state import OpenRun, RunState, Subagent, ThreadOutput
from adapters.model import events as ev
from adapters.model.base import Frame
from adapters.serving.encoder import EncoderWriter
from adapters.wire.framing import on_one_line
from adapters.wire.jsonvalue import format_json


@dataclasses.dataclass(slots=True)
class RunWriter(EncoderWriter[RunState]):
    """Writes the events of runs."""

    @property
    def thread_id(self) -> str:
        """Return the thread's name: the frontend's own where it chose one, else the public id."""
        return self.s.thread or self.session_id

    @property
    def run(self) -> OpenRun:
        """Return the open run."""
        assert self.s.run is not None
        return self.s.run

    def next_message(self) -> str:
        """Return the id of one more message."""
        self.s.messages += 1
        return f"{self.ids}{self.s.messages}"

    def write(self, type_: str, members: dict[str, Any], thread: str = ev.MAIN) -> None:
        """Write an event of the open run."""
        if thread != ev.MAIN and self.run.modern:
            members = {**members, "subagentRunId": thread}
        self.frame(type_, format_json(members)[1:])

    def frame(self, type_: str, rest: bytes) -> None:
        """Write an event: `rest` is its members and the closing brace."""
        s = self.s
        s.stamp = stamp = max(s.stamp + 1, self.at)
        comma = b"" if rest == b"}" else b","
        data = b'id: %d\ndata: {"type":"%b","timestamp":%d%b%b\n\n'
        data %= (stamp, type_.encode(), stamp, comma, on_one_line(rest))
        self.out.append(Frame(stamp, data, None, str(s.runs)))

    def end_body(self) -> None:
        """Let the last frame end the body of its run."""
        self.out[-1] = self.out[-1]._replace(end="turn")


def put(w: RunWriter, type_: str, members: dict[str, Any], thread: str = ev.MAIN) -> None:
    """Write an event, or keep it for the next run."""
    if w.s.run is not None:
        announce(w, thread)
        w.write(type_, members, thread)
    else:
        w.s.later.put(type_, members, thread)


def put_custom(w: RunWriter, name: str, value: Any) -> None:
    """Tell what the protocol has no event for."""
    put(w, "CUSTOM", {"name": f"{wire.OURS}.{name}", "value": value}, ev.MAIN)


def put_message(w: RunWriter, thread: str, role: str, text: str, more: dict[str, Any]) -> str:
    """Write a whole message, or keep it for the next run; return its id."""
    name = w.next_message()
    start = {"messageId": name, "role": role}
    child = w.s.children.get(thread)
    if child is not None and child.name:
        start["name"] = child.name
    put(w, "TEXT_MESSAGE_START", start, thread)
    if text:
        put(w, "TEXT_MESSAGE_CONTENT", {"messageId": name, "delta": text}, thread)
    put(w, "TEXT_MESSAGE_END", {"messageId": name, **about(more)}, thread)
    return name


def about(members: dict[str, Any]) -> dict[str, Any]:
    """Return what the protocol has no member for, as the `metadata` of an event."""
    return {"metadata": {wire.OURS: members}} if members else {}


# Threads below the main one.


def at_work(w: RunWriter, thread: str) -> ThreadOutput | None:
    """Return what is open of a thread, or None where nothing of it can be shown now."""
    if w.s.run is None:
        return None
    announce(w, thread)
    return w.s.lines.setdefault(thread, ThreadOutput())


def announce(w: RunWriter, thread: str) -> None:
    """Say that a child is at work, unless the run has said so, or that it is done."""
    s = w.s
    if thread == ev.MAIN or thread in s.announced or thread in s.finished:
        return
    # Its parents first. A child that goes on may have been called by one of its own.
    line = [thread]
    child = s.children.get(thread)
    while child is not None and child.parent in s.children:
        parent = child.parent
        if parent in line or parent in s.announced or parent in s.finished:
            break
        line.append(parent)
        child = s.children[parent]
    for one in reversed(line):
        _announce_one(w, one)


def _announce_one(w: RunWriter, thread: str) -> None:
    child = w.s.children.get(thread) or Subagent(None, ev.MAIN)
    members: dict[str, Any] = {"name": child.name or thread}
    if child.parent in w.s.announced:
        members["parentSubagentRunId"] = child.parent
    if child.call is not None:
        members["parentToolCallId"] = child.call
    w.s.announced.append(thread)
    if w.run.modern:
        w.write("SUBAGENT_STARTED", members, thread)
    else:
        value = {"name": f"{wire.OURS}.child", "value": {"id": thread, **members}}
        w.write("CUSTOM", value)
