"""`dragoman serve --workers 2`: two processes on one port, which answer for each other."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.dragoman import BACKEND_KEY, Start
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.running import Running
from tests.support.serving import HOST
from tests.support.waiting import SOON_S, until

pytestmark = pytest.mark.postgres

Run = Start[Running]


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


async def test_workers_share_a_port_are_started_anew_and_stop_together(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    port = free_port()
    config = tmp_path / "dragoman.toml"
    config.write_text(
        f"""
        [server]
        listen = "{HOST}:{port}"
        [journal]
        url = "{postgres.url(postgres.new_database())}"
        [[backends]]
        name = "engine"
        dialect = "engine"
        url = "{running.engine_url}"
        auth = {{ header = "X-Engine-Key", env = "E2E_ENGINE_KEY" }}
        """
    )
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "serve", "--workers", "2", "--config", str(config)),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "E2E_ENGINE_KEY": BACKEND_KEY},
        )
    try:
        assert parent.stdout is not None
        async with asyncio.timeout(SOON_S):
            assert re.search(rb"listening on", await parent.stdout.readline()), log.read_text()
            await until(lambda: log.read_text().count('"kind":"started"') == 2)
        client = running.eve()
        client.host = f"http://{HOST}:{port}/as/eve/to/engine"
        sessions = [await client.create("hello") for _ in range(4)]
        # Each request is a connection of its own, and the kernel chooses who takes it.
        for session in sessions:
            await session.read_turn()
            for number in (2, 3):
                turn = await session.read_turn(await session.send("again"))
                assert f"(turn {number})" in (turn.text or "")
        first, *_ = before = children(parent.pid)
        assert len(before) == 2
        os.kill(first, signal.SIGKILL)
        await until(lambda: log.read_text().count('"kind":"started"') == 3)
        for session in sessions:
            turn = await session.read_turn(await session.send("still there?"))
            assert "(turn 4)" in (turn.text or "")
        parent.send_signal(signal.SIGTERM)
        assert await parent.wait() == 0
        assert not any(Path(f"/proc/{child}").exists() for child in before)
    finally:
        if parent.returncode is None:
            for child in children(parent.pid):
                os.kill(child, signal.SIGKILL)
            parent.kill()
            await parent.wait()
        await asyncio.sleep(0)
