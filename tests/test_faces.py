"""A dialect is served by what its folder declares: the example of the documentation, which is of
frontends only, holds conversations with nothing of the proxy changed."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from adapters.contract.dialect import Dialect
from adapters.contract.faces import FrameRange, Incoming, SessionView, Stream
from adapters.engine.client import EngineClient
from adapters.offline.translate import TranslateOptions, make_sink, make_source
from adapters.registry import DIALECTS
from adapters.wire.errors import DragomanError
from docs.examples.tiny import FACE, TINY, TinyEncoder
from proxy.base.errors import ConfigError
from proxy.config import matrix
from proxy.config.settings import ListenerSettings, load_settings
from tests.pairs.expectations import NATIVE, by_frontend
from tests.support.keys import credential, key_of
from tests.support.proxied import Proxied, proxied
from tests.support.waiting import SOON_S
from tests.wire import driven, served

HOOKS = Dialect("hooks", client=EngineClient, only="backends")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DIALECTS, "tiny", TINY)


@pytest.fixture
async def dragoman(tiny: None) -> AsyncIterator[Proxied]:
    listener = {"listen": "127.0.0.1:0", "dialect": "tiny", "route": "engine"}
    keys = (key_of("ann"), key_of("bob"))
    async with proxied(
        listeners=(ListenerSettings.model_validate(listener),), keys=keys
    ) as running:
        yield running


class Person:
    """Talks to the face."""

    def __init__(self, dragoman: Proxied, *, key: str | None = "k-ann", root: str = "") -> None:
        self._dragoman = dragoman
        self._base = root or f"{dragoman.url}/as/tiny/to/engine"
        self._key = key

    def stream(self, path: str, *, method: str = "POST", **options: Any) -> Any:
        headers = {**credential(self._key), **options.pop("headers", {})}
        return self._dragoman.http.request(method, self._base + path, headers=headers, **options)

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        async with (
            asyncio.timeout(SOON_S),
            self.stream(path, method=method, **options) as response,
        ):
            return response.status, await response.text()

    async def say(self, text: str, chat: str = "c1", **headers: str) -> tuple[int, str]:
        line = {"chat": chat, "text": text}
        return await self.ask("POST", "/say", json=line, headers=headers)


def lines(body: str) -> list[dict[str, Any]]:
    """Return the lines of a body, but for heartbeats."""
    return [json.loads(line) for line in body.splitlines() if line]


async def next_line(response: Any) -> dict[str, Any]:
    while not (line := await response.content.readline()).strip():
        assert line, "the body is over"
    value: dict[str, Any] = json.loads(line)
    return value


def refusal(answer: tuple[int, str]) -> tuple[int, str]:
    status, body = answer
    return status, json.loads(body)["error"]


def text_of(body: str) -> str:
    return "".join(line["text"] for line in lines(body) if line["type"] == "text")


async def test_a_conversation_is_held_through_a_face_that_is_declared_only(
    dragoman: Proxied,
) -> None:
    ann = Person(dragoman)
    status, first = await ann.say("hello")
    assert status == 200
    assert "hello" in text_of(first)
    assert lines(first)[-1] == {
        "n": len(lines(first)) - 1,
        "type": "over",
        "outcome": "completed",
    }
    _, second = await ann.say("and more")
    assert "and more" in text_of(second)
    # The second body begins where the first one ended.
    assert lines(second)[0]["n"] == lines(first)[-1]["n"] + 1
    # Anybody who comes back reads on from any line, the same bytes.
    assert await ann.ask("GET", "/chats/c1") == (200, first + second)
    last = lines(first)[-1]["n"]
    assert await ann.ask("GET", f"/chats/c1?after={last}") == (200, second)
    assert await ann.ask("GET", f"/chats/c1?after={lines(second)[-1]['n']}") == (204, "")
    # It is a session like any other: other faces show it too.
    path = "/as/engine/to/engine/execute/replay?task_id=c1"
    _, shown = await dragoman.request("GET", path, key="k-ann")
    assert "and more" in shown


async def test_a_declared_face_authorizes_keeps_keys_apart_and_answers_errors_in_its_form(
    dragoman: Proxied,
) -> None:
    ann, bob = Person(dragoman), Person(dragoman, key="k-bob")
    await ann.say("hello")
    assert refusal(await Person(dragoman, key=None).say("hello")) == (401, "unauthorized")
    assert refusal(await bob.ask("GET", "/chats/c1")) == (404, "not_found")
    # The name is free for another key.
    _, own = await bob.say("ahoy")
    assert lines(own)[0]["n"] == 0
    for body in (b"{", b"[]", b'{"chat": "c1"}', b'{"chat": "c1", "text": 5}'):
        answer = await ann.ask("POST", "/say", data=body)
        assert refusal(answer) == (400, "invalid_request")
    assert refusal(await ann.ask("POST", "/say", data=io.BytesIO(b"x" * 20_000_000))) == (
        413,
        "too_large",
    )
    assert refusal(await ann.ask("GET", "/chats/c1?after=x")) == (400, "invalid_request")


async def test_a_mistake_of_a_face_is_one_of_ours_and_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: Incoming, __: SessionView[TinyEncoder], ___: None) -> FrameRange:
        raise KeyError("nothing of this is shown")

    read = FACE.routes[-1]
    assert isinstance(read.does, Stream)
    route = dataclasses.replace(read, does=Stream(read.does.where, broken))
    face = dataclasses.replace(FACE, routes=(*FACE.routes[:-1], route))
    monkeypatch.setitem(DIALECTS, "tiny", dataclasses.replace(TINY, face=face))
    async with proxied(keys=(key_of("ann"),)) as dragoman:
        ann = Person(dragoman)
        await ann.say("hello")
        status, body = await ann.ask("GET", "/chats/c1")
    assert status == 500
    assert json.loads(body)["message"].startswith("See the log, ")
    assert "nothing of this" not in body


@pytest.mark.parametrize(("words", "outcome"), [("yes", "approved"), ("no", "denied")])
async def test_what_the_agent_asks_is_answered_while_the_turn_waits(
    dragoman: Proxied, words: str, outcome: str
) -> None:
    ann, bob = Person(dragoman), Person(dragoman, key="k-bob")
    said = {"chat": "c1", "text": "script: approve"}
    async with asyncio.timeout(SOON_S), ann.stream("/say", json=said) as turn:
        shown = [await next_line(turn)]
        while shown[-1]["type"] != "ask":
            shown.append(await next_line(turn))
        ask = shown[-1]
        assert ask["kind"] == "approval"
        given = {"chat": "c1", "ask": ask["ask"], "text": words}
        assert refusal(await bob.ask("POST", "/answer", json=given)) == (404, "not_found")
        unclear = await ann.ask("POST", "/answer", json={**given, "text": "perhaps"})
        assert refusal(unclear) == (400, "invalid_request")
        assert await ann.ask("POST", "/answer", json=given) == (200, "{}\n")
        shown += lines(await turn.text())
    (answered,) = (line for line in shown if line["type"] == "answered")
    assert (answered["ask"], answered["outcome"]) == (ask["ask"], outcome)
    assert [line["n"] for line in shown] == list(range(len(shown)))
    assert shown[-1]["type"] == "over"
    # Anybody who comes late finds that it has its answer.
    late = await ann.ask("POST", "/answer", json=given)
    assert refusal(late) == (409, "already_answered")


async def test_a_declared_face_knows_repeats_and_equal_requests_that_come_at_once(
    dragoman: Proxied,
) -> None:
    ann = Person(dragoman)
    bodies = await asyncio.gather(*(ann.say("once", **{"Idempotency-Key": "k"}) for _ in range(3)))
    assert len(set(bodies)) == 1
    _, whole = await ann.ask("GET", "/chats/c1")
    assert text_of(whole).count("“once”") == 1
    other = await ann.say("other", **{"Idempotency-Key": "k"})
    assert refusal(other) == (400, "idempotency_key_conflict")


async def test_a_listener_serves_a_declared_face_at_its_root(dragoman: Proxied) -> None:
    (listener,) = dragoman.listeners
    status, body = await Person(dragoman, root=listener.url).say("hello")
    assert status == 200
    assert "hello" in text_of(body)


# Frontends only, backends only.


def refused(text: str, path: Any) -> str:
    file = path / "dragoman.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_settings(file, {})
    return error.value.message.removeprefix(f"{file}: ")


def test_settings_refuse_a_dialect_without_backends_as_a_backend(tiny: None, tmp_path: Any) -> None:
    text = '[[backends]]\nname = "b"\ndialect = "tiny"\nurl = "http://127.0.0.1:9"\n'
    assert refused(text, tmp_path) == (
        "`[[backends]]` 1, `dialect`: `tiny` is a dialect of frontends only: no backend speaks it; "
        f"write one of {', '.join(driven())}"
    )


def test_settings_refuse_a_dialect_without_frontends_as_a_listener(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setitem(DIALECTS, "hooks", HOOKS)
    text = (
        '[[backends]]\nname = "b"\ndialect = "hooks"\nurl = "http://127.0.0.1:9"\n'
        '[[listeners]]\nlisten = "127.0.0.1:0"\ndialect = "hooks"\nroute = "b"\n'
    )
    assert refused(text, tmp_path) == (
        "`[[listeners]]` 1, `dialect`: `hooks` is a dialect of backends only: no frontend speaks "
        f"it; write one of {', '.join(served())}"
    )


async def test_a_dialect_of_backends_only_has_no_address_for_frontends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DIALECTS, "hooks", HOOKS)
    async with proxied() as dragoman:
        status, body = await dragoman.request("GET", "/as/hooks/to/engine/x")
    assert status == 404
    assert body["error"]["message"] == (
        "`hooks` is a dialect of backends only: no frontend speaks it; "
        f"served are: {', '.join(served())}."
    )


def test_what_a_dialect_does_not_have_is_not_read_or_written_in_it(
    tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DIALECTS, "hooks", HOOKS)
    with pytest.raises(DragomanError, match="`tiny` is a dialect of frontends only"):
        make_source("tiny", TranslateOptions())
    with pytest.raises(DragomanError, match="`hooks` is a dialect of backends only"):
        make_sink("hooks", TranslateOptions())
    assert "tiny" not in matrix.backends()


def test_a_dialect_says_what_it_lacks() -> None:
    faceless: list[tuple[Mapping[str, Any], str]] = [
        ({"face": FACE}, "needs both"),
        ({"encoder": TinyEncoder}, "needs both"),
        ({"only": "frontends"}, "has an encoder and a face"),
        (
            {"only": "frontends", "encoder": TinyEncoder, "face": FACE, "client": EngineClient},
            "no c",
        ),
        ({"only": "backends"}, "has a client codec"),
        (
            {"only": "backends", "client": EngineClient, "encoder": TinyEncoder, "face": FACE},
            "neither",
        ),
    ]
    for halves, why in faceless:
        with pytest.raises(ValueError, match=why):
            Dialect("half", **halves)


def test_a_row_of_the_pairs_that_lacks_a_frontend_says_so() -> None:
    with pytest.raises(LookupError, match="needs an outcome for the frontend `eve`"):
        by_frontend(herm=NATIVE)


def test_a_dialect_that_is_not_listed_or_has_no_tables_is_named(tiny: None) -> None:
    with pytest.raises(DragomanError, match="no dialect `nowhere`; known: herm, eve"):
        matrix.mapping_of("nowhere")
    with pytest.raises(DragomanError, match=r"`tiny` has no page adapters/tiny/MAPPING\.md"):
        matrix.mapping_of("tiny")
