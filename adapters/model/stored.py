"""What is stored says in which version it was written, so that a later release reads it.

A kind of stored value is a class below `StoredType`. It writes its `state_version`; `upgrade`
brings a value of one version to the next one, and `upgraded` chains these steps. A later version
than the known one is refused, and what is stored stays as it is for the release that wrote it.

| stored | its class | where its version is |
|---|---|---|
| the state and the position of a client codec | the codec | before it: `mark` |
| events, in rows and inside of other values | `adapters.model.events.Event` | its member `v` |
| commands | `adapters.model.commands.Command` | its member `v` |

An event of version 1 has no member `v`: rows are most of a journal, and so they cost nothing. It is
in each row, and not once for a session, because one release after another writes into a session,
rows of several writes are joined when they are read, and an exported log is read without its
journal.

Three things have a version and no steps:

* The settings that shape a face's frames belong to `Encoder.version`, which says how many frames
  each event gives. A client's cursor counts these frames, so a session keeps that version for ever,
  and `Dialect.older` has the encoders of the earlier ones.
* Snapshots of encoders and of the log's state are caches. Their key has their `shape`, one of
  another shape is never found, and what it held is made anew from the log.
* The tables are brought up to date by the journal when it is opened.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar, cast, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError

from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json, parse_json

T = TypeVar("T")

VERSION = "v"
"""The member of a stored object that has its version; left out where that is 1."""

_MARK = re.compile(rb"v([0-9]{1,9}) ")


class StoredByNewer(DragomanError, ValueError):
    """Something that is stored has a later version than is known."""

    code = ErrorCode.JOURNAL_UNAVAILABLE


class SchemaMismatch(ValueError):
    """Something that is stored has other fields than its version has; quotes none of it."""


class StoredType:
    """A kind of stored value."""

    __slots__ = ()

    state_version: ClassVar[int] = 1
    """Of what is written. Any change of what is stored raises it, a new field too: an earlier
    release must refuse what it does not know."""

    records: ClassVar[tuple[type, ...]] = ()
    """The dataclasses that are stored: a test holds their fields to the version."""

    filled: ClassVar[tuple[type, ...]] = ()
    """Those of them that `fill` gives back. What checks them is made with the class: no turn of an
    event loop has the time."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for record in cls.filled:
            adapter_of(record)

    @classmethod
    def upgrade(cls, version: int, state: Any) -> Any:
        """Return a stored value of `version` as `version + 1` has it; it may be changed in
        place."""
        raise SchemaMismatch(f"nothing leads on from version {version}")


def upgraded(kind: type[StoredType], what: str, version: object, state: Any) -> Any:
    """Return a stored value of a version as `kind` has it today; `what` names it for people.

    Raises:
        StoredByNewer: its version is not known yet.
        SchemaMismatch: there is no such version.
    """
    known = kind.state_version
    if type(version) is not int or version < 1:
        raise SchemaMismatch(f"{what} has no version")
    if version > known:
        raise StoredByNewer(
            f"{what} has version {version}, and this Dragoman knows versions up to {known}: "
            "run the release that wrote it, or a later one"
        )
    for step in range(version, known):
        state = kind.upgrade(step, state)
    return state


def mark(version: int) -> bytes:
    """Return what stands before a value to tell its version."""
    return b"v%d " % version


def read(kind: type[StoredType], what: str, stored: bytes) -> Any:
    """Return the JSON value behind a mark, upgraded.

    Raises:
        StoredByNewer: its version is not known yet.
        ValueError: it is nothing that was stored.
    """
    found = _MARK.match(stored)
    if found is None:
        raise SchemaMismatch(f"{what} has no version")
    return upgraded(kind, what, int(found[1]), parse_json(stored[found.end() :]))


def take_version(kind: type[StoredType], what: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return the other members of a stored object, upgraded.

    Raises:
        StoredByNewer: its version is not known yet.
        SchemaMismatch: it has none.
    """
    version = value.pop(VERSION, 1)
    if version == kind.state_version:
        return value
    found: dict[str, Any] = upgraded(kind, what, version, value)
    return found


def version_member(kind: type[StoredType]) -> bytes:
    """Return the member that `take_version` takes, with its comma; empty for version 1."""
    return b"" if kind.state_version == 1 else b'"%b":%d,' % (VERSION.encode(), kind.state_version)


def fill(record: type[T], value: Any) -> T:
    """Return a record, a dataclass, with the fields that were stored of it. One that is excluded
    from its JSON has its default.

    Raises:
        SchemaMismatch: it lacks one, has one more, or one is of another type.
    """
    names = _stored_names(cast(Any, record))
    if type(value) is not dict:
        raise SchemaMismatch(f"`{record.__name__}` is not an object")
    if names != value.keys():
        wrong = ", ".join(f"`{name}`" for name in sorted(names ^ value.keys()))
        raise SchemaMismatch(f"`{record.__name__}` has other fields: {wrong}")
    place: Any
    try:
        found: T = adapter_of(cast(Any, record)).validate_python(value)
    except ValidationError as error:
        place = error.errors(include_input=False, include_url=False)[0]["loc"][0]
    else:
        misread = [name for name in names if not _is_whole(getattr(found, name), value[name])]
        if not misread:
            return found
        place = min(misread)
    # Not inside of the `except`: the error quotes what it found.
    raise SchemaMismatch(f"`{record.__name__}.{place}` is of another type")


@functools.cache
def _stored_names(record: type[Any]) -> frozenset[str]:
    hints = get_type_hints(record, include_extras=True)
    return frozenset(
        field.name
        for field in dataclasses.fields(record)
        if not any(
            getattr(note, "exclude", False)
            for note in getattr(hints[field.name], "__metadata__", ())
        )
    )


def _is_whole(found: Any, value: Any) -> bool:
    """Say whether a field was stored as it was read: of records inside of it none lacks a field or
    has one too many, and no text was taken for a number. Events tell their own version."""
    if found is value or isinstance(found, BaseModel):
        return True
    if dataclasses.is_dataclass(found):
        names = _stored_names(cast(Any, type(found)))
        return names == value.keys() and all(
            _is_whole(getattr(found, name), value[name]) for name in names
        )
    if isinstance(found, dict):
        return found.keys() == value.keys() and all(
            _is_whole(item, value[key]) for key, item in found.items()
        )
    if isinstance(found, list | tuple):
        return len(found) == len(value) and all(map(_is_whole, found, value))
    return bool(found == value)


@functools.cache
def adapter_of(record: type[Any]) -> TypeAdapter[Any]:
    """Return what checks a record and writes it as JSON."""
    return TypeAdapter(record)


@dataclasses.dataclass(slots=True, eq=False)
class CodecCheckpoint:
    """What a client codec has stored of itself: a place, which every frame moves, and its state.

    A snapshot is `[place, state, …]`. A position is `[place]`, or `[place, state]` where the state
    has changed since the last snapshot: of the two the position is never the older one. What may
    change the state sets `touched`.
    """

    kind: type[StoredType]
    what: str
    touched: bool = dataclasses.field(init=False, default=True)
    _mark: bytes = dataclasses.field(init=False)
    _state: bytes = dataclasses.field(init=False, default=b"")

    def __post_init__(self) -> None:
        self._mark = mark(self.kind.state_version)

    def snapshot(self, place: bytes, state: bytes, *more: bytes) -> bytes:
        """Return a snapshot, which is stored."""
        self._state, self.touched = state, False
        # All at once: a state may have megabytes.
        rest = b"".join(_after(more)) if more else b""
        return b"".join((self._mark, b"[", place, b",", state, rest, b"]"))

    def position(self, place: bytes, state: Callable[[], bytes]) -> bytes:
        """Return a position."""
        if self.touched:
            state_ = state()
            self.touched = state_ != self._state
            if self.touched:
                return b"%b[%b,%b]" % (self._mark, place, state_)
        return b"%b[%b]" % (self._mark, place)

    def changed(self, state: Callable[[], bytes]) -> bool:
        """Say whether the state is another one than that of the last snapshot."""
        if self.touched:
            self.touched = state() != self._state
        return self.touched

    def restore(
        self, snapshot: bytes | None, position: bytes | None
    ) -> tuple[list[Any], list[Any]]:
        """Return what a snapshot and a later position hold, each an empty list for None.

        Raises:
            StoredByNewer: a version is not known yet.
            ValueError: one is nothing that was stored.
        """
        self.touched = True
        first, later = self._read(snapshot), self._read(position)
        self._state = format_json(first[1]) if len(first) > 1 else b""
        return first, later

    def _read(self, stored: bytes | None) -> list[Any]:
        value = [] if stored is None else read(self.kind, self.what, stored)
        if type(value) is not list:
            raise SchemaMismatch(f"{self.what} is not a list")
        return value


def _after(parts: Iterable[bytes]) -> Iterator[bytes]:
    for part in parts:
        yield b","
        yield part


def newest(first: list[Any], later: list[Any]) -> list[Any]:
    """Return the later list, and of the first one what it has beyond."""
    return [*later, *first[len(later) :]]
