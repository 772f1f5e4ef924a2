"""Whether a backend is ready: asked before sessions are sent there, and by `/readyz?backends=1`.

The check is that of `dragoman check`. What it found is kept for a moment, so that 300 moves, or a
poll, ask a backend a few times and not each time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import aiohttp

from adapters.wire.errors import DragomanError, ErrorCode
from proxy.base.locks import KeyedLock
from proxy.config.settings import BackendSettings, Settings
from proxy.upstream.backend_check import CheckResult, check_backend, tell
from proxy.upstream.findings import Finding, Kind
from proxy.upstream.health import Health

KEPT_SECONDS = 5.0
"""How long what was found of a backend counts."""

CHECK_SECONDS = 10.0
"""How long all of a check may take."""


class _CachedCheck(NamedTuple):
    """What was found, and when it was asked for, in seconds of the monotonic clock."""

    at: float
    checked: CheckResult


@dataclasses.dataclass(slots=True, eq=False)
class Readiness:
    """Checks the backends of a server that runs; `health` is told of what fails."""

    settings: Settings
    http: aiohttp.ClientSession
    health: Mapping[str, Health]
    _: dataclasses.KW_ONLY
    monotonic: Callable[[], float] = time.monotonic
    _found: dict[str, _CachedCheck] = dataclasses.field(default_factory=dict, init=False)
    _asking: KeyedLock = dataclasses.field(default_factory=KeyedLock, init=False)

    def use(self, settings: Settings) -> None:
        """Check by another configuration; what was found by the one before counts no more."""
        self.settings = settings
        self._found.clear()

    async def check(self, backend: BackendSettings) -> CheckResult:
        """Return what is found of a backend, no older than `KEPT_SECONDS`."""
        return await self._check(backend, keep_failed=True)

    async def require(self, backend: BackendSettings) -> list[str]:
        """Check that a backend can be used; return what could not be learned, a sentence each.

        Raises:
            DragomanError: it cannot be used; the message says why, and what to do.
        """
        # What failed is asked anew: somebody may have mended it a second ago.
        found = await self._check(backend, keep_failed=False)
        if found.failed is None:
            return found.notices
        what, finding = found.failed
        raise DragomanError(
            f"Backend `{backend.name}` is not ready: {finding.sentence}",
            code=ErrorCode.BACKEND_NOT_READY,
            details={"backend": backend.name, "check": what, "kind": finding.kind},
        )

    async def _check(self, backend: BackendSettings, *, keep_failed: bool) -> CheckResult:
        began = self.monotonic()
        async with self._asking.lock(backend.name):
            found = self._found.get(backend.name)
            if found is not None:
                kept = keep_failed or found.checked.failed is None
                # What others asked for while this waited is new enough in any case.
                if found.at >= (began - KEPT_SECONDS if kept else began):
                    return found.checked
            at = self.monotonic()
            checked = await self._ask(backend)
            self._found[backend.name] = _CachedCheck(at, checked)
        tell(checked, self.health[backend.name])
        return checked

    async def _ask(self, backend: BackendSettings) -> CheckResult:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                return await check_backend(backend, self.settings, self.http, 5.0)
        except TimeoutError:
            text = (
                f"it was not through with its answers within {CHECK_SECONDS:g} s: look into the "
                "log of the backend"
            )
            failed = Finding("failed", text, Kind.TIMEOUT)
            return CheckResult(backend.name, backend.dialect, backend.url, failed)
