"""Lets a real Hermes Agent tell Dragoman what it does, and wait for decisions, by its hooks.

Hermes is unmodified, offline, and has a scripted model; `dragoman hook install` puts the hooks in
as a user would. The frontends are unmodified clients. Run by `run.sh`:

    python -m tests.peers.hermes --node NODE --cache FOLDER [--only SCENE[,SCENE]] [--list]

Prints one line `PASS` or `FAIL` for each; the exit status is 1 after a failure. Without `ALL` in
the environment and without options those scenes are played in which somebody decides, and one of
each kind besides.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from tests.peers.backends import Program, shortened
from tests.peers.chat_model import ChatModel
from tests.peers.terminal import Terminal
from tests.support.ports import HOST, free_port

REPOSITORY = Path(__file__).parents[2]
# Only what hangs takes longer.
SCENE_S = 300.0
STORED_S = 60.0
JOBS = 2
WATCH = ("--gate", "")
USECHAT = "4.0.177"

Line = tuple[Any, ...]
Value = TypeVar("Value")


class Dragoman(Program):
    """`dragoman serve` with a backend that sends hooks, on a journal that outlives it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://{HOST}:{free_port()}"
        config = folder / "dragoman.toml"
        config.write_text(
            f'[server]\nlisten = "{self.url.removeprefix("http://")}"\n'
            f'[journal]\nurl = "sqlite:///{folder}/dragoman.db"\n'
            '[[backends]]\nname = "hermes-agent"\ndialect = "hermes-agent"\nurl = "hooks:"\n'
        )
        arguments = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
        super().__init__(arguments, REPOSITORY, {})

    async def start(self) -> None:
        await super().start()
        try:
            await self.line(r"listening on http")
        except TimeoutError:
            raise TimeoutError("\n".join(["dragoman does not start:", *self.tail])) from None


@dataclass(slots=True)
class Stage:
    """Where a scene plays: a home of Hermes and a Dragoman of its own."""

    options: argparse.Namespace
    http: aiohttp.ClientSession
    model: ChatModel
    model_url: str
    folder: Path
    dragoman: Dragoman
    programs: list[Program] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """The home of Hermes."""
        return self.folder / "hermes"

    @property
    def work(self) -> Path:
        """The folder in which the tools of Hermes run."""
        return self.folder / "work"

    @property
    def hermes_program(self) -> str:
        """The program."""
        return str(self.options.cache / "servers" / "hermes-agent" / "venv" / "bin" / "hermes")

    @property
    def hermes_env(self) -> dict[str, str]:
        """The environment that it needs."""
        return {"HOME": str(self.folder), "HERMES_HOME": str(self.home)}

    def prepare(self) -> None:
        """Make the home of a Hermes that asks nobody but its hooks."""
        for folder in (self.home, self.work, self.work / "precious"):
            folder.mkdir()
        (self.home / "config.yaml").write_text(
            "model:\n  provider: custom\n  default: scripted\n  api_key: none\n"
            f"  base_url: {self.model_url}\n  context_length: 200000\n"
            f"terminal:\n  backend: local\n  cwd: {self.work}\n"
            "approvals:\n  mode: manual\n  timeout: 300\n"
            "compression:\n  enabled: false\n"
            "updates:\n  check: false\n"
        )

    async def install(self, *ways: str, options: Sequence[str] = ()) -> None:
        """Install hooks, as a user does."""
        given = [word for way in ways for word in ("--way", way)]
        url = f"{self.dragoman.url}/from/hermes-agent"
        program = [sys.executable, "-m", "proxy", "hook", "install", "--yes"]
        installing = Program(
            [*program, "--home", str(self.home), "--url", url, *given, *options], REPOSITORY, {}
        )
        await self.ended(installing)

    def program(self, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Program:
        """Return a program that ends with the scene."""
        self.programs.append(Program(arguments, self.work, dict(env or {})))
        return self.programs[-1]

    def hermes(self, *words: str, **env: str) -> Program:
        """Return a Hermes that is not started yet."""
        return self.program([self.hermes_program, *words], {**self.hermes_env, **env})

    @contextlib.asynccontextmanager
    async def gateway(self, **env: str) -> AsyncIterator[Gateway]:
        """Run a gateway with its API server."""
        port, key = free_port(), secrets.token_hex(16)
        given = {"API_SERVER_ENABLED": "true", "API_SERVER_KEY": key, "API_SERVER_PORT": str(port)}
        program = self.hermes("gateway", "run", **given, **env)
        await program.start()
        gateway = Gateway(self.http, f"http://{HOST}:{port}", key)
        try:
            await until(gateway.listens)
            yield gateway
        finally:
            await program.stop()

    async def ended(self, program: Program) -> str:
        """Run a program to its end; return what it said.

        Raises:
            AssertionError: it failed.
        """
        if program.process is None:
            await program.start()
        said = [line async for line in program.lines()]
        assert program.process is not None
        status = await program.process.wait()
        assert status == 0, "\n".join([f"exit status {status}", *said])
        return "\n".join(said)

    def face(self, dialect: str) -> str:
        """Return the base URL for frontends of a dialect."""
        return f"{self.dragoman.url}/as/{dialect}/to/hermes-agent"

    async def get(self, path: str) -> Any:
        """Return a JSON value of the control API."""
        async with self.http.get(f"{self.dragoman.url}/api/v1/{path}") as answer:
            answer.raise_for_status()
            return await answer.json()

    async def events(self, session: str) -> list[dict[str, Any]]:
        """Return the canonical events of a session."""
        url = f"{self.dragoman.url}/api/v1/sessions/{session}/events"
        async with self.http.get(url, raise_for_status=True) as answer:
            return [json.loads(line) async for line in answer.content if line.strip()]

    async def asked(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so much is asked; return it."""

        async def found() -> list[dict[str, Any]]:
            open_ = (await self.get("interactions"))["interactions"]
            return open_ if len(open_) >= count else []

        return await until(found)

    async def name_of(self, asked: Mapping[str, Any]) -> str:
        """Return the id that Hermes gave the session of a request."""
        session = await self.get(f"sessions/{asked['session_id']}")
        return str(session["aliases"][0])

    async def decide(self, asked: Mapping[str, Any], decision: str, **more: str) -> None:
        """Answer a request over the control API."""
        url = f"{self.dragoman.url}/api/v1/sessions/{asked['session_id']}/interactions/"
        answer = {"decision": decision, **more}
        async with self.http.post(url + asked["request_id"], json=answer) as response:
            assert response.status == 202, await response.text()

    async def session(self, name: str | None = None) -> dict[str, Any]:
        """Wait until there is the one session, or the one that Hermes calls so; return it."""
        query = "" if name is None else f"?name={name}"

        async def found() -> list[dict[str, Any]]:
            return list((await self.get(f"sessions{query}"))["sessions"])

        (session,) = await until(found)
        return dict(await self.get(f"sessions/{session['id']}"))

    async def check(self, name: str | None = None, turns: int = 1) -> list[dict[str, Any]]:
        """Wait for the ends of so many turns of a session, and check that it is what Hermes has
        stored of it; return its events."""
        session = await self.session(name)

        async def found() -> list[dict[str, Any]]:
            events = await self.events(session["id"])
            ends = [one for one in events if _is_main(one) and one["type"] == "turn.ended"]
            return events if len(ends) >= turns else []

        events = await until(found)
        types = [one["type"] for one in events if _is_main(one)]
        assert types.count("turn.started") == types.count("turn.ended") == turns, types
        for kind, name in _ONCE.items():
            told = [one[name] for one in events if one["type"] == kind]
            assert len(set(told)) == len(told), told
        name = session["aliases"][0]

        async def same() -> bool:
            return shown(events) == stored(self.home, name)

        # A gateway stores a turn after its end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STORED_S):
                await until(same)
        ours, theirs = shown(events), stored(self.home, name)
        assert ours == theirs, f"shown: {ours}\nbut Hermes has: {theirs}"
        assert ours, "nothing is shown"
        return events


_ONCE = {"tool.called": "call_id", "interaction.requested": "request_id"}
"""Of what is told once, the name that it has."""


async def until(found: Callable[[], Awaitable[Value]]) -> Value:
    """Return what is found at last; the scene's limit ends what never comes."""
    while not (value := await found()):  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.05)
    return value


def _is_main(event: Mapping[str, Any]) -> bool:
    return bool(event["thread_id"] == "main")


def shown(events: Sequence[Mapping[str, Any]], thread: str = "main") -> list[Line]:
    """Return what our events say of a thread: words, and calls with their results."""
    lines: list[Line] = []
    results: dict[str, Any] = {}
    for event in events:
        if event["thread_id"] != thread:
            continue
        match event["type"]:
            case "message.received" | "thread.message":
                lines.append(("user", "".join(part["text"] for part in event["content"])))
            case "text.completed":
                lines.append(("assistant", event["text"]))
            case "tool.called":
                lines.append(("call", event["call_id"], event["name"], event["input"]))
            case "tool.returned":
                results[event["call_id"]] = event["output"]
            case _:
                pass
    return [line if line[0] != "call" else (*line, results[line[1]]) for line in lines]


def rejected(events: Sequence[Mapping[str, Any]]) -> int:
    """Return how many calls were rejected."""
    return sum(one["type"] == "tool.returned" and one["status"] == "rejected" for one in events)


def stored(home: Path, session: str) -> list[Line]:
    """Return the same from the database of Hermes."""
    with contextlib.closing(sqlite3.connect(f"file:{home}/state.db?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT role, content, tool_call_id, tool_calls FROM messages "
            "WHERE session_id = ? AND active = 1 ORDER BY id",
            (session,),
        ).fetchall()
    results = {call: _value(content) for role, content, call, _ in rows if role == "tool"}
    lines: list[Line] = []
    for role, content, _, calls in rows:
        if role in ("user", "assistant") and content:
            lines.append((role, content))
        for call in json.loads(calls or "[]"):
            function = call["function"]
            arguments = json.loads(function["arguments"])
            lines.append(("call", call["id"], function["name"], arguments, results[call["id"]]))
    return lines


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(slots=True)
class Gateway:
    """A `hermes gateway` with its API server."""

    http: aiohttp.ClientSession
    url: str
    key: str

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post to the API; return the answer."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with self.http.post(self.url + path, json=body, headers=headers) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def get(self, path: str) -> Any:
        """Return a JSON value of the API."""
        headers = {"Authorization": f"Bearer {self.key}"}
        async with self.http.get(self.url + path, headers=headers, raise_for_status=True) as answer:
            return await answer.json()

    async def listens(self) -> bool:
        """Whether it answers."""
        try:
            return bool((await self.get("/health"))["status"] == "ok")
        except aiohttp.ClientError:
            return False

    async def begin_run(self, text: str) -> str:
        """Begin a run; return its id, which is its session's too."""
        return str((await self.post("/v1/runs", {"input": text}))["run_id"])

    async def end_run(self, run: str, status: str) -> None:
        """Wait until a run is over, and check how it ended."""

        async def found() -> str:
            is_ = str((await self.get(f"/v1/runs/{run}"))["status"])
            return is_ if is_ in ("completed", "failed", "cancelled") else ""

        ended = await until(found)
        assert ended == status, await self.get(f"/v1/runs/{run}")

    async def chat(self, *texts: str) -> str:
        """Say things in a session of its own; return its id."""
        session = str((await self.post("/api/sessions", {}))["session"]["id"])
        for text in texts:
            await self.post(f"/api/sessions/{session}/chat", {"message": text})
        return session


def word() -> str:
    """Return a word that no other message has."""
    return secrets.token_hex(4)


Played = Callable[[Stage], Awaitable[None]]
SCENES: dict[str, tuple[bool, Played]] = {}


def scene(play: Played, *, first: bool = False) -> Played:
    """Add a scene by its function's name; `first` ones are played without options too."""
    SCENES[play.__name__.replace("_", "-")] = (first, play)
    return play


def first(play: Played) -> Played:
    """Add a scene that is always played."""
    return scene(play, first=True)


@first
async def oneshot(stage: Stage) -> None:
    """All that one process says by shell hooks arrives as Hermes has stored it."""
    await stage.install("shell", options=WATCH)
    told = word()
    said = await stage.ended(stage.hermes("-z", f"scene: many {told}"))
    assert f"The answer {told} is 42." in said, said
    events = await stage.check()
    assert len([one for one in events if one["type"] == "tool.called"]) == 4
    assert any(one["type"] == "reasoning.completed" for one in events)


@first
async def gate_eve(stage: Stage) -> None:
    """The unmodified eve client watches a session by the id that Hermes gave it, and allows."""
    told, hermes, asked = await _begin_danger(stage, "shell")
    driver = stage.options.cache / "eve-0.80.1" / "approve.mjs"
    client = stage.program(
        [str(stage.options.node), str(driver), stage.face("eve"), await stage.name_of(asked)]
    )
    seen = json.loads((await stage.ended(client)).splitlines()[-1])
    assert f"That was {told}." in await stage.ended(hermes)
    assert not (stage.work / "precious").exists()
    assert seen["user"] == [f"scene: danger {told}"], seen
    assert seen["said"] == ["I clean up.", f"That was {told}."], seen
    assert seen["asked"] == ["terminal"], seen
    assert (len(seen["results"]), seen["end"]) == (1, "turn.completed"), seen
    await stage.check()


@first
async def gate_usechat(stage: Stage) -> None:
    """A page with `useChat`, whose chat has the id of the session, allows."""
    told, hermes, asked = await _begin_danger(stage, "plugin")
    driver = stage.options.cache / "aisdk" / "clients" / "approve.mjs"
    page = [str(stage.options.node), str(driver), USECHAT, stage.face("aisdk")]
    client = stage.program([*page, await stage.name_of(asked)])
    seen = json.loads((await stage.ended(client)).splitlines()[-1])
    assert f"That was {told}." in await stage.ended(hermes)
    assert not (stage.work / "precious").exists()
    assert seen["said"] == ["I clean up.", f"That was {told}."], seen
    assert (seen["posts"], seen["shown"][-1]) == (1, "ends"), seen
    await stage.check()


@first
async def gate_anthropic(stage: Stage) -> None:
    """The vendor's SDK denies, and the model is told why."""
    told, hermes, asked = await _begin_danger(stage, "shell")
    python = stage.options.cache / "managed_agents" / "python"
    client = [str(python / "venv" / "bin" / "python"), str(python / "deny.py")]
    arguments = [stage.face("managed-agents"), await stage.name_of(asked), "Keep it."]
    said = await stage.ended(stage.program([*client, *arguments]))
    seen = json.loads(said.splitlines()[-1])
    assert f"That was {told}." in await stage.ended(hermes)
    assert (stage.work / "precious").exists()
    assert seen["asked"] == ["terminal"], seen
    assert seen["texts"] == [f"scene: danger {told}", "I clean up.", f"That was {told}."], seen
    (result,) = stage.model.results(told)
    assert "Keep it." in result, result
    events = await stage.check()
    assert rejected(events) == 1


async def _begin_danger(stage: Stage, *ways: str) -> tuple[str, Program, dict[str, Any]]:
    """Let Hermes come to a call that waits; return its word, the Hermes, and what is asked."""
    await stage.install(*ways)
    told = word()
    hermes = stage.hermes("-z", f"scene: danger {told}")
    await hermes.start()
    (asked,) = await stage.asked()
    assert (stage.work / "precious").exists()
    return told, hermes, asked


@first
async def dead(stage: Stage) -> None:
    """Without Dragoman what is gated is blocked, and the turn goes on to its end."""
    await _play_without_dragoman(stage, "shell")


@scene
async def dead_plugin(stage: Stage) -> None:
    """So it is for a plugin."""
    await _play_without_dragoman(stage, "plugin")


async def _play_without_dragoman(stage: Stage, way: str) -> None:
    await stage.install(way)
    await stage.dragoman.stop(signal.SIGKILL)
    told = word()
    said = await stage.ended(stage.hermes("-z", f"scene: danger {told}"))
    assert f"That was {told}." in said, said
    assert (stage.work / "precious").exists()
    (result,) = stage.model.results(told)
    assert "Not allowed by Dragoman" in result, result


@first
async def killed(stage: Stage) -> None:
    """A call waits on while Dragoman is killed and started again, and runs once."""
    await stage.install("plugin")
    told = word()
    hermes = stage.hermes("-z", f"scene: append {told}")
    await hermes.start()
    before = await stage.asked()
    await stage.dragoman.stop(signal.SIGKILL)
    await stage.dragoman.start()
    (asked,) = await stage.asked()
    assert [asked["request_id"]] == [one["request_id"] for one in before]
    assert not (stage.work / "ran.txt").exists()
    await stage.decide(asked, "allow")
    assert f"Appended {told}." in await stage.ended(hermes)
    assert (stage.work / "ran.txt").read_text() == f"{told}\n"
    await stage.check()


@first
async def api(stage: Stage) -> None:
    """What the API server runs is told once, though a plugin and shell hooks tell it."""
    await stage.install("plugin", "shell", options=("--gate", "write_file"))
    async with stage.gateway() as gateway:
        told = [word() for _ in range(4)]
        many = await gateway.begin_run(f"scene: many {told[0]}")
        (asked,) = await stage.asked()
        await stage.decide(asked, "allow")
        await gateway.end_run(many, "completed")
        delegate = await gateway.begin_run(f"scene: delegate {told[1]}")
        await gateway.end_run(delegate, "completed")
        fail = await gateway.begin_run(f"scene: fail {told[2]}")
        await gateway.end_run(fail, "failed")
        chat = await gateway.chat(f"scene: tool {told[3]}", f"scene: text {told[3]}")
        events = await stage.check(many)
        assert [one["type"] for one in events].count("interaction.requested") == 1
        _check_child(stage, await stage.check(delegate), told[1])
        events = await stage.check(fail)
        assert [one["type"] for one in events].count("error.reported") == 1
        assert events[-1]["outcome"] == "failed", events[-1]
        await stage.check(chat, turns=2)


def _check_child(stage: Stage, events: Sequence[Mapping[str, Any]], told: str) -> None:
    """Check that a child's work is what Hermes has stored of it, in a thread of its own."""
    (child,) = [one["thread_id"] for one in events if one["type"] == "thread.started"]
    lines = shown(events, child)
    assert lines[-1] == ("assistant", f"The child ran {told}."), lines
    assert lines == stored(stage.home, child)


@scene
async def webhook(stage: Stage) -> None:
    """What a gateway does for a webhook is told once by its own hook and the plugin."""
    await stage.install("gateway", "plugin", options=WATCH)
    port = free_port()
    with (stage.home / "config.yaml").open("a") as config:
        config.write(
            "platforms:\n  webhook:\n    enabled: true\n    extra:\n"
            f"      host: {HOST}\n      port: {port}\n      routes:\n"
            '        demo: {secret: INSECURE_NO_AUTH, prompt: "{text}", deliver: log}\n'
        )
    async with stage.gateway():
        url, told = f"http://{HOST}:{port}/webhooks/demo", word()
        # The gateway's own hook tells the first 500 characters, and before the plugin does.
        text = f"scene: reason {told} {'and so on ' * 60}".strip()
        async with stage.http.post(url, json={"text": text}) as answer:
            assert answer.status < 300, await answer.text()
        events = await stage.check()
        assert ("user", text) in shown(events)


@scene
async def serve(stage: Stage) -> None:
    """The plugin tells what a `hermes serve` does, where shell hooks are never called."""
    await stage.install("plugin", options=("--gate", "write_file"))
    port, token = free_port(), secrets.token_hex(16)
    server = stage.hermes(
        *("serve", "--port", str(port), "--skip-build"), HERMES_DASHBOARD_SESSION_TOKEN=token
    )
    await server.start()
    await server.line(r"HERMES_BACKEND_READY")
    async with stage.http.ws_connect(f"ws://{HOST}:{port}/api/ws?token={token}") as socket:
        rpc = Rpc(socket)
        session = await rpc.call("session.create", cols=80)
        told = word()
        for text in (f"scene: many {told}", f"scene: text {told}"):
            await rpc.call("prompt.submit", session_id=session["session_id"], text=text)
            if "many" in text:
                (asked,) = await stage.asked()
                assert await stage.name_of(asked) == session["stored_session_id"]
                await stage.decide(asked, "allow")
            await rpc.event("message.complete")
        await stage.check(session["stored_session_id"], turns=2)


class Rpc:
    """A client of `hermes serve`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._events: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method; return its result."""
        self._number += 1
        head = {"jsonrpc": "2.0", "id": self._number, "method": method}
        await self._socket.send_json({**head, "params": params})
        while True:
            seen = await self._read()
            if seen.get("id") == self._number:
                assert "error" not in seen, seen
                return seen["result"]

    async def event(self, kind: str) -> None:
        """Wait for the next event of a type."""
        while kind not in self._events:
            await self._read()
        self._events.remove(kind)

    async def _read(self) -> Any:
        seen = await self._socket.receive_json()
        if seen.get("method") == "event":
            self._events.append(seen["params"]["type"])
        return seen


@scene
async def cli(stage: Stage) -> None:
    """Two turns that a person types at the interactive program."""
    await stage.install("plugin", options=WATCH)
    told = word()
    program = [stage.hermes_program, "--cli"]
    terminal = Terminal(program, stage.work, stage.hermes_env)
    try:
        await terminal.see("❯")
        await terminal.say(f"scene: many {told}")
        await terminal.see(f"The answer {told} is 42.")
        await terminal.say(f"scene: tool {told}")
        await terminal.see(f"It printed {told}.")
        await terminal.say("/exit")
        await stage.check(turns=2)
        await terminal.ended()
    finally:
        terminal.close()


@scene
async def deadline(stage: Stage) -> None:
    """Nobody answers in time: the call is blocked, and nothing is asked any more."""
    await stage.install("shell", options=("--wait", "3"))
    told = word()
    said = await stage.ended(stage.hermes("-z", f"scene: danger {told}"))
    assert f"That was {told}." in said, said
    assert (stage.work / "precious").exists()
    (result,) = stage.model.results(told)
    assert "Nobody answered in time." in result, result
    events = await stage.check()
    types = [one["type"] for one in events]
    assert (types.count("interaction.requested"), rejected(events)) == (1, 1), types
    assert not (await stage.get("interactions"))["interactions"]


@contextlib.asynccontextmanager
async def stage_for(
    options: argparse.Namespace, http: aiohttp.ClientSession, model: ChatModel, model_url: str
) -> AsyncIterator[Stage]:
    """Start a Dragoman, and make a home of Hermes."""
    with tempfile.TemporaryDirectory(prefix="dragoman-peers-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        stage = Stage(options, http, model, model_url, folder, Dragoman(folder))
        stage.prepare()
        try:
            await stage.dragoman.start()
            yield stage
        finally:
            for program in [*stage.programs, stage.dragoman]:
                await program.stop(signal.SIGKILL)


async def why_failed(stage: Stage, error: Exception) -> str:
    """Return all that is known of a failure."""
    where = traceback.format_exc(limit=-4)[-4000:]
    why = [f"{type(error).__name__}: {str(error)[:4000]}", where]
    with contextlib.suppress(Exception):
        for session in (await stage.get("sessions"))["sessions"]:
            events = await stage.events(session["id"])
            why += ["our log:", shortened("\n".join(map(json.dumps, events)))]
    for program in [*stage.programs, stage.dragoman]:
        why += ["a program:", *program.tail[-20:]]
    log = stage.home / "logs" / "errors.log"
    if log.exists():
        why += ["Hermes:", *log.read_text(errors="replace").splitlines()[-20:]]
    return "\n".join(why)


async def play(
    name: str,
    options: argparse.Namespace,
    http: aiohttp.ClientSession,
    model: ChatModel,
    model_url: str,
) -> bool:
    """Play a scene; print what came of it."""
    begun, why = time.monotonic(), ""
    try:
        async with stage_for(options, http, model, model_url) as stage:
            try:
                async with asyncio.timeout(SCENE_S):
                    await SCENES[name][1](stage)
            except Exception as error:  # noqa: BLE001 - the root of a scene
                why = await why_failed(stage, error)
    except TimeoutError as error:
        why = str(error)
    ms = (time.monotonic() - begun) * 1000
    print(f"{'FAIL' if why else 'PASS'} {name} ({ms:.0f} ms)", flush=True)
    if why:
        print("     " + why.replace("\n", "\n     "), flush=True)
    return not why


async def run(names: Sequence[str], options: argparse.Namespace) -> int:
    """Play scenes, some at once; return the exit code."""
    model, slots = ChatModel(), asyncio.Semaphore(JOBS)
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with model.serve() as url, aiohttp.ClientSession(connector=connector) as http:

        async def one(name: str) -> bool:
            async with slots:
                return await play(name, options, http, model, url)

        results = await asyncio.gather(*map(one, names))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed", flush=True)
    return 0 if results and all(results) else 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.peers.hermes", description=__doc__)
    parser.add_argument("--node", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", default="", help="scenes, comma-separated")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    every = bool(only or os.environ.get("ALL"))
    names = [
        name
        for name, (always, _) in SCENES.items()
        if (every or always) and (not only or name in only)
    ]
    if options.list:
        print("\n".join(names))
        return 0
    options.cache, options.node = options.cache.resolve(), options.node.absolute()
    return asyncio.run(run(names, options))


if __name__ == "__main__":
    sys.exit(main())
