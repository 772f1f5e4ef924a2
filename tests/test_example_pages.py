"""The example pages: the documentation quotes what `make peers` runs in a browser, and shows it."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
DIALECTS = REPOSITORY / "docs" / "dialects"
EXAMPLES = REPOSITORY / "docs" / "examples"
PEERS = REPOSITORY / "tests" / "peers" / "page"
PICTURE = REPOSITORY / "docs" / "usechat.png"
PICTURE_MOST = 150_000
"""Bytes of the picture."""


@pytest.mark.parametrize(
    ("dialect", "language", "file"),
    [
        ("aisdk", "jsx", "usechat/src/OwnPage.jsx"),
        ("agui", "js", "copilotkit/runtime.mjs"),
        ("agui", "jsx", "copilotkit/src/Page.jsx"),
    ],
)
def test_the_documentation_quotes_first_what_was_run(
    dialect: str, language: str, file: str
) -> None:
    page = (DIALECTS / f"{dialect}.md").read_text(encoding="utf-8")
    quoted, *_ = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert quoted == (EXAMPLES / file).read_text(encoding="utf-8")
    # Before all rules.
    assert page.index(quoted) < page.index("\n## Conversations")


@pytest.mark.parametrize(("language", "file"), [("py", "agent.py"), ("toml", "dragoman.toml")])
def test_the_documentation_quotes_the_agent_that_both_pages_talk_to(
    language: str, file: str
) -> None:
    page = (DIALECTS / "agui.md").read_text(encoding="utf-8")
    quoted = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert quoted == [(EXAMPLES / "pydantic-ai" / file).read_text(encoding="utf-8")]
    driver = (PEERS / "pydantic-ai.mjs").read_text(encoding="utf-8")
    assert '"docs/examples/pydantic-ai"' in driver
    assert '"agent:app"' in driver
    assert '"dragoman.toml"' in driver


def test_the_page_runs_the_component_and_the_browser_runs_the_page() -> None:
    main = (EXAMPLES / "usechat" / "src" / "main.jsx").read_text(encoding="utf-8")
    assert "<OwnPage />" in main
    driver = (PEERS / "run.mjs").read_text(encoding="utf-8")
    assert "/?own`" in driver
    assert '"runtime.mjs"' in driver


def test_the_picture_is_small_and_shown() -> None:
    data = PICTURE.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert 600 <= width <= 1200, (width, height)
    assert len(data) < PICTURE_MOST
    assert "](../usechat.png)" in (DIALECTS / "aisdk.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("example", ["usechat", "copilotkit"])
def test_its_packages_are_exact_and_locked(example: str) -> None:
    package = json.loads((EXAMPLES / example / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((EXAMPLES / example / "package-lock.json").read_text(encoding="utf-8"))
    for name, version in (package["dependencies"] | package["devDependencies"]).items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
    assert all("integrity" in one for path, one in lock["packages"].items() if path)
