"""Finds the captures of a folder, and holds each against what its bodies give today."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from adapters.captures import BadCapture
from adapters.captures.foreign import Foreign
from adapters.captures.kinds import is_foreign, read_any
from adapters.offline.verifying import Check, Verdict, verify
from proxy.tools.comparing import Case, Unreadable

__all__ = ["captures_in", "case_of", "verify_file"]

_HEAD_BYTES = 64 * 1024
_SUFFIXES = frozenset({".ndjson", ".har"})
"""Files of a folder that are meant, whatever is in them."""


def captures_in(path: Path) -> list[Path]:
    """Return a file, or the captures of a folder and of the folders in it.

    Raises:
        Unreadable: there is none in it.
        OSError: it cannot be read.
    """
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.rglob("*")) if _is_meant(file.relative_to(path), file)]
    if not found:
        raise Unreadable(f"{path}: there is no capture in it. `dragoman record` makes some.")
    return found


def _is_meant(within: Path, file: Path) -> bool:
    if any(part.startswith(".") for part in within.parts) or not file.is_file():
        return False
    if file.suffix in _SUFFIXES:
        return True
    with file.open("rb") as stream:
        begin = stream.read(_HEAD_BYTES)
    return begin.startswith(b'{"capture"') or is_foreign(begin)


def verify_file(
    file: Path, dialect: str | None, ignore: Sequence[str]
) -> tuple[Verdict, list[str]]:
    """Verify one capture; also returns what people should know of it.

    Raises:
        UnknownField: no event has a field that may differ.
    """
    name = str(file)
    try:
        capture = read_any(file.read_bytes(), name)
    except BadCapture as error:
        where = f"line {error.line}: " if error.line else ""
        return _unreadable(name, f"{where}{error.reason}"), []
    except OSError as error:
        return _unreadable(name, str(error.strerror or error)), []
    notes = [*capture.notes] if isinstance(capture, Foreign) else []
    notes += [f"it was cut off: {capture.cut}"] if capture.cut else []
    return verify(capture, dialect, ignore), [f"{name}: {note}" for note in notes]


def _unreadable(name: str, why: str) -> Verdict:
    return Verdict(name, (Check("the file", "cannot be read", why=why),))


def case_of(verdict: Verdict) -> Case:
    """Return a capture as a test case."""
    match verdict.outcome:
        case "cannot be read":
            return Case(verdict.name, error=verdict.why)
        case "not compared":
            return Case(verdict.name, skipped=verdict.why)
    return Case(verdict.name, list(_lines(verdict)))


def _lines(verdict: Verdict) -> Iterator[str]:
    for check in verdict.checks:
        yield from check.lines()
