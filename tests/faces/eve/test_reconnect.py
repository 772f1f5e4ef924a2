"""Replay equals live: the records from any cursor are the ones that a reader who never left got.

Byte for byte, whatever was read before, also after a restart and when nothing is in memory.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from proxy.fanout import hub
from tests.support.eve_client import EveClient, EveSession, Form, Refused
from tests.support.running import Live, Run, Running, types
from tests.support.waiting import SOON_S, settled

FORMS: list[Form] = ["all", "tokens", "newest"]


async def story(client: EveClient, first: str = "script: approve2") -> EveSession:
    """A session with text, tools, two approvals and a turn that fails."""
    session = await client.create(first)
    turn = await session.read_turn()
    for option in ("approve", "deny"):
        await session.respond(turn.requests[-1]["requestId"], option)
        turn = await session.read_turn()
    accepted = await session.send("script: failmid")
    await session.read_turn(accepted)
    return session


async def follow(running: Running, session: EveSession, query: str, number: int) -> list[bytes]:
    """The next lines of a stream that stays open."""
    async with Live(running, session.session_id, query) as live:
        return list(await live.count(number))


async def check_every_cursor(running: Running, session: EveSession, whole: list[bytes]) -> None:
    """Read from every index, in every way that a client may ask."""
    number = len(whole)
    assert [json.loads(line) for line in whole] == session.log
    session_id = session.session_id
    for start in range(number + 3):
        assert await running.lines(session_id, f"startIndex={start}&follow=0") == whole[start:]
    for back in range(1, number + 4):
        expected = whole[max(0, number - back) :]
        assert await running.lines(session_id, f"startIndex=-{back}&follow=0") == expected
    for start in (0, 1, number // 2, number - 1):
        query = f"startIndex={start}"
        assert await follow(running, session, query, number - start) == whole[start:]
    assert await follow(running, session, "startIndex=-2", 2) == whole[-2:]


@pytest.mark.parametrize("ring", [hub.RING_BYTES, 1])
@pytest.mark.parametrize("form", FORMS)
async def test_every_cursor_gives_the_rest_live_and_after_a_restart(
    run: Run, monkeypatch: pytest.MonkeyPatch, form: Form, ring: int
) -> None:
    monkeypatch.setattr(hub, "RING_BYTES", ring)
    # In form `tokens` no query ends a body at the tail: `follow=0` is S's (section 7.1).
    running = await run("sqlite", settings={"eve": {"form": form}})
    session = await story(running.eve(form))
    number = len(session.log)
    whole = await follow(running, session, "", number)
    if form == "tokens":
        assert [json.loads(line) for line in whole] == session.log
        for start in range(number):
            query = f"startIndex={start}"
            assert await follow(running, session, query, number - start) == whole[start:]
        await running.restart()
        assert await follow(running, session, "", number) == whole
        assert await follow(running, session, f"startIndex={number - 3}", 3) == whole[-3:]
        return
    await check_every_cursor(running, session, whole)
    await running.restart()
    await check_every_cursor(running, session, whole)


@pytest.mark.parametrize("ring", [hub.RING_BYTES, 1])
async def test_a_reader_that_stays_gets_the_bytes_that_replay_gives(
    run: Run, monkeypatch: pytest.MonkeyPatch, ring: int
) -> None:
    monkeypatch.setattr(hub, "RING_BYTES", ring)
    running = await run("sqlite")
    client = running.eve()
    session = await client.create()
    async with (
        Live(running, session.session_id) as live,
        Live(running, session.session_id, "startIndex=5") as later,
    ):
        await session.send("script: tool")
        await session.read_turn()
        accepted = await session.send("script: long 1500")
        await session.read_turn(accepted)
        number = len(session.log)
        whole = list(await live.count(number))
        assert await later.count(number - 5) == whole[5:]
    assert await running.lines(session.session_id) == whole
    await running.restart()
    assert await running.lines(session.session_id) == whole
    for start in (1, 17, 700, number - 1):
        query = f"startIndex={start}&follow=0"
        assert await running.lines(session.session_id, query) == whole[start:]


@pytest.mark.parametrize("form", FORMS)
async def test_a_reader_that_leaves_after_every_record_misses_nothing(run: Run, form: Form) -> None:
    running = await run(settings={"eve": {"form": form}})
    client = running.eve(form)
    session = await client.create("script: tool")
    while not session.log or session.log[-1]["type"] != "session.waiting":
        stream = session.stream()
        await anext(stream)
        await stream.aclose()
    again = client.attach(session.session_id)
    turn = await again.read_turn()
    assert turn.records == session.log


async def test_a_start_past_the_end_waits_for_that_record(run: Run) -> None:
    running = await run()
    session = await running.eve().create("script: text")
    await session.read_turn()
    number = len(session.log)
    async with Live(running, session.session_id, f"startIndex={number + 4}") as live:
        assert live.lines == []
        accepted = await session.send("hello")
        await session.read_turn(accepted)
        lines = await live.count(len(session.log) - number - 4)
    assert [json.loads(line) for line in lines] == session.log[number + 4 :]


async def test_a_bounded_read_ends_at_the_tail_of_the_moment_and_says_it(run: Run) -> None:
    running = await run()
    client = running.eve()
    prewarmed = await client.create()
    for query in ("follow=0", "follow=false", "includeTailIndex=1", "includeTailIndex=true"):
        async with running.get(prewarmed.session_id, query) as response:
            assert response.headers["x-eve-stream-tail-index"] == "-1"
            assert await response.read() == b"\n"
    session = await client.create("script: approve")
    await session.read_turn()
    number = len(session.log)
    for query in ("follow=0", "follow=false&startIndex=0", "includeTailIndex=1"):
        async with running.get(session.session_id, query) as response:
            assert response.headers["x-eve-stream-tail-index"] == str(number - 1)
            assert len((await response.read()).splitlines()) == number + 1
    # Somebody who asks for nothing gets no tail and a body that stays.
    async with running.get(session.session_id, "") as response:
        assert "x-eve-stream-tail-index" not in response.headers


async def test_a_client_of_the_token_generation_stops_at_the_tail_by_itself(run: Run) -> None:
    running = await run(settings={"eve": {"form": "tokens"}})
    client = running.eve("tokens")
    session = await client.create("script: text")
    await session.read_turn()
    async with running.get(session.session_id, "includeTailIndex=1") as response:
        assert response.headers["x-eve-stream-tail-index"] == str(len(session.log) - 1)
    again = client.attach(session.session_id)
    assert [record async for record in again.stream(0, follow=False)] == session.log


@pytest.mark.parametrize("start", ["abc", "1.5", "", "+1", " 1", "1e3", "9" * 30, "-", "0x10"])
async def test_a_malformed_start_index_is_refused(run: Run, start: str) -> None:
    running = await run()
    session = await running.eve().create()
    async with running.http.get(
        f"{running.base}/eve/v1/session/{session.session_id}/stream", params={"startIndex": start}
    ) as response:
        assert response.status == 400
        body = await response.json()
    assert body == {"ok": False, "error": "Expected startIndex to be an integer."}


async def test_the_stream_of_an_unknown_session_is_not_found(run: Run) -> None:
    running = await run()
    with pytest.raises(Refused) as refused:
        await anext(running.eve().attach("wrun_nobody").stream())
    assert (refused.value.status, refused.value.body) == (
        404,
        {"ok": False, "error": "Session not found. Start a new one with `POST /eve/v1/session`."},
    )


async def test_the_tail_is_right_when_many_readers_come_at_once(run: Run) -> None:
    running = await run("sqlite")
    session = await running.eve().create("script: tools")
    await session.read_turn()
    whole = await running.lines(session.session_id)
    await running.restart()
    async with asyncio.timeout(SOON_S):
        reads = await asyncio.gather(
            *(
                running.lines(session.session_id, f"startIndex={start}&follow=0")
                for start in range(len(whole))
            )
        )
    assert reads == [whole[start:] for start in range(len(whole))]


async def test_a_turn_that_runs_while_readers_come_and_go_is_the_same_for_all(run: Run) -> None:
    running = await run(engine={"pace": 0.02})
    session = await running.eve().create("script: slow 60")
    reads: list[list[bytes]] = []
    while True:
        reads.append(await running.lines(session.session_id))
        if reads[-1] and types(reads[-1])[-1] == "session.waiting":
            break
    whole = reads[-1]
    assert all(read == whole[: len(read)] for read in reads)
    assert len({len(read) for read in reads}) > 3
    await settled(await running.live(session.session_id))
