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
from adapters.contract.mapping import (
    BACKENDS,
    FIDELITIES,
    SERVICES,
    ErrorRow,
    EventRow,
    Mapping,
    MappingError,
    RouteRow,
    parse_mapping,
)
from adapters.model.commands import COMMAND_TYPES
from adapters.model.events import EVENT_TYPES, Entry, Event, InteractionKind, NativeRef
from adapters.registry import DIALECTS, faces
from tests.support.each import each
from tests.wire import backends, frontends

FOLDER = pathlib.Path(adapters.__file__).parent
DIALECT_OF_FOLDER = {known.folder: known.name for known in DIALECTS.values()}
FOLDERS = sorted(DIALECT_OF_FOLDER)
SHOWING = [folder for folder in FOLDERS if DIALECT_OF_FOLDER[folder] in frontends()]
SERVED = [folder for folder in FOLDERS if DIALECT_OF_FOLDER[folder] in faces()]
ASKED = [folder for folder in FOLDERS if DIALECT_OF_FOLDER[folder] in backends()]

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
    page = FOLDER / folder / "MAPPING.md"
    assert page.is_file(), f"write adapters/{folder}/MAPPING.md: docs/adding-a-dialect.md says how"
    return parse_mapping(page.read_text(encoding="utf-8"))


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
    # A name may have a dash or spaces in its title.
    name = re.split(r"[ -]", mapping.title.lower())[0]
    assert name == folder.split("_")[0], f"adapters/{folder}/MAPPING.md: its title is another's"


def test_every_dialect_folder_has_a_name() -> None:
    folders = {path.parent.name for path in FOLDER.glob("*/MAPPING.md")}
    assert folders - set(DIALECT_OF_FOLDER) == set(), "adapters/registry.py: give these a line"
    assert set(DIALECT_OF_FOLDER) - folders == set(), "write their MAPPING.md"


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


@pytest.mark.parametrize("folder", SHOWING)
def test_every_canonical_type_says_what_a_frontend_sees(folder: str) -> None:
    unsaid = [name for name in EVENT_TYPES if name not in mapping_of(folder).shown]
    assert unsaid == [], f"adapters/{folder}/MAPPING.md: write these in `## Canonical`"


@pytest.mark.parametrize("folder", SERVED)
def test_every_route_of_a_face_has_its_row(folder: str) -> None:
    def shape(path: str) -> str:
        return re.sub(r"{[^}]*}|:\w+", "{}", path)

    rows = mapping_of(folder).routes
    served = {(row.method, shape(row.route)) for row in rows if row.served != "-"}
    unsaid = [
        f"{route.method} {route.path}"
        for route in faces()[DIALECT_OF_FOLDER[folder]].routes
        if route.method != "*" and (route.method, shape(route.path or "/")) not in served
    ]
    assert unsaid == [], f"adapters/{folder}/MAPPING.md: write these in `## Routes`, as served"


@pytest.mark.parametrize("folder", SERVED)
def test_every_dialect_that_is_served_has_a_page_for_those_who_use_it(folder: str) -> None:
    name = DIALECT_OF_FOLDER[folder]
    page = FOLDER.parent / "docs" / "dialects" / f"{name}.md"
    assert page.is_file(), (
        f"write docs/dialects/{name}.md: how a frontend of `{name}` reaches us, which routes are "
        "served, what differs from a real server"
    )
    assert f"/as/{name}/to/" in page.read_text(encoding="utf-8"), f"{page}: show the base URL"


@pytest.mark.parametrize("folder", ASKED)
def test_every_command_says_what_a_backend_makes_of_it(folder: str) -> None:
    said = {row.command for row in mapping_of(folder).commands}
    assert sorted(COMMANDS - said) == [], f"adapters/{folder}/MAPPING.md: write in `## Commands`"
    assert sorted(said - COMMANDS) == [], f"adapters/{folder}/MAPPING.md: no such commands"


@pytest.mark.parametrize("folder", SHOWING)
def test_what_counts_is_never_dropped(folder: str) -> None:
    rows = mapping_of(folder).canonical
    lost = [
        f"line {row.line}: {row.canonical}"
        for row in rows
        if row.canonical in NEVER_DROPPED and row.fidelity in {"dropped", "-"}
    ]
    assert lost == [], f"adapters/{folder}/MAPPING.md: no frontend may be without these"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_mapping_names_places_outside_of_the_repository(folder: str) -> None:
    text = (FOLDER / folder / "MAPPING.md").read_text(encoding="utf-8")
    # A folder above, one of a machine, a hidden one; routes begin with neither.
    outside = r"\.\./|(?<![\w}])/(home|mnt|opt|root|tmp|usr|Users|var)/|(?<![\w.])\.[a-z]\w*/"
    assert re.search(outside, text) is None


@each(
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


@each(
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
        ("| 8.6 |", "| §8 |", 9, 51, "`§8` is neither a section number nor a link"),
        ("| hello | session.started", "| `hello` | session.started", 9, 3, "backticks"),
        ("| session.started |", "| Session started |", 9, 11, "not a canonical name"),
        ("made at create |", "made | at create |", 9, 64, "7 cells where 6 are expected"),
        ("| made at create |", "| made at create", 9, 70, "ends with `|`"),
        ("| hello.id (T) |", "| hello |", 10, 1, "the same row as on line 9"),
        ("a\\|b", "a|b", 11, 31, "7 cells where 6"),
        ("| yes | yes | 5 |", "| sometimes | yes | 5 |", 16, 41, "`sometimes` in `served`"),
        ("| emulated | - | 5 | ours |", "| emulated | - | 5 | |", 17, 47, "`why` is empty"),
        ("| native | POST | 5 |", "| native | | 5 |", 32, 27, "`how` is empty"),
        ("\n## Routes", "\n| x |\n\n## Routes", 13, 1, "a second table"),
    ],
)
def test_errors_name_line_and_column(
    old: str, new: str, line: int, column: int, words: str
) -> None:
    assert MINIMAL.count(old) == 1
    with pytest.raises(MappingError) as caught:
        parse_mapping(MINIMAL.replace(old, new))
    first = caught.value.faults[0]
    assert words in first.message
    assert (first.line, first.column) == (line, column)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


def test_all_errors_of_a_page_are_told_at_once() -> None:
    wrong = MINIMAL.replace("| session.started | exact |", "| Session | precise |")
    wrong = wrong.replace("| yes | yes | 5 |", "| yes | 5 |").replace("## Errors", "## Mistakes")
    wrong = wrong.replace("| impossible | | 5 | no route |", "| impossible | | 5 | |")
    with pytest.raises(MappingError) as caught:
        parse_mapping(wrong)
    assert str(caught.value).splitlines() == [
        "line 9, column 11: `Session` is not a canonical name",
        "line 9, column 21: `precise` in `in`; allowed are -, approximated, dropped, exact, "
        "synthesized",
        "line 16, column 51: 6 cells where 7 are expected (escape a pipe as `\\|`)",
        "line 19, column 1: unknown section; known are `## Events`, `## Routes`, `## Errors`, "
        "`## Canonical`, `## Commands`",
        "line 33, column 30: `why` is empty, and the row is not exact",
    ]


def test_a_table_may_have_no_rows_or_not_be_there() -> None:
    assert parse_mapping("# Toy mapping\n").events == ()
    assert parse_mapping("# Toy mapping\n\n## Routes\n").routes == ()


def test_a_section_is_a_number_or_a_link() -> None:
    link = "[Runs](https://pages.example/runs#started)"
    (hello, *_) = parse_mapping(MINIMAL.replace("| 8.6 |", f"| 8.6, {link} |")).events
    assert hello.section == ("8.6", link)
