"""Lets Dragoman drive a third party's server of Claude Managed Agents, unmodified and offline.

The server is `open-managed-agents` with a scripted model; strict eve clients are in front. Run by
`run.sh`:

    python -m tests.peers.services --cache FOLDER [--only SCENE[,SCENE]] [--list]

Prints one line `PASS` or `FAIL` for each; the exit status is 1 after a failure. Without `ALL` in
the environment and without options those scenes are played in which that server is unlike the
vendor's service, or anything breaks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.peers.backends import Program, shortened
from tests.peers.scenes import over, the_one
from tests.peers.scripted_model import ScriptedModel
from tests.peers.talks import Asked, EveTalk, Heard
from tests.support.eve_client import Refused
from tests.support.ports import HOST, free_port

REPOSITORY = Path(__file__).parents[2]
KEY = "sk-third-party"
HEADERS = {
    "x-api-key": KEY,
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
}
# Only what hangs takes longer.
SCENE_S = 300.0
# A message that is taken and not run fails some seconds after this. A server that is only slow has
# a turn running by then, and is asked in vain.
QUIET_S = 8
TRIES = 3
LOST = ("session_already_running", "database is locked")
"""In the server's log: it took a message and never runs it, since the turn before was not put away
yet (after an interrupt that is sure), or a reader that went has left its database locked for a
while, and it answers 500."""
MESSAGES = 10
"""How many messages are lost after an interrupt at most."""

# The engine takes remote tools in its own spelling only; nothing calls that address.
_DICE = {"server_label": "dice", "server_url": "http://127.0.0.1:9/mcp"}
_MCP_SERVER = {"type": "url", "name": "dice", "url": "http://127.0.0.1:9/mcp"}
_ASKS = {"name": "bash", "permission_policy": {"type": "always_ask"}}
_SCHEMA = {"type": "object", "properties": {"prompt": {"type": "string"}}}
# Models of `plain` have no key: the server plays those itself. It asks once for each message.
_PLAYED = {"model": "plain/none"}
AGENTS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "shell": {},
    "dice": {"tools": [{"type": "hosted_mcp", **_DICE, "require_approval": "always"}]},
    "ask": {**_PLAYED, "tools": [{"type": "agent_toolset_20260401", "configs": [_ASKS]}]},
    "custom": {
        **_PLAYED,
        "tools": [
            {"type": "custom", "name": "ask_user", "description": "Ask.", "input_schema": _SCHEMA}
        ],
    },
    "search": {"tools": [{"type": "web_search"}]},
    "declared": {
        "mcp_servers": [_MCP_SERVER],
        "tools": [{"type": "mcp_toolset", "mcp_server_name": "dice"}],
    },
}
_SANDBOX = {"type": "local", "sandbox": {"enabled": True, "backend": "unix_local"}}


class Server(Program):
    """The server; its data outlive it. `worker` is the process of the same package that tries again
    what failed."""

    def __init__(self, home: Path, folder: Path, model: str) -> None:
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        self._home, self._folder = home, folder
        self._python = str(home / "venv" / "bin" / "python")
        provider = {"api_key": KEY, "base_url": model, "default_model": "scripted"}
        settings = {
            "DATABASE_URL": f"sqlite+aiosqlite:///{folder}/server.db",
            "OMA_API_KEY": KEY,
            "OMA_RUNTIME_BACKEND": "auto",
            "OMA_OPENAI_COMPATIBLE_PROVIDERS": json.dumps({"plain": {"default_model": "none"}}),
            "OMA_EVENT_POLL_INTERVAL_SECONDS": "0.1",
            "OPENAI_API_KEY": provider["api_key"],
            "OPENAI_BASE_URL": provider["base_url"],
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "PYTHONUNBUFFERED": "1",
        }
        serve = [*("-m", "uvicorn", "app.main:app"), *("--host", HOST, "--port", str(port))]
        super().__init__([self._python, *serve], folder, settings)
        self.worker = Program([str(home / "venv" / "bin" / "oma-worker")], folder, settings)

    async def start(self) -> None:
        tables = Program([self._python, str(self._home / "tables.py")], self._folder, self._env)
        await tables.start()
        async for _ in tables.lines():
            pass
        await tables.stop()
        await super().start()
        try:
            await self.line(r"Uvicorn running on")
        except TimeoutError:
            lines = "\n".join([*tables.tail, *self.tail])
            raise TimeoutError(f"the server does not start:\n{lines}") from None

    async def kill(self) -> None:
        """Kill it as nothing can be prepared for, and start it again."""
        await self.stop(signal.SIGKILL)
        await self.start()


class Dragoman(Program):
    """`dragoman serve` with a backend for each agent of the server."""

    def __init__(self, folder: Path, server: str, agents: Mapping[str, tuple[str, str]]) -> None:
        self.url = f"http://{HOST}:{free_port()}"
        tables = "".join(
            f'[[backends]]\nname = "{name}"\ndialect = "managed-agents"\nurl = "{server}"\n'
            'auth = { header = "x-api-key", env = "SERVICE_KEY" }\n'
            f'create = {{ agent = "{agent}", environment_id = "{environment}" }}\n'
            f"settings = {{ quiet_seconds = {QUIET_S} }}\n"
            for name, (agent, environment) in agents.items()
        )
        config = folder / "dragoman.toml"
        config.write_text(
            f'[server]\nlisten = "{self.url.removeprefix("http://")}"\n'
            f'[journal]\nurl = "sqlite:///{folder}/dragoman.db"\n{tables}'
        )
        arguments = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
        super().__init__(arguments, REPOSITORY, {"SERVICE_KEY": KEY})

    async def start(self) -> None:
        await super().start()
        try:
            await self.line(r"listening on http")
        except TimeoutError:
            raise TimeoutError("\n".join(["dragoman does not start:", *self.tail])) from None

    async def kill(self) -> None:
        """Kill it as nothing can be prepared for, and start it again."""
        await self.stop(signal.SIGKILL)
        await self.start()


@dataclass(slots=True)
class Stage:
    """Where a scene plays, and its conversations."""

    http: aiohttp.ClientSession
    model: ScriptedModel
    server: Server
    dragoman: Dragoman
    talks: list[EveTalk] = field(default_factory=list)

    def talk(self, agent: str = "plain") -> EveTalk:
        """Begin a conversation with an agent."""
        url = f"{self.dragoman.url}/as/eve/to/{agent}"
        self.talks.append(EveTalk(self.http, lambda: url, agent))
        return self.talks[-1]

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Any:
        """Return a JSON value."""
        async with self.http.get(url, headers=headers, raise_for_status=True) as answer:
            return await answer.json()

    async def session_of(self, talk: EveTalk) -> str:
        """Return the id of a conversation's session at the server."""
        assert talk.session is not None
        url = f"{self.dragoman.url}/api/v1/sessions/{talk.session.session_id}"
        return str((await self.get(url))["legs"][-1]["native_id"])

    async def log_of(self, talk: EveTalk) -> str:
        """Return our log of a conversation."""
        assert talk.session is not None
        url = f"{self.dragoman.url}/api/v1/sessions/{talk.session.session_id}/events"
        async with self.http.get(url) as answer:
            return await answer.text()

    async def check(self, talk: EveTalk) -> None:
        """Check that nothing was sent twice, and nothing shown twice."""
        await talk.check()
        assert talk.session is not None
        url = f"{self.server.url}/v1/sessions/{await self.session_of(talk)}/events?limit=1000"
        stored = (await self.get(url, HEADERS))["data"]
        sent = Counter(
            json.dumps({name: event[name] for name in event if name in _INPUT}, sort_keys=True)
            for event in stored
            if event["type"].startswith("user.") and event["type"] != "user.interrupt"
        )
        assert set(sent.values()) <= {1}, f"sent twice: {sent}"
        kinds = ("message.received", "message.completed", "actions.requested", "input.requested")
        told = Counter(
            json.dumps([record["type"], *(record["data"].get(name) for name in _SHOWN)])
            for record in talk.session.log
            if record["type"] in kinds
        )
        assert set(told.values()) <= {1}, f"shown twice: {told}"


_INPUT = ("type", "content", "tool_use_id", "custom_tool_use_id")
_SHOWN = ("message", "actions", "requests")


def word() -> str:
    """Return a word that no other message has."""
    return secrets.token_hex(4)


Played = Callable[[Stage], Awaitable[None]]
SCENES: dict[str, tuple[bool, Played]] = {}


def scene(play: Played, *, first: bool = False) -> Played:
    """Add a scene by its function's name; `first` ones are played without options too."""
    SCENES[play.__name__] = (first, play)
    return play


def first(play: Played) -> Played:
    """Add a scene that is always played."""
    return scene(play, first=True)


async def answered(talk: EveTalk, name: str = "text") -> None:
    """Say something that is answered."""
    told = word()
    heard = over(await talk.say(f"scene: {name} {told}"))
    assert heard.text == f"Hello {told}.", heard


def failed(heard: Heard) -> str:
    """Check that a turn failed; return why."""
    assert "turn.failed" in heard.types, heard.types
    return str(heard.raw.data("turn.failed")[-1]["message"])


async def read_until(talk: EveTalk, kind: str) -> None:
    """Read on to a record of a type."""
    assert talk.session is not None
    async with contextlib.aclosing(talk.session.follow()) as records:
        async for record in records:
            if record["type"] == kind:
                return
    raise AssertionError(f"no {kind}")


async def hold(stage: Stage, talk: EveTalk) -> str:
    """Say something whose answer the model holds back; return its word."""
    told = word()
    await talk.begin(f"scene: hold {told}")
    await stage.model.holds(told)
    return told


@first
async def batch(stage: Stage) -> None:
    """What is typed while a turn runs, which that server refuses, is answered in order."""
    talk = stage.talk()
    held = await hold(stage, talk)
    words = [word() for _ in range(3)]
    accepted = [await talk.begin(f"scene: text {one}") for one in words]
    stage.model.release(held)
    assert over(await talk.hear()).text == f"Held {held}."
    for one, its in zip(words, accepted, strict=True):
        assert over(await talk.hear(its)).text == f"Hello {one}."


@first
async def interrupt(stage: Stage) -> None:
    """That server takes a message right after an interrupt and never runs it."""
    talk = stage.talk()
    held = await hold(stage, talk)
    await talk.cancel()
    heard = await talk.hear()
    assert "turn.cancelled" in heard.types, heard.types
    lost = word()
    heard = await talk.say(f"scene: text {lost}")
    assert "send it again" in failed(heard), heard
    stage.model.release(held)
    await _answered_at_last(talk)
    assert talk.session is not None
    shown = json.dumps(talk.session.log)
    assert f"Held {held}" not in shown
    assert f"Hello {lost}" not in shown


@first
async def stopped(stage: Stage) -> None:
    """What was typed before a stop goes right after it, and is lost likewise."""
    talk = stage.talk()
    held, lost = await hold(stage, talk), word()
    accepted = await talk.begin(f"scene: text {lost}")
    await talk.cancel()
    heard = await talk.hear()
    assert "turn.cancelled" in heard.types, heard.types
    assert "send it again" in failed(await talk.hear(accepted))
    stage.model.release(held)
    await _answered_at_last(talk)


async def _answered_at_last(talk: EveTalk) -> None:
    """Say something until it is answered: the server is still putting an old turn away."""
    for _ in range(MESSAGES):
        told = word()
        heard = await talk.say(f"scene: text {told}")
        if heard.end == "done":
            assert heard.text == f"Hello {told}.", heard
            return
        assert "send it again" in failed(heard), heard
    raise AssertionError(f"no answer to {MESSAGES} messages")


@first
async def killed(stage: Stage) -> None:
    """A killed server says for ever that the session runs: an interrupt frees it."""
    talk = stage.talk()
    await answered(talk)
    held = await hold(stage, talk)
    await stage.server.kill()
    url = f"{stage.server.url}/v1/sessions/{await stage.session_of(talk)}"
    assert (await stage.get(url, HEADERS))["status"] == "running"
    await talk.cancel()
    heard = await talk.hear()
    assert "turn.cancelled" in heard.types, heard.types
    stage.model.release(held)
    await answered(talk)


@first
async def killed_both(stage: Stage) -> None:
    """What was typed while all was down is answered once the session is freed."""
    talk = stage.talk()
    held = await hold(stage, talk)
    await stage.server.stop(signal.SIGKILL)
    await stage.dragoman.kill()
    told = word()
    accepted = await talk.begin(f"scene: text {told}")
    await stage.server.start()
    await talk.cancel()
    heard = await talk.hear()
    assert "turn.cancelled" in heard.types, heard.types
    stage.model.release(held)
    assert over(await talk.hear(accepted)).text == f"Hello {told}."


@first
async def reconnect(stage: Stage) -> None:
    """A stream that repeats all history is opened anew after kills, in a turn and between two."""
    talk = stage.talk()
    await answered(talk)
    held = await hold(stage, talk)
    await stage.dragoman.kill()
    stage.model.release(held)
    assert over(await talk.hear()).text == f"Held {held}."
    await stage.dragoman.kill()
    await answered(talk)


@first
async def two(stage: Stage) -> None:
    """Two approvals are given one by one, and in one request."""
    for together in (False, True):
        talk = stage.talk("dice")
        told = word()
        heard = await talk.say(f"scene: two {told}")
        asked = heard.asked
        assert len(asked) == 2, heard
        if together:
            heard = await talk.answer_both(asked, [True, True])
        else:
            for one in asked:
                heard = await talk.answer(one, allow=True)
        assert over(heard).text == f"Both rolls of {told} are over."


@first
async def custom(stage: Stage) -> None:
    """The result of an application's tool is words, or that it failed."""
    for good in (True, False):
        talk = stage.talk("custom")
        asked = the_one(await talk.say(f"which colour, {word()}?"))
        if good:
            heard = await talk.answer(asked, text="red")
        else:
            heard = await _skip(stage, talk, asked)
        assert over(heard).text, heard


async def _skip(stage: Stage, talk: EveTalk, asked: Asked) -> Heard:
    assert talk.session is not None
    name = talk.session.session_id
    url = f"{stage.dragoman.url}/api/v1/sessions/{name}/interactions/{asked.id}"
    async with stage.http.post(url, json={"skip": True}, raise_for_status=True):
        return await talk.hear()


@scene
async def text(stage: Stage) -> None:
    talk = stage.talk()
    await answered(talk)
    await answered(talk)


@scene
async def reason(stage: Stage) -> None:
    """Its text is in a block that only this server has: it is kept, and not shown."""
    talk, told = stage.talk(), word()
    heard = over(await talk.say(f"scene: reason {told}"))
    assert "reasoning.completed" in heard.types, heard
    assert heard.text == f"The answer {told} is 42."
    assert "First I add 40 and 2." in await stage.log_of(talk)


@scene
async def tool(stage: Stage) -> None:
    """A real call of the shell."""
    told = word()
    heard = over(await stage.talk("shell").say(f"scene: tool {told}"))
    assert [(call.name, call.status) for call in heard.tools] == [("exec_command", "completed")]
    assert heard.text == f"It printed hi, {told}."


@scene
async def search(stage: Stage) -> None:
    """A call that the model's provider ran has no result."""
    talk = stage.talk("search")
    told = word()
    heard = over(await talk.say(f"scene: search {told}"))
    assert heard.said == f"I look {told} up.", heard
    assert len(heard.tools) == 1, heard
    await answered(talk)


@scene
async def mcp_declared(stage: Stage) -> None:
    """An error that is told at the start of each turn ends none."""
    talk = stage.talk("declared")
    await answered(talk)
    await answered(talk)
    assert "mcp_auth_missing" in await stage.log_of(talk)


@scene
async def stopped_while_asked(stage: Stage) -> None:
    """A stop takes back what is asked."""
    talk = stage.talk("dice")
    the_one(await talk.say(f"scene: approve {word()}"))
    await talk.cancel()
    # The pause has closed the turn for this client.
    await read_until(talk, "input.resolved")
    await answered(talk)


@scene
async def allow(stage: Stage) -> None:
    await _decide(stage, allowed=True)


@scene
async def deny(stage: Stage) -> None:
    await _decide(stage, allowed=False)


async def _decide(stage: Stage, *, allowed: bool) -> None:
    talk = stage.talk("ask")
    asked = the_one(await talk.say(f"list the files of {word()}"))
    assert over(await talk.answer(asked, allow=allowed)).text
    result = "allow" if allowed else "deny"
    url = f"{stage.server.url}/v1/sessions/{await stage.session_of(talk)}/events"
    stored = (await stage.get(url, HEADERS))["data"]
    assert [one["result"] for one in stored if "result" in one] == [result]


@scene
async def fail(stage: Stage) -> None:
    """A failure of the model ends the session for good."""
    talk = stage.talk()
    heard = await talk.say(f"scene: fail {word()}")
    assert "scripted failure 400" in failed(heard), heard
    await read_until(talk, "session.failed")
    status, code = 0, None
    try:
        await talk.begin(f"scene: text {word()}")
    except Refused as refused:
        status, code = refused.status, refused.code
    assert (status, code) == (409, "session_not_active"), (status, code)


@scene
async def failthenok(stage: Stage) -> None:
    """The package's worker tries a turn again."""
    await stage.server.worker.start()
    try:
        told = word()
        heard = over(await stage.talk().say(f"scene: failthenok {told}"))
    finally:
        await stage.server.worker.stop()
    assert heard.text == f"It works again, {told}."


async def agents_at(server: str, http: aiohttp.ClientSession) -> dict[str, tuple[str, str]]:
    """Make the agents and their environments at the server."""

    async def make(what: str, body: Mapping[str, Any]) -> str:
        url = f"{server}/v1/{what}"
        async with http.post(url, json=body, headers=HEADERS, raise_for_status=True) as answer:
            return str((await answer.json())["id"])

    cloud = await make("environments", {"name": "cloud", "config": {"type": "cloud"}})
    local = await make("environments", {"name": "local", "config": _SANDBOX})
    base = {"model": "claude-opus-4-7", "system": "Be plain."}
    return {
        name: (
            await make("agents", {"name": name, **base, **members}),
            local if name == "shell" else cloud,
        )
        for name, members in AGENTS.items()
    }


@contextlib.asynccontextmanager
async def stage_for(cache: Path) -> AsyncIterator[Stage]:
    """Start the model, the server and Dragoman."""
    home = cache / "servers" / "open-managed-agents"
    async with contextlib.AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-peers-")))
        model = ScriptedModel()
        server = Server(home, folder, await stack.enter_async_context(model.serve()))
        stack.push_async_callback(server.stop, signal.SIGKILL)
        await server.start()
        agents = await agents_at(server.url, http)
        dragoman = Dragoman(folder, server.url, agents)
        stack.push_async_callback(dragoman.stop)
        await dragoman.start()
        yield Stage(http, model, server, dragoman)


async def play(name: str, stage: Stage) -> bool:
    """Play a scene, again where the server spoilt it by itself; print what came of it."""
    begun = time.monotonic()
    for attempt in range(1, TRIES + 1):
        why = await play_once(name, stage)
        # What is lost fails, and never hangs.
        lost = any(words in line for line in stage.server.tail for words in LOST)
        if not why or attempt == TRIES or not lost or why.startswith("TimeoutError"):
            break
        print(f"     {name}: a fault of the server itself; played again", flush=True)
    ms = (time.monotonic() - begun) * 1000
    print(f"{'FAIL' if why else 'PASS'} {name} ({ms:.0f} ms)", flush=True)
    if why:
        print("     " + why.replace("\n", "\n     "), flush=True)
    return not why


async def play_once(name: str, stage: Stage) -> str:
    """Play a scene; return why it failed, or nothing."""
    stage.talks, stage.server.tail = [], []
    try:
        async with asyncio.timeout(SCENE_S):
            await SCENES[name][1](stage)
            for talk in stage.talks:
                if talk.session is not None:
                    await stage.check(talk)
    except Exception as error:  # noqa: BLE001 - the root of a scene
        where = traceback.format_exc(limit=-4)[-4000:]
        why = [f"{type(error).__name__}: {str(error)[:2000]}", where]
        for talk in stage.talks:
            with contextlib.suppress(Exception):
                why += ["our log:", shortened(await stage.log_of(talk))]
        why += ["the server:", *stage.server.tail[-20:]]
        # What the scene broke is not broken for the next one.
        for program in (stage.server, stage.dragoman):
            if program.process is None or program.process.returncode is not None:
                await program.kill()
        return "\n".join(why)
    return ""


async def run(names: Sequence[str], cache: Path) -> int:
    """Play scenes one by one, since some kill what all talk to; return the exit code."""
    async with stage_for(cache) as stage:
        results = [await play(name, stage) for name in names]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed", flush=True)
    return 0 if results and all(results) else 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.peers.services", description=__doc__)
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
    return asyncio.run(run(names, options.cache.resolve()))


if __name__ == "__main__":
    sys.exit(main())
