"""What the sessions on one backend used that another cannot do, and whether that one can be used at
all: the plan of a migration.

The journal is read session by session and chunk by chunk; nothing is changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict

from adapters.model.base import ClientCodec
from adapters.offline.moves.required_abilities import (
    RequiredAbilities,
    UsedAbility,
    Verdict,
    judge,
    said_of_whole,
)
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError, ErrorCode, NotSupported
from adapters.wire.jsonvalue import format_json
from proxy.base.errors import JournalCorrupt
from proxy.base.rows import SessionRow
from proxy.config.matrix import mapping_of
from proxy.config.settings import SHADOWS, BackendSettings, Settings
from proxy.fanout.hub import entries_by_steps
from proxy.journal.base import Journal
from proxy.upstream.backend_check import CheckResult
from proxy.upstream.findings import Kind

LARGE = 400_000
"""Bytes of a conversation that is large: some 100,000 tokens, half of what models take today."""

PAGE = 100
"""Sessions that are asked for at a time."""

LIVING = ("idle", "running", "paused", "ended")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CountedOut(_Body):
    """How many sessions, and some of them."""

    sessions: int = 0
    examples: list[str] = []

    def add(self, session: str) -> None:
        """Count a session."""
        self.sessions += 1
        if len(self.examples) < 3:
            self.examples.append(session)


class FindingOut(CountedOut):
    """Something that was used, how often, and what becomes of it on the other backend."""

    area: Literal["command", "interaction", "agent"]
    what: str
    times: int = 0
    verdict: Verdict
    consequence: str


@dataclasses.dataclass
class _Tally:
    """How often something was used, in which sessions."""

    counted: CountedOut = dataclasses.field(default_factory=CountedOut)
    times: int = 0


class HeldOut(CountedOut):
    """Sessions that cannot be moved now, and why; one may be held by several things."""

    why: str


class LargeOut(CountedOut):
    """Sessions whose conversation has more than `over_bytes` bytes of words."""

    over_bytes: int = LARGE
    largest_bytes: int = 0


class TargetOut(_Body):
    """Whether the backend that sessions are to move to can be used; `why` says what is wrong, or
    what could not be learned, and `kind` is what is wrong, for programs."""

    ready: Literal["yes", "no", "not_known"]
    why: list[str]
    kind: Kind | None = None


class PlanOut(_Body):
    """What the sessions on `source` used and what `target` makes of it; `check` says whether it can
    be used. `faces` has, by the dialect of frontends, how often they sent which command."""

    version: int = 1
    source: str
    target: str
    check: TargetOut
    sessions: int
    impossible: int
    findings: list[FindingOut]
    held: list[HeldOut]
    large: LargeOut
    faces: dict[str, dict[str, int]]


class PlanLineOut(_Body):
    """One line: how many sessions were read so far, or in the last one the plan."""

    read: int | None = None
    plan: PlanOut | None = None

    def line(self) -> bytes:
        """Return it as a line."""
        return format_json(self.model_dump(mode="json", exclude_none=True)) + b"\n"


def named(
    settings: Settings,
    source: str,
    target: str,
) -> tuple[BackendSettings, BackendSettings]:
    """Return the two backends of a plan.

    Raises:
        DragomanError: one is not configured, they are one, or one cannot be driven.
    """
    found = []
    for name in (source, target):
        backend = settings.backend(name)
        if backend is None:
            raise DragomanError(
                f"There is no backend `{name[:80]}`: name one of [[backends]].",
                code=ErrorCode.NOT_FOUND,
            )
        found.append(backend)
    if source == target:
        raise DragomanError(
            f"Both are backend `{source}`: name another one to move to.",
            code=ErrorCode.INVALID_REQUEST,
        )
    for backend in found:
        _codec(backend)
    return found[0], found[1]


def _codec(backend: BackendSettings) -> ClientCodec:
    make, undriven = DIALECTS[backend.dialect].client, DIALECTS[backend.dialect].not_driven
    if make is None or undriven:
        raise NotSupported(
            f"Backend `{backend.name}` is of dialect `{backend.dialect}`, {undriven}."
        )
    return make(
        {
            **backend.settings.model_dump(exclude_none=True),
            **backend.create.model_dump(exclude_none=True),
            "task_id": "-",
        }
    )


class Planner:
    """Reads the sessions whose newest leg is on one backend, and makes the plan for another one.
    `checked` is what was found of that one, None where it was not asked."""

    def __init__(
        self, source: BackendSettings, target: BackendSettings, checked: CheckResult | None
    ) -> None:
        self._source, self._target = source, target
        self._checked = checked
        self._sessions = 0
        self._used: defaultdict[UsedAbility, _Tally] = defaultdict(_Tally)
        self._held: dict[str, HeldOut] = {}
        self._large = LargeOut()
        self._said: Counter[tuple[str, str]] = Counter()

    async def read(self, journal: Journal) -> AsyncGenerator[int]:
        """Read all sessions; yield often how many were looked at.

        Raises:
            JournalError: the journal cannot be read.
        """
        looked = 0
        before: int | None = None
        while page := await journal.sessions(
            backend=self._source.name, states=LIVING, before=before, limit=PAGE
        ):
            for row in page:
                looked += 1
                yield looked
                if row.owner == SHADOWS:
                    continue
                async for _ in self._session(journal, row):
                    yield looked
            before = page[-1].key

    async def _session(self, journal: Journal, row: SessionRow) -> AsyncIterator[None]:
        needs = RequiredAbilities()
        try:
            async for chunk in journal.scan(row.key):
                async for entry in entries_by_steps(chunk.body, row.id):
                    needs.apply(entry.event)
                yield
        except JournalCorrupt:
            # One that is damaged must not hide what all others need.
            self._hold(row.id, "damaged")
        self._add(row.id, needs)

    def _add(self, session: str, needs: RequiredAbilities) -> None:
        self._sessions += 1
        for use, times in needs.uses.items():
            tally = self._used[use]
            tally.counted.add(session)
            tally.times += times
        for why in needs.held:
            self._hold(session, why)
        if needs.bytes > LARGE:
            self._large.add(session)
        self._large.largest_bytes = max(self._large.largest_bytes, needs.bytes)
        self._said += needs.said

    def _hold(self, session: str, why: str) -> None:
        self._held.setdefault(why, HeldOut(why=why)).add(session)

    def plan(self) -> PlanOut:
        """Return what came of it: what is impossible first, then what is emulated.

        Raises:
            DragomanError: the dialect of the other backend has no tables.
        """
        findings = self._findings()
        faces: dict[str, dict[str, int]] = {}
        for (face, command), times in sorted(self._said.items()):
            faces.setdefault(face, {})[command] = times
        return PlanOut(
            source=self._source.name,
            target=self._target.name,
            check=_target_out(self._checked),
            sessions=self._sessions,
            impossible=sum(one.verdict is Verdict.IMPOSSIBLE for one in findings),
            findings=findings,
            held=sorted(self._held.values(), key=lambda one: one.why),
            large=self._large,
            faces=faces,
        )

    def _findings(self) -> list[FindingOut]:
        codec, mapping = _codec(self._target), mapping_of(self._target.dialect)
        found = []
        for use, tally in self._used.items():
            if said_of_whole(use, codec):
                continue
            judgement = judge(use, codec, mapping)
            found.append(
                FindingOut(
                    area=use.area,
                    what=use.name,
                    sessions=tally.counted.sessions,
                    times=tally.times,
                    examples=tally.counted.examples,
                    verdict=judgement.verdict,
                    consequence=judgement.consequence,
                )
            )
        order = list(Verdict)
        return sorted(found, key=lambda one: (order.index(one.verdict), one.area, one.what))


def _target_out(checked: CheckResult | None) -> TargetOut:
    if checked is None:
        why = (
            "It was not asked: a plan from a journal's file asks no backend, `dragoman check` does."
        )
        return TargetOut(ready="not_known", why=[why])
    if checked.failed is not None:
        return TargetOut(ready="no", why=[checked.why], kind=checked.failed[1].kind)
    notices = checked.notices
    return TargetOut(ready="not_known" if notices else "yes", why=notices)


class Lines:
    """Takes the lines of the answer: `told` hears of the progress, `plan` is there at the end."""

    def __init__(self, told: Callable[[str, int, int], None]) -> None:
        self._told = told
        self.plan: dict[str, Any] | None = None

    def write(self, data: bytes, /) -> int:
        """Take one line; what is neither of both is nothing of ours, and no plan comes of it."""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            value = orjson.loads(data)
            if "plan" in value:
                self.plan = value["plan"]
            else:
                self._told("sessions read", value["read"], 0)
        return len(data)


async def planned(
    journal: Journal, settings: Settings, source: str, target: str, lines: Lines
) -> None:
    """Plan for all sessions of a journal, no matter whose they are. No backend is asked.

    Raises:
        DragomanError: as `named` and `Planner` say.
    """
    planner = Planner(*named(settings, source, target), checked=None)
    async for read in planner.read(journal):
        lines.write(PlanLineOut(read=read).line())
    lines.write(PlanLineOut(plan=planner.plan()).line())


def rows_of(plan: Mapping[str, Any]) -> list[list[object]]:
    """Return a plan as the rows of a table: verdict, what, sessions, times, examples and what
    follows. What is not a finding has its kind in the place of the verdict."""
    check, target = plan["check"], f"backend {plan['target']}"
    ready = {"yes": "ready", "no": "not ready", "not_known": "not known"}[check["ready"]]
    rows: list[list[object]] = [
        [ready, target, None, None, None, why] for why in check["why"] or [None]
    ]
    rows += [
        [
            one["verdict"],
            f"{one['area']} {one['what']}",
            one["sessions"],
            one["times"],
            " ".join(one["examples"]),
            one["consequence"],
        ]
        for one in plan["findings"]
    ]
    for one in plan["held"]:
        examples = " ".join(one["examples"])
        said = "They cannot be moved now."
        rows.append(["cannot move", one["why"], one["sessions"], None, examples, said])
    large = plan["large"]
    if large["sessions"]:
        examples = " ".join(large["examples"])
        most, over = large["largest_bytes"], large["over_bytes"]
        said = f"Their words have more than {over} bytes, the longest {most}."
        rows.append(["large", "history", large["sessions"], None, examples, said])
    for face, commands in plan["faces"].items():
        for name, times in commands.items():
            rows.append(["sent", f"{face} {name}", None, times, None, None])
    return rows


def summary_of(plan: Mapping[str, Any]) -> str:
    """Return a plan in a sentence."""
    sessions, impossible = plan["sessions"], plan["impossible"]
    things = {0: "nothing is", 1: "1 thing is"}.get(impossible, f"{impossible} things are")
    counted = f"{sessions} session{'' if sessions == 1 else 's'}"
    said = f"{plan['source']} to {plan['target']}: {counted}, {things} impossible"
    return f"{said}; {plan['target']} is not ready" if plan["check"]["ready"] == "no" else said
