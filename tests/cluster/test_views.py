"""What is asked of all sessions: any process of a cluster answers it for the sessions of all."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.nodes import ClusterNode, cluster
from tests.support.dragoman import Start
from tests.support.engine_client import EngineClient
from tests.support.postgres import PostgresServer
from tests.support.running import Running
from tests.support.waiting import SOON_S

pytestmark = pytest.mark.postgres

Run = Start[Running]


async def test_any_node_shows_what_the_sessions_of_all_ask(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        asked = {}
        for node in (one, two):
            client = running.eve()
            client.host = node.face("eve")
            session = await client.create("script: approve")
            asked[session.session_id] = (await session.read_turn()).requests[0]["requestId"]
        for node in (one, two):
            found = await get(running, node, "/interactions")
            shown = {row["session_id"]: row["request_id"] for row in found["interactions"]}
            assert shown == asked
            listed = await get(running, node, "/sessions?state=paused")
            assert [row["waiting"]["kind"] for row in listed["sessions"]] == ["person", "person"]
            engine = EngineClient(running.http, node.face("engine"))
            assert {record["request_id"] for record in await engine.pending()} == set(
                asked.values()
            )
        # The answer does not say which session it is for: the process that has it is found.
        for request_id in asked.values():
            body = {"request_id": request_id, "answer": "approve"}
            url = f"{one.face('engine')}/hitl/respond"
            async with running.http.post(url, json=body) as response:
                assert response.status == 200, await response.text()
        await until_found(
            lambda found: not found["interactions"],
            *(running, two, "/interactions"),
        )
    assert len(running.requests("respond")) == 2


async def test_shares_that_are_set_at_one_node_hold_at_all(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2, backends=("engine", "other")) as (
        one,
        two,
    ):
        url = f"{one.url}/api/v1/routes/engine"
        body = {"backends": [{"name": "engine", "weight": 0}, {"name": "other"}]}
        async with running.http.put(url, json=body) as response:
            assert response.status == 200, await response.text()
        await until_found(lambda found: source(found) == "set", running, two, "/routes")
        client = running.eve()
        client.host = two.face("eve")
        await (await client.create("hello")).read_turn()
        (row,) = (await get(running, one, "/sessions"))["sessions"]
        assert row["backend"] == "other"
        async with running.http.delete(url) as response:
            assert response.status == 200
        await until_found(lambda found: source(found) == "configured", running, two, "/routes")


async def test_a_prune_leaves_what_another_node_has(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        session = await client.create("hello")
        await session.read_turn()
        assert await prune(running, two) == []
        await one.stop(signal.SIGTERM)
        gone = await prune(running, two)
        assert [row["id"] for row in gone] == [session.session_id]


async def test_a_list_of_what_changed_has_what_another_node_has_just_stored(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        session = await client.create("hello")
        await session.read_turn()
        (before,) = (await get(running, two, "/sessions"))["sessions"]
        await session.read_turn(await session.send("and again"))
        changed = f"/sessions?changed={before['updated_at'] + 1}"
        (after,) = (await get(running, two, changed))["sessions"]
        assert after["last_seq"] > before["last_seq"]


async def test_nodes_with_different_configurations_say_so(
    run: Run, postgres: PostgresServer, tmp_path: Path
) -> None:
    running = await run()
    async with cluster(tmp_path, postgres, running.engine_url, 2) as (one, two):
        assert await ready(running, one) == {"status": "ready"}
        await two.stop(signal.SIGTERM)
        two.add_backend("other", running.engine_url)
        await two.start()
        for node, other in ((one, two), (two, one)):
            async with asyncio.timeout(SOON_S):
                while not (found := await ready(running, node)).get("warnings"):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert found == {"status": "ready", "warnings": ["configuration_differs"]}
            line = f"the process at http://127.0.0.1:{other.internal}, which shares the journal"
            assert node.log.read_text().count(line) == 1


async def ready(running: Running, node: ClusterNode) -> Any:
    """What a node says of itself, which is ready."""
    async with running.http.get(f"{node.url}/readyz") as response:
        assert response.status == 200
        return await response.json()


def source(found: Any) -> str:
    return str(next(row["source"] for row in found["routes"] if row["name"] == "engine"))


async def get(running: Running, node: ClusterNode, path: str) -> Any:
    """What the control API of a node answers."""
    async with running.http.get(f"{node.url}/api/v1{path}") as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def until_found(
    condition: Callable[[Any], bool], running: Running, node: ClusterNode, path: str
) -> None:
    """Ask until the condition holds of the answer."""
    async with asyncio.timeout(SOON_S):
        while not condition(await get(running, node, path)):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


async def prune(running: Running, node: ClusterNode) -> list[Any]:
    """The sessions that a node erases, asked to keep none."""
    body = {"older_than_seconds": 0}
    async with running.http.post(f"{node.url}/api/v1/prune", json=body) as response:
        assert response.status == 200, await response.text()
        found: list[Any] = (await response.json())["sessions"]
        return found
