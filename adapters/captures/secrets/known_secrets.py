"""Values that are known to be secret, found again however they are spelled."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from ahocorasick_rs import AhoCorasick, Implementation, MatchKind

from adapters.captures.secrets.secret_patterns import SecretSpan

SHORTEST_KNOWN = 8
"""Characters of a value that is looked for where it has no name: a shorter one is everywhere."""

SHORTEST_SEALED = 4
"""The same of an answer to a sealed request."""

_PERCENT = re.compile("%[0-9A-F]{2}")
_DELIMITER = re.compile(r"[\s\"'<>`]")
_URL_SAFE = str.maketrans("+/", "-_")


class KnownSecrets:
    """The values that one recorder knows: at most `most`, with 256 KiB of characters together. When
    there are more, the oldest part goes.

    What finds them is made of parts: values that are new make a small one, which becomes one with
    those that are not larger. So each value is built in a few times, however many come.
    """

    def __init__(self, most: int = 1_000) -> None:
        self._most = most
        self._sizes: dict[str, int] = {}
        # The oldest and largest first.
        self._parts: list[SpelledValues] = []
        self.longest_with_delimiters = 0
        # Those that came since something was looked for.
        self._fresh: dict[str, None] = {}

    def __contains__(self, value: str) -> bool:
        return value in self._sizes or value in self._fresh

    def add(self, value: str) -> None:
        """Look for a value from now on."""
        if value not in self._sizes:
            self._fresh[value] = None
            if _DELIMITER.search(value):
                longest = max(self.longest_with_delimiters, len(json.dumps(value)))
                self.longest_with_delimiters = longest

    def find(self, text: str) -> list[SecretSpan]:
        """Return where the values stand in a text."""
        if self._fresh:
            self._take()
        return [span for part in self._parts for span in part.find(text)]

    def _take(self) -> None:
        values = [*self._fresh][-self._most :]
        self._fresh.clear()
        self._sizes.update((value, len(value)) for value in values)
        while self._parts and len(self._parts[-1].values) <= len(values):
            values = [*self._parts.pop().values, *values]
        self._parts.append(SpelledValues(values))
        while len(self._parts) > 1 and self._is_much():
            for old in self._parts.pop(0).values:
                del self._sizes[old]

    def _is_much(self) -> bool:
        return len(self._sizes) > self._most or sum(self._sizes.values()) > 256 * 1024


class SpelledValues:
    """Some values in all their spellings: as they are, and as JSON, URLs and base64 have them. Of
    those that begin in one place the longest is found."""

    def __init__(self, values: Iterable[str]) -> None:
        self.values = tuple(values)
        owners = {spelled: value for value in self.values for spelled in _spellings(value)}
        self._owners = list(owners.values())
        # What it would take by itself for few values takes the square of one that repeats itself.
        self._automaton = AhoCorasick(
            owners,
            matchkind=MatchKind.LeftmostLongest,
            implementation=Implementation.ContiguousNFA,
        )

    def find(self, text: str) -> list[SecretSpan]:
        """Return where they stand in a text."""
        try:
            found = self._automaton.find_matches_as_indexes(text)
        except UnicodeEncodeError:
            # What is not UTF-8: as many characters, and none of a value.
            text = text.encode("utf-8", "replace").decode()
            found = self._automaton.find_matches_as_indexes(text)
        return [SecretSpan(start, end, self._owners[which]) for which, start, end in found]

    def replaced(self, text: str, mark: str) -> str:
        """Return a text with a mark in the place of each."""
        out: list[str] = []
        at = 0
        for span in self.find(text):
            out += text[at : span.start], mark
            at = span.end
        return "".join([*out, text[at:]]) if out else text


def _spellings(value: str) -> set[str]:
    """Return a value as texts, JSON, URLs and base64 have it."""
    raw = value.encode("utf-8", "surrogatepass")
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    quoted = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    # Some write the digits of `%2F` in small letters.
    quoted |= {_PERCENT.sub(lambda found: found[0].lower(), one) for one in quoted}
    out = {value, *escaped, *quoted}
    for before in range(3):
        # The letters that no neighbour has a part in.
        size = len(raw) + before
        coded = base64.b64encode(bytes(before) + raw).decode()
        inner = coded[(0, 2, 3)[before] : size * 8 // 6]
        if before == 0 and size % 3:
            out |= {coded, coded.rstrip("=")}
        if len(inner) >= SHORTEST_KNOWN:
            out |= {inner, inner.translate(_URL_SAFE)}
    return out
