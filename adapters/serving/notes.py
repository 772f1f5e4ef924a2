"""Notes: what a protocol has no event for. The face writes them as its own kind of custom event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from adapters.model import events as ev


class Note(NamedTuple):
    """What is told under a name; the names have underscores between their words."""

    name: str
    value: Any


_FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "session.updated": ("session", ("title", "archived_at", "replaced_by")),
    "context.compacted": ("compacted", ("before_tokens", "after_tokens", "strategy")),
    "context.cleared": ("cleared", ()),
    "error.reported": ("error", ("code", "message", "retry", "details")),
    "outcome.evaluated": (
        "outcome",
        ("outcome_id", "phase", "iteration", "result", "explanation"),
    ),
    "state.updated": ("state", ("value", "patch")),
    "activity.updated": ("activity", ("activity_id", "kind", "content", "patch")),
    "notice": ("notice", ("level", "text", "kind", "call_id", "details")),
    "gap": ("gap", ("reason", "cursor_from", "cursor_to")),
}
"""Type of an event -> name and fields of its note."""

W = TypeVar("W")


def handlers(put: Callable[[W, str, Any], None]) -> dict[str, Callable[[W, Any], None]]:
    """Return the functions that tell notes, by type of event; `put` writes one."""

    def tell(w: W, event: ev.Event) -> None:
        note = note_of(event)
        if note is not None:
            put(w, note.name, note.value)

    return dict.fromkeys((*_FIELDS, "memory.updated", "thread.message"), tell)


def note_of(event: ev.Event) -> Note | None:
    """Return the note that an event becomes, fields that are null left out; None where it has
    nothing to tell."""
    match event:
        case ev.MemoryUpdated():
            return Note("memory", event.value)
        case ev.ThreadMessage():
            names = {"direction": event.direction, "from": event.sender, "to": event.recipient}
            told = {name: value for name, value in names.items() if value is not None}
            return Note("thread_message", {**told, "text": ev.text_of(event.content)})
        case ev.ContextCompacted() if event.phase != "completed":
            return None
    name, fields = _FIELDS[event.TYPE]
    value = event.model_dump(mode="json", include=set(fields), exclude_none=True)
    if not value and isinstance(event, ev.SessionUpdated):
        return None
    return Note(name, value)
