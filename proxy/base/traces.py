"""`traceparent`: the name of a request for all who take part in it (W3C Trace Context, level 1).

The form is `00-{32 hex digits}-{16 hex digits}-{2 hex digits}`: version, trace id, the id of the
caller's part of it, flags. All digits are small letters, and neither id is all zeros.

A request without a valid one gets a new one with the flag "sampled": there is no sampler here, and
a backend that follows its caller's decision would record nothing without it.
"""

from __future__ import annotations

import contextvars
import re
from collections.abc import Sequence

from proxy.base.clock import IdSource

HEADER = "traceparent"

IDS = IdSource()
"""Where new ids come from. They are apart from those of sessions, which a test may fix."""

_FORM = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})"
    r"-(?P<parent>(?!0{16})[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)

_SAMPLED = "01"

current: contextvars.ContextVar[str | None] = contextvars.ContextVar("traceparent", default=None)
"""The `traceparent` of the request that is handled here; tasks that outlive it have none."""


def taken(values: Sequence[str]) -> str | None:
    """Return the values of a request's headers of this name as one `traceparent` of version `00`,
    or None where there is none or it is not valid.

    A later version is read by its first four fields.
    """
    if len(values) != 1:
        return None
    found = _FORM.fullmatch(values[0])
    if found is None or (found["version"] == "00" and found["more"] is not None):
        return None
    # The flags that have a meaning are "sampled", and "random" of level 2. Others are to be zero.
    return f"00-{found['trace']}-{found['parent']}-{int(found['flags'], 16) & 0x03:02x}"


def made() -> str:
    """Return a new one, under a new trace id."""
    digits = IDS.bytes(24).hex()
    return f"00-{digits[:32]}-{digits[32:]}-{_SAMPLED}"


def child(trace: str) -> str:
    """Return one for a request that is made for another: only the id of the caller is new."""
    return f"{trace[:36]}{IDS.bytes(8).hex()}{trace[52:]}"


def trace_id(trace: str) -> str:
    """Return the trace id of a `traceparent`, 32 hex digits."""
    return trace[3:35]
