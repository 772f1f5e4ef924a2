"""The floor: the least that translates, and keeps what it translates before anybody sees it.

An Engine's stream in, eve's records out, like the road that is measured through Dragoman: split the
SSE, `orjson` in and out, with `--journal` the same group commit to SQLite, then straight to the
transport. No model, no session, no cursor, no resume: what Dragoman costs above this is what it
gives above this.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import orjson
import uvloop
from aiohttp import web

from bench.serving import CLIENT, ORIGIN, serve

_WINDOW_SECONDS = 0.001
"""Two commits begin at least so far apart, as Dragoman's do."""

Line = tuple[Callable[[bytes], object], bytes]
"""Who writes it once it is kept, and the bytes."""


def _write(lines: list[Line]) -> None:
    for write, line in lines:
        write(line)


def _at_once(line: Line) -> None:
    _write([line])


class Journal:
    """Commits lines in a thread: what came while a commit ran goes into the next one, and one
    wake-up of the loop writes all of it."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: list[Line] = []
        self._more = threading.Condition()
        self._path = path
        threading.Thread(target=self._run, daemon=True).start()

    def append(self, line: Line) -> None:
        """Keep a line, then write it."""
        with self._more:
            self._lines.append(line)
            self._more.notify()

    def _run(self) -> None:
        database = apsw.Connection(str(self._path))
        database.execute("pragma journal_mode = wal; pragma synchronous = full")
        database.execute("create table log (number integer primary key, line blob)")
        while True:
            with self._more:
                self._more.wait_for(lambda: self._lines)
                lines, self._lines = self._lines, []
            begun = time.monotonic()
            with database:
                database.executemany(
                    "insert into log(line) values (?)", ((line,) for _, line in lines)
                )
            self._loop.call_soon_threadsafe(_write, lines)
            time.sleep(max(0.0, begun + _WINDOW_SECONDS - time.monotonic()))


class Translator:
    """One turn: the frames of an Engine's stream become the records of an eve's."""

    def __init__(self) -> None:
        self._tail = b""
        self._text = ""

    def feed(self, data: bytes) -> bytes:
        """Take a piece in, and return the lines of what is whole."""
        *frames, self._tail = (self._tail + data).split(b"\n\n")
        return b"".join([orjson.dumps(self._record(frame)) + b"\n" for frame in frames])

    def _record(self, frame: bytes) -> dict[str, Any]:
        head, _, body = frame.partition(b"\ndata: ")
        data = orjson.loads(body)
        name = head[7:].decode()
        match name:
            case "text_delta":
                self._text += data["text"]
                delta = {"messageDelta": data["text"], "messageSoFar": self._text}
                return {"type": "message.appended", "data": delta}
            case "content_block_stop":
                text, self._text = self._text, ""
                return {"type": "message.completed", "data": {"message": text}}
            case _:
                return {"type": name, "data": data}


async def _execute(request: web.Request) -> web.StreamResponse:
    app, journal = request.app, request.app.get(_JOURNAL)
    headers = {"Content-Type": "application/json"}
    url = app[ORIGIN] + "/execute"
    async with app[CLIENT].post(url, data=await request.read(), headers=headers) as upstream:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        # The head goes before what is written past the response.
        await response.write(b"\n")
        transport, translator = request.transport, Translator()
        assert transport is not None
        keep = _at_once if journal is None else journal.append
        async for piece in upstream.content.iter_any():
            if lines := translator.feed(piece):
                keep((transport.write, b"%x\r\n%b\r\n" % (len(lines), lines)))
        kept = asyncio.get_running_loop().create_future()
        keep((kept.set_result, b""))
        await kept
        await response.write_eof()
        return response


_JOURNAL = web.AppKey("journal", Journal)


async def _serve(port: int, origin: str, journal: Path | None) -> None:
    app = web.Application()
    if journal is not None:
        app[_JOURNAL] = Journal(journal)
    await serve(_execute, port, origin, app)


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(prog="bench.floor", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--origin", required=True, help="base URL of the origin")
    parser.add_argument("--journal", type=Path, help="where to keep it; nowhere by default")
    options = parser.parse_args()
    uvloop.run(_serve(options.port, options.origin, options.journal))


if __name__ == "__main__":
    main()
