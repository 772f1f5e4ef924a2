"""`dragoman diff` and `verify`: what sessions and captures mean, compared."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from adapters.model.ignored_fields import UnknownField
from adapters.offline.compare import difference
from adapters.offline.raw_sides import RawEvent, differences_json, raw_sides
from adapters.offline.session_logs import read_log
from adapters.offline.translate import readable_dialects
from adapters.wire.errors import DragomanError
from proxy.cli import printing
from proxy.cli.files import named, readable
from proxy.cli.printing import JsonObject, clean, fail, print_json, print_lines, print_rows
from proxy.cli.servers import DEFAULT_URL, JournalFile, ServerClient, journal_url, write_log
from proxy.tools import comparing, verifying

_SESSION_URL = re.compile(r"(https?://[^?#]+?)/api/v1/sessions/([^/?#]+)(?:/events)?/?")


@click.command()
@click.argument("a", type=click.Path(allow_dash=True))
@click.argument("b", type=click.Path(allow_dash=True))
@click.option(
    "--from",
    "source",
    type=click.Choice(readable_dialects()),
    help="What a file is that is neither a capture nor a canonical log.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="FIELD",
    help="A field that may differ, like `usage` or `tool.returned.output.created_at`; or a type of "
    "events. May be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--junit",
    "report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the outcome here as JUnit XML.",
)
@click.option(
    "--key", envvar="DRAGOMAN_KEY", show_envvar=True, help="Your key for a running server."
)
def diff(
    a: str,
    b: str,
    source: str | None,
    ignore: tuple[str, ...],
    as_json: bool,
    report: Path | None,
    key: str | None,
) -> None:
    """Compare two sessions by meaning.

    A and B are captures or canonical logs, or with --from recorded bodies of a dialect; one may be
    `-` for stdin. A session of a running server is http://HOST:PORT/api/v1/sessions/ID, one of a
    journal is FILE.db#ID. Ids may be others, texts may be cut elsewhere, and calls of one step may
    come in any order. Exit status 0: they mean the same, 1: they do not, 2: it cannot be said.
    """
    if a == b == "-":
        raise click.UsageError("only one of A and B can be stdin")
    with contextlib.ExitStack() as stack:
        try:
            one, other = (read_log(_side(stack, file, key), named(file), source) for file in (a, b))
            found = difference.compare(one.entries, other.entries, ignore)
            # Frames are looked for in the files, which are open as long.
            raws = raw_sides(found, one.spoken, other.spoken)
        except UnknownField as error:
            raise click.BadParameter(str(error), param_hint="--ignore") from None
        except DragomanError as error:
            fail(clean(error.whole), status=2)
        except OSError as error:
            fail(f"{clean(str(error.filename))}: {error.strerror or error}", status=2)
    for warning in (*one.warnings, *other.warnings):
        click.echo(clean(warning), err=True)
    shown = _ShownDifference(found, raws, (named(a), named(b)))
    if report is not None:
        case = comparing.Case(clean(f"{named(a)} {named(b)}"), shown.lines())
        _write_report(report, comparing.junit("diff", [case]))
    if as_json:
        print_json({"equal": not found, "differences": shown.as_json()})
    elif found:
        shown.print()
    else:
        click.echo("They mean the same.")
    sys.exit(1 if found else 0)


@click.command(short_help="Compare captures with what they give today.")
@click.argument("paths", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    type=click.Choice(readable_dialects()),
    help="The dialect of captures that do not say it.",
)
@click.option(
    "--ignore", multiple=True, metavar="FIELD", help="A field that may differ, as for `diff`."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--junit",
    "report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the outcome here as JUnit XML, a test case for each capture.",
)
def verify(
    paths: tuple[Path, ...],
    source: str | None,
    ignore: tuple[str, ...],
    as_json: bool,
    report: Path | None,
) -> None:
    """Translate captures again and compare that with what was recorded.

    DIR is a folder with captures, or one of them. The log must be what the backend's bodies give
    today, and a frontend must have been told what its dialect writes today of that log. Exit status
    0: all are the same, 1: some differ, 2: one cannot be read, or there is nothing to compare.
    """
    verdicts = []
    try:
        for file in dict.fromkeys(file for path in paths for file in verifying.captures_in(path)):
            verdict, notes = verifying.verify_file(file, source, ignore)
            verdicts.append(verdict)
            for note in notes:
                click.echo(clean(note), err=True)
    except UnknownField as error:
        raise click.BadParameter(str(error), param_hint="--ignore") from None
    except DragomanError as error:
        fail(clean(error.whole), status=2)
    except OSError as error:
        fail(f"{clean(str(error.filename))}: {error.strerror or error}", status=2)
    if report is not None:
        cases = [verifying.case_of(verdict) for verdict in verdicts]
        _write_report(report, comparing.junit("verify", cases))
    if as_json:
        print_json({"captures": [verdict.as_json() for verdict in verdicts]})
    else:
        print_rows(("outcome", "capture", "why"), [[v.outcome, v.name, v.why] for v in verdicts])
        for verdict in verdicts:
            for check in verdict.checks:
                if lines := check.lines():
                    print_lines(["", *map(clean, (f"{verdict.name}: {lines[0]}", *lines[1:]))])
    outcomes = {verdict.outcome for verdict in verdicts}
    if "cannot be read" in outcomes or outcomes == {"not compared"}:
        sys.exit(2)
    sys.exit(1 if "differs" in outcomes else 0)


def _write_report(report: Path, data: bytes) -> None:
    try:
        report.write_bytes(data)
    except OSError as error:
        fail(f"{clean(str(report))}: {error.strerror or error}", status=2)


def _side(stack: contextlib.ExitStack, name: str, key: str | None) -> BinaryIO:
    """Return what can be read of one side: a file, or the log of a session."""
    if name.startswith(("http://", "https://")):
        match = _SESSION_URL.fullmatch(name)
        if match is None:
            fail(
                f"`{clean(name)}` is not the address of a session: write it like"
                f" {DEFAULT_URL}/api/v1/sessions/ID",
                status=2,
            )
        hint = f" `dragoman sessions list --url {match[1]}` prints those that are there."
        server = ServerClient(
            match[1], key, as_json=False, status=2, named="in its place", missing=hint
        )
        log = io.BytesIO()
        server.copy_of(unquote(match[2]), log)
        log.seek(0)
        return log
    file, mark, session = name.rpartition("#")
    if mark and file and not Path(name).exists():
        hint = f" `dragoman sessions list --journal {file}` prints those that are there."
        journal = JournalFile(journal_url(file), as_json=False, status=2, missing=hint)
        log = io.BytesIO()
        journal.ask_of(session, lambda opened, id: write_log(opened, id, log, frames=False))
        log.seek(0)
        return log
    stream = stack.enter_context(readable(name))
    # A pipe can be read only once, and frames are looked for in a second reading.
    return stream if stream.seekable() else io.BytesIO(stream.read())


@dataclass(frozen=True)
class _ShownDifference:
    """What differs, and how it is shown: the log, and below it what it was in its dialects."""

    found: difference.Comparison
    raws: Sequence[tuple[RawEvent | None, RawEvent | None]]
    names: tuple[str, str]

    def as_json(self) -> list[JsonObject]:
        """Return the differences as JSON."""
        return differences_json(self.found, self.raws)

    def lines(self) -> list[str]:
        """Return the first difference as lines, and how many more there are."""
        lines = self.found.first(*self.names)
        for mark, title, raw in self._sides():
            lines += ["", f"{mark * 3} {title}", *(f"    {line}" for line in raw)]
        return [clean(line) for line in (*lines, *self.found.more())]

    def print(self) -> None:
        """Print it: on a wide terminal with the two dialects side by side."""
        sides = self._sides()
        # On fewer columns two dialects have no room side by side.
        if not printing.on_terminal() or Console().width < 100 or not sides:
            print_lines(self.lines())
            return
        print_lines([clean(line) for line in self.found.first(*self.names)])
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for mark, title, _ in sides:
            header = Text(f"{mark * 3} {clean(title)}", style="red" if mark == "-" else "green")
            table.add_column(header, overflow="fold", ratio=1)
        cells = ("\n".join(map(clean, raw)) for _, _, raw in sides)
        table.add_row(*map(Text, cells))
        console = Console()
        console.print()
        console.print(table)
        print_lines([clean(line) for line in self.found.more()])

    def _sides(self) -> list[tuple[str, str, list[str]]]:
        """Return what the first difference was in both dialects; nothing where no side has any."""
        if not self.found or not any(self.raws[0]):
            return []
        first = self.found.differences[0]
        sides = []
        for mark, name, raw, pair in zip(
            "-+", self.names, self.raws[0], ((first.a, first.b), (first.b, first.a)), strict=True
        ):
            if raw is None:
                sides.append((mark, name, ["(nothing)"]))
            else:
                sides.append((mark, raw.title(name), raw.lines(first.path, *pair)))
        return sides
