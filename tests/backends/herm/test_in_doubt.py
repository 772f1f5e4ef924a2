"""Messages to a Herm whose fate is open for a while: each is done once, in order, or refused."""

from __future__ import annotations

import asyncio
from typing import Any

from adapters.model import commands as cmd
from adapters.model import events as ev
from proxy.scripted.faults import Faults, Silence, Status
from tests.backends.herm.conftest import Serve
from tests.support.houses import HermAndEngine
from tests.support.patience import shorten
from tests.support.waiting import SOON_S, asks, stored, until


def message(words: str, policy: Any) -> cmd.SendMessage:
    return cmd.SendMessage(content=(ev.Text(text=words),), policy=policy)


def said(house: HermAndEngine) -> list[str]:
    """What was said at the backend, in order."""
    return [
        block["text"]
        for talk in house.herm.talks.values()
        for entry in talk.entries
        if entry.envelope["type"] == "user.message"
        for block in content_of(entry.envelope)
    ]


def content_of(envelope: Any) -> list[dict[str, str]]:
    content: list[dict[str, str]] = envelope["payload"]["content"]
    return content


async def stored_state(house: HermAndEngine, session: str) -> bytes:
    """The state of the client codec that the journal has."""
    journal = house.sessions.journal
    (leg,) = await journal.legs((await journal.session(session)).key)
    return leg.state or b""


async def settled(house: HermAndEngine, session: str) -> list[str]:
    return [e.outcome for e in await house.log(session) if isinstance(e, ev.InputSettled)]


async def test_messages_that_withdraw_a_request_follow_one_another(
    serve: Serve,
) -> None:
    house = await serve()
    session = (await house.client().create())["id"]
    live = await house.live(session)
    await live.submit([message("script: approve", "queue")], by="ann", face="eve")
    await until(lambda: asks(live))
    for words in ("One", "Two", "Three"):
        await live.submit([message(words, "withdraw")], by="ann", face="eve")
    await until(lambda: live.idle)
    assert said(house) == ["script: approve", "One", "Two", "Three"]
    received = [e for e in await house.log(session) if isinstance(e, ev.MessageReceived)]
    assert [ev.text_of(e.content) for e in received] == said(house)
    assert await settled(house, session) == ["taken"] * 4


async def test_a_message_waits_until_the_one_before_is_found_or_refused(
    serve: Serve, monkeypatch: Any
) -> None:
    shorten(monkeypatch, "answer_seconds")
    faults = Faults({("post", 2): Silence(done=False), ("post", 4): Silence(done=True)})
    house = await serve(herm={"faults": faults}, speed=20.0)
    session = (await house.client().create())["id"]
    live = await house.live(session)
    for words in ("One", "Two", "Three", "Four", "Five"):
        await live.submit([message(words, "queue")], by="ann", face="eve")
    await until(lambda: live.idle)
    assert said(house) == ["One", "Three", "Four", "Five"]
    assert await settled(house, session) == ["taken", "refused", "taken", "taken", "taken"]
    assert len(house.posts()) == 5


async def test_what_waits_only_behind_a_message_goes_when_that_is_withdrawn(
    serve: Serve, monkeypatch: Any
) -> None:
    shorten(monkeypatch, "answer_seconds")
    house = await serve(herm={"faults": Faults({("post", 2): Silence(done=False)})}, speed=20.0)
    session = (await house.client().create())["id"]
    live = await house.live(session)
    await live.submit([message("script: approve", "queue")], by="ann", face="eve")
    await until(lambda: asks(live))
    # The first never arrives; as long as that is open, the others wait behind it.
    ids = [
        *await live.submit([message("One", "withdraw")], by="ann", face="eve"),
        *await live.submit([message("Two", "queue")], by="ann", face="eve"),
        *await live.submit([message("Three", "withdraw")], by="ann", face="eve"),
    ]
    await until(lambda: stored(live) and ids[0] not in live.state.inputs)
    assert [row.command_id for row in live.queued()] == ids[1:]
    await live.withdraw(ids[1], by="ann")
    await until(lambda: live.idle)
    assert said(house) == ["script: approve", "Three"]


async def test_a_message_that_is_refused_for_now_waits_over_a_crash(
    serve: Serve,
) -> None:
    faults = Faults({("post", 1): Status(429, retry_after=20)})
    house = await serve("sqlite", herm={"faults": faults}, speed=20.0)
    session = (await house.client().create())["id"]
    live = await house.live(session)
    await live.submit([message("hello", "queue")], by="ann", face="eve")
    await until(lambda: live.core.codec.wake_at is not None)
    due = live.core.codec.wake_at
    # No event tells of it, and it is stored all the same.
    async with asyncio.timeout(SOON_S):
        while b'"waits":true' not in await stored_state(house, session):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.002)
    await house.restart()
    live = await house.live(session)
    assert live.core.codec.wake_at == due
    await until(lambda: live.idle)
    assert len(house.posts()) == 2
    assert await settled(house, session) == ["taken"]
    # Nobody doubted that it had not arrived.
    assert not [e for e in await house.log(session) if isinstance(e, ev.ErrorReported)]
