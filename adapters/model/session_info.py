"""What a session is: the fold of those events of its log that say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from adapters.model import events as ev
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json

ABOUT_BYTES = 64 * 1024
"""What the metadata of a session may take as JSON, and so the agent and the options: as much as one
request brings. Lists show them of a hundred sessions."""

TITLE_CHARACTERS = 1_000
"""What is shown of a title: more than a list has room for."""


@dataclasses.dataclass(slots=True)
class SessionInfo:
    """What the `session.*` events up to some place say."""

    agent: dict[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    title: str | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    archived_at: int | None = None
    ended: str | None = None
    predecessor: str | None = None
    replaced_by: str | None = None

    def apply(self, event: ev.Event) -> None:
        """Take the next event of the log; all but `session.*` say nothing here."""
        match event:
            case ev.SessionStarted() | ev.SessionUpdated():
                self._told(event)
            case ev.SessionEnded():
                self.ended = event.outcome
            case _:
                pass

    def _told(self, event: ev.SessionStarted | ev.SessionUpdated) -> None:
        if event.agent:
            self.agent = _fitting(merged(self.agent, event.agent))
        if event.options:
            self.options = _fitting(merged(self.options, event.options))
        if event.metadata:
            self.metadata = _fitting(merged(self.metadata, event.metadata))
        if event.title is not None:
            # No frontend's is longer, since it is refused. A backend's is in the log whole.
            self.title = event.title[:TITLE_CHARACTERS]
        if isinstance(event, ev.SessionUpdated):
            if event.archived_at is not None:
                self.archived_at = event.archived_at
            self.predecessor = event.predecessor or self.predecessor
            self.replaced_by = event.replaced_by or self.replaced_by


def merged(members: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return members with changes; one of null takes its member away."""
    return {name: value for name, value in (members | changes).items() if value is not None}


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Check what the metadata of a session is to be.

    Raises:
        DragomanError: it is too large.
    """
    if _is_too_large(dict(metadata)):
        raise DragomanError(
            f"The metadata of a session would take more than {ABOUT_BYTES} bytes; "
            "take away what you no longer need by giving it the value null.",
            code=ErrorCode.TOO_LARGE,
        )


def _is_too_large(members: dict[str, Any]) -> bool:
    return len(format_json(members)) > ABOUT_BYTES


def _fitting(members: dict[str, Any]) -> dict[str, Any]:
    # No frontend's are too large, since its update is refused. What a backend says is in the log
    # whole, and the newest of it here.
    if not _is_too_large(members):
        return members
    kept: dict[str, Any] = {}
    size = 2
    for name, value in reversed(members.items()):
        size += len(format_json({name: value}))
        if size > ABOUT_BYTES:
            break
        kept[name] = value
    return dict(reversed(kept.items()))
