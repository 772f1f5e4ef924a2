"""Whether the system's clock was set while the process runs: said in the log, and counted."""

from __future__ import annotations

import logging

from proxy.base.clock import Clock
from proxy.base.metrics import CLOCK_STEPS

_log = logging.getLogger(__name__)


async def watch_clock(clock: Clock) -> None:
    """Look whether somebody sets the system's clock, for as long as the server runs."""
    before = clock.offset()
    while True:
        await clock.sleep(10.0)
        now = clock.offset()
        step, before = now - before, now
        # What keeps a clock right moves it by less between two looks.
        if abs(step) >= 1.0:
            CLOCK_STEPS.inc()
            _log.warning(
                "the system's clock was set by %+.0f s, or the machine slept: stored times follow "
                "it forward only, and waits go on at their pace; if it is wrong, set it right",
                step,
                extra={"kind": "clock", "seconds": round(step)},
            )
