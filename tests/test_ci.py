"""What `.ci/run` does with parts that fail, and with what hangs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "run"
LAST_LINES = 30

MAKEFILE = """
install:
lint:
\t@echo proxy/fanout/hub.py:3:1: F401 unused
\t@false
test:
\t@echo "FAILED tests/test_hub.py::test_resume - AssertionError"
\t@for n in 1 2 3 4 5 6 7 8 9; do echo "FAILED tests/test_hub.py::test_many[$$n]"; done
\t@false
peers:
\t@trap 'echo "FAIL 0.80.1 follow-up: interrupted"; exit 1' INT; sleep 60
bench:
\t@echo "1 passed"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the script and a Makefile whose targets pass, fail and hang."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text(SCRIPT.read_text())
    (tmp_path / "Makefile").write_text(MAKEFILE)
    return tmp_path


def ran(project: Path, *parts: str) -> tuple[int, list[str]]:
    """Run the script with some parts; return its exit status and the lines of its output."""
    done = subprocess.run(
        ["bash", ".ci/run", *parts],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_a_run_whose_parts_pass_passes(project: Path) -> None:
    status, lines = ran(project, "install")
    assert (status, lines[-1]) == (0, "passed")


def test_what_failed_stands_by_its_name_at_the_end_and_later_parts_still_run(project: Path) -> None:
    status, lines = ran(project, "install", "lint", "test", "bench")
    end = lines[-LAST_LINES:]
    assert (status, lines[-1]) == (1, "FAILED")
    verdicts = {line.split()[0]: line.split("  ")[-1] for line in end if " s  " in line}
    assert verdicts == {
        "install": "passed",
        "lint": "FAILED: exit 2",
        "test": "FAILED: exit 2",
        "bench": "passed",
    }
    assert "lint: proxy/fanout/hub.py:3:1: F401 unused" in end
    assert "test: FAILED tests/test_hub.py::test_many[1]" in end
    assert [line for line in end if line.startswith("test: ")][-1].endswith(" (and 2 more)")


def test_when_all_the_time_is_over_the_summary_comes_all_the_same(project: Path) -> None:
    script = project / ".ci" / "run"
    script.write_text(script.read_text().replace("ALL=$((86 * 60))", "ALL=5"))
    status, lines = ran(project, "install", "peers", "bench")
    assert status == 1
    assert [line.split("  ")[-1] for line in lines if " s  " in line] == [
        "passed",
        "FAILED: out of time",
        "FAILED: out of time",
    ]
    assert "peers: FAIL 0.80.1 follow-up: interrupted" in lines[-LAST_LINES:]


def test_a_process_that_a_part_leaves_behind_holds_up_nothing(project: Path) -> None:
    script = project / ".ci" / "run"
    script.write_text(script.read_text().replace("timeout 10 tail ", "timeout 0.2 tail "))
    (project / "Makefile").write_text("install:\n\t@sleep 600 & echo $$! >left\n\t@echo done\n")
    status, lines = ran(project, "install")
    # It still runs.
    os.kill(int((project / "left").read_text()), signal.SIGKILL)
    assert (status, lines[-1]) == (0, "passed")
    assert "done" in lines


def test_a_part_that_nobody_knows_is_told(project: Path) -> None:
    status, lines = ran(project, "tests")
    assert (status, lines[-1]) == (2, "no part is named tests")
