"""Requests that go astray: what somebody meant who asked for a path that is not there.

A base URL is easily copied with too much or too little: with a slash at its end, with the first
part of a path, without it. The answer says what to write.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from adapters.contract.faces.acts import Route
from adapters.contract.faces.inputs import RouteContext

SHOWN = 200
"""Characters of a path that an answer repeats."""


class KnownPath(NamedTuple):
    """What may be asked: a method, and a path with names in braces; none at the base URL itself."""

    method: str
    path: str


def known(routes: Sequence[Route]) -> list[KnownPath]:
    """Return what may be asked at a face, without the routes that take everything."""
    return [KnownPath(route.method, route.path) for route in routes if route.method != "*"]


def at_base(asked: Sequence[KnownPath]) -> list[str]:
    """Return the methods that the base URL itself takes."""
    return sorted({one.method for one in asked if not one.path})


def fitting(asked: Sequence[KnownPath], path: str) -> list[str]:
    """Return the methods that a path takes, none where it is not there."""
    return sorted({one.method for one in asked if _fits(one.path, path)})


def _fits(known_path: str, path: str) -> bool:
    ours, theirs = known_path.split("/"), path.split("/")
    return len(ours) == len(theirs) and all(
        (bool(asked) if part.startswith("{") else part == asked)
        for part, asked in zip(ours, theirs, strict=True)
    )


def meant(asked: Sequence[KnownPath], path: str) -> str | None:
    """Return the path that is there and was meant by one that is not, if that can be told."""
    if len(path) > SHOWN:
        return None
    return next((one for one in _variants(asked, path) if fitting(asked, one)), None)


def _variants(asked: Sequence[KnownPath], path: str) -> Iterator[str]:
    """Yield a path without superfluous slashes, then with what is missing at its beginning, then
    without what is too much there, then the one that is like it."""
    clean = re.sub("/+", "/", path).rstrip("/")
    yield clean
    begin = begin_of(asked)
    parts = begin.split("/")
    for length in range(len(parts), 1, -1):
        start = "/".join(parts[:length])
        yield start + clean
        if clean.startswith(f"{start}/"):
            yield begin + clean.removeprefix(start)
    for at, letter in enumerate(clean):
        if letter == "/" and at:
            yield clean[at:]
    # So alike are `/v1/session` and `/v1/sessions`.
    yield from difflib.get_close_matches(clean, {one.path for one in asked}, 1, 0.9)


def begin_of(asked: Sequence[KnownPath]) -> str:
    """Return what all paths begin with, such as `/eve/v1`."""
    common: list[str] = []
    for parts in zip(*(one.path.split("/") for one in asked if one.path), strict=False):
        if len(set(parts)) > 1 or parts[0].startswith("{"):
            break
        common.append(parts[0])
    return "/".join(common)


def hint(
    asked: Sequence[KnownPath],
    method: str,
    path: str,
    place: RouteContext,
    *,
    below: str = "the base URL",
) -> str:
    """Return what to write in the place of a path that a face lacks: which other address serves it,
    where it is another protocol's, else as `way_out`."""
    elsewhere = None
    if path.strip("/") and len(path) <= SHOWN and not fitting(asked, path):
        elsewhere = place.elsewhere(path, known=meant(asked, path) is not None)
    return elsewhere or way_out(asked, method, path, below=below)


def way_out(asked: Sequence[KnownPath], method: str, path: str, *, below: str = "") -> str:
    """Return a sentence about what to write in the place of a path that is not there, or with
    another method. `below` is what the paths stand below."""
    found = path if fitting(asked, path) else meant(asked, path)
    names = ", ".join(f"`{name}`" for name in _shortest(asked))
    if found == "" or (found is None and not names):
        return f"Send {' or '.join(at_base(asked))} to the base URL itself."
    if found is not None:
        where = f" below {below}" if below else ""
        return f"Write {_with(method, fitting(asked, found), found)}{where}."
    where = f"Below {below} there" if below else "There"
    return f"{where} are {names} and what is below these."


def _with(method: str, methods: Sequence[str], path: str) -> str:
    if method in methods or (method == "HEAD" and "GET" in methods):
        methods = [method]
    return " or ".join(f"`{one} {path}`" for one in methods)


def _shortest(asked: Sequence[KnownPath]) -> list[str]:
    """Return the paths without names in them that stand below no other one."""
    found: list[str] = []
    for path in sorted({one.path for one in asked if one.path and "{" not in one.path}):
        if not any(path.startswith(f"{other}/") for other in found):
            found.append(path)
    # An answer names so many.
    return found[:8]
