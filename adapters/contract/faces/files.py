"""Files in requests: their types, data URLs, and the bytes that stand in a body.

No refusal quotes the body: it may hold the value of a sealed request.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

from adapters.model.events import Blob, File
from adapters.wire.encodings import PERCENT, decode_base64, decode_percent
from adapters.wire.errors import ClientProtocolError

UNKNOWN_TYPE = "application/octet-stream"
"""The type of a file where nobody names another one."""


def media_type_of(given: Any, where: str) -> str | None:
    """Return the media type that a request gives a file, None where it gives none.

    An empty text means that there is none: browsers send it for all files whose names they do not
    know, such as `.rs` or `.ipynb`.

    Raises:
        ClientProtocolError: what stands at `where` is not a media type.
    """
    if given is None or given == "":
        return None
    if not isinstance(given, str) or "/" not in given:
        raise ClientProtocolError(f"`{where}` is not a media type.")
    return given


def is_data_url(url: str) -> bool:
    """Say whether a URL holds the file itself."""
    return url[:5].lower() == "data:"


def read_data_url(url: str, where: str) -> tuple[str | None, bytes]:
    """Return the media type that a data URL names, without parameters, and its bytes (RFC 2397).

    Raises:
        ClientProtocolError: what stands at `where` is not a data URL, has no base64 where it should
            be, or is too long for percent encoding.
    """
    head, comma, text = url[len("data:") :].partition(",")
    if not comma:
        raise ClientProtocolError(f"`{where}` is not a data URL.")
    named, *parameters = (part.strip() for part in head.split(";"))
    packed = "base64" in (parameter.lower() for parameter in parameters)
    content: bytes | None = None
    # Refused outside of it: the error of the reader would be kept as the context of ours.
    with contextlib.suppress(ValueError):
        content = decode_base64(text) if packed else decode_percent(text)
    if content is None and packed:
        raise ClientProtocolError(f"`{where}` is not base64.")
    if content is None:
        raise ClientProtocolError(
            f"`{where}` has more than {PERCENT} characters in percent encoding; send base64."
        )
    return named if "/" in named else None, content


def file_of(
    content: bytes, media_type: str, blobs: dict[str, bytes], *, name: str | None = None
) -> File:
    """Return the file whose bytes stand in a request; `blobs` gets these."""
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return File(media_type=media_type, name=name, size=len(content), ref=Blob(sha256=digest))
