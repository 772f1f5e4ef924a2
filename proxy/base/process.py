"""What a server sets for its whole process."""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Keep the collector from looking at what is imported in this context, time and again: next to
    nothing of it is garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def set_up() -> None:
    """Let threads take over sooner, let the collector look less often and never at what is there
    before the first request, and allow as many open files as the system does."""
    # The journal's thread waits this long for a busy event loop to let go of the interpreter,
    # several times for each commit: with Python's own interval a commit could last longer than that
    # of the slowest disk. Shorter than this costs CPU.
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    # Events make no cycles: with CPython's own 700 the looking takes 5 % of a busy loop's time.
    gc.set_threshold(100_000, 20, 20)
    raise_limit()


def raise_limit() -> int:
    """Let this process open as many files as the system allows, and return how many those are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            return soft
    return hard
