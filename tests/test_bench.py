"""The benchmark's own logic: reading bodies and stamps, judging, rendering. Never any timing."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from bench.machine import cpu_ns, family_cpu_ns
from bench.origin import BLOCK_DELTAS, EVENT_SIZES, Connection, Origin, Turn
from bench.report import EVIDENCE, NOT_MEASURED, documented, page, summary, with_shared_section
from bench.results import Results
from bench.resume import CURSORS, MOST_ROWS, PAGE_ROWS, complaints, figures_of
from bench.storm import judged
from bench.target import BARE, DURABLE, FORWARDED, MEMORY, POSTGRES, TWO_NODES, WINDOWS
from bench.told import Commits, commits_of, lag_of
from bench.wire import BadResponse, ChunkedBody, engine_stamps, eve_stamps
from proxy.base import metrics
from proxy.base.loop_lag import LAG

MACHINE = {
    "date": "2026-01-02",
    "commit": "abc1234",
    "cpu": "Some CPU",
    "cores": "2",
    "system": "Linux 6.1",
    "python": "3.11.7",
    "fdatasync_us": "60",
}


def results_with(figures: dict[str, dict[str, list[float]]]) -> Results:
    results = Results(MACHINE, rounds=3)
    for name, by_target in figures.items():
        for target, values in by_target.items():
            for number, value in enumerate(values):
                results.add(number, target, {name: value})
    return results


def test_a_chunked_body_is_the_same_however_it_is_cut() -> None:
    raw = b"5\r\nhello\r\n1;name=x\r\n \r\nc\r\nworld\r\nagain\r\n0\r\n\r\n"
    for size in range(1, len(raw) + 1):
        body = ChunkedBody()
        got = b"".join(body.feed(raw[at : at + size]) for at in range(0, len(raw), size))
        assert (got, body.done) == (b"hello world\r\nagain", True)


def test_a_chunk_size_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadResponse, match="bad chunk size"):
        ChunkedBody().feed(b"HTTP/1.1 500\r\n")


def test_engine_stamps_are_found_in_every_delta() -> None:
    lines = b"".join(
        b'event: text_delta\ndata: {"text":"~%016x word"}\n\n' % stamp for stamp in (7, 8, 900)
    )
    assert engine_stamps(lines) == [7, 8, 900]


def test_eve_stamps_count_a_delta_once_although_the_text_so_far_repeats_it() -> None:
    first, second = b"~%016x one " % 11, b"~%016x two ~%016x three" % (12, 13)
    lines = (
        b'{"type":"message.appended","data":{"messageDelta":"%b","messageSoFar":"%b"}}\n'
        b'{"type":"message.appended","data":{"messageSoFar":"%b%b","messageDelta":"%b"}}\n'
        b'{"type":"message.completed","data":{"message":"%b%b"}}\n'
    ) % (first, first, first, second, second, first, second)
    assert eve_stamps(lines) == [11, 12, 13]


def test_the_origins_deltas_have_the_promised_sizes_and_rising_stamps() -> None:
    turn = Turn(Connection(Origin()), "t", 10 * BLOCK_DELTAS)
    body = ChunkedBody()
    payload = b"".join(body.feed(turn.delta(5)) for _ in range(2 * BLOCK_DELTAS))
    deltas = [part for part in payload.split(b"\n\n") if part.startswith(b"event: text_delta")]
    sizes = [len(part) + 2 for part in deltas]
    assert len(deltas) == 2 * BLOCK_DELTAS
    assert EVENT_SIZES[0] <= min(sizes)
    assert max(sizes) <= EVENT_SIZES[1]
    assert engine_stamps(payload) == list(range(5, 5 + 2 * BLOCK_DELTAS))
    assert payload.count(b"event: content_block_stop") == 2


def test_the_blocks_of_turns_that_run_beside_each_other_end_at_different_times() -> None:
    def ends(number: int) -> list[int]:
        turn = Turn(Connection(Origin()), "t", 10 * BLOCK_DELTAS, number)
        pieces = [turn.delta(5) for _ in range(3 * BLOCK_DELTAS)]
        return [at for at, piece in enumerate(pieces) if b"content_block_stop" in piece]

    firsts = [ends(number)[0] for number in range(BLOCK_DELTAS)]
    assert sorted(firsts) == list(range(BLOCK_DELTAS))
    assert ends(3) == [ends(3)[0] + n * BLOCK_DELTAS for n in range(3)]


def test_a_round_that_failed_for_one_target_is_left_out_of_the_ratio() -> None:
    results = Results(MACHINE, rounds=2)
    results.add(0, BARE, {"first.p50_ms": 1.0})
    results.add(1, BARE, {"first.p50_ms": 4.0})
    results.add(1, DURABLE, {"first.p50_ms": 8.0})
    assert results.ratio("first.p50_ms", DURABLE) == 2.0


def test_the_page_shows_figures_what_they_mean_and_the_machine() -> None:
    results = results_with(
        {
            "rate.events_per_s": {BARE: [20_000.0], DURABLE: [9_000.0], MEMORY: [15_000.0]},
            "fanout.cpu_us": {DURABLE: [13.0], MEMORY: [9.0]},
            "rate.load_busy": {DURABLE: [0.97]},
            "lost": {BARE: [0.0], DURABLE: [2.0]},
        }
    )
    results.stages = [("framing", 1.5), ("decode", 2.25)]
    text = page(results)
    assert "9,000 events a second, which is 300 models" in text
    assert "One more reader of a session costs 13 µs" in text
    # What was not measured means nothing.
    assert "kB: 10,000" not in text
    assert "| 20,000 | 9,000 (0.45 ×) | 15,000 (0.75 ×) |" in text
    assert f"| {NOT_MEASURED} | 13.0 | 9.0 |" in text
    assert "| framing | 1.50 |" in text
    assert "| all of them | 3.75 |" in text
    assert "Events lost: 2." in text
    assert "97% busy" in text
    assert "2026-01-02 at commit abc1234" in text
    assert not re.search(r"\{\w+", text)


def test_what_the_window_costs_and_gives_is_shown_where_it_was_measured() -> None:
    measured = {name: [float(ms)] for name, ms in WINDOWS.items()}
    for shown in (summary, page):
        assert "| 4 | 4.0 | – | – | – |" in shown(results_with({"windows.cpu_us": measured}))
    assert "window_ms" not in summary(results_with({}))


def test_what_is_measured_of_many_processes_is_a_section_of_its_own() -> None:
    before = page(results_with({"rate.events_per_s": {BARE: [20_000.0], DURABLE: [9_000.0]}}))
    assert with_shared_section(before, results_with({})) == before
    measured = results_with(
        {
            "cluster.cpu_us": {BARE: [80.0], POSTGRES: [300.0], TWO_NODES: [320.0, 200.0, 400.0]},
            "cluster.database_us": {POSTGRES: [50.0], TWO_NODES: [80.0]},
            "cluster.forward_us": {FORWARDED: [84.0]},
            "lost": {POSTGRES: [0.0]},
        }
    )
    after = with_shared_section(before, measured)
    head, _, rest = before.partition("## Many processes\n")
    assert after.startswith(head)
    assert after.endswith(rest.partition("\n## ")[2])
    assert after.count("\n## ") == before.count("\n## ")
    assert "| PostgreSQL, one process | 300.0 (3.75 ×) | 50.0 |" in after
    assert "carries 3,125 events a second, and PostgreSQL takes a core for 4.0 such" in after
    assert "Forwarding alone takes 84.0 µs of that." in after
    assert "9,000 events a second" in after
    with pytest.raises(ValueError, match="write all of it"):
        with_shared_section("# Performance", measured)


def test_the_family_of_a_process_is_itself_and_its_children() -> None:
    busy = "while True: pass"
    child = subprocess.Popen([sys.executable, "-c", busy])
    try:
        while cpu_ns(child.pid) < 2e8:
            pass
        assert family_cpu_ns(os.getpid()) > cpu_ns(os.getpid())
        assert family_cpu_ns(child.pid) >= 2e8
    finally:
        child.kill()
        child.wait()


def test_resuming_is_judged_by_every_figure() -> None:
    stream, listed = CURSORS["eve startIndex"], CURSORS["herm list, ascending"]
    good = figures_of([(10.0, 5.0, MOST_ROWS, True)] * 100)
    assert complaints(stream, good, good, timed=True) == []
    # One of 101 is no 99th of a hundred, two are.
    assert (
        complaints(
            stream,
            good,
            figures_of([(10.0, 5.0, 9, True)] * 100 + [(99.0, 5.0, 9, True)]),
            timed=True,
        )
        == []
    )
    for samples, said in (
        ([(10.0, 5.0, MOST_ROWS + 1, True)], "257 rows, not 256"),
        ([(10.0, 5.0, 9, True)] * 99 + [(10.0, 5.0, 9, False)], "1 answers are wrong"),
        ([(10.0, 10.0, 9, True)], "2.00 times the CPU"),
        ([(10.0, 5.0, 9, True)] * 98 + [(61.0, 5.0, 9, True)] * 2, "p99 61.0 ms"),
    ):
        assert complaints(stream, good, figures_of(samples), timed=True) == [said]
    slow = figures_of([(20.5, 5.0, 9, True)])
    assert complaints(stream, good, slow, timed=True) == ["2.05 times as long", "p50 20.5 ms"]
    assert complaints(stream, good, slow, timed=False) == []
    page_of = figures_of([(10.0, 5.0, MOST_ROWS + PAGE_ROWS, True)])
    assert complaints(listed, good, page_of, timed=True) == []


def test_a_storm_is_judged_by_what_is_right_and_a_full_one_by_its_times_too() -> None:
    said = [("idle", "one", True, False), ("idle", "two", True, True), ("start", "3", False, True)]
    assert judged(said, timed=True) == {"idle": ("one; two", False), "start": ("3", False)}
    assert judged(said, timed=False) == {"idle": ("one; two", True), "start": ("3", False)}


@pytest.mark.parametrize("module", ["bench.resume", "bench.storm"])
def test_figures_replace_those_before_in_their_part_of_the_page(module: str) -> None:
    before = EVIDENCE.read_text()
    once = documented(before, module, ["--docs"], MACHINE, ["| a |", "one"])
    twice = documented(once, module, ["--docs"], MACHINE, ["| b |"])
    assert f"Measured on 2026-01-02 at commit abc1234 by `python -m {module} --docs`" in twice
    assert "| b |" in twice
    assert "| a |" not in twice
    assert documented(twice, module, ["--docs"], MACHINE, ["| a |", "one"]) == once
    assert twice.startswith(before[: before.index("made by `python -m bench.resume")])
    assert twice.endswith(before[before.rindex("<!-- end of the made part") :])


def test_a_run_reads_what_the_journal_says_of_its_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(stored: int) -> Commits:
        shown = metrics.exposition(sessions=0, readers=0, stored=stored, backlog=0)
        return commits_of(shown.decode())

    monkeypatch.setattr(
        metrics, "COMMITS", {"writes": metrics.Commits(), "later": metrics.Commits()}
    )
    before = told(10)
    metrics.COMMITS["writes"].add(6, 0.25)
    metrics.COMMITS["writes"].add(2, 0.25)
    metrics.COMMITS["later"].add(1, 0.125)
    assert told(26).since(before) == Commits(2, 8, 16, 0.5, 0.125)


def test_a_run_tells_the_longest_lag() -> None:
    text = metrics.exposition(sessions=0, readers=0, stored=0, backlog=0).decode()
    assert lag_of(text) == LAG.longest * 1000
    results = Results(MACHINE, rounds=1)
    for lag in (3.0, 300.0, 7.0):
        results.add_lag(DURABLE, lag)
    line = "Longest lag of the event loop while idle streams are opened, stored: 300.0 ms."
    for shown in (summary(results), page(results)):
        assert line in shown
