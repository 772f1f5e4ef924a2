"""A client codec that goes on at a backend with what was said elsewhere.

It is the codec of the backend's dialect, and around it what a conversation needs that began at
another backend: its history goes out with the first message that the backend takes, and nobody sees
it in that message's echo.

Why one module: it has all methods of a client codec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, TypeAdapter

from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Ability, Call, ClientCodec, CloseReason, Response
from adapters.model.conversation import Conversation
from adapters.model.stored import fill, mark, read
from adapters.offline.moves.history import ConversationHistory
from adapters.wire.errors import DragomanError
from adapters.wire.framing.sse import SseFrame
from adapters.wire.jsonvalue import format_json

M = TypeVar("M", bound=ev.Model)

_CONTENT: TypeAdapter[tuple[ev.Content, ...]] = TypeAdapter(
    tuple[ev.Content, ...], config=ConfigDict(defer_build=True)
)


@dataclasses.dataclass(slots=True)
class HandoverState:
    """What is still to be given over.

    `text` and `files` are the history, empty when the backend has it. `carrying` has what messages
    say that carry it, by their commands, until they are received.
    """

    text: str = ""
    files: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    carrying: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)


class HandoverCodec(ClientCodec):
    """Drives a session that began at another backend. `inner` is the codec of this one."""

    records: ClassVar[tuple[type, ...]] = (HandoverState,)
    filled: ClassVar[tuple[type, ...]] = (HandoverState,)

    def __init__(self, inner: ClientCodec) -> None:
        self._inner = inner
        self._s = HandoverState()
        self._kept = b""
        # The state as it is stored, None where it has changed: every delta has a position.
        self._stored: bytes | None = None
        self.dialect = inner.dialect
        self.framing = inner.framing
        self.abilities: Mapping[str, Ability] = inner.abilities
        self.history = inner.history
        self.patience = inner.patience
        self.remembers = inner.remembers

    def begin(self, history: ConversationHistory) -> None:
        """Have a history to give over, from now on: a backend that remembers nothing is sent the
        whole conversation anyway."""
        if not self.remembers:
            return
        files = [file.model_dump(mode="json", exclude_defaults=True) for file in history.files]
        self._s = HandoverState(text=history.text, files=files)
        self._stored = None

    @property
    def owes_history(self) -> bool:
        """Say whether the backend does not have the history yet."""
        return bool(self._s.text)

    @property
    def conversation(self) -> Conversation | None:
        """What was said so far, which the backend's codec sends."""
        return self._inner.conversation

    @conversation.setter
    def conversation(self, said: Conversation | None) -> None:
        self._inner.conversation = said

    @property
    def inner(self) -> ClientCodec:
        """Return the codec of the backend itself."""
        return self._inner

    # Commands.

    def check(self, command: cmd.AnyCommand) -> None:
        self._inner.check(command)

    def submit(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        if isinstance(command, cmd.SendMessage) and self._s.text:
            said = _CONTENT.dump_python(command.content, mode="json", exclude_defaults=True)
            # The newest only: a message before it that was refused carries nothing any more.
            self._s.carrying = {command_id: said}
            self._stored = None
            command = self._with_history(command)
        return self._inner.submit(command_id, command)

    def submit_answers(
        self,
        answers: Mapping[str, cmd.AnswerInteraction],
        beside: tuple[str, cmd.SendMessage] | None = None,
    ) -> Call | None:
        return self._inner.submit_answers(answers, beside)

    def recover(self, command_id: str, command: cmd.AnyCommand) -> Call | None:
        if isinstance(command, cmd.SendMessage) and command_id in self._s.carrying:
            command = self._with_history(command)
        return self._inner.recover(command_id, command)

    def _with_history(self, command: cmd.SendMessage) -> cmd.SendMessage:
        files = _CONTENT.validate_python(self._s.files)
        return self._inner.with_history(command, self._s.text, files)

    @property
    def held_back(self) -> Collection[str]:
        return self._inner.held_back

    # Calls and streams.

    def started(self, event: ev.SessionStarted) -> None:
        self._inner.started(event)

    def unknown(self, command_ids: Collection[str], now: int) -> list[ev.Event]:
        return self._ours(self._inner.unknown(command_ids, now))

    def streams(self) -> tuple[Call, ...]:
        return self._inner.streams()

    def take_calls(self) -> list[Call]:
        return self._inner.take_calls()

    @property
    def native_id(self) -> str | None:
        return self._inner.native_id

    def opened(self, call: Call, head: Response, now: int) -> list[ev.Event]:
        return self._ours(self._inner.opened(call, head, now))

    def respond(self, call: Call, response: Response, now: int) -> list[ev.Event]:
        return self._ours(self._inner.respond(call, response, now))

    def failed(self, call: Call, error: DragomanError, *, sent: bool, now: int) -> list[ev.Event]:
        return self._ours(self._inner.failed(call, error, sent=sent, now=now))

    def feed(self, call: Call, frame: SseFrame | bytes, now: int) -> list[ev.Event]:
        return self._ours(self._inner.feed(call, frame, now))

    def seals(self, frame: SseFrame | bytes) -> bool:
        return self._inner.seals(frame)

    def garbage(self, call: Call, offending: bytes, reason: str, now: int) -> list[ev.Event]:
        return self._ours(self._inner.garbage(call, offending, reason, now))

    def closed(self, call: Call, reason: CloseReason, now: int) -> list[ev.Event]:
        return self._ours(self._inner.closed(call, reason, now))

    def give_up(
        self, error: DragomanError, now: int, *, thread_id: str = ev.MAIN
    ) -> list[ev.Event]:
        return self._ours(self._inner.give_up(error, now, thread_id=thread_id))

    def tick(self, now: int) -> list[ev.Event]:
        return self._ours(self._inner.tick(now))

    def look(self, now: int) -> bool:
        return self._inner.look(now)

    def webhook(self, request_id: str) -> str | None:
        return self._inner.webhook(request_id)

    @property
    def wake_at(self) -> int | None:  # type: ignore[override]
        """When the backend's codec wants to be called."""
        return self._inner.wake_at

    # Events.

    def _ours(self, events: Sequence[ev.Event]) -> list[ev.Event]:
        """Return what the backend's codec says as it is in the session's log."""
        if not self._s.carrying:
            return list(events)
        return [self._our(event) for event in events]

    def _our(self, event: ev.Event) -> ev.Event:
        state = self._s
        match event:
            case ev.MessageReceived() if event.command_id in state.carrying:
                said = state.carrying.pop(event.command_id)
                self._given_over()
                return _with(event, content=_CONTENT.validate_python(said))
            case ev.InputSettled(outcome="taken") if event.command_id in state.carrying:
                self._given_over()
            case _:
                pass
        return event

    def _given_over(self) -> None:
        self._s.text, self._s.files = "", []
        self._stored = None

    # What is stored.

    @property
    def frames(self) -> int:
        return self._inner.frames

    def _own(self) -> bytes:
        if self._stored is None:
            self._stored = format_json(dataclasses.asdict(self._s))
        return self._stored

    @property
    def position(self) -> bytes:
        own = self._own()
        own = b"null" if own == self._kept else own
        return _packed(own, self._inner.position)

    def snapshot(self) -> bytes:
        self._kept = self._own()
        return _packed(self._kept, self._inner.snapshot())

    @property
    def changed(self) -> bool:
        return self._inner.changed or self._own() != self._kept

    def restore(self, snapshot: bytes | None, position: bytes | None) -> None:
        inner_snapshot = inner_position = None
        if snapshot is not None:
            own, inner_snapshot = _unpacked(snapshot)
            self._s, self._stored = fill(HandoverState, own), None
            self._kept = self._own()
        if position is not None:
            own, inner_position = _unpacked(position)
            if own is not None:
                self._s, self._stored = fill(HandoverState, own), None
        self._inner.restore(inner_snapshot, inner_position)


def _with(value: M, **changes: Any) -> M:
    return value.model_copy(update=changes)


def _packed(own: bytes, inner: bytes) -> bytes:
    return b"%b%b\n%b" % (mark(HandoverCodec.state_version), own, inner)


def _unpacked(stored: bytes) -> tuple[Any, bytes]:
    """Return what is stored of this codec and of the one in it.

    Raises:
        StoredByNewer: its version is not known yet.
        ValueError: it is nothing that was stored.
    """
    own, _, inner = stored.partition(b"\n")
    return read(HandoverCodec, "the state of a session that has moved", own), inner
