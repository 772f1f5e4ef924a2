"""What sessions used, counted from logs, and what each dialect's backend makes of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from adapters.contract.fidelity import CANONICAL
from adapters.contract.mapping import parse_mapping
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.base import Ability, ClientCodec, Support
from adapters.offline.moves.required_abilities import (
    WITNESSES,
    AbilityJudgement,
    RequiredAbilities,
    UsedAbility,
    Verdict,
    judge,
    said_of_whole,
    witness,
)
from adapters.registry import DIALECTS
from adapters.wire.errors import NotSupported
from proxy.config import matrix
from tests.support.each import each
from tests.wire import bodies, driven, entries_of, given_messages

IMAGE = ev.File(media_type="image/PNG; q=1", ref=ev.Blob(sha256="0" * 64), size=3)
ELSEWHERE = ev.File(media_type="text/csv", ref=ev.FileId(dialect="eve", id="f"))
BLOCKS = (
    "file image/png",
    "file of no media type",
    "file_id of eve",
    "other of eve",
    "redacted",
    "search_result",
)


def codec_of(dialect: str) -> ClientCodec:
    make = DIALECTS[dialect].client
    assert make is not None
    return make({"task_id": "-"})


def judged(dialect: str, area: Any, name: str) -> AbilityJudgement:
    return judge(UsedAbility(area, name), codec_of(dialect), matrix.mapping_of(dialect))


def used(*events: ev.Event) -> RequiredAbilities:
    needs = RequiredAbilities()
    for event in events:
        needs.apply(event)
    return needs


def accepted(name: str | None, command_id: str = "c", **fields: Any) -> ev.InputAccepted:
    kind = "message" if name is None else cmd.COMMAND_TYPES[name].KIND
    given = {"thread_id": ev.MAIN, "kind": kind, "by": "web", "face": "eve", **fields}
    return ev.InputAccepted(command_id=command_id, name=name, **given)


def settled(outcome: Any, command_id: str = "c") -> ev.InputSettled:
    return ev.InputSettled(thread_id=ev.MAIN, command_id=command_id, outcome=outcome)


def asked(request_id: str, kind: Any, **fields: Any) -> ev.InteractionRequested:
    return ev.InteractionRequested(
        thread_id=ev.MAIN, request_id=request_id, kind=kind, prompt="?", **fields
    )


# What is counted.

WHOLE = {
    "type": "what command it is",
    "thread_id": "only children's are counted, and where the command is not about a child anyway",
    "options": "the extras of the frontend's own dialect",
    "shared_state": "the application's own, for agents of the frontend's dialect",
    "content": "counted by its blocks",
    "policy": "kept by the session",
    "beside": "how answers and a message were sent, not what they say",
    "text": "the answer itself",
    "decision": "the answer itself",
    "is_error": "part of a result, which is counted as an answer",
    "sealed": "counted by the kind of the request",
    "request_id": "a name",
    "call_id": "a name",
    "turn_id": "a name",
    "description": "the outcome itself",
    "title": "kept by the session where its backend has no place for it",
    "metadata": "kept by the session where its backend has no place for it",
}
"""The fields that are not counted by themselves, each with the reason."""


def test_every_field_of_every_command_is_counted_or_has_a_reason_why_not() -> None:
    counted = {
        (command, part.partition(" ")[0]) for command, parts in WITNESSES.items() for part in parts
    }
    for command, model in cmd.COMMAND_TYPES.items():
        for field in model.model_fields:
            assert (command, field) in counted or field in WHOLE, (command, field)
    fields = {
        (name, field) for name, one in cmd.COMMAND_TYPES.items() for field in one.model_fields
    }
    assert counted <= fields
    assert set(WHOLE) <= {field for _, field in fields}


@pytest.mark.parametrize("command", list(cmd.COMMAND_TYPES))
def test_a_witness_has_what_its_use_names(command: str) -> None:
    if command != cmd.ArchiveThread.TYPE:
        assert witness(command).type == command
    for part in WITNESSES.get(command, {}):
        field, _, value = part.partition(" ")
        found = getattr(witness(f"{command}.{part}"), field)
        assert found
        assert not value or found == value
    if "content" in cmd.COMMAND_TYPES[command].model_fields:
        for word in BLOCKS:
            made: Any = witness(f"{command}.{word}")
            event = accepted(command, content=made.content)
            assert UsedAbility("command", f"{command}.{word}") in used(event).uses


def test_fields_and_files_of_commands_are_counted() -> None:
    message = accepted(
        "send_message",
        content=(ev.Text(text="see"), IMAGE, ELSEWHERE),
        details={"output_schema": {"type": "object"}, "client_context": {"page": 1}},
    )
    answers = [
        accepted("answer", "a", request_id="r", details={"decision": "allow", "scope": "once"}),
        accepted("answer", "b", request_id="r", details={"decision": "allow", "scope": "session"}),
        accepted("answer", "d", request_id="r", details={"option_ids": ["one"]}),
        accepted("answer", "e", request_id="r", details={"option_ids": ["one", "two"]}),
    ]
    needs = used(message, *answers, accepted("interrupt", "f", thread_id="child"))
    assert {use.name: times for use, times in needs.uses.items()} == {
        "send_message": 1,
        "send_message.client_context": 1,
        "send_message.output_schema": 1,
        "send_message.file image/png": 1,
        "send_message.file_id of eve": 1,
        "answer": 4,
        "answer.scope session": 1,
        "answer.option_ids": 1,
        "interrupt": 1,
        "interrupt.thread_id": 1,
    }
    sent = {"send_message": 1, "answer": 4, "interrupt": 1}
    assert needs.said == {("eve", name): times for name, times in sent.items()}


def test_what_somebody_said_to_the_backend_directly_is_counted_once() -> None:
    content = (ev.Text(text="see"), ELSEWHERE)
    alone = ev.MessageReceived(thread_id=ev.MAIN, message_id="m", content=content)
    ours = accepted(None, by="backend", face=None, content=content)
    both = (ours, alone.model_copy(update={"command_id": "c"}))
    expected = {"send_message": 1, "send_message.file text/csv": 1}
    # The words that a child gets are its parent's.
    to_child = alone.model_copy(update={"thread_id": "child"})
    for needs in (used(alone, to_child), used(*both)):
        assert {use.name: times for use, times in needs.uses.items()} == expected
        assert not needs.said


def test_what_the_backend_refused_is_not_counted() -> None:
    needs = used(accepted("compact"), settled("refused"))
    assert not needs.uses
    assert used(accepted("compact"), settled("taken")).uses == {
        UsedAbility("command", "compact"): 1
    }


def test_what_the_agent_asked_and_gave_is_counted() -> None:
    options = (ev.Option(id="a", label="A"),)
    needs = used(
        asked("1", "question"),
        asked("2", "question", options=options),
        asked("3", "secret"),
        ev.ThreadStarted(thread_id="t", parent=ev.MAIN),
        ev.ResultProduced(thread_id=ev.MAIN, value=1),
        ev.ReasoningCompleted(thread_id=ev.MAIN, block_id="b", message_id="m", text="hm"),
        ev.ToolReturned(thread_id=ev.MAIN, call_id="c", content=(ev.Text(text="t"), IMAGE)),
        ev.TextCompleted(
            thread_id=ev.MAIN, block_id="b", message_id="m", text="", content=(IMAGE,)
        ),
    )
    assert needs.uses == {
        UsedAbility("interaction", "question"): 2,
        UsedAbility("interaction", "question with options"): 1,
        UsedAbility("interaction", "secret"): 1,
        UsedAbility("agent", "child agents"): 1,
        UsedAbility("agent", "structured results"): 1,
        UsedAbility("agent", "reasoning"): 1,
        UsedAbility("agent", "files"): 2,
    }


def test_the_words_of_a_conversation_are_measured() -> None:
    def said(text: str, **fields: Any) -> ev.TextCompleted:
        thread = fields.pop("thread_id", ev.MAIN)
        return ev.TextCompleted(thread_id=thread, text=text, block_id="b", message_id="m", **fields)

    message = ev.MessageReceived(
        thread_id=ev.MAIN, message_id="m", content=(ev.Text(text="añb"), IMAGE)
    )
    to_child = message.model_copy(update={"thread_id": "child"})
    gone, by_child = said("gone", status="discarded"), said("aside", thread_id="child")
    assert used(message, to_child, said("12345"), gone, by_child).bytes == 4 + 5


def test_a_session_is_held_while_something_is_open() -> None:
    needs = RequiredAbilities()
    steps: list[tuple[ev.Event, list[str]]] = [
        (accepted("send_message"), ["input on its way"]),
        (settled("taken"), []),
        (ev.TurnStarted(thread_id=ev.MAIN, turn_id="t", cause="message"), ["at work"]),
        (ev.TurnStarted(thread_id="child", turn_id="u", cause="message"), ["at work"]),
        (asked("r", "approval"), ["at work", "waits for an answer"]),
        (
            ev.InteractionResolved(thread_id=ev.MAIN, request_id="r", outcome="denied"),
            ["at work"],
        ),
        (ev.TurnEnded(thread_id=ev.MAIN, turn_id="t", outcome="completed"), []),
        (ev.SessionEnded(thread_id=ev.MAIN, outcome="completed"), ["ended"]),
    ]
    for event, held in steps:
        needs.apply(event)
        assert needs.held == held


# What a backend makes of it.


def fixture_uses(dialect: str) -> Counter[UsedAbility]:
    found: Counter[UsedAbility] = Counter()
    for body in bodies(dialect):
        found += used(*(entry.event for entry in entries_of(dialect, body))).uses
    return found


@pytest.mark.parametrize("dialect", given_messages())
def test_what_the_recordings_of_a_dialect_use_is_possible_there(dialect: str) -> None:
    found = fixture_uses(dialect)
    assert {use.area for use in found} >= {"interaction", "agent"}
    impossible = {use.name for use in found if judged(dialect, *use).verdict is Verdict.IMPOSSIBLE}
    # A request of a kind that the codec does not know can be answered nowhere.
    assert impossible <= {"unknown"}


@pytest.mark.parametrize("dialect", driven())
def test_every_use_in_any_recording_is_judged(dialect: str) -> None:
    for source in (*driven(), CANONICAL):
        for use in fixture_uses(source):
            verdict, consequence = judged(dialect, *use)
            assert bool(consequence) == (verdict is not Verdict.WORKS)
            assert consequence == "" or consequence.endswith(".")
            assert not consequence.endswith("..")


@pytest.mark.parametrize(
    ("source", "target", "impossible"),
    [
        (
            "herm",
            "engine",
            {"child agents", "secret", "sudo", "tool_result", "unknown"},
        ),
        ("herm", "eve", {"secret", "sudo", "tool_result", "unknown"}),
        ("eve", "engine", {"child agents", "structured results", "authorization", "limit"}),
        (
            "eve",
            "herm",
            {
                "structured results",
                "authorization",
                "limit",
                "send_message.file image/png",
                "send_message.file text/plain",
            },
        ),
        ("engine", "herm", set()),
        ("engine", "eve", set()),
    ],
)
def test_what_the_recordings_of_one_dialect_use_that_another_cannot_do(
    source: str, target: str, impossible: set[str]
) -> None:
    found = {
        use.name
        for use in fixture_uses(source)
        if judged(target, *use).verdict is Verdict.IMPOSSIBLE
    }
    assert found == impossible


def test_a_whole_command_is_judged_as_the_matrix_says() -> None:
    verdicts = {"native": "works", "emulated": "differs", "impossible": "impossible"}
    for cell in matrix.commands():
        found = judged(cell.backend, "command", cell.command)
        assert found.verdict == verdicts[cell.support]
        assert cell.support == "native" or cell.how in found.consequence


@each(
    ("dialect", "name", "verdict", "said"),
    [
        ("engine", "send_message.output_schema", "impossible", "no field carries it"),
        ("engine", "send_message.file image/png", "works", ""),
        ("engine", "send_message.edit_of", "works", ""),
        ("engine", "send_message.client_context", "differs", "Client context:"),
        ("engine", "answer.scope always", "differs", "narrowed to once"),
        ("engine", "answer.option_ids", "works", ""),
        ("herm", "send_message.file image/png", "impossible", "only text is carried"),
        ("herm", "answer.scope always", "works", ""),
        ("herm", "interrupt.thread_id", "impossible", "a thread alone"),
        ("herm", "update_session.agent", "impossible", "pinned at creation"),
        ("eve", "send_message.client_context", "works", ""),
        ("eve", "send_message.edit_of", "impossible", "history is not rewritten"),
        ("eve", "send_message.file_id of herm", "impossible", "send its bytes"),
        ("eve", "answer.option_ids", "impossible", "one option"),
        ("eve", "answer.scope session", "differs", "narrowed to once"),
    ],
)
def test_a_field_is_judged_by_the_codec_and_the_tables(
    dialect: str, name: str, verdict: str, said: str
) -> None:
    found = judged(dialect, "command", name)
    assert found.verdict == verdict
    assert said in found.consequence


def test_a_part_of_a_command_that_is_impossible_is_said_of_the_whole() -> None:
    engine = codec_of("engine")
    assert said_of_whole(UsedAbility("command", "define_outcome.rubric"), engine)
    assert not said_of_whole(UsedAbility("command", "define_outcome"), engine)
    assert not said_of_whole(UsedAbility("command", "send_message.output_schema"), engine)
    assert not said_of_whole(UsedAbility("agent", "child agents"), engine)


TABLES = """# New mapping

## Events

| native | canonical | in | out | section | why |
|---|---|---|---|---|---|
| child | thread.started | exact | exact | 1 | |
| said | command:send_message.edit_of | exact | exact | 1 | |
| result | result.produced | - | synthesized | 1 | only the face writes it |

## Commands

| command | backend | how | section | why |
|---|---|---|---|---|
| send_message | native | a post | 1 | |
| answer:approval | native | a post | 1 | |
| answer:secret | impossible | | 1 | nobody asks for one |
"""


class _New:
    """As much of a codec as is asked."""

    dialect = "new"
    abilities = {"send_message": Ability(Support.NATIVE)}  # noqa: RUF012 - never changed

    def check(self, command: cmd.AnyCommand) -> None:
        assert isinstance(command, cmd.SendMessage)
        if command.output_schema is not None:
            raise NotSupported("new: no schema")


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (UsedAbility("command", "send_message"), AbilityJudgement(Verdict.WORKS)),
        (UsedAbility("command", "send_message.edit_of"), AbilityJudgement(Verdict.WORKS)),
        (
            UsedAbility("command", "send_message.retry_of"),
            AbilityJudgement(Verdict.DIFFERS, "It has no field of its own there: a post."),
        ),
        (
            UsedAbility("command", "send_message.output_schema"),
            AbilityJudgement(Verdict.IMPOSSIBLE, "It is refused: new: no schema."),
        ),
        (UsedAbility("interaction", "approval"), AbilityJudgement(Verdict.WORKS)),
        (
            UsedAbility("interaction", "secret"),
            AbilityJudgement(
                Verdict.IMPOSSIBLE,
                "No agent there asks it in a way that can be answered: nobody asks for one.",
            ),
        ),
        (
            UsedAbility("interaction", "limit"),
            AbilityJudgement(
                Verdict.IMPOSSIBLE, "No agent there asks it in a way that can be answered."
            ),
        ),
        (UsedAbility("agent", "child agents"), AbilityJudgement(Verdict.WORKS)),
        (
            UsedAbility("agent", "structured results"),
            AbilityJudgement(Verdict.IMPOSSIBLE, "No event of the dialect `new` tells of it."),
        ),
    ],
)
def test_a_new_dialect_is_judged_by_its_codec_and_its_tables(
    use: UsedAbility, expected: AbilityJudgement
) -> None:
    codec: Any = _New()
    assert judge(use, codec, parse_mapping(TABLES)) == expected
