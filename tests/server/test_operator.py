"""What an operator and the frontend's person are told of six backends: five that are dead or refuse
the proxy, and one that is killed in the middle of a stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from adapters.model import events as ev
from adapters.registry import faces
from adapters.wire.errors import SESSION_LOST
from proxy import __version__
from proxy.app.server import serve
from proxy.config.settings import Settings
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.faults import Faults, Garbage, Stall
from proxy.upstream.backend_check import check_backends
from proxy.upstream.findings import Kind
from tests.support.dragoman import BACKEND_KEY, backend_settings
from tests.support.journals import stored_entries
from tests.support.keys import key_of
from tests.support.logs import keeping, put, started
from tests.support.ports import free_port
from tests.support.proxied import Proxied, proxied
from tests.support.running import Run
from tests.support.serving import HOST, served
from tests.support.tls import self_signed
from tests.support.waiting import SOON_S, settled, until
from tests.test_metrics import number, run

__all__ = ["run"]

NAMELESS = "nowhere.invalid"

DIALECTS = ("herm", "eve", "engine", "managed-agents")


class Told(NamedTuple):
    """What is told of a backend: the kind of its line in the log and the words there, what the
    frontend hears, the row of `dragoman check` and what kind it has, whether its metric says that
    it answers."""

    kind: str
    line: str
    heard: str
    check: tuple[str, Kind]
    up: bool


TOLD = {
    "gone": Told(
        "connection",
        "backend `gone` takes no connection: Connect call failed",
        "Backend `gone` takes no connection.",
        ("reachable", Kind.REFUSED),
        up=False,
    ),
    "nameless": Told(
        "dns",
        "backend `nameless` cannot be found by its host name: ",
        "Backend `nameless` cannot be found: its host name is not known.",
        ("reachable", Kind.DNS),
        up=False,
    ),
    "untrusted": Told(
        "tls",
        "backend `untrusted` has no TLS that can be trusted: ",
        "Backend `untrusted` has a certificate that is not trusted.",
        ("reachable", Kind.TLS),
        up=False,
    ),
    "foreign": Told(
        "dialect",
        "backend `foreign` does not speak its dialect, or another version of it: it answers ",
        "answered 404",
        ("dialect", Kind.NOT_FOUND),
        up=True,
    ),
    "locked": Told(
        "credential",
        "backend `locked` refuses the proxy's credential: it answers ",
        "Backend `locked` refused the proxy's credential.",
        ("credential", Kind.CREDENTIAL_REFUSED),
        up=True,
    ),
}


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test ask for a host's name."""
    real = asyncio.BaseEventLoop.getaddrinfo

    async def getaddrinfo(loop: Any, host: Any, *rest: Any, **options: Any) -> Any:
        if host == NAMELESS:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await real(loop, host, *rest, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)


@contextlib.asynccontextmanager
async def backend(name: str, dialect: str, folder: Path) -> AsyncIterator[str]:
    """The address of one of the backends."""
    match name:
        case "gone":
            yield f"http://{HOST}:{free_port()}"
        case "nameless":
            yield f"http://{NAMELESS}:4000"
        case "untrusted":
            listener = await asyncio.start_server(
                lambda _, writer: writer.close(), HOST, 0, ssl=self_signed(folder)
            )
            async with listener:
                yield f"https://{HOST}:{listener.sockets[0].getsockname()[1]}"
        case "foreign":
            async with served(web.Application()) as url:
                yield url
        case _:
            async with served(BACKENDS[dialect](ScriptedOptions(key="another", pace=0.0))) as url:
                yield url


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.levelno >= logging.WARNING]


def is_of_message(line: logging.LogRecord) -> bool:
    """Whether a line tells how a message ended: there is one for each."""
    return str(line.__dict__.get("kind", "")).startswith("message_")


async def heard(dragoman: Proxied, session: str) -> list[str]:
    """What the log of a session says went wrong, once something does."""
    texts: list[str] = []
    async with asyncio.timeout(SOON_S):
        while not texts:
            live = await dragoman.session(session)
            news = live.news()
            texts = [
                one.event.error.message
                for one in await stored_entries(dragoman.sessions.journal, session)
                if isinstance(one.event, ev.InputSettled | ev.TurnEnded) and one.event.error
            ]
            if not texts:
                await news.wait()
    return texts


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", TOLD)
async def test_a_backend_that_cannot_be_used_is_told_to_the_operator_and_the_frontend(
    name: str,
    dialect: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = TOLD[name]
    caplog.set_level(logging.INFO)
    async with (
        backend(name, dialect, tmp_path) as url,
        proxied(backends=[backend_settings(name, dialect, url)]) as dragoman,
    ):
        texts = await heard(dragoman, await dragoman.say("hello", route=name))
        # A second one says the same, and the log does not.
        texts += await heard(dragoman, await dragoman.say("hello again", route=name))
        status, body = await dragoman.request("GET", "/readyz?backends=1")
        down = (status, body["why"])
        [found] = await check_backends(dragoman.sessions.settings)
    assert all(told.heard in text for text in texts), texts
    address = url.partition("://")[2]
    for text in texts:
        assert address not in text
        assert NAMELESS not in text
        assert "X-Engine-Key" not in text
    lines = [one for one in warnings(caplog) if getattr(one, "backend", None) == name]
    assert [one.kind for one in lines if not is_of_message(one)] == [told.kind]  # type: ignore[attr-defined]
    assert lines[0].getMessage().startswith(told.line)
    assert lines[0].url == url  # type: ignore[attr-defined]
    assert found.failed is not None
    what, finding = found.failed
    assert (what, finding.kind) == told.check
    assert number("dragoman_backend_up", backend=name) == told.up
    assert down == (503, {name: str(told.check[1])})


def kinds(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The kinds of the warnings so far, in order."""
    return [one.kind for one in warnings(caplog)]  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def scripted(dialect: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A scripted backend in a process of its own, which answers slowly."""
    words = ("scripted", dialect, "--port", str(port), "--key", BACKEND_KEY, "--pace", "0.1")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", *words), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SOON_S):
            assert (await process.stdout.readline()).startswith(b"listening")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def shown(dragoman: Proxied, session: str) -> Any:
    """A session as the control API shows it."""
    return (await dragoman.request("GET", f"/api/v1/sessions/{session}"))[1]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_backend_that_is_killed_in_the_middle_of_a_stream_is_told_and_its_return(
    dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    port = free_port()
    backend = backend_settings(dialect, dialect, f"http://{HOST}:{port}")
    async with proxied(backends=[backend]) as dragoman:
        async with scripted(dialect, port) as process:
            session = await dragoman.say("script: slow 400", route=dialect)
            live = await dragoman.session(session)
            await until(lambda: live.state.seq > 8)
            assert (await shown(dragoman, session))["reconnecting_since"] is None
            before = dragoman.sessions.clock.now()
            process.kill()
            await process.wait()
        await until(lambda: "connection" in kinds(caplog))
        await until(lambda: live.reconnecting_since is not None)
        since = (await shown(dragoman, session))["reconnecting_since"]
        assert before <= since <= dragoman.sessions.clock.now()
        assert number("dragoman_backend_up", backend=dialect) == 0
        [found] = await check_backends(dragoman.sessions.settings)
        assert found.reachable.kind is Kind.REFUSED
        assert kinds(caplog) == ["stream_lost", "connection"]
        lost, refused = [one.getMessage() for one in warnings(caplog)]
        assert lost.startswith(
            f"backend `{dialect}` lost a stream: The stream of backend `{dialect}` broke: "
        )
        assert refused.startswith(f"backend `{dialect}` takes no connection: ")
        async with scripted(dialect, port):
            await until(lambda: "back" in kinds(caplog))
            assert kinds(caplog)[:3] == ["stream_lost", "connection", "back"]
            assert warnings(caplog)[2].getMessage() == f"backend `{dialect}` is back again"
            await until(lambda: number("dragoman_backend_up", backend=dialect) == 1)


async def test_a_frame_that_cannot_be_read_is_told_without_what_is_in_it(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    garbage = b'event: text_delta\ndata: {"secret words\n\n'
    running = await run(engine={"faults": Faults({("execute", 1): Garbage(3, garbage)})})
    client = await running.eve().create("hello")
    await client.read_turn()
    assert kinds(caplog) == ["frame_skipped"]
    [line] = [one.getMessage() for one in warnings(caplog)]
    assert line.startswith(f"session `{client.session_id}`: a frame of backend `engine` is skipped")
    assert "secret words" not in line


async def test_a_page_in_the_place_of_a_stream_is_another_dialect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="<title>Log in</title>", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", page)
    async with (
        served(app) as url,
        proxied(backends=[backend_settings("page", "engine", url)]) as dragoman,
    ):
        await dragoman.say("hello", route="page")
        await until(lambda: "dialect" in kinds(caplog))
    said = "it answers `execute` with `text/html`, not with a stream"
    assert warnings(caplog)[0].getMessage().endswith(said)


async def test_a_stream_that_is_broken_to_ask_the_backend_is_not_lost(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stall = Faults({("execute", 1): Stall(after_event=4)})
    running = await run(engine={"faults": stall})
    client = await running.eve().create("hello")
    await client.read_turn()
    assert any("so its backend is asked" in one.getMessage() for one in caplog.records)
    assert "stream_lost" not in kinds(caplog)


async def test_a_turn_that_is_given_up_is_told_once_with_its_reason(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    running = await run(engine={"pace": 0.1})
    session = (await running.eve().create("script: slow 400")).session_id
    live = await running.live(session)
    await until(lambda: live.state.seq > 8)
    await running.stop_backend("engine")
    await settled(live)
    assert kinds(caplog) == ["connection", "settled", "turn_failed", "message_failed"]
    given_up, failed = [one.getMessage() for one in warnings(caplog)[1:3]]
    why = "what runs at backend `engine` is given up: Backend `engine` takes no connection."
    assert given_up == f"session `{session}`: {why}"
    assert failed == f"session `{session}`: a turn of backend `engine` failed: {SESSION_LOST}"
    assert live.reconnecting_since is None


async def test_a_frontend_is_told_with_502_that_the_proxys_credential_is_refused() -> None:
    async with (
        served(BACKENDS["herm"](ScriptedOptions(key="another", pace=0.0))) as url,
        proxied(backends=[backend_settings("locked", "herm", url)]) as dragoman,
    ):
        session = await dragoman.say("hello", route="locked")
        await heard(dragoman, session)
        status, body = await dragoman.request("DELETE", f"/api/v1/sessions/{session}")
    assert status == 502
    assert body["error"]["code"] == "backend_refused"
    assert body["error"]["message"] == "Backend `locked` refused the proxy's credential."


async def test_a_request_that_is_refused_is_told_without_its_ids_and_its_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    keys = (key_of("carlotta"), key_of("boss", admin=True))
    async with proxied(keys=keys) as dragoman:
        path = "/as/eve/to/engine/eve/v1/session/dgs_someones"
        for key in (None, "k-nobody", "k-boss", "k-carlotta"):
            await dragoman.request("POST", path, key=key, json={"message": "m"})
    lines = [one for one in caplog.records if hasattr(one, "face")]
    assert [(one.levelname, one.face, one.status, one.remote) for one in lines] == [  # type: ignore[attr-defined]
        ("INFO", "eve", status, HOST) for status in (401, 401, 403)
    ]
    form = "/as/eve/to/{route}/eve/v1/session/{session}"
    assert lines[0].getMessage() == f"POST {form} is refused with 401, to {HOST}"
    assert "dgs_someones" not in caplog.text
    assert "k-nobody" not in caplog.text


async def test_what_is_started_and_stopped_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    async with keeping(tmp_path) as journal:
        log = [started()]
        await put(journal, "dgs_1", log, state="running", route="quarry", backend="quarry")
    async with served(BACKENDS["eve"](ScriptedOptions(key=BACKEND_KEY, pace=0.0))) as url:
        settings = Settings.model_validate(
            {
                "server": {"listen": f"{HOST}:0"},
                "journal": {"url": f"sqlite:///{tmp_path}/dragoman.db"},
                "backends": [backend_settings("quarry", "eve", url)],
                "listeners": [
                    {"listen": f"{HOST}:{free_port()}", "dialect": "herm", "route": "quarry"}
                ],
            }
        )
        task = asyncio.create_task(serve(settings, ready=listening.set_result, stop=stop))
        async with asyncio.timeout(SOON_S):
            base = await listening
        stop.set()
        await task
    lines = {one.__dict__["kind"]: one for one in caplog.records if one.name == "proxy.app.server"}
    assert list(lines) == ["started", "stopping", "stopped"]
    assert {one.levelname for one in lines.values()} == {"INFO"}
    told = lines["started"].__dict__
    assert told["version"] == __version__
    assert told["url"] == base
    assert told["journal"] == settings.journal.url
    assert told["sessions"] == 1
    assert told["serves"] == [
        *(f"{base}/as/{dialect}/to/quarry {dialect} quarry" for dialect in faces()),
        f"http://{settings.listeners[0].listen} herm quarry",
    ]
