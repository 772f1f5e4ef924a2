"""Answers: what a payload decides or says to a request."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.model.events import MAIN, InteractionRequested, Option
from adapters.serving.answers import answered, decided
from adapters.wire.errors import ClientProtocolError, NotSupported

ASKED = InteractionRequested(
    thread_id=MAIN,
    request_id="r",
    kind="approval",
    prompt="Delete it?",
    options=(Option(id="o1", label="Delete all"), Option(id="o2", label="Keep")),
)
SECRET = "hunter2"
"""What stands in payloads that are refused."""


def decision(word: str, scope: str | None = None, reason: str | None = None) -> dict[str, Any]:
    return {"decision": word, "scope": scope, "reason": reason}


@pytest.mark.parametrize(
    ("payload", "fields"),
    [
        (True, decision("allow")),
        (False, decision("deny")),
        ("approve", decision("allow")),
        ("No", decision("deny")),
        ("Delete all", {"option_ids": ("o1",)}),
        ("o2", {"option_ids": ("o2",)}),
        ({"approved": True, "scope": "session"}, decision("allow", "session")),
        ({"approved": False, "reason": "too much"}, decision("deny", reason="too much")),
        ({"approved": False, "reason": ""}, decision("deny")),
        ({"approved": "Keep"}, {"option_ids": ("o2",)}),
        # An option is named by its id, and counts before the word.
        ({"approved": "no", "optionId": "o9"}, {"option_ids": ("o9",)}),
    ],
)
def test_a_payload_decides(payload: Any, fields: dict[str, Any]) -> None:
    assert decided(payload, ASKED, takes="true or false") == fields


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (None, "takes true or false"),
        (1, "takes true or false"),
        ([SECRET], "takes true or false"),
        (SECRET, "takes true or false"),
        ({}, "takes true or false"),
        ({"approved": SECRET}, "takes true or false"),
        ({"optionId": 3, "approved": None}, "takes true or false"),
        ({"approved": True, "scope": SECRET}, "takes true or false"),
        ({"approved": True, "reason": [SECRET]}, "takes a string as `reason`"),
    ],
)
def test_a_payload_that_decides_nothing_is_refused_without_a_quote(payload: Any, why: str) -> None:
    with pytest.raises(ClientProtocolError) as refused:
        decided(payload, ASKED, takes="true or false")
    assert refused.value.whole == f"Request `r` {why}."


def test_the_input_of_a_call_is_not_taken_from_a_person() -> None:
    with pytest.raises(NotSupported) as refused:
        decided({"approved": True, "editedArgs": {"key": SECRET}}, ASKED, takes="true")
    assert "`editedArgs`" in refused.value.whole
    assert SECRET not in refused.value.whole


@pytest.mark.parametrize(
    ("payload", "fields"),
    [
        ("blue", {"text": "blue"}),
        ("Keep", {"option_ids": ("o2",)}),
        ({"optionIds": ["a", "b"]}, {"option_ids": ("a", "b")}),
        ({"optionIds": [], "text": "blue"}, {"text": "blue"}),
        ({"optionIds": ["a", 2], "text": "blue"}, {"text": "blue"}),
        ({"optionId": "o1", "text": "blue"}, {"option_ids": ("o1",)}),
        ({"text": "blue", "answer": "red"}, {"text": "blue"}),
        ({"answer": "red", "value": "blue"}, {"text": "red"}),
        ({"value": "o2"}, {"option_ids": ("o2",)}),
    ],
)
def test_a_payload_answers(payload: Any, fields: dict[str, Any]) -> None:
    assert answered(payload, ASKED, place="`payload`") == fields


@pytest.mark.parametrize(
    "payload", [None, "", 7, True, [SECRET], {}, {"key": SECRET}, {"text": [SECRET]}, {"text": ""}]
)
def test_a_payload_that_answers_nothing_is_refused_without_a_quote(payload: Any) -> None:
    with pytest.raises(ClientProtocolError) as refused:
        answered(payload, ASKED, place="`payload`")
    assert refused.value.whole == "Request `r` takes a non-empty string as `payload`."
