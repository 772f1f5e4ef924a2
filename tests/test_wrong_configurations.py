"""What is wrong with a configuration is told with its place and what to write: a table of them.

`wrong_configurations.txt` has the configurations, each followed by its messages after `=>`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sqlite3
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from proxy import cli
from proxy.base.errors import ConfigError
from proxy.config.settings import Settings, Share, load_settings
from tests.support.each import each

TABLE = Path(__file__).with_name("wrong_configurations.txt").read_text("utf-8")

CASES: list[tuple[str, list[str]]] = [
    (toml, told.removeprefix("=> ").rstrip("\n").split("\n=> "))
    for toml, told in re.findall(r"((?:(?!=> ).*\n)+)((?:=> .*\n)+)", TABLE)
]

PHRASES = re.compile(r"Input should|Field required|Extra inputs|Value error|a valid |\('")
"""What the libraries say."""

BACKEND = '[[backends]]\nname = "research"\ndialect = "eve"\nurl = "http://127.0.0.1:3000"\n'


def told(file: Path, text: str, **environ: str) -> list[str]:
    """Return what is wrong, without the file's name."""
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_settings(file, environ)
    return [line.removeprefix(f"{file}: ") for line in refused.value.message.splitlines()]


def test_the_table_is_whole() -> None:
    assert len(CASES) >= 60
    read = (toml + "".join(f"=> {message}\n" for message in told) for toml, told in CASES)
    assert "".join(read) == TABLE


@each(("toml", "messages"), CASES)
def test_a_wrong_configuration_is_told_in_these_words(
    tmp_path: Path, toml: str, messages: list[str]
) -> None:
    found = told(tmp_path / "dragoman.toml", toml.lstrip("\n"))
    assert found == messages
    for message in found:
        assert PHRASES.search(message) is None, message


def leaves(model: type[BaseModel], *above: str) -> list[tuple[str, ...]]:
    """Return the paths of all settings and tables below a model."""
    found: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        found.append((*above, name))
        for one in (field.annotation, *get_args(field.annotation)):
            if isinstance(one, type) and issubclass(one, BaseModel):
                found += leaves(one, *above, name)
    return found


LISTS = {"backends", "routes", "keys", "listeners"}


def nested(path: tuple[str, ...], value: object) -> Any:
    """Return a configuration that has a value at a path."""
    if not path:
        return value
    below = nested(path[1:], value)
    return {path[0]: [below] if path[0] in LISTS and len(path) > 1 else below}


WRONG: tuple[Any, ...] = ([[]], {"a": 1}, "\x00", -1.5, True, 10**30, 3, ["a"], [{}], "nan")
"""Values of every kind: no setting takes all of them."""


@each("path", leaves(Settings), ids=".".join)
def test_no_setting_is_told_in_the_library_s_words(path: tuple[str, ...]) -> None:
    wrong = 0
    for value in WRONG:
        # As JSON in a variable, which takes every value.
        name, text = path[0], json.dumps(nested(path, value)[path[0]])
        message = ""
        try:
            load_settings(None, {f"DRAGOMAN_{name.upper()}": text})
        except ConfigError as error:
            message = error.message
        wrong += bool(message)
        assert PHRASES.search(message) is None
    assert wrong


def test_names_are_a_list_of_backends_with_the_usual_weight(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.toml"
    other = BACKEND.replace("research", "ops")
    route = '[[routes]]\nname = "r"\nbackends = ["research", { name = "ops", weight = 3 }]\n'
    file.write_text(BACKEND + other + route)
    found = load_settings(file, {}).routes[0].backends
    assert found == (Share(name="research", weight=100), Share(name="ops", weight=3))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GB", 10_000_000_000),
        ("36MiB", 36 * 2**20),
        ("36 MiB", 36 * 2**20),
        ("1.5kB", 1500),
        ("2kib", 2048),
        ("1TB", 10**12),
        ("4096", 4096),
    ],
)
def test_a_size_may_have_a_unit(tmp_path: Path, text: str, size: int) -> None:
    file = tmp_path / "dragoman.toml"
    file.write_text(
        f'[server]\nmax_body_bytes = "{text}"\nmax_text_bytes = "{text}"\n'
        f'max_bodies_bytes = "{text}"\n[journal]\nframe_limit_bytes = "{text}"\n'
        f'[retention]\nmax_bytes = "{text}"\nmax_bytes_per_backend = "{text}"\n'
        f'[eve]\nupload = {{ max_bytes = "{text}" }}\n{BACKEND}max_frame_bytes = "{text}"\n'
    )
    found = load_settings(file, {})
    sizes = {
        *(found.server.max_body_bytes, found.server.max_text_bytes, found.server.max_bodies_bytes),
        *(found.journal.frame_limit_bytes, found.eve.upload.max_bytes),
        *(found.retention.max_bytes, found.retention.max_bytes_per_backend),
        found.backends[0].max_frame_bytes,
    }
    assert sizes == {size}
    by_variable = load_settings(None, {"DRAGOMAN_SERVER__MAX_BODY_BYTES": text})
    assert by_variable.server.max_body_bytes == size


def test_an_entry_of_a_variable_is_told_by_its_number(tmp_path: Path) -> None:
    listed = '[{"name": "a", "dialect": "eve", "url": "http://127.0.0.1:1"}, {"name": "b"}]'
    assert told(tmp_path / "d.toml", "", DRAGOMAN_BACKENDS=listed) == [
        "DRAGOMAN_BACKENDS: entry 2, `dialect`: is missing",
        "DRAGOMAN_BACKENDS: entry 2, `url`: is missing",
    ]


def test_a_file_that_cannot_be_read_is_told_with_what_to_do(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    for path, message in (
        (
            missing,
            "there is no such file: name one that is there with --config or DRAGOMAN_CONFIG, "
            "or none for the defaults",
        ),
        (tmp_path, "is a folder: name the file in it"),
    ):
        with pytest.raises(ConfigError) as refused:
            load_settings(path, {})
        assert refused.value.message == f"{path}: {message}"


def serve(folder: Path, journal: object = "memory:", listen: str = "127.0.0.1:0") -> list[str]:
    """Return what `serve` says where it cannot start, which is not a wrong configuration."""
    file = folder / "dragoman.toml"
    url = journal if journal == "memory:" else f"sqlite:///{journal}"
    file.write_text(f'{BACKEND}[server]\nlisten = "{listen}"\n[journal]\nurl = "{url}"\n')
    done = CliRunner().invoke(cli.main, ["serve", "--config", str(file)])
    assert done.exit_code == 1, done.output
    assert "configuration is wrong" not in done.stderr
    return [line for line in done.stderr.splitlines() if not line.startswith("{")]


def test_a_port_in_use_is_not_a_wrong_configuration(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert serve(tmp_path, listen=listen) == [
            f"dragoman: cannot listen on {listen}: another program uses this port; "
            "stop it, or choose another port."
        ]


def test_an_address_of_another_machine_cannot_be_listened_on(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("")
    file = tmp_path / "dragoman.toml"
    key = f'[[keys]]\nname = "k"\nsha256 = "{"0" * 64}"\n'
    file.write_text(
        f'{BACKEND}{key}[server]\nlisten = "192.0.2.7:8787"\n[journal]\nurl = "memory:"'
    )
    done = CliRunner().invoke(cli.main, ["serve", "--config", str(file)])
    assert done.exit_code == 1
    assert done.stderr.endswith(
        "dragoman: cannot listen on 192.0.2.7:8787: this machine does not have this address; "
        "choose one that it has.\n"
    )


def test_a_journal_without_its_folder_is_told(tmp_path: Path) -> None:
    [line] = serve(tmp_path, tmp_path / "no" / "j.db")
    assert f"there is no folder `{tmp_path}/no`; make it, or name another file" in line


def test_a_folder_is_not_a_journal(tmp_path: Path) -> None:
    [line] = serve(tmp_path, tmp_path)
    assert "it is a folder; name the file in it" in line


def test_a_text_is_not_a_journal(tmp_path: Path) -> None:
    file = tmp_path / "j.db"
    file.write_text("no journal, but a text\n" * 100)
    [line] = serve(tmp_path, file)
    assert line == (
        f"dragoman: `{file}` is not a journal, or its beginning is damaged: file is not a "
        "database; name another file, restore this one from a backup, or save what can be read "
        f"with `sqlite3 {file} .recover`"
    )


def test_another_program_s_database_is_not_a_journal(tmp_path: Path) -> None:
    file = tmp_path / "j.db"
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE t (a)")
    other.close()
    [line] = serve(tmp_path, file)
    assert line == (
        f"dragoman: `{file}` is an SQLite file of another program, not a journal; name another file"
    )


def test_a_journal_that_another_process_holds_is_told_with_its_pid(tmp_path: Path) -> None:
    file = tmp_path / "j.db"
    lock = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT)
    try:
        os.write(lock, b"4711")
        fcntl.flock(lock, fcntl.LOCK_EX)
        [line] = serve(tmp_path, file)
    finally:
        os.close(lock)
    assert line == (
        "dragoman: another process (pid 4711) writes the journal `j.db`; "
        "stop it, name another file, or open this one read-only"
    )


def test_a_journal_that_is_not_there_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "j.db"
    done = CliRunner().invoke(cli.main, ["sessions", "list", "--journal", str(file)])
    assert done.exit_code == 1
    assert "there is no such file; name another, or start the server once to make it" in done.stderr
    assert not file.exists()


def test_an_empty_configuration_says_what_to_add(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.toml"
    # It would serve: a port that is taken ends it.
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environ = {
            "DRAGOMAN_SERVER__LISTEN": f"127.0.0.1:{taken.getsockname()[1]}",
            "DRAGOMAN_JOURNAL__URL": "memory:",
        }
        for text, said in (("", True), (BACKEND, False)):
            file.write_text(text)
            done = CliRunner().invoke(cli.main, ["serve", "--config", str(file)], env=environ)
            assert done.exit_code == 1
            told = (
                "no backend is configured, so no frontend can be served: add a table [[backends]] "
                f"with `name`, `dialect` and `url` to {file}, give --backend, or try "
                "`dragoman demo`"
            )
            assert (told in done.stderr) is said


READ = "'herm', 'eve', 'engine', 'agui', 'managed-agents', 'hermes-agent'"

OFFERED = (
    (("translate", "--to", "engine"), "--from", f"{READ}, 'canonical'"),
    (
        ("translate", "--from", "engine"),
        "--to",
        "'herm', 'eve', 'engine', 'agui', 'aisdk', 'managed-agents', 'canonical'",
    ),
    (("diff", "-", "a"), "--from", READ),
    (("verify", "a"), "--from", READ),
    (("replay", "a", "--serve", "eve"), "--from", READ),
)


@pytest.mark.parametrize(("words", "option", "offered"), OFFERED)
@pytest.mark.parametrize("dialect", ["hermes-agent", "aisdk", "openai"])
def test_a_command_offers_exactly_the_dialects_that_it_can_read_or_write(
    words: tuple[str, ...], option: str, offered: str, dialect: str
) -> None:
    if f"'{dialect}'" in offered:
        return
    done = CliRunner().invoke(cli.main, [*words, option, dialect])
    assert done.exit_code == 2
    assert f"'{dialect}' is not one of {offered}.\n" in done.stderr
    shown = CliRunner().invoke(cli.main, [words[0], "--help"]).stdout
    assert f"{option} [{offered.replace(chr(39), '').replace(', ', '|')}]" in shown
