"""The same of an eve, over every recorded session: its streams, its answers, the time."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from adapters.model.base import Call, CloseReason, Response
from tests.eve.recorded import SCENARIOS, Exchange, Player, Scenario
from tests.kept.leg import Lost, told

How = Literal["", "lose", "kill"]
Trouble = Literal["", "not ready", "no token", "lost"]

NOT_READY = Response(409, body=b'{"ok":false,"code":"session_not_ready","error":"Not ready yet."}')
NO_TOKEN = Response(400, body=b'{"ok":false,"error":"Unknown field: continuationToken."}')


class Killed(Player):
    """Plays a session, and is killed after a step, or loses its connections there.

    With `trouble` every follow-up is refused for now before it is taken, or for its token, which is
    asked for no more, or its answer is lost.
    """

    def __init__(
        self, scenario: Scenario, session: str, *, at: int, how: How, trouble: Trouble
    ) -> None:
        super().__init__(scenario, session)
        self.at = at
        self.how = how
        self.trouble = trouble
        self.steps = 0
        self.name = ""
        self.reopened = False
        self.way: list[Call] = []

    def passed(self, step: str) -> None:
        self.steps += 1
        if self.steps != self.at:
            return
        self.name = step
        for thread in list(self.parsers):
            if self.how == "lose":
                call = Call("stream", self.bodies[0][1].request, stream=True, thread_id=thread)
                self.emit(self.codec.closed(call, CloseReason.LOST, self.now))
        # They are opened again where they are read on.
        self.parsers.clear()
        self.reopened = True
        way, self.way = self.way, []
        if self.how == "lose":
            for call in way:
                self.look_for(call)
        if self.how == "kill":
            self._restart()

    def look_for(self, call: Call) -> None:
        """Look for what came of a call, as after a restart."""
        for command_id in call.command_ids:
            if command_id in self.outbox:
                assert self.codec.recover(command_id, self.outbox[command_id]) is None

    def fail(self, call: Call) -> None:
        """Record that the answer of a call is lost."""
        self.look_for(call)
        lost = Lost(sent=True)
        self.emit(self.codec.failed(call, lost, sent=True, now=self.now), answer=True)

    def _is_opened_by(self, call: Call) -> bool:
        if self.reopened:
            return call.thread_id not in self.parsers
        return super()._is_opened_by(call)

    def loses(self, exchange: Exchange, call: Call) -> bool:
        refused = not 200 <= exchange.status < 300
        if self.codec.native_id is None or call.command_id is None or refused:
            return False
        has_token = b"continuationToken" in (call.request.body or b"")
        if call.name == "message" and (
            self.trouble == "not ready" or (self.trouble == "no token" and has_token)
        ):
            refusal = NOT_READY if self.trouble == "not ready" else NO_TOKEN
            self.emit(self.codec.respond(call, refusal, self.now), answer=True)
            self.passed("answer")
            while not (again := [c for c in self.codec.take_calls() if c.name == "message"]):
                assert self.codec.wake_at is not None
                self.now = max(self.now, self.codec.wake_at)
                self.emit(self.codec.tick(self.now))
                self.passed("tick")
            self.emit([], changes=True)
            self._answered(exchange, again[0])
            return True
        self.way = [call]
        self.passed("sent")
        if not self.way:
            # It was on its way when it happened.
            return True
        self.way = []
        if self.trouble == "lost" and call.name in ("message", "answer"):
            self.fail(call)
            self.passed("answer")
            return True
        return False

    @property
    def posts(self) -> list[Any]:
        """What was sent."""
        calls = [*(call for _, call in self.bodies), *self.own]
        return [(call.name, call.request.path, call.request.body) for call in calls]


def played(
    scenario: Scenario, session: str, at: int, how: How, trouble: Trouble
) -> tuple[Killed, list[Any]]:
    player = Killed(scenario, session, at=at, how=how, trouble=trouble)
    player.play()
    return player, told(player.events)


EACH = 3
"""Every how many frames one is killed: which, depends on the recording. With a trouble nobody is
killed."""

TROUBLES: tuple[Trouble, ...] = ("not ready", "no token", "lost")

PLAYED: list[tuple[str, Trouble]] = [
    *((name, "") for name in SCENARIOS),
    *((name, TROUBLES[number % len(TROUBLES)]) for number, name in enumerate(SCENARIOS)),
]
"""Each recording is played smoothly and with one trouble, each trouble with a third of them."""


@pytest.mark.parametrize(("name", "trouble"), PLAYED)
def test_a_kill_changes_nothing_that_lost_connections_do_not(name: str, trouble: Trouble) -> None:
    scenario = Scenario(name)
    for session in scenario.sessions:
        names: list[str] = []
        whole = Killed(scenario, session, at=0, how="", trouble=trouble)
        whole.passed = names.append  # type: ignore[method-assign, assignment]
        whole.play()
        offset = sum(map(ord, name)) % EACH
        for at, step in enumerate(names, 1):
            if step == "frame" and (trouble or at % EACH != offset):
                continue
            lost, expected = played(scenario, session, at, "lose", trouble)
            killed, found = played(scenario, session, at, "kill", trouble)
            where = f"{session}: killed after step {at}, `{lost.name}`"
            assert killed.name == lost.name, where
            assert found == expected, where
            assert killed.posts == lost.posts, where


def test_the_recordings_have_each_kind_of_step() -> None:
    steps: set[str] = set()
    for name in SCENARIOS[:40]:
        scenario = Scenario(name)
        for session in scenario.sessions:
            player = Killed(scenario, session, at=0, how="", trouble="")
            player.passed = steps.add  # type: ignore[method-assign, assignment]
            player.play()
    assert steps == {"accepted", "sent", "answer", "opened", "frame", "tick"}
