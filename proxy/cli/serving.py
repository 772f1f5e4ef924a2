"""`dragoman serve`, and `dragoman health` that asks whether it lives."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import click

from proxy import logs
from proxy.cli.printing import clean, fail
from proxy.cli.running import (
    DEFAULT_CONFIG,
    OF_A_CONFIGURATION,
    announce,
    found_config,
    read_settings,
    run_server,
)
from proxy.errors import ConfigError
from proxy.settings import Address, Settings, load_address

_log = logging.getLogger(__name__)

HEALTH_SECONDS = 3.0
"""How long `health` waits: a server that does not say in this time that it lives holds up all."""


@click.command()
@OF_A_CONFIGURATION
def serve(config: Path | None) -> None:
    """Serve until SIGINT or SIGTERM.

    Prints `listening on http://HOST:PORT` when it answers requests. Logs are JSON lines on stderr.
    """
    settings = read_settings(config)
    logs.configure(level=settings.log.level, secrets=settings.secrets())
    if not settings.backends:
        _log.warning(
            "no backend is configured, so no frontend can be served: add a table [[backends]] with "
            "`name`, `dialect` and `url` to %s, or try `dragoman demo`",
            found_config(config) or DEFAULT_CONFIG,
        )
    run_server(lambda stop: _serve_settings(settings, stop), settings.server.shutdown_seconds)


def _serve_settings(settings: Settings, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
    # Imported here: `health` needs no server, and starts sooner without it.
    from proxy import server

    return server.serve(settings, ready=announce, stop=stop)


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
        fail(error.message)
    if not address.port:
        fail("the server takes any free port: give it one under [server] listen.")
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
        fail(f"the server at {address.url} does not answer.")
    except (aiohttp.ClientError, OSError) as error:
        fail(f"no server can be reached at {address.url}: {clean(str(error))}.")
    if status != 200:
        fail(f"what answers at {address.url} with status {status} is not a Dragoman that lives.")
