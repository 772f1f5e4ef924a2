"""A graph of LangGraph behind `ag-ui-langgraph`; `script.py` says what its model does.

Usage: langgraph_server.py PORT outcome|on-interrupt

The second word is the form of interrupts: with `outcome` a run that asks ends with an outcome, too.
The graph keeps the history of each thread in memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

# mypy: disable-error-code="import-not-found,unused-ignore,misc,untyped-decorator,call-arg"
import script
import uvicorn
from ag_ui_langgraph import LangGraphAgent, add_langgraph_fastapi_endpoint
from fastapi import FastAPI
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import MemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt


class ScriptedModel(BaseChatModel):
    """A model that plays the script, each call's arguments in two pieces."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        chunks = list(self._stream(messages, *args, **options))
        message = sum((chunk.message for chunk in chunks[1:]), chunks[0].message)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any
    ) -> Iterator[ChatGenerationChunk]:
        for message in _chunks(messages):
            chunk = ChatGenerationChunk(message=message)
            if run_manager:
                run_manager.on_llm_new_token(message.content, chunk=chunk)
            yield chunk


def _chunks(messages: Any) -> Iterator[AIMessageChunk]:
    said = [one for one in messages if isinstance(one, HumanMessage)]
    since = messages[messages.index(said[-1]) :]
    results = [str(one.content) for one in since if isinstance(one, ToolMessage)]
    index = -1
    for piece in script.answer(str(said[-1].text), len(said), results):
        match piece:
            case script.Text(text):
                yield AIMessageChunk(content=text)
            case script.Reasoning(text):
                yield AIMessageChunk(content=[{"type": "thinking", "thinking": text, "index": 0}])
            case script.Call(call_id, name, arguments):
                index += 1
                given = json.dumps(arguments)
                yield _call_chunk(index, name, given[:5], call_id)
                yield _call_chunk(index, None, given[5:], None)


def _call_chunk(index: int, name: str | None, args: str, call_id: str | None) -> AIMessageChunk:
    call = {"index": index, "name": name, "args": args, "id": call_id}
    return AIMessageChunk(content="", tool_call_chunks=[call])


@tool
def send_mail(to: str) -> str:
    """Send a mail, when somebody approves."""
    schema = {
        "type": "object",
        "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
        "required": ["approved"],
    }
    question = {"reason": "approval", "message": f"Send mail to {to}?", "responseSchema": schema}
    said = interrupt(question)
    if isinstance(said, str):
        said = json.loads(said)
    if said.get("approved") is True:
        return script.send_mail(to)
    return f"not sent: {said.get('reason') or 'denied'}"


@tool
def ask_user(question: str) -> str:
    """Ask a person."""
    schema = {"type": "string", "enum": ["red", "blue"]}
    said = interrupt({"reason": "question", "message": question, "responseSchema": schema})
    return f"the user said {said}"


@tool
def break_down(word: str) -> str:
    """Fail."""
    raise ValueError(f"the tool says no to {word}")


@tool
def crash(word: str) -> str:
    """End the run."""
    raise RuntimeError(f"the tool crashes {word}")


@tool
def count_up(word: str) -> str:
    """Count; each step of the graph changes the state."""
    return f"counted {word}"


TOOLS = (
    *(tool(one) for one in (script.weather, script.wait)),
    *(send_mail, ask_user, break_down, crash, count_up),
)


class State(MessagesState, total=False):
    """The state that the client and the graph share."""

    n: int


model = ScriptedModel()


async def chat(state: State) -> dict[str, Any]:
    """Let the model answer."""
    return {"messages": [await model.ainvoke(state["messages"])], "n": (state.get("n") or 0) + 1}


def route(state: State) -> Any:
    """Run the calls, each for itself, so that each can ask; those of the client's tools end it."""
    ours = {one.name for one in TOOLS}
    calls = getattr(state["messages"][-1], "tool_calls", [])
    sent = [Send("tools", [{**call, "type": "tool_call"}]) for call in calls]
    return sent if calls and all(call["name"] in ours for call in calls) else END


def said_why(error: ValueError) -> str:
    """Return the words of a failure."""
    return f"Error: {error}"


def make_app(form: str) -> FastAPI:
    """Make a server whose interrupts have a form."""
    graph = StateGraph(State)
    graph.add_node("chat", chat)
    graph.add_node("tools", ToolNode(TOOLS, handle_tool_errors=said_why))
    graph.add_edge(START, "chat")
    graph.add_conditional_edges("chat", route, ["tools", END])
    graph.add_edge("tools", "chat")
    more = {"emit_interrupt_outcome": True} if form == "outcome" else {}
    agent = LangGraphAgent(name=form, graph=graph.compile(checkpointer=MemorySaver()), **more)
    app = FastAPI()
    add_langgraph_fastapi_endpoint(app, agent, "/")
    return app


if __name__ == "__main__":
    uvicorn.run(make_app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), access_log=False)
