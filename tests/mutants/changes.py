"""What can be changed in a module, and the sample that a seed draws.

A change replaces a piece of one line. What nobody could notice, or what is a matter of taste, is no
candidate: docstrings, annotations, log lines, error texts, assertions, `__slots__`, decorators, and
numbers outside of functions (sizes, times and limits that somebody measured or chose).
"""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

# The scope: everything that translates, and the modules that a conversation's truth rests
# on.
MODULES = ("adapters/**/*.py", "proxy/session/*.py", "proxy/fanout/hub.py", "proxy/journal/*.py")

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
# Words of a protocol or of the model: no spaces, so no sentence for people.
_WORD = re.compile(r"[A-Za-z_$][\w.:/-]*")
_LOGGERS = {"log", "_log", "logger", "_logger"}
_UNSEEN_NAMES = {"__all__", "__slots__", "model_config"}
_UNSEEN_CALLS = {
    "assert_never",
    "cast",
    "TypeVar",
    "NewType",
    "ConfigDict",
    "getLogger",
    "model_dump",
}
_UNSEEN_FUNCTIONS = {"__repr__", "__str__"}


@dataclass(frozen=True)
class Change:
    """One piece of one line, and what stands there instead."""

    path: str
    line: int
    function: str
    """The class and function around it, `<module>` outside of both."""
    start: int
    end: int
    """The replaced bytes, counted in the file."""
    before: str
    after: str
    text: str
    """The line as it is, without indentation; part of what the change is known by."""
    nth: int = 0
    """Tells apart equal changes of equal lines of a function."""

    @property
    def key(self) -> str:
        """Return what the change is known by; edits elsewhere in the file leave it as it is."""
        return "\0".join(
            [self.path, self.function, self.text, self.before, self.after, str(self.nth)]
        )

    def apply(self, content: bytes) -> bytes:
        """Return the content of the file with the change made."""
        return content[: self.start] + self.after.encode() + content[self.end :]

    def __str__(self) -> str:
        what = f"{self.before} -> {self.after}"
        return f"{self.path}:{self.line} {self.function}: {what}   | {self.text}"


class _Finder(ast.NodeVisitor):
    """Collects the changes of one module."""

    def __init__(self, path: str, content: bytes) -> None:
        self._path = path
        self._content = content
        self._starts = [0]
        for line in content.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._scope: list[str] = []
        self._in_function = 0
        self._known: dict[tuple[str, ...], int] = {}
        self.changes: list[Change] = []

    def _at(self, node: ast.AST, *, end: bool = False) -> int:
        place = ("end_lineno", "end_col_offset") if end else ("lineno", "col_offset")
        line, column = (getattr(node, name) for name in place)
        return int(self._starts[line - 1] + column)

    def _add(self, start: int, end: int, after: str) -> None:
        before = self._content[start:end]
        if b"\n" in before:
            return
        line = self._content.count(b"\n", 0, start) + 1
        text = self._content[self._starts[line - 1] : self._starts[line]].decode().strip()
        function = ".".join(self._scope) or "<module>"
        known = (function, text, before.decode(), after)
        nth = self._known[known] = self._known.get(known, -1) + 1
        self.changes.append(
            Change(self._path, line, function, start, end, before.decode(), after, text, nth)
        )

    def _replace(self, node: ast.AST, after: str) -> None:
        self._add(self._at(node), self._at(node, end=True), after)

    def _between(self, left: ast.AST, right: ast.AST, before: str, after: str) -> None:
        start, end = self._at(left, end=True), self._at(right)
        found = re.search(
            rb"(?<!\w)%s(?!\w)" % re.escape(before.encode()), self._content[start:end]
        )
        if found:
            self._add(start + found.start(), start + found.end(), after)

    # What is not a candidate.

    def visit_Raise(self, node: ast.Raise) -> None:
        self._drop(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion states what the code below relies on; no input reaches it."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Before Python 3.12 the places inside of an f-string are wrong."""

    def visit_Import(self, node: ast.Import) -> None:
        """Nothing to change."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Nothing to change."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and getattr(node.target, "id", "") not in _UNSEEN_NAMES:
            self.visit(node.value)

    # Statements.

    def _body(
        self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> None:
        for statement in node.body:
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                self.visit(statement)

    def visit_Module(self, node: ast.Module) -> None:
        self._body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        self._body(node)
        self._scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _UNSEEN_FUNCTIONS:
            return
        self._scope.append(node.name)
        self._in_function += 1
        self._body(node)
        self._in_function -= 1
        self._scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Compare | ast.NamedExpr):
            start, end = self._at(test), self._at(test, end=True)
            self._add(start, end, f"not ({self._content[start:end].decode()})")

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        match value:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name))
            ) if name in _LOGGERS:
                return
            case ast.Call():
                self._drop(node)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(getattr(target, "id", "") in _UNSEEN_NAMES for target in node.targets):
            return
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._drop(node)
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._drop(node)
        if isinstance(node.op, ast.Add):
            self._between(node.target, node.value, "+=", "-=")
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._drop(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._drop(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._drop(node)
            return
        empty = isinstance(node.value, ast.List | ast.Tuple | ast.Dict) and not (
            node.value.keys if isinstance(node.value, ast.Dict) else node.value.elts
        )
        # Nothing instead of nothing: callers ask for truth. `True` is changed into `False` below.
        if not empty and not isinstance(node.value, ast.Constant):
            self._replace(node.value, "None")
        self.visit(node.value)

    def _drop(self, node: ast.stmt) -> None:
        if self._in_function:
            self._replace(node, "pass")

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            self._between(left, right, *_COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, *words)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start, end = self._at(node.operand), self._at(node.operand, end=True)
            self._replace(node, f"({self._content[start:end].decode()})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add | ast.Sub):
            self._between(node.left, node.right, *("+-" if isinstance(node.op, ast.Add) else "-+"))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        # What builds an error or a warning builds a text; codes inside are tested by refusals of
        # their own.
        if name in _UNSEEN_CALLS or name.endswith(("Error", "Warning")):
            return
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if value is True or value is False:
            self._replace(node, str(not value))
        elif isinstance(value, int) and self._in_function:
            self._replace(node, str(value + 1))
        elif isinstance(value, str) and _WORD.fullmatch(value):
            quote = self._content[self._at(node) : self._at(node) + 1].decode()
            if quote in {'"', "'"}:
                self._replace(node, f"{quote}{value}_{quote}")


def find(path: str, content: bytes) -> list[Change]:
    """Return every change of a module, in no particular order.

    Raises:
        SyntaxError: The module is not Python.
    """
    finder = _Finder(path, content)
    finder.visit(ast.parse(content))
    return finder.changes


def modules(root: Path, only: str = "") -> list[str]:
    """Return the modules in scope as paths below `root`; with `only`, those that begin so."""
    found = {str(path.relative_to(root)) for pattern in MODULES for path in root.glob(pattern)}
    return sorted(path for path in found if path.startswith(only))


@dataclass(frozen=True)
class Sample:
    """The changes that a seed draws from modules."""

    sources: dict[str, bytes]
    seed: int
    count: int

    @cached_property
    def changes(self) -> list[Change]:
        """Return the sample: lines are drawn evenly over all modules, then one change of each line.

        The place of a line in the draw is a hash of seed, path, function and text, not a random
        number: an edit of one function leaves the sample of all others as it is.
        """
        lines: dict[tuple[str, int], Change] = {}
        for path, content in sorted(self.sources.items()):
            for change in sorted(find(path, content), key=self._rank):
                lines.setdefault((path, change.line), change)
        drawn = sorted(lines.values(), key=lambda change: self._rank(change, line=True))
        return drawn[: self.count]

    def _rank(self, change: Change, *, line: bool = False) -> bytes:
        what = (
            f"{change.path}\0{change.function}\0{change.text}\0{change.nth}" if line else change.key
        )
        return hashlib.sha256(f"{self.seed}\0{line}\0{what}".encode()).digest()
