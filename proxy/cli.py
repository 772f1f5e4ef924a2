"""The command `dragoman`, and the only module that prints.

The commands that serve run until they are told to stop. The others are clients of the control API
of a running server; those for sessions work on a journal's file as well. What a program reads goes
to stdout, everything else to stderr. Exit status: 0 done, 1 it could not be done or a check failed,
2 the command line or the configuration is wrong.

Why one room: a function for each command, with its options and its help, and no work of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import io
import itertools
import logging
import math
import os
import re
import resource
import secrets
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn, Protocol, TypeVar

import aiohttp
import click
import orjson
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from yarl import URL

from adapters import difference
from adapters import translate as translation
from adapters.commands import AnyCommand
from adapters.errors import DragomanError, NotSupported
from adapters.events import Entry
from adapters.fidelity import CANONICAL, ORDER, Ledger, Report
from adapters.paths import path_of
from adapters.raw_sides import Raw, raw_sides
from adapters.recorded_inputs import BadInput, read_inputs
from adapters.registry import DIALECTS, faces
from proxy import logs
from proxy import matrix as tables
from proxy.errors import ConfigError, JournalUnavailable, SessionNotFound
from proxy.journal.base import Journal
from proxy.matrix import side_of
from proxy.settings import Address, Settings, load_address, load_settings, parse_listen

if TYPE_CHECKING:
    from adapters.replay import Script
    from proxy.archives.files import Part
    from proxy.archives.unpacking import Wishes

T = TypeVar("T")

_log = logging.getLogger(__name__)

DEFAULT_CONFIG = Path("dragoman.toml")
DEFAULT_URL = "http://127.0.0.1:8787"

REQUEST_SECONDS = 30.0
"""How long a client command waits for the server, which answers from its journal at once."""

MOVE_AGAIN_SECONDS = 1.0
"""How long it is waited before a session that was at work is moved again."""

HEALTH_SECONDS = 3.0
"""How long `health` waits: a server that does not say in this time that it lives holds up all."""

READ_BYTES = 64 * 1024
"""Bytes of a file that are read at a time: a page of the disk's readahead, and little memory."""

WIDE = 100
"""Columns of a terminal on which two dialects have room side by side."""

_BUILT = [*(name for name, one in DIALECTS.items() if one.client or one.encoder), CANONICAL]
"""What can be translated: the dialects of which a half is there, and the log."""

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


def _run(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, T]], seconds: float | None = None
) -> T:
    """Run `work` in an event loop of its own; SIGINT and SIGTERM set the event that it gets, and
    the process ends `seconds` later at the latest."""
    # A core dump would hold sealed values and credentials.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_until_told(work, seconds))


def _end_now() -> None:
    """End the process as a crash does, for which the journal is made: threads that wait for a disk
    would hold an orderly end for as long as they do."""
    # Where nobody reads the log, writing to it waits too.
    said = threading.Thread(
        target=_log.error,
        args=("it did not stop within [server] shutdown_seconds, and is ended where it is",),
        daemon=True,
    )
    said.start()
    said.join(0.2)
    os._exit(1)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes uvloop's loop where that extra is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _until_told(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, T]], seconds: float | None
) -> T:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def tell() -> None:
        stop.set()
        if seconds is not None:
            # Nobody takes it back: it is over with the process, whose own end it bounds as well.
            late = threading.Timer(seconds, _end_now)
            late.daemon = True
            late.start()
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


_OF_A_CONFIGURATION = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="DRAGOMAN_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="The configuration. Without it dragoman.toml here, if there is one, else the defaults.",
)


def _found(config: Path | None) -> Path | None:
    """Return the configuration that is meant, None for the defaults."""
    return DEFAULT_CONFIG if config is None and DEFAULT_CONFIG.exists() else config


def _settings(config: Path | None, *, resolved: bool = True) -> Settings:
    """Read the configuration, or say what is wrong with it and exit."""
    try:
        return load_settings(_found(config), os.environ, resolved=resolved)
    except ConfigError as error:
        _wrong_configuration(error)


@main.command()
@_OF_A_CONFIGURATION
def serve(config: Path | None) -> None:
    """Serve until SIGINT or SIGTERM.

    Prints `listening on http://HOST:PORT` when it answers requests. Logs are JSON lines on stderr.
    """
    settings = _settings(config)
    logs.configure(level=settings.log.level, secrets=settings.secrets())
    if not settings.backends:
        _log.warning(
            "no backend is configured, so no frontend can be served: add a table [[backends]] with "
            "`name`, `dialect` and `url` to %s, or try `dragoman demo`",
            _found(config) or DEFAULT_CONFIG,
        )
    _serve(lambda stop: _serve_settings(settings, stop), settings.server.shutdown_seconds)


def _serve_settings(settings: Settings, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    # Imported here: a client command needs no server, and starts sooner without it.
    from proxy import server

    return server.serve(settings, ready=_announce, stop=stop)


def _serve(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, T]], seconds: float | None = None
) -> T:
    """Run a server, see `_run`, and explain why it could not start."""
    try:
        return _run(work, seconds)
    except ConfigError as error:
        _wrong_configuration(error)
    except DragomanError as error:
        _fail(error.message)
    except OSError as error:
        _fail(f"cannot listen: {error.strerror or error}. Choose another address or port.")


def _wrong_configuration(error: ConfigError) -> NoReturn:
    lines = "".join(f"\n  {line}" for line in error.message.splitlines())
    _fail(f"the configuration is wrong:{lines}", status=2)


@main.command()
@_OF_A_CONFIGURATION
def health(config: Path | None) -> None:
    """Ask the server of a configuration whether it lives.

    It must run on this machine, or in this container. Exit status 0 says that it lives, 1 that it
    does not: also where the configuration cannot be read, because Docker reserves 2.
    """
    try:
        address = load_address(_found(config), os.environ)
    except ConfigError as error:
        _fail(error.message)
    if not address.port:
        _fail("the server takes any free port: give it one under [server] listen.")
    asyncio.run(_ask_health(address.reached))


async def _ask_health(address: Address) -> None:
    try:
        timeout = aiohttp.ClientTimeout(total=HEALTH_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{address.url}/healthz", allow_redirects=False) as response,
        ):
            status = response.status
    except TimeoutError:
        _fail(f"the server at {address.url} does not answer.")
    except (aiohttp.ClientError, OSError) as error:
        _fail(f"no server can be reached at {address.url}: {_clean(str(error))}.")
    if status != 200:
        _fail(f"what answers at {address.url} with status {status} is not a Dragoman that lives.")


def _host(context: click.Context, parameter: click.Parameter, host: str) -> str:
    try:
        parse_listen(Address(host, 0).url.removeprefix("http://"))
    except ValueError:
        raise click.BadParameter(f"`{host}` is not a host") from None
    return host


@main.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    callback=_host,
    help="Where to listen. Where other machines can reach it, the demo makes a key.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Where to listen, 0 for any free port. Without it 8787, or the next one that is free.",
)
@click.option(
    "--check", is_flag=True, help="Run the sample commands, say PASS or FAIL for each, and exit."
)
def demo(host: str, port: int | None, check: bool) -> None:
    """Serve scripted backends without any configuration, network or key.

    Prints sample commands that can be pasted into a shell. Its journal is gone when it ends.
    """
    logs.configure(level="warning")
    if check:
        passed = _serve(functools.partial(_check_demo, host=host, port=port or 0))
        sys.exit(0 if passed else 1)
    _serve(functools.partial(_serve_demo, host=host, port=port))


def _reached(url: str) -> str:
    """Return a URL at which this machine reaches what listens at `url`."""
    return parse_listen(url.removeprefix("http://")).reached.url


def _serve_demo(stop: asyncio.Event, *, host: str, port: int | None) -> Coroutine[Any, Any, None]:
    from proxy import demo as playing

    key = playing.make_key(host)

    def ready(url: str) -> None:
        _announce(url)
        http = playing.http_program(key, anywhere=key is not None)
        url = _reached(url)
        click.echo("\nPaste these into one shell, one after the other:")
        if key is not None:
            click.echo(f"On another machine put the address of this one in the place of {url}.")
        for sample in playing.SAMPLES:
            click.echo(f"\n# {sample.title}\n{sample.text(url, http)}")
        click.echo("\nCtrl-C ends the demo.")

    return playing.run_demo(host=host, port=port, key=key, ready=ready, stop=stop)


async def _check_demo(stop: asyncio.Event, *, host: str, port: int) -> bool:
    """Start the demo, run its samples, stop it; return whether all passed."""
    from proxy import demo as playing

    key = playing.make_key(host)
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    passed = False

    async def samples() -> None:
        nonlocal passed
        url = await started
        outcomes = []
        http = playing.http_program(key)
        async with contextlib.aclosing(playing.check(_reached(url), http)) as run:
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
            await playing.run_demo(host=host, port=port, key=key, ready=ready, stop=stop)
            # Told to stop by a signal: the samples have nobody to talk to.
            if not checking.done():
                checking.cancel()
    except* (DragomanError, OSError) as failed:
        raise failed.exceptions[0] from None
    return passed


# Imported when they are needed, as every server is: so their names are not at hand for a `Choice`.


_port = click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    show_default=True,
    help="Where to listen, 0 for any free port.",
)


def _listening(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that serves the options `--host` and `--port`."""
    host = click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
    return host(_port(command))


class _ScriptedDialect(click.ParamType[str]):
    """A dialect that has a scripted backend."""

    name = "dialect"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return its name."""
        from proxy.scripted import BACKENDS

        if value not in BACKENDS:
            self.fail(f"`{value}` is none of {', '.join(sorted(BACKENDS))}.", param, ctx)
        return str(value)


class _Kinds(click.ParamType[tuple[str, ...]]):
    """Kinds of faults, with commas between them."""

    name = "kinds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return their names."""
        from proxy.scripted.faults import KINDS

        names = tuple(value.split(","))
        for name in names:
            if name not in KINDS:
                self.fail(f"`{name}` is none of {', '.join(sorted(KINDS))}.", param, ctx)
        return names


@main.command()
@click.argument("dialect", type=_ScriptedDialect())
@_listening
@click.option("--key", help="The only credential that passes; without it anything does.")
@click.option(
    "--pace",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="The factor on pauses, 0 for none.",
)
@click.option(
    "--generation",
    type=click.Choice(["T", "S1", "S2"]),
    default="S2",
    show_default=True,
    help="Which eve `eve` is.",
)
@click.option(
    "--faults", type=int, metavar="SEED", help="Break streams; a seed breaks the same ones."
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1),
    default=0.2,
    show_default=True,
    help="The share of streams that break.",
)
@click.option(
    "--kinds",
    type=_Kinds(),
    metavar="KIND,...",
    help="How they break; without it in ways that every dialect heals from at once.",
)
@click.option(
    "--first",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="The first conversation gets the faults of the Nth: repeats one alone.",
)
def scripted(
    dialect: str,
    host: str,
    port: int,
    key: str | None,
    pace: float,
    generation: Literal["T", "S1", "S2"],
    faults: int | None,
    rate: float,
    kinds: tuple[str, ...] | None,
    first: int,
) -> None:
    """Serve a scripted agent server of a dialect until SIGINT or SIGTERM, to try things with.

    A message `script: NAME` chooses what it does, as in the demo. With --faults it breaks streams
    on purpose, and tells on stderr which and how.
    """
    from proxy.scripted import BACKENDS, Options
    from proxy.scripted.faults import KINDS, SEEDED, Faults
    from proxy.scripted.running import serve_alone

    breaking = None
    if faults is not None:
        ways = SEEDED if kinds is None else [KINDS[name] for name in kinds]
        breaking = Faults.seeded(faults, rate, ways, first=first)
        logging.basicConfig(format="%(message)s")
        logging.getLogger(Faults.__module__).setLevel(logging.INFO)
    options = Options(key=key, pace=pace, generation=generation, faults=breaking)
    app = BACKENDS[dialect](options)
    _serve(lambda stop: serve_alone(app, host, port, ready=_announce, stop=stop))


class _RecordedBackend(click.ParamType[tuple[str, str]]):
    name = "backend"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return its dialect and its URL."""
        dialect, _, url = value.partition("=")
        known = [name for name, one in DIALECTS.items() if one.captured is not None]
        if dialect not in known:
            self.fail(f"write DIALECT=URL, with a dialect of {', '.join(known)}.", param, ctx)
        address = URL(url)
        if address.scheme not in ("http", "https") or not address.host:
            self.fail(f"`{url}` is not a URL that begins with http:// or https://.", param, ctx)
        return dialect, url


@main.command()
@click.option(
    "--backend",
    type=_RecordedBackend(),
    required=True,
    metavar="DIALECT=URL",
    help="The backend that is recorded, as engine=http://127.0.0.1:8000.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="The folder for captures; it is made if it is missing.",
)
@click.option(
    "--redact-key",
    "keys",
    multiple=True,
    metavar="NAME",
    help="A name of JSON members, headers or query parts whose values are secret; repeatable.",
)
@click.option(
    "--redact-pattern",
    "patterns",
    multiple=True,
    metavar="REGEX",
    help="A regular expression that finds secrets in texts; repeatable.",
)
@_listening
def record(
    backend: tuple[str, str],
    out: Path,
    keys: tuple[str, ...],
    patterns: tuple[str, ...],
    host: str,
    port: int,
) -> None:
    """Record a backend's conversations until SIGINT or SIGTERM.

    Give the client the address that is printed in place of the backend's. All that passes goes on
    unchanged, and into one capture for each session, with marks in the place of credentials.
    """
    from adapters.capture.redact import BadPattern, Redactor
    from proxy.recorder import record as recording

    try:
        redactor = Redactor(secrets.token_bytes(16), keys, patterns)
    except BadPattern as error:
        raise click.UsageError(f"--redact-pattern: {error}.") from None

    dialect, url = backend
    captured = DIALECTS[dialect].captured
    assert captured is not None
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _fail(f"the folder {out} cannot be made: {error.strerror}", status=2)
    _serve(
        lambda stop: recording(
            captured.naming,
            dialect,
            url,
            out,
            redactor,
            listen=(host, port),
            ready=_announce,
            stop=stop,
        )
    )


# --- commands that ask a running server


class _Sink(Protocol):
    """What takes lines as they come."""

    def write(self, data: bytes, /) -> Any:
        """Take some."""


@dataclass(frozen=True, slots=True)
class _Server:
    """A running server and how to print what it says. `status` is that of the program where it
    fails, `named` how the server is named, `missing` what to do where there is no such session."""

    url: str
    key: str | None
    as_json: bool
    status: int = 1
    named: str = "with --url"
    missing: str = ""
    fail: Callable[..., NoReturn] = _fail

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
    ) -> JsonObject:
        """Return what the control API answers; exits with a sentence when it refuses."""
        status, data = asyncio.run(self._ask(method, path, query or {}, body))
        return self.read(status, data)

    def attempt(self, method: str, path: str, *, body: JsonObject) -> tuple[int, JsonObject]:
        """Return the status and what the control API answers, also where it refuses."""
        status, data = asyncio.run(self._ask(method, path, {}, body))
        with contextlib.suppress(orjson.JSONDecodeError):
            answer = orjson.loads(data)
            if isinstance(answer, dict):
                return status, answer
        return status, self.read(status, data)

    async def _ask(
        self, method: str, path: str, query: Mapping[str, str], body: JsonObject | None
    ) -> tuple[int, bytes]:
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
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._unreachable(error)

    def copy(self, path: str, out: _Sink) -> None:
        """Write the body of an answer, as it comes; a body that breaks off ends the program."""
        asyncio.run(self._copy(path, out))

    async def _copy(self, path: str, out: _Sink) -> None:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        last = b""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=REQUEST_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.get(self._url(path), allow_redirects=False) as response,
            ):
                if response.status != 200 or response.content_type != "application/x-ndjson":
                    self.read(response.status, await response.read())
                    self._fail(
                        f"what answers at {self.url} is not a Dragoman. Name another {self.named}."
                    )
                async for data in response.content.iter_any():
                    *lines, last = (last + data).split(b"\n")
                    for line in lines:
                        if line.startswith(b'{"version":'):
                            # No entry begins so: the server says why it breaks off.
                            self.read(500, line)
                        out.write(line + b"\n")
        except (aiohttp.ClientError, TimeoutError) as error:
            self._unreachable(error)
        if last:
            self._fail("the export broke off in the middle; try again.")

    def _unreachable(self, error: Exception) -> NoReturn:
        why = "it does not answer" if isinstance(error, TimeoutError) else str(error)
        if isinstance(error, aiohttp.ClientConnectorError):
            why = "nobody listens there"
        self._fail(
            f"no server can be reached at {self.url}: {_clean(why)}. "
            f"Start one with `dragoman serve`, or name the one that runs {self.named}."
        )

    def send(
        self, path: str, lines: AsyncIterator[bytes], query: Sequence[tuple[str, str]]
    ) -> JsonObject:
        """Return what the control API answers to the lines of an archive."""
        return asyncio.run(self._send(path, lines, query))

    async def _send(
        self, path: str, lines: AsyncIterator[bytes], query: Sequence[tuple[str, str]]
    ) -> JsonObject:
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        headers["Content-Type"] = "application/x-ndjson"
        # Nobody knows how long it takes to store them all.
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.post(
                    self._url(path).extend_query(query), data=lines, allow_redirects=False
                ) as response,
            ):
                status, data = response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            self._unreachable(error)
        return self.read(status, data)

    def _fail(self, message: str) -> NoReturn:
        self.fail(message, status=self.status)

    def _url(self, path: str) -> URL:
        with contextlib.suppress(ValueError):
            # Ids in the path are quoted already.
            url = URL(f"{self.url.rstrip('/')}/api/v1{path}", encoded=True)
            if url.scheme in {"http", "https"} and url.host:
                return url
        _fail(f"`{_clean(self.url)}` is not a URL: write --url like {DEFAULT_URL}", status=2)

    def read(self, status: int, data: bytes) -> JsonObject:
        """Return an answer as JSON; exits with a sentence when it is a refusal."""
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            self._fail(
                f"what answers at {self.url} with status {status} is not a Dragoman. "
                f"Name another {self.named}."
            )
        if status < 400:
            return answer
        error = answer.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        if status == 401:
            message = f"{message or 'this needs a key.'} Give it with --key or DRAGOMAN_KEY."
        message = message or f"the server refuses with status {status}"
        if status == 404:
            message += self.missing
        self._fail(_clean(str(message)))


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


_COLOURS = {
    "running": "green",
    "paused": "yellow",
    "ended": "dim",
    "deleted": "red",
    "expired": "dim",
}
"""The colours of states on a terminal."""


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
        table.add_row(
            *(
                Text(cell, style=_COLOURS.get(cell, "") if column in {"state", "status"} else "")
                for column, cell in zip(columns, row, strict=True)
            )
        )
    Console().print(table)


def _print_json(answer: JsonObject) -> None:
    click.echo(orjson.dumps({"version": 1, **answer}))


@dataclass(frozen=True)
class _File:
    """The journal of a server, read and changed as a file; whose sessions they are does not
    matter.
    """

    url: str
    as_json: bool
    status: int = 1
    missing: str = ""
    fail: Callable[..., NoReturn] = _fail

    def ask(
        self, work: Callable[[Journal], Coroutine[Any, Any, T]], *, read_only: bool = True
    ) -> T:
        """Return what `work` gives; every other outcome ends the program."""
        from proxy import offline

        async def run() -> T:
            async with offline.opened(self.url, read_only=read_only) as journal:
                return await work(journal)

        try:
            return asyncio.run(run())
        except ConfigError as error:
            _fail(error.message, status=2)
        except JournalUnavailable as error:
            hint = "" if read_only else " Without --journal the running server is asked."
            self.fail(_clean(error.message) + "." + hint, status=self.status)
        except SessionNotFound as error:
            message = _clean(error.message)
            if self.missing:
                message = f"{message.rstrip('.')}.{self.missing}"
            self.fail(message, status=self.status)
        except DragomanError as error:
            self.fail(_clean(error.message), status=self.status)


def _of_sessions(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a server or a journal's file; it gets a `source`."""

    @click.option(
        "--journal",
        metavar="FILE",
        help="Not a server but its journal: the file, or a URL like `sqlite:///dragoman.db`.",
    )
    @_of_a_server
    @functools.wraps(command)
    def wrapper(server: _Server, journal: str | None, **arguments: Any) -> None:
        if journal is None:
            command(source=server, **arguments)
            return
        command(source=_File(_url(journal), server.as_json), **arguments)

    return wrapper


def _url(journal: str) -> str:
    """Return the URL of a journal that is named by its file, or by that URL."""
    if "://" in journal or journal == "memory:":
        return journal
    return f"sqlite:///{Path(journal).absolute()}"


class _Units(click.ParamType[float]):
    """A number with one of some units."""

    def __init__(self, name: str, units: Mapping[str, float], example: str, most: float) -> None:
        """Take at most `most` of the smallest unit, as the control API does."""
        self.name = name
        self._most = most
        self._units = units
        self._example = example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number in the smallest unit."""
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", str(value).strip())
        factor = None if match is None else self._units.get(match[2])
        if match is None or factor is None:
            units = ", ".join(unit for unit in self._units if unit)
            self.fail(f"`{value}` is none: write {self._example}; units are {units}.", param, ctx)
        number = float(match[1]) * factor
        if number > self._most:
            self.fail(f"`{str(value)[:40]}` is too much.", param, ctx)
        return number


_AGE = _Units(
    "age",
    {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800},
    "a time like `30d` or `12h`",
    10**11,
)
_SIZE = _Units(
    "size",
    {
        "": 1,
        "kB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
    },
    "a size like `500MB`",
    2**62,
)


class _Share(click.ParamType[JsonObject]):
    """A backend's share of a route, as the control API takes it."""

    name = "backend=weight"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> JsonObject:
        """Return its members."""
        backend, _, weight = str(value).rpartition("=")
        if not backend or re.fullmatch("[0-9]{1,7}", weight) is None:
            text = f"`{str(value)[:80]}` is not a share: write BACKEND=WEIGHT, like `blue=90`."
            self.fail(text, param, ctx)
        return {"name": backend, "weight": int(weight)}


@main.group()
def routes() -> None:
    """Look at the routes of a running server, and set where their new sessions go."""


@routes.command("list")
@_of_a_server
def routes_list(server: _Server) -> None:
    """List all routes, and the shares of their backends."""
    answer = server.ask("GET", "/routes")
    if server.as_json:
        _print_json(answer)
    else:
        _print_routes(answer["routes"])


@routes.command("set")
@click.argument("route")
@click.argument("shares", metavar="BACKEND=WEIGHT...", nargs=-1, required=True, type=_Share())
@_of_a_server
def routes_set(server: _Server, route: str, shares: tuple[JsonObject, ...]) -> None:
    """Set the shares of a route, for new sessions; a weight of 0 gives a backend none.

    They hold over a restart, until they are set again or `reset`.
    """
    body: JsonObject = {"backends": list(shares)}
    _changed_route(server, server.ask("PUT", path_of("/routes", route), body=body))


@routes.command("reset")
@click.argument("route")
@_of_a_server
def routes_reset(server: _Server, route: str) -> None:
    """Let the shares of the configuration hold again for a route."""
    _changed_route(server, server.ask("DELETE", path_of("/routes", route)))


def _changed_route(server: _Server, answer: JsonObject) -> None:
    if server.as_json:
        _print_json(answer)
    else:
        _print_routes([answer])


def _print_routes(found: Sequence[JsonObject]) -> None:
    rows: list[list[object]] = []
    for route in found:
        total = sum(share["weight"] for share in route["backends"])
        rows += [
            [
                *(route["name"], share["backend"], share["dialect"], share["weight"]),
                f"{100 * share['weight'] / total:.1f}%",
                route["source"],
            ]
            for share in route["backends"]
        ]
    _print_rows(("route", "backend", "dialect", "weight", "percent", "source"), rows)


@main.group()
def sessions() -> None:
    """Look at sessions, export and delete them: of a running server, or in a journal's file."""


@sessions.command("list")
@click.option(
    "--state",
    type=click.Choice(["idle", "running", "paused", "ended", "deleted", "expired"]),
    help="Only sessions in this state.",
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many."
)
@click.option(
    "--before",
    type=click.IntRange(0),
    metavar="KEY",
    help="Go on from the key that the last page ended with.",
)
@_of_sessions
def sessions_list(
    source: _Server | _File, state: str | None, limit: int, before: int | None
) -> None:
    """List your sessions, newest first; with an administrator's key those of everybody."""
    if isinstance(source, _File):
        from proxy import offline

        answer = source.ask(
            lambda journal: offline.listed(journal, state=state, limit=limit, before=before)
        )
    else:
        query = {"limit": str(limit)}
        if state is not None:
            query["state"] = state
        if before is not None:
            query["before"] = str(before)
        answer = source.ask("GET", "/sessions", query=query)
    if source.as_json:
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
@_of_sessions
def sessions_show(source: _Server | _File, session: str) -> None:
    """Show one session: what it waits for, its backends, its other names."""
    if isinstance(source, _File):
        from proxy import offline

        answer = source.ask(lambda journal: offline.shown(journal, session))
    else:
        answer = source.ask("GET", _session_path(session))
    if source.as_json:
        _print_json(answer)
        return
    lists = {
        "open_interactions": "waits for",
        "queue": "queued",
        "legs": "backend",
        "aliases": "also called",
    }
    rows: list[list[object]] = []
    for name, value in answer.items():
        if name in lists:
            rows += [[lists[name], entry] for entry in value]
        elif name in {"created_at", "updated_at"}:
            rows.append([name.removesuffix("_at"), _time(value)])
        elif name != "version" and value is not None:
            rows.append([name, value])
    _print_rows(("what", "value"), rows)


def _session_path(session: str) -> str:
    return path_of("/sessions", session)


@sessions.command("export")
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
@_of_sessions
def sessions_export(
    source: _Server | _File,
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
    if frames and not isinstance(source, _File):
        raise click.UsageError("frames are read from the journal's file: add --journal FILE")
    (session,) = names
    with contextlib.ExitStack() as stack:
        out: BinaryIO = sys.stdout.buffer
        try:
            if output is not None:
                out = stack.enter_context(output.open("wb"))
            if isinstance(source, _File):
                source.ask(lambda journal: _export(journal, session, out, frames=frames))
            else:
                source.copy(f"{_session_path(session)}/events", out)
            out.flush()
        except BrokenPipeError:
            _reader_left()
            sys.exit(1)
        except OSError as error:
            _fail(f"{output or 'stdout'}: {error.strerror or error}", status=2)


async def _export(journal: Journal, session: str, out: BinaryIO, *, frames: bool) -> None:
    from proxy import offline

    export = offline.exported_frames if frames else offline.exported
    async for lines in export(journal, session):
        out.write(lines)


class _Refused(Exception):
    """What was asked of one session of several cannot be done; the text says why."""


def _refuse(message: str, **_: Any) -> NoReturn:
    raise _Refused(message)


def _archive(source: _Server | _File, names: Sequence[str], file: Path) -> None:
    from proxy.archives.files import new_file

    names = names or _all_of(source)
    if not names:
        _fail("there are no sessions.")
    one_by_one = dataclasses.replace(source, fail=_refuse)
    done: list[str] = []
    refused: list[JsonObject] = []
    shown = _on_terminal() and not source.as_json
    try:
        if file.exists():
            raise FileExistsError(errno.EEXIST, "it exists; name another file")
        with new_file(file) as out, _progress(shown=shown) as told:
            for number, name in enumerate(names):
                told("archiving", number, len(names))
                begun = out.tell()
                try:
                    _archive_one(one_by_one, name, out)
                except _Refused as error:
                    out.seek(begun)
                    out.truncate()
                    refused.append({"id": name, "why": str(error)})
                else:
                    done.append(name)
            if not done:
                raise _Refused
    except _Refused:
        pass
    except OSError as error:
        _fail(f"{file}: {error.strerror or error}", status=2)
    for one in refused:
        click.echo(f"dragoman: {one['why']}", err=True)
    size = file.stat().st_size if done else 0
    if source.as_json:
        answer = {"path": str(file.absolute()) if done else None, "bytes": size}
        _print_json({**answer, "archived": done, "refused": refused})
    else:
        _print_rows(("session", "status"), [[name, "archived"] for name in done])
    if refused:
        sys.exit(1)


def _archive_one(source: _Server | _File, name: str, out: BinaryIO) -> None:
    if isinstance(source, _Server):
        source.copy(path_of(_session_path(name), "archive"), out)
        return
    from proxy import offline

    async def write(journal: Journal) -> None:
        async for lines in offline.archived(journal, name):
            out.write(lines)

    source.ask(write)


def _all_of(source: _Server | _File) -> list[str]:
    """Return the sessions that are there, of all owners, oldest first."""
    names: list[str] = []
    before: int | None = None
    while True:
        if isinstance(source, _File):
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
    from proxy import offline

    return offline.listed(journal, state=None, limit=1000, before=before)


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


@sessions.command("import")
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
@_OF_A_CONFIGURATION
@_of_sessions
def sessions_import(
    source: _Server | _File,
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
    shown = _on_terminal() and not source.as_json
    try:
        with file.open("rb") as opened, _progress(shown=shown) as told:
            size = file.stat().st_size
            parts = parts_of(opened, lambda at: told("checking", at, size))
            for part in parts:
                try:
                    done.append(take(opened, part, lambda at: told("importing", at, size)))
                except _Refused as error:
                    refused.append({"id": part.id, "line": part.line, "why": str(error)})
    except ArchiveError as error:
        _fail(_clean(f"{file}: {error.message}; nothing was imported."))
    except OSError as error:
        _fail(f"{file}: {error.strerror or error}", status=2)
    for one in refused:
        where = f"{file}: session `{one['id']}`, from line {one['line']}"
        click.echo(_clean(f"dragoman: {where}: {one['why']}"), err=True)
    if source.as_json:
        _print_json({"dry_run": dry_run, "sessions": done, "refused": refused})
    else:
        columns = ("id", "status", "owner", "route", "backend", "entries", "bytes")
        _print_rows(columns, [[one.get(name) for name in columns] for one in done])
    if refused:
        sys.exit(1)


def _taker(
    source: _Server | _File, wishes: Wishes, config: Path | None
) -> Callable[[BinaryIO, Part, Callable[[int], None]], JsonObject]:
    """Return what takes in one session of an archive."""
    from proxy import offline
    from proxy.archives.files import pieces_of

    one_by_one = dataclasses.replace(source, fail=_refuse)
    if isinstance(one_by_one, _Server):
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
    settings = _settings(config, resolved=False)
    return lambda file, part, told: read.ask(
        lambda journal: offline.imported(journal, settings, pieces_of(file, part, told), wishes),
        read_only=wishes.dry_run,
    )


def _agreed(question: str, *, yes: bool) -> None:
    """Ask on a terminal; elsewhere nobody could answer, and `--yes` must have said it."""
    if yes:
        return
    if not (sys.stdin.isatty() and _on_terminal()):
        raise click.UsageError("nothing is erased without a question: add --yes")
    if not click.confirm(question, err=True):
        _fail("nothing was erased.")


@sessions.command("delete")
@click.argument("names", metavar="SESSION...", nargs=-1, required=True)
@click.option(
    "--local", is_flag=True, help="Erase it here and leave what its backend has, unasked."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_of_sessions
def sessions_delete(
    source: _Server | _File, names: tuple[str, ...], local: bool, yes: bool
) -> None:
    """Delete sessions: at their backend where that can, and all that is stored of them.

    In a journal's file their backends are not asked.
    """
    _agreed(f"Erase {len(names)} session(s) for ever?", yes=yes)
    answers: list[JsonObject] = []
    for name in names:
        if isinstance(source, _File):
            from proxy import offline

            given = source.ask(
                lambda journal, name=name: offline.deleted(journal, name),  # type: ignore[misc]
                read_only=False,
            )
        else:
            query = {"local": "1"} if local else {}
            given = source.ask("DELETE", _session_path(name), query=query)
        answers.append(given)
        if not source.as_json:
            _print_rows(("session", "status"), [[given.get("id"), given.get("status")]])
    if source.as_json:
        _print_json({"deleted": [given.get("id") for given in answers]})


@sessions.command("withdraw")
@click.argument("session")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@_of_a_server
def sessions_withdraw(server: _Server, session: str, inputs: tuple[str, ...]) -> None:
    """Withdraw messages that wait for their turn, as `sessions show` prints them."""
    for name in inputs:
        given = server.ask("DELETE", path_of(_session_path(session), "inputs", name))
        if not server.as_json:
            _print_rows(("input", "status"), [[given.get("command_id"), given.get("status")]])
    if server.as_json:
        _print_json({"withdrawn": list(inputs)})


@sessions.command("settle")
@click.argument("names", metavar="SESSION...", nargs=-1, required=True)
@_of_a_server
def sessions_settle(server: _Server, names: tuple[str, ...]) -> None:
    """Bring sessions to rest that are stuck, whatever their backends say.

    The turn ends as failed, and what it has asked is withdrawn. The backend is not told: interrupt
    a turn that still runs there.
    """
    answers: list[JsonObject] = []
    for name in names:
        given = server.ask("POST", path_of(_session_path(name), "settle"))
        answers.append(given)
        if not server.as_json:
            status = "settled" if given.get("settled") else "at rest already"
            _print_rows(("session", "status"), [[given.get("id"), status]])
    if server.as_json:
        _print_json({"settled": [a.get("id") for a in answers if a.get("settled")]})


@sessions.command("prune")
@click.option(
    "--older-than", type=_AGE, metavar="AGE", help="Erase what had no event for so long: `30d`."
)
@click.option("--max-bytes", type=_SIZE, metavar="SIZE", help="Keep so much in all, like `10GB`.")
@click.option(
    "--max-bytes-per-backend", type=_SIZE, metavar="SIZE", help="Keep so much of each backend."
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and erase nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_of_sessions
def sessions_prune(
    source: _Server | _File,
    older_than: float | None,
    max_bytes: float | None,
    max_bytes_per_backend: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Erase the sessions that the given limits do not keep, those with the oldest last event first.

    One in which a turn or an interaction is open stays. Prints what went, and why.
    """
    if older_than is None and max_bytes is None and max_bytes_per_backend is None:
        raise click.UsageError(
            "say what is kept: --older-than, --max-bytes or --max-bytes-per-backend"
        )
    if not dry_run:
        _agreed("Erase the sessions that these limits do not keep for ever?", yes=yes)
    if isinstance(source, _File):
        from proxy import offline
        from proxy.retention import Limits

        limits = Limits(
            age=None if older_than is None else round(older_than * 1000),
            bytes_per_backend=_whole(max_bytes_per_backend),
            bytes=_whole(max_bytes),
        )
        answer = source.ask(
            lambda journal: offline.pruned(journal, limits, dry_run=dry_run), read_only=dry_run
        )
    else:
        body: JsonObject = {
            "older_than_seconds": older_than,
            "max_bytes": _whole(max_bytes),
            "max_bytes_per_backend": _whole(max_bytes_per_backend),
            "dry_run": dry_run,
        }
        given = {name: value for name, value in body.items() if value is not None}
        answer = source.ask("POST", "/prune", body=given)
    if source.as_json:
        _print_json(answer)
        return
    columns = ("id", "reason", "backend", "route", "updated", "bytes")
    rows = [
        [
            *(entry.get(name) for name in columns[:4]),
            _time(entry.get("updated_at")),
            entry.get("bytes"),
        ]
        for entry in answer["sessions"]
    ]
    _print_rows(columns, rows)


def _whole(size: float | None) -> int | None:
    return None if size is None else round(size)


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
    path = path_of(_session_path(session), "interactions", request)
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


# --- commands that move sessions


@main.group()
def migrate() -> None:
    """Move sessions from one backend to another."""


@migrate.command("report")
@click.option("--route", metavar="NAME", help="This route only.")
@_of_a_server
def migrate_report(server: _Server, route: str | None) -> None:
    """Say how the shadows of routes differ from the sessions that serve.

    Exit status 0: all that could be compared is the same, 1: something differs or was not driven to
    the end, 2: it cannot be said.
    """
    from proxy.migration.reporting import ShadowReportOut, lines_of

    server = _Server(server.url, server.key, server.as_json, status=2)
    query = {} if route is None else {"route": route}
    answer = server.ask("GET", "/migration/report", query=query)
    if server.as_json:
        _print_json(answer)
    found = ShadowReportOut.model_validate(answer)
    if not server.as_json:
        _print_difference([_clean(line) for line in lines_of(found)])
    sys.exit(1 if any(one.differing or one.not_driven for one in found.routes) else 0)


@migrate.command("plan")
@click.option("--from", "source_name", required=True, metavar="BACKEND", help="Where they are.")
@click.option("--to", "target_name", required=True, metavar="BACKEND", help="Where they are to be.")
@_OF_A_CONFIGURATION
@_of_sessions
def migrate_plan(
    source: _Server | _File, source_name: str, target_name: str, config: Path | None
) -> None:
    """Say what the sessions on a backend used that another backend cannot do.

    With --journal it reads the sessions of everybody, and the backends are those of --config. Exit
    status 0: nothing is impossible there; 1: something is.
    """
    from proxy.migration import planning

    source = dataclasses.replace(source, status=2)
    with _progress(shown=_on_terminal() and not source.as_json) as told:
        lines = planning.Lines(told)
        if isinstance(source, _File):
            settings = _settings(config, resolved=False)
            source.ask(
                lambda journal: planning.planned(journal, settings, source_name, target_name, lines)
            )
        else:
            query = URL.build(query={"from": source_name, "to": target_name})
            source.copy(f"/migration/plan{query}", lines)
    plan = lines.plan
    if plan is None:
        _fail("the plan broke off in the middle; try again.", status=2)
    if source.as_json:
        click.echo(orjson.dumps(plan))
    else:
        _print_plan(plan)
    sys.exit(1 if plan["impossible"] else 0)


def _of_moves(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the sessions that it moves, and how."""
    options = (
        click.argument("names", metavar="SESSION...", nargs=-1),
        click.option("--all", "everything", is_flag=True, help="All sessions that are there."),
        click.option("--dry-run", is_flag=True, help="Say what would move, and move nothing."),
        click.option(
            "--wait",
            type=_AGE,
            default="0s",
            metavar="TIME",
            help="How long sessions are waited for that are at work, like `10m`.",
        ),
        _of_a_server,
    )
    for option in reversed(options):
        command = option(command)
    return command


@migrate.command("move")
@click.option("--from", "source_name", required=True, metavar="BACKEND", help="Where they are.")
@click.option("--to", "target_name", required=True, metavar="BACKEND", help="Where they go on.")
@_of_moves
def migrate_move(
    server: _Server,
    names: tuple[str, ...],
    source_name: str,
    target_name: str,
    *,
    everything: bool,
    dry_run: bool,
    wait: float,
) -> None:
    """Let sessions go on at another backend, each between two turns.

    What was said goes over with the next message. Frontends notice nothing. Exit status 1: some did
    not move; give the command again.
    """
    found = names if names else _movable(server, source_name, everything=everything)
    body = {"from": source_name, "to": target_name, "dry_run": dry_run}
    _move(server, found, "move", body, wait=wait)


@migrate.command("rollback")
@click.option("--from", "source_name", metavar="BACKEND", help="Where they are; for --all.")
@_of_moves
def migrate_rollback(
    server: _Server,
    names: tuple[str, ...],
    source_name: str | None,
    *,
    everything: bool,
    dry_run: bool,
    wait: float,
) -> None:
    """Let sessions go on where they were before they last moved, in the conversation that they have
    there. What was said since goes over with the next message."""
    if everything and source_name is None:
        raise click.UsageError("--all needs --from BACKEND, where the sessions are now")
    found = names if names else _movable(server, source_name or "", everything=everything)
    _move(server, found, "rollback", {"dry_run": dry_run}, wait=wait)


def _movable(server: _Server, backend: str, *, everything: bool) -> list[str]:
    """Return the sessions that are on a backend."""
    if not everything:
        raise click.UsageError("name sessions, or give --all")
    found: list[str] = []
    query = {"from": backend, "limit": "1000"}
    while True:
        page = server.ask("GET", "/migration/sessions", query=query)
        found += [str(row["id"]) for row in page["sessions"]]
        if page.get("next") is None:
            return found
        query["before"] = str(page["next"])


def _move(
    server: _Server, names: Sequence[str], how: str, body: JsonObject, *, wait: float
) -> None:
    """Move sessions one after the other, those that are at work again and again, and print what
    came of it; exits with 1 where one did not move."""
    answers: dict[str, JsonObject] = {}
    left, until = list(names), time.monotonic() + wait
    with _progress(shown=_on_terminal() and not server.as_json) as told:
        while True:
            for name in left:
                told("moving", len(answers), len(names))
                status, answers[name] = server.attempt(
                    "POST", path_of(_session_path(name), how), body=body
                )
                if status == 401:
                    server.read(status, orjson.dumps(answers[name]))
            left = [name for name in left if _is_busy(answers[name])]
            if not left or time.monotonic() >= until:
                break
            time.sleep(MOVE_AGAIN_SECONDS)
    failed = [name for name in names if "error" in answers[name]]
    if server.as_json:
        _print_json({"sessions": [{"id": name, **answers[name]} for name in answers]})
    else:
        columns = ("session", "before", "backend", "status", "goes over")
        dry = bool(body["dry_run"])
        _print_rows(columns, [_moved_row(name, answers[name], dry=dry) for name in answers])
        for line in _carried_lines(answers.values()):
            click.echo(_clean(line), err=True)
        done = f"{len(names) - len(failed)} of {len(names)}"
        click.echo(f"{done} would move" if dry else f"{done} done", err=True)
    sys.exit(1 if failed else 0)


def _is_busy(answer: JsonObject) -> bool:
    error = answer.get("error")
    return isinstance(error, dict) and error.get("code") == "busy"


def _moved_row(name: str, answer: JsonObject, *, dry: bool) -> list[object]:
    error = answer.get("error")
    if error is not None:
        return [name, None, None, error.get("message"), None]
    there = answer["before"] == answer["backend"]
    status = "there already" if there else "would move" if dry else "moved"
    counts: Counter[str] = Counter()
    for one in answer["history"]:
        counts[one["fidelity"]] += one["count"]
    over = ", ".join(f"{count} {fidelity}" for fidelity, count in sorted(counts.items()))
    return [answer["id"], answer["before"], answer["backend"], status, over or None]


def _carried_lines(answers: Iterable[JsonObject]) -> list[str]:
    """Say of all sessions together what does not go over as it was."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for answer in answers:
        for one in answer.get("history", ()):
            if one["fidelity"] != "exact":
                counts[one["fidelity"], one["what"], one["why"]] += one["count"]
    return [
        f"{fidelity}: {count} {what}: {why}"
        for (fidelity, what, why), count in sorted(counts.items())
    ]


def _print_plan(plan: JsonObject) -> None:
    from proxy.migration.planning import rows_of, summary_of

    columns = ("verdict", "what", "sessions", "times", "examples", "consequence")
    _print_rows(columns, rows_of(plan))
    click.echo(_clean(summary_of(plan)), err=True)


# --- commands that work on files


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--journal",
    metavar="FILE",
    help="The journal: a file, or a URL like `sqlite:///dragoman.db`. Without it the one of the "
    "configuration.",
)
@_OF_A_CONFIGURATION
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def backup(
    file: Path, journal: str | None, config: Path | None, force: bool, as_json: bool
) -> None:
    """Copy a journal to FILE, also while a server writes it.

    The copy is the state of one moment. FILE is there when it is whole, checked and on the disk;
    prints its name, its bytes, and how many sessions and events are in it.
    """
    from proxy.journal import back_up

    url = _settings(config, resolved=False).journal.url if journal is None else _url(journal)
    try:
        with _progress(shown=_on_terminal() and not as_json) as told:
            found = back_up(url, file, force=force, told=told)
    except ConfigError as error:
        _fail(_clean(error.message), status=2)
    except DragomanError as error:
        _fail(_clean(error.message))
    counts = {"bytes": found.bytes, "sessions": found.sessions, "entries": found.entries}
    if as_json:
        _print_json({"path": str(file.absolute()), **counts})
    else:
        _print_rows(("path", *counts), [[str(file.absolute()), *counts.values()]])


@contextlib.contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Give what takes the progress of a long work; it is gone from the terminal afterwards."""
    with Progress(console=Console(stderr=True), transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=None)

        def told(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield told


@main.command()
@click.argument("file", default="-", type=click.Path(allow_dash=True))
@click.option("--from", "source", required=True, type=click.Choice(_BUILT), help="What FILE is.")
@click.option("--to", "target", required=True, type=click.Choice(_BUILT), help="What to print.")
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
@click.option("--strict", is_flag=True, help="Stop with an error at a frame that makes no sense.")
def translate(
    file: str,
    source: str,
    target: str,
    requests: Path | None,
    session_id: str | None,
    eve_form: str,
    report: Path | None,
    strict: bool,
) -> None:
    """Print a recorded response body as the same session in another dialect.

    FILE is the body (SSE or NDJSON), or `-` for stdin. `canonical` is Dragoman's own log as NDJSON.
    The same input always gives the same output. Frames that make no sense are reported in the log,
    as in a live session, and counted on stderr.
    """
    try:
        inputs = [] if requests is None else _read_requests(requests)
        options = translation.Options(
            session_id=session_id, inputs=inputs, form=eve_form, strict=strict
        )
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
                    "skipped": reader.skipped,
                    "repairs": reader.repairs,
                    "inputs_left": reader.inputs_left,
                    "complete": fault is None and reader.looks is None,
                }
                noted.write(told.close(rest))
    except NotSupported as error:
        _fail(error.message, status=2)
    except BrokenPipeError:
        _reader_left()
        sys.exit(1)
    except OSError as error:
        _fail(f"{_clean(str(error.filename or file))}: {error.strerror or error}", status=2)
    if reader.first_skipped is not None:
        first, count = reader.first_skipped, reader.skipped
        frames = "1 frame was" if count == 1 else f"{count} frames were"
        where = f"line {first.line}: byte {first.byte}: {first.reason}"
        click.echo(_clean(f"{_named(file)}: {frames} skipped, the first at {where}"), err=True)
    if fault is not None:
        if reader.looks is not None and not strict:
            reason = f"{fault.reason}: {reader.looks}"
            fault = BadInput(reason, line=fault.line, byte=fault.byte)
        _bad_input(file, fault)
    if reader.looks is not None:
        click.echo(_clean(f"{_named(file)}: no event of `{source}`: {reader.looks}"), err=True)
        sys.exit(1)


def _reader_left() -> None:
    """Write to nowhere: who reads us has enough, and Python would try to write the rest at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read_requests(path: Path) -> list[AnyCommand]:
    try:
        return read_inputs(path.read_bytes())
    except BadInput as error:
        _bad_input(str(path), error)


def _bad_input(file: str, error: BadInput) -> NoReturn:
    click.echo(_clean(f"{_named(file)}:{error.line}: byte {error.byte}: {error.reason}"), err=True)
    sys.exit(1)


def _named(file: str) -> str:
    return "<stdin>" if file == "-" else file


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
@click.argument("a", type=click.Path(allow_dash=True))
@click.argument("b", type=click.Path(allow_dash=True))
@click.option(
    "--from",
    "source",
    type=click.Choice(list(DIALECTS)),
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
    from proxy import comparing

    if a == b == "-":
        raise click.UsageError("only one of A and B can be stdin")
    with contextlib.ExitStack() as stack:
        try:
            one, other = (
                comparing.read_log(_side(stack, file, key), _named(file), source) for file in (a, b)
            )
            found = difference.compare(one.entries, other.entries, ignore)
            # Frames are looked for in the files, which are open as long.
            raws = raw_sides(found, one.spoken, other.spoken)
        except difference.UnknownField as error:
            raise click.BadParameter(str(error), param_hint="--ignore") from None
        except DragomanError as error:
            _fail(_clean(error.message), status=2)
        except OSError as error:
            _fail(f"{_clean(str(error.filename))}: {error.strerror or error}", status=2)
    for warning in (*one.warnings, *other.warnings):
        click.echo(_clean(warning), err=True)
    shown = _Shown(found, raws, (_named(a), _named(b)))
    if report is not None:
        case = comparing.Case(_clean(f"{_named(a)} {_named(b)}"), shown.lines())
        _write_report(report, comparing.junit("diff", [case]))
    if as_json:
        _print_json({"equal": not found, "differences": shown.as_json()})
    elif found:
        shown.print()
    else:
        click.echo("They mean the same.")
    sys.exit(1 if found else 0)


@main.command()
@click.argument("paths", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    type=click.Choice(list(DIALECTS)),
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
    from proxy import verifying

    verdicts = []
    try:
        for file in dict.fromkeys(file for path in paths for file in verifying.captures_in(path)):
            verdict, notes = verifying.verify_file(file, source, ignore)
            verdicts.append(verdict)
            for note in notes:
                click.echo(_clean(note), err=True)
    except difference.UnknownField as error:
        raise click.BadParameter(str(error), param_hint="--ignore") from None
    except DragomanError as error:
        _fail(_clean(error.message), status=2)
    except OSError as error:
        _fail(f"{_clean(str(error.filename))}: {error.strerror or error}", status=2)
    if report is not None:
        from proxy import comparing

        cases = [verifying.case_of(verdict) for verdict in verdicts]
        _write_report(report, comparing.junit("verify", cases))
    if as_json:
        _print_json({"captures": [verdict.as_json() for verdict in verdicts]})
    else:
        _print_rows(("outcome", "capture", "why"), [[v.outcome, v.name, v.why] for v in verdicts])
        for verdict in verdicts:
            for check in verdict.checks:
                if lines := check.lines():
                    _print_difference(
                        ["", *map(_clean, (f"{verdict.name}: {lines[0]}", *lines[1:]))]
                    )
    outcomes = {verdict.outcome for verdict in verdicts}
    if "cannot be read" in outcomes or outcomes == {"not compared"}:
        sys.exit(2)
    sys.exit(1 if "differs" in outcomes else 0)


def _write_report(report: Path, data: bytes) -> None:
    try:
        report.write_bytes(data)
    except OSError as error:
        _fail(f"{_clean(str(report))}: {error.strerror or error}", status=2)


_SESSION_URL = re.compile(r"(https?://[^?#]+?)/api/v1(/sessions/[^/?#]+)(?:/events)?/?")


def _side(stack: contextlib.ExitStack, name: str, key: str | None) -> BinaryIO:
    """Return what can be read of one side: a file, or the log of a session."""
    if name.startswith(("http://", "https://")):
        match = _SESSION_URL.fullmatch(name)
        if match is None:
            _fail(
                f"`{_clean(name)}` is not the address of a session: write it like"
                f" {DEFAULT_URL}/api/v1/sessions/ID",
                status=2,
            )
        hint = f" `dragoman sessions list --url {match[1]}` prints those that are there."
        server = _Server(match[1], key, as_json=False, status=2, named="in its place", missing=hint)
        log = io.BytesIO()
        server.copy(f"{match[2]}/events", log)
        log.seek(0)
        return log
    file, mark, session = name.rpartition("#")
    if mark and file and not Path(name).exists():
        hint = f" `dragoman sessions list --journal {file}` prints those that are there."
        journal = _File(_url(file), as_json=False, status=2, missing=hint)
        log = io.BytesIO()
        journal.ask(lambda opened: _export(opened, session, log, frames=False))
        log.seek(0)
        return log
    stream = stack.enter_context(_readable(name))
    # A pipe can be read only once, and frames are looked for in a second reading.
    return stream if stream.seekable() else io.BytesIO(stream.read())


@dataclass(frozen=True)
class _Shown:
    """What differs, and how it is shown: the log, and below it what it was in its dialects."""

    found: difference.Result
    raws: Sequence[tuple[Raw | None, Raw | None]]
    names: tuple[str, str]

    def as_json(self) -> list[JsonObject]:
        """Return the differences as JSON."""
        told = []
        for one, raws in zip(self.found.differences, self.raws, strict=True):
            value = one.as_json()
            for side, raw in zip("ab", raws, strict=True):
                if raw is not None:
                    value[side]["raw"] = raw.as_json()
            told.append(value)
        return told

    def lines(self) -> list[str]:
        """Return the first difference as lines, and how many more there are."""
        lines = self.found.first(*self.names)
        for mark, title, raw in self._sides():
            lines += ["", f"{mark * 3} {title}", *(f"    {line}" for line in raw)]
        return [_clean(line) for line in (*lines, *self.found.more())]

    def print(self) -> None:
        """Print it: on a wide terminal with the two dialects side by side."""
        sides = self._sides()
        if not _on_terminal() or Console().width < WIDE or not sides:
            _print_difference(self.lines())
            return
        _print_difference([_clean(line) for line in self.found.first(*self.names)])
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for mark, title, _ in sides:
            header = Text(f"{mark * 3} {_clean(title)}", style="red" if mark == "-" else "green")
            table.add_column(header, overflow="fold", ratio=1)
        cells = ("\n".join(map(_clean, raw)) for _, _, raw in sides)
        table.add_row(*map(Text, cells))
        console = Console()
        console.print()
        console.print(table)
        _print_difference([_clean(line) for line in self.found.more()])

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


@contextlib.contextmanager
def _readable(file: str) -> Iterator[BinaryIO]:
    with contextlib.ExitStack() as stack:
        yield sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))


def _print_difference(lines: Sequence[str]) -> None:
    """Print lines, on a terminal with colours."""
    if not _on_terminal():
        click.echo("\n".join(lines))
        return
    console = Console()
    for line in lines:
        style = {"-": "red", "+": "green", ">": "bold"}.get(line[:1], "")
        console.print(Text(line, style=style), soft_wrap=True)


class _Speed(click.ParamType[float]):
    """A factor, or `max`."""

    name = "speed"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the factor, infinite for `max`."""
        if value == "max":
            return math.inf
        try:
            speed = float(value)
        except (TypeError, ValueError):
            speed = 0.0
        if not 0 < speed < math.inf:
            self.fail(f"`{value}` is neither a factor above 0 nor `max`.", param, ctx)
        return speed


@main.command()
@click.argument("capture", type=click.Path(allow_dash=True))
@click.option(
    "--serve",
    "face",
    type=click.Choice(list(faces())),
    help="Be the recorded backend, for frontends of this dialect.",
)
@click.option(
    "--drive",
    "url",
    metavar="URL",
    help="Be the recorded frontend: say and answer the same to the backend at this URL.",
)
@click.option(
    "--dialect",
    type=click.Choice([name for name, one in DIALECTS.items() if one.client is not None]),
    help="The dialect of that backend.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --drive: write the canonical log of what came here.",
)
@click.option(
    "--bearer-env",
    metavar="NAME",
    help="With --drive: the environment variable with the backend's bearer token.",
)
@click.option(
    "--sealed",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --drive: the secrets to answer with, one a line; a capture has none.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="With --drive: after how many seconds without anything new it gives up.",
)
@_port
@click.option(
    "--speed",
    type=_Speed(),
    default="1",
    show_default=True,
    metavar="N|max",
    help="How many times as fast as it was recorded; `max` waits for nothing.",
)
@click.option(
    "--faults",
    type=int,
    metavar="SEED",
    help="Break streams; a seed breaks the same ones at the same places.",
)
@click.option(
    "--from",
    "source",
    type=click.Choice(list(DIALECTS)),
    help="What the file is, where it is neither a capture nor a canonical log.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(
    capture: str,
    face: str | None,
    url: str | None,
    dialect: str | None,
    out: Path | None,
    bearer_env: str | None,
    sealed: Path | None,
    timeout: float,
    port: int,
    speed: float,
    faults: int | None,
    source: str | None,
    as_json: bool,
) -> None:
    """Replay a recorded session.

    With --serve it is a backend until SIGINT or SIGTERM: frontends of that dialect talk to it as to
    the one that was recorded. Each session that a frontend makes begins from the start. It waits
    where the recorded person said or answered something, and takes what means the same.

    With --drive it is a frontend: it says and answers to a backend what the recorded person did,
    each when the agent is as far as it was. Exit status 1: the backend did something else, so that
    this could not go on.
    """
    if (face is None) == (url is None):
        raise click.UsageError("say what to be: --serve DIALECT, or --drive URL --dialect DIALECT")
    if (url is None) != (dialect is None):
        raise click.UsageError("--drive and --dialect go together: the dialect of that backend")
    recorded, script = _script(capture, source)
    if url is not None and dialect is not None:
        settings = _driving(url, dialect, bearer_env)
        _drive(script, settings, recorded, timeout, sealed=sealed, out=out, as_json=as_json)

    def ready(url: str, control: str) -> None:
        if as_json:
            _print_json({"url": url, "control": control})
        else:
            _announce(url)
            click.echo(f"control API at {control}")

    if faults is not None:
        from proxy.replay.faults import Faulty

        logging.basicConfig(format="%(message)s")
        logging.getLogger(Faulty.__module__).setLevel(logging.INFO)
    from proxy.replay.serving import Replay, serve_replay

    assert face is not None
    replayed = Replay(script, recorded or face, speed)
    _serve(
        lambda stop: serve_replay(replayed, face, port=port, faults=faults, ready=ready, stop=stop)
    )


def _driving(url: str, dialect: str, bearer_env: str | None) -> Settings:
    """Return the settings with one backend; exits where they are wrong."""
    from proxy.settings import BackendSettings, JournalSettings

    try:
        backend = BackendSettings.model_validate({"name": "driven", "dialect": dialect, "url": url})
    except ValueError:
        _fail(f"`{_clean(url)}` is not a URL that begins with http:// or https://.", status=2)
    if bearer_env is not None:
        token = os.environ.get(bearer_env, "")
        if not token:
            _fail(f"the environment variable `{_clean(bearer_env)}` is not set.", status=2)
        backend = backend.with_credential("Authorization", token, scheme="Bearer ")
    return Settings(journal=JournalSettings(url="memory:"), backends=(backend,))


def _drive(
    script: Script,
    settings: Settings,
    recorded: str | None,
    timeout: float,
    *,
    sealed: Path | None,
    out: Path | None,
    as_json: bool,
) -> NoReturn:
    """Drive a backend, and say what came of it."""
    from proxy.replay.driving import drive

    face = recorded if recorded in faces() else next(iter(faces()))
    assert face is not None
    try:
        values = () if sealed is None else sealed.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"{_clean(str(sealed))} cannot be read: {error}", status=2)

    def tell(step: str) -> None:
        click.echo(_clean(step), err=True)

    driven = _run(
        lambda stop: drive(
            script, settings, face, seconds=timeout, sealed=values, tell=tell, stop=stop
        )
    )
    if out is not None:
        try:
            out.write_bytes(b"".join(entry.encode() + b"\n" for entry in driven.log))
        except OSError as error:
            _fail(f"{_clean(str(out))}: {error.strerror or error}", status=2)
    if as_json:
        _print_json({"driven": driven.failed is None, "why": driven.failed, "notes": driven.notes})
    else:
        for note in driven.notes:
            tell(note)
    if driven.failed is not None:
        _fail(_clean(driven.failed))
    if not as_json:
        click.echo(f"driven: {driven.given} of {len(script.cues)} steps were given")
    sys.exit(0)


def _script(file: str, source: str | None) -> tuple[str | None, Script]:
    """Return the dialect and the script of a file; exits where it cannot be read."""
    from adapters.replay import script_of
    from proxy import comparing

    try:
        with _readable(file) as stream:
            log = comparing.read_log(stream, _named(file), source)
    except DragomanError as error:
        _fail(_clean(error.message), status=2)
    except OSError as error:
        _fail(f"{_clean(file)}: {error.strerror or error}", status=2)
    for warning in log.warnings:
        click.echo(_clean(warning), err=True)
    return log.dialect or source, script_of(log.entries)


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
