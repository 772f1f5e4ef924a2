"""`dragoman translate`: a recorded body in another dialect."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

import click

from adapters.contract.fidelity import CANONICAL, Ledger, Report
from adapters.model.base import Fidelity
from adapters.model.commands import AnyCommand
from adapters.model.events import Entry
from adapters.offline import translate as translation
from adapters.offline.recorded_inputs import BadInput, read_inputs
from adapters.registry import faces
from adapters.wire.errors import NotSupported
from proxy.cli.crossings import lost_fields, print_report
from proxy.cli.files import named
from proxy.cli.printing import clean, fail, reader_left
from proxy.config.matrix import side_of

_FROM = click.Choice([*translation.readable_dialects(), CANONICAL])
_TO = click.Choice([*translation.writable_dialects(), CANONICAL])


def _form_parameter(dialect: str) -> str:
    return f"{dialect.replace('-', '_')}_form"


def _form_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each dialect whose face has no form but those with names."""
    for name, face in faces().items():
        if "" not in face.forms:
            command = click.option(
                f"--{name}-form",
                _form_parameter(name),
                type=click.Choice([*face.forms]),
                default=next(iter(face.forms)),
                show_default=True,
                help=f"The form of {name} that is printed.",
            )(command)
    return command


@click.command(short_help="Print a recorded body in another dialect.")
@click.argument("file", default="-", type=click.Path(allow_dash=True))
@click.option("--from", "source", required=True, type=_FROM, help="What FILE is.")
@click.option("--to", "target", required=True, type=_TO, help="What to print.")
@click.option(
    "--input",
    "requests",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What the user sent: bodies of requests, as JSON, a list or NDJSON.",
)
@click.option("--session-id", help="The id of the session; else the one that FILE names.")
@_form_options
@click.option(
    "--report",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write here, as JSON, how faithfully every field crossed; with `-` print a table of it on "
    "stderr.",
)
@click.option(
    "--fail-on",
    type=click.Choice([Fidelity.DROPPED.value, Fidelity.APPROXIMATED.value]),
    help="Exit with 1 if a field was dropped, or also if one was approximated, and say which.",
)
@click.option("--strict", is_flag=True, help="Stop with an error at a frame that makes no sense.")
def translate(
    file: str,
    source: str,
    target: str,
    requests: Path | None,
    session_id: str | None,
    report: Path | None,
    fail_on: str | None,
    strict: bool,
    **forms: str,
) -> None:
    """Print a recorded response body as the same session in another dialect.

    FILE is the body (SSE or NDJSON), or `-` for stdin. `canonical` is Dragoman's own log as NDJSON.
    The same input always gives the same output. Frames that make no sense are reported in the log,
    as in a live session, and counted on stderr.
    """
    on_stderr = report == Path("-")
    try:
        inputs = [] if requests is None else _read_requests(requests)
        form = forms.get(_form_parameter(target), "")
        options = translation.TranslateOptions(
            session_id=session_id, inputs=inputs, form=form, strict=strict
        )
        reader = translation.make_source(source, options)
        sink = translation.make_sink(target, options)
        with contextlib.ExitStack() as stack:
            chunks = stack.enter_context(_opened(file))
            noted: BinaryIO | None = None
            if report is not None and not on_stderr:
                noted = stack.enter_context(report.open("wb"))
            counted = report is not None or fail_on is not None
            told = Report(Ledger(side_of(source), side_of(target))) if counted else None
            fault = _translate(reader, chunks, sink, told, noted)
            if told is not None and noted is not None:
                rest = {
                    "frames": reader.frames,
                    "skipped": reader.skipped,
                    "repairs": reader.repairs,
                    "inputs_left": reader.inputs_left,
                    "complete": fault is None and reader.looks is None,
                }
                noted.write(told.close(rest))
    except NotSupported as error:
        fail(error.whole, status=2)
    except BrokenPipeError:
        reader_left()
        sys.exit(1)
    except OSError as error:
        fail(f"{clean(str(error.filename or file))}: {error.strerror or error}", status=2)
    if reader.first_skipped is not None:
        first, count = reader.first_skipped, reader.skipped
        frames = "1 frame was" if count == 1 else f"{count} frames were"
        where = f"line {first.line}: byte {first.byte}: {first.reason}"
        click.echo(clean(f"{named(file)}: {frames} skipped, the first at {where}"), err=True)
    if told is not None and on_stderr:
        print_report(told.ledger)
    lost = told is not None and fail_on is not None and lost_fields(told.ledger, fail_on)
    if fault is not None:
        if reader.looks is not None and not strict:
            reason = f"{fault.reason}: {reader.looks}"
            fault = BadInput(reason, line=fault.line, byte=fault.byte)
        _bad_input(file, fault)
    if reader.looks is not None:
        click.echo(clean(f"{named(file)}: no event of `{source}`: {reader.looks}"), err=True)
        sys.exit(1)
    if lost:
        sys.exit(1)


def _read_requests(path: Path) -> list[AnyCommand]:
    try:
        return read_inputs(path.read_bytes())
    except BadInput as error:
        _bad_input(str(path), error)


def _bad_input(file: str, error: BadInput) -> NoReturn:
    click.echo(clean(f"{named(file)}:{error.line}: byte {error.byte}: {error.reason}"), err=True)
    sys.exit(1)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[Iterator[bytes]]:
    with contextlib.ExitStack() as stack:
        if file == "-":
            stream: BinaryIO = sys.stdin.buffer
        else:
            stream = stack.enter_context(Path(file).open("rb"))
        # A pipe gives what it has, so that a body can be translated while it is written.
        read = getattr(stream, "read1", stream.read)
        yield iter(lambda: read(64 * 1024), b"")


def _translate(
    reader: translation.Source,
    chunks: Iterator[bytes],
    sink: Callable[[Entry], bytes],
    told: Report | None,
    noted: BinaryIO | None,
) -> BadInput | None:
    """Print what the chunks give; return what is wrong with them, after all that was valid."""
    out = sys.stdout.buffer
    fed = itertools.chain.from_iterable(map(reader.feed, chunks))
    try:
        # `map` is lazy: the reader is closed after its last chunk.
        for entry in itertools.chain(fed, _closing(reader)):
            out.write(sink(entry))
            if told is not None:
                piece = told.add(entry)
                if noted is not None:
                    noted.write(piece)
    except BadInput as error:
        return error
    finally:
        out.flush()
    return None


def _closing(reader: translation.Source) -> Iterator[Entry]:
    yield from reader.close()
