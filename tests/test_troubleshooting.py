"""The page about trouble has a row for every code that a frontend can see, with its status, and
for no other."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from adapters.agui import inputs
from adapters.engine import turns
from adapters.wire.errors import ErrorCode
from proxy.base.outcomes import STOP_UNCONFIRMED
from proxy.control.api import STATUS

REPOSITORY = Path(__file__).parent.parent
PAGE = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")

SYMPTOMS, CODES = (
    re.findall(r"^\| (.+) \|$", part, re.MULTILINE)[1:] for part in PAGE.split("## Error codes\n")
)


OF_EVENTS = ("ErrorInfo", "ErrorReported", "in_doubt")
"""What gives an event its code."""


def test_every_code_has_one_row_with_its_status_and_what_to_do() -> None:
    # Code, status, what happened, what to do.
    rows = [row.split(" | ") for row in CODES]
    assert all(len(row) == 4 and all(row) for row in rows)
    told = [(code.strip("`"), status) for codes, status, _, _ in rows for code in codes.split(", ")]
    answers = [one for one in told if one[1] != "–"]
    assert sorted(answers) == sorted((str(code), str(STATUS[code])) for code in ErrorCode)
    events = [code for code, status in told if status == "–"]
    assert sorted(events) == sorted({*codes_of_events()} - {*ErrorCode})


def codes_of_events() -> Iterator[str]:
    """The codes that are written into events, as the sources have them."""
    for outcomes in (inputs._OUTCOMES, turns._OUTCOMES):
        yield from (code for code, _ in outcomes.values())
    yield from ("input_in_doubt", "input_refused", "input_withdrawn", "input_unknown")
    yield from ("http_STATUS", "error", STOP_UNCONFIRMED)
    for file in sources():
        name = ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in OF_EVENTS:
                for given in call.keywords:
                    if given.arg == "code":
                        yield from codes_in(given.value, importlib.import_module(name))


def sources() -> Iterator[Path]:
    """What makes events of sessions."""
    for folder in ("adapters", "proxy"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            if not {"scripted", "offline", "tools", "cli"} & {*file.parts}:
                yield file


def codes_in(value: ast.expr, module: ModuleType) -> Iterator[str]:
    """The constants among what may be the value of a code."""
    match value:
        case ast.Constant(value=str(code)):
            yield code
        case ast.IfExp(body=body, orelse=orelse):
            yield from codes_in(body, module)
            yield from codes_in(orelse, module)
        case ast.BoolOp(values=values):
            for one in values:
                yield from codes_in(one, module)
        case ast.Call(func=ast.Name(), args=args):
            for one in args:
                yield from codes_in(one, module)
        case ast.Name(id=name):
            yield from constant(module, name)
        case ast.Attribute(value=ast.Name(id=of), attr=name):
            yield from constant(getattr(module, of, None), name)


def constant(owner: object, name: str) -> Iterator[str]:
    """What a name stands for, if that is a text."""
    if isinstance(value := getattr(owner, name, None), str):
        yield str(value)


def test_every_symptom_has_a_row() -> None:
    assert len(SYMPTOMS) >= 7


def test_the_list_of_pages_and_the_readme_lead_to_it() -> None:
    assert "(troubleshooting.md)" in (REPOSITORY / "docs" / "index.md").read_text("utf-8")
    assert "(docs/troubleshooting.md)" in (REPOSITORY / "README.md").read_text("utf-8")
