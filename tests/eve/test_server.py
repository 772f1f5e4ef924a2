"""The eve encoder: what the log of a session becomes, in each form.

Logs are made lawful by the normalizer, as everything that reaches an encoder is; records are judged
by the record checker of the strict client, which shares no code with the encoder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.eve.requests import webhook_token
from adapters.eve.server import DELIVERIES_MOST, EveEncoder
from adapters.model import events as ev
from adapters.model.base import EncoderContext, Frame
from adapters.model.normalizer import Normalizer
from adapters.model.raw import BlockEnded
from tests.support.each import each
from tests.support.eve_records import Form, ProtocolViolation, Record, RecordChecker

FORMS: list[Form] = ["all", "tokens", "newest"]
VERSIONS: dict[Form, int] = {"all": 24, "tokens": 21, "newest": 26}
AT = 1_780_992_900_000
MAIN = ev.MAIN
SAID = (ev.Text(text="Pay Ada."),)


def encoder(form: Form = "all", *, thread: str = MAIN, rotate: bool = True) -> EveEncoder:
    return EveEncoder(
        EncoderContext(
            session_id="dgs_1",
            secret=b"s" * 32,
            thread_id=thread,
            agent="research",
            settings={"form": form, "token_rotation": rotate},
        )
    )


def entries(raw: Iterable[ev.Event], *, lawful: bool = True) -> list[ev.Entry]:
    """The log that raw events become, a millisecond apart."""
    start = ev.SessionStarted(thread_id=MAIN)
    events = Normalizer().feed([start, *raw]) if lawful else [start, *raw]
    return [ev.Entry(seq, AT + seq, "dgs_1", event) for seq, event in enumerate(events, 1)]


def frames(made: EveEncoder, log: Sequence[ev.Entry]) -> list[Frame]:
    return [frame for entry in log for frame in made.feed(entry)]


def records(form: Form, raw: Iterable[ev.Event], **options: Any) -> list[Record]:
    """The records of a log in a form, checked one by one."""
    made = encoder(form)
    checker = RecordChecker(VERSIONS[form], form=form, **options)
    found = []
    for frame in frames(made, entries(raw)):
        record = json.loads(frame.data)
        checker.check(record)
        found.append(record)
    return found


def kinds(found: Sequence[Record]) -> list[str]:
    return [record["type"] for record in found]


def accepted(command: str = "c1", content: Any = SAID, **fields: Any) -> ev.Event:
    values = {"kind": "message", "by": "local", "face": "eve", **fields}
    return ev.InputAccepted(thread_id=MAIN, command_id=command, content=content, **values)


def said(command: str = "c1", turn: str = "t1", content: Any = SAID) -> list[ev.Event]:
    """A message that starts a turn."""
    return [
        accepted(command, content),
        ev.InputSettled(thread_id=MAIN, command_id=command, outcome="taken"),
        ev.TurnStarted(thread_id=MAIN, turn_id=turn, cause="message"),
        ev.MessageReceived(
            thread_id=MAIN, turn_id=turn, message_id=command, content=content, command_id=command
        ),
    ]


def in_turn(turn: str = "t1", **fields: Any) -> dict[str, Any]:
    return {"thread_id": MAIN, "turn_id": turn, **fields}


def step(index: int = 0, turn: str = "t1") -> ev.Event:
    return ev.StepStarted(**in_turn(turn), step_index=index)


def step_over(index: int = 0, reason: str = "stop", turn: str = "t1") -> ev.Event:
    return ev.StepEnded(**in_turn(turn), step_index=index, finish_reason=reason)


def text(*pieces: str, block: str = "b1", turn: str = "t1", reason: str = "stop") -> list[ev.Event]:
    where = in_turn(turn, block_id=block, message_id="m1")
    return [
        *(ev.TextDelta(**where, text=piece) for piece in pieces),
        ev.TextCompleted(**where, text="".join(pieces), finish_reason=reason),
    ]


def ended(outcome: Any = "completed", turn: str = "t1", **fields: Any) -> ev.Event:
    return ev.TurnEnded(**in_turn(turn), outcome=outcome, **fields)


def asked(request: str = "r1", call: str | None = "call-1", **fields: Any) -> list[ev.Event]:
    """An approval, and the pause that it makes."""
    values = {
        "kind": "approval",
        "prompt": "Pay Ada?",
        "options": (ev.Option(id="approve", label="Yes"), ev.Option(id="deny", label="No")),
        **fields,
    }
    return [
        ev.InteractionRequested(**in_turn(), request_id=request, call_id=call, **values),
        ev.TurnPaused(**in_turn(), on="input"),
    ]


def resolved(request: str = "r1", outcome: Any = "approved", **fields: Any) -> list[ev.Event]:
    return [
        ev.InteractionResolved(**in_turn(), request_id=request, outcome=outcome, **fields),
        ev.TurnResumed(**in_turn()),
    ]


CALL = ev.ToolCalled(**in_turn(), call_id="call-1", name="pay", input={"cents": 1250})
PAID = ev.ToolReturned(**in_turn(), call_id="call-1", output={"paid": True})
HELD: list[ev.Event] = [*said(), step(), CALL, step_over(0, "tool-calls"), *asked()]
AGAIN = ev.TurnPaused(**in_turn(), on="input", request_ids=("r1",), synthetic=True)
STOP = ev.InputAccepted(thread_id=MAIN, command_id="stop", kind="interrupt", by="local", face="eve")
STOPPED = ev.InputSettled(thread_id=MAIN, command_id="stop", outcome="taken")
APPROVAL: list[ev.Event] = [
    *said(),
    step(),
    *text("This needs ", "a yes.", reason="tool-calls"),
    CALL,
    step_over(0, "tool-calls"),
    *asked(),
    *resolved(),
    PAID,
    step(1),
    *text("Paid.", block="b2"),
    step_over(1),
    ended(),
]

# One turn


def test_a_prewarmed_session_has_no_record_before_its_first_turn() -> None:
    made = encoder()
    assert frames(made, entries([accepted()])) == []
    assert made.next_cursor == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_turn_with_text_has_the_records_of_section_8_1(form: Form) -> None:
    found = records(form, [*said(), step(), *text("Hel", "lo."), step_over(), ended()])
    assert kinds(found) == [
        "session.started",
        "turn.started",
        "message.received",
        "step.started",
        "message.appended",
        "message.appended",
        "message.completed",
        "step.completed",
        "turn.completed",
        "session.waiting",
    ]
    cumulative = [record["data"].get("messageSoFar") for record in found[4:6]]
    assert cumulative == ([None, None] if form == "newest" else ["Hel", "Hello."])
    assert found[2]["data"]["message"] == "Pay Ada."
    assert found[6]["data"] == {
        "sequence": 0,
        "turnId": "turn_0",
        "stepIndex": 0,
        "message": "Hello.",
        "finishReason": "stop",
    }


_TEXTS = st.text(st.sampled_from('a"\\\n\x85\u2028“é🙂'), max_size=4)


@given(st.lists(st.tuples(st.sampled_from(["text", "reasoning"]), _TEXTS, st.booleans())))
def test_what_was_said_so_far_is_all_that_was_said(said: list[tuple[str, str, bool]]) -> None:
    shown = encoder()
    scope: dict[str, Any] = {"thread_id": MAIN, "turn_id": "t"}
    events: list[ev.Event] = [
        ev.SessionStarted(thread_id=MAIN),
        ev.TurnStarted(**scope, cause="background"),
        ev.StepStarted(**scope, step_index=0),
    ]
    for seq, event in enumerate(events, 1):
        shown.feed(ev.Entry(seq, AT, "dgs_1", event))
    so_far = {"text": "", "reasoning": ""}
    for seq, (kind, piece, restarted) in enumerate(said, 4):
        if restarted:
            other = encoder()
            other.restore(shown.snapshot())
            shown = other
        make = ev.TextDelta if kind == "text" else ev.ReasoningDelta
        event = make(**scope, block_id=kind, message_id="m", text=piece)
        (frame,) = shown.feed(ev.Entry(seq, AT, "dgs_1", event))
        so_far[kind] += piece
        assert len(frame.data.decode().splitlines()) == 1
        data = json.loads(frame.data)["data"]
        name = "message" if kind == "text" else "reasoning"
        assert data[f"{name}Delta"] == piece
        assert data[f"{name}SoFar"] == so_far[kind]


@pytest.mark.parametrize("form", FORMS)
def test_deliveries_stand_on_every_record_of_their_turn_but_not_in_the_token_generation(
    form: Form,
) -> None:
    turn = [*said(), step(), *text("Hello."), step_over(), ended()]
    again = [*said("c2", "t2"), step(0, "t2"), step_over(0, turn="t2"), ended(turn="t2")]
    found = records(form, [*turn, *again])
    deliveries = [record["meta"].get("deliveryIds") for record in found]
    if form == "tokens":
        assert deliveries == [None] * len(found)
    else:
        first = kinds(found).index("session.waiting") + 1
        assert deliveries == [["c1"]] * first + [["c2"]] * (len(found) - first)


@pytest.mark.parametrize("form", ["all", "newest"])
@pytest.mark.parametrize("first", ["settled", "received", "refused", "work"])
def test_a_turn_that_was_faster_than_the_answer_to_its_message_names_it_on_its_first_record(
    form: Form, first: str
) -> None:
    taken, settled, began, received = said("c2", "t2")
    rest = {
        "settled": [settled, received],
        "received": [received, settled],
        "refused": [settled.model_copy(update={"outcome": "refused"})],
        "work": [step(0, "t2"), settled],
    }[first]
    later = {"native": ev.NativeRef(dialect="eve", type="turn.started"), "extra": {"later": 1}}
    began = began.model_copy(update=later)
    turn = [*said(), step(), *text("Hello."), step_over(), ended()]
    made = encoder(form)
    out: list[Frame] = []
    for entry in entries([*turn, taken, began, *rest, ended(turn="t2")]):
        out += made.feed(entry)
        again = encoder(form)
        again.restore(made.snapshot())
        made = again
    found = [json.loads(frame.data) for frame in out]
    starts = [record for record in found if record["type"] == "turn.started"]
    assert starts[1]["data"] == {"sequence": 1, "turnId": "turn_1", "later": 1}
    owner = "c2" if first in ("settled", "received") else "c1"
    assert starts[1]["meta"]["deliveryIds"] == [owner]
    assert len(starts) == 2 + (first == "refused")


def test_a_turn_of_which_nobody_says_whose_it_is_is_shown_when_the_session_fails() -> None:
    taken, _, began, _ = said()
    over = ended("failed", native=ev.NativeRef(dialect="eve", type="session.failed"))
    assert kinds(records("all", [taken, began, over])) == ["session.started", "turn.started"]


def test_a_turn_that_goes_on_before_its_answer_is_settled_names_it_on_its_first_record() -> None:
    answer = accepted("c2", request_id="r1")
    settled = ev.InputSettled(thread_id=MAIN, command_id="c2", outcome="taken")
    resumed = ev.TurnResumed(**in_turn())
    rest = [*resolved(outcome="answered"), settled, step(1), step_over(1), ended()]
    found = records("all", [*said(), step(), *asked(call=None), answer, resumed, *rest])
    opened = kinds(found).index("turn.started", 2)
    assert all("c2" in record["meta"]["deliveryIds"] for record in found[opened:])

    later = records("all", [*said(), step(), *asked(call=None), answer, settled, resumed, *rest])
    made = encoder("all")
    frames(made, entries([*said(), step(), *asked(call=None), answer, settled]))
    assert json.loads(made.snapshot())["unsettled_answers"] == []
    assert len(later) == len(found)


def test_a_turn_of_which_nobody_has_said_whose_it_is_can_be_stopped_by_its_id() -> None:
    taken, _, began, _ = said("c2", "t2")
    made = encoder("newest")
    frames(made, entries([*said(), ended(), taken, began]))
    assert made.turn_id == "turn_1"


def test_a_record_names_the_newest_deliveries_of_its_turn() -> None:
    count = DELIVERIES_MOST + 5
    told = [
        event
        for n in range(count)
        for event in (
            ev.InputAccepted(thread_id=MAIN, command_id=f"g{n}", kind="steer", by="ann"),
            ev.InputSettled(thread_id=MAIN, command_id=f"g{n}", outcome="taken"),
            ev.GuidanceReceived(
                thread_id=MAIN, turn_id="t1", text="so", command_id=f"g{n}", synthetic=True
            ),
        )
    ]
    found = records("newest", [*said(), step(), *told, step_over(), ended()])
    named = [record["meta"].get("deliveryIds", []) for record in found]
    assert max(map(len, named)) == DELIVERIES_MOST
    assert named[-1][-1] == f"g{count - 1}"


def test_an_approval_closes_the_turn_and_another_opens_at_the_answer() -> None:
    for form in ("all", "tokens"):
        found = kinds(records(form, APPROVAL))
        pause = found.index("input.requested")
        assert found[pause + 1 : pause + 3] == ["turn.completed", "session.waiting"]
        resolution = ["input.resolved"] if form == "all" else []
        assert found[pause + 3 : pause + 5 + len(resolution)] == [
            "turn.started",
            *resolution,
            "action.result",
        ]
        assert found.count("turn.started") == 2


@pytest.mark.parametrize("outcome", ["approved", "unknown"])
@pytest.mark.parametrize("answer", [None, ev.Answer(option_ids=("approve",))])
def test_a_call_that_may_run_waits_for_its_result_in_the_new_turn(
    outcome: Any, answer: ev.Answer | None
) -> None:
    # What every release then shows is judged by the checker (`tests/support/eve_shown.py`).
    found = records("all", [*HELD, *resolved(outcome=outcome, answer=answer), PAID, ended()])
    (data,) = (record["data"] for record in found if record["type"] == "input.resolved")
    (resolution,) = data["resolutions"]
    # What it came to is in the option; what nobody knows is left open.
    known = outcome == "approved" or answer is not None
    chosen = {"optionId": "approve"} if known else {}
    assert (data["turnId"], resolution["outcome"]) == ("turn_1", "answered")
    assert resolution["response"] == {"requestId": "r1", **chosen}


@pytest.mark.parametrize("outcome", ["approved", "withdrawn"])
def test_a_call_that_was_asked_about_and_never_returns_is_told_so_where_it_would_wait_for_ever(
    outcome: Any,
) -> None:
    raw = [*HELD, *resolved(outcome=outcome), ended("interrupted")]
    (result,) = (r["data"] for r in records("all", raw) if r["type"] == "action.result")
    assert (result["status"], result["error"]["code"]) == ("failed", "abandoned")
    for form in ("tokens", "newest"):
        assert "action.result" not in kinds(records(form, raw))
    # What is cancelled with its turn needs none.
    assert "action.result" not in kinds(records("all", [*HELD, ended("interrupted")]))


def test_an_approval_without_a_call_of_its_own_is_told_as_it_was_resolved() -> None:
    raw = [*said(), step(), step_over(), *asked(call=None), *resolved(), ended()]
    found = records("all", raw)
    (data,) = (record["data"] for record in found if record["type"] == "input.resolved")
    assert data["resolutions"][0]["outcome"] == "approved"
    assert "response" not in data["resolutions"][0]


def test_an_approval_holds_the_turn_in_the_newest_form() -> None:
    found = records("newest", APPROVAL)
    names = kinds(found)
    pause = names.index("input.requested")
    assert names[pause + 1 : pause + 5] == [
        "turn.waiting",
        "approval.settled",
        "input.resolved",
        "action.result",
    ]
    assert names.count("turn.started") == names.count("turn.completed") == 1
    assert found[names.index("session.waiting")]["data"]["continuationToken"] == "dgs_1"


@pytest.mark.parametrize("form", FORMS)
def test_a_denied_call_is_rejected_as_real_servers_write_it(form: Form) -> None:
    error = ev.ErrorInfo(code="permission_denied", message="permission_denied")
    denied = ev.ToolReturned(
        **in_turn(), call_id="call-1", output="", is_error=True, error=error, status="rejected"
    )
    raw = [*said(), step(), CALL, step_over(0, "tool-calls"), *asked(), *resolved(outcome="denied")]
    found = records(form, [*raw, denied, ended()])
    result = next(record["data"] for record in found if record["type"] == "action.result")
    assert result["status"] == "rejected"
    assert result["error"]["code"] == "TOOL_EXECUTION_DENIED"
    if form == "newest":
        settled = next(r["data"] for r in found if r["type"] == "approval.settled")
        assert settled["outcome"] == "cancelled"


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_its_turn_left_behind_gets_no_result(form: Form) -> None:
    found = records(form, [*said(), step(), CALL, ended("interrupted")])
    assert "action.result" not in kinds(found)
    assert kinds(found)[-2:] == ["turn.cancelled", "session.waiting"]


@pytest.mark.parametrize("form", FORMS)
def test_half_a_text_is_never_an_answer(form: Form) -> None:
    half = text("Half an ans", "wer")[:-1]
    error = ev.ErrorInfo(code="LLM_PROVIDER_ERROR", message="It broke.", details={"a": 1})
    found = records(form, [*said(), step(), *half, ended("failed", error=error)])
    assert "message.completed" not in kinds(found)
    failed = found[-2]["data"]
    assert (failed["code"], failed["message"], failed["details"]) == (
        "LLM_PROVIDER_ERROR",
        "It broke.",
        {"a": 1},
    )
    assert failed.get("terminal") is (None if form == "tokens" else False)


@pytest.mark.parametrize("form", FORMS)
def test_a_child_asks_on_the_stream_of_its_parent_and_is_answered_there(form: Form) -> None:
    child: dict[str, Any] = {"thread_id": "child-1", "turn_id": "k1"}
    raw = [
        *said(),
        step(),
        ev.ThreadStarted(thread_id="child-1", parent=MAIN, name="cleaner"),
        ev.TurnStarted(**child, cause="unknown"),
        ev.InteractionRequested(
            **child, request_id="r1", shown_on=MAIN, kind="approval", prompt="Remove it?"
        ),
        ev.TurnPaused(**child, on="input"),
        ev.TurnPaused(**in_turn(), on="input"),
        ev.InteractionResolved(**child, request_id="r1", outcome="approved"),
        ev.TurnResumed(**child),
        ev.TurnResumed(**in_turn()),
        ev.TurnEnded(**child, outcome="completed"),
        ev.ThreadEnded(thread_id="child-1", status="completed", output="Clean."),
        step(1),
        *text("Done."),
        ended(),
    ]
    found = records(form, raw)
    assert "input.requested" in kinds(found)
    if form != "tokens":
        assert "input.resolved" in kinds(found)
    end = "task.settled" if form == "newest" else "subagent.completed"
    assert next(r["data"] for r in found if r["type"] == end)["output"] == "Clean."


# Merged deltas


@pytest.mark.parametrize("form", ["all", "tokens"])
@pytest.mark.parametrize("channel", ["message", "reasoning"])
def test_long_texts_stay_linear_on_the_wire(form: Form, channel: str) -> None:
    size, piece = 256 * 1024, "8 bytes."
    make = ev.TextDelta if channel == "message" else ev.ReasoningDelta
    whole = ev.TextCompleted if channel == "message" else ev.ReasoningCompleted
    where = in_turn(block_id="b1", message_id="m1")
    deltas = [make(**where, text=piece) for _ in range(size // len(piece))]
    raw = [*said(), step(), *deltas, whole(**where, text=piece * len(deltas)), step_over(), ended()]
    made = encoder(form)
    written = frames(made, entries(raw))
    appended = [json.loads(frame.data)["data"] for frame in written if b".appended" in frame.data]
    so_far = ""
    for data in appended:
        so_far += data[f"{channel}Delta"]
        assert data[f"{channel}SoFar"] == so_far
    assert so_far == piece * len(deltas)
    assert sum(len(frame.data) for frame in written) <= 80 * size


def test_the_newest_form_writes_every_delta_and_never_twice() -> None:
    deltas = ["8 bytes."] * 2000
    found = records("newest", [*said(), step(), *text(*deltas), step_over(), ended()])
    appended = [r["data"] for r in found if r["type"] == "message.appended"]
    assert [data["messageDelta"] for data in appended] == deltas


@pytest.mark.parametrize("form", ["all", "tokens"])
def test_short_texts_are_not_merged(form: Form) -> None:
    deltas = ["word "] * 500
    found = records(form, [*said(), step(), *text(*deltas), step_over(), ended()])
    assert kinds(found).count("message.appended") == 500


@pytest.mark.parametrize("form", ["all", "tokens"])
def test_merged_deltas_are_written_before_anything_else_of_the_turn(form: Form) -> None:
    long = in_turn(block_id="b1", message_id="m1")
    reason = in_turn(block_id="b2", message_id="m2")
    raw: list[ev.Event] = [
        *said(),
        step(),
        ev.TextDelta(**long, text="x" * 5000),
        ev.TextDelta(**long, text="tail"),
        ev.ReasoningDelta(**reason, text="y" * 5000),
        ev.ReasoningDelta(**reason, text="end"),
        ev.TextDelta(**long, text="more"),
        CALL,
        ended("failed"),
    ]
    found = records(form, raw)
    names = kinds(found)
    deltas = [r["data"].get("messageDelta") or r["data"].get("reasoningDelta") for r in found]
    assert [d for d in deltas if d] == ["x" * 5000, "tail", "y" * 5000, "end", "more"]
    last = max(at for at, name in enumerate(names) if name.endswith(".appended"))
    assert last < names.index("actions.requested")


# Snapshots


def long_story() -> list[ev.Event]:
    """Everything that an encoder keeps between entries."""
    return [
        *APPROVAL,
        *said("c2", "t2"),
        step(0, "t2"),
        *text("x" * 4000, *["more "] * 60, block="b3", turn="t2"),
        step_over(0, turn="t2"),
        ended("failed", "t2", error=ev.ErrorInfo(code="X", message="x")),
        accepted("c3"),
        ev.InputSettled(thread_id=MAIN, command_id="c3", outcome="refused", reason="No."),
        ev.ContextCompacted(thread_id=MAIN, before_tokens=10, after_tokens=5),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_snapshot_at_any_entry_goes_on_with_the_same_bytes(form: Form) -> None:
    log = entries(long_story())
    whole = encoder(form)
    expected = [whole.feed(entry) for entry in log]
    first = encoder(form)
    for at, entry in enumerate(log):
        snapshot = first.snapshot()
        resumed = encoder(form)
        resumed.restore(snapshot)
        # A few entries show whether anything is missing; all of them would cost the square.
        for ahead in range(at, min(at + 4, len(log))):
            assert resumed.feed(log[ahead]) == expected[ahead], (at, log[ahead].event.TYPE)
        assert first.feed(entry) == expected[at]
    assert first.next_cursor == whole.next_cursor


@pytest.mark.parametrize("form", FORMS)
def test_cursors_count_records_without_gaps_and_ids_are_those_of_the_place(form: Form) -> None:
    log = entries(long_story())
    once, again = frames(encoder(form), log), frames(encoder(form), log)
    assert once == again
    assert [frame.cursor for frame in once] == list(range(len(once)))
    assert len({json.loads(frame.data)["meta"]["id"] for frame in once}) == len(once)


# Tokens


@pytest.mark.parametrize("form", ["all", "tokens"])
@pytest.mark.parametrize("rotate", [True, False])
def test_every_wait_has_a_token_of_its_own_unless_rotation_is_off(form: Form, rotate: bool) -> None:
    made = encoder(form, rotate=rotate)
    before = made.token
    found = [json.loads(frame.data) for frame in frames(made, entries(APPROVAL))]
    tokens = [
        record["data"]["continuationToken"]
        for record in found
        if record["type"] == "session.waiting"
    ]
    assert tokens[-1] == made.token
    assert len({before, *tokens}) == (3 if rotate else 1)


def test_the_number_of_the_token_that_an_input_used_is_kept() -> None:
    made = encoder()
    assert made.used == -1
    frames(made, entries([accepted(details={"eve_token": 0}), accepted("c2")]))
    assert made.used == 0


# Inputs that are not taken

BOUNDARY = "session.waiting"
REFUSED = ev.InputSettled(thread_id=MAIN, command_id="c2", outcome="refused")
WITHDRAWN = ev.InputSettled(thread_id=MAIN, command_id="c3", outcome="withdrawn")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("outcome", "end"),
    [("refused", "turn.failed"), ("unknown", "turn.failed"), ("withdrawn", "turn.cancelled")],
)
def test_a_message_that_is_not_taken_gets_a_boundary_with_its_delivery(
    form: Form, outcome: Any, end: str
) -> None:
    settled = ev.InputSettled(thread_id=MAIN, command_id="c1", outcome=outcome, reason="Why.")
    found = records(form, [accepted(), settled])
    assert kinds(found) == [
        "session.started",
        "turn.started",
        "message.received",
        end,
        "session.waiting",
    ]
    if form != "tokens":
        assert found[-1]["meta"]["deliveryIds"] == ["c1"]
    if end == "turn.failed":
        assert found[3]["data"]["code"] == f"input_{outcome}"


@pytest.mark.parametrize("name", ["compact", "clear"])
@pytest.mark.parametrize("outcome", ["refused", "unknown"])
@pytest.mark.parametrize("form", FORMS)
def test_a_control_that_comes_to_nothing_has_a_boundary(
    form: Form, outcome: Any, name: str
) -> None:
    control = ev.InputAccepted(
        thread_id=MAIN, command_id="c2", kind="control", name=name, by="local"
    )
    before = [*said(), step(), step_over(), ended(), control]
    found = records(form, before)
    settled = ev.InputSettled(thread_id=MAIN, command_id="c2", outcome=outcome)
    after = records(form, [*before, settled])
    assert kinds(after[len(found) :]) == ["session.waiting"]
    # One that is taken has its own.
    taken = ev.InputSettled(thread_id=MAIN, command_id="c2", outcome="taken")
    assert records(form, [*before, taken]) == found


@pytest.mark.parametrize("form", FORMS)
def test_a_message_that_is_not_taken_while_a_turn_runs_is_shown_after_it(form: Form) -> None:
    raw = [*said(), accepted("c2"), accepted("c3"), step(), REFUSED, WITHDRAWN, step_over()]
    found = records(form, [*raw, ended()])
    turns = kinds(found)[1:]
    assert turns == [
        *("turn.started", "message.received", "step.started", "step.completed"),
        *("turn.completed", "session.waiting"),
        *("turn.started", "message.received", "turn.failed", "session.waiting"),
        *("turn.started", "message.received", "turn.cancelled", "session.waiting"),
    ]
    if form != "tokens":
        owners = [record["meta"]["deliveryIds"] for record in found[1:]]
        assert owners == [["c1"]] * 6 + [["c2"]] * 4 + [["c3"]] * 4


@pytest.mark.parametrize("form", FORMS)
def test_who_sent_a_message_that_is_not_taken_need_not_wait_for_what_others_are_asked(
    form: Form,
) -> None:
    raw = [*said(), accepted("c2"), step(), REFUSED, CALL, step_over(0, "tool-calls"), *asked()]
    found = records(form, raw)
    assert found[-1]["type"] == ("turn.waiting" if form == "newest" else "session.waiting")
    if form != "tokens":
        assert found[-1]["meta"]["deliveryIds"] == ["c1", "c2"]
    found = records(form, [*raw, *resolved(), PAID, ended()])
    assert kinds(found).count("turn.failed") == 1
    assert kinds(found)[-4:] == ["turn.started", "message.received", "turn.failed", BOUNDARY]


@pytest.mark.parametrize("form", FORMS)
def test_a_message_that_is_not_taken_at_a_pause_leaves_what_is_asked_open(form: Form) -> None:
    raw = [*said(), step(), CALL, step_over(0, "tool-calls"), *asked(), accepted("c2"), REFUSED]
    found = records(form, raw)
    if form == "newest":
        assert kinds(found)[-2:] == ["turn.waiting", "turn.waiting"]
    else:
        assert kinds(found)[-4:] == [BOUNDARY, "turn.started", "turn.completed", BOUNDARY]
    if form != "tokens":
        assert "c2" in found[-1]["meta"]["deliveryIds"]
    found = records(form, [*raw, *resolved(), PAID, ended()])
    assert kinds(found).count("turn.failed") == 1
    assert kinds(found)[-4:] == ["turn.started", "message.received", "turn.failed", BOUNDARY]


@pytest.mark.parametrize("form", FORMS)
def test_a_message_that_is_not_taken_after_the_answer_is_shown_after_the_turn(form: Form) -> None:
    answer, resumed = resolved()
    raw = [*HELD, accepted("c2"), answer, REFUSED, resumed, PAID, ended()]
    found = kinds(records(form, raw))
    assert found.count("turn.failed") == 1
    assert found[-4:] == ["turn.started", "message.received", "turn.failed", BOUNDARY]


@pytest.mark.parametrize("form", FORMS)
def test_a_message_that_waits_at_a_pause_gets_a_boundary_with_its_delivery(form: Form) -> None:
    found = records(form, [*HELD, accepted("c2"), AGAIN])
    if form == "newest":
        assert kinds(found)[-2:] == ["turn.waiting", "turn.waiting"]
    else:
        assert kinds(found)[-4:] == [BOUNDARY, "turn.started", "turn.completed", BOUNDARY]
    if form != "tokens":
        assert found[-1]["meta"]["deliveryIds"] == ["c1", "c2"]


# Turns that are stopped while they rest


@pytest.mark.parametrize("form", ["all", "tokens"])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_turn_that_ends_where_it_rests_is_not_ended_twice(form: Form, stopped: bool) -> None:
    # A stop, or a message that withdraws the request (Herm): the next boundary must be of the next
    # message, since clients up to 0.44 take the first one.
    stop = [STOP, STOPPED] if stopped else []
    end = [*resolved(outcome="cancelled")[:1], ended("interrupted")]
    found = kinds(records(form, [*HELD, *stop, *end, *said("c2", "t2"), ended(turn="t2")]))
    rest = found[found.index(BOUNDARY) + 1 :]
    resolution = ["input.resolved"] if form == "all" else []
    assert rest == [*resolution, "turn.started", "message.received", "turn.completed", BOUNDARY]


def test_a_held_turn_that_is_stopped_ends_once() -> None:
    end = [*resolved(outcome="cancelled")[:1], ended("interrupted")]
    found = kinds(records("newest", [*HELD, STOP, STOPPED, *end]))
    assert found[-2:] == ["turn.cancelled", BOUNDARY]


@pytest.mark.parametrize("form", ["all", "tokens"])
def test_work_that_a_stop_sets_off_is_shown_when_it_says_something(form: Form) -> None:
    # The token generation has no cancel at a pause: the refusal opens a turn, which is cancelled.
    work = [*HELD, STOP, STOPPED, *resolved(outcome="cancelled"), step(1)]
    silent = kinds(records(form, [*work, step_over(1), ended("interrupted")]))
    assert silent.count(BOUNDARY) == 1
    spoken = [*work, *text("I left it."), step_over(1), ended()]
    assert kinds(records(form, spoken))[-7:] == [
        *("turn.started", "step.started", "message.appended", "message.completed"),
        *("step.completed", "turn.completed", BOUNDARY),
    ]


@pytest.mark.parametrize("form", ["all", "tokens"])
def test_a_turn_that_fails_where_it_rests_is_told(form: Form) -> None:
    error = ev.ErrorInfo(code="backend_session_lost", message="It is gone.")
    found = kinds(records(form, [*HELD, STOP, STOPPED, ended("failed", error=error)]))
    assert found[-3:] == ["turn.started", "turn.failed", BOUNDARY]


@pytest.mark.parametrize("form", ["all", "tokens"])
@pytest.mark.parametrize("said_as", ["answer", "message"])
def test_who_answered_before_the_stop_is_not_kept_waiting(form: Form, said_as: str) -> None:
    answer = accepted("c2", None if said_as == "answer" else SAID, kind=said_as, request_id="r1")
    end = [*resolved(outcome="cancelled")[:1], ended("interrupted")]
    found = kinds(records(form, [*HELD, answer, STOP, STOPPED, *end]))
    assert found[-3:] == ["turn.started", "turn.cancelled", BOUNDARY]


@pytest.mark.parametrize("form", FORMS)
def test_a_message_after_a_stop_is_not_told_that_the_request_is_open(form: Form) -> None:
    waits = [*HELD, STOP, accepted("c2"), AGAIN]
    assert kinds(records(form, waits)) == kinds(records(form, HELD))
    end = [STOPPED, *resolved(outcome="cancelled")[:1], ended("interrupted")]
    found = records(form, [*waits, *end, *said("c2", "t2")[1:], ended(turn="t2")])
    if form == "tokens":
        assert kinds(found).count(BOUNDARY) == 2
    else:
        mine = [r["type"] for r in found if "c2" in r["meta"]["deliveryIds"]]
        assert mine == ["turn.started", "message.received", "turn.completed", BOUNDARY]
    # A stop that comes to nothing: what is asked stays open, and the message waits for that.
    refused = STOPPED.model_copy(update={"outcome": "refused"})
    assert kinds(records(form, [*HELD, STOP, refused])) == kinds(records(form, HELD))
    found = records(form, [*waits, refused])
    assert kinds(found)[-1] == ("turn.waiting" if form == "newest" else BOUNDARY)
    assert len(found) == len(records(form, [*HELD, accepted("c2"), AGAIN]))
    if form != "tokens":
        assert "c2" in found[-1]["meta"]["deliveryIds"]


# Answers and a message in one request

CLOSED = pytest.mark.parametrize("form", ["all", "tokens"])
BESIDE = accepted("c2", details={"beside": ["r1"]})
ANSWER = accepted("c3", None, kind="answer", request_id="r1")
BOTH: list[ev.Event] = [*HELD, ANSWER, BESIDE]
WORK: list[ev.Event] = [*resolved(), step(1), PAID, *text("Paid."), step_over(1)]
LATER = [*said("c2", "t2")[1:], step(0, "t2"), *text("More.", block="b2", turn="t2")]


def settlement(outcome: Any, **fields: Any) -> ev.Event:
    return ev.InputSettled(thread_id=MAIN, command_id="c2", outcome=outcome, **fields)


def after_answer(form: Form, raw: Iterable[ev.Event]) -> list[Record]:
    """The records after the pause at which both were given."""
    return records(form, [*BOTH, *raw])[len(records(form, HELD)) :]


@CLOSED
@pytest.mark.parametrize("late", [True, False])
def test_a_message_beside_answers_is_answered_in_their_turn(form: Form, late: bool) -> None:
    # Its backend gets it when the turn is over, or does both at once.
    more = [step(2), *text("More.", block="b2")]
    taken = [settlement("taken"), said("c2")[-1]]
    alone = [*WORK, ended(), *LATER, ended(turn="t2")]
    at_once = [resolved()[0], resolved()[1], *taken, *WORK[2:], *more, ended()]
    found = after_answer(form, alone if late else at_once)
    kinds_found = [
        kind for kind in kinds(found) if kind not in ("input.resolved", "message.appended")
    ]
    assert kinds_found == [
        *("turn.started", "message.received", "step.started", "action.result"),
        *("message.completed", "step.completed", "step.started", "message.completed"),
        *("step.completed", "turn.completed", BOUNDARY),
    ]
    steps = [r["data"]["stepIndex"] for r in found if r["type"] == "step.started"]
    assert steps == [0, 1]
    if form == "all":
        assert found[-1]["meta"]["deliveryIds"] == ["c1", "c2"]


@pytest.mark.parametrize("kind", ["text", "reasoning"])
@pytest.mark.parametrize("form", FORMS)
def test_words_that_were_told_before_their_step_are_in_it(form: Form, kind: str) -> None:
    # As a real 0.30.8 told them on a busy machine.
    words = text("Hel", "lo")
    if kind == "reasoning":
        where = in_turn(block_id="b1", message_id="m1")
        words = [
            *(ev.ReasoningDelta(**where, text=piece) for piece in ("Hel", "lo")),
            ev.ReasoningCompleted(**where, text="Hello"),
        ]
    found = records(form, [*said(), words[0], step(), *words[1:], step_over(), ended()])
    begins = "message" if kind == "text" else "reasoning"
    assert [
        name
        for name in kinds(found)
        if name.startswith(("step", begins)) and name != "message.received"
    ] == [
        *("step.started", f"{begins}.appended", f"{begins}.appended"),
        *(f"{begins}.completed", "step.completed"),
    ]
    # The next one is another.
    more = [step(1), *text("More.", block="b2"), step_over(1)]
    found = records(form, [*said(), words[0], step(), *words[1:], step_over(), *more, ended()])
    assert [r["data"]["stepIndex"] for r in found if r["type"] == "step.started"] == [0, 1]


def test_the_newest_form_shows_a_message_beside_answers_when_it_comes() -> None:
    found = kinds(after_answer("newest", [*WORK, ended(), *LATER, ended(turn="t2")]))
    assert found.count(BOUNDARY) == 2
    assert found.index("message.received") > found.index(BOUNDARY)


@CLOSED
def test_a_turn_that_fails_goes_on_with_the_message_beside_its_answers(form: Form) -> None:
    error = ev.ErrorInfo(code="X", message="It broke.")
    quiet = [*resolved(), ended("failed", error=error)]
    found = after_answer(form, [*quiet, *LATER, ended(turn="t2")])
    (failed,) = [r["data"] for r in found if r["type"] == "step.failed"]
    assert (failed["code"], failed["message"]) == ("X", "It broke.")
    assert kinds(found)[-2:] == ["turn.completed", BOUNDARY]
    # What a backend says of the step is enough.
    step_failed = ev.StepEnded(**in_turn(), step_index=1, error=error)
    loud = [*resolved(), step(1), step_failed, ended("failed", error=error)]
    assert kinds(after_answer(form, [*loud, *LATER])).count("step.failed") == 1


@CLOSED
@pytest.mark.parametrize(
    ("outcome", "end"), [("refused", "turn.failed"), ("withdrawn", "turn.completed")]
)
@pytest.mark.parametrize("when", ["in the turn", "after it"])
def test_a_message_that_comes_to_nothing_ends_the_turn_of_its_answers(
    form: Form, outcome: Any, end: str, when: str
) -> None:
    nothing = settlement(outcome, reason="Why.")
    last = [nothing, ended()] if when == "in the turn" else [ended(), nothing]
    found = after_answer(form, [*WORK, *last])
    assert kinds(found).count("message.received") == 1
    assert kinds(found)[-2:] == [end, BOUNDARY]
    if end == "turn.failed":
        assert found[-2]["data"]["code"] == "input_refused"


@CLOSED
def test_a_turn_that_failed_and_whose_message_came_to_nothing_has_failed(form: Form) -> None:
    failed = ended("failed", error=ev.ErrorInfo(code="X", message="It broke."))
    found = after_answer(form, [*resolved(), failed, settlement("refused")])
    assert kinds(found)[-4:] == ["step.started", "step.failed", "turn.failed", BOUNDARY]
    assert kinds(found).count("message.received") == 1
    (end,) = [r["data"] for r in found if r["type"] == "turn.failed"]
    assert end["code"] == "X"


@CLOSED
def test_a_message_that_a_stop_withdraws_is_told_with_the_turn(form: Form) -> None:
    found = kinds(
        after_answer(form, [*WORK, STOP, STOPPED, settlement("withdrawn"), ended("interrupted")])
    )
    assert found[-2:] == ["turn.cancelled", BOUNDARY]
    assert found.count(BOUNDARY) == found.count("message.received") == 1


@CLOSED
def test_a_message_that_a_stop_leaves_has_a_turn_of_its_own(form: Form) -> None:
    # Somebody else has stopped the turn, at the backend.
    raw = [*WORK, ended("interrupted"), *LATER, ended(turn="t2")]
    found = kinds(after_answer(form, raw))
    rest = found[found.index(BOUNDARY) + 1 :]
    assert rest[:2] == ["turn.started", "message.received"]
    assert rest[-2:] == ["turn.completed", BOUNDARY]


@CLOSED
def test_a_message_that_is_withdrawn_while_its_answers_wait_is_told_in_silence(form: Form) -> None:
    # Nobody reads: its sender has read the boundary at which the other request is open.
    raw = [*HELD, *asked("r2", None)[:1], ANSWER, BESIDE, AGAIN]
    before = records(form, raw)
    assert len(records(form, [*raw, settlement("withdrawn")])) == len(before)
    both = [*resolved("r1")[:1], *resolved("r2")]
    found = kinds(records(form, [*raw, settlement("withdrawn"), *both, ended()])[len(before) :])
    assert found.count(BOUNDARY) == 1
    assert found[-2:] == ["turn.completed", BOUNDARY]
    # The same where it is asked again meanwhile, or stopped.
    again = kinds(records(form, [*raw, settlement("withdrawn"), AGAIN])[len(before) :])
    assert "step.failed" not in again
    over = [resolved(name, "cancelled")[0] for name in ("r1", "r2")]
    stopped = [STOP, STOPPED, settlement("withdrawn"), *over, ended("interrupted")]
    found = kinds(records(form, [*raw, *stopped])[len(before) :])
    assert BOUNDARY not in found


@CLOSED
def test_a_message_that_failed_with_its_answers_is_told_where_they_are_asked_again(
    form: Form,
) -> None:
    claim: dict[str, Any] = {"thread_id": MAIN, "request_id": "r1", "command_id": "c3", "by": "b"}
    released = ev.InteractionAnswered(**claim, state="released")
    raw = [ev.InteractionAnswered(**claim), released, settlement("refused", reason="Why.")]
    found = after_answer(form, raw)
    resolution = ["input.resolved"] if form == "all" else []
    told = ["turn.started", "message.received", "step.started", "step.failed", "turn.completed"]
    assert kinds(found) == [*resolution, "input.requested", *told, BOUNDARY]
    # It is told once.
    assert "turn.failed" not in kinds(after_answer(form, [*raw, AGAIN, *WORK, ended()]))


def test_files_of_a_message_are_named_and_their_size_is_shown_by_later_generations() -> None:
    blob = ev.Blob(sha256="0" * 64)
    content = (
        ev.Text(text="See."),
        ev.File(media_type="image/png", name="a.png", size=4, ref=blob),
        ev.File(media_type="text/plain", ref=ev.Url(url="https://example.com/a.txt")),
    )
    for form in FORMS:
        found = records(form, [*said(content=content), ended()])
        parts = found[2]["data"]["parts"]
        assert parts[0] == {"type": "text", "text": "See."}
        size = {} if form == "tokens" else {"size": 4}
        assert parts[1] == {
            "type": "file",
            "mediaType": "image/png",
            "filename": "a.png",
            **size,
        }
        assert parts[2]["url"] == "https://example.com/a.txt"


# Interactions of other dialects


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["secret", "sudo", "unknown"])
def test_a_sealed_request_can_only_be_declined_here(form: Form, kind: Any) -> None:
    raw = [*said(), step(), step_over(), *asked(call=None, kind=kind, options=None, freeform=True)]
    found = records(form, raw)
    request = next(r["data"]["requests"][0] for r in found if r["type"] == "input.requested")
    assert [option["id"] for option in request["options"]] == ["decline"]
    assert request["allowFreeform"] is False
    assert request["kind"] == "question"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["approval", "limit"])
def test_a_request_without_options_gets_those_that_its_answer_takes(form: Form, kind: Any) -> None:
    raw = [*said(), step(), step_over(), *asked(call=None, kind=kind, options=None)]
    found = records(form, raw)
    request = next(r["data"]["requests"][0] for r in found if r["type"] == "input.requested")
    ids = [option["id"] for option in request["options"]]
    assert ids == (["approve", "deny"] if kind == "approval" else ["continue", "stop"])


@pytest.mark.parametrize("form", FORMS)
def test_a_sign_in_says_where_to_go_and_how_it_ended(form: Form) -> None:
    details = {
        "service": "calendar",
        "url": "https://login.example.com/device",
        "user_code": "ABCD-1234",
        "display_name": "Calendar",
        "instructions": "Type the code.",
    }
    request = asked(
        call=None,
        kind="authorization",
        prompt="Sign in.",
        options=None,
        details=details,
        extra={"webhook": True},
        expires_at=AT,
    )
    raw = [
        *said(),
        step(),
        step_over(),
        *request,
        *resolved(outcome="denied"),
        ended(),
    ]
    found = records(form, raw)
    required = next(r["data"] for r in found if r["type"] == "authorization.required")
    assert required["name"] == "calendar"
    assert required["description"] == "Sign in."
    attempt = "" if form == "tokens" else "r1/"
    token = webhook_token(b"s" * 32, "dgs_1", "r1")
    assert required["webhookUrl"] == f"/eve/v1/connections/calendar/callback/{attempt}{token}"
    assert required.get("attemptId") == (None if form == "tokens" else "r1")
    assert required["authorization"] == {
        "url": "https://login.example.com/device",
        "userCode": "ABCD-1234",
        "displayName": "Calendar",
        "instructions": "Type the code.",
        "expiresAt": "2026-06-09T08:15:00.000Z",
    }
    completed = next(r["data"] for r in found if r["type"] == "authorization.completed")
    assert (completed["name"], completed["outcome"]) == ("calendar", "declined")


@each(
    ("outcome", "shown"),
    [
        ("approved", "authorized"),
        ("answered", "authorized"),
        ("unknown", "authorized"),
        ("skipped", "declined"),
        ("withdrawn", "declined"),
        ("cancelled", "declined"),
        ("expired", "timed-out"),
        ("failed", "failed"),
    ],
)
@each("form", FORMS)
def test_a_sign_in_ends_with_a_word_of_section_9_4(form: Form, outcome: str, shown: str) -> None:
    request = asked(call=None, kind="authorization", prompt="Sign in.", options=None)
    found = records(
        form, [*said(), step(), step_over(), *request, *resolved(outcome=outcome), ended()]
    )
    (completed,) = [r["data"] for r in found if r["type"] == "authorization.completed"]
    assert completed["outcome"] == shown


# Children of backends that tell little


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("output", "words"),
    [("Paid.", ["Paid."]), ("All paid.", ["Paid.", "All paid."]), (None, ["Paid."])],
)
def test_what_a_child_said_last_is_not_said_again_as_its_result(
    form: Form, output: str | None, words: list[str]
) -> None:
    """Its own stream has one turn of what the backend told: what was said, and how it ended."""
    child: dict[str, Any] = {"thread_id": "child-1"}
    paid = (ev.Text(text="Paid."),)
    sent: dict[str, Any] = {"direction": "sent", "sender": MAIN, "recipient": "child-1"}
    received: dict[str, Any] = {"direction": "received", "sender": "child-1", "recipient": MAIN}
    log = entries(
        [
            *said(),
            ev.ThreadStarted(**child, parent=MAIN, name="payer"),
            ev.ThreadMessage(**in_turn(), **sent, content=SAID),
            ev.ThreadMessage(**in_turn(), **received, content=paid),
            ev.ThreadEnded(**child, status="completed", output=output),
        ],
        lawful=False,
    )
    found = [json.loads(frame.data) for frame in frames(encoder(form, thread="child-1"), log)]
    told = [r["data"]["message"] for r in found if r["type"] == "message.completed"]
    assert told == words
    assert kinds(found).count("turn.completed") == 1


# Records that only an eve writes


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("introduced", [False, True])
def test_an_unknown_record_of_an_eve_comes_once_the_session_has_begun(
    form: Form, introduced: bool
) -> None:
    """It keeps its members, and its coordinates are those of this stream. A session begins with its
    first turn or, where the backend introduced itself before that, with the first such record.
    """
    shown = ev.Native(
        thread_id=MAIN,
        dialect="eve",
        name="mood.changed",
        frame={"type": "mood.changed", "data": {"mood": "calm", "turnId": "turn_7", "sequence": 7}},
    )
    introduction = ev.SessionUpdated(
        thread_id=MAIN,
        agent={"id": "pay"},
        native=ev.NativeRef(dialect="eve", type="session.started"),
    )
    made = encoder(form)
    before = [introduction, shown] if introduced else [shown]
    found = [
        json.loads(frame.data)
        for frame in frames(made, entries([*before, *said(), shown, ended()], lawful=False))
    ]
    assert kinds(found) == [
        "session.started",
        *(["mood.changed"] if introduced else []),
        "turn.started",
        "message.received",
        "mood.changed",
        "turn.completed",
        "session.waiting",
    ]
    assert found[-3]["data"] == {"mood": "calm", "turnId": "turn_0", "sequence": 0}


# Anything


OUTCOMES: list[tuple[int, ev.InteractionOutcome]] = [
    (1, "approved"),
    (2, "answered"),
    (3, "skipped"),
    (4, "failed"),
    (5, "denied"),
    (6, "withdrawn"),
    (7, "unknown"),
    (1, "expired"),
]


def _pool() -> list[ev.Event]:
    """One or more of every canonical event type, in the main line and in a child."""
    error = ev.ErrorInfo(code="X", message="It broke.")
    pool: list[ev.Event] = []
    for thread in (MAIN, "child-1"):
        for turn in (None, f"{thread}-t1", f"{thread}-t2"):
            at: dict[str, Any] = {"thread_id": thread, "turn_id": turn}
            where = {**at, "block_id": "b1", "message_id": "m1"}
            pool += [
                ev.TurnStarted(**at, cause="message"),
                ev.TurnPaused(**at, on="input"),
                ev.TurnPaused(**at, on="tasks"),
                ev.TurnPaused(**at, on="retry"),
                ev.TurnResumed(**at),
                ev.TurnEnded(**at, outcome="completed"),
                ev.TurnEnded(**at, outcome="failed", error=error),
                ev.TurnEnded(**at, outcome="interrupted"),
                ev.TurnEnded(**at, outcome="refused"),
                ev.StepStarted(**at, step_index=0, model="m"),
                ev.StepStarted(**at, step_index=3),
                ev.StepEnded(
                    **at, step_index=0, finish_reason="odd", usage=ev.Usage(input_tokens=1)
                ),
                ev.StepEnded(**at, step_index=0, finish_reason="stop"),
                ev.StepEnded(**at, step_index=0, error=error),
                ev.TextDelta(**where, text="a"),
                ev.TextDelta(**{**where, "block_id": "b2"}, text="b"),
                ev.TextCompleted(**where, text="ab", finish_reason="odd"),
                ev.TextCompleted(**where, text="", status="discarded"),
                BlockEnded(**at, block="text"),
                BlockEnded(**at, block="reasoning", status="partial"),
                ev.ReasoningDelta(**where, text="r"),
                ev.ReasoningCompleted(**where, text="r", withheld=True),
                ev.ToolInputDelta(**at, call_id="call-1", text="{"),
                ev.ToolCalled(**at, call_id="call-1", name="pay", input=[1], label="Pay"),
                ev.ToolCalled(**at, call_id="call-2", name="research", kind="subagent"),
                ev.ToolCalled(**at, call_id="call-3", name="far", kind="remote", preview="far()"),
                ev.ToolCalled(**at, call_id="call-4", name="know", kind="skill"),
                ev.ToolCalled(**at, call_id="call-5", name="flow", kind="workflow"),
                ev.ToolProgressed(**at, call_id="call-1", output=1),
                ev.ToolReturned(**at, call_id="call-1", output=None),
                ev.ToolReturned(**at, call_id="call-2", content=SAID),
                ev.ToolReturned(**at, call_id="call-3", is_error=True, status="failed"),
                ev.ToolReturned(
                    **at, call_id="call-4", is_error=True, status="rejected", error=error
                ),
                ev.ToolReturned(**at, call_id="call-5", status="interrupted", error=error),
                ev.InteractionRequested(**at, request_id="r1", kind="approval", prompt=""),
                ev.InteractionRequested(
                    **at,
                    request_id="r2",
                    kind="question",
                    prompt="Which?",
                    shown_on=MAIN,
                    options=(ev.Option(id="1", label="One", style="danger", description="d"),),
                ),
                ev.InteractionRequested(**at, request_id="r3", kind="question", prompt="Who?"),
                ev.InteractionRequested(
                    **at, request_id="r4", kind="authorization", prompt="Sign in.", shown_on=MAIN
                ),
                ev.InteractionRequested(**at, request_id="r5", kind="limit", prompt=""),
                ev.InteractionRequested(
                    **at, request_id="r6", kind="secret", prompt="", answerable=False
                ),
                ev.InteractionRequested(**at, request_id="r7", kind="tool_result", prompt="x"),
                *(
                    ev.InteractionResolved(**at, request_id=f"r{n}", outcome=outcome)
                    for n, outcome in OUTCOMES
                ),
                ev.InteractionAnswered(**at, request_id="r1", command_id="c1", by="local"),
                ev.InteractionAnswered(
                    **at, request_id="r1", command_id="c1", by="local", state="released"
                ),
                ev.InteractionUpdated(**at, request_id="r1", details={}),
                ev.MessageReceived(**at, message_id="m9", content=SAID),
                ev.GuidanceReceived(**at, text="Faster."),
                ev.ResultProduced(**at, value=None),
                ev.ContextCompacted(**at, phase="started", before_tokens=1.5, model="m"),
                ev.ContextCompacted(**at),
                ev.ContextCleared(**at),
                ev.MemoryUpdated(**at, value=1),
                ev.StateUpdated(**at, value={"n": 1}),
                ev.ActivityUpdated(**at, activity_id="a", kind="PLAN", content={}),
                ev.UsageReported(**at, usage=ev.Usage(cost_usd=0.5), scope="session"),
                ev.ErrorReported(**at, code="X", message="x"),
                ev.OutcomeEvaluated(**at, outcome_id="o", phase="ended", iteration=1),
                ev.Notice(**at, text="n"),
                ev.Gap(**at, reason="lost", cursor_from="1", cursor_to="2"),
                ev.Native(**at, dialect="engine", frame={"a": 1}),
                ev.ThreadMessage(**at, direction="sent", content=SAID),
                ev.SessionUpdated(**at, title="t", archived_at=AT),
            ]
        pool += [
            ev.ThreadStarted(thread_id="child-1", parent=MAIN, call_id="call-2"),
            ev.ThreadUpdated(thread_id="child-1", name="n"),
            ev.ThreadEnded(thread_id="child-1", status="failed", error=error, output={"a": 1}),
        ]
    for command in ("c1", "c2"):
        pool += [
            ev.InputAccepted(
                thread_id=MAIN, command_id=command, kind="message", content=SAID, by="local"
            ),
            ev.InputAccepted(thread_id=MAIN, command_id=command, kind="steer", by="local"),
            *(
                ev.InputSettled(thread_id=MAIN, command_id=command, outcome=outcome)
                for outcome in ("taken", "refused", "withdrawn", "unknown")
            ),
            ev.MessageReceived(
                thread_id=MAIN, message_id=command, content=SAID, command_id=command
            ),
            ev.GuidanceReceived(thread_id=MAIN, text="Faster.", command_id=command),
        ]
    for command in ("c3", "c4"):
        pool += [
            accepted(command, details={"beside": ["r1"]}),
            *(
                ev.InputSettled(thread_id=MAIN, command_id=command, outcome=outcome)
                for outcome in ("taken", "refused", "withdrawn")
            ),
            ev.MessageReceived(
                thread_id=MAIN, message_id=command, content=SAID, command_id=command
            ),
        ]
    return [
        *pool,
        ev.SessionEnded(thread_id=MAIN, outcome="completed"),
        ev.SessionEnded(thread_id=MAIN, outcome="failed", error=error),
        ev.SessionEnded(thread_id=MAIN, outcome="deleted"),
    ]


POOL = _pool()


def test_the_pool_has_every_canonical_event_type() -> None:
    assert {event.TYPE for event in POOL} >= set(ev.EVENT_TYPES) - {"session.started"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("thread", [MAIN, "child-1"])
def test_no_event_in_any_state_raises(form: Form, thread: str) -> None:
    for event in POOL:
        if isinstance(event, BlockEnded):
            continue
        for before in ([], [*said(), step()], APPROVAL[:11], APPROVAL):
            made = encoder(form, thread=thread)
            log = entries([*before, event], lawful=False)
            for frame in frames(made, log):
                record = json.loads(frame.data)
                assert record["meta"]["id"].startswith("evt_")


# No eve agent works on while it asks; others do (a child asks, the parent goes on), and the records
# of what they do are the only ones there are.
BEYOND_EVE = {
    "a turn that asked goes on without closing",
    "a held turn goes on while a request is open",
    "a held turn ends while a request is open",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("thread", [MAIN, "child-1"])
@given(raw=st.lists(st.sampled_from(POOL), max_size=30), opening=st.booleans())
def test_every_lawful_log_gives_records_that_the_checker_takes(
    form: Form, thread: str, raw: list[ev.Event], opening: bool
) -> None:
    start = [*said("c0", "main-t1"), step(0, "main-t1")] if opening else []
    made = encoder(form, thread=thread)
    # Messages that nobody sent through us have no delivery, as on a child's stream.
    checker = RecordChecker(VERSIONS[form], form=form, exact=False, child=True)
    log = entries([*start, *raw])
    for frame in frames(made, log):
        try:
            checker.check(json.loads(frame.data))
        except ProtocolViolation as violation:
            if violation.reason not in BEYOND_EVE:
                raise
            return


def test_the_place_where_the_open_turn_starts_is_known_the_first_with_its_introduction() -> None:
    made = encoder()
    log = entries([*said(), ended(), *said("c2", "t2")])
    types = []
    for entry in log:
        types += [json.loads(frame.data)["type"] for frame in made.feed(entry)]
        turns = [at for at, type_ in enumerate(types) if type_ == "turn.started"]
        assert made.turn_at == (turns[1] if len(turns) > 1 else 0)
    assert len(turns) == 2
