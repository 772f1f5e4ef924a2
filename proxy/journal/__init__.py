"""The durable log of canonical events: the contract in `base`, SQLite in `sqlite`, PostgreSQL in
`postgres`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.base.errors import ConfigError
from proxy.base.rows import BackupSize
from proxy.journal.base import WINDOW_MS, Journal

if TYPE_CHECKING:
    from proxy.journal._tables import CopySource, CopyTarget

_NEEDS_EXTRA = (
    "`[journal]`, `url`: a journal in PostgreSQL needs the extra `postgres`: install "
    "`dragoman[postgres]`"
)


def open_journal(
    url: str,
    *,
    read_only: bool = False,
    pooled: bool = False,
    advertise: str | None = None,
    window_ms: float | None = None,
    frames: bool = True,
    frame_limit: int | None = None,
) -> Journal:
    """Return the journal that a URL names; its `open` is still to be awaited.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://…` or `memory:`.
        read_only: Read beside a server that writes. Nobody can write a `memory:` of ours.
        pooled: Whether a PostgreSQL is behind a pooler that gives out connections by the
            transaction.
        advertise: Where other processes that share a PostgreSQL journal reach this one; None where
            it shares it with nobody.
        window_ms: The least time between two commits in milliseconds, None for the journal's own.
        frames: Whether source frames are kept.
        frame_limit: Bytes of a source frame that are kept, None for the journal's own.

    Raises:
        ConfigError: the URL names no journal that is known, or one that needs an extra.
    """
    # Imported when asked for: a command that needs no journal does not load a database.
    if is_postgres(url):
        return _open_postgres(
            url,
            read_only=read_only,
            pooled=pooled,
            advertise=advertise,
            window_ms=window_ms,
            frames=frames,
            frame_limit=frame_limit,
        )
    from proxy.journal._frames import FRAME_LIMIT
    from proxy.journal.sqlite import SqliteJournal, TemporaryJournal

    limit = FRAME_LIMIT if frame_limit is None else frame_limit
    window = WINDOW_MS if window_ms is None else window_ms
    if url == "memory:":
        return TemporaryJournal(window_ms=window, frames=frames, frame_limit=limit)
    return SqliteJournal(
        _file_of(url),
        read_only=read_only,
        window_ms=window,
        frames=frames,
        frame_limit=limit,
    )


def is_postgres(url: str) -> bool:
    """Say whether a URL names a journal in PostgreSQL."""
    return url.startswith(("postgresql://", "postgres://"))


def shown(url: str) -> str:
    """Return the URL of a journal without the passwords that it may have, also where it is not
    whole."""
    url = re.sub(r"(?<=://)([^:@/]*):.*@", r"\1@", url)
    return re.sub(r"(?<=[?&])((?:ssl)?password=)[^&#]*", r"\1…", url)


def _open_postgres(
    url: str,
    *,
    advertise: str | None,
    window_ms: float | None,
    frame_limit: int | None,
    **options: bool,
) -> Journal:
    from proxy.journal._frames import FRAME_LIMIT

    try:
        from proxy.journal.postgres import PostgresJournal
    except ModuleNotFoundError as error:
        raise ConfigError(_NEEDS_EXTRA) from error
    return PostgresJournal(
        url,
        advertise=advertise,
        window_ms=WINDOW_MS if window_ms is None else window_ms,
        frame_limit=FRAME_LIMIT if frame_limit is None else frame_limit,
        **options,
    )


def back_up(
    url: str, target: Path, *, force: bool, told: Callable[[str, int, int], object]
) -> BackupSize:
    """Copy the journal that a URL names to a file, while a server may write it.

    Args:
        url: As for `open_journal`.
        target: The file; made, or with `force` replaced, when the copy is whole and checked.
        force: Whether a file that exists is replaced.
        told: Gets what is done, how much of it, and of how much: 0 of 0 where nobody knows.

    Raises:
        ConfigError: the URL names no journal that is in a file.
        JournalError: the copy cannot be made; the text says why, and the way out.
    """
    from proxy.journal import _backup

    if is_postgres(url):
        raise ConfigError(
            "`[journal]`, `url`: a journal in PostgreSQL is backed up by PostgreSQL's own means: "
            "`pg_dump --schema=dragoman`"
        )
    if url == "memory:":
        raise ConfigError(
            "`[journal]`, `url`: a `memory:` journal goes with its server and has no file to back "
            "up; keep single sessions with `dragoman sessions export`"
        )
    return _backup.back_up(Path(_file_of(url)), target, force=force, told=told)


async def copy_journal(
    source: str, target: str, told: Callable[[str, int, int], object]
) -> BackupSize:
    """Copy a journal that no server writes to a new file, or to a database without sessions.

    It is copied whole or not at all: nobody sees the copy before each session in it was compared.

    Args:
        source: As for `open_journal`.
        target: The same; a file that does not exist.
        told: Gets what is done, how much of it, and of how much: 0 of 0 where nobody knows.

    Raises:
        ConfigError: a URL names no journal that can be copied.
        JournalError: the copy cannot be made; the text says why, and the way out.
    """
    from proxy.journal import copying

    if "memory:" in (source, target):
        raise ConfigError(
            "`[journal]`, `url`: a `memory:` journal goes with its server; name a file or a "
            "database"
        )
    if source == target:
        raise ConfigError(f"`[journal]`, `url`: `{shown(source)}` is both: name another to copy to")
    async with _copy_source(source) as origin, _copy_target(target) as copy:
        return await copying.copy_rows(origin, copy, told)


def _copy_source(url: str) -> AbstractAsyncContextManager[CopySource]:
    if not is_postgres(url):
        from proxy.journal._sqlite_copy import SqliteSource

        return SqliteSource.opened(Path(_file_of(url)).resolve())
    try:
        from proxy.journal.postgres.copying import PostgresSource
    except ModuleNotFoundError as error:
        raise ConfigError(_NEEDS_EXTRA) from error
    return PostgresSource.opened(url)


def _copy_target(url: str) -> AbstractAsyncContextManager[CopyTarget]:
    if not is_postgres(url):
        from proxy.journal._sqlite_copy import SqliteTarget

        return SqliteTarget.opened(Path(_file_of(url)).resolve())
    try:
        from proxy.journal.postgres.copying import PostgresTarget
    except ModuleNotFoundError as error:
        raise ConfigError(_NEEDS_EXTRA) from error
    return PostgresTarget.opened(url)


def _file_of(url: str) -> str:
    scheme, _, rest = url.partition("://")
    path = rest[1:]
    if scheme != "sqlite" or not rest.startswith("/") or path in ("", "/", ":memory:"):
        raise ConfigError(
            f"`[journal]`, `url`: `{shown(url)}` is not a journal: write `sqlite:///relative.db`, "
            "`sqlite:////absolute.db`, `postgresql://USER@HOST/DATABASE` or `memory:`"
        )
    return path
