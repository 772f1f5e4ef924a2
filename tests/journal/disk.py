"""A disk that loses its power, forgets what was not synced, and fails to sync.

`Disk` is the default VFS of SQLite while it is in use. Real files hold what programs read, as the
page cache does; beside them it keeps what is durable of each file, and what was written since. A
fault comes at a chosen operation:

- `kill`: the process is gone, the page cache stays.
- `sync`: the next sync fails. What it was to make durable is durable in part, and as on Linux no
  later sync makes the rest durable.
- `power`: the page cache is gone too. `image` writes what the disk has then: what was synced, and
  any part of the rest, in sectors of 512 bytes, as SQLite's own crash tests have it.

Names are durable with the first sync of a log that was opened to be made: SQLite syncs its folder
then. After a kill or a loss of power nothing that the old process does has an effect.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import apsw

SECTOR = 512

Fault = Literal["kill", "sync", "power"]


@dataclasses.dataclass
class Content:
    """What a file has: for sure, and perhaps. A piece without bytes cuts the file at its place."""

    durable: bytearray = dataclasses.field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = dataclasses.field(default_factory=list)

    def change(self, at: int, data: bytes | None) -> None:
        """Make a piece durable."""
        if data is None:
            del self.durable[at:]
            return
        self.durable.extend(bytes(max(0, at - len(self.durable))))
        self.durable[at : at + len(data)] = data

    def sync(self) -> None:
        """Make everything durable."""
        for at, data in self.unsynced:
            self.change(at, data)
        self.unsynced.clear()

    def lose(self, chance: random.Random) -> None:
        """Make some pieces durable, some in part, and forget the rest."""
        for at, data in self.unsynced:
            fate = chance.choice(("kept", "lost", "torn"))
            if fate == "kept":
                self.change(at, data)
            elif fate == "torn" and data is not None:
                first = SECTOR - at % SECTOR
                cuts = [0, *range(first, len(data), SECTOR), len(data)]
                for start, end in itertools.pairwise(cuts):
                    if chance.random() < 0.5:
                        self.change(at + start, data[start:end])
        self.unsynced.clear()


class Disk(apsw.VFS):
    """The disk of one test.

    `when_gone` is called where a process ends: in the thread that writes.

    Args:
        seed: what is left of what was not synced.
    """

    def __init__(self, seed: int) -> None:
        self._name = f"disk-{seed}"
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._names: dict[str, Content] = {}
        self._durable_names: dict[str, Content] = {}
        self._fault: Fault | None = None
        self._left = 0
        self._of = ""
        self.when_gone: Callable[[], None] | None = None
        self.life = 0
        self.gone = False
        self.failed_syncs = 0
        self.syncs = 0
        super().__init__(self._name, "unix", makedefault=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()
        apsw.set_default_vfs("unix")

    def plan(self, fault: Fault, after: int, *, of: str = "") -> None:
        """Let a fault come at an operation, counted from now; `of` is how the name of the file ends
        whose sync fails."""
        with self._lock:
            self._fault, self._left, self._of = fault, after, of

    def restart(self) -> None:
        """Begin the next process; files that the last one has open stay out of use."""
        self.life += 1
        self.gone = False
        self._fault = None

    def cut_power(self) -> None:
        """Let nothing more happen."""
        with self._lock:
            if not self.gone:
                self._end()

    def _end(self) -> None:
        self.gone = True
        if self.when_gone is not None:
            self.when_gone()

    def image(self, folder: Path) -> None:
        """Write what is durable after a loss of power into a folder."""
        for name in {*self._names, *self._durable_names}:
            old, new = self._durable_names.get(name), self._names.get(name)
            content = self._chance.choice((old, new))
            if content is not None:
                content.lose(self._chance)
                (folder / Path(name).name).write_bytes(content.durable)

    # What SQLite calls.

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        if name is None:
            return apsw.VFSFile("unix", name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        with self._lock:
            if path not in self._names:
                file = Path(path)
                content = self._names[path] = Content()
                if file.exists() and file.stat().st_size:
                    content.durable[:] = file.read_bytes()
                    self._durable_names[path] = content
            return _File(self, path, self._names[path], name, flags)

    def xDelete(self, name: str, sync_folder: bool) -> None:
        with self._lock:
            if self.gone:
                return
            super().xDelete(name, sync_folder)
            self._names.pop(name, None)
            if sync_folder:
                self.sync_names()

    def excepthook(self, *_: object) -> bool:
        """What SQLite does not hear of is nobody's business."""
        return True

    # What files call, with the lock.

    def _step(self) -> Fault | None:
        """Count an operation; return the fault that comes with it."""
        self._left -= 1
        if self._fault is None or self._left > 0:
            return None
        if self._fault != "sync":
            self._end()
        return self._fault

    def write(self, file: _File, at: int, data: bytes | None) -> None:
        """Write; it may be the last that happens."""
        if self.gone or file.life != self.life:
            return
        fault = self._step()
        file.content.unsynced.append((at, data))
        file.do(at, data)
        if fault in ("kill", "power"):
            raise apsw.exception_for(apsw.SQLITE_IOERR_WRITE)

    def sync(self, file: _File) -> None:
        """Make a file durable, or fail to."""
        if self.gone or file.life != self.life:
            return
        self.syncs += 1
        fault, content = self._step(), file.content
        if fault is None or not file.path.endswith(self._of):
            content.sync()
            if file.syncs_folder:
                self.sync_names()
                file.syncs_folder = False
            return
        if fault == "sync":
            self._fault = None
            self.failed_syncs += 1
            content.lose(self._chance)
        raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)

    def sync_names(self) -> None:
        """Make durable which files there are."""
        self._durable_names = dict(self._names)


class _File(apsw.VFSFile):
    """A file as one process has it open."""

    def __init__(
        self, disk: Disk, path: str, content: Content, name: Any, flags: list[int]
    ) -> None:
        self._disk = disk
        self.path = path
        self.content = content
        self.life = disk.life
        is_log = flags[0] & (apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL)
        self.syncs_folder = bool(is_log and flags[0] & apsw.SQLITE_OPEN_CREATE)
        super().__init__("unix", name, flags)

    def do(self, at: int, data: bytes | None) -> None:
        """Change the real file."""
        if data is None:
            super().xTruncate(at)
        else:
            super().xWrite(data, at)

    def xWrite(self, data: bytes, offset: int) -> None:
        with self._disk._lock:
            self._disk.write(self, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        with self._disk._lock:
            self._disk.write(self, newsize, None)

    def xSync(self, flags: int) -> None:
        with self._disk._lock:
            self._disk.sync(self)

    def excepthook(self, *_: object) -> bool:
        """What SQLite does not hear of is nobody's business."""
        return True
