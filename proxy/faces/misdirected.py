"""Which address serves a request that speaks another protocol than the address it came to.

Every route serves every dialect, so the answer is an address of this server; or what to do instead
where none serves it. How clients are known, each face declares (`Face.clients`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from adapters.contract.faces import Face, Neighbour
from adapters.contract.faces.misdirected import at_base, fitting, known
from adapters.contract.faces.neighbours import OPENAI
from adapters.registry import DIALECTS, faces
from adapters.wire.jsonvalue import JsonError, parse_json
from proxy.entry.entry import routes_shown
from proxy.entry.keys import LISTENER_ROUTE


def of_path(request: web.Request, path: str, *, own: str = "", unsure: bool = False) -> str | None:
    """Return a sentence about a path that the face of the dialect `own` lacks, None where no other
    one's clients ask so. With `unsure` it may also be a slip of a client of that face."""
    if not path:
        return _at_base(request, own)
    for dialect, face in faces().items():
        if dialect != own and _is_route(face, path, most=1 if unsure else 0):
            return _served(request, dialect, _title(dialect, face), path)
    for dialect, neighbour in _neighbours():
        if neighbour.asks(path) and (dialect == own or not unsure):
            return _advice(request, dialect, neighbour)
    return None


def _at_base(request: web.Request, own: str) -> str | None:
    """Return whose clients ask a base URL itself in this way; whose it was, only a body says."""
    found = [
        f"{_title(dialect, face)}, which `{_base(request, dialect)}` serves"
        for dialect, face in faces().items()
        if dialect != own and request.method in at_base(known(face.routes))
    ]
    return f"So asks {', or '.join(found)}{_of_the_server(request)}." if found else None


def _title(dialect: str, face: Face) -> str:
    return face.clients[0].title if face.clients else f"a client of `{dialect}`"


def _is_route(face: Face, path: str, *, most: int) -> bool:
    """Tell whether a face has a path that begins with a word of its own: names fit everything."""
    asked = [one for one in known(face.routes) if not one.path.startswith("/{")]
    return path.count("/") > most and bool(fitting(asked, path))


async def load_faces() -> None:
    """Import the faces that nobody has asked for yet, off the loop: of what is wrong for one, any
    other may know what it is."""
    if not all(DIALECTS[name].is_loaded("face") for name in faces()):
        await asyncio.to_thread(lambda: [*faces().values()])


def of_body(request: web.Request, own: str, data: bytes) -> str | None:
    """Return a sentence about a body that the face of the dialect `own` refuses, None where it
    does not show whose it is. The faces are loaded."""
    body: Any = None
    if len(data) <= 2**20:
        with contextlib.suppress(JsonError):
            body = parse_json(data)
    if not isinstance(body, dict):
        return None
    served = faces()
    mine = served[own].clients[:1]
    if any(one.body is not None and one.body(body) for one in mine):
        return None
    for dialect, face in served.items():
        for one in face.clients[:1]:
            if dialect != own and one.body is not None and one.body(body):
                posts = (route.path for route in face.routes if route.method == "POST")
                path = next((path for path in posts if "{" not in path), "")
                return _served(request, dialect, one.title, path)
    for dialect, one in _neighbours():
        if one.body is not None and one.body(body):
            return _advice(request, dialect, one)
    return None


def _neighbours() -> Iterator[tuple[str, Neighbour]]:
    """Yield what is known besides the clients of faces, with the dialect that declares it."""
    for dialect, face in faces().items():
        for one in face.clients[1:]:
            yield dialect, one
    yield "", OPENAI


def _served(request: web.Request, dialect: str, title: str, path: str) -> str:
    address = _base(request, dialect) + path
    return f"This is how {title} asks: `{address}` serves it{_of_the_server(request)}."


def _advice(request: web.Request, dialect: str, neighbour: Neighbour) -> str:
    advice = neighbour.advice.format(base=_base(request, dialect), dialects=", ".join(faces()))
    return f"This is how {neighbour.title} asks. {advice}"


def _base(request: web.Request, dialect: str) -> str:
    """Return a base URL, with the route's name if who asks has written it or may know it."""
    route = request.match_info.get("route")
    if route is None:
        own = request.app.get(LISTENER_ROUTE, "")
        route = own if own in routes_shown(request) else "ROUTE"
    return f"/as/{dialect}/to/{route}"


def _of_the_server(request: web.Request) -> str:
    return " at the server's main address" if LISTENER_ROUTE in request.app else ""
