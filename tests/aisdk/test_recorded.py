"""The face reads what real pages post, and what it shows is taken by the strict client."""

from __future__ import annotations

import json
from pathlib import Path

from tests.aisdk.recorded import GOLDEN, REPOSITORY, name_of, read, requests
from tests.support.aisdk_chunks import Frames
from tests.support.aisdk_client import Answer, Page
from tests.support.each import each

GOLDENS = sorted((REPOSITORY / "fixtures" / "golden").rglob("aisdk*.sse"))


@each("path", requests(), ids=name_of)
def test_the_face_reads_the_requests_of_real_pages(path: Path) -> None:
    assert read(path) == json.loads(GOLDEN.read_bytes())[name_of(path)]


def test_no_reading_is_left_over() -> None:
    assert set(json.loads(GOLDEN.read_bytes())) == {name_of(path) for path in requests()}


@each("golden", GOLDENS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_body_of_a_golden_is_taken_by_the_oldest_pages(golden: Path) -> None:
    page = Page("chat-1", profile="5" if golden.stem == "aisdk-5" else "6")
    *bodies, rest = golden.read_bytes().split(b"data: [DONE]\n\n")
    for body in bodies:
        chunks = list(Frames().feed(body))
        goes_on = page.message(chunks[0]["messageId"]) is not None
        answer = Answer(page, page.go_on() if goes_on else page.say("on"))
        for chunk in chunks:
            answer.feed(chunk)
        answer.end()
    # The last stream may be open still.
    answer = Answer(page, page.say("on"))
    for chunk in Frames().feed(rest):
        answer.feed(chunk)
