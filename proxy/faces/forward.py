"""Passes requests on to backends that are called back: `adapters.contract.faces.Forward`."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from multidict import CIMultiDict, MultiDict

from adapters.contract.faces import Forward
from adapters.model.base import Call, Request, Response
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.url_paths import is_header_value
from proxy.base.errors import UpstreamError
from proxy.config.settings import BackendSettings
from proxy.entry.entry import read_bytes
from proxy.faces.face_request import FaceRequest, Match

_NOT_PENDING = frozenset(
    {ErrorCode.NOT_FOUND, ErrorCode.CURSOR_EXPIRED, ErrorCode.BACKEND_UNAVAILABLE}
)
"""What looking for a session says of one in which nothing can be completed."""


_CONFINED: Mapping[str, str] = {
    "Content-Security-Policy": "sandbox allow-scripts",
    "X-Content-Type-Options": "nosniff",
}
"""What an answer that is passed back says of itself: a browser shows it at our address, and where
no keys are set whatever runs as a page of our origin may do everything. In a sandbox a page has an
origin of its own, which is nobody's."""


async def pass_on(request: FaceRequest) -> web.StreamResponse:
    """Pass a request on to a backend.

    These routes are open: their token is the credential, and ours is not sent along. A token that
    we showed stands for the backend's own address; every other is the backend's to judge.
    """
    act = request.route.does
    assert isinstance(act, Forward)
    sessions, http = request.sessions, request.http
    try:
        drawn = sessions.backend_of(request.name)
    except DragomanError:
        raise act.nothing() from None
    backend, path = await _address(request, act) or (drawn, act.path(request.incoming))
    if backend.dialect != request.at.dialect or path is None:
        raise act.nothing()
    headers = CIMultiDict({k: v for k, v in http.headers.items() if k.lower() in act.headers})
    # From its body until it is written: a client that does not read an answer keeps it in memory.
    with sessions.backends.in_public(backend) as upstream:
        body = await read_bytes(http)
        sent = Request(http.method, path, MultiDict(http.query), headers, body or None)
        try:
            answer = await upstream.call(Call("callback", sent))
        except UpstreamError as error:
            # What went wrong names the backend's address, or quotes it: nothing for a stranger.
            text = "The backend gives no answer now; try again."
            raise DragomanError(text, code=error.code) from None
        response = _passed(act, answer)
        await response.prepare(http)
        await response.write_eof()
        return response


def _passed(act: Forward, answer: Response) -> web.Response:
    """Return a backend's answer as it is passed back."""
    if not 200 <= answer.status <= 599:
        # After a 101 what is before us would take all that follows for no business of its own.
        raise DragomanError(
            f"The backend answered with the status {answer.status}.",
            code=ErrorCode.BACKEND_PROTOCOL,
        )
    kept = {
        name: value
        for name, value in answer.headers.items()
        if name.lower() in act.headers and is_header_value(value)
    }
    headers = {**kept, **_CONFINED}
    return web.Response(status=answer.status, headers=headers, body=answer.body)


async def _address(request: FaceRequest, act: Forward) -> tuple[BackendSettings, str] | None:
    """Return the backend whose own address a token of ours stands for, and the path of that; None
    for a token that is not one of ours.

    A route may have several backends: the one that waits for the callback is the session's.
    """
    sessions, name = request.sessions, act.session(request.incoming)
    if name is None:
        return None
    try:
        session = await sessions.get(name, owner=None, route=None)
    except DragomanError as error:
        # Nothing is pending in one that is no longer kept, or whose backend is gone, and who asks
        # shows no key and is not told that it was ever there.
        if error.code not in _NOT_PENDING:
            raise
        return None
    if session.row.route != request.name:
        return None
    backend = sessions.settings.backend(session.leg.backend)
    seen = await request.view(Match(session))
    for asked in seen.open_interactions:
        address = session.webhook(asked.request_id)
        # Compared first: how long it takes says nothing about what waits.
        if act.stands_for(request.incoming, seen, asked.request_id) and address is not None:
            path = act.to_path(address)
            return None if backend is None or path is None else (backend, path)
    return None
