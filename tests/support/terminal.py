"""Runs the real `dragoman` on a pseudo terminal, and gives what a person sees there."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import SOON_S

__all__ = ["COLUMNS", "Shown", "run_in_terminal"]

REPOSITORY = Path(__file__).parent.parent.parent
COLUMNS = 80
ROWS = 24

_START = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "dragoman", *sys.argv[1:]])
"""
"""Takes the terminal first, so that it is asked for secrets there, and ^C is heard."""

_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Shown:
    """What stood on the terminal, stdout and stderr, without colours, and the exit status."""

    status: int
    text: str

    @property
    def lines(self) -> list[str]:
        """The lines as they were written; the terminal would break those that are too long."""
        return [line.rstrip() for line in self.text.splitlines()]


async def run_in_terminal(
    arguments: Sequence[str],
    *,
    columns: int = COLUMNS,
    env: Mapping[str, str] | None = None,
    input: bytes = b"",
    once: bytes = b"",
    cwd: Path = REPOSITORY,
) -> Shown:
    """Run `dragoman` with these arguments until it ends.

    Args:
        arguments: what follows `dragoman`.
        columns: how wide the terminal is.
        env: further variables; those of Dragoman and of colours are not set otherwise.
        input: what is typed once it has said something. `b"\\x03"` is ^C.
        once: what it must have said by then: what is typed before a question stands above it.
        cwd: the folder it runs in.
    """
    left = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "DRAGOMAN_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left)}
    whole = {**kept, "TERM": "xterm", "PYTHONPATH": str(REPOSITORY), **(env or {})}
    return await asyncio.to_thread(_run, arguments, columns, whole, input, once, cwd)


def _run(
    arguments: Sequence[str],
    columns: int,
    env: Mapping[str, str],
    typed: bytes,
    once: bytes,
    cwd: Path,
) -> Shown:
    ours, its = pty.openpty()
    try:
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        # ^C would throw away what is written and not read yet.
        modes = termios.tcgetattr(its)
        modes[3] |= termios.NOFLSH
        termios.tcsetattr(its, termios.TCSANOW, modes)
        with subprocess.Popen(
            [sys.executable, "-I", "-c", _START, *arguments],
            stdin=its,
            stdout=its,
            stderr=its,
            cwd=cwd,
            env=env,
            start_new_session=True,
        ) as process:
            os.close(its)
            its = -1
            try:
                written = _read(ours, typed, once)
                status = process.wait(SOON_S)
            finally:
                process.kill()
    finally:
        os.close(ours)
        if its >= 0:
            os.close(its)
    return Shown(status, _STYLE.sub("", written.decode()).replace("\r\n", "\n"))


def _read(terminal: int, typed: bytes, once: bytes) -> bytes:
    """Return all that is written, until nobody has the terminal any more."""
    written = b""
    until = time.monotonic() + SOON_S
    while True:
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise TimeoutError(f"it does not end; it has written: {written!r}")
        try:
            data = os.read(terminal, 65536)
        except OSError:  # EIO: the other end is closed.
            return written
        if not data:
            return written
        written += data
        if typed and once in written:
            os.write(terminal, typed)
            typed = b""
