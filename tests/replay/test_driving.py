"""What a person's part does where the backend, or the capture, is not as it was."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from adapters.model import events as ev
from adapters.offline.replay import script_of
from proxy.migration.scripted_person import Driver, ScriptedRun
from tests.replay.support import replayed
from tests.replay.test_script_builder import (
    BEGIN,
    END,
    STARTED,
    accepted,
    entries,
    received,
    said,
    taken,
)

ONE = (said("a", "one"), taken("a"), BEGIN, received("a", "one"))


async def test_what_was_refused_is_left_out_with_a_note() -> None:
    error = ev.ErrorInfo(code="busy", message="Later.")
    refused = (said("z", "zero"), taken("z", "refused", error=error, reason="Later."))
    script = script_of(entries(STARTED, *refused, *ONE, END))
    async with replayed(entries(STARTED, *ONE, END), "eve", "eve") as house:
        driven = await house.drive(script, "eve", "eve")
    assert driven.failed is None
    assert driven.given == 1
    assert driven.notes == [
        "message `zero` was refused when it was recorded: it is left out",
    ]


ASKED = (
    *ONE,
    ev.InteractionRequested(
        thread_id="main", turn_id="t", request_id="r", kind="secret", prompt="The key"
    ),
    ev.TurnPaused(thread_id="main", turn_id="t", on="input", request_ids=("r",)),
    accepted("b", "answer", name="answer", request_id="r"),
    taken("b"),
    ev.InteractionResolved(thread_id="main", turn_id="t", request_id="r", outcome="answered"),
    ev.TurnResumed(thread_id="main", turn_id="t"),
    END,
)


@pytest.mark.parametrize("sealed", [("sesame",), ()], ids=["given", "missing"])
async def test_a_secret_is_answered_with_what_is_given(sealed: tuple[str, ...]) -> None:
    log = entries(STARTED, *ASKED)
    async with replayed(log, "herm", "herm") as house:
        driven = await house.drive(script_of(log), "herm", "herm", sealed=sealed)
    if sealed:
        assert (driven.failed, driven.given) == (None, 2)
        assert "sesame" not in "".join(entry.encode().decode() for entry in driven.log)
    else:
        assert driven.failed is not None
        assert "give the values in a file with --sealed" in driven.failed


def test_a_session_is_over_when_its_last_event_is_stored() -> None:
    driver = Driver(
        script_of(entries(STARTED)),
        ScriptedRun(),
        seconds=1.0,
        sealed=[],
        tell=lambda _: None,
        stop=cast(asyncio.Event, None),
    )
    state = SimpleNamespace(ended="completed", seq=3)
    live: Any = SimpleNamespace(state=state, working=False, idle=True, last_seq=2)
    driver._session = live
    assert not driver._at_rest
    live.last_seq = 3
    assert driver._at_rest
