"""A strict client of Herm: what the page asks a client to do, plus every check that can be made.

It reads frames of exactly three lines, joins stream and list by id, and raises `ProtocolViolation`
for anything that a client which keeps to sections 3 to 6 and 9 of the Herm page would stumble over.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

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
    "Envelope",
    "Expect",
    "HermClient",
    "HermTurn",
    "ProtocolViolation",
    "Refused",
    "StreamChecker",
    "check_join",
]

Envelope = dict[str, Any]

_ISO_S = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
_STATUSES = {"complete", "pending", "processing", "failed", "streaming"}
_TEXTS = {"agent.message", "agent.thinking"}
_USES = {"agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"}
_RESULTS = {"agent.tool_result", "agent.mcp_tool_result"}
MAX_TEXT = 20_000


class Refused(AnyRefused):
    """The server answered with an error status."""

    @property
    def code(self) -> str | None:
        """Return the code, in any of the three forms of section 6."""
        if not isinstance(self.body, dict):
            return None
        error = self.body.get("error")
        if isinstance(error, dict):
            return error.get("code")
        return self.body.get("code") or error


@dataclass(frozen=True, slots=True)
class Expect:
    """What is asked of a stream beyond what the page marks D.

    Args:
        three_lines: each frame has `event:`, `id:` and `data:`, in this order, and nothing else.
        numbered_deltas: deltas take numbers of the same counter, each higher than the last.
        payload_ids: `event_ids` hold payload ids that were asked before.
        known_types: no type outside of sections 4.5, 4.6 and `session.gap`.
        inputs: `user.*` envelopes may be on the stream.
        whole_runs: the deltas of a text are all of it; else the final may say more (section 4.4).
    """

    three_lines: bool = True
    numbered_deltas: bool = True
    payload_ids: bool = True
    known_types: bool = True
    inputs: bool = False
    whole_runs: bool = True


def _need(payload: Mapping[str, Any], name: str, kind: type, seen: object) -> Any:
    value = payload.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolViolation(f"`{name}` is not a {kind.__name__}", seen)
    return value


def _texts(payload: Mapping[str, Any], seen: object) -> str:
    """Check `content` and return its words (sections 3.1 and 4.5)."""
    parts = []
    for block in _need(payload, "content", list, seen):
        if not isinstance(block, dict) or block.get("type") != "text":
            raise ProtocolViolation("a block is not text", seen)
        text = _need(block, "text", str, seen)
        if len(text) > MAX_TEXT:
            raise ProtocolViolation("a block has more than 20,000 characters", seen)
        parts.append(text)
    return "".join(parts)


def check_envelope(seen: Envelope, session: str | None = None) -> None:
    """Check what every envelope has, listed or streamed (section 4.1).

    Raises:
        ProtocolViolation: a member is missing or wrong.
    """
    for name in ("id", "type", "sessionId", "status", "createdAt"):
        if not _need(seen, name, str, seen):
            raise ProtocolViolation(f"`{name}` is empty", seen)
    payload = _need(seen, "payload", dict, seen)
    if payload.get("type") != seen["type"]:
        raise ProtocolViolation("`payload.type` is not `type`", seen)
    if seen["status"] not in _STATUSES:
        raise ProtocolViolation("an unknown status", seen)
    if session is not None and seen["sessionId"] != session:
        raise ProtocolViolation("another session's envelope", seen)
    for name in ("createdAt", "processedAt"):
        time = seen.get(name)
        if time is not None and not ISO_MS.match(time):
            raise ProtocolViolation(f"`{name}` is not an ISO 8601 time with milliseconds", seen)


@dataclass(slots=True)
class _State:
    sequence: int = 0
    ids: set[str] = field(default_factory=set)
    running: bool | None = None
    runs: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)


class StreamChecker:
    """Checks the frames of one stream: bytes in, envelopes out.

    Args:
        session: what `sessionId` must be; None accepts any one.
        resumed: the stream may begin in the middle of a turn.
        expect: what is asked beyond the page's minimum.
    """

    def __init__(
        self, session: str | None = None, *, resumed: bool = False, expect: Expect | None = None
    ) -> None:
        self._session = session
        self._resumed = resumed
        self._expect = expect or Expect()
        self._state = _State()
        self._rest = b""
        self.comments = 0

    def feed(self, data: bytes) -> list[Envelope]:
        """Take bytes, return the envelopes that are complete."""
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        return [seen for block in blocks if (seen := self._block(block)) is not None]

    def close(self) -> None:
        """Take the end of the stream, in order: nothing may be cut."""
        if self._rest:
            raise Disconnected(f"the stream ends inside a frame: {self._rest[:200]!r}")

    def _block(self, block: bytes) -> Envelope | None:
        try:
            lines = block.decode().split("\n")
        except UnicodeDecodeError:
            raise ProtocolViolation("a frame is not UTF-8", block) from None
        if all(line.startswith(":") for line in lines):
            self.comments += 1
            return None
        fields: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        if self._expect.three_lines and (
            len(lines) != 3 or list(fields) != ["event", "id", "data"]
        ):
            raise ProtocolViolation("a frame is not `event:`, `id:` and `data:`", block)
        try:
            seen = json.loads(fields["data"])
        except (KeyError, ValueError):
            raise ProtocolViolation("a frame without JSON", block) from None
        if not isinstance(seen, dict):
            raise ProtocolViolation("an envelope is not an object", block)
        check_envelope(seen, self._session)
        if self._expect.three_lines:
            if fields["event"] != seen["type"]:
                raise ProtocolViolation("`event:` is not the type", block)
            if fields["id"] != seen["id"]:
                raise ProtocolViolation("`id:` is not the id", block)
        self._check(seen)
        return seen

    def _check(self, seen: Envelope) -> None:
        state = self._state
        if seen["id"] in state.ids:
            raise ProtocolViolation("an id comes twice", seen)
        state.ids.add(seen["id"])
        delta = seen["payload"].get("delta") is True
        if not delta or self._expect.numbered_deltas:
            number = _need(seen, "sequence", int, seen)
            if number <= state.sequence:
                raise ProtocolViolation("`sequence` does not rise", seen)
            state.sequence = number
        type_, payload = seen["type"], seen["payload"]
        if type_ in _TEXTS:
            self._text(type_, payload, seen)
        elif type_ in _USES:
            self._use(type_, payload, seen)
        elif type_ in _RESULTS:
            self._result(payload, seen)
        elif type_.startswith("user."):
            if not self._expect.inputs:
                raise ProtocolViolation("an input on the stream", seen)
        else:
            check = _CHECKS.get(type_)
            if check is not None:
                check(self, payload, seen)
            elif self._expect.known_types:
                raise ProtocolViolation("an unknown type", seen)

    def _works(self, seen: Envelope) -> None:
        if self._state.running is False and not self._resumed:
            raise ProtocolViolation("the agent works while the session is idle", seen)

    def _text(self, type_: str, payload: Envelope, seen: Envelope) -> None:
        """Section 4.4: a run of deltas is closed by the whole text."""
        if not isinstance(payload.get("delta"), bool):
            raise ProtocolViolation("`delta` is not true or false", seen)
        text = _texts(payload, seen)
        runs = self._state.runs
        self._works(seen)
        if payload["delta"]:
            runs[type_] = runs.get(type_, "") + text
            return
        written = runs.pop(type_, None)
        taken_back = payload.get("status") == "discarded"
        whole = self._expect.whole_runs and not self._resumed and not taken_back
        if written is not None and whole and text != written:
            raise ProtocolViolation(f"the deltas were {written!r}", seen)

    def _closed(self, seen: Envelope) -> None:
        if self._state.runs and not self._resumed:
            raise ProtocolViolation(f"streamed text was not closed: {self._state.runs}", seen)
        self._state.runs.clear()

    def _use(self, type_: str, payload: Envelope, seen: Envelope) -> None:
        self._works(seen)
        self._closed(seen)
        use = _need(payload, "id", str, seen)
        _need(payload, "tool", str, seen)
        _need(payload, "input", dict, seen)
        if type_ != "agent.custom_tool_use":
            if payload.get("status") != "running":
                raise ProtocolViolation("a tool use is not `running`", seen)
            if "requires_action" in payload and payload["requires_action"] is not True:
                raise ProtocolViolation("`requires_action` is not true", seen)
        if type_ == "agent.custom_tool_use" or "requires_action" in payload:
            self._state.asked.add(use)
        elif use in self._state.calls:
            raise ProtocolViolation("a tool use comes twice and does not ask", seen)
        self._state.calls.add(use)

    def _result(self, payload: Envelope, seen: Envelope) -> None:
        use = _need(payload, "tool_use_id", str, seen)
        _need(payload, "tool", str, seen)
        _need(payload, "is_error", bool, seen)
        _texts(payload, seen)
        if payload.get("status") not in ("completed", "failed"):
            raise ProtocolViolation("a result of an unknown status", seen)
        if use not in self._state.calls and not self._resumed:
            raise ProtocolViolation("a result without its tool use", seen)

    def _clarify(self, payload: Envelope, seen: Envelope) -> None:
        self._closed(seen)
        self._state.asked.add(_need(payload, "request_id", str, seen))
        _need(payload, "question", str, seen)
        choices = payload.get("choices", ())
        if choices is not None and not (
            isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices)
        ):
            raise ProtocolViolation("`choices` is neither texts nor null", seen)

    def _sealed(self, payload: Envelope, seen: Envelope) -> None:
        self._closed(seen)
        self._state.asked.add(_need(payload, "request_id", str, seen))

    def _thread(self, payload: Envelope, seen: Envelope) -> None:
        _texts(payload, seen)

    def _running(self, payload: Envelope, seen: Envelope) -> None:
        if self._state.running is True:
            raise ProtocolViolation("a second `status_running`", seen)
        self._state.running = True

    def _idle(self, payload: Envelope, seen: Envelope) -> None:
        self._closed(seen)
        self._state.running = False
        reason = _need(payload, "stop_reason", dict, seen)
        match reason.get("type"):
            case "end_turn":
                pass
            case "error":
                _need(reason, "message", str, seen)
            case "requires_action":
                ids = _need(reason, "event_ids", list, seen)
                unknown = [name for name in ids if name not in self._state.asked]
                strange = unknown and self._expect.payload_ids and not self._resumed
                if not ids or strange:
                    raise ProtocolViolation(f"`event_ids` name {unknown or 'nothing'}", seen)
            case _:
                raise ProtocolViolation("an unknown stop reason", seen)

    def _title(self, payload: Envelope, seen: Envelope) -> None:
        _need(payload, "title", str, seen)

    def _gap(self, payload: Envelope, seen: Envelope) -> None:
        _need(payload, "reason", str, seen)


_CHECKS: Mapping[str, Callable[[StreamChecker, Envelope, Envelope], None]] = {
    "agent.clarify_request": StreamChecker._clarify,
    "agent.sudo_request": StreamChecker._sealed,
    "agent.secret_request": StreamChecker._sealed,
    "agent.thread_message_sent": StreamChecker._thread,
    "agent.thread_message_received": StreamChecker._thread,
    "session.status_running": StreamChecker._running,
    "session.status_idle": StreamChecker._idle,
    "session.title_updated": StreamChecker._title,
    "session.gap": StreamChecker._gap,
}


def durable(envelopes: Sequence[Envelope]) -> list[Envelope]:
    """Return the envelopes that a list has too (section 4.4), inputs left out."""
    return [
        seen
        for seen in envelopes
        if seen["payload"].get("delta") is not True
        and seen["type"] != "session.title_updated"
        and not seen["type"].startswith("user.")
    ]


def check_join(streamed: Sequence[Envelope], listed: Sequence[Envelope]) -> None:
    """Check that a list is what a reader who never left holds, joined by id (section 9).

    Raises:
        ProtocolViolation: an envelope is missing, differs, or stands elsewhere.
    """
    numbers = [seen["sequence"] for seen in listed]
    if numbers != sorted(set(numbers)):
        raise ProtocolViolation("the list's sequence does not rise", numbers)
    for seen in listed:
        check_envelope(seen)
        if seen["payload"].get("delta") is True or seen["type"] == "session.title_updated":
            raise ProtocolViolation("a live-only envelope is listed", seen)
    held, kept = durable(streamed), durable(listed)
    ids = {seen["id"] for seen in held}
    shared = [seen for seen in kept if seen["id"] in ids]
    if shared != held:
        raise ProtocolViolation("the list differs from the stream", (shared, held))


@dataclass(slots=True)
class HermTurn:
    """The envelopes of one turn, pauses included."""

    envelopes: list[Envelope] = field(default_factory=list)

    def payloads(self, *types: str) -> list[Envelope]:
        """Return the payloads of some types, in order."""
        return [seen["payload"] for seen in self.envelopes if seen["type"] in types]

    def _finals(self, type_: str) -> str:
        return "".join(
            block["text"]
            for payload in self.payloads(type_)
            if not payload["delta"]
            for block in payload["content"]
        )

    @property
    def text(self) -> str:
        """Return the whole answer: the final texts are authoritative (section 4.4)."""
        return self._finals("agent.message")

    @property
    def streamed(self) -> str:
        """Return what was shown live."""
        return "".join(
            block["text"]
            for payload in self.payloads("agent.message")
            if payload["delta"]
            for block in payload["content"]
        )

    @property
    def thinking(self) -> str:
        """Return the whole reasoning."""
        return self._finals("agent.thinking")

    @property
    def stop_reason(self) -> Envelope:
        """Return why the turn is over, or waits."""
        reason: Envelope = self.payloads("session.status_idle")[-1]["stop_reason"]
        return reason

    @property
    def types(self) -> list[str]:
        """Return the types in order, equal neighbours merged."""
        return merged([seen["type"] for seen in self.envelopes])


Answerer = Callable[[HermTurn], Sequence[Envelope]]


class HermClient:
    """Talks to a Herm, or to something that plays one.

    Args:
        session: the HTTP client to use.
        base_url: where `/v1` is, without a slash at the end.
        key: the bearer key.
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
        self._http = session
        self._base = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        self.expect = expect or Expect()

    async def create(self, agent: str = "agent_K4", **members: Any) -> Envelope:
        """Create a session and return its object (section 2.2)."""
        _, body = await self.call("POST", f"/v1/agents/{agent}/sessions", members)
        return check_session(body)

    async def get(self, session: str) -> Envelope:
        """Return a session with its messages (section 2.3)."""
        _, body = await self.call("GET", f"/v1/sessions/{session}")
        for message in _need(body, "messages", list, body):
            _need(message, "role", str, body)
            _texts(message, body)
        return check_session(body)

    async def post(self, session: str, *events: Envelope) -> list[Envelope]:
        """Post a batch and return the accepted envelopes (section 3)."""
        body = {"events": list(events)}
        status, answer = await self.call("POST", f"/v1/sessions/{session}/events", body)
        if status not in (200, 201, 202):
            raise ProtocolViolation("a POST of events is answered otherwise", status)
        envelopes: list[Envelope] = _need(answer, "data", list, answer)
        for seen in envelopes:
            check_envelope(seen, session)
        return envelopes

    async def say(self, session: str, text: str) -> list[Envelope]:
        """Post a message."""
        return await self.post(session, message(text))

    async def list(self, session: str, limit: int = 100, **query: str) -> list[Envelope]:
        """Return all stored events, page by page (section 4.2)."""
        found: list[Envelope] = []
        cursor: str | None = None
        while True:
            params = {"limit": str(limit), **query} | ({"cursor": cursor} if cursor else {})
            _, body = await self.call("GET", f"/v1/sessions/{session}/events", params=params)
            page = _need(body, "data", list, body)
            if len(page) > limit:
                raise ProtocolViolation("a page is longer than asked for", len(page))
            found += page
            if body.get("nextCursor") is None:
                return found
            if body["nextCursor"] == cursor or not page:
                raise ProtocolViolation("paging does not end", body["nextCursor"])
            cursor = body["nextCursor"]

    async def stream(
        self, session: str, last_event_id: str | None = None, *, query: str = ""
    ) -> AsyncGenerator[Envelope, None]:
        """Yield the envelopes of a stream; the first value is an empty one, when it is open."""
        headers = {**self._headers, "Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        checker = StreamChecker(
            session, resumed=last_event_id is not None or bool(query), expect=self.expect
        )
        url = f"{self._base}/v1/sessions/{session}/events/stream{query}"
        timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
        async with self._http.get(url, headers=headers, timeout=timeout) as response:
            await refuse(response, Refused)
            if response.content_type != "text/event-stream":
                raise ProtocolViolation("not an event stream", response.headers)
            yield {}
            try:
                async for data in response.content.iter_any():
                    for seen in checker.feed(data):
                        yield seen
            except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as broken:
                raise Disconnected(str(broken)) from broken
            checker.close()

    async def turn(
        self, session: str, text: str, answers: Answerer | Sequence[Envelope] = ()
    ) -> HermTurn:
        """Say something, follow the turn to its end, answer each time it waits.

        Args:
            session: the session.
            text: the message.
            answers: what to post at each pause, one event each, or a function from the turn so far
                to a batch.
        """
        given = iter(() if callable(answers) else answers)
        turn = HermTurn()
        # Section 4.3: the stream is open before the message is posted.
        async with aclosing(self.stream(session)) as stream:
            await anext(stream)
            await self.say(session, text)
            async for seen in stream:
                turn.envelopes.append(seen)
                if seen["type"] != "session.status_idle":
                    continue
                if seen["payload"]["stop_reason"]["type"] != "requires_action":
                    return turn
                batch = answers(turn) if callable(answers) else [next(given)]
                filled = [_addressed(event, turn.stop_reason["event_ids"]) for event in batch]
                await self.post(session, *filled)
        raise Disconnected("the stream ended before the turn")

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        data: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Do a request and return status and JSON of a 2xx.

        Raises:
            Refused: the answer is an error status; its form is checked (section 6).
        """
        all_headers = {**self._headers, **(headers or {})}
        if data is None and body is not None:
            data = json.dumps(body).encode()
        if data is not None:
            all_headers.setdefault("Content-Type", "application/json")
        async with self._http.request(
            method, self._base + path, data=data, params=params, headers=all_headers
        ) as response:
            await refuse(response, Refused)
            text = await response.text()
            return response.status, json.loads(text) if text else None


def message(text: str) -> Envelope:
    """Return a `user.message` of one block."""
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def _addressed(event: Envelope, ids: Sequence[str]) -> Envelope:
    """Return an answer with the id that the pause named, where it names none itself."""
    by_use = event["type"] in ("user.tool_confirmation", "user.custom_tool_result")
    name = "tool_use_id" if by_use else "request_id"
    return event if event["type"] == "user.interrupt" else {name: ids[0], **event}


def check_session(body: Envelope) -> Envelope:
    """Check a session object and return it (section 2.2)."""
    for name in ("id", "agentId", "status", "createdAt"):
        if not _need(body, name, str, body):
            raise ProtocolViolation(f"`{name}` is empty", body)
    _need(body, "agentVersion", int, body)
    if not _ISO_S.match(body["createdAt"]):
        raise ProtocolViolation("`createdAt` is not in whole seconds", body)
    if body["status"] not in ("idle", "running", "requires_action", "archived", "error"):
        raise ProtocolViolation("a session of an unknown status", body)
    return body
