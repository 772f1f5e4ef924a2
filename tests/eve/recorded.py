"""Plays a recorded eve scenario against the client codec: requests as commands, streams as frames.

A `Scenario` is a file of `fixtures/wire/eve`: its exchanges in order, its stream bodies put
together to one log per session. A `Player` does what the session does (`proxy/session/`): events
through the normalizer, position and snapshot kept with them, ticks when the codec wants them. The
clock is `meta.at` of the records.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson
from multidict import CIMultiDict

from adapters.eve.client import EveClient
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, Response
from adapters.model.interactions import decide
from adapters.model.state import LogState
from adapters.wire.framing.ndjson import NdjsonParser
from tests.support.played import Played

FOLDER = Path(__file__).parents[2] / "fixtures" / "wire" / "eve"

SCENARIOS = sorted(str(file.relative_to(FOLDER))[:-5] for file in FOLDER.rglob("*.json"))
"""Every recorded scenario, as `eve-0.80.1/server/plain`."""

STREAM = re.compile(r"^/eve/v1/session/([^/]+)/stream$")
SESSION = re.compile(r"^/eve/v1/session(?:/([^/]+))?(?:/(cancel|compact|clear|reset))?$")


def moment(record: bytes) -> int:
    """Return `meta.at` of a record in Unix milliseconds."""
    at = orjson.loads(record)["meta"]["at"]
    return round(datetime.datetime.fromisoformat(at).timestamp() * 1000)


@dataclasses.dataclass
class Exchange:
    """A request and its answer; of a stream the records that it showed, by their index."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    status: int
    headers: CIMultiDict[str]
    answer: Any
    session: str | None = None
    records: dict[int, bytes] = dataclasses.field(default_factory=dict)
    raw: bytes | None = None


class Scenario:
    """A recorded scenario."""

    def __init__(self, name: str) -> None:
        file = FOLDER / f"{name}.json"
        value = json.loads(file.read_text())
        self.name = name
        self.exchanges: list[Exchange] = []
        self.logs: dict[str, dict[int, bytes]] = {}
        for item in value["exchanges"]:
            if "request" in item and "response" in item:
                self._add(file, item)

    def _add(self, file: Path, item: dict[str, Any]) -> None:
        request, response = item["request"], item["response"]
        url = urlsplit(request["path"])
        query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        headers = CIMultiDict(
            (str(k), str(v)) for k, v in (response.get("headers") or []) if k and v is not None
        )
        exchange = Exchange(
            request["method"],
            url.path,
            query,
            request.get("body"),
            response.get("status") or 0,
            headers,
            response.get("body"),
        )
        found = STREAM.match(url.path)
        if found and "bodyFile" in response:
            exchange.session = unquote(found.group(1))
            # One scenario was renamed after it was recorded.
            suffix = response["bodyFile"].partition(".")[2]
            exchange.raw = (file.parent / f"{file.stem}.{suffix}").read_bytes()
            start = query.get("startIndex", "0")
            if int(start) >= 0:
                lines = [x for x in exchange.raw.split(b"\n") if x.strip() and b'"$eve"' not in x]
                lines = [x for x in lines if x.endswith(b"}")]
                exchange.records = dict(enumerate(lines, int(start)))
                log = self.logs.setdefault(exchange.session, {})
                for index, record in exchange.records.items():
                    log.setdefault(index, record)
        self.exchanges.append(exchange)

    @property
    def sessions(self) -> list[str]:
        """Return the sessions that the scenario creates, in order."""
        made: list[str] = []
        for exchange in self.exchanges:
            if exchange.path == "/eve/v1/session" and exchange.method == "POST":
                session = exchange.answer.get("sessionId") if exchange.status == 202 else None
                if session is not None and session not in made:
                    made.append(session)
        return made


class Player(Played):
    """Drives one codec through one session of a scenario.

    `restart` puts the codec away and makes it anew after every record; `bytewise` lets the bytes of
    the log come one by one.
    """

    codec: EveClient

    def __init__(
        self, scenario: Scenario, session: str, *, restart: bool = False, bytewise: bool = False
    ) -> None:
        self.scenario = scenario
        self.session = session
        self.restarts = restart
        self.bytewise = bytewise
        super().__init__(lambda: EveClient({}))
        self.bodies: list[tuple[Exchange, Call]] = []
        self.own: list[Call] = []
        self.outbox: dict[str, cmd.AnyCommand] = {}
        self.number = 0
        self.files: dict[str, bytes] = {}
        self.now = 0
        self.parsers: dict[str, NdjsonParser] = {}
        self.ahead: list[Exchange] = []
        self.retrying = False
        self.restarted: set[bytes] = set()

    def emit(
        self, raw: list[ev.Event], *, changes: bool = False, answer: bool = False
    ) -> list[ev.Event]:
        """Do what the session does with events: `changes` says that a command moves on with them,
        `answer` that they come of an answer."""
        events = self.take(raw, changes=changes, keep=answer)
        for event in events:
            if isinstance(event, ev.InputSettled):
                self.outbox.pop(event.command_id, None)
        return events

    def passed(self, step: str) -> None:
        """Record that a step is done and stored."""

    def tick(self, until: int) -> None:
        """Wake the codec as often as it wants up to a time."""
        for _ in range(100):
            at = self.codec.wake_at
            if at is None or at > until or self.retrying:
                break
            self.emit(self.codec.tick(at))
            self.passed("tick")
            self._go_on(at)
        self.now = max(self.now, until)

    def _go_on(self, now: int) -> None:
        """Do what the codec wants by itself."""
        for call in self.codec.take_calls():
            self.own.append(call)
            answer = Response(202, body=b'{"ok":true}')
            self.emit(self.codec.respond(call, answer, now), answer=True)
            self.passed("answer")

    def play(self) -> Player:
        """Play the whole session."""
        for number, exchange in enumerate(self.scenario.exchanges):
            self.ahead = self.scenario.exchanges[number + 1 :]
            if exchange.method == "POST":
                if self.codec.native_id is not None:
                    self.ahead = self.scenario.exchanges[number:]
                    self._read(0)
                self._post(exchange)
            elif exchange.session == self.session and exchange.records:
                self._read(max(exchange.records) + 1)
        self.ahead = []
        self._read(None)
        self.tick(self.now + 60_000)
        return self

    def _post(self, exchange: Exchange) -> None:
        found = SESSION.match(exchange.path)
        if found is None:
            return
        session, control = found.groups()
        body = exchange.body if isinstance(exchange.body, dict) else {}
        mine = self.codec.native_id is not None and (
            session == self.session
            or (session in ("compact", "clear", "reset") and body.get("continuationToken"))
        )
        if session is None and control is None:
            answer = exchange.answer if isinstance(exchange.answer, dict) else {}
            mine = answer.get("sessionId") == self.session and self.codec.native_id is None
        if not mine or self.normalizer.state.ended is not None:
            return
        if session in ("compact", "clear", "reset"):
            control = session
        if self.codec.wake_at is not None and self.retrying:
            # The client's own retry: the codec's is due as well, and gets the answer.
            while not (calls := self.codec.take_calls()):
                assert self.codec.wake_at is not None
                self.emit(self.codec.tick(self.codec.wake_at))
                self.passed("tick")
            self.emit([], changes=True)
            (call,) = calls
            self._answered(exchange, call)
            return
        for command, blobs in self._commands(exchange, control):
            self.files |= blobs
            self._submit(exchange, command)

    def _commands(
        self, exchange: Exchange, control: str | None
    ) -> Iterator[tuple[cmd.AnyCommand, dict[str, bytes]]]:
        body = exchange.body if isinstance(exchange.body, dict) else {}
        match control:
            case "cancel":
                turn_id = body.get("turnId")
                if turn_id != "":
                    yield cmd.Interrupt(turn_id=turn_id), {}
                return
            case "compact":
                yield cmd.Compact(), {}
                return
            case "clear":
                yield cmd.Clear(), {}
                return
            case "reset":
                yield cmd.Reset(reason=body.get("reason")), {}
                return
        for response in body.get("inputResponses") or ():
            open_ = self.normalizer.state.interactions.get(response.get("requestId"))
            if open_ is None:
                continue
            answer = cmd.AnswerInteraction(
                request_id=response["requestId"],
                option_ids=(response["optionId"],) if "optionId" in response else (),
                text=None if "optionId" in response else response.get("text"),
                reason=response.get("text") if "optionId" in response else None,
            )
            yield decide(answer, open_.event), {}
        if exchange.path == "/eve/v1/session" and not exchange.body:
            yield cmd.CreateSession(), {}
        if body.get("message"):
            content, blobs = read_content(body["message"])
            options = {k: body[k] for k in ("mode", "callback", "protocolVersion") if k in body}
            token = "continuationToken" in body or self.codec._s.generation == "T"
            yield (
                cmd.SendMessage(
                    content=content,
                    policy="queue" if token or body.get("turnPolicy") == "queue" else "steer",
                    client_context=body.get("clientContext"),
                    output_schema=body.get("outputSchema"),
                    options=options or None,
                ),
                blobs,
            )

    def _submit(self, exchange: Exchange, command: cmd.AnyCommand) -> None:
        self.codec.check(command)
        self.number += 1
        command_id = f"cmd-{self.number}"
        accepted: list[ev.Event] = [
            ev.InputAccepted(
                thread_id=ev.MAIN,
                command_id=command_id,
                kind=command.KIND,
                content=getattr(command, "content", None),
                request_id=getattr(command, "request_id", None),
                by="test",
            )
        ]
        if isinstance(command, cmd.AnswerInteraction):
            accepted.append(
                ev.InteractionAnswered(
                    thread_id=self.normalizer.state.interactions[
                        command.request_id
                    ].event.thread_id,
                    request_id=command.request_id,
                    command_id=command_id,
                    by="test",
                )
            )
        self.emit(accepted, changes=True)
        self.passed("accepted")
        self.outbox[command_id] = command
        call = self.codec.submit(command_id, command)
        self.emit([], changes=True)
        if call.name == "prewarm":
            # Recorded clients make a session with its first message; servers before 0.59 want it.
            self.emit(self.codec.respond(call, Response(400), self.now), answer=True)
            self.passed("answer")
            (call,) = self.codec.take_calls()
            self.emit([], changes=True)
        if call.name == "info":
            # Recorded clients do not ask.
            self.emit(self.codec.respond(call, Response(404), self.now), answer=True)
            self.passed("answer")
            (call,) = self.codec.take_calls()
            self.emit([], changes=True)
        if not self.loses(exchange, call):
            self._answered(exchange, call)

    def loses(self, exchange: Exchange, call: Call) -> bool:
        """Say whether the answer of a call does not come; what it asked for was done."""
        return False

    def _answered(self, exchange: Exchange, call: Call) -> None:
        self.bodies.append((exchange, call))
        self.retrying = (
            isinstance(exchange.answer, dict) and exchange.answer.get("code") == "session_not_ready"
        )
        answer = b"" if exchange.answer is None else orjson.dumps(exchange.answer)
        response = Response(exchange.status, exchange.headers, answer)
        self.emit(self.codec.respond(call, response, self.now), answer=True)
        self.passed("answer")

    # Streams.

    def _read(self, until: int | None) -> None:
        """Read on, up to an index of the main log; a child's records come at their time."""
        while (due := self._next(until)) is not None:
            call, record = due
            self.tick(max(self.now, moment(record)))
            if self._is_opened_by(call):
                self.parsers[call.thread_id] = NdjsonParser()
                self.emit(self.codec.opened(call, self._head(), self.now))
                self.passed("opened")
                continue
            frames: list[Any] = [record]
            if self.bytewise:
                frames = []
                for byte in record + b"\n":
                    frames += self.parsers[call.thread_id].feed(bytes([byte]))
            for frame in frames:
                self.emit(self.codec.feed(call, frame, self.now))
            self.passed("frame")
            self._go_on(self.now)
            # Once per record: one that gave nothing is read again, and would be for ever.
            if self.restarts and record not in self.restarted:
                self.restarted.add(record)
                self._restart()

    def _is_opened_by(self, call: Call) -> bool:
        return call.request.query["startIndex"] == "0" and call.thread_id not in self.parsers

    def _next(self, until: int | None) -> tuple[Call, bytes] | None:
        """Return the next record: the oldest of those that the open streams have."""
        found: list[tuple[int, int, Call, bytes]] = []
        for order, call in enumerate(self._calls()):
            match = STREAM.match(call.request.path)
            assert match is not None
            index = int(call.request.query["startIndex"])
            record = self.scenario.logs.get(unquote(match.group(1)), {}).get(index)
            if record is not None and call.thread_id == ev.MAIN:
                names = self._names()
                late = until is not None and index >= until and not self._is_awaited(index, names)
                if late or _is_ahead(record, names):
                    record = None
            if record is not None:
                found.append((moment(record), -order, call, record))
        if not found:
            return None
        _, _, call, record = min(found, key=lambda item: item[:2])
        main = any(call.thread_id == ev.MAIN for _, _, call, _ in found)
        return (call, record) if main or until is None else None

    def _is_awaited(self, index: int, names: list[bytes]) -> bool:
        """Say whether what comes of a request not sent yet is further on in the log."""
        log = self.scenario.logs.get(self.session, {})
        return any(i > index and _is_ahead(record, names) for i, record in log.items())

    def _names(self) -> list[bytes]:
        """Return what proves the effects of the requests that were not sent yet."""
        names: list[bytes] = []
        for exchange in self.ahead:
            if exchange.method != "POST" or not isinstance(exchange.answer, dict):
                continue
            if f"/{self.session}" not in exchange.path:
                continue
            body = exchange.body if isinstance(exchange.body, dict) else {}
            if "deliveryId" in exchange.answer and body.get("message"):
                names.append(exchange.answer["deliveryId"].encode())
            for response in body.get("inputResponses") or ():
                if "requestId" not in response:
                    continue
                names.append(
                    b'"requestId":"%s","responderPrincipalId"' % response["requestId"].encode()
                )
                names.append(b'"requestId":"%s","response"' % response["requestId"].encode())
        return names

    def _calls(self) -> tuple[Call, ...]:
        """Return the streams that are open: a main one stays open also where nothing is awaited."""
        calls = self.codec.streams()
        if not calls and self.codec.native_id is not None and self.normalizer.state.ended is None:
            calls = (main_stream(self.codec),)
        return calls

    def _head(self) -> Response:
        for exchange in self.scenario.exchanges:
            if exchange.session == self.session and exchange.status == 200:
                return Response(200, exchange.headers)
        return Response(200)

    def _restart(self) -> None:
        self.restart()
        for command_id, command in self.outbox.items():
            call = self.codec.recover(command_id, command)
            if call is not None:
                # A message that was not sent yet goes on.
                assert call.name == "info"
                self.emit(self.codec.respond(call, Response(404), self.now), answer=True)

    @property
    def log(self) -> list[bytes]:
        """Return the canonical log, an event each."""
        return [ev.encode_event(event) for event in self.events]

    @property
    def types(self) -> list[str]:
        """Return the types of the log, equal neighbours merged."""
        types: list[str] = []
        for event in self.events:
            if not types or types[-1] != event.TYPE:
                types.append(event.TYPE)
        return types


def _is_ahead(record: bytes, names: list[bytes]) -> bool:
    """Say whether a record is what comes of a request that was not sent yet."""
    return any(name in record for name in names)


def main_stream(codec: EveClient) -> Call:
    """Return the call that opens the main stream where the codec has read to, as for a message."""
    # A copy that is given a message says the same, and to copy a codec takes 2 ms.
    return codec._streams._stream(codec._s.lines[ev.MAIN])


def next_index(codec: EveClient) -> int:
    """Return the index of the record of the main stream that a codec wants next."""
    return int(main_stream(codec).request.query["startIndex"])


def read_content(message: Any) -> tuple[tuple[Any, ...], dict[str, bytes]]:
    """Return a recorded message as content and the bytes of its files."""
    if isinstance(message, str):
        return (ev.Text(text=message),), {}
    blocks: list[Any] = []
    blobs: dict[str, bytes] = {}
    for part in message:
        if part["type"] == "text":
            blocks.append(ev.Text(text=part["text"]))
            continue
        data = base64.b64decode(part["data"].rpartition(",")[2])
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        blocks.append(
            ev.File(
                media_type=part["mediaType"],
                name=part.get("filename"),
                size=len(data),
                ref=ev.Blob(sha256=digest),
            )
        )
    return tuple(blocks), blobs


def check_laws(events: list[ev.Event]) -> LogState:
    """Fold a log anew: the laws hold of what was written, not of what the normalizer remembers."""
    state = LogState()
    for event in events:
        state.apply(event)
    return state


def players(name: str, **options: Any) -> list[Player]:
    """Play every session of a scenario."""
    scenario = Scenario(name)
    return [Player(scenario, session, **options).play() for session in scenario.sessions]
