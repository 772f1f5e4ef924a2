"""Cursors of pages: opaque for who reads the pages, and short."""

from __future__ import annotations

import base64
import binascii
import re


def make_cursor(*parts: object) -> str:
    """Return a cursor of some parts; they have no full stop."""
    text = ".".join(map(str, parts))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def parts_of(cursor: str, *patterns: str) -> tuple[str, ...] | None:
    """Return the parts of a cursor, each of which fits its pattern; None of what is not one."""
    try:
        plain = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        return None
    found = re.fullmatch(r"\.".join(f"({one})" for one in patterns), plain)
    return None if found is None else found.groups()


NUMBER = "[0-9]{1,18}"
"""A number as a part: more digits do not fit into the journal's 64 bits."""
