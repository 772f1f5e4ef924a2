"""One live session: what its backend says becomes its log, what its frontends say reaches its
backend.

Everything that happens becomes events, and every event takes one way: normalizer, `seq` and `at`,
journal, and, once it is on disk, the feeds. Nobody sees an event that a crash could take back.

Commands go through an outbox in the journal: `accepted` before the frontend gets its 2xx, `sent`
before the request leaves, `settled` with the events that say so. Messages wait in order until the
turn is over; everything else goes at once. The session keeps the policy that the face promised,
whatever the backend would do by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from adapters import commands as cmd
from adapters import events as ev
from adapters.base import (
    Call,
    ClientCodec,
    CloseReason,
    Encoder,
    EncoderContext,
    Response,
    Support,
)
from adapters.errors import ClientProtocolError, DragomanError, ErrorCode, NotSupported
from adapters.framing import FrameTooLarge
from adapters.framing.sse import SseFrame
from adapters.jsonvalue import compact, format_json, parse_json
from adapters.normalizer import Normalizer, Rule
from adapters.registry import DIALECTS
from adapters.state import SNAPSHOT_SHAPE, LogState
from proxy import metrics
from proxy.clock import Clock, Ids
from proxy.errors import (
    InteractionConflict,
    JournalError,
    JournalUnavailable,
    SessionClosed,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from proxy.hub import Feed, FeedKey, entries_of
from proxy.journal.base import (
    CodecRow,
    CommandRow,
    CommandStatus,
    Journal,
    LegRow,
    NewSession,
    SessionRow,
    Snapshot,
    Write,
)
from proxy.repeats import LOST, REPEATED, REQUEST, Accepted, Asked, Requests, identity
from proxy.tasks import Tasks
from proxy.upstream.body import Work
from proxy.upstream.client import Frames, Stream, Upstream
from proxy.upstream.reconnect import Backoff

BACKLOG_BYTES = 8 * 1024 * 1024
"""Bytes waiting for the disk above which backends are not read on: a fraction of a second of a fast
disk."""

SLICE_FRAMES = 64
"""Frames that are decoded and stored at once: about a millisecond of work."""

SNAPSHOT_ENTRIES = 128
"""Entries between two snapshots of a session's state: loading folds at most about as many, 1.5
ms."""

SNAPSHOT_SHARE = 2048
"""Bytes of a snapshot of the state for each entry since the one before: a larger one, above 256 KiB
by a long open block, is rarer. Only the newest is kept."""

STATE = "state"
"""The kind of the snapshots of a session's state."""

LEASE_MS = 30_000
"""A stream that lived this long and then ended in good order was on a lease, which eve gives for
60 s (eve page, section 7.4)."""

RECOVER_ATTEMPTS = 5
"""How often a backend is asked for evidence of an answer before its fate is `unknown`; with backoff
about 10 s."""

THREAD = "thread"
"""The kind of alias under which a child thread's session is found."""

SAID_AS_MESSAGE = "said_as_message"
"""The key in an answer's `options` under which a face keeps the plain message that was taken as the
answer."""

_log = logging.getLogger(__name__)

AGENT = "agent"
"""The key in a fixed codec's settings of the name under which the backend was shown."""

_TELLS = frozenset({"session.started", "session.updated", "session.ended"})

_DELTAS = frozenset({"text.delta", "reasoning.delta"})

_BEGINS = frozenset(
    {"turn.started", "turn.ended", "message.received", "guidance.received", "session.ended"}
)
"""What shows that a backend has done something about the messages that it took."""


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
    settings: Any = parse_json(codec.settings)
    return settings.pop(AGENT), settings


async def told(journal: Journal, row: SessionRow) -> tuple[list[int], int]:
    """Return the seqs of the events up to some seq that say what a session is (made, updated,
    ended), and that seq: what is after it is to be read."""
    if row.last_seq <= SNAPSHOT_ENTRIES:
        return [], 0
    found = await journal.snapshot(row.key, STATE, SNAPSHOT_SHAPE)
    if found is None:
        return [], 0
    value: Any = parse_json(found.data)
    return list(value["told"]), found.seq


class Session:
    """A session in memory. Made by `proxy.sessions`, which also puts it away."""

    __slots__ = (
        "__weakref__",
        "_at",
        "_broken",
        "_clock",
        "_codec",
        "_codecs",
        "_deleted",
        "_doubt_since",
        "_face_settings",
        "_feeds",
        "_gate",
        "_ids",
        "_journal",
        "_keep_frames",
        "_lead",
        "_loaded",
        "_name_stored",
        "_native_id",
        "_news",
        "_next_number",
        "_normalizer",
        "_on_its_way",
        "_outbox",
        "_owed",
        "_patience",
        "_queue",
        "_requests",
        "_running",
        "_sealed",
        "_sending",
        "_seq",
        "_snapshot_due",
        "_snapshot_seq",
        "_status",
        "_stored_seq",
        "_streams",
        "_tasks",
        "_timer",
        "_timer_at",
        "_told",
        "_upstream",
        "closed",
        "draining",
        "holders",
        "leg",
        "row",
        "used_at",
    )

    def __init__(
        self,
        row: SessionRow,
        leg: LegRow,
        *,
        journal: Journal,
        codec: ClientCodec,
        upstream: Upstream,
        tasks: Tasks,
        clock: Clock,
        ids: Ids,
        broken: Callable[[Session], None],
        deleted: Callable[[Session], None],
        keep_frames: bool,
        patience: int | None,
        face_settings: Mapping[str, Mapping[str, Any]],
        gate: asyncio.Semaphore | None = None,
    ) -> None:
        self.row = row
        self.leg = leg
        self._journal = journal
        self._codec = codec
        self._upstream = upstream
        self._tasks = tasks
        self._clock = clock
        self._ids = ids
        self._broken = broken
        self._deleted = deleted
        self._keep_frames = keep_frames
        self._patience = patience
        self._face_settings = face_settings
        self._gate = gate
        self._normalizer = self._normalizer_of(LogState())
        self._codecs: dict[str, CodecRow] = {}
        self._told: list[int] = []
        self._snapshot_seq = 0
        # Sessions that began together, as after an outage, do not all take theirs at once.
        self._snapshot_due = SNAPSHOT_ENTRIES - row.key % SNAPSHOT_ENTRIES // 2
        self._seq = 0
        self._at = 0
        self._lead = 0
        self._stored_seq = 0
        self._status: str = row.state
        self._feeds: dict[FeedKey, Feed] = {}
        self._queue: list[tuple[str, cmd.AnyCommand]] = []
        self._requests = Requests()
        self._outbox: dict[str, CommandRow] = {}
        self._next_number = 1
        self._sending: dict[str, str] = {}
        self._owed: set[str] = set()
        self._loaded = False
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._doubt_since: int | None = None
        self._sealed: set[str] = set()
        self._native_id = leg.native_id
        self._name_stored: asyncio.Future[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._timer_at = 0
        self._running: set[asyncio.Task[None]] = set()
        self._news: asyncio.Event | None = None
        self._on_its_way: set[str] = set()
        self.closed = False
        self.draining = False
        self.used_at = clock.monotonic()
        self.holders = 0
        """How many requests look at it: it stays in memory until they are answered."""

    # What others ask of it.

    @property
    def id(self) -> str:
        """Return the public id."""
        return self.row.id

    @property
    def state(self) -> LogState:
        """Return what is open, as of the newest event, stored or on its way."""
        return self._normalizer.state

    @property
    def codec(self) -> ClientCodec:
        """Return the codec of the backend."""
        return self._codec

    @property
    def repairs(self) -> Mapping[Rule, int]:
        """Return how often each rule of the normalizer was used."""
        return self._normalizer.repairs

    @property
    def readers(self) -> int:
        """Return how many streams of frontends are open."""
        return sum([len(feed.readers) for feed in self._feeds.values()])

    @property
    def last_seq(self) -> int:
        """Return the seq of the newest stored event."""
        return self._stored_seq

    @property
    def quiet(self) -> bool:
        """Say whether the session could be put away: nothing runs, waits, reads or is on its way to
        the disk."""
        return (
            self.idle and self.holders == 0 and not any(feed.used for feed in self._feeds.values())
        )

    @property
    def idle(self) -> bool:
        """Say whether nothing is under way but that somebody may read."""
        return not (
            self._seq != self._stored_seq
            or self.state.busy
            or self._owed
            or self._queue
            or self._outbox
            or self._running - set(self._streams.values())
        )

    @property
    def sending(self) -> bool:
        """Say whether a command is on its way to the backend and its answer not here yet."""
        return bool(self._on_its_way) and not self.closed

    @property
    def forgot_its_message(self) -> bool:
        """Say whether a stop came between the session and the message that it was made with."""
        return self._loaded and self.state.seq <= 1

    def news(self) -> asyncio.Event:
        """Return an event that is set when more is stored, or when the session leaves memory."""
        if self._news is None:
            self._news = asyncio.Event()
            if self.closed:
                self._news.set()
        return self._news

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()

    def open_interactions(self) -> list[ev.InteractionRequested]:
        """Return the open interactions, oldest first."""
        return [open_.event for open_ in self.state.interactions.values()]

    def queued(self) -> list[CommandRow]:
        """Return the messages that wait here for their turn, in order."""
        return [self._outbox[command_id] for command_id, _ in self._queue]

    def webhook(self, request_id: str) -> str | None:
        """Return where the provider of an open sign-in returns to at the backend, or None."""
        return self._codec.webhook(request_id)

    def feed(self, dialect: str, thread_id: str = ev.MAIN) -> Feed:
        """Return the frames of a thread in a dialect.

        Raises:
            NotSupported: the dialect has no encoder.
        """
        key = FeedKey(dialect, thread_id)
        feed = self._feeds.get(key)
        if feed is None:
            make_encoder = self._encoders(dialect, thread_id)
            feed = Feed(
                self._journal,
                self.row.key,
                self.id,
                make_encoder,
                lambda: self._stored_seq,
                name=f"{dialect}/{thread_id}",
                prepare=None if dialect in self._codecs else lambda: self._fix(dialect),
                gate=self._gate,
            )
            self._feeds[key] = feed
            if self.draining or self.closed:
                feed.close()
        return feed

    def _encoders(self, dialect: str, thread_id: str) -> Callable[[], Encoder]:
        """Return what makes encoders of a dialect, in the version that is fixed for the session.

        Raises:
            NotSupported: the dialect has no encoder, or none of this version.
        """
        known = DIALECTS[dialect]
        make = known.encoder
        if make is None:
            raise NotSupported(f"`{dialect}` is not served yet.")
        codec = self._codecs.get(dialect) or codec_of(
            dialect, self.leg.backend, self._face_settings.get(dialect, {})
        )
        agent, settings = _fixed(codec)
        context = EncoderContext(self.id, self.row.secret, thread_id, agent, settings)
        if codec.version != make.version:
            make = known.older.get(codec.version)
            if make is None:
                raise NotSupported(
                    f"Session `{self.id}` was shown by version {codec.version} of `{dialect}`, "
                    "which this Dragoman does not have."
                )
        return functools.partial(make, context)

    def settings_of(self, dialect: str) -> Mapping[str, Any]:
        """Return the settings that shape the session's frames in a dialect: those that were
        configured when it was first read there."""
        codec = self._codecs.get(dialect)
        if codec is None:
            return self._face_settings.get(dialect, {})
        return _fixed(codec)[1]

    async def _fix(self, dialect: str) -> None:
        """Fix how a dialect shows the session, before it shows anything."""
        if dialect not in self._codecs:
            codec = codec_of(dialect, self.leg.backend, self._face_settings.get(dialect, {}))
            self._codecs[dialect] = await self._journal.fix_codec(self.row.key, codec)

    # Loading.

    async def begin(
        self,
        new: NewSession,
        first: Sequence[ev.Event],
        commands: Sequence[cmd.AnyCommand],
        *,
        by: str,
        blobs: Mapping[str, bytes] | None = None,
        asked: Asked | None = None,
    ) -> list[str]:
        """Store a session that is being made, with its first events and commands, and return the
        ids of these; durable on return. Its own face reads it next.

        Raises:
            DragomanError: as `submit`.
            NameTaken: a name is taken.
        """
        if new.codec is not None:
            self._codecs[new.codec.dialect] = new.codec
        for event in first:
            self._hear_of(event)
        self.feed(self.row.dialect)
        return await self._submit(
            commands, by=by, face=self.row.dialect, blobs=blobs, asked=asked, first=first, new=new
        )

    def _normalizer_of(self, state: LogState) -> Normalizer:
        return Normalizer(state, totals=metrics.REPAIRS[self._codec.dialect])

    def _hear_of(self, event: ev.Event) -> None:
        if isinstance(event, ev.SessionStarted):
            self._codec.started(event)

    async def load(self, names: Collection[tuple[str, str]] = ()) -> None:
        """Fold the log from its newest snapshot on, put the codec back where it was, take up what
        was under way. `names` are its aliases."""
        self._loaded = True
        if self.row.last_seq > SNAPSHOT_ENTRIES:
            codecs, _ = await asyncio.gather(self._journal.codecs(self.row.key), self._skip())
        else:
            codecs = await self._journal.codecs(self.row.key)
        self._codecs = {codec.dialect: codec for codec in codecs}
        begun = self._snapshot_seq = self.state.seq
        async for chunk in self._journal.scan(self.row.key, after=begun):
            for entry in entries_of(chunk.body, self.id):
                if entry.seq <= self.state.seq:
                    continue
                self._hear_of(entry.event)
                self.state.apply_entry(entry)
                self._watch(entry.event)
                self._hear_told(entry.seq, entry.event, entry.at)
        self._seq = self._stored_seq = self.state.seq
        self._snapshot_due += begun
        if (snapshot := self._snapshot()) is not None:
            self._journal.add_snapshot(self.row.key, snapshot)
        self._at = self.state.at
        # What the codec has noted is not to come in an hour because the clock was set back.
        self._lead = max(self._at - self._clock.now(), 0)
        self._requests.lose(names)
        self._codec.restore(self.leg.state, self.leg.position)
        for row in await self._journal.commands(self.row.key):
            value = parse_json(row.body)
            assert isinstance(value, dict)
            self._outbox[row.command_id] = row
            self._next_number = row.number + 1
            command = cmd.decode_command(value)
            if row.status == "accepted" and isinstance(command, cmd.SendMessage):
                self._queue.append((row.command_id, command))
            elif row.status == "accepted" and self.draining:
                continue
            elif row.status == "accepted":
                self._start(self._send(row.command_id, command), f"send {row.command_id}")
            else:
                self._recover(row, command)
        self._emit(
            # A sealed answer was in memory only; its request is open again.
            [
                _unknown(command_id)
                for command_id in list(self.state.inputs)
                if command_id not in self._outbox
            ]
        )
        self._go_on()

    async def _skip(self) -> None:
        """Begin at the newest snapshot of the state."""
        key = self.row.key
        found, begin = await asyncio.gather(
            self._journal.snapshot(key, STATE, SNAPSHOT_SHAPE),
            # How the session was made is the first entry.
            self._journal.read(key, limit_rows=1),
        )
        if found is None:
            return
        try:
            value: Any = parse_json(found.data)
            state = LogState.restore(format_json(value["state"]))
            owed, told = set(value["owed"]), list(value["told"])
            self._requests.restore(value.get("requests", []))
        except (ValueError, TypeError, KeyError) as error:
            _log.warning("session `%s`: a snapshot is of no use: %s", self.id, error)
            metrics.count_unusable_snapshot(STATE)
            return
        self._hear_of(entries_of(begin[0].body, self.id)[0].event)
        self._normalizer = self._normalizer_of(state)
        self._owed, self._told = owed, told

    def _snapshot(self) -> Snapshot | None:
        """Return a snapshot of the state when it is time for one; it is stored when the entries
        are."""
        if self._seq < self._snapshot_due:
            return None
        data = b'{"owed":%b,"told":%b,"requests":%b,"state":%b}' % (
            format_json(sorted(self._owed)),
            format_json(self._told),
            format_json(self._requests.dump()),
            self.state.snapshot(),
        )
        due = self._snapshot_seq + len(data) // SNAPSHOT_SHARE
        if self._seq < due:
            self._snapshot_due = due
            return None
        self._snapshot_seq = self._seq
        self._snapshot_due = self._seq + SNAPSHOT_ENTRIES
        return Snapshot(STATE, SNAPSHOT_SHAPE, 0, self._seq, data)

    def _hear_told(self, seq: int, event: ev.Event, at: int) -> None:
        if event.TYPE in _TELLS:
            self._told.append(seq)
        self._requests.hear(event, at)

    def _lags(self) -> bool:
        """Say whether the feed of a dialect that somebody has read lacks what is stored."""
        feeds = [self._feeds.get(FeedKey(dialect, ev.MAIN)) for dialect in self._codecs]
        return any(feed is None or feed.behind for feed in feeds)

    async def _keep_up(self) -> None:
        """Let the feeds of those who have read the session, and do not now, catch up, so that their
        snapshots do."""
        for dialect in list(self._codecs):
            try:
                await self.feed(dialect).catch_up()
            except Exception:  # noqa: BLE001 - whoever reads hears of what is wrong
                _log.exception("session `%s`: no snapshots for `%s`", self.id, dialect)

    def _recover(self, row: CommandRow, command: cmd.AnyCommand) -> None:
        """Look for evidence of a command that a crash may have cut off; never send it again."""
        command_id = row.command_id
        call = self._codec.recover(command_id, command)
        if call is not None:
            if isinstance(command, cmd.SendMessage):
                self._sending[command_id] = command.policy
            self._start(self._look_up(call, command_id), f"recover {command_id}")
        elif self._codec.streams():
            self._sending[command_id] = getattr(command, "policy", "")
            # A stream that is read to its end and does not tell of it is evidence of all the time
            # since then, not of this start's only.
            self._doubt_since = row.at + self._clock.steady() - self._clock.now()
        else:
            self._emit([_unknown(command_id)])

    def _time(self) -> int:
        """Return the time that waits are measured by, the codec's too: no step of the system's
        clock moves it."""
        return self._clock.steady() + self._lead

    # The way of an event.

    def _emit(
        self,
        raw: Iterable[ev.Event],
        *,
        commands: Sequence[CommandRow] = (),
        upstream: bool = False,
        aliases: Sequence[tuple[str, str]] = (),
        blobs: Sequence[str] = (),
        archived_at: int | None = None,
        at: int | None = None,
        new: NewSession | None = None,
    ) -> asyncio.Future[None] | None:
        """Give events their place and hand them to the journal; the future is done when they are
        stored.

        `upstream` says that they come from the backend's frames, so that the position reached is
        stored with them. `at` is the time, where the caller has just looked.
        """
        events = self._normalizer.feed(raw)
        if not events and not commands:
            return None
        self._at = now = max(self._at, self._clock.now() if at is None else at)
        seq = self._seq
        first = seq + 1
        entries = []
        rows = []
        plain = True
        changes = list(commands)
        for event in events:
            self._seq = seq = seq + 1
            entry = ev.Entry(seq, now, self.id, event)
            entries.append(entry)
            rows.append(entry.encode_row())
            if event.TYPE not in _DELTAS:
                plain = False
                self._watch(event)
                self._hear_told(seq, event, now)
                if event.TYPE in metrics.COUNTED:
                    metrics.count_event(event, self._codec.dialect)
                if isinstance(event, ev.InputSettled):
                    changes += self._settle(event, now)
        self.state.seq, self.state.at = seq, now
        # What a command changed in the codec goes with it, and a snapshot only with its position:
        # all frames fed so far have given their events by now.
        whole = not plain or bool(changes)
        rows.append(b"")
        write = Write(
            self.row.key,
            first,
            len(entries),
            b"\n".join(rows),
            self._codec.position if upstream or whole else None,
            self.leg.number,
            commands=changes,
            aliases=aliases,
            blobs=blobs,
            archived_at=archived_at,
            at=now,
            new=new,
        )
        if whole:
            write.leg_state = self._codec.snapshot()
            write.native_id = self._new_native_id()
            write.aliases = [*aliases, *self._new_names(events)]
            status = self._now_status()
            if status != self._status:
                self._status = status
                write.state = status  # type: ignore[assignment]
            if self.state.title != self.row.title:
                write.title = self.state.title
        stored: asyncio.Future[None] | None = None
        if not upstream or write.native_id is not None:
            stored = asyncio.get_running_loop().create_future()
        if write.native_id is not None:
            self._name_stored = stored
        snapshot = self._snapshot() if seq >= self._snapshot_due else None
        write.done = functools.partial(self._written, entries, stored, snapshot)
        self._journal.submit(write)
        if self._codec.wake_at is not None:
            self._alarm()
        return stored

    def _written(
        self,
        entries: Sequence[ev.Entry],
        stored: asyncio.Future[None] | None,
        snapshot: Snapshot | None,
        error: JournalError | None,
    ) -> None:
        """Hear from the journal what became of a write; only now others may see its events."""
        if stored is not None and not stored.done():
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)
                stored.exception()
        if error is not None:
            self._fail(error)
        elif entries and not self.closed:
            self._stored_seq = entries[-1].seq
            self._tell()
            for feed in self._feeds.values():
                feed.publish(entries)
            if snapshot is not None:
                self._journal.add_snapshot(self.row.key, snapshot)
                if self._lags():
                    self._start(self._keep_up(), "keep snapshots up")
            if self.state.ended == "deleted" and self._stored_seq == self._seq:
                self._deleted(self)

    def _new_native_id(self) -> str | None:
        native_id = self._codec.native_id
        if native_id is None or native_id == self._native_id:
            return None
        self._native_id = native_id
        return native_id

    def _new_names(self, events: Sequence[ev.Event]) -> list[tuple[str, str]]:
        """Return the aliases that events bring: every child thread is found by its own name."""
        return [
            (THREAD, event.thread_id) for event in events if isinstance(event, ev.ThreadStarted)
        ]

    def _now_status(self) -> str:
        status = self.state.status
        if status == "idle" and (self._queue or self._outbox or self._owed):
            return "running"
        return status

    def _watch(self, event: ev.Event) -> None:
        """Remember which messages the backend took without having begun their turn: it is not
        idle."""
        if isinstance(event, ev.InputSettled):
            if event.outcome == "taken" and event.command_id in self.state.unreceived:
                self._owed.add(event.command_id)
        elif event.TYPE in _BEGINS and event.thread_id == ev.MAIN:
            self._owed.clear()

    def _settle(self, event: ev.InputSettled, now: int) -> list[CommandRow]:
        row = self._outbox.pop(event.command_id, None)
        self._on_its_way.discard(event.command_id)
        self._sending.pop(event.command_id, None)
        if row is None:
            return []
        return [_moved(row, "settled", now)]

    def _fail(self, error: JournalError) -> None:
        """Leave memory: what is in it may be ahead of the journal. The next request loads the
        session anew."""
        if not self.closed:
            self._broken(self)
            self.close()

    def drain(self) -> None:
        """End all readers and send no further message; what is on its way to the backend goes on,
        and so does what it says."""
        self.draining = True
        self._tell()
        for feed in self._feeds.values():
            feed.close()

    def close(self) -> None:
        """Stop all that runs, end all readers; what was under way is taken up by the next
        `load`."""
        self.closed = True
        self._tell()
        for task in list(self._running):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for feed in self._feeds.values():
            feed.close()
        # They know the session: without this, it stayed in memory until the next full collection.
        self._feeds.clear()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.start(self._surviving(work, name), name=f"{self.id}: {name}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # A task that is cancelled before its first step never comes to await its work.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _surviving(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do work of this session; a bug in it ends the turn in sight of everybody, not in
        silence."""
        try:
            await work
        except JournalError:
            # `_fail` has heard of it already, and the session is loaded anew.
            return
        except Exception as error:  # noqa: BLE001 - the root of a task
            _log.exception("session `%s`: `%s` failed", self.id, name)
            text = f"Dragoman failed in `{name}`: {type(error).__name__}."
            internal = DragomanError(text, code=ErrorCode.INTERNAL)
            self._from_backend(self._codec.give_up(internal, self._time()))

    def _alarm(self) -> None:
        """Call the codec's `tick` when it wants."""
        at = self._codec.wake_at
        if at is None or self.closed or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._tasks.start(self._tick_at(at), name=f"{self.id}: tick")

    async def _tick_at(self, at: int) -> None:
        await self._clock.sleep(max(at - self._time(), 0) / 1000)
        self._timer = None
        if not self.closed:
            self._from_backend(self._codec.tick(self._time()))
            self._go_on()
            self._alarm()

    async def tell(self, events: Sequence[ev.Event]) -> None:
        """Write events of our own; durable on return.

        Raises:
            JournalError: they could not be stored.
        """
        stored = self._emit(events)
        if stored is not None:
            await stored

    # Commands.

    async def submit(
        self,
        commands: Sequence[cmd.AnyCommand],
        *,
        by: str,
        face: str,
        details: Mapping[str, Any] | None = None,
        blobs: Mapping[str, bytes] | None = None,
        asked: Asked | None = None,
    ) -> list[str]:
        """Accept a batch of commands and return their ids, one each; durable on return.

        The batch is refused as a whole, before anything is stored. A repeat of the request `asked`
        is found by `repeated` from then on.

        Raises:
            SessionClosed: the session has ended.
            ClientProtocolError: busy, paused, an unknown interaction, an option that was not
            offered.
            InteractionConflict: an interaction is answered already.
            NotSupported: the backend cannot carry a command.
            JournalError: it could not be stored.
        """
        return await self._submit(
            commands, by=by, face=face, details=details, blobs=blobs, asked=asked
        )

    async def withdraw(self, command_id: str, *, by: str) -> None:
        """Take a message out of the queue, so that it never goes to the backend; durable on return.

        Raises:
            DragomanError: it is on its way to the backend, or nothing waits under this id.
            JournalError: it could not be stored, and waits as before.
        """
        if self.closed:
            raise JournalUnavailable(f"Session `{self.id}` is being loaded anew; try again.")
        at = next((n for n, queued in enumerate(self._queue) if queued[0] == command_id), None)
        if at is None and command_id in self.state.inputs:
            raise DragomanError(
                f"Input `{command_id}` is on its way to the backend and cannot be withdrawn.",
                code=ErrorCode.NOT_ACTIVE,
            )
        if at is None:
            raise DragomanError(f"No input `{command_id}` waits here.", code=ErrorCode.NOT_FOUND)
        del self._queue[at]
        stored = self._emit(
            [
                ev.InputSettled(
                    thread_id=ev.MAIN,
                    command_id=command_id,
                    outcome="withdrawn",
                    reason=f"Withdrawn by `{by}` before it was sent.",
                    synthetic=True,
                )
            ]
        )
        if stored is not None:
            await stored
        self._go_on()

    def repeated(self, asked: Asked) -> list[str] | None:
        """Return the ids of the commands that a request gave which this one repeats, or None: then
        it is new. `proxy.repeats` says what a repeat is.

        Raises:
            DragomanError: its `Idempotency-Key` is another request's.
        """
        known = self._requests.find(asked, self._clock.now())
        if known is None:
            return None
        if known.lost_at is not None:
            known.lost_at = None
            self._name(REPEATED, known)
        known.retry = max(known.retry, asked.retry)
        asked.accept(known, self._replied)
        return known.ids

    def _remember(self, asked: Asked | None, request_id: str) -> None:
        """Let a request that was stored tell what becomes of its reply."""
        accepted = self._requests.get(request_id)
        if asked is not None and accepted is not None:
            asked.accept(accepted, self._replied)

    def _replied(self, request: Accepted, whole: bool) -> None:
        """Hear whether the reply to a request was written to its end."""
        if not whole:
            request.lost_at = self._clock.now()
            self._name(LOST, request)

    def _name(self, kind: str, request: Accepted) -> None:
        self._journal.submit(Write(self.row.key, aliases=[(kind, request.id)], at=self._at))

    async def _submit(
        self,
        commands: Sequence[cmd.AnyCommand],
        *,
        by: str,
        face: str,
        details: Mapping[str, Any] | None = None,
        blobs: Mapping[str, bytes] | None = None,
        asked: Asked | None = None,
        first: Sequence[ev.Event] = (),
        new: NewSession | None = None,
    ) -> list[str]:
        self.used_at = self._clock.monotonic()
        _check_batch(commands)
        checked = [self._check(command) for command in commands]
        hashes = [await self._journal.put_blob(data) for data in (blobs or {}).values()]
        # Nothing may have changed while blobs were stored.
        if hashes:
            checked = [self._check(command) for command in commands]
        ids = [self._ids.uuid() for _ in checked]
        events = list(first)
        rows: list[CommandRow] = []
        followups: list[tuple[str, cmd.AnyCommand]] = []
        now = max(self._at, self._clock.now())
        request_id = ids[0] if ids else self.id
        told = {**(details or {}), **_request(asked, request_id, checked)}
        for command_id, command in zip(ids, checked, strict=True):
            if command is None:
                continue
            if isinstance(command, cmd.SendMessage) and command.policy == "interrupt":
                # The face promised that the work stops for it: then it is the next message.
                stop = self._check(cmd.Interrupt())
                if stop is not None:
                    stop_id = self._ids.uuid()
                    events += self._accepted(stop_id, stop, by, face, details)
                    rows.append(self._row(stop_id, stop, now))
                    followups.append((stop_id, stop))
            events += self._accepted(command_id, command, by, face, told)
            if _local(command, self._codec):
                events += self._apply_local(command_id, command)
                continue
            if isinstance(command, cmd.AnswerInteraction) and command.sealed is not None:
                # The value is nowhere but here: what a crash cuts off cannot be sent again.
                self._sealed.add(command.request_id)
                followups.append((command_id, command))
                continue
            rows.append(self._row(command_id, command, now))
            followups.append((command_id, command))
        # Sealed values live in `followups` only; messages queue in order, the rest goes at once.
        at_once = []
        for pair in followups:
            if self._waits(pair[1]):
                self._queue.append(pair)
                continue
            at_once.append(pair)
            if isinstance(pair[1], cmd.SendMessage):
                self._sending[pair[0]] = pair[1].policy
        alone = len(ids) == 1 and not at_once
        leaving = self._leave(ids[0], blobs or {}, rows) if alone else None
        stored = self._emit(events, commands=rows, blobs=hashes, new=new)
        if stored is not None:
            await stored
        self._remember(asked, request_id)
        if self.closed:
            # What is stored goes out, or is looked for, when the session is loaded again.
            return ids
        if leaving is not None:
            self._start(self._carry(*leaving), f"send {ids[0]}")
        for command_id, command in at_once:
            self._start(self._send(command_id, command), f"send {command_id}")
        self._go_on()
        return ids

    def _leave(
        self, command_id: str, blobs: Mapping[str, bytes], rows: list[CommandRow]
    ) -> tuple[str, cmd.AnyCommand, Call] | None:
        """Return the message just queued and its call, if it may go at once: it is stored as sent
        then. A commit of its own for that would cost its time and win nothing: the fate of a
        message is open to a crash from the commit that calls it sent to its request."""
        if not self._queue or self._queue[0][0] != command_id or not self._may_send():
            return None
        command = self._queue[0][1]
        if not _blob_names(command) <= blobs.keys():
            return None
        try:
            call = self._codec.submit(command_id, command, blobs)
        except NotSupported:
            # It is refused when it is sent, in sight of everybody.
            return None
        self._take_next()
        self._on_its_way.add(command_id)
        rows[-1] = self._outbox[command_id] = _moved(rows[-1], "sent", rows[-1].at)
        return command_id, command, call

    def _row(self, command_id: str, command: cmd.AnyCommand, now: int) -> CommandRow:
        """Put a command into the outbox, and return the row that the journal keeps of it."""
        body = cmd.encode_command(command)
        row = CommandRow(self.row.key, self._next_number, command_id, "accepted", body, now)
        self._next_number += 1
        self._outbox[command_id] = row
        return row

    def _waits(self, command: cmd.AnyCommand) -> bool:
        """Say whether a command waits for its turn; what steers or withdraws by the backend's own
        rule does not. Nothing withdraws while the fate of a message before it is open."""
        if not isinstance(command, cmd.SendMessage):
            return False
        if self._codec.abilities["steer"].support is not Support.NATIVE or not self.state.busy:
            return True
        if self.state.interactions:
            first = all(policy == "steer" for policy in self._sending.values())
            return command.policy != "withdraw" or not first
        return command.policy != "steer"

    def _check(self, command: cmd.AnyCommand) -> cmd.AnyCommand | None:
        """Return the command as it will be carried, or None when there is nothing to do."""
        if self.closed:
            raise JournalUnavailable(f"Session `{self.id}` is being loaded anew; try again.")
        state = self.state
        if state.ended is not None and not isinstance(command, cmd.Delete):
            raise SessionClosed(f"Session `{self.id}` has ended; start a new one.")
        match command:
            case cmd.SendMessage():
                self._check_policy(command)
                self._codec.check(command)
            case cmd.Steer():
                native = self._codec.abilities["steer"].support is Support.NATIVE
                # While something is asked, steering might withdraw it: then it waits as a message.
                if not native or state.interactions or not state.busy:
                    command = cmd.SendMessage(content=(ev.Text(text=command.text),), policy="queue")
                self._codec.check(command)
            case cmd.AnswerInteraction():
                self._check_answer(command)
                self._codec.check(command)
            case cmd.Interrupt():
                # A message on its way is work too: its turn has not begun, and is to be stopped.
                if not (state.busy or self._queue or self._sending or self._owed):
                    return None
                self._codec.check(command)
            case _:
                self._codec.check(command)
        return command

    def _check_policy(self, command: cmd.SendMessage) -> None:
        sealed = [i for i in self.open_interactions() if i.kind in ev.SEALED_KINDS]
        if sealed:
            raise ClientProtocolError(
                f"Request `{sealed[0].request_id}` waits for a {sealed[0].kind}; "
                "answer or decline it first.",
                dialect=self.row.dialect,
                code=ErrorCode.PAUSED,
            )
        if command.policy == "interrupt":
            # What cannot be stopped is not promised to stop.
            self._check(cmd.Interrupt())
        if command.policy != "reject":
            return
        if self.state.interactions:
            raise ClientProtocolError(
                f"Session `{self.id}` waits for an answer; answer it first.",
                dialect=self.row.dialect,
                code=ErrorCode.PAUSED,
            )
        if self.state.busy or self._queue or self._sending or self._owed:
            raise ClientProtocolError(
                f"Session `{self.id}` is working; wait for the turn to end.",
                dialect=self.row.dialect,
                code=ErrorCode.BUSY,
            )

    def _check_answer(self, command: cmd.AnswerInteraction) -> None:
        request_id = command.request_id
        open_ = self.state.interactions.get(request_id)
        if open_ is None:
            outcome = self.state.resolved.get(request_id)
            if outcome is not None:
                raise InteractionConflict(
                    f"Request `{request_id}` was answered: {outcome}.",
                    details={"outcome": outcome},
                )
            raise ClientProtocolError(
                f"Session `{self.id}` has no request `{request_id}`.",
                dialect=self.row.dialect,
                code=ErrorCode.UNKNOWN_INTERACTION,
            )
        if open_.claimed_by is not None or request_id in self._sealed:
            raise InteractionConflict(
                f"An answer to request `{request_id}` is under way.",
                details={"outcome": "claimed"},
            )
        if not open_.event.answerable:
            raise NotSupported(
                f"Request `{request_id}` is asked elsewhere and cannot be answered here."
            )

    def _accepted(
        self,
        command_id: str,
        command: cmd.AnyCommand,
        by: str,
        face: str,
        details: Mapping[str, Any] | None,
    ) -> list[ev.Event]:
        content = None
        if isinstance(command, cmd.SendMessage | cmd.AnswerInteraction):
            content = command.content
        kind = command.KIND
        said = (command.options or {}).get(SAID_AS_MESSAGE)
        if isinstance(command, cmd.AnswerInteraction) and said is not None:
            # A plain message that answers: a message for those who read, an answer for the backend.
            kind, content = "message", (ev.Text(text=said),)
        fields = command.model_dump(
            mode="json",
            exclude_defaults=True,
            exclude={"type", "content", "policy", "request_id", "sealed"},
        )
        request_id = getattr(command, "request_id", None)
        is_message = isinstance(command, cmd.SendMessage)
        out: list[ev.Event] = [
            ev.InputAccepted(
                thread_id=command.thread_id or ev.MAIN,
                command_id=command_id,
                kind=kind,
                message_id=command_id if kind == "message" else None,
                content=content,
                request_id=request_id,
                policy=command.policy if isinstance(command, cmd.SendMessage) else None,
                name=command.TYPE,
                details={**fields, **(details or {})} or None,
                by=by,
                face=face,
            )
        ]
        if isinstance(command, cmd.AnswerInteraction) and command.sealed is None:
            out.append(
                ev.InteractionAnswered(
                    thread_id=self.state.interactions[command.request_id].event.thread_id,
                    request_id=command.request_id,
                    command_id=command_id,
                    by=by,
                )
            )
        elif is_message and self.state.interactions and self._waits(command):
            # The agent took an input and still waits: the pause is said again (law 6).
            turn = self.state.thread(ev.MAIN).turn
            if turn is not None and turn.paused_on == "input":
                out.append(
                    ev.TurnPaused(
                        thread_id=ev.MAIN,
                        turn_id=turn.turn_id,
                        on="input",
                        request_ids=self.state.waiting_on(ev.MAIN),
                        synthetic=True,
                    )
                )
        return out

    def _apply_local(self, command_id: str, command: cmd.AnyCommand) -> list[ev.Event]:
        """Return the events of a command that is kept here and never reaches the backend."""
        out: list[ev.Event] = [
            ev.InputSettled(
                thread_id=ev.MAIN, command_id=command_id, outcome="taken", synthetic=True
            )
        ]
        match command:
            case cmd.Reset():
                out.append(ev.SessionEnded(thread_id=ev.MAIN, outcome="completed", synthetic=True))
            case cmd.Archive():
                out.append(
                    ev.SessionUpdated(
                        thread_id=ev.MAIN, archived_at=self._clock.now(), synthetic=True
                    )
                )
            case cmd.UpdateSession():
                out.append(
                    ev.SessionUpdated(
                        thread_id=ev.MAIN,
                        title=command.title,
                        metadata=command.metadata,
                        agent=command.agent,
                        synthetic=True,
                    )
                )
            case cmd.Delete():
                out.append(ev.SessionEnded(thread_id=ev.MAIN, outcome="deleted", synthetic=True))
            case _:
                raise NotSupported(f"`{command.TYPE}` cannot be kept here.")
        return out

    # Sending.

    def _go_on(self) -> None:
        """Do what is due: send the next message, or open the backend's stream."""
        if self.closed or self.state.ended is not None:
            return
        if self._queue and self._may_send():
            command_id, command = self._take_next()
            self._start(self._send(command_id, command), f"send {command_id}")
        for call in self._codec.take_calls():
            self._start(self._run_step(call), call.name)
        for call in self._codec.streams():
            if call.thread_id not in self._streams:
                task = self._start(self._follow(call.thread_id), f"follow {call.thread_id}")
                self._keep_stream(call.thread_id, task)
        self._alarm()

    def _may_send(self) -> bool:
        """Say whether the next message may go to the backend."""
        if self.draining or self._sending or self._owed:
            return False
        return not self.state.busy or self._withdraws_now()

    def _take_next(self) -> tuple[str, cmd.AnyCommand]:
        command_id, command = self._queue.pop(0)
        self._sending[command_id] = getattr(command, "policy", "")
        return command_id, command

    def _withdraws_now(self) -> bool:
        """Say whether the next message withdraws what is asked, and waited only for the fate of one
        before it."""
        command = self._queue[0][1]
        return getattr(command, "policy", None) == "withdraw" and not self._waits(command)

    def _keep_stream(self, thread_id: str, task: asyncio.Task[None]) -> None:
        """Let a task be the one that reads a thread. The body of the turn before may not be over,
        or only just asked for: what it would still say is of a turn that has ended."""
        before = self._streams.get(thread_id)
        self._streams[thread_id] = task
        if before is not None and before is not task:
            before.cancel()

        def over(task: asyncio.Task[None]) -> None:
            if self._streams.get(thread_id) is task:
                del self._streams[thread_id]
            if not task.cancelled():
                self._go_on()

        task.add_done_callback(over)

    async def _send(self, command_id: str, command: cmd.AnyCommand) -> None:
        """Carry one accepted command to the backend, at most once."""
        self._on_its_way.add(command_id)
        blobs = await self._blobs(command)
        try:
            call = self._codec.submit(command_id, command, blobs)
        except NotSupported as error:
            self._from_backend([_refused(command_id, error)])
            return
        row = self._outbox.get(command_id)
        if row is not None:
            sent = _moved(row, "sent", self._clock.now())
            self._outbox[command_id] = sent
            stored = self._emit([], commands=[sent])
            if stored is not None:
                await stored
        await self._carry(command_id, command, call)
        if isinstance(command, cmd.AnswerInteraction) and command.sealed is not None:
            self._sealed.discard(command.request_id)

    def _carry(
        self, command_id: str, command: cmd.AnyCommand, call: Call
    ) -> Coroutine[Any, Any, None]:
        """Return what does the call of a command that is stored as sent; a stream, which may last,
        does not keep the command."""
        if call.stream:
            return self._run_turn(call)
        return self._run_call(call, command_id, command)

    async def _run_turn(self, call: Call) -> None:
        """Do a stream call, and follow what it begins."""
        task = asyncio.current_task()
        assert task is not None
        self._keep_stream(call.thread_id, task)
        broken = await self._run_stream(call)
        await self._follow(call.thread_id, because=broken)

    async def _blobs(self, command: cmd.AnyCommand) -> dict[str, bytes]:
        blobs: dict[str, bytes] = {}
        for name in _blob_names(command):
            data = await self._journal.blob(name)
            if data is not None:
                blobs[name] = data
        return blobs

    async def _run_call(self, call: Call, command_id: str, command: cmd.AnyCommand) -> None:
        try:
            response = await self._upstream.call(call)
        except UpstreamError as error:
            if command_id not in self.state.inputs:
                # The backend's stream was faster than its answer, and has told what came of it.
                self._go_on()
                return
            if _sent(error) and (look := self._codec.recover(command_id, command)) is not None:
                await self._look_up(look, command_id)
                return
            now = self._time()
            self._from_backend(self._codec.failed(call, error, sent=_sent(error), now=now))
        else:
            self._from_backend(self._codec.respond(call, response, self._time()))
        # The answer may be a step only, which says nothing yet and asks for the next one.
        self._go_on()

    async def _look_up(self, call: Call, command_id: str) -> None:
        """Ask the backend what became of a command."""
        backoff = self._backoff()
        for attempt in range(RECOVER_ATTEMPTS):
            with contextlib.suppress(UpstreamError):
                response = await self._upstream.call(call)
                if response.status < 500 or attempt == RECOVER_ATTEMPTS - 1:
                    self._from_backend(self._codec.respond(call, response, self._time()))
                    self._go_on()
                    return
            await self._clock.sleep(backoff.next_wait(self._time()) / 1000)
        error = UpstreamUnavailable("The backend gives no evidence of the command.", sent=True)
        self._from_backend(self._codec.failed(call, error, sent=True, now=self._time()))
        self._go_on()

    # Reading.

    def _backoff(self) -> Backoff:
        return Backoff(self._ids.fraction)

    async def _run_step(self, call: Call) -> None:
        """Do a call that the codec asked for by itself."""
        if call.stream:
            await self._run_stream(call)
            return
        row = self._outbox.get(call.command_id) if call.command_id is not None else None
        if row is not None:
            # A later step of a command: what the step before brought, a session's id above all, is
            # stored before this one is sent, and what may have been sent is looked up as any other.
            stored = self._emit([], commands=[row])
            if stored is not None:
                await stored
            value: Any = parse_json(row.body)
            await self._run_call(call, row.command_id, cmd.decode_command(value))
            return
        try:
            response = await self._upstream.call(call)
        except UpstreamError as error:
            now = self._time()
            self._from_backend(self._codec.failed(call, error, sent=_sent(error), now=now))
        else:
            self._from_backend(self._codec.respond(call, response, self._time()))
        self._go_on()

    def _wanted(self, thread_id: str) -> Call | None:
        return next((c for c in self._codec.streams() if c.thread_id == thread_id), None)

    async def _follow(self, thread_id: str, *, because: UpstreamError | None = None) -> None:
        """Keep a stream of the backend open as long as the codec wants it, within its patience.

        `because` is what broke it before.
        """
        backoff = self._backoff()
        doubt_since, self._doubt_since = self._doubt_since, None
        if self._name_stored is not None:
            # A crash must not forget a session of whose turn the backend was asked already.
            await self._name_stored
            self._name_stored = None
        while not self.closed and (call := self._wanted(thread_id)) is not None:
            before, opened_at = self._codec.position, self._time()
            heard = (self._codec.frames, self._seq)
            error = await self._run_stream(call)
            if self._wanted(thread_id) is None:
                return
            now = self._time()
            because = error or because
            # A lease that ended is no fault: the dialect expects its reader back soon.
            leased = error is None and now - opened_at >= LEASE_MS
            # Whether an attempt changed the codec's own notes is no news from the backend.
            news = (self._codec.frames, self._seq) != heard
            if leased or (news and self._codec.position != before):
                because = doubt_since = None
                backoff.reset()
            else:
                if error is None and doubt_since is not None:
                    backoff.since = doubt_since
                if backoff.exhausted(now, self._patience or self._codec.patience):
                    give_up = because or UpstreamUnavailable(
                        "The backend's stream ends without anything new.", sent=True
                    )
                    self._from_backend(self._codec.give_up(give_up, now, thread_id=thread_id))
                    return
            await self._clock.sleep(backoff.next_wait(now) / 1000)

    async def _run_stream(self, call: Call) -> UpstreamError | None:
        """Do one stream call from its head to its end; return why it could not be had or broke."""
        codec = self._codec
        opened = False
        try:
            async with self._upstream.stream(call, codec.framing) as answer:
                if isinstance(answer, Response):
                    self._from_backend(codec.respond(call, answer, self._time()))
                    return UpstreamUnavailable(
                        f"The backend answered {answer.status} where a stream was asked for.",
                        sent=True,
                    )
                opened = True
                self._from_backend(codec.opened(call, answer.head, self._time()))
                # What waited for the stream may go now.
                self._go_on()
                await self._read(call, answer)
        except UpstreamError as error:
            now = self._time()
            if opened:
                self._from_backend(codec.closed(call, CloseReason.LOST, now))
            else:
                self._from_backend(codec.failed(call, error, sent=_sent(error), now=now))
            return error
        self._from_backend(codec.closed(call, CloseReason.ENDED, self._time()))
        return None

    async def _read(self, call: Call, stream: Stream) -> None:
        def take(frames: Frames) -> Work | None:
            if len(frames) > SLICE_FRAMES or self._journal.backlog > BACKLOG_BYTES:
                return self._take_slowly(call, frames)
            if frames:
                self._take(call, frames)
            return None

        await stream.read(take)
        if stream.tail:
            now = self._time()
            reason = "the body ended in the middle of a frame"
            self._from_backend(self._codec.garbage(call, stream.tail, reason, now))

    async def _take_slowly(self, call: Call, frames: Frames) -> None:
        """Take many frames, or some while the disk is behind, without holding up everybody
        else."""
        for start in range(0, len(frames), SLICE_FRAMES):
            self._take(call, frames[start : start + SLICE_FRAMES])
            await asyncio.sleep(0)
        while self._journal.backlog > BACKLOG_BYTES:
            await self._clock.sleep(0.005)

    def _take(self, call: Call, frames: Frames) -> None:
        """Decode some frames and hand on what they mean, as one write."""
        if self.closed:
            return
        codec = self._codec
        at, now = self._clock.now(), self._time()
        raw: list[ev.Event] = []
        kept: list[bytes] = []
        first = number = codec.frames
        for frame in frames:
            if isinstance(frame, FrameTooLarge):
                raw += codec.garbage(call, frame.offending, str(frame), now)
                continue
            raw += codec.feed(call, frame, now)
            if number != (number := codec.frames):
                kept.append(_source(frame))
        if self._keep_frames and kept:
            self._journal.add_frames(self.row.key, self.leg.number, first + 1, kept, at)
        if raw:
            self._from_backend(raw, at)
        elif codec.wake_at is not None:
            self._alarm()

    def _from_backend(self, raw: Sequence[ev.Event], at: int | None = None) -> None:
        if not raw or self.closed:
            return
        for event in raw:
            if event.TYPE not in _DELTAS:
                self._emit(self._with_receipts(raw), upstream=True, at=at)
                self._go_on()
                return
        self._emit(raw, upstream=True, at=at)

    def _with_receipts(self, raw: Sequence[ev.Event]) -> Sequence[ev.Event]:
        """Add the receipt of a message that answered an interaction: no backend echoes it as a
        message."""
        if not any(isinstance(event, ev.InputSettled) for event in raw):
            return raw
        out: list[ev.Event] = []
        for event in raw:
            out.append(event)
            if isinstance(event, ev.InputSettled) and event.outcome == "taken":
                out += self._receipt(event.command_id)
        return out

    def _receipt(self, command_id: str) -> list[ev.Event]:
        row = self._outbox.get(command_id)
        if row is None:
            return []
        value: Any = parse_json(row.body)
        said = (value.get("options") or {}).get(SAID_AS_MESSAGE)
        if value["type"] != "answer" or said is None:
            return []
        return [
            ev.MessageReceived(
                thread_id=ev.MAIN,
                message_id=command_id,
                content=(ev.Text(text=said),),
                command_id=command_id,
                synthetic=True,
            )
        ]


def _blob_names(command: cmd.AnyCommand) -> set[str]:
    """Return the hashes of the files that a command carries."""
    return {
        block.ref.sha256
        for block in getattr(command, "content", None) or ()
        if isinstance(block, ev.File) and isinstance(block.ref, ev.Blob)
    }


def _check_batch(commands: Sequence[cmd.AnyCommand]) -> None:
    """Refuse a batch that answers one interaction twice: only one of the answers could win."""
    answered = [c.request_id for c in commands if isinstance(c, cmd.AnswerInteraction)]
    twice = next((one for at, one in enumerate(answered) if one in answered[:at]), None)
    if twice is not None:
        raise InteractionConflict(
            f"Request `{twice}` is answered twice in one batch.", details={"outcome": "claimed"}
        )


def _request(
    asked: Asked | None, request_id: str, commands: Iterable[cmd.AnyCommand | None]
) -> dict[str, Any]:
    """Return what is stored of a request with its commands."""
    if asked is None:
        return {}
    sealed = any(getattr(command, "sealed", None) is not None for command in commands)
    return {REQUEST: identity(asked, request_id, sealed=sealed)}


def _local(command: cmd.AnyCommand, codec: ClientCodec) -> bool:
    """Say whether a command is kept here because the backend's dialect has nothing for it."""
    if not isinstance(command, cmd.Reset | cmd.Archive | cmd.UpdateSession | cmd.Delete):
        return False
    ability = codec.abilities[command.TYPE]
    return ability.support is Support.EMULATED and ability.local


def _moved(row: CommandRow, status: CommandStatus, now: int) -> CommandRow:
    return CommandRow(row.session, row.number, row.command_id, status, row.body, now)


def _sent(error: UpstreamError) -> bool:
    if isinstance(error, UpstreamUnavailable):
        return error.sent
    return isinstance(error, UpstreamTimeout)


def _refused(command_id: str, error: DragomanError) -> ev.Event:
    return ev.InputSettled(
        thread_id=ev.MAIN,
        command_id=command_id,
        outcome="refused",
        reason=error.message,
        error=ev.ErrorInfo(code=str(error.code), message=error.message),
        synthetic=True,
    )


def _unknown(command_id: str) -> ev.Event:
    return ev.InputSettled(
        thread_id=ev.MAIN,
        command_id=command_id,
        outcome="unknown",
        reason="The proxy stopped while the command was on its way; the backend has no record.",
        synthetic=True,
    )


def _source(frame: SseFrame | bytes) -> bytes:
    if isinstance(frame, bytes):
        return frame
    return b"event: %b\ndata: %b" % (frame.event.encode(), frame.data)
