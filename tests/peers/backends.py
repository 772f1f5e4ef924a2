"""Plays the same scenarios through Dragoman on real eve servers of both generations.

Each scenario is a conversation of one frontend (eve, Engine, Herm) with one real server behind a
`dragoman serve` that is killed and started again where the scenario says so. `compare` is
not a face: there the scripted eve is held against the real server, without Dragoman. The faces
`client-VERSION` are the unmodified clients of the part `clients`, and `replay` are recorded
conversations of the other generation. Run by `run.sh`:

    python -m tests.peers.backends --node NODE --cache FOLDER [--only NAME[,NAME]] [--gen VERSION]
                                   [--face FACE] [--list]

Prints one line `PASS` or `FAIL` for each, and the reason of a failure; the exit status is 1 after a
failure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp

from tests.peers.compare import CASES, KNOWN, Case, Generation, compare, compare_refusals, scripted
from tests.peers.plan import planned
from tests.peers.scenes import SCENES, Scene, ServerFault, Stage
from tests.peers.talks import TALKS, EveTalk, Talk
from tests.replay.support import capture_lines
from tests.support.ports import HOST, free_port
from tests.support.strictness import ProtocolViolation

Value = TypeVar("Value")

GENERATIONS: dict[str, Generation] = {"0.30.8": "T", "0.80.1": "S2"}
# Only what hangs takes longer: building an agent takes 12 s on two cores that do nothing else, 45 s
# on busy ones, and the longest scenario took 33 s with four of them at a time.
START_S = 600.0
SCENE_S = 300.0
# Conversations at a time. With several 0.30.8 loses children ("Hook not found") and takes half a
# minute for a turn, with any client; two cores are busy with this.
JOBS = {"0.30.8": 1, "0.80.1": 2}
# While 0.30.8 waits for the start of a child it reads all events that it has stored, again and
# again: one that has played hundreds of scenarios gives up after 30 s on a busy machine. So it
# begins anew after so many, and a scenario in which it loses a child by itself is played again.
RENEWED_AFTER = 50
TRIES = 5
# A child process that was told to stop and does not is killed.
STOP_S = 60.0


class Program:
    """A program of ours: its output's last lines, its end."""

    def __init__(self, arguments: Sequence[str], cwd: Path, env: dict[str, str]) -> None:
        self._arguments = arguments
        self._cwd = cwd
        self._env = env
        self.tail: list[str] = []
        self.process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()

    async def start(self) -> None:
        """Start it in a process group of its own."""
        self._lines = asyncio.Queue()
        self.process = await asyncio.create_subprocess_exec(
            *self._arguments,
            cwd=self._cwd,
            env={**os.environ, **self._env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip()
            self.tail = [*self.tail[-60:], text]
            self._lines.put_nowait(text)
        self._lines.put_nowait(None)

    async def line(self, pattern: str) -> re.Match[str]:
        """Wait for a line.

        Raises:
            TimeoutError: it does not come, or the program ends before.
        """
        async with asyncio.timeout(START_S):
            while (text := await self._lines.get()) is not None:
                found = re.search(pattern, text)
                if found:
                    return found
        raise TimeoutError("it ended early")

    async def lines(self) -> AsyncIterator[str]:
        """Yield what it prints until it ends."""
        while (text := await self._lines.get()) is not None:
            yield text

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal it and what it started, and wait for its end."""
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if self._reader is not None:
            await self._reader


class EveServer(Program):
    """A real eve server in production mode: in development mode a turn takes five times as long."""

    def __init__(self, generation: str, node: Path, folder: Path) -> None:
        self.generation = generation
        self.played = 0
        self.url = f"http://{HOST}:{free_port()}"
        port = self.url.rsplit(":", 1)[1]
        self._eve = [str(node), "node_modules/eve/bin/eve.js"]
        env = {
            "EVE_TELEMETRY_DISABLED": "1",
            "DO_NOT_TRACK": "1",
            "PATH": f"{node.parent}:{os.environ['PATH']}",
        }
        super().__init__([*self._eve, "start", "--host", HOST, "--port", port], folder, env)

    async def renew(self) -> None:
        """Begin anew: nothing is known of earlier sessions. The address stays."""
        await self.stop()
        self.played = 0
        shutil.rmtree(self._cwd / ".eve" / ".workflow-data", ignore_errors=True)
        await super().start()
        await self.line(r"server listening")

    async def start(self) -> None:
        """Build the agent on an empty folder and start it.

        Raises:
            TimeoutError: it is not built or does not serve in time, with its last lines.
        """
        for left in (".eve", ".output"):
            shutil.rmtree(self._cwd / left, ignore_errors=True)
        build = Program([*self._eve, "build", "--skip-sandbox-prewarm"], self._cwd, self._env)
        await build.start()
        try:
            await build.line(r"built output")
        except TimeoutError:
            raise TimeoutError("\n".join([f"eve {self.generation}:", *build.tail])) from None
        finally:
            await build.stop()
        await super().start()
        await self.line(r"server listening")

    async def ready(self, http: aiohttp.ClientSession) -> None:
        """Wait until it has held a conversation: it listens before it can.

        Raises:
            TimeoutError: it does not, with its last lines.
        """
        try:
            async with asyncio.timeout(START_S):
                while not await self._answers(http):  # noqa: ASYNC110 - it tells of no event
                    await asyncio.sleep(0.5)
        except TimeoutError:
            tail = "\n".join(self.tail)
            raise TimeoutError(f"eve {self.generation} does not start:\n{tail}") from None

    async def _answers(self, http: aiohttp.ClientSession) -> bool:
        base = f"{self.url}/eve/v1/session"
        try:
            async with http.post(base, json={"message": "scene: plain"}) as response:
                created = await response.json()
            if "sessionId" not in created:
                return False
            async with http.get(f"{base}/{created['sessionId']}/stream") as response:
                async for line in response.content:
                    if b'"session.waiting"' in line:
                        return True
        except (aiohttp.ClientError, ValueError):
            return False
        return False


class Dragoman(Program):
    """`dragoman serve` with one backend for each server, on a journal that outlives it."""

    def __init__(self, root: Path, folder: Path, servers: dict[str, str], engine: str) -> None:
        self.url = f"http://{HOST}:{free_port()}"
        config = folder / "dragoman.toml"
        tables = "".join(
            f'[[backends]]\nname = "eve-{name}"\ndialect = "eve"\nurl = "{url}"\n'
            for name, url in servers.items()
        )
        tables += f'[[backends]]\nname = "engine"\ndialect = "engine"\nurl = "{engine}"\n'
        config.write_text(
            f'[server]\nlisten = "{self.url.removeprefix("http://")}"\n'
            f'[journal]\nurl = "sqlite:///{folder}/dragoman.db"\n{tables}'
        )
        arguments = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
        super().__init__(arguments, root, {})

    async def start(self) -> None:
        await super().start()
        await self.line(r"listening on http")

    async def kill(self) -> None:
        """Kill it as nothing can be prepared for, and start it again."""
        await self.stop(signal.SIGKILL)
        await self.start()


class Engine(Program):
    """A scripted Engine, to which sessions move."""

    def __init__(self, root: Path) -> None:
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        arguments = [sys.executable, "-m", "proxy", "scripted", "engine", "--port", str(port)]
        super().__init__(arguments, root, {})

    async def start(self) -> None:
        await super().start()
        await self.line(r"http")


@dataclass(frozen=True, slots=True)
class Play:
    """A scenario on one server by one frontend."""

    scene: Scene
    generation: str
    talk: type[Talk]

    @property
    def name(self) -> str:
        """What is printed, and what `--only` takes the last word of."""
        return f"{self.generation} {self.talk.face} {self.scene.name}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A conversation with a real server and the scripted one; without a case, the refusals."""

    case: Case | None
    generation: str

    @property
    def name(self) -> str:
        """What is printed, and what `--only` takes the last word of."""
        return f"{self.generation} compare {'refusals' if self.case is None else self.case.name}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recorded conversation of the other generation, as the frontend of a real server."""

    scene: str
    generation: str

    @property
    def name(self) -> str:
        """What is printed, and what `--only` takes the last word of."""
        return f"{self.generation} replay {self.scene}"


@dataclass(frozen=True, slots=True)
class Unmodified:
    """What an unmodified client of one generation does with one server, by the scenario's name."""

    client: str
    generation: str
    scenarios: tuple[str, ...]

    @property
    def face(self) -> str:
        """What is printed for the frontend."""
        return f"client-{self.client}"


# What the clients say for their own scenarios, in this model's words.
SCRIPTS = {
    "text": "scene: plain",
    "reason": "scene: reason",
    "tool": "scene: weather Porto",
    "tools": "scene: twotools",
    "toolfail": "scene: toolfail",
    "approve": "scene: approve",
    "approve2": "scene: approve2",
    "ask": "scene: ask",
    "askopen": "scene: ask open",
    "fail": "scene: fail",
    "failmid": "scene: failmid",
    "slow": "scene: slow",
}
UNMODIFIED = (
    "text",
    "any-message",
    "reasoning",
    "tool",
    "tools",
    "tool-fails",
    "approval-yes",
    "approval-no",
    "approval-feedback",
    "approval-both",
    "answer-and-message",
    "question-option",
    "question-free-text",
    "question-by-message",
    "follow-up",
    "turn-fails",
    "turn-fails-midway",
    "cut-connection",
    "saved-cursor",
    "prewarm",
    "hook",
    "hook-both",
    "hook-together",
    "moves",
)
# 0.30.8 does not tell its model what was written with a refusal; its client cannot prewarm, and
# that of 0.80.1 cannot answer and say something at once.
CANNOT = {
    ("server", "0.30.8"): ("approval-feedback",),
    # A session that moves begins at the other one.
    ("server", "0.80.1"): ("moves",),
    ("client", "0.30.8"): ("prewarm",),
    ("client", "0.80.1"): ("answer-and-message", "hook-together"),
}


NEWEST_FIRST = tuple(reversed(GENERATIONS))


def is_chosen(options: argparse.Namespace) -> bool:
    """Say whether the options choose; where they do not, the plan does."""
    return bool(options.only or options.gen or options.face)


def turned(values: list[Value], places: int) -> list[Value]:
    """Return a list that begins later and goes round: the plan takes the first of equals, so each
    value is the first as often."""
    at = places % len(values)
    return values[at:] + values[:at]


def unmodified(options: argparse.Namespace) -> list[Unmodified]:
    """Return what the options choose."""
    only = options.only.split(",") if options.only else UNMODIFIED
    cells = [
        (client, server, name)
        for at, name in enumerate(UNMODIFIED)
        for server in NEWEST_FIRST
        for client in turned(list(GENERATIONS), at)
        if options.gen in (None, server)
        and options.face in (None, f"client-{client}")
        and name in only
        and name not in CANNOT.get(("server", server), ())
        and name not in CANNOT[("client", client)]
    ]
    if not is_chosen(options):
        cells = planned(cells, lambda cell: cell)
    by: dict[tuple[str, str], list[str]] = {}
    for client, server, name in cells:
        by.setdefault((client, server), []).append(name)
    return [Unmodified(*ends, tuple(names)) for ends, names in by.items()]


async def drive(
    found: Unmodified,
    root: Path,
    options: argparse.Namespace,
    url: str,
    http: aiohttp.ClientSession,
) -> int:
    """Let an unmodified client play its scenarios, those again that the server spoilt by itself;
    return how many did not pass."""
    left, failed = list(found.scenarios), list[str]()
    for attempt in range(1, TRIES + 1):
        before = await sessions_of(found.generation, url, http)
        failed, told = await drive_once(found, left, root, options, url)
        again = [name for name in failed if name in left] if attempt < TRIES else []
        if again and (fault := await own_fault(found.generation, before, url, http)):
            print(f"     {found.generation} {found.face} {', '.join(again)}: {fault}", flush=True)
            left = again
            continue
        for line in told:
            print(line, flush=True)
        break
    if failed:
        print(f"FAIL {found.generation} {found.face}: {len(failed)} scenarios", flush=True)
    return len(failed)


async def drive_once(
    found: Unmodified,
    scenarios: Sequence[str],
    root: Path,
    options: argparse.Namespace,
    url: str,
) -> tuple[list[str], list[str]]:
    """Let an unmodified client play some scenarios; return which did not pass, and what it told of
    them."""
    arguments = [str(options.node), str(options.cache / "run.mjs"), str(root)]
    arguments += ["--gen", found.client, "--only", ",".join(scenarios)]
    moves = {"control": f"{url}/api/v1", "to": ["eve-0.80.1", "engine"]}
    env = {
        "EVE_HOST": f"{url}/as/eve/to/eve-{found.generation}",
        "EVE_MOVES": json.dumps(moves),
        "EVE_SCRIPTS": json.dumps(SCRIPTS),
    }
    program = Program(arguments, root, env)
    await program.start()
    passed: set[str] = set()
    told: list[str] = []
    try:
        async for line in program.lines():
            known = re.match(r"(PASS|FAIL) \S+ (\S+)(.*)", line)
            if known and known[1] == "PASS":
                passed.add(known[2])
                print(f"PASS {found.generation} {found.face} {known[2]}{known[3]}", flush=True)
            elif known:
                told.append(f"FAIL {found.generation} {found.face} {known[2]}{known[3]}")
            elif line.startswith("     "):
                told.append(line)
    finally:
        await program.stop()
    return [name for name in scenarios if name not in passed], told


DISORDER = "the server sent its events in another order than it made them"
"""Seen at 0.80.1 without a Dragoman, on a machine of a quarter of the usual speed."""


LOST = ('"step//eve@0.30.8//forwardTurnDeliveryStep" failed', "Hook not found")
"""How 0.30.8 says that it has lost a message which it took as a turn ended, and with it the whole
session. It loses the start of a child in the same words."""


async def sessions_of(generation: str, url: str, http: aiohttp.ClientSession) -> set[str]:
    """Return the ids of the sessions on a server."""
    query = {"route": f"eve-{generation}", "limit": "1000"}
    async with http.get(f"{url}/api/v1/sessions", params=query) as answer:
        return {session["id"] for session in (await answer.json())["sessions"]}


async def own_fault(
    generation: str, before: Collection[str], url: str, http: aiohttp.ClientSession
) -> str | None:
    """Return what a server did wrong by itself, by its own words, in one of the sessions that were
    not there before: it sent events in another order than that of the times in them, or `LOST`."""
    for session in await sessions_of(generation, url, http) - set(before):
        async with http.get(f"{url}/api/v1/sessions/{session}/events") as answer:
            log = [json.loads(line) for line in (await answer.text()).splitlines()]
        ended = [one for one in log if one["type"] == "session.ended" and one.get("error")]
        for message in (str(one["error"].get("message")) for one in ended):
            if all(words in message for words in LOST):
                return message
        natives = [
            one["native"]
            for one in log
            if one["thread_id"] == "main" and {"frame", "at"} <= one.get("native", {}).keys()
        ]
        times = [native["at"] for native in sorted(natives, key=lambda native: native["frame"])]
        if times != sorted(times):
            return DISORDER
    return None


def comparisons(options: argparse.Namespace) -> list[Comparison]:
    """Return what the options choose."""
    only = options.only.split(",") if options.only else None
    if options.face not in (None, "compare"):
        return []
    return [
        found
        for generation in GENERATIONS
        if options.gen in (None, generation)
        for found in (
            *(Comparison(case, generation) for case in CASES),
            Comparison(None, generation),
        )
        if only is None or found.name.rsplit(" ", 1)[1] in only
    ]


# The name of a recorded conversation, and what the agent says in it to the person's part.
REPLAYED = {
    "approval-approve": '"paid":true',
    "approval-deny": "",
    "question-option": "lue",
    "follow-up": "small pieces.",
}


def replays(options: argparse.Namespace) -> list[Replayed]:
    """Return what the options choose."""
    only = options.only.split(",") if options.only else None
    if options.face not in (None, "replay"):
        return []
    return [
        Replayed(scene, generation)
        for generation in GENERATIONS
        if options.gen in (None, generation)
        for scene in REPLAYED
        if only is None or scene in only
    ]


async def replay(found: Replayed, root: Path, url: str) -> str | None:
    """Drive a real server through a capture of the other generation, by the command that people
    use; return what went wrong."""
    (recorded,) = (name for name in GENERATIONS if name != found.generation)
    scene = root / "fixtures/wire/eve" / f"eve-{recorded}" / "server" / f"{found.scene}.json"
    with tempfile.TemporaryDirectory(prefix="dragoman-replay-") as folder:
        capture, log = Path(folder) / "capture.ndjson", Path(folder) / "log.ndjson"
        capture.write_bytes(b"".join(capture_lines(scene)))
        arguments = [sys.executable, "-m", "proxy", "replay", str(capture), "--drive", url]
        arguments += ["--dialect", "eve", "--out", str(log), "--timeout", str(SCENE_S)]
        program = Program(arguments, root, {})
        await program.start()
        try:
            told = [line async for line in program.lines()]
        finally:
            await program.stop()
        if not told or not told[-1].startswith("driven:"):
            return "\n".join(told)
        entries = [json.loads(line) for line in log.read_bytes().splitlines()]
    texts = [one["text"] for one in entries if one["type"] == "text.completed"]
    end = entries[-1]
    if not any(REPLAYED[found.scene] in text for text in texts):
        return f"the agent never said {REPLAYED[found.scene]!r}: {texts}"
    return None if end["type"] == "turn.ended" else f"it ends with {end}"


async def hold_against(found: Comparison, http: aiohttp.ClientSession, url: str) -> str | None:
    """Compare the scripted eve with a real server; return the differences that are not meant. Two
    records that two tasks of a real server write come in either order on a busy machine, so what
    differs is compared again."""
    error: str | None = None
    for _ in range(TRIES):
        error = await hold_against_once(found, http, url)
        if error is None:
            break
        print(f"     {found.name}: differs", flush=True)
    return error


async def hold_against_once(found: Comparison, http: aiohttp.ClientSession, url: str) -> str | None:
    """Compare them once."""
    generation = GENERATIONS[found.generation]
    try:
        async with asyncio.timeout(SCENE_S), scripted(generation) as ours:
            if found.case is None:
                differences = await compare_refusals(http, generation, url, ours)
            elif (found.case.name, generation) in KNOWN:
                return None
            else:
                differences = await compare(http, found.case, generation, url, ours)
    except (TimeoutError, aiohttp.ClientError, AssertionError, KeyError) as error:
        return f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
    return "\n".join(differences) or None


def plays(options: argparse.Namespace) -> list[Play]:
    """Return what the options choose."""
    only = options.only.split(",") if options.only else None
    found = [
        Play(scene, generation, talk)
        # 0.30.8 takes its conversations one by one: the plan gives it those that it must have.
        for generation in NEWEST_FIRST
        for at, scene in enumerate(SCENES)
        for talk in turned(list(TALKS), at)
        if (options.gen in (None, generation))
        and (options.face in (None, talk.face))
        and (only is None or scene.name in only)
        and talk.face in scene.faces
        and (scene.generations is None or GENERATIONS[generation] in scene.generations)
    ]
    if is_chosen(options):
        return found
    return planned(found, lambda one: (one.scene.name, one.generation, one.talk.face))


async def play(play: Play, dragoman: Dragoman, http: aiohttp.ClientSession) -> str | None:
    """Play one scenario, again where the server failed by itself; return why it failed."""
    for attempt in range(1, TRIES + 1):
        before = await sessions_of(play.generation, dragoman.url, http)
        error, again = await play_once(play, dragoman, http)
        if error and not again and attempt < TRIES:
            fault = await own_fault(play.generation, before, dragoman.url, http)
            error, again = fault or error, fault is not None
        if not again:
            break
        print(f"     {play.name}: {error}", flush=True)
    return error


async def play_once(
    play: Play, dragoman: Dragoman, http: aiohttp.ClientSession
) -> tuple[str | None, bool]:
    """Play one scenario; return why it failed, and whether that was the server's own fault."""

    def url() -> str:
        return f"{dragoman.url}/as/{play.talk.dialect}/to/eve-{play.generation}"

    talk = play.talk(http, url, f"{play.scene.name}-{time.monotonic_ns()}")
    stage = Stage(talk, GENERATIONS[play.generation], dragoman.kill, http, url)
    try:
        async with asyncio.timeout(SCENE_S):
            await play.scene.play(stage)
            await talk.check()
    except ServerFault as fault:
        return str(fault), True
    except ProtocolViolation as violation:
        log = shortened(await log_of(talk, dragoman, http))
        where = traceback.format_exc(limit=-4)[-12_000:]
        return f"{violation}\nour log:\n{log}\n{where}", False
    except TimeoutError:
        log = shortened(await log_of(talk, dragoman, http))
        where = traceback.format_exc(limit=-6)
        return f"not over after {SCENE_S:.0f} s\nour log:\n{log}\n{where}", False
    except Exception as error:  # noqa: BLE001 - the root of a scenario
        where = traceback.format_exc(limit=-4)
        log = shortened(await log_of(talk, dragoman, http))
        return (
            f"{type(error).__name__}: {str(error)[:2000]}\n{where[-2500:]}\nour log:\n{log}",
            False,
        )
    finally:
        with contextlib.suppress(Exception):
            await talk.aclose()
    return None, False


async def log_of(talk: Talk, dragoman: Dragoman, http: aiohttp.ClientSession) -> str:
    """Return our log of the session of an eve's frontend."""
    if not isinstance(talk, EveTalk) or talk.session is None:
        return ""
    url = f"{dragoman.url}/api/v1/sessions/{talk.session.session_id}/events"
    try:
        async with asyncio.timeout(STOP_S), http.get(url) as answer:
            return await answer.text()
    except (TimeoutError, aiohttp.ClientError) as error:
        return f"none: {error!r}"


def shortened(log: str) -> str:
    """Return the begins of the newest lines of a log."""
    return "\n".join(line[:600] for line in log.splitlines()[-40:])


@contextlib.asynccontextmanager
async def eve_servers(
    options: argparse.Namespace, names: Sequence[str], http: aiohttp.ClientSession
) -> AsyncIterator[tuple[dict[str, str], dict[str, EveServer]]]:
    """Start the servers that are needed; give all addresses, and those that were started."""
    given = dict(item.split("=", 1) for item in options.server)
    started: list[EveServer] = []
    try:
        for name in names:
            if name not in given:
                folder = options.cache / "servers" / f"eve-{name}"
                server = EveServer(name, options.node, folder)
                started.append(server)
        await asyncio.gather(*(server.start() for server in started))
        for server in started:
            await server.ready(http)
        own = {server.generation: server for server in started}
        yield given | {name: server.url for name, server in own.items()}, own
    finally:
        for server in started:
            await server.stop()


async def run(
    options: argparse.Namespace,
    chosen: Sequence[Play],
    compared: Sequence[Comparison | Replayed],
    clients: Sequence[Unmodified],
) -> int:
    """Play all; returns the number of failures."""
    root = Path(__file__).resolve().parents[2]
    failed = 0
    everything: list[Play | Comparison | Replayed] = [*compared, *chosen]
    names = sorted({one.generation for one in (*everything, *clients)})
    if any("moves" in one.scenarios for one in clients):
        names = sorted(GENERATIONS)
    async with contextlib.AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        begun = time.monotonic()
        servers, own = await stack.enter_async_context(eve_servers(options, names, http))
        print(f"servers ready after {time.monotonic() - begun:.0f} s", flush=True)
        engine = Engine(root)
        stack.push_async_callback(engine.stop)
        await engine.start()

        async def serving() -> Dragoman:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-peers-"))
            dragoman = Dragoman(root, Path(folder), servers, engine.url)
            stack.push_async_callback(dragoman.stop)
            await dragoman.start()
            return dragoman

        shared = await serving()
        # A restart hits every conversation: each that wants one has a Dragoman for itself.
        spare: list[Dragoman] = []

        async def one(what: Play | Comparison | Replayed) -> None:
            nonlocal failed
            at = time.monotonic()
            if isinstance(what, Play) and what.scene.restarts:
                dragoman = spare.pop() if spare else await serving()
                error = await play(what, dragoman, http)
                spare.append(dragoman)
            elif isinstance(what, Play):
                error = await play(what, shared, http)
            elif isinstance(what, Replayed):
                error = await replay(what, root, servers[what.generation])
            else:
                error = await hold_against(what, http, servers[what.generation])
            ms = (time.monotonic() - at) * 1000
            print(f"{'FAIL' if error else 'PASS'} {what.name} ({ms:.0f} ms)", flush=True)
            if error:
                failed += 1
                print("     " + error.replace("\n", "\n     "), flush=True)

        gates = {name: asyncio.Semaphore(JOBS[name]) for name in names}

        async def young(name: str) -> None:
            server = own.get(name)
            if server is None or JOBS[name] > 1:
                return
            if server.played >= RENEWED_AFTER:
                await server.renew()
                await server.ready(http)
            server.played += 1

        async def gated(what: Play | Comparison | Replayed | Unmodified) -> None:
            nonlocal failed
            async with gates[what.generation]:
                await young(what.generation)
                if isinstance(what, Unmodified):
                    failed += await drive(what, root, options, shared.url, http)
                else:
                    await one(what)

        await asyncio.gather(*(gated(what) for what in (*clients, *everything)))
        if failed:
            errors = [line for line in shared.tail if "Traceback" in line or "rror" in line]
            print("\n".join(f"serve: {line}" for line in errors[-20:]))
    return failed


def number_of(
    chosen: Sequence[Play],
    compared: Sequence[Comparison | Replayed],
    clients: Sequence[Unmodified],
) -> int:
    """Return how many scenarios that are."""
    return len(chosen) + len(compared) + sum(len(one.scenarios) for one in clients)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="backends", description=__doc__)
    parser.add_argument("--node", type=Path, default=Path("node"))
    parser.add_argument("--cache", type=Path, default=Path(".cache/peers"))
    parser.add_argument("--only", help="names of scenarios, comma-separated")
    parser.add_argument("--gen", choices=sorted(GENERATIONS))
    faces = [talk.face for talk in TALKS] + [f"client-{name}" for name in GENERATIONS]
    parser.add_argument("--face", choices=[*faces, "compare", "replay"])
    parser.add_argument("--server", action="append", default=[], help="VERSION=URL that runs")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen, clients = plays(options), unmodified(options)
    compared: list[Comparison | Replayed] = [*comparisons(options), *replays(options)]
    count = number_of(chosen, compared, clients)
    if options.list:
        names = [one.name for one in compared] + [one.name for one in chosen]
        names += [
            f"{one.generation} {one.face} {name}" for one in clients for name in one.scenarios
        ]
        print("\n".join(names))
        return
    if not count:
        sys.exit("nothing has that name")
    started = time.monotonic()
    try:
        failed = asyncio.run(run(options, chosen, compared, clients))
    except TimeoutError as error:
        # A server does not start.
        print(f"FAIL {error}")
        failed = count
    print(f"{time.monotonic() - started:.0f} s")
    print(f"{count - failed} passed, {failed} failed on real servers")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
