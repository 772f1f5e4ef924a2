"""Draws the picture of the README from a real run: `python -m tests.picture`. Needs bash and curl.

Two clients of different dialects read one session, the server is killed in the middle of an answer,
and both go on where they were.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

__all__ = ["PATH", "STEPS", "Step", "main"]

PATH = Path(__file__).parents[1] / "docs" / "two-clients.svg"
PORT = 8787
WIDTH = 112
END = "__end__"


class Step(NamedTuple):
    """A command as it is shown and run, and what is run after it without being shown."""

    command: str
    hidden: str = ""


_READY = f"until curl -sf 127.0.0.1:{PORT}/readyz >/dev/null; do sleep 0.1; done"
_BOTH_ENDED = (
    "until grep -q session.waiting eve.ndjson && grep -q end_turn herm.sse; do sleep 0.1; done"
)

STEPS: Sequence[Step] = (
    Step("dragoman serve >log 2>&1 &    # in front of a September Engine", _READY),
    Step(f"A=127.0.0.1:{PORT}/as HERM=$A/herm/to/engine/v1 EVE=$A/eve/to/engine/eve/v1"),
    Step("S=$(curl -sX POST $HERM/agents/engine/sessions | grep -o 'dgs_[a-z0-9]*' | head -1)"),
    Step("curl -sN $HERM/sessions/$S/events/stream >herm.sse &    # a Herm client"),
    Step("curl -sN $EVE/session/$S/stream >eve.ndjson &    # an eve client, the same session"),
    Step(
        "curl -s $HERM/sessions/$S/events >posted --json"
        ' \'{"type":"user.message","content":[{"type":"text","text":"script: slow 40"}]}\'',
        "until grep -q 'tick 18' eve.ndjson && grep -q 'tick 18' herm.sse; do sleep 0.1; done",
    ),
    Step("kill -9 %1    # the server, in the middle of the answer", "wait 2>/dev/null"),
    Step("wc -c herm.sse eve.ndjson | head -2"),
    Step("dragoman serve >log 2>&1 &", _READY),
    Step("LAST=$(grep ^id: herm.sse | tail -1 | cut -c5-)"),
    Step('curl -sN -H "Last-Event-ID: $LAST" $HERM/sessions/$S/events/stream >>herm.sse &'),
    Step(
        'curl -sN "$EVE/session/$S/stream?startIndex=$(grep -c . eve.ndjson)" >>eve.ndjson &',
        _BOTH_ENDED,
    ),
    Step("wc -c herm.sse eve.ndjson | head -2"),
    Step(
        'cmp <(grep . eve.ndjson) <(curl -s "$EVE/session/$S/stream?follow=0" | grep .)'
        ' && echo "eve: the same bytes as a reader that never left"'
    ),
    Step(
        "cmp <(grep ^data herm.sse) <(curl -sNm 2"
        ' "$HERM/sessions/$S/events/stream?after=0" | grep ^data)'
        ' && echo "Herm: the same"'
    ),
)


@contextlib.contextmanager
def _engine() -> Iterator[str]:
    """Serve a scripted Engine, and give its URL."""
    command = [sys.executable, "-m", "proxy", "scripted", "engine", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield next(word for word in line.split() if word.startswith("http"))
        finally:
            process.terminate()


def _run(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Run the steps in one shell, and yield each command with the lines that it prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash"],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write("set -m\n")
        for step in STEPS:
            shell.stdin.write(f"{step.command}\n{step.hidden}\necho {END}\n")
            shell.stdin.flush()
            lines = []
            while (line := shell.stdout.readline().rstrip("\n")) != END:
                lines.append(line)
            yield step.command, [line for line in lines if "Killed" not in line]
        shell.stdin.write("kill $(jobs -p)\nexit\n")
        shell.stdin.flush()


def main() -> None:
    """Play it, and write the picture."""
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{PORT}/healthz", timeout=1)
        raise SystemExit(f"port {PORT} is busy: stop what listens there")
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    with tempfile.TemporaryDirectory() as name, _engine() as url:
        folder = Path(name)
        table = f'[[backends]]\nname = "engine"\ndialect = "engine"\nurl = "{url}"\n'
        (folder / "dragoman.toml").write_text(table)
        for command, lines in _run(folder):
            shown, _, comment = command.partition("    # ")
            text = Text("$ ", style="bold green") + Text(shown, style="bold")
            if comment:
                text += Text(f"   # {comment}", style="italic cyan")
            console.print(text)
            for line in lines:
                console.print(Text(line.strip()), style="yellow")
    svg = console.export_svg(title="one session, two dialects, one kill -9", theme=MONOKAI)
    # A picture that asks a font server for something is not shown everywhere.
    svg = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    PATH.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
