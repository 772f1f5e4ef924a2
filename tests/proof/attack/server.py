"""The server under attack: its configuration, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.proof.attack.wire import Answer, ask
from tests.proof.process import Dragoman
from tests.support.ports import HOST, free_port

__all__ = ["HANG_S", "PATIENCE_S", "Server", "Watch"]

SAMPLE_S = 0.25
"""How often the process is looked at: its memory, and whether it still answers others."""

HANG_S = 120.0
"""What takes longer is a hang; that of `/healthz` is one of everybody. It tells nothing of speed: a
machine that does much else, or is slow, takes half a minute for what is far over a limit."""

PATIENCE_S = 240.0
"""When nobody waits for an answer any more."""


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
        self._process = Dragoman(config, self._log)

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
        answer = await self.ask("\r\n".join([*lines, "", ""]).encode() + data, PATIENCE_S)
        assert 200 <= answer.status < 300, (method, path, answer)
        return json.loads(answer.body)

    def judge(self, counts: Counter[str], wrong: list[str]) -> None:
        """Add what it says of itself: errors in its log."""
        errors = self.errors()
        counts["errors logged"] += len(errors)
        wrong += [f"logged: {line}" for line in errors[:20]]

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
        self._over = threading.Event()

    async def __aenter__(self) -> Watch:
        self._looking = asyncio.ensure_future(asyncio.to_thread(self._look))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._looking

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
            connection = http.client.HTTPConnection(HOST, self._server.port, timeout=PATIENCE_S)
            try:
                connection.request("GET", "/healthz")
                fine = connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                fine = False
            finally:
                connection.close()
            took = time.monotonic() - begun
            self.slowest = max(self.slowest, took)
            if not fine or took > HANG_S:
                self.hangs += 1


def tables(backends: Iterable[Mapping[str, str]], keys: Iterable[str] = ()) -> str:
    """Return `[[backends]]` and `[[keys]]` as TOML; values are TOML already."""
    text = ""
    for backend in backends:
        text += "\n[[backends]]\n" + "".join(f"{name} = {v}\n" for name, v in backend.items())
    return text + "".join(f"\n[[keys]]\n{lines}\n" for lines in keys)
