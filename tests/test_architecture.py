"""How the modules depend on each other: the import contracts, and each module imported alone."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.dialect import Dialect
from adapters.registry import DIALECTS
from tests.contracts import DialectsForbidden, DialectsIndependent

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("adapters", "proxy")
MODULES = sorted(
    str(file.relative_to(REPOSITORY))
    for package in PACKAGES
    for file in (REPOSITORY / package).rglob("*.py")
)


def test_the_import_contracts_hold() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [linter, "--no-logo"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("contract", "type_"),
    [
        ("dialects-are-independent", "dialects_independent"),
        ("a-part-knows-no-dialect", "dialects_forbidden"),
        ("the-proxy-names-no-dialect", "dialects_forbidden"),
        ("a-codec-cannot-agree-with-itself", "dialects_forbidden"),
    ],
)
def test_the_contracts_about_dialects_take_them_from_the_registry(
    contract: str, type_: str
) -> None:
    tables = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    linter = tables["tool"]["importlinter"]
    contracts = {one.get("id"): one for one in linter["contracts"]}
    assert contracts[contract]["type"] == type_
    types = dict(named.split(": ") for named in linter["contract_types"])
    assert types == {
        make.type_name: f"{make.__module__}.{make.__name__}"
        for make in (DialectsIndependent, DialectsForbidden)
    }


def test_a_dialect_that_is_registered_is_in_the_contracts_about_dialects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DIALECTS, "new-one", Dialect("new-one"))
    independent: Any = DialectsIndependent("independent", {}, {})
    assert "adapters.new_one" in {str(module) for module in independent.modules}
    options = {"source_modules": ["proxy"], "forbidden_modules": ["adapters.registry"]}
    forbidden: Any = DialectsForbidden("forbidden", {}, options)
    named = {str(module) for module in forbidden.forbidden_modules}
    assert {"adapters.new_one", "adapters.eve", "adapters.registry"} <= named


PARTS = 8
"""Tests among which the modules are shared out: to import them all takes half a minute."""

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


@pytest.mark.parametrize("part", range(PARTS))
def test_every_module_can_be_imported_alone(part: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALONE, *modules()[part::PARTS]],
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


MOST_LINES = 450
MOST_METHODS = 30
WHY = "Why one room: "

_METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)


def too_large(source: str) -> str | None:
    """Say what a module has too much of, if anything."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [
                one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            if len(methods) > MOST_METHODS:
                return f"class {node.name} has {len(methods)} methods"
    lines = source.count("\n")
    return f"it has {lines} lines" if lines > MOST_LINES else None


@pytest.mark.parametrize("module", MODULES)
def test_a_large_room_says_why_it_is_one(module: str) -> None:
    source = (REPOSITORY / module).read_text(encoding="utf-8")
    what = too_large(source)
    says = WHY in (ast.get_docstring(ast.parse(source)) or "").replace("\n", " ")
    if what is not None:
        assert says, f"{what}: part it, or write `{WHY}…` at the end of its docstring"
    else:
        assert not says, f"it is no longer large: drop `{WHY}…` from its docstring"
