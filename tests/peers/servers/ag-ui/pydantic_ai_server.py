"""An agent of Pydantic AI behind its AG-UI adapter; `script.py` says what its model does.

Usage: pydantic_ai_server.py PORT
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

# mypy: disable-error-code="import-not-found,unused-ignore,untyped-decorator,no-any-return"
import script
import uvicorn
from ag_ui.core import StateDeltaEvent, StateSnapshotEvent
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, RunContext, ToolReturn
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.ui import StateDeps
from pydantic_ai.ui.ag_ui import AGUIAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class State(BaseModel):
    """The state that the client and the agent share."""

    n: int = 0
    log: list[str] = []


async def stream(messages: list[Any], _: AgentInfo) -> AsyncIterator[Any]:
    """Yield what the model answers, each call's arguments in two pieces."""
    said: list[str] = []
    results: list[str] = []
    parts = (part for one in messages if isinstance(one, ModelRequest) for part in one.parts)
    for part in parts:
        if isinstance(part, UserPromptPart):
            said, results = [*said, _text(part.content)], []
        elif getattr(part, "tool_call_id", None):
            results.append(str(part.content))
    number = 0
    for piece in script.answer(said[-1] if said else "", len(said), results):
        match piece:
            case script.Text(text):
                yield text
            case script.Reasoning(text):
                yield {0: DeltaThinkingPart(content=text, signature="signed")}
            case script.Call(call_id, name, arguments):
                number += 1
                given = json.dumps(arguments)
                first = DeltaToolCall(name=name, json_args=given[:5], tool_call_id=call_id)
                yield {number: first}
                yield {number: DeltaToolCall(json_args=given[5:], tool_call_id=call_id)}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part for part in content if isinstance(part, str))


agent = Agent(
    FunctionModel(stream_function=stream),
    output_type=[str, DeferredToolRequests],
    deps_type=StateDeps[State],
    retries=1,
)
agent.tool_plain(script.weather)
agent.tool_plain(script.wait)
agent.tool_plain(requires_approval=True)(script.send_mail)


@agent.tool_plain
def break_down(word: str) -> str:
    """Fail."""
    raise ModelRetry(f"the tool says no to {word}")


@agent.tool_plain
def crash(word: str) -> str:
    """End the run."""
    raise ValueError(f"the tool crashes {word}")


@agent.tool
def count_up(context: RunContext[StateDeps[State]], word: str) -> ToolReturn:
    """Change the state."""
    context.deps.state.n += 1
    snapshot = StateSnapshotEvent(snapshot=context.deps.state.model_dump())
    delta = StateDeltaEvent(delta=[{"op": "add", "path": "/log/-", "value": word}])
    return ToolReturn(return_value=f"counted {word}", metadata=[snapshot, delta])


async def run(request: Request) -> Response:
    """Answer a request."""
    return await AGUIAdapter.dispatch_request(
        request, agent=agent, deps=StateDeps(State()), include_usage=True
    )


app = Starlette(routes=[Route("/", run, methods=["POST"])])

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False)
