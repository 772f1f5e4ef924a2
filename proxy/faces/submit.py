"""Takes what a request at a face says: finds or makes the session, knows repeats, submits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from adapters.contract.faces import (
    Action,
    ClientNamedSession,
    FrameRange,
    FreshSession,
    Opening,
    Submit,
    SubmitResult,
    TurnBody,
)
from adapters.model import events as ev
from adapters.model.commands import AnyCommand, SendMessage
from adapters.offline.moves.history import HistoryWriter
from adapters.wire.errors import ClientProtocolError
from proxy.base.errors import SequenceConflict, SessionExpired, SessionNotFound
from proxy.base.repeats import Submission
from proxy.base.rows import AliasKind, SessionRow
from proxy.entry.entry import read, read_submission, to_web
from proxy.faces.disconnect import ClientDisconnect
from proxy.faces.face_request import FaceRequest, Match, RoutePlace, SubmitOutcome
from proxy.faces.lookup import find
from proxy.faces.stream import plan_of, stream, write_body
from proxy.fanout.hub import entries_by_steps
from proxy.fanout.streams import BodyEnd, end, send_head
from proxy.http.auth import authorize


async def say(request: FaceRequest) -> web.StreamResponse:
    """Answer a request that gives commands."""
    act = request.route.does
    assert isinstance(act, Submit)
    if act.before is not None:
        act.before(request.incoming, RoutePlace(request))
    submission = await _read(request, act)
    if act.needs is not None:
        action = act.needs(request.incoming, request.said)
        if action is not request.action:
            request.enter(action)
    if not isinstance(act.answer, TurnBody):
        return await request.sessions.keep(_answered(request, act, submission))
    stops = act.answer.stops
    leaving = ClientDisconnect(request, stops=stops is not None and stops(request.incoming))
    found, done, _ = await leaving.take(_taken(request, act, submission, leaving))
    assert submission is not None, (
        "a request whose turn is streamed has a body, and may be repeated"
    )
    try:
        if act.answer.nothing is not None and not done.ids:
            # What was answered elsewhere just now may not be stored, and so not in the encoder.
            await found.session.until_shown()
            seen = await request.view(found, shown=True)
            return await stream(
                request, found, act.answer.nothing(request.incoming, seen, request.said)
            )
        return await _turn(request, act.answer, found, done.ids[0], submission, leaving)
    finally:
        leaving.close()


async def _read(request: FaceRequest, act: Submit[Any, Any]) -> Submission | None:
    """Read the body of a request; return what identifies the request, if its repeats are known."""
    if act.body is None:
        return None
    submission = None
    try:
        if act.repeats:
            request.said, submission = await read_submission(request.http, request.parse)
        else:
            request.said = await read(request.http, request.parse)
    except ClientProtocolError as error:
        await request.explain(error)
        raise
    if submission is not None and act.names is not None:
        submission.name(act.names(request.incoming, request.said))
    return submission


async def _answered(
    request: FaceRequest, act: Submit[Any, Any], submission: Submission | None
) -> web.Response:
    found, done, seen = await _taken(request, act, submission)
    if seen is None:
        seen = await request.view(found, shown=act.looks_after, tell=act.told)
    else:
        seen = await request.view_after(found, seen, shown=act.looks_after, tell=act.told)
    assert not isinstance(act.answer, TurnBody)
    return to_web(act.answer(request.incoming, seen, request.said, done))


async def _taken(
    request: FaceRequest,
    act: Submit[Any, Any],
    submission: Submission | None,
    leaving: ClientDisconnect | None = None,
) -> SubmitOutcome:
    """Take a request, after every equal one that came before it."""
    if submission is None:
        return await _take(request, act, None, leaving)
    async with request.sessions.in_order.lock(request.owner, request.name, submission.same):
        return await _take(request, act, submission, leaving)


async def _take(
    request: FaceRequest,
    act: Submit[Any, Any],
    submission: Submission | None,
    leaving: ClientDisconnect | None,
) -> SubmitOutcome:
    target = act.where(request.incoming, request.said)
    match target:
        case FreshSession():
            assert submission is not None, "what makes a session has a body, and may be repeated"
            found, done = await _created(request, act, submission)
        case ClientNamedSession(name) if act.opens is not None:
            assert submission is not None, "what makes a session has a body, and may be repeated"
            found, done = await _found_or_made(request, act, submission, name)
        case _:
            found, done = await find(request, target, submission), None
    if done is not None:
        request.about(found.session)
        return SubmitOutcome(found, done, None)
    session = found.session
    if leaving is not None:
        await leaving.others_gone(session)
    seen = await request.view(found, shown=act.looks_before)
    details = None if act.admit is None else act.admit(request.incoming, seen, request.said)
    anew = act.anew is not None and act.anew(request.incoming, seen, request.said)
    if submission is not None and not anew:
        ids = found.ids if found.looked else session.repeated(submission)
        if ids is not None:
            recalled = await _inputs(request, found, ids) if act.recalls else ()
            return SubmitOutcome(found, SubmitResult(ids, recalled=recalled), seen)
    found = dataclasses.replace(found, since=session.last_seq)
    commands = act.commands(request.incoming, seen, request.said)
    if not commands:
        return SubmitOutcome(found, SubmitResult(), seen)
    blobs = None if act.blobs is None else act.blobs(request.said)
    if act.body is not None and act.body.takes == "conversation":
        _check_new(request, act, commands)
        blobs = None if blobs is None else _named(act, commands, blobs)
    by, face = request.owner, request.at.dialect
    if act.waits:
        (command,) = commands
        await request.sessions.carry_out(
            session, command, by=by, face=face, details=details, blobs=blobs, submission=submission
        )
        return SubmitOutcome(found, SubmitResult(commands=commands), seen)
    ids = await session.submit(
        commands, by=by, face=face, details=details, blobs=blobs, submission=submission
    )
    return SubmitOutcome(found, SubmitResult(ids, commands), seen)


def _check_new(request: FaceRequest, act: Submit[Any, Any], commands: Sequence[AnyCommand]) -> None:
    """Check that what is taken of a whole conversation is not too long."""
    if act.body is not None and act.body.takes == "conversation":
        request.sessions.bodies.check_new(commands)


def _named(
    act: Submit[Any, Any], commands: Sequence[AnyCommand], blobs: Mapping[str, bytes]
) -> Mapping[str, bytes]:
    """Return the files that commands name: of a whole conversation not all is said."""
    if act.body is None or act.body.takes != "conversation":
        return blobs
    content = [block for one in commands for block in getattr(one, "content", None) or ()]
    refs = [block.ref for block in content if isinstance(block, ev.File)]
    return {ref.sha256: blobs[ref.sha256] for ref in refs if isinstance(ref, ev.Blob)}


# Making.


async def _created(
    request: FaceRequest, act: Submit[Any, Any], submission: Submission
) -> tuple[Match, SubmitResult | None]:
    """Make a session, unless the request repeats the one that made it."""
    earlier = await request.sessions.made_by(submission, owner=request.owner, route=request.name)
    if earlier is not None:
        return Match(earlier[0]), SubmitResult(earlier[1])
    opening = _opening(request, act)
    try:
        return await _make(request, opening, submission)
    except SequenceConflict:
        if opening.once is not None:
            return await _first(request, opening, opening.once)
        if not request.sessions.shared:
            raise
        # Another process was first with the same key.
        earlier = await request.sessions.made_by(
            submission, owner=request.owner, route=request.name
        )
        if earlier is None:
            raise
        return Match(earlier[0]), SubmitResult(earlier[1])


async def _first(request: FaceRequest, opening: Opening, once: str) -> tuple[Match, SubmitResult]:
    """Return the session that was made for the same name before."""
    sessions, owner, route = request.sessions, request.owner, request.name
    first = await sessions.journal.resolve(
        owner=owner, route=route, kind=AliasKind.OPERATION, name=once
    )
    if first is None:
        raise SequenceConflict(f"The name `{once[:80]}` is taken.")
    session = await sessions.get(first, owner=owner, route=route)
    if not session.forgot_its_message:
        return Match(session), SubmitResult()
    ids = await session.submit(
        opening.commands, by=owner, face=request.at.dialect, blobs=opening.blobs
    )
    return Match(session), SubmitResult(ids, opening.commands)


async def _found_or_made(
    request: FaceRequest, act: Submit[Any, Any], submission: Submission, name: str
) -> tuple[Match, SubmitResult | None]:
    """Return the session with a name that its frontend chose; a new name opens a new one, with the
    commands in it."""
    sessions, owner, route = request.sessions, request.owner, request.name
    if submission.key is not None:
        # The key may be that of a request which made another session.
        earlier = await sessions.made_by(submission, owner=owner, route=route)
        if earlier is not None and earlier[1]:
            return Match(earlier[0]), SubmitResult(earlier[1])
    async with request.at.locks.lock(owner, route, name):
        succeeds = replaces = None
        try:
            found = await find(request, ClientNamedSession(name))
        except (SessionNotFound, SessionExpired) as error:
            if isinstance(error, SessionExpired):
                # Nothing is left of it here; it goes on all the same, after a gap.
                succeeds = error.row
        else:
            if not await _is_another(request, act, found):
                return found, None
            replaces = found.session.row
        authorize(request.principal, None, Action.CREATE, route, request.settings)
        opening = _opening(request, act)
        try:
            return await _make(
                request, opening, submission, chosen=name, succeeds=succeeds, replaces=replaces
            )
        except SequenceConflict:
            # Made meanwhile by another process, or deleted, and then the name stays taken.
            return await find(request, ClientNamedSession(name)), None


async def _is_another(request: FaceRequest, act: Submit[Any, Any], found: Match) -> bool:
    """Say whether the session with a name is about another conversation than the request."""
    if act.afresh is None:
        return False
    return act.afresh(request.incoming, await request.view(found, shown=True), request.said)


def _opening(request: FaceRequest, act: Submit[Any, Any]) -> Opening:
    """Return what a new session begins with, if every backend of the route can carry it."""
    assert act.opens is not None, "the act does not say what a new session begins with: `opens`"
    opening = _handed_over(act.opens(request.incoming, request.said, RoutePlace(request)))
    if opening.checked is not None:
        request.sessions.check(request.name, opening.checked)
    opening = dataclasses.replace(opening, blobs=_named(act, opening.commands, opening.blobs))
    for command in opening.commands:
        request.sessions.check(request.name, command)
    _check_new(request, act, opening.commands)
    return opening


def _handed_over(opening: Opening) -> Opening:
    """Return what a new session begins with, where its first message tells the agent what was said
    before, as one does that moves."""
    if not opening.before:
        return opening
    historian = HistoryWriter()
    for event in opening.before:
        historian.feed(event)
    history = historian.made().fitting(lambda _: "a page hands over words only")
    if not history.text:
        return opening
    first, *rest = opening.commands
    assert isinstance(first, SendMessage)
    context = [history.text, *(first.client_context or ())]
    told = [one.as_json() for one in history.carried]
    return dataclasses.replace(
        opening,
        commands=[first.model_copy(update={"client_context": context}), *rest],
        options={**(opening.options or {}), "history": told},
    )


async def _make(
    request: FaceRequest,
    opening: Opening,
    submission: Submission,
    *,
    chosen: str | None = None,
    succeeds: SessionRow | None = None,
    replaces: SessionRow | None = None,
) -> tuple[Match, SubmitResult]:
    aliases = [(AliasKind.TASK, chosen)] if chosen is not None else []
    if opening.once is not None:
        aliases.append((AliasKind.OPERATION, opening.once))
    request.sessions.quotas.count_session(request.owner)
    with request.making():
        session, ids = await request.sessions.create_with(
            opening.commands,
            by=request.owner,
            blobs=opening.blobs,
            owner=request.owner,
            route=request.name,
            dialect=request.at.dialect,
            title=opening.title,
            metadata=opening.metadata,
            options=opening.options,
            aliases=aliases,
            succeeds=succeeds,
            replaces=replaces,
            submission=submission,
        )
    return Match(session), SubmitResult(ids, opening.commands)


# Repeats.


async def _inputs(request: FaceRequest, found: Match, ids: Sequence[str]) -> list[ev.InputAccepted]:
    """Return the inputs that an earlier request gave, from the log."""
    wanted, session = set(ids), found.session
    inputs: list[ev.InputAccepted] = []

    async for chunk in request.sessions.journal.scan(session.row.key):
        async for entry in entries_by_steps(chunk.body, session.id):
            event = entry.event
            if isinstance(event, ev.InputAccepted) and event.command_id in wanted:
                inputs.append(event)
                if len(inputs) == len(wanted):
                    return inputs
    return inputs


# The turn in the body of an answer.


async def _turn(
    request: FaceRequest,
    body: TurnBody[Any, Any],
    found: Match,
    command_id: str,
    submission: Submission,
    leaving: ClientDisconnect,
) -> web.StreamResponse:
    """Stream the turn that a command becomes."""
    http, ending = request.http, BodyEnd()
    response = web.StreamResponse(headers=body.headers())
    await send_head(http, response)
    # The head says that it was taken; what a client then misses, it asks for in another request.
    submission.over(whole=True)
    cut = b"" if body.cut is None else body.cut(request.incoming, request.said)
    try:
        reading = await _reading_of(request, body, found, command_id, response, cut)
        # The stream is long, and what it began with may be large.
        request.said = None
        if reading is None:
            ending.ours = True
        else:
            position, first = reading.position, reading.first
            plan = dataclasses.replace(plan_of(request, reading), cut=cut)
            del reading
            feed, name = request.feed(found), found.session.id
            await write_body(
                request, name, response, feed, position, plan, first=first, ending=ending
            )
    except Exception:
        ending.ours = True
        raise
    finally:
        if not ending.ours:
            await leaving.stop()
    return response


async def _reading_of(
    request: FaceRequest,
    body: TurnBody[Any, Any],
    found: Match,
    command_id: str,
    response: web.StreamResponse,
    cut: bytes,
) -> FrameRange | None:
    """Return what is read of the turn that a command becomes; None when the body is ended."""
    timeout = request.settings.server.write_timeout_seconds
    try:
        reading = await _begun(request, body, found, command_id)
    except Exception:
        # No other answer can follow the head: a body that breaks off makes the client come back.
        if cut:
            await end(response, cut, timeout, request.taken)
        elif request.http.transport is not None:
            request.http.transport.abort()
        raise
    if reading is None:
        # The session left memory: the body ends without a result, and its client asks for it.
        await end(response, cut, timeout, request.taken)
    return reading


async def _begun(
    request: FaceRequest, body: TurnBody[Any, Any], found: Match, command_id: str
) -> FrameRange | None:
    """Wait for the turn that a command becomes; None when the session leaves memory before, or for
    a repeat whose turn is long over."""
    session = found.session
    while not session.closed:
        news, idle = session.news(), session.idle
        seen = await request.view(found, shown=True)
        reading = body.begun(request.incoming, seen, request.said, command_id)
        if reading is not None:
            return reading
        if body.over(seen) or idle:
            return None
        await news.wait()
    return None
