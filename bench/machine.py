"""What the benchmark asks of the machine: cores, CPU time, memory, and how fast its disk syncs."""

from __future__ import annotations

import fcntl
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SYNC_SAMPLES = 200
_SYNC_BYTES = 4096
"""One page of SQLite's log."""


def pick_cores() -> tuple[int | None, int | None]:
    """Give the core for the proxy and the core for origin and load, or None twice on one core."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[-1], cores[0]) if len(cores) > 1 else (None, None)


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Run on `core` for a while, so that a process started meanwhile inherits it."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def alone() -> Iterator[None]:
    """Hold the machine for one run: a second one waits, for both would measure each other."""
    with (Path(tempfile.gettempdir()) / "dragoman-bench.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("another run is going on; this one waits for its end\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard one, for this process and those it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def cpu_ns(pid: int) -> int:
    """Give the CPU time of a process in nanoseconds, all of its threads together."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:  # the thread ended while we looked
            continue
    return total


def family_cpu_ns(pid: int) -> int:
    """Give the CPU time in nanoseconds of a process and of its children that live."""
    total = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str(pid) in (entry.name, _parent(entry)):
                total += cpu_ns(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
    return total


def _parent(entry: Path) -> str:
    # The name before it, in parentheses, may have any character.
    return (entry / "stat").read_text().rpartition(")")[2].split()[1]


def private_kb(pid: int) -> int:
    """Give the proportional memory (Pss) of a process in kB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise RuntimeError(f"no Pss for process {pid}")


def sync_us(folder: Path) -> float:
    """Give the median time of writing and syncing one page in `folder`, in microseconds."""
    page = os.urandom(_SYNC_BYTES)
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNC_SAMPLES):
            os.write(file.fileno(), page)
            begun = time.perf_counter_ns()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter_ns() - begun)
    return statistics.median(times) / 1000


def describe(folder: Path) -> dict[str, str]:
    """Say on what and of what this run was measured; `folder` is where the journals lie."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _commit(),
        "cpu": model,
        "cores": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "fdatasync_us": f"{sync_us(folder):.0f}",
    }


def _commit() -> str:
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{found} with changes" if changed else found
