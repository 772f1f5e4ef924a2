"""Several nodes that share one PostgreSQL journal: who has a session, and who takes it over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from proxy.base.errors import JournalError, JournalUnavailable
from proxy.base.rows import NodeRow
from proxy.journal.base import Write
from proxy.journal.postgres import PostgresJournal, _node
from tests.journal.conftest import create, joined, line, store
from tests.support.postgres import PostgresServer
from tests.support.waiting import SOON_S

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """An empty database."""
    return postgres.new_database()


@contextlib.asynccontextmanager
async def nodes(
    postgres: PostgresServer, database: str, count: int
) -> AsyncIterator[list[PostgresJournal]]:
    """Open so many nodes of one journal."""
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for number in range(count):
            made = PostgresJournal(
                postgres.url(database), advertise=f"http://127.0.0.1:{number + 1}"
            )
            await made.open()
            stack.push_async_callback(made.aclose)
            opened.append(made)
        yield opened


async def die(node: PostgresJournal) -> None:
    """Let a node renew its lease no more, as one does that is paused."""
    await node._tasks.aclose()


async def claimed(node: PostgresJournal, key: int) -> None:
    """Wait until a node has a session."""
    async with asyncio.timeout(SOON_S):
        while await node.claim(key) is not None:  # noqa: ASYNC110 - it tells of no event
            await asyncio.sleep(0.05)


async def test_a_session_belongs_to_the_node_that_made_or_claimed_it(
    postgres: PostgresServer, database: str
) -> None:
    async with nodes(postgres, database, 2) as (one, two):
        session = await create(one)
        assert await one.claim(session.key) is None
        owner = await two.claim(session.key)
        assert owner == NodeRow(one._node.number, "http://127.0.0.1:1")
        one.let_go(session.key)
        await claimed(two, session.key)
        assert (await one.claim(session.key)) == NodeRow(two._node.number, "http://127.0.0.1:2")
        assert await store(two, Write(session.key, 2, 1, line(2))) is None
        # What one has let go of and claimed again at once stays its own.
        two.let_go(session.key)
        assert await two.claim(session.key) is None
        assert await one.claim(session.key) is not None


async def test_one_of_many_that_claim_at_once_gets_it(
    postgres: PostgresServer, database: str
) -> None:
    async with nodes(postgres, database, 3) as all_:
        for number in range(10):
            session = await create(all_[0], f"s{number}")
            all_[0].let_go(session.key)
            await asyncio.sleep(0)
            got = await asyncio.gather(*(one.claim(session.key) for one in all_))
            assert got.count(None) == 1
            owner = all_[got.index(None)]
            others = [await one.claim(session.key) for one in all_ if one is not owner]
            assert others == [NodeRow(owner._node.number, owner._node.url or "")] * 2


async def test_a_node_that_stops_in_order_leaves_its_sessions_at_once(
    postgres: PostgresServer, database: str
) -> None:
    async with nodes(postgres, database, 2) as (one, two):
        session = await create(one)
        assert await store(one, Write(session.key, state="running")) is None
        assert await two.unclaimed(9) == []
        await one.aclose()
        assert await two.unclaimed(9) == ["s1"]
        assert await two.claim(session.key) is None
        assert await two.unclaimed(9) == []


async def test_a_node_that_is_gone_is_replaced_when_its_lease_ends_and_stores_nothing_after(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_node, "LEASE_SECONDS", 2.0)
    async with nodes(postgres, database, 2) as (one, two):
        told: list[JournalError] = []
        one.when_failed(told.append)
        session = await create(one)
        assert await store(one, Write(session.key, 2, 1, line(2), state="running")) is None
        await die(one)
        assert await two.claim(session.key) is not None
        await claimed(two, session.key)
        assert isinstance(await store(one, Write(session.key, 3, 1, line(3))), JournalUnavailable)
        assert len(told) == 1
        assert await store(two, Write(session.key, 3, 1, line(3, "mine"))) is None
        assert joined(await two.read(session.key)) == [line(1), line(2), line(3, "mine")]


async def test_sessions_of_another_node_are_not_expired(
    postgres: PostgresServer, database: str
) -> None:
    async with nodes(postgres, database, 2) as (one, two):
        session = await create(one)
        assert not await two.expire(session.key, unless_after=10**9, at=10**9)
        assert await one.expire(session.key, unless_after=10**9, at=10**9)


async def test_nodes_and_one_that_shares_with_nobody_are_refused_together(
    postgres: PostgresServer, database: str
) -> None:
    async with nodes(postgres, database, 1):
        with pytest.raises(JournalUnavailable, match=r"set `\[cluster\]` here"):
            await PostgresJournal(postgres.url(database)).open()
        with pytest.raises(JournalUnavailable, match=r"its own `advertise`"):
            await PostgresJournal(postgres.url(database), advertise="http://127.0.0.1:1").open()
    alone = PostgresJournal(postgres.url(database))
    await alone.open()
    with pytest.raises(JournalUnavailable, match=r"set `\[cluster\]` there"):
        await PostgresJournal(postgres.url(database), advertise="http://127.0.0.1:1").open()
    await alone.aclose()


async def test_keys_of_nodes_are_never_the_same(postgres: PostgresServer, database: str) -> None:
    async with nodes(postgres, database, 3) as all_:
        keys = [one.new_key() for one in all_ for _ in range(20_000)]
        assert len(set(keys)) == len(keys)
