"""What a run found.

Figures are medians over the rounds. Ratios are taken within each round first, because a machine
that was slow in one round was slow for all targets of it.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field

from bench.target import BARE


@dataclass
class Results:
    """All figures of a run: by name, target and round."""

    machine: dict[str, str]
    quick: bool = False
    rounds: int = 0
    seconds: float = 0.0
    figures: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    stages: list[tuple[str, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    lag: dict[str, float] = field(default_factory=dict)
    """By target: the longest lag of its event loop in ms."""

    def add_lag(self, target: str, longest: float) -> None:
        """Keep what a process of a target said of its event loop."""
        self.lag[target] = max(self.lag.get(target, 0.0), longest)

    def add(self, number: int, target: str, figures: dict[str, float]) -> None:
        """Keep what one part found for one target in the round `number`."""
        for name, value in figures.items():
            self.figures.setdefault(name, {}).setdefault(target, {})[number] = value

    def median(self, figure: str, target: str) -> float | None:
        """Give the median over the rounds, or None where nothing was measured."""
        values = self.figures.get(figure, {}).get(target)
        return statistics.median(values.values()) if values else None

    def total(self, figure: str) -> float:
        """Give the sum over all targets and rounds."""
        return sum(sum(values.values()) for values in self.figures.get(figure, {}).values())

    def ratio(self, figure: str, target: str) -> float | None:
        """Give the median of a target's figure divided by the pass-through's, or None where that
        was not measured."""
        by_target = self.figures.get(figure, {})
        bare = by_target.get(BARE, {})
        ratios = [
            own / bare[number]
            for number, own in by_target.get(target, {}).items()
            if bare.get(number, 0) > 0
        ]
        return statistics.median(ratios) if ratios else None

    def as_json(self) -> dict[str, object]:
        """Give everything as one JSON object."""
        return {"version": 2, **asdict(self)}
