"""What options decide, and which answers a request takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.model.commands import AnswerInteraction, Sealed
from adapters.model.events import (
    MAIN,
    SEALED_KINDS,
    InteractionKind,
    InteractionRequested,
    Option,
    Text,
)
from adapters.model.interactions import (
    NEGATIVE,
    POSITIVE,
    SEALED_CHARACTERS,
    decide,
    decision_of,
    option_for,
    option_named,
    polarity,
)
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode
from tests.support.each import each

YES_NO = (Option(id="approve", label="Yes"), Option(id="deny", label="No"))
SCOPED = (
    Option(id="always", label="Always"),
    Option(id="session", label="For this session"),
    Option(id="once", label="Once"),
    Option(id="deny", label="Deny"),
)
COLORS = (Option(id="blue", label="Sky"), Option(id="red", label="Blue"))


def asked(
    kind: InteractionKind, options: tuple[Option, ...] | None = None, **more: Any
) -> InteractionRequested:
    return InteractionRequested(
        thread_id=MAIN, request_id="r", kind=kind, prompt="?", options=options, **more
    )


def given_answer(**fields: Any) -> AnswerInteraction:
    return AnswerInteraction(request_id="r", **fields)


def decided(request: InteractionRequested, **fields: Any) -> AnswerInteraction:
    return decide(given_answer(**fields), request)


def refusal(request: InteractionRequested, **fields: Any) -> str:
    with pytest.raises(ClientProtocolError) as refused:
        decided(request, **fields)
    return refused.value.message


# What an option decides.


@each(
    ("word", "means"),
    [
        ("approve", ("allow", None)),
        ("Approved", ("allow", None)),
        ("continue", ("allow", None)),
        ("OK!", ("allow", None)),
        ("allow_always", ("allow", "always")),
        ("allow-for-this-session", ("allow", "session")),
        ("once", ("allow", "once")),
        ("For this session", ("allow", "session")),
        ("deny_always", ("deny", "always")),
        ("STOP", ("deny", None)),
        ("do not approve", (None, None)),
        ("yes, and stop", (None, None)),
        ("later", (None, None)),
        ("approvement", (None, None)),
        ("", (None, None)),
        ("…", (None, None)),
    ],
)
def test_a_word_decides_only_when_it_is_the_only_one_besides_a_scope(
    word: str, means: tuple[str | None, str | None]
) -> None:
    assert polarity(word) == means


def test_no_word_both_allows_and_denies() -> None:
    assert POSITIVE.isdisjoint(NEGATIVE)
    assert all(polarity(word)[0] == "allow" for word in POSITIVE)
    assert all(polarity(word)[0] == "deny" for word in NEGATIVE)


@pytest.mark.parametrize(
    ("option", "means"),
    [
        # What the source says counts first.
        (Option(id="approve", label="Yes", decision="deny"), ("deny", None)),
        (Option(id="o1", label="x", decision="allow", scope="always"), ("allow", "always")),
        (Option(id="allow_session", label="x", decision="allow"), ("allow", "session")),
        (Option(id="allow_session", label="x", decision="deny"), ("deny", None)),
        # Then the id, the label, the style, in this order.
        (Option(id="approve", label="No", style="danger"), ("allow", None)),
        (Option(id="o1", label="No", style="primary"), ("deny", None)),
        (Option(id="o1", label="Run", style="primary"), ("allow", None)),
        (Option(id="o1", label="Run", style="danger"), ("deny", None)),
        (Option(id="o1", label="Run", style="default"), (None, None)),
        (Option(id="o1", label="Run"), (None, None)),
        (Option(id="once", label="x", scope="session"), ("allow", "session")),
    ],
)
def test_an_option_decides_by_what_it_says_then_id_label_and_style(
    option: Option, means: tuple[str | None, str | None]
) -> None:
    assert decision_of(option) == means


@pytest.mark.parametrize(
    ("decision", "scope", "chosen"),
    [
        ("allow", None, "once"),
        ("allow", "once", "once"),
        ("allow", "session", "session"),
        ("allow", "always", "always"),
        ("deny", None, "deny"),
        ("deny", "always", "deny"),
    ],
)
def test_the_option_for_a_decision_goes_as_far_as_was_asked_and_no_further(
    decision: Any, scope: Any, chosen: str
) -> None:
    option = option_for(asked("approval", SCOPED), decision, scope)
    assert option is not None
    assert option.id == chosen


def test_a_wider_scope_than_offered_is_narrowed() -> None:
    request = asked("approval", (SCOPED[2], SCOPED[3]))
    option = option_for(request, "allow", "always")
    assert option is not None
    assert option.id == "once"
    assert decided(request, decision="allow", scope="always").scope == "once"
    # Options without scopes go no further than once either.
    assert decided(asked("approval", YES_NO), decision="allow", scope="session").scope == "once"


def test_where_no_option_decides_there_is_none() -> None:
    assert option_for(asked("approval"), "allow") is None
    assert option_for(asked("approval", COLORS), "allow") is None
    assert option_for(asked("approval", (SCOPED[0],)), "allow") is None


@pytest.mark.parametrize(
    ("words", "options", "chosen"),
    [
        ("blue", COLORS, "blue"),
        ("Blue", COLORS, "blue"),
        ("sky", COLORS, "blue"),
        (" red ", COLORS, "red"),
        ("2", COLORS, None),
        ("a", (Option(id="A", label="1"), Option(id="a", label="2")), "a"),
        ("A", (Option(id="a", label="1"), Option(id="A", label="2")), "A"),
        ("green", COLORS, None),
        ("", COLORS, None),
    ],
)
def test_words_name_an_option_by_id_before_label_and_exactly_before_roughly(
    words: str, options: tuple[Option, ...], chosen: str | None
) -> None:
    option = option_named(words, options)
    assert (None if option is None else option.id) == chosen


@pytest.mark.parametrize(
    ("words", "chosen"),
    [("1", "blue"), ("2", "red"), ("0", None), ("3", None), ("02", "red"), ("9" * 5000, None)],
)
def test_a_number_names_an_option_where_numbers_are_shown(words: str, chosen: str | None) -> None:
    option = option_named(words, COLORS, numbers=True)
    assert (None if option is None else option.id) == chosen


def test_an_option_that_is_called_like_a_number_goes_before_the_number() -> None:
    options = (Option(id="2", label="two"), Option(id="1", label="one"))
    found = option_named("1", options, numbers=True)
    assert found == options[1]


# Approvals and limits.


@pytest.mark.parametrize(
    ("fields", "decision", "chosen"),
    [
        ({"decision": "allow"}, "allow", ("approve",)),
        ({"decision": "deny", "reason": "not now"}, "deny", ("deny",)),
        ({"option_ids": ("deny",)}, "deny", ("deny",)),
        ({"option_ids": ("Yes",)}, "allow", ("approve",)),
        ({"option_ids": ("approve",), "decision": "allow"}, "allow", ("approve",)),
        ({"skip": True}, "deny", ("deny",)),
    ],
)
def test_an_approval_is_decided_by_a_decision_or_an_option(
    fields: dict[str, Any], decision: str, chosen: tuple[str, ...]
) -> None:
    answer = decided(asked("approval", YES_NO), **fields)
    assert (answer.decision, answer.option_ids, answer.scope) == (decision, chosen, None)
    assert answer.reason == fields.get("reason")


def test_an_approval_without_options_keeps_the_decision_and_the_scope() -> None:
    answer = decided(asked("approval"), decision="allow", scope="session")
    assert (answer.decision, answer.scope, answer.option_ids) == ("allow", "session", ())
    assert decided(asked("limit"), decision="deny", scope="session").scope is None


def test_the_scope_is_that_of_the_option() -> None:
    request = asked("approval", SCOPED)
    assert decided(request, option_ids=("session",)).scope == "session"
    assert decided(request, decision="allow").option_ids == ("once",)
    assert decided(request, decision="allow", scope="session").option_ids == ("session",)
    assert decided(request, option_ids=("once",), scope="always").scope == "once"


@each(
    ("options", "fields", "why"),
    [
        (YES_NO, {}, "is answered with allow or deny"),
        (YES_NO, {"text": "yes"}, "is answered with allow or deny"),
        (YES_NO, {"option_ids": ("maybe",)}, "offers no option `maybe`"),
        (None, {"option_ids": ("approve",)}, "offered are: none"),
        (YES_NO, {"option_ids": ("approve", "deny")}, "takes one option"),
        (YES_NO, {"option_ids": ("deny",), "decision": "allow"}, "says deny, not allow"),
        (YES_NO, {"option_ids": ("approve",), "decision": "deny"}, "says allow, not deny"),
        (YES_NO, {"option_ids": ("approve",), "skip": True}, "says allow, not deny"),
        (YES_NO, {"decision": "allow", "skip": True}, "is either allowed or skipped"),
        (SCOPED, {"option_ids": ("always",), "scope": "once"}, "goes further than `once`"),
        (SCOPED[:2], {"decision": "allow"}, "goes further: `always`, `session`"),
        (YES_NO, {"decision": "allow", "sealed": Sealed("x")}, "takes no sealed value"),
        (COLORS, {"option_ids": ("blue",)}, "is answered with allow or deny"),
    ],
)
@each("kind", ["approval", "limit"])
def test_an_approval_refuses_what_does_not_decide_it_once(
    kind: InteractionKind, options: tuple[Option, ...] | None, fields: dict[str, Any], why: str
) -> None:
    assert why in refusal(asked(kind, options), **fields)


def test_a_long_name_of_an_option_is_cut() -> None:
    assert len(refusal(asked("approval", YES_NO), option_ids=("x" * 10_000,))) < 300


# Questions, tool results, sign-ins.


def test_a_question_takes_options_words_or_a_refusal() -> None:
    request = asked("question", COLORS)
    assert decided(request, option_ids=("blue", "red")).option_ids == ("blue", "red")
    assert decided(request, skip=True).skip
    # Words that name an option are that option.
    named = decided(request, text="sky")
    assert (named.option_ids, named.text) == (("blue",), None)
    free = decided(asked("question", COLORS, freeform=True), text="sky")
    assert (free.option_ids, free.text) == ((), "sky")
    assert decided(asked("question"), text="green").text == "green"


def test_a_decision_answers_a_question_whose_options_mean_it() -> None:
    assert decided(asked("question", YES_NO), decision="deny").option_ids == ("deny",)
    assert "with an option or with text" in refusal(asked("question", COLORS), decision="allow")


def test_a_question_refuses_nothing_and_what_it_did_not_offer() -> None:
    assert "with an option or with text" in refusal(asked("question", COLORS))
    assert "offers no option `green`" in refusal(asked("question", COLORS), text="green")
    assert "offers no option `green`" in refusal(asked("question"), option_ids=("green",))


def test_the_words_for_a_tool_result_are_its_content() -> None:
    answer = decided(asked("tool_result"), text="42")
    assert (answer.content, answer.text) == ((Text(text="42"),), None)
    content = (Text(text="43"),)
    assert decided(asked("tool_result"), content=content).content == content
    assert "with an option or with text" in refusal(asked("tool_result"))


@pytest.mark.parametrize(
    "fields", [{"skip": True}, {"decision": "deny"}, {"option_ids": ("cancel",)}]
)
def test_a_sign_in_can_only_be_called_off(fields: dict[str, Any]) -> None:
    request = asked("authorization", (Option(id="cancel", label="Cancel"),))
    assert decided(request, **fields).decision == "deny"
    assert "sign-in" in refusal(request, decision="allow")
    assert "sign-in" in refusal(request, text="done")
    assert "sign-in" in refusal(request, skip=True, text="done")
    assert "sign-in" in refusal(request)


# Sealed kinds.


@pytest.mark.parametrize("kind", sorted(SEALED_KINDS))
@pytest.mark.parametrize("fields", [{"skip": True}, {"decision": "deny"}, {"option_ids": ("no",)}])
def test_a_sealed_request_may_be_declined(kind: InteractionKind, fields: dict[str, Any]) -> None:
    request = asked(kind, (Option(id="no", label="No"),))
    answer = decided(request, **fields)
    assert (answer.skip, answer.decision, answer.option_ids) == (True, None, ())
    assert answer.sealed is None


@pytest.mark.parametrize("kind", sorted(SEALED_KINDS))
def test_a_sealed_request_takes_a_sealed_value(kind: InteractionKind) -> None:
    value = Sealed("hunter2")
    answer = decided(asked(kind), sealed=value)
    assert answer.sealed is value
    assert not answer.skip


def test_a_sealed_value_has_a_bound() -> None:
    decided(asked("secret"), sealed=Sealed("x" * SEALED_CHARACTERS))
    with pytest.raises(DragomanError, match="at most 8192 characters") as caught:
        decided(asked("secret"), sealed=Sealed("x" * (SEALED_CHARACTERS + 1)))
    assert caught.value.code is ErrorCode.TOO_LARGE


def test_no_more_options_are_named_than_there_are_and_none_twice() -> None:
    options = tuple(Option(id=f"o{number}", label=f"Option {number}") for number in range(256))
    request = asked("question", options)
    names = tuple(option.label.upper() for option in options)
    assert decided(request, option_ids=names).option_ids == tuple(o.id for o in options)
    assert "offers 256 options and was given 257" in refusal(request, option_ids=(*names, "o1"))
    assert "an option twice" in refusal(request, option_ids=("o1", "OPTION 1"))


@each("kind", sorted(SEALED_KINDS))
@each(
    "fields",
    [
        {},
        {"text": "hunter2"},
        {"text": ""},
        {"option_ids": ("hunter2",)},
        {"decision": "allow"},
        {"skip": True, "text": "hunter2"},
        {"skip": True, "option_ids": ("hunter2",)},
        {"content": (Text(text="hunter2"),)},
        {"sealed": Sealed("x"), "text": "hunter2"},
        {"sealed": Sealed("x"), "reason": "hunter2"},
        {"sealed": Sealed("x"), "skip": True},
        {"sealed": Sealed("x"), "decision": "deny"},
    ],
)
def test_a_sealed_request_refuses_all_else_and_quotes_nothing(
    kind: InteractionKind, fields: dict[str, Any]
) -> None:
    request = asked(kind, (Option(id="yes", label="Yes"), Option(id="no", label="No")))
    assert "hunter2" not in refusal(request, **fields)


# Whatever is asked and answered.

_words = st.sampled_from(["approve", "deny", "once", "always", "blue", "x", ""])
_options = st.lists(
    st.builds(
        Option,
        id=_words,
        label=_words,
        decision=st.sampled_from([None, "allow", "deny"]),
        scope=st.sampled_from([None, "once", "session", "always"]),
        style=st.sampled_from([None, "primary", "danger"]),
    ),
    max_size=4,
)
_kinds: Any = st.sampled_from(
    ["approval", "question", "secret", "tool_result", "authorization", "limit", "unknown"]
)
_answers = st.builds(
    given_answer,
    decision=st.sampled_from([None, "allow", "deny"]),
    scope=st.sampled_from([None, "once", "session", "always"]),
    option_ids=st.lists(_words, max_size=2).map(tuple),
    text=st.none() | _words,
    skip=st.booleans(),
)
_order = {None: 0, "once": 0, "session": 1, "always": 2}


@given(_kinds, _options, st.booleans(), _answers)
def test_an_answer_is_refused_or_taken_and_never_grants_more_than_it_says(
    kind: InteractionKind, options: list[Option], freeform: bool, answer: AnswerInteraction
) -> None:
    request = asked(kind, tuple(options) or None, freeform=freeform)
    try:
        taken = decide(answer, request)
    except ClientProtocolError:
        return
    offered = {option.id for option in options}
    assert set(taken.option_ids) <= offered
    if kind in ("approval", "limit", "authorization") and taken.decision == "allow":
        # Somebody said so: in the answer, or by the option that they named.
        assert answer.decision == "allow" or answer.option_ids
        assert answer.decision != "deny"
        assert not answer.skip
        if answer.decision == "allow" and not answer.option_ids:
            assert _order[taken.scope] <= _order[answer.scope]
    if kind in SEALED_KINDS:
        assert taken.text is None
        assert taken.option_ids == ()
    # Taken once, it is taken again in the same way.
    assert decide(taken, request) == taken
