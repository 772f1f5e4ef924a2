"""Finds the captures of a folder, and holds each against what its bodies give today."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from adapters.captures import BadCapture
from adapters.captures.foreign import ForeignCapture
from adapters.captures.kinds import is_foreign, read_any
from adapters.offline.session_logs import Unreadable, is_log
from adapters.offline.verification import Verification, VerificationCheck, verify
from proxy.tools.comparing import Case


def captures_in(path: Path) -> list[Path]:
    """Return a file, or the captures of a folder and of the folders in it. Canonical logs beside
    them, such as the snapshots of tests, are left out.

    Raises:
        Unreadable: there is none in it.
        OSError: it cannot be read.
    """
    if not path.is_dir():
        return [path]
    found = [file for file in sorted(path.rglob("*")) if _is_meant(file.relative_to(path), file)]
    if not found:
        raise Unreadable(
            f"{path}: there is no capture in it. `dragoman record` makes some; canonical logs are "
            "compared with `dragoman diff`."
        )
    return found


def _is_meant(within: Path, file: Path) -> bool:
    if any(part.startswith(".") for part in within.parts) or not file.is_file():
        return False
    if file.suffix == ".har":
        return True
    if file.suffix == ".ndjson":
        return not _is_log(file)
    with file.open("rb") as stream:
        begin = stream.read(64 * 1024)
    return begin.startswith(b'{"capture"') or is_foreign(begin)


def _is_log(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return is_log(stream.readline())
    except OSError:
        # What cannot be read is told as a capture that cannot.
        return False


def verify_file(
    file: Path, dialect: str | None, ignore: Sequence[str]
) -> tuple[Verification, list[str]]:
    """Verify one capture; also returns what people should know of it.

    Raises:
        UnknownField: no event has a field that may differ.
    """
    name = str(file)
    try:
        data = file.read_bytes()
        if is_log(data.partition(b"\n")[0]):
            why = "it is a canonical log, without bodies: `dragoman diff` compares two"
            return Verification(name, (VerificationCheck("the file", "not compared", why=why),)), []
        capture = read_any(data, name)
    except BadCapture as error:
        where = f"line {error.line}: " if error.line else ""
        return _unreadable(name, f"{where}{error.reason}"), []
    except OSError as error:
        return _unreadable(name, str(error.strerror or error)), []
    notes = [*capture.notes] if isinstance(capture, ForeignCapture) else []
    if capture.left_out:
        why = "; ".join(capture.holes())
        return Verification(name, (VerificationCheck("the file", "not compared", why=why),)), []
    notes += capture.holes()
    return verify(capture, dialect, ignore), [f"{name}: {note}" for note in notes]


def _unreadable(name: str, why: str) -> Verification:
    return Verification(name, (VerificationCheck("the file", "cannot be read", why=why),))


def case_of(verdict: Verification) -> Case:
    """Return a capture as a test case."""
    match verdict.outcome:
        case "cannot be read":
            return Case(verdict.name, error=verdict.why)
        case "not compared":
            return Case(verdict.name, skipped=verdict.why)
    return Case(verdict.name, list(_lines(verdict)))


def _lines(verdict: Verification) -> Iterator[str]:
    for check in verdict.checks:
        yield from check.lines()
