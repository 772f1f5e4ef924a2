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
from adapters.driving.part import soonest
from adapters.managed_agents.client import posts
from adapters.managed_agents.client.frames import PREVIEWS
from adapters.managed_agents.client.state import (
    AgentsState,
    AgentThread,
    KnownEvents,
    hash_of,
    received,
)
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
    ready.extend(_not_listed(found.frames, {one.event.get("id") for one in ready}))
    found.frames = []


def _not_listed(frames: list[WaitingEvent], listed: set[Any]) -> list[WaitingEvent]:
    """Leave out the previews before a frame that is listed: their message is listed before it, or
    was cut off, and what is listed may have begun another turn."""
    last = max((n for n, one in enumerate(frames) if one.event.get("id", "") in listed), default=0)
    return [
        one for n, one in enumerate(frames) if n > last or one.event.get("type") not in PREVIEWS
    ]


def _restart(found: ThreadList) -> bool:
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


@dataclasses.dataclass(slots=True)
class ThreadLists:
    """The lists that are being read, by thread: at most one of each."""

    s: AgentsState
    open: dict[str, ThreadList] = dataclasses.field(default_factory=dict)
    count: int = 0

    def begin(self, thread: AgentThread, now: int = 0, *, joins: bool = False) -> Call:
        """Begin to read a thread's list; what waits for one that is abandoned waits for this one,
        unless a stream was opened that has it again."""
        self.count += 1
        before = self.open.get(thread.thread_id)
        found = self.open[thread.thread_id] = ThreadList(thread, self.count, now, joins)
        if before is not None and not joins:
            found.frames = [*(before.ready or ()), *before.frames]
            found.joins = before.joins
        return self._call(found)

    def _call(self, found: ThreadList) -> Call:
        assert self.s.session is not None
        return posts.page(
            self.s.session,
            found.thread,
            found.number,
            found.cursor,
            newest_first=found.newest_first is not False,
        )

    def of(self, call: Call) -> ThreadList | None:
        """Return the list that a call reads a page of; None where it was abandoned."""
        found = self.open.get(call.thread_id)
        return found if found is not None and call.name == f"list {found.number}" else None

    def listed(self, found: ThreadList, response: Response, now: int) -> list[ev.Event] | None:
        """Take what a page was answered with; None while more is to be read, else what is missing
        of the list, which is ready to be worked off."""
        more = take_page(found, response)
        if more is None:
            if response.status in (400, 422) and _restart(found):
                self.s.calls.append(self._call(found))
                return None
            final = response.status in (404, 405, 410, 501)
            return self.failed(found, f"HTTP {response.status}", now, final=final)
        long = found.count >= PAGES or found.size > LIST_BYTES
        if more and not long:
            self.s.calls.append(self._call(found))
            return None
        finish(found, read=True)
        return [gap(found.thread, "the list is too long")] if more else []

    def failed(
        self, found: ThreadList, why: str, now: int, *, final: bool = False
    ) -> list[ev.Event] | None:
        """Record that a page cannot be had; None where it is asked for once more."""
        found.attempts += 1
        most = ATTEMPTS if found.frames else LOOKS
        if not final and found.attempts < most:
            found.retry_at = now + min(1_000 * found.attempts, LOOK_RETRY_MS)
            return None
        finish(found, read=False)
        why = f"the events could not be listed: {why}"
        return [gap(found.thread, why)] if found.joins else []

    def retry(self, now: int) -> None:
        """Ask once more for the pages that are due."""
        for found in self.open.values():
            if found.retry_at is not None and now >= found.retry_at:
                found.retry_at = None
                self.s.calls.append(self._call(found))

    @property
    def due(self) -> int | None:
        """When something is to be done about a list."""
        return soonest(
            *(0 if one.ready is not None else one.retry_at for one in self.open.values())
        )
