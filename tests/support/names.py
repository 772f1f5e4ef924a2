"""Names that an attacker would choose for an id, a token or a connection."""

from __future__ import annotations

from hypothesis import strategies as st

__all__ = ["HOSTILE", "NAMES"]

HOSTILE = (
    "",
    ".",
    "..",
    "../..",
    "..\\..",
    "a/b",
    "a\\b",
    "/",
    "\\",
    "%2e%2e",
    "%2E.",
    "..%2fadmin",
    "a%5Cb",
    "%252e%252e",
    "%25252e",
    "%2525252525252e",
    "a\r\nX-Admin: 1",
    "a\nb",
    "a\x00b",
    "a%00b",
    "\x7f",
    "\x85",
    "\ud800",
    "\udcff",
)
"""None of them may become part of a path."""

NAMES = (
    st.sampled_from(HOSTILE)
    | st.text(st.sampled_from("./\\%25eEfF:@?#;&= a\r\n\t\x00\x7f\u2028日\udc80"), max_size=12)
    | st.text(max_size=12)
    | st.from_regex(r"[A-Za-z0-9_.:-]{1,12}", fullmatch=True)
)
"""Any name, the hostile ones often."""
