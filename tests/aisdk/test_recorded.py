"""The face reads what real pages post."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.aisdk.recorded import GOLDEN, name_of, read, requests


@pytest.mark.parametrize("path", requests(), ids=name_of)
def test_the_face_reads_the_requests_of_real_pages(path: Path) -> None:
    assert read(path) == json.loads(GOLDEN.read_bytes())[name_of(path)]


def test_no_reading_is_left_over() -> None:
    assert set(json.loads(GOLDEN.read_bytes())) == {name_of(path) for path in requests()}
