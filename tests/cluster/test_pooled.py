"""A journal behind PgBouncer, which gives out connections by the transaction: with
`journal.pooled` it does all that a journal must do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proxy.base.errors import JournalUnavailable
from proxy.journal.base import Journal
from proxy.journal.postgres import PostgresJournal
from tests.cluster.nodes import cluster
from tests.journal import test_contract
from tests.journal.conftest import create
from tests.journal.test_postgres import Appender, check_logs
from tests.support.dragoman import Start
from tests.support.pgbouncer import Pooler, pooler
from tests.support.postgres import PostgresServer
from tests.support.running import Running
from tests.support.waiting import until

pytestmark = pytest.mark.deploy

Run = Start[Running]

# The whole contract, with the journal of this module.
globals().update(
    {name: test for name, test in vars(test_contract).items() if name.startswith("test_")}
)


@pytest.fixture(scope="module")
def pooled(postgres: PostgresServer) -> Iterator[Pooler]:
    """A pooler before the server of this process."""
    with pooler(postgres) as made:
        yield made


@pytest.fixture
async def journal(postgres: PostgresServer, pooled: Pooler) -> AsyncIterator[Journal]:
    """A journal behind the pooler."""
    made = PostgresJournal(pooled.url(postgres.new_database()), pooled=True)
    await made.open()
    yield made
    await made.aclose()


async def test_a_pooler_that_is_started_anew_loses_nothing_and_doubles_nothing(
    journal: Journal, pooled: Pooler
) -> None:
    appender = Appender(journal, [(await create(journal, f"s{n}")).key for n in range(4)])
    for _ in range(3):
        before = sum(appender.stored.values())
        await until(lambda before=before: sum(appender.stored.values()) > before + 20)  # type: ignore[misc]
        await asyncio.to_thread(pooled.stop)
        await asyncio.to_thread(pooled.start)
        assert len(await journal.sessions()) == 4
    await appender.stop()
    assert appender.errors == []
    await check_logs(journal, appender.stored)


async def test_without_the_setting_the_way_out_is_named(
    postgres: PostgresServer, pooled: Pooler
) -> None:
    with pytest.raises(JournalUnavailable, match=r"`pooled = true` in `\[journal\]`"):
        await PostgresJournal(pooled.url(postgres.new_database())).open()


async def test_nodes_behind_a_pooler_answer_for_each_other_while_it_is_started_anew(
    run: Run, postgres: PostgresServer, pooled: Pooler, tmp_path: Path
) -> None:
    running = await run(engine={"pace": 0.05}, speed=1.0)
    async with cluster(tmp_path, postgres, running.engine_url, 2, through=pooled.url) as (one, two):
        client = running.eve()
        client.host = one.face("eve")
        session = await client.create("script: slow 60")
        client.host = two.face("eve")
        await asyncio.to_thread(pooled.stop)
        await asyncio.to_thread(pooled.start)
        turn = await session.read_turn()
        assert turn.text == "".join(f"tick {n} " for n in range(60)) + " (turn 1)"
        client.host = one.face("eve")
        turn = await session.read_turn(await session.send("and again"))
        assert "(turn 2)" in (turn.text or "")
        assert one.lives
        assert two.lives
    assert len(running.requests("execute")) == 2
