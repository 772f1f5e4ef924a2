"""The measure of an attack: what must not get through is seen when it does."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from proxy.config.settings import Settings
from tests import asks
from tests.proof.attack.requests import KEYS, Hit, Target, draw, of_sessions, targets
from tests.proof.attack.run import Attack, names_session, shown, unnamed
from tests.proof.attack.server import Server, tables
from tests.proof.attack.vault import CREDENTIAL, Vault, vault
from tests.proof.attack.wire import Answer, Talk, ask, listening
from tests.support.ports import HOST

ALL = targets(Settings.model_validate({"journal": {"url": "memory:"}}))
NAMES = {**asks.NAMES, "session": "dgs_1", "route": "eve", "agent": "eve"}
STREAM = Target("GET", "/as/eve/to/{route}/eve/v1/session/{session}/stream")


def saying(*pieces: bytes, ends: bool = True) -> Talk:
    """Says this to everybody."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if not ends:
            await asyncio.Event().wait()

    return talk


@pytest.mark.parametrize(
    ("said", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, b"{}"),
        (b"HTTP/1.1 400 Bad\r\n\r\nall of it", 400, b"all of it"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n3\r\nabc\r\n0\r\n\r\n",
            200,
            b"{}abc",
        ),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 1\r\n\r\nx",
            201,
            b"x",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n", 200, b""),
        (b"", 0, b""),
        (b"SSH-2.0-x\r\n\r\n", 0, b""),
    ],
)
async def test_an_answer_is_read_as_far_as_it_says_something(
    said: bytes, status: int, body: bytes
) -> None:
    async with listening(saying(said)) as port:
        answer = await ask(HOST, port, b"GET / HTTP/1.1\r\n\r\n", 60.0)
    assert (answer.status, answer.body) == (status, body)


async def test_who_does_not_answer_is_given_up_and_nobody_there_is_no_answer() -> None:
    async with listening(saying(ends=False)) as port:
        answer = await ask(HOST, port, b"GET / HTTP/1.1\r\n\r\n", 0.05)
        assert answer.status == -1
        assert answer.seconds >= 0.05
    assert (await ask(HOST, port, b"GET / HTTP/1.1\r\n\r\n", 60.0)).status == 0


def test_every_route_is_asked() -> None:
    paths = {target.path for target in ALL}
    assert STREAM in ALL
    assert {"/metrics", "/readyz", "/api/v1/prune", "/as/engine/to/{route}/execute"} <= paths
    assert not any("{tail:" in path for path in paths)
    about = of_sessions(ALL)
    assert STREAM in about
    # A body names it.
    assert Target("POST", "/as/engine/to/{route}/hitl/respond") in about
    assert Target("GET", "/metrics") not in about


@pytest.mark.parametrize("big", [False, True])
def test_a_request_follows_from_its_seed(big: bool) -> None:
    def drawn(seed: int) -> list[bytes]:
        source = random.Random(seed)
        return [draw(target, "owner", NAMES, source, big=big).data() for target in ALL]

    first = drawn(1)
    assert first == drawn(1)
    assert first != drawn(2)


@pytest.mark.parametrize("key", KEYS)
def test_a_request_that_is_not_altered_is_one_in_order(key: str) -> None:
    class Never(random.Random):
        """Alters nothing."""

        def choice(self, seq: object) -> object:  # type: ignore[override]
            return 0

    hit = draw(STREAM, key, NAMES, Never(1))
    token = KEYS[key]
    said = b"" if token is None else b"Authorization: Bearer " + token + b"\r\n"
    line = b"GET /as/eve/to/eve/eve/v1/session/dgs_1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    assert hit.data() == line + said + b"\r\n"


HEAD = b"Host: x\r\n\r\n"


@pytest.mark.parametrize(
    "line",
    [
        b"GET /eve/v1/connections/n/callback/t?code=1&state=%2e%2e",
        b"POST /eve/v1/connections/n%20m/callback/a/t",
        b"POST /eve/v1/callback/t",
        b"POST /eve/v1/task-input/t.x-y_z~%7E",
    ],
)
def test_callbacks_may_come_to_an_eve(line: bytes) -> None:
    found = Vault("eve")
    found.note(line + b" HTTP/1.1\r\n" + HEAD)
    assert (found.arrived, found.broken_into) == (1, [])
    for dialect in ("herm", "engine"):
        other = Vault(dialect)
        other.note(line + b" HTTP/1.1\r\n" + HEAD)
        assert other.broken_into
    found.note(line + b" HTTP/1.1\r\nAuthorization: Bearer " + CREDENTIAL.encode() + HEAD)
    assert len(found.broken_into) == 1


@pytest.mark.parametrize(
    "line",
    [
        b"POST /eve/v1/session",
        b"GET /eve/v1/info",
        b"DELETE /eve/v1/callback/t",
        b"POST /eve/v1/callback/t/more",
        b"POST /eve/v1/connections/%2e%2e/callback/%2e%2e/session",
        b"POST /eve/v1/connections/../callback/../session",
        b"POST /eve/v1/callback/..\\..\\admin",
        b"POST /eve/v1/callback/a%2fb",
        b"POST /eve/v1/callback/a%5cb",
        b"POST /eve/v1/callback/%252e%252e",
        b"POST /eve/v1/callback/a%00",
        b"POST /admin?/eve/v1/callback/t",
    ],
)
def test_nothing_else_may_come_to_an_eve(line: bytes) -> None:
    found = Vault("eve")
    found.note(line + b" HTTP/1.1\r\n" + HEAD)
    assert len(found.broken_into) == 1


async def test_a_vault_writes_down_what_arrives_as_it_came() -> None:
    async with vault("eve") as found:
        data = b"POST /eve/v1/callback/%2e HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
        answer = await ask(HOST, found.port, data, 60.0)
    assert answer.status == 404
    assert found.broken_into == [data.removesuffix(b"abc").decode()]


@pytest.fixture
def attack(tmp_path: Path) -> Attack:
    return Attack(1, 1, 1.0, tmp_path, lambda _: None)


def hit_of(path: bytes, key: str = "none") -> Hit:
    return Hit(STREAM, key, b"GET", tuple(path.split(b"/")[1:]))


@pytest.mark.parametrize(
    ("key", "answer", "figure"),
    [
        ("owner", Answer(500), "failures"),
        ("foreign", Answer(502), "failures"),
        ("owner", Answer(503), "failures"),
        ("owner", Answer(503, {"retry-after": "1"}), ""),
        ("owner", Answer(501), ""),
        ("none", Answer(200), "let in"),
        ("wrong", Answer(302), "let in"),
        ("none", Answer(401), ""),
        ("owner", Answer(200), ""),
        ("foreign", Answer(404, {"x": "a\rb"}), "forged headers"),
        # What broke the line is the end of one, and what follows is a header by itself.
        ("foreign", Answer(404, {"x": "a", "x-injected": "1"}), "forged headers"),
    ],
)
def test_each_answer_is_judged(attack: Attack, key: str, answer: Answer, figure: str) -> None:
    attack._judge_answer(hit_of(b"/as/eve/to/eve/eve/v1/session/x/stream", key), answer)
    bad = {name for name, times in attack.counts.items() if times and "status" not in name}
    assert bad == ({figure} if figure else set())
    assert len(attack.wrong) == len(bad)


def test_an_owners_words_are_for_the_owner(attack: Attack) -> None:
    body = f'{{"text":"{attack._canary}"}}'.encode()
    attack._judge_answer(hit_of(b"/x", "owner"), Answer(200, body=body))
    assert attack.wrong == []
    attack._judge_answer(hit_of(b"/x", "foreign"), Answer(404, body=body))
    assert attack.counts["leaked"] == 1


@pytest.mark.parametrize("quoted", [b"dgs_1", b"%64%67%73%5f%31"])
def test_an_answer_that_quotes_the_name_that_was_asked_for_tells_nothing(quoted: bytes) -> None:
    assert unnamed(b"no %b here" % quoted, "dgs_1") == "no NAME here"
    assert unnamed(b"no %b here" % quoted, "dgs_2") != "no NAME here"
    # Nor does one to a request that has left it out.
    assert names_session(b"GET /sessions/%b" % quoted, "dgs_1")
    assert not names_session(b"GET /sessions/%b" % quoted, "dgs_2")


def test_a_header_tells_two_answers_apart_and_the_time_does_not() -> None:
    one = shown(Answer(404, {"date": "1", "x": "dgs_1"}, b"no dgs_1"), "dgs_1")
    assert one == shown(Answer(404, {"date": "2", "x": "dgs_2"}, b"no dgs_2"), "dgs_2")
    assert one != shown(Answer(404, {"date": "2"}, b"no dgs_2"), "dgs_2")


@pytest.mark.parametrize(
    ("path", "open_"),
    [
        (b"/healthz", True),
        (b"/%68ealthz", True),
        (b"/as/eve/to/eve/eve/v1/health", True),
        (b"/as/eve/to/eve/eve/v1/callback/t", True),
        (b"/as/eve/to/eve/eve/v1/info", False),
        (b"/as/eve/to/eve/eve/v1/callback/t/u", False),
        (b"/healthz/x", False),
        (b"/x/../healthz", True),
        (b"/as/eve/to/eve/eve/v1/session/x/healthz", False),
        (b"/api/v1/sessions/readyz", False),
        (b"/api/v1/sessions/..%2freadyz", False),
        (b"/metrics", False),
    ],
)
def test_what_everybody_may_ask_is_no_break_in(attack: Attack, path: bytes, open_: bool) -> None:
    attack._judge_answer(hit_of(path), Answer(200))
    assert attack.counts["let in"] == (not open_)


async def test_a_server_that_logs_errors_or_takes_its_time_is_seen(tmp_path: Path) -> None:
    server = Server(tmp_path, tables([]))
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"level":"warning","message":"a"}\n{"level":"error","message":"b"}\nTraceback\n'
    )
    assert server.errors() == ['{"level":"error","message":"b"}', "Traceback"]


async def test_a_short_attack_finds_nothing(tmp_path: Path) -> None:
    run = Attack(7, 300, 600.0, tmp_path, lambda _: None)
    await run.run()
    assert run.wrong == []
    assert run.counts["requests"] >= 300
    assert run.counts["told apart, asked"] > 0
