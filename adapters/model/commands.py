"""The canonical commands: what a frontend can ask of a session, whatever its dialect.

A server codec makes commands from requests, a client codec makes requests from commands. A command
is validated before it is stored; `command_id` and the owner are given to it by the session, not by
the codec.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from adapters.model.events import Content, InputKind, JsonObject, Model, Policy
from adapters.model.stored import VERSION, StoredType, take_version, version_member

SAID_AS_MESSAGE = "said_as_message"
"""The key in an answer's `options` under which a face keeps the plain message that was taken as the
answer."""


class Sealed:
    """A secret on its way to the backend: it has no text, no JSON and no pickle, and is equal to
    nothing.

    `reveal` returns the value; only the request that carries it to the backend may call it, and
    who hides it in what that says.
    """

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        self.__value = value

    def reveal(self) -> str:
        """Return the value."""
        return self.__value

    def __repr__(self) -> str:
        return "<sealed>"

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise TypeError("a sealed value is never stored")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        raise TypeError("a sealed value has no hash")


class Command(Model, StoredType):
    """What all commands have: `options` are the extras of the frontend's own dialect."""

    TYPE: ClassVar[str]
    KIND: ClassVar[InputKind] = "control"

    type: str
    thread_id: str | None = None
    options: JsonObject | None = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls.TYPE = cls.model_fields["type"].default


class CreateSession(Command):
    """Open a session.

    `agent`, `environment_id` and `user_id` are what the dialect's create names.
    """

    type: Literal["create_session"] = "create_session"
    agent: str | None = None
    environment_id: str | None = None
    user_id: str | None = None
    title: str | None = None
    metadata: JsonObject | None = None


class SendMessage(Command):
    """Say something. `policy` is what the face promises for a busy or paused session.

    `content` is empty when only `system` is said. `beside` are the requests that are answered in
    the same request of the frontend: answers and message are one step. `shared_state` is the state
    that the application shares with its agent.
    """

    KIND: ClassVar[InputKind] = "message"

    type: Literal["send_message"] = "send_message"
    content: tuple[Content, ...]
    policy: Policy
    client_context: Any = None
    output_schema: JsonObject | None = None
    edit_of: str | None = None
    retry_of: str | None = None
    system: tuple[Content, ...] | None = None
    beside: tuple[str, ...] = ()
    shared_state: Any = None


class Steer(Command):
    """Guide the work that is running; not a message of its own."""

    KIND: ClassVar[InputKind] = "steer"

    type: Literal["steer"] = "steer"
    text: str


class Interrupt(Command):
    """Stop the running turn, of one thread or of all."""

    KIND: ClassVar[InputKind] = "interrupt"

    type: Literal["interrupt"] = "interrupt"
    turn_id: str | None = None
    note: str | None = None


class AnswerInteraction(Command):
    """Answer an open interaction: by `decision`, by options, by words or content, or sealed."""

    KIND: ClassVar[InputKind] = "answer"

    model_config = ConfigDict(**Model.model_config, arbitrary_types_allowed=True)

    type: Literal["answer"] = "answer"
    request_id: str
    decision: Literal["allow", "deny"] | None = None
    scope: Literal["once", "session", "always"] | None = None
    reason: str | None = None
    option_ids: tuple[str, ...] = ()
    text: str | None = None
    content: tuple[Content, ...] | None = None
    is_error: bool = False
    skip: bool = False
    system: tuple[Content, ...] | None = None
    shared_state: Any = None
    sealed: Annotated[Sealed | None, Field(exclude=True)] = None


class ToolResult(Command):
    """Give the result of a built-in tool that the frontend ran itself (self-hosted)."""

    KIND: ClassVar[InputKind] = "answer"

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    content: tuple[Content, ...] | None = None
    is_error: bool = False
    system: tuple[Content, ...] | None = None


class Compact(Command):
    """Summarise the history."""

    type: Literal["compact"] = "compact"


class Clear(Command):
    """Drop the history, keep the session."""

    type: Literal["clear"] = "clear"


class Reset(Command):
    """Retire the session."""

    type: Literal["reset"] = "reset"
    reason: str | None = None


class Archive(Command):
    """Take the session out of the active lists."""

    type: Literal["archive"] = "archive"


class ArchiveThread(Command):
    """End a child thread."""

    type: Literal["archive_thread"] = "archive_thread"


class Delete(Command):
    """Erase the session."""

    type: Literal["delete"] = "delete"


class DefineOutcome(Command):
    """Say what the work is judged by."""

    KIND: ClassVar[InputKind] = "outcome"

    type: Literal["define_outcome"] = "define_outcome"
    description: str
    rubric: JsonObject | None = None
    max_iterations: int | None = None


class UpdateSession(Command):
    """Change the title, the metadata or the agent's tools; a metadata value of null deletes its
    key.
    """

    type: Literal["update_session"] = "update_session"
    title: str | None = None
    metadata: JsonObject | None = None
    agent: JsonObject | None = None


AnyCommand = (
    CreateSession
    | SendMessage
    | Steer
    | Interrupt
    | AnswerInteraction
    | ToolResult
    | Compact
    | Clear
    | Reset
    | Archive
    | ArchiveThread
    | Delete
    | DefineOutcome
    | UpdateSession
)

COMMAND_TYPES: dict[str, type[Command]] = {cls.TYPE: cls for cls in AnyCommand.__args__}
"""Every command by its name."""

_ADAPTER: TypeAdapter[AnyCommand] = TypeAdapter(
    Annotated[AnyCommand, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)


def members_of(value: JsonObject) -> JsonObject:
    """Return the members of a stored command as the commands of today have them.

    Raises:
        StoredByNewer: its version is not known yet.
    """
    return take_version(Command, "a command", value)


def decode_command(value: JsonObject) -> AnyCommand:
    """Return the command that an outbox row describes.

    Raises:
        StoredByNewer: its version is not known yet.
        pydantic.ValidationError: the row is not a command.
    """
    return _ADAPTER.validate_python(members_of(value))


def encode_command(command: Command) -> bytes:
    """Return the command as JSON, its version first, without a sealed value."""
    return b"{%b%b" % (VERSION_MEMBER, command.__pydantic_serializer__.to_json(command)[1:])


def dump_command(command: Command) -> JsonObject:
    """Return the same as a value."""
    return {VERSION: Command.state_version, **command.model_dump(mode="json")}


VERSION_MEMBER = version_member(Command)
"""What stands first in a stored command; empty for version 1."""
