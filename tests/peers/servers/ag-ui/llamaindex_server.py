"""A workflow of LlamaIndex behind its AG-UI router; `script.py` says what its model does.

Usage: llamaindex_server.py PORT

Its path is `/run`. It asks nobody, so a mail is sent at once; a tool that fails or crashes is told
to the model.
"""

from __future__ import annotations

import json
import sys
from typing import Any

# mypy: disable-error-code="import-not-found,unused-ignore"
import script
import uvicorn
from fastapi import FastAPI
from llama_index.core.base.llms.types import TextBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.protocols.ag_ui.router import get_ag_ui_workflow_router


def generate(messages: Any, **_: Any) -> ChatMessage:
    """Return what the model answers."""
    # The router gives results of the client's tools, and of earlier turns, the role `user`.
    places = [place for place, one in enumerate(messages) if "scene:" in str(one.content)]
    results = [str(one.content) for one in messages[places[-1] + 1 :] if not _is_ours(one)]
    text = ""
    calls = []
    for piece in script.answer(str(messages[places[-1]].content), len(places), results):
        match piece:
            case script.Text(said):
                text += said
            case script.Call(call_id, name, arguments):
                call = ToolCallBlock(tool_call_id=call_id, tool_name=name, tool_kwargs=arguments)
                calls.append(call)
            case _:
                pass
    blocks = [*([TextBlock(text=text)] if text else []), *calls]
    return ChatMessage(role="assistant", blocks=blocks)


def _is_ours(message: Any) -> bool:
    return bool(message.role.value == "assistant")


async def weather(city: str) -> str:
    """Return the weather of a city."""
    return json.dumps(script.weather(city))


async def send_mail(to: str) -> str:
    """Send a mail."""
    return script.send_mail(to)


async def break_down(word: str) -> str:
    """Fail."""
    raise ValueError(f"the tool says no to {word}")


TOOLS = [weather, script.wait, send_mail, break_down]


async def set_color(color: str) -> str:
    """Set the colour of the page."""
    raise NotImplementedError(color)


router = get_ag_ui_workflow_router(
    llm=MockFunctionCallingLLM(response_generator=generate),
    backend_tools=TOOLS,
    frontend_tools=[set_color],
)
app = FastAPI()
app.include_router(router)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False)
