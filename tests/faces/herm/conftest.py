"""Starts a Dragoman over a scripted Herm and a scripted Engine."""

from __future__ import annotations

from tests.support.dragoman import Start, starts
from tests.support.houses import HermAndEngine

Serve = Start[HermAndEngine]

serve = starts(HermAndEngine)
