"""How requests of a protocol are known at an address that serves another one, or nothing at all.

A frontend that is given a wrong address gets a bare 404 or 400, and nothing says that it speaks
another protocol than the address. So a face declares how its clients are known, and what else asks
at its addresses but is not served itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A kind of client: `title` is what people call it.

    The `paths` are what its requests end with, in small letters, beside the routes of its face; a
    part in braces is any name. `body` tells by the members of a body, an object, whether it is one
    of its requests; it is asked for what was refused only. `advice` says what to do where no face
    serves it: `{base}` in it is the base URL of the face that declares it, `{dialects}` are those
    that are served.
    """

    title: str
    paths: Sequence[str] = ()
    body: Callable[[Mapping[str, Any]], bool] | None = None
    advice: str = ""

    def asks(self, path: str) -> bool:
        """Tell whether a path is one of its own, wherever its base is."""
        parts = path.split("/")
        return any(_ends(parts, one.split("/")[1:]) for one in self.paths)


def _ends(parts: Sequence[str], end: Sequence[str]) -> bool:
    return len(parts) > len(end) and all(
        bool(part) if known.startswith("{") else part == known
        for part, known in zip(parts[-len(end) :], end, strict=True)
    )


def _is_openai(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("model"), str) and any(
        isinstance(body.get(name), kind)
        for name, kind in (("messages", list), ("input", (str, list)), ("prompt", str))
    )


OPENAI = Neighbour(
    # platform.openai.com/docs/api-reference: chat completions, responses, models.
    title="a client of OpenAI's API",
    paths=("/chat/completions", "/v1/completions", "/v1/responses", "/v1/models"),
    body=_is_openai,
    advice="No route serves it: use a frontend of one of the dialects {dialects}.",
)
"""What many frontends speak and no dialect here is."""
