"""A key of an administrator: it looks after the sessions of everybody, and acts in none."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters.registry import faces
from tests.asks import posted
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied
from tests.support.waiting import until
from tests.test_cli import dragoman as command

API = "/api/v1"
KEYS = (key_of("ann"), key_of("bob", ("engine",)), key_of("boss", admin=True))


@pytest.fixture
async def dragoman() -> AsyncIterator[Proxied]:
    async with proxied(keys=KEYS) as running:
        yield running


async def of_both(dragoman: Proxied) -> list[str]:
    """Make a session of each tenant, in which something is asked; the newest is the first."""
    names = []
    for key in ("k-bob", "k-ann"):
        names.append(await dragoman.say("script: approve", key=key))
        await dragoman.asked(names[-1])
    return names[::-1]


async def ask(
    dragoman: Proxied, method: str, path: str, key: str = "k-boss", **options: Any
) -> tuple[int, Any]:
    return await dragoman.request(method, API + path, key=key, **options)


async def listed(dragoman: Proxied, query: str = "", key: str | None = "k-boss") -> list[Any]:
    _, body = await dragoman.request("GET", f"{API}/sessions{query}", key=key)
    return [(one["id"], one["owner"]) for one in body["sessions"]]


async def test_an_administrator_lists_and_reads_the_sessions_of_everybody(
    dragoman: Proxied,
) -> None:
    ann, bob = await of_both(dragoman)
    everybodys = [(ann, "ann"), (bob, "bob")]
    assert await listed(dragoman) == await listed(dragoman, "?all=1") == everybodys
    # It has none of its own.
    assert await listed(dragoman, "?all=0") == []
    assert await listed(dragoman, key="k-ann") == everybodys[:1]
    assert (await ask(dragoman, "GET", "/sessions?all=1", "k-ann"))[0] == 403
    _, body = await ask(dragoman, "GET", "/interactions")
    assert [one["session_id"] for one in body["interactions"]] == [bob, ann]
    for name, key in ((ann, "k-ann"), (bob, "k-bob")):
        for path in (f"/sessions/{name}", f"/sessions/{name}/events"):
            answer = await ask(dragoman, "GET", path)
            assert answer[0] == 200
            assert answer == await ask(dragoman, "GET", path, key)
    status, body = await ask(dragoman, "GET", "/sessions/dgs_nobody")
    assert (status, body["error"]["message"]) == (404, "There is no session `dgs_nobody`.")


async def test_an_administrator_settles_and_prunes_for_everybody_and_the_log_says_so(
    dragoman: Proxied, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ann, bob = await of_both(dragoman)
    for name, settled in ((ann, True), (ann, False), (bob, True)):
        answer = await ask(dragoman, "POST", f"/sessions/{name}/settle")
        assert answer == (200, {"version": 1, "id": name, "settled": settled})
    # A frontend does not hear the name of the key.
    said = [
        entry["message"]
        for entry in await events_of(dragoman, ann)
        if entry["type"] == "error.reported"
    ]
    assert said == ["An administrator brought the session to rest."]
    await until(lambda: all(session.idle for session in dragoman.sessions.cache))
    body = {"max_bytes": 0}
    for dry_run in (True, False):
        status, answer = await ask(dragoman, "POST", "/prune", json={**body, "dry_run": dry_run})
        assert status == 200
        assert {one["id"] for one in answer["sessions"]} == {ann, bob}
    assert await listed(dragoman) == []
    for key in ("k-boss", "k-ann"):
        assert (await ask(dragoman, "GET", f"/sessions/{ann}", key))[0] == 410
    assert (await ask(dragoman, "GET", f"/sessions/{ann}", "k-bob"))[0] == 404
    lines = [line.getMessage() for line in caplog.records if line.name == "proxy.control.control"]
    assert lines[:2] == [
        f"session `{ann}` of `ann` is settled by `boss`",
        f"session `{bob}` of `bob` is settled by `boss`",
    ]
    assert sorted(lines[2:]) == [
        f"sessions of `{name}` pruned by `boss`: 1" for name in ("ann", "bob")
    ]


async def events_of(dragoman: Proxied, name: str) -> list[Any]:
    _, body = await ask(dragoman, "GET", f"/sessions/{name}/events")
    return [json.loads(line) for line in body.splitlines()]


async def test_what_an_owner_settles_and_prunes_is_its_own(
    dragoman: Proxied, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ann, bob = await of_both(dragoman)
    assert (await ask(dragoman, "POST", f"/sessions/{ann}/settle", "k-bob"))[0] == 404
    await ask(dragoman, "POST", f"/sessions/{ann}/settle", "k-ann")
    assert f"session `{ann}` of `ann` is settled by `ann`" in caplog.messages
    await ask(dragoman, "POST", f"/sessions/{bob}/settle")
    await until(lambda: all(session.idle for session in dragoman.sessions.cache))
    await ask(dragoman, "POST", "/prune", "k-ann", json={"max_bytes": 0})
    assert await listed(dragoman) == [(bob, "bob")]


async def test_a_key_of_an_administrator_acts_in_no_session(dragoman: Proxied) -> None:
    (ann, _) = await of_both(dragoman)
    session = await dragoman.session(ann)
    (asked,) = session.open_interactions()
    before = session.last_seq
    for name in (ann, "dgs_nobody"):
        for method, rest in (
            ("POST", f"/interactions/{asked.request_id}"),
            ("DELETE", "/inputs/x"),
            ("DELETE", ""),
            ("DELETE", "?local=1"),
        ):
            status, body = await ask(
                dragoman, method, f"/sessions/{name}{rest}", json={"decision": "allow"}
            )
            assert (status, body["error"]["code"]) == (403, "forbidden")
            assert "the key of an administrator" in body["error"]["message"]
    assert session.last_seq == before
    assert [one.request_id for one in session.open_interactions()] == [asked.request_id]


async def test_nor_does_it_erase_one_whose_backend_has_left_the_configuration() -> None:
    async with proxied(backends=("engine", "gone"), keys=KEYS) as dragoman:
        name = await dragoman.say("hello", route="gone", key="k-ann")
        await dragoman.until_idle(name)
        sessions = dragoman.sessions
        sessions.cache.forget(name)
        (left,) = (one for one in sessions.settings.backends if one.name != "gone")
        less = sessions.settings.model_copy(update={"backends": (left,)})
        sessions.backends.settings = less
        assert (await ask(dragoman, "DELETE", f"/sessions/{name}"))[0] == 403
        assert (await ask(dragoman, "GET", f"/sessions/{name}"))[0] == 502
        assert (await ask(dragoman, "DELETE", f"/sessions/{name}", "k-ann"))[0] == 200


REFUSED = {
    "herm": lambda body: body["error"]["code"] == "forbidden" and body["error"]["message"],
    "eve": lambda body: body["code"] == "forbidden" and body["error"],
    "engine": lambda body: body["error"] == "PERMISSION_DENIED" and body["message"],
    "agui": lambda body: body["code"] == "forbidden" and body["error"],
    "aisdk": lambda body: body,
    "managed-agents": lambda body: (
        body["error"]["type"] == "permission_error" and body["error"]["message"]
    ),
}


@pytest.mark.parametrize("dialect", sorted(faces()))
async def test_every_face_refuses_a_key_of_an_administrator_in_its_own_form(
    dragoman: Proxied, dialect: str
) -> None:
    path = f"/as/{dialect}/to/engine{posted(dialect)}"
    status, body = await dragoman.request("POST", path, key="k-boss", json={"message": "x"})
    assert status == 403
    said = REFUSED[dialect](body)
    assert "the key of an administrator" in said
    assert "Use a key without `admin = true`." in said
    assert await listed(dragoman) == []


async def test_the_commands_work_for_all_owners_with_the_key_of_an_administrator(
    dragoman: Proxied,
) -> None:
    ann, bob = await of_both(dragoman)
    asked = await dragoman.asked(ann)

    async def run(*arguments: str, key: str = "k-boss") -> tuple[int, str, str]:
        done = await command(*arguments, url=dragoman.url, key=key)
        return done.exit_code, done.stdout, done.stderr

    code, out, _ = await run("sessions", "list")
    assert code == 0
    assert [(line.split("\t")[0], line.split("\t")[4]) for line in out.splitlines()] == [
        (ann, "ann"),
        (bob, "bob"),
    ]
    for words in (("show", ann), ("export", bob)):
        code, out, _ = await run("sessions", *words)
        assert code == 0
        assert out
    code, out, _ = await run("interactions", "list")
    assert [line.split("\t")[0] for line in out.splitlines()] == [bob, ann]
    acts: tuple[tuple[str, ...], ...] = (
        ("answer", ann, asked.request_id, "--allow"),
        ("sessions", "withdraw", ann, "x"),
        ("sessions", "delete", ann, "--local", "-y"),
    )
    for act in acts:
        code, out, err = await run(*act)
        assert (code, out) == (1, "")
        assert "the key of an administrator" in err
    code, out, _ = await run("sessions", "settle", ann, bob)
    assert (code, out) == (0, f"{ann}\tsettled\n{bob}\tsettled\n")
    await until(lambda: all(session.idle for session in dragoman.sessions.cache))
    code, out, _ = await run("sessions", "prune", "--max-bytes", "0", "-y")
    assert code == 0
    assert {line.split("\t")[0] for line in out.splitlines()} == {ann, bob}


async def test_without_keys_the_sessions_of_others_are_listed_where_that_is_asked() -> None:
    async with proxied() as dragoman:
        made = await dragoman.sessions.create(owner="ann", route="engine", dialect="eve")
        own = await dragoman.say("hello")
        await dragoman.until_idle(own)
        assert await listed(dragoman, key=None) == [(own, "local")]
        both = [(own, "local"), (made.id, "ann")]
        assert await listed(dragoman, "?all=1", key=None) == both
        status, _ = await dragoman.request("POST", f"{API}/sessions/{made.id}/settle")
        assert status == 404
