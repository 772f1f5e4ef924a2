"""Compares the libraries of the page with npm, or makes them anew.

    python -m tests.vendored [--write]

`versions.json` beside them has, for each file, its package, version, npm's integrity of the
package, the file inside the package, the SHA-256 of what is here, and the license. For another
release change the version there and write. A file is npm's, but for the names of other packages,
which a browser cannot find, and the address of a source map. Needs npm, which needs no network
for what is in its cache.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["LICENSES", "VENDOR", "VERSIONS", "differences", "read_versions", "relative"]

VENDOR = Path(__file__).parents[1] / "proxy" / "ui" / "static" / "vendor"
VERSIONS = VENDOR / "versions.json"
LICENSES = VENDOR / "LICENSES.txt"

PLACES = {
    "preact": "./preact.js",
    "preact/hooks": "./hooks.js",
    "@preact/signals-core": "./signals-core.js",
}
"""The names by which the packages import each other, and where a browser finds them."""

_IMPORT = re.compile(r"""\b(from|import)\s*(["'])([^"']+)\2""")
_SOURCE_MAP = re.compile(r"\s*//# sourceMappingURL=\S+\s*\Z")

Versions = dict[str, dict[str, str]]


class NotFromNpm(Exception):
    """What npm has is not what is asked for."""


def read_versions() -> Versions:
    """Return file name -> what `versions.json` says of it."""
    found: Versions = json.loads(VERSIONS.read_text("utf-8"))
    return found


def sha256(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def relative(source: str) -> str:
    """Return a module of npm as it is here.

    Raises:
        NotFromNpm: it imports a package that is not here.
    """

    def replace(found: re.Match[str]) -> str:
        word, quote, name = found.groups()
        if name not in PLACES:
            raise NotFromNpm(f"it imports {name}, which has no place here")
        return f"{word}{quote}{PLACES[name]}{quote}"

    return _SOURCE_MAP.sub("\n", _IMPORT.sub(replace, source))


class Package:
    """A release of a package, from npm."""

    def __init__(self, name: str, version: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                ["npm", "pack", "--prefer-offline", "--loglevel=error", f"{name}@{version}"],
                cwd=folder,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            (archive,) = Path(folder).glob("*.tgz")
            digest = hashlib.sha512(archive.read_bytes()).digest()
            self.integrity = f"sha512-{base64.b64encode(digest).decode()}"
            self._files: dict[str, str] = {}
            with tarfile.open(archive) as members:
                for member in members:
                    if (file := members.extractfile(member)) is not None:
                        path = member.name.split("/", 1)[1]
                        self._files[path] = file.read().decode("utf-8", "replace")
        self.license: str = json.loads(self._files["package.json"])["license"]
        self.license_text = self._files["LICENSE"].strip()

    def module(self, path: str) -> str:
        """Return a file of it as it is here."""
        return relative(self._files[path])


def licenses(packages: Mapping[str, Package]) -> str:
    """Return the texts of the licenses, each under the name of its package."""
    parts = [f"{name}\n{'=' * len(name)}\n\n{one.license_text}\n" for name, one in packages.items()]
    return "\n\n".join(parts)


def from_npm(versions: Versions) -> tuple[dict[str, str], Versions]:
    """Return the files as they should be here by name, and what `versions.json` should say."""
    packages: dict[str, Package] = {}
    files: dict[str, str] = {}
    said: Versions = {}
    for name, entry in versions.items():
        package = entry["package"]
        if package not in packages:
            packages[package] = Package(package, entry["version"])
        files[name] = packages[package].module(entry["file"])
        said[name] = {
            "package": package,
            "version": entry["version"],
            "integrity": packages[package].integrity,
            "file": entry["file"],
            "sha256": sha256(files[name].encode()),
            "license": packages[package].license,
        }
    files[LICENSES.name] = licenses(packages)
    return files, said


def differences() -> list[str]:
    """Return a line for each file that is not what npm has."""
    versions = read_versions()
    files, said = from_npm(versions)
    wrong = [
        f"{name}: versions.json says another {member} than npm"
        for name, entry in said.items()
        for member in entry
        if versions[name].get(member) != entry[member]
    ]
    return wrong + [
        f"{name} is not what npm has"
        for name, text in files.items()
        if not (VENDOR / name).exists() or (VENDOR / name).read_text("utf-8") != text
    ]


def main() -> int:
    """Compare or write; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.vendored", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make the files anew")
    if parser.parse_args().write:
        files, said = from_npm(read_versions())
        for name, text in files.items():
            (VENDOR / name).write_text(text, "utf-8")
        VERSIONS.write_text(json.dumps(said, indent=2) + "\n", "utf-8")
        return 0
    wrong = differences()
    print("\n".join(f"FAIL {line}" for line in wrong) or "PASS the libraries are those of npm")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
