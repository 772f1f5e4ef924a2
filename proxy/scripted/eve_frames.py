"""The records of the scripted eve: each is a record of a recorded stream, by generation.

A template keeps its `data` as it stands in its source, but stack traces are cut to their
first line. A test finds every template in the recording, a file below `fixtures/wire/eve`, that
it names.

Why one module: it is a table of records.
"""

from collections.abc import Mapping

from proxy.scripted.templates import Template

FRAMES: Mapping[str, Mapping[str, Template]] = {
    "T": {
        "session_started": Template(
            "eve-0.30.8/server/plain.01.ndjson",
            "session.started",
            '{"runtime":{"agentId":"wire-lab","agentName":"wire-lab","eveVersion":"0.30.8","mod'
            'elId":"scripted/scripted-1"}}',
        ),
        "turn_started": Template(
            "eve-0.30.8/server/plain.01.ndjson",
            "turn.started",
            '{"sequence":0,"turnId":"turn_0"}',
        ),
        "message_received": Template(
            "eve-0.30.8/server/plain.01.ndjson",
            "message.received",
            '{"message":"scene: plain","parts":[{"text":"scene: plain","type":"text"}],"sequenc'
            'e":0,"turnId":"turn_0"}',
        ),
        "step_started": Template(
            "eve-0.30.8/server/plain.01.ndjson",
            "step.started",
            '{"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "message_appended": Template(
            "eve-0.30.8/server/plain.01.ndjson",
            "message.appended",
            '{"messageDelta":"Hello from the ","messageSoFar":"Hello from the ","sequence":0,"s'
            'tepIndex":0,"turnId":"turn_0"}',
        ),
        "message_completed": Template(
            "eve-0.30.8/server/plain.01.ndjson",
            "message.completed",
            '{"finishReason":"stop","message":"Hello from the scripted model. This reply arrive'
            's in small pieces.","sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "reasoning_appended": Template(
            "eve-0.30.8/server/reasoning.01.ndjson",
            "reasoning.appended",
            '{"reasoningDelta":"First I weigh ","reasoningSoFar":"First I weigh ","sequence":0,'
            '"stepIndex":0,"turnId":"turn_0"}',
        ),
        "reasoning_completed": Template(
            "eve-0.30.8/server/reasoning.01.ndjson",
            "reasoning.completed",
            '{"reasoning":"First I weigh the two ports. Then I pick the nearer one.","sequence"'
            ':0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "step_completed": Template(
            "eve-0.30.8/server/plain.01.ndjson",
            "step.completed",
            '{"finishReason":"stop","sequence":0,"stepIndex":0,"turnId":"turn_0","usage":{"inpu'
            'tTokens":42,"outputTokens":17,"cacheReadTokens":0,"cacheWriteTokens":0}}',
        ),
        "turn_completed": Template(
            "eve-0.30.8/server/plain.01.ndjson",
            "turn.completed",
            '{"sequence":0,"turnId":"turn_0"}',
        ),
        "session_waiting": Template(
            "eve-0.30.8/server/plain.01.ndjson",
            "session.waiting",
            '{"continuationToken":"eve:3db8be8a-1702-4fc2-85e1-73db18bc2934","wait":"next-user-'
            'message"}',
        ),
        "actions": Template(
            "eve-0.30.8/server/tool-call.01.ndjson",
            "actions.requested",
            '{"actions":[{"callId":"call-3-1","input":{"city":"Paris"},"kind":"tool-call","tool'
            'Name":"get_weather"}],"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "result": Template(
            "eve-0.30.8/server/tool-call.01.ndjson",
            "action.result",
            '{"result":{"callId":"call-3-1","kind":"tool-result","output":{"city":"Paris","sky"'
            ':"clear","celsius":21},"toolName":"get_weather"},"sequence":0,"stepIndex":0,"statu'
            's":"completed","turnId":"turn_0"}',
        ),
        "result_failed": Template(
            "eve-0.30.8/server/tool-throws.01.ndjson",
            "action.result",
            '{"error":{"code":"ACTION_RESULT_FAILED","message":"gears jammed"},"result":{"callI'
            'd":"call-7-1","kind":"tool-result","output":"gears jammed","toolName":"break_thing'
            's","isError":true},"sequence":0,"stepIndex":0,"status":"failed","turnId":"turn_0"}',
        ),
        "result_denied": Template(
            "eve-0.30.8/server/approval-deny.02.ndjson",
            "action.result",
            '{"error":{"code":"TOOL_EXECUTION_DENIED","message":"Tool execution was denied."},"'
            'result":{"callId":"call-15-1","isError":true,"kind":"tool-result","output":{"appro'
            'val":{"requestId":"aitxt-LvIAn703JXsJYIZwyg9nNvHP","status":"denied"},"code":"TOOL'
            '_EXECUTION_DENIED","message":"Tool execution was denied.","tool":{"result":"not_ru'
            'n"}},"toolName":"send_payment"},"sequence":0,"stepIndex":0,"status":"rejected","tu'
            'rnId":"turn_0"}',
        ),
        "approval": Template(
            "eve-0.30.8/server/approval-approve.01.ndjson",
            "input.requested",
            '{"requests":[{"action":{"callId":"call-13-1","input":{"to":"Ada","cents":1250},"ki'
            'nd":"tool-call","toolName":"send_payment"},"allowFreeform":false,"display":"confir'
            'mation","kind":"tool-approval","options":[{"id":"approve","label":"Yes"},{"id":"de'
            'ny","label":"No"}],"prompt":"Approve tool call: send_payment","requestId":"aitxt-4'
            '0RHv40lOTojz8ZkNiU1lco4"}],"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "question": Template(
            "eve-0.30.8/server/question-option.01.ndjson",
            "input.requested",
            '{"requests":[{"action":{"callId":"call-22-1","input":{"allowFreeform":true,"option'
            's":[{"description":"A warm colour.","id":"red","label":"Red"},{"description":"A co'
            'ld colour.","id":"blue","label":"Blue"}],"prompt":"Which colour?"},"kind":"tool-ca'
            'll","toolName":"ask_question"},"display":"select","kind":"question","prompt":"Whic'
            'h colour?","requestId":"call-22-1","allowFreeform":true,"options":[{"description":'
            '"A warm colour.","id":"red","label":"Red"},{"description":"A cold colour.","id":"b'
            'lue","label":"Blue"}]}],"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "turn_cancelled": Template(
            "eve-0.30.8/server/cancel-mid-turn.01.ndjson",
            "turn.cancelled",
            '{"sequence":0,"turnId":"turn_0"}',
        ),
        "step_failed": Template(
            "eve-0.30.8/server/turn-fails.01.ndjson",
            "step.failed",
            '{"code":"MODEL_CALL_FAILED","details":{"errorId":"9d2a566f-8281-417f-b591-42b968af'
            '3326","message":"Error: model backend exploded","detail":"Error: model backend exp'
            'loded"},"message":"model backend exploded","sequence":0,"stepIndex":0,"turnId":"tu'
            'rn_0"}',
        ),
        "turn_failed": Template(
            "eve-0.30.8/server/turn-fails.01.ndjson",
            "turn.failed",
            '{"code":"MODEL_CALL_FAILED","details":{"errorId":"9d2a566f-8281-417f-b591-42b968af'
            '3326","message":"Error: model backend exploded","detail":"Error: model backend exp'
            'loded"},"message":"model backend exploded","sequence":0,"turnId":"turn_0"}',
        ),
        "result_completed": Template(
            "eve-0.30.8/server/structured-output.01.ndjson",
            "result.completed",
            '{"result":{"title":"Tides","count":4},"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "compaction_requested": Template(
            "eve-0.30.8/server/controls.02.ndjson",
            "compaction.requested",
            '{"modelId":"scripted/scripted-1","sequence":1,"sessionId":"wrun_01M7ZWFN65Q4Z8AZMS'
            'PZF7HST1","turnId":"turn_1","usageInputTokens":73.5}',
        ),
        "compaction_completed": Template(
            "eve-0.30.8/server/controls.02.ndjson",
            "compaction.completed",
            '{"modelId":"scripted/scripted-1","sequence":1,"sessionId":"wrun_01M7ZWFN65Q4Z8AZMS'
            'PZF7HST1","turnId":"turn_1"}',
        ),
        "cleared": Template(
            "eve-0.30.8/server/controls.03.ndjson",
            "context.cleared",
            '{"sequence":1,"sessionId":"wrun_01M7ZWFN65Q4Z8AZMSPZF7HST1","turnId":"turn_1"}',
        ),
        "sign_in": Template(
            "eve-0.30.8/server/sign-in.01.ndjson",
            "authorization.required",
            '{"description":"Sign in to the ledger.","name":"ledger","sequence":0,"stepIndex":0'
            ',"turnId":"turn_0","authorization":{"url":"http://127.0.0.1:9/authorize?back=http%'
            "3A%2F%2F127.0.0.1%3A4102%2Feve%2Fv1%2Fconnections%2Fledger%2Fcallback%2Fwrun_01M7Z"
            'WG9SZ05V3VB8D7FGKP3GT%253Aauth","displayName":"Ledger","instructions":"Sign in to '
            'the ledger."},"webhookUrl":"http://127.0.0.1:4102/eve/v1/connections/ledger/callba'
            'ck/wrun_01M7ZWG9SZ05V3VB8D7FGKP3GT%3Aauth"}',
        ),
        "signed_in": Template(
            "eve-0.30.8/server/sign-in.02.ndjson",
            "authorization.completed",
            '{"name":"ledger","outcome":"authorized","sequence":0,"stepIndex":0,"turnId":"turn_'
            '0","authorization":{"url":"http://127.0.0.1:9/authorize?back=http%3A%2F%2F127.0.0.'
            "1%3A4102%2Feve%2Fv1%2Fconnections%2Fledger%2Fcallback%2Fwrun_01M7ZWG9SZ05V3VB8D7FG"
            'KP3GT%253Aauth","displayName":"Ledger","instructions":"Sign in to the ledger."}}',
        ),
        "limit": Template(
            "eve-0.30.8/server/session-limit.01.ndjson",
            "input.requested",
            '{"requests":[{"action":{"callId":"wrun_01M7ZX26GWHX7VXG8ZRGG2ATAQ:limit:input:84",'
            '"input":{"kind":"input","limit":60,"usedTokens":84},"kind":"tool-call","toolName":'
            '"session_limit_continuation"},"allowFreeform":false,"display":"confirmation","kind'
            '":"session-limit","options":[{"description":"Grant a fresh token budget","id":"con'
            'tinue","label":"Approve","style":"primary"},{"description":"Stop now","id":"stop",'
            '"label":"Stop","style":"danger"}],"prompt":"This session has hit the input-token l'
            "imit (60) per session. This is a guardrail against defective long-running sessions"
            '. If session activity looks fine, just approve to keep going.","requestId":"wrun_0'
            '1M7ZX26GWHX7VXG8ZRGG2ATAQ:limit:input:84"}],"sequence":0,"stepIndex":2,"turnId":"t'
            'urn_0"}',
        ),
        "session_completed": Template(
            "eve-0.30.8/server/subagent.02.ndjson",
            "session.completed",
            "",
        ),
        "delegation": Template(
            "eve-0.30.8/server/subagent.01.ndjson",
            "actions.requested",
            '{"actions":[{"callId":"call-39-1","description":"Digs into one question.","input":'
            '{"message":"scene: child dig into tides"},"kind":"subagent-call","name":"researche'
            'r","nodeId":"subagents/researcher","subagentName":"researcher"}],"sequence":0,"ste'
            'pIndex":0,"turnId":"turn_0"}',
        ),
        "called": Template(
            "eve-0.30.8/server/subagent.01.ndjson",
            "subagent.called",
            '{"callId":"call-39-1","childSessionId":"wrun_01M7ZWF3EER14HBA3Z48BG2A7P","sessionI'
            'd":"wrun_01M7ZWF34S2B0YMAAMXJ5ZYP6T","sequence":0,"name":"researcher","toolName":"'
            'researcher","turnId":"turn_0","workflowId":"workflow//eve//workflowEntry"}',
        ),
        "child_completed": Template(
            "eve-0.30.8/server/subagent.01.ndjson",
            "subagent.completed",
            '{"callId":"call-39-1","output":"Child says: tides follow the moon.","subagentName"'
            ':"researcher"}',
        ),
        "child_result": Template(
            "eve-0.30.8/server/subagent.01.ndjson",
            "action.result",
            '{"result":{"callId":"call-39-1","kind":"subagent-result","origin":"child","outcome'
            '":{"kind":"terminal","result":{"kind":"succeeded","output":"Child says: tides foll'
            'ow the moon."},"usageDelta":{"cacheReadTokens":0,"cacheWriteTokens":0,"inputTokens'
            '":42,"outputTokens":17}},"output":"Child says: tides follow the moon.","subagentNa'
            'me":"researcher","usage":{"cacheReadTokens":0,"cacheWriteTokens":0,"inputTokens":4'
            '2,"outputTokens":17}},"sequence":0,"stepIndex":0,"status":"completed","turnId":"tu'
            'rn_0"}',
        ),
        "child_started": Template(
            "eve-0.30.8/server/subagent.02.ndjson",
            "session.started",
            '{"runtime":{"agentId":"researcher","agentName":"researcher","eveVersion":"0.30.8",'
            '"modelId":"scripted/scripted-1"}}',
        ),
    },
    "S2": {
        "session_started": Template(
            "eve-0.80.1/server/plain.01.ndjson",
            "session.started",
            '{"runtime":{"agentId":"wire-lab","agentName":"wire-lab","eveVersion":"0.80.1"},"tr'
            'ace":{"decision":{"action":"record","recordInputs":true,"recordOutputs":true},"spa'
            'nId":"b68bcb3aa600e85c","traceFlags":1,"traceId":"13fe72bda610dbe7dd22bddfbed5d228'
            '"}}',
        ),
        "turn_started": Template(
            "eve-0.80.1/server/plain.01.ndjson",
            "turn.started",
            '{"sequence":0,"turnId":"turn_0","trace":{"decision":{"action":"record","recordInpu'
            'ts":true,"recordOutputs":true},"spanId":"b68bcb3aa600e85c","traceFlags":1,"traceId'
            '":"13fe72bda610dbe7dd22bddfbed5d228"}}',
        ),
        "message_received": Template(
            "eve-0.80.1/server/plain.01.ndjson",
            "message.received",
            '{"message":"scene: plain","parts":[{"text":"scene: plain","type":"text"}],"sequenc'
            'e":0,"turnId":"turn_0"}',
        ),
        "step_started": Template(
            "eve-0.80.1/server/plain.01.ndjson",
            "step.started",
            '{"modelId":"scripted/scripted-1","sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "message_appended": Template(
            "eve-0.80.1/server/plain.01.ndjson",
            "message.appended",
            '{"messageDelta":"Hello from the ","sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "message_completed": Template(
            "eve-0.80.1/server/plain.01.ndjson",
            "message.completed",
            '{"finishReason":"stop","message":"Hello from the scripted model. This reply arrive'
            's in small pieces.","sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "reasoning_appended": Template(
            "eve-0.80.1/server/reasoning.01.ndjson",
            "reasoning.appended",
            '{"reasoningDelta":"First I weigh ","sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "reasoning_completed": Template(
            "eve-0.80.1/server/reasoning.01.ndjson",
            "reasoning.completed",
            '{"reasoning":"First I weigh the two ports. Then I pick the nearer one.","sequence"'
            ':0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "step_completed": Template(
            "eve-0.80.1/server/plain.01.ndjson",
            "step.completed",
            '{"finishReason":"stop","sequence":0,"stepIndex":0,"turnId":"turn_0","usage":{"inpu'
            'tTokens":42,"outputTokens":17,"cacheReadTokens":0,"cacheWriteTokens":0}}',
        ),
        "turn_completed": Template(
            "eve-0.80.1/server/plain.01.ndjson",
            "turn.completed",
            '{"sequence":0,"turnId":"turn_0"}',
        ),
        "session_waiting": Template(
            "eve-0.80.1/server/plain.01.ndjson",
            "session.waiting",
            '{"continuationToken":"wrun_01M7ZWA9WVV03M0WG1WGWGBV3J","usage":{"cacheReadTokens":'
            '0,"cacheWriteTokens":0,"inputTokens":42,"outputTokens":17},"wait":"next-user-messa'
            'ge"}',
        ),
        "input_appended": Template(
            "eve-0.80.1/server/tool-call.01.ndjson",
            "action.input.appended",
            '{"callId":"call-6-1","inputTextDelta":"{\\"city\\":\\"Par","sequence":0,"stepIndex'
            '":0,"toolName":"get_weather","turnId":"turn_0"}',
        ),
        "actions": Template(
            "eve-0.80.1/server/tool-call.01.ndjson",
            "actions.requested",
            '{"actions":[{"callId":"call-6-1","input":{"city":"Paris"},"kind":"tool-call","tool'
            'Name":"get_weather"}],"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "result": Template(
            "eve-0.80.1/server/tool-call.01.ndjson",
            "action.result",
            '{"result":{"callId":"call-6-1","kind":"tool-result","output":{"city":"Paris","sky"'
            ':"clear","celsius":21},"toolName":"get_weather"},"sequence":0,"status":"completed"'
            ',"stepIndex":0,"turnId":"turn_0"}',
        ),
        "result_failed": Template(
            "eve-0.80.1/server/tool-throws.01.ndjson",
            "action.result",
            '{"error":{"code":"ACTION_RESULT_FAILED","message":"gears jammed","name":"Error"},"'
            'result":{"callId":"call-10-1","kind":"tool-result","output":"gears jammed","toolNa'
            'me":"break_things","errorName":"Error","isError":true},"sequence":0,"status":"fail'
            'ed","stepIndex":0,"turnId":"turn_0"}',
        ),
        "result_denied": Template(
            "eve-0.80.1/server/approval-deny.02.ndjson",
            "action.result",
            '{"error":{"code":"TOOL_EXECUTION_DENIED","message":"Tool execution was denied. The'
            ' person who denied it wrote: \\"Too expensive.\\""},"result":{"callId":"call-18-1"'
            ',"isError":true,"kind":"tool-result","output":{"approval":{"requestId":"aitxt-tRqd'
            'rR9aS5aVCSOUA6mESe2F","status":"denied"},"code":"TOOL_EXECUTION_DENIED","message":'
            '"Tool execution was denied. The person who denied it wrote: \\"Too expensive.\\"",'
            '"tool":{"result":"not_run"}},"toolName":"send_payment"},"sequence":0,"status":"rej'
            'ected","stepIndex":0,"turnId":"turn_0"}',
        ),
        "result_ignored": Template(
            "eve-0.80.1/server/approval-other-message.02.ndjson",
            "action.result",
            '{"error":{"code":"TOOL_EXECUTION_DENIED","message":"Ignored because the user conti'
            'nued without responding."},"result":{"callId":"call-24-1","isError":true,"kind":"t'
            'ool-result","output":{"approval":{"requestId":"aitxt-yDkoQ6mXD5cUhyKzn29GPgy3","st'
            'atus":"ignored"},"code":"TOOL_EXECUTION_DENIED","message":"Ignored because the use'
            'r continued without responding.","tool":{"result":"not_run"}},"toolName":"send_pay'
            'ment"},"sequence":0,"status":"rejected","stepIndex":0,"turnId":"turn_0"}',
        ),
        "approval": Template(
            "eve-0.80.1/server/approval-approve.01.ndjson",
            "input.requested",
            '{"requests":[{"action":{"callId":"call-16-1","input":{"to":"Ada","cents":1250},"ki'
            'nd":"tool-call","toolName":"send_payment"},"allowFreeform":false,"display":"confir'
            'mation","kind":"tool-approval","options":[{"id":"approve","label":"Approve"},{"id"'
            ':"cancel","label":"Cancel"}],"prompt":"Approve Send payment?","requestId":"aitxt-N'
            '8N2TI2Ibbl8NhSBWctuweXG"}],"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "question": Template(
            "eve-0.80.1/server/question-option.01.ndjson",
            "input.requested",
            '{"requests":[{"action":{"callId":"call-26-1","input":{"question":"Which colour?","'
            'options":[{"label":"Red","description":"A warm colour."},{"label":"Blue","descript'
            'ion":"A cold colour."}]},"kind":"tool-call","toolName":"ask_question"},"kind":"que'
            'stion","prompt":"Which colour?","requestId":"wrun_01M7ZWAHCPQA37CRK2R1BQ6K60-ask-1'
            '","allowFreeform":true,"display":"select","options":[{"description":"A warm colour'
            '.","id":"Red","label":"Red"},{"description":"A cold colour.","id":"Blue","label":"'
            'Blue"}]}],"sequence":0,"stepIndex":0,"turnId":"turn_0","callId":"call-26-1"}',
        ),
        "turn_waiting": Template(
            "eve-0.80.1/server/approval-approve.01.ndjson",
            "turn.waiting",
            '{"on":"input","sequence":0,"turnId":"turn_0","usage":{"cacheReadTokens":0,"cacheWr'
            'iteTokens":0,"inputTokens":42,"outputTokens":17}}',
        ),
        "settled": Template(
            "eve-0.80.1/server/approval-approve.02.ndjson",
            "approval.settled",
            '{"outcome":"approved","requestId":"aitxt-N8N2TI2Ibbl8NhSBWctuweXG","responderPrinc'
            'ipalId":"anonymous","sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "resolved": Template(
            "eve-0.80.1/server/approval-approve.02.ndjson",
            "input.resolved",
            '{"resolutions":[{"kind":"tool-approval","outcome":"approved","requestId":"aitxt-N8'
            'N2TI2Ibbl8NhSBWctuweXG","response":{"optionId":"approve","requestId":"aitxt-N8N2TI'
            '2Ibbl8NhSBWctuweXG"}}],"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "resolved_question": Template(
            "eve-0.80.1/server/question-option.02.ndjson",
            "input.resolved",
            '{"resolutions":[{"kind":"question","outcome":"answered","requestId":"wrun_01M7ZWAH'
            'CPQA37CRK2R1BQ6K60-ask-1","response":{"optionId":"Blue","requestId":"wrun_01M7ZWAH'
            'CPQA37CRK2R1BQ6K60-ask-1"}}],"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "turn_cancelled": Template(
            "eve-0.80.1/server/cancel-mid-turn.01.ndjson",
            "turn.cancelled",
            '{"sequence":0,"turnId":"turn_0"}',
        ),
        "step_failed": Template(
            "eve-0.80.1/server/turn-fails.01.ndjson",
            "step.failed",
            '{"code":"MODEL_CALL_FAILED","details":{"errorId":"17825be5-3424-46c4-bb35-3cd0f581'
            '6236","message":"Error: model backend exploded","detail":"Error: model backend exp'
            'loded"},"message":"model backend exploded","sequence":0,"stepIndex":0,"turnId":"tu'
            'rn_0"}',
        ),
        "turn_failed": Template(
            "eve-0.80.1/server/turn-fails.01.ndjson",
            "turn.failed",
            '{"code":"MODEL_CALL_FAILED","details":{"errorId":"17825be5-3424-46c4-bb35-3cd0f581'
            '6236","message":"Error: model backend exploded","detail":"Error: model backend exp'
            'loded"},"message":"model backend exploded","sequence":0,"terminal":false,"turnId":'
            '"turn_0"}',
        ),
        "result_completed": Template(
            "eve-0.80.1/server/structured-output.01.ndjson",
            "result.completed",
            '{"result":{"title":"Tides","count":4},"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "compaction_requested": Template(
            "eve-0.80.1/server/controls.02.ndjson",
            "compaction.requested",
            '{"modelId":"scripted/scripted-1","sequence":1,"sessionId":"wrun_01M7ZWBHMVZHBHF3AH'
            '131KG2HR","stepIndex":0,"turnId":"turn_1","usageInputTokens":73.5}',
        ),
        "compaction_completed": Template(
            "eve-0.80.1/server/controls.02.ndjson",
            "compaction.completed",
            '{"modelId":"scripted/scripted-1","sequence":1,"sessionId":"wrun_01M7ZWBHMVZHBHF3AH'
            '131KG2HR","stepIndex":0,"turnId":"turn_1"}',
        ),
        "cleared": Template(
            "eve-0.80.1/server/controls.03.ndjson",
            "context.cleared",
            '{"sequence":1,"sessionId":"wrun_01M7ZWBHMVZHBHF3AH131KG2HR","turnId":"turn_1"}',
        ),
        "sign_in": Template(
            "eve-0.80.1/server/sign-in.01.ndjson",
            "authorization.required",
            '{"description":"Sign in to the ledger.","name":"ledger","sequence":0,"stepIndex":0'
            ',"turnId":"turn_0","attemptId":"01M7ZWBZGCV51NDZ6NC8T560TG","authorization":{"url"'
            ':"http://127.0.0.1:9/authorize?back=http%3A%2F%2F127.0.0.1%3A4101%2Feve%2Fv1%2Fcon'
            "nections%2Fledger%2Fcallback%2F01M7ZWBZGCV51NDZ6NC8T560TG%2Feve%253Ainbox%253Av1%2"
            '53Aeve%253Asession%253Awrun_01M7ZWBZBGV3XM1QSGT5X1CR31%253Ainbox","displayName":"L'
            'edger","instructions":"Sign in to the ledger."},"principalId":"ada","webhookUrl":"'
            "http://127.0.0.1:4101/eve/v1/connections/ledger/callback/01M7ZWBZGCV51NDZ6NC8T560T"
            'G/eve%3Ainbox%3Av1%3Aeve%3Asession%3Awrun_01M7ZWBZBGV3XM1QSGT5X1CR31%3Ainbox"}',
        ),
        "signed_in": Template(
            "eve-0.80.1/server/sign-in.02.ndjson",
            "authorization.completed",
            '{"name":"ledger","outcome":"authorized","sequence":0,"stepIndex":0,"turnId":"turn_'
            '0","attemptId":"01M7ZWBZGCV51NDZ6NC8T560TG","authorization":{"url":"'
            "http://127.0.0.1:9/authorize?back=http%3A%2F%2F127.0.0.1%3A"
            "4101%2Feve%2Fv1%2Fconnections%2Fledge"
            "r%2Fcallback%2F01M7ZWBZGCV51NDZ6NC8T560TG%2Feve%253Ainbox%253Av1%253Aeve%253Asessi"
            'on%253Awrun_01M7ZWBZBGV3XM1QSGT5X1CR31%253Ainbox","displayName":"Ledger","instruct'
            'ions":"Sign in to the ledger."},"principalId":"ada"}',
        ),
        "sign_in_declined": Template(
            "eve-0.80.1/server/sign-in-declined.02.ndjson",
            "authorization.completed",
            '{"name":"ledger","outcome":"declined","sequence":0,"stepIndex":0,"turnId":"turn_0"'
            ',"attemptId":"01M7ZWC0ZEFYZSBSQRC1Q90FSY","principalId":"ada","reason":"Cancelled '
            'because a new message arrived."}',
        ),
        "limit": Template(
            "eve-0.80.1/server/session-limit.01.ndjson",
            "input.requested",
            '{"requests":[{"action":{"callId":"wrun_01M7ZX25EP5Y02C16Y7F807WVK:0:limit:input:84'
            '","input":{"kind":"input","limit":60,"usedTokens":84},"kind":"tool-call","toolName'
            '":"session_limit_continuation"},"allowFreeform":false,"display":"confirmation","ki'
            'nd":"session-limit","options":[{"description":"Grant a fresh token budget","id":"c'
            'ontinue","label":"Approve","style":"primary"},{"description":"Stop now","id":"stop'
            '","label":"Stop","style":"danger"}],"prompt":"This session has hit the input-token'
            " limit (60) per session. This is a guardrail against defective long-running sessio"
            'ns. If session activity looks fine, just approve to keep going.","requestId":"wrun'
            '_01M7ZX25EP5Y02C16Y7F807WVK:0:limit:input:84"}],"sequence":0,"stepIndex":2,"turnId'
            '":"turn_0"}',
        ),
        "session_completed": Template(
            "eve-0.80.1/server/controls.04.ndjson",
            "session.completed",
            '{"usage":{"cacheReadTokens":0,"cacheWriteTokens":0,"inputTokens":84,"outputTokens"'
            ":34}}",
        ),
        "delegation": Template(
            "eve-0.80.1/server/subagent.01.ndjson",
            "actions.requested",
            '{"actions":[{"callId":"call-43-1","description":"Digs into one question. It does n'
            "ot see this conversation, so put everything it needs in message. To correct or con"
            "tinue an agent task, call this tool again with its taskId; without taskId, each ca"
            'll starts a new agent.","input":{"message":"scene: child dig into tides"},"name":"'
            'researcher","nodeId":"subagents/researcher","kind":"subagent-call","subagentName":'
            '"researcher"}],"presentation":{"call-43-1":{"label":"Researcher: scene: child dig '
            'into tides"}},"sequence":0,"stepIndex":0,"turnId":"turn_0"}',
        ),
        "task_started": Template(
            "eve-0.80.1/server/subagent.01.ndjson",
            "task.started",
            '{"callId":"call-43-1","kind":"agent","name":"researcher","taskId":"researcher-yhq0'
            '21","turnId":"turn_0"}',
        ),
        "receipt": Template(
            "eve-0.80.1/server/subagent.01.ndjson",
            "action.result",
            '{"result":{"callId":"call-43-1","kind":"tool-result","output":"Started task resear'
            "cher-yhq021. Its result will arrive in a <task_result> message. To send it another"
            ' message, call researcher again with taskId researcher-yhq021.","toolName":"resear'
            'cher"},"sequence":0,"status":"completed","stepIndex":0,"turnId":"turn_0"}',
        ),
        "agent_started": Template(
            "eve-0.80.1/server/subagent.01.ndjson",
            "agent.started",
            '{"callId":"call-43-1","turnId":"turn_0","name":"researcher","sessionId":"wrun_01M7'
            'ZWB1XJ5ETH59TFA8RJQKH5","streamPath":"/eve/v1/session/wrun_01M7ZWB1XJ5ETH59TFA8RJQ'
            'KH5/stream","taskId":"researcher-yhq021"}',
        ),
        "task_settled": Template(
            "eve-0.80.1/server/subagent.01.ndjson",
            "task.settled",
            '{"callId":"call-43-1","kind":"agent","name":"researcher","status":"completed","tas'
            'kId":"researcher-yhq021","turnId":"turn_0","output":"Child says: tides follow the '
            'moon."}',
        ),
        "child_started": Template(
            "eve-0.80.1/server/subagent.02.ndjson",
            "session.started",
            '{"runtime":{"agentId":"researcher","agentName":"researcher","eveVersion":"0.80.1"}'
            ',"trace":{"decision":{"action":"record","recordInputs":true,"recordOutputs":true},'
            '"spanId":"d6944a5ebeb778f8","traceFlags":1,"traceId":"c15a1b525514fa5cf350d1cab52c'
            'c363"}}',
        ),
    },
}
"""The records of each generation; S1 was never recorded and borrows from both."""
