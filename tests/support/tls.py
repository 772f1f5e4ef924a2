"""A server's certificate that nobody trusts."""

from __future__ import annotations

import ssl
from pathlib import Path

__all__ = ["self_signed"]

CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBkTCCATagAwIBAgIUc09tv/dZ5xZgP5i4GnHqKSJ/gjgwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyNjEyNTIyNFoYDzIxMjYxMTAy
MTI1MjI0WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASHX1dPM+AsHQNIaHZ4ITrR6tNoTiKPRxfOzu2PtdEvx6HGyCXPGf43
E2rZKyMJ+15stQIzFZz04jt21yWyl8Kko2QwYjAdBgNVHQ4EFgQUV2WAyq6vK3As
mIAIa76lPeXwRVEwHwYDVR0jBBgwFoAUV2WAyq6vK3AsmIAIa76lPeXwRVEwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0kAMEYC
IQDtf1N6pfFHtvdibf7z89QgzSmWVFeB7H8fBEdkQbSN3gIhAN1s9yS6nQYP2wP1
KNhORyWUT0GOEUyGbyVbN5okuL8b
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgxvNlccD1KzjQm/nA
GkKsskCLnqXRJnwTSUG583Rr9WehRANCAASHX1dPM+AsHQNIaHZ4ITrR6tNoTiKP
RxfOzu2PtdEvx6HGyCXPGf43E2rZKyMJ+15stQIzFZz04jt21yWyl8Kk
-----END PRIVATE KEY-----
"""
"""Self-signed for 127.0.0.1 until the year 2126, and its key, which protects nothing."""


def self_signed(folder: Path) -> ssl.SSLContext:
    """What a server listens with that has this certificate; it is read from a file in `folder`."""
    both = folder / "both.pem"
    both.write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context
