"""Tells programs of this machine from web pages and names of elsewhere: a browser lets any page ask
a server on loopback, and a name may be rebound to it (DNS rebinding)."""

from __future__ import annotations

import functools
import ipaddress
import re

from yarl import URL

from proxy.http.malformed import HOST

_ORIGIN = re.compile("[A-Za-z][A-Za-z0-9+.-]{0,31}://" + HOST)


def foreign_name(host: str, page: str | None) -> str | None:
    """Return the address by which a request came, or the origin of its page where that counts, if
    it is not of this machine."""
    for url in (f"http://{host}", page):
        if url is not None and not is_loopback(url):
            return url
    return None


@functools.lru_cache(maxsize=256)
def is_loopback(url: str) -> bool:
    """Say whether an address is of this machine, and nobody else's."""
    if _ORIGIN.fullmatch(url) is None:
        return False
    try:
        host = URL(url).host or ""
    except (ValueError, IndexError):
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
