"""What `translate` tells of fields that do not cross: `--fail-on`, `--report -`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapters.contract.fidelity import CANONICAL, ORDER, Ledger
from adapters.model.base import Fidelity
from adapters.offline.recorded_inputs import BadInput
from adapters.offline.translate import TranslateOptions, make_source
from adapters.registry import DIALECTS
from proxy import cli
from proxy.cli.crossings import MOST_LOSSES
from proxy.config.matrix import side_of
from tests.support.each import each
from tests.support.terminal import COLUMNS, run_in_terminal
from tests.test_translate import BODIES, COMPLETED, STARTED, WORDS

REPOSITORY = Path(__file__).parent.parent
BODY = REPOSITORY / "fixtures/wire/eve/eve-0.80.1/server/approval-approve.01.ndjson"


def run(*words: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.main, ["translate", *words], input=stdin)


def ledger_of(dialect: str, target: str, body: Path) -> Ledger:
    source = make_source(dialect, TranslateOptions(session_id="s"))
    ledger = Ledger(side_of(dialect), side_of(target))
    for entry in [*source.feed(body.read_bytes()), *source.close()]:
        ledger.add(entry.event)
    return ledger


@each(("dialect", "body"), BODIES)
def test_each_loss_is_counted_and_has_a_reason(dialect: str, body: Path) -> None:
    for target in (*(name for name, one in DIALECTS.items() if one.encoder), CANONICAL):
        try:
            ledger = ledger_of(dialect, target, body)
        except BadInput:
            continue
        for worst in (Fidelity.DROPPED, Fidelity.APPROXIMATED):
            found = ledger.losses(worst)
            lost = ledger.totals[Fidelity.DROPPED]
            if worst is Fidelity.APPROXIMATED:
                lost += ledger.totals[Fidelity.APPROXIMATED]
            assert bool(found) is bool(lost)
            assert sum(loss.times for loss in found) <= lost
            assert all(loss.why and "masked:" not in loss.why for loss in found)
            assert {loss.fidelity for loss in found} <= {Fidelity.DROPPED, worst}


def test_fields_that_are_lost_with_their_event_are_not_named() -> None:
    paths = {loss.path: loss for loss in ledger_of("eve", "herm", BODY).losses()}
    assert paths["step.ended"].fidelity is Fidelity.DROPPED
    assert paths["step.ended"].why == "no model calls in this dialect"
    assert not [path for path in paths if path.startswith("step.ended.")]
    assert paths["turn.started.cause"].why == "no field"
    assert paths["tool.input_delta"].times == 3


def test_dropped_fields_are_named_and_exit_with_1() -> None:
    words = ("--from", "eve", "--to", "herm", str(BODY))
    usual = run(*words)
    assert (usual.exit_code, usual.stderr) == (0, "")
    done = run("--fail-on", "dropped", *words)
    assert (done.exit_code, done.stdout) == (1, usual.stdout)
    head, *lines = done.stderr.splitlines()
    assert head == "dragoman: 26 fields were dropped:"
    assert "  turn.started.cause: dropped: no field" in lines
    assert "  tool.input_delta: dropped 3 times: the whole input comes with the tool use" in lines
    assert not any("approximated" in line for line in lines)


def test_approximated_fields_are_named_if_they_are_wrong_too() -> None:
    done = run("--fail-on", "approximated", "--from", "eve", "--to", "herm", str(BODY))
    assert done.exit_code == 1
    head, *lines = done.stderr.splitlines()
    assert head == "dragoman: 33 fields were dropped or approximated:"
    assert len(lines) == MOST_LOSSES + 1
    assert lines[0].startswith("  session.updated: approximated: only the title has an event")
    losses = ledger_of("eve", "herm", BODY).losses()
    assert lines[-1] == f"  and {len(losses) - MOST_LOSSES} more; --report says which"


def test_what_only_approximates_is_not_dropped() -> None:
    words = ("--from", "engine", "--to", CANONICAL)
    body = STARTED + WORDS + COMPLETED
    assert run("--fail-on", "dropped", *words, stdin=body).exit_code == 0
    done = run("--fail-on", "approximated", *words, stdin=body)
    assert done.exit_code == 1
    assert "approximated:" in done.stderr
    assert "dropped" not in done.stderr


def test_what_loses_nothing_is_done() -> None:
    log = run("--from", "eve", "--to", CANONICAL, str(BODY)).stdout_bytes
    words = ("--from", CANONICAL, "--to", CANONICAL, "--fail-on", "approximated")
    done = run(*words, stdin=log)
    assert (done.exit_code, done.stdout_bytes, done.stderr) == (0, log, "")


def test_bad_input_is_told_besides_what_is_lost() -> None:
    words = ("--strict", "--from", "engine", "--to", "herm", "--fail-on", "dropped")
    done = run(*words, stdin=STARTED + WORDS + COMPLETED + b"data: {\n\n")
    assert done.exit_code == 1
    first, *_, last = done.stderr.splitlines()
    assert first.endswith(" dropped:")
    assert last.startswith("<stdin>:")


def test_a_report_in_a_pipe_is_lines_with_tabs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    done = run("--report", "-", "--from", "eve", "--to", "herm", str(BODY))
    assert done.exit_code == 0
    rows = [line.split("\t") for line in done.stderr.splitlines()]
    ledger = ledger_of("eve", "herm", BODY)
    types = len(ledger.by_type)
    assert rows[types] == ["all", *(str(ledger.totals[name]) for name in ORDER)]
    assert [row[0] for row in rows[:types]] == sorted(ledger.by_type)
    assert ["turn.started.cause", "dropped", "1", "no field"] in rows[types + 1 :]
    assert len(rows) == types + 1 + len(ledger.losses())
    assert list(tmp_path.iterdir()) == []


async def test_lost_fields_are_broken_between_words_on_a_terminal() -> None:
    words = ("translate", "--fail-on", "approximated", "--from", "eve", "--to", "herm", str(BODY))
    shown = await run_in_terminal(words)
    assert shown.status == 1
    at = shown.lines.index("dragoman: 33 fields were dropped or approximated:")
    assert max(map(len, shown.lines[at:])) <= COLUMNS
    told = " ".join(line.strip() for line in shown.lines[at:])
    assert "become a text marker with name, type and size" in told


async def test_a_report_on_a_terminal_is_two_tables_that_fit() -> None:
    words = ("translate", "--report", "-", "--from", "eve", "--to", "herm", str(BODY))
    shown = await run_in_terminal(words)
    assert shown.status == 0
    # The translation stands above it.
    lines = shown.lines[next(at for at, line in enumerate(shown.lines) if "exact " in line) :]
    assert lines[0].split() == ["event", *map(str, ORDER)]
    blank = lines.index("")
    assert lines[blank - 1].split() == ["all", "26", "7", "1", "26"]
    assert lines[blank + 1].split() == ["field", "how", "times", "why"]
    assert "turn.started.cause" in "".join(lines[blank:])
    assert max(map(len, lines)) <= COLUMNS


async def test_a_report_on_a_terminal_has_no_second_table_where_nothing_is_lost() -> None:
    body = str(REPOSITORY / "fixtures/canonical/every-type.ndjson")
    words = ("translate", "--report", "-", "--from", CANONICAL, "--to", CANONICAL, body)
    shown = await run_in_terminal(words)
    assert shown.status == 0
    assert shown.lines[-1].split()[0] == "all"
    assert "field  " not in shown.text
