"""The scripted AG-UI agent, driven by the strict client: scripts, refusals, clients that leave."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from proxy.base.clock import ManualClock
from proxy.scripted import BACKENDS, ScriptedOptions
from proxy.scripted.agui import AGUI, create_agui_app
from proxy.scripted.agui_frames import EVENTS, PARTS
from proxy.scripted.agui_turns import ScriptedAgui
from proxy.scripted.faults import Cut, Fault, Faults, HalfFrame, Redirect, Silence, SlowHead, Status
from proxy.scripted.scripts import SCRIPT_NAMES
from proxy.scripted.templates import Template, dump
from tests.support.agui_client import AguiClient, Applied, Checker, Refused, split
from tests.support.each import each
from tests.support.serving import served
from tests.support.strictness import Disconnected
from tests.support.waiting import SOON_S, until

RECORDINGS = Path(__file__).parent.parent / "fixtures" / "wire" / "agui"
RECORDED = "pydantic-ai-2.68.0"
KEY = "k-local-9"

Event = dict[str, Any]


class Talk:
    """One conversation as a client holds it: all that it knows goes along with each request."""

    def __init__(self, client: AguiClient, agent: ScriptedAgui, thread: str = "t-1") -> None:
        self.client = client
        self.agent = agent
        self.thread = thread
        self.held = Applied()
        self.seen: list[Event] = []
        self._runs = 0

    @property
    def told(self) -> Any:
        """What the agent remembers of the thread."""
        return self.agent.talks[self.thread]

    async def say(self, words: Any, **more: Any) -> list[Event]:
        """Say something, and return the events of the run."""
        number = len(self.held.messages)
        self.held.messages.append({"id": f"u-{number}", "role": "user", "content": words})
        return await self.run(**more)

    async def answer(self, *payloads: Any, **more: Any) -> list[Event]:
        """Answer all that is open in one run: with payloads, `None` for one that is cancelled."""
        entries = []
        for interrupt, payload in zip(self.held.interrupts, payloads, strict=True):
            entry = {"interruptId": interrupt["id"], "status": "cancelled"}
            if payload is not None:
                entry |= {"status": "resolved", "payload": payload}
            entries.append(entry)
        return await self.run(resume=entries, **more)

    async def run(self, **more: Any) -> list[Event]:
        """Ask for a run with what is held, and take what it tells."""
        self._runs += 1
        self.seen = []
        run = self.client.run(self.thread, f"run-{self._runs}", self.held.messages, **more)
        async with asyncio.timeout(SOON_S), aclosing(run) as events:
            async for event in events:
                self.seen.append(event)
                self.held.apply(event)
        return self.seen

    @property
    def text(self) -> str:
        """The text of the newest run."""
        return "".join(event["delta"] for event in of(self.seen, "TEXT_MESSAGE_CONTENT"))


Serve = Callable[..., Awaitable[Talk]]


def of(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event["type"] == kind]


def kinds(events: Sequence[Event]) -> list[str]:
    return [event["type"] for event in events]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start scripted agents; each call gives a conversation with a new one."""
    closing: list[Any] = []

    async def start(*, sent: str = KEY, mount: str = "", **options: Any) -> Talk:
        app = create_agui_app(**{"key": KEY, "pace": 0.0, **options})
        outer = app
        if mount:
            outer = web.Application()
            outer.add_subapp(mount, app)
        server = served(outer)
        url = await server.__aenter__()
        http = aiohttp.ClientSession(headers={"Authorization": f"Bearer {sent}"})
        closing.extend((http, server))
        return Talk(AguiClient(http, f"{url}{mount}", stamped=False), app[AGUI])

    yield start
    for one in closing:
        await one.__aexit__(None, None, None)


# Templates.


def recorded(source: str) -> list[Event]:
    """Return the events of a recording."""
    return split((RECORDINGS / source).read_bytes())


def alike(ours: object, theirs: object) -> bool:
    """Whether a value has the members of a recorded one, in the same order."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        names = list(ours)
        return names == list(theirs) and all(alike(ours[name], theirs[name]) for name in names)
    if isinstance(ours, list) and isinstance(theirs, list):
        return bool(ours) == bool(theirs) and all(map(alike, ours, theirs))
    return type(ours) is type(theirs)


def sources() -> list[tuple[str, Template]]:
    return [*EVENTS.items(), *((f"part {name}", one) for name, one in PARTS.items())]


@each(("name", "template"), sources())
def test_every_template_has_the_members_of_what_it_was_cut_from(
    name: str, template: Template
) -> None:
    assert dump(json.loads(template.data)) == template.data
    if re.fullmatch(r"ag-ui page, section \d(\.\d)?|made up", template.source):
        assert name in ("finished_result", "odd", "part question")
        return
    ours = template.payload()
    match name:
        case "part error":
            found = json.loads((RECORDINGS / template.source).read_text())
        case "part approval":
            outcomes = [event["outcome"] for event in of(recorded(template.source), "RUN_FINISHED")]
            found = [one for outcome in outcomes for one in outcome["interrupts"]]
            assert ours["responseSchema"] in [one["responseSchema"] for one in found]
        case "part usage":
            found = of(recorded(template.source), "RUN_FINISHED")[0]["usage"]
        case "part encrypted":
            (told,) = of(recorded(template.source), "REASONING_ENCRYPTED_VALUE")
            found = [json.loads(told["encryptedValue"])]
            assert json.dumps(ours) == told["encryptedValue"]
        case _:
            found = of(recorded(template.source), template.type)
    if name == "part error":
        ours = {**ours, "loc": ["x"], "input": {"x": 1}}
        assert [list(one) for one in found] == [list(ours)]
    else:
        assert any(alike(ours, one) for one in found)


def forms(events: Sequence[Event]) -> list[tuple[str, list[str]]]:
    """Return the types and members of events in order, equal neighbours as one."""
    found = [(event["type"], list(event)) for event in events]
    return [one for at, one in enumerate(found) if at == 0 or found[at - 1] != one]


@pytest.mark.parametrize(
    ("script", "source"),
    [
        ("text", "client-1.0.0/text-two-turns/01.response.sse"),
        ("reason", "client-1.0.0/reasoning/01.response.sse"),
        ("failmid", "client-1.0.0/error/01.response.sse"),
        ("custom", f"{RECORDED}/frontend-tool.sse"),
        ("approve", "client-1.0.0/interrupt-approved/01.response.sse"),
        ("toolfail", "client-1.0.0/tool/01.response.sse"),
    ],
)
async def test_a_run_has_the_events_and_members_of_a_recorded_one(
    serve: Serve, script: str, source: str
) -> None:
    talk = await serve()
    played = forms(await talk.say(f"script: {script}"))
    # These models said nothing beside the call, and that tool did not fail.
    said = ("TEXT_MESSAGE_CONTENT",) if script in ("custom", "approve") else ()
    said = ("REASONING_ENCRYPTED_VALUE",) if script == "toolfail" else said
    assert [one for one in played if one[0] not in said] == forms(recorded(source))


@pytest.mark.parametrize(
    ("payload", "source"),
    [
        ({"approved": False, "reason": "not now"}, f"{RECORDED}/interrupt-denied.sse"),
        (None, f"{RECORDED}/interrupt-cancelled.sse"),
        ({"approved": True}, "client-1.0.0/interrupt-approved/02.response.sse"),
        ("yes", f"{RECORDED}/interrupt-bad-payload.sse"),
    ],
)
async def test_a_resumed_run_has_the_events_and_members_of_a_recorded_one(
    serve: Serve, payload: Any, source: str
) -> None:
    talk = await serve()
    await talk.say("script: approve")
    assert forms(await talk.answer(payload)) == forms(recorded(source))
    theirs = of(recorded(source), "TOOL_CALL_RESULT")
    if payload is None or (isinstance(payload, dict) and "reason" in payload):
        results = of(talk.seen, "TOOL_CALL_RESULT")
        assert [one["content"] for one in results] == [one["content"] for one in theirs]
        markers = of(talk.seen, "REASONING_ENCRYPTED_VALUE")
        assert [one["encryptedValue"] for one in markers] == [
            one["encryptedValue"] for one in of(recorded(source), "REASONING_ENCRYPTED_VALUE")
        ]
        assert [one["entityId"] for one in markers] == [one["messageId"] for one in results]


async def test_no_word_of_a_template_is_ever_sent(serve: Serve) -> None:
    words = {"message-1", "call-1", "int-call-1", "thread-1"}

    def texts(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set().union(*map(texts, value.values()))
        if isinstance(value, list):
            return set().union(*map(texts, value))
        return {value} if isinstance(value, str) else set()

    for script in SCRIPT_NAMES:
        talk = await serve()
        for event in await raw(talk, f"script: {script} 3"):
            assert not texts(event) & words, event
            assert event.get("timestamp") != 0


async def raw(talk: Talk, words: str) -> list[Event]:
    """Return the events of a first run, unchecked."""
    body = request_body(words)
    async with talk.client.http.post(talk.client.url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        lines = (await answer.text()).splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def request_body(words: str = "hi", **more: Any) -> dict[str, Any]:
    messages = [{"id": "u-1", "role": "user", "content": words}]
    return {"threadId": "t-1", "runId": "run-1", "messages": messages, **more}


# Scripts.


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("text", "Basil likes six hours of sun"),
        ("reason", "so 19.99 becomes 1998."),
        ("tool", "Checking the rounding helper."),
        ("tools", "without a guard."),
        ("toolfail", "must be connected again."),
        ("long 600", "tick 599 "),
        ("slow 3", "tick 2 "),
        ("secret", "This agent has no secrets to ask for."),
        ("sudo", "This agent has no passwords to ask for."),
        ("signin", "This agent has no sign-in to ask for."),
        ("limit", "This agent has no limit to ask about."),
        ("child", "This agent has no child agents."),
        ("childask", "This agent has no child agents."),
        ("compact", "This agent has no event for a shorter history."),
        ("memory", "This agent has no event for notes."),
        ("nonsense", "There is no script `nonsense`"),
    ],
)
async def test_a_script_is_played_in_events_that_a_strict_client_takes(
    serve: Serve, script: str, said: str
) -> None:
    talk = await serve()
    finished = (await talk.say(f"script: {script}"))[-1]
    assert said in talk.text
    assert talk.text.endswith("(turn 1)")
    assert finished["outcome"] == {"type": "success"}
    (usage,) = finished["usage"]
    assert usage["totalTokens"] == usage["inputTokens"] + usage["outputTokens"] > 50


async def test_tools_that_run_at_once_are_all_called_before_the_first_returns(
    serve: Serve,
) -> None:
    talk = await serve()
    seen = await talk.say("script: tools")
    calls = of(seen, "TOOL_CALL_START")
    assert len({one["parentMessageId"] for one in calls}) == 1
    assert kinds(seen).index("TOOL_CALL_RESULT") > kinds(seen).index("TOOL_CALL_END", 8)
    inputs = {one["toolCallId"]: "" for one in calls}
    for piece in of(seen, "TOOL_CALL_ARGS"):
        inputs[piece["toolCallId"]] += piece["delta"]
    assert len(of(seen, "TOOL_CALL_ARGS")) == 4
    paths = [json.loads(text)["path"] for text in inputs.values()]
    assert paths == ["/workspace/a.sql", "/workspace/b.sql"]
    results = {one["toolCallId"]: one["content"] for one in of(seen, "TOOL_CALL_RESULT")}
    assert [results[name] for name in inputs] == ["CREATE TABLE t (id int);\n", "DROP TABLE u;\n"]
    assert seen[-1]["usage"][0]["inputTokens"] == 100


async def test_a_silent_model_has_an_empty_text_before_its_call(serve: Serve) -> None:
    talk = await serve()
    seen = await talk.say("script: limit")
    empty, *_ = of(seen, "TEXT_MESSAGE_START")
    assert kinds(seen)[1:4] == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "TOOL_CALL_START"]
    assert seen[3]["parentMessageId"] == empty["messageId"]


async def test_a_tool_that_fails_says_so_behind_its_result(serve: Serve) -> None:
    talk = await serve()
    seen = await talk.say("script: toolfail")
    at = kinds(seen).index("TOOL_CALL_RESULT")
    assert seen[at]["content"] == "connector token expired"
    assert seen[at + 1]["entityId"] == seen[at]["messageId"]
    assert json.loads(seen[at + 1]["encryptedValue"]) == {"pydantic_ai": {"outcome": "failed"}}


async def test_thoughts_come_in_a_span_with_their_signature(serve: Serve) -> None:
    talk = await serve()
    seen = await talk.say("script: reason")
    thought = "".join(one["delta"] for one in of(seen, "REASONING_MESSAGE_CONTENT"))
    assert thought.startswith("The failing test is about rounding. ")
    (signature,) = of(seen, "REASONING_ENCRYPTED_VALUE")
    assert signature["entityId"] == of(seen, "REASONING_START")[0]["messageId"]


async def test_a_value_is_the_result_of_the_run(serve: Serve) -> None:
    talk = await serve()
    assert (await talk.say("script: structured"))[-1]["result"] == {"title": "Towers", "count": 2}
    assert "result" not in (await talk.say("hi"))[-1]


async def test_an_unknown_event_comes_before_known_ones(serve: Serve) -> None:
    talk = await serve()
    seen = await raw(talk, "script: unknown")
    assert kinds(seen)[:3] == ["RUN_STARTED", "FUTURE_EVENT", "TEXT_MESSAGE_START"]
    said = "".join(event["delta"] for event in of(seen, "TEXT_MESSAGE_CONTENT"))
    assert said == "Something new: There was something new in between. (turn 1)"


@pytest.mark.parametrize(
    ("script", "message", "before"),
    [
        ("fail", "LLM_RATE_LIMITED: The provider is limiting requests.", "RUN_STARTED"),
        (
            "failmid",
            "LLM_PROVIDER_ERROR: The model provider failed while generating.",
            "TEXT_MESSAGE_END",
        ),
    ],
)
async def test_a_turn_that_fails_ends_with_an_error_without_a_code(
    serve: Serve, script: str, message: str, before: str
) -> None:
    talk = await serve()
    seen = await talk.say(f"script: {script}")
    assert kinds(seen)[-2:] == [before, "RUN_ERROR"]
    assert list(seen[-1]) == ["type", "timestamp", "message"]
    assert seen[-1]["message"] == message
    assert "timestamp" not in seen[-2] or script == "fail"
    await talk.say("and now?")
    assert talk.text == "You said: “and now?”. (turn 2)"


async def test_times_are_those_of_the_clock(serve: Serve) -> None:
    talk = await serve(clock=ManualClock(1_795_766_123_000))
    assert {event["timestamp"] for event in await talk.say("hi")} == {1_795_766_123_000}


# What it knows: the messages of the request.


async def test_it_counts_the_turns_that_the_request_brings_and_no_others(serve: Serve) -> None:
    talk = await serve()
    for turn in (1, 2, 3):
        await talk.say("hi")
        assert talk.text.endswith(f"(turn {turn})")
    talk.held.messages.clear()
    await talk.say("hi")
    assert talk.text.endswith("(turn 1)")
    assert talk.told.runs == ["run-1", "run-2", "run-3", "run-4"]


async def test_the_same_run_twice_is_executed_twice(serve: Serve) -> None:
    talk = await serve()
    assert forms(await raw(talk, "script: tool")) == forms(await raw(talk, "script: tool"))
    assert talk.told.runs == ["run-1", "run-1"]


async def test_a_run_without_words_behind_an_answer_is_empty(serve: Serve) -> None:
    talk = await serve()
    await talk.say("hi")
    started, finished = await talk.run()
    assert started["type"] == "RUN_STARTED"
    assert finished["outcome"] == {"type": "success"}
    assert "usage" not in finished


async def test_a_system_message_is_let_pass_wherever_it_stands(serve: Serve) -> None:
    talk = await serve()
    talk.held.messages.append({"id": "s-1", "role": "system", "content": "Be brief."})
    await talk.say("one")
    talk.held.messages.append({"id": "u-9", "role": "user", "content": "two"})
    talk.held.messages.append({"id": "s-2", "role": "system", "content": "Be long."})
    await talk.run()
    assert talk.text == "You said: “two”. (turn 2)"


async def test_files_of_a_message_are_described(serve: Serve) -> None:
    talk = await serve()
    data = {"type": "data", "value": "aGVsbG8gOik=", "mimeType": "image/png"}
    url = {"type": "url", "value": "https://example.com/b.pdf"}
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image", "source": data},
        {"type": "document", "source": url},
    ]
    await talk.say(parts)
    assert "You said: “look”." in talk.text
    assert " I received image image/png of 8 bytes." in talk.text
    assert " I received document at https://example.com/b.pdf." in talk.text


async def test_a_call_without_a_result_is_dropped_by_new_words(serve: Serve) -> None:
    talk = await serve()
    await talk.say("script: approve")
    seen = await talk.say("something else")
    assert "TOOL_CALL_RESULT" not in kinds(seen)
    assert talk.text == "You said: “something else”. (turn 2)"
    assert not talk.told.executed


async def test_a_script_goes_on_behind_results_that_the_history_has(serve: Serve) -> None:
    talk = await serve()
    await talk.say("script: tools")
    last = talk.held.messages.pop()
    assert last["content"].endswith("(turn 1)")
    seen = await talk.run()
    assert "TOOL_CALL_START" not in kinds(seen)
    assert talk.text == last["content"]
    (user, *held) = talk.held.messages
    talk.held = Applied([user, *(one for one in held if one.get("toolCalls"))])
    seen = await talk.run()
    assert len(of(seen, "TOOL_CALL_RESULT")) == 2
    assert "TOOL_CALL_START" not in kinds(seen)
    assert talk.text == last["content"]


# Approvals.


async def test_an_approval_is_an_interrupt_of_its_call(serve: Serve) -> None:
    talk = await serve()
    seen = await talk.say("script: approve")
    (call,) = of(seen, "TOOL_CALL_START")
    (interrupt,) = seen[-1]["outcome"]["interrupts"]
    assert interrupt["id"] == f"int-{call['toolCallId']}"
    assert interrupt["reason"] == "tool_call"
    assert interrupt["message"] == 'Approve bash({"command":"rm -rf /srv/exports/2024"})?'
    assert interrupt["responseSchema"]["required"] == ["approved"]
    seen = await talk.answer({"approved": True})
    assert kinds(seen)[:3] == ["RUN_STARTED", "TOOL_CALL_RESULT", "TEXT_MESSAGE_START"]
    assert talk.text == " Done, 4.1 GB freed. (turn 1)"
    assert talk.told.executed == {call["toolCallId"]: 1}


@pytest.mark.parametrize(
    ("payload", "result"),
    [
        ({"approved": False}, "The tool call was denied."),
        ({"approved": False, "reason": "Not today."}, "Not today."),
        (None, "Cancelled by user."),
    ],
)
async def test_a_denied_call_has_the_reason_as_its_result(
    serve: Serve, payload: Any, result: str
) -> None:
    talk = await serve()
    await talk.say("script: approve")
    (told,) = of(await talk.answer(payload), "TOOL_CALL_RESULT")
    assert told["content"] == result
    assert talk.text == "Understood, I left /srv/exports/2024 alone. (turn 1)"
    assert not talk.told.executed


async def test_two_approvals_are_one_outcome_and_denied_ones_are_told_first(serve: Serve) -> None:
    talk = await serve()
    seen = await talk.say("script: approve2")
    first, second = (one["toolCallId"] for one in seen[-1]["outcome"]["interrupts"])
    seen = await talk.answer({"approved": True}, {"approved": False})
    assert [one["toolCallId"] for one in of(seen, "TOOL_CALL_RESULT")] == [second, first]
    assert "4.1 GB freed." in talk.text
    assert "I left /etc/hosts alone." in talk.text
    assert talk.told.executed == {first: 1}


async def test_approvals_one_after_the_other_are_two_interrupts(serve: Serve) -> None:
    talk = await serve()
    await talk.say("script: approve-twice")
    seen = await talk.answer({"approved": False})
    assert talk.text == "Understood, I left /srv/exports/2024 alone."
    assert seen[-1]["outcome"]["type"] == "interrupt"
    seen = await talk.answer({"approved": True})
    assert seen[-1]["outcome"]["type"] == "success"
    assert talk.text == "Written to /etc/hosts. (turn 1)"
    assert "TOOL_CALL_START" not in kinds(seen)


async def test_the_same_answer_again_runs_the_tool_again(serve: Serve) -> None:
    talk = await serve()
    seen = await talk.say("script: approve")
    before, (interrupt,) = list(talk.held.messages), seen[-1]["outcome"]["interrupts"]
    for times in (1, 2):
        talk.held = Applied(before)
        talk.held.interrupts = [interrupt]
        await talk.answer({"approved": True})
        assert "Done" in talk.text
        assert talk.told.executed[interrupt["toolCallId"]] == times


async def test_a_run_without_an_answer_asks_again(serve: Serve) -> None:
    talk = await serve()
    asked = (await talk.say("script: approve"))[-1]["outcome"]
    started, finished = await talk.run()
    assert started["type"] == "RUN_STARTED"
    assert finished["outcome"] == asked


@pytest.mark.parametrize("script", ["approve", "approve2", "ask"])
async def test_words_beside_an_answer_are_answered_behind_the_result(
    serve: Serve, script: str
) -> None:
    talk = await serve()
    await talk.say(f"script: {script}")
    payload: Any = {"answer": "07:40"} if script == "ask" else {"approved": True}
    payloads = [payload] * len(talk.held.interrupts)
    talk.held.messages.append({"id": "u-2", "role": "user", "content": "and?"})
    seen = await talk.answer(*payloads)
    assert len(of(seen, "TOOL_CALL_RESULT")) == len(payloads)
    assert kinds(seen)[1] == "TOOL_CALL_RESULT"
    assert talk.text == "You said: “and?”. (turn 2)"


async def test_a_refused_answer_is_an_error_with_nothing_before_it_and_may_be_given_again(
    serve: Serve,
) -> None:
    talk = await serve()
    await talk.say("script: approve refused")
    started, error = await talk.answer({"approved": True})
    assert started["type"] == "RUN_STARTED"
    assert (error["type"], error["message"]) == ("RUN_ERROR", "This answer is refused on purpose.")
    assert not talk.told.executed
    await talk.answer({"approved": True})
    assert "4.1 GB freed." in talk.text


@pytest.mark.parametrize("script", ["approve slowly", "approve fails"])
async def test_what_follows_an_answer_may_take_long_or_fail(serve: Serve, script: str) -> None:
    talk = await serve()
    await talk.say(f"script: {script}")
    seen = await talk.answer({"approved": True})
    assert "TOOL_CALL_RESULT" in kinds(seen)
    assert seen[-1]["type"] == ("RUN_ERROR" if "fails" in script else "RUN_FINISHED")


ENTRY = {"status": "resolved", "payload": {"approved": True}}


@pytest.mark.parametrize(
    ("script", "entries", "message"),
    [
        ("approve", [{**ENTRY, "interruptId": "nope"}], "does not start with the expected 'int-'"),
        ("approve", [{**ENTRY, "interruptId": "int-nope"}], "got: {'nope'}"),
        ("approve2", [{**ENTRY, "interruptId": "int-{call}"}], "for all deferred tool calls. Exp"),
        ("approve", [{"status": "resolved", "interruptId": "int-{call}"}], "(payload: model_type)"),
        (
            "approve",
            [{**ENTRY, "payload": {}, "interruptId": "int-{call}"}],
            "(approved: missing)",
        ),
        (
            "approve",
            [{**ENTRY, "payload": {"approved": "yes"}, "interruptId": "int-{call}"}],
            "(approved: bool_type)",
        ),
        (
            "approve",
            [{**ENTRY, "payload": {"approved": True, "reason": 1}, "interruptId": "int-{call}"}],
            "(reason: string_type)",
        ),
        ("ask", [{**ENTRY, "interruptId": "int-{call}"}], "(answer: missing)"),
        ("ask", [{**ENTRY, "payload": "07:40", "interruptId": "int-{call}"}], "model_type"),
        (
            "ask",
            [{**ENTRY, "payload": {"answer": 1}, "interruptId": "int-{call}"}],
            "(answer: string_type)",
        ),
        ("text", [{**ENTRY, "interruptId": "int-x"}], "does not contain any unprocessed tool"),
        ("tool", [{**ENTRY, "interruptId": "int-{call}"}], "was already executed"),
        ("custom", [{**ENTRY, "interruptId": "int-{call}"}], "does not wait for an answer"),
    ],
)
async def test_an_answer_that_does_not_fit_is_an_error_and_nothing_runs(
    serve: Serve, script: str, entries: list[Event], message: str
) -> None:
    talk = await serve()
    await talk.say(f"script: {script}")
    if script == "tool":
        talk.held.messages.pop()
    calls = [call for held in talk.held.messages for call in held.get("toolCalls", ())]
    name = calls[0]["id"] if calls else ""
    given = [{**one, "interruptId": one["interruptId"].format(call=name)} for one in entries]
    started, error = await talk.run(resume=given)
    assert started["type"] == "RUN_STARTED"
    assert list(error) == ["type", "timestamp", "message"]
    assert message in error["message"]
    assert not talk.told.executed


async def test_a_call_that_the_script_does_not_make_is_not_known(serve: Serve) -> None:
    talk = await serve()
    call = {"id": "c-1", "type": "function", "function": {"name": "fly", "arguments": "{}"}}
    talk.held.messages = [
        {"id": "u-1", "role": "user", "content": "script: approve"},
        {"id": "a-1", "role": "assistant", "toolCalls": [call]},
    ]
    entry = {**ENTRY, "interruptId": "int-c-1"}
    assert (await talk.run(resume=[entry]))[-1]["message"] == "Unknown tool name: 'fly'."


# Questions, and tools of the client.


@pytest.mark.parametrize(
    ("script", "payload", "said"),
    [
        ("ask", {"answer": "09:10"}, "Holding a seat on the 09:10. (turn 1)"),
        ("ask", {"answer": "the night train"}, "Holding a seat on the the night train. (turn 1)"),
        ("ask", None, "Holding a seat on the (skipped). (turn 1)"),
        (
            "askopen",
            {"answer": "A {answer} L"},
            "The ticket carries the name A {answer} L. (turn 1)",
        ),
        ("askopen", {"answer": ""}, "The ticket carries the name (skipped). (turn 1)"),
    ],
)
async def test_a_question_is_an_interrupt_that_takes_words(
    serve: Serve, script: str, payload: Any, said: str
) -> None:
    talk = await serve()
    seen = await talk.say(f"script: {script}")
    (asked,) = seen[-1]["outcome"]["interrupts"]
    assert asked["reason"] == "input_required"
    schema = asked["responseSchema"]
    assert (schema["type"], schema["required"]) == ("object", ["answer"])
    words = {"type": "string"}
    offered = {"anyOf": [{"type": "string", "enum": ["07:40", "09:10"]}, words]}
    assert schema["properties"] == {"answer": words if script == "askopen" else offered}
    seen = await talk.answer(payload)
    assert talk.text == said
    assert len(of(seen, "TOOL_CALL_RESULT")) == 1
    # The client holds all of it: a run that was lost behind the result says the same again.
    talk.held.messages.pop()
    await talk.run()
    assert talk.text == said


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"content": "12 left"}, "The application says: 12 left (turn 1)"),
        ({"content": "down", "error": "down"}, "The application says: an error, down (turn 1)"),
        ({"content": "", "error": "gone"}, "The application says: an error, gone (turn 1)"),
        (
            {"content": [{"type": "text", "text": "12 left"}]},
            "The application says: 12 left (turn 1)",
        ),
    ],
)
async def test_the_client_runs_its_own_tool(serve: Serve, result: Event, said: str) -> None:
    talk = await serve()
    seen = await talk.say("script: custom")
    (call,) = of(seen, "TOOL_CALL_START")
    assert call["toolCallName"] == "lookup_stock"
    assert seen[-1]["outcome"] == {"type": "success", "pendingToolCallIds": [call["toolCallId"]]}
    told = {"id": "r-1", "role": "tool", "toolCallId": call["toolCallId"], **result}
    talk.held.messages.append(told)
    seen = await talk.run()
    assert talk.text == said
    assert "TOOL_CALL_RESULT" not in kinds(seen)
    assert seen[-1]["outcome"] == {"type": "success"}


async def test_a_client_before_1_0_is_not_told_which_calls_wait(serve: Serve) -> None:
    talk = await serve()
    seen = await raw(talk, "script: custom")
    assert seen[-1]["outcome"] == {"type": "success"}
    assert "TOOL_CALL_RESULT" not in kinds(seen)
    theirs = recorded("client-0.0.59/frontend-tool/01.response.sse")[-1]
    assert list(seen[-1]) == list(theirs)


# Refusals.


async def refused(talk: Talk, body: Any = None, **more: Any) -> tuple[int, str, str]:
    """Ask for what is refused; return the status, the type and the text of the answer."""
    options = {"json": body} if body is not None else {}
    method = more.pop("method", "POST")
    async with talk.client.http.request(method, talk.client.url, **options, **more) as answer:
        return answer.status, answer.content_type, await answer.text()


async def test_a_body_that_lacks_members_is_refused_with_the_recorded_list(serve: Serve) -> None:
    talk = await serve()
    status, kind, text = await refused(talk, {"threadId": "t", "messages": []})
    assert (status, kind) == (422, "application/json")
    assert text == (RECORDINGS / RECORDED / "invalid-body.json").read_text().strip()
    _, _, text = await refused(talk, {})
    assert [one["loc"] for one in json.loads(text)] == [["threadId"], ["runId"], ["messages"]]
    assert talk.agent.talks == {}


USER = {"id": "u", "role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("change", "loc", "kind"),
    [
        ({"threadId": 1}, ["threadId"], "string_type"),
        ({"messages": {}}, ["messages"], "list_type"),
        ({"messages": [1]}, ["messages", 0], "union_tag_not_found"),
        ({"messages": [{"role": "u"}]}, ["messages", 0], "union_tag_invalid"),
        ({"messages": [USER, {"role": "user"}]}, ["messages", 1, "user", "id"], "missing"),
        (
            {"messages": [{**USER, "content": [1]}]},
            ["messages", 0, "user", "content", 0],
            "dict_type",
        ),
        (
            {"messages": [{"id": "a", "role": "assistant", "toolCalls": [{"id": "c"}]}]},
            ["messages", 0, "assistant", "toolCalls", 0, "function"],
            "missing",
        ),
        (
            {
                "messages": [
                    {
                        "id": "a",
                        "role": "assistant",
                        "toolCalls": [{"id": "c", "function": {"name": "x", "arguments": {}}}],
                    }
                ]
            },
            ["messages", 0, "assistant", "toolCalls", 0, "function", "arguments"],
            "string_type",
        ),
        ({"tools": {}}, ["tools"], "list_type"),
        ({"resume": [{"status": "resolved"}]}, ["resume", 0, "interruptId"], "missing"),
        (
            {"resume": [{"interruptId": "int-x", "status": "done"}]},
            ["resume", 0, "status"],
            "literal_error",
        ),
    ],
)
async def test_a_member_that_is_wrong_is_named(
    serve: Serve, change: Event, loc: list[Any], kind: str
) -> None:
    talk = await serve()
    status, _, text = await refused(talk, request_body(**change))
    assert status == 422
    problem = json.loads(text)[0]
    assert (problem["loc"], problem["type"]) == (loc, kind)
    assert problem["url"].endswith(f"/{kind}")
    assert talk.agent.refusals[-1].status == 422


@pytest.mark.parametrize("data", [b"nonsense", b"\xff", b'"\\ud800"', b"[]"])
async def test_a_body_that_is_not_a_json_object_is_refused(serve: Serve, data: bytes) -> None:
    talk = await serve()
    status, _, text = await refused(talk, data=data, headers={"Content-Type": "application/json"})
    assert status == 422
    (problem,) = json.loads(text)
    assert problem["type"] == ("model_type" if data == b"[]" else "json_invalid")


async def test_the_head_of_a_request_is_checked(serve: Serve) -> None:
    talk = await serve()
    text = (RECORDINGS / RECORDED / "wrong-type.txt").read_text()
    said = await refused(talk, data=b"{}", headers={"Content-Type": "text/plain"})
    assert said == (415, "text/plain", text)
    assert await refused(talk, method="GET") == (405, "text/plain", "Method Not Allowed")
    async with talk.client.http.get(f"{talk.client.url}/other") as answer:
        assert answer.status == 404
    talk = await serve(sent="wrong")
    assert await refused(talk, request_body()) == (401, "text/plain", "Unauthorized")
    assert talk.agent.talks == {}
    assert [one.route for one in talk.agent.received] == ["run"]


async def test_unknown_members_are_let_pass_and_those_that_are_optional_may_lack(
    serve: Serve,
) -> None:
    talk = await serve(key=None, sent="anything")
    status, _, _ = await refused(talk, request_body(novelty=1, resume=None))
    assert status == 200


async def test_a_result_without_its_call_breaks_the_server(serve: Serve) -> None:
    talk = await serve()
    result = {"id": "t-1", "role": "tool", "toolCallId": "call_w9", "content": "x"}
    status, kind, text = await refused(talk, request_body(messages=[USER, result, USER]))
    assert (status, kind, text) == (500, "text/plain", "Internal Server Error")


async def test_no_messages_are_an_error_of_the_run(serve: Serve) -> None:
    talk = await serve()
    _, error = await talk.run()
    assert error["message"] == "No message history, user prompt, or instructions provided"


@pytest.mark.parametrize("slash", ["", "/"])
async def test_the_address_is_where_the_agent_is_mounted(serve: Serve, slash: str) -> None:
    talk = await serve(mount="/agents/one")
    talk.client.url += slash
    await talk.say("hi")
    assert talk.text == "You said: “hi”. (turn 1)"


# A client that leaves, and faults.


async def test_a_client_that_leaves_ends_the_run(serve: Serve) -> None:
    talk = await serve(pace=1.0)
    run = talk.client.run("t-1", "run-1", [{**USER, "content": "script: slow 1000"}])
    async with asyncio.timeout(SOON_S), aclosing(run) as events:
        async for event in events:
            if event["type"] == "TEXT_MESSAGE_CONTENT":
                break
    await until(lambda: talk.told.cancelled == ["run-1"])
    await talk.say("still there?")
    assert talk.text.endswith("(turn 1)")
    assert talk.told.cancelled == ["run-1"]


async def test_a_run_that_was_read_to_its_end_is_not_cancelled(serve: Serve) -> None:
    talk = await serve()
    await talk.say("script: tool")
    await talk.say("hi")
    assert talk.told.cancelled == []


async def test_an_agent_that_stops_ends_its_bodies_and_nobody_has_left() -> None:
    app = create_agui_app(pace=1.0)
    async with aiohttp.ClientSession() as http, asyncio.timeout(SOON_S):
        async with served(app) as url:
            talk = Talk(AguiClient(http, url, stamped=False), app[AGUI])
            saying = asyncio.ensure_future(talk.say("script: slow 100000"))
            await until(lambda: bool(of(talk.seen, "TEXT_MESSAGE_CONTENT")))
        with pytest.raises((Disconnected, aiohttp.ClientError)):
            await saying
    assert talk.told.cancelled == []


@pytest.mark.parametrize("fault", [Cut(after_event=3), Cut(3, clean=True), HalfFrame(2)])
async def test_a_body_breaks_where_the_plan_says(serve: Serve, fault: Any) -> None:
    talk = await serve(faults=Faults({("run", 1): fault}))
    with pytest.raises((Disconnected, aiohttp.ClientError, AssertionError)):
        await talk.say("script: tool")
    assert len(talk.seen) == (fault.after_event)
    talk.held = Applied()
    await talk.say("hi")
    assert talk.text.endswith("(turn 1)")


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (Status(500), "text/plain", "Internal Server Error"),
        (Status(422), "application/json", "[]"),
        (Status(429, retry_after=7), "text/plain", "Refused on purpose."),
    ],
)
async def test_a_request_is_refused_on_purpose(
    serve: Serve, fault: Status, kind: str, text: str
) -> None:
    talk = await serve(faults=Faults({("run", 1): fault}))
    with pytest.raises(Refused) as caught:
        await talk.say("hi")
    assert caught.value.status == fault.status
    assert caught.value.headers["Content-Type"].startswith(kind)
    assert caught.value.body == (json.loads(text) if kind == "application/json" else text)
    assert caught.value.headers.get("Retry-After") == ("7" if fault.retry_after else None)
    assert talk.agent.talks == {}


async def test_what_was_asked_for_happens_though_the_answer_is_late_or_never_comes(
    serve: Serve,
) -> None:
    plan: dict[tuple[str, int], Fault] = {("run", 2): SlowHead(0.01), ("run", 4): Silence()}
    talk = await serve(faults=Faults(plan))
    await talk.say("script: approve")
    await talk.answer({"approved": True})
    assert "4.1 GB freed." in talk.text
    assert sum(talk.told.executed.values()) == 1
    await talk.say("script: approve")
    waiting = asyncio.ensure_future(talk.answer({"approved": True}))
    await until(lambda: sum(talk.told.executed.values()) == 2)
    assert not waiting.done()
    waiting.cancel()


async def test_a_redirect_leads_elsewhere(serve: Serve) -> None:
    talk = await serve(faults=Faults({("run", 1): Redirect("http://elsewhere.invalid/")}))
    status, _, _ = await refused(talk, request_body(), allow_redirects=False)
    assert status == 302


async def test_every_script_is_played_in_the_order_that_a_client_checks(serve: Serve) -> None:
    for script in SCRIPT_NAMES:
        talk = await serve()
        checker = Checker()
        for event in await raw(talk, f"script: {script} 3"):
            if event["type"] != "FUTURE_EVENT":
                checker.feed(event)
        checker.end()


async def test_the_command_line_plays_it_with_its_options() -> None:
    app = BACKENDS["agui"](ScriptedOptions(key=KEY, pace=0.0))
    async with aiohttp.ClientSession() as http, served(app) as url:
        async with http.post(url, json=request_body()) as answer:
            assert answer.status == 401
        headers = {"Authorization": f"Bearer {KEY}"}
        async with http.post(url, json=request_body("script: slow 3"), headers=headers) as answer:
            assert "(turn 1)" in await answer.text()
