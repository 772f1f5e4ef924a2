"""What a configuration says of credentials: where they are, and never what they are.

People paste the key itself where a variable, a file or a header is to be named. So a name is
quoted only if it is known to be one, or reads like one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from adapters.captures.secrets import looks_secret

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
"""What variables are called. Others can be set too; but this is quoted before it is known."""

_RUN = re.compile(r"[A-Za-z0-9+=]+")
_MIXED = re.compile(r"[A-Za-z]+[0-9]+[A-Za-z]|[0-9]+[A-Za-z]+[0-9]|[a-z][A-Z]{1,2}[a-z]{1,2}[A-Z]")


def looks_like_key(text: str) -> bool:
    """Tell whether a text looks like a credential and not like a name."""
    if looks_secret(text):
        return True
    # Words of a name have fewer letters and digits together: longer and mixed, they are random.
    runs = [run for run in _RUN.findall(text) if len(run) > 12]
    return any(len(run) >= 32 or _MIXED.search(run) for run in runs)


def variable_value(name: str, environ: Mapping[str, str]) -> str:
    """Return the credential that the variable of this name holds.

    Raises:
        ValueError: it is not set, or holds what cannot stand in a header.
    """
    secret = environ.get(name, "")
    if secret:
        # A name that is set is one, and no secret.
        return _for_a_header(secret, f"the environment variable `{name}`")
    if looks_like_key(name):
        raise ValueError(
            "the name of an environment variable is wanted, and this looks like the key itself: "
            "put the key into a variable, write that variable's name here, and if others could "
            "read it here, make a new key"
        )
    if _VARIABLE.fullmatch(name) is None:
        raise ValueError(
            "there is no environment variable of this name, which is not shown, as it may be the "
            "key itself: put the key into a variable, and write its name here, without `$`, like "
            "BACKEND_KEY"
        )
    raise ValueError(
        f"the environment variable `{name}` is not set, and holds the credential: export it, then "
        "start again"
    )


def file_value(file: Path) -> str:
    """Return the credential that a file holds.

    Raises:
        ValueError: it cannot be read, is empty, or holds what cannot stand in a header.
    """
    source = f"the file `{file}`"
    try:
        secret = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        # A folder may well have a hash for a name.
        named = file.name if file.is_absolute() else str(file)
        if looks_like_key(named) and not file.exists():
            raise ValueError(
                "the name of a file is wanted, and this looks like the key itself: write the key "
                "into a file, and that file's name here"
            ) from None
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"{source}, which holds the credential, cannot be read: {why}") from None
    if not secret:
        raise ValueError(f"{source}, which holds the credential, is empty")
    return _for_a_header(secret, source)


def _for_a_header(secret: str, source: str) -> str:
    if not secret.isprintable() or not secret.isascii():
        raise ValueError(f"{source} holds characters that cannot stand in a header")
    return secret
