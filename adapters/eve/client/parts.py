"""The parts below the readers of records: each knows only those that it is given."""

from __future__ import annotations

import dataclasses

from adapters.eve.client.cancellation import Cancellation
from adapters.eve.client.child_index import ChildIndex
from adapters.eve.client.cursors import StreamCursors
from adapters.eve.client.first_message import FirstMessageSender
from adapters.eve.client.input_requests import InputRequests
from adapters.eve.client.inputs import EveInputs
from adapters.eve.client.pending_calls import PendingCalls
from adapters.eve.client.posts import EvePosts
from adapters.eve.client.resolution import RequestResolution
from adapters.eve.client.retries import EveRetries
from adapters.eve.client.server_profile import ServerProfile
from adapters.eve.client.state import ConnectionState, EveClientState
from adapters.eve.client.text_blocks import TextBlocks
from adapters.eve.client.timers import ThreadTimers
from adapters.eve.client.turns import EveTurns


@dataclasses.dataclass(slots=True)
class EveParts:
    """What the parts above share: the state, and the parts that look after a piece of it."""

    state: EveClientState
    connection: ConnectionState = dataclasses.field(default_factory=ConnectionState)
    cursors: StreamCursors = dataclasses.field(default_factory=StreamCursors)
    server: ServerProfile = dataclasses.field(init=False)
    posts: EvePosts = dataclasses.field(init=False)
    timers: ThreadTimers = dataclasses.field(init=False)
    child_index: ChildIndex = dataclasses.field(init=False)
    requests: InputRequests = dataclasses.field(init=False)
    calls: PendingCalls = dataclasses.field(init=False)
    retries: EveRetries = dataclasses.field(init=False)
    inputs: EveInputs = dataclasses.field(init=False)
    cancellation: Cancellation = dataclasses.field(init=False)
    first_message: FirstMessageSender = dataclasses.field(init=False)
    resolution: RequestResolution = dataclasses.field(init=False)
    turns: EveTurns = dataclasses.field(init=False)
    text_blocks: TextBlocks = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        state, connection, cursors = self.state, self.connection, self.cursors
        self.server = server = ServerProfile(state)
        self.posts = posts = EvePosts(state)
        self.timers = ThreadTimers(state)
        self.child_index = ChildIndex(state)
        self.requests = requests = InputRequests(state)
        self.calls = calls = PendingCalls(state, self.timers)
        self.retries = EveRetries(state, server, posts)
        self.inputs = inputs = EveInputs(state, connection, requests)
        self.cancellation = Cancellation(state, connection, posts, requests)
        self.first_message = FirstMessageSender(state, connection, server, cursors, posts, inputs)
        self.resolution = RequestResolution(
            state, server, requests, calls, inputs, self.cancellation
        )
        self.turns = EveTurns(state, cursors, calls)
        self.text_blocks = TextBlocks(cursors, self.turns)

    def index(self) -> None:
        """Find again what is looked for with each record: nothing looks through all threads or all
        requests for it."""
        for part in (self.child_index, self.calls, self.requests, self.timers):
            part.index()
