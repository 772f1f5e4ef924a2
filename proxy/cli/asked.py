"""What an agent waits for, as a block that a person reads, with the commands that answer it."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterator, Sequence

from yarl import URL

from adapters.model.events import SEALED_KINDS, InteractionRequested, Option
from adapters.model.interactions import Decision, decision_of, option_for
from proxy.cli.printing import JsonObject, cell, clean
from proxy.cli.servers import DEFAULT_URL

_DETAILS = (
    ("tool", "tool"),
    ("input", "input"),
    ("command", "command"),
    ("service", "service"),
    ("display_name", "service"),
    ("url", "open"),
    ("user_code", "code"),
    ("instructions", "do"),
    ("limit_kind", "limit of"),
    ("limit", "limit"),
    ("used_tokens", "used"),
)
"""Members of `details` that are shown, and how they are called."""

_DECISIONS: tuple[Decision, ...] = ("allow", "deny")


def cut(text: str, most: int) -> str:
    """Return a text on one line, and not more of it than is read there."""
    text = " ".join(clean(text[: 4 * most]).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def blocks(asked: Sequence[JsonObject], url: str) -> str:
    """Return all of them, with an empty line between."""
    return "\n\n".join("\n".join(block(entry, url)) for entry in asked)


def block(asked: JsonObject, url: str, *, claimed: str = "an answer is under way") -> Iterator[str]:
    """Yield the lines of an open interaction, as the control API gives it."""
    columns = shutil.get_terminal_size().columns
    yield f"{cell(asked.get('session_id'))}  {cell(asked.get('kind'))}"
    yield from _wrapped(cut(str(asked.get("prompt") or ""), 600), "  ", columns)
    for name, value in _told(asked):
        yield from _wrapped(value, f"  {name + ':':9} ", columns)
    if asked.get("claimed"):
        yield f"  {claimed}"
        return
    for words in _answers(asked):
        yield from _command(asked, words, url, columns)


def _told(asked: JsonObject) -> Iterator[tuple[str, str]]:
    details = asked.get("details") or {}
    for member, name in _DETAILS:
        value = details.get(member)
        if value not in (None, "", {}, []):
            yield name, cut(cell(value), 300)
    offered = [_offered(option) for option in asked.get("options") or ()]
    if offered:
        yield "options", ", ".join(offered)
    if asked.get("answerable") is False:
        yield "answered", "where it is asked, not here"


def _offered(option: JsonObject) -> str:
    name, label = cell(option.get("id")), cut(str(option.get("label") or ""), 60)
    return name if label in ("", name) else f"{name} ({label})"


def _wrapped(text: str, before: str, columns: int) -> list[str]:
    """Return a text in lines that break no word."""
    return textwrap.wrap(
        text,
        max(columns, len(before) + 20),
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _answers(asked: JsonObject) -> Iterator[list[str]]:
    """Yield the options of `answer` that a request of this kind takes."""
    if asked.get("answerable") is False:
        return
    options = [_option(given) for given in asked.get("options") or ()]
    kind = asked.get("kind")
    if kind in SEALED_KINDS:
        yield ["--sealed"]
        yield ["--skip"]
        return
    if kind == "authorization":
        yield ["--deny"]
        return
    decides = kind in {"approval", "limit"}
    choices = options
    if decides:
        for decision in _DECISIONS:
            own = _own(options, decision)
            if own is not None or all(decision_of(option)[0] != decision for option in options):
                yield [f"--{decision}"]
            choices = [option for option in choices if option != own]
    yield from (["--option", option.id] for option in choices if _pasted(option.id))
    if decides:
        return
    if asked.get("freeform") or not options:
        yield ["--text", "…"]
    yield ["--skip"]


def _own(options: Sequence[Option], decision: Decision) -> Option | None:
    """Return the option that a decision alone chooses."""
    request = InteractionRequested(
        thread_id="main", request_id="", kind="approval", prompt="", options=tuple(options)
    )
    return option_for(request, decision)


def _option(given: JsonObject) -> Option:
    known = {name: value for name, value in given.items() if name in Option.model_fields}
    return Option.model_validate({"label": "", **known})


def _pasted(word: str) -> bool:
    """Tell whether a word can stand in a command: a terminal obeys some characters."""
    return word != "" and word.isprintable()


def _command(asked: JsonObject, words: list[str], url: str, columns: int) -> Iterator[str]:
    """Yield a command on as many lines as it needs, without breaking a word."""
    ids = [str(asked.get("session_id")), str(asked.get("request_id"))]
    if not all(map(_pasted, ids)):
        return
    if any(name.startswith("-") for name in ids):
        ids = ["--", *ids]
    where = [] if url.rstrip("/") == DEFAULT_URL else ["--url", without_password(url)]
    parts = ["dragoman", "answer", *where]
    parts += [*words, *ids] if ids[0] == "--" else [*ids, *words]
    yield from command_lines(parts, columns, "  ")


def command_lines(parts: Sequence[str], columns: int, begin: str) -> Iterator[str]:
    """Yield a command behind what a line begins with, on as many lines as it needs, without
    breaking a word."""
    *units, last = _units([shlex.quote(part) for part in parts])
    line = begin
    for unit in units:
        if line.strip() and len(line) + len(unit) + 2 > columns:
            yield line + "\\"
            line = "    "
        line += unit + " "
    if line.strip() and len(line) + len(last) > columns:
        yield line + "\\"
        line = "    "
    yield line + last


def _units(parts: list[str]) -> list[str]:
    """Return what stays on one line: an option beside its value."""
    units: list[str] = []
    for part in parts:
        if units and units[-1] in {"dragoman", "--url", "--option", "--text", "--from", "--to"}:
            units[-1] += " " + part
        else:
            units.append(part)
    return units


def without_password(url: str) -> str:
    try:
        return str(URL(url).with_user(None))
    except ValueError:
        return url
