"""Records the cassettes anew: `python -m tests.record_cassettes`; read the diff before you commit.

Each scenario is played by the real upstream client and the real codec against the scripted backend
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
from aiohttp import web
from aiohttp.test_utils import TestServer

from adapters.engine.client import EngineClient
from adapters.engine.wire import KEY_HEADER
from adapters.eve.client import EveClient
from adapters.herm.client import HermClient
from adapters.model.base import ClientCodec
from adapters.model.commands import SendMessage
from adapters.model.events import Blob, File, Text
from proxy.base.clock import ManualClock, SeededIds
from proxy.scripted import eve, eve_turns, herm, herm_turns
from proxy.scripted.engine import create_engine_app
from proxy.scripted.eve_turns import Generation
from proxy.scripted.faults import Cut, Fault, Faults, Redirect, Status, WrongContentType
from proxy.upstream.client import Upstream
from tests.support.cassettes import tap
from tests.support.driver import Driver

__all__ = ["CASSETTES", "SCENARIOS", "Backend", "Scenario", "message", "record"]

CASSETTES = Path(__file__).parent.parent / "fixtures" / "cassettes"
START = 1_780_992_900_000
"""The first time of the Engine recordings, in Unix milliseconds."""

PIXEL = b"\x89PNG\r\n\x1a\n"
PIXEL_HASH = hashlib.sha256(PIXEL).hexdigest()


@dataclass(frozen=True, slots=True)
class Backend:
    """A scripted backend, the header that lets us in, and the codec that drives it."""

    host: str
    header: str
    key: str
    codec: Callable[[], ClientCodec]
    app: Callable[[Faults], web.Application]


def _engine(faults: Faults) -> web.Application:
    clock = ManualClock(START)
    return create_engine_app(key="k-recorder", clock=clock, pace=0.0, faults=faults)


def _herm(faults: Faults) -> web.Application:
    clock = ManualClock(START)
    return herm.create_herm_app(key="k-recorder", clock=clock, pace=0.0, faults=faults)


def _forgetful_herm(faults: Faults) -> web.Application:
    """Build a gateway whose streams start live whatever position is named (section 4.3)."""
    clock, variant = ManualClock(START), herm_turns.HermVariant(resume=False)
    return herm.create_herm_app(
        key="k-recorder", clock=clock, pace=0.0, faults=faults, variant=variant
    )


def _eve(generation: Generation) -> Callable[[Faults], web.Application]:
    return lambda faults: eve.create_eve_app(
        key="k-recorder",
        variant=eve_turns.EveVariant(generation=generation),
        clock=ManualClock(START),
        ids=SeededIds(),
        pace=0.0,
        faults=faults,
    )


ENGINE = Backend(
    "http://engine.invalid:8000",
    KEY_HEADER,
    "k-recorder",
    lambda: EngineClient({"task_id": "task-1"}),
    _engine,
)
HERM = Backend(
    "http://herm.invalid:8000",
    "Authorization",
    "Bearer k-recorder",
    lambda: HermClient({"agent": "agent_K4", "user_id": "user_7"}),
    _herm,
)
FORGETFUL_HERM = Backend(HERM.host, HERM.header, HERM.key, HERM.codec, _forgetful_herm)
EVE_T, EVE_S2 = (
    Backend(
        "http://eve.invalid:3000",
        "Authorization",
        "Bearer k-recorder",
        lambda: EveClient({}),
        _eve(generation),
    )
    for generation in ("T", "S2")
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is said to which backend, and what goes wrong there."""

    backend: Backend
    play: Callable[[Driver], Awaitable[None]]
    faults: Mapping[tuple[str, int], Fault] = field(default_factory=dict)
    key: str | None = None
    """Another value than the right one for the header that lets us in."""

    def driver(self, session: aiohttp.ClientSession, url: str) -> Driver:
        """Return what plays it, against that address."""
        upstream = Upstream(session, url, {self.backend.header: self.key or self.backend.key})
        return Driver(upstream, self.backend.codec(), start=START)


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


def _sends(count: int) -> Callable[[Driver], Awaitable[None]]:
    """Say so many things, for a backend that refuses them."""

    async def play(driver: Driver) -> None:
        for number in range(1, count + 1):
            await driver.send(message(f"refused {number}"))

    return play


def _then_refused(count: int) -> Callable[[Driver], Awaitable[None]]:
    """Have one turn, then say so many things that are refused."""

    async def play(driver: Driver) -> None:
        await driver.send(message("script: text"))
        await _sends(count)(driver)

    return play


def _streams(*frames: int) -> dict[tuple[str, int], Fault]:
    """End the streams after so many frames each: a cassette holds no stream without an end."""
    return {
        ("stream", number): Cut(after_event=count, clean=True)
        for number, count in enumerate(frames, 1)
    }


def _statuses(
    route: str, statuses: tuple[Status, ...], *, first: int = 1
) -> dict[tuple[str, int], Fault]:
    return {(route, number): status for number, status in enumerate(statuses, first)}


_BUSY = Status(429, retry_after=7)
_ELSEWHERE = Redirect("http://elsewhere.invalid/execute")
_ENGINE_REFUSALS = (*map(Status, (403, 404, 409, 422)), _BUSY, Status(502), Status(503))
_HERM_CREATE_REFUSALS = (*map(Status, (400, 402, 403, 404, 409, 422)), _BUSY, Status(500))
_HERM_REFUSALS = tuple(map(Status, (400, 403, 404)))
_EVE_CREATE_REFUSALS = (*map(Status, (401, 403, 404, 422)), _BUSY, Status(500))
_EVE_REFUSALS = (*map(Status, (400, 403, 404, 409)), _BUSY)

_ENGINE_SCENARIOS = {
    "create": Scenario(ENGINE, says("text")),
    "turns": Scenario(ENGINE, _two_turns),
    "file": Scenario(ENGINE, _with_a_file),
    "approve": Scenario(ENGINE, says("approve", {"decision": "allow"})),
    "deny": Scenario(ENGINE, says("approve", {"decision": "deny", "reason": "Keep the exports."})),
    "ask": Scenario(ENGINE, says("ask", {"option_ids": ("09:10",)})),
    "askopen": Scenario(ENGINE, says("askopen", {"text": "Grüße, \N{SNOWMAN}"})),
    "fail": Scenario(ENGINE, says("failmid")),
    # The body of `/execute` ends early, and replay brings the rest.
    "replay": Scenario(ENGINE, says("tool"), {("execute", 1): Cut(after_event=6, clean=True)}),
    "replay-twice": Scenario(
        ENGINE,
        says("reason"),
        {
            ("execute", 1): Cut(after_event=2, clean=True),
            ("replay", 1): Cut(after_event=3, clean=True),
        },
    ),
    # It ends while a person is asked; the answer goes out, the resolution comes by replay.
    "replay-approve": Scenario(
        ENGINE,
        says("approve", {"decision": "allow"}),
        {("execute", 1): Cut(after_event=9, clean=True)},
    ),
    # Whether the answer arrived is unknown, and looked up: it did not, so it is given again.
    "pending": Scenario(
        ENGINE,
        says("approve", {"decision": "allow"}, {"decision": "allow"}),
        {("respond", 1): Status(500)},
    ),
    "answer-refused": Scenario(
        ENGINE,
        says("approve", {"decision": "allow"}, {"decision": "deny"}),
        {("respond", 1): _BUSY},
    ),
    "wrong-key": Scenario(ENGINE, says("text"), key="k-wrong"),
    "refusals": Scenario(
        ENGINE, _sends(len(_ENGINE_REFUSALS)), _statuses("execute", _ENGINE_REFUSALS)
    ),
    "redirect": Scenario(ENGINE, says("text"), {("execute", 1): _ELSEWHERE}),
    "no-stream": Scenario(ENGINE, says("text"), {("execute", 1): WrongContentType("text/html")}),
}

_HERM_SCENARIOS = {
    "create": Scenario(HERM, says("text"), _streams(8)),
    # The second stream goes on behind the first one, and the list fills what may be missing.
    "turns": Scenario(HERM, _two_turns, _streams(7, 13)),
    "approve": Scenario(HERM, says("approve", {"decision": "allow"}), _streams(12)),
    "deny": Scenario(HERM, says("approve", {"decision": "deny"}), _streams(12)),
    "ask": Scenario(HERM, says("ask", {"option_ids": ("09:10",)}), _streams(11)),
    "askopen": Scenario(HERM, says("askopen", {"text": "Grüße, \N{SNOWMAN}"}), _streams(11)),
    "fail": Scenario(HERM, says("failmid"), _streams(6)),
    "resume": Scenario(HERM, says("tool"), _streams(6, 8)),
    # The gateway takes no position, so all the rest is in the list.
    "list": Scenario(FORGETFUL_HERM, says("tool"), _streams(6, 0)),
    "answer-refused": Scenario(
        HERM,
        says("approve", {"decision": "allow"}, {"decision": "deny"}),
        {**_streams(12), ("post", 2): _BUSY},
    ),
    "wrong-key": Scenario(HERM, says("text"), key="Bearer k-wrong"),
    "create-refusals": Scenario(
        HERM, _sends(len(_HERM_CREATE_REFUSALS)), _statuses("create", _HERM_CREATE_REFUSALS)
    ),
    "refusals": Scenario(
        HERM,
        _then_refused(len(_HERM_REFUSALS)),
        _streams(8) | _statuses("post", _HERM_REFUSALS, first=2),
    ),
    "redirect": Scenario(HERM, says("text"), {("create", 1): _ELSEWHERE}),
}


def _eve_scenarios(
    backend: Backend, *, posts: int, pause: int, **frames: int
) -> dict[str, Scenario]:
    """Return the scenarios of a generation.

    Args:
        backend: the eve of this generation.
        posts: how often the session was posted to when the first turn has begun.
        pause: the records until a turn waits for an approval.
        frames: the records of a turn by its script.
    """
    approved = _streams(frames["approve"])
    return {
        "create": Scenario(backend, says("text"), _streams(frames["text"])),
        "turns": Scenario(backend, _two_turns, _streams(11, frames["tool"] - 1)),
        "file": Scenario(backend, _with_a_file, _streams(12)),
        "approve": Scenario(backend, says("approve", {"decision": "allow"}), approved),
        "deny": Scenario(
            backend,
            says("approve", {"decision": "deny", "reason": "Keep the exports."}),
            _streams(frames["deny"]),
        ),
        "ask": Scenario(backend, says("ask", {"option_ids": ("09:10",)}), _streams(frames["ask"])),
        "askopen": Scenario(
            backend,
            says("askopen", {"text": "Grüße, \N{SNOWMAN}"}),
            _streams(frames["askopen"]),
        ),
        "fail": Scenario(backend, says("failmid"), _streams(9)),
        "resume": Scenario(backend, says("tool"), _streams(6, frames["tool"] - 6)),
        # It ends while a person is asked; what comes of the answer is on the next stream.
        "resume-approve": Scenario(
            backend,
            says("approve", {"decision": "allow"}),
            _streams(pause, frames["approve"] - pause),
        ),
        "answer-refused": Scenario(
            backend,
            says("approve", {"decision": "allow"}, {"decision": "allow"}),
            {**approved, ("message", posts + 1): _BUSY},
        ),
        "wrong-key": Scenario(backend, says("text"), key="Bearer k-wrong"),
        "create-refusals": Scenario(
            backend, _sends(len(_EVE_CREATE_REFUSALS)), _statuses("create", _EVE_CREATE_REFUSALS)
        ),
        "refusals": Scenario(
            backend,
            _then_refused(len(_EVE_REFUSALS)),
            _streams(frames["text"]) | _statuses("message", _EVE_REFUSALS, first=posts + 1),
        ),
        "redirect": Scenario(backend, says("text"), {("create", 1): _ELSEWHERE}),
    }


_OF_BACKENDS = {
    "engine": _ENGINE_SCENARIOS,
    "herm": _HERM_SCENARIOS,
    "eve-0.30.8": _eve_scenarios(
        EVE_T, posts=0, pause=11, text=12, tool=20, approve=20, deny=20, ask=18, askopen=18
    ),
    "eve-0.80.1": _eve_scenarios(
        EVE_S2, posts=1, pause=14, text=12, tool=23, approve=24, deny=25, ask=32, askopen=25
    ),
}

SCENARIOS: dict[str, Scenario] = {
    f"{backend}/{name}": scenario
    for backend, scenarios in _OF_BACKENDS.items()
    for name, scenario in scenarios.items()
}
"""The name of a cassette, with its folder -> what it holds."""


async def record(name: str, folder: Path) -> None:
    """Play a scenario against its scripted backend and write its cassette below a folder."""
    scenario = SCENARIOS[name]
    backend = scenario.backend
    async with (
        TestServer(backend.app(Faults(scenario.faults))) as server,
        tap(str(server.make_url("")).rstrip("/")) as tapped,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        await scenario.play(scenario.driver(session, tapped.url))
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        tapped.write(path, host=backend.host, key=backend.key)


async def _record_all() -> None:
    for old in CASSETTES.glob("*/*.yaml"):
        old.unlink()
    for name in SCENARIOS:
        await record(name, CASSETTES)
        sys.stdout.write(f"{name}.yaml\n")


if __name__ == "__main__":
    asyncio.run(_record_all())
