"""A strict client of the September Engine: the page's quick-start client, plus every check.

It reads a body as the documented quick-start clients do (engine page, section 13: split on two line
feeds, parse each `data:` line by itself, read to the end of the body) and raises
`ProtocolViolation` for anything that such a client, or a client that keeps to sections 7 to 9,
would stumble over.
"""

import datetime as dt
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp

from tests.support.strictness import (
    ISO_MS,
    SILENCE_S,
    Disconnected,
    ProtocolViolation,
    merged,
    refuse,
)
from tests.support.strictness import Refused as AnyRefused

__all__ = [
    "Disconnected",
    "EngineClient",
    "EngineEvent",
    "EngineTurn",
    "Expect",
    "ProtocolViolation",
    "Refused",
    "StreamChecker",
]

_DELTAS = {"text_delta": "text", "thinking_delta": "thinking"}
_BLOCK_TYPES = {"text", "thinking", "tool_use"}
_PHASES = {"started", "completed", "errored"}
_KINDS = {"permission", "question"}


class Refused(AnyRefused):
    """The server answered with an error status."""

    @property
    def code(self) -> str | None:
        """The stable code of the page's error body (section 4.1)."""
        code = self.body.get("error") if isinstance(self.body, dict) else None
        return code if isinstance(code, str) else None


class EngineEvent(NamedTuple):
    """One event: its type and its payload."""

    event: str
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Expect:
    """What is asked of a stream beyond what every Engine stream must do.

    The defaults are what the page tells a server to write (section 17). A test of a lenient variant
    lowers one of them.

    Args:
        plain_framing: one `event:` line, one `data:` line, line feeds only, nothing else.
        tool_ids: `tool_call_id` on both tool events.
        full_lifecycle: `turn_id` and `timestamp` on lifecycle events.
        resolved_ids: `request_id` on `hitl_resolved`.
        error_first: a failed turn says `error`, then `errored`.
        known_types: no event type outside of section 8.
        stamped: a `timestamp` in every payload, never going back, rising on all but heartbeats.
    """

    plain_framing: bool = True
    tool_ids: bool = True
    full_lifecycle: bool = True
    resolved_ids: bool = True
    error_first: bool = True
    known_types: bool = True
    stamped: bool = False


class _Split:
    """Bytes to (event, data lines): the framing of section 7."""

    def __init__(self, plain: bool) -> None:
        self._plain = plain
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[str, list[str]]]:
        """Take bytes, return the events that are complete."""
        self._rest += data
        if self._plain:
            if b"\r" in self._rest:
                raise ProtocolViolation("a carriage return in the framing", self._rest)
            *blocks, self._rest = self._rest.split(b"\n\n")
        else:
            # A lone CR at the end may be half of a CRLF.
            held = b"\r" if self._rest.endswith(b"\r") else b""
            text = self._rest.removesuffix(b"\r").replace(b"\r\n", b"\n")
            *blocks, rest = text.split(b"\n\n")
            self._rest = rest + held
        return [event for block in blocks if (event := self._event(block)) is not None]

    def close(self) -> None:
        """Take the end of the body."""
        if self._rest:
            raise Disconnected(f"the body ends inside an event: {self._rest[:200]!r}")

    def _event(self, block: bytes) -> tuple[str, list[str]] | None:
        try:
            lines = block.decode().split("\n")
        except UnicodeDecodeError:
            raise ProtocolViolation("an event is not UTF-8", block) from None
        if self._plain:
            return self._plain_event(block, lines)
        event, data = "", []
        for line in lines:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                event = value
            elif name == "data":
                data.append(value)
        if not event and not data:
            return None
        if not event:
            raise ProtocolViolation("an event without `event:`", block)
        return event, data

    @staticmethod
    def _plain_event(block: bytes, lines: Sequence[str]) -> tuple[str, list[str]]:
        if len(lines) != 2:
            raise ProtocolViolation("an event is not one `event:` and one `data:` line", block)
        first, second = lines
        if not first.startswith("event: ") or not first.removeprefix("event: ").strip():
            raise ProtocolViolation("the first line is not `event: <type>`", block)
        if not second.startswith("data: "):
            raise ProtocolViolation("the second line is not `data: <json>`", block)
        return first.removeprefix("event: "), [second.removeprefix("data: ")]


@dataclass(slots=True)
class _State:
    """What a stream has shown so far."""

    started: bool = False
    terminal: str | None = None
    turn_id: str | None = None
    clock: int | None = None
    open_request: dict[str, Any] | None = None
    requests: set[str] = field(default_factory=set)
    calls: list[str | None] = field(default_factory=list)
    call_ids: set[str] = field(default_factory=set)
    blocks: list[tuple[int, str]] = field(default_factory=list)


class StreamChecker:
    """Checks the body of one `/execute` or `/execute/replay`: bytes in, events out.

    Args:
        task_id: what lifecycle and request events must name; `None` accepts any one.
        replay: a replay may begin in the middle and may show several turns after each other.
        expect: what is asked beyond the page's minimum.

    Raises:
        ProtocolViolation: from `feed` and `close`, for a broken promise.
        Disconnected: from `close`, when a turn is not over.
    """

    def __init__(
        self, task_id: str | None = None, *, replay: bool = False, expect: Expect | None = None
    ) -> None:
        """Start before the first byte."""
        self._expect = expect or Expect()
        self._task_id = task_id
        self._replay = replay
        self._split = _Split(self._expect.plain_framing)
        self._state = _State()
        self._empty = True
        self._quiet = True

    def feed(self, data: bytes) -> list[EngineEvent]:
        """Take bytes, return the events that are complete."""
        return [self._check(event, lines) for event, lines in self._split.feed(data)]

    def close(self) -> None:
        """Take the end of the body."""
        self._split.close()
        if self._empty and self._replay:
            return
        state = self._state
        if state.terminal is None:
            raise Disconnected("the body ends without a terminal event")
        if state.terminal == "error" and self._expect.error_first:
            raise ProtocolViolation("`error` is not followed by `errored`")

    def _check(self, event: str, lines: Sequence[str]) -> EngineEvent:
        text = "\n".join(lines)
        try:
            payload = json.loads(text)
        except ValueError:
            raise ProtocolViolation("data is not JSON", (event, text)) from None
        if not isinstance(payload, dict):
            raise ProtocolViolation("data is not a JSON object", (event, text))
        seen = EngineEvent(event, payload)
        self._empty = False
        if "text" in payload and event not in _DELTAS:
            raise ProtocolViolation("`text` outside of the delta events", seen)
        self._order(seen)
        self._times(seen)
        check = _CHECKS.get(event)
        if check is not None:
            check(self, seen)
        elif self._expect.known_types:
            raise ProtocolViolation("an undocumented event type", seen)
        if event != "heartbeat":
            self._quiet = False
        return seen

    def _order(self, seen: EngineEvent) -> None:
        """Section 9: `started` first, nothing after the end but the other half of a failure."""
        state = self._state
        starts = seen.event == "thread_lifecycle" and seen.payload.get("phase") == "started"
        ends = seen.event == "error" or seen.payload.get("phase") == "errored"
        if state.terminal is not None:
            other_half = {"error": "thread_lifecycle", "errored": "error"}.get(state.terminal)
            if ends and seen.event == other_half:
                return
            if not (self._replay and starts):
                raise ProtocolViolation(f"an event after the end ({state.terminal})", seen)
            self._state = _State(clock=state.clock, requests=state.requests)
            return
        if not state.started and not starts and not self._replay:
            raise ProtocolViolation("the first event is not `started`", seen)
        if state.started and starts:
            raise ProtocolViolation("a second `started` in a turn", seen)

    def _times(self, seen: EngineEvent) -> None:
        stamp = seen.payload.get("timestamp")
        if stamp is None:
            if self._expect.stamped:
                raise ProtocolViolation("an event without `timestamp`", seen)
            return
        when = self._moment(stamp, seen)
        before = self._state.clock
        if before is not None:
            repeats = when == before and (seen.event == "heartbeat" or not self._expect.stamped)
            if when < before or (when == before and not repeats):
                raise ProtocolViolation("`timestamp` goes back or stands still", seen)
        self._state.clock = when

    @staticmethod
    def _moment(value: object, seen: EngineEvent) -> int:
        if not isinstance(value, str) or not ISO_MS.match(value):
            raise ProtocolViolation("a time is not ISO 8601 UTC with milliseconds", seen)
        try:
            when = dt.datetime.fromisoformat(value)
        except ValueError:
            raise ProtocolViolation("a time does not exist", seen) from None
        return round(when.timestamp() * 1000)

    def _task(self, seen: EngineEvent) -> None:
        named = seen.payload.get("task_id")
        if not isinstance(named, str) or (self._task_id is not None and named != self._task_id):
            raise ProtocolViolation(f"`task_id` is not `{self._task_id}`", seen)

    def lifecycle(self, seen: EngineEvent) -> None:
        """Section 8.1."""
        state, payload = self._state, seen.payload
        if payload.get("phase") not in _PHASES:
            raise ProtocolViolation("an unknown phase", seen)
        self._task(seen)
        turn_id = payload.get("turn_id")
        if self._expect.full_lifecycle or "turn_id" in payload:
            _is(seen, "turn_id", str)
            if state.turn_id is not None and state.turn_id != turn_id:
                raise ProtocolViolation("another `turn_id` in the same turn", seen)
            state.turn_id = turn_id
        if self._expect.full_lifecycle:
            _is(seen, "timestamp", str)
        match payload["phase"]:
            case "started":
                state.started = True
            case "completed":
                if state.open_request is not None:
                    raise ProtocolViolation("completed while a request is open", seen)
                if state.blocks:
                    raise ProtocolViolation("completed while a block is open", seen)
                state.terminal = "completed"
            case "errored":
                # A replay may begin between the two: its reader has the first.
                halved = self._replay and self._quiet
                if state.terminal is None and self._expect.error_first and not halved:
                    raise ProtocolViolation("`errored` before `error`", seen)
                state.terminal = "errored" if state.terminal is None else "both"

    def error(self, seen: EngineEvent) -> None:
        """Sections 4.1 and 8.2."""
        _is(seen, "error", str)
        _is(seen, "message", str)
        if "details" in seen.payload:
            _is(seen, "details", dict)
        self._state.terminal = "error" if self._state.terminal is None else "both"

    def delta(self, seen: EngineEvent) -> None:
        """Sections 8.3 and 8.4."""
        _is(seen, "text", str)
        self._active(seen)
        kind = _DELTAS[seen.event]
        if self._state.blocks and self._state.blocks[-1][1] != kind:
            raise ProtocolViolation(f"a delta inside of a {self._state.blocks[-1][1]} block", seen)

    def block_start(self, seen: EngineEvent) -> None:
        """Section 8.5."""
        _count(seen, "block_index")
        if seen.payload.get("block_type") not in _BLOCK_TYPES:
            raise ProtocolViolation("an unknown `block_type`", seen)
        if self._state.blocks:
            raise ProtocolViolation("a block inside of a block", seen)
        self._state.blocks.append((seen.payload["block_index"], seen.payload["block_type"]))

    def block_stop(self, seen: EngineEvent) -> None:
        """Section 8.5."""
        _count(seen, "block_index")
        if not self._state.blocks:
            if self._replay and not self._state.started:
                return
            raise ProtocolViolation("a block ends that did not start", seen)
        index, kind = self._state.blocks.pop()
        if seen.payload["block_index"] != index or seen.payload.get("block_type", kind) != kind:
            raise ProtocolViolation("another block ends than the open one", seen)

    def tool_call(self, seen: EngineEvent) -> None:
        """Section 8.6."""
        _is(seen, "tool", str)
        self._active(seen)
        if "input" not in seen.payload:
            raise ProtocolViolation("a tool call without `input`", seen)
        call_id = self._call_id(seen)
        if call_id is not None and call_id in self._state.call_ids:
            raise ProtocolViolation("a second tool call with the same id", seen)
        self._state.calls.append(call_id)
        if call_id is not None:
            self._state.call_ids.add(call_id)

    def tool_result(self, seen: EngineEvent) -> None:
        """Section 8.7."""
        if "output" not in seen.payload:
            raise ProtocolViolation("a tool result without `output`", seen)
        call_id = self._call_id(seen)
        state = self._state
        if call_id is None:
            if state.calls:
                state.calls.pop(0)
                return
        elif call_id in state.calls:
            state.calls.remove(call_id)
            return
        if not (self._replay and not state.started):
            raise ProtocolViolation("a tool result without its call", seen)

    def _call_id(self, seen: EngineEvent) -> str | None:
        if self._expect.tool_ids or "tool_call_id" in seen.payload:
            _is(seen, "tool_call_id", str)
            call_id: str = seen.payload["tool_call_id"]
            return call_id
        return None

    def _active(self, seen: EngineEvent) -> None:
        """Section 9.1, point 4: between a request and its answer nothing happens."""
        if self._state.open_request is not None:
            raise ProtocolViolation("the turn goes on while a request is open", seen)

    def hitl_request(self, seen: EngineEvent) -> None:
        """Sections 8.8 and 10.1."""
        check_request(seen.payload)
        self._task(seen)
        request_id = seen.payload["request_id"]
        open_ = self._state.open_request
        if open_ is not None and open_["request_id"] == request_id:
            # One that is open may be said again: its answer came to nothing.
            return
        self._active(seen)
        if request_id in self._state.requests:
            raise ProtocolViolation("the same request twice", seen)
        self._state.requests.add(request_id)
        self._state.open_request = seen.payload

    def hitl_resolved(self, seen: EngineEvent) -> None:
        """Section 8.9."""
        request = self._state.open_request
        if request is None and not (self._replay and not self._state.started):
            raise ProtocolViolation("nothing was open to be resolved", seen)
        if self._expect.resolved_ids or "request_id" in seen.payload:
            _is(seen, "request_id", str)
            if request is not None and request["request_id"] != seen.payload["request_id"]:
                raise ProtocolViolation("another request is resolved than the open one", seen)
        self._state.open_request = None

    def compaction(self, seen: EngineEvent) -> None:
        """Section 8.11; Dragoman leaves out the sizes that its backend does not tell."""
        for name in ("before_tokens", "after_tokens"):
            if name in seen.payload:
                _count(seen, name)
        _is(seen, "strategy", str)

    def usage(self, seen: EngineEvent) -> None:
        """Section 8.13."""
        for name in ("input_tokens", "output_tokens", "cache_hit_tokens"):
            _count(seen, name)
        if seen.payload["cache_hit_tokens"] > seen.payload["input_tokens"]:
            raise ProtocolViolation("more cached tokens than tokens", seen)

    def anything(self, seen: EngineEvent) -> None:
        """Sections 8.10 and 8.12: opaque objects."""


_CHECKS: Mapping[str, Callable[[StreamChecker, EngineEvent], None]] = {
    "thread_lifecycle": StreamChecker.lifecycle,
    "error": StreamChecker.error,
    "text_delta": StreamChecker.delta,
    "thinking_delta": StreamChecker.delta,
    "content_block_start": StreamChecker.block_start,
    "content_block_stop": StreamChecker.block_stop,
    "tool_call": StreamChecker.tool_call,
    "tool_result": StreamChecker.tool_result,
    "hitl_request": StreamChecker.hitl_request,
    "hitl_resolved": StreamChecker.hitl_resolved,
    "working_memory_update": StreamChecker.anything,
    "compaction_event": StreamChecker.compaction,
    "heartbeat": StreamChecker.anything,
    "usage": StreamChecker.usage,
}


def _is(seen: EngineEvent, name: str, kind: type) -> None:
    value = seen.payload.get(name)
    if not isinstance(value, kind) or (kind is str and name != "text" and not value):
        raise ProtocolViolation(f"`{name}` is not a {kind.__name__}", seen)


def _count(seen: EngineEvent, name: str) -> None:
    value = seen.payload.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ProtocolViolation(f"`{name}` is not a count", seen)


def check_request(record: Mapping[str, Any]) -> None:
    """Check a request for a person, in the stream or in `/hitl/pending` (sections 8.8, 10.3).

    Raises:
        ProtocolViolation: it lacks a member or has one of the wrong form.
    """
    for name in ("request_id", "task_id", "question"):
        if not isinstance(record.get(name), str) or not record[name]:
            raise ProtocolViolation(f"a request without `{name}`", record)
    if record.get("kind") not in _KINDS:
        raise ProtocolViolation("a request of an unknown kind", record)
    created = record.get("created_at")
    if not isinstance(created, str) or not ISO_MS.match(created):
        raise ProtocolViolation("a request without the time of its creation", record)
    options = record.get("options")
    if options is None:
        return
    if not isinstance(options, list) or not options:
        raise ProtocolViolation("`options` is not a list of choices", record)
    for option in options:
        label = option.get("label") if isinstance(option, dict) else option
        if not isinstance(label, str) or not label:
            raise ProtocolViolation("an option without a label", record)


@dataclass(slots=True)
class EngineTurn:
    """All events of one turn."""

    events: list[EngineEvent] = field(default_factory=list)

    @property
    def outcome(self) -> str | None:
        """`completed`, `failed`, or `None` without a terminal event (section 9.2)."""
        ends = {seen.payload.get("phase") for seen in self.events}
        if "errored" in ends or any(seen.event == "error" for seen in self.events):
            return "failed"
        return "completed" if "completed" in ends else None

    def payloads(self, event: str) -> list[dict[str, Any]]:
        """The payloads of one event type, in order."""
        return [seen.payload for seen in self.events if seen.event == event]

    @property
    def text(self) -> str:
        """The whole answer (section 8.3)."""
        return "".join(payload["text"] for payload in self.payloads("text_delta"))

    @property
    def thinking(self) -> str:
        """The whole reasoning (section 8.4)."""
        return "".join(payload["text"] for payload in self.payloads("thinking_delta"))

    @property
    def types(self) -> list[str]:
        """The event types in order, heartbeats left out, equal neighbours merged."""
        return merged(
            [
                seen.payload["phase"] if seen.event == "thread_lifecycle" else seen.event
                for seen in self.events
                if seen.event != "heartbeat"
            ]
        )


def _core(record: Mapping[str, Any]) -> dict[str, Any]:
    """What an event and a listed record of the same request have in common (section 8.8)."""
    names = ("request_id", "task_id", "kind", "question", "options", "created_at")
    return {name: record.get(name) for name in names}


Answerer = Callable[[dict[str, Any]], Mapping[str, Any]]


class EngineClient:
    """Talks to an Engine, or to something that plays one.

    Args:
        session: the HTTP client to use.
        base_url: where the Engine's routes are, without a slash at the end.
        key: the value of `X-Engine-Key`.
        expect: what is asked of every stream.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        key: str | None = None,
        *,
        expect: Expect | None = None,
    ) -> None:
        """Keep where to talk to; nothing is sent yet."""
        self._session = session
        self._base = base_url.rstrip("/")
        self._headers = {"X-Engine-Key": key} if key is not None else {}
        self.expect = expect or Expect()

    async def execute(
        self, message: str, task_id: str, **members: Any
    ) -> AsyncGenerator[EngineEvent, None]:
        """Run a turn and yield its events; further members of the body go in as they are.

        Raises:
            Refused: the answer is an error status.
            ProtocolViolation: the stream breaks a promise.
            Disconnected: the body ends or breaks before the turn does.
        """
        body = {"message": message, "task_id": task_id, **members}
        checker = StreamChecker(task_id, expect=self.expect)
        async with self._request("POST", "/execute", json=body) as response:
            async for event in self._events(response, checker):
                yield event

    async def replay(
        self, after: int, task_id: str | None = None, *, expect: Expect | None = None
    ) -> AsyncGenerator[EngineEvent, None]:
        """Yield what was emitted after a time in ms, as `execute` does (section 11.1)."""
        query = {"after": str(after)} | ({"task_id": task_id} if task_id is not None else {})
        checker = StreamChecker(task_id, replay=True, expect=expect or self.expect)
        async with self._request("GET", "/execute/replay", params=query) as response:
            async for event in self._events(response, checker):
                yield event

    async def turn(
        self,
        message: str,
        task_id: str,
        answers: Answerer | Sequence[str] = (),
        **members: Any,
    ) -> EngineTurn:
        """Run a turn to its end, answering each request when it comes.

        Args:
            message: the user's message.
            task_id: the conversation.
            answers: the `answer` of each request in order, or a function from the request to
                the members of the answer (`answer`, `feedback`, `content_blocks`).
            members: further members of the body of `/execute`.
        """
        given = iter(() if callable(answers) else answers)
        turn = EngineTurn()
        async with aclosing(self.execute(message, task_id, **members)) as events:
            async for seen in events:
                turn.events.append(seen)
                if seen.event == "hitl_request":
                    listed = [_core(record) for record in await self.pending()]
                    if _core(seen.payload) not in listed:
                        raise ProtocolViolation("`/hitl/pending` lacks the request", seen)
                    answer = answers(seen.payload) if callable(answers) else {"answer": next(given)}
                    resumed = await self.respond(task_id, **answer)
                    if resumed["request_id"] != seen.payload["request_id"]:
                        raise ProtocolViolation("another request was resumed", resumed)
        return turn

    async def respond(self, task_id: str, answer: str, **members: Any) -> dict[str, Any]:
        """Answer what a task waits for (section 10.1); returns the body of the 200.

        Raises:
            Refused: nothing is pending, or the answer does not fit.
            ProtocolViolation: the answer's body has another form.
        """
        body = {"task_id": task_id, "answer": answer, **members}
        resumed = await self._json("POST", "/hitl/respond", json=body)
        if resumed.get("status") != "resumed" or not isinstance(resumed.get("request_id"), str):
            raise ProtocolViolation("an answer was not taken as documented", resumed)
        return resumed

    async def pending(self) -> list[dict[str, Any]]:
        """What all tasks wait for (section 10.3)."""
        body = await self._json("GET", "/hitl/pending")
        records = body.get("pending")
        if not isinstance(records, list):
            raise ProtocolViolation("`pending` is not a list", body)
        for record in records:
            check_request(record)
        ids = [record["request_id"] for record in records]
        tasks = [record["task_id"] for record in records]
        if len(set(ids)) != len(ids) or len(set(tasks)) != len(tasks):
            raise ProtocolViolation("a request or a task is listed twice", records)
        return records

    async def health(self) -> dict[str, Any]:
        """Liveness, without the key (section 16)."""
        url = f"{self._base}/health"
        async with self._session.get(url) as response:
            body = await self._checked_json(response)
        if body.get("status") != "ok" or not isinstance(body.get("uptime_seconds"), int | float):
            raise ProtocolViolation("health is not as documented", body)
        return body

    async def post(self, path: str, body: bytes, content_type: str = "application/json") -> Any:
        """Send any bytes to a route; returns the JSON of a 2xx that is not a stream.

        Raises:
            Refused: the answer is an error status.
        """
        headers = {"Content-Type": content_type}
        return await self._json("POST", path, data=body, headers=headers)

    async def get(self, path: str) -> Any:
        """Get any path; returns the JSON of a 2xx.

        Raises:
            Refused: the answer is an error status.
        """
        return await self._json("GET", path)

    def _request(self, method: str, path: str, **arguments: Any) -> Any:
        headers = {**self._headers, **arguments.pop("headers", {})}
        # Section 12: no read timeout but one that finds a dead server.
        timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
        return self._session.request(
            method,
            self._base + path,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            **arguments,
        )

    async def _json(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        async with self._request(method, path, **arguments) as response:
            return await self._checked_json(response)

    @staticmethod
    async def _checked_json(response: aiohttp.ClientResponse) -> dict[str, Any]:
        await refuse(response, Refused)
        if response.content_type != "application/json":
            raise ProtocolViolation("an answer is not JSON", response.headers)
        body = await response.json()
        if not isinstance(body, dict):
            raise ProtocolViolation("an answer is not a JSON object", body)
        return body

    async def _events(
        self, response: aiohttp.ClientResponse, checker: StreamChecker
    ) -> AsyncIterator[EngineEvent]:
        await refuse(response, Refused)
        if response.status != 200 or response.content_type != "text/event-stream":
            raise ProtocolViolation("not a 200 with an event stream", response.headers)
        for name, value in (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no")):
            if value not in response.headers.get(name, ""):
                raise ProtocolViolation(f"`{name}` is not `{value}`", response.headers)
        if "Content-Encoding" in response.headers:
            raise ProtocolViolation("a stream is compressed", response.headers)
        try:
            async for data in response.content.iter_any():
                for event in checker.feed(data):
                    yield event
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as broken:
            raise Disconnected(str(broken)) from broken
        checker.close()
