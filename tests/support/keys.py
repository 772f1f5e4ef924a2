"""Keys of the proxy's users in tests."""

from __future__ import annotations

import hashlib

from proxy.config.settings import KeySettings

__all__ = ["credential", "key_of"]


def key_of(
    name: str, backends: tuple[str, ...] | None = None, *, admin: bool = False
) -> KeySettings:
    """Return a key whose value is `k-` and its name."""
    digest = hashlib.sha256(f"k-{name}".encode()).hexdigest()
    return KeySettings(name=name, sha256=digest, backends=backends, admin=admin)


def credential(key: str | None) -> dict[str, str]:
    """Return the headers that carry a key."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}
