"""Finds secrets in texts and in JSON: by the name that a value has, by how it looks, and by having
been seen before.

What is searched is gone through once, however it is made. What has nothing to look at twice is
known after a few searches for letters, and most have nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from adapters.captures.secrets.known_secrets import (
    SHORTEST_KNOWN,
    SHORTEST_SEALED,
    KnownSecrets,
)
from adapters.captures.secrets.secret_names import AUTHORIZATION, MEMBER, TOKEN, SecretNames, plain
from adapters.captures.secrets.secret_patterns import (
    ESCAPED,
    LOOKS,
    SecretPattern,
    SecretSpan,
    hints,
)
from adapters.wire.jsonvalue import JsonError, format_json, parse_json

_OWN = re.compile(r"type|id|event|status|role|kind|level|source|name|.*(?:_ids?|_at|Ids?|At)")
"""Members whose strings are the protocol's own: no short secret is looked for in them."""

_ID = re.compile(r"id|.*(?:_id|Id)")
"""Members whose strings are not secret."""

_SEALED = re.compile(r"(?:^|\.)(?:secret|sudo)_result$")
"""Types of objects that answer a sealed request: their `value` or `password` is the secret."""

_VARIABLE = ("name", "key", "env_var")
"""Members that name the `value` beside them: a variable or a header, as many write them."""

_MARK = re.compile(r"(?:\[|%5B)redacted(?:-[0-9a-f]{8})?(?:\]|%5D)|\[sealed\]")
"""Marks: ours, and those in the place of sealed values."""

_BETWEEN = '"\0"'
"""What stands between texts that are searched together: no secret but a loose one has it."""


_NAMED = re.compile(
    r"(?:password|passwd|passphrase|secret|token|authorization|cookie|credentials?|sealed|key)"
    r'\\*+"\s*+:\s*+\\*+["\[]'
)
"""A member with such a name, in a text without separators."""

_MEMBER = re.compile(
    r'(?<!\\)(\\{0,7}+)"([\w.\- ]{1,64}+)\1"\s*+:\s*+\1"(?=((?:[^"\\]++|(?!\1")\\.)++))',
    re.DOTALL,
)
"""A member that has a string, in JSON or in JSON that stands in a string; it may be cut off."""


class BadPattern(ValueError):
    """A configured pattern is not a regular expression, or matches nothing at all."""


class SecretFinder:
    """Finds secrets, and remembers those that are to be found again.

    Args:
        salt: what marks are made with.
        keys: names of members besides.
        patterns: regular expressions besides; each match is a secret.

    Raises:
        BadPattern: a pattern is not one, or matches the empty string.
    """

    def __init__(self, salt: bytes, keys: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        self._salt = salt
        self.names = SecretNames(keys)
        self._keys = tuple(map(plain, keys))
        self._patterns = [_compiled(pattern) for pattern in patterns]
        self._known = KnownSecrets()
        # Names of sessions and the like that stand in paths.
        self._shown: OrderedDict[str, None] = OrderedDict()
        self._marks: dict[str, str] = {}

    # What stands for a secret.

    def mark(self, value: str) -> str:
        """Return what stands for a value: the same for the same one."""
        mark = self._marks.get(value)
        if mark is None:
            data = value.encode("utf-8", "surrogatepass")
            mark = f"[redacted-{hashlib.sha256(self._salt + data).hexdigest()[:8]}]"
            # The bound is for a peer that sends a new secret with each request.
            if len(self._marks) < 4096:
                self._marks[value] = mark
        return mark

    # What is known.

    def remember(self, value: str, least: int = SHORTEST_KNOWN) -> None:
        """Look for a value from now on."""
        value = value.strip()
        if least <= len(value) <= 8 * 1024 and not _MARK.search(value):
            self._known.add(value)

    def remember_named(self, value: str) -> None:
        """The same, of a value that is known by its name only: where it may be a word or a number
        of something, it is not looked for."""
        # No word has 16 characters.
        if len(value) >= 16 or (any(map(str.isdigit, value)) and not value.isdecimal()):
            self.remember(value)

    def show(self, value: str) -> None:
        """Take a value as not secret: an eve may give the id of a session as a token."""
        if value not in self._known:
            self._shown[value] = None
            # The newest are enough.
            if len(self._shown) > 256:
                self._shown.popitem(last=False)

    def is_shown(self, value: str) -> bool:
        """Say whether a value is known not to be secret."""
        return value in self._shown

    def named(self, name: str, value: str, type_: str) -> str:
        """Return what stands for the value of a member whose name is that of a secret, and remember
        it. `type_` is that of the object that it stands in."""
        scheme, rest = "", value
        if " " in value and self.names.kind(name) & AUTHORIZATION:
            scheme, _, rest = value.partition(" ")
        if _MARK.fullmatch(rest):
            return value
        if _SEALED.search(type_):
            self.remember(rest, SHORTEST_SEALED)
        else:
            self.remember_named(rest)
        return f"{scheme} {self.mark(rest)}" if scheme else self.mark(rest)

    @property
    def longest_with_delimiters(self) -> int:
        """Return how long a known value is that has spaces or quotes in it, at most."""
        return self._known.longest_with_delimiters

    # Texts.

    def find(self, text: str) -> list[SecretSpan]:
        """Return the secrets of a text in their order, apart from each other."""
        spans = self._known.find(text)
        for look in hints(text)[0]:
            spans += look.find(text)
        if self._patterns:
            spans += self._by_patterns(text)
        return _apart(spans)

    def found_in(
        self, texts: Sequence[str], looks: Sequence[SecretPattern]
    ) -> dict[int, list[SecretSpan]]:
        """Return the secrets of texts, by the number of each that has one, where only these looks
        are known to be possible."""
        joined = _BETWEEN.join(texts)
        spans = self._known.find(joined)
        out: dict[int, list[SecretSpan]] = {}
        for look in looks:
            if not look.loose:
                spans += look.find(joined)
        which, start, end = -1, 0, -len(_BETWEEN)
        for span in _apart(spans):
            while span.start >= end + len(_BETWEEN):
                which += 1
                start = end + len(_BETWEEN)
                end = start + len(texts[which])
            moved = SecretSpan(span.start - start, span.end - start, *span[2:])
            out.setdefault(which, []).append(moved)
        loose = [look for look in looks if look.loose and look.hints[0] in joined.lower()]
        for which, text in enumerate(texts) if loose or self._patterns else ():
            more = [one for look in loose for one in look.find(text)]
            if more := more + self._by_patterns(text):
                out[which] = _apart(out.get(which, []) + more)
        return out

    def clean(self, text: str) -> str:
        """Return a text with marks in the place of its secrets."""
        return self.marked(text, self.find(text))

    def _by_patterns(self, text: str) -> list[SecretSpan]:
        return [
            SecretSpan(*found.span(), found[0])
            for pattern in self._patterns
            for found in pattern.finditer(text)
            if found[0] and not _MARK.fullmatch(found[0])
        ]

    def marked(self, text: str, spans: Iterable[SecretSpan]) -> str:
        """Return a text with marks in the place of these spans, which are in order."""
        out: list[str] = []
        at = 0
        for span in spans:
            out += text[at : span.start], self.marked_as(span)
            at = span.end
        return "".join([*out, text[at:]]) if out else text

    def marked_as(self, span: SecretSpan) -> str:
        """Return what stands in the place of a secret; nothing where its begin has the mark."""
        if not span.value:
            return ""
        mark = self.mark(span.value)
        return quote(mark) if span.in_url else mark

    # JSON.

    def clean_data(self, data: bytes) -> bytes:
        """Return JSON, or any other text, with marks in the place of its secrets: the same bytes
        where it has none, else JSON is written anew."""
        text = data.decode("utf-8", "surrogateescape")
        if self.has_nothing(text):
            return data
        try:
            value = parse_json(data)
        except JsonError:
            return self.clean_broken(text).encode("utf-8", "surrogateescape")
        cleaned = self.clean_json(value, text)
        return data if cleaned is None else format_json(cleaned)

    def clean_broken(self, text: str) -> str:
        """Return a text that may be JSON which is cut off or wrong, with marks in the place of its
        secrets: those that have a name too."""
        spans = []
        for found in _MEMBER.finditer(text) if self._has_names(text) else ():
            start, end = found.span(3)
            if self.names.kind(found[2]) and not _MARK.fullmatch(found[3]):
                self.remember_named(found[3])
                spans.append(SecretSpan(start, end, found[3]))
        spans += self.find(text)
        return self.marked(text, _apart(spans))

    def has_nothing(self, text: str) -> bool:
        """Say whether a text has no secret, which a few searches tell of most."""
        if self._patterns:
            return False
        looks, more = hints(text)
        if looks or more & ESCAPED or ((more or self._keys) and self._has_names(text)):
            return False
        return not self._known.find(text)

    def _has_names(self, text: str) -> bool:
        """Say whether a member's name may be that of a secret."""
        short = plain(text)
        if any(key in short for key in self._keys):
            return True
        return "value" in short or _NAMED.search(short) is not None

    def clean_json(self, value: Any, text: str) -> Any:
        """Return a JSON value without its secrets, changed in place, or None where it has none.
        `text` is what it was read from."""
        return _Document(self, value, text).cleaned()


class _String(NamedTuple):
    """A string of a document: the object or array that it stands in, where, by which name it goes,
    and the number of the document. `is_name` where it is the name of a member itself."""

    one: Any
    at: Any
    name: str
    of: int
    is_name: bool = False


class _Inner(NamedTuple):
    """JSON in a string of JSON: where that stands, in which document, and what it says."""

    one: Any
    at: Any
    of: int
    root: list[Any]


class _Document:
    """A JSON value in which secrets are looked for, with the JSON in its strings; what it is read
    from is `text`."""

    def __init__(self, finder: SecretFinder, value: Any, text: str) -> None:
        self._finder = finder
        looks, more = hints(text)
        self._looks = LOOKS if more & ESCAPED else looks
        self._root: list[Any] = [value]
        # Those that stand in a string; the document itself has number 0.
        self._inner: list[_Inner] = []
        self._changed: set[int] = set()
        self._named: list[tuple[_String, int]] = []
        self._others: list[_String] = []
        # The members that get another name, by their document.
        self._renamed: dict[int, list[tuple[dict[str, Any], str, str]]] = {}

    def cleaned(self) -> Any:
        """Return the value without its secrets, changed in place, or None where it has none."""
        self._collect()
        # First those with names: the others may repeat them.
        if self._named:
            self._hide_named()
        self._hide_others()
        # Those within others first: an object has its old names until then.
        for number in range(len(self._inner), -1, -1):
            for owner, old, new in self._renamed.get(number, ()):
                owner[new] = owner.pop(old)
            if number and number in self._changed:
                one, at, of, root = self._inner[number - 1]
                self._put(one, at, of, format_json(root[0]).decode())
        return self._root[0] if 0 in self._changed else None

    def _collect(self) -> None:
        """Find the strings."""
        kind_of = self._finder.names.kind
        named, others = self._named, self._others
        waiting: list[tuple[Any, str, int, int]] = [(self._root, "", 0, 0)]
        while waiting:
            one, name, of, depth = waiting.pop()
            is_object = type(one) is dict
            members: Iterable[tuple[Any, Any]] = one.items() if is_object else enumerate(one)
            for at, value in members:
                if is_object:
                    name = at
                    if len(at) >= SHORTEST_KNOWN:
                        others.append(_String(one, at, "name", of, is_name=True))
                made = type(value)
                if made is dict or made is list:
                    waiting.append((value, name, of, depth))
                elif made is not str or not value:
                    continue
                elif kind := kind_of(name) or (name == "value" and self._kind_of_value(one)):
                    named.append((_String(one, at, name, of), kind))
                elif len(value) < SHORTEST_SEALED:
                    continue
                # JSON in strings of JSON is read three levels deep.
                elif value[0] in "{[" and depth < 3 and (root := _read(value)) is not None:
                    self._inner.append(_Inner(one, at, of, root))
                    waiting.append((root, name, len(self._inner), depth + 1))
                else:
                    others.append(_String(one, at, name, of))

    def _kind_of_value(self, owner: Any) -> int:
        """Return what the `value` is of a variable or a header, or of the answer to a sealed
        request: a secret, or 0."""
        if type(owner) is not dict:
            return 0
        kind_of = self._finder.names.kind
        return MEMBER * (
            _SEALED.search(_type(owner)) is not None
            or any(type(named := owner.get(one)) is str and kind_of(named) for one in _VARIABLE)
        )

    def _hide_named(self) -> None:
        finder = self._finder
        ids = None
        for string, kind in self._named:
            one, at, name, of, _ = string
            value = one[at]
            if kind & TOKEN:
                # A token may be an id that stands elsewhere.
                ids = self._ids() if ids is None else ids
                if value in ids or finder.is_shown(value):
                    self._others.append(string)
                    continue
            self._put(one, at, of, finder.named(name, value, _type(one)))

    def _ids(self) -> set[str]:
        """Return the strings that are ids."""
        return {
            one[at]
            for one, at, name, _, is_name in self._others
            if not is_name and _ID.fullmatch(name)
        }

    def _hide_others(self) -> None:
        """Look at all other strings together: most have nothing."""
        texts = [at if is_name else one[at] for one, at, _, _, is_name in self._others]
        found = self._finder.found_in(texts, self._looks)
        for which, spans in found.items():
            one, at, name, of, is_name = self._others[which]
            if _OWN.fullmatch(name):
                # A short secret may be a word of the protocol.
                spans = [s for s in spans if s.in_url or len(s.value) >= SHORTEST_KNOWN]
            text = self._finder.marked(texts[which], spans)
            if not is_name:
                self._put(one, at, of, text)
            elif text != at:
                self._changed.add(of)
                self._renamed.setdefault(of, []).append((one, at, text))

    def _put(self, one: Any, at: str | int, of: int, text: str) -> None:
        if one[at] != text:
            one[at] = text
            self._changed.add(of)


def _read(text: str) -> list[Any] | None:
    """Return what a text says that is an object or an array in JSON, None of any other one."""
    try:
        return [parse_json(text.encode())]
    except (JsonError, UnicodeEncodeError):
        return None


def _type(owner: Any) -> str:
    found = owner.get("type") if type(owner) is dict else None
    return found if type(found) is str else ""


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        made = re.compile(pattern)
    except re.error as error:
        raise BadPattern(f"`{pattern}` is not a regular expression: {error}") from None
    if made.search("") or any(not found[0] for found in made.finditer("a-1 ")):
        raise BadPattern(f"`{pattern}` matches the empty string")
    return made


def _apart(spans: list[SecretSpan]) -> list[SecretSpan]:
    """Return spans in their order, without those that another one begins before and reaches into.
    Of two that overlap the first one grows."""
    if len(spans) < 2:
        return spans
    spans.sort(key=lambda one: (one.start, -one.end))
    out = [spans[0]]
    for span in spans[1:]:
        if span.start >= out[-1].end:
            out.append(span)
        elif span.end > out[-1].end:
            out[-1] = out[-1]._replace(end=span.end)
    return out
