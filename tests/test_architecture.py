"""How the modules depend on each other: the import contracts, and each module imported alone."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("adapters", "proxy")


def test_the_import_contracts_hold() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [linter, "--no-logo"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


IMPORT_ALONE = """
import importlib, os, sys
import aiohttp.web, apsw, click, orjson, pydantic, pydantic_settings, rich.console
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(f"import {name}: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
sys.exit(bool(failed))
"""
"""Imports each named module in a process of its own that has only the libraries loaded.

Forking a process that has them costs a tenth of starting an interpreter for each module.
"""


def modules() -> list[str]:
    """Return the dotted names of all modules that the distribution ships."""
    files = (file for package in PACKAGES for file in (REPOSITORY / package).rglob("*.py"))
    names = (file.relative_to(REPOSITORY).with_suffix("").parts for file in files)
    dotted = (".".join(name[:-1] if name[-1] == "__init__" else name) for name in names)
    return sorted(dotted)


def test_every_module_can_be_imported_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALONE, *modules()],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {file.parent for package in PACKAGES for file in (REPOSITORY / package).rglob("*.py")}
    without = {str(folder) for folder in folders if not (folder / "__init__.py").exists()}
    assert without == set()


def connect_to_the_discard_port() -> None:
    with socket.socket() as connection:
        connection.connect(("127.0.0.1", 9))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("time.sleep", lambda: time.sleep(0.001)),
        ("socket.getaddrinfo", lambda: socket.getaddrinfo("localhost", 80)),
        ("socket.connect", connect_to_the_discard_port),
    ],
)
async def test_a_blocking_call_in_the_loop_is_refused(
    name: str, call: Callable[[], object]
) -> None:
    with pytest.raises(BaseException, match=f"{name} blocks the event loop") as refused:
        call()
    assert type(refused.value).__name__ == "BlockingCallInLoop"
