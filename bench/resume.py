"""Measures what it costs to come back to a session after a restart, by the length of its log.

`python -m bench.resume`, or `python -m bench --only resume`, writes a short and a long log straight
into a journal, lets every dialect read them once, and then, for each kind of cursor, restarts the
server and asks for what comes after a cursor: how long until the first frame, and how many rows of
the log were read for it. Then each dialect reads a log from begin to end. Server and client share
the process, so the times contain the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
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

from adapters import events as ev
from adapters.base import Encoder, EncoderContext
from adapters.registry import DIALECTS
from proxy.app import create_app
from proxy.hub import entries_of
from proxy.journal.sqlite import SqliteJournal
from proxy.server import opened_sessions
from proxy.session import codec_of
from proxy.sessions import Sessions
from proxy.settings import Settings

ROUTE = "bench"
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

WHOLE = 100_000
"""Events of the log that is read from its begin to its end."""

LEAST_RATE = 50_000
"""Events in a second of CPU that every dialect reads and encodes anew."""


# Logs.


def events_of(count: int) -> Iterator[ev.Event]:
    """Yield the events of a session of many turns, at least `count` and up to the end of a turn."""
    main = ev.MAIN
    yield ev.SessionStarted(thread_id=main, agent={"id": ROUTE, "name": ROUTE}, synthetic=True)
    made, number = 1, 0
    while made < count:
        number += 1
        turn_id, command_id = f"turn-{number}", f"9d2c7a54-0000-4000-8000-{number:012d}"
        words = (ev.Text(text=f"Question {number}."),)
        turn: list[ev.Event] = [
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
            create_app(settings, sessions),
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
            await session.feed(face).catch_up()


# Cursors.


@dataclasses.dataclass(frozen=True)
class Cursor:
    """A way to come back: `ask` gives path and headers for the last cursor that a reader had."""

    face: str
    ask: Callable[[str, int, int], tuple[str, dict[str, str]]]
    page: bool = False


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
        return f"{path}?{query.format(last=last, name=name)}", {}

    return ask


def _engine(session_id: str, last: int, end: int) -> tuple[str, dict[str, str]]:
    return f"/as/engine/to/{ROUTE}/execute/replay?task_id={session_id}&after={last}", {}


CURSORS: dict[str, Cursor] = {
    "eve startIndex": Cursor("eve", _eve("startIndex={next}")),
    "eve negative startIndex": Cursor("eve", _eve("startIndex={back}")),
    "engine after": Cursor("engine", _engine),
    "herm Last-Event-ID": Cursor("herm", _herm("header")),
    "herm after, an id": Cursor("herm", _herm("after={name}")),
    "herm after, a sequence": Cursor("herm", _herm("after={last}")),
    "herm list, ascending": Cursor("herm", _herm("after={last}&limit=3", stream=False), page=True),
}
"""What a reader shows that comes back, by name."""


async def first_frame(house: House, cursor: Cursor, session_id: str, last: int, end: int) -> bytes:
    """Ask for what comes after cursor `last` and return the first whole frame of it, or the
    page."""
    path, headers = cursor.ask(session_id, last, end)
    mark = b"\n" if cursor.face == "eve" else b"\n\n"
    async with house.http.get(house.base + path, headers=headers) as response:
        response.raise_for_status()
        house.rows = house.journal.rows_read
        if cursor.page:
            return await response.read()
        data, begun = b"", False
        async for piece in response.content.iter_any():
            data += piece
            while data.startswith((b":", b"\n")) and mark in data:
                # A heartbeat, or the place of an input.
                data = data.partition(mark)[2]
            if data and not begun and not data.startswith(b":"):
                begun, house.rows = True, house.journal.rows_read
            if mark in data:
                return data.partition(mark)[0] + mark
    raise EOFError(f"no frame after {last}: {data[:200]!r}")


async def encoded(house: House, session_id: str, face: str) -> AsyncIterator[tuple[int, bytes]]:
    """Yield cursor and bytes of every frame of a session, encoded from the begin of its log."""
    session = await house.sessions.get(session_id, owner=None, route=None)
    create = DIALECTS[face].encoder
    assert create is not None
    encoder: Encoder = create(
        EncoderContext(
            session_id, session.row.secret, agent=ROUTE, settings=session.settings_of(face)
        )
    )
    async for chunk in house.journal.scan(session.row.key):
        for entry in entries_of(chunk.body, session_id):
            for frame in encoder.feed(entry):
                yield frame.cursor, frame.data


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one kind of cursor took on one log: milliseconds until the first frame, milliseconds of
    CPU (median), and rows of the log at most."""

    p50: float
    p99: float
    cpu: float
    rows: int


async def measure(path: Path, session_id: str, cursor: Cursor, samples: int) -> Figures:
    """Restart the server `samples` times and come back at some cursor each time."""
    draw = random.Random(session_id)
    times: list[float] = []
    works: list[float] = []
    rows = 0
    for number in range(samples):
        async with started(path) as house:
            session = await house.sessions.get(session_id, owner=None, route=None)
            feed = session.feed(cursor.face)
            await feed.catch_up()
            end = feed.next_cursor
            begin = end - 1 - MOST_MS if cursor.face == "engine" else 1
            # Frames have not every cursor: the last one that a reader had is any number.
            last = draw.randrange(max(begin, 1), end - 1) if number else end - 2
        async with started(path) as house:
            began, work = time.perf_counter(), time.process_time()
            await first_frame(house, cursor, session_id, last, end)
            times.append((time.perf_counter() - began) * 1000)
            works.append((time.process_time() - work) * 1000)
            rows = max(rows, house.rows)
    times.sort()
    p99 = times[min(len(times) - 1, len(times) * 99 // 100)]
    return Figures(statistics.median(times), p99, statistics.median(works), rows)


async def run(folder: Path, long: int, samples: int) -> bool:
    """Print the figures of both logs; return whether the long one costs less than `MOST_RATIO` as
    much."""
    path = folder / "resume.db"
    for name, count in (("short", SHORT), ("long", long)):
        began, cpu = time.perf_counter(), time.process_time()
        made = await write_log(path, f"dgs_{name}", count)
        written = time.perf_counter() - began
        size = path.stat().st_size
        cpu = time.process_time()
        await read_once(path, f"dgs_{name}")
        cpu = time.process_time() - cpu
        more = path.stat().st_size - size
        sys.stdout.write(
            f"{name}: {made:,} events written in {written:.1f} s, {size / 1e6:,.1f} MB; first read "
            f"by {len(FACES)} dialects {cpu:.1f} s of CPU, snapshots {more / 1e6:,.1f} MB\n"
        )
    good = True
    sys.stdout.write(
        "\n| cursor | short p50, p99 ms | long p50, p99 ms | CPU ms short, long | ratio of CPU"
        " | rows, long |\n|---|---|---|---|---|---|\n"
    )
    for kind, cursor in CURSORS.items():
        short = await measure(path, "dgs_short", cursor, samples)
        long_ = await measure(path, "dgs_long", cursor, samples)
        # On a machine that does something else besides, the time says more about that.
        ratio = long_.cpu / short.cpu
        good = good and ratio < MOST_RATIO
        sys.stdout.write(
            f"| {kind} | {short.p50:.1f}, {short.p99:.1f} | {long_.p50:.1f}, {long_.p99:.1f} "
            f"| {short.cpu:.1f}, {long_.cpu:.1f} | {ratio:.2f} | {long_.rows} |\n"
        )
        sys.stdout.flush()
    return good


async def replay(folder: Path, count: int) -> bool:
    """Read a log whole in each dialect and print how fast; return whether each reaches
    `LEAST_RATE`."""
    path = folder / "replay.db"
    made = await write_log(path, "dgs_whole", count)
    await read_once(path, "dgs_whole")
    sys.stdout.write(
        f"\nAll {made:,} events read from the journal and encoded, as for one reader:\n\n"
        "| dialect | frames | MB | CPU s | events per second of CPU |\n|---|---|---|---|---|\n"
    )
    good = True
    for face in FACES:
        async with started(path) as house:
            session = await house.sessions.get("dgs_whole", owner=None, route=None)
            feed = session.feed(face)
            await feed.catch_up()
            frames = size = 0
            cpu = time.process_time()
            async for piece in feed.read(0):
                frames += len(piece)
                size += sum(len(frame.data) for frame in piece)
            cpu = time.process_time() - cpu
            rate = made / cpu
            good = good and rate >= LEAST_RATE
            sys.stdout.write(
                f"| {face} | {frames:,} | {size / 1e6:.1f} | {cpu:.2f} | {rate:,.0f} |\n"
            )
    return good


def measured(folder: Path, *, quick: bool) -> bool:
    """Print the figures, with a shorter log where it is to be quick, and say whether they reach the
    goal."""
    long, samples, whole = (20_000, 5, 20_000) if quick else (LONG, 20, WHOLE)
    return asyncio.run(_all(folder, long, samples, whole))


async def _all(folder: Path, long: int, samples: int, whole: int) -> bool:
    cheap = await run(folder, long, samples)
    return await replay(folder, whole) and cheap


def main() -> int:
    """Run what the command line asks for; give 1 when the long log costs too much."""
    parser = argparse.ArgumentParser(prog="bench.resume", description=__doc__)
    parser.add_argument("--events", type=int, default=LONG, help=f"of the long log, {LONG:,}")
    parser.add_argument("--samples", type=int, default=20, help="restarts for each kind of cursor")
    parser.add_argument("--folder", type=Path, help="where the journal is made, a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dragoman-resume-", dir=options.folder) as name:
        good = asyncio.run(_all(Path(name), options.events, options.samples, WHOLE))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
