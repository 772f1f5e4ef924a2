"""What a run ends with that waits for a person, and the answers, which go together in one run.

Pydantic AI runs a tool twice if it is resumed twice, and LangGraph takes any id for the one that is
open: so no answer is sent twice, and none but to what the newest run has told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from adapters.agui import wire
from adapters.agui.client import turns
from adapters.agui.client.state import AguiClientState, AguiEvent, AguiInterrupt, AguiToolCall
from adapters.driving import runs
from adapters.driving.asks import InteractionAnswer
from adapters.driving.transcript import GivenResult
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.interactions import answer_of
from adapters.wire.jsonvalue import JsonError, format_json, name_of, parse_json, rest_of

_APPROVALS = frozenset({wire.TOOL_CALL, wire.TOOL_APPROVAL, wire.CONFIRMATION})

_KNOWN = frozenset({"id", "message", "toolCallId"})
"""Members that the model knows; the others stay beside them."""

YES_NO = (
    ev.Option(id="approve", label="Approve", decision="allow", scope="once", style="primary"),
    ev.Option(id="deny", label="Deny", decision="deny", style="danger"),
)
"""A payload says `approved`; the ids are ours."""

# Asking.


def requested(s: AguiClientState, found: list[Any], seen: AguiEvent) -> list[ev.Event]:
    """Take the interrupts that a run ends with: the turn stays open. Calls that ask the same are
    done with."""
    out = turns.end_step(s, seen.native)
    asking = _take_asking(s)
    # What the run told besides is the older form of the same, which a LangGraph has.
    mapped = bool(s.legacy) and len(found) > 1
    s.legacy = []
    for one in found:
        if isinstance(one, dict):
            asked = AguiInterrupt("question", form="map" if mapped else "resume")
            call = asking.get(name_of(one.get("toolCallId")) or "")
            told = one
            if call is not None:
                told, asked.value = {**one, "toolCallId": call.about}, call.name
            out += _request(s, told, seen.native, asked)
    return [*out, _paused(s, seen)]


def legacy(s: AguiClientState, seen: AguiEvent) -> list[ev.Event]:
    """Take what the `on_interrupt` events of a run ask, which LangGraph and Mastra send before a
    plain end: their value is JSON as text."""
    out = turns.end_step(s, seen.native)
    values, s.legacy = s.legacy, []
    mapped = len(values) > 1 and all(of_graph for of_graph, _ in values)
    for of_graph, value in values:
        said = parsed(value) if isinstance(value, str) else value
        one = said if isinstance(said, dict) else {"message": said if isinstance(said, str) else ""}
        name = of_graph or name_of(one.get("id"))
        name = name or f"interrupt-{s.turns}-{len(s.asks.open) + 1}"
        asked = AguiInterrupt("question", form="map" if mapped else "command", value=value)
        out += _request(s, {**one, "id": name}, seen.native, asked)
    return [*out, _paused(s, seen)]


def pending(s: AguiClientState, call_ids: list[str], seen: AguiEvent) -> list[ev.Event]:
    """Take calls whose results the application has to give, and those that ask for a yes."""
    out = turns.end_step(s, seen.native)
    asking = _take_asking(s)
    for name, call in asking.items():
        one = {"id": name, "reason": wire.CONFIRMATION, "toolCallId": call.about}
        asked = AguiInterrupt("approval", form="call", value=call.name)
        out += _request(s, {**one, "message": call.hint}, seen.native, asked)
    about = {call.about for call in asking.values()}
    for call_id in call_ids:
        if call_id in asking or call_id in about:
            continue
        call = s.calls[call_id]
        s.asks.ask(call_id, AguiInterrupt("tool_result", call_id=call_id, form="tool"))
        out.append(
            ev.InteractionRequested(
                thread_id=ev.MAIN,
                turn_id=s.turn,
                request_id=call_id,
                kind="tool_result",
                prompt=f"Run `{call.name}` and give its result.",
                freeform=True,
                call_id=call_id,
                details=s.details_of(call_id),
                native=_of_run(s, seen.native),
            )
        )
    return [*out, _paused(s, seen)]


def left_open(s: AguiClientState) -> list[str]:
    """Return the calls that a run leaves without result. An ADK carries out one of two answers, and
    then never says what became of the other call."""
    return [call_id for call_id, call in s.calls.items() if call.told and not call.asked]


def _take_asking(s: AguiClientState) -> dict[str, AguiToolCall]:
    """Take the calls that ask for a yes to another one: they are asked, and have no result."""
    found = {call_id: call for call_id, call in s.calls.items() if call.about}
    for call_id in found:
        del s.calls[call_id]
        s.returned.append(call_id)
    return found


def _paused(s: AguiClientState, seen: AguiEvent) -> ev.Event:
    return ev.TurnPaused(thread_id=ev.MAIN, turn_id=s.turn, on="input", native=seen.native)


def _of_run(s: AguiClientState, native: ev.NativeRef) -> ev.NativeRef:
    """Return where a request comes from, named by its place: a later run may ask under the same
    id."""
    return native.model_copy(update={"id": f"{s.turn}.{native.frame}"})


def asked_calls(name: str, payload: Mapping[str, Any]) -> list[str]:
    """Return the calls that an event asks a person's yes for. One that asks a question itself has
    begun."""
    found: list[Any] = []
    match payload:
        case {"outcome": {"interrupts": list(interrupts)}} if name == "RUN_FINISHED":
            found = interrupts
        case {"name": wire.ON_INTERRUPT, "value": value} if name == "CUSTOM":
            found = [parsed(value) if isinstance(value, str) else value]
    asked = [one for one in found if isinstance(one, dict) and _is_approval(one)]
    named = [name_of(one.get("toolCallId")) for one in asked]
    return [call_id for call_id in named if call_id is not None]


def _is_approval(one: Mapping[str, Any]) -> bool:
    """Say whether an interrupt wants a yes or a no: its schema says so, or where it has none its
    reason."""
    members = _members(one.get("responseSchema"))
    plain = not members and not _choices(one.get("responseSchema"), members)
    return "approved" in members or (plain and name_of(one.get("reason")) in _APPROVALS)


def parsed(text: str) -> Any:
    """Return the JSON value that a text is, or the text."""
    try:
        return parse_json(text)
    except JsonError:
        return text


def _request(
    s: AguiClientState, one: dict[str, Any], native: ev.NativeRef, asked: AguiInterrupt
) -> list[ev.Event]:
    request_id = name_of(one.get("id"))
    if request_id is None or request_id in s.asks.open:
        return []
    schema = one.get("responseSchema")
    members = _members(schema)
    choices = _choices(schema, members)
    call_id = name_of(one.get("toolCallId"))
    if call_id not in s.calls:
        call_id = None
    asked.yes_no = _is_approval(one)
    # An Agent Framework refuses what its schema does not name, and then all messages.
    asked.reasoned = not members or "reason" in members
    asked.kind = "approval" if asked.yes_no else "question"
    asked.call_id = call_id
    if not asked.yes_no and len(members) == 1:
        asked.member = next(iter(members))
    options: tuple[ev.Option, ...] | None = None
    if asked.yes_no:
        options = YES_NO
    elif choices:
        options = tuple(ev.Option(id=choice, label=choice) for choice in choices)
    s.asks.ask(request_id, asked)
    if call_id is not None:
        s.calls[call_id].asked = asked.yes_no
    return [
        ev.InteractionRequested(
            thread_id=ev.MAIN,
            turn_id=s.turn,
            request_id=request_id,
            kind=asked.kind,
            prompt=_prompt(one),
            options=options,
            freeform=asked.kind == "question" and not (choices and _closed(schema, members)),
            call_id=call_id,
            details=None if call_id is None else s.details_of(call_id),
            native=_of_run(s, native),
            extra=rest_of(one, _KNOWN),
        )
    ]


def _prompt(one: Mapping[str, Any]) -> str:
    """Return the words of an interrupt. Those that a tool of a Strands asks are in `metadata`, any
    JSON; its `reason` is only a name."""
    match one:
        case {"message": str(words)} | {"metadata": {"reason": str(words)}}:
            return words
        case {"metadata": {"reason": dict() | list() as value}}:
            return format_json(value).decode()
    return str(one.get("reason") or "")


def _members(schema: Any) -> dict[str, Any]:
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _answer_schemas(schema: Any, members: dict[str, Any]) -> list[Any]:
    """Return the schemas of the one value that a question takes: it may be any of several."""
    value = next(iter(members.values())) if len(members) == 1 else schema
    if not isinstance(value, dict):
        return []
    several = value.get("anyOf") or value.get("oneOf")
    return several if isinstance(several, list) else [value]


def _choices(schema: Any, members: dict[str, Any]) -> list[str]:
    """Return what may be chosen from."""
    found: list[str] = []
    for one in _answer_schemas(schema, members):
        if not isinstance(one, dict):
            continue
        values = [one["const"]] if "const" in one else one.get("enum")
        listed = values if isinstance(values, list) else ()
        found += [value for value in listed if isinstance(value, str) and value]
    return list(dict.fromkeys(found))


def _closed(schema: Any, members: dict[str, Any]) -> bool:
    """Say whether nothing but the choices is taken."""
    return all(
        isinstance(one, dict) and (isinstance(one.get("enum"), list) or "const" in one)
        for one in _answer_schemas(schema, members)
    )


# Answering.


def give(s: AguiClientState, command_id: str, command: cmd.AnswerInteraction) -> None:
    """Keep an answer until the others are here."""
    asked = s.asks.open[command.request_id]
    outcome: ev.InteractionOutcome = "skipped" if command.skip else "answered"
    scope: Any = None
    if asked.yes_no and not command.skip:
        outcome = "approved" if _allows(command) else "denied"
        scope = "once" if outcome == "approved" else None
    given = InteractionAnswer(command_id, outcome, answer_of(command), scope)
    runs.gather(s.asks, s.ledger, command.request_id, given, _reply(command, asked))


def _allows(command: cmd.AnswerInteraction) -> bool:
    if command.decision is not None:
        return command.decision == "allow"
    return YES_NO[0].id in command.option_ids


def _reply(command: cmd.AnswerInteraction, asked: AguiInterrupt) -> dict[str, Any]:
    """Return an answer as the run has it: a resume entry without its id, or members of a message
    of a tool."""
    words = command.text if command.text is not None else ev.text_of(command.content)
    if asked.form == "tool":
        if command.skip:
            words = command.reason or "The call was not carried out."
        return {"content": words, "error": words} if command.is_error else {"content": words}
    if asked.form == "call":
        answer = {wire.ASKING_CALLS[asked.value]: _allows(command) and not command.skip}
        return {"content": format_json(answer).decode()}
    if command.skip:
        return {"status": wire.CANCELLED}
    payload: Any
    if asked.yes_no:
        payload = {"approved": _allows(command)}
        if asked.reasoned and (reason := command.reason or command.text):
            payload["reason"] = reason
    elif command.option_ids:
        chosen = ", ".join(command.option_ids)
        payload = {asked.member: chosen} if asked.member else chosen
    else:
        # Who asks for several values is answered with an object.
        payload = {asked.member: words} if asked.member else parsed(words)
    return {"status": wire.RESOLVED, "payload": payload}


def resume_of(
    asks: Mapping[str, AguiInterrupt],
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return what a run says to what is asked: the entries of `resume`, and the older `command`.

    A LangGraph, which is known by its `on_interrupt` events, takes one answer in both; several only
    as a map in `command`: `ag-ui-langgraph` 0.0.47 hands the graph a `resume` that it refuses, and
    then everything is still asked."""
    resume: list[dict[str, Any]] = []
    command = None
    mapped: dict[str, Any] = {}
    for request_id, asked in asks.items():
        assert asked.reply is not None
        if asked.form == "map":
            cancelled = {wire.GRAPH_CANCELLED: True, "interrupt_id": request_id}
            mapped[request_id] = asked.reply.get("payload", cancelled)
        elif asked.form == "command":
            payload = asked.reply.get("payload", wire.CANCELLED)
            value = payload if isinstance(payload, str) else format_json(payload).decode()
            command = {"resume": value, "interruptEvent": asked.value}
        elif asked.form == "resume":
            resume.append({"interruptId": request_id, **asked.reply})
    return resume, {"resume": mapped} if mapped else command


def drop(s: AguiClientState) -> None:
    """Remember what a stop takes back: nothing tells the agent, and some take no message before."""
    for request_id, asked in s.asks.open.items():
        if asked.form in ("resume", "command", "map"):
            asked.given, asked.reply = None, {"status": wire.CANCELLED}
            s.dropped[request_id] = asked


def is_withdrawn_first(s: AguiClientState) -> bool:
    """Say whether the agent is told what was taken back before it gets a message: an ADK drops the
    message that it refuses."""
    return any(name_of(one.value) in wire.ASKING_CALLS for one in s.dropped.values())


def still_asked(s: AguiClientState, seen: AguiEvent) -> bool:
    """Say whether a run that has shown nothing ends with what was taken back: a LangGraph asks it
    again and does not hear the message, a Strands and an Agent Framework refuse the message."""
    run = s.runs.current
    if not s.dropped or run is None or run.answers or run.working or s.withdraws:
        return False
    match seen.payload:
        case {"type": "RUN_ERROR", "code": str(code)}:
            return any(word in code.upper() for word in ("INTERRUPT", "RESUME"))
        case {"outcome": {"interrupts": list(found)}}:
            names = [one.get("id") for one in found if isinstance(one, dict)]
        case _:
            names = [of_graph for of_graph, _ in s.legacy]
    return bool(names) and all(name in s.dropped for name in names)


def results_of(s: AguiClientState) -> dict[str, GivenResult]:
    """Return the results that the application gave, by call."""
    return {
        name: GivenResult(str(asked.reply.get("content", "")), "error" in asked.reply)
        for name, asked in s.asks.open.items()
        if asked.form == "tool" and asked.reply is not None
    }


def asking_calls(s: AguiClientState) -> Iterator[bytes]:
    """Yield the messages that answer calls which ask for a yes: each such call, which is not part
    of the conversation otherwise, and its result."""
    for name, asked in s.asks.open.items():
        if asked.form != "call" or asked.reply is None:
            continue
        function = {"name": asked.value, "arguments": "{}"}
        call = {"id": name, "type": "function", "function": function}
        owner = {"id": f"calls-{name}", "role": "assistant", "content": "", "toolCalls": [call]}
        yield format_json(owner)
        result = {"id": f"result-{name}", "role": "tool", "toolCallId": name}
        yield format_json({**result, **asked.reply})


def waiting_calls(s: AguiClientState) -> frozenset[str]:
    """Return the calls of the turn that have no result yet, whether an interrupt names them or not:
    the agent goes on with them."""
    return frozenset(s.calls)
