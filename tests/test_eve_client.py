"""The strict eve client: what it accepts of both generations, and that it names each violation."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.each import each
from tests.support.eve_client import EveClient, Form, ProtocolViolation, Refused
from tests.support.eve_records import Record, RecordChecker, check_shape

SESSION = "wrun_01HZX8Q0000000000000000001"
VERSIONS: dict[Form, int] = {"all": 24, "tokens": 21, "newest": 26}

# Eve page, section 9.4 and the recordings of 0.80.1 and 0.30.8: an approval of one payment.
INPUT = {"to": "Ada", "cents": 1250}
CALL = {"callId": "call-16-1", "input": INPUT, "kind": "tool-call", "toolName": "send_payment"}
REQUEST = {
    "action": CALL,
    "allowFreeform": False,
    "display": "confirmation",
    "kind": "tool-approval",
    "options": [{"id": "approve", "label": "Approve"}, {"id": "cancel", "label": "Cancel"}],
    "prompt": "Approve Send payment?",
    "requestId": "aitxt-N8N2TI2Ibbl8NhSBWctuweXG",
}
PAID = {
    "callId": "call-16-1",
    "kind": "tool-result",
    "output": {"paid": True},
    "toolName": "send_payment",
}


class Script:
    """Writes the records of a session by hand, with ids, times and deliveries of their own."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.records: list[Record] = []
        self.turn = -1
        self.step = -1
        self.delivery = "d-0"

    def add(self, kind: str, **data: Any) -> None:
        number = len(self.records)
        meta: dict[str, Any] = {
            "id": f"evt_01M7ZWADH2RC493KT0GM7X{number:04}",
            "at": f"2026-11-21T20:21:16.{number:03}Z",
        }
        if self.form != "tokens":
            meta["deliveryIds"] = [self.delivery]
        self.records.append({"type": kind, "data": data, "meta": meta})

    def in_turn(self, kind: str, **data: Any) -> None:
        self.add(kind, sequence=self.turn, turnId=f"turn_{self.turn}", **data)

    def in_step(self, kind: str, **data: Any) -> None:
        self.in_turn(kind, stepIndex=self.step, **data)

    def open(self, message: str | None = None) -> None:
        self.turn += 1
        self.step = -1
        self.in_turn("turn.started")
        if message is not None:
            self.in_turn("message.received", message=message)

    def say(self, *pieces: str, reason: str = "stop") -> None:
        so_far = ""
        for piece in pieces:
            so_far += piece
            cumulative = {} if self.form == "newest" else {"messageSoFar": so_far}
            self.in_step("message.appended", messageDelta=piece, **cumulative)
        self.in_step("message.completed", message=so_far, finishReason=reason)

    def start_step(self) -> None:
        self.step += 1
        self.in_step("step.started")

    def end_step(self, reason: str = "stop") -> None:
        self.in_step("step.completed", finishReason=reason)

    def close(self) -> None:
        self.in_turn("turn.completed")
        self.wait()

    def wait(self) -> None:
        self.add("session.waiting", continuationToken=f"tok-{self.turn}", wait="next-user-message")

    def ask(self) -> None:
        """Play the first message's turn up to the pause."""
        self.add("session.started")
        self.open("Pay Ada.")
        self.start_step()
        self.say("This needs a ", "go-ahead.", reason="tool-calls")
        self.in_step("actions.requested", actions=[CALL])
        self.end_step("tool-calls")
        self.in_step("input.requested", requests=[REQUEST])
        if self.form == "newest":
            self.in_turn("turn.waiting", on="input")
        else:
            self.close()

    def approved(self) -> None:
        """Play on from the pause to the end."""
        if self.form == "newest":
            resolution = {
                "kind": "tool-approval",
                "outcome": "approved",
                "requestId": REQUEST["requestId"],
            }
            self.in_step("input.resolved", resolutions=[resolution])
        else:
            self.open()
        self.start_step()
        self.in_step("action.result", result=PAID, status="completed")
        self.say("Paid.")
        self.end_step()
        self.close()

    def chat(self, message: str, delivery: str) -> None:
        """Play a turn with text only."""
        self.delivery = delivery
        self.open(message)
        self.start_step()
        self.say(f"You said {message}")
        self.end_step()
        self.close()


def whole(form: Form) -> list[Record]:
    script = Script(form)
    script.ask()
    script.approved()
    script.chat("hello", "d-9")
    return script.records


def check(records: list[Record], form: Form, **options: Any) -> None:
    checker = RecordChecker(VERSIONS[form], form=form, **options)
    for record in records:
        checker.check(record)


def place(records: list[Record], kind: str, number: int = 0) -> int:
    return [at for at, record in enumerate(records) if record["type"] == kind][number]


# The records


@pytest.mark.parametrize("form", VERSIONS)
def test_a_session_with_an_approval_is_accepted_in_each_form(form: Form) -> None:
    check(whole(form), form)


@pytest.mark.parametrize("form", VERSIONS)
def test_each_form_refuses_the_records_of_another_generation(form: Form) -> None:
    for other in VERSIONS:
        if (other == "newest") != (form == "newest"):
            with pytest.raises(ProtocolViolation):
                check(whole(other), form)


@pytest.mark.parametrize("form", VERSIONS)
def test_a_record_that_is_missing_is_noticed_wherever_it_carries_the_state(form: Form) -> None:
    needed = {
        "session.started",
        "turn.started",
        "step.started",
        "actions.requested",
        "turn.completed",
    }
    records = whole(form)
    for at, record in enumerate(records):
        if record["type"] in needed or (record["type"] == "message.appended" and at == 4):
            with pytest.raises(ProtocolViolation):
                check(records[:at] + records[at + 1 :], form)


@pytest.mark.parametrize("form", VERSIONS)
def test_a_record_that_comes_twice_is_noticed_by_its_id(form: Form) -> None:
    records = whole(form)
    for at in range(len(records)):
        with pytest.raises(ProtocolViolation):
            check([*records[: at + 1], records[at]], form)


Change = Callable[[Record], object]

CHANGES: list[tuple[str, Change, str]] = [
    ("turn.started", lambda r: r.update(extra=1), "the envelope does not have"),
    ("turn.started", lambda r: r.pop("data"), "without `data`"),
    ("turn.started", lambda r: r["meta"].update(id="evt_1"), "`meta.id`"),
    ("turn.started", lambda r: r["meta"].update(at="2026-11-21"), "`meta.at`"),
    ("turn.started", lambda r: r["meta"].update(deliveryIds="d-0"), "`meta.deliveryIds`"),
    ("turn.started", lambda r: r["data"].update(turnId="turn_7"), "`turn_<sequence>`"),
    (
        "turn.started",
        lambda r: r["data"].update(sequence=1, turnId="turn_1"),
        "turn 0 was expected",
    ),
    ("message.received", lambda r: r["meta"].pop("deliveryIds"), "without its `deliveryIds`"),
    ("message.received", lambda r: r["data"].update(parts=[{"type": "image"}]), "neither text"),
    ("step.started", lambda r: r["data"].update(stepIndex=1), "step 0 was expected"),
    ("message.appended", lambda r: r["data"].pop("messageSoFar"), "needs `messageSoFar`"),
    ("message.appended", lambda r: r["data"].update(messageSoFar="This"), "does not end with"),
    (
        "message.appended",
        lambda r: r["data"].update(messageSoFar="Oh. This needs a "),
        "sum of the deltas",
    ),
    ("message.appended", lambda r: r["data"].update(stepIndex=4), "another step"),
    ("message.completed", lambda r: r["data"].update(message="No."), "sum of the deltas"),
    ("message.completed", lambda r: r["data"].update(finishReason="done"), "`finishReason`"),
    ("message.completed", lambda r: r["data"].update(message=None), "valid `message`"),
    ("actions.requested", lambda r: r["data"].update(actions=[]), "valid `actions`"),
    ("actions.requested", lambda r: r["data"]["actions"][0].pop("callId"), "`callId`"),
    ("actions.requested", lambda r: r["data"]["actions"][0].update(input="x"), "`input` object"),
    ("input.requested", lambda r: r["data"]["requests"][0].update(scope="all"), "unknown member"),
    ("input.requested", lambda r: r["data"]["requests"][0].pop("action"), "the call that it"),
    ("input.requested", lambda r: r["data"]["requests"][0].update(kind="custom"), "unknown kind"),
    ("input.requested", lambda r: r["data"]["requests"][0].update(options=[]), "nothing can"),
    ("input.requested", lambda r: r["data"]["requests"][0].update(display="form"), "`display`"),
    (
        "input.requested",
        lambda r: r["data"]["requests"][0]["options"][0].update(id="cancel"),
        "two options",
    ),
    (
        "input.requested",
        lambda r: r["data"]["requests"][0]["options"][0].update(value="x"),
        "an option with an unknown member",
    ),
    ("session.waiting", lambda r: r["data"].pop("continuationToken"), "`continuationToken`"),
    ("action.result", lambda r: r["data"]["result"].update(callId="call-2"), "without its call"),
    ("action.result", lambda r: r["data"].update(status="failed"), "has no `error`"),
    ("action.result", lambda r: r["data"].update(error={"code": "X"}), "completed result with"),
    ("action.result", lambda r: r["data"]["result"].pop("output"), "without `output`"),
    ("turn.completed", lambda r: r.update(type="turn.waiting"), "version 24 has no"),
    ("turn.completed", lambda r: r["data"].update(sequence=1, turnId="turn_1"), "another turn"),
    ("turn.completed", lambda r: r.update(type="step.started"), "valid `stepIndex`"),
]


@each(("kind", "change", "reason"), CHANGES)
def test_a_changed_record_is_refused_and_the_reason_says_why(
    kind: str, change: Change, reason: str
) -> None:
    records = copy.deepcopy(whole("all"))
    at = place(records, kind)
    change(records[at])
    with pytest.raises(ProtocolViolation, match=reason) as refused:
        check(records, "all")
    assert refused.value.frame == records[at]


def test_a_version_with_deltas_only_forbids_the_cumulative_members() -> None:
    record = whole("all")[4]
    check_shape(record, 24)
    with pytest.raises(ProtocolViolation, match="version 25 forbids `messageSoFar`"):
        check_shape(record, 25)


def test_a_closed_pause_closes_and_a_held_turn_waits_for_its_answer() -> None:
    script = Script("all")
    script.ask()
    paused = script.records[:-2]
    script.records = list(paused)
    script.start_step()
    with pytest.raises(ProtocolViolation, match="goes on without closing"):
        check(script.records, "all")
    held = Script("newest")
    held.ask()
    held.start_step()
    with pytest.raises(ProtocolViolation, match="while a request is open"):
        check(held.records, "newest")
    held.records.pop()
    held.in_turn("turn.completed")
    with pytest.raises(ProtocolViolation, match="ends while a request is open"):
        check(held.records, "newest")


def test_a_turn_that_waits_for_input_must_have_asked() -> None:
    script = Script("newest")
    script.add("session.started")
    script.open("x")
    script.in_turn("turn.waiting", on="input")
    with pytest.raises(ProtocolViolation, match="nothing is asked"):
        check(script.records, "newest")


def test_a_rejected_call_may_be_told_between_two_closed_turns() -> None:
    """Eve page, section 8.2: approval, after no."""
    for status, right in (("rejected", True), ("completed", False)):
        script = Script("all")
        script.ask()
        error = {"code": "TOOL_EXECUTION_DENIED", "message": "Tool execution was denied."}
        more = {"error": error} if right else {}
        script.in_step("action.result", result=PAID, status=status, **more)
        script.open()
        script.start_step()
        script.say("Understood.")
        script.end_step()
        script.close()
        if right:
            check(script.records, "all")
        else:
            with pytest.raises(ProtocolViolation, match="outside of a turn"):
                check(script.records, "all")


def test_control_events_name_the_next_turn_and_open_none() -> None:
    for sequence, right in ((2, True), (1, False)):
        script = Script("all")
        script.ask()
        script.approved()
        script.add(
            "context.cleared", sequence=sequence, turnId=f"turn_{sequence}", sessionId=SESSION
        )
        script.wait()
        script.chat("on", "d-1")
        if right:
            check(script.records, "all")
        else:
            with pytest.raises(ProtocolViolation, match="does not name turn 2"):
                check(script.records, "all")


def test_nothing_follows_the_end_of_a_session() -> None:
    script = Script("all")
    script.ask()
    script.approved()
    script.add("session.completed")
    check(script.records, "all")
    script.wait()
    with pytest.raises(ProtocolViolation, match="after the end"):
        check(script.records, "all")


def test_a_failed_turn_says_whether_it_is_terminal_and_cuts_its_message() -> None:
    script = Script("all")
    script.add("session.started")
    script.open("x")
    script.start_step()
    script.in_step("message.appended", messageDelta="Half", messageSoFar="Half")
    script.in_step("step.failed", code="MODEL_CALL_FAILED", message="no")
    script.in_turn("turn.failed", code="MODEL_CALL_FAILED", message="no")
    with pytest.raises(ProtocolViolation, match="without `terminal`"):
        check(script.records, "all")
    script.records[-1]["data"]["terminal"] = False
    script.wait()
    check(script.records, "all")


def test_unknown_types_pass_with_a_valid_envelope() -> None:
    script = Script("all")
    script.add("session.started")
    script.add("dragoman.gap", reason="backend restarted")
    check(script.records, "all")


def test_a_real_server_may_repeat_the_starts_of_a_retried_step() -> None:
    script = Script("tokens")
    for _ in range(2):
        script.add("session.started")
        script.turn = -1
        script.open("x")
    check(script.records, "tokens", real=True)
    with pytest.raises(ProtocolViolation):
        check(script.records, "tokens")


# The client against a server that plays records


class FakeEve:
    """Serves what a test puts into it; each accepted input publishes the next stage."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.records: list[Record] = []
        self.stages: list[list[Record]] = []
        self.requests: list[tuple[str, Any]] = []
        self.headers: dict[str, str] = {"x-eve-stream-version": str(VERSIONS[form])}
        self.answer: dict[str, Any] = {}
        self.status: int | None = None
        self.first = b"\n"
        self.close_after: int | None = None
        self.leases = False
        self.changed = asyncio.Event()

    def publish(self) -> None:
        if self.stages:
            self.records += self.stages.pop(0)
        self.changed.set()
        self.changed = asyncio.Event()

    def accepted(self, *, create: bool) -> tuple[int, dict[str, Any]]:
        """Sections 1.1, 4.3 and 5."""
        body: dict[str, Any] = {"ok": True, "sessionId": SESSION}
        if self.form != "tokens":
            body["status"] = "accepted"
        if self.form == "all" or (self.form == "tokens" and create):
            body["continuationToken"] = "tok"
        if self.form == "all" or (self.form == "newest" and not create):
            body["deliveryId"] = "d-0" if create else "d-9"
        return 200 if self.form == "tokens" and not create else 202, body

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/eve/v1/session", self.create)
        app.router.add_get("/eve/v1/health", self.health)
        app.router.add_get(f"/eve/v1/session/{SESSION}/stream", self.stream)
        app.router.add_post(f"/eve/v1/session/{SESSION}", self.send)
        app.router.add_post("/eve/v1/session/{name}", self.control)
        app.router.add_post(f"/eve/v1/session/{SESSION}/{{name}}", self.control)
        return app

    async def note(self, request: web.Request) -> Any:
        text = await request.text()
        body = json.loads(text) if text else None
        self.requests.append((f"{request.method} {request.path_qs}", body))
        return body

    def json(self, status: int, body: dict[str, Any]) -> web.Response:
        body = {name: value for name, value in {**body, **self.answer}.items() if value != "-"}
        headers = {"cache-control": "no-store", "x-eve-session-id": SESSION}
        return web.json_response(body, status=self.status or status, headers=headers)

    async def create(self, request: web.Request) -> web.Response:
        await self.note(request)
        self.publish()
        return self.json(*self.accepted(create=True))

    async def send(self, request: web.Request) -> web.Response:
        await self.note(request)
        self.publish()
        return self.json(*self.accepted(create=False))

    async def health(self, request: web.Request) -> web.Response:
        return self.json(200, {"ok": True, "status": "ready", "workflowId": "w"})

    async def control(self, request: web.Request) -> web.Response:
        await self.note(request)
        name = request.match_info["name"]
        if name == "reset":
            return self.json(200, {"ok": True, "previousSessionId": SESSION, "status": "reset"})
        return self.json(202, {"ok": True, "sessionId": SESSION, "status": "accepted"})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        await self.note(request)
        index = int(request.query.get("startIndex", "0"))
        index = max(0, len(self.records) + index) if index < 0 else index
        headers = {
            "content-type": "application/x-ndjson; charset=utf-8",
            "cache-control": "no-store, no-transform",
            "x-accel-buffering": "no",
            "x-eve-session-id": SESSION,
            "x-eve-stream-format": "ndjson",
            "x-eve-stream-tail-index": str(len(self.records) - 1),
            **self.headers,
        }
        response = web.StreamResponse(headers={k: v for k, v in headers.items() if v})
        await response.prepare(request)
        await response.write(self.first)
        left = self.close_after
        while left is None or left > 0:
            changed = self.changed
            if index < len(self.records):
                data = json.dumps(self.records[index]).encode() + b"\n"
                # In two writes: lines may be cut anywhere.
                await response.write(data[:7])
                await response.write(data[7:])
                index += 1
                left = None if left is None else left - 1
                continue
            await changed.wait()
        if self.leases and "streamControlVersion" in request.query:
            await response.write(b'\n{"$eve":"stream.lease-ended","version":1}\n')
        return response


Connect = Callable[..., Awaitable[EveClient]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Serve a fake and give a strict client of it."""
    closing: list[Callable[[], Awaitable[None]]] = []

    async def start(fake: FakeEve, **options: Any) -> EveClient:
        server = TestServer(fake.app())
        await server.start_server(shutdown_timeout=0.1)
        http = aiohttp.ClientSession()
        closing.extend((http.close, server.close))
        return EveClient(http, str(server.make_url("")), form=fake.form, **options)

    yield start
    for close in closing:
        await close()


def approval(form: Form) -> FakeEve:
    """A fake that asks at create, goes on after an answer and chats after a message."""
    fake, script = FakeEve(form), Script(form)
    script.ask()
    asked = len(script.records)
    script.approved()
    answered = len(script.records)
    script.chat("hello", "d-9")
    fake.stages = [
        script.records[:asked],
        script.records[asked:answered],
        script.records[answered:],
    ]
    return fake


@pytest.mark.parametrize(
    ("form", "style"), [("all", "S"), ("all", "T"), ("tokens", "T"), ("newest", "S")]
)
async def test_a_conversation_runs_in_each_form_and_style(
    connect: Connect, form: Form, style: Any
) -> None:
    fake = approval(form)
    client = await connect(fake, style=style)
    assert (await client.health())["workflowId"] == "w"
    session = await client.create("Pay Ada.", clientContext="from a test")
    asked = await session.read_turn()
    assert asked.text is None
    (request,) = asked.requests
    if form != "newest":
        assert session.token == "tok-0"
    await session.respond(request["requestId"], request["options"][0]["id"], "fine")
    done = await session.read_turn()
    assert done.text == "Paid."
    assert done.status == "waiting"
    accepted = await session.send("hello")
    assert (await session.read_turn(accepted)).text == "You said hello"
    again = [record async for record in client.attach(SESSION).stream(0, follow=False)]
    assert again == session.log == fake.records
    bodies = [body for line, body in fake.requests if line.startswith("POST")]
    tokens = [body.get("continuationToken") for body in bodies]
    last = {"all": "tok-1", "tokens": "tok-1"}.get(form)
    first = "tok-0" if form != "newest" else None
    assert tokens == ([None, first, last] if style == "T" else [None, None, None])
    assert bodies[0]["clientContext"] == "from a test"
    streams = [line for line, _ in fake.requests if line.startswith("GET")]
    assert ("streamControlVersion=1" in streams[0]) is (style == "S")


async def test_a_reader_comes_back_at_its_cursor_and_skips_no_record(connect: Connect) -> None:
    fake = approval("all")
    fake.close_after = 3
    client = await connect(fake)
    session = await client.create("Pay Ada.")
    asked = await session.read_turn()
    assert asked.records == fake.records
    starts = [line.rpartition("startIndex=")[2] for line, _ in fake.requests[2:]]
    assert starts == ["3", "6", "9"]


async def test_a_lease_ends_a_body_and_is_no_record(connect: Connect) -> None:
    fake = approval("newest")
    fake.close_after, fake.leases = 4, True
    client = await connect(fake)
    session = await client.create("Pay Ada.")
    assert (await session.read_turn()).records == fake.records


async def test_a_client_gives_up_after_five_connections_without_a_record(connect: Connect) -> None:
    fake = approval("all")
    fake.close_after = 0
    client = await connect(fake)
    session = await client.create("Pay Ada.")
    with pytest.raises(ProtocolViolation, match="5 connections"):
        await session.read_turn()


async def test_a_record_that_changes_between_two_reads_is_a_violation(connect: Connect) -> None:
    fake = approval("all")
    client = await connect(fake)
    session = await client.create("Pay Ada.")
    await session.read_turn()
    fake.records[2] = copy.deepcopy(fake.records[2])
    fake.records[2]["data"]["message"] = "Pay Bob."
    with pytest.raises(ProtocolViolation, match="record 2 has changed"):
        [record async for record in session.stream(0, follow=False)]


async def test_a_negative_start_reads_from_the_end_and_keeps_the_cursor(connect: Connect) -> None:
    fake = approval("all")
    client = await connect(fake)
    session = await client.create("Pay Ada.")
    stream = session.stream(-1)
    assert (await anext(stream))["type"] == "session.waiting"
    await stream.aclose()
    assert session.cursor == 0
    assert "streamControlVersion" not in fake.requests[-1][0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("content-type", "application/json"),
        ("cache-control", "no-store"),
        ("x-accel-buffering", ""),
        ("x-eve-session-id", "wrun_other"),
        ("x-eve-stream-format", "sse"),
        ("x-eve-stream-version", ""),
        ("x-eve-stream-version", "26"),
        ("x-eve-stream-version", "x"),
    ],
)
async def test_a_stream_with_a_wrong_header_is_refused(
    connect: Connect, name: str, value: str
) -> None:
    fake = approval("all")
    fake.headers[name] = value
    client = await connect(fake)
    session = await client.create("Pay Ada.")
    with pytest.raises(ProtocolViolation, match=r"x-|content-type|cache-control|version"):
        await session.read_turn()


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"", "begin with a blank line"),
        (b"\n\n", "nobody asked for"),
        (b"\n{not json}\n", "not JSON"),
        (b"\n[]\n", "not a JSON object"),
        (b'\n{"$eve":"stream.lease-ended","version":1}\n', "without `type`"),
    ],
)
async def test_a_body_that_begins_wrongly_is_refused(
    connect: Connect, first: bytes, reason: str
) -> None:
    fake = approval("all")
    fake.first = first
    client = await connect(fake, style="T")
    session = await client.create("Pay Ada.")
    with pytest.raises(ProtocolViolation, match=reason):
        await session.read_turn()


async def test_a_silent_stream_is_noticed(connect: Connect) -> None:
    fake = FakeEve("all")
    client = await connect(fake, silence_s=0.05)
    session = await client.create("Pay Ada.")
    with pytest.raises(ProtocolViolation, match="no byte for"):
        await session.read_turn()


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ("all", {"deliveryId": "-"}),
        ("all", {"continuationToken": "-"}),
        ("all", {"status": "-"}),
        ("all", {"ok": False}),
        ("all", {"sessionId": ""}),
        ("all", {"sessionId": "wrun_other"}),
        ("tokens", {"status": "accepted"}),
        ("tokens", {"continuationToken": "-"}),
        ("newest", {"continuationToken": "x"}),
        ("newest", {"status": "-"}),
    ],
)
async def test_a_create_answer_of_another_form_is_refused(
    connect: Connect, form: Form, answer: dict[str, Any]
) -> None:
    fake = approval(form)
    fake.answer = answer
    client = await connect(fake)
    with pytest.raises(ProtocolViolation):
        await client.create("Pay Ada.")


async def test_a_follow_up_without_its_delivery_is_refused(connect: Connect) -> None:
    fake = approval("newest")
    client = await connect(fake)
    session = await client.create("Pay Ada.")
    fake.answer = {"deliveryId": "-"}
    with pytest.raises(ProtocolViolation, match="accepts"):
        await session.send("hello")


@pytest.mark.parametrize("style", ["S", "T"])
async def test_controls_have_the_routes_of_their_generation(connect: Connect, style: Any) -> None:
    fake = approval("all")
    client = await connect(fake, style=style)
    session = client.attach(SESSION, token="tok-7")
    done = [
        await session.cancel("turn_3"),
        await session.compact(),
        await session.clear(),
        await session.reset("over"),
    ]
    assert done == ["accepted", "accepted", "accepted", "reset"]
    base = "/eve/v1/session" if style == "T" else f"/eve/v1/session/{SESSION}"
    token = {"continuationToken": "tok-7"} if style == "T" else {}
    assert fake.requests == [
        (f"POST /eve/v1/session/{SESSION}/cancel", {"turnId": "turn_3"}),
        (f"POST {base}/compact", token or None),
        (f"POST {base}/clear", token or None),
        (f"POST {base}/reset", {**token, "reason": "over"}),
    ]


@pytest.mark.parametrize(
    ("form", "answer", "status"),
    [
        ("all", {"status": "no_active_turn", "sessionId": "-"}, 200),
        ("tokens", {"status": "no_active_turn"}, 202),
    ],
)
async def test_a_cancel_without_a_turn_is_told_as_each_generation_does(
    connect: Connect, form: Form, answer: dict[str, Any], status: int
) -> None:
    fake = approval(form)
    fake.answer, fake.status = answer, status
    client = await connect(fake)
    assert await client.attach(SESSION).cancel() == "no_active_turn"
    fake.answer = {**answer, "turnId": "turn_1"}
    with pytest.raises(ProtocolViolation, match="other members"):
        await client.attach(SESSION).cancel()


async def test_a_refusal_carries_status_and_code_and_must_have_the_pages_form(
    connect: Connect,
) -> None:
    fake = approval("all")
    fake.answer = {"ok": False, "code": "session_not_active", "error": "Over."}
    fake.status = 409
    client = await connect(fake)
    with pytest.raises(Refused) as refused:
        await client.attach(SESSION).send("x")
    assert (refused.value.status, refused.value.code) == (409, "session_not_active")
    fake.answer = {"ok": "-", "detail": "Over."}
    with pytest.raises(ProtocolViolation, match="undocumented form"):
        await client.attach(SESSION).send("x")


async def test_a_send_skips_to_its_own_delivery(connect: Connect) -> None:
    fake, script = FakeEve("newest"), Script("newest")
    script.add("session.started")
    script.chat("first", "d-0")
    script.chat("another's", "d-5")
    script.chat("mine", "d-9")
    fake.stages = [[], script.records]
    client = await connect(fake)
    session = await client.create("first")
    accepted = await session.send("mine")
    turn = await session.read_turn(accepted)
    assert turn.text == "You said mine"
    assert {record["meta"]["deliveryIds"][0] for record in turn.records} == {"d-9"}
