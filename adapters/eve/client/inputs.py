"""What becomes of commands: expected, in doubt, taken, refused."""

from __future__ import annotations

import dataclasses
from typing import Literal

from adapters.eve.client.contents import flattened
from adapters.eve.client.input_requests import InputRequests
from adapters.eve.client.state import ConnectionState, EveClientState, EveMessage, InputAnswer
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call


@dataclasses.dataclass(slots=True)
class EveInputs:
    """Commands that are on their way."""

    state: EveClientState
    connection: ConnectionState
    requests: InputRequests
    # Answers that the stream has shown before the reply to their request was there.
    shown: set[str] = dataclasses.field(default_factory=set, init=False)

    def expect(
        self,
        command_id: str,
        content: tuple[ev.Content, ...],
        kind: Literal["message", "steer"],
        *,
        creates: bool = False,
        step: str | None = None,
    ) -> None:
        """Remember a message: the stream will show its receipt."""
        if command_id in self.state.ledger.open:
            return
        flat = flattened(content)
        message = EveMessage(command_id, kind, content, flat=flat, creates=creates, step=step)
        self.state.ledger.expect(message)

    def not_sent(self, command_id: str, error: ev.ErrorInfo) -> list[ev.Event]:
        """Refuse a command: it is not looked for any more, and a claim of it is released."""
        s = self.state
        s.ledger.drop(command_id)
        s.retries = [retry for retry in s.retries if retry.command_id != command_id]
        s.silence.forget(command_id)
        out = [raw.settled(command_id, "refused", error)]
        return out + self.release_claims(command_id)

    def forget(self, command_id: str) -> list[ev.Event]:
        """Expect nothing more of a command, nor send it again; a claim of it is released."""
        s = self.state
        s.ledger.drop(command_id)
        s.silence.forget(command_id)
        s.retries = [retry for retry in s.retries if not retry.is_about(command_id)]
        if s.first is not None and s.first.command_id == command_id:
            s.first = None
        if s.cancel is not None and s.cancel.command_id == command_id:
            s.cancel = None
        if s.stop is not None and s.stop.command_id == command_id:
            s.stop = None
        return self.release_claims(command_id)

    def none_sent(self, call: Call, error: ev.ErrorInfo) -> list[ev.Event]:
        """Refuse all commands of a call."""
        return [event for name in call.command_ids for event in self.not_sent(name, error)]

    def release_claims(self, command_id: str) -> list[ev.Event]:
        """Let the requests be answered again that a command has answered."""
        late = self.state.late
        for request_id in [name for name, given in late.items() if given.command_id == command_id]:
            del late[request_id]
        return self.state.asks.release(command_id)

    def all_in_doubt(self, call: Call, error: ev.ErrorInfo, now: int) -> list[ev.Event]:
        """Doubt all commands of a call."""
        told = [self.in_doubt(name, error, now) for name in call.command_ids]
        # They are one request, so one doubt is reported.
        return told[0]

    def in_doubt(self, command_id: str, error: ev.ErrorInfo, now: int) -> list[ev.Event]:
        """The backend may have it: the stream will show (section 2: a 500 says nothing)."""
        self.state.silence.doubt(command_id, None if self.connection.opened_at is None else now)
        message = f"{error.message} The stream will show whether it arrived."
        return [raw.in_doubt(message, error.code, quote=error.quote)]

    def not_shown(self, call: Call) -> Call | None:
        """Return a call as carrying what the stream has not shown to be done already: of the rest
        its reply says nothing more. None where all of it was shown."""
        shown = self.shown.intersection(call.command_ids)
        self.shown -= shown
        return call.without(shown) if shown else call

    def due(self) -> int | None:
        """Return when silence is evidence."""
        return self.state.silence.due_since(self.connection.opened_at)

    def tick(self, now: int) -> list[ev.Event]:
        """Settle what the stream has not shown in time."""
        unseen = self.state.silence.unseen(now, self.connection.opened_at)
        return [event for command_id in unseen for event in self._nothing_shows(command_id)]

    def _nothing_shows(self, command_id: str) -> list[ev.Event]:
        """Settle a command that the stream has not shown."""
        s = self.state
        s.silence.forget(command_id)
        known = s.ledger.open.get(command_id)
        if known is not None and known.taken:
            return []
        s.ledger.drop(command_id)
        error = ev.ErrorInfo(
            code="no_evidence", message="eve: the stream shows nothing of the command"
        )
        return [raw.settled(command_id, "unknown", error), *self.release_claims(command_id)]

    def arrived(self, known: InputAnswer | EveMessage) -> list[ev.Event]:
        """Take the effect of an answer or of a message as the proof that it arrived, and all that
        was posted with it, whatever becomes of the request's reply."""
        s = self.state
        together = [known]
        if known.step is not None:
            together += [one for one in self.requests.together(known.step) if one is not known]
            said = s.ledger.open.values()
            together += [one for one in said if one is not known and one.step == known.step]
        out: list[ev.Event] = []
        for one in together:
            command_id = one.command_id
            if one.taken or command_id is None:
                continue
            one.taken = True
            waits = any(r.is_about(command_id) and r.again.waits for r in s.retries)
            if not s.silence.forget(command_id) and not waits:
                self.shown.add(command_id)
            out.append(raw.settled(command_id, "taken"))
        proved = [one.command_id for one in together if one.command_id is not None]
        s.retries = [r for r in s.retries if not any(map(r.is_about, proved))]
        return out
