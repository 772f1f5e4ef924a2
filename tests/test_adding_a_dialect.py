"""The tutorial names what there is: events, acts, members, the columns and words of the tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from adapters.contract.faces import Act, Face
from adapters.contract.mapping import BACKENDS, FIDELITIES, SECTIONS, SERVICES
from adapters.model.base import Encoder
from adapters.model.events import EVENT_TYPES
from docs.examples import tiny

REPOSITORY = Path(__file__).parent.parent
PAGE = (REPOSITORY / "docs" / "adding-a-dialect.md").read_text(encoding="utf-8")
LAWS = (REPOSITORY / "adapters" / "model" / "LAWS.md").read_text(encoding="utf-8")
TABLES = (REPOSITORY / "adapters" / "contract" / "TABLES.md").read_text(encoding="utf-8")


def section(title: str, page: str = PAGE) -> str:
    """Return the text below a heading of the page, or of another one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def names(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def test_every_canonical_event_has_its_place_in_the_order_of_the_log() -> None:
    told = names(section("The log, in the order in which an encoder meets it", LAWS))
    families = {name.removesuffix(".*") for name in told if name.endswith(".*")}
    untold = [t for t in EVENT_TYPES if t not in told and t.partition(".")[0] not in families]
    assert untold == []
    dotted = {name for name in told if re.fullmatch(r"[a-z]+\.[a-z_]+", name)}
    assert dotted - set(EVENT_TYPES) == {"entry.event", "entry.seq", "entry.at"}


def test_every_act_and_every_member_of_an_encoder_is_told() -> None:
    told = names(section("The face"))
    assert {act.__name__ for act in map(_plain, get_args(Act))} <= told
    wanted = {name for name in vars(Encoder) if not name.startswith("_")}
    text = section("The encoder")
    assert [name for name in wanted if f"`{name}" not in text] == []


def _plain(act: object) -> type:
    found = getattr(act, "__origin__", act)
    assert isinstance(found, type)
    return found


@pytest.mark.parametrize("name", SECTIONS)
def test_the_tables_of_a_mapping_are_told_with_their_columns(name: str) -> None:
    assert f"| `## {name}` | {', '.join(SECTIONS[name])} |" in TABLES


def test_the_words_of_the_tables_are_told() -> None:
    assert names(TABLES) >= BACKENDS | FIDELITIES | SERVICES


def test_the_example_is_a_whole_face_with_the_parts_that_the_page_names() -> None:
    source = Path(tiny.__file__).read_text(encoding="utf-8")
    parts = re.findall(r"^# (\S+\.py): ", source, re.MULTILINE)
    assert parts == ["server.py", "requests.py", "routes.py", "adapters/registry.py"]
    assert isinstance(tiny.FACE, Face)
    (line,) = re.findall(r'^Dialect\("tiny".*\)$', PAGE, re.MULTILINE)
    assert 'only="frontends"' in line
