"""What `make peers` plays has each pair of a client, a server, a backend and a scenario."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.peers import backends, parts, terminal
from tests.peers.plan import covering

Cells = Sequence[tuple[str, ...]]


def pairs(cells: Cells) -> set[tuple[tuple[int, str], ...]]:
    """Return the pairs of values that meet in a cell."""
    return {pair for cell in cells for pair in combinations(enumerate(cell), 2)}


def chosen(cells: Cells) -> Cells:
    """Return the cells of the plan."""
    return [cells[at] for at in covering(cells)]


@given(st.lists(st.tuples(*[st.sampled_from("abcd")] * 4), max_size=100))
def test_each_pair_of_values_that_can_meet_meets(cells: list[tuple[str, ...]]) -> None:
    places = covering(cells)
    assert places == sorted(set(places))
    assert pairs(chosen(cells)) == pairs(cells)
    assert len(places) <= len(set(cells))


@pytest.mark.parametrize("sizes", [(5, 15, 3), (9, 22, 3), (2, 28, 4)])
def test_where_all_can_meet_no_plan_is_shorter(sizes: tuple[int, ...]) -> None:
    cells = list(product(*([str(value) for value in range(size)] for size in sizes)))
    *_, second, first = sorted(sizes)
    assert len(covering(cells)) == first * second


def plays(**given: str | None) -> Cells:
    options = Namespace(**{"only": None, "gen": None, "face": None} | given)
    return [(one.scene.name, one.generation, one.talk.face) for one in backends.plays(options)]


def unmodified(**given: str | None) -> Cells:
    options = Namespace(**{"only": None, "gen": None, "face": None} | given)
    return [
        (one.client, one.generation, name)
        for one in backends.unmodified(options)
        for name in one.scenarios
    ]


def programs(**given: str | None) -> Cells:
    options = Namespace(**{"only": "", "gen": None} | given)
    return terminal.cells(options)


PARTS = [plays, unmodified, programs]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_plays_each_pair_and_with_all_in_the_environment_everything(
    part: Callable[..., Cells], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALL", raising=False)
    planned = part()
    monkeypatch.setenv("ALL", "1")
    everything = part()
    assert set(planned) < set(everything)
    assert len(set(planned)) == len(planned)
    assert pairs(planned) == pairs(everything)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [(plays, "approve", 2 * 4), (unmodified, "hook", 2 * 2), (programs, "joined", 2 * 2)],
)
def test_what_an_option_names_is_chosen_from_everything(
    part: Callable[..., Cells], name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALL", raising=False)
    assert len(part(only=name)) == value


def test_0_30_8_plays_hardly_a_scenario_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALL", raising=False)
    old = [scene for scene, generation, _ in plays() if generation == "0.30.8"]
    assert len(old) <= len(set(old)) + 1


def test_every_part_of_the_script_is_played() -> None:
    script = (Path(parts.__file__).parent / "run.sh").read_text(encoding="utf-8")
    (names,) = re.findall(r"^    ((?:\w+ \| )+\w+)\)\n        part=\$1$", script, re.MULTILINE)
    assert sorted(name for lane in parts.LANES for name in lane) == sorted(names.split(" | "))
