"""What Dragoman says became of each command: the canonical log, held against what backends took.

Facts are never read from it. A command that is called taken must be in the backend's own record,
one that is called refused must not be, and `unknown` is for what no backend has evidence of.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from tests.proof.backends import tags_of

__all__ = [
    "INPUT",
    "Command",
    "Log",
    "Record",
    "Session",
    "Verdict",
    "commands_of",
    "judged",
    "name_of",
]

INPUT = b'"type":"input.'
"""What the line of a command has."""


@dataclass(slots=True)
class Command:
    """A command as the log has it; `outcome` is empty until it is settled."""

    kind: str
    policy: str | None
    tags: tuple[str, ...]
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """A session as the journal has it: its key and its commands."""

    key: int
    commands: list[Command]

    @property
    def name(self) -> str:
        """The conversation that the session is of; empty when nothing was said in it."""
        return next((name_of(tag) for one in self.commands for tag in one.tags), "")


@dataclass(slots=True)
class Record:
    """What a conversation knows of its own commands, all of them by tag.

    `accepted` are those that the face answered with a 2xx, `orphans` those that went into a session
    whose name nobody heard, `stops` the interrupts that were tried and `bare` the turns that were
    shown and did not begin at the backend. One that is `stuck` may have commands that are not
    settled.
    """

    pair: tuple[str, str]
    accepted: Collection[str] = ()
    orphans: Collection[str] = ()
    stops: int = 0
    bare: int = 0
    stuck: bool = False


@dataclass(slots=True)
class Verdict:
    """The figures of some conversations, and words about what is wrong in them."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Verdict) -> None:
        """Take the figures of another."""
        self.counts += other.counts
        self.wrong += other.wrong


def name_of(tag: str) -> str:
    """Return the name of the conversation that a tag is of."""
    return tag.rsplit("-", 2)[0]


def commands_of(
    lines: Iterable[bytes], found: dict[str, Command] | None = None
) -> dict[str, Command]:
    """Read the commands from the lines of a canonical log, by id in the order of their acceptance;
    `found` are those of the lines before."""
    found = {} if found is None else found
    for line in lines:
        if INPUT not in line:
            continue
        event = json.loads(line)
        if event["type"] == "input.accepted":
            said = json.dumps([event.get("content"), event.get("details")])
            tags = tuple(dict.fromkeys(tags_of(said)))
            found[event["command_id"]] = Command(event["kind"], event.get("policy"), tags)
        elif event["type"] == "input.settled" and event["command_id"] in found:
            found[event["command_id"]].outcome = event["outcome"]
    return found


class Log:
    """The commands in a journal's file, which is read on from where it was read before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._row = 0
        self._found: dict[int, dict[str, Command]] = {}

    async def read(self) -> list[Session]:
        """Return the sessions in which something was said, but for the forgotten ones."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[Session]:
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            with connection:
                newest = connection.execute("SELECT coalesce(max(row), 0) FROM events").get
                rows = connection.execute(
                    "SELECT session, body FROM events WHERE row > ? AND row <= ? AND instr(body, ?)"
                    " ORDER BY row",
                    (self._row, newest, INPUT),
                )
                for session, body in rows:
                    commands_of(body.split(b"\n"), self._found.setdefault(session, {}))
        finally:
            connection.close()
        self._row = newest
        return [Session(key, list(commands.values())) for key, commands in self._found.items()]

    def forget(self, sessions: Iterable[Session]) -> None:
        """Read nothing of these sessions any more, as long as nothing new is said in them."""
        for session in sessions:
            self._found.pop(session.key, None)


def judged(
    name: str,
    record: Record,
    sessions: Iterable[Session],
    executed: Counter[str],
    interrupts: int,
) -> Verdict:
    """Hold what the log says of a conversation's commands against what its backend took.

    Args:
        name: the conversation's name.
        record: what it knows itself.
        sessions: its sessions in the journal.
        executed: how often the backend took each tag.
        interrupts: how often the backend was told to stop, where it can count that (Herm and
            Managed Agents).
    """
    verdict = Verdict()
    frontend, backend = record.pair
    commands = [one for session in sessions for one in session.commands]
    outcomes = Counter(one.outcome for one in commands)
    verdict.counts["refused later"] += outcomes["refused"]
    verdict.counts["unknown"] += outcomes["unknown"]
    verdict.counts["open"] += outcomes[""]

    def bad(figure: str, text: str) -> None:
        verdict.counts[figure] += 1
        verdict.wrong.append(f"{frontend}/{backend} {name}: {text}")

    for one in commands:
        what = " ".join((one.kind, *one.tags))
        if one.outcome == "unknown" and _lists(backend, one.kind):
            bad("unknown, evident", f"unknown, and the {backend} has a list that tells: {what}")
        # Nothing but a Herm takes the note of an interrupt.
        for tag in one.tags if one.kind != "interrupt" or backend == "herm" else ():
            if one.outcome == "taken" and not executed[tag]:
                bad("commands lost", f"said to be taken and never done: {what}")
            elif one.outcome in ("refused", "withdrawn") and executed[tag]:
                bad("refused, done", f"said to be {one.outcome} and done: {what}")
            elif one.outcome == "unknown" and executed[tag]:
                verdict.counts["unknown, done"] += 1
                if backend != "herm" and tag not in record.orphans:
                    bad("unknown, evident", f"said to be unknown and done: {what}")
            elif not one.outcome and tag in record.accepted and not executed[tag]:
                bad("commands lost", f"accepted and neither done nor settled: {what}")
    known = {tag for one in commands for tag in one.tags}
    for tag in record.accepted:
        if tag not in known and not executed[tag]:
            bad("commands lost", f"accepted and not in the log: {tag}")
    untaken = sum(one.kind in ("message", "steer") and one.outcome != "taken" for one in commands)
    if record.bare > untaken:
        bad("doubled", f"{record.bare} turns failed that never began, of {untaken} not taken")
    _judge_stops(commands, record, interrupts, bad)
    return verdict


def _lists(backend: str, kind: str) -> bool:
    """Say whether a list of the backend tells what became of a command: those of a Herm and of a
    Managed Agents service have every input, an Engine's the requests that still wait
    (docs/promises.md, "Commands whose fate is not known")."""
    return backend in ("herm", "managed-agents") or (backend == "engine" and kind == "answer")


def _judge_stops(
    commands: list[Command], record: Record, interrupts: int, bad: Callable[[str, str], None]
) -> None:
    stops = [one for one in commands if one.kind == "interrupt"]
    if len(stops) > record.stops:
        bad("twice", f"{len(stops)} interrupts in the log, {record.stops} sent")
    match record.pair[1]:
        case "herm" | "managed-agents":
            # A message that withdraws what is asked stops the turn that asks.
            most = len(stops) + sum(one.policy == "withdraw" for one in commands)
            if interrupts > most:
                bad("twice", f"{interrupts} interrupts done, {most} accepted")
            taken = sum(one.outcome == "taken" for one in stops)
            if interrupts < taken:
                bad("commands lost", f"{taken} interrupts said to be taken, {interrupts} done")
        case "engine" if stops:
            bad("violations", "an interrupt was accepted that no Engine can do")
