"""Requests of the managed-agents face: what is read of them, and what is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from multidict import MultiDict

from adapters.managed_agents import requests
from adapters.managed_agents.requests import PageQuery, page_cursor, parse_create, parse_events
from adapters.model import events as ev
from adapters.wire.errors import DragomanError, ErrorCode
from adapters.wire.jsonvalue import format_json

TEXT = [{"type": "text", "text": "hello"}]


def events(*items: Any) -> requests.EventBatch:
    return parse_events(format_json({"events": [*items]}))


def message(**more: Any) -> dict[str, Any]:
    return {"type": "user.message", "content": TEXT, **more}


def test_a_batch_of_each_kind_of_event_is_read_in_order() -> None:
    batch = events(
        {"type": "user.interrupt", "session_thread_id": "sthr_1"},
        {"type": "user.tool_confirmation", "tool_use_id": "e1", "result": "deny"},
        {"type": "user.custom_tool_result", "custom_tool_use_id": "e2", "is_error": True},
        {"type": "user.tool_result", "tool_use_id": "e3", "content": TEXT},
        {
            "type": "user.define_outcome",
            "description": "Short.",
            "rubric": {"type": "text", "content": "At most ten words."},
        },
        message(),
        {"type": "system.message", "content": TEXT},
    )
    assert [(one.type, one.tool) for one in batch.events] == [
        ("user.interrupt", ""),
        ("user.tool_confirmation", "e1"),
        ("user.custom_tool_result", "e2"),
        ("user.tool_result", "e3"),
        ("user.define_outcome", ""),
        ("user.message", ""),
    ]
    assert batch.events[0].thread == "sthr_1"
    assert batch.events[1].decision == "deny"
    assert batch.events[2].is_error
    assert batch.events[-1].system == (ev.Text(text="hello"),)


def test_files_of_each_kind_are_read() -> None:
    data = base64.b64encode(b"\x89PNG").decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    url = {"type": "url", "url": "https://plants.example/a.pdf"}
    batch = events(
        message(
            content=[
                {"type": "image", "source": source},
                {"type": "document", "source": url, "title": "a.pdf", "context": "The bed."},
                {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
                {
                    "type": "document",
                    "source": {"type": "text", "media_type": "text/plain", "data": "Basil"},
                },
            ]
        )
    )
    picture, linked, known, words = batch.events[0].content
    assert isinstance(picture, ev.File)
    assert (picture.media_type, picture.size) == ("image/png", 4)
    assert isinstance(linked, ev.File)
    assert (linked.name, linked.extra) == ("a.pdf", {"context": "The bed."})
    assert isinstance(known, ev.File)
    assert known.ref == ev.FileId(dialect="managed-agents", id="file_1")
    assert isinstance(words, ev.File)
    assert words.media_type == "text/plain"
    assert sorted(batch.blobs.values()) == [b"Basil", b"\x89PNG"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"{}", "events: must be a non-empty list"),
        (b'{"events": []}', "events: must be a non-empty list"),
        (b'{"events": [7]}', "events[0].type: must be one of"),
        (b'{"events": [{"type": "user.nonsense"}]}', "events[0].type: must be one of"),
        (b'{"events": [{"type": "agent.message"}]}', "events[0].type: must be one of"),
        (b'{"events": [{"type": "user.message"}]}', "events[0].content: must be a non-empty"),
        (b'{"events": [{"type": "user.message", "content": "x"}]}', "events[0].content: must be"),
        (b'{"events": [{"type": "user.message", "content": []}]}', "events[0].content: must be"),
        (
            b'{"events": [{"type": "user.message", "content": [{"type": "redacted"}]}]}',
            "events[0].content[0].type: must be one of",
        ),
        (
            b'{"events": [{"type": "user.message", "content": [{"type": "video"}]}]}',
            "events[0].content[0].type: must be one of",
        ),
        (
            b'{"events": [{"type": "user.message", "content": [{"type": "text"}]}]}',
            "events[0].content[0].text: must be a string",
        ),
        (
            b'{"events": [{"type": "user.message", "content": [{"type": "image"}]}]}',
            "events[0].content[0].source: must be an object",
        ),
        (b'{"events": [{"type": "user.tool_confirmation"}]}', "events[0].result: must be"),
        (
            b'{"events": [{"type": "user.tool_confirmation", "result": "allow"}]}',
            "events[0].tool_use_id",
        ),
        (
            b'{"events": [{"type": "user.tool_confirmation", "result": "allow",'
            b' "tool_use_id": "e", "deny_message": "no"}]}',
            "events[0].deny_message",
        ),
        (b'{"events": [{"type": "user.define_outcome"}]}', "events[0].description"),
    ],
)
def test_what_is_not_an_event_is_refused_with_its_place(body: bytes, words: str) -> None:
    with pytest.raises(DragomanError) as refused:
        parse_events(body)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert words in refused.value.message


def test_a_system_message_stands_last_and_behind_what_it_accompanies() -> None:
    system = {"type": "system.message", "content": TEXT}
    assert [one.type for one in events(system).events] == ["system.message"]
    for items in ([system, message()], [{"type": "user.interrupt"}, system]):
        with pytest.raises(DragomanError, match=r"system\.message"):
            events(*items)


def test_a_tool_use_is_answered_once_in_a_batch() -> None:
    answer = {"type": "user.tool_confirmation", "tool_use_id": "e1", "result": "allow"}
    with pytest.raises(DragomanError, match="answered once"):
        events(answer, answer)


def test_a_batch_has_a_limit() -> None:
    assert len(events(*[message()] * 100).events) == 100
    with pytest.raises(DragomanError, match="at most 100 events"):
        events(*[message()] * 101)


def create(**members: Any) -> requests.SessionCreate:
    return parse_create(json.dumps({"agent": "a", "environment_id": "e", **members}).encode())


def test_a_create_is_read() -> None:
    found = create(agent={"type": "agent", "id": "a", "version": 3}, title="x", betas=["y"])
    assert (found.agent, found.version, found.environment, found.title) == ("a", 3, "e", "x")
    found = create(initial_events=[message()], resources=[], vault_ids=[], budget=None)
    assert [one.type for one in found.initial.events] == ["user.message"]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"agent": None}, "agent: must be"),
        ({"agent": {"id": "a"}}, "agent: must be"),
        ({"agent": {"type": "agent", "id": "a", "version": "3"}}, "agent.version"),
        ({"environment_id": None}, "environment_id"),
        ({"title": 7}, "title: must be a string"),
        ({"metadata": {"a": 1}}, "metadata: a value is a string"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "at most 16 members"),
        ({"metadata": {"k" * 65: "x"}}, "at most 64 characters"),
        ({"metadata": {"k": "x" * 513}}, "at most 512 characters"),
        ({"initial_events": [message()] * 51}, "at most 50 events"),
        ({"initial_events": [{"type": "user.interrupt"}]}, "initial_events[0].type"),
    ],
)
def test_a_wrong_create_is_refused_with_its_place(members: dict[str, Any], words: str) -> None:
    with pytest.raises(DragomanError) as refused:
        create(**members)
    assert words in refused.value.message


@pytest.mark.parametrize(
    "members",
    [
        {"resources": [{"type": "file", "file_id": "f"}]},
        {"vault_ids": ["v"]},
        {"budget": {"type": "limit"}},
        {"agent": {"type": "agent_with_overrides", "id": "a", "system": "x"}},
    ],
)
def test_what_only_the_service_has_is_not_supported(members: dict[str, Any]) -> None:
    with pytest.raises(DragomanError) as refused:
        create(**members)
    assert refused.value.code is ErrorCode.NOT_SUPPORTED


def listed(**query: str) -> PageQuery:
    names = {name.replace("__", "[") + ("]" if "__" in name else ""): query[name] for name in query}
    return requests.parse_list(
        MultiDict(names), default=1000, most=1000, order="asc", array="types"
    )


def test_ranges_are_exact_to_the_microsecond() -> None:
    at = 1_000_000_000_000_000
    for name, inside in (
        ("created_at__gt", (False, False, True)),
        ("created_at__gte", (False, True, True)),
        ("created_at__lt", (True, False, False)),
        ("created_at__lte", (True, True, False)),
    ):
        for time in (
            "2001-09-09T01:46:40Z",
            "2001-09-09T01:46:40+00:00",
            "2001-09-09T01:46:40 00:00",
        ):
            found = listed(**{name: time}).created
            assert tuple(found.has(at + more) for more in (-1, 0, 1)) == inside, (name, time)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"limit": "0"}, "limit: must be a positive integer"),
        ({"limit": "many"}, "limit: must be a positive integer"),
        ({"order": "up"}, "order: must be"),
        ({"page": "x"}, "page: must be the `next_page`"),
        ({"page": page_cursor(1, 2, "desc")}, "another `order`"),
        ({"created_at__gte": "yesterday"}, "must be an RFC 3339 time"),
    ],
)
def test_a_wrong_query_is_refused(query: dict[str, str], words: str) -> None:
    with pytest.raises(DragomanError) as refused:
        listed(**query)
    assert words in refused.value.message


def test_arrays_come_in_either_spelling() -> None:
    query = MultiDict([("types[]", "agent.message"), ("types", "user.message"), ("beta", "true")])
    found = requests.parse_list(query, default=9, most=9, order="asc", array="types")
    assert found.names == {"agent.message", "user.message"}


def test_previews_are_of_two_kinds() -> None:
    two = MultiDict([("event_deltas[]", "agent.message"), ("event_deltas[]", "agent.thinking")])
    assert requests.parse_previews(two) == {"agent.message", "agent.thinking"}
    for wrong in (MultiDict({"event_deltas[]": "x"}), MultiDict([("event_deltas", "x")] * 101)):
        with pytest.raises(DragomanError, match="event_deltas"):
            requests.parse_previews(wrong)
