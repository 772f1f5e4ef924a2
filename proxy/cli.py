"""The command `dragoman`, and the only module that prints.

The commands that serve run until they are told to stop. The others are clients of the control API
of a running server. What a program reads goes to stdout, everything else to stderr. Exit status: 0
done, 1 it could not be done or a check failed, 2 the command line or the configuration is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar
from urllib.parse import quote

import aiohttp
import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text
from yarl import URL

from adapters import translate as translation
from adapters.commands import AnyCommand
from adapters.errors import DragomanError, NotSupported
from adapters.events import Entry
from adapters.fidelity import CANONICAL, ORDER, Ledger, Report
from adapters.inputs import BadInput, read_inputs
from adapters.mapping import DIALECT_OF_FOLDER
from proxy import logs
from proxy import matrix as tables
from proxy.errors import ConfigError
from proxy.matrix import side_of
from proxy.settings import Settings, load_settings

T = TypeVar("T")

DEFAULT_CONFIG = Path("dragoman.toml")
DEFAULT_URL = "http://127.0.0.1:8787"

REQUEST_SECONDS = 30.0
"""How long a client command waits for the server, which answers from its journal at once."""

READ_BYTES = 64 * 1024
"""Bytes of a file that are read at a time: a page of the disk's readahead, and little memory."""

_WITH_CANONICAL = [*DIALECT_OF_FOLDER.values(), CANONICAL]

JsonObject = dict[str, Any]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dragoman", prog_name="dragoman")
def main() -> None:
    """Any agent frontend talks to any agent backend, through one durable event log."""


def _fail(message: str, *, status: int = 1) -> NoReturn:
    """Say what is wrong and what to do, and exit."""
    click.echo(f"dragoman: {message}", err=True)
    sys.exit(status)


# --- commands that serve


def _run(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Run `work` in an event loop of its own; SIGINT and SIGTERM set the event that it gets."""
    # A core dump would hold sealed values and credentials.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_until_told(work))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's, which is an extra, or None for asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _until_told(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def tell() -> None:
        stop.set()
        # A second signal ends the process at once.
        forget()

    def forget() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    for number in signals:
        loop.add_signal_handler(number, tell)
    try:
        return await work(stop)
    finally:
        forget()


def _announce(url: str) -> None:
    click.echo(f"listening on {url}")


@main.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="DRAGOMAN_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="The configuration. Without it dragoman.toml here, if there is one, else the defaults.",
)
def serve(config: Path | None) -> None:
    """Serve until SIGINT or SIGTERM.

    Prints `listening on http://HOST:PORT` when it answers requests. Logs are JSON lines on stderr.
    """
    if config is None and DEFAULT_CONFIG.exists():
        config = DEFAULT_CONFIG
    try:
        settings = load_settings(config, os.environ)
    except ConfigError as error:
        _wrong_configuration(error)
    logs.configure(level=settings.log.level, secrets=settings.secrets())
    _serve(lambda stop: _serve_settings(settings, stop))


def _serve_settings(settings: Settings, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    # Imported here: a client command needs no server, and starts sooner without it.
    from proxy import server

    return server.serve(settings, ready=_announce, stop=stop)


def _serve(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Run a server and explain why it could not start."""
    try:
        return _run(work)
    except ConfigError as error:
        _wrong_configuration(error)
    except DragomanError as error:
        _fail(error.message)
    except TimeoutError:
        _fail("it did not stop within [server] shutdown_seconds, so connections were cut.")
    except OSError as error:
        _fail(f"cannot listen: {error.strerror or error}. Choose another address or port.")


def _wrong_configuration(error: ConfigError) -> NoReturn:
    lines = "".join(f"\n  {line}" for line in error.message.splitlines())
    _fail(f"the configuration is wrong:{lines}", status=2)


@main.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Where to listen, 0 for any free port. Without it 8787, or the next one that is free.",
)
@click.option(
    "--check", is_flag=True, help="Run the sample commands, say PASS or FAIL for each, and exit."
)
def demo(port: int | None, check: bool) -> None:
    """Serve scripted backends without any configuration, network or key.

    Prints sample commands that can be pasted into a shell. Its journal is gone when it ends.
    """
    logs.configure(level="warning")
    if check:
        passed = _serve(functools.partial(_check_demo, port=0 if port is None else port))
        sys.exit(0 if passed else 1)
    _serve(functools.partial(_serve_demo, port=port))


def _serve_demo(stop: asyncio.Event, *, port: int | None) -> Coroutine[Any, Any, None]:
    from proxy import demo as playing

    def ready(url: str) -> None:
        _announce(url)
        http = playing.http_program()
        click.echo("\nPaste these into one shell, one after the other:")
        for sample in playing.SAMPLES:
            click.echo(f"\n# {sample.title}\n{sample.text(url, http)}")
        click.echo("\nCtrl-C ends the demo.")

    return playing.run_demo(port=port, ready=ready, stop=stop)


async def _check_demo(stop: asyncio.Event, *, port: int) -> bool:
    """Start the demo, run its samples, stop it; return whether all passed."""
    from proxy import demo as playing

    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    passed = False

    async def samples() -> None:
        nonlocal passed
        url = await started
        outcomes = []
        async with contextlib.aclosing(playing.check(url, playing.http_program())) as run:
            async for outcome in run:
                outcomes.append(outcome.passed)
                click.echo(f"{'PASS' if outcome.passed else 'FAIL'}  {outcome.sample.title}")
                if not outcome.passed:
                    click.echo(f"      expected: {outcome.sample.expect}")
                    for line in outcome.output.splitlines():
                        click.echo(f"      {_clean(line)}")
        left = len(playing.SAMPLES) - len(outcomes)
        if left:
            click.echo(f"FAIL  {left} more were not run")
        passed = all(outcomes) and not left
        stop.set()

    def ready(url: str) -> None:
        _announce(url)
        started.set_result(url)

    try:
        async with asyncio.TaskGroup() as group:
            checking = group.create_task(samples(), name="demo: samples")
            await playing.run_demo(port=port, ready=ready, stop=stop)
            # Told to stop by a signal: the samples have nobody to talk to.
            if not checking.done():
                checking.cancel()
    except* (DragomanError, OSError) as failed:
        raise failed.exceptions[0] from None
    return passed


# --- commands that ask a running server


@dataclass(frozen=True, slots=True)
class _Server:
    """A running server and how to print what it says."""

    url: str
    key: str | None
    as_json: bool

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
    ) -> JsonObject:
        """Return what the control API answers; exits with a sentence when it refuses."""
        return asyncio.run(self._ask(method, path, query or {}, body))

    async def _ask(
        self, method: str, path: str, query: Mapping[str, str], body: JsonObject | None
    ) -> JsonObject:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = self._url(path).update_query(query)
        try:
            timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                # A redirect could lead the key elsewhere; the control API has none.
                session.request(
                    method,
                    url,
                    data=None if body is None else orjson.dumps(body),
                    allow_redirects=False,
                ) as response,
            ):
                status, data = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = "it does not answer" if isinstance(error, TimeoutError) else str(error)
            if isinstance(error, aiohttp.ClientConnectorError):
                why = "nobody listens there"
            _fail(
                f"no server can be reached at {self.url}: {_clean(why)}. "
                "Start one with `dragoman serve`, or name the one that runs with --url."
            )
        return self._read(status, data)

    def _url(self, path: str) -> URL:
        with contextlib.suppress(ValueError):
            # Ids in the path are quoted already.
            url = URL(f"{self.url.rstrip('/')}/api/v1{path}", encoded=True)
            if url.scheme in {"http", "https"} and url.host:
                return url
        _fail(f"`{_clean(self.url)}` is no URL: write --url like {DEFAULT_URL}", status=2)

    def _read(self, status: int, data: bytes) -> JsonObject:
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            _fail(
                f"what answers at {self.url} with status {status} is no Dragoman. "
                "Name another with --url."
            )
        if status < 400:
            return answer
        error = answer.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        if status == 401:
            message = f"{message or 'this needs a key.'} Give it with --key or DRAGOMAN_KEY."
        _fail(_clean(str(message or f"the server refuses with status {status}")))


def _of_a_server(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a server; it gets them as one `server`."""

    @click.option(
        "--url",
        default=DEFAULT_URL,
        envvar="DRAGOMAN_URL",
        show_default=True,
        show_envvar=True,
        help="The running server.",
    )
    @click.option("--key", envvar="DRAGOMAN_KEY", show_envvar=True, help="Your key, if it has any.")
    @click.option(
        "--json", "as_json", is_flag=True, help="Print JSON, as the control API gives it."
    )
    @functools.wraps(command)
    def wrapper(url: str, key: str | None, as_json: bool, **arguments: Any) -> None:
        command(server=_Server(url, key, as_json), **arguments)

    return wrapper


def _clean(text: str) -> str:
    """Return `text` on one line and without control characters: an agent wrote it, and a terminal
    obeys them.
    """
    return "".join(char if char.isprintable() else " " for char in text)


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _clean(value)
    return orjson.dumps(value).decode()


def _time(value: object) -> str:
    """Return Unix milliseconds as a time that people read."""
    if not isinstance(value, int):
        return ""
    return datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="seconds")


def _print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on a terminal, else a line for each row with tabs between its cells."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not _on_terminal():
        for row in cells:
            click.echo("\t".join(row))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        # As text: rich would take square brackets for its markup.
        table.add_row(*map(Text, row))
    Console().print(table)


def _print_json(answer: JsonObject) -> None:
    click.echo(orjson.dumps({"version": 1, **answer}))


@main.group()
def sessions() -> None:
    """Look at the sessions of a running server."""


@sessions.command("list")
@click.option(
    "--state",
    type=click.Choice(["idle", "running", "paused", "ended"]),
    help="Only sessions in this state.",
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many."
)
@click.option("--before", metavar="KEY", help="Go on from the key that the last page ended with.")
@_of_a_server
def sessions_list(server: _Server, state: str | None, limit: int, before: str | None) -> None:
    """List your sessions, newest first."""
    query = {"limit": str(limit)}
    if state is not None:
        query["state"] = state
    if before is not None:
        query["before"] = before
    answer = server.ask("GET", "/sessions", query=query)
    if server.as_json:
        _print_json(answer)
        return
    columns = ("id", "state", "dialect", "route", "owner", "updated", "title")
    rows = [
        [
            *(entry.get(name) for name in columns[:5]),
            _time(entry.get("updated_at")),
            entry.get("title"),
        ]
        for entry in answer["sessions"]
    ]
    _print_rows(columns, rows)
    if answer.get("next") is not None:
        click.echo(f"There are more: add --before {_cell(answer['next'])}", err=True)


@sessions.command("show")
@click.argument("session")
@_of_a_server
def sessions_show(server: _Server, session: str) -> None:
    """Show one session: what it waits for, its backends, its other names."""
    answer = server.ask("GET", f"/sessions/{quote(session, safe='')}")
    if server.as_json:
        _print_json(answer)
        return
    lists = {"open_interactions": "waits for", "legs": "backend", "aliases": "also called"}
    rows: list[list[object]] = []
    for name, value in answer.items():
        if name in lists:
            rows += [[lists[name], entry] for entry in value]
        elif name in {"created_at", "updated_at"}:
            rows.append([name.removesuffix("_at"), _time(value)])
        elif name != "version" and value is not None:
            rows.append([name, value])
    _print_rows(("what", "value"), rows)


@main.group()
def interactions() -> None:
    """Look at what agents wait for."""


@interactions.command("list")
@_of_a_server
def interactions_list(server: _Server) -> None:
    """List the open requests of your sessions: approvals, questions, secrets and the like."""
    answer = server.ask("GET", "/interactions")
    if server.as_json:
        _print_json(answer)
        return
    columns = ("session", "request", "kind", "options", "answered", "prompt", "details")
    rows = [
        [
            entry.get("session_id"),
            entry.get("request_id"),
            entry.get("kind"),
            ",".join(str(option.get("id")) for option in entry.get("options") or ()),
            "under way" if entry.get("claimed") else "no",
            entry.get("prompt"),
            entry.get("details"),
        ]
        for entry in answer["interactions"]
    ]
    _print_rows(columns, rows)


@main.command()
@click.argument("session")
@click.argument("request")
@click.option("--allow", is_flag=True, help="Approve it, once.")
@click.option("--deny", is_flag=True, help="Refuse it.")
@click.option("--option", "options", multiple=True, metavar="ID", help="Choose this option.")
@click.option("--text", help="Answer in words; may stand beside --option.")
@click.option("--skip", is_flag=True, help="Leave the question unanswered and let the agent go on.")
@click.option(
    "--sealed", is_flag=True, help="Answer with a secret: asked for, or read from a pipe."
)
@click.option("--reason", help="Why, for the agent; with --allow or --deny.")
@_of_a_server
def answer(
    server: _Server,
    session: str,
    request: str,
    allow: bool,
    deny: bool,
    options: tuple[str, ...],
    text: str | None,
    skip: bool,
    sealed: bool,
    reason: str | None,
) -> None:
    """Answer what an agent waits for: REQUEST of SESSION, as `interactions list` prints them."""
    words = bool(options) or text is not None
    if [allow, deny, words, skip, sealed].count(True) != 1:
        raise click.UsageError(
            "say one thing: --allow, --deny, --option and/or --text, --skip, or --sealed"
        )
    if reason is not None and not (allow or deny):
        raise click.UsageError("--reason goes with --allow or --deny")
    body: JsonObject = {}
    if allow or deny:
        body["decision"] = "allow" if allow else "deny"
    if reason is not None:
        body["reason"] = reason
    if options:
        body["option_ids"] = list(options)
    if text is not None:
        body["text"] = text
    if skip:
        body["skip"] = True
    if sealed:
        body["sealed"] = _sealed_value()
    path = f"/sessions/{quote(session, safe='')}/interactions/{quote(request, safe='')}"
    given = server.ask("POST", path, body=body)
    if server.as_json:
        _print_json(given)
    else:
        _print_rows(("status", "command"), [[given.get("status"), given.get("command_id")]])


def _sealed_value() -> str:
    """Read a secret from the terminal without echo, or the first line of a pipe."""
    if sys.stdin.isatty():
        return str(click.prompt("Secret", hide_input=True, err=True))
    value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        raise click.UsageError("--sealed reads the secret from stdin, and there is none")
    return value


# --- commands that work on files


@main.command()
@click.argument("file", default="-", type=click.Path(allow_dash=True))
@click.option(
    "--from", "source", required=True, type=click.Choice(_WITH_CANONICAL), help="What FILE is."
)
@click.option(
    "--to", "target", required=True, type=click.Choice(_WITH_CANONICAL), help="What to print."
)
@click.option(
    "--input",
    "requests",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What the user sent: bodies of requests, as JSON, a list or NDJSON.",
)
@click.option("--session-id", help="The id of the session; else the one that FILE names.")
@click.option(
    "--eve-form",
    type=click.Choice(["all", "tokens", "newest"]),
    default="all",
    show_default=True,
    help="The form of eve that is printed.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write here, as JSON, how faithfully every field crossed.",
)
def translate(
    file: str,
    source: str,
    target: str,
    requests: Path | None,
    session_id: str | None,
    eve_form: str,
    report: Path | None,
) -> None:
    """Print a recorded response body as the same session in another dialect.

    FILE is the body (SSE or NDJSON), or `-` for stdin. `canonical` is Dragoman's own log as NDJSON.
    The same input always gives the same output.
    """
    try:
        inputs = [] if requests is None else _read_requests(requests)
        options = translation.Options(session_id=session_id, inputs=inputs, form=eve_form)
        reader = translation.make_source(source, options)
        sink = translation.make_sink(target, options)
        with contextlib.ExitStack() as stack:
            chunks = stack.enter_context(_opened(file))
            noted: BinaryIO | None = None
            if report is not None:
                noted = stack.enter_context(report.open("wb"))
            told = None if noted is None else Report(Ledger(side_of(source), side_of(target)))
            fault = _translate(reader, chunks, sink, told, noted)
            if told is not None and noted is not None:
                rest = {
                    "frames": reader.frames,
                    "repairs": reader.repairs,
                    "inputs_left": reader.inputs_left,
                    "complete": fault is None,
                }
                noted.write(told.close(rest))
    except NotSupported as error:
        _fail(error.message, status=2)
    except BrokenPipeError:
        _reader_left()
        sys.exit(1)
    except OSError as error:
        _fail(f"{_clean(str(error.filename or file))}: {error.strerror or error}", status=2)
    if fault is not None:
        _bad_input(file, fault)


def _reader_left() -> None:
    """Write to nowhere: who reads us has enough, and Python would try to write the rest at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read_requests(path: Path) -> list[AnyCommand]:
    try:
        return read_inputs(path.read_bytes())
    except BadInput as error:
        _bad_input(str(path), error)


def _bad_input(file: str, error: BadInput) -> NoReturn:
    name = "<stdin>" if file == "-" else file
    click.echo(_clean(f"{name}:{error.line}: byte {error.byte}: {error.reason}"), err=True)
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
        yield iter(lambda: read(READ_BYTES), b"")


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
            if told is not None and noted is not None:
                noted.write(told.add(entry))
    except BadInput as error:
        return error
    finally:
        out.flush()
    return None


def _closing(reader: translation.Source) -> Iterator[Entry]:
    yield from reader.close()


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def matrix(as_json: bool) -> None:
    """Print how faithfully each pair of dialects crosses, and what each backend can be asked."""
    pairs, cells = list(tables.pairs(tables.load_numbers())), list(tables.commands())
    if as_json:
        _print_json(
            {
                "pairs": [pair.as_json() for pair in pairs],
                "commands": [cell.as_json() for cell in cells],
            }
        )
        return
    _print_rows(
        ("frontend", "backend", *map(str, ORDER)),
        [[pair.frontend, pair.backend, *pair.counts] for pair in pairs],
    )
    click.echo()
    _print_rows(
        ("command", "backend", "support", "how or why"),
        [[cell.command, cell.backend, cell.support, cell.how] for cell in cells],
    )


@main.command()
@click.argument("url")
@click.option("-X", "--request", "method", help="The method; POST with -d, else GET.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME: VALUE", help="A header.")
@click.option("-d", "--data", help="The body.")
def request(url: str, method: str | None, headers: tuple[str, ...], data: str | None) -> None:
    """Make one HTTP request and print the body of the answer, whatever its status.

    For the samples of the demo on machines without curl; the options are curl's.
    """
    fields = [header.partition(":") for header in headers]
    if any(not colon for _, colon, _ in fields):
        raise click.UsageError("a header is written as `NAME: VALUE`")
    given = [(name.strip(), value.strip()) for name, _, value in fields]
    asyncio.run(_request(url, method or ("GET" if data is None else "POST"), given, data))


async def _request(
    url: str, method: str, headers: Sequence[tuple[str, str]], data: str | None
) -> None:
    out = sys.stdout.buffer
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
            session.request(
                method, url, headers=list(headers), data=data, allow_redirects=False
            ) as response,
        ):
            async for chunk in response.content.iter_any():
                out.write(chunk)
                out.flush()
    except (aiohttp.ClientError, ValueError, OSError) as error:
        _fail(f"{_clean(url)} cannot be asked: {_clean(str(error))}")
