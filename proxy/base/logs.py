"""Structured logs: one JSON object per line, and never a secret.

Messages name identifiers, never contents; that is the rule for who logs. Three things here hold
where somebody forgets it: of an exception only the type and the places are logged, since a
library's text may quote a header or a body (our own errors' texts are written for people and are
kept); line breaks and control characters are escaped, and no text is longer than `MOST_TEXT`, since
names come from backends and frontends too; and configured credentials are replaced in every text,
as sealed values are that are on their way to a backend.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TextIO

import orjson

from adapters.captures.secrets import SpelledValues
from adapters.wire.errors import DragomanError
from proxy.base import sealed, traces
from proxy.base.sealed import REDACTED

MOST_TEXT = 4_096
"""Characters of a text in a line: more than any of ours, and what log collectors take."""

_CONTROLS = {code: f"\\x{code:02x}" for code in range(0x7F, 0xA0)} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
"""What JSON leaves as it is, and terminals and readers of lines do not."""

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text with each of `secrets` replaced wherever it occurs, however it is spelled."""
    return _found(secrets).replaced(text, REDACTED)


def _found(secrets: Iterable[str]) -> SpelledValues:
    # Replacing a shorter one would only garble the text, and it protects nothing.
    return SpelledValues(secret for secret in secrets if len(secret) >= 4)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object.

    Its members are `at`, `level`, `logger`, `message`, what `extra=` gave, `trace`, the trace id of
    the request that is handled, and `error`.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Replace each of `secrets` wherever it occurs in a text."""
        super().__init__()
        self._known = frozenset(secrets)
        self._secrets = _found(self._known)

    def hiding(self, secrets: Iterable[str]) -> JsonFormatter:
        """Return a formatter that replaces these too."""
        return JsonFormatter(self._known.union(secrets))

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its line feed."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._clean(record.getMessage()),
        }
        for name, value in record.__dict__.items():
            if name not in _STANDARD:
                line[name] = self._extra(value)
        if (trace := traces.current.get()) is not None:
            line.setdefault("trace", traces.trace_id(trace))
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self._describe(record.exc_info[1])
        return orjson.dumps(line).decode()

    def _extra(self, value: object) -> object:
        if isinstance(value, bool | int | float | None):
            return value
        if isinstance(value, list | tuple):
            return [self._extra(item) for item in value]
        return self._clean(str(value))

    def _clean(self, text: str) -> str:
        text = sealed.scrub(self._secrets.replaced(text, REDACTED))
        if len(text) > MOST_TEXT:
            text = f"{text[:MOST_TEXT]}… ({len(text)} characters)"
        # A lone surrogate cannot be encoded.
        return text.translate(_CONTROLS).encode("utf-8", "backslashreplace").decode()

    def _describe(self, error: BaseException) -> dict[str, object]:
        described: dict[str, object] = {
            "type": type(error).__qualname__,
            "at": [
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_tb(error.__traceback__)
            ],
        }
        if isinstance(error, DragomanError):
            described["code"] = error.code.value
            described["message"] = self._clean(error.whole)
        cause = error.__cause__ or error.__context__
        if cause is not None:
            described["cause"] = type(cause).__qualname__
        return described


def change(*, level: str, secrets: Iterable[str]) -> None:
    """Change what `configure` set. The secrets of before stay hidden: they may be on their way."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for handler in root.handlers:
        if isinstance(handler.formatter, JsonFormatter):
            handler.setFormatter(handler.formatter.hiding(secrets))


def configure(
    *, level: str = "info", secrets: Iterable[str] = (), stream: TextIO | None = None
) -> None:
    """Send the records of all loggers to `stream` (stderr by default) as JSON lines.

    Replaces what was configured before. `secrets` are the credentials that no line may show.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(secrets))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # A failed write to a closed stderr must not print the record with its arguments.
    logging.raiseExceptions = False
