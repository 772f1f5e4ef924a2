"""The mapping tables: their form, and that they cover the model without losing what counts."""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

import adapters
from adapters.commands import COMMAND_TYPES
from adapters.events import EVENT_TYPES, Entry, Event, InteractionKind, NativeRef
from adapters.mapping import (
    BACKENDS,
    DIALECT_OF_FOLDER,
    FIDELITIES,
    SERVICES,
    ErrorRow,
    EventRow,
    Mapping,
    MappingError,
    RouteRow,
    parse_mapping,
)

FOLDER = pathlib.Path(adapters.__file__).parent
FOLDERS = sorted(DIALECT_OF_FOLDER)

ENVELOPE = {field for field in Event.model_fields if field != "type"} | {"session_id", "seq", "at"}
"""What every event or entry has, whatever its type."""

NEVER_DROPPED = {
    "message.received",
    "message.received.content",
    "guidance.received",
    "text.delta",
    "text.delta.text",
    "text.completed",
    "text.completed.text",
    "tool.called",
    "tool.called.name",
    "tool.called.input",
    "tool.returned",
    "tool.returned.output",
    "tool.returned.content",
    "tool.returned.is_error",
    "interaction.requested",
    "interaction.requested.kind",
    "interaction.requested.prompt",
    "interaction.requested.options",
    "turn.ended",
    "turn.ended.outcome",
    "result.produced",
}
"""Design section 5: user input, assistant text, tools, what can be answered, the outcome."""

COMMANDS = (set(COMMAND_TYPES) - {"answer"}) | {
    f"answer:{kind}" for kind in get_args(InteractionKind)
}

MINIMAL = """# Toy mapping

Prose.

## Events

| native | canonical | in | out | section | why |
|---|---|---|---|---|---|
| hello | session.started | exact | synthesized | 8.6 | made at create |
| hello.id (T) | native.id + extra | exact | - | 8, 9.1 | |
| a\\|b | - | dropped | - | 7 | masked: a pipe |

## Routes
| method | path | canonical | served | driven | section | why |
|---|---|---|---|---|---|---|
| POST | /talk | command:send_message | yes | yes | 5 | |
| GET | /talk ?after | - | emulated | - | 5 | ours |

## Errors
| native | when | canonical | section | why |
|---|---|---|---|---|
| 404 | unknown | input.settled | 4 | |

## Canonical
| canonical | shown as | fidelity | section | why |
|---|---|---|---|---|
| text.delta | `hello` | exact | 8 | |

## Commands
| command | backend | how | section | why |
|---|---|---|---|---|
| send_message | native | POST | 5 | |
| clear | impossible | | 5 | no route |
"""


@functools.cache
def mapping_of(folder: str) -> Mapping:
    return parse_mapping((FOLDER / folder / "MAPPING.md").read_text(encoding="utf-8"))


def all_rows(mapping: Mapping) -> Iterator[Any]:
    yield from mapping.events
    yield from mapping.routes
    yield from mapping.errors
    yield from mapping.canonical
    yield from mapping.commands


def is_known(name: str) -> bool:
    """Say whether `name`, as a table's `canonical` column has it, exists in the model."""
    if name == "-" or name in ENVELOPE:
        return True
    if name.startswith("command:"):
        command, _, field = name.removeprefix("command:").partition(".")
        model = COMMAND_TYPES.get(command)
        return model is not None and has_field(model, field)
    if name.startswith("native.") and has_field(NativeRef, name.removeprefix("native.")):
        return True
    return is_of_event(name)


def is_of_event(name: str) -> bool:
    """Say whether `name` is a canonical type, or a field of one."""
    return any(
        (name == kind or name.startswith(f"{kind}."))
        and has_field(model, name.removeprefix(kind).removeprefix("."))
        for kind, model in EVENT_TYPES.items()
    )


def has_field(model: type[BaseModel], path: str) -> bool:
    """Say whether `model` has the field at `path`; members of plain JSON are not looked at."""
    if not path:
        return True
    head, _, rest = path.partition(".")
    field = model.model_fields.get(head)
    if field is None:
        return False
    inner = [
        part
        for part in (field.annotation, *get_args(field.annotation))
        if isinstance(part, type) and issubclass(part, BaseModel)
    ]
    return not rest or not inner or any(has_field(part, rest) for part in inner)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_dialect_has_a_mapping_that_parses(folder: str) -> None:
    mapping = mapping_of(folder)
    assert mapping.title.lower().split()[0] == folder.split("_")[0]
    assert len(mapping.events) > 50
    assert len(mapping.routes) > 10


def test_every_dialect_folder_has_a_name() -> None:
    folders = {path.parent.name for path in FOLDER.glob("*/MAPPING.md")}
    assert folders == set(DIALECT_OF_FOLDER)
    assert set(DIALECT_OF_FOLDER.values()) == {
        "herm",
        "eve",
        "engine",
        "managed-agents",
        "hermes-agent",
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_row_uses_the_allowed_words_and_says_why_it_is_not_exact(folder: str) -> None:
    mapping = mapping_of(folder)
    for row in mapping.events:
        assert {row.fidelity_in, row.fidelity_out} <= FIDELITIES, row
        if {row.fidelity_in, row.fidelity_out} - {"exact", "-"} or row.canonical == ("-",):
            assert row.why, row
    for route in mapping.routes:
        assert {route.served, route.driven} <= SERVICES, route
    for shown in mapping.canonical:
        assert shown.fidelity in FIDELITIES, shown
        assert shown.fidelity == "exact" or shown.why, shown
    for command in mapping.commands:
        assert command.backend in BACKENDS, command
        assert command.backend == "native" or command.why, command
    for any_row in all_rows(mapping):
        assert any_row.section, any_row


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_canonical_name_of_a_row_exists_in_the_model(folder: str) -> None:
    mapping = mapping_of(folder)
    named: list[EventRow | RouteRow | ErrorRow] = [
        *mapping.events,
        *mapping.routes,
        *mapping.errors,
    ]
    unknown = [
        f"line {row.line}: {name}" for row in named for name in row.canonical if not is_known(name)
    ]
    unknown += [
        f"line {row.line}: {row.canonical}"
        for row in mapping.canonical
        if not is_of_event(row.canonical)
    ]
    assert unknown == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_canonical_type_says_what_a_frontend_sees(folder: str) -> None:
    assert set(EVENT_TYPES) - set(mapping_of(folder).shown) == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_command_says_what_a_backend_makes_of_it(folder: str) -> None:
    assert {row.command for row in mapping_of(folder).commands} == COMMANDS


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_counts_is_never_dropped(folder: str) -> None:
    rows = mapping_of(folder).canonical
    lost = [
        f"line {row.line}: {row.canonical}"
        for row in rows
        if row.canonical in NEVER_DROPPED and row.fidelity in {"dropped", "-"}
    ]
    assert lost == []
    assert {name for name in NEVER_DROPPED if name in EVENT_TYPES} <= {
        row.canonical for row in rows
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_mapping_names_places_outside_of_the_repository(folder: str) -> None:
    text = (FOLDER / folder / "MAPPING.md").read_text(encoding="utf-8")
    # A folder above, one of a machine, a hidden one; routes begin with neither.
    outside = r"\.\./|(?<![\w}])/(home|mnt|opt|root|tmp|usr|Users|var)/|(?<![\w.])\.[a-z]\w*/"
    assert re.search(outside, text) is None


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("-", True),
        ("native", True),
        ("native.frame", True),
        ("native.at", True),
        ("native.color", False),
        ("extra", True),
        ("turn_id", True),
        ("session_id", True),
        ("type", False),
        ("text.delta", True),
        ("text.delta.text", True),
        ("text.delta.colour", False),
        ("text", False),
        ("turn.ended.error.code", True),
        ("turn.ended.error.colour", False),
        ("turn.ended.error.details.anything", True),
        ("step.ended.usage.input_tokens", True),
        ("command:answer.option_ids", True),
        ("command:answer.colour", False),
        ("command:dance", False),
    ],
)
def test_names_are_looked_up_in_the_model(name: str, known: bool) -> None:
    assert is_known(name) is known


def test_the_envelope_is_that_of_entries() -> None:
    assert {"seq", "at", "session_id"} <= set(Entry._fields)


def test_rows_are_typed_and_found_by_name() -> None:
    mapping = parse_mapping(MINIMAL)
    assert mapping.title == "Toy"
    assert mapping.events[1] == EventRow(
        line=10,
        section=("8", "9.1"),
        why="",
        native="hello.id",
        qualifier="T",
        canonical=("native.id", "extra"),
        fidelity_in="exact",
        fidelity_out="-",
    )
    assert mapping.event["a|b"].canonical == ("-",)
    assert mapping.masked == {"a|b"}
    assert [route.route for route in mapping.routes] == ["/talk", "/talk"]
    assert mapping.routes[1].path == "/talk ?after"
    assert mapping.shown["text.delta"].shown_as == "`hello`"
    assert mapping.command["clear"].why == "no route"
    assert mapping.errors[0].when == "unknown"


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "words"),
    [
        ("# Toy mapping", "Toy", 1, 1, "# <Dialect> mapping"),
        ("## Errors", "## Mistakes", 19, 1, "unknown section"),
        ("## Errors", "## Events", 19, 1, "a second `## Events`"),
        ("## Events\n", "\n", 7, 1, "before the first section"),
        ("| native | canonical | in |", "| native | meaning | in |", 7, 12, "column `canonical`"),
        ("|---|---|---|---|---|---|\n| hello", "| hello", 8, 1, "|---|"),
        ("| synthesized | 8.6 |", "| invented | 8.6 |", 9, 37, "`invented` in `out`"),
        ("8.6 | made at create", "8.6 | ", 9, 58, "`why` is empty"),
        ("| 8.6 |", "| |", 9, 51, "`section` is empty"),
        ("| 8.6 |", "| §8 |", 9, 51, "no section number"),
        ("| hello | session.started", "| `hello` | session.started", 9, 3, "backticks"),
        ("| session.started |", "| Session started |", 9, 11, "no canonical name"),
        ("made at create |", "made | at create |", 9, 64, "7 cells where 6 are expected"),
        ("| made at create |", "| made at create", 9, 70, "ends with `|`"),
        ("| hello.id (T) |", "| hello |", 10, 1, "the same row as on line 9"),
        ("a\\|b", "a|b", 11, 31, "7 cells where 6"),
        ("| yes | yes | 5 |", "| sometimes | yes | 5 |", 16, 41, "`sometimes` in `served`"),
        ("| emulated | - | 5 | ours |", "| emulated | - | 5 | |", 17, 47, "`why` is empty"),
        ("| native | POST | 5 |", "| native | | 5 |", 32, 27, "`how` is empty"),
        ("| 404 | unknown | input.settled | 4 | |\n", "", 32, 1, "no rows in `## Errors`"),
        ("\n## Routes", "\n| x |\n\n## Routes", 13, 1, "a second table"),
    ],
)
def test_errors_name_line_and_column(
    old: str, new: str, line: int, column: int, words: str
) -> None:
    assert MINIMAL.count(old) == 1
    with pytest.raises(MappingError) as caught:
        parse_mapping(MINIMAL.replace(old, new))
    assert words in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")
