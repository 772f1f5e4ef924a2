"""What the scripted Herm sends: every body and event quoted from the Herm page, with its section.

Where the page has an example, the template is that example; where it has a table of fields, the
template has exactly these fields, and a mark of the page (D, O, I) says how sure they are. No
recording of a Herm exists.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BODIES", "EVENTS", "Template", "dump"]

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def dump(value: object) -> str:
    """Write a JSON value on one line, without spaces, in raw UTF-8."""
    return _ENCODER.encode(value)


@functools.cache
def _parsed(data: str) -> dict[str, object]:
    members: dict[str, object] = json.loads(data)
    return members


@dataclass(frozen=True, slots=True)
class Template:
    """One payload or body.

    Args:
        section: where the page has it.
        mark: how sure the page is of it: D documented, O older documentation, I inferred.
        data: the JSON.
    """

    section: str
    mark: str
    data: str

    def filled(self, /, **members: object) -> dict[str, object]:
        """Return the members of the source with other values in the named ones.

        Raises:
            KeyError: the source has no such member.
        """
        payload = dict(_parsed(self.data))
        for name, value in members.items():
            if name not in payload:
                raise KeyError(f"herm page, section {self.section}, has no member `{name}`")
            payload[name] = value
        return payload

    def without(self, *names: str) -> "Template":
        """Return this template with members left out."""
        payload = dict(_parsed(self.data))
        for name in names:
            del payload[name]
        return Template(self.section, self.mark, dump(payload))


EVENTS: Mapping[str, Template] = {
    "envelope": Template(
        "4.1",
        "D",
        '{"id":"evt_58","type":"agent.message","sessionId":"session_7c","sequence":9,'
        '"status":"complete","payload":{"type":"agent.message","delta":false,'
        '"content":[{"type":"text","text":"Here is the plan."}]},'
        '"processedAt":"2026-06-18T09:31:09.441Z","createdAt":"2026-06-18T09:31:09.442Z"}',
    ),
    "agent.message": Template(
        "4.1",
        "D",
        '{"type":"agent.message","delta":false,'
        '"content":[{"type":"text","text":"Here is the plan."}]}',
    ),
    "agent.thinking": Template(
        "4.5", "D", '{"type":"agent.thinking","delta":false,"content":[{"type":"text","text":""}]}'
    ),
    "agent.tool_use": Template(
        "4.5",
        "D",
        '{"type":"agent.tool_use","id":"toolu_1","tool":"shell","input":{},"status":"running",'
        '"preview":"","requires_action":true}',
    ),
    "agent.tool_result": Template(
        "4.5",
        "D",
        '{"type":"agent.tool_result","tool_use_id":"toolu_1","tool":"shell","status":"completed",'
        '"content":[{"type":"text","text":""}],"is_error":false}',
    ),
    "agent.custom_tool_use": Template(
        "4.5",
        "D",
        '{"type":"agent.custom_tool_use","id":"custom_toolu_1","tool":"lookup","input":{}}',
    ),
    "agent.clarify_request": Template(
        "4.5",
        "D",
        '{"type":"agent.clarify_request","request_id":"req_1","question":"","choices":null}',
    ),
    "agent.sudo_request": Template(
        "4.5", "I", '{"type":"agent.sudo_request","request_id":"req_1"}'
    ),
    "agent.secret_request": Template(
        "4.5",
        "I",
        '{"type":"agent.secret_request","request_id":"req_1","prompt":"","env_var":""}',
    ),
    "agent.thread_message_sent": Template(
        "4.5",
        "I",
        '{"type":"agent.thread_message_sent","content":[{"type":"text","text":""}],'
        '"to_thread_id":"thread_1","name":"researcher","status":"running"}',
    ),
    "agent.thread_message_received": Template(
        "4.5",
        "I",
        '{"type":"agent.thread_message_received","content":[{"type":"text","text":""}],'
        '"from_thread_id":"thread_1","name":"researcher","status":"completed"}',
    ),
    "session.status_running": Template("4.6", "D", '{"type":"session.status_running"}'),
    "session.status_idle": Template(
        "4.6", "D", '{"type":"session.status_idle","stop_reason":{"type":"end_turn"}}'
    ),
    "session.title_updated": Template(
        "4.6", "I", '{"type":"session.title_updated","title":"Autumn plan"}'
    ),
}

BODIES: Mapping[str, Template] = {
    "session": Template(
        "2.2",
        "D",
        '{"id":"session_7c","agentId":"agent_K4","agentVersion":2,"userId":"team_blue",'
        '"title":"Autumn plan","status":"idle","createdAt":"2026-06-18T09:30:00Z"}',
    ),
    "agent": Template(
        "2.1",
        "D",
        '{"name":"gardener","model":"provider/model","instructions":"","tools":[],'
        '"mcpServers":[],"skills":[],"metadata":{}}',
    ),
    "page": Template("4.2", "I", '{"data":[],"nextCursor":null}'),
    "error": Template(
        "6", "I", '{"error":{"code":"not_found","message":"There is no such resource."}}'
    ),
}
