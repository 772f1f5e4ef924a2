"""SIGTERM, in real processes: what is refused, what ends, what is finished, and how long it takes.

The Engine lives in this process, so that a test decides when it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adapters import events as ev
from proxy.journal import open_journal
from proxy.scripted.faults import Faults, Silence, SlowHead
from tests.e2e.conftest import Run
from tests.support.dragoman import BACKEND_KEY
from tests.support.journals import sqlite, stored_entries
from tests.support.running import BACKEND, Running
from tests.support.serving import HOST
from tests.support.waiting import SOON_S, until

# Longer than any test waits: an answer that comes when the test says so.
LATER = SlowHead(600.0)

# What is slow then is a machine that does much else, not the stop.
LATE_S = 3.0


class Server:
    """`dragoman serve` on a folder's journal, over the Engine of a `Running`."""

    def __init__(self, folder: Path, running: Running, *, shutdown_seconds: float) -> None:
        self._running = running
        self.journal = sqlite(folder)
        self._config = folder / "dragoman.toml"
        self._config.write_text(
            f"""
            [server]
            listen = "{HOST}:0"
            shutdown_seconds = {shutdown_seconds}
            [journal]
            url = "{self.journal}"
            [[backends]]
            name = "{BACKEND}"
            dialect = "engine"
            url = "{running.engine_url}"
            auth = {{ header = "X-Engine-Key", env = "E2E_ENGINE_KEY" }}
            """
        )
        self.url = ""
        self.child: asyncio.subprocess.Process

    async def start(self, before: str = "") -> None:
        """Start it, with Python code that is run before; returns when it listens."""
        code = f"{before}\nfrom proxy.cli import main\nmain()"
        self.child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, "serve", "--config", str(self._config)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "E2E_ENGINE_KEY": BACKEND_KEY},
        )
        assert self.child.stdout is not None
        async with asyncio.timeout(SOON_S):
            async for line in self.child.stdout:
                if found := re.search(rb"listening on (http://\S+)", line):
                    self.url = found[1].decode()
                    return
        raise AssertionError("it does not listen")

    def tell(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Send a signal; returns when that was."""
        self.child.send_signal(number)
        return time.monotonic()

    async def over(self) -> tuple[int, str]:
        """Wait for its end; return exit status and log."""
        async with asyncio.timeout(SOON_S):
            _, log = await self.child.communicate()
        assert self.child.returncode is not None
        return self.child.returncode, log.decode()

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask, and return status and JSON of the answer."""
        async with self._running.http.request(method, self.url + path, json=body) as response:
            return response.status, await response.json()

    async def stored(self, session_id: str) -> list[ev.Event]:
        """What the journal holds of a session, while nothing runs on it."""
        journal = open_journal(self.journal)
        await journal.open()
        try:
            return [entry.event for entry in await stored_entries(journal, session_id)]
        finally:
            await journal.aclose()


@contextlib.asynccontextmanager
async def served(
    folder: Path, running: Running, *, shutdown_seconds: float = 60.0, before: str = ""
) -> AsyncIterator[Server]:
    server = Server(folder, running, shutdown_seconds=shutdown_seconds)
    await server.start(before)
    try:
        yield server
    finally:
        if server.child.returncode is None:
            server.child.kill()
        await server.child.communicate()


async def paused(running: Running, server: Server) -> tuple[Any, str]:
    """Return an eve session that waits for an approval, and the request's id."""
    client = running.eve()
    client.host = f"{server.url}/as/eve/to/{BACKEND}"
    session = await client.create("script: approve")
    return session, (await session.read_turn()).requests[0]["requestId"]


def settled_inputs(events: list[ev.Event]) -> list[str]:
    return [event.outcome for event in events if isinstance(event, ev.InputSettled)]


async def test_a_stop_waits_for_the_answer_to_a_command_and_refuses_what_is_new(
    run: Run, tmp_path: Path
) -> None:
    running = await run(engine={"faults": Faults({("respond", 1): LATER})})
    async with served(tmp_path, running) as server:
        session, request = await paused(running, server)
        path = f"/as/eve/to/{BACKEND}/eve/v1/session/{session.session_id}/stream"
        async with running.http.get(f"{server.url}{path}") as stream:
            await session.respond(request, "approve")
            await until(lambda: bool(running.requests("respond")))
            server.tell()
            # The body ends in order though the turn goes on: its client comes back by itself.
            async with asyncio.timeout(SOON_S):
                await stream.read()
        status, body = await server.ask("GET", "/readyz")
        assert (status, body) == (503, {"status": "stopping"})
        refusals: list[tuple[str, str, Any, Any]] = [
            ("POST", "eve/v1/session", {"message": "hello"}, {"ok": False}),
            ("POST", f"eve/v1/session/{session.session_id}", {"message": "hello"}, {"ok": False}),
            ("GET", f"eve/v1/session/{session.session_id}/stream", None, {"ok": False}),
        ]
        for method, tail, given, expected in refusals:
            status, body = await server.ask(method, f"/as/eve/to/{BACKEND}/{tail}", given)
            assert status == 503, (tail, body)
            assert expected.items() <= body.items()
            assert isinstance(body["error"], str)
        status, body = await server.ask(
            "POST", f"/as/herm/to/{BACKEND}/v1/agents/agent_K4/sessions", {}
        )
        assert (status, body["error"]["code"]) == (503, "unavailable")
        status, body = await server.ask(
            "GET", f"/as/herm/to/{BACKEND}/v1/sessions/{session.session_id}/events/stream"
        )
        assert (status, body["error"]["code"]) == (503, "unavailable")
        status, body = await server.ask(
            "POST", f"/as/engine/to/{BACKEND}/execute", {"message": "hello", "task_id": "new"}
        )
        assert (status, body["error"]) == (503, "DRAINING")
        status, body = await server.ask("DELETE", f"/api/v1/sessions/{session.session_id}")
        assert (status, body["error"]["code"]) == (503, "stopping")
        assert server.child.returncode is None
        # Its answer is all that was waited for.
        running.engine.stopping.set()
        status, log = await server.over()
        assert status == 0, log
        assert "cut off" not in log
        events = await server.stored(session.session_id)
        assert settled_inputs(events) == ["taken", "taken"]
        assert len(running.requests("respond")) == 1
        assert running.requests("pending") == []


async def test_a_stop_cuts_off_what_takes_too_long_and_the_next_start_finds_it(
    run: Run, tmp_path: Path
) -> None:
    faults = Faults({("respond", 1): Silence(done=True)})
    running = await run(engine={"faults": faults})
    async with served(tmp_path, running, shutdown_seconds=4.0) as server:
        session, request = await paused(running, server)
        await session.respond(request, "approve")
        await until(lambda: bool(running.requests("respond")))
        told = server.tell()
        status, log = await server.over()
        assert time.monotonic() - told < 4.0 + LATE_S
        assert status == 0, log
        assert "cut off" in log
        assert settled_inputs(await server.stored(session.session_id)) == ["taken"]
        await server.start()
        session.client.host = f"{server.url}/as/eve/to/{BACKEND}"
        turn = await session.read_turn()
        assert turn.text is not None
        assert "4.1 GB freed" in turn.text
    assert len(running.requests("respond")) == 1


@pytest.mark.parametrize(
    "before",
    [
        "from proxy.journal._writer import Writer; Writer._close = lambda _: time.sleep(600)",
        "from proxy.journal.sqlite import SqliteJournal as Journal\n"
        "Journal._close_readers = lambda _: asyncio.to_thread(time.sleep, 600)",
        "from proxy.tasks import Tasks; Tasks.aclose = lambda _: asyncio.sleep(600)",
    ],
    ids=["writer", "reader", "task"],
)
async def test_a_stop_is_over_in_time_whatever_hangs(run: Run, tmp_path: Path, before: str) -> None:
    running = await run(engine={"faults": Faults({("respond", 1): Silence(done=True)})})
    hanging = f"import asyncio, time\n{before}"
    async with served(tmp_path, running, shutdown_seconds=2.0, before=hanging) as server:
        session, request = await paused(running, server)
        await session.respond(request, "approve")
        await until(lambda: bool(running.requests("respond")))
        told = server.tell()
        status, log = await server.over()
        assert time.monotonic() - told < 2.0 + LATE_S
        assert status == 1
        assert "did not stop within" in log
        # As after a crash: nothing that was acknowledged is lost, and the command has its answer.
        await server.start()
        session.client.host = f"{server.url}/as/eve/to/{BACKEND}"
        turn = await session.read_turn()
        assert turn.text is not None
        assert "4.1 GB freed" in turn.text
    assert len(running.requests("respond")) == 1


async def test_a_second_signal_ends_the_process_at_once(run: Run, tmp_path: Path) -> None:
    running = await run(engine={"faults": Faults({("respond", 1): LATER})})
    async with served(tmp_path, running) as server:
        session, request = await paused(running, server)
        await session.respond(request, "approve")
        await until(lambda: bool(running.requests("respond")))
        server.tell()
        async with asyncio.timeout(SOON_S):
            while (await server.ask("GET", "/readyz"))[0] != 503:
                pass
        server.tell()
        status, _ = await server.over()
        assert status == -signal.SIGTERM
        # Nothing is lost by it.
        assert (await server.stored(session.session_id))[-1].TYPE != "session.ended"


async def test_a_message_that_waits_for_its_turn_is_not_sent_while_the_server_stops(
    run: Run, tmp_path: Path
) -> None:
    running = await run(engine={"pace": 0.02, "faults": Faults({("respond", 1): LATER})})
    async with served(tmp_path, running) as server:
        held, request = await paused(running, server)
        slow = await held.client.create("script: slow 30")
        accepted = await slow.send("hello")
        await held.respond(request, "approve")
        await until(lambda: bool(running.requests("respond")))
        server.tell()
        # What the backend says meanwhile is still taken in: the turn before it ends.
        tasks = running.engine.talks.values()
        await until(lambda: not any(task.running and not task.pending for task in tasks))
        running.engine.stopping.set()
        assert (await server.over())[0] == 0
        running.engine.stopping.clear()
        stored = await server.stored(slow.session_id)
        assert stored[-1].TYPE == "turn.ended"
        said = [body["message"] for body in running.requests("execute")]
        assert said == ["script: approve", "script: slow 30"]
        await server.start()
        slow.client.host = f"{server.url}/as/eve/to/{BACKEND}"
        turn = await slow.read_turn(accepted)
        while "message.received" not in turn.types:
            turn = await slow.read_turn(accepted)
        said = [body["message"] for body in running.requests("execute")]
        assert said == ["script: approve", "script: slow 30", "hello"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_with_idle_streams_is_quick_and_ends_them_in_order(
    run: Run, tmp_path: Path, number: signal.Signals
) -> None:
    running = await run()
    async with served(tmp_path, running) as server, contextlib.AsyncExitStack() as stack:
        session, _ = await paused(running, server)
        path = f"/as/eve/to/{BACKEND}/eve/v1/session/{session.session_id}/stream"
        streams = [
            await stack.enter_async_context(running.http.get(f"{server.url}{path}"))
            for _ in range(50)
        ]
        told = server.tell(number)
        bodies = await asyncio.gather(*(stream.read() for stream in streams))
        assert len({body.replace(b"\n\n", b"\n") for body in bodies}) == 1
        assert (await server.over())[0] == 0
        assert time.monotonic() - told < 5.0
