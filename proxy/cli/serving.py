"""`dragoman serve`, and `dragoman health` that asks whether it lives."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import click

from adapters.registry import DIALECTS
from proxy.base import logs
from proxy.base.errors import ConfigError
from proxy.base.process import no_collector
from proxy.cli import printing
from proxy.cli.backends import BackendArgument, backend_option
from proxy.cli.printing import clean, fail
from proxy.cli.running import (
    DEFAULT_CONFIG,
    OF_A_CONFIGURATION,
    announce,
    end_now,
    found_config,
    read_settings,
    run,
    run_server,
)
from proxy.cli.workers import as_worker, number_of, run_workers
from proxy.config.settings import (
    Address,
    Settings,
    SettingsOverrides,
    is_postgres,
    load_address,
    load_settings,
    parse_listen,
)

_log = logging.getLogger(__name__)

MOST_ROUTES = 8
"""How many routes are named on a terminal at the start."""


def _listen(context: click.Context, parameter: click.Parameter, listen: str | None) -> str | None:
    try:
        if listen is not None:
            parse_listen(listen)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None
    return listen


@click.command()
@OF_A_CONFIGURATION
@click.option(
    "--listen",
    callback=_listen,
    metavar="HOST:PORT",
    help="Where to listen, port 0 for any free one. It overrides the configuration.",
)
@backend_option(
    "A backend, besides those of the configuration; repeatable. It is named by its dialect, or "
    "NAME. Its credential, if it wants one, is in the environment variable NAME_KEY, like "
    "ENGINE_KEY."
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    metavar="N",
    help="How many processes serve, to use so many cores. They need a journal in PostgreSQL.",
)
def serve(
    config: Path | None, listen: str | None, backends: Sequence[BackendArgument], workers: int
) -> None:
    """Serve until SIGINT or SIGTERM; SIGHUP reloads the configuration.

    Prints `listening on http://HOST:PORT` when it answers requests, and on a terminal the base URLs
    for frontends. Logs are JSON lines on stderr.
    """
    given = [(backend.option, backend.entry(os.environ)) for backend in backends]
    settings = read_settings(config, options=SettingsOverrides(listen, given))
    logs.configure(level=settings.log.level, secrets=settings.secrets())
    if not settings.backends:
        _log.warning(
            "no backend is configured, so no frontend can be served: add a table [[backends]] with "
            "`name`, `dialect` and `url` to %s, give --backend, or try `dragoman demo`",
            found_config(config) or DEFAULT_CONFIG,
        )
    worker = number_of(os.environ)
    if workers > 1 and not worker:
        _run_workers(settings, workers)
    if worker:
        settings = as_worker(settings, os.environ)
    file, options = found_config(config), SettingsOverrides(listen, given)

    def read() -> Settings:
        # The file of the start: where it is gone, the defaults are not what is meant.
        read = load_settings(file, os.environ, options=options)
        return as_worker(read, os.environ) if worker else read

    run_server(lambda stop: _serve_settings(settings, stop, read), settings.server.shutdown_seconds)


def _run_workers(settings: Settings, count: int) -> NoReturn:
    """Let so many processes serve, and end with them."""
    if not is_postgres(settings.journal.url):
        fail(
            "several workers need a journal that they can share: write `url = "
            '"postgresql://…"` in [journal]',
            status=2,
        )
    if not settings.server.address.port:
        fail("several workers need one port: give it under [server] listen", status=2)
    # As this process was started, whatever that was: `-m` is not in its arguments.
    arguments = [*sys.orig_argv[1:]]
    sys.exit(run(lambda stop: run_workers(count, arguments, stop)))


def _serve_settings(
    settings: Settings, stop: asyncio.Event, read: Callable[[], Settings]
) -> Coroutine[Any, Any, None]:
    # Imported here: `health` needs no server, and starts sooner without it.
    with no_collector():
        from proxy.app import server

    def ready(url: str) -> None:
        if number_of(os.environ) > 1:
            # The first one says it for all.
            return
        announce(url)
        if printing.on_terminal():
            for line in base_urls(url, settings.route_names):
                click.echo(line)

    return server.serve(
        settings,
        ready=ready,
        stop=stop,
        failed=lambda error: end_now(error.whole),
        reuse_port=number_of(os.environ) > 0,
        read=read,
    )


def base_urls(url: str, routes: Sequence[str]) -> list[str]:
    """Return lines with the base URLs that frontends of each dialect are given."""
    if not routes:
        return []
    route = routes[0] if len(routes) == 1 else "ROUTE"
    faces = [name for name, known in DIALECTS.items() if known.has_face]
    width = max(map(len, faces))
    lines = [f"  {name:<{width}} frontends: {url}/as/{name}/to/{route}" for name in faces]
    if len(routes) > 1:
        more = f" and {len(routes) - MOST_ROUTES} more" if len(routes) > MOST_ROUTES else ""
        lines.append(f"  ROUTE is one of {', '.join(routes[:MOST_ROUTES])}{more}")
    return lines


@click.command()
@OF_A_CONFIGURATION
def health(config: Path | None) -> None:
    """Ask the server of a configuration whether it lives.

    It must run on this machine, or in this container. Exit status 0 says that it lives, 1 that it
    does not: also where the configuration cannot be read, because Docker reserves 2.
    """
    try:
        address = load_address(found_config(config), os.environ)
    except ConfigError as error:
        fail(error.whole)
    if not address.port:
        fail("the server takes any free port: give it one under [server] listen.")
    asyncio.run(_ask_health(address.reached))


async def _ask_health(address: Address) -> None:
    try:
        # A server that does not say in this time that it lives holds up all.
        timeout = aiohttp.ClientTimeout(total=3.0)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{address.url}/healthz", allow_redirects=False) as response,
        ):
            status = response.status
    except TimeoutError:
        fail(f"the server at {address.url} does not answer.")
    except (aiohttp.ClientError, OSError) as error:
        fail(f"no server can be reached at {address.url}: {clean(str(error))}.")
    if status != 200:
        fail(f"what answers at {address.url} with status {status} is not a Dragoman that lives.")
