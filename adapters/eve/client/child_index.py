"""The threads of a session: which are open, over, or to be read, and their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from adapters.eve.client.state import EveClientState, ThreadState
from adapters.model import events as ev
from adapters.model.base import Call

NAMES_MOST = 8
"""Names that a child may have: those of its call and its task, and of those that follow when it
goes on. The end of one that is older is not known as its own."""


@dataclasses.dataclass(slots=True)
class ChildIndex:
    """Indexes of threads: no record makes anyone look through all of them."""

    state: EveClientState
    # The children that are not over, by their parents, and how many they are.
    children: dict[str | None, dict[str, None]] = dataclasses.field(
        default_factory=dict, init=False
    )
    open: int = dataclasses.field(default=0, init=False)
    # The children whose streams can be read, and those that are over.
    readable: dict[str, None] = dataclasses.field(default_factory=dict, init=False)
    over: dict[str, None] = dataclasses.field(default_factory=dict, init=False)
    # The call that reads a thread, with what it was made of.
    calls_of: dict[str, tuple[Any, Call]] = dataclasses.field(default_factory=dict, init=False)

    def index(self) -> None:
        """Find them again in the state."""
        self.children, self.readable, self.over, self.open = {}, {}, {}, 0
        for line in self.state.lines.values():
            self.note(line)

    def note(self, line: ThreadState) -> None:
        """Take a thread that is new, or has become another one."""
        thread = line.thread
        if thread == ev.MAIN:
            return
        siblings = self.children.setdefault(line.parent, {})
        if line.done:
            self.open -= siblings.pop(thread, 0) is None
            if not siblings:
                del self.children[line.parent]
            self.over[thread] = None
        elif thread not in siblings:
            siblings[thread] = None
            self.open += 1
            self.over.pop(thread, None)
        if line.done or line.closed_stream or line.session is None:
            self.readable.pop(thread, None)
            self.calls_of.pop(thread, None)
        else:
            self.readable[thread] = None

    def unfinished(self) -> Iterator[ThreadState]:
        """Yield the children that are not over."""
        for siblings in self.children.values():
            for thread in siblings:
                yield self.state.lines[thread]

    def close_stream(self, line: ThreadState) -> None:
        """Read a thread no more."""
        line.closed_stream = True
        self.note(line)

    def know_as(self, child: ThreadState, name: str) -> None:
        """Remember a name of a child."""
        tasks = self.state.tasks
        before = tasks.get(name)
        if before == child.thread:
            return
        if before is not None:
            self.state.lines[before].names.remove(name)
        tasks[name] = child.thread
        child.names.append(name)
        if len(child.names) > NAMES_MOST:
            del tasks[child.names.pop(0)]
