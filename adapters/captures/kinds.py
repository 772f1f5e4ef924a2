"""Which of the files that people have it is: told by what is in it, never by its name."""

from __future__ import annotations

import io
import re

from adapters.captures import BadCapture, Capture, read_capture
from adapters.captures.cassette import read_cassette
from adapters.captures.curl import is_stream, read_curl
from adapters.captures.har import read_har
from adapters.wire.jsonvalue import JsonError, parse_json

KINDS = (
    "a capture of Dragoman, a HAR (1.2), a cassette of vcrpy (YAML or JSON), the output of `curl"
    " -i`, or a stream that `curl -N` wrote"
)
"""What can be read."""

_BOM = b"\xef\xbb\xbf"
_CAPTURE = re.compile(rb'\{\s*"capture"\s*:')
_HAR = re.compile(rb'\{\s*"log"\s*:')
_JSON_CASSETTE = re.compile(rb'\{\s*(?:"version"\s*:\s*[0-9]+\s*,\s*)?"(?:http_)?interactions"\s*:')
_YAML_CASSETTE = re.compile(
    rb"^(?:(?:http_)?interactions:(?=\s)|- request:(?=\s)|- !!python/object)", re.MULTILINE
)
_VERBOSE = re.compile(rb"\* |[<>] ")
_FOREIGN = (
    (b"\x89PNG", "a picture (PNG)"),
    (b"\xff\xd8\xff", "a picture (JPEG)"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a ZIP archive: take the file out of it"),
    (b"\x1f\x8b", "compressed: run `gunzip` on it first"),
    (b"\xff\xfe", "UTF-16: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16: save it as UTF-8"),
    (b"SQLite format 3", "a database: record a capture with Dragoman"),
)


def is_foreign(begin: bytes) -> bool:
    """Say whether a file begins as a HAR, a cassette or the output of `curl -i`: something with
    requests or heads in it, and not a body alone."""
    text = begin.removeprefix(_BOM).lstrip()
    if text.startswith(b"HTTP/") or _HAR.match(text) or _JSON_CASSETTE.match(text):
        return True
    return _is_yaml_cassette(text)


def _is_yaml_cassette(text: bytes) -> bool:
    # A comment may stand before its first line, but no more than that.
    return _YAML_CASSETTE.search(text[: 64 * 1024]) is not None


def read_any(data: bytes, name: str) -> Capture:
    """Read a file of any kind that can be read.

    Args:
        data: the whole file.
        name: of the file, for errors.

    Raises:
        BadCapture: it is empty, of another kind, or something is wrong in it.
    """
    text = data.removeprefix(_BOM).lstrip()
    if not text:
        raise BadCapture(f"it is empty; what can be read is {KINDS}", name=name)
    if text.startswith(b"HTTP/"):
        return read_curl(text, name)
    if text.startswith(b"{"):
        return _of_json(data.removeprefix(_BOM), text, name)
    if is_stream(text) is not None:
        return read_curl(data, name)
    if _is_yaml_cassette(text):
        return read_cassette(data, name)
    raise BadCapture(f"it is {_named(text)}; what can be read is {KINDS}", name=name)


def _of_json(data: bytes, text: bytes, name: str) -> Capture:
    """Read what begins as an object of JSON."""
    first = _members(text.partition(b"\n")[0])
    if _CAPTURE.match(text) or (first is not None and "capture" in first):
        return read_capture(io.BytesIO(data), name)
    if _HAR.match(text):
        return read_har(data, name)
    if _JSON_CASSETTE.match(text):
        return read_cassette(data, name)
    whole = first if text.count(b"\n") == text.endswith(b"\n") else _members(text)
    if whole is not None:
        # Whatever stands first in it.
        if "log" in whole:
            return read_har(data, name)
        if "interactions" in whole or "http_interactions" in whole:
            return read_cassette(data, name)
    if first is not None:
        return read_curl(data, name)
    told = "a document of JSON of another kind" if whole is not None else "JSON that is cut off"
    raise BadCapture(f"it is {told}; what can be read is {KINDS}", name=name)


def _members(text: bytes) -> dict[str, object] | None:
    try:
        value = parse_json(text)
    except JsonError:
        return None
    return dict(value) if isinstance(value, dict) else None


def _named(text: bytes) -> str:
    """Return what something else is."""
    for begin, kind in _FOREIGN:
        if text.startswith(begin):
            return kind
    if text[:512].lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<")):
        return "HTML or XML"
    if _VERBOSE.match(text):
        return "the output of `curl -v`: run it with `-i` in its place"
    if text.startswith(b"["):
        return "a list of JSON"
    return "something else"
