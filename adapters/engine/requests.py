"""Reads the requests of the Engine face: bodies and queries to values.

The Engine has no published schema, so this reads leniently what the page leaves open and refuses
what would lose something: a member of a wrong type, a file that is not base64. Members that the
page does not name are kept for an Engine backend, as a pass-through proxy does (engine page,
section 6.1), and ignored for others. `edit_message_id`, `retry_message_id`, `direct` and
`super_thinking` mean something to an Engine only: `for_engine_only` names those of a request, and
the face refuses them for other backends.

No refusal keeps or quotes the body: it may hold the value of a sealed request.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from adapters.contract.faces.files import file_of, is_data_url, media_type_of
from adapters.engine import wire
from adapters.model.commands import SendMessage
from adapters.model.events import Content, File, Other, Text, Url
from adapters.serving.members import MAX_PARTS, file_in_url, refuse
from adapters.wire.encodings import decode_base64
from adapters.wire.jsonvalue import JsonError, parse_json
from adapters.wire.limits import ID_BYTES

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
        refuse("`edit_message_id` and `retry_message_id` exclude each other.")
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
        refuse("`task_id` is missing: write which task is answered.")
    answer = members.get("answer")
    if not isinstance(answer, str):
        refuse("`answer` must be a string.")
    blobs: dict[str, bytes] = {}
    content = _blocks(members, "content_blocks", blobs)
    feedback = members.get("feedback")
    if feedback is not None and not isinstance(feedback, str):
        refuse("`feedback` must be a string.")
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
    # Up to the largest integer that all JSON writers agree on.
    if not re.fullmatch(r"[0-9]{1,16}", after) or int(after) > 2**53 - 1:
        refuse("`after` must be a time in milliseconds: an integer, 0 or more.")
    task_id = query.get("task_id")
    return ReplayQuery(after=int(after), task_id=None if not task_id else _task_id(task_id))


def _members(body: bytes) -> dict[str, Any]:
    value: Any = None
    # Refused outside of it: the error of the reader would be kept as the context of ours.
    with contextlib.suppress(JsonError):
        # A byte order mark is not part of the text.
        value = parse_json(body.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        refuse("The body must be a JSON object, in UTF-8.")
    return value


def _words(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        refuse(f"`{name}` must be a string that is not empty.")
    return value


def _optional(members: dict[str, Any], name: str) -> str | None:
    value = members.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        refuse(f"`{name}` must be a string that is not empty, or be left out.")
    return value


def _task_id(task_id: str) -> str:
    if len(task_id.encode("utf-8", "surrogatepass")) > ID_BYTES:
        refuse(f"`task_id` is longer than {ID_BYTES} bytes.")
    return task_id


def _flag(members: dict[str, Any], name: str) -> bool:
    value = members.get(name)
    if value is not None and not isinstance(value, bool):
        refuse(f"`{name}` must be true or false.")
    return value is True


def _effort(members: dict[str, Any]) -> str | None:
    """Return the level that 2.2 knew: `high` is what is now `super_thinking` (section 6.1)."""
    effort = _optional(members, "effort")
    if effort is not None and effort not in _EFFORTS:
        refuse("`effort` must be one of `none`, `low`, `medium`, `high`.")
    return effort


def _blocks(members: dict[str, Any], name: str, blobs: dict[str, bytes]) -> tuple[Content, ...]:
    blocks = members.get(name)
    if blocks is None:
        return ()
    if not isinstance(blocks, list):
        refuse(f"`{name}` must be a list of blocks.")
    if len(blocks) > MAX_PARTS:
        refuse(f"`{name}` has more than {MAX_PARTS} blocks.")
    return tuple(_block(block, f"{name}[{index}]", blobs) for index, block in enumerate(blocks))


def _block(block: Any, where: str, blobs: dict[str, bytes]) -> Content:
    """Return the content of a block (section 6.2); one of another type is kept as it is."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        refuse(f"`{where}` must be a block with a `type`.")
    kind = block["type"]
    if kind == "text" and isinstance(block.get("text"), str):
        return Text(text=block["text"])
    if kind not in _MEDIA_TYPES:
        return Other(dialect=wire.DIALECT, value=block)
    source = block.get("source")
    if not isinstance(source, dict):
        refuse(f"`{where}` has no `source`.")
    media_type = media_type_of(source.get("media_type"), f"{where}.source.media_type")
    match source.get("type"):
        case "base64":
            return _inline(source, media_type, where, blobs)
        case "url":
            url = source.get("url")
            if not isinstance(url, str) or not re.match(r"(?i)https?://[^\s/?#]", url):
                refuse(f"`{where}.source.url` is not an http or https URL.")
            return File(media_type=media_type or _MEDIA_TYPES[kind], ref=Url(url=url))
        case _:
            refuse(f"`{where}.source.type` is neither `base64` nor `url`.")


def _inline(
    source: dict[str, Any], media_type: str | None, where: str, blobs: dict[str, bytes]
) -> File:
    """Return the file whose bytes stand in the request: plain base64, or a data URL."""
    data = source.get("data")
    if not isinstance(data, str) or not data:
        refuse(f"`{where}.source.data` must be a string that is not empty.")
    if is_data_url(data):
        return file_in_url(data, media_type, f"{where}.source.data", blobs)
    if media_type is None:
        refuse(f"`{where}.source.media_type` is missing.")
    decoded: bytes | None = None
    with contextlib.suppress(ValueError):
        decoded = decode_base64(data)
    if decoded is None:
        refuse(f"`{where}.source.data` is not base64.")
    return file_of(decoded, media_type, blobs)
