"""Events and entries as text: what is written is read back, and only that."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from adapters.model import events as ev
from adapters.model.commands import (
    COMMAND_TYPES,
    AnswerInteraction,
    Sealed,
    SendMessage,
    decode_command,
    encode_command,
)
from adapters.wire.jsonvalue import parse_json

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, values, max_size=3)
refs = st.one_of(
    st.builds(ev.Blob, sha256=words),
    st.builds(ev.Url, url=words),
    st.builds(ev.FileId, dialect=words, id=words),
)
text_blocks = st.builds(ev.Text, text=words, extra=st.none() | objects)
contents = st.one_of(
    text_blocks,
    st.builds(ev.File, media_type=st.none() | words, name=st.none() | words, ref=refs),
    st.builds(ev.Redacted, extra=st.none() | objects),
    st.builds(ev.SearchResult, source=words, title=words, content=st.tuples(text_blocks)),
    st.builds(ev.Other, dialect=words, value=values),
)
for _model, _strategy in (
    (ev.Text, text_blocks),
    (ev.File, contents.filter(lambda block: isinstance(block, ev.File))),
):
    st.register_type_strategy(_model, _strategy)


def strategy_for(annotation: Any) -> st.SearchStrategy[Any]:
    """Return values of a field's type, JSON's own where it is open."""
    if annotation is Any:
        return values
    if annotation is ev.JsonObject or annotation == dict[str, Any]:
        return objects
    if annotation is str:
        return words
    if annotation is int:
        return st.integers(-(2**60), 2**60)
    if annotation is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if annotation is bool:
        return st.booleans()
    if annotation is type(None):
        return st.none()
    if annotation in (ev.Content, tuple[ev.Content, ...]):
        return contents if annotation is ev.Content else st.lists(contents, max_size=2).map(tuple)
    if isinstance(annotation, type) and issubclass(annotation, ev.Model):
        return models(annotation)
    arguments = get_args(annotation)
    origin = getattr(annotation, "__origin__", None)
    if origin is tuple:
        return st.lists(strategy_for(arguments[0]), max_size=2).map(tuple)
    if arguments and all(isinstance(item, str) for item in arguments):
        return st.sampled_from(arguments)
    assert arguments, annotation
    return st.one_of(*map(strategy_for, arguments))


def models(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Return instances of a model with random values in random fields."""
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for name, field in cls.model_fields.items():
        if name == "type":
            continue
        annotation = field.annotation
        place = required if field.is_required() else optional
        place[name] = strategy_for(annotation)
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: cls(**fields))


@pytest.mark.parametrize("cls", ev.EVENT_TYPES.values(), ids=ev.EVENT_TYPES)
def test_every_event_is_read_back_as_it_was_written(cls: type[ev.Event]) -> None:
    @settings(max_examples=20)  # of some forty types
    @given(models(cls))
    def check(event: Any) -> None:
        written = ev.encode_event(event)
        assert json.loads(written)["type"] == cls.TYPE
        value = parse_json(written)
        assert isinstance(value, dict)
        assert ev.decode_event(value) == event
        entry = ev.Entry(7, 1_700_000_000_000, 'session "one" ✓', event)
        assert ev.Entry.decode(entry.encode()) == entry
        assert ev.Entry.decode(entry.encode_row(), session_id=entry.session_id) == entry

    check()


@given(models(ev.TextDelta) | models(ev.ReasoningDelta), words, st.integers(1, 10**9))
def test_the_quick_ways_of_deltas_give_what_the_slow_ones_do(
    delta: Any, text: str, frame: int
) -> None:
    update: dict[str, object] = {"text": text}
    if delta.native is not None:
        update["native"] = delta.native.model_copy(update={"frame": frame})
    following = ev.next_delta(delta, text, frame)
    assert following == delta.model_copy(update=update)
    assert following.model_fields_set == delta.model_fields_set
    assert delta.model_copy() == delta
    # What is common to a block is found once, and goes on from delta to delta.
    for quick in (following, ev.next_delta(following, text[::-1], frame + 1)):
        slow = quick.__pydantic_serializer__.to_json(quick, exclude_defaults=True)
        assert json.loads(ev.encode_event(quick)) == {"type": delta.TYPE, **json.loads(slow)}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(number: str) -> None:
    line = (
        '{"seq":1,"at":1,"session_id":"s","type":"result.produced","thread_id":"main",'
        f'"value":{number}}}'
    )
    with pytest.raises(ValueError, match=r"unexpected|number|digit"):
        ev.Entry.decode(line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[]", "expected a JSON object"),
        ('{"at":1,"session_id":"s"}', "`seq` is missing"),
        ('{"seq":1,"session_id":"s"}', "`at` is missing"),
        ('{"seq":"1","at":1,"session_id":"s","type":"gap","reason":"r"}', "are integers"),
        ('{"seq":1,"at":1,"type":"gap","reason":"r"}', "`session_id` is text"),
        ('{"seq":1,"at":1,"session_id":"s","type":"nothing"}', "canonical event: `type`"),
        ('{"seq":1,"at":1,"session_id":"s","thread_id":"m"}', "canonical event: `type`"),
        ('{"seq":1,"at":1,"session_id":"s","type":"gap","thread_id":"m"}', "`reason`"),
        (
            '{"seq":1,"at":1,"session_id":"s","type":"gap","thread_id":"m","reason":"r","x":1}',
            "`x`: Extra inputs are not permitted",
        ),
        (
            '{"seq":1,"at":1,"session_id":"s","type":"message.received","thread_id":"m",'
            '"message_id":"m","content":[{"type":"song"}]}',
            "`content.0`",
        ),
        ("{", "unexpected end"),
    ],
)
def test_what_is_no_entry_is_refused_with_the_field(line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("[", r"\[")):
        ev.Entry.decode(line)


def test_an_event_is_frozen() -> None:
    event = ev.Notice(thread_id=ev.MAIN, text="n")
    with pytest.raises(ValidationError):
        event.text = "changed"  # type: ignore[misc]


def test_defaults_are_not_written() -> None:
    entry = ev.Entry(1, 2, "s", ev.Notice(thread_id=ev.MAIN, text="n"))
    assert entry.encode() == (
        b'{"seq":1,"at":2,"session_id":"s","type":"notice","thread_id":"main","text":"n"}'
    )
    assert entry.encode_row() == b'{"seq":1,"at":2,"type":"notice","thread_id":"main","text":"n"}'


def test_content_has_words_for_every_block() -> None:
    content = (
        ev.Text(text="one"),
        ev.File(media_type="image/png", name="a.png", ref=ev.Url(url="u")),
        ev.File(ref=ev.Url(url="u")),
        ev.SearchResult(source="s", title="t", content=(ev.Text(text="c"),)),
        ev.Redacted(),
        ev.Other(dialect="eve", value={"x": 1}),
    )
    assert ev.text_of(content) == (
        'one\n[file: a.png (image/png)]\n[file: unnamed (file)]\nt\ns\nc\n[redacted]\n{"x":1}'
    )
    assert ev.text_of(None) == ""


# Commands.


@pytest.mark.parametrize("cls", COMMAND_TYPES.values(), ids=COMMAND_TYPES)
def test_every_command_is_read_back_as_it_was_stored(cls: type[Any]) -> None:
    fields = {name: f for name, f in cls.model_fields.items() if name not in ("type", "sealed")}
    required = {n: strategy_for(f.annotation) for n, f in fields.items() if f.is_required()}
    optional = {n: strategy_for(f.annotation) for n, f in fields.items() if not f.is_required()}

    @settings(max_examples=20)
    @given(st.fixed_dictionaries(required, optional=optional))
    def check(values: dict[str, Any]) -> None:
        command = cls(**values)
        stored = parse_json(encode_command(command))
        assert isinstance(stored, dict)
        assert decode_command(stored) == command

    check()


def test_a_sealed_value_is_in_no_text() -> None:
    sealed = Sealed("hunter2")
    command = AnswerInteraction(request_id="r", sealed=sealed)
    assert sealed.reveal() == "hunter2"
    for text in (repr(command), str(command), encode_command(command).decode(), f"{sealed}"):
        assert "hunter2" not in text
    assert sealed == sealed
    assert sealed != Sealed("hunter2")
    with pytest.raises(TypeError, match="no hash"):
        hash(sealed)
    with pytest.raises(TypeError, match="never stored"):
        sealed.__reduce__()


def test_what_is_no_command_is_refused() -> None:
    with pytest.raises(ValidationError):
        decode_command({"type": "dance"})
    with pytest.raises(ValidationError):
        SendMessage(content=(), policy="reject", colour="red")  # type: ignore[call-arg]


@dataclasses.dataclass(slots=True)
class State:
    """The state of a codec."""

    items: list[Any]


@pytest.mark.parametrize("more", [[], [2**70]], ids=["64 bits", "more"])
def test_a_state_has_events_as_they_are_stored_and_values_without_defaults(more: list[Any]) -> None:
    called = ev.ToolCalled(thread_id=ev.MAIN, call_id="c", name="t", input=2**70)
    texts = (ev.Text(text="\u00e9"), ev.Option(id="a", label="A"))
    written = ev.format_state(State([State([called]), {"a": texts}, *more]))
    assert json.loads(written) == {
        "items": [
            {"items": [json.loads(ev.encode_event(called))]},
            {"a": [{"type": "text", "text": "\u00e9"}, {"id": "a", "label": "A"}]},
            *more,
        ]
    }
