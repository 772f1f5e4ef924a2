"""Members of a JSON body: what stands there, or a refusal that names the place.

No refusal quotes the body: it may hold the value of a sealed request.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from adapters.contract.faces.files import UNKNOWN_TYPE, file_of, read_data_url
from adapters.model.events import File
from adapters.wire.encodings import decode_base64
from adapters.wire.errors import ClientProtocolError
from adapters.wire.jsonvalue import JsonError, parse_json

NAME_LIMIT = 512
"""Characters of an id or a name that a frontend chose: UUIDs have 36."""

MAX_PARTS = 256
"""Entries of a list in a body that are looked at one by one, such as the parts of a message: each
costs time where it is read, and wherever the message is shown."""


def refuse(text: str) -> NoReturn:
    """Refuse a body.

    Raises:
        ClientProtocolError: as it is.
    """
    raise ClientProtocolError(text)


def object_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is.

    Raises:
        ClientProtocolError: it is not one.
    """
    value: Any = None
    # Refused outside of it: the error of the reader would be kept as the context of ours.
    with contextlib.suppress(JsonError):
        value = parse_json(body.removeprefix(b"\xef\xbb\xbf"))
    if not isinstance(value, dict):
        refuse("The body is not a JSON object.")
    return value


def name_of(value: Any, place: str) -> str:
    """Return the id or name at a place.

    Raises:
        ClientProtocolError: it is missing, not a string, or too long.
    """
    if not isinstance(value, str) or not value or len(value) > NAME_LIMIT:
        refuse(f"`{place}` is not a string of 1 to {NAME_LIMIT} characters.")
    return value


def list_of(value: Any, place: str, *, of: str = "") -> list[Any]:
    """Return the list at a place, empty where it is null. With `of` it has at most `MAX_PARTS` such
    members.

    Raises:
        ClientProtocolError: it is not a list, or too long.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        refuse(f"`{place}` is not a list.")
    if of and len(value) > MAX_PARTS:
        refuse(f"`{place}` has more than {MAX_PARTS} {of}.")
    return value


def text_of(value: Any) -> str | None:
    """Return a text that is there and not empty."""
    return value if isinstance(value, str) and value else None


def texts_of(parts: Sequence[Any]) -> list[str]:
    """Return the texts of the parts that have one."""
    found = (part.get("text") for part in parts if isinstance(part, dict))
    return [text for text in found if isinstance(text, str)]


def file_in_url(
    url: str, media_type: str | None, place: str, blobs: dict[str, bytes], name: str | None = None
) -> File:
    """Return the file that a data URL holds; `blobs` gets its bytes.

    Raises:
        ClientProtocolError: it is not a data URL, or its bytes cannot be read.
    """
    named, content = read_data_url(url, place)
    return file_of(content, media_type or named or UNKNOWN_TYPE, blobs, name=name)


def file_in_base64(text: str, media_type: str | None, place: str, blobs: dict[str, bytes]) -> File:
    """Return the file whose bytes stand at a place; `blobs` gets these.

    Raises:
        ClientProtocolError: it is not base64.
    """
    data: bytes | None = None
    with contextlib.suppress(ValueError):
        data = decode_base64(text)
    if data is None:
        refuse(f"`{place}` has no base64.")
    return file_of(data, media_type or UNKNOWN_TYPE, blobs)


def web_url(url: Any, place: str) -> str:
    """Return an `http` or `https` URL.

    Raises:
        ClientProtocolError: it is something else.
    """
    if not isinstance(url, str) or not re.match(r"(?i)https?://[^\s/?#]", url):
        refuse(f"`{place}` is neither a data URL nor an http or https URL.")
    return url


def digest_of(texts: Sequence[str]) -> str:
    """Return what equal texts have as well."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()[:16]
