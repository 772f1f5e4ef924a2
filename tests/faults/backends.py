"""The backends that the tests of faults are played with: those of the registry."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, NamedTuple

from adapters.registry import DIALECTS
from tests.faults.faulty import Faulty
from tests.support.dragoman import KNOWN
from tests.wire import given_messages

__all__ = ["BACKENDS", "Kind", "found", "lacking"]


class Kind(NamedTuple):
    """A backend to be played with: a dialect, and which generation of it."""

    dialect: str
    generation: str = ""

    def __str__(self) -> str:
        return "-".join(part for part in self if part)

    @property
    def faulty(self) -> Faulty:
        """What its dialect says."""
        faulty = found(self.dialect)
        assert faulty is not None
        return faulty

    @property
    def options(self) -> Mapping[str, Any]:
        """The arguments that make the scripted backend one of its generation."""
        return self.faulty.generations[self.generation]


@functools.cache
def found(dialect: str) -> Faulty | None:
    """Return what a dialect says, or None."""
    name = f"tests.faults.{DIALECTS[dialect].folder}"
    if importlib.util.find_spec(name) is None:
        return None
    faulty = importlib.import_module(name).FAULTS
    assert isinstance(faulty, Faulty)
    return faulty


def lacking(dialect: str) -> str:
    """Return what a dialect has still to say, as a sentence that names the place; nothing where it
    has said all."""
    if found(dialect) is not None:
        known = f"add `{dialect}` to `KNOWN` in tests/support/dragoman.py"
        return "" if dialect in KNOWN else known
    return (
        f"write tests/faults/{DIALECTS[dialect].folder}.py: `FAULTS`, a `Faulty` of "
        "`tests.faults.faulty`, with the routes of the scripted backend, and with what goes wrong "
        "on each of them and what becomes of it"
    )


BACKENDS = [
    Kind(name, generation)
    for name in given_messages()
    if (faulty := found(name)) is not None
    for generation in faulty.generations
]
"""Every backend whose dialect says what it needs; that all do is a test."""
