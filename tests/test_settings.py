"""The configuration: what a file and the environment give, and what each mistake is told."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError

from adapters.wire.errors import ErrorCode
from proxy.base.errors import ConfigError
from proxy.config.settings import (
    Address,
    BackendSettings,
    CreateSettings,
    JournalSettings,
    KeySettings,
    RouteSettings,
    ServerSettings,
    Settings,
    Share,
    load_settings,
    parse_listen,
)

HASH = hashlib.sha256(b"k-web").hexdigest()

FULL = f"""
[server]
listen = "127.0.0.1:9000"
shutdown_seconds = 5
heartbeat_seconds = 2.5
write_timeout_seconds = 7
max_body_bytes = 4096

[log]
level = "debug"

[journal]
url = "sqlite:////var/lib/dragoman.db"
frames = false
frame_retention_hours = 1
frame_limit_bytes = 512
window_ms = 0

[[backends]]
name = "research"
dialect = "eve"
url = "http://127.0.0.1:3000"
auth = {{ bearer_env = "EVE_TOKEN" }}
create = {{ agent = "agent_9Q", environment_id = "env_2b", user_id = "team" }}
adopt = "never"

[[backends]]
name = "ops"
dialect = "engine"
url = "https://engine.example/base"
auth = {{ header = "X-Engine-Key", env = "ENGINE_KEY" }}
settings = {{ interrupt = "deny", patience_seconds = 90 }}

[[routes]]
name = "support"
backends = [{{ name = "research", weight = 90 }}, {{ name = "ops", weight = 10 }}]

[[keys]]
name = "web"
sha256 = "{HASH}"
backends = ["research", "support"]

[[listeners]]
listen = "127.0.0.1:9001"
dialect = "eve"
route = "support"

[eve]
form = "newest"
token_rotation = false
upload = {{ max_bytes = 10, media_types = ["image/*", "text/plain"] }}
"""
CREDENTIALS = {"EVE_TOKEN": "eve-secret", "ENGINE_KEY": "engine-secret"}

ONE_BACKEND = """
[[backends]]
name = "research"
dialect = "eve"
url = "http://127.0.0.1:3000"
"""

ONE_ENGINE = """
[[backends]]
name = "research"
dialect = "engine"
url = "http://127.0.0.1:3000"
settings = { task_ids_of = "local" }
"""


def load(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Settings:
    file = folder / "dragoman.toml"
    file.write_text(text)
    return load_settings(file, environ or {})


def complaints(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the lines of the error, without the file's name where they begin with it."""
    with pytest.raises(ConfigError) as refused:
        load(folder, text, environ)
    assert refused.value.code is ErrorCode.CONFIG
    file = f"{folder / 'dragoman.toml'}: "
    return [line.removeprefix(file) for line in refused.value.message.splitlines()]


def test_a_full_file_gives_every_setting(tmp_path: Path) -> None:
    settings = load(tmp_path, FULL, CREDENTIALS)
    assert settings.server.address == Address("127.0.0.1", 9000)
    assert settings.server.heartbeat_seconds == 2.5
    assert settings.journal.path == Path("/var/lib/dragoman.db")
    assert (settings.journal.frames, settings.journal.window_ms) == (False, 0)
    research = settings.backend("research")
    assert research is not None
    assert research.create == CreateSettings(
        agent="agent_9Q", environment_id="env_2b", user_id="team"
    )
    ops = settings.backend("ops")
    assert ops is not None
    assert (ops.settings.interrupt, ops.settings.patience_seconds) == ("deny", 90)
    support = settings.route("support")
    assert support is not None
    assert support.backends == (Share(name="research", weight=90), Share(name="ops", weight=10))
    assert settings.eve.upload.media_types == ("image/*", "text/plain")
    assert settings.listeners[0].address.port == 9001


def test_without_a_file_the_defaults_hold() -> None:
    settings = load_settings(None, {})
    assert settings == Settings()
    assert settings.server.listen == "127.0.0.1:8787"
    assert settings.journal.path == Path("dragoman.db")
    assert (settings.eve.form, settings.eve.token_rotation) == ("all", True)
    assert settings.eve.upload.max_bytes == 26_214_400


def test_a_backend_is_a_route_of_its_own_name(tmp_path: Path) -> None:
    settings = load(tmp_path, ONE_BACKEND)
    assert settings.route("research") == RouteSettings(
        name="research", backends=(Share(name="research"),)
    )
    assert settings.route_names == ["research"]
    assert settings.route("other") is None


def test_the_environment_overrides_the_file_inside_of_tables(tmp_path: Path) -> None:
    environ = {
        "DRAGOMAN_SERVER__HEARTBEAT_SECONDS": "3",
        "DRAGOMAN_EVE__UPLOAD__MAX_BYTES": "77",
        "DRAGOMAN_JOURNAL__FRAMES": "true",
        "DRAGOMAN_LISTENERS": "[]",
        **CREDENTIALS,
    }
    settings = load(tmp_path, FULL, environ)
    assert settings.server.heartbeat_seconds == 3
    assert settings.server.listen == "127.0.0.1:9000"
    assert settings.eve.upload.max_bytes == 77
    assert settings.eve.upload.media_types == ("image/*", "text/plain")
    assert settings.journal.frames is True
    assert settings.listeners == ()


def test_backends_can_come_from_the_environment_alone() -> None:
    listed = '[{"name":"e","dialect":"engine","url":"http://127.0.0.1:1","auth":{"bearer_env":"DRAGOMAN_T"}}]'
    settings = load_settings(None, {"DRAGOMAN_BACKENDS": listed, "DRAGOMAN_T": "t-1"})
    credential = settings.backends[0].credential
    assert credential is not None
    assert (credential.header, credential.value) == ("Authorization", "Bearer t-1")


def test_settings_in_code_read_neither_the_environment_nor_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dragoman.toml").write_text('[server]\nlisten = "127.0.0.1:1"\n')
    monkeypatch.setenv("DRAGOMAN_SERVER__LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("SERVER__LISTEN", "127.0.0.1:3")
    assert Settings().server.listen == "127.0.0.1:8787"
    backend = BackendSettings(name="e", dialect="engine", url="http://127.0.0.1:1")
    settings = Settings(backends=(backend.with_credential("X-Engine-Key", "k"),))
    credential = settings.backends[0].credential
    assert credential is not None
    assert credential.value == "k"


@pytest.mark.parametrize("url", ["http://127.0.0.1:3000", "http://127.0.0.1:3000/"])
def test_who_passes_names_of_tasks_to_an_engine_is_the_only_backend_at_its_url(
    tmp_path: Path, url: str
) -> None:
    other = f'[[backends]]\nname = "other"\ndialect = "engine"\nurl = "{url}"'
    assert complaints(tmp_path, ONE_ENGINE + other) == [
        "`[[backends]]` 1, `settings.task_ids_of`: backend `other` has the same url, "
        "so its sessions could meet these"
    ]
    assert load(tmp_path, ONE_ENGINE + other.replace("3000", "3001")).backends


def test_all_mistakes_are_told_at_once_each_with_where_it_came_from(tmp_path: Path) -> None:
    text = '[server]\nlissten = "x"\n[eve]\nform = "all"\n'
    environ = {
        "DRAGOMAN_EVE__FORM": "newst",
        "DRAGOMAN_EVE__UPLOAD__MAX_BYTE": "1",
        "DRAGOMAN_SEVER__LISTEN": "x",
        "DRAGOMAN_KEY": "k-web",
        "DRAGOMAN_URL": "http://127.0.0.1:1",
    }
    file = tmp_path / "dragoman.toml"
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text, environ)
    assert sorted(refused.value.message.splitlines()) == sorted(
        [
            "DRAGOMAN_SEVER__LISTEN: the environment has a setting for the unknown table `sever`; "
            "did you mean `server`?",
            f"{file}: `[server]`, `lissten`: unknown key; did you mean `listen`?",
            "DRAGOMAN_EVE__FORM: `newst` is unknown; did you mean `newest`?",
            "DRAGOMAN_EVE__UPLOAD__MAX_BYTE: unknown key; did you mean `max_bytes`?",
        ]
    )
    assert refused.value.details == {"problems": refused.value.message.splitlines()}


def test_a_variable_that_is_no_json_is_named(tmp_path: Path) -> None:
    [complaint] = complaints(tmp_path, "", {"DRAGOMAN_BACKENDS": "[{"})
    assert complaint.startswith(
        "DRAGOMAN_BACKENDS: a list or a table in a variable is written as JSON"
    )


@pytest.mark.parametrize(
    ("listen", "open_to_all"),
    [
        ("0.0.0.0:80", True),
        ("[::]:80", True),
        ("192.0.2.7:80", True),
        ("proxy.example:80", True),
        ("127.0.0.1:80", False),
        ("127.9.9.9:80", False),
        ("[::1]:80", False),
        ("localhost:80", False),
    ],
)
def test_listening_to_other_machines_needs_a_key(
    tmp_path: Path, listen: str, open_to_all: bool
) -> None:
    listener = f'[[listeners]]\nlisten = "{listen}"\ndialect = "eve"\nroute = "research"\n'
    main = f'[server]\nlisten = "{listen}"\n'
    key = f'[[keys]]\nname = "web"\nsha256 = "{HASH}"\n'
    for text in (main, ONE_BACKEND + listener):
        load(tmp_path, text + key)
        if open_to_all:
            [complaint] = complaints(tmp_path, text)
            assert "needs a key: add [[keys]]" in complaint
        else:
            load(tmp_path, text)


def test_two_listeners_may_both_take_a_free_port(tmp_path: Path) -> None:
    listener = '[[listeners]]\nlisten = "127.0.0.1:0"\ndialect = "eve"\nroute = "research"\n'
    assert len(load(tmp_path, ONE_BACKEND + listener + listener).listeners) == 2


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ('{ bearer_env = "T" }', "Authorization", "Bearer s3cret"),
        ('{ bearer_file = "FILE" }', "Authorization", "Bearer from-file"),
        ('{ header = "X-Engine-Key", env = "T" }', "X-Engine-Key", "s3cret"),
        ('{ header = "x-api-key", file = "FILE" }', "x-api-key", "from-file"),
    ],
)
def test_a_credential_is_read_at_the_start(
    tmp_path: Path, auth: str, header: str, value: str
) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    text = f"{ONE_BACKEND}auth = {auth.replace('FILE', str(file))}\n"
    settings = load(tmp_path, text, {"T": "s3cret"})
    credential = settings.backends[0].credential
    assert credential is not None
    assert (credential.header, credential.value) == (header, value)
    [secret] = settings.secrets()
    assert value.endswith(secret)
    for shown in (repr(settings), str(credential), settings.model_dump_json()):
        assert secret not in shown


def test_a_credential_that_cannot_be_had_stops_the_start_and_names_its_source(
    tmp_path: Path,
) -> None:
    by_env = ONE_BACKEND + 'auth = { bearer_env = "EVE_TOKEN" }\n'
    place = "`[[backends]]` 1, `auth`: the environment variable `EVE_TOKEN`"
    for environ in ({}, {"EVE_TOKEN": ""}):
        [complaint] = complaints(tmp_path, by_env, environ)
        assert complaint.startswith(f"{place} is not set")
        assert complaint.endswith("(backend `research`)")
    [complaint] = complaints(tmp_path, by_env, {"EVE_TOKEN": "se\ncret"})
    assert complaint.startswith(f"{place} holds characters that cannot stand in a header")
    assert "cret" not in complaint

    file = tmp_path / "token"
    by_file = f'{ONE_BACKEND}auth = {{ bearer_file = "{file}" }}\n'
    [complaint] = complaints(tmp_path, by_file)
    assert f"the file `{file}`, which holds the credential, cannot be read" in complaint
    file.write_text(" \n")
    [complaint] = complaints(tmp_path, by_file)
    assert "is empty" in complaint


def test_what_could_be_a_secret_is_not_quoted(tmp_path: Path) -> None:
    text = (
        ONE_BACKEND.replace("127.0.0.1", "user:hunter2@127.0.0.1")
        + '[[keys]]\nname = "k"\nsha256 = "hunter2"\n'
        + '[[backends]]\nname = "b"\ndialect = "eve"\nurl = "http://x.example"\n'
        + 'auth = { token = "hunter2" }\n'
    )
    lines = complaints(tmp_path, text)
    assert len(lines) == 3
    assert "hunter2" not in "\n".join(lines)
    with pytest.raises(ValidationError) as refused:
        KeySettings(name="k", sha256="hunter2")
    assert "hunter2" not in str(refused.value)


KEYS_PASTED = (
    "sk-proj-4fJ2mQx9Tz7Lr1Vb8Nc3Wd",
    "sk_live_4fJ2mQx9Tz7Lr1Vb8Nc3Wd",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "AKIAIOSFODNN7EXAMPLE",
    "JBSWY3DPEHPK3PXP",
    "AbCdEfGhIjKlMnOpQr",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmVk",
    "ab12+cd34/ef56ghij78kl==",
)


@pytest.mark.parametrize("pasted", [*KEYS_PASTED, "hunter2", "correct horse", "$EVE_TOKEN"])
@pytest.mark.parametrize("form", ['bearer_env = "{}"', 'header = "X-Key", env = "{}"'])
def test_a_key_in_the_place_of_a_variable_s_name_is_not_quoted(
    tmp_path: Path, form: str, pasted: str
) -> None:
    [complaint] = complaints(tmp_path, f"{ONE_BACKEND}auth = {{ {form.format(pasted)} }}\n")
    assert complaint.startswith("`[[backends]]` 1, `auth`: ")
    assert pasted not in complaint
    assert ("looks like the key itself" in complaint) is (pasted in KEYS_PASTED)
    assert "into a variable" in complaint


@pytest.mark.parametrize("pasted", KEYS_PASTED)
@pytest.mark.parametrize("form", ['bearer_file = "{}"', 'header = "{}", env = "A"'])
def test_a_key_in_the_place_of_a_file_or_a_header_is_not_quoted(
    tmp_path: Path, form: str, pasted: str
) -> None:
    [complaint] = complaints(tmp_path, f"{ONE_BACKEND}auth = {{ {form.format(pasted)} }}\n")
    assert pasted not in complaint
    assert "the key itself" in complaint or "write it alone" in complaint


@pytest.mark.parametrize("pasted", KEYS_PASTED)
@pytest.mark.parametrize(
    "text",
    [
        '[[keys]]\nname = "{}"\nsha256 = "0"\n',
        '[[backends]]\nname = "b"\ndialect = "engine"\nurl = "http://127.0.0.1:1"\n'
        'settings = {{ task_ids_of = "{}" }}\n',
    ],
    ids=["the name of a key", "whose task names pass"],
)
def test_a_key_in_the_place_of_its_name_is_not_quoted(
    tmp_path: Path, text: str, pasted: str
) -> None:
    found = complaints(tmp_path, text.format(pasted))
    assert found
    assert pasted not in "\n".join(found)


@pytest.mark.parametrize(
    "name", ["EVE_TOKEN", "OAUTH2_CLIENT_SECRET", "S3_KEY", "MYCOMPANYPRODUCTIONKEY", "_A1"]
)
def test_the_name_of_a_variable_that_is_not_set_is_told(tmp_path: Path, name: str) -> None:
    [complaint] = complaints(tmp_path, f'{ONE_BACKEND}auth = {{ bearer_env = "{name}" }}\n')
    assert f"the environment variable `{name}` is not set" in complaint


@pytest.mark.parametrize("name", ["my-token", "token2x3y4z5a6b7c8"])
def test_a_variable_that_is_set_is_read_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    text = f'{ONE_BACKEND}auth = {{ bearer_env = "{name}" }}\n'
    [backend] = load(tmp_path, text, {name: "s3cret"}).backends
    assert backend.credential is not None
    assert backend.credential.value == "Bearer s3cret"


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.toml"
    file.write_bytes(b'a = "\xff"')
    with pytest.raises(ConfigError, match="is not UTF-8 text: byte 5 is wrong"):
        load_settings(file, {})


def test_settings_in_code_are_checked_like_a_file() -> None:
    with pytest.raises(ValidationError, match=r"`server\.listen`: .* needs a key"):
        Settings(server=ServerSettings(listen="0.0.0.0:1"))
    assert Settings(journal=JournalSettings(url="memory:")).journal.path is None


def test_a_listen_address_is_a_host_and_a_port() -> None:
    assert parse_listen("[::1]:0") == Address("::1", 0)
    for wrong in (
        "",
        ":80",
        "::1:80",
        "host",
        "host:",
        "host:65536",
        "http://h.example:80",
        "a b:1",
    ):
        with pytest.raises(ValueError, match="is not an address"):
            parse_listen(wrong)


def tables(model: type[BaseModel], prefix: str) -> set[str]:
    """Return the paths of all settings below a model, like `server.listen`."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        candidates = (field.annotation, *get_args(field.annotation))
        below = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        path = f"{prefix}{name}"
        found |= tables(below[0], f"{path}.") if below else {path}
    return found


def test_every_setting_is_in_the_documentation_and_no_other() -> None:
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()
    documented = set(re.findall(r"^\| `([a-z][\w.]+)` \|", page, re.MULTILINE))
    assert documented == tables(Settings, "")


def test_the_examples_of_the_documentation_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "configuration.md").read_text()
    examples = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        named = dict.fromkeys(re.findall(r'env = "(\w+)"', example), "value")
        load(tmp_path, example, named)
