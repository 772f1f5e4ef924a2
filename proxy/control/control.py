"""The control API `/api/v1`: backends, sessions, canonical events, open interactions, answers.

Its OpenAPI document is generated from the models and the table at the end of this file, and served
beside it. Answers carry `version`; errors are `{"version", "error": {"code", "message",
"details"}}`.

Why one module: a function for each route of the control API, beside the models of its bodies.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, Field, SecretStr

from adapters.contract.faces import Action
from adapters.contract.faces.misdirected import SHOWN, KnownPath, fitting, way_out
from adapters.model.base import Fidelity
from adapters.model.commands import AnswerInteraction, Delete, Sealed, members_of
from adapters.model.interactions import decide
from adapters.model.normalizer import Rule
from adapters.model.state import LogState
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json, parse_json
from proxy import __version__
from proxy.archives.packing import pack
from proxy.archives.unpacking import ImportResult, Wishes, lines_of, unpack
from proxy.base.repeats import Submission
from proxy.base.rows import BackendBinding, CommandRow, SessionRow
from proxy.config.settings import SHADOWS, Settings, Share, is_name
from proxy.control import captures, checks, dialects, listing, translation
from proxy.control.api import (
    MOST,
    PACKING,
    PAGE,
    TURNS,
    VERSION,
    ApiModel,
    Endpoint,
    ErrorOut,
    LineStream,
    administrator,
    authorize_row,
    body_of,
    check_running,
    check_there,
    guarded,
    integer,
    invalid,
    json_response,
    limit_of,
    owner_of,
    principal_of,
    reads,
    session_of,
    stored_entries,
    streamed,
    whole,
    yes,
)
from proxy.control.demo import DEMO
from proxy.control.listing import SessionOut, SessionsOut, page_of, row_out
from proxy.entry.entry import read, read_pieces, read_submission, takes
from proxy.entry.keys import SESSIONS
from proxy.http.auth import (
    Principal,
    authorize,
    may_use,
)
from proxy.http.bodies import RETRY_SECONDS
from proxy.journal.base import NAMES
from proxy.migration.moved import MOVABLE, moved_sessions
from proxy.migration.moving import MoveResult, move, roll_back
from proxy.migration.planning import PlanLineOut, Planner, named
from proxy.migration.reporting import ShadowReportOut, report
from proxy.session import Session, StartTimes
from proxy.sessions.backends import Backends
from proxy.sessions.retention_limits import ExpiredSession, RetentionLimits
from proxy.sessions.sessions import Sessions
from proxy.sessions.stored import looking_at

_log = logging.getLogger(__name__)


class AbilityOut(ApiModel):
    """How a backend carries one command."""

    support: Literal["native", "emulated", "impossible"]
    how: str


class BackendOut(ApiModel):
    """A backend and what it can do; `abilities` is empty for a dialect that cannot be driven
    yet. `up` says whether it does its work, null before it was asked for anything; `why` why
    it does not."""

    name: str
    dialect: str
    url: str
    up: bool | None = None
    why: str | None = None
    abilities: dict[str, AbilityOut]


class BackendsOut(ApiModel):
    """The backends that the key may use; `demo` says that they are those of `dragoman demo`."""

    version: int = VERSION
    demo: bool = False
    backends: list[BackendOut]


class RouteShareOut(ApiModel):
    """A backend's share of a route: `weight` of the sum of all weights."""

    backend: str
    dialect: str
    weight: int


class ShadowOut(ApiModel):
    """The backend that shadows a route, whether it does, and why not."""

    backend: str
    running: bool
    why: str = ""


class RouteOut(ApiModel):
    """A route, the shares of new sessions that its backends get, and whether they are those of the
    configuration or were set at run time; and its shadow, if it has one."""

    name: str
    source: Literal["configured", "set"]
    backends: list[RouteShareOut]
    shadow: ShadowOut | None = None


class RoutesOut(ApiModel):
    """All routes, those of backends first."""

    version: int = VERSION
    routes: list[RouteOut]


class ChangedRouteOut(RouteOut):
    """A route as it is now; `notices` say what could not be learned of its new backends."""

    version: int = VERSION
    notices: list[str]


class ShareIn(ApiModel):
    """A backend and its weight; 0 gives it no new sessions."""

    name: str
    weight: int = Field(default=100, ge=0, le=1_000_000, strict=True)


class RouteIn(ApiModel):
    """All backends of a route."""

    backends: list[ShareIn]


class InteractionOut(ApiModel):
    """An open interaction of a session that was made on `route` and is at `backend` now, asked at
    `since`, in Unix milliseconds, null where that is not known; one that is not `answerable` is
    asked, and answered, elsewhere."""

    session_id: str
    route: str
    backend: str
    request_id: str
    kind: str
    prompt: str
    options: list[dict[str, Any]]
    freeform: bool
    answerable: bool
    details: dict[str, Any] | None
    claimed: bool
    since: int | None = None


class QueuedOut(ApiModel):
    """A message that waits here until its turn comes; `content` is as in its `input.accepted`."""

    command_id: str
    policy: str
    content: list[dict[str, Any]]
    accepted_at: int


class LegOut(ApiModel):
    """One backend's part in a session."""

    number: int
    backend: str
    native_id: str | None


class SessionDetailOut(SessionOut):
    """A session with what is open in it; `reconnecting_since` says since when its backend's stream
    cannot be had."""

    version: int = VERSION
    open_interactions: list[InteractionOut]
    queue: list[QueuedOut]
    legs: list[LegOut]
    aliases: list[str]
    repairs: dict[str, int]
    reconnecting_since: int | None = None


class InteractionsOut(ApiModel):
    """The open interactions of all sessions that the key may see."""

    version: int = VERSION
    interactions: list[InteractionOut]


class AnswerIn(ApiModel):
    """An answer: a decision, options, words, a refusal to answer, or a sealed value for a
    secret."""

    decision: Literal["allow", "deny"] | None = None
    option_ids: tuple[str, ...] = ()
    text: str | None = None
    skip: bool = False
    reason: str | None = None
    scope: Literal["once", "session", "always"] | None = None
    sealed: SecretStr | None = None


class AcceptedOut(ApiModel):
    """The answer is stored and on its way."""

    version: int = VERSION
    command_id: str
    status: Literal["accepted"] = "accepted"


class WithdrawnOut(ApiModel):
    """The message is withdrawn: it never goes to the backend."""

    version: int = VERSION
    command_id: str
    status: Literal["withdrawn"] = "withdrawn"


class SettledOut(ApiModel):
    """The session is at rest; `settled` says whether anything was open."""

    version: int = VERSION
    id: str
    settled: bool


class MoveIn(ApiModel):
    """Where a session is to go on: at the backend `to`. `from` is where it must be now; with
    `dry_run` it stays."""

    to: str
    source: str | None = Field(default=None, alias="from")
    dry_run: bool = False


class RollBackIn(ApiModel):
    """With `dry_run` the session stays where it is."""

    dry_run: bool = False


class CarriedOut(ApiModel):
    """How one kind of thing goes over, and why not better."""

    what: str
    count: int
    fidelity: Fidelity
    why: str = ""


class MovedOut(ApiModel):
    """A session that goes on at `backend`, in its part `leg`, and was at the backend `before`;
    `moved` is false where it was there already, or only would move.

    `history` is what goes over with the next message: a text of so many `characters`, and files.
    `notices` say what could not be learned of the backend before.
    """

    version: int = VERSION
    id: str
    before: str
    backend: str
    dialect: str
    leg: int
    moved: bool
    characters: int
    history: list[CarriedOut]
    notices: list[str]


class MovedSessionOut(ApiModel):
    """A session that is at `backend` since its last move and was at `before`; `taken_back` says
    whether that move was a rollback, and `back` where the next one leads, `null` where there is
    nothing to take back. Of the turns since the move that ended since the time asked for, so many
    `succeeded`, and so many failed or were refused, by the code of the reason."""

    id: str
    backend: str
    before: str
    taken_back: bool
    back: str | None
    succeeded: int
    failed: dict[str, int]


class MovedSessionsOut(ApiModel):
    """A page of sessions that moved, newest first, as of the time `at`, in Unix milliseconds;
    `next` is the `before` of the next page."""

    version: int = VERSION
    at: int
    sessions: list[MovedSessionOut]
    next: int | None


class DeletedOut(ApiModel):
    """The session is deleted; what was stored of it is erased at once."""

    version: int = VERSION
    id: str
    status: Literal["deleted"] = "deleted"


class PruneIn(ApiModel):
    """What is kept of the key's sessions; at least one limit. With `dry_run` nothing is erased."""

    # Three thousand years: in milliseconds far below the journal's 64 bits.
    older_than_seconds: float | None = Field(default=None, ge=0, le=10**11, strict=True)
    # The sum of two of these is within the journal's 64 bits.
    max_bytes_per_backend: int | None = Field(default=None, ge=0, le=2**62, strict=True)
    max_bytes: int | None = Field(default=None, ge=0, le=2**62, strict=True)
    dry_run: bool = False


class PrunedSessionOut(ApiModel):
    """A session that was kept no longer, and the limit that says so."""

    id: str
    route: str
    backend: str
    reason: Literal["age", "bytes_per_backend", "bytes"]
    updated_at: int
    bytes: int


class PrunedOut(ApiModel):
    """The sessions that were erased, or would be."""

    version: int = VERSION
    dry_run: bool
    sessions: list[PrunedSessionOut]


class ImportedOut(ApiModel):
    """What became of a session of an archive: it was taken, is here already, or was only checked;
    `entries` are its events, `bytes` those of its events and files."""

    version: int = VERSION
    id: str
    status: Literal["imported", "already", "checked"]
    owner: str
    route: str
    backend: str
    entries: int
    bytes: int


async def backends(request: web.Request) -> web.StreamResponse:
    """List the backends that the key may use, and how each carries every command."""
    principal = principal_of(request)
    settings = request.app[SESSIONS].settings
    out = []
    for backend in settings.backends:
        if not may_use(principal, backend.name, settings):
            continue
        make = DIALECTS[backend.dialect].client
        abilities = {}
        if make is not None:
            codec = make({**backend.settings.model_dump(exclude_none=True), "task_id": "-"})
            abilities = {
                name: AbilityOut(support=ability.support.value, how=ability.how)
                for name, ability in codec.abilities.items()
            }
        health = request.app[SESSIONS].backends.health[backend.name]
        out.append(
            BackendOut(
                name=backend.name,
                dialect=backend.dialect,
                url=backend.url,
                up=health.up,
                why=health.failing,
                abilities=abilities,
            )
        )
    return json_response(BackendsOut(backends=out, demo=DEMO in request.app))


async def list_routes(request: web.Request) -> web.StreamResponse:
    """List all routes with the shares of their backends; for administrators."""
    administrator(request)
    names = request.app[SESSIONS].settings.route_names
    found = await asyncio.gather(*(_route_out(request, name) for name in names))
    return json_response(RoutesOut(routes=found))


async def _route_out(request: web.Request, name: str) -> RouteOut:
    backends = request.app[SESSIONS].backends
    shares = backends.shares
    of_backend = {one.name: one.dialect for one in request.app[SESSIONS].settings.backends}
    return RouteOut(
        name=name,
        source="set" if shares.is_set(name) else "configured",
        backends=[
            RouteShareOut(backend=one.name, dialect=of_backend[one.name], weight=one.weight)
            for one in shares.of(name)
        ],
        shadow=await _shadow_out(backends, name),
    )


async def _shadow_out(backends: Backends, route: str) -> ShadowOut | None:
    name = backends.shadow_of(route)
    backend = None if name is None else backends.get(name)
    if backend is None:
        return None
    why = (await backends.readiness.check(backend)).why
    return ShadowOut(backend=backend.name, running=not why, why=why)


@takes("small")
async def set_route(request: web.Request) -> web.StreamResponse:
    """Set the shares of a route, for new sessions; for administrators.

    They hold over a restart, until they are set again. Sessions stay where they are. Every backend
    that gets more than before must be ready, or nothing changes.
    """
    principal, route = administrator(request), request.match_info["route"]
    check_running(request)
    given = await read(request, _route_in)
    wanted = [Share(name=one.name, weight=one.weight) for one in given.backends]
    sessions = request.app[SESSIONS]
    shares = sessions.backends.shares
    shares.check(route, wanted)
    notices = await sessions.backends.require_new(route, wanted)
    await sessions.keep(shares.change(sessions.journal, route, wanted, by=principal.name))
    return await _changed_route(request, route, notices)


def _route_in(body: bytes) -> RouteIn:
    return body_of(RouteIn, body)


async def reset_route(request: web.Request) -> web.StreamResponse:
    """Let the shares of the configuration hold again for a route; for administrators."""
    principal, route = administrator(request), request.match_info["route"]
    check_running(request)
    sessions = request.app[SESSIONS]
    shares = sessions.backends.shares
    await sessions.keep(shares.reset(sessions.journal, route, by=principal.name))
    return await _changed_route(request, route, [])


async def _changed_route(
    request: web.Request, route: str, notices: Sequence[str]
) -> web.StreamResponse:
    out = await _route_out(request, route)
    return json_response(ChangedRouteOut(**out.model_dump(), notices=list(notices)))


async def show_session(request: web.Request) -> web.StreamResponse:
    """Show one session: its state, legs, names and what is open in it."""
    _, session = await session_of(request, Action.READ)
    journal = request.app[SESSIONS].journal
    row = await journal.session(session.id)
    legs = await journal.legs(row.key)
    names = await journal.aliases(row.key)
    asked = open_in(row, legs[-1].backend, session.state, session.times)
    out = detail_out(row, asked, session.queued(), legs, names, session.repairs)
    out.reconnecting_since = session.reconnecting_since
    return json_response(out)


def detail_out(
    row: SessionRow,
    open_: Iterable[InteractionOut],
    queued: Sequence[CommandRow],
    legs: Sequence[BackendBinding],
    names: Sequence[tuple[str, str]],
    repairs: Mapping[Rule, int],
) -> SessionDetailOut:
    """Return a session with all that is known of it; `queued` are the messages that wait."""
    return SessionDetailOut(
        **row_out(row).model_dump(),
        open_interactions=list(open_),
        queue=[_queued(command) for command in queued],
        legs=[
            LegOut(number=leg.number, backend=leg.backend, native_id=leg.native_id) for leg in legs
        ],
        aliases=[name for kind, name in names if kind in NAMES],
        repairs={str(rule): count for rule, count in repairs.items()},
    )


def _queued(row: CommandRow) -> QueuedOut:
    body: Any = parse_json(row.body)
    value = members_of(body)
    return QueuedOut(
        command_id=row.command_id,
        policy=value["policy"],
        content=[
            {name: part for name, part in block.items() if part is not None}
            for block in value["content"]
        ],
        accepted_at=row.at,
    )


def open_in(
    row: SessionRow, backend: str, state: LogState, times: StartTimes
) -> Iterator[InteractionOut]:
    """Yield the open interactions of a session, oldest first."""
    for open_ in state.interactions.values():
        event = open_.event
        yield InteractionOut(
            session_id=row.id,
            route=row.route,
            backend=backend,
            request_id=event.request_id,
            kind=event.kind,
            prompt=event.prompt,
            options=[o.model_dump(mode="json", exclude_none=True) for o in event.options or ()],
            freeform=event.freeform,
            answerable=event.answerable,
            details=event.details,
            claimed=open_.claimed_by is not None,
            since=times.interactions.get(event.request_id),
        )


async def delete_session(request: web.Request) -> web.StreamResponse:
    """Delete a session, at its backend too where that can, and erase what is stored of it.

    With `local=1`, and where the backend is no longer configured, the backend is not asked.
    """
    sessions = request.app[SESSIONS]
    principal = principal_of(request)
    check_running(request)
    local = yes(request, "local", default=False)
    row: SessionRow | None = None
    try:
        _, session = await session_of(request, Action.CONTROL)
    except DragomanError as error:
        if error.code is not ErrorCode.BACKEND_UNAVAILABLE:
            raise
        row = await sessions.journal.session(request.match_info["session"])
        # Its route may have left with the backend: then its owner may read it, and be rid of it.
        authorize_row(request, principal, row, Action.READ)
    else:
        if local:
            row = session.row
        else:
            work = sessions.carry_out(session, Delete(), by=principal.name, face="control")
            await sessions.keep(work)
    if row is not None:
        await sessions.keep(sessions.erase(row))
    return json_response(DeletedOut(id=session.id if row is None else row.id))


@takes("small")
async def prune(request: web.Request) -> web.StreamResponse:
    """Erase the key's sessions that the given limits do not keep, the oldest first.

    One in which a turn or an interaction is open stays. Those of an administrator's key are
    everybody's.
    """
    principal = principal_of(request)
    check_running(request)
    given = await read(request, _prune_in)
    age = given.older_than_seconds
    limits = RetentionLimits(
        age=None if age is None else round(age * 1000),
        bytes_per_backend=given.max_bytes_per_backend,
        bytes=given.max_bytes,
    )
    if not limits:
        names = "`older_than_seconds`, `max_bytes` or `max_bytes_per_backend`"
        raise invalid(f"Say what is kept: {names}.")
    # As for reading: a route that has left the configuration holds up nobody's pruning.
    may = _reader(principal, request.app[SESSIONS].settings)
    owner, sessions = owner_of(request, principal), request.app[SESSIONS]

    async def work() -> list[ExpiredSession]:
        gone = await sessions.prune(limits, owner=owner, may=may, dry_run=given.dry_run)
        if not given.dry_run:
            for name, count in Counter(doomed.row.owner for doomed in gone).items():
                _log.info("sessions of `%s` pruned by `%s`: %d", name, principal.name, count)
        return gone

    return json_response(pruned_out(await sessions.keep(work()), dry_run=given.dry_run))


def _reader(principal: Principal, settings: Settings) -> Callable[[SessionRow], bool]:
    """Return what says of a session whether it may be read."""

    def may(row: SessionRow) -> bool:
        try:
            authorize(principal, row.owner, Action.READ, row.route, settings)
        except DragomanError:
            return False
        return True

    return may


def _prune_in(body: bytes) -> PruneIn:
    return body_of(PruneIn, body)


def pruned_out(gone: Sequence[ExpiredSession], *, dry_run: bool) -> PrunedOut:
    """Return what was pruned, or would be."""
    sessions = [
        PrunedSessionOut(
            id=doomed.row.id,
            route=doomed.row.route,
            backend=doomed.backend,
            reason=doomed.reason,
            updated_at=doomed.row.updated_at,
            bytes=doomed.row.bytes,
        )
        for doomed in gone
    ]
    return PrunedOut(dry_run=dry_run, sessions=sessions)


async def list_interactions(request: web.Request) -> web.StreamResponse:
    """List the open interactions of the key's sessions, oldest session first; for an administrator
    of everybody's."""
    principal = principal_of(request)
    owner = owner_of(request, principal)
    sessions = request.app[SESSIONS]
    settings = request.app[SESSIONS].settings
    rows: list[SessionRow] = []
    page: list[SessionRow] | None = None
    while page is None or len(page) == MOST:
        page = await sessions.journal.sessions(
            owner=owner,
            states=("running", "paused"),
            before=rows[-1].key if rows else None,
            limit=MOST,
        )
        rows += page
    visible = [
        row.id
        for row in reversed(rows)
        if row.owner != SHADOWS and (owner is None or may_use(principal, row.route, settings))
    ]
    out: list[InteractionOut] = []
    async with aclosing(request.app[TURNS].of(_asked_in(sessions, visible))) as found:
        async for asked in found:
            out += asked
    return json_response(InteractionsOut(interactions=out))


async def _asked_in(sessions: Sessions, ids: Sequence[str]) -> AsyncGenerator[list[InteractionOut]]:
    for name in ids:
        try:
            async with looking_at(sessions.cache, name) as session:
                asked = list(
                    open_in(session.row, session.leg.backend, session.state, session.times)
                )
            yield asked
        except DragomanError as error:
            # One session that cannot be loaded, such as one whose backend has left the
            # configuration, must not hide what all others wait for.
            _log.warning("session `%s` cannot be looked into: %s", name, error.whole)


@reads
async def plan_migration(request: web.Request) -> web.StreamResponse:
    """Say what the sessions on the backend `from` used that the backend `to` cannot do; for
    administrators.

    NDJSON: lines with how many sessions were read so far, and a last one with the plan. A body that
    breaks off says why in its last line.
    """
    administrator(request)
    names = [request.query.get(name, "") for name in ("from", "to")]
    if not all(names):
        raise invalid("`from` and `to` name the two backends.")
    source, target = named(request.app[SESSIONS].settings, *names)
    checked = await request.app[SESSIONS].backends.readiness.check(target)
    body = LineStream(request, sse=False)
    work = _write_plan(request, Planner(source, target, checked), body)
    return await streamed(request, body, work)


async def _write_plan(request: web.Request, planner: Planner, body: LineStream) -> None:
    sessions = request.app[SESSIONS]
    async with aclosing(request.app[TURNS].of(planner.read(sessions.journal))) as read:
        async for count in read:
            check_running(request)
            await body.write(PlanLineOut(read=count).line())
    await body.write(PlanLineOut(plan=planner.plan()).line())


async def list_movable(request: web.Request) -> web.StreamResponse:
    """List the sessions of everybody that are on the backend `from`, newest first; for
    administrators."""
    administrator(request)
    backend = request.query.get("from", "")
    if request.app[SESSIONS].settings.backend(backend) is None:
        raise invalid("`from` names the backend whose sessions are listed.")
    limit = limit_of(request)
    rows = await request.app[SESSIONS].journal.sessions(
        backend=backend,
        states=MOVABLE,
        before=integer(request, "before", None),
        limit=limit,
    )
    following = rows[-1].key if len(rows) == limit else None
    found = [row for row in rows if row.owner != SHADOWS]
    return json_response(await page_of(request, found, following))


async def list_moved(request: web.Request) -> web.StreamResponse:
    """List the sessions of everybody whose last move was from the backend `from`, to `to`, or both;
    for administrators. With `since` it says how their turns went since then, of the sessions in
    which anything happened since `changed`."""
    administrator(request)
    sessions = request.app[SESSIONS]
    at, names = sessions.clock.now(), [request.query.get(name) for name in ("from", "to")]
    if not any(names):
        raise invalid("`from` or `to` names the backend that sessions left, or are at now.")
    for name in names:
        if name is not None and request.app[SESSIONS].settings.backend(name) is None:
            text = f"There is no backend `{name[:80]}`: name one of [[backends]]."
            raise DragomanError(text, code=ErrorCode.NOT_FOUND)
    limit = min(max(integer(request, "limit", PAGE) or 0, 1), MOST)
    rows = await sessions.journal.sessions(
        came_from=names[0],
        backend=names[1],
        states=MOVABLE,
        before=integer(request, "before", None),
        limit=limit,
    )
    following = rows[-1].key if len(rows) == limit else None
    changed = integer(request, "changed", 0) or 0
    changes = [row for row in rows if row.updated_at >= changed]
    found = await moved_sessions(sessions.journal, changes, integer(request, "since", None))
    out = [
        MovedSessionOut(
            id=one.id,
            backend=one.backend,
            before=one.before,
            taken_back=one.taken_back,
            back=one.back,
            succeeded=one.turns.succeeded,
            failed=one.turns.failed,
        )
        for one in found
    ]
    return json_response(MovedSessionsOut(at=at, sessions=out, next=following))


@takes("small")
async def move_session(request: web.Request) -> web.StreamResponse:
    """Let a session go on at another backend, between two turns; for administrators."""
    principal = administrator(request)
    check_running(request)
    given = await read(request, _move_in)
    sessions, name = request.app[SESSIONS], request.match_info["session"]
    work = move(
        sessions,
        name,
        to=given.to,
        expected=given.source,
        by=principal.name,
        dry_run=given.dry_run,
    )
    return json_response(moved_out(await sessions.keep(work)))


@takes("small")
async def roll_back_session(request: web.Request) -> web.StreamResponse:
    """Let a session go on where it was before it last moved; for administrators."""
    principal = administrator(request)
    check_running(request)
    given = await read(request, _roll_back_in)
    sessions, name = request.app[SESSIONS], request.match_info["session"]
    work = roll_back(sessions, name, by=principal.name, dry_run=given.dry_run)
    return json_response(moved_out(await sessions.keep(work)))


def _move_in(body: bytes) -> MoveIn:
    return body_of(MoveIn, body)


def _roll_back_in(body: bytes) -> RollBackIn:
    return body_of(RollBackIn, body)


def moved_out(moved: MoveResult) -> MovedOut:
    """Return what came of a move."""
    return MovedOut(
        id=moved.session,
        before=moved.before,
        backend=moved.backend,
        dialect=moved.dialect,
        leg=moved.leg,
        moved=moved.moved,
        characters=moved.characters,
        history=[CarriedOut(**one.as_json()) for one in moved.history],
        notices=list(moved.notices),
    )


@takes("answer")
async def answer(request: web.Request) -> web.StreamResponse:
    """Answer an open interaction; 202 means stored, what comes of it is in the events."""
    principal, session = await session_of(request, Action.ANSWER)
    check_running(request)
    request_id = request.match_info["request"]
    given, submission = await read_submission(request, _answer_in)
    work = _answer(request, principal, session, request_id, given, submission)
    return json_response(AcceptedOut(command_id=await request.app[SESSIONS].keep(work)), 202)


def _answer_in(body: bytes) -> AnswerIn:
    return body_of(AnswerIn, body)


async def _answer(
    request: web.Request,
    principal: Principal,
    session: Session,
    request_id: str,
    given: AnswerIn,
    submission: Submission,
) -> str:
    async with request.app[SESSIONS].in_order.lock(
        principal.name, session.row.route, submission.same
    ):
        ids = session.repeated(submission)
        if ids is None:
            command = _answer_of(session, request_id, given)
            ids = await session.submit(
                [command], by=principal.name, face="control", submission=submission
            )
        return ids[0]


def _answer_of(session: Session, request_id: str, given: AnswerIn) -> AnswerInteraction:
    command = AnswerInteraction(
        request_id=request_id,
        decision=given.decision,
        scope=given.scope,
        reason=given.reason,
        option_ids=given.option_ids,
        text=given.text,
        skip=given.skip,
        sealed=None if given.sealed is None else Sealed(given.sealed.get_secret_value()),
    )
    open_ = session.state.interactions.get(request_id)
    # One that is claimed is not matched: the conflict says more than a word that does not fit.
    if open_ is not None and open_.claimed_by is None:
        command = decide(command, open_.event)
    return command


async def withdraw(request: web.Request) -> web.StreamResponse:
    """Withdraw a message that waits for its turn; one that is on its way to the backend is not."""
    principal, session = await session_of(request, Action.WRITE)
    check_running(request)
    command_id = request.match_info["input"]
    await request.app[SESSIONS].keep(session.withdraw(command_id, by=principal.name))
    return json_response(WithdrawnOut(command_id=command_id))


@takes("small")
async def settle(request: web.Request) -> web.StreamResponse:
    """Bring a session to rest whatever its backend says: the way out of one that is stuck."""
    principal, session = await session_of(request, Action.SETTLE)
    check_running(request)

    async def work() -> bool:
        settled = await session.settle(by=principal.name)
        if settled:
            owner = session.row.owner
            _log.warning(
                "session `%s` of `%s` is settled by `%s`", session.id, owner, principal.name
            )
        return settled

    settled = await request.app[SESSIONS].keep(work())
    return json_response(SettledOut(id=session.id, settled=settled))


async def migration_report(request: web.Request) -> web.StreamResponse:
    """Say how the shadows of a route, or of all, differ from the sessions that serve; for
    administrators."""
    administrator(request)
    sessions = request.app[SESSIONS]
    readiness, route = sessions.backends.readiness, request.query.get("route")
    return json_response(await report(sessions.journal, sessions.settings, readiness, route))


def _after(request: web.Request) -> int:
    """Return the seq to go on from: an EventSource that reconnects repeats its first URL, and says
    in a header how far it got.
    """
    last = whole(request.headers.get("Last-Event-ID", ""))
    after = integer(request, "after", 0)
    return (after or 0) if last is None else last


@reads
async def events(request: web.Request) -> web.StreamResponse:
    """Stream a session's canonical events after seq `after`: NDJSON, or SSE to who accepts it.

    With `follow=1`, the default of SSE, the stream goes on live until the session ends. SSE ids are
    seqs, and `Last-Event-ID` goes before `after`. With `limit` it ends after so many events. A body
    that breaks off says why in its last line.
    """
    _, session = await session_of(request, Action.READ)
    after, limit = _after(request), integer(request, "limit", None)
    if limit == 0:
        raise invalid("`limit` is at least 1, not 0.")
    body = LineStream(request, sse="text/event-stream" in request.headers.get("Accept", ""))
    follow = yes(request, "follow", default=body.sse)
    work = _write_events(request, session, after, body, follow=follow, limit=limit)
    return await streamed(request, body, work)


@reads
async def archive(request: web.Request) -> web.StreamResponse:
    """Stream a session as `POST /sessions/import` of another installation takes it; for
    administrators.

    It is refused while anything is under way in the session. The archive holds the session's secret
    and all that was said. A body that breaks off says why in its last line.
    """
    principal = administrator(request)
    sessions = request.app[SESSIONS]
    async with request.app[PACKING]:
        # Who has left while others were before it gets none.
        check_there(request)
        packed = await pack(sessions.journal, request.match_info["session"])
    _log.info("session `%s` is exported by `%s`", packed.head.row.id, principal.name)
    body = LineStream(request, sse=False)

    async def write() -> None:
        async with aclosing(request.app[TURNS].of(packed.lines())) as pieces:
            async for lines in pieces:
                await body.write(lines)

    return await streamed(request, body, write())


# The largest session of an archive: it is never in memory.
@takes(4 * 2**30)
async def import_session(request: web.Request) -> web.StreamResponse:
    """Take in the session of an archive, whole or not at all; for administrators.

    `owner` is the key that it belongs to here, else that of the archive; `backend`, as `OLD=NEW`,
    how a backend is called here, which must be ready. With `dry_run` nothing is stored.
    """
    principal = administrator(request)
    check_running(request)
    owner = request.query.get("owner")
    if owner is not None and not is_name(owner):
        raise invalid(f"`owner` is the name of a key, not `{owner[:40]}`.")
    wishes = Wishes(
        owner=owner,
        backends=dict(_renamed(request)),
        dry_run=yes(request, "dry_run", default=False),
    )
    sessions = request.app[SESSIONS]
    for name in set(wishes.backends.values()):
        backend = sessions.backends.get(name)
        if backend is not None:
            await sessions.backends.readiness.require(backend)
    if sessions.arrivals.locked():
        raise DragomanError(
            "Another session is being imported; try again.",
            code=ErrorCode.OVERLOADED,
            details={"retry_after": RETRY_SECONDS},
        )
    async with sessions.arrivals:
        lines = lines_of(read_pieces(request))
        done = await unpack(sessions.journal, request.app[SESSIONS].settings, lines, wishes)
    _log.info("session `%s` is %s by `%s`", done.id, done.status, principal.name)
    return json_response(imported_out(done))


def imported_out(done: ImportResult) -> ImportedOut:
    """Return what became of a session of an archive."""
    return ImportedOut(**dataclasses.asdict(done))


def _renamed(request: web.Request) -> Iterator[tuple[str, str]]:
    for text in request.query.getall("backend", []):
        old, _, new = text.partition("=")
        if not (is_name(old) and is_name(new)):
            raise invalid(f"`backend` is `OLD=NEW`, not `{text[:40]}`.")
        yield old, new


async def _write_events(
    request: web.Request,
    session: Session,
    after: int,
    body: LineStream,
    *,
    follow: bool,
    limit: int | None,
) -> None:
    """Write the entries after a seq, at most `limit` of them."""
    sessions = request.app[SESSIONS]
    while True:
        news = session.news()
        if after < session.last_seq:
            stored = request.app[TURNS].of(stored_entries(sessions.journal, session, after))
            async with aclosing(stored):
                async for entries in stored:
                    entries = entries[:limit]
                    await body.write(b"".join(map(body.line, entries)))
                    after = entries[-1].seq
                    if limit is not None and not (limit := limit - len(entries)):
                        return
        # The end may be on its way to the disk still.
        over = session.state.ended is not None and after >= session.state.seq
        if not follow or over or sessions.stopping:
            return
        if session.closed:
            # It left memory; what else there is, is in the journal.
            session = await sessions.get(session.id, owner=None, route=None)
            continue
        # A session that somebody watches stays in memory.
        session.used_at = sessions.clock.monotonic()
        await body.prepare()
        if not await sessions.clock.wait(news, 10.0):
            await body.write(body.heartbeat())


_COUNT = {"type": "integer", "minimum": 0}
_YES = {"enum": ["0", "1", "false", "true"]}

ENDPOINTS = (
    Endpoint("GET", "/backends", backends, BackendsOut),
    *checks.ENDPOINTS,
    *dialects.ENDPOINTS,
    Endpoint("GET", "/routes", list_routes, RoutesOut),
    Endpoint("PUT", "/routes/{route}", set_route, ChangedRouteOut, body=RouteIn),
    Endpoint("DELETE", "/routes/{route}", reset_route, ChangedRouteOut),
    *listing.ENDPOINTS,
    Endpoint(
        "POST",
        "/sessions/import",
        import_session,
        ImportedOut,
        query={
            "owner": {"type": "string"},
            "backend": {"type": "array", "items": {"type": "string"}},
            "dry_run": _YES,
        },
        archive="takes",
    ),
    Endpoint("GET", "/sessions/{session}", show_session, SessionDetailOut),
    Endpoint("DELETE", "/sessions/{session}", delete_session, DeletedOut, query={"local": _YES}),
    Endpoint(
        "GET",
        "/sessions/{session}/events",
        events,
        None,
        query={
            "after": {**_COUNT, "default": 0},
            "limit": {"type": "integer", "minimum": 1},
            "follow": _YES,
        },
    ),
    *translation.ENDPOINTS,
    *captures.ENDPOINTS,
    Endpoint("GET", "/sessions/{session}/archive", archive, None, archive="gives"),
    Endpoint("DELETE", "/sessions/{session}/inputs/{input}", withdraw, WithdrawnOut),
    Endpoint("POST", "/sessions/{session}/settle", settle, SettledOut),
    Endpoint("POST", "/prune", prune, PrunedOut, body=PruneIn),
    Endpoint(
        "GET",
        "/migration/plan",
        plan_migration,
        PlanLineOut,
        query={"from": {"type": "string"}, "to": {"type": "string"}},
        lines=True,
    ),
    Endpoint(
        "GET",
        "/migration/sessions",
        list_movable,
        SessionsOut,
        query={
            "from": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST, "default": PAGE},
            "before": _COUNT,
        },
    ),
    Endpoint(
        "GET",
        "/migration/moved",
        list_moved,
        MovedSessionsOut,
        query={
            "from": {"type": "string"},
            "to": {"type": "string"},
            "since": _COUNT,
            "changed": _COUNT,
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST, "default": PAGE},
            "before": _COUNT,
        },
    ),
    Endpoint("POST", "/sessions/{session}/move", move_session, MovedOut, body=MoveIn),
    Endpoint("POST", "/sessions/{session}/rollback", roll_back_session, MovedOut, body=RollBackIn),
    Endpoint(
        "GET",
        "/migration/report",
        migration_report,
        ShadowReportOut,
        query={"route": {"type": "string"}},
    ),
    Endpoint("GET", "/interactions", list_interactions, InteractionsOut),
    Endpoint(
        "POST",
        "/sessions/{session}/interactions/{request}",
        answer,
        AcceptedOut,
        status=202,
        body=AnswerIn,
    ),
)
"""The API, in one table."""


def openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of this API."""
    schemas: dict[str, Any] = {}
    bodies = {endpoint.body for endpoint in ENDPOINTS}

    def ref(model: type[BaseModel]) -> dict[str, Any]:
        mode: Literal["validation", "serialization"] = (
            "validation" if model in bodies else "serialization"
        )
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode=mode)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
        return {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}

    failure = {"description": "An error.", "content": {"application/json": ref(ErrorOut)}}
    paths: dict[str, Any] = {}
    for endpoint in ENDPOINTS:
        doc = " ".join((endpoint.handler.__doc__ or "").split())
        summary = doc.partition(". ")[0].rstrip(".")
        operation: dict[str, Any] = {
            "operationId": endpoint.handler.__name__,
            "summary": summary,
            "description": doc,
            "parameters": _parameters(endpoint),
            "responses": {
                str(endpoint.status): {
                    "description": summary,
                    "content": _stream(endpoint)
                    if endpoint.answer is None
                    else {_LINES if endpoint.lines else _ONE: ref(endpoint.answer)},
                },
                "default": failure,
            },
        }
        if endpoint.body is not None:
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": ref(endpoint.body)},
            }
        if endpoint.archive == "takes":
            operation["requestBody"] = {"required": True, "content": _ARCHIVE}
        if endpoint.takes is not None:
            operation["requestBody"] = {"required": True, "content": {endpoint.takes: _FILE}}
        paths.setdefault(f"/api/v1{endpoint.path}", {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dragoman control API", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # Without configured keys no key is needed.
        "security": [{"bearer": []}, {"header": []}, {}],
    }


_ONE, _LINES = "application/json", "application/x-ndjson"

_ARCHIVE = {_LINES: {"schema": {"type": "string"}}}

_FILE: dict[str, Any] = {}
"""A file as it is, to OpenAPI 3.1."""

_EVENTS = {
    **_ARCHIVE,
    "text/event-stream": {"schema": {"type": "string"}},
}
"""A line of the one, and the `data` of the other, is an entry of the canonical log."""


def _stream(endpoint: Endpoint) -> Mapping[str, Any]:
    if endpoint.gives is not None:
        return {endpoint.gives: _FILE}
    return _EVENTS if endpoint.archive is None else _ARCHIVE


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    text = {"type": "string"}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in names
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": dict(schema)}
        for name, schema in endpoint.query.items()
    ]
    if _stream(endpoint) is _EVENTS and endpoint.answer is None:
        parameters.append(
            {"name": "Last-Event-ID", "in": "header", "required": False, "schema": text}
        )
    return parameters


@functools.cache
def document_json() -> bytes:
    """Return the OpenAPI document. It takes long to make: it is made once, off the loop."""
    return format_json(openapi())


async def document(request: web.Request) -> web.StreamResponse:
    """Return the OpenAPI document; it is open to everybody."""
    return web.Response(body=document_json(), content_type="application/json")


async def unknown(request: web.Request) -> web.StreamResponse:
    """Answer a path that is not one of ours, or a method that a path does not have."""
    principal_of(request)
    asked = [KnownPath(endpoint.method, f"/api/v1{endpoint.path}") for endpoint in ENDPOINTS]
    if allowed := fitting(asked, request.path):
        raise DragomanError(
            f"`{request.path[:200]}` takes {' and '.join(allowed)} only.",
            code=ErrorCode.METHOD_NOT_ALLOWED,
        )
    way = way_out(asked, request.method, request.path).rstrip(".")
    raise DragomanError(
        f"There is no `{request.method} {request.path[:SHOWN]}`. {way}; "
        "/api/v1/openapi.json describes all.",
        code=ErrorCode.NOT_FOUND,
    )


def add_routes(router: web.UrlDispatcher) -> None:
    """Add the routes of the control API."""
    for endpoint in ENDPOINTS:
        path = f"/api/v1{endpoint.path}"
        router.add_route(endpoint.method, path, guarded(endpoint.handler))
    router.add_route("GET", "/api/v1/openapi.json", guarded(document))
