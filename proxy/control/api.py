"""What all routes of the control API have in common: models, errors, keys, bodies, streams.

Answers carry `version`; errors are `{"version", "error": {"code", "message", "details"}}`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from adapters.contract.faces import Action
from adapters.model.events import Entry
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from adapters.wire.framing.sse import format_sse
from adapters.wire.jsonvalue import JsonError, format_json, parse_json
from proxy.base.errors import SessionElsewhere, SessionExpired, SessionNotFound
from proxy.base.rows import SessionRow
from proxy.base.turns import RoundRobin
from proxy.config.complaints import member
from proxy.entry.entry import admitted, tell_quote
from proxy.entry.keys import SESSIONS
from proxy.fanout.hub import entry_of
from proxy.fanout.streams import limit_unsent, write
from proxy.http.auth import (
    Principal,
    administers,
    authenticate,
    authorize,
    authorize_action,
    authorize_admin,
)
from proxy.journal.base import Journal
from proxy.session import Session

_log = logging.getLogger(__name__)

VERSION = 1
"""The version of this API's JSON."""

PAGE = 100
"""What a page has unless asked otherwise: sessions, or events."""

MOST = 10 * PAGE
"""What the longest page has."""

TURNS = web.AppKey("turns", RoundRobin)
"""The turns of those who read logs."""

PACKING = web.AppKey("packing", asyncio.Semaphore)
"""What bounds the archives that are made at a time."""

READING = web.AppKey("reading", asyncio.Semaphore)
"""What bounds the files that are read at a time."""

STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.REQUEST_TIMEOUT: 408,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED_MEDIA: 415,
    ErrorCode.NOT_SUPPORTED: 409,
    ErrorCode.BUSY: 409,
    ErrorCode.PAUSED: 409,
    ErrorCode.NOT_ACTIVE: 409,
    ErrorCode.STALE_TOKEN: 409,
    ErrorCode.ALREADY_ANSWERED: 409,
    ErrorCode.KEY_REUSED: 409,
    ErrorCode.UNKNOWN_INTERACTION: 404,
    ErrorCode.CURSOR_EXPIRED: 410,
    ErrorCode.BACKEND_PROTOCOL: 502,
    ErrorCode.BACKEND_UNAVAILABLE: 502,
    ErrorCode.BACKEND_TIMEOUT: 504,
    ErrorCode.BACKEND_REFUSED: 502,
    ErrorCode.BACKEND_NOT_READY: 409,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.JOURNAL_UNAVAILABLE: 503,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.STOPPING: 503,
    ErrorCode.CONFIG: 500,
    ErrorCode.RECORDING: 400,
    ErrorCode.INTERNAL: 500,
}
"""Every code's HTTP status here."""


class ApiModel(BaseModel):
    """A JSON body of this API; unknown members are refused."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class Failure(ApiModel):
    """What went wrong: `code` is for programs, `message` for people."""

    code: ErrorCode
    message: str
    details: dict[str, Any]


class ErrorOut(ApiModel):
    """An error."""

    version: int = VERSION
    error: Failure


def error_response(error: DragomanError, *, whole: bool = False) -> web.Response:
    """Return an error in this API's form; `whole` for who may read the log."""
    response = json_response(failure_of(error, whole=whole), STATUS[error.code])
    if "retry_after" in error.details:
        response.headers["Retry-After"] = str(error.details["retry_after"])
    return response


def failure_of(error: DragomanError, *, whole: bool) -> ErrorOut:
    message = error.whole if whole else error.message
    failure = Failure(code=error.code, message=message, details=error.details)
    return ErrorOut(error=failure)


def json_response(value: BaseModel | dict[str, Any], status: int = 200) -> web.Response:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    body = format_json(value)
    return web.Response(body=body, status=status, content_type="application/json")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


B = TypeVar("B", bound=ApiModel)


def guarded(handler: Handler) -> Handler:
    """Answer errors in this API's form; what nobody's request caused is logged, answered 500."""

    @functools.wraps(handler)
    async def run(request: web.Request) -> web.StreamResponse:
        try:
            return await admitted(request, handler)
        except DragomanError as error:
            tell_quote(error)
            return error_response(error, whole=error.quote is not None and runs_this(request))
        except (asyncio.CancelledError, ConnectionError, SessionElsewhere, web.HTTPException):
            raise
        except Exception:  # noqa: BLE001 - the root of a request
            error_id = request.app[SESSIONS].ids.uuid()
            _log.exception("control: request failed, error id `%s`", error_id)
            text = f"This should not have happened; the log has more, under `{error_id}`."
            return error_response(DragomanError(text, code=ErrorCode.INTERNAL))

    return run


def principal_of(request: web.Request) -> Principal:
    return authenticate(request.headers, request.app[SESSIONS].keys)


def reads(handler: Handler) -> Handler:
    """Count the reader of a handler's answer, which may last for as long as its reader likes."""

    @functools.wraps(handler)
    async def run(request: web.Request) -> web.StreamResponse:
        with request.app[SESSIONS].quotas.held(principal_of(request).name, "readers"):
            return await handler(request)

    return run


async def kept_row(journal: Journal, name: str) -> SessionRow:
    """Return the row of a session that is there, by its id or another name.

    Raises:
        SessionNotFound: there is none.
        SessionExpired: it was kept no longer.
    """
    row = await journal.session(name)
    if row.state == "deleted":
        raise SessionNotFound(f"There is no session `{name[:80]}`.")
    if row.state == "expired":
        raise SessionExpired(row)
    return row


async def session_of(request: web.Request, action: Action) -> tuple[Principal, Session]:
    principal = principal_of(request)
    authorize_action(principal, action, request.app[SESSIONS].settings)
    name, owner = request.match_info["session"], owner_of(request, principal)
    try:
        session = await request.app[SESSIONS].get(name, owner=owner, route=None)
        authorize(
            principal, session.row.owner, action, session.row.route, request.app[SESSIONS].settings
        )
    except SessionExpired as error:
        authorize_row(request, principal, error.row, action)
        raise
    except DragomanError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        # In the same words, whether it does not exist or is somebody else's.
        raise SessionNotFound(f"There is no session `{name[:80]}`.") from None
    return principal, session


def runs_this(request: web.Request) -> bool:
    """Say whether who asks may read what only who runs this may: an administrator, or everybody of
    this machine while there are no keys."""
    try:
        authorize_admin(principal_of(request), request.app[SESSIONS].settings)
    except DragomanError:
        return False
    return True


def owner_of(request: web.Request, principal: Principal) -> str | None:
    """Return whose sessions there are for who asks; None stands for everybody's."""
    return None if administers(principal, request.app[SESSIONS].settings) else principal.name


def authorize_row(
    request: web.Request, principal: Principal, row: SessionRow, action: Action
) -> None:
    try:
        authorize(principal, row.owner, action, row.route, request.app[SESSIONS].settings)
    except DragomanError:
        raise SessionNotFound(f"There is no session `{row.id[:80]}`.") from None


def administrator(request: web.Request) -> Principal:
    principal = principal_of(request)
    authorize_admin(principal, request.app[SESSIONS].settings)
    return principal


def integer(request: web.Request, name: str, default: int | None) -> int | None:
    text = request.query.get(name)
    if text is None:
        return default
    number = whole(text)
    if number is None:
        raise invalid(f"`{name}` is a whole number, not `{text[:40]}`.")
    return number


def limit_of(request: web.Request) -> int:
    """Return how much a page is to have."""
    limit = integer(request, "limit", PAGE)
    if limit is None or not 1 <= limit <= MOST:
        raise invalid(f"`limit` is from 1 to {MOST}, not {limit}.")
    return limit


def whole(text: str) -> int | None:
    # More digits do not fit into the journal's 64 bits.
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    return None


def invalid(message: str) -> ClientProtocolError:
    return ClientProtocolError(message)


def check_running(request: web.Request) -> None:
    if request.app[SESSIONS].stopping:
        raise DragomanError("The server is stopping; try again.", code=ErrorCode.STOPPING)


def body_of(model: type[B], body: bytes) -> B:
    """Read a body. Nothing of it is quoted: it may hold a secret."""
    try:
        return model.model_validate(parse_json(body or b"{}"))
    except JsonError as error:
        raise invalid(f"The body is not JSON: {error}.") from None
    except ValidationError as error:
        place, why = member(error.errors(include_url=False)[0], model)
    what = f"`{'.'.join(map(str, place))[:80]}`" if place else "The body"
    raise invalid(f"{what}: {why}" + ("" if why.endswith("?") else "."))


class LineStream:
    """The body of an event stream: NDJSON or SSE, prepared when the first bytes are known."""

    def __init__(self, request: web.Request, *, sse: bool) -> None:
        self.sse = sse
        self._request = request
        self._timeout = request.app[SESSIONS].settings.server.write_timeout_seconds
        headers = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
        self._whole = runs_this(request)
        self.response = web.StreamResponse(headers=headers)
        self.response.content_type = "text/event-stream" if self.sse else "application/x-ndjson"

    async def prepare(self) -> None:
        """Send the head, if it is not sent: from here on there is no other status."""
        if not self.response.prepared:
            if self._request.transport is not None:
                limit_unsent(self._request.transport)
            await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Write, or give up a reader that has stalled.

        Raises:
            TimeoutError: the reader took nothing for too long.
        """
        await self.prepare()
        await write(self.response, data, self._timeout)

    def line(self, entry: Entry) -> bytes:
        """Return an entry of the log."""
        value = (entry if self._whole else entry.without_quote()).encode()
        if self.sse:
            return format_sse(value, event=entry.event.TYPE, id=str(entry.seq))
        return value + b"\n"

    def heartbeat(self) -> bytes:
        """Return what readers skip."""
        return b":\n\n" if self.sse else b"\n"

    def failure(self, error: DragomanError) -> bytes:
        """Return the last line of a body that breaks off."""
        tell_quote(error)
        value = format_json(failure_of(error, whole=self._whole).model_dump(mode="json"))
        return format_sse(value, event="error") if self.sse else value + b"\n"


async def stored_entries(
    journal: Journal, session: Session, after: int
) -> AsyncGenerator[list[Entry]]:
    """Yield the stored entries after a seq, a few at a time."""
    # Little is read at once: the reader may take nothing for a long time.
    async for chunk in journal.scan(session.row.key, after=after, size=128 * 1024):
        some: list[Entry] = []
        size = 0
        for line in filter(None, chunk.body.split(b"\n")):
            entry = entry_of(line, session.id)
            if entry.seq > after:
                some.append(entry)
                size += len(line)
            if len(some) >= 64 or size >= 32 * 1024:
                yield some
                some, size = [], 0
        if some:
            yield some


def check_there(request: web.Request) -> None:
    """Check that somebody is there to be answered.

    Raises:
        ConnectionError: the connection is gone.
    """
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError


def yes(request: web.Request, name: str, *, default: bool) -> bool:
    match request.query.get(name):
        case None:
            return default
        case "1" | "true":
            return True
        case "0" | "false":
            return False
        case other:
            raise invalid(f"`{name}` is 1 or 0, not `{other[:40]}`.")


async def streamed(
    request: web.Request, body: LineStream, work: Awaitable[None]
) -> web.StreamResponse:
    """Let `work` write a body, and end it so that its reader knows whether it is whole."""
    try:
        await work
        await body.prepare()
    except DragomanError as error:
        if not body.response.prepared:
            raise
        await body.write(body.failure(error))
    except TimeoutError:
        if request.transport is not None:
            # A clean end would look as if there were no more.
            request.transport.abort()
        return body.response
    await body.response.write_eof()
    return body.response


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """One route of this API, and what the OpenAPI document says of it.

    `answer` is None for a stream: of events, or of the lines of an archive where `archive` says
    that these are what it gives, and not what it takes. With `lines` `answer` is what each line of
    a body is. `query` has the JSON schema of each parameter. `takes` and `gives` are the media
    types of bodies that are files.
    """

    method: str
    path: str
    handler: Handler
    answer: type[BaseModel] | None
    status: int = 200
    body: type[BaseModel] | None = None
    query: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    lines: bool = False
    archive: Literal["gives", "takes"] | None = None
    takes: str | None = None
    gives: str | None = None
