"""Recorded conversations as logs, and a replay that serves and drives in one process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from adapters.captures import (
    Capture,
    CapturedRequest,
    CapturedResponse,
    CaptureHead,
    ExchangeEnd,
    Record,
    body_of,
    format_record,
    read_capture,
)
from adapters.model.events import Entry
from adapters.offline.captured_log import log_of
from adapters.offline.replay import ReplayScript, script_of
from adapters.offline.translate import TranslateOptions, make_source
from proxy.base.tasks import Tasks
from proxy.config.settings import BackendSettings, JournalSettings, Settings
from proxy.migration.scripted_person import ScriptedRun
from proxy.tools.replay.driving import drive
from proxy.tools.replay.serving import ReplayPlan, serve_replay
from tests.support.dragoman import KNOWN
from tests.support.waiting import SOON_S

WIRE = Path("fixtures/wire")


def eve_scenes() -> Iterator[Path]:
    """The recorded eve conversations that plain requests drove."""
    for generation in ("eve-0.80.1", "eve-0.30.8"):
        scenes = sorted((WIRE / "eve" / generation / "server").glob("*.json"))
        # It has what the server sent to a callback too.
        yield from (one for one in scenes if one.stem != "remote-caller-callback")


def capture_lines(scene: Path) -> list[bytes]:
    """A recorded eve conversation as the lines of a capture."""
    exchanges = json.loads(scene.read_bytes())["exchanges"]
    records: list[Any] = []
    begin = min(_ms(one["startedAt"]) for one in exchanges)
    sessions = [_session_of(one) for one in exchanges]
    session = next((one for one in sessions if one), None)
    for number, one in enumerate(exchanges, 1):
        records += _records(scene, number, one)
    head = CaptureHead(made_by="tests", at=begin, dialect="eve", session=session)
    records.sort(key=lambda record: record.at)
    return [format_record(record) for record in (head, *records)]


def _ms(at: str) -> float:
    return datetime.fromisoformat(at).timestamp() * 1000


def _session_of(exchange: dict[str, Any]) -> str | None:
    parts = exchange["request"]["path"].split("?")[0].split("/")
    return parts[4] if len(parts) > 4 else None


def _records(scene: Path, number: int, one: dict[str, Any]) -> Iterator[Record]:
    at = _ms(one["startedAt"])
    asked, said = one["request"], one["response"]
    headers = _pairs(asked.get("headers"))
    yield CapturedRequest(
        exchange=number,
        side="backend",
        at=at,
        method=asked["method"],
        target=asked["path"],
        headers=headers,
    )
    if "body" in asked:
        yield body_of(number, "request", at + 0.1, _bytes(asked["body"]))
    headers = _pairs(said["headers"])
    yield CapturedResponse(exchange=number, at=at + 0.2, status=said["status"], headers=headers)
    end = at + 0.4
    if "bodyFile" in said:
        data = (scene.parent / said["bodyFile"]).read_bytes()
        place = 0
        # The counts are those before paths were replaced in the body.
        for after, size in said["chunks"]:
            piece, place = data[place : place + size], place + size
            end = max(end, at + after)
            if piece:
                yield body_of(number, "response", end, piece)
        if data[place:]:
            yield body_of(number, "response", end, data[place:])
    else:
        yield body_of(number, "response", at + 0.3, _bytes(said["body"]))
    yield ExchangeEnd(exchange=number, at=end + 0.01, how="ended")


def _pairs(headers: Any) -> tuple[tuple[str, str], ...]:
    given = headers.items() if isinstance(headers, dict) else headers or ()
    return tuple((name, str(value)) for name, value in given)


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def capture_of(scene: Path) -> Capture:
    """A recorded eve conversation as a capture."""
    return read_capture(capture_lines(scene), scene.stem)


def eve_log(scene: Path) -> list[Entry]:
    """A recorded eve conversation as its log."""
    return log_of(capture_of(scene)).log


class House:
    """A replay that is served, and what drives it."""

    def __init__(self, url: str, control: str) -> None:
        self.url = url
        self.control = control

    async def drive(
        self,
        script: ReplayScript,
        dialect: str,
        face: str,
        *,
        seconds: float = SOON_S,
        sealed: Sequence[str] = (),
    ) -> ScriptedRun:
        """Drive it through a script."""
        backend = BackendSettings.model_validate(
            {"name": "driven", "dialect": dialect, "url": self.url, **KNOWN[dialect].needed}
        )
        settings = Settings(journal=JournalSettings(url="memory:"), backends=(backend,))
        return await drive(
            script,
            settings,
            face,
            seconds=seconds,
            sealed=sealed,
            tell=lambda _: None,
            stop=asyncio.Event(),
        )


@contextlib.asynccontextmanager
async def replayed(
    log: list[Entry],
    dialect: str,
    face: str,
    *,
    speed: float = math.inf,
    faults: int | None = None,
) -> AsyncIterator[House]:
    """Serve a log as a backend of the dialect `face`."""
    stop, ready = asyncio.Event(), asyncio.Event()
    found: list[str] = []

    def heard(*urls: str) -> None:
        found.extend(urls)
        ready.set()

    tasks = Tasks("replay")
    replay = ReplayPlan(script_of(log), dialect, speed)
    serving = tasks.start(
        serve_replay(replay, face, port=0, faults=faults, ready=heard, stop=stop), "serve"
    )
    waiting = tasks.start(ready.wait(), "ready")
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    try:
        if not found:
            await serving
        yield House(*found)
    finally:
        stop.set()
        await serving
        await tasks.aclose()


def body_log(file: Path, dialect: str) -> list[Entry]:
    """A recorded body as its log, without what its user sent."""
    source = make_source(dialect, TranslateOptions())
    return [*source.feed(file.read_bytes()), *source.close()]
