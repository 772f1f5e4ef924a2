"""What we write is what people say: "is not a URL", never "is no URL"; and no page is long."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

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

STILTED = re.compile(
    r"(?<!\beach )(?<!\bone )(?<!\bsome )(?<!\bmost )(?<!\ball )(?<!\bboth )(?i:\bof which\b)"
    r"|(?i:\bthat which\b)"
    r"|(?<!\b[Tt]here )\bis none\b"
    # The results of a measurement that is kept say this.
    r"|\bnone is\b(?! refused)"
)
"""Looked for in documents, docstrings and comments only: a message may be as short as it likes."""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a message of which it shows so many steps", "of which"),
        ("Of which nothing is known", "Of which"),
        ("what becomes of that which waits", "that which"),
        ("an answer that is none", "is none"),
        ("a token that is none of ours", "is none"),
        ("post it if none is on its way", "none is"),
        ("that none is to stay", "none is"),
        ("None is for ever", None),
        ("two threads, each of which ends", None),
        ("None where there is none", None),
        ("it is None where the body ends", None),
        ("`x is None`", None),
        ("one that is not one of ours", None),
    ],
)
def test_the_search_finds_stilted_sentences(text: str, found: str | None) -> None:
    match = STILTED.search(text)
    assert (match and match[0]) == found


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of the comments and docstrings of a module, with their numbers."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
            yield from enumerate(lines, node.lineno)


def test_prose_is_comments_and_docstrings() -> None:
    source = '"""A module."""\nx = "of which"  # Why.\nif x is None:\n    """A\n    text."""\n'
    lines = [(2, "# Why."), (1, '"""A module."""'), (4, '    """A'), (5, '    text."""')]
    assert list(prose_of(source)) == lines


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
        text = file.read_text(encoding="utf-8")
        lines = list(enumerate(text.splitlines(), 1))
        for number, line in lines:
            if (match := UNSAID.search(line) or UNUSUAL.search(line)) is not None:
                found.append(f"{name}:{number}: {match[0]}")
        # To take a module apart costs time: few have such words at all.
        if STILTED.search(text) is not None:
            for number, line in prose_of(text) if file.suffix == ".py" else lines:
                if (match := STILTED.search(line)) is not None:
                    found.append(f"{name}:{number}: {match[0]}")
    assert found == []
