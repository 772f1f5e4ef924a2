"""Requests that carry the whole conversation: what is new in one, and how others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from multidict import MultiDict

from adapters.contract.faces import Action, Incoming, Route, Static
from adapters.model.base import Response
from adapters.model.events import Content, Text
from adapters.serving.conversation import (
    MEMORY,
    ConversationBody,
    all_other_paths,
    is_of_page,
    last_words,
    reads,
    session_in_path,
    words_of,
)
from adapters.serving.members import MAX_PARTS, refuse
from adapters.serving.messages import PersonMessage
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode


def content(message: Mapping[str, Any], place: str) -> tuple[Content, ...]:
    if not isinstance(message.get("content"), str):
        refuse(f"`{place}.content` is not a string.")
    return (Text(text=message["content"]),)


READ = reads(content)


def user(name: str, text: Any = "hi") -> dict[str, Any]:
    return {"role": "user", "id": name, "content": text}


def words(name: str, text: str = "hi") -> PersonMessage:
    return PersonMessage(name, (Text(text=text),))


AGENT = {"role": "assistant", "id": "a"}
SYSTEM = {"role": "system", "content": "Be kind."}


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([], ()),
        ([user("1")], (words("1"),)),
        ([user("1"), AGENT], ()),
        ([user("1"), AGENT, user("2", "a"), user("3", "b")], (words("2", "a"), words("3", "b"))),
        # Roles that are neither the person's nor the agent's stand between them.
        ([AGENT, user("1"), SYSTEM, user("2"), SYSTEM], (words("1"), words("2"))),
        # What stands before the words of the agent is not read at all.
        ([7, user("", 7), AGENT, user("2")], (words("2"),)),
    ],
)
def test_the_words_behind_those_of_the_agent_are_new(
    messages: list[Any], found: tuple[PersonMessage, ...]
) -> None:
    assert last_words(messages, {"assistant", "tool"}, READ) == found


def test_an_earlier_one_of_the_new_words_may_be_wrong() -> None:
    wrong, last = last_words([user("1", 7), user("2")], {"assistant"}, READ)
    assert (wrong.id, wrong.content, last) == ("1", (), words("2"))
    assert wrong.wrong is not None
    assert wrong.wrong.whole == "`messages[0].content` is not a string."


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([AGENT, "hunter2"], "`messages[1]` is not an object."),
        ([AGENT, None, user("1")], "`messages[1]` is not an object."),
        ([AGENT, user("1"), user("2", 7)], "`messages[2].content` is not a string."),
        ([user("1"), user("")], "`messages[1].id` is not a string of 1 to 512 characters."),
        # An id is needed of each, since it says which messages are known.
        ([user(""), user("2")], "`messages[0].id` is not a string of 1 to 512 characters."),
        (
            [user(f"{number}") for number in range(MAX_PARTS + 1)],
            "`messages` has more than 256 of the user at its end.",
        ),
    ],
)
def test_a_refusal_of_new_words_names_their_place(messages: list[Any], why: str) -> None:
    with pytest.raises(ClientProtocolError) as refused:
        last_words(messages, {"assistant"}, READ)
    assert refused.value.whole == why


def test_as_many_new_words_as_the_limit_are_read() -> None:
    messages = [AGENT, *(user(f"{number}") for number in range(MAX_PARTS))]
    assert len(last_words(messages, {"assistant"}, READ)) == MAX_PARTS


def test_earlier_words_are_read_by_their_ids() -> None:
    messages = [7, user("1", "a"), AGENT, {**AGENT, "id": "3"}, user("2"), user("3", 7)]
    first, wrong = words_of(messages, {"1", "3", "gone"}, READ)
    assert first == words("1", "a")
    assert wrong.wrong is not None
    assert wrong.wrong.whole == "`messages[5].content` is not a string."


def conversation(*context: str) -> ConversationBody:
    return ConversationBody(
        words=(),
        earlier=lambda _: [],
        before=list,
        known=(),
        context=context,
        ignored=(),
        history=False,
        blobs={},
    )


def test_the_context_goes_with_words_unless_the_agent_has_it() -> None:
    said = conversation("It rains.")
    both = [words("1", "a"), words("2", "b")]
    message = said.message_of(both)
    assert message.content == (Text(text="a"), Text(text="b"))
    assert (message.policy, message.client_context) == ("reject", ["It rains."])
    assert said.message_of(both, conversation("It snows.").digest).client_context is not None
    assert said.message_of(both, said.digest).client_context is None
    assert conversation().message_of(both).client_context is None


def incoming(method: str = "GET", *, memory: str = "session", **names: str) -> Incoming:
    return Incoming(
        method=method,
        path="",
        names=names,
        query=MultiDict(),
        headers=MultiDict(),
        served={MEMORY: memory},
    )


def test_a_request_says_whose_history_counts_and_which_session() -> None:
    assert is_of_page(incoming(memory="page"))
    assert not is_of_page(incoming())
    target: Any = session_in_path(incoming(session="s-7"), None)
    assert target.name == "s-7"


ELSEWHERE = SimpleNamespace(elsewhere=lambda path, *, known: None)
OTHERS = all_other_paths(
    lambda: [
        Route(
            method=method,
            path=path,
            needs=Action.READ,
            does=Static(lambda _, __: Response(status=204)),
        )
        for method, path in (("POST", "/agent/run"), ("GET", "/threads/{session}"))
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "code", "why"),
    [
        (
            "GET",
            "agent/run",
            ErrorCode.METHOD_NOT_ALLOWED,
            "`/agent/run` does not take GET. Write `POST /agent/run` below the base URL.",
        ),
        (
            "POST",
            "threads/7",
            ErrorCode.METHOD_NOT_ALLOWED,
            "`/threads/7` does not take POST. Write `GET /threads/7` below the base URL.",
        ),
        (
            "POST",
            "agent/run/",
            ErrorCode.NOT_FOUND,
            "There is no `POST /agent/run/` here. Write `POST /agent/run` below the base URL.",
        ),
        (
            "GET",
            "x" * 300,
            ErrorCode.NOT_FOUND,
            f"There is no `GET /{'x' * 199}` here. "
            "Below the base URL there are `/agent/run` and what is below these.",
        ),
    ],
)
def test_every_other_path_is_refused_with_what_to_write(
    method: str, path: str, code: ErrorCode, why: str
) -> None:
    assert (OTHERS.method, OTHERS.path, OTHERS.needs) == ("*", "/{tail:.*}", Action.READ)
    place: Any = ELSEWHERE
    assert isinstance(OTHERS.does, Static)
    with pytest.raises(DragomanError) as refused:
        OTHERS.does.answer(incoming(method, tail=path), place)
    assert (refused.value.code, refused.value.whole) == (code, why)
