"""Lets Dragoman drive agents of five frameworks by AG-UI, unmodified and offline.

The agents are programs in `servers/ag-ui`, with scripted models; the strict clients of
`tests.support` are in front. Run by `run.sh`:

    python -m tests.peers.agents --cache FOLDER [--only SCENE[,SCENE]] [--server NAME[,NAME]]
                                 [--list]

Prints one line `PASS` or `FAIL` for each scene on each server; the exit status is 1 after a
failure. Without `ALL` in the environment, `--only` and `--server` the scene that is silent for more
than a minute is left out, and scenes that kill something where another server shows the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.peers.backends import Program, shortened
from tests.peers.hermes import until
from tests.peers.scenes import over, the_one
from tests.peers.services import failed, read_until, word
from tests.peers.talks import Asked, EveTalk
from tests.support.agui_client import AguiClient, Applied
from tests.support.aisdk_client import AisdkClient, Body, Page, tools_of
from tests.support.ports import HOST, free_port

REPOSITORY = Path(__file__).parents[2]
# Only what hangs takes longer.
SCENE_S = 300.0
# Longer than a scene, for a tool that is never waited for.
LONG_S = 600
# Proxies cut a body that says nothing for a minute.
SILENT_S = 75
REASON = "Not today."


@dataclass(frozen=True, slots=True)
class Kind:
    """A server: its program, and what it can do, each the name of a scene or more.

    Args:
        program: the file, and its words.
        path: where it answers.
        can: `approve`: it asks before it sends a mail, `reason`: and takes a reason; `two`: it
            takes the answers to two requests; `ask`: it asks questions; `think`: it tells its
            reasoning; `crash`: a tool that crashes ends the run; `state`: it has a state;
            `client`: it lets others run a tool; `stop`: a tool ends when nobody listens.
        form: it differs from another one only in how it asks: without `ALL` only scenes that ask
            something are played.
    """

    program: tuple[str, ...]
    path: str
    can: frozenset[str]
    form: bool = False


SERVERS: Mapping[str, Kind] = {
    "pydantic-ai": Kind(
        ("pydantic_ai_server.py",),
        "/",
        frozenset({"approve", "reason", "two", "think", "crash", "state", "stop"}),
    ),
    "langgraph": Kind(
        ("langgraph_server.py", "outcome"),
        "/",
        frozenset({"approve", "reason", "two", "ask", "think", "crash", "state", "client"}),
    ),
    "langgraph-custom": Kind(
        ("langgraph_server.py", "on-interrupt"),
        "/",
        frozenset({"approve", "reason", "two", "ask", "think", "crash", "state", "client"}),
        form=True,
    ),
    "llamaindex": Kind(("llamaindex_server.py",), "/run", frozenset({"client"})),
    "strands": Kind(
        ("strands_server.py",),
        "/",
        frozenset({"approve", "two", "ask", "think", "state", "stop"}),
    ),
    # Of the answers to two of its requests it carries out one.
    "adk": Kind(
        ("adk_server.py", "outcome"), "/", frozenset({"approve", "think", "crash", "state"})
    ),
    "adk-call": Kind(
        ("adk_server.py", "call"),
        "/",
        frozenset({"approve", "think", "crash", "state"}),
        form=True,
    ),
}


class Server(Program):
    """A server, and the notes of what its tools have done."""

    def __init__(self, name: str, home: Path, folder: Path) -> None:
        self.name = name
        self.kind = SERVERS[name]
        self.can = self.kind.can
        port = free_port()
        self.url = f"http://{HOST}:{port}{self.kind.path}"
        self._notes = folder / f"{name}.notes"
        program, *words = self.kind.program
        arguments = [str(home / "venv" / "bin" / "python"), str(home / program), str(port), *words]
        settings = {
            "PEER_NOTES": str(self._notes),
            "PYTHONUNBUFFERED": "1",
            # Nothing of theirs is told to anybody.
            "OTEL_SDK_DISABLED": "true",
            "LANGSMITH_TRACING": "false",
        }
        super().__init__(arguments, folder, settings)

    async def start(self) -> None:
        await super().start()
        try:
            await self.line(r"Uvicorn running on")
        except TimeoutError:
            lines = "\n".join([f"{self.name} does not start:", *self.tail])
            raise TimeoutError(lines) from None

    def done(self, what: str) -> int:
        """Return how often something has happened."""
        if not self._notes.exists():
            return 0
        return self._notes.read_text().splitlines().count(what)

    async def until_done(self, what: str) -> None:
        """Wait until something has happened, and check that it did so once."""

        async def found() -> int:
            return self.done(what)

        assert await until(found) == 1, f"more than once: {what}"


class Dragoman(Program):
    """`dragoman serve` with a backend for each server, on a journal that outlives it."""

    def __init__(self, folder: Path, servers: Mapping[str, Server]) -> None:
        self.url = f"http://{HOST}:{free_port()}"
        tables = "".join(
            f'[[backends]]\nname = "{name}"\ndialect = "agui"\nurl = "{server.url}"\n'
            for name, server in servers.items()
        )
        config = folder / "dragoman.toml"
        config.write_text(
            f'[server]\nlisten = "{self.url.removeprefix("http://")}"\n'
            f'[journal]\nurl = "sqlite:///{folder}/dragoman.db"\n{tables}'
        )
        arguments = [sys.executable, "-m", "proxy", "serve", "--config", str(config)]
        super().__init__(arguments, REPOSITORY, {})

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


_NUMBERS = itertools.count(1)


class PageTalk:
    """A conversation of a page with `useChat`."""

    def __init__(self, http: aiohttp.ClientSession, url: str, session: str | None = None) -> None:
        number = next(_NUMBERS)
        self.page = Page(session or f"chat-{number}", prefix=f"page{number}")
        self._client = AisdkClient(http, url)

    @property
    def text(self) -> str:
        """All that the agent has said."""
        parts = [p for m in self.page.messages if m["role"] == "assistant" for p in m["parts"]]
        return "".join(part["text"] for part in parts if part["type"] == "text")

    @property
    def asked(self) -> list[str]:
        """The ids of the open approvals."""
        calls = [p for m in self.page.messages for p in tools_of(m["parts"])]
        return [p["approval"]["id"] for p in calls if p["state"] == "approval-requested"]

    async def say(self, text: str) -> None:
        """Say something, and read the answer."""
        await self._post(self.page.say(text))

    async def decide(self, approval: str, allow: bool) -> None:
        """Answer an approval, and read what follows."""
        self.page.approve(approval, allow)
        await self._post(self.page.go_on())

    async def join(self) -> None:
        """Read a message that began elsewhere."""
        async with aclosing(self._client.resume(self.page, on_return="replay")) as chunks:
            async for _ in chunks:
                pass

    async def _post(self, body: Body) -> None:
        async with aclosing(self._client.post(self.page, body)) as chunks:
            async for _ in chunks:
                pass


class RunTalk:
    """A conversation of a client of AG-UI."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._thread = f"thread-{next(_NUMBERS)}"
        self._client = AguiClient(http, url)
        self.applied = Applied()

    @property
    def text(self) -> str:
        """All that the agent has said."""
        said = [m for m in self.applied.messages if m["role"] == "assistant"]
        return "".join(message.get("content", "") for message in said)

    async def say(self, text: str) -> None:
        """Say something, and read the run."""
        message = {"id": f"user-{next(_NUMBERS)}", "role": "user", "content": text}
        self.applied.messages.append(message)
        await self._run()

    async def decide(self, interrupt: Mapping[str, Any], allow: bool) -> None:
        """Answer an interrupt, and read the next run."""
        payload = {"approved": allow}
        entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}
        await self._run(resume=[entry])

    async def _run(self, **more: Any) -> None:
        run, known = f"run-{next(_NUMBERS)}", list(self.applied.messages)
        async with aclosing(self._client.run(self._thread, run, known, **more)) as events:
            async for event in events:
                self.applied.apply(event)


@dataclass(slots=True)
class Stage:
    """Where a scene plays, and its conversations."""

    http: aiohttp.ClientSession
    server: Server
    dragoman: Dragoman
    talks: list[EveTalk] = field(default_factory=list)

    def face(self, dialect: str) -> str:
        """Return the base URL for frontends of a dialect."""
        return f"{self.dragoman.url}/as/{dialect}/to/{self.server.name}"

    def talk(self) -> EveTalk:
        """Begin a conversation of an eve client."""
        self.talks.append(EveTalk(self.http, lambda: self.face("eve"), self.server.name))
        return self.talks[-1]

    def page(self, session: str | None = None) -> PageTalk:
        """Open a page, on a chat of its own or on a session."""
        return PageTalk(self.http, self.face("aisdk") + "/api/chat", session)

    def client(self) -> RunTalk:
        """Begin a conversation of a client of AG-UI."""
        return RunTalk(self.http, self.face("agui"))

    async def deny(self, talk: EveTalk, asked: Asked) -> None:
        """Deny over the control API, and say why."""
        url = f"{self.dragoman.url}/api/v1/sessions/{session_of(talk)}/interactions/{asked.id}"
        answer = {"decision": "deny", "reason": REASON}
        async with self.http.post(url, json=answer) as response:
            assert response.status == 202, await response.text()

    async def log_of(self, talk: EveTalk) -> str:
        """Return our log of a conversation."""
        url = f"{self.dragoman.url}/api/v1/sessions/{session_of(talk)}/events"
        async with self.http.get(url, raise_for_status=True) as answer:
            return await answer.text()

    async def check(self, talk: EveTalk) -> None:
        """Check that a full read is what was heard, and that nothing is shown twice."""
        await talk.check()
        events = [json.loads(line) for line in (await self.log_of(talk)).splitlines()]
        for kind, name in (("tool.called", "call_id"), ("interaction.requested", "request_id")):
            told = [one[name] for one in events if one["type"] == kind]
            assert len(set(told)) == len(told), f"shown twice: {told}"


def session_of(talk: EveTalk) -> str:
    """Return the id of a conversation's session."""
    assert talk.session is not None
    return talk.session.session_id


Played = Callable[[Stage], Awaitable[None]]
SCENES: dict[str, tuple[frozenset[str], Played]] = {}
SLOW = frozenset({"silence"})
SHOWN_ON = {
    "killed": frozenset({"pydantic-ai", "langgraph", "llamaindex"}),
    "killed_while_asked": frozenset({"pydantic-ai", "langgraph-custom", "adk-call"}),
    "killed_between": frozenset({"langgraph", "strands"}),
    "killed_server": frozenset({"pydantic-ai", "langgraph", "strands"}),
}
"""On which servers a scene is played that takes some seconds, where not all are."""


def scene(*needs: str) -> Callable[[Played], Played]:
    """Add a scene by its function's name, for the servers that can all that it needs."""

    def add(play: Played) -> Played:
        SCENES[play.__name__] = (frozenset(needs), play)
        return play

    return add


async def counted(talk: EveTalk, count: int) -> None:
    """Ask the agent how many messages it knows of."""
    heard = over(await talk.say(f"scene: count {word()}"))
    assert heard.text == f"User messages: {count}.", heard


async def wait_in_tool(stage: Stage, seconds: int = LONG_S) -> tuple[EveTalk, str]:
    """Say something whose tool waits; return its word when it does."""
    talk, told = stage.talk(), word()
    await talk.begin(f"scene: slow {told} {seconds}")
    await stage.server.until_done(f"wait begins {told}")
    return talk, told


async def when_stopped(stage: Stage, told: str) -> None:
    """Wait until the tool has ended, where a tool ends when nobody listens."""
    if "stop" in stage.server.can:
        await stage.server.until_done(f"wait stopped {told}")


@scene()
async def text(stage: Stage) -> None:
    """Each frontend is answered, and the agent knows what was said before."""
    talk, told = stage.talk(), word()
    heard = over(await talk.say(f"scene: text {told}"))
    assert heard.text == f"Hello {told}.", heard
    await counted(talk, 2)
    for other in (stage.page(), stage.client()):
        told = word()
        await other.say(f"scene: text {told}")
        await other.say(f"scene: count {told}")
        assert other.text == f"Hello {told}.User messages: 2.", other.text


@scene("think")
async def reason(stage: Stage) -> None:
    talk, told = stage.talk(), word()
    heard = over(await talk.say(f"scene: reason {told}"))
    assert "First I add 40 and 2." in heard.thinking.replace("\n", ""), heard
    assert heard.text == f"The answer {told} is 42.", heard
    await counted(talk, 2)


@scene()
async def tool(stage: Stage) -> None:
    """The arguments are whole, also where the server streams only their end."""
    talk, told = stage.talk(), word()
    heard = over(await talk.say(f"scene: tool {told}"))
    (call,) = heard.tools
    assert (call.name, call.input, call.status) == ("weather", {"city": told}, "completed"), call
    assert told in heard.text, heard
    assert "Let me look." in heard.said, heard
    assert stage.server.done(f"weather {told}") == 1
    await counted(talk, 2)


@scene()
async def two(stage: Stage) -> None:
    """Two calls at once."""
    talk, told = stage.talk(), word()
    heard = over(await talk.say(f"scene: two {told}"))
    cities = sorted(call.input["city"] for call in heard.tools)
    assert cities == sorted([told, f"New {told}"]), heard
    assert all(call.status == "completed" for call in heard.tools), heard
    await counted(talk, 2)


@scene()
async def broken(stage: Stage) -> None:
    """A tool that fails is told to the model."""
    talk, told = stage.talk(), word()
    heard = over(await talk.say(f"scene: broken {told}"))
    (call,) = heard.tools
    assert call.name == "break_down", call
    assert call.status is not None, "the call has no result"
    assert f"the tool says no to {told}" in heard.text, heard
    await counted(talk, 2)


@scene("crash")
async def crash(stage: Stage) -> None:
    """A tool that crashes ends the turn, and no call is left open."""
    talk, told = stage.talk(), word()
    heard = await talk.say(f"scene: crash {told}")
    assert f"the tool crashes {told}" in failed(heard), heard
    await counted(talk, 2)


@scene()
async def fail(stage: Stage) -> None:
    """A model that fails in a sentence."""
    talk, told = stage.talk(), word()
    heard = await talk.say(f"scene: fail {told}")
    assert f"the model fails {told}" in failed(heard), heard
    await counted(talk, 2)


@scene("state")
async def state(stage: Stage) -> None:
    """A tool that changes the state."""
    talk, told = stage.talk(), word()
    heard = over(await talk.say(f"scene: state {told}"))
    assert f"counted {told}" in heard.text, heard
    await counted(talk, 2)


@scene("approve")
async def approve(stage: Stage) -> None:
    """Each frontend allows."""
    talk, told = stage.talk(), word()
    asked = the_one(await talk.say(f"scene: approve {told}"))
    assert stage.server.done(f"mail {told}") == 0
    heard = over(await talk.answer(asked, allow=True))
    assert f"mail sent to {told}" in heard.text, heard
    assert stage.server.done(f"mail {told}") == 1
    await counted(talk, 2)
    page, told = stage.page(), word()
    await page.say(f"scene: approve {told}")
    (approval,) = page.asked
    await page.decide(approval, allow=True)
    assert f"mail sent to {told}" in page.text, page.text
    assert stage.server.done(f"mail {told}") == 1
    client, told = stage.client(), word()
    await client.say(f"scene: approve {told}")
    (interrupt,) = client.applied.interrupts
    await client.decide(interrupt, allow=True)
    assert f"mail sent to {told}" in client.text, client.text
    assert stage.server.done(f"mail {told}") == 1


@scene("approve")
async def deny(stage: Stage) -> None:
    """What is denied is not done; a server that takes a reason gets it."""
    talk, told = stage.talk(), word()
    asked = the_one(await talk.say(f"scene: approve {told}"))
    await stage.deny(talk, asked)
    heard = over(await talk.hear())
    assert f"mail sent to {told}" not in heard.text, heard
    if "reason" in stage.server.can:
        assert REASON in heard.text, heard
    assert stage.server.done(f"mail {told}") == 0
    await counted(talk, 2)


async def ask_two(stage: Stage) -> tuple[EveTalk, str, list[Asked]]:
    """Say something that asks for two approvals."""
    talk, told = stage.talk(), word()
    asked = (await talk.say(f"scene: approve2 {told}")).asked
    assert len(asked) == 2, asked
    return talk, told, asked


def mails(stage: Stage, told: str) -> tuple[int, int]:
    """Return how often each of the two mails was sent."""
    return stage.server.done(f"mail {told}"), stage.server.done(f"mail second-{told}")


@scene("two")
async def two_faces(stage: Stage) -> None:
    """An eve client allows one call, and a page the other; nothing runs before both are there."""
    talk, told, asked = await ask_two(stage)
    await talk.begin_answer(asked[0], allow=True)
    page = stage.page(session_of(talk))
    await page.join()
    assert mails(stage, told) == (0, 0)
    (approval,) = [one for one in page.asked if one != asked[0].id]
    await page.decide(approval, allow=True)
    await heard_at_last(talk, f"mail sent to second-{told}")
    assert mails(stage, told) == (1, 1)
    assert stage.server.done(f"weather {told}") == 1
    await counted(talk, 2)


async def heard_at_last(talk: EveTalk, words: str) -> None:
    """Hear on until something is said: for this client each answer makes a piece of the turn."""
    while words not in (await talk.hear()).text:
        pass


@scene("two")
async def two_ways(stage: Stage) -> None:
    """One call is allowed, and one denied."""
    talk, told, asked = await ask_two(stage)
    heard = over(await talk.answer_both(asked, [True, False]))
    assert f"mail sent to second-{told}" not in heard.text, heard
    assert sum(mails(stage, told)) == 1
    await counted(talk, 2)


@scene("ask")
async def question(stage: Stage) -> None:
    talk, told = stage.talk(), word()
    asked = the_one(await talk.say(f"scene: ask {told}"))
    assert f"Which colour, {told}?" in asked.prompt, asked
    if asked.options:
        heard = over(await talk.answer(asked, option="red"))
    else:
        heard = over(await talk.answer(asked, text="red"))
    assert "the user said red" in heard.text, heard
    await counted(talk, 2)


@scene("client")
async def client_tool(stage: Stage) -> None:
    """A tool that the server leaves to others is a question, whose answer is its result."""
    talk, told = stage.talk(), word()
    asked = the_one(await talk.say(f"scene: client {told}"))
    heard = over(await talk.answer(asked, text=f"the page is {told}"))
    assert f"the page is {told}" in heard.text, heard
    await counted(talk, 2)


@scene()
async def stop(stage: Stage) -> None:
    """A stop ends the turn, and the tool where the server can."""
    talk, told = await wait_in_tool(stage)
    await talk.cancel()
    heard = await talk.hear()
    assert "turn.cancelled" in heard.types, heard.types
    await when_stopped(stage, told)
    await counted(talk, 2)


@scene("approve")
async def stop_while_asked(stage: Stage) -> None:
    """A stop takes back what is asked, and the call is never made."""
    talk, told = stage.talk(), word()
    the_one(await talk.say(f"scene: approve {told}"))
    await talk.cancel()
    # The pause has closed the turn for this client.
    await read_until(talk, "input.resolved")
    other = word()
    heard = over(await talk.say(f"scene: text {other}"))
    assert heard.text == f"Hello {other}.", heard
    assert stage.server.done(f"mail {told}") == 0


@scene()
async def killed(stage: Stage) -> None:
    """Dragoman is killed in a run, which nobody can read on: the turn fails and is not repeated."""
    talk, told = await wait_in_tool(stage)
    await stage.dragoman.kill()
    assert failed(await talk.hear())
    await when_stopped(stage, told)
    await counted(talk, 2)
    assert stage.server.done(f"wait begins {told}") == 1


@scene("approve")
async def killed_while_asked(stage: Stage) -> None:
    """Dragoman is killed while something is asked."""
    talk, told = stage.talk(), word()
    asked = the_one(await talk.say(f"scene: approve {told}"))
    await stage.dragoman.kill()
    heard = over(await talk.answer(asked, allow=True))
    assert f"mail sent to {told}" in heard.text, heard
    assert stage.server.done(f"mail {told}") == 1
    await counted(talk, 2)


@scene("two")
async def killed_between(stage: Stage) -> None:
    """Dragoman is killed between the answers to two approvals."""
    talk, told, asked = await ask_two(stage)
    await talk.begin_answer(asked[0], allow=True)
    await stage.dragoman.kill()
    assert mails(stage, told) == (0, 0)
    await talk.begin_answer(asked[1], allow=True)
    await heard_at_last(talk, f"mail sent to second-{told}")
    assert mails(stage, told) == (1, 1)
    assert stage.server.done(f"weather {told}") == 1
    await counted(talk, 2)


@scene()
async def killed_server(stage: Stage) -> None:
    """The server is killed in a run: the turn fails, and a new server gets the whole history."""
    talk, told = await wait_in_tool(stage)
    await stage.server.stop(signal.SIGKILL)
    assert failed(await talk.hear())
    await stage.server.start()
    await counted(talk, 2)
    assert stage.server.done(f"wait begins {told}") == 1


@scene()
async def silence(stage: Stage) -> None:
    """A tool that says nothing for longer than proxies wait."""
    talk, told = await wait_in_tool(stage, SILENT_S)
    heard = over(await talk.hear())
    assert f"waited for {told}" in heard.text, heard
    assert stage.server.done(f"wait ends {told}") == 1


def _is_planned(name: str, server: str) -> bool:
    """Say whether a scene is played where not all are."""
    if name in SLOW or server not in SHOWN_ON.get(name, SERVERS):
        return False
    return not SERVERS[server].form or bool(SCENES[name][0] & {"approve", "two", "ask"})


def cells(scenes: Sequence[str], servers: Sequence[str], *, whole: bool) -> list[tuple[str, str]]:
    """Return which scene is played on which server."""
    return [
        (name, server)
        for server in servers
        for name in scenes
        if SCENES[name][0] <= SERVERS[server].can and (whole or _is_planned(name, server))
    ]


@contextlib.asynccontextmanager
async def stages_for(cache: Path, names: Sequence[str]) -> AsyncIterator[dict[str, Stage]]:
    """Start servers and Dragoman."""
    home = cache / "servers" / "ag-ui"
    async with contextlib.AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-peers-")))
        servers = {name: Server(name, home, folder) for name in names}
        for server in servers.values():
            stack.push_async_callback(server.stop, signal.SIGKILL)
        await asyncio.gather(*(server.start() for server in servers.values()))
        dragoman = Dragoman(folder, servers)
        stack.push_async_callback(dragoman.stop, signal.SIGKILL)
        await dragoman.start()
        yield {name: Stage(http, server, dragoman) for name, server in servers.items()}


async def play(name: str, stage: Stage) -> bool:
    """Play a scene; print what came of it."""
    begun, why = time.monotonic(), ""
    stage.talks, stage.server.tail = [], []
    try:
        async with asyncio.timeout(SCENE_S):
            await SCENES[name][1](stage)
            for talk in stage.talks:
                await stage.check(talk)
    except Exception as error:  # noqa: BLE001 - the root of a scene
        why = await why_failed(stage, error)
    ms = (time.monotonic() - begun) * 1000
    verdict = "FAIL" if why else "PASS"
    print(f"{verdict} {name} on {stage.server.name} ({ms:.0f} ms)", flush=True)
    if why:
        print("     " + why.replace("\n", "\n     "), flush=True)
    return not why


async def why_failed(stage: Stage, error: Exception) -> str:
    """Return all that is known of a failure, and start again what the scene broke."""
    where = traceback.format_exc(limit=-4)[-4000:]
    why = [f"{type(error).__name__}: {str(error)[:2000]}", where]
    for talk in stage.talks:
        with contextlib.suppress(Exception):
            why += ["our log:", shortened(await stage.log_of(talk))]
    for program in (stage.server, stage.dragoman):
        why += ["a program:", *program.tail[-20:]]
        if program.process is None or program.process.returncode is not None:
            await program.stop(signal.SIGKILL)
            await program.start()
    return "\n".join(why)


async def run(chosen: Sequence[tuple[str, str]], cache: Path) -> int:
    """Play scenes one by one, since some kill what all talk to; return the exit code."""
    async with stages_for(cache, sorted({server for _, server in chosen})) as stages:
        results = [await play(name, stages[server]) for name, server in chosen]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed", flush=True)
    return 0 if results and all(results) else 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.peers.agents", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", default="", help="scenes, comma-separated")
    parser.add_argument("--server", default="", help="servers, comma-separated")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    named = set(filter(None, options.server.split(",")))
    whole = bool(only or named or os.environ.get("ALL"))
    scenes = [one for one in SCENES if not only or one in only]
    chosen = cells(scenes, [one for one in SERVERS if not named or one in named], whole=whole)
    if options.list:
        print("\n".join(f"{name} on {server}" for name, server in chosen))
        return 0
    return asyncio.run(run(chosen, options.cache.resolve()))


if __name__ == "__main__":
    sys.exit(main())
