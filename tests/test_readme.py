"""What the README says is so: its commands run, its settings are read, its figures are measured."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

from click.testing import CliRunner

from proxy.cli import main
from proxy.config.settings import BackendSettings, RouteSettings

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
EVIDENCE = (REPOSITORY / "docs" / "evidence.md").read_text(encoding="utf-8")
PERFORMANCE = (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_its_settings_are_read() -> None:
    backends, routes = [], []
    for block in blocks("toml"):
        table = tomllib.loads(block)
        backends += [BackendSettings.model_validate(one) for one in table.get("backends", ())]
        routes += [RouteSettings.model_validate(one) for one in table.get("routes", ())]
    assert [one.name for one in backends] == ["engine"]
    assert [one.name for one in routes] == ["support"]


def test_its_recording_is_translated(tmp_path: Path) -> None:
    (command,) = re.findall(
        r"^\.venv/bin/dragoman (translate (?:.*\\\n)*.*)$", README, re.MULTILINE
    )
    words = shlex.split(command.replace("\\\n", " "))
    words[words.index("report.json")] = str(tmp_path / "report.json")
    words[-1] = str(REPOSITORY / words[-1])
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "event: agent.message" in done.stdout
    assert (tmp_path / "report.json").stat().st_size


def test_every_command_that_it_names_exists() -> None:
    named = set(re.findall(r"^\.venv/bin/dragoman (\w+)", README, re.MULTILINE))
    assert named
    assert named <= set(main.commands)


def test_its_pictures_are_there() -> None:
    for page in (README, (REPOSITORY / "docs" / "page.md").read_text(encoding="utf-8")):
        folder = REPOSITORY if page is README else REPOSITORY / "docs"
        named = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
        assert named
        assert [name for name in named if not (folder / name).is_file()] == []


def total(section: str, column: int) -> int:
    """The sum of a column over the pairs of a table."""
    part = EVIDENCE.partition(f"### {section}\n")[2].partition("Answers given")[0]
    rows = [line.split("|") for line in part.splitlines() if re.match(r"\| \w+ > \w+ \| \d", line)]
    assert len(rows) == 9
    return sum(int(row[column]) for row in rows)


def test_its_figures_are_those_that_were_measured() -> None:
    kills, cuts = "Kills", "Disconnects"
    assert f"{total(kills, 3) + total(cuts, 3):,}"[:3] == "2,8"
    assert [total(part, column) for part in (kills, cuts) for column in (6, 7, 8)] == [0] * 6
    answers = [int(number) for number in re.findall(r"Answers given: (\d+), twice: 0", EVIDENCE)]
    words = README.replace("\n  ", " ")
    assert f"{sum(answers[:2]):,} answers" in words
    assert re.search(r"^2000 kills; .*45 minutes", EVIDENCE, re.MULTILINE)
    assert re.search(r"^10016 connections cut", EVIDENCE, re.MULTILINE)
    assert "2,000 kills of the server in 45 minutes and 10,016 cut connections" in words
    adds = re.search(r"reader ([\d.]+) ms after the backend wrote it", PERFORMANCE)
    assert adds
    assert f"It adds {adds[1]} ms" in words
    rate = re.search(r"\*\* (\d+,\d)\d\d events a second", PERFORMANCE)
    assert rate
    assert f"One core carries {rate[1]}00 events a second" in words
