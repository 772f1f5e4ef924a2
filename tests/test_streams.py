"""What a stream asks of its connection, whatever the system below it can do."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from aiohttp import ClientConnectionResetError, web
from aiohttp.test_utils import make_mocked_request

from proxy.fanout.streams import _limit_silence, limit_unsent, send_head

OPTION = 18
"""The number that Linux has for it; other systems that know the option have others."""


class FakeSocket:
    """A socket that keeps what is set; with `fault` it refuses."""

    def __init__(self, family: int = socket.AF_INET, fault: OSError | None = None) -> None:
        self.family = family
        self.options: list[tuple[int, int, int]] = []
        self._fault = fault

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if self._fault is not None:
            raise self._fault
        self.options.append((level, option, value))


class FakeTransport(asyncio.Transport):
    """A transport over a socket, or over none as in a test or a pipe."""

    def __init__(self, sock: FakeSocket | None) -> None:
        super().__init__({} if sock is None else {"socket": sock})


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that has the option, whichever this one is."""
    monkeypatch.setattr(socket, "TCP_USER_TIMEOUT", OPTION, raising=False)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("seconds", "milliseconds"), [(30.0, 30_000), (0.2, 200), (1.2345, 1234), (0.0001, 1)]
)
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["v4", "v6"])
def test_the_kernel_is_told_in_milliseconds_how_long_a_client_may_confirm_nothing(
    family: int, seconds: float, milliseconds: int
) -> None:
    sock = FakeSocket(family)
    _limit_silence(FakeTransport(sock), seconds)
    assert sock.options == [(socket.IPPROTO_TCP, OPTION, milliseconds)]


def test_a_system_without_such_a_limit_is_asked_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
    sock = FakeSocket()
    _limit_silence(FakeTransport(sock), 30.0)
    assert sock.options == []


@pytest.mark.usefixtures("known")
def test_a_transport_without_a_socket_is_left_alone() -> None:
    _limit_silence(FakeTransport(None), 30.0)


@pytest.mark.usefixtures("known")
def test_a_unix_socket_is_left_alone_as_its_other_end_cannot_vanish() -> None:
    sock = FakeSocket(socket.AF_UNIX)
    _limit_silence(FakeTransport(sock), 30.0)
    assert sock.options == []


@pytest.mark.usefixtures("known")
def test_a_stream_goes_on_without_the_limit_where_the_kernel_refuses_it() -> None:
    refused: Any = FakeSocket(fault=OSError(92, "Protocol not available"))
    _limit_silence(FakeTransport(refused), 30.0)


async def test_a_reader_that_leaves_before_the_head_is_nobodys_error() -> None:
    class Left(web.StreamResponse):
        async def prepare(self, request: web.BaseRequest) -> None:
            raise ClientConnectionResetError("Cannot write to closing transport")

    await send_head(make_mocked_request("GET", "/"), Left())


UNSENT = 25
"""The number that Linux has for the limit of what is not sent."""


def test_the_kernel_is_told_how_much_may_wait_in_it_for_a_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "TCP_NOTSENT_LOWAT", UNSENT, raising=False)
    sock = FakeSocket()
    limit_unsent(FakeTransport(sock))
    assert sock.options == [(socket.IPPROTO_TCP, UNSENT, 128 * 1024)]


def test_where_the_kernel_cannot_limit_what_waits_in_it_a_stream_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "TCP_NOTSENT_LOWAT", UNSENT, raising=False)
    limit_unsent(FakeTransport(None))
    refused: Any = FakeSocket(fault=OSError(92, "Protocol not available"))
    limit_unsent(FakeTransport(refused))
    at_unix = FakeSocket(socket.AF_UNIX)
    limit_unsent(FakeTransport(at_unix))
    monkeypatch.delattr(socket, "TCP_NOTSENT_LOWAT")
    without = FakeSocket()
    limit_unsent(FakeTransport(without))
    assert at_unix.options == without.options == []
