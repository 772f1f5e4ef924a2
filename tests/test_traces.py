"""What is a `traceparent`, and what is made of one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.base import traces
from proxy.base.clock import SeededIds

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01"
FORM = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[0-3]")

digits = st.text("0123456789abcdef")


def ids(length: int) -> st.SearchStrategy[str]:
    one = st.text("0123456789abcdef", min_size=length, max_size=length)
    return one.filter(lambda text: text.strip("0") != "")


@given(ids(32), ids(16), st.integers(0, 255))
def test_a_valid_one_is_taken_and_a_child_of_it_differs_by_its_parent_id_only(
    trace: str, parent: str, flags: int
) -> None:
    taken = traces.taken([f"00-{trace}-{parent}-{flags:02x}"])
    assert taken == f"00-{trace}-{parent}-{flags & 3:02x}"
    assert traces.trace_id(taken) == trace
    child = traces.child(taken)
    assert FORM.fullmatch(child)
    assert (child[:36], child[52:]) == (taken[:36], taken[52:])
    assert child[36:52] != parent
    assert traces.taken([child]) == child


@given(st.integers(1, 254), st.sampled_from(["", "-", "-x", "-01-what else"]))
def test_a_later_version_is_read_by_its_first_four_fields(version: int, more: str) -> None:
    assert traces.taken([f"{version:02x}-{TRACE}-{PARENT}-01{more}"]) == GIVEN


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        [GIVEN, GIVEN],
        [f"ff-{TRACE}-{PARENT}-01"],
        [f"00-{'0' * 32}-{PARENT}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE.upper()}-{PARENT}-01"],
        [f"00-{TRACE}-{PARENT}-0A"],
        [f"00-{TRACE}-{PARENT}-01-more"],
        [f"01-{TRACE}-{PARENT}-01more"],
        [f"00-{TRACE[1:]}-{PARENT}-01"],
        [f"00-{TRACE}-{PARENT}"],
        [f"{GIVEN}\n"],
        [f"00_{TRACE}_{PARENT}_01"],
        ["00-\udcff"],
    ],
)
def test_what_is_not_valid_is_not_taken(values: list[str]) -> None:
    assert traces.taken(values) is None


@given(st.text(max_size=80) | digits)
def test_no_text_is_taken_for_something_that_is_not_one(text: str) -> None:
    found = traces.taken([text])
    assert found is None or FORM.fullmatch(found)


def test_a_new_one_is_sampled_and_like_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {traces.made() for _ in range(100)}
    assert len({traces.trace_id(one) for one in many}) == 100
    assert all(FORM.fullmatch(one) and one.endswith("-01") for one in many)
    monkeypatch.setattr(traces, "IDS", SeededIds(7))
    first = traces.made()
    monkeypatch.setattr(traces, "IDS", SeededIds(7))
    assert traces.made() == first
