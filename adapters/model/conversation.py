"""What was said in a session, for a backend that remembers nothing: a fold of the log.

Such a backend is sent the whole conversation with each request, so the session keeps it beside the
codec, in memory: it is never stored, since the log has it. It is a list of exchanges. Each begins
with a message of a person and holds the events of the main thread that a model has to know:
messages, texts, reasoning, calls of tools and their results. An event has the names that its
backend gave (`message_id`, `native.id`) and in `extra` what that wants back.

An exchange that is over never changes, so a codec keeps beside it what it writes of it: a turn
costs what it is long, however long the conversation is.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from adapters.model import events as ev
from adapters.wire.json_patch import PatchError, patched

CONVERSATION_BYTES = 2 * 1024 * 1024
"""Bytes of the events of a conversation, some 500,000 tokens: more than most models read. Of a
longer one the oldest exchanges are left out."""


@dataclasses.dataclass(slots=True)
class Exchange:
    """What was said from one message of a person to the next. `size` is in bytes, of the events as
    JSON; `written` is what a codec has made of it, None when it has to be made anew."""

    events: list[ev.Event] = dataclasses.field(default_factory=list)
    size: int = 0
    written: Any = None

    def add(self, event: ev.Event) -> int:
        """Take one more event; return its size."""
        size = len(ev.encode_event(event))
        self.events.append(event)
        self.size += size
        self.written = None
        return size


@dataclasses.dataclass(slots=True)
class Conversation:
    """The conversation of one session, oldest exchange first. `context` is what the newest message
    with one said of its surroundings, `options` what the newest input of the backend's own dialect
    had besides, `left_out` how many exchanges are forgotten at its begin. `shared_state` is the
    state as the newest of agent and application has said it; None for nothing."""

    exchanges: list[Exchange] = dataclasses.field(default_factory=list)
    context: Any = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    left_out: int = 0
    shared_state: Any = None
    size: int = 0
    _accepted: dict[str, ev.InputAccepted] = dataclasses.field(default_factory=dict)
    _calls: set[str] = dataclasses.field(default_factory=set)

    def hear(self, event: ev.Event) -> None:
        """Take the next event of the log."""
        rule = _RULES.get(event.TYPE)
        if rule is not None:
            rule(self, event)

    def place_of(self, message_id: str) -> tuple[int, int] | None:
        """Return the exchange, and the place in it, where a message of a person begins."""
        for at in range(len(self.exchanges) - 1, -1, -1):
            before: ev.Event | None = None
            for place, event in enumerate(self.exchanges[at].events):
                if isinstance(event, ev.MessageReceived) and event.message_id == message_id:
                    # What was said to the model beside it belongs to it.
                    return at, place - isinstance(before, ev.InputAccepted)
                before = event
        return None

    def before(self, message_id: str | None) -> list[Exchange]:
        """Return what was said before a message; all of it, if there is no such message."""
        found = None if message_id is None else self.place_of(message_id)
        if found is None:
            return self.exchanges
        at, place = found
        return [*self.exchanges[:at], Exchange(self.exchanges[at].events[:place])]

    # The rules, by event type.

    def _input_accepted(self, event: ev.InputAccepted) -> None:
        details = event.details or {}
        if (options := details.get("options")) is not None:
            self.options = options
        if (shared := details.get("shared_state")) is not None:
            self.shared_state = shared
        if event.kind == "message":
            self._accepted[event.command_id] = event

    def _input_settled(self, event: ev.InputSettled) -> None:
        if event.outcome != "taken":
            self._accepted.pop(event.command_id, None)

    def _message_received(self, event: ev.MessageReceived) -> None:
        if event.thread_id != ev.MAIN:
            return
        accepted = self._accepted.pop(event.command_id or "", None)
        details = (accepted and accepted.details) or {}
        if (name := details.get("edit_of") or details.get("retry_of")) is not None:
            self._cut(name)
        if details.get("client_context") is not None:
            self.context = details["client_context"]
        if not (self.exchanges and self._calls):
            # Else it joins a turn, whose calls and results stay together.
            self.exchanges.append(Exchange())
        if accepted is not None and details.get("system"):
            self._add(accepted)
        if accepted is not None and accepted.content:
            # What was sent: a backend's echo has the words only, and not the files.
            event = event.model_copy(update={"content": accepted.content})
        self._add(event)

    def _cut(self, message_id: str) -> None:
        """Forget a message, and all that was said behind it."""
        if (found := self.place_of(message_id)) is None:
            return
        at, place = found
        kept = self.exchanges[at].events[:place]
        del self.exchanges[at:]
        self.size = sum(one.size for one in self.exchanges)
        self._calls &= {event.call_id for event in kept if isinstance(event, ev.ToolCalled)}
        if kept:
            self.exchanges.append(Exchange())
            for event in kept:
                self._add(event)

    def _completed(self, event: ev.TextCompleted | ev.ReasoningCompleted) -> None:
        if event.status != "discarded":
            self._work(event)

    def _work(self, event: ev.Event) -> None:
        if event.thread_id != ev.MAIN:
            return
        if not self.exchanges:
            self.exchanges.append(Exchange())
        if isinstance(event, ev.ToolCalled):
            self._calls.add(event.call_id)
        elif isinstance(event, ev.ToolReturned):
            self._calls.discard(event.call_id)
        self._add(event)

    def _add(self, event: ev.Event) -> None:
        self.size += self.exchanges[-1].add(event)
        while self.size > CONVERSATION_BYTES and len(self.exchanges) > 1:
            self.size -= self.exchanges.pop(0).size
            self.left_out += 1

    def _state_updated(self, event: ev.StateUpdated) -> None:
        if event.patch is None:
            self.shared_state = event.value
            return
        # One that does not apply is skipped, as clients of AG-UI do.
        with contextlib.suppress(PatchError):
            self.shared_state = patched(self.shared_state, event.patch)

    def _cleared(self, event: ev.ContextCleared) -> None:
        self.exchanges, self.size, self.left_out = [], 0, 0
        self._calls.clear()


_RULES: Mapping[str, Callable[[Conversation, Any], None]] = {
    "input.accepted": Conversation._input_accepted,
    "input.settled": Conversation._input_settled,
    "message.received": Conversation._message_received,
    "guidance.received": Conversation._work,
    "text.completed": Conversation._completed,
    "reasoning.completed": Conversation._completed,
    "tool.called": Conversation._work,
    "tool.returned": Conversation._work,
    "result.produced": Conversation._work,
    "state.updated": Conversation._state_updated,
    "context.cleared": Conversation._cleared,
}

HEARD = frozenset(_RULES)
"""The types of the events that a conversation is made of."""
