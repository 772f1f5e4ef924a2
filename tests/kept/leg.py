"""A session's part around a client codec, without IO, which can be killed after each of its steps.

Beyond what `Played` does, what `proxy.session` does with commands, answers and streams is done here
in the same order. `kill` puts a codec made from what is stored in the place of the one in memory;
`lose` lets the one in memory lose its connections and what is on its way, which is what a kill does
to the world around.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Call, ClientCodec, CloseReason, Response, Support
from adapters.model.state import LogState
from adapters.wire.errors import DragomanError
from adapters.wire.framing.sse import SseFrame
from tests.support.played import Played

START = 1_781_775_000_000
MOST_STEPS = 2_000
PATIENCE = 8
"""Connections in a row that bring nothing, after which a session gives a stream up."""

Frame = SseFrame | bytes


class Lost(DragomanError):
    """No answer came."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("The connection broke.")
        self.sent = sent


class World(abc.ABC):
    """A backend of a dialect: what it answers, and what its streams show, a frame at a time."""

    dialect: str
    settings: dict[str, Any]

    @abc.abstractmethod
    def answer(self, call: Call) -> Response:
        """Take a call.

        Raises:
            Lost: its answer does not come.
        """

    @abc.abstractmethod
    def open(self, call: Call) -> Response:
        """Open a stream from where the call asks for it; one that is not a stream is an answer."""

    @abc.abstractmethod
    def next(self, call: Call) -> Frame | CloseReason | None:
        """Return what an open stream shows next, None where it is silent now."""


@dataclasses.dataclass
class Move:
    """What a person does, as soon as `when` holds."""

    make: Callable[[LogState], cmd.AnyCommand]
    when: Callable[[Leg], bool]


@dataclasses.dataclass
class Row:
    """A command in the outbox."""

    command: cmd.AnyCommand
    sent: bool = False


class Leg(Played):
    """One session on one backend. `posts` is what it has sent.

    With `late` answers come when the streams have nothing more to show.
    """

    def __init__(
        self,
        make: Callable[[dict[str, Any]], ClientCodec],
        world: World,
        moves: Sequence[Move],
        *,
        late: bool = False,
    ) -> None:
        super().__init__(lambda: make(world.settings))
        self.late = late
        self.world = world
        self.moves = list(moves)
        self.outbox: dict[str, Row] = {}
        self.waiting: list[Call] = []
        self.streams: list[Call] = []
        self.posts: list[tuple[str, str, bytes | None]] = []
        self.now = START
        self.commands = 0
        # Connections in a row without anything new, and the log as it was at the last one.
        self.vain = self.known = 0
        started = ev.SessionStarted(thread_id=ev.MAIN)
        self.codec.started(started)
        self.emit([started])

    @property
    def quiet(self) -> bool:
        """Say whether nothing is under way."""
        return not (self.state.busy or self.state.inputs or len(self.state.unreceived))

    # What the session does.

    def emit(self, raw: Sequence[ev.Event], *, changes: bool = False, answer: bool = False) -> None:
        """Store what raw events become, and with them the codec."""
        for event in self.take(raw, at=self.now, changes=changes, keep=answer):
            if isinstance(event, ev.InputSettled):
                self.outbox.pop(event.command_id, None)

    def accept(self, command: cmd.AnyCommand) -> str:
        """Store a command as accepted."""
        self.commands += 1
        command_id = f"command-{self.commands}"
        self.codec.check(command)
        accepted: list[ev.Event] = [
            ev.InputAccepted(thread_id=ev.MAIN, command_id=command_id, kind=command.KIND, by="ann")
        ]
        if isinstance(command, cmd.AnswerInteraction):
            thread = self.state.interactions[command.request_id].event.thread_id
            accepted.append(
                ev.InteractionAnswered(
                    thread_id=thread,
                    request_id=command.request_id,
                    command_id=command_id,
                    by="ann",
                )
            )
        self.outbox[command_id] = Row(command)
        self.emit(accepted, changes=True)
        return command_id

    def send(self, command_id: str) -> None:
        """Store a command as sent, with the call that carries it on its way."""
        row = self.outbox[command_id]
        call = self.codec.submit(command_id, row.command)
        row.sent = True
        self.emit([], changes=True)
        self._do(call)

    def _do(self, call: Call) -> None:
        if call.request.method != "GET":
            self.posts.append((call.request.method, call.request.path, call.request.body))
        if call.stream:
            self.open(call)
        else:
            self.waiting.append(call)

    def go_on(self) -> bool:
        """Do what the codec wants now; say whether that was anything."""
        if self.state.ended is not None:
            return False
        calls = self.codec.take_calls()
        for call in calls:
            if any(command_id in self.outbox for command_id in call.command_ids):
                self.emit([], changes=True)
            self._do(call)
        return bool(calls)

    def connect(self) -> bool:
        """Open a stream that is wanted and not open."""
        if self.state.ended is not None:
            return False
        for call in self.codec.streams():
            if any(stream.thread_id == call.thread_id for stream in self.streams):
                continue
            self.vain = self.vain + 1 if len(self.events) == self.known else 0
            self.known = len(self.events)
            if self.vain < PATIENCE:
                self.open(call)
            else:
                lost = Lost(sent=True)
                self.emit(self.codec.give_up(lost, self.now, thread_id=call.thread_id))
            return True
        return False

    def open(self, call: Call) -> None:
        try:
            head = self.world.open(call)
        except Lost as error:
            self.emit(self.codec.failed(call, error, sent=error.sent, now=self.now), answer=True)
            return
        if head.status == 200:
            self.streams.append(call)
            self.emit(self.codec.opened(call, head, self.now))
        else:
            self.emit(self.codec.respond(call, head, self.now), answer=True)

    def answer(self) -> bool:
        """Let the oldest call on its way be answered."""
        if not self.waiting:
            return False
        call = self.waiting.pop(0)
        try:
            response = self.world.answer(call)
        except Lost as error:
            self.fail(call, error)
        else:
            self.emit(self.codec.respond(call, response, self.now), answer=True)
        return True

    def fail(self, call: Call, error: Lost) -> None:
        """Record that a call got no answer, and look for what may have come of its commands."""
        left = [name for name in call.command_ids if name in self.outbox]
        if call.command_ids and not left:
            return
        if error.sent and left and not call.stream and call.request.method != "GET":
            found = [self.codec.recover(name, self.outbox[name].command) for name in left]
            if (look := found[-1]) is not None:
                self._do(look)
                return
        self.emit(self.codec.failed(call, error, sent=error.sent, now=self.now), answer=True)

    def read(self) -> bool:
        """Let the streams show a frame."""
        for call in self.streams:
            shown = self.world.next(call)
            if shown is None:
                continue
            self.now += 1
            if isinstance(shown, CloseReason):
                self.streams.remove(call)
                self.emit(self.codec.closed(call, shown, self.now))
            else:
                self.emit(self.codec.feed(call, shown, self.now))
            return True
        return False

    def act(self) -> bool:
        """Let the person do what is next."""
        if not self.moves or not self.moves[0].when(self):
            return False
        self.accept(self.moves.pop(0).make(self.state))
        return True

    def send_next(self) -> bool:
        """Send what is accepted; a message only when nothing runs."""
        for command_id, row in self.outbox.items():
            if row.sent:
                continue
            others = any(o.sent for o in self.outbox.values() if is_message(o.command))
            owed = len(self.state.unreceived) and not self.state.busy
            if self._waits(row.command) and (self.state.busy or others or owed):
                continue
            self.send(command_id)
            return True
        return False

    def _waits(self, command: cmd.AnyCommand) -> bool:
        """Say whether a command waits for its turn; what steers or withdraws does not."""
        if not isinstance(command, cmd.SendMessage):
            return False
        if self.codec.abilities["steer"].support is not Support.NATIVE or not self.state.busy:
            return True
        return command.policy != ("withdraw" if self.state.interactions else "steer")

    def tick(self) -> bool:
        """Let the time come that the codec waits for."""
        if self.codec.wake_at is None or self.codec.wake_at > self.now + 900_000:
            return False
        self.now = max(self.now, self.codec.wake_at)
        self.emit(self.codec.tick(self.now))
        return True

    def step(self) -> str:
        """Do the next thing and return its name, or an empty text where nothing is left."""
        answers = (self.read, self.answer) if self.late else (self.answer, self.read)
        for work in (self.go_on, self.send_next, self.connect, self.act, *answers, self.tick):
            if work():
                return work.__name__
        return ""

    def run(self) -> Leg:
        """Go on to the end."""
        for _ in self.each():
            pass
        return self

    def each(self) -> Iterator[str]:
        """Go on to the end, and stop after each step."""
        for _ in range(MOST_STEPS):
            name = self.step()
            if not name:
                return
            yield name
        raise AssertionError("it does not come to an end")

    # What a kill does.

    def fork(self) -> Leg:
        """Return another one that has come to the same point."""
        # Events and their entries do not change.
        return copy.deepcopy(self, {id(stored): stored for stored in (*self.events, *self.entries)})

    def lose(self) -> Leg:
        """Lose all connections, and the answers that are on their way, but for those to questions:
        they are asked again."""
        self.vain = 0
        waiting = [call for call in self.waiting if call.request.method != "GET"]
        self.waiting = [call for call in self.waiting if call.request.method == "GET"]
        streams, self.streams = self.streams, []
        for call in streams:
            self.emit(self.codec.closed(call, CloseReason.LOST, self.now))
        for call in waiting:
            # It may have come just before.
            with contextlib.suppress(Lost):
                self.world.answer(call)
            self.fail(call, Lost(sent=True))
        return self

    def kill(self) -> Leg:
        """Lose what is in memory; go on from what is stored."""
        for call in self.waiting:
            if call.request.method != "GET":
                with contextlib.suppress(Lost):
                    self.world.answer(call)
        self.waiting, self.streams = [], []
        self.vain = 0
        self.restart()
        for command_id, row in list(self.outbox.items()):
            if not row.sent:
                continue
            look = self.codec.recover(command_id, row.command)
            if look is not None:
                self._do(look)
            elif not self.codec.streams() and not isinstance(row.command, cmd.Delete):
                unknown = ev.InputSettled(
                    thread_id=ev.MAIN, command_id=command_id, outcome="unknown", synthetic=True
                )
                self.emit([unknown])
        return self

    # What comes out.

    def told(self) -> list[Any]:
        """Return the log as `told` does."""
        return told(self.events)


def told(log: Sequence[ev.Event]) -> list[Any]:
    """Return a log as values, without what is of one process only: deltas are joined, and source
    frames not counted. What tells that something is looked for is left out: of a lost answer it has
    other words than of a restart."""
    out: list[dict[str, Any]] = []
    for event in log:
        if isinstance(event, ev.ErrorReported) and event.synthetic and event.retry == "retrying":
            continue
        value = event.model_dump(mode="json", exclude_none=True)
        value.get("native", {}).pop("frame", None)
        value.pop("reason", None)
        last = out[-1] if out else {}
        if event.TYPE in ev.DELTAS:
            value.pop("native", None)
            if last.get("type") == event.TYPE and last["block_id"] == value["block_id"]:
                last["text"] += value["text"]
                continue
        out.append(value)
    return out


def is_message(command: cmd.AnyCommand) -> bool:
    """Say whether a command is a message."""
    return isinstance(command, cmd.SendMessage)
