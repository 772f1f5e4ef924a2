"""What the journal keeps of sessions, as values: rows, pieces of the log, snapshots.

Times are Unix milliseconds. `key` is the journal's own integer for a session; the public id is
text.
"""

from __future__ import annotations

import dataclasses
import enum
import hmac
from collections.abc import Sequence
from typing import Literal


class AliasKind(enum.StrEnum):
    """The kinds of alias by which a session is found, or that say something of its requests."""

    TASK = "task"
    """A name that its frontend chose: an Engine `task_id`."""
    HANDLE = "handle"
    """A name of a face's own, such as half a token."""
    THREAD = "thread"
    """The id of a child thread."""
    OPERATION = "operation"
    """A create with `Opening.once`."""
    IDEMPOTENT = "idempotent"
    """A create with an `Idempotency-Key`."""
    REQUEST = "request"
    """A create without one: a hash of the request."""
    LOST = "lost"
    """A request whose reply was not written to its end."""
    REPEATED = "repeated"
    """A request that was sent again after that."""
    SHADOWED = "shadowed"
    """Of a session that is shadowed: `BACKEND/ID`, its shadow's backend and its own id."""
    SHADOW = "shadow"
    """Of a shadow: the id of the session that it shadows."""


@dataclasses.dataclass(frozen=True, slots=True)
class SessionRow:
    """A session: who made it, through which face and route, and whether it is over.

    `deleted` and `expired` are what remains of one: its names, so that nobody takes it for unknown.
    `bytes` is what its events, source frames and files take, where each is stored. `outcome` is how
    the newest of its messages that is over ended, None before the first.
    """

    key: int
    id: str
    owner: str
    route: str
    dialect: str
    created_at: int
    secret: bytes
    title: str | None = None
    state: Literal["idle", "running", "paused", "ended", "deleted", "expired"] = "idle"
    archived_at: int | None = None
    updated_at: int = 0
    last_seq: int = 0
    bytes: int = 0
    outcome: Literal["completed", "failed", "refused", "unknown", "withdrawn"] | None = None

    @property
    def handle(self) -> str:
        """The 16 digits that all tokens of a session have in common, whatever dialect made it."""
        return hmac.digest(self.secret, b"handle", "sha256")[:8].hex()


@dataclasses.dataclass(frozen=True, slots=True)
class BackendBinding:
    """One backend's part in a session. `state` is the client codec's snapshot as of the session's
    last append that named one, `position` its upstream position as of the last append that named
    one. `resumes` is the number of an earlier leg whose session at its backend it goes on with.
    """

    session: int
    number: int
    backend: str
    native_id: str | None = None
    state: bytes | None = None
    position: bytes | None = None
    resumes: int | None = None

    @property
    def first(self) -> int:
        """Return the number of the leg that began the session at the backend."""
        return self.number if self.resumes is None else self.resumes


@dataclasses.dataclass(frozen=True, slots=True)
class BackendRow:
    """What a backend of the configuration was when the server last started."""

    name: str
    dialect: str
    url: str


@dataclasses.dataclass(frozen=True, slots=True)
class ShareRow:
    """A backend's share of a route's new sessions, as it was set at run time."""

    route: str
    backend: str
    weight: int


CommandStatus = Literal["accepted", "sent", "settled"]


@dataclasses.dataclass(frozen=True, slots=True)
class CommandRow:
    """A command in the outbox, in the order of acceptance (`number`). `body` is the command as
    JSON, never sealed.
    """

    session: int
    number: int
    command_id: str
    status: CommandStatus
    body: bytes
    at: int


@dataclasses.dataclass(frozen=True, slots=True)
class NodeRow:
    """A process that shares the journal with others: its number, which no other ever has, and the
    URL by which the others reach it. `configuration` is a hash of that, empty where it is not
    known."""

    number: int
    url: str
    configuration: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive entries of a session: `count` NDJSON lines (`Entry.encode_row`), the first with
    seq `first`.
    """

    first: int
    count: int
    body: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A state after the entry with seq `seq`, so that what comes later need not fold the log from
    its begin: a cache, which may always be deleted.

    `kind` says whose state it is and `version` how it is written; of one kind, version and `cursor`
    only the newest is kept. The frames from `cursor` on come after it.
    """

    kind: str
    version: int
    cursor: int
    seq: int
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class CodecRow:
    """How a dialect shows a session for ever: its encoder's version, and as JSON the settings that
    shape its frames.
    """

    dialect: str
    version: int
    settings: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class BackupSize:
    """What a copy of a journal has: its bytes, and how many sessions and entries."""

    bytes: int
    sessions: int
    entries: int


@dataclasses.dataclass(frozen=True, slots=True)
class NewSession:
    """What the write that makes a session stores beside it: its leg 0, the codec of the dialect
    that made it and its first names, (kind, name) pairs.

    An alias is unique in (owner, route, kind), the id at all. `succeeds` is the key of an expired
    session, whose aliases may be taken. `takes` are names that it takes from anybody who has them.
    """

    row: SessionRow
    backend: str
    native_id: str | None = None
    codec: CodecRow | None = None
    aliases: Sequence[tuple[str, str]] = ()
    succeeds: int | None = None
    takes: Sequence[tuple[str, str]] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """A session of another journal, whose entries are staged here under the key of `row`: all that
    is stored of it besides. `blobs` are put already.
    """

    row: SessionRow
    legs: Sequence[BackendBinding]
    aliases: Sequence[tuple[str, str]]
    codecs: Sequence[CodecRow]
    blobs: Sequence[str]
