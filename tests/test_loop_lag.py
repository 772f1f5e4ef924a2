"""The gauge of the event loop's lag."""

from __future__ import annotations

import asyncio
import time

import pytest

from proxy.base import loop_lag
from proxy.base.loop_lag import PERIOD, LoopLag
from tests.support.waiting import until


def work(seconds: float) -> None:
    """Keep the loop busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def test_work_that_holds_up_the_loop_is_seen_and_forgotten_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lag = LoopLag()
    end = lag.watch(asyncio.get_running_loop())
    work(0.3)
    await asyncio.sleep(2 * PERIOD)
    # The look was due a period after the work began.
    assert lag.longest > 0.3 - 2 * PERIOD
    monkeypatch.setattr(loop_lag, "WINDOW", 2)
    await until(lambda: lag.longest < 0.2)
    end()
    # Nobody looks any more.
    work(0.3)
    await asyncio.sleep(2 * PERIOD)
    assert lag.longest < 0.2
