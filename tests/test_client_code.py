"""The client code of the dialects' pages: Python runs here, JavaScript asks for routes that there
are and sends its key where it is looked for; `make peers` runs that too.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from multidict import CIMultiDict

from adapters.registry import faces
from proxy.http.auth import Key, authenticate
from tests.support.keys import key_of
from tests.support.proxied import Proxied, proxied

PAGES = Path(__file__).parent.parent / "docs" / "dialects"
BASE = "http://127.0.0.1:8787"
DIALECTS = sorted(page.stem for page in PAGES.iterdir() if page.stem in faces())
BY_ITS_OWN_CLIENT = "eve/client"
BY_AN_AGENT = "@ag-ui/client"
"""What imports these asks for nothing by itself."""

HANDS_ON = ("vite.config.js", "next.config.js")
ON_AN_AGENT = "agent.runAgent("
"""Nor do the servers of pages, and what goes on with an agent."""


def blocks(dialect: str, language: str) -> list[str]:
    page = (PAGES / f"{dialect}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


class Ran(NamedTuple):
    status: int | None
    said: str
    complained: str


def programs(dialect: str) -> list[str]:
    """Return the JavaScript that connects by itself."""
    return [
        code
        for code in blocks(dialect, "js")
        if not code.startswith(tuple(f"// {name}" for name in HANDS_ON)) and ON_AN_AGENT not in code
    ]


async def run(code: str, dragoman: Proxied, key: str) -> Ran:
    program = code.replace(BASE, dragoman.url).replace("KEY", key)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complained = await process.communicate()
    return Ran(process.returncode, said.decode(), complained.decode())


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_python_reads_the_whole_turn_and_ends(dialect: str) -> None:
    (code,) = blocks(dialect, "python")
    async with proxied(keys=(key_of("web"),)) as dragoman:
        ran = await run(code, dragoman, "k-web")
        assert ran.status == 0, ran.complained
        for words in ("You said: ", "hello", "(turn 1)"):
            assert words in ran.said
        refused = await run(code, dragoman, "k-nobody")
    assert refused.status == 1
    assert "401" in refused.complained
    assert refused.said == ""


class Asked(NamedTuple):
    """A request that a block makes: what stands in its URL for a name is `{}`."""

    method: str
    path: str


def asked(code: str) -> list[Asked]:
    """Return the requests of a block of JavaScript, which keeps bases and bodies in constants."""
    constants = dict(re.findall(r'^const (\w+) = "(http[^"]+)";$', code, re.MULTILINE))
    # A function that posts is a request wherever it is called.
    code = re.sub(r"^const post = .*?;$", "", code, flags=re.MULTILINE | re.DOTALL)
    code = re.sub(r"\bpost\(([\"`])/", r"fetch(\1${herm}/", code)
    found = []
    for call in re.findall(r"\bfetch\((.*?)\)\)?[;.)]", code, re.DOTALL):
        url = call.split(",")[0].strip('"`')
        url = re.sub(r"\$\{(\w+)\}", lambda name: constants.get(name[1], "{}"), url)
        url = constants.get(url, url).partition("?")[0]
        assert url.startswith(BASE), call
        posts = 'method: "POST"' in call or "headers" not in call
        found.append(Asked("POST" if posts else "GET", url.removeprefix(BASE)))
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
def test_javascript_asks_for_routes_that_there_are(dialect: str) -> None:
    prefix = f"/as/{dialect}/to/engine"
    named = {
        (route.method, re.sub(r"\{\w+\}", "{}", route.path)) for route in faces()[dialect].routes
    }
    for code in programs(dialect):
        if BY_ITS_OWN_CLIENT in code:
            assert f'host: "{BASE}{prefix}"' in code
            continue
        if BY_AN_AGENT in code:
            assert re.search(rf'url: "{BASE}{prefix}(\?on_leave=stop)?"', code)
            continue
        requests = asked(code)
        assert requests
        for method, path in requests:
            # An Engine has no stop, which is shown with a Herm.
            route = "herm" if path.endswith("/stop") else "engine"
            assert path.startswith(f"/as/{dialect}/to/{route}")
            path = path.removeprefix(f"/as/{dialect}/to/{route}")
            path = path.replace("/agents/engine/", "/agents/{}/")
            assert (method, path) in named


@pytest.mark.parametrize("dialect", DIALECTS)
def test_javascript_sends_its_key_where_it_is_looked_for(dialect: str) -> None:
    keys = [Key("web", hashlib.sha256(b"KEY").digest())]
    for code in programs(dialect):
        if BY_ITS_OWN_CLIENT in code:
            assert 'auth: { bearer: "KEY" }' in code
            continue
        ((name, value),) = re.findall(r'[{ ]"?([\w-]+)"?: "([^"]*KEY)"', code)
        assert authenticate(CIMultiDict({name: value}), keys).name == "web"


@pytest.mark.parametrize("name", HANDS_ON)
def test_the_server_of_a_page_hands_on_what_it_asks(name: str) -> None:
    (code,) = [code for code in blocks("aisdk", "js") if code.startswith(f"// {name}")]
    assert re.findall(r"http://[^/\"]+", code) == [BASE]
    # Not `/as`, with which `/assets` begins.
    assert re.search(r'"/as/(:path\*)?"', code)
