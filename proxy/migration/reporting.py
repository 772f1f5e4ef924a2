"""Says how shadows differ from the sessions that serve.

It reads one pair of logs at a time, each up to where the shadow has been given all; what came since
waits for the next report.
"""

from __future__ import annotations

import array
import asyncio
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.errors import CursorExpired, SessionNotFound
from proxy.base.rows import SessionRow
from proxy.config.settings import Settings
from proxy.journal.base import Journal
from proxy.migration.comparison import CalledTool, ComparisonResult, compare_pair
from proxy.migration.progress import MOST_NOTES, Progress, progress_of, read_log
from proxy.sessions.shadows import GONE, shadow_at, shadow_backend
from proxy.upstream.readiness import Readiness

MOST_EXAMPLES = 50
"""Sessions, and calls of tools, that are listed of each kind; all are counted."""


class ReportModel(BaseModel):
    """A part of the report."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class DifferingOut(ReportModel):
    """A session that differs: the field or event of the first difference, and the lines that show
    it."""

    session: str
    shadow: str
    path: str
    lines: list[str]


class NotDrivenOut(ReportModel):
    """A session whose shadow did not come to its end, and why."""

    session: str
    shadow: str
    why: str


class NotesOut(ReportModel):
    """What could not be repeated in a session as it was."""

    session: str
    notes: list[str]


class TimesOut(ReportModel):
    """How long turns took, in milliseconds, without the time in which they waited for a person."""

    turns: int
    median_ms: float | None
    p95_ms: float | None


class SpeedOut(ReportModel):
    """How long the turns took of the sessions that were compared; a ratio above 1 says that the
    shadow is slower."""

    serving: TimesOut
    shadow: TimesOut
    median_ratio: float | None
    p95_ratio: float | None


class CallOut(ReportModel):
    """A tool that was called otherwise: its name and input on both sides."""

    session: str
    turn: int
    how: Literal["name", "input", "missing", "additional"]
    serving: str | None
    shadow: str | None


class ToolsOut(ReportModel):
    """How many tools the serving sessions called, and how many calls differ in which way."""

    called: int
    name: int
    input: int
    missing: int
    additional: int
    examples: list[CallOut]


class RouteOut(ReportModel):
    """A route with a shadow, and why that is not `running` where it is not. Of its `sessions` that
    are shadowed, `compared` were, as far as their shadows were given all: `same` and `differing` of
    them. `not_driven` did not come so far, and `waiting` have not come to rest, or have not had
    their turn."""

    route: str
    backend: str
    running: bool
    why: str
    sessions: int
    compared: int
    same: int
    differing: int
    not_driven: int
    waiting: int
    differences: list[DifferingOut]
    stopped: list[NotDrivenOut]
    notes: list[NotesOut]
    speed: SpeedOut
    tools: ToolsOut


class ShadowReportOut(ReportModel):
    """How shadows differ from what serves, for each route that has one."""

    version: int = 1
    routes: list[RouteOut]


class _Counts:
    """What is known so far of one route."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.differences: list[DifferingOut] = []
        self.stopped: list[NotDrivenOut] = []
        self.notes: list[NotesOut] = []
        self.serving_ms = array.array("q")
        self.shadow_ms = array.array("q")
        self.how: Counter[str] = Counter()
        self.calls: list[CallOut] = []

    def not_driven(self, session: str, shadow: str, progress: Progress, why: str) -> None:
        self.total["not_driven"] += 1
        self._noted(session, progress)
        if len(self.stopped) < MOST_EXAMPLES:
            self.stopped.append(NotDrivenOut(session=session, shadow=shadow, why=why))

    def compared(
        self, session: str, shadow: str, progress: Progress, found: ComparisonResult
    ) -> None:
        self.total["compared"] += 1
        self._noted(session, progress)
        self.serving_ms.extend(found.serving_ms)
        self.shadow_ms.extend(found.shadow_ms)
        self.total["calls"] += found.calls
        for called in found.called:
            self._called(session, called)
        if found.path is None:
            self.total["same"] += 1
        elif len(self.differences) < MOST_EXAMPLES:
            self.differences.append(
                DifferingOut(
                    session=session, shadow=shadow, path=found.path, lines=list(found.lines)
                )
            )

    def _noted(self, session: str, progress: Progress) -> None:
        if progress.notes and len(self.notes) < MOST_EXAMPLES:
            self.notes.append(NotesOut(session=session, notes=list(progress.notes[:MOST_NOTES])))

    def _called(self, session: str, called: CalledTool) -> None:
        self.how[called.how] += 1
        if len(self.calls) < MOST_EXAMPLES:
            self.calls.append(
                CallOut(
                    session=session,
                    turn=called.turn,
                    how=called.how,
                    serving=called.serving,
                    shadow=called.shadow,
                )
            )

    def out(self, route: str, backend: str, why: str) -> RouteOut:
        total, how = self.total, self.how
        serving, shadow = _times(self.serving_ms), _times(self.shadow_ms)
        return RouteOut(
            route=route,
            backend=backend,
            running=not why,
            why=why,
            sessions=total["sessions"],
            compared=total["compared"],
            same=total["same"],
            differing=total["compared"] - total["same"],
            not_driven=total["not_driven"],
            waiting=total["sessions"] - total["compared"] - total["not_driven"],
            differences=self.differences,
            stopped=self.stopped,
            notes=self.notes,
            speed=SpeedOut(
                serving=serving,
                shadow=shadow,
                median_ratio=_ratio(shadow.median_ms, serving.median_ms),
                p95_ratio=_ratio(shadow.p95_ms, serving.p95_ms),
            ),
            tools=ToolsOut(
                called=total["calls"],
                name=how["name"],
                input=how["input"],
                missing=how["missing"],
                additional=how["additional"],
                examples=self.calls,
            ),
        )


def _times(found: Sequence[int]) -> TimesOut:
    if not found:
        return TimesOut(turns=0, median_ms=None, p95_ms=None)
    ordered = sorted(found)
    # The nearest rank: no less than 95 of 100 took at most so long.
    p95 = ordered[-(-95 * len(ordered) // 100) - 1]
    return TimesOut(turns=len(ordered), median_ms=statistics.median(ordered), p95_ms=p95)


def _ratio(shadow: float | None, serving: float | None) -> float | None:
    return round(shadow / serving, 3) if shadow is not None and serving else None


async def report(
    journal: Journal, settings: Settings, readiness: Readiness, route: str | None
) -> ShadowReportOut:
    """Return the report, of one route or of all that have a shadow.

    Raises:
        DragomanError: the route has none.
        JournalError: a log cannot be read.
    """
    shadows = {one.name: one.shadow for one in settings.routes if one.shadow is not None}
    if route is not None:
        if route not in shadows:
            text = f"There is no route `{route[:80]}` with a shadow."
            raise DragomanError(text, code=ErrorCode.NOT_FOUND)
        shadows = {route: shadows[route]}
    routes = []
    for name, shadow in shadows.items():
        backend = settings.backend(shadow)
        assert backend is not None
        why = (await readiness.check(backend)).why
        routes.append(await _of_route(journal, settings, name, shadow, why))
    return ShadowReportOut(routes=routes)


async def _of_route(
    journal: Journal, settings: Settings, route: str, backend: str, why: str
) -> RouteOut:
    counts = _Counts()
    async for row in _rows(journal, route):
        try:
            await _count(journal, settings, row, backend, counts)
        except (SessionNotFound, CursorExpired):
            # It went while it was read.
            counts.total["sessions"] -= 1
    return counts.out(route, backend, why)


async def _rows(journal: Journal, route: str) -> AsyncIterator[SessionRow]:
    before: int | None = None
    while rows := await journal.sessions(route=route, before=before, limit=256):
        for row in rows:
            if row.state not in GONE:
                yield row
        before = rows[-1].key


async def _is_of(journal: Journal, row: SessionRow, settings: Settings, backend: str) -> bool:
    """Say whether a session was always at backends of the dialect that its shadow's speaks."""
    names = {leg.backend for leg in await journal.legs(row.key)} | {backend}
    found = [settings.backend(name) for name in names]
    return len({None if one is None else one.dialect for one in found}) == 1


async def _count(
    journal: Journal, settings: Settings, row: SessionRow, backend: str, counts: _Counts
) -> None:
    if shadow_backend(await journal.aliases(row.key)) != backend:
        return
    counts.total["sessions"] += 1
    found = await shadow_at(journal, backend, row.id)
    if found is None:
        return
    shadow = await journal.session(found)
    if shadow.state in GONE:
        counts.not_driven(row.id, found, Progress(), "Its shadow is no longer kept.")
        return
    log = await read_log(journal, shadow)
    progress = progress_of(log)
    if progress.failed is not None:
        counts.not_driven(row.id, found, progress, progress.failed)
    elif progress.seq:
        serving = await read_log(journal, row, progress.seq)
        # In a thread: others have their turn while long logs are compared.
        pair = await asyncio.to_thread(
            compare_pair,
            serving,
            log[: progress.end],
            one_dialect=await _is_of(journal, row, settings, backend),
        )
        counts.compared(row.id, found, progress, pair)


# For people.


def lines_of(report: ShadowReportOut) -> list[str]:
    """Return the report for people."""
    out: list[str] = []
    for one in report.routes:
        out += [*([""] if out else []), *_route_lines(one)]
    return out or ["No route has a shadow."]


def _route_lines(one: RouteOut) -> list[str]:
    tools, speed = one.tools, one.speed
    out = [
        f"route {one.route}, shadow {one.backend}: {one.sessions} sessions,"
        f" {one.compared} compared, {one.same} the same, {one.differing} differ,"
        f" {one.not_driven} whose shadow stopped, {one.waiting} waiting",
        f"turns: serving {_shown(speed.serving)}; shadow {_shown(speed.shadow)};"
        f" ratio {_number(speed.median_ratio)} (p95 {_number(speed.p95_ratio)})",
        f"tools: {tools.called} called; another name {tools.name}, another input {tools.input},"
        f" missing {tools.missing}, additional {tools.additional}",
    ]
    if not one.running:
        out.append(f"shadow {one.backend} is not running: {one.why}")
    for differing in one.differences:
        out += ["", f"{differing.session} differs from {differing.shadow}:", *differing.lines]
    for stopped in one.stopped:
        out += ["", f"{stopped.session}: its shadow {stopped.shadow} stopped:"]
        out.append(f"  {stopped.why}")
    for noted in one.notes:
        out += ["", f"{noted.session} was not repeated as it was:"]
        out += [f"  {note}" for note in noted.notes]
    for call in tools.examples:
        out += ["", f"{call.session}, turn {call.turn}: tool, {call.how}"]
        out += [f"  - {call.serving or '(nothing)'}", f"  + {call.shadow or '(nothing)'}"]
    return out


def _shown(times: TimesOut) -> str:
    return f"{_number(times.median_ms)} ms (p95 {_number(times.p95_ms)})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"
