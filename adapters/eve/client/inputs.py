"""What becomes of commands: expected, in doubt, taken, refused."""

from __future__ import annotations

from typing import Any, Literal, cast

from adapters import events as ev
from adapters import raw
from adapters.base import Call
from adapters.eve.client.asks import Asks
from adapters.eve.client.contents import flattened
from adapters.eve.client.records import Answered, Live, Message, State
from adapters.longtext import held_long

RECOVER_MS = 10_000
"""How long the stream may take to show a command that a crash or a lost answer left in doubt."""

CATCH_UP_MS = 1_000
"""How long a stream that was opened again is read until its silence counts: what it holds already
comes at once. Ours."""


class Inputs:
    """Commands that are on their way."""

    __slots__ = ("_asks", "_live", "_s", "shown")

    def __init__(self, state: State, live: Live, asks: Asks) -> None:
        self._s = state
        self._asks = asks
        self._live = live
        # Answers that the stream has shown before the reply to their request was there.
        self.shown: set[str] = set()

    def expect(
        self,
        command_id: str,
        content: tuple[ev.Content, ...],
        kind: Literal["message", "steer"],
        *,
        creates: bool = False,
        step: str | None = None,
    ) -> None:
        """Remember a message, of which the stream will show a receipt."""
        if command_id in self._s.ledger.open:
            return
        flat = flattened(content)
        message = Message(command_id, kind, content, flat=flat, creates=creates, step=step)
        self._s.ledger.expect(held_long(message))

    def doubt(self, command_id: str) -> None:
        """Remember that a command may have arrived."""
        self._s.doubtful.setdefault(command_id, {"at": None})

    def not_sent(self, command_id: str, error: ev.ErrorInfo) -> list[ev.Event]:
        """Refuse a command: it is not looked for any more, and a claim of it is released."""
        s = self._s
        s.ledger.drop(command_id)
        s.retries = [retry for retry in s.retries if retry.command_id != command_id]
        s.doubtful.pop(command_id, None)
        out = [raw.settled(command_id, "refused", error)]
        return out + self.release_claims(command_id)

    def none_sent(self, call: Call, error: ev.ErrorInfo) -> list[ev.Event]:
        """Refuse all commands of a call."""
        return [event for name in call.command_ids for event in self.not_sent(name, error)]

    def release_claims(self, command_id: str) -> list[ev.Event]:
        """Let the requests be answered again that a command has answered."""
        return self._s.asks.release(command_id)

    def all_in_doubt(self, call: Call, error: ev.ErrorInfo, now: int) -> list[ev.Event]:
        """Doubt all commands of a call."""
        told = [self.in_doubt(name, error, now) for name in call.command_ids]
        # They are one request, of which one doubt is told.
        return told[0]

    def in_doubt(self, command_id: str, error: ev.ErrorInfo, now: int) -> list[ev.Event]:
        """The backend may have it: the stream will show (section 2: a 500 says nothing)."""
        self.doubt(command_id)
        doubt = self._s.doubtful[command_id]
        if doubt["at"] is None and self._live.opened_at is not None:
            doubt["at"] = now + RECOVER_MS
        message = f"{error.message} The stream will show whether it arrived."
        return [raw.in_doubt(message, error.code)]

    def not_shown(self, call: Call) -> Call | None:
        """Return a call as carrying what the stream has not shown to be done already: of the rest
        its reply says nothing more. None where all of it was shown."""
        shown = self.shown.intersection(call.command_ids)
        self.shown -= shown
        return call.without(shown) if shown else call

    def opened(self, now: int) -> bool:
        """Hear that the stream is open which is to show what is in doubt; say whether it is."""
        new = [item for item in self._s.doubtful.values() if item["at"] is None]
        for item in new:
            item["at"] = now + RECOVER_MS
        return bool(new)

    def due(self) -> list[int]:
        """Return the times at which silence is evidence."""
        dues = [self._decided_at(item) for item in self._s.doubtful.values()]
        return [due for due in dues if due is not None]

    def tick(self, now: int) -> list[ev.Event]:
        """Settle what the stream has not shown in time."""
        out: list[ev.Event] = []
        for command_id, item in list(self._s.doubtful.items()):
            due = self._decided_at(item)
            if due is not None and now >= due:
                out += self._nothing_shows(command_id)
        return out

    def _decided_at(self, item: dict[str, Any]) -> int | None:
        """Return when silence is evidence: the time is over, and the stream has been read."""
        if item["at"] is None or self._live.opened_at is None:
            return None
        return max(cast(int, item["at"]), self._live.opened_at + CATCH_UP_MS)

    def _nothing_shows(self, command_id: str) -> list[ev.Event]:
        """Settle a command of which nothing is seen."""
        s = self._s
        s.doubtful.pop(command_id, None)
        known = s.ledger.open.get(command_id)
        if known is not None and known.taken:
            return []
        s.ledger.drop(command_id)
        error = ev.ErrorInfo(
            code="no_evidence", message="eve: the stream shows nothing of the command"
        )
        return [raw.settled(command_id, "unknown", error), *self.release_claims(command_id)]

    def arrived(self, known: Answered | Message) -> list[ev.Event]:
        """Take the effect of an answer or of a message as the proof that it arrived, and all that
        was posted with it, whatever becomes of the request's reply."""
        s = self._s
        together = [known]
        if known.step is not None:
            together += [one for one in self._asks.together(known.step) if one is not known]
            said = s.ledger.open.values()
            together += [one for one in said if one is not known and one.step == known.step]
        out: list[ev.Event] = []
        for one in together:
            command_id = one.command_id
            if one.taken or command_id is None:
                continue
            one.taken = True
            waits = any(r.is_about(command_id) and r.waits for r in s.retries)
            if s.doubtful.pop(command_id, None) is None and not waits:
                self.shown.add(command_id)
            out.append(raw.settled(command_id, "taken"))
        proved = [one.command_id for one in together if one.command_id is not None]
        s.retries = [r for r in s.retries if not any(map(r.is_about, proved))]
        return out
