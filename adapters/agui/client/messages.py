"""The conversation as an agent is sent it: all messages, each time.

What is written of an exchange that is over is kept beside it, so a run costs the joining of what is
written, and no more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from adapters.agui import wire
from adapters.model import events as ev
from adapters.model.conversation import Exchange
from adapters.model.file_body import file_in_base64
from adapters.wire.jsonvalue import format_json

INTERRUPTED = "The tool was interrupted and gave no result."
"""The result of a call that has none: a model takes no message behind an open call."""

FILES_BYTES = 16 * 1024 * 1024
"""Bytes of the files of a conversation that are sent with each run, the newest first. Of the others
the model is told the names."""


@dataclasses.dataclass(frozen=True, slots=True)
class WrittenExchange:
    """The messages of an exchange as JSON, joined by commas; `files` is how many bytes the files
    in it have, `names` are the ids of its messages."""

    data: bytes
    files: int
    names: frozenset[str]


def written(
    exchanges: Sequence[Exchange],
    *,
    waiting: Collection[str] = (),
    results: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[bytes]:
    """Return the messages of a conversation, oldest first, in pieces. In the newest exchange the
    calls `waiting` have no result yet, and `results` has those that go with this run."""
    made: list[WrittenExchange] = []
    taken: set[str] = set()
    for exchange in exchanges:
        if (waiting or results) and exchange is exchanges[-1]:
            found = _write(exchange, taken, waiting=waiting, results=results or {})
        else:
            found = exchange.written = exchange.written or _write(exchange, taken)
        made.append(found)
        taken |= found.names
    left = FILES_BYTES
    for at in range(len(made) - 1, -1, -1):
        if made[at].files > left and at < len(made) - 1:
            taken = set().union(*(one.names for one in made[:at]))
            made[at] = exchanges[at].written = _write(exchanges[at], taken, files=False)
        left = max(left - made[at].files, 0)
    return [one.data for one in made if one.data]


def _write(
    exchange: Exchange,
    taken: Collection[str],
    *,
    files: bool = True,
    waiting: Collection[str] = (),
    results: Mapping[str, Mapping[str, Any]] | None = None,
) -> WrittenExchange:
    writer = _MessageWriter(files, results or {}, taken)
    for event in exchange.events:
        writer.take(event)
    data = b",".join(map(format_json, writer.repaired(waiting)))
    return WrittenExchange(data, writer.sent, frozenset(writer.names))


class _MessageWriter:
    """Makes the messages of one exchange, each under an id that no message before it has: agents
    know messages by their ids, and some use an id twice."""

    def __init__(
        self, files: bool, results: Mapping[str, Mapping[str, Any]], taken: Collection[str]
    ) -> None:
        self._files = files
        self._results = results
        self._taken = taken
        self._messages: dict[tuple[str, str], dict[str, Any]] = {}
        # The results by their calls, as the log names those: an agent may use an id twice.
        self._returned: dict[str, dict[str, Any]] = {}
        self._calls: dict[str, dict[str, Any]] = {}
        # Which calls are in a message, by its id.
        self._owned: dict[str, list[str]] = {}
        self.names: set[str] = set()
        self.sent = 0

    def _free(self, name: str) -> str:
        free, number = name, 1
        while free in self.names or free in self._taken:
            number += 1
            free = f"{name}~{number}"
        self.names.add(free)
        return free

    def _message(self, role: str, name: str) -> dict[str, Any]:
        """Return the message of a role that has a name."""
        found = self._messages.get((role, name))
        if found is None:
            found = {"id": self._free(name), "role": role, "content": ""}
            self._messages[role, name] = found
        return found

    def _add(self, role: str, name: str, content: Any) -> None:
        message = {"id": self._free(name), "role": role, "content": content}
        self._messages[role, message["id"]] = message

    def take(self, event: ev.Event) -> None:
        """Take the next event of the exchange."""
        match event:
            case ev.MessageReceived():
                self._user(event.message_id, event.content)
            case ev.GuidanceReceived():
                name = event.command_id or f"guidance-{len(self._messages)}"
                self._user(name, (ev.Text(text=event.text),))
            case ev.InputAccepted():
                words = system_text((event.details or {}).get("system"))
                if words:
                    self._add("system", f"{event.command_id}-system", words)
            case ev.TextCompleted():
                name = _name(event, event.message_id)
                self._message("assistant", name)["content"] += _words(event)
            case ev.ReasoningCompleted():
                self._reasoning(event)
            case ev.ToolCalled():
                self._call(event)
            case ev.ToolReturned():
                self._result(event)
            case ev.ResultProduced() if event.native and event.native.dialect != wire.DIALECT:
                # That of another backend: an agent's own stands in no message.
                self._add("assistant", "result", format_json(event.value).decode())

    def _user(self, name: str, content: Sequence[ev.Content]) -> None:
        if self._files:
            self.sent += sum(_size(block) for block in content)
        self._add("user", name, parts_of(content, files=self._files))

    def _reasoning(self, event: ev.ReasoningCompleted) -> None:
        """Take reasoning: an agent goes on with its own only, and some know no such message."""
        if event.native is None or event.native.dialect != wire.DIALECT:
            return
        opaque = _extra(event).get("encryptedValue")
        message = self._message("reasoning", event.message_id)
        message["content"] += event.text
        if opaque is not None:
            message["encryptedValue"] = opaque

    def _call(self, event: ev.ToolCalled) -> None:
        extra = _extra(event)
        parent = extra.get("parentMessageId")
        owner = self._newest_with_calls() if parent is None else None
        if owner is None:
            owner = self._message("assistant", parent or f"calls-{event.call_id}")
        calls = owner.setdefault("toolCalls", [])
        call_id = _call_id(event)
        if any(one["id"] == call_id for one in calls):
            call_id = event.call_id
        arguments = format_json(event.input).decode() if event.input_known else "{}"
        function = {"name": event.name, "arguments": arguments}
        call: dict[str, Any] = {"id": call_id, "type": "function", "function": function}
        if (opaque := extra.get("encryptedValue")) is not None:
            call["encryptedValue"] = opaque
        calls.append(call)
        self._calls[event.call_id] = call
        self._owned.setdefault(owner["id"], []).append(event.call_id)

    def _newest_with_calls(self) -> dict[str, Any] | None:
        """Return the message that the calls of the same answer belong to: the newest, where no
        result came since."""
        newest = next(reversed(self._messages.values()), None)
        if newest is None or newest["role"] != "assistant":
            return None
        owned = self._owned.get(newest["id"], ())
        return None if any(name in self._returned for name in owned) else newest

    def _result(self, event: ev.ToolReturned) -> None:
        call = self._calls.get(event.call_id)
        if call is None:
            # An agent refuses a result without its call.
            return
        if event.input is not None:
            call["function"]["arguments"] = format_json(event.input).decode()
        extra = _extra(event)
        call_id = call["id"]
        message: dict[str, Any] = {
            "id": extra.get("messageId") or f"result-{call_id}",
            "role": "tool",
            "toolCallId": call_id,
            "content": result_text(event),
        }
        if (opaque := extra.get("encryptedValue")) is not None:
            message["encryptedValue"] = opaque
        elif event.is_error and event.status == "failed" and event.error is not None:
            message["error"] = event.error.message
        self._returned[event.call_id] = message

    def repaired(self, waiting: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield the messages, behind each call its result: one that was interrupted has the words
        that say so, one that waits for a person none."""
        for message in self._messages.values():
            yield message
            for name in self._owned.get(message["id"], ()):
                found = self._returned.get(name) or self._without_result(name, waiting)
                if found is not None:
                    yield {**found, "id": self._free(found["id"])}

    def _without_result(self, name: str, waiting: Collection[str]) -> dict[str, Any] | None:
        call_id = self._calls[name]["id"]
        members: Mapping[str, Any] = {"content": INTERRUPTED}
        if call_id in self._results:
            members = self._results[call_id]
        elif call_id in waiting:
            return None
        return {"id": f"result-{call_id}", "role": "tool", "toolCallId": call_id, **members}


def _call_id(event: ev.ToolCalled) -> str:
    """Return the id of a call as its agent has it: ours is another where that was used before."""
    native = event.native
    own = native is not None and native.dialect == wire.DIALECT and native.id is not None
    return native.id if own and native is not None and native.id is not None else event.call_id


def _extra(event: ev.Event) -> Mapping[str, Any]:
    """Return what an agent of this dialect wants back with an event."""
    native = event.native
    return (event.extra or {}) if native is not None and native.dialect == wire.DIALECT else {}


def _name(event: ev.Event, name: str) -> str:
    """Return the name of a message: as this agent gave it, or made of what another backend did."""
    native = event.native
    if native is None or native.dialect == wire.DIALECT:
        return name
    return f"{native.dialect}-{name}"


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


# Parts of a message.


def parts_of(content: Sequence[ev.Content], *, files: bool = True) -> Any:
    """Return what a person says: a text, or parts where files are in it."""
    if all(isinstance(block, ev.Text) for block in content):
        return "\n".join(block.text for block in content if isinstance(block, ev.Text))
    return [_part(block, files) for block in content]


def _part(block: ev.Content, files: bool) -> dict[str, Any]:
    if not isinstance(block, ev.File) or (not files and isinstance(block.ref, ev.Blob)):
        return {"type": "text", "text": ev.text_of((block,))}
    kind = block.media_type or "application/octet-stream"
    family = kind.partition("/")[0]
    source: dict[str, Any]
    match block.ref:
        case ev.Blob(sha256=digest):
            source = {"type": "data", "value": file_in_base64(digest), "mimeType": kind}
        case ev.Url(url=url):
            source = {"type": "url", "value": url}
            if block.media_type:
                source["mimeType"] = block.media_type
        case _:
            return {"type": "text", "text": ev.text_of((block,))}
    part: dict[str, Any] = {
        "type": family if family in wire.MEDIA_PARTS else "document",
        "source": source,
    }
    if block.name:
        part["metadata"] = {"filename": block.name}
    return part


def _size(block: ev.Content) -> int:
    """Return how many bytes a file has that is sent as such."""
    if not isinstance(block, ev.File) or not isinstance(block.ref, ev.Blob):
        return 0
    return block.size or 0
