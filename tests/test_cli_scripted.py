"""`dragoman scripted`: what it serves, what it refuses, and the first try of a configuration."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import aiohttp
import pytest
from click.testing import CliRunner

from proxy import cli
from proxy.scripted import BACKENDS
from proxy.scripted.eve_turns import Generation
from proxy.scripted.faults import KINDS, SEEDED
from tests.support.ports import free_port
from tests.support.waiting import SOON_S
from tests.test_cli import dragoman

pytestmark = pytest.mark.pages

REPOSITORY = Path(__file__).parent.parent


@asynccontextmanager
async def program(*words: str, folder: Path | None = None) -> AsyncIterator[str]:
    """The command in a process of its own; gives the address where it listens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "proxy", *words),
        stdout=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SOON_S):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("listening on http://"), line
        yield line.split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize("dialect", sorted(BACKENDS))
async def test_every_scripted_backend_is_served(dialect: str) -> None:
    async with program("scripted", dialect) as url, aiohttp.ClientSession() as http:
        assert url.startswith("http://127.0.0.1:")
        async with http.get(f"{url}/nowhere") as response:
            assert response.status == 404


async def test_it_listens_where_it_is_told_and_asks_for_the_key() -> None:
    port = str(free_port())
    words = ("scripted", "engine", "--host", "localhost", "--port", port, "--key", "local")
    async with program(*words) as url, aiohttp.ClientSession() as http:
        assert url.endswith(f":{port}")
        said = {"message": "script: text", "task_id": "t"}
        for key, status in (("other", 401), ("local", 200)):
            headers = {"X-Engine-Key": key}
            async with http.post(f"{url}/execute", json=said, headers=headers) as response:
                assert response.status == status


async def test_where_it_cannot_listen_it_says_so() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "proxy", "scripted", "engine", "--port", port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
        )
        said, errors = await process.communicate()
    assert (process.returncode, said) == (1, b"")
    assert errors.decode() == (
        f"dragoman: cannot listen on 127.0.0.1:{port}: another program uses this port; stop it, or "
        "choose another port.\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tcp"], "`tcp` is none of agui, engine, eve, herm, managed-agents."),
        ([], "Missing argument"),
        (["engine", "--rate", "1.5"], "1.5"),
        (["engine", "--rate", "much"], "much"),
        (["engine", "--kinds", "Fire"], "`Fire` is none of Altered, Cut, "),
        (["engine", "--kinds", "Cut,"], "`` is none of"),
        (["engine", "--faults", "x"], "x"),
        (["engine", "--first", "0"], "0"),
        (["engine", "--pace", "-1"], "-1"),
        (["engine", "--port", "65536"], "65536"),
        (["eve", "--generation", "S3"], "S3"),
    ],
)
async def test_what_it_does_not_know_is_status_2(words: list[str], says: str) -> None:
    done = await dragoman("scripted", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr


def test_its_options_are_those_of_the_backends() -> None:
    options = {option.name: option for option in cli.main.loaded("scripted").params}
    generation = options["generation"].type
    assert getattr(generation, "choices", ()) == get_args(Generation)
    convert = options["kinds"].type.convert
    assert convert(",".join(KINDS), None, None) == tuple(KINDS)
    page = (REPOSITORY / "docs" / "evidence.md").read_text()
    section = page.partition("## Backends that break on purpose")[2].partition("\n## ")[0]
    names = {kind: name for name, kind in KINDS.items()}
    for kind in SEEDED:
        assert f"`{names[kind]}`" in section
    help_ = CliRunner().invoke(cli.main, ["scripted", "--help"]).stdout
    assert all(f"--{name}" in help_ for name in ("key", "pace", "faults", "rate", "first"))


async def test_the_first_try_of_a_configuration_is_as_the_documentation_says(
    tmp_path: Path,
) -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    section = page.partition("## Try your own configuration")[2].partition("\n## ")[0]
    scripted, toml, served, asked = re.findall(r"^```\w*\n(.*?)^```", section, re.M | re.S)
    backend, port = str(free_port()), str(free_port())
    assert len(toml.splitlines()) <= 8

    def moved(text: str) -> str:
        """With ports that are free."""
        return text.replace("8000", backend).replace("8787", port)

    (tmp_path / "dragoman.toml").write_text(moved(toml))
    name, *words = moved(scripted).split()
    assert name == "dragoman"
    exports, serve = served.splitlines()
    assert exports.startswith("export ")
    variable, _, value = exports.removeprefix("export ").partition("=")
    assert serve == "dragoman serve"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, value)
        patch.setenv("DRAGOMAN_SERVER__LISTEN", f"127.0.0.1:{port}")
        async with program(*words), program("serve", folder=tmp_path) as url:
            assert url == f"http://127.0.0.1:{port}"
            curl = moved(asked).replace("curl", f"{sys.executable} -m proxy request")
            shell = await asyncio.create_subprocess_exec(
                "sh", "-c", curl, stdout=subprocess.PIPE, cwd=REPOSITORY
            )
            async with asyncio.timeout(SOON_S):
                answer, _ = await shell.communicate()
    assert shell.returncode == 0
    assert "You said" in answer.decode()
    assert (tmp_path / "try.db").exists()
