"""The parts of a run: each puts one kind of load on one target and gives its figures.

A part opens its streams through the target, tells the origin to go, measures a window in which
nothing is opened or closed, and ends its streams. Events that are missing or come twice are counted
in every part; one is too many, whatever the speed.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bench.load import (
    HANG_SECONDS,
    Connection,
    EveFace,
    Face,
    Meter,
    Stream,
    open_many,
    percentile,
    until,
)
from bench.machine import cpu_ns, family_cpu_ns, private_kb
from bench.target import (
    BARE,
    CLUSTERED,
    DURABLE,
    FORWARDED,
    MEMORY,
    TARGETS,
    WINDOWS,
    Process,
    Target,
)
from bench.told import Commits, ask, commits_of

EVENTS_PER_STREAM = 30
"""Deltas per second of one paced stream: what a quick model writes."""
HELD_MS = 50.0
"""A rate is held while the p99 of its latency stays below this many milliseconds."""
FANOUT_RATE = 200
"""Events per second of the one session that all fan-out readers read."""
_SETTLE = 0.3
"""Seconds after a change of load before a window begins."""
_DELIVERED = 0.97
"""Share of the wanted rate that must be sent and arrive; the rest is the edge of the window."""
_FIREHOSE_STREAMS = 4


@dataclass(frozen=True)
class Sizes:
    """How much load the parts make."""

    paced_small: int = 100
    paced_large: int = 300
    window: float = 3.0
    firehose_events: int = 25_000
    first_events: int = 60
    idle_streams: int = 2_000
    fanout_readers: int = 100
    rate_streams: int = 1_000
    rate_start: float = 3_000.0
    rate_growth: float = 1.3
    rate_most: float = 60_000.0
    rate_window: float = 1.0
    rate_halvings: int = 3


FULL_SIZES = Sizes()
QUICK_SIZES = Sizes(
    paced_small=20,
    paced_large=40,
    window=1.0,
    firehose_events=2_000,
    first_events=10,
    idle_streams=50,
    fanout_readers=10,
    rate_streams=50,
    rate_start=600.0,
    rate_growth=2.0,
    rate_most=1_200.0,
    rate_window=0.5,
    rate_halvings=0,
)


@dataclass
class Lab:
    """What the parts share: the origin's control connection, sizes, what earlier rounds found."""

    origin: Process
    control: Connection
    sizes: Sizes
    held_before: dict[str, float] = field(default_factory=dict)

    async def go(self, rate: float) -> None:
        """Start the waiting turns; the paced ones share `rate` events per second."""
        await self.control.call("POST", f"/bench/go?rate={rate}")

    async def set_rate(self, rate: float) -> None:
        """Change the rate of the paced turns together."""
        await self.control.call("POST", f"/bench/rate?rate={rate}")

    async def sent(self) -> int:
        """Give the deltas that the origin has sent since the last stop."""
        return _number(await self.control.call("GET", "/bench/state"), "sent")

    async def waiting(self, count: int) -> None:
        """Wait until the origin has `count` turns that wait for the start.

        Raises:
            TimeoutError: they did not come.
        """
        async with asyncio.timeout(HANG_SECONDS):
            waiting = -1
            while waiting < count:
                waiting = _number(await self.control.call("GET", "/bench/state"), "waiting")

    async def stop(self) -> int:
        """End all turns of the origin; give the deltas that they had sent."""
        return _number(await self.control.call("POST", "/bench/stop"), "sent")


Figures = dict[str, float]
Part = Callable[[Lab, Target], Awaitable[Figures]]


async def paced(lab: Lab, target: Target, streams: int, name: str) -> Figures:
    """Steady streams: CPU per event and latency."""
    face, meter = target.face(), Meter()
    opened = await open_many(face, "bench: paced", streams, meter)
    await lab.waiting(streams)
    await lab.go(streams * EVENTS_PER_STREAM)
    await asyncio.sleep(2 * _SETTLE)
    before = await _commits(target)
    window = await _window(lab, target, meter, lab.sizes.window)
    after = await _commits(target)
    figures = {
        f"{name}.cpu_us": window.cpu_us,
        f"{name}.p50_ms": window.ms(0.50),
        f"{name}.p99_ms": window.ms(0.99),
        f"{name}.load_busy": window.load_busy,
    }
    if before is not None and after is not None:
        done = after.since(before)
        figures |= {
            f"{name}.commits_per_s": done.commits / window.seconds,
            f"{name}.commit_events": done.events / max(1, done.commits),
            f"{name}.commit_us": done.seconds / max(1, done.commits) * 1e6,
            f"{name}.later_us": done.later / max(1, done.events) * 1e6,
        }
    return figures | await _finish(lab, face, opened, meter)


async def _commits(target: Target) -> Commits | None:
    """Ask for what the journal has done, where there is one on a disk."""
    if target.name in (BARE, MEMORY):
        return None
    return commits_of(await asyncio.to_thread(ask, target.process.base))


async def paced_small(lab: Lab, target: Target) -> Figures:
    """100 streams of 30 events per second."""
    return await paced(lab, target, lab.sizes.paced_small, "paced_small")


async def paced_large(lab: Lab, target: Target) -> Figures:
    """300 streams of 30 events per second."""
    return await paced(lab, target, lab.sizes.paced_large, "paced_large")


async def windows(lab: Lab, target: Target) -> Figures:
    """100 streams of 30 events per second, by how far apart the journal's commits begin."""
    return await paced(lab, target, lab.sizes.paced_small, "windows")


async def cluster(lab: Lab, target: Target) -> Figures:
    """100 streams of 30 events per second, by how many processes share the journal. Of forwarded
    streams the CPU of the process that forwards is told by itself, and so is that of PostgreSQL."""
    streams = lab.sizes.paced_small
    face, meter = target.face(), Meter()
    opened = await open_many(face, "bench: paced", streams, meter)
    await lab.waiting(streams)
    await lab.go(streams * EVENTS_PER_STREAM)
    await asyncio.sleep(2 * _SETTLE)
    pids = [process.pid for process in target.processes]
    before = [cpu_ns(pid) for pid in pids]
    stored = family_cpu_ns(target.database) if target.database else 0
    window = await _window(lab, target, meter, lab.sizes.window)
    spent = [cpu_ns(pid) - cpu for pid, cpu in zip(pids, before, strict=True)]
    events = max(1, window.received)
    figures = {
        "cluster.cpu_us": sum(spent) / events / 1000,
        "cluster.p50_ms": window.ms(0.50),
        "cluster.p99_ms": window.ms(0.99),
        "cluster.load_busy": window.load_busy,
    }
    if target.database:
        stored = family_cpu_ns(target.database) - stored
        figures["cluster.database_us"] = stored / events / 1000
    if target.name == FORWARDED:
        figures["cluster.forward_us"] = spent[1] / events / 1000
    return figures | await _finish(lab, face, opened, meter)


async def firehose(lab: Lab, target: Target) -> Figures:
    """Four streams as fast as they go: events per second from the start to the last."""
    face, meter = target.face(), Meter()
    count = lab.sizes.firehose_events
    message = f"bench: firehose count={count}"
    opened = await open_many(face, message, _FIREHOSE_STREAMS, meter)
    await lab.waiting(_FIREHOSE_STREAMS)
    cpu, own = cpu_ns(target.process.pid), _load_cpu(lab)
    begun = time.monotonic_ns()
    await lab.go(0)
    wanted = count * _FIREHOSE_STREAMS
    await _arrived(meter, wanted)
    cpu, own = cpu_ns(target.process.pid) - cpu, _load_cpu(lab) - own
    last = max(stream.reader.last_at for stream in opened)
    figures = {
        "firehose.events_per_s": meter.received / ((last - begun) / 1e9),
        "firehose.cpu_us": cpu / max(1, meter.received) / 1000,
        "firehose.load_busy": own / (time.monotonic_ns() - begun),
    }
    return figures | await _finish(lab, face, opened, meter)


async def rate(lab: Lab, target: Target) -> Figures:
    """The highest rate whose p99 stays under 50 ms: up in steps, then halving.

    So many streams that each has about 30 events per second at the rates in question: with fewer,
    events of one stream would meet in one read, which a pass-through copies for nothing.
    """
    sizes = lab.sizes
    face, meter = target.face(), Meter()
    opened = await open_many(face, "bench: paced", sizes.rate_streams, meter)
    await lab.waiting(sizes.rate_streams)
    before = lab.held_before.get(target.name, 0.0)
    wanted = max(sizes.rate_start, before * 0.6)
    await lab.go(wanted)
    held, busy, failed = 0.0, 0.0, 0.0
    while wanted <= sizes.rate_most:
        good, reached, load = await _holds(lab, target, meter, wanted)
        if not good:
            failed = wanted
            break
        held, busy = reached, load
        wanted *= sizes.rate_growth
    low = failed / sizes.rate_growth
    for _ in range(sizes.rate_halvings if failed else 0):
        await _drain(lab, meter)
        middle = (low + failed) / 2
        good, reached, load = await _holds(lab, target, meter, middle)
        if good:
            low, held, busy = middle, reached, load
        else:
            failed = middle
    lab.held_before[target.name] = held
    await _drain(lab, meter)
    figures = {"rate.events_per_s": held, "rate.load_busy": busy}
    return figures | await _finish(lab, face, opened, meter)


async def first_event(lab: Lab, target: Target) -> Figures:
    """One turn after the other: from the request to its first delta."""
    face, meter = target.face(), Meter()
    times: list[int] = []
    opened: list[Stream] = []
    warm_up = max(3, lab.sizes.first_events // 10)
    for number in range(warm_up + lab.sizes.first_events):
        stream = await face.open("bench: one", meter)
        opened.append(stream)
        async with asyncio.timeout(HANG_SECONDS):
            first_at = await stream.reader.first
        if number >= warm_up:
            times.append(first_at - stream.begun)
        await asyncio.sleep(0.005)  # the turn ends and is stored before the next begins
        stream.connection.close()
    times.sort()
    figures = {
        "first.p50_ms": percentile(times, 0.50) / 1e6,
        "first.p99_ms": percentile(times, 0.99) / 1e6,
    }
    return figures | await _finish(lab, face, opened, meter)


async def idle(lab: Lab, target: Target) -> Figures:
    """Many streams that say one word and wait: growth of memory per stream.

    The target should be fresh: memory that earlier parts left free would hide the growth.
    """
    face, meter = target.face(), Meter()
    warm = await open_many(face, "bench: idle", 10, meter)
    await _first_events(warm)
    await asyncio.sleep(1.0)
    pid = target.process.pid
    before, cpu = private_kb(pid), cpu_ns(pid)
    opened = await open_many(face, "bench: idle", lab.sizes.idle_streams, meter)
    await _first_events(opened)
    await asyncio.sleep(1.0)
    grown, spent = private_kb(pid) - before, cpu_ns(pid) - cpu
    figures = {
        "idle.kb": grown / lab.sizes.idle_streams,
        "idle.open_us": spent / lab.sizes.idle_streams / 1000,
    }
    return figures | await _finish(lab, face, [*warm, *opened], meter)


async def fanout(lab: Lab, target: Target) -> Figures:
    """One session, many readers: CPU per delivery."""
    face, meter = target.face(), Meter()
    assert isinstance(face, EveFace)
    readers = lab.sizes.fanout_readers
    opened = await open_many(face, "bench: paced", 1, meter)
    await lab.waiting(1)
    for _ in range(readers - 1):
        opened.append(await face.attach(opened[0], meter))
    await lab.go(FANOUT_RATE)
    await asyncio.sleep(2 * _SETTLE)
    window = await _window(lab, target, meter, lab.sizes.window)
    figures = {"fanout.cpu_us": window.cpu_us, "fanout.p99_ms": window.ms(0.99)}
    return figures | await _finish(lab, face, opened, meter, readers)


@dataclass(frozen=True)
class PartEntry:
    """A part, the targets that it measures, and whether each needs a fresh process."""

    run: Part
    targets: tuple[str, ...]
    fresh: bool = False


PARTS: dict[str, PartEntry] = {
    "paced100": PartEntry(paced_small, TARGETS),
    "paced300": PartEntry(paced_large, TARGETS),
    "windows": PartEntry(windows, tuple(WINDOWS)),
    "cluster": PartEntry(cluster, CLUSTERED, fresh=True),
    "firehose": PartEntry(firehose, TARGETS),
    "rate": PartEntry(rate, TARGETS),
    "first": PartEntry(first_event, TARGETS),
    "fanout": PartEntry(fanout, (DURABLE, MEMORY)),
    "idle": PartEntry(idle, (BARE, DURABLE), fresh=True),
}
"""By the name that `--only` takes. A pass-through has no readers to fan out to."""


@dataclass(frozen=True)
class _Window:
    seconds: float
    received: int
    cpu_us: float
    load_busy: float
    latencies: list[int]

    def ms(self, share: float) -> float:
        return percentile(self.latencies, share) / 1e6


async def _window(lab: Lab, target: Target, meter: Meter, seconds: float) -> _Window:
    gc.collect()
    gc.disable()  # a collection in the load generator would show as the proxy's latency
    cpu, received, own = cpu_ns(target.process.pid), meter.received, _load_cpu(lab)
    begun = time.monotonic_ns()
    meter.start()
    await asyncio.sleep(seconds)
    latencies = meter.stop()
    took = time.monotonic_ns() - begun
    cpu = cpu_ns(target.process.pid) - cpu
    own = _load_cpu(lab) - own
    received = meter.received - received
    gc.enable()
    return _Window(took / 1e9, received, cpu / max(1, received) / 1000, own / took, latencies)


async def _holds(
    lab: Lab, target: Target, meter: Meter, wanted: float
) -> tuple[bool, float, float]:
    """Try one rate; tell whether it is held, the rate that arrived, and how busy the load was.

    A rate that fails gets a second chance: another process on the machine may have been the cause.
    """
    found = await _try(lab, target, meter, wanted)
    if found[0]:
        return found
    await _drain(lab, meter)
    return await _try(lab, target, meter, wanted)


async def _try(lab: Lab, target: Target, meter: Meter, wanted: float) -> tuple[bool, float, float]:
    await lab.set_rate(wanted)
    await asyncio.sleep(_SETTLE)
    sent = await lab.sent()
    begun = time.monotonic()
    window = await _window(lab, target, meter, lab.sizes.rate_window)
    seconds = time.monotonic() - begun
    sent = await lab.sent() - sent
    reached = window.received / window.seconds
    good = (
        window.ms(0.99) < HELD_MS
        and sent / seconds >= wanted * _DELIVERED
        and reached >= wanted * _DELIVERED
    )
    return good, reached, window.load_busy


async def _drain(lab: Lab, meter: Meter) -> None:
    """Stop the pacer until everything that was sent has arrived."""
    await lab.set_rate(0)
    sent = await lab.sent()
    await _arrived(meter, sent)


async def _arrived(meter: Meter, wanted: int) -> None:
    """Wait until so many events are received; those that have not arrived when none has come for
    `HANG_SECONDS` are lost."""
    received = -1
    while received < meter.received < wanted:
        received = meter.received
        await until(lambda: meter.received >= wanted, HANG_SECONDS)


async def _first_events(streams: list[Stream]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        await asyncio.gather(*(stream.reader.first for stream in streams))


async def _finish(
    lab: Lab, face: Face, streams: list[Stream], meter: Meter, readers: int = 1
) -> Figures:
    """End the turns, wait for what was sent, hang up; count what was lost or came twice."""
    wanted = await lab.stop() * readers
    await _arrived(meter, wanted)
    await asyncio.sleep(_SETTLE)
    for stream in streams:
        stream.connection.close()
    face.close()
    await asyncio.sleep(_SETTLE)
    missing = wanted - meter.received + meter.doubled
    return {"lost": float(missing), "doubled": float(meter.doubled)}


def _load_cpu(lab: Lab) -> int:
    return time.process_time_ns() + cpu_ns(lab.origin.pid)


def _number(state: dict[str, object], name: str) -> int:
    value = state[name]
    assert isinstance(value, int)
    return value
