"""The mapping tables of the dialects as data: `MAPPING.md` of each dialect's folder, typed.

Each file has up to five tables: `Events` (what every native event and field means, and how
faithfully it crosses in each direction), `Routes`, `Errors`, `Canonical` (what a frontend of the
dialect sees of every canonical event) and `Commands` (what a backend of the dialect can be asked).
Prose between the tables is for people and is skipped. `parse_mapping` takes the text, so that
reading the file stays with the caller. `docs/adding-a-dialect.md` has the form in words.

A first cell may end in a qualifier in parentheses, `message.completed.message (T)`: the same name
in one generation or surface of the dialect. A `why` that begins with `masked:` marks a field that
is ours also where the same dialect goes in and out; a comparison of the two sides masks exactly
these.

Why one module: the tables of a page are read and checked together, so that all that is wrong is
said at once.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from adapters.wire.errors import DragomanError, ErrorCode

FIDELITIES = frozenset({"exact", "approximated", "synthesized", "dropped", "-"})
"""How faithfully something crosses; `-` means that it does not occur in that direction."""

SERVICES = frozenset({"yes", "emulated", "passed", "refused", "-"})
"""What our face does with a route, and what our client codec makes of it."""

BACKENDS = frozenset({"native", "emulated", "impossible"})
"""What a backend of a dialect can do with a command."""

MASKED = "masked:"

SECTIONS: dict[str, tuple[str, ...]] = {
    "Events": ("native", "canonical", "in", "out", "section", "why"),
    "Routes": ("method", "path", "canonical", "served", "driven", "section", "why"),
    "Errors": ("native", "when", "canonical", "section", "why"),
    "Canonical": ("canonical", "shown as", "fidelity", "section", "why"),
    "Commands": ("command", "backend", "how", "section", "why"),
}
"""The tables, each with its columns."""

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
_LINK = re.compile(r"\[[^\[\]]+\]\(\S+\)")
_QUALIFIED = re.compile(r"(?P<name>.*\S) \((?P<qualifier>[^()]+)\)")
_NAMES_APART = " + "


class Fault(NamedTuple):
    """Something that does not have its form; `line` and `column` count from 1."""

    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.message}"


class MappingError(DragomanError):
    """A mapping file does not have its form; `faults` are all that is wrong, in its order."""

    code = ErrorCode.CONFIG

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(sorted(faults))
        super().__init__("\n".join(map(str, self.faults)))


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What all rows have: the line they stand on, the protocol page's sections (numbers, or links)
    and the reason."""

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
class CommandMapping(Row):
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
    commands: tuple[CommandMapping, ...]

    @functools.cached_property
    def event(self) -> dict[str, EventRow]:
        """Return the event rows by native name; of several qualified ones the first."""
        return _first(self.events, lambda row: row.native)

    @functools.cached_property
    def shown(self) -> dict[str, CanonicalRow]:
        """Return the canonical rows by name; of several qualified ones the first."""
        return _first(self.canonical, lambda row: row.canonical)

    @functools.cached_property
    def command(self) -> dict[str, CommandMapping]:
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
    """Return the tables of one `MAPPING.md`, given as text. A table that is not there has no rows.

    Raises:
        MappingError: the text does not have the form; the error has all that is wrong.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines() or [""], start=1):
        reader.take(line, number)
    tables, faults = reader.tables, reader.faults
    mapping = Mapping(
        title=reader.title,
        events=_unique((_event(cells) for cells in tables["Events"]), _event_key, faults),
        routes=_unique((_route(cells) for cells in tables["Routes"]), _route_key, faults),
        errors=_unique((_error(cells) for cells in tables["Errors"]), _error_key, faults),
        canonical=_unique(
            (_canonical(cells) for cells in tables["Canonical"]), _canonical_key, faults
        ),
        commands=_unique((_command(cells) for cells in tables["Commands"]), _command_key, faults),
    )
    if faults:
        raise MappingError(faults)
    return mapping


class _Reader:
    """Cuts a page into the cells of its tables, and notes all that has not the form."""

    def __init__(self) -> None:
        self.title = ""
        self.tables: dict[str, list[_Cells]] = {name: [] for name in SECTIONS}
        self.faults: list[Fault] = []
        self._read: set[str] = set()
        self._sections: set[str] = set()
        self._heading: str | None = None
        # Lines of the table that is being read, its head and the line below included; rows count
        # only where there is a place for them.
        self._lines = 0
        self._rows: list[_Cells] | None = None

    def take(self, line: str, number: int) -> None:
        """Take the next line."""
        if number == 1:
            self._first(line)
        elif line.startswith("#"):
            self._section(line, number)
        elif not line.startswith("|"):
            self._lines = 0
        else:
            self._lines += 1
            self._table(line, number)

    def _fault(self, line: int, message: str) -> None:
        self.faults.append(Fault(line, 1, message))

    def _first(self, line: str) -> None:
        if not line.startswith("# ") or not line.endswith(" mapping"):
            self._fault(1, "expected `# <Dialect> mapping`")
        self.title = line.removeprefix("# ").removesuffix(" mapping")

    def _section(self, line: str, number: int) -> None:
        self._lines = 0
        name = line.removeprefix("## ")
        self._heading = name
        if name not in SECTIONS:
            known = ", ".join(f"`## {section}`" for section in SECTIONS)
            self._fault(number, f"unknown section; known are {known}")
        elif name in self._sections:
            self._fault(number, f"a second `## {name}`")
        self._sections.add(name)

    def _table(self, line: str, number: int) -> None:
        name = self._heading
        if self._lines == 1:
            self._rows = None
            if name is None:
                self._fault(number, "a table before the first section")
            elif name in self._read:
                self._fault(number, f"a second table in `{name}`")
            elif name in SECTIONS:
                self._read.add(name)
                self._rows = self.tables[name]
                self._head(line, number, SECTIONS[name])
            return
        if name is None or self._rows is None:
            return
        if self._lines == 2:
            if re.fullmatch(r"\|( ?:?-+:? ?\|)+", line) is None:
                self._fault(number, "expected the `|---|` line of the table")
        elif (cells := _cells(line, number, SECTIONS[name], self.faults)) is not None:
            self._rows.append(cells)

    def _head(self, line: str, number: int, columns: tuple[str, ...]) -> None:
        cells = _cells(line, number, columns, self.faults)
        for column in columns if cells is not None else ():
            assert cells is not None
            if cells.text[column] != column:
                cells.fault(column, f"expected the column `{column}`")


def _unique(
    rows: Iterable[RowT],
    key: Callable[[RowT], tuple[str | None, ...]],
    faults: list[Fault],
) -> tuple[RowT, ...]:
    seen: dict[tuple[str | None, ...], int] = {}
    kept: list[RowT] = []
    for row in rows:
        first = seen.setdefault(key(row), row.line)
        if first != row.line:
            faults.append(Fault(row.line, 1, f"the same row as on line {first}"))
        kept.append(row)
    return tuple(kept)


def _cells(line: str, number: int, columns: tuple[str, ...], faults: list[Fault]) -> _Cells | None:
    """Return the cells of a line, or note why it has not the form."""
    pieces = _split(line)
    if pieces is None:
        faults.append(Fault(number, len(line), "a row ends with `|`"))
    elif len(pieces) != len(columns):
        column = pieces[len(columns)][0] if len(pieces) > len(columns) else len(line)
        what = f"{len(pieces)} cells where {len(columns)} are expected (escape a pipe as `\\|`)"
        faults.append(Fault(number, column, what))
    else:
        return _Cells(number, dict(zip(columns, pieces, strict=True)), faults)
    return None


class _Cells:
    """One line of a table, cut at its pipes; gives its cells, and notes what is wrong in them."""

    def __init__(
        self, number: int, pieces: dict[str, tuple[int, str]], faults: list[Fault]
    ) -> None:
        self.number = number
        self._pieces = pieces
        self._faults = faults
        self.text = {name: value for name, (_, value) in pieces.items()}

    def fault(self, column: str, message: str) -> None:
        """Note what is wrong, at the position of `column` in this line."""
        self._faults.append(Fault(self.number, self._pieces[column][0], message))

    def value(self, column: str) -> str:
        """Return the cell of `column`, checked."""
        value = self.text[column]
        if not value and column not in _OPTIONAL:
            self.fault(column, f"`{column}` is empty")
        if "`" in value and column in _PLAIN:
            self.fault(column, f"backticks in `{column}`")
        allowed = _VOCABULARY.get(column)
        if value and allowed is not None and value not in allowed:
            words = ", ".join(sorted(allowed))
            self.fault(column, f"`{value}` in `{column}`; allowed are {words}")
        return value

    def sections(self) -> tuple[str, ...]:
        """Return the section numbers of the protocol page, or links to it."""
        value = self.value("section")
        sections = tuple(part.strip() for part in value.split(","))
        for section in sections if value else ():
            if _SECTION_NUMBER.fullmatch(section) is None and _LINK.fullmatch(section) is None:
                what = "is neither a section number nor a link as `[words](address)`"
                self.fault("section", f"`{section}` {what}")
        return sections

    def names(self) -> tuple[str, ...]:
        """Return the canonical names of the row."""
        value = self.value("canonical")
        names = tuple(value.split(_NAMES_APART))
        for name in names if value else ():
            if _CANONICAL_NAME.fullmatch(name) is None:
                self.fault("canonical", f"`{name}` is not a canonical name")
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
            self.fault("why", "`why` is empty, and the row is not exact")
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


def _command(cells: _Cells) -> CommandMapping:
    command, qualifier = cells.qualified("command")
    backend = cells.value("backend")
    how = cells.value("how")
    if not how and backend != "impossible":
        cells.fault("how", "`how` is empty, and the command is possible")
    return CommandMapping(
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


def _command_key(row: CommandMapping) -> tuple[str | None, ...]:
    return row.command, row.qualifier
