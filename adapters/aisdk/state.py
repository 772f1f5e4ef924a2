"""What the encoder knows of a session: one typed state, which snapshots copy."""

from __future__ import annotations

import dataclasses

from adapters.model.base import shape_of
from adapters.serving.encoder import ShownBlock
from adapters.serving.inputs import InputBatch, InputBatches, NotesForm, PendingInput
from adapters.serving.later import WaitingFrame, WaitingFrames
from adapters.serving.messages import SaidMessages
from adapters.serving.pauses import Pauses, ShownRequest
from adapters.serving.tokens import TokenTotals


@dataclasses.dataclass(slots=True)
class ChatNotes:
    """What is noted with the commands of a request: how many these are, the ids of the messages
    that they say and of those that are left out, with the reason, whether the stream goes on with
    an earlier message, the members that reach no agent, and a digest of what the application says
    to it."""

    parts: int = 1
    said: list[str] = dataclasses.field(default_factory=list)
    left_out: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    goes_on: bool = False
    ignored: list[str] = dataclasses.field(default_factory=list)
    context: str | None = None


NOTES = NotesForm(ChatNotes)


@dataclasses.dataclass(slots=True)
class ChatStream:
    """A stream: what one answer has, from `start` to `[DONE]`. `message` is what it writes, `start`
    the cursor of its first frame and `tail` that of its last one, None while it is open. `own` says
    that a page asked for it, `steps` how many the message had before, `ids` are the messages of the
    page that began it."""

    key: str
    message: str
    start: int
    own: bool
    steps: int
    tail: int | None = None
    ids: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class ShownCall:
    """A call without a result: the message that has it, nothing while it waits for the next one.
    `step` counts the steps of its message. `page` says that the page gives the result."""

    message: str
    step: int
    name: str = ""
    page: bool = False
    approval: bool = False
    called: bool = True


@dataclasses.dataclass(slots=True)
class ChatState:
    """`stream` is the key of the open stream. Of the message that is written, `begin` is its first
    cursor, `steps` counts its steps, `asks` has the cursors at which approvals were asked, `gone`
    those of them that are answered, and `tools` says that its last step has calls, `returned` that
    one of these has its result. `after` has the stream in which each request was told that is over,
    `over_at` is when the last stream ended."""

    cursor: int = 0
    messages: int = 0
    streams: int = 0
    stream: str | None = None
    message: str | None = None
    begin: int = 0
    kept: list[ChatStream] = dataclasses.field(default_factory=list)
    asks: dict[str, int] = dataclasses.field(default_factory=dict)
    gone: list[int] = dataclasses.field(default_factory=list)
    step: bool = False
    steps: int = 0
    tools: bool = False
    returned: bool = False
    parts: int = 0
    text: ShownBlock | None = None
    thinking: ShownBlock | None = None
    cut: str | None = None
    calls: dict[str, ShownCall] = dataclasses.field(default_factory=dict)
    pauses: Pauses = dataclasses.field(default_factory=Pauses)
    inputs: InputBatches[ChatNotes] = dataclasses.field(default_factory=InputBatches)
    later: WaitingFrames = dataclasses.field(default_factory=WaitingFrames)
    tokens: TokenTotals = dataclasses.field(default_factory=TokenTotals)
    children: dict[str, str | None] = dataclasses.field(default_factory=dict)
    after: dict[str, str] = dataclasses.field(default_factory=dict)
    model: str | None = None
    digest: str | None = None
    over_at: int = 0
    ended: bool = False


SHAPE = shape_of(
    1,
    *(ChatState, ChatNotes, ChatStream, ShownBlock, ShownCall),
    *(Pauses, ShownRequest, InputBatches, InputBatch, PendingInput, SaidMessages),
    *(WaitingFrames, WaitingFrame, TokenTotals),
)
"""The number of all these fields."""
