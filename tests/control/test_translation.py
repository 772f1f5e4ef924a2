"""The routes by which one sees a translation, against live sessions: what the backend sent word for
word, and what a frontend of any dialect reads, event by event."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from adapters.model import events as ev
from adapters.model.events import Entry
from adapters.registry import faces
from proxy.control import raw_frames, translation
from proxy.control.api import ErrorOut
from proxy.control.raw_frames import RawFrameOut, RawFramesOut
from proxy.control.translation import (
    TranslatedFrameOut,
    TranslatedFramesOut,
)
from proxy.migration.moving import move, roll_back
from tests.migration.support import House
from tests.support.dragoman import Dragoman, Start, starting
from tests.support.journals import stored_entries
from tests.support.keys import key_of
from tests.support.proxied import proxied
from tests.support.waiting import SOON_S, asks, settled, until

BACKENDS = ("old", "new", "engine", "herm", "agents", "runs")
KEYS = (key_of("owner"), key_of("foreign"), key_of("admin", admin=True))


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start[House]]:
    async with starting(House, tmp_path) as start:
        yield start


async def get(dragoman: Dragoman, path: str) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{dragoman.port}/api/v1{path}"
    async with dragoman.http.get(url) as response:
        return response.status, await response.json()


async def frames(dragoman: Dragoman, session_id: str, query: str = "") -> RawFramesOut:
    status, body = await get(dragoman, f"/sessions/{session_id}/frames?{query}")
    assert status == 200, body
    return RawFramesOut.model_validate(body)


async def all_frames(
    dragoman: Dragoman, session_id: str, limit: int
) -> tuple[list[RawFrameOut], int]:
    """Return the frames of all pages, those of two pages joined, and how many pages there were."""
    joined: dict[tuple[int, int], RawFrameOut] = {}
    after, pages = 0, 0
    while True:
        page = await frames(dragoman, session_id, f"after={after}&limit={limit}")
        pages += 1
        for frame in page.frames:
            known = joined.setdefault((frame.leg, frame.number), frame)
            if known is not frame:
                assert known.text == frame.text
                known.seqs = sorted({*known.seqs, *frame.seqs})
        if page.next is None:
            return [joined[key] for key in sorted(joined)], pages
        assert page.next > after
        after = page.next


async def answer(dragoman: Dragoman, session_id: str, **body: Any) -> None:
    """Answer what is asked by the control API."""
    session = await dragoman.live(session_id)
    await until(lambda: asks(session))
    request_id = session.open_interactions()[0].request_id
    path = f"/api/v1/sessions/{session_id}/interactions/{request_id}"
    url = f"http://127.0.0.1:{dragoman.port}{path}"
    async with dragoman.http.post(url, json=body) as response:
        assert response.status == 202, await response.text()


async def approved(house: House, backend: str) -> str:
    """Return a session at rest in which something was approved."""
    session = await house.eve_client(backend, style="S").create("script: approve")
    await answer(house, session.session_id, decision="allow")
    await settled(await house.live(session.session_id))
    return session.session_id


async def entries_of(dragoman: Dragoman, session_id: str) -> list[Entry]:
    return await stored_entries(dragoman.sessions.journal, session_id)


# Raw frames.


@pytest.mark.parametrize("backend", BACKENDS)
async def test_each_event_is_with_the_frame_that_gave_it(start: Start[House], backend: str) -> None:
    house = await start()
    session_id = await approved(house, backend)
    page = await frames(house, session_id, "limit=1000")
    assert (page.next, page.omitted, page.kept_hours) == (None, False, 24.0)
    by_seq = {seq: frame for frame in page.frames for seq in frame.seqs}
    log = await entries_of(house, session_id)
    named = {
        one.seq: one.event.native
        for one in log
        if one.event.native is not None and one.event.native.frame is not None
    }
    assert by_seq.keys() == named.keys()
    for seq, native in named.items():
        frame = by_seq[seq]
        assert (frame.leg, frame.number, frame.dialect) == (0, native.frame, native.dialect)
        assert frame.text is not None
        assert (native.type or "") in frame.text
        assert frame.base64 is None
    # Those that gave no event are among them, in their places.
    assert [frame.number for frame in page.frames] == list(range(1, len(page.frames) + 1))


@pytest.mark.parametrize("limit", [1, 3, 7])
async def test_pages_of_frames_are_together_what_one_answer_is(
    start: Start[House], limit: int
) -> None:
    house = await start()
    session_id = await approved(house, "agents")
    whole = await frames(house, session_id, "limit=1000")
    paged, pages = await all_frames(house, session_id, limit)
    assert paged == whole.frames
    assert pages == -(-len(await entries_of(house, session_id)) // limit)
    after = (await frames(house, session_id, "after=1000000")).frames
    assert after == []


async def test_a_page_of_frames_is_bounded_by_its_size_too(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start()
    session_id = await approved(house, "runs")
    whole = await frames(house, session_id)
    monkeypatch.setattr(raw_frames, "ANSWER_BYTES", 600)
    paged, pages = await all_frames(house, session_id, 1000)
    assert pages > 4
    assert paged == whole.frames


async def test_where_frames_that_gave_no_event_fill_a_page_it_is_said(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start()
    session_id = await approved(house, "runs")
    session = await house.live(session_id)
    last, number = session.last_seq, (await frames(house, session_id)).frames[-1].number
    noise = [b"%d" % n for n in range(60)]
    house.sessions.journal.add_frames(session.row.key, 0, number + 1, noise, 1)
    monkeypatch.setattr(raw_frames, "ANSWER_BYTES", 20 * 110)
    # None of them is forgotten as long as no event comes after them.
    page = await frames(house, session_id, f"after={last}")
    assert (page.omitted, page.next) == (True, None)
    assert 10 < len(page.frames) < 30
    native = ev.NativeRef(dialect="agui", frame=number + 60)
    told = ev.SessionUpdated(thread_id=ev.MAIN, title="late", native=native)
    await session.tell([told, ev.SessionUpdated(thread_id=ev.MAIN, title="later")])
    page = await frames(house, session_id, f"after={last}")
    assert (page.omitted, page.next) == (True, last + 1)
    assert (page.frames[-1].seqs, page.frames[-1].text) == ([last + 1], "59")
    assert 10 < len(page.frames) < 30
    page = await frames(house, session_id, f"after={page.next}")
    assert (page.omitted, page.next, page.frames) == (False, None, [])


async def test_a_session_that_moved_has_the_frames_of_each_leg(start: Start[House]) -> None:
    house = await start("sqlite")
    session = await house.eve_client("old", style="S").create("script: tool")
    await session.read_turn()
    session_id = session.session_id
    await move(house.sessions, session_id, to="engine", by="me")
    await session.send("script: tool")
    await session.read_turn()
    await roll_back(house.sessions, session_id, by="me")
    await session.send("script: text")
    await session.read_turn()
    await settled(await house.live(session_id))
    whole = await frames(house, session_id, "limit=1000")
    legs = sorted({frame.leg for frame in whole.frames})
    assert legs == [0, 1, 2]
    assert {one.dialect for one in whole.frames if one.leg == 1} == {"engine"}
    moves = [
        one.seq
        for one in await entries_of(house, session_id)
        if isinstance(one.event, ev.SessionUpdated) and one.event.backend
    ]
    for frame in whole.frames:
        for seq in frame.seqs:
            assert sum(seq >= moved for moved in moves) == frame.leg
    for limit in (1, 5, 50):
        assert (await all_frames(house, session_id, limit))[0] == whole.frames
    await house.restart()
    assert (await all_frames(house, session_id, 5))[0] == whole.frames


async def test_of_a_log_only_what_a_page_needs_is_read(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start()
    session_id = await approved(house, "engine")
    session = await house.live(session_id)
    for number in range(40):
        told = [ev.SessionUpdated(thread_id=ev.MAIN, title=f"{number}") for _ in range(100)]
        await session.tell(told)
    asked: list[tuple[int, int]] = []
    journal = house.sessions.journal
    read = journal.read

    async def counted(key: int, **options: Any) -> Any:
        chunks = await read(key, **options)
        asked.append((options["after"], sum(len(chunk.body) for chunk in chunks)))
        return chunks

    monkeypatch.setattr(journal, "read", counted)
    page = await frames(house, session_id, "after=2000&limit=10")
    assert (page.frames, page.next) == ([], 2010)
    assert sum(size for _, size in asked) < 1 << 20


async def test_frames_that_are_not_kept_are_said_to_be_missing(start: Start[House]) -> None:
    house = await start(settings={"journal": {"url": "memory:", "frames": False}})
    session_id = await approved(house, "herm")
    page = await frames(house, session_id)
    assert page.kept_hours is None
    assert page.frames
    assert {frame.text for frame in page.frames} == {None}
    assert all(frame.seqs for frame in page.frames)


async def test_frames_that_are_too_old_are_said_to_be_missing(start: Start[House]) -> None:
    house = await start()
    session_id = await approved(house, "herm")
    before = await frames(house, session_id)
    await house.sessions.journal.prune_frames(before=1 << 60)
    page = await frames(house, session_id)
    named_ones = [frame for frame in before.frames if frame.seqs]
    assert page.frames == [frame.model_copy(update={"text": None}) for frame in named_ones]


async def test_a_frame_that_is_not_text_comes_as_its_bytes_too(start: Start[House]) -> None:
    house = await start()
    session_id = await approved(house, "engine")
    session = await house.live(session_id)
    number = (await frames(house, session_id)).frames[-1].number + 1
    house.sessions.journal.add_frames(session.row.key, 0, number, [b"a\xff"], 1)
    last = (await frames(house, session_id)).frames[-1]
    assert (last.seqs, last.text, last.base64) == ([], "a\ufffd", "Yf8=")


async def test_frames_are_for_administrators() -> None:
    async with proxied(keys=KEYS) as dragoman:
        session_id = await dragoman.say("hello", key="k-owner")
        path = f"/api/v1/sessions/{session_id}/frames"
        for name, status in (("k-owner", 403), ("k-foreign", 403), ("k-admin", 200)):
            assert (await dragoman.request("GET", path, key=name))[0] == status
        unknown = "/api/v1/sessions/dgs_unknown/frames"
        for key, status in (("k-owner", 403), ("k-admin", 404), (None, 401)):
            assert (await dragoman.request("GET", unknown, key=key))[0] == status


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("limit=0", "`limit` is from 1 to 1000, not 0"),
        ("limit=1001", "`limit` is from 1 to 1000, not 1001"),
        ("limit=x", "`limit`"),
        ("after=-1", "`after`"),
    ],
)
async def test_a_range_that_means_nothing_is_refused_by_name(query: str, names: str) -> None:
    async with proxied() as dragoman:
        session_id = await dragoman.say("hello")
        for what in ("frames", "as/eve"):
            path = f"/api/v1/sessions/{session_id}/{what}?{query}"
            status, body = await dragoman.request("GET", path)
            error = ErrorOut.model_validate(body).error
            assert (status, error.code) == (400, "invalid_request")
            assert names in error.message


# The same events as a face shows them.

STREAMS = {
    "eve": "/eve/v1/session/{}/stream",
    "engine": "/execute/replay?task_id={}",
    "herm": "/v1/sessions/{}/events/stream",
    "managed-agents": "/v1/sessions/{}/events/stream",
}
"""The faces whose readers may come at any time, and the paths of their streams."""

SAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "agui": (
        "",
        {
            "threadId": "t-1",
            "runId": "r-1",
            "state": {},
            "messages": [{"id": "m-1", "role": "user", "content": "script: tool"}],
            "tools": [],
            "context": [],
            "forwardedProps": {},
        },
    ),
    "aisdk": (
        "/api/chat",
        {
            "id": "c-1",
            "trigger": "submit-message",
            "messages": [
                {
                    "id": "m-1",
                    "role": "user",
                    "parts": [{"type": "text", "text": "script: tool"}],
                }
            ],
        },
    ),
}
"""The faces that answer a message with the frames of its turn, and such a message."""


async def shown_as(
    dragoman: Dragoman, session_id: str, dialect: str, query: str = "limit=1000"
) -> TranslatedFramesOut:
    status, body = await get(dragoman, f"/sessions/{session_id}/as/{dialect}?{query}")
    assert status == 200, body
    return TranslatedFramesOut.model_validate(body)


def joined(frames: Iterable[TranslatedFrameOut]) -> bytes:
    return "".join(frame.text for frame in frames).encode()


def without_comments(body: bytes) -> bytes:
    """Return a body without what only says that it lives: comments, and empty lines of NDJSON."""
    body = re.sub(rb"(?m)^:.*\n\n", b"", body)
    return re.sub(rb"(?m)^\n", b"", body) if body.lstrip().startswith(b"{") else body


def test_each_dialect_with_a_face_is_read_there() -> None:
    assert STREAMS.keys() | SAYS.keys() == faces().keys()


@pytest.mark.parametrize("dialect", STREAMS)
async def test_the_frames_are_those_that_a_reader_of_a_face_gets(
    start: Start[House], dialect: str
) -> None:
    house = await start()
    session = await house.eve_client("engine", style="S").create("script: approve")
    live = await house.live(session.session_id)
    await until(lambda: asks(live))
    url = house.face(dialect, "engine") + STREAMS[dialect].format(session.session_id)
    async with house.http.get(url) as response:
        assert response.status == 200, await response.text()
        await answer(house, session.session_id, decision="allow")
        await settled(live)
        page = await shown_as(house, session.session_id, dialect)
        framing = "ndjson" if response.content_type == "application/x-ndjson" else "sse"
        assert (page.dialect, page.framing, page.next) == (dialect, framing, None)
        read = b""
        while page.frames[-1].text.encode() not in read:
            read += await response.content.readany()
    read = without_comments(read)
    assert read.count(b"\n") > 5
    # Some begin with what comes next.
    assert joined(page.frames).endswith(read)
    if dialect in ("eve", "engine"):
        assert joined(page.frames) == read


@pytest.mark.parametrize("dialect", SAYS)
async def test_the_frames_are_those_that_answer_a_message(
    start: Start[House], dialect: str
) -> None:
    house = await start()
    path, said = SAYS[dialect]
    async with house.http.post(house.face(dialect, "herm") + path, json=said) as response:
        body = await response.read()
    (row,) = await house.sessions.journal.sessions()
    await settled(await house.live(row.id))
    page = await shown_as(house, row.id, dialect)
    assert joined(page.frames) == without_comments(body)
    assert [frame.cursor for frame in page.frames] == sorted({f.cursor for f in page.frames})


@pytest.mark.parametrize("dialect", sorted(faces()))
async def test_pages_of_translated_frames_are_together_what_one_answer_is(
    start: Start[House], monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    house = await start()
    session_id = await approved(house, "herm")
    whole = await shown_as(house, session_id, dialect)
    assert {frame.seq for frame in whole.frames} <= {
        one.seq for one in await entries_of(house, session_id)
    }
    for limit, size in ((1, 1 << 20), (5, 1 << 20), (1000, 500)):
        monkeypatch.setattr(translation, "ANSWER_BYTES", size)
        found: list[TranslatedFrameOut] = []
        after: int | None = 0
        while after is not None:
            page = await shown_as(house, session_id, dialect, f"after={after}&limit={limit}")
            found += page.frames
            after = page.next
        assert found == whole.frames


async def test_looking_leaves_no_trace_in_the_session(start: Start[House]) -> None:
    house = await start()
    session_id = await approved(house, "herm")
    session = await house.live(session_id)
    journal = house.sessions.journal
    before = await journal.codecs(session.row.key)
    feeds = set(session.feeds.open)
    for dialect in faces():
        await shown_as(house, session_id, dialect)
    await frames(house, session_id)
    assert await journal.codecs(session.row.key) == before
    assert (set(session.feeds.open), session.feeds.readers) == (feeds, 0)
    assert len(await entries_of(house, session_id)) == session.last_seq


async def long_session(house: House) -> tuple[str, int]:
    """Return a session with many events, and how many there are."""
    session_id = await approved(house, "herm")
    session = await house.live(session_id)
    for number in range(12):
        told = [ev.SessionUpdated(thread_id=ev.MAIN, title=f"{number} {n}") for n in range(100)]
        await session.tell(told)
    return session_id, session.last_seq


async def test_a_page_begins_at_a_state_that_was_kept(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation, "KEEP_ENTRIES", 100)
    house = await start()
    session_id, last = await long_session(house)
    query = f"after={last - 5}"
    first = await shown_as(house, session_id, "managed-agents", query)
    session = await house.live(session_id)
    feed = session.feeds.outside("managed-agents", ev.MAIN)

    async def kept() -> int:
        return (await feed.encoder_at(seq=last - 5))[1]

    async with asyncio.timeout(SOON_S):
        # What is kept has no event that says that it is stored.
        while not last - 300 < await kept() <= last - 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await shown_as(house, session_id, "managed-agents", query) == first
    assert 0 < (await feed.encoder_at(seq=500))[1] <= 500
    # A frontend that comes later does not begin with what was kept for a look.
    assert (await session.feeds.get("managed-agents").encoder_at())[1] == 0


async def test_a_long_log_is_encoded_over_several_requests(
    start: Start[House], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start()
    session_id, last = await long_session(house)
    whole = await shown_as(house, session_id, "herm", f"after={last - 5}")
    monkeypatch.setattr(translation, "BEFORE_SECONDS", 0.0)
    reached = 0
    path = f"/sessions/{session_id}/as/engine?after={last - 5}"
    async with asyncio.timeout(SOON_S):
        while True:
            status, body = await get(house, path)
            if status == 200:
                break
            error = ErrorOut.model_validate(body).error
            assert (status, error.code) == (503, "overloaded")
            assert error.details["read"] >= reached
            reached = error.details["read"]
    assert reached > 0
    assert whole.next is None


@pytest.mark.parametrize(
    ("path", "status", "names"),
    [
        ("as/klingon", 404, "There is no dialect `klingon`; served are: herm, eve"),
        ("as/hermes-agent", 409, "`hermes-agent` is a dialect of backends only"),
        ("as/eve?thread=nobody", 404, "has no thread `nobody`"),
    ],
)
async def test_what_cannot_be_shown_is_refused_by_name(path: str, status: int, names: str) -> None:
    async with proxied() as dragoman:
        session_id = await dragoman.say("hello")
        found, body = await dragoman.request("GET", f"/api/v1/sessions/{session_id}/{path}")
        assert found == status
        assert names in ErrorOut.model_validate(body).error.message


async def test_translated_frames_are_for_who_may_read_the_events() -> None:
    async with proxied(keys=KEYS) as dragoman:
        session_id = await dragoman.say("hello", key="k-owner")
        path = f"/api/v1/sessions/{session_id}/as/eve"
        for key, status in (("k-owner", 200), ("k-foreign", 404), ("k-admin", 200), (None, 401)):
            assert (await dragoman.request("GET", path, key=key))[0] == status
