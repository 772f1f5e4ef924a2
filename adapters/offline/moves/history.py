"""What was said in a session, as another backend's model can read it: a text and the files.

The words of people and of the agent go over as they were. Tool calls, questions and answers become
lines of text. What does not go over is in the report (`ConversationHistory.carried`), with
the reason.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from adapters.model import events as ev
from adapters.model.base import Fidelity
from adapters.wire.errors import cut
from adapters.wire.jsonvalue import format_json

HISTORY_CHARACTERS = 200_000
"""Characters of a history, about 50,000 tokens: most models have room for it beside their own
prompt, and it stays far below the limit for a request's text. The oldest part is left out."""

VALUE_CHARACTERS = 4_000
"""Characters of what one tool got or gave: the agent said what mattered of a longer one."""

FILES_BYTES = 16 * 2**20
"""Bytes of the files that go over in one request, as base64 two thirds of what one may have. The
newest are taken."""

_BEGIN = (
    "This conversation began on another system. What was said there, oldest first; go on from "
    "there and do not repeat it:"
)

_END = "That was said before. What follows is new."

_OUTCOMES = {
    "approved": "approved",
    "denied": "denied",
    "skipped": "left without an answer",
    "expired": "not answered in time",
    "cancelled": "cancelled",
    "withdrawn": "withdrawn",
}


@dataclasses.dataclass(frozen=True, slots=True)
class HistoryPart:
    """How one kind of thing goes over: how many of them, how faithfully, and why not better."""

    what: str
    count: int
    fidelity: Fidelity
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "what": self.what,
            "count": self.count,
            "fidelity": self.fidelity.value,
            **({"why": self.why} if self.why else {}),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class ConversationHistory:
    """What goes over: an empty `text` says that nothing was said."""

    text: str = ""
    files: tuple[ev.File, ...] = ()
    carried: tuple[HistoryPart, ...] = ()

    def fitting(self, takes: Callable[[ev.File], str | None]) -> ConversationHistory:
        """Return it with those files only that a backend takes: `takes` says why not, or None."""
        kept: list[ev.File] = []
        dropped: list[HistoryPart] = []
        size = 0
        # The newest first: they are what the conversation is about.
        for file in reversed(self.files):
            size += file.size or 0
            why = takes(file)
            if why is None and size > FILES_BYTES:
                why = f"the newest files take more than {FILES_BYTES} bytes"
            if why is None:
                kept.append(file)
            else:
                what = f"file `{cut(file.name or file.media_type or 'without a name', 100)}`"
                dropped.append(HistoryPart(what, 1, Fidelity.DROPPED, why))
        taken = [HistoryPart("files", len(kept), Fidelity.EXACT)] if kept else []
        return ConversationHistory(
            self.text, tuple(reversed(kept)), (*self.carried, *taken, *reversed(dropped))
        )

    def as_messages(self) -> ConversationHistory:
        """Return it as it goes to a backend that is sent the whole conversation with each request:
        nothing has to be told in a text."""
        carried = [
            dataclasses.replace(part, fidelity=found[0], why=found[1])
            if (found := _AS_MESSAGES.get(part.what)) is not None
            else part
            for part in self.carried
            if part.what not in _OF_THE_TEXT
        ]
        return ConversationHistory("", (), tuple(carried))


class HistoryWriter:
    """Makes the history of a session from its log, entry by entry."""

    def __init__(self) -> None:
        """Begin before the first entry."""
        self._begin()

    def _begin(self) -> None:
        self._parts: collections.deque[str] = collections.deque()
        self._size = 0
        self._left_out = 0
        self._counts: collections.Counter[str] = collections.Counter()
        self._cut = 0
        self._files: list[ev.File] = []
        self._accepted: dict[str, tuple[ev.Content, ...]] = {}
        self._calls: dict[str, ev.ToolCalled] = {}
        self._requests: dict[str, ev.InteractionRequested] = {}

    def feed(self, event: ev.Event) -> None:
        """Take the next event of the log."""
        rule = _RULES.get(event.TYPE)
        if rule is not None:
            rule(self, event)

    def made(self) -> ConversationHistory:
        """Return the history of what was fed."""
        counts = self._counts
        text = "\n\n".join([_BEGIN, *self._parts, _END]) if self._parts else ""
        carried = [
            HistoryPart(what, counts[what], fidelity, why)
            for what, (fidelity, why) in _FIDELITIES.items()
            if counts[what]
        ]
        if self._cut:
            why = f"only the first {VALUE_CHARACTERS} characters of each go over"
            carried.append(HistoryPart(_LONG_VALUES, self._cut, Fidelity.APPROXIMATED, why))
        if self._left_out:
            why = f"the oldest: a history has at most {HISTORY_CHARACTERS} characters"
            carried.append(HistoryPart(_OLDEST, self._left_out, Fidelity.DROPPED, why))
        return ConversationHistory(text, tuple(self._files), tuple(carried))

    # The rules, by event type.

    def _message_received(self, event: ev.MessageReceived) -> None:
        # What was sent: an echo has the words only, and not the files.
        content = self._accepted.pop(event.command_id or "", None) or event.content
        if event.thread_id == ev.MAIN:
            self._say("messages of people", f"User: {self._words(content)}")

    def _guidance_received(self, event: ev.GuidanceReceived) -> None:
        if event.thread_id == ev.MAIN:
            self._say("messages of people", f"User (while the agent worked): {event.text}")

    def _input_accepted(self, event: ev.InputAccepted) -> None:
        if event.content:
            self._accepted[event.command_id] = event.content
        system = (event.details or {}).get("system")
        words = [block.get("text") for block in system or () if isinstance(block, dict)]
        if said := "\n".join(word for word in words if isinstance(word, str)):
            self._say("instructions of the frontend", f"System: {said}")

    def _input_settled(self, event: ev.InputSettled) -> None:
        if event.outcome != "taken":
            self._accepted.pop(event.command_id, None)

    def _text_completed(self, event: ev.TextCompleted) -> None:
        if event.thread_id != ev.MAIN or event.status == "discarded":
            return
        words = "\n".join(filter(None, (event.text, self._words(event.content or ()))))
        if words:
            self._say("texts of the agent", f"Assistant: {words}")

    def _reasoning_completed(self, event: ev.ReasoningCompleted) -> None:
        if event.thread_id == ev.MAIN:
            self._counts["reasoning"] += 1

    def _tool_called(self, event: ev.ToolCalled) -> None:
        if event.thread_id == ev.MAIN:
            self._calls[event.call_id] = event

    def _tool_returned(self, event: ev.ToolReturned) -> None:
        call = self._calls.pop(event.call_id, None)
        if call is None:
            return
        given = event.input if call.input is None else call.input
        said = self._value(event.output) if event.content is None else self._words(event.content)
        if event.error is not None and not said:
            said = event.error.message
        how = "failed" if event.is_error else "returned"
        self._say(
            "tool calls",
            f"Tool `{call.name}` was called with {self._value(given)} and {how}: {said}",
        )

    def _requested(self, event: ev.InteractionRequested) -> None:
        self._requests[event.request_id] = event

    def _resolved(self, event: ev.InteractionResolved) -> None:
        request = self._requests.pop(event.request_id, None)
        if request is None:
            return
        if request.kind in ev.SEALED_KINDS:
            self._counts["secrets"] += 1
            return
        said = _OUTCOMES.get(event.outcome) or self._answer(event, request)
        reason = f" ({event.reason})" if event.reason else ""
        asked = f"The user was asked ({request.kind}): {request.prompt}"
        self._say("questions and approvals", f"{asked}\nThe answer: {said}{reason}")

    def _answer(self, event: ev.InteractionResolved, request: ev.InteractionRequested) -> str:
        if event.answer is None:
            return event.outcome
        labels = {option.id: option.label for option in request.options or ()}
        chosen = [labels.get(name, name) for name in event.answer.option_ids]
        parts = [*chosen, event.answer.text, self._words(event.answer.content or ())]
        return ", ".join(part for part in parts if part) or event.outcome

    def _result(self, event: ev.ResultProduced) -> None:
        if event.thread_id == ev.MAIN:
            self._say("structured results", f"Result: {self._value(event.value)}")

    def _thread_started(self, event: ev.ThreadStarted) -> None:
        self._say("child agents", f"A child agent began: {event.name or event.thread_id}")

    def _turn_ended(self, event: ev.TurnEnded) -> None:
        if event.thread_id != ev.MAIN or event.outcome == "completed":
            return
        why = f": {event.error.message}" if event.error is not None else ""
        self._say("turns that did not complete", f"(The turn ended as {event.outcome}{why})")

    def _cleared(self, event: ev.ContextCleared) -> None:
        """Forget what the agent has forgotten."""
        self._begin()

    # What they are made of.

    def _say(self, what: str, text: str) -> None:
        self._counts[what] += 1
        # A single part that is too long keeps its end: what was said last is what is gone on from.
        text = text if len(text) <= HISTORY_CHARACTERS else f"…{text[-HISTORY_CHARACTERS:]}"
        self._parts.append(text)
        self._size += len(text)
        while self._size > HISTORY_CHARACTERS and len(self._parts) > 1:
            self._size -= len(self._parts.popleft())
            self._left_out += 1

    def _words(self, content: Iterable[ev.Content]) -> str:
        words: list[str] = []
        for block in content:
            match block:
                case ev.Text():
                    words.append(block.text)
                case ev.File():
                    self._files.append(block)
                    words.append(f"[file: {block.name or block.media_type or 'without a name'}]")
                case ev.SearchResult():
                    words.append(f"[{block.title}]({block.source})")
                case _:
                    self._counts["other content"] += 1
        return "\n".join(words)

    def _value(self, value: Any) -> str:
        text = value if isinstance(value, str) else format_json(value).decode()
        if len(text) <= VALUE_CHARACTERS:
            return text
        self._cut += 1
        return f"{text[:VALUE_CHARACTERS]}… ({len(text) - VALUE_CHARACTERS} characters more)"


_LONG_VALUES = "long inputs and results of tools"
_OLDEST = "parts"
_OF_THE_TEXT = frozenset({_LONG_VALUES, _OLDEST})
"""What only a text leaves out, which has limits of its own."""

_AS_MESSAGES: dict[str, tuple[Fidelity, str]] = {
    "messages of people": (Fidelity.EXACT, ""),
    "instructions of the frontend": (Fidelity.EXACT, ""),
    "texts of the agent": (Fidelity.EXACT, ""),
    "tool calls": (Fidelity.EXACT, ""),
    "structured results": (Fidelity.APPROXIMATED, "as a message of the agent, in JSON"),
    "questions and approvals": (Fidelity.DROPPED, "what came of them is in the results of calls"),
    "turns that did not complete": (Fidelity.DROPPED, "what was said until their end goes over"),
    "child agents": (Fidelity.DROPPED, "what they gave back is in the results of calls"),
}
"""How each kind of thing goes over to a backend that is sent messages."""

_AS_TEXT = "as a line of text, not as the model's own message"

_FIDELITIES: dict[str, tuple[Fidelity, str]] = {
    "messages of people": (Fidelity.EXACT, "the words, within one text"),
    "instructions of the frontend": (Fidelity.APPROXIMATED, _AS_TEXT),
    "texts of the agent": (Fidelity.EXACT, "the words, within one text"),
    "tool calls": (Fidelity.APPROXIMATED, _AS_TEXT),
    "questions and approvals": (Fidelity.APPROXIMATED, _AS_TEXT),
    "structured results": (Fidelity.APPROXIMATED, _AS_TEXT),
    "turns that did not complete": (Fidelity.APPROXIMATED, _AS_TEXT),
    "child agents": (Fidelity.APPROXIMATED, "what each gave back; its own log stays here"),
    "reasoning": (Fidelity.DROPPED, "a model does not go on with the reasoning of another one"),
    "secrets": (Fidelity.DROPPED, "they are never stored"),
    "other content": (Fidelity.DROPPED, "it has no canonical meaning"),
}
"""How each kind of thing goes over."""

_RULES: dict[str, Callable[[HistoryWriter, Any], None]] = {
    "message.received": HistoryWriter._message_received,
    "guidance.received": HistoryWriter._guidance_received,
    "input.accepted": HistoryWriter._input_accepted,
    "input.settled": HistoryWriter._input_settled,
    "text.completed": HistoryWriter._text_completed,
    "reasoning.completed": HistoryWriter._reasoning_completed,
    "tool.called": HistoryWriter._tool_called,
    "tool.returned": HistoryWriter._tool_returned,
    "interaction.requested": HistoryWriter._requested,
    "interaction.resolved": HistoryWriter._resolved,
    "result.produced": HistoryWriter._result,
    "thread.started": HistoryWriter._thread_started,
    "turn.ended": HistoryWriter._turn_ended,
    "context.cleared": HistoryWriter._cleared,
}
