"""Hooks as they are delivered: the form of outbound webhooks (section 3.5), which our own ways in
use too."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from adapters.contract.receiving import Delivery, Receiver
from adapters.hermes_agent import wire
from adapters.wire.errors import ClientProtocolError
from adapters.wire.jsonvalue import (
    JsonError,
    format_json,
    mended_json,
    name_of,
    parse_json,
    time_of,
)

SIGNATURE = "X-Hermes-Signature-256"


def read(body: bytes) -> Delivery:
    """Return what a body delivers.

    Raises:
        ClientProtocolError: it is not a hook.
    """
    value: Any
    try:
        value = parse_json(body)
    except JsonError:
        try:
            value = mended_json(body)
        except JsonError as error:
            raise ClientProtocolError(f"A hook is one JSON object: {error}.") from None
    if not isinstance(value, dict):
        raise ClientProtocolError("A hook is one JSON object.")
    if name_of(value.get("hook_event_name")) is None:
        raise ClientProtocolError(
            "A hook has its name in `hook_event_name`: send what Hermes gives a shell hook."
        )
    extra = value.get("extra")
    if extra is not None and not isinstance(extra, dict):
        raise ClientProtocolError("`extra` of a hook is an object.")
    waits = wire.waits_for(value)
    return Delivery(
        frame=body,
        sessions=wire.sessions_of(value),
        begins=value["hook_event_name"] in wire.BEGINS,
        id=name_of(value.get("delivery_id")),
        at=time_of(value.get("timestamp")),
        key=None if waits is None else wire.call_key(value),
        waits=waits,
        test=name_of((extra or {}).get(wire.TEST)),
    )


def signed(headers: Mapping[str, str], body: bytes, secret: bytes) -> bool:
    """Say whether the sender of a body has the secret: the HMAC-SHA256 of its bytes."""
    given = headers.get(SIGNATURE, "")
    wanted = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def block(reason: str) -> bytes:
    """Return the answer that blocks a call."""
    return format_json({"decision": "block", "message": reason})


RECEIVER = Receiver(read, signed, block, signature=SIGNATURE)
