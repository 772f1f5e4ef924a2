"""An agent of Strands behind `ag-ui-strands`; `script.py` says what its model does.

Usage: strands_server.py PORT

The agent of each thread keeps its history in memory. A tool that fails or crashes is told to the
model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

# mypy: disable-error-code="import-not-found,unused-ignore,misc,untyped-decorator,no-any-return"
import script
import uvicorn
from ag_ui_strands import StrandsAgent, StrandsAgentConfig, ToolBehavior, create_strands_app
from strands import Agent, ToolContext, tool
from strands.models import Model


class ScriptedModel(Model):
    """A model that plays the script, each call's arguments in two pieces."""

    def update_config(self, **_: Any) -> None:
        """Do nothing."""

    def get_config(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        """Refuse."""
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield what the model answers."""
        said = ""
        results: list[str] = []
        count = 0
        for message in messages:
            for block in message["content"]:
                if message["role"] == "user" and "text" in block:
                    said, results = block["text"], []
                    count += 1
                elif "toolResult" in block:
                    results.append(_result(block["toolResult"]))
        calls = False
        yield {"messageStart": {"role": "assistant"}}
        for piece in script.answer(said, count, results):
            calls = calls or isinstance(piece, script.Call)
            for event in _events(piece):
                yield event
        yield {"messageStop": {"stopReason": "tool_use" if calls else "end_turn"}}


def _result(result: Any) -> str:
    return "".join(part.get("text") or json.dumps(part.get("json")) for part in result["content"])


def _events(piece: Any) -> list[dict[str, Any]]:
    start: dict[str, Any] = {}
    match piece:
        case script.Text(text):
            deltas: list[dict[str, Any]] = [{"text": text}]
        case script.Reasoning(text):
            deltas = [{"reasoningContent": {"text": text}}]
        case script.Call(call_id, name, arguments):
            start = {"toolUse": {"toolUseId": call_id, "name": name}}
            given = json.dumps(arguments)
            deltas = [{"toolUse": {"input": part}} for part in (given[:5], given[5:])]
    return [
        {"contentBlockStart": {"start": start}},
        *({"contentBlockDelta": {"delta": delta}} for delta in deltas),
        {"contentBlockStop": {}},
    ]


@tool(context=True)
def ask_user(question: str, tool_context: ToolContext) -> str:
    """Ask a person; the answer is wrapped."""
    said = tool_context.interrupt("question", reason=question)
    return f"the user said {said['response']}"


@tool
def break_down(word: str) -> str:
    """Fail."""
    raise ValueError(f"the tool says no to {word}")


@tool
def crash(word: str) -> str:
    """Fail."""
    raise RuntimeError(f"the tool crashes {word}")


@tool
def count_up(word: str) -> str:
    """Count."""
    return f"counted {word}"


OURS = [tool(one) for one in (script.weather, script.wait, script.send_mail)]
TOOLS = [*OURS, ask_user, break_down, crash, count_up]
config = StrandsAgentConfig(tool_behaviors={"send_mail": ToolBehavior(interrupt_on_call=True)})
agent = Agent(model=ScriptedModel(), tools=TOOLS, callback_handler=None)
app = create_strands_app(StrandsAgent(agent, name="peer", config=config), path="/")

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False)
