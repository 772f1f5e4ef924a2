"""JSON at the border: exact numbers, nothing invalid in or out."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from adapters.wire import jsonvalue
from adapters.wire.jsonvalue import (
    MAX_DEPTH,
    MOST_COUNT,
    MOST_DIGITS,
    JsonError,
    compact,
    count_of,
    format_json,
    int_of,
    number_of,
    parse_json,
    rest_of,
    text_of,
)
from tests.support.each import each

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "number",
    [
        *(2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**64 + 1, 10**30, 10**400),
        *(-(2**63), -(2**63) - 1, -(10**18), -(10**19), 1234567890123456789, 0),
    ],
)
def test_an_integer_of_any_size_survives_both_ways(number: int) -> None:
    text = b'{"n":[%b,"x"]}' % str(number).encode()
    assert parse_json(text) == {"n": [number, "x"]}
    assert parse_json(text.decode()) == {"n": [number, "x"]}
    assert type(parse_json(str(number))) is int
    assert format_json({"n": [number, "x"]}) == text


def test_digits_that_are_no_integer_stay_what_they_are() -> None:
    text = b'["12345678901234567890123", 0.12345678901234567890123, 12345678901234567890123.0, 1e3]'
    value = parse_json(text)
    assert value == ["12345678901234567890123", 0.12345678901234568, 1.2345678901234568e22, 1000.0]
    assert isinstance(value, list)
    assert [type(item) for item in value] == [str, float, float, float]


@given(VALUES)
def test_what_is_written_is_read_back_with_types(value: Any) -> None:
    text = format_json(value)
    again = parse_json(text)
    assert again == value
    # 1, 1.0 and True are equal; their texts are not.
    assert format_json(again) == text
    assert parse_json(text.decode()) == value


@given(VALUES)
def test_every_valid_text_is_read_as_the_standard_library_reads_it(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert repr(parse_json(text.encode())) == repr(json.loads(text))


@given(VALUES)
def test_a_long_text_is_read_as_a_short_one(value: Any) -> None:
    text = json.dumps(value)
    with pytest.MonkeyPatch.context() as patch:
        # So that integers and brackets stand on the border of a step.
        patch.setattr(jsonvalue, "_STEP", 7)
        assert repr(parse_json(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize("before", range(8))
def test_a_long_integer_is_exact_wherever_a_step_ends(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonvalue, "_STEP", 8)
    for digits in (19, 20, 25):
        number = int("1" * digits)
        assert parse_json(b" " * before + b"[%d]" % number) == [number]
        assert parse_json(b" " * before + b"[-%d]" % number) == [-number]


@given(st.binary(max_size=40) | st.text(alphabet='[]{}",:0123456789-e.\\un ', max_size=40))
def test_any_input_is_a_value_or_a_json_error(data: bytes | str) -> None:
    try:
        value = parse_json(data)
    except JsonError as error:
        size = len(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
        assert 0 <= (error.offset or 0) <= size  # noqa: PT017
        return
    assert parse_json(format_json(value)) == value


@each(
    ("data", "offset"),
    [
        (b"", 0),
        (b"nul", 3),
        (b'{"a":1,}', 6),
        (b'{"a":1} x', 8),
        ('{"é":1} x'.encode(), 9),
        ('{"é":1} x', 9),
        ('["🙂" 1]', 8),
        (b"[NaN]", 1),
        (b"[Infinity]", 1),
        (b"[-Infinity]", 2),
        (b"[1e999]", 1),
        (b'"\xff"', 1),
        (b'["ok","\xc3\x28"]', 7),
        (b'"\xed\xa0\x80"', 1),
        (b'["\\ud800"]', 2),
        ('"\ud800"', 1),
        (b'"a\nb"', 2),
        (b"01", 0),
        (b"\xef\xbb\xbf1", 0),
        # The same faults beside an integer that only the standard library reads.
        (b"[%b, NaN]" % (b"9" * 400), None),
        (b"[%b, 1e999]" % (b"9" * 400), None),
        (b'[%b, "\\ud800"]' % (b"9" * 400), None),
        (b"[%b, x]" % (b"9" * 400), 403),
        ("[%s, 'é']" % ("9" * 400), 403),
        (b"[%b, NaN]" % (b"9" * 40), 43),
        (b'[%b, "\\ud800"]' % (b"9" * 40), 44),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(data: bytes | str, offset: int | None) -> None:
    with pytest.raises(JsonError) as caught:
        parse_json(data)
    assert caught.value.offset == offset
    assert isinstance(caught.value, ValueError)
    assert 0 < len(caught.value.reason) < 80
    assert caught.value.reason in str(caught.value)
    if offset is not None:
        assert str(caught.value).startswith(f"byte {offset}: ")


@pytest.mark.parametrize(
    "data", [b'{"secret":"hunter2"', b'{"secret":"hunter2\xff"}', b'["hunter2",%b,]' % (b"9" * 400)]
)
def test_a_refusal_keeps_nothing_of_the_text(data: bytes) -> None:
    with pytest.raises(JsonError) as caught:
        parse_json(data)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_an_integer_too_long_for_python_is_a_json_error() -> None:
    with pytest.raises(JsonError, match="too many digits"):
        parse_json(b"9" * 5000)
    with pytest.raises(JsonError, match="too many digits"):
        format_json([10**5000])


def test_an_integer_is_read_up_to_a_limit_that_keeps_reading_quick() -> None:
    assert parse_json(b"9" * MOST_DIGITS) == 10**MOST_DIGITS - 1
    with pytest.raises(JsonError, match="too many digits"):
        parse_json(b"9" * (MOST_DIGITS + 1))


@pytest.mark.parametrize("value", [0, 1, MOST_COUNT])
def test_a_count_is_an_integer_that_all_peers_read_alike(value: int) -> None:
    assert count_of(value) == value


@pytest.mark.parametrize("value", [-1, MOST_COUNT + 1, 2**70, 1.0, True, None, "1", [], {}])
def test_what_counts_nothing_is_no_count(value: object) -> None:
    assert count_of(value) is None


@pytest.mark.parametrize(
    ("value", "integer", "number", "text"),
    [
        (0, 0, 0, None),
        (-(2**70), -(2**70), -(2**70), None),
        (1.5, None, 1.5, None),
        (True, None, None, None),
        ("", None, None, None),
        ("1", None, None, "1"),
        (None, None, None, None),
        ([1], None, None, None),
    ],
)
def test_a_member_of_another_type_counts_as_none(
    value: object, integer: int | None, number: float | None, text: str | None
) -> None:
    assert (int_of(value), number_of(value), text_of(value)) == (integer, number, text)


def test_the_rest_of_an_object_is_what_is_not_known() -> None:
    value = {"a": 1, "b": None, "c": 2}
    assert rest_of(value, {"a"}) == {"b": None, "c": 2}
    assert rest_of(value, ("a", "b", "c", "d")) is None


def test_the_depth_of_many_values_is_found_without_a_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jsonvalue, "_walk_down", lambda value: pytest.fail("walked"))
    assert parse_json(b"[" + b",".join([b"[]"] * 1_000) + b"]") == [[]] * 1_000


def test_of_two_equal_keys_the_last_one_wins_on_both_paths() -> None:
    assert parse_json(b'{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}
    assert parse_json(b'{"a":1,"b":99999999999999999999,"a":3}') == {
        "a": 3,
        "b": 99999999999999999999,
    }


@pytest.mark.parametrize("levels", [1, 2, MAX_DEPTH - 1, MAX_DEPTH])
def test_nesting_up_to_the_limit_is_read(levels: int) -> None:
    assert parse_json(b"[" * levels + b"]" * levels) == nested(levels)
    text = b'{"a":' * levels + b"1" + b"}" * levels
    assert format_json(parse_json(text)) == text


@each("levels", [MAX_DEPTH + 1, 500, 1000, 1024, 1025, 5000, 1_000_000])
@each("inside", [b"", b"1", b"99999999999999999999", b"9" * 400])
def test_a_depth_bomb_is_a_json_error(levels: int, inside: bytes) -> None:
    for text in (
        b"[" * levels + inside + b"]" * levels,
        b'{"a":' * levels + (inside or b"0") + b"}" * levels,
        b"[" * levels + inside,
    ):
        with pytest.raises(JsonError):
            parse_json(text)
    with pytest.raises(JsonError, match="nested deeper than 128"):
        parse_json(b"[" * levels + inside + b"]" * levels)


def test_many_brackets_side_by_side_and_in_text_are_no_depth() -> None:
    text = b'{"a":[' + b",".join([b'{"b":["[[[[{{{{"]}'] * 300) + b"]}"
    assert format_json(parse_json(text)) == text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_not_written(number: float) -> None:
    values: list[JsonValue] = [number, [number], {"a": {"b": [1, None, number]}}, [2**70, number]]
    for value in values:
        with pytest.raises(JsonError, match="NaN"):
            format_json(value)


def test_null_itself_is_written_wherever_it_stands() -> None:
    for text in (b"null", b"[null]", b'{"a":[1,2.5,null,{"b":null}],"null":"null"}'):
        assert format_json(parse_json(text)) == text


@dataclasses.dataclass
class NotJson:
    a: int = 1


@pytest.mark.parametrize(
    "value",
    [
        *(
            "\ud800",
            {"\ud800": 1},
            {1: 2},
            {None: 2**70},
            [2**70, {1: 2}],
            {1, 2},
            b"bytes",
            object(),
        ),
        *(
            NotJson(),
            datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
            [2**70, "\udfff"],
            [2**70, NotJson()],
        ),
    ],
)
def test_what_is_no_json_value_is_not_written(value: Any) -> None:
    with pytest.raises(JsonError):
        format_json(value)


def test_endless_and_too_deep_values_are_not_written() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with_long: list[Any] = [2**70]
    with_long.append(with_long)
    for value in (endless, with_long, nested(255), [2**70, nested(254)]):
        with pytest.raises(JsonError):
            format_json(value)
    assert format_json(nested(254)) == b"[" * 254 + b"]" * 254
    assert format_json([2**70, nested(253)]).endswith(b"]" * 254)


def test_a_compact_copy_takes_its_length_and_no_more() -> None:
    value = {"text": "x" * 170}
    text = format_json(value)
    assert compact(text) == text
    tracemalloc.start()
    try:
        kept = [compact(format_json(value)) for _ in range(500)]
        assert tracemalloc.get_traced_memory()[0] / len(kept) < len(text) + 100
    finally:
        tracemalloc.stop()
