"""Large JSON read by short steps is what it is read at once."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import bulk, jsonvalue
from adapters.bulk import (
    TooMuch,
    Unended,
    bounded,
    outline,
)
from adapters.jsonvalue import JsonError, parse_json

TEXTS = st.text(alphabet=st.sampled_from('a"\\\n/é€😀\x00,[{:'), max_size=40)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**18) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.booleans(), st.integers(1, 40), st.integers(0, 12))
def test_a_document_read_by_steps_is_what_it_is_at_once(
    value: Any, ascii_only: bool, step: int, long: int
) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    with (
        patch.object(bulk, "_STEP", step + 12),
        patch.object(bulk, "_LONG", long),
        patch.object(jsonvalue, "BULKY", 0),
    ):
        assert parse_json(data) == value


@given(
    st.binary(max_size=60) | st.text(alphabet='"\\ud8c01abn[]{},: ', max_size=40).map(str.encode)
)
def test_what_is_no_json_is_none_by_steps_either(data: bytes) -> None:
    def read() -> Any:
        try:
            return parse_json(data)
        except JsonError:
            return JsonError

    whole = read()
    with (
        patch.object(bulk, "_STEP", 13),
        patch.object(bulk, "_LONG", 2),
        patch.object(jsonvalue, "BULKY", 0),
    ):
        assert read() == whole


@pytest.mark.parametrize(
    "data",
    [
        b'"' + b"x" * 2**21,
        b'{"a":"' + b"x" * 2**21 + b"\\",
        b'{"a":"' + b"x" * 2**21 + b'\\u12"}',
        b'{"a":"' + b"x" * 2**21 + b'\xff"}',
        b'{"a":"' + b"x" * 2**21 + b'\\ud800"}',
        b'{"a":"' + b"x" * 2**21 + b'\n"}',
        b'{"a":"' + b"x" * 2**21 + b'"',
    ],
    ids=["no end", "half an escape", "a wrong escape", "no UTF-8", "half a pair", "a line", "no }"],
)
def test_a_large_document_that_is_no_json_is_refused_and_not_quoted(data: bytes) -> None:
    with pytest.raises(JsonError) as refused:
        parse_json(data)
    assert "xxx" not in str(refused.value)
    assert refused.value.__context__ is None or refused.value.__suppress_context__


def test_long_strings_are_cut_out_and_the_rest_is_small() -> None:
    long = "é" * 2**20
    data = orjson.dumps({"a": [long, "b"], long: "c"})
    cut = outline(data)
    assert len(cut.strings) == 2
    assert len(cut.rest) < 300
    assert parse_json(data) == {"a": [long, "b"], long: "c"}


def test_of_long_strings_only_files_are_left_out() -> None:
    file, words = "data:image/png;base64," + "A" * 2**20, "words " * 2**14
    data = orjson.dumps({"url": file, "text": words, "again": [file]})
    small, dropped = bounded(data, text=2**18)
    assert orjson.loads(small) == {"url": None, "text": words, "again": [None]}
    assert dropped == 2 * len(file)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"[" + b"[]," * bulk.VALUES + b"[]]", "values"),
        (b"[" + b'"",' * bulk.VALUES + b"1]", "values"),
        (b"[" + b"1," * bulk.VALUES + b"1]", "values"),
        (b"[" + b" " * bulk.REST + b"]", "besides strings"),
        (b'["' + b"\\n" * (bulk.ESCAPES + 1) + b'"]', "escapes"),
        (b"[" + b"1" * (bulk.DIGITS + 1) + b"]", "digits"),
    ],
)
def test_what_is_large_by_anything_but_long_strings_is_too_much(data: bytes, what: str) -> None:
    with pytest.raises(TooMuch, match=what):
        outline(data)


def test_commas_and_digits_in_a_string_are_no_values() -> None:
    text = "1," * 2**20 + "9" * 1000
    assert len(outline(orjson.dumps([text])).strings) == 1


def test_a_string_without_end_is_told() -> None:
    with pytest.raises(Unended):
        outline(b'["a')


@pytest.mark.parametrize("data", [b"[" * 5000, b'{"a":"' + b"x" * 5000])
def test_what_has_no_end_is_left_to_its_parser_or_is_too_much(data: bytes) -> None:
    assert bounded(data) == (data, 0)
    with pytest.raises(TooMuch, match="more than 100 bytes"):
        bounded(data, 100)
