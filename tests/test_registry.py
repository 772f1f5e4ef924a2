"""The registry: each part of each dialect is where its line says, and is imported by nobody before
it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapters.captures.dialect import CaptureFormat
from adapters.captures.secrets import DeltaFormat
from adapters.contract.dialect import Dialect, Part
from adapters.contract.faces import Face
from adapters.contract.probing import Probe
from adapters.contract.receiving import Receiver
from adapters.model.base import Call, ClientCodec, Encoder
from adapters.registry import DIALECTS, deltas, faces

REPOSITORY = Path(__file__).parent.parent

TYPES: Mapping[str, type] = {
    "captured": CaptureFormat,
    "deltas": tuple,
    "face": Face,
    "probe": Probe,
    "receiver": Receiver,
    "recorded_call": Call,
}
CLASSES: Mapping[str, type] = {"client": ClientCodec, "encoder": Encoder}

PARTS = sorted(name for name, value in vars(Dialect).items() if isinstance(value, Part))


def test_the_type_of_every_part_is_known_here() -> None:
    assert sorted([*TYPES, *CLASSES]) == PARTS


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_part_of_a_dialect_is_where_its_line_says(dialect: str) -> None:
    known = DIALECTS[dialect]
    for name in PARTS:
        part: Any = getattr(known, name)
        assert known.is_loaded(name)
        if part is None:
            continue
        if name in CLASSES:
            assert issubclass(part, CLASSES[name])
        else:
            assert isinstance(part, TYPES[name])
    assert all(isinstance(delta, DeltaFormat) for delta in known.deltas or ())
    assert (known.client is not None, known.face is not None, known.receiver is not None) == (
        known.has_client,
        known.has_face,
        known.has_receiver,
    )


def test_the_header_of_deliveries_is_the_one_that_their_reader_takes() -> None:
    receiving = [known for known in DIALECTS.values() if known.receiver is not None]
    assert receiving
    for known in receiving:
        assert known.receiver is not None
        assert known.receiver.signature == known.key_header


def test_a_part_that_is_not_there_is_an_error_when_it_is_asked_for() -> None:
    lost = Dialect("engine", client="client:NoSuchClient", probe="no_such_module:PROBE")
    assert lost.has_client
    with pytest.raises(AttributeError, match="NoSuchClient"):
        _ = lost.client
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = lost.probe


def test_names_of_faces_are_known_without_them() -> None:
    assert "engine" in faces()
    assert "hermes-agent" not in faces()
    assert "nobody" not in faces()
    assert len(faces()) == len(list(faces())) == sum(one.has_face for one in DIALECTS.values())
    with pytest.raises(KeyError):
        faces()["hermes-agent"]


def test_the_deltas_of_all_dialects_are_known_by_their_types() -> None:
    assert {delta.type for one in DIALECTS.values() for delta in one.deltas or ()} == set(deltas())


SERVED = """
import asyncio, json, sys
import aiohttp
from proxy.app.server import serve
from proxy.cli.serving import Settings

async def main():
    told, stop, urls = [], asyncio.Event(), asyncio.Queue()
    settings = Settings.model_validate(json.loads(sys.argv[1]))
    server = asyncio.create_task(serve(settings, ready=urls.put_nowait, stop=stop, checked=False))
    url = await urls.get()
    told.append(sorted(sys.modules))
    async with aiohttp.ClientSession() as http:
        for path in sys.argv[2:]:
            async with http.get(url + path) as answer:
                assert answer.status == 200, path
            told.append(sorted(sys.modules))
    stop.set()
    await server
    print(json.dumps(told))

asyncio.run(main())
"""
"""A server of some settings, and what it has imported at its start and after some requests."""


def imported(tmp_path: Path, dialect: str, *paths: str) -> list[set[str]]:
    """Return the modules that a server with one backend has imported: at first, and after it was
    asked for each path."""
    settings = {
        "server": {"listen": "127.0.0.1:0"},
        "journal": {"url": f"sqlite:///{tmp_path}/journal.db"},
        "backends": [{"name": "one", "dialect": dialect, "url": "http://127.0.0.1:9"}],
    }
    done = subprocess.run(
        [sys.executable, "-c", SERVED, json.dumps(settings), *paths],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [set(names) for names in json.loads(done.stdout)]


def of_dialects(names: set[str]) -> set[str]:
    """Return the folders of the dialects that are imported, or parts of them."""
    folders = {name.split(".")[1] for name in names if name.startswith("adapters.")}
    return folders & {known.folder for known in DIALECTS.values()}


def test_a_server_imports_the_dialect_of_its_backend_only(tmp_path: Path) -> None:
    (names,) = imported(tmp_path, "engine")
    assert "adapters.engine.client" in names
    assert of_dialects(names) == {"engine"}


def test_a_server_imports_what_is_asked_of_it_and_no_more(tmp_path: Path) -> None:
    paths = ("/as/herm/to/one/", "/api/v1/backends", "/ui/")
    first, face, control, page = imported(tmp_path, "engine", *paths)
    parts = {
        *("adapters.herm.routes", "adapters.herm.client", "proxy.control.control"),
        *("adapters.offline.translate", "opentelemetry", "rich.table"),
    }
    assert first & parts == set()
    assert of_dialects(face) == {"engine", "herm"}
    assert face & parts == {"adapters.herm.routes"}
    assert control & parts == {
        *("adapters.herm.routes", "proxy.control.control", "adapters.offline.translate"),
    }
    assert of_dialects(page) == {"engine", "herm"}
