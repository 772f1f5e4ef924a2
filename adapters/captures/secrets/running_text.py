"""A text that comes in pieces: a secret may be cut by their ends."""

from __future__ import annotations

import re
from collections import deque

from adapters.captures.secrets.finder import SecretFinder
from adapters.captures.secrets.secret_patterns import KEY_BLOCK_MOST, SecretSpan

WORD_MOST = 4 * 1024
"""Characters of a word that is waited for: a longer one is looked at in parts."""


_DELIMITER = re.compile(r"[\s\"'<>`]")
"""A character that is in no secret, but in a private key or a value that is known."""

_BEGIN, _END = "-----BEGIN", re.compile(r"-----END [A-Z0-9 ]{0,60}-----")

_MORE = re.compile(r"[A-Za-z0-9._~+/=-]*")
"""What goes on with a secret that was cut."""


class RunningText:
    """Decides what of a text is secret as it comes: word by word, each one looked at once.

    Places count the characters of the whole text. `decided` is up to where it is known what is
    secret; `spans` are the secrets of it that are not dropped, in their order.
    """

    def __init__(self, finder: SecretFinder) -> None:
        self.decided = 0
        self.spans: deque[SecretSpan] = deque()
        self._finder = finder
        # What is not decided.
        self._rest = ""
        # The end of what is decided is that of a secret which may go on.
        self._inside = False

    def add(self, text: str) -> None:
        """Take more of it."""
        self._rest += text
        if self._inside and not self._go_on():
            return
        # No other word ends by this.
        if len(self._rest) <= WORD_MOST and not _DELIMITER.search(text):
            return
        cut, whole = self._cut()
        if cut:
            self._decide(cut, whole=whole)

    def end(self) -> None:
        """Decide what is left: nothing more comes of it."""
        if self._inside and not self._go_on():
            return
        self._decide(len(self._rest), whole=True)

    def drop(self, place: int) -> None:
        """Forget the secrets that end before a place."""
        while self.spans and self.spans[0].end <= place:
            self.spans.popleft()

    def _go_on(self) -> bool:
        """Hide what goes on with a secret, and say whether something else follows."""
        found = _MORE.match(self._rest)
        assert found is not None
        self._hide(0, found.end(), "")
        self._inside = found.end() == len(self._rest)
        self._pass(found.end())
        return not self._inside

    def _cut(self) -> tuple[int, bool]:
        """Return up to where words are whole, and whether what follows is to be looked at with
        them: a secret may reach into it."""
        rest = self._rest
        # Values that have delimiters in them.
        known = self._finder.longest_with_delimiters
        if len(rest) < 2 * known:
            return 0, False
        # From its end: that is near.
        found = _DELIMITER.search(rest[: len(rest) - known][::-1])
        if found is None:
            long = len(rest) > WORD_MOST + 2 * known
            # The end of such a part is looked at again with the next one.
            return (len(rest) - 1024, True) if long else (0, False)
        cut = len(rest) - known - found.start()
        before = rest[:cut].rstrip(" \t")
        if before[-6:].lower() == "bearer":
            cut = len(before) - 6
        begin = rest.rfind(_BEGIN, 0, cut)
        if begin >= 0 and len(rest) - begin < KEY_BLOCK_MOST:
            end = _END.search(rest, begin)
            if end is None or end.end() > cut:
                cut = begin
        return cut, known > 0

    def _decide(self, cut: int, *, whole: bool) -> None:
        rest = self._rest
        end = 0
        for span in self._finder.find(rest if whole else rest[:cut]):
            if span.start >= cut:
                break
            end = span.end
            self._hide(span.start, end, span)
        self._inside = cut < end == len(rest)
        self._pass(max(cut, end))

    def _hide(self, start: int, end: int, span: SecretSpan | str) -> None:
        if start < end:
            value, in_url = ("", False) if isinstance(span, str) else (span.value, span.in_url)
            self.spans.append(SecretSpan(self.decided + start, self.decided + end, value, in_url))

    def _pass(self, count: int) -> None:
        self.decided += count
        self._rest = self._rest[count:]
