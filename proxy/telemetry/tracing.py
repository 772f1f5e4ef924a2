"""Hands the spans of messages to OpenTelemetry's SDK, which sends them to a collector by OTLP/HTTP.

The SDK is the extra `otel`. Where it sends to, and how, it reads itself from the standard
environment variables (`OTEL_EXPORTER_OTLP_ENDPOINT` and the like). It sends in a thread of its own,
from a queue that is bounded: a collector that is away costs spans, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from proxy import __version__
from proxy.base.errors import ConfigError
from proxy.telemetry.spans import MessageSpan, SessionSpans, SpanRecord

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as ApiSpan
    from opentelemetry.trace import SpanKind

_log = logging.getLogger(__name__)


def _nothing() -> Context:
    from opentelemetry.context import Context

    return Context()


def _nanoseconds(milliseconds: int) -> int:
    return milliseconds * 1_000_000


def _fail(span: ApiSpan, error: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", error)
    span.set_status(StatusCode.ERROR)


def open_tracing(monotonic: Callable[[], float]) -> Tracing:
    """Return what sends spans from now on; `monotonic` is a clock in seconds.

    Raises:
        ConfigError: the SDK is not installed, or it cannot use a variable that it reads.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        text = f'[otel] enabled needs a package: pip install "dragoman[otel]" ({error})'
        raise ConfigError(text) from error
    ours = Resource.create({"service.name": "dragoman", "service.version": __version__})
    complaints = Complaints(monotonic)
    complaints.open()
    try:
        # What the environment names counts before what we do.
        provider = TracerProvider(
            resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter()
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except ValueError as error:
        complaints.close()
        raise ConfigError(f"[otel] a variable OTEL_* is wrong: {error}") from error
    return Tracing(provider, exporter.shutdown, complaints)


class Complaints(logging.Handler):
    """Says in our log what the SDK complains of: the first complaint, and then one a minute."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._monotonic = monotonic
        self._next = float("-inf")
        self._logger = logging.getLogger("opentelemetry")

    def open(self) -> None:
        """Hear all loggers of the SDK, and let nobody else hear them."""
        self._logger.addHandler(self)
        self._logger.propagate = False

    def mute(self) -> None:
        """Say nothing more of what is heard."""
        self.setLevel(logging.CRITICAL + 1)

    def close(self) -> None:
        """Hear no more."""
        self._logger.removeHandler(self)
        if not self._logger.handlers:
            self._logger.propagate = True
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Hear a record, in whichever thread."""
        self.say(record.getMessage())

    def say(self, text: str) -> None:
        """Say what is wrong, unless something was said within the last minute."""
        now = self._monotonic()
        if now >= self._next:
            self._next = now + 60.0
            _log.warning("traces: %s", text, extra={"kind": "traces"})


class Tracing:
    """Sends the spans of all sessions. Closed with `aclose`."""

    def __init__(
        self, provider: TracerProvider, give_up: Callable[[], None], complaints: Complaints
    ) -> None:
        """`give_up` ends what the provider's exporter is doing."""
        self._provider = provider
        self._give_up = give_up
        self._complaints = complaints
        self._tracer = provider.get_tracer("dragoman", __version__)

    def of(self, session: str, route: str, *, backend: str, dialect: str) -> SessionSpans:
        """Return what gathers the spans of a session that is on a backend of a dialect."""
        return SessionSpans(session, route, backend=backend, dialect=dialect, export=self.send)

    def send(self, message: MessageSpan) -> None:
        """Send a message that is over, in the trace that it came with. Samplers that the
        environment names are other people's code: what they raise must not fail the session."""
        try:
            self._send(message)
        except Exception as error:  # noqa: BLE001 - said in the log
            self._complaints.say(f"a message is left out: {type(error).__qualname__}")

    def _send(self, message: MessageSpan) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {} if message.trace is None else {"traceparent": message.trace}
        # What is around us in this task is another request's.
        around = TraceContextTextMapPropagator().extract(carrier, _nothing())
        span = self._tracer.start_span(
            message.name,
            around,
            SpanKind.CLIENT,
            attributes=message.attributes,
            start_time=_nanoseconds(message.begin),
        )
        if not span.is_recording():
            return
        for name, at in message.moments.items():
            span.add_event(name, timestamp=_nanoseconds(at))
        inside = set_span_in_context(span, _nothing())
        for part in message.parts:
            self._part(part, inside, SpanKind.INTERNAL)
        if message.error is not None:
            _fail(span, message.error)
        span.end(_nanoseconds(message.end))

    def _part(self, part: SpanRecord, inside: Context, kind: SpanKind) -> None:
        begin = _nanoseconds(part.begin)
        span = self._tracer.start_span(
            part.name, inside, kind, attributes=part.attributes, start_time=begin
        )
        if part.error is not None:
            _fail(span, part.error)
        span.end(_nanoseconds(part.end))

    async def aclose(self, seconds: float) -> None:
        """Send what waits, for so long at most."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            self._complaints.close()
            # The loop may be closed by then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(sent.set)

        # Not a thread of the loop, whose end would wait for it.
        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                await sent.wait()
        except TimeoutError:
            _log.warning("traces: the last spans were not delivered", extra={"kind": "traces"})
            self._complaints.mute()
            self._give_up()
