"""An eve of a later version is refused in words, before anything is said to it where it says which
it is; nothing waits for what cannot be read."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from adapters.model import events as ev
from proxy.journal.base import Journal
from proxy.scripted.eve_turns import EveVariant
from proxy.scripted.faults import Faults, Status
from tests.support.dragoman import Backend, Dragoman, Start, starts
from tests.support.engine_client import EngineClient
from tests.support.eve_client import EveSession, Refused
from tests.support.herm_client import HermClient
from tests.support.waiting import settled, until

READ = "stream versions 16 to 26 are read"


class Later(Dragoman):
    """A Dragoman over an eve of 0.84; `label` is what its streams say of themselves, and it may not
    say which it is before."""

    def __init__(
        self, journal: str | Journal, *, label: str | None = None, tells: bool = True
    ) -> None:
        faults = Faults({} if tells else {("info", n): Status(404) for n in range(1, 9)})
        variant = EveVariant(facts=True, label=label)
        backend = Backend("eve", {"variant": variant, "faults": faults})
        super().__init__(journal, {"later": backend})

    def count(self, route: str) -> int:
        return len(self.bodies("later", route))


serve = starts(Later)


async def begin(house: Later) -> EveSession:
    return await house.eve_client("later").create("hello")


async def test_nothing_is_said_to_an_eve_that_says_that_it_is_later(serve: Start[Later]) -> None:
    house = await serve()
    session = await begin(house)
    live = await house.live(session.session_id)
    await settled(live)
    with contextlib.suppress(Refused):
        # It is refused at once where the stream was faster than the answer that says it.
        await session.send("more")
        await settled(live)
    refused = [e for e in await house.log(session.session_id) if isinstance(e, ev.InputSettled)]
    assert {e.outcome for e in refused} == {"refused"}
    for one in refused:
        assert "version 27" in (one.reason or "")
        assert READ in (one.reason or "")
    assert house.count("message") == 0
    assert live.state.status == "idle"


@pytest.mark.parametrize("label", [None, "28", "27.1", "26"])
async def test_a_stream_of_a_later_eve_is_a_turn_that_has_failed(
    serve: Start[Later], label: str | None
) -> None:
    house = await serve("sqlite", label=label, tells=False)
    session = await begin(house)
    turn = await session.read_turn()
    assert READ in str(turn.records)
    live = await house.live(session.session_id)
    await until(lambda: live.last_seq > 0 and live.core.codec.streams() == ())
    await settled(live)
    log = await house.log(session.session_id)
    (report,) = [e for e in log if isinstance(e, ev.ErrorReported)]
    assert report.code == "backend_protocol"
    served = "27" if label == "26" else label or "27"
    assert f"version {served}; {READ}" in report.message
    assert live.state.status == "idle"
    # The next one is refused in the same words, at once and after a restart, and the log is read.
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            await session.send("more")
        assert caught.value.status == 502
        assert READ in str(caught.value.body)
        await house.restart()
        session = house.eve_client("later").attach(session.session_id)
    assert house.count("message") <= 1
    assert house.count("stream") == 1
    shown = [record async for record in session.stream(0, follow=False)]
    assert READ in str(shown)


async def test_other_frontends_are_told_too(serve: Start[Later]) -> None:
    house = await serve()
    engine = EngineClient(house.http, house.face("engine", "later"))
    run: Any = await engine.turn("hello", "task-1")
    assert READ in str(run.events)
    herm = HermClient(house.http, house.face("herm", "later"))
    session = (await herm.create("later"))["id"]
    turn: Any = await herm.turn(session, "hello")
    assert READ in str(turn.envelopes)
    assert house.count("message") == 0
