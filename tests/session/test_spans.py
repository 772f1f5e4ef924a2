"""What the spans of messages are made of: the events of a log, by their times."""

from __future__ import annotations

from typing import Any

from adapters.model import events as ev
from proxy.base.outcomes import Code, MessageOutcome
from proxy.telemetry.spans import MessageSpan, SessionSpans, SpanRecord
from tests.session.test_messages import accepted, began, ended, received, settled

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OK = (MessageOutcome.COMPLETED, Code.OK)


class Told:
    """One session whose events are stored one write each; `over` has the messages that ended."""

    def __init__(self) -> None:
        self.over: list[MessageSpan] = []
        self.spans = SessionSpans(
            "dgs_1", "front", backend="quarry", dialect="herm", export=self.over.append
        )

    def hear(self, *events: tuple[int, ev.Event], now: int = 0, **ended: Any) -> None:
        """Hear events, each at its time, that are stored at `now` or with the last of them."""
        entries = [ev.Entry(n, at, "dgs_1", event) for n, (at, event) in enumerate(events, 1)]
        self.spans.hear(entries, (), ended, now or events[-1][0])

    def send(self, name: str, now: int) -> None:
        """Store that a message leaves."""
        self.spans.hear((), (name,), {}, now)

    def begin(self, name: str, at: int, **fields: Any) -> None:
        """Accept a message, store it 2 ms later, send it after 3, and have it taken after 10."""
        self.hear((at, accepted(name, **fields)), now=at + 2)
        self.send(name, at + 3)
        self.hear((at + 10, settled(name)), (at + 10, began()), (at + 10, received(name)))

    def part(self, name: str) -> SpanRecord:
        """The only part of the first message that ended with this name."""
        [found] = [part for part in self.over[0].parts if part.name == name]
        return found


def called(call: str, thread: str = ev.MAIN, name: str = "grep") -> ev.Event:
    return ev.ToolCalled(thread_id=thread, call_id=call, name=name, input={"secret": "words"})


def returned(call: str, thread: str = ev.MAIN, **fields: Any) -> ev.Event:
    return ev.ToolReturned(thread_id=thread, call_id=call, **fields)


def requested(name: str) -> ev.Event:
    return ev.InteractionRequested(
        thread_id=ev.MAIN, request_id=name, kind="approval", prompt="the agent's words"
    )


def claimed(name: str, state: Any = "claimed") -> ev.Event:
    return ev.InteractionAnswered(
        thread_id=ev.MAIN, request_id=name, command_id="c", by="me", state=state
    )


def resolved(name: str, outcome: Any = "approved") -> ev.Event:
    return ev.InteractionResolved(thread_id=ev.MAIN, request_id=name, outcome=outcome)


def said(text: str = "words") -> ev.Event:
    return ev.TextDelta(thread_id=ev.MAIN, message_id="m", block_id="b", text=text)


def used(scope: Any = "call", **tokens: Any) -> ev.Event:
    return ev.UsageReported(thread_id=ev.MAIN, usage=ev.Usage(**tokens), scope=scope)


def test_a_message_is_a_span_with_a_part_for_each_stage() -> None:
    told = Told()
    told.begin("a", 100, trace=TRACE)
    told.hear((150, said()))
    told.hear((160, said()))
    told.hear((200, ended()), a=OK)
    [one] = told.over
    assert (one.name, one.begin, one.end, one.trace) == ("invoke_agent quarry", 100, 200, TRACE)
    assert one.error is None
    assert one.moments == {"accept": 100, "first event": 150, "end": 200}
    assert one.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "herm",
        "gen_ai.agent.name": "quarry",
        "gen_ai.conversation.id": "dgs_1",
        "dragoman.route": "front",
        "dragoman.face": "eve",
        "dragoman.outcome": "completed",
        "dragoman.code": "ok",
    }
    stages = [(part.name, part.begin, part.end, part.error) for part in one.parts]
    assert stages == [
        ("store", 100, 102, None),
        ("queue", 102, 103, None),
        ("send", 103, 110, None),
    ]
    assert len(told.spans) == 0


def test_a_refused_message_has_the_code_of_the_refusal_as_its_error() -> None:
    told = Told()
    told.hear((100, accepted("a")))
    told.send("a", 101)
    refused = settled("a", "refused", code="http_502", status=502)
    told.hear((120, refused), a=(MessageOutcome.REFUSED, Code.BACKEND_5XX))
    assert told.over[0].error == "backend_5xx"
    assert told.part("send").error == "backend_5xx"
    assert "first event" not in told.over[0].moments


def test_a_wait_lasts_from_the_question_to_the_answer_that_was_not_given_back() -> None:
    told = Told()
    told.begin("a", 100)
    told.hear((200, requested("r")))
    told.hear((300, claimed("r")))
    told.hear((310, claimed("r", "released")))
    told.hear((400, claimed("r")))
    told.hear((410, resolved("r")))
    told.hear((500, ended()), a=OK)
    wait = told.part("wait for a person")
    assert (wait.begin, wait.end) == (200, 400)
    assert wait.attributes == {
        "dragoman.interaction.kind": "approval",
        "dragoman.interaction.outcome": "approved",
    }


def test_what_is_open_when_a_message_ends_ends_with_it() -> None:
    told = Told()
    told.begin("a", 100)
    told.hear((200, requested("r")), (210, called("c")))
    told.hear((500, ended()), a=OK)
    assert told.part("wait for a person").end == 500
    assert told.part("execute_tool grep").end == 500


def test_calls_of_the_same_id_in_two_threads_are_two_spans() -> None:
    told = Told()
    told.begin("a", 100)
    told.hear((200, called("c")), (210, called("c", "child", "find")), (220, called("c")))
    told.hear((300, returned("c", "child", is_error=True)), (310, returned("c")))
    told.hear((500, ended()), a=OK)
    grep, find = told.part("execute_tool grep"), told.part("execute_tool find")
    assert (grep.begin, grep.end, grep.error) == (200, 310, None)
    assert (find.begin, find.end, find.error) == (210, 300, "failed")
    assert grep.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "grep",
        "gen_ai.tool.call.id": "c",
    }


def test_tokens_of_calls_are_summed_once_and_totals_are_not() -> None:
    told = Told()
    told.begin("a", 100)
    told.hear((200, used(input_tokens=10, output_tokens=3)))
    step = ev.StepEnded(
        thread_id=ev.MAIN, step_index=0, usage=ev.Usage(input_tokens=10, output_tokens=3)
    )
    told.hear((201, step))
    told.hear((210, used(input_tokens=5)), (220, used("session", input_tokens=900)))
    told.hear((500, ended()), a=OK)
    about = told.over[0].attributes
    assert about["gen_ai.usage.input_tokens"] == 15
    assert about["gen_ai.usage.output_tokens"] == 3


def test_what_a_turn_does_belongs_to_the_message_that_it_runs_for() -> None:
    told = Told()
    told.begin("a", 100)
    told.hear((150, accepted("b")), now=152)
    told.hear((200, called("1")), (210, returned("1")))
    told.hear((300, ended()), a=OK)
    told.send("b", 305)
    told.hear((310, settled("b")), (311, called("2")), (320, returned("2")))
    told.hear((400, ended()), b=OK)
    calls = [
        [part.attributes["gen_ai.tool.call.id"] for part in one.parts if "tool" in part.name]
        for one in told.over
    ]
    assert calls == [["1"], ["2"]]
    queue = next(part for part in told.over[1].parts if part.name == "queue")
    assert (queue.begin, queue.end) == (152, 305)


def test_of_too_many_calls_only_the_number_is_told() -> None:
    told = Told()
    told.begin("a", 100)
    for number in range(256 + 7):
        told.hear((200, called(str(number))), (201, returned(str(number))))
    told.hear((500, ended()), a=OK)
    [one] = told.over
    assert len(one.parts) == 256
    # Three of the parts are stages.
    assert one.attributes["dragoman.parts_left_out"] == 7 + 3


def test_a_clock_that_was_set_back_makes_no_span_end_before_its_begin() -> None:
    told = Told()
    told.hear((100, accepted("a")), now=40)
    told.send("a", 41)
    told.hear((100, settled("a")), (100, ended()), a=OK, now=42)
    assert all(part.begin <= part.end for part in told.over[0].parts)
    assert told.over[0].end == 100


def test_messages_of_others_and_what_happens_without_a_message_leave_nothing() -> None:
    told = Told()
    told.hear((100, accepted("a", by="backend")), (101, accepted("b", kind="answer")))
    told.hear((110, began()), (120, called("c")), (130, requested("r")), (140, said()))
    told.hear((150, used(input_tokens=1)), (160, ended()))
    assert (told.over, len(told.spans)) == ([], 0)


def test_what_no_collector_can_read_is_made_readable() -> None:
    told = Told()
    told.begin("a", 100)
    told.hear((150, called("c", name="\ud800" + "x" * 500)), (160, used(input_tokens=2**70)))
    told.hear((200, ended()), a=OK)
    assert told.part("execute_tool ?" + "x" * 127).begin == 150
    assert told.over[0].attributes["gen_ai.usage.input_tokens"] == 2**53


def test_nothing_that_was_said_is_in_a_span() -> None:
    told = Told()
    told.begin("a", 100, content=(ev.Text(text="a person's words"),))
    told.hear((150, said()), (160, called("c")), (170, requested("r")))
    told.hear((180, returned("c", output="words of a tool")), (190, ended()), a=OK)
    assert "words" not in repr(told.over)
