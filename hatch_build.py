"""What the build changes: where the wheel has its packages, and where the links of its page lead.

`adapters` and `proxy` are top-level packages in this repository. Other distributions have packages
of these names, and a user's own folder may have one of them too. So a wheel has both below
`dragoman`, and this rewrites what their modules import. An editable install is the repository.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import tempfile
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ABOVE = "dragoman"
MOVED = ("adapters", "proxy")
"""The packages that a wheel has below `ABOVE`."""

RUN_MODULE = re.compile(rf"(?<=-m )(?=(?:{'|'.join(MOVED)})\b)")
"""Where a text names a module of ours that `python -m` runs."""

NAME = re.compile(rf"(?:{'|'.join(MOVED)})(?:\.[A-Za-z_]\w*)*")

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?=[^)\s])")
"""Where the target of a Markdown link begins that is not an address and not on the same page."""

Place = tuple[int, int]
"""A line, from 1, and a column in characters, from 0: as `tokenize` counts."""


class NotMovable(ValueError):
    """A module says something that would mean another thing below `dragoman`."""


def rewritten(source: str) -> str:
    """Return a module of `MOVED` or `ABOVE` as it is in the wheel. Its lines stay where they are.

    What is imported gets `dragoman.` in front, and in texts what follows `python -m`.

    Raises:
        NotMovable: it binds a top-level package by `import proxy`, or a string as a whole is the
            name of a module, which a search for imports cannot tell from another word.
    """
    lines = source.split("\n")
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    places = [*_imports(ast.parse(source), lines, tokens), *_texts(tokens)]
    for line, column in sorted(places, reverse=True):
        text = lines[line - 1]
        lines[line - 1] = f"{text[:column]}{ABOVE}.{text[column:]}"
    return "\n".join(lines)


def _imports(
    tree: ast.Module, lines: list[str], tokens: list[tokenize.TokenInfo]
) -> Iterable[Place]:
    """Yield where the names of our packages begin that a module imports."""
    after = {token.start: following for token, following in itertools.pairwise(tokens)}
    nodes = list(ast.walk(tree))
    parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(name), level=0) if _is_ours(name):
                yield after[_place(node, lines)].start
            case ast.Import(names=names):
                for one in names:
                    if _is_ours(one.name) and one.asname is None:
                        text = f"line {one.lineno}: write `from … import …` for `import {one.name}`"
                        raise NotMovable(text)
                    if _is_ours(one.name):
                        yield _place(one, lines)
            case ast.Constant(value=str(text)) if node not in parts and NAME.fullmatch(text):
                text = f"line {node.lineno}: use `__name__` or `__package__` for {text!r}"
                raise NotMovable(text)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in MOVED


def _place(node: ast.stmt | ast.alias, lines: list[str]) -> Place:
    """Return where a node begins; `ast` counts columns in bytes."""
    before = lines[node.lineno - 1].encode()[: node.col_offset]
    return node.lineno, len(before.decode())


def _texts(tokens: list[tokenize.TokenInfo]) -> Iterable[Place]:
    """Yield where texts name a module of ours after `-m`: strings, and parts of f-strings."""
    middle = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)
    for token in tokens:
        if token.type in {tokenize.STRING, middle}:
            for number, line in enumerate(token.string.split("\n")):
                begin = 0 if number else token.start[1]
                for found in RUN_MODULE.finditer(line):
                    yield token.start[0] + number, begin + found.start()


def absolute(page: str, folder: str) -> str:
    """Return a Markdown page whose relative links lead into `folder`, an address."""
    return LINK.sub(f"{folder}/", page)


class WheelHook(BuildHookInterface[BuilderConfig]):
    """Puts the modules into the wheel as `rewritten`; all other files are in it as they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the modules to a folder and have the wheel take them from there."""
        if version != "standard":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="dragoman-wheel-")
        for file in self.build_config.builder.recurse_included_files():
            if not file.path.endswith(".py"):
                continue
            target = Path(self._folder.name) / file.distribution_path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                text = rewritten(Path(file.path).read_text(encoding="utf-8"))
            except NotMovable as error:
                raise NotMovable(f"{file.relative_path}: {error}") from None
            target.write_text(text, encoding="utf-8")
            build_data["force_include"][str(target)] = file.distribution_path

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        if version == "standard":
            self._folder.cleanup()


class PageHook(MetadataHookInterface):
    """Makes README.md the description, with links that lead somewhere from everywhere."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `readme`. Its links lead to the repository as it was at the tag of the version."""
        page = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        folder = f"{metadata['urls']['Repository']}/blob/v{metadata['version']}"
        text = absolute(page, folder)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
