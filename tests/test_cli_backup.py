"""`dragoman backup`: which journal it takes, what it prints, how it exits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from proxy import cli
from proxy.cli import printing
from proxy.journal.sqlite import SqliteJournal
from tests.journal.conftest import create
from tests.test_cli import dragoman


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    """A journal with one session of one event."""
    path = tmp_path / "own.db"
    made = SqliteJournal(path)
    await made.open()
    await create(made)
    await made.aclose()
    return path


async def test_it_prints_what_is_in_the_copy(journal: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"
    done = await dragoman("backup", str(target), "--journal", str(journal))
    assert (done.exit_code, done.stderr) == (0, "")
    size = target.stat().st_size
    assert done.stdout == f"{target}\t{size}\t1\t1\n"
    again = await dragoman("backup", str(target), "--journal", f"sqlite:///{journal}")
    assert (again.exit_code, again.stdout) == (1, "")
    assert f"`{target}` exists" in again.stderr
    forced = await dragoman("backup", str(target), "--journal", str(journal), "--force", "--json")
    assert forced.exit_code == 0
    assert json.loads(forced.stdout) == {
        "version": 1,
        "path": str(target),
        "bytes": size,
        "sessions": 1,
        "entries": 1,
    }
    listed = await dragoman("sessions", "list", "--journal", str(target))
    assert listed.stdout.startswith("s1\t")


async def test_without_a_name_it_is_the_journal_of_the_configuration(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Without a configuration it is the default one, which is not there.
    missing = await dragoman("backup", "copy.db")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert f"there is no journal `{tmp_path / 'dragoman.db'}`: name it with --j" in missing.stderr
    # The credential of its backend is not at hand, and is not needed.
    backend = {"name": "engine", "dialect": "engine", "url": "http://127.0.0.1:1"}
    table = "".join(f'{name} = "{value}"\n' for name, value in backend.items())
    auth = 'auth = { header = "X-Engine-Key", env = "NOT_SET" }\n'
    text = f'[journal]\nurl = "sqlite:///{journal}"\n[[backends]]\n{table}{auth}'
    (tmp_path / "dragoman.toml").write_text(text)
    done = await dragoman("backup", "copy.db")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'copy.db'}\t")
    (tmp_path / "dragoman.toml").rename(tmp_path / "other.toml")
    named = await dragoman("backup", "copy-2.db", "--config", "other.toml")
    assert named.exit_code == 0
    assert (tmp_path / "copy-2.db").exists()
    (tmp_path / "other.toml").write_text("[jurnal]\n")
    wrong = await dragoman("backup", "copy-3.db", "--config", "other.toml")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "did you mean `journal`" in wrong.stderr


@pytest.mark.parametrize("url", ["memory:", "sqlite://", "postgresql://localhost/db"])
async def test_a_journal_without_a_file_is_status_2(url: str, tmp_path: Path) -> None:
    done = await dragoman("backup", str(tmp_path / "copy.db"), "--journal", url)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "`[journal]`, `url`: " in done.stderr
    assert not list(tmp_path.iterdir())


async def test_the_journal_itself_is_refused(journal: Path) -> None:
    done = await dragoman("backup", str(journal), "--journal", str(journal), "--force")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "is the journal itself: name another file" in done.stderr


async def test_on_a_terminal_there_are_progress_and_a_table(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    words = ("backup", str(tmp_path / "copy.db"), "--journal", str(journal))
    done = await asyncio.to_thread(dragoman_in_colour, *words)
    assert done.exit_code == 0
    assert "checking" in done.stderr
    heads = done.stdout.splitlines()[0]
    assert all(head in heads for head in ("path", "bytes", "sessions", "entries"))
    monkeypatch.delenv("FORCE_COLOR")
    as_json = await dragoman(*words, "--force", "--json")
    assert as_json.stderr == ""
    assert json.loads(as_json.stdout)["entries"] == 1


def dragoman_in_colour(*words: str) -> Result:
    return CliRunner().invoke(cli.main, words, color=True)


async def test_it_explains_itself() -> None:
    done = await dragoman("backup", "--help")
    assert done.exit_code == 0
    assert all(word in done.stdout for word in ("--journal", "--config", "--force", "--json"))
    assert (await dragoman("backup")).exit_code == 2
