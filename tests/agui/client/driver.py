"""Plays the part of the proxy's session around an AG-UI client codec, without IO."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from multidict import CIMultiDict

from adapters.agui.client import AguiClient
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.backend_names import for_backend
from adapters.model.base import Call, CloseReason, Response
from adapters.model.conversation import Conversation
from adapters.wire.errors import DragomanError
from adapters.wire.framing.sse import SseFrame
from tests.support.played import Played

NOW = 1_790_000_000_000
THREAD = "dgs_1"

Event = dict[str, Any]


def said(words: str = "Hello", **fields: Any) -> cmd.SendMessage:
    return cmd.SendMessage(content=(ev.Text(text=words),), policy="queue", **fields)


def posted(call: Call | None) -> Any:
    """Return the body of a run, as JSON."""
    assert call is not None
    assert call.request.body is not None
    return json.loads(bytes(call.request.body))


def frame(event: Event | bytes) -> SseFrame:
    data = event if isinstance(event, bytes) else json.dumps(event).encode()
    return SseFrame("message", data, None)


def text(words: str, name: str = "m1") -> list[Event]:
    """Return the events of a whole text."""
    return [
        {"type": "TEXT_MESSAGE_START", "messageId": name, "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": name, "delta": words},
        {"type": "TEXT_MESSAGE_END", "messageId": name},
    ]


def called(name: str = "c1", tool: str = "mail", args: str = '{"to":"ann"}') -> list[Event]:
    """Return the events of a whole call."""
    pieces = [{"type": "TOOL_CALL_ARGS", "toolCallId": name, "delta": args}] if args else []
    return [
        {"type": "TOOL_CALL_START", "toolCallId": name, "toolCallName": tool},
        *pieces,
        {"type": "TOOL_CALL_END", "toolCallId": name},
    ]


def result(name: str = "c1", content: Any = "sent", message: str = "") -> Event:
    named = message or f"r-{name}"
    return {
        "type": "TOOL_CALL_RESULT",
        "toolCallId": name,
        "messageId": named,
        "content": content,
    }


def approval(name: str, call_id: str | None = None) -> Event:
    """Return an interrupt as a Pydantic AI writes it."""
    members = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
    schema = {"type": "object", "properties": members}
    asked = {"id": name, "reason": "tool_call", "message": f"{name}?", "responseSchema": schema}
    return asked if call_id is None else {**asked, "toolCallId": call_id}


def interrupted(*interrupts: Event) -> Event:
    """Return the end of a run that asks."""
    outcome = {"type": "interrupt", "interrupts": list(interrupts)}
    return {"type": "RUN_FINISHED", "outcome": outcome}


SUCCESS: Event = {"type": "RUN_FINISHED", "outcome": {"type": "success"}}
BARE: Event = {"type": "RUN_FINISHED"}


class Session(Played):
    """One session. `call` is the run whose body is read."""

    codec: AguiClient

    def __init__(self) -> None:
        super().__init__(lambda: AguiClient({"task_id": THREAD}))
        self.codec.conversation = Conversation()
        self.now = NOW
        self.call: Call | None = None
        self.commands: dict[str, cmd.AnyCommand] = {}
        self.take([ev.SessionStarted(thread_id=ev.MAIN)], upstream=False)

    def take(self, raw: Sequence[ev.Event], **options: Any) -> list[ev.Event]:
        new = super().take(raw, **options)
        said = self.codec.conversation
        for event in new:
            if event.TYPE not in ev.DELTAS and said is not None:
                said.hear(event)
        return new

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        """Store an input and have its call made."""
        self.codec.check(command)
        request_id = getattr(command, "request_id", None)
        details = {
            name: value
            for name in ("edit_of", "retry_of", "client_context", "system")
            if (value := getattr(command, name, None)) is not None
        }
        if "system" in details:
            details["system"] = [block.model_dump(mode="json") for block in details["system"]]
        raw: list[ev.Event] = [
            ev.InputAccepted(
                thread_id=ev.MAIN,
                command_id=command_id,
                kind=command.KIND,
                message_id=command_id if command.KIND == "message" else None,
                content=getattr(command, "content", None),
                request_id=request_id,
                details=details or None,
                by="ann",
            )
        ]
        if request_id is not None:
            raw.append(
                ev.InteractionAnswered(
                    thread_id=ev.MAIN, request_id=request_id, command_id=command_id, by="ann"
                )
            )
        self.take(raw, upstream=False)
        self.commands[command_id] = command
        call = self.codec.submit(command_id, for_backend(command, self.state))
        # The session stores that the call is on its way, and an answer that is kept.
        self.take([], upstream=False, changes=call is not None, keep=True)
        return call

    def answer(self, command_id: str, request_id: str, **fields: Any) -> Call | None:
        """Give an answer, and open the body of the run that goes with it, if one does."""
        call = self.submit(command_id, cmd.AnswerInteraction(request_id=request_id, **fields))
        if call is not None:
            self.open(call)
        return call

    def ask(self, words: str = "Hello", command_id: str = "k1", **fields: Any) -> Call:
        """Send a message, and open the body of its run."""
        call = self.submit(command_id, said(words, **fields))
        assert call is not None
        self.open(call)
        return call

    def open(self, call: Call) -> None:
        self.call = call
        self.take(self.codec.opened(call, Response(200), self.now))

    def feed(self, *events: Event | bytes) -> list[ev.Event]:
        assert self.call is not None
        out: list[ev.Event] = []
        for event in events:
            self.now += 1
            out += self.take(self.codec.feed(self.call, frame(event), self.now))
        return out

    def run(self, *events: Event) -> None:
        """Read a whole body, from its start."""
        self.feed({"type": "RUN_STARTED", "threadId": THREAD, "runId": "x"}, *events)
        self.close()

    def close(self, reason: CloseReason = CloseReason.ENDED) -> None:
        assert self.call is not None
        self.take(self.codec.closed(self.call, reason, self.now))
        self.due()

    def stop(self, command_id: str = "stop") -> None:
        """Leave the body that is read."""
        call = self.submit(command_id, cmd.Interrupt())
        assert call is not None
        assert call.leaves
        self.take(self.codec.closed(call, CloseReason.STOPPED, self.now))
        self.due()

    def respond(
        self, call: Call | None, status: int, body: Any, kind: str = "application/json"
    ) -> None:
        """Answer a run with a whole answer."""
        assert call is not None
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = Response(status, CIMultiDict({"Content-Type": kind}), data)
        self.take(self.codec.respond(call, response, self.now))

    def fail(self, call: Call | None, *, sent: bool) -> None:
        assert call is not None
        error = DragomanError("The connection broke.")
        self.take(self.codec.failed(call, error, sent=sent, now=self.now))

    def due(self) -> None:
        """Let time pass until the codec waits for nothing."""
        while self.codec.wake_at is not None:
            self.now = max(self.now, self.codec.wake_at)
            self.take(self.codec.tick(self.now))

    def restart(self) -> None:
        super().restart()
        said = self.codec.conversation = Conversation()
        for event in self.events:
            said.hear(event)

    def types(self) -> list[str]:
        return [event.TYPE for event in self.events]

    def last(self, kind: type[Any]) -> Any:
        return self.of(kind)[-1]

    def settled(self) -> dict[str, str]:
        """Return what became of the inputs."""
        found: Mapping[str, str] = {
            event.command_id: event.outcome for event in self.of(ev.InputSettled)
        }
        return dict(found)

    def next_messages(self, command_id: str = "next") -> list[Event]:
        """Return the conversation that the next message goes with, without that message."""
        call = self.codec.submit(command_id, said("next"))
        return list(posted(call)["messages"][:-1])
