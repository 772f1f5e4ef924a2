"""How a session in memory is found: by its id, its handle and the name that a frontend chose,
without asking the journal."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.base.errors import SessionNotFound
from proxy.base.rows import AliasKind
from proxy.session import Session
from tests.server.conftest import Serve
from tests.support.houses import HermAndEngine

OWNER, ROUTE = "local", "engine"


async def made(house: HermAndEngine, *names: str) -> Session:
    aliases = [(AliasKind.TASK, name) for name in names]
    return await house.sessions.create(owner=OWNER, route=ROUTE, dialect="engine", aliases=aliases)


async def found(house: HermAndEngine, name: str, owner: str = OWNER) -> Session:
    return await house.sessions.get(name, owner=owner, route=ROUTE)


async def test_a_session_in_memory_is_found_by_each_of_its_names_without_the_journal(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await serve("sqlite")
    session = await made(house, "mine")

    async def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("the journal was asked")

    monkeypatch.setattr(house.sessions.journal, "session", asked)
    monkeypatch.setattr(house.sessions.journal, "resolve", asked)
    for name in (session.id, session.row.handle, "mine"):
        assert await found(house, name) is session


async def test_names_are_of_one_owner_and_leave_memory_with_their_session(serve: Serve) -> None:
    house = await serve("sqlite")
    session = await made(house, "mine")
    for name in (session.id, session.row.handle, "mine"):
        with pytest.raises(SessionNotFound):
            await found(house, name, owner="other")
    cache = house.sessions.cache
    cache.forget(session.id)
    assert (cache._sessions, cache._handles, cache._tasks) == ({}, {}, {})
    again = await found(house, "mine")
    assert again is not session
    assert await found(house, session.row.handle) is again


@pytest.mark.parametrize("ours", ["id", "handle"])
async def test_an_id_of_ours_counts_before_a_name_that_was_chosen_like_it(
    serve: Serve, ours: str
) -> None:
    house = await serve("sqlite")
    first = await made(house)
    name = first.id if ours == "id" else first.row.handle
    second = await made(house, name)
    house.sessions.cache.forget(first.id)
    assert (await found(house, name)).id == first.id
    assert (await found(house, second.id)) is second
