"""AG-UI as it is on the wire: names and constants.

Source: `@ag-ui/core`, `client` 0.0.47, 0.0.59 and 1.0.0 and CopilotKit 1.75 as they were observed,
and the specification at docs.ag-ui.com. What is written is what all of them take: optional members
are left out and never null, deltas are not empty, results of tools are strings, an outcome has no
member but its own. What only clients know that declare `protocolVersion` is kept for those.
"""

from __future__ import annotations

from adapters.captures.secrets import DeltaFormat

DIALECT = "agui"

_MESSAGE = (("messageId",),)
_CALL = (("toolCallId",),)

DELTAS = (
    *(
        DeltaFormat(type_, ("delta",), _MESSAGE, ends=(end, "RUN_FINISHED", "RUN_ERROR"))
        for type_, end in (
            ("TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
            ("TEXT_MESSAGE_CHUNK", "STEP_FINISHED"),
            ("REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END"),
            ("REASONING_MESSAGE_CHUNK", "STEP_FINISHED"),
            ("THINKING_TEXT_MESSAGE_CONTENT", "THINKING_TEXT_MESSAGE_END"),
        )
    ),
    *(
        DeltaFormat(type_, ("delta",), _CALL, ends=("TOOL_CALL_END", "RUN_FINISHED", "RUN_ERROR"))
        for type_ in ("TOOL_CALL_ARGS", "TOOL_CALL_CHUNK")
    ),
)
"""The events that have more of a text."""

PROTOCOL_VERSION = "1.0"
"""What `RUN_STARTED` declares; clients before 1.0 ignore it."""

RUN = ""
"""Where a run is asked for: the protocol names no path, so it is the base URL."""

THREAD = "/threads/{session}"
"""Ours: the protocol has no request to come back."""

RESOLVED = "resolved"
CANCELLED = "cancelled"
"""`ResumeEntry.status`."""

TOOL_APPROVAL = "tool-approval"
INPUT_REQUIRED = "input_required"
CONFIRMATION = "confirmation"
"""Reasons of interrupts. `tool_call` is not among them: CopilotKit's hook would send a tool message
with the answer, which hides the result of the call."""

ASK = "dragoman_ask"
"""The tool whose calls are asks, for clients before 0.0.54, which know no interrupts."""

ASK_CALL = "ask-"
"""What stands before the request's id in the id of such a call."""

MEDIA_PARTS = ("image", "audio", "video", "document")
"""Parts of a message that have a `source`."""

OURS = "dragoman"
"""What stands before the names of custom events and reasons of ours; our key in `metadata`."""

MESSAGE = "msg-"
"""What stands before the number in the ids of our messages."""

THREAD_OPTION = "agui_thread"
NOTES = "agui"
"""The keys in the options of `session.started` for the thread's name as its frontend chose it, and
there and in the details of an input for what the frontend calls the run and its messages."""

TOOL_CALL = "tool_call"
ON_INTERRUPT = "on_interrupt"
"""As agents ask: the reason for a call that waits for a yes, and the custom event of the older form
of LangGraph and Mastra."""

GRAPH_CANCELLED = "__agui_cancelled__"
"""The member of what `ag-ui-langgraph` gives its graph for an interrupt that was cancelled."""

ASKING_CALLS = {
    "adk_request_confirmation": "confirmed",
    "confirm_changes": "accepted",
}
"""Calls by which agents of ADK and Agent Framework ask for a yes to another call, and which member
of their result is the yes."""

UNCONFIRMED = "This tool call requires confirmation"
"""How the result begins that ADK gives a call before it asks for a yes to it."""

REASONING_CHUNK = "REASONING_MESSAGE_CHUNK"

PASSED_ON = frozenset({"CUSTOM"})
"""Events of an agent that reach frontends as they came. What clients do not know ends their run."""

MEMBERS_OPTION = "agui_members"
"""The option of a command that has the members which only an agent of this dialect takes."""
