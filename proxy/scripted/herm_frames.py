"""What the scripted Herm sends: every body and event quoted from the Herm page, with its section.

Where the page has an example, the template is that example; where it has a table of fields, the
template has exactly these fields, and a mark of the page (D, O, I) says how sure they are. No
recording of a Herm exists.
"""

from collections.abc import Mapping

from proxy.scripted.templates import Template


def _quoted(section: str, mark: str, data: str) -> Template:
    """Return a template of the page; its mark is D for documented, O for older, I for inferred."""
    return Template(f"herm page, section {section} ({mark})", "", data)


EVENTS: Mapping[str, Template] = {
    "envelope": _quoted(
        "4.1",
        "D",
        '{"id":"evt_58","type":"agent.message","sessionId":"session_7c","sequence":9,'
        '"status":"complete","payload":{"type":"agent.message","delta":false,'
        '"content":[{"type":"text","text":"Here is the plan."}]},'
        '"processedAt":"2026-06-18T09:31:09.441Z","createdAt":"2026-06-18T09:31:09.442Z"}',
    ),
    "agent.message": _quoted(
        "4.1",
        "D",
        '{"type":"agent.message","delta":false,'
        '"content":[{"type":"text","text":"Here is the plan."}]}',
    ),
    "agent.thinking": _quoted(
        "4.5", "D", '{"type":"agent.thinking","delta":false,"content":[{"type":"text","text":""}]}'
    ),
    "agent.tool_use": _quoted(
        "4.5",
        "D",
        '{"type":"agent.tool_use","id":"toolu_1","tool":"shell","input":{},"status":"running",'
        '"preview":"","requires_action":true}',
    ),
    "agent.tool_result": _quoted(
        "4.5",
        "D",
        '{"type":"agent.tool_result","tool_use_id":"toolu_1","tool":"shell","status":"completed",'
        '"content":[{"type":"text","text":""}],"is_error":false}',
    ),
    "agent.custom_tool_use": _quoted(
        "4.5",
        "D",
        '{"type":"agent.custom_tool_use","id":"custom_toolu_1","tool":"lookup","input":{}}',
    ),
    "agent.clarify_request": _quoted(
        "4.5",
        "D",
        '{"type":"agent.clarify_request","request_id":"req_1","question":"","choices":null}',
    ),
    "agent.sudo_request": _quoted("4.5", "I", '{"type":"agent.sudo_request","request_id":"req_1"}'),
    "agent.secret_request": _quoted(
        "4.5",
        "I",
        '{"type":"agent.secret_request","request_id":"req_1","prompt":"","env_var":""}',
    ),
    "agent.thread_message_sent": _quoted(
        "4.5",
        "I",
        '{"type":"agent.thread_message_sent","content":[{"type":"text","text":""}],'
        '"to_thread_id":"thread_1","name":"researcher","status":"running"}',
    ),
    "agent.thread_message_received": _quoted(
        "4.5",
        "I",
        '{"type":"agent.thread_message_received","content":[{"type":"text","text":""}],'
        '"from_thread_id":"thread_1","name":"researcher","status":"completed"}',
    ),
    "session.status_running": _quoted("4.6", "D", '{"type":"session.status_running"}'),
    "session.status_idle": _quoted(
        "4.6", "D", '{"type":"session.status_idle","stop_reason":{"type":"end_turn"}}'
    ),
    "session.title_updated": _quoted(
        "4.6", "I", '{"type":"session.title_updated","title":"Autumn plan"}'
    ),
}

BODIES: Mapping[str, Template] = {
    "session": _quoted(
        "2.2",
        "D",
        '{"id":"session_7c","agentId":"agent_K4","agentVersion":2,"userId":"team_blue",'
        '"title":"Autumn plan","status":"idle","createdAt":"2026-06-18T09:30:00Z"}',
    ),
    "agent": _quoted(
        "2.1",
        "D",
        '{"name":"gardener","model":"provider/model","instructions":"","tools":[],'
        '"mcpServers":[],"skills":[],"metadata":{}}',
    ),
    "page": _quoted("4.2", "I", '{"data":[],"nextCursor":null}'),
    "error": _quoted(
        "6", "I", '{"error":{"code":"not_found","message":"There is no such resource."}}'
    ),
}
