"""Pages of lists: events of a thread's log, and sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adapters.contract.faces import ListedSession, LogReader, SessionsPage
from adapters.managed_agents import answers, wire
from adapters.managed_agents.requests import PageQuery, page_cursor
from adapters.managed_agents.server import ManagedAgentsEncoder
from adapters.model.base import Response
from adapters.model.events import Entry
from adapters.wire.jsonvalue import format_json

PAGE_BYTES = 3 * 1024 * 1024
"""Bytes of a page, which has one event at least: a thousand of the largest would be a thousand
times as many."""

Row = tuple[int, bytes]


class EventPage(LogReader[ManagedAgentsEncoder]):
    """Makes one page of a list of events from parts of the log.

    The first page pins `newest`, the newest frame: all pages together are the list as it was then.
    Inputs that waited then stand at its end, at the places behind the pinned one; what was taken up
    since is shown so. `waiting` returns the inputs that waited at a frame.
    """

    headers: Mapping[str, str] = {}

    def __init__(
        self,
        query: PageQuery,
        order: str,
        newest: int,
        waiting: Callable[[int], Sequence[tuple[str, bytes]]],
    ) -> None:
        self._query, self._order = query, order
        self._pin = newest if query.pin is None else query.pin
        self._low, self._high = 0, self._pin
        self._part: list[Row] = []
        self._size = self._start = 0
        self._encoder: ManagedAgentsEncoder | None = None
        self._done = False
        self._waiting: list[Row] = []
        if not query.created.is_given:
            inputs = enumerate(waiting(self._pin), self._pin + 1)
            self._waiting = [(place, body) for place, (name, body) in inputs if self._has(name)]
        at = query.position
        if query.descending:
            self._rows = [row for row in reversed(self._waiting) if at is None or row[0] < at]
            self._high = self._pin if at is None else min(self._pin, at - 1)
        else:
            self._rows = []
            self._low = at or 0
            self._waiting = [row for row in self._waiting if row[0] > self._low]
        self._finish(self._low >= self._high)

    def _has(self, type_: str) -> bool:
        return not self._query.names or type_ in self._query.names

    @property
    def wanted(self) -> int | None:
        if self._done:
            return None
        return self._high if self._query.descending else self._low + 1

    def begin(self, encoder: ManagedAgentsEncoder) -> None:
        self._encoder, self._start, self._part = encoder, encoder.next_cursor, []

    def add(self, entry: Entry) -> bool:
        encoder, query = self._encoder, self._query
        assert encoder is not None
        encoder.feed(entry)
        for event in encoder.listed:
            within = self._low < event.cursor <= self._high
            if within and self._has(event.type) and query.created.has(event.at):
                self._part.append((event.cursor, event.body))
                self._size += len(event.body)
        if not query.descending and self._is_full(self._part):
            return False
        return encoder.next_cursor <= self._high

    def _is_full(self, rows: Sequence[Row]) -> bool:
        # One more than the page has says that there is another page.
        return len(rows) > self._query.limit or (self._size > PAGE_BYTES and len(rows) > 1)

    def end(self) -> None:
        if not self._query.descending:
            self._rows = self._part
            self._finish(True)
            return
        self._rows += reversed(self._part)
        self._high = self._start - 1
        self._finish(self._is_full(self._rows) or self._high <= 0)

    def _finish(self, done: bool) -> None:
        """Write the page, if it is full or nothing is left."""
        self._done = done
        if not done:
            return
        rows = self._rows
        if not self._query.descending and not self._is_full(rows):
            rows = [*rows, *self._waiting]
        page: list[Row] = []
        size = 0
        for row in rows[: self._query.limit]:
            size += len(row[1])
            if page and size > PAGE_BYTES:
                break
            page.append(row)
        cursor = None
        if len(rows) > len(page):
            cursor = page_cursor(page[-1][0], self._pin, self._order)
        answer = answers.data_answer([body for _, body in page], next_page=cursor)
        self.headers, self.out = answer.headers, answer.body


class SessionPage(SessionsPage):
    """A page of the list of sessions (section 3.3), which leads to the page before as well."""

    def __init__(self, query: PageQuery, filters: Mapping[str, str], *, archived: bool) -> None:
        self.rows = wire.SESSIONS_MOST
        self._query, self._filters, self._archived = query, filters, archived
        self._found: list[Row] = []
        self._more = False
        self.before, self.after = query.position, None
        if query.descending == query.back:
            # Oldest first: so they are listed, or so the page before is found.
            self.before, self.after = None, query.position or 0

    def add(self, listed: ListedSession) -> bool:
        status = answers.status_of(listed.state)
        value = answers.session_object(listed.id, status, *listed.told)
        if self._is_wanted(value, listed.told.created_at):
            if len(self._found) == self._query.limit:
                self._more = True
                return False
            self._found.append((listed.key, format_json(value)))
        self.passed(listed.key)
        return True

    def _is_wanted(self, value: Mapping[str, Any], created_at: int) -> bool:
        agent, query = value["agent"], self._query
        has = {
            "agent_id": agent["id"],
            "agent_version": str(agent["version"]),
            # Nothing here comes from a deployment or has a memory store.
            "deployment_id": None,
            "memory_store_id": None,
        }
        return (
            (self._archived or value["archived_at"] is None)
            and (not query.names or value["status"] in query.names)
            and query.created.has(created_at * 1000)
            and all(self._filters.get(name) in (None, mine) for name, mine in has.items())
        )

    def cut(self) -> None:
        self._more = True

    def answer(self) -> Response:
        query, order = self._query, "desc" if self._query.descending else "asc"
        rows = self._found[::-1] if query.back else self._found
        at = self.before if self.after is None else self.after
        first = rows[0][0] if rows else at
        last = rows[-1][0] if rows else at
        if not query.back and self._more:
            # Behind all that was looked at.
            last = at
        before = self._more if query.back else query.position is not None
        behind = query.back or self._more
        return answers.data_answer(
            [body for _, body in rows],
            next_page=page_cursor(last or 0, 0, order) if behind else None,
            prev_page=page_cursor(first or 0, 0, order, back=True) if before else None,
        )
