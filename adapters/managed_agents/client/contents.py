"""Contents as the service takes them, and as it shows them (section 4.1)."""

from __future__ import annotations

from typing import Any

from adapters.managed_agents import wire
from adapters.model import events as ev
from adapters.model.file_body import file_in_base64
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import format_json, rest_of

_MEDIA = {"image", "document"}


def posted(content: tuple[Any, ...] | None, context: Any = None) -> list[dict[str, Any]]:
    """Return content as blocks of a request; a frontend's context stands before it, as text.

    Raises:
        NotSupported: a block is one that the service does not take.
    """
    items = context if isinstance(context, list) else [] if context is None else [context]
    words = [item if isinstance(item, str) else format_json(item).decode() for item in items]
    blocks = [{"type": "text", "text": f"Client context:\n{text}"} for text in words]
    return [*blocks, *map(_posted, content or ())]


def _posted(block: Any) -> dict[str, Any]:
    match block:
        case ev.Text():
            return {"type": "text", "text": block.text, **(block.extra or {})}
        case ev.SearchResult():
            return {
                "type": "search_result",
                "source": block.source,
                "title": block.title,
                "content": [{"type": "text", "text": part.text} for part in block.content],
                "citations": {"enabled": False},
                **(block.extra or {}),
            }
        case ev.File():
            return _posted_file(block)
        case ev.Other(dialect=wire.DIALECT) if isinstance(block.value, dict):
            return block.value
        case _:
            raise NotSupported(
                f"managed-agents: a `{block.type}` block is impossible: no block carries it (4.1)"
            )


def _posted_file(file: ev.File) -> dict[str, Any]:
    kind = "image" if (file.media_type or "").startswith("image/") else "document"
    source: dict[str, Any]
    match file.ref:
        case ev.Url(url=url):
            source = {"type": "url", "url": url}
        case ev.FileId(dialect=wire.DIALECT, id=name):
            source = {"type": "file", "file_id": name}
        case ev.FileId(dialect=dialect, id=name):
            raise NotSupported(
                f"managed-agents: file `{name}` is known to a {dialect} backend only; send its "
                "bytes or a URL"
            )
        case ev.Blob(sha256=digest):
            media_type = file.media_type or "application/octet-stream"
            data = file_in_base64(digest)
            source = {"type": "base64", "media_type": media_type, "data": data}
    title = {"title": file.name} if file.name and kind == "document" else {}
    return {"type": kind, "source": source, **title, **(file.extra or {})}


def shown(content: Any) -> tuple[Any, ...]:
    """Return blocks that the service shows as content; what has no meaning here is kept as it is.
    A mere text counts as one block, as a third party's server writes it."""
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    return tuple(map(_shown, blocks))


def _shown(block: Any) -> Any:
    if isinstance(block, str):
        return ev.Text(text=block)
    match block:
        case {"type": "text", "text": str(text)}:
            return ev.Text(text=text, extra=rest_of(block, {"type", "text"}))
        case {"type": "redacted"}:
            return ev.Redacted(extra=rest_of(block, {"type"}))
        case {"type": "search_result", "source": str(), "title": str(), "content": list(parts)}:
            texts = tuple(part for part in map(_shown, parts) if isinstance(part, ev.Text))
            if len(texts) == len(parts):
                known = {"type", "source", "title", "content"}
                return ev.SearchResult(
                    source=block["source"],
                    title=block["title"],
                    content=texts,
                    extra=rest_of(block, known),
                )
        case {"type": "image" | "document" as kind, "source": dict(source)}:
            found = _shown_source(source)
            if found is not None:
                title = block.get("title")
                return ev.File(
                    media_type="image/*" if kind == "image" else None,
                    name=title if isinstance(title, str) and title else None,
                    ref=found,
                    extra=rest_of(block, {"type", "source", "title"}),
                )
    return ev.Other(dialect=wire.DIALECT, value=block)


def _shown_source(source: dict[str, Any]) -> ev.FileRef | None:
    """Return where a file is; None of one whose bytes stand in the event, which is kept whole."""
    match source:
        case {"type": "url", "url": str(url)}:
            return ev.Url(url=url)
        case {"type": "file", "file_id": str(name)}:
            return ev.FileId(dialect=wire.DIALECT, id=name)
    return None


def output(content: Any) -> tuple[Any, tuple[Any, ...] | None]:
    """Return what a tool returned: as output where it is one text, else as content."""
    match content:
        case [{"type": "text", "text": str(text)} as block] if len(block) == 2:
            return text, None
        case str():
            return content, None
        case None:
            return None, None
        case list():
            return None, shown(content)
        case _:
            return content, None


def words(content: Any) -> str:
    """Return the words of blocks."""
    return ev.text_of(tuple(b for b in shown(content) if isinstance(b, ev.Text)))
