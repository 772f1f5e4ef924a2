"""What a terminal shows: enough of one for eve's terminal programs, which only write downwards and
redraw the last lines."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b\[(?P<args>[0-9;?<>=]*)(?P<final>[@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[()][0-9A-Za-z]|\x1b[=>78]"
    r"|(?P<control>[\r\n\b])"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?<>=]*|\][^\x07\x1b]*\x1b?|[()])?\Z")


class Screen:
    """Takes what a program writes; `text` is all lines, those that scrolled away included."""

    def __init__(self) -> None:
        self._lines = [""]
        self._row = 0
        self._column = 0
        self._rest = ""

    @property
    def text(self) -> str:
        """All lines, one after the other."""
        return "\n".join(self._lines)

    def feed(self, text: str) -> None:
        """Take what the program wrote."""
        text = self._rest + text
        unfinished = _UNFINISHED.search(text)
        end = len(text) if unfinished is None else unfinished.start()
        text, self._rest = text[:end], text[end:]
        at = 0
        for found in _SEQUENCE.finditer(text):
            self._put(text[at : found.start()])
            at = found.end()
            if found["control"] is not None:
                self._control(found["control"])
            elif found["final"] is not None:
                self._apply(found["final"], found["args"])
        self._put(text[at:])

    def _put(self, text: str) -> None:
        if not text:
            return
        line = self._lines[self._row].ljust(self._column)
        end = self._column + len(text)
        self._lines[self._row] = line[: self._column] + text + line[end:]
        self._column = end

    def _control(self, control: str) -> None:
        match control:
            case "\r":
                self._column = 0
            case "\b":
                self._column = max(0, self._column - 1)
            case _:
                self._down(1)

    def _down(self, count: int) -> None:
        self._row += count
        self._lines += [""] * (self._row + 1 - len(self._lines))

    def _apply(self, final: str, args: str) -> None:
        numbers = [int(part) for part in args.split(";") if part.isdigit()]
        count = numbers[0] if numbers else 0
        match final:
            case "A" | "F":
                self._row = max(0, self._row - max(1, count))
            case "B" | "E":
                self._down(max(1, count))
            case "C":
                self._column += max(1, count)
            case "D":
                self._column = max(0, self._column - max(1, count))
            case "G":
                self._column = max(1, count) - 1
            case "J" if count == 0:
                self._lines[self._row] = self._lines[self._row][: self._column]
                del self._lines[self._row + 1 :]
            case "K" if count == 0:
                self._lines[self._row] = self._lines[self._row][: self._column]
            case "K" if count == 2:
                self._lines[self._row] = ""
            case _:
                return
        if final in "EF":
            self._column = 0
