"""An agent of Google's ADK behind `ag-ui-adk`; `script.py` says what its model does.

Usage: adk_server.py PORT outcome|call

The second word is the form in which approvals are asked for: with `outcome` a run that asks ends
with an outcome, besides the call `adk_request_confirmation`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from typing import Any

# mypy: disable-error-code="import-not-found,import-untyped,unused-ignore,misc,no-any-return"
import script
import uvicorn
from ag_ui_adk import ADKAgent, AGUIToolset, create_adk_app
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools import FunctionTool
from google.genai import types


class ScriptedModel(BaseLlm):
    """A model that plays the script."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield what the model answers, piece by piece, and then as a whole."""
        said = ""
        results: list[str] = []
        count = 0
        for content in llm_request.contents:
            for part in content.parts or []:
                if content.role == "user" and part.text and "scene:" in part.text:
                    said, results = part.text, []
                    count += 1
                elif part.function_response:
                    results.append(str(part.function_response.response))
        parts: list[Any] = []
        for piece in script.answer(said, count, results):
            part = _part(piece)
            if stream and part.text:
                yield LlmResponse(content=_content([part]), partial=True)
            if parts and part.text and parts[-1].text and part.thought == parts[-1].thought:
                parts[-1] = types.Part(text=parts[-1].text + part.text, thought=part.thought)
            else:
                parts.append(part)
        yield LlmResponse(content=_content(parts), partial=False, turn_complete=True)


def _part(piece: Any) -> Any:
    match piece:
        case script.Text(text):
            return types.Part(text=text)
        case script.Reasoning(text):
            return types.Part(text=text, thought=True)
        case script.Call(call_id, name, arguments):
            call = types.FunctionCall(id=call_id, name=name, args=arguments)
            return types.Part(function_call=call)


def _content(parts: list[Any]) -> Any:
    return types.Content(role="model", parts=parts)


def break_down(word: str) -> dict[str, Any]:
    """Fail."""
    return {"status": "error", "error_message": f"the tool says no to {word}"}


def crash(word: str) -> str:
    """End the run."""
    raise RuntimeError(f"the tool crashes {word}")


def count_up(word: str, tool_context: Any) -> str:
    """Change the state."""
    tool_context.state["n"] = tool_context.state.get("n", 0) + 1
    return f"counted {word}"


send_mail = FunctionTool(script.send_mail, require_confirmation=True)
TOOLS = [script.weather, script.wait, send_mail, break_down, crash, count_up, AGUIToolset()]
agent = LlmAgent(name="peer", model=ScriptedModel(model="scripted"), tools=TOOLS)


def make_app(form: str) -> Any:
    """Make a server whose approvals have a form."""
    adk = ADKAgent(
        adk_agent=agent,
        app_name="peer",
        user_id="somebody",
        emit_interrupt_outcome=form == "outcome",
    )
    return create_adk_app(adk, path="/")


if __name__ == "__main__":
    uvicorn.run(make_app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), access_log=False)
