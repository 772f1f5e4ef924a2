"""Which test runs which line: recorded once per test file, kept in `.cache/mutants/seen`.

Source files move on after the recording: lines are found again by comparing with the recorded text,
so an edit elsewhere in a file costs nothing. A test file that changed is recorded again.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import io
import json
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.mutants.trial import ROOT, Copy
from tests.support.serving import WHOLE_SERVERS

CACHE = ROOT / ".cache" / "mutants"
# No test of a file begins later than this many seconds after the first: a slice has to end.
_RECORDING = 150.0
# A line of a module's body is followed through at most so many names: constant, table, function.
_HOPS = 3


@dataclass(frozen=True)
class Test:
    """One test as it was recorded."""

    name: str
    seconds: float

    @property
    def file(self) -> str:
        """Return the file of the test."""
        return self.name.split("::")[0]


def has_servers(file: str) -> bool:
    """Say whether the tests of a file run whole servers, which is slow and tells of a mistake far
    from its place."""
    return file.split("/")[1] in {*WHOLE_SERVERS, "pairs"}


def test_files(copy: Copy) -> list[str]:
    """Return the test files of the fast tests, those without servers first."""
    found = (
        str(path.relative_to(copy.root))
        for path in (copy.root / "tests").rglob("test_*.py")
        if not {"bench", "peers"} & set(path.parts)
    )
    # The tool's own tests and those of docs and packaging say nothing about the product's
    # behaviour.
    skipped = {"tests/test_docker.py", "tests/test_mutants.py", "tests/test_project.py"}
    return sorted(set(found) - skipped, key=lambda name: (has_servers(name), name))


def record(copy: Copy) -> Iterator[str]:
    """Record the test files that are not recorded yet, and yield a line of progress for each."""
    files = test_files(copy)
    folder = CACHE / "seen"
    folder.mkdir(parents=True, exist_ok=True)
    for at, file in enumerate(files, 1):
        target = folder / (file.replace("/", "+") + ".json")
        digest = hashlib.sha256(copy.read(file)).hexdigest()
        if target.exists() and json.loads(target.read_text())["digest"] == digest:
            continue
        outcome = copy.run([file], _RECORDING + 120, record=_RECORDING)
        found = outcome.report or {"tests": [], "lines": {}}
        sources = {}
        for path in found["lines"]:
            text = copy.read(path)
            name = hashlib.sha256(text).hexdigest()
            (folder / name).write_bytes(text)
            sources[path] = name
        target.write_text(json.dumps({"digest": digest, "sources": sources, **found}))
        failed = sum(not passed for _, _, passed in found["tests"])
        yield f"{at}/{len(files)} {file}: {len(found['tests'])} tests, {failed} not passed"


class Seen:
    """Answers which tests can see a line of a copy."""

    def __init__(self, copy: Copy) -> None:
        """Read what was recorded; lines are those of the files of this copy."""
        self._copy = copy
        self._tests: list[Test] = []
        self._lines: dict[str, dict[int, int]] = {}
        self._trees: dict[str, ast.Module] = {}
        self._names: dict[str, dict[str, list[int]]] = {}
        moves: dict[tuple[str, str], dict[int, int]] = {}
        for file in test_files(copy):
            path = CACHE / "seen" / (file.replace("/", "+") + ".json")
            if path.exists():
                self._add(json.loads(path.read_text()), moves)

    def _add(self, recorded: dict[str, Any], moves: _Moves) -> None:
        offset = len(self._tests)
        passed = 0
        for at, (name, seconds, ok) in enumerate(recorded["tests"]):
            self._tests.append(Test(name, float(seconds)))
            passed |= bool(ok) << at
        for path, lines in recorded["lines"].items():
            if not (self._copy.root / path).exists():
                continue
            key = (path, str(recorded["sources"][path]))
            if key not in moves:
                moves[key] = self._moved(*key)
            here = self._lines.setdefault(path, {})
            for line, bits in lines.items():
                if (now := moves[key].get(int(line))) and (ran := int(bits, 16) & passed):
                    here[now] = here.get(now, 0) | ran << offset

    def _moved(self, path: str, recorded: str) -> dict[int, int]:
        """Return for each recorded line its present number; lines that are gone are left out."""
        before = (CACHE / "seen" / recorded).read_text().splitlines()
        now = self._copy.read(path).decode().splitlines()
        matcher = difflib.SequenceMatcher(None, before, now, autojunk=False)
        moved = {}
        for tag, first, last, to, end in matcher.get_opcodes():
            # A changed line is taken to be run by the tests that ran the line in its place.
            for step in range(last - first if tag in {"equal", "replace"} else 0):
                moved[first + step + 1] = min(to + step, end - 1) + 1
        return moved

    def tests(self, path: str, line: int) -> list[Test]:
        """Return the tests that run a line or, when it runs at import, use what it defines."""
        bits = self._bits(path, line, _HOPS, set())
        return [test for at, test in enumerate(self._tests) if bits >> at & 1]

    def _bits(self, path: str, line: int, hops: int, asked: set[tuple[str, int]]) -> int:
        if (path, line) in asked:
            return 0
        asked.add((path, line))
        lines = self._lines.get(path, {})
        if bits := lines.get(line, 0):
            return bits
        chain = list(_around(self._tree(path), line))
        inner = chain[-1] if chain else None
        if any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in chain[:-1]):
            # A piece of a statement of several lines, or a line that was added after the recording.
            assert inner is not None
            end = inner.body[0].lineno - 1 if hasattr(inner, "body") else inner.end_lineno or line
            bits = _union(lines.get(near, 0) for near in range(inner.lineno, end + 1))
            return bits or next((lines[near] for near in range(line, 0, -1) if near in lines), 0)
        if not hops:
            return 0
        found = 0
        for name in {name for node in chain for name in _bound(node)}:
            for user, places in self._users(name):
                for place in places:
                    if (user, place) != (path, line):
                        found |= self._bits(user, place, hops - 1, asked)
        return found

    def _tree(self, path: str) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse(self._copy.read(path))
        return self._trees[path]

    def _users(self, name: str) -> Iterator[tuple[str, list[int]]]:
        if not self._names:
            for folder in ("adapters", "proxy"):
                for file in sorted((self._copy.root / folder).rglob("*.py")):
                    used: dict[str, list[int]] = {}
                    self._names[str(file.relative_to(self._copy.root))] = used
                    for token in tokenize.tokenize(io.BytesIO(file.read_bytes()).readline):
                        if token.type == tokenize.NAME:
                            used.setdefault(token.string, []).append(token.start[0])
        for path, used in self._names.items():
            if places := used.get(name):
                yield path, places


_Moves = dict[tuple[str, str], dict[int, int]]


def _union(sets: Iterable[int]) -> int:
    bits = 0
    for one in sets:
        bits |= one
    return bits


def _around(tree: ast.Module, line: int) -> Iterator[ast.stmt]:
    """Yield the statements around a line, from the outermost to the innermost."""
    body: list[ast.AST] = list(tree.body)
    while body:
        node = body.pop()
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or line):
            yield node
            body = list(ast.iter_child_nodes(node))
        elif not isinstance(node, ast.stmt | ast.expr):
            # Cases and handlers are not statements, but hold some.
            body.extend(ast.iter_child_nodes(node))


def _bound(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module's or class's body defines."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [
                name.id
                for target in targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            ]
        case _:
            return []
