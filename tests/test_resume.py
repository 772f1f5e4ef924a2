"""Coming back costs the same at any length: rows are counted, and the first frame is the right one.

The log has several thousand entries here and a million in `python -m bench.resume`: what is read
does not depend on it. After every dialect has read the log once some more is written that nobody
reads, so that no snapshot is at its end; then each cursor comes after a restart.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import pytest
from aiohttp import web

from adapters.herm import routes as herm
from adapters.herm.answers import messages_of
from adapters.herm.server import HermEncoder
from adapters.herm.writer import Envelope
from adapters.model import events as ev
from adapters.registry import DIALECTS
from bench.resume import (
    CURSORS,
    FACES,
    MOST_ROWS,
    House,
    encoded,
    first_frame,
    read_once,
    started,
    write_log,
)
from proxy.base.rows import CodecRow
from proxy.faces import stream
from proxy.fanout import hub
from proxy.fanout.hub import entries_of
from proxy.journal._writer import SNAPSHOTS_WAITING_BYTES
from proxy.journal.base import Write
from proxy.journal.sqlite import READERS, SqliteJournal
from proxy.session import codec_of, snapshots
from tests.support.waiting import until

ENTRIES = 4_000
UNREAD = 60
"""Entries after the last snapshot: fewer than lie between two of them."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume") / "journal.db"


@pytest.fixture
async def path(built: Path) -> Path:
    if not built.exists():
        await write_log(built, "dgs_long", ENTRIES)
        await read_once(built, "dgs_long")
        await say_more(built, "dgs_long", UNREAD)
    return built


async def say_more(path: Path, session_id: str, count: int) -> None:
    """Write entries that belong to no turn, while nobody reads."""
    journal = SqliteJournal(path)
    await journal.open()
    row = await journal.session(session_id)
    now = time.time_ns() // 1_000_000
    for number in range(1, count + 1):
        event = ev.ContextCleared(thread_id=ev.MAIN)
        entry = ev.Entry(row.last_seq + number, now + number, session_id, event)
        body = entry.encode_row() + b"\n"
        journal.submit(Write(row.key, first=entry.seq, count=1, body=body, at=now + number))
    await journal.aclose()


async def all_frames(path: Path, face: str) -> list[tuple[int, bytes]]:
    async with started(path) as house:
        return [frame async for frame in encoded(house, "dgs_long", face)]


def shown(frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Frames without the comments that hold the places of a Herm frontend's own inputs."""
    return [frame for frame in frames if not frame[1].startswith(b":")]


STREAMS = {name: cursor for name, cursor in CURSORS.items() if not cursor.page}


@pytest.mark.parametrize("name", STREAMS)
async def test_the_first_frame_after_a_cursor_is_right_and_costs_few_rows(
    path: Path, name: str
) -> None:
    cursor = STREAMS[name]
    frames = await all_frames(path, cursor.face)
    visible = shown(frames)
    end = frames[-1][0] + 1
    newest = len(visible) - 1
    for place in (1, len(visible) // 3, len(visible) // 2 + 17, newest):
        place = newest if cursor.tail else place
        expected = visible[place]
        last = visible[place - 1][0]
        async with started(path) as house:
            assert await first_frame(house, cursor, "dgs_long", last, end) == expected[1]
            assert house.rows <= MOST_ROWS, (place, house.rows)


async def test_the_first_frame_does_not_wait_behind_one_that_shows_nothing(path: Path) -> None:
    frames = await all_frames(path, "herm")
    hidden = next(
        index for index, (_, data) in enumerate(frames) if index > 900 and data.startswith(b":")
    )
    async with started(path) as house:
        live = await house.sessions.get("dgs_long", owner=None, route=None)
        feed = live.feeds.get("herm")
        await feed.catch_up()
        pieces = []
        async for piece in feed.read(frames[hidden][0]):
            pieces.append([frame.cursor for frame in piece])
            if len(pieces) == 2:
                break
    assert pieces == [[frames[hidden][0]], [frames[hidden + 1][0]]]


STREAM = "/as/eve/to/bench/eve/v1/session/{}/stream?{}"
LIST = "/as/herm/to/bench/v1/sessions/dgs_long/events"


async def listed(path: Path) -> list[dict[str, Any]]:
    """The list as it is made from the whole log."""
    kept: dict[int, Any] = {}
    async with started(path) as house:
        live = await house.sessions.get("dgs_long", owner=None, route=None)
        encoder = live.feeds.get("herm").make_encoder()
        assert isinstance(encoder, HermEncoder)
        async for chunk in house.journal.scan(live.row.key):
            for entry in entries_of(chunk.body, "dgs_long"):
                for made in encoder.envelopes(entry):
                    if made.listed:
                        kept[made.sequence] = json.loads(made.body)
    return list(kept.values())


async def get(house: House, query: str) -> Any:
    async with house.http.get(f"{house.base}{LIST}?{query}") as response:
        assert response.status == 200, await response.text()
        return await response.json()


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_of_a_list_is_right_and_reads_only_its_part(path: Path, order: str) -> None:
    everything = await listed(path)
    middle = len(everything) // 2
    after = everything[middle]["sequence"]
    wanted = everything[middle + 1 :] if order == "asc" else everything[::-1]
    query = f"order={order}&limit=2" + (f"&after={after}" if order == "asc" else "")
    cursor = ""
    for page in range(3):
        async with started(path) as house:
            found = await get(house, query + cursor)
            assert found["data"] == wanted[2 * page : 2 * page + 2]
            # Deltas are in no list: two of its rows may be a whole turn apart.
            assert house.journal.rows_read <= MOST_ROWS + 200
        cursor = f"&cursor={found['nextCursor']}"


async def test_all_pages_together_are_the_list(path: Path) -> None:
    everything = await listed(path)
    for order, wanted in (("asc", everything), ("desc", everything[::-1])):
        found: list[Any] = []
        cursor = ""
        async with started(path) as house:
            while True:
                page = await get(house, f"order={order}&limit=100{cursor}")
                found += page["data"]
                if page["nextCursor"] is None:
                    break
                cursor = f"&cursor={page['nextCursor']}"
        assert found == wanted


async def test_a_session_shows_all_its_messages_and_holds_few_of_them_at_a_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [one for one in await listed(path) if one["type"] in ("user.message", "agent.message")]
    sizes: list[int] = []
    write = web.StreamResponse.write

    async def noted(response: web.StreamResponse, data: bytes) -> None:
        sizes.append(len(data))
        await write(response, data)

    monkeypatch.setattr(web.StreamResponse, "write", noted)
    async with (
        started(path) as house,
        house.http.get(house.base + LIST.removesuffix("/events")) as response,
    ):
        found = await response.json()
    assert found["id"] == "dgs_long"
    assert found["messages"] == [
        {
            "role": one["type"].split(".")[0],
            "content": one["payload"]["content"],
            "createdAt": one["createdAt"],
        }
        for one in said
    ]
    assert len(sizes) >= 2
    # A turn's answer is below 4 kB here.
    assert max(sizes) < hub.WRITE_BYTES + 4096


@pytest.mark.parametrize("error", [TimeoutError, RuntimeError])
async def test_a_session_that_breaks_off_in_its_messages_is_not_taken_for_whole(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[Exception],
) -> None:
    read = 0

    def breaking(envelopes: Any) -> list[dict[str, Any]]:
        nonlocal read
        read += 1
        if read == 1000:
            raise error
        return messages_of(envelopes)

    monkeypatch.setattr(herm, "messages_of", breaking)
    monkeypatch.setattr(stream, "WRITE_BYTES", 1)
    async with (
        started(path) as house,
        house.http.get(house.base + LIST.removesuffix("/events")) as response,
    ):
        assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    assert ("RuntimeError" in caplog.text) is (error is RuntimeError)


async def test_a_list_of_sessions_reads_only_what_says_what_they_are(path: Path) -> None:
    async with started(path) as house:
        async with house.http.get(f"{house.base}/as/herm/to/bench/v1/sessions") as response:
            (found,) = (await response.json())["data"]
        assert found["agentId"] == "bench"
        assert house.journal.rows_read <= MOST_ROWS


async def test_nothing_of_it_scans_a_table(path: Path) -> None:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    questions: dict[str, Any] = {}

    def note(cursor: apsw.Cursor, statement: str, bindings: Any) -> bool:
        questions[statement] = bindings
        return True

    async with started(path) as house:
        readers = [house.journal._readers.get() for _ in range(READERS)]
        for reader in readers:
            reader.exec_trace = note
            house.journal._readers.put(reader)
        live = await house.sessions.get("dgs_long", owner=None, route=None)
        for cursor in CURSORS.values():
            feed = live.feeds.get(cursor.face)
            await feed.catch_up()
            end = feed.next_cursor
            await first_frame(house, cursor, "dgs_long", end - 3300, end)
    plans = [
        (question, row[3])
        for question, bindings in questions.items()
        if question.lstrip().startswith("SELECT")
        for row in connection.execute(f"EXPLAIN QUERY PLAN {question}", bindings)
    ]
    assert any("snapshots_by_cursor" in detail for _, detail in plans)
    assert [plan for plan in plans if plan[1].startswith("SCAN")] == []


# Long blocks: what is open is in each snapshot.

BLOCK = 6_000


@pytest.fixture(scope="module")
def long_built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("block") / "journal.db"


@pytest.fixture
async def long_block(long_built: Path) -> Path:
    """A turn that runs, with 150 kB of text in its one block, as it came from a backend while
    every face was read."""
    if not long_built.exists():
        await say_a_long_block(long_built)
    return long_built


async def say_a_long_block(path: Path) -> None:
    await write_log(path, "dgs_long", 1)
    await read_once(path, "dgs_long")
    async with started(path) as house:
        live = await house.sessions.get("dgs_long", owner=None, route=None)
        main: dict[str, Any] = {"thread_id": ev.MAIN, "turn_id": "turn-block"}
        block: dict[str, Any] = {"message_id": "m-block", "block_id": "b-block"}
        live._log.emit([ev.TurnStarted(**main, cause="message")])
        for number in range(BLOCK):
            text = f"piece {number} of the answer, "
            stored = live._log.emit([ev.TextDelta(**main, **block, text=text)])
            if number % 64 == 0:
                assert stored is not None
                await stored
                for face in FACES:
                    await live.feeds.get(face).catch_up()
                # A disk that is slower than we make snapshots would drop some.
                await until(lambda: waiting(house) < SNAPSHOTS_WAITING_BYTES // 2)


def waiting(house: House) -> int:
    """How many bytes of snapshots wait for the disk."""
    writer = house.journal._writer
    assert writer is not None
    return writer._snapshots_put - writer._snapshots_gone


@pytest.mark.parametrize("name", STREAMS)
async def test_in_a_long_block_a_cursor_costs_no_more_rows(long_block: Path, name: str) -> None:
    cursor = STREAMS[name]
    visible = shown(await all_frames(long_block, cursor.face))
    for part in (0.2, 0.5, 0.77, 0.99):
        place = len(visible) - 1 if cursor.tail else int(len(visible) * part)
        async with started(long_block) as house:
            # With an open turn the state is loaded at the start, with the text of its block.
            live = await house.sessions.get("dgs_long", owner=None, route=None)
            assert live.state.busy
            feed = live.feeds.get(cursor.face)
            await feed.catch_up()
            end = feed.next_cursor
        async with started(long_block) as house:
            last = visible[place - 1][0]
            found = await first_frame(house, cursor, "dgs_long", last, end)
            assert found == visible[place][1]
            assert house.rows <= MOST_ROWS, (place, house.rows)


async def test_snapshots_of_a_long_block_are_of_a_size_with_the_log(long_block: Path) -> None:
    connection = apsw.Connection(str(long_block), flags=apsw.SQLITE_OPEN_READONLY)
    log = int(connection.execute("SELECT sum(length(body)) FROM events").get)
    for kind, size in connection.execute(
        "SELECT kind, sum(length(data)) FROM snapshots GROUP BY kind"
    ):
        assert size <= log, kind


async def test_above_their_size_snapshots_are_rarer_in_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of a block of 1 MB.
    times = 6
    monkeypatch.setattr(hub, "SNAPSHOT_BYTES", BLOCK * 27 // times)
    monkeypatch.setattr(
        snapshots, "SNAPSHOT_SHARE", BLOCK * 27 // times // snapshots.SNAPSHOT_ENTRIES
    )
    path = tmp_path / "journal.db"
    await say_a_long_block(path)
    cursor = STREAMS["eve startIndex"]
    visible = await all_frames(path, "eve")
    most = 0
    for part in (0.5, 0.9, 0.95, 0.99):
        place = int(len(visible) * part)
        async with started(path) as house:
            last = visible[place - 1][0]
            found = await first_frame(house, cursor, "dgs_long", last, 0)
            assert found == visible[place][1]
            most = max(most, house.rows)
    assert MOST_ROWS < most <= times * MOST_ROWS


# What is fixed.


TURNS = 3
"""Turns in the small log."""


@pytest.fixture
async def small(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    await write_log(path, "dgs_long", 300)
    await read_once(path, "dgs_long")
    return path


async def test_snapshots_may_be_deleted_or_damaged_and_nothing_changes(small: Path) -> None:
    cursor = CURSORS["herm after, a sequence"]
    frames = shown(await all_frames(small, "herm"))
    expected = frames[len(frames) // 2]
    last = frames[len(frames) // 2 - 1][0]
    for change in (
        "UPDATE snapshots SET data = x'00'",
        "UPDATE snapshots SET data = (SELECT data FROM snapshots WHERE kind = 'state')",
        "UPDATE snapshots SET version = version + 1",
        "DELETE FROM snapshots",
    ):
        connection = apsw.Connection(str(small))
        connection.execute(change)
        connection.close()
        async with started(small) as house:
            assert await first_frame(house, cursor, "dgs_long", last, 0) == expected[1], change


async def test_a_session_keeps_the_form_in_which_it_was_first_read(small: Path) -> None:
    connection = apsw.Connection(str(small))
    settings = b'{"agent":"bench","form":"newest","token_rotation":true}'
    connection.execute("UPDATE codecs SET settings = ? WHERE dialect = 'eve'", (settings,))
    connection.close()
    async with started(small) as house:
        # `all` is configured.
        live = await house.sessions.get("dgs_long", owner=None, route=None)
        assert live.feeds.settings_of("eve")["form"] == "newest"
        path = STREAM.format("dgs_long", "startIndex=0&follow=0")
        async with house.http.get(house.base + path) as response:
            version = response.headers["x-eve-stream-version"]
            body = await response.read()
        assert version == "26"
        assert b"messageSoFar" not in body


async def test_a_version_that_is_gone_is_refused_and_not_shown_otherwise(small: Path) -> None:
    connection = apsw.Connection(str(small))
    connection.execute("UPDATE codecs SET version = 99 WHERE dialect = 'herm'")
    connection.close()
    async with started(small) as house:
        for address in (LIST, LIST.removesuffix("/events")):
            async with house.http.get(house.base + address) as response:
                assert response.status >= 400, address
                assert "version 99" in await response.text()


class NextHerm(HermEncoder):
    """A later version: it has one more envelope at the end of a turn."""

    version = HermEncoder.version + 1

    def envelopes(self, entry: ev.Entry) -> list[Envelope]:
        made = super().envelopes(entry)
        if entry.event.TYPE == "turn.ended":
            self._w.write(entry.event, "agent.note", {"text": "over"})
            self.next_cursor += 1
        return made


async def test_a_session_stays_with_the_version_it_was_first_read_in(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = await all_frames(small, "herm")
    before = await listed(small)
    older = {HermEncoder.version: HermEncoder}
    known = dataclasses.replace(DIALECTS["herm"], encoder=NextHerm, older=older)
    monkeypatch.setitem(DIALECTS, "herm", known)
    await write_log(small, "dgs_new", 300)
    cursor = CURSORS["herm after, a sequence"]
    visible = shown(frames)
    for place in (1, len(visible) // 2, len(visible) - 1):
        async with started(small) as house:
            last = visible[place - 1][0]
            assert await first_frame(house, cursor, "dgs_long", last, 0) == visible[place][1]
    async with started(small) as house:
        assert [frame async for frame in encoded(house, "dgs_long", "herm")] == frames
        live = await house.sessions.get("dgs_long", owner=None, route=None)
        feed = live.feeds.get("herm")
        await feed.catch_up()
        # What is said next, and the snapshots, are of the older version too.
        assert type(feed.encoder) is HermEncoder
        assert type((await feed.encoder_at(100))[0]) is HermEncoder
        assert (await get(house, "limit=100"))["data"] == before[:100]
        async with house.http.get(house.base + LIST.removesuffix("/events")) as response:
            assert len((await response.json())["messages"]) == 2 * TURNS
        new = [data async for _, data in encoded(house, "dgs_new", "herm")]
        assert sum(b"agent.note" in data for data in new) == TURNS
        assert not any(b"agent.note" in data for _, data in frames)
        address = LIST.replace("dgs_long", "dgs_new") + "?limit=100"
        async with house.http.get(house.base + address) as response:
            kinds = [one["type"] for one in (await response.json())["data"]]
        assert kinds.count("agent.note") == TURNS


async def test_an_open_session_keeps_its_snapshots_up_though_nobody_reads(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await write_log(path, "dgs_long", 300)
    async with started(path) as house:
        live = await house.sessions.get("dgs_long", owner=None, route=None)
        for number in range(3 * snapshots.SNAPSHOT_ENTRIES):
            stored = live._log.emit([ev.Notice(thread_id=ev.MAIN, level="info", text=f"{number}")])
            assert stored is not None
            await stored
        # What is stored last is in the snapshot before long; the journal's close waits for it.
        while not live.quiet:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    newest = dict(connection.execute("SELECT kind, max(seq) FROM snapshots GROUP BY kind"))
    last = live.last_seq
    assert newest["state"] > last - 2 * snapshots.SNAPSHOT_ENTRIES
    assert newest["frames/herm/main"] > last - 2 * snapshots.SNAPSHOT_ENTRIES
    assert hub.SNAPSHOT_ENTRIES <= snapshots.SNAPSHOT_ENTRIES


async def test_sessions_that_begin_together_take_their_first_snapshots_one_after_the_other(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    for number in range(4):
        await write_log(path, f"dgs_{number}", 1)
    async with started(path) as house:
        for number in range(4):
            live = await house.sessions.get(f"dgs_{number}", owner=None, route=None)
            for _ in range(snapshots.SNAPSHOT_ENTRIES + 1 - live.last_seq):
                stored = live._log.emit([ev.Notice(thread_id=ev.MAIN, level="info", text="more")])
            assert stored is not None
            await stored
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    firsts = connection.execute("SELECT seq FROM snapshots WHERE kind = 'state'").fetchall()
    assert len(firsts) == 4
    # A place for every second key.
    assert 2 <= len({seq for (seq,) in firsts}) <= 3


def test_a_codec_is_fixed_with_all_that_shapes_its_frames() -> None:
    fixed = codec_of("eve", "b", {"form": "all", "token_rotation": False})
    assert fixed == CodecRow("eve", 1, b'{"agent":"b","form":"all","token_rotation":false}')
    assert FACES == ("eve", "engine", "herm")
