"""The demo: the proxy with scripted backends behind it, without configuration, network or key.

Everything is real but the agents: a journal in a file, the faces, the control API. The proxy is a
process of its own, so that it can be killed while the agents go on. `SAMPLES` are
the commands that the command line prints and that a person pastes into one shell, one after the
other; `check` runs exactly these.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from adapters.registry import DIALECTS
from proxy.base import logs
from proxy.base.tasks import Tasks
from proxy.config.settings import Address, load_address
from proxy.scripted import BACKENDS, CALLERS, CREATE, ScriptedOptions
from proxy.scripted.hermes import GATED_SESSION
from proxy.tools.demo_server import DemoPlan, keep_serving, open_sockets

HOST = "127.0.0.1"

_KEYS = "DRAGOMAN_KEYS"
"""What the variables begin with that add keys."""

LATE_SECONDS = 2.0
"""How much longer than it should the server may take to stop before it is killed."""

SAMPLE_SECONDS = 20.0
"""How long a sample may take. The slowest plays a turn of about a second."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Commands to paste. `{http}` is a program that is called like curl, `{url}` the demo's
    address.

    `expect` occurs in what they print. Some are of a backend that calls us, which a demo with keys
    does not have.
    """

    title: str
    command: str
    expect: str
    of_a_caller: bool = False

    def text(self, url: str, http: str) -> str:
        """Return the commands as a shell takes them."""
        return self.command.replace("{http}", http).replace("{url}", url)


# eve page, sections 4.1 (create), 7.1 (`follow=0` ends at the tail), 5 (answers and follow-ups).
# Loops are bounded: a shell must not ask on when the demo was stopped.
# `printf` and not `echo`, which takes the backslashes of JSON for its own in some shells.
SAMPLES: tuple[Sample, ...] = (
    Sample(
        "Open a session as an eve frontend; the backend is an Engine",
        "EVE={url}/as/eve/to/engine/eve/v1/session TRIES='1 2 3 4 5 6 7 8 9'\n"
        """ANSWER=$({http} -H 'content-type: application/json'"""
        """ -d '{"message":"script: approve"}' $EVE)\n"""
        """SESSION=$(printf '%s' "$ANSWER" | sed 's/.*"sessionId":"\\([^"]*\\)".*/\\1/')\n"""
        """printf '%s\\n' "$ANSWER\"""",
        '"status":"accepted"',
    ),
    Sample(
        "Read its stream up to the point where the agent waits for a yes",
        'for TRY in $TRIES; do STREAM=$({http} "$EVE/$SESSION/stream?follow=0")\n'
        """  printf '%s\\n' "$STREAM" | grep -q session.waiting && break; sleep 0.2; done\n"""
        """printf '%s\\n' "$STREAM\"""",
        "rm -rf /srv/exports/2024",
    ),
    Sample(
        "Say yes",
        """REQUEST=$(printf '%s\\n' "$STREAM" |"""
        """ sed -n '/input.requested/s/.*"requestId":"\\([^"]*\\)".*/\\1/p')\n"""
        "{http} -H 'content-type: application/json'"
        """ -d '{"inputResponses":[{"requestId":"'"$REQUEST"'","optionId":"approve"}]}'"""
        " $EVE/$SESSION; echo",
        '"status":"accepted"',
    ),
    Sample(
        "See what came of it",
        'for TRY in $TRIES; do {http} "$EVE/$SESSION/stream?follow=0" |'
        " grep message.completed | grep 'turn 1' && break; sleep 0.2; done",
        "4.1 GB freed",
    ),
    Sample(
        "Go on in the same session",
        "{http} -H 'content-type: application/json'"
        """ -d '{"message":"script: tool"}' $EVE/$SESSION; echo\n"""
        'for TRY in $TRIES; do {http} "$EVE/$SESSION/stream?follow=0" |'
        " grep message.completed | grep 'turn 2' && break; sleep 0.2; done",
        "`to_cents` truncates",
    ),
    # Engine page, sections 6 (`/execute`), 10.3 (pending), 10.1 (respond) and 11.1 (replay). The
    # answer to `/execute` is the turn's stream, which waits: it goes on in the background.
    Sample(
        "Ask as an Engine frontend; the backend is a Herm, and waits for a yes",
        "ENGINE={url}/as/engine/to/herm\n"
        "{http} -H 'content-type: application/json' $ENGINE/execute"
        """ -d '{"task_id":"demo","message":"script: approve"}' >/dev/null &\n"""
        """for TRY in $TRIES; do PENDING=$({http} "$ENGINE/hitl/pending?task_id=demo")\n"""
        """  printf '%s\\n' "$PENDING" | grep request_id && break; sleep 0.2; done""",
        "request_id",
    ),
    Sample(
        "Say yes there, and see what came of it",
        """REQUEST=$(printf '%s' "$PENDING" | sed 's/.*"request_id":"\\([^"]*\\)".*/\\1/')\n"""
        "{http} -H 'content-type: application/json' $ENGINE/hitl/respond"
        """ -d '{"task_id":"demo","request_id":"'"$REQUEST"'","answer":"yes"}'; echo\n"""
        'for TRY in $TRIES; do {http} "$ENGINE/execute/replay?after=0" |'
        " grep completed && break; sleep 0.2; done",
        '"phase":"completed"',
    ),
    # Herm page, sections 2.2 (create), 3 (send events) and 4.2 (list).
    Sample(
        "Talk as a Herm frontend; the backend is an eve server",
        "HERM={url}/as/herm/to/eve/v1\n"
        "SESSION=$({http} -X POST $HERM/agents/eve/sessions |"
        """ sed 's/.*"id":"\\(dgs_[^"]*\\)".*/\\1/')\n"""
        "{http} -H 'content-type: application/json' $HERM/sessions/$SESSION/events"
        """ -d '{"type":"user.message","content":[{"type":"text","text":"script: tool"}]}'\n"""
        """for TRY in $TRIES; do {http} "$HERM/sessions/$SESSION/events" |"""
        " grep end_turn && break; sleep 0.2; done",
        "`to_cents` truncates",
    ),
    # Nobody asked this one here: a recorded Hermes sends its hooks, and one waits for a yes.
    Sample(
        "Watch a Hermes as an eve frontend: it waits for a yes to a command",
        f"WATCH={{url}}/as/eve/to/hermes-agent/eve/v1/session/{GATED_SESSION}\n"
        'for TRY in $TRIES; do STREAM=$({http} "$WATCH/stream?follow=0")\n'
        """  printf '%s\\n' "$STREAM" | grep input.requested && break; sleep 0.2; done""",
        "echo hi",
        of_a_caller=True,
    ),
    Sample(
        "Say yes, and see the Hermes go on",
        """REQUEST=$(printf '%s\\n' "$STREAM" |"""
        """ sed -n '/input.requested/s/.*"requestId":"\\([^"]*\\)".*/\\1/p')\n"""
        "{http} -H 'content-type: application/json'"
        """ -d '{"inputResponses":[{"requestId":"'"$REQUEST"'","optionId":"approve"}]}'"""
        " $WATCH; echo\n"
        'for TRY in $TRIES; do {http} "$WATCH/stream?follow=0" |'
        " grep message.completed | grep printed && break; sleep 0.2; done",
        "The command printed hi.",
        of_a_caller=True,
    ),
    Sample(
        "List all sessions by the control API",
        "{http} {url}/api/v1/sessions; echo",
        '"route":"engine"',
    ),
)


def samples_of(key: str | None) -> list[Sample]:
    """Return the samples of a demo that is asked with a key, or with none."""
    return [one for one in SAMPLES if key is None or not one.of_a_caller]


def http_program(key: str | None = None, *, anywhere: bool = False) -> str:
    """Return how a sample makes a request: with curl, or with our own command where that is
    missing; with the key in each request, if there is one.

    `anywhere` is for samples that may be pasted on another machine, where ours is missing.
    """
    program = f"{shlex.quote(sys.executable)} -m dragoman request"
    if anywhere or shutil.which("curl"):
        program = "curl -sS"
    return program if key is None else f"{program} -H 'authorization: Bearer {key}'"


async def run_demo(
    *,
    environ: Mapping[str, str],
    host: str | None,
    port: int | None,
    origins: Sequence[str] = (),
    ready: Callable[[str, str | None], None],
    stop: asyncio.Event,
) -> None:
    """Serve the demo until `stop` is set; its journal is removed afterwards. Its server is another
    process, which is started again when it is killed.

    Args:
        environ: the settings that variables give, as they do for `serve`.
        host: where to listen; None where `environ` says, else on loopback.
        port: likewise, 0 for any free port; None for that of `environ`, else 8787, or the next free
            one when that is busy.
        origins: the web pages that may use it.
        ready: is called once requests are answered, with the base URL and with what every request
            has to show as its key: None where only this machine is served.
        stop: ends the demo.

    Raises:
        ConfigError: the settings are wrong, or not for a demo.
        CannotListen: the port is busy.
        OSError: none of the ports to try is free.
        DragomanError: the server does not start, and has said why on stderr.
    """
    configured = load_address(None, environ)
    host = configured.host if host is None else host
    if port is None:
        port = free_port(configured.port, host) if configured.port else 0
    async with contextlib.AsyncExitStack() as stack:
        backends = []
        for dialect, create in BACKENDS.items():
            if not DIALECTS[dialect].has_client:
                continue
            url = await stack.enter_async_context(_backend(create(ScriptedOptions())))
            backend: dict[str, Any] = {"name": dialect, "dialect": dialect, "url": url}
            if dialect in CREATE:
                backend["create"] = CREATE[dialect]
            backends.append(backend)
        scripted = tuple(str(backend["name"]) for backend in backends)
        callers = _callers(host, environ)
        for dialect in callers:
            url = DIALECTS[dialect].other_urls[0]
            backends.append({"name": dialect, "dialect": dialect, "url": url})
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-demo-"))
        key = secrets.token_urlsafe(24)
        plan = DemoPlan(
            listen=_listen(host, port),
            origins=tuple(origins),
            backends=tuple(backends),
            scripted=scripted,
            journal=Path(folder) / "demo.db",
            key_sha256=hashlib.sha256(key.encode()).hexdigest(),
        )
        found = plan.settings(environ)
        logs.configure(level=found.log.level, secrets=found.secrets())
        sockets = await asyncio.to_thread(open_sockets, found.server.address)
        for one in sockets:
            stack.enter_context(one)
        playing = Tasks("demo")
        stack.push_async_callback(playing.aclose)

        def begin(url: str) -> None:
            for dialect, play in callers.items():
                playing.start(_played(play(f"{url}/from/{dialect}")), name=dialect)
            ready(url, key if found.keys else None)

        others = {name: os.environ[name] for name in os.environ if not name.startswith("DRAGOMAN_")}
        await keep_serving(
            plan.model_copy(
                update={
                    "listen": _listen(host, sockets[0].getsockname()[1]),
                    "sockets": tuple(one.fileno() for one in sockets),
                }
            ),
            {**others, **environ},
            seconds=found.server.shutdown_seconds + LATE_SECONDS,
            ready=begin,
            stop=stop,
        )


def _listen(host: str, port: int) -> str:
    return Address(host, port).url.removeprefix("http://")


def _callers(
    host: str, environ: Mapping[str, str]
) -> Mapping[str, Callable[[str], Coroutine[Any, Any, None]]]:
    """Return what plays the backends that call us: where a key is needed theirs would be signed,
    and nobody has told them by what."""
    alone = Address(host, 0).loopback
    return CALLERS if alone and not any(name.startswith(_KEYS) for name in environ) else {}


async def _played(play: Coroutine[Any, Any, None]) -> None:
    """Play a session of a backend that calls us; a demo that ends cuts it off."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        await play


@contextlib.asynccontextmanager
async def _backend(app: web.Application) -> AsyncIterator[str]:
    """Serve a scripted backend on a free port of this machine, and give its URL."""
    # A reader that leaves must not leave its handler behind, waiting for the next heartbeat.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def free_port(first: int, host: str = HOST) -> int:
    """Return the first port from `first` on that is free now.

    Raises:
        OSError: too many in a row are busy.
    """
    # As many demos as nobody runs at once.
    for port in range(first, first + 100):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            # As the server will: a port that only waits for its last packets is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                probe.listen()
            except OSError as error:
                if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                    raise
                continue
            return port
    raise OSError(errno.EADDRINUSE, f"all ports from {first} to {port} are busy")


@dataclass(frozen=True, slots=True)
class SampleResult:
    """What a sample printed, and whether that is what it should."""

    sample: Sample
    passed: bool
    output: str


async def check(
    url: str, http: str, samples: Sequence[Sample] | None = None
) -> AsyncGenerator[SampleResult, None]:
    """Run samples in one shell, as somebody who pastes them does, and yield how each went.

    Later samples use what earlier ones found, so nothing is run after one that hangs.
    """
    shell = await asyncio.create_subprocess_exec(
        "sh",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    try:
        for number, sample in enumerate(SAMPLES if samples is None else samples):
            mark = f"--- end of sample {number} ---"
            script = f"{sample.text(url, http)}\nprintf '\\n%s\\n' '{mark}'\n"
            shell.stdin.write(script.encode())
            output = ""
            try:
                async with asyncio.timeout(SAMPLE_SECONDS):
                    while not re.search(f"^{mark}$", output, re.MULTILINE):
                        read = await shell.stdout.read(65_536)
                        if not read:
                            break
                        output += read.decode(errors="replace")
            except TimeoutError:
                yield SampleResult(
                    sample, False, f"{output}\n(no end after {SAMPLE_SECONDS:.0f} s)"
                )
                return
            output = output.replace(mark, "").strip()
            yield SampleResult(sample, sample.expect in output, output)
    finally:
        # The shell and whatever it still runs; it leads a group of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        await shell.wait()
