"""The contracts between the pure half and the IO half: what a dialect is made of.

A dialect has two codecs. The **server codec** lets us be a server of it: `Encoder` turns log
entries into frames, and the dialect's `requests` module turns requests into commands and errors
into answers. The **client codec** lets us drive a backend of it: `ClientCodec` turns commands into
calls and frames into events.

Both are deterministic state machines. Time comes in as a value (`now`: Unix milliseconds that no
step of a clock moves, so that waits can be measured by it), ids come in as arguments, and the whole
state can be taken out with `snapshot` and put back with `restore`.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from multidict import CIMultiDict, MultiDict

from adapters.commands import AnyCommand
from adapters.errors import DragomanError
from adapters.events import MAIN, Entry, Event, SessionStarted
from adapters.framing.sse import SseFrame


class Fidelity(enum.StrEnum):
    """How faithfully one field crossed."""

    EXACT = "exact"
    APPROXIMATED = "approximated"
    SYNTHESIZED = "synthesized"
    DROPPED = "dropped"


class CloseReason(enum.StrEnum):
    """Why a stream of frames is over: only `ENDED` may settle what is open."""

    ENDED = "ended"
    LOST = "lost"
    STOPPED = "stopped"


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request as a value.

    `path` is below the base URL of the server and begins with a slash.
    """

    method: str
    path: str
    query: MultiDict[str] = dataclasses.field(default_factory=MultiDict)
    headers: CIMultiDict[str] = dataclasses.field(default_factory=CIMultiDict)
    body: bytes | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer as a value; of a stream only the head is known."""

    status: int
    headers: CIMultiDict[str] = dataclasses.field(default_factory=CIMultiDict)
    body: bytes = b""


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One exchange with a backend that a client codec asks for.

    `name` says what it is for, `command_id` which command it carries, `stream` that its 2xx body is
    a stream of frames. A call is done once; whether it may be repeated is the codec's decision, in
    `ClientCodec.failed`.
    """

    name: str
    request: Request
    stream: bool = False
    command_id: str | None = None
    thread_id: str = "main"


class Support(enum.StrEnum):
    """How a backend of a dialect carries a command."""

    NATIVE = "native"
    EMULATED = "emulated"
    IMPOSSIBLE = "impossible"


@dataclasses.dataclass(frozen=True, slots=True)
class Ability:
    """How one command is carried, and how it is emulated or why it is impossible.

    `local` says of an emulated archive, reset, update or delete that it is kept here and never
    reaches the backend.
    """

    support: Support
    how: str = ""
    local: bool = True


class BlockEnded(Event):
    """A raw event, for the normalizer only: the open block of `block` is over and its text is what
    was streamed.

    For dialects that stream deltas and never repeat the whole. A block with deltas becomes
    `text.completed` or `reasoning.completed`; without an open block nothing.
    """

    type: Literal["raw.block_ended"] = "raw.block_ended"
    block: Literal["text", "reasoning"]
    status: Literal["complete", "partial", "discarded"] = "complete"
    finish_reason: str | None = None


class ClientCodec(abc.ABC):
    """Drives one session on one backend. Pure: the caller does the calls and reports what came of
    them.

    Methods that hear of something return the events it means, raw: the normalizer makes them obey
    the laws. An event's `turn_id`, `call_id` and `request_id` are the backend's own there.
    """

    dialect: str
    framing: Literal["sse", "ndjson"]
    abilities: Mapping[str, Ability]

    wake_at: int | None = None
    """When `tick` wants to be called (Unix milliseconds), or None."""

    patience: int = 60_000
    """Milliseconds without anything new after which a stream that does not come back means
    `give_up`.
    """

    def started(self, event: SessionStarted) -> None:  # noqa: B027 - most dialects need none of it
        """Hear, before anything else, how the session was made: title, metadata, whose it is."""

    @abc.abstractmethod
    def check(self, command: AnyCommand) -> None:
        """Check, before a command is accepted, that the backend can carry it and every field of it.

        Raises:
            NotSupported: it cannot; the text names the backend's dialect, the field and the reason.
        """

    @abc.abstractmethod
    def submit(self, command_id: str, command: AnyCommand, blobs: Mapping[str, bytes]) -> Call:
        """Return the call that carries a command to the backend; `blobs` has the bytes of its files
        by hash.
        """

    def recover(self, command_id: str, command: AnyCommand) -> Call | None:
        """Return a call that looks for evidence of a command which may have been sent before a
        crash, or None.
        """
        return None

    @abc.abstractmethod
    def streams(self) -> tuple[Call, ...]:
        """Return the calls that (re)open the streams which should be open now and are not, each at
        the position reached.

        At most one per `thread_id`. The caller opens them, waits between attempts, and asks again
        when one has ended.
        """

    def take_calls(self) -> list[Call]:
        """Return, once, the calls that the codec wants done now besides commands and streams: the
        next step of a command that takes several, a list that fills a hole, an answer that a
        backend must have at once.
        """
        return []

    @property
    def native_id(self) -> str | None:
        """The backend's own id of the session, once known: it is stored as a name of the
        session."""
        return None

    @abc.abstractmethod
    def opened(self, call: Call, head: Response, now: int) -> list[Event]:
        """Hear that a stream call was answered with 2xx and an acceptable content type."""

    @abc.abstractmethod
    def respond(self, call: Call, response: Response, now: int) -> list[Event]:
        """Hear the whole answer of a call: of one without stream, or the refusal of one with
        stream.
        """

    @abc.abstractmethod
    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[Event]:
        """Hear that a call got no answer; `sent` is false when the backend surely never saw it."""

    @abc.abstractmethod
    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[Event]:
        """Take one frame of a stream."""

    @abc.abstractmethod
    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[Event]:
        """Hear of bytes that framing could not use."""

    @abc.abstractmethod
    def closed(self, call: Call, reason: CloseReason, now: int) -> list[Event]:
        """Hear that a stream is over, and how.

        `ENDED`: the body came to its end as HTTP says; whether the dialect's own end was in it, the
        codec knows. `LOST`: it broke. `STOPPED`: we stop reading.
        """

    @abc.abstractmethod
    def give_up(self, error: DragomanError, now: int, *, thread_id: str = MAIN) -> list[Event]:
        """Hear that a thread's stream cannot be had again: the turn has failed, code
        `backend_session_lost`. A child's loss ends the child only.
        """

    @abc.abstractmethod
    def tick(self, now: int) -> list[Event]:
        """Take the time; called at `wake_at` or later."""

    def webhook(self, request_id: str) -> str | None:
        """Return the address to which the provider of an open sign-in returns, or None.

        It holds a live token of the backend, so no event carries it.
        """
        return None

    @property
    @abc.abstractmethod
    def frames(self) -> int:
        """The number of the newest source frame; `NativeRef.frame` names frames by it."""

    @property
    @abc.abstractmethod
    def position(self) -> bytes:
        """The upstream position after what was fed so far: it is stored with every batch of events.

        Short, but for what has changed silently since the last `snapshot`, which it then contains:
        the last `snapshot` taken and any later `position` are the whole state.
        """

    @abc.abstractmethod
    def snapshot(self) -> bytes:
        """Return the rest of the state as JSON; who takes it stores it, see `position`."""

    @abc.abstractmethod
    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        """Put back what `snapshot` and `position` gave."""


class Frame(NamedTuple):
    """One frame of a face, ready to be written.

    `cursor` is its place in the dialect's own counting, rising within the session (eve: the
    record's index). `end` says that after it a body ends: the body of its `turn`, or the stream of
    the whole `session`.
    """

    cursor: int
    data: bytes
    end: Literal["turn", "session"] | None = None
    turn_id: str | None = None


class Encoder(abc.ABC):
    """Turns the log of one session (one thread of it) into the frames of a face: a pure function of
    the log.

    The same entries give the same frames for ever, under the same `version`: what is frozen is the
    plan, how many frames each entry gives and in which order. `shape` is that of the snapshots.
    """

    dialect: str
    version: int
    shape: int = 0
    next_cursor: int = 0

    @abc.abstractmethod
    def __init__(self, context: EncoderContext) -> None:
        """Begin before the first entry."""

    @abc.abstractmethod
    def feed(self, entry: Entry) -> list[Frame]:
        """Return the frames that an entry gives, often one, often none."""

    @abc.abstractmethod
    def snapshot(self) -> bytes:
        """Return the state as JSON: a cache, it may be deleted and rebuilt."""

    @abc.abstractmethod
    def restore(self, snapshot: bytes) -> None:
        """Put back what `snapshot` gave."""


def shape_of(*states: type) -> int:
    """Return a number for the fields of dataclasses, to tell snapshots of other fields by: those
    are ignored.
    """
    fields = [f"{state.__name__}.{name}" for state in states for name in _fields(state)]
    return zlib.crc32(",".join(fields).encode()) & 0x7FFFFFFF


def _fields(state: Any) -> list[str]:
    return [f"{field.name}:{field.type}" for field in dataclasses.fields(state)]


def fields_of(state: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, uncopied: `dataclasses.asdict` copies all below."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


@dataclasses.dataclass(frozen=True, slots=True)
class EncoderContext:
    """What an encoder needs to know of its session besides the log."""

    session_id: str
    secret: bytes
    thread_id: str = "main"
    agent: str = "dragoman"
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """A wire protocol: its name and its two halves, where built.

    `encoder` makes the newest version, `older` has those that stored sessions may still need, by
    `Encoder.version`. `create` of a client codec takes the backend's settings.
    """

    name: str
    encoder: type[Encoder] | None = None
    older: Mapping[int, type[Encoder]] = dataclasses.field(default_factory=dict)
    client: Callable[[Mapping[str, Any]], ClientCodec] | None = None
