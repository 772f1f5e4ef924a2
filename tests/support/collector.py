"""A collector of OpenTelemetry in this process: it takes spans by OTLP/HTTP and keeps them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.serving import served

__all__ = ["Collector", "attributes", "collecting", "sending_to"]


class Collector:
    """Has all spans that came, and what the newest request said of who sent them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}
        self.headers: dict[str, str] = {}

    async def take(self, request: web.Request) -> web.Response:
        """Take a request of an exporter."""
        body = ExportTraceServiceRequest.FromString(await request.read())
        self.headers = dict(request.headers)
        for one in body.resource_spans:
            self.resource = attributes(one.resource)
            for scope in one.scope_spans:
                self.spans += scope.spans
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(),
            content_type="application/x-protobuf",
        )

    def messages(self) -> list[Span]:
        """The spans of messages."""
        return [span for span in self.spans if span.name.startswith("invoke_agent")]

    def parts(self, of: Span) -> list[Span]:
        """The spans within another, in the order in which they came."""
        return [span for span in self.spans if span.parent_span_id == of.span_id]


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span or a resource."""
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in of.attributes
    }


def sending_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the SDK send to a collector at once, by its own variables."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    # A proxy that the environment names is for other machines.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@contextlib.asynccontextmanager
async def collecting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """Start a collector, and have the SDK send to it."""
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.take)
    async with served(app) as url:
        sending_to(url, monkeypatch)
        yield collector
