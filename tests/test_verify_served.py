"""What `serve` records is the same when `verify` translates it again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy import cli
from tests.support.proxied import proxied


def outcome(folder: Path) -> tuple[int, str]:
    done = CliRunner().invoke(cli.main, ["verify", str(folder)])
    return done.exit_code, done.stdout.partition("\t")[0]


@pytest.mark.parametrize("script", ["tools", "failmid", "reason"])
async def test_a_session_that_serve_records_is_the_same(script: str, tmp_path: Path) -> None:
    async with proxied(capture={"dir": str(tmp_path)}) as running:
        session = await running.say(f"script: {script}")
        await running.until_idle(session)
        url = f"{running.url}/as/eve/to/engine/eve/v1/session/{session}/stream"
        async with running.http.get(url) as stream:
            read = b""
            while b"session.waiting" not in read and b"session.failed" not in read:
                read += await stream.content.readany()
    (file,) = tmp_path.glob("*.ndjson")
    assert await asyncio.to_thread(outcome, tmp_path) == (0, "same")
    lines = file.read_bytes().splitlines(keepends=True)
    left_out = [
        line for line in lines if b'"type":"step.started"' not in line or b'"event"' not in line
    ]
    assert left_out != lines
    file.write_bytes(b"".join(left_out))
    assert await asyncio.to_thread(outcome, tmp_path) == (1, "differs")
