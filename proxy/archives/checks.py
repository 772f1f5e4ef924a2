"""What the ids, names and numbers of an archive may be: what those of a session made here are.

Later an id stands in URLs, in heads and in names of files, and a time in what is written of it for
people, so that one of another form would harm far from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from adapters.model import events as ev
from adapters.registry import DIALECTS
from adapters.wire.jsonvalue import MOST_COUNT, MOST_NAME, JsonError, parse_json
from adapters.wire.limits import ID_BYTES
from proxy.base.clock import ALPHABET, MINTED_LENGTH
from proxy.base.rows import AliasKind, BackendBinding, CodecRow, SessionRow
from proxy.config.settings import SHADOWS, is_name
from proxy.journal.base import MINTED

FILE_MOST = 256 * 1024 * 1024
"""Bytes of a file of a session: it is in memory while it comes. Far above `server.max_body_bytes`,
in which it was once sent."""

TIME_MOST = 253_402_300_799_999
"""The last millisecond of the year 9999: later ones cannot be written as a date."""

_SESSION = re.compile(f"{MINTED}[{ALPHABET}]{{{MINTED_LENGTH}}}")
_HANDLE = re.compile("[0-9a-f]{16}")
_DIGEST = re.compile("[0-9a-f]{32}")
_CONTROLS = re.compile("[\x00-\x1f\x7f]")

_A_SESSION = f"`{MINTED}` and {MINTED_LENGTH} of `{ALPHABET}`"
_A_NAME = "up to 64 letters, digits, `.`, `_` or `-`"
_AN_ID = f"a text of 1 to {ID_BYTES} bytes"


def _is_id(text: str) -> bool:
    return bool(text) and len(text.encode("utf-8", "surrogatepass")) <= ID_BYTES


def _is_plain_id(text: str) -> bool:
    return _is_id(text) and _CONTROLS.search(text) is None


def _is_child(text: str) -> bool:
    return 0 < len(text) <= MOST_NAME


def _is_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def _is_handle(text: str) -> bool:
    return _HANDLE.fullmatch(text) is not None


def _is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def _is_shadowed(text: str) -> bool:
    backend, _, id = text.partition("/")
    return is_name(backend) and _is_session(id)


_ALIASES: Mapping[AliasKind, tuple[Callable[[str], bool], str]] = {
    AliasKind.TASK: (_is_id, _AN_ID),
    AliasKind.OPERATION: (_is_id, _AN_ID),
    AliasKind.HANDLE: (_is_handle, "16 digits, `0` to `f`"),
    AliasKind.THREAD: (_is_child, f"a text of 1 to {MOST_NAME} characters"),
    AliasKind.IDEMPOTENT: (_is_digest, "32 digits, `0` to `f`"),
    AliasKind.REQUEST: (_is_digest, "32 digits, `0` to `f`"),
    AliasKind.LOST: (_is_id, _AN_ID),
    AliasKind.REPEATED: (_is_id, _AN_ID),
    AliasKind.SHADOWED: (_is_shadowed, "`BACKEND/ID`, a backend's name and the session's id"),
    AliasKind.SHADOW: (_is_session, _A_SESSION),
}


def check_session(row: SessionRow) -> None:
    """Check the ids, names and numbers of a session.

    Raises:
        ValueError: one cannot be; the text names the field and says what it may be.
    """
    _expect(_is_session(row.id), "session.id", _A_SESSION)
    _expect(is_name(row.owner) or row.owner == SHADOWS, "session.owner", _A_NAME)
    _expect(is_name(row.route), "session.route", _A_NAME)
    check_dialect(row.dialect, "session.dialect")
    _expect(len(row.secret) == 32, "session.secret", "32 bytes")
    for name in ("created_at", "updated_at", "archived_at"):
        _check_number(getattr(row, name) or 0, f"session.{name}", TIME_MOST)
    for name in ("last_seq", "bytes"):
        _check_number(getattr(row, name), f"session.{name}")


def check_leg(leg: BackendBinding, place: str) -> None:
    """Check the names and numbers of a leg at a place of the archive.

    Raises:
        ValueError: one cannot be; the text names the field and says what it may be.
    """
    _expect(is_name(leg.backend), f"{place}.backend", _A_NAME)
    if leg.native_id is not None:
        what = f"{_AN_ID} without control characters"
        _expect(_is_plain_id(leg.native_id), f"{place}.native_id", what)
    resumes = leg.resumes
    _expect(
        resumes is None or 0 <= resumes < leg.number, f"{place}.resumes", "an earlier leg's number"
    )


def check_alias(kind: str, name: str, place: str) -> None:
    """Check an alias at a place of the archive.

    Raises:
        ValueError: it cannot be; the text says what it may be.
    """
    known = next((one for one in AliasKind if one == kind), None)
    if known is None:
        raise ValueError(f"`{place}` has the kind `{kind[:40]}`: known are {', '.join(AliasKind)}")
    fits, what = _ALIASES[known]
    _expect(fits(name), f"{place}` of the kind `{kind}", what)


def check_codec(codec: CodecRow, place: str) -> None:
    """Check how a dialect shows the session, at a place of the archive.

    Raises:
        ValueError: it cannot be; the text names the field and says what it may be.
    """
    check_dialect(codec.dialect, f"{place}.dialect")
    _check_number(codec.version, f"{place}.version", 2**31 - 1)
    try:
        settings = parse_json(codec.settings)
    except JsonError:
        settings = None
    named = isinstance(settings, dict) and isinstance(settings.get("agent"), str)
    _expect(named, f"{place}.settings", "a JSON object with the text `agent`")


def check_dialect(dialect: str, place: str) -> None:
    """Check the name of a dialect.

    Raises:
        ValueError: there is none of this name.
    """
    _expect(dialect in DIALECTS, place, f"one of {', '.join(DIALECTS)}")


def check_entry(entry: ev.Entry) -> None:
    """Check the time and the ids of an entry.

    Raises:
        ValueError: one cannot be; the text names the field and says what it may be.
    """
    _check_number(entry.at, "at", TIME_MOST)
    event = entry.event
    for name in type(event).model_fields:
        if name.endswith("_id") or name == "predecessor":
            value = getattr(event, name)
            _expect(value is None or _is_id(value), name, _AN_ID)


def _check_number(value: int, place: str, most: int = MOST_COUNT) -> None:
    _expect(0 <= value <= most, place, f"a whole number from 0 to {most}")


def _expect(fits: bool, place: str, what: str) -> None:
    if not fits:
        raise ValueError(f"`{place}` is not {what}")
