"""Tells whether an agent has just said its structured result in words."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from adapters.wire.jsonvalue import JsonError, parse_json
from adapters.wire.limits import is_light


def digest_of(value: Any) -> str:
    """Return what equal JSON values have as well, whatever the order of their members."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_of_text(text: str) -> str | None:
    """Return the digest of a text that is a JSON object or list by itself, else None."""
    if text.lstrip()[:1] not in ("{", "[") or not is_light(text.encode()):
        return None
    try:
        return digest_of(parse_json(text))
    except JsonError:
        return None
