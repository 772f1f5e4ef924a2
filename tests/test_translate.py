"""`dragoman translate`: recorded bodies of every dialect in every other, and what is not a body."""

from __future__ import annotations

import hashlib
import itertools
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from adapters.contract.fidelity import CANONICAL, ORDER
from adapters.model import commands as cmd
from adapters.model import events as ev
from adapters.model.state import LogState
from adapters.offline.recorded_inputs import BadInput, read_inputs
from adapters.offline.translate import Source, TranslateOptions, make_sink, make_source, time_of
from adapters.wire.framing.ndjson import DEFAULT_MAX_LINE_BYTES
from proxy.cli import main, translate
from tests.support.each import each
from tests.wire import FIXTURES, bodies, driven, entries_of, every_body, name_of, served

ENGINE = FIXTURES / "wire" / "engine"
TARGETS = (*served(), CANONICAL)
BODIES = [pytest.param(d, b, id=f"{d}-{name_of(b)}") for d, b in every_body()]

STARTED = b'event: thread_lifecycle\ndata: {"phase":"started","task_id":"t","turn_id":"u"}\n\n'
WORDS = b'event: text_delta\ndata: {"text":"Hello."}\n\n'
COMPLETED = b'event: thread_lifecycle\ndata: {"phase":"completed","task_id":"t","turn_id":"u"}\n\n'


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def at_the_end(source: Source) -> Iterator[ev.Entry]:
    """Close the source, but not before this is asked for its first entry."""
    yield from source.close()


def read(source: Source, chunks: Iterable[bytes]) -> list[ev.Entry]:
    found = [entry for chunk in chunks for entry in source.feed(chunk)]
    return [*found, *source.close()]


def translated(
    dialect: str,
    data: bytes,
    target: str,
    options: TranslateOptions | None = None,
    *,
    size: int = 1 << 20,
) -> bytes:
    options = options or TranslateOptions()
    sink = make_sink(target, options)
    source = make_source(dialect, options)
    return b"".join(map(sink, read(source, pieces(data, size))))


def canonical(data: bytes, **options: Any) -> list[ev.Entry]:
    return read(make_source("engine", TranslateOptions(**options)), [data])


def types(entries: Iterable[ev.Entry]) -> list[str]:
    return [entry.event.TYPE for entry in entries]


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["translate", *arguments], input=stdin)


def test_there_are_bodies_and_logs_to_translate() -> None:
    assert "engine" in driven()
    assert all(bodies(dialect) for dialect in (*driven(), CANONICAL))
    assert {"eve", "engine"} <= set(served())


@each(("dialect", "body"), BODIES)
def test_every_body_becomes_a_log_that_obeys_the_laws(dialect: str, body: Path) -> None:
    entries = entries_of(dialect, body)
    assert entries[0].event.TYPE == "session.started"
    state = LogState()
    for entry in entries:
        state.apply_entry(entry)
    assert not state.inputs


@each(("dialect", "body"), BODIES)
def test_every_body_gives_the_same_log_however_it_arrives(dialect: str, body: Path) -> None:
    data = body.read_bytes()
    whole = translated(dialect, data, CANONICAL)
    assert translated(dialect, data, CANONICAL, size=97) == whole
    if len(data) < 4_000:
        assert translated(dialect, data, CANONICAL, size=1) == whole


@each(("dialect", "body"), BODIES)
def test_the_way_over_the_canonical_log_loses_nothing(dialect: str, body: Path) -> None:
    data = body.read_bytes()
    log = translated(dialect, data, CANONICAL)
    for target in TARGETS:
        assert translated(CANONICAL, log, target) == translated(dialect, data, target)


@each(("dialect", "body"), BODIES)
def test_a_body_whose_line_ends_were_changed_means_the_same(dialect: str, body: Path) -> None:
    data = body.read_bytes().replace(b"\r\n", b"\n")
    changed = data.replace(b"\n", b"\r\n")
    assert translated(dialect, changed, CANONICAL) == translated(dialect, data, CANONICAL)
    assert translated(dialect, changed, CANONICAL, size=31) == translated(dialect, data, CANONICAL)


@pytest.mark.parametrize("name", ["06d-abrupt-eof", "07a-interrupted"])
def test_a_body_without_terminal_event_ends_without_an_invented_end(name: str) -> None:
    data = (ENGINE / f"{name}.sse").read_bytes()
    entries = canonical(data)
    assert "turn.started" in types(entries)
    assert not {"turn.ended", "session.ended"} & set(types(entries))
    assert b"completed" not in translated("engine", data, "engine")
    assert b"session.waiting" not in translated("engine", data, "eve")


def test_a_call_that_is_held_back_is_printed_at_the_end() -> None:
    entries = canonical((ENGINE / "07a-interrupted.sse").read_bytes())
    called = entries[-1].event
    assert isinstance(called, ev.ToolCalled)
    assert called.permission == "unknown"


def test_several_turns_become_bodies_one_after_the_other() -> None:
    first = STARTED + WORDS + COMPLETED
    second = first.replace(b'"u"', b'"v"').replace(b"Hello.", b"Again.")
    entries = canonical(first + second)
    assert types(entries).count("turn.ended") == 2
    out = translated("engine", first + second, "engine")
    phases = [line for line in out.splitlines() if b'"phase"' in line]
    assert [b"started" in line for line in phases] == [True, False, True, False]
    assert out.index(b"Hello.") < out.index(b"completed") < out.index(b"Again.")
    records = translated("engine", first + second, "eve").splitlines()
    assert [json.loads(line)["type"] for line in records].count("turn.completed") == 2


def test_the_session_is_named_by_the_option_then_by_the_body_then_by_us() -> None:
    body = STARTED + WORDS + COMPLETED
    assert {entry.session_id for entry in canonical(body)} == {"t"}
    assert {entry.session_id for entry in canonical(body, session_id="mine")} == {"mine"}
    assert {entry.session_id for entry in canonical(WORDS)} == {"recording"}
    log = translated("engine", body, CANONICAL)
    assert b'"session_id":"mine"' in translated(
        CANONICAL, log, CANONICAL, TranslateOptions(session_id="mine")
    )


def test_a_frame_names_its_session_by_a_member_of_its_dialect() -> None:
    named = '"sessionId":"s-1","task_id":"t-1"'
    body = f'data: {{"id":"e1","type":"session.status_running",{named},"payload":{{}}}}\n\n'
    for dialect, wanted in (("herm", "s-1"), ("engine", "t-1")):
        source = make_source(dialect, TranslateOptions())
        assert {entry.session_id for entry in read(source, [body.encode()])} == {wanted}


def test_a_body_that_names_its_session_in_its_last_frame_is_read_whole() -> None:
    entries = canonical((ENGINE / "07b-replay-after.sse").read_bytes())
    assert {entry.session_id for entry in entries} == {"migr-51"}
    assert types(entries)[-1] == "turn.ended"


def test_frames_before_the_session_is_known_are_kept_up_to_a_limit() -> None:
    source = make_source("engine", TranslateOptions())
    counts = [len(list(source.feed(WORDS))) for _ in range(70)]
    assert counts[:63] == [0] * 63
    assert counts[63] > 63
    assert counts[64:] == [1] * 6


def test_times_are_the_sources_own_else_counted_and_never_decrease() -> None:
    late = (
        b'event: thread_lifecycle\ndata: {"phase":"completed","task_id":"t","timestamp":"%b"}\n\n'
    )
    body = STARTED.replace(b'"u"', b'"u","timestamp":"2026-06-09T08:15:00.000Z"') + WORDS + WORDS
    begin = 1_780_992_900_000
    after = canonical(body + late % b"2026-06-09T08:15:09.500Z")
    assert [entry.at - begin for entry in after] == [0, 0, 1, 1, 2, *[9500] * 3]
    before = canonical(body + late % b"2026-06-09T08:14:00.000Z")
    assert [entry.at - begin for entry in before] == [0, 0, 1, 1, 2, 2, 2, 2]
    untimed = canonical(STARTED + WORDS + COMPLETED)
    assert [entry.at for entry in untimed] == [0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-06-09T08:15:00.250Z", 1_780_992_900_250),
        ("2026-06-09T10:15:00+02:00", 1_780_992_900_000),
        ("2026-06-09T08:15:00", 1_780_992_900_000),
        ("1780992900.25", 1_780_992_900_250),
        ("1780992900250", 1_780_992_900_250),
        ("1960-01-01T00:00:00Z", 0),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("yesterday", None),
        (None, None),
    ],
)
def test_times_of_every_dialect_become_milliseconds(text: str | None, at: int | None) -> None:
    native = ev.NativeRef(dialect="example", at=text)
    assert time_of(ev.TurnResumed(thread_id="main", native=native)) == at


def test_heartbeats_need_no_json() -> None:
    beats = b"event: heartbeat\ndata:\n\nevent: heartbeat\ndata: tick\n\n"
    odd = b'event: heartbeat\ndata: "tick"\n\n' + STARTED + beats + COMPLETED
    assert translated("engine", odd, CANONICAL) == translated(
        "engine", STARTED + COMPLETED, CANONICAL
    )


def test_a_frame_of_too_many_lines_is_refused_where_it_begins() -> None:
    line = b"data: " + b"x" * (1 << 20) + b"\n"
    source = make_source("engine", TranslateOptions(strict=True))
    chunks = itertools.chain(
        [STARTED], itertools.repeat(line, 2 + DEFAULT_MAX_LINE_BYTES // len(line))
    )
    with pytest.raises(BadInput, match="longer than the limit") as caught:
        list(itertools.chain.from_iterable(map(source.feed, chunks)))
    assert caught.value.line == 4


def test_an_empty_body_is_a_session_in_which_nothing_happened() -> None:
    assert types(canonical(b"")) == ["session.started"]
    assert translated("engine", b"", "eve") == b""
    assert translated(CANONICAL, b"\n\n", "engine") == b""


def test_the_last_frame_may_lack_its_blank_line_and_the_first_have_a_mark() -> None:
    body = STARTED + WORDS + COMPLETED
    for shorter in (body[:-1], body[:-2], b"\xef\xbb\xbf" + body):
        assert translated("engine", shorter, CANONICAL) == translated("engine", body, CANONICAL)
    log = translated("engine", body, CANONICAL)
    assert translated(CANONICAL, log[:-1], CANONICAL) == log


def test_lines_that_readers_of_event_streams_pass_by_are_passed_by() -> None:
    strange = STARTED + b": a comment\ncolour: blue\n" + WORDS + COMPLETED
    assert translated("engine", strange, CANONICAL) == translated(
        "engine", STARTED + WORDS + COMPLETED, CANONICAL
    )


ENTRY = b'{"seq":1,"at":5,"session_id":"s","type":"session.started","thread_id":"main"}\n'

BAD: list[Any] = [
    ("engine", STARTED + b'event: text_delta\ndata: {"text":}\n\n' + WORDS, 5, 14, "", 2),
    ("engine", STARTED + b'data:{"text":}\n\n', 4, 13, "", 2),
    ("engine", STARTED + b'data: {"a":1,\ndata: "b":x}\n\n', 5, 10, "", 2),
    ("engine", STARTED + b"event: text_delta\ndata: [1]\n\n", 5, 6, "not a JSON object", 2),
    ("engine", STARTED + b'event: text_delta\ndata: {"text":"\xff"}\n\n', 5, None, "", 2),
    ("engine", STARTED + WORDS + b'event: text_delta\ndata: {"te', 8, None, "", 4),
    ("engine", b'{"message":"hello"}\n', 1, 0, "no line of an event stream", 0),
    ("engine", b"\nhello\nworld\n", 2, 0, "no line of an event stream", 0),
    ("engine", WORDS + b"data: {\n\n", 4, None, "", 4),
    (CANONICAL, ENTRY + b"{]\n", 2, 1, "", 1),
    (CANONICAL, ENTRY + b"[]\n", 2, 0, "JSON object", 1),
    (CANONICAL, ENTRY + b'{"seq":2,"at":5,"session_id":"s"}\n', 2, 0, "type", 1),
    (CANONICAL, ENTRY + ENTRY, 2, 0, "law 1: seq 1 follows 1", 1),
    (CANONICAL, b"\n" + ENTRY + ENTRY.replace(b'seq":1', b'seq":2'), 3, 0, "law", 1),
]


@pytest.mark.parametrize(("dialect", "data", "line", "byte", "reason", "valid"), BAD)
def test_bad_input_names_its_place_after_what_was_valid(
    dialect: str, data: bytes, line: int, byte: int | None, reason: str, valid: int
) -> None:
    for size in (1 << 20, 1):
        source = make_source(dialect, TranslateOptions(strict=True))
        found: list[ev.Entry] = []
        chunks = itertools.chain.from_iterable(map(source.feed, pieces(data, size)))
        with pytest.raises(BadInput) as caught:
            found.extend(itertools.chain(chunks, at_the_end(source)))
        assert caught.value.line == line
        assert byte is None or caught.value.byte == byte
        assert reason in caught.value.reason
        assert len(found) == valid


def test_a_frame_that_never_ends_is_refused_before_it_fills_memory() -> None:
    source = make_source("engine", TranslateOptions(strict=True))
    chunk = b"data: " + b"x" * (1 << 20)
    chunks = itertools.repeat(chunk, 2 + DEFAULT_MAX_LINE_BYTES // len(chunk))
    with pytest.raises(BadInput, match="longer than"):
        list(itertools.chain.from_iterable(map(source.feed, chunks)))


def test_bad_input_is_told_on_stderr_and_what_was_valid_is_printed(tmp_path: Path) -> None:
    body = tmp_path / "cut.sse"
    body.write_bytes(STARTED + WORDS + b"data: nonsense\n\n")
    result = run("--strict", "--from", "engine", "--to", CANONICAL, str(body))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{body}:7: byte 6: ")
    assert result.stderr.count("\n") == 1
    printed = [json.loads(line)["type"] for line in result.stdout.splitlines()]
    assert printed == ["session.started", "turn.started", "step.started", "text.delta"]


def test_stdin_is_read_where_no_file_is_named_or_a_dash() -> None:
    body = (ENGINE / "01-plain-text.sse").read_bytes()
    from_file = run("--from", "engine", "--to", "eve", str(ENGINE / "01-plain-text.sse"))
    assert from_file.exit_code == 0
    assert from_file.stdout_bytes == translated("engine", body, "eve")
    for arguments in ((), ("-",)):
        result = run("--from", "engine", "--to", "eve", *arguments, stdin=body)
        assert result.stdout_bytes == from_file.stdout_bytes
    wrong = run("--strict", "--from", "engine", "--to", "eve", stdin=b"data: {\n\n")
    assert (wrong.exit_code, wrong.stderr[:17]) == (1, "<stdin>:1: byte 7")


def test_the_form_of_eve_is_chosen() -> None:
    body = str(ENGINE / "03-hitl-permission-yes.sse")
    forms = {
        form: run("--from", "engine", "--to", "eve", "--eve-form", form, body).stdout_bytes
        for form in ("all", "tokens", "newest")
    }
    assert len(set(forms.values())) == 3
    assert b"turn.waiting" in forms["newest"]
    assert b"messageSoFar" in forms["tokens"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--from", "engine"),
        ("--from", "engine", "--to", "klingon"),
        ("--from", "engine", "--to", "eve", "--eve-form", "square"),
        ("--from", "engine", "--to", "eve", "no-such-file.sse"),
        ("--from", "engine", "--to", "eve", "--input", "no-such-file.json", "-"),
        ("--from", "engine", "--to", "eve", "--report", "no/such/folder.json", "-"),
    ],
)
def test_a_wrong_command_line_or_an_unreadable_file_exits_with_2(
    arguments: tuple[str, ...],
) -> None:
    result = run(*arguments, stdin=b"")
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_dialect_that_is_not_built_is_refused() -> None:
    from adapters.registry import DIALECTS

    for name, dialect in DIALECTS.items():
        if dialect.client is None:
            assert run("--from", name, "--to", CANONICAL, stdin=b"").exit_code == 2
        if dialect.encoder is None:
            assert run("--from", CANONICAL, "--to", name, stdin=b"").exit_code == 2


# What the user said.


def requests(*names: str) -> bytes:
    return b"\n".join(
        json.dumps(json.loads((ENGINE / f"http-{name}.request.json").read_bytes())).encode()
        for name in names
    )


def test_what_the_user_sent_is_in_the_log_of_every_dialect(tmp_path: Path) -> None:
    said = tmp_path / "said.ndjson"
    said.write_bytes(requests("execute", "hitl-respond-question"))
    arguments = ("--from", "engine", "--input", str(said), str(ENGINE / "04-hitl-question.sse"))
    log = [ev.Entry.decode(line) for line in run(*arguments, "--to", CANONICAL).stdout.splitlines()]
    state = LogState()
    for entry in log:
        state.apply_entry(entry)
    events: list[Any] = [entry.event for entry in log]
    received = next(event for event in events if event.TYPE == "message.received")
    assert ev.text_of(received.content) == "Where does basil grow best indoors?"
    accepted = [event for event in events if event.TYPE == "input.accepted"]
    assert [event.kind for event in accepted] == ["message", "answer"]
    assert received.command_id == accepted[0].command_id == "trip-08-input-1"
    resolved = next(event for event in events if event.TYPE == "interaction.resolved")
    assert (resolved.outcome, resolved.answer.text) == ("answered", "09:10")
    assert next(event for event in events if event.TYPE == "turn.started").cause == "message"
    assert b"Where does basil grow" in run(*arguments, "--to", "eve").stdout_bytes


@pytest.mark.parametrize(
    ("name", "answer", "outcome", "scope"),
    [
        ("03-hitl-permission-yes", "hitl-respond-yes", "approved", "once"),
        ("05-hitl-permission-denied", "hitl-respond-no", "denied", None),
    ],
)
def test_an_answer_says_what_the_body_does_not(
    name: str, answer: str, outcome: str, scope: str | None
) -> None:
    data = (ENGINE / f"{name}.sse").read_bytes()
    inputs = read_inputs(requests(answer))
    entries = canonical(data, inputs=inputs)
    resolved = next(e.event for e in entries if isinstance(e.event, ev.InteractionResolved))
    assert (resolved.outcome, resolved.scope) == (outcome, scope)
    assert resolved.answer is not None
    claims = [e.event for e in entries if isinstance(e.event, ev.InteractionAnswered)]
    assert len(claims) == 1


def test_inputs_without_a_place_are_not_in_the_log_and_are_counted(tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    said.write_text(json.dumps(["one", "two", {"answer": "yes"}]))
    report = tmp_path / "report.json"
    result = run(
        *("--from", "engine", "--to", CANONICAL, "--input", str(said), "--report", str(report)),
        str(ENGINE / "01-plain-text.sse"),
    )
    assert result.stdout.count("input.accepted") == 1
    assert json.loads(report.read_bytes())["inputs_left"] == 2


def test_each_of_several_turns_gets_its_message() -> None:
    turn = STARTED + WORDS + COMPLETED
    inputs = read_inputs(b'["one","two"]')
    entries = canonical(turn + turn.replace(b'"u"', b'"v"'), inputs=inputs)
    received = [e.event for e in entries if isinstance(e.event, ev.MessageReceived)]
    assert [(event.turn_id, ev.text_of(event.content)) for event in received] == [
        ("u", "one"),
        ("v", "two"),
    ]


def test_a_sealed_answer_is_never_read(tmp_path: Path) -> None:
    said = b'{"events":[{"type":"user.secret_result","request_id":"r","value":"hunter2"}]}'
    assert "hunter2" not in repr(read_inputs(said))
    log = b"".join(
        ev.Entry(number, 0, "s", event).encode() + b"\n"
        for number, event in enumerate(
            (
                ev.SessionStarted(thread_id="main"),
                ev.TurnStarted(thread_id="main", turn_id="t", cause="unknown"),
            ),
            start=1,
        )
    )
    assert translated(CANONICAL, log, "engine", TranslateOptions(inputs=read_inputs(said)))


SAID: list[Any] = [
    (b'"Hello"', [("send_message", "Hello")]),
    (b'{"message":"Hello","task_id":"t"}', [("send_message", "Hello")]),
    (b'{"message":[{"type":"text","text":"Hello"}]}', [("send_message", "Hello")]),
    (b'{"input":"Hello"}', [("send_message", "Hello")]),
    (b'{"input":[{"role":"user","content":"Hello"}]}', [("send_message", "Hello")]),
    (b'{"method":"prompt.submit","params":{"text":"Hello"}}', [("send_message", "Hello")]),
    (b'{"method":"POST","path":"/x","body":{"message":"Hello"}}', [("send_message", "Hello")]),
    (
        b'{"events":[{"type":"user.message","content":[{"type":"text","text":"Hello"}]},'
        b'{"type":"user.interrupt"}]}',
        [("send_message", "Hello"), ("interrupt", None)],
    ),
    (b'{"type":"user.steer","message":"Left"}', [("steer", "Left")]),
    (b'{"type":"steer","text":"Left"}', [("steer", "Left")]),
    (b'{"answer":"yes","feedback":"quick"}', [("answer", "yes")]),
    (b'{"method":"clarify.respond","params":{"answer":"blue"}}', [("answer", "blue")]),
    (
        b'{"inputResponses":[{"requestId":"r","text":"blue"}],"message":"And go"}',
        [("answer", "blue"), ("send_message", "And go")],
    ),
    (b'"one"\n\n"two"\n', [("send_message", "one"), ("send_message", "two")]),
]


@pytest.mark.parametrize(("data", "expected"), SAID)
def test_requests_are_read_by_their_shape(data: bytes, expected: list[tuple[str, str]]) -> None:
    found = [
        (
            command.TYPE,
            ev.text_of(command.content)
            if isinstance(command, cmd.SendMessage)
            else getattr(command, "text", None),
        )
        for command in read_inputs(data)
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            b'{"type":"user.tool_confirmation","tool_use_id":"e","result":"deny","deny_message":"no"}',
            {"request_id": "e", "decision": "deny", "reason": "no"},
        ),
        (b'{"choice":"session"}', {"request_id": "", "decision": "allow", "scope": "session"}),
        (b'{"choice":"deny"}', {"request_id": "", "decision": "deny"}),
        (b'{"type":"user.clarify_result","request_id":"r","answer":""}', {"skip": True}),
        (
            b'{"type":"user.custom_tool_result","custom_tool_use_id":"e","is_error":true,'
            b'"content":[{"type":"text","text":"42"}]}',
            {"request_id": "e", "is_error": True, "content": (ev.Text(text="42"),)},
        ),
        (b'{"inputResponses":[{"requestId":"r","optionId":"a"}]}', {"option_ids": ("a",)}),
    ],
)
def test_answers_keep_what_they_decide(data: bytes, expected: dict[str, Any]) -> None:
    (command,) = read_inputs(data)
    assert {name: getattr(command, name) for name in expected} == expected


def test_files_of_requests_are_named_by_the_hash_of_their_bytes_or_their_url() -> None:
    (command,) = read_inputs((ENGINE / "http-execute-image.request.json").read_bytes())
    assert isinstance(command, cmd.SendMessage)
    by_url = command.content[-1]
    assert isinstance(by_url, ev.File)
    assert by_url.ref == ev.Url(url="https://plants.example/leaf.jpg")
    source = {"type": "base64", "media_type": "image/png", "data": "AAEC"}
    said = {"message": "Look", "media": [{"type": "image", "source": source}]}
    (command,) = read_inputs(json.dumps(said).encode())
    assert isinstance(command, cmd.SendMessage)
    digest = hashlib.sha256(bytes([0, 1, 2])).hexdigest()
    assert command.content == (
        ev.Text(text="Look"),
        ev.File(media_type="image/png", size=3, ref=ev.Blob(sha256=digest)),
    )


@pytest.mark.parametrize(
    ("data", "line", "byte", "reason"),
    [
        (b"", 1, 0, ""),
        (b'{"message":}', 1, 11, ""),
        (b'{\n  "message": x\n}', 2, 13, ""),
        (b'"one"\n{"x"', 2, None, ""),
        (b'{"colour":"blue"}', 1, 0, "no request of a known shape"),
        (b'"one"\n17\n', 2, 0, "no request of a known shape"),
        (b'{"message":""}', 1, 0, "says nothing"),
        (b'{"type":"send_message","content":[]}', 1, 0, "policy"),
    ],
)
def test_a_bad_file_of_requests_names_its_place(
    data: bytes, line: int, byte: int | None, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput) as caught:
        read_inputs(data)
    assert caught.value.line == line
    assert byte is None or caught.value.byte == byte
    assert reason in caught.value.reason
    said = tmp_path / "said.json"
    said.write_bytes(data)
    result = run("--from", "engine", "--to", CANONICAL, "--input", str(said), stdin=b"")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"{said}:{line}: byte ")


# The report.


@each(("dialect", "body"), BODIES)
def test_the_report_has_every_event_and_adds_up(dialect: str, body: Path, tmp_path: Path) -> None:
    entries = entries_of(dialect, body)
    for target in TARGETS:
        path = tmp_path / f"{target}.json"
        result = run("--from", dialect, "--to", target, "--report", str(path), str(body))
        # A body of heartbeats has no event, nor one that says only that its session rests.
        empty = len(entries) <= 1
        assert result.exit_code == empty
        report = json.loads(path.read_bytes())
        path.unlink()
        assert (report["version"], report["from"], report["to"]) == (1, dialect, target)
        assert report["complete"] is not empty
        assert report["session_id"] == entries[0].session_id
        assert [(row["seq"], row["type"]) for row in report["events"]] == [
            (entry.seq, entry.event.TYPE) for entry in entries
        ]
        fields = Counter(value for row in report["events"] for value in row["fields"].values())
        assert report["totals"] == {str(name): fields[str(name)] for name in ORDER}
        sums: Counter[str] = Counter()
        for counts in report["by_type"].values():
            sums.update(counts)
        assert {name: sums[name] for name in report["totals"]} == report["totals"]
        deltas = [row["fields"] for row in report["events"] if row["type"] == "text.delta"]
        assert all(row["text"] in ("exact", "approximated") for row in deltas)


def test_the_report_of_a_bad_body_says_that_it_is_not_complete(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    result = run(
        *("--strict", "--from", "engine", "--to", "eve", "--report", str(path)),
        stdin=STARTED + WORDS + b"data: {\n\n",
    )
    assert result.exit_code == 1
    report = json.loads(path.read_bytes())
    assert report["complete"] is False
    assert [row["type"] for row in report["events"]][-1] == "text.delta"


# Size.


def long_body(turns: int, deltas: int) -> Iterator[bytes]:
    for turn in range(turns):
        yield STARTED.replace(b'"u"', b'"u%d"' % turn)
        yield from itertools.repeat(WORDS, deltas)
        yield COMPLETED.replace(b'"u"', b'"u%d"' % turn)


@pytest.mark.parametrize("target", ["engine", CANONICAL])
def test_memory_does_not_grow_with_the_length_of_the_input(target: str) -> None:
    def peak(turns: int) -> int:
        options = TranslateOptions()
        source, sink = make_source("engine", options), make_sink(target, options)
        tracemalloc.start()
        try:
            written = 0
            for chunk in long_body(turns, 100):
                for entry in source.feed(chunk):
                    written += len(sink(entry))
            for entry in source.close():
                written += len(sink(entry))
            assert written > turns * 100 * 40
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # What is imported and compiled when it is first used is not counted.
    peak(1)
    # Names of turns are kept; what they said is not.
    assert peak(40) - peak(10) < 100_000


def test_output_comes_while_input_is_still_being_read() -> None:
    source = make_source("engine", TranslateOptions())
    first = list(source.feed(STARTED + WORDS))
    assert types(first)[-1] == "text.delta"
    assert list(source.feed(WORDS))


def test_a_reader_that_leaves_is_no_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise BrokenPipeError

    closed: list[int] = []
    monkeypatch.setattr(translate, "_translate", gone)
    monkeypatch.setattr(translate, "reader_left", lambda: closed.append(1))
    result = run("--from", "engine", "--to", "eve", stdin=b"")
    assert (result.exit_code, closed, result.stderr) == (1, [1], "")


# Frames that make no sense.


def test_a_heartbeat_that_is_no_json_and_an_end_mark_are_skipped_and_counted(
    tmp_path: Path,
) -> None:
    case, report = str(FIXTURES / "cases" / "engine-ping-done.sse"), tmp_path / "report.json"
    result = run("--from", "engine", "--to", CANONICAL, "--report", str(report), case)
    assert result.exit_code == 0
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    assert [entry["outcome"] for entry in printed if entry["type"] == "turn.ended"] == ["completed"]
    assert sum(entry["type"] == "error.reported" for entry in printed) == 2
    assert result.stderr.startswith(f"{case}: 2 frames were skipped, the first at line 15: byte 5")
    told = json.loads(report.read_bytes())
    assert (told["frames"], told["skipped"], told["complete"]) == (7, 2, True)
    strict = run("--strict", "--from", "engine", "--to", CANONICAL, case)
    assert strict.exit_code == 1
    assert strict.stderr.startswith(f"{case}:15: byte 5: ")


def test_a_frame_that_is_too_large_is_skipped() -> None:
    large = b'event: text_delta\ndata: {"text":"' + b"x" * DEFAULT_MAX_LINE_BYTES + b'"}\n\n'
    source = make_source("engine", TranslateOptions())
    chunks = [STARTED, *pieces(large, 1 << 20), WORDS, COMPLETED]
    assert types(read(source, chunks)).count("text.delta") == 1
    assert (source.frames, source.skipped) == (4, 1)
    assert source.first_skipped is not None
    assert "longer than the limit" in source.first_skipped.reason
    line = b'{"type":"message.appended","data":{"messageDelta":"' + large + b"\n"
    source = make_source("eve", TranslateOptions())
    chunks = [*pieces(line.replace(b"\n", b"") + b"\n", 1 << 20), b'{"type":"turn.started"}\n']
    assert types(read(source, chunks))[-1] == "turn.started"
    assert source.skipped == 1


EVE_LINE = b'{"type":"turn.started","data":{}}\n'
HERM_FRAME = b'event: agent.message\ndata: {"type":"agent.message"}\n\n'

LIKE = [
    ("eve", b"", "the input is empty"),
    ("engine", b"\n \n", "the input is empty"),
    (CANONICAL, b"", "the input is empty"),
    ("eve", STARTED + WORDS, "an event stream of `engine`"),
    ("eve", HERM_FRAME, "an event stream of `herm`"),
    ("eve", ENTRY, "a log of Dragoman (`canonical`)"),
    ("engine", EVE_LINE, "NDJSON of `eve`"),
    ("herm", STARTED + WORDS, "an event stream of `engine`"),
    ("herm", b'data: {"choices":[]}\n\ndata: [DONE]\n\n', "chat completions"),
    ("herm", b"event: x\ndata: {}\n\n", "a dialect that is not known here"),
    ("eve", b'{"type":"agent.message","payload":{}}\n', "envelopes of `herm`"),
    ("eve", b'{"type":"x"}\n[1]\n', "JSON of no dialect"),
    ("engine", b"<html></html>", "HTML"),
    ("eve", b"HTTP/1.1 200 OK\r\n\r\n{}", "an HTTP answer with its head"),
    ("eve", b"hello\n", "no dialect that is known here"),
]


@each(("dialect", "data", "looks"), LIKE)
def test_a_file_of_another_kind_is_named(dialect: str, data: bytes, looks: str) -> None:
    result = run("--from", dialect, "--to", CANONICAL, stdin=data)
    assert result.exit_code == 1
    assert looks in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("to", ["engine", "eve", "herm", "agui", "aisdk"])
def test_a_request_whose_id_comes_again_in_a_later_turn_is_shown_in_every_dialect(to: str) -> None:
    turn = (ENGINE / "03-hitl-permission-yes.sse").read_bytes()
    again = turn.replace(b"turn-c01", b"turn-c02").replace(b'"2026-06-09T08', b'"2026-06-09T09')
    result = run("--from", "engine", "--to", to, stdin=turn + again)
    assert result.exit_code == 0, result.output
    # A Herm asks by the call, whose id came twice too.
    name = "call-c1" if to == "herm" else "hitl-5a2e"
    first = result.stdout.index(f'"{name}"')
    assert result.stdout.index(f'"{name}~2"') > first
