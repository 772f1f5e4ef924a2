"""The list beside the stream of a thread (sections 5 and 6.4).

A stream delivers what is emitted after it was opened, so the events are listed then, newest first,
down to what is known; meanwhile its frames wait. What both have is known by its id. A queued input
moves in the list when it is taken up (live page, section 2): by then the stream is open and shows
it. A list is read for inputs in doubt as well.

Nothing here is stored: a restart begins to read anew.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from adapters.driving.doubts import LOOK_RETRY_MS, LOOKS, Evidence
from adapters.managed_agents.client import posts
from adapters.managed_agents.client.state import AgentThread, KnownEvents, hash_of, received
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Response

ATTEMPTS = 3
"""How often a page is asked for while frames wait."""

PAGES = 500
LIST_BYTES = 64 * 1024 * 1024
"""Pages and bytes that one reading may have: 100,000 events. Of a longer list the rest is told as a
gap."""

SLICE = 64
"""Events that are processed at once: some milliseconds of work."""

WAITING = 5_000
WAITING_BYTES = 32 * 1024 * 1024
"""Frames that wait for a list, and their bytes; a list that takes longer is given up."""


@dataclasses.dataclass(slots=True)
class WaitingEvent:
    """An event that is to be processed: listed where `frame` is 0."""

    event: dict[str, Any]
    frame: int
    size: int
    at: int | None = None


@dataclasses.dataclass(slots=True)
class ThreadList:
    """A list that is being read. `number` tells its calls from those of an abandoned one, `begun`
    is when it was asked for, `joins` that a stream was opened before. `pages` have what is new,
    newest first where the server gives them so; `ready` is what is being processed in order."""

    thread: AgentThread
    number: int
    begun: int
    joins: bool
    newest_first: bool | None = None
    cursor: str | None = None
    attempts: int = 0
    again: int = 0
    retry_at: int | None = None
    count: int = 0
    size: int = 0
    pages: list[list[dict[str, Any]]] = dataclasses.field(default_factory=list)
    frames: list[WaitingEvent] = dataclasses.field(default_factory=list)
    frames_size: int = 0
    ready: collections.deque[WaitingEvent] | None = None
    was_read: bool = False


def call_of(session: str, found: ThreadList) -> Call:
    """Return the call that reads the next page."""
    return posts.page(
        session,
        found.thread,
        found.number,
        found.cursor,
        newest_first=found.newest_first is not False,
    )


def wait(found: ThreadList, event: dict[str, Any], frame: int, size: int) -> bool:
    """Keep a frame until the list is read; say whether no more can be kept."""
    one = WaitingEvent(event, frame, size)
    if found.ready is not None:
        found.ready.append(one)
        return False
    found.frames.append(one)
    found.frames_size += size
    return len(found.frames) > WAITING or found.frames_size > WAITING_BYTES


def take_page(found: ThreadList, response: Response) -> bool | None:
    """Take a page; say whether another one is to be read. None where it is not a page."""
    body = raw.json_of(response) if 200 <= response.status < 300 else None
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(data, list):
        return None
    found.attempts = 0
    found.count += 1
    found.size += len(response.body)
    page = [one for one in data if isinstance(one, dict) and isinstance(one.get("type"), str)]
    if found.newest_first is None:
        found.newest_first = found.thread.is_main and not _rises(page)
    news = [one for one in page if not _is_known(found.thread.known, one)]
    found.pages.append(page if news else [])
    cursor = body.get("next_page")
    more = isinstance(cursor, str) and bool(cursor) and cursor != found.cursor
    if not more or (found.newest_first and page and not news):
        return False
    found.cursor = cursor
    return True


def is_long(found: ThreadList) -> bool:
    """Say whether no more of a list is read."""
    return found.count >= PAGES or found.size > LIST_BYTES


def _rises(page: list[dict[str, Any]]) -> bool:
    times = [seen.at for one in page if (seen := received(one, 0, 0, 0)).at is not None]
    return len(times) > 1 and (times[0] or 0) < (times[-1] or 0)


def _is_known(known: KnownEvents, event: dict[str, Any]) -> bool:
    seen = received(event, 0, 0, 0)
    return known.has(hash_of(seen), seen.at)


def finish(found: ThreadList, *, read: bool) -> None:
    """Begin to process what was listed, in order, and what waited behind it."""
    found.was_read = read
    pages = [list(reversed(page)) for page in reversed(found.pages)]
    if not found.newest_first:
        pages = found.pages
    found.pages = []
    found.ready = ready = collections.deque[WaitingEvent]()
    newest = 0
    for event in (event for page in pages for event in page):
        # An input without a time is where it stands, unless it is queued: then it is the last.
        newest = max(newest, received(event, 0, 0, 0).at or 0)
        ready.append(WaitingEvent(event, 0, 0, newest or None))
    ready.extend(found.frames)
    found.frames = []


def failed(found: ThreadList, now: int, *, final: bool) -> bool:
    """Record that a page cannot be had; say whether it is asked for no more."""
    found.attempts += 1
    most = ATTEMPTS if found.frames else LOOKS
    if final or found.attempts >= most:
        return True
    found.retry_at = now + min(1_000 * found.attempts, LOOK_RETRY_MS)
    return False


def restart(found: ThreadList) -> bool:
    """Begin a walk again whose cursor is refused, or that cannot be had newest first; say whether
    that is so."""
    if found.again >= 2 or (found.cursor is None and found.newest_first is False):
        return False
    found.again += 1
    if found.cursor is None:
        found.newest_first = False
    found.cursor, found.pages = None, []
    return True


def evidence(found: ThreadList) -> Evidence:
    """Return what a list says of an input that it does not show."""
    if found.was_read:
        return Evidence.MISSING
    # One that was asked for so often is as good as so many.
    return Evidence.GONE if found.attempts >= LOOKS else Evidence.UNREAD


def gap(thread: AgentThread, why: str) -> ev.Event:
    """Return that events may be missing which the list should have had."""
    return ev.Gap(
        thread_id=thread.thread_id,
        turn_id=thread.turn,
        reason=f"events may be missing: {why}",
        synthetic=True,
    )
