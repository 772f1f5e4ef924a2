"""`dragoman serve --workers N`: so many processes that share a journal, on one port.

This process serves nothing. It starts the others, starts anew those that end, hands on the signals
that it gets, and ends when all have ended. The kernel gives each new connection to one of them
(SO_REUSEPORT).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence

from proxy.config.settings import ClusterSettings, Settings

NUMBER = "_DRAGOMAN_WORKER"
"""The variable that tells a process which worker it is, from 1 on. Not a setting."""

SECRET = "_DRAGOMAN_WORKERS_SECRET"
"""The variable with the secret of workers that have no `[cluster]` of their own."""

AGAIN_SECONDS = 1.0
"""The pause before a worker is started anew that has ended by itself."""

_log = logging.getLogger(__name__)


def number_of(environ: Mapping[str, str]) -> int:
    """Return which worker this process is, 0 for one that is not a worker."""
    return int(environ.get(NUMBER, "0"))


def as_worker(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Return the settings of a worker: its internal listener is at any free port, on this machine
    only unless `[cluster]` says otherwise."""
    cluster = settings.cluster
    if cluster is None:
        return settings.model_copy(update={"cluster": ClusterSettings.local(environ[SECRET])})
    host = cluster.address.host
    listen = f"[{host}]:0" if ":" in host else f"{host}:0"
    return settings.model_copy(update={"cluster": cluster.at(listen=listen)})


async def run_workers(count: int, arguments: Sequence[str], stop: asyncio.Event) -> int:
    """Run so many workers with the arguments of this process until `stop` is set, and return the
    status to end with."""
    loop = asyncio.get_running_loop()
    workers: dict[int, asyncio.subprocess.Process] = {}
    shared = {SECRET: secrets.token_hex(32)}

    def reload() -> None:
        for worker in workers.values():
            worker.send_signal(signal.SIGHUP)

    loop.add_signal_handler(signal.SIGHUP, reload)

    async def keep(number: int) -> int:
        while True:
            worker = workers[number] = await asyncio.create_subprocess_exec(
                *(sys.executable, *arguments),
                env={**os.environ, **shared, NUMBER: str(number)},
                # Ctrl-C is for this process, which tells the others.
                start_new_session=True,
            )
            if stop.is_set():
                worker.terminate()
            status = await worker.wait()
            if stop.is_set() or status == 2:
                # A configuration that is wrong stays so.
                stop.set()
                return status
            _log.warning(
                "worker %d has ended with %d and is started anew",
                *(number, status),
                extra={"kind": "worker_ended"},
            )
            await asyncio.sleep(AGAIN_SECONDS)

    async def end() -> int:
        await stop.wait()
        for worker in workers.values():
            if worker.returncode is None:
                worker.terminate()
        return 0

    statuses = await asyncio.gather(end(), *(keep(number) for number in range(1, count + 1)))
    loop.remove_signal_handler(signal.SIGHUP)
    return max(map(abs, statuses))
