"""The face reads what real clients send, and the strict client takes what theirs took."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agui.recorded import GOLDEN, RECORDED, REPOSITORY, name_of, read, requests
from tests.support.agui_client import Applied, Checker, split
from tests.support.each import each

BODIES = sorted(RECORDED.rglob("*.response.sse"))
CUT = {"copilotkit-1.75/stop/01.response.sse"}
"""Where the client closed the connection."""

GOLDENS = sorted((REPOSITORY / "fixtures" / "golden").rglob("agui.sse"))


@each("path", requests(), ids=name_of)
def test_the_face_reads_the_requests_of_real_clients(path: Path) -> None:
    assert read(path) == json.loads(GOLDEN.read_bytes())[name_of(path)]


def test_no_reading_is_left_over() -> None:
    assert sorted(json.loads(GOLDEN.read_bytes())) == [name_of(path) for path in requests()]


@each("body", BODIES, ids=lambda path: str(path.relative_to(RECORDED)))
def test_the_strict_client_takes_what_real_clients_took(body: Path) -> None:
    checker = Checker()
    for event in split(body.read_bytes()):
        checker.feed(event)
    if str(body.relative_to(RECORDED)) not in CUT:
        checker.end()


@each("golden", GOLDENS, ids=lambda path: path.parent.name)
def test_the_events_of_every_golden_obey_the_protocol(golden: Path) -> None:
    checker, applied = Checker(stamped=True), Applied()
    for event in split(golden.read_bytes()):
        applied.apply(checker.feed(event))
