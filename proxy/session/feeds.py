"""How a session is shown: a feed for each dialect and thread that somebody reads, and which encoder
each dialect has been given for ever."""

from __future__ import annotations

import dataclasses
import functools
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from adapters.model import events as ev
from adapters.model.base import Encoder, EncoderContext
from adapters.registry import DIALECTS
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import compact, format_json, parse_json
from proxy.base.errors import reading_back
from proxy.base.rows import CodecRow
from proxy.fanout.hub import Feed, FeedKey
from proxy.session.core import SessionCore

AGENT = "agent"
"""The key in a fixed codec's settings of the name under which the backend was shown."""

_log = logging.getLogger(__name__)


def codec_of(dialect: str, backend: str, settings: Mapping[str, Any]) -> CodecRow:
    """Return the newest codec of a dialect, as it is fixed for a session on a backend.

    Raises:
        NotSupported: the dialect has no encoder.
    """
    make = DIALECTS[dialect].encoder
    if make is None:
        raise NotSupported(f"`{dialect}` is not served yet.")
    return _codec_row(dialect, make.version, ((AGENT, backend), *settings.items()))


@functools.lru_cache(maxsize=256)
def _codec_row(dialect: str, version: int, settings: tuple[tuple[str, Any], ...]) -> CodecRow:
    # One for all sessions that are made alike.
    return CodecRow(dialect, version, compact(format_json(dict(settings))))


@functools.lru_cache(maxsize=256)
def _fixed(codec: CodecRow) -> tuple[str, Mapping[str, Any]]:
    """Return the agent and the settings that are fixed by a codec's row."""
    with reading_back(f"how `{codec.dialect}` shows a session"):
        settings: Any = parse_json(codec.settings)
        return settings.pop(AGENT), settings


@dataclasses.dataclass(slots=True, eq=False)
class Feeds:
    """The feeds of one session. `open` has those that were asked for, `stored_seq` is the newest
    event that they may show.
    """

    core: SessionCore
    _codecs: dict[str, CodecRow] = dataclasses.field(default_factory=dict, init=False)
    _closed: bool = dataclasses.field(default=False, init=False)
    open: dict[FeedKey, Feed] = dataclasses.field(default_factory=dict, init=False)
    stored_seq: int = dataclasses.field(default=0, init=False)

    @property
    def readers(self) -> int:
        """Return how many streams of frontends are open."""
        return sum([len(feed.readers) for feed in self.open.values()])

    @property
    def dialects(self) -> Counter[str]:
        """Return how many streams of frontends are open in each dialect that has one."""
        found: Counter[str] = Counter()
        for key, feed in self.open.items():
            if feed.readers:
                found[key.dialect] += len(feed.readers)
        return found

    @property
    def used(self) -> bool:
        """Say whether somebody reads, or is about to."""
        return any(feed.used for feed in self.open.values())

    def fix(self, codecs: Collection[CodecRow]) -> None:
        """Hear which codecs are fixed for the session."""
        self._codecs.update({codec.dialect: codec for codec in codecs})

    def get(self, dialect: str, thread_id: str = ev.MAIN, form: str = "") -> Feed:
        """Return the frames of a thread in a dialect, and there in a form where one is named.

        Raises:
            NotSupported: the dialect has no encoder.
        """
        key = FeedKey(dialect, thread_id, form)
        feed = self.open.get(key)
        if feed is None:
            make_encoder = self.encoders(dialect, thread_id, form)
            feed = self.open[key] = Feed(
                self.core.journal,
                self.core.row.key,
                self.core.row.id,
                make_encoder,
                lambda: self.stored_seq,
                name=f"{dialect}{form and '.'}{form}/{thread_id}",
                prepare=None if dialect in self._codecs else lambda: self._fix(dialect),
                slots=self.core.context.slots,
            )
            if self._closed:
                feed.close()
        return feed

    def outside(self, dialect: str, thread_id: str) -> Feed:
        """Return a feed for who looks at the frames of a thread and is not a reader: the session
        does not know it, and no codec is fixed. Where no codec was fixed before, what it keeps of
        its encoder is its own: what the dialect would show may change.

        Raises:
            NotSupported: the dialect has no encoder.
        """
        name = dialect
        if dialect not in self._codecs:
            codec = self._codec(dialect)
            name = f"{dialect}@{zlib.crc32(codec.settings):08x}"
        return Feed(
            self.core.journal,
            self.core.row.key,
            self.core.row.id,
            self.encoders(dialect, thread_id),
            lambda: self.stored_seq,
            name=f"{name}/{thread_id}",
            slots=self.core.context.slots,
        )

    def encoders(self, dialect: str, thread_id: str, form: str = "") -> Callable[[], Encoder]:
        """Return what makes encoders of a dialect, in the version that is fixed for the session,
        and in a form where one is named.

        Raises:
            NotSupported: the dialect has no encoder, or none of this version.
        """
        known = DIALECTS[dialect]
        make = known.encoder
        if make is None:
            raise NotSupported(f"`{dialect}` is not served yet.")
        codec = self._codec(dialect)
        agent, settings = _fixed(codec)
        if form:
            assert known.face is not None
            settings = {**settings, **known.face.forms[form]}
        context = EncoderContext(self.core.row.id, self.core.row.secret, thread_id, agent, settings)
        if codec.version != make.version:
            newest = make.version
            make = known.older.get(codec.version)
            if make is None:
                raise NotSupported(
                    f"The session is shown by version {codec.version} of "
                    f"`{dialect}`, and this Dragoman knows versions up to {newest}: run the "
                    "release that wrote it, or a later one."
                )
        return functools.partial(make, context)

    def settings_of(self, dialect: str) -> Mapping[str, Any]:
        """Return the settings that shape the frames of a dialect: those that were configured when
        the session was first read in it."""
        codec = self._codecs.get(dialect)
        return self.core.context.faces.get(dialect, {}) if codec is None else _fixed(codec)[1]

    def _codec(self, dialect: str) -> CodecRow:
        codec = self._codecs.get(dialect)
        if codec is None:
            codec = codec_of(
                dialect, self.core.leg.backend, self.core.context.faces.get(dialect, {})
            )
        return codec

    async def _fix(self, dialect: str) -> None:
        """Fix how a dialect shows the session, before it shows anything."""
        if dialect not in self._codecs:
            codec = self._codec(dialect)
            self._codecs[dialect] = await self.core.journal.fix_codec(self.core.row.key, codec)

    @property
    def behind(self) -> bool:
        """Say whether the feed of a dialect that somebody has read lacks what is stored."""
        feeds = [self.open.get(FeedKey(dialect, ev.MAIN)) for dialect in self._codecs]
        return any(feed is None or feed.behind for feed in feeds)

    async def keep_up(self) -> None:
        """Let the feeds of those who have read the session, and do not now, catch up, so that their
        snapshots do."""
        for dialect in list(self._codecs):
            try:
                await self.get(dialect, ev.MAIN).catch_up()
            except Exception:  # noqa: BLE001 - anybody who reads hears of what is wrong
                _log.exception("session `%s`: no snapshots for `%s`", self.core.row.id, dialect)

    def cut(self) -> int:
        """Cut the connections of all readers, and return how many those were."""
        cut = [reader.transport for feed in self.open.values() for reader in feed.readers]
        for transport in cut:
            transport.abort()
        return len(cut)

    def end(self) -> None:
        """End all readers; who comes later is told to come back."""
        self._closed = True
        for feed in self.open.values():
            feed.close()

    def close(self) -> None:
        """End all readers and let go of the feeds: they know this, and would keep it in memory
        until a collection of garbage."""
        self.end()
        self.open.clear()
