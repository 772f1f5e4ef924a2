"""The outbox: the fate of every input from its acceptance to its settlement.

Theory of operation. An `OutboxInput` is a command that a frontend gave. It is stored as accepted
before the frontend gets its 2xx, as sent before the request leaves, and as settled with the event
that says so. `MOVES` has the fates between and what may follow each; an input leaves the outbox
when it is settled, which it may be in any fate. The journal keeps the `CommandRow` of each, but for
sealed answers, whose value is stored nowhere.

Messages wait in order until the turn is over. Interrupts and resets wait beside them, as they may
stop a message that is on its way: they go as soon as the backend can carry them out. All else goes
at once. Nothing overtakes an interrupt on its way, which would stop what came before it. After a
restart what was accepted goes on, and of what was sent evidence is looked for: it is never sent
twice.

Two things outlive the settlement of an input that the backend took: a message whose turn has not
begun is owed, and a reset after which the session has not ended retires it.

Nothing here does IO, keeps time or makes ids; who calls has the `LogState` that is asked about.

Why one module: the fate of an input lives in one place; its methods are the questions that others
ask of it.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import ClientCodec, Support
from adapters.model.state import LogState
from proxy.base.rows import CommandRow, CommandStatus
from proxy.session.settlements import settled, taken, unknown, withdrawn


class Fate(enum.StrEnum):
    """What has become of an input that is not settled."""

    ACCEPTED = "accepted"
    """Stored, and nothing is done about it yet: while the server stops the next start does it."""
    QUEUED = "queued"
    """A message waits for its turn, an interrupt or reset until the backend can carry it out."""
    LEAVING = "leaving"
    """It is about to be sent; a crash finds it accepted, and the next start sends it."""
    SENT = "sent"
    """The request may have left: a crash leaves its fate open."""
    SOUGHT = "sought"
    """It was sent before a restart, and a call to the backend looks for evidence of it."""
    DOUBTED = "doubted"
    """It was sent before a restart, and the backend's stream is to show what became of it."""


MOVES: Mapping[Fate, frozenset[Fate]] = {
    Fate.ACCEPTED: frozenset({Fate.QUEUED, Fate.LEAVING}),
    Fate.QUEUED: frozenset({Fate.LEAVING}),
    Fate.LEAVING: frozenset({Fate.SENT}),
    Fate.SENT: frozenset({Fate.SOUGHT, Fate.DOUBTED}),
    Fate.SOUGHT: frozenset(),
    Fate.DOUBTED: frozenset(),
}
"""Which fates may follow which. Settlement may follow all of them."""

STORED_AS: Mapping[Fate, CommandStatus] = {
    Fate.ACCEPTED: "accepted",
    Fate.QUEUED: "accepted",
    Fate.LEAVING: "accepted",
    Fate.SENT: "sent",
    Fate.SOUGHT: "sent",
    Fate.DOUBTED: "sent",
}
"""What the journal calls an input of each fate."""

_AT_THE_BACKEND = frozenset({Fate.LEAVING, Fate.SENT, Fate.SOUGHT})

_ON_ITS_WAY = _AT_THE_BACKEND | {Fate.DOUBTED}

_BEGINS = frozenset(
    {"turn.started", "turn.ended", "message.received", "guidance.received", "session.ended"}
)
"""What shows that a backend has done something about the messages that it took."""


@dataclasses.dataclass(slots=True)
class OutboxInput:
    """A command on its way. `number` is its place in the order of acceptance.

    `body` is the command as the journal keeps it, None of a sealed answer; `at` is when the journal
    last heard of it.
    """

    command_id: str
    command: cmd.AnyCommand
    number: int
    body: bytes | None
    at: int
    fate: Fate = Fate.ACCEPTED
    stops: bool = dataclasses.field(init=False)
    """Whether it may stop a message that is on its way: interrupts and resets do."""

    def __post_init__(self) -> None:
        self.stops = isinstance(self.command, cmd.Interrupt | cmd.Reset)

    @property
    def occupies(self) -> bool:
        """Say whether no message may overtake it: a message whose fate at the backend is open, or
        whatever the stream is read for."""
        if self.fate is Fate.DOUBTED:
            return True
        return self.fate in _AT_THE_BACKEND and isinstance(self.command, cmd.SendMessage)

    @property
    def halts(self) -> bool:
        """Say whether it is an interrupt on its way, and what comes of it is not known."""
        return self.fate in _ON_ITS_WAY and isinstance(self.command, cmd.Interrupt)

    @property
    def policy(self) -> str:
        """Return what the face promised of a message; of other commands nothing."""
        return self.command.policy if isinstance(self.command, cmd.SendMessage) else ""

    def move(self, fate: Fate) -> None:
        """Let it have the next fate."""
        assert fate in MOVES[self.fate], f"{self.fate} -> {fate}"
        self.fate = fate


@dataclasses.dataclass(slots=True, eq=False)
class Outbox:
    """The inputs of one session that are not settled, in the order of their acceptance.

    `session` is the journal's key; the codec is asked for its abilities only.
    """

    session: int
    codec: ClientCodec
    _inputs: dict[str, OutboxInput] = dataclasses.field(default_factory=dict, init=False)
    _next_number: int = dataclasses.field(default=1, init=False)
    owed: set[str] = dataclasses.field(default_factory=set, init=False)
    """The messages that the backend has taken and whose turn has not begun."""
    _retires: bool = dataclasses.field(default=False, init=False)
    claims: set[str] = dataclasses.field(default_factory=set, init=False)
    """The requests that a sealed answer on its way has claimed: the log knows of none."""

    def rebind(self, codec: ClientCodec) -> None:
        """Ask another codec for its abilities from now on."""
        self.codec = codec

    # What is in it.

    def __contains__(self, command_id: object) -> bool:
        """Say whether an input is here."""
        return command_id in self._inputs

    def get(self, command_id: str) -> OutboxInput | None:
        """Return an input that is not settled."""
        return self._inputs.get(command_id)

    def rows(self, inputs: Iterable[OutboxInput]) -> list[CommandRow]:
        """Return what the journal is to keep of inputs; nothing of a sealed one."""
        rows: list[CommandRow] = []
        for one in inputs:
            if one.body is not None:
                status = STORED_AS[one.fate]
                row = CommandRow(self.session, one.number, one.command_id, status, one.body, one.at)
                rows.append(row)
        return rows

    def stored(self, command_ids: Iterable[str]) -> list[OutboxInput]:
        """Return those of these inputs that the journal keeps as not settled."""
        found = [self._inputs[name] for name in command_ids if name in self._inputs]
        return [one for one in found if one.body is not None]

    @property
    def waits_for_something(self) -> bool:
        """Say whether an input waits here for its turn, or until its backend can carry it out."""
        for one in self._inputs.values():
            if one.fate is Fate.QUEUED:
                return True
        return False

    @property
    def queue(self) -> list[OutboxInput]:
        """Return the messages that wait for their turn, in order."""
        return [one for one in self._inputs.values() if one.fate is Fate.QUEUED and not one.stops]

    @property
    def size(self) -> int:
        """Return how many bytes the journal keeps of inputs that are not settled."""
        return sum(len(one.body or b"") for one in self._inputs.values())

    @property
    def busy(self) -> bool:
        """Say whether the journal keeps an input as not settled, or a turn is owed."""
        for one in self._inputs.values():
            if one.body is not None:
                return True
        return bool(self.owed)

    @property
    def working(self) -> bool:
        """Say whether a message waits, or is on its way, or its turn has not begun."""
        for one in self._inputs.values():
            if one.occupies or (one.fate is Fate.QUEUED and not one.stops):
                return True
        return bool(self.owed)

    @property
    def messages(self) -> list[OutboxInput]:
        """Return the messages that wait or are on their way, in order."""
        return [one for one in self._inputs.values() if isinstance(one.command, cmd.SendMessage)]

    @property
    def sending(self) -> bool:
        """Say whether an input is on its way to the backend and its answer not here yet."""
        return any(one.fate in (Fate.LEAVING, Fate.SENT) for one in self._inputs.values())

    @property
    def halting(self) -> bool:
        """Say whether an interrupt is on its way, and what comes of it is not known."""
        return any(one.halts for one in self._inputs.values())

    @property
    def administering(self) -> bool:
        """Say whether a command is on its way that concerns the session as a whole: somebody waits
        for its outcome, which comes with the backend's answer or when that has had its time."""
        kinds = (cmd.Archive, cmd.Reset, cmd.Delete, cmd.UpdateSession)
        return any(isinstance(one.command, kinds) for one in self._inputs.values())

    def resets(self, state: LogState) -> bool:
        """Say whether a reset is under way: accepted, and neither refused nor done."""
        resets = self._retires
        for one in self._inputs.values():
            resets = resets or isinstance(one.command, cmd.Reset)
        return resets and state.ended is None

    def _under_way(self) -> list[OutboxInput]:
        return [one for one in self._inputs.values() if one.occupies]

    # What comes in.

    def accept(
        self, command_id: str, command: cmd.AnyCommand, body: bytes, now: int
    ) -> OutboxInput:
        """Take a command that is accepted, with its JSON; nothing is done about it before
        `line_up`."""
        made = OutboxInput(command_id, command, 0, None, now)
        if isinstance(command, cmd.AnswerInteraction) and command.sealed is not None:
            # The value is nowhere but here: what a crash cuts off cannot be sent again.
            self.claims.add(command.request_id)
        else:
            made.body = body
            made.number, self._next_number = self._next_number, self._next_number + 1
        self._inputs[command_id] = made
        return made

    def load(self, row: CommandRow, command: cmd.AnyCommand) -> OutboxInput:
        """Take up what the journal has kept of an input."""
        fate = Fate.ACCEPTED if row.status == "accepted" else Fate.SENT
        made = OutboxInput(row.command_id, command, row.number, row.body, row.at, fate)
        self._inputs[row.command_id] = made
        self._next_number = row.number + 1
        return made

    def line_up(self, inputs: Iterable[OutboxInput], state: LogState) -> list[OutboxInput]:
        """Put messages in the queue and what stops them beside it; return the rest, which goes at
        once."""
        at_once: list[OutboxInput] = []
        for one in inputs:
            if one.stops or self.waits(one.command, state):
                one.move(Fate.QUEUED)
            else:
                one.move(Fate.LEAVING)
                at_once.append(one)
        return at_once

    def take_up(self, one: OutboxInput) -> bool:
        """Line up an input that was accepted before a restart; say whether it goes at once. A
        message waits, whatever it would do in the turn that it was for."""
        if one.stops or isinstance(one.command, cmd.SendMessage):
            one.move(Fate.QUEUED)
            return False
        one.move(Fate.LEAVING)
        return True

    def waits(self, command: cmd.AnyCommand, state: LogState) -> bool:
        """Say whether a message waits for its turn; what steers or withdraws by the backend's own
        rule does not. Nothing goes into a turn that is being stopped, with which it would be lost.
        Nothing withdraws what is answered, nor while the fate of a message before it is open."""
        if not isinstance(command, cmd.SendMessage):
            return False
        if self.codec.abilities["steer"].support is not Support.NATIVE or not state.busy:
            return True
        if state.stopped or any(one.stops for one in self._inputs.values()):
            return True
        before = [one.policy for one in self._under_way()]
        if state.interactions:
            first = all(policy == "steer" for policy in before)
            return command.policy != "withdraw" or self._answered(state) or not first
        return command.policy != "steer" or "withdraw" in before

    def _answered(self, state: LogState) -> bool:
        """Say whether all that is asked has its answer, or one is on its way."""
        claims = [open_.claimed_by for open_ in state.interactions.values()]
        return None not in claims or any(claim in state.inputs for claim in claims)

    # What goes out.

    def next_message(self, state: LogState) -> OutboxInput | None:
        """Return the message that may go to the backend now, if there is one."""
        first = self._first(state)
        if first is None:
            return None
        # While a turn runs only what withdraws its question may go, having waited for the fate of a
        # message before it.
        if state.busy and (first.policy != "withdraw" or self.waits(first.command, state)):
            return None
        return first

    def declining(self, state: LogState) -> OutboxInput | None:
        """Return the next message, if what is asked is declined for it and nothing stops that."""
        first = self._first(state)
        if first is None or first.policy != "decline" or state.stopped:
            return None
        return None if any(one.stops for one in self._inputs.values()) else first

    def said_beside(
        self, answered: Collection[str], state: LogState
    ) -> tuple[str, cmd.SendMessage] | None:
        """Return the next message, if it came with the answers to these requests and may go with
        them."""
        first = self._first(state)
        if first is None or not isinstance(first.command, cmd.SendMessage):
            return None
        beside = first.command.beside
        with_them = beside and set(answered).issuperset(beside)
        return (first.command_id, first.command) if with_them else None

    def _first(self, state: LogState) -> OutboxInput | None:
        """Return the first message in the queue, if no other is on its way that it must not
        overtake, nor an interrupt, and no reset loses it."""
        first: OutboxInput | None = None
        for one in self._inputs.values():
            if one.fate is Fate.QUEUED and not one.stops:
                first = first or one
            elif one.occupies or one.halts or isinstance(one.command, cmd.Reset):
                return None
        if self.owed or (self._retires and state.about.ended is None):
            return None
        return first

    def leave(self, command_id: str) -> None:
        """Record that a message leaves the queue, to be sent now."""
        self._inputs[command_id].move(Fate.LEAVING)

    def due_stops(self, state: LogState) -> tuple[list[OutboxInput], list[OutboxInput]]:
        """Return the interrupts and resets that go now, and those for which nothing is left to
        stop: a turn that begins later is another one."""
        due: list[OutboxInput] = []
        vain: list[OutboxInput] = []
        for one in self._inputs.values():
            if one.fate is Fate.QUEUED and one.stops and not self._is_early(one, state):
                if isinstance(one.command, cmd.Reset) or state.busy:
                    one.move(Fate.LEAVING)
                    due.append(one)
                else:
                    vain.append(one)
        return due, vain

    def _is_early(self, stop: OutboxInput, state: LogState) -> bool:
        """Say whether the backend cannot carry out yet what is to stop a message. An interrupt
        before its turn is accepted and does nothing, and what one does beside another is not
        known; a reset before its session exists has no address."""
        if isinstance(stop.command, cmd.Reset):
            held_back = self.codec.held_back
            return any(one.command_id not in held_back for one in self._under_way())
        if self.halting:
            return True
        if state.busy:
            return False
        if self.owed or self._under_way():
            return True
        return any(message.number < stop.number for message in self.queue)

    def send(self, command_ids: Iterable[str], now: int) -> list[OutboxInput]:
        """Record that the commands of a call are about to be stored as sent, and return them; a
        message leaves the queue for that."""
        found: list[OutboxInput] = []
        for name in command_ids:
            if (one := self._inputs.get(name)) is not None:
                if one.fate is Fate.QUEUED:
                    one.move(Fate.LEAVING)
                one.move(Fate.SENT)
                one.at = now
                found.append(one)
        return found

    # What comes of it.

    def hear(self, event: ev.Event, state: LogState, now: int) -> CommandRow | None:
        """Hear an event that `state` has; return the row of the command that it settles."""
        if isinstance(event, ev.InputSettled):
            if event.outcome == "taken" and event.command_id in state.unreceived:
                self.owed.add(event.command_id)
            return self._settle(event, now)
        if event.TYPE in _BEGINS and event.thread_id == ev.MAIN:
            self.owed.clear()
        return None

    def _settle(self, event: ev.InputSettled, now: int) -> CommandRow | None:
        one = self._inputs.pop(event.command_id, None)
        if one is None:
            return None
        if isinstance(one.command, cmd.Reset) and event.outcome == "taken":
            self._retires = True
        if one.body is None:
            return None
        return CommandRow(self.session, one.number, one.command_id, "settled", one.body, now)

    def left(self, state: LogState, told: Collection[str] = ()) -> list[ev.Event]:
        """Return the settlements of what is open when the session ends, but for those that the
        backend has `told` of: what waits here is never sent, and nothing is heard of the rest."""
        return [self._left(command_id) for command_id in state.inputs if command_id not in told]

    def _left(self, command_id: str) -> ev.Event:
        one = self._inputs.get(command_id)
        never = one is not None and one.fate is Fate.QUEUED
        if never or command_id in self.codec.held_back:
            return withdrawn(command_id, "The session ended before it was sent.")
        if one is not None and isinstance(one.command, cmd.Reset):
            return taken(command_id)
        return unknown(command_id, "The session ended before the backend said what became of it.")

    def stopped_with(self, event: ev.TurnEnded, told: Collection[str] = ()) -> list[ev.Event]:
        """Withdraw what was said beside the answers that a stopped turn went on with: both are one
        step, but where the answers declined for what was said. What is `told` of is settled
        otherwise."""
        if event.outcome != "interrupted" or event.thread_id != ev.MAIN:
            return []
        reason = "The turn was stopped that its answers belong to."
        said = [
            one.command_id for one in self.queue if _beside(one.command) and one.policy != "decline"
        ]
        return [withdrawn(one, reason) for one in said if one not in told]

    def failed_with(
        self, raw: Sequence[ev.Event], state: LogState, told: Collection[str] = ()
    ) -> list[ev.Event]:
        """Refuse what was said beside answers that all came to nothing: both are one step, and
        anybody who answers anew says it anew. Not so what was declined for, see `declining`. What
        is `told` of is settled otherwise."""
        released = {
            event.request_id
            for event in raw
            if isinstance(event, ev.InteractionAnswered) and event.state == "released"
        }
        open_ = {
            request_id
            for request_id, open_ in state.interactions.items()
            if open_.claimed_by is None or request_id in released
        }
        failed = [
            one.command_id
            for one in self.queue
            if one.policy != "decline"
            and open_.issuperset(_beside(one.command))
            and not released.isdisjoint(_beside(one.command))
        ]
        errors = [event.error for event in raw if isinstance(event, ev.InputSettled)]
        reason, error = "The answers that it came with came to nothing.", (errors or [None])[-1]
        return [settled(one, "refused", reason, error) for one in failed if one not in told]

    def restore(self, owed: Iterable[str]) -> None:
        """Put back which messages were owed a turn."""
        self.owed = set(owed)


def _beside(command: cmd.AnyCommand) -> tuple[str, ...]:
    """Return the requests that are answered beside a message."""
    return command.beside if isinstance(command, cmd.SendMessage) else ()
