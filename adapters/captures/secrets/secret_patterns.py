"""How credentials look, whatever they are called: data, after the rules of gitleaks and
detect-secrets.

All is linear in the text: an expression begins with letters that are found fast, what repeats in it
is possessive or short, and no part of a text is looked at from more than a few places.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ahocorasick_rs import AhoCorasick

from adapters.captures.secrets.secret_names import HINTS

KEY_BLOCK_MOST = 16_000
"""Characters of a private key between its lines."""


class SecretSpan(NamedTuple):
    """Where a secret stands in a text, and the secret; `in_url` where its mark is to be quoted."""

    start: int
    end: int
    value: str
    in_url: bool = False


class SecretPattern(NamedTuple):
    """A kind of credentials. A text that has one has one of the `hints`, in capitals or not. A
    `loose` one may have any character in it."""

    name: str
    hints: tuple[str, ...]
    find: Callable[[str], Iterator[SecretSpan]]
    loose: bool = False


def _by(expression: str) -> Callable[[str], Iterator[SecretSpan]]:
    """Return what finds the matches of an expression: its first group is the secret, or
    all of it where it has none."""
    whole = re.compile(expression)
    group = 1 if whole.groups else 0

    def find(text: str) -> Iterator[SecretSpan]:
        for found in whole.finditer(text):
            yield SecretSpan(*found.span(group), found[group])

    return find


def _key(name: str, hint: str, rest: str, kind: str = "") -> SecretPattern:
    """Return the look of keys that begin with the hint, which no letter or digit stands before that
    is not the end of an escape, as of `\\n`."""
    head = hint + kind
    # Letters first: they are found fast.
    apart = rf"(?<![^\\][A-Za-z0-9]{head})(?<!\A[A-Za-z0-9]{head})"
    return SecretPattern(name, (hint.lower(),), _by(f"{head}{apart}{rest}"))


_JWT = re.compile(r"(?<![\w-])[\w-]{11,}+[.]eyJ[\w-]{8,}+(?:[.][\w-]*+)?", re.ASCII)
_HEAD = re.compile(r"(?<![A-Za-z0-9])eyJ[\w-]{8,}+[.]", re.ASCII)


def _jwts(text: str) -> Iterator[SecretSpan]:
    for found in _JWT.finditer(text):
        # What stands before its head may hang on it.
        begin = _HEAD.search(found[0])
        if begin is not None:
            yield SecretSpan(found.start() + begin.start(), found.end(), found[0][begin.start() :])


_BEARER = re.compile(
    r"[Bb][Ee][Aa][Rr][Ee][Rr](?<![A-Za-z0-9].{6})[ \t]++([A-Za-z0-9._~+/-]{16,}+=*+)"
)
_DIGIT = re.compile("[0-9]")


def _bearers(text: str) -> Iterator[SecretSpan]:
    for found in _BEARER.finditer(text):
        if _DIGIT.search(found[1]):
            yield SecretSpan(*found.span(1), found[1])


_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,60}-----")
_LINES = re.compile(r"(?:(?:\s|\\[nr])*+[A-Za-z0-9+/=]{16,}+)++")


def _key_blocks(text: str) -> Iterator[SecretSpan]:
    """A private key in PEM; of one whose end is not there, the lines that are."""
    at, end = 0, _END.search(text)
    while (begin := _BEGIN.search(text, at)) is not None:
        while end is not None and end.start() < begin.end():
            end = _END.search(text, end.end())
        stop = begin.end()
        if end is not None and end.start() - stop <= KEY_BLOCK_MOST:
            stop = end.end()
        elif (lines := _LINES.match(text, stop)) is not None:
            stop = lines.end()
        if stop > begin.end():
            yield SecretSpan(begin.start(), stop, text[begin.start() : stop])
        at = stop


_PASSWORD = re.compile(
    r"://[^\s/?#@:\"'<>\[\]\\]{0,256}+:((?!%5Bredacted-)[^\s/?#@\"'<>\[\]\\]{1,256}+)(?=@)"
)


def _passwords(text: str) -> Iterator[SecretSpan]:
    for found in _PASSWORD.finditer(text):
        yield SecretSpan(*found.span(1), found[1], in_url=True)


_NAMES = (
    r"(?i:(?:[a-z]{1,20}[_-])?(?:token|secret|signature|password)|(?:api[_-]?)?key|sig|code"
    r"|x-amz-credential)="
)
_IN_QUERIES = tuple(
    f"{name}="
    for name in ("token", "secret", "signature", "password", "key", "sig", "code", "credential")
)
_VALUE = r"((?!\[redacted-)[^&\s\"'<>#\\]{8,}+)"

LOOKS: tuple[SecretPattern, ...] = (
    _key("key of a model provider", "sk-", "[A-Za-z0-9_-]{20,}+"),
    _key("secret key of Stripe", "sk_", "[A-Za-z0-9]{16,}+", "[a-z]{4}_"),
    _key("restricted key of Stripe", "rk_", "[A-Za-z0-9]{16,}+", "[a-z]{4}_"),
    *(_key("token of GitHub", f"gh{one}_", "[A-Za-z0-9]{20,}+") for one in "pousr"),
    _key("fine-grained token of GitHub", "github_pat_", "[A-Za-z0-9_]{20,}+"),
    _key("token of GitLab", "glpat-", "[A-Za-z0-9_-]{20,}+"),
    _key("token of Slack", "xox", "[A-Za-z0-9-]{10,}+", "[abeoprs]-"),
    _key("access key of AWS", "AKIA", "[0-9A-Z]{16}(?![A-Za-z0-9])"),
    _key("temporary access key of AWS", "ASIA", "[0-9A-Z]{16}(?![A-Za-z0-9])"),
    _key("key of Google", "AIza", "[A-Za-z0-9_-]{35}"),
    SecretPattern("JSON Web Token", (".eyj",), _jwts),
    SecretPattern("bearer token", ("bearer",), _bearers),
    SecretPattern("private key", ("-----begin",), _key_blocks, loose=True),
    SecretPattern("password of a URL", ("://",), _passwords),
    SecretPattern("credential in a query", _IN_QUERIES, _by(f"[?&#]{_NAMES}{_VALUE}")),
)
"""What is looked for in every text."""


ESCAPED, NAMED = 1, 2
"""What a text may have besides: letters that JSON need not escape, and names of secrets."""

_OF: dict[str, SecretPattern | int] = {hint: look for look in LOOKS for hint in look.hints}
_OF |= {r"\u00": ESCAPED, r"\/": ESCAPED} | dict.fromkeys(HINTS, NAMED)
_HINTS = AhoCorasick(_OF)
_OWNERS = list(_OF.values())


def hints(text: str) -> tuple[list[SecretPattern], int]:
    """Return the looks that a text may have, and what else it may."""
    lower = text.lower()
    # A longer text may have too many hints to ask for all at once.
    if len(text) > 64 * 1024 or not text.isascii():
        found = {owner for hint, owner in _OF.items() if hint in lower}
    else:
        places = _HINTS.find_matches_as_indexes(lower, overlapping=True)
        if not places:
            return [], 0
        found = {_OWNERS[which] for which, _, _ in places}
    looks = [one for one in found if isinstance(one, SecretPattern)]
    return looks, sum(one for one in found if isinstance(one, int))


def looks_secret(text: str) -> bool:
    """Say whether a text has something in it that looks like a credential."""
    return any(next(look.find(text), None) is not None for look in hints(text)[0])
