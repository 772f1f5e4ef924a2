"""The page at `/ui/`: its files, the headers that keep it safe, and how it is found."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from proxy.ui.ui import SECURITY, files
from tests.support.proxied import Proxied, proxied

LOADED_BYTES = 150_000
"""What all files of the page may have together on their way to a browser."""


@pytest.fixture
async def dragoman() -> AsyncIterator[Proxied]:
    async with proxied() as running:
        yield running


async def got(dragoman: Proxied, path: str, **headers: str) -> tuple[aiohttp.ClientResponse, bytes]:
    """Return an answer and its body; no redirect is followed."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(dragoman.url + path, headers=headers, allow_redirects=False) as answer,
    ):
        return answer, await answer.read()


async def test_each_file_of_the_page_is_served_with_what_keeps_it_safe(dragoman: Proxied) -> None:
    for name, file in files().items():
        answer, body = await got(dragoman, f"/ui/{name}")
        assert (answer.status, body) == (200, file.body)
        assert answer.content_type == file.media
        assert dict(answer.headers).items() >= SECURITY.items()


async def test_a_browser_gets_a_file_packed_and_who_takes_no_gzip_gets_it_plain(
    dragoman: Proxied,
) -> None:
    packed, body = await got(dragoman, "/ui/app.js", **{"Accept-Encoding": "gzip, br"})
    plain, same = await got(dragoman, "/ui/app.js", **{"Accept-Encoding": "identity"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert body == same
    assert int(packed.headers["Content-Length"]) < len(body) / 2


async def test_a_file_that_the_browser_has_is_not_sent_again(dragoman: Proxied) -> None:
    answer, _ = await got(dragoman, "/ui/")
    again, body = await got(dragoman, "/ui/", **{"If-None-Match": answer.headers["ETag"]})
    assert (again.status, body) == (304, b"")
    changed, body = await got(dragoman, "/ui/", **{"If-None-Match": '"other"'})
    assert changed.status == 200
    assert body


@pytest.mark.parametrize("path", ["/ui/../ui.py", "/ui/%2e%2e/ui.py", "/ui/vendor", "/ui/x.js"])
async def test_nothing_but_the_files_of_the_page_is_there(dragoman: Proxied, path: str) -> None:
    answer, body = await got(dragoman, path)
    assert answer.status == 404
    assert b"not_found" in body


async def test_the_address_without_its_slash_leads_to_the_page(dragoman: Proxied) -> None:
    answer, _ = await got(dragoman, "/ui")
    assert (answer.status, answer.headers["Location"]) == (302, "/ui/")


async def test_a_browser_at_the_servers_address_finds_a_link(dragoman: Proxied) -> None:
    answer, body = await got(dragoman, "/", Accept="text/html,application/xhtml+xml")
    assert answer.content_type == "text/html"
    assert b'<a href="/ui/">' in body
    assert dict(answer.headers).items() >= SECURITY.items()
    plain, body = await got(dragoman, "/")
    assert plain.content_type == "text/plain"
    assert b"/ui/" in body


async def test_the_page_can_be_turned_off() -> None:
    off: Any = {"server": {"ui": False}}
    async with proxied(**off) as dragoman:
        assert (await got(dragoman, "/ui/"))[0].status == 404
        assert (await got(dragoman, "/ui"))[0].status == 404
        assert b"/ui/" not in (await got(dragoman, "/", Accept="text/html"))[1]


def test_the_page_is_small() -> None:
    assert sum(len(file.packed) for file in files().values()) < LOADED_BYTES


def test_no_file_runs_what_it_is_told_or_loads_from_elsewhere() -> None:
    for name, file in files().items():
        text = file.body.decode()
        if name.startswith("vendor/"):
            continue
        assert (
            re.search(r"innerHTML|dangerously|\beval\(|new Function|document\.write", text) is None
        )
        assert re.search(r"(?:src|href|from|import)\W{1,2}https?:", text) is None, name
