"""By which names a secret goes: those of headers, of parts of a query, and of JSON members."""

from __future__ import annotations

from collections.abc import Iterable

_PARTS = ("key", "token", "secret", "password", "signature")
"""What the names of headers and of parts of a query have in them that are credentials."""

_HEADERS = frozenset({"authorization", "proxyauthorization", "cookie", "setcookie"})

_OPEN = frozenset({"idempotencykey", "secwebsocketkey"})
"""Names that look like it and are not."""

_QUERY = frozenset({"auth", "code", "pass", "passwd", "pwd", "sig"})
"""Names of parts of a query that are credentials besides."""

_ENDS = (
    *("password", "passwd", "passphrase", "secret", "token", "authorization", "cookie"),
    *("credential", "credentials", "sealed"),
    *("apikey", "privatekey", "secretkey", "accesskey", "signingkey", "encryptionkey", "enginekey"),
)
"""How the names of JSON members end whose strings are secrets."""

_PLACES = tuple(
    f"{one}token" for one in ("page", "next", "eos", "bos", "pad", "unk", "sep", "stop")
)
"""Names of places in lists and of a model's own signs."""

HINTS = ("pass", "secret", "token", "authorization", "cookie", "credential", "sealed", "key")
"""What is in each name, in small letters and without separators."""


_PLAIN = str.maketrans(
    {"_": None, "-": None, ".": None, " ": None}
    | {chr(code): chr(code + 32) for code in range(ord("A"), ord("Z") + 1)}
)

MEMBER, TOKEN, AUTHORIZATION = 1, 2, 4
"""What a member's name says: that its strings are secrets, which may be ids, or behind a scheme."""


def plain(name: str) -> str:
    """Return a name as it is compared: `_`, `-` and the case of letters do not count."""
    return name.translate(_PLAIN)


class SecretNames:
    """Which names are those of secrets. `more` are such names besides."""

    def __init__(self, more: Iterable[str] = ()) -> None:
        self._more = frozenset(map(plain, more))
        self._kinds: dict[str, int] = {}

    def kind(self, name: str) -> int:
        """Return what the strings of a member with this name are: 0, or `MEMBER` with what they may
        be besides."""
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kind(plain(name))
            # A peer may invent names without end.
            if len(self._kinds) >= 4096:
                self._kinds.clear()
            self._kinds[name] = kind
        return kind

    def _kind(self, short: str) -> int:
        if not short.endswith(_ENDS) and short not in self._more:
            return 0
        if short.endswith("token"):
            return 0 if short.endswith(_PLACES) else MEMBER | TOKEN
        return MEMBER | AUTHORIZATION if short.endswith("authorization") else MEMBER

    def is_header(self, name: str) -> bool:
        """Say whether the value of a header with this name is a credential."""
        short = plain(name)
        if short in self._more or short in _HEADERS:
            return True
        return short not in _OPEN and any(part in short for part in _PARTS)

    def is_query(self, name: str) -> bool:
        """Say whether a part of a query with this name is a credential."""
        short = plain(name)
        return short in _QUERY or (self.is_header(name) and not short.endswith(_PLACES))
