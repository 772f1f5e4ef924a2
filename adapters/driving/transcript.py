"""The conversation as a backend is sent it that remembers nothing: all messages, each time.

Each message has an id that no other has: agents know messages by their ids, and some use an id
twice. Behind each call stands its result: a model takes no message behind an open call. What a
backend wants back with what it said is in the `extra` of its own events.

What is written of an exchange that is over is kept beside it, so a run costs the joining of what is
written, and no more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from adapters.model import events as ev
from adapters.model.conversation import Exchange
from adapters.wire.jsonvalue import format_json

INTERRUPTED = "The tool was interrupted and gave no result."
"""The result of a call that has none."""

FILES_BYTES = 16 * 1024 * 1024
"""Bytes of the files of a conversation that are sent with each run, the newest first. Of the others
the model is told the names."""


@dataclasses.dataclass(slots=True)
class TranscriptCall:
    """A call of a message; `arguments` are JSON as text."""

    id: str
    name: str
    arguments: str
    opaque: Any = None


@dataclasses.dataclass(slots=True)
class TranscriptMessage:
    """A message. `content` is what a person said, `text` the words of all others; `call_id` names
    the call of a result, whose `error` says why it failed. `opaque` is what the backend itself
    wants back. With `names_files` files are named and not sent."""

    role: Literal["user", "system", "assistant", "reasoning", "tool"]
    id: str
    content: Sequence[ev.Content] = ()
    text: str = ""
    calls: list[TranscriptCall] = dataclasses.field(default_factory=list)
    call_id: str | None = None
    error: str | None = None
    opaque: Any = None
    names_files: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class TranscriptForm:
    """How a dialect's messages are made: `write` returns one as JSON's value. `parent`, `message`
    and `opaque` are the members of `extra` of its events that have the message of a call, the id of
    a result's message, and what its backends want back."""

    dialect: str
    write: Callable[[TranscriptMessage], Mapping[str, Any]]
    parent: str
    message: str
    opaque: str


@dataclasses.dataclass(frozen=True, slots=True)
class GivenResult:
    """The result of a call that goes with this run: the application gave it."""

    text: str
    failed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class WrittenExchange:
    """The messages of an exchange as JSON, joined by commas; `files` is how many bytes the files
    in it have, `names` are the ids of its messages."""

    data: bytes
    files: int
    names: frozenset[str]


def written(
    form: TranscriptForm,
    exchanges: Sequence[Exchange],
    *,
    waiting: Collection[str] = (),
    results: Mapping[str, GivenResult] | None = None,
) -> list[bytes]:
    """Return the messages of a conversation as JSON, oldest first, in pieces. In the newest
    exchange the calls `waiting` have no result yet, and `results` has those that go with this
    run."""
    made: list[WrittenExchange] = []
    taken: set[str] = set()
    for exchange in exchanges:
        if (waiting or results) and exchange is exchanges[-1]:
            found = _write(form, exchange, taken, waiting=waiting, results=results or {})
        else:
            found = exchange.written = exchange.written or _write(form, exchange, taken)
        made.append(found)
        taken |= found.names
    left = FILES_BYTES
    for at in range(len(made) - 1, -1, -1):
        if made[at].files > left and at < len(made) - 1:
            taken = set().union(*(one.names for one in made[:at]))
            made[at] = _write(form, exchanges[at], taken, names_files=True)
            exchanges[at].written = made[at]
        left = max(left - made[at].files, 0)
    return [one.data for one in made if one.data]


def _write(
    form: TranscriptForm,
    exchange: Exchange,
    taken: Collection[str],
    *,
    names_files: bool = False,
    waiting: Collection[str] = (),
    results: Mapping[str, GivenResult] | None = None,
) -> WrittenExchange:
    writer = _TranscriptWriter(form, taken, names_files, results or {})
    for event in exchange.events:
        writer.take(event)
    data = b",".join(format_json(form.write(one)) for one in writer.repaired(waiting))
    return WrittenExchange(data, writer.files, frozenset(writer.names))


class _TranscriptWriter:
    """Makes the messages of one exchange, under ids that are not `taken`."""

    def __init__(
        self,
        form: TranscriptForm,
        taken: Collection[str],
        names_files: bool,
        results: Mapping[str, GivenResult],
    ) -> None:
        self._form = form
        self._taken = taken
        self._names_files = names_files
        self._results = results
        self._messages: dict[tuple[str, str], TranscriptMessage] = {}
        # The results by their calls, as the log names those: an agent may use an id twice.
        self._returned: dict[str, TranscriptMessage] = {}
        self._calls: dict[str, TranscriptCall] = {}
        # Which calls are in a message, by its id.
        self._owned: dict[str, list[str]] = {}
        self.names: set[str] = set()
        self.files = 0

    def _free(self, name: str) -> str:
        free, number = name, 1
        while free in self.names or free in self._taken:
            number += 1
            free = f"{name}~{number}"
        self.names.add(free)
        return free

    def _message(self, role: Any, name: str) -> TranscriptMessage:
        """Return the message of a role that has a name."""
        found = self._messages.get((role, name))
        if found is None:
            found = self._messages[role, name] = TranscriptMessage(role, self._free(name))
        return found

    def _add(self, role: Any, name: str, text: str = "", **members: Any) -> None:
        message = TranscriptMessage(role, self._free(name), text=text, **members)
        self._messages[role, message.id] = message

    def take(self, event: ev.Event) -> None:
        """Take the next event of the exchange."""
        match event:
            case ev.MessageReceived():
                self._user(event.message_id, event.content)
            case ev.GuidanceReceived():
                name = event.command_id or f"guidance-{len(self._messages)}"
                self._user(name, (ev.Text(text=event.text),))
            case ev.InputAccepted():
                if words := system_text((event.details or {}).get("system")):
                    self._add("system", f"{event.command_id}-system", words)
            case ev.TextCompleted():
                name = self._name(event, event.message_id)
                self._message("assistant", name).text += _words(event)
            case ev.ReasoningCompleted():
                self._reasoning(event)
            case ev.ToolCalled():
                self._call(event)
            case ev.ToolReturned():
                self._result(event)
            case ev.ResultProduced() if not self._is_own(event):
                # A backend's own stands in no message of it.
                self._add("assistant", "result", format_json(event.value).decode())

    def _user(self, name: str, content: Sequence[ev.Content]) -> None:
        if not self._names_files:
            self.files += sum(_size(block) for block in content)
        self._add("user", name, content=content, names_files=self._names_files)

    def _reasoning(self, event: ev.ReasoningCompleted) -> None:
        """Take reasoning: an agent goes on with its own only, and some know no such message."""
        if event.native is None or not self._is_own(event):
            return
        message = self._message("reasoning", event.message_id)
        message.text += event.text
        message.opaque = self._extra(event).get(self._form.opaque, message.opaque)

    def _call(self, event: ev.ToolCalled) -> None:
        extra = self._extra(event)
        parent = extra.get(self._form.parent)
        owner = self._newest_with_calls() if parent is None else None
        if owner is None:
            owner = self._message("assistant", parent or f"calls-{event.call_id}")
        name = self._call_id(event)
        if any(one.id == name for one in owner.calls):
            name = event.call_id
        arguments = format_json(event.input).decode() if event.input_known else "{}"
        call = TranscriptCall(name, event.name, arguments, extra.get(self._form.opaque))
        owner.calls.append(call)
        self._calls[event.call_id] = call
        self._owned.setdefault(owner.id, []).append(event.call_id)

    def _newest_with_calls(self) -> TranscriptMessage | None:
        """Return the message that the calls of the same answer belong to: the newest, where no
        result came since."""
        newest = next(reversed(self._messages.values()), None)
        if newest is None or newest.role != "assistant":
            return None
        owned = self._owned.get(newest.id, ())
        return None if any(name in self._returned for name in owned) else newest

    def _result(self, event: ev.ToolReturned) -> None:
        call = self._calls.get(event.call_id)
        if call is None:
            # An agent refuses a result without its call.
            return
        if event.input is not None:
            call.arguments = format_json(event.input).decode()
        extra = self._extra(event)
        name = extra.get(self._form.message) or f"result-{call.id}"
        opaque = extra.get(self._form.opaque)
        failed = opaque is None and event.is_error and event.status == "failed"
        error = event.error.message if failed and event.error is not None else None
        self._returned[event.call_id] = TranscriptMessage(
            "tool", name, text=result_text(event), call_id=call.id, error=error, opaque=opaque
        )

    def repaired(self, waiting: Collection[str]) -> Iterator[TranscriptMessage]:
        """Yield the messages, behind each call its result: one that was interrupted has the words
        that say so, one that waits for a person none."""
        for message in self._messages.values():
            yield message
            for name in self._owned.get(message.id, ()):
                found = self._returned.get(name) or self._without_result(name, waiting)
                if found is not None:
                    yield dataclasses.replace(found, id=self._free(found.id))

    def _without_result(self, name: str, waiting: Collection[str]) -> TranscriptMessage | None:
        call_id = self._calls[name].id
        message = TranscriptMessage("tool", f"result-{call_id}", text=INTERRUPTED, call_id=call_id)
        if (given := self._results.get(call_id)) is not None:
            message.text, message.error = given.text, given.text if given.failed else None
        elif call_id in waiting:
            return None
        return message

    # Whose an event is.

    def _is_own(self, event: ev.Event) -> bool:
        return event.native is None or event.native.dialect == self._form.dialect

    def _extra(self, event: ev.Event) -> Mapping[str, Any]:
        """Return what a backend wants back with an event of its own."""
        return (event.extra or {}) if event.native is not None and self._is_own(event) else {}

    def _call_id(self, event: ev.ToolCalled) -> str:
        """Return the id of a call as its agent has it: ours is another where that was used
        before."""
        native = event.native
        known = native is not None and native.id is not None and self._is_own(event)
        return native.id if known and native and native.id else event.call_id

    def _name(self, event: ev.Event, name: str) -> str:
        """Return the name of a message: as this agent gave it, or made of what another backend
        did."""
        if event.native is None or self._is_own(event):
            return name
        return f"{event.native.dialect}-{name}"


def _words(event: ev.TextCompleted) -> str:
    return "\n".join(filter(None, (event.text, ev.text_of(event.content))))


def result_text(event: ev.ToolReturned) -> str:
    """Return a result as the text that a message of a tool has."""
    if event.content is not None:
        return ev.text_of(event.content)
    if isinstance(event.output, str):
        return event.output
    if event.output is None:
        if event.status == "interrupted":
            return INTERRUPTED
        return event.error.message if event.error is not None else ""
    return format_json(event.output).decode()


def system_text(system: Any) -> str:
    """Return the words that a frontend says to the model beside a message."""
    blocks: Iterable[Any] = system if isinstance(system, list | tuple) else ()
    found = [one.get("text") if isinstance(one, dict) else one.text for one in blocks]
    return "\n".join(text for text in found if isinstance(text, str))


def _size(block: ev.Content) -> int:
    """Return how many bytes a file has that is sent as such."""
    if not isinstance(block, ev.File) or not isinstance(block.ref, ev.Blob):
        return 0
    return block.size or 0
