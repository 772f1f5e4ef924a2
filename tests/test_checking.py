"""What is found of backends that are well, and of those that are not."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from adapters.registry import DIALECTS as REGISTERED
from proxy.app import server
from proxy.base import logs
from proxy.base.errors import UpstreamTimeout
from proxy.cli import main, printing
from proxy.config.settings import (
    BackendSettings,
    JournalSettings,
    ServerSettings,
    Settings,
    load_settings,
)
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.backend import ScriptedBackend
from proxy.scripted.eve import create_eve_app
from proxy.scripted.eve_turns import EveVariant, Generation
from proxy.scripted.faults import Fault, Faults, Redirect, Status, WrongContentType
from proxy.scripted.herm import HERM, create_herm_app
from proxy.upstream import backend_check
from proxy.upstream.backend_check import CheckResult, check_backends, warn
from proxy.upstream.client import Upstream
from proxy.upstream.findings import Finding, Kind
from proxy.upstream.health import Health, Trouble
from tests.pairs.backends import properties_of
from tests.support.alone import Alone
from tests.support.dragoman import KNOWN
from tests.support.each import each
from tests.support.ports import free_port
from tests.support.serving import HOST, served
from tests.support.tls import self_signed
from tests.support.waiting import SOON_S, until
from tests.wire import given_messages
from tests.wire import served as served_dialects

KEY = "the-key-of-the-backend"

NEVER_S = 0.2
"""How long an answer that never comes is waited for."""

EVENTS = "text/event-stream"

DIALECTS = given_messages()


def one(dialect: str, url: str, key: str | None = None, header: str = "") -> BackendSettings:
    """A backend of a configuration, with a credential where its dialect reads it."""
    found = BackendSettings.model_validate({"name": "mine", "dialect": dialect, "url": url})
    if key is None:
        return found
    header = header or KNOWN[dialect].header
    return found.with_credential(header, key, scheme="Bearer " if header == "Authorization" else "")


async def checked(backend: BackendSettings, seconds: float = SOON_S) -> CheckResult:
    [found] = await check_backends(Settings(backends=(backend,)), seconds=seconds)
    return found


def streaming(dialect: str) -> str:
    """What is found of the streams of a backend that is new."""
    return "ok" if properties_of(dialect).probed_stream else "not asked"


def states(found: CheckResult) -> dict[str, str]:
    return {name: finding.state for name, finding in found.findings.items()}


def scripted(dialect: str, *, key: str | None = None, **plan: Fault) -> web.Application:
    """A scripted backend; in `plan` stands how the first request of a route breaks."""
    faults = Faults({(route, 1): fault for route, fault in plan.items()})
    return BACKENDS[dialect](ScriptedOptions(key=key, pace=0, faults=faults))


ASKED = web.AppKey("ASKED", list[web.Request])
"""What a service of Managed Agents was asked."""


def service(*sessions: str, key: str | None = None) -> web.Application:
    """A service of Managed Agents with sessions, which answers as its documentation says."""
    app = web.Application()
    asked = app[ASKED] = []

    def refusal(request: web.Request) -> web.Response | None:
        asked.append(request)
        status, type_ = 401, "authentication_error"
        if key is None or request.headers.get("x-api-key") == key:
            if "managed-agents-2026-04-01" in request.headers.get("anthropic-beta", ""):
                return None
            status, type_ = 400, "invalid_request_error"
        error = {"type": type_, "message": "no"}
        return web.json_response({"type": "error", "error": error}, status=status)

    async def listed(request: web.Request) -> web.StreamResponse:
        data = [{"id": one, "type": "session", "status": "idle"} for one in sessions]
        body = {"data": data, "next_page": None, "prev_page": None}
        return refusal(request) or web.json_response(body)

    async def stream(request: web.Request) -> web.StreamResponse:
        if (refused := refusal(request)) is not None:
            return refused
        answer = web.StreamResponse(headers={"Content-Type": EVENTS})
        await answer.prepare(request)
        await answer.write(b": connected\n\n")
        return answer

    app.router.add_get("/v1/sessions", listed)
    app.router.add_get("/v1/sessions/{id}/events/stream", stream)
    return app


def page(text: str = "<!doctype html><title>Log in</title>", status: int = 200) -> web.Application:
    """A server that answers everything with a page for people."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, status=status, content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


@contextlib.asynccontextmanager
async def listening(says: bytes | None, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that answers whatever it is sent with some bytes and leaves, or never."""
    leave = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(1)
            if says is None:
                await leave.wait()
            else:
                writer.write(says)
                await writer.drain()
        writer.close()

    listener = await asyncio.start_server(talk, HOST, 0, ssl=tls)
    try:
        yield f"http://{HOST}:{listener.sockets[0].getsockname()[1]}"
    finally:
        leave.set()
        listener.close()
        await listener.wait_closed()


UNREACHED = {
    "reachable": "failed",
    "credential": "not asked",
    "dialect": "not asked",
    "streaming": "not asked",
}


def fails(found: CheckResult, what: str, kind: Kind) -> str:
    """The sentence of the one thing that fails."""
    assert [name for name, one in found.findings.items() if one.state == "failed"] == [what]
    finding = found.findings[what]
    assert finding.kind is kind
    if what == "reachable":
        assert states(found) == UNREACHED
    return finding.text


# Backends that are well.


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_healthy_backend_is_well_and_hears_only_questions(
    dialect: str, key: str | None
) -> None:
    app = scripted(dialect, key=key)
    async with served(app) as url:
        found = await checked(one(dialect, url, key))
    assert found.failed is None
    assert (found.reachable.state, found.credential.state, found.speaks.state) == ("ok",) * 3
    assert found.credential.text == ("none is needed" if key is None else "")
    assert found.streaming.state == streaming(dialect)
    assert found.streaming.text
    [backend] = [value for value in app.values() if isinstance(value, ScriptedBackend)]
    assert tuple(one.route for one in backend.received) == properties_of(dialect).probed
    # A body without members says nothing.
    assert not any(json.loads(one.body) for one in backend.received if one.body)
    assert not backend.talks
    assert bool(backend.refusals) is properties_of(dialect).probed_refused


async def test_a_stream_of_a_herm_is_opened_where_it_has_a_session() -> None:
    app = create_herm_app(pace=0)
    app[HERM].create("agent_1", {})
    async with served(app) as url:
        found = await checked(one("herm", url))
    assert found.streaming == Finding("ok", "`text/event-stream`")
    assert [one.route for one in app[HERM].received] == ["sessions", "stream"]


@pytest.mark.parametrize("key", [KEY, None])
async def test_a_service_of_managed_agents_is_asked_for_its_sessions_and_the_stream_of_one(
    key: str | None,
) -> None:
    app = service("sesn_1", "sesn_2", key=key)
    async with served(app) as url:
        found = await checked(one("managed-agents", url, key))
    assert found.failed is None
    assert (found.credential.state, found.speaks.state) == ("ok", "ok")
    assert found.streaming == Finding("ok", "`text/event-stream`")
    sent = [(asked.method, asked.path_qs) for asked in app[ASKED]]
    assert sent == [
        ("GET", "/v1/sessions?limit=1"),
        ("GET", "/v1/sessions/sesn_1/events/stream"),
    ]


async def test_a_service_of_managed_agents_without_a_session_has_no_stream_to_ask_for() -> None:
    async with served(service()) as url:
        found = await checked(one("managed-agents", url))
    assert found.failed is None
    assert found.streaming.state == "not asked"
    assert "it has none yet, and to make one is an effect" in found.streaming.text


@pytest.mark.parametrize(("generation", "version"), [("T", 1), ("S1", 4), ("S2", 5)])
async def test_the_generation_of_an_eve_is_told(generation: Generation, version: int) -> None:
    async with served(create_eve_app(variant=EveVariant(generation))) as url:
        found = await checked(one("eve", url))
    assert found.failed is None
    assert f"(its info is of version {version})" in found.speaks.text


async def test_an_eve_whose_streams_are_not_read_fails() -> None:
    async with served(create_eve_app(variant=EveVariant("S2", facts=True))) as url:
        found = await checked(one("eve", url))
    text = fails(found, "dialect", Kind.GENERATION)
    assert "stream version 27" in text
    assert "16 to 26 are read" in text
    assert found.streaming.state == "not asked"


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name in served_dialects()])
async def test_a_face_of_ours_is_a_healthy_backend(dialect: str) -> None:
    async with Alone("memory:", dialect="eve") as dragoman:
        url = f"http://{HOST}:{dragoman.port}/as/{dialect}/to/eve"
        found = await checked(one(dialect, url, KEY))
    assert found.failed is None
    assert states(found) == {**dict.fromkeys(found.findings, "ok"), "streaming": streaming(dialect)}


# Backends that cannot be reached.


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_nobody_listens(dialect: str) -> None:
    port = free_port()
    found = await checked(one(dialect, f"http://{HOST}:{port}", KEY))
    text = fails(found, "reachable", Kind.REFUSED)
    assert text == (
        f"nothing listens on port {port} of `{HOST}`: start the backend, or correct `url`"
    )


async def test_a_name_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    found = await checked(one("herm", "https://agents.example", KEY))
    text = fails(found, "reachable", Kind.DNS)
    assert text == (
        "the name `agents.example` cannot be looked up (Name or service not known): "
        "correct `url`, or the DNS"
    )


async def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    async with listening(b"", self_signed(tmp_path)) as url:
        found = await checked(one("herm", url.replace("http:", "https:"), KEY))
    text = fails(found, "reachable", Kind.TLS)
    assert text.startswith("its certificate is not trusted (self-signed certificate): ")


async def test_https_where_no_tls_is_spoken() -> None:
    async with served(scripted("eve")) as url:
        found = await checked(one("eve", url.replace("http:", "https:")))
    assert "write http:// in `url`" in fails(found, "reachable", Kind.TLS)


async def test_http_where_tls_is_spoken(tmp_path: Path) -> None:
    async with listening(b"", self_signed(tmp_path)) as url:
        found = await checked(one("eve", url))
    assert "write https://" in fails(found, "reachable", Kind.NOT_HTTP)


@pytest.mark.parametrize("says", [b"SSH-2.0-OpenSSH_9.2\r\n", b""])
async def test_what_does_not_speak_http(says: bytes) -> None:
    async with listening(says) as url:
        found = await checked(one("engine", url))
    assert "does not answer with HTTP" in fails(found, "reachable", Kind.NOT_HTTP)


async def test_a_backend_that_accepts_and_never_answers() -> None:
    async with listening(None) as url:
        found = await checked(one("engine", url, KEY), NEVER_S)
    text = fails(found, "reachable", Kind.TIMEOUT)
    assert "within 0.2 s: " in text


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        (
            Redirect("https://login.example/in?next=secret"),
            Kind.REDIRECT,
            "/health is redirected (302, to https://login.example/in), and no redirect",
        ),
        (Redirect("/in?next=secret"), Kind.REDIRECT, "(302, to /in), and no redirect"),
        (Status(429, retry_after=8), Kind.RATE_LIMITED, "it takes no more requests now (429, `L"),
        (Status(500), Kind.SERVER_ERROR, "/health is answered with an error (500): look into"),
        (Status(503), Kind.SERVER_ERROR, "(503, `MIGRATION_REQUIRED`): it is starting or"),
    ],
)
async def test_a_backend_that_answers_nothing_of_use(fault: Fault, kind: Kind, told: str) -> None:
    async with served(scripted("engine", health=fault)) as url:
        found = await checked(one("engine", url))
    text = fails(found, "reachable", kind)
    assert told in text
    assert "secret" not in text


# Something else answers.


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_web_site_is_not_a_backend(dialect: str) -> None:
    async with served(page()) as url:
        found = await checked(one(dialect, url, KEY))
    assert "a page of HTML (200)" in fails(found, "dialect", Kind.HTML)
    assert found.credential.state == "not asked"


@pytest.mark.parametrize(
    ("said", "kind"), [("hello", Kind.NOT_JSON), ('{"status": "ok"}', Kind.UNEXPECTED)]
)
async def test_another_server_is_not_a_backend(said: str, kind: Kind) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=said)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with served(app) as url:
        for dialect in DIALECTS:
            fails(await checked(one(dialect, url)), "dialect", kind)


@each("key", [KEY, None])
@each("real", DIALECTS)
@each("said", DIALECTS)
async def test_a_backend_of_another_dialect_is_named(said: str, real: str, key: str | None) -> None:
    if said == real:
        return
    async with served(scripted(real, key=key)) as url:
        found = await checked(one(said, url, "another key"))
    if key is not None and not properties_of(real).probed_open:
        # Without its key nothing tells what it is.
        fails(found, "credential", Kind.CREDENTIAL_REFUSED)
        return
    probe = REGISTERED[real].probe
    if probe is not None and probe.first.call.request.method != "GET":
        # Nothing is posted to who is not known.
        fails(found, "dialect", Kind.NOT_FOUND)
        return
    text = fails(found, "dialect", Kind.OTHER_DIALECT)
    assert text == (
        f'what answers is of the dialect `{real}`: write `dialect = "{real}"`, or the `url` of '
        f"a backend of the dialect `{said}`"
    )


def herm(*sessions: str, key: str | None = None) -> web.Application:
    app = create_herm_app(key=key, pace=0)
    for agent in sessions:
        app[HERM].create(agent, {})
    return app


@each("key", [KEY, None])
@each("sessions", [(), ("one",)])
async def test_a_herm_and_managed_agents_are_told_apart(
    sessions: tuple[str, ...], key: str | None
) -> None:
    both = {"herm": herm(*sessions, key=key), "managed-agents": service(*sessions, key=key)}
    for real, app in both.items():
        (said,) = set(both) - {real}
        async with served(app) as url:
            found = await checked(one(said, url, "another key"))
        assert f"is of the dialect `{real}`" in fails(found, "dialect", Kind.OTHER_DIALECT)


@pytest.mark.parametrize(("said", "real"), [("herm", "managed-agents"), ("managed-agents", "herm")])
async def test_a_face_of_ours_is_not_taken_for_the_other_one(said: str, real: str) -> None:
    async with Alone("memory:", dialect="eve") as dragoman:
        found = await checked(one(said, f"http://{HOST}:{dragoman.port}/as/{real}/to/eve", KEY))
    assert f"is of the dialect `{real}`" in fails(found, "dialect", Kind.OTHER_DIALECT)


@pytest.mark.parametrize(
    ("dialect", "below", "told"),
    [
        ("engine", "/v2", "/health is not found there (404): correct `url`, the paths of the"),
        ("eve", "/eve/v1", "correct `url`, leave `/eve/v1` out at its end"),
        ("eve", "/eve/v1/", "correct `url`, leave `/eve/v1` out at its end"),
        ("herm", "/v1", "correct `url`, leave `/v1` out at its end"),
        ("managed-agents", "/v1", "correct `url`, leave `/v1` out at its end"),
    ],
)
async def test_a_wrong_base_path(dialect: str, below: str, told: str) -> None:
    async with served(scripted(dialect, key=KEY)) as url:
        found = await checked(one(dialect, url + below, KEY))
    assert told in fails(found, "dialect", Kind.NOT_FOUND)


# The credential.


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_credential_that_is_refused(dialect: str) -> None:
    properties = properties_of(dialect)
    code = properties.unauthorized
    async with served(scripted(dialect, key=KEY)) as url:
        found = await checked(one(dialect, url, "a wrong key"))
    text = fails(found, "credential", Kind.CREDENTIAL_REFUSED)
    said = f"401, `{code}`" if code else "401"
    assert text.startswith(f"it refuses our credential ({said}): correct the credential")
    assert found.speaks.state == ("ok" if properties.probed_open else "unknown")
    assert found.streaming.state == "not asked"


async def test_the_variable_of_a_refused_credential_is_named(tmp_path: Path) -> None:
    async with served(scripted("herm", key=KEY)) as url:
        file = tmp_path / "dragoman.toml"
        file.write_text(
            f'[[backends]]\nname = "mine"\ndialect = "herm"\nurl = "{url}"\n'
            'auth = { bearer_env = "MINE" }\n'
        )
        settings = load_settings(file, {"MINE": "a wrong key"})
        [found] = await check_backends(settings, seconds=SOON_S)
    text = fails(found, "credential", Kind.CREDENTIAL_REFUSED)
    assert "correct the environment variable `MINE`, then start again" in text


@pytest.mark.parametrize(
    ("dialect", "form"),
    [
        ("engine", '{ header = "X-Engine-Key", env = "VARIABLE" }'),
        ("eve", '{ bearer_env = "VARIABLE" }'),
        ("herm", '{ bearer_env = "VARIABLE" }'),
    ],
)
async def test_a_credential_that_is_missing(dialect: str, form: str) -> None:
    async with served(scripted(dialect, key=KEY)) as url:
        found = await checked(one(dialect, url))
    text = fails(found, "credential", Kind.CREDENTIAL_MISSING)
    assert text == f"it wants a credential (401): add `auth = {form}`"


@pytest.mark.parametrize(
    ("key", "kind", "told"),
    [
        ("a wrong key", Kind.CREDENTIAL_REFUSED, "it refuses our credential (401"),
        (None, Kind.CREDENTIAL_MISSING, '`auth = { header = "x-api-key", env = "VARIABLE" }`'),
    ],
)
async def test_a_credential_that_managed_agents_refuse(
    key: str | None, kind: Kind, told: str
) -> None:
    async with served(service("sesn_1", key=KEY)) as url:
        found = await checked(one("managed-agents", url, key))
    assert told in fails(found, "credential", kind)
    assert found.speaks.state == "ok"


async def test_a_credential_in_a_header_that_is_not_read() -> None:
    async with served(scripted("engine", key=KEY)) as url:
        found = await checked(one("engine", url, KEY, header="Authorization"))
    text = fails(found, "credential", Kind.CREDENTIAL_REFUSED)
    assert "reads the header `X-Engine-Key`, and `auth` puts it into `Authorization`" in text


async def test_a_credential_without_rights() -> None:
    async with served(scripted("herm", sessions=Status(403))) as url:
        found = await checked(one("herm", url, KEY))
    text = fails(found, "credential", Kind.CREDENTIAL_REFUSED)
    assert "(403, `forbidden`): give it the rights" in text


async def test_a_gateway_that_wants_a_credential_itself() -> None:
    async with served(page(status=401)) as url:
        found = await checked(one("engine", url, KEY))
    assert fails(found, "credential", Kind.CREDENTIAL_REFUSED).startswith("it refuses")
    assert found.speaks.state == "unknown"


@pytest.mark.parametrize(
    "fault", [Status(404), Status(500), WrongContentType("text/html"), Status(200, body=b"<p>")]
)
async def test_a_credential_of_which_nothing_is_learned_is_never_well(fault: Fault) -> None:
    async with served(scripted("engine", key=KEY, pending=fault)) as url:
        found = await checked(one("engine", url, KEY))
    known = isinstance(fault, WrongContentType)
    assert found.credential.state == ("ok" if known else "unknown")
    assert found.credential.text or known
    assert found.speaks.state == "ok"


async def test_no_finding_has_a_secret() -> None:
    async with served(scripted("herm", sessions=Redirect(f"/login/{KEY}"))) as url:
        found = await checked(one("herm", url, KEY))
    assert "/login/[redacted]" in fails(found, "reachable", Kind.REDIRECT)


# Streams.


async def test_a_stream_of_a_wrong_content_type() -> None:
    fault = WrongContentType("text/plain; charset=utf-8")
    async with served(scripted("engine", replay=fault)) as url:
        found = await checked(one("engine", url))
    text = fails(found, "streaming", Kind.CONTENT_TYPE)
    assert "answered with `text/plain` and not with `text/event-stream`" in text


async def test_a_stream_that_never_begins_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> NoReturn:
        raise UpstreamTimeout("The backend did not answer in time.")

    monkeypatch.setattr(Upstream, "head", never)
    async with served(scripted("engine")) as url:
        found = await checked(one("engine", url))
    assert found.failed is None
    assert (found.streaming.state, found.streaming.kind) == ("unknown", Kind.BUFFERED)
    assert "turn its buffering off" in found.streaming.text


async def test_a_stream_that_is_collected_to_its_end() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/execute/replay":
            return web.Response(text="event: heartbeat\ndata: {}\n\n", content_type=EVENTS)
        body = {"pending": [], "status": "ok", "subsystems": {}}
        return web.json_response(body)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with served(app) as url:
        found = await checked(one("engine", url))
    assert "comes with a length" in fails(found, "streaming", Kind.BUFFERED)


@pytest.mark.parametrize("status", [404, 503])
async def test_a_stream_that_is_refused_is_not_known(status: int) -> None:
    async with served(scripted("engine", replay=Status(status))) as url:
        found = await checked(one("engine", url))
    assert found.streaming.state == "unknown"


# The start of a server.


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    stream = io.StringIO()
    logs.configure(level="warning", stream=stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)
    logging.raiseExceptions = raising


async def test_each_backend_that_fails_is_a_line(logged: io.StringIO) -> None:
    port = free_port()
    async with served(scripted("herm")) as url:
        settings = Settings(
            backends=(
                one("herm", url).model_copy(update={"name": "well"}),
                one("eve", url).model_copy(update={"name": "other"}),
                one("engine", f"http://{HOST}:{port}").model_copy(update={"name": "down"}),
            )
        )
        health = {one.name: Health(one.name, one.url) for one in settings.backends}
        await warn(settings, health)
    other, down = lines(logged.getvalue())
    assert (other["level"], other["backend"], other["kind"]) == ("warning", "other", "dialect")
    assert "what answers is of the dialect `herm`" in other["message"]
    assert (down["backend"], down["kind"]) == ("down", "connection")
    # A request that finds the same says nothing new.
    health["down"].failed(Trouble.CONNECTION, "refused")
    assert len(lines(logged.getvalue())) == 2


def test_each_thing_that_fails_has_a_kind_in_the_log() -> None:
    # What messages say is not found by a check.
    of_the_dialect = {kind for kind in Kind if kind not in backend_check._TROUBLE} - {
        Kind.MESSAGES_FAIL
    }
    assert of_the_dialect == {
        *(Kind.REDIRECT, Kind.HTML, Kind.NOT_JSON, Kind.UNEXPECTED, Kind.OTHER_DIALECT),
        *(Kind.GENERATION, Kind.NOT_FOUND, Kind.CONTENT_TYPE, Kind.BUFFERED),
    }


@contextlib.asynccontextmanager
async def started(**given: Any) -> AsyncIterator[str]:
    """A server with one backend that is down."""
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    settings = Settings(
        server=ServerSettings(listen=f"{HOST}:0"),
        journal=JournalSettings(url="memory:"),
        backends=(one("engine", f"http://{HOST}:{free_port()}"),),
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve(settings, ready=url.set_result, stop=stop, **given))
        yield await url
        stop.set()


async def test_a_start_warns_once_it_serves(logged: io.StringIO) -> None:
    async with started():
        await until(lambda: "nothing listens on port" in logged.getvalue())
    [line] = [one for one in lines(logged.getvalue()) if "backend" in one]
    assert (line["level"], line["backend"]) == ("warning", "mine")


async def test_a_check_that_hangs_or_fails_holds_up_no_start_and_no_stop(
    logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(*_: object) -> None:
        logging.getLogger("tests").warning("hangs")
        await asyncio.Event().wait()

    async def fails_(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(server, "warn", hangs)
    async with started():
        await until(lambda: "hangs" in logged.getvalue())
    monkeypatch.setattr(server, "warn", fails_)
    async with started() as url, aiohttp.ClientSession() as http:
        await until(lambda: "failed" in logged.getvalue())
        async with http.get(f"{url}/readyz") as answer:
            assert answer.status == 200
    [line] = [one for one in lines(logged.getvalue()) if one["level"] == "error"]
    assert line["message"] == "task `checks: backends` failed"


async def test_a_server_that_is_not_to_check_asks_nothing(
    logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def told(*_: object) -> None:
        asked.append(1)

    monkeypatch.setattr(server, "warn", told)
    async with started(checked=False):
        await asyncio.sleep(0)
    assert asked == []


# The command.


async def dragoman(*words: str, **environ: str) -> Result:
    names = {"DRAGOMAN_CONFIG": None, **environ}
    return await asyncio.to_thread(CliRunner().invoke, main, words, env=names)


def written(folder: Path, *backends: tuple[str, str, str]) -> str:
    """A configuration of backends, by their names, dialects and addresses."""
    file = folder / "dragoman.toml"
    file.write_text(
        "".join(
            f'[[backends]]\nname = "{name}"\ndialect = "{dialect}"\nurl = "{url}"\n'
            'auth = { bearer_env = "MINE" }\n'
            for name, dialect, url in backends
        )
    )
    return str(file)


async def test_the_command_prints_a_table_and_exits_with_1_where_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    port = free_port()
    async with served(scripted("herm", key=KEY)) as url:
        well, down = ("well", "herm", url), ("down", "eve", f"http://{HOST}:{port}")
        done = await dragoman("check", "--config", written(tmp_path, well), MINE=KEY)
        failed = await dragoman("check", "--config", written(tmp_path, well, down), MINE=KEY)
    assert done.exit_code == 0, done.output
    assert failed.exit_code == 1
    head, *lines = failed.stdout.splitlines()
    assert head.split()[:3] == ["backend", "check", "state"]
    assert max(map(len, lines)) <= 80
    text = " ".join(failed.stdout.split())
    assert f"well reachable ok {url} well credential ok well dialect ok herm, none" in text
    assert f"down reachable failed nothing listens on port {port} of `{HOST}`:" in text
    assert "down streaming not asked the backend does not answer" in text
    assert KEY not in failed.output


async def test_the_command_prints_json(tmp_path: Path) -> None:
    async with served(scripted("eve", key=KEY)) as url:
        file = written(tmp_path, ("mine", "eve", url))
        done = await dragoman("check", "--json", "--config", file, MINE="a wrong key")
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert (answer["version"], answer["ok"]) == (1, False)
    [found] = answer["backends"]
    assert (found["name"], found["url"], found["configured_dialect"]) == ("mine", url, "eve")
    assert found["reachable"] == {"state": "ok", "text": url, "kind": None}
    assert found["credential"]["kind"] == "credential_refused"
    assert found["streaming"]["state"] == "not_asked"


async def test_the_command_says_what_is_wrong_with_the_configuration(tmp_path: Path) -> None:
    file = written(tmp_path, ("mine", "eve", "http://127.0.0.1:1"))
    unset = await dragoman("check", "--config", file)
    assert unset.exit_code == 2
    assert "the environment variable `MINE` is not set" in unset.stderr
    empty = await dragoman("check", "--config", written(tmp_path))
    assert empty.exit_code == 1
    assert empty.stderr == "dragoman: no backend is configured: add a table [[backends]].\n"
