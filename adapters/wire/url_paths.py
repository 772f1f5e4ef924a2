"""Paths and header values made of names that somebody else chose.

Ids, tokens and names come out of requests and out of what backends answer. A path is made of them
here and nowhere else: each name is one segment, quoted, and a name that a server could read as more
than one segment, or as a step upwards, fits in none.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f/\\\\\ud800-\udfff]")
"""What no segment has: control characters, both slashes, and what UTF-8 cannot write."""

_DOTS = frozenset({"", ".", ".."})


_UNFIT_IN_HEADER = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""What no header value has (RFC 9110, section 5.5): control characters but the tab."""


def is_segment(name: str) -> bool:
    """Tell whether a name can be one segment of a path, however often a server decodes it."""
    # Some servers, and proxies before them, decode a path twice. A name that still changes after
    # that is not an honest one.
    for _ in range(3):
        if name in _DOTS or _UNFIT.search(name):
            return False
        if "%" not in name:
            return True
        further = unquote_to_bytes(name).decode("utf-8", "replace")
        if further == name:
            return True
        name = further
    return False


def path_of(base: str, *names: str) -> str:
    """Return the path of `names` below `base`, each of them one segment.

    Everything but letters, digits and `-._~` is quoted. Who sends the path looks at each segment
    again: a name that fits in none never leaves.
    """
    return "/".join((base, *(quote(name, safe="", errors="surrogatepass") for name in names)))


def segments_of(path: str) -> tuple[str, ...] | None:
    """Return the decoded segments of a path that is written as on the wire; None for one that has
    a bad segment or a query, or does not begin with a slash."""
    first, *parts = path.split("/")
    if first or not parts or "?" in path or "#" in path:
        return None
    segments = []
    for part in parts:
        try:
            name = unquote_to_bytes(part.encode("utf-8", "surrogateescape")).decode()
        except UnicodeError:
            return None
        if not is_segment(name):
            return None
        segments.append(name)
    return tuple(segments)


def rebuilt(path: str) -> str | None:
    """Return a path that a backend named, made anew of its segments; None where `segments_of` is
    None."""
    segments = segments_of(path)
    return None if segments is None else path_of("", *segments)


def is_header_value(text: str) -> bool:
    """Tell whether a header can carry this text as it is."""
    return _UNFIT_IN_HEADER.search(text) is None


def to_header_value(text: str) -> str:
    """Return what a header shows of this text: what it cannot carry is percent-encoded."""
    return _UNFIT_IN_HEADER.sub(lambda found: quote(found[0], errors="surrogatepass"), text)
