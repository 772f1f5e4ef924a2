"""The files and commands of docs/deploy.md, as an operator copies them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["HOST", "PAGE", "UPSTREAM", "block", "blocks", "replaced"]

PAGE = (Path(__file__).parent.parent / "docs" / "deploy.md").read_text()

HOST = "dragoman.example.com"
UPSTREAM = "127.0.0.1:8787"


def blocks(language: str) -> list[str]:
    """Return the page's blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def block(language: str, having: str = "") -> str:
    """Return the one block of a language that has such a text."""
    (found,) = (text for text in blocks(language) if having in text)
    return found


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """Return a text with each part replaced, which must be in it: the page has not changed."""
    for old, new in pairs:
        assert old in text, f"docs/deploy.md has no `{old}` any more"
        text = text.replace(old, new)
    return text
