"""Writes what a request at a face reads: the frames of a session, or an answer made of its log."""

from __future__ import annotations

import asyncio
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
from proxy.faces.finding import at_work, find
from proxy.faces.visit import Found, RoutePlace, Visit
from proxy.fanout.hub import FIRST_ROWS, WRITE_BYTES, Feed, entries_by_steps
from proxy.fanout.streams import Ending, StreamPlan, send_head, write, write_stream

LOOKED_SECONDS = 0.5
"""How long sessions are looked into for one page of a list, some 500 of them: those who want what
is not there, or is far back, come again with a cursor. On a busy server a count of sessions would
let them wait for seconds."""

FOUND_AGAIN = 3
"""How often a session that is to be streamed is looked for."""

LISTED = ("idle", "running", "paused", "ended")
"""The states of the sessions that lists show."""


async def tell(visit: Visit) -> web.StreamResponse:
    """Answer from what is known of the route."""
    act = visit.route.does
    assert isinstance(act, Static)
    return to_web(act.answer(visit.incoming, RoutePlace(visit)))


# Streams.


async def follow(visit: Visit) -> web.StreamResponse:
    """Stream the frames of a session."""
    left, body = FOUND_AGAIN, _follow_of(visit).body
    if body is not None:
        parse = body.parse
        visit.said = await read(visit.request, lambda data: parse(data, visit.incoming))
    while True:
        left -= 1
        ready = await _ready(visit)
        if isinstance(ready, web.StreamResponse):
            return ready
        # What was made for it on the way is not kept for as long as the stream lasts.
        response, session_id, feed, position, plan, first = ready
        try:
            await write_body(visit, session_id, response, feed, position, plan, first=first)
        except DragomanError as error:
            # It left memory just after it was found, as when the disk refuses what it says.
            if error.code != ErrorCode.STOPPING or visit.sessions.stopping or not left:
                raise
        else:
            return response


async def stream(visit: Visit, found: Found, reading: FrameRange | Response) -> web.StreamResponse:
    """Stream what a reading says of a session that is at hand, or answer."""
    if isinstance(reading, Response):
        return to_web(reading)
    response = web.StreamResponse(headers=reading.headers)
    feed, position, first = visit.feed(found), reading.position, reading.first
    plan, session_id = plan_of(visit, reading), found.session.id
    await write_body(visit, session_id, response, feed, position, plan, first=first)
    return response


async def write_body(
    visit: Visit,
    session_id: str,
    response: web.StreamResponse,
    feed: Feed,
    position: int,
    plan: StreamPlan,
    *,
    first: bytes,
    ending: Ending | None = None,
) -> None:
    """Write the frames of a session, and remember whether they were read to the end; see
    `write_stream`."""
    unread, dialect, ending = visit.sessions.unread, visit.at.dialect, ending or Ending()
    unread.begin(session_id, dialect)
    await write_stream(
        visit.request,
        response,
        feed,
        position,
        plan,
        first=first,
        taken=visit.taken,
        ending=ending,
    )
    if ending.ours:
        unread.end(session_id, dialect)


async def _ready(
    visit: Visit,
) -> tuple[web.StreamResponse, str, Feed, int, StreamPlan, bytes] | web.StreamResponse:
    """Return what is to be streamed, or the answer where nothing is."""
    act = _follow_of(visit)
    target = act.where(visit.incoming, visit.said)
    try:
        found = await find(visit, target)
    except SessionExpired:
        if act.missing is None:
            raise
        return to_web(act.missing())
    except SessionNotFound:
        if act.missing is None or not (act.unknown or isinstance(target, NewestSession)):
            raise
        return to_web(act.missing())
    reading = act.reading(visit.incoming, await visit.see(found, shown=True), visit.said)
    if isinstance(reading, Response):
        return to_web(reading)
    response = web.StreamResponse(headers=reading.headers)
    feed, plan = visit.feed(found), plan_of(visit, reading)
    return response, found.session.id, feed, reading.position, plan, reading.first


def _follow_of(visit: Visit) -> Stream[Any, Any]:
    assert isinstance(visit.route.does, Stream)
    return visit.route.does


def plan_of(visit: Visit, reading: FrameRange) -> StreamPlan:
    """Return how a stream is written, as the dialect and the configuration want it."""
    server = visit.settings.server
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


async def read_log(visit: Visit) -> web.StreamResponse:
    """Answer with something made of the log of a session, which goes out while it is read: it may
    be as long as the session."""
    act = visit.route.does
    assert isinstance(act, History)
    found = await find(visit, act.where(visit.incoming))
    seen = await visit.see(found, shown=True, tell=act.told)
    reader = act.reader(visit.incoming, seen)
    if isinstance(reader, Response):
        return to_web(reader)
    response = web.StreamResponse(headers=reader.headers)
    try:
        while (at := reader.wanted) is not None:
            # Of a long log only the parts that the answer is made of.
            encoder, after = await visit.feed(found).encoder_at(at)
            reader.begin(encoder)
            await _read_part(visit, found, reader, after, response)
            reader.end()
        if not response.prepared:
            return web.Response(headers=reader.headers, body=reader.out)
        timeout = visit.settings.server.write_timeout_seconds
        await write(response, reader.out, timeout, visit.taken)
        await response.write_eof()
    except Exception as error:
        # Where the head is sent a body that breaks off says that something went wrong.
        if response.prepared and visit.request.transport is not None:
            visit.request.transport.abort()
        if not isinstance(error, ConnectionError | TimeoutError):
            raise
    return response


async def _read_part(
    visit: Visit, found: Found, reader: LogReader[Any], after: int, response: web.StreamResponse
) -> None:
    """Give a reader the entries after seq `after` until it needs no more; send what it has made as
    soon as that is enough for a write."""
    session, sessions = found.session, visit.sessions
    timeout = visit.settings.server.write_timeout_seconds

    async for chunk in sessions.journal.scan(session.row.key, after=after, rows=FIRST_ROWS):
        async for entry in entries_by_steps(chunk.body, session.id):
            if entry.seq <= after:
                continue
            if not reader.add(entry):
                return
            if len(reader.out) >= WRITE_BYTES:
                piece, reader.out = reader.out, b""
                await send_head(visit.request, response)
                await write(response, piece, timeout, visit.taken)


# Lists.


async def list_sessions(visit: Visit) -> web.StreamResponse:
    """Answer with a page of the sessions of a key.

    A page has fewer than were asked for, perhaps none, where what is wanted is rare: its cursor
    leads on, and its reader goes on until there is none.
    """
    act = visit.route.does
    assert isinstance(act, ListSessions)
    page = act.page(visit.incoming)
    loop = asyncio.get_running_loop()
    ends = loop.time() + LOOKED_SECONDS
    while True:
        found = await visit.sessions.journal.sessions(
            owner=visit.owner,
            route=visit.name,
            states=LISTED,
            before=page.before,
            limit=page.rows,
        )
        for row in found:
            await asyncio.sleep(0)
            try:
                about = await visit.told(row)
            except CursorExpired:
                # Erased since the list was read.
                page.before = row.key
                continue
            if not page.add(ListedSession(row.key, row.id, row.state, about)):
                return to_web(page.answer())
            if loop.time() >= ends:
                page.cut()
                return to_web(page.answer())
        if len(found) < page.rows:
            return to_web(page.answer())


async def waiting(visit: Visit) -> web.StreamResponse:
    """Answer with what all sessions of a key wait for."""
    act = visit.route.does
    assert isinstance(act, Pending)
    asked = []
    async for found in at_work(visit):
        if found.session.state.interactions:
            one = act.one(await visit.see(found, shown=True))
            if one is not None:
                asked.append(one)
    return to_web(act.answer(visit.incoming, asked))
