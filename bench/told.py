"""What Dragoman says of itself: the lag of its event loop, and the commits of its journal."""

from __future__ import annotations

import re
import urllib.request
from dataclasses import dataclass

from bench.load import HANG_SECONDS

_NUMBERS = re.compile(r"^dragoman_(\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Commits:
    """What the journal's writer has done: commits that somebody waited for, writes and events in
    them, and the seconds of CPU of its thread, for these and for what it does later."""

    commits: float
    writes: float
    events: float
    seconds: float
    later: float

    def since(self, before: Commits) -> Commits:
        """Return what was done after `before`."""
        return Commits(
            self.commits - before.commits,
            self.writes - before.writes,
            self.events - before.events,
            self.seconds - before.seconds,
            self.later - before.later,
        )


def lag_of(text: str) -> float:
    """Return the longest lag of the event loop in milliseconds, out of an exposition."""
    series = {name: float(value) for name, value in _NUMBERS.findall(text)}
    return series["loop_lag_seconds"] * 1000


def commits_of(text: str) -> Commits:
    """Return what an exposition says of the journal."""
    series = {name: float(value) for name, value in _NUMBERS.findall(text)}
    cpu = "journal_commit_cpu_seconds_total"
    return Commits(
        series['journal_commits_total{work="writes"}'],
        series["journal_committed_writes_total"],
        series["events_stored_total"],
        series[f'{cpu}{{work="writes"}}'],
        series[f'{cpu}{{work="later"}}'],
    )


def ask(base: str) -> str:
    """Return the exposition of a Dragoman."""
    with urllib.request.urlopen(f"{base}/metrics", timeout=HANG_SECONDS) as answer:
        text: str = answer.read().decode()
        return text
