"""Three processes that share a journal in PostgreSQL, nginx before them, and what befalls them.

nginx gives each request to the next process, whatever has the session of it. Each process has a
keeper that starts it again when it ends, as systemd does; between the processes there are lines
that break. Nothing here knows who took a session over, or how: PostgreSQL's own table says it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from tests.proof.backends import HOST
from tests.proof.commands import INPUT, Command, Session, commands_of
from tests.proof.lines import Line
from tests.proof.process import Dragoman, NotStarted
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, postgres_server

__all__ = ["Cluster", "ClusterLog", "broken_by_the_balancer"]

NODES = 3

PAUSE_S = 20.0
"""How long a process is paused: four of its leases."""

AWAY_S = 5.0
"""The longest time until a process that ended is started again."""

PACE_S = 1.5
"""The mean time between two faults; a process is taken only where another one works."""

LOOK_S = 0.1
"""How often it is looked who has the sessions."""

CUT_RATE = 0.05
"""The share of the connections between processes that break of themselves, at any byte."""

DECK = ("kill",) * 6 + ("pause",) * 2 + ("crash",) * 2 + ("cut",) * 5
"""What befalls them: fifteen faults have each kind, in an order that is drawn."""

_NGINX = """
{user}daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
worker_processes 1;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/nginx.body;
    proxy_temp_path {folder}/nginx.proxy;
    fastcgi_temp_path {folder}/nginx.fastcgi;
    uwsgi_temp_path {folder}/nginx.uwsgi;
    scgi_temp_path {folder}/nginx.scgi;
    upstream {upstream} {{ {servers} }}
    server {{
        listen {host}:{port};
        client_max_body_size 0;
        location / {{
            proxy_pass http://{upstream};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_buffering off;
            # The strict clients want to see a header that nginx takes for itself.
            proxy_pass_header X-Accel-Buffering;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""


async def broken_by_the_balancer(
    request: aiohttp.ClientRequest, handler: Callable[..., Awaitable[aiohttp.ClientResponse]]
) -> aiohttp.ClientResponse:
    """Take nginx's own pages for what they tell: that a connection broke. A middleware of aiohttp's
    client."""
    response = await handler(request)
    if response.status in (502, 504) and response.content_type == "text/html":
        response.close()
        raise aiohttp.ServerDisconnectedError(f"nginx says {response.status}")
    return response


@dataclass(slots=True, eq=False)
class _Node:
    """A process of the cluster; `works` while it listens and is not paused."""

    dragoman: Dragoman
    server: str
    advertise: str
    works: bool = False
    paused: bool = False


@dataclass(slots=True)
class _Waiting:
    """A session whose process is gone: since when and what that was. It is `disturbed` where
    PostgreSQL was away meanwhile."""

    since: float
    node: int
    disturbed: bool = False


@dataclass(slots=True)
class Cluster:
    """Processes behind nginx, and a server of PostgreSQL of their own.

    Args:
        folder: for all their files.
        seed: what the faults follow from.
        lines: whether there are lines between the processes, that break. Without them a process
            that is gone cannot be connected to; a line takes the connection, and breaks it.
    """

    folder: Path
    seed: str
    lines: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    takeovers: list[int] = field(default_factory=list)
    """The ms from the fault until another process had the session, of those that were at work."""
    disturbed: list[int] = field(default_factory=list)
    """The same, where PostgreSQL was restarted meanwhile: leases count from its start."""
    port: int = field(default_factory=free_port)
    up: asyncio.Event = field(default_factory=asyncio.Event)
    _nodes: list[_Node] = field(default_factory=list)
    _lines: list[Line] = field(default_factory=list)
    _source: random.Random = field(init=False)
    _deck: list[str] = field(default_factory=list)
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _pauses: set[asyncio.Task[None]] = field(default_factory=set)
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _postgres: PostgresServer = field(init=False)
    _journal: str = field(init=False)
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def executed(self) -> int:
        """How many of the starts were executed from the command line."""
        return sum(node.dragoman.executed for node in self._nodes)

    @property
    def log(self) -> ClusterLog:
        """The commands in the journal."""
        return ClusterLog(self._journal)

    async def start(self, configured: Callable[[int, str], str]) -> None:
        """Start it all; `configured` gives the file of a process by its port and the URL of its
        journal."""
        self._source = random.Random(self.seed)
        self._postgres = self._stack.enter_context(postgres_server())
        self._journal = self._postgres.new_url()
        secret = self.folder / "secret"
        secret.write_text(random.Random(f"{self.seed}:secret").randbytes(32).hex())
        for number in range(1, NODES + 1):
            port, internal = free_port(), free_port()
            advertise = f"http://{HOST}:{internal}"
            if self.lines:
                line = Line(internal, f"{self.seed}:{number}", CUT_RATE)
                await self._stack.enter_async_context(line)
                self._lines.append(line)
                advertise = f"http://{HOST}:{line.port}"
            file = self.folder / f"node-{number}.toml"
            file.write_text(
                configured(port, self._journal)
                + f"""
[cluster]
listen = "{HOST}:{internal}"
advertise = "{advertise}"
secret_file = "{secret}"
"""
            )
            dragoman = Dragoman(file, self.folder / f"node-{number}.jsonl")
            self._nodes.append(_Node(dragoman, f"{HOST}:{port}", advertise))
        self._tasks = [asyncio.create_task(self._keep(node)) for node in self._nodes]
        self._tasks.append(asyncio.create_task(self._watch()))
        await asyncio.gather(*(node.dragoman.up.wait() for node in self._nodes))
        await self._start_nginx()
        self.up.set()

    async def _start_nginx(self) -> None:
        program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            raise RuntimeError("there is no `nginx`: `apt-get install nginx`")
        file = self.folder / "nginx.conf"
        file.write_text(
            _NGINX.format(
                # As root its workers would be somebody else, who cannot enter the folder.
                user="user root;\n" if os.geteuid() == 0 else "",
                folder=self.folder,
                upstream="dragoman",
                servers=" ".join(f"server {node.server};" for node in self._nodes),
                host=HOST,
                port=self.port,
            )
        )
        nginx = await asyncio.create_subprocess_exec(
            *(program, "-e", str(self.folder / "nginx.log"), "-c", str(file))
        )

        self._stack.push_async_callback(_terminated, nginx)
        while nginx.returncode is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, self.port)
                writer.close()
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"nginx does not start: {(self.folder / 'nginx.log').read_text()}")

    async def _keep(self, node: _Node) -> None:
        """Start a process again and again."""
        while not self._closing.is_set():
            try:
                await node.dragoman.start()
            except NotStarted:
                # PostgreSQL was away.
                self.counts["starts that failed"] += 1
                await asyncio.sleep(0.5)
                continue
            node.works = True
            if self._closing.is_set():
                node.dragoman.send(signal.SIGKILL)
            await node.dragoman.ended()
            node.works = node.paused = False
            if not self._closing.is_set():
                await asyncio.sleep(self._source.uniform(0, AWAY_S))

    # What befalls them.

    async def fault(self) -> str:
        """Wait a while, let something happen, and return what."""
        await asyncio.sleep(self._source.uniform(0, 2 * PACE_S))
        if not self._deck:
            self._deck = self._source.sample(DECK, len(DECK))
        kind = self._deck.pop()
        match kind:
            case "kill" | "pause":
                node = await self._victim()
                if kind == "pause":
                    self._pauses.add(asyncio.create_task(self._pause(node)))
                else:
                    node.works = False
                    await self._leave(node, signal.SIGKILL)
            case "crash":
                await self._crash()
            case "cut":
                for line in self._lines:
                    line.cut()
        self.counts[kind] += 1
        return kind

    async def end_two(self, number: signal.Signals) -> int:
        """End those two processes that have the most sessions at work; return how many they had.
        Returns when they are gone; they are started again."""
        rows = await self._query(
            "SELECT url, count(key) FROM dragoman.nodes LEFT JOIN dragoman.sessions"
            " ON sessions.node = nodes.node AND state IN ('running', 'paused')"
            " GROUP BY url ORDER BY 2 DESC LIMIT 2"
        )
        most = {row[0] for row in rows}
        ended = [node for node in self._nodes if node.advertise in most]
        for node in ended:
            node.dragoman.send(number)
        await asyncio.gather(*(node.dragoman.down.wait() for node in ended))
        return sum(row[1] for row in rows)

    async def _victim(self) -> _Node:
        """Return a process that works, as soon as another one does."""
        while True:
            able = [node for node in self._nodes if node.works and not node.paused]
            if len(able) > 1:
                return self._source.choice(able)
            await asyncio.sleep(LOOK_S)

    async def _pause(self, node: _Node) -> None:
        node.paused = True
        there = await self._leave(node, signal.SIGSTOP)
        await asyncio.sleep(PAUSE_S)
        kept = await self._query("SELECT node FROM dragoman.nodes WHERE node = $1", there)
        node.dragoman.send(signal.SIGCONT)
        if kept:
            # Nobody has taken its place: PostgreSQL was restarted meanwhile.
            node.paused = False
            self.counts["woken in time"] += 1
            for session in [key for key, one in self._waiting.items() if one.node == there]:
                del self._waiting[session]
        else:
            self.counts["woken too late"] += 1

    async def _crash(self) -> None:
        for one in self._waiting.values():
            one.disturbed = True
        await asyncio.to_thread(self._postgres.stop, "immediate")
        await asyncio.sleep(self._source.choice((0.0, 0.0, 1.0, 3.0)))
        await asyncio.to_thread(self._postgres.start)

    async def rest(self) -> None:
        """Wait until all that are paused are awake."""
        await asyncio.gather(*self._pauses)

    # What is seen of it.

    async def _leave(self, node: _Node, how: signal.Signals) -> int:
        """Kill or pause a process, note the sessions at work that it has, and return its number."""
        now = time.monotonic()
        node.dragoman.send(how)
        # What it has asked PostgreSQL for is stored still: a turn may be over with it.
        await asyncio.sleep(LOOK_S)
        rows = await self._query(
            "SELECT nodes.node, key FROM dragoman.nodes LEFT JOIN dragoman.sessions"
            " ON sessions.node = nodes.node AND state IN ('running', 'paused') WHERE url = $1",
            node.advertise,
        )
        for number, key in rows:
            if key is not None:
                self._waiting.setdefault(key, _Waiting(now, number))
        return int(rows[0][0]) if rows else 0

    async def _query(self, sql: str, *values: object) -> list[Any]:
        while True:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection = await asyncpg.connect(self._journal, timeout=10)
                try:
                    return list(await connection.fetch(sql, *values))
                finally:
                    connection.terminate()
            await asyncio.sleep(LOOK_S)

    async def _watch(self) -> None:
        """Note when sessions have another process."""
        while not self._closing.is_set():
            await asyncio.sleep(LOOK_S)
            if not self._waiting:
                continue
            rows = await self._query(
                # Nobody but another process changes it.
                "SELECT key FROM dragoman.sessions"
                " JOIN unnest($1::bigint[], $2::bigint[]) AS left_by (session, old)"
                " ON session = key AND node IS DISTINCT FROM old",
                [*self._waiting],
                [one.node for one in self._waiting.values()],
            )
            for (key,) in rows:
                one = self._waiting.pop(key, None)
                if one is not None:
                    took = self.disturbed if one.disturbed else self.takeovers
                    took.append(round((time.monotonic() - one.since) * 1000))

    @property
    def abandoned(self) -> int:
        """How many sessions at work nobody has taken over so far."""
        return len(self._waiting)

    async def close(self) -> None:
        """End it all."""
        self._closing.set()
        for task in self._pauses:
            task.cancel()
        await asyncio.gather(*self._pauses, return_exceptions=True)
        for node in self._nodes:
            if node.works:
                node.dragoman.send(signal.SIGKILL)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in self._nodes:
            await node.dragoman.close()
        for line in self._lines:
            self.counts["cut: between processes"] += sum(line.cuts.values())
        await self._stack.aclose()


async def _terminated(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    await process.wait()


@dataclass(frozen=True, slots=True)
class ClusterLog:
    """The commands in a journal in PostgreSQL."""

    url: str

    async def read(self) -> list[Session]:
        """Return the sessions in which something was said."""
        connection = await asyncpg.connect(self.url, timeout=60)
        try:
            rows = await connection.fetch(
                "SELECT session, body FROM dragoman.events WHERE position($1::bytea IN body) > 0"
                " ORDER BY session, first",
                INPUT,
            )
        finally:
            connection.terminate()
        found: dict[int, dict[str, Command]] = {}
        for session, body in rows:
            commands_of(body.split(b"\n"), found.setdefault(session, {}))
        return [Session(key, list(commands.values())) for key, commands in found.items()]

    def forget(self, sessions: object) -> None:
        """Do nothing: a slice reads it at its end only."""
