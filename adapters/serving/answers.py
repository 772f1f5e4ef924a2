"""Answers: what a payload decides or says to a request. One vocabulary for all faces.

No refusal quotes a payload: it may hold the value of a sealed request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from adapters.model.events import InteractionRequested
from adapters.model.interactions import option_named, polarity
from adapters.wire.errors import ClientProtocolError, NotSupported


def decided(payload: Any, event: InteractionRequested, *, takes: str) -> Mapping[str, Any]:
    """Return what a payload decides, as fields of the answer: `{"approved": …}`, a boolean, an
    option, or one word. `takes` says in a refusal what the request takes.

    Raises:
        ClientProtocolError: it decides nothing.
        NotSupported: it changes the input of a call.
    """
    said = payload if isinstance(payload, dict) else {"approved": payload}
    if "editedArgs" in said:
        raise NotSupported("`editedArgs`: no backend takes the input of a call from a person.")
    option = said.get("optionId")
    approved, scope, reason = said.get("approved"), said.get("scope"), said.get("reason")
    if isinstance(approved, str) and not isinstance(option, str):
        chosen = option_named(approved, event.options or ())
        option = None if chosen is None else chosen.id
    if isinstance(option, str):
        return {"option_ids": (option,)}
    decision = polarity(approved)[0] if isinstance(approved, str) else None
    if isinstance(approved, bool):
        decision = "allow" if approved else "deny"
    if decision is None or scope not in (None, "once", "session", "always"):
        refuse(event, f"takes {takes}")
    if reason is not None and not isinstance(reason, str):
        refuse(event, "takes a string as `reason`")
    return {"decision": decision, "scope": scope, "reason": reason or None}


def answered(payload: Any, event: InteractionRequested, *, place: str) -> Mapping[str, Any]:
    """Return what a payload answers, as fields of the answer: words, an option, or an object with
    either. `place` says in a refusal where it stands.

    Raises:
        ClientProtocolError: it answers nothing.
    """
    if isinstance(payload, dict):
        ids = payload.get("optionIds")
        if isinstance(ids, list) and ids and all(isinstance(name, str) for name in ids):
            return {"option_ids": tuple(ids)}
        keys = ("optionId", "text", "answer", "value")
        payload = next((payload[key] for key in keys if key in payload), None)
    if not isinstance(payload, str) or not payload:
        refuse(event, f"takes a non-empty string as {place}")
    chosen = option_named(payload, event.options or ())
    return {"text": payload} if chosen is None else {"option_ids": (chosen.id,)}


def refuse(event: InteractionRequested, why: str) -> NoReturn:
    """Refuse an answer; its request stays open.

    Raises:
        ClientProtocolError: as it is.
    """
    raise ClientProtocolError(f"Request `{event.request_id}` {why}.")
