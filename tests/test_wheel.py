"""What is built: the wheel with everything below `dragoman`, its page, and what a release needs.

`make wheel-steps` runs the marked test. It installs the wheel beside packages of the same names.
"""

from __future__ import annotations

import ast
import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import dragoman
from hatch_build import MOVED, NotMovable, absolute, rewritten
from proxy import __version__
from proxy.cli import CommandGroup, main
from tests.release import PLUGIN, build, missing, release

pytestmark = pytest.mark.pages

REPOSITORY = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("from proxy import clock\n", "from dragoman.proxy import clock\n"),
        ("from adapters.eve import A as B", "from dragoman.adapters.eve import A as B"),
        ("from proxy.x import (\n    a,\n)\n", "from dragoman.proxy.x import (\n    a,\n)\n"),
        ("from \\\n  proxy.x import a\n", "from \\\n  dragoman.proxy.x import a\n"),
        ("import os, proxy.x as y\n", "import os, dragoman.proxy.x as y\n"),
        (
            "def f():\n    'é'; from proxy import a; from adapters import b\n",
            "def f():\n    'é'; from dragoman.proxy import a; from dragoman.adapters import b\n",
        ),
        ("if x:\n\tfrom proxy import a\n", "if x:\n\tfrom dragoman.proxy import a\n"),
        ("'\x0c'\nfrom proxy import a\n", "'\x0c'\nfrom dragoman.proxy import a\n"),
        ('x = f"{y} -m proxy request"\n', 'x = f"{y} -m dragoman.proxy request"\n'),
        ('f"{{x}} -m proxy{y}-m proxy"\n', 'f"{{x}} -m dragoman.proxy{y}-m dragoman.proxy"\n'),
        (
            '"""Run:\n\n`python -m proxy.scripted` or\n-m adapters\n"""\n',
            '"""Run:\n\n`python -m dragoman.proxy.scripted` or\n-m dragoman.adapters\n"""\n',
        ),
    ],
)  # fmt: skip
def test_what_a_module_imports_and_runs_is_below_dragoman(source: str, wanted: str) -> None:
    assert rewritten(source) == wanted
    ast.parse(wanted)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "from . import proxy\nfrom .proxy import a\n",
        "import proxying\nfrom adapters_of import x\nimport aiohttp.proxy\nfrom x import proxy\n",
        "# from proxy import a\n",
        'x = "from proxy import a"\n',
        'x = "the proxy says", "proxy-key", "/proxy", "adapters/eve", "-m proxying"\n',
        "proxy = adapters.proxy\n",
        'x = f"{y}proxy{z}"\n',
    ],
)
def test_all_else_in_a_module_stays_as_it_is(source: str) -> None:
    assert rewritten(source) == source


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import proxy\n", "line 1: write `from … import …` for `import proxy`"),
        (
            "\nimport os, adapters.eve\n",
            "line 2: write `from … import …` for `import adapters.eve`",
        ),
        ("f('proxy.journal')\n", "line 1: use `__name__` or `__package__` for 'proxy.journal'"),
        ("f('adapters')\n", "line 1: use `__name__` or `__package__` for 'adapters'"),
    ],
)
def test_what_would_mean_another_thing_below_dragoman_is_refused(source: str, told: str) -> None:
    with pytest.raises(NotMovable, match=f"^{re.escape(told)}$"):
        rewritten(source)


def test_relative_links_of_a_page_become_absolute() -> None:
    page = (
        "[a](docs/cli.md#b) [c](https://x.example/) [d](#e) [f](LICENSE) f(docs) []() [g](mailto:h)"
    )
    assert absolute(page, "https://x.example/v1") == (
        "[a](https://x.example/v1/docs/cli.md#b) [c](https://x.example/) [d](#e)"
        " [f](https://x.example/v1/LICENSE) f(docs) []() [g](mailto:h)"
    )


def unpacked(wheel: Path, folder: Path) -> set[str]:
    """Unpack a wheel; return the names of its files."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        return set(archive.namelist())


def information(names: set[str]) -> str:
    """Return the folder of a wheel that has what is known about it."""
    (folder,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
    return folder


def imported(source: str) -> Iterator[str]:
    """Yield the top-level packages that a module imports."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name.partition(".")[0] for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]


def tracked(*folders: str) -> set[Path]:
    """Return the files below folders of the repository, but for what Python made of them, and for
    the plugin, which is a distribution of its own."""
    return {
        file.relative_to(REPOSITORY)
        for folder in folders
        for file in (REPOSITORY / folder).rglob("*")
        if file.is_file() and file.suffix != ".pyc" and not file.is_relative_to(PLUGIN)
    }


def described(folder: Path) -> Message:
    return Parser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))


IMPORT_ALL = """
import pkgutil, importlib, sys
sys.path.insert(0, sys.argv[1])
for name in ("adapters", "proxy"):
    sys.modules[name] = None
import dragoman
for module in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
    importlib.import_module(module.name)
from dragoman.adapters.registry import DIALECTS
from dragoman.proxy.config import matrix
from dragoman.proxy.journal import _database
assert all(matrix.mapping_of(name) for name in DIALECTS) and matrix.load_numbers()
assert _database._migrations()
assert all(module.__file__.startswith(sys.argv[1]) for name, module in sys.modules.items()
           if name.startswith("dragoman"))
print(dragoman.__version__)
"""
"""Imports all modules of an unpacked wheel where nothing has the names `adapters` and `proxy`."""


def test_a_wheel_has_everything_below_dragoman_and_works_without_the_other_names(
    tmp_path: Path,
) -> None:
    _, wheel = build(REPOSITORY, tmp_path)
    names = unpacked(wheel, tmp_path / "wheel")
    about = information(names)
    assert {name.split("/")[0] for name in names} == {"dragoman", about}

    moved = {f"dragoman/{file}" for file in tracked(*MOVED)}
    assert {name for name in names if not name.startswith(about)} == moved | {
        str(file) for file in tracked("dragoman")
    }
    for name in names - {name for name in names if name.startswith(about)}:
        in_wheel = (tmp_path / "wheel" / name).read_bytes()
        if name.endswith(".py"):
            assert not set(imported(in_wheel.decode())) & set(MOVED), name
        else:
            original = name.removeprefix("dragoman/") if name in moved else name
            assert in_wheel == (REPOSITORY / original).read_bytes(), name

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL, str(tmp_path / "wheel")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n"), done.stderr

    folder = tmp_path / "wheel" / about
    script = "dragoman = dragoman.__main__:main"
    assert script in (folder / "entry_points.txt").read_text().splitlines()
    page = described(folder)
    assert page["Version"] == __version__
    assert page["Keywords"]
    assert {url.split(",")[0] for url in page.get_all("Project-URL", [])} >= {"Repository"}
    text = str(page.get_payload())
    assert text.startswith("# Dragoman\n")
    assert f"/blob/v{__version__}/docs/cli.md)" in text
    assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link] == []


EDITABLE = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"


def test_an_editable_install_is_one_line_with_the_repository(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", EDITABLE, tmp_path], cwd=REPOSITORY, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = unpacked(wheel, tmp_path / "wheel")
    about = information(names)
    assert {name for name in names if not name.startswith(about)} == {"_dragoman.pth"}
    assert (tmp_path / "wheel" / "_dragoman.pth").read_text().split("\n") == [str(REPOSITORY)]
    script = "dragoman = dragoman.__main__:main"
    assert script in (tmp_path / "wheel" / about / "entry_points.txt").read_text().splitlines()


def test_the_version_is_the_same_wherever_it_stands() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == __version__ == dragoman.__version__
    named = re.findall(r"dragoman-(\S+?)-py3", (REPOSITORY / "README.md").read_text("utf-8"))
    assert set(named) == {__version__}


# Releases.

ADDRESS = "https://github.com/someone/dragoman"


@pytest.mark.parametrize(
    "changelog",
    [
        "## Unreleased\n",
        "## Unreleased\n\n## 1.2.30 - 2026-01-31\n",
        "## 1.2.3\n",
        "### 1.2.3 - 2026-01-31\n",
        "## 1x2.3 - 2026-01-31\n",
    ],
)
def test_a_version_without_a_dated_section_in_the_changelog_is_not_released(changelog: str) -> None:
    (told,) = missing("1.2.3", changelog, ADDRESS)
    assert told.startswith("CHANGELOG.md has no section for version 1.2.3: put a line like")
    (line,) = re.findall(r"`(## 1\.2\.3 .*?)`", told)
    assert missing("1.2.3", f"{changelog}\n{line}\n", ADDRESS) == []


def test_a_version_whose_repository_is_not_known_is_not_released() -> None:
    changelog = "## Unreleased\n\n## 1.2.3 - 2026-01-31\n"
    (told,) = missing("1.2.3", changelog, "https://github.com/OWNER/dragoman")
    assert "replace OWNER in `project.urls`" in told
    assert missing("1.2.3", changelog, ADDRESS) == []


def copied(target: Path) -> Path:
    """Copy what a release is built from, with all that it needs to be one."""
    for name in ("adapters", "dragoman", "proxy"):
        shutil.copytree(
            REPOSITORY / name, target / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("hatch_build.py", "pyproject.toml", "CHANGELOG.md", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, target / name)
    project = target / "pyproject.toml"
    project.write_text(project.read_text().replace("/OWNER/", "/someone/"))
    return target


def test_a_release_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    repository = copied(tmp_path)
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    with pytest.raises(SystemExit, match=r"^CHANGELOG.md has no section for version"):
        release(repository)
    assert not (repository / "dist").exists()


def test_a_release_has_its_version_its_changelog_and_links_to_its_tag(tmp_path: Path) -> None:
    repository = copied(tmp_path)
    changelog = f"# Changelog\n\n## Unreleased\n\n## {__version__} - 2026-01-31\n"
    (repository / "CHANGELOG.md").write_text(changelog)
    built = release(repository)
    assert set(built) == set((repository / "dist").iterdir())
    name = f"dragoman-{__version__}"
    assert [file.name for file in built] == [
        f"{one}{end}"
        for one in (name, f"pytest_{name}")
        for end in (".tar.gz", "-py3-none-any.whl")
    ]
    sdist, wheel, _, plugin = built
    assert {one for one in unpacked(plugin, tmp_path / "plugin") if ".dist-info/" not in one} == {
        "pytest_dragoman.py"
    }
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    assert (tmp_path / "unpacked" / name / "CHANGELOG.md").read_text() == changelog
    names = unpacked(wheel, tmp_path / "wheel")
    page = described(tmp_path / "wheel" / information(names))
    assert f"]({ADDRESS}/blob/v{__version__}/LICENSE)" in str(page.get_payload())


# The wheel in use.

BESIDE = """
adapters==1.3.0 --hash=sha256:c0620b1b98df4af3876aa1e053ba43d0a19d82e62fc6a3ebc67d158183e07919
proxy.py==2.4.10 --hash=sha256:ef3a31f6ef3be6ff78559c0e68198523bfe2fb1e820bb16686750c1bb5baf9e8
"""
"""Distributions that have the packages `adapters` and `proxy` at the top."""

RECORDED = REPOSITORY / "fixtures" / "cases" / "engine-ping-done.sse"

SECONDS = 120
"""What a command may take on a slow machine."""


class Installed:
    """A virtual environment with the wheel, and a folder of a user that has a package `proxy`."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        (self.home / "proxy").mkdir(parents=True)
        (self.home / "proxy" / "__init__.py").write_text("raise ImportError('of the user')\n")
        (self.home / "adapters.py").write_text("raise ImportError('of the user')\n")
        venv.create(folder / "venv", with_pip=True)
        self.bin = folder / "venv" / "bin"
        self.environment = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.home)} | {
            name: value
            for name, value in os.environ.items()
            if name.startswith("PIP_") or name in {"SSL_CERT_FILE", "TMPDIR"}
        }

    def run(self, *command: str | Path, given: str = "") -> str:
        """Run a program of the environment in the user's folder; return what it prints."""
        program, *arguments = command
        done = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.home,
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=3 * SECONDS,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def serving(self, *command: str) -> Iterator[str]:
        """Run a server on a free port and yield its address; it must end when it is told to."""
        program, *arguments = command
        with subprocess.Popen(
            [self.bin / program, *arguments],
            cwd=self.home,
            env=self.environment | {"DRAGOMAN_SERVER__LISTEN": "127.0.0.1:0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            try:
                assert server.stdout
                address = re.search(r"listening on (http://\S+)", server.stdout.readline())
                assert address, command
                yield address[1]
                server.send_signal(signal.SIGTERM)
                assert server.wait(SECONDS) == 0
            finally:
                server.kill()


def status(address: str, path: str) -> int:
    """Ask a server, and return the status of its answer."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of all commands, those of groups too."""
    for name, command in group.commands.items():
        yield (*above, name)
        if isinstance(group, CommandGroup):
            command = group.loaded(name)
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)


@pytest.mark.wheel
@pytest.mark.timeout(1200)  # of one that hangs
def test_the_wheel_works_beside_other_packages_of_the_same_names(tmp_path: Path) -> None:
    _, wheel = build(REPOSITORY, tmp_path)
    installed = Installed(tmp_path)
    pip = ("python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps")
    pins = tmp_path / "beside.txt"
    pins.write_text(BESIDE)
    for lock in (REPOSITORY / "requirements" / "run.txt", pins):
        installed.run(*pip, "--require-hashes", "--only-binary", ":all:", "-r", lock)
    installed.run(*pip, "--no-index", wheel)
    # Where pip puts packages, the other two are what is found by these names.
    where = (
        "import importlib.util as u; print(*(u.find_spec(n).origin for n in ('adapters', 'proxy')))"
    )
    for origin in installed.run("python", "-I", "-c", where).split():
        assert Path(origin).is_relative_to(tmp_path / "venv")

    assert isinstance(main, click.Group)
    for words in commands(main):
        assert f"dragoman {' '.join(words)} " in installed.run("dragoman", *words, "--help")
    assert "Usage" in installed.run("python", "-m", "dragoman", "--help")
    installed.run("dragoman", "demo", "--check")
    assert installed.run("dragoman", "matrix") == CliRunner().invoke(main, ["matrix"]).stdout
    translate = ["translate", "--from", "engine", "--to", "herm", str(RECORDED)]
    assert installed.run("dragoman", *translate) == CliRunner().invoke(main, translate).stdout
    with installed.serving("dragoman", "serve") as address:
        assert status(address, "/healthz") == 200
    for dialect in ("herm", "eve", "engine"):
        with installed.serving("dragoman", "scripted", dialect) as address:
            assert status(address, "/no/such/route") == 404
