"""What is true of every part of an encoder: its state is its fields, and it can be stored."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from adapters.model import events as ev
from adapters.serving.inputs import InputBatch, InputBatches, PendingInput
from adapters.serving.later import WaitingFrame, WaitingFrames
from adapters.serving.messages import SaidMessages
from adapters.serving.pauses import Pauses, ShownRequest
from adapters.serving.tokens import TokenTotals
from adapters.wire.jsonvalue import parse_json

from .notes import SomeNotes

REPOSITORY = Path(__file__).parents[2]

REQUEST = ev.InteractionRequested(
    thread_id=ev.MAIN,
    request_id="r",
    kind="approval",
    prompt="Delete it?",
    options=(ev.Option(id="y", label="Yes", decision="allow"),),
    details={"input": {"deep": [None, 2**70]}},
)
NOTES = SomeNotes(2, [("m1", "too large")], ["tools"], "digest")
ERROR = ev.ErrorInfo(code="busy", message="It works.", status=409)

FULL: dict[str, tuple[Any, Any]] = {
    "inputs": (
        InputBatches[SomeNotes],
        InputBatches(
            NOTES,
            InputBatch(NOTES, [{"toolCallId": "c"}], ["a"]),
            [InputBatch(SomeNotes(), [{"id": "m"}], ["b"], ERROR)],
            {"b": PendingInput(True, True, True, True, ["m"], ["c"])},
            SaidMessages(["m"], ["n"]),
            {"z": ("run", 7)},
            ["tools"],
            "digest",
        ),
    ),
    "later": (WaitingFrames, WaitingFrames([WaitingFrame("TEXT", {"n": [1]}, "child")], 7)),
    "pauses": (
        Pauses,
        Pauses(True, True, True, {"r": ShownRequest(REQUEST, "c", True, True, "run")}, ["r"]),
    ),
    "tokens": (TokenTotals, TokenTotals({"in": 2}, {"": {"in": 2}, "small": {"out": 2**70}})),
}
"""A full state of each part: its type, and what can be in it."""


def test_every_part_of_an_encoder_is_in_the_contract() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    name = "a-part-of-an-encoder-imports-no-other"
    (independent,) = (c for c in contracts["contracts"] if c.get("id") == name)
    assert independent["modules"] == [f"adapters.serving.{part}" for part in sorted(FULL)]


@pytest.mark.parametrize("part", FULL)
def test_a_part_is_its_fields_and_none_of_a_full_one_is_as_in_a_new_one(part: str) -> None:
    full = FULL[part][1]
    new = type(full)()
    assert not hasattr(new, "__dict__")
    for field in dataclasses.fields(full):
        assert getattr(full, field.name) != getattr(new, field.name), field.name


@pytest.mark.parametrize("part", FULL)
def test_a_part_comes_back_as_it_was_stored(part: str) -> None:
    kind, full = FULL[part]
    stored = ev.format_state(full)
    restored = TypeAdapter(kind).validate_python(parse_json(stored))
    assert restored == full
    assert ev.format_state(restored) == stored
