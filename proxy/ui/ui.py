"""Serves the files of the page. They are the same for everybody, and open; what they ask is not.

Nothing of the page comes from elsewhere, and nothing is run that is not in one of its files.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from aiohttp import ETag, web

from adapters import registry
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.control.api import guarded
from proxy.http.lazy_routes import LazyRoutes

UI = "/ui/"

SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers of pages that a browser shows."""

_MEDIA = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """A file of the page, plain and as gzip, its media type and the tag of its bytes."""

    body: bytes
    packed: bytes
    media: str
    tag: str


@functools.cache
def files() -> dict[str, PageFile]:
    """Return the files of the page by their paths below `/ui/`."""
    found = dict(_below(resources.files(__package__) / "static", ""))
    found[""] = found.pop("index.html")
    for name, dialect in DIALECTS.items():
        file = resources.files(registry.__package__) / dialect.folder / "page.js"
        if file.is_file():
            found[f"dialects/{name}.js"] = _read(file)
    return found


def _below(folder: Traversable, path: str) -> Iterator[tuple[str, PageFile]]:
    for file in folder.iterdir():
        if file.is_dir():
            yield from _below(file, f"{path}{file.name}/")
        elif _suffix(file) in _MEDIA:
            yield f"{path}{file.name}", _read(file)


def _suffix(file: Traversable) -> str:
    return file.name[file.name.rfind(".") :]


def _read(file: Traversable) -> PageFile:
    body = file.read_bytes()
    tag = hashlib.sha256(body).hexdigest()[:32]
    return PageFile(body, gzip.compress(body, mtime=0), _MEDIA[_suffix(file)], tag)


async def _file(request: web.Request) -> web.StreamResponse:
    path = request.match_info.get("file", "")
    found = files().get(path)
    if found is None:
        text = f"The page has no file `{path[:80]}`; it is at `{UI}`."
        raise DragomanError(text, code=ErrorCode.NOT_FOUND)
    packed = "gzip" in request.headers.get("Accept-Encoding", "")
    response = web.Response(
        body=found.packed if packed else found.body,
        content_type=found.media,
        charset="utf-8",
        headers={**SECURITY, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"},
    )
    if packed:
        response.headers["Content-Encoding"] = "gzip"
    # Weak: it is of the file, whichever way that is sent.
    response.etag = ETag(found.tag, is_weak=True)
    if any(tag.value in {found.tag, "*"} for tag in request.if_none_match or ()):
        response.set_status(304)
        response.body = None
        response.headers.pop("Content-Encoding", None)
    return response


async def _to_page(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(UI)


def add_routes(app: web.Application) -> None:
    """Add the page, whose files are read and compressed when it is first asked for."""

    def add(router: web.UrlDispatcher) -> None:
        router.add_get("/ui", guarded(_to_page))
        router.add_get(UI, guarded(_file))
        router.add_get(f"{UI}{{file:.+}}", guarded(_file))

    app.router.register_resource(LazyRoutes("/ui", files, add))
