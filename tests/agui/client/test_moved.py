"""A session that was moved to an AG-UI agent: what was said before is part of its conversation."""

from __future__ import annotations

from adapters.agui.client import AguiClient
from adapters.driving.transcript import INTERRUPTED
from adapters.model import events as ev
from adapters.model.conversation import Conversation
from adapters.offline.moves import ConversationHistory, HandoverCodec
from tests.agui.client.driver import THREAD, posted, said
from tests.test_conversation import answered, asked, called, thought

HERM = ev.NativeRef(dialect="herm", id="h1")


def moved() -> HandoverCodec:
    """Return the codec of a session that was moved, with what was said on a Herm before."""
    codec = HandoverCodec(AguiClient({"task_id": THREAD}))
    codec.conversation = Conversation()
    for event in (
        *asked("k1", "Hello"),
        thought("Hm", native=HERM),
        answered("Wait.", native=HERM),
        called("c1", native=HERM),
    ):
        codec.conversation.hear(event)
    return codec


def test_an_agent_that_remembers_nothing_is_sent_messages_and_no_history() -> None:
    codec = moved()
    codec.begin(ConversationHistory(text="What was said before: …"))
    assert not codec.owes_history
    call = codec.submit("k2", said("And now?"))
    first, second, tool, last = posted(call)["messages"]
    assert (first["content"], last["content"]) == ("Hello", "And now?")
    assert (second["id"], second["content"]) == ("herm-m1", "Wait.")
    assert second["toolCalls"][0]["id"] == tool["toolCallId"] == "c1"
    assert tool["content"] == INTERRUPTED


def test_a_conversation_that_is_set_is_the_one_of_the_codec_inside() -> None:
    codec = moved()
    assert codec.conversation is codec.inner.conversation
    assert codec.conversation is not None
    assert not codec.remembers
