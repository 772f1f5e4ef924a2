"""What docs/deploy.md says of Dragoman itself, of systemd and of Docker.

`make deploy-steps` runs the marked tests: they install from the package index, and need
systemd-analyze. Caddy and nginx are in `tests/test_proxies.py`.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys
from configparser import RawConfigParser
from itertools import pairwise
from pathlib import Path

import click
import pytest
import yaml  # type: ignore[import-untyped]

from proxy.cli import main
from proxy.config.settings import ServerSettings, Settings, load_settings
from tests.deployed import PAGE, UPSTREAM, block, blocks, replaced
from tests.test_docker import FINAL

REPOSITORY = Path(__file__).parent.parent
WORDS = 1_800


def settings(folder: Path, digest: str, **variables: str) -> Settings:
    """Load the configuration of the page, with a hash and with the variables of `environment`."""
    file = folder / "dragoman.toml"
    file.write_text(replaced(block("toml"), ("PUT THE HASH HERE", digest)))
    names = re.findall(r"^(\w+)=(.+)$", block("", "ENGINE_KEY="), re.MULTILINE)
    return load_settings(file, {**dict(names), **variables})


def unit() -> RawConfigParser:
    parsed = RawConfigParser(strict=False, delimiters=("=",))
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(block("ini"))
    return parsed


def shell(script: str, folder: Path) -> str:
    """Run a block of the page as a shell does that is fed it, and return what it prints."""
    done = subprocess.run(
        ["sh", "-eu", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_can_be_read_in_one_go() -> None:
    assert len(PAGE.split()) < WORDS


def test_the_key_that_the_page_makes_opens_the_server_that_it_configures(tmp_path: Path) -> None:
    key, line = shell(block("sh", "openssl rand"), tmp_path).splitlines()
    digest = line.split()[0]
    assert digest == hashlib.sha256(key.encode()).hexdigest()
    loaded = settings(tmp_path, digest)
    assert [each.sha256 for each in loaded.keys] == [digest]
    assert loaded.server.listen == UPSTREAM


def test_the_page_s_configuration_is_refused_until_the_hash_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text(block("toml"))
    with pytest.raises(Exception, match="is not a SHA-256"):
        load_settings(tmp_path / "dragoman.toml", {"ENGINE_KEY": "x"})


def test_every_command_of_dragoman_on_the_page_exists() -> None:
    assert isinstance(main, click.Group)
    script = "\n".join(blocks("sh"))
    named = re.findall(r"(?:bin/dragoman|8787 dragoman|^dragoman) ([a-z]+)", script, re.MULTILINE)
    assert {"demo", "health"} <= set(named) <= set(main.commands)


def test_the_unit_starts_what_is_installed_with_the_files_that_are_installed() -> None:
    service = unit()["Service"]
    program, *arguments = service["ExecStart"].split()
    install = block("sh", "-m venv --clear")
    assert f"-m venv --clear {Path(program).parents[1]}\n" in install
    places = re.findall(r"^install -m \d+ (\S+) (\S+)$", "\n".join(blocks("sh")), re.MULTILINE)
    targets = {target for _, target in places}
    assert arguments == ["serve", "--config", "/etc/dragoman/dragoman.toml"]
    assert {arguments[-1], service["EnvironmentFile"].lstrip("-")} <= targets
    # Who may read what: the configuration is for the unit's user, the credentials for root only.
    assert "install -m 644 dragoman.toml" in PAGE
    assert "install -m 600 environment" in PAGE


def test_the_unit_fits_what_the_server_does() -> None:
    service = unit()["Service"]
    # A wrong configuration, which no restart mends.
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "serve", "--config", "/nowhere/dragoman.toml"],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    assert service["RestartPreventExitStatus"] == str(done.returncode) == "2"
    assert float(service["TimeoutStopSec"]) > ServerSettings().shutdown_seconds
    assert service["WorkingDirectory"] == f"%S/{service['StateDirectory']}"
    assert f"/var/lib/{service['StateDirectory']}/dragoman.db" in PAGE
    assert service["DynamicUser"] == "yes"


def test_the_container_is_started_as_its_image_wants(tmp_path: Path) -> None:
    build, run = block("sh", "docker build").split("\n", 1)
    words = shlex.split(run.replace("\\\n", " "))
    options = {
        name: [value for flag, value in pairwise(words) if flag == name]
        for name in ("-p", "-v", "-e", "--env-file", "--stop-timeout")
    }
    assert build == "docker build -t dragoman ."
    assert words[-1] == "dragoman"
    port = FINAL.last("EXPOSE")
    assert options["-p"] == [f"{UPSTREAM}:{port}"]
    volume, file = options["-v"]
    assert volume == f"dragoman:{FINAL.last('VOLUME')}"
    assert file.endswith(f":{FINAL.last('WORKDIR')}/dragoman.toml:ro")
    assert options["--env-file"] == ["environment"]
    # The stop is not cut short.
    assert float(options["--stop-timeout"][0]) > ServerSettings().shutdown_seconds
    variables = dict(word.split("=", 1) for word in options["-e"])
    inside = settings(tmp_path, "0" * 64, **variables)
    assert inside.server.listen == f"0.0.0.0:{port}"
    demo = shlex.split(block("sh", "dragoman demo"))
    assert options["-p"][0] in demo
    assert demo[demo.index("demo") :] == ["demo", "--host", "0.0.0.0", "--port", port]


def test_the_composed_processes_reach_each_other_and_the_balancer_all_of_them(
    tmp_path: Path,
) -> None:
    composed = yaml.safe_load(block("yaml"))
    services = composed["services"]
    nodes = {name: one for name, one in services.items() if one["image"] == "dragoman"}
    port = FINAL.last("EXPOSE")
    assert f"reverse_proxy {' '.join(f'{name}:{port}' for name in nodes)} {{" in PAGE
    (cluster,) = (text for text in PAGE.split("```\n") if text.startswith("[cluster]"))
    for name, node in nodes.items():
        file = tmp_path / "dragoman.toml"
        file.write_text(replaced(block("toml"), ("PUT THE HASH HERE", "0" * 64)) + cluster)
        secrets = {"ENGINE_KEY": "x", "CLUSTER_SECRET": "x" * 32}
        loaded = load_settings(file, {**secrets, **node["environment"]})
        assert loaded.cluster is not None
        inside = loaded.cluster.listen.rpartition(":")[2]
        assert loaded.cluster.advertise == f"http://{name}:{inside}"
        assert loaded.server.listen == f"0.0.0.0:{port}"
        # The database is that of the image, for its user.
        (database,) = node["depends_on"]
        user = services[database]["environment"]["POSTGRES_USER"]
        assert loaded.journal.url == f"postgresql://{user}@{database}/{user}"
        assert node["volumes"] == [f"./dragoman.toml:{FINAL.last('WORKDIR')}/dragoman.toml:ro"]
        assert float(node["stop_grace_period"].rstrip("s")) > ServerSettings().shutdown_seconds
    used = {volume.split(":")[0] for one in services.values() for volume in one["volumes"]}
    assert set(composed["volumes"]) == {name for name in used if not name.startswith(".")}


@pytest.mark.deploy
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    # It looks for the program, which is not installed there.
    text = replaced(block("ini"), ("/opt/dragoman/bin/dragoman", "/bin/true"))
    (tmp_path / "dragoman.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "dragoman.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    # A machine's other units may have faults of their own.
    assert "dragoman" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.deploy
@pytest.mark.timeout(1200)  # of an installation that hangs
def test_what_the_page_installs_is_a_server_that_is_healthy(tmp_path: Path) -> None:
    installed = tmp_path / "opt"
    # A copy of what is tracked: the block makes and removes `build`.
    checkout = tmp_path / "checkout"
    shell(f"git clone --quiet --no-hardlinks {REPOSITORY} {checkout}", tmp_path)
    install = replaced(block("sh", "-m venv --clear"), ("/opt/dragoman", str(installed)))
    # Installed twice: the second time is the upgrade.
    for _ in range(2):
        shell(install, checkout)
    version = shell(f"{installed}/bin/dragoman --version", tmp_path)
    assert version.startswith("dragoman, version ")
    checked = shell(f"{installed}/bin/dragoman demo --check", tmp_path)
    assert "FAIL" not in checked
