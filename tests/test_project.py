"""The project around the code: addresses, lock files, and that what documents name exists."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from proxy.cli import main

REPOSITORY = Path(__file__).parent.parent
LOCKS = ("requirements/build.txt", "requirements/run.txt", "requirements/test.txt")

PUBLIC_HOSTS = {
    "github.com": "where the facts in comments come from, and projects that we name",
    "www.apache.org": "the text of the licence",
    "keepachangelog.com": "the form of CHANGELOG.md",
    "www.rfc-editor.org": "the standards that we cite",
    "html.spec.whatwg.org": "the standard of server-sent events",
    "www.sqlite.org": "the source of the journal's settings",
    "docs.python.org": "the library that we cite",
    "docs.aiohttp.org": "the library that we cite",
    "opentelemetry.io": "the standard whose variables we name",
    "www.w3.org": "the name of the format of pictures",
    "hermes-agent.nousresearch.com": "the documentation of a peer, in its own recorded words",
    "docs.langchain.com": "where the library explains its errors, in its own recorded words",
    "errors.pydantic.dev": "where the library explains its errors, in its own recorded words",
    "api.anthropic.com": "the public service whose dialect is managed-agents",
}
"""Hosts that anybody can reach, each with the reason why a file may name it."""

RESERVED = (
    ".example",
    ".invalid",
    ".localhost",
    ".test",
    "example.com",
    "example.net",
    "example.org",
)
"""Names that never belong to anybody: RFC 2606, sections 2 and 3, and RFC 6761."""

URL = re.compile(
    r"\b(?:https?|wss?|ftp|ssh|git|postgresql|redis)://(?:[^\s/@'\"<>]*@)?(\[[0-9a-f:]+\]|\w[\w.-]*)"
)


SECTION_LINK = re.compile(r"\[[^\[\]]+\]\((https://\S+)\)")


def repository_files() -> list[Path]:
    """Return the files that are tracked or would be; all of them without a git checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        files = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
        return [file for file in files if file.is_file()]
    return list(walk(REPOSITORY))


def walk(folder: Path) -> Iterator[Path]:
    for entry in os.scandir(folder):
        if entry.is_file():
            yield Path(entry.path)
        # Names with a dot are the environment and caches, but for the folders of CI.
        elif entry.name not in {"node_modules", "__pycache__"} and (
            entry.name in {".ci", ".github"} or not entry.name.startswith(".")
        ):
            yield from walk(Path(entry.path))


def is_nobodys(host: str) -> bool:
    """Tell whether the host is this machine, reserved for examples, or a word like HOST."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost" or host.isupper() or f".{host}".endswith(RESERVED)
    # Addresses for documentation (RFC 5737, RFC 3849); `is_private` would let real networks pass.
    documentation = ("192.0.2.", "198.51.100.", "203.0.113.", "2001:db8:")
    return address.is_loopback or address.is_unspecified or str(address).startswith(documentation)


def linked_hosts() -> set[str]:
    """Return the hosts of the protocols' own pages, to which the tables of the dialects link."""
    return {
        match[1].lower()
        for page in (REPOSITORY / "adapters").glob("*/MAPPING.md")
        for link in SECTION_LINK.findall(page.read_text(encoding="utf-8"))
        if (match := URL.match(link)) is not None
    }


def foreign_hosts(text: str) -> set[str]:
    """Return the hosts of the URLs in `text` that are neither public and listed nor nobody's."""
    hosts = {
        match[1].rstrip(".").lower() if not match[1].isupper() else match[1]
        for match in URL.finditer(text)
    }
    return {host for host in hosts if host not in PUBLIC_HOSTS and not is_nobodys(host)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://github.com/aio-libs", set()),
        ("http://127.0.0.1:8787/x ws://[::1]:80 http://localhost http://0.0.0.0:1", set()),
        ("https://api.example.com https://plants.example http://HOST:PORT http://{host}/", set()),
        ("https://mirror.corp.internal/simple", {"mirror.corp.internal"}),
        ("--index-url http://user:word@10.1.2.3:8080/simple", {"10.1.2.3"}),
        ("registry = 'http://registry:4873/'", {"registry"}),
        ("https://github.com.evil.net/", {"github.com.evil.net"}),
    ],
)
def test_the_search_for_addresses_finds_the_ones_that_are_not_public(
    text: str, found: set[str]
) -> None:
    assert foreign_hosts(text) == found


def test_no_file_names_a_host_that_is_not_public() -> None:
    own = Path(__file__)
    linked = linked_hosts()
    named = {
        f"{file.relative_to(REPOSITORY)}: {host}"
        for file in repository_files()
        if file != own
        for host in foreign_hosts(file.read_text("utf-8", errors="ignore")) - linked
    }
    assert named == set(), (
        "a host that anybody can reach is listed in `PUBLIC_HOSTS` with its reason; the pages of a "
        "protocol are linked in the `section` column of its MAPPING.md"
    )


def test_no_file_has_a_conflict_of_a_merge_in_it() -> None:
    left = {
        f"{file.relative_to(REPOSITORY)}: {line}"
        for file in repository_files()
        for line in file.read_text("utf-8", errors="ignore").splitlines()
        if re.match(r"(<{7}|\|{7}|>{7})( |$)", line)
    }
    assert left == set()


def pins(lock: str) -> dict[str, str]:
    """Return name -> version of a requirements file, which has a hash for each and nothing else."""
    found: dict[str, str] = {}
    text = (REPOSITORY / lock).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        match = re.fullmatch(r"([a-z0-9-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", line)
        assert match, f"{lock} has more than pins with their hashes: {line[:100]}"
        found[match[1]] = match[2]
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_a_requirements_file_holds_pins_with_hashes_and_nothing_else(lock: str) -> None:
    assert pins(lock)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_everything_that_its_packages_need(lock: str) -> None:
    """pip looks nothing up: a package that is not in the lock is not there."""
    pinned = pins(lock)
    missing = {
        f"{name} needs {wanted}"
        for name in pinned
        for wanted in map(Requirement, installed_requirements(name))
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if (version := pinned.get(canonicalize_name(wanted.name))) is None
        or not wanted.specifier.contains(version)
    }
    assert missing == set()


def installed_requirements(name: str) -> list[str]:
    return metadata.requires(name) or []


def test_no_lock_file_of_npm_names_where_a_package_came_from() -> None:
    for file in repository_files():
        if file.name == "package-lock.json":
            text = file.read_text()
            assert "://" not in text, file
            for name, package in json.loads(text)["packages"].items():
                assert "resolved" not in package, f"{file}: {name}"


def test_the_pins_are_what_the_project_asks_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    build, run, test = (pins(lock) for lock in LOCKS)
    asked = {
        "build": (build, project["build-system"]["requires"]),
        "run": (run, project["project"]["dependencies"]),
        "otel": (run, project["project"]["optional-dependencies"]["otel"]),
        "postgres": (run, project["project"]["optional-dependencies"]["postgres"]),
        "uvloop": (run, project["project"]["optional-dependencies"]["uvloop"]),
        "test": (test, project["dependency-groups"]["test"]),
    }
    for part, (pinned, requirements) in asked.items():
        for requirement in map(Requirement, requirements):
            assert requirement.specifier.contains(pinned[requirement.name]), (part, requirement)
    assert run.items() | build.items() <= test.items()


INSTALLS = re.compile(
    r"\b(?:pip[\d.]*|pipx|uv|npm|pnpm|yarn|apt|apt-get|brew|cargo)(?: -\S+)*"
    r" (?:install|add|ci|i|sync|update|upgrade|exec|dlx)\b[^\n`;&|]*"
    r"|\b(?:npx|uvx) [^\n`;&|]*"
)
EXACT = (
    r"pip install --require-hashes --no-deps --only-binary :all: ",  # a lock with all there is
    r"pip install --no-index --no-deps ",  # what is here already
    r"npm ci .*--ignore-scripts --legacy-peer-deps",  # a lock with all there is
    r"npm install --package-lock-only ",  # makes a lock
    r"apt(-get)? (update|install) ",  # tools of any version that the system has
    r"brew install python@3\.13\b",
    r"uvx --with-requirements requirements/run\.txt --from dist/",  # our wheel and its lock
    r"pipx install '?dist/",  # our wheel, for people: what it needs by its own bounds
    r"pip install pytest dist/pytest_dragoman-",  # the same, beside their own tests
)
"""Ways to install whose outcome no new release of a package changes."""


def installing_lines() -> set[str]:
    """Return what the project's own files install, each by the command that does it."""
    files = [REPOSITORY / name for name in ("Makefile", "Dockerfile", ".ci/run")]
    files += [page for page in pages() if page.name != "CHANGELOG.md"]
    files += [
        file
        for file in repository_files()
        if file.is_relative_to(REPOSITORY / "tests" / "peers")
        and file.suffix in {".sh", ".py", ".mjs"}
    ]
    text = "\n".join(file.read_text() for file in files)
    # As the shell would read it: a line that goes on is one, and these names stand for programs.
    text = re.sub(r"\s*\\\n\s*", " ", text)
    text = text.replace("$(PIP)", "pip").replace('"$@" ci', "npm ci")
    return {match[0].strip() for match in INSTALLS.finditer(text)}


def test_no_new_release_of_a_package_changes_what_is_installed() -> None:
    found = installing_lines()
    assert {line for line in found if not any(re.match(way, line) for way in EXACT)} == set()
    # Each way is met with: the search finds what there is.
    assert [way for way in EXACT if not any(re.match(way, line) for line in found)] == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install --require-hashes --only-binary :all: -r requirements/test.txt",
        "python -m pip install build",
        "npx eve@0.80.1 remote connect",
        "npm install --no-save eve@0.80.1",
        "uv pip install -r requirements/run.txt",
        "pipx install dragoman",
    ],
)
def test_the_search_for_installs_finds_the_ones_that_look_for_the_newest(line: str) -> None:
    (found,) = INSTALLS.findall(line)
    assert not any(re.match(way, found) for way in EXACT)


def test_an_install_from_a_lock_is_followed_by_a_look_at_what_is_missing() -> None:
    for name in ("Makefile", "Dockerfile"):
        text = (REPOSITORY / name).read_text()
        environments = set(re.findall(r"(\S+ -m pip|\$\(PIP\)) install", text))
        checked = set(re.findall(r"(\S+ -m pip|\$\(PIP\)) check", text))
        assert environments
        assert environments == checked


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))


def pages() -> list[Path]:
    """Return the Markdown files that we write: those of fixtures are other people's."""
    return [
        file
        for file in repository_files()
        if file.suffix == ".md" and "fixtures" not in file.relative_to(REPOSITORY).parts
    ]


def test_every_make_target_that_a_page_names_exists() -> None:
    readme = re.findall(r"\bmake ([a-z-]+)", (REPOSITORY / "README.md").read_text())
    assert readme
    code = {
        name
        for page in pages()
        for name in re.findall(r"(?:`|^\s*\$? ?)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert {*readme, *code} - make_targets() == set()


def test_every_target_of_the_makefile_is_explained() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    explained = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    assert explained == make_targets()
    assert set(re.findall(r"^\.PHONY: (.*)", makefile, re.MULTILINE)[0].split()) == make_targets()


def test_every_link_to_a_file_leads_somewhere() -> None:
    broken = {
        f"{page.relative_to(REPOSITORY)}: {target}"
        for page in pages()
        for target in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", page.read_text())
        if not (page.parent / target).exists()
    }
    assert broken == set()


def test_every_page_that_a_file_names_exists() -> None:
    missing = {
        f"{file.relative_to(REPOSITORY)}: {name}"
        for file in repository_files()
        if "fixtures" not in file.relative_to(REPOSITORY).parts
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text("utf-8", errors="ignore"))
        if not (REPOSITORY / name).exists()
    }
    assert missing == set()


def test_every_command_has_its_section_in_the_documentation() -> None:
    assert isinstance(main, click.Group)
    page = (REPOSITORY / "docs" / "cli.md").read_text()
    sections = set(re.findall(r"^#{2,4} +`?(?:dragoman )?([a-z][a-z-]*)", page, re.MULTILINE))
    assert set(main.commands) - sections == set()
    named = set(re.findall(r"^#{2,4} +`?dragoman ([a-z][a-z-]*)", page, re.MULTILINE))
    assert named - set(main.commands) == set()


def test_the_changelog_says_what_is_not_released_yet() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    unreleased = re.search(r"^## \[?Unreleased\]?\s*$(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    assert unreleased
    assert re.search(r"^- \S", unreleased[1], re.MULTILINE)


# The tests themselves.

SKIPPED = """
import pytest

@pytest.mark.skip(reason="not on this system")
def test_marked(): ...

def test_inside(): pytest.skip("not on this system")

@pytest.mark.xfail(reason="not mended yet")
def test_expected(): raise AssertionError
"""


def test_what_is_skipped_or_expected_to_fail_fails_in_ci(tmp_path: Path) -> None:
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--rootdir", tmp_path, tmp_path],
        cwd=REPOSITORY,
        env={**os.environ, "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout
    assert "2 failed, 1 error" in ran.stdout
    assert ran.stdout.count("no test may be skipped in CI") == 6, ran.stdout
