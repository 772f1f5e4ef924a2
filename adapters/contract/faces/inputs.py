"""What the functions of a face are given: a request, its route, a session as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from multidict import MultiMapping

from adapters.model.base import Encoder
from adapters.model.commands import SendMessage
from adapters.model.events import InteractionRequested
from adapters.model.session_info import SessionInfo
from adapters.model.state import LogState
from adapters.wire.errors import DragomanError

EncoderT = TypeVar("EncoderT", bound=Encoder)
"""The dialect's encoder."""


@dataclasses.dataclass(frozen=True, slots=True)
class Incoming:
    """A request of a frontend, without its body.

    `names` are those in its path. `served` is what `Face.serve` made of the configuration.
    """

    method: str
    path: str
    names: Mapping[str, str]
    query: MultiMapping[str]
    headers: MultiMapping[str]
    served: Any


class Backend(NamedTuple):
    """A backend of a route: `agent` is the name under which it is shown. With `any_agent` it goes
    by every other name too. One that `rewinds` answers again from any message of a person: what
    was said behind that is forgotten."""

    name: str
    dialect: str
    agent: str
    any_agent: bool = False
    rewinds: bool = False


class RouteContext(Protocol):
    """The route of a request, and the server."""

    @property
    def route(self) -> str:
        """Return the route's name."""

    @property
    def backends(self) -> Sequence[Backend]:
        """Return the backends to which new sessions of the route may go."""

    @property
    def known(self) -> Sequence[Backend]:
        """Return the backends that frontends may know on the route: those of now, and those of its
        configuration, also where they get no new sessions."""

    @property
    def routes(self) -> Sequence[str]:
        """Return the names of the routes that who asks may use; strangers learn of none."""

    def draw(self) -> Backend:
        """Return the backend that a new session would go to, drawn by weight."""

    @property
    def url(self) -> str:
        """Return the address that was asked for.

        Raises:
            ValueError: `Host` is not a host.
        """

    @property
    def uptime_seconds(self) -> float:
        """Return for how long the server has served."""

    @property
    def stopping(self) -> bool:
        """Say whether the server stops."""

    def elsewhere(self, path: str, *, known: bool) -> str | None:
        """Return which address serves a path that is not of this face, or what to do where none
        does; None where nobody's clients ask so. With `known` the path may also be a slip of this
        face's own, so it must be clear."""

    def refusal(self, message: SendMessage) -> DragomanError | None:
        """Return what a message is refused with for what it is, where a new session may go to a
        backend that cannot carry it."""


class SessionSummary(NamedTuple):
    """What is told of a session in lists, and its times in Unix milliseconds."""

    about: SessionInfo
    created_at: int
    updated_at: int


def _read(_: int) -> bool:
    return False


def _taken(_: SendMessage) -> DragomanError | None:
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class SessionView(Generic[EncoderT]):
    """A session, or a thread of it, as it is now.

    `settings` shape its frames in the dialect. `shown` is the encoder, fed with all that is stored,
    where the act asks for it, and so is `told`. `also` says whether `Named.also` names it too,
    `unread` whether its newest body in the dialect, which ended at a time (Unix ms), was not read
    to its end, as far as this process knows. `refusal` returns what a message is refused with for
    what it is, whatever the session does just now.
    """

    id: str
    thread: str
    secret: bytes
    backend: Backend
    state: LogState
    working: bool
    settings: Mapping[str, Any]
    now: int
    shown: EncoderT | None = None
    told: SessionSummary | None = None
    also: bool = False
    unread: Callable[[int], bool] = _read
    refusal: Callable[[SendMessage], DragomanError | None] = _taken

    @property
    def encoder(self) -> EncoderT:
        """Return the encoder."""
        assert self.shown is not None, "the act does not say that the encoder is looked at"
        return self.shown

    @property
    def open_interactions(self) -> list[InteractionRequested]:
        """Return the open interactions, oldest first."""
        return [open_.event for open_ in self.state.interactions.values()]
