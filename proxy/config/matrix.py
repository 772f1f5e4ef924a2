"""What crosses between dialects, as tables: the numbers of every pair, and what a backend can do.

The mapping tables come from each dialect's MAPPING.md, the numbers from `fidelity.json` beside this
module, which was measured over the recorded fixtures and is compared with them by a test.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

import orjson

from adapters import registry
from adapters.contract.fidelity import CANONICAL, ORDER, Side
from adapters.contract.mapping import Mapping, parse_mapping
from adapters.model.commands import COMMAND_TYPES
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode

NUMBERS = "fidelity.json"

Counts = tuple[int, int, int, int]
"""Numbers of fields in the order of `adapters.contract.fidelity.ORDER`."""


@functools.cache
def mapping_of(dialect: str) -> Mapping:
    """Return the mapping tables of a dialect.

    Raises:
        DragomanError: there is no such dialect, or it has no page with its tables.
    """
    known = DIALECTS.get(dialect)
    if known is None:
        text = f"There is no dialect `{dialect}`; known: {', '.join(DIALECTS)}."
        raise DragomanError(text, code=ErrorCode.CONFIG)
    page = resources.files(registry.__package__) / known.folder / "MAPPING.md"
    if not page.is_file():
        text = f"`{dialect}` has no page adapters/{known.folder}/MAPPING.md with its tables."
        raise DragomanError(text, code=ErrorCode.CONFIG)
    return parse_mapping(page.read_text(encoding="utf-8"))


def side_of(dialect: str) -> Side:
    """Return one end of a translation, of a dialect or of the canonical log."""
    return Side(dialect, None if dialect == CANONICAL else mapping_of(dialect))


def backends() -> list[str]:
    """Return the dialects that are driven, in the order of the registry."""
    return [name for name, dialect in DIALECTS.items() if dialect.has_client]


def load_numbers() -> dict[str, Any]:
    """Return the measured numbers: backend -> fixture -> frontend -> counts."""
    text = (resources.files(__package__) / NUMBERS).read_bytes()
    found: dict[str, Any] = orjson.loads(text)["backends"]
    return found


@dataclass(frozen=True, slots=True)
class DialectPair:
    """The sums of one frontend with one backend."""

    frontend: str
    backend: str
    counts: Counts

    def as_json(self) -> dict[str, Any]:
        """Return the pair as one JSON object."""
        named = {str(name): count for name, count in zip(ORDER, self.counts, strict=True)}
        return {"frontend": self.frontend, "backend": self.backend, **named}


def pairs(numbers: dict[str, Any]) -> Iterator[DialectPair]:
    """Return every pair with its sums over all fixtures of the backend."""
    for backend, fixtures in numbers.items():
        names = dict.fromkeys(name for counts in fixtures.values() for name in counts)
        for frontend in names:
            rows = [counts[frontend] for counts in fixtures.values() if frontend in counts]
            a, b, c, d = (sum(column) for column in zip(*rows, strict=True))
            yield DialectPair(frontend, backend, (a, b, c, d))


@dataclass(frozen=True, slots=True)
class CommandCell:
    """How a backend of a dialect carries a command: `native`, `emulated` or `impossible`."""

    command: str
    backend: str
    support: str
    how: str

    def as_json(self) -> dict[str, str]:
        """Return the cell as one JSON object."""
        return {
            "command": self.command,
            "backend": self.backend,
            "support": self.support,
            "how": self.how,
        }


def commands() -> Iterator[CommandCell]:
    """Return every command for every backend, as its client codec declares it."""
    for backend in backends():
        make = DIALECTS[backend].client
        assert make is not None
        abilities = make({"task_id": "matrix"}).abilities
        for command in COMMAND_TYPES:
            ability = abilities[command]
            yield CommandCell(command, backend, str(ability.support), ability.how)
