"""Spans of messages as a collector gets them, over each backend; and what a collector that is away
may not do."""

from __future__ import annotations

import asyncio
import builtins
import gc
import logging
import tomllib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace.sampling import ParentBased

from proxy.app.server import opened_sessions
from proxy.base.errors import ConfigError
from proxy.config.settings import Settings
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.telemetry.spans import MessageSpan, SessionSpans
from proxy.telemetry.tracing import Complaints, Tracing, open_tracing
from tests.pairs.backends import properties_of
from tests.support.clocks import ShortWaits
from tests.support.collector import Collector, attributes, collecting, sending_to
from tests.support.dragoman import BACKEND_KEY, backend_settings
from tests.support.ports import free_port
from tests.support.proxied import Proxied, proxied
from tests.support.serving import HOST, served
from tests.support.waiting import until

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACE = f"00-{TRACE_ID}-{PARENT}-01"

OTEL = {"enabled": True}

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each request come with a trace."""
    ask = Proxied.request

    async def request(self: Proxied, *args: Any, **options: Any) -> tuple[int, Any]:
        headers = {"traceparent": TRACE, **options.pop("headers", {})}
        return await ask(self, *args, headers=headers, **options)

    monkeypatch.setattr(Proxied, "request", request)


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> Any:
    async with collecting(monkeypatch) as collector:
        yield collector


async def one_message(collector: Collector) -> Span:
    """Wait for the only message, whose spans come in one request or several."""
    await until(lambda: bool(collector.messages()))
    [message] = collector.messages()
    return message


def check_times(message: Span, parts: list[Span]) -> None:
    """Check that each part is within its message."""
    assert message.start_time_unix_nano <= message.end_time_unix_nano
    for part in parts:
        assert message.start_time_unix_nano <= part.start_time_unix_nano
        assert part.start_time_unix_nano <= part.end_time_unix_nano <= message.end_time_unix_nano


@pytest.mark.parametrize("dialect", BACKENDS)
async def test_a_message_with_a_question_is_told_as_a_trace(
    dialect: str, collector: Collector
) -> None:
    app = BACKENDS[dialect](ScriptedOptions(key=BACKEND_KEY, pace=0.0))
    async with (
        served(app) as url,
        proxied(backends=[backend_settings("quarry", dialect, url)], otel=OTEL) as dragoman,
    ):
        session = await dragoman.say("script: approve", route="quarry")
        asked = await dragoman.asked(session)
        assert collector.messages() == []
        answer = {"inputResponses": [{"requestId": asked.request_id, "optionId": "approve"}]}
        path = f"/as/eve/to/quarry/eve/v1/session/{session}"
        assert (await dragoman.request("POST", path, json=answer))[0] in (200, 202)
        await dragoman.until_idle(session)
        message = await one_message(collector)
    parts = collector.parts(message)
    assert message.trace_id.hex() == TRACE_ID
    assert message.parent_span_id.hex() == PARENT
    assert message.kind == Span.SPAN_KIND_CLIENT
    assert message.status.code == Status.STATUS_CODE_UNSET
    assert {part.trace_id.hex() for part in parts} == {TRACE_ID}
    about = attributes(message)
    assert about["gen_ai.operation.name"] == "invoke_agent"
    assert about["gen_ai.provider.name"] == dialect
    assert about["gen_ai.agent.name"] == "quarry"
    assert about["gen_ai.conversation.id"] == session
    assert about["dragoman.outcome"] == "completed"
    assert "error.type" not in about
    names = [part.name for part in parts]
    assert names[:3] == ["store", "queue", "send"]
    assert names.count("wait for a person") == 1
    tools = [part for part in parts if part.name.startswith("execute_tool ")]
    assert tools
    assert all(attributes(one)["gen_ai.operation.name"] == "execute_tool" for one in tools)
    [wait] = [part for part in parts if part.name == "wait for a person"]
    assert attributes(wait) == {
        "dragoman.interaction.kind": "approval",
        "dragoman.interaction.outcome": "approved",
    }
    check_times(message, parts)
    moments = [event.name for event in message.events]
    assert moments == ["accept", "first event", "end"]
    assert collector.resource["service.name"] == "dragoman"


@pytest.mark.parametrize("dialect", BACKENDS)
async def test_a_message_that_fails_has_an_error_with_our_code(
    dialect: str, collector: Collector
) -> None:
    app = BACKENDS[dialect](ScriptedOptions(key=BACKEND_KEY, pace=0.0))
    async with (
        served(app) as url,
        proxied(backends=[backend_settings("quarry", dialect, url)], otel=OTEL) as dragoman,
    ):
        await dragoman.say("script: fail", route="quarry")
        message = await one_message(collector)
    assert message.status.code == Status.STATUS_CODE_ERROR
    assert attributes(message)["error.type"] == properties_of(dialect).failure
    assert attributes(message)["dragoman.outcome"] == "failed"


async def test_the_last_spans_are_sent_when_the_server_stops(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "front-desk")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=t7")
    async with proxied(otel=OTEL) as dragoman:
        session = await dragoman.say("hello")
        await dragoman.until_idle(session)
        assert collector.spans == []
    assert len(collector.messages()) == 1
    assert collector.resource["service.name"] == "front-desk"
    assert collector.headers["x-tenant"] == "t7"


async def test_a_trace_that_is_not_sampled_is_not_sent(collector: Collector) -> None:
    tracing = open_tracing(ShortWaits().monotonic)
    tracing.send(MessageSpan("invoke_agent a", 1, 2, trace=TRACE[:-1] + "0"))
    tracing.send(MessageSpan("invoke_agent b", 1, 2, trace="no traceparent"))
    tracing.send(MessageSpan("invoke_agent c", 1, 2))
    await tracing.aclose(60)
    # What came with no trace begins one.
    assert [span.name for span in collector.spans] == ["invoke_agent b", "invoke_agent c"]
    assert {span.parent_span_id for span in collector.spans} == {b""}
    assert len({span.trace_id for span in collector.spans}) == 2


async def test_without_the_table_nothing_is_gathered_or_sent(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def must_not(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Tracing, "of", must_not)
    monkeypatch.setattr(SessionSpans, "hear", must_not)
    async with proxied() as dragoman:
        await dragoman.until_idle(await dragoman.say("hello"))
    assert collector.spans == []


# What a collector may not do.


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log has of the SDK, and of what it says through us."""
    return [
        one.getMessage()
        for one in caplog.records
        if one.name.startswith("opentelemetry") or one.__dict__.get("kind") == "traces"
    ]


async def test_a_collector_that_is_away_costs_spans_and_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sending_to(f"http://{HOST}:{free_port()}", monkeypatch)
    async with proxied(otel=OTEL) as dragoman:
        for _ in range(3):
            session = await dragoman.say("hello")
            await dragoman.until_idle(session)
        await until(lambda: bool(complaints(caplog)))
        assert len(complaints(caplog)) == 1
    assert complaints(caplog)[-1] == "traces: the last spans were not delivered"
    assert all(one.levelno == logging.WARNING for one in caplog.records)
    await until(lambda: logging.getLogger("opentelemetry").handlers == [])
    assert len(complaints(caplog)) == 2


async def test_a_collector_that_never_answers_holds_neither_messages_nor_the_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, released = asyncio.Event(), asyncio.Event()

    async def never(request: web.Request) -> web.Response:
        asked.set()
        await released.wait()
        return web.Response(status=503)

    app = web.Application()
    app.router.add_post("/v1/traces", never)
    async with served(app) as url:
        sending_to(url, monkeypatch)
        async with proxied(otel=OTEL) as dragoman:
            await dragoman.until_idle(await dragoman.say("hello"))
            await asked.wait()
            await dragoman.until_idle(await dragoman.say("hello again"))
        assert complaints(caplog) == ["traces: the last spans were not delivered"]
        released.set()
    await until(lambda: logging.getLogger("opentelemetry").handlers == [])


async def test_what_a_sampler_raises_does_not_fail_the_session(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("the words of a library")

    monkeypatch.setattr(ParentBased, "should_sample", broken)
    async with proxied(otel=OTEL) as dragoman:
        session = await dragoman.say("hello")
        await dragoman.until_idle(session)
        await dragoman.say("again", session)
        await dragoman.until_idle(session, turns=2)
    assert complaints(caplog) == ["traces: a message is left out: ValueError"]
    assert collector.spans == []


def test_the_sdk_is_heard_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    heard = Complaints(lambda: now)
    heard.open()
    try:
        log = logging.getLogger("opentelemetry.exporter.any")
        for number in range(5):
            log.error("no collector, attempt %d", number)
        log.info("a word")
        now += 60.0
        log.warning("still none")
    finally:
        heard.close()
    assert complaints(caplog) == ["traces: no collector, attempt 0", "traces: still none"]


async def test_a_session_that_leaves_memory_leaves_no_message_behind(collector: Collector) -> None:
    async with proxied(otel=OTEL) as dragoman:
        session = await dragoman.say("script: approve")
        await dragoman.asked(session)
        assert gathered() == [1]
        dragoman.sessions.cache.forget(session)
        await until(lambda: gathered() == [])
        # Loaded again it goes on, without spans of what began before.
        await dragoman.asked(session)
        assert gathered() == [0]
    assert collector.spans == []


def gathered() -> list[int]:
    """How many messages each session has that is not over, of the sessions in memory."""
    gc.collect()
    return [len(one) for one in gc.get_objects() if isinstance(one, SessionSpans)]


# How it is turned on.


async def test_without_the_extra_the_start_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any, **members: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}")
        return imported(name, *rest, **members)

    monkeypatch.setattr(builtins, "__import__", without)
    settings = Settings.model_validate({"journal": {"url": "memory:"}, "otel": OTEL})
    with pytest.raises(ConfigError, match=r"pip install \"dragoman\[otel\]\""):
        async with opened_sessions(settings):
            raise AssertionError
    # Who does not ask for it needs it for nothing.
    async with proxied() as dragoman:
        await dragoman.until_idle(await dragoman.say("hello"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["otel"]


async def test_a_variable_that_the_sdk_refuses_ends_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    settings = Settings.model_validate({"journal": {"url": "memory:"}, "otel": OTEL})
    with pytest.raises(ConfigError, match="max_queue_size"):
        async with opened_sessions(settings):
            raise AssertionError
    assert logging.getLogger("opentelemetry").handlers == []
