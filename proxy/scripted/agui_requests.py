"""What the scripted AG-UI agent accepts: a `RunAgentInput`, as Pydantic AI reads it.

Unknown members are let pass, as there. What is wrong is refused with the list of errors that
Pydantic makes of it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.scripted.agui_frames import PARTS
from proxy.scripted.backend import Refusal
from proxy.scripted.templates import dump

Message = Mapping[str, Any]
Loc = tuple[str | int, ...]
Problem = dict[str, object]

_TYPES: Mapping[str, tuple[tuple[type, ...], str, str]] = {
    "text": ((str,), "string_type", "Input should be a valid string"),
    "list": ((list,), "list_type", "Input should be a valid list"),
    "object": ((dict,), "dict_type", "Input should be a valid dictionary"),
    "content": ((str, list), "string_type", "Input should be a valid string"),
}
"""Kind of a member -> the types that it may have, and the error of another one."""

_BODY = {"threadId": "text", "runId": "text", "messages": "list"}
_BODY_OPTIONAL = {"protocolVersion": "text", "tools": "list", "context": "list", "resume": "list"}
_ROLES: Mapping[str, Mapping[str, str]] = {
    "developer": {"id": "text", "content": "text"},
    "system": {"id": "text", "content": "text"},
    "assistant": {"id": "text"},
    "user": {"id": "text", "content": "content"},
    "tool": {"id": "text", "content": "content", "toolCallId": "text"},
    "activity": {"id": "text", "activityType": "text", "content": "object"},
    "reasoning": {"id": "text", "content": "text"},
}
_ROLES_OPTIONAL: Mapping[str, Mapping[str, str]] = {
    "assistant": {"content": "content", "toolCalls": "list"},
    "tool": {"error": "text", "encryptedValue": "text"},
    "reasoning": {"encryptedValue": "text"},
}
_ENTRY = {"interruptId": "text", "status": "text"}
_STATUSES = ("resolved", "cancelled")


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call of the history; `result` is its tool message, where it has one."""

    id: str
    tool: str
    result: Message | None = None


@dataclass(frozen=True, slots=True)
class InterruptAnswer:
    """An entry of `resume`."""

    interrupt_id: str
    cancelled: bool
    payload: object


@dataclass(frozen=True, slots=True)
class AguiHistory:
    """What the messages of a request, or the first of them, tell an agent that knows nothing else.

    Args:
        messages: all or the first of a request.
        results: the tool messages of the whole request, by call.
    """

    messages: Sequence[Message]
    results: Mapping[str, Message]

    @property
    def turns(self) -> int:
        """Return how many messages of a user there are."""
        return sum(message["role"] == "user" for message in self.messages)

    def last(self) -> str:
        """Return whose message is the last one of those that a model answers or gave."""
        told = ("user", "assistant", "tool", "reasoning")
        roles = [message["role"] for message in self.messages if message["role"] in told]
        return roles[-1] if roles else "user"

    def words(self) -> tuple[str, tuple[str, ...]]:
        """Return the text of the last message of a user, and a description of each file in it."""
        for message in reversed(self.messages):
            if message["role"] == "user":
                content = message["content"]
                if isinstance(content, str):
                    return content, ()
                files = tuple(_describe(part) for part in content if part["type"] != "text")
                return text_of(content), files
        return "", ()

    def calls(self) -> list[MadeCall]:
        """Return the calls behind the last message of a user."""
        made: list[MadeCall] = []
        for message in self.messages:
            if message["role"] == "user":
                made.clear()
            made += self._of(message)
        return made

    def newest(self) -> list[MadeCall]:
        """Return the calls of the last message of the assistant."""
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return list(self._of(message))
        return []

    def before_newest(self) -> "AguiHistory":
        """Return the history up to the last message of the assistant, with it."""
        end = len(self.messages)
        while end and self.messages[end - 1]["role"] != "assistant":
            end -= 1
        return AguiHistory(self.messages[:end], self.results)

    def _of(self, message: Message) -> Iterator[MadeCall]:
        for call in message.get("toolCalls") or ():
            yield MadeCall(call["id"], call["function"]["name"], self.results.get(call["id"]))


@dataclass(frozen=True, slots=True)
class AguiRequest:
    """A valid request for a run; `modern` says whether the client declared version 1.0."""

    thread_id: str
    run_id: str
    modern: bool
    history: AguiHistory
    resume: tuple[InterruptAnswer, ...] = field(default=())


def text_of(content: object) -> str:
    """Return the text of a message's content."""
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part["type"] == "text")
    return str(content)


def _describe(part: Message) -> str:
    """Say what came along, in the words of the other scripted backends."""
    source = part.get("source") or {}
    if source.get("type") == "url":
        return f"{part['type']} at {source['value']}"
    data = source.get("value") or part.get("data") or ""
    padding = len(data) - len(data.rstrip("="))
    kind = source.get("mimeType") or part.get("mimeType")
    return f"{part['type']} {kind} of {len(data) * 3 // 4 - padding} bytes"


def parse_run(body: bytes) -> AguiRequest:
    """Read the body of a request for a run.

    Raises:
        Refusal: 422, with the list of errors in JSON; 500, a result has no call.
    """
    try:
        value = json.loads(body)
        # Half a surrogate pair is not JSON to Pydantic.
        dump(value).encode()
    except ValueError as error:
        why = f"Invalid JSON: {error}"
        told = {"type": "json_invalid", "msg": why, "input": body.decode(errors="replace")}
        raise _invalid([_problem((), **told)]) from None
    problems = list(_problems(value))
    if problems:
        raise _invalid(problems)
    messages = value["messages"]
    results = {message["toolCallId"]: message for message in messages if message["role"] == "tool"}
    _check_results(messages)
    entries = tuple(
        InterruptAnswer(entry["interruptId"], entry["status"] == "cancelled", entry.get("payload"))
        for entry in value.get("resume") or ()
    )
    modern = value.get("protocolVersion") == "1.0"
    history = AguiHistory(messages, results)
    return AguiRequest(value["threadId"], value["runId"], modern, history, entries)


def _check_results(messages: Sequence[Message]) -> None:
    known: set[str] = set()
    for message in messages:
        known.update(call["id"] for call in message.get("toolCalls") or ())
        if message["role"] == "tool" and message["toolCallId"] not in known:
            raise Refusal(500, "", "Internal Server Error")


def _invalid(problems: Sequence[Problem]) -> Refusal:
    return Refusal(422, "invalid", dump(problems))


def _problem(loc: Loc, /, **members: object) -> Problem:
    problem = PARTS["error"].filled(loc=list(loc), **members)
    url = str(problem["url"]).removesuffix("missing")
    return {**problem, "url": f"{url}{problem['type']}"}


def _problems(body: Any) -> Iterator[Problem]:
    if not isinstance(body, dict):
        kind = "Input should be a valid dictionary or instance of RunAgentInput"
        yield _problem((), type="model_type", msg=kind, input=body)
        return
    yield from _members((), body, _BODY, _BODY_OPTIONAL)
    for place, message in _listed(body.get("messages")):
        yield from _of_message(("messages", place), message)
    for place, entry in _listed(body.get("resume")):
        loc: Loc = ("resume", place)
        yield from _members(loc, entry, _ENTRY, {})
        if isinstance(entry, dict) and entry.get("status", "resolved") not in _STATUSES:
            kind = "Input should be 'resolved' or 'cancelled'"
            yield _problem((*loc, "status"), type="literal_error", msg=kind, input=entry["status"])


def _of_message(loc: Loc, message: Any) -> Iterator[Problem]:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(role, str):
        kind = "Unable to extract tag using discriminator 'role'"
        yield _problem(loc, type="union_tag_not_found", msg=kind, input=message)
        return
    if role not in _ROLES:
        tags = ", ".join(f"'{known}'" for known in _ROLES)
        kind = f"Input tag '{role}' found using 'role' does not match any of the expected tags"
        yield _problem(loc, type="union_tag_invalid", msg=f"{kind}: {tags}", input=message)
        return
    loc = (*loc, role)
    yield from _members(loc, message, _ROLES[role], _ROLES_OPTIONAL.get(role, {}))
    for place, part in _listed(message.get("content")):
        here: Loc = (*loc, "content", place)
        texts = isinstance(part, dict) and part.get("type") == "text"
        yield from _members(here, part, {"type": "text", **({"text": "text"} if texts else {})}, {})
    for place, call in _listed(message.get("toolCalls")):
        here = (*loc, "toolCalls", place)
        yield from _members(here, call, {"id": "text", "function": "object"}, {})
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            needed = {"name": "text", "arguments": "text"}
            yield from _members((*here, "function"), function, needed, {})


def _listed(value: Any) -> Iterator[tuple[int, Any]]:
    if isinstance(value, list):
        yield from enumerate(value)


def _members(
    loc: Loc, value: Any, needed: Mapping[str, str], optional: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield what is wrong with the members of an object."""
    if not isinstance(value, dict):
        _, kind, words = _TYPES["object"]
        yield _problem(loc, type=kind, msg=words, input=value)
        return
    for name in needed:
        if name not in value:
            yield _problem((*loc, name), input=value)
    for name, member in {**needed, **optional}.items():
        types, kind, words = _TYPES[member]
        given = value.get(name)
        if (
            name in value
            and not isinstance(given, types)
            and not (given is None and name in optional)
        ):
            yield _problem((*loc, name), type=kind, msg=words, input=given)
