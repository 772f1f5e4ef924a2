"""What Dragoman says of its event loop's turns: the longest, and how many kept others waiting."""

from __future__ import annotations

import re
import urllib.request

BOUND = "0.02"
"""Seconds that no turn should take, as the series names its class."""

_SERIES = re.compile(r'^dragoman_loop_turn_(\w+?)(?:\{le="([^"]+)"\})? (\S+)$', re.MULTILINE)


def turns_of(text: str) -> tuple[float, int]:
    """Return the longest turn in milliseconds, and how many took more than the bound, out of an
    exposition."""
    series = {(name, bound): float(value) for name, bound, value in _SERIES.findall(text)}
    over = series["seconds_count", ""] - series["seconds_bucket", BOUND]
    return series["longest_seconds", ""] * 1000, int(over)


def read(base: str) -> tuple[float, int]:
    """Ask a Dragoman."""
    with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
        return turns_of(answer.read().decode())
