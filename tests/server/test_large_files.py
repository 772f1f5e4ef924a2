"""A file of 25 MB, the largest that an eve takes, reaches the backend exactly as it was given."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import io
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.backend import ReceivedRequest
from proxy.scripted.engine import ENGINE
from proxy.scripted.eve import EVE
from proxy.scripted.eve_turns import Generation
from tests.support.serving import served
from tests.support.waiting import SOON_S
from tests.support.watched import Watched, watched

SIZE = 25_000_000

KEYS: dict[str, web.AppKey[Any]] = {"engine": ENGINE, "eve": EVE}


@functools.cache
def file() -> bytes:
    """The bytes of a file without two pieces that are alike."""
    return random.Random(11).randbytes(SIZE)


@functools.cache
def encoded() -> str:
    """The same in base64."""
    return base64.b64encode(file()).decode()


def as_body(value: object) -> io.BytesIO:
    """JSON that aiohttp sends piece by piece."""
    return io.BytesIO(json.dumps(value, ensure_ascii=False).encode())


class Lab:
    """A Dragoman before a backend, and what that was sent."""

    def __init__(self, dragoman: Watched, backend: Any) -> None:
        self.dragoman = dragoman
        self._backend = backend

    async def eve(self, message: object, session: dict[str, Any] | None = None) -> dict[str, Any]:
        """Say something as an eve frontend does, in a new session without one."""
        url = f"{self.dragoman.url}/as/eve/to/lab/eve/v1/session"
        body: dict[str, Any] = {"message": message}
        if session is not None:
            url += f"/{session['sessionId']}"
            body["continuationToken"] = session["continuationToken"]
        async with self.dragoman.http.post(url, data=as_body(body)) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status < 300, answer
            return answer

    async def engine(self, body: dict[str, Any]) -> bytes:
        """Say something as an Engine frontend does, and hear the turn."""
        url = f"{self.dragoman.url}/as/engine/to/lab/execute"
        async with self.dragoman.http.post(url, data=as_body(body)) as response:
            assert response.status == 200, await response.text()
            return await response.read()

    def received(self) -> list[ReceivedRequest]:
        """The large requests that the backend was sent."""
        return [one for one in self._backend.received if len(one.body) > SIZE]

    def sent(self) -> list[Any]:
        """The bodies of these."""
        return [json.loads(one.body) for one in self.received()]

    async def over(self, session: str, turns: int) -> None:
        """Wait until a session has had so many turns."""
        async with asyncio.timeout(SOON_S):
            while True:
                body = await self.dragoman.get(f"/api/v1/sessions/{session}/events")
                if body.count(b'"type":"turn.ended"') >= turns:
                    return
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def lab(folder: Path, dialect: str, *, generation: Generation = "S2") -> AsyncIterator[Lab]:
    """Serve a scripted backend and a Dragoman before it."""
    app = BACKENDS[dialect](ScriptedOptions(pace=0.0, generation=generation))
    async with served(app) as url:
        table = f'[[backends]]\nname = "lab"\ndialect = "{dialect}"\nurl = "{url}"\n'
        async with watched(folder, table) as dragoman:
            yield Lab(dragoman, app[KEYS[dialect]])


def eve_message(data: str) -> list[dict[str, str]]:
    """A message with the file, as an eve frontend says it."""
    return [
        {"type": "text", "text": "script: text"},
        {"type": "file", "mediaType": "image/png", "filename": "a.png", "data": data},
    ]


def engine_message() -> dict[str, Any]:
    """The same as an Engine frontend does."""
    source = {"type": "base64", "media_type": "image/png", "data": encoded()}
    media = [{"type": "image", "source": source}]
    return {"message": "script: text", "task_id": "t-1", "media": media}


def files_in(body: dict[str, Any], dialect: str) -> list[tuple[str, bytes]]:
    """The files of a body, with their types."""
    if dialect == "engine":
        sources = [block["source"] for block in body["media"]]
        return [(one["media_type"], base64.b64decode(one["data"])) for one in sources]
    found = []
    for part in body["message"]:
        if part["type"] == "file":
            head, _, data = part["data"].partition(",")
            assert head == f"data:{part['mediaType']};base64"
            found.append((part["mediaType"], base64.b64decode(data)))
    return found


TAKERS: dict[str, tuple[str, Generation]] = {"engine": ("engine", "S2"), "eve T": ("eve", "T")}
"""Backends that take files."""


@pytest.mark.parametrize("name", TAKERS)
async def test_a_file_from_an_eve_frontend_reaches_the_backend(tmp_path: Path, name: str) -> None:
    dialect, generation = TAKERS[name]
    message = eve_message("data:image/png;base64," + encoded())
    async with lab(tmp_path, dialect, generation=generation) as it:
        session = await it.eve(message)
        await it.over(session["sessionId"], 1)
        # One more, in a session that the backend knows.
        await it.eve(message, session)
        await it.over(session["sessionId"], 2)
    assert [files_in(body, dialect) for body in it.sent()] == [[("image/png", file())]] * 2
    # Not every server takes a body in chunks.
    assert [int(one.headers["Content-Length"]) for one in it.received()] == [
        len(one.body) for one in it.received()
    ]


async def test_a_file_from_an_engine_frontend_reaches_the_backend(tmp_path: Path) -> None:
    async with lab(tmp_path, "engine") as it:
        assert b'"phase":"completed"' in await it.engine(engine_message())
    assert [files_in(body, "engine") for body in it.sent()] == [[("image/png", file())]]
