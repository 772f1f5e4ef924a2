"""How the modules depend on each other: the import contracts, and each module imported alone."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.contract.dialect import Dialect
from adapters.registry import DIALECTS
from tests.contracts import DialectsForbidden, DialectsIndependent
from tests.release import PLUGIN
from tests.support.each import each

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("adapters", "dragoman", "proxy")
FILES = [
    file
    for package in PACKAGES
    for file in (REPOSITORY / package).rglob("*.py")
    # It is a distribution of its own, of one module.
    if file.parent != PLUGIN
]
MODULES = sorted(str(file.relative_to(REPOSITORY)) for file in FILES)


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


IMPORT_ALONE = """
import importlib, os, sys
from importlib.machinery import SourceFileLoader
import aiohttp.web, apsw, click, orjson, pydantic, pydantic_settings, rich.console

def imported(names):
    "Import modules in a child; return what it has loaded of ours, what ended first first."
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        ended, load = [], SourceFileLoader.exec_module
        def noted(loader, module):
            load(loader, module)
            ended.append(module.__name__)
        SourceFileLoader.exec_module = noted
        failed = False
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException as error:
                print(f"import {name}: {type(error).__name__}: {error}", flush=True)
                failed = True
        os.write(writer, " ".join(ended).encode())
        os._exit(failed)
    os.close(writer)
    with open(reader) as pipe:
        ended = pipe.read().split()
    return None if os.waitpid(child, 0)[1] else [name for name in ended if name in modules]

modules = sys.argv[1:]
order = imported(modules)
failed = order is None
for name in order or ():
    if name in sys.modules:
        continue
    # None of those that it loads is loaded yet, nor is any that loads one of them. What is in a
    # package that loads it comes with its package, also when it is asked for alone.
    with_it, loaded = imported([name]) or [], {}
    for one in sorted(with_it):
        if not any(one.startswith(f"{package}.") and one in of for package, of in loaded.items()):
            loaded[one] = with_it if one == name else imported([one]) or []
            failed |= not loaded[one]
    importlib.import_module(name)
sys.exit(failed)
"""
"""Imports each module in a process that has loaded the libraries, and of ours only modules that do
not load it: whether those come first makes no difference.

A process for each module that loads all that it needs would take most of a minute.
"""


def modules() -> list[str]:
    """Return the dotted names of all modules that the distribution ships."""
    names = (file.relative_to(REPOSITORY).with_suffix("").parts for file in FILES)
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


NAMES_A_DIALECT = re.compile(rf"(?:x-)?(?:{'|'.join(DIALECTS)})(?![a-z])", re.IGNORECASE)


@pytest.mark.parametrize(
    "module",
    [
        name
        for name in MODULES
        # A scripted backend is one of a dialect, and the demonstration shows some of them.
        if name.startswith("proxy/")
        and not name.startswith(("proxy/scripted/", "proxy/tools/demo"))
    ],
)
def test_the_proxy_takes_what_is_a_dialects_own_from_its_declaration(module: str) -> None:
    texts = [
        node.value
        for node in ast.walk(ast.parse((REPOSITORY / module).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [text for text in texts if NAMES_A_DIALECT.match(text)] == []


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {file.parent for file in FILES}
    without = {str(folder) for folder in folders if not (folder / "__init__.py").exists()}
    assert without == set()


@pytest.mark.parametrize(("package", "most"), [("adapters", 16), ("proxy", 23)])
def test_a_package_has_few_entries(package: str, most: int) -> None:
    folder = REPOSITORY / package
    files = [file.relative_to(folder).parts for file in folder.rglob("*") if file.is_file()]
    # What is left of a folder that moved away is a cache.
    entries = {parts[0] for parts in files if "__pycache__" not in parts}
    assert len(entries) <= most, f"{package}/ is the plan of the house: give these a folder"


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
WHY = "Why one module: "

_METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)


def methods_of(node: ast.ClassDef) -> int:
    """Return how many methods a class has by itself."""
    return sum(isinstance(one, _METHODS) for one in node.body)


def too_large(source: str) -> str | None:
    """Say what a module has too much of, if anything."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (methods := methods_of(node)) > MOST_METHODS:
            return f"class {node.name} has {methods} methods"
    lines = source.count("\n")
    return f"it has {lines} lines" if lines > MOST_LINES else None


@each("module", MODULES)
def test_a_large_module_says_why_it_is_one(module: str) -> None:
    source = (REPOSITORY / module).read_text(encoding="utf-8")
    what = too_large(source)
    says = WHY in (ast.get_docstring(ast.parse(source)) or "").replace("\n", " ")
    if what is not None:
        assert says, f"{what}: part it, or write `{WHY}…` at the end of its docstring"
    else:
        assert not says, f"it is no longer large: drop `{WHY}…` from its docstring"


def classes(*packages: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes of packages, each with its module."""
    for module in MODULES:
        if module.startswith(tuple(f"{package}/" for package in packages)):
            for node in ast.walk(ast.parse((REPOSITORY / module).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    yield module, node


STANDS_FOR_TWO = {
    "Reset": "a command, and a fault of scripted backends, which `--kinds` and logs name",
    "RouteOut": "two schemas of openapi.json have this name: a route, and a route in a report",
}
"""Names of two classes, with the reason. Say in a new name whose or what it is instead."""


def test_the_name_of_a_class_stands_for_one_class() -> None:
    modules: dict[str, list[str]] = {}
    for module, node in classes("adapters", "proxy"):
        modules.setdefault(node.name, []).append(module)
    twice = {name: where for name, where in modules.items() if len(where) > 1}
    assert twice.keys() == STANDS_FOR_TWO.keys(), twice


BARE_PARTICIPLE = re.compile(
    r"_?(?:Asked|Awaited|Chosen|Closed|Doomed|Found|Given|Gone|Heard|Held|Kept|Known|Left|Lost|Made"
    r"|Meant|Moved|Opened|Said|Seen|Sent|Shown|Stopped|Stored|Taken|Told|Wanted"
    r"|Keeping|Leaving|Looking|Making|Taking|Telling)"
)
"""What nobody could search for: what was asked, held, told?"""

BARE_PARTICIPLES: set[str] = set()
"""Those that there are."""


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("Told", True),
        ("_Found", True),
        ("HeldText", False),
        ("SessionFound", False),
        ("Toldo", False),
    ],
)
def test_a_bare_participle_is_told_from_a_noun(name: str, bare: bool) -> None:
    assert (BARE_PARTICIPLE.fullmatch(name) is not None) == bare


def test_a_class_is_named_by_a_noun() -> None:
    names = {node.name for _, node in classes("adapters", "proxy")}
    assert {name for name in names if BARE_PARTICIPLE.fullmatch(name)} == BARE_PARTICIPLES


def test_only_a_package_says_what_it_gives_to_others() -> None:
    listing = [
        module
        for module in MODULES
        if not module.endswith("/__init__.py")
        and re.search("^__all__", (REPOSITORY / module).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert listing == []


def test_a_dialect_of_the_new_shape_has_no_large_class() -> None:
    packages = ("adapters/agui", "adapters/aisdk", "adapters/engine", "adapters/serving")
    sizes = {node.name: methods_of(node) for _, node in classes(*packages)}
    assert len(sizes) > 50
    assert {name: size for name, size in sizes.items() if size > MOST_METHODS} == {}
