"""What the scripted Engine accepts: exactly what its page documents, and nothing else.

A real Engine may be more lenient. The scripted one is as strict as the page allows, so that a
client which only works with a lenient server is found out (engine page, sections 6.1, 6.2, 10.1
and 11.1). With `strict` off, unknown members are ignored, as a FastAPI server does by default.

The page documents no code for a bad body, for a busy task and for an answer that nobody waits for
(section 4.3): the codes used for these are our own, and a client must go by the status.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from proxy.scripted.backend import Refusal

# Engine page, section 6.2: images on all providers; the other kinds carry these media types.
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
_MEDIA_TYPES: Mapping[str, tuple[str, ...]] = {
    "image": _IMAGE_TYPES,
    "document": ("application/", "text/"),
    "audio": ("audio/",),
    "video": ("video/",),
}


@dataclass(frozen=True, slots=True)
class ExecuteBody:
    """A valid body of `POST /execute`; `attachments` describes its media."""

    message: str
    task_id: str
    attachments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RespondBody:
    """A valid body of `POST /hitl/respond`."""

    task_id: str
    answer: str
    feedback: str | None
    attachments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScriptedReplayQuery:
    """A valid query of `GET /execute/replay`: times in ms, the task if the client named one."""

    after: int
    task_id: str | None


def _bad(message: str) -> Refusal:
    return Refusal(400, "BAD_REQUEST", message)


def _unprocessable(message: str) -> Refusal:
    return Refusal(422, "VALIDATION_FAILED", message)


Check = Callable[[str, object], None]


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise _unprocessable(f"`{name}` must be a string")


def _text_or_null(name: str, value: object) -> None:
    if value is not None:
        _text(name, value)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _unprocessable(f"`{name}` must be true or false")


def _blocks(name: str, value: object) -> None:
    if not isinstance(value, list):
        raise _unprocessable(f"`{name}` must be a list of blocks")
    for number, block in enumerate(value):
        _describe(f"{name}[{number}]", block)


_EXECUTE: Mapping[str, Check] = {
    "message": _text,
    "task_id": _text,
    "media": _blocks,
    "direct": _flag,
    "edit_message_id": _text_or_null,
    "retry_message_id": _text_or_null,
    "super_thinking": _flag,
}
_ANSWER: Mapping[str, Check] = {
    "task_id": _text,
    "answer": _text,
    "feedback": _text,
    "content_blocks": _blocks,
}


def _members(where: str, value: object, required: set[str], allowed: set[str]) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _unprocessable(f"`{where}` must be an object")
    missing = sorted(required - value.keys())
    if missing:
        raise _unprocessable(f"`{where}` lacks `{missing[0]}`")
    unknown = sorted(value.keys() - allowed)
    if unknown:
        raise _unprocessable(f"`{where}` has the unknown member `{unknown[0]}`")
    return value


def _describe(where: str, value: object) -> str:
    """Check a media block and say what it is (engine page, section 6.2).

    Raises:
        Refusal: it is not one of the documented blocks.
    """
    block = _members(where, value, {"type", "source"}, {"type", "source"})
    kind = block["type"]
    if not isinstance(kind, str) or kind not in _MEDIA_TYPES:
        raise _unprocessable(f"`{where}.type` must be one of {', '.join(_MEDIA_TYPES)}")
    source = block["source"]
    if not isinstance(source, dict):
        raise _unprocessable(f"`{where}.source` must be an object")
    match source.get("type"):
        case "base64":
            names = {"type", "media_type", "data"}
            _members(f"{where}.source", source, names, names)
            return _describe_data(where, kind, source["media_type"], source["data"])
        case "url":
            _members(f"{where}.source", source, {"type", "url"}, {"type", "url"})
            url = source["url"]
            if not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https"):
                raise _unprocessable(f"`{where}.source.url` must be an http or https address")
            return f"{kind} at {url}"
    raise _unprocessable(f"`{where}.source.type` must be base64 or url")


def _describe_data(where: str, kind: str, media_type: object, data: object) -> str:
    if not isinstance(media_type, str) or not media_type.startswith(_MEDIA_TYPES[kind]):
        raise _unprocessable(f"`{where}.source.media_type` does not fit the type `{kind}`")
    if not isinstance(data, str) or not data:
        raise _unprocessable(f"`{where}.source.data` must be base64 text")
    try:
        size = len(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        # Section 14, row 13: write plain base64; a data URL is for readers to tolerate.
        raise _unprocessable(f"`{where}.source.data` is not plain base64") from None
    return f"{kind} {media_type} of {size} bytes"


def _body(
    body: bytes,
    content_type: str,
    checks: Mapping[str, Check],
    required: tuple[str, ...],
    strict: bool,
) -> dict[str, object]:
    if content_type != "application/json":
        raise _unprocessable("the body must be sent as application/json")
    try:
        value = json.loads(body)
    except (ValueError, UnicodeDecodeError):
        raise _bad("the body is not JSON") from None
    if not isinstance(value, dict):
        raise _bad("the body is not a JSON object")
    for name in required:
        if name not in value:
            raise _bad(f"`{name}` is missing")
    for name, member in value.items():
        check = checks.get(name)
        if check is not None:
            check(name, member)
        elif strict:
            raise _unprocessable(f"`{name}` is not a documented member")
    return value


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _described(name: str, value: object) -> tuple[str, ...]:
    blocks = value if isinstance(value, list) else []
    return tuple(_describe(f"{name}[{number}]", block) for number, block in enumerate(blocks))


def parse_execute(body: bytes, content_type: str, *, strict: bool) -> ExecuteBody:
    """Read a body of `POST /execute` (engine page, section 6.1).

    Raises:
        Refusal: 400 for what is not a JSON object or lacks a member, 422 for a bad member.
    """
    value = _body(body, content_type, _EXECUTE, ("message", "task_id"), strict)
    if not value["task_id"]:
        raise _unprocessable("`task_id` is empty")
    if not value["message"] and not value.get("media"):
        raise _unprocessable("`message` is empty")
    if value.get("edit_message_id") is not None and value.get("retry_message_id") is not None:
        raise _unprocessable("`edit_message_id` and `retry_message_id` exclude each other")
    return ExecuteBody(
        message=_string(value["message"]),
        task_id=_string(value["task_id"]),
        attachments=_described("media", value.get("media")),
    )


def parse_answer(body: bytes, content_type: str, *, strict: bool) -> RespondBody:
    """Read a body of `POST /hitl/respond` (engine page, section 10.1).

    Raises:
        Refusal: 400 for what is not a JSON object or lacks a member, 422 for a bad member.
    """
    value = _body(body, content_type, _ANSWER, ("task_id", "answer"), strict)
    feedback = value.get("feedback")
    return RespondBody(
        task_id=_string(value["task_id"]),
        answer=_string(value["answer"]),
        feedback=feedback if isinstance(feedback, str) else None,
        attachments=_described("content_blocks", value.get("content_blocks")),
    )


def parse_replay(query: Mapping[str, str], *, strict: bool) -> ScriptedReplayQuery:
    """Read the query of `GET /execute/replay` (engine page, section 11.1).

    Raises:
        Refusal: 400 without a time in milliseconds, 422 for a parameter that is not documented.
    """
    unknown = sorted(query.keys() - {"after", "task_id"})
    if unknown and strict:
        raise _unprocessable(f"`{unknown[0]}` is not a documented parameter")
    after = query.get("after", "")
    if not (after.isascii() and after.isdecimal()):
        raise _bad("`after` must be a time in milliseconds")
    return ScriptedReplayQuery(int(after), query.get("task_id"))
