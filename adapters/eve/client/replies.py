"""What came of requests."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.eve import wire
from adapters.eve.client.parts import EveParts
from adapters.eve.client.timers import END_HOLD_MS
from adapters.eve.client.turn_end import TurnEnd
from adapters.eve.client.values import json_body, refusal
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Response
from adapters.wire.errors import DragomanError, ErrorCode

_DROPPED = ev.ErrorInfo(code="dropped", message="eve: the message was dropped by a hook of the app")


@dataclasses.dataclass(slots=True)
class EveReplies:
    """Answers to requests, and failures."""

    parts: EveParts
    turn_end: TurnEnd

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        """Hear the answer to a request."""
        ok = 200 <= response.status < 300
        body = json_body(response)
        left = self.parts.inputs.not_shown(call)
        if left is None:
            if ok:
                self.parts.server.learn(response, body)
            self.parts.cancellation.go_on()
            return []
        call = left
        if response.status == 400 and self.parts.retries.without_token(call, response, now):
            return []
        match call.name:
            case "stream":
                return self._no_stream(call, response, now)
            case "nothing":
                return self._acknowledged(call)
            case "held":
                self.parts.cancellation.wait(now)
                return []
            case "info":
                return self.parts.first_message.informed(call, ok, body)
            case "prewarm":
                return self.parts.first_message.prewarmed(call, response, ok, body)
            case "create" | "message":
                return self._sent(call, response, ok, body, now)
            case "answer" | "negative":
                out = self._answered(call, response, ok, body, now)
                self.parts.cancellation.go_on()
                return out
            case _:
                return self._controlled(call, response, ok, body, now)

    def _sent(
        self, call: Call, response: Response, ok: bool, body: dict[str, Any], now: int
    ) -> list[ev.Event]:
        s = self.parts.state
        command_id = call.command_id
        assert command_id is not None
        item = s.ledger.open.get(command_id)
        if response.status == 204:
            return self.parts.inputs.not_sent(command_id, _DROPPED)
        if ok:
            self.parts.server.learn(response, body)
            if s.session is None:
                error = ev.ErrorInfo(
                    code=str(ErrorCode.BACKEND_PROTOCOL),
                    message="eve: a create answer without usable session id",
                )
                return self.parts.inputs.not_sent(command_id, error)
            delivery = body.get("deliveryId")
            if item is None:
                # A create without message, or the stream was faster than this answer.
                return [] if call.name == "message" else [raw.settled(command_id, "taken")]
            if isinstance(delivery, str):
                item.delivery = delivery
            if item.taken:
                return []
            s.silence.forget(command_id)
            self.parts.cancellation.taken(now)
            return s.ledger.settle(command_id, "taken")
        if item is None and call.name == "create" and response.status == 400:
            # Section 1: T has no create without a message; the session begins with its first one.
            self.parts.server.know("T")
            return [raw.settled(command_id, "taken")]
        if item is not None and item.taken:
            return []
        code = body.get("code")
        if code == wire.SESSION_NOT_READY and self.parts.retries.again(call, now):
            return [_retried("The session is not ready yet; the message will be sent again.")]
        if self._not_yet(call, code, now):
            return [_retried("The session is not active yet; the message will be sent again.")]
        if response.status >= 500 and call.name == "message":
            return self.parts.inputs.in_doubt(command_id, refusal(response), now)
        if response.status >= 500:
            # A create that failed may have made a session, but nobody knows its name.
            s.ledger.drop(command_id)
            return [raw.settled(command_id, "unknown", refusal(response))]
        error = refusal(response)
        return self.parts.inputs.not_sent(command_id, error) + self._over(code, error, now)

    def _not_yet(self, call: Call, code: object, now: int) -> bool:
        """Say whether a request is sent again because its session may not be active yet; one that a
        failed reset may have ended is not."""
        refused = code == wire.SESSION_NOT_ACTIVE and not self.parts.state.mistrusted
        return refused and self.parts.retries.not_yet(call, now)

    def _over(self, code: object, error: ev.ErrorInfo, now: int) -> list[ev.Event]:
        """End our session where the backend says that its own is over for good (section 5), and
        nothing speaks against it: a refusal alone does not end what has a stream. The stream of one
        that is not active shows whether it is over."""
        s = self.parts.state
        if code not in (wire.SESSION_NOT_ACTIVE, wire.SESSION_STRANDED) or s.ended:
            return []
        if self.parts.connection.opened_at is not None:
            return []
        if code == wire.SESSION_NOT_ACTIVE and not s.mistrusted:
            # The stream tells whether the session is over. Ours.
            s.doubted_until = now + 10_000
            return []
        return self.turn_end.end_session("failed", error)

    def _acknowledged(self, call: Call) -> list[ev.Event]:
        """Settle an answer that goes nowhere: the sign-in stays open."""
        assert call.command_id is not None
        return [
            raw.settled(call.command_id, "taken"),
            *self.parts.inputs.release_claims(call.command_id),
        ]

    def _answered(
        self, call: Call, response: Response, ok: bool, body: dict[str, Any], now: int
    ) -> list[ev.Event]:
        s = self.parts.state
        said = [item for name, item in s.ledger.open.items() if name in call.command_ids]
        if response.status == 204 and said:
            return self.parts.inputs.none_sent(call, _DROPPED)
        if ok:
            self.parts.server.learn(response, body)
            for item in said:
                item.taken = True
            for given in self.parts.requests.given():
                given.taken = given.taken or given.command_id in call.command_ids
            if call.name == "negative" and self.parts.cancellation.wait(now):
                return []
            return [raw.settled(name, "taken") for name in call.command_ids]
        error = refusal(response)
        if response.status >= 500 and b"target session was not found" in response.body:
            if self.parts.retries.again(call, now):
                return [_retried("The session is not ready yet; the answer will be sent again.")]
        elif self._not_yet(call, body.get("code"), now):
            return [_retried("The session is not active yet; the answer will be sent again.")]
        elif response.status >= 500 and call.name == "answer":
            return self.parts.inputs.all_in_doubt(call, error, now)
        if call.name == "negative":
            self.parts.cancellation.forget()
            self.parts.requests.take_back_negative()
        return self.parts.inputs.none_sent(call, error) + self._over(body.get("code"), error, now)

    def _controlled(
        self, call: Call, response: Response, ok: bool, body: dict[str, Any], now: int
    ) -> list[ev.Event]:
        s = self.parts.state
        command_id = call.command_id
        if call.name == "cancel" and ok:
            self.parts.cancellation.expect_end(call, body, now)
        inactive = body.get("status") == "no_active_session"
        code = wire.SESSION_NOT_ACTIVE if inactive and call.name != "reset" else body.get("code")
        if self._not_yet(call, code, now):
            return [_retried(f"The session is not active yet; `{call.name}` will be sent again.")]
        self.parts.retries.done(call)
        if call.name == "cancel" and command_id is None:
            return []
        assert command_id is not None
        if not ok:
            error = refusal(response)
            if call.name == "reset" and response.status >= 500:
                self.parts.cancellation.mistrust(now)
            over = self._over(body.get("code"), error, now)
            released = self.parts.inputs.release_claims(command_id)
            return [raw.settled(command_id, "refused", error), *released, *over]
        if inactive and call.name == "reset":
            # It is over there, and so it takes no more input here.
            return [
                raw.settled(command_id, "taken"),
                *self.turn_end.end_session("terminated", None),
            ]
        if inactive:
            error = ev.ErrorInfo(
                code="no_active_session", message=f"eve: there is no active session to {call.name}"
            )
            released = self.parts.inputs.release_claims(command_id)
            return [raw.settled(command_id, "refused", error), *released]
        out = [raw.settled(command_id, "taken")]
        if call.name in ("compact", "clear"):
            s.control += 1
        if call.name == "reset":
            if s.generation == "T":
                # Section 6: T says nothing on the stream.
                return out + self.turn_end.end_session("terminated", None)
            s.reset_at = now + END_HOLD_MS
        return out

    def _no_stream(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        """A stream was refused: most refusals pass (7.5), some are for good (7.2)."""
        self.parts.connection.refused.add(call.thread_id)
        error = refusal(response)
        code = json_body(response).get("code")
        final = response.status in (400, 401, 403, 410) or code == wire.SESSION_STRANDED
        if not final:
            return []
        line = self.parts.state.lines.get(call.thread_id)
        if line is None:
            return []
        if call.thread_id != ev.MAIN:
            self.parts.child_index.close_stream(line)
            return self.turn_end.end_child(line)
        if code == wire.SESSION_STRANDED:
            return self._over(code, error, now)
        out: list[ev.Event] = []
        if response.status == 410:
            count = str(self.parts.cursors.of(ev.MAIN).count)
            out.append(
                ev.Gap(thread_id=ev.MAIN, reason=error.message, cursor_from=count, synthetic=True)
            )
        return out + self.turn_end.lost(error)

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        """Record that a request has no answer."""
        info = raw.error_info(error)
        left = self.parts.inputs.not_shown(call)
        if left is None:
            self.parts.cancellation.go_on()
            return []
        call = left
        if call.name == "stream":
            self.parts.connection.refused.add(call.thread_id)
            if call.thread_id == ev.MAIN:
                self.parts.connection.opened_at = None
            return []
        command_id = call.command_id
        if command_id is None:
            return []
        if call.name == "nothing":
            return self._acknowledged(call)
        if call.name == "info":
            return self.parts.first_message.informed(call, False, {})
        if call.name == "held":
            self.parts.cancellation.wait(now)
            return []
        if call.name == "negative" and not sent:
            self.parts.cancellation.forget()
        if call.name == "prewarm":
            self.parts.state.first = None
            return self.parts.inputs.not_sent(command_id, info)
        if not sent or (
            call.name in ("message", "answer") and self.parts.state.session is not None
        ):
            inputs = self.parts.inputs
            out = inputs.all_in_doubt(call, info, now) if sent else inputs.none_sent(call, info)
            self.parts.cancellation.go_on()
            return out
        self.parts.state.ledger.drop(command_id)
        self.parts.state.silence.forget(command_id)
        if call.name == "negative":
            self.parts.cancellation.forget()
        released = self.parts.inputs.release_claims(command_id)
        return [raw.settled(command_id, "unknown", info), *released]


def _retried(text: str) -> ev.Event:
    return ev.Notice(
        thread_id=ev.MAIN,
        level="debug",
        text=f"eve: {text}",
        kind="backend_not_ready",
        synthetic=True,
    )
