"""Content blocks: those of requests as content, and content as blocks (section 4.1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from adapters.contract.faces.files import UNKNOWN_TYPE, file_of
from adapters.managed_agents import wire
from adapters.model.events import (
    Blob,
    Content,
    File,
    FileId,
    Other,
    Redacted,
    SearchResult,
    Text,
    Url,
)
from adapters.serving.members import MAX_PARTS, file_in_base64, name_of, refuse, web_url

_MEDIA = ("image", "document")


def shown(content: Sequence[Content] | None) -> list[dict[str, Any]]:
    """Return content as blocks."""
    return [_shown(block) for block in content or ()]


def _shown(block: Content) -> dict[str, Any]:
    extra = {} if isinstance(block, Other) else block.extra or {}
    value: dict[str, Any]
    match block:
        case Text():
            value = {"type": "text", "text": block.text}
        case Redacted():
            value = {"type": "redacted"}
        case SearchResult():
            value = {
                "type": "search_result",
                "source": block.source,
                "title": block.title,
                "content": [{"type": "text", "text": part.text} for part in block.content],
                "citations": {"enabled": False},
            }
        case Other():
            if block.dialect == wire.DIALECT and isinstance(block.value, dict):
                return block.value
            value = {"type": "text", "text": str(block.value)}
        case File():
            value = _shown_file(block)
    return {**value, **extra}


def _shown_file(file: File) -> dict[str, Any]:
    kind = "image" if (file.media_type or "").startswith("image/") else "document"
    source: dict[str, Any]
    match file.ref:
        case Url(url=url):
            source = {"type": "url", "url": url}
        case FileId(id=name):
            source = {"type": "file", "file_id": name}
        case Blob(sha256=digest):
            # Its bytes are kept beside the log, and an event has only what is in it.
            source = {"type": "file", "file_id": f"sha256:{digest}"}
    title = {"title": file.name} if file.name and kind == "document" else {}
    return {"type": kind, "source": source, **title}


def parse(
    value: Any, place: str, blobs: dict[str, bytes], *, takes: Collection[str], empty: bool = False
) -> tuple[Content, ...]:
    """Return the content of an event: blocks of the types `takes`; `blobs` gets the bytes of files.

    Raises:
        ClientProtocolError: it is something else.
    """
    if not isinstance(value, list) or not (value or empty):
        refuse(f"{place}: must be a {'' if empty else 'non-empty '}list of content blocks")
    if len(value) > (wire.MAX_SYSTEM_BLOCKS if takes == ("text",) else MAX_PARTS):
        refuse(f"{place}: has too many content blocks")
    return tuple(_parse(one, f"{place}[{at}]", blobs, takes) for at, one in enumerate(value))


def _parse(value: Any, place: str, blobs: dict[str, bytes], takes: Collection[str]) -> Content:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in takes:
        names = ", ".join(f"`{name}`" for name in takes)
        refuse(f"{place}.type: must be one of {names}")
    if kind == "text":
        if not isinstance(value.get("text"), str):
            refuse(f"{place}.text: must be a string")
        return Text(text=value["text"], extra=_rest(value, "text"))
    if kind == "search_result":
        return _parse_search_result(value, place)
    return _parse_file(value, kind, place, blobs)


def _parse_search_result(value: Mapping[str, Any], place: str) -> SearchResult:
    source, title, parts = value.get("source"), value.get("title"), value.get("content")
    if not isinstance(source, str) or not isinstance(title, str) or not isinstance(parts, list):
        refuse(f"{place}: must have a `source`, a `title` and a list `content`")
    texts = [_parse(part, f"{place}.content[{at}]", {}, ("text",)) for at, part in enumerate(parts)]
    return SearchResult(
        source=source,
        title=title,
        content=tuple(text for text in texts if isinstance(text, Text)),
        extra=_rest(value, "source", "title", "content"),
    )


def _parse_file(
    value: Mapping[str, Any], kind: str, place: str, blobs: dict[str, bytes]
) -> Content:
    source = value.get("source")
    where = f"{place}.source"
    if not isinstance(source, dict):
        refuse(f"{where}: must be an object")
    title, media_type = value.get("title"), source.get("media_type")
    name = title if isinstance(title, str) and title else None
    if media_type is not None and not isinstance(media_type, str):
        refuse(f"{where}.media_type: must be a string")
    file: File
    match source.get("type"):
        case "base64":
            given = media_type or ("image/*" if kind == "image" else UNKNOWN_TYPE)
            file = file_in_base64(_string(source, "data", where), given, f"{where}.data", blobs)
        case "url":
            file = File(
                media_type="image/*" if kind == "image" else None,
                ref=Url(url=web_url(source.get("url"), f"{where}.url")),
            )
        case "file":
            found = FileId(dialect=wire.DIALECT, id=name_of(source.get("file_id"), where))
            file = File(media_type="image/*" if kind == "image" else None, ref=found)
        case "text" if kind == "document":
            words = _string(source, "data", where).encode("utf-8", "replace")
            file = file_of(words, "text/plain", blobs)
        case _:
            refuse(f"{where}.type: must be `base64`, `url` or `file`")
    return file.model_copy(update={"name": name, "extra": _rest(value, "source", "title")})


def _string(value: Mapping[str, Any], name: str, place: str) -> str:
    found = value.get(name)
    if not isinstance(found, str):
        refuse(f"{place}.{name}: must be a string")
    return found


def _rest(value: Mapping[str, Any], *known: str) -> dict[str, Any] | None:
    rest = {name: more for name, more in value.items() if name != "type" and name not in known}
    return rest or None
