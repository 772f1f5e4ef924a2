"""The spans of one session's messages, made of the events of its log once these are stored.

A message is gathered as plain values and given away as a whole when it is over: until then it costs
some hundred bytes, and one whose session leaves memory before that leaves nothing behind. Nothing
of what people and agents say is in them.

Names and attributes are those of OpenTelemetry's semantic conventions for generative AI where they
have one (`invoke_agent`, `execute_tool`, `gen_ai.*`), else our own (`dragoman.*`).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from adapters.model import events as ev
from adapters.model.state import RECEIVED_KINDS
from proxy.base.metrics import FIRST
from proxy.base.outcomes import FAILURES, Code, MessageOutcome

_BACKEND = "backend"
"""Who gave an input that the backend got from others than us."""

_USAGE: Mapping[str, str] = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
}
"""Field of a usage -> the attribute that has its sum."""

Attributes = dict[str, str | int]


@dataclasses.dataclass(slots=True)
class SpanRecord:
    """Something that took time: its begin and end in Unix milliseconds. `error` is its error's
    type, None where it went well."""

    name: str
    begin: int
    end: int = 0
    attributes: Attributes = dataclasses.field(default_factory=dict)
    error: str | None = None


@dataclasses.dataclass(slots=True)
class MessageSpan(SpanRecord):
    """A message from its acceptance to its end, with its `parts` and, by name, the `moments` in it.
    `trace` is the `traceparent` that it came with."""

    trace: str | None = None
    parts: list[SpanRecord] = dataclasses.field(default_factory=list)
    moments: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class _OpenMessage:
    """A message that is not over. `open` are the parts that have no end yet: a wait by the id of
    its interaction, a tool by its thread and call. `last` are the tokens of the last call that was
    counted."""

    span: MessageSpan
    stored: int = 0
    sent: int = 0
    working: bool = False
    open: dict[tuple[str, ...], SpanRecord] = dataclasses.field(default_factory=dict)
    usage: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    last: dict[str, int] | None = None
    left_out: int = 0

    def part(self, name: str, begin: int, end: int, **attributes: str) -> None:
        """Add a part that is over."""
        self.span.parts.append(SpanRecord(name, begin, max(begin, end), {**attributes}))

    def begin(self, key: tuple[str, ...], part: SpanRecord) -> None:
        """Add a part whose end is to come, unless there are too many."""
        if key in self.open:
            return
        # Tool calls and waits of one message get a span each; of more only the number is told.
        if len(self.open) + len(self.span.parts) >= 256:
            self.left_out += 1
        else:
            self.open[key] = part

    def count(self, usage: ev.Usage) -> None:
        """Add the tokens of a call, unless they were just told: some backends tell them twice."""
        found = ((name, getattr(usage, field)) for field, name in _USAGE.items())
        tokens: dict[str, int] = {name: count for name, count in found if count is not None}
        if not tokens or tokens == self.last:
            self.last = None
            return
        self.last = tokens
        self.usage.update(tokens)


def _clean(name: str) -> str:
    """Return as much of a backend's name as a collector takes: one lone surrogate costs all spans
    that are sent together."""
    return name[:128].encode("utf-8", "replace").decode()


class SessionSpans:
    """Gathers the spans of one session's messages. `export` takes each message when it is over."""

    __slots__ = ("_about", "_backend", "_export", "_messages")

    def __init__(
        self,
        session: str,
        route: str,
        *,
        backend: str,
        dialect: str,
        export: Callable[[MessageSpan], None],
    ) -> None:
        """Begin with no message: what a session has under way when it is loaded has no spans."""
        self._about: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.conversation.id": session,
            "dragoman.route": route,
        }
        self._export = export
        self._messages: dict[str, _OpenMessage] = {}
        self.rebind(backend, dialect)

    def rebind(self, backend: str, dialect: str) -> None:
        """Name another backend, of this dialect, in what begins from now on."""
        self._backend = backend
        self._about |= {"gen_ai.provider.name": dialect, "gen_ai.agent.name": backend}

    def __len__(self) -> int:
        """Return how many messages are not over."""
        return len(self._messages)

    def hear(
        self,
        entries: Sequence[ev.Entry],
        sent: Iterable[str],
        over: Mapping[str, tuple[MessageOutcome, Code]],
        now: int,
    ) -> None:
        """Hear what was stored at `now`: the entries of one write, the ids of the commands that
        leave for the backend with it, and how the messages ended that are over with it."""
        for entry in entries:
            event, at = entry.event, entry.at
            if isinstance(event, ev.InputAccepted):
                self._accepted(event, at, now)
            elif self._messages:
                self._heard(event, at)
        for name in sent:
            message = self._messages.get(name)
            # One that takes several calls leaves with the first.
            if message is not None and not message.sent:
                message.sent = max(now, message.stored)
                message.part("queue", message.stored, message.sent)
        for name, (outcome, code) in over.items():
            if (message := self._messages.pop(name, None)) is not None:
                self._end(message, outcome, code, entries[-1].at)

    def _accepted(self, event: ev.InputAccepted, at: int, now: int) -> None:
        if event.kind not in RECEIVED_KINDS or event.by == _BACKEND or event.thread_id != ev.MAIN:
            return
        about = {**self._about}
        if event.face is not None:
            about["dragoman.face"] = event.face
        span = MessageSpan(f"invoke_agent {self._backend}", at, 0, about, trace=event.trace)
        span.moments["accept"] = at
        message = self._messages[event.command_id] = _OpenMessage(span, stored=max(at, now))
        message.part("store", at, now)

    def _heard(self, event: ev.Event, at: int) -> None:
        """Hear an event while a message is not over."""
        if event.TYPE in FIRST and event.thread_id == ev.MAIN:
            if (message := self._working()) is not None:
                message.span.moments.setdefault("first event", at)
            if event.TYPE in ev.DELTAS:
                return
        match event:
            case ev.InputSettled():
                self._settled(event, at)
            case ev.MessageReceived() | ev.GuidanceReceived():
                if (message := self._messages.get(event.command_id or "")) is not None:
                    message.working = True
            case ev.ToolCalled():
                self._called(event, at)
            case ev.ToolReturned():
                self._returned(event, at)
            case ev.InteractionRequested():
                if (message := self._working()) is not None:
                    about: Attributes = {"dragoman.interaction.kind": event.kind}
                    message.begin(
                        (event.request_id,), SpanRecord("wait for a person", at, attributes=about)
                    )
            case ev.InteractionAnswered() | ev.InteractionResolved():
                self._answered(event, at)
            case ev.StepEnded() if event.usage is not None:
                self._count(event.usage)
            case ev.UsageReported() if event.scope == "call":
                self._count(event.usage)

    def _working(self) -> _OpenMessage | None:
        """Return the message whose turn runs: the oldest that the backend has."""
        for message in self._messages.values():
            if message.working:
                return message
        # What it does may be here before its answer, which says that it took the message.
        return next((one for one in self._messages.values() if one.sent), None)

    def _find(self, key: tuple[str, ...]) -> tuple[_OpenMessage, SpanRecord] | None:
        for message in self._messages.values():
            if (part := message.open.get(key)) is not None:
                return message, part
        return None

    def _close(self, message: _OpenMessage, key: tuple[str, ...], at: int) -> None:
        part = message.open.pop(key)
        part.end = part.end or at
        message.span.parts.append(part)

    def _settled(self, event: ev.InputSettled, at: int) -> None:
        message = self._messages.get(event.command_id)
        if message is None or not message.sent:
            return
        message.part("send", message.sent, at)
        if event.outcome == "taken":
            message.working = True
        else:
            send = message.span.parts[-1]
            send.error = str(Code.of(event.error, Code.OTHER))

    def _called(self, event: ev.ToolCalled, at: int) -> None:
        if (message := self._working()) is None:
            return
        name = _clean(event.name)
        about: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": _clean(event.call_id),
        }
        message.begin(
            (event.thread_id, event.call_id),
            SpanRecord(f"execute_tool {name}", at, attributes=about),
        )

    def _returned(self, event: ev.ToolReturned, at: int) -> None:
        key = (event.thread_id, event.call_id)
        if (found := self._find(key)) is None:
            return
        message, part = found
        if event.is_error or event.status != "completed":
            part.error = "failed" if event.status == "completed" else event.status
        self._close(message, key, at)

    def _answered(self, event: ev.InteractionAnswered | ev.InteractionResolved, at: int) -> None:
        key = (event.request_id,)
        if (found := self._find(key)) is None:
            return
        message, wait = found
        if isinstance(event, ev.InteractionAnswered):
            # One that is released is asked for again.
            wait.end = at if event.state == "claimed" else 0
        else:
            wait.attributes["dragoman.interaction.outcome"] = event.outcome
            self._close(message, key, at)

    def _count(self, usage: ev.Usage) -> None:
        if (message := self._working()) is not None:
            message.count(usage)

    def _end(self, message: _OpenMessage, outcome: MessageOutcome, code: Code, at: int) -> None:
        for key in list(message.open):
            self._close(message, key, at)
        span = message.span
        span.end = max(at, *(part.end for part in span.parts))
        span.moments["end"] = span.end
        # A larger number is a backend's mistake, and no collector takes one beyond 64 bits.
        span.attributes |= {name: min(total, 2**53) for name, total in message.usage.items()}
        span.attributes |= {"dragoman.outcome": str(outcome), "dragoman.code": str(code)}
        if message.left_out:
            span.attributes["dragoman.parts_left_out"] = message.left_out
        if outcome in FAILURES:
            span.error = str(code)
        self._export(span)
