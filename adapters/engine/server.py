"""Serves September Engine: the log of a session becomes the frames of its event stream.

Every frame has a stamp, max(previous + 1, `at`) in Unix milliseconds, shown as `timestamp` in its
payload: what `GET /execute/replay` calls `after` is compared with stamps and with nothing else
(engine page, section 11.2). The frames are a pure function of the log, so that replay equals live.

`started` is written when a message is accepted, before any backend has heard of it (section 17), so
that a turn that this dialect began has an id of ours; the canonical turn is taken into it when it
starts. A body of `POST /execute` holds one turn, from `started` to its terminal frame. An answer
names its task and no request, so one interaction is shown at a time, oldest first; one that was
answered elsewhere before its turn is skipped. No payload but those of the two deltas has a member
`text`: common clients print every `text` (section 13).

Why one room: an encoder has a method for each kind of event, most of a few lines, and all share
what is open.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Callable
from typing import Any, cast

import orjson

from adapters.engine import wire
from adapters.engine.requests import offered, stated_code
from adapters.model import events as ev
from adapters.model.base import Encoder, EncoderContext, Frame, fields_of, shape_of
from adapters.model.normalizer import ABANDONED
from adapters.wire.errors import ErrorCode
from adapters.wire.framing import on_one_line
from adapters.wire.jsonvalue import JsonError, format_json, parse_json
from adapters.wire.limits import is_light

TASK_OPTION = "task_id"
"""The key in the options of `session.started`: the name that the frontend chose for the task."""

TURNS_KEPT = 8
"""Of how many of its own messages the encoder remembers the turn: only bodies that are about to
begin ask, and a task has one at a time."""

_OUTCOMES: dict[str, tuple[str, str]] = {
    "failed": ("LLM_PROVIDER_ERROR", "The turn failed; the backend gave no reason."),
    "interrupted": ("TURN_INTERRUPTED", "The turn was interrupted."),
    "refused": ("TURN_REFUSED", "The model refused."),
    "exhausted": ("RETRIES_EXHAUSTED", "The retries are exhausted."),
    "over_budget": ("BUDGET_EXCEEDED", "The budget is used up."),
}
"""Outcome of a turn without an error of its own -> code and message of `error`."""


SAID_MOST = 64
"""Texts of a turn that are remembered, the newest: a result that is one of them is not shown again,
and an agent says its result last."""


@dataclasses.dataclass(slots=True)
class _State:
    stamp: int = 0
    task_id: str | None = None
    turn: str | None = None
    start: int = 0
    block: str | None = None
    blocks: int = 0
    cut: str | None = None
    call_usage: bool = False
    step_usage: dict[str, int] | None = None
    said: list[str] = dataclasses.field(default_factory=list)
    inputs: dict[str, bool] = dataclasses.field(default_factory=dict)
    awaited: str | None = None
    inside: str | None = None
    turns: list[list[Any]] = dataclasses.field(default_factory=list)
    refused: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    requests: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    shown: str | None = None
    ended: bool = False


class EngineEncoder(Encoder):
    """The encoder of a task's stream. A child thread has none: an Engine task is one line."""

    dialect = wire.DIALECT
    version = 1
    shape = shape_of(1, _State)

    def __init__(self, context: EncoderContext) -> None:
        self._context = context
        self._s = _State()
        self._out: list[Frame] = []
        self._at = 0
        self._second = -1
        self._second_text = ""

    # What the face asks besides.

    @property
    def task_id(self) -> str:
        """Return the task's name: the frontend's own where it chose one, else the public id."""
        return self._s.task_id or self._context.session_id

    @property
    def running(self) -> str | None:
        """Return the id of the open turn, or None."""
        return self._s.turn

    @property
    def over(self) -> bool:
        """Say whether the session has ended."""
        return self._s.ended

    @property
    def turn_start(self) -> int:
        """Return the stamp of the open turn's first frame; 0 while no turn is open."""
        return self._s.start if self._s.turn is not None else 0

    def turn_of(self, command_id: str) -> tuple[str, int] | None:
        """Return the turn that a message of this face became: its id and the stamp of its first
        frame; None as long as it has none.
        """
        for known, turn_id, start in self._s.turns:
            if known == command_id:
                return turn_id, start
        return None

    @property
    def request(self) -> ev.InteractionRequested | None:
        """Return the request that the task waits for: the one shown and not yet claimed."""
        asked = self._s.requests.get(self._s.shown or "")
        if asked is None or asked["claimed"]:
            return None
        return _event_of(asked)

    @property
    def pending(self) -> dict[str, Any] | None:
        """Return the record of `request` for `/hitl/pending` (section 10.3), or None."""
        asked = self._s.requests.get(self._s.shown or "")
        if asked is None or asked["claimed"]:
            return None
        return self._record(asked)

    # The Encoder contract.

    def feed(self, entry: ev.Entry) -> list[Frame]:
        event = entry.event
        self._at = entry.at
        out = self._out = []
        type_ = event.TYPE
        main = event.thread_id == self._context.thread_id
        if type_ == "text.delta" or type_ == "reasoning.delta":
            if main:
                self._delta(event, "text" if type_ == "text.delta" else "thinking")
            return out
        handler = _HANDLERS.get(type_)
        if handler is not None and (main or type_ in _ACROSS_THREADS):
            handler(self, event)
        return out

    def snapshot(self) -> bytes:
        return ev.format_state(fields_of(self._s))

    def restore(self, snapshot: bytes) -> None:
        value = cast("dict[str, Any]", parse_json(snapshot))
        self._s = _State(**value)
        self.next_cursor = self._s.stamp + 1 if self._s.stamp else 0

    # Frames.

    def _write(
        self,
        name: str,
        payload: dict[str, Any],
        source: ev.Event | None = None,
        *,
        end: bool = False,
    ) -> None:
        """Write a frame; members of the source that the model does not know come back."""
        if source is not None and source.extra and _is_native(source):
            payload = {**_foreign(source.extra, name), **payload}
        self._frame(name, format_json(payload), end=end)

    def _frame(self, name: str, payload: bytes, *, end: bool = False) -> None:
        s = self._s
        s.stamp = stamp = max(s.stamp + 1, self._at)
        self.next_cursor = stamp + 1
        comma = b"" if payload == b"{}" else b","
        data = b'event: %b\ndata: %b%b"timestamp":"%b"}\n\n' % (
            name.encode(),
            on_one_line(payload[:-1]),
            comma,
            self._time(stamp).encode(),
        )
        self._out.append(Frame(stamp, data, "turn" if end else None, s.turn))

    def _time(self, at: int) -> str:
        second, ms = divmod(at, 1000)
        if second != self._second:
            self._second = second
            moment = datetime.datetime.fromtimestamp(second, datetime.UTC)
            self._second_text = moment.strftime("%Y-%m-%dT%H:%M:%S.")
        return f"{self._second_text}{ms:03d}Z"

    # The session and its inputs.

    def _session_started(self, event: ev.SessionStarted) -> None:
        chosen = (event.options or {}).get(TASK_OPTION)
        if isinstance(chosen, str):
            self._s.task_id = chosen

    def _session_ended(self, event: ev.SessionEnded) -> None:
        s = self._s
        if s.ended:
            return
        s.ended = True
        error = event.error or ev.ErrorInfo(
            code="TASK_ENDED", message=f"The session has ended: {event.outcome}."
        )
        shown = s.turn
        s.inside = None
        if shown is not None:
            self._fail(error, "failed")
        for command_id, own in list(s.inputs.items()):
            if own and command_id != shown:
                s.refused.append({"id": command_id, "error": error.model_dump(exclude_none=True)})
        s.inputs.clear()
        self._show_refused()
        if self._out:
            self._out[-1] = self._out[-1]._replace(end="session")

    def _input_accepted(self, event: ev.InputAccepted) -> None:
        if event.kind not in ("message", "steer"):
            return
        s = self._s
        own = event.face == wire.DIALECT
        s.inputs[event.command_id] = own
        if own and s.turn is None:
            self._open(event.command_id, {})
            s.awaited = event.command_id
            self._remember(event.command_id)

    def _input_settled(self, event: ev.InputSettled) -> None:
        s = self._s
        if event.outcome == "taken" or not s.inputs.pop(event.command_id, False):
            return
        # The body of its `/execute` is open and must end (section 9.2).
        error = event.error or ev.ErrorInfo(
            code=str(ErrorCode.BACKEND_UNAVAILABLE),
            message=event.reason or f"What became of the message: {event.outcome}.",
        )
        refused = {"id": event.command_id, "error": error.model_dump(exclude_none=True)}
        s.refused.append(refused)
        if s.inside is None:
            self._show_refused()

    def _show_refused(self) -> None:
        """Show messages that the backend did not take: each as a turn that fails."""
        s = self._s
        refused, s.refused = s.refused, []
        for item in refused:
            if s.turn is None:
                self._open(item["id"], {})
                self._remember(item["id"])
            self._fail(ev.ErrorInfo(**item["error"]), "failed")

    def _remember(self, command_id: str) -> None:
        """Keep which turn a message of this face became."""
        self._s.turns.append([command_id, self._s.turn, self._s.start])
        del self._s.turns[:-TURNS_KEPT]

    def _message_received(self, event: ev.MessageReceived) -> None:
        if not self._is_own(event.command_id):
            self._said_elsewhere(ev.text_of(event.content), "message")
            return
        assert event.command_id is not None
        if self._s.awaited == event.command_id:
            self._s.awaited = None
        elif self._s.turn is not None and self.turn_of(event.command_id) is None:
            self._remember(event.command_id)

    def _guidance_received(self, event: ev.GuidanceReceived) -> None:
        if not self._is_own(event.command_id):
            self._said_elsewhere(event.text, "guidance")

    def _is_own(self, command_id: str | None) -> bool:
        return command_id is not None and self._s.inputs.pop(command_id, False)

    def _said_elsewhere(self, words: str, kind: str) -> None:
        # No event of the dialect echoes input, and unknown types are ignored (section 8).
        self._write("message_received", {"message": words, "kind": kind})

    # Turns.

    def _turn_started(self, event: ev.TurnStarted) -> None:
        s = self._s
        s.inside = event.turn_id or ""
        if s.turn is not None:
            # The one that the message began.
            return
        more: dict[str, Any] = {}
        if event.cause not in ("message", "unknown"):
            more["cause"] = event.cause
        if event.partial:
            more["partial"] = True
        self._open(s.inside, more, event)

    def _open(self, turn_id: str, more: dict[str, Any], event: ev.Event | None = None) -> None:
        s = self._s
        s.turn = turn_id
        s.block, s.blocks, s.cut, s.said = None, 0, None, []
        s.step_usage = None
        self._lifecycle("started", more, event)
        s.start = s.stamp

    def _lifecycle(
        self,
        phase: str,
        more: dict[str, Any],
        event: ev.Event | None = None,
        *,
        end: bool = False,
    ) -> None:
        payload = {"phase": phase, "task_id": self.task_id, "turn_id": self._s.turn, **more}
        self._write("thread_lifecycle", payload, event, end=end)

    def _turn_ended(self, event: ev.TurnEnded) -> None:
        turn_id, self._s.inside = self._s.inside, None
        if self._s.awaited is not None:
            # A turn of the agent's own came before that of the message: the body goes on to that.
            self._close_block()
            self._write("background_turn", {"turn_id": turn_id, "outcome": event.outcome})
        elif event.outcome == "completed":
            self._close_block()
            self._lifecycle("completed", {}, event, end=True)
            self._s.turn = None
        else:
            code, message = _OUTCOMES[event.outcome]
            error = event.error or ev.ErrorInfo(code=code, message=message)
            self._fail(error, event.outcome, event)
        self._show_refused()

    def _fail(self, error: ev.ErrorInfo, outcome: str, event: ev.Event | None = None) -> None:
        """End the turn with `error` and `errored`, in the order that serves every reader (9.3)."""
        payload: dict[str, Any] = {
            "error": stated_code(error.code) or "LLM_PROVIDER_ERROR",
            "message": error.message or "The turn failed.",
        }
        if error.details is not None or event is None or not _is_native(event):
            payload["details"] = error.details or {}
        self._write("error", payload)
        more = {} if outcome == "failed" else {"outcome": outcome}
        self._lifecycle("errored", more, event, end=True)
        self._s.turn = self._s.awaited = None

    # Steps and blocks.

    def _step_started(self, event: ev.StepStarted) -> None:
        self._close_block()
        self._s.blocks = 0
        self._s.call_usage, self._s.step_usage = False, None

    def _step_ended(self, event: ev.StepEnded) -> None:
        if event.usage is None or self._s.call_usage:
            return
        self._s.step_usage = self._usage(event.usage, event)

    def _usage_reported(self, event: ev.UsageReported) -> None:
        # Clients sum them, so totals of the turn or the session are left out (section 14, point 3).
        if event.scope != "call":
            return
        tokens = _tokens(event.usage)
        if tokens is not None and tokens == self._s.step_usage and not _is_native(event):
            # Some backends tell it with the model call's end and again.
            self._s.step_usage = None
            return
        if self._usage(event.usage, event) is not None:
            self._s.call_usage = True

    def _usage(self, usage: ev.Usage, event: ev.Event) -> dict[str, int] | None:
        tokens = _tokens(usage)
        if tokens is not None:
            extra = _foreign(usage.extra or {}, "usage") if _is_native(event) else {}
            self._write("usage", {**extra, **tokens})
        return tokens

    def _delta(self, event: Any, channel: str) -> None:
        s = self._s
        if s.block != channel or s.cut is not None:
            self._open_block(channel)
        name = "text_delta" if channel == "text" else "thinking_delta"
        if event.extra is not None and _is_native(event):
            self._write(name, {"text": event.text}, event)
            return
        self._frame(name, b'{"text":%b}' % orjson.dumps(event.text))

    def _open_block(self, kind: str) -> None:
        """Begin a block; blocks never nest, so one that is interrupted goes on as another one."""
        self._close_block()
        self._s.block = kind
        self._write("content_block_start", {"block_index": self._s.blocks, "block_type": kind})

    def _close_block(self) -> None:
        s = self._s
        if s.block is None:
            return
        payload: dict[str, Any] = {"block_index": s.blocks, "block_type": s.block}
        if s.cut is not None:
            payload["status"] = s.cut
        self._write("content_block_stop", payload)
        s.block = s.cut = None
        s.blocks += 1

    def _end_block(self, kind: str, status: str) -> None:
        """Record that a block is over. One that was cut stays open until something else begins:
        half a text must not look like an answer, and a turn that fails closes nothing.
        """
        if self._s.block != kind:
            return
        if status == "complete":
            self._close_block()
        else:
            self._s.cut = status

    def _text_completed(self, event: ev.TextCompleted) -> None:
        s = self._s
        if event.content and not event.text and event.status == "complete":
            # Something that is not text stands here: an image, a redacted block.
            self._open_block("text")
            self._frame("text_delta", format_json({"text": ev.text_of(event.content)}))
        self._end_block("text", event.status)
        if event.status == "complete" and (digest := _digest_of_text(event.text)) is not None:
            s.said.append(digest)
            del s.said[:-SAID_MOST]

    def _reasoning_completed(self, event: ev.ReasoningCompleted) -> None:
        self._end_block("thinking", event.status)

    def _result_produced(self, event: ev.ResultProduced) -> None:
        if _digest(event.value) in self._s.said:
            return
        self._open_block("text")
        text = format_json(event.value).decode()
        self._frame("text_delta", format_json({"text": text}))
        self._close_block()

    # Tools.

    def _tool_called(self, event: ev.ToolCalled) -> None:
        self._open_block("tool_use")
        tool = event.name
        if event.kind == "mcp" and event.server and not tool.startswith(f"{event.server}."):
            # The name of a connector's tool is dotted (section 8.6).
            tool = f"{event.server}.{tool}"
        payload: dict[str, Any] = {
            "tool": tool,
            "tool_call_id": event.call_id,
            "input": event.input if event.input_known else {},
        }
        if event.preview is not None:
            payload["preview"] = event.preview
        if event.label is not None:
            payload["label"] = event.label
        if event.kind not in ("builtin", "mcp"):
            payload["kind"] = event.kind
        self._write("tool_call", payload, event)
        self._close_block()

    def _tool_returned(self, event: ev.ToolReturned) -> None:
        if event.error is not None and event.error.code == ABANDONED and event.synthetic:
            # Only closes the call: a result that never came is not invented.
            return
        self._close_block()
        payload: dict[str, Any] = {"tool_call_id": event.call_id, "output": _output(event)}
        if event.is_error or event.status == "rejected":
            payload["error"] = _failure(event)
        if event.status == "interrupted":
            payload["status"] = event.status
        if event.status == "rejected" and event.error is not None:
            reason = event.error.message
            if reason and reason != payload["error"]:
                payload["reason"] = reason
        if event.input is not None:
            payload["input"] = event.input
        self._write("tool_result", payload, event)

    # Interactions.

    def _interaction_requested(self, event: ev.InteractionRequested) -> None:
        self._s.requests[event.request_id] = {
            "at": self._at,
            "claimed": False,
            "event": event.model_dump(mode="json", exclude_none=True),
        }
        self._show_next()

    def _show_next(self) -> None:
        """Show the oldest open request, if none is shown: the dialect answers by task (10.1)."""
        s = self._s
        if s.shown is not None or not s.requests:
            return
        s.shown, asked = next(iter(s.requests.items()))
        self._close_block()
        self._write("hitl_request", self._record(asked), _event_of(asked))

    def _record(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the record of a request, as event and list show it (sections 8.8, 10.3)."""
        event = _event_of(asked)
        details = event.details or {}
        record: dict[str, Any] = {
            "request_id": event.request_id,
            "task_id": self.task_id,
            "kind": "permission" if event.kind == "approval" else "question",
            "question": _question(event),
            "created_at": self._time(asked["at"]),
        }
        if _is_native(event) and "kind" in (event.extra or {}):
            # A kind that the page does not list.
            record["kind"] = (event.extra or {})["kind"]
        options = offered(event)
        if options:
            record["options"] = options
        if event.kind not in ("approval", "question"):
            record["reason"] = event.kind
        if event.kind == "approval":
            if "tool" in details:
                record["tool"] = details["tool"]
            if "input" in details or "command" in details:
                record["input"] = details.get("input", {"command": details.get("command")})
        if event.call_id is not None:
            record["tool_call_id"] = event.call_id
        if event.expires_at is not None:
            record["expires_at"] = self._time(event.expires_at)
        if event.thread_id != self._context.thread_id:
            record["thread"] = event.thread_id
        return record

    def _interaction_answered(self, event: ev.InteractionAnswered) -> None:
        asked = self._s.requests.get(event.request_id)
        if asked is None:
            return
        claimed, asked["claimed"] = asked["claimed"], event.state == "claimed"
        if claimed and not asked["claimed"] and self._s.shown == event.request_id:
            # The answer came to nothing: anybody who reads is told once more that it is open.
            self._write("hitl_request", self._record(asked), _event_of(asked))

    def _interaction_updated(self, event: ev.InteractionUpdated) -> None:
        asked = self._s.requests.get(event.request_id)
        if asked is not None:
            details = {**(asked["event"].get("details") or {}), **event.details}
            asked["event"]["details"] = details

    def _interaction_resolved(self, event: ev.InteractionResolved) -> None:
        s = self._s
        if s.requests.pop(event.request_id, None) is None or s.shown != event.request_id:
            # Answered elsewhere before it was shown: it never is.
            return
        s.shown = None
        payload = {"request_id": event.request_id, "task_id": self.task_id}
        if event.outcome != "unknown" or not _is_native(event):
            # An Engine tells none (section 8.9): where nobody of ours answered, nor do we.
            payload["outcome"] = event.outcome
        self._write("hitl_resolved", payload, event)
        self._show_next()

    # The rest.

    def _memory_updated(self, event: ev.MemoryUpdated) -> None:
        value = event.value
        if not isinstance(value, dict) or ("text" in value and not _is_native(event)):
            value = {"value": value}
        value = {name: member for name, member in value.items() if name != "timestamp"}
        self._write("working_memory_update", value)

    def _context_compacted(self, event: ev.ContextCompacted) -> None:
        if event.phase != "completed":
            return
        payload: dict[str, Any] = {}
        if event.before_tokens is not None:
            payload["before_tokens"] = _whole(event.before_tokens)
        if event.after_tokens is not None:
            payload["after_tokens"] = _whole(event.after_tokens)
        payload["strategy"] = event.strategy or "summary"
        self._write("compaction_event", payload, event)

    def _context_cleared(self, event: ev.ContextCleared) -> None:
        self._write("compaction_event", {"strategy": "clear"})

    def _gap(self, event: ev.Gap) -> None:
        payload = {"reason": event.reason}
        if event.cursor_from is not None:
            payload["from"] = event.cursor_from
        if event.cursor_to is not None:
            payload["to"] = event.cursor_to
        self._write("gap", payload)

    def _native(self, event: ev.Native) -> None:
        if event.dialect != wire.DIALECT or not isinstance(event.frame, dict):
            return
        payload = {name: value for name, value in event.frame.items() if name != "timestamp"}
        if "task_id" in payload:
            payload["task_id"] = self.task_id
        if "turn_id" in payload and self._s.turn is not None:
            payload["turn_id"] = self._s.turn
        self._write(event.name or "message", payload)


_HANDLERS: dict[str, Callable[[EngineEncoder, Any], None]] = {
    type_: getattr(EngineEncoder, "_" + type_.replace(".", "_"))
    for type_ in ev.EVENT_TYPES
    if hasattr(EngineEncoder, "_" + type_.replace(".", "_"))
}

_ACROSS_THREADS = frozenset(
    {
        "session.started",
        "session.ended",
        "input.accepted",
        "input.settled",
        "interaction.requested",
        "interaction.answered",
        "interaction.updated",
        "interaction.resolved",
    }
)
"""What a task shows of child threads: their requests, which somebody has to answer."""

_OURS = frozenset({"timestamp", "task_id", "turn_id"})
"""Members that the face writes itself."""


def _is_native(event: ev.Event) -> bool:
    return event.native is not None and event.native.dialect == wire.DIALECT


def _foreign(extra: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the members of a source that may be written again: none of ours, and no `text`."""
    deltas = ("text_delta", "thinking_delta")
    return {
        key: value
        for key, value in extra.items()
        if key not in _OURS and (key != "text" or name in deltas)
    }


def _event_of(asked: dict[str, Any]) -> ev.InteractionRequested:
    return ev.InteractionRequested.model_validate(asked["event"])


def _question(event: ev.InteractionRequested) -> str:
    """Return what a person reads: a prompt always shows what it is about (design section 7)."""
    if _is_native(event) and event.prompt:
        return event.prompt
    details = event.details or {}
    tool = details.get("tool")
    lines = [event.prompt] if event.prompt else []
    match event.kind:
        case "approval":
            if not lines:
                lines.append(f"Allow `{tool}`?" if tool else "Allow this?")
            subject = details.get("input", details.get("command"))
            if subject not in (None, {}) and not _shows(event.prompt, subject):
                words = subject if isinstance(subject, str) else format_json(subject).decode()
                lines.append(f"{tool}: {words}" if tool else words)
        case "authorization":
            # What the prompt does not say of the sign-in stands below it.
            shown = ((name, details.get(name)) for name in ("url", "user_code", "instructions"))
            lines += [
                f"{name}: {value}"
                for name, value in shown
                if isinstance(value, str) and value not in event.prompt
            ]
            lines.append("Sign in there; here it can only be called off with `cancel`.")
        case "secret" | "sudo" | "unknown":
            lines.append(
                "It cannot be given here: answer `decline`, or give it in a frontend that can."
            )
        case _:
            if not lines:
                lines.append("The agent waits for an answer.")
    if not event.answerable:
        lines.append("It is asked elsewhere and cannot be answered here.")
    return "\n".join(lines)


def _shows(prompt: str, subject: Any) -> bool:
    """Say whether a prompt shows all words of a call's input."""
    if isinstance(subject, str):
        return subject in prompt
    if isinstance(subject, dict):
        return all(_shows(prompt, value) for value in subject.values())
    return format_json(subject).decode() in prompt


def _output(event: ev.ToolReturned) -> Any:
    """Return the output of a call: JSON, or its blocks as their text where all are text (8.7)."""
    if event.output is not None or not event.content:
        if event.output is None and (event.is_error or not event.output_known):
            return ""
        return event.output
    if all(isinstance(block, ev.Text) for block in event.content):
        return ev.text_of(event.content)
    return [block.model_dump(mode="json", exclude_none=True) for block in event.content]


def _failure(event: ev.ToolReturned) -> Any:
    """Return `error` of a failed call: the message, or the object that an Engine sent (8.7)."""
    if event.status == "rejected":
        return wire.PERMISSION_DENIED
    if event.error is None:
        return "failed"
    if _is_native(event) and event.error.details is not None:
        return event.error.details
    return event.error.message or event.error.code


def _tokens(usage: ev.Usage) -> dict[str, int] | None:
    """Return the three counts of `usage`, or None where the source knows no tokens."""
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    return {
        "input_tokens": usage.input_tokens or 0,
        "output_tokens": usage.output_tokens or 0,
        "cache_hit_tokens": usage.cache_read_tokens or 0,
    }


def _whole(number: float) -> int | float:
    return int(number) if float(number).is_integer() else number


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_of_text(text: str) -> str | None:
    """Return the digest of a text that is JSON by itself, else None."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    if not is_light(text.encode()):
        # No result has so many values.
        return None
    try:
        return _digest(parse_json(text))
    except JsonError:
        return None
