"""The libraries of the page are what `versions.json` names; part `ui` compares them with npm."""

from __future__ import annotations

import re

import pytest

from tests.vendored import (
    LICENSES,
    PLACES,
    VENDOR,
    NotFromNpm,
    read_versions,
    relative,
    sha256,
)

MEMBERS = {"package", "version", "integrity", "file", "sha256", "license"}


def test_each_library_has_the_hash_that_is_written_down() -> None:
    for name, entry in read_versions().items():
        assert entry.keys() == MEMBERS, name
        assert sha256((VENDOR / name).read_bytes()) == entry["sha256"], (
            f"{name} was changed: python -m tests.vendored --write makes it anew"
        )


def test_every_file_there_is_listed() -> None:
    listed = {*read_versions(), "versions.json", LICENSES.name}
    assert {path.name for path in VENDOR.iterdir()} == listed


def test_the_text_of_each_license_is_there() -> None:
    text = LICENSES.read_text("utf-8")
    for entry in read_versions().values():
        assert f"{entry['package']}\n===" in text


def test_a_library_imports_only_what_is_beside_it() -> None:
    for name in read_versions():
        text = (VENDOR / name).read_text("utf-8")
        for place in re.findall(r"""\b(?:from|import)\s*\(?["']([^"']+)["']""", text):
            assert place in PLACES.values(), name
            assert (VENDOR / place).is_file(), name
        assert "sourceMappingURL" not in text, name


@pytest.mark.parametrize(
    ("npms", "here"),
    [
        ('import{h as e}from"preact";x()', 'import{h as e}from"./preact.js";x()'),
        ("export{a}from'@preact/signals-core'", "export{a}from'./signals-core.js'"),
        ('import "preact/hooks";', 'import"./hooks.js";'),
        ("x()\n//# sourceMappingURL=a.mjs.map\n", "x()\n"),
        ("x()", "x()"),
    ],
)
def test_names_of_packages_become_places_and_nothing_else_changes(npms: str, here: str) -> None:
    assert relative(npms) == here


def test_a_library_that_needs_another_package_is_refused() -> None:
    with pytest.raises(NotFromNpm, match="react-dom"):
        relative('import{x}from"react-dom"')
