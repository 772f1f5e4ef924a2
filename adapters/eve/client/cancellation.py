"""Stops of a turn: eve's cancel, and what it makes unsaid.

**The interrupt** (`EveClientState.cancel`). A pause that eve has closed has no turn that could be
cancelled, and answers on their way are not to be overtaken: then the interrupt waits (section
8.2).

| state | what is heard | state then | what follows |
|---|---|---|---|
| none | an interrupt | none | the cancel of the turn |
| none | an interrupt in a closed pause | waits | negative answers, to what has none |
| none | an interrupt while answers are on their way | waits | nothing is posted |
| waits | the reply, or that nothing was to be posted | waits `CANCEL_MS` at most | |
| waits | no answer is on its way, no pause is closed | none | the cancel; its reply settles |
| waits | the turn that the answers open | none | settled; the cancel of that turn |
| waits | the time is over | none | settled; the cancel of whatever runs |
| waits | the turn or the session is over | none | settled: nothing is left to stop |
| waits | the negative answers are refused or lost | none | their reply settles it |

**The end of the turn** (`gone_at`, `gone_after`, `cancel_at`, `mistrusted`). A cancel that is
accepted may show nothing, and a reset that has failed may have taken the session.

| state | what is heard | state then | what follows |
|---|---|---|---|
| none | a cancel is accepted | expects, `CANCELLED_MS` long | |
| none | a cancel finds no active turn | expects, `CATCH_UP_MS` long | soon the cancel again |
| none | a reset has failed | mistrusts, `CANCELLED_MS` long if something runs | |
| mistrusts | a message is taken | mistrusts, the time begins | |
| mistrusts | a record | none | |
| mistrusts | the time is over | mistrusts | the session is lost |
| expects | a record | expects, the time begins anew | |
| expects | the turn is over | none | |
| expects | the time is over | none | the turn has failed |

**What T makes unsaid** (`answered`, `lapsed`, `unsaid`). Where a cancel stops the turn that answers
to approvals have just resumed, T forgets these answers; they are refused with the next message.

| what is heard | what follows |
|---|---|
| an approval is over | its refusal is in `answered` |
| another step of the same turn begins | `answered` is empty: T keeps these answers |
| the first step of a turn begins | `unsaid` is `answered`: its message refused them |
| the turn is cancelled | `answered` is `unsaid` |
| the turn is over | `answered` is `lapsed`, and what has lapsed before is forgotten |
| T has taken back a turn that was over | `lapsed` is `unsaid` |
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from adapters.driving.silence import CATCH_UP_MS
from adapters.eve import wire
from adapters.eve.client.input_requests import InputRequests
from adapters.eve.client.posts import EvePosts
from adapters.eve.client.state import ConnectionState, EveClientState, PendingInterrupt, Stop
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Call, Request
from adapters.wire.jsonvalue import parse_json

CANCEL_MS = 5_000
"""How long a cancel waits for the turn that the negative answers open (section 8.2); ours."""

CANCEL_AGAIN_MS = 250
"""After what time a turn is cancelled again that a server does not know yet: one that has just
begun it says `no_active_turn`, and goes on. Ours."""

CANCELLED_MS = 60_000
"""How long a cancel that was accepted may show nothing, neither its end nor any work, until the
turn counts as forgotten: an idle session accepts it too and does nothing (section 6). Ours."""


@dataclasses.dataclass(slots=True)
class Cancellation:
    """What is to be stopped, and what a stop makes unsaid."""

    state: EveClientState
    connection: ConnectionState
    posts: EvePosts
    requests: InputRequests

    # The interrupt.

    def interrupt(self, command_id: str, command: cmd.Interrupt) -> Call:
        """Return what stops a turn, or lets it be stopped later."""
        s = self.state
        line = s.lines[ev.MAIN]
        asked = [name for name, r in s.asks.open.items() if r.kind != "authorization"]
        wanted = command.turn_id
        if line.closed and asked and wanted in (None, line.turn):
            # A closed pause has no turn to cancel (section 8.2): the answers open one, which is.
            s.cancel = PendingInterrupt(command_id)
            open_ = [name for name in asked if not self._is_answered(name, command_id)]
            if not open_:
                # Another answer would be told to the model as words of the user (section 5).
                return Call("held", Request("GET", wire.HEALTH_PATH), command_id=command_id)
            negative = [self.requests.negative(name, s.asks.open[name]) for name in open_]
            return self.posts.responses("negative", {"inputResponses": negative}, command_id)
        if self.requests.on_their_way() and wanted in (None, line.turn):
            # One that the cancel overtakes would be told to the model as words of the user.
            s.cancel = PendingInterrupt(command_id)
            return Call("held", Request("GET", wire.HEALTH_PATH), command_id=command_id)
        turn_id = wanted
        if wanted is not None and wanted == line.turn:
            turn_id = line.native or wanted
        return self.cancel_call("cancel", command_id, turn_id)

    def _is_answered(self, name: str, command_id: str) -> bool:
        """Say whether a request has an answer, other than the one which this interrupt is."""
        request = self.state.asks.open[name]
        own = request.given is not None and request.given.command_id == command_id
        return not own and self.requests.is_answered(request)

    def go_on(self) -> None:
        """Stop a turn that waited for answers on their way, once all of them have arrived."""
        s, line = self.state, self.state.lines[ev.MAIN]
        if s.cancel is not None and not line.closed and not self.requests.on_their_way():
            cancel, s.cancel = s.cancel, None
            s.stop = Stop(line.native, cancel.command_id)

    def cancel_call(self, name: str, command_id: str | None, turn_id: str | None) -> Call:
        """Return the cancel of a turn, or of whatever runs."""
        body = None if turn_id is None else {"turnId": turn_id}
        self.state.stopping = self.state.lines[ev.MAIN].turn is not None
        return self.posts.post(name, self.posts.path("cancel"), body, command_id)

    def wait(self, now: int) -> bool:
        """Give the turn that answers open time to begin: it is to be stopped. Say whether it is."""
        if self.state.cancel is None:
            return False
        self.state.cancel.at = now + CANCEL_MS
        return True

    def turn_goes_on(self, turn_id: str | None) -> list[ev.Event]:
        """Stop the turn that answers have opened, by its name: a late cancel must not hit the turn
        of the next message."""
        return [] if self.state.cancel is None else self._cancel_now(turn_id)

    def close(self) -> list[ev.Event]:
        """Settle an interrupt that has nothing left to stop."""
        cancel, self.state.cancel = self.state.cancel, None
        return [] if cancel is None else _done(cancel)

    def forget(self) -> None:
        """Record that the negative answers come to nothing."""
        self.state.cancel = None

    def _cancel_now(self, turn_id: str | None) -> list[ev.Event]:
        """Do the second step of an interrupt: the turn that it is for has begun."""
        cancel, self.state.cancel = self.state.cancel, None
        assert cancel is not None
        if self.state.session is not None:
            self.state.stop = Stop(turn_id)
        return _done(cancel)

    def take(self) -> list[Call]:
        """Return the cancel that is to be sent now."""
        stop, self.state.stop = self.state.stop, None
        if stop is None:
            return []
        return [self.cancel_call("cancel", stop.command_id, stop.turn)]

    # The end of the turn.

    def mistrust(self, now: int) -> None:
        """Expect a sign of life: a reset that failed may have taken what runs all the same."""
        s = self.state
        main = s.lines[ev.MAIN]
        waits = main.closed or main.paused == "input"
        s.mistrusted = True
        if (main.turn is not None and not waits) or s.ledger.open:
            s.gone_after, s.gone_at = CANCELLED_MS, now + CANCELLED_MS

    def taken(self, now: int) -> None:
        """Record that a message was taken, so that something must come of it."""
        if self.state.mistrusted:
            self.mistrust(now)

    def heard(self, now: int) -> None:
        """Hear a record of the main stream."""
        s = self.state
        if s.mistrusted:
            s.mistrusted, s.gone_at = False, None
        elif s.gone_at is not None:
            s.gone_at = now + s.gone_after

    def expect_end(self, call: Call, body: dict[str, Any], now: int) -> None:
        """Wait for the end of a turn that is cancelled. One without was forgotten, at once where
        the server says that it has none (section 6): its end may be on the stream already."""
        s = self.state
        main = s.lines[ev.MAIN]
        data = call.request.body
        wanted = None if data is None else cast(dict[str, Any], parse_json(data)).get("turnId")
        if main.turn is None or main.closed or wanted not in (None, main.native):
            return
        none = body.get("status") == "no_active_turn"
        # The server may not know yet of a turn that has just begun: it goes on, and is to be
        # stopped.
        again = none and self.connection.opened_at is not None
        s.cancel_at = now + CANCEL_AGAIN_MS if again else None
        if not (none and s.gone_after == CATCH_UP_MS and s.gone_at is not None):
            s.gone_after = CATCH_UP_MS if none else CANCELLED_MS
            s.gone_at = now + s.gone_after

    def _gone_due(self) -> int | None:
        """Return when a turn that is not active has had its time to show its end."""
        if self.state.gone_at is None or self.connection.opened_at is None:
            return None
        return max(self.state.gone_at, self.connection.opened_at + CATCH_UP_MS)

    def is_gone(self, now: int) -> bool:
        """Say whether the turn has had its time to show its end, and forget the time."""
        due = self._gone_due()
        if due is None or now < due:
            return False
        self.state.gone_at = None
        return True

    # Both.

    def turn_over(self) -> list[ev.Event]:
        """Record that the turn is over, with or without our cancel."""
        s = self.state
        s.gone_at = s.cancel_at = None
        s.lapsed, s.answered, s.stopping = s.answered, [], False
        return self.close()

    def tick(self, now: int) -> list[ev.Event]:
        """Send the cancels whose time has come."""
        s = self.state
        out: list[ev.Event] = []
        if s.cancel is not None and s.cancel.at is not None and now >= s.cancel.at:
            out += self._cancel_now(None)
        if s.cancel_at is not None and now >= s.cancel_at:
            s.cancel_at = None
            s.stop = Stop(s.lines[ev.MAIN].native)
        return out

    def due(self) -> list[int]:
        """Return the times at which something is to be done."""
        s = self.state
        times = [s.cancel_at, self._gone_due(), None if s.cancel is None else s.cancel.at]
        return [at for at in times if at is not None]

    # What T makes unsaid.

    @property
    def may_be_taken_back(self) -> bool:
        """Say whether a turn that ends was told to stop, and T may forget answers with it."""
        return self.state.stopping and bool(self.state.answered)

    def approved(self, request_id: str, refusal: str) -> None:
        """Take the refusal of an approval that is over."""
        self.state.answered.append({"requestId": request_id, "optionId": refusal})

    def step_begins(self, *, again: bool) -> None:
        """Record that a step begins: T keeps what was answered before the step before, if any."""
        s = self.state
        if again:
            s.answered = []
        elif s.unsaid:
            s.answered, s.unsaid = s.unsaid, []

    def turn_cancelled(self) -> None:
        """Record that a turn is cancelled."""
        s = self.state
        s.unsaid, s.answered = [*s.unsaid, *s.answered], []

    def turn_taken_back(self) -> None:
        """Record that a turn is forgotten which was over."""
        s = self.state
        s.unsaid, s.lapsed = [*s.unsaid, *s.lapsed], []


def _done(cancel: PendingInterrupt) -> list[ev.Event]:
    return [raw.settled(cancel.command_id, "taken")]
