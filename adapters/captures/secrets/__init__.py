"""Finds secrets, in JSON and in any other text, whole or in pieces.

All is linear in what is searched, however that is made.
"""

from adapters.captures.secrets.deltas import LOG, Delta, Frame, Path, Texts, by_type
from adapters.captures.secrets.finder import BadPattern, Finder
from adapters.captures.secrets.known import Values
from adapters.captures.secrets.looks import LOOKS, Span, looks_secret
from adapters.captures.secrets.running import RunningText

__all__ = [
    "LOG",
    "LOOKS",
    "BadPattern",
    "Delta",
    "Finder",
    "Frame",
    "Path",
    "RunningText",
    "Span",
    "Texts",
    "Values",
    "by_type",
    "looks_secret",
]
