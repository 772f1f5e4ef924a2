"""The operator's table in `docs/troubleshooting.md`: each of its faults is played, and has the line
and the metric that its row names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from proxy.base import metrics
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.faults import Cut, Faults
from proxy.upstream.backend_check import warn
from tests.server import test_journal_faults as journal_faults
from tests.server import test_stop
from tests.server.test_journal_faults import FILLING, Fault, set_clock
from tests.server.test_message_outcomes import CREATES, Refusing
from tests.server.test_retention import ask
from tests.support.dragoman import BACKEND_KEY, backend_settings
from tests.support.patience import shorten
from tests.support.ports import free_port
from tests.support.proxied import Proxied, proxied
from tests.support.running import BACKEND, Run
from tests.support.serving import HOST, served
from tests.support.tls import self_signed
from tests.support.waiting import SOON_S, until

__all__ = ["set_clock"]

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""What the series of a process stand at, by name and labels."""


class Row(NamedTuple):
    """A row of the table: the kinds that lines must have before a semicolon, words of the
    line, the names of metrics with labels that they must have, the way out."""

    kinds: frozenset[str]
    words: tuple[str, ...]
    metrics: Mapping[str, frozenset[tuple[str, str]]]
    way_out: str


def rows() -> dict[str, Row]:
    """The table, by fault."""
    part = PAGE.split("## What fails, and where it stands\n")[1].split("\n## ")[0]
    found = {}
    for line in re.findall(r"^\| (.+) \|$", part, re.MULTILINE)[1:]:
        fault, told, moved, way_out = line.split(" | ")
        told = told.partition(";")[0]
        found[fault] = Row(
            frozenset(re.findall(r"`(\w+)`", told)),
            tuple(re.findall(r'"([^"]+)"', told)),
            {
                name: frozenset(re.findall(r'(\w+)="(\w+)"', labels or ""))
                for name, labels in re.findall(r"`(dragoman_\w+)({.*?})?`", moved)
            },
            way_out,
        )
    return found


ROWS = rows()


class Stage:
    """What players are given, and what an operator sees: the lines of the log, and how far the
    metrics moved. In this process those of all tests are in one place, so `before` is taken off."""

    def __init__(
        self, folder: Path, run: Run, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.folder = folder
        self.run = run
        self.patch = patch
        self._caplog = caplog
        self._before = self._here()
        self.elsewhere: tuple[list[dict[str, Any]], Series] | None = None

    def see(self, log: str, exposed: str) -> None:
        """Take what another process has said: its log, and its metrics after the start."""
        lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        self.elsewhere = (lines, _series(text_string_to_metric_families(exposed)))

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines with a kind."""
        if self.elsewhere is not None:
            return [line for line in self.elsewhere[0] if "kind" in line]
        records = [one for one in self._caplog.records if hasattr(one, "kind")]
        return [{**one.__dict__, "message": one.getMessage()} for one in records]

    def moved(self, name: str, labels: frozenset[tuple[str, str]]) -> float:
        """How far the series of a name have moved that have these labels."""
        now, before = (
            (self._here(), self._before)
            if self.elsewhere is None
            else (
                self.elsewhere[1],
                {},
            )
        )
        return sum(
            value - before.get(key, 0.0)
            for key, value in now.items()
            if key[0] == name and labels <= key[1]
        )

    @staticmethod
    def _here() -> Series:
        return _series(metrics.REGISTRY.collect())


def _series(families: Any) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("dragoman_")
    }


def lacking(stage: Stage, row: Row) -> list[str]:
    """What a row names and nobody sees."""
    lines = stage.lines
    told = " ".join(line["message"] for line in lines if line["kind"] in row.kinds)
    return [
        *(row.kinds - {line["kind"] for line in lines}),
        *(text for text in row.words if text not in told),
        *(name for name, labels in row.metrics.items() if stage.moved(name, labels) <= 0),
    ]


Player = Callable[[Stage], contextlib.AbstractAsyncContextManager[None]]


# Backends.


@contextlib.asynccontextmanager
async def asked(url: str, dialect: str) -> AsyncIterator[Proxied]:
    """Say something to a backend."""
    async with proxied(backends=[backend_settings("played", dialect, url)]) as dragoman:
        await dragoman.say("hello", route="played")
        yield dragoman


@contextlib.asynccontextmanager
async def refused(stage: Stage) -> AsyncIterator[None]:
    async with asked(f"http://{HOST}:{free_port()}", "engine"):
        yield


@contextlib.asynccontextmanager
async def hangs(stage: Stage) -> AsyncIterator[None]:
    shorten(stage.patch, "answer_seconds")
    over = asyncio.Event()

    async def wait(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    async with await asyncio.start_server(wait, HOST, 0) as listener:
        async with asked(f"http://{HOST}:{listener.sockets[0].getsockname()[1]}", "herm"):
            yield
        over.set()


@contextlib.asynccontextmanager
async def errors(stage: Stage) -> AsyncIterator[None]:
    faults = Refusing(CREATES["eve"], 503)
    app = BACKENDS["eve"](ScriptedOptions(key=BACKEND_KEY, pace=0.0, faults=faults))
    async with served(app) as url, asked(url, "eve"):
        yield


def gateway(dialect: str) -> Player:
    """A page for a login in the place of a backend of a dialect."""

    @contextlib.asynccontextmanager
    async def played(stage: Stage) -> AsyncIterator[None]:
        async def page(_: web.Request) -> web.Response:
            return web.Response(text="<title>Log in</title>", content_type="text/html")

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", page)
        async with served(app) as url, asked(url, dialect):
            yield

    return played


@contextlib.asynccontextmanager
async def wrong_key(stage: Stage) -> AsyncIterator[None]:
    async with (
        served(BACKENDS["herm"](ScriptedOptions(key="another", pace=0.0))) as url,
        asked(url, "herm"),
    ):
        yield


@contextlib.asynccontextmanager
async def wrong_dialect(stage: Stage) -> AsyncIterator[None]:
    async with (
        served(BACKENDS["engine"](ScriptedOptions(key=BACKEND_KEY, pace=0.0))) as url,
        asked(url, "eve") as dragoman,
    ):
        # The key is sent where an Engine does not look: a request alone is told as `credential`.
        await warn(dragoman.sessions.settings, dragoman.sessions.backends.health)
        yield


@contextlib.asynccontextmanager
async def untrusted(stage: Stage) -> AsyncIterator[None]:
    context = self_signed(stage.folder)
    listener = await asyncio.start_server(lambda _, writer: writer.close(), HOST, 0, ssl=context)
    async with listener, asked(f"https://{HOST}:{listener.sockets[0].getsockname()[1]}", "eve"):
        yield


@contextlib.asynccontextmanager
async def cut(stage: Stage) -> AsyncIterator[None]:
    faults = Faults({("execute", 1): Cut(after_event=4)})
    async with proxied(engine={"faults": faults, "pace": 0.01}) as dragoman:
        await dragoman.say("script: slow 20")
        yield


# The machine.


def unable(fault: Fault) -> Player:
    """A journal that cannot store."""

    @contextlib.asynccontextmanager
    async def played(stage: Stage) -> AsyncIterator[None]:
        path = stage.folder / "own.db"
        running = await stage.run(f"sqlite:///{path}")
        session = await running.eve().create("hello")
        await session.read_turn()
        url = f"/as/eve/to/{BACKEND}/eve/v1/session/{session.session_id}"
        async with fault(running, path):
            assert (await ask(running, "POST", url, json={"message": FILLING}))[0] == 503
            yield

    return played


@contextlib.asynccontextmanager
async def stopped(stage: Stage) -> AsyncIterator[None]:
    running = await stage.run(engine={"pace": 0.1})
    async with test_stop.served(stage.folder, running) as server:
        client = running.eve()
        client.host = f"{server.url}/as/eve/to/{BACKEND}"
        session = await client.create("script: slow 400")
        url = f"{client.host}/eve/v1/session/{session.session_id}/stream"
        async with running.http.get(url) as stream:
            # Its turn runs then.
            while b"message.appended" not in await stream.content.readline():
                pass
            server.tell()
            status, log = await server.over()
        assert status == 0
        lines = map(json.loads, log.splitlines())
        [stopping] = [line for line in lines if line.get("kind") == "stopping"]
        assert (stopping["streams"], stopping["turns"]) == (1, 1)
        await see_next(stage, server, running.http, log)
        assert stage.moved("dragoman_previous_killed", frozenset()) == 0
        yield


@contextlib.asynccontextmanager
async def killed(stage: Stage) -> AsyncIterator[None]:
    running = await stage.run(engine={"pace": 0.1})
    async with test_stop.served(stage.folder, running) as server:
        client = running.eve()
        client.host = f"{server.url}/as/eve/to/{BACKEND}"
        await asyncio.gather(*(client.create("script: slow 400") for _ in range(8)))
        server.tell(signal.SIGKILL)
        await server.over()
        await see_next(stage, server, running.http)
        assert stage.moved("dragoman_sessions_resumed_total", frozenset()) == 8
        yield


async def see_next(stage: Stage, server: test_stop.Server, http: Any, before: str = "") -> None:
    """See what the next start says: a start, its metrics, and its end."""
    await server.start()
    async with http.get(f"{server.url}/metrics") as response:
        exposed = await response.text()
    server.tell()
    _, log = await server.over()
    stage.see(before or log, exposed)


PLAYERS: Mapping[str, tuple[Player, ...]] = {
    "the backend refuses connections": (refused,),
    "it hangs": (hangs,),
    "it answers 5xx": (errors,),
    "a gateway answers HTML": tuple(map(gateway, CREATES)),
    "the key is wrong": (wrong_key,),
    "the dialect is wrong": (wrong_dialect,),
    "its certificate is not trusted": (untrusted,),
    "its stream is cut": (cut,),
    "the disk is full": (unable(journal_faults.full),),
    "the journal is read-only": (unable(journal_faults.read_only),),
    "the journal is locked": (unable(journal_faults.locked),),
    "SIGTERM in streams": (stopped,),
    "kill -9 in load": (killed,),
}


async def seen(stage: Stage, fault: str) -> None:
    """Wait until the operator sees all that the row of a fault names."""
    row = ROWS[fault]
    assert row.kinds
    assert row.metrics
    assert "](" in row.way_out
    with contextlib.suppress(TimeoutError):
        # What a process has said does not change any more.
        await until(lambda: not lacking(stage, row), 0.0 if stage.elsewhere else SOON_S)
    assert lacking(stage, row) == []


@pytest.fixture
def stage(
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Stage:
    caplog.set_level(logging.INFO)
    return Stage(tmp_path, run, monkeypatch, caplog)


@pytest.mark.parametrize(
    ("fault", "player"),
    [(fault, player) for fault, players in PLAYERS.items() for player in players],
)
async def test_a_fault_is_seen_as_its_row_says(stage: Stage, fault: str, player: Player) -> None:
    async with player(stage):
        await seen(stage, fault)


CLOCK = "the clock is set"


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
async def test_a_clock_that_is_set_is_seen_as_its_row_says(
    stage: Stage, set_clock: Callable[[float], None], seconds: float
) -> None:
    async with proxied() as dragoman:
        set_clock(seconds)
        await seen(stage, CLOCK)
        [line] = [one for one in stage.lines if one["kind"] == "clock"]
        assert line["seconds"] == seconds
        assert dragoman.sessions.clock.offset() != 0


def test_each_row_is_played_and_each_fault_has_its_row() -> None:
    assert sorted(ROWS) == sorted([*PLAYERS, CLOCK])
    assert len(ROWS) == 14
