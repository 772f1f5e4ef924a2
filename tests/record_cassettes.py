"""Records the cassettes anew: `python -m tests.record_cassettes`; read the diff before you commit.

Each scenario is played by the real upstream client and the real codec against the scripted Engine
on the loopback interface. Its clock stands still and its ids count, so that the same scenario gives
the same cassette. The tests play the same scenarios from the files.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.test_utils import TestServer

from adapters.commands import SendMessage
from adapters.engine.client import EngineClient
from adapters.engine.wire import KEY_HEADER
from adapters.events import Blob, File, Text
from proxy.clock import ManualClock
from proxy.scripted.engine import create_engine_app
from proxy.scripted.faults import Cut, Fault, Faults, Redirect, Status, WrongContentType
from proxy.upstream.client import Upstream
from tests.support.cassettes import tap
from tests.support.driver import Driver

__all__ = ["CASSETTES", "HOST", "KEY", "SCENARIOS", "Scenario", "record"]

CASSETTES = Path(__file__).parent.parent / "fixtures" / "cassettes" / "engine"
HOST = "http://engine.invalid:8000"
KEY = "k-recorder"
START = 1_780_992_900_000
"""The first time of the Engine recordings, in Unix milliseconds."""

PIXEL = b"\x89PNG\r\n\x1a\n"
PIXEL_HASH = hashlib.sha256(PIXEL).hexdigest()

REFUSALS: tuple[Status, ...] = (
    Status(403),
    Status(404),
    Status(409),
    Status(422),
    Status(429, retry_after=7),
    Status(502),
    Status(503),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is said, and how the Engine of the recording is set up."""

    play: Callable[[Driver], Awaitable[None]]
    faults: Mapping[tuple[str, int], Fault] = field(default_factory=dict)
    key: str = KEY

    def driver(self, session: aiohttp.ClientSession, url: str) -> Driver:
        """Return what plays it, against that address."""
        upstream = Upstream(session, url, {KEY_HEADER: self.key})
        return Driver(upstream, EngineClient({"task_id": "task-1"}), start=START)


def message(text: str, *files: File) -> SendMessage:
    return SendMessage(content=(Text(text=text), *files), policy="queue")


def says(text: str, *answers: Mapping[str, Any]) -> Callable[[Driver], Awaitable[None]]:
    async def play(driver: Driver) -> None:
        await driver.send(message(f"script: {text}"), answers=answers)

    return play


async def _two_turns(driver: Driver) -> None:
    await driver.send(message("What is in the folder?"))
    await driver.send(message("script: tool"))


async def _with_a_file(driver: Driver) -> None:
    file = File(media_type="image/png", name="dot.png", ref=Blob(sha256=PIXEL_HASH))
    await driver.send(message("Look:", file), blobs={PIXEL_HASH: PIXEL})


async def _refused(driver: Driver) -> None:
    for number, _ in enumerate(REFUSALS, 1):
        await driver.send(message(f"refused {number}"))


SCENARIOS: dict[str, Scenario] = {
    "create": Scenario(says("text")),
    "turns": Scenario(_two_turns),
    "file": Scenario(_with_a_file),
    "approve": Scenario(says("approve", {"decision": "allow"})),
    "deny": Scenario(says("approve", {"decision": "deny", "reason": "Keep the exports."})),
    "ask": Scenario(says("ask", {"option_ids": ("09:10",)})),
    "askopen": Scenario(says("askopen", {"text": "Grüße, \N{SNOWMAN}"})),
    "fail": Scenario(says("failmid")),
    # The body of `/execute` ends early, and replay brings the rest.
    "replay": Scenario(says("tool"), {("execute", 1): Cut(after_event=6, clean=True)}),
    "replay-twice": Scenario(
        says("reason"),
        {
            ("execute", 1): Cut(after_event=2, clean=True),
            ("replay", 1): Cut(after_event=3, clean=True),
        },
    ),
    # It ends while a person is asked; the answer goes out, the resolution comes by replay.
    "replay-approve": Scenario(
        says("approve", {"decision": "allow"}),
        {("execute", 1): Cut(after_event=9, clean=True)},
    ),
    # Whether the answer arrived is unknown, and looked up: it did not, so it is given again.
    "pending": Scenario(
        says("approve", {"decision": "allow"}, {"decision": "allow"}),
        {("respond", 1): Status(500)},
    ),
    "answer-refused": Scenario(
        says("approve", {"decision": "allow"}, {"decision": "deny"}),
        {("respond", 1): Status(429, retry_after=7)},
    ),
    "wrong-key": Scenario(says("text"), key="k-wrong"),
    "refusals": Scenario(
        _refused, {("execute", number): status for number, status in enumerate(REFUSALS, 1)}
    ),
    "redirect": Scenario(
        says("text"), {("execute", 1): Redirect("http://elsewhere.invalid/execute")}
    ),
    "no-stream": Scenario(says("text"), {("execute", 1): WrongContentType("text/html")}),
}
"""The name of a cassette -> what it holds."""


async def record(name: str, folder: Path) -> None:
    """Play a scenario against a scripted Engine and write its cassette."""
    scenario = SCENARIOS[name]
    app = create_engine_app(
        key=KEY, clock=ManualClock(START), pace=0.0, faults=Faults(scenario.faults)
    )
    async with (
        TestServer(app) as engine,
        tap(str(engine.make_url("")).rstrip("/")) as tapped,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        await scenario.play(scenario.driver(session, tapped.url))
        tapped.write(folder / f"{name}.yaml", host=HOST)


async def _record_all() -> None:
    CASSETTES.mkdir(parents=True, exist_ok=True)
    for old in CASSETTES.glob("*.yaml"):
        old.unlink()
    for name in SCENARIOS:
        await record(name, CASSETTES)
        sys.stdout.write(f"{name}.yaml\n")


if __name__ == "__main__":
    asyncio.run(_record_all())
