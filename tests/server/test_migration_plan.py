"""The plan of a migration: over HTTP, from a journal's file, and on the command line."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import Result

from adapters.wire.errors import DragomanError, ErrorCode
from proxy.cli import printing
from proxy.fanout.hub import entries_by_steps
from proxy.journal.sqlite import SqliteJournal
from proxy.migration import planning
from proxy.scripted.eve_turns import EveVariant
from proxy.scripted.faults import Faults, Status
from tests.support.dragoman import Backend, Dragoman
from tests.support.journals import sqlite
from tests.support.keys import credential, key_of
from tests.support.waiting import asks, settled, until
from tests.test_cli import dragoman

PLAN = "/api/v1/migration/plan"
IMAGE = {
    "type": "file",
    "mediaType": "image/png",
    "data": "data:image/png;base64," + base64.b64encode(b"an image").decode(),
}
BACKENDS = {
    "old": Backend("eve", {"variant": EveVariant("S2")}),
    "engine": Backend("engine"),
    "herm": Backend("herm"),
}
UNDRIVEN = {"name": "later", "dialect": "hermes-agent", "url": "hooks:"}


class Three(Dragoman):
    """A Dragoman over an eve, an Engine and a Herm."""

    async def said(
        self, message: Any, route: str = "old", key: str | None = None, **more: Any
    ) -> str:
        """Say something as an eve frontend, and return the session's id when nothing moves."""
        url = f"{self.face('eve', route)}/eve/v1/session"
        body = {"message": message, **more}
        async with self.http.post(url, json=body, headers=credential(key)) as response:
            assert response.status in (200, 202), await response.text()
            name: str = (await response.json())["sessionId"]
        session = await self.live(name)
        if "approve" in str(message):
            await until(lambda: asks(session))
        else:
            await settled(session)
        return name

    async def lines(self, key: str | None = None, **query: str) -> tuple[int, list[Any]]:
        """Return the status and the lines of a plan."""
        url = f"http://127.0.0.1:{self.port}{PLAN}"
        async with self.http.get(url, params=query, headers=credential(key)) as response:
            text = await response.text()
            if response.status == 200:
                assert response.content_type == "application/x-ndjson"
            return response.status, [json.loads(line) for line in text.splitlines()]

    async def planned(self, to: str, key: str | None = None) -> Any:
        """Return a plan of moving away from the eve."""
        status, lines = await self.lines(key, **{"from": "old", "to": to})
        assert status == 200
        return lines[-1]["plan"]


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    async with Three(sqlite(tmp_path), BACKENDS) as made:
        yield made


def by_name(plan: Any) -> dict[str, Any]:
    return {one["what"]: one for one in plan["findings"]}


async def test_a_plan_says_what_the_sessions_used_that_the_other_backend_cannot_do(
    three: Three,
) -> None:
    plain = [await three.said("hello") for _ in range(4)]
    picture = await three.said([{"type": "text", "text": "see"}, IMAGE])
    child = await three.said("script: child")
    schema = await three.said("script: structured", outputSchema={"type": "object"})
    paused = await three.said("script: approve")
    await three.said("hello", "engine")
    status, lines = await three.lines(**{"from": "old", "to": "engine"})
    assert status == 200
    *progress, last = lines
    assert [one["read"] for one in progress] == sorted(one["read"] for one in progress)
    # The one on the other backend is not looked at.
    assert progress[-1] == {"read": 8}
    plan = planning.PlanOut.model_validate(last["plan"])
    assert (plan.source, plan.target, plan.sessions) == ("old", "engine", 8)
    found = by_name(last["plan"])
    assert {name for name, one in found.items() if one["verdict"] == "impossible"} == {
        "child agents",
        "send_message.output_schema",
        "structured results",
    }
    assert plan.impossible == 3
    assert [one.verdict for one in plan.findings][:3] == ["impossible"] * 3
    assert found["child agents"]["examples"] == [child]
    assert found["send_message.output_schema"]["examples"] == [schema]
    assert found["send_message.file image/png"] == {
        "area": "command",
        "what": "send_message.file image/png",
        "sessions": 1,
        "times": 1,
        "examples": [picture],
        "verdict": "works",
        "consequence": "",
    }
    # The newest sessions are the examples.
    message = found["send_message"]
    assert (message["sessions"], message["times"]) == (8, 8)
    assert message["examples"] == [paused, schema, child]
    assert not set(plain) & set(message["examples"])
    assert {one.why: one.examples for one in plan.held} == {
        "waits for an answer": [paused],
        "at work": [paused],
    }
    assert plan.faces == {"eve": {"send_message": 8}}
    assert plan.large.sessions == 0
    assert plan.large.largest_bytes > 0
    # Herm takes text only, and has children.
    found = by_name(await three.planned("herm"))
    assert found["send_message.file image/png"]["verdict"] == "impossible"
    assert "only text is carried" in found["send_message.file image/png"]["consequence"]
    assert found["child agents"]["verdict"] == "works"


async def test_ended_and_large_sessions_are_told(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "LARGE", 1000)
    large = await three.said("x" * 1001)
    ended = await three.said("hello")
    url = f"{three.face('eve', 'old')}/eve/v1/session/{ended}/reset"
    async with three.http.post(url, json={}) as response:
        assert response.status < 300, await response.text()
    session = await three.live(ended)
    await until(lambda: session.state.ended is not None and session.last_seq == session.state.seq)
    plan = await three.planned("engine")
    assert plan["sessions"] == 2
    assert {one["why"]: one["examples"] for one in plan["held"]} == {"ended": [ended]}
    assert (plan["large"]["sessions"], plan["large"]["examples"]) == (1, [large])
    assert plan["large"]["largest_bytes"] > 1000
    assert by_name(plan)["reset"]["verdict"] == "differs"


async def test_a_session_that_is_damaged_does_not_hide_the_others(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [await three.said("hello") for _ in range(2)]

    def damaged(body: bytes, session_id: str) -> Any:
        return entries_by_steps(b"{\n" if session_id == names[0] else body, session_id)

    monkeypatch.setattr(planning, "entries_by_steps", damaged)
    plan = await three.planned("engine")
    assert {one["why"]: one["examples"] for one in plan["held"]} == {"damaged": [names[0]]}
    assert by_name(plan)["send_message"]["examples"] == [names[1]]


async def test_sessions_are_read_by_pages(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PAGE", 2)
    for _ in range(5):
        await three.said("hello")
    assert (await three.planned("engine"))["sessions"] == 5


@pytest.mark.parametrize(
    ("source", "target", "status", "code"),
    [
        ("nowhere", "engine", 404, "not_found"),
        ("old", "nowhere", 404, "not_found"),
        ("old", "old", 400, "invalid_request"),
        ("old", "", 400, "invalid_request"),
    ],
)
async def test_a_plan_of_no_two_backends_is_refused(
    three: Three, source: str, target: str, status: int, code: str
) -> None:
    found, (body,) = await three.lines(**{"from": source, "to": target})
    assert (found, body["error"]["code"]) == (status, code)


async def test_a_backend_that_cannot_be_driven_is_refused(three: Three) -> None:
    settings = three.settings
    later = type(settings.backends[0]).model_validate(UNDRIVEN)
    settings = settings.model_copy(update={"backends": (*settings.backends, later)})
    for names in (("old", "later"), ("later", "old")):
        with pytest.raises(DragomanError, match="begin all sessions themselves") as refused:
            planning.named(settings, *names)
        assert refused.value.code is ErrorCode.NOT_SUPPORTED


async def test_an_administrator_plans_for_the_sessions_of_everybody(tmp_path: Path) -> None:
    keys = (key_of("one"), key_of("boss", admin=True))
    async with Three(sqlite(tmp_path), BACKENDS, settings={"keys": keys}) as three:
        name = await three.said("hello", key="k-one")
        planned = by_name(await three.planned("engine", "k-boss"))
        assert planned["send_message"]["examples"] == [name]
        both = {"from": "old", "to": "engine"}
        status, (body,) = await three.lines("k-one", **both)
        assert (status, body["error"]["code"]) == (403, "forbidden")
        status, (body,) = await three.lines("k-boss", **{"from": "old", "to": "nowhere"})
        assert "no backend `nowhere`" in body["error"]["message"]
        assert (await three.lines(None, **both))[0] == 401


async def test_a_plan_that_breaks_off_says_why_in_its_last_line(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three.said("hello")

    async def broken(*_: Any, **__: Any) -> Any:
        raise DragomanError("The disk is gone.", code=ErrorCode.JOURNAL_UNAVAILABLE)

    monkeypatch.setattr(SqliteJournal, "read", broken)
    status, lines = await three.lines(**{"from": "old", "to": "engine"})
    assert status == 200
    assert lines[0] == {"read": 1}
    assert lines[-1]["error"]["message"] == "The disk is gone."
    result = await plan(three)
    assert result.exit_code == 2
    assert "The disk is gone." in result.stderr


async def test_a_server_that_stops_makes_no_plan(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three.said("hello")
    with monkeypatch.context() as patched:
        patched.setattr(type(three.sessions), "stopping", property(lambda _: True))
        status, (body,) = await three.lines(**{"from": "old", "to": "engine"})
    assert (status, body["error"]["code"]) == (503, "stopping")


def test_the_lines_of_a_plan_are_no_errors_to_the_command_line() -> None:
    # It takes a line that begins with a version for an error.
    line = planning.PlanLineOut(read=1).line()
    assert not line.startswith(b'{"version":')


# The command line.


async def plan(three: Three, *arguments: str, to: str = "engine") -> Result:
    url = f"http://127.0.0.1:{three.port}"
    return await dragoman("migrate", "plan", "--from", "old", "--to", to, *arguments, url=url)


async def test_the_command_prints_the_plan_and_exits_with_what_it_says(three: Three) -> None:
    await three.said("hello")
    fine = await plan(three)
    assert fine.exit_code == 0, fine.output
    rows = [line.split("\t") for line in fine.stdout.splitlines()]
    assert rows[0] == ["ready", "backend engine", "", "", "", ""]
    assert ["works", "command send_message"] in [row[:2] for row in rows]
    assert ["sent", "eve send_message", "", "1", "", ""] in rows
    assert fine.stderr == "old to engine: 1 session, nothing is impossible\n"
    child = await three.said("script: child")
    bad = await plan(three)
    assert bad.exit_code == 1
    first = bad.stdout.splitlines()[1].split("\t")
    assert first[:5] == ["impossible", "agent child agents", "1", "1", child]
    assert bad.stderr == "old to engine: 2 sessions, 1 thing is impossible\n"
    told = await plan(three, "--json")
    assert (told.exit_code, told.stderr) == (1, "")
    assert json.loads(told.stdout) == await three.planned("engine")


async def test_a_plan_says_first_that_the_other_backend_cannot_be_used(tmp_path: Path) -> None:
    backends = {**BACKENDS, "engine": Backend("engine", key="k-wrong")}
    async with Three(sqlite(tmp_path), backends) as three:
        await three.said("hello")
        bad = await plan(three)
        check = (await three.planned("engine"))["check"]
        well = await plan(three, to="herm")
    assert bad.exit_code == 1
    first = bad.stdout.splitlines()[0].split("\t")
    assert first[:2] == ["not ready", "backend engine"]
    assert first[-1].startswith("credential: it refuses our credential (401")
    said = "old to engine: 1 session, nothing is impossible; engine is not ready\n"
    assert bad.stderr == said
    assert (check["ready"], check["kind"], check["why"]) == ("no", "credential_refused", first[-1:])
    assert well.exit_code == 0


async def test_a_plan_says_what_could_not_be_learned_of_the_other_backend(tmp_path: Path) -> None:
    lost = Faults({("info", number): Status(404) for number in range(1, 10)})
    backends = {"old": Backend("engine"), "new": Backend("eve", {"faults": lost})}
    async with Three(sqlite(tmp_path), backends) as three:
        done = await plan(three, to="new")
    assert done.exit_code == 0
    first = done.stdout.splitlines()[0].split("\t")
    assert first[:2] == ["not known", "backend new"]
    assert "its credential is not known: /eve/v1/info is not there (404)" in first[-1]


async def test_on_a_terminal_the_plan_is_a_table(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    await three.said("script: child")
    head, ready, first, *_ = (await plan(three)).stdout.splitlines()
    assert ready.split() == ["ready", "backend", "engine"]
    assert head.split() == ["verdict", "what", "sessions", "times", "examples", "consequence"]
    assert first.startswith("impossible  agent child agents")
    assert "No event of the dialect `engine` tells of it." in first


@pytest.mark.parametrize("line", [b"", b'{"read":1}\n', b"[]\n", b"words\n", b'{"else":1}\n'])
async def test_an_answer_without_a_plan_is_told(line: bytes) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=line, content_type="application/x-ndjson")

    app = web.Application()
    app.router.add_get(PLAN, answer)
    async with TestServer(app) as server:
        url = str(server.make_url(""))
        failed = await dragoman("migrate", "plan", "--from", "a", "--to", "b", url=url)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert "the plan broke off in the middle; try again." in failed.stderr


async def test_the_command_fails_with_status_2(three: Three) -> None:
    for arguments, said in (
        ({"to": "nowhere"}, "There is no backend `nowhere`"),
        ({"to": "old"}, "name another one to move to"),
    ):
        failed = await plan(three, **arguments)
        assert (failed.exit_code, failed.stdout) == (2, "")
        assert said in failed.stderr
    assert (await dragoman("migrate", "plan", "--from", "old")).exit_code == 2


async def test_a_journal_s_file_says_the_same(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    config = tmp_path / "own.toml"
    async with Three(url, BACKENDS) as three:
        await three.said("script: child")
        backends = "".join(
            f'[[backends]]\nname = "{one.name}"\ndialect = "{one.dialect}"\nurl = "{one.url}"\n'
            + ('create = {agent = "agent_K4"}\n' if one.dialect == "herm" else "")
            for one in three.settings.backends
        )
        config.write_text(backends)
        offline = ("--journal", str(tmp_path / "own.db"), "--config", str(config), "--json")
        asked, read = await plan(three, "--json"), await plan(three, *offline)
    assert (asked.exit_code, read.exit_code) == (1, 1), read.output
    online, offline_ = json.loads(asked.stdout), json.loads(read.stdout)
    assert online.pop("check") == {"ready": "yes", "why": []}
    check = offline_.pop("check")
    assert (check["ready"], "asks no backend" in check["why"][0]) == ("not_known", True)
    assert online == offline_
    wrong = await dragoman("migrate", "plan", "--from", "old", "--to", "none", *offline)
    assert wrong.exit_code == 2
    assert "There is no backend `none`" in wrong.stderr
