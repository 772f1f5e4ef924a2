"""JSON Patch: the cases of RFC 6902's appendix, what does not apply, and what is too much."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from adapters.wire.json_patch import OPERATIONS, PatchError, patched

APPENDIX: list[tuple[str, Any, list[Any], Any]] = [
    (
        "A.1",
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux"}],
        {"baz": "qux", "foo": "bar"},
    ),
    (
        "A.2",
        {"foo": ["bar", "baz"]},
        [{"op": "add", "path": "/foo/1", "value": "qux"}],
        {"foo": ["bar", "qux", "baz"]},
    ),
    ("A.3", {"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    (
        "A.4",
        {"foo": ["bar", "qux", "baz"]},
        [{"op": "remove", "path": "/foo/1"}],
        {"foo": ["bar", "baz"]},
    ),
    (
        "A.5",
        {"baz": "qux", "foo": "bar"},
        [{"op": "replace", "path": "/baz", "value": "boo"}],
        {"baz": "boo", "foo": "bar"},
    ),
    (
        "A.6",
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        "A.7",
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        "A.8",
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [
            {"op": "test", "path": "/baz", "value": "qux"},
            {"op": "test", "path": "/foo/1", "value": 2},
        ],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    (
        "A.10",
        {"foo": "bar"},
        [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    (
        "A.11",
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
        {"foo": "bar", "baz": "qux"},
    ),
    (
        "A.14",
        {"/": 9, "~1": 10},
        [{"op": "test", "path": "/~01", "value": 10}],
        {"/": 9, "~1": 10},
    ),
    (
        "A.16",
        {"foo": ["bar"]},
        [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
        {"foo": ["bar", ["abc", "def"]]},
    ),
    ("copy", {"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
    ("the whole", {"a": 1}, [{"op": "replace", "path": "", "value": [2]}], [2]),
    ("nothing left", {"a": 1}, [{"op": "remove", "path": ""}], None),
    (
        "an item",
        {"a": [1, 2]},
        [{"op": "replace", "path": "/a/1", "value": 3}],
        {"a": [1, 3]},
    ),
]


@pytest.mark.parametrize(
    ("value", "patch", "made"), [row[1:] for row in APPENDIX], ids=[row[0] for row in APPENDIX]
)
def test_a_patch_makes_what_the_standard_says(value: Any, patch: list[Any], made: Any) -> None:
    before = copy.deepcopy(value)
    assert patched(value, patch) == made
    assert value == before


WRONG: list[list[Any]] = [
    [{"op": "test", "path": "/a", "value": 2}],
    [{"op": "add", "path": "/no/such", "value": 1}],
    [{"op": "remove", "path": "/no"}],
    [{"op": "replace", "path": "/no", "value": 1}],
    [{"op": "replace", "path": "/l/2", "value": 1}],
    [{"op": "add", "path": "/l/3", "value": 1}],
    [{"op": "add", "path": "/l/-1", "value": 1}],
    [{"op": "remove", "path": "/l/x"}],
    [{"op": "add", "path": "a", "value": 1}],
    [{"op": "add", "path": "/a/b", "value": 1}],
    [{"op": "add", "path": "/b"}],
    [{"op": "copy", "from": "/no", "path": "/b"}],
    [{"op": "spam", "path": "/a"}],
    [{"path": "/a", "value": 1}],
    [{"op": "add", "path": 1, "value": 1}],
    ["add"],
    [None],
    [{"op": "add", "path": "/b", "value": 1}, {"op": "remove", "path": "/no"}],
]


@pytest.mark.parametrize("patch", WRONG, ids=str)
def test_a_patch_that_does_not_apply_changes_nothing(patch: list[Any]) -> None:
    value = {"a": 1, "l": [1, 2]}
    with pytest.raises(PatchError):
        patched(value, patch)
    assert value == {"a": 1, "l": [1, 2]}


def test_a_patch_that_doubles_a_value_with_each_step_is_refused() -> None:
    grows = [{"op": "copy", "from": "", "path": f"/c{number}"} for number in range(64)]
    with pytest.raises(PatchError, match="adds more than"):
        patched({"a": "x" * 100}, grows)
    many = [{"op": "test", "path": "/a", "value": 1}] * (OPERATIONS + 1)
    with pytest.raises(PatchError, match="more than 10000 operations"):
        patched({"a": 1}, many)
