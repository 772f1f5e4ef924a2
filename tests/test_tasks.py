"""Tasks are named and kept, their failures are logged, and closing ends them all."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging

import pytest

from proxy.base.tasks import Tasks
from tests.support.waiting import SOON_S


async def test_a_task_is_kept_until_it_ends_although_nobody_else_holds_it() -> None:
    tasks = Tasks("session s1")
    done = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0)
        done.set()

    name = tasks.start(work(), name="read").get_name()
    gc.collect()
    assert (name, len(tasks)) == ("session s1: read", 1)
    await done.wait()
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_a_failure_is_logged_with_the_name_and_touches_no_other_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = Tasks("session s1")

    async def fail() -> None:
        raise ValueError("x")

    other = tasks.start(asyncio.sleep(60), "other")
    failing = tasks.start(fail(), "read")
    await asyncio.wait({failing})
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (
        logging.ERROR,
        "task `session s1: read` failed",
    )
    assert record.exc_info is not None
    assert not other.done()
    await tasks.aclose()


async def test_closing_cancels_every_task_and_waits_until_it_has_cleaned_up() -> None:
    tasks = Tasks("owner")
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append("yes")

    tasks.start(work(), "a")
    tasks.start(work(), "b")
    await asyncio.sleep(0)
    await tasks.aclose()
    assert cleaned == ["yes", "yes"]
    with pytest.raises(RuntimeError, match="`owner` is closed"):
        tasks.start(work(), "late")


async def test_a_task_that_ignores_its_cancellation_is_told_of_and_cancelled_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.base.tasks.STRAGGLER_SECONDS", 0.001)
    tasks = Tasks("owner")

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    task = tasks.start(stubborn(), "stubborn")
    await asyncio.sleep(0)
    await tasks.aclose()
    assert task.cancelled()
    assert "`owner: stubborn` has not ended" in caplog.text


async def test_a_task_may_close_its_owner() -> None:
    tasks = Tasks("owner")
    await asyncio.wait_for(tasks.start(tasks.aclose(), "closes"), SOON_S)


async def test_a_task_does_not_see_the_context_of_who_started_it() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    variable.set("of the request")

    async def read() -> str:
        return variable.get()

    assert await Tasks("owner").start(read(), "reads") == "none"
