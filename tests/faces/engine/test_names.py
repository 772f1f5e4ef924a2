"""The names under which an Engine knows the sessions: each its own, chosen once and for ever,
whatever becomes of the configuration.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from proxy.base.errors import ConfigError
from proxy.config.settings import KeySettings
from proxy.sessions.retention_limits import RetentionLimits
from tests.faces.engine.conftest import Face, Serve
from tests.support.dragoman import Backend, Dragoman
from tests.support.engine_client import EngineClient
from tests.support.journals import CrashJournal, sqlite
from tests.support.keys import key_of
from tests.support.running import BACKEND
from tests.support.waiting import until

OF_LOCAL = {"settings": {"task_ids_of": "local"}}
OF_WEB = {"settings": {"task_ids_of": "web"}}
ROUTES = [
    {"name": "one", "backends": [{"name": BACKEND}]},
    {"name": "two", "backends": [{"name": BACKEND}]},
]
KEYS = [key_of("web"), key_of("app")]


def client(face: Face, key: str | None = None, route: str = BACKEND) -> EngineClient:
    """A strict client of a route."""
    return EngineClient(face.http, face.face("engine", route), key)


async def said(face: Face, key: str | None = None, route: str = BACKEND, task: str = "t") -> str:
    """What the Engine says in a task, which ends with how many turns that task has had there."""
    turn = await client(face, key, route).turn("script: text", task)
    await asyncio.sleep(0)
    return turn.text


def names(face: Face) -> list[str]:
    """The names of the tasks that the Engine got, in the order of its turns."""
    return [request["task_id"] for request in face.requests("execute")]


@pytest.mark.parametrize("table", [{}, OF_WEB])
@pytest.mark.parametrize("by", [None, "one", "engine"])
async def test_two_owners_never_share_a_task_whatever_their_keys_name(
    serve: Serve, table: dict[str, Any], by: str | None
) -> None:
    names_of = None if by is None else (by,)
    keys = [key_of("web", names_of), key_of("app", names_of)]
    face = await serve(settings={"keys": keys, "routes": ROUTES}, table=table)
    route = by or BACKEND
    assert (await said(face, "k-web", route)).endswith("(turn 1)")
    assert (await said(face, "k-app", route)).endswith("(turn 1)")
    assert (await said(face, "k-web", route)).endswith("(turn 2)")
    web, app, again = names(face)
    assert web == again != app
    assert (web == "t") is (table is OF_WEB)


@pytest.mark.parametrize("table", [{}, OF_LOCAL])
async def test_one_name_on_two_routes_to_one_backend_is_two_tasks(
    serve: Serve, table: dict[str, Any]
) -> None:
    face = await serve(settings={"routes": ROUTES}, table=table)
    texts = await asyncio.gather(
        said(face), said(face, route="one"), said(face, route="two"), said(face, task="u")
    )
    assert [text[-8:] for text in texts] == ["(turn 1)"] * 4
    assert len(set(names(face))) == 4
    assert ({"t", "u"} < set(names(face))) is (table is OF_LOCAL)


async def test_a_name_is_given_once_also_when_two_ask_for_it_at_the_same_time(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = await serve(settings={"routes": ROUTES}, table=OF_LOCAL)
    journal = face.sessions.journal
    is_named, asked, both = journal.is_named, 0, asyncio.Event()

    async def look_slowly(backend: str, name: str) -> bool:
        nonlocal asked
        asked += 1
        found = await is_named(backend, name)
        await both.wait()
        return found

    monkeypatch.setattr(journal, "is_named", look_slowly)
    turns = [asyncio.create_task(said(face, route=route)) for route in ("one", "two")]
    await until(lambda: asked == 2 or len(names(face)) == 1)
    both.set()
    await asyncio.gather(*turns)
    assert len(set(names(face))) == 2
    assert "t" in names(face)


@pytest.mark.parametrize("table", [{}, OF_WEB])
async def test_a_second_key_cuts_no_conversation_off(serve: Serve, table: dict[str, Any]) -> None:
    face = await serve(CrashJournal(), settings={"keys": KEYS[:1]}, table=table)
    assert (await said(face, "k-web")).endswith("(turn 1)")
    await face.reconfigure(keys=KEYS)
    assert (await said(face, "k-web")).endswith("(turn 2)")
    assert (await said(face, "k-app")).endswith("(turn 1)")
    # Nor does it when the names of another one pass from now on.
    face.backends[BACKEND] = Backend("engine", {}, {"settings": {"task_ids_of": "app"}})
    await face.reconfigure()
    assert (await said(face, "k-web")).endswith("(turn 3)")
    assert (await said(face, "k-app")).endswith("(turn 2)")
    assert (await said(face, "k-app", task="new")).endswith("(turn 1)")
    assert names(face)[-1] == "new"


async def test_what_was_said_without_keys_does_not_go_on_under_a_key(serve: Serve) -> None:
    face = await serve(CrashJournal(), table=OF_LOCAL)
    assert (await said(face)).endswith("(turn 1)")
    assert names(face) == ["t"]
    face.backends[BACKEND] = Backend("engine", {}, OF_WEB)
    await face.reconfigure(keys=KEYS[:1])
    assert (await said(face, "k-web")).endswith("(turn 1)")
    assert (await said(face, "k-web", task="u")).endswith("(turn 1)")
    assert names(face)[1] != "t"
    assert names(face)[2] == "u"
    # The key that is called so is the same owner.
    face.backends[BACKEND] = Backend("engine", {}, {})
    digest = key_of("other").sha256
    await face.reconfigure(keys=[KeySettings(name="local", sha256=digest)])
    assert (await said(face, "k-other")).endswith("(turn 2)")


@pytest.mark.parametrize("table", [{}, OF_LOCAL])
async def test_a_task_that_is_kept_no_longer_goes_on_under_the_name_that_it_had(
    serve: Serve, table: dict[str, Any]
) -> None:
    face = await serve(CrashJournal(), table=table)
    assert (await said(face)).endswith("(turn 1)")
    assert len(await face.sessions.prune(RetentionLimits(age=-1))) == 1
    face.backends[BACKEND] = Backend("engine", {}, {})
    digest = key_of("web").sha256
    await face.reconfigure(keys=[KeySettings(name="local", sha256=digest), key_of("app")])
    assert (await said(face, "k-web")).endswith("(turn 2)")
    assert len(set(names(face))) == 1


async def test_a_session_stays_with_its_backend_whatever_becomes_of_its_route(
    tmp_path: Path,
) -> None:
    def routes(*weights: int) -> list[dict[str, Any]]:
        shares = zip(("blue", "green"), weights, strict=False)
        return [
            {"name": name, "backends": [{"name": b, "weight": w} for b, w in shares_of]}
            for name, shares_of in (("one", list(shares)), ("two", [("blue", 1), ("green", 1)]))
        ]

    def passing(name: str) -> Backend:
        return Backend("engine", {}, OF_LOCAL if name == "blue" else {})

    engines = {name: passing(name) for name in ("blue", "green")}
    settings = {"routes": routes(1, 0)}
    async with Dragoman(sqlite(tmp_path), engines, settings=settings) as proxy:

        async def turns(route: str, task: str = "t") -> str:
            client = EngineClient(proxy.http, proxy.face("engine", route))
            return (await client.turn("script: text", task)).text[-8:]

        def tasks(backend: str) -> list[str]:
            received = [r for r in proxy.scripted[backend].received if r.route == "execute"]
            return [json.loads(r.body)["task_id"] for r in received]

        assert [await turns("one"), await turns("one")] == ["(turn 1)", "(turn 2)"]
        await proxy.reconfigure(routes=routes(0, 1))
        assert [await turns("one"), await turns("one", "u")] == ["(turn 3)", "(turn 1)"]
        assert [set(tasks(name)) & {"t", "u"} for name in ("blue", "green")] == [{"t"}, set()]
        # What is kept no longer goes on there too, and another route's is another one.
        await proxy.sessions.prune(RetentionLimits(age=-1))
        assert [await turns("one"), await turns("two")] == ["(turn 4)", "(turn 1)"]
        assert [*tasks("blue"), *tasks("green")].count("t") == 4


async def test_a_backend_with_sessions_does_not_become_one_of_another_dialect(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    face = await serve(CrashJournal())
    await said(face)
    was = face.backends[BACKEND]
    await face.crash()
    await face.stop_backend(BACKEND)
    face.backends[BACKEND] = Backend("herm")
    await face.start_backend(BACKEND)
    with pytest.raises(ConfigError, match=r"was of dialect `engine`.*another name"):
        await face.start()
    # It may move, which is said.
    await face.stop_backend(BACKEND)
    face.backends[BACKEND] = was
    face._backend_ports.clear()
    await face.start_backend(BACKEND)
    with caplog.at_level(logging.WARNING):
        await face.start()
    assert f"and is at {face.backend_url(BACKEND)} now" in caplog.text
    assert (await said(face)).endswith("(turn 1)")
    # Where nothing is kept of it, its name is free.
    await face.sessions.prune(RetentionLimits(age=-1))
    await face.crash()
    await face.stop_backend(BACKEND)
    face.backends[BACKEND] = Backend("herm")
    await face.start_backend(BACKEND)
    await face.start()


async def test_the_name_at_the_backend_is_shown_to_its_owner(serve: Serve) -> None:
    face = await serve()
    await said(face)
    session = await face.sessions.get("t", owner="local", route=BACKEND)
    url = f"http://127.0.0.1:{face.port}/api/v1/sessions/{session.id}"
    async with face.http.get(url) as response:
        shown = json.loads(await response.read())
    assert [leg["native_id"] for leg in shown["legs"]] == names(face) == [session.id]
