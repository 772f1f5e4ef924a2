"""What a face is made of: the routes in which a dialect is served to frontends, as data.

A dialect's `routes` module has one `Face`. Each of its `Route`s says which requests it takes, who
may ask, and what it does: one of the acts below. An act is made of pure functions, of values that
come in to a value that goes out. `proxy.faces` does the rest, for every dialect alike: it
authorizes, reads bodies within their limits, finds or makes the session, keeps equal requests in
order, knows repeats, submits, streams, resumes, and answers errors in the dialect's form.

| act | a request |
|---|---|
| `Static` | is answered from what is known of the route, without a session |
| `Submit` | gives commands to a session, perhaps a new one, and is answered once it has them |
| `Stream` | reads the frames of a session, from a position on |
| `History` | is answered with something made of the log of a session |
| `ListSessions` | is answered with a page of the sessions of a key |
| `Pending` | is answered with what all sessions of a key wait for |
| `Forward` | goes to a backend as it is: the hook of dialects whose backends are called back |

What a function raises of `DragomanError` is answered by `Face.refuse`.
"""

from __future__ import annotations

from adapters.contract.faces.acts import (
    Act,
    Action,
    Example,
    Face,
    Forward,
    History,
    ListSessions,
    Pending,
    PublicAccess,
    RequestBody,
    RequestFailure,
    Route,
    SaidT,
    Size,
    Static,
    Stream,
    Submit,
    TurnBody,
)
from adapters.contract.faces.inputs import (
    Backend,
    EncoderT,
    Incoming,
    RouteContext,
    SessionSummary,
    SessionView,
)
from adapters.contract.faces.neighbours import Neighbour
from adapters.contract.faces.outputs import (
    AnyOf,
    ChildThread,
    ClientNamedSession,
    FrameRange,
    FreshSession,
    ListedSession,
    LogReader,
    MatchingSession,
    NamedSession,
    NewestSession,
    Opening,
    SessionsPage,
    SubmitResult,
    Target,
)

__all__ = [
    "Act",
    "Action",
    "AnyOf",
    "Backend",
    "ChildThread",
    "ClientNamedSession",
    "EncoderT",
    "Example",
    "Face",
    "Forward",
    "FrameRange",
    "FreshSession",
    "History",
    "Incoming",
    "ListSessions",
    "ListedSession",
    "LogReader",
    "MatchingSession",
    "NamedSession",
    "Neighbour",
    "NewestSession",
    "Opening",
    "Pending",
    "PublicAccess",
    "RequestBody",
    "RequestFailure",
    "Route",
    "RouteContext",
    "SaidT",
    "SessionSummary",
    "SessionView",
    "SessionsPage",
    "Size",
    "Static",
    "Stream",
    "Submit",
    "SubmitResult",
    "Target",
    "TurnBody",
]
