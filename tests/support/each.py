"""A test that plays its cells in a loop, where `pytest.mark.parametrize` makes a case of each.

A case costs a millisecond or more before it begins, in each process that collects it. Cells that
take less, and by the hundred, are one test: it plays all of them and names those that fail.
CELL=word plays only the cells whose name has that word.
"""

from __future__ import annotations

import enum
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

__all__ = ["each"]

NAMED = 10
"""How many of the cells that failed have their names in the message."""

LONGEST = 100
"""Characters of a text that is a name."""

R = TypeVar("R")
Cell = tuple[str, dict[str, Any]]


def each(
    names: str | Iterable[str],
    cells: Iterable[Any],
    *,
    ids: Iterable[str] | Callable[[Any], str | None] | None = None,
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Make one test that plays all cells; a second `each` above it multiplies them.

    Its arguments are those of `pytest.mark.parametrize`. The fixtures of the test are made once,
    and all cells share them.
    """
    arguments = names.split(",") if isinstance(names, str) else list(names)
    arguments = [argument.strip() for argument in arguments]
    single = isinstance(names, str) and len(arguments) == 1
    named = list(ids) if isinstance(ids, Iterable) else ids
    own = [_cell(arguments, cell, named, place, single) for place, cell in enumerate(cells)]

    def decorate(test: Callable[..., R]) -> Callable[..., R]:
        body, loops = getattr(test, "loops", (test, ()))
        return _looped(test, body, (*loops, own), arguments)

    return decorate


def _cell(arguments: list[str], cell: Any, ids: Any, place: int, single: bool) -> Cell:
    name = None
    if type(cell) is type(pytest.param()):
        assert not cell.marks, "a cell has no marks: leave it a case"
        single, name, cell = False, cell.id, cell.values
    values = dict(zip(arguments, [cell] if single else cell, strict=True))
    if name is None and isinstance(ids, list):
        name = ids[place]
    if name is None:
        name = "-".join(_name(value, argument, place, ids) for argument, value in values.items())
    return str(name), values


def _name(value: Any, argument: str, place: int, ids: Any) -> str:
    """Return what `parametrize` calls a value."""
    if callable(ids) and (name := ids(value)) is not None:
        return str(name)
    match value:
        case str() | bytes():
            short = len(value) <= LONGEST
            text = value if isinstance(value, str) else value.decode("latin-1")
            return text.encode("unicode_escape").decode() if short else f"{argument}{place}"
        case None | int() | float() | enum.Enum():
            return str(value)
        case _:
            return str(getattr(value, "__name__", f"{argument}{place}"))


def _looped(
    test: Callable[..., R],
    body: Callable[..., Any],
    loops: tuple[list[Cell], ...],
    arguments: list[str],
) -> Callable[..., R]:
    def cells() -> Generator[Cell]:
        only = os.environ.get("CELL", "")
        for parts in itertools.product(*loops):
            name = "-".join(part[0] for part in parts)
            if only in name:
                yield name, {key: value for part in parts for key, value in part[1].items()}

    @functools.wraps(test)
    def play(**fixtures: Any) -> None:
        __tracebackhide__ = True
        failures = _Failures()
        for name, values in cells():
            with failures.collected(name):
                body(**fixtures, **values)
        failures.tell()

    @functools.wraps(test)
    async def play_async(**fixtures: Any) -> None:
        __tracebackhide__ = True
        failures = _Failures()
        for name, values in cells():
            with failures.collected(name):
                await body(**fixtures, **values)
        failures.tell()

    looped: Any = play_async if inspect.iscoroutinefunction(body) else play
    signature = inspect.signature(test)
    fixtures = [one for name, one in signature.parameters.items() if name not in arguments]
    assert len(fixtures) + len(arguments) == len(signature.parameters), arguments
    looped.__signature__ = signature.replace(parameters=fixtures)
    looped.loops = body, loops
    made: Callable[..., R] = looped
    return made


class _Failures:
    """Those of the cells that were played that failed, and the first exception."""

    def __init__(self) -> None:
        self.first: BaseException | None = None
        self.names: list[str] = []
        self.played = 0

    @contextmanager
    def collected(self, name: str) -> Generator[None]:
        """Play a cell, and keep its failure."""
        self.played += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
            if self.first is None:
                self.first = error
            self.names.append(name)

    def tell(self) -> None:
        """Fail if a cell did, or if none was played."""
        __tracebackhide__ = True
        if not self.played:
            pytest.fail("nothing to play: there is no such cell")
        if self.first is not None:
            named = self.names[:NAMED]
            more = len(self.names) - len(named)
            text = f"{len(self.names)} of {self.played} cells failed: {', '.join(named)}"
            raise AssertionError(text + f" and {more} more" * bool(more)) from self.first
