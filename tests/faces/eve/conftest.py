"""Starts a Dragoman over a scripted Engine."""

from __future__ import annotations

from tests.support.dragoman import starts
from tests.support.running import Running

run = starts(Running)
