"""Uses that wait for an answer, and what was answered (section 7.6).

A request has the id of the use's event. The service repeats no answer in an idle, and an idle may
still name a use that was answered (live page, section 1): what is `over` is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.driving.asks import InteractionAnswer
from adapters.managed_agents.client import contents, posts
from adapters.managed_agents.client.state import AgentsState, AgentThread, OpenToolUse, UseRequest
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.interactions import answer_of
from adapters.wire.errors import NotSupported
from adapters.wire.jsonvalue import name_of, text_of

APPROVAL_OPTIONS = (
    ev.Option(id="allow", label="Allow", decision="allow", scope="once", style="primary"),
    ev.Option(id="deny", label="Deny", decision="deny", style="danger"),
)
"""The results of a tool confirmation (section 4.1)."""


# Asking.


def ask(s: AgentsState, thread: AgentThread, use_id: str, native: ev.NativeRef) -> list[ev.Event]:
    """Ask for what an open use waits for: a permission, or the result of what the application
    runs. A child's is shown on the session too."""
    use = thread.uses.get(use_id)
    if use_id in s.asks.open:
        return []
    result = use is not None and (use.custom or use.permission == "allow")
    kind: ev.InteractionKind = "tool_result" if result else "approval"
    tool = "a tool" if use is None else f"`{use.tool}`"
    details: dict[str, Any] = {} if use is None else {"tool": use.tool}
    if use is not None and use.kept:
        details["input"] = use.input
    s.asks.ask(use_id, UseRequest(kind, thread.thread_id, use_id if use else None))
    return [
        ev.InteractionRequested(
            **thread.of(native),
            request_id=use_id,
            kind=kind,
            prompt=f"Run {tool} and give its result." if result else f"Allow {tool}?",
            options=None if result else APPROVAL_OPTIONS,
            freeform=result,
            call_id=use_id if use is not None else None,
            shown_on=None if thread.is_main else ev.MAIN,
            details=details or None,
        )
    ]


# Answering.


def answer(s: AgentsState, command_id: str, command: cmd.AnswerInteraction) -> list[dict[str, Any]]:
    """Return the events that carry an answer, and remember it.

    Raises:
        NotSupported: nothing waits for it any more.
    """
    request = s.asks.open.get(command.request_id)
    if request is None:
        raise NotSupported(f"managed-agents: request `{command.request_id}` is not open any more")
    event = _answer_event(s, command, request)
    if request.thread_id != ev.MAIN:
        event["session_thread_id"] = request.thread_id
    s.asks.give(command.request_id, _given(command_id, command, request.kind))
    return [event, *posts.system(command.system)]


def _answer_event(
    s: AgentsState, command: cmd.AnswerInteraction, request: UseRequest
) -> dict[str, Any]:
    name = command.request_id
    if request.kind == "approval":
        if command.decision == "allow":
            return {"type": "user.tool_confirmation", "tool_use_id": name, "result": "allow"}
        words = command.reason or command.text
        told = {"deny_message": words} if words else {}
        return {
            "type": "user.tool_confirmation",
            "tool_use_id": name,
            "result": "deny",
            **told,
        }
    content = contents.posted(command.content)
    if not content and command.text is not None:
        content = [{"type": "text", "text": command.text}]
    custom = _is_custom(s, request)
    event: dict[str, Any] = {
        "type": "user.custom_tool_result" if custom else "user.tool_result",
        "custom_tool_use_id" if custom else "tool_use_id": name,
        "content": content,
    }
    return {**event, "is_error": True} if command.is_error or command.skip else event


def _is_custom(s: AgentsState, request: UseRequest) -> bool:
    use = s.thread(request.thread_id).uses.get(request.call_id or "")
    return use is None or use.custom


def _given(
    command_id: str, command: cmd.AnswerInteraction, kind: ev.InteractionKind
) -> InteractionAnswer:
    said = answer_of(command)
    if kind != "approval":
        return InteractionAnswer(command_id, "skipped" if command.skip else "answered", said)
    if command.decision == "allow":
        return InteractionAnswer(command_id, "approved", said, scope="once")
    return InteractionAnswer(command_id, "denied", said)


def tool_result(s: AgentsState, command_id: str, command: cmd.ToolResult) -> list[dict[str, Any]]:
    """Return the events that carry the result of a built-in tool that the frontend ran (section
    4.1, self-hosted).

    Raises:
        NotSupported: no such use is open.
    """
    name = command.call_id
    owner = next((one for one in s.threads.values() if name in one.uses), None)
    if owner is None:
        raise NotSupported(f"managed-agents: tool use `{name}` is not open any more")
    content = contents.posted(command.content)
    event: dict[str, Any] = {"type": "user.tool_result", "tool_use_id": name, "content": content}
    if command.is_error:
        event["is_error"] = True
    if not owner.is_main:
        event["session_thread_id"] = owner.thread_id
    if name in s.asks.open:
        said = ev.Answer(content=command.content, is_error=command.is_error)
        s.asks.give(name, InteractionAnswer(command_id, "answered", said, claims=False))
    return [event, *posts.system(command.system)]


# What the service shows.


def answered(s: AgentsState, event: Mapping[str, Any], native: ev.NativeRef) -> list[ev.Event]:
    """Take the event of an answer, ours or another's: the use that it names tells (live page,
    section 1)."""
    name = name_of(event.get("tool_use_id")) or name_of(event.get("custom_tool_use_id"))
    if name is None or name not in s.asks.open:
        return []
    outcome: ev.InteractionOutcome = "answered"
    said = ev.Answer(reason=text_of(event.get("deny_message")))
    if event.get("result") in ("allow", "deny"):
        outcome = "approved" if event["result"] == "allow" else "denied"
    elif event.get("content"):
        content = contents.shown(event["content"])
        said = ev.Answer(content=content, is_error=event.get("is_error") is True)
    s.asks.give_elsewhere(name, InteractionAnswer(None, outcome, said, claims=False))
    return resolve(s, name, native)


def resolve(s: AgentsState, name: str, native: ev.NativeRef | None, **said: Any) -> list[ev.Event]:
    """Resolve a request: with the answer that was given, where the service says no more. The
    result of what the application runs has no event but its answer (section 7.2)."""
    request = s.asks.open.get(name)
    if request is None:
        return []
    thread = s.thread(request.thread_id)
    use = thread.uses.get(name)
    given = request.given
    if given is not None:
        s.put_over(name)
    if given is not None and given.outcome == "denied" and use is not None:
        use.denied = True
    found = s.asks.resolve(name, thread.turn, native=native, synthetic=True, **said)
    assert found is not None
    out: list[ev.Event] = []
    if given is not None and given.command_id is not None:
        # The effect proves that the answer arrived, whatever becomes of the request's reply.
        out += settle(s, given.command_id, "taken")
    if request.kind == "tool_result" and given is not None and use is not None:
        out.append(_returned(thread, name, use, given.reply or ev.Answer(), native))
    return [*out, found.event]


def settle(
    s: AgentsState, command_id: str, outcome: Any, error: ev.ErrorInfo | None = None
) -> list[ev.Event]:
    """Hear what became of an input, which is not looked for any more."""
    s.doubts.forget(command_id)
    return s.ledger.settle(command_id, outcome, error)


def _returned(
    thread: AgentThread, name: str, use: OpenToolUse, given: ev.Answer, native: ev.NativeRef | None
) -> ev.Event:
    del thread.uses[name]
    content = given.content
    if content is None and given.text is not None:
        content = (ev.Text(text=given.text),)
    return ev.ToolReturned(
        **thread.of(native),
        call_id=name,
        content=content,
        output_known=content is not None,
        is_error=given.is_error,
        status="failed" if given.is_error else "completed",
        synthetic=True,
    )


def resolve_given(
    s: AgentsState, thread: AgentThread, native: ev.NativeRef | None
) -> list[ev.Event]:
    """Resolve what was answered of a thread that goes on."""
    given = [
        name
        for name, request in s.asks.open.items()
        if request.given is not None and request.thread_id == thread.thread_id
    ]
    return [event for name in given for event in resolve(s, name, native)]


def waits_for(
    s: AgentsState, thread: AgentThread, names: list[str], native: ev.NativeRef
) -> list[ev.Event]:
    """Take what an idle of a thread names: what is new of it is asked, and what was asked and is
    not named any more is over. The session's idle names what waits in all threads."""
    out: list[ev.Event] = []
    waits: list[str] = []
    for name in names:
        owner = thread
        if thread.is_main:
            owner = next((one for one in s.threads.values() if name in one.uses), thread)
        waits.append(next((key for key, use in owner.uses.items() if use.alias == name), name))
        out += ask(s, owner, waits[-1], native)
    for name, request in list(s.asks.open.items()):
        if name in waits:
            request.named = True
        elif (thread.is_main or request.thread_id == thread.thread_id) and (
            request.named or request.given is not None
        ):
            # Of what another stream has told only later this one says nothing.
            out += resolve(s, name, native)
    return out
