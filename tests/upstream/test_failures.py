"""What aiohttp raises, in words that hold no address of ours."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from yarl import URL

from proxy.base.errors import UpstreamTimeout, UpstreamUnavailable
from proxy.upstream.failures import read_failure, request_failure
from proxy.upstream.health import Trouble

ADDRESS = "10.1.2.3"

INFO: Any = SimpleNamespace(real_url=URL(f"http://{ADDRESS}:4000/execute"))


def connector(number: int) -> aiohttp.ClientConnectorError:
    key: Any = SimpleNamespace(host=ADDRESS, port=4000, ssl=True)
    return aiohttp.ClientConnectorError(key, OSError(number, f"Connect call failed {ADDRESS}"))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (connector(errno.ECONNREFUSED), Trouble.CONNECTION, "Backend `quarry` takes no connection"),
        (connector(errno.EMFILE), None, "No file descriptor is left"),
        (
            aiohttp.ClientResponseError(INFO, (), status=400, message="Bad status line"),
            Trouble.BROKEN,
            "The connection to backend `quarry` broke before an answer: Bad status line",
        ),
        (
            aiohttp.ClientOSError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
            Trouble.BROKEN,
            "The connection to backend `quarry` broke before an answer: Connection reset by peer",
        ),
        (
            aiohttp.ServerDisconnectedError(),
            Trouble.BROKEN,
            "The connection to backend `quarry` broke before an answer: Server disconnected",
        ),
        (TimeoutError(), Trouble.TIMEOUT, "Backend `quarry` did not answer in time."),
        (aiohttp.InvalidURL("x"), None, "The request to backend `quarry` cannot be made."),
    ],
)
def test_each_failure_has_its_words_and_its_kind(
    error: Exception, kind: Trouble | None, words: str
) -> None:
    failed = request_failure(error, "quarry")
    assert failed.kind is kind
    assert failed.error.whole.startswith(words)
    assert ADDRESS not in failed.error.whole
    said = words.partition(":")[0]
    assert failed.error.message.rstrip(".") == said.rstrip(".") or kind is not Trouble.BROKEN
    assert "ulimit" not in failed.error.message


def test_without_a_name_it_is_the_backend() -> None:
    assert request_failure(TimeoutError(), "").error.message.startswith("The backend did not")
    broke = request_failure(aiohttp.ServerDisconnectedError(), "").error
    assert broke.whole.startswith("The connection to the backend broke before an answer: ")
    assert broke.message == "The connection to the backend broke before an answer."


def test_a_stream_is_silent_or_broken() -> None:
    silent = read_failure(TimeoutError(), "quarry")
    assert isinstance(silent, UpstreamTimeout)
    assert silent.message == "Backend `quarry` was silent in the middle of a stream."
    broken = read_failure(aiohttp.ClientPayloadError("not completed"), "quarry")
    assert isinstance(broken, UpstreamUnavailable)
    assert broken.message == "The stream of backend `quarry` broke."
    assert broken.whole == "The stream of backend `quarry` broke: not completed"
