"""One run: all twelve pairs at once against one Dragoman, or against several that share a journal,
with one kind of trouble."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import aiohttp

from proxy.scripted.eve_turns import Generation
from proxy.scripted.faults import (
    Cut,
    Duplicate,
    Fault,
    Faults,
    HalfFrame,
    Reorder,
    SplitCharacters,
    Status,
)
from tests.proof.backends import BACKENDS, DIALECTS, HOST, Backends
from tests.proof.cluster import DECK, Cluster, ClusterLog, broken_by_the_balancer
from tests.proof.commands import Log, Record, Session, Verdict, judged, name_of
from tests.proof.configuration import configuration
from tests.proof.conversation import Conversation, Patience
from tests.proof.lines import Line
from tests.proof.process import Dragoman
from tests.support.eve_client import Form
from tests.support.ports import free_port

__all__ = ["PAIRS", "Plan", "Ran", "run"]

PAIRS = tuple((frontend, backend) for frontend in DIALECTS for backend in BACKENDS)

Kind = Literal["kills", "disconnects", "soak", "calm", "cluster"]

PACE = 0.05
"""Pauses of 5 ms between the deltas of `slow`: long enough for a kill to fall between them."""

SPELL = 25
QUIET_S = 15.0
"""After so many kills there is a time without, longer than what settles a message that nobody knows
of: a stream is watched for 10 s, and each crash begins that anew."""

BREAK_RATE = 0.6
"""Most connections break, and enough live that everybody gets on."""


FAULT_RATE = 0.15
"""The share of a backend's streams that the backend itself breaks, in the disconnect part."""

FAULTS: dict[str, tuple[type[Fault], ...]] = {
    # A Herm's envelopes have ids and sequences, so that one that comes twice or early is seen.
    "herm": (Cut, HalfFrame, Status, SplitCharacters, Duplicate, Reorder),
    # An eve's records are counted and an Engine's events have a time at most: who reads them has
    # to take them as they come.
    "eve": (Cut, HalfFrame, Status, SplitCharacters),
    "engine": (Cut, HalfFrame, Status, SplitCharacters),
    # Events of a Managed Agents service have ids, the pieces of its previews have none.
    "managed-agents": (Cut, HalfFrame, Status, SplitCharacters),
}
"""How backends misbehave: only in ways that their readers can find out about."""

FORMS: tuple[Form, ...] = ("all", "newest", "all", "tokens")
GENERATIONS: tuple[Generation, ...] = ("S2", "T", "S1")
"""What the eve face shows itself as and what the eve backend is: of each slice, by its seed. Four
seeds in a row have them all, twelve every pair of them."""

SOAK_EVERY_S = 1.5
"""How far apart the conversations of one lane of the soak begin. Sessions stay in memory for a
while after their last use, so memory would follow the rate, and that what else the machine does.
It must be held: what is played beside other work says a longer time."""

SAMPLE_S = 1.0
"""How often memory is looked at."""

STUMBLES = 0.1
"""The share of starts that are killed before they listen, or just then."""

SETTLE_S = 300.0
"""How long the last commands may take to be settled in the log; longer is never."""


def forms_of(seed: int) -> tuple[Form, Generation]:
    """Return the form of the eve face and the generation of the eve backend in a slice."""
    return FORMS[seed % len(FORMS)], GENERATIONS[seed % len(GENERATIONS)]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does.

    Args:
        kind: the trouble.
        seed: what everything drawn follows from.
        goal: how many kills or disconnects; 0 for none.
        seconds: when it stops at the latest.
        pairs: which pairs take part.
        together: how many conversations each pair has at a time.
        keep: a folder to work in that stays, for looking at what went wrong; what it holds is
            gone on with.
        form: the form of the eve face; by default as the seed has it.
        generation: which eve the eve backend is; by default as the seed has it.
        slice_s: how often the figures so far are handed out, while everything goes on; 0 for once,
            at the end.
        every_s: how far apart the conversations of one lane of a soak begin.
    """

    kind: Kind
    seed: int
    goal: int
    seconds: float
    pairs: tuple[tuple[str, str], ...] = PAIRS
    together: int = 2
    keep: Path | None = None
    form: Form | None = None
    generation: Generation | None = None
    slice_s: float = 0
    every_s: float = SOAK_EVERY_S


@dataclass(slots=True)
class Ran:
    """What came of a run: the figures of each pair, and those of all."""

    pairs: dict[str, Verdict] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, int]] = field(default_factory=list)
    takeovers: list[int] = field(default_factory=list)
    disturbed: list[int] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)


async def run(
    plan: Plan, progress: Callable[[str], None], each: Callable[[Ran], None] | None = None
) -> Ran:
    """Run a plan and return its figures, those of its last slice where it has slices.

    Args:
        plan: what to do.
        progress: hears a line now and then.
        each: gets the figures of every slice but the last.
    """
    async with contextlib.AsyncExitStack() as stack:
        folder = plan.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="proof-")))
        return await _Run(plan, folder, progress, each, stack).run()


class _Run:
    def __init__(
        self,
        plan: Plan,
        folder: Path,
        progress: Callable[[str], None],
        each: Callable[[Ran], None] | None,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._progress = progress
        self._each = each
        self._stack = stack
        self._ran = self._fresh()
        # What earlier slices have judged already.
        self._past: set[str] = set()
        self._log: Log | ClusterLog = Log(folder / "journal.db")
        self._counted: Counter[str] = Counter()
        self._source = random.Random(f"{plan.kind}:{plan.seed}")
        self._stop = asyncio.Event()
        self._lines: list[Line] = []
        self._begun = time.monotonic()

    async def run(self) -> Ran:
        plan = self._plan
        drawn = forms_of(plan.seed)
        self._form, self._generation = plan.form or drawn[0], plan.generation or drawn[1]
        backends = await self._stack.enter_async_context(
            Backends(PACE, self._faults, generation=self._generation)
        )
        ports = dict(backends.ports)
        broken = plan.kind in ("disconnects", "soak")
        rate = BREAK_RATE if plan.kind == "disconnects" else BREAK_RATE / 6
        if broken:
            for dialect, port in ports.items():
                ports[dialect] = await self._line(port, f"{plan.seed}:{dialect}", rate)
        server, own = await self._serve(ports)
        self._begun = time.monotonic()
        front = await self._line(own, f"{plan.seed}:front", rate) if broken else own
        http = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True, limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30),
                middlewares=[broken_by_the_balancer] if isinstance(server, Cluster) else [],
            )
        )
        urls = (f"http://{HOST}:{front}", f"http://{HOST}:{own}")
        if isinstance(server, Cluster):
            trouble = asyncio.create_task(self._befall(server))
        else:
            trouble = asyncio.create_task(self._trouble(server, backends))
        people = [
            asyncio.create_task(self._people(http, urls, pair, lane, backends, server.up))
            for pair in plan.pairs
            for lane in range(plan.together)
        ]
        try:
            await trouble
            self._stop.set()
            await asyncio.gather(*people)
        finally:
            for task in (trouble, *people):
                task.cancel()
            await asyncio.gather(trouble, *people, return_exceptions=True)
        await self._close(self._ran, backends)
        self._ran.counts["executed processes"] += server.executed
        if isinstance(server, Cluster):
            await server.close()
            self._ran.counts += server.counts
            self._ran.takeovers, self._ran.disturbed = server.takeovers, server.disturbed
            self._ran.counts["not taken over"] += server.abandoned
        return self._ran

    async def _serve(self, backends: Mapping[str, int]) -> tuple[Dragoman | Cluster, int]:
        """Start what the plan asks for; returns it and its port."""
        if self._plan.kind == "cluster":
            cluster = Cluster(self._folder, f"{self._plan.kind}:{self._plan.seed}")
            self._stack.push_async_callback(cluster.close)
            await cluster.start(
                lambda port, journal: configuration(port, journal, self._form, backends)
            )
            self._log = cluster.log
            return cluster, cluster.port
        port, file = free_port(), self._folder / "dragoman.toml"
        journal = f"sqlite:///{self._folder / 'journal.db'}"
        file.write_text(configuration(port, journal, self._form, backends))
        dragoman = Dragoman(file, self._folder / "log.jsonl")
        self._stack.push_async_callback(dragoman.close)
        await dragoman.start()
        return dragoman, port

    def _fresh(self) -> Ran:
        return Ran({_name(pair): Verdict() for pair in self._plan.pairs})

    async def _close(self, ran: Ran, backends: Backends) -> None:
        """Add what is known only when conversations are over: the log's word, what was answered,
        what was done again later."""
        ran.counts[f"eve face: {self._form}"] += 1
        ran.counts[f"eve backend: {self._generation}"] += 1
        now: Counter[str] = Counter()
        for line in self._lines:
            for kind, times in line.cuts.items():
                now[f"cut: {kind}"] += times
        now["disconnects"] = self._cuts()
        for ledger in backends.ledgers.values():
            now["answers given"] += len(ledger.answered)
        ran.counts += now - self._counted
        self._counted = now
        await self._judge_commands(ran, backends)
        for dialect, ledger in backends.ledgers.items():
            for (talk, request), times in ledger.answered.items():
                if times > 1 and f"{talk} {request}" not in self._past:
                    self._past.add(f"{talk} {request}")
                    text = f"answered {times} times by {dialect}: {request}"
                    self._blame(ran, "answered twice", ledger.owners.get(talk, ""), text)
            for tag, times in ledger.executed.items():
                if times > 1 and tag not in self._past:
                    self._past.add(tag)
                    self._blame(ran, "executed twice", tag, f"executed {times} times: {tag}")

    def _blame(self, ran: Ran, figure: str, tag: str, text: str) -> None:
        """Count what must not be, of the pair that a tag names."""
        ran.counts[figure] += 1
        pair = next((p for p in self._plan.pairs if tag.startswith(self._prefix(p))), None)
        if pair is None:
            # Nobody's; the count of all fails the run.
            self._progress(text)
            return
        verdict = ran.pairs[_name(pair)]
        verdict.counts[figure] += 1
        complaint = f"{'/'.join(pair)} {name_of(tag)}: {text}"
        if complaint not in verdict.wrong:
            verdict.wrong.append(complaint)

    def _prefix(self, pair: tuple[str, str]) -> str:
        return f"p{self._plan.seed}{pair[0][:2]}{pair[1][:2]}-"

    async def _judge_commands(self, ran: Ran, backends: Backends) -> None:
        """Hold the log against the ledgers, for the conversations that are over."""
        records, ran.records = ran.records, {}
        deadline = time.monotonic() + SETTLE_S
        while True:
            log = await self._log.read()
            sessions: dict[str, list[Session]] = {}
            for session in log:
                sessions.setdefault(session.name, []).append(session)
            late = any(
                not record.stuck and not one.outcome
                for name, record in records.items()
                for session in sessions.get(name, ())
                for one in session.commands
            )
            if not late or time.monotonic() >= deadline:
                break
            await asyncio.sleep(1.0)
        stops: Counter[str] = Counter()
        for ledger in backends.ledgers.values():
            for talk, times in ledger.interrupts.items():
                stops[name_of(ledger.owners.get(talk, ""))] += times
        for name, record in records.items():
            executed = backends.ledgers[record.pair[1]].executed
            found = judged(name, record, sessions.get(name, ()), executed, stops[name])
            ran.pairs[_name(record.pair)].add(found)
        self._past.update(records)
        self._log.forget(session for session in log if session.name in self._past)

    def _faults(self, dialect: str) -> Faults:
        if self._plan.kind != "disconnects":
            return Faults()
        seed = random.Random(f"faults:{self._plan.seed}:{dialect}").randrange(2**32)
        return Faults.seeded(seed, FAULT_RATE, FAULTS[dialect])

    async def _line(self, port: int, seed: str, rate: float) -> int:
        line = await self._stack.enter_async_context(Line(port, seed, rate))
        self._lines.append(line)
        return line.port

    def _cuts(self) -> int:
        return sum(sum(line.cuts.values()) for line in self._lines)

    def _left(self) -> float:
        return self._plan.seconds - (time.monotonic() - self._begun)

    async def _befall(self, cluster: Cluster) -> None:
        said, faults = 0.0, self._ran.counts
        while self._left() > 0 and (not self._plan.goal or faults["faults"] < self._plan.goal):
            if faults["faults"] and not faults["faults"] % len(DECK):
                await asyncio.sleep(QUIET_S)
            await cluster.fault()
            faults["faults"] += 1
            if time.monotonic() - said > 10:
                said = time.monotonic()
                self._say(faults["faults"])
        await cluster.rest()
        self._say(faults["faults"])

    async def _trouble(self, dragoman: Dragoman, backends: Backends) -> None:
        plan, counts = self._plan, self._ran.counts
        said = sampled = sliced = 0.0
        done = 0
        while self._left() > 0 and (not plan.goal or done < plan.goal):
            if plan.kind == "kills":
                # Most kills fall into a moment of much traffic; some right after the start.
                wait = self._source.uniform(0.0, 1.4) ** 1.5
                await asyncio.sleep(QUIET_S if done % SPELL == SPELL - 1 else wait)
                await dragoman.kill()
                counts["kills"] += 1
                done = counts["kills"]
                await asyncio.sleep(self._source.choice((0.0, 0.0, 0.05)))
                share, stumbles = self._source.uniform(0.0, 1.1), self._source.random() < STUMBLES
                if stumbles and done < plan.goal:
                    await dragoman.stumble(share)
                    counts["kills"] += 1
                    counts["killed while starting"] += 1
                    done = counts["kills"]
                await dragoman.start()
            else:
                await asyncio.sleep(0.25)
                done = self._cuts()
                age = time.monotonic() - self._begun
                if age - sampled >= SAMPLE_S:
                    sampled = age
                    self._ran.memory.append((round(age, 1), dragoman.memory()))
                if self._each and 0 < plan.slice_s <= age - sliced and self._left() > 1:
                    sliced = age
                    over, self._ran = self._ran, self._fresh()
                    await self._close(over, backends)
                    self._each(over)
            if time.monotonic() - said > 10:
                said = time.monotonic()
                self._say(done)
        for line in self._lines:
            line.calm = True
        self._say(done)

    def _say(self, done: int) -> None:
        total: Counter[str] = Counter()
        for verdict in self._ran.pairs.values():
            total += verdict.counts
        wrong = sum(len(verdict.wrong) for verdict in self._ran.pairs.values())
        self._progress(
            f"{self._plan.kind}: {done} of {self._plan.goal or 'no goal'}, "
            f"{time.monotonic() - self._begun:.0f} s, {total['conversations']} conversations, "
            f"{total['received']} facts, {wrong} complaints"
        )

    async def _people(
        self,
        http: aiohttp.ClientSession,
        urls: tuple[str, str],
        pair: tuple[str, str],
        lane: int,
        backends: Backends,
        up: asyncio.Event,
    ) -> None:
        number = 0
        next_at = time.monotonic()
        while not self._stop.is_set():
            if self._plan.kind == "soak":
                await asyncio.sleep(next_at - time.monotonic())
                every_s = self._plan.every_s
                next_at = max(next_at, time.monotonic() - every_s) + every_s
            name = f"{self._prefix(pair)}{lane}-{number}"
            number += 1
            conversation = Conversation(
                http,
                f"{urls[0]}/as/{pair[0]}/to/{pair[1]}",
                pair,
                name,
                backends,
                turns=random.Random(name).randint(1, 5),
                patience=Patience(),
                up=up,
                form=self._form,
                control=urls[1],
            )
            try:
                found = await conversation.play()
                # The slice in which it ends has it.
                self._ran.pairs[_name(pair)].add(found)
                self._ran.records[name] = conversation.record
            except Exception as error:  # noqa: BLE001 - one that fails must not hide the others
                self._past.add(name)
                verdict = self._ran.pairs[_name(pair)]
                verdict.counts["broken"] += 1
                verdict.wrong.append(f"{_name(pair)} {name}: {error!r}"[:600])
                await asyncio.sleep(0.2)


def _name(pair: tuple[str, str]) -> str:
    return f"{pair[0]} > {pair[1]}"
