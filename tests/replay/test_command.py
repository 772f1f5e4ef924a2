"""`dragoman replay` as people call it: what it refuses, and what it prints."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapters.model.events import Entry
from adapters.offline.compare.difference import compare
from proxy import cli
from tests.replay.support import WIRE, capture_lines, eve_log, replayed
from tests.replay.test_whole import AS_DRIVEN, AS_EVE

SCENE = WIRE / "eve/eve-0.80.1/server/approval-approve.json"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["replay", *arguments])


async def program(*arguments: str) -> tuple[int | None, str]:
    """Run the command as a process; return its status and all that it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "replay", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    return process.returncode, " ".join(told.decode().split())


@pytest.fixture
def capture(tmp_path: Path) -> str:
    file = tmp_path / "capture.ndjson"
    file.write_bytes(b"".join(capture_lines(SCENE)))
    return str(file)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "say what to be: --serve DIALECT, or --drive URL --dialect DIALECT"),
        (("--serve", "eve", "--drive", "http://127.0.0.1:9", "--dialect", "eve"), "say what to be"),
        (("--drive", "http://127.0.0.1:9"), "--drive and --dialect go together"),
        (("--serve", "eve", "--dialect", "eve"), "--drive and --dialect go together"),
        (("--serve", "eve", "--speed", "0"), "neither a factor above 0 nor `max`"),
        (("--serve", "eve", "--speed", "soon"), "neither a factor above 0 nor `max`"),
        (("--drive", "ftp://127.0.0.1", "--dialect", "eve"), "not a URL that begins with http://"),
        (
            ("--drive", "http://127.0.0.1:9", "--dialect", "eve", "--bearer-env", "NO_SUCH_NAME"),
            "`NO_SUCH_NAME` is not set",
        ),
        (
            ("--drive", "http://127.0.0.1:9", "--dialect", "eve", "--bearer-env", "ghp_4fJ2mQx9Tz"),
            "--bearer-env: there is no environment variable of this name, which is not shown",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(capture: str, given: tuple[str, ...], words: str) -> None:
    result = run(capture, *given)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is neither a capture nor a canonical log"),
        ('{"capture":2,"made_by":"x","at":1}\n', "it has version 2 of captures"),
        ('{"capture":1,"made_by":"x","at":1}\n{"type":"bogus"}\n', "line 2"),
    ],
    ids=["empty", "of a later version", "edited"],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad.ndjson"
    file.write_text(text)
    result = run(str(file), "--serve", "eve")
    assert result.exit_code == 2
    assert words in result.output
    assert "bad.ndjson" in result.output


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = run(str(tmp_path / "none.ndjson"), "--serve", "eve")
    assert result.exit_code == 2
    assert "none.ndjson" in result.output


async def test_it_drives_and_writes_the_log(capture: str, tmp_path: Path) -> None:
    log = eve_log(SCENE)
    out = tmp_path / "log.ndjson"
    async with replayed(log, "eve", "eve", speed=math.inf) as house:
        arguments = (capture, "--drive", house.url, "--dialect", "eve", "--out", str(out))
        status, told = await program(*arguments)
    assert status == 0, told
    assert told.endswith("driven: 2 of 2 steps were given")
    found = [Entry.decode(line) for line in out.read_bytes().splitlines()]
    assert not compare(log, found, (*AS_DRIVEN, *AS_EVE))


async def test_a_backend_that_does_something_else_ends_it(tmp_path: Path, capture: str) -> None:
    """The log as far as it came is written all the same."""
    other = eve_log(WIRE / "eve/eve-0.80.1/server/plain.json")
    out = tmp_path / "log.ndjson"
    async with replayed(other, "eve", "eve") as house:
        arguments = (capture, "--drive", house.url, "--dialect", "eve", "--out", str(out))
        status, told = await program(*arguments)
    assert status == 1
    assert "The backend never asked for approval" in told
    assert json.loads(out.read_bytes().splitlines()[0])["type"] == "session.started"
