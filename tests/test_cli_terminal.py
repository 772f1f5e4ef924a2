"""What the command line shows on a terminal of 80 columns: the real program, and a real server."""

from __future__ import annotations

from tests.support.terminal import COLUMNS, run_in_terminal


async def test_the_help_of_the_program_fits() -> None:
    shown = await run_in_terminal(["--help"])
    assert shown.status == 0
    assert "  sessions " in shown.text
    assert max(map(len, shown.lines)) <= COLUMNS


async def test_a_question_is_answered_on_the_terminal() -> None:
    shown = await run_in_terminal(["sessions", "delete", "one"], input=b"n\n")
    assert shown.status == 1
    assert "for ever?" in shown.text
    assert "nothing was erased" in shown.text
