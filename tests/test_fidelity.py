"""The numbers of every pair are committed, and a change that makes a pair worse fails."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from adapters.contract.fidelity import CANONICAL, Ledger, Side, fields_of
from adapters.contract.mapping import Mapping, parse_mapping
from adapters.model import events as ev
from adapters.model.base import Fidelity, Support
from adapters.model.commands import COMMAND_TYPES
from adapters.registry import DIALECTS
from proxy.cli import main
from proxy.config import matrix
from tests import fidelity
from tests.test_mapping import NEVER_DROPPED
from tests.wire import bodies, driven, entries_of, frontends, name_of, served

HINT = "run python -m tests.fidelity --write and read the diff"


@pytest.fixture(scope="module")
def measured() -> fidelity.Numbers:
    return fidelity.measured()


def test_no_pair_became_worse(measured: fidelity.Numbers) -> None:
    lost = list(fidelity.worse(fidelity.committed(), measured))
    assert lost == [], HINT


def test_the_committed_numbers_are_those_of_the_fixtures(measured: fidelity.Numbers) -> None:
    assert fidelity.NUMBERS.read_bytes() == fidelity.format_numbers(measured), HINT


def test_the_page_is_written_from_the_numbers(measured: fidelity.Numbers) -> None:
    assert fidelity.PAGE.read_text(encoding="utf-8") == fidelity.page_of(measured), HINT


def test_every_body_and_every_pair_is_measured(measured: fidelity.Numbers) -> None:
    assert list(measured) == [*driven(), CANONICAL]
    for backend, found in measured.items():
        assert list(found) == [name_of(body) for body in bodies(backend)]
        assert all(list(row) == served() for row in found.values())


@pytest.mark.parametrize(
    ("after", "is_worse"),
    [
        ([5, 3, 1, 1], False),
        ([6, 2, 1, 1], False),
        ([10, 6, 2, 1], False),
        ([4, 4, 1, 1], True),
        ([5, 2, 1, 2], True),
        ([50, 30, 10, 2], True),
        ([5, 4, 1, 1], True),
        (None, True),
    ],
)
def test_worse_is_what_drops_more_or_keeps_a_smaller_share(
    after: list[int] | None, is_worse: bool
) -> None:
    old = {"engine": {"a": {"eve": [5, 3, 1, 1]}}}
    new: fidelity.Numbers = {"engine": {"a": {} if after is None else {"eve": after}}}
    found = list(fidelity.worse(old, new))
    assert bool(found) is is_worse
    assert all("eve on engine, a" in line for line in found)


def test_worse_numbers_are_written_only_when_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    measured: fidelity.Numbers,
) -> None:
    better = copy.deepcopy(measured)
    row = better["engine"]["01-plain-text"]["eve"]
    row[0], row[1] = row[0] + row[1], 0
    monkeypatch.setattr(fidelity, "committed", lambda: better)
    monkeypatch.setattr(fidelity, "measured", lambda: measured)
    monkeypatch.setattr(fidelity, "NUMBERS", tmp_path / "fidelity.json")
    monkeypatch.setattr(fidelity, "PAGE", tmp_path / "fidelity.md")
    assert fidelity.main([]) == 1
    assert fidelity.main(["--write"]) == 1
    assert "eve on engine, 01-plain-text: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert fidelity.main(["--write", "--accept"]) == 0
    assert json.loads((tmp_path / "fidelity.json").read_bytes())["backends"] == measured
    monkeypatch.setattr(fidelity, "committed", lambda: measured)
    assert fidelity.main([]) == 0


# What is counted.


def toy(*rows: str, shown: tuple[str, ...] = ("text.delta | x | exact",)) -> Mapping:
    tables = {
        "Events | native | canonical | in | out | section | why": rows,
        "Routes | method | path | canonical | served | driven | section | why": [
            "GET | / | - | yes | yes | 1 |"
        ],
        "Errors | native | when | canonical | section | why": ["404 | x | - | 1 |"],
        "Canonical | canonical | shown as | fidelity | section | why": [
            f"{row} | 1 | because" for row in shown
        ],
        "Commands | command | backend | how | section | why": ["clear | impossible | | 1 | no"],
    }
    text = "# Toy mapping\n"
    for head, lines in tables.items():
        name, *columns = head.split(" | ")
        text += f"\n## {name}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
        text += "".join(f"| {line} |\n" for line in lines)
    return parse_mapping(text)


def delta(**fields: Any) -> ev.TextDelta:
    native = ev.NativeRef(dialect="source", type="say")
    return ev.TextDelta(
        **{
            "thread_id": "main",
            "block_id": "b",
            "message_id": "m",
            "text": "x",
            "native": native,
            **fields,
        }
    )


SOURCE = Side(
    "source",
    toy(
        "say | text.delta | exact | exact | 1 |",
        "hum | text.delta | approximated | approximated | 1 | in words",
        "say.text | text.delta.text | exact | exact | 1 |",
        "say.(block) | text.delta.block_id | synthesized | dropped | 1 | counted",
        "say.(message) | text.delta.message_id | approximated | synthesized | 1 | masked: ours",
        "say.index | text.delta.index | dropped | - | 1 | nobody needs it",
    ),
)
TARGET = Side(
    "target",
    toy(
        "say | text.delta | exact | exact | 1 |",
        shown=(
            "text.delta | say | exact",
            "text.delta.message_id | say.id | approximated",
            "text.delta.block_id | nothing | dropped",
            "tool.called | nothing | dropped",
            "tool.called.name | name | exact",
        ),
    ),
)


def test_the_worse_of_both_sides_counts() -> None:
    ledger = Ledger(SOURCE, TARGET)
    assert ledger.add(delta()) == {
        "type": Fidelity.EXACT,
        "message_id": Fidelity.APPROXIMATED,
        "text": Fidelity.EXACT,
    }
    hummed = delta(native=ev.NativeRef(dialect="source", type="hum"))
    assert ledger.add(hummed)["type"] is Fidelity.APPROXIMATED
    assert ledger.events == 2
    assert ledger.totals == Counter(exact=3, approximated=3)


def test_what_was_never_said_and_is_not_shown_is_no_loss() -> None:
    assert "block_id" not in Ledger(SOURCE, TARGET).add(delta())
    everything = Ledger(SOURCE, Side(CANONICAL, None)).add(delta())
    assert everything["block_id"] is Fidelity.SYNTHESIZED


def test_what_the_target_does_not_show_is_dropped_with_all_of_its_fields() -> None:
    called = ev.ToolCalled(thread_id="main", call_id="c", name="bash", input={"a": 1})
    assert set(Ledger(SOURCE, TARGET).add(called).values()) == {Fidelity.DROPPED}
    assert set(Ledger(TARGET, Side("empty", toy("a | - | exact | exact | 1 | x"))).add(called)) == {
        *("type", "call_id", "name", "input")
    }


def test_what_we_added_is_synthesized_but_for_the_words_in_it() -> None:
    fields = Ledger(SOURCE, TARGET).add(delta(synthetic=True))
    assert fields["type"] is Fidelity.SYNTHESIZED
    assert fields["text"] is Fidelity.EXACT


def test_into_its_own_dialect_a_field_goes_back_by_its_own_row() -> None:
    assert Ledger(SOURCE, SOURCE).add(delta()) == {
        "type": Fidelity.EXACT,
        "message_id": Fidelity.SYNTHESIZED,
        "text": Fidelity.EXACT,
    }


def test_extra_fields_and_native_frames_reach_their_own_dialect_only() -> None:
    more = delta(extra={"colour": "blue", "repaired": True})
    assert Ledger(SOURCE, SOURCE).add(more)["extra.colour"] is Fidelity.EXACT
    assert Ledger(SOURCE, TARGET).add(more)["extra.colour"] is Fidelity.DROPPED
    assert "extra.repaired" not in Ledger(SOURCE, TARGET).add(more)
    native = ev.Native(thread_id="main", dialect="source", name="x", frame={})
    assert set(Ledger(SOURCE, TARGET).add(native).values()) == {Fidelity.DROPPED}
    assert set(Ledger(SOURCE, SOURCE).add(native).values()) == {Fidelity.EXACT}


def test_fields_are_those_that_say_something() -> None:
    assert list(fields_of(delta(turn_id="t", index=0))) == [
        "type",
        "block_id",
        "message_id",
        "text",
    ]
    assert list(fields_of(ev.TurnResumed(thread_id="main"))) == ["type"]


@pytest.mark.parametrize("frontend", frontends())
def test_what_counts_is_not_dropped_for_any_frontend(frontend: str) -> None:
    (log,) = bodies(CANONICAL)
    ledger = Ledger(Side(CANONICAL, None), matrix.side_of(frontend))
    seen = set()
    for entry in entries_of(CANONICAL, log):
        event = entry.event
        for name, value in ledger.add(event).items():
            path = event.TYPE if name == "type" else f"{event.TYPE}.{name}"
            if path in NEVER_DROPPED:
                seen.add(path)
                assert value is not Fidelity.DROPPED, path
    assert seen == NEVER_DROPPED


def test_measure_counts_like_the_ledger() -> None:
    assert fidelity.measure([delta(), delta()], SOURCE, TARGET) == [4, 2, 0, 0]


# Commands and backends.


@pytest.mark.parametrize("backend", driven())
def test_what_a_codec_declares_is_what_its_mapping_says(backend: str) -> None:
    make = DIALECTS[backend].client
    assert make is not None
    abilities = make({"task_id": "t"}).abilities
    assert set(abilities) == set(COMMAND_TYPES)
    rows = matrix.mapping_of(backend).commands
    for command, ability in abilities.items():
        kinds = [row for row in rows if row.command.partition(":")[0] == command]
        said = {row.backend for row in kinds}
        if command == "answer":
            # One ability for all kinds: native when some kind of request can be answered natively.
            best = next(word for word in Support if word in said)
            assert ability.support == best, command
        else:
            assert {str(ability.support)} == said, command
        if ability.support is not Support.NATIVE:
            assert ability.how, command


def test_the_command_prints_every_pair_and_every_command() -> None:
    result = CliRunner().invoke(main, ["matrix"])
    assert result.exit_code == 0
    above, below = result.stdout.split("\n\n")
    assert len(above.splitlines()) == len(served()) * (len(driven()) + 1)
    assert len(below.splitlines()) == len(COMMAND_TYPES) * len(driven())
    answer = json.loads(CliRunner().invoke(main, ["matrix", "--json"]).stdout)
    assert answer["version"] == 1
    assert {(pair["frontend"], pair["backend"]) for pair in answer["pairs"]} == {
        (frontend, backend) for frontend in served() for backend in (*driven(), CANONICAL)
    }
    interrupt = next(
        cell
        for cell in answer["commands"]
        if (cell["command"], cell["backend"]) == ("interrupt", "engine")
    )
    assert interrupt["support"] == "impossible"
    assert "no route" in interrupt["how"]
