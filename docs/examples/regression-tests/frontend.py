"""An agent frontend in a few lines: it asks an agent behind Herm's API, and lets a person decide.

A stream that breaks is read on after the last event that came.
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any

SECONDS = 60


class Agent:
    """One conversation with an agent."""

    def __init__(self, url: str, agent: str = "assistant") -> None:
        self._url = url
        session = self._post(f"/v1/agents/{agent}/sessions", {})["id"]
        self._events = f"/v1/sessions/{session}/events"
        self._last = ""
        self.reconnects = 0

    def ask(self, text: str, approve: Callable[[str, Any], bool]) -> str:
        """Say something, and return the answer; `approve` gets a tool's name and input."""
        stream = self._open()
        self._say({"type": "user.message", "content": [{"type": "text", "text": text}]})
        answer = ""
        tools: dict[str, Any] = {}
        for event in self._read(stream):
            payload = event["payload"]
            if event["type"] == "agent.message" and not payload.get("delta"):
                answer += "".join(part["text"] for part in payload["content"])
            elif event["type"] == "agent.tool_use":
                tools[payload["id"]] = tools[event["id"]] = payload
            elif event["type"] == "session.status_idle":
                asked = payload["stop_reason"].get("event_ids", [])
                if not asked:
                    break
                for name in asked:
                    tool = tools[name]
                    result = "allow" if approve(tool["tool"], tool["input"]) else "deny"
                    confirmation = {"tool_use_id": name, "result": result}
                    self._say({"type": "user.tool_confirmation", **confirmation})
        return answer

    def _say(self, event: dict[str, Any]) -> None:
        self._post(self._events, {"events": [event]})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        head = {"content-type": "application/json"}
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), head)
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def _open(self) -> HTTPResponse:
        head = {"last-event-id": self._last} if self._last else {}
        request = urllib.request.Request(f"{self._url}{self._events}/stream", headers=head)
        stream: HTTPResponse = urllib.request.urlopen(request, timeout=SECONDS)
        return stream

    def _read(self, stream: HTTPResponse) -> Iterator[dict[str, Any]]:
        """Yield events, over as many streams as it takes."""
        while True:
            with stream, contextlib.suppress(HTTPException, OSError):
                for line in stream:
                    if line.startswith(b"data: ") and line.endswith(b"\n"):
                        event = json.loads(line[6:])
                        self._last = event["id"]
                        yield event
            self.reconnects += 1
            stream = self._open()
