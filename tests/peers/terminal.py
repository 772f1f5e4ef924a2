"""Lets eve's own terminal programs of both generations talk through `dragoman serve`.

The unmodified interactive programs (`eve dev --url` of 0.30.8, `eve remote connect --url` of
0.80.1) run on a pseudo terminal: text is typed, approvals and questions are answered by keys, and
what stands on the screen is read. They begin conversations with scripted Engine, Herm and eve
backends, and they join conversations that an Engine or Herm frontend began. The programs without a
screen (`eve invoke`, `eve remote invoke`) do the latter by a session's id. Run by `run.sh`:

    python -m tests.peers.terminal --node NODE --cache FOLDER [--only NAME[,NAME]] [--gen VERSION]
                                   [--list]

Prints one line `PASS` or `FAIL` for each, and the reason of a failure; the exit status is 1 after a
failure.
"""

from __future__ import annotations

import argparse
import asyncio
import codecs
import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import sys
import tempfile
import termios
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.peers.backends import Program, turned
from tests.peers.plan import planned
from tests.peers.screen import Screen
from tests.peers.talks import EngineTalk, HermTalk
from tests.support.engine_client import EngineClient, Expect
from tests.support.ports import HOST, free_port

KEY = "peers-key"
ROWS, COLUMNS = 40, 120
# Only what never comes takes longer: a program needs 3 s to its prompt on two cores that do nothing
# else.
SEE_S = 120.0
SCENE_S = 600.0
# Nothing on the screen tells that a key was read, or that a question is a new one. Both take less
# than 0.3 s on two cores that do nothing else; other parts are played beside this one.
KEY_S = 6.0
AGAIN_S = 20.0
# Programs at a time; each is a Node process of 150 MB.
JOBS = 3
# Herm's create needs what an eve frontend cannot say.
HERM_CREATE = '{ agent = "agent_1", environment_id = "env_1", user_id = "user_1" }'

PROGRAMS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # The program of 0.30.8 loads its server even when it only connects, hence the whole package.
    "0.30.8": ("servers/eve-0.30.8", ("dev",), ("invoke",)),
    "0.80.1": ("eve-0.80.1", ("remote", "connect"), ("remote", "invoke")),
}
"""Generation -> folder, words that open the terminal program, words that run one turn."""

PROMPTS: Mapping[str, str] = {"0.30.8": "\n› ", "0.80.1": "Send a message"}
"""Generation -> what stands on the screen once the program takes input."""

BACKENDS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "engine": ("engine", (), 'auth = { header = "X-Engine-Key", env = "PEERS_KEY" }'),
    "herm": ("herm", (), f'auth = {{ bearer_env = "PEERS_KEY" }}\ncreate = {HERM_CREATE}'),
    "eve-t": ("eve", ("--generation", "T"), 'auth = { bearer_env = "PEERS_KEY" }'),
    "eve-s": ("eve", ("--generation", "S2"), 'auth = { bearer_env = "PEERS_KEY" }'),
}
"""Route -> dialect, options of the scripted backend, the rest of its table."""


class Terminal:
    """A program on a pseudo terminal."""

    def __init__(
        self, arguments: list[str], cwd: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.screen = Screen()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(cwd)
            os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
            os.environ.update(env or {})
            os.execv(arguments[0], arguments)
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)
        os.set_blocking(self._fd, False)
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._over.set()
        # What a terminal is asked by programs that start: where its cursor is, and what it is.
        if b"\x1b[6n" in data:
            os.write(self._fd, b"\x1b[1;1R")
        if b"\x1b[c" in data:
            os.write(self._fd, b"\x1b[?62;c")
        self.screen.feed(self._decoder.decode(data))
        self._changed.set()

    async def see(self, *texts: str, times: int = 1) -> str:
        """Wait until every text stands on the screen; return the screen.

        Raises:
            AssertionError: it does not within `SEE_S`; it carries the end of the screen.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEE_S):
                while not self._shows(texts, times):
                    self._changed.clear()
                    await self._changed.wait()
        if not self._shows(texts, times):
            seen = self.screen.text[-3000:]
            raise AssertionError(f"{texts} never stood on the screen {times} x:\n{seen}")
        return self.screen.text

    def _shows(self, texts: Sequence[str], times: int) -> bool:
        return all(self.screen.text.count(text) >= times for text in texts)

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._fd, keys.encode())

    async def say(self, text: str) -> None:
        """Type a line, and enter when it stands there: the program takes a fast enter as text."""
        before = self.screen.text.count(text)
        self.press(text)
        await self.see(text, times=before + 1)
        self.press("\r")

    async def ended(self) -> None:
        """Wait until the program has closed its terminal."""
        await self._over.wait()

    def close(self) -> None:
        """Kill the program."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Stage:
    """What a scene gets: one generation's programs, and a route of a Dragoman that serves."""

    node: Path
    package: Path
    generation: str
    url: str
    route: str
    folder: Path
    http: aiohttp.ClientSession

    @property
    def base(self) -> str:
        """The base address of the route's eve face."""
        return f"{self.url}/as/eve/to/{self.route}"

    @property
    def yes_or_no(self) -> str:
        """What stands below an approval."""
        return "(y/n)" if self.generation == "0.30.8" else "y yes"

    @property
    def second(self) -> str:
        """What stands there while the second of two approvals is asked."""
        return "Approve write_file?" if self.generation == "0.30.8" else "2 of 2"

    @contextlib.asynccontextmanager
    async def terminal(self, session: str | None = None) -> AsyncIterator[Terminal]:
        """Open the terminal program, joining a session or not, and wait for its prompt."""
        _, connect, _ = PROGRAMS[self.generation]
        arguments = [*self._program(*connect), "--url", self.base]
        if session is not None:
            arguments += ["--header", f"X-Dragoman-Session: {session}"]
        terminal = Terminal(arguments, self.folder)
        try:
            await terminal.see(PROMPTS[self.generation])
            yield terminal
        finally:
            terminal.close()

    async def invoke(self, *words: str, given: object = None) -> Any:
        """Run the program that has no screen; return the JSON that it prints."""
        _, _, invoke = PROGRAMS[self.generation]
        resume = [] if given is None else ["--resume"]
        process = await asyncio.create_subprocess_exec(
            *self._program(*invoke, "--url", self.base, *resume, *words),
            cwd=self.folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await process.communicate(json.dumps(given).encode())
        finally:
            if process.returncode is None:
                process.kill()
        assert out, err.decode()
        return json.loads(out)

    def _program(self, *words: str) -> list[str]:
        return [str(self.node), str(self.package / "node_modules/eve/bin/eve.js"), *words]

    async def cursor(self, session: str) -> int:
        """Return the index of the record that starts the last turn of a session."""
        url = f"{self.base}/eve/v1/session/{session}/stream?follow=0"
        async with self.http.get(url) as answer:
            lines = (await answer.text()).split("\n")
        types = [json.loads(line)["type"] for line in lines if line]
        return len(types) - 1 - types[::-1].index("turn.started")


# Scenes. What the scripted backends say to a script is in `proxy/scripted/scripts.py`.


async def conversation(stage: Stage) -> None:
    """A person talks, allows, denies, and picks an answer by the arrow keys."""
    async with stage.terminal() as terminal:
        await terminal.say("script: text")
        await terminal.see("Basil likes six hours of sun")
        await terminal.say("script: approve")
        await terminal.see("rm -rf /srv/exports/2024", stage.yes_or_no)
        terminal.press("y")
        screen = await terminal.see("Done, 4.1 GB freed.")
        if stage.generation != "0.30.8":
            # It takes an approved call whose turn is closed for one that was interrupted, and keeps
            # back all that follows one that still waits; 0.30.8 has no such rows.
            assert "▪ Ran rm -rf /srv/exports/2024" in screen, screen
        await terminal.say("script: approve")
        await terminal.see(stage.yes_or_no)
        terminal.press("n")
        await terminal.see("I left /srv/exports/2024 alone.")
        await terminal.say("script: ask")
        await terminal.see("Which departure do you prefer?", "07:40", "09:10", "sc to dismiss")
        terminal.press("\x1b[B")
        # Two keys in one read are a paste, and only colours tell that the first was read.
        await asyncio.sleep(KEY_S)
        terminal.press("\r")
        screen = await terminal.see("Holding a seat on the 09:10.")
        for wrong in ("Error", "interrupted", "hidden"):
            assert wrong not in screen, screen


async def both(stage: Stage) -> None:
    """Two approvals that stand on the screen at once; the program sends both answers together."""
    async with stage.terminal() as terminal:
        await terminal.say("script: approve2")
        await terminal.see("rm -rf /srv/exports/2024", "/etc/hosts", stage.yes_or_no)
        terminal.press("y")
        # Two keys in one read are a paste: the program has read the first when it asks the second.
        await terminal.see(stage.second)
        terminal.press("y")
        screen = await terminal.see("Done, 4.1 GB freed.", "Written to /etc/hosts.")
        assert "Error" not in screen


async def again(stage: Stage) -> None:
    """The backend refuses the first answer: the program asks once more."""
    async with stage.terminal() as terminal:
        await terminal.say("script: approve refused")
        await terminal.see("rm -rf /srv/exports/2024", stage.yes_or_no)
        terminal.press("y")
        # The question goes and comes back; a key for what is not asked would be a message.
        await asyncio.sleep(AGAIN_S)
        await terminal.see(stage.yes_or_no)
        terminal.press("y")
        screen = await terminal.see("Done, 4.1 GB freed.")
        assert "Error" not in screen


async def child(stage: Stage) -> None:
    """A child agent's work ends in the parent's answer."""
    async with stage.terminal() as terminal:
        await terminal.say("script: child")
        screen = await terminal.see("The researcher says: 84 m.")
        assert "Error" not in screen


class _EngineTalk(EngineTalk):
    """An Engine client that passes over types it does not know, as what is said elsewhere has."""

    @property
    def client(self) -> EngineClient:
        return EngineClient(self._http, self._url(), expect=Expect(known_types=False))


@contextlib.asynccontextmanager
async def _elsewhere(stage: Stage) -> AsyncIterator[EngineTalk | HermTalk]:
    """A conversation of a frontend of the backend's own dialect, which stays at its stream."""
    address = f"{stage.url}/as/{stage.route}/to/{stage.route}"
    name = f"t-{os.urandom(6).hex()}"
    kind = _EngineTalk if stage.route == "engine" else HermTalk
    talk = kind(stage.http, lambda: address, name)
    try:
        yield talk
    finally:
        await talk.aclose()


def _name(talk: EngineTalk | HermTalk) -> str:
    """Return the name that a frontend has for its conversation."""
    name = talk.task_id if isinstance(talk, EngineTalk) else talk.session
    assert name is not None
    return name


async def joined(stage: Stage) -> None:
    """What an Engine or Herm frontend began is watched and answered on the terminal program."""
    async with _elsewhere(stage) as talk:
        assert (await talk.say("script: text")).end == "done"
        assert (await talk.say("script: approve")).end == "waits"
        async with stage.terminal(_name(talk)) as terminal:
            await terminal.say("watch")
            screen = await terminal.see("rm -rf /srv/exports/2024", stage.yes_or_no)
            terminal.press("y")
            screen = await terminal.see("Done, 4.1 GB freed.")
            assert "Error" not in screen
        heard = await talk.hear()
        assert heard.end == "done"
        assert "Done, 4.1 GB freed." in heard.text
        assert (await talk.say("script: ask")).end == "waits"
        async with stage.terminal(_name(talk)) as terminal:
            await terminal.say("watch")
            await terminal.see("Which departure do you prefer?", "sc to dismiss")
            terminal.press("\r")
            screen = await terminal.see("Holding a seat on the 07:40.")
            assert "Error" not in screen
            heard = await talk.hear()
            assert "Holding a seat on the 07:40." in heard.text
            if stage.generation != "0.30.8":
                # 0.30.8 reads while a turn of its own runs (section 7.5 of the eve page).
                assert (await talk.say("script: tool")).end == "done"
                await terminal.see("so 19.99 becomes 1998.")
            await terminal.say("script: text")
            await terminal.see("Basil likes six hours of sun")


async def invoked(stage: Stage) -> None:
    """The same by the programs without a screen, which go on from the JSON that they print."""
    async with _elsewhere(stage) as talk:
        for script, said in (("approve", "Done, 4.1 GB freed."), ("ask", "the 07:40.")):
            assert (await talk.say(f"script: {script}")).end == "waits"
            session = {"sessionId": _name(talk), "streamIndex": await stage.cursor(_name(talk))}
            target = {"kind": "remote", "serverUrl": stage.base}
            told: Any = {"status": "running", "resume": {"session": session, "target": target}}
            told = await stage.invoke(given=told)
            assert told["status"] == "input-required", told
            option = told["requests"][0]["options"][0]["id"]
            given = told
            told = await stage.invoke(option, given=given)
            assert told["status"] == "ready", (given, told)
            assert said in told["outcome"]["message"], told
            heard = await talk.hear()
            assert said in heard.text


SCENES: Mapping[str, tuple[Callable[[Stage], Awaitable[None]], tuple[str, ...]]] = {
    "conversation": (conversation, tuple(BACKENDS)),
    "again": (again, tuple(BACKENDS)),
    "both": (both, ("herm", "eve-t", "eve-s")),
    "child": (child, ("eve-t", "eve-s")),
    "joined": (joined, ("engine", "herm")),
    "invoked": (invoked, ("engine", "herm")),
}
"""Name -> the scene, and the routes that it is played on."""


class House:
    """`dragoman serve` over scripted backends, each a process of its own."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._programs: list[Program] = []
        self.url = ""

    async def start(self) -> None:
        """Start the backends and then the proxy."""
        python, env = self._root / ".venv/bin/python", {"PEERS_KEY": KEY}
        tables = []
        for route, (dialect, options, rest) in BACKENDS.items():
            words = ["-m", "proxy", "scripted", dialect, "--port", "0", "--key", KEY, *options]
            url = await self._started([str(python), *words], env)
            names = f'name = "{route}"\ndialect = "{dialect}"\nurl = "{url}"'
            tables.append(f"[[backends]]\n{names}\n{rest}\n")
        config = self._folder / "dragoman.toml"
        journal = f'[journal]\nurl = "sqlite:///{self._folder}/dragoman.db"\n'
        server = f'[server]\nlisten = "{HOST}:{free_port()}"\n'
        config.write_text("\n".join([server, journal, *tables]))
        dragoman = str(self._root / ".venv/bin/dragoman")
        self.url = await self._started([dragoman, "serve", "--config", str(config)], env)

    async def _started(self, words: Sequence[str], env: dict[str, str]) -> str:
        program = Program(words, self._root, env)
        self._programs.append(program)
        await program.start()
        return (await program.line(r"^listening on (http://\S+)"))[1]

    async def stop(self) -> None:
        """Stop everything, the proxy first."""
        for program in reversed(self._programs):
            await program.stop()

    def tail(self) -> list[str]:
        """The last lines of the proxy."""
        return self._programs[-1].tail


async def play(name: str, stage: Stage) -> bool:
    """Play one scene and print how it went."""
    scene, _ = SCENES[name]
    started, error = time.monotonic(), ""
    try:
        async with asyncio.timeout(SCENE_S):
            await scene(stage)
    except Exception:  # noqa: BLE001 - any failure is one of this scene
        error = traceback.format_exc()
    seconds = time.monotonic() - started
    word = "FAIL" if error else "PASS"
    sys.stdout.write(f"{word} terminal {stage.generation} {stage.route} {name} ({seconds:.1f} s)\n")
    for line in error.splitlines():
        sys.stdout.write(f"     {line}\n")
    sys.stdout.flush()
    return not error


def cells(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Return what the options choose, scene, generation and route; without options the plan."""
    found = [
        (name, generation, route)
        for at, (name, (_, routes)) in enumerate(SCENES.items())
        for route in routes
        for generation in turned(list(PROGRAMS), at)
        if (not options.only or name in options.only.split(","))
        and (not options.gen or generation in options.gen)
    ]
    return found if options.only or options.gen else planned(found, lambda cell: cell)


async def run(options: argparse.Namespace) -> int:
    """Play the chosen scenes, `JOBS` at a time."""
    root = Path(__file__).resolve().parents[2]
    chosen = cells(options)
    if not chosen:
        sys.stdout.write("no scene was chosen\n")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="dragoman-terminal-"))
    house, jobs = House(root, folder), asyncio.Semaphore(JOBS)
    try:
        await house.start()
        async with aiohttp.ClientSession() as http:

            async def one(number: int, name: str, generation: str, route: str) -> bool:
                async with jobs:
                    # The programs keep files of their own where they are started.
                    own = folder / str(number)
                    own.mkdir()
                    package = options.cache / PROGRAMS[generation][0]
                    stage = Stage(options.node, package, generation, house.url, route, own, http)
                    return await play(name, stage)

            played = await asyncio.gather(*(one(i, *choice) for i, choice in enumerate(chosen)))
        failed = played.count(False)
        if failed:
            sys.stdout.write("".join(f"serve: {line}\n" for line in house.tail()))
    finally:
        await house.stop()
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(f"terminal: {len(played) - failed} passed, {failed} failed\n")
    return 1 if failed else 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.peers.terminal", description=__doc__)
    parser.add_argument("--node", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", default="", help="scenes, comma-separated")
    parser.add_argument("--gen", action="append", choices=list(PROGRAMS))
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for name, (_, routes) in SCENES.items():
            sys.stdout.write(f"{name}  {' '.join(routes)}\n")
        return 0
    return asyncio.run(run(options))


if __name__ == "__main__":
    sys.exit(main())
