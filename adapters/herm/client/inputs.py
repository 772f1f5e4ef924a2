"""What becomes of commands: each settles once, by the answer of its POST, by its echo, by its turn,
or by a list that shows it or does not.

What the page leaves open is taken as it comes and never relied on: the spelling of a batch, echoes
of `user.*`, whose ids an answer names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from adapters.driving.again import Patience
from adapters.herm.client import posts
from adapters.herm.client.answers import other_sealed, request_named
from adapters.herm.client.asks import HermRequests
from adapters.herm.client.contents import message_of
from adapters.herm.client.envelopes import (
    envelopes_of,
    id_of,
    is_echo,
    key_of,
    sequence_of,
    short,
)
from adapters.herm.client.numbers import Numbers
from adapters.herm.client.records import HermClientState, PendingMessage, PostedInput
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Response
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import parse_json

RETRY_MS = 2_000
BUSY_RETRY_MS = 5_000
RETRY_FOR_MS = 600_000
"""A message that was refused for now (409, 429: surely not taken) is posted again after these, for
ten minutes."""

_NOT_READY = Patience(RETRY_MS, RETRY_MS, for_ms=RETRY_FOR_MS)
_BUSY = Patience(BUSY_RETRY_MS, BUSY_RETRY_MS, for_ms=RETRY_FOR_MS)

_DEPLOYS = "deployment_not_ready"
"""The code of a Herm that takes nothing for now (section 6)."""

_NOT_ASKED = frozenset({404, 409, 410})
"""What an answer may be refused with for which nothing waits; the page names no status (section
3.1)."""

_TURN_OVER = frozenset({400, 409, 422, 429})
"""What steering may be refused with when no turn runs; the page names no status (section 3.1)."""


@dataclasses.dataclass(slots=True)
class HermInputs:
    """Commands on their way. What is to be posted is part of the state until `take`."""

    s: HermClientState
    numbers: Numbers
    asks: HermRequests
    # What is posted otherwise, and whether as a lone object, by command. One may be sealed.
    _again: dict[str, tuple[dict[str, Any], bool]] = dataclasses.field(
        init=False, default_factory=dict
    )

    # Going out.

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call:
        """Return the call that carries a command of a session that there is."""
        assert self.s.session is not None
        match command:
            case cmd.SendMessage():
                return self._message(command_id, command)
            case cmd.Steer():
                return self.post({"type": "user.steer", "message": command.text}, command_id)
            case cmd.Interrupt():
                said = {"message": command.note} if command.note else {}
                return self.post({"type": "user.interrupt", **said}, command_id)
            case cmd.AnswerInteraction():
                return self.post(self.asks.answer(command_id, command), command_id)
            case cmd.Archive() | cmd.Reset() | cmd.Delete() | cmd.UpdateSession():
                return posts.administer(self.s.session, command_id, command)
            case _:
                raise NotSupported(f"herm: nothing carries `{command.TYPE}`")

    def _message(self, command_id: str, command: cmd.SendMessage) -> Call:
        """Return the call that carries a message, now or in its turn."""
        s = self.s
        assert s.session is not None
        message = message_of(command_id, command)
        if s.works and command.policy == "steer":
            words = ev.text_of(command.content)
            # Where the turn is over when it arrives, it is a message after all.
            return self.post({"type": "user.steer", "message": words}, command_id, message=message)
        alone = s.pending is None or s.queue.is_next(command_id)
        if alone and s.works and command.policy == "withdraw":
            # What is asked goes with its turn. The message is posted when that has ended, and when
            # it is known that the interrupt was there: one that came later would stop the message.
            return self.post({"type": "user.interrupt"}, command_id, message=message)
        if s.queue.add(message):
            return self.post_message(message)
        # One message at a time: it follows when that one's turn is over.
        return posts.look(s.session, command_id)

    def post_message(self, message: PendingMessage) -> Call:
        """Return the POST of the message that is next."""
        message.again.sent()
        payload = {"type": "user.message", "content": message.blocks}
        return self.post(payload, message.command_id)

    def take(self) -> list[Call]:
        """Return, once, the next steps of commands: what is posted otherwise, and the message whose
        time has come."""
        s = self.s
        calls = []
        again, self._again = self._again, {}
        for command_id, (payload, alone) in again.items():
            item = s.echoes.unsettled(command_id)
            message = None if item is None else item.message
            calls.append(self.post(payload, command_id, single=alone, message=message))
        ready = s.queue.ready(free=not s.works and bool(s.session))
        if ready is not None:
            calls.append(self.post_message(ready))
        return calls

    def first(self) -> Call | None:
        """Return, once, the call of the command that the session was made for."""
        first, self.s.first = self.s.first, None
        if first is None:
            return None
        if self.s.pending is not None and self.s.queue.is_next(first.command_id):
            return self.post_message(self.s.pending)
        return self.submit(first.command_id, cmd.decode_command(first.command))

    def post_otherwise(self, call: Call, how: Literal["single", "other"]) -> None:
        """Post the input of a call once more, in the other spelling or as the other kind of
        answer."""
        assert call.command_id is not None
        value: Any = parse_json(call.request.body or b"{}")
        alone = "events" not in value
        payload = value if alone else value["events"][0]
        if how == "other":
            payload = other_sealed(payload)
        self._again[call.command_id] = payload, alone or how == "single"
        item = self.s.echoes.unsettled(call.command_id)
        if item is not None:
            item.other = how

    def post_answers(self, answers: Mapping[str, cmd.AnswerInteraction]) -> Call | None:
        """Return the one POST of several answers (section 5), None where the backend is not known
        to take a batch."""
        asked = [self.s.requests.get(command.request_id) for command in answers.values()]
        if self.s.form != "events" or any(r is None or r.kind == "unknown" for r in asked):
            return None
        payloads = {id_: self.asks.answer(id_, command) for id_, command in answers.items()}
        for command_id, payload in payloads.items():
            self._note_sent(command_id, payload)
        first, *others = payloads
        call = self._post_events({"events": list(payloads.values())}, first)
        return dataclasses.replace(call, also=tuple(others))

    def post(
        self,
        payload: dict[str, Any],
        command_id: str,
        *,
        single: bool = False,
        message: PendingMessage | None = None,
    ) -> Call:
        """Return a POST of one event: as `events`, as a lone object where the backend wants that
        (section 3). `message` is the message that this is the steering or the interrupt of."""
        self._note_sent(command_id, payload, message)
        alone = single or self.s.form == "single"
        return self._post_events(payload if alone else {"events": [payload]}, command_id)

    def _post_events(self, body: dict[str, Any], command_id: str) -> Call:
        assert self.s.session is not None
        return posts.events(self.s.session, body, command_id)

    def _note_sent(
        self, command_id: str, payload: dict[str, Any], message: PendingMessage | None = None
    ) -> None:
        """Remember an input that is posted, to know its echo."""
        self.s.posted = True
        self.s.echoes.expect(PostedInput(command_id, key_of(payload), message=message))

    def forget(self, command_id: str) -> list[ev.Event]:
        """Expect nothing more of a command, nor post it; what it answers may be answered again."""
        s = self.s
        s.doubts.forget(command_id)
        self._again.pop(command_id, None)
        s.echoes.drop(command_id)
        s.queue.drop(command_id)
        if s.first is not None and s.first.command_id == command_id:
            s.first = None
        return s.asks.release(command_id)

    def is_to_be_posted(self, command_id: str) -> bool:
        """Say whether a command was not posted yet, or refused for now and so not taken."""
        waiting = [item for item in (self.s.first, *self.s.queue.unsent()) if item is not None]
        known = any(item.command_id == command_id for item in waiting)
        return known and self.s.echoes.unsettled(command_id) is None

    # Answers of a POST.

    def posted(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        """Hear what a POST was answered with, where the answer is sure: below 500."""
        assert call.command_id is not None
        assert call.request.body is not None
        value: Any = parse_json(call.request.body)
        alone = "events" not in value
        payloads: list[dict[str, Any]] = [value] if alone else value["events"]
        payload = payloads[0]
        if 200 <= response.status < 300:
            self.s.form = "single" if alone else "events"
            echoed = envelopes_of(raw.json_of(response))
            pairs = zip(call.command_ids, payloads, strict=True)
            return [event for name, one in pairs for event in self._taken(name, one, echoed)]
        if response.status == 400 and not alone and self.s.form != "events":
            # A 400 took nothing: the other spelling is tried once. What is known of it may be newer
            # than the request.
            self.post_otherwise(call, "single")
            return []
        error = posts.refusal(response)
        if response.status in _TURN_OVER and self._follows(call.command_id, now):
            return []
        if payload["type"] == "user.message":
            return self._message_refused(call.command_id, response, error, now)
        if self.asks.may_be_other(call.command_id, payload) and response.status != 409:
            # This one it did not take.
            self.post_otherwise(call, "other")
            return []
        out = self.refused(call, error)
        if response.status in _NOT_ASKED and error.code != _DEPLOYS and len(payloads) == 1:
            # Nothing waits for it any more, and nobody knows why. Of several it may be one only.
            out += self.asks.resolve(self.s.asks.find(request_named(payload)) or "", None)
        return out

    def refused(self, call: Call, error: ev.ErrorInfo) -> list[ev.Event]:
        """Record that the backend did not take what a call carried."""
        out: list[ev.Event] = []
        for command_id in call.command_ids:
            out += self.settle(command_id, "refused", error)
            out += self.s.asks.release(command_id)
        return out

    def not_done(self, call: Call, error: ev.ErrorInfo, *, sent: bool) -> list[ev.Event]:
        """Record that a call failed: its commands were not carried, or nobody knows."""
        assert call.command_id is not None
        if call.name == "create":
            self.s.first = None
        if self.s.queue.is_next(call.command_id):
            self.s.queue.drop_next()
        # A session that was perhaps made is never used: what should have been said there was not.
        if not sent or call.name == "create":
            return self.refused(call, error)
        return self.settle(call.command_id, "unknown", error)

    def _follows(self, command_id: str, now: int) -> bool:
        """Post a message that was to steer or to interrupt a turn, which is over, as a message; the
        refusal proves that it was not taken."""
        item = self.s.echoes.unsettled(command_id)
        if item is None or item.message is None:
            return False
        self.s.echoes.forget(command_id)
        if self.s.queue.hold(item.message, busy=self.s.works):
            # The stream is behind: it is about to say that the turn is over.
            item.message.again.wait(now + RETRY_MS)
        return True

    def _message_refused(
        self, command_id: str, response: Response, error: ev.ErrorInfo, now: int
    ) -> list[ev.Event]:
        pending = self.s.queue.next
        if pending is None or pending.command_id != command_id:
            return []
        status = response.status
        not_ready = status == 429 or error.code == _DEPLOYS
        waits = not_ready or (status == 409 and pending.policy != "reject")
        patience = _NOT_READY if not_ready else _BUSY
        if waits and pending.again.refused(now, patience, posts.retry_after(response)):
            # Section 9: on a 409 wait for `session.status_idle`, or for a while.
            self.s.echoes.forget(command_id)
            return []
        self.s.queue.drop_next()
        return self.settle(command_id, "refused", error)

    def _taken(
        self, command_id: str, payload: dict[str, Any], echoed: list[dict[str, Any]]
    ) -> list[ev.Event]:
        sequence, id_ = None, ""
        for envelope in echoed:
            if is_echo(envelope, payload):
                sequence, id_ = sequence_of(envelope), id_of(envelope)
        self.numbers.know_input(sequence)
        self.s.inputs_mark = max(self.s.inputs_mark, sequence or 0)
        key = key_of(payload)
        # A command may have posted several inputs, each of which has its own echo.
        items = self.s.echoes.of(command_id, key)
        # Without one its echo was faster.
        out = [event for item in items for event in self.took(item, payload, sequence)]
        if id_:
            self.s.echoes.know(short(f"{id_} {key}"), command_id, key)
        return out

    def took(
        self, item: PostedInput, payload: dict[str, Any], sequence: int | None
    ) -> list[ev.Event]:
        """Return what it means that the backend took an input of ours."""
        command_id, pending = item.command_id, self.s.pending
        match payload["type"]:
            case "user.message":
                if pending is None or pending.command_id != command_id:
                    return []
                pending.sequence = sequence
                return self.settle_pending()
            case "user.steer":
                return self._steered(command_id, payload["message"])
            case "user.interrupt":
                if item.step:
                    return []
                self.s.interrupting = self.s.turn is not None
                if item.message is not None:
                    # A message that withdraws: it follows when the turn has ended.
                    message, item.message, item.step = item.message, None, True
                    self.s.doubts.forget(command_id)
                    self.s.queue.hold(message, busy=self.s.works)
                    return []
        return self.settle(command_id, "taken")

    def _steered(self, command_id: str, text: str) -> list[ev.Event]:
        if self.s.turn is None:
            lost = ev.ErrorInfo(
                code="turn_over", message="The turn had ended before the backend took the steering."
            )
            return self.settle(command_id, "unknown", lost)
        taken = self.settle(command_id, "taken")
        if not taken:
            return []
        return [
            *taken,
            ev.GuidanceReceived(
                thread_id=ev.MAIN,
                turn_id=self.s.turn,
                text=text,
                command_id=command_id,
                synthetic=True,
            ),
        ]

    # Settling.

    def settle(
        self, command_id: str, outcome: raw.InputOutcome, error: ev.ErrorInfo | None = None
    ) -> list[ev.Event]:
        """Settle a command, once; what was taken is remembered until its echo is seen."""
        told = self.s.echoes.settle(command_id, outcome, error)
        if told:
            self.s.doubts.forget(command_id)
        return told

    def settle_pending(self) -> list[ev.Event]:
        """Settle the message that waits for its turn as taken."""
        message = self.s.queue.settle()
        return [] if message is None else self.settle(message.command_id, "taken")

    def held_back(self) -> list[str]:
        """Return the commands of the messages that wait here for the end of a turn, or since they
        were refused for now."""
        # Without a session, what makes it may be on its way with one of them.
        return [one.command_id for one in self.s.queue.unsent()] if self.s.session else []

    def never_posted(self) -> list[PendingMessage]:
        """Return the messages that were never posted, or are to be posted again."""
        waiting = self.s.queue.unsent()
        for item in self.s.sent:
            if item.interrupts and item.message is not None:
                waiting.append(item.message)
                item.message = None
        return waiting
