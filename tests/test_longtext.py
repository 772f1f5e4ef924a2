"""Long texts in a state are written as others are, and quickly again."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters import events as ev
from adapters.jsonvalue import JsonError, format_json
from adapters.longtext import LONG, format_state, held_long, written_once


@dataclasses.dataclass(slots=True)
class Item:
    """Part of a state."""

    text: str
    more: Any = None


@dataclasses.dataclass(slots=True)
class State:
    """A state."""

    items: list[Any] = dataclasses.field(default_factory=list)
    named: dict[str, Any] = dataclasses.field(default_factory=dict)


TEXT = '"\u00e9\n' * LONG

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text() | st.just(TEXT),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=4))
def test_what_is_held_is_equal_and_is_written_as_before(values: list[Any]) -> None:
    plain = State(values, {"all": values, "item": Item(TEXT, values)})
    held = held_long(copy.deepcopy(plain))
    assert held == plain
    assert format_state(held) == format_state(plain) == orjson.dumps(plain)


def test_a_long_text_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    state = held_long(State([TEXT, Item(TEXT)], {"a": TEXT[:-1] + "x", "b": [TEXT, "short"]}))
    looked: list[object] = []

    def dumps(value: object, **options: Any) -> bytes:
        looked.append(value)
        return real(value, **options)

    real = orjson.dumps
    monkeypatch.setattr(orjson, "dumps", dumps)
    whole = format_state(state)
    # Nothing but the state: its long texts have their JSON.
    assert looked == [state]
    assert json.loads(whole)["named"]["b"] == [TEXT, "short"]
    # What is held already is not looked through again.
    assert held_long(state) is state
    assert looked == [state]
    assert state.items[0] is state.items[1].text is state.named["b"][0]


def test_a_long_text_is_written_from_its_json_wherever_it_stands() -> None:
    state = held_long(State([TEXT], {"a": [Item(TEXT + "1"), {"b": TEXT + "2"}]}))
    (plain,), (item, named) = state.items, state.named["a"]
    for number, long in enumerate((plain, item.text, named["b"])):
        long.json = b"%d" % number
    assert json.loads(format_state(state)) == {
        "items": [0],
        "named": {"a": [{"text": 1, "more": None}, {"b": 2}]},
    }
    assert json.loads(format_json(written_once([plain]))) == [0]


@given(VALUES)
def test_what_is_written_once_is_written_as_before(value: Any) -> None:
    assert format_json(written_once(copy.deepcopy(value))) == format_json(value)


def test_a_state_with_a_number_beyond_64_bits_is_written_all_the_same() -> None:
    state = held_long(State([TEXT, 2**70]))
    assert json.loads(format_state(state)) == {"items": [TEXT, 2**70], "named": {}}


TEXTS = (ev.Text(text=TEXT), ev.Text(text="short"))

BIG = ev.ToolCalled(thread_id=ev.MAIN, call_id="c", name="t", input=2**70)


def test_values_of_the_model_and_events_are_written_without_their_defaults() -> None:
    state = held_long(State([TEXTS, BIG], {"option": ev.Option(id="a", label="A")}))
    assert state == State([TEXTS, BIG], {"option": ev.Option(id="a", label="A")})
    assert state.items[0][0].text.json == orjson.dumps(TEXT)
    assert state.items[0][1] is TEXTS[1]
    written = format_state(state)
    assert json.loads(written) == {
        "items": [
            [{"type": "text", "text": TEXT}, {"type": "text", "text": "short"}],
            json.loads(ev.encode_event(BIG)),
        ],
        "named": {"option": {"id": "a", "label": "A"}},
    }
    # A number beyond 64 bits that is in no event makes it be written otherwise.
    state.items.append(2**70)
    assert json.loads(format_state(state))["items"][:2] == json.loads(written)["items"]


def test_a_copy_of_a_long_text_is_written_as_well() -> None:
    state = copy.deepcopy(held_long(State([TEXT])))
    assert json.loads(format_state(state))["items"] == [TEXT]


def test_what_is_no_json_is_no_state() -> None:
    with pytest.raises(JsonError):
        format_state(State([object()]))
