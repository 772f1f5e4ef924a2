"""What is wrong with a cluster: a clock that is off, requests that go in circles or come twice."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from proxy.http.forwarding import BEFORE, ELSEWHERE, MARK
from proxy.http.seals import HEADER, digest, seal
from tests.cluster.nodes import SECRET, ClusterNode, cluster
from tests.support.dragoman import Start
from tests.support.postgres import PostgresServer
from tests.support.running import Running
from tests.support.waiting import SOON_S

pytestmark = pytest.mark.postgres

Run = Start[Running]

OFF = """
import signal
import time
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + {seconds}
time.time_ns = lambda: real_ns() + {seconds} * 10**9
"""


async def events(running: Running, node: ClusterNode, session: str) -> list[Any]:
    """The events of a session, as the control API of a node shows them."""
    async with running.http.get(f"{node.url}/api/v1/sessions/{session}/events") as response:
        assert response.status == 200, await response.text()
        return [json.loads(line) for line in (await response.text()).splitlines()]


@pytest.mark.parametrize("seconds", [60, -60])
async def test_a_node_whose_clock_is_a_minute_off_serves_as_the_others_do(
    run: Run, postgres: PostgresServer, tmp_path: Path, seconds: int
) -> None:
    (tmp_path / "off").mkdir()
    (tmp_path / "off" / "sitecustomize.py").write_text(OFF.format(seconds=seconds))
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, off):
        await off.stop(signal.SIGTERM)
        off.environment["PYTHONPATH"] = str(tmp_path / "off")
        await off.start()
        client = running.eve()
        client.host = off.face("eve")
        theirs = await client.create("hello")
        assert (await theirs.read_turn()).text is not None
        begun = (await events(running, off, theirs.session_id))[0]["at"] / 1000
        assert abs(begun - time.time() - seconds) < 30
        client.host = one.face("eve")
        ours = await client.create("hello")
        assert (await ours.read_turn()).text is not None
        # Forwarded both ways.
        for node, session in ((one, theirs), (off, ours)):
            client.host = node.face("eve")
            turn = await session.read_turn(await session.send("and again"))
            assert "(turn 2)" in (turn.text or "")
        # For longer than a lease nobody takes the place of anybody.
        await renewed(postgres, one.database, seconds=7)
        assert postgres.query(one.database, "SELECT count(*) FROM dragoman.nodes") == ["2"]
        assert '"kind":"forward_refused"' not in one.log.read_text() + off.log.read_text()
        # Whose clock is right takes over, and the time of a session does not go back.
        await off.stop()
        client.host = one.face("eve")
        for session in (theirs, ours):
            turn = await session.read_turn(await session.send("and again"))
            assert "(turn 3)" in (turn.text or "")
            times = [event["at"] for event in await events(running, one, session.session_id)]
            assert times == sorted(times)
    assert len(running.requests("execute")) == 6


async def renewed(postgres: PostgresServer, database: str, *, seconds: int) -> None:
    """Wait until all nodes have renewed their leases for so long."""
    text = f"SELECT bool_and(renewed_at > started_at + interval '{seconds} s') FROM dragoman.nodes"
    async with asyncio.timeout(SOON_S):
        while postgres.query(database, text) != ["t"]:  # noqa: ASYNC110 - it tells of no event
            await asyncio.sleep(0.2)


async def test_what_is_forwarded_goes_no_further_and_is_taken_once(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        session = await client.create("hello")
        await session.read_turn()
        target = f"/as/eve/to/engine/eve/v1/session/{session.session_id}/stream?follow=0"
        text = "SELECT node, extract(epoch FROM clock_timestamp()) FROM dragoman.nodes WHERE url = "
        for node, expected in ((two, ELSEWHERE), (one, 200)):
            at = f"http://127.0.0.1:{node.internal}"
            (row,) = postgres.query(node.database, f"{text} '{at}'")
            number, now = row.split("|")
            sealed = seal(
                SECRET.encode(),
                sender=999,
                receiver=int(number),
                at=float(now),
                method="GET",
                target=target,
                body=digest(b""),
            )
            marks = [None if expected == 200 else "1", BEFORE]
            for status, mark in zip((expected, ELSEWHERE), marks, strict=True):
                async with running.http.get(at + target, headers={HEADER: sealed}) as response:
                    assert response.status == status, await response.text()
                    assert response.headers.get(MARK) == mark
