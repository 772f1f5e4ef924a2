"""AI SDK UI as it is on the wire: names and constants.

Source: npm package `ai` as it was observed in sixteen releases from 5.0.0 to 7.0.173. The first
ones check strictly: an unknown chunk, a field too many or a null ends the page's stream with an
error. So what is written has only fields that every release of its form knows.
"""

from __future__ import annotations

from adapters.captures.secrets import DeltaFormat

DIALECT = "aisdk"

CHAT = "/api/chat"
"""What `DefaultChatTransport` has as `api` by default."""

OLD = "5"
OLD_PREFIX = "/v5"
"""The form for `ai` 5, which knows no approvals, and what its routes have before their path. A
request does not say which release sends it."""

RELEASE = "release"
ASK_TOOL = "ask_tool"
"""Settings of the encoder: the release of a form, and the name of the tool by which is asked."""

ASK = "dragoman_ask"
"""The usual name of that tool. The page answers its calls with `addToolOutput`."""

APPROVAL = "dragoman_approval"
"""The tool of an approval that is about no call."""

ASK_CALL = "ask-"
"""What stands before the request's id in the id of a call that only asks."""

ON_RETURN = "on_return"
REPLAY = "replay"
"""Ours: `?on_return=replay` lets a page that comes back have the last message once more while
something is asked. Without it such a page is told that nothing runs, as by the vendor's servers: it
has stored what it was asked."""

WORDS_WHILE_ASKED = "words_while_asked"
DECLINE = "decline"
"""The setting of what becomes of open requests where a person says something else."""

OPENING = b": stream-open\n\n"
"""The vendor's own comment at the beginning of a stream."""

DONE = b"data: [DONE]\n\n"

ERROR = "x-dragoman-error"
"""Ours: the header with the code of a refusal, whose body is what the page shows."""

SUBMIT = "submit-message"
REGENERATE = "regenerate-message"
"""`trigger`."""

MESSAGE = "msg-"
"""What stands before the number in the ids of our messages."""

DATA = "data-dragoman-"
"""What stands before the names of data parts of ours."""

OURS = "dragoman"
"""Our key in metadata."""

CHAT_OPTION = "aisdk_chat"
NOTES = "aisdk"
"""The keys in the options of `session.started` for the chat's id, and there and in the details of
an input for what the page calls its messages."""

_ENDS = ("finish-step", "finish", "abort", "error")

DELTAS = (
    DeltaFormat("text-delta", ("delta",), (("id",),), ends=("text-end", *_ENDS)),
    DeltaFormat("reasoning-delta", ("delta",), (("id",),), ends=("reasoning-end", *_ENDS)),
    DeltaFormat(
        "tool-input-delta",
        ("inputTextDelta",),
        (("toolCallId",),),
        ends=("tool-input-available", "tool-input-error", *_ENDS),
    ),
)
"""The parts of a stream that have more of a text."""
