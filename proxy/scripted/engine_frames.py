"""The frames of the scripted Engine: each is a frame of a recording or of the Engine page.

A test finds every template in the recording that it names.
"""

from collections.abc import Mapping

from proxy.scripted.templates import Template

FRAMES: Mapping[str, Template] = {
    "lifecycle": Template(
        "01-plain-text.sse",
        "thread_lifecycle",
        '{"phase":"started","task_id":"garden-17","turn_id":"turn-a01",'
        '"timestamp":"2026-06-09T08:15:00.000Z"}',
    ),
    "lifecycle_short": Template(
        "01b-plain-text-short-form.sse",
        "thread_lifecycle",
        '{"phase":"started","task_id":"garden-18"}',
    ),
    "block_start": Template(
        "01-plain-text.sse", "content_block_start", '{"block_index":0,"block_type":"text"}'
    ),
    "block_stop": Template(
        "01-plain-text.sse", "content_block_stop", '{"block_index":0,"block_type":"text"}'
    ),
    "text": Template("01-plain-text.sse", "text_delta", '{"text":"Basil likes "}'),
    "thinking": Template(
        "02-thinking-and-tool.sse",
        "thinking_delta",
        '{"text":"The failing test is about rounding. "}',
    ),
    "tool_call": Template(
        "02-thinking-and-tool.sse",
        "tool_call",
        '{"tool":"read_file","tool_call_id":"call-7f01",'
        '"input":{"path":"/workspace/src/money.py"}}',
    ),
    "tool_result": Template(
        "03-hitl-permission-yes.sse", "tool_result", '{"tool_call_id":"call-c1","output":""}'
    ),
    "tool_failed": Template(
        "05-hitl-permission-denied.sse",
        "tool_result",
        '{"tool_call_id":"call-e1","output":"","error":"permission_denied"}',
    ),
    "usage": Template(
        "01-plain-text.sse",
        "usage",
        '{"input_tokens":612,"output_tokens":24,"cache_hit_tokens":0}',
    ),
    "permission": Template(
        "03-hitl-permission-yes.sse",
        "hitl_request",
        '{"request_id":"hitl-5a2e","task_id":"ops-33","kind":"permission",'
        '"question":"Run `rm -rf /srv/exports/2024`?",'
        '"created_at":"2026-06-09T08:15:02.310Z"}',
    ),
    "question": Template(
        "04-hitl-question.sse",
        "hitl_request",
        '{"request_id":"hitl-77c0","task_id":"trip-08","kind":"question",'
        '"question":"Which departure do you prefer?","options":["07:40","09:10"],'
        '"created_at":"2026-06-09T08:15:01.900Z"}',
    ),
    "resolved": Template(
        "03-hitl-permission-yes.sse",
        "hitl_resolved",
        '{"request_id":"hitl-5a2e","task_id":"ops-33"}',
    ),
    "heartbeat": Template(
        "03-hitl-permission-yes.sse", "heartbeat", '{"timestamp":"2026-06-09T08:15:17.310Z"}'
    ),
    "heartbeat_empty": Template("09-tolerance.sse", "heartbeat", "{}"),
    "error": Template(
        "06b-error-then-errored-lifecycle.sse",
        "error",
        '{"error":"LLM_RATE_LIMITED","message":"The provider is limiting requests.",'
        '"details":{"retry_after":12}}',
    ),
    "compaction": Template(
        "08-long-turn.sse",
        "compaction_event",
        '{"before_tokens":31200,"after_tokens":9400,"strategy":"summary"}',
    ),
    "memory": Template(
        "08-long-turn.sse",
        "working_memory_update",
        '{"key":"files_to_check","value":["a.sql","b.sql"]}',
    ),
    "future": Template("09-tolerance.sse", "future_event_kind", '{"anything":1}'),
    "text_extra": Template(
        "09-tolerance.sse", "text_delta", '{"text":", an id line","extra_field":true}'
    ),
}

BODIES: Mapping[str, Template] = {
    "unauthorized": Template(
        "http-error-401.response.json",
        "",
        '{"error":"INVALID_KEY","message":"The X-Engine-Key header is missing or wrong."}',
    ),
    "hitl_required": Template(
        "http-error-409-hitl.response.json",
        "",
        '{"error":"HITL_REQUIRED","message":"This task is waiting for an answer.","details":{}}',
    ),
    "health": Template(
        "http-health.response.json", "", '{"status":"ok","uptime_seconds":5321.4,"subsystems":{}}'
    ),
    "resumed": Template(
        "http-hitl-respond-yes.response.json",
        "",
        '{"status":"resumed","request_id":"hitl-5a2e"}',
    ),
    "refusal": Template(
        "engine page, section 4.1",
        "",
        '{"error":"LLM_RATE_LIMITED","message":"Slow down.","details":{"retry_after":8}}',
    ),
}
