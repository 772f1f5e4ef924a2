"""A chat whose page has messages of another session: moved by its URL, forked, or of a server that
was set up anew."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.faces.test_refused_messages import PAGES, AguiPage, Face, names
from tests.support.dragoman import starts

serve = starts(Face)


def ids_in(text: str) -> set[str]:
    """Return the ids of the agent's messages in a stream."""
    return set(re.findall(r'"messageId":"(msg-[^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=names)
async def test_no_id_of_an_answer_is_one_of_the_history_or_of_another_chat(
    serve: Any, page: type[AguiPage]
) -> None:
    face = await serve("memory:")
    seen: set[str] = set()
    for chat in ("one", "two"):
        client = page(face)
        client.chat = chat
        # As each chat of an earlier release began, and as a fork has it.
        for name in ("msg-1", *sorted(seen)):
            client.hear("An answer from elsewhere.")
            client.messages[-1]["id"] = name
        text = await client.go_on("hello")
        assert "hello" in json.dumps(text)
        new = ids_in(text)
        assert new
        assert new.isdisjoint({one["id"] for one in client.messages[:-1]})
        assert new.isdisjoint(seen)
        seen |= new
