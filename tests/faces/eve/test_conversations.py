"""Every script, in every form and by both styles of client, over every variant of the Engine.

The strict client and its record checker judge every record; what must come through is written here
by hand, from the scripts (`proxy.scripted.scripts`), not computed by a codec.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from proxy.scripted.engine_turns import DEFAULT, EngineVariant
from proxy.scripted.scripts import SCRIPT_NAMES
from tests.support.engine_variants import LEAST, VARIANTS
from tests.support.eve_client import EveSession, Form, Style, TurnResult
from tests.support.running import Run, Running
from tests.support.waiting import SOON_S


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a script must show, whatever the form.

    `answers` are given one by one to what is asked; `said` are texts of completed messages that
    must occur, in order; `results` pairs of tool and status.
    """

    said: tuple[str, ...]
    reasoning: str = ""
    answers: tuple[dict[str, str], ...] = ()
    asked: tuple[str, ...] = ()
    calls: tuple[tuple[str, Any], ...] = ()
    results: tuple[tuple[str, str], ...] = ()
    failed: str | None = None


THOUGHT = "The failing test is about rounding. Look at the helper before guessing."
ROUNDING = "`to_cents` truncates instead of rounding, so 19.99 becomes 1998. (turn 1)"
REMOVE = ("bash", {"command": "rm -rf /srv/exports/2024"})
HOSTS = ("write_file", {"path": "/etc/hosts", "content": "10.0.0.9 build\n"})
YES, NO = {"optionId": "approve"}, {"optionId": "deny"}

EXPECTED: Mapping[str, Expected] = {
    "text": Expected(
        ("Basil likes six hours of sun — a south-facing sill at the café works. (turn 1)",)
    ),
    "reason": Expected((ROUNDING,), reasoning=THOUGHT),
    "tool": Expected(
        ("Checking the rounding helper.", ROUNDING),
        reasoning=THOUGHT,
        calls=(("read_file", {"path": "/workspace/src/money.py"}),),
        results=(("read_file", "completed"),),
    ),
    "tools": Expected(
        ("Starting the audit.", "One risk found: b.sql drops table u without a guard. (turn 1)"),
        calls=(
            ("read_file", {"path": "/workspace/a.sql"}),
            ("read_file", {"path": "/workspace/b.sql"}),
        ),
        results=(("read_file", "completed"), ("read_file", "completed")),
    ),
    "toolfail": Expected(
        ("Reading the thread.", "The mail connector must be connected again. (turn 1)"),
        calls=(("gmail.read_thread", {"thread": "t-9"}),),
        results=(("gmail.read_thread", "failed"),),
    ),
    "approve": Expected(
        ("The old export is 4 GB; removing it frees the disk.", "Done, 4.1 GB freed. (turn 1)"),
        answers=(YES,),
        asked=("Run `rm -rf /srv/exports/2024`?",),
        calls=(REMOVE,),
        results=(("bash", "completed"),),
    ),
    "approve no": Expected(
        (
            "The old export is 4 GB",
            "Understood, I left /srv/exports/2024 alone. You added: Not today. (turn 1)",
        ),
        answers=({**NO, "text": "Not today."},),
        asked=("Run `rm -rf /srv/exports/2024`?",),
        calls=(REMOVE,),
        results=(("bash", "rejected"),),
    ),
    "approve feedback": Expected(
        ("removing it", "Done, 4.1 GB freed. You added: But keep the log. (turn 1)"),
        answers=({**YES, "text": "But keep the log."},),
        asked=("Run `rm -rf /srv/exports/2024`?",),
        calls=(REMOVE,),
        results=(("bash", "completed"),),
    ),
    "approve2": Expected(
        ("Two things need a go-ahead.", "4.1 GB freed", "I left /etc/hosts alone"),
        answers=(YES, NO),
        asked=("Run `rm -rf /srv/exports/2024`?", "Write to /etc/hosts?"),
        calls=(REMOVE, HOSTS),
        results=(("bash", "completed"), ("write_file", "rejected")),
    ),
    "approve-twice": Expected(
        ("Two things need a go-ahead.", "4.1 GB freed", "I left /etc/hosts alone"),
        answers=(YES, NO),
        asked=("Run `rm -rf /srv/exports/2024`?", "Write to /etc/hosts?"),
        calls=(REMOVE, HOSTS),
        results=(("bash", "completed"), ("write_file", "rejected")),
    ),
    "ask": Expected(
        ("Two trains fit.", "Holding a seat on the 09:10. (turn 1)"),
        answers=({"optionId": "09:10"},),
        asked=("Which departure do you prefer?",),
    ),
    "ask text": Expected(
        ("Two trains fit.", "Holding a seat on the noon train. (turn 1)"),
        answers=({"text": "noon train"},),
        asked=("Which departure do you prefer?",),
    ),
    "askopen": Expected(
        ("One thing is missing.", "The ticket carries the name Ada {Lovelace}. (turn 1)"),
        answers=({"text": "Ada {Lovelace}"},),
        asked=("Which name shall the ticket carry?",),
    ),
    "custom": Expected(("The Engine has no tools that the application runs.",)),
    "secret": Expected(("The Engine has no secrets to ask for.",)),
    "sudo": Expected(("The Engine has no passwords to ask for.",)),
    "signin": Expected(("The ledger knows. The Engine has no sign-in to ask for.",)),
    "limit": Expected(
        ("The Engine has no limit to ask about. (turn 1)",),
        calls=(("read_file", {"path": "/workspace/a.sql"}),),
        results=(("read_file", "completed"),),
    ),
    "child": Expected(("The Engine has no child agents.",)),
    "childask": Expected(("The Engine has no child agents.",)),
    "structured": Expected(("The Engine has no structured results.",)),
    "long": Expected(("tick 0 tick 1 ",)),
    "slow": Expected(("tick 0 tick 1 ",)),
    "fail": Expected((), failed="LLM_RATE_LIMITED"),
    "failmid": Expected((), failed="LLM_PROVIDER_ERROR"),
    "compact": Expected(("I have shortened my notes. (turn 1)",)),
    "memory": Expected(("I noted which files to check. (turn 1)",)),
    "unknown": Expected(("Something new: There was something new in between. (turn 1)",)),
}

COMBINATIONS: list[tuple[Form, Style]] = [
    ("all", "S"),
    ("all", "S1"),
    ("all", "T"),
    ("tokens", "T"),
    ("newest", "S"),
]

PLAYED: Mapping[str, EngineVariant] = {
    "default": DEFAULT,
    **VARIANTS,
    "the least": LEAST,
    "the least, with ids": dataclasses.replace(LEAST, tool_call_id=True, failure="error"),
    "the least, blocks": dataclasses.replace(LEAST, blocks=True, usage=True),
}


def test_every_script_is_expected() -> None:
    assert {name.partition(" ")[0] for name in EXPECTED} == set(SCRIPT_NAMES)


async def converse(session: EveSession, expected: Expected) -> list[TurnResult]:
    """Read what was sent, answer what is asked, and say hello afterwards."""
    turns = [await session.read_turn()]
    for answer in expected.answers:
        request = turns[-1].requests[-1]
        await session.respond_all([{"requestId": request["requestId"], **answer}])
        turns.append(await session.read_turn())
    accepted = await session.send("hello")
    turns.append(await session.read_turn(accepted))
    return turns


def check(turns: list[TurnResult], expected: Expected, name: str, variant: EngineVariant) -> None:
    first, hello = turns[:-1], turns[-1]
    assert "You said: “hello”." in (hello.text or ""), name
    assert "(turn 2)" in (hello.text or ""), name
    assert not hello.data("turn.failed"), name
    records = [record for turn in first for record in turn.records]

    def data(kind: str) -> list[dict[str, Any]]:
        return [record["data"] for record in records if record["type"] == kind]

    said = [one["message"] for one in data("message.completed")]
    at = 0
    for text in expected.said:
        at = next((n for n in range(at, len(said)) if text in said[n]), -1)
        assert at >= 0, (name, text, said)
    assert "".join(one["reasoning"] for one in data("reasoning.completed")) == expected.reasoning
    requests = [request for turn in first for request in turn.requests]
    assert [request["prompt"] for request in requests] == list(expected.asked), name
    calls = [action for one in data("actions.requested") for action in one["actions"]]
    assert [(call["toolName"], call["input"]) for call in calls] == list(expected.calls), name
    results = data("action.result")
    found = [(one["result"]["toolName"], one["status"]) for one in results]
    assert sorted(found) == sorted(expected.results), name
    _check_outputs(name, results)
    failed = data("turn.failed")
    assert len(failed) == (expected.failed is not None), name
    if failed and variant.failure != "errored":
        assert failed[0]["code"] == expected.failed, name
    if failed and variant.failure == "errored":
        assert failed[0]["code"] == "errored", name


def _check_outputs(name: str, results: list[dict[str, Any]]) -> None:
    outputs = [one["result"]["output"] for one in results]
    match name:
        case "tool":
            assert outputs == ["def to_cents(x):\n    return int(x * 100)\n"]
        case "tools":
            # Pairing: each result belongs to the call of its own file.
            assert sorted(outputs) == ["CREATE TABLE t (id int);\n", "DROP TABLE u;\n"]
        case "toolfail":
            assert results[0]["error"]["message"] == "connector token expired"
        case "approve no":
            assert results[0]["error"]["code"] == "TOOL_EXECUTION_DENIED"


def pairs(turns: list[TurnResult]) -> list[tuple[Any, Any]]:
    """Input and output of each call, by its id."""
    inputs: dict[str, Any] = {}
    found = []
    for turn in turns:
        for record in turn.records:
            if record["type"] == "actions.requested":
                for action in record["data"]["actions"]:
                    inputs[action["callId"]] = action["input"]
            elif record["type"] == "action.result":
                result = record["data"]["result"]
                found.append((inputs.pop(result["callId"]), result["output"]))
    return found


async def one(
    running: Running, form: Form, style: Style, name: str, variant: EngineVariant
) -> None:
    expected = EXPECTED[name]
    argument = {"long": " 50", "slow": " 3"}.get(name, "")
    client = running.eve(form, style)
    session = await client.create(f"script: {name.partition(' ')[0]}{argument}")
    if name == "ask" and variant.options == "absent":
        expected = dataclasses.replace(expected, answers=({"text": "09:10"},))
    turns = await converse(session, expected)
    check(turns, expected, name, variant)
    if name == "tools":
        assert ({"path": "/workspace/b.sql"}, "DROP TABLE u;\n") in pairs(turns)
    # Replay equals live: the whole log again, and the state machine agrees.
    again = client.attach(session.session_id)
    replayed = [record async for record in again.stream(0, follow=False)]
    assert replayed == session.log


PLAIN = {
    "text",
    "custom",
    "secret",
    "sudo",
    "signin",
    "child",
    "childask",
    "structured",
    "long",
    "slow",
}
"""Scripts that are nothing but text in an Engine: one variant shows what all of them show."""


async def play(
    running: Running,
    form: Form,
    style: Style,
    variant: EngineVariant,
    *,
    without: Collection[str] = (),
) -> None:
    names = [name for name in EXPECTED if name not in without]
    await asyncio.gather(*(one(running, form, style, name, variant) for name in names))
    assert running.engine.refusals == []


@pytest.mark.parametrize(("form", "style"), COMBINATIONS)
@pytest.mark.parametrize("name", ["default", "the least"])
async def test_every_script_comes_through_in_every_form(
    run: Run, name: str, form: Form, style: Style
) -> None:
    variant = PLAYED[name]
    running = await run("sqlite", engine={"variant": variant}, settings={"eve": {"form": form}})
    await play(running, form, style, variant)


@pytest.mark.parametrize("name", [name for name in PLAYED if name not in ("default", "the least")])
async def test_every_script_comes_through_over_every_variant_of_the_engine(
    run: Run, name: str
) -> None:
    variant = PLAYED[name]
    running = await run(engine={"variant": variant, "heartbeat_s": 0.02})
    await play(running, "all", "S", variant, without=PLAIN)


@pytest.mark.parametrize("failure", ["error", "errored", "error_errored", "errored_error"])
@pytest.mark.parametrize("form", ["tokens", "newest"])
async def test_a_failure_comes_through_in_every_order_and_form(
    run: Run, form: Form, failure: Any
) -> None:
    variant = EngineVariant(failure=failure)
    running = await run(engine={"variant": variant}, settings={"eve": {"form": form}})
    client = running.eve(form)
    for script in ("fail", "failmid"):
        session = await client.create(f"script: {script}")
        check(await converse(session, EXPECTED[script]), EXPECTED[script], script, variant)


@pytest.mark.parametrize(("form", "style"), COMBINATIONS)
async def test_who_speaks_while_an_approval_stays_open_is_not_kept_waiting(
    run: Run, form: Form, style: Style
) -> None:
    running = await run(settings={"eve": {"form": form}})
    session = await running.eve(form, style).create("script: approve")
    (request,) = (await session.read_turn()).requests
    # An Engine withdraws nothing: both messages wait until the turn is over.
    for words in ("hello", "hello again"):
        accepted = await session.send(words)
        async with asyncio.timeout(SOON_S):
            meanwhile = await session.read_turn(accepted)
        assert (meanwhile.status, meanwhile.text) == ("waiting", None)
    await session.respond(request["requestId"], "approve")
    assert "4.1 GB freed" in ((await session.read_turn()).text or "")
    said = [(await session.read_turn()).text or "" for _ in range(2)]
    assert ["“hello”" in said[0], "“hello again”" in said[1]] == [True, True]
