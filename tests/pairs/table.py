"""The table of the pairs, with what the tests of a dialect's own bring to it.

The rows of `tests.pairs.expectations` are about the people of `tests.pairs.frontends`. Any other
dialect of frontends brings both in a module of its own, `tests/<folder>/pairs.py`: `PERSON`, a
subclass of `Frontend`, and `CELLS`, which says of each scenario what comes of it: one cell, or one
for each backend in the order of `BACKENDS`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping, Sequence

from adapters.registry import DIALECTS
from tests.pairs import expectations
from tests.pairs.expectations import BACKENDS, Cell, Row
from tests.pairs.frontends import FRONTENDS as HERE
from tests.pairs.frontends import Frontend
from tests.wire import served

__all__ = ["FRONTENDS", "PEOPLE", "TABLE", "brought", "lacking", "with_cells"]

Cells = Mapping[str, Cell | Sequence[Cell]]


@functools.cache
def brought(dialect: str) -> tuple[type[Frontend], Cells] | None:
    """Return the person and the cells that the tests of a dialect bring, or None."""
    name = f"tests.{DIALECTS[dialect].folder}"
    if importlib.util.find_spec(name) is None or importlib.util.find_spec(f"{name}.pairs") is None:
        return None
    module = importlib.import_module(f"{name}.pairs")
    return module.PERSON, module.CELLS


def with_cells(table: Mapping[str, Row], dialect: str, cells: Cells) -> dict[str, Row]:
    """Return the table with the cells of one more dialect of frontends."""
    rows = dict(table)
    for name, cell in cells.items():
        own = (cell,) * len(BACKENDS) if isinstance(cell, Cell) else cell
        more = {(dialect, b): one for b, one in zip(BACKENDS, own, strict=True)}
        rows[name] = {**rows[name], **more}
    return rows


def lacking(dialect: str, given: tuple[type[Frontend], Cells] | None) -> str:
    """Return what a dialect of frontends has still to say of the scenarios, as a sentence that
    names the place; nothing where it has said all."""
    page = f"tests/{DIALECTS[dialect].folder}/pairs.py"
    if given is None:
        return (
            f"write {page}: `PERSON`, a subclass of `tests.pairs.frontends.Frontend` that talks to "
            "the face as its clients do, and `CELLS`, which says what comes of each scenario of "
            "`tests/pairs/expectations.py`"
        )
    unsaid = [name for name in expectations.TABLE if name not in given[1]]
    return f"{page}: write in `CELLS` what comes of {', '.join(unsaid)}" if unsaid else ""


_BROUGHT = {name: found for name in served() if name not in HERE and (found := brought(name))}

PEOPLE: Mapping[str, type[Frontend]] = {
    **HERE,
    **{name: person for name, (person, _) in _BROUGHT.items()},
}
"""Dialect -> who talks to its face."""

FRONTENDS = tuple(PEOPLE)

TABLE: Mapping[str, Row] = functools.reduce(
    lambda table, named: with_cells(table, named[0], named[1][1]),
    _BROUGHT.items(),
    dict(expectations.TABLE),
)
"""Scenario -> what comes of it in each pair."""
