"""A session's decisions without the session: an outbox, an admission and the log beside them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Ability, ClientCodec, Support
from adapters.model.state import LogState
from adapters.wire.errors import NotSupported
from proxy.base.rows import CommandRow
from proxy.session.admission import Admission, AdmittedBatch, Origin, check_batch
from proxy.session.outbox import STORED_AS, Fate, Outbox, OutboxInput

ACCEPTED, QUEUED, LEAVING = Fate.ACCEPTED, Fate.QUEUED, Fate.LEAVING
SENT, SOUGHT, DOUBTED = Fate.SENT, Fate.SOUGHT, Fate.DOUBTED

SESSION, NOW, LATER = 7, 1_000, 2_000

RUNS = ev.TurnStarted(thread_id=ev.MAIN, turn_id="t", cause="message")
ENDS = ev.TurnEnded(thread_id=ev.MAIN, turn_id="t", outcome="completed")
ASKS = ev.InteractionRequested(
    thread_id=ev.MAIN, turn_id="t", request_id="r", kind="approval", prompt="May I?"
)
OVER = ev.SessionEnded(thread_id=ev.MAIN, outcome="completed")

INTERRUPT, RESET, ARCHIVE = cmd.Interrupt(), cmd.Reset(), cmd.Archive()
ANSWER = cmd.AnswerInteraction(request_id="r", decision="allow")
SECRET = cmd.AnswerInteraction(request_id="r", sealed=cmd.Sealed("hunter2"))


def says(policy: ev.Policy = "queue") -> cmd.SendMessage:
    return cmd.SendMessage(content=(ev.Text(text="hello"),), policy=policy)


STEERS, QUEUES, WITHDRAWS = says("steer"), says("queue"), says("withdraw")

ORIGIN = Origin("key", "eve")

Given = Sequence[tuple[cmd.AnyCommand, Fate]]
"""The inputs that there are, each in the fate that it has come to. They are called i1, i2, …"""


class Backend:
    """What a codec says of its backend: what that can do, and whether it knows the session."""

    def __init__(self, abilities: Mapping[str, Ability], native_id: str | None) -> None:
        self.abilities = abilities
        self.native_id = native_id
        self.held_back: list[str] = []

    def check(self, command: cmd.AnyCommand) -> None:
        ability = self.abilities.get(command.TYPE)
        if ability is not None and ability.support is Support.IMPOSSIBLE:
            raise NotSupported(f"no {command.TYPE}")


class Desk:
    """An outbox with some inputs, an admission before it, and the log beside them."""

    def __init__(
        self,
        given: Given = (),
        events: Iterable[ev.Event] = (),
        *,
        steers: bool = False,
        abilities: Mapping[str, Ability] | None = None,
        known: bool = True,
    ) -> None:
        support = Support.NATIVE if steers else Support.EMULATED
        can = {name: Ability(Support.NATIVE) for name in cmd.COMMAND_TYPES}
        can |= {"steer": Ability(support), **(abilities or {})}
        self.backend = Backend(can, "there" if known else None)
        codec: Any = self.backend
        self.outbox = Outbox(SESSION, cast(ClientCodec, codec))
        self.admission = Admission(self.outbox)
        self.state = LogState()
        self.hear(*events)
        for command, fate in given:
            name = self.accepted(command)
            body = cmd.encode_command(command)
            row = CommandRow(SESSION, len(self.state.inputs), name, STORED_AS[fate], body, NOW)
            self.outbox.load(row, command).fate = fate

    def accepted(self, command: cmd.AnyCommand) -> str:
        name = f"i{len(self.state.inputs) + 1}"
        self.hear(ev.InputAccepted(thread_id=ev.MAIN, command_id=name, kind=command.KIND, by="key"))
        return name

    def take(self, *commands: cmd.AnyCommand) -> list[str]:
        """Accept a batch; return what goes at once."""
        inputs = [
            self.outbox.accept(self.accepted(one), one, cmd.encode_command(one), NOW)
            for one in commands
        ]
        return names(self.outbox.line_up(inputs, self.state))

    def submit(
        self,
        *commands: cmd.AnyCommand,
        origin: Origin = ORIGIN,
        request: Mapping[str, Any] | None = None,
    ) -> AdmittedBatch:
        """Check a batch and take it in."""
        check_batch(commands)
        checked = [self.admission.check(command, self.state) for command in commands]
        numbers = itertools.count(len(self.state.inputs) + 1)
        batch = [
            (f"i{next(numbers)}", command, b"" if command is None else cmd.encode_command(command))
            for command in checked
        ]
        admitted = self.admission.admit(
            batch,
            self.state,
            origin,
            request=request or {},
            now=NOW,
            new_id=lambda: f"i{next(numbers)}",
        )
        self.hear(*admitted.events)
        return admitted

    def hear(self, *events: ev.Event) -> list[CommandRow]:
        """Take events that the log gets at once; return the rows of what they settle."""
        for event in events:
            self.state.apply(event)
        heard = [self.outbox.hear(event, self.state, LATER) for event in events]
        return [row for row in heard if row is not None]

    def next(self) -> str | None:
        one = self.outbox.next_message(self.state)
        return None if one is None else one.command_id

    def stops(self) -> tuple[list[str], list[str]]:
        due, vain = self.outbox.due_stops(self.state)
        return names(due), names(vain)

    @property
    def fates(self) -> list[Fate]:
        found = [self.outbox.get(name) for name in self.state.inputs]
        return [one.fate for one in found if one is not None]


def names(inputs: Iterable[OutboxInput]) -> list[str]:
    return [one.command_id for one in inputs]
