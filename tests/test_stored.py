"""What is stored has a version, an earlier one is read, and a later one is refused in words."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import subprocess
import sys
import typing
import zlib
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import TypeAdapter

from adapters.driving.part import NOT_STORED
from adapters.model import commands, events, stored
from adapters.model import events as ev
from adapters.model.base import ClientCodec
from adapters.model.commands import Command, SendMessage, decode_command, encode_command
from adapters.model.events import Entry, Event
from adapters.model.raw import Raw
from adapters.model.stored import (
    CodecCheckpoint,
    SchemaMismatch,
    StoredByNewer,
    StoredType,
    fill,
    mark,
    newest,
    read,
    upgraded,
)
from adapters.offline.moves import HandoverCodec
from adapters.registry import DIALECTS

REPOSITORY = Path(__file__).parents[1]

SHAPES = {
    ("events", 1): 767038427,
    ("commands", 1): 690217294,
    ("agui", 1): 3262637595,
    ("engine", 1): 2186941259,
    ("eve", 1): 3352403035,
    ("herm", 1): 4206229850,
    ("managed-agents", 1): 2219478526,
    ("hermes-agent", 1): 1739568113,
    ("moved", 1): 2978162301,
}
"""What each version has stored. A line stays for as long as its version: add one for the next."""


def codec_of(dialect: str) -> type[ClientCodec]:
    codec = DIALECTS[dialect].client
    assert isinstance(codec, type)
    assert issubclass(codec, ClientCodec)
    return codec


KINDS: dict[str, type[StoredType]] = {
    "events": Event,
    "commands": Command,
    "moved": HandoverCodec,
    **{name: codec_of(name) for name, known in DIALECTS.items() if known.client is not None},
}


def fields_of_records(kind: type[StoredType]) -> list[str]:
    """The fields of the dataclasses of a codec, as they are written in its source. The name of a
    class is not stored: a number stands for it."""
    numbers = {record.__name__: f"#{number}" for number, record in enumerate(kind.records)}
    return [
        f"#{number}.{field.name}: "
        + re.sub(r"\w+", lambda found: numbers.get(found[0], found[0]), str(field.type))
        for number, record in enumerate(kind.records)
        for field in dataclasses.fields(record)
    ]


def fields_of_models(module: ModuleType) -> list[str]:
    """The fields of all models of a module, and its words for what they may hold."""
    found = []
    for name, value in sorted(vars(module).items()):
        if (
            inspect.isclass(value)
            and issubclass(value, ev.Model)
            and value.__module__ == (module.__name__)
        ):
            own = inspect.get_annotations(value)
            found += [f"{name}.{field}: {text}" for field, text in own.items()]
        elif typing.get_origin(value) is typing.Literal:
            found.append(f"{name}: {typing.get_args(value)}")
    return found


def shape(name: str) -> int:
    kind = KINDS[name]
    modules = {"events": events, "commands": commands}
    lines = fields_of_models(modules[name]) if name in modules else fields_of_records(kind)
    assert lines
    return zlib.crc32("\n".join(lines).encode())


@pytest.mark.parametrize("name", KINDS)
def test_what_is_stored_changes_with_its_version_only(name: str) -> None:
    version = KINDS[name].state_version
    known = SHAPES.get((name, version))
    assert known == shape(name), (
        f"the fields of what `{name}` stores are others than version {version} has: "
        f"raise its `state_version`, write the step from {version} into its `upgrade`, "
        f"and add {(name, version + 1)}: {shape(name)} to SHAPES. "
        "A version that no release has written yet is changed in place."
    )
    assert {v for n, v in SHAPES if n == name} >= {version}


_RESTORE = """
from adapters.registry import DIALECTS
from adapters.model.stored import adapter_of
for known in DIALECTS.values():
    # A client is loaded when it is first asked for, and has made all by then.
    client = known.client
    made = adapter_of.cache_info().misses
    if client is not None:
        codec = client({"task_id": "t"})
        codec.restore(codec.snapshot(), None)
        assert adapter_of.cache_info().misses == made > 0, known.name
"""


def test_nothing_is_made_at_the_first_restore() -> None:
    # A process of its own: here, other tests have restored codecs before.
    subprocess.run([sys.executable, "-c", _RESTORE], check=True, cwd=REPOSITORY)


# Versions and steps.


class Kind(StoredType):
    """Version 1 was a text, 2 has a list, 3 an object."""

    state_version: ClassVar[int] = 3
    steps: ClassVar[list[int]] = []

    @classmethod
    def upgrade(cls, version: int, state: Any) -> Any:
        cls.steps.append(version)
        match version:
            case 1:
                return state.split(",")
            case 2:
                return {"parts": state}
            case _:
                return super().upgrade(version, state)


def test_a_value_is_upgraded_one_version_at_a_time() -> None:
    Kind.steps.clear()
    assert read(Kind, "a kind", b'v1 "a,b"') == {"parts": ["a", "b"]}
    assert Kind.steps == [1, 2]
    assert read(Kind, "a kind", mark(2) + b'["a"]') == {"parts": ["a"]}
    assert read(Kind, "a kind", mark(3) + b'{"parts":[]}') == {"parts": []}
    assert Kind.steps == [1, 2, 2]


def test_what_has_no_mark_is_refused() -> None:
    assert read(StoredType, "a thing", b'v1 {"a":1}') == {"a": 1}
    with pytest.raises(SchemaMismatch, match="a thing has no version"):
        read(StoredType, "a thing", b'{"a":1}')
    with pytest.raises(ValueError, match="byte"):
        read(Kind, "a kind", mark(3) + b"a,b")


def test_a_later_version_is_refused_and_named_with_the_way_out() -> None:
    with pytest.raises(StoredByNewer) as refused:
        read(Kind, "the state of something", mark(7) + b"{}")
    assert refused.value.message == (
        "the state of something has version 7, and this Dragoman knows versions up to 3: "
        "run the release that wrote it, or a later one"
    )


@pytest.mark.parametrize("version", [0, -1, "2", None, 1.0, True])
def test_what_is_no_version_is_refused(version: object) -> None:
    with pytest.raises(SchemaMismatch, match="a thing has no version"):
        upgraded(Kind, "a thing", version, {})


def test_a_step_that_is_missing_is_named() -> None:
    class Gap(StoredType):
        state_version: ClassVar[int] = 2

    with pytest.raises(SchemaMismatch, match="nothing leads on from version 1"):
        read(Gap, "a thing", b"v1 {}")


# Records.


@dataclasses.dataclass(slots=True)
class Part:
    name: str
    numbers: list[int] = dataclasses.field(default_factory=list)
    more: dict[str, Any] | None = None


def test_a_record_is_filled_with_all_its_fields_and_no_others() -> None:
    value = {"name": "n", "numbers": [1], "more": {"a": [None]}}
    assert fill(Part, value) == Part("n", [1], {"a": [None]})


@dataclasses.dataclass(slots=True)
class Whole:
    part: Part
    events: list[Raw] = dataclasses.field(default_factory=list)
    passing: Annotated[set[str], NOT_STORED] = dataclasses.field(default_factory=set)


GAP = ev.Gap(thread_id=ev.MAIN, reason="r")
PART: dict[str, Any] = {"name": "n", "numbers": [], "more": None}


def test_a_record_with_records_and_events_in_it_is_filled_but_for_what_is_not_stored() -> None:
    value = json.loads(TypeAdapter(Whole).dump_json(Whole(Part("n"), [GAP], {"a"})))
    assert "passing" not in value
    assert fill(Whole, value) == Whole(Part("n"), [GAP])
    # Of an event, an earlier version may have had other members.
    value["events"] = [{"type": "gap", "thread_id": ev.MAIN, "reason": "r"}]
    assert fill(Whole, value) == Whole(Part("n"), [GAP])


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"part": PART, "events": [], "passing": []}, "`Whole` has other fields: `passing`"),
        ({"part": {"name": "n"}, "events": []}, "`Whole.part` is of another type"),
        ({"part": {**PART, "most": 1}, "events": []}, "`Whole.part` is of another type"),
        ({"part": PART, "events": [{"reason": "r"}]}, "`Whole.events` is of another type"),
    ],
)
def test_a_record_inside_of_one_has_all_its_fields_too(value: Any, says: str) -> None:
    with pytest.raises(SchemaMismatch) as refused:
        fill(Whole, value)
    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"name": "n", "numbers": []}, "`Part` has other fields: `more`"),
        (
            {"name": "n", "numbers": [], "more": None, "secret": "s3cret"},
            "`Part` has other fields: `secret`",
        ),
        (
            {"title": "n", "numbers": [], "more": None},
            "`Part` has other fields: `name`, `title`",
        ),
        ({"name": 1, "numbers": [], "more": None}, "`Part.name` is of another type"),
        (
            {"name": "n", "numbers": ["s3cret"], "more": None},
            "`Part.numbers` is of another type",
        ),
        ([], "`Part` is not an object"),
    ],
)
def test_a_record_that_does_not_fit_is_named_and_not_quoted(value: Any, says: str) -> None:
    with pytest.raises(SchemaMismatch) as refused:
        fill(Part, value)
    assert str(refused.value) == says
    assert "s3cret" not in repr(refused.value.__context__)


# What a codec keeps.


def test_a_position_has_the_state_only_where_it_is_not_that_of_the_snapshot() -> None:
    kept = CodecCheckpoint(StoredType, "a thing")
    state = b'"one"'
    assert kept.position(b"1", lambda: state) == b'v1 [1,"one"]'
    assert kept.snapshot(b"1", state) == b'v1 [1,"one"]'
    assert kept.position(b"2", lambda: state) == b"v1 [2]"
    state = b'"two"'
    # Nobody has said that it may have changed.
    assert kept.position(b"2", lambda: state) == b"v1 [2]"
    assert not kept.changed(lambda: state)
    kept.touched = True
    assert kept.changed(lambda: state)
    assert kept.position(b"3", lambda: state) == b'v1 [3,"two"]'
    state = b'"one"'
    assert kept.position(b"4", lambda: state) == b"v1 [4]"
    assert not kept.touched


def test_what_was_kept_is_compared_with_what_follows() -> None:
    kept = CodecCheckpoint(StoredType, "a thing")
    first, later = kept.restore(b'v1 [1,"one","more"]', b"v1 [2]")
    assert newest(first, later) == [2, "one", "more"]
    assert kept.position(b"2", lambda: b'"one"') == b"v1 [2]"
    kept.touched = True
    assert kept.position(b"2", lambda: b'"two"') == b'v1 [2,"two"]'
    assert newest(*kept.restore(b'v1 [1,"one"]', b'v1 [2,"two"]')) == [2, "two"]
    assert newest(*kept.restore(None, None)) == []
    with pytest.raises(SchemaMismatch, match="a thing is not a list"):
        kept.restore(b"v1 {}", None)


@pytest.mark.parametrize("dialect", [n for n, known in DIALECTS.items() if known.client])
def test_a_codec_refuses_what_a_later_release_has_stored(dialect: str) -> None:
    kind = codec_of(dialect)
    make = DIALECTS[dialect].client
    assert make is not None
    codec = make({"task_id": "t", "agent": "a"})
    position, snapshot = codec.position, codec.snapshot()
    known = mark(kind.state_version)
    assert position.startswith(known)
    assert snapshot.startswith(known)
    later = mark(kind.state_version + 1)
    for one, other in (
        (snapshot.replace(known, later), position),
        (snapshot, position.replace(known, later)),
    ):
        with pytest.raises(StoredByNewer, match=f"version {kind.state_version + 1}.*later one"):
            make({"task_id": "t", "agent": "a"}).restore(one, other)


# Events and commands.


def raised(monkeypatch: pytest.MonkeyPatch, module: ModuleType, kind: type[StoredType]) -> None:
    """Let what a module stores be of the next version, before which `thread_id` was called
    `line`."""
    known = kind.state_version
    before = kind.upgrade

    def upgrade(version: int, state: dict[str, Any]) -> Any:
        if version < known:
            return before(version, state)
        assert version == known
        state["thread_id"] = state.pop("line")
        return state

    monkeypatch.setattr(kind, "state_version", known + 1)
    monkeypatch.setattr(kind, "upgrade", upgrade)
    monkeypatch.setattr(module, "VERSION_MEMBER", stored.version_member(kind))


def test_an_event_of_version_1_has_no_version_and_later_ones_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = Entry(1, 2, "s", ev.Gap(thread_id=ev.MAIN, reason="r"))
    assert b'"v"' not in entry.encode_row()
    assert Entry.decode(entry.encode_row() + b" ", session_id="s") == entry
    old = b'{"seq":1,"at":2,"type":"gap","line":"main","reason":"r"}'
    with pytest.raises(ValueError, match="thread_id"):
        Entry.decode(old, session_id="s")
    raised(monkeypatch, events, Event)
    assert Entry.decode(old, session_id="s") == entry
    row = entry.encode_row()
    assert row.startswith(b'{"seq":1,"at":2,"v":2,"type":"gap"')
    assert Entry.decode(row, session_id="s") == entry
    assert Entry.decode(entry.encode()) == entry
    delta = ev.TextDelta(
        thread_id="main",
        turn_id="t",
        block_id="b",
        message_id="m",
        text="a",
        native=ev.NativeRef(dialect="d", frame=1),
    )
    fast = Entry(2, 2, "s", ev.next_delta(delta, "b", 2))
    assert json.loads(fast.encode())["v"] == 2
    assert Entry.decode(fast.encode()) == fast
    monkeypatch.undo()
    with pytest.raises(StoredByNewer, match=r"an event has version 2.*up to 1.*later one"):
        Entry.decode(row, session_id="s")


def test_a_command_says_its_version_and_one_without_is_of_version_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = SendMessage(content=(ev.Text(text="a"),), policy="queue", thread_id="main")
    known = Command.state_version
    old = json.loads(encode_command(command))
    assert known == 1
    assert "v" not in old
    assert decode_command(dict(old)) == command
    old["line"] = old.pop("thread_id")
    raised(monkeypatch, commands, Command)
    old["v"] = known
    assert decode_command(old) == command
    later = json.loads(encode_command(command))
    assert later["v"] == known + 1
    assert decode_command(dict(later)) == command
    monkeypatch.undo()
    with pytest.raises(StoredByNewer, match=rf"version {known + 1}.*up to {known}.*later one"):
        decode_command(later)
