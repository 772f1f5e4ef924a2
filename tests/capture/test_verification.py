"""`dragoman verify`: a capture held against what its bodies give today."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner, Result

from adapters.captures import (
    Capture,
    CapturedEvent,
    CapturedPiece,
    CapturedRequest,
    CapturedResponse,
    CaptureHead,
    ExchangeEnd,
    body_of,
    format_record,
    read_capture,
)
from adapters.captures.kinds import read_any
from adapters.model import events as ev
from adapters.offline.captured_log import log_of
from adapters.offline.translate import TranslateOptions, make_sink
from adapters.offline.verification import Verification, verify
from proxy import cli
from tests.test_project import REPOSITORY

WIRE = REPOSITORY / "fixtures" / "wire"
MEDIA = {
    "eve": "application/x-ndjson",
    **dict.fromkeys(("herm", "engine", "managed-agents"), "text/event-stream"),
}
TARGETS = {
    "eve": "/eve/v1/session/s1/stream",
    "herm": "/v1/sessions/s1/events/stream",
    "engine": "/execute",
    "managed-agents": "/v1/sessions/s1/events/stream",
}
BODIES = {
    "eve": WIRE / "eve/eve-0.80.1/server/approval-approve.01.ndjson",
    "herm": WIRE / "herm/03-confirmation.sse",
    "engine": WIRE / "engine/02-thinking-and-tool.sse",
    "managed-agents": WIRE / "managed-agents/live/02-confirmations.sse",
}

How = Literal["ended", "broke", "left"]


@dataclasses.dataclass
class Made:
    """A capture that is made by hand."""

    dialect: str | None
    records: list[
        CapturedRequest | CapturedResponse | CapturedPiece | ExchangeEnd | CapturedEvent
    ] = dataclasses.field(default_factory=list)
    exchanges: int = 0

    def stream(
        self,
        side: Literal["backend", "frontend"],
        dialect: str,
        body: bytes,
        *,
        target: str | None = None,
        how: How = "ended",
    ) -> Made:
        """Add a stream."""
        self.exchanges += 1
        number, at = self.exchanges, float(self.exchanges)
        if target is None:
            face = f"/as/{dialect}/to/agent" if side == "frontend" else ""
            target = face + TARGETS[dialect]
        headers = (("content-type", MEDIA[dialect]),)
        self.records += [
            CapturedRequest(exchange=number, side=side, at=at, method="GET", target=target),
            CapturedResponse(exchange=number, at=at, status=200, headers=headers),
            body_of(number, "response", at, body),
            ExchangeEnd(exchange=number, at=at, how=how),
        ]
        return self

    def log(self, log: Sequence[ev.Entry]) -> Made:
        """Add the log."""
        self.records += [CapturedEvent(at=1.0, entry=json.loads(entry.encode())) for entry in log]
        return self

    @property
    def data(self) -> bytes:
        head = CaptureHead(made_by="a test", at=1.0, dialect=self.dialect, session="s1")
        return b"".join(map(format_record, (head, *self.records)))

    @property
    def capture(self) -> Capture:
        return read_capture(self.data.splitlines(keepends=True), "c.ndjson")


def backend_of(dialect: str) -> Made:
    return Made(dialect).stream("backend", dialect, BODIES[dialect].read_bytes())


def log_in(made: Made) -> list[ev.Entry]:
    return log_of(made.capture).log


def told(log: Sequence[ev.Entry], dialect: str, form: str = "all") -> bytes:
    sink = make_sink(dialect, TranslateOptions(session_id="s1", form=form))
    return b"".join(map(sink, log))


def with_text(log: Sequence[ev.Entry], add: str) -> list[ev.Entry]:
    """Return a log whose last text says more."""
    out = list(log)
    for kind in (ev.TextDelta, ev.TextCompleted):
        number = max(n for n, entry in enumerate(log) if isinstance(entry.event, kind))
        entry = log[number]
        assert isinstance(entry.event, ev.TextDelta | ev.TextCompleted)
        text = entry.event.model_copy(update={"text": entry.event.text + add})
        out[number] = entry._replace(event=text)
    return out


def outcomes(verdict: Verification) -> list[tuple[str, str]]:
    return [(check.what, check.outcome) for check in verdict.checks]


BOTH = "the log and the backend's bodies"


@pytest.mark.parametrize("face", [*BODIES])
@pytest.mark.parametrize("dialect", [*BODIES])
def test_a_capture_with_both_sides_and_its_log_is_the_same(dialect: str, face: str) -> None:
    made = backend_of(dialect)
    log = log_in(made)
    made.stream("frontend", face, told(log, face)).log(log)
    verdict = verify(made.capture)
    assert outcomes(verdict) == [
        (BOTH, "same"),
        (f"what a frontend of `{face}` was told", "same"),
    ]
    assert verdict.outcome == "same"


@pytest.mark.parametrize("dialect", [*BODIES])
def test_a_log_that_says_something_else_than_the_bodies_differs(dialect: str) -> None:
    made = backend_of(dialect)
    made.log(with_text(log_in(made), " And more."))
    (check,) = verify(made.capture).checks
    assert (check.what, check.outcome) == (BOTH, "differs")
    assert check.found is not None
    assert "text.completed.text" in [one.path for one in check.found.differences]
    assert check.lines()[:2] == [f"{BOTH}:", "`text.completed.text` differs"]
    assert verify(made.capture, None, ["text.completed.text"]).outcome == "same"


@pytest.mark.parametrize("face", [*BODIES])
def test_a_frontend_that_was_told_something_else_differs(face: str) -> None:
    made = backend_of("engine")
    log = log_in(made)
    made.stream("frontend", face, told(with_text(log, " And more."), face)).log(log)
    assert dict(outcomes(verify(made.capture))) == {
        BOTH: "same",
        f"what a frontend of `{face}` was told": "differs",
    }


def test_what_is_missing_in_the_bodies_is_told() -> None:
    log = log_in(backend_of("eve"))
    lines = [line for line in BODIES["eve"].read_bytes().splitlines(keepends=True) if line.strip()]
    made = Made("eve").stream("backend", "eve", b"".join(lines[:5]))
    late = b"".join(lines[-5:])
    begin = len(lines) - 5
    made.stream("backend", "eve", late, target=f"{TARGETS['eve']}?startIndex={begin}")
    verdict = verify(made.log(log).capture)
    assert verdict.outcome == "differs"
    assert verdict.why == f"records 5 to {begin - 1} were not recorded"


def test_what_dragoman_says_of_itself_and_of_its_frontends_does_not_count() -> None:
    made = backend_of("engine")
    log = log_in(made)
    own: list[ev.Event] = [
        ev.SessionStarted(thread_id="main", agent={"id": "engine"}, options={"task_id": "s1"}),
        ev.InputAccepted(
            thread_id="main", command_id="c", kind="message", message_id="c", by="web"
        ),
        ev.InputSettled(thread_id="main", command_id="c", outcome="taken"),
        ev.SessionUpdated(thread_id="main", title="as the backend's answer says"),
    ]
    events = [*own, *(e.event for e in log[1:])]
    made.log([ev.Entry(n, n, "s1", event) for n, event in enumerate(events, 1)])
    assert verify(made.capture).outcome == "same"
    late = ev.SessionUpdated(thread_id="main", title="other")
    made.log([ev.Entry(len(events) + 1, len(events) + 1, "s1", late)])
    assert verify(made.capture).outcome == "differs"


@pytest.mark.parametrize("form", ["all", "tokens", "newest"])
def test_whichever_form_an_eve_had_is_the_same(form: str) -> None:
    made = backend_of("engine")
    log = log_in(made)
    made.stream("frontend", "eve", told(log, "eve", form)).log(log)
    assert verify(made.capture).outcome == "same"


@pytest.mark.parametrize(("how", "outcome"), [("left", "same"), ("ended", "differs")])
def test_a_frontend_that_left_was_not_told_the_rest(how: How, outcome: str) -> None:
    made = backend_of("engine")
    log = log_in(made)
    place = next(n for n, e in enumerate(log) if isinstance(e.event, ev.ToolReturned))
    made.stream("frontend", "engine", told(log[:place], "engine"), how=how).log(log)
    assert verify(made.capture).outcome == outcome


def test_a_frontend_whose_dialect_nothing_says_is_not_compared() -> None:
    made = backend_of("engine")
    log = log_in(made)
    made.stream("frontend", "eve", told(log, "eve"), target=TARGETS["eve"]).log(log)
    verdict = verify(made.capture)
    assert outcomes(verdict) == [(BOTH, "same"), ("what a frontend was told", "not compared")]
    assert verdict.outcome == "same"
    assert "nothing says the dialect of a frontend" in verdict.why


def test_without_a_log_the_frontend_is_held_against_the_bodies() -> None:
    made = backend_of("engine")
    log = log_in(made)
    made.stream("frontend", "herm", told(with_text(log, " More."), "herm"))
    assert [outcome for _, outcome in outcomes(verify(made.capture))] == ["same", "differs"]


def test_a_log_alone_is_not_compared() -> None:
    verdict = verify(Made("engine").log(log_in(backend_of("engine"))).capture)
    assert (verdict.outcome, verdict.why) == ("not compared", "it has no bodies")


def test_without_a_log_a_frame_that_makes_no_sense_is_named() -> None:
    body = BODIES["engine"].read_bytes()
    middle = body.index(b"event: ", len(body) // 2)
    torn = body[:middle] + b'event: text_delta\ndata: {"\n\n' + body[middle:]
    made = Made("engine").stream("backend", "engine", body[:middle])
    assert verify(made.capture).outcome == "same"
    made = Made("engine").stream("backend", "engine", b": alive\n\n")
    assert verify(made.capture).outcome == "cannot be read"
    made.stream("backend", "engine", torn, target="/execute")
    verdict = verify(made.capture)
    assert verdict.outcome == "cannot be read"
    assert verdict.why.startswith("1 frame makes no sense, the first in exchange 2: ")


@pytest.mark.parametrize(
    ("dialect", "outcome", "told"),
    [
        (None, "cannot be read", "it does not say which dialect it is of"),
        ("klingon", "cannot be read", "`klingon`, which is not a dialect"),
        ("hermes-agent", "not compared", "cannot be read yet"),
    ],
)
def test_a_dialect_that_cannot_be_read_is_told(
    dialect: str | None, outcome: str, told: str
) -> None:
    verdict = verify(Made(dialect).stream("backend", "engine", b"").capture)
    assert verdict.outcome == outcome
    assert told in verdict.why


def test_the_dialect_of_a_log_is_that_of_its_backend() -> None:
    made = backend_of("eve")
    made.log(log_in(made)).dialect = None
    assert verify(made.capture).outcome == "same"


# The command.


def dragoman(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.main, ["verify", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that is the same, one that differs, and what is not a capture."""
    same, differs = backend_of("engine"), backend_of("eve")
    same.log(log_in(same))
    differs.log(with_text(log_in(differs), " And more."))
    folder = tmp_path / "captures"
    (folder / "within").mkdir(parents=True)
    (folder / "a.ndjson").write_bytes(same.data)
    (folder / "within" / "b.capture").write_bytes(differs.data)
    (folder / "README.md").write_text("What these are.\n")
    (folder / ".hidden.ndjson").write_text("")
    return folder


def test_the_command_has_a_line_for_each_and_shows_what_differs(folder: Path) -> None:
    done = dragoman(folder)
    assert (done.exit_code, done.stderr) == (1, "")
    first, second, empty, head, what, *_ = done.stdout.splitlines()
    assert first.split("\t") == ["same", f"{folder}/a.ndjson", ""]
    assert second.split("\t") == ["differs", f"{folder}/within/b.capture", ""]
    assert (empty, head) == ("", f"{folder}/within/b.capture: {BOTH}:")
    assert what == "`text.completed.text` differs"
    assert dragoman(folder, "--ignore", "text.completed.text").exit_code == 0
    # Once, however often it is named.
    done = dragoman(folder / "a.ndjson", folder / "a.ndjson")
    assert (done.exit_code, done.stdout) == (0, f"same\t{folder}/a.ndjson\t\n")


def test_the_command_prints_json_and_writes_junit(folder: Path, tmp_path: Path) -> None:
    (folder / "c.ndjson").write_bytes(b'{"capture":9}\n')
    (folder / "d.ndjson").write_bytes(Made("engine").data)
    report = tmp_path / "report.xml"
    done = dragoman(folder, "--json", "--junit", report)
    assert done.exit_code == 2
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["version"] == 1
    names = {Path(one["name"]).name: one for one in answer["captures"]}
    assert {name: one["outcome"] for name, one in names.items()} == {
        "a.ndjson": "same",
        "b.capture": "differs",
        "c.ndjson": "cannot be read",
        "d.ndjson": "not compared",
    }
    (check,) = names["b.capture"]["checks"]
    assert check["differences"][0]["path"] == "text.completed.text"
    assert names["c.ndjson"]["checks"][0]["why"].startswith("line 1: it has version 9 of captures")
    root = ET.fromstring(report.read_bytes())
    assert root.attrib == {"tests": "4", "failures": "1", "errors": "1"}
    suite = root.find("testsuite")
    assert suite is not None
    assert suite.get("name") == "dragoman verify"
    kinds = [[child.tag for child in case] for case in suite.findall("testcase")]
    assert kinds == [[], ["error"], ["skipped"], ["failure"]]


def test_the_snapshots_of_tests_are_no_captures_of_their_folder(
    folder: Path, tmp_path: Path
) -> None:
    snapshots = folder / "snapshots"
    snapshots.mkdir()
    log = snapshots / "tool.ndjson"
    log.write_bytes(b"".join(entry.encode() + b"\n" for entry in log_in(backend_of("eve"))))
    done = dragoman(folder, "--ignore", "text.completed.text")
    assert (done.exit_code, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 2
    assert str(log) not in done.stdout
    # Named alone it is told, and what to do with it.
    done = dragoman(log)
    assert done.exit_code == 2
    assert done.stdout.startswith(f"not compared\t{log}\tit is a canonical log")
    assert "`dragoman diff`" in done.stdout
    assert done.stderr == ""
    done = dragoman(snapshots)
    assert done.exit_code == 2
    assert f"{snapshots}: there is no capture in it." in done.stderr


def test_the_example_of_regression_tests_verifies_as_a_whole() -> None:
    done = dragoman(REPOSITORY / "docs/examples/regression-tests")
    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["same", "same"]


def test_files_of_other_tools_are_read(tmp_path: Path) -> None:
    file = REPOSITORY / "fixtures/captures/curl-heads.txt"
    assert verify(read_any(file.read_bytes(), "x"), "engine").outcome == "same"
    done = dragoman(file, "--from", "engine")
    assert (done.exit_code, done.stdout) == (0, f"same\t{file}\t\n")
    done = dragoman(file)
    assert done.exit_code == 2
    assert "name it with --from" in done.stdout


def test_a_capture_that_was_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.ndjson"
    path.write_bytes(backend_of("engine").data + b'{"type":"requ')
    done = dragoman(path)
    assert done.exit_code == 0
    assert done.stderr.startswith(f"{path}: it was cut off: line ")


def test_what_is_not_there_is_an_error(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = dragoman(folder, empty)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{empty}: there is no capture in it." in done.stderr
    done = dragoman(tmp_path / "none")
    assert (done.exit_code, done.stdout) == (
        2,
        f"cannot be read\t{tmp_path}/none\tNo such file or directory\n",
    )
    assert dragoman(folder, "--ignore", "usag").exit_code == 2
    assert dragoman().exit_code == 2
    assert dragoman(folder, "--junit", tmp_path / "none" / "x.xml").exit_code == 2
    # Nothing was compared, which proves nothing.
    (empty / "d.ndjson").write_bytes(Made("engine").data)
    assert dragoman(empty).exit_code == 2
