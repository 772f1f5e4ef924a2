"""Ages and sizes on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click


class _Units(click.ParamType[float]):
    """A number with one of some units."""

    def __init__(self, name: str, units: Mapping[str, float], example: str, most: float) -> None:
        """Take at most `most` of the smallest unit, as the control API does."""
        self.name = name
        self._most = most
        self._units = units
        self._example = example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number in the smallest unit."""
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", str(value).strip())
        factor = None if match is None else self._units.get(match[2])
        if match is None or factor is None:
            units = ", ".join(unit for unit in self._units if unit)
            self.fail(f"`{value}` is none: write {self._example}; units are {units}.", param, ctx)
        number = float(match[1]) * factor
        if number > self._most:
            self.fail(f"`{str(value)[:40]}` is too much.", param, ctx)
        return number


AGE = _Units(
    "age",
    {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800},
    "a time like `30d` or `12h`",
    10**11,
)


SIZE = _Units(
    "size",
    {
        "": 1,
        "kB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
    },
    "a size like `500MB`",
    2**62,
)
