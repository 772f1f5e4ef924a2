"""What is on the wire, read: objects of records and of answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from adapters.eve import wire
from adapters.eve.client.state import StreamRecord
from adapters.model import events as ev
from adapters.model import raw
from adapters.model.base import Response
from adapters.wire.errors import code_of
from adapters.wire.jsonvalue import int_of, number_of

_SENSITIVE = frozenset({"continuationToken", "childContinuationToken", "webhookUrl"})
"""Members that are credentials (sections 1 and 9.4): they never leave the codec."""

C_KEYS = frozenset({"sequence", "turnId"})

CS_KEYS = C_KEYS | {"stepIndex"}

FAILURE_KEYS = CS_KEYS | {"code", "message", "details"}

_USAGE_KEYS = frozenset(
    {"inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "costUsd"}
)


def digest_of(*texts: str | None) -> str:
    """Return what tells texts from others, and is short."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(b"\1" if text is None else text.encode() + b"\0")
    return digest.hexdigest()


def refusal(response: Response) -> ev.ErrorInfo:
    """Return what an error body says (section 2); one without `error` is quoted."""
    if response.status == 401:
        return raw.credential_refused(response)
    body = json_body(response)
    message = body.get("error")
    if not isinstance(message, str):
        message = body.get("message")
    details = {k: v for k, v in body.items() if k in ("errorId", "violations", "eveVersion")}
    if isinstance(message, str) and message:
        return raw.refused(response, body.get("code"), f"eve: {message}", details)
    return raw.quoted(response)


def json_body(response: Response) -> dict[str, Any]:
    """Return the object in a body, if it is one."""
    value = raw.json_of(response)
    return value if isinstance(value, dict) else {}


def sequence_of(record: StreamRecord, before: int) -> int:
    """Return the number of the turn of a record, else the one before."""
    number = record.data.get("sequence")
    return number if isinstance(number, int) and not isinstance(number, bool) else before


def clean(value: Any) -> Any:
    """Return a copy without credentials."""
    if isinstance(value, dict):
        return {k: clean(v) for k, v in value.items() if k not in _SENSITIVE}
    if isinstance(value, list):
        return [clean(item) for item in value]
    return value


def rest_of(data: dict[str, Any], known: Iterable[str]) -> dict[str, Any] | None:
    """Return the members of an object that the model does not know, without credentials."""
    rest = {k: clean(v) for k, v in data.items() if k not in known and k not in _SENSITIVE}
    return rest or None


def beside_of(
    frame: dict[str, Any], known: Iterable[str], rest: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return the unknown members of an object in a frame, and those of the frame."""
    outer = rest_of(frame, known)
    return rest if outer is None else {**(rest or {}), wire.FRAME: outer}


def settlement_of(data: dict[str, Any]) -> ev.InteractionOutcome:
    """Return what an approval was decided to be."""
    return "approved" if data.get("outcome") == "approved" else "denied"


def error_of(data: dict[str, Any]) -> ev.ErrorInfo:
    """Return the error that a record tells."""
    code, message, details = data.get("code"), data.get("message"), data.get("details")
    words = code if isinstance(code, str) and code else "failed"
    return ev.ErrorInfo(
        code=code_of(code, "failed"),
        message=message if isinstance(message, str) else words,
        details=clean(details) if isinstance(details, dict) and details else None,
    )


def usage_of(value: object) -> ev.Usage | None:
    """Return the usage that a record tells."""
    if not isinstance(value, dict):
        return None
    return ev.Usage(
        input_tokens=int_of(value.get("inputTokens")),
        output_tokens=int_of(value.get("outputTokens")),
        cache_read_tokens=int_of(value.get("cacheReadTokens")),
        cache_write_tokens=int_of(value.get("cacheWriteTokens")),
        cost_usd=number_of(value.get("costUsd")),
        extra=rest_of(value, _USAGE_KEYS),
    )
