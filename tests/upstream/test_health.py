"""How a backend stands is told when it changes, and not with every request."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from proxy.base.metrics import REGISTRY
from proxy.base.outcomes import FAILURES, Code, MessageOutcome
from proxy.upstream.health import (
    AGAIN_SECONDS,
    FAILED_MOST,
    FAILED_SECONDS,
    Health,
    Trouble,
)


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def health(clock: Time, caplog: pytest.LogCaptureFixture) -> Health:
    caplog.set_level(logging.INFO)
    return Health("quarry", "http://127.0.0.1:9", monotonic=clock)


def told(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [one.__dict__["kind"] for one in caplog.records]


def test_each_kind_of_trouble_is_told_once_until_the_backend_is_back(
    health: Health, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        clock.now += AGAIN_SECONDS
        health.failed(Trouble.CONNECTION, "refused")
        health.failed(Trouble.TIMEOUT, "no answer")
    assert told(caplog) == ["connection", "timeout"]
    health.answered(200)
    health.answered(200)
    assert told(caplog)[2:] == ["back"]
    assert {one.levelname for one in caplog.records} == {"WARNING"}
    assert caplog.records[0].getMessage() == "backend `quarry` takes no connection: refused"
    assert caplog.records[0].__dict__["url"] == "http://127.0.0.1:9"


def test_nothing_is_told_of_a_backend_that_is_well(
    health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    health.answered(200)
    health.opened()
    assert told(caplog) == []


def test_a_backend_that_comes_and_goes_is_told_of_once_a_minute(
    health: Health, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        health.failed(Trouble.CONNECTION, "refused")
        health.answered(200)
    assert told(caplog) == ["connection", "back"]
    clock.now += AGAIN_SECONDS
    health.failed(Trouble.CONNECTION, "refused")
    health.answered(200)
    assert told(caplog) == ["connection", "back"] * 2


@pytest.mark.parametrize("kind", [Trouble.STREAM, Trouble.DIALECT])
def test_only_a_stream_that_opens_shows_that_streams_can_be_had(
    kind: Trouble, health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    health.trouble(kind, "it broke")
    health.answered(200)
    assert told(caplog) == [kind]
    health.opened()
    assert told(caplog) == [kind, "back"]


def test_a_refused_credential_is_over_when_something_is_done_with_it(
    health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    health.trouble(Trouble.CREDENTIAL, "it answers 401")
    health.answered(401)
    health.answered(404)
    assert told(caplog) == ["credential"]
    health.answered(202)
    assert told(caplog) == ["credential", "back"]


def test_errors_are_told_until_an_answer_is_none(
    health: Health, caplog: pytest.LogCaptureFixture
) -> None:
    health.answered(503)
    health.answered(500)
    health.answered(404)
    assert told(caplog) == ["error", "back"]
    assert caplog.records[0].getMessage() == (
        "backend `quarry` answers with an error: it answers 503"
    )


def test_many_skipped_frames_are_counted_in_few_lines(
    health: Health, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        health.skipped("dgs_1", "it is not JSON")
    clock.now += 10
    health.skipped("dgs_2", "it is not JSON")
    assert [one.__dict__["count"] for one in caplog.records] == [1, 4]
    text = "session `dgs_2`: a frame of backend `quarry` is skipped: it is not JSON"
    assert caplog.records[1].getMessage() == text


def standing(health: Health) -> tuple[bool | None, Code | None]:
    """Whether a backend is up, and why it fails."""
    return health.up, health.failing


def test_a_backend_is_down_after_some_messages_failed_and_up_after_one_success(
    health: Health, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    health.answered(200)
    for _ in range(FAILED_MOST - 1):
        health.concluded(MessageOutcome.REFUSED, Code.BACKEND_5XX)
    # What is not its doing neither helps nor hurts.
    health.concluded(MessageOutcome.FAILED, Code.EXHAUSTED)
    health.concluded(MessageOutcome.COMPLETED, Code.INTERRUPTED)
    assert standing(health) == (True, None)
    health.concluded(MessageOutcome.UNKNOWN, Code.TIMEOUT)
    assert standing(health) == (False, Code.TIMEOUT)
    # An answer is not work.
    health.answered(200)
    health.opened()
    assert told(caplog) == ["messages"]
    assert standing(health) == (False, Code.TIMEOUT)
    health.concluded(MessageOutcome.COMPLETED, Code.OK)
    assert standing(health) == (True, None)
    assert told(caplog) == ["messages", "back"]


def test_failures_count_for_a_while_only(
    health: Health, clock: Time, caplog: pytest.LogCaptureFixture
) -> None:
    health.answered(200)
    for _ in range(FAILED_MOST):
        health.concluded(MessageOutcome.REFUSED, Code.BACKEND_5XX)
    assert standing(health) == (False, Code.BACKEND_5XX)
    clock.now += FAILED_SECONDS
    assert standing(health) == (True, None)
    health.concluded(MessageOutcome.REFUSED, Code.BACKEND_5XX)
    assert standing(health) == (True, None)
    for _ in range(FAILED_MOST - 1):
        health.concluded(MessageOutcome.REFUSED, Code.BACKEND_5XX)
    assert standing(health) == (False, Code.BACKEND_5XX)
    assert told(caplog) == ["messages", "messages"]


def test_the_documentation_has_every_kind_and_no_other() -> None:
    repository = Path(__file__).parents[2]
    page = (repository / "docs" / "monitoring.md").read_text()
    rows = page.partition("| `kind` | what happened |")[2].splitlines()[2:]
    named = [name for row in rows if row for name in re.findall("`(.*?)`", row.split("|")[1])]
    files = (repository / "proxy").rglob("*.py")
    sources = [path.read_text() for path in files if "scripted" not in path.parts]
    others = {kind for text in sources for kind in re.findall(r'"kind": "(\w+)"', text)}
    others |= {f"message_{outcome}" for outcome in FAILURES}
    assert sorted(named) == sorted({*Trouble, *others})


def test_a_trouble_is_counted_also_when_it_is_not_told_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    health = Health("counted", "http://127.0.0.1:9")

    def counted(kind: Trouble) -> float | None:
        labels = {"backend": "counted", "kind": kind.value}
        return REGISTRY.get_sample_value("dragoman_backend_troubles_total", labels)

    assert [counted(kind) for kind in Trouble] == [0] * len(Trouble)
    for _ in range(3):
        health.failed(Trouble.TIMEOUT, "no answer came")
    assert told(caplog) == ["timeout"]
    assert counted(Trouble.TIMEOUT) == 3
    assert counted(Trouble.CONNECTION) == 0
