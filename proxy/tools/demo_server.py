"""The server of a demo: a process of its own, which can be killed and comes back.

The demo holds the sockets on which it listens, and starts it again when it was killed: clients that
connect meanwhile wait. It learns what to serve as a line of JSON on its stdin, which stays open for
as long as the demo lives: it stops when that ends, also where the demo was killed.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from adapters.wire.errors import DragomanError
from proxy.app.server import BACKLOG, serve
from proxy.base import logs
from proxy.base.errors import CannotListen, ConfigError, why_not_listening
from proxy.base.tasks import Tasks
from proxy.config.settings import (
    Address,
    KeySettings,
    Settings,
    SettingsOverrides,
    load_settings,
    parse_listen,
)
from proxy.control.demo import KEY, Demo, DemoScript

STARTS = 5
"""How often in a row it may be killed before it answers requests: then the demo gives up."""

COMMAND = ("-m", "dragoman", "demo", "--server")
"""What Python runs as this process."""

SCRIPTS = (
    DemoScript(name="answer", title="Answer", text="script: text"),
    DemoScript(name="slow", title="Answer slowly", text="script: slow 60"),
    DemoScript(name="tool", title="Use a tool", text="script: tool"),
    DemoScript(name="ask", title="Ask me", text="script: approve"),
    DemoScript(name="fail", title="Fail", text="script: fail"),
)
"""What is offered to be tried: every scripted backend plays it."""

_NOT_HERE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""What the kernel says of an address that this machine does not have."""

_log = logging.getLogger(__name__)


class DemoPlan(BaseModel):
    """What the server of a demo is told.

    `listen` and `origins` are those of the command line; `sockets` are the numbers of open files
    that listen there; `backends` are entries of `[[backends]]`, `scripted` the names of those that
    play scripts. `key_sha256` is the digest of a key of the demo's own, which counts where keys are
    needed. It is the `started`th process, from 1.
    """

    model_config = ConfigDict(frozen=True)

    listen: str
    sockets: tuple[int, ...] = ()
    origins: tuple[str, ...] = ()
    backends: tuple[dict[str, Any], ...] = ()
    scripted: tuple[str, ...] = ()
    journal: Path
    key_sha256: str
    started: int = 1

    def settings(self, environ: Mapping[str, str]) -> Settings:
        """Return the settings of the demo. They have keys where other machines can reach it, or the
        environment has keys.

        Raises:
            ConfigError: the environment is wrong, or not for a demo.
        """
        own = {"name": KEY, "sha256": self.key_sha256}
        url = f"sqlite:///{self.journal}"
        defaults: dict[str, Any] = {
            "server": {"shutdown_seconds": 3.0},
            "log": {"level": "warning"},
            "journal": {"url": url},
            "keys": [] if parse_listen(self.listen).loopback else [own],
        }
        backends = [("the demo", backend) for backend in self.backends]
        options = SettingsOverrides(self.listen, backends, self.origins)
        found = load_settings(None, environ, options=options, defaults=defaults)
        if found.journal.url != url:
            # Its backends know no session of before, and would be asked about those of a real
            # journal.
            why = "a demo keeps nothing, and takes no `journal.url`: unset it, or run"
            raise ConfigError(f"the environment: {why} `dragoman serve`")
        if not found.keys:
            return found
        others = [key for key in found.keys if key.name != KEY]
        return found.model_copy(update={"keys": (*others, KeySettings.model_validate(own))})


def read_plan() -> DemoPlan:
    """Read what to serve from stdin.

    Raises:
        ValueError: it is something else.
    """
    return DemoPlan.model_validate_json(sys.stdin.buffer.readline())


async def serve_demo(
    plan: DemoPlan, settings: Settings, *, ready: Callable[[str], None], stop: asyncio.Event
) -> None:
    """Serve a demo in this process until `stop` is set or stdin ends; `ready` hears the URL once
    requests are answered.

    Raises:
        DragomanError: it cannot start.
    """
    logs.configure(level=settings.log.level, secrets=settings.secrets())
    seconds = settings.server.shutdown_seconds
    threading.Thread(target=_stop_with_demo, args=(seconds,), daemon=True).start()
    await serve(
        settings,
        ready=ready,
        stop=stop,
        checked=False,
        sockets=[socket.socket(fileno=number) for number in plan.sockets],
        demo=Demo(SCRIPTS, plan.scripted, plan.started),
    )


def _stop_with_demo(seconds: float) -> None:
    """Wait for the end of stdin, then end this process: in order where that takes less than
    `seconds`."""
    try:
        # Not by `sys.stdin`: its lock would be held when the interpreter ends.
        while os.read(0, 4096):
            pass
    except OSError:
        # The demo was killed before it read all.
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)
    os._exit(1)


def open_sockets(address: Address) -> list[socket.socket]:
    """Listen at an address, on one port if its name stands for several.

    Raises:
        CannotListen: why, and what to do.
    """
    host, port = address
    opened: list[socket.socket] = []
    failed: OSError | None = None
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, where in dict.fromkeys(known):
            try:
                at = (where[0], port)
                opened.append(socket.create_server(at, family=family, backlog=BACKLOG))
            except OSError as error:
                failed = error
                # A machine may know a name of itself by IPv6 and not have that.
                if error.errno not in _NOT_HERE:
                    raise
                continue
            port = port or opened[0].getsockname()[1]
        if not opened and failed is not None:
            raise failed
    except (OSError, UnicodeError) as error:
        for one in opened:
            one.close()
        raise CannotListen(why_not_listening(error, host, port)) from error
    return opened


async def start_server(plan: DemoPlan, environ: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Start the server of a demo as a process, and tell it what to serve."""
    # Modules are found as they are here: the folder in which it is started may have others.
    here = () if str(Path.cwd()) in sys.path else ("-P",)
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, *here, *COMMAND),
        env=environ,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=plan.sockets,
        # Ctrl-C on a terminal is for the demo, which stops it in order.
        start_new_session=True,
    )
    assert server.stdin is not None
    server.stdin.write(plan.model_dump_json().encode() + b"\n")
    return server


async def keep_serving(
    plan: DemoPlan,
    environ: Mapping[str, str],
    *,
    seconds: float,
    ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Run the server of a demo as a process until `stop` is set, and start it again whenever it was
    killed. `ready` hears the URL once, when requests are answered; in the end the process has
    `seconds` to stop in order.

    Raises:
        DragomanError: it has ended by itself, or was killed at several starts in a row. It has said
            why on stderr.
    """
    tasks = Tasks("demo server")
    stopped = tasks.start(stop.wait(), name="stop")
    known, unheard = False, 0
    try:
        for number in itertools.count(1):
            server = await start_server(plan.model_copy(update={"started": number}), environ)
            try:
                listening = tasks.start(_announced(server), name="start")
                ended = tasks.start(server.wait(), name=f"process {server.pid}")
                await asyncio.wait({listening, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not stop.is_set() and (url := await listening):
                    unheard = 0
                    if not known:
                        ready(url)
                    known = True
                await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set():
                    return
            finally:
                await _end(server, seconds)
            unheard += not listening.result()
            _check_end(await ended, unheard)
            text = "the server of the demo was ended, and is started again"
            _log.warning(text, extra={"status": server.returncode})
    finally:
        await tasks.aclose()


async def _announced(server: asyncio.subprocess.Process) -> str:
    """Return the URL that a server says, or nothing when it ended before that."""
    assert server.stdout is not None
    return (await server.stdout.readline()).decode().strip()


async def _end(server: asyncio.subprocess.Process, seconds: float) -> None:
    """End a process, if it has not ended."""
    assert server.stdin is not None
    server.stdin.close()
    try:
        async with asyncio.timeout(seconds):
            await server.wait()
    except TimeoutError:
        server.kill()
        await server.wait()


def _check_end(status: int, unheard: int) -> None:
    if status > 0:
        raise DragomanError(f"the server of the demo ended by itself, with status {status}.")
    if unheard >= STARTS:
        why = f"killed at {unheard} starts in a row, the last time by signal {-status}"
        raise DragomanError(f"the server of the demo was {why}.")
