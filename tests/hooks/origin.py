"""A server for hooks: it takes what the contract allows, and answers what a test says."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.ports import HOST, free_port

SOON_S = 120.0
"""After so long something that must come soon counts as missing, on the slowest machine too."""
PATH = "/from/hermes-agent"
SECRET = "ssh: quiet"

Answer = tuple[int, bytes] | bytes | None
"""A status and a body, bytes in place of HTTP, or the end of the connection."""
ALLOW: Answer = (200, b'{"decision": "allow"}')
BLOCK: Answer = (200, b'{"decision": "block", "message": "no"}')


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrived."""

    body: bytes
    payload: dict[str, Any]

    @property
    def event(self) -> str:
        name: str = self.payload["hook_event_name"]
        return name


class HookOrigin:
    """Listens on loopback; each answer is for one request, the last for all that follow.

    Without answers it allows what waits, and takes the rest.
    """

    def __init__(self, *answers: Answer | Callable[[Arrival], Answer], port: int = 0) -> None:
        self.answers = list(answers)
        self.arrivals: list[Arrival] = []
        self.wrong: list[str] = []
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._stopped = False
        origin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                origin.serve(self)

        self._server = ThreadingHTTPServer((HOST, port or free_port()), Handler)
        self._server.daemon_threads = False
        self.port = self._server.server_port
        self.url = f"http://{HOST}:{self.port}{PATH}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        assert self.wrong == []

    def stop(self) -> None:
        """Go away: nobody listens any more, and all connections end."""
        with self._changed:
            self._stopped = True
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def events(self) -> list[str]:
        """Return the events in the order in which they arrived."""
        return [arrival.event for arrival in self.arrivals]

    def wait(self, count: int) -> list[Arrival]:
        """Return what arrived once it is so many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.arrivals) >= count, SOON_S)
            return self.arrivals[:]

    def hold(self) -> bool:
        """Return when the server is stopped: the answer never comes."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stopped, SOON_S)

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        """Take a request and answer it."""
        body = request.rfile.read(int(request.headers["Content-Length"]))
        arrival = Arrival(body, json.loads(body))
        self.wrong += faults(request, arrival)
        with self._changed:
            self._connections.add(request.connection)
            self.arrivals.append(arrival)
            answer = self._next(arrival)
            self._changed.notify_all()
        if callable(answer):
            answer = answer(arrival)
        with contextlib.suppress(OSError):
            self._write(request, answer)
        request.close_connection = True
        with self._changed:
            self._connections.discard(request.connection)

    def _next(self, arrival: Arrival) -> Answer | Callable[[Arrival], Answer]:
        if len(self.answers) > 1:
            return self.answers.pop(0)
        if self.answers:
            return self.answers[0]
        return ALLOW if "wait_seconds" in arrival.payload["dragoman"] else (200, b"{}")

    def _write(self, request: BaseHTTPRequestHandler, answer: Answer) -> None:
        if isinstance(answer, bytes):
            request.wfile.write(answer)
        elif answer is not None:
            status, body = answer
            request.send_response(status)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)


def faults(request: BaseHTTPRequestHandler, arrival: Arrival) -> list[str]:
    """Say what a request has that the contract does not allow."""
    headers, payload = request.headers, arrival.payload
    digest = hmac.new(SECRET.encode(), arrival.body, hashlib.sha256).hexdigest()
    wanted = {
        "Content-Type": "application/json",
        "X-Hermes-Event": payload["hook_event_name"],
        "X-Hermes-Delivery": payload["delivery_id"],
        "X-Hermes-Signature-256": f"sha256={digest}",
    }
    found = [f"{name}: {headers[name]}" for name, one in wanted.items() if headers[name] != one]
    top = {"hook_event_name", "tool_name", "tool_input", "session_id", "cwd", "extra"}
    if missing := (top | {"delivery_id", "timestamp", "dragoman"}) - payload.keys():
        found.append(f"without {missing}")
    at = datetime.fromisoformat(payload["timestamp"])
    if at.utcoffset() is None or not payload["timestamp"].endswith("Z"):
        found.append(f"timestamp {payload['timestamp']}")
    if len(bytes.fromhex(payload["delivery_id"])) != 16 or request.path != PATH:
        found.append(f"{payload['delivery_id']} to {request.path}")
    return found


def write_settings(home: Path, url: str, **others: Any) -> None:
    """Write the settings that `dragoman hook install` writes."""
    settings = {"version": 1, "url": url, "secret": SECRET, "wait_seconds": 60, **others}
    (home / "dragoman.json").write_text(json.dumps(settings), encoding="utf-8")
