"""The report of shadows finds what differs, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from adapters.model import events as ev
from proxy.migration.comparison import CalledTool, compare_pair
from proxy.migration.reporting import lines_of
from tests.migration.shadows import Shadowed
from tests.support.dragoman import Start, starting
from tests.support.keys import credential, key_of
from tests.support.waiting import settled
from tests.test_cli import dragoman


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start[Shadowed]]:
    async with starting(Shadowed, tmp_path) as start:
        yield start


# The ten that are planted: what a session says, and what its shadow plays instead.
PLANTED: Mapping[str, str] = {
    "script: text (1)": "script: reason",
    "script: text (2)": "script: memory",
    "script: tool (3)": "script: text",
    "script: tools (4)": "script: tool",
    "script: text (5)": "script: tool",
    "script: tool (6)": "script: fail",
    "script: text (7)": "script: failmid",
    "script: text (8)": "script: ask",
    "script: tool (9)": "script: approve",
    "Hello (10)": "script: structured",
}
SESSIONS = 1_000
AT_ONCE = 50
SCRIPTS = ("Hello", "script: text", "script: tool", "script: tools", "script: fail")


@pytest.mark.pages
async def test_of_a_thousand_sessions_the_ten_that_differ_are_found(
    start: Start[Shadowed],
) -> None:
    house = await start()
    for message, instead in PLANTED.items():
        house.replace(message, instead)
    usual = [f"{SCRIPTS[n % len(SCRIPTS)]} ({n + 100})" for n in range(SESSIONS - len(PLANTED))]
    # They are spread among the others.
    messages = [*usual[:495], *PLANTED, *usual[495:]]
    slots = asyncio.Semaphore(AT_ONCE)
    planted: set[str] = set()
    ids: list[str] = []

    async def play(message: str) -> None:
        async with slots:
            session = await house.begin(message)
            await settled(session)
            ids.append(session.id)
            if message in PLANTED:
                planted.add(session.id)

    async with asyncio.TaskGroup() as group:
        for message in messages:
            group.create_task(play(message))
    for session_id in ids:
        await house.followed(session_id)
    found = await house.report()
    listed = {one.session for one in found.differences} | {one.session for one in found.stopped}
    assert listed == planted
    assert len(planted) == 10
    assert (found.sessions, found.same) == (SESSIONS, SESSIONS - 10)
    assert (found.differing, found.not_driven, found.waiting) == (8, 2, 0)
    assert found.tools.called > 0


async def test_each_difference_is_said_with_its_place_and_its_tools(
    start: Start[Shadowed],
) -> None:
    house = await start()
    house.replace("script: tool", "script: tools")
    session = await house.begin("script: tool")
    await settled(session)
    await house.followed(session.id)
    found = await house.report()
    assert (found.compared, found.differing, found.same) == (1, 1, 0)
    (one,) = found.differences
    assert one.session == session.id
    assert any(line.startswith("--- serving: turn 1") for line in one.lines)
    assert (found.tools.called, found.tools.input, found.tools.additional) == (1, 1, 1)
    assert [call.how for call in found.tools.examples] == ["input", "additional"]


# Over HTTP, and at the command line.


def url(house: Shadowed) -> str:
    """The address of the proxy."""
    return house.face("engine", "main").partition("/as/")[0]


async def test_the_command_says_the_same_and_what_differs(start: Start[Shadowed]) -> None:
    house = await start()
    house.replace("Bye", "script: tool")
    session = await house.begin("Hello")
    await settled(session)
    await house.followed(session.id)
    told = await dragoman("migrate", "report", url=url(house))
    assert told.exit_code == 0, told.output
    assert "route main, shadow shadow: 1 sessions, 1 compared, 1 the same" in told.output
    session = await house.begin("Bye")
    await settled(session)
    await house.followed(session.id)
    told = await dragoman("migrate", "report", "--route", "main", url=url(house))
    assert told.exit_code == 1
    assert f"{session.id} differs from" in told.output
    assert "turn 1: tool, additional" in told.output
    as_json = await dragoman("migrate", "report", "--json", url=url(house))
    assert as_json.exit_code == 1
    assert '"differing":1' in as_json.output
    told = await dragoman("migrate", "report", "--route", "serving", url=url(house))
    assert told.exit_code == 2
    assert "no route `serving` with a shadow" in told.output


async def test_the_report_is_for_administrators(start: Start[Shadowed]) -> None:
    house = await start()
    await house.reconfigure(keys=[key_of("all", admin=True), key_of("one")])
    statuses = []
    for name in (None, "k-one", "k-all"):
        address = f"{url(house)}/api/v1/migration/report"
        async with house.http.get(address, headers=credential(name)) as response:
            statuses.append(response.status)
    assert statuses == [401, 403, 200]


async def test_a_report_without_sessions_has_no_times(start: Start[Shadowed]) -> None:
    house = await start()
    found = await house.report()
    assert (found.sessions, found.speed.median_ratio) == (0, None)
    (first, *_) = lines_of(type("R", (), {"routes": [found]})())
    assert first.startswith("route main, shadow shadow: 0 sessions")


# How two logs are compared.


def log(*events: tuple[int, ev.Event]) -> list[ev.Entry]:
    first = (0, ev.SessionStarted(thread_id=ev.MAIN))
    rows = [first, *events]
    return [ev.Entry(n, at, "dgs_1", event) for n, (at, event) in enumerate(rows, 1)]


BEGIN = ev.TurnStarted(thread_id=ev.MAIN, turn_id="t", cause="message")
END = ev.TurnEnded(thread_id=ev.MAIN, turn_id="t", outcome="completed")
PAUSED = ev.TurnPaused(thread_id=ev.MAIN, turn_id="t", on="input", request_ids=())
RESUMED = ev.TurnResumed(thread_id=ev.MAIN, turn_id="t")


def called(name: str, value: object, call_id: str) -> tuple[int, ev.Event]:
    return 1, ev.ToolCalled(thread_id=ev.MAIN, turn_id="t", call_id=call_id, name=name, input=value)


def test_a_turn_takes_no_longer_because_a_person_does() -> None:
    mine = log((100, BEGIN), (150, PAUSED), (160, PAUSED), (950, RESUMED), (1000, END))
    found = compare_pair(mine, log((0, BEGIN), (70, END)), one_dialect=True)
    assert (found.serving_ms, found.shadow_ms) == ((100,), (70,))


@pytest.mark.parametrize(
    ("mine", "theirs", "how"),
    [
        (
            [("a", 1), ("b", 2)],
            [("b", 2), ("a", 1)],
            [],
        ),
        ([("a", {"x": 1, "y": 2})], [("a", {"y": 2, "x": 1})], []),
        ([("a", 1)], [("a", 2)], ["input"]),
        ([("a", 1)], [("b", 1)], ["name"]),
        ([("a", 1), ("a", 1)], [("a", 1)], ["missing"]),
        ([("a", 1)], [("a", 1), ("c", 3)], ["additional"]),
        ([("a", 1), ("b", 2)], [("a", 9), ("c", 2), ("d", 4)], ["input", "name", "additional"]),
    ],
)
def test_which_tools_are_called_otherwise(
    mine: list[tuple[str, object]], theirs: list[tuple[str, object]], how: list[str]
) -> None:
    one, other = (
        log((0, BEGIN), *(called(n, v, str(i)) for i, (n, v) in enumerate(calls)), (9, END))
        for calls in (mine, theirs)
    )
    found = compare_pair(one, other, one_dialect=True)
    assert found.calls == len(mine)
    assert [call.how for call in found.called] == how
    assert all(call.turn == 1 for call in found.called)


def test_a_called_tool_shows_its_name_and_input() -> None:
    one, other = log((0, BEGIN), called("a", 1, "c"), (9, END)), log((0, BEGIN), (9, END))
    (found,) = compare_pair(one, other, one_dialect=True).called
    assert found == CalledTool(1, "missing", "a 1", None)
