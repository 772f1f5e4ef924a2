"""The table of the pairs: what each scenario comes to, by frontend and backend.

The faces of `tests.pairs.frontends` have their outcomes in `tests.pairs.expectations`. Any other
dialect of frontends brings its own in a module of its own, `tests/<folder>/pairs.py`: `PERSON`, a
subclass of `Frontend`, and `CELLS`, which says of each scenario what comes of it. What backends
have and lack, `tests.pairs.backends` knows.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping

from adapters.registry import DIALECTS
from tests.pairs import expectations
from tests.pairs.backends import PROPERTIES, BackendProperties
from tests.pairs.expectations import Outcomes, Row, row_of
from tests.pairs.frontends import FRONTENDS as HERE
from tests.pairs.frontends import Frontend
from tests.wire import served

__all__ = ["CELLS", "FRONTENDS", "PEOPLE", "TABLE", "brought", "lacking", "table_of"]


@functools.cache
def brought(dialect: str) -> tuple[type[Frontend], Outcomes] | None:
    """Return the person and the outcomes that the tests of a dialect bring, or None."""
    name = f"tests.{DIALECTS[dialect].folder}"
    if importlib.util.find_spec(name) is None or importlib.util.find_spec(f"{name}.pairs") is None:
        return None
    module = importlib.import_module(f"{name}.pairs")
    return module.PERSON, module.CELLS


def lacking(dialect: str, given: tuple[type[Frontend], Outcomes] | None) -> str:
    """Return what a dialect of frontends has still to say of the scenarios, as a sentence that
    names the place; nothing where it has said all."""
    page = f"tests/{DIALECTS[dialect].folder}/pairs.py"
    if given is None:
        return (
            f"write {page}: `PERSON`, a subclass of `tests.pairs.frontends.Frontend` that talks to "
            "the face as its clients do, and `CELLS`, which says what comes of each scenario of "
            "`tests/pairs/expectations.py`"
        )
    unsaid = [name for name in expectations.CELLS if name not in given[1]]
    return f"{page}: write in `CELLS` what comes of {', '.join(unsaid)}" if unsaid else ""


_BROUGHT = {name: found for name in served() if name not in HERE and (found := brought(name))}

PEOPLE: Mapping[str, type[Frontend]] = {
    **HERE,
    **{name: person for name, (person, _) in _BROUGHT.items()},
}
"""Dialect -> who talks to its face."""

FRONTENDS = tuple(PEOPLE)

CELLS: Mapping[str, Outcomes] = {
    scenario: {
        **outcomes,
        **{name: own[scenario] for name, (_, own) in _BROUGHT.items() if scenario in own},
    }
    for scenario, outcomes in expectations.CELLS.items()
}
"""Scenario -> what comes of it at each face."""


def table_of(
    backends: Mapping[str, BackendProperties], outcomes: Mapping[str, Outcomes] = CELLS
) -> dict[str, Row]:
    """Return the table of some backends."""
    return {scenario: row_of(faces, backends) for scenario, faces in outcomes.items()}


TABLE: Mapping[str, Row] = table_of(PROPERTIES)
"""Scenario -> what comes of it in each pair."""
