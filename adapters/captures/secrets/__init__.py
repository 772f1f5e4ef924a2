"""Finds secrets, in JSON and in any other text, whole or in pieces.

All is linear in what is searched, however that is made.
"""

from adapters.captures.secrets.deltas import (
    LOG,
    DeltaFormat,
    DeltaTexts,
    Path,
    StreamFrame,
    by_type,
)
from adapters.captures.secrets.finder import BadPattern, SecretFinder
from adapters.captures.secrets.known_secrets import SpelledValues
from adapters.captures.secrets.running_text import RunningText
from adapters.captures.secrets.secret_patterns import LOOKS, SecretSpan, looks_secret

__all__ = [
    "LOG",
    "LOOKS",
    "BadPattern",
    "DeltaFormat",
    "DeltaTexts",
    "Path",
    "RunningText",
    "SecretFinder",
    "SecretSpan",
    "SpelledValues",
    "StreamFrame",
    "by_type",
    "looks_secret",
]
