"""Requests that carry the whole conversation: what is new in one, and the route that takes it.

A client sends all that it shows with each message. New are the words of the person behind the last
message of the agent, and what answers an open request; only those are read strictly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from multidict import CIMultiDict

from adapters.contract.faces import (
    Action,
    ClientNamedSession,
    FrameRange,
    Incoming,
    Opening,
    RequestBody,
    Route,
    RouteContext,
    SessionView,
    Static,
    Submit,
    Target,
    TurnBody,
    misdirected,
)
from adapters.contract.faces.answers import sse_headers
from adapters.model.base import Response
from adapters.model.commands import AnswerInteraction, AnyCommand, SendMessage
from adapters.model.events import Content, Event
from adapters.serving.inputs import NotesForm, NotesT
from adapters.serving.members import MAX_PARTS, digest_of, name_of, refuse
from adapters.serving.messages import OmittedMessage, PersonMessage, choose, read
from adapters.wire.errors import DragomanError, ErrorCode

EncoderT = TypeVar("EncoderT", bound=Any)

HEARTBEAT = b": keep-alive\n\n"
"""A comment, which clients skip."""

ON_LEAVE = "on_leave"
STOP = "stop"
"""Ours: `?on_leave=stop` says that the turn is to end when its client closes the connection, since
nothing else tells a client that stops from one that comes back."""

MEMORY = "memory"
PAGE = "page"
"""Which history counts: the session's, or the one that comes with each request."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConversationBody:
    """What a body with the whole conversation says.

    `words` are the messages of the person behind all of the agent's. `earlier` reads those of some
    ids before them, `before` all that was said before them. `known` are the ids of all messages,
    `context` is what the application says to the agent, `ignored` what reaches no agent, `history`
    says that an agent has spoken before. `blobs` has the bytes of inline files by hash.
    """

    words: tuple[PersonMessage, ...]
    earlier: Callable[[Collection[str]], list[PersonMessage]]
    before: Callable[[], list[Event]]
    known: tuple[str, ...]
    context: tuple[str, ...]
    ignored: tuple[str, ...]
    history: bool
    blobs: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """Return what the same context has as well."""
        return digest_of(self.context)

    def carried(self, dialect: str) -> Mapping[str, Any]:
        """Return the fields of a command which have what else the request says, and that backends
        of a dialect take; nobody ignores that then."""
        return {}

    def message_of(
        self, words: Sequence[PersonMessage], known_context: str | None = None
    ) -> SendMessage:
        """Return words as one message, with the context unless its digest is known."""
        new = bool(self.context) and self.digest != known_context
        return SendMessage(
            content=tuple(block for one in words for block in one.content),
            policy="reject",
            client_context=list(self.context) if new else None,
        )


def said_again(
    message: SendMessage, words: Sequence[PersonMessage], seen: SessionView[EncoderT]
) -> SendMessage:
    """Return a message that takes the place of one that was said before, under the same id, where
    the backend answers again from there. Others hear it once more, behind all that was said."""
    inputs: Mapping[str, str] = seen.encoder.state.inputs.heard.inputs
    before = inputs.get(words[-1].id) if len(words) == 1 and seen.backend.rewinds else None
    if before is None:
        return message
    instead = message.model_copy(update={"retry_of": before})
    # What was said long ago may be forgotten.
    return message if seen.refusal(instead) is not None else instead


CommandT = TypeVar("CommandT", SendMessage, AnswerInteraction)


def with_members(command: CommandT, carried: Mapping[str, Any]) -> CommandT:
    """Return a command with what else goes on to the backend."""
    return command.model_copy(update=carried) if carried else command


@dataclasses.dataclass(frozen=True, slots=True)
class Intent:
    """What a request means to its session: commands, and what is noted with each."""

    commands: Sequence[AnyCommand]
    notes: Mapping[str, Any]


# Reading the messages of a body.


def reads(
    content: Callable[[Mapping[str, Any], str], tuple[Content, ...]],
) -> Callable[[Mapping[str, Any], str], PersonMessage]:
    """Return what reads a message of the person at a place, by what reads its content."""

    def read_one(message: Mapping[str, Any], place: str) -> PersonMessage:
        name = name_of(message.get("id"), f"{place}.id")
        return read(name, lambda: content(message, place))

    return read_one


def last_words(
    messages: Sequence[Any],
    agents: Collection[str],
    read: Callable[[Mapping[str, Any], str], PersonMessage],
) -> tuple[PersonMessage, ...]:
    """Return the messages of the person behind all those with a role of `agents`.

    Raises:
        ClientProtocolError: one is not an object, there are too many, or the last one is wrong.
    """
    found: list[int] = []
    for at in range(len(messages) - 1, -1, -1):
        if not isinstance(messages[at], dict):
            refuse(f"`messages[{at}]` is not an object.")
        role = messages[at].get("role")
        if role in agents:
            break
        if role == "user":
            found.append(at)
    if len(found) > MAX_PARTS:
        refuse(f"`messages` has more than {MAX_PARTS} of the user at its end.")
    words = tuple(read(messages[at], f"messages[{at}]") for at in reversed(found))
    if words and words[-1].wrong is not None:
        raise words[-1].wrong
    return words


def words_of(
    messages: Sequence[Any],
    ids: Collection[str],
    read: Callable[[Mapping[str, Any], str], PersonMessage],
) -> list[PersonMessage]:
    """Return the messages of the person with some ids."""
    return [
        read(message, f"messages[{at}]")
        for at, message in enumerate(messages)
        if isinstance(message, dict) and message.get("role") == "user" and message.get("id") in ids
    ]


# The route.

GivenT = TypeVar("GivenT", bound=ConversationBody)


def is_of_page(incoming: Incoming) -> bool:
    """Say whether it is the frontend's history that counts, and not what the session has."""
    return bool(incoming.served[MEMORY] == PAGE)


def takes_conversation(
    *,
    parse: Callable[[bytes], GivenT],
    name: Callable[[GivenT], str],
    noun: str,
    notes: Callable[[GivenT, Sequence[PersonMessage], Sequence[OmittedMessage]], NotesT],
    form: NotesForm[NotesT],
    intent: Callable[[Incoming, SessionView[EncoderT], GivenT], Intent],
    check: Callable[[Intent, GivenT, SessionView[EncoderT]], None],
    names: Callable[[GivenT], Sequence[str]],
    anew: Callable[[GivenT, SessionView[EncoderT]], bool],
    keys: tuple[str, str],
    headers: Callable[[], CIMultiDict[str]],
    begun: Callable[[Incoming, SessionView[EncoderT], GivenT, str], FrameRange | None],
    late: Callable[[Incoming, SessionView[EncoderT], GivenT], FrameRange | Response],
    cut: Callable[[], bytes],
) -> Submit[GivenT, EncoderT]:
    """Return the act of a route whose bodies have the whole conversation.

    `name` is what the frontend calls the session, a `noun` of the dialect; `notes` returns what is
    noted with words, and `form` writes it. `keys` are those of the name in the options of a new
    session, and of the notes there and with each command.
    """
    option, noted = keys

    def afresh(incoming: Incoming, seen: SessionView[EncoderT], given: GivenT) -> bool:
        if not is_of_page(incoming) or not given.words:
            return False
        state = seen.encoder.state
        ours = any(map(seen.encoder.is_ours, given.known)) or state.inputs.knows(given.known)
        return bool(state.messages) and not ours

    def opens(incoming: Incoming, given: GivenT, place: RouteContext) -> Opening:
        if not given.words:
            refuse(f"A {noun} begins with a message of the user at the end of `messages`.")
        words, left_out = choose(given.words, place.refusal)
        said, before = notes(given, words, left_out), []
        if is_of_page(incoming):
            before = given.before()
        elif given.history:
            # What was said before this one began, no agent hears of.
            said.ignored.append("messages")
        dialects = {backend.dialect for backend in place.backends}
        carried = given.carried(*dialects) if len(dialects) == 1 else {}
        if carried:
            said.ignored = [member for member in said.ignored if member not in given.ignored]
        options = {option: name(given), noted: form.write(said)}
        message = with_members(given.message_of(words), carried)
        return Opening([message], given.blobs, options=options, before=before)

    def commands(
        incoming: Incoming, seen: SessionView[EncoderT], given: GivenT
    ) -> Sequence[AnyCommand]:
        meant = intent(incoming, seen, given)
        check(meant, given, seen)
        return meant.commands

    return Submit(
        body=RequestBody(lambda body, _: parse(body), takes="conversation"),
        needs=lambda _, given: Action.WRITE if given.words else Action.ANSWER,
        where=lambda _, given: ClientNamedSession(name(given)),
        opens=opens,
        afresh=afresh,
        admit=lambda incoming, seen, given: {noted: intent(incoming, seen, given).notes},
        names=lambda _, given: names(given),
        anew=lambda _, seen, given: anew(given, seen),
        commands=commands,
        blobs=lambda given: given.blobs,
        looks_before=True,
        answer=TurnBody(
            headers=headers,
            begun=begun,
            over=lambda seen: seen.encoder.state.ended,
            cut=lambda _, __: cut(),
            nothing=late,
            stops=lambda incoming: incoming.query.get(ON_LEAVE) == STOP,
        ),
    )


def session_in_path(incoming: Incoming, _: Any) -> Target:
    """Return the session that the path names as the frontend does."""
    return ClientNamedSession(incoming.names["session"])


def sse_reading(
    position: int,
    *,
    turn: str | None = None,
    stop: int | None = None,
    omits: frozenset[int] = frozenset(),
    headers: Callable[[], CIMultiDict[str]] = sse_headers,
    first: bytes = b"",
) -> FrameRange:
    """Return which frames a body has, with the usual heartbeat."""
    return FrameRange(
        position=position,
        heartbeat=HEARTBEAT,
        # Proxies close what is silent for a minute, or for less.
        heartbeat_seconds=10.0,
        headers=headers(),
        first=first,
        turn=turn,
        stop=stop,
        omits=omits,
    )


def all_other_paths(routes: Callable[[], Sequence[Route]]) -> Route:
    """Return the last route of a face: it refuses an unknown path or a wrong method, and says what
    to write."""

    def nothing(incoming: Incoming, place: RouteContext) -> NoReturn:
        path, method = "/" + incoming.names["tail"], incoming.method
        asked = misdirected.known(routes())
        hint = misdirected.hint(asked, method, path, place)
        if misdirected.fitting(asked, path):
            text = f"`{path}` does not take {method}. {hint}"
            raise DragomanError(text, code=ErrorCode.METHOD_NOT_ALLOWED)
        text = f"There is no `{method} {path[: misdirected.SHOWN]}` here. {hint}"
        raise DragomanError(text, code=ErrorCode.NOT_FOUND)

    return Route(method="*", path="/{tail:.*}", needs=Action.READ, does=Static(nothing))
