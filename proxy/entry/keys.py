"""What the parts of the application find in it, by typed key."""

from __future__ import annotations

from aiohttp import web

from proxy.base.repeats import Submission
from proxy.sessions.sessions import Sessions

SESSIONS = web.AppKey("sessions", Sessions)
LISTENER_ROUTE = web.AppKey("listener_route", str)
"""The route of a listener, whose paths do not name one."""

LISTENER_FACE = web.AppKey("listener_face", str)
"""The dialect of a listener."""

INTERNAL = web.AppKey("internal", bool)
"""Whether an application is for the processes that share the journal."""

STARTED = web.RequestKey("started", bool)
"""Whether the head of an answer is on its way: from then on no other process can answer."""

FACE = "face"
"""The attribute of a handler that names the dialect of its face."""

SHOWN_IN = web.RequestKey("SHOWN_IN", str)
"""The header in which the answer to a request names it, where its dialect has one."""

SUBMISSION = web.RequestKey("submission", Submission)
"""What identifies a request that gives commands, whose repeats are to be recognised."""
