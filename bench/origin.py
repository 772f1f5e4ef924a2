"""An origin that plays a September Engine just enough to load a proxy.

`POST /execute` answers a turn in the framing of the Engine page, sections 7 and 8. The message says
what to play: `bench: paced`, `bench: firehose count=25000`, `bench: one`, `bench: idle`. Paced and
firehose turns send their `started` and wait for `/bench/go`, so that opening streams and running
them are measured apart. One pacer serves all paced turns in rotation, so that their phases are
even; the rate can change while it runs. A bare asyncio protocol instead of aiohttp: the origin
shares a core with the load generator, and must not be what is measured.

Control: `/bench/go?rate=EVENTS_PER_SECOND` (over all turns), `/bench/rate?rate=…`, `/bench/state`,
`/bench/stop` (ends all turns). The answers are JSON with `waiting`, `running` and `sent`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator
from typing import cast
from urllib.parse import parse_qs, urlsplit

import uvloop

from bench.wire import STAMP_DIGITS

BLOCK_DELTAS = 25
"""Deltas in one text block, about 4 kB: the length of a long answer."""
EVENT_SIZES = (150, 250)
"""Bytes of one delta event on the wire, smallest and largest: as in real Engine traffic."""
_PUMP_EVENTS = 64
"""Events that a firehose turn writes before the others get their turn."""
_PACER_TICK = 0.001
"""Seconds between two looks at the clock: the resolution of the event loop's timers."""
_LONGEST_LAG = 0.25
"""Seconds that the pacer may catch up; what is later than that is not sent at all."""
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_WORDS = (
    "the survey of the north tower shows that its height has not changed since the spring although "
    "the stones of the upper gallery have moved by a hand and the stair needs a new rail before "
    "anyone may climb it again and the report asks for two more weeks of dry weather to finish "
)


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _event(name: str, data: dict[str, object]) -> bytes:
    body = json.dumps(data, separators=(",", ":"))
    return f"event: {name}\ndata: {body}\n\n".encode()


def _delta_templates() -> list[tuple[bytes, bytes]]:
    """Give what stands before and after the digits of a stamp, for every size of event."""
    templates = []
    low, high = EVENT_SIZES
    for number, size in enumerate(range(low, high + 1, 4)):
        bare = len(_event("text_delta", {"text": "~"})) + STAMP_DIGITS
        start = (number * 37) % len(_WORDS)
        text = (" " + _WORDS[start:] + _WORDS)[: size - bare].rstrip().ljust(size - bare, ".")
        marked = _chunk(_event("text_delta", {"text": "~" + "0" * STAMP_DIGITS + text}))
        before, after = marked.split(b"0" * STAMP_DIGITS)
        templates.append((before, after))
    return templates


_DELTAS = _delta_templates()


class Turn:
    """One turn that is being played to one connection."""

    def __init__(self, connection: Connection, task_id: str, count: int, number: int = 0) -> None:
        self.connection = connection
        self.task_id = task_id
        self.left = count
        self.sent = 0
        self.firehose = False
        self._last_stamp = 0
        self._block = 0
        # Blocks of different turns end at different times, as those of people do: a load that
        # comes by a tenth at once would measure that.
        self._left_in_block = BLOCK_DELTAS - number * 7 % BLOCK_DELTAS
        self._templates: Iterator[tuple[bytes, bytes]] = itertools.cycle(_DELTAS)

    def begin(self) -> None:
        """Send the head, the start of the turn and the start of its first block."""
        self.connection.write(
            _HEAD + _chunk(self._lifecycle("started")) + _chunk(self._boundary("start"))
        )

    def delta(self, now: int) -> bytes:
        """Give the next delta with the stamp `now` (ns), and the block's end when it is full."""
        self._last_stamp = stamp = max(now, self._last_stamp + 1)
        self.sent += 1
        self.left -= 1
        before, after = next(self._templates)
        data = b"%b%016x%b" % (before, stamp, after)
        self._left_in_block -= 1
        if not self._left_in_block and self.left:
            data += self._next_block()
        return data

    def end(self) -> None:
        """Close the block and the turn, and end the body."""
        self.connection.write(
            _chunk(self._boundary("stop"))
            + _chunk(self._usage())
            + _chunk(self._lifecycle("completed"))
            + b"0\r\n\r\n"
        )
        self.connection.turn = None

    def pump(self) -> None:
        """Write deltas as fast as the peer takes them, until nothing is left."""
        if self.connection.turn is not self or self.connection.paused:
            return
        # One stamp for all: a firehose measures a rate, and a clock call per event costs the core.
        now = time.monotonic_ns()
        self.connection.write(
            b"".join([self.delta(now) for _ in range(min(self.left, _PUMP_EVENTS))])
        )
        if not self.left:
            self.end()
        elif not self.connection.paused:
            asyncio.get_running_loop().call_soon(self.pump)

    def _lifecycle(self, phase: str) -> bytes:
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        data: dict[str, object] = {"phase": phase, "task_id": self.task_id, "timestamp": at}
        return _event("thread_lifecycle", data)

    def _boundary(self, edge: str) -> bytes:
        return _event(f"content_block_{edge}", {"block_index": self._block, "block_type": "text"})

    def _usage(self) -> bytes:
        return _event("usage", {"input_tokens": 600, "output_tokens": 1500, "cache_hit_tokens": 0})

    def _next_block(self) -> bytes:
        stop = self._boundary("stop")
        self._block += 1
        self._left_in_block = BLOCK_DELTAS
        return _chunk(stop) + _chunk(self._usage()) + _chunk(self._boundary("start"))


class Origin:
    """All turns of this process, and the pacer that feeds them."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.waiting: list[tuple[str, Turn]] = []
        self.turns: list[Turn] = []
        self._paced: list[Turn] = []
        self._rate = 0.0
        self._next = 0
        self._due_from = 0.0
        self._given = 0
        self._timer: asyncio.TimerHandle | None = None

    def execute(self, connection: Connection, body: bytes) -> None:
        """Begin the turn that the request asks for."""
        request = json.loads(body)
        words = str(request["message"]).removeprefix("bench:").split()
        kind = words[0] if words else "one"
        options = dict(word.split("=", 1) for word in words[1:])
        turn = Turn(
            connection,
            str(request["task_id"]),
            int(options.get("count", 10**9)),
            next(self._numbers),
        )
        connection.turn = turn
        self.turns.append(turn)
        turn.begin()
        if kind in ("paced", "firehose"):
            self.waiting.append((kind, turn))
            return
        connection.write(turn.delta(time.monotonic_ns()))
        if kind == "one":
            turn.end()

    def go(self, rate: float) -> None:
        """Start every waiting turn; the paced ones share `rate` events per second."""
        for kind, turn in self.waiting:
            if kind == "firehose":
                turn.firehose = True
                turn.pump()
            else:
                self._paced.append(turn)
        self.waiting.clear()
        self.set_rate(rate)
        if self._paced and self._timer is None:
            self._pace()

    def set_rate(self, rate: float) -> None:
        """Change the rate of all paced turns together, in events per second."""
        self._rate = rate
        self._due_from = time.monotonic()
        self._given = 0

    def stop(self) -> dict[str, int]:
        """End all turns and forget them; give what they had sent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        state = self.state()
        for turn in self.turns:
            if turn.connection.turn is turn:
                turn.end()
        self.turns.clear()
        self.waiting.clear()
        self._paced.clear()
        return state

    def state(self) -> dict[str, int]:
        """Give how many turns wait and run, and how many deltas they have sent."""
        running = sum(turn.connection.turn is turn for turn in self.turns)
        sent = sum(turn.sent for turn in self.turns)
        return {"waiting": len(self.waiting), "running": running, "sent": sent}

    def _pace(self) -> None:
        now = time.monotonic()
        due = int((now - self._due_from) * self._rate)
        if due - self._given > self._rate * _LONGEST_LAG:
            self._due_from, self._given, due = now, 0, 0
        for _ in range(due - self._given):
            turn = self._paced[self._next % len(self._paced)]
            self._next += 1
            if turn.connection.turn is turn:
                turn.connection.write(turn.delta(time.monotonic_ns()))
        self._given = due
        self._timer = asyncio.get_running_loop().call_later(_PACER_TICK, self._pace)


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection from a proxy or from the load generator."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._transport: asyncio.Transport | None = None
        self._held = b""
        self.turn: Turn | None = None
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        # A cast, because uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the turn that was played here."""
        self._transport = None
        self.turn = None

    def pause_writing(self) -> None:
        """Note that the peer does not keep up."""
        self.paused = True

    def resume_writing(self) -> None:
        """Go on with a firehose; paced turns never stopped."""
        self.paused = False
        if self.turn is not None and self.turn.firehose:
            self.turn.pump()

    def data_received(self, data: bytes) -> None:
        """Answer every whole request in what has arrived."""
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            head, *fields = self._held[:end].split(b"\r\n")
            length = 0
            for field in fields:
                name, _, value = field.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if len(self._held) < end + 4 + length:
                return
            body = self._held[end + 4 : end + 4 + length]
            self._held = self._held[end + 4 + length :]
            method, target, _ = head.decode("ascii").split(" ", 2)
            self._answer(method, target, body)

    def write(self, data: bytes) -> None:
        """Write raw bytes, unless the peer has gone."""
        if self._transport is not None:
            self._transport.write(data)

    def _answer(self, method: str, target: str, body: bytes) -> None:
        url = urlsplit(target)
        rate = float(parse_qs(url.query).get("rate", ["0"])[0])
        match method, url.path:
            case "POST", "/execute":
                self._origin.execute(self, body)
            case "POST", "/bench/go":
                self._origin.go(rate)
                self._json(self._origin.state())
            case "POST", "/bench/rate":
                self._origin.set_rate(rate)
                self._json(self._origin.state())
            case "POST", "/bench/stop":
                self._json(self._origin.stop())
            case "GET", "/bench/state":
                self._json(self._origin.state())
            case "GET", "/health":
                self._json({"status": "ok", "uptime_seconds": 1.0, "subsystems": {}})
            case "GET", "/hitl/pending":
                self._json({"pending": []})
            case "GET", "/execute/replay":
                self.write(_HEAD + b"0\r\n\r\n")
            case _:
                self._json(
                    {"error": "NOT_FOUND", "message": f"no route {url.path}"}, "404 Not Found"
                )

    def _json(self, value: object, status: str = "200 OK") -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
        self.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def _serve(port: int) -> None:
    origin = Origin()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(origin), "127.0.0.1", port, backlog=4096)
    sys.stdout.write(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(prog="bench.origin", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
