"""A strict eve client of either generation: what `eve/client` does, plus every check.

`EveClient` holds the server's address, `EveSession` one session: its token, its cursor and the
records read so far. Requests have the shape that the official client of the generation sends
(eve page, sections 4 to 7); answers and streams are checked against the page, and
`ProtocolViolation` carries the record or body that breaks a promise. `EveSession.read_turn` reads
to the end of a turn as the official clients do (sections 7.5 and 7.6).
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

import aiohttp

from tests.support.eve_records import Form, Record, RecordChecker, check_shape
from tests.support.strictness import ProtocolViolation, merged
from tests.support.strictness import Refused as AnyRefused

__all__ = [
    "Accepted",
    "EveClient",
    "EveSession",
    "Form",
    "ProtocolViolation",
    "Refused",
    "Style",
    "TurnResult",
]

Style = Literal["T", "S1", "S"]
"""Whose requests are sent: `T` the token generation's, `S` the session-ID generation's. `S1` are
0.31 to 0.44 of the latter, which take the first boundary after their cursor for theirs (7.6)."""

# Only a server that hangs is ever this slow in a test. A real S2 client takes 15 s without a byte
# for a lost connection (section 7.5).
SILENCE_S = 120.0
# Section 7.5: connections without an event before a client gives up.
EMPTY_CONNECTIONS = 5
# Section 7.5: what the S2 client accepts.
READABLE_VERSIONS = range(21, 27)

_STREAM_HEADERS = {
    "content-type": "application/x-ndjson; charset=utf-8",
    "cache-control": "no-store, no-transform",
    "x-accel-buffering": "no",
    "x-eve-stream-format": "ndjson",
}
_LEASE_ENDED = {"$eve": "stream.lease-ended", "version": 1}


class Refused(AnyRefused):
    """The server answered with an error status."""

    @property
    def code(self) -> str | None:
        """The stable code of a session route's error (section 2)."""
        code = self.body.get("code") if isinstance(self.body, dict) else None
        return code if isinstance(code, str) else None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to a message or to answers."""

    body: Mapping[str, Any]
    delivery_id: str | None


@dataclass(slots=True)
class TurnResult:
    """What one read of a turn gave (section 7.6)."""

    records: list[Record] = field(default_factory=list)
    status: Literal["waiting", "completed", "failed"] = "waiting"

    @property
    def types(self) -> list[str]:
        """The record types in order, equal neighbours merged."""
        return merged([record["type"] for record in self.records])

    @property
    def text(self) -> str | None:
        """The last message that is not a narration before a tool call."""
        said = [
            data["message"]
            for data in self.data("message.completed")
            if data["finishReason"] != "tool-calls"
        ]
        return said[-1] if said else None

    @property
    def result(self) -> Any:
        """The last structured result."""
        results = self.data("result.completed")
        return results[-1]["result"] if results else None

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Every request for a person, in order."""
        return [request for data in self.data("input.requested") for request in data["requests"]]

    def data(self, kind: str) -> list[dict[str, Any]]:
        """The data of all records of a type, in order."""
        return [record["data"] for record in self.records if record["type"] == kind]


class _Lines:
    """Bytes to lines: the first one is blank, each ends with a line feed (section 7.3)."""

    def __init__(self, heartbeats: bool) -> None:
        self._heartbeats = heartbeats
        self._rest = b""
        self._begun = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes, return the lines that are complete and not blank."""
        if data and not self._begun:
            self._begun = True
            if not data.startswith(b"\n"):
                raise ProtocolViolation("a stream does not begin with a blank line", data[:200])
            data = data[1:]
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not self._heartbeats and not all(lines):
            raise ProtocolViolation("a blank line that nobody asked for", lines)
        return [line for line in lines if line]

    def close(self) -> None:
        """Take the end of the body."""
        if self._rest:
            raise ProtocolViolation("a stream ends inside of a record", self._rest[:200])


class EveClient:
    """Talks to an eve server, or to something that plays one.

    Args:
        http: the HTTP client to use.
        host: what comes before `/eve/v1`.
        form: what plays the server; says which answers and records are right.
        style: whose requests are sent; by default those of the form's own generation.
        headers: sent with every request, such as `Authorization`.
        real: a real server, see `RecordChecker`.
        exact: see `RecordChecker`.
        silence_s: seconds without a byte after which a stream counts as hung.
        beats: blank lines may come unasked, as readers must bear (section 7.3): Dragoman sends them
            after 10 s of silence, which only a slow backend makes.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        host: str,
        *,
        form: Form = "all",
        style: Style | None = None,
        headers: Mapping[str, str] | None = None,
        real: bool = False,
        exact: bool = True,
        silence_s: float = SILENCE_S,
        beats: bool = False,
    ) -> None:
        """Keep where to talk to; nothing is sent yet."""
        self.http = http
        self.host = host.rstrip("/")
        self.form: Form = form
        self.style: Style = style or ("T" if form == "tokens" else "S")
        self.headers = dict(headers or {})
        self.real = real
        self.exact = exact
        self.silence_s = silence_s
        self.beats = beats

    async def health(self) -> dict[str, Any]:
        """Liveness; exactly the members of section 12."""
        _, body = await self.request("GET", "/eve/v1/health")
        if body.keys() != {"ok", "status", "workflowId"} or not body["workflowId"]:
            raise ProtocolViolation("health has other members than documented", body)
        if body["ok"] is not True or body["status"] != "ready":
            raise ProtocolViolation("health is not ready", body)
        return body

    async def create(
        self, message: str | Sequence[Mapping[str, Any]] | None = None, **members: Any
    ) -> "EveSession":
        """Create a session, with its first message or (S only) without (section 4).

        Args:
            message: text or parts.
            members: further members of the body as the wire names them (`clientContext` …).

        Raises:
            Refused: the server refuses.
            ProtocolViolation: the answer is not that of the form.
        """
        body = dict(members) if message is None else {"message": message, **members}
        response, answer = await self.request("POST", "/eve/v1/session", body or None)
        _status(response, answer, 202)
        session_id = answer.get("sessionId")
        if not isinstance(session_id, str) or not session_id:
            raise ProtocolViolation("a session without an id", answer)
        if response.headers.get("x-eve-session-id") != session_id:
            raise ProtocolViolation("`x-eve-session-id` is not the session's id", answer)
        self._accepted_members(answer, created=True, message=message is not None)
        token = answer.get("continuationToken")
        return EveSession(self, session_id, token=token)

    def attach(self, session_id: str, *, token: str | None = None) -> "EveSession":
        """A handle of a session that exists, reading from its first record."""
        return EveSession(self, session_id, token=token)

    def child(self, session_id: str, path: str | None = None) -> "EveSession":
        """A handle of a child session, whose stream may be at a path of its own (section 10)."""
        return EveSession(self, session_id, path=path, child=True)

    def _accepted_members(self, answer: Mapping[str, Any], *, created: bool, message: bool) -> None:
        """Sections 1.1, 4.3 and 5: the members of an acceptance, by form."""
        if answer.get("ok") is not True:
            raise ProtocolViolation("an acceptance that is not `ok`", answer)
        has_token = isinstance(answer.get("continuationToken"), str)
        has_delivery = isinstance(answer.get("deliveryId"), str) and bool(answer["deliveryId"])
        accepted = answer.get("status") == "accepted"
        match self.form:
            case "all":
                right = accepted and has_token and (has_delivery or not message)
            case "tokens":
                right = "status" not in answer and (has_token or not created)
            case "newest":
                right = accepted and "continuationToken" not in answer
                right = right and (has_delivery or created)
        if not right:
            raise ProtocolViolation(f"not how the form `{self.form}` accepts", answer)

    async def request(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None
    ) -> tuple[aiohttp.ClientResponse, dict[str, Any]]:
        """Send a request and read its JSON answer.

        Args:
            method: the HTTP method.
            path: from `/eve/v1` on.
            body: a JSON value; no body at all without one.
            raw: bytes to send instead of `body`, for requests that must be refused.

        Raises:
            Refused: the status is not a 2xx.
            ProtocolViolation: the answer is not JSON of the documented form (section 2).
        """
        headers = dict(self.headers)
        data = raw
        if body is not None:
            data = json.dumps(body, ensure_ascii=False).encode()
        if data is not None:
            headers["content-type"] = "application/json"
        async with self.http.request(
            method, self.host + path, data=data, headers=headers, allow_redirects=False
        ) as response:
            answer = await self._answer(response)
        return response, answer

    @staticmethod
    async def _answer(response: aiohttp.ClientResponse) -> dict[str, Any]:
        text = await response.text(errors="replace")
        try:
            answer: Any = json.loads(text)
        except ValueError:
            answer = text
        if response.status >= 300:
            routed = isinstance(answer, dict) and answer.get("ok") is False
            unrouted = isinstance(answer, dict) and answer.get("error") is True
            if routed and not isinstance(answer.get("error"), str):
                raise ProtocolViolation("an error without its text", answer)
            if response.content_type == "application/json" and not (routed or unrouted):
                raise ProtocolViolation("an error of an undocumented form", answer)
            raise Refused(response.status, answer, response.headers)
        if not isinstance(answer, dict):
            raise ProtocolViolation("an answer that is not a JSON object", answer)
        session_route = "/eve/v1/session" in response.url.path
        if session_route and response.headers.get("cache-control") != "no-store":
            raise ProtocolViolation("a session answer that may be stored", response.headers)
        return answer


class EveSession:
    """One session: what is needed to speak in it, and what was read of it.

    `log` holds the records by their index; a record that is read again must be equal (section 7.3:
    the same events on every read). `cursor` is the index of the next record.
    """

    def __init__(
        self,
        client: EveClient,
        session_id: str,
        *,
        token: str | None = None,
        path: str | None = None,
        child: bool = False,
    ) -> None:
        """Start at the first record."""
        self.client = client
        self.session_id = session_id
        self.token = token
        self.cursor = 0
        self.log: list[Record] = []
        self.version: int | None = None
        self._path = f"/eve/v1/session/{quote(session_id, safe='')}"
        self._stream_path = path or f"{self._path}/stream"
        self._child = child
        self._checker: RecordChecker | None = None

    async def send(
        self,
        message: str | Sequence[Mapping[str, Any]],
        *,
        turn_policy: Literal["steer", "queue"] | None = None,
        **members: Any,
    ) -> Accepted:
        """Send a follow-up message (section 5).

        Raises:
            Refused: the server refuses.
            ProtocolViolation: the answer is not that of the form.
        """
        body: dict[str, Any] = {"message": message, **members}
        if turn_policy is not None:
            body["turnPolicy"] = turn_policy
        return await self._post(body, message=True)

    async def respond(
        self,
        request_id: str,
        option_id: str | None = None,
        text: str | None = None,
        **members: Any,
    ) -> Accepted:
        """Answer one request with an option, with text, or with both (section 9.4)."""
        answer = {"requestId": request_id, "optionId": option_id, "text": text}
        given = {name: value for name, value in answer.items() if value is not None}
        return await self.respond_all([given], **members)

    async def respond_all(self, answers: Sequence[Mapping[str, Any]], **members: Any) -> Accepted:
        """Answer several requests at once; a T client may add a `message`."""
        body = {"inputResponses": list(answers), **members}
        return await self._post(body, message="message" in members)

    async def _post(self, body: dict[str, Any], *, message: bool) -> Accepted:
        if self.client.style == "T":
            body = {"continuationToken": self.token, **body}
        response, answer = await self.client.request("POST", self._path, body)
        _status(response, answer, 200 if self.client.form == "tokens" else 202)
        if answer.get("sessionId") != self.session_id:
            raise ProtocolViolation("an answer of another session", answer)
        self.client._accepted_members(answer, created=False, message=message)
        if isinstance(answer.get("continuationToken"), str):
            self.token = answer["continuationToken"]
        return Accepted(answer, answer.get("deliveryId"))

    async def cancel(self, turn_id: str | None = None) -> str:
        """Cancel the running turn; returns `accepted` or `no_active_turn` (section 6)."""
        body = None if turn_id is None else {"turnId": turn_id}
        response, answer = await self.client.request("POST", f"{self._path}/cancel", body)
        accepted = {"ok": True, "sessionId": self.session_id, "status": "accepted"}
        idle = {"ok": True, "status": "no_active_turn"}
        if self.client.form == "tokens":
            idle["sessionId"] = self.session_id
        if answer == accepted:
            _status(response, answer, 202)
        elif answer == idle:
            _status(response, answer, 202 if self.client.form == "tokens" else 200)
        else:
            raise ProtocolViolation("a cancel answer with other members", answer)
        return str(answer["status"])

    async def compact(self) -> str:
        """Shorten the history; returns `accepted` or `no_active_session` (section 6)."""
        return await self._control("compact")

    async def clear(self) -> str:
        """Drop the history; returns `accepted` or `no_active_session` (section 6)."""
        return await self._control("clear")

    async def reset(self, reason: str | None = None) -> str:
        """Retire the session; returns `reset` or `no_active_session` (section 6)."""
        return await self._control("reset", {} if reason is None else {"reason": reason})

    async def _control(self, name: str, members: Mapping[str, Any] | None = None) -> str:
        if self.client.style == "T":
            path = f"/eve/v1/session/{name}"
            body: dict[str, Any] | None = {"continuationToken": self.token, **(members or {})}
        else:
            path = f"{self._path}/{name}"
            body = dict(members) if members else None
        response, answer = await self.client.request("POST", path, body)
        if answer.get("status") == "no_active_session":
            _status(response, answer, 200)
            return "no_active_session"
        done, member, status = (
            ("reset", "previousSessionId", 200)
            if name == "reset"
            else ("accepted", "sessionId", 202)
        )
        _status(response, answer, status)
        if answer.get("ok") is not True or answer.get("status") != done:
            raise ProtocolViolation(f"`{name}` was not answered as documented", answer)
        if answer.get(member) != self.session_id:
            raise ProtocolViolation(f"`{member}` is not this session", answer)
        return done

    async def stream(
        self,
        start_index: int | None = None,
        *,
        follow: bool = True,
        control: bool | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Open the stream once and yield its records until the body ends.

        Args:
            start_index: the index of the first record; negative counts from the end; the cursor
                by default. Only reads that continue the log move the cursor.
            follow: without, a bounded read to the tail that the server reports (section 7.5).
            control: whether heartbeats and leases are asked for; an S client's habit by default.

        Raises:
            Refused: the stream does not open.
            ProtocolViolation: a header, a line or a record breaks a promise.
        """
        start = self.cursor if start_index is None else start_index
        style = self.client.style
        asks = (style == "S" and start >= 0 and follow) if control is None else control
        query: dict[str, str] = {"streamControlVersion": "1"} if asks else {}
        if start:
            query["startIndex"] = str(start)
        if not follow:
            query["includeTailIndex"] = "1"
            if style == "S":
                query["follow"] = "false"
        # Section 7.5: a `no-store` fetch sends these two.
        headers = {"cache-control": "no-cache", "pragma": "no-cache", **self.client.headers}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=self.client.silence_s)
        async with self.client.http.get(
            self.client.host + self._stream_path,
            params=query,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                await EveClient._answer(response)
                raise ProtocolViolation("a stream that opens with another 2xx", response.status)
            tail = self._opened(response, bounded=not follow)
            if tail is not None and tail < max(start, 0):
                return
            index: int | None = start if start >= 0 else None
            async for record in self._records(response, heartbeats=asks):
                self._take(index, record)
                yield record
                if index is not None:
                    index += 1
                    if tail is not None and index > tail:
                        return

    def _opened(self, response: aiohttp.ClientResponse, *, bounded: bool) -> int | None:
        """Check the headers of section 7.2; returns the tail's index of a bounded read."""
        expected = {**_STREAM_HEADERS, "x-eve-session-id": self.session_id}
        for name, value in expected.items():
            if response.headers.get(name) != value:
                raise ProtocolViolation(f"`{name}` is not `{value}`", response.headers)
        if "content-encoding" in response.headers:
            raise ProtocolViolation("a stream is compressed", response.headers)
        version = response.headers.get("x-eve-stream-version", "")
        declared = int(version) if version.isascii() and version.isdecimal() else 0
        right = {"all": declared == 24, "tokens": 0 < declared <= 21, "newest": declared == 26}
        if not right[self.client.form]:
            raise ProtocolViolation(f"version `{version}` in form `{self.client.form}`")
        if self.client.style == "S" and declared not in READABLE_VERSIONS:
            raise ProtocolViolation(f"version `{version}` is none that an S client reads")
        if self.version is not None and declared != self.version:
            raise ProtocolViolation(f"version `{version}` after `{self.version}`")
        self.version = declared
        if self._checker is None:
            self._checker = RecordChecker(
                declared,
                form=self.client.form,
                real=self.client.real,
                exact=self.client.exact,
                child=self._child,
            )
        if not bounded:
            return None
        tail = response.headers.get("x-eve-stream-tail-index", "")
        try:
            return int(tail)
        except ValueError:
            raise ProtocolViolation("a bounded read without a tail index", tail) from None

    async def _records(
        self, response: aiohttp.ClientResponse, *, heartbeats: bool
    ) -> AsyncIterator[Record]:
        lines = _Lines(heartbeats or self.client.beats)
        leased = False
        try:
            async for data in response.content.iter_any():
                for line in lines.feed(data):
                    record = _parse(line)
                    if leased:
                        raise ProtocolViolation("a record after the end of the lease", record)
                    if heartbeats and record == _LEASE_ENDED:
                        leased = True
                        continue
                    yield record
        except TimeoutError:
            raise ProtocolViolation(f"no byte for {self.client.silence_s} s") from None
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError):
            # Section 7.5: a body that breaks is like one that ends; the reader comes back.
            return
        lines.close()

    def _take(self, index: int | None, record: Record) -> None:
        """Check a record against the log and, where it is new, the state machine."""
        assert self.version is not None
        assert self._checker is not None
        if index is None or index > len(self.log):
            check_shape(record, self.version)
            return
        if index < len(self.log):
            if record != self.log[index]:
                known = self.log[index]
                raise ProtocolViolation(f"record {index} has changed from {known!r}", record)
        else:
            self._checker.check(record)
            self.log.append(record)
        self.cursor = max(self.cursor, index + 1)
        if record["type"] == "session.waiting":
            self.token = record["data"]["continuationToken"]

    async def follow(self) -> AsyncGenerator[Record, None]:
        """Yield records from the cursor on, coming back whenever the body ends (section 7.5).

        Raises:
            ProtocolViolation: five connections in a row gave nothing.
        """
        empty = 0
        while empty < EMPTY_CONNECTIONS:
            before = self.cursor
            async with aclosing(self.stream()) as records:
                async for record in records:
                    yield record
                    if record["type"] in ("session.completed", "session.failed"):
                        return
            empty = 0 if self.cursor > before else empty + 1
            await asyncio.sleep(0)
        raise ProtocolViolation(f"{empty} connections without a record", self.cursor)

    async def read_turn(self, accepted: Accepted | None = None) -> TurnResult:
        """Read to the end of a turn as the official client of this generation does.

        Args:
            accepted: the answer to the `send` whose turn is wanted; an S client skips to it by its
                delivery id (section 7.6). Without, the first boundary ends the read.

        Raises:
            ProtocolViolation: the stream breaks a promise, or ends before the turn does.
        """
        result = TurnResult()
        reader = _TurnReader(self.client.style, accepted.delivery_id if accepted else None)
        async with aclosing(self.follow()) as records:
            async for record in records:
                if not reader.keeps(record):
                    continue
                result.records.append(record)
                if reader.ends(record):
                    result.status = reader.status(record)
                    return result
        raise ProtocolViolation("the session ends before the turn", result.types)


class _TurnReader:
    """Decides which records belong to a read and which one ends it (sections 7.5 and 7.6)."""

    def __init__(self, style: Style, delivery_id: str | None) -> None:
        self._style = style
        # Up to 0.44 there is no selection: the first boundary ends the read.
        self._delivery_id = delivery_id if style == "S" else None
        self._begun = self._delivery_id is None
        self._asked: set[str] = set()
        self._sign_ins: set[str] = set()

    def keeps(self, record: Record) -> bool:
        """Whether a record belongs to the turn that was sent."""
        if self._delivery_id is None:
            return True
        if record["type"] in ("session.completed", "session.failed"):
            return True
        deliveries = record["meta"].get("deliveryIds")
        if deliveries is None:
            return self._begun
        mine = self._delivery_id in deliveries
        self._begun = self._begun or mine
        return mine

    def ends(self, record: Record) -> bool:
        """Whether a record that belongs to the turn ends the read."""
        kind, data = record["type"], record.get("data", {})
        if kind in ("session.completed", "session.failed"):
            if not self._begun:
                raise ProtocolViolation("the session ends before the message's turn", record)
            return True
        if self._style == "T":
            return bool(kind == "session.waiting")
        match kind:
            case "input.requested":
                self._asked.update(request["requestId"] for request in data["requests"])
            case "input.resolved":
                self._asked.difference_update(one["requestId"] for one in data["resolutions"])
            case "authorization.required" if "webhookUrl" in data:
                self._sign_ins.add(data["name"])
            case "authorization.completed":
                self._sign_ins.discard(data["name"])
            case "session.waiting":
                return not self._sign_ins
            case "turn.waiting" if self._style == "S":
                if self._asked:
                    return True
                return bool(data["on"] == "input" and not self._sign_ins)
        return False

    @staticmethod
    def status(record: Record) -> Literal["waiting", "completed", "failed"]:
        """The result's status by the record that ended the read."""
        match record["type"]:
            case "session.failed":
                return "failed"
            case "session.completed":
                return "completed"
        return "waiting"


def _parse(line: bytes) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        raise ProtocolViolation("a line is not JSON", line[:500]) from None
    if not isinstance(record, dict):
        raise ProtocolViolation("a line is not a JSON object", record)
    return record


def _status(response: aiohttp.ClientResponse, answer: object, expected: int) -> None:
    if response.status != expected:
        raise ProtocolViolation(f"status {response.status} instead of {expected}", answer)
