"""The contract of the journal: the durable log of canonical events and what belongs to it.

One writer, group commit: `submit` hands over a `Write` and returns at once; when the transaction
that holds it is on disk, `done(None)` is called in the event loop, in the order of submission. A
write is all or nothing. When it could not be stored `done` gets a `JournalError`, and nothing of
that write was stored. Nobody may publish an event before `done(None)`.

What is written and read are the values of `proxy.base.rows`.

Why one module: the interface of a journal has a method for each question and each change.
"""

from __future__ import annotations

import abc
import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, Protocol

from proxy.base.errors import JournalError
from proxy.base.rows import (
    AliasKind,
    Arrival,
    BackendBinding,
    BackendRow,
    Chunk,
    CodecRow,
    CommandRow,
    CommandStatus,
    NewSession,
    NodeRow,
    SessionRow,
    ShareRow,
    StoredSnapshot,
)

OF_WORDS = (AliasKind.REQUEST, AliasKind.LOST, AliasKind.REPEATED)
"""The kinds of alias that tell something of what was said, a hash of it, and go with a session.
Names that somebody gave it stay, so that nobody finds them free."""

WINDOW_MS = 2.0
"""The least time between the begins of two commits; `docs/performance.md` has what others cost."""

NAMES = (AliasKind.TASK, AliasKind.THREAD, AliasKind.OPERATION)
"""The kinds of alias that people know a session by."""

MINTED = "dgs_"
"""What the ids of sessions begin with."""

SHORTEST = 4
"""Fewer characters of an id, without what all begin with, name no session."""

OF_THE_NEWEST = (AliasKind.REQUEST, AliasKind.THREAD)
"""The kinds of alias that the newest session takes: one that arrives leaves them where they are."""


@dataclasses.dataclass(slots=True)
class Write:
    """What one transaction must store for one session, all or nothing. Every part is optional.

    `body` holds `count` lines, each ended by a line feed, seq `first` and on. `position` and
    `leg_state` are the client codec's after these events. `commands` are inserted or moved on in
    the outbox. `aliases` are (kind, name) pairs of this session in its owner and route, `takes`
    those that it takes from anybody who has them. The first write of a session makes it: that has a
    `new` one. One that moves it to another backend has the `new_leg`, which is the `leg` of all
    that is in it.
    """

    session: int
    first: int = 0
    count: int = 0
    body: bytes = b""
    position: bytes | None = None
    leg: int = 0
    leg_state: bytes | None = None
    native_id: str | None = None
    commands: Sequence[CommandRow] = ()
    aliases: Sequence[tuple[str, str]] = ()
    takes: Sequence[tuple[str, str]] = ()
    state: Literal["idle", "running", "paused", "ended", "deleted"] | None = None
    title: str | None = None
    archived_at: int | None = None
    outcome: str | None = None
    blobs: Sequence[str] = ()
    at: int = 0
    new: NewSession | None = None
    new_leg: BackendBinding | None = None
    done: Callable[[JournalError | None], None] | None = None
    size: int = dataclasses.field(default=0, init=False)
    """Bytes that wait for the disk: the events, and the codec's state with them."""

    def check(self) -> None:
        """Measure it, and refuse a body that is not `count` lines: chunks are joined without
        looking into them.

        Raises:
            ValueError: it is not.
        """
        self.size = len(self.body) + len(self.leg_state or b"")
        if self.body.count(b"\n") != self.count or (self.body and self.body[-1] != 0x0A):
            raise ValueError(f"a write of {self.count} entries needs as many lines, each ended")


class SharedNode(Protocol):
    """This process among those that share the journal: its `number`, a hash of its
    `configuration`, which the others learn a moment later, and a clock that they have in common."""

    number: int
    configuration: str

    def time(self) -> float:
        """Return Unix seconds by the common clock."""

    @property
    def leased(self) -> bool:
        """Say whether nobody else can have taken this process's place yet."""


class Journal(abc.ABC):
    """A durable log. Opened with `open`, closed with `aclose`; both belong to one event loop.

    `shared` is this process among those that share the journal, None where it shares it with
    nobody.
    """

    shared: SharedNode | None = None

    @abc.abstractmethod
    async def open(self) -> None:
        """Open or make the store and bring its schema up to date.

        Raises:
            JournalUnavailable: it cannot be opened or written.
            JournalCorrupt: it is damaged or from a newer version.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Store what was submitted, then close."""

    @abc.abstractmethod
    def when_failed(self, tell: Callable[[JournalError], None]) -> None:
        """Call `tell` once nothing can be stored any more until the next start, at once where it
        is so already: before anybody hears of what was not stored, for it may be there after a
        start."""

    @abc.abstractmethod
    def new_key(self) -> int:
        """Return the key of a session to be made: no other session has it."""

    async def append(self, write: Write) -> None:
        """Store a write; durable on return.

        Raises:
            JournalError: it was not stored.
        """
        stored = asyncio.get_running_loop().create_future()

        def done(error: JournalError | None) -> None:
            if stored.done():
                return
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        write.done = done
        self.submit(write)
        await stored

    async def create_session(
        self,
        *,
        id: str,
        owner: str,
        route: str,
        dialect: str,
        backend: str,
        secret: bytes,
        at: int,
        body: bytes,
        aliases: Sequence[tuple[str, str]] = (),
        native_id: str | None = None,
        codec: CodecRow | None = None,
        succeeds: int | None = None,
    ) -> SessionRow:
        """Make a session with its first entry (seq 1, in `body`); durable on return. For the rest
        see `NewSession`.

        Raises:
            NameTaken: the id or an alias is taken.
            JournalUnavailable: it could not be stored.
        """
        row = SessionRow(self.new_key(), id, owner, route, dialect, at, secret, updated_at=at)
        new = NewSession(row, backend, native_id, codec, aliases, succeeds)
        await self.append(Write(row.key, 1, 1, body, at=at, new=new))
        return dataclasses.replace(row, last_seq=1, bytes=len(body))

    @abc.abstractmethod
    def submit(self, write: Write) -> None:
        """Hand over a write; never blocks. `write.done` hears of the outcome, in the order of
        submission.
        """

    @abc.abstractmethod
    async def trouble(self) -> str | None:
        """Return why nothing can be stored now, for the operator; None where it can."""

    @property
    @abc.abstractmethod
    def backlog(self) -> int:
        """Bytes submitted and not yet stored: readers of upstreams pause while it is above their
        limit.
        """

    @property
    @abc.abstractmethod
    def stored(self) -> int:
        """Entries that were stored since the journal was opened."""

    async def claim(self, session: int) -> NodeRow | None:
        """Claim a session for this process, which is the only one to write to it until `let_go`;
        or return the process that has it. Only where processes share the journal is there another.

        Raises:
            JournalUnavailable: it could not be stored.
        """
        return None

    def let_go(self, session: int) -> None:  # noqa: B027 - where nobody shares it that is nothing
        """Let go of a session, once all that was submitted of it is stored; never blocks."""

    async def nodes(self) -> list[NodeRow]:
        """Return the processes that share the journal, as long as their places are not taken.

        Raises:
            JournalUnavailable: it cannot be read now.
        """
        return []

    async def unclaimed(self, limit: int) -> list[str]:
        """Return the public ids of at most `limit` sessions with work that no process has, where
        processes share the journal.

        Raises:
            JournalUnavailable: it cannot be read now.
        """
        return []

    @abc.abstractmethod
    async def session(self, id: str) -> SessionRow:
        """Return the session with this public id, deleted ones included.

        Raises:
            SessionNotFound: there is none.
        """

    @abc.abstractmethod
    async def resolve(self, *, owner: str, route: str, kind: str, name: str) -> str | None:
        """Return the public id that this alias stands for, or None."""

    @abc.abstractmethod
    async def aliases(self, session: int) -> list[tuple[str, str]]:
        """Return the (kind, name) pairs of a session."""

    @abc.abstractmethod
    async def sessions(
        self,
        *,
        owner: str | None = None,
        route: str | None = None,
        backend: str | None = None,
        came_from: str | None = None,
        states: Sequence[str] | None = None,
        failed: bool = False,
        before: int | None = None,
        after: int | None = None,
        named: str | None = None,
        changed: int | None = None,
        limit: int = 100,
    ) -> list[SessionRow]:
        """Return sessions, newest first: those of an owner, a route, those that a backend has now,
        those whose last move was away from a backend, some states, those whose last message
        `failed`, was refused or has an unknown fate, those that people call so, those in which
        something happened at or after the time `changed`, in Unix milliseconds;
        `before` is a key to page on from. With `after`, a key as well, they come oldest first.

        People call a session by its id or the beginning of it, by its title, or by one of `NAMES`.
        """

    @abc.abstractmethod
    async def backends_of(self, sessions: Sequence[int]) -> dict[int, str]:
        """Return the backend that each of these sessions, given by their keys, has now."""

    @abc.abstractmethod
    async def legs(self, session: int) -> list[BackendBinding]:
        """Return the legs of a session, first to last."""

    @abc.abstractmethod
    async def is_named(self, backend: str, name: str) -> bool:
        """Say whether a backend knows a session by this name, those that are gone included, or
        whether it is the public id of one.
        """

    @abc.abstractmethod
    async def known_backends(self) -> list[BackendRow]:
        """Return what was kept of the backends that have sessions which are not gone."""

    @abc.abstractmethod
    async def keep_backends(self, backends: Sequence[BackendRow]) -> None:
        """Keep what backends are, in the place of what was kept under their names; durable on
        return.

        Raises:
            JournalUnavailable: it could not be stored.
        """

    @abc.abstractmethod
    async def shares(self) -> list[ShareRow]:
        """Return the shares of routes that were set at run time, in the order of each route."""

    @abc.abstractmethod
    async def keep_shares(self, route: str, shares: Sequence[ShareRow]) -> None:
        """Keep the shares of a route, in the place of those that were kept, or none; durable on
        return.

        Raises:
            JournalUnavailable: it could not be stored.
        """

    @abc.abstractmethod
    async def commands(
        self, session: int, *, statuses: Sequence[CommandStatus] = ("accepted", "sent")
    ) -> list[CommandRow]:
        """Return a session's commands in these statuses, in the order of acceptance."""

    @abc.abstractmethod
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

        The first chunk may begin before `after + 1`. An empty list means that nothing is stored
        after it.

        Raises:
            CursorExpired: the entries after `after` were pruned.
            JournalUnavailable: it cannot be read now.
        """

    async def scan(
        self, session: int, *, after: int = 0, rows: int | None = None, size: int = 1 << 20
    ) -> AsyncIterator[Chunk]:
        """Yield the chunks after seq `after` up to the end of the log as it is when the end is
        reached.

        `rows` is how many writes the first look reads, for who may need only a few; each look reads
        twice as many as the one before. `size` is about how many bytes a look reads at most.
        """
        while chunks := await self.read(session, after=after, limit_bytes=size, limit_rows=rows):
            for chunk in chunks:
                yield chunk
            after = chunks[-1].first + chunks[-1].count - 1
            rows = None if rows is None else rows * 2

    @abc.abstractmethod
    def add_snapshot(self, session: int, snapshot: StoredSnapshot) -> None:
        """Keep a snapshot; never blocks. Stored soon after, lost in a crash or with a full disk:
        its entries must be stored already.
        """

    @abc.abstractmethod
    async def snapshot(
        self,
        session: int,
        kind: str,
        version: int,
        *,
        cursor: int | None = None,
        seq: int | None = None,
    ) -> StoredSnapshot | None:
        """Return the newest snapshot of a kind and version, or the newest with at most this
        `cursor` or this `seq`; None where there is none.
        """

    @abc.abstractmethod
    async def codecs(self, session: int) -> list[CodecRow]:
        """Return the codecs that are fixed for a session, by dialect."""

    @abc.abstractmethod
    async def fix_codec(self, session: int, codec: CodecRow) -> CodecRow:
        """Fix a dialect's codec for a session, unless it is, and return the one that holds; durable
        on return.

        Raises:
            SessionNotFound: there is no such session.
            SessionClosed: it was deleted.
            JournalUnavailable: it could not be stored.
        """

    @abc.abstractmethod
    def add_frames(
        self, session: int, leg: int, first: int, frames: Sequence[bytes], at: int
    ) -> None:
        """Keep source frames, numbered from `first`; stored in compressed batches soon after, lost
        in a crash at worst.
        """

    @abc.abstractmethod
    async def frames(
        self,
        session: int,
        leg: int,
        *,
        first: int = 0,
        limit: int = 1000,
        limit_bytes: int | None = None,
    ) -> list[tuple[int, bytes]]:
        """Return kept source frames as (number, bytes), from number `first` on: at most `limit`,
        and none more once they have `limit_bytes`."""

    @abc.abstractmethod
    async def put_blob(self, data: bytes) -> str:
        """Store bytes once and return their SHA-256 in hex; durable on return.

        They stay until a session names them, or until `drop_blobs`.
        """

    @abc.abstractmethod
    async def drop_blobs(self, names: Sequence[str], *, handed_over: bool = False) -> None:
        """Erase blobs that were put for a write that is not to come, or that was refused where it
        was handed over; those stay that a session names, or somebody else has put for one."""

    @abc.abstractmethod
    async def blob(self, sha256: str) -> bytes | None:
        """Return the bytes of a blob, or None."""

    @abc.abstractmethod
    async def blobs(self, session: int) -> list[tuple[str, int]]:
        """Return the blobs that a session names, as (SHA-256, size), sorted."""

    @abc.abstractmethod
    async def stage(self, session: int, chunks: Sequence[Chunk]) -> None:
        """Store entries of a session that arrives from another journal, under a new key: nobody
        sees them before `admit`; durable on return. What is never admitted goes with `unstage`, or
        when the journal is opened next.

        Raises:
            JournalUnavailable: they could not be stored.
        """

    @abc.abstractmethod
    async def unstage(self, session: int) -> None:
        """Erase what is staged and not admitted.

        Raises:
            JournalUnavailable: it could not be done; the next start does it.
        """

    @abc.abstractmethod
    async def admit(self, arrival: Arrival) -> None:
        """Make a session of what is staged, all or nothing; durable on return.

        Raises:
            NameTaken: the id or an alias is taken.
            JournalUnavailable: it could not be stored.
        """

    @abc.abstractmethod
    async def delete(self, session: int, *, at: int) -> None:
        """Erase events, frames, commands and snapshots of a session; its id and names stay as a
        tombstone. What was erased is gone as `emptied` says.
        """

    @abc.abstractmethod
    async def emptied(self) -> None:
        """Wait until nothing of what was erased is on the disk, where that does not take too
        long."""

    @abc.abstractmethod
    async def sizes(self, *, owner: str | None = None) -> dict[str, int]:
        """Return about how many bytes the sessions of each backend take, or those of one owner."""

    @abc.abstractmethod
    async def oldest(
        self,
        *,
        before: int | None = None,
        backend: str | None = None,
        owner: str | None = None,
        limit: int = 100,
    ) -> list[tuple[SessionRow, str]]:
        """Return sessions in which nothing is open, with their backends: those whose last event is
        the oldest come first, and only those that had none since `before`.
        """

    @abc.abstractmethod
    async def newest(self) -> int:
        """Return when the last of all that is stored happened, in Unix milliseconds; 0 where there
        is nothing.

        Raises:
            JournalUnavailable: the journal cannot be read now.
        """

    @abc.abstractmethod
    async def expire(self, session: int, *, unless_after: int, at: int) -> bool:
        """Erase a session as `delete` does, but say that it is `expired`; return False where
        something is open in it, or happened after `unless_after`, and leave it as it is. It is gone
        from the disk when `emptied` returns.

        Raises:
            JournalUnavailable: it could not be stored.
        """

    @abc.abstractmethod
    async def prune_frames(self, *, before: int) -> int:
        """Erase source frames older than `before` and return how many batches that were."""
