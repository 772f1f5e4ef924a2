"""The durable log of canonical events: the contract in `base`, SQLite in `sqlite`, a plain list in
`memory`.
"""

from __future__ import annotations

from proxy.errors import ConfigError
from proxy.journal.base import Journal


def open_journal(
    url: str,
    *,
    read_only: bool = False,
    window_ms: float | None = None,
    frames: bool = True,
    frame_limit: int | None = None,
) -> Journal:
    """Return the journal that a URL names; its `open` is still to be awaited.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db` or `memory:`.
        read_only: Read beside a server that writes (SQLite).
        window_ms: The least time between two commits in milliseconds, None for the journal's own
            (SQLite).
        frames: Whether source frames are kept.
        frame_limit: Bytes of a source frame that are kept, None for the journal's own.

    Raises:
        ConfigError: the URL names no journal that is known.
    """
    # Imported when asked for: a command that needs no journal does not load a database.
    from proxy.journal._frames import FRAME_LIMIT

    limit = FRAME_LIMIT if frame_limit is None else frame_limit
    if url == "memory:":
        from proxy.journal.memory import MemoryJournal

        return MemoryJournal(frames=frames, frame_limit=limit)
    scheme, _, rest = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        raise ConfigError("journal.url: PostgreSQL is not built yet; use `sqlite:///dragoman.db`")
    path = rest[1:]
    if scheme != "sqlite" or not rest.startswith("/") or path in ("", "/", ":memory:"):
        raise ConfigError(
            f"journal.url: `{url}` is none of `sqlite:///relative.db`, `sqlite:////absolute.db`, "
            "`memory:`"
        )
    from proxy.journal.sqlite import WINDOW_MS, SqliteJournal

    return SqliteJournal(
        path,
        read_only=read_only,
        window_ms=WINDOW_MS if window_ms is None else window_ms,
        frames=frames,
        frame_limit=limit,
    )
