"""`dragoman journal copy`: which journals it takes, what it prints, how it exits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from proxy import cli
from proxy.cli import printing
from proxy.journal.sqlite import SqliteJournal
from tests.journal.conftest import create, line, postgres
from tests.support.postgres import PostgresServer
from tests.test_cli import dragoman

__all__ = ["postgres"]


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
    done = await dragoman("journal", "copy", str(journal), str(target))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"sqlite:///{target}\t{len(line(1))}\t1\t1\n"
    listed = await dragoman("sessions", "list", "--journal", str(target))
    assert listed.stdout.startswith("s1\t")
    again = await dragoman("journal", "copy", f"sqlite:///{journal}", str(target))
    assert (again.exit_code, again.stdout) == (1, "")
    assert f"`{target}` exists, and a copy replaces nothing" in again.stderr
    other = tmp_path / "other.db"
    as_json = await dragoman("journal", "copy", str(journal), str(other), "--json")
    assert json.loads(as_json.stdout) == {
        "version": 1,
        "url": f"sqlite:///{other}",
        "bytes": len(line(1)),
        "sessions": 1,
        "entries": 1,
    }


@pytest.mark.postgres
async def test_a_password_is_never_printed(journal: Path, postgres: PostgresServer) -> None:
    url = postgres.url(postgres.new_database())
    secret = url.replace("@", ":hush-hush@")
    done = await dragoman("journal", "copy", str(journal), secret)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{url}\t")
    again = await dragoman("journal", "copy", str(journal), secret)
    away = await dragoman("journal", "copy", secret.replace(str(postgres.port), "1"), secret)
    for refused in (again, away):
        assert refused.exit_code == 1
        assert "hush" not in refused.stderr + refused.stdout
    assert "`DROP SCHEMA dragoman CASCADE`" in again.stderr
    assert "PostgreSQL cannot be reached" in away.stderr


async def test_what_is_not_a_journal_to_copy_is_status_2(journal: Path) -> None:
    for words in (
        ("memory:", str(journal)),
        (str(journal), "memory:"),
        (str(journal), str(journal)),
        (str(journal), "mysql://me:hush@localhost/db"),
    ):
        done = await dragoman("journal", "copy", *words, "--json")
        assert (done.exit_code, done.stdout) == (2, "")
        assert "hush" not in done.stderr
    assert (await dragoman("journal", "copy", str(journal))).exit_code == 2


async def test_a_journal_that_is_written_is_refused(journal: Path, tmp_path: Path) -> None:
    server = SqliteJournal(journal)
    await server.open()
    done = await dragoman("journal", "copy", str(journal), str(tmp_path / "copy.db"), "--json")
    await server.aclose()
    assert (done.exit_code, done.stdout) == (1, "")
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "journal_unavailable"
    assert "writes the journal" in error["message"]
    assert not (tmp_path / "copy.db").exists()


async def test_on_a_terminal_there_are_progress_and_a_table(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    words = ("journal", "copy", str(journal), str(tmp_path / "copy.db"))
    done = await asyncio.to_thread(dragoman_in_colour, *words)
    assert done.exit_code == 0
    assert "comparing" in done.stderr
    heads = done.stdout.splitlines()[0]
    assert all(head in heads for head in ("url", "bytes", "sessions", "entries"))


def dragoman_in_colour(*words: str) -> Result:
    return CliRunner().invoke(cli.main, words, color=True)
