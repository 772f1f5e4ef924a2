"""What becomes of commands: each settles once, by the answer of its POST, by its echo, by its turn,
or by a list that shows it or does not.

What the page leaves open is taken as it comes and never relied on: the spelling of a batch, echoes
of `user.*`, whose ids an answer names.

Why one room: what becomes of an input is one state machine; it would have to reach into another one
at each step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from adapters.driving.again import Patience
from adapters.herm import wire
from adapters.herm.client import posts
from adapters.herm.client.asks import Asks
from adapters.herm.client.contents import content_blocks
from adapters.herm.client.envelopes import (
    envelopes_of,
    id_of,
    is_echo,
    key_of,
    sequence_of,
    short,
    text_in,
)
from adapters.herm.client.numbers import Numbers
from adapters.herm.client.records import KEPT, KEPT_BYTES, Foreign, Message, Sent, State
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Response
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


class Inputs:
    """The ledger: the message that waits for its turn (`pending`), those after it (`later`), and
    all that was posted (`sent`). What is to be posted is part of the state until `take`."""

    __slots__ = ("_again", "_asks", "_numbers", "_s")

    def __init__(self, state: State, numbers: Numbers, asks: Asks) -> None:
        self._s = state
        self._numbers = numbers
        self._asks = asks
        # What is posted otherwise, and whether as a lone object, by command. One may be sealed.
        self._again: dict[str, tuple[dict[str, Any], bool]] = {}

    # Going out.

    def message(self, command_id: str, command: cmd.SendMessage) -> Call:
        """Return the call that carries a message, now or in its turn."""
        s = self._s
        assert s.session is not None
        busy = s.works
        message = expected(command_id, command)
        if busy and command.policy == "steer":
            words = ev.text_of(command.content)
            # Where the turn is over when it arrives, it is a message after all.
            return self.post({"type": "user.steer", "message": words}, command_id, message=message)
        if s.pending is not None and s.pending.command_id != command_id:
            # One message at a time: it follows when that one's turn is over.
            s.later.append(message)
            return posts.look(s.session, command_id)
        if busy and command.policy == "withdraw":
            # What is asked goes with its turn. The message is posted when that has ended, and when
            # it is known that the interrupt was there: one that came later would stop the message.
            return self.post({"type": "user.interrupt"}, command_id, message=message)
        s.pending = message
        return self.post_message()

    def post_message(self) -> Call:
        """Return the POST of the message that is expected."""
        pending = self._s.pending
        assert pending is not None
        pending.again.sent()
        payload = {"type": "user.message", "content": pending.blocks}
        return self.post(payload, pending.command_id)

    def take(self) -> list[Call]:
        """Return, once, the next steps of commands: what is posted otherwise, and the message whose
        time has come."""
        s = self._s
        calls = []
        again, self._again = self._again, {}
        for command_id, (payload, alone) in again.items():
            item = self.unsettled(command_id)
            message = None if item is None else item.message
            calls.append(self.post(payload, command_id, single=alone, message=message))
        if s.later and s.pending is None and not s.works and s.session:
            s.pending = s.later.pop(0)
            s.pending.again.wait()
            s.pending.again.let_go()
        if s.pending is not None and s.pending.again.ready:
            calls.append(self.post_message())
        return calls

    @property
    def retry_at(self) -> int | None:
        """When the message that was refused for now is posted again."""
        return None if self._s.pending is None else self._s.pending.again.due

    def tick(self, now: int) -> None:
        """Post the message that was refused for now when its time has come."""
        if self._s.pending is not None:
            self._s.pending.again.tick(now)

    def turn_over(self) -> None:
        """Post the message that waits for it."""
        if self._s.pending is not None:
            self._s.pending.again.let_go()

    def post_otherwise(self, call: Call, how: Literal["single", "other"]) -> None:
        """Post the input of a call once more, in the other spelling or as the other kind of
        answer."""
        assert call.command_id is not None
        value: Any = parse_json(call.request.body or b"{}")
        alone = "events" not in value
        payload = value if alone else value["events"][0]
        if how == "other":
            payload = self._asks.other_sealed(payload)
        self._again[call.command_id] = payload, alone or how == "single"
        item = self.unsettled(call.command_id)
        if item is not None:
            item.other = how

    def post_answers(self, answers: Mapping[str, cmd.AnswerInteraction]) -> Call | None:
        """Return the one POST of several answers (section 5), None where the backend is not known
        to take a batch."""
        asked = [self._s.requests.get(command.request_id) for command in answers.values()]
        if self._s.form != "events" or any(r is None or r.kind == "unknown" for r in asked):
            return None
        payloads = {id_: self._asks.answer(id_, command) for id_, command in answers.items()}
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
        message: Message | None = None,
    ) -> Call:
        """Return a POST of one event: as `events`, as a lone object where the backend wants that
        (section 3). `message` is the message that this is the steering or the interrupt of."""
        self._note_sent(command_id, payload, message)
        alone = single or self._s.form == "single"
        return self._post_events(payload if alone else {"events": [payload]}, command_id)

    def _post_events(self, body: dict[str, Any], command_id: str) -> Call:
        assert self._s.session is not None
        return posts.events(self._s.session, body, command_id)

    def _note_sent(
        self, command_id: str, payload: dict[str, Any], message: Message | None = None
    ) -> None:
        """Remember an input that is posted, to know its echo."""
        self._s.posted = True
        key = key_of(payload)
        self.forget_sent(command_id, key)
        self._s.sent.append(Sent(command_id, key, message=message))
        del self._s.sent[:-KEPT]

    def note_lost(self, command_id: str) -> None:
        """Remember an input that was posted and that cannot be worked out again: no echo is known
        as its own, but the list may show it."""
        self._s.sent.append(Sent(command_id, ""))

    def forget(self, command_id: str) -> None:
        """Expect nothing more of a command, nor post it."""
        s = self._s
        s.doubts.forget(command_id)
        self._again.pop(command_id, None)
        s.sent = [item for item in s.sent if item.command_id != command_id]
        s.later = [message for message in s.later if message.command_id != command_id]
        if self.is_expected(command_id):
            s.pending = None
        if s.first is not None and s.first.command_id == command_id:
            s.first = None

    def was_sent(self, command_id: str) -> bool:
        """Say whether an input was posted and is remembered."""
        return any(item.command_id == command_id for item in self._s.sent)

    def is_expected(self, command_id: str) -> bool:
        """Say whether a command is the message that waits for its turn."""
        pending = self._s.pending
        return pending is not None and pending.command_id == command_id

    def is_to_be_posted(self, command_id: str) -> bool:
        """Say whether a command was not posted yet, or refused for now and so not taken."""
        s = self._s
        held = s.pending if s.pending is not None and s.pending.again.waits else None
        waiting = [item for item in (s.first, held, *s.later) if item is not None]
        known = any(item.command_id == command_id for item in waiting)
        return known and self.unsettled(command_id) is None

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
            self._s.form = "single" if alone else "events"
            echoed = envelopes_of(raw.json_of(response))
            pairs = zip(call.command_ids, payloads, strict=True)
            return [event for name, one in pairs for event in self._taken(name, one, echoed)]
        if response.status == 400 and not alone and self._s.form != "events":
            # A 400 took nothing: the other spelling is tried once. What is known of it may be newer
            # than the request.
            self.post_otherwise(call, "single")
            return []
        error = posts.refusal(response)
        if response.status in _TURN_OVER and self._follows(call.command_id, now):
            return []
        if payload["type"] == "user.message":
            return self._message_refused(call.command_id, response, error, now)
        if self._asks.may_be_other(call.command_id, payload) and response.status != 409:
            # This one it did not take.
            self.post_otherwise(call, "other")
            return []
        out = self.refused(call, error)
        if response.status in _NOT_ASKED and error.code != _DEPLOYS and len(payloads) == 1:
            # Nothing waits for it any more, and nobody knows why. Of several it may be one only.
            out += self._asks.resolve(self._asks.asked_by(payload), None)
        return out

    def refused(self, call: Call, error: ev.ErrorInfo) -> list[ev.Event]:
        """Record that the backend did not take what a call carried."""
        out: list[ev.Event] = []
        for command_id in call.command_ids:
            out += self.settle(command_id, "refused", error)
            out += self._asks.release(command_id)
        return out

    def _follows(self, command_id: str, now: int) -> bool:
        """Post a message that was to steer or to interrupt a turn, which is over, as a message; the
        refusal proves that it was not taken."""
        item = self.unsettled(command_id)
        if item is None or item.message is None:
            return False
        self.forget_sent(command_id)
        if self.say_next(item.message):
            # The stream is behind: it is about to say that the turn is over.
            item.message.again.wait(now + RETRY_MS)
        return True

    def say_next(self, message: Message) -> bool:
        """Post a message as soon as no turn runs and none is on its way; say whether it is held for
        the end of the turn."""
        s = self._s
        if s.pending is not None:
            s.later.append(message)
            return False
        s.pending = message
        message.again.wait()
        if not s.works:
            message.again.let_go()
        return s.works

    def _message_refused(
        self, command_id: str, response: Response, error: ev.ErrorInfo, now: int
    ) -> list[ev.Event]:
        pending = self._s.pending
        if pending is None or pending.command_id != command_id:
            return []
        status = response.status
        not_ready = status == 429 or error.code == _DEPLOYS
        waits = not_ready or (status == 409 and pending.policy != "reject")
        patience = _NOT_READY if not_ready else _BUSY
        if waits and pending.again.refused(now, patience, posts.retry_after(response)):
            # Section 9: on a 409 wait for `session.status_idle`, or for a while.
            self.forget_sent(command_id)
            return []
        self._s.pending = None
        return self.settle(command_id, "refused", error)

    def _taken(
        self, command_id: str, payload: dict[str, Any], echoed: list[dict[str, Any]]
    ) -> list[ev.Event]:
        sequence, id_ = None, ""
        for envelope in echoed:
            if is_echo(envelope, payload):
                sequence, id_ = sequence_of(envelope), id_of(envelope)
        self._numbers.know_input(sequence)
        self._s.inputs_mark = max(self._s.inputs_mark, sequence or 0)
        key = key_of(payload)
        # A command may have posted several inputs, each of which has its own echo.
        items = [i for i in self._s.sent if (i.command_id, i.key) == (command_id, key)]
        # Without one its echo was faster.
        out = [event for item in items for event in self._took(item, payload, sequence)]
        if id_:
            self._remember_id(id_, command_id, key)
        return out

    def _took(self, item: Sent, payload: dict[str, Any], sequence: int | None) -> list[ev.Event]:
        """Return what it means that the backend took an input of ours."""
        command_id, pending = item.command_id, self._s.pending
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
                self._s.interrupting = self._s.turn is not None
                if item.message is not None:
                    # A message that withdraws: it follows when the turn has ended.
                    message, item.message, item.step = item.message, None, True
                    self._s.doubts.forget(command_id)
                    self.say_next(message)
                    return []
        return self.settle(command_id, "taken")

    def _steered(self, command_id: str, text: str) -> list[ev.Event]:
        if self._s.turn is None:
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
                turn_id=self._s.turn,
                text=text,
                command_id=command_id,
                synthetic=True,
            ),
        ]

    # Settling.

    def settle(
        self, command_id: str, outcome: raw.InputOutcome, error: ev.ErrorInfo | None = None
    ) -> list[ev.Event]:
        """Settle a posted input, once; what was taken is remembered until its echo is seen."""
        for item in self._s.sent:
            if item.command_id == command_id and not item.step:
                if item.settled:
                    return []
                item.settled = True
                # It is not said as a message any more.
                item.message = None
        self._s.doubts.forget(command_id)
        if outcome != "taken":
            self.forget_sent(command_id)
        return [raw.settled(command_id, outcome, error)]

    def settle_pending(self) -> list[ev.Event]:
        """Settle the message that waits for its turn as taken."""
        pending = self._s.pending
        if pending is None or pending.settled:
            return []
        pending.settled = True
        return self.settle(pending.command_id, "taken")

    # Echoes: our own inputs, and those that others sent.

    def shown(
        self, type_: str, envelope: dict[str, Any], payload: dict[str, Any]
    ) -> list[ev.Event]:
        """Hear of an input that the stream or the list shows."""
        id_, number = id_of(envelope), sequence_of(envelope)
        self._numbers.know_input(number)
        payload = {**payload, "type": type_}
        key = key_of(payload)
        command_id = self._s.ids.get(short(f"{id_} {key}")) if id_ else None
        if command_id is not None:
            return self._done(command_id) if envelope.get("status") == "complete" else []
        mine = next((item for item in self._s.sent if item.key == key), None)
        if mine is not None:
            # Our input came back before we knew its id: it was taken.
            command_id = mine.command_id
            out = [] if mine.settled else self._took(mine, payload, number)
            self._s.sent = [item for item in self._s.sent if item is not mine]
            if id_:
                self._remember_id(id_, command_id, key)
            if envelope.get("status") == "complete":
                out += self._done(command_id)
            return out
        if self._numbers.is_known_input(id_, number, key):
            return []
        self._numbers.know_foreign(id_, number, key)
        return self._foreign(type_, id_, payload)

    def _done(self, command_id: str) -> list[ev.Event]:
        request_id, request = self._asks.answered_by(command_id)
        return [] if request is None else self._asks.resolve(request_id, None)

    def _foreign(self, type_: str, id_: str, payload: dict[str, Any]) -> list[ev.Event]:
        s = self._s
        match type_:
            case "user.message":
                text = wire.text_of_blocks(payload.get("content"))
                id_ = id_ or f"message-{s.turns}-{len(s.inbox)}"
                if s.turn is None and self._has_room(text):
                    s.inbox.append(Foreign(id_, text))
                    return []
                return [foreign_message(id_, text, s.turn)]
            case "user.steer" if s.turn is not None:
                text = text_in(payload, "message") or ""
                return [ev.GuidanceReceived(thread_id=ev.MAIN, turn_id=s.turn, text=text)]
            case "user.interrupt":
                s.interrupting = s.turn is not None
            case _:
                self._asks.answered_elsewhere(payload)
        return []

    def _has_room(self, text: str) -> bool:
        """Say whether a message of others can wait for the turn that it begins; one that cannot is
        shown where it came."""
        inbox = self._s.inbox
        size = sum(len(message.text) for message in inbox) + len(text)
        return len(inbox) < KEPT and size <= KEPT_BYTES

    def _remember_id(self, id_: str, command_id: str, key: str) -> None:
        self.forget_sent(command_id, key)
        self._s.ids[short(f"{id_} {key}")] = command_id
        for old in list(self._s.ids)[:-KEPT]:
            del self._s.ids[old]

    def unsettled(self, command_id: str) -> Sent | None:
        """Return the input that a command has posted last, if nothing is known of it yet."""
        waits = (item for item in self._s.sent if not item.settled and not item.step)
        return next((item for item in waits if item.command_id == command_id), None)

    def held_back(self) -> list[str]:
        """Return the commands of the messages that wait here for the end of a turn, or since they
        were refused for now."""
        s = self._s
        if not s.session:
            # What makes it may be on its way with one of them.
            return []
        waiting = [message.command_id for message in s.later]
        if s.pending is not None and s.pending.again.waits:
            waiting.append(s.pending.command_id)
        return waiting

    def never_posted(self) -> list[Message]:
        """Return the messages that were never posted, or are to be posted again."""
        s = self._s
        waiting = list(s.later)
        if s.pending is not None and s.pending.again.waits:
            waiting.append(s.pending)
        for item in s.sent:
            if item.interrupts and item.message is not None:
                waiting.append(item.message)
                item.message = None
        return waiting

    def forget_sent(self, command_id: str, key: str | None = None) -> None:
        """Forget an input that was posted; without a key all of a command but the steps that it has
        taken, whose echoes are still to come."""

        def is_over(item: Sent) -> bool:
            if item.command_id != command_id:
                return False
            return not item.step if key is None else item.key == key

        self._s.sent = [item for item in self._s.sent if not is_over(item)]


def expected(command_id: str, command: cmd.SendMessage) -> Message:
    """Return a message as it is remembered until its turn."""
    content = [block.model_dump(mode="json", exclude_defaults=True) for block in command.content]
    return Message(
        command_id=command_id,
        content=content,
        blocks=content_blocks(command.content, command.client_context),
        policy=command.policy,
    )


def foreign_message(id_: str, text: str, turn: str | None) -> ev.Event:
    """Return a message of somebody else."""
    return ev.MessageReceived(
        thread_id=ev.MAIN,
        turn_id=turn,
        message_id=id_,
        content=(ev.Text(text=text),),
        native=ev.NativeRef(dialect=wire.DIALECT, id=id_, type="user.message"),
    )
