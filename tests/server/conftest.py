"""Starts a Dragoman over a scripted Engine, or over a Herm and an Engine."""

from __future__ import annotations

from tests.support.dragoman import Start, starts
from tests.support.houses import HermAndEngine
from tests.support.running import Running

Serve = Start[HermAndEngine]

run = starts(Running)
serve = starts(HermAndEngine)
