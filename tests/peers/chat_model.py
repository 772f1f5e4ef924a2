"""A scripted model behind chat completions, for a real Hermes Agent.

The newest user message with `scene: NAME WORD` picks the script and a word that tells its answer
from others. The step is how many answers with calls follow that message. An answer of scene `hold`
waits until it is released, so no test waits for time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.support.ports import HOST

__all__ = ["ChatModel"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model answers once: text, reasoning, calls, or a status of HTTP. `{}` in a text and
    `WORD` in arguments are the word of the message."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    status: int = 200
    held: bool = False


def _shell(*commands: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple(("terminal", {"command": command}) for command in commands)


_WRITE = ("write_file", {"path": "note-WORD.txt", "content": "A note of WORD.\n"})
_DELEGATE = ("delegate_task", {"goal": "scene: child WORD", "context": "none"})
_REASON = Answer("The answer {} is 42.", reasoning="First I add 40 and 2. That is 42.")

SCENES = {
    "text": (Answer("Hello {}."),),
    "reason": (_REASON,),
    "tool": (Answer("Let me run that.", calls=_shell("echo WORD")), Answer("It printed {}.")),
    "two": (
        Answer(calls=_shell("echo one WORD", "echo two WORD")),
        Answer("Both ran, {}."),
    ),
    "many": (
        Answer("Let me run that.", calls=_shell("echo WORD")),
        Answer("Now two at once.", calls=_shell("echo one WORD", "exit 3")),
        Answer(calls=(_WRITE,)),
        _REASON,
    ),
    "danger": (Answer("I clean up.", calls=_shell("rm -rf ./precious")), Answer("That was {}.")),
    "append": (Answer(calls=_shell("echo WORD >> ran.txt")), Answer("Appended {}.")),
    "write": (Answer(calls=(_WRITE,)), Answer("I wrote of {}.")),
    "delegate": (Answer("I ask a helper.", calls=(_DELEGATE,)), Answer("The helper did {}.")),
    "child": (Answer(calls=_shell("echo child WORD")), Answer("The child ran {}.")),
    "fail": (Answer(status=400),),
    "hold": (Answer("Held {}.", held=True),),
}


class ChatModel:
    """The model."""

    def __init__(self) -> None:
        self._holds: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._results: defaultdict[str, list[str]] = defaultdict(list)
        self._number = 0

    async def holds(self, word: str) -> None:
        """Wait until it holds back the answer to a word."""
        await self._holds[word].wait()

    def release(self, word: str) -> None:
        """Let the answer to a word go."""
        self._released[word].set()

    def results(self, word: str) -> list[str]:
        """Return the results of calls that it has seen last, of a word."""
        return self._results[word]

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve it; give its base URL."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/chat/completions", self._respond)
        app.router.add_get("/v1/models", self._models)
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

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": "scripted", "object": "model", "created": 1, "context_length": 200_000}
        return web.json_response({"object": "list", "data": [model]})

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        answer, word = self._plan(body)
        if answer.status != 200:
            error = {"message": f"scripted failure {answer.status}", "code": "scripted"}
            return web.json_response({"error": error}, status=answer.status)
        self._number += 1
        message = _message(answer, word, self._number)
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": _finish(message)}
            return web.json_response(self._object("chat.completion", [choice], usage=_USAGE))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        # A Hermes that was killed waits no more.
        with contextlib.suppress(ConnectionResetError):
            await response.prepare(request)
            await self._stream(response, answer, word, message)
        return response

    async def _stream(
        self, response: web.StreamResponse, answer: Answer, word: str, message: dict[str, Any]
    ) -> None:
        async def send(choices: list[dict[str, Any]], **more: Any) -> None:
            chunk = self._object("chat.completion.chunk", choices, **more)
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())

        for delta in _deltas(message):
            await send([{"index": 0, "delta": delta, "finish_reason": None}])
            if answer.held:
                self._holds[word].set()
                await self._released[word].wait()
        await send([{"index": 0, "delta": {}, "finish_reason": _finish(message)}])
        await send([], usage=_USAGE)
        await response.write(b"data: [DONE]\n\n")

    def _object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        ids = {"id": f"chatcmpl-{self._number}", "object": kind, "created": 1, "model": "scripted"}
        return {**ids, "choices": choices, **more}

    def _plan(self, body: dict[str, Any]) -> tuple[Answer, str]:
        # What asks for a title has no tools.
        if not body.get("tools"):
            return Answer("A title"), ""
        messages = body["messages"]
        name, word, at = "text", "nothing", 0
        for place, message in enumerate(messages):
            if message["role"] != "user":
                continue
            if found := re.findall(r"scene: (\w+) (\w+)", json.dumps(message["content"])):
                (name, word), at = found[-1], place
        later = messages[at:]
        self._results[word] = [str(one["content"]) for one in later if one["role"] == "tool"]
        script = SCENES[name]
        step = sum(bool(one.get("tool_calls")) for one in later)
        return script[min(step, len(script) - 1)], word


_USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def _message(answer: Answer, word: str, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text.format(word) or None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    calls = [
        {
            "id": f"call_{number}_{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(given).replace("WORD", word)},
        }
        for place, (name, given) in enumerate(answer.calls)
    ]
    if calls:
        message["tool_calls"] = calls
    return message


def _finish(message: dict[str, Any]) -> str:
    return "tool_calls" if "tool_calls" in message else "stop"


def _deltas(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pieces that a message comes in: each text and each call's arguments in two."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for key in ("reasoning_content", "content"):
        text = message.get(key) or ""
        middle = len(text) // 2
        deltas += [{key: part} for part in (text[:middle], text[middle:]) if part]
    for index, call in enumerate(message.get("tool_calls", ())):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        middle = len(arguments) // 2
        begin = {"name": name, "arguments": arguments[:middle]}
        deltas.append({"tool_calls": [{**call, "index": index, "function": begin}]})
        end = {"index": index, "function": {"arguments": arguments[middle:]}}
        deltas.append({"tool_calls": [end]})
    return deltas
