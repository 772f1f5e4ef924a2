"""Log lines are JSON, one each, and show no secret whatever is thrown at them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp.http_exceptions import BadStatusLine

from adapters.wire.errors import ErrorCode
from proxy.base import logs
from proxy.base.errors import UpstreamRejected
from proxy.base.sealed import REDACTED
from proxy.http.malformed import NO_HTTP


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    kept = root.handlers[:], root.level, logging.raiseExceptions
    stream = io.StringIO()
    logs.configure(secrets=["tok-1", "tok-1-longer", "x"], stream=stream)
    yield stream
    root.handlers[:], raising = kept[0], kept[2]
    root.setLevel(kept[1])
    logging.raiseExceptions = raising


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_json_line_with_its_extras(stream: io.StringIO) -> None:
    log = logging.getLogger("proxy.test")
    log.info(
        "session `%s`\nis open",
        "s-1",
        extra={"session": "s-1", "count": 3, "serves": ["a\nb", 1, "tok-1"]},
    )
    log.debug("not shown")
    [line] = lines(stream)
    at = line.pop("at")
    assert at.endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "proxy.test",
        "message": "session `s-1`\nis open",
        "session": "s-1",
        "count": 3,
        "serves": ["a\nb", 1, REDACTED],
    }


def test_a_name_from_outside_forges_no_line_and_is_cut(stream: io.StringIO) -> None:
    name = 'a\n{"level":"error"}\r\x1b[2J\x7f\x85\x9b31m\u2028b'
    logging.getLogger("proxy.test").warning("child `%s`", name, extra={"child": name * 1000})
    text = stream.getvalue()
    assert len(text.splitlines()) == 1
    assert text.removesuffix("\n").isprintable()
    [line] = lines(stream)
    assert line["message"] == ('child `a\n{"level":"error"}\r\x1b[2J\\x7f\\x85\\x9b31m\\u2028b`')
    assert len(line["child"]) < 2 * logs.MOST_TEXT


def test_configured_credentials_are_replaced_in_every_text(stream: io.StringIO) -> None:
    log = logging.getLogger("proxy.test")
    log.warning("sent tok-1 and %s", "tok-1-longer", extra={"header": "Bearer tok-1"})
    error = UpstreamRejected("the backend said tok-1", status=401)
    try:
        raise error
    except UpstreamRejected:
        log.exception("max")
    first, second = lines(stream)
    assert first["message"] == "sent [redacted] and [redacted]"
    assert first["header"] == "Bearer [redacted]"
    # One character is too short to be replaced.
    assert second["message"] == "max"
    assert second["error"]["message"] == "the backend said [redacted]"
    assert second["error"]["code"] == ErrorCode.BACKEND_REFUSED


def test_of_a_foreign_exception_only_type_and_place_are_logged(stream: io.StringIO) -> None:
    try:
        try:
            raise KeyError("sealed-value")
        except KeyError as cause:
            raise ValueError("body: sealed-value") from cause
    except ValueError:
        logging.getLogger("library").exception("it failed")
    [line] = lines(stream)
    assert "sealed-value" not in json.dumps(line)
    assert (line["error"]["type"], line["error"]["cause"]) == ("ValueError", "KeyError")
    [place] = line["error"]["at"]
    assert "test_logs.py:" in place


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_what_is_no_http_is_a_line_at_level_debug_only(stream: io.StringIO, level: int) -> None:
    log = logging.getLogger("proxy.test.http")
    log.addFilter(NO_HTTP)
    logging.getLogger().setLevel(level)
    for error in (BadStatusLine("junk"), ValueError("ours")):
        log.error("Error handling request", exc_info=error)
    found = [line["level"] for line in lines(stream)]
    assert found == (["debug", "error"] if level == logging.DEBUG else ["error"])


def test_text_that_is_no_unicode_is_logged_all_the_same() -> None:
    # Formatted directly: pytest's own capture of the record could not be sent to another process.
    record = logging.makeLogRecord({"msg": "path \udcff"})
    assert json.loads(logs.JsonFormatter().format(record))["message"] == "path \\udcff"
