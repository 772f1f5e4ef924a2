"""Serves Herm: the log of a session becomes the envelopes of its stream and of its lists.

`sequence` counts the envelopes of the session, deltas, titles and `user.*` included, and an id is
`evt_` + session + `_` + sequence, so that any id is a position: a list has gaps, a stream has none
but the `user.*` envelopes, which are comments there (herm page, sections 4.3 and 4.4; whether they
are echoed is not documented, so they are not). All is a pure function of the log.

An input of a Herm frontend has its envelope where it was accepted, because the answer to the POST
names it. One of another face, which may wait in a queue, has it where it was processed: so
`sequence` and the order of the conversation agree.

Why one room: an encoder has a method for each kind of event, most of a few lines, and all share
what is open.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, cast

import orjson

from adapters.herm import wire
from adapters.model import events as ev
from adapters.model.base import Encoder, EncoderContext, Frame, fields_of, shape_of
from adapters.model.normalizer import ABANDONED
from adapters.model.session_info import SessionInfo
from adapters.model.state import REPAIRED
from adapters.wire.framing import on_one_line
from adapters.wire.jsonvalue import format_json, parse_json

INPUTS_KEPT = 16
"""Settled inputs that are remembered for the answer to their own POST: more than one batch is
likely to have."""

REQUESTS_KEPT = 200
"""Interactions that are over and still recognised, so that a late answer gets 409 and not 400."""

USER_ID = "userId"
"""Members of a create (section 2.2); `userId` is kept in the `options` of `session.started`."""

_OURS = frozenset({REPAIRED, "envelope"})
"""Keys of `extra` that are not fields of a Herm payload."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

_USE = {"mcp": "agent.mcp_tool_use", "custom": "agent.custom_tool_use"}


class Envelope(NamedTuple):
    """One envelope: `body` is its JSON.

    `listed`: it is in lists (section 4.4: deltas and titles are not). `streamed`: it is on the
    stream. `update`: it takes the place of the envelope with the same sequence, in lists only.
    `end`: after it the stream of a deleted session ends.
    """

    sequence: int
    type: str
    body: bytes
    listed: bool = True
    streamed: bool = True
    update: bool = False
    end: bool = False


@dataclasses.dataclass(slots=True)
class _State:
    sequence: int = 0
    shown_at: str = ""
    running: bool = False
    texts: dict[str, bool] = dataclasses.field(default_factory=dict)
    cut: dict[str, str] = dataclasses.field(default_factory=dict)
    title: str | None = None
    native: bool = False
    calls: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    requests: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    threads: dict[str, str] = dataclasses.field(default_factory=dict)


class HermEncoder(Encoder):
    """The encoder of a session's one stream. `envelopes` is what lists are made of, `feed` what the
    stream is made of."""

    dialect = wire.DIALECT
    version = 1
    shape = shape_of(1, _State)
    next_cursor = 1

    def __init__(self, context: EncoderContext) -> None:
        self._session = context.session_id
        self._prefix = f"evt_{context.session_id}_".encode()
        self._session_json = orjson.dumps(context.session_id)
        self._s = _State()
        self._out: list[Envelope] = []
        self._at = 0
        self._at_text = ""
        self._at_of = -1

    # The Encoder contract.

    def feed(self, entry: ev.Entry) -> list[Frame]:
        return [self._frame(made) for made in self.envelopes(entry) if not made.update]

    def _frame(self, made: Envelope) -> Frame:
        end: Literal["session"] | None = "session" if made.end else None
        if not made.streamed:
            # A comment: the stream's cursor passes the place, its readers see nothing.
            return Frame(made.sequence, b": %b\n\n" % made.type.encode(), end)
        data = b"event: %b\nid: %b%d\ndata: %b\n\n" % (
            made.type.encode(),
            self._prefix,
            made.sequence,
            on_one_line(made.body),
        )
        return Frame(made.sequence, data, end)

    def envelopes(self, entry: ev.Entry) -> list[Envelope]:
        """Return the envelopes that an entry gives, and those that it changes."""
        event: Any = entry.event
        self._at = entry.at
        out = self._out = []
        handler = _HANDLERS.get(event.TYPE)
        if handler is not None:
            handler(self, event)
        return out

    def snapshot(self) -> bytes:
        return ev.format_state(fields_of(self._s))

    def restore(self, snapshot: bytes) -> None:
        self._s = _State(**cast("dict[str, Any]", parse_json(snapshot)))
        self.next_cursor = self._s.sequence + 1

    # What the face asks besides.

    def request_of(self, name: str) -> str | None:
        """Return the canonical id of the request that a frontend names: by payload id, request id
        or envelope id."""
        if name in self._s.requests:
            return name
        sequence = position_of(name, self._session)
        for request_id, shown in self._s.requests.items():
            if shown["id"] == name or (sequence is not None and shown["sequence"] == sequence):
                return request_id
        return None

    def inputs(self, command_ids: Iterable[str]) -> list[bytes]:
        """Return the envelopes of the newest inputs, as they are now; those that have none are left
        out."""
        records = (self._s.inputs.get(command_id) for command_id in command_ids)
        return [self._input_body(r) for r in records if r is not None and r["sequence"] is not None]

    def inputs_now(self) -> dict[int, bytes]:
        """Return the envelopes of the newest inputs, as they are now, by sequence."""
        return {
            record["sequence"]: self._input_body(record)
            for record in self._s.inputs.values()
            if record["sequence"] is not None
        }

    # Envelopes.

    def _next(self) -> int:
        self._s.sequence += 1
        self.next_cursor = self._s.sequence + 1
        return self._s.sequence

    def _created(self, event: ev.Event) -> str:
        """Return the time to show: the backend's own where it does not go back, else ours (section
        4.1)."""
        native = event.native
        ours = self._time()
        if native is not None and native.dialect == wire.DIALECT and native.at is not None:
            theirs = _TIME.fullmatch(native.at) is not None and native.at >= self._s.shown_at
            ours = native.at if theirs else ours
        self._s.shown_at = max(ours, self._s.shown_at)
        return self._s.shown_at

    def _time(self) -> str:
        if self._at != self._at_of:
            self._at_of, self._at_text = self._at, wire.iso(self._at)
        return self._at_text

    def _body(
        self,
        sequence: int,
        type_: str,
        payload: bytes,
        at: str,
        more: bytes = b"",
        status: bytes = b'"complete"',
    ) -> bytes:
        return (
            b'{"id":"%b%d","type":"%b","sessionId":%b,"sequence":%d,"status":%b,'
            b'"payload":%b,"processedAt":"%b","createdAt":"%b"%b}'
        ) % (
            self._prefix,
            sequence,
            type_.encode(),
            self._session_json,
            sequence,
            status,
            payload,
            at.encode(),
            at.encode(),
            more,
        )

    def _write(
        self,
        event: ev.Event,
        type_: str,
        payload: dict[str, Any],
        *,
        listed: bool = True,
        streamed: bool = True,
        end: bool = False,
    ) -> int:
        sequence = self._next()
        more, status = b"", b'"complete"'
        if event.extra is not None and _is_native(event):
            # A result without a call keeps the tool's name for the normalizer.
            ours = _OURS | {"name"} if event.TYPE == "tool.returned" else _OURS
            for key, value in event.extra.items():
                if key not in ours and key not in payload:
                    payload[key] = value
            rest = event.extra.get("envelope")
            if isinstance(rest, dict):
                rest = dict(rest)
                status = format_json(rest.pop("status", "complete"))
                more = b"," + format_json(rest)[1:-1] if rest else b""
        content = format_json({"type": type_, **payload})
        body = self._body(sequence, type_, content, self._created(event), more, status)
        self._out.append(Envelope(sequence, type_, body, listed, streamed, end=end))
        return sequence

    # Text.

    def _text_delta(self, event: ev.TextDelta) -> None:
        self._delta(event, "agent.message")

    def _reasoning_delta(self, event: ev.ReasoningDelta) -> None:
        self._delta(event, "agent.thinking")

    def _delta(self, event: ev.TextDelta | ev.ReasoningDelta, type_: str) -> None:
        """Write a piece; not one that we added to a text that was never streamed: the final has
        it."""
        streamed = type_ in self._s.texts and not self._s.native
        if event.thread_id != ev.MAIN or (event.synthetic and not streamed):
            return
        if self._s.cut:
            self._close_cut(event)
        self._s.texts[type_] = True
        if event.extra is not None or len(event.text) > wire.MAX_BLOCK_TEXT:
            content = wire.text_blocks(event.text)
            self._write(event, type_, {"delta": True, "content": content}, listed=False)
            return
        sequence = self._next()
        payload = b'{"type":"%b","delta":true,"content":[{"type":"text","text":%b}]}' % (
            type_.encode(),
            orjson.dumps(event.text),
        )
        body = self._body(sequence, type_, payload, self._created(event))
        self._out.append(Envelope(sequence, type_, body, listed=False))

    def _text_completed(self, event: ev.TextCompleted) -> None:
        text = event.text
        if event.content is not None:
            text = ev.text_of(event.content)
        self._completed(event, "agent.message", text)

    def _reasoning_completed(self, event: ev.ReasoningCompleted) -> None:
        self._completed(event, "agent.thinking", event.text)

    def _completed(
        self, event: ev.TextCompleted | ev.ReasoningCompleted, type_: str, text: str
    ) -> None:
        if event.thread_id != ev.MAIN:
            if type_ == "agent.message" and text and event.status != "discarded":
                self._from_child(event, wire.text_blocks(text))
            return
        streamed = self._s.texts.pop(type_, False)
        if event.synthetic and event.status == "partial" and self._s.native:
            # A Herm leaves a text open that its turn's end cuts off: the end will show who did.
            self._s.cut[type_] = text
            return
        payload: dict[str, Any] = {"delta": False}
        if event.status == "discarded":
            # Section 9: what was streamed must be closed, and this was taken back.
            text = ""
        if not text and not streamed and not _is_native(event):
            return
        payload["content"] = wire.text_blocks(text)
        if event.status != "complete":
            payload["status"] = event.status
        self._write(event, type_, payload)

    def _close_cut(self, event: ev.Event) -> None:
        """Close the texts that were cut, and not by a Herm that ended its turn."""
        for type_, text in self._s.cut.items():
            payload = {"delta": False, "content": wire.text_blocks(text), "status": "partial"}
            self._write(event, type_, payload)
        self._s.cut.clear()

    def _result_produced(self, event: ev.ResultProduced) -> None:
        text = format_json(event.value).decode()
        payload = {"delta": False, "content": wire.text_blocks(text)}
        if event.thread_id == ev.MAIN:
            self._write(event, "agent.message", payload)
        else:
            self._from_child(event, wire.text_blocks(text))

    # Tools.

    def _tool_called(self, event: ev.ToolCalled) -> None:
        if event.thread_id != ev.MAIN:
            use = {"id": event.call_id, "tool": event.name, "input": _input(event)}
            words = f"{event.name} {format_json(use['input']).decode()}"
            self._from_child(event, wire.text_blocks(words), tool_use=use)
            return
        call: dict[str, Any] = {
            "tool": event.name,
            "kind": event.kind,
            "server": event.server,
            "input": _input(event),
            "preview": event.preview if event.preview is not None else event.label,
            "known": event.input_known,
            "asked": event.permission == "ask",
            "answered": False,
        }
        call["sequence"] = self._use(event, event.call_id, call)
        self._s.calls[event.call_id] = call

    def _use(self, event: ev.Event, use_id: str, call: dict[str, Any]) -> int:
        type_ = _USE.get(call["kind"], "agent.tool_use")
        payload: dict[str, Any] = {"id": use_id, "tool": call["tool"], "input": call["input"]}
        if type_ == "agent.custom_tool_use":
            return self._write(event, type_, payload)
        payload["status"] = "running"
        if call["preview"] is not None:
            payload["preview"] = call["preview"]
        if type_ == "agent.mcp_tool_use" and call["server"] and not _is_native(event):
            payload["server_name"] = call["server"]
        if call["asked"]:
            payload["requires_action"] = True
        return self._write(event, type_, payload)

    def _tool_returned(self, event: ev.ToolReturned) -> None:
        if event.error is not None and event.error.code == ABANDONED and event.synthetic:
            # Only closes the call: a result that did not come is not written.
            self._s.calls.pop(event.call_id, None)
            return
        if event.thread_id != ev.MAIN:
            content = _result_blocks(event, known=True)
            result = {"tool_use_id": event.call_id, "is_error": event.is_error}
            self._from_child(event, content, tool_result=result)
            return
        call = self._s.calls.pop(event.call_id, None) or {"tool": "unknown", "kind": "builtin"}
        if call["kind"] == "custom" and (call["answered"] or event.synthetic):
            # Section 5: the application's own `user.custom_tool_result` is the record.
            return
        type_ = "agent.mcp_tool_result" if call["kind"] == "mcp" else "agent.tool_result"
        payload = {
            "tool_use_id": event.call_id,
            "tool": call["tool"],
            "status": "completed" if event.status == "completed" else "failed",
            "content": _result_blocks(event, known=call.get("known", True)),
            "is_error": event.is_error,
        }
        self._write(event, type_, payload)

    # Interactions.

    def _interaction_requested(self, event: ev.InteractionRequested) -> None:
        shown: dict[str, Any] = {"kind": event.kind, "id": event.request_id, "own": None}
        call = None
        if event.call_id is not None and event.thread_id == ev.MAIN:
            call = self._s.calls.get(event.call_id)
        match event.kind:
            case "approval":
                self._ask_approval(event, shown, call)
            case "tool_result":
                self._ask_result(event, shown, call)
            case "sudo":
                prompt = {"prompt": event.prompt} if event.prompt else {}
                shown["sequence"] = self._ask(event, "agent.sudo_request", prompt)
            case "secret":
                payload: dict[str, Any] = {"prompt": event.prompt}
                details = event.details or {}
                payload |= {k: v for k, v in details.items() if k not in ("type", "request_id")}
                shown["sequence"] = self._ask(event, "agent.secret_request", payload)
            case _:
                choices = _choices(event)
                shown["labels"] = {o.id: o.label for o in event.options or ()}
                payload = {"question": _question(event), "choices": choices}
                shown["sequence"] = self._ask(event, "agent.clarify_request", payload)
        self._s.requests[event.request_id] = shown

    def _ask(self, event: ev.InteractionRequested, type_: str, payload: dict[str, Any]) -> int:
        body = {"request_id": event.request_id, **payload}
        return self._write(event, type_, body | _beside(event))

    def _ask_approval(
        self,
        event: ev.InteractionRequested,
        shown: dict[str, Any],
        call: dict[str, Any] | None,
    ) -> None:
        if call is not None and call["kind"] != "custom":
            shown["id"] = event.call_id
            if not call["asked"]:
                # The call was written before it was known that it asks: said again, same payload
                # id.
                call["asked"] = True
                call["preview"] = call["preview"] or event.prompt or None
                call["sequence"] = self._use(event, event.call_id or "", call)
            shown["sequence"] = call["sequence"]
            return
        shown["own"] = "agent.tool_use"
        shown["tool"], input_ = _asked_tool(event, "permission")
        payload: dict[str, Any] = {"id": event.request_id, "tool": shown["tool"], "input": input_}
        payload["status"] = "running"
        if event.prompt:
            payload["preview"] = event.prompt
        payload["requires_action"] = True
        shown["sequence"] = self._write(event, "agent.tool_use", payload | _beside(event))

    def _ask_result(
        self,
        event: ev.InteractionRequested,
        shown: dict[str, Any],
        call: dict[str, Any] | None,
    ) -> None:
        if call is not None and call["kind"] == "custom":
            shown["id"], shown["sequence"] = event.call_id, call["sequence"]
            return
        shown["own"] = "agent.custom_tool_use"
        shown["tool"], input_ = _asked_tool(event, "ask")
        payload = {"id": event.request_id, "tool": shown["tool"], "input": input_}
        shown["sequence"] = self._write(event, "agent.custom_tool_use", payload | _beside(event))

    def _interaction_answered(self, event: ev.InteractionAnswered) -> None:
        shown = self._s.requests.get(event.request_id)
        if shown is not None and shown["kind"] == "tool_result":
            call = self._s.calls.get(shown["id"])
            if call is not None:
                call["answered"] = event.state == "claimed"

    def _interaction_resolved(self, event: ev.InteractionResolved) -> None:
        shown = self._s.requests.pop(event.request_id, None)
        if shown is None:
            return
        own = shown["own"]
        answered = own == "agent.custom_tool_use" and event.outcome == "answered"
        if own is not None and not answered:
            allowed = event.outcome in ("approved", "answered")
            self._write(
                event,
                "agent.tool_result",
                {
                    "tool_use_id": shown["id"],
                    "tool": shown["tool"],
                    "status": "completed" if allowed else "failed",
                    "content": wire.text_blocks(event.reason or event.outcome),
                    "is_error": not allowed,
                },
            )
        over = {key: shown[key] for key in ("kind", "id", "sequence")}
        # Put back at the end: what is over is forgotten oldest first.
        self._s.requests[event.request_id] = over | {"own": None, "over": True}
        _forget(self._s.requests, REQUESTS_KEPT, lambda record: bool(record.get("over")))

    # Turns.

    def _running(self, event: ev.Event) -> None:
        if event.thread_id == ev.MAIN and not self._s.running:
            self._s.running = True
            self._s.native = _is_native(event)
            self._write(event, wire.STATUS_RUNNING, {})

    def _turn_paused(self, event: ev.TurnPaused) -> None:
        if event.thread_id != ev.MAIN or event.on != "input":
            return
        self._s.running = False
        ids = [self._s.requests.get(name, {"id": name})["id"] for name in event.request_ids]
        reason: dict[str, Any] = {"type": "requires_action", "event_ids": ids}
        self._write(event, wire.STATUS_IDLE, {"stop_reason": reason})

    def _turn_ended(self, event: ev.TurnEnded) -> None:
        if event.thread_id != ev.MAIN:
            return
        self._s.running = False
        self._s.calls.clear()
        native = _is_native(event)
        if not native:
            self._close_cut(event)
        self._s.cut.clear()
        reason: dict[str, Any] = {"type": "end_turn"}
        if event.outcome not in ("completed", "interrupted"):
            reason = {"type": "error", "message": _message(event.error, event.outcome, native)}
        if not native and event.outcome not in ("completed", "failed"):
            reason["outcome"] = event.outcome
        source = (event.extra or {}).get("stop_reason") if native else None
        self._write(event, wire.STATUS_IDLE, {"stop_reason": source or reason})

    def _session_ended(self, event: ev.SessionEnded) -> None:
        self._s.running = False
        if event.outcome == "completed":
            self._write(event, wire.STATUS_IDLE, {"stop_reason": {"type": "end_turn"}})
            return
        message = _message(event.error, f"The session was {event.outcome}.", native=False)
        if event.outcome == "failed" and event.error is None:
            message = "The session failed."
        self._write(
            event,
            wire.STATUS_IDLE,
            {"stop_reason": {"type": "error", "message": message}},
            end=event.outcome == "deleted",
        )

    def _session_started(self, event: ev.SessionStarted) -> None:
        self._s.title = event.title

    def _session_updated(self, event: ev.SessionUpdated) -> None:
        if event.title is not None and event.title != self._s.title:
            self._s.title = event.title
            self._write(event, wire.TITLE_UPDATED, {"title": event.title}, listed=False)

    def _gap(self, event: ev.Gap) -> None:
        payload: dict[str, Any] = {"reason": event.reason}
        if event.cursor_from is not None:
            payload["from"] = event.cursor_from
        if event.cursor_to is not None:
            payload["to"] = event.cursor_to
        self._write(event, wire.GAP, payload)

    def _native(self, event: ev.Native) -> None:
        if event.dialect != wire.DIALECT or not isinstance(event.frame, dict) or not event.name:
            return
        if event.name.startswith(("agent.", "session.")) and "\n" not in event.name:
            # A lone CR ends a line of SSE too: what follows would be lines of ours.
            name = event.name.replace("\r", "\ufffd")
            self._write(event, name, {k: v for k, v in event.frame.items() if k != "type"})

    # Inputs.

    def _input_accepted(self, event: ev.InputAccepted) -> None:
        if event.kind not in ("message", "steer", "interrupt", "answer"):
            return
        record: dict[str, Any] = {
            "sequence": None,
            "payload": self._input_payload(event),
            "status": "pending",
            "created": None,
            "processed": None,
            "error": None,
            "kind": event.kind,
        }
        if event.face == wire.DIALECT:
            self._place_input(event, record)
        self._s.inputs[event.command_id] = record

    def _input_payload(self, event: ev.InputAccepted) -> dict[str, Any]:
        details = event.details or {}
        match event.kind:
            case "message":
                return {"type": "user.message", "content": _blocks(event.content)}
            case "steer":
                return {"type": "user.steer", "message": details.get("text", "")}
            case "interrupt":
                note = details.get("note")
                return {"type": "user.interrupt"} | ({} if note is None else {"message": note})
            case _:
                return self._answer_payload(event, details)

    def _answer_payload(self, event: ev.InputAccepted, details: dict[str, Any]) -> dict[str, Any]:
        """Return an answer as the `user.*` event that it is here; a sealed value is nowhere to be
        had."""
        request_id = event.request_id or ""
        shown = self._s.requests.get(request_id, {"kind": "question", "id": request_id})
        match shown["kind"]:
            case "approval":
                payload = {
                    "type": "user.tool_confirmation",
                    "tool_use_id": shown["id"],
                    "result": details.get("decision", "deny"),
                }
                if "scope" in details:
                    payload["scope"] = details["scope"]
                return payload
            case "tool_result":
                content = event.content or (ev.Text(text=details.get("text", "")),)
                return {
                    "type": "user.custom_tool_result",
                    "tool_use_id": shown["id"],
                    "content": _blocks(content),
                    "is_error": details.get("is_error", False),
                }
            case "sudo":
                return {"type": "user.sudo_result", "request_id": request_id}
            case "secret" | "unknown":
                return {"type": "user.secret_result", "request_id": request_id}
            case _:
                labels = shown.get("labels", {})
                chosen = [labels.get(name, name) for name in details.get("option_ids", ())]
                answer = details.get("text") or ", ".join(chosen)
                return {"type": "user.clarify_result", "request_id": request_id, "answer": answer}

    def _place_input(self, event: ev.Event, record: dict[str, Any]) -> None:
        record["sequence"] = self._next()
        record["created"] = self._created(event)
        self._out.append(
            Envelope(
                record["sequence"],
                record["payload"]["type"],
                self._input_body(record),
                streamed=False,
            )
        )

    def _input_body(self, record: dict[str, Any]) -> bytes:
        envelope: dict[str, Any] = {
            "id": f"{self._prefix.decode()}{record['sequence']}",
            "type": record["payload"]["type"],
            "sessionId": self._session,
            "sequence": record["sequence"],
            "status": record["status"],
            "payload": record["payload"],
            "processedAt": record["processed"],
            "createdAt": record["created"],
        }
        if record["error"] is not None:
            envelope["error"] = record["error"]
        return format_json(envelope)

    def _input_settled(self, event: ev.InputSettled) -> None:
        record = self._s.inputs.get(event.command_id)
        if record is None:
            return
        taken = event.outcome == "taken"
        record["status"] = "complete" if taken else "failed"
        record["processed"] = self._time()
        if not taken:
            error = event.error
            record["error"] = {
                "code": error.code if error is not None else event.outcome,
                "message": event.reason or f"The input was {event.outcome}.",
            }
        if record["sequence"] is not None:
            body = self._input_body(record)
            type_ = record["payload"]["type"]
            self._out.append(Envelope(record["sequence"], type_, body, streamed=False, update=True))
            if record["kind"] == "message" and not taken:
                self._show_refused(event)
        elif record["kind"] in ("message", "steer"):
            # Shown where it becomes part of the conversation.
            if not taken:
                del self._s.inputs[event.command_id]
            return
        elif taken:
            self._place_input(event, record)
        _forget(self._s.inputs, INPUTS_KEPT, lambda kept: kept["status"] != "pending")

    def _show_refused(self, event: ev.InputSettled) -> None:
        """Tell the reader of the stream, who waits for `session.status_idle`, that no turn comes
        of a message (section 4.6)."""
        if self._s.running or event.outcome == "withdrawn":
            return
        self._write(event, wire.STATUS_RUNNING, {})
        message = _message(event.error, event.reason or event.outcome, native=False)
        self._write(event, wire.STATUS_IDLE, {"stop_reason": {"type": "error", "message": message}})

    def _message_received(self, event: ev.MessageReceived) -> None:
        self._received(event, {"type": "user.message", "content": _blocks(event.content)})

    def _guidance_received(self, event: ev.GuidanceReceived) -> None:
        self._received(event, {"type": "user.steer", "message": event.text})

    def _received(
        self, event: ev.MessageReceived | ev.GuidanceReceived, payload: dict[str, Any]
    ) -> None:
        if event.thread_id != ev.MAIN:
            return
        record = None if event.command_id is None else self._s.inputs.get(event.command_id)
        if record is not None and record["sequence"] is not None:
            return
        if event.command_id is not None:
            self._s.inputs.pop(event.command_id, None)
        shown = {
            "sequence": None,
            "payload": payload,
            "status": "complete",
            "created": None,
            "processed": self._time(),
            "error": None,
        }
        self._place_input(event, shown)

    # Child threads.

    def _thread_started(self, event: ev.ThreadStarted) -> None:
        name = event.name or "agent"
        self._s.threads[event.thread_id] = name
        if _is_native(event):
            return
        payload = {
            "thread_id": event.thread_id,
            "from_thread_id": event.parent,
            "to_thread_id": event.thread_id,
            "name": name,
            "status": "started",
            "content": [],
        }
        self._write(event, "agent.thread_message_sent", payload)

    def _thread_ended(self, event: ev.ThreadEnded) -> None:
        name = self._s.threads.pop(event.thread_id, "agent")
        if _is_native(event):
            return
        if event.error is not None:
            content = wire.text_blocks(event.error.message)
        elif event.output is None:
            content = []
        else:
            said = event.output
            content = wire.text_blocks(said if isinstance(said, str) else _json(said))
        payload = {
            "thread_id": event.thread_id,
            "from_thread_id": event.thread_id,
            "name": name,
            "status": event.status,
            "content": content,
        }
        self._write(event, "agent.thread_message_received", payload)

    def _thread_message(self, event: ev.ThreadMessage) -> None:
        type_ = f"agent.thread_message_{event.direction}"
        content = _blocks(event.content)
        if _is_native(event):
            self._write(event, type_, {"content": content} if content else {})
            return
        child = event.recipient if event.direction == "sent" else event.sender
        payload: dict[str, Any] = {"thread_id": child}
        if event.sender is not None:
            payload["from_thread_id"] = event.sender
        if event.recipient is not None:
            payload["to_thread_id"] = event.recipient
        payload["name"] = self._s.threads.get(child or "", "agent")
        payload |= {"status": "running", "content": content}
        self._write(event, type_, payload)

    def _from_child(self, event: ev.Event, content: list[dict[str, str]], **members: Any) -> None:
        """Show what a child says or does: it has no stream of its own here."""
        payload = {
            "thread_id": event.thread_id,
            "from_thread_id": event.thread_id,
            "name": self._s.threads.get(event.thread_id, "agent"),
            "status": "running",
            "content": content,
            **members,
        }
        self._write(event, "agent.thread_message_received", payload)

    _turn_started = _running
    _turn_resumed = _running


_HANDLERS: dict[str, Callable[[HermEncoder, Any], None]] = {
    type_: getattr(HermEncoder, "_" + type_.replace(".", "_"))
    for type_ in ev.EVENT_TYPES
    if hasattr(HermEncoder, "_" + type_.replace(".", "_"))
}


def status_of(about: SessionInfo, state: str) -> str:
    """Return `status` for a session's state as the journal keeps it (section 2.3)."""
    if about.archived_at is not None:
        return "archived"
    if about.ended in ("failed", "terminated"):
        return "error"
    return "running" if state == "running" else "idle"


def session_object(
    session_id: str, state: str, about: SessionInfo, created_at: int, updated_at: int
) -> dict[str, Any]:
    """Return the session object (section 2.2); times are Unix milliseconds."""
    agent, version = about.agent.get("id"), about.agent.get("version")
    user = about.options.get(USER_ID)
    value: dict[str, Any] = {
        "id": session_id,
        "agentId": agent if isinstance(agent, str) else "",
        "agentVersion": version if isinstance(version, int) else 1,
        "userId": user if isinstance(user, str) else None,
        "title": about.title,
        "metadata": about.metadata,
        "status": status_of(about, state),
        "createdAt": wire.iso_seconds(created_at),
        "updatedAt": wire.iso_seconds(max(updated_at, created_at)),
    }
    if about.archived_at is not None:
        value["archivedAt"] = wire.iso_seconds(about.archived_at)
    if about.predecessor is not None:
        value["predecessor"] = about.predecessor
    if about.replaced_by is not None:
        value["replacedBy"] = about.replaced_by
    return value


def position_of(event_id: str, session_id: str) -> int | None:
    """Return the sequence that an envelope id of a session names, or None where it is none of
    it."""
    prefix = f"evt_{session_id}_"
    digits = event_id.removeprefix(prefix)
    if digits == event_id or not (digits.isascii() and digits.isdigit()) or len(digits) > 15:
        return None
    return int(digits)


def messages_of(envelopes: Iterable[Envelope]) -> list[dict[str, Any]]:
    """Return the history that a session object shows (section 2.3): `role` is `user` or `agent`."""
    messages = []
    for made in envelopes:
        if made.type in ("user.message", "agent.message") and made.listed:
            envelope = orjson.loads(made.body)
            role = "user" if made.type == "user.message" else "agent"
            messages.append(
                {
                    "role": role,
                    "content": envelope["payload"]["content"],
                    "createdAt": envelope["createdAt"],
                }
            )
    return messages


def _is_native(event: ev.Event) -> bool:
    return event.native is not None and event.native.dialect == wire.DIALECT


def _json(value: object) -> str:
    return format_json(value).decode()


def _blocks(content: tuple[Any, ...] | None) -> list[dict[str, str]]:
    """Return a content as text blocks; a file is a marker with its name and type (section 3.1)."""
    return [block for part in content or () for block in wire.text_blocks(ev.text_of((part,)))]


def _input(event: ev.ToolCalled) -> dict[str, Any]:
    if isinstance(event.input, dict):
        return event.input
    return {} if event.input is None else {"value": event.input}


def _result_blocks(event: ev.ToolReturned, *, known: bool) -> list[dict[str, str]]:
    """Return what a tool gave as text blocks: an input learnt late before it, the reason of a
    failure behind it."""
    texts: list[str] = []
    if event.input is not None and not known:
        texts.append(f"Input: {_json(event.input)}")
    if event.content is not None:
        texts += [ev.text_of((block,)) for block in event.content]
    elif isinstance(event.output, str):
        if event.output or event.error is None or _is_native(event):
            texts.append(event.output)
    elif event.output is not None:
        texts.append(_json(event.output))
    told = _is_native(event) or event.error is None
    if event.error is not None and not told and not any(event.error.message in t for t in texts):
        texts.append(event.error.message)
    return [block for text in texts for block in wire.text_blocks(text)]


def _asked_tool(event: ev.InteractionRequested, default: str) -> tuple[str, dict[str, Any]]:
    """Return name and input of a tool use that we write for an ask without a call: always what it
    is about."""
    details = dict(event.details or {})
    tool = details.pop("tool", None) or default
    input_ = details.pop("input", None)
    if input_ is None:
        input_ = details or {"prompt": event.prompt}
    return str(tool), input_ if isinstance(input_, dict) else {"value": input_}


def _beside(event: ev.InteractionRequested) -> dict[str, Any]:
    """Return the members that Herm has no place for: whose ask it is, until when it holds."""
    members: dict[str, Any] = {}
    if event.thread_id != ev.MAIN:
        members["thread_id"] = event.thread_id
    if event.expires_at is not None:
        members["expires_at"] = wire.iso(event.expires_at)
    return members


def _choices(event: ev.InteractionRequested) -> list[str] | None:
    if event.kind == "authorization":
        return [wire.CANCEL]
    if event.kind == "limit" and not event.options:
        return ["continue", "stop"]
    return [option.label for option in event.options] if event.options else None


def _question(event: ev.InteractionRequested) -> str:
    details = event.details or {}
    if event.kind == "authorization":
        # Nothing here answers a sign-in: the address must be in the words.
        parts = [
            event.prompt,
            *(str(details[k]) for k in ("url", "user_code", "instructions") if details.get(k)),
        ]
        return "\n".join(dict.fromkeys(part for part in parts if part))
    return event.prompt


def _message(error: ev.ErrorInfo | None, outcome: str, native: bool) -> str:
    """Return `stop_reason.message`: code and message in one string."""
    if error is None:
        return outcome if " " in outcome else f"The turn ended: {outcome}."
    if native:
        return error.message
    text = error.message if error.code in error.message else f"{error.code}: {error.message}"
    return text if outcome == "failed" or " " in outcome else f"{outcome}: {text}"


def _forget(records: dict[str, Any], keep: int, over: Callable[[Any], bool]) -> None:
    """Drop the oldest records that are over, so that at most `keep` of them stay."""
    finished = [name for name, record in records.items() if over(record)]
    for name in finished[: max(0, len(finished) - keep)]:
        del records[name]
