"""What a capture must not hold: credentials in the heads of requests and responses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

__all__ = ["redacted"]

SECRET = re.compile(
    r"^(?:authorization|proxy-authorization|cookie|set-cookie)$|key|token|secret|password|signature",
    re.IGNORECASE,
)
"""Names of headers whose value is a credential, or may be one."""

OPEN = frozenset({"idempotency-key", "sec-websocket-key"})
"""Names that look like it and are none."""


def redacted(headers: Iterable[tuple[str, str]], salt: bytes) -> tuple[tuple[str, str], ...]:
    """Return headers without credentials.

    In the place of a value stands a mark, the same for the same value and `salt`: so one still sees
    which requests were of the same client. `Bearer` and the like stay before it.
    """
    out = []
    for name, value in headers:
        if SECRET.search(name) and name.lower() not in OPEN:
            scheme, _, rest = value.partition(" ")
            kept = f"{scheme} " if rest and name.lower().endswith("authorization") else ""
            mark = hashlib.sha256(salt + value.encode("utf-8", "surrogateescape")).hexdigest()[:8]
            value = f"{kept}[redacted-{mark}]"
        out.append((name, value))
    return tuple(out)
