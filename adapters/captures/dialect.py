"""What a dialect says of captures: which session an exchange is of, and what of a stream is new."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import parse_qs, unquote, urlsplit

from adapters.captures import CapturedExchange
from adapters.wire.jsonvalue import JsonError, parse_json


@dataclasses.dataclass(frozen=True, slots=True)
class SessionNaming:
    """Where a dialect names its sessions.

    `path` finds the id in the path of a request, as its first group. `query` and `sent` are members
    of the query and of the request's JSON that have it. `made` matches the path of a request that
    makes a session, whose answer has the id in the member `answer`.
    """

    path: re.Pattern[str] | None = None
    query: str | None = None
    sent: str | None = None
    made: re.Pattern[str] | None = None
    answer: str | None = None

    def of_request(self, target: str, body: bytes) -> str | None:
        """Return the session that a request names, or None."""
        parts = urlsplit(target)
        if self.path is not None and (found := self.path.match(parts.path)):
            return unquote(found[1])
        if self.query is not None and (given := parse_qs(parts.query).get(self.query)):
            return given[0]
        return None if self.sent is None else _member(body, self.sent)

    def of_answer(self, target: str, body: bytes) -> str | None:
        """Return the session that the answer to a request has made, or None."""
        if self.made is None or self.answer is None:
            return None
        if not self.made.match(urlsplit(target).path):
            return None
        return _member(body, self.answer)


def _member(body: bytes, name: str) -> str | None:
    try:
        value = parse_json(body)
    except JsonError:
        return None
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) and found else None


@dataclasses.dataclass(frozen=True, slots=True)
class CaptureFormat:
    """What is known of a dialect's captures.

    `naming` says which session an exchange is of, `media` which type its streams have. `new` is
    given the exchanges of one session that were answered by such a stream, in their order, and a
    list for notes. It yields, as bytes of one body, what each stream has that none before it had,
    and notes what is missing.
    """

    naming: SessionNaming
    media: str
    new: Callable[[Sequence[CapturedExchange], list[str]], Iterator[bytes]]
