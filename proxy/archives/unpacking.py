"""Takes a session of an archive into a journal: all of it or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal

from adapters.model.events import Entry
from adapters.model.state import LogState
from adapters.model.stored import StoredByNewer
from adapters.offline.moves import HandoverCodec
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.archives.checks import check_entry
from proxy.archives.form import LINE_MOST, ArchiveError, Foot, Piece, SessionHead, Unpacker
from proxy.archives.packing import under_way
from proxy.base.errors import UNREADABLE, JournalError, NameTaken, SessionNotFound
from proxy.base.rows import Arrival, BackendBinding, Chunk, SessionRow
from proxy.config.settings import LOCAL, BackendSettings, Settings
from proxy.fanout.hub import STEP_ENTRIES
from proxy.journal.base import OF_THE_NEWEST, Journal


@dataclasses.dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be other here than where the archive comes from: who owns its sessions, and what
    their backends are called. With `dry_run` all is checked, and nothing stored."""

    owner: str | None = None
    backends: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dry_run: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ImportResult:
    """What became of a session: `already` means that it was here before."""

    id: str
    status: Literal["imported", "already", "checked"]
    owner: str
    route: str
    backend: str
    entries: int
    bytes: int


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield lines, however they come in pieces; the last one may have no line feed."""
    rest = bytearray()
    async for piece in pieces:
        *lines, last = piece.split(b"\n")
        for line in lines:
            rest += line
            rest += b"\n"
            yield bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > LINE_MOST:
            break
    if rest:
        yield bytes(rest)


async def unpack(
    journal: Journal, settings: Settings, lines: AsyncIterator[bytes], wishes: Wishes
) -> ImportResult:
    """Take the one session that lines have; durable on return. Where anything is wrong, nothing of
    it stays.

    Raises:
        ArchiveError: the lines are damaged, or not all of them came.
        DragomanError: the session does not fit here; the text says why.
        JournalError: it could not be stored.
    """
    unpacker, arriving = Unpacker(), None
    try:
        async for line in lines:
            part = unpacker.take(line)
            if isinstance(part, SessionHead):
                if arriving is not None:
                    raise ArchiveError(unpacker.line, "a second session begins here")
                arriving = _IncomingSession(journal, settings, part, wishes)
                await arriving.check()
            elif arriving is not None and not isinstance(part, Foot):
                await arriving.take(part, unpacker.line)
        unpacker.close()
        assert arriving is not None
        return await arriving.end(unpacker.line)
    except BaseException:
        if arriving is not None:
            await arriving.give_up()
        raise


class _IncomingSession:
    """One session on its way into the journal."""

    def __init__(
        self, journal: Journal, settings: Settings, head: SessionHead, wishes: Wishes
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._head = head
        self._wishes = wishes
        renamed = [
            dataclasses.replace(leg, backend=wishes.backends.get(leg.backend, leg.backend))
            for leg in head.legs
        ]
        self._key = 0
        self._row = dataclasses.replace(head.row, owner=wishes.owner or head.row.owner)
        self._legs: Sequence[BackendBinding] = renamed
        self._state = LogState()
        self._already = False
        self._lines: list[bytes] = []
        self._size = 0
        self._chunks: list[Chunk] = []
        self._waiting = 0
        self._first = 1
        self._file = bytearray()
        self._blobs: list[str] = []

    # What can be said before the entries come.

    async def check(self) -> None:
        """Check that the session fits here.

        Raises:
            DragomanError: it does not.
        """
        self._already = await self._is_here()
        if self._already:
            return
        self._check_owner_and_route()
        await asyncio.to_thread(self._import_encoders)
        self._check_backends()
        await self._check_names()
        if not self._wishes.dry_run:
            self._key = self._journal.new_key()

    async def _is_here(self) -> bool:
        row = self._row
        try:
            here = await self._journal.session(row.id)
        except SessionNotFound:
            return False
        if here.state in ("deleted", "expired"):
            raise _refused(f"Session `{row.id}` was here and is {here.state}; its id stays taken.")
        digest, left = hashlib.sha256(), self._head.entries
        async for chunk in self._journal.scan(here.key):
            lines = chunk.body.splitlines(keepends=True)[:left]
            digest.update(b"".join(lines))
            left -= len(lines)
            await asyncio.sleep(0)
            if not left:
                break
        if left or digest.hexdigest() != self._head.digest:
            raise _refused(f"There is another session `{row.id}` here.")
        if here.last_seq != self._head.entries:
            raise _refused(f"Session `{row.id}` is here already, and has gone on since.")
        return True

    def _import_encoders(self) -> None:
        for shown in self._head.codecs:
            if (known := DIALECTS.get(shown.dialect)) is not None:
                known.load("encoder")

    def _check_owner_and_route(self) -> None:
        settings, row = self._settings, self._row
        owners = [key.name for key in settings.keys] or [LOCAL]
        if row.owner not in owners:
            raise _refused(
                f"Session `{row.id}` belongs to key `{row.owner}`, which is not configured here: "
                f"add its [[keys]], or name another owner with --owner ({', '.join(owners)})."
            )
        if settings.route(row.route) is None:
            raise _refused(
                f"Session `{row.id}` is on route `{row.route}`, which is not configured here: add "
                f'[[routes]] with name = "{row.route}".'
            )

    def _check_backends(self) -> None:
        row, was, last = self._row, self._head.legs[-1], self._legs[-1]
        backend = self._settings.backend(last.backend)
        if backend is None:
            raise _refused(
                f"Session `{row.id}` is at backend `{last.backend}`, which is not configured here: "
                f"add its [[backends]], or say how it is called here with "
                f"--backend {was.backend}=NAME."
            )
        # It may go back to an earlier one, if that is here.
        for was, leg in zip(self._head.legs, self._legs, strict=True):
            dialect, here = self._head.dialects[was.backend], self._settings.backend(leg.backend)
            if here is not None and here.dialect != dialect:
                raise _refused(
                    f"Session `{row.id}` is or was at a backend of dialect `{dialect}`, and "
                    f"`{here.name}` is of dialect `{here.dialect}` here: say which one is meant "
                    f"with --backend {was.backend}=NAME."
                )
        self._check_versions(backend, last)

    def _check_versions(self, backend: BackendSettings, leg: BackendBinding) -> None:
        """Check that this release can read what the other one has stored."""
        row, make = self._row, DIALECTS[backend.dialect].client
        if make is None:
            raise _refused(f"Backend `{backend.name}` cannot be driven yet.")
        options = {
            **backend.settings.model_dump(exclude_none=True),
            **backend.create.model_dump(exclude_none=True),
            "task_id": leg.native_id or row.id,
        }
        try:
            codec = make(options)
            (HandoverCodec(codec) if leg.number else codec).restore(leg.state, leg.position)
        except UNREADABLE as error:
            raise _refused(
                f"The state of session `{row.id}` at its backend cannot be read: {_said(error)}."
            ) from error
        for shown in self._head.codecs:
            dialect = DIALECTS.get(shown.dialect)
            newest = None if dialect is None else dialect.encoder
            known = dialect is not None and shown.version in dialect.older
            if not known and (newest is None or shown.version != newest.version):
                raise _refused(
                    f"Session `{row.id}` is shown by version {shown.version} of "
                    f"`{shown.dialect}`, which this Dragoman does not know: run a later release."
                )

    async def _check_names(self) -> None:
        row = self._row
        for kind, name in self._head.aliases:
            if kind in OF_THE_NEWEST:
                continue
            found = await self._journal.resolve(
                owner=row.owner, route=row.route, kind=kind, name=name
            )
            if found is not None:
                raise _refused(
                    f"Session `{row.id}` has the {kind} `{name}`, which is that of session "
                    f"`{found}` here."
                )
        for leg in self._legs:
            known = leg.native_id
            if known is not None and await self._journal.is_named(leg.backend, known):
                raise _refused(
                    f"Session `{row.id}` is `{known}` at backend `{leg.backend}`, which is another "
                    "session's here already."
                )

    # Its lines.

    async def take(self, part: bytes | Piece, line: int) -> None:
        """Take an entry or a piece of a file.

        Raises:
            ArchiveError: the entry may not come here.
            JournalError: it could not be stored.
        """
        if self._already:
            return
        if isinstance(part, Piece):
            await self._take_piece(part, line)
            return
        try:
            entry = Entry.decode(part, session_id=self._row.id)
            if entry.session_id != self._row.id:
                raise ArchiveError(line, "it is an entry of another session")
            check_entry(entry)
            self._state.apply_entry(entry)
        except UNREADABLE as error:
            raise ArchiveError(line, f"the entry is damaged: {_said(error)}") from error
        self._lines.append(part)
        self._size += len(part)
        # A row of the journal is not larger: who reads from a cursor on reads a whole row.
        if self._size >= 32 * 1024 or len(self._lines) >= 32:
            self._close_row()
        # So much is stored in one transaction.
        if self._waiting >= 1024 * 1024:
            await self._stage()
        if not entry.seq % STEP_ENTRIES:
            await asyncio.sleep(0)

    def _close_row(self) -> None:
        if self._lines:
            self._chunks.append(Chunk(self._first, len(self._lines), b"".join(self._lines)))
            self._first += len(self._lines)
            self._waiting += self._size
        self._lines, self._size = [], 0

    async def _stage(self) -> None:
        chunks, self._chunks, self._waiting = self._chunks, [], 0
        if chunks and not self._wishes.dry_run:
            await self._journal.stage(self._key, chunks)

    async def _take_piece(self, piece: Piece, line: int) -> None:
        self._file += piece.data
        if not piece.last:
            return
        data, self._file = bytes(self._file), bytearray()
        if not self._wishes.dry_run:
            self._blobs.append(await self._journal.put_blob(data))

    # Its end.

    async def end(self, line: int) -> ImportResult:
        """Make the session; durable on return.

        Raises:
            ArchiveError: something is under way in it.
            JournalError: it could not be stored, or a name was taken meanwhile.
        """
        head, leg = self._head, self._legs[-1]
        size = head.bytes + sum(size for _, size in head.blobs)
        status: Literal["imported", "already", "checked"] = "already"
        if not self._already:
            state = self._state
            status = "checked"
            why = under_way(head.row, state, ())
            if why is None and state.ended == "deleted":
                why = "it is deleted"
            if why is not None:
                raise ArchiveError(line, f"session `{self._row.id}` is not at rest: {why}")
            self._close_row()
            await self._stage()
            if not self._wishes.dry_run:
                status = "imported"
                await self._admit(size)
        return ImportResult(
            head.row.id, status, self._row.owner, self._row.route, leg.backend, head.entries, size
        )

    async def _admit(self, size: int) -> None:
        row: SessionRow = dataclasses.replace(
            self._row,
            key=self._key,
            state="idle" if self._state.ended is None else "ended",
            bytes=size,
        )
        legs = [dataclasses.replace(leg, session=self._key) for leg in self._legs]
        blobs, self._blobs = self._blobs, []
        arrival = Arrival(row, legs, self._head.aliases, self._head.codecs, blobs)
        try:
            await self._journal.admit(arrival)
        except BaseException as error:
            with contextlib.suppress(JournalError):
                await self._journal.drop_blobs(blobs, handed_over=True)
            if isinstance(error, NameTaken):
                # Since it was looked for.
                raise _refused(f"Session `{row.id}`: {error.whole}.") from error
            raise

    async def give_up(self) -> None:
        """Let nothing stay of it. Where that cannot be, the next start sees to it."""
        with contextlib.suppress(JournalError):
            if self._blobs:
                await self._journal.drop_blobs(self._blobs)
        with contextlib.suppress(JournalError):
            if self._key:
                await self._journal.unstage(self._key)


def _refused(message: str) -> DragomanError:
    return DragomanError(message, code=ErrorCode.NOT_SUPPORTED)


def _said(error: Exception) -> str:
    """Return what is wrong, without what the archive has in it."""
    if isinstance(error, StoredByNewer):
        return error.whole
    return str(error) if isinstance(error, ValueError) else type(error).__name__
