"""Names that somebody else chose, in paths and header values."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wire.url_paths import (
    is_header_value,
    is_segment,
    path_of,
    rebuilt,
    segments_of,
    to_header_value,
)
from tests.support.each import each
from tests.support.names import HOSTILE, NAMES


@each("name", HOSTILE)
def test_a_name_that_could_lead_elsewhere_is_no_segment(name: str) -> None:
    assert not is_segment(name)
    assert segments_of(path_of("/v1/sessions", name, "events")) is None


@pytest.mark.parametrize(
    "name", ["wrun_01M7", "eve:t", "a b", "50%", "%zz", "日本", "...", "..a", "a.b", "@", "?", "#;"]
)
def test_every_other_name_is_one_segment_and_comes_out_as_it_went_in(name: str) -> None:
    path = path_of("/v1/sessions", name, "events")
    assert is_segment(name)
    assert re.fullmatch(r"[A-Za-z0-9/._~%-]+", path)
    assert segments_of(path) == ("v1", "sessions", name, "events")


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_a_path_has_exactly_the_segments_it_was_made_of_or_never_leaves(names: list[str]) -> None:
    found = segments_of(path_of("", *names))
    if all(map(is_segment, names)):
        assert found == tuple(names)
    else:
        assert found is None


@given(NAMES)
def test_what_is_a_segment_is_one_however_often_a_server_decodes_it(name: str) -> None:
    if is_segment(name):
        for _ in range(4):
            assert name not in ("", ".", "..")
            assert not re.search("[/\\\\\x00-\x1f\x7f]", name)
            name = unquote(name)


@given(st.text(st.sampled_from("/.%25eEfF\\a?#\n\udcff")) | NAMES)
def test_a_path_that_a_backend_names_is_made_anew_or_refused(path: str) -> None:
    made = rebuilt(path)
    if made is not None:
        assert segments_of(made) == segments_of(path)
        assert made.isascii()
        assert not {".", ".."} & set(unquote(made).split("/"))


@given(NAMES)
def test_a_header_value_has_no_control_character_whatever_it_shows(name: str) -> None:
    shown = to_header_value(name)
    assert is_header_value(shown)
    assert (shown == name) == is_header_value(name)
    shown.encode()
