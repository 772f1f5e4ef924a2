"""The request side of the Herm face: bodies and queries to values, values and errors to answers.

It takes what section 9 of the herm page asks a server to take: all three spellings of a batch,
unknown fields, an id or a number as a position. It refuses with 400 `validation_error` what section
3 does not allow, and a batch as a whole. No refusal quotes a value of the body: it may be a
password.

Why one room: each function reads one body or query of the face, or writes one answer; they share
the refusals.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from multidict import CIMultiDict

from adapters.contract.faces.answers import USUAL_STATUS, say_when_to_retry
from adapters.herm import wire
from adapters.herm.server import Envelope, position_of
from adapters.model.base import Response
from adapters.model.commands import (
    AnswerInteraction,
    AnyCommand,
    Interrupt,
    Sealed,
    SendMessage,
    Steer,
)
from adapters.model.events import SEALED_KINDS, InteractionRequested, Policy, Text
from adapters.model.interactions import NEGATIVE, POSITIVE, decide
from adapters.model.session_info import TITLE_CHARACTERS
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from adapters.wire.jsonvalue import JsonError, format_json, parse_json

_Json = dict[str, Any]

MAX_EVENTS = 100
"""Events of a batch, as many as a message has blocks (section 3.2): each is a command."""

MAX_SESSION_TEXT = TITLE_CHARACTERS
"""Characters of a title or a `userId`. Not documented; a label is never longer."""

_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
"""What a cursor is made of; more digits do not fit into the journal's 64 bits."""


class HermRefusal(ClientProtocolError):
    """A request that Herm refuses: `status` and `code_text` are what the answer says."""

    def __init__(self, status: int, code_text: str, message: str) -> None:
        code = ErrorCode.INVALID_REQUEST if status == 400 else ErrorCode.NOT_ACTIVE
        super().__init__(message, code=code)
        self.status = status
        self.code_text = code_text


@dataclasses.dataclass(frozen=True, slots=True)
class HermCreate:
    """A create, or the changes of a PATCH (sections 2.2 and 2.3)."""

    user_id: str | None = None
    title: str | None = None
    metadata: _Json | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class UserEvent:
    """One `user.*` event that keeps to section 3.2; of a batch, `place` is its path in the body."""

    type: str
    place: str
    text: str = ""
    blocks: tuple[str, ...] = ()
    request: str = ""
    decision: Literal["allow", "deny"] | None = None
    scope: Literal["once", "session", "always"] | None = None
    is_error: bool = False
    sealed: Sealed | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ListQuery:
    """What a reader of a list asks for (section 4.2).

    `after` is a sequence, exclusive. `pin` is the highest sequence that the pages of this list
    have.
    """

    limit: int = wire.LIMIT_DEFAULT
    after: int | None = None
    pin: int | None = None
    descending: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class SessionQuery:
    """What a list of sessions is narrowed to (section 2.3); `before` is where its page begins."""

    limit: int = wire.LIMIT_DEFAULT
    before: int | None = None
    agent_id: str | None = None
    user_id: str | None = None
    status: str | None = None
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


# Bodies.


def _refuse(message: str) -> NoReturn:
    raise HermRefusal(400, "validation_error", message)


def _value(body: bytes) -> Any:
    try:
        return parse_json(body)
    except JsonError:
        # `from None`: the reason may quote the body.
        raise HermRefusal(400, "validation_error", "The body must be JSON, in UTF-8.") from None


def parse_create(body: bytes) -> HermCreate:
    """Return what the body of a create or of a PATCH says; an empty one says nothing.

    Raises:
        HermRefusal: it is not a JSON object, or a member has the wrong type.
    """
    members = _value(body) if body.strip() else {}
    if not isinstance(members, dict):
        _refuse("The body must be a JSON object.")
    metadata = members.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        _refuse("`metadata` must be an object.")
    return HermCreate(
        user_id=_label(members, "userId"), title=_label(members, "title"), metadata=metadata
    )


def _label(members: _Json, name: str) -> str | None:
    value = members.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        _refuse(f"`{name}` must be a string.")
    if len(value) > MAX_SESSION_TEXT:
        _refuse(f"`{name}` must have at most {MAX_SESSION_TEXT} characters.")
    return value


def parse_events(body: bytes) -> tuple[UserEvent, ...]:
    """Return the batch of a POST of events, checked as a whole (sections 3 and 3.1).

    Raises:
        HermRefusal: it is not a batch, an event breaks section 3.2, or two of them cannot go
            together.
    """
    value = _value(body)
    prefix = ""
    if isinstance(value, dict) and "events" in value:
        value, prefix = value["events"], "events"
    elif isinstance(value, dict) and "type" in value:
        value = [value]
    if not isinstance(value, list):
        _refuse("The body must be an object with `events`, an array of events, or one event.")
    if not value:
        _refuse("`events` must have at least one event.")
    if len(value) > MAX_EVENTS:
        _refuse(f"The batch has more than {MAX_EVENTS} events.")
    events = tuple(
        _event(item, f"{prefix}[{n}]" if prefix or len(value) > 1 else "event")
        for n, item in enumerate(value)
    )
    if sum(event.type == "user.message" for event in events) > 1:
        _refuse("A request may have at most one `user.message`.")
    answered = [event.request for event in events if event.request]
    if len(set(answered)) != len(answered):
        _refuse("A request may answer each id once.")
    return events


def _event(item: Any, place: str) -> UserEvent:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        _refuse(f"`{place}` must be an object with a `type`.")
    parse = _EVENTS.get(item["type"])
    if parse is None:
        known = ", ".join(f"`{name}`" for name in _EVENTS)
        _refuse(f"`{place}.type` is not one of {known}.")
    return parse(item, place)


def _message(item: _Json, place: str) -> UserEvent:
    if item.get("attachments"):
        _refuse(f"`{place}.attachments` is not taken: only text blocks are (section 3.1).")
    return UserEvent("user.message", place, blocks=_content(item, place))


def _steer(item: _Json, place: str) -> UserEvent:
    return UserEvent("user.steer", place, text=_words(item, "message", place, empty=False))


def _interrupt(item: _Json, place: str) -> UserEvent:
    note = "" if item.get("message") is None else _words(item, "message", place)
    return UserEvent("user.interrupt", place, text=note)


def _confirmation(item: _Json, place: str) -> UserEvent:
    result, scope = item.get("result"), item.get("scope")
    if result != "allow" and result != "deny":
        _refuse(f"`{place}.result` must be `allow` or `deny`.")
    if scope is not None and scope != "once" and scope != "session" and scope != "always":
        _refuse(f"`{place}.scope` must be `once`, `session` or `always`.")
    return UserEvent(
        "user.tool_confirmation",
        place,
        request=_words(item, "tool_use_id", place, empty=False),
        decision="allow" if result == "allow" else "deny",
        scope=None if scope is None else _SCOPES[scope],
    )


def _tool_result(item: _Json, place: str) -> UserEvent:
    is_error = item.get("is_error", False)
    if is_error is not None and not isinstance(is_error, bool):
        _refuse(f"`{place}.is_error` must be true or false.")
    return UserEvent(
        "user.custom_tool_result",
        place,
        blocks=_content(item, place),
        request=_words(item, "tool_use_id", place, empty=False),
        is_error=bool(is_error),
    )


def _clarify(item: _Json, place: str) -> UserEvent:
    return UserEvent(
        "user.clarify_result",
        place,
        text=_words(item, "answer", place),
        request=_words(item, "request_id", place, empty=False),
    )


def _sealed(type_: str, field: str) -> Callable[[_Json, str], UserEvent]:
    def parse(item: _Json, place: str) -> UserEvent:
        request = _words(item, "request_id", place, empty=False)
        value = _words(item, field, place)
        # The empty string declines (design section 7): there is no value to seal then.
        return UserEvent(type_, place, request=request, sealed=Sealed(value) if value else None)

    return parse


_EVENTS: dict[str, Callable[[_Json, str], UserEvent]] = {
    "user.message": _message,
    "user.steer": _steer,
    "user.interrupt": _interrupt,
    "user.tool_confirmation": _confirmation,
    "user.custom_tool_result": _tool_result,
    "user.clarify_result": _clarify,
    "user.sudo_result": _sealed("user.sudo_result", "password"),
    "user.secret_result": _sealed("user.secret_result", "value"),
}
"""Section 3.2."""

_SCOPES: dict[str, Literal["once", "session", "always"]] = {
    "once": "once",
    "session": "session",
    "always": "always",
}


def _words(item: _Json, name: str, place: str, *, empty: bool = True) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        _refuse(f"`{place}.{name}` must be a string.")
    if not value and not empty:
        _refuse(f"`{place}.{name}` must not be empty.")
    return value


def _content(item: _Json, place: str) -> tuple[str, ...]:
    blocks = item.get("content")
    if not isinstance(blocks, list) or not 1 <= len(blocks) <= wire.MAX_BLOCKS:
        _refuse(f"`{place}.content` must be an array of 1 to {wire.MAX_BLOCKS} text blocks.")
    texts = []
    for number, block in enumerate(blocks):
        where = f"{place}.content[{number}]"
        if not isinstance(block, dict) or block.get("type") != "text":
            _refuse(f"`{where}` must be a block of type `text`.")
        text = block.get("text")
        if not isinstance(text, str):
            _refuse(f"`{where}.text` must be a string.")
        if len(text) > wire.MAX_BLOCK_TEXT:
            _refuse(f"`{where}.text` must have at most {wire.MAX_BLOCK_TEXT} characters.")
        texts.append(text)
    return tuple(texts)


# Commands.


Lookup = Callable[[str], InteractionRequested | str | None]
"""The open request that a frontend's id means, the id of one that is over, or None for one that
never was."""


def to_commands(events: Sequence[UserEvent], lookup: Lookup) -> list[AnyCommand]:
    """Return the commands of a batch, in order.

    A message behind an interrupt waits for the turn to end; any other is refused while a turn runs
    (section 3.1).

    Raises:
        ClientProtocolError: an answer does not fit its request, or the request never was.
    """
    commands: list[AnyCommand] = []
    policy: Policy = "reject"
    for event in events:
        match event.type:
            case "user.message":
                content = tuple(Text(text=text) for text in event.blocks)
                commands.append(SendMessage(content=content, policy=policy))
            case "user.steer":
                commands.append(Steer(text=event.text))
            case "user.interrupt":
                commands.append(Interrupt(note=event.text or None))
                policy = "queue"
            case _:
                commands.append(_to_answer(event, lookup(event.request)))
    return commands


_TAKEN_BY = {
    "approval": "user.tool_confirmation",
    "tool_result": "user.custom_tool_result",
    "sudo": "user.sudo_result",
    "secret": "user.secret_result",
}
"""Kind of a request -> the event that answers it; the rest is answered by `user.clarify_result`."""


def _to_answer(event: UserEvent, found: InteractionRequested | str | None) -> AnswerInteraction:
    if found is None:
        raise ClientProtocolError(
            f"`{event.place}` answers an id that was never asked in this session; the session's "
            "events have the ids.",
            code=ErrorCode.UNKNOWN_INTERACTION,
        )
    if isinstance(found, str):
        # Over: the session says so, with the outcome.
        return AnswerInteraction(request_id=found, skip=True)
    wanted = _TAKEN_BY.get(found.kind, "user.clarify_result")
    # Shown as a question; what answers a secret or a password is taken too.
    either = found.kind == "unknown" and event.type in ("user.sudo_result", "user.secret_result")
    if event.type != wanted and not either:
        _refuse(f"`{event.place}` answers a request that takes `{wanted}`.")
    return decide(_answer(event, found), found)


def _answer(event: UserEvent, request: InteractionRequested) -> AnswerInteraction:
    request_id = request.request_id
    if request.kind in SEALED_KINDS:
        # What is not known may be a secret: its words are sealed.
        sealed = Sealed(event.text) if event.text else event.sealed
        return AnswerInteraction(request_id=request_id, sealed=sealed, skip=sealed is None)
    match event.type:
        case "user.tool_confirmation":
            return AnswerInteraction(
                request_id=request_id, decision=event.decision, scope=event.scope
            )
        case "user.custom_tool_result":
            content = tuple(Text(text=text) for text in event.blocks)
            return AnswerInteraction(
                request_id=request_id, content=content, is_error=event.is_error
            )
        case _:
            return _clarified(event, request)


def _clarified(event: UserEvent, request: InteractionRequested) -> AnswerInteraction:
    request_id, words = request.request_id, event.text
    if request.kind == "authorization":
        if words and words.lower() not in NEGATIVE:
            _refuse(f"`{event.place}`: a sign-in ends elsewhere; `{wire.CANCEL}` is all it takes.")
        return AnswerInteraction(request_id=request_id, decision="deny", skip=True)
    if not words:
        return AnswerInteraction(request_id=request_id, skip=True)
    for option in request.options or ():
        if words in (option.label, option.id):
            return AnswerInteraction(request_id=request_id, option_ids=(option.id,))
    if request.kind == "limit" and not request.options:
        if words.lower() not in POSITIVE | NEGATIVE:
            _refuse(f"`{event.place}.answer` must be `continue` or `stop`.")
        allow = words.lower() in POSITIVE
        return AnswerInteraction(request_id=request_id, decision="allow" if allow else "deny")
    return AnswerInteraction(request_id=request_id, text=words)


# Queries.


def parse_list(query: Mapping[str, str], session_id: str) -> ListQuery:
    """Return what a list's query asks for; unknown parameters are ignored (section 4.2).

    Raises:
        HermRefusal: a parameter is not a number, position or order.
    """
    limit = _limit(query)
    order = query.get("order", "asc")
    if order not in ("asc", "desc"):
        _refuse("`order` must be `asc` or `desc`.")
    after = query.get("after")
    position = None if after is None else parse_position(after, session_id, "after")
    pin = None
    if cursor := query.get("cursor"):
        position, pin = _cursor(cursor)
    return ListQuery(limit, position, pin, order == "desc")


def parse_position(text: str, session_id: str, name: str) -> int:
    """Return the sequence that a position names: a number, or the id of an envelope.

    Raises:
        HermRefusal: it is neither; `name` is what the parameter is called.
    """
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    position = position_of(text, session_id)
    if position is None:
        _refuse(f"`{name}` must be a sequence number or the id of an event of this session.")
    return position


def parse_stream(
    query: Mapping[str, str], headers: Mapping[str, str], session_id: str
) -> int | None:
    """Return the sequence after which a stream begins, or None for live (sections 4.3 and 9).

    Raises:
        HermRefusal: a position is none of this session.
    """
    last = headers.get(wire.LAST_EVENT_ID)
    if last:
        return parse_position(last, session_id, wire.LAST_EVENT_ID)
    for name in ("after", "sequence"):
        if query.get(name):
            return parse_position(query[name], session_id, name)
    return None


def parse_sessions(query: Mapping[str, str]) -> SessionQuery:
    """Return what a list of sessions is narrowed to (section 2.3).

    `metadata[key]=value` is ours: the page names the filter and no syntax.

    Raises:
        HermRefusal: `limit` or `cursor` is none.
    """
    before = None
    if cursor := query.get("cursor"):
        before = _cursor(cursor)[0]
    metadata = {
        name[len("metadata[") : -1]: value
        for name, value in query.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    return SessionQuery(
        limit=_limit(query),
        before=before,
        agent_id=query.get("agentId"),
        user_id=query.get("userId"),
        status=query.get("status"),
        metadata=metadata,
    )


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit")
    if text is None:
        return wire.LIMIT_DEFAULT
    if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= wire.LIMIT_MOST:
        return int(text[:6])
    _refuse(f"`limit` must be a number from 1 to {wire.LIMIT_MOST}.")


def make_cursor(position: int, pin: int = 0) -> str:
    """Return the cursor of a next page: where it begins, and what the first page pinned."""
    return base64.urlsafe_b64encode(b"%d.%d" % (position, pin)).decode().rstrip("=")


def _cursor(text: str) -> tuple[int, int]:
    try:
        plain = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        plain = ""
    found = _CURSOR.fullmatch(plain)
    if found is None:
        _refuse("`cursor` must be the `nextCursor` of the page before.")
    return int(found[1]), int(found[2])


# Answers.


def json_response(status: int, body: object) -> Response:
    """Return an answer with a JSON body."""
    return Response(status, CIMultiDict({"content-type": "application/json"}), format_json(body))


def events_answer(bodies: Sequence[bytes]) -> Response:
    """Return the answer to a POST of events: the accepted ones as envelopes (section 3)."""
    body = b'{"data":[%b]}' % b",".join(bodies)
    return Response(202, CIMultiDict({"content-type": "application/json"}), body)


class Page:
    """Collects one page of a list from parts of the log: envelopes in, the answer out.

    `newest` is the sequence of the session's newest envelope, `inputs` has the bodies of the newest
    inputs as they are now, by sequence. While `wanted` is a sequence, a part is to be read that
    begins there or before: `begin`, `add` for each entry until it says no, `end`.
    """

    def __init__(
        self, query: ListQuery, newest: int, inputs: Mapping[int, bytes] | None = None
    ) -> None:
        self._limit = query.limit
        self._descending = query.descending
        self._inputs = inputs or {}
        self._pin = query.pin if query.pin is not None else newest
        self._low = query.after or 0
        # What came after the first page is on none (section 4.2).
        self._high = self._pin
        if query.descending and query.pin is not None and query.after is not None:
            self._low, self._high = 0, min(self._pin, query.after - 1)
        self._rows: list[Envelope] = []
        self._part: dict[int, Envelope] = {}
        self._pending: set[int] = set()
        self._passed = False
        self._cursor = 0
        self._done = self._high <= self._low

    @property
    def wanted(self) -> int | None:
        """Return the sequence from which on the next part is read, None when the page is full."""
        if self._done:
            return None
        return self._high if self._descending else self._low + 1

    def begin(self, cursor: int) -> None:
        """Record that a part begins, with the envelope `cursor`."""
        self._cursor, self._part, self._passed = cursor, {}, False
        self._pending.clear()

    def add(self, made: Sequence[Envelope]) -> bool:
        """Take the envelopes of the next log entry, and say whether the next entry is needed; one
        that changes replaces what it was."""
        for envelope in made:
            number = envelope.sequence
            if envelope.update:
                self._pending.discard(number)
                if number in self._part and number not in self._inputs:
                    self._part[number] = envelope
                continue
            self._passed = self._passed or number >= self._high
            if envelope.listed and self._low < number <= self._high and not self._full:
                if number in self._inputs:
                    envelope = envelope._replace(body=self._inputs[number])
                elif _PENDING in envelope.body and envelope.type.startswith("user."):
                    # What became of it is further on.
                    self._pending.add(number)
                self._part[number] = envelope
        return not (self._passed or self._full) or bool(self._pending)

    @property
    def _full(self) -> bool:
        # One more than the page has says that there is another page.
        return not self._descending and len(self._part) > self._limit

    def end(self) -> None:
        """Record that a part is over: nothing more of it is needed, or the log has no more."""
        part = list(self._part.values())
        if not self._descending:
            self._rows, self._done = part, True
            return
        self._rows += reversed(part)
        self._high = self._cursor - 1
        self._done = len(self._rows) > self._limit or self._high <= self._low

    def answer(self) -> Response:
        """Return the page: `data` and `nextCursor`."""
        page: list[Envelope] = []
        size = 0
        for row in self._rows[: self._limit]:
            size += len(row.body)
            if page and size > PAGE_BYTES:
                break
            page.append(row)
        cursor = b"null"
        if len(self._rows) > len(page):
            cursor = b'"%b"' % make_cursor(page[-1].sequence, self._pin).encode()
        body = b'{"data":[%b],"nextCursor":%b}' % (b",".join(row.body for row in page), cursor)
        return Response(200, CIMultiDict({"content-type": "application/json"}), body)


PAGE_BYTES = 3 * 1024 * 1024
"""Bytes of a page, which has one event at least: a hundred of the largest would be a hundred times
as many. A Dragoman before this one takes 4 MiB."""

_PENDING = b'"status":"pending"'
"""In the body of an input that is not settled."""


def agent_object(agent_id: str, name: str, model: str) -> _Json:
    """Return the one agent of a route as an agent definition (section 2.1)."""
    return {
        "id": agent_id,
        "name": name,
        "model": model,
        "version": 1,
        "instructions": "",
        "tools": [],
        "mcpServers": [],
        "skills": [],
        "metadata": {},
    }


def error_response(status: int, code: str, message: str) -> Response:
    """Return an error in the form that section 6 asks a server to send."""
    return json_response(status, {"error": {"code": code, "message": message}})


def refusal(error: DragomanError) -> Response:
    """Return the answer for an error (section 6); codes that the page does not have are ours."""
    if isinstance(error, HermRefusal):
        return error_response(error.status, error.code_text, error.message)
    code = _WORDS.get(error.code, "server_error")
    answer = error_response(_STATUSES[error.code], code, error.message)
    return say_when_to_retry(answer, error.details)


_WORDS: Mapping[ErrorCode, str] = {
    ErrorCode.UNAUTHORIZED: "unauthorized",
    ErrorCode.FORBIDDEN: "forbidden",
    ErrorCode.NOT_FOUND: "not_found",
    ErrorCode.STALE_TOKEN: "not_found",
    ErrorCode.METHOD_NOT_ALLOWED: "method_not_allowed",
    ErrorCode.INVALID_REQUEST: "validation_error",
    ErrorCode.UNSUPPORTED_MEDIA: "validation_error",
    ErrorCode.TOO_LARGE: "validation_error",
    ErrorCode.REQUEST_TIMEOUT: "request_timeout",
    ErrorCode.NOT_SUPPORTED: "not_supported",
    ErrorCode.BUSY: "turn_running",
    ErrorCode.PAUSED: "turn_running",
    ErrorCode.NOT_ACTIVE: "session_ended",
    ErrorCode.ALREADY_ANSWERED: "already_answered",
    ErrorCode.KEY_REUSED: "idempotency_key_conflict",
    ErrorCode.UNKNOWN_INTERACTION: "unknown_request",
    ErrorCode.CURSOR_EXPIRED: "cursor_expired",
    ErrorCode.RATE_LIMITED: "rate_limited",
    ErrorCode.JOURNAL_UNAVAILABLE: "unavailable",
    ErrorCode.OVERLOADED: "unavailable",
    ErrorCode.STOPPING: "unavailable",
}
"""What an error is called; the others are `server_error`."""

_STATUSES = {
    **USUAL_STATUS,
    ErrorCode.UNKNOWN_INTERACTION: 400,
    ErrorCode.BACKEND_UNAVAILABLE: 502,
}


NOT_SERVED: tuple[tuple[str, str, str], ...] = (
    ("POST", "/agents", "agents are configured at the backend, not through the proxy"),
    ("PATCH", "/agents/{agent}", "agents are configured at the backend, not through the proxy"),
    ("DELETE", "/agents/{agent}", "agents are configured at the backend, not through the proxy"),
    (
        "POST",
        "/agents/{agent}/archive",
        "agents are configured at the backend, not through the proxy",
    ),
)
"""Routes of the page below `/v1` that answer 501, and why."""


def not_served(method: str, path: str, why: str) -> Response:
    """Return the answer of a route that the page has and this proxy does not serve."""
    return error_response(501, "not_supported", f"`{method} {path}` is not served: {why}.")


def no_route(method: str, path: str, hint: str) -> Response:
    """Return the answer for a path that is none, with what to write; old clients are told apart
    (section 7)."""
    if "/v1/deployments" in path:
        hint = "Deployments, threads and runs are the older generation, which is not served."
    return error_response(404, "not_found", f"There is no `{method} {path[:200]}`. {hint}")
