"""A frame with far too many values is known before it is parsed."""

from __future__ import annotations

import json

import pytest

from adapters.wire.limits import FRAME_VALUES, is_light

TABLE = "\n".join(["1,2,3,[4],{5}"] * FRAME_VALUES)


@pytest.mark.parametrize(
    "data",
    [
        json.dumps([1] * (FRAME_VALUES - 2)).encode(),
        json.dumps([[]] * (FRAME_VALUES // 2 - 1)).encode(),
        json.dumps([{"a": "b"}] * (FRAME_VALUES // 4 - 1)).encode(),
        json.dumps({"file": "A" * 2**25, "text": TABLE}).encode(),
        json.dumps({"quoted": f'{{"a":"{TABLE}\\'}).encode(),
    ],
    ids=["numbers", "arrays", "objects", "a file and a table in texts", "escapes"],
)
def test_what_has_few_values_is_light_however_long_its_texts_are(data: bytes) -> None:
    assert is_light(data)


@pytest.mark.parametrize(
    "data",
    [
        json.dumps([1] * (FRAME_VALUES + 2)).encode(),
        b"[" + b"[]," * FRAME_VALUES + b"[]]",
        b"[" * (FRAME_VALUES + 1),
        json.dumps([""] * FRAME_VALUES).encode(),
        json.dumps([{"a": "\\"}] * (FRAME_VALUES // 3)).encode(),
        json.dumps({"text": TABLE, "bomb": [[]] * FRAME_VALUES}).encode(),
    ],
    ids=["numbers", "arrays", "open arrays", "texts", "objects", "behind a text"],
)
def test_what_has_too_many_values_is_not(data: bytes) -> None:
    assert not is_light(data)
