"""Two sessions compared by meaning: what does not count, and that all else is found and named."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from adapters.captures import CapturedEvent, CapturedRequest, CaptureHead, format_record
from adapters.model import events as ev
from adapters.model.ignored_fields import UnknownField
from adapters.offline import translate
from adapters.offline.compare.difference import compare
from proxy import cli
from proxy.cli import printing
from tests.support.each import each

REPOSITORY = Path(__file__).parent.parent
EVERY_TYPE = REPOSITORY / "fixtures/canonical/every-type.ndjson"
WIRE = REPOSITORY / "fixtures/wire"

LOGS = [EVERY_TYPE, *sorted((REPOSITORY / "fixtures/golden").glob("*/canonical.ndjson"))]
ENGINE = WIRE / "engine/02-thinking-and-tool.sse"

JsonObject = dict[str, Any]

OF: JsonObject = {"thread_id": "main", "turn_id": "t"}


def describe(
    a: Sequence[ev.Entry], b: Sequence[ev.Entry], ignore: Iterable[str] = ()
) -> str | None:
    """Return the first difference of two logs for people, None where they mean the same."""
    result = compare(a, b, ignore)
    return "\n".join(result.lines()) if result else None


def objects(path: Path) -> list[JsonObject]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def decoded(lines: Sequence[JsonObject]) -> list[ev.Entry]:
    return [ev.Entry.decode(json.dumps(line)) for line in lines]


def log_of(*events: ev.Event, session: str = "s") -> list[ev.Entry]:
    return [ev.Entry(seq, 1_000 + seq, session, event) for seq, event in enumerate(events, 1)]


def of_wire(path: Path, dialect: str) -> list[ev.Entry]:
    source = translate.make_source(dialect, translate.TranslateOptions())
    return [*source.feed(path.read_bytes()), *source.close()]


def paths(a: Sequence[ev.Entry], b: Sequence[ev.Entry], *ignore: str) -> list[str]:
    return [one.path for one in compare(a, b, ignore).differences]


# What does not count.

IDS = {
    *("turn_id", "message_id", "block_id", "call_id", "request_id", "command_id", "session_id"),
    *("thread_id", "parent", "shown_on", "sender", "recipient", "predecessor", "replaced_by"),
    *("outcome_id", "task_id", "native_id", "path", "cursor_from", "cursor_to"),
}


def ids_of(lines: Sequence[JsonObject]) -> set[str]:
    return {
        raw
        for line in lines
        for name, value in line.items()
        if name in IDS or name == "request_ids"
        for raw in (value if isinstance(value, list) else [value])
        if raw != ev.MAIN
    }


def renamed(value: Any, names: dict[str, str]) -> Any:
    """Return a line whose ids are others, also where an agent repeats them."""
    if isinstance(value, dict):
        return {
            name: member
            if name in {"type", "text", "prompt", "dialect"}
            else renamed(member, names)
            for name, member in value.items()
        }
    if isinstance(value, list):
        return [renamed(one, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value


@each("path", LOGS, ids=lambda path: path.parent.name)
def test_ids_times_and_origins_do_not_count(path: Path) -> None:
    lines = objects(path)
    names = {raw: f"other-{n}" for n, raw in enumerate(sorted(ids_of(lines), reverse=True))}
    others = renamed(lines, names)
    for line in others:
        line["at"] += 86_400_000
        line["seq"] += 5
        line["native"] = {"dialect": "other", "id": "n-1", "at": "2026-01-01T00:00:00Z"}
        line["extra"] = {"more": line["seq"]}
        line["synthetic"] = not line.get("synthetic", False)
        for name in ("expires_at", "archived_at", "duration_ms"):
            if name in line:
                line[name] += 7
        for name, value in {"by": "somebody", "face": "other"}.items():
            if name in line:
                line[name] = value
        if line["type"] == ev.InputAccepted.TYPE:
            line["trace"] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert describe(decoded(lines), decoded(others)) is None
    assert compare(decoded(others), decoded(lines)).differences == ()


def recut(lines: list[JsonObject], cuts: Callable[[str], list[str]]) -> Iterator[JsonObject]:
    """Return a log whose texts came in other pieces."""
    waiting: list[JsonObject] = []
    for line in [*lines, None]:
        if waiting and (line is None or not same_block(waiting[0], line)):
            for piece in cuts("".join(one["text"] for one in waiting)):
                yield {**waiting[0], "text": piece}
            waiting = []
        if line is not None and line["type"].endswith("delta"):
            waiting.append(line)
        elif line is not None:
            yield line


def same_block(one: JsonObject, other: JsonObject) -> bool:
    return all(one.get(name) == other.get(name) for name in ("type", "block_id", "call_id"))


@given(st.data())
def test_how_a_text_was_cut_does_not_count(data: st.DataObject) -> None:
    lines = objects(data.draw(st.sampled_from(LOGS)))

    def cuts(text: str) -> list[str]:
        places = data.draw(st.lists(st.integers(0, len(text)), max_size=4).map(sorted))
        # The same place twice is an empty piece.
        ends = zip([0, *places], [*places, len(text)], strict=True)
        return [text[begin:end] for begin, end in ends]

    others = list(recut(lines, cuts))
    assert describe(decoded(lines), decoded(others)) is None


def of_calls(order: Sequence[tuple[str, str]], *, steps: bool) -> list[ev.Entry]:
    """A turn whose calls begin and end in this order; ids are given as they come."""
    of: JsonObject = {"thread_id": "main", "turn_id": "t"}
    events: list[ev.Event] = [ev.TurnStarted(**of, cause="message")]
    if steps:
        events.append(ev.StepStarted(**of, step_index=0))
    names: dict[str, str] = {}
    for what, call in order:
        name = names.setdefault(call, f"id-{len(names)}")
        if what == "called":
            tool, number = call.split("/")
            events.append(ev.ToolCalled(**of, call_id=name, name=tool, input={"n": int(number)}))
        else:
            events.append(ev.ToolReturned(**of, call_id=name, output=f"result of {call}"))
    if steps:
        events.append(ev.StepEnded(**of, step_index=0))
    return log_of(*events, ev.TurnEnded(**of, outcome="completed"))


CALLS = ["read/1", "read/2", "write/1", "list/3"]


@given(st.permutations(CALLS), st.permutations(CALLS), st.booleans())
def test_the_order_of_parallel_calls_does_not_count(
    begun: list[str], ended: list[str], steps: bool
) -> None:
    first = [("called", call) for call in CALLS] + [("returned", call) for call in CALLS]
    other = [("called", call) for call in begun] + [("returned", call) for call in ended]
    assert describe(of_calls(first, steps=steps), of_calls(other, steps=steps)) is None


@given(st.permutations([call for call in CALLS for _ in range(2)]))
def test_in_a_step_calls_may_begin_when_others_have_ended(order: list[str]) -> None:
    seen: set[str] = set()
    other: list[tuple[str, str]] = []
    for call in order:
        other.append(("returned" if call in seen else "called", call))
        seen.add(call)
    first = [("called", call) for call in CALLS] + [("returned", call) for call in CALLS]
    assert describe(of_calls(first, steps=True), of_calls(other, steps=True)) is None


def test_calls_that_come_one_after_the_other_without_steps_have_an_order() -> None:
    one, two = ([("called", call), ("returned", call)] for call in ("read/1", "write/1"))
    a, b = of_calls([*one, *two], steps=False), of_calls([*two, *one], steps=False)
    assert paths(a, b) == ["tool.called", "tool.called"]


def test_calls_are_matched_by_their_input_before_their_order() -> None:
    first = [("called", call) for call in CALLS] + [("returned", call) for call in CALLS]
    a = of_calls(first, steps=True)
    turned = first[3::-1] + first[4:]
    b = [
        entry._replace(event=entry.event.model_copy(update={"output": "another"}))
        if isinstance(entry.event, ev.ToolReturned) and "write/1" in str(entry.event.output)
        else entry
        for entry in of_calls(turned, steps=True)
    ]
    (only,) = compare(a, b).differences
    assert only.path == "tool.returned.output"
    assert (only.a.value, only.b.value) == ("result of write/1", "another")


def test_calls_that_ask_the_same_are_told_apart_by_their_results() -> None:
    def log(*outputs: str) -> list[ev.Entry]:
        calls = [(f"c{number}", output) for number, output in enumerate(outputs)]
        return log_of(
            ev.TurnStarted(**OF, cause="message"),
            ev.StepStarted(**OF, step_index=0),
            *(ev.ToolCalled(**OF, call_id=call, name="roll", input={}) for call, _ in calls),
            *(ev.ToolReturned(**OF, call_id=call, output=output) for call, output in calls),
        )

    assert paths(log("one", "six"), log("six", "one")) == []
    assert paths(log("one", "six"), log("six", "two")) == ["tool.returned.output"]
    assert paths(log("one", "six"), log("six")) == ["tool.called"]
    assert paths(log("six"), log("one", "six")) == ["tool.called"]


def test_a_call_that_runs_before_it_is_approved_is_found() -> None:
    called = ev.ToolCalled(**OF, call_id="c", name="rm", input={}, permission="ask")
    asked = ev.InteractionRequested(
        **OF, request_id="r", kind="approval", prompt="Really?", call_id="c"
    )
    approved = ev.InteractionResolved(**OF, request_id="r", outcome="approved")
    ran = ev.ToolReturned(**OF, call_id="c", output="gone")
    a, b = log_of(called, asked, approved, ran), log_of(called, asked, ran, approved)
    assert set(paths(a, b)) <= {"tool.returned", "interaction.resolved"}
    assert paths(a, b)


def of_answers(order: Sequence[str], *, resumes: bool = False) -> list[ev.Entry]:
    """Two approvals that are open at once, answered in some order."""
    names = {"a": "rm", "b": "cp"}
    events: list[ev.Event] = [ev.TurnStarted(**OF, cause="message")]
    for one, tool in names.items():
        events += [
            ev.ToolCalled(**OF, call_id=f"call-{one}", name=tool, input={}),
            ev.InteractionRequested(
                **OF, request_id=one, call_id=f"call-{one}", kind="approval", prompt=tool
            ),
        ]
    events.append(ev.TurnPaused(**OF, on="input", request_ids=tuple(names)))
    left = list(names)
    for number, one in enumerate(order):
        command = f"command-{number}"
        request = {"id": command, "body": f"a digest of {one} in this session {number}"}
        events += [
            ev.InputAccepted(
                thread_id="main",
                command_id=command,
                kind="answer",
                request_id=one,
                name="answer",
                details={"decision": "allow", "request": request},
                by="local",
            ),
            ev.InteractionAnswered(
                thread_id="main", request_id=one, command_id=command, by="local"
            ),
            ev.InputSettled(thread_id="main", command_id=command, outcome="taken"),
            ev.InteractionResolved(**OF, request_id=one, outcome="approved"),
        ]
        left.remove(one)
        if left and resumes:
            events.append(ev.TurnResumed(**OF))
        if left:
            events.append(ev.TurnPaused(**OF, on="input", request_ids=tuple(left)))
        else:
            events.append(ev.TurnResumed(**OF))
    if not left:
        events += [ev.ToolReturned(**OF, call_id=f"call-{one}", output=1) for one in names]
        events.append(ev.TurnEnded(**OF, outcome="completed"))
    return log_of(*events)


@pytest.mark.parametrize("resumes", [False, True])
def test_the_order_of_answers_to_what_is_open_at_once_does_not_count(resumes: bool) -> None:
    one, other = of_answers("ab"), of_answers("ba", resumes=resumes)
    assert describe(one, other) is None
    assert describe(other, one) is None


def test_an_answer_that_is_missing_is_found() -> None:
    found = paths(of_answers("ab"), of_answers("a"))
    assert {"input.accepted", "interaction.resolved", "turn.resumed", "turn.paused"} <= set(found)
    # What is waited for in the end.
    found = paths(of_answers("a"), of_answers("b"))
    assert "turn.paused.request_ids" in found
    assert "interaction.resolved" in found


def test_a_pause_for_something_else_counts() -> None:
    log = of_answers("ab")
    number = next(
        n
        for n, entry in enumerate(log)
        if isinstance(entry.event, ev.TurnPaused) and len(entry.event.request_ids) == 1
    )
    again = ev.TurnPaused(**OF, on="tasks")
    other = [*log[:number], log[number]._replace(event=again), *log[number + 1 :]]
    assert paths(log, other) == ["turn.paused"]
    assert paths(log, [*log[:number], *log[number + 1 :]]) == []


def test_by_what_a_repeated_request_is_known_does_not_count() -> None:
    def said(digest: str) -> list[ev.Entry]:
        request = {"id": digest[:1], "body": digest}
        return log_of(
            ev.SessionStarted(thread_id="main", options={"model": "m", "request": request}),
            ev.InputAccepted(
                thread_id="main",
                command_id="c",
                kind="message",
                details={"request": request},
                by="me",
            ),
        )

    assert paths(said("1f"), said("2e")) == []


def test_threads_run_beside_each_other() -> None:
    def child(call: str, name: str, words: str) -> list[ev.Event]:
        of: JsonObject = {"thread_id": name, "turn_id": f"turn of {name}"}
        return [
            ev.ThreadStarted(thread_id=name, parent="main", name="helper", call_id=call),
            ev.TurnStarted(**of, cause="message"),
            ev.TextCompleted(**of, block_id=f"b {name}", message_id=f"m {name}", text=words),
            ev.TurnEnded(**of, outcome="completed"),
        ]

    main: JsonObject = {"thread_id": "main", "turn_id": "t"}
    begun = [
        ev.TurnStarted(**main, cause="message"),
        ev.ToolCalled(**main, call_id="c1", name="ask", input="seeds", kind="subagent"),
        ev.ToolCalled(**main, call_id="c2", name="ask", input="soil", kind="subagent"),
    ]
    one, two = child("c1", "k1", "Found some."), child("c2", "k2", "Wet.")
    woven = [event for pair in zip(two, one, strict=True) for event in pair]
    assert describe(log_of(*begun, *one, *two), log_of(*begun, *woven)) is None
    # Their words are those of the call that began them.
    turned = [*child("c1", "k1", "Wet."), *child("c2", "k2", "Found some.")]
    assert paths(log_of(*begun, *one, *two), log_of(*begun, *turned)) == [
        "text.completed.text",
        "text.completed.text",
    ]
    assert paths(log_of(*begun, *one, *two), log_of(*begun, *one)) == ["thread.started"]


def test_a_recorded_body_is_the_log_that_was_made_of_it() -> None:
    body = of_wire(ENGINE, "engine")
    golden = decoded(
        objects(REPOSITORY / "fixtures/golden/engine-02-thinking-and-tool/canonical.ndjson")
    )
    ignore = ["input.accepted", "input.settled", "message.received"]
    assert describe(golden, body, ignore) is None
    assert paths(golden, body) == ignore


# What counts.


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    members = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else None
    )
    if members is None:
        yield path
        return
    for name, member in members:
        yield from leaves(member, (*path, name))


def choices_of(type_: str, path: tuple[str | int, ...]) -> list[Any]:
    """Return what a field can be that has few values."""
    models: list[Any] = [ev.EVENT_TYPES[type_]]
    found: list[Any] = []
    for part in path:
        if not isinstance(part, int):
            fields = [m.model_fields[part].annotation for m in models if part in m.model_fields]
            found = [one for field in fields for one in within(field)]
            models = [one for one in found if isinstance(one, type) and issubclass(one, ev.Model)]
    return [value for one in found if get_origin(one) is Literal for value in get_args(one)]


def within(annotation: Any) -> Iterator[Any]:
    yield annotation
    if get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from within(part)


def others(value: Any, choices: list[Any]) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    if value is None:
        return ["something"]
    return [one for one in choices if one != value] or [f"{value} and more"]


UNCOUNTED = {"seq", "at", "native", "extra", "by", "face", "trace", "synthetic", "duration_ms"}


def changed() -> Iterator[tuple[int, str, JsonObject]]:
    """Return every change of one value of the log with every type: the index of its event, its
    path."""
    for number, line in enumerate(objects(EVERY_TYPE)):
        if line["type"] == "native":
            continue
        for path in leaves(line):
            first, last = path[0], path[-1]
            if first in UNCOUNTED | IDS | {"type", "request_ids", "expires_at", "archived_at"}:
                continue
            if last in {"type", "extra"} or path[-2:] == ("ref", "id") or "extra" in path:
                continue
            if line["type"].endswith("delta") and first != "text" and last != "name":
                continue
            copy = json.loads(json.dumps(line))
            place = copy
            for part in path[:-1]:
                place = place[part]
            (place[last], *_) = others(place[last], choices_of(line["type"], path))
            yield number, ".".join(map(str, (line["type"], *path))), copy


def test_one_changed_value_is_found_and_named() -> None:
    lines = objects(EVERY_TYPE)
    before = decoded(lines)
    count = 0
    for number, path, line in changed():
        after = list(before)
        (after[number],) = decoded([line])
        found = compare(before, after).differences
        if path == "tool.input_delta.name" and lines[number - 1]["type"] == "tool.input_delta":
            # The first piece says it.
            assert found == ()
            continue
        assert [one.path for one in found] == [path], (number, path)
        assert found[0].a.value != found[0].b.value
        if not path.endswith("delta.text"):
            assert found[0].a.place.endswith(f"event {lines[number]['seq']}")
        assert describe(after, before, [path]) is None, path
        count += 1
    assert count > 250


def test_one_event_that_is_missing_is_found_and_named() -> None:
    lines = objects(EVERY_TYPE)
    before = decoded(lines)
    whole = {"text.delta", "reasoning.delta", "native"}
    for number, line in enumerate(lines):
        after = [*before[:number], *before[number + 1 :]]
        found = compare(before, after).differences
        if line["type"] in whole or (line["type"], line["seq"]) == ("tool.input_delta", 16):
            continue
        first = found[0]
        assert any(one.path.startswith(line["type"]) for one in found), (number, line["type"])
        assert first.a.place, number
        assert compare(after, before).differences, number


@pytest.mark.parametrize(
    ("field", "type_"), [("command_id", "input.settled"), ("call_id", "interaction.requested")]
)
def test_an_id_that_names_something_else_is_found(field: str, type_: str) -> None:
    lines = objects(EVERY_TYPE)
    number = next(n for n, line in enumerate(lines) if line["type"] == type_ and field in line)
    wrong = [*lines]
    wrong[number] = {**lines[number], field: {"command_id": "c-4", "call_id": "call-4"}[field]}
    found = compare(decoded(lines), decoded(wrong)).differences
    assert found
    assert any(one.path in {f"{type_}.{field}", type_} for one in found)


def test_ids_of_files_stand_for_each_other() -> None:
    def log(*files: str) -> list[ev.Entry]:
        refs = [ev.FileId(dialect="herm", id=file) for file in files]
        content = tuple(ev.File(ref=ref) for ref in refs)
        return log_of(ev.MessageReceived(thread_id="main", message_id="m", content=content))

    assert paths(log("a", "b", "a"), log("x", "y", "x")) == []
    assert paths(log("a", "b", "a"), log("x", "y", "y")) == ["message.received.content.2.ref.id"]


def test_an_id_in_what_a_tool_gets_stands_for_what_it_names() -> None:
    def log(first: str, second: str, said: Any) -> list[ev.Entry]:
        of: JsonObject = {"thread_id": "main", "turn_id": "t"}
        return log_of(
            ev.TurnStarted(**of, cause="message"),
            ev.ToolCalled(**of, call_id=first, name="a"),
            ev.ToolReturned(**of, call_id=first, output="x"),
            ev.ToolCalled(**of, call_id=second, name="b"),
            ev.ToolReturned(**of, call_id=second, output="y"),
            ev.ToolCalled(**of, call_id="third", name="c", input={"of": [said]}),
        )

    a = log("one", "two", "two")
    assert describe(a, log("eins", "zwei", "zwei")) is None
    (wrong,) = compare(a, log("eins", "zwei", "eins")).differences
    assert (wrong.path, wrong.a.value, wrong.b.value) == (
        "tool.called.input.of.0",
        "call-2",
        "call-1",
    )
    # A word that only looks like it is one.
    assert paths(a, log("eins", "zwei", "two")) == []
    assert paths(a, log("eins", "zwei", "the second")) == ["tool.called.input.of.0"]


def test_numbers_are_compared_by_value_and_truth_is_not_a_number() -> None:
    def log(value: Any) -> list[ev.Entry]:
        return log_of(ev.ResultProduced(thread_id="main", value=value))

    assert paths(log({"a": 1}), log({"a": 1.0})) == []
    assert paths(log({"a": 1}), log({"a": True})) == ["result.produced.value.a"]
    assert paths(log({"a": None}), log({})) == ["result.produced.value.a"]
    assert paths(log([1, 2]), log([1])) == ["result.produced.value.1"]
    assert paths(log(10**30), log(10**30 + 1)) == ["result.produced.value"]


def test_deltas_that_say_something_else_than_their_block_are_found() -> None:
    of: JsonObject = {"thread_id": "main", "turn_id": "t", "block_id": "b", "message_id": "m"}
    a = log_of(ev.TextDelta(**of, text="one"), ev.TextCompleted(**of, text="one"))
    b = log_of(ev.TextDelta(**of, text="two"), ev.TextCompleted(**of, text="one"))
    assert paths(a, b) == ["text.delta.text"]
    assert paths(a, b, "text.completed.text") == []
    # A source that sends no deltas says the same.
    assert paths(a, a[1:]) == []


# What may differ.


@pytest.mark.parametrize(
    "name",
    [
        "usage",
        "usage.cost_usd",
        "step.ended.usage",
        "text.delta.text",
        "tool.returned.output.created_at",
        "interaction.requested.options.label",
        "interaction.requested.options.0.label",
        "input.accepted.content.ref.url",
        "notice",
    ],
)
def test_a_field_of_an_event_may_differ(name: str) -> None:
    log = decoded(objects(EVERY_TYPE))
    assert describe(log, log, [name]) is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("usag", "no event has a field `usag`. The nearest is `usage`."),
        (
            "tool.return.output",
            "no event has a field `tool.return.output`. The nearest is `tool.returned.output`.",
        ),
        ("notice.lvel", "no event has a field `notice.lvel`. The nearest is `notice.level`."),
        ("usage.cost", "no event has a field `usage.cost`. The nearest is `usage.cost_usd`."),
        ("zzz", "no event has a field `zzz`."),
        ("", "no event has a field ``."),
        ("tool.called.name.x", "no event has a field `tool.called.name.x`."),
        ("native.at", "`native.at` never counts: leave it out."),
        ("extra", "`extra` never counts: leave it out."),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest_one(name: str, told: str) -> None:
    with pytest.raises(UnknownField) as caught:
        compare([], [], [name])
    assert str(caught.value) == told


# What people see.


def small(*, words: str = "It is wet.", output: Any = None, ended: bool = True) -> list[ev.Entry]:
    events = [
        ev.TurnStarted(**OF, cause="message"),
        ev.StepStarted(**OF, step_index=0),
        ev.ToolCalled(**OF, call_id="toolu_1", name="probe", input={"depth": 4}),
        ev.ToolReturned(**OF, call_id="toolu_1", output=output or {"moisture": 0.2}),
        ev.StepEnded(**OF, step_index=0),
        ev.StepStarted(**OF, step_index=1),
        ev.TextDelta(**OF, block_id="b", message_id="m", text=words),
        ev.TextCompleted(**OF, block_id="b", message_id="m", text=words),
        ev.StepEnded(**OF, step_index=1),
        ev.TurnEnded(**OF, outcome="completed"),
    ]
    return log_of(*events if ended else events[:-1])


def test_a_changed_result_as_people_see_it() -> None:
    assert describe(small(), small(output={"moisture": 0.4}, ended=False)) == (
        """\
`tool.returned.output.moisture` differs
- 0.2
+ 0.4

--- A: turn 1, step 1, event 4
     1 turn.started {"cause":"message"}
     2 step.started {"step_index":0}
     3 tool.called {"call_id":"call-1","name":"probe","input":{"depth":4}}
>    4 tool.returned {"call_id":"call-1","output":{"moisture":0.2}}

+++ B: turn 1, step 1, event 4
     1 turn.started {"cause":"message"}
     2 step.started {"step_index":0}
     3 tool.called {"call_id":"call-1","name":"probe","input":{"depth":4}}
>    4 tool.returned {"call_id":"call-1","output":{"moisture":0.4}}

1 more difference:
  1 x turn.ended

If it may differ, say so: --ignore tool.returned.output.moisture"""
    )


def test_a_missing_event_as_people_see_it() -> None:
    assert describe(small(), small(ended=False)) == (
        """\
only A has `turn.ended`

--- A: turn 1, step 2, event 10
     6 step.started {"step_index":1}
     8 text.completed {"block_id":"block-1","message_id":"message-1","text":"It is wet."}
     9 step.ended {"step_index":1}
>   10 turn.ended {"outcome":"completed"}

+++ B: after turn 1, step 2, event 9
     6 step.started {"step_index":1}
     8 text.completed {"block_id":"block-1","message_id":"message-1","text":"It is wet."}
     9 step.ended {"step_index":1}
> (the end)

If it may differ, say so: --ignore turn.ended"""
    )


def test_long_texts_are_shown_where_they_part() -> None:
    words = "Water it every second day. " * 10
    text = describe(small(words=words + "Now."), small(words=words + "Later."))
    assert text is not None
    assert text.splitlines()[:3] == [
        "`text.completed.text` differs",
        '- …y. Water it every second day. Now."',
        '+ …y. Water it every second day. Later."',
    ]


# The command.


def dragoman(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.main, ["diff", *map(str, arguments)], input=stdin)


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[str, list[ev.Entry]], Path]:
    def keep(name: str, log: list[ev.Entry]) -> Path:
        path = tmp_path / name
        path.write_bytes(b"".join(entry.encode() + b"\n" for entry in log))
        return path

    return keep


Keep = Callable[[str, list[ev.Entry]], Path]


def test_the_command_says_whether_two_logs_mean_the_same(kept: Keep) -> None:
    a, b = kept("a", small()), kept("b", small(output={"moisture": 0.4}))
    done = dragoman(a, a)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "They mean the same.\n", "")
    done = dragoman(a, b)
    assert done.exit_code == 1
    assert done.stdout.startswith("`tool.returned.output.moisture` differs\n- 0.2\n+ 0.4\n")
    assert f"--- {a}: turn 1, step 1, event 4\n" in done.stdout
    assert dragoman(a, b, "--ignore", "tool.returned.output.moisture").exit_code == 0
    assert dragoman(a, "-", stdin=b.read_bytes()).exit_code == 1


def test_the_command_has_colours_on_a_terminal(kept: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = kept("a", small()), kept("b", small(words="[red]Dry\x1b[31m"))
    monkeypatch.setattr(printing, "on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    done = dragoman(a, b)
    assert '\x1b[31m- "It is wet."\x1b[0m\n' in done.stdout
    assert '\x1b[32m+ "[red]Dry\\u001b[31m"\x1b[0m\n' in done.stdout


def test_the_command_prints_json(kept: Keep) -> None:
    a, b = kept("a", small()), kept("b", small(ended=False))
    assert json.loads(dragoman(a, a, "--json").stdout) == {
        "version": 1,
        "equal": True,
        "differences": [],
    }
    done = dragoman(a, b, "--json")
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    (found,) = answer["differences"]
    assert answer["equal"] is False
    assert found["path"] == "turn.ended"
    assert found["a"]["value"]["outcome"] == "completed"
    assert found["a"]["place"] == "turn 1, step 2, event 10"
    assert "value" not in found["b"]
    assert found["b"]["events"][-1] == "> (the end)"


def test_the_command_writes_junit(kept: Keep, tmp_path: Path) -> None:
    a, b = kept("a", small()), kept("b", small(words="<Dry> & \x00\ufffe\x1b]]>"))
    report = tmp_path / "report.xml"
    assert dragoman(a, a, "--junit", report).exit_code == 0
    root = ET.fromstring(report.read_bytes())
    assert (root.tag, root.attrib) == (
        "testsuites",
        {"tests": "1", "failures": "0", "errors": "0"},
    )
    assert root.find("testsuite/testcase/failure") is None
    assert dragoman(a, b, "--junit", report).exit_code == 1
    root = ET.fromstring(report.read_bytes())
    (case,) = root.findall("testsuite/testcase")
    assert case.get("name") == f"{a} {b}"
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("message") == "`text.completed.text` differs"
    assert failure.text is not None
    assert "<Dry> &" in failure.text
    assert root.get("failures") == "1"
    done = dragoman(a, b, "--junit", tmp_path / "none" / "x.xml")
    assert done.exit_code == 2
    assert done.stderr.endswith("x.xml: No such file or directory\n")


def captured(log: list[ev.Entry]) -> bytes:
    head = CaptureHead(made_by="dragoman", at=1.0)
    return b"".join(
        [
            format_record(head),
            *(format_record(CapturedEvent(at=1.0, entry=json.loads(one.encode()))) for one in log),
        ]
    )


@pytest.mark.parametrize(
    "name", ["chrome.har", "cassette-urllib.yaml", "cassette.json", "curl-body.txt"]
)
def test_the_command_reads_files_of_other_tools(name: str) -> None:
    file = REPOSITORY / "fixtures" / "captures" / name
    assert dragoman(file, file, "--from", "engine").exit_code == 0
    done = dragoman(file, file, "--from", "eve")
    assert done.exit_code == 2
    assert "`eve`" in done.stderr
    # What it holds is the conversation and not only its frame.
    done = dragoman(file, WIRE / "engine/01-plain-text.sse", "--from", "engine")
    assert done.exit_code == 1


def test_the_command_reads_captures_and_bodies(kept: Keep, tmp_path: Path) -> None:
    a, capture = kept("a", small()), tmp_path / "c"
    capture.write_bytes(captured(small()))
    assert dragoman(a, capture).exit_code == 0
    capture.write_bytes(captured(small()) + b'{"type":"ev')
    done = dragoman(a, capture)
    assert done.exit_code == 0
    why = "it was cut off: line 12 is not whole: the recorder was stopped in it"
    assert done.stderr == f"{capture}: {why}\n"
    log = kept("log", of_wire(ENGINE, "engine"))
    assert dragoman(log, ENGINE, "--from", "engine").exit_code == 0
    assert dragoman(ENGINE, WIRE / "engine/01-plain-text.sse", "--from", "engine").exit_code == 1
    torn = tmp_path / "torn"
    torn.write_bytes(b'event: text_delta\ndata: {"\n\n' + ENGINE.read_bytes())
    done = dragoman(torn, log, "--from", "engine")
    assert done.stderr == f"{torn}: 1 frame made no sense and was skipped\n"


@pytest.mark.parametrize(
    ("content", "arguments", "told"),
    [
        (
            b'data: {"x":1}\n\n',
            (),
            "it is neither a capture nor a canonical log: it looks like an event stream of a "
            "dialect that is not known here. A recorded body needs --from DIALECT.",
        ),
        (
            b"",
            (),
            "it is neither a capture nor a canonical log: the input is empty. A recorded "
            "body needs --from DIALECT.",
        ),
        (b"", ("--from", "herm"), "no event of `herm`: the input is empty."),
        (
            b"<html>\n",
            ("--from", "herm"),
            "1: byte 0: no line of an event stream: it looks like "
            "HTML or XML. Is it a body of `herm`?",
        ),
        (
            small()[0].encode() + b'\n{"seq":2}\n',
            (),
            "2: canonical event: `at` is missing. Make the log anew with `dragoman sessions "
            "export`.",
        ),
        (
            format_record(CaptureHead(made_by="x", at=1.0)),
            (),
            "it does not say which dialect it is of: name it with --from.",
        ),
        (
            format_record(CaptureHead(made_by="x", at=1.0))
            + format_record(
                CapturedRequest(exchange=1, side="backend", at=1.0, method="GET", target="/")
            )
            * 2,
            (),
            "line 3: exchange 1 begins a second time.",
        ),
    ],
)
def test_what_cannot_be_read_is_told(
    content: bytes, arguments: tuple[str, ...], told: str, kept: Keep, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(content)
    done = dragoman(kept("a", small()), bad, *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.partition(str(bad))[2].lstrip(": ") == f"{told}\n"


def test_a_wrong_command_line_is_told(kept: Keep, tmp_path: Path) -> None:
    a = kept("a", small())
    done = dragoman(a, tmp_path / "none")
    assert (done.exit_code, done.stderr) == (
        2,
        f"dragoman: {tmp_path / 'none'}: No such file or directory\n",
    )
    done = dragoman(a, a, "--ignore", "usag")
    assert done.exit_code == 2
    assert "The nearest is `usage`." in done.stderr
    done = dragoman("-", "-")
    assert done.exit_code == 2
    assert "only one of A and B can be stdin" in done.stderr
    done = dragoman(a, ENGINE, "--from", "hermes-agent")
    assert done.exit_code == 2
    assert done.stderr
