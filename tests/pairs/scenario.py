"""Makes a test of one scenario in each pair, with its cell of the table."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from adapters.registry import DIALECTS
from proxy.scripted.faults import Fault
from tests.pairs.backends import BACKENDS
from tests.pairs.cells import Cell, Refused
from tests.pairs.frontends import Refusal
from tests.pairs.table import FRONTENDS, TABLE

__all__ = ["PLAYED", "Play", "attempt", "refused", "scenario"]

PLAYED: set[str] = set()
"""The rows of the table that some test plays."""


@dataclass(frozen=True, slots=True)
class Play:
    """One scenario in one pair, and how its world is built; `faults` says of a dialect what its
    backend does wrong."""

    frontend: str
    backend: str
    expect: Cell
    pace: float = 0.0
    stored: bool = False
    checked: bool = True
    settings: Mapping[str, Any] | None = None
    faults: Callable[[str], Mapping[tuple[str, int], Fault]] | None = None


def scenario(name: str, **options: Any) -> pytest.MarkDecorator:
    """Return the mark that plays a row of the table in all pairs.

    Args:
        name: the row.
        options: members of `Play`; of `settings` only those of the backend's own dialect.
    """
    PLAYED.add(name)
    row = TABLE[name]
    plays = [
        pytest.param(Play(f, b, row[f, b], **_of(b, options)), id=f"{f}-{b}")
        for f in FRONTENDS
        for b in BACKENDS
        if (f, b) in row
    ]
    return pytest.mark.parametrize("world", plays, indirect=True)


def _of(backend: str, options: dict[str, Any]) -> dict[str, Any]:
    own = DIALECTS[backend].backend_settings
    others = frozenset[str]().union(*(one.backend_settings for one in DIALECTS.values())) - own
    settings = options.get("settings") or {}
    kept = {name: value for name, value in settings.items() if name not in others}
    return {**options, "settings": kept}


@contextlib.contextmanager
def refused(expect: Refused) -> Iterator[None]:
    """Expect the refusal of a cell: its status, its code, its words."""
    with pytest.raises(Refusal) as caught:
        yield
    answer = caught.value
    assert (answer.status, answer.code) == (expect.status, expect.code), answer
    assert expect.why in answer.text


async def attempt(expect: Cell, action: Callable[[], Awaitable[Any]]) -> bool:
    """Do what a cell says about; return whether it was done, a refusal being checked here."""
    if isinstance(expect, Refused):
        with refused(expect):
            await action()
        return False
    await action()
    return True
