"""The parts below the readers of records: each knows only those that it is given."""

from __future__ import annotations

import dataclasses

from adapters.eve.client.asks import Asks
from adapters.eve.client.blocks import Blocks
from adapters.eve.client.dues import Dues
from adapters.eve.client.first import First
from adapters.eve.client.holding import Holding
from adapters.eve.client.inputs import Inputs
from adapters.eve.client.members import Members
from adapters.eve.client.places import Places
from adapters.eve.client.posts import Posts
from adapters.eve.client.records import Live, State
from adapters.eve.client.resolving import Resolving
from adapters.eve.client.retries import Retries
from adapters.eve.client.server import Server
from adapters.eve.client.stopping import Stopping
from adapters.eve.client.turns import Turns


@dataclasses.dataclass(slots=True)
class EveParts:
    """What the parts above share: the state, and the parts that look after a piece of it."""

    state: State
    connection: Live = dataclasses.field(default_factory=Live)
    cursors: Places = dataclasses.field(default_factory=Places)
    server: Server = dataclasses.field(init=False)
    posts: Posts = dataclasses.field(init=False)
    timers: Dues = dataclasses.field(init=False)
    child_index: Members = dataclasses.field(init=False)
    requests: Asks = dataclasses.field(init=False)
    calls: Holding = dataclasses.field(init=False)
    retries: Retries = dataclasses.field(init=False)
    inputs: Inputs = dataclasses.field(init=False)
    cancellation: Stopping = dataclasses.field(init=False)
    first_message: First = dataclasses.field(init=False)
    resolution: Resolving = dataclasses.field(init=False)
    turns: Turns = dataclasses.field(init=False)
    text_blocks: Blocks = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        state, connection, cursors = self.state, self.connection, self.cursors
        self.server = server = Server(state)
        self.posts = posts = Posts(state)
        self.timers = Dues(state)
        self.child_index = Members(state)
        self.requests = requests = Asks(state)
        self.calls = calls = Holding(state, self.timers)
        self.retries = Retries(state, server, posts)
        self.inputs = inputs = Inputs(state, connection, requests)
        self.cancellation = Stopping(state, connection, posts, requests)
        self.first_message = First(state, connection, server, cursors, posts, inputs)
        self.resolution = Resolving(state, server, requests, calls, inputs, self.cancellation)
        self.turns = Turns(state, cursors, calls)
        self.text_blocks = Blocks(cursors, self.turns)

    def index(self) -> None:
        """Find again what is looked for with each record: nothing looks through all threads or all
        requests for it."""
        for part in (self.child_index, self.calls, self.requests, self.timers):
            part.index()
