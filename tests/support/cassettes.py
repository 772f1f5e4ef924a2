"""Cassettes: what a client and a backend said to each other, in vcrpy's form, recorded by us.

vcrpy reads a whole answer before it hands on its head, so it cannot record a turn that is answered
while its stream is open. A `Tap` can: a server between client and backend that passes every piece
on and keeps it. What a cassette cannot show is when a piece came, and where a connection was cut.

`played` plays a cassette. It fails when a request differs from the recorded one in method, address,
body, credential or resume header, and when a recorded exchange was not asked for. A cassette says
which header carried the right key or another one, and has neither.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import vcr  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

__all__ = ["CREDENTIALS", "PLACEHOLDER", "WRONG", "Tap", "load", "played", "tap"]

CREDENTIALS = ("X-Engine-Key", "Authorization")
"""Their values are never in a cassette, but whether the right one was sent is."""

PLACEHOLDER = "placeholder"
WRONG = "wrong"
"""What stands for the key of the recording, and for every other value."""

# What decides how an exchange goes on. The rest names versions of libraries and times of day.
_REQUEST_HEADERS = (*CREDENTIALS, "Accept", "Content-Type", "Last-Event-ID")
_ANSWER_HEADERS = (
    *("Content-Type", "Cache-Control", "Location", "Retry-After"),
    *("X-Eve-Session-Id", "X-Eve-Stream-Format", "X-Eve-Stream-Version"),
)
_RESUME_HEADERS = ("Accept", "Last-Event-ID")


@dataclass(slots=True)
class Exchange:
    """One request and its answer, whose body grows as it comes."""

    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes
    status: int = 0
    reason: str = ""
    answer_headers: CIMultiDict[str] = field(default_factory=CIMultiDict)
    answer: bytearray = field(default_factory=bytearray)

    def as_cassette(self, host: str, key: str) -> dict[str, Any]:
        """Return the exchange as vcrpy writes it, with another host and without credentials."""
        sent = _kept(self.headers, _REQUEST_HEADERS)
        sent |= {name: [_hidden(sent[name][0], key)] for name in CREDENTIALS if name in sent}
        return {
            "request": {
                "method": self.method,
                "uri": host + self.target,
                "headers": sent,
                "body": self.body.decode() or None,
            },
            "response": {
                "status": {"code": self.status, "message": self.reason},
                "headers": _kept(self.answer_headers, _ANSWER_HEADERS),
                "body": {"string": self.answer.decode()},
            },
        }


def _kept(headers: CIMultiDict[str], names: tuple[str, ...]) -> dict[str, list[str]]:
    kept = {name: headers.getall(name) for name in names if name in headers}
    if kept.get("Accept") == ["*/*"]:
        # aiohttp's own, which is not there when a cassette is played.
        del kept["Accept"]
    return kept


def _hidden(value: str, key: str) -> str:
    """Return the word for a credential that is right, or for another one."""
    return PLACEHOLDER if value in (key, PLACEHOLDER) else WRONG


@dataclass(slots=True)
class Tap:
    """What passed: `url` is where the client asks."""

    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)

    def write(self, path: Path, *, host: str, key: str) -> None:
        """Write the exchanges as a cassette, with `host` in place of the address on this machine;
        `key` is the value of the header that is the right credential.

        Raises:
            ValueError: an answer that promises a body has none, or a text names this machine.
        """
        for exchange in self.exchanges:
            streamed = exchange.answer_headers.get("Content-Type") == "text/event-stream"
            if exchange.status == 200 and not exchange.answer and not streamed:
                raise ValueError(f"{path.name}: {exchange.target} has an empty body")
        interactions = [exchange.as_cassette(host, key) for exchange in self.exchanges]
        text = yaml.dump(
            {"version": 1, "interactions": interactions},
            Dumper=_Dumper,
            allow_unicode=True,
            sort_keys=False,
            # Wide enough for every line: a folded line of a stream is hard to read.
            width=1_000_000,
        )
        if "127.0.0.1" in text:
            raise ValueError(f"{path.name} names the machine that recorded it")
        path.write_text(text)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes texts of several lines as blocks, so that a stream reads as it was sent."""


def _text(dumper: yaml.SafeDumper, value: str) -> Any:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


@contextlib.asynccontextmanager
async def tap(backend: str) -> AsyncIterator[Tap]:
    """Stand before the backend at that URL, pass everything on and keep it."""
    kept = Tap()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        exchange = Exchange(request.method, request.path_qs, CIMultiDict(request.headers), body)
        kept.exchanges.append(exchange)
        headers = _passed_on(request.headers)
        async with session.request(
            request.method,
            backend + request.path_qs,
            headers=headers,
            data=body or None,
            allow_redirects=False,
        ) as answer:
            exchange.status, exchange.reason = answer.status, answer.reason or ""
            exchange.answer_headers = CIMultiDict(answer.headers)
            response = web.StreamResponse(
                status=answer.status, reason=answer.reason, headers=_passed_on(answer.headers)
            )
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                exchange.answer += piece
                await response.write(piece)
            return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with aiohttp.ClientSession() as session, TestServer(app) as server:
        kept.url = str(server.make_url("")).rstrip("/")
        yield kept


def _passed_on(headers: Any) -> CIMultiDict[str]:
    """Return headers less those of one connection."""
    passed = CIMultiDict(headers)
    for name in ("Host", "Connection", "Content-Length", "Transfer-Encoding", "Date", "Server"):
        passed.popall(name, None)
    return passed


def load(path: Path) -> list[dict[str, Any]]:
    """Return the exchanges of a cassette."""
    document = yaml.safe_load(path.read_text())
    assert document["version"] == 1
    interactions: list[dict[str, Any]] = document["interactions"]
    return interactions


def _same_credential(asked: Any, recorded: Any) -> None:
    # The values are placeholders on both sides; one of them may be missing.
    for name in CREDENTIALS:
        assert _one(asked.headers, name) == _one(recorded.headers, name), name


def _same_resumption(asked: Any, recorded: Any) -> None:
    for name in _RESUME_HEADERS:
        assert _one(asked.headers, name) == _one(recorded.headers, name), name


def _one(headers: Any, name: str) -> str | None:
    value = headers.get(name)
    return None if value is None else str(value[0] if isinstance(value, list) else value)


@contextlib.contextmanager
def played(path: Path, *, key: str) -> Iterator[None]:
    """Answer requests of aiohttp from a cassette, each recorded exchange exactly once.

    `key` is the value of the header that is the right credential.
    """

    def hide(request: Any) -> Any:
        for name in CREDENTIALS:
            if (value := _one(request.headers, name)) is not None:
                request.headers[name] = _hidden(value, key)
        return request

    player = vcr.VCR(
        record_mode=vcr.mode.NONE,
        match_on=("method", "uri", "body", "credential", "resumption"),
        before_record_request=hide,
    )
    player.register_matcher("credential", _same_credential)
    player.register_matcher("resumption", _same_resumption)
    with player.use_cassette(str(path), allow_playback_repeats=False) as cassette:
        yield
        unused = [
            f"{request.method} {request.uri}"
            for index, (request, _) in enumerate(cassette.data)
            if not cassette.play_counts[index]
        ]
        assert cassette.all_played, f"{path.name}: not asked for: {unused}"
