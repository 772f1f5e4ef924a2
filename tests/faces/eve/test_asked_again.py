"""An answer that the backend does not take: the eve face asks once more, in every form."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.eve.server import EveEncoder
from adapters.model import events as ev
from adapters.model.base import EncoderContext
from adapters.model.events import MAIN, Entry
from adapters.wire.jsonvalue import parse_json
from proxy.scripted.faults import Faults, Status
from tests.support.dragoman import Backend, Dragoman
from tests.support.eve_client import EveClient, EveSession, Form
from tests.support.waiting import settled, stored, until

FORMS: tuple[Form, ...] = ("all", "tokens", "newest")


async def refused(house: Dragoman, form: Form, backend: str) -> tuple[EveSession, dict[str, Any]]:
    """A session whose first answer the backend has refused, and the request."""
    client = EveClient(house.http, house.face("eve", backend), form=form)
    session = await client.create("script: approve refused")
    (request,) = (await session.read_turn()).requests
    await session.respond(request["requestId"], request["options"][0]["id"])
    return session, request


def house_of(form: Form, **faults: Any) -> Dragoman:
    backends = {
        "eve": Backend("eve", faults),
        "herm": Backend("herm"),
        "engine": Backend("engine"),
    }
    return Dragoman("memory:", backends, settings={"eve": {"form": form}})


@pytest.mark.parametrize("backend", ["eve", "herm", "engine"])
@pytest.mark.parametrize("form", FORMS)
async def test_an_answer_that_the_backend_refuses_is_asked_for_again(
    form: Form, backend: str
) -> None:
    async with house_of(form) as house:
        session, request = await refused(house, form, backend)
        turn = await session.read_turn()
        (again,) = turn.requests
        assert again == {**request, "requestId": f"{request['requestId']}~2"}
        over = [one for data in turn.data("input.resolved") for one in data["resolutions"]]
        invalid = {"kind": request["kind"], "outcome": "invalid"}
        expected = [] if form == "tokens" else [{"requestId": request["requestId"], **invalid}]
        assert over == expected
        await session.respond(again["requestId"], again["options"][0]["id"])
        turn = await session.read_turn()
        assert turn.text is not None
        assert "Done, 4.1 GB freed." in turn.text
        named = [one["requestId"] for d in turn.data("input.resolved") for one in d["resolutions"]]
        assert set(named) == (set() if form == "tokens" else {again["requestId"]})
        await settled(await house.live(session.session_id))
        if form != "tokens":
            whole = session.client.attach(session.session_id).stream(0, follow=False)
            assert [record async for record in whole] == session.log


async def test_the_first_name_of_a_request_answers_it_as_well() -> None:
    async with house_of("all") as house:
        session, request = await refused(house, "all", "eve")
        await session.read_turn()
        await session.respond(request["requestId"], "approve")
        turn = await session.read_turn()
        assert turn.text is not None
        assert "Done, 4.1 GB freed." in turn.text


async def test_a_refusal_that_comes_twice_is_asked_for_a_third_time() -> None:
    async with house_of("all", faults=Faults({("message", 3): Status(409)})) as house:
        session, request = await refused(house, "all", "eve")
        (second,) = (await session.read_turn()).requests
        await session.respond(second["requestId"], "approve")
        (third,) = (await session.read_turn()).requests
        assert third["requestId"] == f"{request['requestId']}~3"
        live = await house.live(session.session_id)
        await until(lambda: stored(live) and not live.state.inputs)
        await session.respond(third["requestId"], "approve")
        assert (await session.read_turn()).requests == []


def entries() -> list[Entry]:
    """A log in which a request is answered in vain."""
    events: list[ev.Event] = [
        ev.SessionStarted(thread_id=MAIN),
        ev.TurnStarted(thread_id=MAIN, turn_id="t", cause="message"),
        ev.InteractionRequested(
            thread_id=MAIN, turn_id="t", request_id="r", kind="question", prompt="Which?"
        ),
        ev.TurnPaused(thread_id=MAIN, turn_id="t", on="input", request_ids=("r",)),
        ev.InteractionAnswered(thread_id=MAIN, request_id="r", command_id="c", by="ann"),
        ev.InteractionAnswered(
            thread_id=MAIN, request_id="r", command_id="c", by="backend", state="released"
        ),
        ev.TurnPaused(thread_id=MAIN, turn_id="t", on="input", request_ids=("r",)),
    ]
    return [Entry(n, 1, "s", event) for n, event in enumerate(events, start=1)]


def test_what_is_asked_again_inside_of_a_turn_is_of_that_turn() -> None:
    encoder = EveEncoder(EncoderContext("s", b"secret", settings={"form": "all"}))
    asked_twice = entries()
    resumed = ev.TurnResumed(thread_id=MAIN, turn_id="t")
    for entry in (*asked_twice[:5], Entry(6, 1, "s", resumed)):
        encoder.feed(entry)
    frames = encoder.feed(Entry(7, 1, "s", asked_twice[5].event))
    values: list[Any] = [parse_json(frame.data) for frame in frames]
    assert [value["type"] for value in values] == ["input.resolved", "input.requested"]
    assert {value["data"]["turnId"] for value in values} == {"turn_1"}
