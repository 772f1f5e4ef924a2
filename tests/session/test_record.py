"""How long a session holds sealed values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from adapters.model.commands import Sealed
from proxy.base.sealed import SecretScrubber
from proxy.session.log_writer import LogWriter


@pytest.mark.parametrize(
    ("claims", "busy", "inputs", "held"),
    [
        # Its answer is on its way, its turn runs, or its fate is not known.
        ({"r"}, False, {}, True),
        (set(), True, {}, True),
        (set(), False, {"c": None}, True),
        (set(), False, {"d": None}, False),
        (set(), False, {}, False),
    ],
)
def test_a_value_is_let_go_when_its_turn_is_over_and_its_fate_known(
    claims: set[str], busy: bool, inputs: dict[str, Any], held: bool
) -> None:
    values = SecretScrubber()
    values.add("c", Sealed("hunter22"))
    record: Any = SimpleNamespace(
        held=values,
        outbox=SimpleNamespace(claims=claims),
        state=SimpleNamespace(busy=busy, inputs=inputs),
    )
    LogWriter.let_go(record)
    assert values.active is held
