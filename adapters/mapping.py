"""The mapping tables of the dialects as data: `MAPPING.md` of each dialect's folder, typed.

Each file has five tables: `Events` (what every native event and field means, and how faithfully
it crosses in each direction), `Routes`, `Errors`, `Canonical` (what a frontend of the dialect sees
of every canonical event) and `Commands` (what a backend of the dialect can be asked). Prose between
the tables is for people and is skipped. `parse_mapping` takes the text, so that reading the file
stays with the caller.

A first cell may end in a qualifier in parentheses, `message.completed.message (T)`: the same name
in one generation or surface of the dialect. A `why` that begins with `masked:` marks a field that
is ours also where the same dialect goes in and out; a comparison of the two sides masks exactly
these.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from adapters.errors import DragomanError, ErrorCode

__all__ = [
    "BACKENDS",
    "DIALECT_OF_FOLDER",
    "FIDELITIES",
    "SERVICES",
    "CanonicalRow",
    "CommandRow",
    "ErrorRow",
    "EventRow",
    "Mapping",
    "MappingError",
    "RouteRow",
    "Row",
    "parse_mapping",
]

DIALECT_OF_FOLDER: dict[str, str] = {
    "herm": "herm",
    "eve": "eve",
    "engine": "engine",
    "managed_agents": "managed-agents",
    "hermes_agent": "hermes-agent",
}
"""Folder below `adapters` -> dialect: a dialect's name may have a dash, a package's may not."""

FIDELITIES = frozenset({"exact", "approximated", "synthesized", "dropped", "-"})
"""How faithfully something crosses; `-` means that it does not occur in that direction."""

SERVICES = frozenset({"yes", "emulated", "passed", "refused", "-"})
"""What our face does with a route, and what our client codec makes of it."""

BACKENDS = frozenset({"native", "emulated", "impossible"})
"""What a backend of a dialect can do with a command."""

MASKED = "masked:"

_SECTIONS: dict[str, tuple[str, ...]] = {
    "Events": ("native", "canonical", "in", "out", "section", "why"),
    "Routes": ("method", "path", "canonical", "served", "driven", "section", "why"),
    "Errors": ("native", "when", "canonical", "section", "why"),
    "Canonical": ("canonical", "shown as", "fidelity", "section", "why"),
    "Commands": ("command", "backend", "how", "section", "why"),
}

_VOCABULARY: dict[str, frozenset[str]] = {
    "in": FIDELITIES,
    "out": FIDELITIES,
    "fidelity": FIDELITIES,
    "served": SERVICES,
    "driven": SERVICES,
    "backend": BACKENDS,
}

_PLAIN = frozenset({"native", "canonical", "method", "path", "command", *_VOCABULARY})
_OPTIONAL = frozenset({"why", "how"})
_CANONICAL_NAME = re.compile(r"-|(command:)?[a-z_]+(\.[a-z_]+)*")
_SECTION_NUMBER = re.compile(r"\d+(\.\d+)*[a-z]?")
_QUALIFIED = re.compile(r"(?P<name>.*\S) \((?P<qualifier>[^()]+)\)")
_NAMES_APART = " + "


class MappingError(DragomanError):
    """A mapping file does not have its form; `line` and `column` count from 1."""

    code = ErrorCode.CONFIG

    def __init__(self, message: str, *, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What all rows have: the line they stand on, the protocol page's sections and the reason."""

    line: int
    section: tuple[str, ...]
    why: str

    @property
    def masked(self) -> bool:
        """Say whether the field is ours also where the same dialect goes in and out."""
        return self.why.startswith(MASKED)


@dataclasses.dataclass(frozen=True, slots=True)
class EventRow(Row):
    """A native event or field and its canonical meaning, `-` being none."""

    native: str
    qualifier: str | None
    canonical: tuple[str, ...]
    fidelity_in: str
    fidelity_out: str


@dataclasses.dataclass(frozen=True, slots=True)
class RouteRow(Row):
    """A route, or one of its members, parameters or headers."""

    method: str
    path: str
    canonical: tuple[str, ...]
    served: str
    driven: str

    @property
    def route(self) -> str:
        """Return the path without the member, parameter or header that the row is about."""
        return re.split(r"[ ?]", self.path, maxsplit=1)[0]


@dataclasses.dataclass(frozen=True, slots=True)
class ErrorRow(Row):
    """A status, code or error body, and what it comes from or becomes."""

    native: str
    when: str
    canonical: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class CanonicalRow(Row):
    """What a frontend of the dialect sees of a canonical event, or of one of its fields."""

    canonical: str
    qualifier: str | None
    shown_as: str
    fidelity: str


@dataclasses.dataclass(frozen=True, slots=True)
class CommandRow(Row):
    """What a backend of the dialect makes of a command; `answer` is split by kind."""

    command: str
    qualifier: str | None
    backend: str
    how: str


@dataclasses.dataclass(frozen=True)
class Mapping:
    """The five tables of one dialect."""

    title: str
    events: tuple[EventRow, ...]
    routes: tuple[RouteRow, ...]
    errors: tuple[ErrorRow, ...]
    canonical: tuple[CanonicalRow, ...]
    commands: tuple[CommandRow, ...]

    @functools.cached_property
    def event(self) -> dict[str, EventRow]:
        """Return the event rows by native name; of several qualified ones the first."""
        return _first(self.events, lambda row: row.native)

    @functools.cached_property
    def shown(self) -> dict[str, CanonicalRow]:
        """Return the canonical rows by name; of several qualified ones the first."""
        return _first(self.canonical, lambda row: row.canonical)

    @functools.cached_property
    def command(self) -> dict[str, CommandRow]:
        """Return the command rows by command; of several qualified ones the first."""
        return _first(self.commands, lambda row: row.command)

    @functools.cached_property
    def masked(self) -> frozenset[str]:
        """Return the native names whose values are ours also on the same-dialect way."""
        return frozenset(row.native for row in self.events if row.masked)


RowT = TypeVar("RowT", bound=Row)


def _first(rows: Iterable[RowT], key: Callable[[RowT], str]) -> dict[str, RowT]:
    found: dict[str, RowT] = {}
    for row in rows:
        found.setdefault(key(row), row)
    return found


def parse_mapping(text: str) -> Mapping:
    """Return the tables of one `MAPPING.md`, given as text.

    Raises:
        MappingError: the text does not have the form; the error names line and column.
    """
    lines = text.splitlines()
    if not lines or not lines[0].startswith("# ") or not lines[0].endswith(" mapping"):
        raise MappingError("expected `# <Dialect> mapping`", line=1, column=1)
    tables: dict[str, list[_Cells]] = {}
    heading: str | None = None
    columns: tuple[str, ...] = ()
    in_table = False
    for number, line in enumerate(lines[1:], start=2):
        if line.startswith("#"):
            heading = _heading(line, number, tables)
            columns = _SECTIONS[heading]
            in_table = False
        elif not line.startswith("|"):
            in_table = False
        elif heading is None:
            raise MappingError("a table before the first section", line=number, column=1)
        elif in_table:
            if heading in tables:
                tables[heading].append(_Cells(line, number, columns))
            elif re.fullmatch(r"\|( ?:?-+:? ?\|)+", line) is None:
                raise MappingError("expected the `|---|` line of the table", line=number, column=1)
            else:
                tables[heading] = []
        elif heading in tables:
            raise MappingError(f"a second table in `{heading}`", line=number, column=1)
        else:
            _header(line, number, columns)
            in_table = True
    for name in _SECTIONS:
        if not tables.get(name):
            raise MappingError(f"no rows in `## {name}`", line=len(lines), column=1)
    return Mapping(
        title=lines[0].removeprefix("# ").removesuffix(" mapping"),
        events=_unique((_event(cells) for cells in tables["Events"]), _event_key),
        routes=_unique((_route(cells) for cells in tables["Routes"]), _route_key),
        errors=_unique((_error(cells) for cells in tables["Errors"]), _error_key),
        canonical=_unique((_canonical(cells) for cells in tables["Canonical"]), _canonical_key),
        commands=_unique((_command(cells) for cells in tables["Commands"]), _command_key),
    )


def _heading(line: str, number: int, tables: dict[str, list[_Cells]]) -> str:
    name = line.removeprefix("## ")
    if name not in _SECTIONS:
        known = ", ".join(f"`## {section}`" for section in _SECTIONS)
        raise MappingError(f"unknown section; known are {known}", line=number, column=1)
    if name in tables:
        raise MappingError(f"a second `## {name}`", line=number, column=1)
    return name


def _header(line: str, number: int, columns: tuple[str, ...]) -> None:
    cells = _Cells(line, number, columns)
    for column in columns:
        if cells.text[column] != column:
            raise cells.error(column, f"expected the column `{column}`")


def _unique(
    rows: Iterable[RowT], key: Callable[[RowT], tuple[str | None, ...]]
) -> tuple[RowT, ...]:
    seen: dict[tuple[str | None, ...], int] = {}
    kept: list[RowT] = []
    for row in rows:
        first = seen.setdefault(key(row), row.line)
        if first != row.line:
            raise MappingError(f"the same row as on line {first}", line=row.line, column=1)
        kept.append(row)
    return tuple(kept)


class _Cells:
    """One line of a table, cut at its pipes; gives its cells checked."""

    def __init__(self, line: str, number: int, columns: tuple[str, ...]) -> None:
        self.number = number
        self._columns: dict[str, int] = {}
        self.text: dict[str, str] = {}
        pieces = _split(line)
        if pieces is None:
            raise MappingError("a row ends with `|`", line=number, column=len(line))
        if len(pieces) != len(columns):
            column = pieces[len(columns)][0] if len(pieces) > len(columns) else len(line)
            raise MappingError(
                f"{len(pieces)} cells where {len(columns)} are expected (escape a pipe as `\\|`)",
                line=number,
                column=column,
            )
        for name, (column, value) in zip(columns, pieces, strict=True):
            self._columns[name] = column
            self.text[name] = value

    def error(self, column: str, message: str) -> MappingError:
        """Return the error that names this line and the position of `column` in it."""
        return MappingError(message, line=self.number, column=self._columns[column])

    def value(self, column: str) -> str:
        """Return the cell of `column`, checked."""
        value = self.text[column]
        if not value and column not in _OPTIONAL:
            raise self.error(column, f"`{column}` is empty")
        if "`" in value and column in _PLAIN:
            raise self.error(column, f"backticks in `{column}`")
        allowed = _VOCABULARY.get(column)
        if allowed is not None and value not in allowed:
            words = ", ".join(sorted(allowed))
            raise self.error(column, f"`{value}` in `{column}`; allowed are {words}")
        return value

    def sections(self) -> tuple[str, ...]:
        """Return the section numbers of the protocol page."""
        numbers = tuple(part.strip() for part in self.value("section").split(","))
        for number in numbers:
            if _SECTION_NUMBER.fullmatch(number) is None:
                raise self.error("section", f"`{number}` is no section number")
        return numbers

    def names(self) -> tuple[str, ...]:
        """Return the canonical names of the row."""
        names = tuple(self.value("canonical").split(_NAMES_APART))
        for name in names:
            if _CANONICAL_NAME.fullmatch(name) is None:
                raise self.error("canonical", f"`{name}` is no canonical name")
        return names

    def qualified(self, column: str) -> tuple[str, str | None]:
        """Return the name in `column` and its qualifier."""
        value = self.value(column)
        match = _QUALIFIED.fullmatch(value)
        return (match["name"], match["qualifier"]) if match else (value, None)

    def why(self, *, needed: bool) -> str:
        """Return the reason, which must be there when it is `needed`."""
        why = self.value("why")
        if needed and not why:
            raise self.error("why", "`why` is empty, and the row is not exact")
        return why


def _split(line: str) -> list[tuple[int, str]] | None:
    """Return (column from 1, text) of each cell, or None when the line does not end with a pipe."""
    pieces: list[tuple[int, str]] = []
    start = 1
    for match in re.finditer(r"(?<!\\)\|", line[1:]):
        end = match.start() + 1
        raw = line[start:end]
        indent = len(raw) - len(raw.lstrip())
        pieces.append((start + indent + 1, raw.strip().replace("\\|", "|")))
        start = end + 1
    return pieces if not line[start:].strip() and pieces else None


def _inexact(*fidelities: str) -> bool:
    return any(fidelity not in {"exact", "-"} for fidelity in fidelities)


def _event(cells: _Cells) -> EventRow:
    native, qualifier = cells.qualified("native")
    names = cells.names()
    fidelity_in, fidelity_out = cells.value("in"), cells.value("out")
    return EventRow(
        line=cells.number,
        section=cells.sections(),
        why=cells.why(needed="-" in names or _inexact(fidelity_in, fidelity_out)),
        native=native,
        qualifier=qualifier,
        canonical=names,
        fidelity_in=fidelity_in,
        fidelity_out=fidelity_out,
    )


def _route(cells: _Cells) -> RouteRow:
    served, driven = cells.value("served"), cells.value("driven")
    return RouteRow(
        line=cells.number,
        section=cells.sections(),
        why=cells.why(needed=not {served, driven} <= {"yes", "-"}),
        method=cells.value("method"),
        path=cells.value("path"),
        canonical=cells.names(),
        served=served,
        driven=driven,
    )


def _error(cells: _Cells) -> ErrorRow:
    names = cells.names()
    return ErrorRow(
        line=cells.number,
        section=cells.sections(),
        why=cells.why(needed=False),
        native=cells.value("native"),
        when=cells.value("when"),
        canonical=names,
    )


def _canonical(cells: _Cells) -> CanonicalRow:
    name, qualifier = cells.qualified("canonical")
    fidelity = cells.value("fidelity")
    return CanonicalRow(
        line=cells.number,
        section=cells.sections(),
        why=cells.why(needed=fidelity != "exact"),
        canonical=name,
        qualifier=qualifier,
        shown_as=cells.value("shown as"),
        fidelity=fidelity,
    )


def _command(cells: _Cells) -> CommandRow:
    command, qualifier = cells.qualified("command")
    backend = cells.value("backend")
    how = cells.value("how")
    if not how and backend != "impossible":
        raise cells.error("how", "`how` is empty, and the command is possible")
    return CommandRow(
        line=cells.number,
        section=cells.sections(),
        why=cells.why(needed=backend != "native"),
        command=command,
        qualifier=qualifier,
        backend=backend,
        how=how,
    )


def _event_key(row: EventRow) -> tuple[str | None, ...]:
    return row.native, row.qualifier


def _route_key(row: RouteRow) -> tuple[str | None, ...]:
    return row.method, row.path


def _error_key(row: ErrorRow) -> tuple[str | None, ...]:
    return row.native, row.when


def _canonical_key(row: CanonicalRow) -> tuple[str | None, ...]:
    return row.canonical, row.qualifier


def _command_key(row: CommandRow) -> tuple[str | None, ...]:
    return row.command, row.qualifier
