"""What the agent shows: text, tools, questions, threads, and news of the session."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from adapters.herm import wire
from adapters.herm.client.asks import HermRequests
from adapters.herm.client.contents import block_of, output_of, server_of
from adapters.herm.client.envelopes import ReceivedEnvelope, name_in, text_in
from adapters.herm.client.questions import question_of
from adapters.herm.client.records import (
    KEPT,
    KEPT_BYTES,
    HermClientState,
    HermStreamPosition,
    HermToolCall,
)
from adapters.herm.client.texts import TextRuns
from adapters.herm.client.turns import HermTurns
from adapters.model import events as ev
from adapters.wire.errors import cut
from adapters.wire.jsonvalue import format_json

_FINAL: dict[str, Literal["completed", "failed", "cancelled"]] = {
    "completed": "completed",
    "complete": "completed",
    "done": "completed",
    "failed": "failed",
    "error": "failed",
    "cancelled": "cancelled",
    "canceled": "cancelled",
    "interrupted": "cancelled",
}
"""`status` of a thread message that ends the thread -> canonical (section 4.5: expected, not
documented)."""

_USE_KEYS = frozenset({"id", "tool", "input", "preview", "requires_action"})
_RESULT_KEYS = frozenset({"tool_use_id", "tool", "status", "content", "is_error"})


@dataclasses.dataclass(slots=True)
class EnvelopeHandlers:
    """One method for each kind of envelope."""

    s: HermClientState
    at: HermStreamPosition
    texts: TextRuns
    asks: HermRequests
    turns: HermTurns

    def _begun(self, seen: ReceivedEnvelope, *, asks: bool = False) -> list[ev.Event]:
        """Return what comes before any work that is not text."""
        return self.turns.work(seen, asks=asks) + self.texts.close("complete", seen.native)

    # Text.

    def text(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """A piece of a text or of reasoning, or a whole one."""
        if self.s.turn is None and self.texts.is_held_back(seen):
            # It begins no turn: the whole text does, where it is new.
            return []
        return self.turns.work(seen) + self.texts.take(seen)

    # Tools.

    def tool_use(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """A call of a tool."""
        s, payload = self.s, seen.payload
        call_id = name_in(payload, "id") or seen.native.id or f"call-of-frame-{self.at.frames}"
        asks = payload.get("requires_action") is True
        known = s.calls.get(call_id)
        if known is not None:
            # Said again: an ask that was not known before, or news of a running call.
            if asks and not known.asked:
                known.asked, s.ending, s.late_at = True, None, None
                told = known if known.kept else _call(seen, known.tool)
                return self.asks.permission(call_id, told, seen.native)
            return []
        custom = seen.type == "agent.custom_tool_use"
        out = self._begun(seen, asks=custom or asks)
        tool = name_in(payload, "tool") or "unknown"
        call = _call(seen, tool)
        mcp = seen.type == "agent.mcp_tool_use"
        used = _USE_KEYS | {"status"} if payload.get("status") == "running" else _USE_KEYS
        s.calls[call_id] = self._remembered(call)
        s.left.pop(call_id, None)
        s.put_back(call_id, seen.native.id)
        out.append(
            ev.ToolCalled(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                call_id=call_id,
                name=tool,
                kind="mcp" if mcp else "custom" if custom else "builtin",
                server=server_of(payload, tool) if mcp else None,
                input=payload.get("input"),
                input_known="input" in payload,
                preview=text_in(payload, "preview"),
                permission="ask" if asks else "allow",
                native=seen.native,
                extra=seen.extra(used),
            )
        )
        s.calls[call_id].asked = custom or asks
        s.calls[call_id].custom = custom
        if custom:
            out += self.asks.result(call_id, call, seen.native)
        elif asks:
            out += self.asks.permission(call_id, call, seen.native)
        return out

    def _remembered(self, call: HermToolCall) -> HermToolCall:
        """Return a call as it is remembered: where there is no room for its input, it is not shown
        again by a pause that alone asks for it."""
        kept = sum([one.size for one in self.s.calls.values() if one.kept])
        if kept + call.size <= KEPT_BYTES:
            return call
        return dataclasses.replace(call, input=None, kept=False)

    def tool_result(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """What a call returned."""
        s, payload = self.s, seen.payload
        call_id = name_in(payload, "tool_use_id") or next(iter(s.calls), f"call-{self.at.frames}")
        if call_id not in s.calls and (call_id in s.left or self.turns.is_late(seen)):
            return [self._late_result(seen, call_id)]
        call = s.calls.pop(call_id, None)
        s.put_over(call_id, call.envelope if call is not None else None)
        failed = payload.get("is_error") is True or payload.get("status") == "failed"
        text = wire.text_of_blocks(payload.get("content"))
        out: list[ev.Event] = []
        if s.turn is None:
            out += self.turns.work(seen)
        if s.late_at is not None:
            s.late_at = seen.now
        # A denial is resolved when the turn goes on, before its call comes back (section 5).
        rejected = failed and call is not None and call.denied
        asked = s.asks.of_call(call_id)
        if asked is not None:
            answer = s.requests[asked].answer
            denied = "denied" in text.lower() if answer is None else answer.outcome == "denied"
            rejected = failed and denied
            out += self.asks.resolve(asked, seen.native, denied=rejected)
            if s.paused and not s.requests:
                out.append(self.turns.resumed(seen.native, synthetic=True))
        extra = seen.extra(_RESULT_KEYS) or {}
        if call is None and text_in(payload, "tool"):
            extra["name"] = payload["tool"]
        output, content = output_of(payload.get("content"))
        error = None
        if failed:
            error = ev.ErrorInfo(
                code="permission_denied" if rejected else "tool_failed",
                message=text or text_in(payload, "error") or "The tool failed.",
            )
        out.append(
            ev.ToolReturned(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                call_id=call_id,
                output=output,
                content=content,
                is_error=failed,
                error=error,
                status="rejected" if rejected else "failed" if failed else "completed",
                native=seen.native,
                extra=extra or None,
            )
        )
        return out + self.turns.returned()

    def _late_result(self, seen: ReceivedEnvelope, call_id: str) -> ev.Event:
        """Say what a call returned whose turn is over."""
        payload = seen.payload
        named = name_in(payload, "tool_use_id")
        tool = self.s.left.pop(call_id, None) or text_in(payload, "tool") or "a tool"
        text = wire.text_of_blocks(payload.get("content"))
        return ev.Notice(
            thread_id=ev.MAIN,
            turn_id=self.s.turn,
            level="warning",
            kind="late_result",
            text=cut(f"The result of `{tool}` came after the end of its turn: {text}"),
            call_id=named,
            details=dict(payload),
            native=seen.native,
        )

    # Questions.

    def clarify(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """A question."""
        payload = seen.payload
        out = self._begun(seen, asks=True)
        question = question_of(payload)
        # An answer is any string (section 3.2), so words of one's own are taken beside choices.
        asked = self.asks.ask(
            self._request_id(seen),
            "question",
            seen.native,
            prompt=question.prompt,
            options=question.options or None,
            freeform=True,
            posted=question.posted,
            extra=seen.extra({"request_id", "question", "choices"}),
        )
        return out + asked

    def sudo(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """A password is asked for."""
        out = self._begun(seen, asks=True)
        asked = self.asks.ask(
            self._request_id(seen),
            "sudo",
            seen.native,
            prompt=text_in(seen.payload, "prompt") or "",
            extra=seen.extra({"request_id", "prompt"}),
        )
        return out + asked

    def secret(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """The value of an environment variable is asked for."""
        out = self._begun(seen, asks=True)
        variable = text_in(seen.payload, "env_var")
        asked = self.asks.ask(
            self._request_id(seen),
            "secret",
            seen.native,
            prompt=text_in(seen.payload, "prompt") or "",
            details=None if variable is None else {"env_var": variable},
            extra=seen.extra({"request_id", "prompt", "env_var"}),
        )
        return out + asked

    def _request_id(self, seen: ReceivedEnvelope) -> str:
        return name_in(seen.payload, "request_id") or seen.native.id or f"request-{self.at.frames}"

    # Threads.

    def thread_sent(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """Words to a child."""
        thread, out = self._thread(seen, "to_thread_id")
        return [*out, self._thread_message(seen, "sent", thread)]

    def thread_received(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """Words of a child, perhaps its last ones."""
        s, payload = self.s, seen.payload
        thread, out = self._thread(seen, "from_thread_id")
        out.append(self._thread_message(seen, "received", thread))
        status = text_in(payload, "status")
        final = "completed" if status is None else _FINAL.get(status)
        if final is None or thread not in s.threads:
            return out
        s.threads.remove(thread)
        s.ended_threads.append(thread)
        del s.ended_threads[:-KEPT]
        text = wire.text_of_blocks(payload.get("content"))
        failed = final == "failed"
        out.append(
            ev.ThreadEnded(
                thread_id=thread,
                status=final,
                output=None if failed else text,
                error=ev.ErrorInfo(code="thread_failed", message=text) if failed else None,
                native=seen.native,
            )
        )
        return out

    def _thread(self, seen: ReceivedEnvelope, field: str) -> tuple[str, list[ev.Event]]:
        """Return the child that a thread event is about, opened where it is the first one (section
        4.5: expected)."""
        s, payload = self.s, seen.payload
        name = name_in(payload, "name")
        thread = name_in(payload, "thread_id") or name_in(payload, field)
        if thread is None or thread == ev.MAIN:
            thread = f"thread-{name}" if name else next(reversed(s.threads), None)
        if thread is None:
            s.unnamed_threads += 1
            thread = f"thread-{s.unnamed_threads}"
        if thread in s.threads or thread in s.ended_threads:
            return thread, []
        s.threads.append(thread)
        return thread, [
            ev.ThreadStarted(
                thread_id=thread, parent=ev.MAIN, name=name, native_id=thread, native=seen.native
            )
        ]

    def _thread_message(
        self, seen: ReceivedEnvelope, direction: Literal["sent", "received"], thread: str
    ) -> ev.Event:
        content = seen.payload.get("content")
        blocks = content if isinstance(content, list) else [content] if content else []
        return ev.ThreadMessage(
            thread_id=ev.MAIN,
            turn_id=self.s.turn,
            direction=direction,
            sender=ev.MAIN if direction == "sent" else thread,
            recipient=thread if direction == "sent" else ev.MAIN,
            content=tuple(block_of(block) for block in blocks),
            native=seen.native,
            extra=seen.extra({"content"}),
        )

    # The session.

    def title_updated(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """A new title."""
        title = text_in(seen.payload, "title")
        if title is None:
            return [self.unknown(seen)]
        self.s.title = title
        return [
            ev.SessionUpdated(
                thread_id=ev.MAIN, title=title, native=seen.native, extra=seen.extra({"title"})
            )
        ]

    def gap(self, seen: ReceivedEnvelope) -> list[ev.Event]:
        """The backend has lost events."""
        return [
            ev.Gap(
                thread_id=ev.MAIN,
                turn_id=self.s.turn,
                reason=text_in(seen.payload, "reason") or "the backend lost events",
                cursor_from=text_in(seen.payload, "from"),
                cursor_to=text_in(seen.payload, "to"),
                native=seen.native,
            )
        ]

    def unknown(self, seen: ReceivedEnvelope) -> ev.Event:
        """What this dialect is not known to have."""
        rest: dict[str, Any] | None = None if seen.rest is None else {"envelope": seen.rest}
        return ev.Native(
            thread_id=ev.MAIN,
            turn_id=self.s.turn,
            dialect=wire.DIALECT,
            name=seen.type,
            frame=seen.payload,
            native=seen.native,
            extra=rest,
        )


def _call(seen: ReceivedEnvelope, tool: str) -> HermToolCall:
    """Return a call as a frame tells it."""
    payload = seen.payload
    return HermToolCall(
        tool,
        payload.get("input"),
        cut(text_in(payload, "preview") or "") or None,
        seen.native.id,
        size=len(format_json(payload.get("input"))),
    )
