"""What we write is what people say: "is not a URL", never "is no URL"; and no page is long."""

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

WORDS_MOST = 1_800
"""Words of a page in `docs/`, but for what programs write."""

PAGES = sorted(
    file.relative_to(REPOSITORY).as_posix()
    for file in repository_files()
    if file.suffix == ".md" and file.is_relative_to(REPOSITORY / "docs")
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_docs_can_be_read_in_one_go(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    words = re.findall(r"\S*\w\S*", MADE.sub("", text))
    written = "\nWritten by `python -m" in text
    assert written or 50 < len(words) <= WORDS_MOST, "say less, or make two pages of it"


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
