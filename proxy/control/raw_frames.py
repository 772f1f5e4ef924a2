"""The raw frames that a backend sent, behind the events of a range of the log.

A page is what comes after seq `after`, at most `limit` events and about `ANSWER_BYTES` of frames.
`next` is the `after` of the page that follows.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from aiohttp import web

from adapters.contract.faces import Action
from proxy.control.api import (
    MOST,
    TURNS,
    VERSION,
    ApiModel,
    administrator,
    integer,
    json_response,
    limit_of,
    reads,
    session_of,
    stored_entries,
)
from proxy.control.legs import LEGS, LegStarts
from proxy.entry.keys import SESSIONS
from proxy.journal.base import Journal
from proxy.session import Session

ANSWER_BYTES = 1 << 20
"""Bytes of frames after which a page ends; it has one event at least."""

FRAME_BYTES = 100
"""What a frame counts beside its own bytes."""

LOOK_BACK = (64, 4096)
"""Events before a page among which the newest frame before it is looked for, at first and then."""


class RawFrameOut(ApiModel):
    """A frame of a backend: the `number`-th of its leg. `seqs` are the events of the page that it
    gave.

    `text` is null where the frame is not kept. Where it is not UTF-8 throughout, `base64` has its
    bytes, and `text` stands for them with U+FFFD."""

    leg: int
    number: int
    dialect: str | None
    seqs: list[int]
    text: str | None
    base64: str | None = None


class RawFramesOut(ApiModel):
    """The frames behind a range of the log, by leg and number. `kept_hours` is how long frames are
    kept, null where they are not; `omitted` says that of frames that gave no event not all are
    here."""

    version: int = VERSION
    frames: list[RawFrameOut]
    kept_hours: float | None
    omitted: bool
    next: int | None


class FrameKey(NamedTuple):
    """A leg of a session, and the number of a frame in it."""

    leg: int
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class EventOrigin:
    """The leg of an event, and the number of its source frame where it names one."""

    seq: int
    leg: int
    number: int | None
    dialect: str | None

    @property
    def key(self) -> FrameKey | None:
        """Return its source frame."""
        return None if self.number is None else FrameKey(self.leg, self.number)


@dataclasses.dataclass(slots=True)
class RawFrames:
    """The frames behind some events of a session. `begun` is from which number on the frames of a
    leg were read, `cut` the first frame for which there was no room."""

    session: Session
    journal: Journal
    found: dict[FrameKey, bytes] = dataclasses.field(default_factory=dict)
    begun: dict[int, int] = dataclasses.field(default_factory=dict)
    cut: FrameKey | None = None
    _size: int = 0

    async def read(self, leg: int, first: int, last: int | None) -> None:
        """Read the frames of a leg from number `first` to `last`, or to its newest one."""
        self.begun[leg] = first
        while last is None or first <= last:
            limit = MOST if last is None else min(last - first + 1, MOST)
            frames = await self.journal.frames(
                self.session.row.key, leg, first=first, limit=limit, limit_bytes=ANSWER_BYTES // 4
            )
            for number, data in frames:
                if last is not None and number > last:
                    return
                key = FrameKey(leg, number)
                size = self._size + len(data) + FRAME_BYTES
                if self.found and size > ANSWER_BYTES:
                    self.cut = key
                    return
                self.found[key], self._size = data, size
            if not frames:
                return
            first = frames[-1][0] + 1

    async def read_one(self, key: FrameKey) -> None:
        """Read one frame, whatever room there is, unless it was looked for."""
        leg, number = key
        if number >= self.begun.get(leg, number + 1) and (self.cut is None or key < self.cut):
            return
        frames = await self.journal.frames(self.session.row.key, leg, first=number, limit=1)
        if frames and frames[0][0] == number:
            self.found[key] = frames[0][1]


@reads
async def raw_frames(request: web.Request) -> web.StreamResponse:
    """Return the frames of the backend behind the events after seq `after`, at most `limit` of
    these; for administrators.

    Each names the events that it gave. A frame without events is on the page of the event that came
    next, and one whose events are on two pages is on both. A page ends after about 1 MiB of frames.
    At the end of the log a frame may get events still. `text` is null where a frame is not kept: it
    is too old, none are kept, or it came in an answer and in no stream.
    """
    administrator(request)
    _, session = await session_of(request, Action.READ)
    after, limit = integer(request, "after", 0) or 0, limit_of(request)
    page = FramesPage(request, session, request.app[LEGS].setdefault(session, LegStarts()))
    return json_response(await page.read(min(after, session.last_seq), limit))


@dataclasses.dataclass(slots=True)
class FramesPage:
    """Makes a page of the frames behind a range of a session's log."""

    request: web.Request
    session: Session
    starts: LegStarts

    async def read(self, after: int, limit: int) -> RawFramesOut:
        """Return the frames behind the events after a seq, at most `limit` of them."""
        session, settings = self.session, self.request.app[SESSIONS].settings.journal
        origins = await self._origins(after, limit)
        last = session.last_seq
        at_end = not origins or origins[-1].seq >= last
        raw = RawFrames(session, self.request.app[SESSIONS].journal)
        await self._read(raw, after, origins, at_end=at_end)
        shown, omitted = _fitting(origins, raw.cut, at_end=at_end)
        keys = sorted({one.key for one in shown if one.key is not None})
        for key in keys:
            await raw.read_one(key)
        if not omitted and not (at_end and len(shown) == len(origins)):
            leg = shown[-1].leg
            newest = max((key for key in keys if key.leg == leg), default=FrameKey(leg, -1))
            raw.found = {key: data for key, data in raw.found.items() if key <= newest}
        reached = shown[-1].seq if shown else after
        return RawFramesOut(
            frames=_frames_out(raw.found, shown, await self._dialects(raw.found, origins)),
            kept_hours=settings.frame_retention_hours if settings.frames else None,
            omitted=omitted,
            next=reached if reached < last else None,
        )

    async def _origins(self, after: int, limit: int) -> list[EventOrigin]:
        """Return where the events after a seq come from."""
        request, session = self.request, self.session
        found: list[tuple[int, int | None, str | None]] = []
        stored = stored_entries(request.app[SESSIONS].journal, session, after)
        async with aclosing(request.app[TURNS].of(stored)) as pieces:
            async for entries in pieces:
                for entry in entries[: limit - len(found)]:
                    native = entry.event.native
                    number = None if native is None else native.frame
                    dialect = None if native is None else native.dialect
                    found.append((entry.seq, number, dialect))
                if len(found) >= limit:
                    break
        await self.starts.read(request, session, found[-1][0] if found else after)
        leg = self.starts.leg
        return [EventOrigin(seq, leg(seq), number, dialect) for seq, number, dialect in found]

    async def _frame_before(self, after: int) -> int | None:
        """Return the number of the newest frame that gave one of the last events up to a seq, in
        the leg of that; None where it is too far back."""
        begin = self.starts.start(after)
        for back in LOOK_BACK if after else ():
            first = max(begin - 1, after - back, 0)
            origins = await self._origins(first, after - first)
            if numbers := [one.number for one in origins if one.number is not None]:
                return max(numbers)
            if first <= begin - 1 or not first:
                return -1
        return None if after else -1

    async def _read(
        self, raw: RawFrames, after: int, origins: Sequence[EventOrigin], *, at_end: bool
    ) -> None:
        """Read the frames behind the events after a seq, and those that gave none."""
        leg, before = self.starts.leg(after), await self._frame_before(after)
        legs = sorted({leg, *(one.leg for one in origins)})
        for one in legs:
            named = [o.number for o in origins if o.leg == one and o.number is not None]
            first = 0 if one != leg else min(named, default=None) if before is None else before + 1
            if first is None:
                continue
            # What a leg has after its last event is behind the move that ended it.
            last = None if one != legs[-1] or at_end else max(named, default=-1)
            await raw.read(one, first, last)
            if raw.cut is not None:
                return

    async def _dialects(
        self, found: Iterable[FrameKey], origins: Iterable[EventOrigin]
    ) -> Mapping[int, str]:
        """Return the dialects of legs: what their events say, else their backends."""
        known = {one.leg: one.dialect for one in origins if one.dialect is not None}
        if any(key.leg not in known for key in found):
            sessions = self.request.app[SESSIONS]
            for leg in await sessions.journal.legs(self.session.row.key):
                backend = sessions.settings.backend(leg.backend)
                if backend is not None:
                    known.setdefault(leg.number, backend.dialect)
        return known


def _fitting(
    origins: Sequence[EventOrigin], cut: FrameKey | None, *, at_end: bool
) -> tuple[Sequence[EventOrigin], bool]:
    """Return the events for whose frames there is room, one at least, and whether frames that gave
    none are left out."""
    if cut is None:
        return origins, False
    fits = [one.leg <= cut.leg and (one.key is None or one.key < cut) for one in origins]
    ready = fits.index(False) if False in fits else len(fits)
    if ready == len(origins):
        return origins, at_end
    # Frames that gave no event may fill a page by themselves.
    return origins[: max(ready, 1)], not ready and origins[0].key != cut


def _frames_out(
    found: Mapping[FrameKey, bytes], origins: Iterable[EventOrigin], dialects: Mapping[int, str]
) -> list[RawFrameOut]:
    seqs: dict[FrameKey, list[int]] = {key: [] for key in found}
    for one in origins:
        if one.key is not None:
            seqs.setdefault(one.key, []).append(one.seq)
    out = []
    for key in sorted(seqs):
        text, exact = _text_of(found.get(key))
        out.append(
            RawFrameOut(
                leg=key.leg,
                number=key.number,
                dialect=dialects.get(key.leg),
                seqs=seqs[key],
                text=text,
                base64=exact,
            )
        )
    return out


def _text_of(data: bytes | None) -> tuple[str | None, str | None]:
    """Return a frame as text, and in base64 where that is not all of it."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return data.decode(errors="replace"), base64.b64encode(data).decode()
