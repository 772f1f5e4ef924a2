"""Unmodified eve clients of every generation on a Herm: whose boundary ends whose read."""

from __future__ import annotations

import asyncio

import pytest

from tests.backends.herm.conftest import Serve
from tests.support.eve_client import EveSession, Form, Style
from tests.support.houses import HermAndEngine
from tests.support.waiting import SOON_S, until

STYLES: tuple[Style, ...] = ("T", "S1", "S")


async def asked(house: HermAndEngine, style: Style) -> EveSession:
    """A session that waits for an approval, read up to there."""
    session = await house.eve(style=style).create("script: approve")
    assert (await session.read_turn()).requests
    return session


async def answered(session: EveSession, words: str) -> None:
    """Say something, and read it answered by the first read that is made for it."""
    accepted = await session.send(words)
    async with asyncio.timeout(SOON_S):
        turn = await session.read_turn(accepted)
    assert f"“{words}”" in (turn.text or ""), turn.types


@pytest.mark.parametrize("style", STYLES)
async def test_the_first_message_after_a_cancelled_approval_is_answered(
    serve: Serve, style: Style
) -> None:
    house = await serve()
    session = await asked(house, style)
    live = await house.live(session.session_id)
    assert await session.cancel() == "accepted"
    await until(lambda: live.idle)
    await answered(session, "hello")
    await answered(session, "hello again")


@pytest.mark.parametrize("style", STYLES)
async def test_a_message_right_after_a_cancel_is_answered_and_not_told_to_wait(
    serve: Serve, style: Style
) -> None:
    house = await serve()
    session = await asked(house, style)
    assert await session.cancel() == "accepted"
    await answered(session, "hello")
    await answered(session, "hello again")


@pytest.mark.parametrize("style", ["S1", "S"])
async def test_a_message_that_withdraws_an_approval_is_answered(serve: Serve, style: Style) -> None:
    # T lets it stand (section 8.2), and is told so: an empty turn.
    house = await serve()
    session = await asked(house, style)
    await answered(session, "hello")
    await answered(session, "hello again")


@pytest.mark.parametrize("form", ["all", "tokens", "newest"])
async def test_an_eve_client_talks_to_a_herm_backend(serve: Serve, form: Form) -> None:
    house = await serve(settings={"eve": {"form": form}})
    session = await house.eve(form=form).create("script: approve")
    turn = await session.read_turn()
    (request,) = turn.requests
    assert request["action"]["input"]["command"] == "rm -rf /srv/exports/2024"
    await session.respond(request["requestId"], "allow")
    turn = await session.read_turn()
    assert turn.text is not None
    assert "4.1 GB freed. (turn 1)" in turn.text
    accepted = await session.send("script: ask")
    (request,) = (await session.read_turn(accepted)).requests
    assert [option["label"] for option in request["options"]] == ["07:40", "09:10"]
    await session.respond(request["requestId"], "09:10")
    turn = await session.read_turn()
    assert turn.text is not None
    assert "Holding a seat on the 09:10." in turn.text
