"""How a command runs until it is told to stop, and the options of those that serve."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import resource
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from adapters.wire.errors import DragomanError
from proxy.base.errors import ConfigError
from proxy.cli.printing import fail
from proxy.config.settings import Address, Settings, SettingsOverrides, load_settings, parse_listen

T = TypeVar("T")

_log = logging.getLogger(__name__)

DEFAULT_CONFIG = Path("dragoman.toml")


def run(work: Callable[[asyncio.Event], Coroutine[Any, Any, T]], seconds: float | None = None) -> T:
    """Run `work` in an event loop of its own; SIGINT and SIGTERM set the event that it gets, and
    the process ends `seconds` later at the latest."""
    # A core dump would hold sealed values and credentials.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_until_told(work, seconds))


def end_now(reason: str) -> NoReturn:
    """End the process as a crash does, for which the journal is made: threads that wait for a disk
    would hold an orderly end for as long as they do."""
    # Where nobody reads the log, writing to it waits too.
    said = threading.Thread(target=_log.error, args=("%s", reason), daemon=True)
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
            reason = "it did not stop within [server] shutdown_seconds, and is ended where it is"
            late = threading.Timer(seconds, end_now, (reason,))
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


def announce(url: str) -> None:
    """Say that a server answers requests, and where."""
    click.echo(f"listening on {url}")


OF_A_CONFIGURATION = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="DRAGOMAN_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="The configuration. Without it dragoman.toml here, if there is one, else the defaults.",
)


def found_config(config: Path | None) -> Path | None:
    """Return the configuration that is meant, None for the defaults."""
    return DEFAULT_CONFIG if config is None and DEFAULT_CONFIG.exists() else config


def read_settings(
    config: Path | None, *, resolved: bool = True, options: SettingsOverrides | None = None
) -> Settings:
    """Read the configuration, or say what is wrong with it and exit."""
    try:
        return load_settings(found_config(config), os.environ, resolved=resolved, options=options)
    except ConfigError as error:
        _wrong_configuration(error)


def run_server(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, T]], seconds: float | None = None
) -> T:
    """Run a server, see `run`, and explain why it could not start."""
    try:
        return run(work, seconds)
    except ConfigError as error:
        _wrong_configuration(error)
    except DragomanError as error:
        fail(error.whole)
    except OSError as error:
        fail(f"cannot listen: {error.strerror or error}. Choose another address or port.")


def _wrong_configuration(error: ConfigError) -> NoReturn:
    lines = "".join(f"\n  {line}" for line in error.whole.splitlines())
    fail(f"the configuration is wrong:{lines}", status=2)


port_option = click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    show_default=True,
    help="Where to listen, 0 for any free port.",
)


def checked_host(
    context: click.Context, parameter: click.Parameter, host: str | None
) -> str | None:
    """Return a host that can be listened on, or say what it is not."""
    try:
        if host is not None:
            if ":" in host:
                ipaddress.IPv6Address(host)
            parse_listen(Address(host, 0).url.removeprefix("http://"))
    except ValueError:
        raise click.BadParameter(
            f"`{host}` is not a host: write an address of this machine without its port, like "
            "127.0.0.1."
        ) from None
    return host


def listening(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that serves the options `--host` and `--port`."""
    host = click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        callback=checked_host,
        help="Where to listen.",
    )
    return host(port_option(command))
