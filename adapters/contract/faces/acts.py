"""What the routes of a face do, as data; the page of the package says how it is meant."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from multidict import CIMultiDict

from adapters.contract.faces.inputs import EncoderT, Incoming, RouteContext, SessionView
from adapters.contract.faces.neighbours import Neighbour
from adapters.contract.faces.outputs import (
    FrameRange,
    LogReader,
    Opening,
    SessionsPage,
    SubmitResult,
    Target,
)
from adapters.model.base import Response
from adapters.model.commands import AnyCommand
from adapters.wire.errors import DragomanError

Size: TypeAlias = Literal["small", "answer", "text", "files", "conversation"]
"""How large a body may be: a control or a title, an answer in words, a message without its files,
a message with files, a whole conversation, from which only what is new is taken
(`proxy.http.bodies` has the numbers)."""

SaidT = TypeVar("SaidT")
"""What the body of a request says, as the dialect's own reader returns it."""


class Action(enum.StrEnum):
    """What somebody wants with a session or a route."""

    CREATE = "create"
    READ = "read"
    WRITE = "write"
    ANSWER = "answer"
    CONTROL = "control"
    SETTLE = "settle"


@dataclasses.dataclass(frozen=True, slots=True)
class PublicAccess:
    """In the place of an action: everybody may ask, for this reason. With `of_a_route` there is
    nothing where the path names no route."""

    why: str
    of_a_route: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Static:
    """Answers from what is known of the route."""

    answer: Callable[[Incoming, RouteContext], Response]


@dataclasses.dataclass(frozen=True, slots=True)
class RequestBody(Generic[SaidT]):
    """How the body of a request is read, and how large it may be. Of a `conversation` it is the
    commands that may be as long as a text, and not the body: `parse` drops what is not needed."""

    parse: Callable[[bytes, Incoming], SaidT]
    takes: Size


@dataclasses.dataclass(frozen=True, slots=True)
class TurnBody(Generic[SaidT, EncoderT]):
    """In the place of an answer: the frames of the turn that the first command becomes.

    Its head is sent as soon as the command is accepted. `begun` returns None as long as the command
    has no turn; `over` says that it gets none any more, and then the body ends.

    `nothing` answers where there is no command, with the frames of a reading or without. `cut`
    returns what a body ends with whose end does not come: the server stops, or something went wrong
    after the head. Without it the body just ends there, or breaks off. `stops` says that who
    leaves before the end wants the turn to be interrupted; not a repeat, which only looks on.
    """

    headers: Callable[[], CIMultiDict[str]]
    begun: Callable[[Incoming, SessionView[EncoderT], SaidT, str], FrameRange | None]
    over: Callable[[SessionView[EncoderT]], bool]
    nothing: Callable[[Incoming, SessionView[EncoderT], SaidT], FrameRange | Response] | None = None
    cut: Callable[[Incoming, SaidT], bytes] | None = None
    stops: Callable[[Incoming], bool] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Submit(Generic[SaidT, EncoderT]):
    """Gives commands to a session, in this order:

    1. `before` refuses what is wrong before the body is read.
    2. The body is read, and `needs` says what it asks for, where that is not the route's action.
    3. From here on it is done to its end also when the client leaves, and an equal request waits.
    4. `where` says which session it is about. Where that is to be made, `opens` says how, and the
       commands of the opening are the request's. So it is where `afresh` says that the session with
       the name that the frontend chose is about another conversation: the name is the new one's.
    5. `admit` refuses what the session does not take now, a repeat as well; what it returns is kept
       with the commands, as `details`.
    6. A repeat of an earlier request is answered with what that gave, unless `repeats` is false:
       for what is the same done twice. Where `names` returns some, such as the ids of messages, the
       request is a repeat of the one that gave the same to the session, whatever else is in it, and
       of no other; but not where `anew` says that it is asked for once more.
    7. `commands` returns what is submitted, or nothing. With `waits` there is one at most, and the
       answer waits until the backend has done it.
    8. `answer` is made, or the frames of a turn follow.

    `looks_before` and `looks_after` say that the encoder is looked at in 5 to 7, and in 8; `told`
    that `SessionView.told` is in 8; `recalls` that `SubmitResult.recalled` is there for a repeat.
    """

    where: Callable[[Incoming, SaidT], Target]
    commands: Callable[[Incoming, SessionView[EncoderT], SaidT], Sequence[AnyCommand]]
    answer: (
        Callable[[Incoming, SessionView[EncoderT], SaidT, SubmitResult], Response]
        | TurnBody[SaidT, EncoderT]
    )
    body: RequestBody[SaidT] | None = None
    before: Callable[[Incoming, RouteContext], None] | None = None
    needs: Callable[[Incoming, SaidT], Action] | None = None
    opens: Callable[[Incoming, SaidT, RouteContext], Opening] | None = None
    afresh: Callable[[Incoming, SessionView[EncoderT], SaidT], bool] | None = None
    admit: Callable[[Incoming, SessionView[EncoderT], SaidT], Mapping[str, Any] | None] | None = (
        None
    )
    blobs: Callable[[SaidT], Mapping[str, bytes]] | None = None
    names: Callable[[Incoming, SaidT], Sequence[str]] | None = None
    anew: Callable[[Incoming, SessionView[EncoderT], SaidT], bool] | None = None
    waits: bool = False
    repeats: bool = True
    recalls: bool = False
    looks_before: bool = False
    looks_after: bool = False
    told: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Stream(Generic[SaidT, EncoderT]):
    """Streams the frames of a session; `reading` may answer instead. Where a `body` is read, both
    functions get what it says.

    `missing` answers for what is no longer kept and where there is no session at all, with
    `unknown` for every name that no session has; without it that is an error.
    """

    where: Callable[[Incoming, SaidT], Target]
    reading: Callable[[Incoming, SessionView[EncoderT], SaidT], FrameRange | Response]
    missing: Callable[[], Response] | None = None
    unknown: bool = False
    body: RequestBody[SaidT] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class History(Generic[EncoderT]):
    """Answers with something made of the log of a session; `reader` may answer at once. `told` says
    that `SessionView.told` is there."""

    where: Callable[[Incoming], Target]
    reader: Callable[[Incoming, SessionView[EncoderT]], LogReader[EncoderT] | Response]
    told: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ListSessions:
    """Answers with a page of the sessions that a key has on the route."""

    page: Callable[[Incoming], SessionsPage]


@dataclasses.dataclass(frozen=True, slots=True)
class Pending(Generic[EncoderT]):
    """Answers with what the sessions say that a key has on the route and that wait for an answer.

    `one` returns what one of them says as JSON, behind the time at which it asked in the dialect's
    form, or None. `answer` puts together what all say, which may be thousands.
    """

    one: Callable[[SessionView[EncoderT]], tuple[str, bytes] | None]
    answer: Callable[[Incoming, Sequence[tuple[str, bytes]]], Response]


@dataclasses.dataclass(frozen=True, slots=True)
class Forward:
    """Passes a request on to a backend of the same dialect, without a credential of ours.

    A hook for dialects whose backends are called back by others, who have no key: a token in the
    path is the credential. `session` returns the session that the token names, or None.
    `stands_for` says whether the token stands for the address that an open interaction of it, given
    by its id, has at the backend; `to_path` returns the path of that address. `path` returns the
    path at a drawn backend for a token that is not one of ours. Where a path is None nothing may be
    asked, and `nothing` is the refusal. Only the headers named in `headers` pass, either way.
    """

    why: str
    session: Callable[[Incoming], str | None]
    stands_for: Callable[[Incoming, SessionView[Any], str], bool]
    to_path: Callable[[str], str | None]
    path: Callable[[Incoming], str | None]
    nothing: Callable[[], DragomanError]
    headers: frozenset[str]


Act: TypeAlias = (
    Static
    | Submit[Any, Any]
    | Stream[Any, Any]
    | History[Any]
    | ListSessions
    | Pending[Any]
    | Forward
)


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """A request that the route takes: what tests ask it with. In its texts `{session}` and
    `{request}` stand for ids."""

    json: Any = None
    query: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route: `path` is below the base URL, with names in braces; `""` is the base URL itself,
    also with a slash at its end.

    With `head` it takes `HEAD` besides. `errors` is a word of the dialect's own for what an error
    depends on (`RequestFailure`). `form` names the one of `Face.forms` in which it shows frames,
    whatever is configured, or is a function from the request to that; without, frames are shown as
    the configuration says.
    """

    method: str
    path: str
    needs: Action | PublicAccess
    does: Act
    head: bool = False
    errors: str = ""
    form: str | Callable[[Incoming], str] = ""
    example: Example | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request is refused.

    `entered` says that the key and the route were right; `said` is what the body said, None where
    it was not read. `error_id` is there for a failure of ours, under which the log has it: what the
    error itself says is not for the frontend.
    """

    error: DragomanError
    request: Incoming
    route: Route
    entered: bool
    said: Any
    error_id: str | None = None
    trace: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """A dialect as it is served to frontends.

    Routes are tried in this order, so what is asked for most often is best first. `serve` makes of
    the dialect's table in the configuration, and of whether keys are configured, what `Incoming`
    has as `served`; `shaped_by` are the keys of that table which shape frames. `wrong_method`
    answers other methods on a known path, and is given those that it takes; without it they fall to
    the last route. With `reads_while_stopping` what only reads is answered while the server stops.
    `noun` is what the dialect calls a session.

    `clients` are how its frontends are known at an address that does not serve them, and what else
    asks at addresses of the dialect.

    `forms` are settings that shape frames, each under a name: tests show every one of them.
    `child_streams` says that a child thread has a stream of its own: its plan is tested too.
    `trace_header` is the header in which answers name the request, where clients look for one.
    """

    routes: Sequence[Route]
    refuse: Callable[[RequestFailure], Response]
    framing: Literal["sse", "ndjson"]
    serve: Callable[[Mapping[str, Any], bool], Any] | None = None
    wrong_method: Callable[[Incoming, Sequence[str]], Response] | None = None
    reads_while_stopping: bool = True
    noun: str = "session"
    clients: Sequence[Neighbour] = ()
    forms: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=lambda: {"": {}})
    child_streams: bool = False
    trace_header: str = ""
