"""What a face is made of: the routes in which a dialect is served to frontends, as data.

A dialect's `routes` module has one `Face`. Each of its `Route`s says which requests it takes, who
may ask, and what it does: one of the acts below. An act is made of pure functions, of values that
come in to a value that goes out. `proxy.faces` does the rest, for every dialect alike: it
authorizes, reads bodies within their limits, finds or makes the session, keeps equal requests in
order, knows repeats, submits, streams, resumes, and answers errors in the dialect's form.

| act | a request |
|---|---|
| `Tell` | is answered from what is known of the route, without a session |
| `Say` | gives commands to a session, which it may make, and is answered when they are accepted |
| `Follow` | reads the frames of a session, from a position on |
| `ReadLog` | is answered with something made of the log of a session |
| `ListSessions` | is answered with a page of the sessions of a key |
| `Waiting` | is answered with what all sessions of a key wait for |
| `PassOn` | goes to a backend as it is: the hook of dialects whose backends are called back |

What a function raises of `DragomanError` is answered by `Face.refuse`.
"""

from __future__ import annotations

from adapters.contract.faces.acts import (
    Act,
    Action,
    Body,
    Example,
    Face,
    Failure,
    Follow,
    ListSessions,
    Open,
    PassOn,
    ReadLog,
    Route,
    SaidT,
    Say,
    Size,
    Tell,
    TurnBody,
    Waiting,
)
from adapters.contract.faces.given import Backend, EncoderT, Incoming, Place, Seen, Told
from adapters.contract.faces.neighbours import Neighbour
from adapters.contract.faces.returned import (
    AnyOf,
    Child,
    Chosen,
    Done,
    Listed,
    LogReader,
    Named,
    New,
    Newest,
    Opening,
    Reading,
    SessionsPage,
    Target,
    That,
)

__all__ = [
    "Act",
    "Action",
    "AnyOf",
    "Backend",
    "Body",
    "Child",
    "Chosen",
    "Done",
    "EncoderT",
    "Example",
    "Face",
    "Failure",
    "Follow",
    "Incoming",
    "ListSessions",
    "Listed",
    "LogReader",
    "Named",
    "Neighbour",
    "New",
    "Newest",
    "Open",
    "Opening",
    "PassOn",
    "Place",
    "ReadLog",
    "Reading",
    "Route",
    "SaidT",
    "Say",
    "Seen",
    "SessionsPage",
    "Size",
    "Target",
    "Tell",
    "That",
    "Told",
    "TurnBody",
    "Waiting",
]
