"""Sessions that `dragoman serve` records: both sides of each, and the log."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from adapters.captures import Capture, CapturedExchange, read_capture
from adapters.captures.redact import Redactor
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.offline.captured_log import log_of
from adapters.registry import DIALECTS as KNOWN
from adapters.registry import deltas
from adapters.wire.errors import DragomanError
from adapters.wire.framing.sse import SseParser
from proxy.app.server import opened_sessions
from proxy.base.errors import ConfigError
from proxy.base.metrics import CAPTURES_LEFT_OUT
from proxy.base.sealed import SecretScrubber
from proxy.config.settings import Settings
from proxy.journal.sqlite import SqliteJournal
from proxy.recording import background as background_module
from proxy.recording.background import CaptureThread
from proxy.recording.captures import Files
from proxy.recording.session import SessionCapture
from proxy.scripted.faults import Cut, Faults
from proxy.scripted.herm_turns import HermVariant
from tests.pairs.frontends import Frontend, HermFrontend, Refusal
from tests.pairs.table import PEOPLE
from tests.support.alone import Alone
from tests.support.dragoman import BACKEND_KEY
from tests.support.herm_client import Expect, HermClient
from tests.support.journals import sqlite, stored_entries
from tests.support.keys import credential
from tests.support.recording import backgrounds, written
from tests.support.waiting import asks, settled, until
from tests.test_cli_scripted import program
from tests.wire import given_messages

__all__ = ["backgrounds"]

pytestmark = pytest.mark.usefixtures("backgrounds")

DIALECTS = ("herm", "eve", "engine")
BACKENDS = given_messages()
READ = {
    "herm": "/v1/sessions/{}/events",
    "eve": "/eve/v1/session/{}/stream?follow=0",
    "engine": "/execute/replay?after=0&task_id={}",
}
"""What is read of a session to an end."""

LIVE = {
    "herm": "/v1/sessions/{}/events/stream?after=0",
    "eve": "/eve/v1/session/{}/stream?startIndex=0",
}

SECRET = "n0-0ne-may-see-7h1s"


def read(file: Path) -> Capture:
    written()
    return read_capture(file.read_bytes().splitlines(keepends=True), file.name)


def files(folder: Path) -> list[Path]:
    written()
    return sorted(folder.glob("*.ndjson"))


def unmarked(data: bytes) -> bytes:
    """What was said, whether a bearer of a session in it is replaced by a mark or not."""
    return re.sub(rb"eve:[0-9a-f-]{36}|\[redacted-[0-9a-f]{8}\]", b"(token)", data)


def pieces(exchange: CapturedExchange) -> list[bytes]:
    return [piece.data for piece in exchange.received]


def recorded(kept: Files, dialect: str) -> SessionCapture:
    redactor = Redactor(b"s", deltas())
    return SessionCapture(kept, CaptureThread(), "s", dialect, now=lambda: 1.0, redactor=redactor)


class House(Alone):
    """A Dragoman over one scripted backend that records, and the people in front of it."""

    def __init__(
        self,
        folder: Path,
        dialect: str,
        *,
        capture: Mapping[str, Any] | None = None,
        journal: str = "memory:",
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder / "captures"
        table = {"dir": str(self.folder), **(capture or {})}
        super().__init__(
            journal,
            dialect=dialect,
            options=options,
            settings={"capture": table, **(settings or {})},
        )
        self._people: list[Frontend] = []

    async def __aexit__(self, *error: object) -> None:
        await self.leave()
        await super().__aexit__(*error)

    async def leave(self) -> None:
        for person in self._people:
            await person.close()

    def person(self, dialect: str) -> Frontend:
        made = PEOPLE[dialect](self.http, self.face(dialect, self.dialect))
        self._people.append(made)
        return made

    async def session_id(self) -> str:
        rows = await self.sessions.journal.sessions(owner=None, limit=2)
        assert len(rows) == 1
        return rows[0].id

    async def rest(self) -> str:
        name = await self.session_id()
        await settled(await self.live(name))
        return name

    async def agrees(self) -> Capture:
        """Read the one capture, whose log is that of the journal."""
        name = await self.session_id()
        (file,) = files(self.folder)
        assert file.name == f"{name}.ndjson"
        capture = read(file)
        assert (capture.head.dialect, capture.head.session) == (self.dialect, name)
        assert capture.cut is None
        stored = await stored_entries(self.sessions.journal, name)
        assert log_of(capture).log == stored
        return capture

    def told(self) -> bytes:
        return b"".join(file.read_bytes() for file in files(self.folder))


async def ask_engine(
    house: House, path: str, headers: Mapping[str, str] | None = None, **members: Any
) -> tuple[int, list[bytes]]:
    """Send a request as an Engine frontend; return the status and the pieces of the answer."""
    url = f"{house.face('engine', house.dialect)}/{path}"
    body = {"task_id": "first", **members}
    read: list[bytes] = []
    async with house.http.post(url, json=body, headers=headers) as answer:
        async for data, _ in answer.content.iter_chunks():
            read.append(data)
        return answer.status, read


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("face", DIALECTS)
async def test_a_conversation_with_an_approval_is_recorded_on_both_sides(
    tmp_path: Path, face: str, backend: str
) -> None:
    async with House(tmp_path, backend) as house:
        person = house.person(face)
        await person.say("script: approve")
        await person.confirm(await person.asked(), True)
        assert "Done, 4.1 GB freed." in (await person.settled()).text
        name = await house.rest()
        # What anybody reads of it is what its exchange says that was written.
        async with house.http.get(house.face(face, backend) + READ[face].format(name)) as answer:
            assert answer.status == 200
            got_now = await answer.read()
        capture = await house.agrees()
        assert unmarked(got_now) == unmarked(capture.of_side("frontend")[-1].answer) != b""
        sent = capture.of_side("backend")
        # Each request that the backend got, with its body.
        got = [(dict(r.query), r.body) for r in house.backend.received]
        told = [(dict(URL(one.request.target).query), one.body) for one in sent]
        assert [(query, unmarked(body)) for query, body in told] == [
            (query, unmarked(body)) for query, body in got
        ]
        assert all(one.response is not None for one in sent)
        asked = capture.of_side("frontend")
        assert all(one.request.target.startswith(f"/as/{face}/to/") for one in asked)
        assert any("script: approve" in one.body.decode() for one in asked)
        # What the person said comes before what the backend was sent of it, and its answers.
        lines = (files(house.folder)[0]).read_text().splitlines()
        kinds = [json.loads(line).get("side") for line in lines]
        assert kinds.index("frontend") < kinds.index("backend")
        assert BACKEND_KEY not in house.told().decode()
        # No exchange is left open but streams.
        await house.leave()
        await until(
            lambda: all(
                one.end is not None for one in read(files(house.folder)[0]).of_side("frontend")
            )
        )


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_frontend_reads_what_its_exchange_says_that_was_written(
    tmp_path: Path, backend: str
) -> None:
    async with House(tmp_path, backend, options={"pace": 0.05}) as house:
        status, got = await ask_engine(house, "execute", message="script: slow 6")
        assert status == 200
        await house.rest()
        capture = await house.agrees()
        (said,) = capture.of_side("frontend")
        # The client reads the chunks that were written, each in its place.
        assert b"".join(pieces(said)) == b"".join(got)
        assert len(pieces(said)) > 3
        assert [one for one in pieces(said) if one not in got] == []
        assert said.response is not None
        assert ("Content-Type", "text/event-stream") in [
            (name, value.partition(";")[0]) for name, value in said.response.headers
        ]
        assert said.end is not None
        assert said.end.how == "ended"
        times = [one.at for one in said.received]
        assert times == sorted(times)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("face", ["herm", "eve"])
async def test_a_live_reader_gets_what_its_exchange_says_that_was_written(
    tmp_path: Path, face: str, backend: str
) -> None:
    async with House(tmp_path, backend) as house:
        person = house.person(face)
        await person.say("script: text")
        await person.settled(turns=1)
        name = await house.rest()
        (file,) = files(house.folder)
        target = f"/as/{face}/to/{backend}{LIVE[face].format(name)}"
        got: list[bytes] = []

        def said() -> list[bytes]:
            (said,) = [one for one in read(file).exchanges if one.request.target == target]
            return pieces(said)

        async with house.http.get(f"http://127.0.0.1:{house.port}{target}") as answer:

            async def keep() -> None:
                async for data, _ in answer.content.iter_chunks():
                    got.append(data)

            reading = asyncio.create_task(keep())
            await until(lambda: bool(got))
            await person.say("script: tool")
            await person.settled(turns=2)
            await house.rest()
            await until(lambda: unmarked(b"".join(got)) == unmarked(b"".join(said())))
            reading.cancel()
        assert len(said()) > 3


async def test_plain_answers_refusals_and_reads_are_recorded_too(tmp_path: Path) -> None:
    async with House(tmp_path, "herm") as house:
        base = house.face("eve", "herm")
        async with house.http.post(
            f"{base}/eve/v1/session", json={"message": "script: approve"}
        ) as answer:
            made = await answer.read()
        name = await house.session_id()
        session = await house.live(name)
        await until(lambda: asks(session))
        async with house.http.post(
            f"{base}/eve/v1/session/{name}", json={"message": "and now?"}
        ) as answer:
            refused = answer.status, await answer.read()
        lines = await house.lines(name)
        capture = read(files(house.folder)[0])
        first, second, third = capture.of_side("frontend")
        assert unmarked(first.answer) == unmarked(made)
        assert second.response is not None
        assert (second.response.status, unmarked(second.answer)) == (
            refused[0],
            unmarked(refused[1]),
        )
        assert unmarked(third.answer) == unmarked(b"\n" + b"".join(lines))
        assert [one.end.how for one in (first, second, third) if one.end] == ["ended"] * 3


async def test_a_reader_that_leaves_and_a_backend_that_breaks_are_told_apart(
    tmp_path: Path,
) -> None:
    options = {"faults": Faults({("stream", 1): Cut(after_event=3)}), "pace": 0.02}
    async with House(tmp_path, "eve", options=options) as house:
        base = house.face("eve", "eve")
        async with house.http.post(
            f"{base}/eve/v1/session", json={"message": "script: approve"}
        ) as answer:
            await answer.read()
        name = await house.session_id()
        session = await house.live(name)
        await until(lambda: asks(session))
        async with house.http.get(f"{base}/eve/v1/session/{name}/stream") as answer:
            await answer.content.readany()

        def ends() -> list[str | None]:
            capture = read(files(house.folder)[0])
            return [one.end.how if one.end else None for one in capture.of_side("frontend")]

        await until(lambda: ends() == ["ended", "left"])
        sent = read(files(house.folder)[0]).of_side("backend")
        assert "broke" in [one.end.how for one in sent if one.end is not None]


# Which sessions.


async def test_without_the_table_nothing_is_recorded(tmp_path: Path) -> None:
    async with Alone("memory:", dialect="engine") as house:
        assert house.sessions.captures is None
        url = f"{house.face('engine', 'engine')}/execute"
        body = {"task_id": "t", "message": "script: text"}
        async with house.http.post(url, json=body) as answer:
            assert answer.status == 200
            await answer.read()
    assert list(tmp_path.iterdir()) == []


async def test_the_folder_is_made_for_its_owner_only(tmp_path: Path) -> None:
    async with House(tmp_path, "engine") as house:
        await ask_engine(house, "execute", message="script: text")
        assert house.folder.stat().st_mode & 0o777 == 0o700
        (file,) = files(house.folder)
        assert file.stat().st_mode & 0o777 == 0o600


async def test_a_folder_that_cannot_be_made_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "captures").write_text("a file")
    table = {"dir": str(tmp_path / "captures")}
    with pytest.raises(ConfigError, match=r"`\[capture\]`, `dir`: the folder .* cannot be made: "):
        async with opened_sessions(
            Settings.model_validate({"journal": {"url": "memory:"}, "capture": table})
        ):
            pass


async def test_with_header_only_sessions_are_recorded_whose_first_request_asks_for_it(
    tmp_path: Path,
) -> None:
    async with House(tmp_path, "engine", capture={"header": True}) as house:
        for task, headers in (
            ("plain", {}),
            ("zero", {"Dragoman-Capture": "0"}),
            ("wanted", {"Dragoman-Capture": "1"}),
        ):
            await ask_engine(house, "execute", headers, task_id=task, message="script: text")
        # A later request of a session that is not recorded changes nothing, nor one without it.
        for task, headers in (("plain", {"Dragoman-Capture": "1"}), ("wanted", {})):
            await ask_engine(house, "execute", headers, task_id=task, message="script: text")
        (file,) = files(house.folder)
        said = read(file).of_side("frontend")
        assert [json.loads(one.body)["task_id"] for one in said] == ["wanted", "wanted"]


async def test_only_the_routes_that_are_named_are_recorded(tmp_path: Path) -> None:
    routes = [{"name": "support", "backends": [{"name": "engine"}]}]
    house = House(tmp_path, "engine", capture={"routes": ["support"]}, settings={"routes": routes})
    async with house:
        for route in ("engine", "support"):
            url = f"{house.face('engine', route)}/execute"
            body = {"task_id": route, "message": "script: text"}
            async with house.http.post(url, json=body) as answer:
                await answer.read()
        (file,) = files(house.folder)
        (said,) = read(file).of_side("frontend")
        assert json.loads(said.body)["task_id"] == "support"


def test_a_route_that_is_not_there_is_refused() -> None:
    tables = {
        "backends": [{"name": "blue", "dialect": "engine", "url": "http://127.0.0.1:1"}],
        "capture": {"dir": "x", "routes": ["blue", "bleu"]},
    }
    with pytest.raises(ValueError, match=r"`capture\.routes` 2: there is no .* `bleu`"):
        Settings.model_validate(tables)


# How long.


async def test_a_session_that_is_loaded_anew_goes_on_in_its_file(tmp_path: Path) -> None:
    async with House(tmp_path, "eve", journal=sqlite(tmp_path)) as house:
        for _ in range(3):
            await ask_engine(house, "execute", message="script: text")
            name = await house.rest()
            house.sessions.cache.forget(name)
        capture = await house.agrees()
        assert len(capture.of_side("frontend")) == 3
        numbers = [one.request.exchange for one in capture.exchanges]
        assert numbers == list(range(1, len(numbers) + 1))


async def test_a_crash_leaves_a_capture_that_is_read_and_gone_on_with(tmp_path: Path) -> None:
    async with House(tmp_path, "engine", journal=sqlite(tmp_path)) as house:
        await ask_engine(house, "execute", message="script: text")
        name = await house.rest()
        await house.crash()
        (file,) = files(house.folder)
        # It was killed in the middle of a line, after the journal had the entries of some more.
        lines = file.read_bytes().splitlines(keepends=True)
        events = [at for at, line in enumerate(lines) if b'"type":"event"' in line]
        file.write_bytes(b"".join(lines[: events[-2]]) + lines[events[-2]][:-10])
        assert read(file).cut is not None
        await house.start()
        await ask_engine(house, "execute", message="script: text")
        await house.rest()
        capture = await house.agrees()
        assert len(capture.of_side("frontend")) == 2
        assert await house.session_id() == name


async def test_a_server_that_is_killed_leaves_a_capture_that_the_next_one_goes_on_with(
    tmp_path: Path,
) -> None:
    folder, journal = tmp_path / "captures", sqlite(tmp_path)
    config = tmp_path / "dragoman.toml"
    async with (
        program("scripted", "engine", "--pace", "0.02") as backend,
        aiohttp.ClientSession() as http,
    ):
        config.write_text(
            f'[server]\nlisten = "127.0.0.1:0"\n[journal]\nurl = "{journal}"\n'
            f'[capture]\ndir = "{folder}"\n'
            f'[[backends]]\nname = "engine"\ndialect = "engine"\nurl = "{backend}"\n'
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "serve", "--config", str(config)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        base = (await process.stdout.readline()).decode().split()[-1]
        body = {"message": "script: slow 200", "task_id": "t"}
        async with http.post(f"{base}/as/engine/to/engine/execute", json=body) as answer:
            got = await answer.content.readany()
            while len(got) < 2_000:
                got += await answer.content.readany()
            process.kill()
            await process.wait()
        (file,) = files(folder)
        killed = read(file)
        (said,) = killed.of_side("frontend")
        assert json.loads(said.body) == body
        assert said.end is None
        # What the thread had not written is lost with it.
        assert said.answer
        assert said.answer.startswith(got) or got.startswith(said.answer)
        assert [entry.seq for entry in killed.log] == list(range(1, len(killed.log) + 1))
        async with program("serve", "--config", str(config)) as base:
            query = "task_id=t&after=0"
            url = f"{base}/as/engine/to/engine/execute/replay?{query}"
            async with http.get(url) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
        after = read(file)
        assert len(after.of_side("frontend")) == 2
        opened = SqliteJournal(journal.removeprefix("sqlite:///"))
        await opened.open()
        try:
            stored = await stored_entries(opened, after.head.session or "")
        finally:
            await opened.aclose()
        assert after.log == stored[: len(after.log)]
        assert len(after.log) > len(killed.log)


async def test_a_session_that_was_made_before_is_not_recorded(tmp_path: Path) -> None:
    routes = [{"name": "other", "backends": [{"name": "engine"}]}]
    house = House(
        tmp_path,
        "engine",
        journal=sqlite(tmp_path),
        capture={"routes": ["other"]},
        settings={"routes": routes},
    )
    async with house:
        await ask_engine(house, "execute", message="script: text")
        await house.rest()
        await house.reconfigure(capture={"dir": str(house.folder)})
        await ask_engine(house, "execute", message="script: text")
        assert files(house.folder) == []


async def test_a_route_that_is_recorded_no_longer_ends_a_capture_when_it_is_loaded(
    tmp_path: Path,
) -> None:
    routes = [{"name": "other", "backends": [{"name": "engine"}]}]
    house = House(tmp_path, "engine", journal=sqlite(tmp_path), settings={"routes": routes})
    async with house:
        await ask_engine(house, "execute", message="script: text")
        await house.rest()
        (file,) = files(house.folder)
        await house.reconfigure(capture={"dir": str(house.folder), "routes": ["other"]})
        before = file.read_bytes()
        await ask_engine(house, "execute", message="script: text")
        await house.rest()
        assert file.read_bytes() == before


async def test_a_session_that_is_refused_leaves_no_file(tmp_path: Path) -> None:
    async with House(tmp_path, "engine") as house:
        answer = cmd.AnswerInteraction(request_id="x", decision="allow")
        with pytest.raises(DragomanError):
            await house.sessions.create_with(
                [answer], by="local", owner="local", route="engine", dialect="engine"
            )
        assert files(house.folder) == []


# A disk that refuses.


async def test_a_disk_that_refuses_ends_a_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with House(tmp_path, "engine") as house:
        house.folder.chmod(0o700)
        await ask_engine(house, "execute", message="script: text")
        name = await house.rest()
        captures = house.sessions.captures
        assert captures is not None
        captures._background.put(None, captures._files.close)
        # A folder stands where the file was.
        (file,) = files(house.folder)
        file.unlink()
        file.mkdir()
        for _ in range(2):
            status, got = await ask_engine(house, "execute", message="script: text")
            assert status == 200
            assert b"completed" in b"".join(got)
        told = [line for line in caplog.messages if "capture" in line]
        assert len(told) == 1
        assert told[0].startswith(f"the capture of session '{name}' ends here: ")


async def test_a_capture_that_cannot_be_read_is_not_gone_on_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with House(tmp_path, "engine", journal=sqlite(tmp_path)) as house:
        await ask_engine(house, "execute", message="script: text")
        await house.rest()
        await house.crash()
        (file,) = files(house.folder)
        file.write_bytes(b"")
        await house.start()
        status, _ = await ask_engine(house, "execute", message="script: text")
        assert status == 200
        assert file.read_bytes() == b""
        assert any("is not gone on with: it has no head" in line for line in caplog.messages)


# A recorder that is behind, or fails.


async def test_a_recorder_that_is_behind_leaves_out_records_and_says_how_many(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Files(tmp_path, None, lambda: 1.0)
    made = recorded(kept, "engine")
    monkeypatch.setattr(background_module, "JOBS_MOST", 4)
    goes_on = threading.Event()
    before = left_out()
    with made.call() as call:
        call.asked("GET", "/a", [])
        made.background.put(None, goes_on.wait)
        call.responded(200, [])
        for number in range(20):
            call.received(b"piece %d" % number)
        goes_on.set()
        written()
        # What follows of it would have a hole before it.
        call.received(b"the last one")
    with made.call() as call:
        call.asked("GET", "/b", [])
    made.close()
    written()
    kept.close()
    capture = read(tmp_path / "s.ndjson")
    first, second = capture.exchanges
    assert (first.end, second.request.target) == (None, "/b")
    assert first.answer == b"".join(b"piece %d" % number for number in range(len(first.received)))
    assert 0 < len(first.received) < 20
    # The end of it is one of them.
    assert capture.left_out == 20 + 2 - len(first.received)
    assert left_out() - before == capture.left_out
    (line,) = [line for line in caplog.messages if "leaves out" in line]
    assert line.startswith("the capture of session 's' leaves out records: ")


def left_out() -> float:
    (metric,) = CAPTURES_LEFT_OUT.collect()
    return metric.samples[0].value


async def test_what_is_left_out_stands_in_a_capture_that_is_verified(tmp_path: Path) -> None:
    kept = Files(tmp_path, None, lambda: 1.0)
    made = recorded(kept, "engine")
    with made.call() as call:
        call.asked("GET", "/a", [])
    made.leave_out(None, 3)
    made.close()
    written()
    kept.close()
    assert read(tmp_path / "s.ndjson").left_out == 3
    assert b'{"type":"left_out","at":1.0,"count":3}' in (tmp_path / "s.ndjson").read_bytes()


async def test_what_cannot_be_written_ends_its_capture_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with House(tmp_path, "engine") as house:
        await ask_engine(house, "execute", message="script: text")
        name = await house.rest()

        def broken(self: Redactor, record: Any) -> list[Any]:
            raise RuntimeError("no")

        with monkeypatch.context() as patched:
            patched.setattr(Redactor, "add", broken)
            _, got = await ask_engine(house, "execute", message="script: text")
            assert b"completed" in b"".join(got)
            await house.rest()
            written()
        (line,) = [line for line in caplog.messages if "ends here" in line]
        assert line == f"the capture of session '{name}' ends here"
        await ask_engine(house, "execute", message="script: text")
        # Another session is recorded.
        await ask_engine(house, "execute", message="script: text", task_id="other")
        assert len(files(house.folder)) == 2


async def test_a_header_that_is_not_utf_8_changes_nothing(tmp_path: Path) -> None:
    async with House(tmp_path, "engine") as house:
        body = b'{"task_id":"first","message":"script: text"}'
        url = URL(house.face("engine", "engine"))
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            b"POST %b/execute HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Name: caf\xe9\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (url.path.encode(), len(body), body)
        )
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200")
        await house.rest()
        capture = await house.agrees()
        (said,) = capture.of_side("frontend")
        assert dict(said.request.headers)["X-Name"] == "café"


async def test_an_ordinary_message_costs_nobody_else_its_time(tmp_path: Path) -> None:
    """What took a minute: an address book of 28 kB."""
    text = "name.surname@department.example.org, " * 780
    async with House(tmp_path, "engine") as house:
        begin = time.process_time()
        await ask_engine(house, "execute", message=f"script: text\n{text}")
        await house.rest()
        written()
        # On a slow machine too; it was some 60 s.
        assert time.process_time() - begin < 20
        assert len(files(house.folder)) == 1


# Credentials and sealed answers.


async def test_credentials_are_marks(tmp_path: Path) -> None:
    async with House(tmp_path, "engine") as house:
        headers = {"Authorization": "Bearer key-of-a-frontend", **credential("another-key-4")}
        await ask_engine(house, "execute", headers, message="script: text")
        told = house.told().decode()
        assert BACKEND_KEY not in told
        assert "key-of-a-frontend" not in told
        assert "another-key-4" not in told
        assert told.count("[redacted-") >= 2


async def test_a_credential_in_a_header_of_any_name_is_a_mark(tmp_path: Path) -> None:
    kept = Files(tmp_path, None, lambda: 1.0)
    made = recorded(kept, "herm")
    headers = [("X-Pass", "hunter2 two"), ("X-Other", "shown")]
    made.call().asked("GET", "/", headers, secret=["x-pass"])
    written()
    kept.close()
    (one,) = read(tmp_path / "s.ndjson").exchanges
    (_, hidden), other = one.request.headers
    assert hidden.startswith("[redacted-")
    assert other == ("X-Other", "shown")


@pytest.mark.parametrize("kind", ["secret", "sudo"])
@pytest.mark.parametrize("face", DIALECTS)
async def test_a_sealed_answer_is_not_in_a_capture(tmp_path: Path, face: str, kind: str) -> None:
    unkind = HermVariant(tells_sealed=True, echo_inputs=True, strict=False)
    async with House(tmp_path, "herm", options={"variant": unkind}) as house:
        person = house.person(face)
        if isinstance(person, HermFrontend):
            person.client = HermClient(person.http, person.url, expect=Expect(known_types=False))
        await person.say(f"script: {kind}")
        ask = await person.asked()
        if face == "herm":
            await person.reveal(ask, SECRET)
        else:
            # Refused, and a secret all the same; then it is given where it can be.
            with pytest.raises(Refusal):
                await person.reveal(ask, SECRET)
            name = await house.session_id()
            (asked,) = (await house.live(name)).open_interactions()
            url = f"http://127.0.0.1:{house.port}/api/v1/sessions/{name}/interactions"
            async with house.http.post(
                f"{url}/{asked.request_id}", json={"sealed": SECRET}
            ) as answer:
                assert answer.status < 300, await answer.text()
        await person.until(lambda seen: seen.outcomes == ["completed"])
        await house.rest()
        capture = await house.agrees()
        told = house.told().decode()
        assert SECRET not in told
        assert b"[sealed]" in [one.body for one in capture.of_side("frontend")]
        given = [one for one in capture.of_side("backend") if one.body == b"[sealed]"]
        assert len(given) == 1
        # What a backend says with the value is not there, in pieces of it neither.
        said = b"".join(one.answer for one in capture.of_side("backend"))
        assert b"[sealed]" in said
        assert b"see-" not in said


async def test_an_echo_that_comes_in_pieces_is_sealed_as_a_whole(tmp_path: Path) -> None:
    make = KNOWN["herm"].client
    assert make is not None
    kept = Files(tmp_path, None, lambda: 1.0)
    made = recorded(kept, "herm")
    made.guard(make({"task_id": "x"}), SecretScrubber())
    parser = SseParser()

    def hear(exchange: Any, data: bytes) -> None:
        exchange.received(data, parser.feed(data))

    with made.call() as call:
        call.asked("GET", "/stream", [])
        call.responded(200, [("content-type", "text/event-stream")])
        hear(call, b"event: a\ndata: {}\n\n")
        assert len(read(tmp_path / "s.ndjson").exchanges[0].received) == 1
        hear(call, b"event: b\ndata: {}\n\nevent: user.secret")
        hear(call, b'_result\ndata: {"type":"user.secret_result",')
        hear(call, b'"value":"hunter2"}\n\nevent: c\n')
        hear(call, b"data: {}\n\n")
        hear(call, b"event: user.sudo_result\nda")
    written()
    kept.close()
    (one,) = read(tmp_path / "s.ndjson").exchanges
    assert pieces(one) == [
        b"event: a\ndata: {}\n\n",
        *[b"[sealed]"] * 3,
        b"data: {}\n\n",
        b"[sealed]",
    ]


async def test_what_is_configured_is_left_out(tmp_path: Path) -> None:
    capture = {"redact_keys": ["shelf"], "redact_patterns": ["temp-[0-9]+"]}
    async with House(tmp_path, "engine", capture=capture) as house:
        headers = {"Content-Type": "application/json"}
        url = f"{house.face('herm', 'engine')}/v1/agents/engine/sessions"
        body = json.dumps({"metadata": {"shelf": "upper left"}})
        async with house.http.post(url, data=body, headers=headers) as answer:
            name = (await answer.json())["id"]
        url = f"{house.face('herm', 'engine')}/v1/sessions/{name}/events"
        words = {"type": "text", "text": "what is temp-4711?"}
        body = json.dumps({"type": "user.message", "content": [words]})
        async with house.http.post(url, data=body, headers=headers) as answer:
            assert answer.status < 300
        await house.rest()
        told = house.told().decode()
        assert "upper left" not in told
        assert "temp-4711" not in told
        assert "[redacted-" in told


@pytest.mark.parametrize("pattern", ["(", "x*"])
def test_an_expression_that_finds_nothing_or_all_is_refused(pattern: str) -> None:
    table = {"capture": {"dir": "x", "redact_patterns": [pattern]}}
    with pytest.raises(ValueError, match="redact_patterns"):
        Settings.model_validate(table)


def half_a_secret(folder: Path) -> SessionCapture:
    """A capture that holds the begin of a secret back, in a delta of the log."""
    made = recorded(Files(folder, None, lambda: 1.0), "engine")
    delta = ev.TextDelta(
        thread_id="main", turn_id="t", message_id="m", block_id="b", text="it is sk-ant"
    )
    made.entries([ev.Entry(1, 1, "s", ev.SessionStarted(thread_id="main"))])
    made.entries([ev.Entry(2, 1, "s", delta)])
    return made


def test_what_is_held_back_is_written_when_the_session_leaves_memory(tmp_path: Path) -> None:
    made = half_a_secret(tmp_path)
    assert len(read(tmp_path / "s.ndjson").log) == 1
    made.close()
    assert len(read(tmp_path / "s.ndjson").log) == 2
    made.files.close()


async def test_a_session_that_leaves_memory_closes_its_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = SessionCapture.close

    def closing(self: SessionCapture) -> None:
        closed.append(self.id)
        close(self)

    monkeypatch.setattr(SessionCapture, "close", closing)
    async with House(tmp_path, "engine") as house:
        person = house.person("engine")
        await person.say("script: text")
        await person.settled(turns=1)
        name = await house.rest()
        assert closed == []
        (await house.live(name)).close()
        assert closed == [name]
