"""Says of each backend whether it can be used: `dragoman check`, and the warnings of a start.

A backend is asked only what has no effect there: `adapters.contract.probing` says what. What cannot
be learned so is told as `not asked`, with the reason, and never as `ok`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from adapters.contract.probing import Probe, Question
from adapters.model.base import Call, Request, Response
from adapters.registry import DIALECTS
from proxy.base.errors import UpstreamError, UpstreamTimeout
from proxy.config.settings import BackendSettings, Settings
from proxy.upstream.client import STREAM_TYPES, Upstream, type_of
from proxy.upstream.findings import Finding, Kind, json_of, status_of, unreached, unusable
from proxy.upstream.health import Health, Trouble

REACH = Call("reach", Request("GET", "/health"))
"""What any backend is asked where it counts only that it answers."""


_NOT_REACHED = Finding("not asked", "the backend does not answer")
_NOT_KNOWN = Finding("not asked", "it is not known what answers")
_NOT_ADMITTED = Finding("not asked", "the credential is not known to be accepted")


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """What was found of one backend."""

    name: str
    dialect: str
    url: str
    reachable: Finding
    credential: Finding = _NOT_REACHED
    speaks: Finding = _NOT_REACHED
    streaming: Finding = _NOT_REACHED

    @property
    def findings(self) -> Mapping[str, Finding]:
        """Return what was found, by what was looked at."""
        return {
            "reachable": self.reachable,
            "credential": self.credential,
            "dialect": self.speaks,
            "streaming": self.streaming,
        }

    @property
    def failed(self) -> tuple[str, Finding] | None:
        """Return the first thing that failed, and what was found of it."""
        failed = (one for one in self.findings.items() if one[1].state == "failed")
        return next(failed, None)

    @property
    def why(self) -> str:
        """Return what failed and what to do, in a sentence, nothing where nothing failed."""
        if self.failed is None:
            return ""
        what, finding = self.failed
        return f"{what}: {finding.sentence}"

    @property
    def notices(self) -> list[str]:
        """Say what could not be learned of the backend, a sentence each; nothing where it failed.
        That no stream is asked for is not one of them: it would have an effect at most
        backends."""
        if self.failed is not None:
            return []
        open_ = {"credential": self.credential, "dialect": self.speaks}
        if self.streaming.state == "unknown":
            open_["streaming"] = self.streaming
        return [
            f"Backend `{self.name}`: its {what} is not known: {finding.sentence}"
            for what, finding in open_.items()
            if finding.state != "ok"
        ]

    def cleaned(self, secrets: Sequence[str]) -> CheckResult:
        """Return it without secrets, on lines that a terminal can show."""
        return dataclasses.replace(
            self,
            reachable=self.reachable.cleaned(secrets),
            credential=self.credential.cleaned(secrets),
            speaks=self.speaks.cleaned(secrets),
            streaming=self.streaming.cleaned(secrets),
        )


async def check_backends(settings: Settings, *, seconds: float = 10.0) -> list[CheckResult]:
    """Check all backends of a configuration, at once; `seconds` are for each answer."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http:
        checks = (check_backend(one, settings, http, seconds) for one in settings.backends)
        return await asyncio.gather(*checks)


async def check_backend(
    backend: BackendSettings, settings: Settings, http: aiohttp.ClientSession, seconds: float
) -> CheckResult:
    """Check one backend of a configuration; `seconds` are for each answer."""
    found = await _BackendCheck(backend, http, seconds).run()
    return found.cleaned(settings.secrets())


_TROUBLE = {
    Kind.DNS: Trouble.DNS,
    Kind.REFUSED: Trouble.CONNECTION,
    Kind.CONNECTION: Trouble.CONNECTION,
    Kind.TLS: Trouble.TLS,
    Kind.TIMEOUT: Trouble.TIMEOUT,
    Kind.NOT_HTTP: Trouble.BROKEN,
    Kind.RATE_LIMITED: Trouble.ERROR,
    Kind.SERVER_ERROR: Trouble.ERROR,
    Kind.CREDENTIAL_REFUSED: Trouble.CREDENTIAL,
    Kind.CREDENTIAL_MISSING: Trouble.CREDENTIAL,
}
"""What a finding is in the log; any other is a backend that does not speak its dialect."""


async def warn(settings: Settings, health: Mapping[str, Health]) -> None:
    """Check all backends, and tell of each that fails; `health` has them by name."""
    for one in await check_backends(settings):
        tell(one, health[one.name])


def tell(found: CheckResult, health: Health) -> None:
    """Let the log have what failed of a backend, if anything did."""
    if (failed := found.failed) is not None:
        _, finding = failed
        kind = Trouble.DIALECT
        if finding.kind is not None:
            kind = _TROUBLE.get(finding.kind, kind)
        health.trouble(kind, finding.text)


@dataclasses.dataclass(slots=True, eq=False)
class _BackendCheck:
    """The check of one backend."""

    backend: BackendSettings
    http: aiohttp.ClientSession
    seconds: float
    _upstream: Upstream = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        credential = self.backend.credential
        auth = {} if credential is None else {credential.header: credential.value}
        self._upstream = Upstream(
            self.http,
            self.backend.url,
            auth,
            connect_seconds=self.seconds,
            answer_seconds=self.seconds,
        )

    async def run(self) -> CheckResult:
        backend = self.backend
        if DIALECTS[backend.dialect].has_receiver:
            return self._calls_us()
        probe = DIALECTS[backend.dialect].probe
        first = REACH if probe is None else probe.first.call
        answer = await self._answer(first)
        found: Sequence[Finding]
        if isinstance(answer, Finding):
            found = (answer,)
        elif probe is None:
            reason = f"nothing is known to ask a `{backend.dialect}` without an effect"
            found = (Finding("ok", backend.url), *[Finding("not asked", reason)] * 3)
        else:
            found = (Finding("ok", backend.url), *await self._further(probe, answer))
        return CheckResult(backend.name, backend.dialect, backend.url, *found)

    def _calls_us(self) -> CheckResult:
        """Return what is known of a backend that is not asked anything."""
        backend = self.backend
        here = Finding("ok", f"it calls this server, at /from/{backend.name}")
        signed = "its deliveries are signed" if backend.credential else "none is needed"
        unasked = Finding("not asked", "it is heard when it sends something")
        return CheckResult(
            *(backend.name, backend.dialect, backend.url),
            *(here, Finding("ok", signed), unasked, unasked),
        )

    async def _answer(self, call: Call) -> Response | Finding:
        """Return an answer that says something, or why there is none."""
        try:
            answer = await self._upstream.call(call)
        except UpstreamError as error:
            return unreached(error, self.backend.url, self.seconds)
        return unusable(answer, call) or answer

    async def _further(self, probe: Probe, answer: Response) -> Sequence[Finding]:
        """Return credential, dialect and streaming, by the answer to the first question."""
        if not _fits(probe.first, answer):
            return await self._stranger(probe, answer)
        if probe.open is not None:
            keyed = await self._answer(probe.keyed.call)
            if isinstance(keyed, Finding):
                unknown = dataclasses.replace(keyed, state="unknown")
                return unknown, Finding("ok", self.backend.dialect), _NOT_ADMITTED
            answer = keyed
        credential = self._credential(probe, answer)
        if credential.state != "ok":
            return credential, Finding("ok", self.backend.dialect), _NOT_ADMITTED
        if not _fits(probe.keyed, answer):
            if answer.status in (404, 405):
                text = f"{probe.keyed.call.request.path} is not there ({answer.status}) to be asked"
                unknown = Finding("unknown", text, Kind.NOT_FOUND)
            else:
                misfit = self._misfit(probe.keyed, probe, answer)
                unknown = dataclasses.replace(misfit, state="unknown")
            return unknown, Finding("ok", self.backend.dialect), _NOT_ADMITTED
        body = json_of(answer)
        generation = probe.generation(body)
        if generation.refused:
            refused = Finding("failed", generation.refused, Kind.GENERATION)
            return credential, refused, Finding("not asked", "its streams cannot be read")
        speaks = Finding("ok", f"{self.backend.dialect}, {generation.name}")
        return credential, speaks, await self._streaming(probe, body)

    async def _stranger(self, probe: Probe, answer: Response) -> Sequence[Finding]:
        """Return the findings where the first answer is not one of the dialect."""
        for name, dialect in DIALECTS.items():
            other = dialect.probe
            if other is None or other is probe or other.first.call.request.method != "GET":
                # What posts is harmless to its own dialect only.
                continue
            said = await self._answer(other.first.call)
            if isinstance(said, Response) and _fits(other.first, said):
                text = (
                    f'what answers is of the dialect `{name}`: write `dialect = "{name}"`, or '
                    f"the `url` of a backend of the dialect `{self.backend.dialect}`"
                )
                return _NOT_KNOWN, Finding("failed", text, Kind.OTHER_DIALECT), _NOT_KNOWN
        if answer.status in (401, 403):
            unknown = Finding("unknown", "only a refusal was answered")
            return self._credential(probe, answer), unknown, _NOT_ADMITTED
        return _NOT_KNOWN, self._misfit(probe.first, probe, answer), _NOT_KNOWN

    def _misfit(self, asked: Question, probe: Probe, answer: Response) -> Finding:
        """Say what an answer is that is not one of the dialect."""
        dialect, path = self.backend.dialect, asked.call.request.path
        if answer.status in (404, 405):
            ends = probe.below and self.backend.url.rstrip("/").endswith(probe.below)
            todo = (
                f"leave `{probe.below}` out at its end"
                if ends
                else f"the paths of the dialect `{dialect}` must begin where it ends"
            )
            text = f"{path} is not found there ({answer.status}): correct `url`, {todo}"
            return Finding("failed", text, Kind.NOT_FOUND)
        if type_of(answer) == "text/html" or answer.body.lstrip()[:1] == b"<":
            text = (
                f"{path} is answered with a page of HTML ({answer.status}), as web sites and pages "
                f"for a login are: write the `url` of the backend itself"
            )
            return Finding("failed", text, Kind.HTML)
        if json_of(answer) is None:
            text = (
                f"{path} is answered with what is not JSON ({answer.status}): "
                "write the `url` of the backend itself"
            )
            return Finding("failed", text, Kind.NOT_JSON)
        text = (
            f"{path} is answered ({answer.status}) as no backend of the dialect `{dialect}` does: "
            "correct `url` or `dialect`"
        )
        return Finding("failed", text, Kind.UNEXPECTED)

    def _credential(self, probe: Probe, answer: Response) -> Finding:
        """Say whether an answer to what needs a credential shows that it has one."""
        credential = self.backend.credential
        if answer.status not in (401, 403):
            return Finding("ok", "" if credential is not None else "none is needed")
        if credential is None:
            form = (
                '{ bearer_env = "VARIABLE" }'
                if probe.header == "Authorization"
                else f'{{ header = "{probe.header}", env = "VARIABLE" }}'
            )
            text = f"it wants a credential ({answer.status}): add `auth = {form}`"
            return Finding("failed", text, Kind.CREDENTIAL_MISSING)
        text = f"it refuses our credential ({status_of(answer)}): "
        if credential.header.lower() != probe.header.lower():
            text += (
                f"a backend of the dialect `{self.backend.dialect}` reads the header "
                f"`{probe.header}`, and `auth` puts it into `{credential.header}`"
            )
        elif answer.status == 403:
            text += "give it the rights to read and write sessions, or name another one in `auth`"
        else:
            text += f"correct {_source(self.backend)}, then start again"
        return Finding("failed", text, Kind.CREDENTIAL_REFUSED)

    async def _streaming(self, probe: Probe, body: Any) -> Finding:
        """Say whether a stream is answered as one."""
        call = probe.stream(body)
        if isinstance(call, str):
            return Finding("not asked", call)
        path = call.request.path
        try:
            head = await self._upstream.head(call)
        except UpstreamTimeout:
            text = (
                f"no stream of {path} began within {self.seconds:g} s: a proxy before the backend "
                "may hold streams back (turn its buffering off), or nothing happens in it"
            )
            return Finding("unknown", text, Kind.BUFFERED)
        except UpstreamError as error:
            why = unreached(error, self.backend.url, self.seconds)
            return dataclasses.replace(why, state="unknown")
        if not 200 <= head.status < 300 or head.status == 204:
            return Finding("unknown", f"{path} is answered with {head.status}, without a stream")
        wanted = STREAM_TYPES[probe.framing]
        if (given := type_of(head)) != wanted:
            text = (
                f"{path} is answered with `{given or 'no content type'}` and not with `{wanted}`, "
                "so nothing of it is read: look for a proxy before the backend that changes it"
            )
            return Finding("failed", text, Kind.CONTENT_TYPE)
        if head.headers.get("Content-Length", "0") != "0":
            text = (
                f"the stream of {path} comes with a length, so something before the backend "
                "collects it to its end: turn the buffering of proxies off for it"
            )
            return Finding("failed", text, Kind.BUFFERED)
        return Finding("ok", f"`{wanted}`")


def _fits(question: Question, answer: Response) -> bool:
    body = json_of(answer)
    return body is not None and question.fits(answer.status, body)


def _source(backend: BackendSettings) -> str:
    """Name where a backend's credential comes from."""
    auth = backend.auth
    if auth is None:
        return "the credential"
    if (variable := auth.bearer_env or auth.env) is not None:
        return f"the environment variable `{variable}`"
    return f"the file `{auth.bearer_file or auth.file}`"
