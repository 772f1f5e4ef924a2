"""What we write is what people say: "is not a URL", never "is no URL"; and the docs stay short."""

from __future__ import annotations

import re

import pytest

from tests.test_project import REPOSITORY, repository_files

UNSAID = re.compile(
    r"(?<!there )(?<!There )(?<!here )\b(?:is|was) no (?!less\b|longer\b|more\b|reason\b|way\b"
    r"|warning\b|99th\b|2xx\b|change\b|concern\b|one\b|evidence\b|news\b)[A-Za-z`]+"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the body is no JSON", "is no JSON"),
        ("it was no end", "was no end"),
        ("there is no way, and there is no URL", None),
        ("it is no longer there", None),
        ("it is not a URL", None),
    ],
)
def test_the_search_finds_what_nobody_says(text: str, found: str | None) -> None:
    match = UNSAID.search(text)
    assert (match and match[0]) == found


UNUSUAL = re.compile(r"\b(?:whoever|hear that|hears that)\b", re.IGNORECASE)
"""Words that nobody says aloud to a colleague."""

MADE = re.compile(r"<!-- made by .*?<!-- end of [^>]*-->", re.DOTALL)

WORDS_MOST = 18_000
"""Words of all pages in `docs/`, but for what programs write."""


def test_the_docs_are_short_enough_to_be_read() -> None:
    words = 0
    for file in (REPOSITORY / "docs").rglob("*.md"):
        text = file.read_text(encoding="utf-8")
        if "\nWritten by `python -m" not in text:
            words += len(re.findall(r"\S*\w\S*", MADE.sub("", text)))
    assert 10_000 < words <= WORDS_MOST, "say it once, and link to it"


def test_what_is_written_is_what_people_say() -> None:
    found = []
    for file in repository_files():
        name = file.relative_to(REPOSITORY).as_posix()
        if file.suffix not in (".py", ".md") or name.startswith("fixtures/"):
            continue
        if name == "tests/test_words.py":
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if (match := UNSAID.search(line) or UNUSUAL.search(line)) is not None:
                found.append(f"{name}:{number}: {match[0]}")
    assert found == []
