"""Inputs that the stream or the list shows: our own ones once more, and those that others sent."""

from __future__ import annotations

import dataclasses
from typing import Any

from adapters.herm import wire
from adapters.herm.client.answers import answer_shown, request_named
from adapters.herm.client.asks import HermRequests
from adapters.herm.client.contents import foreign_message
from adapters.herm.client.envelopes import id_of, key_of, sequence_of, short, text_in
from adapters.herm.client.inputs import HermInputs
from adapters.herm.client.numbers import Numbers
from adapters.herm.client.records import KEPT, KEPT_BYTES, ForeignMessage, HermClientState
from adapters.model import events as ev


@dataclasses.dataclass(slots=True)
class InputEchoes:
    """Hears of each input that is shown."""

    s: HermClientState
    numbers: Numbers
    asks: HermRequests
    inputs: HermInputs

    def shown(
        self, type_: str, envelope: dict[str, Any], payload: dict[str, Any]
    ) -> list[ev.Event]:
        """Hear of an input that the stream or the list shows."""
        id_, number = id_of(envelope), sequence_of(envelope)
        self.numbers.know_input(number)
        payload = {**payload, "type": type_}
        key = key_of(payload)
        command_id = self.s.ids.get(short(f"{id_} {key}")) if id_ else None
        if command_id is not None:
            return self._done(command_id) if envelope.get("status") == "complete" else []
        mine = self.s.echoes.find(key)
        if mine is not None:
            # Our input came back before we knew its id: it was taken.
            command_id = mine.command_id
            out = [] if mine.settled else self.inputs.took(mine, payload, number)
            self.s.echoes.seen(mine)
            if id_:
                self.s.echoes.know(short(f"{id_} {key}"), command_id, key)
            if envelope.get("status") == "complete":
                out += self._done(command_id)
            return out
        if self.numbers.is_known_input(id_, number, key):
            return []
        self.numbers.know_foreign(id_, number, key)
        return self._foreign(type_, id_, payload)

    def _done(self, command_id: str) -> list[ev.Event]:
        request_id = self.s.asks.given_by(command_id)
        return [] if request_id is None else self.asks.resolve(request_id, None)

    def _foreign(self, type_: str, id_: str, payload: dict[str, Any]) -> list[ev.Event]:
        s = self.s
        match type_:
            case "user.message":
                text = wire.text_of_blocks(payload.get("content"))
                id_ = id_ or f"message-{s.turns}-{len(s.inbox)}"
                if s.turn is None and self._has_room(text):
                    s.inbox.append(ForeignMessage(id_, text))
                    return []
                return [foreign_message(id_, text, s.turn)]
            case "user.steer" if s.turn is not None:
                text = text_in(payload, "message") or ""
                return [ev.GuidanceReceived(thread_id=ev.MAIN, turn_id=s.turn, text=text)]
            case "user.interrupt":
                s.interrupting = s.turn is not None
            case _:
                name = s.asks.find(request_named(payload)) or ""
                s.asks.give_elsewhere(name, answer_shown(payload))
        return []

    def _has_room(self, text: str) -> bool:
        """Say whether a message of others can wait for the turn that it begins; one that cannot is
        shown where it came."""
        inbox = self.s.inbox
        size = sum(len(message.text) for message in inbox) + len(text)
        return len(inbox) < KEPT and size <= KEPT_BYTES
