"""Build what a release consists of into `dist/`: `make release`. It uploads nothing.

That is Dragoman, and the plugin for pytest, which is a distribution of its own. A wheel is built
from its source distribution, so that what is in that is enough.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PLUGIN = REPOSITORY / "proxy" / "tools" / "pytest_plugin"
BUILD = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"


def missing(version: str, changelog: str, address: str) -> list[str]:
    """Say what keeps a version from being released; see `docs/releasing.md`."""
    found = []
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(
            f"CHANGELOG.md has no section for version {version}: put a line like"
            f" `## {version} - 2026-01-31` below `## Unreleased`."
        )
    if "/OWNER/" in address:
        found.append(
            "pyproject.toml does not say where the repository is: replace OWNER in `project.urls`."
        )
    return found


def build(source: Path, target: Path) -> tuple[Path, Path]:
    """Build the source distribution in `target`, and from it the wheel; return both."""
    sdist = _built(source, "sdist", target)
    with tempfile.TemporaryDirectory(prefix="dragoman-release-") as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        return sdist, _built(unpacked, "wheel", target)


def _built(source: Path, kind: str, target: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, f"build_{kind}", target],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the {kind} cannot be built:\n{done.stdout}{done.stderr}")
    return target / done.stdout.splitlines()[-1]


def build_all(repository: Path) -> list[Path]:
    """Build Dragoman and the plugin into the `dist/` of the repository; return the files."""
    sources = (repository, repository / PLUGIN.relative_to(REPOSITORY))
    return [built for source in sources for built in build(source, repository / "dist")]


def release(repository: Path) -> list[Path]:
    """Build a release of the repository into its `dist/`; return the files."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    if found := missing(project["version"], changelog, project["urls"]["Repository"]):
        sys.exit("\n".join(found))
    return build_all(repository)


if __name__ == "__main__":
    unreleased = sys.argv[1:] == ["--unreleased"]
    for built in build_all(REPOSITORY) if unreleased else release(REPOSITORY):
        sys.stdout.write(f"{built.relative_to(REPOSITORY)}\n")
