"""The routes by which one sees a translation: the raw frames that a backend sent, see
`proxy.control.raw_frames`, and the frames that a face sends of the same events.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Literal

from aiohttp import web

from adapters.contract.faces import Action
from adapters.model.base import Frame
from adapters.model.events import MAIN, Entry
from adapters.registry import DIALECTS, faces
from adapters.wire.errors import DragomanError, ErrorCode, NotSupported
from proxy.base.rows import AliasKind
from proxy.control.api import (
    MOST,
    PAGE,
    TURNS,
    VERSION,
    ApiModel,
    Endpoint,
    integer,
    json_response,
    limit_of,
    reads,
    session_of,
    stored_entries,
)
from proxy.control.raw_frames import ANSWER_BYTES, FRAME_BYTES, RawFramesOut, raw_frames
from proxy.entry.keys import SESSIONS
from proxy.fanout.hub import Feed
from proxy.http.bodies import RETRY_SECONDS
from proxy.journal.base import Journal
from proxy.session import Session

KEEP_ENTRIES = 1024
"""Events between two states of an encoder that a look leaves in the journal: so much at most is
encoded for a page besides its own events, once somebody was there."""

BEFORE_SECONDS = 5.0
"""How long the events before a page are encoded for one request."""


class TranslatedFrameOut(ApiModel):
    """A frame as a face sends it: the event `seq` gave it, and `cursor` is its place in the
    counting of its dialect."""

    seq: int
    cursor: int
    text: str


class TranslatedFramesOut(ApiModel):
    """The frames that a face sends of a range of the log, in the `framing` of the dialect."""

    version: int = VERSION
    dialect: str
    framing: Literal["sse", "ndjson"]
    frames: list[TranslatedFrameOut]
    next: int | None


@reads
async def translated_frames(request: web.Request) -> web.StreamResponse:
    """Return the frames that a face of a dialect sends of a thread for the events after seq
    `after`, at most `limit` of these.

    Nothing is fixed in the session by it, and nobody counts as a reader. A page ends after about
    1 MiB of frames. Of a long log that was never read in the dialect, what is before `after` is
    encoded first: where that takes more than some seconds it is 503 `overloaded`, `read` says how
    far it is, and the next request goes on from there.
    """
    _, session = await session_of(request, Action.READ)
    dialect, thread_id = request.match_info["dialect"], request.query.get("thread", MAIN)
    known = DIALECTS.get(dialect)
    if known is None:
        text = f"There is no dialect `{dialect[:80]}`; served are: {', '.join(faces())}."
        raise DragomanError(text, code=ErrorCode.NOT_FOUND)
    if not known.has_face:
        why = known.no_frontends or f"`{dialect}` is not served yet"
        raise NotSupported(f"{why}; served are: {', '.join(faces())}.")
    if thread_id not in session.state.threads:
        # One that ended long ago is known by its name only.
        names = await request.app[SESSIONS].journal.aliases(session.row.key)
        if (AliasKind.THREAD, thread_id) not in names:
            text = f"Session `{session.id}` has no thread `{thread_id[:80]}`."
            raise DragomanError(text, code=ErrorCode.NOT_FOUND)
    after, limit = integer(request, "after", 0) or 0, limit_of(request)
    # It may be asked for in a dialect that no frontend has asked for.
    await asyncio.to_thread(known.load, "face", "encoder")
    look = EncodedRange(session, session.feeds.outside(dialect, thread_id), after, limit)
    work = look.encode(request.app[SESSIONS].journal)
    async with aclosing(request.app[TURNS].of(work)) as pieces:
        async for _ in pieces:
            pass
    return json_response(
        TranslatedFramesOut(
            dialect=dialect,
            framing=faces()[dialect].framing,
            frames=look.frames,
            next=look.reached if after < look.reached < session.last_seq else None,
        )
    )


@dataclasses.dataclass(slots=True)
class EncodedRange:
    """Encodes the events of a session after a seq. `reached` is the seq of the last one of the
    page."""

    session: Session
    feed: Feed
    after: int
    limit: int
    frames: list[TranslatedFrameOut] = dataclasses.field(default_factory=list)
    reached: int = dataclasses.field(init=False)
    _size: int = 0
    _ended: bool = False

    def __post_init__(self) -> None:
        self.reached = self.after

    async def encode(self, journal: Journal) -> AsyncGenerator[None]:
        """Encode up to the end of the page, a few events at a time.

        Raises:
            DragomanError: what is before the page takes too long now.
        """
        loop = asyncio.get_running_loop()
        encoder, begun = await self.feed.encoder_at(seq=self.after)
        due, until = begun + KEEP_ENTRIES, loop.time() + BEFORE_SECONDS
        async for entries in stored_entries(journal, self.session, begun):
            for entry in entries:
                self._take(entry, encoder.feed(entry.without_quote()))
                if entry.seq >= self.after + self.limit or self._size >= ANSWER_BYTES:
                    return
            seq = entries[-1].seq
            late = seq < self.after and loop.time() >= until
            if (late or seq >= due) and not self._ended:
                due = seq + KEEP_ENTRIES
                kept = self.feed.keep(encoder, seq)
                if kept and late:
                    raise self._not_ready(seq)
                # To see each time that it is too long would take longer than to go on.
                until = loop.time() + BEFORE_SECONDS if late else until
            yield

    def _take(self, entry: Entry, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self._ended = self._ended or frame.end == "session"
            if entry.seq > self.after:
                text = frame.data.decode(errors="replace")
                self.frames.append(
                    TranslatedFrameOut(seq=entry.seq, cursor=frame.cursor, text=text)
                )
                self._size += len(frame.data) + FRAME_BYTES
        self.reached = max(self.reached, entry.seq)

    def _not_ready(self, seq: int) -> DragomanError:
        return DragomanError(
            f"The log is read in this dialect for the first time, and is read up to event {seq} of "
            f"{self.after}; ask again.",
            code=ErrorCode.OVERLOADED,
            details={"read": seq, "after": self.after, "retry_after": RETRY_SECONDS},
        )


_COUNT = {"type": "integer", "minimum": 0, "default": 0}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MOST, "default": PAGE}

ENDPOINTS = (
    Endpoint(
        "GET",
        "/sessions/{session}/frames",
        raw_frames,
        RawFramesOut,
        query={"after": _COUNT, "limit": _LIMIT},
    ),
    Endpoint(
        "GET",
        "/sessions/{session}/as/{dialect}",
        translated_frames,
        TranslatedFramesOut,
        query={
            "after": _COUNT,
            "limit": _LIMIT,
            "thread": {"type": "string", "default": MAIN},
        },
    ),
)
