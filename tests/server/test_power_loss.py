"""What frontends were shown is there after a loss of power, and a failed sync ends the process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.journal.disk import Disk
from tests.support.running import BACKEND, Run
from tests.support.waiting import until
from tests.test_cli import REPOSITORY, announced, output


@pytest.mark.parametrize("after", [9, 60, 144, 223])
async def test_what_a_frontend_was_shown_is_there_after_a_loss_of_power(
    run: Run, tmp_path: Path, after: int
) -> None:
    before, image = tmp_path / "before", tmp_path / "image"
    before.mkdir()
    image.mkdir()
    with Disk(after) as disk:
        running = await run(f"sqlite:///{before / 'own.db'}", engine={"pace": 0.002})
        session = await running.eve().create("script: slow 60")
        reading = asyncio.ensure_future(session.read_turn())
        shown: list[int] = []
        disk.when_gone = lambda: shown.append(len(session.log))
        disk.plan("power", after)
        # On a slow machine more goes into one commit, and the turn ends before.
        await until(lambda: disk.gone or reading.done())
        disk.cut_power()
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        await running.stop()
        disk.image(image)
    assert shown[0] > 0 or after < 60
    again = await run(f"sqlite:///{image / 'own.db'}")
    lines = await again.lines(session.session_id)
    assert [json.loads(one) for one in lines[: shown[0]]] == session.log[: shown[0]]


FAILING = """
import sys
from tests.journal.disk import Disk
from proxy.cli import main

with Disk(1) as disk:
    disk.plan("sync", 150)
    sys.argv = ["dragoman", "serve"]
    main()
"""


async def test_a_failed_sync_ends_the_server_with_its_reason_before_it_answers(
    tmp_path: Path,
) -> None:
    config = '[server]\nlisten = "127.0.0.1:0"\n[[backends]]\nname = "engine"\n'
    config += 'dialect = "engine"\nurl = "http://127.0.0.1:1"\n'
    (tmp_path / "dragoman.toml").write_text(config)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        FAILING,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    statuses = []
    async with aiohttp.ClientSession() as http:
        url = f"{await announced(child)}/as/eve/to/{BACKEND}/eve/v1/session"
        with contextlib.suppress(aiohttp.ClientError):
            while True:
                async with http.post(url, json={"message": "hello"}) as response:
                    statuses.append(response.status)
    status, _, err = await output(child)
    assert status == 1
    assert statuses
    assert set(statuses) == {202}
    errors = [line for line in map(json.loads, err.splitlines()) if line["level"] == "error"]
    (reason,) = [line["message"] for line in errors]
    assert "dragoman.db" in reason
    assert "did not take what was written" in reason
