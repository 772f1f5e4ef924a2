"""The story that every scripted backend tells: what a user message makes the agent do.

A message `script: <name> [argument]` selects a script; anything else is answered with text that
quotes the message. A script is a tuple of beats, values that say what happens and not how a dialect
writes it; the backend of a dialect plays them in its own frames, and says in text that it has no
such thing where a beat is not in its dialect. All of them tell the same story with the same tool
names, questions and texts, so a test of any pair of dialects knows what must come through.

Texts and tool inputs are those of the Engine recordings (the file is named beside each), so that
the Engine's scripted stream can be compared with its recording.

Why one module: it is a table of scripts.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never


@dataclass(frozen=True, slots=True)
class ThinkBeat:
    """Reasoning, in pieces."""

    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SayBeat:
    """Answer text, in pieces, with that many seconds before each piece."""

    pieces: tuple[str, ...]
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call and what comes of it; `error` set means that the tool fails."""

    tool: str
    input: Mapping[str, object]
    output: object = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunBeat:
    """Tools that run at once: all are called before the first returns."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class ApproveBeat:
    """A tool that needs a person's yes; the agent says one text or the other after the answer.
    `refusals` is how many answers the backend refuses before it takes one."""

    call: ToolCall
    question: str
    granted: tuple[str, ...]
    denied: tuple[str, ...]
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class ApproveAllBeat:
    """Tools that one model call asks for and that each need a yes: all are asked at once, and the
    agent goes on when all are answered."""

    approvals: tuple[ApproveBeat, ...]


@dataclass(frozen=True, slots=True)
class AskBeat:
    """A question, with options or open; `{answer}` in the reply stands for what was answered."""

    question: str
    options: tuple[str, ...]
    reply: str


@dataclass(frozen=True, slots=True)
class AskSealedBeat:
    """A question whose answer nobody but the agent may see: a secret or a sudo password."""

    kind: str
    name: str
    question: str
    granted: tuple[str, ...]
    declined: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UseCustomToolBeat:
    """A tool that the application runs; `{result}` in the reply stands for what it sent back."""

    tool: str
    input: Mapping[str, object]
    reply: str


@dataclass(frozen=True, slots=True)
class SignInBeat:
    """A tool whose service a person must sign in to, elsewhere, before it runs."""

    service: str
    question: str
    call: ToolCall
    granted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LimitBeat:
    """The session has used up its tokens; a person says whether it goes on."""

    limit: int
    used: int
    granted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DelegateBeat:
    """A child agent with its own beats; its last text is its output."""

    name: str
    task: str
    beats: tuple["Beat", ...]


@dataclass(frozen=True, slots=True)
class ProduceBeat:
    """A structured result."""

    value: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CompactBeat:
    """The agent shortens its history."""

    before_tokens: int
    after_tokens: int
    strategy: str = "summary"


@dataclass(frozen=True, slots=True)
class RememberBeat:
    """The agent writes to its notes."""

    key: str
    value: object


@dataclass(frozen=True, slots=True)
class OddBeat:
    """Something that the dialect's page does not know."""


@dataclass(frozen=True, slots=True)
class FailBeat:
    """The turn fails."""

    code: str
    message: str
    details: Mapping[str, object] = field(default_factory=dict)


Beat = (
    ThinkBeat
    | SayBeat
    | RunBeat
    | ApproveBeat
    | ApproveAllBeat
    | AskBeat
    | AskSealedBeat
    | UseCustomToolBeat
    | SignInBeat
    | LimitBeat
    | DelegateBeat
    | ProduceBeat
    | CompactBeat
    | RememberBeat
    | OddBeat
    | FailBeat
)

# 02-thinking-and-tool.sse
_THINK = ThinkBeat(("The failing test is about rounding. ", "Look at the helper before guessing."))
_READ = ToolCall(
    "read_file",
    {"path": "/workspace/src/money.py"},
    "def to_cents(x):\n    return int(x * 100)\n",
)
# 08-long-turn.sse
_READ_A = ToolCall("read_file", {"path": "/workspace/a.sql"}, "CREATE TABLE t (id int);\n")
_READ_B = ToolCall("read_file", {"path": "/workspace/b.sql"}, "DROP TABLE u;\n")
# Engine page, sections 8.6 and 8.7: a connector's dotted name and a failed result.
_MAIL = ToolCall("gmail.read_thread", {"thread": "t-9"}, "", "connector token expired")
# 03-hitl-permission-yes.sse
_REMOVE = ApproveBeat(
    ToolCall("bash", {"command": "rm -rf /srv/exports/2024"}),
    "Run `rm -rf /srv/exports/2024`?",
    (" Done, 4.1 GB freed.",),
    ("Understood, I left /srv/exports/2024 alone.",),
)
# 05-hitl-permission-denied.sse
_HOSTS = ApproveBeat(
    ToolCall("write_file", {"path": "/etc/hosts", "content": "10.0.0.9 build\n"}),
    "Write to /etc/hosts?",
    ("Written to /etc/hosts.",),
    (
        "Understood, I left /etc/hosts alone. ",
        "You can add the line yourself: `10.0.0.9 build`.",
    ),
)


def _text(argument: str) -> tuple[Beat, ...]:
    # 01-plain-text.sse
    return (
        SayBeat(
            ("Basil likes ", "six hours of sun — ", "a south-facing sill at the café works."),
        ),
    )


def _reason(argument: str) -> tuple[Beat, ...]:
    return (
        _THINK,
        SayBeat(("`to_cents` truncates instead of rounding, ", "so 19.99 becomes 1998.")),
    )


def _tool(argument: str) -> tuple[Beat, ...]:
    # 02-thinking-and-tool.sse
    return (
        _THINK,
        SayBeat(("Checking the rounding helper.",)),
        RunBeat((_READ,)),
        SayBeat(("`to_cents` truncates instead of rounding, ", "so 19.99 becomes 1998.")),
    )


def _tools(argument: str) -> tuple[Beat, ...]:
    # 08-long-turn.sse
    return (
        SayBeat(("Starting the audit.",)),
        RunBeat((_READ_A, _READ_B)),
        SayBeat(("One risk found: ", "b.sql drops table u ", "without a guard.")),
    )


def _toolfail(argument: str) -> tuple[Beat, ...]:
    return (
        SayBeat(("Reading the thread.",)),
        RunBeat((_MAIL,)),
        SayBeat(("The mail connector must be connected again.",)),
    )


def _approve(argument: str) -> tuple[Beat, ...]:
    # 03-hitl-permission-yes.sse
    remove = replace(_REMOVE, refusals=1) if argument == "refused" else _REMOVE
    afterwards = {"slowly": _slow("40"), "fails": _fail("")}
    after = afterwards.get(argument, ())
    return (SayBeat(("The old export is 4 GB; removing it frees the disk.",)), remove, *after)


def _approve2(argument: str) -> tuple[Beat, ...]:
    return (SayBeat(("Two things need a go-ahead.",)), ApproveAllBeat((_REMOVE, _HOSTS)))


def _approve_twice(argument: str) -> tuple[Beat, ...]:
    return (SayBeat(("Two things need a go-ahead.",)), _REMOVE, _HOSTS)


def _ask(argument: str) -> tuple[Beat, ...]:
    # 04-hitl-question.sse
    return (
        SayBeat(("Two trains fit. ",)),
        AskBeat(
            "Which departure do you prefer?",
            ("07:40", "09:10"),
            "Holding a seat on the {answer}.",
        ),
    )


def _askopen(argument: str) -> tuple[Beat, ...]:
    return (
        SayBeat(("One thing is missing. ",)),
        AskBeat("Which name shall the ticket carry?", (), "The ticket carries the name {answer}."),
    )


def _custom(argument: str) -> tuple[Beat, ...]:
    return (
        SayBeat(("The application knows the stock. ",)),
        UseCustomToolBeat("lookup_stock", {"sku": "basil-7"}, "The application says: {result}"),
    )


def _secret(argument: str) -> tuple[Beat, ...]:
    return (
        SayBeat(("The registry wants a token. ",)),
        AskSealedBeat(
            "secret",
            "REGISTRY_TOKEN",
            "Token for the package registry?",
            ("The token works.",),
            ("Without a token I stop here.",),
        ),
    )


def _sudo(argument: str) -> tuple[Beat, ...]:
    return (
        SayBeat(("The update needs root. ",)),
        AskSealedBeat(
            "sudo",
            "sudo",
            "Password for sudo?",
            ("The update is installed.",),
            ("Without the password I stop here.",),
        ),
    )


def _signin(argument: str) -> tuple[Beat, ...]:
    # eve-0.80.1/server/sign-in.01.ndjson
    return (
        SayBeat(("The ledger knows. ",)),
        SignInBeat(
            "ledger",
            "Sign in to the ledger.",
            ToolCall("read_ledger", {"page": 3}, {"page": 3, "tokenLength": 8}),
            ("Page 3 of the ledger is in order.",),
        ),
    )


def _limit(argument: str) -> tuple[Beat, ...]:
    # eve-0.80.1/server/session-limit.01.ndjson
    return (RunBeat((_READ_A,)), LimitBeat(60, 84, ("I go on within the new budget.",)))


def _child(argument: str) -> tuple[Beat, ...]:
    return (
        SayBeat(("A colleague looks it up. ",)),
        DelegateBeat(
            "researcher",
            "Find the height of the north tower.",
            (RunBeat((_READ_A,)), SayBeat(("The north tower is 84 m tall.",))),
        ),
        SayBeat(("The researcher says: 84 m.",)),
    )


def _childask(argument: str) -> tuple[Beat, ...]:
    return (
        SayBeat(("A colleague clears the disk. ",)),
        DelegateBeat("cleaner", "Free the disk.", (_REMOVE,)),
        SayBeat(("The cleaner is done.",)),
    )


def _structured(argument: str) -> tuple[Beat, ...]:
    return (ProduceBeat({"title": "Towers", "count": 2}),)


def _deltas(argument: str, default: int) -> int:
    count = int(argument) if argument.isdecimal() else default
    # More events than the longest benchmark asks for; a larger number is a typing error.
    return min(count, 1_000_000)


def _long(argument: str) -> tuple[Beat, ...]:
    return (SayBeat(tuple(f"tick {n} " for n in range(_deltas(argument, 1000)))),)


def _slow(argument: str) -> tuple[Beat, ...]:
    count = _deltas(argument, 10)
    # Slow enough to cut, cancel or steer between two deltas.
    return (SayBeat(tuple(f"tick {n} " for n in range(count)), 0.1),)


def _fail(argument: str) -> tuple[Beat, ...]:
    # 06b-error-then-errored-lifecycle.sse
    return (
        FailBeat("LLM_RATE_LIMITED", "The provider is limiting requests.", {"retry_after": 12}),
    )


def _failmid(argument: str) -> tuple[Beat, ...]:
    # 06-error-mid-stream.sse
    return (
        SayBeat(("The first lighthouse was ", "built on ")),
        FailBeat(
            "LLM_PROVIDER_ERROR",
            "The model provider failed while generating.",
            {"provider": "anthropic"},
        ),
    )


def _compact(argument: str) -> tuple[Beat, ...]:
    # 08-long-turn.sse
    return (CompactBeat(31200, 9400), SayBeat(("I have shortened my notes.",)))


def _memory(argument: str) -> tuple[Beat, ...]:
    # 08-long-turn.sse
    return (
        RememberBeat("files_to_check", ["a.sql", "b.sql"]),
        SayBeat(("I noted which files to check.",)),
    )


def _unknown(argument: str) -> tuple[Beat, ...]:
    return (OddBeat(), SayBeat(("There was something new in between.",)))


_SCRIPTS: Mapping[str, Callable[[str], tuple[Beat, ...]]] = {
    "text": _text,
    "reason": _reason,
    "tool": _tool,
    "tools": _tools,
    "toolfail": _toolfail,
    "approve": _approve,
    "approve2": _approve2,
    "approve-twice": _approve_twice,
    "ask": _ask,
    "askopen": _askopen,
    "custom": _custom,
    "secret": _secret,
    "sudo": _sudo,
    "signin": _signin,
    "limit": _limit,
    "child": _child,
    "childask": _childask,
    "structured": _structured,
    "long": _long,
    "slow": _slow,
    "fail": _fail,
    "failmid": _failmid,
    "compact": _compact,
    "memory": _memory,
    "unknown": _unknown,
}

SCRIPT_NAMES: tuple[str, ...] = tuple(_SCRIPTS)

# Clients and translations put lines before the message (eve's `Client context:`): any line counts.
_COMMAND = re.compile(r"^[ \t]*script:[ \t]*(\S+)[ \t]*(.*?)[ \t]*$", re.MULTILINE)


def beats_for(message: str, *, turn: int, attachments: tuple[str, ...] = ()) -> tuple[Beat, ...]:
    """Return what a message makes the agent do.

    Args:
        message: what the user wrote; the last line `script: <name> [argument]` counts.
        turn: the number of this turn in its conversation, from 1; the text of a turn that does
            not fail ends with it, so a test sees whether a follow-up met the same conversation.
        attachments: a description of each file that came with the message; quoted in the text.
    """
    commands = _COMMAND.findall(message)
    if not commands:
        quoted: tuple[Beat, ...] = (SayBeat(("You said: ", f"“{message}”.")),)
    else:
        name, argument = commands[-1]
        script = _SCRIPTS.get(name)
        if script is not None:
            quoted = script(argument)
        else:
            known = ", ".join(SCRIPT_NAMES)
            quoted = (SayBeat((f"There is no script `{name}`; ", f"there are {known}.")),)
    if isinstance(quoted[-1], FailBeat):
        return quoted
    end = tuple(f" I received {attachment}." for attachment in attachments)
    return (*quoted, SayBeat((*end, f" (turn {turn})")))


def lacking(
    beat: AskSealedBeat | UseCustomToolBeat | DelegateBeat | ProduceBeat | SignInBeat | LimitBeat,
) -> str:
    """Say what a dialect has not that cannot play this beat."""
    match beat:
        case AskSealedBeat(kind):
            return "passwords to ask for" if kind == "sudo" else "secrets to ask for"
        case UseCustomToolBeat():
            return "tools that the application runs"
        case DelegateBeat():
            return "child agents"
        case ProduceBeat():
            return "structured results"
        case SignInBeat():
            return "sign-in to ask for"
        case LimitBeat():
            return "limit to ask about"
    assert_never(beat)
