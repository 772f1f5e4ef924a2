"""What the scripted eve accepts, by generation: what its recordings show, in the recorded words.

Each refusal stands in `errors.json` or `stream-cursor.json` of the generation's recordings; the
order of the checks is the one that they show. Unknown members are ignored (eve page, section 4.1).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy.scripted.backend import Refusal


def bad(message: str) -> Refusal:
    """Return the refusal of a request whose form is wrong."""
    return Refusal(400, "", message)


@dataclass(frozen=True, slots=True)
class EvePost:
    """A valid body of a create or a follow-up.

    Args:
        text: the message as text, files as their descriptions; None without a message.
        parts: the message as `message.received` shows it.
        attachments: a description of each file.
        answers: the `inputResponses`.
        structured: whether a result of a schema is asked for.
        token: the `continuationToken`.
    """

    text: str | None = None
    parts: tuple[Mapping[str, object], ...] = ()
    attachments: tuple[str, ...] = ()
    answers: tuple[Mapping[str, str], ...] = ()
    structured: bool = False
    token: str | None = None


@dataclass(frozen=True, slots=True)
class ScriptedStreamQuery:
    """A valid query of a stream (section 7.1)."""

    start: int
    tail: bool
    follow: bool
    control: bool

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "ScriptedStreamQuery":
        """Read a query; raises `Refusal` for a start that is not an integer."""
        text = query.get("startIndex", "0")
        try:
            start = int(text)
        except ValueError:
            start = None
        if start is None or not text.lstrip("-").isdecimal():
            raise bad("Expected startIndex to be an integer.")
        return cls(
            start=start,
            tail=query.get("includeTailIndex") in ("1", "true"),
            follow=query.get("follow") not in ("0", "false"),
            control=query.get("streamControlVersion") == "1",
        )


def parse_body(body: bytes) -> Any:
    """Return the JSON of a body; raises `Refusal` where it is not JSON."""
    try:
        return json.loads(body)
    except ValueError:
        raise bad("Invalid JSON body.") from None


def parse_create(body: bytes, *, tokens: bool) -> EvePost:
    """Read the body of a create (section 4); `tokens` says that it is one of generation T."""
    if not body and not tokens:
        return EvePost()
    value = parse_body(body)
    if tokens:
        if not isinstance(value, dict) or value.get("message") in (None, "", []):
            raise bad("Missing or empty 'message' field.")
    else:
        if not isinstance(value, dict):
            raise bad("Expected a JSON object.")
        if "continuationToken" in value:
            raise bad("Session-ID routes do not accept 'continuationToken'.")
        if "inputResponses" in value:
            raise bad("'inputResponses' is only accepted for an existing session.")
    text, parts, attachments = _message(value)
    _common(value)
    if tokens and value.get("mode", "conversation") not in ("conversation", "task"):
        raise bad("Expected 'mode' to be either 'conversation' or 'task'.")
    capabilities = value.get("capabilities")
    if capabilities is not None and not (
        isinstance(capabilities, dict)
        and capabilities.keys() <= {"requestInput"}
        and isinstance(capabilities.get("requestInput", True), bool)
    ):
        raise bad("Expected 'capabilities.requestInput' to be a boolean when provided.")
    if "operationId" in value and not tokens:
        raise bad("operationId requires an authenticated principal.")
    if "forwardedPrincipal" in value:
        raise Refusal(403, "", "This deployment does not accept a forwarded principal.")
    return EvePost(text, parts, attachments, structured="outputSchema" in value)


def parse_follow_up(body: bytes, *, tokens: bool) -> EvePost:
    """Read the body of a follow-up (section 5)."""
    value = parse_body(body)
    if not isinstance(value, dict):
        value = {}
    token = value.get("continuationToken")
    if tokens:
        if not isinstance(token, str) or not token:
            raise bad("Missing or empty 'continuationToken' field.")
    elif token is not None:
        raise bad("Session-ID routes do not accept 'continuationToken'.")
    if value.get("message") in ("", []):
        # An empty message counts as absent.
        value = {name: member for name, member in value.items() if name != "message"}
    responses = value.get("inputResponses")
    if "message" in value and responses is not None and not tokens:
        raise bad("'message' and 'inputResponses' are mutually exclusive.")
    if "message" not in value and responses is None:
        either = "Expected a non-empty 'message' or a non-empty 'inputResponses' array."
        both = "Expected a non-empty 'message', a non-empty 'inputResponses' array, or both."
        raise bad(both if tokens else either)
    if not tokens and value.get("turnPolicy", "steer") not in ("queue", "steer"):
        raise bad("Expected 'turnPolicy' to be either 'queue' or 'steer'.")
    said, parts, attachments = _message(value)
    _common(value)
    answers: tuple[Mapping[str, str], ...] = ()
    if responses is not None:
        if not isinstance(responses, list) or not responses:
            raise bad("Expected 'inputResponses' to be a non-empty array.")
        if not all(map(_is_response, responses)):
            raise bad("Expected every 'inputResponses' entry to match the HITL response schema.")
        answers = tuple(responses)
    return EvePost(
        said,
        parts,
        attachments,
        answers,
        structured="outputSchema" in value,
        token=token,
    )


def _is_response(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() <= {"requestId", "optionId", "text"}
        and "requestId" in value
        and all(isinstance(member, str) for member in value.values())
    )


def _common(value: Mapping[str, Any]) -> None:
    context = value.get("clientContext")
    fits = context is None or isinstance(context, str | dict)
    if isinstance(context, list):
        fits = all(isinstance(item, str) for item in context)
    if not fits:
        raise bad("Expected 'clientContext' to be a string, string array, or JSON object.")
    if "outputSchema" in value and not isinstance(value["outputSchema"], dict):
        raise bad("Expected 'outputSchema' to be a JSON-serializable object.")


def _message(
    value: Mapping[str, Any],
) -> tuple[str | None, tuple[Mapping[str, object], ...], tuple[str, ...]]:
    if "message" not in value:
        return None, (), ()
    message = value["message"]
    if message in ("", []):
        raise bad("Expected 'message' to be non-empty when provided.")
    if isinstance(message, str):
        return message, ({"text": message, "type": "text"},), ()
    if not isinstance(message, list):
        raise bad("Expected 'message' to be a string or an array of text/file parts.")
    lines, parts, attachments = [], [], []
    for part in message:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            if not part.get("text") or not isinstance(part["text"], str):
                raise bad("Text parts require a non-empty 'text' string.")
            lines.append(part["text"])
            parts.append({"text": part["text"], "type": "text"})
        elif kind == "file":
            media = part.get("mediaType")
            if not isinstance(media, str) or not media:
                raise bad("File parts require a non-empty 'mediaType' string.")
            name = part.get("filename") or media
            lines.append(f"[file: {name} ({media})]")
            attachments.append(f"{name} ({media})")
            parts.append({"type": "file", "mediaType": media, "filename": name})
        else:
            text = f"Unsupported message part type {json.dumps(kind)}. Use 'text' or 'file'."
            raise bad(text)
    return "\n".join(lines), tuple(parts), tuple(attachments)
