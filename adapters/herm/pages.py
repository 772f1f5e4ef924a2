"""Pages of the list of stored events (section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.contract.faces import LogReader
from adapters.herm.answers import page_answer
from adapters.herm.requests import ListQuery, page_cursor
from adapters.herm.server import HermEncoder
from adapters.herm.writer import Envelope
from adapters.model.events import Entry

PAGE_BYTES = 3 * 1024 * 1024
"""Bytes of a page, which has one event at least: a hundred of the largest would be a hundred times
as many. A Dragoman before this one takes 4 MiB."""


class EventsPage(LogReader[HermEncoder]):
    """Makes one page of a list from parts of the log.

    `newest` is the sequence of the session's newest envelope, `inputs` has the bodies of the newest
    inputs as they are now, by sequence.
    """

    headers: Mapping[str, str] = {}

    def __init__(
        self, query: ListQuery, newest: int, inputs: Mapping[int, bytes] | None = None
    ) -> None:
        self._limit = query.limit
        self._descending = query.descending
        self._inputs = inputs or {}
        self._pin = query.pin if query.pin is not None else newest
        self._low = query.after or 0
        # What came after the first page is on none (section 4.2).
        self._high = self._pin
        if query.descending and query.pin is not None and query.after is not None:
            self._low, self._high = 0, min(self._pin, query.after - 1)
        self._rows: list[Envelope] = []
        self._part: dict[int, Envelope] = {}
        self._pending: set[int] = set()
        self._passed = False
        self._encoder: HermEncoder | None = None
        self._cursor = 0
        self._done = False
        self._finish(self._high <= self._low)

    @property
    def wanted(self) -> int | None:
        if self._done:
            return None
        return self._high if self._descending else self._low + 1

    def begin(self, encoder: HermEncoder) -> None:
        self._encoder, self._cursor = encoder, encoder.next_cursor
        self._part, self._passed = {}, False
        self._pending.clear()

    def add(self, entry: Entry) -> bool:
        assert self._encoder is not None
        for envelope in self._encoder.envelopes(entry):
            # One that changes replaces what it was.
            number = envelope.sequence
            if envelope.update:
                self._pending.discard(number)
                if number in self._part and number not in self._inputs:
                    self._part[number] = envelope
                continue
            self._passed = self._passed or number >= self._high
            if envelope.listed and self._low < number <= self._high and not self._full:
                if number in self._inputs:
                    envelope = envelope._replace(body=self._inputs[number])
                elif b'"status":"pending"' in envelope.body and envelope.type.startswith("user."):
                    # What became of it is further on.
                    self._pending.add(number)
                self._part[number] = envelope
        return not (self._passed or self._full) or bool(self._pending)

    @property
    def _full(self) -> bool:
        # One more than the page has says that there is another page.
        return not self._descending and len(self._part) > self._limit

    def end(self) -> None:
        part = list(self._part.values())
        if not self._descending:
            self._rows = part
            self._finish(True)
            return
        self._rows += reversed(part)
        self._high = self._cursor - 1
        self._finish(len(self._rows) > self._limit or self._high <= self._low)

    def _finish(self, done: bool) -> None:
        """Write the page, if it is full or nothing is left."""
        self._done = done
        if not done:
            return
        page: list[Envelope] = []
        size = 0
        for row in self._rows[: self._limit]:
            size += len(row.body)
            if page and size > PAGE_BYTES:
                break
            page.append(row)
        cursor = page_cursor(page[-1].sequence, self._pin) if len(self._rows) > len(page) else None
        answer = page_answer([row.body for row in page], cursor)
        self.headers, self.out = answer.headers, answer.body
