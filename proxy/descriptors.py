"""File descriptors: as many as the system allows, and a clear word when none is left.

What is open goes on without one. New connections wait in the kernel while asyncio's own loop tries
again each second; uvloop closes them at once, and says nothing. For that it has a spare descriptor;
if a thread gets hold of it, they wait, and uvloop tries again without a pause. So it is looked for
here, each second, and told in one line.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from collections.abc import Callable
from typing import Any

LOOK_SECONDS = 1.0
"""How often it is looked whether a descriptor is left: two system calls."""

TELL_SECONDS = 10.0
"""The least time between two lines that say the same."""

CALM_SECONDS = 2.0
"""How long descriptors must be left before it is said: longer than asyncio waits to try again."""

_MISSING = frozenset({errno.EMFILE, errno.ENFILE})

_log = logging.getLogger(__name__)


def raise_limit() -> int:
    """Let this process open as many files as the system allows, and return how many those are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return soft
    return hard


def watch(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Say in the log when no descriptor is left, and when there is one again; returns what ends
    that. What asyncio says each second of the same is left out.
    """
    before = loop.get_exception_handler()
    told = missed = -TELL_SECONDS
    missing = False
    timer: asyncio.TimerHandle

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _MISSING:
            tell()
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    def tell() -> None:
        nonlocal missing, missed, told
        missing = True
        missed = now = loop.time()
        if now - told >= TELL_SECONDS:
            told = now
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            _log.error(
                "no file descriptor is left (limit %d): new connections are not served until "
                "others close; raise the limit (`ulimit -n`, LimitNOFILE)",
                limit,
            )

    def look() -> None:
        nonlocal missing, timer
        timer = loop.call_later(LOOK_SECONDS, look)
        try:
            os.close(os.dup(2))
        except OSError as error:
            if error.errno in _MISSING:
                tell()
        else:
            # Those that waited may take all of them again: only a calm moment is one.
            if missing and loop.time() - missed >= CALM_SECONDS:
                missing = False
                _log.warning("there are file descriptors again")

    def end() -> None:
        timer.cancel()
        loop.set_exception_handler(before)

    timer = loop.call_later(LOOK_SECONDS, look)
    loop.set_exception_handler(handle)
    return end
