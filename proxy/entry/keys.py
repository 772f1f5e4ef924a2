"""What the parts of the application find in it, by typed key."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from proxy.base.repeats import Submission
from proxy.config.settings import Settings
from proxy.http.auth import Key
from proxy.sessions.sessions import Sessions

SETTINGS = web.AppKey("settings", Settings)
SESSIONS = web.AppKey("sessions", Sessions)
KEYS: web.AppKey[Sequence[Key]] = web.AppKey("keys", tuple)
LISTENER_ROUTE = web.AppKey("listener_route", str)
"""The route of a listener, whose paths do not name one."""

SUBMISSION = web.RequestKey("submission", Submission)
"""What identifies a request that gives commands, whose repeats are to be recognised."""
