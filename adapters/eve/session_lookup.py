"""Which session a request at the eve face is about: by its token, by its path, as a thread of
another, by the token of a callback (eve page, sections 5, 9.4 and 10)."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from adapters.contract.faces import AnyOf, ChildThread, Incoming, NamedSession, SessionView, Target
from adapters.eve import requests, wire
from adapters.eve.requests import EveControl, FollowUp
from adapters.eve.server import EveEncoder
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.url_paths import is_segment, path_of

TOKEN_NUMBER = "eve_token"
"""The key in an accepted input's `details`: which continuation token it used."""

JOIN_HEADER = "X-Dragoman-Session"
"""A create with this header makes no session: it joins the one named. eve's terminal programs make
a session by their first message and have no other way to come to one (0.30.8 `cli/dev/tui/tui.js`,
`client.session()`; 0.80.1 `cli/dev/tui/runner.js`), but both send headers of one's own."""

_VIEW = re.compile(r"dgv_([0-9]{1,9})_(.+)")
"""The id that such a program is given: the index of its first record, and the session."""

EveSeen: TypeAlias = SessionView[EveEncoder]


def face_of(incoming: Incoming) -> requests.EveFaceSettings:
    """Return how the face is served that a request came to."""
    face = incoming.served
    assert isinstance(face, requests.EveFaceSettings)
    return face


def viewed(name: str) -> tuple[int, str]:
    """Return at which record the client of a session id begins to count, and the session."""
    view = _VIEW.fullmatch(name)
    return (0, name) if view is None else (int(view[1]), view[2])


def addressed(incoming: Incoming, said: FollowUp | EveControl) -> Target:
    """Return the session that a request names: by its token, whatever the path says, else by the
    path (section 5)."""
    name = incoming.names.get("session")
    named = None if name is None else viewed(name)[1]
    if said.token is None:
        assert named is not None
        return NamedSession(named)
    handle = requests.token_handle(said.token)
    if handle is None:
        raise DragomanError("The continuation token is none of ours.", code=ErrorCode.NOT_FOUND)
    return NamedSession(handle, also=named)


def token_used(_: Incoming, seen: EveSeen, said: FollowUp | EveControl) -> Mapping[str, Any] | None:
    """Return which token a request used, if it is still good."""
    if said.token is None:
        return None
    encoder = seen.encoder
    waits = encoder.waits
    number = requests.token_wait(seen.secret, said.token, waits)
    if number is None or number < min(encoder.used, waits):
        raise DragomanError("The continuation token is stale.", code=ErrorCode.STALE_TOKEN)
    return {TOKEN_NUMBER: number}


def shown(incoming: Incoming, seen: EveSeen, said: FollowUp | EveControl) -> str:
    """Return the id of a session that the client of a request knows it by: S refuses another one,
    T begins to read anew."""
    name = incoming.names.get("session")
    return seen.id if name is None or (said.token is not None and not seen.also) else name


def read_as(incoming: Incoming, _: None = None) -> Target:
    """Return the session, or the thread that is read as a session of its own (section 10)."""
    name = incoming.names["session"]
    targets: list[NamedSession | ChildThread] = [NamedSession(viewed(name)[1]), ChildThread(name)]
    if (parent := incoming.names.get("parent")) is not None:
        # The child of another session may have the same name.
        return AnyOf([ChildThread(name, viewed(parent)[1]), *targets])
    return AnyOf(targets)


# Callbacks: what a sign-in's provider or a remote agent brings (sections 9.4 and 11).


def session_of(incoming: Incoming) -> str | None:
    """Return the session that the token of a callback names, if it is like one of ours."""
    return incoming.names["token"].rpartition(".")[0] or None


def stands_for(incoming: Incoming, seen: EveSeen, request_id: str) -> bool:
    """Say whether the token of a callback is the one that we showed for a request."""
    ours = requests.webhook_token(seen.secret, seen.id, request_id)
    return hmac.compare_digest(ours.encode(), incoming.names["token"].encode())


def callback_path(kind: str, incoming: Incoming) -> str | None:
    """Return the path of a callback below the backend's own address, made anew of the segments that
    were matched; None where one of them could lead elsewhere: anybody who asks shows no key."""
    names = [value for part, value in incoming.names.items() if part != "route"]
    if not all(map(is_segment, names)):
        return None
    if kind == "connections":
        names.insert(1, "callback")
    return path_of(wire.PREFIX, kind, *names)


def nothing_pending() -> DragomanError:
    """Return the refusal of a callback that nobody waits for."""
    # Who asks may be anybody, and does not learn which routes there are.
    return DragomanError(
        "Nothing is pending here; only eve backends take callbacks.", code=ErrorCode.NOT_FOUND
    )
