"""Measures what it costs to come back to a session after a restart, by the length of its log.

`python -m bench.resume`, or `python -m bench --only resume`, writes a short and a long log straight
into a journal, lets every dialect read them once, and then, for each kind of cursor, restarts the
server and asks for what comes after some cursor: how long until the first frame, whether it is the
right one, and how many rows of the log were read for it. Then each dialect reads a log from begin
to end. The exit status judges all of it. Server and client share the process, so the times contain
the client's, and a restart is a new application on the same file; some starts are executed from the
command line besides. `--docs` writes the tables into `docs/evidence.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import dataclasses
import hashlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import apsw
from aiohttp import web

from adapters.herm import requests
from adapters.herm.server import HermEncoder
from adapters.model import events as ev
from bench.machine import alone, describe
from bench.report import document
from bench.target import ROUTE, Process
from proxy.app.app import create_app
from proxy.app.server import opened_sessions
from proxy.config.settings import Settings
from proxy.fanout.hub import entries_of
from proxy.journal.sqlite import SqliteJournal
from proxy.session import SNAPSHOT_ENTRIES, codec_of
from proxy.sessions.sessions import Sessions

OWNER = "local"
FACES = ("eve", "engine", "herm")
HOST = "127.0.0.1"

TURN_EVENTS = 100
"""Events of a turn: one message, one tool call, an answer of about 90 deltas."""

MOST_MS = 600_000
"""Over how long a log stretches at most: an Engine's buffer keeps a quiet task for 15 minutes
(engine page, section 11.2)."""

SHORT, LONG = 10, 1_000_000
"""Events of the two logs that are compared (issue 3)."""

MOST_RATIO = 2.0
"""The long log may cost less than twice as much as the short one."""

MOST_P50_MS, MOST_P99_MS = 20.0, 60.0
"""Until the first frame after a cursor of the long log."""

MOST_ROWS = 2 * SNAPSHOT_ENTRIES
"""Rows of the log that a start and the first frame may read."""

PAGE_ROWS = 2 * TURN_EVENTS
"""More rows for a page of a list: deltas are in no list, so its few events may be turns apart."""

SAMPLES = 120
"""Restarts for each kind of cursor: the 99th of 100 is not the longest of them."""

WHOLE = 100_000
"""Events of the log that is read from its begin to its end."""

LEAST_RATE = 50_000
"""Events in a second of CPU that every dialect reads and encodes anew."""


# Logs.


def begun(number: int) -> list[ev.Event]:
    """Return a message, and the turn that it begins; both have a number."""
    main, turn_id = ev.MAIN, f"turn-{number}"
    command_id = f"9d2c7a54-0000-4000-8000-{number:012d}"
    words = (ev.Text(text=f"Question {number}."),)
    return [
        ev.InputAccepted(
            thread_id=main,
            command_id=command_id,
            kind="message",
            content=words,
            by=OWNER,
            face="herm",
            policy="queue",
        ),
        ev.InputSettled(thread_id=main, command_id=command_id, outcome="taken"),
        ev.TurnStarted(thread_id=main, turn_id=turn_id, cause="message"),
        ev.MessageReceived(
            thread_id=main,
            turn_id=turn_id,
            message_id=command_id,
            content=words,
            command_id=command_id,
        ),
    ]


def events_of(count: int) -> Iterator[ev.Event]:
    """Yield the events of a session of many turns, at least `count` and up to the end of a turn."""
    main = ev.MAIN
    yield ev.SessionStarted(thread_id=main, agent={"id": ROUTE, "name": ROUTE}, synthetic=True)
    made, number = 1, 0
    while made < count:
        number += 1
        turn_id = f"turn-{number}"
        turn = begun(number)
        if count > TURN_EVENTS:
            call_id = f"call-{number}"
            turn += [
                ev.ToolCalled(
                    thread_id=main,
                    turn_id=turn_id,
                    call_id=call_id,
                    name="search",
                    input={"q": "resume"},
                ),
                ev.ToolReturned(
                    thread_id=main,
                    turn_id=turn_id,
                    call_id=call_id,
                    status="completed",
                    output={"found": number},
                ),
            ]
        left = max(1, min(TURN_EVENTS, count - made) - len(turn) - 2)
        block: dict[str, Any] = {
            "turn_id": turn_id,
            "message_id": f"m{number}",
            "block_id": f"b{number}",
        }
        pieces = [f"piece {index} of the answer, " for index in range(left)]
        turn += [ev.TextDelta(thread_id=main, text=piece, **block) for piece in pieces]
        turn += [
            ev.TextCompleted(thread_id=main, text="".join(pieces), **block),
            ev.TurnEnded(thread_id=main, turn_id=turn_id, outcome="completed"),
        ]
        made += len(turn)
        yield from turn


async def write_log(path: Path, session_id: str, count: int) -> int:
    """Put a session of about `count` events into a journal, without the server; return how many.

    Its rows are written as the journal's writer would, one for each event.
    """
    journal = SqliteJournal(path)
    await journal.open()
    end = time.time_ns() // 1_000_000 - 1000
    span = min(count, MOST_MS)
    events = events_of(count)
    at = end - span
    first = ev.Entry(1, at, session_id, next(events))
    row = await journal.create_session(
        id=session_id,
        owner=OWNER,
        route=ROUTE,
        dialect="herm",
        backend=ROUTE,
        secret=session_id.encode().ljust(32, b"."),
        at=at,
        body=first.encode_row() + b"\n",
        codec=codec_of("herm", ROUTE, {}),
    )
    await journal.aclose()
    connection = apsw.Connection(str(path))
    with connection:
        newest = int(connection.execute("SELECT max(row) FROM events").get)
        rows = (
            (
                newest + seq - 1,
                row.key,
                seq,
                ev.Entry(seq, at + seq * span // (count + 200), session_id, event).encode_row()
                + b"\n",
            )
            for seq, event in enumerate(events, 2)
        )
        connection.executemany(
            "INSERT INTO events (row, session, first, count, leg, body) VALUES (?, ?, ?, 1, 0, ?)",
            rows,
        )
        connection.execute(
            "INSERT INTO event_index (session, first, row)"
            " SELECT session, first, row FROM events WHERE row > ? ORDER BY first",
            (newest,),
        )
        connection.execute(
            "UPDATE meta SET value = (SELECT max(row) FROM events) WHERE name = 'indexed'"
        )
        made = int(
            connection.execute("SELECT count(*) FROM events WHERE session = ?", (row.key,)).get
        )
    connection.close()
    return made


# The server.


@dataclasses.dataclass
class House:
    """A running server, and a client of it. `rows` of the log were read in all when the first byte
    of the frame came that was asked for: the server reads on while it is on its way."""

    sessions: Sessions
    journal: SqliteJournal
    base: str
    http: aiohttp.ClientSession
    rows: int = 0


@contextlib.asynccontextmanager
async def started(path: Path) -> AsyncIterator[House]:
    """Start the server on a journal; stop it at the end."""
    settings = Settings.model_validate(
        {
            "journal": {"url": f"sqlite:///{path}"},
            "backends": [{"name": ROUTE, "dialect": "engine", "url": f"http://{HOST}:9"}],
        }
    )
    async with opened_sessions(settings) as sessions:
        runner = web.AppRunner(
            create_app(sessions),
            handler_cancellation=True,
            shutdown_timeout=0.1,
            access_log=None,
        )
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        base = f"http://{HOST}:{runner.addresses[0][1]}"
        assert isinstance(sessions.journal, SqliteJournal)
        async with aiohttp.ClientSession() as http:
            try:
                # The connection is not what is measured.
                async with http.get(f"{base}/healthz") as response:
                    await response.read()
                yield House(sessions, sessions.journal, base, http)
            finally:
                await sessions.aclose()
                await runner.cleanup()


async def read_once(path: Path, session_id: str) -> None:
    """Let every dialect read a session, as its first readers did: that leaves the snapshots."""
    async with started(path) as house:
        session = await house.sessions.get(session_id, owner=None, route=None)
        for face in FACES:
            await session.feeds.get(face).catch_up()


# Cursors.


@dataclasses.dataclass(frozen=True)
class Cursor:
    """A way to come back: `ask` gives path and headers for the last cursor that a reader had, and
    the one that the next frame of all will have.

    A `tail` asks for the last frame of all, a `page` for as many events of a list, before the
    cursor where that is negative.
    """

    face: str
    ask: Callable[[str, int, int], tuple[str, dict[str, str]]]
    page: int = 0
    tail: bool = False


def _eve(query: str) -> Callable[[str, int, int], tuple[str, dict[str, str]]]:
    def ask(session_id: str, last: int, end: int) -> tuple[str, dict[str, str]]:
        start = query.format(next=last + 1, back=last + 1 - end)
        return f"/as/eve/to/{ROUTE}/eve/v1/session/{session_id}/stream?{start}", {}

    return ask


def _herm(
    query: str, *, stream: bool = True
) -> Callable[[str, int, int], tuple[str, dict[str, str]]]:
    def ask(session_id: str, last: int, end: int) -> tuple[str, dict[str, str]]:
        path = f"/as/herm/to/{ROUTE}/v1/sessions/{session_id}/events{'/stream' if stream else ''}"
        name = f"evt_{session_id}_{last}"
        if query == "header":
            return path, {"Last-Event-ID": name}
        next_page = requests.page_cursor(last, end - 1)
        return f"{path}?{query.format(last=last, name=name, next=next_page)}", {}

    return ask


def _engine(session_id: str, last: int, end: int) -> tuple[str, dict[str, str]]:
    return f"/as/engine/to/{ROUTE}/execute/replay?task_id={session_id}&after={last}", {}


CURSORS: dict[str, Cursor] = {
    "eve startIndex": Cursor("eve", _eve("startIndex={next}")),
    "eve negative startIndex": Cursor("eve", _eve("startIndex={back}")),
    "eve tail": Cursor("eve", _eve("startIndex=-1"), tail=True),
    "engine after": Cursor("engine", _engine),
    "herm Last-Event-ID": Cursor("herm", _herm("header")),
    "herm after, an id": Cursor("herm", _herm("after={name}")),
    "herm after, a sequence": Cursor("herm", _herm("after={last}")),
    "herm list, ascending": Cursor("herm", _herm("after={last}&limit=1", stream=False), page=1),
    "herm list, next page": Cursor("herm", _herm("cursor={next}&limit=1", stream=False), page=1),
    "herm list, descending": Cursor(
        "herm", _herm("order=desc&cursor={next}&limit=1", stream=False), page=-1
    ),
}
"""What a reader shows that comes back, by name."""


async def first_frame(house: House, cursor: Cursor, session_id: str, last: int, end: int) -> bytes:
    """Ask for what comes after cursor `last` and return the first whole frame of it, or the
    page."""

    def begun() -> None:
        house.rows = house.journal.rows_read

    path, headers = cursor.ask(session_id, last, end)
    async with house.http.get(house.base + path, headers=headers) as response:
        return await frame_of(response, cursor, begun)


async def frame_of(
    response: aiohttp.ClientResponse, cursor: Cursor, begun: Callable[[], None]
) -> bytes:
    """Return the first whole frame of a response, or the page; call `begun` at its first byte."""
    response.raise_for_status()
    if cursor.page:
        begun()
        return await response.read()
    mark = b"\n" if cursor.face == "eve" else b"\n\n"
    data, seen = b"", False
    async for piece in response.content.iter_any():
        data += piece
        while data.startswith((b":", b"\n")) and mark in data:
            # A heartbeat, or the place of an input.
            data = data.partition(mark)[2]
        if data and not seen and not data.startswith(b":"):
            seen = True
            begun()
        if mark in data:
            return data.partition(mark)[0] + mark
    raise EOFError(f"no frame: {data[:200]!r}")


async def entries_in(house: House, session_id: str) -> AsyncIterator[ev.Entry]:
    """Yield the entries of a session."""
    session = await house.sessions.get(session_id, owner=None, route=None)
    async for chunk in house.journal.scan(session.row.key):
        for entry in entries_of(chunk.body, session_id):
            yield entry


async def encoded(house: House, session_id: str, face: str) -> AsyncIterator[tuple[int, bytes]]:
    """Yield cursor and bytes of every frame of a session, encoded from the begin of its log."""
    session = await house.sessions.get(session_id, owner=None, route=None)
    encoder = session.feeds.encoders(face, ev.MAIN)()
    async for entry in entries_in(house, session_id):
        for frame in encoder.feed(entry):
            yield frame.cursor, frame.data


# What is right.


class Truth:
    """What a whole reading of a log gives at some cursors: each cursor with the frame after it, and
    a digest of every event that is in lists."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        self.after: dict[str, dict[int, bytes]] = {}
        self._numbers: list[int] = []
        self._listed: dict[int, bytes] = {}

    async def read(self, house: House, session_id: str, count: int) -> None:
        """Read the log in each dialect, and choose `count` cursors of each."""
        draw = random.Random(session_id)
        session = await house.sessions.get(session_id, owner=None, route=None)
        for face in FACES:
            feed = session.feeds.get(face)
            await feed.catch_up()
            end = self.ends[face] = feed.next_cursor
            begin = max(end - 1 - MOST_MS if face == "engine" else 1, 1)
            # Frames have not every cursor: the last one that a reader had is any number.
            lasts = sorted({end - 2, *(draw.randrange(begin, end - 1) for _ in range(count))})
            found = self.after[face] = {}
            async for cursor, data in encoded(house, session_id, face):
                while len(found) < len(lasts) and lasts[len(found)] < cursor:
                    if data.startswith(b":"):
                        # The place of an input, which a stream does not show.
                        break
                    found[lasts[len(found)]] = data
        encoder = session.feeds.encoders("herm", ev.MAIN)()
        assert isinstance(encoder, HermEncoder)
        async for entry in entries_in(house, session_id):
            for made in encoder.envelopes(entry):
                if made.listed:
                    self._listed[made.sequence] = _digest(json.loads(made.body))
        self._numbers = sorted(self._listed)

    def right(self, cursor: Cursor, last: int, found: bytes) -> bool:
        """Say whether an answer is what comes after cursor `last`."""
        if not cursor.page:
            return found == self.after[cursor.face][last]
        place = bisect.bisect_right(self._numbers, last)
        numbers = self._numbers[place : place + cursor.page]
        if cursor.page < 0:
            place = bisect.bisect_left(self._numbers, last)
            numbers = self._numbers[max(0, place + cursor.page) : place][::-1]
        page = json.loads(found)["data"]
        return [_digest(event) for event in page] == [self._listed[n] for n in numbers]


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).digest()


# Figures.


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one kind of cursor took on one log: milliseconds until the first frame, milliseconds of
    CPU (median), rows of the log at most, and answers that were not right."""

    p50: float
    p99: float
    cpu: float
    rows: int
    wrong: int


def figures_of(samples: list[tuple[float, float, int, bool]]) -> Figures:
    """Return the figures of restarts: time, CPU, rows and whether the answer was right of each."""
    times = sorted(sample[0] for sample in samples)
    return Figures(
        statistics.median(times),
        times[min(len(times) - 1, len(times) * 99 // 100)],
        statistics.median(sample[1] for sample in samples),
        max(sample[2] for sample in samples),
        sum(not sample[3] for sample in samples),
    )


def complaints(cursor: Cursor, short: Figures, long: Figures, *, timed: bool) -> list[str]:
    """Return what is not as it should be with a kind of cursor. Without `timed` the times do not
    count: a machine that does something else besides says more by them about that."""
    most = MOST_ROWS + (PAGE_ROWS if cursor.page else 0)
    found = [f"{figures.wrong} answers are wrong" for figures in (short, long) if figures.wrong]
    if long.rows > most:
        found.append(f"{long.rows} rows, not {most}")
    if timed:
        if long.cpu >= MOST_RATIO * short.cpu:
            found.append(f"{long.cpu / short.cpu:.2f} times the CPU")
        if long.p50 >= MOST_RATIO * short.p50:
            found.append(f"{long.p50 / short.p50:.2f} times as long")
        if long.p50 > MOST_P50_MS:
            found.append(f"p50 {long.p50:.1f} ms")
        if long.p99 > MOST_P99_MS:
            found.append(f"p99 {long.p99:.1f} ms")
    return found


async def measure(
    path: Path, cursor: Cursor, truths: dict[str, Truth], samples: int
) -> list[Figures]:
    """Restart the server `samples` times for each log, in turns, and come back at some cursor."""
    found: dict[str, list[tuple[float, float, int, bool]]] = {name: [] for name in truths}
    for number in range(samples):
        for session_id, truth in truths.items():
            end, lasts = truth.ends[cursor.face], list(truth.after[cursor.face])
            # In no order, and every one once before one comes twice.
            last = end - 2 if cursor.tail else lasts[number * 7919 % len(lasts)]
            async with started(path) as house:
                began, work = time.perf_counter(), time.process_time()
                answer = await first_frame(house, cursor, session_id, last, end)
                took = (time.perf_counter() - began) * 1000
                work = (time.process_time() - work) * 1000
                right = truth.right(cursor, last, answer)
                found[session_id].append((took, work, house.rows, right))
    return [figures_of(of_log) for of_log in found.values()]


@dataclasses.dataclass
class Report:
    """The lines of the tables as Markdown, and what was wrong."""

    lines: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)

    def say(self, line: str) -> None:
        """Take a line, and print it at once."""
        self.lines.append(line)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def judge(self, what: str, found: list[str]) -> str:
        """Take complaints, and return the last cell of a row."""
        self.wrong += [f"{what}: {text}" for text in found]
        return "✗ " + ", ".join(found) if found else "✓"


async def run(folder: Path, long: int, samples: int, report: Report, *, timed: bool) -> None:
    """Measure every kind of cursor on both logs."""
    path = folder / "resume.db"
    truths: dict[str, Truth] = {}
    for name, count in (("short", SHORT), ("long", long)):
        began = time.perf_counter()
        made = await write_log(path, f"dgs_{name}", count)
        written = time.perf_counter() - began
        size = path.stat().st_size
        cpu = time.process_time()
        await read_once(path, f"dgs_{name}")
        cpu = time.process_time() - cpu
        more = path.stat().st_size - size
        report.say(
            f"- {name}: {made:,} events written in {written:.1f} s, {size / 1e6:,.1f} MB; first "
            f"read by {len(FACES)} dialects {cpu:.1f} s of CPU, snapshots {more / 1e6:,.1f} MB"
        )
        truths[f"dgs_{name}"] = truth = Truth()
        async with started(path) as house:
            await truth.read(house, f"dgs_{name}", samples)
    report.say("")
    report.say(
        f"First frame after a restart, {samples} of each kind and log. Asked for: p50 at most "
        f"{MOST_P50_MS:.0f} ms, p99 at most {MOST_P99_MS:.0f} ms, the ratios of the medians of "
        f"long to short below {MOST_RATIO:.0f}, rows at most {MOST_ROWS} (a page "
        f"{MOST_ROWS + PAGE_ROWS}), every answer right."
    )
    report.say("")
    report.say(
        "| cursor | short p50, p99 ms | long p50, p99 ms | ratio | CPU ms short, long | ratio |"
        " rows, long | wrong | |"
    )
    report.say("|---|---|---|---|---|---|---|---|---|")
    for kind, cursor in CURSORS.items():
        short, long_ = await measure(path, cursor, truths, samples)
        verdict = report.judge(kind, complaints(cursor, short, long_, timed=timed))
        report.say(
            f"| {kind} | {short.p50:.1f}, {short.p99:.1f} | {long_.p50:.1f}, {long_.p99:.1f} "
            f"| {long_.p50 / short.p50:.2f} | {short.cpu:.1f}, {long_.cpu:.1f} "
            f"| {long_.cpu / short.cpu:.2f} | {long_.rows} "
            f"| {short.wrong + long_.wrong} | {verdict} |"
        )
    await executed(path, truths["dgs_long"], report)


EXECUTED = 5
"""Starts from the command line."""


async def executed(path: Path, truth: Truth, report: Report) -> None:
    """Start the program itself on the journal, and ask for the first frame after a cursor."""
    config = path.with_name("serve.toml")
    config.write_text(
        f'[server]\nlisten = "{HOST}:0"\n\n[journal]\nurl = "sqlite:///{path}"\n\n'
        f'[[backends]]\nname = "{ROUTE}"\ndialect = "engine"\nurl = "http://{HOST}:9"\n'
    )
    cursor = CURSORS["eve startIndex"]
    lasts = list(truth.after[cursor.face])
    command = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
    listens, firsts, wrong = [], [], 0
    for number in range(EXECUTED):
        last = lasts[number * len(lasts) // EXECUTED]
        target, headers = cursor.ask("dgs_long", last, truth.ends[cursor.face])
        began = time.perf_counter()
        process = Process("serve", command, None, path.parent)
        try:
            await process.ready()
            listens.append(time.perf_counter() - began)
            async with aiohttp.ClientSession() as http:
                began = time.perf_counter()
                async with http.get(process.base + target, headers=headers) as response:
                    answer = await frame_of(response, cursor, lambda: None)
                firsts.append((time.perf_counter() - began) * 1000)
            wrong += not truth.right(cursor, last, answer)
        finally:
            process.end()
    verdict = report.judge("executed", [f"{wrong} answers are wrong"] if wrong else [])
    report.say("")
    report.say(
        f"{EXECUTED} starts of `dragoman serve` on the same file: listens after "
        f"{statistics.median(listens):.2f} s (median), the first frame of the long log then comes "
        f"after {statistics.median(firsts):.1f} ms (longest {max(firsts):.1f} ms): {verdict}"
    )


async def replay(folder: Path, count: int, report: Report, *, timed: bool) -> None:
    """Read a log whole in each dialect."""
    path = folder / "replay.db"
    made = await write_log(path, "dgs_whole", count)
    await read_once(path, "dgs_whole")
    report.say("")
    report.say(
        f"All {made:,} events read from the journal and encoded, as for one reader. Asked for: "
        f"{LEAST_RATE:,} events a second."
    )
    report.say("")
    report.say("| dialect | frames | MB | seconds | events a second | |")
    report.say("|---|---|---|---|---|---|")
    for face in FACES:
        async with started(path) as house:
            session = await house.sessions.get("dgs_whole", owner=None, route=None)
            feed = session.feeds.get(face)
            await feed.catch_up()
            frames = size = 0
            began = time.perf_counter()
            async for piece in feed.read(0):
                frames += len(piece)
                size += sum(len(frame.data) for frame in piece)
            took = time.perf_counter() - began
        slow = timed and made / took < LEAST_RATE
        verdict = report.judge(f"replay, {face}", ["too slow"] if slow else [])
        report.say(
            f"| {face} | {frames:,} | {size / 1e6:.1f} | {took:.2f} | {made / took:,.0f} "
            f"| {verdict} |"
        )


def measured(folder: Path, *, quick: bool) -> bool:
    """Print the figures, with a shorter log where it is to be quick, and say whether they reach the
    goals; those in seconds count only where it is not."""
    report = Report()
    long, samples, whole = (50_000, 20, 20_000) if quick else (LONG, SAMPLES, WHOLE)
    asyncio.run(_all(folder, long, samples, whole, report, timed=not quick))
    return not report.wrong


async def _all(
    folder: Path, long: int, samples: int, whole: int, report: Report, *, timed: bool
) -> None:
    await run(folder, long, samples, report, timed=timed)
    await replay(folder, whole, report, timed=timed)
    for text in report.wrong:
        sys.stderr.write(f"resume: {text}\n")


def main() -> int:
    """Run what the command line asks for; give 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="bench.resume", description=__doc__)
    parser.add_argument("--events", type=int, default=LONG, help=f"of the long log, {LONG:,}")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help=f"restarts for each kind, {SAMPLES}"
    )
    parser.add_argument("--folder", type=Path, help="where the journal is made, a temporary one")
    parser.add_argument("--untimed", action="store_true", help="judge no seconds")
    parser.add_argument("--docs", action="store_true", help="write docs/evidence.md")
    options = parser.parse_args()
    report = Report()
    with (
        alone(),
        tempfile.TemporaryDirectory(prefix="dragoman-resume-", dir=options.folder) as name,
    ):
        folder, timed = Path(name), not options.untimed
        machine = describe(folder)
        asyncio.run(_all(folder, options.events, options.samples, WHOLE, report, timed=timed))
    if options.docs:
        document("bench.resume", sys.argv[1:], machine, report.lines)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
