"""The request side of the eve face: bodies and queries to values, values and errors to answers.

Two generations differ in what they take (eve page, sections 1, 4, 5 and 6). Form `tokens` judges as
T (0.30.8) does, form `newest` as S (0.80.1), each in its own order of checks, so that a body with
two faults gets the same text. Form `all` serves the clients of both: it takes what either takes and
refuses what both refuse, in the words of S, with these exceptions, where ignoring a member, as one
generation does, would drop something that the sender relies on:

* `inputResponses` on create (T ignores): answers would be lost;
* `operationId` without a principal, or of a wrong type (T ignores): the promise to create once
  would be broken;
* `stubs` (T ignores): the real tools would run;
* a bad `protocolVersion` beside `callback` (T ignores): the two deployments would not understand
  each other.

`continuationToken` on create and on cancel is ignored there (S refuses), as T does: it promises
nothing. A `mode` that is not a mode is ignored (T refuses), as S ignores every one. A follow-up
with a `continuationToken` is judged by T's rules, one without by S's.

No refusal keeps the offending bytes: a body may hold the value of a sealed request.

Why one module: each function reads one body or query of the face in the order of its generation, or
writes one answer; to part the generations would repeat all that they share.
"""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, assert_never

from multidict import CIMultiDict

from adapters.contract.faces.answers import USUAL_STATUS, json_answer, say_when_to_retry
from adapters.contract.faces.files import file_of
from adapters.eve import wire
from adapters.model.base import Response
from adapters.model.commands import AnswerInteraction, SendMessage
from adapters.model.events import (
    SEALED_KINDS,
    Content,
    File,
    InteractionRequested,
    Option,
    Policy,
    Text,
    Url,
)
from adapters.model.interactions import decision_of, option_named, polarity
from adapters.serving.members import MAX_PARTS
from adapters.wire.encodings import decode_base64, decode_percent
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from adapters.wire.jsonvalue import JsonError, format_json, parse_json
from adapters.wire.limits import ID_BYTES
from adapters.wire.url_paths import path_of, segments_of, to_header_value

ControlKind = Literal["cancel", "compact", "clear", "reset"]
Route = Literal["create", "session", "cancel", "control", "stream", "info"]
"""What was asked, as far as an error depends on it; `control` is compact, clear and reset."""

_Json: TypeAlias = dict[str, Any]

_CODE_OF_STATUS = {
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    409: ErrorCode.NOT_SUPPORTED,
    413: ErrorCode.TOO_LARGE,
    415: ErrorCode.UNSUPPORTED_MEDIA,
}


class EveRefusal(ClientProtocolError):
    """A request that eve refuses: `status` and `body` are the answer, exactly."""

    def __init__(self, status: int, body: _Json) -> None:
        super().__init__(
            str(body.get("error", "")),
            code=_CODE_OF_STATUS.get(status, ErrorCode.INVALID_REQUEST),
        )
        self.status = status
        self.body = body

    def add(self, sentence: str) -> None:
        """Say one thing more, in the answer too."""
        super().add(sentence)
        self.body = {**self.body, "error": self.message}


@dataclasses.dataclass(frozen=True, slots=True)
class EveFaceSettings:
    """How a face is served: its form, the upload policy, and whether the caller is somebody.

    `media_types` are allowed types, `image/*` being all of a family and None all; `max_file_bytes`
    counts decoded bytes.
    """

    form: wire.Form = "all"
    max_file_bytes: int = 26_214_400  # section 4.2
    media_types: tuple[str, ...] | None = None
    authenticated: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class EveCreate:
    """A create (section 4.1); `message` is None for a prewarmed session.

    `blobs` has the bytes of inline files by hash.
    """

    message: SendMessage | None = None
    mode: Literal["conversation", "task"] | None = None
    request_input: bool | None = None
    operation_id: str | None = None
    callback: _Json | None = None
    blobs: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class InputResponse:
    """An answer to a request: an option, words, or both (section 5)."""

    request_id: str
    option_id: str | None = None
    text: str | None = None


def name_again(request_id: str, times: int) -> str:
    """Return the name of a request that is shown for that many times: each time has its own."""
    return request_id if times == 1 else f"{request_id}~{times}"


def first_name(request_id: str) -> str:
    """Return the name that a request had when it was shown for the first time."""
    return re.sub(r"~[0-9]{1,9}\Z", "", request_id)


@dataclasses.dataclass(frozen=True, slots=True)
class FollowUp:
    """A follow-up (section 5): a message, answers, or with a token both; answers come first.

    `text` is the message if it was one plain string: only such a one can be an answer (section
    9.4). `client_context`, `output_schema` and `callback` are those of the request: the message
    has them too, answers alone get them through `options`.
    """

    token: str | None = None
    message: SendMessage | None = None
    text: str | None = None
    answers: tuple[InputResponse, ...] = ()
    client_context: Any = None
    output_schema: _Json | None = None
    callback: _Json | None = None
    blobs: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    @property
    def paused_policy(self) -> Policy:
        """Return the policy while a request is open.

        S withdraws the request, T lets it stand (sections 5.1 and 8.2).
        """
        return "withdraw" if self.token is None else "queue"

    @property
    def options(self) -> _Json | None:
        """Return what comes with the answers, under its wire names, for the commands' `options`;
        beside a message it is the message's."""
        if self.answers and self.message is not None:
            return None
        options: _Json = {}
        if self.client_context is not None:
            options["clientContext"] = self.client_context
        if self.output_schema is not None:
            options["outputSchema"] = self.output_schema
        if self.callback is not None:
            options["callback"] = self.callback
        return options or None


@dataclasses.dataclass(frozen=True, slots=True)
class EveControl:
    """A control (section 6), of the session in the path or of the one that `token` names."""

    kind: ControlKind
    token: str | None = None
    turn_id: str | None = None
    reason: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class EveStreamQuery:
    """What a reader of a stream asks for (section 7.1).

    `follow` is false where the body ends at the tail seen at open.
    """

    start_index: int = 0
    include_tail: bool = False
    follow: bool = True
    lease: bool = False

    def first(self, tail_index: int) -> int:
        """Return the index of the first record to send.

        A negative start counts back from the end and stops at 0.
        """
        return (
            self.start_index if self.start_index >= 0 else max(0, tail_index + 1 + self.start_index)
        )


# Bodies.


def parse_create(body: bytes, face: EveFaceSettings) -> EveCreate:
    """Return what the body of a create asks for.

    Raises:
        EveRefusal: the generation, or in form `all` both, would refuse it (sections 4.1 and 4.2).
    """
    members = _members(body, face, optional=face.form != "tokens")
    token_generation = face.form == "tokens"
    if not token_generation:
        if "stubs" in members:
            _refuse("Tool stubbing is not permitted for this caller.", 403)
        if face.form == "newest":
            _refuse_token(members)
    _refuse_forwarded(members)
    if not token_generation and "inputResponses" in members:
        _refuse("'inputResponses' is only accepted for an existing session.")
    message = _message(members, face)
    context = _client_context(members)
    callback = _callback(members, by_id=not token_generation)
    if callback is not None and not token_generation:
        _check_protocol_version(members)
    request_input = _request_input(members)
    mode = _mode(members, strict=token_generation) if face.form != "newest" else None
    schema = _output_schema(members)
    operation_id = None
    if token_generation:
        if message is None:
            _refuse("Missing or empty 'message' field.")
    else:
        _check_without_message(members, message, callback, schema)
        operation_id = _words(members, "operationId")
        # It is kept for as long as the session's id: so many bytes are enough for any name.
        if len((operation_id or "").encode("utf-8", "surrogatepass")) > ID_BYTES:
            _refuse(f"'operationId' is longer than {ID_BYTES} bytes.")
    _check_uploads(message)
    if operation_id is not None and not face.authenticated:
        _refuse("operationId requires an authenticated principal.")
    return EveCreate(
        message=None if message is None else message.command("queue", context, schema),
        mode=mode,
        request_input=request_input,
        operation_id=operation_id,
        callback=callback,
        blobs={} if message is None else message.blobs,
    )


_SELDOM = {"callback", "inputResponses", "clientContext", "outputSchema"}
"""The members that a follow-up of a person's words does not have."""


def parse_follow_up(body: bytes, face: EveFaceSettings) -> FollowUp:
    """Return what the body of a follow-up asks for.

    In form `all` a `continuationToken` in it makes T's rules count.

    Raises:
        EveRefusal: the generation would refuse it (section 5).
    """
    members = _members(body, face, optional=False)
    by_token = face.form == "tokens" or (face.form == "all" and "continuationToken" in members)
    token = _check_by_token(members) if by_token else None
    if not by_token:
        _refuse_forwarded(members)
        if "stubs" in members:
            _refuse("Tool stubs are fixed at session creation.")
        _refuse_token(members)
    message = _message(members, face)
    callback, context, schema = None, None, None
    answers: tuple[InputResponse, ...] = ()
    if members.keys() & _SELDOM:
        callback = _callback(members, by_id=not by_token)
        answers = _input_responses(members)
        context = _client_context(members)
        schema = _output_schema(members)
    policy: Policy = "queue" if by_token else _turn_policy(members)
    if message is None and not answers:
        _refuse(
            "Expected a non-empty 'message', a non-empty 'inputResponses' array, or both."
            if by_token
            else "Expected a non-empty 'message' or a non-empty 'inputResponses' array."
        )
    if message is not None and answers and not by_token:
        _refuse("'message' and 'inputResponses' are mutually exclusive.")
    if message is not None and message.violations:
        _check_uploads(message)
    options = None if callback is None else {"callback": callback}
    return FollowUp(
        token=token,
        message=None if message is None else message.command(policy, context, schema, options),
        text=None if message is None else message.text,
        answers=answers,
        client_context=context,
        output_schema=schema,
        callback=callback,
        blobs={} if message is None else message.blobs,
    )


def parse_control(
    kind: ControlKind, body: bytes, face: EveFaceSettings, session_id: str | None = None
) -> EveControl:
    """Return what a control asks for.

    `session_id` is that of the path, None on T's routes, which name none.

    Raises:
        EveRefusal: the body is refused (section 6), or the form has no such route.
    """
    if session_id is None:
        return _control_by_token(kind, body, face)
    if face.form == "tokens" and kind != "cancel":
        path = f"{wire.SESSION_PATH}/{session_id}/{kind}"
        raise EveRefusal(404, _no_route_body("POST", path))
    members = _object(body) if body.strip() else {}
    # T does not look for a token in the body of a cancel, and form `all` takes what T takes.
    if kind != "cancel" or face.form == "newest":
        _refuse_token(members)
    return EveControl(
        kind=kind,
        turn_id=_words(members, "turnId") if kind == "cancel" else None,
        reason=_words(members, "reason") if kind == "reset" else None,
    )


def parse_stream_query(query: Mapping[str, str], face: EveFaceSettings) -> EveStreamQuery:
    """Return what the query of a stream asks for (section 7.1).

    Of a repeated name the first counts.

    0.80.1 ends the body at the tail when `includeTailIndex` is given, 0.30.8 leaves it open and its
    client stops at that tail by itself (section 7.5): ending there is right for both, so form `all`
    does.

    Raises:
        EveRefusal: `startIndex` is not an integer.
    """
    start = query.get(wire.START_INDEX_QUERY)
    if start is None:
        start_index = 0
    elif re.fullmatch(r"-?[0-9]{1,4000}", start) and abs(int(start)) < 2**53:
        # The servers refuse what is not a safe integer of JavaScript (section 7.1).
        start_index = int(start)
    else:
        _refuse("Expected startIndex to be an integer.")
    asked = query.get(wire.INCLUDE_TAIL_INDEX_QUERY) in ("1", "true")
    if face.form == "tokens":
        return EveStreamQuery(start_index, include_tail=asked)
    bounded = asked or query.get(wire.FOLLOW_QUERY) in ("0", "false")
    lease = query.get(wire.STREAM_CONTROL_VERSION_QUERY) == wire.STREAM_CONTROL_VERSION
    return EveStreamQuery(start_index, include_tail=bounded, follow=not bounded, lease=lease)


def _refuse(error: str, status: int = 400, **members: Any) -> NoReturn:
    raise EveRefusal(status, {"ok": False, **members, "error": error})


def _value(body: bytes) -> Any:
    try:
        # As `Request.json()` of the servers: a byte order mark is not part of the text.
        return parse_json(body.removeprefix(b"\xef\xbb\xbf"))
    except JsonError:
        pass
    # Not inside the `except`: the error of the reader would be kept as the context of ours.
    _refuse("Invalid JSON body. Send a JSON object, in UTF-8.")


def _object(body: bytes) -> _Json:
    value = _value(body)
    if not isinstance(value, dict):
        _refuse("Expected a JSON object.")
    return value


def _members(body: bytes, face: EveFaceSettings, *, optional: bool) -> _Json:
    if optional and not body.strip():
        return {}
    if face.form != "tokens":
        return _object(body)
    value = _value(body)
    # T takes an array for an object without members.
    return {} if isinstance(value, list) else _object(body)


def _refuse_token(members: _Json) -> None:
    if "continuationToken" in members:
        _refuse("Session-ID routes do not accept 'continuationToken'.")


def _refuse_forwarded(members: _Json) -> None:
    if "forwardedPrincipal" in members:
        _refuse("This deployment does not accept a forwarded principal.", 403)


def _check_by_token(members: _Json) -> str:
    if "forwardedPrincipal" in members:
        _refuse("A forwarded principal is only accepted on session creation.")
    token = members.get("continuationToken")
    if not isinstance(token, str) or not token:
        _refuse("Missing or empty 'continuationToken' field.")
    return token


def _words(members: _Json, name: str) -> str | None:
    if name not in members:
        return None
    value = members[name]
    if not isinstance(value, str) or not value:
        _refuse(f"Expected '{name}' to be a non-empty string.")
    return value


def _control_by_token(kind: ControlKind, body: bytes, face: EveFaceSettings) -> EveControl:
    if kind == "cancel" or face.form == "newest":
        # There `/session/reset` is the session of the name `reset`, and a cancel always has a
        # session in its path.
        parse_follow_up(body, face)
        _refuse(f"The session is no longer active. {_NEW}", 409, code=wire.SESSION_NOT_ACTIVE)
    token = _object(body).get("continuationToken")
    if not isinstance(token, str) or not token:
        _refuse("Expected 'continuationToken' to be a non-empty string.")
    return EveControl(kind=kind, token=token)


def _client_context(members: _Json) -> Any:
    if "clientContext" not in members:
        return None
    value = members["clientContext"]
    if isinstance(value, list):
        if not all(isinstance(entry, str) and entry for entry in value):
            _refuse("Expected 'clientContext' array entries to be non-empty strings.")
    elif not isinstance(value, str | dict):
        _refuse("Expected 'clientContext' to be a string, string array, or JSON object.")
    # An empty text and an empty list say nothing; an empty object is shown to the model.
    return value if value or isinstance(value, dict) else None


def _output_schema(members: _Json) -> _Json | None:
    if "outputSchema" not in members:
        return None
    value = members["outputSchema"]
    if not isinstance(value, dict):
        _refuse("Expected 'outputSchema' to be a JSON-serializable object.")
    return value


def _request_input(members: _Json) -> bool | None:
    if "capabilities" not in members:
        return None
    value = members["capabilities"]
    if not isinstance(value, dict):
        _refuse("Expected 'capabilities' to be an object.")
    asked = value.get("requestInput", True)
    if value.keys() - {"requestInput"} or not isinstance(asked, bool):
        _refuse("Expected 'capabilities.requestInput' to be a boolean when provided.")
    return asked if value else None


def _mode(members: _Json, *, strict: bool) -> Literal["conversation", "task"] | None:
    match members.get("mode"):
        case "conversation":
            return "conversation"
        case "task":
            return "task"
        case _:
            if strict and "mode" in members:
                _refuse("Expected 'mode' to be either 'conversation' or 'task'.")
            return None


def _turn_policy(members: _Json) -> Policy:
    match members.get("turnPolicy", "steer"):
        case "steer":
            return "steer"
        case "queue":
            return "queue"
        case _:
            _refuse("Expected 'turnPolicy' to be either 'queue' or 'steer'.")


def _check_without_message(
    members: _Json, message: _MessageParts | None, callback: _Json | None, schema: _Json | None
) -> None:
    if message is not None:
        return
    if "message" in members:
        _refuse("Expected 'message' to be non-empty when provided.")
    if "clientContext" in members or callback is not None or schema is not None:
        _refuse(
            "Creating a session without a message does not accept 'clientContext', 'callback', or"
            " 'outputSchema'."
        )


def _check_protocol_version(members: _Json) -> None:
    value = members.get("protocolVersion", wire.LEGACY_REMOTE_PROTOCOL_VERSION)
    if not _is_number(value):
        _refuse("Expected 'protocolVersion' to be a number.")
    if value in (wire.LEGACY_REMOTE_PROTOCOL_VERSION, wire.REMOTE_PROTOCOL_VERSION):
        return
    _refuse(
        f"This deployment speaks eve remote agent protocol {wire.REMOTE_PROTOCOL_VERSION}, but the"
        f" caller speaks protocol {_js_text(value)}. Upgrade both deployments to the same eve"
        " release.",
        409,
        code=wire.REMOTE_PROTOCOL_MISMATCH,
        protocolVersion=wire.REMOTE_PROTOCOL_VERSION,
    )


def _input_responses(members: _Json) -> tuple[InputResponse, ...]:
    if "inputResponses" not in members:
        return ()
    value = members["inputResponses"]
    if not isinstance(value, list) or not value:
        _refuse("Expected 'inputResponses' to be a non-empty array.")
    if len(value) > MAX_PARTS:
        _refuse(f"Expected 'inputResponses' to have at most {MAX_PARTS} entries.")
    for entry in value:
        if (
            not isinstance(entry, dict)
            or entry.keys() - {"requestId", "optionId", "text"}
            or "requestId" not in entry
            or {*map(type, entry.values())} != {str}
        ):
            _refuse(
                "Expected every 'inputResponses' entry to match the HITL response schema: "
                "'requestId', and 'optionId' or 'text', all strings."
            )
    return tuple(
        InputResponse(entry["requestId"], entry.get("optionId"), entry.get("text"))
        for entry in value
    )


# Callbacks (section 11).

_CALLBACK_MEMBERS = ("callId", "subagentName", "token", "url")
_CALLBACK_PATH = "/eve/v1/callback/"
_AGENT_PATH = re.compile(r"^/eve/[a-z0-9][a-z0-9_-]*/v1(?=/|$)")
"""Section 2: the public path of a named agent, read as `/eve/v1`."""

_RESERVED = [
    ipaddress.ip_network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32"),
        *("2002::/16", "fc00::/7", "fe80::/10", "ff00::/8"),
    )
]
"""Hosts that a callback may not name; loopback, for local development, is not among them
(0.80.1)."""


def _callback(members: _Json, *, by_id: bool) -> _Json | None:
    """Return the callback; `by_id`, as in S, without the `taskId` of callers of protocol 1."""
    if "callback" not in members:
        return None
    value = members["callback"]
    if not isinstance(value, dict):
        kind = _kind(value)
        _refuse(
            f"Invalid callback metadata: callback: Invalid input: expected object, received {kind}"
        )
    callback = {name: value[name] for name in value if name != "taskId" or not by_id}
    faults = _callback_faults(callback, by_id=by_id)
    if faults:
        _refuse(f"Invalid callback metadata: {'; '.join(faults)}")
    return callback


def _callback_faults(value: _Json, *, by_id: bool) -> list[str]:
    """Return what is wrong, in the words of the servers.

    With `by_id`, as in S, the URL is looked at also beside unknown members, and may be an agent's.
    """
    faults = []
    well_typed = True
    for name in _CALLBACK_MEMBERS:
        member = value.get(name)
        if not isinstance(member, str):
            kind = _kind(member) if name in value else "undefined"
            faults.append(f"callback.{name}: Invalid input: expected string, received {kind}")
            well_typed = False
        elif not member:
            faults.append(f"callback.{name}: Too small: expected string to have >=1 characters")
    unknown = [f'"{name}"' for name in value if name not in _CALLBACK_MEMBERS]
    if unknown:
        plural = "s" if len(unknown) > 1 else ""
        faults.append(f"callback: Unrecognized key{plural}: {', '.join(unknown)}")
    if well_typed and (by_id or not unknown):
        faults += _url_faults(value["url"], value["token"], by_id=by_id)
    return faults


def _url_faults(url: str, token: str, *, by_id: bool) -> list[str]:
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return ["callback.url: Callback url must be absolute."]
    if not parts.scheme or (parts.scheme in ("http", "https") and not host):
        return ["callback.url: Callback url must be absolute."]
    path = _AGENT_PATH.sub("/eve/v1", parts.path) if by_id else parts.path
    _, found, last = path.rpartition(_CALLBACK_PATH)
    faults = []
    if not found or not last or "/" in last or urllib.parse.unquote(last) != token:
        faults.append("callback.url: Callback url token must match callback token.")
    if _is_reserved(host):
        faults.append("callback.url: Callback url host must not be a private or reserved address.")
    return faults


def _is_reserved(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return not address.is_loopback and any(address in network for network in _RESERVED)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: object) -> str:
    """Return the type of a JSON value as the servers' validator calls it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "number"


def _js_text(value: object) -> str:
    """Return what JavaScript's `String(value)` gives, cut to 100 characters: the servers quote
    values with it."""
    text: str
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = value
    elif isinstance(value, list):
        text = ",".join("" if entry is None else _js_text(entry) for entry in value[:100])
    elif isinstance(value, dict):
        text = "[object Object]"
    elif isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        text = str(int(value))
    else:
        # Python refuses to write integers of more than 4300 digits; none of them is read either.
        text = str(value)
    return text[:100]


# Messages (section 4.2).


@dataclasses.dataclass(frozen=True, slots=True)
class _MessageParts:
    content: tuple[Content, ...]
    text: str | None
    blobs: dict[str, bytes]
    violations: tuple[_Json, ...]

    def command(
        self, policy: Policy, context: Any, schema: _Json | None, options: _Json | None = None
    ) -> SendMessage:
        return SendMessage(
            content=self.content,
            policy=policy,
            client_context=context,
            output_schema=schema,
            options=options,
        )


def _message(members: _Json, face: EveFaceSettings) -> _MessageParts | None:
    """Return the message, or None where it is absent or empty."""
    if "message" not in members:
        return None
    value = members["message"]
    if isinstance(value, str):
        return _MessageParts((Text(type="text", text=value),), value, {}, ()) if value else None
    if not isinstance(value, list):
        _refuse("Expected 'message' to be a string or an array of text/file parts.")
    if len(value) > MAX_PARTS:
        _refuse(f"Expected 'message' to have at most {MAX_PARTS} parts.")
    content: list[Content] = []
    blobs: dict[str, bytes] = {}
    violations: list[_Json] = []
    for part in value:
        if not isinstance(part, dict | list):
            _refuse("Expected each message part to be an object.")
        block = _part(part if isinstance(part, dict) else {}, blobs)
        content.append(block)
        if isinstance(block, File):
            violations += _violations(block, face)
    return _MessageParts(tuple(content), None, blobs, tuple(violations)) if content else None


def _part(part: _Json, blobs: dict[str, bytes]) -> Text | File:
    match part.get("type"):
        case "text":
            text = part.get("text")
            if not isinstance(text, str) or not text:
                _refuse("Text parts require a non-empty 'text' string.")
            return Text(type="text", text=text)
        case "file":
            media_type = part.get("mediaType")
            if not isinstance(media_type, str) or not media_type:
                _refuse("File parts require a non-empty 'mediaType' string.")
            data = part.get("data")
            if not isinstance(data, str):
                _refuse_data()
            name = part.get("filename")
            return _file(media_type, data, name if isinstance(name, str) and name else None, blobs)
        case kind:
            quoted = _js_text(kind) if "type" in part else "undefined"
            _refuse(f"Unsupported message part type \"{quoted}\". Use 'text' or 'file'.")


def _refuse_data() -> NoReturn:
    _refuse("File parts require a 'data' string (base64, data URL, or URL).")


def _file(media_type: str, data: str, name: str | None, blobs: dict[str, bytes]) -> File:
    scheme = data[:16].lower()
    if scheme.startswith(wire.INTERNAL_SCHEMES):
        _refuse("File part 'data' must not use a framework-internal ref scheme.")
    if re.match(r"https?:", scheme):
        if not re.match(r"(?i)https?://[^\s/?#]", data):
            _refuse_data()
        return File(type="file", media_type=media_type, name=name, ref=Url(type="url", url=data))
    content = _data_url(data) if scheme.startswith("data:") else _base64(data)
    return file_of(content, media_type, blobs, name=name)


def _data_url(data: str) -> bytes:
    head, comma, payload = data.partition(",")
    if not comma:
        _refuse_data()
    if head.lower().endswith(";base64"):
        return _base64(payload)
    try:
        return decode_percent(payload)
    except ValueError:
        pass
    _refuse_data()


def _base64(text: str) -> bytes:
    """Return the bytes, also of the URL-safe alphabet, without padding or with line breaks.

    The servers skip what is not base64 and hand the model a damaged file; here it is refused. That
    is also the fate of URLs that are neither `data:` nor http(s), as no base64 has a colon.
    """
    try:
        return decode_base64(text.translate(_STANDARD_ALPHABET))
    except ValueError:
        pass
    _refuse_data()


_STANDARD_ALPHABET = str.maketrans("-_", "+/")


def _violations(file: File, face: EveFaceSettings) -> list[_Json]:
    media_type = file.media_type or ""
    named = {} if file.name is None else {"filename": file.name}
    if face.media_types is not None and not _is_allowed(media_type, face.media_types):
        return [
            {
                "kind": "disallowed-media-type",
                "mediaType": media_type,
                "allowedMediaTypes": list(face.media_types),
                **named,
            }
        ]
    if file.size is not None and file.size > face.max_file_bytes:
        return [
            {
                "kind": "too-large",
                "byteLength": file.size,
                "limit": face.max_file_bytes,
                "mediaType": media_type,
                **named,
            }
        ]
    return []


def _is_allowed(media_type: str, allowed: tuple[str, ...]) -> bool:
    wanted = media_type.lower()
    return any(
        pattern in ("*", "*/*", wanted)
        or (pattern.endswith("/*") and wanted.startswith(pattern[:-1]))
        for pattern in map(str.lower, allowed)
    )


def _check_uploads(message: _MessageParts | None) -> None:
    if message is None or not message.violations:
        return
    first = message.violations[0]
    name = first.get("filename", first["mediaType"])
    if first["kind"] == "too-large":
        status = 413
        error = (
            f"{name} ({first['byteLength']} bytes) exceeds the {first['limit']}-byte upload limit."
        )
    else:
        status = 415
        error = f'{name} has media type "{first["mediaType"]}" which is not allowed by this route.'
        if first["allowedMediaTypes"]:
            error += f" Allowed: {', '.join(first['allowedMediaTypes'])}."
    _refuse(error, status, violations=list(message.violations))


# Interactions (section 9.4).

_DECLINE = Option(id=wire.DECLINE_ID, label="Decline")
_CANCEL = Option(id="cancel", label="Cancel")
_APPROVAL = (Option(id="approve", label="Yes"), Option(id="deny", label="No"))
_LIMIT = (
    Option(id="continue", label="Approve", style="primary"),
    Option(id="stop", label="Stop", style="danger"),
)


_TERMINAL_WORDS = {"approve": "allow", "deny": "deny", "cancel": "deny"}
"""What eve's terminal programs answer an approval with (0.30.8: `approve`, `deny`; 0.80.1:
`approve`, `cancel`), whatever options the request has."""


def offered_options(request: InteractionRequested) -> tuple[Option, ...]:
    """Return the options that this face shows for a request, and takes.

    A sealed kind has `decline` alone, a sign-in `cancel` (design section 7). An approval or a limit
    that names none gets those of T, as nobody could answer it otherwise.
    """
    if request.kind in SEALED_KINDS:
        return (_DECLINE,)
    if request.kind == "authorization":
        return (_CANCEL,)
    if request.options:
        return request.options
    if request.kind == "approval":
        return _APPROVAL
    return _LIMIT if request.kind == "limit" else ()


def answer_by_message(
    text: str | None, open_interactions: Sequence[InteractionRequested]
) -> InputResponse | None:
    """Return the answer that a plain message is, or None where it is a message (section 9.4).

    The first open request that it fits is answered: by the id, the label or the number of an
    option, else in a question that takes free text by any text. `text` is None for a message of
    parts, which is never an answer. Nothing on the wire answers a sign-in.

    Raises:
        EveRefusal: a sealed request is open and the text answers nothing by an option: it may be
            the secret.
    """
    words = (text or "").strip()
    sealed = any(request.kind in SEALED_KINDS for request in open_interactions)
    for request in open_interactions:
        if request.kind == "authorization" or not words:
            continue
        options = offered_options(request)
        option = option_named(words, options, numbers=True)
        if option is not None:
            return InputResponse(request.request_id, option_id=option.id)
        free = request.freeform or not options
        if free and not sealed and request.kind not in ("approval", "limit"):
            return InputResponse(request.request_id, text=words)
    if sealed:
        _refuse(
            f"A secret is asked for and this API never carries one: answer '{wire.DECLINE_ID}', or"
            " give it where secrets are taken. No other text is taken until then.",
            code=wire.INPUT_PENDING,
        )
    return None


def to_command(
    response: InputResponse, request: InteractionRequested, options: _Json | None = None
) -> AnswerInteraction:
    """Return the command that an answer means; `options` are those of the follow-up.

    The option's id goes along, so that a backend with options of its own gets the very one that was
    chosen.

    Raises:
        EveRefusal: it does not fit the request; the text names the options, and never quotes an
            answer to a sealed kind.
    """
    if request.kind in SEALED_KINDS:
        return _declined(response, request)
    offered = offered_options(request)
    chosen: Option | None = None
    for option in offered:
        if option.id == response.option_id:
            chosen = option
            break
    if chosen is None and response.option_id is not None:
        chosen = _approval_word(response.option_id, request, offered)
    if request.kind in ("approval", "limit", "authorization"):
        if chosen is None:
            _refuse_option(request, offered)
        decision, scope = decision_of(chosen)
        return AnswerInteraction(
            request_id=request.request_id,
            decision=decision,
            scope=scope if decision == "allow" and request.kind == "approval" else None,
            reason=response.text or None,
            option_ids=(chosen.id,),
            options=options,
        )
    if chosen is None and not response.text:
        _refuse_option(request, offered)
    if chosen is None and offered and not request.freeform:
        _refuse_option(request, offered)
    if request.kind == "tool_result":
        words = response.text or (chosen.id if chosen is not None else "")
        return AnswerInteraction(
            request_id=request.request_id, content=(Text(type="text", text=words),), options=options
        )
    return AnswerInteraction(
        request_id=request.request_id,
        option_ids=() if chosen is None else (chosen.id,),
        text=response.text or None,
        options=options,
    )


def _approval_word(word: str, request: InteractionRequested, offered: tuple[Option, ...]) -> Option:
    """Return the option that a word means which is not the id of one.

    The terminal programs answer every approval with the ids of their own generation, whatever the
    request offers: the first option that allows once, or the first that denies, is meant. Without
    options of its own an approval takes the words of both generations.
    """
    if request.kind == "approval" and not request.options and polarity(word)[0] is not None:
        return Option(id=word, label=word)
    decision = _TERMINAL_WORDS.get(word)
    if request.kind == "approval" and decision is not None:
        for option in offered:
            said, scope = decision_of(option)
            # A plain yes never reaches further than this once.
            if said == decision and (said == "deny" or scope in (None, "once")):
                return option
    _refuse_option(request, offered)


def _declined(response: InputResponse, request: InteractionRequested) -> AnswerInteraction:
    given = [word for word in (response.option_id, response.text) if word]
    if not given or any(word != wire.DECLINE_ID for word in given):
        _refuse(
            f"This API never carries a secret: the request '{request.request_id}' takes only the"
            f" option '{wire.DECLINE_ID}' here."
        )
    return AnswerInteraction(request_id=request.request_id, skip=True)


def _refuse_option(request: InteractionRequested, offered: tuple[Option, ...]) -> NoReturn:
    if not offered:
        _refuse(f"The request '{request.request_id}' takes a non-empty 'text'.")
    names = ", ".join(f"'{option.id}'" for option in offered)
    free = ", or a non-empty 'text'" if request.freeform and request.kind == "question" else ""
    _refuse(f"The request '{request.request_id}' takes an 'optionId' of {names}{free}.")


# Answers.


def create_answer(
    form: wire.Form,
    session_id: str,
    *,
    token: str | None = None,
    delivery_id: str | None = None,
) -> Response:
    """Return the answer to a create: 202, in form `all` the union of both generations (1.1, 4.3).

    `token` is the session's newest one, unused in form `newest`; `delivery_id` that of the message,
    None for a prewarmed session.
    """
    body: _Json = {"ok": True, "sessionId": session_id}
    if form != "tokens":
        body["status"] = "accepted"
    if form != "newest" and token is not None:
        body["continuationToken"] = token
    # A real server gives none on create; section 1.1 found that every client takes it.
    if form == "all" and delivery_id is not None:
        body["deliveryId"] = delivery_id
    return json_answer(202, body, {wire.SESSION_ID_HEADER: to_header_value(session_id)})


def follow_up_answer(
    form: wire.Form, session_id: str, *, delivery_id: str, token: str | None = None
) -> Response:
    """Return the answer to an accepted follow-up (sections 1.1 and 5).

    T says 200 and no more, S and the union 202 with the delivery id.
    """
    headers = {wire.SESSION_ID_HEADER: to_header_value(session_id)}
    body: _Json = {"ok": True, "sessionId": session_id}
    if form == "tokens":
        return json_answer(200, body, headers)
    body["status"] = "accepted"
    if form == "all" and token is not None:
        body["continuationToken"] = token
    body["deliveryId"] = delivery_id
    return json_answer(202, body, headers)


def control_answer(
    kind: ControlKind, form: wire.Form, session_id: str, *, applied: bool = True
) -> Response:
    """Return the answer to a control of a session that the caller may use (section 6).

    `applied` is false where nothing can be done because the session has ended. The bodies of the
    generations for a cancel without effect contradict each other, so form `all` always says
    `accepted` (section 1.1).
    """
    accepted: _Json = {"ok": True, "sessionId": session_id, "status": "accepted"}
    if kind == "cancel":
        if form == "tokens":
            body = accepted if applied else {**accepted, "status": "no_active_turn"}
            return json_answer(202, body, {wire.SESSION_ID_HEADER: to_header_value(session_id)})
        if applied or form == "all":
            return json_answer(202, accepted)
        return json_answer(200, {"ok": True, "status": "no_active_turn"})
    if not applied:
        return json_answer(200, {"ok": True, "status": "no_active_session"})
    if kind == "reset":
        return json_answer(200, {"ok": True, "previousSessionId": session_id, "status": "reset"})
    return json_answer(202, accepted)


def stream_headers(
    form: wire.Form, session_id: str, tail_index: int | None = None
) -> CIMultiDict[str]:
    """Return the head of a stream (section 7.2).

    `tail_index` is the index of the last record, -1 if there is none; None where it was not asked.
    """
    headers = CIMultiDict(
        {
            "content-type": wire.STREAM_CONTENT_TYPE,
            "cache-control": "no-store, no-transform",
            "x-accel-buffering": "no",
            wire.SESSION_ID_HEADER: to_header_value(session_id),
            wire.STREAM_FORMAT_HEADER: wire.STREAM_FORMAT,
            wire.STREAM_VERSION_HEADER: str(wire.STREAM_VERSIONS[form]),
        }
    )
    if tail_index is not None:
        headers[wire.STREAM_TAIL_INDEX_HEADER] = str(tail_index)
    return headers


def route_not_found(method: str, url: str, hint: str) -> Response:
    """Return the host framework's 404 for an unknown path or a wrong method (section 2), with what
    to write."""
    return Response(
        404,
        CIMultiDict({"content-type": "application/json; charset=utf-8"}),
        format_json(_no_route_body(method, f"{url}. {hint}")),
    )


def _no_route_body(method: str, url: str) -> _Json:
    message = f"Cannot find any route matching [{method}] {url}"
    return {"error": True, "status": 404, "message": message}


_CHALLENGES = ('Bearer realm="eve"', 'Basic realm="eve", charset="UTF-8"')
"""Section 2.1: one `www-authenticate` for each scheme that is taken."""

_CONFLICTS = {
    ErrorCode.NOT_SUPPORTED: wire.NOT_SUPPORTED,
    ErrorCode.BUSY: wire.SESSION_BUSY,
    ErrorCode.PAUSED: wire.INPUT_PENDING,
    ErrorCode.ALREADY_ANSWERED: wire.INPUT_ALREADY_RESOLVED,
    ErrorCode.KEY_REUSED: wire.IDEMPOTENCY_KEY_CONFLICT,
    ErrorCode.UNKNOWN_INTERACTION: wire.INPUT_ALREADY_RESOLVED,
}

_NEW = f"Start a new one with `POST {wire.SESSION_PATH}`."
"""What remains for who names a session that is not there."""

_FAILURES: dict[Route, str] = {
    "create": "Failed to create the session.",
    "session": "Failed to send the session message.",
    "cancel": "Failed to cancel the turn.",
    "control": "Failed to control the session.",
    "stream": "Session stream unavailable.",
    "info": "Failed to describe the agent.",
}


def refusal(
    error: DragomanError,
    *,
    form: wire.Form,
    token_style: bool = False,
    session_id: str | None = None,
    route: Route = "session",
    error_id: str | None = None,
) -> Response:
    """Return an error in the dialect's own form.

    `token_style` says that the request named its session by a token: it is then answered as T does,
    as always in form `tokens`. `error_id` is for a failure of ours, to find it in the log; its
    message is not shown.
    """
    if isinstance(error, EveRefusal):
        return json_answer(error.status, error.body)
    by_token = form == "tokens" or (form == "all" and token_style)
    match error.code:
        case ErrorCode.UNAUTHORIZED:
            text = f"Authorization is required for this route. {error.message}"
            answer = _failed(401, text, wire.UNAUTHORIZED)
            for challenge in _CHALLENGES:
                answer.headers.add("www-authenticate", challenge)
            return answer
        case ErrorCode.FORBIDDEN:
            return _failed(403, error.message or "Forbidden.", wire.FORBIDDEN)
        case ErrorCode.STALE_TOKEN:
            text = (
                "The continuation token is stale: use the one of the newest session.waiting event."
            )
            return _failed(404, text, wire.SESSION_NOT_RESUMABLE)
        case ErrorCode.NOT_FOUND | ErrorCode.NOT_ACTIVE:
            return _gone(error, form, by_token, session_id, route)
        case ErrorCode.METHOD_NOT_ALLOWED:
            return json_answer(404, {"error": True, "status": 404, "message": error.message})
        case (
            ErrorCode.NOT_SUPPORTED
            | ErrorCode.BUSY
            | ErrorCode.PAUSED
            | ErrorCode.ALREADY_ANSWERED
            | ErrorCode.KEY_REUSED
            | ErrorCode.UNKNOWN_INTERACTION
        ):
            return _failed(400 if by_token else 409, error.message, _CONFLICTS[error.code])
        case ErrorCode.CURSOR_EXPIRED:
            return _failed(410, "Session history is no longer available.", wire.SESSION_EXPIRED)
        case (
            ErrorCode.INVALID_REQUEST
            | ErrorCode.REQUEST_TIMEOUT
            | ErrorCode.TOO_LARGE
            | ErrorCode.UNSUPPORTED_MEDIA
            | ErrorCode.BACKEND_PROTOCOL
            | ErrorCode.BACKEND_REFUSED
            | ErrorCode.BACKEND_NOT_READY
            | ErrorCode.BACKEND_UNAVAILABLE
            | ErrorCode.BACKEND_TIMEOUT
            | ErrorCode.RATE_LIMITED
            | ErrorCode.JOURNAL_UNAVAILABLE
            | ErrorCode.OVERLOADED
            | ErrorCode.STOPPING
        ):
            return _plain(error, route)
        case ErrorCode.CONFIG | ErrorCode.RECORDING | ErrorCode.INTERNAL:
            body: _Json = {"ok": False, "error": _FAILURES[route]}
            if error_id is not None:
                body["errorId"] = error_id
            return json_answer(500, body)
        case _:
            assert_never(error.code)


def _failed(status: int, text: str, code: str | None = None) -> Response:
    body: _Json = {"ok": False, "error": text}
    if code is not None:
        body["code"] = code
    return json_answer(status, body)


def _plain(error: DragomanError, route: Route) -> Response:
    status = USUAL_STATUS[error.code]
    body: _Json = {"ok": False, "error": error.message}
    if route == "stream" and status == 503:
        body["error"] = _FAILURES[route]
    if "violations" in error.details:
        body["violations"] = error.details["violations"]
    return say_when_to_retry(json_answer(status, body), error.details)


def _gone(
    error: DragomanError, form: wire.Form, by_token: bool, session_id: str | None, route: Route
) -> Response:
    """Answer for a session that is unknown, another key's (both look the same) or at its end."""
    match route:
        case "stream":
            return _failed(404, f"Session not found. {_NEW}")
        case "create" | "info":
            return _failed(404, error.message)
        case "control":
            return control_answer("reset", form, session_id or "", applied=False)
        case "cancel":
            # Every body of T names the session, none of S does; neither client minds an error.
            if form == "all" and error.code is ErrorCode.NOT_FOUND:
                return _failed(404, f"Session not found. {_NEW}")
            return control_answer("cancel", form, session_id or "", applied=False)
        case "session":
            if by_token:
                text = f"Session is not active and cannot be resumed. {_NEW}"
                return _failed(404, text, wire.SESSION_NOT_RESUMABLE)
            return _failed(409, f"The session is no longer active. {_NEW}", wire.SESSION_NOT_ACTIVE)
        case _:
            assert_never(route)


# Health and info (section 12).


def health_body(workflow_id: str = "dragoman") -> _Json:
    """Return the body of health: exactly three members, as S clients refuse any other."""
    return {"ok": True, "status": "ready", "workflowId": workflow_id}


def info_body(form: wire.Form, agent_name: str) -> _Json:
    """Return the least payload that the clients accept.

    It is version 5 of S, in form `tokens` version 1 of T. The two contradict each other; form `all`
    serves S, and only an explicit `info()` of a T client fails (section 1.1).
    """
    model: _Json = {
        "id": f"dragoman/{agent_name}",
        "routing": {"kind": "external", "provider": "dragoman"},
    }
    common: _Json = {
        "kind": "eve-agent-info",
        "mode": "production",
        "capabilities": {"devRoutes": False},
        "connections": [],
        "diagnostics": {"discoveryErrors": 0, "discoveryWarnings": 0},
        "hooks": [],
        "schedules": [],
        "skills": {"dynamic": [], "static": []},
        "subagents": {"local": [], "total": 0},
        "workspace": {"resourceRoot": None, "rootEntries": []},
    }
    agent: _Json = {"agentRoot": "/agent", "appRoot": "/", "name": agent_name, "model": model}
    if form == "tokens":
        return {
            **common,
            "version": 1,
            "agent": agent,
            "channels": {"authored": [], "available": [], "disabledFramework": [], "framework": []},
            "instructions": {"dynamic": [], "static": None},
            "sandbox": None,
            "tools": {
                "authored": [],
                "available": [],
                "disabledFramework": [],
                "dynamic": [],
                "framework": [],
                "reserved": [],
            },
            "workflow": {"enabled": False, "toolName": "Workflow"},
            "workspace": {
                "resourceRoot": {"logicalPath": "", "rootEntries": []},
                "rootEntries": [],
            },
        }
    return {
        **common,
        "version": 5,
        "agent": {**agent, "nodeId": "__root__", "config": _module("agent.ts")},
        "channels": {"routes": [], "shadowed": []},
        "composition": {"disabled": [], "shadowed": []},
        "instructions": {"dynamic": [], "static": []},
        "kernelEffects": [],
        "memories": [],
        "remoteAgents": {"entries": [], "total": 0},
        "sandbox": {**_module("sandbox.ts"), "revisionHash": "0"},
        "tools": {"dynamic": [], "static": []},
    }


def _module(name: str) -> _Json:
    owner = {"kind": "application"}
    backing = {
        "kind": "filesystem",
        "externalDependencies": [],
        "sourcePath": f"/agent/{name}",
    }
    return {
        "logicalPath": name,
        "owner": owner,
        "sourceId": name,
        "sourceKind": "module",
        "binding": {"logicalPath": name, "owner": dict(owner), "backing": backing},
    }


# Continuation tokens (design section 5).

_TOKEN = re.compile(
    re.escape(wire.TOKEN_PREFIX)
    + r"([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-[0-9a-f]{4}-[0-9a-f]{12}"
)


def make_token(secret: bytes, wait: int) -> str:
    """Return the token of the `wait`-th `session.waiting` of the session with this secret.

    It is a pure function, so that replay is equal.
    """
    # Eight bytes name the session, eight the `session.waiting`.
    handle = hmac.digest(secret, b"handle", "sha256")[:8]
    place = hmac.digest(secret, f"wait:{wait}".encode(), "sha256")[:8]
    digits = (handle + place).hex()
    return wire.TOKEN_PREFIX + "-".join(
        (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    )


def webhook_token(secret: bytes, session_id: str, request_id: str) -> str:
    """Return our token for the return of a sign-in: the session, and a digest that only we make."""
    digest = hmac.digest(secret, f"webhook:{request_id}".encode(), "sha256")[:16]
    return f"{session_id}.{digest.hex()}"


def webhook_path(
    secret: bytes, session_id: str, name: str, request_id: str, attempt: str | None
) -> str:
    """Return where the provider of a sign-in may return to, below the address of the face (section
    9.4): S names the attempt, T does not.

    It is a path, as a record is the same for every address at which it is read.
    """
    token = webhook_token(secret, session_id, request_id)
    parts = (name, "callback", *(() if attempt is None else (attempt,)), token)
    return path_of(wire.CONNECTIONS_PATH, *parts)


def callback_path(address: str) -> str | None:
    """Return the path of a `webhookUrl` of a backend, made anew of its segments; None for an
    address that is not a connection's callback: who asks for it there shows no key."""
    try:
        segments = segments_of(urllib.parse.urlsplit(address).path) or ()
    except ValueError:
        return None
    match segments:
        case (*_, "connections", _, "callback", _) | (*_, "connections", _, "callback", _, _):
            return path_of("", *segments)
    return None


def token_handle(token: str) -> str | None:
    """Return the 16 digits that all tokens of a session share, an alias to find it by.

    None stands for what is not a token of ours.
    """
    match = _TOKEN.fullmatch(token)
    return None if match is None else "".join(match.groups())


def token_wait(secret: bytes, token: str, newest: int) -> int | None:
    """Return which `session.waiting` a token is of, if it is one of the newest two.

    None stands for a stale or foreign one.
    """
    given = token.encode("utf-8", "surrogatepass")
    for wait in (newest, newest - 1):
        if wait >= 0 and hmac.compare_digest(given, make_token(secret, wait).encode()):
            return wait
    return None
