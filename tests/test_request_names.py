"""The names that a backend knows requests by."""

from __future__ import annotations

import pytest

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.backend_names import for_backend
from adapters.model.normalizer import Normalizer
from adapters.model.state import RECENT_IDS, LogState
from adapters.wire.errors import NotSupported

M = ev.MAIN


def asked(normalizer: Normalizer, turn: str, name: str = "r") -> str:
    """Ask in a turn of its own, which is left open; return the name that the request has here."""
    events = normalizer.feed(
        [
            ev.TurnStarted(thread_id=M, turn_id=turn, cause="message"),
            ev.InteractionRequested(
                thread_id=M, turn_id=turn, request_id=name, kind="question", prompt="?"
            ),
        ]
    )
    (request,) = [one for one in events if isinstance(one, ev.InteractionRequested)]
    return request.request_id


def answer(name: str) -> cmd.AnswerInteraction:
    return cmd.AnswerInteraction(request_id=name, text="yes")


def test_an_answer_names_its_request_as_the_backend_does_after_a_restart_too() -> None:
    normalizer = Normalizer()
    assert [asked(normalizer, turn) for turn in ("t1", "t2", "t3")] == ["r", "r~2", "r~3"]
    for state in (normalizer.state, LogState.restore(normalizer.state.snapshot())):
        assert for_backend(answer("r~3"), state).request_id == "r"
        # The first one is over, and the backend means another one by its id.
        with pytest.raises(NotSupported, match="`r` is over"):
            for_backend(answer("r"), state)
        assert asked(Normalizer(state), "t4") == "r~4"


def test_what_the_backend_itself_calls_by_such_a_name_keeps_it() -> None:
    normalizer = Normalizer()
    assert asked(normalizer, "t1", "r~2") == "r~2"
    assert for_backend(answer("r~2"), normalizer.state).request_id == "r~2"
    assert asked(normalizer, "t2", "r") == "r"


def test_no_name_comes_twice_however_often_an_id_does() -> None:
    normalizer = Normalizer()
    names = [asked(normalizer, f"t{number}") for number in range(3 * RECENT_IDS)]
    assert len(set(names)) == len(names)


def test_commands_that_answer_nothing_stay_as_they_are() -> None:
    said = cmd.SendMessage(content=(), policy="queue")
    assert for_backend(said, LogState()) is said
    assert for_backend(answer("x"), LogState()).request_id == "x"
