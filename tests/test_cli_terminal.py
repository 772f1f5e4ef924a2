"""What the command line shows on a terminal of 80 columns: the real program, and a real server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters.model import events as ev
from adapters.model.events import MAIN
from tests.support.proxied import Proxied, proxied
from tests.support.terminal import COLUMNS, Shown, run_in_terminal

pytestmark = pytest.mark.pages

TITLE = "Find out why the nightly export takes four hours, and what the disk has to do with it"
AGO = re.compile(r"\b(now|\d+ (s|min) ago)\b")
ISO = re.compile(r"\d{4}-\d\d-\d\dT")


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Proxied]:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    backends = ("engine", "engine-with-a-long-name")
    async with proxied(backends=backends, journal={"url": url, "window_ms": 0}) as made:
        yield made


async def said(running: Proxied, text: str = "hello", title: str = "") -> str:
    session = await running.say(text)
    if text.startswith("script: approve"):
        await running.asked(session)
    else:
        await running.until_idle(session)
    if title:
        live = await running.session(session)
        told = ev.SessionUpdated(thread_id=MAIN, title=title)
        await live._log.until_stored(live._log.emit([told]))
    return session


async def shown(
    running: Proxied, *arguments: str, columns: int = COLUMNS, typed: bytes = b"", status: int = 0
) -> Shown:
    """What stands on the terminal; no line of it is too long."""
    env = {"DRAGOMAN_URL": running.url}
    found = await run_in_terminal(arguments, columns=columns, env=env, input=typed, once=b"[y/N]: ")
    assert found.status == status, found.text
    assert max(map(len, found.lines), default=0) <= columns, found.text
    return found


async def test_the_help_fits() -> None:
    found = await run_in_terminal(["--help"])
    assert "  sessions " in found.text
    assert max(map(len, found.lines)) <= COLUMNS


async def test_lists_of_sessions_have_whole_ids_and_times_that_people_read(
    running: Proxied, tmp_path: Path
) -> None:
    names = [await said(running, "hello", TITLE), await said(running, "script: approve")]
    for more in ((), ("--journal", str(tmp_path / "own.db"))):
        found = await shown(running, "sessions", "list", *more)
        assert all(found.text.count(name) == 1 for name in names)
        head, *_ = found.lines
        assert head.split()[0] == "id"
        assert "owner" not in head.split()
        assert len(AGO.findall(found.text)) == 2
        assert ISO.search(found.text) is None
    wide = await shown(running, "sessions", "list", columns=200)
    assert wide.lines[0].split() == ["id", "state", "dialect", "route", "owner", "updated", "title"]
    assert TITLE in wide.text
    narrow = await shown(running, "sessions", "list", columns=40)
    assert all(name in narrow.text for name in names)
    assert narrow.text.count("\nstate ") == 2
    # Narrower than an id: the terminal breaks it, and a person copies it whole.
    found = await run_in_terminal(
        ["sessions", "list"], columns=20, env={"DRAGOMAN_URL": running.url}
    )
    assert all(name in found.text for name in names)
    pruned = await shown(running, "sessions", "prune", "--older-than", "0s", "--dry-run")
    assert names[0] in pruned.text


async def test_a_session_is_shown_with_whole_ids(running: Proxied) -> None:
    name = await said(running, "script: approve", TITLE)
    asked = await running.asked(name)
    await running.say("and then something that is much longer than there is room " * 3, name)
    (queued,) = (await running.session(name)).queued()
    found = await shown(running, "sessions", "show", name)
    for id in (name, asked.request_id, queued.command_id):
        assert id in found.text
    assert f"answer --url {running.url} {name}" in found.text
    assert re.search(r"^updated +(now|\d+ (s|min) ago) *$", found.text, re.MULTILINE)
    narrow = await shown(running, "sessions", "show", name, columns=48)
    assert narrow.text.startswith(f"id        {name}\n")
    gone = await shown(running, "sessions", "withdraw", name[:12], queued.command_id)
    assert f"`{name[:12]}` is `{name}` (Find out why the nightl…)\n" in gone.text
    assert queued.command_id in gone.text


async def test_tables_fit(running: Proxied, tmp_path: Path) -> None:
    name = await said(running, "script: approve", TITLE)
    found = await shown(running, "routes", "list")
    assert "engine-with-a-long-name" in found.text
    found = await shown(running, "matrix")
    assert "backend" in found.text
    copy = tmp_path / "a-folder" / "copy.db"
    copy.parent.mkdir()
    found = await run_in_terminal(["backup", str(copy), "--journal", str(tmp_path / "own.db")])
    assert str(copy) in found.text
    plan = ("migrate", "plan", "--from", "engine", "--to", "engine-with-a-long-name")
    found = await shown(running, *plan)
    assert name in found.text
    move = ("migrate", "move", name[:10], *plan[2:])
    found = await shown(running, *move, status=1)
    assert f"`{name[:10]}` is `{name}`" in found.text
    assert f"`{name}` waits for" in " ".join(found.text.split())
    archive = str(tmp_path / "some.ndjson")
    idle = await said(running)
    found = await shown(running, "sessions", "export", idle[:10], "--archive", archive)
    assert re.search(f"^{idle}  archived *$", found.text, re.MULTILINE)
    found = await shown(running, "sessions", "import", archive)
    assert re.search(f"^{idle}  already", found.text, re.MULTILINE)
    log = tmp_path / "with-a-name-that-is-longer-than-a-column-of-it.ndjson"
    await shown(running, "sessions", "export", idle, "-o", str(log))
    found = await run_in_terminal(["verify", log.name], cwd=tmp_path)
    assert re.search(f"^capture +{log.name}$", found.text.replace(" \n", "\n"), re.MULTILINE)


async def test_what_is_erased_is_said_before_it_is_asked(running: Proxied) -> None:
    first, second = await said(running, "hello", "Lunch"), await said(running, "hello", "Dinner")
    no = await shown(running, "sessions", "delete", first[:9], typed=b"n\n", status=1)
    assert f"Erase `{first}` (Lunch) for ever? [y/N]:" in " ".join(no.text.split())
    assert "nothing was erased" in no.text
    both = await shown(running, "sessions", "delete", "Dinner", first, typed=b"n\n", status=1)
    assert f"`{second}` (Dinner)\n`{first}` (Lunch)\n" in both.text
    assert "Erase these 2 sessions for ever?" in both.text
    yes = await shown(running, "sessions", "delete", "Dinner", first, typed=b"y\n")
    assert f"{second}  deleted\n{first}  deleted\n" in re.sub(" {2,}", "  ", yes.text)
    assert yes.text.count("status") == 1


async def test_an_empty_list_says_so(running: Proxied) -> None:
    for arguments, says in (
        (("sessions", "list"), "no sessions yet\n"),
        (("sessions", "list", "--state", "paused"), "no sessions in state `paused`\n"),
        (("sessions", "prune", "--older-than", "1d", "--dry-run"), "no session is beyond these"),
    ):
        assert (await shown(running, *arguments)).text.startswith(says)
