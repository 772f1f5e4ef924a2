"""The server under attack: its configuration, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from proxy.turns import BOUND
from tests.proof.attack.wire import Answer, ask
from tests.proof.process import Dragoman
from tests.support.ports import HOST, free_port

__all__ = ["Server", "Watch"]

SAMPLE_S = 0.25
"""How often the process is looked at: its memory, and whether it still answers others."""

PROBE_S = 1.0
"""How long `/healthz` may take, whatever else is asked; a hang of everybody."""


LAG_EVERY_S = 0.02
"""How often the attackers' own loop is looked at."""


class Server:
    """A `dragoman serve` of its own.

    Args:
        folder: for configuration, journal and log.
        tables: the configuration but for its port and journal, as lines of TOML.
        server: further lines of `[server]`.
    """

    def __init__(self, folder: Path, tables: str, server: str = "") -> None:
        self.port = free_port()
        self._log = folder / "log.jsonl"
        config = folder / "dragoman.toml"
        config.write_text(
            f'[server]\nlisten = "{HOST}:{self.port}"\n{server}\n'
            f'[journal]\nurl = "sqlite:///{folder / "journal.db"}"\n{tables}'
        )
        # The turns of asyncio's own loop are measured exactly, those of uvloop are not.
        without = folder / "without"
        without.mkdir(exist_ok=True)
        (without / "uvloop.py").write_text('raise ImportError("measured without it")\n')
        paths = [str(without), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = Dragoman(config, self._log, {"PYTHONPATH": os.pathsep.join(paths)})

    async def __aenter__(self) -> Server:
        await self._process.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._process.close()

    def memory(self) -> int:
        """Return the bytes of memory that it holds."""
        return self._process.memory()

    async def ask(self, data: bytes, patience: float) -> Answer:
        """Send it a request as bytes."""
        return await ask(HOST, self.port, data, patience)

    async def call(self, method: str, path: str, key: str | None, body: Any = None) -> Any:
        """Ask as a client in order, and return the JSON of the answer."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", f"Content-Length: {len(data)}"]
        if key is not None:
            lines.append(f"Authorization: Bearer {key}")
        answer = await self.ask("\r\n".join([*lines, "", ""]).encode() + data, 20.0)
        assert 200 <= answer.status < 300, (method, path, answer)
        return json.loads(answer.body)

    async def metrics(self, key: str | None) -> Mapping[str, float]:
        """Return its numbers, those with labels under their whole name."""
        token = f"Authorization: Bearer {key}\r\n" if key else ""
        head = f"GET /metrics HTTP/1.1\r\nHost: {HOST}\r\n{token}\r\n"
        answer = await self.ask(head.encode(), 20.0)
        lines = re.findall(r"^([a-z]\S*) (\S+)$", answer.body.decode(), re.MULTILINE)
        return {name: float(value) for name, value in lines}

    async def judge(self, counts: Counter[str], wrong: list[str], key: str | None) -> None:
        """Add what it says of itself: errors in its log, turns of its loop that were too long."""
        errors = self.errors()
        counts["errors logged"] += len(errors)
        wrong += [f"logged: {line}" for line in errors[:20]]
        metrics = await self.metrics(key)
        name = "dragoman_loop_turn_seconds_bucket"
        over = metrics[f'{name}{{le="+Inf"}}'] - metrics[f'{name}{{le="{BOUND}"}}']
        longest = metrics["dragoman_loop_turn_longest_seconds"]
        counts["turns over"] += int(over)
        counts["longest turn, ms"] = round(longest * 1000)
        if over:
            wrong.append(f"{over:.0f} turns over {BOUND} s, the longest {longest:.3f} s")

    def errors(self) -> list[str]:
        """Return what it has logged as errors."""
        found = []
        for line in self._log.read_text(errors="replace").splitlines():
            try:
                level = json.loads(line)["level"]
            except (ValueError, KeyError, TypeError):
                # What Python writes by itself, such as a traceback.
                level = "error"
            if level in ("error", "critical"):
                found.append(line[:600])
        return found


class Watch:
    """Looks at a server while it is attacked, from a thread: what the attackers do in their own
    loop must not look like the server's delay.

    Args:
        server: which one.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.peak = self.begun_with = server.memory()
        self.hangs = 0
        self.slowest = 0.0
        self.lag = 0.0
        """Seconds by which the attackers' own loop was late, in all."""
        self._over = threading.Event()
        self._tasks: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Watch:
        self._tasks = [
            asyncio.ensure_future(asyncio.to_thread(self._look)),
            asyncio.ensure_future(self._hear_lag()),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        looking, hearing = self._tasks
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
        await looking

    def judge(self, counts: Counter[str], wrong: list[str], memory: int) -> None:
        """Add what was seen; `memory` is how many bytes it may have grown by."""
        counts["hangs of everybody"] += self.hangs
        counts["slowest probe, ms"] = round(self.slowest * 1000)
        counts["memory at most, MiB"] = self.peak >> 20
        if self.hangs:
            wrong.append(f"/healthz took {self.slowest:.1f} s at most")
        if self.peak > self.begun_with + memory:
            counts["memory over"] += 1
            wrong.append(f"memory: {self.begun_with >> 20} to {self.peak >> 20} MiB")

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.peak = max(self.peak, self._server.memory())
            begun = time.monotonic()
            connection = http.client.HTTPConnection(HOST, self._server.port, timeout=30)
            try:
                connection.request("GET", "/healthz")
                fine = connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                fine = False
            finally:
                connection.close()
            took = time.monotonic() - begun
            self.slowest = max(self.slowest, took)
            if not fine or took > PROBE_S:
                self.hangs += 1

    async def _hear_lag(self) -> None:
        while True:
            begun = time.monotonic()
            await asyncio.sleep(LAG_EVERY_S)
            self.lag += max(time.monotonic() - begun - LAG_EVERY_S, 0.0)


def tables(backends: Iterable[Mapping[str, str]], keys: Iterable[str] = ()) -> str:
    """Return `[[backends]]` and `[[keys]]` as TOML; values are TOML already."""
    text = ""
    for backend in backends:
        text += "\n[[backends]]\n" + "".join(f"{name} = {v}\n" for name, v in backend.items())
    return text + "".join(f"\n[[keys]]\n{lines}\n" for lines in keys)
