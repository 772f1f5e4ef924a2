"""What a secret is: by the name that it has, by how it looks, and by having been seen before."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Container, Iterable, Sequence
from urllib.parse import quote, quote_plus

from adapters.captures.strings import JsonStrings, String

__all__ = ["LOOKS", "BadPattern", "Secrets", "Span", "apart"]

SECRET = re.compile(
    r"^(?:authorization|proxy-authorization|cookie|set-cookie)$|key|token|secret|password|signature",
    re.IGNORECASE,
)
"""Names of headers and of parts of a query whose value is a credential, or may be one."""

OPEN = frozenset({"idempotencykey", "secwebsocketkey"})
"""Names that look like it and are not."""

QUERY = frozenset({"auth", "code", "pass", "passwd", "pwd", "sig"})
"""Names of parts of a query that are credentials besides."""

_MEMBER = re.compile(
    r"(?:password|passwd|passphrase|secret|token|authorization|cookie|credentials?|sealed"
    r"|(?:api|private|secret|access|signing|encryption|engine)key)$"
)
"""How the names of JSON members end whose strings are secrets."""

_NO_MEMBER = re.compile(r"(?:page|next|eos|bos|pad|unk|sep|stop)token$")
"""Names of places in lists and of a model's own signs."""

_SEALED = re.compile(r"(?:^|\.)(?:secret|sudo)_result$")
"""Types of objects that answer a sealed request: their `value` or `password` is the secret."""

_OWN = re.compile(r"type|id|event|status|role|kind|level|source|name|.*(?:_ids?|_at|Ids?|At)")
"""Members whose strings are the protocol's own: no short secret is looked for in them."""

_ID = re.compile(r"id|.*(?:_id|Id)")
"""Members whose strings are not secret."""

SHORTEST = 8
"""Characters of a value that is looked for where it has no name: a shorter one is everywhere."""

SHORTEST_SEALED = 4
"""The same of an answer to a sealed request."""

MOST_KNOWN = 256
"""Values that are looked for: the newest."""

LONGEST_KNOWN = 8 * 1024
"""Characters of a value that is looked for."""

LONGEST_BEGIN = 16 * 1024
"""Characters at the end of a text that may be the begin of a secret."""

NESTED = 3
"""How deep JSON in strings of JSON is looked at."""


class BadPattern(ValueError):
    """A configured pattern is not a regular expression, or matches nothing at all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Where a secret stands in a text, and what is written in its place."""

    start: int
    end: int
    mark: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    """How credentials of a kind look. `whole` finds one: its first group, or all of it where it has
    none. `begin` finds at the end of a text what may become one."""

    whole: re.Pattern[str]
    begin: re.Pattern[str]


_STEP = re.compile(r"^(?P<item>.*\]|.)(?:\{(?P<least>\d+)(?P<more>,)?\}|\*)$", re.DOTALL)


def _look(*steps: str, end: str = "") -> _Look:
    """Return a look that is spelled by steps, each one character or a class with a count."""
    begin = ""
    for step in reversed(steps):
        counted = _STEP.match(step)
        loose = step if counted is None else f"{counted['item']}*"
        begin = f"{loose}(?:{begin})?" if begin else loose
    first = next(n for n, step in enumerate(steps) if step.endswith(("}", "*")))
    head, rest = "".join(steps[:first]), "".join(steps[first:])
    # Letters first: they are found fast.
    whole = re.compile(f"{head}(?<![A-Za-z0-9]{head}){rest}{end}")
    return _Look(whole, re.compile(rf"(?<![A-Za-z0-9]){begin}\Z"))


_BEARER = tuple(f"[{letter.upper()}{letter}]" for letter in "bearer")
_BEFORE_BEARER = "".join(_BEARER)
_PEM = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_END = r"-----END [A-Z0-9 ]{0,60}-----"
_IN_QUERY = (
    r"[?&#](?i:(?:[a-z]{1,20}[_-])?(?:token|secret|signature|password)|(?:api[_-]?)?key|sig|code"
    r"|x-amz-credential)="
)
_VALUE = r"[^&\s\"'<>#\\]"

_KEY_BLOCK = _Look(
    re.compile(rf"{_PEM}(?:[\s\S]{{0,16000}}?{_PEM_END}|(?:(?:\s|\\[nr])*[A-Za-z0-9+/=]{{16,}})+)"),
    re.compile(
        r"-{1,5}(?:B|BE|BEG|BEGI|BEGIN|BEGIN [A-Z0-9 ]{0,60}-{0,5})?\Z"
        rf"|{_PEM}(?![\s\S]{{0,16000}}?{_PEM_END})[\s\S]*\Z"
    ),
)

LOOKS: tuple[_Look, ...] = (
    _look("s", "k", "-", "[A-Za-z0-9_-]{20,}"),
    _look("s", "k", "_", "[a-z]{4}", "_", "[A-Za-z0-9]{16,}"),
    _look("r", "k", "_", "[a-z]{4}", "_", "[A-Za-z0-9]{16,}"),
    _look("g", "h", "[pousr]", "_", "[A-Za-z0-9]{20,}"),
    _look(*"github_pat_", "[A-Za-z0-9_]{20,}"),
    _look(*"glpat-", "[A-Za-z0-9_-]{20,}"),
    _look("x", "o", "x", "[abeoprs]", "-", "[A-Za-z0-9-]{10,}"),
    _look(*"AKIA", "[0-9A-Z]{16}", end="(?![A-Za-z0-9])"),
    _look(*"ASIA", "[0-9A-Z]{16}", end="(?![A-Za-z0-9])"),
    _look(*"AIza", "[A-Za-z0-9_-]{35}"),
    _look(*"eyJ", *("[A-Za-z0-9_-]{8,}", "[.]") * 2, "[A-Za-z0-9_-]*"),
    _Look(
        re.compile(
            rf"{_BEFORE_BEARER}(?<![A-Za-z0-9]{_BEFORE_BEARER})[ \t]+"
            r"((?=[A-Za-z._~+/-]*[0-9])[A-Za-z0-9._~+/-]{16,}=*)"
        ),
        _look(*_BEARER, "[ \t]{1,}", "[A-Za-z0-9._~+/=-]{16,}").begin,
    ),
    _KEY_BLOCK,
    # What stands before is looked at again, and only the password is the secret.
    _Look(
        re.compile(
            r"://[^\s/?#@:\"'<>\[\]\\]{0,256}:((?!%5Bredacted-)[^\s/?#@\"'<>\[\]\\]{1,256})(?=@)"
        ),
        re.compile(r"://[^\s/?#@\"'<>\[\]\\]{0,512}\Z"),
    ),
    _Look(
        re.compile(rf"{_IN_QUERY}((?!\[redacted-){_VALUE}{{8,}})"),
        re.compile(rf"{_IN_QUERY}{_VALUE}*\Z"),
    ),
)
"""Credentials of providers, JWTs, bearer tokens, private keys, and credentials in URLs."""

_HINT = re.compile(
    r"[sr]k[-_]|gh[pousr]_|github_pat_|glpat-|xox|A[KS]IA|AIza|eyJ|[Bb][Ee][Aa][Rr]|-----BEGIN|://"
    r"|[?&#]"
)
"""What is in each text that has one."""

SHORT = 1024
"""Characters of a text that is searched for it first."""

_MARK = re.compile(r"(?:\[|%5B)redacted(?:-[0-9a-f]{8})?(?:\]|%5D)|\[sealed\]")
"""Marks: ours, and those in the place of sealed values."""


def apart(spans: Iterable[Span]) -> list[Span]:
    """Return spans in their order, without those that another one begins before and reaches into.
    Of two that overlap the first one grows; of two in one place the last one counts."""
    out: list[Span] = []
    numbered = sorted(enumerate(spans), key=lambda one: (one[1].start, -one[1].end, -one[0]))
    for _, span in numbered:
        if out and span.start < out[-1].end:
            if span.end > out[-1].end:
                out[-1] = dataclasses.replace(out[-1], end=span.end)
            continue
        out.append(span)
    return out


def _plain(name: str) -> str:
    return re.sub(r"[_\-. ]", "", name).lower()


class Secrets:
    """Finds secrets, and remembers those that are to be found again.

    Args:
        salt: what marks are made with.
        keys: names of members besides.
        patterns: regular expressions besides.

    Raises:
        BadPattern: a pattern is not one, or matches the empty string.
    """

    def __init__(self, salt: bytes, keys: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        self._salt = salt
        self._keys = frozenset(map(_plain, keys))
        self._patterns = [_compiled(pattern) for pattern in patterns]
        # Names of sessions and the like that stand in paths.
        self._shown: dict[str, None] = {}
        # A value and its spellings; the newest is the last one.
        self._known: dict[str, tuple[str, ...]] = {}

    def mark(self, value: str) -> str:
        """Return what stands for a value: the same for the same one."""
        data = value.encode("utf-8", "surrogatepass")
        return f"[redacted-{hashlib.sha256(self._salt + data).hexdigest()[:8]}]"

    def remember(self, value: str, least: int = SHORTEST) -> None:
        """Look for a value from now on."""
        value = value.strip()
        if not least <= len(value) <= LONGEST_KNOWN or _MARK.search(value):
            return
        if value.isdecimal() and least == SHORTEST:
            return
        spellings = self._known.pop(value, None) or _spellings(value)
        self._known[value] = spellings
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def remember_named(self, value: str) -> None:
        """The same, of a value that is known by its name only: where it may be a word, which occurs
        elsewhere, it is not looked for."""
        if len(value) >= 16 or any(letter.isdigit() for letter in value):
            self.remember(value)

    def show(self, value: str) -> None:
        """Take a value as not secret: an eve may give the id of a session as a token."""
        if value not in self._known:
            self._shown[value] = None
            if len(self._shown) > MOST_KNOWN:
                del self._shown[next(iter(self._shown))]

    def is_member(self, name: str) -> bool:
        """Say whether the strings of a member with this name are secrets."""
        plain = _plain(name)
        if plain in self._keys:
            return True
        return _MEMBER.search(plain) is not None and not _NO_MEMBER.search(plain)

    def is_header(self, name: str) -> bool:
        """Say whether the value of a header with this name is a credential."""
        plain = _plain(name)
        return plain in self._keys or (SECRET.search(name) is not None and plain not in OPEN)

    def is_query(self, name: str) -> bool:
        """Say whether a part of a query with this name is a credential."""
        plain = _plain(name)
        return plain in QUERY or (self.is_header(name) and not _NO_MEMBER.search(plain))

    def in_text(self, text: str, *, own: bool = False) -> list[Span]:
        """Return the secrets of a text; `own` where it is the protocol's, without short ones."""
        spans = []
        for value, spellings in self._known.items():
            if own and len(value) < SHORTEST:
                continue
            for spelled in spellings:
                start = text.find(spelled)
                while start >= 0:
                    spans.append(Span(start, start + len(spelled), self.mark(value)))
                    start = text.find(spelled, start + len(spelled))
        # Most texts are short, and one search is faster than all.
        for look in LOOKS if len(text) > SHORT or _HINT.search(text) else ():
            for found in look.whole.finditer(text):
                start, end = found.span(1 if found.re.groups else 0)
                mark = self.mark(text[start:end])
                if text.startswith("://", found.start()):
                    mark = quote(mark)
                spans.append(Span(start, end, mark))
        for pattern in self._patterns:
            spans += [
                Span(*found.span(), self.mark(found[0]))
                for found in pattern.finditer(text)
                if found[0] and not _MARK.fullmatch(found[0])
            ]
        return apart(spans)

    def begin(self, text: str) -> int:
        """Return where the end of a text begins that may be the begin of a secret."""
        base = max(0, len(text) - LONGEST_BEGIN)
        tail = text[base:]
        first = len(tail)
        words = _two_words(tail)
        for look in LOOKS:
            start = 0 if look is _KEY_BLOCK else words
            if (look is not _KEY_BLOCK or "-" in tail) and (
                found := look.begin.search(tail, start)
            ):
                first = min(first, found.start())
        if self._patterns and tail[-1:].strip():
            # What a pattern begins with is not known: the last word waits.
            first = min(first, len(tail) - len(tail.rsplit(None, 1)[-1]))
        for spellings in self._known.values():
            for spelled in spellings:
                first = min(first, _begin_of(spelled, tail))
        return base + first

    def in_strings(self, strings: Sequence[String], depth: int = 0) -> list[list[Span]]:
        """Return the secrets of the strings of a JSON document, in its own text for each one."""
        ids = {one.text for one in strings if not one.is_name and _ID.fullmatch(one.name)}
        for string in strings:
            string.secret = self._is_secret(string) and not self._is_id(string, ids)
        # First those with names: the others may repeat them.
        named = [self._named(string) if string.secret else None for string in strings]
        return [
            self._unnamed(string, depth) if spans is None else spans
            for string, spans in zip(strings, named, strict=True)
        ]

    def _is_secret(self, string: String) -> bool:
        if string.is_name:
            return False
        owner = string.owner
        if string.name in ("value", "password") and _SEALED.search(owner.text("type")):
            return True
        if string.name == "value":
            # A variable or a header, as many write them.
            return any(self.is_member(owner.text(name)) for name in ("name", "key", "env_var"))
        return self.is_member(string.name)

    def _is_id(self, string: String, ids: Container[str]) -> bool:
        """Say whether a token is an id that stands elsewhere."""
        is_token = _plain(string.name).endswith("token")
        return is_token and (string.text in ids or string.text in self._shown)

    def _named(self, string: String) -> list[Span]:
        text = string.text
        if not text or _MARK.fullmatch(text):
            return []
        start = 0
        if _plain(string.name).endswith("authorization"):
            scheme, _, rest = text.partition(" ")
            start = len(scheme) + 1 if rest else 0
        value = text[start:]
        if _MARK.fullmatch(value):
            return []
        if _SEALED.search(string.owner.text("type")):
            self.remember(value, SHORTEST_SEALED)
        else:
            self.remember_named(value)
        return [Span(start, len(text), self.mark(value))]

    def _unnamed(self, string: String, depth: int) -> list[Span]:
        text = string.text
        own = string.is_name or _OWN.fullmatch(string.name) is not None
        spans = self.in_text(text, own=own)
        if depth < NESTED and text.lstrip()[:1] in ("{", "["):
            data = text.encode("utf-8", "surrogatepass")
            inner, _ = JsonStrings().read(data, 0, final=True)
            for found, each in zip(inner, self.in_strings(inner, depth + 1), strict=True):
                for span in each:
                    start, end = found.place(span.start), found.place(span.end)
                    chars = len(data[:start].decode("utf-8", "surrogatepass"))
                    size = len(data[start:end].decode("utf-8", "surrogatepass"))
                    spans.append(Span(chars, chars + size, span.mark))
            spans = apart(spans)
        return spans


def _two_words(text: str) -> int:
    """Return where the last but one word begins: only key blocks and known values have more."""
    for _ in range(2):
        text = text.rstrip()
        text = text[: len(text) - len(text.rsplit(None, 1)[-1])] if text else text
    return len(text)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        made = re.compile(pattern)
    except re.error as error:
        raise BadPattern(f"`{pattern}` is not a regular expression: {error}") from None
    if made.search("") or any(not found[0] for found in made.finditer("a-1 ")):
        raise BadPattern(f"`{pattern}` matches the empty string")
    return made


def _spellings(value: str) -> tuple[str, ...]:
    """Return a value as texts, JSON, URLs and base64 have it, the longest first."""
    raw = value.encode("utf-8", "surrogatepass")
    out = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    out |= {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    for before in range(3):
        # The letters that no neighbour has a part in.
        size = len(raw) + before
        coded = base64.b64encode(bytes(before) + raw).decode()
        inner = coded[(0, 2, 3)[before] : size * 8 // 6]
        if before == 0 and size % 3:
            out |= {coded, coded.rstrip("=")}
        if len(inner) >= SHORTEST:
            out |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    return tuple(sorted(out, key=len, reverse=True))


def _begin_of(spelled: str, tail: str) -> int:
    """Return where the end of a text begins that is the begin of a value."""
    start = tail.find(spelled[0], max(0, len(tail) - len(spelled) + 1))
    while start >= 0:
        if spelled.startswith(tail[start:]):
            return start
        start = tail.find(spelled[0], start + 1)
    return len(tail)
