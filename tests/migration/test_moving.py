"""A session goes on at another backend, and its frontends notice nothing but who answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adapters import events as ev
from proxy.migration.moving import move
from tests.migration.support import House
from tests.support.dragoman import Start, starting


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start[House]]:
    async with starting(House, tmp_path) as start:
        yield start


async def test_the_next_message_goes_to_the_new_backend_with_what_was_said(
    start: Start[House],
) -> None:
    house = await start()
    client = house.eve_client("old", style="S")
    session = await client.create("My dog is called Rex.")
    first = await session.read_turn()
    assert "My dog is called Rex." in (first.text or "")
    moved = await move(house.sessions, session.session_id, to="engine")
    assert (moved.before, moved.backend, moved.leg, moved.moved) == ("old", "engine", 1, True)
    await session.send("What is my dog called?")
    second = await session.read_turn()
    said = json.loads(house.bodies("engine", "execute")[0])["message"]
    assert "User: My dog is called Rex." in said
    assert "Assistant: You said" in said
    assert said.endswith("What is my dog called?")
    assert "(turn 1)" in (second.text or "")
    assert [one["message"] for one in second.data("message.received")] == ["What is my dog called?"]
    # Once it is there, it is not said again.
    await session.send("And the cat?")
    await session.read_turn()
    said = json.loads(house.bodies("engine", "execute")[1])["message"]
    assert said == "And the cat?"


async def test_a_session_that_moved_goes_on_after_a_restart(start: Start[House]) -> None:
    house = await start("sqlite")
    session = await house.eve_client("old", style="S").create("My dog is called Rex.")
    await session.read_turn()
    await move(house.sessions, session.session_id, to="herm")
    await house.restart()
    await session.send("What is my dog called?")
    turn = await session.read_turn()
    assert "My dog is called Rex." in (turn.text or "")
    log = await house.log(session.session_id)
    said = [one.content for one in log if isinstance(one, ev.MessageReceived)]
    assert said[-1] == (ev.Text(text="What is my dog called?"),)
