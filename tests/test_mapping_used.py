"""Every row of a mapping is exercised by a fixture, or listed with the reason why none can.

What a recorded body holds is walked generically: every frame gives the dotted names of its members
and of their values, in all the ways in which MAPPING.md names them. A row that no fixture shows
must be in `fixtures/unexercised.toml`; a row that is listed there and is shown after all fails too.

Rows that are wholly in parentheses (the end of a body, a line that is not JSON) are conditions and
not members; the codec's own tests show them.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from adapters.contract.fidelity import CANONICAL, fields_of
from adapters.contract.mapping import EventRow
from adapters.model.events import EVENT_TYPES
from adapters.registry import DIALECTS
from adapters.wire.framing.ndjson import NdjsonParser
from adapters.wire.framing.sse import SseParser
from adapters.wire.jsonvalue import JsonError, parse_json
from proxy.config.matrix import mapping_of
from tests.wire import FIXTURES, bodies, driven, entries_of, every_body, served

ALLOWED = FIXTURES / "unexercised.toml"

ANY = "(any event)"
ROOTS = ("envelope", "event")
"""What the tables call the outermost object of a frame."""


def unexercised(section: str) -> dict[str, str]:
    """Return the rows that are listed, each with its reason."""
    listed = tomllib.loads(ALLOWED.read_text(encoding="utf-8")).get(section, [])
    found: dict[str, str] = {}
    for group in listed:
        assert set(group) == {"reason", "rows"}
        assert re.search(r"\w+ \w+", group["reason"]), group
        for row in group["rows"]:
            assert row not in found, f"{row} is listed twice"
            found[row] = group["reason"]
    return found


def written(row: EventRow) -> str:
    return row.native if row.qualifier is None else f"{row.native} ({row.qualifier})"


# What frames hold.


def walk(value: Any, path: str, *, whole: bool = False) -> Iterator[str]:
    """Return the names of `value`, which stands at `path`, and of all that is in it.

    `whole` says that it is a frame's object, whose path is a name and has no last part.
    """
    yield path
    match value:
        case dict():
            kind = value.get("type")
            last = path if whole else path.rpartition(".")[2].removesuffix("[]")
            homes = {path, last}
            if isinstance(kind, str) and not whole:
                # A block, a reason, an error: named by its own type, and by its place and type.
                homes |= {kind, f"{last}.{kind}"}
                yield from (kind, f"{last}.{kind}")
            for name, item in value.items():
                for home in homes:
                    yield from walk(item, f"{home}.{name}")
        case list():
            for item in value:
                yield from walk(item, f"{path}[]")
                yield from walk(item, path)
        case None:
            yield f"{path}=null"
        case str() | bool():
            yield f"{path}={value}"


def names_of_frame(kind: str, value: Any) -> Iterator[str]:
    """Return the names of one frame of type `kind`, which is "" where only the payload says it."""
    if not isinstance(value, dict):
        return
    if "hook_event_name" in value:
        yield from names_of_hook(value)
        return
    inner = next((value[k] for k in ("data", "payload") if isinstance(value.get(k), dict)), value)
    kind = str(value.get("type") or inner.get("type") or kind)
    yield f"{ANY}.type={kind}"
    for name in (kind, ANY):
        yield from walk(inner, name, whole=True)
    for name in (*ROOTS, ANY):
        yield from walk(value, name, whole=True)
    for name, item in value.items():
        yield from walk(item, name)


def names_of_hook(value: dict[str, Any]) -> Iterator[str]:
    """Return the names of a hook: its arguments stand in `extra`, but for those of a tool."""
    kind = value["hook_event_name"]
    arguments = {**value.get("extra", {})}
    if value.get("tool_name") is not None:
        arguments |= {"tool_name": value["tool_name"], "args": value["tool_input"]}
    homes = [kind if kind.startswith("gateway:") else f"hooks:{kind}"]
    if not kind.startswith("gateway:"):
        homes.append("hooks:common")
    for home in homes:
        yield from walk(arguments, home, whole=True)
    yield from walk(value, "hooks:stdin", whole=True)
    yield from (f"webhook:{name}" for name in value)
    yield from walk(value.get("session_id"), "hooks:common.session_id")


def frames_of(framing: str, data: bytes) -> Iterator[tuple[str, Any, set[str]]]:
    """Return (name, payload, names of the framing) of each frame."""
    if framing == "ndjson":
        lines = NdjsonParser()
        for line in (*lines.feed(data), *lines.close()):
            assert isinstance(line, bytes)
            yield "", parse_json(line), set()
        return
    parser = SseParser()
    for frame in parser.feed(data):
        assert not isinstance(frame, Exception)
        about = {"sse", "sse.data"}
        about |= {"sse.event"} if frame.event else set()
        about |= {"sse.id"} if frame.id is not None else set()
        about |= {"sse.retry"} if re.search(rb"^retry:", data, re.MULTILINE) else set()
        about |= {"sse.comment"} if re.search(rb"^:", data, re.MULTILINE) else set()
        try:
            payload = parse_json(frame.data)
        except JsonError:
            payload = {}
        yield frame.event, payload, about


@functools.cache
def seen_in(dialect: str) -> tuple[frozenset[str], tuple[frozenset[str], ...]]:
    """Return the names that the bodies of a dialect show, together and for each frame."""
    make = DIALECTS[dialect].client
    assert make is not None
    framing = make({"task_id": "t"}).framing
    frames = []
    for body in bodies(dialect):
        for kind, payload, about in frames_of(framing, body.read_bytes()):
            frames.append(frozenset({*names_of_frame(kind, payload), *about}))
    return frozenset().union(*frames), tuple(set(frames))


def is_seen(
    row: str, rows: set[str], seen: frozenset[str], frames: Iterable[frozenset[str]]
) -> bool:
    """Say whether a row, as MAPPING.md names it, is shown by what was seen."""
    place, equal, value = row.partition("=")
    parent, _, last = row.rpartition(".")
    if equal and value == "(other)":
        listed = {other.partition("=")[2] for other in rows if other.startswith(f"{place}=")}
        return any(
            name.startswith(f"{place}=") and name.partition("=")[2] not in listed for name in seen
        )
    if equal and value == "(absent)":
        kind = place.partition(".")[0]
        return any(kind in frame and place not in frame for frame in frames)
    if last in ("(unknown field)", "unknown_fields"):
        return any(is_unknown_field(name, rows) for name in seen)
    if last in ("(unknown event)", "unknown_type", "unknown"):
        return any(is_unknown_kind(name, parent, rows) for name in seen)
    if "<" in row:
        pattern = re.sub(
            r"<[^>]+>", "[^.]+", re.escape(row).replace(r"\<", "<").replace(r"\>", ">")
        )
        return any(re.fullmatch(pattern, name) for name in seen)
    if last.startswith("("):
        # What a table says of a whole in words is shown with the whole.
        return parent in seen
    return row in seen


@functools.cache
def head(row: str) -> str:
    return re.split(r"[=(\[]", row)[0].rstrip(".")


def is_unknown_field(name: str, rows: set[str]) -> bool:
    """Say whether a name is a member of a known event, or of every frame, that no row names."""
    kind, dot, field = name.partition(".")
    return (
        bool(dot)
        and (kind in rows or kind in ROOTS)
        and any(row.startswith(kind) for row in rows)
        and re.fullmatch(r"\w+", field) is not None
        and not any(
            re.match(rf"{re.escape(place)}\.{field}\b", row)
            for row in rows
            for place in (kind, ANY)
        )
    )


def is_unknown_kind(name: str, family: str, rows: set[str]) -> bool:
    """Say whether a name is a type that no row names, among all or those of a family."""
    place, equal, kind = name.partition("=")
    if not equal:
        return False
    heads = {head(row) for row in rows}
    if place == f"{ANY}.type":
        return kind.startswith(f"{family}." if family else "") and kind not in heads
    return place == f"{family}.type" and f"{family}.{kind}" not in rows


def rows_to_see(dialect: str) -> list[EventRow]:
    """Return the rows of what a backend of the dialect sends."""
    return [
        row
        for row in mapping_of(dialect).events
        if row.fidelity_in != "-"
        and not any(name.startswith("command:") for name in row.canonical)
        and (not re.fullmatch(r"\([^()]+\)", row.native) or row.native == "(unknown event)")
    ]


@pytest.mark.parametrize("dialect", driven())
def test_every_row_is_shown_by_a_fixture_or_listed_with_its_reason(dialect: str) -> None:
    seen, frames = seen_in(dialect)
    rows = rows_to_see(dialect)
    natives = {row.native for row in mapping_of(dialect).events}
    shown = {written(row) for row in rows if is_seen(row.native, natives, seen, frames)}
    listed = set(unexercised(dialect))
    names = {written(row) for row in rows}
    assert listed - names == set(), "listed, but no row (any more)"
    assert listed & shown == set(), "listed, but a fixture shows them: take them off the list"
    assert names - shown - listed == set(), (
        f"no body below fixtures/wire/{dialect} shows these rows: record one, or list them in "
        f"fixtures/unexercised.toml under `[[{dialect}]]` with the reason"
    )


@pytest.mark.parametrize("dialect", served())
def test_every_row_of_a_face_is_fed_by_a_log_or_listed_with_its_reason(dialect: str) -> None:
    fed = fed_names()
    names = {row.canonical for row in mapping_of(dialect).canonical}
    listed = set(unexercised(CANONICAL))
    assert listed & fed == set(), "listed, but a log has them: take them off the list"
    assert names - fed - listed == set(), (
        f"no log has these rows of `{dialect}`: add what they are about to "
        "fixtures/canonical/every-type.ndjson, or list them in fixtures/unexercised.toml under "
        f"`[[{CANONICAL}]]` with the reason"
    )


@functools.cache
def fed_names() -> frozenset[str]:
    """Return the canonical types and fields that the logs of all fixtures hold."""
    names: set[str] = set()
    for dialect, body in every_body():
        for entry in entries_of(dialect, body):
            type_ = entry.event.TYPE
            names.add(type_)
            names |= {f"{type_}.{name}" for name in fields_of(entry.event)}
            # A field that is left at its default is fed all the same: the event says it so.
            model = type(entry.event).model_fields
            names |= {f"{type_}.{name}" for name, field in model.items() if not is_absent(field)}
    return frozenset(names)


def is_absent(field: Any) -> bool:
    return not field.is_required() and field.get_default() in (None, ())


def test_the_list_is_of_dialects_that_exist() -> None:
    sections = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))
    assert set(sections) <= {*DIALECTS, CANONICAL}


def test_the_logs_hold_every_canonical_type() -> None:
    assert set(EVENT_TYPES) <= fed_names()


# The walk itself.


@pytest.mark.parametrize(
    ("kind", "value", "names"),
    [
        ("text_delta", {"text": "x"}, {"text_delta", "text_delta.text", "(any event).text"}),
        ("error", {"error": "A", "details": {"retry_after": 1}}, {"error.details.retry_after"}),
        ("error", {"error": "A"}, {"error.error=A"}),
        ("", {"type": "a", "data": {"b": [{"c": "d"}]}}, {"a.b[].c=d", "(any event).type=a"}),
        ("", {"type": "a", "payload": {"b": None}}, {"a.b=null", "envelope.payload", "event.type"}),
        (
            "",
            {"type": "idle", "stop_reason": {"type": "budget", "ids": ["x"]}},
            {"stop_reason.budget", "stop_reason.budget.ids", "idle.stop_reason"},
        ),
        ("", {"type": "say", "content": [{"type": "text", "text": "x"}]}, {"content.text.text"}),
    ],
)
def test_a_frame_has_the_names_that_tables_use(kind: str, value: Any, names: set[str]) -> None:
    assert names <= set(names_of_frame(kind, value))


ROWS = {"say", "say.kind=a", "say.kind=(other)", "say.kind=(absent)", "say.labels.<id>.text"}


@pytest.mark.parametrize(
    ("row", "value", "expected"),
    [
        ("say", {}, True),
        ("hum", {}, False),
        ("say.kind=a", {"kind": "a"}, True),
        ("say.kind=a", {"kind": "b"}, False),
        ("say.kind=(other)", {"kind": "b"}, True),
        ("say.kind=(other)", {"kind": "a"}, False),
        ("say.kind=(absent)", {}, True),
        ("say.kind=(absent)", {"kind": "a"}, False),
        ("say.(in words)", {}, True),
        ("hum.(in words)", {}, False),
        ("say.labels.<id>.text", {"labels": {"c-1": {"text": "x"}}}, True),
        ("say.labels.<id>.text", {"labels": {"c-1": {"tone": "x"}}}, False),
        ("(any event).(unknown field)", {"colour": 1}, True),
        ("(any event).(unknown field)", {"kind": "a"}, False),
    ],
)
def test_rows_are_found_in_what_was_seen(row: str, value: Any, expected: bool) -> None:
    seen = frozenset(names_of_frame("say", value))
    assert is_seen(row, ROWS, seen, [seen]) is expected


def test_an_event_without_a_row_is_unknown() -> None:
    for kind, expected in (("say", False), ("shout", True)):
        frame = frozenset(names_of_frame(kind, {"kind": "a"}))
        assert is_seen("(unknown event)", ROWS, frame, [frame]) is expected
