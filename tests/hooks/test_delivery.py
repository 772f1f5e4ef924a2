"""What a hook sends, and what comes of each answer."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.hooks import delivery
from proxy.hooks.delivery import (
    ConnectionBroken,
    Doubt,
    HookDecision,
    HookDelivery,
    HookSettings,
    HookTimes,
    NoDecision,
    OutOfTime,
    Unreachable,
    answer_hook,
    ask,
    check_settings,
    directive,
    is_gated,
    make_delivery,
    plain,
    read_decision,
    read_settings,
    tell,
    trim,
)
from tests.hooks.origin import (
    ALLOW,
    BLOCK,
    SECRET,
    SOON_S,
    Answer,
    Arrival,
    HookOrigin,
    write_settings,
)
from tests.support.ports import HOST, free_port

QUICK = HookTimes(connect=SOON_S, answer=SOON_S, pause=0.001)
CALL: dict[str, Any] = {
    "hook_event_name": "pre_tool_call",
    "tool_name": "terminal",
    "tool_input": {"command": "ls"},
    "session_id": "20260901_101500_ab12cd",
    "cwd": "/srv",
    "extra": {"tool_call_id": "call_9"},
}
WATCHED = {**CALL, "hook_event_name": "post_tool_call"}
ASKED = make_delivery(CALL, "shell", wait=60)
TOLD = make_delivery(WATCHED, "shell")


def settings_of(url: str, **others: Any) -> HookSettings:
    return HookSettings(url=url, secret=SECRET, **others)


def asked(
    origin: HookOrigin, sent: HookDelivery = ASKED, wait: float = SOON_S, times: HookTimes = QUICK
) -> HookDecision:
    started = time.monotonic()
    return ask(settings_of(origin.url), sent, started=started, wait=wait, times=times)


def answered(home: Path, payload: object, notes: list[str] | None = None) -> dict[str, str]:
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    said: list[str] = [] if notes is None else notes
    return answer_hook(raw, home, note=said.append, times=QUICK)


# The module.


def test_it_runs_alone_with_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "copied.py").write_bytes(Path(delivery.__file__).read_bytes())
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c",
         "import sys; sys.path.insert(0, sys.argv[1]); import copied; print(copied.EVENTS)",
         tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{delivery.EVENTS}\n"), done.stderr


def test_it_takes_no_event_that_changes_what_the_agent_does() -> None:
    refused = ("transform_", "kanban_", "pre_gateway_dispatch", "pre_verify", "pre_tts", "pre_aux")
    assert [event for event in delivery.EVENTS if event.startswith(refused)] == []
    assert len(set(delivery.EVENTS)) == len(delivery.EVENTS) == 19


# Settings.


def test_settings_have_defaults() -> None:
    found = check_settings({"version": 1})
    assert found == HookSettings("http://127.0.0.1:8787/from/hermes-agent", None, ".*", 240)
    assert found.on_doubt == "block"


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        *(
            {"url": url}
            for url in (7, "", "ftp://localhost/", "http://", "/from", "http://localhost b/")
        ),
        *(
            {"url": url}
            for url in (
                "http://u:p@127.0.0.1/",
                "http://127.0.0.1/?y",
                "http://127.0.0.1:99999/",
                "http://[/",
            )
        ),
        *({"secret": secret} for secret in ("", 7)),
        *({"gate": gate} for gate in ("(", 7, None)),
        *({"wait_seconds": wait} for wait in (0, -1, "9", True, None, math.nan, math.inf, 3601)),
        {"on_doubt": "ask"},
    ],
)
def test_settings_that_mean_nothing_block_tool_calls_only(
    changed: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "dragoman.json").write_text(json.dumps({"version": 1, **changed}))
    with pytest.raises(Doubt, match=r"dragoman\.json cannot be used: `"):
        read_settings(tmp_path)
    found = answered(tmp_path, CALL)
    assert found["action"] == "block"
    assert "`dragoman hook install`" in found["message"]
    assert answered(tmp_path, WATCHED) == {}


@pytest.mark.parametrize("text", [None, b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_settings_that_cannot_be_read_block_tool_calls(text: bytes | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "dragoman.json").write_bytes(text)
    assert answered(tmp_path, CALL)["action"] == "block"
    assert answered(tmp_path, WATCHED) == {}


@pytest.mark.parametrize(
    ("gate", "tool", "gated"),
    [
        (".*", "terminal", True),
        (".*", "", True),
        ("terminal|write_file", "write_file", True),
        ("terminal|write_file", "write_files", False),
        ("term", "terminal", False),
        ("", "terminal", False),
        ("", "", False),
        ("terminal", None, True),
    ],
)
def test_the_gate_matches_the_whole_name_of_a_tool(gate: str, tool: str, gated: bool) -> None:
    assert is_gated(HookSettings(gate=gate), {**CALL, "tool_name": tool}) is gated
    assert not is_gated(HookSettings(gate=gate), {**WATCHED, "tool_name": tool})


# What is sent.

HISTORY = [{"role": role, "content": number} for number, role in enumerate(
    ("user", "assistant", "user", "assistant", "tool", "assistant"))]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "kept"), [("post_llm_call", HISTORY[3:]), ("pre_llm_call", None)]
)
def test_what_nobody_reads_is_not_sent(event: str, kept: object) -> None:
    message = {"content": "x", "provider_data": {"long": 1}, "tool_calls": []}
    extra = {
        "request": {}, "request_messages": [], "middleware_trace": [], "model": "m",
        "conversation_history": HISTORY, "response": {"assistant_message": message, "usage": 1},
    }  # fmt: skip
    before = json.dumps(extra)
    found = trim({**CALL, "hook_event_name": event, "extra": extra})
    response = {"assistant_message": {"content": "x", "tool_calls": []}, "usage": 1}
    left = {"model": "m", "response": response}
    assert found["extra"] == (left if kept is None else {**left, "conversation_history": kept})
    assert json.dumps(extra) == before


def test_what_json_cannot_hold_is_text() -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

    around: list[Any] = [1]
    around.append(around)
    deep: Any = "end"
    for _ in range(200):
        deep = [deep]
    odd = {1: (2.5, math.inf), "o": Broken(), "b": b"x", "i": 10**5000, "h": "\ud800", "t": True}
    body = make_delivery({**CALL, "extra": {**odd, "a": around, "d": deep}}, "plugin").body
    extra = json.loads(body)["extra"]
    assert extra.pop("d")[0][0][0]
    assert extra == {
        "1": [2.5, "inf"], "o": "<Broken>", "b": "b'x'", "i": "<int>", "h": "?", "t": True,
        "a": [1, "[1, [...]]"],
    }  # fmt: skip
    assert b"NaN" not in body


def test_a_body_that_is_too_large_has_its_long_texts_cut() -> None:
    long = "é" * 600_000
    payload = {**CALL, "tool_input": {"text": long}, "extra": {"list": [long[:100_000]]}}
    found = json.loads(make_delivery(payload, "shell").body)
    assert found["tool_input"]["text"] == "é" * 100_000 + "… [cut by dragoman]"
    assert found["extra"]["list"] == ["é" * 100_000]
    kept = {**CALL, "tool_input": {"text": long[:300_000]}}
    assert json.loads(make_delivery(kept, "shell").body)["tool_input"] == kept["tool_input"]


def test_what_a_person_is_to_allow_is_never_cut() -> None:
    payload = {**CALL, "tool_input": {"text": "x" * 600_000}, "extra": {"pad": "y" * 600_000}}
    found = json.loads(make_delivery(payload, "shell", wait=5).body)
    assert found["tool_input"] == payload["tool_input"]
    with pytest.raises(Doubt, match="bytes"):
        make_delivery({**CALL, "tool_input": {"text": "x" * 1_100_000}}, "shell", wait=5)


def test_what_is_still_too_large_blocks_a_tool_call_and_is_else_dropped(tmp_path: Path) -> None:
    large = {"tool_input": {str(number): "x" * 90_000 for number in range(12)}}
    with HookOrigin() as origin:
        write_settings(tmp_path, origin.url)
        notes: list[str] = []
        assert answered(tmp_path, {**CALL, **large}, notes)["action"] == "block"
        assert answered(tmp_path, {**WATCHED, **large}, notes) == {}
    assert origin.arrivals == []
    assert "bytes" in notes[-1]


# What is asked.


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (ALLOW, HookDecision(True)),
        (BLOCK, HookDecision(False, "no")),
        ((200, b'{"decision": "block"}'), HookDecision(False, "Blocked by Dragoman.")),
        ((200, b'{"decision": "block", "message": " ", "x": 1}'),
         HookDecision(False, "Blocked by Dragoman.")),
    ],
)  # fmt: skip
def test_a_decision_is_taken(answer: Answer, wanted: HookDecision) -> None:
    with HookOrigin(answer) as origin:
        assert asked(origin) == wanted
    (arrival,) = origin.arrivals
    assert arrival.payload["dragoman"] == {"way": "shell", "wait_seconds": 60}
    assert {name: arrival.payload[name] for name in CALL} == CALL


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"{}"),
        (200, b""),
        (200, b"null"),
        (200, b'{"decision": "allow", "decision": "block"}'),
        (200, b'{"decision": "allow", "note": 1}'),
        (200, '{"decision": "allow"}'.encode("utf-16")),
        (200, b'{"decision": "Allow"}'),
        (200, b"[" * 60_000),
        (200, b" " * 70_000 + b'{"decision": "allow"}'),
        (201, b'{"decision": "allow"}'),
        (302, b'{"decision": "allow"}'),
        (503, b"{}"),
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 101 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
    ],
)
def test_an_answer_that_is_not_a_decision_is_a_doubt_after_one_retry(answer: Answer) -> None:
    with HookOrigin(answer) as origin, pytest.raises(NoDecision, match="Dragoman at http"):
        asked(origin)
    first, second = origin.arrivals
    assert first.body == second.body


def test_a_decision_after_one_wrong_answer_counts() -> None:
    with HookOrigin((500, b"oops"), ALLOW) as origin:
        assert asked(origin).allowed
    assert len(origin.arrivals) == 2


def test_what_the_server_says_of_an_error_is_passed_on() -> None:
    body = b'{"error": {"code": "wrong_signature", "message": "the signature is wrong"}}'
    with HookOrigin((401, body)) as origin, pytest.raises(NoDecision) as caught:
        asked(origin)
    said = f"Dragoman at {origin.url} answered with 401 and no decision: the signature is wrong"
    assert str(caught.value) == said


def test_a_redirect_is_not_followed() -> None:
    with HookOrigin() as other:
        move = f"HTTP/1.1 307 Moved\r\nLocation: {other.url}\r\nContent-Length: 0\r\n\r\n"
        with HookOrigin(move.encode()) as origin, pytest.raises(NoDecision):
            asked(origin)
    assert other.arrivals == []


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{HOST}:{free_port()}")
    with HookOrigin() as origin:
        assert asked(origin).allowed


def count_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses that are made from now on."""
    pauses: list[float] = []
    sleep = time.sleep

    def counted(seconds: float) -> None:
        pauses.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", counted)
    return pauses


def test_a_server_that_is_not_there_is_a_doubt_after_one_retry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pauses = count_pauses(monkeypatch)
    url = f"http://{HOST}:{free_port()}/from/x"
    with pytest.raises(Unreachable):
        ask(settings_of(url), ASKED, started=time.monotonic(), wait=SOON_S, times=QUICK)
    assert pauses == [QUICK.pause]
    write_settings(tmp_path, url)
    assert answered(tmp_path, CALL) == {
        "action": "block",
        "message": f"Not allowed by Dragoman: Dragoman at {url} cannot be reached: Connection"
        " refused. For the user: Start `dragoman serve`, or run `dragoman hook remove`.",
    }
    write_settings(tmp_path, url, on_doubt="allow")
    assert answered(tmp_path, CALL) == {}


def test_a_name_that_does_not_exist_is_a_doubt() -> None:
    with pytest.raises(Unreachable, match="cannot be reached"):
        ask(
            settings_of("http://nothing.invalid/from/x"),
            ASKED,
            started=time.monotonic(),
            wait=SOON_S,
            times=QUICK,
        )


def test_a_server_that_restarts_is_asked_again_for_the_same_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = count_pauses(monkeypatch)
    found: list[HookDecision] = []

    with HookOrigin() as origin:
        hold(origin)
        caller = threading.Thread(target=lambda: found.append(asked(origin)))
        caller.start()
        origin.wait(1)
    while len(pauses) < 5:  # refused so often: more than a doubt at once allows
        assert caller.is_alive()
        threading.Event().wait(0.001)
    with HookOrigin(BLOCK, port=origin.port) as again:
        caller.join(SOON_S)
    assert found == [HookDecision(False, "no")]
    assert {arrival.body for arrival in again.arrivals} == {origin.arrivals[0].body}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx",
    ],
)
def test_a_connection_that_breaks_is_tried_again_until_the_wait_is_over(answer: Answer) -> None:
    with HookOrigin(*[answer] * 5, ALLOW) as origin:
        assert asked(origin).allowed
    assert len(origin.arrivals) == 6
    with HookOrigin(answer) as origin, pytest.raises(ConnectionBroken, match="broke"):
        asked(origin, wait=0.1)
    assert len({arrival.body for arrival in origin.arrivals}) == 1


def hold(origin: HookOrigin) -> None:
    """Have a server take requests and answer none."""

    def never(_: Arrival) -> Answer:
        origin.hold()
        return ALLOW

    origin.answers = [never]


def out_of_time(call: Callable[[float], object]) -> None:
    """See that a call is out of time once it has enough to reach the server."""
    for seconds in (0.05, 0.5, 5.0, 50.0):
        try:
            with pytest.raises(OutOfTime):
                call(seconds)
            return
        except Unreachable:  # a slow machine
            continue
    pytest.fail("the server was never reached")


def test_an_answer_that_does_not_come_in_time_is_a_doubt() -> None:
    with HookOrigin() as origin:
        hold(origin)
        out_of_time(lambda wait: asked(origin, wait=wait, times=HookTimes(spare=0.01)))
    with HookOrigin() as origin:
        hold(origin)
        found = settings_of(origin.url)
        out_of_time(lambda answer: tell(found, TOLD, times=HookTimes(answer, answer), again=False))


def test_an_answer_that_trickles_for_ever_is_a_doubt() -> None:
    over = threading.Event()

    def trickle() -> None:
        with listener.accept()[0] as connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not over.wait(0.005):
                connection.sendall(b"x")

    with socket.create_server((HOST, 0)) as listener:
        found = settings_of(f"http://{HOST}:{listener.getsockname()[1]}/")
        server = threading.Thread(target=trickle)
        server.start()
        # The system takes connections before the server does: only the answer can be late.
        with pytest.raises(OutOfTime):
            ask(found, ASKED, started=time.monotonic(), wait=0.2, times=HookTimes(spare=0))
        over.set()
        server.join()


def decision_of(status: int, body: bytes) -> dict[str, str]:
    try:
        return directive(read_decision(status, body, "http://127.0.0.1/"), HookSettings())
    except Doubt as doubt:
        return directive(doubt, HookSettings())


def allows(status: int, body: bytes) -> bool:
    """Whether an answer allows a call, by a look that shares nothing with the code."""
    text = body.decode("utf-8", "replace").translate({ord(one): None for one in " \t\r\n"})
    return status == 200 and text == '{"decision":"allow"}'


ANSWERS = st.one_of(
    st.binary(max_size=40),
    st.builds(
        lambda pairs, indent: json.dumps(dict(pairs), indent=indent).encode(),
        st.lists(
            st.tuples(
                st.sampled_from(["decision", "action", "message", "x"]),
                st.sampled_from(["allow", "block", "Allow", "", None, True, ["allow"], {}]),
            ),
            max_size=3,
        ),
        st.none() | st.integers(0, 3),
    ),
    st.sampled_from(
        [b'{"decision": "allow"}', b'{"decision": "allow"}x', b'["decision", "allow"]']
    ),
)


@given(st.just(200) | st.integers(100, 599), ANSWERS)
@settings(max_examples=80)
def test_only_an_allow_with_200_lets_a_call_run(status: int, body: bytes) -> None:
    found = decision_of(status, body)
    assert (found == {}) == allows(status, body)
    assert found == {} or (found["action"] == "block" and found["message"])


@given(st.binary(max_size=30) | st.builds(
    lambda status, body: b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (
        status, len(body), body),
    st.sampled_from([200, 200, 204, 404, 500]), ANSWERS,
))  # fmt: skip
@settings(max_examples=20)
def test_whatever_a_server_writes_only_an_allow_lets_a_call_run(raw: bytes) -> None:
    head, _, body = raw.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0
    with HookOrigin(raw) as origin:
        found = settings_of(origin.url)
        try:
            outcome: Any = asked(origin, wait=0.02, times=HookTimes(pause=0.001, spare=SOON_S))
        except Doubt as doubt:
            outcome = doubt
    assert (directive(outcome, found) == {}) == allows(status, body)


# What is told.


def test_what_does_not_wait_is_told_once() -> None:
    with HookOrigin() as origin:
        tell(settings_of(origin.url), TOLD, times=QUICK)
    (arrival,) = origin.arrivals
    assert arrival.payload["dragoman"] == {"way": "shell"}


@pytest.mark.parametrize(("answer", "times"), [(None, 2), ((500, b""), 2), ((400, b"{}"), 1)])
def test_what_does_not_wait_is_tried_twice_unless_it_is_refused(
    answer: Answer, times: int, tmp_path: Path
) -> None:
    with HookOrigin(answer) as origin:
        write_settings(tmp_path, origin.url)
        notes: list[str] = []
        assert answered(tmp_path, WATCHED, notes) == {}
    assert len(notes) == 1
    assert len(origin.arrivals) == times
    assert len({arrival.body for arrival in origin.arrivals}) == 1


def test_what_does_not_wait_is_dropped_if_no_answer_comes() -> None:
    with HookOrigin() as origin:
        hold(origin)
        with pytest.raises(Doubt):
            tell(settings_of(origin.url), TOLD, times=HookTimes(0.05, 0.05, 0.001))


# A shell hook as a whole.


def test_a_shell_hook_asks_for_what_is_gated_and_tells_the_rest(tmp_path: Path) -> None:
    with HookOrigin() as origin:
        write_settings(tmp_path, origin.url, gate="terminal", wait_seconds=500)
        assert answered(tmp_path, CALL) == {}
        assert answered(tmp_path, {**CALL, "tool_name": "todo"}) == {}
        assert answered(tmp_path, WATCHED) == {}
        origin.answers = [BLOCK]
        assert answered(tmp_path, CALL) == {"action": "block", "message": "no"}
    ours = [arrival.payload["dragoman"] for arrival in origin.arrivals]
    told = {"way": "shell"}
    # Hermes ends a shell hook after 300 s.
    assert ours == [{**told, "wait_seconds": 285}, told, told, {**told, "wait_seconds": 285}]


@pytest.mark.parametrize(
    ("raw", "blocks"),
    [
        (b"", True),
        (b"hello", True),
        (b"[]", True),
        (b'{"hook_event_name": 7}', True),
        (b'{"hook_event_name": "pre_tool_call", "x', True),
        (b'{"hook_event_name": "post_tool_call", "x', False),
        (b"[" * 100_000, True),
        (b'{"hook_event_name": "pre_tool_call", "x": "' + b"x" * delivery.MOST_STDIN, True),
        (b'{"hook_event_name": "post_tool_call", "x": "' + b"x" * delivery.MOST_STDIN, False),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_cannot_be_read_blocks_if_it_may_be_a_tool_call(
    raw: bytes, blocks: bool, tmp_path: Path
) -> None:
    write_settings(tmp_path, "http://127.0.0.1:9/")
    assert ("action" in answered(tmp_path, raw)) is blocks
    write_settings(tmp_path, "http://127.0.0.1:9/", gate="")
    assert answered(tmp_path, raw) == {}


def test_a_failure_of_the_hook_itself_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(tmp_path, "http://127.0.0.1:9/")

    def fail(*_: object, **__: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(delivery, "post", fail)
    assert "the hook failed: KeyError('oops')" in answered(tmp_path, CALL)["message"]


def test_a_look_up_that_hangs_does_not_hold_a_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(tmp_path, "http://127.0.0.1:9/", wait_seconds=0.05)
    over = threading.Event()
    monkeypatch.setattr(delivery, "post", lambda *_, **__: over.wait(SOON_S))
    raw = json.dumps(CALL).encode()
    found = answer_hook(raw, tmp_path, note=print, times=HookTimes(spare=0.05))
    over.set()
    assert "was not asked in 0.05 seconds" in found["message"]


def test_a_proof_of_the_installation_passes_through(tmp_path: Path) -> None:
    with HookOrigin() as origin:
        write_settings(tmp_path, origin.url)
        answered(tmp_path, {**CALL, "extra": {"dragoman_test": "nonce"}})
    assert origin.arrivals[0].payload["extra"] == {"dragoman_test": "nonce"}


def test_nobody_is_asked_about_a_call_that_hermes_made_up(tmp_path: Path) -> None:
    made_up = {**CALL, "session_id": "test-session", "extra": {"tool_call_id": "test-call"}}
    with HookOrigin() as origin:
        write_settings(tmp_path, origin.url)
        answered(tmp_path, made_up)
        answered(tmp_path, {**made_up, "extra": {"turn_id": "t"}})
    marks = [arrival.payload["extra"].get("dragoman_test") for arrival in origin.arrivals]
    assert marks == ["made up by Hermes", None]


@settings(max_examples=15)
@given(st.recursive(st.none() | st.floats() | st.integers() | st.text() | st.binary(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.integers(), inner)
                    | st.tuples(inner)))  # fmt: skip
def test_everything_can_be_sent(value: object) -> None:
    found = json.loads(make_delivery({**CALL, "extra": {"value": value}}, "plugin").body)
    assert set(found["extra"]) == {"value"}
    assert plain(found) == found
