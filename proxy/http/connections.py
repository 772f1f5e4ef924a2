"""How connections are served, on every listener.

Slow heads and clients that read nothing are the business of the reverse proxy in front: see
`docs/security.md`.
"""

from __future__ import annotations

from aiohttp import web

LINGERING_SECONDS = 5.0
"""How long what a client still sends of a refused body is read and thrown away, so that it gets to
reading the answer; a connection that is closed before that loses the answer with it. nginx waits
as long."""


def runner_of(app: web.Application, *, grace: float) -> web.AppRunner:
    """Return what serves an application of ours; `grace` is how long its handlers get to end."""
    # aiohttp's own is an hour, in which thousands may gather.
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=grace,
        keepalive_timeout=75.0,
        lingering_time=LINGERING_SECONDS,
        # A body with a content coding is refused, and never unpacked.
        auto_decompress=False,
    )
