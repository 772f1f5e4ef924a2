"""What the backend is asked, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from adapters.model import events as ev
from proxy.session.outbound import CommandSender


@pytest.mark.parametrize(
    ("paused_on", "asked", "answered", "owed", "expecting"),
    [
        # A turn that runs, and one that waits for a task.
        (None, (), False, False, True),
        (("tasks",), (), False, False, True),
        # A person is waited for, who has answered or not.
        (("input",), ("r",), False, False, False),
        (("input",), ("r",), True, False, True),
        # No turn, and a message was taken that has begun none.
        ("none", (), False, True, True),
        ("none", (), False, False, False),
    ],
)
def test_the_backend_is_expected_to_say_something_unless_a_person_is(
    paused_on: Any, asked: tuple[str, ...], answered: bool, owed: bool, expecting: bool
) -> None:
    turn = None if paused_on == "none" else SimpleNamespace(paused_on=paused_on)
    state = SimpleNamespace(
        threads={ev.MAIN: SimpleNamespace(turn=turn)},
        waiting_on=lambda _: asked,
        is_answered=lambda _: answered,
    )
    sending: Any = SimpleNamespace(
        log=SimpleNamespace(state=state), outbox=SimpleNamespace(owed={"c"} if owed else set())
    )
    assert CommandSender._is_expecting(sending) is expecting
