"""What `proxy.upstream.straight` takes for granted of aiohttp, in the release that is installed."""

from __future__ import annotations

import asyncio
import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import aiohttp
from aiohttp.base_protocol import BaseProtocol

from proxy.upstream import straight

ROOT = Path(__file__).parents[2]

METHODS = {
    "feed_data": ["self", "data"],
    "begin_http_chunk_receiving": ["self"],
    "end_http_chunk_receiving": ["self"],
    "feed_eof": ["self"],
    "set_exception": ["self", "exc", "exc_cause"],
}
"""What aiohttp's parser tells a reader, and with what."""


class Heard:
    """Who listens."""

    def __init__(self) -> None:
        self.said: list[bytes | None] = []

    def put(self, data: bytes) -> None:
        self.said.append(data)

    def over(self) -> None:
        self.said.append(None)


def test_the_allowed_releases_of_aiohttp_are_those_that_this_was_tried_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (allowed,) = (one for one in project["dependencies"] if one.startswith("aiohttp"))
    assert re.fullmatch(r"aiohttp>=3\.14\.5,<3\.15", allowed), (
        "Read the changes of `StreamReader` and of the parsers, run the tests of `upstream` and "
        "`make peers` with the new release, then write it here."
    )
    assert version("aiohttp").startswith("3.14.")


def test_a_reader_is_told_by_the_methods_that_are_known() -> None:
    for name, parameters in METHODS.items():
        known = list(inspect.signature(getattr(aiohttp.StreamReader, name)).parameters)
        assert known[: len(parameters)] == parameters, name


async def test_a_reader_hands_on_while_somebody_listens_and_keeps_the_rest() -> None:
    protocol = mock.create_autospec(BaseProtocol, instance=True, _reading_paused=False)
    loop = asyncio.get_running_loop()
    content = aiohttp.StreamReader(protocol, limit=2**16, loop=loop)
    heard = Heard()
    content.feed_data(b"before")
    straight.begin(content, heard)
    assert isinstance(content, aiohttp.StreamReader)
    content.feed_data(b"one")
    content.feed_data(b"")
    content.end_http_chunk_receiving()
    straight.end(content)
    content.feed_data(b"after")
    assert type(content) is aiohttp.StreamReader
    assert (heard.said, content.read_nowait(-1)) == ([b"one"], b"beforeafter")
    straight.begin(content, heard)
    content.feed_eof()
    content.set_exception(ValueError("x"))
    straight.end(content)
    assert heard.said == [b"one", None, None]
    assert content.is_eof()
    assert isinstance(content.exception(), ValueError)


async def test_nothing_is_known_of_a_reader_that_nobody_listens_to() -> None:
    protocol = mock.create_autospec(BaseProtocol, instance=True, _reading_paused=False)
    content = aiohttp.StreamReader(protocol, limit=2**16, loop=asyncio.get_running_loop())
    straight.begin(content, Heard())
    straight.end(content)
    assert content not in straight._LISTENERS
