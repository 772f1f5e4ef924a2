"""Many at once: who vanished, who comes back together, and a start with many sessions.

The full figures are measured by `python -m bench.storm`; here are the mechanisms.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import datetime as dt
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from adapters.model import events as ev
from proxy.journal.base import Journal
from proxy.session import Session
from proxy.sessions.sessions import ATTACH_PAGE, WORK_AT_ONCE
from tests.support import engine_client
from tests.support.engine_client import EngineClient
from tests.support.herm_client import HermClient
from tests.support.journals import CrashJournal
from tests.support.running import BACKEND, Run, Running
from tests.support.serving import HOST
from tests.support.waiting import settled, until

# linux/socket.h and linux/filter.h; Python has no names for them.
SO_ATTACH_FILTER = 26
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)


def cut_off(sock: socket.socket) -> None:
    """Let nothing that is sent to a socket arrive, as when its machine is gone: not even confirmed
    by its kernel."""
    program = ctypes.create_string_buffer(DROP_ALL)
    address = ctypes.addressof(program)
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, address))


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="drops packets by a filter of Linux; tests/test_streams.py shows anywhere what is set",
)
async def test_a_client_that_vanished_without_a_word_is_found_by_a_heartbeat(run: Run) -> None:
    running = await run(
        settings={"server": {"write_timeout_seconds": 0.2, "heartbeat_seconds": 0.05}}
    )
    session = await running.eve().create("hello")
    live = await running.live(session.session_id)
    await settled(live)
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, (HOST, running.port))
        path = f"/as/eve/to/{BACKEND}/eve/v1/session/{session.session_id}/stream"
        await loop.sock_sendall(sock, f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert await loop.sock_recv(sock, 1 << 16)
        feed = live.feeds.get("eve")
        await until(lambda: any(reader.live for reader in feed.readers))
        cut_off(sock)
        # A few heartbeats of one byte fill no buffer.
        await until(lambda: not feed.readers)


class Returning:
    """A client of one face that has read a turn, and comes back for the rest of it."""

    def __init__(self, running: Running, face: str, name: str) -> None:
        self._face, self._name = face, name
        self._eve = running.eve()
        self._herm = HermClient(running.http, running.face("herm", BACKEND))
        expect = engine_client.Expect(stamped=True, known_types=False)
        self._engine = EngineClient(running.http, running.face("engine", BACKEND), expect=expect)
        self.whole: list[Any] = []

    async def read(self) -> None:
        """Read all that there is."""
        self.whole = await self.rest(0)

    async def rest(self, have: int) -> list[Any]:
        """What comes after the first `have` of it."""
        last = self.whole[have - 1] if have else None
        match self._face:
            case "eve":
                stream = self._eve.attach(self._name).stream(have, follow=False)
                return [record async for record in stream]
            case "engine":
                after = 0
                if last is not None:
                    at = dt.datetime.fromisoformat(last.payload["timestamp"])
                    after = round(at.timestamp() * 1000)
                return [event async for event in self._engine.replay(after, self._name)]
        found = []
        query = "?after=0" if last is None else ""
        stream = self._herm.stream(self._name, last and last["id"], query=query)
        async with contextlib.aclosing(stream):
            await anext(stream)
            async for envelope in stream:
                found.append(envelope)
                if envelope["type"] == "session.status_idle":
                    break
        return found


async def test_those_who_come_back_together_are_served_a_few_at_a_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await run(CrashJournal())
    clients: list[Returning] = []
    for index in range(200):
        session = await running.eve().create("script: tool")
        await settled(await running.live(session.session_id))
        face = ("eve", "engine", "herm")[index % 3]
        clients.append(Returning(running, face, session.session_id))
        await clients[-1].read()
    await running.restart()
    loading = most = 0
    load = Session.load

    async def watched(session: Session, names: Any) -> None:
        nonlocal loading, most
        loading += 1
        most = max(most, loading)
        # Anybody who may would come here by now.
        for _ in range(20):
            await asyncio.sleep(0)
        await load(session, names)
        loading -= 1

    monkeypatch.setattr(Session, "load", watched)
    have = [index % 7 for index in range(len(clients))]
    rests = await asyncio.gather(*map(Returning.rest, clients, have))
    for client, number, rest in zip(clients, have, rests, strict=True):
        assert rest
        assert rest == client.whole[number:]
    assert most == WORK_AT_ONCE


async def bare_sessions(journal: Any, count: int) -> None:
    """Put sessions in which nothing is under way into a journal."""
    for number in range(count):
        session_id = f"dgs_bare{number:05d}"
        first = ev.SessionStarted(thread_id=ev.MAIN, agent={"id": BACKEND}, synthetic=True)
        await journal.create_session(
            id=session_id,
            owner="local",
            route=BACKEND,
            dialect="eve",
            backend=BACKEND,
            secret=b"." * 32,
            at=1_767_225_600_000,
            body=ev.Entry(1, 1_767_225_600_000, session_id, first).encode_row() + b"\n",
        )


async def test_a_start_reads_only_the_sessions_with_an_open_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running = await run("sqlite")
    waiting = 5
    for _ in range(waiting):
        await (await running.eve().create("script: approve")).read_turn()
    await bare_sessions(running.sessions.journal, 2 * ATTACH_PAGE)
    read: list[int] = []
    kind = type(running.sessions.journal)
    scan = kind.scan

    def counted(journal: Journal, session: int, **options: Any) -> Any:
        read.append(session)
        return scan(journal, session, **options)

    monkeypatch.setattr(kind, "scan", counted)
    await running.restart()
    await until(lambda: len(running.sessions) == waiting)
    await until(lambda: len(running.requests("replay")) == waiting)
    assert len(set(read)) == waiting
    assert len(read) == waiting


async def test_a_start_does_not_wait_for_its_sessions(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: Running = await run(CrashJournal())
    held = [await running.eve().create("script: approve") for _ in range(3)]
    for session in held:
        await session.read_turn()
    may = asyncio.Event()
    journal = running.sessions.journal
    legs = journal.legs

    async def slow(session: int) -> Any:
        await may.wait()
        return await legs(session)

    monkeypatch.setattr(journal, "legs", slow)
    await running.restart()
    async with running.http.get(f"http://{HOST}:{running.port}/readyz") as response:
        assert response.status == 200
        assert len(running.sessions) == 0
    may.set()
    await until(lambda: len(running.sessions) == len(held))
