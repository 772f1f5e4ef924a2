"""A line between two ends that breaks as networks do, from a seed.

`Line` listens, connects each connection through to its origin, and gives each a fate drawn from the
seed and the connection's number: cut after so many bytes of one direction, in the middle of
whatever is there (a head, a frame, a character), by a reset, an orderly close, a half-close or a
silence that ends in a reset; or let through, in small pieces or whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Literal

__all__ = ["Line"]

Kind = Literal["reset", "close", "half-close", "stall", "pieces", "whole"]

CUTS: tuple[Kind, ...] = ("reset", "close", "half-close", "stall")

STALL_S = 0.3
"""How long a stalled line is silent before it breaks: both ends still wait by then."""


@dataclass(frozen=True, slots=True)
class _Fate:
    kind: Kind
    answers: bool
    after: int


class Line:
    """One listening port in front of one origin.

    Args:
        port: the origin's port on this machine.
        seed: what the fates follow from.
        rate: the share of connections that break.
    """

    def __init__(self, port: int, seed: str, rate: float) -> None:
        self._origin = port
        self._seed = seed
        self._rate = rate
        self._number = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self.cuts: Counter[str] = Counter()
        self.port = 0
        self.calm = False

    async def __aenter__(self) -> Line:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections that are open, as when a cable is pulled out and put back."""
        for ends in self._open:
            self.cuts["at once"] += 1
            for end in ends:
                end.transport.abort()

    def _drawn(self) -> _Fate:
        self._number += 1
        source = random.Random(f"{self._seed}:{self._number}")
        if self.calm or source.random() >= self._rate:
            kind: Kind = "pieces" if source.random() < 0.2 else "whole"
            return _Fate(kind, True, 0)
        # Requests are short and mostly a head; answers are streams of some thousand bytes.
        answers = source.random() < 0.8
        after = int(source.paretovariate(0.7) * (150 if answers else 40)) % 6000
        return _Fate(source.choice(CUTS), answers, after)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        fate = self._drawn()
        try:
            there, away = await asyncio.open_connection("127.0.0.1", self._origin)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, away)
        self._open.add(ends)
        try:
            up = self._copy(reader, away, fate, ends, answers=False)
            down = self._copy(there, writer, fate, ends, answers=True)
            await asyncio.gather(up, down)
        except (OSError, asyncio.CancelledError):
            # Cancelled by `__aexit__` alone; asyncio's streams report a cancelled callback.
            for end in ends:
                end.transport.abort()
        finally:
            self._open.discard(ends)
            for end in ends:
                end.close()

    async def _copy(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        fate: _Fate,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        *,
        answers: bool,
    ) -> None:
        breaks = fate.kind in CUTS and fate.answers == answers
        passed = 0
        while data := await reader.read(65_536):
            if breaks and passed + len(data) > fate.after:
                writer.write(data[: fate.after - passed])
                with contextlib.suppress(OSError):
                    await writer.drain()
                await self._break(fate.kind, writer, ends)
                return
            passed += len(data)
            if fate.kind == "pieces":
                for start in range(0, len(data), 700):
                    writer.write(data[start : start + 700])
                    await asyncio.sleep(0)
            else:
                writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()

    async def _break(
        self,
        kind: Kind,
        writer: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        self.cuts[kind] += 1
        match kind:
            case "half-close":
                # One direction is over; the other stays until its end has noticed.
                with contextlib.suppress(OSError, RuntimeError):
                    writer.write_eof()
                await asyncio.sleep(STALL_S)
            case "stall":
                await asyncio.sleep(STALL_S)
            case "close":
                for end in ends:
                    end.close()
                return
        for end in ends:
            sock: socket.socket | None = end.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    # Zero seconds of lingering make the close a reset.
                    linger = struct.pack("ii", 1, 0)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            end.transport.abort()
