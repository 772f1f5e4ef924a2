"""Hostile backends of all three dialects: every way to misbehave, in every script.

For each kind of fault there is a scripted backend of each dialect that shows it on most of its
streams, and there are some that do not even speak HTTP. Conversations with them are begun through
all three faces. What is counted is whether Dragoman itself fails, hangs, keeps others waiting or
grows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.eve_turns import Generation
from proxy.scripted.faults import KINDS, Fault, Faults, Garbage
from proxy.scripted.scripts import SCRIPT_NAMES
from tests.proof.attack.rude import RUDE, rude
from tests.proof.attack.server import HANG_S, PATIENCE_S, Server, Watch, tables
from tests.proof.backends import DIALECTS
from tests.support.many import KINDS as MANY_KINDS
from tests.support.many import many
from tests.support.ports import HOST
from tests.support.serving import serve

__all__ = ["FLOODS", "Hostile", "plan_of"]

RATE = 0.7
"""The share of a backend's streams that break: a reconnect that goes well is a scenario as well."""

AT_ONCE = 20
"""Conversations at a time."""

READ_S = 1.5
"""How long a stream is read."""

MEMORY_BYTES = 256 * 2**20
"""How much more than at its start the process may hold: some hundred frames of megabytes are on
their way at a time."""

FRAME_BYTES = 8 * 2**20
"""What a frame of these backends may have: less than what has no end sends, so that the limit is
met, and more than any other flood."""

GENERATIONS: tuple[Generation, ...] = ("S2", "T", "S1")

_FRAME = {"herm": b"data: %b\n\n", "engine": b"event: text_delta\ndata: %b\n\n", "eve": b"%b\n"}

FLOODS: Mapping[str, bytes] = {
    "LongText": b'{"type":"x","text":"' + b"A" * (4 * 2**20) + b'"}',
    "ManyItems": b'{"type":"x","data":{"items":[' + b"{}," * 2**18 + b"{}]}}",
    "Deep": b'{"type":"x","data":' + b"[" * 5000 + b"]" * 5000 + b"}",
}
"""What one frame may be."""

SMALL = 100_000
"""Frames of nothing that come at once."""

LINES: Mapping[str, bytes] = {
    # One frame of an event stream.
    "ManyLines": b"a\n" * 2**19 + b"\n",
    "NoLines": b"\n" * 2**20,
    "NoLinesByCr": b"\r" * 2**20,
}
"""What may come in lines that say nothing."""

MANY = 1_000
"""Frames that each open something which nothing ends, twice what a session remembers."""

ANSWERED = 8
"""Requests that are answered, of those that a backend has open."""


def _flood(name: str, dialect: str, place: int) -> Fault:
    if name == "ManyFrames":
        return Garbage(place, _FRAME[dialect] % b"{}" * SMALL)
    if name in LINES:
        return Garbage(place, LINES[name])
    if name in MANY_KINDS:
        return Garbage(place, many(name, dialect, MANY))
    if name == "NoEnd":
        # No line ever ends.
        return Garbage(place, b"data: " + b"A" * (24 * 2**20))
    return Garbage(place, _FRAME[dialect] % FLOODS[name])


class _Floods(Faults):
    """Faults whose every drawn one is one flood."""

    def __init__(self, seed: int, name: str, dialect: str) -> None:
        super().__init__()
        self._seed, self._rate = seed, RATE
        self._name, self._dialect = name, dialect

    def _drawn(self, source: random.Random) -> Fault | None:
        if source.random() >= self._rate:
            return None
        return _flood(self._name, self._dialect, source.randrange(8))


WAYS = (*KINDS, *FLOODS, *LINES, "ManyFrames", "NoEnd", *MANY_KINDS)
"""How a scripted backend misbehaves: each fault, and each flood."""


def plan_of(seed: int) -> tuple[list[tuple[str, str, str]], int]:
    """Return all conversations, way, dialect of the backend and script, in an order that follows
    from the seed, and how many of the first have each way with each dialect once."""
    source = random.Random(f"hostile:{seed}")
    once, more = [], []
    for way in (*WAYS, *RUDE):
        for dialect in DIALECTS:
            # Who does not speak HTTP plays no script.
            scripts = ["text"] if way in RUDE else source.sample(SCRIPT_NAMES, len(SCRIPT_NAMES))
            once.append((way, dialect, scripts[0]))
            more += [(way, dialect, script) for script in scripts[1:]]
    source.shuffle(once)
    source.shuffle(more)
    return once + more, len(once)


class Hostile:
    """One run.

    Args:
        seed: what everything drawn follows from.
        plan: its conversations.
        seconds: when it stops at the latest.
        folder: where journal and log are.
        progress: hears a line now and then.
    """

    def __init__(
        self,
        seed: int,
        plan: Sequence[tuple[str, str, str]],
        seconds: float,
        folder: Path,
        progress: Callable[[str], None],
    ) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._plan = plan
        self._seconds = seconds
        self._folder = folder
        self._progress = progress
        self._source = random.Random(f"hostile:{seed}:faces")

    async def run(self) -> None:
        """Talk to all of them; afterwards `counts` and `wrong` say what came of it."""
        async with contextlib.AsyncExitStack() as stack:
            backends = [
                await stack.enter_async_context(self._backend(way, dialect))
                for way in (*WAYS, *RUDE)
                for dialect in DIALECTS
            ]
            self._server = await stack.enter_async_context(Server(self._folder, tables(backends)))
            self._http = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(force_close=True, limit=0),
                    timeout=aiohttp.ClientTimeout(total=None),
                )
            )
            async with Watch(self._server) as watch:
                begun = said = time.monotonic()
                left = list(self._plan)
                room = asyncio.Semaphore(AT_ONCE)

                async def one(way: str, dialect: str, script: str, face: str) -> None:
                    try:
                        await self._conversation(way, dialect, script, face)
                        self.counts["conversations"] += 1
                    finally:
                        room.release()

                async with asyncio.TaskGroup() as group:
                    while left and time.monotonic() - begun < self._seconds:
                        await room.acquire()
                        face = self._source.choice(DIALECTS)
                        group.create_task(one(*left.pop(0), face))
                        if time.monotonic() - said > 10:
                            said = time.monotonic()
                            done = self.counts["conversations"]
                            self._progress(
                                f"hostile: {done} of {len(self._plan)} conversations, "
                                f"{said - begun:.0f} s, {len(self.wrong)} complaints"
                            )
            watch.judge(self.counts, self.wrong, MEMORY_BYTES)
            self._server.judge(self.counts, self.wrong)

    @contextlib.asynccontextmanager
    async def _backend(self, way: str, dialect: str) -> AsyncIterator[dict[str, str]]:
        table = {
            "name": f'"{way}-{dialect}"',
            "dialect": f'"{dialect}"',
            "max_frame_bytes": str(FRAME_BYTES),
        }
        if dialect == "herm":
            table["create"] = '{ agent = "agent_K4" }'
        if way in RUDE:
            async with rude(way) as port:
                yield {**table, "url": f'"http://{HOST}:{port}"'}
            return
        if way in KINDS:
            faults = Faults.seeded(self.seed, RATE, (KINDS[way],))
        else:
            faults = _Floods(self.seed, way, dialect)
        generation = GENERATIONS[(self.seed + WAYS.index(way)) % len(GENERATIONS)]
        options = ScriptedOptions(pace=0.0, generation=generation, faults=faults)
        runner, port = await serve(BACKENDS[dialect](options))
        try:
            yield {**table, "url": f'"http://{HOST}:{port}"'}
        finally:
            await runner.cleanup()

    async def _conversation(self, way: str, dialect: str, script: str, face: str) -> None:
        """Begin one, read it, answer what is asked, say something else, and look at it."""
        where = f"{script} by {way}-{dialect} as {face}"
        base = f"/as/{face}/to/{way}-{dialect}"
        name = await self._begin(where, base, face, f"script: {script}")
        if name is None:
            return
        await self._read(where, base, face, name)
        shown = await self._ask(where, "GET", f"/api/v1/sessions/{name}")
        for asked in (shown or {}).get("open_interactions", ())[:ANSWERED]:
            path = f"/api/v1/sessions/{name}/interactions/{asked['request_id']}"
            await self._ask(where, "POST", path, {"decision": "deny"})
        await self._read(where, base, face, name)
        await self._ask(where, "GET", f"/api/v1/sessions/{name}/events")

    async def _begin(self, where: str, base: str, face: str, text: str) -> str | None:
        """Say the first thing, and return the session's id."""
        match face:
            case "eve":
                made = await self._ask(where, "POST", f"{base}/eve/v1/session", {"message": text})
                return None if made is None else str(made["sessionId"])
            case "herm":
                path = f"{base}/v1/agents/agent_K4/sessions"
                made = await self._ask(where, "POST", path, {})
                if made is None or "id" not in made:
                    return None
                said = {"type": "user.message", "content": [{"type": "text", "text": text}]}
                path = f"{base}/v1/sessions/{made['id']}/events"
                await self._ask(where, "POST", path, {"events": [said]})
                return str(made["id"])
            case _:
                task = f"t{self._source.getrandbits(60):x}"
                await self._ask(
                    where, "POST", f"{base}/execute", {"message": text, "task_id": task}
                )
                listed = await self._ask(where, "GET", "/api/v1/sessions?limit=100")
                for one in (listed or {}).get("sessions", ()):
                    shown = await self._ask(where, "GET", f"/api/v1/sessions/{one['id']}")
                    if shown and task in shown["aliases"]:
                        return str(one["id"])
                return None

    async def _read(self, where: str, base: str, face: str, name: str) -> None:
        path = {
            "eve": f"/eve/v1/session/{name}/stream",
            "herm": f"/v1/sessions/{name}/events/stream",
            "engine": f"/execute/replay?after=0&task_id={name}",
        }[face]
        await self._ask(where, "GET", base + path)

    async def _ask(self, where: str, method: str, path: str, body: Any = None) -> Any:
        """Ask, again where it took too long, and return the JSON of the answer."""
        answer: Any = None
        for attempt in (1, 2):
            status, answer, seconds = await self._once(method, path, body)
            self.counts["requests"] += 1
            self.counts[f"status {status}"] += 1
            # What the backend did is told as what it is; a failure of ours is a 500.
            if status in (0, 500, 503):
                self._complain("failures", where, f"{method} {path}: {status} {answer}")
            if seconds <= HANG_S:
                break
            if attempt == 2:
                self._complain("hangs", where, f"{method} {path}: {seconds:.1f} s")
            if method != "GET":
                # Said twice it would be another conversation.
                break
        return answer

    async def _once(self, method: str, path: str, body: Any) -> tuple[int, Any, float]:
        """Return status, JSON of the body, and the seconds until the head was there."""
        begun = time.monotonic()
        url = f"http://{HOST}:{self._server.port}{path}"
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                self._http.request(method, url, json=body) as response,
            ):
                took = time.monotonic() - begun
                if response.content_type in ("text/event-stream", "application/x-ndjson"):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(READ_S):
                            async for _ in response.content.iter_any():
                                pass
                    return response.status, None, took
                text = await response.read()
                return response.status, json.loads(text) if text else None, took
        except TimeoutError:
            return -1, None, time.monotonic() - begun
        except (aiohttp.ClientError, ConnectionError) as error:
            return 0, str(error), time.monotonic() - begun

    def _complain(self, figure: str, where: str, what: str) -> None:
        self.counts[figure] += 1
        if len(self.wrong) < 100:
            self.wrong.append(f"{figure}: {where}: {what}"[:600])
