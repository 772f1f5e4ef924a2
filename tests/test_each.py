"""A test of many cells plays each of them, and names those that fail."""

from __future__ import annotations

import asyncio
import enum
import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BlockingCallInLoop
from tests.support.each import each

ODD = object()


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@each("number", range(1, 5))
def no_odd(number: int) -> None:
    assert number % 2 == 0, f"{number} is odd"


def test_the_cells_that_fail_are_named_and_the_first_is_shown() -> None:
    with pytest.raises(AssertionError, match=r"^2 of 4 cells failed: 1, 3$") as failure:
        no_odd()
    assert "1 is odd" in str(failure.value.__cause__)


def test_the_cells_of_an_async_test_are_awaited() -> None:
    played = []

    @each("number", [1, 2])
    async def test(number: int) -> None:
        await asyncio.sleep(0)
        played.append(number)
        pytest.fail("on purpose")

    assert inspect.iscoroutinefunction(test)
    with pytest.raises(AssertionError, match=r"^2 of 2 cells failed: 1, 2$"):
        asyncio.run(test())
    assert played == [1, 2]


def test_ten_names_are_enough() -> None:
    @each("number", range(30))
    def test(number: int) -> None:
        raise ValueError(number)

    with pytest.raises(AssertionError, match=r"^30 of 30 cells failed: 0, .*, 9 and 20 more$"):
        test()


@pytest.mark.parametrize(
    ("names", "cells", "ids", "named"),
    [
        ("value", ["a\n", b"b", 1, 1.5, None, True], None, r"a\\n, b, 1, 1.5, None, True"),
        ("value", Colour, None, "Colour.RED, Colour.BLUE"),
        ("value", [int, ODD, "x" * 101], None, "int, value1, value2"),
        ("value", [(1, 2), ODD], ["pair", "odd"], "pair, odd"),
        ("value", [1, "x"], lambda value: "one" if value == 1 else None, "one, x"),
        ("value", [pytest.param([], id="none"), pytest.param(3)], None, "none, 3"),
        ("value, other", [(1, 2), ("a", ODD)], None, "1-2, a-other1"),
        (["value"], [[1]], None, "1"),
        (("value", "other"), [(1, pytest), pytest.param(1, 2, id="x")], None, "1-pytest, x"),
    ],
)
def test_a_cell_has_the_name_that_parametrize_gives(
    names: Any, cells: Any, ids: Any, named: str
) -> None:
    def test(value: object, other: object = None) -> None:
        raise ValueError(value, other)

    with pytest.raises(AssertionError, match=f" cells failed: {named}$"):
        each(names, cells, ids=ids)(test)()


def test_two_lists_are_multiplied() -> None:
    played = []

    @each("above", "xy")
    @each("below", [1, 2])
    def test(above: str, below: int) -> None:
        played.append((below, above))
        raise ValueError

    with pytest.raises(AssertionError, match=r"1-x, 1-y, 2-x, 2-y$"):
        test()
    assert played == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_no_cells_are_a_failure() -> None:
    with pytest.raises(pytest.fail.Exception, match="nothing to play"):
        each("number", [])(no_odd.loops[0])()  # type: ignore[attr-defined]


def test_what_stops_a_run_stops_a_loop() -> None:
    @each("error", [BlockingCallInLoop, KeyboardInterrupt])
    def test(error: type[BaseException]) -> None:
        raise error

    with pytest.raises(BlockingCallInLoop):
        test()


def test_one_cell_can_be_played_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELL", "3")
    with pytest.raises(AssertionError, match=r"^1 of 1 cells failed: 3$"):
        no_odd()


def test_a_mark_of_a_cell_or_a_name_that_no_argument_has_is_refused() -> None:
    with pytest.raises(AssertionError, match="leave it a case"):
        each("number", [pytest.param(1, marks=pytest.mark.skip)])(no_odd.loops[0])()  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="nubmer"):
        each("nubmer", [1])(no_odd.loops[0])  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", ["one", "two"])
@each("number", [1, 2])
@each("text", ["a", "b"])
def test_other_arguments_are_fixtures_and_cases(
    case: str, number: int, text: str, tmp_path: Path
) -> None:
    (tmp_path / f"{case}{number}{text}").touch(exist_ok=False)


@each("number", [1, 2])
async def test_an_async_test_has_fixtures(number: int, tmp_path: Path) -> None:
    (tmp_path / str(number)).touch(exist_ok=False)
    await asyncio.sleep(0)
