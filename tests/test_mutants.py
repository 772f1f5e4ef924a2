"""`make mutants` itself: what it changes, what it leaves alone, and what it draws."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.__main__ import explained, plan
from tests.mutants.changes import Change, Sample, find, modules
from tests.mutants.seen import Test as SeenTest
from tests.mutants.trial import ROOT
from tests.support.each import each

_MODULE = "adapters/example.py"


def _changes(code: str) -> set[tuple[str, str]]:
    return {(change.before, change.after) for change in find(_MODULE, code.encode())}


def _in_function(*lines: str) -> set[tuple[str, str]]:
    return _changes("\n    ".join(["def f(a, b):", *lines]))


@each(
    ("line", "before", "after"),
    [
        ("x = a == b", "==", "!="),
        ("x = a < b", "<", "<="),
        ("x = a is not b", "is not", "is"),
        ("x = a not in b", "not in", "in"),
        ("x = a and b", "and", "or"),
        ("x = not a", "not a", "(a)"),
        ("x = 1 if a else b", "a", "not (a)"),
        ("x = a - b", "-", "+"),
        ("x = a[1]", "1", "2"),
        ("x = True", "True", "False"),
        ("x = a.get('turn.started')", "'turn.started'", "'turn.started_'"),
        ("return g(a)", "g(a)", "None"),
        ("return", "return", "pass"),
        ("await g(a)", "await g(a)", "pass"),
        ("a.x = b", "a.x = b", "pass"),
        ("a += b", "+=", "-="),
        ("a += b", "a += b", "pass"),
        ("del a[b]", "del a[b]", "pass"),
        ("raise ValueError(a)", "raise ValueError(a)", "pass"),
    ],
)
def test_a_line_is_changed_in_the_way_that_a_slip_would_change_it(
    line: str, before: str, after: str
) -> None:
    assert (before, after) in _in_function(line)


@pytest.mark.parametrize(
    "line",
    [
        '"""a_docstring"""',
        "assert a == b",
        "_log.warning('refused')",
        "self._log.debug('refused')",
        "raise ValueError('refused')",
        "x: Literal['refused']",
        "x = f'{a == b}'",
        "return []",
        "x = cast('refused', a)",
    ],
)
def test_what_no_test_could_notice_is_left_alone(line: str) -> None:
    assert {change for change in _in_function(line) if change[1] != "pass"} == set()


def test_numbers_outside_of_functions_are_left_alone_and_words_are_not() -> None:
    code = "LIMIT = 20_000\n__slots__ = ('a',)\nKIND = 'turn'\n@made(slots=True)\nclass A: ...\n"

    assert _changes(code) == {("'turn'", "'turn_'")}


def test_every_change_of_the_product_stays_on_its_line_and_is_python() -> None:
    for path in modules(ROOT, "adapters/wire/framing"):
        content = (ROOT / path).read_bytes()
        for change in find(path, content):
            changed = change.apply(content)
            ast.parse(changed)
            differing = [
                at
                for at, (one, other) in enumerate(
                    zip(content.splitlines(), changed.splitlines(), strict=True), 1
                )
                if one != other
            ]
            assert differing == [change.line]


def test_changes_of_equal_lines_are_told_apart() -> None:
    changes = find(_MODULE, b"def f(a):\n    a.x = 1\n    g(a)\n    a.x = 1\n")

    assert len({change.key for change in changes}) == len(changes)


def test_a_seed_draws_one_change_of_a_line_and_the_same_again() -> None:
    sources = {path: (ROOT / path).read_bytes() for path in modules(ROOT, "adapters/wire/framing")}
    drawn = Sample(sources, seed=1, count=20).changes

    assert Sample(dict(reversed(sources.items())), seed=1, count=20).changes == drawn
    assert Sample(sources, seed=2, count=20).changes != drawn
    assert len({(change.path, change.line) for change in drawn}) == 20


def test_an_edit_elsewhere_leaves_the_sample_as_it_is() -> None:
    (path,) = modules(ROOT, "adapters/wire/framing/sse.py")
    content = (ROOT / path).read_bytes()
    drawn = Sample({path: content}, seed=1, count=20).changes
    later = Sample({path: content.replace(b"\n\n\n", b"\n\n\n# A remark.\n", 1)}, 1, 20).changes

    assert [change.key for change in later] == [change.key for change in drawn]
    assert [change.line for change in later] != [change.line for change in drawn]


def test_the_tests_of_a_module_itself_are_tried_first_and_slow_ones_never() -> None:
    change = Change("adapters/eve/server.py", 1, "f", 0, 1, "a", "b", "a")
    tests = [
        SeenTest("tests/server/test_restart.py::slow", 50.0),
        SeenTest("tests/herm/test_server.py::one", 0.1),
        SeenTest("tests/eve/test_server.py::second", 0.2),
        SeenTest("tests/eve/test_server.py::first", 0.1),
        SeenTest("tests/eve/test_server.py::fails", 0.1),
    ]

    (run,) = plan(change, tests, unreliable={"tests/eve/test_server.py::fails"})

    assert [test.name.split("/", 1)[1] for test in run] == [
        "eve/test_server.py::first",
        "eve/test_server.py::second",
        "herm/test_server.py::one",
    ]


def test_a_reason_is_a_sentence(tmp_path: Path) -> None:
    assert all(len(why.split()) > 3 for why in explained().values())
    listed = tmp_path / "survivors.toml"
    listed.write_text("# none\n")
    assert explained(listed) == {}
