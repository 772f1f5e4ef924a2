"""A strict client of AG-UI: what `@ag-ui/client` 1.0 checks and does, written from its rules.

It reads a body as `HttpAgent` does (split on two line feeds, the `data:` lines of each part are one
event), checks every member and the order of the events (protocol page, sections 5 and 6), and
builds messages as `defaultApplyEvents` does. `ProtocolViolation` is raised for whatever that client
would refuse or warn of.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp

from tests.support.strictness import SILENCE_S, Disconnected, ProtocolViolation, refuse
from tests.support.strictness import Refused as AnyRefused

__all__ = ["AguiClient", "Applied", "Checker", "Refused", "split"]

_BASE = {"type", "timestamp", "rawEvent", "metadata"}
_TAGGED = {"subagentRunId"}
_MESSAGE = {"messageId": str}
_CALL = {"toolCallId": str}
_SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "RUN_STARTED": (
        {"threadId": str, "runId": str},
        {"protocolVersion": str, "parentRunId": str, "input": dict},
    ),
    "RUN_FINISHED": (
        {"threadId": str, "runId": str},
        {"result": object, "outcome": dict, "usage": list},
    ),
    "RUN_ERROR": ({"message": str}, {"code": str, "usage": list}),
    "STEP_STARTED": ({"stepName": str}, {}),
    "STEP_FINISHED": ({"stepName": str}, {}),
    "TEXT_MESSAGE_START": (_MESSAGE, {"role": str, "name": str}),
    "TEXT_MESSAGE_CONTENT": ({**_MESSAGE, "delta": str}, {}),
    "TEXT_MESSAGE_END": (_MESSAGE, {}),
    "TEXT_MESSAGE_CHUNK": ({}, {**_MESSAGE, "role": str, "name": str, "delta": str}),
    "REASONING_START": (_MESSAGE, {}),
    "REASONING_END": (_MESSAGE, {}),
    "REASONING_MESSAGE_START": ({**_MESSAGE, "role": str}, {}),
    "REASONING_MESSAGE_CONTENT": ({**_MESSAGE, "delta": str}, {}),
    "REASONING_MESSAGE_END": (_MESSAGE, {}),
    "REASONING_MESSAGE_CHUNK": ({}, {**_MESSAGE, "delta": str}),
    "REASONING_ENCRYPTED_VALUE": ({"subtype": str, "entityId": str, "encryptedValue": str}, {}),
    "TOOL_CALL_START": ({**_CALL, "toolCallName": str}, {"parentMessageId": str}),
    "TOOL_CALL_ARGS": ({**_CALL, "delta": str}, {}),
    "TOOL_CALL_END": (_CALL, {}),
    "TOOL_CALL_CHUNK": ({}, {**_CALL, "toolCallName": str, "parentMessageId": str, "delta": str}),
    "TOOL_CALL_RESULT": ({**_MESSAGE, **_CALL, "content": (str, list)}, {"role": str}),
    "STATE_SNAPSHOT": ({"snapshot": object}, {}),
    "STATE_DELTA": ({"delta": list}, {}),
    "MESSAGES_SNAPSHOT": ({"messages": list}, {}),
    "ACTIVITY_SNAPSHOT": ({**_MESSAGE, "activityType": str, "content": dict}, {"replace": bool}),
    "ACTIVITY_DELTA": ({**_MESSAGE, "activityType": str, "patch": list}, {}),
    "SUBAGENT_STARTED": (
        {"subagentRunId": str, "name": str},
        {
            "description": str,
            "parentSubagentRunId": str,
            "parentToolCallId": str,
            "parentMessageId": str,
        },
    ),
    "SUBAGENT_FINISHED": ({"subagentRunId": str}, {"result": object, "outcome": dict}),
    "SUBAGENT_ERROR": ({"subagentRunId": str, "message": str}, {"code": str}),
    "RAW": ({"event": object}, {"source": str}),
    "CUSTOM": ({"name": str, "value": object}, {}),
}
"""Event -> members that it has, and those that it may have (section 5)."""

_UNTAGGED = {"RUN_STARTED", "RUN_FINISHED", "RUN_ERROR", "MESSAGES_SNAPSHOT"}
_OUTCOMES = {
    "success": {"pendingToolCallIds"},
    "interrupt": {"interrupts"},
    "cancelled": set(),
}
_INTERRUPT: dict[str, type] = {
    "id": str,
    "reason": str,
    "message": str,
    "toolCallId": str,
    "responseSchema": dict,
    "expiresAt": str,
    "metadata": dict,
    "subagentRunId": str,
}
_PAIRS = {
    "TEXT_MESSAGE": ("message", "messageId"),
    "REASONING_MESSAGE": ("reasoning", "messageId"),
    "TOOL_CALL": ("call", "toolCallId"),
}


class Refused(AnyRefused):
    """The server answered with an error status."""

    @property
    def code(self) -> str | None:
        """The code of the body, as Dragoman writes it."""
        code = self.body.get("code") if isinstance(self.body, dict) else None
        return code if isinstance(code, str) else None


def split(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a whole body."""
    return [event for part in body.split(b"\n\n") if (event := _event(part)) is not None]


def _event(part: bytes) -> dict[str, Any] | None:
    if b"\r" in part:
        raise ProtocolViolation("a carriage return in the framing", part)
    lines = [line[5:].removeprefix(b" ") for line in part.split(b"\n") if line.startswith(b"data:")]
    if not lines:
        return None
    try:
        event = json.loads(b"\n".join(lines))
    except ValueError:
        raise ProtocolViolation("an event is not JSON", part) from None
    if not isinstance(event, dict) or event.get("type") not in _SHAPES:
        raise ProtocolViolation("no event of a known type", event)
    return event


def _refused(body: bytes, headers: Mapping[str, str]) -> Refused:
    """Return the refusal that a whole run says: of words while something is asked, which gives the
    client its interrupts again, or of an answer to what was answered before."""
    events, checker = split(body), Checker()
    for event in events:
        checker.feed(event)
    checker.end()
    _, *told, finished = events
    names = {one["name"] for one in told}
    if names == {"dragoman.passed_over"}:
        said = {"code": "already_answered", "error": told[0]["value"]["message"]}
        return Refused(409, {**said, "events": events}, headers)
    if names != {"dragoman.refused"} or finished["outcome"]["type"] != "interrupt":
        raise ProtocolViolation("no refusal of words while something is asked", events)
    return Refused(409, {**told[0]["value"], **finished["outcome"]}, headers)


class Checker:
    """Checks the events of one answer: their members, and their order.

    `stamped` asks for a `timestamp` that rises, which is Dragoman's promise.
    """

    def __init__(self, *, stamped: bool = False) -> None:
        self.stamped = stamped
        self.stamp = 0
        self.state = "new"
        self.open: set[tuple[str | None, str, str]] = set()
        self.owners: dict[tuple[str, str], str | None] = {}
        self.children: dict[str, str] = {}

    def feed(self, event: dict[str, Any]) -> dict[str, Any]:
        """Check the next event, and return it."""
        self._members(event)
        type_ = event["type"]
        if self.stamped and event.get("timestamp", 0) <= self.stamp:
            raise ProtocolViolation("its `timestamp` does not rise", event)
        self.stamp = event.get("timestamp", 0)
        if self.state in ("new", "failed", "closed"):
            admitted = {"RUN_STARTED"} | ({"RUN_ERROR"} if self.state != "failed" else set())
            if type_ not in admitted:
                raise ProtocolViolation(f"it comes where the run is {self.state}", event)
        elif type_ == "RUN_STARTED":
            raise ProtocolViolation("a run begins in an open run", event)
        match type_:
            case "RUN_STARTED":
                self.state = "open"
                self.open.clear()
                self.owners.clear()
                self.children.clear()
            case "RUN_FINISHED":
                left = [*self.open, *(c for c, s in self.children.items() if s == "active")]
                if left:
                    raise ProtocolViolation(f"the run leaves this open: {left}", event)
                self.state = "closed"
            case "RUN_ERROR":
                self.state = "failed"
            case _:
                self._in_run(event)
        return event

    def end(self) -> None:
        """Check that the run was whole at the end of the body."""
        if self.state not in ("closed", "failed"):
            raise Disconnected(f"the body ends while the run is {self.state}")

    def _members(self, event: dict[str, Any]) -> None:
        needs, may = _SHAPES[event["type"]]
        tags = set() if event["type"] in _UNTAGGED else _TAGGED
        unknown = set(event) - _BASE - tags - set(needs) - set(may)
        if unknown:
            raise ProtocolViolation(f"members that are unknown: {sorted(unknown)}", event)
        for name, kind in {**may, **needs}.items():
            if name not in event:
                if name in needs:
                    raise ProtocolViolation(f"`{name}` is missing", event)
            elif event[name] is None and name in may:
                raise ProtocolViolation(f"`{name}` is null, not left out", event)
            elif not isinstance(event[name], kind):
                raise ProtocolViolation(f"`{name}` is of a wrong type", event)
        if not isinstance(event.get("metadata", {}), dict):
            raise ProtocolViolation("`metadata` is not an object", event)
        if not isinstance(event.get("subagentRunId", ""), str):
            raise ProtocolViolation("`subagentRunId` is not a string", event)
        if "outcome" in event and event["type"] == "RUN_FINISHED":
            self._outcome(event)

    @staticmethod
    def _outcome(event: dict[str, Any]) -> None:
        outcome = event["outcome"]
        kind = outcome.get("type")
        if kind not in _OUTCOMES or set(outcome) - {"type"} - _OUTCOMES[kind]:
            raise ProtocolViolation("an outcome that is unknown", event)
        if kind != "interrupt":
            return
        interrupts = outcome["interrupts"]
        ids = [one["id"] for one in interrupts]
        if not ids or len(set(ids)) < len(ids):
            raise ProtocolViolation("an interrupt without interrupts, or with one twice", event)
        for one in interrupts:
            wrong = [n for n, v in one.items() if not isinstance(v, _INTERRUPT.get(n, ()))]
            if wrong or "reason" not in one:
                raise ProtocolViolation(f"an interrupt with wrong members {wrong}", event)
            if one["reason"] == "tool_call" and "toolCallId" not in one:
                raise ProtocolViolation("an interrupt of a call without its call", event)

    def _in_run(self, event: dict[str, Any]) -> None:
        type_, tag = event["type"], event.get("subagentRunId")
        for family, (kind, member) in _PAIRS.items():
            if type_ == f"{family}_START":
                self._start(event, kind, event[member])
            elif type_ in (f"{family}_CONTENT", f"{family}_ARGS", f"{family}_END"):
                self._go_on(event, kind, event[member], ends=type_ == f"{family}_END")
        match type_:
            case "REASONING_START":
                self._start(event, "span", event["messageId"])
            case "REASONING_END":
                self._go_on(event, "span", event["messageId"], ends=True)
            case "STEP_STARTED":
                self._start(event, "step", event["stepName"], owner=tag)
            case "STEP_FINISHED":
                step = (tag, "step", event["stepName"])
                if step not in self.open:
                    raise ProtocolViolation("a step that is not open", event)
                self.open.remove(step)
            case "SUBAGENT_STARTED":
                parent = event.get("parentSubagentRunId")
                if tag in self.children or (parent is not None and parent not in self.children):
                    raise ProtocolViolation("a subagent twice, or without its parent", event)
                self.children[str(tag)] = "active"
            case "SUBAGENT_FINISHED" | "SUBAGENT_ERROR":
                if self.children.get(str(tag)) != "active":
                    raise ProtocolViolation("a subagent that is not active", event)
                self.children[str(tag)] = "over"

    def _start(
        self, event: dict[str, Any], kind: str, name: str, *, owner: str | None = None
    ) -> None:
        if (owner, kind, name) in self.open:
            raise ProtocolViolation(f"a {kind} that is open already", event)
        tag = event.get("subagentRunId")
        parent = event.get("parentMessageId")
        inherited = self.owners.get(("message", parent)) if parent is not None else None
        if tag is not None and parent is not None and inherited not in (None, tag):
            raise ProtocolViolation("a call whose message is another's", event)
        self.open.add((owner, kind, name))
        if kind == "step":
            # Its name is its owner's own.
            return
        if tag is not None and self.owners.get((kind, name), tag) != tag:
            raise ProtocolViolation(f"a {kind} that is another's", event)
        self.owners.setdefault((kind, name), tag)

    def _go_on(self, event: dict[str, Any], kind: str, name: str, *, ends: bool) -> None:
        if (None, kind, name) not in self.open:
            raise ProtocolViolation(f"a {kind} that is not open", event)
        tag = event.get("subagentRunId")
        if tag is not None and self.owners[kind, name] != tag:
            raise ProtocolViolation(f"a {kind} that is another's", event)
        if ends:
            self.open.remove((None, kind, name))


class Applied:
    """What a client has after the events that it applied: messages and open interrupts."""

    def __init__(self, messages: Sequence[dict[str, Any]] = ()) -> None:
        self.messages: list[dict[str, Any]] = json.loads(json.dumps(list(messages)))
        self.interrupts: list[dict[str, Any]] = []
        self.pending: list[str] = []

    def message(self, message_id: str) -> dict[str, Any] | None:
        """Return a message by its id."""
        return next((m for m in self.messages if m["id"] == message_id), None)

    def call(self, call_id: str) -> dict[str, Any]:
        """Return a call by its id."""
        calls = [c for m in self.messages for c in m.get("toolCalls", ())]
        return next(c for c in calls if c["id"] == call_id)

    def apply(self, event: dict[str, Any]) -> None:
        """Take the next event."""
        match event["type"]:
            case "RUN_STARTED":
                for given in event.get("input", {}).get("messages", ()):
                    if self.message(given["id"]) is None:
                        self.messages.append(dict(given))
            case "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START":
                self._open(event)
            case "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT":
                target = self.message(event["messageId"])
                assert target is not None
                target["content"] = target.get("content", "") + event["delta"]
            case "TEXT_MESSAGE_END" | "REASONING_MESSAGE_END":
                target = self.message(event["messageId"])
                assert target is not None
                self._merge(target, event)
            case "TOOL_CALL_START":
                parent = event.get("parentMessageId", event["toolCallId"])
                holder = self.message(parent)
                if holder is None:
                    holder = {"id": parent, "role": "assistant"}
                    self.messages.append(holder)
                function = {"name": event["toolCallName"], "arguments": ""}
                call = {"id": event["toolCallId"], "type": "function", "function": function}
                holder.setdefault("toolCalls", []).append(call)
                self._merge(call, event)
            case "TOOL_CALL_ARGS":
                self.call(event["toolCallId"])["function"]["arguments"] += event["delta"]
            case "TOOL_CALL_RESULT":
                result = {"id": event["messageId"], "role": "tool"}
                result |= {"toolCallId": event["toolCallId"], "content": event["content"]}
                self._merge(result, event)
                self.messages.insert(self._behind(event["toolCallId"]), result)
            case "RUN_FINISHED":
                outcome = event.get("outcome", {})
                self.interrupts = list(outcome.get("interrupts", ()))
                self.pending = list(outcome.get("pendingToolCallIds", ()))

    def _behind(self, call_id: str) -> int:
        """Return the place of a call's result: behind its message and the results there."""
        for at, message in enumerate(self.messages):
            if any(call["id"] == call_id for call in message.get("toolCalls", ())):
                while at + 1 < len(self.messages) and self.messages[at + 1]["role"] == "tool":
                    at += 1
                return at + 1
        return len(self.messages)

    def _open(self, event: dict[str, Any]) -> None:
        if self.message(event["messageId"]) is not None:
            raise ProtocolViolation("a message that the client has is told again", event)
        role = event.get("role", "assistant")
        message = {"id": event["messageId"], "role": role, "content": ""}
        if "subagentRunId" in event:
            message["subagentRunId"] = event["subagentRunId"]
        self._merge(message, event)
        self.messages.append(message)

    @staticmethod
    def _merge(target: dict[str, Any], event: dict[str, Any]) -> None:
        if "metadata" in event:
            target["metadata"] = {**target.get("metadata", {}), **event["metadata"]}


class AguiClient:
    """Asks for runs and reads threads, as `HttpAgent` does; `stamped` is that of its `Checker`."""

    def __init__(self, http: aiohttp.ClientSession, url: str, *, stamped: bool = True) -> None:
        self.http = http
        self.url = url
        self.stamped = stamped

    async def run(
        self, thread: str, run: str, messages: Sequence[dict[str, Any]], **more: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Ask for a run and yield its events; a refusal is raised as `Refused`."""
        body: dict[str, Any] = {"threadId": thread, "runId": run, "protocolVersion": "1.0"}
        body |= {"messages": [*messages], "tools": [], "context": [], "forwardedProps": {}}
        body["state"] = {}
        async with aclosing(self._events("POST", "", {**body, **more})) as events:
            async for event in events:
                if event["type"] == "RUN_STARTED" and event["threadId"] != thread:
                    raise ProtocolViolation("a run of another thread", event)
                yield event

    def read(self, path: str, method: str = "GET") -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of a thread or a run that is there."""
        return self._events(method, path, None)

    def again(self, path: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the rest of a thread, which may begin within a run: the order is not checked."""
        return self._events("GET", path, None, whole=False)

    async def ask(self, method: str, path: str, json_body: Any = None) -> Any:
        """Ask for anything, and return the JSON."""
        async with self.http.request(method, f"{self.url}{path}", json=json_body) as answer:
            await refuse(answer, Refused)
            return await answer.json()

    async def _events(
        self, method: str, path: str, body: Any, *, whole: bool = True
    ) -> AsyncGenerator[dict[str, Any], None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
        headers = {"Accept": "text/event-stream"}
        sent = None if body is None else io.BytesIO(json.dumps(body).encode())
        if sent is not None:
            headers["Content-Type"] = "application/json"
        async with self.http.request(
            method, f"{self.url}{path}", data=sent, headers=headers, timeout=timeout
        ) as answer:
            await refuse(answer, Refused)
            if answer.content_type != "text/event-stream":
                raise ProtocolViolation("no event stream", answer.content_type)
            if "Content-Length" in answer.headers:
                raise _refused(await answer.read(), answer.headers)
            checker, rest = Checker(stamped=self.stamped), b""
            async for data in answer.content.iter_any():
                *parts, rest = (rest + data).split(b"\n\n")
                for part in parts:
                    event = _event(part)
                    if event is not None:
                        yield checker.feed(event) if whole else event
            if rest:
                raise Disconnected(f"the body ends inside an event: {rest[:200]!r}")
            if whole and "after=" not in path:
                checker.end()
