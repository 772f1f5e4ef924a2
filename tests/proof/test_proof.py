"""The measure itself: what is lost, doubled or reordered is seen, in each dialect's own frames."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.journal.base import Write
from proxy.journal.sqlite import SqliteJournal
from proxy.scripted.faults import (
    Duplicate,
    Faults,
    Reorder,
    SplitCharacters,
    Status,
    disturbed,
    pieces,
)
from proxy.scripted.scripts import SCRIPT_NAMES
from tests.journal.conftest import create, store
from tests.proof import results
from tests.proof.__main__ import next_slice, parse, without_power
from tests.proof.attack.hostile import WAYS, plan_of
from tests.proof.attack.rude import RUDE
from tests.proof.cluster import DECK
from tests.proof.commands import Command, Log, Record, Session, commands_of, judged
from tests.proof.conversation import SCRIPTS, UNPLAYED, _bare_failures
from tests.proof.facts import FACTS, compare, previews_shown
from tests.proof.lines import Line
from tests.proof.process import Dragoman, NotStarted
from tests.proof.results import Slice
from tests.proof.returning import EngineReturning
from tests.proof.run import FORMS, GENERATIONS, PAIRS, Plan, Ran, _Run, forms_of, run
from tests.support.engine_client import Disconnected, EngineEvent
from tests.support.ports import free_port

FAILED = ("end", "failed")


def said(*words: str) -> list[Any]:
    return [("text", word) for word in words]


def herm(type_: str, **members: Any) -> dict[str, Any]:
    return {"payload": {"type": type_, **members}}


HERM = [
    herm("agent.message", delta=True, content=[{"type": "text", "text": "Six ho"}]),
    herm("agent.message", delta=True, content=[{"type": "text", "text": "urs."}]),
    herm("agent.message", delta=False, content=[{"type": "text", "text": "Six hours."}]),
    herm("agent.tool_use", id="c", tool="bash", input={"b": 1, "a": 2}, requires_action=True),
    herm("agent.tool_result", tool_use_id="c", is_error=False, content=[]),
    herm("session.status_idle", stop_reason={"type": "end_turn"}),
]
EVE = [
    {"type": "message.completed", "data": {"message": "Six hours."}},
    {
        "type": "actions.requested",
        "data": {"actions": [{"callId": "c", "toolName": "bash", "input": {"a": 2, "b": 1}}]},
    },
    {
        "type": "input.requested",
        "data": {"requests": [{"requestId": "c", "kind": "tool-approval", "prompt": "?"}]},
    },
    {"type": "session.waiting", "data": {}},
    {"type": "input.resolved", "data": {"resolutions": [{"requestId": "c"}]}},
    {"type": "action.result", "data": {"status": "completed", "result": {"output": ""}}},
    {"type": "session.waiting", "data": {}},
]
ENGINE = [
    ("text_delta", {"text": "Six "}),
    ("text_delta", {"text": "hours."}),
    ("tool_call", {"tool_call_id": "c", "tool": "bash", "input": {"a": 2, "b": 1}}),
    ("hitl_request", {"request_id": "r", "kind": "permission", "question": "?"}),
    ("tool_result", {"tool_call_id": "c", "output": ""}),
    ("thread_lifecycle", {"phase": "completed"}),
]


def agents(type_: str, **members: Any) -> dict[str, Any]:
    return {"type": type_, **members}


def started(id_: str) -> dict[str, Any]:
    return agents("event_start", event={"type": "agent.message", "id": id_})


def piece(id_: str, text: str) -> dict[str, Any]:
    return agents("event_delta", event_id=id_, delta={"content": {"type": "text", "text": text}})


def idle(reason: str) -> dict[str, Any]:
    return agents("session.status_idle", stop_reason={"type": reason})


MANAGED_AGENTS = [
    started("m"),
    piece("m", "Six ho"),
    agents("agent.message", id="m", content=[{"type": "text", "text": "Six hours."}]),
    agents("agent.tool_use", name="bash", input={"b": 1, "a": 2}, evaluated_permission="ask"),
    idle("requires_action"),
    agents("agent.tool_result", is_error=False, content=[]),
    agents("session.thread_status_idle", stop_reason={"type": "end_turn"}),
    idle("end_turn"),
]


@pytest.mark.parametrize(
    ("dialect", "frames"),
    [("herm", HERM), ("eve", EVE), ("engine", ENGINE), ("managed-agents", MANAGED_AGENTS)],
)
def test_the_same_story_is_the_same_facts_in_every_dialect(dialect: str, frames: Any) -> None:
    assert FACTS[dialect](frames) == [
        *said("Six", "hours."),
        ("call", "bash", '{"a": 2, "b": 1}'),
        ("ask", "approval"),
        ("result", ""),
        ("end", "over"),
    ]


def test_a_tool_of_a_server_is_the_same_tool_wherever_a_dialect_names_the_server() -> None:
    payload = {"tool_call_id": "c", "tool": "gmail.read_thread", "input": {}}
    use = agents("agent.mcp_tool_use", name="read_thread", input={}, evaluated_permission="allow")
    assert FACTS["engine"]([("tool_call", payload)]) == [("call", "read_thread", "{}")]
    assert FACTS["managed-agents"]([use]) == [("call", "read_thread", "{}")]


def test_a_turn_that_fails_twice_in_words_fails_once() -> None:
    turn = [("error", {}), ("thread_lifecycle", {"phase": "errored"})]
    start = ("thread_lifecycle", {"phase": "started"})
    facts = FACTS["engine"]([start, *turn, start, *reversed(turn)])
    assert facts == [("end", "failed"), ("end", "failed")]


def test_a_message_that_was_begun_and_never_written_may_be_shown_up_to_anywhere() -> None:
    failing = [started("m"), piece("m", "one two three "), idle("retries_exhausted")]
    sent = FACTS["managed-agents"]([*failing, *failing])
    words = [("preview", word) for word in ("one", "two", "three")]
    assert sent == [*words, FAILED, *words, FAILED]
    for first, second in ((0, 0), (0, 2), (3, 1), (3, 3)):
        shown = [
            fact
            for count in (first, second)
            for fact in (*said("one", "two", "three")[:count], FAILED)
        ]
        assert previews_shown(sent, shown) == shown
    # What was written must be there all the same, and nothing may be twice.
    whole = [*said("one", "two"), ("end", "over")]
    assert (
        compare(previews_shown([*sent, *whole], [FAILED, FAILED]), [FAILED, FAILED]).lost == whole
    )
    twice = [*said("one", "one"), FAILED, FAILED]
    assert compare(previews_shown(sent, twice), twice).doubled == said("one")


def test_an_empty_eve_turn_is_a_boundary_and_no_end() -> None:
    def turn(*within: str) -> list[Any]:
        types = ("turn.started", *within, "turn.completed", "session.waiting")
        return [{"type": type_, "data": {}} for type_ in types]

    asked, empty = EVE[2:4], turn()
    # The request is open all the while, and after the first message nothing says so.
    spoken = turn("message.received")
    assert FACTS["eve"]([*asked, *empty]) == [("ask", "approval")]
    assert FACTS["eve"]([*asked, *spoken, *empty, *spoken]) == [("ask", "approval")]
    # Where nothing is asked, a message that came to nothing was a turn.
    assert FACTS["eve"](spoken) == [("end", "over")]


@pytest.mark.parametrize(
    ("received", "lost", "doubled", "reordered"),
    [
        (said("a", "b", "c"), [], [], 0),
        (said("a", "c"), said("b"), [], 0),
        (said("a", "b", "b", "c"), [], said("b"), 0),
        (said("a", "c", "b"), [], [], 1),
        (said("c", "b", "a"), [], [], 2),
        # What is tolerated, doubled or lost hides no disorder of the rest.
        ([FAILED, *said("a", "c", "b")], [], [FAILED], 1),
        (said("b", "a", "b", "a", "c"), [], said("b", "a"), 0),
        (said("c", "b"), said("a"), [], 1),
        ([*said("c", "a"), FAILED], said("b"), [FAILED], 1),
    ],
)
def test_what_differs_is_named(
    received: Any, lost: list[Any], doubled: list[Any], reordered: int
) -> None:
    found = compare(said("a", "b", "c"), received)
    assert (found.lost, found.doubled, found.reordered) == (lost, doubled, reordered)
    assert found.whole == (not lost and not reordered)


def test_what_an_eve_asks_again_is_asked_once_and_another_request_is_another() -> None:
    def asked(*names: str) -> list[Any]:
        ask = {"kind": "tool-approval", "prompt": "?"}
        return [
            {"type": "input.requested", "data": {"requests": [{**ask, "requestId": name}]}}
            for name in names
        ]

    assert len(FACTS["eve"](asked("a", "a~2", "a~3"))) == 1
    assert len(FACTS["eve"](asked("a", "b~2"))) == 2


def test_a_turn_that_never_began_does_not_stand_for_the_end_of_another() -> None:
    # An Engine's client: one turn that never began, and the text of one whose end has not come yet.
    text, end = ("text", "Well."), ("end", "failed")
    assert not compare([text, end], [end, text]).whole
    assert compare([text, end], [end, text, end]).whole


def made(kind: str, pairs: dict[str, dict[str, int]] | None = None, **counts: int) -> Slice:
    return Slice(kind, 1, "c0ffee", "2026-01-01", 480.0, counts, pairs or {})


BROKEN_OFTEN = (made("kills", kills=2001), made("disconnects", disconnects=10_000))
SOAKED = [made("soak")] * 8
NO_POWER = made("power", None, **{"power losses": 2000})


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ([], ("kills", 2000, 450.0)),
        ([made("kills", kills=300)], ("kills", 1700, 450.0)),
        ([made("kills", kills=2000)], ("disconnects", 2_500, 450.0)),
        (
            [made("kills", kills=2000), made("disconnects", disconnects=9_000)],
            ("disconnects", 1_000, 450.0),
        ),
        ([*BROKEN_OFTEN], ("cluster", 500, 450.0)),
        ([*BROKEN_OFTEN, made("cluster", faults=480)], ("cluster", 20, 450.0)),
        ([*BROKEN_OFTEN, made("cluster", faults=500)], ("soak", 0, 3600.0)),
        ([*BROKEN_OFTEN, made("cluster", faults=500), *SOAKED], ("power", 2000, 450.0)),
        (
            [*BROKEN_OFTEN, made("cluster", faults=500), *SOAKED, NO_POWER],
            None,
        ),
    ],
)
def test_the_proof_goes_on_where_the_results_end(done: list[Slice], expected: Any) -> None:
    options: argparse.Namespace = parse([])
    talks = len(plan_of(1)[0])
    attacked = [made("attack", requests=1_000_000), made("hostile", conversations=talks)]
    assert next_slice(options, [*attacked, *done]) == expected


def test_attacks_come_first_and_each_way_to_misbehave_is_seen_in_any_fraction() -> None:
    plan, once = plan_of(1)
    assert {(way, dialect) for way, dialect, _ in plan[:once]} == {
        (way, dialect) for way in (*WAYS, *RUDE) for dialect in ("herm", "eve", "engine")
    }
    assert len(set(plan)) == len(plan) == (len(WAYS) * len(SCRIPT_NAMES) + len(RUDE)) * 3
    options = parse(["--fraction", "0.02"])
    done = [made("attack", requests=19_000)]
    assert next_slice(options, []) == ("attack", 20_000, 450.0)
    assert next_slice(options, done) == ("attack", 1000, 450.0)
    done.append(made("attack", requests=1000))
    assert next_slice(options, done) == ("hostile", once, 450.0)
    done.append(made("hostile", conversations=once))
    assert next_slice(options, done) == ("kills", 40, 450.0)


def test_each_kind_of_fault_befalls_a_cluster_in_any_fraction() -> None:
    options = parse(["--fraction", "0.005"])
    talks = len(plan_of(1)[0])
    done = [made("attack", requests=1_000_000), made("hostile", conversations=talks)]
    done += [*BROKEN_OFTEN]
    assert next_slice(options, done) == ("cluster", len(DECK), 450.0)
    assert {*DECK} == {"kill", "pause", "crash", "cut"}
    nothing = parse(["--fraction", "0", "--soak", "0"])
    assert next_slice(nothing, []) is None


@pytest.mark.parametrize("name", results.ATTACKED)
def test_one_bad_figure_of_an_attack_fails_its_slice(name: str) -> None:
    bad = made("attack", None, requests=5, **{name: 1})
    assert results.failures([bad])
    assert not results.failures([made("attack", None, requests=5, **{name: 0})])
    worse = made("attack", None, requests=7, **{name: 2, "slowest probe, ms": 9})
    table = results.report([bad, worse, made("hostile", conversations=4)])
    assert f"| {name} | 3 | 0 |" in table
    assert "| requests | 12 | 0 |" in table
    assert "| conversations | 0 | 4 |" in table
    assert "| slowest probe, ms | 9 | 0 |" in table


def test_points_without_power_have_numbers_and_one_that_takes_something_back_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = without_power(7, 2, 60.0)
    assert (done.seed, done.counts["power losses"], done.failed) == (7, 2, False)
    assert "2 losses of power" in results.report([done])
    monkeypatch.setattr(SqliteJournal, "__init__", forgetful(SqliteJournal.__init__))
    bad = without_power(1, 20, 60.0)
    assert bad.counts["taken back"] > 0
    assert any("power, seed 1: point" in text for text in results.failures([bad]))


def forgetful(made: Callable[..., None]) -> Callable[..., None]:
    def make(self: SqliteJournal, path: Path, **options: Any) -> None:
        made(self, path, **options, synced=False)

    return make


def taken_over(*took: int, faults: int = 100, abandoned: int = 0) -> Slice:
    one = made("cluster", None, faults=faults, kill=7, **{"not taken over": abandoned})
    one.takeovers = [*took]
    one.disturbed = [13_700]
    return one


def test_takeovers_are_told_and_a_late_one_in_a_hundred_is_borne() -> None:
    fine = taken_over(*[5000] * 98, 6900, 60_000)
    table = results.report([fine])
    assert "100 faults: 7 processes killed" in table
    assert "100, after p50 5.0 s, p99 60.0 s, longest 60.0 s" in table
    assert "restarted: 1, longest 13.7 s; not taken over: 0." in table
    assert results.failures([taken_over(*[5000] * 199, 60_000)]) == []
    (complaint,) = results.failures([fine])
    assert "p99 60.0 s" in complaint
    # A short one may be played on a slow machine.
    assert results.failures([taken_over(60_000, faults=15)]) == []
    assert results.failures([taken_over()]) == []


def test_a_session_at_work_that_nobody_takes_over_fails_its_slice() -> None:
    assert results.failures([taken_over(5000, faults=15, abandoned=1)])


async def test_a_line_is_cut_at_once_and_carries_again() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server, Line(server.sockets[0].getsockname()[1], "seed", 0.0) as line:
        for times in (1, 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            line.cut()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            assert line.cuts["at once"] == times


async def test_what_ends_before_it_listens_is_told(tmp_path: Path) -> None:
    config = tmp_path / "dragoman.toml"
    config.write_text("[server]\nlisten = 1\n")
    dragoman = Dragoman(config, tmp_path / "log")
    try:
        # Executed, then forked.
        for _ in range(2):
            with pytest.raises(NotStarted):
                await dragoman.start()
            assert not dragoman.up.is_set()
        assert dragoman.executed == 1
    finally:
        await dragoman.close()


@pytest.mark.parametrize(("executed", "bad"), [(10, 0), (9, 1)])
def test_a_tenth_of_the_starts_is_executed(executed: int, bad: int) -> None:
    done = made("kills", kills=100)
    done.counts["executed processes"] = executed
    assert len(results.failures([done])) == bad


@pytest.mark.parametrize("name", [*results.BAD])
def test_one_bad_figure_of_one_pair_fails_the_slice(name: str) -> None:
    assert made("kills", {"herm > eve": {"sent": 3, name: 1}}).failed
    assert not made("kills", {"herm > eve": {"sent": 3, "unknown": 1, name: 0}}).failed


def test_results_outlive_the_process_and_become_a_table(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    results.append(path, made("kills", {"herm > eve": {"sent": 3, "lost": 1}}, kills=4))
    results.append(path, made("kills", {"herm > eve": {"sent": 5}}, kills=6))
    table = results.report(results.read(path))
    assert "10 kills" in table
    assert "| herm > eve | 0 | 8 | 0 | 0 | 1 |" in table
    page = f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n"
    written = results.documented(page, table)
    assert "old" not in written
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert results.documented(written, table) == written


LOG: list[dict[str, Any]] = [
    {
        "type": "input.accepted",
        "command_id": "1",
        "kind": "message",
        "content": [{"text": "[p1-0-0]"}],
    },
    {
        "type": "input.accepted",
        "command_id": "2",
        "kind": "interrupt",
        "details": {"note": "[p1-0-s]"},
    },
    {"type": "turn.started", "text": "[p1-9-9]"},
    {"type": "input.settled", "command_id": "1", "outcome": "taken"},
]


def row_of(event: Mapping[str, Any]) -> bytes:
    """A row of the log, as the journal has it."""
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def test_commands_are_read_from_the_log_with_what_became_of_them() -> None:
    lines = [row_of(event).rstrip() for event in LOG]
    found = list(commands_of([*lines, b""]).values())
    assert found == [
        Command("message", None, ("p1-0-0",), "taken"),
        Command("interrupt", None, ("p1-0-s",), ""),
    ]
    assert Session(1, found).name == "p1"
    # It is settled after it was forgotten.
    assert commands_of(lines[3:]) == {}


async def test_a_journal_is_read_on_from_where_it_was_read_before(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    await journal.open()
    first, second = [await create(journal, name) for name in ("s1", "s2")]
    for row in (first, second):
        await store(journal, Write(row.key, 2, 1, row_of(LOG[0])))
    log = Log(tmp_path / "journal.db")
    found = await log.read()
    assert [(one.key, one.name, [c.outcome for c in one.commands]) for one in found] == [
        (first.key, "p1", [""]),
        (second.key, "p1", [""]),
    ]
    log.forget(found[:1])
    await store(journal, Write(second.key, 3, 1, row_of(LOG[3])))
    await journal.aclose()
    (left,) = await log.read()
    assert (left.key, [one.outcome for one in left.commands]) == (second.key, ["taken"])


@pytest.mark.parametrize(
    ("backend", "outcome", "done", "figures"),
    [
        ("herm", "taken", 1, {}),
        ("herm", "taken", 0, {"commands lost": 1}),
        ("herm", "refused", 0, {"refused later": 1}),
        ("herm", "refused", 1, {"refused later": 1, "refused, done": 1}),
        ("herm", "withdrawn", 0, {}),
        ("herm", "withdrawn", 1, {"refused, done": 1}),
        ("herm", "unknown", 0, {"unknown": 1, "unknown, evident": 1}),
        ("herm", "unknown", 1, {"unknown": 1, "unknown, done": 1, "unknown, evident": 1}),
        ("eve", "unknown", 0, {"unknown": 1}),
        ("eve", "unknown", 1, {"unknown": 1, "unknown, done": 1, "unknown, evident": 1}),
        ("engine", "", 0, {"open": 1, "commands lost": 1}),
        ("engine", "", 1, {"open": 1}),
        ("managed-agents", "taken", 0, {"commands lost": 1}),
        ("managed-agents", "unknown", 0, {"unknown": 1, "unknown, evident": 1}),
    ],
)
def test_the_log_is_held_against_what_the_backend_took(
    backend: str, outcome: str, done: int, figures: dict[str, int]
) -> None:
    record = Record(("eve", backend), accepted={"p1-0-0"})
    sessions = [Session(1, [Command("message", None, ("p1-0-0",), outcome)])]
    verdict = judged("p1", record, sessions, Counter({"p1-0-0": done}), 0)
    assert +verdict.counts == figures
    assert len(verdict.wrong) == sum(figures.get(name, 0) for name in results.BAD)
    # What no face has answered may stay open.
    record.accepted = ()
    unheard = judged("p1", record, sessions, Counter({"p1-0-0": done}), 0)
    assert outcome or not unheard.counts["commands lost"]
    # Nobody heard the name of the session that it went into.
    record.orphans = {"p1-0-0"}
    orphaned = judged("p1", record, sessions, Counter({"p1-0-0": done}), 0)
    assert backend in ("herm", "managed-agents") or not orphaned.counts["unknown, evident"]


def test_an_answer_to_an_engine_is_never_unknown() -> None:
    sessions = [Session(1, [Command("answer", None, (), "unknown")])]
    for backend, figure in (("engine", 1), ("herm", 1), ("managed-agents", 1), ("eve", 0)):
        verdict = judged("p1", Record(("eve", backend)), sessions, Counter(), 0)
        assert verdict.counts["unknown, evident"] == figure


@pytest.mark.parametrize(
    ("kind", "outcome", "most"),
    [("message", "unknown", 1), ("message", "taken", 0), ("interrupt", "unknown", 0)],
)
def test_a_turn_that_never_began_needs_a_message_that_was_not_taken(
    kind: str, outcome: str, most: int
) -> None:
    sessions = [Session(1, [Command(kind, None, (), outcome)])]
    for more in (0, 1):
        record = Record(("eve", "eve"), bare=most + more, stops=1)
        assert judged("p1", record, sessions, Counter(), 0).counts["doubled"] == more


@pytest.mark.parametrize("done", [0, 1])
def test_what_was_accepted_and_is_not_in_the_log_must_be_done(done: int) -> None:
    record = Record(("eve", "herm"), accepted={"p1-0-0"})
    verdict = judged("p1", record, [], Counter({"p1-0-0": done}), 0)
    assert verdict.counts["commands lost"] == 1 - done


@pytest.mark.parametrize(
    ("backend", "sent", "done", "figure"),
    [
        ("herm", 1, 1, None),
        ("herm", 1, 2, "twice"),
        ("herm", 1, 0, "commands lost"),
        ("herm", 0, 1, "twice"),
        ("managed-agents", 1, 2, "twice"),
        ("managed-agents", 1, 0, "commands lost"),
        ("eve", 1, 0, None),
        ("engine", 1, 0, "violations"),
    ],
)
def test_interrupts_are_counted(backend: str, sent: int, done: int, figure: str | None) -> None:
    sessions = [Session(1, [Command("interrupt", None, (), "taken")])]
    verdict = judged("p1", Record(("eve", backend), stops=sent), sessions, Counter(), done)
    assert [*+verdict.counts] == ([figure] if figure else [])


def test_a_stop_may_be_refused_or_part_of_a_message() -> None:
    refused = Command("interrupt", None, (), "refused")
    withdraws = Command("message", "withdraw", (), "taken")
    for command, interrupts in ((refused, 0), (withdraws, 1)):
        record = Record(("eve", "herm"), stops=1)
        verdict = judged("p1", record, [Session(1, [command])], Counter(), interrupts)
        assert not verdict.wrong


def test_a_note_is_looked_for_where_it_is_taken() -> None:
    for backend, lost in (("herm", 1), ("eve", 0)):
        sessions = [Session(1, [Command("interrupt", None, ("p1-0-s",), "taken")])]
        verdict = judged("p1", Record(("herm", backend), stops=1), sessions, Counter(), 1)
        assert verdict.counts["commands lost"] == lost


async def test_what_is_done_twice_is_the_fault_of_its_own_pair(tmp_path: Path) -> None:
    plan = Plan("calm", seed=6, goal=0, seconds=1.0, keep=tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        one = _Run(plan, tmp_path, lambda _: None, None, stack)
        ran = one._ran
        for figure, text in (("answered twice", "answered 2 times"), ("executed twice", "again")):
            one._blame(ran, figure, "p6evhe-0-1-0-0", text)
    assert ran.counts == {"answered twice": 1, "executed twice": 1}
    assert {name for name, verdict in ran.pairs.items() if verdict.wrong} == {"eve > herm"}


@pytest.mark.pages
async def test_a_start_that_is_killed_is_followed_by_one_that_listens(tmp_path: Path) -> None:
    config = tmp_path / "dragoman.toml"
    port = free_port()
    config.write_text(
        f"""
[server]
listen = "127.0.0.1:{port}"
[journal]
url = "sqlite:///{tmp_path / "journal.db"}"
[[backends]]
name = "herm"
dialect = "herm"
url = "http://127.0.0.1:1"
"""
    )
    dragoman = Dragoman(config, tmp_path / "log.jsonl")
    try:
        # Executed, then forked before and after it says that it listens.
        for share in (0.0, 0.1, 1.5):
            await dragoman.stumble(share)
            assert not dragoman.up.is_set()
        await dragoman.start()
        assert dragoman.up.is_set()
        assert dragoman.memory() > 0
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
    finally:
        await dragoman.close()
    assert (dragoman.lives, dragoman.executed) == (4, 1)


@pytest.mark.pages
async def test_a_kill_in_the_middle_of_everything_is_survived(tmp_path: Path) -> None:
    plan = Plan(
        "kills", seed=4, goal=1, seconds=20.0, pairs=(("eve", "eve"),), together=1, keep=tmp_path
    )
    said: list[str] = []
    listener: Callable[[str], None] = said.append
    ran = await run(plan, listener)
    (verdict,) = ran.pairs.values()
    assert ran.counts["kills"] == 1
    assert verdict.wrong == []
    assert verdict.counts["conversations"] >= 1
    assert verdict.counts["sent"] == verdict.counts["received"] - verdict.counts["not begun"] > 0
    assert said


def test_the_scripts_of_the_proof_are_played_by_every_backend() -> None:
    # What a backend only speaks about is not proof of anything.
    missing = {"custom", "secret", "sudo", "child", "structured", "signin", "limit", "compact"}
    assert not missing & {script.split(" ", maxsplit=1)[0] for script in SCRIPTS}
    assert {*UNPLAYED["managed-agents"]} < {*SCRIPTS}


CLOSED = [
    {"type": "turn.started", "data": {}},
    {
        "type": "input.requested",
        "data": {"requests": [{"requestId": "c", "kind": "tool-approval"}]},
    },
    {"type": "turn.completed", "data": {}},
    {"type": "session.waiting", "data": {}},
]
BARE: list[dict[str, Any]] = [
    {"type": name, "data": {}} for name in ("turn.started", "turn.completed", "session.waiting")
]
GOES_ON = [
    {"type": "turn.started", "data": {}},
    {"type": "message.completed", "data": {"message": "Done."}},
    {"type": "turn.completed", "data": {}},
    {"type": "session.waiting", "data": {}},
]


@pytest.mark.parametrize("more", [[], BARE])
def test_a_turn_that_closes_at_its_pause_is_one_turn(more: list[Any]) -> None:
    facts = FACTS["eve"]([*CLOSED, *more, *GOES_ON])
    assert facts == [("ask", "approval"), ("text", "Done."), ("end", "over")]


def soaked(*held: float, process: str = "", begun: float = results.WARM_UP_S) -> Slice:
    one = made("soak")
    one.process = process
    one.samples = [[begun + at, bytes_ * 2**20] for at, bytes_ in enumerate(held)]
    one.samples.insert(0, [0.0, 2.0**40])
    return one


def test_memory_is_compared_over_all_slices_after_the_warm_up_of_each() -> None:
    steady, grown, leaking = (soaked(*[held] * 20) for held in (100.0, 104.0, 112.0))
    assert results.failures([steady, grown]) == []
    (complaint,) = results.failures([steady, grown, leaking])
    assert "100.0 to 112.0 over all slices" in complaint


def test_memory_is_compared_within_each_process_too() -> None:
    # Of one process only the first slice has a warm-up.
    slices = [soaked(*[100.0] * 20, process="a"), soaked(*[112.0] * 20, process="a", begun=480.0)]
    assert len(slices[1].samples) - 1 == len(results.warm(slices[1]))
    apart = soaked(*[100.0] * 40, process="b")
    (complaint,) = results.failures([*slices, apart])
    assert "100.0 to 100.0 over all slices" in complaint
    assert "100.0 to 112.0 (16 min), 100.0 to 100.0 (8 min)" in complaint
    assert results.failures([slices[0], apart, soaked(*[100.0] * 20, process="a")]) == []


@pytest.mark.pages
async def test_a_soak_goes_on_over_its_slices_in_one_process(tmp_path: Path) -> None:
    pairs = PAIRS[:1]
    plan = Plan("soak", 5, 0, seconds=4.0, pairs=pairs, together=1, keep=tmp_path, slice_s=0.5)
    slices: list[Ran] = []
    slices.append(await run(plan, lambda _: None, slices.append))
    assert len(slices) > 1
    ages = [age for one in slices for age, _ in one.memory]
    assert ages == sorted(ages)
    assert [text for one in slices for text in one.pairs["herm > herm"].wrong] == []
    assert sum(one.pairs["herm > herm"].counts["conversations"] for one in slices) >= 1
    assert sum(one.counts["executed processes"] for one in slices) == 1


def test_a_slice_says_by_its_seed_which_eves_it_has() -> None:
    for first in range(20):
        forms, generations = zip(*map(forms_of, range(first, first + 4)), strict=True)
        assert {*forms} == {*FORMS}
        assert {*generations} == {*GENERATIONS}
    assert len({*map(forms_of, range(12))}) == 9


def test_only_a_turn_of_which_nothing_else_is_shown_may_be_one_that_nobody_knows_of() -> None:
    failed, over = ("end", "failed"), ("end", "over")
    assert _bare_failures([failed, *said("a"), failed, over, failed]) == 2


@pytest.mark.parametrize(
    ("fault", "written"),
    [
        (Duplicate(1), [b"a", b"b", b"b", b"c"]),
        (Reorder(1), [b"a", b"c", b"b"]),
        (Reorder(2), [b"a", b"b", b"c"]),
        (Duplicate(7), [b"a", b"b", b"c"]),
    ],
)
def test_events_come_twice_or_in_another_order(fault: Any, written: list[bytes]) -> None:
    assert [*disturbed(fault, [b"a", b"b", b"c"], 0)] == written
    assert [*disturbed(fault, [b"b", b"c"], 1)] == written[1:]


def test_a_frame_is_written_in_pieces_that_end_inside_of_characters() -> None:
    data = "caf\u00e9 \u201chi\u201d".encode()
    parts = [*pieces(SplitCharacters(), data)]
    assert b"".join(parts) == data
    assert len(parts) > 1
    with pytest.raises(UnicodeDecodeError):
        parts[0].decode()
    assert [*pieces(None, data)] == [data]


def test_the_faults_of_a_seed_are_of_the_kinds_that_were_asked_for() -> None:
    faults = Faults.seeded(3, 1.0, (Reorder, Status))
    drawn = [faults.take("stream", stream=True) for _ in range(40)]
    assert {type(fault) for fault in drawn} == {Reorder, Status}
    assert faults.take("create", stream=False) is None


class _Task:
    """What an `EnginePerson` talks to: the frames so far, and what the next request adds."""

    def __init__(self) -> None:
        self.events: list[EngineEvent] = []

    def turn(self) -> list[EngineEvent]:
        """Add a turn that is over at once."""
        added = []
        for phase in ("started", "completed"):
            second = dt.datetime.fromtimestamp(len(self.events), dt.UTC)
            payload = {"phase": phase, "timestamp": second.isoformat()}
            added.append(EngineEvent("thread_lifecycle", payload))
            self.events += added[-1:]
        return added

    async def execute(self, message: str, _task: str) -> AsyncGenerator[EngineEvent, None]:
        if message == "broken":
            raise Disconnected
        for event in self.turn():
            yield event

    async def replay(self, after: int, _task: str) -> AsyncGenerator[EngineEvent, None]:
        for number, event in enumerate(list(self.events)):
            if number * 1000 > after:
                yield event


async def test_a_person_misses_nothing_of_a_turn_whose_request_broke_off() -> None:
    async with aiohttp.ClientSession() as http:
        person = EngineReturning(http, "http://127.0.0.1:1", "p1")
        task: Any = _Task()
        person.client = task
        task.turn()
        person._stamp = 1000
        with pytest.raises(Disconnected):
            await person.say("broken")
        # Nothing is there yet: the request was slower than its sender's next look.
        await person._connect()
        task.turn()
        await person.say("again")
        await person._connect()
        assert person.frames == task.events[2:]
        # What is sure is read from the body again, but not while another body is read.
        await person.say("and on")
        assert person.frames == task.events[2:7]
        await person.say("at once")
        assert person.frames == task.events[2:7]
        await person._connect()
        assert person.frames == task.events[2:8]
        await person._connect()
        assert person.frames == task.events[2:]
