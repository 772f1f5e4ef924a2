"""What every scripted backend does wrong: at the socket, from a seed, and from the command line."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest

from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.faults import (
    KINDS,
    Altered,
    Cut,
    Fault,
    Faults,
    HalfClose,
    Mutated,
    Reset,
    disturbed,
)
from proxy.scripted.mutations import VALUES, JsonText, written
from tests.faults.backends import found, lacking
from tests.support.each import each
from tests.support.serving import served
from tests.support.waiting import SOON_S

Http = aiohttp.ClientSession

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "managed-agents-2026-04-01",
}
"""What Managed Agents wants; the others pass it by."""


async def ask_engine(_: Http, __: str) -> tuple[bytes, bytes]:
    return b"POST /execute", b'{"message":"script: tool","task_id":"t"}'


async def ask_eve(http: Http, url: str) -> tuple[bytes, bytes]:
    async with http.post(f"{url}/eve/v1/session", json={"message": "script: tool"}) as response:
        session = (await response.json())["sessionId"]
    return f"GET /eve/v1/session/{session}/stream".encode(), b""


async def ask_herm(http: Http, url: str) -> tuple[bytes, bytes]:
    async with http.post(f"{url}/v1/agents/agent_K4/sessions", json={}) as response:
        session = (await response.json())["id"]
    return f"GET /v1/sessions/{session}/events/stream".encode(), b""


async def ask_managed_agents(http: Http, url: str) -> tuple[bytes, bytes]:
    body = {"agent": "agent_9Q", "environment_id": "env_2b"}
    async with http.post(f"{url}/v1/sessions", json=body, headers=HEADERS) as response:
        session = (await response.json())["id"]
    return f"GET /v1/sessions/{session}/events/stream".encode(), b""


async def say(http: Http, url: str, line: bytes) -> None:
    path = line.decode().removeprefix("GET ").removesuffix("/stream")
    event = {"type": "user.message", "content": [{"type": "text", "text": "script: tool"}]}
    posted = {"events": [event]}
    async with http.post(f"{url}{path}", json=posted, headers=HEADERS) as response:
        assert response.status < 300, await response.text()


async def ask_agui(http: Http, url: str) -> tuple[bytes, bytes]:
    messages = [{"id": "u-1", "role": "user", "content": "script: tool"}]
    body = {"threadId": "t", "runId": "r", "messages": messages}
    return b"POST /", json.dumps(body).encode()


ASK: dict[str, Callable[[Http, str], Awaitable[tuple[bytes, bytes]]]] = {
    "agui": ask_agui,
    "engine": ask_engine,
    "eve": ask_eve,
    "herm": ask_herm,
    "managed-agents": ask_managed_agents,
}


class Line:
    """One connection to a backend, as the operating system shows it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._sock, data)

    async def some(self) -> bytes:
        """What comes next, nothing at the end."""
        return await self._loop.sock_recv(self._sock, 65_536)

    async def rest(self) -> tuple[bytes, bool]:
        """All that still comes, and whether a reset ended it."""
        got = b""
        try:
            while data := await self.some():
                got += data
        except ConnectionResetError:
            return got, True
        return got, False

    async def heard(self) -> bool:
        """Whether the other side still listens: what is sent to a closed socket is reset."""
        try:
            for _ in range(20):
                await self.send(b"\r\n")
                await asyncio.sleep(0.005)
        except (ConnectionResetError, BrokenPipeError):
            return False
        return True


@asynccontextmanager
async def opened(dialect: str, fault: Fault | None) -> AsyncIterator[Line]:
    """A stream of a backend whose streams have a fault, behind its request."""
    faulty = found(dialect)
    assert faulty is not None, lacking(dialect)
    assert dialect in ASK, f"tests/test_scripted_faults.py: write in `ASK` how `{dialect}` is asked"
    plan = {} if fault is None else {(faulty.stream, 1): fault}
    app = BACKENDS[dialect](ScriptedOptions(pace=0.0, faults=Faults(plan)))
    async with served(app) as url, aiohttp.ClientSession() as http:
        line, body = await ASK[dialect](http, url)
        port = int(url.rpartition(":")[2])
        with socket.socket() as sock:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            connection = Line(sock)
            head = [line + b" HTTP/1.1", b"Host: x", b"Content-Type: application/json"]
            head += [f"{name}: {value}".encode() for name, value in HEADERS.items()]
            head.append(b"Content-Length: %d" % len(body))
            await connection.send(b"\r\n".join(head) + b"\r\n\r\n" + body)
            if dialect in ("herm", "managed-agents"):
                await say(http, url, line)
            yield connection


def unchunked(answer: bytes) -> bytes:
    """The body of an answer that may end anywhere."""
    rest = answer.partition(b"\r\n\r\n")[2]
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body


@pytest.mark.parametrize("dialect", sorted(BACKENDS))
@pytest.mark.parametrize(
    ("kind", "resets", "listens"),
    [(Cut, False, False), (Reset, True, False), (HalfClose, False, True)],
)
async def test_a_body_ends_at_the_socket_as_its_fault_says(
    dialect: str, kind: type[Cut | Reset | HalfClose], resets: bool, listens: bool
) -> None:
    async with opened(dialect, kind(at_byte=333)) as line:
        answer, reset = await line.rest()
        assert len(unchunked(answer)) == 333
        assert not answer.endswith(b"0\r\n\r\n")
        assert reset is resets
        assert await line.heard() is listens


async def test_a_cut_at_the_last_byte_of_a_body_comes_before_its_end() -> None:
    async with opened("engine", None) as line:
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            answer += await line.some()
        whole = unchunked(answer)
    async with opened("engine", Cut(at_byte=len(whole))) as line:
        answer, _ = await line.rest()
        assert len(unchunked(answer)) == len(whole)
        assert not answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("kind", [Reset, HalfClose])
async def test_a_body_that_ends_after_an_event_has_that_many(
    kind: type[Cut | Reset | HalfClose],
) -> None:
    async with opened("engine", kind(after_event=3)) as line:
        answer, _ = await line.rest()
        assert unchunked(answer).count(b"\n\n") == 3


@pytest.mark.parametrize("kind", [Cut, Reset, HalfClose])
def test_the_end_of_a_body_is_in_one_place(kind: type[Cut | Reset | HalfClose]) -> None:
    for place in (None, 1):
        with pytest.raises(ValueError, match="either"):
            kind(after_event=place, at_byte=place)


def test_an_altered_frame_has_other_digits() -> None:
    frames = [b"in 1998", b"in 1999", b"1998"]
    assert disturbed(Altered(), frames, 0) == [b"in 1997", b"in 1999", b"1997"]


def test_a_mutated_stream_keeps_its_frames_and_says_other_things() -> None:
    frames = [b'event: a\ndata: {"n":%d,"t":"x"}\n\n' % n for n in range(60)]
    was = disturbed(Mutated(4), frames, 0)
    assert was == [*disturbed(Mutated(4), frames[:7], 0), *disturbed(Mutated(4), frames[7:], 7)]
    changed = [new for old, new in zip(frames, was, strict=True) if old != new]
    assert 10 <= len(changed) <= 30
    for frame in was:
        # A mutation is within the JSON: framing is another fault's.
        assert frame.startswith(b"event: a\ndata: ")
        assert frame.count(b"\n") == 3
    assert disturbed(Mutated(5), frames, 0) != was


def test_what_a_mutation_puts_in_is_one_line_of_ascii() -> None:
    for value in VALUES:
        text = written({"a": [value]})
        assert text.isascii()
        assert text.isprintable()
    assert (
        written({"a": JsonText("1e999"), "b": [None, 2**70]}) == f'{{"a":1e999,"b":[null,{2**70}]}}'
    )


# From a seed.


@each("kind", KINDS.values(), ids=KINDS)
def test_every_kind_can_be_drawn(kind: type[Fault]) -> None:
    faults = Faults.seeded(3, 1.0, (kind,))
    drawn = [faults.take("stream", stream=True) for _ in range(30)]
    assert {type(fault) for fault in drawn} == {kind}


def drawn_in(order: Sequence[str], **options: int) -> dict[str, list[str]]:
    """What the streams of each conversation get, in that order of requests."""
    faults = Faults.seeded(7, 0.5, tuple(KINDS.values()), **options)
    found: dict[str, list[str]] = {}
    for talk in order:
        found.setdefault(talk, []).append(repr(faults.take("stream", stream=True, talk=talk)))
    return found


def test_the_faults_of_a_conversation_do_not_hang_on_the_others() -> None:
    apart = drawn_in(["a"] * 30 + ["b"] * 30)
    rest = ["a", "b"] * 29
    random.Random(1).shuffle(rest)
    assert drawn_in(["a", "b", *rest]) == apart
    assert apart["a"] != apart["b"]
    # Ids are other ones in each run, and the second one can be repeated alone.
    assert drawn_in(["z"] * 30, first=2)["z"] == apart["b"]
    assert len({fault.partition("(")[0] for fault in apart["a"] + apart["b"]}) >= 8


# From the command line.


@asynccontextmanager
async def command(*words: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A backend of the command line; gives its address, and at the end what it told on stderr."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "proxy", "scripted", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    told: list[str] = []
    try:
        async with asyncio.timeout(SOON_S):
            line = (await process.stdout.readline()).decode()
        yield line.split()[-1], told
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = await process.communicate()
        told += errors.decode().splitlines()


async def read(http: Http, url: str, task: str) -> int:
    """Execute in a task; return how much of the answer came."""
    got = 0
    try:
        async with http.post(
            f"{url}/execute", json={"message": "script: tool", "task_id": task}
        ) as response:
            async for data in response.content.iter_any():
                got += len(data)
    except aiohttp.ClientError:
        pass
    return got


BREAKS = ("engine", "--pace", "0", "--rate", "0.8", "--kinds", "Cut,HalfClose,Status")


@pytest.mark.pages
async def test_the_command_breaks_the_same_streams_for_the_same_seed() -> None:
    runs: list[list[str]] = []
    for seed, order in (("5", "aaabbb"), ("5", "abbaba"), ("6", "aaabbb")):
        async with (
            command(*BREAKS, "--faults", seed) as (url, told),
            aiohttp.ClientSession() as http,
        ):
            for task in order:
                await read(http, url, task)
        runs.append(told)
    one, other, third = runs
    assert sorted(one) == sorted(other)
    assert one != third
    assert all(line.startswith("conversation ") for line in one)
    # One conversation alone, as the log names it.
    again = (*BREAKS, "--faults", "5", "--first", "2")
    async with command(*again) as (url, told), aiohttp.ClientSession() as http:
        for _ in range(3):
            await read(http, url, "elsewhere")
    assert told == [line for line in one if line.startswith("conversation 2")]
    assert told


async def test_the_command_breaks_nothing_without_a_seed() -> None:
    async with command("engine", "--pace", "0") as (url, told), aiohttp.ClientSession() as http:
        sizes = {await read(http, url, "a") for _ in range(3)}
    assert len(sizes) == 1
    assert told == []
