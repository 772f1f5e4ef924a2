"""`dragoman init`, and `serve` without a file: what they write, take and refuse."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.shell_completion import CompletionItem
from click.testing import CliRunner, Result

from adapters.registry import faces
from proxy import cli
from proxy.cli import serving
from proxy.cli.backends import BackendArgument, BackendParamType
from proxy.cli.init import configuration
from proxy.cli.serving import base_urls
from proxy.config.settings import Settings, load_settings
from tests.support.terminal import COLUMNS, run_in_terminal
from tests.test_cli_scripted import program

REPOSITORY = Path(__file__).parent.parent
CREDENTIALS = {"AGUI_KEY": "a", "ENGINE_KEY": "e", "EVE_KEY": "v", "OPS_1_KEY": "o"}
GIVEN = (
    BackendArgument("engine", "engine", "http://127.0.0.1:3001", ""),
    BackendArgument("ops-1", "eve", 'https://eve.example/"x"/', ""),
)
EXAMPLE = re.compile(r"(?:^#[^ \n].*\n)+", re.MULTILINE)
"""Settings that are not in force, up to an empty line or a comment."""


def run(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(cli.main, words, env=environ)


def load(folder: Path, text: str) -> Settings:
    file = folder / "dragoman.toml"
    file.write_text(text)
    return load_settings(file, CREDENTIALS)


# What is written.


@pytest.mark.parametrize("backends", [(), GIVEN[:1], GIVEN])
def test_what_is_written_loads_and_is_what_holds_by_default(
    tmp_path: Path, backends: Sequence[BackendArgument]
) -> None:
    settings = load(tmp_path, configuration(backends))
    assert settings.model_copy(update={"backends": ()}) == Settings()
    found = [(backend.name, backend.dialect, backend.url) for backend in settings.backends]
    assert found == [(backend.name, backend.dialect, backend.url) for backend in backends]


@pytest.mark.parametrize("backends", [(), GIVEN[:1], GIVEN])
def test_each_example_loads_when_its_marks_are_removed(
    tmp_path: Path, backends: Sequence[BackendArgument]
) -> None:
    text = configuration(backends)
    examples = list(EXAMPLE.finditer(text))
    # The others name backends.
    needed = [one for one in examples if one[0].startswith("#[[backends]]")]
    tables = set()
    for chosen in [*([*needed, one] for one in examples), examples]:
        taken = text
        for one in sorted(set(chosen), key=lambda one: one.start(), reverse=True):
            put = re.sub("^#", "", one[0], flags=re.MULTILINE)
            taken = taken[: one.start()] + put + taken[one.end() :]
        settings = load(tmp_path, taken)
        tables |= {name for name in Settings.model_fields if name in settings.model_fields_set}
    assert all(backend.credential is not None for backend in settings.backends)
    assert [key.admin for key in settings.keys] == [False, True]
    assert tables == {
        *("server", "journal", "retention", "backends", "routes", "keys", "listeners"),
    }


def paths(table: dict[str, Any], above: str = "") -> set[str]:
    """Return the keys below a table, spelled as the documentation does."""
    found: set[str] = set()
    for name, value in table.items():
        for one in value if isinstance(value, list) else [value]:
            found |= paths(one, f"{above}{name}.") if isinstance(one, dict) else {above + name}
    return found


def test_its_settings_are_in_the_documentation() -> None:
    everything = EXAMPLE.sub(
        lambda one: re.sub("^#", "", one[0], flags=re.MULTILINE), configuration()
    )
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    documented = set(re.findall(r"^\| `([a-z][\w.]+)` \|", page, re.MULTILINE))
    found = paths(tomllib.loads(everything))
    assert len(found) > 15
    assert found <= documented


def test_its_command_for_a_key_makes_what_the_setting_takes() -> None:
    (command,) = re.findall(r"^#     (KEY=.*)$", configuration(), re.MULTILINE)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    key, hashed = done.stdout.splitlines()
    assert len(key) == 64
    entry = {"name": "web", "sha256": hashed.split()[0]}
    assert Settings.model_validate({"keys": [entry]}).key("web") is not None


def test_names_of_backends_do_not_meet_that_of_the_route(tmp_path: Path) -> None:
    many = [BackendArgument(f"b{at}", "eve", f"http://127.0.0.1:{at + 1}", "") for at in range(150)]
    many.append(BackendArgument("main", "eve", "http://127.0.0.1:999", ""))
    text = EXAMPLE.sub(
        lambda one: one[0] if "auth" in one[0] else re.sub("^#", "", one[0], flags=re.MULTILINE),
        configuration(many),
    )
    (route,) = load(tmp_path, text).routes
    assert route.name == "main-route"
    assert len(route.backends) == len(many)


def test_a_file_is_replaced_only_by_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("init", "--backend", "engine=http://127.0.0.1:3001")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "wrote dragoman.toml\nstart it with `dragoman serve`\n"
    file = tmp_path / "dragoman.toml"
    first = file.read_text()
    assert 'url = "http://127.0.0.1:3001"' in first
    done = run("init")
    assert done.exit_code == 1
    assert done.stderr == (
        "dragoman: dragoman.toml is there already: name another file, or replace it with --force.\n"
    )
    assert file.read_text() == first
    done = run("init", "--force")
    assert done.exit_code == 0
    assert "add a backend: remove the # of a [[backends]], and write its url" in done.stderr
    assert file.read_text() == configuration()


def test_it_can_be_printed_and_named(tmp_path: Path) -> None:
    done = run("init", "-")
    assert (done.exit_code, done.stdout, done.stderr) == (0, configuration(), "")
    file = tmp_path / "my own.toml"
    done = run("init", str(file))
    assert f"start it with `dragoman serve --config '{file}'`" in done.stderr
    for bad, why in ((tmp_path / "no" / "d.toml", "no such folder"), (tmp_path, "name another")):
        done = run("init", str(bad))
        assert done.exit_code == 1
        assert why in done.stderr
    done = run("init", "--force", str(tmp_path))
    assert (done.exit_code, "is a folder" in done.stderr) == (1, True)
    done = run("init", "--force", "/proc/version")
    assert (done.exit_code, "cannot be written" in done.stderr) == (1, True)


# The options of `serve`.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--backend", "http://127.0.0.1:3001"],
            "'--backend': write DIALECT=URL or NAME:DIALECT=URL, with a dialect of herm, eve, "
            "engine, agui, managed-agents, hermes-agent, like engine=http://127.0.0.1:8000.",
        ),
        (["--backend", "aisdk=http://x.example"], "with a dialect of herm, eve, engine"),
        (
            ["--backend", "engine=127.0.0.1:3001"],
            "'--backend': the URL must begin with http:// or https:// and name a host.",
        ),
        (["--backend", "engine="], "the URL must begin with http:// or https://"),
        (
            ["--backend", "engine=http://a.example\x07"],
            "the URL holds characters that cannot stand in",
        ),
        (
            ["--backend", "ops:engine=http://u:p@x.example"],
            "the URL must not hold a credential, since it is shown in lists: put it into "
            "`OPS_KEY`.",
        ),
        (
            ["--backend", "a b:engine=http://x.example"],
            "'--backend': `a b` cannot be a name: it stands in",
        ),
        (["--backend", "dragoman:eve=http://x.example"], "another name: `DRAGOMAN_KEY` holds"),
        (["--backend", ":engine=http://x.example"], "'--backend': `` cannot be a name"),
        (
            ["--backend", "engine=http://x.example", "--backend", "engine=http://y.example"],
            "'--backend': two are named `engine`: write another name before one of them, like "
            "other:engine=http://y.example",
        ),
        (
            ["--listen", "8080"],
            "'--listen': `8080` is not an address: write HOST:PORT, like 127.0.0.1:8787.",
        ),
        (["--listen", "127.0.0.1:99999"], "write HOST:PORT"),
    ],
)
def test_a_value_that_makes_no_sense_is_told_with_what_to_write(
    words: list[str], told: str
) -> None:
    done = run("serve", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr
    assert "u:p@x.example" not in done.stderr


def test_what_contradicts_a_configuration_names_the_option(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.toml"
    file.write_text(configuration(GIVEN))
    done = run(
        *("serve", "--config", str(file), "--listen", "0.0.0.0:0"),
        *("--backend", "new:eve=http://x.example", "--backend", "engine=http://y.example"),
        DRAGOMAN_SERVER__LISTEN="127.0.0.1:1",
    )
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        "dragoman: the configuration is wrong:",
        "  `--backend engine`: `engine` is the name of `[[backends]]` 1 too",
        "  `--listen`: `0.0.0.0:0` can be reached from other machines, which needs a key: "
        "add [[keys]], or listen on 127.0.0.1",
    ]
    done = run("serve", "--config", str(file), "--backend", "e:eve=http://x.example", E_KEY="a\nb")
    assert done.stderr.splitlines()[1:] == [
        "  `--backend e:eve`: the environment variable `E_KEY` holds characters that cannot "
        "stand in a header (backend `e`)"
    ]
    file.write_text('[backends]\nname = "a"\n')
    done = run("serve", "--config", str(file), "--backend", "e:eve=http://x.example")
    assert done.stderr.splitlines()[1:] == [
        f"  {file}: `[backends]`: is a list: write `[[backends]]`, in double brackets, above each "
        "entry"
    ]


def test_a_mistake_of_the_file_is_told_as_its_own(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.toml"
    file.write_text(configuration(GIVEN).replace('"eve"', '"evee"'))
    done = run("serve", "--config", str(file), "--backend", "e:eve=http://x.example")
    (line,) = done.stderr.splitlines()[1:]
    assert line.startswith(f"  {file}: `[[backends]]` 2, `dialect`: `evee` is unknown")


def served(monkeypatch: pytest.MonkeyPatch, *words: str, **environ: str) -> Settings:
    """Return the settings with which `serve` would serve."""
    found: list[Settings] = []

    async def note(settings: Settings) -> None:
        found.append(settings)

    monkeypatch.setattr(serving, "_serve_settings", lambda settings, stop, read: note(settings))
    done = run("serve", *words, **environ)
    assert done.exit_code == 0, done.output
    return found[0]


def test_options_are_added_to_the_file_and_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dragoman.toml"
    file.write_text(configuration(GIVEN))
    settings = served(
        monkeypatch,
        *("--config", str(file), "--listen", "127.0.0.1:9"),
        *(
            "--backend",
            "new:eve=http://x.example",
            "--backend",
            "dragoman-keys:herm=http://y.example/base",
        ),
        NEW_KEY="n",
        DRAGOMAN_KEYS_KEY="h",
        DRAGOMAN_SERVER__LISTEN="127.0.0.1:1",
    )
    assert settings.server.listen == "127.0.0.1:9"
    assert settings.route_names == ["engine", "ops-1", "new", "dragoman-keys"]
    assert settings.secrets() == ["n", "h"]


def test_the_credential_of_a_backend_is_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--backend", "engine=http://x.example", "--backend", "a.b:eve=http://y.example")
    settings = served(monkeypatch, *words, ENGINE_KEY="e", A_B_KEY="v")
    found = [backend.credential for backend in settings.backends]
    assert [(one.header, one.value) for one in found if one is not None] == [
        ("X-Engine-Key", "e"),
        ("Authorization", "Bearer v"),
    ]
    assert served(monkeypatch, *words, ENGINE_KEY="").secrets() == []


def test_the_dialects_of_backends_are_completed() -> None:
    context = cli.main.make_context("dragoman", ["serve", "--help"], resilient_parsing=True)
    found = BackendParamType().shell_complete(context, cli.main.loaded("serve").params[2], "e")
    assert [item.value for item in found] == ["eve=", "engine="]
    assert isinstance(found[0], CompletionItem)


# Base URLs.


def test_base_urls_are_a_few_lines() -> None:
    url = "http://127.0.0.1:8787"
    assert base_urls(url, []) == []
    assert base_urls(url, ["engine"]) == [
        f"  {dialect:<14} frontends: {url}/as/{dialect}/to/engine" for dialect in faces()
    ]
    *lines, routes = base_urls(url, [f"r{at}" for at in range(10)])
    assert lines[0] == f"  herm           frontends: {url}/as/herm/to/ROUTE"
    assert routes == "  ROUTE is one of r0, r1, r2, r3, r4, r5, r6, r7 and 2 more"


@asynccontextmanager
async def engine() -> AsyncIterator[str]:
    """A scripted Engine in a process of its own, which wants a key."""
    async with program("scripted", "engine", "--key", "local") as url:
        yield url


async def test_it_serves_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "local")
    async with engine() as backend:
        words = ("serve", "--listen", "127.0.0.1:0", "--backend", f"engine={backend}")
        async with program(*words, folder=tmp_path) as url, aiohttp.ClientSession() as http:
            said = {"message": "script: text", "task_id": "t"}
            async with http.post(f"{url}/as/engine/to/engine/execute", json=said) as response:
                assert response.status == 200
                assert "text_delta" in await response.text()
            async with http.get(f"{url}/api/v1/sessions") as response:
                (session,) = (await response.json())["sessions"]
                assert (session["route"], session["state"]) == ("engine", "idle")
    assert (tmp_path / "dragoman.db").exists()


async def test_what_is_written_is_served(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "dragoman", "init", "--backend", "x:eve=http://127.0.0.1:1")
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    made = await asyncio.create_subprocess_exec(*words, cwd=tmp_path, env=environ)
    assert await made.wait() == 0
    async with (
        program("serve", "--listen", "127.0.0.1:0", folder=tmp_path) as url,
        aiohttp.ClientSession() as http,
        http.get(f"{url}/api/v1/routes") as response,
    ):
        routes = (await response.json())["routes"]
    assert [route["name"] for route in routes] == ["x"]


# On a terminal.


async def test_on_a_terminal_the_base_urls_are_told(tmp_path: Path) -> None:
    words = ("serve", "--listen", "127.0.0.1:0", "--backend", "engine=http://127.0.0.1:1")
    # It ends with the first key that is typed once it has said something: ^C.
    environ = {"DRAGOMAN_LOG__LEVEL": "error"}
    shown = await run_in_terminal(words, env=environ, input=b"\x03", cwd=tmp_path)
    assert shown.status == 0, shown.text
    lines = [line for line in shown.text.replace("^C", "").splitlines() if line]
    url = lines[0].removeprefix("listening on ")
    assert lines == [f"listening on {url}", *base_urls(url, ["engine"])]
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize("name", ["serve", "init", "translate"])
async def test_the_help_of_a_command_fits(name: str) -> None:
    shown = await run_in_terminal([name, "--help"])
    assert shown.status == 0
    assert max(map(len, shown.lines)) <= COLUMNS
    assert "..." not in shown.text


async def test_the_text_fits() -> None:
    shown = await run_in_terminal(["init", "-"])
    assert shown.text == configuration()
    assert max(map(len, shown.lines)) <= COLUMNS
