"""Files in base64 and percent encoding are read as tolerantly as clients write them."""

from __future__ import annotations

import pytest

from adapters.wire.encodings import PERCENT, decode_base64, decode_percent


@pytest.mark.parametrize("text", ["QUI=", "QUI", " QU\r\nI =\n", "QUI==", ""])
def test_base64_may_lack_padding_and_have_white_space(text: str) -> None:
    assert decode_base64(text) == (b"AB" if text else b"")


@pytest.mark.parametrize("text", ["A", "A===", "QQ=A", "Q=Q=", "é", "QUJ!", "AAAA=AAAA", "-_-_"])
def test_what_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_base64(text)


def test_percent_encoding_has_a_limit() -> None:
    assert decode_percent("a%20b") == b"a b"
    with pytest.raises(ValueError, match=str(PERCENT)):
        decode_percent("x" * (PERCENT + 1))
