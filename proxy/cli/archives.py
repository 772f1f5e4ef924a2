"""`dragoman sessions export` and `import`: sessions as events and as archives."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import click

from adapters.wire.errors import ErrorCode
from adapters.wire.url_paths import path_of
from proxy.journal.base import Journal

if TYPE_CHECKING:
    from proxy.archives.files import ArchivePart
    from proxy.archives.unpacking import Wishes
from proxy.cli import printing
from proxy.cli.naming import ids_of
from proxy.cli.printing import (
    JsonObject,
    clean,
    fail,
    print_json,
    print_rows,
    progress,
    reader_left,
)
from proxy.cli.running import OF_A_CONFIGURATION, read_settings
from proxy.cli.servers import JournalFile, ServerClient, of_sessions, session_path, write_log


@click.command("export", short_help="Print a session's canonical events as NDJSON.")
@click.argument("names", metavar="SESSION...", nargs=-1)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write here and not to stdout.",
)
@click.option(
    "--frames",
    is_flag=True,
    help="The backends' own frames that the journal keeps, and not the events; with --journal.",
)
@click.option(
    "--archive",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a new file for `sessions import`, and not the events.",
)
@click.option("--all", "every", is_flag=True, help="All sessions; with --archive.")
@of_sessions
def sessions_export(
    source: ServerClient | JournalFile,
    names: tuple[str, ...],
    output: Path | None,
    archive: Path | None,
    *,
    frames: bool,
    every: bool,
) -> None:
    """Print a session's canonical events as NDJSON, the form that `translate` reads.

    With --archive, move sessions to another installation: FILE takes all that is stored of them,
    for `sessions import` there. It holds their secrets and all that was said, and only you can read
    it. Sessions in which something is under way are left out and named. They stay here: once they
    are imported, erase them here with `sessions delete --local`, since two installations would
    drive one session of the backend.
    """
    if every == bool(names):
        raise click.UsageError("name sessions, or write --all with --archive")
    if archive is not None:
        if frames or output is not None:
            raise click.UsageError("--archive goes without --output and --frames")
        _archive(source, names, archive)
        return
    if len(names) != 1:
        raise click.UsageError("one session is printed; more go into an --archive")
    if frames and not isinstance(source, JournalFile):
        raise click.UsageError("frames are read from the journal's file: add --journal FILE")
    (session,) = names
    with contextlib.ExitStack() as stack:
        out: BinaryIO = sys.stdout.buffer
        try:
            if output is not None:
                out = stack.enter_context(output.open("wb"))
            if isinstance(source, JournalFile):
                source.ask_of(
                    session, lambda journal, id: write_log(journal, id, out, frames=frames)
                )
            else:
                source.copy_of(session, out)
            out.flush()
        except BrokenPipeError:
            reader_left()
            sys.exit(1)
        except OSError as error:
            fail(f"{output or 'stdout'}: {error.strerror or error}", status=2)


class _SessionRefused(Exception):
    """What was asked of one session of several cannot be done; the text says why."""


def _refuse(message: str, *, status: int = 1, code: str | None = None) -> NoReturn:
    if code == ErrorCode.BACKEND_NOT_READY:
        # It is so for all the others, and each would wait for it.
        fail(message, status=status, code=code)
    raise _SessionRefused(message)


def _archive(source: ServerClient | JournalFile, names: Sequence[str], file: Path) -> None:
    from proxy.archives.files import new_file

    names = ids_of(source, names, told=False) or _all_of(source)
    if not names:
        fail("there are no sessions.")
    one_by_one = dataclasses.replace(source, fail=_refuse)
    done: list[str] = []
    refused: list[JsonObject] = []
    shown = printing.on_terminal() and not source.as_json
    try:
        if file.exists():
            raise FileExistsError(errno.EEXIST, "it exists; name another file")
        with new_file(file) as out, progress(shown=shown) as told:
            for number, name in enumerate(names):
                told("archiving", number, len(names))
                begun = out.tell()
                try:
                    _archive_one(one_by_one, name, out)
                except _SessionRefused as error:
                    out.seek(begun)
                    out.truncate()
                    refused.append({"id": name, "why": str(error)})
                else:
                    done.append(name)
            if not done:
                raise _SessionRefused
    except _SessionRefused:
        pass
    except OSError as error:
        fail(f"{file}: {error.strerror or error}", status=2)
    for one in refused:
        click.echo(f"dragoman: {one['why']}", err=True)
    size = file.stat().st_size if done else 0
    if source.as_json:
        answer = {"path": str(file.absolute()) if done else None, "bytes": size}
        print_json({**answer, "archived": done, "refused": refused})
    else:
        print_rows(("session", "status"), [[name, "archived"] for name in done])
    if refused:
        sys.exit(1)


def _archive_one(source: ServerClient | JournalFile, name: str, out: BinaryIO) -> None:
    if isinstance(source, ServerClient):
        source.copy(path_of(session_path(name), "archive"), out)
        return
    from proxy.control import offline

    async def write(journal: Journal) -> None:
        async for lines in offline.archived(journal, name):
            out.write(lines)

    source.ask(write)


def _all_of(source: ServerClient | JournalFile) -> list[str]:
    """Return the sessions that are there, of all owners, oldest first."""
    names: list[str] = []
    before: int | None = None
    while True:
        if isinstance(source, JournalFile):
            answer = source.ask(lambda journal, before=before: _page(journal, before))  # type: ignore[misc]
        else:
            query = {"limit": "1000", "all": "1"}
            if before is not None:
                query["before"] = str(before)
            answer = source.ask("GET", "/sessions", query=query)
        names += [entry["id"] for entry in answer["sessions"]]
        before = answer.get("next")
        if before is None:
            return names[::-1]


def _page(journal: Journal, before: int | None) -> Coroutine[Any, Any, JsonObject]:
    from proxy.control import offline

    return offline.listed(journal, state=None, failed=False, limit=1000, before=before)


def _renamed(
    _context: click.Context, _parameter: click.Parameter, given: Sequence[str]
) -> dict[str, str]:
    names: dict[str, str] = {}
    for text in given:
        old, _, new = text.partition("=")
        if not (old and new):
            raise click.BadParameter(f"write OLD=NEW, not `{text}`")
        names[old] = new
    return names


@click.command("import", short_help="Take in the sessions of an archive.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--owner", metavar="KEY", help="The key that they belong to here, by its name.")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="OLD=NEW",
    callback=_renamed,
    help="How a backend is called here; may be given several times.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, and store nothing.")
@OF_A_CONFIGURATION
@of_sessions
def sessions_import(
    source: ServerClient | JournalFile,
    file: Path,
    owner: str | None,
    backends: dict[str, str],
    config: Path | None,
    *,
    dry_run: bool,
) -> None:
    """Take in the sessions of an archive that `sessions export --archive` wrote.

    Their ids, cursors and tokens stay valid here, on the routes of the same names. FILE is checked
    before anything is taken, and each session comes whole or not at all; one that is here already
    is left as it is, so that this may be run again. With --journal the journal must exist and no
    server may use it; its configuration is read, which a running server has.

    The other installation keeps its copy: erase it there with `sessions delete --local`, since two
    installations would drive one session of the backend.
    """
    from proxy.archives.files import parts_of
    from proxy.archives.form import ArchiveError
    from proxy.archives.unpacking import Wishes

    wishes = Wishes(owner=owner, backends=backends, dry_run=dry_run)
    take = _taker(source, wishes, config)
    done: list[JsonObject] = []
    refused: list[JsonObject] = []
    shown = printing.on_terminal() and not source.as_json
    try:
        with file.open("rb") as opened, progress(shown=shown) as told:
            size = file.stat().st_size
            parts = parts_of(opened, lambda at: told("checking", at, size))
            for part in parts:
                try:
                    done.append(take(opened, part, lambda at: told("importing", at, size)))
                except _SessionRefused as error:
                    refused.append({"id": part.id, "line": part.line, "why": str(error)})
    except ArchiveError as error:
        fail(clean(f"{file}: {error.whole}; nothing was imported."))
    except OSError as error:
        fail(f"{file}: {error.strerror or error}", status=2)
    for one in refused:
        where = f"{file}: session `{one['id']}`, from line {one['line']}"
        click.echo(clean(f"dragoman: {where}: {one['why']}"), err=True)
    if source.as_json:
        print_json({"dry_run": dry_run, "sessions": done, "refused": refused})
    else:
        columns = ("id", "status", "owner", "route", "backend", "entries", "bytes")
        rows = [[one.get(name) for name in columns] for one in done]
        print_rows(columns, rows, spare=("bytes", "entries", "route", "owner"))
    if refused:
        sys.exit(1)


def _taker(
    source: ServerClient | JournalFile, wishes: Wishes, config: Path | None
) -> Callable[[BinaryIO, ArchivePart, Callable[[int], None]], JsonObject]:
    """Return what takes in one session of an archive."""
    from proxy.archives.files import pieces_of
    from proxy.control import offline

    one_by_one = dataclasses.replace(source, fail=_refuse)
    if isinstance(one_by_one, ServerClient):
        asked = one_by_one
        query = [("backend", f"{old}={new}") for old, new in wishes.backends.items()]
        if wishes.owner is not None:
            query.append(("owner", wishes.owner))
        if wishes.dry_run:
            query.append(("dry_run", "1"))
        return lambda file, part, told: asked.send(
            "/sessions/import", pieces_of(file, part, told), query
        )
    read = one_by_one
    settings = read_settings(config, resolved=False)
    return lambda file, part, told: read.ask(
        lambda journal: offline.imported(journal, settings, pieces_of(file, part, told), wishes),
        read_only=wishes.dry_run,
    )
