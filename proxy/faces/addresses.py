"""What addresses say of themselves: the server's own, the base URLs of faces, and those that lack a
part, which say what to write.

Everybody may ask. The names of routes are told to those only who may use them.
"""

from __future__ import annotations

import contextlib
import functools
import html
import re
from collections.abc import Iterator, Sequence

from aiohttp import web
from multidict import CIMultiDict

from adapters.contract.faces import (
    Action,
    Face,
    Incoming,
    PublicAccess,
    Route,
    RouteContext,
    Static,
)
from adapters.contract.faces.misdirected import (
    SHOWN,
    KnownPath,
    at_base,
    begin_of,
    fitting,
    known,
    meant,
    way_out,
)
from adapters.model.base import Response
from adapters.registry import DIALECTS, faces
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from proxy import __version__
from proxy.control.api import guarded
from proxy.entry.entry import routes_shown, to_web
from proxy.entry.keys import SESSIONS
from proxy.faces.misdirected import of_path
from proxy.http.auth import HOW_A_KEY_IS_SENT
from proxy.ui.ui import SECURITY, UI

_KEY = f"A frontend sends its key as {HOW_A_KEY_IS_SENT}."

_OPEN = ("/healthz", "/readyz", "/metrics")
"""What there is besides faces and the control API."""


def _page(*lines: str) -> Response:
    headers = CIMultiDict(
        {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}
    )
    return Response(200, headers, "".join(f"{line}\n" for line in lines).encode())


def base_routes(
    dialect: str, face: Face, *, keys: bool, paths: Sequence[str]
) -> tuple[list[Route], list[Route]]:
    """Return the routes of a face's base URL for what the dialect does not take there: what it
    says, and the refusal of other methods."""
    tell = functools.partial(_base, dialect, face, keys)
    refuse = functools.partial(_no_method, face)
    # What else an error depends on in the dialect: as where there is nothing.
    errors = face.routes[-1].errors
    why = PublicAccess("says what the address is, as health says that it is there")
    pages = [
        Route(method="GET", path=path, head=True, needs=why, errors=errors, does=Static(tell))
        for path in paths
    ]
    return pages, [
        Route(method="*", path=path, needs=Action.READ, errors=errors, does=Static(refuse))
        for path in paths
    ]


def _base(dialect: str, face: Face, keys: bool, _: Incoming, place: RouteContext) -> Response:
    with _of_a_host():
        url = place.url.partition("?")[0].rstrip("/")
    asked = known(face.routes)
    takes, rest = at_base(asked), [one for one in asked if one.path]
    example = next((path for _, path in rest if "{" not in path), begin_of(rest))
    lines = [
        f"This is Dragoman {__version__}.",
        "",
        f"This address is a base URL for frontends of the dialect {dialect}: give them",
        "",
        f"    {url}",
        "",
        f"They ask it with {', '.join(takes)}."
        if takes
        else f"They add the rest themselves, such as `{example}`.",
    ]
    return _page(*lines, *([_KEY] if keys else []))


@contextlib.contextmanager
def _of_a_host() -> Iterator[None]:
    """Take the address from the request, and refuse one whose `Host` cannot be in an address."""
    try:
        yield
    except ValueError:
        raise ClientProtocolError("The header `Host` is not a host.") from None


def _no_method(face: Face, incoming: Incoming, place: RouteContext) -> Response:
    asked = known(face.routes)
    takes = " and ".join(sorted({"GET", *at_base(asked)}))
    text = f"The base URL itself takes {takes} only."
    if rest := [one for one in asked if one.path]:
        text += f" {way_out(rest, incoming.method, '', below='it')}"
    if elsewhere := place.elsewhere("", known=False):
        text += f" {elsewhere}"
    raise DragomanError(text, code=ErrorCode.METHOD_NOT_ALLOWED)


async def _root(request: web.Request) -> web.Response:
    """Say what the server is, and what its base URLs are like."""
    with _of_a_host():
        origin = str(request.url.origin())
    lines = [
        f"This is Dragoman {__version__}.",
        "",
        "A frontend gets as its base URL, by its dialect:",
        "",
        *(f"    {origin}/as/{dialect}/to/ROUTE" for dialect in faces()),
        "",
    ]
    if names := routes_shown(request):
        lines.append(f"ROUTE is one of: {', '.join(names)}.")
    else:
        lines.append("ROUTE is the name of a backend or route; ask the operator for it.")
    if request.app[SESSIONS].keys:
        lines.append(_KEY)
    lines.append("The control API is described in `/api/v1/openapi.json`.")
    if request.app[SESSIONS].settings.server.ui:
        lines += ["", f"A page that shows sessions is at {origin}{UI}"]
        if "text/html" in request.headers.get("Accept", ""):
            return _for_browsers(lines, f"{origin}{UI}")
    return to_web(_page(*lines))


def _for_browsers(lines: Sequence[str], page: str) -> web.Response:
    """Return the same lines with a link to the page."""
    link = f'<a href="{UI}">{html.escape(page)}</a>'
    text = html.escape("\n".join(lines)).replace(html.escape(page), link)
    body = f'<!doctype html>\n<html lang="en"><title>Dragoman</title>\n<pre>{text}\n</pre></html>\n'
    headers = {**SECURITY, "Cache-Control": "no-store"}
    return web.Response(text=body, content_type="text/html", headers=headers)


def add_routes(app: web.Application) -> None:
    """Add the server's own address."""
    app.router.add_get("/", guarded(_root))


def _with_routes(text: str, names: Sequence[str]) -> str:
    return f"{text}. Routes are: {', '.join(names)}." if names else f"{text}."


def astray_routes(dialect: str, face: Face) -> list[Route]:
    """Return the routes of the addresses of a face that have no route in them."""
    why = PublicAccess("says what to write", of_a_route=False)
    tell = Static(functools.partial(_astray, dialect))
    errors = face.routes[-1].errors
    return [
        Route(method="*", path=path, needs=why, errors=errors, does=tell)
        for path in ("", "/{tail:.*}")
    ]


def _astray(dialect: str, incoming: Incoming, place: RouteContext) -> Response:
    asked = known(faces()[dialect].routes)
    base = f"/as/{dialect}/to"
    path = re.sub("/+", "/", incoming.path[:SHOWN])
    rest = path.removeprefix(f"/as/{dialect}").rstrip("/")
    text = "`/to/` and the name of a route are missing"
    with_to = f"{rest}/".startswith("/to/")
    if with_to:
        rest, text = rest.removeprefix("/to"), "The name of a route is missing"
    below = _below(rest, asked)
    first, _, more = rest.lstrip("/").partition("/")
    if (first and not more and below is None) or fitting(asked, f"/{more}"):
        what = "A slash is too much" if with_to else "`/to` is missing"
        text = f"{what}: write `{base}{rest}`"
    else:
        text += f": write `{base}/ROUTE{below or ''}`"
    raise DragomanError(_with_routes(text, place.routes), code=ErrorCode.NOT_FOUND)


def _below(rest: str, asked: Sequence[KnownPath]) -> str | None:
    """Return the path of a face that the rest of an address is, None where it is not one."""
    if rest in ("", "/"):
        return None
    return rest if fitting(asked, rest) else meant(asked, rest)


def nothing(request: web.Request) -> DragomanError:
    """Return the error for an address that is not one of ours."""
    path = request.path[:SHOWN]
    clean = path.rstrip("/")
    if clean in _OPEN:
        code = ErrorCode.METHOD_NOT_ALLOWED if clean == path else ErrorCode.NOT_FOUND
        return DragomanError(f"Write `GET {clean}`.", code=code)
    first, second = [*path.split("/"), "", ""][1:3]
    if first == "as" and second in DIALECTS:
        return DragomanError(not_served(second), code=ErrorCode.NOT_FOUND)
    if (error := of_a_frontend(request)) is not None:
        return error
    text = f"There is nothing at `{path}`"
    if first == "as" and second:
        text = f"There is no dialect `{second[:80]}`"
    dialect = first if first in faces() else "DIALECT"
    text += f": a frontend's base URL is `/as/{dialect}/to/ROUTE`"
    if first not in faces():
        text += f", where DIALECT is one of {', '.join(faces())}"
    return DragomanError(_with_routes(text, routes_shown(request)), code=ErrorCode.NOT_FOUND)


def of_a_frontend(request: web.Request) -> DragomanError | None:
    """Return the error for an address that some protocol's clients ask for, without a base URL;
    None where it is nobody's."""
    path = request.path[:SHOWN].rstrip("/")
    text = _without_base(path)
    if text is None and path and (elsewhere := of_path(request, path)) is not None:
        text = elsewhere.rstrip(".")
    if text is None:
        return None
    return DragomanError(_with_routes(text, routes_shown(request)), code=ErrorCode.NOT_FOUND)


def _without_base(path: str) -> str | None:
    """Return what is missing before a path of a face, None for any other path."""
    for dialect, face in faces().items():
        if path.startswith(f"/{dialect}/to/"):
            return f"`/as` is missing: write `/as{path}`"
        if fitting(known(face.routes), path):
            return f"The base URL is missing: write `/as/{dialect}/to/ROUTE{path}`"
    return None


def not_served(dialect: str) -> str:
    """Return why frontends of a dialect are not served."""
    why = DIALECTS[dialect].no_frontends or f"`{dialect}` is not served yet"
    return f"{why}; served are: {', '.join(faces())}."
