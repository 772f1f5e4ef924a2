"""The inputs of sessions go to a shadow too, and what serves notices nothing of it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.wire.errors import DragomanError
from proxy.config.settings import LOCAL, SHADOWS
from proxy.control import offline
from proxy.migration import shadowing
from proxy.migration.moving import move
from proxy.migration.progress import Progress, progress_of
from proxy.migration.reporting import ShadowReportOut, lines_of
from proxy.scripted.faults import Faults, Silence, Status
from proxy.sessions.retention_limits import RetentionLimits
from proxy.sessions.shadows import shadow_of
from proxy.upstream import readiness
from tests.migration.shadows import Shadowed
from tests.support.dragoman import Start, starting
from tests.support.waiting import asks, settled, until
from tests.test_cli import dragoman

DIALECTS = ("agui", "engine", "eve", "herm", "managed-agents")
TOLD_OTHERWISE = (
    *("error.reported", "error.reported"),
    *("reasoning.completed.text", "reasoning.completed.text"),
    "tool.called.name",
)
"""What Managed Agents alone tells otherwise: an error before the end of the turn that fails, no
text of the reasoning, and the server of a tool apart from its name."""

TEXTS = ("text", "tool", "tools", "reason", "fail", "failmid", "toolfail")


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start[Shadowed]]:
    async with starting(Shadowed, tmp_path) as start:
        yield start


@pytest.mark.parametrize("shadow", DIALECTS)
@pytest.mark.parametrize("serving", DIALECTS)
async def test_a_shadow_of_each_dialect_is_given_what_was_said(
    start: Start[Shadowed], serving: str, shadow: str
) -> None:
    house = await start(serving=serving, shadow=shadow)
    for script in TEXTS:
        session = await house.begin(f"script: {script}")
        await settled(session)
        await house.say(session, "Anything else?")
        assert (await house.followed(session.id)).failed is None
    found = await house.report()
    differ = TOLD_OTHERWISE if (serving, shadow).count("managed-agents") == 1 else ()
    assert sorted(one.path for one in found.differences) == sorted(differ)
    assert (found.sessions, found.compared, found.same) == (7, 7, 7 - len(differ))
    assert found.tools.called == 4
    assert found.tools.name == differ.count("tool.called.name")
    assert (found.tools.input, found.tools.missing) == (0, 0)
    assert found.speed.serving.turns == found.speed.shadow.turns == 14


@pytest.mark.parametrize("decision", ["allow", "deny"])
@pytest.mark.parametrize("shadow", DIALECTS)
async def test_a_decision_is_repeated(start: Start[Shadowed], shadow: str, decision: str) -> None:
    house = await start(shadow=shadow)
    session = await house.begin("script: approve")
    await house.answer(session, decision=decision)
    await settled(session)
    assert (await house.followed(session.id)).failed is None
    said = [one.event for one in await house.shadow_log(session.id)]
    outcomes = [one.outcome for one in said if isinstance(one, ev.InteractionResolved)]
    assert outcomes == ["approved" if decision == "allow" else "denied"]
    assert (await house.report()).same == 1


@pytest.mark.parametrize(
    ("answer", "script"),
    [({"option_ids": ("07:40",)}, "ask"), ({"text": "Ada"}, "askopen")],
    ids=["option", "text"],
)
async def test_an_answer_is_repeated(
    start: Start[Shadowed], answer: dict[str, Any], script: str
) -> None:
    house = await start()
    session = await house.begin(f"script: {script}")
    await until(lambda: asks(session))
    (request,) = session.open_interactions()
    if "option_ids" in answer:
        assert request.options is not None
        answer = {"option_ids": (request.options[0].id,)}
    await house.answer(session, **answer)
    await settled(session)
    assert (await house.followed(session.id)).failed is None
    assert [one["answer"] for one in house.given("shadow", "respond")] == [
        one["answer"] for one in house.given("serving", "respond")
    ]
    assert (await house.report()).same == 1


async def test_a_file_goes_to_the_shadow_too(start: Start[Shadowed]) -> None:
    house = await start()
    data = b"%PDF-1.4 tiny"
    name = await house.sessions.journal.put_blob(data)
    file = ev.File(
        media_type="application/pdf", name="a.pdf", size=len(data), ref=ev.Blob(sha256=name)
    )
    message = cmd.SendMessage(content=(ev.Text(text="Read this"), file), policy="queue")
    session, _ = await house.sessions.create_with(
        [message], by=LOCAL, owner=LOCAL, route="main", dialect="engine", blobs={name: data}
    )
    await settled(session)
    progress = await house.followed(session.id)
    assert progress.failed is None
    (mine,), (theirs,) = house.given("serving"), house.given("shadow")
    assert mine["media"] == theirs["media"] != []
    assert (await house.report()).same == 1


async def test_no_frontend_sees_a_shadow(start: Start[Shadowed]) -> None:
    house = await start()
    session = await house.begin("script: approve")
    await house.answer(session, decision="allow")
    await settled(session)
    await house.followed(session.id)
    (shadow,) = await house.shadows()
    base = house.face("engine", "main").partition("/as/")[0]
    for path, seen in (
        ("sessions", [session.id]),
        ("sessions?all=1", [session.id]),
        ("migration/sessions?from=serving", [session.id]),
        # Nor is it moved or exported with all others.
        ("migration/sessions?from=shadow", []),
    ):
        async with house.http.get(f"{base}/api/v1/{path}") as response:
            listed = await response.json()
        assert [one["id"] for one in listed["sessions"]] == seen
    for name in (shadow, session.id):
        async with house.http.get(f"{base}/api/v1/sessions/{name}") as response:
            shown = await response.json()
        assert response.status == (404 if name == shadow else 200)
    assert shown["aliases"] == []
    async with house.http.get(f"{base}/api/v1/migration/plan?from=shadow&to=serving") as response:
        plan = json.loads((await response.text()).splitlines()[-1])["plan"]
    assert plan["sessions"] == 0
    with pytest.raises(DragomanError, match="is a shadow, which stays in its sandbox"):
        await move(house.sessions, shadow, to="serving", by="me")


async def test_a_session_that_began_before_is_not_shadowed(start: Start[Shadowed]) -> None:
    house = await start("sqlite")
    plain = {"name": "main", "backends": [{"name": "serving"}]}
    await house.reconfigure(routes=[plain])
    session = await house.begin("Hello")
    await settled(session)
    await house.reconfigure(routes=[{**plain, "shadow": "shadow"}])
    session = await house.live(session.id)
    await house.say(session, "And again")
    other = await house.begin("Hello")
    await settled(other)
    await house.followed(other.id)
    assert await house.shadow_log(session.id) == []
    assert (await house.report()).sessions == 1


# What is wrong with a shadow is no concern of what serves.


async def test_a_shadow_that_is_down_is_reported(
    start: Start[Shadowed], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadowing, "SILENT_SECONDS", 0.5)
    # It goes down behind a check that it passed.
    monkeypatch.setattr(readiness, "KEPT_SECONDS", 3600.0)
    house = await start(speed=200.0)
    (shadow,) = [one for one in house.settings.backends if one.name == "shadow"]
    assert (await house.sessions.backends.readiness.check(shadow)).failed is None
    await house.stop_backend("shadow")
    sessions = [await house.begin("One") for _ in range(2)]
    for session in sessions:
        await settled(session)
        assert (await house.followed(session.id)).failed is not None
    found = await house.report()
    assert (found.sessions, found.compared, found.not_driven) == (2, 0, 2)
    assert all(one.why for one in found.stopped)
    lines = lines_of(ShadowReportOut(routes=[found]))
    assert "0 differ, 2 whose shadow stopped, 0 waiting" in lines[0]
    (first, *_) = found.stopped
    assert f"{first.session}: its shadow {first.shadow} stopped:" in lines
    told = [one for one in caplog.records if "a shadow at" in one.message]
    assert [one.levelno for one in told] == [logging.WARNING]


@pytest.mark.parametrize("shadow", DIALECTS)
async def test_a_shadow_with_a_wrong_key_is_not_running_and_is_given_all_once_it_does(
    start: Start[Shadowed],
    shadow: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readiness, "KEPT_SECONDS", 0.0)
    checks: list[bool] = []
    runs = shadowing.ShadowDriver._runs

    async def counted(self: shadowing.ShadowDriver, name: str) -> bool:
        checks.append(await runs(self, name))
        return checks[-1]

    monkeypatch.setattr(shadowing.ShadowDriver, "_runs", counted)
    house = await start(shadow=shadow, wants="another key")
    await until(lambda: bool(told(caplog)))
    assert told(caplog)[0].startswith("the shadow `shadow` is not running: credential: it refuses")
    session = await house.begin("One")
    await house.say(session, "Two")
    # At the start, and when the session came to rest.
    await until(lambda: len(checks) > 1)
    assert await house.shadows() == []
    found = await house.report()
    assert (found.running, found.sessions, found.waiting, found.not_driven) == (False, 1, 1, 0)
    assert found.why.startswith("credential: it refuses our credential (401")
    address = house.face("engine", "main").partition("/as/")[0]
    report = await dragoman("migrate", "report", url=address)
    assert report.exit_code == 1
    assert "shadow shadow is not running: credential: it refuses" in report.stdout
    listed = await dragoman("routes", "list", url=address)
    assert "shadow shadow of main is not running: credential: it refuses" in listed.stderr
    house.backends["shadow"].options = {}
    await house.stop_backend("shadow")
    await house.start_backend("shadow")
    await house.say(session, "Three")
    assert (await house.caught_up(session.id)).failed is None
    assert (await house.report()).same == 1
    (_, again) = told(caplog)
    assert again == "the shadow `shadow` is running again"
    listed = await dragoman("routes", "list", "--json", url=address)
    shown = {one["name"]: one["shadow"] for one in json.loads(listed.stdout)["routes"]}
    assert shown["main"] == {"backend": "shadow", "running": True, "why": ""}
    assert shown["serving"] is None


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of shadows that run or do not."""
    found = [one.getMessage() for one in caplog.records]
    return [one for one in found if one.startswith("the shadow ")]


async def test_a_message_that_a_shadow_refused_is_given_again(start: Start[Shadowed]) -> None:
    faults = Faults({("execute", 1): Status(400)})
    house = await start(faults=faults)
    session = await house.begin("One")
    await settled(session)
    progress = await house.followed(session.id)
    assert progress.failed is not None
    assert "message `One` was refused" in progress.failed
    await house.say(session, "Two")
    await house.caught_up(session.id)
    assert [one["message"] for one in house.given("shadow")][-2:] == ["One", "Two"]


async def test_what_serves_does_not_wait_for_a_shadow_that_hangs(
    start: Start[Shadowed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadowing, "SILENT_SECONDS", 1.0)
    hangs = Faults({("execute", number): Silence() for number in range(1, 100)})
    house = await start(faults=hangs)
    sessions = [await house.begin("One") for _ in range(20)]
    for number in range(3):
        for session in sessions:
            # Each turn of all ends while no shadow has come anywhere.
            await house.say(session, f"More {number}")
    assert [(await house.progress(one.id)).seq for one in sessions] == [0] * 20
    progress = await house.followed(sessions[0].id)
    assert progress.failed is not None
    assert "Nothing came for 1 s" in progress.failed
    assert (await house.report()).stopped[0].why


async def test_a_stop_does_not_wait_for_what_a_shadow_is_given(start: Start[Shadowed]) -> None:
    house = await start(faults=Faults({("execute", 1): Silence()}))
    session = await house.begin("One")
    await settled(session)

    def given() -> bool:
        return any(one.sending for one in house.sessions.cache if one.row.owner == SHADOWS)

    await until(given)
    assert await house.sessions.drain(2.0)
    assert given()


async def test_a_secret_is_not_known_any_more(start: Start[Shadowed]) -> None:
    house = await start(serving="herm", shadow="herm")
    session = await house.begin("script: secret", face="herm")
    await house.answer(session, sealed=cmd.Sealed("sesame"))
    await settled(session)
    progress = await house.followed(session.id)
    assert progress.failed is not None
    assert "the value that was given is not kept" in progress.failed
    assert "sesame" not in str(await house.shadow_log(session.id))
    found = await house.report()
    assert [one.why for one in found.stopped] == [progress.failed]


async def test_an_additional_question_stops_the_shadow(
    start: Start[Shadowed], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await start()
    house.replace("Hello", "script: ask")
    session = await house.begin("Hello")
    await settled(session)
    progress = await house.followed(session.id)
    assert progress.failed == (
        "The backend asks for question `Which departure do you prefer?`, and the session has "
        "nothing here."
    )


async def test_beyond_what_may_wait_sessions_are_caught_up_later(
    start: Start[Shadowed], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadowing, "AT_ONCE", 0)
    monkeypatch.setattr(shadowing, "MOST_WAITING", 2)
    house = await start()
    sessions = [await house.begin("One") for _ in range(4)]
    for session in sessions:
        await settled(session)
    assert sum("wait for their shadows" in one.message for one in caplog.records) == 1
    found = await house.report()
    assert (found.sessions, found.waiting) == (4, 4)
    monkeypatch.setattr(shadowing, "AT_ONCE", 2)
    for session in sessions:
        await house.say(session, "Two")
        assert (await house.followed(session.id)).failed is None
    assert (await house.report()).same == 4


# Stops, and ends.


async def test_it_goes_on_after_a_restart_and_says_nothing_twice(start: Start[Shadowed]) -> None:
    house = await start("sqlite")
    session = await house.begin("One")
    await settled(session)
    await house.followed(session.id)
    await house.restart()
    session = await house.live(session.id)
    await house.say(session, "Two")
    assert (await house.followed(session.id)).failed is None
    assert [one["message"] for one in house.given("shadow")] == ["One", "Two"]
    assert (await house.report()).same == 1


async def test_a_restart_in_the_middle_of_a_shadow_loses_and_doubles_nothing(
    start: Start[Shadowed],
) -> None:
    house = await start("sqlite")
    house.replace("One", "script: approve")
    session = await house.begin("One")
    await settled(session)
    await house.say(session, "Two")
    # It has the first, and asks what the session never asked.
    await house.followed(session.id)
    shadow = await shadow_of(house.sessions.journal, session.row)
    assert shadow is not None
    await house.restart()
    live = await house.live(shadow.id)
    await house.answer(live, decision="allow")
    await settled(live)
    session = await house.live(session.id)
    await house.say(session, "Three")
    await house.caught_up(session.id)
    assert [one["message"] for one in house.given("shadow")] == ["One", "Two", "Three"]


async def test_a_shadow_is_deleted_with_its_session(start: Start[Shadowed]) -> None:
    house = await start()
    session = await house.begin("One")
    await settled(session)
    await house.followed(session.id)
    assert len(await house.shadows()) == 1
    base = house.face("engine", "main").partition("/as/")[0]
    async with house.http.delete(f"{base}/api/v1/sessions/{session.id}?local=1") as response:
        assert response.status == 200
    assert await house.shadows() == []
    assert (await house.report()).sessions == 0


async def test_a_shadow_goes_with_a_session_that_expires(start: Start[Shadowed]) -> None:
    house = await start()
    session = await house.begin("One")
    await settled(session)
    await house.followed(session.id)
    await asyncio.sleep(0.01)
    gone = await house.sessions.prune(RetentionLimits(age=1), owner=LOCAL)
    assert [one.row.id for one in gone] == [session.id]
    assert await house.shadows() == []


@pytest.mark.parametrize("how", ["delete", "prune"])
async def test_a_shadow_goes_with_a_session_whose_journal_is_changed_as_a_file(
    start: Start[Shadowed], how: str
) -> None:
    house = await start()
    session = await house.begin("One")
    await settled(session)
    await house.followed(session.id)
    await asyncio.sleep(0.01)
    journal = house.sessions.journal
    if how == "delete":
        await offline.deleted(journal, session.id)
    else:
        await offline.pruned(journal, RetentionLimits(age=1), dry_run=False)
    assert await house.shadows() == []


async def test_a_shadow_counts_in_retention(start: Start[Shadowed]) -> None:
    house = await start()
    session = await house.begin("One")
    await settled(session)
    await house.followed(session.id)
    await asyncio.sleep(0.01)
    gone = await house.sessions.prune(RetentionLimits(age=1))
    assert session.id in [one.row.id for one in gone]
    assert await house.shadows() == []
    assert (await house.report()).sessions == 0


async def test_a_shadow_that_is_no_longer_kept_is_reported(start: Start[Shadowed]) -> None:
    house = await start()
    session = await house.begin("One")
    await settled(session)
    await house.followed(session.id)
    shadow = await shadow_of(house.sessions.journal, session.row)
    assert shadow is not None
    await house.sessions.erase(shadow)
    await house.say(session, "Two")
    assert [one.why for one in (await house.report()).stopped] == ["Its shadow is no longer kept."]


@pytest.mark.parametrize("shadow", ["eve", "engine"])
async def test_an_interrupt_is_repeated_or_the_report_says_why_not(
    start: Start[Shadowed], shadow: str
) -> None:
    house = await start(serving="eve", shadow=shadow)
    session = await house.begin("script: approve", face="eve")
    await until(lambda: asks(session))
    await session.submit([cmd.Interrupt()], by=LOCAL, face="eve")
    await settled(session)
    progress = await house.followed(session.id)
    if shadow == "eve":
        assert progress.failed is None
        assert len(house.bodies("shadow", "cancel")) == len(house.bodies("serving", "cancel"))
    else:
        assert progress.failed is not None
        assert "interrupt cannot be given" in progress.failed


def entries(*events: ev.Event) -> list[ev.Entry]:
    return [ev.Entry(n, n, "dgs_1", event) for n, event in enumerate(events, 1)]


def accepted(name: str, cue: int) -> ev.InputAccepted:
    return ev.InputAccepted(
        thread_id=ev.MAIN, command_id=name, kind="message", details={"cue": cue}, by="b"
    )


def decided(name: str, outcome: str) -> ev.InputSettled:
    value = {"thread_id": ev.MAIN, "command_id": name, "outcome": outcome}
    return ev.InputSettled.model_validate(value)


def test_how_far_a_shadow_came_is_in_its_log() -> None:
    assert progress_of([]) == Progress()
    first = accepted("a", 0), decided("a", "taken")
    assert progress_of(entries(*first)).cue == 1
    # What was refused is given again, what is on its way is not.
    assert progress_of(entries(*first, accepted("b", 1), decided("b", "refused"))).cue == 1
    assert progress_of(entries(*first, accepted("b", 1))).cue == 2
    assert progress_of(entries(accepted("b", 0), decided("b", "unknown"))).lost
    again = accepted("b", 1), decided("b", "refused"), accepted("c", 1), decided("c", "taken")
    assert progress_of(entries(*first, *again)).cue == 2


def test_notes_stay_and_a_failure_goes_when_it_goes_on() -> None:
    failed = Progress().after(3, 20, "It is down.", ["one"])
    assert (failed.cue, failed.seq, failed.failed, failed.notes) == (0, 0, "It is down.", ("one",))
    assert progress_of(entries(failed.event())) == failed
    now = failed.after(3, 20, None, ["one", "two"])
    assert (now.cue, now.seq, now.failed, now.notes) == (3, 20, None, ("one", "two"))
    assert progress_of(entries(failed.event(), now.event())) == dataclasses.replace(now, end=1)


async def test_a_shadow_that_is_left_goes_at_the_next_start(start: Start[Shadowed]) -> None:
    house = await start("sqlite")
    session = await house.begin("One")
    await settled(session)
    await house.followed(session.id)
    await house.sessions.journal.delete(session.row.key, at=0)
    assert len(await house.shadows()) == 1
    await house.restart()
    await house.no_shadows()
