"""The journal as plain lists: for tests, and to measure what durability costs. Nothing outlives the
object.

Why one room: a journal has a method for each question and each change, most of a few lines.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from proxy import metrics
from proxy.errors import (
    CursorExpired,
    JournalError,
    JournalUnavailable,
    NameTaken,
    SequenceConflict,
    SessionClosed,
    SessionNotFound,
)
from proxy.journal._frames import FRAME_LIMIT, cut_frame
from proxy.journal._fresh import Fresh
from proxy.journal.base import (
    OF_WORDS,
    BackendRow,
    Chunk,
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


@dataclasses.dataclass(slots=True)
class _Session:
    row: SessionRow
    legs: list[LegRow]
    last: int
    at: int
    pruned: int = 0
    erased: bool = False
    # The seq of the first entry of each write, its count and its body. What is kept for each event
    # is tuples of plain values: those the garbage collector does not look at again and again.
    firsts: list[int] = dataclasses.field(default_factory=list)
    bodies: list[tuple[int, bytes]] = dataclasses.field(default_factory=list)
    commands: dict[int, CommandRow] = dataclasses.field(default_factory=dict)
    # (leg, number of the first, time, frames), one for each call.
    frames: list[tuple[int, int, int, tuple[bytes, ...]]] = dataclasses.field(default_factory=list)
    blobs: set[str] = dataclasses.field(default_factory=set)
    # (kind, version) -> cursors, and the snapshot at each.
    snapshots: dict[tuple[str, int], tuple[list[int], list[Snapshot]]] = dataclasses.field(
        default_factory=dict
    )
    codecs: dict[str, CodecRow] = dataclasses.field(default_factory=dict)
    # Positions change with every write and are put into the legs only for who asks.
    positions: dict[int, bytes] = dataclasses.field(default_factory=dict)

    def current_legs(self) -> list[LegRow]:
        return [
            dataclasses.replace(leg, position=self.positions.get(leg.number, leg.position))
            for leg in self.legs
        ]

    def current(self) -> SessionRow:
        return dataclasses.replace(self.row, last_seq=self.last, updated_at=self.at)


class MemoryJournal(Journal):
    """A journal that forgets; `frames` and `frame_limit` as for `SqliteJournal`."""

    def __init__(self, *, frames: bool = True, frame_limit: int = FRAME_LIMIT) -> None:
        self._keep_frames = frames
        self._frame_limit = frame_limit
        self._sessions: dict[int, _Session] = {}
        self._newest = 0
        self._by_id: dict[str, _Session] = {}
        self._aliases: dict[tuple[str, str, str, str], _Session] = {}
        self._backends: dict[str, BackendRow] = {}
        self._blobs: dict[str, bytes] = {}
        self._fresh = Fresh()
        self._stored = 0
        self._is_open = False
        self._loop: asyncio.AbstractEventLoop

    async def open(self) -> None:
        """Begin to take writes; what was stored before `aclose` is still there."""
        self._loop = asyncio.get_running_loop()
        self._is_open = True

    async def aclose(self) -> None:
        """Take no more."""
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise JournalUnavailable("the journal in memory is closed")

    def _find(self, key: int) -> _Session:
        self._check_open()
        session = self._sessions.get(key)
        if session is None:
            raise SessionNotFound(f"there is no session with key {key}")
        return session

    def new_key(self) -> int:
        """Return the key of a session to be made: no other session has it."""
        self._newest += 1
        return self._newest

    def _make(self, new: NewSession, at: int) -> None:
        row = new.row
        names = [(row.owner, row.route, kind, name) for kind, name in new.aliases]
        older = None if new.succeeds is None else self._find(new.succeeds)
        if older is not None and older.row.state == "expired":
            for name in names:
                if self._aliases.get(name) is older:
                    del self._aliases[name]
        if row.id in self._by_id or any(name in self._aliases for name in names):
            raise NameTaken(f"the id or an alias of session `{row.id}` is taken")
        session = _Session(row, [LegRow(row.key, 0, new.backend, new.native_id)], last=0, at=at)
        if new.codec is not None:
            session.codecs[new.codec.dialect] = new.codec
        self._sessions[row.key] = session
        self._by_id[row.id] = session
        names += [(row.owner, row.route, kind, name) for kind, name in new.takes]
        self._aliases.update(dict.fromkeys(names, session))

    def submit(self, write: Write) -> None:
        """Store a write at once; `write.done` hears of it in the event loop's next turn.

        Raises:
            ValueError: `body` is not `count` lines.
        """
        write.check()
        self._fresh.over(write.blobs)
        error: JournalError | None = None
        try:
            self._store(write)
        except JournalError as refused:
            error = refused
            metrics.count_failed_write(error)
        if write.done is not None:
            self._loop.call_soon(write.done, error)

    def _store(self, write: Write) -> None:
        self._check_open()
        if write.new is not None:
            self._make(write.new, write.at)
        session = self._find(write.session)
        if session.erased:
            raise SessionClosed(f"session {write.session} was deleted")
        if write.count and write.first != session.last + 1:
            raise SequenceConflict(
                f"session {write.session}: seq {session.last + 1} is next, not {write.first}"
            )
        self._store_rest(session, write)
        if write.count:
            session.firsts.append(write.first)
            session.bodies.append((write.count, write.body))
            session.last += write.count
            self._stored += write.count
            session.at = max(session.at, write.at)

    def _store_rest(self, session: _Session, write: Write) -> None:
        if write.position is not None and write.leg < len(session.legs):
            session.positions[write.leg] = write.position
        if write.plain:
            return
        names = {
            (session.row.owner, session.row.route, kind, name): session
            for kind, name in write.aliases
        }
        if any(self._aliases.get(name, session) is not session for name in names):
            raise NameTaken("an alias is another session's")
        of_leg: dict[str, Any] = {"state": write.leg_state, "native_id": write.native_id}
        if write.leg >= len(session.legs):
            if any(value is not None for value in of_leg.values()):
                raise SessionNotFound(f"session {write.session} has no leg {write.leg}")
        else:
            leg = session.legs[write.leg]
            session.legs[write.leg] = dataclasses.replace(
                leg, **{name: value for name, value in of_leg.items() if value is not None}
            )
        of = (session.row.owner, session.row.route)
        self._aliases.update(names)
        self._aliases.update({(*of, kind, name): session for kind, name in write.takes})
        of_session = {
            name: value
            for name in ("state", "title", "archived_at")
            if (value := getattr(write, name)) is not None
        }
        if of_session:
            session.row = dataclasses.replace(session.row, **of_session)
            session.at = max(session.at, write.at)
        for command in write.commands:
            session.commands[command.number] = command
        session.blobs.update(write.blobs)

    @property
    def backlog(self) -> int:
        """Nothing ever waits."""
        return 0

    @property
    def stored(self) -> int:
        """Entries stored since the journal was made."""
        return self._stored

    async def session(self, id: str) -> SessionRow:
        """Return the session with this public id, deleted ones included.

        Raises:
            SessionNotFound: there is none.
        """
        self._check_open()
        if id not in self._by_id:
            raise SessionNotFound(f"there is no session `{id}`")
        return self._current(self._by_id[id])

    async def resolve(self, *, owner: str, route: str, kind: str, name: str) -> str | None:
        """Return the public id that this alias stands for, or None."""
        self._check_open()
        session = self._aliases.get((owner, route, kind, name))
        return None if session is None else session.row.id

    async def aliases(self, session: int) -> list[tuple[str, str]]:
        """Return the (kind, name) pairs of a session, sorted."""
        found = self._find(session)
        return sorted(alias[2:] for alias, owner in self._aliases.items() if owner is found)

    async def sessions(
        self,
        *,
        owner: str | None = None,
        route: str | None = None,
        states: Sequence[str] | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[SessionRow]:
        """Return sessions that fit, newest first; `before` is a key to page on from."""
        self._check_open()
        fitting = [
            self._current(session)
            for _, session in sorted(self._sessions.items(), reverse=True)
            if owner in (None, session.row.owner)
            and route in (None, session.row.route)
            and (states is None or session.row.state in states)
            and (before is None or session.row.key < before)
        ]
        return fitting[:limit]

    async def legs(self, session: int) -> list[LegRow]:
        """Return the legs of a session, first to last."""
        return self._find(session).current_legs()

    async def is_named(self, backend: str, name: str) -> bool:
        """Say whether a backend knows a session by this name, or it is the public id of one."""
        self._check_open()
        return name in self._by_id or name in self._native_ids(backend)

    def _native_ids(self, backend: str) -> set[str | None]:
        return {
            leg.native_id
            for session in self._sessions.values()
            for leg in session.legs
            if leg.backend == backend
        }

    async def name_legs(self, backend: str, kind: str | None) -> list[tuple[str, str]]:
        """Give the legs of a backend that have no native id one, and return the public ids of those
        that do not have what was wanted for them, each with that name.
        """
        self._check_open()
        taken = self._native_ids(backend)
        others: list[tuple[str, str]] = []
        for session in sorted(self._sessions.values(), key=lambda one: (one.erased, one.row.key)):
            for at, leg in enumerate(session.legs):
                if leg.backend != backend or leg.native_id is not None:
                    continue
                names = await self.aliases(session.row.key)
                wanted = next((name for of_kind, name in names if of_kind == kind), None)
                name = session.row.id if wanted is None or wanted in taken else wanted
                if wanted not in (None, name):
                    others.append((session.row.id, str(wanted)))
                taken.add(name)
                session.legs[at] = dataclasses.replace(leg, native_id=name)
        return others

    async def known_backends(self) -> list[BackendRow]:
        """Return what was kept of the backends that have sessions which are not gone."""
        self._check_open()
        used = {leg.backend for session in self._alive() for leg in session.legs}
        return [self._backends[name] for name in sorted(self._backends) if name in used]

    def _alive(self) -> list[_Session]:
        return [session for session in self._sessions.values() if not session.erased]

    async def keep_backends(self, backends: Sequence[BackendRow]) -> None:
        """Keep what backends are, in the place of what was kept under their names."""
        self._check_open()
        self._backends.update((backend.name, backend) for backend in backends)

    async def commands(
        self, session: int, *, statuses: Sequence[CommandStatus] = ("accepted", "sent")
    ) -> list[CommandRow]:
        """Return a session's commands in these statuses, in the order of acceptance."""
        commands = self._find(session).commands
        return [commands[n] for n in sorted(commands) if commands[n].status in statuses]

    def add_snapshot(self, session: int, snapshot: Snapshot) -> None:
        """Keep a snapshot."""
        if not self._is_open or (found := self._find(session)).erased:
            return
        kind = (snapshot.kind, snapshot.version)
        cursors, snapshots = found.snapshots.setdefault(kind, ([], []))
        place = bisect.bisect_left(cursors, snapshot.cursor)
        if place < len(cursors) and cursors[place] == snapshot.cursor:
            snapshots[place] = snapshot
        else:
            cursors.insert(place, snapshot.cursor)
            snapshots.insert(place, snapshot)

    async def snapshot(
        self, session: int, kind: str, version: int, *, cursor: int | None = None
    ) -> Snapshot | None:
        """Return the newest snapshot of a kind and version, or the newest with at most this
        `cursor`; None where there is none.
        """
        cursors, snapshots = self._find(session).snapshots.get((kind, version), ([], []))
        place = len(cursors) if cursor is None else bisect.bisect_right(cursors, cursor)
        return snapshots[place - 1] if place else None

    async def codecs(self, session: int) -> list[CodecRow]:
        """Return the codecs that are fixed for a session, by dialect."""
        codecs = self._find(session).codecs
        return [codecs[dialect] for dialect in sorted(codecs)]

    async def fix_codec(self, session: int, codec: CodecRow) -> CodecRow:
        """Fix a dialect's codec for a session, unless it is, and return the one that holds.

        Raises:
            SessionNotFound: there is no such session.
            SessionClosed: it was deleted.
        """
        found = self._find(session)
        if found.erased:
            raise SessionClosed(f"session {session} was deleted")
        return found.codecs.setdefault(codec.dialect, codec)

    async def read(
        self,
        session: int,
        *,
        after: int = 0,
        limit_bytes: int = 1 << 20,
        limit_rows: int | None = None,
    ) -> list[Chunk]:
        """Return consecutive chunks that hold the entries after seq `after`, about `limit_bytes` of
        them in at most `limit_rows` writes.

        Raises:
            SessionNotFound: there is no such session.
            CursorExpired: the session was deleted.
        """
        found = self._find(session)
        if after < found.pruned:
            raise CursorExpired("its entries are no longer kept")
        if after >= found.last:
            return []
        chunks = []
        for place in range(bisect.bisect_right(found.firsts, after + 1) - 1, len(found.firsts)):
            count, body = found.bodies[place]
            chunks.append(Chunk(found.firsts[place], count, body))
            limit_bytes -= len(body)
            if limit_bytes <= 0 or len(chunks) == limit_rows:
                break
        return chunks

    def add_frames(
        self, session: int, leg: int, first: int, frames: Sequence[bytes], at: int
    ) -> None:
        """Keep source frames, numbered from `first`."""
        if not self._keep_frames or not self._is_open or not frames:
            return
        found = self._find(session)
        if not found.erased:
            kept = tuple([cut_frame(frame, self._frame_limit) for frame in frames])
            found.frames.append((leg, first, at, kept))

    async def frames(
        self, session: int, leg: int, *, first: int = 0, limit: int = 1000
    ) -> list[tuple[int, bytes]]:
        """Return kept source frames as (number, bytes), from number `first` on."""
        kept = {
            number: frame
            for of_leg, start, _, frames in self._find(session).frames
            if of_leg == leg
            for number, frame in enumerate(frames, start)
            if number >= first
        }
        return sorted(kept.items())[:limit]

    async def put_blob(self, data: bytes) -> str:
        """Store bytes once and return their SHA-256 in hex."""
        self._check_open()
        sha256 = hashlib.sha256(data).hexdigest()
        self._blobs[sha256] = data
        self._fresh.put(sha256)
        return sha256

    async def drop_blobs(self, names: Sequence[str], *, handed_over: bool = False) -> None:
        """Erase blobs that no session will name."""
        self._check_open()
        if not handed_over:
            self._fresh.over(names)
        self._erase_blobs(names)

    def _erase_blobs(self, names: Iterable[str]) -> None:
        named = {name for session in self._sessions.values() for name in session.blobs}
        for sha256 in set(names) - named - self._fresh.now():
            self._blobs.pop(sha256, None)

    async def blob(self, sha256: str) -> bytes | None:
        """Return the bytes of a blob, or None."""
        self._check_open()
        return self._blobs.get(sha256)

    async def delete(self, session: int, *, at: int) -> None:
        """Erase all of a session but its id, its names and its legs' names.

        Raises:
            SessionNotFound: there is no such session.
        """
        self._erase(session, at, "deleted")

    async def emptied(self) -> None:
        """Return at once: nothing is on a disk."""

    async def expire(self, session: int, *, unless_after: int, at: int) -> bool:
        """Erase a session in which nothing is open or happened after `unless_after`."""
        found = self._find(session)
        if found.erased or found.row.state not in ("idle", "ended") or found.at > unless_after:
            return False
        self._erase(session, at, "expired")
        return True

    async def sizes(self, *, owner: str | None = None) -> dict[str, int]:
        """Return how many bytes the sessions of each backend take, or those of one owner."""
        self._check_open()
        sizes: dict[str, int] = {}
        for session in self._sessions.values():
            if not session.erased and owner in (None, session.row.owner):
                backend = session.legs[-1].backend
                sizes[backend] = sizes.get(backend, 0) + self._size(session)
        return sizes

    def _size(self, session: _Session) -> int:
        events = sum(len(body) for _, body in session.bodies)
        frames = sum(len(frame) for *_, batch in session.frames for frame in batch)
        return events + frames + sum(len(self._blobs.get(name, b"")) for name in session.blobs)

    async def oldest(
        self,
        *,
        before: int | None = None,
        backend: str | None = None,
        owner: str | None = None,
        limit: int = 100,
    ) -> list[tuple[SessionRow, str]]:
        """Return sessions in which nothing is open, the one with the oldest last event first."""
        self._check_open()
        found = [
            (self._current(session), session.legs[-1].backend)
            for session in self._sessions.values()
            if not session.erased
            and session.row.state in ("idle", "ended")
            and (before is None or session.at < before)
            and backend in (None, session.legs[-1].backend)
            and owner in (None, session.row.owner)
        ]
        return sorted(found, key=lambda pair: (pair[0].updated_at, pair[0].key))[:limit]

    def _current(self, session: _Session) -> SessionRow:
        return dataclasses.replace(session.current(), bytes=self._size(session))

    def _erase(self, session: int, at: int, state: Literal["deleted", "expired"]) -> None:
        found = self._find(session)
        if found.erased:
            return
        legs = [dataclasses.replace(leg, state=None, position=None) for leg in found.legs]
        row = dataclasses.replace(found.row, state=state, title=None, secret=b"")
        erased = _Session(
            row, legs, last=found.last, at=max(found.at, at), pruned=found.last, erased=True
        )
        self._sessions[session] = self._by_id[row.id] = erased
        self._erase_blobs(found.blobs)
        for alias, owner in list(self._aliases.items()):
            if owner is found:
                if alias[2] in OF_WORDS:
                    del self._aliases[alias]
                else:
                    self._aliases[alias] = erased

    async def prune_frames(self, *, before: int) -> int:
        """Erase source frames older than `before` and return how many batches that were."""
        self._check_open()
        pruned = 0
        for session in self._sessions.values():
            kept = [batch for batch in session.frames if batch[2] >= before]
            pruned += len(session.frames) - len(kept)
            session.frames = kept
        return pruned
