"""What every test gets: one hypothesis profile, and a guard against blocking calls in the loop."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.patience import impatient
from tests.support.serving import WHOLE_SERVERS

__all__ = ["impatient"]

TESTS = Path(__file__).parent

# Examples derive from the test's name alone: a run is red or green for everybody, on any machine.
# No deadline and no judgement of slowness: what an example costs depends on who else uses the
# processor.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _PATIENT, derandomize=True, database=None)
# For a hunt by hand: HYPOTHESIS_PROFILE=search draws new examples and more of them.
settings.register_profile("search", _PATIENT, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


class BlockingCallInLoop(BaseException):
    """Something blocks the event loop. No `Exception`: a handler must not take it for a fault."""


def _refuse_in_loop(call: str, arguments: object) -> None:
    if asyncio._get_running_loop() is not None:
        raise BlockingCallInLoop(f"{call} blocks the event loop: {arguments!r}")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    # An audit hook sees the calls of libraries too, and costs next to nothing for other events.
    match event:
        case "socket.connect" if arguments[0].gettimeout() != 0:
            _refuse_in_loop(event, arguments[1])
        case "socket.getaddrinfo" | "socket.gethostbyname" | "sqlite3.connect" | "urllib.Request":
            _refuse_in_loop(event, arguments)


sys.addaudithook(_watch)

_sleep = time.sleep


def _guarded_sleep(seconds: Any, /) -> None:
    if seconds > 0:
        _refuse_in_loop("time.sleep", seconds)
    _sleep(seconds)


time.sleep = _guarded_sleep  # it raises no audit event before Python 3.13


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let servers be crashed in the tests of whole servers without a warning about their sockets.

    A connection that arrives in the very moment in which aiohttp closes its listener is in nobody's
    list any more and is left to the garbage collector; a process that really dies does the same.
    """
    for item in items:
        if any(item.path.is_relative_to(TESTS / folder) for folder in WHOLE_SERVERS):
            for what in (
                "unclosed transport",
                "unclosed <socket",
                "Exception ignored in. <function _SelectorTransport.__del__",
                "Exception ignored in. <socket",
            ):
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{what}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that is skipped, or expected to fail, has failed: its reason is for other
    systems."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"no test may be skipped in CI: {report.longrepr}"
    return report
