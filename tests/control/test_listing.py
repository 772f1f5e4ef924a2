"""The list of sessions: what is stored of each, and what goes on in those in memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters.model import events as ev
from adapters.model.events import MAIN, Entry
from adapters.model.state import LogState
from proxy.control import listing
from proxy.control.control import InteractionsOut, SessionDetailOut
from proxy.control.listing import ListedSessionOut, SessionsOut, waiting_of
from proxy.scripted.faults import Faults, Garbage, Stall
from proxy.session import StartTimes, snapshots
from proxy.session.outbox import Fate, Outbox
from proxy.session.snapshots import Snapshots
from tests.session.desk import QUEUES
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied
from tests.support.waiting import until

API = "/api/v1"


@pytest.fixture
async def dragoman() -> AsyncIterator[Proxied]:
    async with proxied() as running:
        yield running


async def listed(dragoman: Proxied, query: str = "", **options: Any) -> list[ListedSessionOut]:
    status, body = await dragoman.request("GET", f"{API}/sessions{query}", **options)
    assert status == 200, body
    return SessionsOut.model_validate(body).sessions


async def at_of(dragoman: Proxied, session_id: str, type_: str) -> int:
    """Return when the newest event of a type came."""
    _, body = await dragoman.request("GET", f"{API}/sessions/{session_id}/events")
    entries = map(Entry.decode, filter(None, body.splitlines()))
    return [entry.at for entry in entries if type_ == entry.event.TYPE][-1]


async def test_a_session_that_asks_is_listed_with_the_person_it_waits_for(
    dragoman: Proxied,
) -> None:
    session_id = await dragoman.say("script: approve")
    request = await dragoman.asked(session_id)
    asked_at = await at_of(dragoman, session_id, "interaction.requested")
    (one,) = await listed(dragoman)
    assert (one.id, one.backend, one.state) == (session_id, "engine", "paused")
    assert one.waiting is not None
    assert one.waiting.model_dump() == {"count": 1, "since": asked_at, "kind": "person"}
    _, body = await dragoman.request("GET", f"{API}/interactions")
    (open_,) = InteractionsOut.model_validate(body).interactions
    assert (open_.request_id, open_.since) == (request.request_id, asked_at)
    assert (open_.route, open_.backend) == ("engine", "engine")
    _, body = await dragoman.request("GET", f"{API}/sessions/{session_id}")
    assert SessionDetailOut.model_validate(body).open_interactions == [open_]


async def test_a_session_at_rest_waits_for_nothing(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    await until(lambda: all(session.idle for session in dragoman.sessions.cache))
    (one,) = await listed(dragoman)
    assert (one.waiting, one.dialects, one.losses) == (None, {}, 0)
    assert one.repairs is not None


async def test_listing_loads_no_session(dragoman: Proxied) -> None:
    session_id = await dragoman.say("script: approve")
    await dragoman.asked(session_id)
    dragoman.sessions.cache.forget(session_id)
    (one,) = await listed(dragoman)
    assert (one.state, one.backend, one.waiting) == ("paused", "engine", None)
    assert (one.dialects, one.repairs, one.losses) == ({}, None, None)
    assert session_id not in dragoman.sessions.cache


async def test_the_dialects_of_those_who_read_are_listed_with_their_streams(
    dragoman: Proxied,
) -> None:
    session_id = await dragoman.say("script: approve")
    await dragoman.asked(session_id)

    async def counted(count: int) -> dict[str, int]:
        live = await dragoman.session(session_id)
        await until(lambda: live.feeds.readers == count)
        return (await listed(dragoman))[0].dialects

    async with contextlib.AsyncExitStack() as readers:
        for number in (1, 2):
            url = f"{dragoman.url}/as/eve/to/engine/eve/v1/session/{session_id}/stream"
            await readers.enter_async_context(dragoman.http.get(url))
            assert await counted(number) == {"eve": number}
        url = f"{dragoman.url}/as/herm/to/engine/v1/sessions/{session_id}/events/stream"
        response = await readers.enter_async_context(dragoman.http.get(url))
        assert response.status == 200, await response.text()
        assert await counted(3) == {"eve": 2, "herm": 1}
    assert await counted(0) == {}


async def test_a_turn_that_runs_waits_for_its_backend_since_it_began() -> None:
    faults = Faults({("execute", 1): Stall(1)})
    async with proxied(engine={"faults": faults}) as dragoman:
        session_id = await dragoman.say("script: text")
        live = await dragoman.session(session_id)
        await until(lambda: live.state.busy and live.last_seq == live.state.seq)
        (one,) = await listed(dragoman)
        began = await at_of(dragoman, session_id, "turn.started")
    assert one.waiting is not None
    assert one.waiting.model_dump() == {"count": 1, "since": began, "kind": "backend"}


async def test_a_message_without_a_turn_waits_for_its_backend(dragoman: Proxied) -> None:
    session_id = await dragoman.say("hello")
    await dragoman.until_idle(session_id)
    live = await dragoman.session(session_id)
    for name, at in (("b", 9), ("c", 7)):
        live._outbox.accept(name, QUEUES, b"{}", at).move(Fate.QUEUED)
    (one,) = await listed(dragoman)
    assert one.waiting is not None
    assert one.waiting.model_dump() == {"count": 2, "since": 7, "kind": "backend"}


async def test_what_could_not_be_read_is_a_loss() -> None:
    faults = Faults({("execute", 1): Garbage(1)})
    async with proxied(engine={"faults": faults}) as dragoman:
        session_id = await dragoman.say("script: text")
        await dragoman.until_idle(session_id)
        (one,) = await listed(dragoman)
    assert one.losses == 1


async def test_only_sessions_that_changed_are_listed(dragoman: Proxied) -> None:
    first, second = [await dragoman.say(f"session {number}") for number in range(2)]
    for session_id in (first, second):
        await dragoman.until_idle(session_id)
    before = max(one.updated_at for one in await listed(dragoman))
    assert await listed(dragoman, f"?changed={before + 1}") == []
    await until(lambda: dragoman.sessions.clock.now() > before)
    await dragoman.say("more", first)
    await dragoman.until_idle(first, turns=2)
    assert [one.id for one in await listed(dragoman, f"?changed={before + 1}")] == [first]
    assert [one.id for one in await listed(dragoman, "?changed=0")] == [second, first]
    assert await listed(dragoman, f"?changed={before + 1}&state=ended") == []
    status, body = await dragoman.request("GET", f"{API}/sessions?changed=yesterday")
    assert (status, body["error"]["code"]) == (400, "invalid_request")


async def test_a_key_is_told_of_its_own_sessions_only() -> None:
    async with proxied(keys=(key_of("ann"), key_of("bob"))) as dragoman:
        session_id = await dragoman.say("script: approve", key="k-ann")
        await dragoman.asked(session_id)
        assert len(await listed(dragoman, "?changed=0", key="k-ann")) == 1
        assert await listed(dragoman, "?changed=0", key="k-bob") == []


async def test_a_page_asks_the_journal_twice_however_long_it_is(
    dragoman: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "STEP", 2)
    made = [await dragoman.say(f"session {number}") for number in range(5)]
    for session_id in made:
        await dragoman.until_idle(session_id)
    journal: Any = dragoman.sessions.journal
    asked: list[Any] = []
    ask = journal._ask

    async def counting(question: Any) -> Any:
        asked.append(question)
        return await ask(question)

    monkeypatch.setattr(journal, "_ask", counting)
    found = await listed(dragoman)
    assert [one.id for one in found] == made[::-1]
    assert len(asked) == 2


# What a session waits for, by its state alone.


def told(*events: tuple[int, ev.Event]) -> tuple[LogState, StartTimes]:
    """Return the state and the times after events, each with its time."""
    state, times = LogState(), StartTimes()
    for at, event in events:
        state.apply(event)
        times.hear(event, at)
    return state, times


def turn(at: int, thread: str = MAIN) -> tuple[int, ev.Event]:
    return at, ev.TurnStarted(thread_id=thread, turn_id=f"t-{thread}", cause="message")


def of_turn(made: type[ev.Event], thread: str = MAIN, **members: Any) -> ev.Event:
    return made(thread_id=thread, turn_id=f"t-{thread}", **members)


def asks(name: str) -> ev.Event:
    return of_turn(ev.InteractionRequested, request_id=name, kind="question", prompt="Well?")


def answers(name: str, state: str = "claimed") -> ev.Event:
    return of_turn(ev.InteractionAnswered, request_id=name, command_id="c", by="ann", state=state)


PAUSED_ON_TASKS = of_turn(ev.TurnPaused, on="tasks")

CASES: dict[str, tuple[list[tuple[int, ev.Event]], Any]] = {
    "nothing is open": ([], None),
    "a turn is over": (
        [turn(1), (2, of_turn(ev.TurnEnded, outcome="completed"))],
        None,
    ),
    "a turn runs": ([turn(1)], (1, 1, "backend")),
    "two turns run": ([turn(1), turn(2, "child")], (2, 1, "backend")),
    "a turn waits for tasks": ([turn(1), (5, PAUSED_ON_TASKS)], (1, 5, "task")),
    "its task is a turn": (
        [turn(1), turn(2, "child"), (5, PAUSED_ON_TASKS)],
        (1, 5, "task"),
    ),
    "a child waits for tasks": (
        [turn(1), turn(2, "child"), (5, of_turn(ev.TurnPaused, "child", on="tasks"))],
        (1, 1, "backend"),
    ),
    "a turn went on": (
        [turn(1), (5, PAUSED_ON_TASKS), (7, of_turn(ev.TurnResumed))],
        (1, 7, "backend"),
    ),
    "a backend tries again": (
        [turn(1), (5, of_turn(ev.TurnPaused, on="retry"))],
        (1, 5, "backend"),
    ),
    "two are asked": ([turn(1), (3, asks("a")), (4, asks("b"))], (2, 3, "person")),
    "one is answered": (
        [turn(1), (3, asks("a")), (4, asks("b")), (9, answers("a"))],
        (1, 4, "person"),
    ),
    "all are answered": ([turn(1), (3, asks("a")), (9, answers("a"))], (1, 9, "backend")),
    "an answer was refused": (
        [turn(1), (3, asks("a")), (9, answers("a")), (11, answers("a", "released"))],
        (1, 3, "person"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_session_waits_for(case: str) -> None:
    events, wanted = CASES[case]
    found = waiting_of(*told(*events))
    assert (found and (found.count, found.since, found.kind)) == wanted


def test_the_times_of_what_is_open_are_in_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_ENTRIES", 1)
    codec: Any = None
    kept, state = Snapshots(1, Outbox(1, codec)), LogState()
    for seq, (at, event) in enumerate((turn(10), (30, asks("a"))), 1):
        state.apply_entry(Entry(seq, at, "s", event))
        kept.hear(event, at)
    taken = kept.take(state)
    assert taken is not None
    again = Snapshots(1, Outbox(1, codec))
    found = waiting_of(again.restore(taken.data), again.times)
    assert found is not None
    assert (found.since, again.times.turns) == (30, {MAIN: 10})
    # One of an earlier release says nothing of them.
    old = Snapshots(1, Outbox(1, codec))
    unknown = waiting_of(old.restore(taken.data.replace(b'"times"', b'"other"')), old.times)
    assert unknown is not None
    assert (unknown.count, unknown.since, unknown.kind) == (1, None, "person")
