"""Messages and requests as they are on the wire, written and read."""

from __future__ import annotations

from typing import Any

from adapters.eve.client.values import clean
from adapters.model import events as ev
from adapters.model.file_body import file_in_base64
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import int_of

_UNKNOWN_TYPE = "application/octet-stream"


def options_of(value: object) -> tuple[ev.Option, ...] | None:
    """Return the options of a request."""
    if not isinstance(value, list):
        return None
    options = []
    for item in value:
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            style, description = item.get("style"), item.get("description")
            options.append(
                ev.Option(
                    id=item["id"],
                    label=str(item.get("label") or item["id"]),
                    style=style if style in ("primary", "danger", "default") else None,
                    description=description if isinstance(description, str) else None,
                )
            )
    return tuple(options) or None


def flattened(content: tuple[Any, ...]) -> str:
    """Return a message as `message.received` flattens it: a line per part (section 9.1)."""
    lines = []
    for block in content:
        if isinstance(block, ev.File):
            kind = block.media_type or _UNKNOWN_TYPE
            lines.append(f"[file: {block.name or kind} ({kind})]")
        else:
            lines.append(ev.text_of((block,)))
    return "\n".join(lines)


def wire_message(content: tuple[Any, ...]) -> str | list[dict[str, Any]]:
    """Return a content as a message: one text as it is, else parts (section 4.2)."""
    parts: list[dict[str, Any]] = []
    for block in content:
        if isinstance(block, ev.File):
            kind = block.media_type or _UNKNOWN_TYPE
            data: Any
            match block.ref:
                case ev.Blob(sha256=digest):
                    data = file_in_base64(digest, f"data:{kind};base64,")
                case ev.Url(url=url):
                    data = url
                case _:
                    raise NotSupported("eve: a file is sent as bytes or as a URL (4.2)")
            part = {"type": "file", "mediaType": kind, "data": data}
            if block.name is not None:
                part["filename"] = block.name
            parts.append(part)
        elif words := ev.text_of((block,)):
            parts.append({"type": "text", "text": words})
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def content_of(data: dict[str, Any], text: str) -> tuple[Any, ...]:
    """Return what somebody else said; the bytes of an inline file are told by T only."""
    parts = data.get("parts")
    blocks: list[Any] = []
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            continue
        if part.get("type") == "text" and isinstance(part.get("text"), str):
            blocks.append(ev.Text(text=part["text"]))
        elif part.get("type") == "file":
            url, name, size = part.get("url"), part.get("filename"), part.get("size")
            ref: Any = ev.FileId(dialect="eve", id=str(name or part.get("mediaType") or "file"))
            if isinstance(url, str):
                ref = ev.Url(url=url)
            kind = part.get("mediaType")
            blocks.append(
                ev.File(
                    media_type=kind if isinstance(kind, str) else None,
                    name=name if isinstance(name, str) else None,
                    size=int_of(size),
                    ref=ref,
                )
            )
        else:
            blocks.append(ev.Other(dialect="eve", value=clean(part)))
    return tuple(blocks) or (ev.Text(text=text),)


def details_of(kind: str, action: dict[str, Any]) -> dict[str, Any]:
    """Return what a request is about: the limit, or the call."""
    details: dict[str, Any] = {}
    if kind == "limit":
        source = action.get("input")
        source = source if isinstance(source, dict) else {}
        for theirs, ours in (
            ("kind", "limit_kind"),
            ("limit", "limit"),
            ("usedTokens", "used_tokens"),
        ):
            if theirs in source:
                details[ours] = source[theirs]
    else:
        if isinstance(action.get("toolName"), str):
            details["tool"] = action["toolName"]
        if "input" in action:
            details["input"] = action["input"]
    return details
