"""Who asks, and what they may: authentication by key, and the one function that authorizes.

Every route, list, stream, replay, answer and control call goes through `authorize`. It knows one
refusal, NOT_FOUND: what a key may not touch does not exist for it, so nobody learns the names of
other people's sessions or routes. What holds for all keys goes through `authorize_admin`, whose
refusal is the same whatever was asked for.

A key of an administrator looks after the sessions of everybody, and acts in none: it is not a
frontend's, and hears so as FORBIDDEN, whatever it asked for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from multidict import MultiMapping

from adapters.contract.faces import Action
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.config.settings import LOCAL, SHADOWS, KeySettings, RouteSettings, Settings

_OWN_HEADERS = [one.key_header for one in DIALECTS.values() if one.has_face and one.key_header]
_KEY_HEADERS = tuple(dict.fromkeys(("x-api-key", *_OWN_HEADERS)))

HOW_A_KEY_IS_SENT = " or ".join(
    (
        ", ".join(("`Authorization: Bearer KEY`", *(f"`{h}: KEY`" for h in _KEY_HEADERS[:-1]))),
        f"`{_KEY_HEADERS[-1]}: KEY`",
    )
)
"""What a frontend is told that needs a key."""


@dataclass(frozen=True, slots=True)
class Key:
    """A frontend's key: its name and the SHA-256 of its value."""

    name: str
    digest: bytes

    @classmethod
    def from_settings(cls, keys: Iterable[KeySettings]) -> tuple[Key, ...]:
        """Return the keys of the configuration."""
        return tuple(cls(key.name, bytes.fromhex(key.sha256)) for key in keys)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the name of a key, or `local` while there are none; it owns its sessions."""

    name: str


def authenticate(headers: MultiMapping[str], keys: Sequence[Key]) -> Principal:
    """Return whose key the headers carry.

    Each dialect puts it elsewhere, and any place will do on every path: `Authorization: Bearer
    KEY`, `Authorization: Basic` with the key as password, `x-api-key: KEY` and the dialects' own
    headers. Without configured keys everybody is `local`.

    Raises:
        DragomanError: with the code UNAUTHORIZED, they carry no key that we know.
    """
    if not keys:
        return Principal(LOCAL)
    found: Key | None = None
    for value in _presented(headers):
        digest = hashlib.sha256(value).digest()
        # All keys are compared, whichever fits: the time says nothing about how near a guess was.
        for key in keys:
            if hmac.compare_digest(digest, key.digest) and found is None:
                found = key
    if found is None:
        why = "This key is not known here" if _was_sent(headers) else "This needs a key"
        raise DragomanError(
            f"{why}: send one as {HOW_A_KEY_IS_SENT}. The operator adds keys under [[keys]].",
            code=ErrorCode.UNAUTHORIZED,
        )
    return Principal(found.name)


def _presented(headers: MultiMapping[str]) -> Iterator[bytes]:
    for value in headers.getall("Authorization", []):
        scheme, _, credentials = value.strip().partition(" ")
        match scheme.lower():
            case "bearer":
                yield _bytes(credentials.strip())
            case "basic":
                try:
                    pair = base64.b64decode(credentials.strip(), validate=True)
                except (binascii.Error, ValueError):
                    continue
                yield pair.partition(b":")[2]
    for name in _KEY_HEADERS:
        for value in headers.getall(name, []):
            yield _bytes(value.strip())


def _was_sent(headers: MultiMapping[str]) -> bool:
    """Say whether the headers carry a key, known or not, as they have to."""
    return any(True for _ in _presented(headers))


def _bytes(value: str) -> bytes:
    # Headers are decoded with surrogate escapes: bytes that are not UTF-8 come back as they were.
    return value.encode("utf-8", "surrogateescape")


def authorize(
    principal: Principal,
    session_owner: str | None,
    action: Action,
    route: str,
    settings: Settings,
) -> None:
    """Return if the principal may do this, through this route.

    `session_owner` is None where no session exists yet: at the door of a face. A session whose
    route has left the configuration stays readable for its owner, if the owner's key is not limited
    to some backends; nothing else can be done with it.

    Raises:
        DragomanError: with the code NOT_FOUND, for another owner's session and for a route that the
            key may not use; with FORBIDDEN, for a key of an administrator, see `authorize_action`.
    """
    if settings.keys and administers(principal, settings):
        if session_owner is None or action not in _ADMINISTERED:
            raise _not_a_frontend()
        if session_owner != SHADOWS:
            return
    if session_owner is not None and session_owner != principal.name:
        raise DragomanError("There is no such session.", code=ErrorCode.NOT_FOUND)
    configured = settings.route(route)
    local = principal.name == LOCAL and not settings.keys
    allowed = None if local else _allowed(principal, settings)
    if configured is None:
        if allowed is None and action is Action.READ and session_owner is not None:
            return
    elif allowed is None or _covers(allowed, configured):
        return
    raise no_route(route, routes_of(principal, settings))


def routes_of(principal: Principal, settings: Settings) -> list[str]:
    """Return the names of the routes that the principal may use."""
    if administers(principal, settings):
        return []
    return [name for name in settings.route_names if may_use(principal, name, settings)]


def no_route(route: str, names: Sequence[str]) -> DragomanError:
    """Return the error for a route that does not exist; `names` are those that who asks may use."""
    text = f"There is no route `{route[:80]}`"
    if names:
        text += f"; there are: {', '.join(names)}"
    return DragomanError(f"{text}.", code=ErrorCode.NOT_FOUND)


_ADMINISTERED = frozenset({Action.READ, Action.SETTLE})
"""What a key of an administrator may do with a session, whosever it is."""


def _not_a_frontend() -> DragomanError:
    return DragomanError(
        "This is the key of an administrator: it lists, reads, settles and prunes sessions, but "
        "opens no face and acts in no session. Use a key without `admin = true`.",
        code=ErrorCode.FORBIDDEN,
    )


def authorize_action(principal: Principal, action: Action, settings: Settings) -> None:
    """Return if the principal may do this with any session at all: the check before a look-up.

    Raises:
        DragomanError: with the code FORBIDDEN, its key is an administrator's, and those only read
            and settle.
    """
    if administers(principal, settings) and action not in _ADMINISTERED:
        raise _not_a_frontend()


def administers(principal: Principal, settings: Settings) -> bool:
    """Tell whether the principal's key is an administrator's; without keys nobody's is."""
    key = settings.key(principal.name)
    return key is not None and key.admin


def authorize_admin(principal: Principal, settings: Settings) -> None:
    """Return if the principal may change what holds for all keys; without keys everybody may.

    Raises:
        DragomanError: with the code FORBIDDEN, its key may not.
    """
    if not settings.keys or administers(principal, settings):
        return
    raise DragomanError(
        "This needs a key of an administrator: one with `admin = true` under [[keys]].",
        code=ErrorCode.FORBIDDEN,
    )


def may_use(principal: Principal, route: str, settings: Settings) -> bool:
    """Tell whether the route exists for this principal: the filter of lists of routes."""
    configured = settings.route(route)
    if configured is None:
        return False
    allowed = _allowed(principal, settings)
    return allowed is None or _covers(allowed, configured)


def _covers(allowed: frozenset[str], route: RouteSettings) -> bool:
    """Say whether the backends and routes that a key names have a route in them."""
    return route.name in allowed or all(share.name in allowed for share in route.backends)


def _allowed(principal: Principal, settings: Settings) -> frozenset[str] | None:
    """Return the backends and routes that the principal's key names; None stands for all."""
    if not settings.keys:
        return None if principal.name == LOCAL else frozenset()
    key = settings.key(principal.name)
    if key is None:
        return frozenset()
    return None if key.backends is None else frozenset(key.backends)
