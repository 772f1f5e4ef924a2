"""What the functions of a face return: which session is meant, how one begins, what is read."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias

from multidict import CIMultiDict

from adapters.contract.faces.inputs import EncoderT, SessionSummary, SessionView
from adapters.model.base import Response
from adapters.model.commands import AnyCommand, CreateSession
from adapters.model.events import Entry, Event, InputAccepted

# Which session a request is about.


@dataclasses.dataclass(frozen=True, slots=True)
class FreshSession:
    """A new one."""


@dataclasses.dataclass(frozen=True, slots=True)
class NamedSession:
    """The one with this name: its id, or a name that a face made for it.

    `also` is another name in the request: `SessionView.also` says whether it names the same
    session.
    """

    name: str
    also: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ClientNamedSession:
    """The one with a name that the frontend chose; where there is none, an act with `opens` makes
    it. One that is no longer kept is followed by its successor."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class ChildThread:
    """A thread that is read like a session, of the session `parent` where one is named."""

    name: str
    parent: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class NewestSession:
    """The one that was written to last."""


@dataclasses.dataclass(frozen=True, slots=True)
class MatchingSession:
    """The one at work that passes a test, for answers that do not name their session; or the one
    that was given this very answer before."""

    test: Callable[[SessionView[Any]], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class AnyOf:
    """The first of these that is there."""

    targets: Sequence[NamedSession | ChildThread]


Target: TypeAlias = (
    FreshSession
    | NamedSession
    | ClientNamedSession
    | ChildThread
    | NewestSession
    | MatchingSession
    | AnyOf
)


# What functions return.


@dataclasses.dataclass(frozen=True, slots=True)
class Opening:
    """What a new session begins with.

    `checked` is what else every backend of the route must be able to carry. Two creates with the
    same `once` make one session. `blobs` has the bytes of files by hash. `before` is what was said
    elsewhere before, as events: the agent is told it with the first message.
    """

    commands: Sequence[AnyCommand] = ()
    blobs: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    title: str | None = None
    metadata: Mapping[str, Any] | None = None
    options: Mapping[str, Any] | None = None
    once: str | None = None
    checked: CreateSession | None = None
    before: Sequence[Event] = ()


class SubmitResult(NamedTuple):
    """What became of a request: the ids of its commands; of a repeat those of the earlier one.

    `commands` are what was submitted, nothing of a repeat. `recalled` are the inputs of a repeat,
    where the act asks for them.
    """

    ids: Sequence[str] = ()
    commands: Sequence[AnyCommand] = ()
    recalled: Sequence[InputAccepted] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class FrameRange:
    """Which frames a body has, and how it is kept alive.

    The frames begin at cursor `position` and end at `stop` (exclusive) where given, at a frame that
    ends the session (or the turn `turn`, where given), or after `lease_seconds` with `lease_end`
    written. `first` is written before any frame. `heartbeat` is written after `heartbeat_seconds`
    without a byte, or sooner where that is configured; one that depends on the position is a
    function from the cursor of the last frame. `headers` are those of the answer, but of a turn's
    body, whose head is sent before. `omits` are cursors of frames that are left out: what they say
    holds no longer.
    """

    position: int
    heartbeat: bytes | Callable[[int], bytes] | None
    heartbeat_seconds: float
    headers: CIMultiDict[str] = dataclasses.field(default_factory=CIMultiDict)
    first: bytes = b""
    stop: int | None = None
    turn: str | None = None
    omits: frozenset[int] = frozenset()
    lease_seconds: float | None = None
    lease_end: bytes = b""


class LogReader(abc.ABC, Generic[EncoderT]):
    """Makes the body of an answer of a session's log, in parts.

    While `wanted` is a cursor, a part of the log is read: `begin` with the encoder as it is there
    or before, `add` for each entry until it says no, `end`. What `out` has by then may go out at
    any time.
    """

    headers: Mapping[str, str]
    out: bytes = b""

    @property
    @abc.abstractmethod
    def wanted(self) -> int | None:
        """Return the cursor from which on the next part is read, None where nothing is missing."""

    @abc.abstractmethod
    def begin(self, encoder: EncoderT) -> None:
        """Record that a part begins."""

    @abc.abstractmethod
    def add(self, entry: Entry) -> bool:
        """Take the next entry of the part, and say whether one more is needed."""

    @abc.abstractmethod
    def end(self) -> None:
        """Record that the part is over: nothing more of it is needed, or the log has no more."""


class ListedSession(NamedTuple):
    """A session in a list; those with a lower `key` are older."""

    key: int
    id: str
    state: str
    told: SessionSummary


class SessionsPage(abc.ABC):
    """Makes one page of a list of sessions, newest first.

    Sessions older than `before` are looked at, `rows` at a time; where `after` is given, those that
    are newer, oldest first.
    """

    before: int | None
    rows: int
    after: int | None = None

    def passed(self, key: int) -> None:
        """Record that a session was looked at."""
        if self.after is None:
            self.before = key
        else:
            self.after = key

    @abc.abstractmethod
    def add(self, listed: ListedSession) -> bool:
        """Take the next session, and say whether one more is needed."""

    @abc.abstractmethod
    def cut(self) -> None:
        """Record that no more are looked at for this page: its cursor leads on."""

    @abc.abstractmethod
    def answer(self) -> Response:
        """Return the page."""
