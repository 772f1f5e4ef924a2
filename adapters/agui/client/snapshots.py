"""Snapshots: what of them was not streamed is new.

LangGraph has the arguments of a call only there, LlamaIndex the results too, and gives each message
another id in each snapshot. So calls are known by their own ids, and texts only where a turn has
streamed none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from adapters.agui.client import turns, work
from adapters.agui.client.state import AguiClientState, AguiEvent
from adapters.model import events as ev
from adapters.wire.jsonvalue import JsonError, name_of, parse_json, rest_of

_ACTIVITY = frozenset(
    {"type", "timestamp", "rawEvent", "messageId", "activityType", "content", "patch"}
)
"""Members of an activity that the model knows."""


def messages(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `MESSAGES_SNAPSHOT`."""
    given = seen.payload.get("messages")
    if not isinstance(given, list):
        return work.unknown(s, seen)
    found = [one for one in given if isinstance(one, dict)]
    out = _inputs(s, found)
    last = max((i for i, one in enumerate(found) if one.get("role") == "user"), default=-1)
    streams = s.streams
    for message in found[last + 1 :]:
        match message.get("role"):
            case "assistant":
                out += _assistant(s, message, seen, streams=streams)
            case "tool" if (call_id := name_of(message.get("toolCallId"))) in s.calls:
                assert call_id is not None
                out += turns.let_result_go(s) + work.returned(s, call_id, message, seen)
    return out


def _assistant(
    s: AguiClientState, message: dict[str, Any], seen: AguiEvent, *, streams: bool
) -> list[ev.Event]:
    """Take a message of the agent's: its text where none was streamed, calls that are not known."""
    out: list[ev.Event] = []
    words, name = message.get("content"), name_of(message.get("id"))
    if isinstance(words, str) and words and name is not None and not streams:
        out += work.whole_text(s, name, words, seen)
    calls = message.get("toolCalls")
    for call in calls if isinstance(calls, list) else ():
        match call:
            case {"id": str(call_id), "function": {"name": str(tool), "arguments": str(args)}}:
                if call_id in s.calls or call_id in s.returned:
                    continue
                told = {"toolCallId": call_id, "toolCallName": tool, "parentMessageId": name}
                out += work.call_start(s, seen._replace(payload=told))
                if (opened := s.calls.get(call_id)) is not None:
                    opened.args.append(args)
                out += work.call_end(s, seen._replace(payload=told))
    return out


def state(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `STATE_SNAPSHOT`. That of a LangGraph has all messages of the conversation, each time:
    the log has those already."""
    if "snapshot" not in seen.payload:
        return work.unknown(s, seen)
    snapshot = seen.payload["snapshot"]
    found = snapshot.get("messages") if isinstance(snapshot, dict) else None
    if not isinstance(found, list):
        return [_updated(s, seen, value=snapshot)]
    rest = {name: value for name, value in snapshot.items() if name != "messages"}
    out = _inputs(s, found)
    kinds = [one.get("type") if isinstance(one, dict) else None for one in found]
    last = max((i for i, kind in enumerate(kinds) if kind == "human"), default=-1)
    for message in found[last + 1 :]:
        match message:
            # It has the result of a tool that failed, which the stream leaves out.
            case {"type": "tool", "tool_call_id": str(call_id)} if call_id in s.calls:
                out += turns.let_result_go(s) + work.returned(s, call_id, message, seen)
    return out + ([_updated(s, seen, value=rest)] if rest else [])


def state_delta(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `STATE_DELTA`."""
    patch = seen.payload.get("delta")
    if not isinstance(patch, list):
        return work.unknown(s, seen)
    return [_updated(s, seen, patch=tuple(patch))]


def _updated(s: AguiClientState, seen: AguiEvent, **told: Any) -> ev.Event:
    return ev.StateUpdated(thread_id=ev.MAIN, turn_id=s.turn, native=seen.native, **told)


def activity(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take `ACTIVITY_SNAPSHOT` and `ACTIVITY_DELTA`."""
    payload = seen.payload
    name, kind = name_of(payload.get("messageId")), name_of(payload.get("activityType"))
    content, patch = payload.get("content"), payload.get("patch")
    whole = isinstance(content, dict) and seen.name == "ACTIVITY_SNAPSHOT"
    if name is None or kind is None or not (whole or isinstance(patch, list)):
        return work.unknown(s, seen)
    return [
        ev.ActivityUpdated(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            activity_id=name,
            kind=kind,
            content=content if whole else None,
            patch=None if whole else tuple(patch or ()),
            native=seen.native,
            extra=rest_of(payload, _ACTIVITY),
        )
    ]


def _inputs(s: AguiClientState, found: list[Any]) -> list[ev.Event]:
    """Take what calls were given, where the stream has not said all of it: it goes with a call
    that is held, for who is asked about it, else with its result."""
    wanted = {name for name, call in s.calls.items() if call.told and not call.known}
    held = s.result
    if held is not None and held.asks_input:
        wanted.add(held.event.call_id)
    out: list[ev.Event] = []
    for call_id, value in _calls_of(found) if wanted else ():
        if call_id not in wanted:
            continue
        wanted.discard(call_id)
        if (call := s.calls.get(call_id)) is not None:
            call.known = _give_input(s, call_id, value)
        else:
            out += turns.let_result_go(s, input=value)
    return out


def _give_input(s: AguiClientState, call_id: str, value: Any) -> bool:
    """Give a held call its input; say whether it was held still."""
    for place, event in enumerate(s.held.events):
        if isinstance(event, ev.ToolCalled) and event.call_id == call_id:
            extra = rest_of(event.extra or {}, frozenset({"arguments"}))
            told = {"input": value, "input_known": True, "extra": extra}
            s.held.events[place] = event.model_copy(update=told)
            return True
    return False


def _calls_of(found: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the calls in messages, newest first, and what each was given: as the protocol writes
    them, and as LangChain does."""
    for message in reversed(found):
        if not isinstance(message, dict):
            continue
        calls = message.get("toolCalls") or message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            match call:
                case {"id": str(call_id), "function": {"arguments": str(text)}}:
                    try:
                        yield call_id, parse_json(text)
                    except JsonError:
                        continue
                case {"id": str(call_id), "args": dict(value)}:
                    yield call_id, value
