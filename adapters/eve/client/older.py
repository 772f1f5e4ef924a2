"""What earlier releases stored."""

from __future__ import annotations

from typing import Any, cast

from adapters.eve.client.records import RECENT_IDS, SAID_MOST, State
from adapters.eve.client.values import digest_of
from adapters.jsonvalue import compact, format_json, parse_json
from adapters.stored import completed


def place_and_state(stored: dict[str, Any]) -> list[Any]:
    """Return what version 1 stored as version 2 has it: the blocks were in the lines, the token in
    the state, a position without the state had counts only, and nothing was sent beside answers."""
    places = {thread: [count] for thread, count in stored["n"].items()}
    place = [stored["f"], places]
    if "s" not in stored:
        return [place]
    state: dict[str, Any] = stored["s"]
    for thread, line in state["lines"].items():
        blocks = [line.pop(name) for name in ("text", "reasoning", "blocks")]
        places[thread] = [*places.get(thread, [0]), *blocks]
        line["names"] = []
        line["held"] = _held(line)
        line["unrelayed"] = dict.fromkeys(line["unrelayed"])
        line["said"] = {digest_of(*said): None for said in line["said"][-SAID_MOST:]}
        agent, ending = line["agent"], line["ending"]
        if agent is not None:
            line["agent"] = {name: agent.get(name) for name in ("id", "name", "model")}
        if ending is not None and "control" in ending:
            line["ending"] = {"event": ending["control"]}
    pending = {item["command_id"]: item | {"taken": item["settled"]} for item in state["pending"]}
    doubtful = state["doubtful"].items()
    state["silence"] = {"open": {command_id: doubt["at"] for command_id, doubt in doubtful}}
    state["ledger"] = {"open": pending}
    for retry in state["retries"]:
        if retry["body"] is not None:
            body = cast(dict[str, Any], parse_json(retry["body"].encode()))
            body.pop("continuationToken", None)
            retry["body"] = compact(format_json(body)).decode()
        retry.setdefault("also", [])
        times = {name: retry[name] for name in ("at", "since", "tries")}
        retry["again"] = {**times, "waits": retry["at"] is not None}
    for name, thread in state["tasks"].items():
        state["lines"][thread]["names"].append(name)
    asked = state["requests"]
    late = state["late"] = {}
    for request in asked.values():
        request |= {"thread_id": request["thread"], "call_id": request["call"]}
    for number, (request_id, answer) in enumerate(state["answers"].items()):
        given = {**answer, "taken": answer["settled"], "place": number}
        if request_id in asked:
            asked[request_id]["given"] = given
        else:
            late[request_id] = given
    state["asks"] = {"open": asked}
    state["resolved"] = dict.fromkeys(state["resolved"][-RECENT_IDS:])
    token, state["token"] = state["token"], None
    state = completed(State, state)
    # Of two tokens the one of the snapshot holds: a position had none.
    return [place, state] if token is None else [place, state, token]


def _held(line: dict[str, Any]) -> dict[str, Any]:
    """Return what waited in a thread: the permissions of its calls were kept with these."""
    events, undecided = [], []
    for event in line["held"]:
        call = line["calls"].get(event.get("call_id")) if event["type"] == "tool.called" else None
        if call is not None and call["permission"] is None:
            undecided.append(event["call_id"])
        elif call is not None:
            event = {**event, "permission": call["permission"]}
        events.append(event)
    return {"events": events, "undecided": undecided, "since": line["held_at"]}
