"""Cassettes of vcrpy, version 1, as YAML and as JSON.

YAML is read event by event: no object is made of a tag, and depth, count and aliases are bounded.
A cassette tells no times and no pieces: times count from 0, a millisecond for each request and each
response, and an answer is one piece.
"""

from __future__ import annotations

import binascii
import dataclasses
import re
from typing import Any

from adapters.captures import (
    BadCapture,
    CapturedExchange,
    CapturedRequest,
    CapturedResponse,
    ExchangeEnd,
    Headers,
    body_of,
)
from adapters.captures.foreign import (
    LIMITS,
    BodyCounter,
    ForeignCapture,
    address_of,
    header,
    json_of,
    with_host,
)
from adapters.wire.encodings import decode_base64
from adapters.wire.jsonvalue import MAX_DEPTH, format_json, parse_json

_TAG = "tag:yaml.org,2002:"
_TEXTS = (f"{_TAG}str", f"{_TAG}python/str", f"{_TAG}python/unicode", "!")
"""Tags of texts; those of Python 2 are texts as well, and nothing is executed for them."""

_PLAIN = (*_TEXTS, *(f"{_TAG}{name}" for name in ("int", "float", "bool", "timestamp")))
_LISTS = (f"{_TAG}seq", f"{_TAG}python/tuple", "!")
_MAPS = (f"{_TAG}map", "!")
_NOT_TEXT = re.compile(r"true|false|-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?(?:e[-+][0-9]{1,2})?")
_NULLS = ("", "~", "null", "Null", "NULL")


def read_cassette(data: bytes, name: str) -> ForeignCapture:
    """Read a cassette, of YAML or of JSON.

    Raises:
        BadCapture: it is not one.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise BadCapture("it is empty: record the cassette again", name=name)
    if data.lstrip().startswith(b"{"):
        document, notes = json_of(data, name, "the cassette")
        lines: dict[int, int] = {}
    else:
        document, lines = _YamlReader(name).read(data)
        notes = []
    capture = cassette_of(document, name, lines)
    capture.notes[:0] = notes
    return capture


def cassette_of(document: object, name: str, lines: dict[int, int] | None = None) -> ForeignCapture:
    """Return the capture that the value of a cassette is.

    Args:
        document: the value.
        name: of the file, for errors.
        lines: where an object stands, by its `id`.

    Raises:
        BadCapture: it is not a cassette.
    """
    if isinstance(document, list) and document and isinstance(document[0], dict):
        raise BadCapture(
            "it is a cassette of vcrpy before 1.0: record it again, or run `python -m"
            " vcr.migration`",
            name=name,
        )
    members = document if isinstance(document, dict) else {}
    if "http_interactions" in members:
        raise BadCapture(
            "it is a cassette of VCR for Ruby or of betamax, and only those of vcrpy are read:"
            " record it with vcrpy",
            name=name,
        )
    interactions = members.get("interactions")
    if not isinstance(interactions, list):
        raise BadCapture("it is not a cassette: it has no list `interactions`", name=name)
    version = members.get("version")
    if str(version) != "1" or isinstance(version, bool):
        raise BadCapture(
            f"it has version {version!r} of cassettes, and 1 is read: record it again", name=name
        )
    capture = ForeignCapture.of(name, "cassette", "vcrpy")
    capture.notes.append("a cassette tells no times and no pieces: each answer is one piece")
    reading = _CassetteReader(capture, BodyCounter(name), lines or {})
    for number, interaction in enumerate(interactions, 1):
        reading.take(number, interaction)
    return capture


class _UnquotedText(str):
    """A text of YAML without quotes, which may stand for a number or a truth."""

    __slots__ = ()


@dataclasses.dataclass(slots=True)
class _CassetteReader:
    """What is read of a cassette so far."""

    capture: ForeignCapture
    bodies: BodyCounter
    lines: dict[int, int]
    number: int = 0
    line: int = 0
    values: int = 0

    def take(self, number: int, interaction: object) -> None:
        """Take a request and its answer."""
        self.number = number
        self.line = self.lines.get(id(interaction), 0)
        asked = self._member(interaction, "request")
        method, uri = asked.get("method"), asked.get("uri")
        if not isinstance(method, str) or not isinstance(uri, str) or not method:
            raise self._wrong("its request has no `method` or no `uri`")
        try:
            _, host, target = address_of(str(uri))
        except ValueError:
            raise self._wrong("`request.uri` is not a URL") from None
        headers, body = self._message(asked, asked.get("body"), "request")
        at = 2.0 * (number - 1)
        exchange = CapturedExchange(
            CapturedRequest(
                exchange=number,
                side="backend",
                at=at,
                method=str(method),
                target=target,
                headers=with_host(headers, host),
            )
        )
        if body:
            exchange.sent.append(body_of(number, "request", at, body))
        self.line = self.lines.get(id(interaction), 0)
        answer = self._member(interaction, "response")
        # vcrpy's earlier recordings of httpx have `status_code` and `content`.
        status = answer.get("status", answer.get("status_code"))
        content = answer.get("body", answer.get("content"))
        headers, body = self._message(answer, content, "response")
        exchange.response = CapturedResponse(
            exchange=number, at=at + 1, status=self._status(status), headers=headers
        )
        if body:
            exchange.received.append(body_of(number, "response", at + 1, body))
        exchange.end = ExchangeEnd(exchange=number, at=at + 1, how="ended")
        self.capture.add(exchange)

    def _wrong(self, reason: str) -> BadCapture:
        return BadCapture(
            f"interaction {self.number}: {reason}", name=self.capture.name, line=self.line
        )

    def _member(self, value: object, key: str) -> dict[str, Any]:
        member = value.get(key) if isinstance(value, dict) else None
        if not isinstance(member, dict):
            raise self._wrong(f"it has no `{key}`")
        self.line = self.lines.get(id(member), self.line)
        return member

    def _status(self, value: object) -> int:
        code = value.get("code") if isinstance(value, dict) else value
        # YAML's numbers are read as texts.
        text = "" if isinstance(code, bool) else str(code)
        if not (text.isascii() and text.isdecimal() and len(text) == 3):
            raise self._wrong("its response has no status of three digits")
        return int(text)

    def _message(self, message: dict[str, Any], body: object, of: str) -> tuple[Headers, bytes]:
        """Return the headers and the body of a message."""
        headers = self.bodies.count(self._headers(message.get("headers"), of), self.line)
        data = self.bodies.take(self._body(body, of), self.line)
        headers, data = self.bodies.inflate(headers, data, self.line)
        if coding := header(headers, "content-encoding"):
            self.capture.notes.append(
                f"interaction {self.number}: the {of}'s body is compressed as `{coding[:40]}`,"
                " which is not inflated"
            )
        return headers, data

    def _headers(self, value: object, of: str) -> Headers:
        if value is None:
            return ()
        pairs: list[tuple[str, str]] = []
        for name, told in value.items() if isinstance(value, dict) else (("", None),):
            values = told if isinstance(told, list) else [told]
            for one in values:
                plain = _plain(one)
                if not isinstance(name, str) or not name or plain is None:
                    raise self._wrong(f"`{of}.headers` are not names with values")
                pairs.append((str(name), plain))
        return tuple(pairs)

    def _body(self, value: object, of: str) -> bytes:
        if of == "request" and isinstance(value, dict | list) and "base64_string" not in value:
            # What was given to aiohttp as `json`.
            self.capture.notes.append(
                f"interaction {self.number}: the request's body is kept as a value; its JSON is"
                " written anew"
            )
            return format_json(self._json(value))
        if isinstance(value, dict):
            if "base64_string" in value:
                text = value["base64_string"]
                try:
                    return decode_base64(text if isinstance(text, str) else "?")
                except (binascii.Error, ValueError):
                    raise self._wrong(f"`{of}.body.base64_string` is not base64") from None
            value = value.get("string")
        if value is None:
            return b""
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            raise self._wrong(f"`{of}.body` is not a text")
        return value.encode()

    def _json(self, value: object, depth: int = 1) -> object:
        """Return a value as JSON has it. Aliases can make much of little, so it is counted."""
        self.bodies.take(value.encode() if isinstance(value, str) else b"value", self.line)
        if depth > MAX_DEPTH:
            raise self._wrong(f"its body is nested deeper than {MAX_DEPTH} levels")
        self.values += 1
        if self.values > LIMITS.values:
            raise self._wrong(f"the bodies have more than {LIMITS.values} values")
        if isinstance(value, dict):
            return {str(key): self._json(member, depth + 1) for key, member in value.items()}
        if isinstance(value, list):
            return [self._json(member, depth + 1) for member in value]
        if isinstance(value, bytes):
            raise self._wrong("its body is a value with bytes in it")
        if isinstance(value, _UnquotedText) and _NOT_TEXT.fullmatch(value):
            return parse_json(str(value))
        return str(value) if isinstance(value, str) else value


def _plain(value: object) -> str | None:
    """Return the value of a header as a text."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)


@dataclasses.dataclass(slots=True)
class _OpenCollection:
    """A list or a mapping that is not whole yet."""

    value: list[Any] | dict[Any, Any]
    anchor: str | None
    key: Any = None
    has_key: bool = False


@dataclasses.dataclass(slots=True)
class _YamlReader:
    """Makes lists, mappings, texts and bytes of YAML, and nothing else."""

    name: str
    lines: dict[int, int] = dataclasses.field(default_factory=dict)
    anchors: dict[str, Any] = dataclasses.field(default_factory=dict)
    open: list[_OpenCollection] = dataclasses.field(default_factory=list)
    root: list[Any] = dataclasses.field(default_factory=list)
    line: int = 0

    def read(self, data: bytes) -> tuple[Any, dict[int, int]]:
        """Return the value of a document, and where its lists and mappings begin.

        Raises:
            BadCapture: it is not YAML, or has something in it that is not read.
        """
        # Few captures are cassettes of YAML.
        import yaml  # type: ignore[import-untyped]

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            for count, event in enumerate(yaml.parse(data, Loader=loader)):
                self.line = event.start_mark.line + 1
                if count > LIMITS.values:
                    raise self._wrong(f"it has more than {LIMITS.values} values: split it")
                self._take(type(event).__name__, event)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it ends"
            self.line = mark.line + 1 if mark else self.line
            raise self._wrong(f"it is not YAML, or cut off: {reason}; record it again") from None
        except (UnicodeError, RecursionError):
            raise self._wrong("it is not YAML in UTF-8: record it again") from None
        return (self.root[0] if self.root else None), self.lines

    def _wrong(self, reason: str) -> BadCapture:
        return BadCapture(reason, name=self.name, line=self.line)

    def _take(self, kind: str, event: Any) -> None:
        """Take the next event of the document."""
        match kind:
            case "ScalarEvent":
                self._put(self._scalar(event), event.anchor)
            case "AliasEvent":
                if event.anchor not in self.anchors:
                    raise self._wrong("an alias names nothing that is whole before it")
                self._put(self.anchors[event.anchor], None)
            case "SequenceStartEvent":
                self._begin([], event, _LISTS)
            case "MappingStartEvent":
                self._begin({}, event, _MAPS)
            case "SequenceEndEvent" | "MappingEndEvent":
                done = self.open.pop()
                self._put(done.value, done.anchor)
            case "DocumentStartEvent" if self.root:
                raise self._wrong("a second document begins: keep one in each file")
            case _:
                pass

    def _begin(self, value: list[Any] | dict[Any, Any], event: Any, tags: tuple[str, ...]) -> None:
        self._check(event.tag, tags)
        if len(self.open) >= MAX_DEPTH:
            raise self._wrong(f"it is nested deeper than {MAX_DEPTH} levels")
        self.lines[id(value)] = self.line
        self.open.append(_OpenCollection(value, event.anchor))

    def _check(self, tag: str | None, tags: tuple[str, ...]) -> None:
        if tag is not None and tag not in tags:
            shown = tag.replace(_TAG, "!!")[:100]
            raise self._wrong(
                f"the tag `{shown}` is not read, since it can stand for any object: put the plain"
                " text in its place, or record the cassette again with a newer vcrpy"
            )

    def _scalar(self, event: Any) -> Any:
        if event.tag == f"{_TAG}binary":
            try:
                return decode_base64(event.value)
            except (binascii.Error, ValueError):
                raise self._wrong("`!!binary` is not base64") from None
        if event.tag == f"{_TAG}null" or (
            event.tag is None and event.implicit[0] and event.value in _NULLS
        ):
            return None
        self._check(event.tag, _PLAIN)
        value: str = event.value
        # PyYAML without its C half reads halves of characters.
        value.encode()
        return _UnquotedText(value) if event.tag is None and event.implicit[0] else value

    def _put(self, value: Any, anchor: str | None) -> None:
        """Put a value where it belongs."""
        if anchor is not None:
            self.anchors[anchor] = value
        if not self.open:
            self.root.append(value)
            return
        top = self.open[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif not top.has_key:
            if not isinstance(value, str):
                raise self._wrong("a name in a mapping is not a text")
            top.key, top.has_key = value, True
        else:
            top.value[top.key] = value
            top.has_key = False
