"""What is true of every part: its state is its fields, it can be stored, it stands alone."""

from __future__ import annotations

import dataclasses
import importlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from adapters.driving import again, asks, doubts, echoes, held, ledger, silence
from adapters.driving.part import CodecPart, soonest
from adapters.herm.client.records import HermClientState, PostedInput
from adapters.model import events as ev
from adapters.model.raw import BlockEnded
from adapters.wire.jsonvalue import parse_json

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "adapters" / "driving"
NOT_PARTS = ("__init__", "part", "runs", "transcript")
"""What parts are made of, and what concerns several of them: a codec gives it those."""

NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in NOT_PARTS)

FULL: dict[str, tuple[Any, Any]] = {
    "again": (again.Again, again.Again(True, 7, True, 3, 2)),
    "ledger": (
        ledger.InputLedger[ledger.SentInput],
        ledger.InputLedger(
            {
                "m": ledger.SentInput(
                    "m", "message", (ev.Text(text="go", extra={"n": 2**70}),), True
                ),
                "a": ledger.SentInput("a", "answer"),
            }
        ),
    ),
    "doubts": (
        doubts.UncertainInputs,
        doubts.UncertainInputs({"a": doubts.UncertainInput(), "b": doubts.UncertainInput(7, 2)}),
    ),
    "asks": (
        asks.InteractionLedger[asks.PendingInteraction],
        asks.InteractionLedger(
            {
                "q": asks.PendingInteraction("question"),
                "r": asks.PendingInteraction(
                    "approval",
                    "child",
                    "call",
                    asks.InteractionAnswer(
                        "c", "approved", ev.Answer(option_ids=("a",)), "once", False
                    ),
                ),
            }
        ),
    ),
    "echoes": (
        echoes.EchoLedger[PostedInput],
        echoes.EchoLedger([PostedInput("c", "k", settled=True)], {"id": "c"}),
    ),
    "held": (
        held.HeldToolCalls,
        held.HeldToolCalls(
            [
                ev.ToolCalled(thread_id=ev.MAIN, call_id="a", name="look", input={"deep": [None]}),
                BlockEnded(thread_id=ev.MAIN, block="text"),
            ],
            ["a"],
            5,
        ),
    ),
    "silence": (silence.SilenceTimers, silence.SilenceTimers({"a": None, "b": 7})),
}
"""A full state of each part: its type, and what can be in it."""

OVER_A_RECORD = ["queue"]
"""Parts that have no stored field of their own: the dialect stores the record that they work on."""


def test_every_part_is_in_the_contracts_and_has_a_table() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    (independent,) = (c for c in contracts["contracts"] if c.get("id") == "a-part-imports-no-part")
    assert independent["modules"] == [f"adapters.driving.{name}" for name in NAMES]
    tests = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    assert {f"test_{name}" for name in NAMES} <= tests
    assert sorted([*FULL, *OVER_A_RECORD]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_part_is_its_fields(name: str) -> None:
    module = importlib.import_module(f"adapters.driving.{name}")
    part: Any
    (part,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, CodecPart) and value is not CodecPart
    )
    made = part(HermClientState()) if name in OVER_A_RECORD else part()
    assert not hasattr(made, "__dict__")
    assert made.due is None
    assert dataclasses.is_dataclass(part)
    if name in OVER_A_RECORD:
        assert [field.name for field in dataclasses.fields(part)] == ["record"]


@pytest.mark.parametrize("name", sorted(FULL))
def test_a_part_comes_back_as_it_was_stored(name: str) -> None:
    kind, full = FULL[name]
    adapter = TypeAdapter(kind)
    stored = adapter.dump_json(full)
    assert adapter.validate_python(parse_json(stored)) == full
    assert adapter.dump_json(adapter.validate_python(parse_json(stored))) == stored


def test_what_concerns_a_connection_is_not_stored() -> None:
    doubting = doubts.UncertainInputs()
    doubting.look("a")
    adapter = TypeAdapter(doubts.UncertainInputs)
    again = adapter.validate_json(adapter.dump_json(doubting))
    assert (again.open, again.looking) == (doubting.open, set())


@pytest.mark.parametrize(
    ("dues", "first"),
    [((), None), ((None, None), None), ((5, None, 3), 3), ((0, 4), 0), ((None, 7), 7)],
)
def test_the_soonest_of_times(dues: tuple[int | None, ...], first: int | None) -> None:
    assert soonest(*dues) == first
