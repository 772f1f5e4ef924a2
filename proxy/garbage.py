"""When garbage is looked for, so that no turn of the event loop is long for it.

Nearly everything here leaves memory by itself, when nothing refers to it any more; the collector
finds what refers to itself. It looks at all objects of an age at once and cannot pause, and takes
0.25 to 0.9 µs for each that it looks at, up to 1.9 µs for each that it frees. So how many it looks
at bounds how long it takes. All figures are of CPython 3.11.

* Young and middle-aged objects are looked at as they come, in small numbers.
* CPython would look at old ones whenever there are a quarter more: 1,000 loaded sessions are 80,000
  objects, 20 to 90 ms. Here that is done where little is alive, and waits otherwise.
* What there is before anything is served, 69,000 objects of modules, is never looked at again.

So old objects that refer to each other stay in memory while many sessions are loaded. There are
few: neither sessions nor requests leave such garbage, nor connections of uvloop. asyncio's own loop
leaves 7 objects for each connection, and an exception that a library keeps some more. In 80 s of
mixed traffic, of which a tenth was cut, 180 of 93,000 objects were garbage. `MANY` bounds what may
gather.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable

YOUNG = 1_000
"""Objects more than before after which the young ones are looked at: at most 1.6 ms. With 20,000 it
took 9 to 38 ms where connections came and went. Each object is looked at as often whatever this is:
all looking took 0.3 % of a core under mixed traffic."""

MIDDLE = 3
"""How often the young ones are looked at between two looks at those that were left each time: 4,000
objects, 3 ms, 5 ms on a busy machine. Twice as many took 14 ms there."""

_NEVER = 2**31 - 1

LOOK_SECONDS = 10.0
"""How often it is asked whether old objects may be looked at. The question costs 0.1 ms."""

FEW = 30_000
"""Blocks of memory more than at the start with which old objects are looked at: some 150 loaded
sessions; 12,000 objects, at most 10 ms."""

MANY = 4_000_000
"""Blocks more than at the start with which old objects are looked at all the same, whoever waits,
and again when there are twice as many: half a gigabyte, 20,000 small sessions. The alternative to
that turn of a second would be a process that may grow without end."""


def set_up() -> None:
    """Put what is there out of the collector's sight, and bound what it looks at by itself."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, _NEVER)


class Old:
    """The old objects of a process. How many there are the collector does not tell; how many blocks
    of memory are taken is known at once, and an object has 2.4 of them with what belongs to it."""

    def __init__(
        self,
        blocks: Callable[[], int] = sys.getallocatedblocks,
        collect: Callable[[], object] = gc.collect,
    ) -> None:
        self._blocks = blocks
        self._collect = collect
        self._begun = blocks()
        self._many = MANY

    def look(self) -> None:
        """Collect garbage where little is alive, or too much."""
        grown = self._blocks() - self._begun
        if FEW < grown < self._many:
            return
        self._collect()
        self._many = max(MANY, 2 * (self._blocks() - self._begun))


def watch(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Look after old objects from now on; return what ends that."""
    old = Old()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        timer = loop.call_later(LOOK_SECONDS, look)
        old.look()

    def end() -> None:
        timer.cancel()

    timer = loop.call_later(LOOK_SECONDS, look)
    return end
