"""Frames by the thousand that a backend could say in one turn, each of them small and lawful."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["KINDS", "many"]

KINDS = ("ManyCalls", "ManyChildren", "ManyAsks")
"""What there is many of: calls that do not return, children that do not end, requests."""


def _herm(number: int, **payload: Any) -> bytes:
    id_ = f"evt_m{number}"
    envelope = {"id": id_, "type": payload["type"], "status": "complete", "payload": payload}
    type_, data = payload["type"].encode(), json.dumps(envelope).encode()
    return b"event: %b\nid: %b\ndata: %b\n\n" % (type_, id_.encode(), data)


def _engine(name: str, **data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps(data).encode())


def _eve(number: int, kind: str, **data: Any) -> bytes:
    place = {"sequence": 0, "turnId": "turn_0", "stepIndex": 0}
    meta = {"id": f"evt_m{number}", "at": "2026-06-18T09:31:10.440Z"}
    return b"%b\n" % json.dumps({"type": kind, "data": {**data, **place}, "meta": meta}).encode()


def _herm_calls(n: int) -> bytes:
    return _herm(n, type="agent.tool_use", id=f"m{n}", tool="bash", input={"command": "ls"})


def _herm_children(n: int) -> bytes:
    return _herm(n, type="agent.thread_message_sent", thread_id=f"child-m{n}", content=[])


def _herm_asks(n: int) -> bytes:
    return _herm(n, type="agent.clarify_request", request_id=f"m{n}", question="Which?")


def _engine_calls(n: int) -> bytes:
    return _engine("tool_call", tool="bash", tool_call_id=f"m{n}", input={"command": "ls"})


def _engine_asks(n: int) -> bytes:
    asked = {"request_id": f"m{n}", "task_id": "t", "kind": "question", "question": "Which?"}
    return _engine("hitl_request", **asked, created_at="2026-06-09T08:15:01.000Z")


def _eve_calls(n: int) -> bytes:
    """A hundred in one frame."""
    used = {"kind": "tool-call", "toolName": "bash", "input": {"command": "ls"}}
    calls = [{**used, "callId": f"m{n}-{place}"} for place in range(100)]
    return _eve(n, "actions.requested", actions=calls)


def _eve_children(n: int) -> bytes:
    return _eve(n, "subagent.called", callId=f"m{n}", childSessionId=f"wrun_m{n}", name="r")


def _eve_asks(n: int) -> bytes:
    asked = {"requestId": f"m{n}", "kind": "question", "prompt": "Which?"}
    return _eve(n, "input.requested", requests=[asked])


def _managed_agents(number: int, kind: str, **data: Any) -> bytes:
    data |= {"id": f"sevt_m{number}", "processed_at": "2099-09-02T11:10:32.055000Z"}
    return b"event: message\ndata: %b\n\n" % json.dumps({"type": kind, **data}).encode()


def _managed_agents_calls(n: int) -> bytes:
    used = {"name": "bash", "input": {"command": "ls"}, "evaluated_permission": "allow"}
    return _managed_agents(n, "agent.tool_use", **used)


def _managed_agents_children(n: int) -> bytes:
    made = {"session_thread_id": f"sthr_m{n}", "agent_name": "r"}
    return _managed_agents(n, "session.thread_created", **made)


def _managed_agents_asks(n: int) -> bytes:
    used = {"name": "bash", "input": {"command": "ls"}, "evaluated_permission": "ask"}
    return _managed_agents(n, "agent.tool_use", **used)


def _agui(**data: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(data).encode()


def _agui_calls(n: int) -> bytes:
    name = {"toolCallId": f"m{n}"}
    parent = f"an answer of the model, which is long enough to be found, {n}"
    begun = _agui(type="TOOL_CALL_START", toolCallName="bash", parentMessageId=parent, **name)
    return (
        begun
        + _agui(type="TOOL_CALL_ARGS", delta="{}", **name)
        + _agui(type="TOOL_CALL_END", **name)
    )


def _agui_children(n: int) -> bytes:
    return _agui(type="SUBAGENT_STARTED", subagentRunId=f"m{n}", name="r")


_FRAMES: Mapping[tuple[str, str], Callable[[int], bytes]] = {
    ("herm", "ManyCalls"): _herm_calls,
    ("herm", "ManyChildren"): _herm_children,
    ("herm", "ManyAsks"): _herm_asks,
    ("agui", "ManyCalls"): _agui_calls,
    ("agui", "ManyChildren"): _agui_children,
    # What it asks comes with the end of its run.
    ("agui", "ManyAsks"): _agui_calls,
    ("engine", "ManyCalls"): _engine_calls,
    # It has no children.
    ("engine", "ManyChildren"): _engine_calls,
    ("engine", "ManyAsks"): _engine_asks,
    ("eve", "ManyCalls"): _eve_calls,
    ("eve", "ManyChildren"): _eve_children,
    ("eve", "ManyAsks"): _eve_asks,
    ("managed-agents", "ManyCalls"): _managed_agents_calls,
    ("managed-agents", "ManyChildren"): _managed_agents_children,
    ("managed-agents", "ManyAsks"): _managed_agents_asks,
}


def many(kind: str, dialect: str, count: int) -> bytes:
    """Return so many frames of a dialect."""
    return b"".join(map(_FRAMES[dialect, kind], range(count)))
