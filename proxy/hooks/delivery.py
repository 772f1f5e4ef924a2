"""One event of a Hermes Agent on its way to Dragoman, and what the answer means for a tool call.

Hermes loads a copy of this file, in its own Python: it uses the standard library alone and imports
nothing beside it.

A tool call that is gated waits for a decision. Whatever is not a decision is a `Doubt`: no server,
a wrong answer, no answer in time, settings that cannot be read. A doubt blocks the call unless the
settings say `"on_doubt": "allow"`. All other events are told, and lost if that fails.

Why one module: it is the one file that is copied.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import math
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

GATE = "pre_tool_call"
"""The one event that can be answered."""

EVENTS_0_19 = (
    *("on_session_start", "pre_llm_call", "pre_api_request", "post_api_request"),
    *("api_request_error", GATE, "post_tool_call", "pre_approval_request"),
    *("post_approval_response", "subagent_start", "subagent_stop", "post_llm_call"),
    *("on_session_end", "on_session_finalize", "on_session_reset"),
)
"""The events that we take and Hermes 0.19.0 has."""

LATER_EVENTS = ("on_stream_start", "on_stream_delta", "on_stream_end", "on_interim_message")
"""The events that we take and only later versions have: unknown ones in a configuration warn."""

EVENTS = (*EVENTS_0_19, *LATER_EVENTS)
"""All events that we take: what a conversation consists of.

Not `transform_*` and `pre_verify`, which change what the agent does and tell nothing new; not
`pre_gateway_dispatch`, which has live objects and messages of people who may not talk to the agent;
not the boards (`kanban_*`), side calls (`*_auxiliary_call`) and speech, which are not a session's.
"""

LAST_EVENTS = frozenset({"api_request_error", "on_session_end", "on_session_finalize"})
"""What can be the last that a process of Hermes says: it ends without telling anybody."""

SETTINGS_FILE = "dragoman.json"
DEFAULT_URL = "http://127.0.0.1:8787/from/hermes-agent"
MOST_WAIT = 3_600
MOST_SHELL_WAIT = 285
"""Hermes ends a shell hook after 300 s at most, and then the tool runs: we must be first."""

MADE_UP = ("test-session", "parent-sess")
"""The sessions of events that Hermes makes up to try a hook; they have no turn."""

MOST_BYTES = 1024 * 1024
"""Of a body."""
MOST_STDIN = 16 * 1024 * 1024
MOST_ANSWER = 64 * 1024
LONG_TEXT = 100_000
"""Characters that are left of each text in a body that is too large."""
MOST_DEPTH = 64
"""Of values within values: what lies deeper becomes text."""

Json = dict[str, Any]
Directive = dict[str, str]
"""What a hook answers: nothing, or a block."""
Way = Literal["shell", "plugin", "gateway"]

START = "Start `dragoman serve`, or run `dragoman hook remove`."
LOOK = "Look at the log of `dragoman serve`, or run `dragoman hook remove`."
INSTALL = "Run `dragoman hook install`, or `dragoman hook remove`."


class Doubt(Exception):
    """Nobody decided. Says what happened, and the way out."""

    def __init__(self, happened: str, way_out: str = START) -> None:
        super().__init__(happened)
        self.way_out = way_out


class Unreachable(Doubt):
    """The request was not sent."""


class ConnectionBroken(Doubt):
    """The connection ended between the request and the end of its answer."""


class OutOfTime(Doubt):
    """The request was sent, and no answer came in time."""


class NoDecision(Doubt):
    """There is an answer, but it is not a decision."""

    def __init__(self, happened: str, status: int = 0) -> None:
        super().__init__(happened, LOOK)
        self.status = status


@dataclass(frozen=True, slots=True)
class HookDecision:
    """What Dragoman decided about a tool call."""

    allowed: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class HookSettings:
    """What `dragoman.json` says."""

    url: str = DEFAULT_URL
    secret: str | None = None
    gate: str = ".*"
    """Matches the whole name of a tool that asks; empty: none asks."""
    wait_seconds: float = 240
    on_doubt: Literal["block", "allow"] = "block"


@dataclass(frozen=True, slots=True)
class HookTimes:
    """How long things may take, in seconds."""

    connect: float = 2.0
    answer: float = 5.0
    """Of what does not wait."""
    pause: float = 0.5
    """Before something is tried again."""
    spare: float = 5.0
    """What an answer may take after the wait for a decision."""
    away: float = 30.0
    """How long the plugin keeps an event for a server that is away: one that starts again."""


TIMES = HookTimes()


@dataclass(frozen=True, slots=True)
class HookDelivery:
    """A request as it is sent, each time with the same bytes."""

    event: str
    id: str
    body: bytes


# --- settings


def read_settings(home: Path) -> HookSettings:
    """Return the settings in a home of Hermes.

    Raises:
        Doubt: there are none, or they mean nothing.
    """
    file = home / SETTINGS_FILE
    try:
        return check_settings(json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise Doubt(f"the settings in {file} cannot be used: {why}", INSTALL) from None


def check_settings(value: object) -> HookSettings:
    """Return settings from what a file of them holds.

    Raises:
        ValueError: they mean nothing.
    """
    if not isinstance(value, dict) or value.get("version") != 1:
        raise ValueError("`version` must be 1")
    names = {field.name for field in fields(HookSettings)}
    settings = HookSettings(**{name: value[name] for name in names & value.keys()})
    _check_url(settings.url)
    secret: object = settings.secret
    if secret is not None and not (isinstance(secret, str) and secret):
        raise ValueError("`secret` must be text, and not empty")
    _check_gate(settings.gate)
    wait: object = settings.wait_seconds
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 < wait <= MOST_WAIT:
        raise ValueError("`wait_seconds` must be a number above 0 and at most 3600")
    if settings.on_doubt not in ("block", "allow"):
        raise ValueError("`on_doubt` must be `block` or `allow`")
    return settings


def _check_url(url: object) -> None:
    wrong = ValueError("`url` must be like http://127.0.0.1:8787/from/NAME")
    if not isinstance(url, str) or re.search(r"[^!-~]|[?#@]", url):
        raise wrong
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = None
    if not known:
        raise wrong


def _check_gate(gate: object) -> None:
    try:
        re.compile(cast("str", gate))
    except (re.error, TypeError, RecursionError, OverflowError):
        raise ValueError("`gate` must be a regular expression") from None


def is_gated(settings: HookSettings, payload: Mapping[str, Any]) -> bool:
    """Tell whether an event is a tool call that asks; one whose name is not known does."""
    if payload.get("hook_event_name", GATE) != GATE or not settings.gate:
        return False
    tool = payload.get("tool_name")
    return not isinstance(tool, str) or re.fullmatch(settings.gate, tool) is not None


# --- what is sent


def read_payload(raw: bytes) -> Json:
    """Return what Hermes gives a shell hook.

    Raises:
        Doubt: it is not an event.
    """
    try:
        if len(raw) > MOST_STDIN:
            raise ValueError(f"it has more than {MOST_STDIN} bytes")
        payload = json.loads(raw)
        if not isinstance(payload, dict) or not isinstance(payload.get("hook_event_name"), str):
            raise ValueError("it is not an event")
    except (ValueError, RecursionError) as error:
        raise Doubt(f"what Hermes gave to the hook cannot be read: {error}", LOOK) from None
    return payload


def readable_event(raw: bytes) -> str:
    """Return the event of a payload that cannot be read as a whole; the gate if it may be that."""
    start = re.match(rb'\s*\{\s*"hook_event_name"\s*:\s*"([a-z_:]+)"', raw)
    return start[1].decode() if start else GATE


def payload_of(event: str, arguments: Mapping[str, Any]) -> Json:
    """Return what a shell hook would get of a call of a plugin's hook."""
    cwd = ""
    with contextlib.suppress(OSError):
        cwd = str(Path.cwd())
    args = arguments.get("args")
    top = {"tool_name", "args", "session_id", "parent_session_id"}
    return {
        "hook_event_name": event,
        "tool_name": arguments.get("tool_name"),
        "tool_input": args if isinstance(args, dict) else None,
        "session_id": arguments.get("session_id") or arguments.get("parent_session_id") or "",
        "cwd": cwd,
        "extra": {name: value for name, value in arguments.items() if name not in top},
    }


_UNREAD = frozenset({"request", "request_messages", "conversation_history", "middleware_trace"})
"""What an event has beside what we read, some of it as long as the session."""


def trim(payload: Mapping[str, Any]) -> Json:
    """Return an event without what Dragoman would throw away."""
    extra = payload.get("extra")
    if not isinstance(extra, dict):
        return dict(payload)
    kept = {name: value for name, value in extra.items() if name not in _UNREAD}
    history = extra.get("conversation_history")
    if payload.get("hook_event_name") == "post_llm_call" and isinstance(history, list):
        kept["conversation_history"] = _since_last_user(history)
    response = kept.get("response")
    if isinstance(response, dict) and isinstance(response.get("assistant_message"), dict):
        message = dict(response["assistant_message"])
        message.pop("provider_data", None)
        kept["response"] = {**response, "assistant_message": message}
    return {**payload, "extra": kept}


def _since_last_user(history: list[Any]) -> list[Any]:
    for at in range(len(history) - 1, -1, -1):
        if isinstance(history[at], dict) and history[at].get("role") == "user":
            return history[at + 1 :]
    return history


def plain(value: object, above: tuple[int, ...] = ()) -> Any:
    """Return a copy of a value that JSON can hold; what it cannot hold is text.

    `above` has the ids of the values that it lies in.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _text(value)
    if len(above) == MOST_DEPTH or id(value) in above:
        return _text(value)
    within = (*above, id(value))
    if isinstance(value, dict):
        return {_text(name): plain(one, within) for name, one in [*value.items()]}
    if isinstance(value, list | tuple):
        return [plain(one, within) for one in value]
    return _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - whatever an object of somebody else raises
        return f"<{type(value).__name__}>"


def cut(value: Any) -> Any:
    """Return a JSON value with its long texts cut."""
    if isinstance(value, str) and len(value) > LONG_TEXT:
        return f"{value[:LONG_TEXT]}… [cut by dragoman]"
    if isinstance(value, dict):
        return {name: cut(one) for name, one in value.items()}
    return [cut(one) for one in value] if isinstance(value, list) else value


def make_delivery(
    payload: Mapping[str, Any], way: Way, *, wait: float | None = None, dropped: int = 0
) -> HookDelivery:
    """Return an event as it is sent.

    Args:
        payload: the event, trimmed.
        way: how it came out of Hermes.
        wait: how long the sender waits for a decision; nothing if it does not.
        dropped: how many events before it are lost.

    Raises:
        Doubt: it is too large.
    """
    ours: Json = {"way": way}
    if wait is not None:
        ours["wait_seconds"] = wait
    if dropped:
        ours["dropped"] = dropped
    now, name = time.time(), os.urandom(16).hex()
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03}Z"
    whole = plain({**payload, "delivery_id": name, "timestamp": at, "dragoman": ours})
    body = _encode(whole)
    if len(body) > MOST_BYTES:
        small = cut(whole)
        if wait is not None:
            # Nobody can say yes to what they do not see.
            small["tool_input"] = whole.get("tool_input")
        body = _encode(small)
    if len(body) > MOST_BYTES:
        raise Doubt(f"the event has {len(body)} bytes, and {MOST_BYTES} can be sent", LOOK)
    return HookDelivery(str(payload.get("hook_event_name")), name, body)


def _encode(value: Json) -> bytes:
    # Half a character of UTF-16 is text for Python, and not for a server.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def headers_of(delivery: HookDelivery, secret: str | None) -> dict[str, str]:
    """Return the headers of a delivery, with a secret also its signature."""
    headers = {
        "Content-Type": "application/json",
        "X-Hermes-Event": re.sub(r"[^!-~]", "?", delivery.event),
        "X-Hermes-Delivery": delivery.id,
        "Connection": "close",
    }
    if secret is not None:
        import hmac

        signature = hmac.digest(secret.encode("utf-8", "replace"), delivery.body, "sha256")
        headers["X-Hermes-Signature-256"] = f"sha256={signature.hex()}"
    return headers


# --- one request


class _TimedSocket(io.RawIOBase):
    """What is read from a connection, until a deadline however slowly it comes."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(_left(self._deadline))
        return self._connection.recv_into(buffer)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def post(
    settings: HookSettings,
    delivery: HookDelivery,
    *,
    connect: float,
    deadline: float,
    sent: Callable[[], None] = lambda: None,
) -> tuple[int, bytes]:
    """Send a delivery once; return the status and the body of the answer.

    It uses no proxy and follows no redirect. `sent` is called once the request is sent.

    Raises:
        Doubt: there is no whole answer.
    """
    at = f"Dragoman at {settings.url}"
    parts = urlsplit(settings.url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    try:
        seconds = min(connect, _left(deadline))
        connection = kind(parts.hostname or "", parts.port, timeout=seconds)
        connection.connect()
    except (OSError, ValueError) as error:
        raise Unreachable(f"{at} cannot be reached: {_why(error)}") from None
    try:
        with contextlib.suppress(ConnectionError):  # it may have answered before it had all
            connection.sock.settimeout(_left(deadline))
            headers = headers_of(delivery, settings.secret)
            connection.request("POST", parts.path or "/", delivery.body, headers)
        sent()
        return _read_answer(connection.sock, deadline)
    except TimeoutError:
        raise OutOfTime(f"{at} did not answer in time", LOOK) from None
    except (OSError, http.client.IncompleteRead) as error:
        raise ConnectionBroken(f"the connection to {at} broke: {_why(error)}") from None
    except (http.client.HTTPException, ValueError) as error:
        raise NoDecision(f"{at} did not answer with HTTP: {_why(error)}") from None
    finally:
        connection.close()


def _read_answer(connection: socket.socket, deadline: float) -> tuple[int, bytes]:
    """Return the status and the body; of a body that is too long its beginning."""
    timed = cast("socket.socket", _TimedSocket(connection, deadline))
    response = http.client.HTTPResponse(timed, method="POST")
    try:
        response.begin()
        # Only a read of the whole says that the length which was promised did not come.
        whole = response.length is not None and response.length <= MOST_ANSWER
        return response.status, response.read(None if whole else MOST_ANSWER + 1)
    finally:
        response.close()


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "time is over"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or "no reason"


def read_decision(status: int, body: bytes, url: str) -> HookDecision:
    """Return the decision in an answer.

    Only a 200 with `{"decision": "allow"}` and nothing else allows.

    Raises:
        NoDecision: there is none.
    """
    answer = _json(body)
    if status == 200 and answer == {"decision": "allow"}:
        return HookDecision(allowed=True)
    if status == 200 and isinstance(answer, dict) and answer.get("decision") == "block":
        message = answer.get("message")
        if not isinstance(message, str) or not message.strip():
            message = "Blocked by Dragoman."
        return HookDecision(allowed=False, message=message)
    raise no_decision(status, body, url)


def no_decision(status: int, body: bytes, url: str) -> NoDecision:
    """Return what is said of an answer that is not the one that was asked for."""
    answer = _json(body)
    error = answer.get("error") if isinstance(answer, dict) else None
    said = f": {error.get('message')}"[:500] if isinstance(error, dict) else ""
    return NoDecision(f"Dragoman at {url} answered with {status} and no decision{said}", status)


def _json(body: bytes) -> object:
    with contextlib.suppress(ValueError, RecursionError):
        if len(body) <= MOST_ANSWER:
            return json.loads(body.decode(), object_pairs_hook=_unique)
    return None


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name comes twice")
    return found


# --- what is asked, and what is told


def ask(
    settings: HookSettings,
    delivery: HookDelivery,
    *,
    started: float,
    wait: float,
    times: HookTimes = TIMES,
    sent: Callable[[], None] = lambda: None,
) -> HookDecision:
    """Send a gated tool call until there is a decision.

    A server that goes away while it waits is asked again until `wait` is over: it restarts.

    Raises:
        Doubt: there is none.
    """
    over, broke, failures = started + wait, False, 0
    while True:
        try:
            answer = post(
                settings, delivery, connect=times.connect, deadline=over + times.spare, sent=sent
            )
            return read_decision(*answer, settings.url)
        except OutOfTime:
            what = f"Dragoman at {settings.url} gave no decision in {wait:g} seconds"
            raise OutOfTime(what, LOOK) from None
        except Doubt as doubt:
            broke = broke or isinstance(doubt, ConnectionBroken)
            if not broke or isinstance(doubt, NoDecision):
                failures += 1
            if failures > 1 or time.monotonic() + times.pause >= over:
                raise
        time.sleep(times.pause)


def tell(
    settings: HookSettings, delivery: HookDelivery, *, times: HookTimes = TIMES, again: bool = True
) -> None:
    """Send what nobody waits for. It is tried twice, unless the server refuses it or not `again`.

    Raises:
        Doubt: it did not arrive.
    """
    try:
        deadline = time.monotonic() + times.connect + times.answer
        status, body = post(settings, delivery, connect=times.connect, deadline=deadline)
        if status != 200:
            raise no_decision(status, body, settings.url)
    except Doubt as doubt:
        if not again or (isinstance(doubt, NoDecision) and 400 <= doubt.status < 500):
            raise
        time.sleep(times.pause)
        tell(settings, delivery, times=times, again=False)


def directive(outcome: HookDecision | Doubt, settings: HookSettings | None = None) -> Directive:
    """Return what the hook of a gated tool call answers, by a decision or a doubt."""
    if isinstance(outcome, HookDecision):
        return {} if outcome.allowed else {"action": "block", "message": outcome.message}
    if settings is not None and settings.on_doubt == "allow":
        return {}
    message = f"Not allowed by Dragoman: {outcome}. For the user: {outcome.way_out}"
    return {"action": "block", "message": message}


# --- a hook that is a process, and a gateway's


def answer_hook(
    raw: bytes, home: Path, *, note: Callable[[str], None], times: HookTimes = TIMES
) -> Directive:
    """Do what a shell hook does with its stdin; return what it prints.

    Args:
        raw: stdin, or its beginning if it is too long.
        home: Hermes's home.
        note: takes a line for the log.
        times: how long things may take.
    """
    started, settings, payload = time.monotonic(), None, None
    try:
        settings = read_settings(home)
        payload = marked(trim(read_payload(raw)))
        if is_gated(settings, payload):
            wait = min(settings.wait_seconds, MOST_SHELL_WAIT)
            return ask_in_time(settings, payload, started=started, wait=wait, times=times)
        tell(settings, make_delivery(payload, "shell"), times=times)
    except Doubt as doubt:
        note(f"{doubt}. {doubt.way_out}")
        seen = payload or {"hook_event_name": readable_event(raw)}
        if is_gated(settings or HookSettings(), seen):
            return directive(doubt, settings)
    return {}


def marked(payload: Json) -> Json:
    """Mark an event that Hermes made up: `hermes hooks test` and `doctor` ask about no real call,
    and nobody is to be asked about it."""
    extra = payload.get("extra")
    if payload.get("session_id") not in MADE_UP or not isinstance(extra, dict):
        return payload
    if extra.get("turn_id"):
        return payload
    return {**payload, "extra": {"dragoman_test": "made up by Hermes", **extra}}


def ask_in_time(
    settings: HookSettings, payload: Json, *, started: float, wait: float, times: HookTimes
) -> Directive:
    """Ask about a tool call in a thread, which nobody waits for once time is over: names of hosts
    are looked up as long as the system likes."""
    answers: queue.SimpleQueue[HookDecision | Doubt] = queue.SimpleQueue()

    def run() -> None:
        try:
            delivery = make_delivery(payload, "shell", wait=wait)
            answers.put(ask(settings, delivery, started=started, wait=wait, times=times))
        except Doubt as doubt:
            answers.put(doubt)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody decided
            answers.put(Doubt(f"the hook failed: {error!r}", LOOK))

    threading.Thread(target=run, daemon=True).start()
    try:
        seconds = started + wait + times.spare - time.monotonic()
        return directive(answers.get(timeout=max(seconds, 0)), settings)
    except queue.Empty:
        late = OutOfTime(f"Dragoman at {settings.url} was not asked in {wait:g} seconds", LOOK)
        return directive(late, settings)


def tell_gateway(event: str, context: object, home: Path, *, times: HookTimes = TIMES) -> None:
    """Send an event of a gateway.

    Raises:
        Doubt: it did not arrive.
    """
    known = context if isinstance(context, dict) else {}
    payload: Json = {
        "hook_event_name": f"gateway:{event}",
        "tool_name": None,
        "tool_input": None,
        "session_id": known.get("session_id") or "",
        "cwd": "",
        "extra": known,
    }
    tell(read_settings(home), make_delivery(payload, "gateway"), times=times)
