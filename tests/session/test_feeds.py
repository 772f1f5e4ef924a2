"""Which encoders serve a session."""

from __future__ import annotations

import pytest

from adapters.registry import DIALECTS
from adapters.wire.errors import NotSupported
from proxy.session import codec_of


def test_a_dialect_without_an_encoder_is_refused_by_name() -> None:
    without = [name for name, known in DIALECTS.items() if known.encoder is None]
    assert without
    for dialect in without:
        with pytest.raises(NotSupported, match=f"`{dialect}` is not served yet"):
            codec_of(dialect, "b", {})
