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
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from multidict import CIMultiDict, MultiDict

from adapters.model.commands import AnswerInteraction, AnyCommand, SendMessage
from adapters.model.conversation import Conversation
from adapters.model.events import MAIN, Content, Entry, Event, SessionStarted, Text
from adapters.model.stored import StoredType
from adapters.wire.errors import DragomanError
from adapters.wire.framing.sse import SseFrame


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

    `path` is below the base URL of the server and begins with a slash; an empty one is the URL
    itself, as it is configured. A `body` that is a `Body` names files, which anybody who sends it
    puts in.
    """

    method: str
    path: str
    query: MultiDict[str] = dataclasses.field(default_factory=MultiDict)
    headers: CIMultiDict[str] = dataclasses.field(default_factory=CIMultiDict)
    body: bytes | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer as a value; of a stream only the head is known. `backend` is the name of the
    backend that gave it, for people; nothing where it has none. `refused` is what the status of a
    refusal would be that stands inside a stream, whose own is 200."""

    status: int
    headers: CIMultiDict[str] = dataclasses.field(default_factory=CIMultiDict)
    body: bytes = b""
    backend: str = ""
    refused: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One exchange with a backend that a client codec asks for.

    `name` says what it is for, `command_id` which command it carries, `also` which others in the
    same step, `stream` that its 2xx body is a stream of frames. One that `leaves` asks for nothing:
    the stream of its thread is closed, which is how its backend is stopped. A call is done once;
    whether it may be repeated is the codec's decision, in `ClientCodec.failed`.
    """

    name: str
    request: Request
    stream: bool = False
    command_id: str | None = None
    thread_id: str = "main"
    also: tuple[str, ...] = ()
    leaves: bool = False

    @property
    def command_ids(self) -> tuple[str, ...]:
        """Return all commands that it carries."""
        return () if self.command_id is None else (self.command_id, *self.also)

    def without(self, command_ids: Collection[str]) -> Call | None:
        """Return it as carrying the other commands only, or None where there are none."""
        left = [name for name in self.command_ids if name not in command_ids]
        return dataclasses.replace(self, command_id=left[0], also=tuple(left[1:])) if left else None


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


class ClientCodec(StoredType, abc.ABC):
    """Drives one session on one backend. Pure: the caller does the calls and reports what came of
    them.

    Methods that hear of something return the events it means, raw: the normalizer makes them obey
    the laws. An event's `turn_id`, `call_id` and `request_id` are the backend's own there.

    What is to be sent next is part of the state until `submit`, `submit_answers` or `take_calls`
    hands it out: a crash before that forgets nothing.
    """

    dialect: str
    framing: Literal["sse", "ndjson"]
    abilities: Mapping[str, Ability]

    history: Ability = Ability(Support.IMPOSSIBLE, "its dialect has no place for it")
    """How a backend takes what was said elsewhere before: see `with_history`."""

    remembers: bool = True
    """Whether its backend knows what was said before. Of one that does not the session keeps the
    conversation."""

    conversation: Conversation | None = None
    """What was said so far, where the backend does not remember it: who drives the codec folds the
    log into it."""

    wake_at: int | None = None
    """When `tick` wants to be called (Unix milliseconds), or None."""

    patience: int = 60_000
    """Milliseconds without anything new after which a stream that does not come back means
    `give_up`.
    """

    def started(self, event: SessionStarted) -> None:
        """Hear, before anything else, how the session was made: title, metadata, whose it is."""

    @abc.abstractmethod
    def check(self, command: AnyCommand) -> None:
        """Check, before a command is accepted, that the backend can carry it and every field of it.

        Raises:
            NotSupported: it cannot; the text names the backend's dialect, the field and the reason.
        """

    @abc.abstractmethod
    def submit(self, command_id: str, command: AnyCommand) -> Call | None:
        """Return the call that carries a command to the backend. Its files are named in the body,
        see `adapters.model.file_body`. None for an answer that the codec keeps until it can go with
        others: the call that carries the last of them names them all, and `tick` says what is over.
        """

    def submit_answers(
        self,
        answers: Mapping[str, AnswerInteraction],
        beside: tuple[str, SendMessage] | None = None,
    ) -> Call | None:
        """Return the one call that carries answers, by their commands' ids, which were given at
        once: no pause comes between them then. None where the backend takes one at a time.

        `beside` is the message that came with them, under its command's id. Where the backend takes
        it in the same step, the call names it among its `command_ids`; else it waits as any other
        message.
        """
        return None

    def with_history(
        self, message: SendMessage, text: str, files: tuple[Content, ...]
    ) -> SendMessage:
        """Return a message that gives the backend what was said elsewhere before: as its own first
        words, which a backend keeps as long as the message, and its own first files. `check` has
        taken a message with each of these."""
        return message.model_copy(
            update={"content": (Text(text=f"{text}\n\n"), *files, *message.content)}
        )

    @property
    def held_back(self) -> Collection[str]:
        """Return the ids of messages that were handed out and that the backend surely does not
        have: refused for now, say. What ends the session need not wait for them."""
        return ()

    def recover(self, command_id: str, command: AnyCommand) -> Call | None:
        """Return a call that looks for evidence of a command which may have been sent before a
        crash, or None.
        """
        return None

    def unknown(self, command_ids: Collection[str], now: int) -> list[Event]:
        """Forget commands whose fate nobody can tell: nothing more is expected of them, and what
        they answered may be answered again. Which of them the events do not settle, the caller
        does.
        """
        return []

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
        """Record that a stream call was answered with 2xx and an acceptable content type."""

    @abc.abstractmethod
    def respond(self, call: Call, response: Response, now: int) -> list[Event]:
        """Hear the whole answer of a call: of one without stream, or the refusal of one with
        stream.
        """

    @staticmethod
    def refuses_credential(response: Response) -> bool:
        """Say whether an answer refuses the credential that the proxy shows."""
        return response.status == 401

    @abc.abstractmethod
    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[Event]:
        """Record that a call got no answer; `sent` is false if the backend never saw it."""

    @abc.abstractmethod
    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[Event]:
        """Take one frame of a stream."""

    def seals(self, frame: SseFrame | bytes) -> bool:
        """Say whether a frame is the echo of a sealed answer: its source is not kept."""
        return False

    @abc.abstractmethod
    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[Event]:
        """Hear of bytes that framing could not use."""

    @abc.abstractmethod
    def closed(self, call: Call, reason: CloseReason, now: int) -> list[Event]:
        """Record that a stream is over, and how.

        `ENDED`: the body came to its end as HTTP says; whether the dialect's own end was in it, the
        codec knows. `LOST`: it broke. `STOPPED`: we stop reading.
        """

    @abc.abstractmethod
    def give_up(self, error: DragomanError, now: int, *, thread_id: str = MAIN) -> list[Event]:
        """Record that a thread's stream cannot be had again: the turn has failed, code
        `backend_session_lost`. A child's loss ends the child only.
        """

    @abc.abstractmethod
    def tick(self, now: int) -> list[Event]:
        """Take the time; called at `wake_at` or later."""

    def look(self, now: int) -> bool:
        """Ask the backend how the turn stands, since its streams do not tell: the calls come
        with `take_calls`. Return whether the streams are to be broken, and so opened anew where
        they were read.
        """
        return True

    def webhook(self, request_id: str) -> str | None:
        """Return the OAuth callback URL of an open sign-in, or None.

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

        Usually only counters. Includes state that changed without an event since the last
        `snapshot`; the newest snapshot plus any later position is lossless.
        """

    @abc.abstractmethod
    def snapshot(self) -> bytes:
        """Return the state as JSON behind its version; who takes it stores it, with the `position`
        of the same moment."""

    @property
    @abc.abstractmethod
    def changed(self) -> bool:
        """Whether the state is another one than that of the last `snapshot`. What an answer of the
        backend has changed without an event is to be stored: nothing else tells it again."""

    @abc.abstractmethod
    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        """Put back what `snapshot` and `position` gave, in this or an earlier release.

        Raises:
            StoredByNewer: a later release wrote them.
            ValueError: they are nothing that was stored. `TypeError` and the like are no less.
        """


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
    plan, how many frames each entry gives and in which order. `shape` is that of the snapshots,
    which are a cache: one of another shape is never read.
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


def shape_of(version: int, *states: type) -> int:
    """Return a number for the fields of dataclasses, to tell snapshots of other fields by: those
    are ignored. `version` is raised where the same fields come to hold something else.
    """
    fields = [f"{state.__name__}.{name}" for state in states for name in _fields(state)]
    return zlib.crc32(",".join(fields).encode(), version - 1) & 0x7FFFFFFF


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
