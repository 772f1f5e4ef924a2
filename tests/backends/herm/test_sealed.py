"""A Herm that says again what it was given in confidence: no sink of ours has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.model.base import Call
from adapters.wire.errors import NotSupported
from proxy.base.sealed import any_held
from proxy.scripted.faults import Faults, Status
from proxy.scripted.herm_turns import HermVariant
from proxy.session import Session
from tests.backends.herm.conftest import Serve
from tests.support.herm_client import Expect, Refused
from tests.support.houses import HermAndEngine
from tests.support.journals import on_disk
from tests.support.waiting import asks, settled, stored, until

SECRETS = ["correct-horse-battery", 'pa"ss\\wörd/ 1%', "line one of it\nline two of it\n"]
UNKIND = [
    HermVariant(tells_sealed=True, echo_inputs=True, strict=False),
    HermVariant(
        tells_sealed=True, echo_inputs=True, post_answer="empty", lines="data", strict=False
    ),
]


def spelled(secret: str) -> list[str]:
    """How a secret may stand in a text."""
    return [secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]]


async def told(house: HermAndEngine, session: str) -> str:
    """Everything that anybody can see of a session, and that is stored of it."""
    live = await house.live(session)
    journal, key = house.sessions.journal, live.row.key
    frames = await journal.frames(key, 0)
    assert frames
    seen = [str([frame.decode() for _, frame in frames]), str(await journal.legs(key))]
    seen += [event.model_dump_json() for event in await house.log(session)]
    seen.append(json.dumps(await house.client().list(session)))
    seen.append(json.dumps(await house.client().list(session), ensure_ascii=False))
    url = house.face("eve", "herm") + f"/eve/v1/session/{session}/stream?follow=0"
    async with house.http.get(url) as response:
        seen.append(await response.text())
    url = house.face("engine", "herm") + f"/execute/replay?after=0&task_id={session}"
    async with house.http.get(url) as response:
        seen.append(await response.text())
    return "".join(seen)


@pytest.mark.parametrize("herm", UNKIND)
@pytest.mark.parametrize("kind", ["secret", "sudo"])
@pytest.mark.parametrize("secret", SECRETS)
async def test_what_a_backend_says_again_of_a_sealed_value_is_nowhere(
    serve: Serve,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    herm: HermVariant,
    kind: str,
    secret: str,
) -> None:
    house = await serve("sqlite", herm={"variant": herm})
    client = house.client(expect=Expect(known_types=False))
    session = (await client.create())["id"]
    member = "value" if kind == "secret" else "password"
    turn = await client.turn(
        session, f"script: {kind}", [{"type": f"user.{kind}_result", member: secret}]
    )
    posted = [json.loads(body) for body in house.posts()]
    assert secret in [event.get(member) for body in posted for event in body["events"]]
    assert "Your token is [redacted]" in turn.text
    assert ", right? The " in turn.text
    seen = await told(house, session) + caplog.text + repr(turn)
    assert "[redacted]" in seen
    await house.stop()
    files = on_disk(tmp_path).decode("latin-1")
    assert session in files
    for spelling in spelled(secret):
        assert spelling not in seen
        assert spelling.encode().decode("latin-1") not in files
    # What the Herm said besides is whole.
    assert "HOME=/root" in seen


async def test_a_value_is_held_until_its_turn_is_over_and_no_longer(
    serve: Serve,
) -> None:
    house = await serve(herm={"variant": UNKIND[0]})
    client = house.client(expect=Expect(known_types=False))
    session = (await client.create())["id"]
    await client.say(session, "script: secret")
    live = await house.live(session)
    await until(lambda: asks(live))
    holds = [live._log.held.active]
    request = next(iter(live.state.interactions))
    answer = {"type": "user.secret_result", "request_id": request, "value": "correct-horse"}
    await client.post(session, answer)
    holds.append(live._log.held.active)
    await settled(live)
    assert [*holds, live._log.held.active] == [False, True, False]


async def test_a_session_that_is_put_away_holds_no_value(serve: Serve) -> None:
    house = await serve(herm={"variant": UNKIND[0]})
    client = house.client(expect=Expect(known_types=False))
    session = (await client.create())["id"]
    await client.say(session, "script: secret")
    live = await house.live(session)
    await until(lambda: asks(live))
    request = next(iter(live.state.interactions))
    answer = {"type": "user.secret_result", "request_id": request, "value": "correct-horse"}
    await client.post(session, answer)
    assert any_held()
    live.close()
    assert not any_held()


async def test_a_refusal_that_quotes_a_sealed_value_is_told_without_it(
    serve: Serve,
) -> None:
    said = {"error": {"code": "no", "message": "`correct-horse` is wrong"}}
    faults = Faults({("post", 2): Status(422, body=json.dumps(said).encode())})
    house = await serve(herm={"faults": faults})
    client = house.client()
    session = (await client.create())["id"]
    await client.say(session, "script: sudo")
    live = await house.live(session)
    await until(lambda: asks(live))
    request = next(iter(live.state.interactions))
    answer = {"type": "user.sudo_result", "request_id": request, "password": "correct-horse"}
    await client.post(session, answer)
    await until(lambda: _idle(live))
    log = repr(await house.log(session))
    assert "correct-horse" not in log
    assert "`[redacted]` is wrong" in log


async def test_the_echo_of_a_value_that_went_to_the_backend_directly_is_not_kept(
    serve: Serve,
) -> None:
    house = await serve("sqlite", herm={"variant": HermVariant(echo_inputs=True, strict=False)})
    client = house.client(expect=Expect(known_types=False))
    session = (await client.create())["id"]
    await client.say(session, "script: secret")
    live = await house.live(session)
    await until(lambda: asks(live))
    there = live.core.codec.native_id
    assert there is not None
    (request,) = house.herm.talks[there].pending
    answer = {"type": "user.secret_result", "request_id": request, "value": "correct-horse"}
    await house.direct().post(there, answer)
    await settled(live)
    journal, key = house.sessions.journal, live.row.key
    frames = [frame for _, frame in await journal.frames(key, 0)]
    assert frames.count(b"[redacted]") == 1
    legs = await journal.legs(key)
    assert "correct-horse" not in repr(frames) + repr(legs) + repr(await house.log(session))


async def test_a_sealed_answer_that_cannot_be_carried_is_forgotten_and_may_be_given_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]
    await client.say(session, "script: sudo")
    live = await house.live(session)
    await until(lambda: asks(live))
    request = next(iter(live.state.interactions))
    answer = {"type": "user.sudo_result", "request_id": request, "password": "correct-horse"}

    def refuse(*_: object) -> Call:
        raise NotSupported("not now")

    with monkeypatch.context() as patched:
        patched.setattr(live.core.codec, "submit", refuse)
        await client.post(session, answer)
        await until(lambda: _idle(live))
    await client.post(session, answer)
    await settled(live)
    assert not live._log.held.active
    assert live.state.resolved[request] == "answered"


async def test_a_value_with_too_much_to_look_for_is_refused_and_its_request_stays_open(
    serve: Serve,
) -> None:
    house = await serve()
    client = house.client()
    session = (await client.create())["id"]
    await client.say(session, "script: sudo")
    live = await house.live(session)
    await until(lambda: asks(live))
    request = next(iter(live.state.interactions))
    answer = {"type": "user.sudo_result", "request_id": request}
    many = "\n".join(["/" * 40] * 150 + [f"{n:09}" for n in range(200)])
    with pytest.raises(Refused, match="24576 bytes") as caught:
        await client.post(session, {**answer, "password": many})
    assert caught.value.status == 413
    assert not live._log.held.active
    await client.post(session, {**answer, "password": "correct-horse"})
    await settled(live)
    assert live.state.resolved[request] == "answered"


def _idle(live: Session) -> bool:
    return stored(live) and not live._outbox.claims and not live.state.inputs
