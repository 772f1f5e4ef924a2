"""Writes docs/openapi.json anew: `python -m tests.control.openapi`. A test compares it."""

from __future__ import annotations

import json
from pathlib import Path

from proxy.control.control import openapi

__all__ = ["PATH", "text"]

PATH = Path(__file__).parent.parent.parent / "docs" / "openapi.json"


def text() -> str:
    """Return the document as it is kept."""
    return json.dumps(openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())
