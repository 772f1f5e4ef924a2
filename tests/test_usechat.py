"""The example page for AI SDK UI: the documentation quotes what `make peers` runs in a browser, and
shows what that drew.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
EXAMPLE = REPOSITORY / "docs" / "examples" / "usechat"
PAGE = REPOSITORY / "docs" / "dialects" / "aisdk.md"
PICTURE = REPOSITORY / "docs" / "usechat.png"
PICTURE_MOST = 150_000
"""Bytes of the picture."""


def test_the_documentation_quotes_the_component_that_was_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    (quoted,) = re.findall(r"^```jsx\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    component = (EXAMPLE / "src" / "Minimal.jsx").read_text(encoding="utf-8")
    assert quoted == component
    assert len(component.splitlines()) == 12


def test_the_page_runs_the_component_and_the_browser_runs_the_page() -> None:
    assert "<Minimal />" in (EXAMPLE / "src" / "main.jsx").read_text(encoding="utf-8")
    driver = REPOSITORY / "tests" / "peers" / "aisdk" / "page" / "run.mjs"
    assert "?minimal`" in driver.read_text(encoding="utf-8")


def test_the_picture_is_small_and_shown() -> None:
    data = PICTURE.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert 600 <= width <= 1200, (width, height)
    assert len(data) < PICTURE_MOST
    assert "](../usechat.png)" in PAGE.read_text(encoding="utf-8")


def test_its_packages_are_exact_and_locked() -> None:
    package = json.loads((EXAMPLE / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((EXAMPLE / "package-lock.json").read_text(encoding="utf-8"))
    for name, version in (package["dependencies"] | package["devDependencies"]).items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
    assert all("integrity" in one for path, one in lock["packages"].items() if path)
