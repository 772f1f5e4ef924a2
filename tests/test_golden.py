"""The golden files are what the code makes, and every recording has its part in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.eve.wire import STREAM_VERSIONS
from adapters.model import events as ev
from adapters.model.base import EncoderContext
from adapters.model.state import LogState
from adapters.registry import DIALECTS
from tests import golden
from tests.golden import FACES, GOLDEN, SCENARIOS, SESSION, WIRE
from tests.support.each import each
from tests.support.eve_records import ProtocolViolation, RecordChecker

IN_THE_MIDDLE = {"stream-reconnect-mid-turn.02", "client-cut-connection.02"}
"""Bodies that a client got when it came back: they begin in the middle of a text."""

ANOTHER_ASKS = {"managed-agents-live-03-asks-of-two-children"}
"""Bodies in which an agent goes on while a child of it still asks, which an eve never does."""


@each("scenario", SCENARIOS)
def test_a_scenario_gives_its_golden_files(scenario: str) -> None:
    for name, content in golden.faces_of(SCENARIOS[scenario]()):
        path = GOLDEN / scenario / name
        assert path.exists(), f"{path} is missing: make golden"
        assert path.read_bytes() == content, f"{path} differs: python -m tests.golden"


def test_no_golden_file_is_left_over() -> None:
    assert golden.stale() == []


@each("scenario", SCENARIOS)
def test_a_golden_log_obeys_the_laws_and_is_read_back(scenario: str) -> None:
    state = LogState()
    lines = (GOLDEN / scenario / "canonical.ndjson").read_bytes().splitlines()
    for line in lines:
        entry = ev.Entry.decode(line)
        assert entry.encode() == line
        state.apply_entry(entry)
    assert state.seq == len(lines)


@pytest.mark.parametrize("name", FACES)
@each("scenario", SCENARIOS)
def test_a_face_can_be_put_back_after_any_entry(scenario: str, name: str) -> None:
    face = FACES[name]
    create = DIALECTS[face.dialect].encoder
    assert create is not None
    context = EncoderContext(SESSION, b"golden", settings=face.settings)
    encoder = create(context)
    written: list[bytes] = []
    for entry in SCENARIOS[scenario]():
        snapshot = encoder.snapshot()
        encoder = create(context)
        encoder.restore(snapshot)
        written += [frame.data for frame in encoder.feed(entry)]
    path = GOLDEN / scenario / name
    assert path.exists(), f"{path} is missing: make golden"
    assert b"".join(written) == path.read_bytes(), (
        f"the encoder of `{face.dialect}` writes other frames once it is put back: something that "
        "it keeps is not in its `snapshot`"
    )


def test_every_recorded_body_of_an_engine_is_played() -> None:
    source = Path(golden.__file__).read_text(encoding="utf-8")
    unused = [path.name for path in (WIRE / "engine").glob("*.sse") if path.name not in source]
    assert unused == []


@each("name", [name for name in FACES if name.startswith("eve")])
@each("scenario", SCENARIOS)
def test_a_strict_reader_finds_nothing_wrong_with_eve_records(scenario: str, name: str) -> None:
    form = FACES[name].settings["form"]
    # Nobody sent the message of a recorded body through us, so it has no delivery.
    ours = scenario.startswith("engine-")
    # What an eve backend says, an eve frontend gets as it is.
    real = scenario.startswith(("eve-", "cross-generation"))
    version = STREAM_VERSIONS[form]
    checker = RecordChecker(version, form=form, child=not ours, real=real)
    records = [json.loads(line) for line in (GOLDEN / scenario / name).read_bytes().splitlines()]
    if scenario in ANOTHER_ASKS and name == "eve-newest.ndjson":
        with pytest.raises(ProtocolViolation, match="goes on while a request is open"):
            _check(checker, records)
    elif scenario.rpartition("/")[2] in IN_THE_MIDDLE:
        # The final text stands, and the deltas are those that there were.
        with pytest.raises(ProtocolViolation, match="not the sum of the deltas"):
            _check(checker, records)
    else:
        _check(checker, records)


def _check(checker: RecordChecker, records: list[Any]) -> None:
    for record in records:
        checker.check(record)


WITHOUT_PIECES = ("managed-agents.sse", "managed-agents-thinking.sse")
"""Who asks for no previews gets whole texts: what a recording ends in is still to come."""


def test_what_the_agent_said_is_on_every_face() -> None:
    for scenario in SCENARIOS:
        lines = (GOLDEN / scenario / "canonical.ndjson").read_bytes().splitlines()
        log = [json.loads(line) for line in lines]
        said = [e["text"] for e in log if e["type"] == "text.delta"]
        whole = [e["text"] for e in log if e["type"] == "text.completed"]
        for name in FACES:
            shown = (GOLDEN / scenario / name).read_text(encoding="utf-8")
            for words in whole if name in WITHOUT_PIECES else said:
                assert json.dumps(words, ensure_ascii=False)[1:-1] in shown, (scenario, name)
