"""What the routes of the faces and of the control API want to be asked with, and which are open to
everybody; for tests that walk all routes of an application."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from adapters.contract.faces import Example, Forward, PublicAccess, Route, Submit
from adapters.registry import faces

__all__ = [
    "ADMINISTERS",
    "ADMINS_ONLY",
    "ANY",
    "ASKS",
    "CALLBACKS",
    "NAMES",
    "OPEN",
    "Ask",
    "below",
    "filled",
    "without_ids",
]


@dataclass(frozen=True)
class Ask:
    """What a route wants to be asked with; `{session}` and `{request}` stand for ids."""

    json: Any = None
    query: Mapping[str, str] = field(default_factory=dict)


ANY = Ask({})


def _routes() -> Iterator[Route]:
    for face in faces().values():
        yield from face.routes


def _ask(example: Example) -> Ask:
    return Ask(example.json, example.query)


def _examples() -> dict[tuple[str, str], Ask]:
    """Return what the examples of all faces ask, by method and path. Two that have the same path
    are asked with the members of both, and each takes its own."""
    found: dict[tuple[str, str], Ask] = {}
    for route in _routes():
        for path in (route.path,) if route.path else ("", "/"):
            if route.example is not None:
                ask, known = _ask(route.example), found.get((route.method, path), ANY)
                both = {**known.json, **ask.json} if isinstance(ask.json, dict) else ask.json
                found[route.method, path] = Ask(both, {**known.query, **ask.query})
    return found


OPEN = {
    "": "is a base URL, which says what it is",
    "/": "says what the server is, or is a base URL",
    "/ui": "leads to the page",
    "/ui/": "is the page, the same for everybody",
    "/ui/{file}": "is a file of the page, the same for everybody",
    "/healthz": "says that the process lives",
    "/readyz": "says that it takes work",
    "/api/v1/openapi.json": "is the same for everybody",
    **{
        route.path: route.needs.why
        for route in _routes()
        if isinstance(route.needs, PublicAccess) and route.needs.of_a_route
    },
}
"""The paths that need no key, and why."""

ASKS: dict[tuple[str, str], Ask] = {
    ("POST", "/api/v1/captures/diff"): Ask({"a": "", "b": ""}),
    ("POST", "/api/v1/sessions/{session}/interactions/{request}"): Ask({"decision": "deny"}),
    ("POST", "/api/v1/sessions/{session}/move"): Ask({"to": "other", "dry_run": True}),
    ("POST", "/api/v1/sessions/{session}/rollback"): Ask({"dry_run": True}),
    **_examples(),
}
"""Routes below the base URL of their face that want more than `{}`: each says so by an example."""

ADMINS_ONLY = frozenset(
    {
        ("GET", "/api/v1/sessions/{session}/archive"),
        ("GET", "/api/v1/sessions/{session}/frames"),
        ("GET", "/api/v1/sessions/{session}/capture"),
        ("POST", "/api/v1/sessions/{session}/move"),
        ("POST", "/api/v1/sessions/{session}/rollback"),
    }
)
"""Routes of a session that want a key of an administrator."""

ADMINISTERS = ADMINS_ONLY | {
    ("GET", "/api/v1/sessions/{session}"),
    ("GET", "/api/v1/sessions/{session}/events"),
    ("GET", "/api/v1/sessions/{session}/as/{dialect}"),
    ("POST", "/api/v1/sessions/{session}/settle"),
}
"""Routes of a session that a key of an administrator may use, whosever it is: it has no others."""

CALLBACKS = frozenset(
    {
        *(route.path for route in _routes() if isinstance(route.does, Forward)),
        "/from/{backend}",
    }
)
"""Below the prefix: what is open because its token is the credential, or its signature."""


def posted(dialect: str) -> str:
    """Return the first path of a face that takes a message or makes a session."""
    return next(route.path for route in faces()[dialect].routes if isinstance(route.does, Submit))


NAMES: Mapping[str, str] = {
    "session": "dgs_0",
    "request": "r-1",
    "agent": "engine",
    "file": "app.js",
    "dialect": "eve",
}
"""What stands for the names in a path where there is nothing better; `{route}` has no such."""

OTHER = "x-1"
"""What stands for all other names in a path."""


def below(path: str) -> str:
    """Return a route's path below the base URL of its face."""
    return re.sub(r"^/as/[^/]+/to/{route}", "", path)


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """Return a value with the names in its texts put in; a name that is not known is `OTHER`."""
    if isinstance(value, str):
        return re.sub(r"{(\w+)}", lambda found: names.get(found[1], OTHER), value)
    if isinstance(value, dict):
        return {name: filled(member, names) for name, member in value.items()}
    if isinstance(value, list):
        return [filled(member, names) for member in value]
    return value


def without_ids(text: str) -> str:
    """Return a text less what differs from answer to answer: ids, times and tokens."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", text)
    text = re.sub(r"(dgs|herm|evt|sesn|req)_[0-9a-zA-Z]+", "ID", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
