"""Three processes of one cluster: each answers for all, and goes on for one that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.cluster.nodes import cluster
from tests.support.dragoman import Start
from tests.support.eve_client import EveSession
from tests.support.postgres import PostgresServer
from tests.support.running import Running
from tests.support.waiting import until

pytestmark = pytest.mark.postgres

Run = Start[Running]


async def test_any_node_answers_for_a_session_of_another(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        session = await client.create("hello")
        turn = await session.read_turn()
        assert turn.text is not None
        client.host = two.face("eve")
        accepted = await session.send("and again")
        turn = await session.read_turn(accepted)
        assert "(turn 2)" in (turn.text or "")
        again = client.attach(session.session_id)
        assert [record async for record in again.stream(0, follow=False)] == session.log
        async with running.http.get(f"{two.url}/metrics") as response:
            text = await response.text()
        assert "dragoman_requests_forwarded_total 0" not in text
    assert len(running.requests("execute")) == 2


async def test_a_node_that_is_killed_in_the_middle_of_answers_loses_nothing(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run(engine={"pace": 0.1})
    async with cluster(tmp_path, postgres, running.engine_url, 3) as (one, two, three):
        client = running.eve()
        client.host = one.face("eve")
        slow, held = await asyncio.gather(
            client.create("script: slow 60"), client.create("script: approve")
        )
        asked = (await held.read_turn()).requests[0]
        client.host = two.face("eve")
        await follow(slow, 5)
        await one.stop()
        # What was forwarded breaks off, and the next request is answered.
        client.host = three.face("eve")
        await held.respond(asked["requestId"], "approve")
        turn = await held.read_turn()
        assert "4.1 GB freed" in (turn.text or "")
        client.host = two.face("eve")
        rest = await slow.read_turn()
        assert rest.text == "".join(f"tick {n} " for n in range(60)) + " (turn 1)"
    assert len(running.requests("execute")) == 2
    assert len(running.requests("respond")) == 1


async def follow(session: EveSession, count: int) -> None:
    """Read so many deltas of a turn."""
    records = 0
    async for record in session.stream():
        records += record["type"] == "message.appended"
        if records == count:
            return


async def test_a_node_that_is_paused_is_replaced_and_ends_when_it_wakes(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run(engine={"pace": 0.1})
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        slow = await client.create("script: slow 120")
        await follow(slow, 5)
        one.send(signal.SIGSTOP)
        client.host = two.face("eve")
        rest = await slow.read_turn()
        assert rest.text == "".join(f"tick {n} " for n in range(120)) + " (turn 1)"
        one.send(signal.SIGCONT)
        assert await one.ended() != 0
        assert "the place of this one" in one.log.read_text()
        await one.start()
        client.host = one.face("eve")
        turn = await slow.read_turn(await slow.send("hello"))
        assert "(turn 2)" in (turn.text or "")
    assert len(running.requests("execute")) == 2


async def test_a_node_that_stops_in_order_hands_its_turns_over(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run(engine={"pace": 0.1})
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        slow = await client.create("script: slow 80")
        await follow(slow, 5)
        await one.stop(signal.SIGTERM)
        client.host = two.face("eve")
        rest = await slow.read_turn()
        assert rest.text == "".join(f"tick {n} " for n in range(80)) + " (turn 1)"
    assert len(running.requests("execute")) == 1


async def test_a_database_that_crashes_and_comes_back_ends_no_node_and_no_turn(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run(engine={"pace": 0.1})
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        slow = await client.create("script: slow 80")
        await follow(slow, 5)
        client.host = two.face("eve")
        reading = asyncio.ensure_future(slow.read_turn())
        await asyncio.sleep(0.3)
        for _ in range(2):
            await asyncio.to_thread(postgres.stop, "immediate")
            await asyncio.sleep(0.5)
            await asyncio.to_thread(postgres.start)
            await asyncio.sleep(0.5)
        rest = await reading
        assert rest.text == "".join(f"tick {n} " for n in range(80)) + " (turn 1)"
        turn = await slow.read_turn(await slow.send("hello"))
        assert "(turn 2)" in (turn.text or "")
        for node in (one, two):
            assert node.lives, node.log.read_text()
    assert len(running.requests("execute")) == 2


async def test_an_internal_listener_answers_nobody_else(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 1) as (one,):
        internal = f"http://127.0.0.1:{one.internal}"
        for headers in ({}, {"Dragoman-Forwarded": "1 1 1 0 x y"}):
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"{internal}/api/v1/sessions", headers=headers) as response,
            ):
                assert response.status == 403


async def test_a_node_that_waits_for_its_start_takes_no_connection_of_others(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        session = await client.create("hello")
        await session.read_turn()
        await one.stop()
        # It waits until the lease of the one before it ends, and a message for a session of that.
        starting = asyncio.create_task(one.start())
        await until(lambda: '"kind":"waiting"' in one.log.read_text())
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", one.internal)
        client.host = two.face("eve")
        turn = await session.read_turn(await session.send("and again"))
        assert "(turn 2)" in (turn.text or "")
        await starting
    assert len(running.requests("execute")) == 2


async def test_two_nodes_that_get_the_same_create_at_once_make_one_session(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as nodes:
        for number in range(10):
            headers = {"Idempotency-Key": f"create-{number}"}

            async def create(url: str, headers: dict[str, str] = headers) -> str:
                async with running.http.post(
                    f"{url}/eve/v1/session", json={"message": "hello"}, headers=headers
                ) as response:
                    assert response.status == 202, await response.text()
                    return str((await response.json())["sessionId"])

            made = await asyncio.gather(*(create(node.face("eve")) for node in nodes))
            assert len(set(made)) == 1
    assert len(running.requests("execute")) == 10


async def test_what_a_paused_node_has_in_hand_is_done_once(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        session = await client.create("hello")
        await session.read_turn()
        one.send(signal.SIGSTOP)
        path = f"{two.face('eve')}/eve/v1/session/{session.session_id}"

        async def say(words: str, **headers: str) -> int:
            body = {"message": words, "continuationToken": session.token}
            async with running.http.post(path, json=body, headers=headers) as response:
                return response.status

        # Nobody knows whether the first was taken; the second may be asked again.
        cut, taken = await asyncio.gather(
            say("lost"), say("kept", **{"Idempotency-Key": "k-1"}), return_exceptions=True
        )
        assert isinstance(cut, aiohttp.ClientError)
        assert taken == 202
        client.host = two.face("eve")
        turn = await session.read_turn()
        assert "(turn 2)" in (turn.text or "")
        one.send(signal.SIGCONT)
        assert await one.ended() != 0
    said = [body["message"] for body in running.requests("execute")]
    assert said == ["hello", "kept"]


async def test_another_secret_is_told_to_the_operator_and_the_client_gets_503(
    run: Run, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        session = await client.create("hello")
        await session.read_turn()
        await two.stop(signal.SIGTERM)
        monkeypatch.setattr("tests.cluster.nodes.SECRET", "another secret that is long enough")
        await two.start()
        url = f"{two.face('eve')}/eve/v1/session/{session.session_id}/stream"
        async with running.http.get(url) as response:
            assert response.status == 503
            assert "secret" not in await response.text()
        assert '"kind":"forward_refused"' in two.log.read_text()
        assert "give all of them the same" in two.log.read_text()


async def test_a_node_that_cannot_load_a_session_leaves_it_to_others(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        session = await client.create("hello")
        await session.read_turn()
        for node in (one, two):
            await node.stop(signal.SIGTERM)
        two.drop_backends()
        await two.start()
        url = f"{two.url}/api/v1/sessions/{session.session_id}/interactions/none"
        async with running.http.post(url, json={"decision": "allow"}) as response:
            assert "not configured" in await response.text()
        await one.start()
        turn = await session.read_turn(await session.send("again"))
        assert "(turn 2)" in (turn.text or "")


async def test_a_stream_whose_node_is_killed_has_no_end_and_no_second_head(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run(engine={"pace": 0.1})
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        slow = await client.create("script: slow 60")
        reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
        path = f"/as/eve/to/engine/eve/v1/session/{slow.session_id}/stream"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{two.port}\r\n\r\n".encode())
        data = await reader.readuntil(b"message.appended")
        await one.stop()
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                data += piece
        writer.close()
        assert data.count(b"HTTP/1.1 ") == 1
        assert not data.endswith(b"\r\n0\r\n\r\n")
