"""`make peers` plays all parts, and fails if one fails or cannot be installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers import parts

NAMES = [name for lane in parts.LANES for name in lane]

SCRIPT = """
case "$1 ${2-}" in
    "install $NOT_INSTALLED") exit 1 ;;
    install*) ;;
    *)
        echo "PASS $1 hello"
        if [ "$1" = "$FAILS" ]; then echo "FAIL $1 approve"; exit 1; fi
        ;;
esac
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script whose parts pass, but for those that the environment names."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    monkeypatch.setattr(parts, "SCRIPT", tmp_path / "run.sh")
    monkeypatch.setenv("FAILS", "none")
    monkeypatch.setenv("NOT_INSTALLED", "none")


@pytest.mark.usefixtures("script")
async def test_all_parts_are_played(capfd: pytest.CaptureFixture[str]) -> None:
    assert await parts.play_all()
    lines = capfd.readouterr().out.splitlines()
    assert {f"PASS {name} hello" for name in NAMES} <= set(lines)
    assert lines[-1] == "all parts passed"
    assert sum(": passed, " in line for line in lines) == len(NAMES)


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["FAILS", "NOT_INSTALLED"])
async def test_one_part_that_fails_is_named_and_the_others_are_played(
    how: str, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(how, name)
    assert not await parts.play_all()
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1] == f"FAIL {name}"
    assert (f"FAIL {name} approve" in lines) is (how == "FAILS")
    assert sum(": passed, " in line for line in lines) == len(NAMES) - 1
