"""The list beside the stream: what was missed is put in its place by `sequence`.

After every opening of a stream but the first the events are listed, for whether a server honours
`Last-Event-ID`, replays history or starts live is not documented. While a list is read, frames
wait. The newest events are asked for first, and where a server gives them so, only what was missed
is read. A frame whose number leaves a hole waits too; a hole that nothing fills soon is looked for
in the list.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Collection, Iterator
from typing import Any

from adapters.driving.doubts import LOOK_RETRY_MS, LOOKS
from adapters.herm.client import posts
from adapters.herm.client.envelopes import (
    STATUS,
    Waiting,
    envelopes_of,
    in_order,
    is_delta,
    sequence_of,
)
from adapters.herm.client.numbers import Numbers, key_of_repeat
from adapters.herm.client.records import HermClientState, HermStreamPosition
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Response

HOLE_MS = 100
"""How long what is missing before a frame is waited for: an answer that tells the number of an
input of ours, or a frame that came in another order. Ours."""

LIST_ATTEMPTS = 3
PAGES = 1_000
"""How often a page is asked for, and how many pages a list may have: 100,000 stored events."""

LIST_BYTES = 64 * 1024 * 1024
"""Bytes of pages with something new that wait for the rest of their list: 100,000 stored events of
some hundred bytes. Of a longer list the rest is told as a gap."""

EVIDENCE_PAGES = 10
"""How many more pages are read to see whether a list shows inputs at all, while one is in doubt, or
turns, while one may be over: what began the turn is among its last thousand events. Ours."""

SLICE = 64
"""Listed and waiting envelopes that are processed at once: some milliseconds of work."""

WAITING = 5_000
WAITING_BYTES = 32 * 1024 * 1024
"""Frames that wait for a list, and their bytes: to put them in order is one step. A list that takes
longer is given up."""


@dataclasses.dataclass(slots=True)
class Fill:
    """A list that is being read. `number` tells its calls from those of an abandoned one; `begun`
    is when it was asked for, 0 where that is before any input in doubt is due; `ends` is a turn
    that is over if this list does not tell how it goes on; `look` says that it is read for inputs
    in doubt alone, `hole` that it is read for numbers that the stream lacks.

    What is at or below `floor` is known. Of pages with something new the bytes are kept, and of
    each new envelope its number, its page and its place there, as a heap. `orders` says
    that there is no list: it only works off what waited."""

    number: int
    begun: int = 0
    look: bool = False
    ends: str | None = None
    hole: bool = False
    orders: bool = False
    pages: int = 0
    attempts: int = 0
    cursor: str | None = None
    floor: int = 0
    first: int | None = None
    top: int = 0
    low: int = 0
    past: int = 0
    falls: bool = False
    cut: bool = False
    shows_inputs: bool = False
    bodies: list[bytes] = dataclasses.field(default_factory=list)
    size: int = 0
    new: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    numbers: set[int] = dataclasses.field(default_factory=set)
    retry_at: int | None = None
    # When it is read: what waited, in order, and what was seen on the way.
    works: bool = False
    read: bool = False
    over: bool = False
    waiting: collections.deque[Waiting] = dataclasses.field(default_factory=collections.deque)
    repeats: set[str] = dataclasses.field(default_factory=set)
    known: int = 0
    told: bool = False
    lists_status: bool = False
    page: tuple[int, list[dict[str, Any]]] = (-1, [])

    def take(self) -> dict[str, Any]:
        """Return the next of the new envelopes. Pages are parsed once more where they are many, so
        that they take no more memory than their bytes."""
        _, number, place = map(abs, heapq.heappop(self.new))
        if self.page[0] != number:
            self.page = number, envelopes_of(raw.value_of(self.bodies[number]))
        return self.page[1][place]

    def keep(self, page: list[dict[str, Any]], body: bytes) -> None:
        """Keep a page for as long as its list is read, if there is anything new on it."""
        numbers = [number for e in page if (number := sequence_of(e)) is not None]
        if numbers:
            self.first = numbers[0] if self.first is None else self.first
            self.falls = self.first > numbers[-1]
            self.top = max(self.top, *numbers)
            self.low = min(numbers)
        types = {envelope["type"] for envelope in page}
        self.shows_inputs = self.shows_inputs or any(t.startswith("user.") for t in types)
        self.lists_status = self.lists_status or any(t.startswith(STATUS) for t in types)
        before = len(self.new)
        # Those without a number are in the order of their list.
        turn = -1 if self.falls else 1
        for place, envelope in enumerate(page):
            number = sequence_of(envelope)
            if number is None or number > self.floor or not self.floor:
                heapq.heappush(self.new, (number or 0, turn * len(self.bodies), turn * place))
                self.numbers.add(number or 0)
        if len(self.new) > before:
            # Without what was read of it, which takes more memory.
            self.bodies.append(bytes(body))
            self.size += len(body)
        else:
            self.past += 1

    def next(self) -> tuple[int | None, dict[str, Any]]:
        """Return what is next by number, and its frame: 0 of what was listed, None of what waits as
        well."""
        if self.waiting:
            _, envelope = self.waiting[0]
            # A delta may repeat the number of the stored event before it (section 4.4).
            number = (sequence_of(envelope) or 0) - (not is_delta(envelope))
            if not self.new or self.new[0][0] > number:
                return self.waiting.popleft()
        envelope = self.take()
        return (None if key_of_repeat(envelope) in self.repeats else 0), envelope


@dataclasses.dataclass(slots=True, eq=False)
class CatchingUp:
    """At most one list at a time, and the frames that wait: for it, or for a hole to be filled."""

    state: HermClientState
    place: HermStreamPosition
    numbers: Numbers
    calls: list[Call]
    fill: Fill | None = dataclasses.field(default=None, init=False)
    hole_at: int | None = dataclasses.field(default=None, init=False)
    _fills: int = dataclasses.field(default=0, init=False)
    # Until a server refuses the parameter; section 4.2 asks it to pass it by.
    _orders: bool = dataclasses.field(default=True, init=False)
    _buffer: list[Waiting] = dataclasses.field(default_factory=list, init=False)
    _highest: int = dataclasses.field(default=0, init=False)
    _size: int = dataclasses.field(default=0, init=False)
    # The numbers of what waits, and up to which one `_is_whole` has looked.
    _there: set[int] = dataclasses.field(default_factory=set, init=False)
    _whole_to: int = dataclasses.field(default=0, init=False)

    # Frames that wait.

    @property
    def waits(self) -> bool:
        """Whether frames wait, for a list or for what is missing before them."""
        return self.fill is not None or self.hole_at is not None

    def find_hole(self, envelope: dict[str, Any], now: int) -> bool:
        """Begin to wait where the numbers show that something is missing before an envelope."""
        if self.waits or not self.numbers.is_early(envelope):
            return False
        self.hole_at = now + HOLE_MS
        return True

    def wait(self, envelope: dict[str, Any], size: int) -> bool:
        """Keep a frame of so many bytes; say whether it may have filled a hole, for what comes in
        order fills none but the first one."""
        number = sequence_of(envelope) or 0
        first = not self._buffer
        fills = number < self._highest or first
        self._buffer.append((self.place.frames, envelope))
        self._there.add(number)
        self._highest = max(number, self._highest)
        self._size += size
        return fills

    @property
    def is_full(self) -> bool:
        """Whether no more can be kept."""
        return len(self._buffer) > WAITING or self._size > WAITING_BYTES

    def drop(self) -> None:
        """Forget the frames that wait. Where they were not processed, the next stream or list has
        them again."""
        self._buffer = []
        self._there = set()
        self._highest = self._size = self._whole_to = 0
        self.hole_at = None

    def opened(self) -> None:
        """Record that a stream begins, which has again what waited."""
        self.drop()
        if self.fill is not None:
            self.fill.waiting.clear()

    def put_in_order(self) -> None:
        """Begin to work off what waits, which needs no list."""
        self._fills += 1
        self.fill = Fill(self._fills, orders=True)
        self.filled(self.fill, read=False)

    @property
    def is_free(self) -> bool:
        """Whether frames wait for a hole, or for a list that cannot be had, and the numbers show
        that nothing is missing before them."""
        fill = self.fill
        if not self._buffer or (fill is not None and (fill.works or not fill.attempts)):
            return False
        return self._is_whole()

    def take(self) -> list[Waiting]:
        """Return the frames that wait, in order; none waits any more."""
        buffered = in_order(self._buffer, self.state.inputs)
        self.drop()
        return buffered

    def wait_no_more(self) -> list[ev.Event]:
        """Give up the list that frames wait for, as no more of them can be kept."""
        fill = self.fill
        if fill is not None and fill.works:
            return []
        gap = self._lacking("too many frames came before the events were listed")
        self.fill = fill = Fill(self._fills) if fill is None else fill
        return [gap, *self.filled(fill, read=False)]

    def _is_whole(self, listed: Collection[int] = ()) -> bool:
        """Say whether the numbers show that nothing is missing before and in what waits, as far as
        so much can wait. It is asked for each frame that waits, and goes on where it came to."""
        before = self.numbers.before_new()
        if before is None or not self._highest:
            return False
        reached = max(self._whole_to, before)
        most = min(self._highest - 1, reached + WAITING)
        known = (self._there, self.state.inputs, listed)
        while reached < most and any(reached + 1 in numbers for numbers in known):
            reached += 1
        if not listed:
            self._whole_to = reached
        return reached + 1 >= self._highest

    # The list.

    def start(
        self,
        begun: int = 0,
        *,
        look: bool = False,
        hole: bool = False,
        ends: str | None = None,
    ) -> Call:
        """Begin to read the list; what waits for one that is abandoned waits for this one."""
        self._fills += 1
        if self.fill is not None:
            self._wait_again(self.fill.waiting)
        self.fill = Fill(
            self._fills,
            begun,
            look=look and self.fill is None,
            hole=hole,
            ends=ends,
            floor=min(self.place.listed, self.place.mark),
        )
        self.hole_at = None
        return self._page(self.fill)

    def _wait_again(self, waiting: Collection[Waiting]) -> None:
        numbers = [sequence_of(envelope) or 0 for _, envelope in waiting]
        self._buffer = [*waiting, *self._buffer]
        self._there.update(numbers)
        self._highest = max(self._highest, *numbers, 0)

    def _page(self, fill: Fill) -> Call:
        assert self.state.session is not None
        return posts.page(self.state.session, fill.number, fill.cursor, newest_first=self._orders)

    def retry(self, now: int) -> bool:
        """Take the time; say whether a list that is read is to be worked off."""
        fill = self.fill
        if fill is None or fill.retry_at is None or now < fill.retry_at:
            return False
        fill.retry_at = None
        if fill.works:
            return True
        self.calls.append(self._page(fill))
        return False

    def listed(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        """Hear a page; when the list is read, `fill.works`."""
        fill = self.fill
        if fill is None or call.name != f"list {fill.number}":
            return []
        ok = 200 <= response.status < 300
        body = raw.json_of(response) if ok else None
        if not ok or not isinstance(body, list | dict):
            if response.status in (400, 422) and self._orders:
                self._orders = False
                self.calls.append(self._page(fill))
                return []
            final = response.status in (404, 405, 501)
            return self.failed(call, f"HTTP {response.status}", now, final=final)
        fill.pages += 1
        fill.attempts = 0
        fill.keep(envelopes_of(body), response.body)
        cursor = body.get("nextCursor") if isinstance(body, dict) else None
        more = isinstance(cursor, str) and cursor and cursor != fill.cursor
        if not more or self._is_read(fill):
            return self.filled(fill)
        if fill.pages == PAGES or fill.size > LIST_BYTES:
            fill.cut = True
            return self.filled(fill)
        fill.cursor = cursor
        self.calls.append(self._page(fill))
        return []

    def _is_read(self, fill: Fill) -> bool:
        """Say whether the pages that follow are known: those of a list that begins with the newest
        events, from the first known one on."""
        if not fill.falls or fill.low > fill.floor:
            return False
        doubtful = self.state.doubts.open and not (self.state.lists_inputs or fill.shows_inputs)
        if doubtful or (fill.ends is not None and not fill.lists_status):
            return fill.past > EVIDENCE_PAGES
        return True

    def failed(self, call: Call, why: str, now: int, *, final: bool = False) -> list[ev.Event]:
        """Record that a page cannot be had; it is asked for again, or the list is over."""
        fill = self.fill
        if fill is None or call.name != f"list {fill.number}":
            return []
        fill.attempts += 1
        if self._is_whole():
            return self.filled(fill, read=False)
        # While nothing waits for it, a list has as long as a backend that is away.
        most = LIST_ATTEMPTS if self._buffer else LOOKS
        if not final and fill.attempts < most:
            fill.retry_at = now + min(1_000 * fill.attempts, LOOK_RETRY_MS)
            return []
        gap = self._lacking(f"the events could not be listed: {why}")
        told = self.filled(fill, read=False)
        # A list that was read for an input in doubt leaves no hole in what is shown; and of numbers
        # alone nobody can say that something is missing.
        return told if fill.look or (fill.hole and final) else [gap, *told]

    def filled(self, fill: Fill, *, read: bool = True) -> list[ev.Event]:
        """Put what was listed and what waited in one order; from now on it is worked off."""
        out: list[ev.Event] = []
        if fill.cut:
            out.append(self._lacking("the list of events is longer than is read"))
        if not read and fill.falls:
            # What is older than the half that was read would pass for known.
            fill.new, fill.numbers = [], set()
        if fill.hole:
            self.numbers.holes = 0 if self._is_whole(fill.numbers) else self.numbers.holes + 1
        fill.numbers.update(self.state.inputs)
        fill.waiting.extend(in_order(self._buffer, fill.numbers))
        self.drop()
        fill.repeats = {key for _, seen in fill.waiting if (key := key_of_repeat(seen))}
        fill.known = max([self.place.mark, *(sequence_of(e) or 0 for _, e in fill.waiting)])
        fill.works, fill.read = True, read
        self.state.lists_inputs = self.state.lists_inputs or fill.shows_inputs
        if read:
            self.place.listed = max(self.place.listed, fill.top)
        return out

    def _lacking(self, why: str) -> ev.Event:
        return ev.Gap(
            thread_id=ev.MAIN,
            turn_id=self.state.turn,
            reason=why,
            cursor_from=self.place.last_id or None,
            synthetic=True,
        )

    # Working it off.

    def some(self, fill: Fill, now: int) -> Iterator[Waiting]:
        """Yield some of what was listed and what waited, each to be processed before the next one
        is asked for; the rest has its turn next, unless the list is `over` then."""
        for _ in range(SLICE):
            if not fill.new and not fill.waiting:
                # What came meanwhile.
                fill.waiting.extend(self.take())
                if not fill.waiting:
                    fill.over = True
                    return
            frame, envelope = fill.next()
            if frame is None:
                continue
            if envelope["type"].startswith(STATUS):
                fill.told = fill.told or not self.numbers.is_old(envelope)
            yield frame, envelope
        fill.retry_at = now

    def end(self, fill: Fill) -> None:
        """Record that all of a list is processed."""
        self.fill = None
        self.state.inputs_mark = max(self.state.inputs_mark, fill.top)
        # The list is ahead of the stream, whose older deltas still come.
        self.numbers.catching_up = self.numbers.catching_up or fill.top > fill.known
