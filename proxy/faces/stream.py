"""Writes what a request at a face reads: the frames of a session, or an answer made of its log."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiohttp import web

from adapters.contract.faces import (
    FrameRange,
    History,
    ListedSession,
    ListSessions,
    LogReader,
    NewestSession,
    Pending,
    Static,
    Stream,
)
from adapters.model.base import Response
from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.errors import CursorExpired, SessionExpired, SessionNotFound
from proxy.entry.entry import read, to_web
from proxy.faces.face_request import FaceRequest, Match, RoutePlace
from proxy.faces.lookup import at_work, find
from proxy.fanout.hub import FIRST_ROWS, WRITE_BYTES, Feed, entries_by_steps
from proxy.fanout.streams import BodyEnd, StreamPlan, send_head, write, write_stream

LOOKED_SECONDS = 0.5
"""How long sessions are looked into for one page of a list, some 500 of them: those who want what
is not there, or is far back, come again with a cursor. On a busy server a count of sessions would
let them wait for seconds."""

LISTED = ("idle", "running", "paused", "ended")
"""The states of the sessions that lists show."""


async def tell(request: FaceRequest) -> web.StreamResponse:
    """Answer from what is known of the route."""
    act = request.route.does
    assert isinstance(act, Static)
    return to_web(act.answer(request.incoming, RoutePlace(request)))


# Streams.


async def follow(request: FaceRequest) -> web.StreamResponse:
    """Stream the frames of a session."""
    left, body = 3, _follow_of(request).body
    if body is not None:
        parse = body.parse
        request.said = await read(request.http, lambda data: parse(data, request.incoming))
    while True:
        left -= 1
        ready = await _ready(request)
        if isinstance(ready, web.StreamResponse):
            return ready
        # What was made for it on the way is not kept for as long as the stream lasts.
        response, session_id, feed, position, plan, first = ready
        try:
            await write_body(request, session_id, response, feed, position, plan, first=first)
        except DragomanError as error:
            # It left memory just after it was found, as when the disk refuses what it says.
            if error.code != ErrorCode.STOPPING or request.sessions.stopping or not left:
                raise
        else:
            return response


async def stream(
    request: FaceRequest, found: Match, reading: FrameRange | Response
) -> web.StreamResponse:
    """Stream what a reading says of a session that is at hand, or answer."""
    if isinstance(reading, Response):
        return to_web(reading)
    response = web.StreamResponse(headers=reading.headers)
    feed, position, first = request.feed(found), reading.position, reading.first
    plan, session_id = plan_of(request, reading), found.session.id
    await write_body(request, session_id, response, feed, position, plan, first=first)
    return response


async def write_body(
    request: FaceRequest,
    session_id: str,
    response: web.StreamResponse,
    feed: Feed,
    position: int,
    plan: StreamPlan,
    *,
    first: bytes,
    ending: BodyEnd | None = None,
) -> None:
    """Write the frames of a session, and remember whether they were read to the end; see
    `write_stream`."""
    unread, dialect, ending = request.sessions.unread, request.at.dialect, ending or BodyEnd()
    unread.begin(session_id, dialect)
    await write_stream(
        request.http,
        response,
        feed,
        position,
        plan,
        first=first,
        taken=request.taken,
        ending=ending,
    )
    if ending.ours:
        unread.end(session_id, dialect)


async def _ready(
    request: FaceRequest,
) -> tuple[web.StreamResponse, str, Feed, int, StreamPlan, bytes] | web.StreamResponse:
    """Return what is to be streamed, or the answer where nothing is."""
    act = _follow_of(request)
    target = act.where(request.incoming, request.said)
    try:
        found = await find(request, target)
    except SessionExpired:
        if act.missing is None:
            raise
        return to_web(act.missing())
    except SessionNotFound:
        if act.missing is None or not (act.unknown or isinstance(target, NewestSession)):
            raise
        return to_web(act.missing())
    reading = act.reading(request.incoming, await request.view(found, shown=True), request.said)
    if isinstance(reading, Response):
        return to_web(reading)
    response = web.StreamResponse(headers=reading.headers)
    feed, plan = request.feed(found), plan_of(request, reading)
    return response, found.session.id, feed, reading.position, plan, reading.first


def _follow_of(request: FaceRequest) -> Stream[Any, Any]:
    assert isinstance(request.route.does, Stream)
    return request.route.does


def plan_of(request: FaceRequest, reading: FrameRange) -> StreamPlan:
    """Return how a stream is written, as the dialect and the configuration want it."""
    server = request.settings.server
    return StreamPlan(
        heartbeat=reading.heartbeat,
        heartbeat_seconds=min(server.heartbeat_seconds, reading.heartbeat_seconds),
        write_timeout=server.write_timeout_seconds,
        stop=reading.stop,
        lease_seconds=reading.lease_seconds,
        lease_end=reading.lease_end,
        turn=reading.turn,
        omits=reading.omits,
    )


# Answers made of logs.


async def read_log(request: FaceRequest) -> web.StreamResponse:
    """Answer with something made of the log of a session, which goes out while it is read: it may
    be as long as the session."""
    act = request.route.does
    assert isinstance(act, History)
    found = await find(request, act.where(request.incoming))
    seen = await request.view(found, shown=True, tell=act.told)
    reader = act.reader(request.incoming, seen)
    if isinstance(reader, Response):
        return to_web(reader)
    response = web.StreamResponse(headers=reader.headers)
    try:
        while (at := reader.wanted) is not None:
            # Of a long log only the parts that the answer is made of.
            encoder, after = await request.feed(found).encoder_at(at)
            reader.begin(encoder)
            await _read_part(request, found, reader, after, response)
            reader.end()
        if not response.prepared:
            return web.Response(headers=reader.headers, body=reader.out)
        timeout = request.settings.server.write_timeout_seconds
        await write(response, reader.out, timeout, request.taken)
        await response.write_eof()
    except Exception as error:
        # Where the head is sent a body that breaks off says that something went wrong.
        if response.prepared and request.http.transport is not None:
            request.http.transport.abort()
        if not isinstance(error, ConnectionError | TimeoutError):
            raise
    return response


async def _read_part(
    request: FaceRequest,
    found: Match,
    reader: LogReader[Any],
    after: int,
    response: web.StreamResponse,
) -> None:
    """Give a reader the entries after seq `after` until it needs no more; send what it has made as
    soon as that is enough for a write."""
    session, sessions = found.session, request.sessions
    timeout = request.settings.server.write_timeout_seconds

    async for chunk in sessions.journal.scan(session.row.key, after=after, rows=FIRST_ROWS):
        async for entry in entries_by_steps(chunk.body, session.id):
            if entry.seq <= after:
                continue
            if not reader.add(entry):
                return
            if len(reader.out) >= WRITE_BYTES:
                piece, reader.out = reader.out, b""
                await send_head(request.http, response)
                await write(response, piece, timeout, request.taken)


# Lists.


async def list_sessions(request: FaceRequest) -> web.StreamResponse:
    """Answer with a page of the sessions of a key.

    A page has fewer than were asked for, perhaps none, where what is wanted is rare: its cursor
    leads on, and its reader goes on until there is none.
    """
    act = request.route.does
    assert isinstance(act, ListSessions)
    page = act.page(request.incoming)
    loop = asyncio.get_running_loop()
    ends = loop.time() + LOOKED_SECONDS
    while True:
        found = await request.sessions.journal.sessions(
            owner=request.owner,
            route=request.name,
            states=LISTED,
            before=page.before,
            after=page.after,
            limit=page.rows,
        )
        for row in found:
            await asyncio.sleep(0)
            try:
                about = await request.told(row)
            except CursorExpired:
                # Erased since the list was read.
                page.passed(row.key)
                continue
            if not page.add(ListedSession(row.key, row.id, row.state, about)):
                return to_web(page.answer())
            if loop.time() >= ends:
                page.cut()
                return to_web(page.answer())
        if len(found) < page.rows:
            return to_web(page.answer())


async def waiting(request: FaceRequest) -> web.StreamResponse:
    """Answer with what all sessions of a key wait for."""
    act = request.route.does
    assert isinstance(act, Pending)
    asked = []
    async with contextlib.aclosing(at_work(request)) as sessions:
        async for found in sessions:
            if found.session.state.interactions:
                one = act.one(await request.view(found, shown=True))
                if one is not None:
                    asked.append(one)
    return to_web(act.answer(request.incoming, asked))
