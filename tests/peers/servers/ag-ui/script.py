"""What the scripted models of the servers here say and call, the same for all of them.

The newest user message is `scene: NAME WORD`, or `scene: NAME WORD SECONDS`; the word is in what is
said and called, and so tells one message from others:

| NAME | what happens |
|---|---|
| `text` | "Hello WORD." in two pieces; so do all names that a server does not know |
| `reason` | reasoning, then "The answer WORD is 42." |
| `tool` | text, then a call of `weather` |
| `two` | two calls of `weather` at once |
| `broken` | a call of `break_down`, which fails and says why |
| `crash` | a call of `crash`, which ends the run |
| `fail` | half a sentence, then the model fails |
| `approve` | a call of `send_mail`, which needs an approval |
| `approve2` | two calls of `send_mail`, and one of `weather`, at once |
| `ask` | a call of `ask_user`, which asks which colour |
| `client` | a call of `set_color`, a tool of the client |
| `state` | a call of `count_up`, which changes the state |
| `slow` | a call of `wait` for SECONDS |
| `count` | "User messages: N." |

What tools do is a line in the file of `PEER_NOTES`, each when it happens: `weather WORD`, `mail
WORD`, `wait begins WORD`, `wait ends WORD`, `wait stopped WORD`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Pieces = Iterator["Text | Reasoning | Call"]


@dataclass(frozen=True)
class Text:
    """A piece of text."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """A piece of reasoning."""

    text: str


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    id: str
    name: str
    arguments: dict[str, Any]


def answer(message: str, messages: int, results: Sequence[str]) -> Pieces:
    """Yield what the model answers.

    Args:
        message: the newest user message.
        messages: how many user messages there are.
        results: the results of the calls since then.

    Raises:
        RuntimeError: the scene says so.
    """
    words = [*message.partition("scene:")[2].split(), "text", "nobody"]
    name, word = words[0], words[1]
    if name == "count":
        yield Text(f"User messages: {messages}.")
    elif name == "fail":
        yield Text(f"Half a {word}")
        raise RuntimeError(f"the model fails {word}")
    elif results:
        yield Text(f"Results of {word}: {'; '.join(results)}")
    else:
        yield from _first(name, word, words[2:])


def _first(name: str, word: str, more: Sequence[str]) -> Pieces:
    """Yield what the model answers before anything was called."""
    weather = Call(f"call_{word}_w", "weather", {"city": word})
    if name == "reason":
        yield Reasoning("First I add ")
        yield Reasoning("40 and 2.")
        yield Text(f"The answer {word} is 42.")
    elif name == "tool":
        yield Text("Let me look. ")
        yield weather
    elif name == "two":
        yield weather
        yield Call(f"call_{word}_v", "weather", {"city": f"New {word}"})
    elif name in ("broken", "crash"):
        yield Call(f"call_{word}_b", {"broken": "break_down"}.get(name, name), {"word": word})
    elif name in ("approve", "approve2"):
        yield Call(f"call_{word}_1", "send_mail", {"to": word})
        if name == "approve2":
            yield Call(f"call_{word}_2", "send_mail", {"to": f"second-{word}"})
            yield weather
    elif name == "ask":
        yield Call(f"call_{word}_q", "ask_user", {"question": f"Which colour, {word}?"})
    elif name == "client":
        yield Call(f"call_{word}_c", "set_color", {"color": word})
    elif name == "state":
        yield Call(f"call_{word}_s", "count_up", {"word": word})
    elif name == "slow":
        yield Call(f"call_{word}_z", "wait", {"word": word, "seconds": float(more[0])})
    else:
        yield Text("Hello ")
        yield Text(f"{word}.")


def note(what: str) -> None:
    """Write down that something happened."""
    with Path(os.environ["PEER_NOTES"]).open("a") as notes:
        notes.write(f"{what}\n")


def weather(city: str) -> dict[str, Any]:
    """Return the weather of a city."""
    note(f"weather {city}")
    return {"city": city, "temp": 4}


def send_mail(to: str) -> str:
    """Send a mail."""
    note(f"mail {to}")
    return f"mail sent to {to}"


async def wait(word: str, seconds: float) -> str:
    """Wait."""
    note(f"wait begins {word}")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(f"wait stopped {word}")
        raise
    note(f"wait ends {word}")
    return f"waited for {word}"
