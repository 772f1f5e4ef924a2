"""The conversation as an agent is sent it: messages as the protocol writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapters.agui import wire
from adapters.driving.transcript import TranscriptForm, TranscriptMessage
from adapters.model import events as ev
from adapters.model.file_body import file_in_base64


def message_of(one: TranscriptMessage) -> dict[str, Any]:
    """Return a message."""
    content = parts_of(one.content, files=not one.names_files) if one.role == "user" else one.text
    message: dict[str, Any] = {"id": one.id, "role": one.role, "content": content}
    if one.calls:
        message["toolCalls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
                **({} if call.opaque is None else {"encryptedValue": call.opaque}),
            }
            for call in one.calls
        ]
    members = {"toolCallId": one.call_id, "encryptedValue": one.opaque, "error": one.error}
    return message | {name: value for name, value in members.items() if value is not None}


FORM = TranscriptForm(
    wire.DIALECT,
    message_of,
    parent="parentMessageId",
    message="messageId",
    opaque="encryptedValue",
)


def parts_of(content: Sequence[ev.Content], *, files: bool = True) -> Any:
    """Return what a person says: a text, or parts where files are in it."""
    if all(isinstance(block, ev.Text) for block in content):
        return "\n".join(block.text for block in content if isinstance(block, ev.Text))
    return [_part(block, files) for block in content]


def _part(block: ev.Content, files: bool) -> dict[str, Any]:
    if not isinstance(block, ev.File) or (not files and isinstance(block.ref, ev.Blob)):
        return {"type": "text", "text": ev.text_of((block,))}
    kind = block.media_type or "application/octet-stream"
    family = kind.partition("/")[0]
    source: dict[str, Any]
    match block.ref:
        case ev.Blob(sha256=digest):
            source = {"type": "data", "value": file_in_base64(digest), "mimeType": kind}
        case ev.Url(url=url):
            source = {"type": "url", "value": url}
            if block.media_type:
                source["mimeType"] = block.media_type
        case _:
            return {"type": "text", "text": ev.text_of((block,))}
    part: dict[str, Any] = {
        "type": family if family in wire.MEDIA_PARTS else "document",
        "source": source,
    }
    if block.name:
        part["metadata"] = {"filename": block.name}
    return part
