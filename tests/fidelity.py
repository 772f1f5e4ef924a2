"""Measures how faithfully the fixtures cross between dialects, and writes what was found.

    python -m tests.fidelity            say what differs from the committed numbers
    python -m tests.fidelity --write    write `proxy/config/fidelity.json` and `docs/fidelity.md`

What makes a pair worse is not written, unless `--accept` says that it was meant.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from adapters.contract.fidelity import CANONICAL, ORDER, Ledger, Side, counts_of
from adapters.model import events as ev
from adapters.model.base import Fidelity
from adapters.model.commands import COMMAND_TYPES
from proxy.config import matrix
from tests.wire import bodies, driven, entries_of, name_of, served

REPOSITORY = Path(__file__).parent.parent
NUMBERS = REPOSITORY / "proxy" / "config" / matrix.NUMBERS
PAGE = REPOSITORY / "docs" / "fidelity.md"

Numbers = dict[str, dict[str, dict[str, list[int]]]]
"""Backend -> body -> frontend -> the four numbers, in the order of `ORDER`."""


def measured() -> Numbers:
    """Return the numbers of all bodies of all backends on all frontends."""
    found: Numbers = {}
    for backend in (*driven(), CANONICAL):
        source = matrix.side_of(backend)
        found[backend] = {}
        for body in bodies(backend):
            events = [entry.event for entry in entries_of(backend, body)]
            found[backend][name_of(body)] = {
                frontend: measure(events, source, matrix.side_of(frontend)) for frontend in served()
            }
    return found


def measure(events: Iterable[ev.Event], source: Side, target: Side) -> list[int]:
    """Return how many fields of a session cross in which way, in the order of `ORDER`."""
    ledger = Ledger(source, target)
    for event in events:
        ledger.add(event)
    return list(counts_of(ledger.totals).values())


def format_numbers(numbers: Numbers) -> bytes:
    """Return the numbers as JSON with one line for each body, so that a diff reads well."""
    lines = [b'{"version":1,"order":%s,"backends":{' % orjson.dumps(ORDER)]
    for number, (backend, found) in enumerate(numbers.items()):
        lines.append(b'%s"%s":{' % (b"," if number else b"", backend.encode()))
        rows = [b"%s:%s" % (orjson.dumps(body), orjson.dumps(row)) for body, row in found.items()]
        lines += [row + (b"," if row is not rows[-1] else b"") for row in rows]
        lines.append(b"}")
    lines.append(b"}}\n")
    return b"\n".join(lines)


def worse(old: Numbers, new: Numbers) -> Iterator[str]:
    """Say where a pair lost: more is dropped, or a smaller share of the fields is exact."""
    for backend, found in old.items():
        for body, row in found.items():
            for frontend, before in row.items():
                after = new.get(backend, {}).get(body, {}).get(frontend)
                place = f"{frontend} on {backend}, {body}"
                if after is None:
                    yield f"{place}: is gone"
                elif after[-1] > before[-1] or after[0] * sum(before) < before[0] * sum(after):
                    yield f"{place}: {_words(before)} became {_words(after)}"


def _words(counts: list[int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in zip(ORDER, counts, strict=True))


def committed() -> Numbers:
    """Return the numbers of the repository."""
    return matrix.load_numbers()


def write(*, accept: bool) -> list[str]:
    """Write numbers and page; return what became worse, in which case nothing was written."""
    new = measured()
    lost = list(worse(committed(), new))
    if not lost or accept:
        NUMBERS.write_bytes(format_numbers(new))
        PAGE.write_text(page_of(new), encoding="utf-8")
        return []
    return lost


def page_of(numbers: Numbers) -> str:
    """Return `docs/fidelity.md`."""
    lines = [
        "# Fidelity",
        "",
        "Written by `python -m tests.fidelity --write`; do not edit.",
        "`dragoman matrix` prints the same tables.",
        "",
        "What crosses between a frontend and a backend, measured over all recorded bodies of the",
        "backend's dialect: every field of every event of their logs counts once.",
        "",
        "| word | meaning |",
        "|---|---|",
        "| exact | the frontend sees what the backend said |",
        "| approximated | it sees the same in other words, or less of it |",
        "| synthesized | the backend does not say it; it was inferred or added |",
        "| dropped | the frontend's dialect has no place for it |",
        "",
        "User input, assistant text, tools, what can be answered and the outcome of a turn are",
        "never dropped. Each dialect's `MAPPING.md` below `adapters/` says why a field is not",
        "exact, and `dragoman translate --report` shows it for one session. The backend",
        "`canonical` is a log of ours in which every kind of event occurs, at any backend's best.",
        "",
        "## Frontends and backends",
        "",
        _row(["frontend", "backend", *map(str, Fidelity), "exact %"]),
        _row(["---", "---", *["--:"] * (len(ORDER) + 1)]),
    ]
    lines += [
        _row([pair.frontend, pair.backend, *map(str, pair.counts), _exact_share(pair.counts)])
        for pair in matrix.pairs(numbers)
    ]
    cells = list(matrix.commands())
    names = matrix.backends()
    lines += [
        "",
        "## Commands and backends",
        "",
        "What a frontend can ask, and how a backend of each dialect carries it.",
        "",
        _row(["command", *names]),
        _row(["---"] * (len(names) + 1)),
    ]
    for command in COMMAND_TYPES:
        row = [cell.support for cell in cells if cell.command == command]
        lines.append(_row([f"`{command}`", *row]))
    lines += [
        "",
        "How a command is emulated, or why it is impossible:",
        "",
        _row(["command", "backend", "", "how or why"]),
        _row(["---"] * 4),
    ]
    lines += [
        _row([f"`{cell.command}`", cell.backend, cell.support, cell.how.replace("|", "\\|")])
        for cell in sorted(cells, key=lambda cell: list(COMMAND_TYPES).index(cell.command))
        if cell.how
    ]
    return "\n".join(lines) + "\n"


def _exact_share(counts: matrix.Counts) -> str:
    """Return the share of exact fields in percent; 100 where there is none."""
    total = sum(counts)
    return "100" if total == 0 else f"{100.0 * counts[0] / total:.0f}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(arguments: list[str]) -> int:
    """Do what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity")
    parser.add_argument("--write", action="store_true", help="write the measured numbers")
    parser.add_argument(
        "--accept", action="store_true", help="write them also where they are worse"
    )
    given: Any = parser.parse_args(arguments)
    if given.write:
        lost = write(accept=given.accept)
        hint = "not written; if it is meant: python -m tests.fidelity --write --accept"
    else:
        lost = list(worse(committed(), measured()))
        hint = "worse than the committed numbers"
    for line in lost:
        sys.stderr.write(f"{line}\n")
    if lost:
        sys.stderr.write(f"{hint}\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
