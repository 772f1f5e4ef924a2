"""Files that stand in JSON: base64 and percent encoding."""

from __future__ import annotations

import base64
import urllib.parse

PERCENT = 2**20
"""Characters of a file in percent encoding, which is read byte by byte."""


def decode_base64(text: str) -> bytes:
    """Return the bytes, also where padding is missing or white space is between.

    Raises:
        ValueError: it is not base64.
    """
    bare = "".join(text.split()).rstrip("=")
    return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)


def decode_percent(text: str) -> bytes:
    """Return the bytes of a text in percent encoding.

    Raises:
        ValueError: it is longer than `PERCENT`.
    """
    if len(text) > PERCENT:
        raise ValueError(f"more than {PERCENT} characters in percent encoding")
    return urllib.parse.unquote_to_bytes(text)
