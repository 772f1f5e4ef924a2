"""A scripted model behind the Responses API of OpenAI, for servers that run a real agent's loop.

The newest user message with `scene: NAME WORD` picks the script and a word that tells its answer
from others. An answer of scene `hold` waits until it is released, so no test waits for time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.support.ports import HOST

__all__ = ["ScriptedModel"]


@dataclass(frozen=True, slots=True)
class Output:
    """What the model answers once: text, a summary of its reasoning, calls of one kind, or a status
    of HTTP. `{}` in a text is the word of the message."""

    text: str = ""
    reasoning: str = ""
    kind: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    status: int = 200
    held: bool = False


SCENES = {
    "text": (Output("Hello {}."),),
    "hold": (Output("Held {}.", held=True),),
    "reason": (Output("The answer {} is 42.", reasoning="First I add 40 and 2."),),
    "tool": (
        Output("Let me run that.", kind="function", calls=(("exec_command", {"cmd": "echo hi"}),)),
        Output("It printed hi, {}."),
    ),
    "search": (Output("I look {} up.", kind="hosted", calls=(("web_search_call", {}),)),),
    "two": (
        Output(kind="approval", calls=(("roll", {"sides": 6}), ("roll", {"sides": 20}))),
        Output("Both rolls of {} are over."),
    ),
    "approve": (
        Output("May I roll?", kind="approval", calls=(("roll", {"sides": 6}),)),
        Output("The roll of {} is over."),
    ),
    "fail": (Output(status=400),),
    # The engine's client tries three times before the engine gives up.
    "failthenok": (*(3 * (Output(status=500),)), Output("It works again, {}.")),
}


class ScriptedModel:
    """The model: `seen` counts the requests whose newest message has a word."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._holds: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._number = 0

    async def holds(self, word: str) -> None:
        """Wait until it holds back the answer to a word."""
        await self._holds[word].wait()

    def release(self, word: str) -> None:
        """Let the answer to a word go."""
        self._released[word].set()

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve it; give its base URL."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/responses", self._respond)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        try:
            yield f"http://{HOST}:{runner.addresses[0][1]}/v1"
        finally:
            for word in list(self._holds):
                self.release(word)
            await runner.cleanup()

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        output, word = self._plan(body)
        if output.held:
            self._holds[word].set()
            await self._released[word].wait()
        if output.status != 200:
            error = {"message": f"scripted failure {output.status}", "type": "server_error"}
            return web.json_response({"error": error}, status=output.status)
        self._number += 1
        items = _items(output, word, self._number)
        final = {
            **{"id": f"resp_{self._number}", "object": "response", "created_at": 1},
            **{"model": "scripted", "status": "completed", "output": items, "usage": _USAGE},
            **{"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "metadata": {}},
        }
        if not body.get("stream"):
            return web.json_response(final)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        # A server that was killed waits no more.
        with contextlib.suppress(ConnectionResetError):
            await response.prepare(request)
            for number, (kind, data) in enumerate(_frames(final, items)):
                text = json.dumps({"type": kind, "sequence_number": number, **data})
                await response.write(f"event: {kind}\ndata: {text}\n\n".encode())
        return response

    def _plan(self, body: dict[str, Any]) -> tuple[Output, str]:
        items = body["input"]
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        said = [item for item in items if item.get("role") == "user"]
        name, word, at = "text", "", 0
        for place, item in enumerate(items):
            if item in said and (found := re.findall(r"scene: (\w+) (\w+)", json.dumps(item))):
                (name, word), at = found[-1], place
        self.seen[word] += 1
        script = SCENES[name]
        calls = any(item.get("type") == "function_call" for item in items[at:])
        step = 1 if calls else self.seen[word] - 1
        return script[step % len(script)], word


_USAGE = {
    **{"input_tokens": 100, "output_tokens": 10, "total_tokens": 110},
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


def _items(output: Output, word: str, number: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if output.reasoning:
        summary = [{"type": "summary_text", "text": output.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    if output.text:
        said = {"type": "output_text", "text": output.text.format(word), "annotations": []}
        message = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
        items.append({**message, "status": "completed", "content": [{**said, "logprobs": []}]})
    for place, (name, given) in enumerate(output.calls):
        id_, arguments = f"call_{number}_{place}", json.dumps(given)
        call: dict[str, Any] = {"type": name, "action": {"type": "search", "query": word}}
        if output.kind == "function":
            call = {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments}
        elif output.kind == "approval":
            call = {"type": "mcp_approval_request", "name": name, "arguments": arguments}
            call["server_label"] = "dice"
        items.append({"id": id_, "status": "completed", **call})
    return items


def _frames(final: dict[str, Any], items: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    begun = {**final, "status": "in_progress", "output": [], "usage": None}
    out: list[tuple[str, dict[str, Any]]] = [("response.created", {"response": begun})]
    for index, item in enumerate(items):
        out += [
            ("response.output_item.added", {"item": item, "output_index": index}),
            ("response.output_item.done", {"item": item, "output_index": index}),
        ]
    return [*out, ("response.completed", {"response": final})]
