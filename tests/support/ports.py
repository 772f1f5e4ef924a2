"""Ports for servers that are told theirs: because they must come back to it, or cannot say it."""

from __future__ import annotations

import random
import socket

__all__ = ["HOST", "free_port"]

HOST = "127.0.0.1"

BELOW_EPHEMERAL = range(20_000, 32_000)
"""No system that the tests run on gives these to outgoing connections (Linux begins at 32,768,
others at 49,152). One of those could be taken between the look and the server's start, or while
the server is down."""


def free_port() -> int:
    """Return a port that was free a moment ago and that no outgoing connection takes."""
    while True:
        port = random.SystemRandom().choice(BELOW_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
