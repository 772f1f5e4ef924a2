"""One journal's way to a loss of power, and what has to be there afterwards.

Everything follows from a seed: what is written, in which transactions, where processes are killed
or a sync fails before, and where the power goes. What was confirmed, and what a start has read
back, counts as shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import apsw

from proxy.base.errors import JournalError
from proxy.base.rows import StoredSnapshot
from proxy.journal import _writer
from proxy.journal._changes import Transaction
from proxy.journal.base import Write
from proxy.journal.sqlite import SqliteJournal
from tests.journal.conftest import begin, create, joined, line
from tests.journal.disk import Disk, Fault

OPERATIONS = 300
"""Among so many operations of the disk a fault falls: some dozens of transactions."""

NEW = 100
"""So many operations make the file and its tables."""

GROUPS = 60
"""Groups of writes after which a life ends without a fault."""


@dataclasses.dataclass
class Shown:
    """What somebody was shown of a session."""

    key: int
    entries: list[bytes]
    title: str | None = None
    deleting: bool = False


class PowerLoss:
    """One way to a loss of power; `counts` tells what came on it.

    Args:
        seed: what everything follows from.
        folder: an empty one.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self._chance = random.Random(seed)
        self._disk = Disk(seed)
        self._before, self._after = folder / "before", folder / "after"
        self._shown: dict[str, Shown] = {}
        self._failures: list[JournalError] = []
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self) -> None:
        """Go it, and look at what is left; `wrong` gets what must not be."""
        self._before.mkdir()
        self._after.mkdir()
        faults: list[Fault] = self._chance.choices(("kill", "sync"), k=self._chance.randrange(3))
        with self._disk:
            for fault in (*faults, "power"):
                self._disk.restart()
                # Many near the start: there is what the last crash left. A new file takes some.
                most = self._chance.choice((8, 40, OPERATIONS))
                new = 0 if self._shown else self._chance.choice((0, NEW, NEW, NEW))
                self._disk.plan(fault, new + self._chance.randrange(1, most))
                await self._live()
            self._disk.image(self._after)
        self.counts["power losses"] += 1
        await self._check()

    # One life of a process.

    async def _live(self) -> None:
        journal = self._journal(self._before)
        self._failures.clear()
        failed, syncs = self._disk.failed_syncs, 0
        with self._checkpoints_often():
            try:
                await journal.open()
            except JournalError:
                self.counts["faults at the start"] += 1
            else:
                journal.when_failed(self._failures.append)
                # What a start does by itself may come upon the fault meanwhile.
                with self._suppressed_if_gone():
                    await self._read_all(journal)
                for _ in range(GROUPS):
                    if self._disk.gone or self._failures:
                        break
                    await self._step(journal)
                if self._disk.failed_syncs > failed:
                    self.counts["failed syncs"] += 1
                    syncs = self._disk.syncs
                    await self._expect_an_end(journal)
                else:
                    self._disk.cut_power()
                await journal.aclose()
        if syncs and self._disk.syncs > syncs:
            self.wrong.append("a sync was tried again")

    def _journal(self, folder: Path) -> SqliteJournal:
        return SqliteJournal(folder / "journal.db", window_ms=0, index_rows=5)

    @contextlib.contextmanager
    def _checkpoints_often(self) -> Iterator[None]:
        before, _writer.CHECKPOINT_PAGES = _writer.CHECKPOINT_PAGES, 12
        try:
            yield
        finally:
            _writer.CHECKPOINT_PAGES = before

    @contextlib.contextmanager
    def _suppressed_if_gone(self) -> Iterator[None]:
        """Pass over what a process reads that is dead: nobody is shown it."""
        try:
            yield
        except JournalError:
            if not self._disk.gone:
                raise

    async def _read_all(self, journal: SqliteJournal) -> None:
        """Show everything that a start finds; what was shown before must be in it."""
        for row in await journal.sessions(limit=1000):
            deleted = row.state == "deleted"
            found = [] if deleted else joined(await journal.read(row.key, limit_bytes=1 << 30))
            if self._disk.gone:
                return
            shown = self._shown.setdefault(row.id, Shown(row.key, []))
            if not deleted:
                if found[: len(shown.entries)] != shown.entries:
                    self.wrong.append(f"session {row.id} lost what it had before a start")
                shown.entries, shown.title = found, row.title
            else:
                shown.deleting = True

    async def _expect_an_end(self, journal: SqliteJournal) -> None:
        await journal._loop.run_in_executor(None, lambda: None)
        write = Write(1, 1, 1, line(1))
        if not isinstance(await begin(journal, write), JournalError):
            self.wrong.append("a write was taken after a failed sync")
        if not self._failures:
            self.wrong.append("a failed sync ends nothing")

    async def _step(self, journal: SqliteJournal) -> None:
        """Do something, and note it as shown where it is confirmed."""
        kind = self._chance.choices(
            ("create", "append", "delete", "blob", "snapshot", "empty"), (3, 20, 1, 1, 1, 1)
        )[0]
        names = [name for name, shown in self._shown.items() if not shown.deleting]
        with contextlib.suppress(JournalError):
            if kind == "create" or not names:
                name = f"s{len(self._shown) + 1}-{self._disk.life}"
                row = await create(journal, name)
                if not self._disk.gone:
                    self._shown[name] = Shown(row.key, [line(1)])
            elif kind == "append":
                await self._append(journal, names)
            elif kind == "delete" and len(names) > 2:
                shown = self._shown[self._chance.choice(names)]
                # From here on it may be there or not.
                shown.deleting = True
                await journal.delete(shown.key, at=5)
            elif kind == "blob":
                await journal.put_blob(self._chance.randbytes(9000))
            elif kind == "snapshot":
                shown = self._shown[self._chance.choice(names)]
                data = self._chance.randbytes(3000)
                journal.add_snapshot(shown.key, StoredSnapshot("state", 1, 1, 1, data))
                journal.add_frames(shown.key, 0, 0, [data], 1)
                await journal.frames(shown.key, 0)
            elif kind == "empty":
                await journal.emptied()

    async def _append(self, journal: SqliteJournal, names: list[str]) -> None:
        """Submit some writes that go into one transaction."""
        loop = asyncio.get_running_loop()
        begun = asyncio.Event()
        goes_on = asyncio.Event()

        def hold(_: Transaction) -> None:
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(goes_on.wait(), loop).result()

        held = asyncio.ensure_future(journal._job(hold))
        waiting = asyncio.ensure_future(begun.wait())
        await asyncio.wait((held, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        lengths = {name: len(self._shown[name].entries) for name in names}
        writes: list[tuple[str, Write]] = []
        for _ in range(self._chance.randrange(1, 7)):
            name = self._chance.choice(names)
            lengths[name] += 1
            text = f"{self._disk.life}-" + "x" * self._chance.choice((5, 300, 9000))
            body = line(lengths[name], text)
            title = text[:9] if self._chance.random() < 0.3 else None
            writes.append((name, Write(self._shown[name].key, lengths[name], 1, body, title=title)))
        told = [begin(journal, write) for _, write in writes]
        goes_on.set()
        with contextlib.suppress(JournalError):
            await held
        for (name, write), error in zip(writes, await asyncio.gather(*told), strict=True):
            if error is None and not self._disk.gone:
                self._shown[name].entries.append(write.body)
                self._shown[name].title = write.title or self._shown[name].title
                self.counts["confirmed"] += 1

    # Afterwards.

    async def _check(self) -> None:
        path = self._after / "journal.db"
        if not path.exists():
            if self._shown:
                self.wrong.append("the file is gone")
            return
        journal = self._journal(self._after)
        try:
            await journal.open()
        except JournalError as error:
            self.wrong.append(f"it cannot be opened: {error.whole}")
            return
        rows = {row.id: row for row in await journal.sessions(limit=1000)}
        for name, shown in self._shown.items():
            if name not in rows:
                self.wrong.append(f"session {name} is gone")
            elif not shown.deleting:
                try:
                    found = joined(await journal.read(shown.key, limit_bytes=1 << 30))
                except (JournalError, AssertionError) as error:
                    self.wrong.append(f"session {name} cannot be read: {error}")
                    continue
                self._compare(name, shown, found, rows[name].title)
        await journal.aclose()
        connection = apsw.Connection(str(path))
        said = connection.execute("PRAGMA integrity_check").get
        connection.close()
        if said != "ok":
            self.wrong.append(f"the file is damaged: {said}")

    def _compare(self, name: str, shown: Shown, found: list[bytes], title: str | None) -> None:
        """What was shown is there, byte for byte; more may be, if it is whole."""
        if found[: len(shown.entries)] != shown.entries:
            missing = len(shown.entries) - len(found)
            self.wrong.append(f"session {name} lost {max(missing, 0) or 'some'} entries")
        elif len(found) == len(shown.entries) and title != shown.title:
            self.wrong.append(f"session {name} has lost its title")
        for seq, entry in enumerate(found, 1):
            if not entry.startswith(b'{"seq":%d,' % seq) or not entry.endswith(b'"}\n'):
                self.wrong.append(f"session {name} has half an entry: {entry[:40]!r}")


def lose_power(seed: int, folder: Path) -> PowerLoss:
    """Go the way of a seed, and return it."""
    way = PowerLoss(seed, folder)
    asyncio.run(way.run())
    return way
