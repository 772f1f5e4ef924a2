"""What is wrong with a request is told with its place and what to write: a table of them.

`wrong_requests.txt` has the requests: a line, headers, an empty line and a body where there is one.
Each is followed by its status and the words of its answer, after `=>`. The answer must be in the
form of its dialect.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from yarl import URL

from adapters.contract.faces.misdirected import KnownPath, way_out
from adapters.contract.faces.neighbours import Neighbour
from proxy import __version__
from proxy.config.settings import ListenerSettings
from tests.support.each import each
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied
from tests.support.raw import exchange
from tests.support.waiting import SOON_S
from tests.wire import served

TABLE = Path(__file__).with_name("wrong_requests.txt").read_text("utf-8")

CASES: list[tuple[str, str]] = re.findall(r"((?:(?!=> ).*\n)+)((?:=> .*\n)+)", TABLE)

PHRASES = re.compile(
    r"Input should|Field required|Extra inputs|Value error|a valid |Traceback|\.py\b|\{\w+\}"
)
"""What the libraries say, what a failure of ours shows, and what stands for a name."""

KEYS = (key_of("ann"), key_of("bob"), key_of("ops", admin=True), key_of("eve", ("other",)))

SERVER = {"max_text_bytes": 100_000, "max_body_bytes": 200_000}


class World:
    """A server with three sessions: one that asks and one that was answered, both Ann's, and one
    of Bob's."""

    def __init__(self, dragoman: Proxied, backend: str, names: dict[str, str]) -> None:
        self.dragoman = dragoman
        self.backend = backend
        self.names = names

    async def ask(self, text: str) -> str:
        """Ask, and return the status and the words of the answer."""
        for name, value in self.names.items():
            text = text.replace(f"{{{name}}}", value)
        head, _, body = text.strip("\n").partition("\n\n")
        line, *lines = head.split("\n")
        method, path = line.split(" ", 1)
        headers = dict(one.split(": ", 1) for one in lines)
        async with (
            asyncio.timeout(SOON_S),
            self.dragoman.http.request(
                method,
                URL(self.dragoman.url + path, encoded=True),
                headers=headers,
                data=body.encode() or None,
                skip_auto_headers=("Content-Type",),
            ) as response,
        ):
            words = await words_of(path, response)
            return f"{response.status} {self.without_names(words)}"

    def without_names(self, words: str) -> str:
        """Put back what stands for names, which differ from run to run."""
        for name, value in self.names.items():
            words = words.replace(value, f"[{name}]")
        return words.replace(self.dragoman.url, "http://HOST").replace(__version__, "VERSION")


async def words_of(path: str, response: aiohttp.ClientResponse) -> str:
    """Return the words of an answer, which must be in the form of its dialect."""
    if response.content_type == "text/plain":
        # Without the empty lines, which part the cases of the table.
        return re.sub("\n+", "\n", await response.text()).rstrip("\n")
    assert response.content_type == "application/json"
    body: Any = await response.json()
    match path.partition("?")[0].split("/")[1:3]:
        case ["as", "engine"]:
            assert body.keys() <= {"error", "message", "details"}
            assert re.fullmatch("[A-Z_]+", body["error"])
            words = body["message"]
        case ["as", "agui"]:
            assert body.keys() <= {"error", "code", "details"}
            words = body["error"]
        case ["as", "herm"]:
            assert body.keys() == {"error"}
            assert body["error"].keys() == {"code", "message"}
            words = body["error"]["message"]
        case ["as", "eve"] if body.get("ok") is None:
            # As the framework that serves it.
            assert (body["error"], body["status"]) == (True, response.status)
            words = body["message"]
        case ["as", "eve"]:
            assert body["ok"] is False
            words = body["error"]
        case _:
            assert body.keys() == {"version", "error"}
            words = body["error"]["message"]
    assert isinstance(words, str)
    return words


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    backends = ("engine", "other")
    async with proxied(backends=backends, keys=KEYS, server=SERVER) as dragoman:
        names = {}
        for key, name in (("ann", "session"), ("ann", "done"), ("bob", "theirs")):
            names[name] = await dragoman.say("script: approve", key=f"k-{key}")
            names[f"{name}-request"] = (await dragoman.asked(names[name])).request_id
        path = f"/api/v1/sessions/{names['done']}/interactions/{names['done-request']}"
        answer = {"decision": "allow"}
        assert (await dragoman.request("POST", path, key="k-ann", json=answer))[0] == 202
        await dragoman.until_idle(names["done"])
        names["large"] = "x" * 210_000
        yield World(dragoman, dragoman.sessions.settings.backends[0].url, names)


def test_the_table_is_whole() -> None:
    assert len(CASES) >= 25
    assert "".join(asked + told for asked, told in CASES) == TABLE


@pytest.mark.asyncio(loop_scope="module")
@each(("asked", "told"), CASES)
async def test_a_wrong_request_is_told_in_these_words(world: World, asked: str, told: str) -> None:
    found = await world.ask(asked)
    assert found == told.removeprefix("=> ").rstrip("\n").replace("\n=> ", "\n")
    assert PHRASES.search(found) is None
    assert world.backend not in found


def page(told: str) -> list[str]:
    return [line.strip() for line in told.split("\n") if line.strip()]


@pytest.mark.parametrize("dialect", sorted(served()))
async def test_a_browser_is_told_what_each_address_is_and_which_routes_there_are(
    dialect: str,
) -> None:
    listener = {"listen": "127.0.0.1:0", "dialect": dialect, "route": "other"}
    listeners = (ListenerSettings.model_validate(listener),)
    async with proxied(backends=("engine", "other"), listeners=listeners) as dragoman:
        status, text = await dragoman.request("GET", "/", headers={"Accept": "text/html"})
        assert status == 200
        assert f"{dragoman.url}/as/{dialect}/to/ROUTE" in page(text)
        assert "ROUTE is one of: engine, other." in page(text)
        (own,) = dragoman.listeners
        for base in (f"{dragoman.url}/as/{dialect}/to/engine", own.url):
            for address in (f"{base}/", *([base] if base != own.url else [])):
                status, text = await dragoman.request("GET", address)
                assert status == 200
                assert page(text)[:3] == [
                    f"This is Dragoman {__version__}.",
                    f"This address is a base URL for frontends of the dialect {dialect}: give them",
                    base,
                ]
                assert "key" not in text
                assert (await dragoman.request("HEAD", address))[0] == 200


@pytest.mark.parametrize("host", [b"", b"x:99999"])
async def test_a_page_for_a_host_that_is_not_one_is_refused_or_names_another(host: bytes) -> None:
    async with proxied(keys=KEYS[:1]) as dragoman:
        for target in (b"/", b"/as/eve/to/engine", b"/as/herm/to/engine/"):
            status, _, body = await exchange(dragoman.url, "GET", target, host=host)
            assert status in (200, 400)
            assert status == 200 or b"is not a host" in body


def test_what_was_meant_is_told_only_where_it_is_there() -> None:
    asked = [
        KnownPath("POST", "/a/b/{name}"),
        KnownPath("GET", "/a/b/{name}"),
        KnownPath("GET", "/a/c"),
    ]
    for path, found in (
        ("/a/b/x", "Write `GET /a/b/x`."),
        ("/b/x", "Write `GET /a/b/x`."),
        ("//a//c/", "Write `GET /a/c`."),
        ("/a/a/c", "Write `GET /a/c`."),
        ("/z/a/b/x", "Write `GET /a/b/x`."),
        ("", "There are `/a/c` and what is below these."),
        ("/", "There are `/a/c` and what is below these."),
        ("/" * 10_000, "There are `/a/c` and what is below these."),
        ("/z/" * 10_000, "There are `/a/c` and what is below these."),
    ):
        assert way_out(asked, "GET", path) == found
    assert way_out(asked, "PUT", "/b/x") == "Write `GET /a/b/x` or `POST /a/b/x`."
    assert way_out(asked, "HEAD", "/c/") == "Write `HEAD /a/c`."


def test_the_base_url_is_told_where_requests_go_to_it() -> None:
    asked = [KnownPath("POST", ""), KnownPath("GET", "/a/c")]
    assert way_out(asked, "GET", "/x") == "There are `/a/c` and what is below these."
    assert way_out(asked, "GET", "/c") == "Write `GET /a/c`."
    assert way_out(asked, "GET", "//") == "Send POST to the base URL itself."
    assert way_out(asked[:1], "GET", "/x", below="it") == "Send POST to the base URL itself."


@pytest.mark.parametrize("key", ["", "k-ann", "k-eve"])
async def test_a_listener_names_the_server_s_address_and_its_route_to_those_who_may_know_it(
    key: str,
) -> None:
    listener = {"listen": "127.0.0.1:0", "dialect": "eve", "route": "engine"}
    listeners = (ListenerSettings.model_validate(listener),)
    backends = ("engine", "other")
    async with proxied(backends=backends, listeners=listeners, keys=KEYS) as dragoman:
        (own,) = dragoman.listeners
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with dragoman.http.post(f"{own.url}/api/chat", headers=headers, json={}) as answer:
            told = (await answer.json())["message"]
    if key != "k-eve":
        route = "engine" if key else "ROUTE"
        assert told.endswith(
            f"This is how an AI SDK UI page (`useChat`) asks: `/as/aisdk/to/{route}/api/chat` "
            "serves it at the server's main address."
        )
    assert key == "k-ann" or "to/engine" not in told


def test_a_path_is_a_client_s_wherever_its_base_is() -> None:
    client = Neighbour(title="a client", paths=("/info", "/agent/{agent}/run"))
    for path in ("/info", "/api/x/info", "/agent/a/run", "/x/agent/a/run"):
        assert client.asks(path)
    for path in ("", "/", "info", "/information", "/agent//run", "/agent/run", "/info/x"):
        assert not client.asks(path)
