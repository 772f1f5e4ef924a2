"""Plays cassettes through the real upstream client and the real codecs.

A cassette plays an answer whole and at once, so it proves what is asked, with which credential,
from which position, and what the answer is taken for. Timing and cuts are in `test_client`.
"""

from __future__ import annotations

import aiohttp

from adapters.model import events as ev
from tests.record_cassettes import CASSETTES, SCENARIOS
from tests.support.cassettes import played
from tests.support.driver import Driver

__all__ = ["play", "settled", "texts", "types", "without_origin"]


async def play(name: str) -> Driver:
    """Play a scenario from its cassette; every recorded exchange must be asked for."""
    scenario = SCENARIOS[name]
    async with aiohttp.ClientSession() as session:
        driver = scenario.driver(session, scenario.backend.host)
        with played(CASSETTES / f"{name}.yaml", key=scenario.backend.key):
            await scenario.play(driver)
    return driver


def texts(driver: Driver) -> list[str]:
    return [event.text for event in driver.events if isinstance(event, ev.TextCompleted)]


def settled(driver: Driver) -> list[tuple[str, str | None]]:
    """Return what became of each command, and the code of its refusal."""
    return [
        (event.outcome, None if event.error is None else event.error.code)
        for event in driver.events
        if isinstance(event, ev.InputSettled)
    ]


def types(driver: Driver) -> list[str]:
    """Return the types of the events in order, equal neighbours once."""
    found: list[str] = []
    for event in driver.events:
        if not found or found[-1] != event.TYPE:
            found.append(event.TYPE)
    return found


def without_origin(driver: Driver) -> list[ev.Event]:
    return [event.model_copy(update={"native": None}) for event in driver.events]
