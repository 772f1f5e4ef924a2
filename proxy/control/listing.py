"""The list of sessions of the control API: what is stored of each, and of those in memory what goes
on in them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from aiohttp import web
from pydantic import Field

from adapters.model import events as ev
from adapters.model.normalizer import Rule
from adapters.model.state import LogState
from adapters.wire.errors import DragomanError
from proxy.base.errors import CursorExpired
from proxy.base.rows import SessionRow
from proxy.config.settings import SHADOWS
from proxy.control.api import (
    MOST,
    PAGE,
    VERSION,
    ApiModel,
    Endpoint,
    integer,
    invalid,
    json_response,
    limit_of,
    principal_of,
    yes,
)
from proxy.entry.keys import SESSIONS
from proxy.http.auth import administers, authorize_admin, may_use
from proxy.session import Session, StartTimes
from proxy.sessions.cache import SessionCache
from proxy.sessions.stored import looking_at

STEP = 128
"""Sessions that are put into a page at once: others have their turn between."""


class SessionOut(ApiModel):
    """A session. Times are Unix milliseconds; `dialect` is the face that made it; `bytes` is what
    its events, source frames and files take; `last_message` is how the newest message that is over
    ended, null before the first."""

    id: str
    route: str
    dialect: str
    owner: str
    state: Literal["idle", "running", "paused", "ended", "deleted", "expired"]
    title: str | None
    created_at: int
    updated_at: int
    last_seq: int
    bytes: int
    last_message: Literal["completed", "failed", "refused", "unknown", "withdrawn"] | None = None


class WaitingOut(ApiModel):
    """What a session waits for: answers of a `person`, other `task`s of the agent, or its
    `backend`; for how many, and since when, in Unix milliseconds, null where that is not known."""

    count: int
    since: int | None
    kind: Literal["person", "task", "backend"]


class ListedSessionOut(SessionOut):
    """A session in a list; `backend` is the one that it has now. Of a session in memory there are
    besides: `dialects`, the number of open streams in each dialect that reads it; `waiting`; and
    since it was loaded or moved, `repairs` of what its backend said and `losses`: frames that could
    not be read, and events that only their own dialect is shown. Of any other these two are
    null."""

    backend: str
    dialects: dict[str, int] = Field(default_factory=dict)
    waiting: WaitingOut | None = None
    repairs: int | None = None
    losses: int | None = None


class SessionsOut(ApiModel):
    """A page of sessions, newest first; `next` is the `before` of the next page."""

    version: int = VERSION
    sessions: list[ListedSessionOut]
    next: int | None


async def list_sessions(request: web.Request) -> web.StreamResponse:
    """List the key's sessions, newest first; `state`, `failed`, `route`, `name`, `changed`, `limit`
    and `before` narrow and page. An administrator gets those of every owner; `all` refuses
    everybody else."""
    principal, settings = principal_of(request), request.app[SESSIONS].settings
    every = yes(request, "all", default=administers(principal, settings))
    if every:
        authorize_admin(principal, settings)
    states = request.query.getall("state", []) or None
    known = get_args(SessionOut.model_fields["state"].annotation)
    for state in states or ():
        if state not in known:
            raise invalid(f"`state` is one of {', '.join(known)}, not `{state[:40]}`.")
    limit = limit_of(request)
    rows = await request.app[SESSIONS].journal.sessions(
        owner=None if every else principal.name,
        route=request.query.get("route"),
        states=states or ("idle", "running", "paused", "ended"),
        failed=yes(request, "failed", default=False),
        before=integer(request, "before", None),
        named=request.query.get("name"),
        changed=integer(request, "changed", None),
        limit=limit,
    )
    visible = [
        row
        for row in rows
        if row.owner != SHADOWS and (every or may_use(principal, row.route, settings))
    ]
    following = rows[-1].key if len(rows) == limit else None
    return json_response(await page_of(request, visible, following))


async def page_of(
    request: web.Request, rows: Sequence[SessionRow], following: int | None
) -> dict[str, Any]:
    """Return a page of sessions as JSON, as `SessionsOut` has it."""
    sessions = request.app[SESSIONS]
    backends = await sessions.journal.backends_of([row.key for row in rows])
    found: list[dict[str, Any]] = []
    for some in _steps(listed_out(rows, backends, sessions.cache)):
        for one in some if sessions.journal.shared is not None else ():
            await _add_stored(one, sessions.cache)
        found += [one.model_dump(mode="json") for one in some]
        await asyncio.sleep(0)
    return {"version": VERSION, "sessions": found, "next": following}


async def _add_stored(out: ListedSessionOut, cache: SessionCache) -> None:
    """Add what a session waits for that another process has in memory."""
    if out.state not in ("running", "paused") or cache.at_hand(out.id) is not None:
        return
    # One that cannot be read, or went meanwhile, hides no other.
    with contextlib.suppress(DragomanError, CursorExpired):
        async with looking_at(cache, out.id) as session:
            out.waiting = waiting_of(session.state, session.times)


def _steps(sessions: Iterator[ListedSessionOut]) -> Iterator[list[ListedSessionOut]]:
    while some := list(itertools.islice(sessions, STEP)):
        yield some


def listed_out(
    rows: Sequence[SessionRow], backends: Mapping[int, str], cache: SessionCache | None
) -> Iterator[ListedSessionOut]:
    """Yield sessions as lists show them; what is not in memory is not loaded."""
    for row in rows:
        out = ListedSessionOut(**_members(row), backend=backends.get(row.key, ""))
        session = None if cache is None else cache.at_hand(row.id)
        if session is not None and not session.closed:
            _add_live(out, session)
        yield out


def _add_live(out: ListedSessionOut, session: Session) -> None:
    repairs = session.repairs
    unrepaired = repairs.get(Rule.UNREPAIRED, 0)
    out.dialects = dict(session.feeds.dialects)
    out.waiting = waiting_of(session.state, session.times)
    if out.waiting is None and session.working:
        count, since = session.unanswered()
        out.waiting = WaitingOut(count=count, since=since, kind="backend")
    out.repairs = sum(repairs.values()) - unrepaired
    out.losses = session.skipped + unrepaired


def waiting_of(state: LogState, times: StartTimes) -> WaitingOut | None:
    """Return what the open turns of a session wait for: for people where anything is asked that
    nobody has answered, else for what the main turn waits for."""
    asked = [name for name, one in state.interactions.items() if one.claimed_by is None]
    if asked:
        since = _earliest(times.interactions, asked)
        return WaitingOut(count=len(asked), since=since, kind="person")
    turns = {name: one.turn for name, one in state.threads.items() if one.turn is not None}
    if not turns:
        return None
    tasks = [name for name, turn in turns.items() if turn.paused_on == "tasks"]
    if tasks and (ev.MAIN in tasks or len(tasks) == len(turns)):
        return WaitingOut(count=len(tasks), since=_earliest(times.turns, tasks), kind="task")
    others = [name for name in turns if name not in tasks]
    return WaitingOut(count=len(others), since=_earliest(times.turns, others), kind="backend")


def _earliest(times: Mapping[str, int], names: Sequence[str]) -> int | None:
    return min((times[name] for name in names if name in times), default=None)


def row_out(row: SessionRow) -> SessionOut:
    """Return what is stored of a session."""
    return SessionOut(**_members(row))


def _members(row: SessionRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "route": row.route,
        "dialect": row.dialect,
        "owner": row.owner,
        "state": row.state,
        "title": row.title,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "last_seq": row.last_seq,
        "bytes": row.bytes,
        "last_message": row.outcome,
    }


_COUNT = {"type": "integer", "minimum": 0}
_YES = {"enum": ["0", "1", "false", "true"]}

ENDPOINTS = (
    Endpoint(
        "GET",
        "/sessions",
        list_sessions,
        SessionsOut,
        query={
            "state": {
                "type": "array",
                "items": {"enum": list(get_args(SessionOut.model_fields["state"].annotation))},
            },
            "failed": _YES,
            "route": {"type": "string"},
            "name": {"type": "string"},
            "changed": _COUNT,
            "limit": {"type": "integer", "minimum": 1, "maximum": MOST, "default": PAGE},
            "before": _COUNT,
            "all": _YES,
        },
    ),
)
