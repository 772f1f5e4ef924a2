"""What a backend gets of a codec's request."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.model.base import Call
from adapters.model.file_body import FileBody

__all__ = ["whole"]


def whole(call: Call, files: Mapping[str, bytes]) -> bytes:
    """The body of a call with its files in their places."""
    body = call.request.body or b""
    return b"".join(body.pieces(files)) if isinstance(body, FileBody) else body
