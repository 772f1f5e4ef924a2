"""The request side of the Engine face: bodies and queries to values, values and errors to answers.

The Engine has no published schema, so this reads leniently what the page leaves open and refuses
what would lose something: a member of a wrong type, a file that is not base64, an answer that is
neither yes nor no. Members that the page does not name are kept for an Engine backend, as a
pass-through proxy does (engine page, section 6.1), and ignored for others. `edit_message_id`,
`retry_message_id`, `direct` and `super_thinking` mean something to an Engine only:
`for_engine_only` names those of a request, and the face refuses them for other backends.

No refusal keeps or quotes the body: it may hold the value of a sealed request.

Why one room: each function reads one body or query of the face, or writes one answer; they share
the refusals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, assert_never

from adapters.contract.faces.answers import USUAL_STATUS, json_answer, say_when_to_retry
from adapters.contract.faces.files import (
    UNKNOWN_TYPE,
    file_of,
    is_data_url,
    media_type_of,
    read_data_url,
)
from adapters.engine import wire
from adapters.model.base import Response
from adapters.model.commands import AnswerInteraction, SendMessage
from adapters.model.events import (
    SEALED_KINDS,
    Content,
    File,
    InteractionRequested,
    Other,
    Text,
    Url,
)
from adapters.model.interactions import decide, option_named
from adapters.wire.encodings import decode_base64
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from adapters.wire.jsonvalue import JsonError, parse_json

CANCEL = "cancel"
DECLINE = "decline"
CONTINUE = "continue"
STOP = "stop"
"""The one answer to a sign-in and to a sealed request, and the two to a limit (design section
7)."""

TASK_ID_LIMIT = 4096
"""Bytes of a `task_id`, which may be any string (section 6.1): enough for any name, little enough
for an index."""

MAX_AFTER = 2**53 - 1
"""The largest integer that every JSON writer and every clock in milliseconds agrees on."""

_YES = frozenset({"yes", "y", "true", "allow", "approve", "approved"})
_NO = frozenset({"no", "n", "false", "deny", "denied", "reject"})
"""How people spell the two answers to a permission; everything else is refused (design section
4)."""

_KNOWN = frozenset(
    {
        *("message", "task_id", "media", "direct", "edit_message_id", "retry_message_id"),
        *("super_thinking", "effort"),
    }
)
_EFFORTS = frozenset({"none", "low", "medium", "high"})
_MEDIA_TYPES = {
    "image": "image/*",
    "audio": "audio/*",
    "video": "video/*",
    "document": "application/*",
}
"""Block type -> media type of a URL source, which names none (section 6.2)."""


MAX_BLOCKS = 256
"""Blocks of a message: each costs some hundredths of a millisecond where it is read, and again
wherever the message is shown."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """A turn to run (section 6.1). `blobs` has the bytes of inline files by hash."""

    task_id: str
    message: SendMessage
    blobs: Mapping[str, bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class RespondRequest:
    """An answer (section 10.1), to the request `request_id`, or to what `task_id` waits for."""

    task_id: str | None
    request_id: str | None
    answer: str
    feedback: str | None
    content: tuple[Content, ...]
    blobs: Mapping[str, bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayQuery:
    """What a replay asks for (section 11.1): frames with a stamp above `after`."""

    after: int
    task_id: str | None


# Requests.


def parse_execute(body: bytes) -> ExecuteRequest:
    """Return the turn that the body of `POST /execute` asks for (section 6).

    Raises:
        ClientProtocolError: the body is not a JSON object, a member is missing or wrong, or edit
            and retry are asked for at once.
    """
    members = _members(body)
    text = _words(members, "message")
    task_id = _task_id(_words(members, "task_id"))
    blobs: dict[str, bytes] = {}
    media = _blocks(members, "media", blobs)
    edit_of = _optional(members, "edit_message_id")
    retry_of = _optional(members, "retry_message_id")
    if edit_of is not None and retry_of is not None:
        _refuse("`edit_message_id` and `retry_message_id` exclude each other.")
    options: dict[str, Any] = {}
    unknown = {name: value for name, value in members.items() if name not in _KNOWN}
    if unknown:
        options[wire.MEMBERS_OPTION] = unknown
    if _flag(members, "direct"):
        options["direct"] = True
    if _flag(members, "super_thinking") or _effort(members) == "high":
        options["super_thinking"] = True
    message = SendMessage(
        content=(Text(text=text), *media),
        policy="reject",
        edit_of=edit_of,
        retry_of=retry_of,
        options=options or None,
    )
    return ExecuteRequest(task_id=task_id, message=message, blobs=blobs)


def for_engine_only(message: SendMessage) -> list[str]:
    """Return the members of a request that only an Engine backend can honour."""
    options = message.options or {}
    named = [name for name in ("direct", "super_thinking") if options.get(name)]
    if message.edit_of is not None:
        named.append("edit_message_id")
    if message.retry_of is not None:
        named.append("retry_message_id")
    return named


def parse_respond(body: bytes) -> RespondRequest:
    """Return the answer in the body of `POST /hitl/respond` (section 10.1).

    Raises:
        ClientProtocolError: the body is not a JSON object, names neither task nor request, or a
            member is missing or wrong.
    """
    members = _members(body)
    task_id = _optional(members, "task_id")
    request_id = _optional(members, "request_id")
    if task_id is None and request_id is None:
        _refuse("`task_id` is missing: write which task is answered.")
    answer = members.get("answer")
    if not isinstance(answer, str):
        _refuse("`answer` must be a string.")
    blobs: dict[str, bytes] = {}
    content = _blocks(members, "content_blocks", blobs)
    feedback = members.get("feedback")
    if feedback is not None and not isinstance(feedback, str):
        _refuse("`feedback` must be a string.")
    return RespondRequest(
        task_id=None if task_id is None else _task_id(task_id),
        request_id=request_id,
        answer=answer,
        feedback=feedback or None,
        content=content,
        blobs=blobs,
    )


def parse_replay(query: Mapping[str, str]) -> ReplayQuery:
    """Return what the query of a replay asks for; without `after` all that is buffered.

    Raises:
        ClientProtocolError: `after` is not a count of milliseconds.
    """
    after = query.get("after", "0").strip()
    if not re.fullmatch(r"[0-9]{1,16}", after) or int(after) > MAX_AFTER:
        _refuse("`after` must be a time in milliseconds: an integer, 0 or more.")
    task_id = query.get("task_id")
    return ReplayQuery(after=int(after), task_id=None if not task_id else _task_id(task_id))


def offered(request: InteractionRequested) -> list[str]:
    """Return the choices that this face shows for a request, and takes; none for a permission.

    A sealed kind has `decline` alone, a sign-in `cancel` (design section 7).
    """
    match request.kind:
        case "approval":
            return []
        case "secret" | "sudo" | "unknown":
            return [DECLINE]
        case "authorization":
            return [CANCEL]
        case "limit":
            return [CONTINUE, STOP]
        case "question" | "tool_result":
            return [option.label or option.id for option in request.options or ()]
        case _:
            assert_never(request.kind)


def to_command(given: RespondRequest, request: InteractionRequested) -> AnswerInteraction:
    """Return the command that an answer means to a request.

    Raises:
        ClientProtocolError: the answer does not fit; the request stays open.
    """
    if request.kind in SEALED_KINDS:
        return _declined(given, request)
    answer = _meant(given, request)
    if given.feedback is not None and answer.reason is None:
        answer = answer.model_copy(update={"reason": given.feedback})
    return decide(answer, request)


def _declined(given: RespondRequest, request: InteractionRequested) -> AnswerInteraction:
    # Nothing else may come with it: it could be the value itself (design section 7).
    alone = given.feedback is None and not given.content
    if not alone or given.answer.strip().lower() != DECLINE:
        _refuse(f"Request `{request.request_id}` takes only `{DECLINE}` here: no secret is taken.")
    return decide(AnswerInteraction(request_id=request.request_id, skip=True), request)


def _meant(given: RespondRequest, request: InteractionRequested) -> AnswerInteraction:
    word = given.answer.strip().lower()
    said = AnswerInteraction(request_id=request.request_id, content=given.content or None)
    match request.kind:
        case "approval":
            if word not in _YES | _NO:
                _refuse(f"Request `{request.request_id}` is a permission: answer `yes` or `no`.")
            return said.model_copy(update={"decision": "allow" if word in _YES else "deny"})
        case "limit":
            if word not in _YES | _NO | {CONTINUE, STOP}:
                _refuse(f"Request `{request.request_id}` takes `{CONTINUE}` or `{STOP}`.")
            allowed = word == CONTINUE or word in _YES
            return said.model_copy(update={"decision": "allow" if allowed else "deny"})
        case "authorization":
            if word != CANCEL:
                text = f"Request `{request.request_id}` is a sign-in: it takes only `{CANCEL}`."
                _refuse(text)
            return said.model_copy(update={"skip": True})
        case _:
            return _words_for(given, request)


def _words_for(given: RespondRequest, request: InteractionRequested) -> AnswerInteraction:
    """Return the answer to a question: one of its options by its words, else the words."""
    options = request.options or ()
    chosen = option_named(given.answer, options) if given.answer.strip() else None
    if chosen is not None:
        return AnswerInteraction(
            request_id=request.request_id,
            option_ids=(chosen.id,),
            content=given.content or None,
        )
    if options and not request.freeform:
        names = ", ".join(f"`{name}`" for name in offered(request))
        _refuse(f"Request `{request.request_id}` takes one of {names}.")
    if not given.answer and not given.content:
        _refuse(f"Request `{request.request_id}` takes a non-empty `answer`.")
    content = given.content
    if content and request.kind == "tool_result" and given.answer:
        # What the tool returned has several blocks, its words first.
        return AnswerInteraction(
            request_id=request.request_id, content=(Text(text=given.answer), *content)
        )
    return AnswerInteraction(
        request_id=request.request_id, text=given.answer or None, content=content or None
    )


def _members(body: bytes) -> dict[str, Any]:
    value: Any = None
    # Refused outside of it: the error of the reader would be kept as the context of ours.
    with contextlib.suppress(JsonError):
        # A byte order mark is not part of the text.
        value = parse_json(body.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        _refuse("The body must be a JSON object, in UTF-8.")
    return value


def _words(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        _refuse(f"`{name}` must be a string that is not empty.")
    return value


def _optional(members: dict[str, Any], name: str) -> str | None:
    value = members.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        _refuse(f"`{name}` must be a string that is not empty, or be left out.")
    return value


def _task_id(task_id: str) -> str:
    if len(task_id.encode("utf-8", "surrogatepass")) > TASK_ID_LIMIT:
        _refuse(f"`task_id` is longer than {TASK_ID_LIMIT} bytes.")
    return task_id


def _flag(members: dict[str, Any], name: str) -> bool:
    value = members.get(name)
    if value is not None and not isinstance(value, bool):
        _refuse(f"`{name}` must be true or false.")
    return value is True


def _effort(members: dict[str, Any]) -> str | None:
    """Return the level that 2.2 knew: `high` is what is now `super_thinking` (section 6.1)."""
    effort = _optional(members, "effort")
    if effort is not None and effort not in _EFFORTS:
        _refuse("`effort` must be one of `none`, `low`, `medium`, `high`.")
    return effort


def _blocks(members: dict[str, Any], name: str, blobs: dict[str, bytes]) -> tuple[Content, ...]:
    blocks = members.get(name)
    if blocks is None:
        return ()
    if not isinstance(blocks, list):
        _refuse(f"`{name}` must be a list of blocks.")
    if len(blocks) > MAX_BLOCKS:
        _refuse(f"`{name}` has more than {MAX_BLOCKS} blocks.")
    return tuple(_block(block, f"{name}[{index}]", blobs) for index, block in enumerate(blocks))


def _block(block: Any, where: str, blobs: dict[str, bytes]) -> Content:
    """Return the content of a block (section 6.2); one of another type is kept as it is."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        _refuse(f"`{where}` must be a block with a `type`.")
    kind = block["type"]
    if kind == "text" and isinstance(block.get("text"), str):
        return Text(text=block["text"])
    if kind not in _MEDIA_TYPES:
        return Other(dialect=wire.DIALECT, value=block)
    source = block.get("source")
    if not isinstance(source, dict):
        _refuse(f"`{where}` has no `source`.")
    media_type = media_type_of(source.get("media_type"), f"{where}.source.media_type")
    match source.get("type"):
        case "base64":
            return _inline(source, media_type, where, blobs)
        case "url":
            url = source.get("url")
            if not isinstance(url, str) or not re.match(r"(?i)https?://[^\s/?#]", url):
                _refuse(f"`{where}.source.url` is not an http or https URL.")
            return File(media_type=media_type or _MEDIA_TYPES[kind], ref=Url(url=url))
        case _:
            _refuse(f"`{where}.source.type` is neither `base64` nor `url`.")


def _inline(
    source: dict[str, Any], media_type: str | None, where: str, blobs: dict[str, bytes]
) -> File:
    """Return the file whose bytes stand in the request: plain base64, or a data URL."""
    data = source.get("data")
    if not isinstance(data, str) or not data:
        _refuse(f"`{where}.source.data` must be a string that is not empty.")
    if is_data_url(data):
        named, content = read_data_url(data, f"{where}.source.data")
        return file_of(content, media_type or named or UNKNOWN_TYPE, blobs)
    if media_type is None:
        _refuse(f"`{where}.source.media_type` is missing.")
    return file_of(_base64(data, where), media_type, blobs)


def _base64(text: str, where: str) -> bytes:
    try:
        return decode_base64(text)
    except ValueError:
        pass
    _refuse(f"`{where}.source.data` is not base64.")


def _refuse(text: str) -> NoReturn:
    raise ClientProtocolError(text)


# Answers.


def resumed_body(request_id: str) -> dict[str, Any]:
    """Return the body of a 200 to `/hitl/respond` (section 10.1)."""
    return {"status": "resumed", "request_id": request_id}


def pending_answer(records: Sequence[bytes]) -> Response:
    """Return the answer of `/hitl/pending` (section 10.3); the records are JSON."""
    answer = json_answer(200, {})
    return dataclasses.replace(answer, body=b'{"pending":[%b]}' % b",".join(records))


def health_body(uptime_seconds: float) -> dict[str, Any]:
    """Return the body of `/health` (section 16)."""
    return {"status": "ok", "uptime_seconds": round(uptime_seconds, 1), "subsystems": {}}


def stated_code(code: str) -> str:
    """Return a code as an Engine says it: ours in its words, that of a backend as it is."""
    try:
        ours = ErrorCode(code)
    except ValueError:
        return code
    return _WORDS.get(ours, ours.name)


def refusal(error: DragomanError, *, task: bool = False, error_id: str | None = None) -> Response:
    """Return an error in the dialect's own form (section 4.1).

    `task` says that what was not found is a task. `error_id` is for a failure of ours, to find it
    in the log; its message is not shown.
    """
    code = _WORDS.get(error.code, error.code.name)
    if error.code is ErrorCode.NOT_FOUND and task:
        code = "TASK_NOT_FOUND"
    message, details = error.message, dict(error.details)
    if error_id is not None:
        message, details = "Something failed here.", {"error_id": error_id}
    body: dict[str, Any] = {"error": code, "message": message or code}
    if details:
        body["details"] = details
    return say_when_to_retry(json_answer(_STATUSES[error.code], body), details)


_WORDS: Mapping[ErrorCode, str] = {
    ErrorCode.UNAUTHORIZED: "INVALID_KEY",
    ErrorCode.FORBIDDEN: "PERMISSION_DENIED",
    ErrorCode.CURSOR_EXPIRED: "TASK_NOT_FOUND",
    # A second answer finds nothing pending (section 10.1).
    ErrorCode.ALREADY_ANSWERED: "NOTHING_PENDING",
    ErrorCode.UNKNOWN_INTERACTION: "NOTHING_PENDING",
    ErrorCode.INVALID_REQUEST: "BAD_REQUEST",
    ErrorCode.STALE_TOKEN: "BAD_REQUEST",
    ErrorCode.BUSY: "TASK_BUSY",
    ErrorCode.PAUSED: "HITL_REQUIRED",
    ErrorCode.NOT_ACTIVE: "TASK_ENDED",
    ErrorCode.KEY_REUSED: "IDEMPOTENCY_KEY_CONFLICT",
    ErrorCode.RATE_LIMITED: "LLM_RATE_LIMITED",
    ErrorCode.BACKEND_PROTOCOL: "LLM_PROVIDER_ERROR",
    ErrorCode.BACKEND_REFUSED: "LLM_PROVIDER_ERROR",
    ErrorCode.BACKEND_NOT_READY: "UNAVAILABLE",
    ErrorCode.BACKEND_UNAVAILABLE: "UNAVAILABLE",
    ErrorCode.JOURNAL_UNAVAILABLE: "UNAVAILABLE",
    ErrorCode.STOPPING: "DRAINING",
    ErrorCode.BACKEND_TIMEOUT: "LLM_TIMEOUT",
    ErrorCode.CONFIG: "INTERNAL",
    ErrorCode.RECORDING: "INTERNAL",
}
"""What an error is called (sections 4.2 and 4.3); where the page names no code, the word is ours,
and the others are called as they are here."""

_STATUSES = {
    **USUAL_STATUS,
    ErrorCode.CURSOR_EXPIRED: 404,
    ErrorCode.ALREADY_ANSWERED: 404,
    ErrorCode.STALE_TOKEN: 400,
}
