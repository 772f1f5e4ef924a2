"""Many at once: who vanished, who comes back together, and a start with many sessions.

The full figures are measured by `python -m bench.storm`; here are the mechanisms.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from adapters import events as ev
from proxy.journal.memory import MemoryJournal
from proxy.journal.sqlite import SqliteJournal
from proxy.session import Session
from proxy.sessions import ATTACH_PAGE, WORK_AT_ONCE
from tests.e2e.conftest import Run
from tests.support.journals import CrashJournal
from tests.support.running import BACKEND, Running
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
        feed = live.feed("eve")
        await until(lambda: any(reader.live for reader in feed.readers))
        cut_off(sock)
        # A few heartbeats of one byte fill no buffer.
        await until(lambda: not feed.readers, 10.0)


async def test_those_who_come_back_together_are_served_a_few_at_a_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await run(CrashJournal())
    clients = 40
    sessions = [await running.eve().create("script: tool") for _ in range(clients)]
    for session in sessions:
        await session.read_turn()
        await settled(await running.live(session.session_id))
    await running.restart()
    loading = most = 0
    load = Session.load

    async def watched(session: Session, names: Any) -> None:
        nonlocal loading, most
        loading += 1
        most = max(most, loading)
        # Whoever may would come here by now.
        for _ in range(20):
            await asyncio.sleep(0)
        await load(session, names)
        loading -= 1

    monkeypatch.setattr(Session, "load", watched)

    async def rest(session: Any, after: int) -> list[Any]:
        again = running.eve().attach(session.session_id)
        return [record async for record in again.stream(after, follow=False)]

    rests = await asyncio.gather(*(rest(one, index % 9) for index, one in enumerate(sessions)))
    assert rests == [one.log[index % 9 :] for index, one in enumerate(sessions)]
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
    scan = SqliteJournal.scan

    def counted(journal: SqliteJournal, session: int, **options: Any) -> Any:
        read.append(session)
        return scan(journal, session, **options)

    monkeypatch.setattr(SqliteJournal, "scan", counted)
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
    legs = MemoryJournal.legs

    async def slow(journal: MemoryJournal, session: int) -> Any:
        await may.wait()
        return await legs(journal, session)

    monkeypatch.setattr(MemoryJournal, "legs", slow)
    await running.restart()
    async with running.http.get(f"http://{HOST}:{running.port}/readyz") as response:
        assert response.status == 200
        assert (await response.json())["sessions"] == 0
    may.set()
    await until(lambda: len(running.sessions) == len(held))
