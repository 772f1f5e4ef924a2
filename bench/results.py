"""What a run found, and whether it reaches the goals.

A goal compares medians over the rounds. Ratios and differences are taken within each round first,
because a machine that was slow in one round was slow for all targets of it.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Literal

from bench.target import BARE, DURABLE, FLOOR_OF, MEMORY

Kind = Literal["ratio", "floor", "added", "absolute"]


@dataclass(frozen=True)
class Goal:
    """A bound on one figure of one target.

    `ratio` bounds the figure divided by the bare pass-through's, `floor` that divided by the
    floor's, `added` the difference to the bare one, `absolute` the figure itself. `most` tells
    whether the bound is an upper one.
    """

    figure: str
    target: str
    kind: Kind
    bound: float
    most: bool = True

    @property
    def text(self) -> str:
        """The goal as the tables show it."""
        sign = "≤" if self.most else "≥"
        match self.kind:
            case "ratio":
                return f"{sign} {self.bound:g} × bare"
            case "floor":
                return f"{sign} {self.bound:g} × floor"
            case "added":
                return f"{sign} bare + {self.bound:g}"
            case "absolute":
                return (
                    f"{sign} {self.bound:,g}" if self.bound < 1000 else f"{sign} {self.bound:,.0f}"
                )


GOALS = (
    Goal("paced_small.cpu_us", DURABLE, "floor", 1.25),
    Goal("paced_small.cpu_us", MEMORY, "floor", 1.5),
    Goal("paced_small.p99_ms", DURABLE, "added", 3.0),
    Goal("paced_large.cpu_us", DURABLE, "floor", 1.25),
    Goal("paced_large.cpu_us", MEMORY, "floor", 1.5),
    Goal("paced_large.p99_ms", DURABLE, "added", 6.0),
    Goal("rate.events_per_s", DURABLE, "floor", 0.75, most=False),
    Goal("first.p50_ms", DURABLE, "ratio", 3.5),
    Goal("idle.kb", DURABLE, "ratio", 1.6),
    Goal("firehose.events_per_s", DURABLE, "absolute", 60_000, most=False),
    Goal("fanout.cpu_us", DURABLE, "absolute", 8.0),
)


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
    turns: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By target: the longest turn of its event loop in ms, and how many took more than 20 ms."""

    def add_turns(self, target: str, longest: float, over: int) -> None:
        """Keep what a process of a target said of its event loop."""
        before = self.turns.get(target, (0.0, 0))
        self.turns[target] = (max(before[0], longest), before[1] + over)

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

    def compared(self, figure: str, target: str, kind: Kind) -> float | None:
        """Give what a goal of that kind looks at, or None where it cannot be told."""
        if kind == "absolute":
            return self.median(figure, target)
        by_target = self.figures.get(figure, {})
        yardstick = by_target.get(FLOOR_OF[target] if kind == "floor" else BARE, {})
        pairs = [
            (own, yardstick[number])
            for number, own in by_target.get(target, {}).items()
            if number in yardstick
        ]
        if kind == "added":
            return statistics.median(own - other for own, other in pairs) if pairs else None
        ratios = [own / other for own, other in pairs if other > 0]
        return statistics.median(ratios) if ratios else None

    def as_json(self) -> dict[str, object]:
        """Give everything as one JSON object, with the goals and whether they are reached."""
        return {"version": 1, **asdict(self), "goals": [asdict(verdict) for verdict in judge(self)]}


@dataclass(frozen=True)
class Verdict:
    """A goal, what the run found for it, and whether that is good enough."""

    goal: Goal
    found: float | None
    reached: bool


def judge(results: Results) -> list[Verdict]:
    """Hold the goals against the figures; a goal that was not measured is not reached."""
    verdicts = []
    for goal in GOALS:
        found = results.compared(goal.figure, goal.target, goal.kind)
        reached = found is not None and (found <= goal.bound if goal.most else found >= goal.bound)
        verdicts.append(Verdict(goal, found, reached))
    return verdicts
