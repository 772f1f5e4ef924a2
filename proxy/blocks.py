"""Large blocks of memory are mappings of their own, so that no turn of the event loop is long for
the growth of one.

The body of a file of 25 MB grows as it comes. glibc gives a large block a mapping of its own, which
grows without a copy, until one was freed: from then on, up to 32 MiB, blocks of that size stand on
the heap, where to grow is to copy. That takes 15 ms here, and 90 ms where the system has to find
the pages first. With a threshold that is set it stays as it was.

Other C libraries have no such threshold, and always give large blocks mappings of their own.
"""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["set_up"]

LARGE_BYTES = 4 * 1024 * 1024
"""Bytes from which a block is a mapping. Smaller ones are made often, and of pages that are there
already: a mapping's must be found by the system each time."""

_M_MMAP_THRESHOLD = -3
"""The parameter's number: `mallopt(3)`."""


def set_up() -> None:
    """Give each large block a mapping of its own."""
    # No such function, or no C library to ask for it.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
