"""Answers and what they answer: what an option decides, and whether an answer fits its request.

An answer is matched with its request before anything is stored, so that an option that was not
offered, or a kind of answer that a request does not take, is refused before a backend sees it. An
answer never grants more than it says: of several options that allow, the one with the narrowest
scope that was asked for is taken, and an option that grants more is never chosen for somebody.

No refusal quotes what was given to a sealed request: it may be the secret.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from adapters.model.commands import AnswerInteraction
from adapters.model.events import SEALED_KINDS, Answer, InteractionRequested, Option, Text
from adapters.wire.errors import ClientProtocolError, DragomanError, ErrorCode

Decision: TypeAlias = Literal["allow", "deny"]
Scope: TypeAlias = Literal["once", "session", "always"]

POSITIVE = frozenset(
    {
        *("accept", "accepted", "allow", "allowed", "approve", "approved"),
        *("confirm", "confirmed", "continue", "ok", "yes"),
    }
)
NEGATIVE = frozenset(
    {
        *("block", "cancel", "decline", "declined", "deny", "denied"),
        *("no", "refuse", "refused", "reject", "rejected", "stop"),
    }
)
"""Words of option ids and labels that decide by themselves: those of all five dialects."""

SCOPES: tuple[Scope, ...] = ("once", "session", "always")
"""How far an approval goes, narrowest first."""

SEALED_CHARACTERS = 8 * 1024
"""Characters of a sealed value: the longest private keys have 6,400. While it is held all that the
backend says, and what is logged, is searched for it and each of its lines."""

_FILLERS = frozenset({"for", "this", "the"})


DECLINED = "(The user declined to answer.)"
"""What a backend is told in words where a question is declined and it has nothing else for that:
nobody takes it for an answer."""


def polarity(word: str) -> tuple[Decision | None, Scope | None]:
    """Return what a word decides, and how far: `allow_always` gives `("allow", "always")`.

    A scope alone allows. More than one word besides a scope decides nothing: «do not approve».
    """
    # A text of more characters has more than one word.
    return _polarity(word) if len(word) <= 100 else (None, None)


@functools.lru_cache(maxsize=1024)
def _polarity(word: str) -> tuple[Decision | None, Scope | None]:
    parts = [part for part in re.split(r"[^a-z]+", word.lower()) if part and part not in _FILLERS]
    scope: Scope | None = next((s for s in SCOPES if parts and parts[-1] == s), None)
    if scope is not None:
        parts = parts[:-1]
        if not parts:
            return "allow", scope
    if len(parts) != 1:
        return None, None
    if parts[0] in POSITIVE:
        return "allow", scope
    return ("deny", scope) if parts[0] in NEGATIVE else (None, None)


def decision_of(option: Option) -> tuple[Decision | None, Scope | None]:
    """Return what choosing an option decides, and how far.

    What the source says of it counts first, then the id, then the label, then the style: an
    «approve» is often painted as the dangerous choice, and must not become a denial, nor a
    recommended «deny» an approval.
    """
    decision, scope = polarity(option.id)
    if decision is None:
        decision, scope = polarity(option.label)
    if option.decision is not None:
        return option.decision, option.scope or (scope if decision == option.decision else None)
    if decision is not None:
        return decision, option.scope or scope
    match option.style:
        case "primary":
            return "allow", option.scope
        case "danger":
            return "deny", option.scope
        case _:
            return None, None


def option_for(
    request: InteractionRequested, decision: Decision, scope: Scope | None = None
) -> Option | None:
    """Return the request's own option for a decision, or None where it offers none.

    Of those that allow, the one that goes furthest within `scope`, which is `once` when None.
    """
    found: Option | None = None
    reach = -1
    limit = SCOPES.index(scope or "once")
    for option in request.options or ():
        decided, goes = decision_of(option)
        if decided != decision:
            continue
        if decision == "deny":
            return option
        far = SCOPES.index(goes or "once")
        if reach < far <= limit:
            found, reach = option, far
    return found


class OptionNames:
    """The names of options: ids, then labels, whatever the case of the letters. Ids go before
    labels: one option may be labelled as another is called."""

    def __init__(self, options: Sequence[Option]) -> None:
        self._options = options
        self._ways: tuple[dict[str, Option], ...] = ({}, {}, {}, {})
        for option in options:
            names = (option.id, option.id.lower(), option.label, option.label.lower())
            for way, name in zip(self._ways, names, strict=True):
                way.setdefault(name, option)

    def find(self, words: str, *, numbers: bool = False) -> Option | None:
        """Return the option that words name; with `numbers` also by its place, from 1."""
        wanted = words.strip()
        folded = wanted.lower()
        for way, name in zip(self._ways, (wanted, folded, wanted, folded), strict=True):
            if (option := way.get(name)) is not None:
                return option
        # Longer numbers are not numbers of options, and Python refuses to read some.
        if (
            numbers
            and re.fullmatch(r"[0-9]{1,4}", wanted)
            and 0 < int(wanted) <= len(self._options)
        ):
            return self._options[int(wanted) - 1]
        return None


def option_named(words: str, options: Sequence[Option], *, numbers: bool = False) -> Option | None:
    """Return the option that words name, see `OptionNames`."""
    return OptionNames(options).find(words, numbers=numbers)


def decide(answer: AnswerInteraction, request: InteractionRequested) -> AnswerInteraction:
    """Return the answer as the request takes it: options by id, and what they decide.

    Raises:
        ClientProtocolError: an option was not offered, the answer contradicts itself, nothing was
            answered, or the request does not take such an answer.
    """
    offered = request.options or ()
    if len(answer.option_ids) > max(len(offered), 1):
        why = f"offers {len(offered)} options and was given {len(answer.option_ids)}"
        raise _refused(request, why)
    if request.kind in SEALED_KINDS:
        return _decide_sealed(answer, request)
    if answer.sealed is not None:
        raise _refused(request, f"is a {request.kind} and takes no sealed value")
    names = OptionNames(offered)
    chosen: list[Option] = []
    ids: list[str] = []
    for name in answer.option_ids:
        option = _offered(name, names, request)
        if option.id in ids:
            raise _refused(request, "was given an option twice")
        chosen.append(option)
        ids.append(option.id)
    answer = answer.model_copy(update={"option_ids": tuple(ids)})
    match request.kind:
        case "approval" | "limit":
            return _decide_approval(answer, request, chosen)
        case "authorization":
            # Nothing on any wire answers a sign-in: it can only be called off.
            decided = [decision_of(option)[0] for option in chosen] or [answer.decision]
            if answer.text or answer.content or not (answer.skip or decided == ["deny"]):
                raise _refused(request, "is a sign-in: it can only be declined here")
            return answer.model_copy(update={"decision": "deny"})
        case _:
            return _decide_question(answer, request, chosen)


def _decide_sealed(answer: AnswerInteraction, request: InteractionRequested) -> AnswerInteraction:
    """Take a sealed value or a refusal to give one, and nothing else: it may be the value."""
    declined = answer.skip or answer.decision == "deny"
    names = OptionNames(request.options or ())
    for name in answer.option_ids:
        option = names.find(name)
        if option is None or decision_of(option)[0] != "deny":
            raise _refused(request, "takes a sealed value, or is declined")
        declined = True
    if answer.text is not None or answer.content is not None:
        raise _refused(request, "takes its value sealed, in no other way")
    if declined == (answer.sealed is not None) or (answer.sealed is not None and answer.reason):
        raise _refused(request, "takes a sealed value alone, or is declined")
    if declined:
        return answer.model_copy(update={"skip": True, "decision": None, "option_ids": ()})
    assert answer.sealed is not None
    value = answer.sealed.reveal()
    if len(value) > SEALED_CHARACTERS:
        raise DragomanError(
            f"A sealed value has at most {SEALED_CHARACTERS} characters.", code=ErrorCode.TOO_LARGE
        )
    return answer


def _decide_approval(
    answer: AnswerInteraction, request: InteractionRequested, chosen: list[Option]
) -> AnswerInteraction:
    if len(chosen) > 1:
        raise _refused(request, "takes one option")
    decision, scope = answer.decision, answer.scope
    if answer.skip:
        if decision == "allow":
            raise _refused(request, "is either allowed or skipped")
        decision = "deny"
    goes: Scope | None = None
    if chosen:
        decided, goes = decision_of(chosen[0])
        if decision is not None and decided not in (None, decision):
            raise _refused(request, f"has an option that says {decided}, not {decision}")
        decision = decision or decided
        if goes is not None and scope is not None and SCOPES.index(goes) > SCOPES.index(scope):
            raise _refused(request, f"has an option that goes further than `{scope}`")
    elif decision is not None:
        own = option_for(request, decision, scope)
        deciding = [o.id for o in request.options or () if decision_of(o)[0] == decision]
        if own is not None:
            chosen, goes = [own], decision_of(own)[1]
        elif deciding:
            why = f"allows only with an option that goes further: {_list(deciding)}"
            raise _refused(request, why)
    if decision is None:
        raise _refused(request, "is answered with allow or deny")
    if chosen:
        # An option without a scope goes no further than once.
        scope = goes or (None if scope is None else "once")
    return answer.model_copy(
        update={
            "decision": decision,
            "option_ids": (chosen[0].id,) if chosen else (),
            "scope": scope if decision == "allow" else None,
        }
    )


def _decide_question(
    answer: AnswerInteraction, request: InteractionRequested, chosen: list[Option]
) -> AnswerInteraction:
    """Take options or words; a mere decision where one of the options means it."""
    if not (chosen or answer.skip or answer.content or answer.text is not None):
        own = None if answer.decision is None else option_for(request, answer.decision)
        if own is None:
            raise _refused(request, "is answered with an option or with text")
        return answer.model_copy(update={"option_ids": (own.id,)})
    if request.kind == "tool_result":
        if answer.text is not None and answer.content is None:
            # The words are what the tool returned.
            content = (Text(text=answer.text),)
            return answer.model_copy(update={"content": content, "text": None})
    elif answer.text is not None and not chosen and request.options and not request.freeform:
        # Words that name an option choose it; other words were not asked for.
        named = _offered(answer.text, OptionNames(request.options), request)
        return answer.model_copy(update={"option_ids": (named.id,), "text": None})
    return answer


def fits(answer: Callable[[], AnswerInteraction], request: InteractionRequested) -> bool:
    """Say whether a request takes an answer, which may not even be one."""
    try:
        decide(answer(), request)
    except DragomanError:
        return False
    return True


def declined(request: InteractionRequested, reason: str) -> AnswerInteraction:
    """Return the answer of a person who does not answer: an approval is denied, the call of a tool
    has failed, all else is skipped."""
    answer = AnswerInteraction(request_id=request.request_id, reason=reason)
    match request.kind:
        case "approval" | "limit":
            return answer.model_copy(update={"decision": "deny"})
        case "tool_result":
            text = Text(text=reason)
            return AnswerInteraction(request_id=request.request_id, content=(text,), is_error=True)
        case _:
            return answer.model_copy(update={"skip": True})


def answer_of(command: AnswerInteraction) -> Answer:
    """Return what a command answers, as the log tells it."""
    return Answer(
        option_ids=command.option_ids,
        text=command.text,
        content=command.content,
        reason=command.reason,
        is_error=command.is_error,
    )


def _offered(name: str, names: OptionNames, request: InteractionRequested) -> Option:
    option = names.find(name)
    if option is not None:
        return option
    offered = _list([option.id for option in request.options or ()]) or "none"
    why = f"offers no option `{name[:80]}`; offered are: {offered}"
    raise _refused(request, why)


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _refused(request: InteractionRequested, why: str) -> ClientProtocolError:
    return ClientProtocolError(f"Request `{request.request_id}` {why}.")
