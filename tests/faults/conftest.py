"""Starts a Dragoman over one scripted backend."""

from __future__ import annotations

from tests.support.alone import Alone
from tests.support.dragoman import starts

run = starts(Alone)
