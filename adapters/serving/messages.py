"""What is new where the whole conversation comes with each request: which messages of the person
are said to the agent.

Clients cannot take a message back, so what was refused comes again with every request. Why it was
refused decides what becomes of it:

| refused | example | then |
|---|---|---|
| for what it is | a file, a size, a 422 of the backend | told once, and never said again |
| for when it is | busy, stopping, a 503, a lost connection | said with the next words |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from adapters.model.commands import SendMessage
from adapters.model.events import (
    MAIN,
    Content,
    Event,
    InputSettled,
    MessageReceived,
    TextCompleted,
    ToolCalled,
    ToolReturned,
)
from adapters.wire.errors import DragomanError, ErrorCode

HEARD_KEPT = 512
"""Messages of the frontend whose ids are remembered."""

_PASSING = frozenset({404, 408, 409, 423, 425, 429})
"""Statuses of refusals that are of the moment: the session is away or busy, or there was too much.
The credential's, 401 and 403, are the operator's to mend."""

_OF_THE_MOMENT = frozenset(
    {
        *(ErrorCode.BUSY, ErrorCode.PAUSED, ErrorCode.STOPPING, ErrorCode.OVERLOADED),
        *(ErrorCode.BACKEND_UNAVAILABLE, ErrorCode.BACKEND_TIMEOUT, ErrorCode.BACKEND_REFUSED),
        *(ErrorCode.RATE_LIMITED, ErrorCode.JOURNAL_UNAVAILABLE),
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class PersonMessage:
    """A message of the person. `wrong` says why its content cannot be read, and is then empty."""

    id: str
    content: tuple[Content, ...] = ()
    wrong: DragomanError | None = None

    @property
    def command(self) -> SendMessage:
        """Return the message alone."""
        return SendMessage(content=self.content, policy="queue")


class OmittedMessage(NamedTuple):
    """A message that is not said, and why."""

    id: str
    reason: str


@dataclasses.dataclass(slots=True)
class SaidMessages:
    """Which messages were said. `ids` are those that are not to be said again, oldest first: also
    those refused for what they are. `again` are those that are said with the next words, `inputs`
    are the inputs that said one alone, by its id."""

    ids: list[str] = dataclasses.field(default_factory=list)
    again: list[str] = dataclasses.field(default_factory=list)
    inputs: dict[str, str] = dataclasses.field(default_factory=dict)

    def say(self, ids: Collection[str], command_id: str | None = None) -> None:
        """Record that messages are said, by an input."""
        self.ids = [*(known for known in self.ids if known not in ids), *ids][-HEARD_KEPT:]
        self.again = [known for known in self.again if known not in ids]
        for name in ids:
            self.inputs.pop(name, None)
        if command_id is not None and len(ids) == 1:
            self.inputs[next(iter(ids))] = command_id
            while len(self.inputs) > HEARD_KEPT:
                del self.inputs[next(iter(self.inputs))]

    def settle(self, ids: Collection[str], event: InputSettled) -> None:
        """Record that messages came to nothing. One with an unknown fate is not said again by
        itself: the backend may have it."""
        for name in ids:
            self.inputs.pop(name, None)
        if event.outcome == "unknown" or not _passes(event):
            return
        self.ids = [known for known in self.ids if known not in ids]
        self.again = [*(known for known in self.again if known not in ids), *ids][-HEARD_KEPT:]


def _passes(event: InputSettled) -> bool:
    """Say whether an input that the backend does not have was refused for when it was."""
    error = event.error
    if event.outcome == "withdrawn" or error is None:
        return True
    if error.status is not None:
        return error.status >= 500 or error.status in (401, 403) or error.status in _PASSING
    return error.code in _OF_THE_MOMENT


def read(name: str, content: Callable[[], tuple[Content, ...]]) -> PersonMessage:
    """Return a message whose content may turn out not to be readable: an earlier one comes again
    with every request."""
    try:
        return PersonMessage(name, content())
    except DragomanError as error:
        return PersonMessage(name, wrong=error)


def fresh(
    words: Sequence[PersonMessage],
    earlier: Callable[[Collection[str]], Sequence[PersonMessage]],
    heard: SaidMessages,
) -> list[PersonMessage]:
    """Return what the person has said and nobody has heard. `words` are the messages at the end of
    the conversation; `earlier` reads those of some ids that stand before them."""
    again = earlier(heard.again) if heard.again else ()
    known = {*heard.ids, *(one.id for one in again)}
    return [*again, *(one for one in words if one.id not in known)]


def choose(
    words: Sequence[PersonMessage], refusal: Callable[[SendMessage], DragomanError | None]
) -> tuple[list[PersonMessage], list[OmittedMessage]]:
    """Return which of the new messages are said, and which are left out. The last one is always
    said, since it is what is asked for now: where it is refused, its request is."""
    *before, last = words
    said: list[PersonMessage] = []
    left_out: list[OmittedMessage] = []
    for one in before:
        wrong = one.wrong or refusal(one.command)
        if wrong is None:
            said.append(one)
        else:
            left_out.append(OmittedMessage(one.id, wrong.message))
    # What is noted stands with its command: the newest.
    return [*said, last], left_out[-32:]


# What a frontend tells of what was said elsewhere, as events.


def asked_by_person(name: str, content: Sequence[Content]) -> Event:
    """Return what says that the person has said something."""
    return MessageReceived(thread_id=MAIN, message_id=name, content=tuple(content))


def said_by_agent(name: str, text: str) -> Event:
    """Return what says that the agent has said something."""
    return TextCompleted(thread_id=MAIN, block_id=name, message_id=name, text=text)


def used_tool(
    call_id: str, tool: str, given: Any, result: Any, *, failed: bool
) -> tuple[Event, Event]:
    """Return what says that the agent has called a tool, and what came of it."""
    called = ToolCalled(thread_id=MAIN, call_id=call_id, name=tool, input=given)
    returned = ToolReturned(thread_id=MAIN, call_id=call_id, output=result, is_error=failed)
    return called, returned
