"""Starts a Dragoman over a scripted eve of each generation."""

from __future__ import annotations

from tests.support.dragoman import Start, starts
from tests.support.houses import Eves

Serve = Start[Eves]

serve = starts(Eves)
