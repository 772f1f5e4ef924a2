"""`dragoman record`: what passes is the same as without it, and stands in a capture."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from adapters.captures import Capture, CapturedRequest, CapturedResponse, read_capture
from adapters.captures.redact import Redactor
from adapters.offline.captured_log import log_of
from adapters.registry import DIALECTS, deltas
from proxy import cli
from proxy.recording import background as background_module
from proxy.recording import captures as files_of
from proxy.recording.captures import Files
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.tools.recorder import Recorder, _Exchange
from tests.support.ports import HOST, free_port
from tests.support.recording import backgrounds, written
from tests.support.serving import serve
from tests.support.waiting import SOON_S
from tests.test_cli_scripted import program

__all__ = ["backgrounds"]

pytestmark = pytest.mark.usefixtures("backgrounds")


def capture(file: Path) -> Capture:
    return read_capture(file.read_bytes().splitlines(keepends=True), file.name)


def captures(folder: Path) -> dict[str | None, Capture]:
    written()
    found = [capture(file) for file in sorted(folder.glob("*.ndjson"))]
    return {one.head.session: one for one in found}


class House:
    """A backend, a recorder before it, and a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runners: list[web.AppRunner] = []
        self.time = 0.0

    def _now(self) -> float:
        self.time += 1
        return self.time

    async def start(self, dialect: str, app: web.Application, *, up: bool = True) -> None:
        runner, port = await serve(app)
        self._runners.append(runner)
        self.direct = f"http://{HOST}:{port}"
        if not up:
            self.direct = f"http://{HOST}:{free_port()}"
        self.http = aiohttp.ClientSession()
        self.upstream = aiohttp.ClientSession(auto_decompress=False)
        captured = DIALECTS[dialect].captured
        assert captured is not None
        naming = captured.naming
        self.files = Files(self.folder, dialect, self._now)
        self.recorder = Recorder(
            self.upstream, self.direct, naming, self.files, Redactor(b"salt", deltas()), self._now
        )
        front = web.Application(client_max_size=0)
        front.router.add_route("*", "/{path:.*}", self.recorder.handle)
        runner, port = await serve(front)
        self._runners.append(runner)
        self.base = f"http://{HOST}:{port}"

    def written(self) -> bytes:
        written()
        return b"".join(file.read_bytes() for file in self.folder.glob("*.ndjson"))

    async def close(self) -> None:
        await self.http.close()
        for runner in reversed(self._runners):
            await runner.cleanup()
        await self.upstream.close()
        written()
        self.files.close()

    async def ask(self, method: str, path: str, **given: Any) -> tuple[int, bytes]:
        async with self.http.request(method, self.base + path, **given) as answer:
            return answer.status, await answer.read()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    one = House(tmp_path)
    yield one
    await one.close()


def scripted(dialect: str, pace: float = 0.0) -> web.Application:
    return BACKENDS[dialect](ScriptedOptions(pace=pace))


async def test_a_conversation_with_an_eve_is_one_capture(house: House) -> None:
    await house.start("eve", scripted("eve", 0.2))
    message = {"message": "script: slow 10"}
    status, made = await house.ask("POST", "/eve/v1/session", json=message)
    session = json.loads(made)["sessionId"]
    path = f"/eve/v1/session/{session}/stream"
    async with house.http.get(house.base + path) as answer:
        read = b""
        while b"session.waiting" not in read:
            read += await answer.content.readany()
    (found,) = captures(house.folder).values()
    assert (found.head.dialect, found.head.session, found.cut) == ("eve", session, None)
    begun, stream = found.of_side("backend")
    assert (begun.request.method, begun.request.target) == ("POST", "/eve/v1/session")
    assert json.loads(begun.body) == message
    assert begun.response is not None
    assert (begun.response.status, begun.answer) == (status, made)
    assert begun.end is not None
    assert begun.end.how == "ended"
    assert stream.request.target == path
    assert stream.answer.startswith(read)
    assert len(stream.received) > 1
    reading = log_of(found)
    types = [entry.event.TYPE for entry in reading.log]
    assert (types.count("turn.ended"), types.count("message.received")) == (1, 1)
    assert reading.notes == []
    # And not otherwise than without a recorder.
    async with house.http.get(f"{house.direct}{path}") as answer:
        direct = await answer.content.readexactly(len(read))
        assert direct == read
        there = {name for name in answer.headers if name.lower().startswith("x-eve")}
    assert stream.response is not None
    assert there <= {name for name, _ in stream.response.headers}


async def test_a_client_that_leaves_is_told_from_a_stream_that_ends(house: House) -> None:
    await house.start("eve", scripted("eve"))
    _, made = await house.ask("POST", "/eve/v1/session", json={"message": "script: text"})
    session = json.loads(made)["sessionId"]
    async with house.http.get(f"{house.base}/eve/v1/session/{session}/stream") as answer:
        await answer.content.readany()
    async with asyncio.timeout(SOON_S):
        while (end := captures(house.folder)[session].exchanges[-1].end) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert end.how == "left"


@pytest.mark.parametrize("dialect", ["herm", "engine"])
async def test_a_session_is_known_by_what_its_dialect_says(house: House, dialect: str) -> None:
    await house.start(dialect, scripted(dialect))
    if dialect == "herm":
        _, made = await house.ask("POST", "/v1/agents/agent_K4/sessions", json={})
        session = json.loads(made)["id"]
        said = {"type": "user.message", "content": [{"type": "text", "text": "script: text"}]}
        status, _ = await house.ask(
            "POST", f"/v1/sessions/{session}/events", json={"events": [said]}
        )
    else:
        session = "task-1"
        body = {"message": "script: text", "task_id": session}
        status, _ = await house.ask("POST", "/execute", json=body)
        await house.ask("GET", f"/execute/replay?after=0&task_id={session}")
    assert status < 300
    assert set(captures(house.folder)) == {session}
    assert len(captures(house.folder)[session].exchanges) == 2


async def test_what_names_no_session_has_a_file_of_its_own(house: House) -> None:
    await house.start("eve", scripted("eve"))
    await house.ask("GET", "/no/such/route")
    assert set(captures(house.folder)) == {None}
    assert (house.folder / "unnamed.ndjson").exists()


async def test_credentials_are_not_recorded_and_reach_the_backend(house: House) -> None:
    seen: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers)
        return web.json_response({}, headers={"Set-Cookie": "sid=s-secret", "X-Request-Id": "7"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    await house.start("engine", app)
    secret = {
        "Authorization": "Bearer k-secret",
        "X-Engine-Key": "e-secret",
        "Cookie": "sid=c-secret",
        "Idempotency-Key": "i-1",
    }
    for _ in range(2):
        await house.ask("POST", "/execute", json={"task_id": "t"}, headers=secret)
    assert seen[0]["Authorization"] == "Bearer k-secret"
    assert (seen[0]["X-Engine-Key"], seen[0]["Cookie"]) == ("e-secret", "sid=c-secret")
    written()
    (file,) = house.folder.glob("*.ndjson")
    assert b"-secret" not in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    first, second = capture(file).exchanges
    told = dict(first.request.headers)
    assert told["Authorization"].startswith("Bearer [redacted-")
    assert told["Idempotency-Key"] == "i-1"
    # Equal values have equal marks.
    assert told["X-Engine-Key"] == dict(second.request.headers)["X-Engine-Key"]
    assert told["X-Engine-Key"] != told["Cookie"]


async def test_secrets_of_bodies_are_not_recorded_and_pass(house: House) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        sent = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in (sent["password"][:4], sent["password"][4:] + " it is"):
            data = json.dumps({"text": piece})
            await response.write(f"event: text_delta\ndata: {data}\n\n".encode())
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    await house.start("engine", app)
    body = {"task_id": "t", "password": "k-secret-1"}
    _, told = await house.ask("POST", "/execute?token=q-secret", json=body)
    assert told.count(b"event: text_delta") == 2
    assert b"k-se" in told
    assert b"cret-1 it is" in told
    written()
    (file,) = house.folder.glob("*.ndjson")
    assert b"secret-1" not in file.read_bytes()
    assert b"q-secret" not in file.read_bytes()
    (exchange,) = capture(file).exchanges
    mark = json.loads(exchange.body)["password"]
    assert mark.startswith("[redacted-")
    texts = [json.loads(line[6:])["text"] for line in exchange.answer.splitlines()[1::3]]
    assert texts == [mark, " it is"]


async def test_what_is_configured_is_not_recorded(tmp_path: Path) -> None:
    async with program("scripted", "engine") as backend:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "record"),
            *("--backend", f"engine={backend}", "--out", str(tmp_path)),
            *("--redact-key", "card", "--redact-key", "pin", "--redact-pattern", "EMP-[0-9]+"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        base = (await process.stdout.readline()).decode().split()[-1]
        body = {"message": "I am EMP-7", "task_id": "t", "card": "4111", "pin": "12"}
        async with aiohttp.ClientSession() as http, http.post(base + "/execute", json=body) as got:
            await got.read()
        process.send_signal(signal.SIGTERM)
        await process.wait()
    (exchange,) = captures(tmp_path)["t"].exchanges
    told = json.loads(exchange.body)
    assert told["message"].startswith("I am [redacted-")
    assert told["card"].startswith("[redacted-")
    assert told["pin"].startswith("[redacted-")
    assert told["task_id"] == "t"


def test_an_expression_that_matches_nothing_is_told(tmp_path: Path) -> None:
    words = ["record", "--backend", "eve=http://127.0.0.1:1", "--out", str(tmp_path / "made")]
    done = CliRunner().invoke(cli.main, [*words, "--redact-pattern", "a*"])
    assert done.exit_code == 2
    assert "--redact-pattern: `a*` matches the empty string." in done.stderr
    assert not (tmp_path / "made").exists()


async def test_a_stream_that_breaks_breaks_for_the_client_too(house: House) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: a\ndata: {}\n\n")
        # What was not read is lost with the connection.
        while b'"of":"response"' not in house.written():  # noqa: ASYNC110 - it tells of no event
            await asyncio.sleep(0.01)
        assert request.transport is not None
        request.transport.abort()
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    await house.start("engine", app)
    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ClientConnectionError)):
        await house.ask("POST", "/execute", json={"task_id": "t"})
    (exchange,) = captures(house.folder)["t"].exchanges
    assert exchange.end is not None
    assert exchange.end.how == "broke"
    assert exchange.answer == b"event: a\ndata: {}\n\n"


async def test_an_answer_before_the_request_is_whole_is_of_its_session_too(house: House) -> None:
    await house.start("engine", web.Application())
    exchange = _Exchange(house.recorder, 1, "/execute")
    head = CapturedRequest(exchange=1, side="backend", at=1.0, method="POST", target="/execute")
    exchange.put(lambda: head)
    exchange.piece("request", b'{"task_id":"t"}')
    exchange.put(lambda: CapturedResponse(exchange=1, at=1.0, status=401))
    exchange.ended("ended")
    assert len(captures(house.folder)["t"].exchanges) == 1


async def test_a_backend_that_is_not_there_is_a_502(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    await house.start("engine", web.Application(), up=False)
    status, told = await house.ask("POST", "/execute", json={"task_id": "t"})
    assert status == 502
    text = told.decode()
    assert text.startswith("The backend takes no connection. Look whether it runs at http://")
    assert "--backend" in text
    # A person who watches the recorder, as pytest does, reads the same.
    [line] = caplog.messages
    assert line == f"dragoman: {text.rstrip()}"
    (exchange,) = captures(house.folder)["t"].exchanges
    assert exchange.end is not None
    assert exchange.end.why == "The backend takes no connection."
    assert (exchange.end.how, exchange.response) == ("broke", None)


async def test_a_backend_without_tls_at_an_https_address_is_told(house: House) -> None:
    await house.start("engine", scripted("engine"))
    house.recorder.url = house.direct.replace("http:", "https:")
    status, told = await house.ask("POST", "/execute", json={"task_id": "t"})
    assert status == 502
    assert told.startswith(b"The backend does not speak TLS as it was asked to. Look whether")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Origin": "https://page.example"},
        {"Host": "127.0.0.1.example"},
    ],
)
async def test_a_page_of_elsewhere_does_not_reach_the_backend(
    house: House, headers: dict[str, str]
) -> None:
    await house.start("engine", scripted("engine"))
    status, told = await house.ask("POST", "/execute", json={"task_id": "t"}, headers=headers)
    assert status == 403
    assert b"is not of it. Ask for it by 127.0.0.1 or localhost." in told
    assert captures(house.folder) == {}
    own, body = {"Origin": "http://localhost:3000"}, {"task_id": "t", "message": "hi"}
    status, _ = await house.ask("POST", "/execute", json=body, headers=own)
    assert status == 200


@pytest.mark.parametrize(
    ("path", "asked", "came"),
    [
        ("/agent", "/", "/agent"),
        ("/agent", "/?x=1", "/agent?x=1"),
        ("/agent/", "/", "/agent/"),
        ("/agent", "/more", "/agent/more"),
        ("/agent/", "/more", "/agent/more"),
        ("", "/", "/"),
        ("/", "/more", "/more"),
    ],
)
async def test_a_path_is_kept_as_it_is_given(
    house: House, path: str, asked: str, came: str
) -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    await house.start("engine", app)
    house.recorder.url = house.direct + path
    await house.ask("GET", asked)
    assert seen == [came]


async def test_a_recorder_that_is_behind_says_what_it_left_out(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await house.start("engine", scripted("engine"))
    monkeypatch.setattr(background_module, "JOBS_MOST", 2)
    goes_on = threading.Event()
    house.recorder.background.put(None, goes_on.wait)
    status, read = await house.ask("POST", "/execute", json={"task_id": "t", "message": "hi"})
    assert (status, b"completed" in read) == (200, True)
    goes_on.set()
    found = captures(house.folder)
    (one,) = found.values()
    assert one.left_out > 1
    assert [line for line in caplog.messages if "are left out" in line] != []


async def test_ids_of_others_do_not_leave_the_folder(house: House) -> None:
    await house.start("engine", scripted("engine"))
    for name in ("../../x", "..", ".hidden", "a/b", "x" * 500, "é"):
        await house.ask("POST", "/execute", json={"task_id": name, "message": "script: text"})
    written()
    names = {file.name for file in house.folder.iterdir()}
    assert len(names) == 6
    assert all(not name.startswith(".") and len(name) < 120 for name in names)
    assert [*house.folder.parent.glob("x*.ndjson")] == []


async def test_many_sessions_do_not_keep_many_files_open(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_of, "FILES_OPEN", 3)
    await house.start("engine", scripted("engine"))
    for _ in range(2):
        for number in range(8):
            body = {"task_id": f"t{number}", "message": "script: text"}
            await house.ask("POST", "/execute", json=body)
            assert len(house.files._open) <= 3
    found = captures(house.folder)
    assert len(found) == 8
    assert all(len(one.exchanges) == 2 for one in found.values())


async def test_what_cannot_be_written_is_told_once_and_passes_all_the_same(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    await house.start("engine", scripted("engine"))
    # A folder stands where the capture is to be made anew.
    house.files._paths["t"] = house.folder
    for _ in range(2):
        body = {"task_id": "t", "message": "script: text"}
        status, read = await house.ask("POST", "/execute", json=body)
        assert status == 200
        assert b"completed" in read
    written()
    (line,) = caplog.messages
    assert line.startswith("the capture of session 't' ends here: ")


async def test_a_second_recording_has_files_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        files = Files(tmp_path, "engine", lambda: 1.0)
        files.write("t", b"")
        files.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.2.ndjson", "t.ndjson"]


async def test_a_recorder_that_is_killed_leaves_captures_that_can_be_read(tmp_path: Path) -> None:
    async with program("scripted", "engine", "--pace", "0.1") as backend:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "record"),
            *("--backend", f"engine={backend}", "--out", str(tmp_path / "made")),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        base = (await process.stdout.readline()).decode().split()[-1]
        body = {"message": "script: slow 1000", "task_id": "t"}
        async with (
            aiohttp.ClientSession() as http,
            http.post(base + "/execute", json=body) as answer,
        ):
            read = await answer.content.readany()
            while len(read) < 2_000:
                read += await answer.content.readany()
            process.send_signal(signal.SIGKILL)
            await process.wait()
    (exchange,) = captures(tmp_path / "made")["t"].exchanges
    assert exchange.end is None
    # What the thread had not written is lost with it.
    assert exchange.answer
    assert exchange.answer.startswith(read) or read.startswith(exchange.answer)
    assert json.loads(exchange.body) == body


async def test_two_recordings_are_compared_by_what_was_said(house: House) -> None:
    await house.start("engine", scripted("engine"))
    for task, message in (("a", "script: tool"), ("b", "script: tool"), ("c", "script: text")):
        await house.ask("POST", "/execute", json={"task_id": task, "message": message})
    a, b, c = (str(house.folder / f"{name}.ndjson") for name in "abc")
    assert CliRunner().invoke(cli.main, ["diff", a, b]).exit_code == 0
    done = CliRunner().invoke(cli.main, ["diff", a, c])
    assert done.exit_code == 1
    assert "message.received.content" in done.stdout


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        ("http://127.0.0.1:1", "write DIALECT=URL, with a dialect of herm, eve, engine"),
        ("hermes-agent=hooks:", "write DIALECT=URL, with a dialect of"),
        ("eve=127.0.0.1:1", "the URL must begin with http:// or https:// and name a host"),
        ("eve=http://[::1", "the URL must begin with http:// or https:// and name a host"),
        ("eve=http://127.0.0.1:99999", "the URL must begin with http:// or https:// and name"),
        (
            "eve=http://backend..example",
            "the URL must begin with http:// or https:// and name a host",
        ),
        ("eve=http://127.0.0.1 :1", "the URL must begin with http:// or https:// and name a host"),
        ("eve=http://u:hunter2@127.0.0.1", "must not hold a credential"),
        ("eve=http://127.0.0.1?x=1", "it has no `?` and no `#`"),
    ],
)
def test_what_cannot_be_recorded_is_told(tmp_path: Path, backend: str, told: str) -> None:
    done = refused(tmp_path, backend=backend)
    assert done.exit_code == 2
    assert told in done.stderr
    assert "hunter2" not in done.stderr


def refused(out: Path, *words: str, backend: str = "eve=http://127.0.0.1:1") -> Result:
    """Return what `record` says that cannot begin: its own words only."""
    done = CliRunner().invoke(cli.main, ["record", "--backend", backend, "--out", str(out), *words])
    assert isinstance(done.exception, SystemExit)
    assert "Traceback" not in done.stderr
    return done


def test_a_port_that_is_taken_is_told_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        done = refused(tmp_path, "--port", str(port))
    assert (done.exit_code, done.stderr) == (
        1,
        f"dragoman: cannot listen on 127.0.0.1:{port}: another program uses this port; stop it, or "
        "choose another port.\n",
    )


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("192.0.2.7", "this machine does not have this address; choose one that it has."),
        ("a..b", "no address is known of this name; write an address of this machine."),
        ("foo bar", "`foo bar` is not a host: write an address of this machine"),
        ("127.0.0.1:80", "`127.0.0.1:80` is not a host: write an address of this machine"),
        ("", "`` is not a host: write an address of this machine"),
    ],
)
def test_a_host_that_cannot_be_listened_on_is_told(tmp_path: Path, host: str, told: str) -> None:
    assert told in refused(tmp_path, "--host", host).stderr


def test_a_folder_that_takes_no_files_is_told_before_anything_is_recorded(tmp_path: Path) -> None:
    done = refused(Path("/proc"))
    assert done.exit_code == 2
    assert "nothing can be written into the folder /proc: " in done.stderr
    file = tmp_path / "file"
    file.touch()
    done = refused(file / "x")
    assert f"the folder {file / 'x'} cannot be made: Not a directory. Name another" in done.stderr
