"""What the cassettes are, and what playing one does not let pass."""

from __future__ import annotations

import re
from pathlib import Path

import aiohttp
import pytest
from vcr.errors import (  # type: ignore[import-untyped]
    CannotOverwriteExistingCassetteException,
)

from proxy.upstream.client import Upstream
from tests.record_cassettes import CASSETTES, SCENARIOS, message, record
from tests.support.cassettes import PLACEHOLDER, WRONG, load, played
from tests.support.each import each

NAMES = sorted(SCENARIOS)
HOSTS = {"engine.invalid:8000", "herm.invalid:8000", "eve.invalid:3000", "elsewhere.invalid"}
# How each backend is let in (Engine page, section 2; Herm page, section 1; eve page, section 2.1).
HEADERS = {
    "engine": "X-Engine-Key",
    "herm": "Authorization",
    "eve-0.30.8": "Authorization",
    "eve-0.80.1": "Authorization",
}


# What they are.


def test_every_cassette_belongs_to_a_scenario() -> None:
    found = (path.relative_to(CASSETTES).with_suffix("") for path in CASSETTES.glob("*/*"))
    assert sorted(map(str, found)) == NAMES


@pytest.mark.parametrize("name", NAMES)
async def test_recording_it_again_gives_the_same_cassette(name: str, tmp_path: Path) -> None:
    await record(name, tmp_path)
    again = (tmp_path / f"{name}.yaml").read_text()
    assert (CASSETTES / f"{name}.yaml").read_text() == again


@each("name", NAMES)
def test_a_cassette_names_no_machine_and_holds_no_credential(name: str) -> None:
    path = CASSETTES / f"{name}.yaml"
    text = path.read_text()
    assert "k-recorder" not in text
    assert "k-wrong" not in text
    assert set(re.findall(r"https?://([^\s/'\"]+)", text)) <= HOSTS
    assert path.stat().st_size < 20_000, "a cassette is to be read"


@each("name", NAMES)
def test_every_request_carried_the_credential_of_its_backend(name: str) -> None:
    """The wrong one only where the scenario is about that; none in another dialect's header."""
    header = HEADERS[name.partition("/")[0]]
    sent = [WRONG] if name.endswith("/wrong-key") else [PLACEHOLDER]
    for exchange in load(CASSETTES / f"{name}.yaml"):
        headers = exchange["request"]["headers"]
        assert {key: headers[key] for key in headers if key in HEADERS.values()} == {header: sent}


@each("name", NAMES)
def test_a_body_of_several_lines_is_written_as_it_was_sent(name: str) -> None:
    text = (CASSETTES / f"{name}.yaml").read_text()
    for exchange in load(CASSETTES / f"{name}.yaml"):
        body = exchange["response"]["body"]["string"]
        for line in body.splitlines() if "\n" in body else ():
            assert not line or f"        {line}\n" in text


# What playing one does not let pass.


@pytest.mark.parametrize(
    ("name", "text", "headers", "port"),
    [
        ("engine", "script: reason", {"X-Engine-Key": "k-recorder"}, 8000),
        ("engine", "script: text", {"X-Engine-Key": "k-other"}, 8000),
        ("engine", "script: text", {"Authorization": "Bearer k-recorder"}, 8000),
        ("engine", "script: text", {"X-Engine-Key": "k-recorder"}, 8001),
        ("herm", "script: text", {}, 8000),
        ("herm", "script: text", {"Authorization": "k-recorder"}, 8000),
        ("eve-0.80.1", "script: text", {"Authorization": "Bearer k-other"}, 3000),
    ],
)
async def test_another_request_is_not_answered(
    name: str, text: str, headers: dict[str, str], port: int
) -> None:
    scenario = SCENARIOS[f"{name}/create"]
    url = f"{scenario.backend.host.rpartition(':')[0]}:{port}"
    async with aiohttp.ClientSession() as session:
        driver = scenario.driver(session, url)
        driver.upstream = Upstream(session, url, headers)
        cassette = played(CASSETTES / name / "create.yaml", key=scenario.backend.key)
        cassette.__enter__()
        try:
            with pytest.raises(CannotOverwriteExistingCassetteException):
                await driver.send(message(text))
        finally:
            with pytest.raises(AssertionError, match="not asked for"):
                cassette.__exit__(None, None, None)


async def test_an_exchange_plays_once() -> None:
    scenario = SCENARIOS["engine/create"]
    async with aiohttp.ClientSession() as session:
        driver = scenario.driver(session, scenario.backend.host)
        with played(CASSETTES / "engine" / "create.yaml", key=scenario.backend.key):
            await driver.send(message("script: text"))
            with pytest.raises(CannotOverwriteExistingCassetteException):
                await driver.send(message("script: text"))
