"""Sessions move from one installation to another, and their frontends notice nothing."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.cli import printing
from proxy.journal.base import Write
from proxy.migration.moving import move, roll_back
from tests.server.conftest import Serve, run, serve
from tests.support.dragoman import Dragoman, Start, starts
from tests.support.houses import HermAndEngine
from tests.support.keys import credential, key_of
from tests.support.moved import Another
from tests.support.waiting import SOON_S, asks, settled, until
from tests.test_cli import dragoman

__all__ = ["another", "run", "serve"]

PICTURE = bytes(range(256)) * 8
MESSAGE = [
    {"type": "text", "text": "What is in it?"},
    {
        "type": "file",
        "mediaType": "image/png",
        "filename": "a.png",
        "data": "data:image/png;base64," + base64.b64encode(PICTURE).decode(),
    },
]

another = starts(Another)


def url(of: Dragoman) -> str:
    return f"http://127.0.0.1:{of.port}"


async def began(first: HermAndEngine, message: Any = "hello", backend: str = "engine") -> str:
    """A session in which a turn is over."""
    session = await first.eve(backend).create(message)
    await session.read_turn()
    await settled(await first.live(session.session_id))
    return session.session_id


async def archived(first: Dragoman, file: Path, *names: str, key: str | None = None) -> Any:
    done = await dragoman(
        *("sessions", "export", *names, "--archive", str(file), "--json"), url=url(first), key=key
    )
    assert (done.exit_code, done.stderr) == (0, ""), done.exc_info
    return json.loads(done.stdout)


async def taken(second: Dragoman, file: Path, *more: str, key: str | None = None) -> Any:
    done = await dragoman(
        "sessions", "import", str(file), "--json", *more, url=url(second), key=key
    )
    assert (done.exit_code, done.stderr) == (0, ""), done.exc_info
    return json.loads(done.stdout)["sessions"]


async def refused(second: Dragoman, file: Path, *more: str, key: str | None = None) -> str:
    done = await dragoman("sessions", "import", str(file), *more, url=url(second), key=key)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    return done.stderr


async def body(of: Dragoman, path: str, **headers: str) -> bytes:
    """A body that ends by itself."""
    async with of.http.get(url(of) + path, headers=headers) as response:
        assert response.status == 200
        return await response.read()


async def rows(of: Dragoman, name: str) -> list[bytes]:
    """The entries of a session, byte for byte."""
    journal = of.sessions.journal
    row = await journal.session(name)
    return [chunk.body async for chunk in journal.scan(row.key)]


async def test_an_eve_client_goes_on_at_another_installation(
    serve: Serve, another: Start[Another], tmp_path: Path
) -> None:
    first = await serve("sqlite", settings={"eve": {"form": "tokens"}})
    talk = await first.eve("engine", form="tokens").create(MESSAGE)
    await talk.read_turn()
    name, token, cursor = talk.session_id, talk.token, talk.cursor
    await settled(await first.live(name))
    file = tmp_path / "moved.ndjson"
    assert await archived(first, file, name) == {
        "version": 1,
        "path": str(file),
        "bytes": file.stat().st_size,
        "archived": [name],
        "refused": [],
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    second = await another(first=first, settings={"eve": {"form": "tokens"}})
    (done,) = await taken(second, file)
    before = await first.sessions.journal.session(name)
    assert done["status"] == "imported"
    assert done["entries"] == before.last_seq
    assert b"".join(await rows(second, name)) == b"".join(await rows(first, name))
    sha256 = hashlib.sha256(PICTURE).hexdigest()
    assert await second.sessions.journal.blob(sha256) == PICTURE
    # The client has nothing but what the first installation gave it.
    await first.stop()
    talk.client.host = second.face("eve", "engine")
    assert (talk.token, talk.cursor) == (token, cursor)
    await talk.send("and now?")
    turn = await talk.read_turn()
    assert turn.text is not None
    assert "and now?" in turn.text
    assert "(turn 2)" in turn.text
    whole = second.eve("engine", form="tokens").attach(name)
    assert [one async for one in whole.stream(0, follow=False)] == talk.log
    row = await second.sessions.journal.session(name)
    assert row.secret == before.secret
    assert row.bytes >= done["bytes"] > len(PICTURE)


async def test_frames_and_cursors_of_every_dialect_are_the_same(
    serve: Serve, another: Start[Another], tmp_path: Path
) -> None:
    first = await serve()
    name = await began(first, "script: tools", "herm")
    engine = await began(first, "script: tool")
    canonical = f"/api/v1/sessions/{name}/events"
    herm = f"/as/herm/to/herm/v1/sessions/{name}/events"
    replay = f"/as/engine/to/engine/execute/replay?task_id={engine}&after="
    stream = f"/as/eve/to/herm/eve/v1/session/{name}/stream?follow=0&startIndex="
    listed = json.loads(await body(first, herm))
    some = listed["data"][len(listed["data"]) // 2]["id"]
    page = json.loads(await body(first, f"{herm}?limit=3"))["nextCursor"]
    made = (await first.sessions.journal.session(engine)).created_at
    paths = [canonical, canonical + "?after=3", herm, f"{herm}?limit=3&cursor={page}"]
    paths += [f"{replay}0", f"{replay}{made + 1}", stream + "0", stream + "7"]
    # A Herm stream has no end: it is read as far as it goes.
    last = listed["data"][-1]["id"]
    held = await herm_stream(first, name, some, last)
    before = [await body(first, path) for path in paths]
    file = tmp_path / "moved.ndjson"
    await archived(first, file, name, engine)
    second = await another(first=first)
    assert len(await taken(second, file)) == 2
    assert [await body(second, path) for path in paths] == before
    assert await herm_stream(second, name, some, last) == held


async def herm_stream(of: HermAndEngine, name: str, after: str, last: str) -> list[Any]:
    """What a stream of Herm gives after an event, as far as another one."""
    seen: list[Any] = []
    async with contextlib.aclosing(of.client().stream(name, after)) as stream:
        async for one in stream:
            seen.append(one)
            if one.get("id") == last:
                break
    return seen


async def test_all_sessions_of_all_owners_move_and_a_second_time_changes_nothing(
    serve: Serve, another: Start[Another], tmp_path: Path
) -> None:
    keys = (key_of("one"), key_of("two"), key_of("admin", admin=True))
    first = await serve("sqlite", settings={"keys": keys})
    names = []
    for key in ("k-one", "k-two", "k-two"):
        session = await first.eve_client("engine", key=key).create("hello")
        await session.read_turn()
        await settled(await first.live(session.session_id))
        names.append(session.session_id)
    file, beside = tmp_path / "all.ndjson", tmp_path / "beside.ndjson"
    answer = await archived(first, file, "--all", key="k-admin")
    assert answer["archived"] == names
    # A file of the journal gives the same, byte for byte.
    done = await dragoman(
        *("sessions", "export", "--all", "--archive", str(beside)),
        *("--journal", str(tmp_path / "journal.db")),
    )
    assert (done.exit_code, done.stdout) == (0, "".join(f"{name}\tarchived\n" for name in names))
    assert beside.read_bytes() == file.read_bytes()
    second = await another(first=first, settings={"keys": keys})
    checked = await taken(second, file, "--dry-run", key="k-admin")
    assert [one["status"] for one in checked] == ["checked"] * 3
    assert await second.sessions.journal.sessions() == []
    for status in ("imported", "already"):
        done_ = await taken(second, file, key="k-admin")
        assert [(one["id"], one["status"]) for one in done_] == [(name, status) for name in names]
        assert [one["owner"] for one in done_] == ["one", "two", "two"]
    for name in names:
        assert await rows(second, name) == await rows(second, name)
        assert b"".join(await rows(second, name)) == b"".join(await rows(first, name))
    # One that went on is not what the archive has.
    talk = second.eve_client("engine", key="k-one").attach(names[0])
    await talk.send("more")
    await settled(await second.live(names[0]))
    done = await dragoman("sessions", "import", str(file), "--json", url=url(second), key="k-admin")
    assert done.exit_code == 1
    (why,) = json.loads(done.stdout)["refused"]
    assert (why["id"], why["line"]) == (names[0], 1)
    assert "is here already, and has gone on since" in why["why"]


async def test_a_session_that_changed_its_backend_before_goes_on_and_back(
    serve: Serve, another: Start[Another], tmp_path: Path
) -> None:
    first = await serve()
    name = await began(first, "My dog is called Rex.", "herm")
    await move(first.sessions, name, to="engine", by="me")
    talk = first.eve("herm").attach(name)
    await talk.send("What is my dog called?")
    await settled(await first.live(name))
    legs = await first.sessions.journal.legs((await first.sessions.journal.session(name)).key)
    file = tmp_path / "moved.ndjson"
    await archived(first, file, name)
    second = await another("sqlite", first=first)
    why = await refused(second, file, "--backend", "herm=engine")
    assert "is or was at a backend of dialect `herm`, and `engine` is of dialect `engine`" in why
    (done,) = await taken(second, file)
    assert done["backend"] == "engine"
    row = await second.sessions.journal.session(name)
    there = await second.sessions.journal.legs(row.key)
    assert [dataclasses.replace(leg, session=row.key) for leg in legs] == there
    assert (await roll_back(second.sessions, name, by="me")).backend == "herm"
    await second.restart()
    talk = second.eve("herm").attach(name)
    await talk.send("And the cat?")
    await settled(await second.live(name))
    assert len((await second.live(name)).state.turn_ids) == 3


async def test_only_an_admin_moves_sessions(serve: Serve, tmp_path: Path) -> None:
    keys = (key_of("one"), key_of("admin", admin=True))
    first = await serve(settings={"keys": keys})
    session = await first.eve_client("engine", key="k-one").create("hello")
    await session.read_turn()
    await settled(await first.live(session.session_id))
    paths = [f"/api/v1/sessions/{session.session_id}/archive", "/api/v1/sessions?all=1"]
    asks_ = [("GET", path) for path in paths] + [("POST", "/api/v1/sessions/import")]
    for method, path in asks_:
        for key, status in (("k-one", 403), (None, 401)):
            async with first.http.request(
                method, url(first) + path, headers=credential(key), data=b"x" * 8
            ) as response:
                assert response.status == status
    done = await dragoman(
        *("sessions", "export", session.session_id, "--archive", str(tmp_path / "a")),
        url=url(first),
        key="k-one",
    )
    assert done.exit_code == 1
    assert "needs a key of an administrator" in done.stderr
    assert list(tmp_path.iterdir()) == []


async def test_what_is_under_way_is_not_archived_and_the_way_out_is_said(
    serve: Serve, tmp_path: Path
) -> None:
    first = await serve("sqlite")
    still = await began(first)
    session = await first.eve("engine").create("script: approve")
    await until(lambda: asks_now(first, session.session_id))
    file = tmp_path / "some.ndjson"
    done = await dragoman(
        "sessions", "export", "--all", "--archive", str(file), "--json", url=url(first)
    )
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert answer["archived"] == [still]
    (why,) = answer["refused"]
    assert why["id"] == session.session_id
    assert "is not at rest: turn `" in why["why"]
    assert f"`dragoman sessions settle {session.session_id}`" in why["why"]
    assert why["why"] in done.stderr
    settle = await dragoman("sessions", "settle", session.session_id, url=url(first))
    assert settle.exit_code == 0
    await archived(first, tmp_path / "both.ndjson", session.session_id, still)
    # One that is gone, one that never was, and nothing that is left.
    await dragoman("sessions", "delete", still, "--local", "-y", url=url(first))
    for name in (still, "nobody"):
        gone = tmp_path / "gone.ndjson"
        for more in ({"url": url(first)}, None):
            at = () if more else ("--journal", str(tmp_path / "journal.db"))
            done = await dragoman(
                "sessions", "export", name, "--archive", str(gone), *at, **(more or {})
            )
            assert (done.exit_code, done.stdout) == (1, "")
            assert f"here is no session `{name}`" in done.stderr
            assert not gone.exists()


def asks_now(of: Dragoman, name: str) -> bool:
    live = of.sessions.cache.at_hand(name)
    return live is not None and asks(live)


async def test_what_does_not_fit_is_refused_and_named(
    serve: Serve, another: Start[Another], tmp_path: Path
) -> None:
    first = await serve(settings={"keys": (key_of("one"), key_of("admin", admin=True))})
    task = first.http.post(
        first.face("engine", "engine") + "/execute",
        json={"message": "hello", "task_id": "tour"},
        headers=credential("k-one"),
    )
    async with task as response:
        await response.read()
    (row,) = await first.sessions.journal.sessions()
    await settled(await first.live(row.id))
    file = tmp_path / "one.ndjson"
    await archived(first, file, row.id, key="k-admin")

    owners = await another(first=first, settings={"keys": (key_of("two", admin=True),)})
    why = await refused(owners, file, key="k-two")
    assert "belongs to key `one`, which is not configured here" in why
    (done,) = await taken(owners, file, "--owner", "two", key="k-two")
    assert done["owner"] == "two"
    # Its names are the new owner's.
    assert (
        await owners.sessions.journal.resolve(owner="two", route="engine", kind="task", name="tour")
        == row.id
    )

    renamed = await another(first=first, names={"engine": "lab"})
    why = await refused(renamed, file, "--owner", "local")
    assert 'add [[routes]] with name = "engine"' in why
    route = {"name": "engine", "backends": [{"name": "lab"}]}
    await renamed.reconfigure(routes=[route])
    why = await refused(renamed, file, "--owner", "local")
    assert "is at backend `engine`, which is not configured here" in why
    assert "--backend engine=NAME" in why
    why = await refused(renamed, file, "--owner", "local", "--backend", "engine=herm")
    assert "is or was at a backend of dialect `engine`, and `herm` is of dialect `herm` here" in why
    words = ("--owner", "local", "--backend", "engine=lab")
    lab = renamed.backends["lab"]
    renamed.backends["lab"] = dataclasses.replace(lab, key="k-wrong")
    await renamed.restart()
    why = await refused(renamed, file, *words)
    assert why.startswith("dragoman: Backend `lab` is not ready: it refuses our credential")
    assert await renamed.sessions.journal.sessions() == []
    renamed.backends["lab"] = lab
    await renamed.restart()
    (done,) = await taken(renamed, file, *words)
    assert done["backend"] == "lab"

    clashing = await another(first=first)
    async with clashing.http.post(
        clashing.face("engine", "engine") + "/execute", json={"message": "x", "task_id": "tour"}
    ) as response:
        await response.read()
    why = await refused(clashing, file, "--owner", "local")
    assert f"session `{row.id}`, from line 1: Session `{row.id}` has the task `tour`" in why
    (other,) = await clashing.sessions.journal.sessions()
    assert f"`{other.id}` here" in why
    wrong = await dragoman("sessions", "import", str(file), "--backend", "engine", url=url(first))
    assert wrong.exit_code == 2
    assert "write OLD=NEW" in wrong.stderr


async def test_an_id_that_is_taken_or_gone_is_refused(
    serve: Serve, another: Start[Another], tmp_path: Path
) -> None:
    first = await serve()
    name = await began(first)
    file = tmp_path / "one.ndjson"
    await archived(first, file, name)
    second = await another(first=first)
    journal = second.sessions.journal
    await journal.create_session(
        id=name,
        owner="local",
        route="engine",
        dialect="eve",
        backend="engine",
        secret=b"s",
        at=1,
        body=(await rows(first, name))[0].splitlines(keepends=True)[0].replace(b":1,", b":1, "),
    )
    assert f"There is another session `{name}` here" in await refused(second, file)
    await journal.delete((await journal.session(name)).key, at=2)
    assert f"Session `{name}` was here and is deleted" in await refused(second, file)


async def posted(of: Dragoman, data: Any, query: str = "") -> tuple[int, Any]:
    """The answer to lines of an archive."""
    path = f"{url(of)}/api/v1/sessions/import{query}"
    async with of.http.post(path, data=data) as response:
        return response.status, await response.json()


async def test_what_does_not_come_whole_leaves_nothing_and_may_come_again(
    serve: Serve, another: Start[Another], tmp_path: Path
) -> None:
    first = await serve()
    name = await began(first, MESSAGE)
    file = tmp_path / "one.ndjson"
    await archived(first, file, name)
    data = file.read_bytes()
    second = await another("sqlite", first=first)
    journal = second.sessions.journal
    arrived, leave = asyncio.Event(), asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield data[: -len(data) // 3]
        arrived.set()
        await leave.wait()
        raise ConnectionError

    gone = asyncio.create_task(posted(second, half()))
    await arrived.wait()
    await until(second.sessions.arrivals.locked)
    # One at a time.
    status, answer = await posted(second, data)
    assert (status, answer["error"]["code"]) == (503, "overloaded")
    leave.set()
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await gone
    await until(lambda: not second.sessions.arrivals.locked())
    for cut in (len(data) - 3, len(data) // 2, 20):
        status, answer = await posted(second, data[:cut])
        assert (status, answer["error"]["code"]) == (400, "invalid_request")
        assert "the archive is cut off here" in answer["error"]["message"]
        assert answer["error"]["details"]["line"] >= 1
    status, answer = await posted(second, data + data)
    assert status == 400
    assert "a second session begins here" in answer["error"]["message"]
    status, answer = await posted(second, data, "?backend=engine")
    assert (status, answer["error"]["message"]) == (400, "`backend` is `OLD=NEW`, not `engine`.")
    for query, why in (
        ("owner=a/b", "`owner` is the name of a key"),
        ("backend=a=b/", "`OLD=NEW`"),
    ):
        status, answer = await posted(second, data, f"?{query}")
        assert (status, why in answer["error"]["message"]) == (400, True), answer
    assert await journal.sessions() == []
    assert await journal.blob(hashlib.sha256(PICTURE).hexdigest()) is None
    status, answer = await posted(second, data)
    assert (status, answer["status"]) == (200, "imported")
    await second.restart()
    assert b"".join(await rows(second, name)) == b"".join(await rows(first, name))


async def test_a_refusal_is_told_also_to_who_still_sends(
    serve: Serve, another: Start[Another], tmp_path: Path
) -> None:
    first = await serve()
    session = await first.eve("engine").create(MESSAGE)
    await session.read_turn()
    await settled(await first.live(session.session_id))
    row = await first.sessions.journal.session(session.session_id)
    large = await first.sessions.journal.put_blob(bytes(32 * 2**20))
    await first.sessions.journal.append(Write(row.key, blobs=[large], at=row.updated_at))
    file = tmp_path / "large.ndjson"
    await archived(first, file, row.id)
    second = await another(first=first, settings={"keys": (key_of("two", admin=True),)})
    why = await refused(second, file, key="k-two")
    assert "belongs to key `local`, which is not configured here" in why
    (done,) = await taken(second, file, "--owner", "two", key="k-two")
    assert done["bytes"] > 32 * 2**20


async def test_one_that_is_too_large_or_too_slow_is_refused(
    serve: Serve, another: Start[Another], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = await serve()
    file = tmp_path / "one.ndjson"
    await archived(first, file, await began(first))
    data = file.read_bytes()
    hasty = await another(first=first, settings={"server": {"body_timeout_seconds": 0.05}})
    second = await another(first=first)

    async def slowly() -> AsyncIterator[bytes]:
        yield data[:100]
        await asyncio.sleep(SOON_S)

    async def in_pieces() -> AsyncIterator[bytes]:
        yield data[:-10]
        yield data[-10:]

    status, answer = await posted(hasty, slowly())
    assert (status, answer["error"]["code"]) == (408, "request_timeout")
    for handler in takers(second):
        monkeypatch.setitem(handler.__dict__, "takes", len(data) - 1)
    for body_ in (data, in_pieces()):
        status, answer = await posted(second, body_)
        assert (status, answer["error"]["code"]) == (413, "too_large")
    for one in (hasty, second):
        assert await one.sessions.journal.sessions() == []


def takers(of: Dragoman) -> list[Any]:
    """The handlers that take archives."""
    assert of._runner is not None
    app: Any = of._runner.app
    return [
        route.handler
        for route in app.router.routes()
        if route.resource.canonical == "/api/v1/sessions/import"
    ]


async def test_a_file_is_imported_into_the_journal_of_a_server_that_is_stopped(
    serve: Serve, another: Start[Another], tmp_path: Path
) -> None:
    first = await serve()
    name = await began(first)
    file = tmp_path / "one.ndjson"
    await archived(first, file, name)
    second = await another("sqlite", first=first)
    config = tmp_path / "dragoman.toml"
    table = f'name = "engine"\ndialect = "engine"\nurl = "{first.backend_url("engine")}"\n'
    config.write_text(f"[[backends]]\n{table}")
    at = ("--journal", str(tmp_path / "journal.db"), "--config", str(config))
    words = ("sessions", "import", str(file), *at)
    done = await dragoman(*words)
    assert done.exit_code == 1
    assert "another process (pid" in done.stderr
    await second.stop()
    done = await dragoman(*words, "--dry-run")
    assert (done.exit_code, done.stdout.split("\t")[:2]) == (0, [name, "checked"])
    done = await dragoman(*words)
    assert (done.exit_code, done.stdout.split("\t")[:2]) == (0, [name, "imported"])
    await second.start()
    talk = second.eve("engine").attach(name)
    await talk.send("more")
    await settled(await second.live(name))
    assert len((await second.live(name)).state.turn_ids) == 2


async def test_the_command_line_says_what_is_wrong(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await serve()
    file = tmp_path / "some.ndjson"
    for words in (
        ("export",),
        ("export", "a", "--all"),
        ("export", "--all"),
        ("export", "a", "b"),
        ("export", "a", "--archive", str(file), "--frames"),
        ("export", "a", "--archive", str(file), "-o", str(file)),
    ):
        done = await dragoman("sessions", *words, url=url(first))
        assert (done.exit_code, done.stdout) == (2, "")
    done = await dragoman("sessions", "export", "--all", "--archive", str(file), url=url(first))
    assert (done.exit_code, done.stderr) == (1, "dragoman: there are no sessions.\n")
    name = await began(first)
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = await dragoman("sessions", "export", name, "--archive", str(file), url=url(first))
    assert done.exit_code == 0
    assert "archiving" in done.stderr
    done = await dragoman("sessions", "import", str(file), url=url(first))
    assert done.exit_code == 0
    assert "importing" in done.stderr
    assert "already" in done.stdout
    done = await dragoman("sessions", "export", name, "--archive", str(file), url=url(first))
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{file}: it exists; name another file" in done.stderr
    monkeypatch.undo()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines + lines[:-1]))
    done = await dragoman("sessions", "import", str(file), url=url(first))
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{file}: line {2 * len(lines) - 1}: the archive is cut off here" in done.stderr
    assert "nothing was imported" in done.stderr
    for command in ("export", "import"):
        done = await dragoman("sessions", command, "--help")
        assert "sessions delete --local" in " ".join(done.stdout.split())
