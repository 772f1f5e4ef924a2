"""SIGTERM, in real processes: what is refused, what ends, what is finished, and how long it takes.

The Engine lives in this process, so that a test decides when it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from adapters.model import events as ev
from proxy.journal import open_journal
from proxy.scripted.faults import Faults, Silence, SlowHead, Stall
from tests.support.dragoman import BACKEND_KEY
from tests.support.engine_client import EngineClient, EngineEvent, EngineTurn
from tests.support.engine_client import Expect as EngineExpect
from tests.support.eve_client import EveSession, Style
from tests.support.herm_client import Envelope, HermClient, HermTurn, check_join
from tests.support.journals import ON_POSTGRES, sqlite, stored_entries
from tests.support.ports import free_port
from tests.support.running import BACKEND, Run, Running
from tests.support.serving import HOST
from tests.support.strictness import Disconnected, Refused
from tests.support.waiting import SOON_S, until

# Longer than any test waits: an answer that comes when the test says so.
LATER = SlowHead(600.0)
# The frames of `approve` up to its request are nine: the stream does not tell of its answer.
UNTOLD = {("execute", 1): Stall(after_event=9)}


UNCHECKED = """
import proxy.app.server
async def unchecked(*_): pass
proxy.app.server.warn = unchecked
"""
"""Lets the backend be asked by sessions only: what they ask is counted."""


class Server:
    """`dragoman serve` on a folder's journal, over the Engine of a `Running`."""

    def __init__(self, folder: Path, running: Running, *, shutdown_seconds: float) -> None:
        self._running = running
        self.journal = sqlite(folder)
        self._config = folder / "dragoman.toml"
        self._config.write_text(
            f"""
            [server]
            listen = "{HOST}:{free_port()}"
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
        code = f"{before}\n{UNCHECKED}\nfrom proxy.cli import main\nmain()"
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

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal."""
        self.child.send_signal(number)

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
    running = await run(engine={"faults": Faults({**UNTOLD, ("respond", 1): LATER})})
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


async def stopped_while_answering(
    running: Running, server: Server, *, status: int
) -> tuple[EveSession, str]:
    """Stop while an answer is on its way; returns the session and the log of the server."""
    session, request = await paused(running, server)
    await session.respond(request, "approve")
    await until(lambda: bool(running.requests("respond")))
    server.tell()
    ended, log = await server.over()
    assert ended == status, log
    return session, log


async def check_goes_on(server: Server, session: EveSession) -> None:
    """Start again and read what the answer led to."""
    await server.start()
    session.client.host = f"{server.url}/as/eve/to/{BACKEND}"
    turn = await session.read_turn()
    assert turn.text is not None
    assert "4.1 GB freed" in turn.text


async def test_a_stop_cuts_off_what_takes_too_long_and_the_next_start_finds_it(
    run: Run, tmp_path: Path
) -> None:
    faults = Faults({**UNTOLD, ("respond", 1): Silence(done=True)})
    running = await run(engine={"faults": faults})
    async with served(tmp_path, running, shutdown_seconds=4.0) as server:
        session, log = await stopped_while_answering(running, server, status=0)
        assert "cut off" in log
        assert settled_inputs(await server.stored(session.session_id)) == ["taken"]
        await check_goes_on(server, session)
    assert len(running.requests("respond")) == 1


HANGING = {
    "task": "from proxy.base.tasks import Tasks; Tasks.aclose = lambda _: asyncio.sleep(600)",
    **(
        {
            "writer": "from proxy.journal.postgres._writer import PostgresWriter as Writer\n"
            "Writer.stop = lambda _: asyncio.sleep(600)",
            "lease": "from proxy.journal.postgres._node import Node\n"
            "Node.go = lambda *_: asyncio.sleep(600)",
        }
        if ON_POSTGRES
        else {
            "writer": "from proxy.journal._writer import JournalWriter as Writer\n"
            "Writer._close = lambda _: time.sleep(600)",
            "reader": "from proxy.journal.sqlite import SqliteJournal as Journal\n"
            "Journal._close_readers = lambda _: asyncio.to_thread(time.sleep, 600)",
        }
    ),
}


@pytest.mark.parametrize("before", HANGING.values(), ids=HANGING)
async def test_a_stop_is_over_in_time_whatever_hangs(run: Run, tmp_path: Path, before: str) -> None:
    running = await run(engine={"faults": Faults({**UNTOLD, ("respond", 1): Silence(done=True)})})
    hanging = f"import asyncio, time\n{before}"
    async with served(tmp_path, running, shutdown_seconds=0.5, before=hanging) as server:
        session, log = await stopped_while_answering(running, server, status=1)
        assert "did not stop within" in log
        # As after a crash: nothing that was acknowledged is lost, and the command has its answer.
        await check_goes_on(server, session)
    assert len(running.requests("respond")) == 1


async def test_a_second_signal_ends_the_process_at_once(run: Run, tmp_path: Path) -> None:
    running = await run(engine={"faults": Faults({**UNTOLD, ("respond", 1): LATER})})
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
    running = await run(engine={"pace": 0.02, "faults": Faults({**UNTOLD, ("respond", 1): LATER})})
    async with served(tmp_path, running) as server:
        held, request = await paused(running, server)
        slow = await held.client.create("script: slow 150")
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
        assert said == ["script: approve", "script: slow 150"]
        await server.start()
        slow.client.host = f"{server.url}/as/eve/to/{BACKEND}"
        turn = await slow.read_turn(accepted)
        while "message.received" not in turn.types:
            turn = await slow.read_turn(accepted)
        said = [body["message"] for body in running.requests("execute")]
        assert said == ["script: approve", "script: slow 150", "hello"]


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
        server.tell(number)
        bodies = await asyncio.gather(*(stream.read() for stream in streams))
        assert len({body.replace(b"\n\n", b"\n") for body in bodies}) == 1
        status, log = await server.over()
        assert status == 0, log
        # Nothing had to be waited for until the time was over.
        assert "cut off" not in log


# Clients that read a running turn, and come back by the rules of their pages.

TICKS = 60
SLOW = f"script: slow {TICKS}"
WHOLE = "".join(f"tick {n} " for n in range(TICKS)) + " (turn 1)"


async def coming_back(
    read: Callable[[], Coroutine[Any, Any, None]], over: Callable[[], bool]
) -> None:
    """Read until it is over; what does not open is tried 12 times, after 0.25 s to 5 s (eve page,
    section 7.5; the others ask for less)."""
    attempts = 0
    while not over():
        try:
            await read()
            attempts = 0
        except (Refused, aiohttp.ClientError, Disconnected) as error:
            attempts += 1
            if attempts == 12 or (isinstance(error, Refused) and error.status != 503):
                raise
            await asyncio.sleep(min(0.125 * 2**attempts, 5.0))


class EveReader:
    """An eve client: its cursor is the number of records that it has."""

    def __init__(self, running: Running, server: Server, style: Style) -> None:
        self._client = running.eve(style=style)
        self._client.host = f"{server.url}/as/eve/to/{BACKEND}"
        self._session: EveSession

    @property
    def deltas(self) -> int:
        return sum(record["type"] == "message.appended" for record in self._session.log)

    def over(self) -> bool:
        log = self._session.log
        return bool(log) and log[-1]["type"] == "session.waiting"

    async def begin(self) -> None:
        self._session = await self._client.create(SLOW)

    async def read(self) -> None:
        async for _ in self._session.follow():
            if self.over():
                return

    async def check(self) -> None:
        again = self._client.attach(self._session.session_id)
        turn = await again.read_turn()
        assert self._session.log == again.log
        assert turn.text == WHOLE
        assert "".join(data["messageDelta"] for data in turn.data("message.appended")) == WHOLE


def engine_ms(event: EngineEvent) -> int:
    at = dt.datetime.fromisoformat(event.payload["timestamp"])
    return round(at.timestamp() * 1000)


class EngineReader:
    """An Engine client: it asks for what came after the newest time that it has seen, less one
    millisecond, and skips what it knows (Engine page, section 11.2)."""

    def __init__(self, running: Running, server: Server) -> None:
        expect = EngineExpect(stamped=True, known_types=False)
        url = f"{server.url}/as/engine/to/{BACKEND}"
        self._client = EngineClient(running.http, url, expect=expect)
        self._turn = EngineTurn()
        self._body: Any

    @property
    def deltas(self) -> int:
        return len(self._turn.payloads("text_delta"))

    def over(self) -> bool:
        return self._turn.outcome is not None

    async def begin(self) -> None:
        self._body = self._client.execute(SLOW, "task-stop")

    async def read(self) -> None:
        events, body = self._turn.events, self._body
        if events:
            body = self._client.replay(engine_ms(events[-1]) - 1, "task-stop")
        async with contextlib.aclosing(body):
            async for event in body:
                if event.event == "heartbeat":
                    continue
                if events and engine_ms(event) <= engine_ms(events[-1]):
                    assert event == events[-1]
                else:
                    events.append(event)

    async def check(self) -> None:
        body = self._client.replay(0, "task-stop")
        whole = [event async for event in body if event.event != "heartbeat"]
        assert self._turn.events == whole
        assert self._turn.text == WHOLE


class HermReader:
    """A Herm client: it sends the id of the last envelope that it has."""

    def __init__(self, running: Running, server: Server) -> None:
        self._client = HermClient(running.http, f"{server.url}/as/herm/to/{BACKEND}")
        self._turn = HermTurn()
        self._session = ""
        self._open: Any

    @property
    def deltas(self) -> int:
        return sum(payload["delta"] for payload in self._turn.payloads("agent.message"))

    def over(self) -> bool:
        return bool(self._turn.payloads("session.status_idle"))

    async def begin(self) -> None:
        self._session = (await self._client.create(BACKEND))["id"]
        self._open = self._client.stream(self._session)
        await anext(self._open)
        await self._client.say(self._session, SLOW)

    async def read(self) -> None:
        envelopes, stream = self._turn.envelopes, self._open
        if envelopes:
            stream = self._client.stream(self._session, str(envelopes[-1]["id"]))
            await anext(stream)
        async with contextlib.aclosing(stream):
            async for seen in stream:
                envelopes.append(seen)
                if self.over():
                    return

    async def check(self) -> None:
        listed: list[Envelope] = await self._client.list(self._session)
        check_join(self._turn.envelopes, listed)
        ids = [seen["id"] for seen in self._turn.envelopes]
        assert len(ids) == len(set(ids))
        assert self._turn.streamed == self._turn.text == WHOLE


async def test_clients_that_read_a_running_turn_hold_all_of_it_after_a_stop_and_a_start(
    run: Run, tmp_path: Path
) -> None:
    running = await run(engine={"pace": 0.5})
    async with served(tmp_path, running) as server:
        readers: list[EveReader | EngineReader | HermReader] = [
            EveReader(running, server, "T"),
            EveReader(running, server, "S"),
            EngineReader(running, server),
            HermReader(running, server),
        ]
        for reader in readers:
            await reader.begin()
        reading = asyncio.gather(*(coming_back(one.read, one.over) for one in readers))
        await until(lambda: reading.done() or all(one.deltas >= 3 for one in readers))
        server.tell()
        status, log = await server.over()
        assert status == 0, log
        assert "cut off" not in log
        assert not any(one.over() for one in readers)
        await server.start()
        async with asyncio.timeout(SOON_S):
            await reading
        for reader in readers:
            await reader.check()
    assert [body["message"] for body in running.requests("execute")] == [SLOW] * len(readers)
