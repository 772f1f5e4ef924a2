"""Holds the scripted eve against a real eve server of the same generation.

The same conversation is led with both, request by request: the real server's model plays a scene,
the scripted eve a script of the same shape. Statuses, the members of answers, the types of records,
their order and their members must be equal; texts, ids and times may differ. Refusals must be equal
to the word.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
from aiohttp import web

from proxy.scripted.eve import create_eve_app
from proxy.scripted.eve_turns import EveVariant

__all__ = [
    "CASES",
    "KNOWN",
    "REFUSALS",
    "RELAY_S",
    "Case",
    "compare",
    "compare_refusals",
    "scripted",
]

HOST = "127.0.0.1"
# How long a boundary may take that comes: only a server that hangs takes longer.
BOUNDARY_S = 120.0
# How long a stream that is open says nothing until it counts as silent.
QUIET_S = 2.0

# eve 0.80.1 accepts an answer to a child's request that comes within milliseconds of the request,
# and loses it; on a busy machine they are more.
RELAY_S = 2.0

Generation = Literal["T", "S2"]


@dataclass(frozen=True, slots=True)
class Case:
    """One conversation.

    `steps` are `yes`, `no`, `no:REASON`, `option:N`, `text:WORDS`, `message:WORDS` (`scene:` stands
    for the one side's, `script:` for the other's command), `cancel`, `compact`, `clear`, `reset`;
    `both:yes,no` answers the two oldest requests in one post, `backwards:yes,no` names the second
    one first; `with:yes,no:WORDS` answers as many and says something in the same post, which only
    the token generation takes.
    """

    name: str
    scene: str
    script: str
    steps: tuple[str, ...] = ()
    schema: bool = False


CASES: Sequence[Case] = (
    Case("text", "plain", "text"),
    Case("reason", "reason", "reason"),
    Case("tool", "as-tool", "tool"),
    Case("tools", "as-tools", "tools"),
    Case("toolfail", "as-toolfail", "toolfail"),
    Case("follow-up", "plain", "text", ("message:AGAIN",)),
    Case("approve", "approve", "approve", ("yes",)),
    Case("refuse", "approve", "approve", ("no",)),
    Case("refuse-reason", "approve", "approve", ("no:Too expensive.",)),
    Case("approve-by-message", "approve", "approve", ("message:approve",)),
    Case("leave-approval", "approve", "approve", ("message:AGAIN",)),
    Case("approve-twice", "as-approve-twice", "approve-twice", ("yes", "no")),
    Case("approve2", "as-approve2", "approve2", ("yes", "no")),
    Case("approve2-together", "as-approve2", "approve2", ("both:yes,no",)),
    Case("approve2-backwards", "as-approve2", "approve2", ("backwards:yes,no",)),
    Case("answer-and-message", "approve", "approve", ("with:yes:AGAIN", "message:AGAIN")),
    Case("refuse-and-message", "approve", "approve", ("with:no:AGAIN",)),
    Case("both-and-message", "as-approve2", "approve2", ("with:yes,no:AGAIN",)),
    Case("half-and-message", "as-approve2", "approve2", ("with:yes:AGAIN", "yes", "message:AGAIN")),
    Case(
        "twice-and-message",
        "as-approve-twice",
        "approve-twice",
        ("with:yes:AGAIN", "with:no:AGAIN"),
    ),
    Case("ask-and-message", "as-ask", "ask", ("with:yes:AGAIN", "message:AGAIN")),
    Case("message-then-answer", "approve", "approve", ("message:AGAIN", "yes", "message:AGAIN")),
    Case("approve2-left", "as-approve2", "approve2", ("message:AGAIN",)),
    Case("approve2-half-left", "as-approve2", "approve2", ("yes", "message:AGAIN")),
    Case("ask", "as-ask", "ask", ("option:1",)),
    Case("ask-text", "as-ask", "ask", ("text:a later one",)),
    Case("ask-by-message", "as-ask", "ask", ("message:09:10",)),
    Case("ask-open", "as-ask open", "askopen", ("text:Ada",)),
    Case("child", "delegate", "child"),
    Case("childask", "as-childask", "childask", ("yes",)),
    Case("structured", "structured", "structured", schema=True),
    Case("fail", "fail", "fail", ("message:AGAIN",)),
    Case("failmid", "failmid", "failmid"),
    Case("cancel", "slow 240", "slow 600", ("cancel", "message:AGAIN")),
    Case("cancel-held", "approve", "approve", ("cancel",)),
    Case("controls", "plain", "text", ("compact", "clear", "message:AGAIN", "reset")),
    Case("stale-answer", "plain", "text", ("stale",)),
)

KNOWN: dict[tuple[str, Generation], str] = {}
"""Differences that are meant, with their reason: (case, generation) -> why. There are none."""

# Members whose inside belongs to the application, not to eve.
_OPAQUE = frozenset(
    {"input", "output", "details", "detail", "presentation", "trace", "description", "parts"}
)
_MERGED = frozenset({"message.appended", "reasoning.appended", "action.input.appended"})


def shape(value: object, name: str = "") -> object:
    """Return what is compared of a value: members and kinds, not texts and numbers."""
    if name in _OPAQUE:
        return "..."
    if isinstance(value, dict):
        return {key: shape(item, key) for key, item in sorted(value.items())}
    if isinstance(value, list):
        shapes = {json.dumps(shape(item), sort_keys=True) for item in value}
        return sorted(shapes)
    if isinstance(value, bool) or value is None:
        return str(value)
    return "number" if isinstance(value, int | float) else "text"


# Members whose very value counts.
_EXACT = frozenset(
    {"on", "status", "outcome", "kind", "finishReason", "wait", "display", "sequence", "origin"}
    | {"stepIndex", "ok", "allowFreeform", "isError"}
)


def record_shape(record: dict[str, Any]) -> str:
    """Return one line that says which form a record has."""
    data = record.get("data")
    exact = {} if data is None else {key: data[key] for key in sorted(_EXACT & data.keys())}
    members = None if data is None else shape(data)
    meta = sorted(record["meta"])
    # A structured result is the application's.
    if record["type"] == "result.completed" and isinstance(members, dict):
        members["result"] = "..."
    return json.dumps([record["type"], exact, members, meta], sort_keys=True)


def _decided(asked: Sequence[dict[str, Any]], words: str) -> list[dict[str, str]]:
    """Return a yes or a no to each request."""
    chosen = [{"yes": 0, "no": 1}[word] for word in words.split(",")]
    return [
        {"requestId": request["requestId"], "optionId": request["options"][n]["id"]}
        for request, n in zip(asked, chosen, strict=True)
    ]


class Side:
    """One server and one session on it."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, generation: Generation, word: str
    ) -> None:
        self._http = http
        self._url = url
        self._tokens = generation == "T"
        self._word = word
        self._session = ""
        self._token = ""
        self._index = 0
        self._requests: list[dict[str, Any]] = []
        self._children = False
        self.seen: list[str] = []

    async def play(self, first: str, steps: Sequence[str], *, schema: bool) -> list[str]:
        """Lead the conversation; returns what was seen, a line for each thing."""
        body: dict[str, Any] = {"message": f"{self._word}: {first}"}
        if schema:
            properties = {"title": {"type": "string"}, "count": {"type": "integer"}}
            body["outputSchema"] = {"type": "object", "properties": properties}
        answer = await self._post("/eve/v1/session", body)
        self._session = answer["sessionId"]
        self._token = answer.get("continuationToken", "")
        if steps[:1] == ("cancel",) and not first.startswith("approve"):
            await self._read(until="message.appended")
        else:
            await self._read()
        for number, step in enumerate(steps):
            if not await self._step(step):
                continue
            quiet = step == "reset" or (step == "cancel" and self._tokens and bool(self._requests))
            await self._read(quiet=quiet and number == len(steps) - 1)
        return self.seen

    async def _step(self, step: str) -> bool:
        """Do a step; return whether something comes of it."""
        verb, _, words = step.partition(":")
        path = f"/eve/v1/session/{self._session}"
        match verb:
            case "message":
                await self._post(path, {"message": self._words(words)})
            case "with":
                chosen, _, said = words.partition(":")
                asked = self._requests[: len(chosen.split(","))]
                body = {"inputResponses": _decided(asked, chosen), "message": self._words(said)}
                answer = await self._post(path, body)
                if not answer["ok"]:
                    return False
                self._requests = self._requests[len(asked) :]
            case "cancel":
                await self._post(f"{path}/cancel", None)
            case "compact" | "clear" | "reset":
                if self._tokens:
                    await self._post(f"/eve/v1/session/{verb}", {})
                else:
                    await self._post(f"{path}/{verb}", None)
            case "stale":
                response = {"requestId": "no-such-request", "optionId": "approve"}
                await self._post(path, {"inputResponses": [response]})
            case "both" | "backwards":
                asked, self._requests = self._requests[:2], self._requests[2:]
                responses = _decided(asked, words)
                responses = responses[::-1] if verb == "backwards" else responses
                await self._post(path, {"inputResponses": responses})
            case _:
                request = self._requests.pop(0)
                if self._children:
                    await asyncio.sleep(RELAY_S)
                response = {"requestId": request["requestId"]}
                if verb == "text":
                    response["text"] = words
                else:
                    number = {"yes": 0, "no": 1}.get(verb)
                    number = int(words) if number is None else number
                    response["optionId"] = request["options"][number]["id"]
                    if verb == "no" and words:
                        response["text"] = words
                await self._post(path, {"inputResponses": [response]})
        return True

    def _words(self, words: str) -> str:
        again = f"{self._word}: " + ("plain" if self._word == "scene" else "text")
        return again if words == "AGAIN" else words

    async def _post(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        if self._tokens and self._session and body is not None:
            body = {"continuationToken": self._token, **body}
        async with self._http.post(self._url + path, json=body) as response:
            answer = await response.json()
            kind = response.content_type
            named = "x-eve-session-id" in response.headers
            stored = response.headers.get("cache-control")
        # The session's name is in the path: left out of what is compared.
        self.seen.append(f"POST {response.status} {kind} {named} {stored} {shape(answer)}")
        assert isinstance(answer, dict)
        return answer

    async def _read(self, *, until: str | None = None, quiet: bool = False) -> None:
        """Read to the next boundary, or until nothing comes."""
        url = f"{self._url}/eve/v1/session/{self._session}/stream"
        query = {"startIndex": str(self._index)}
        try:
            async with asyncio.timeout(BOUNDARY_S) as limit:
                async with self._http.get(url, params=query) as response:
                    headers = {
                        name: response.headers.get(name, "")
                        for name in ("content-type", "cache-control", "x-eve-stream-version")
                    }
                    self.seen.append(f"GET {response.status} {headers}")
                    if quiet:
                        limit.reschedule(self._quiet_at())
                    async for line in response.content:
                        if not line.strip():
                            continue
                        if self._take(json.loads(line), until):
                            return
                        if quiet:
                            limit.reschedule(self._quiet_at())
                self.seen.append("the body ends")
        except TimeoutError:
            self.seen.append("nothing more comes")

    @staticmethod
    def _quiet_at() -> float:
        """Return when the stream counts as silent if it says nothing from now on."""
        return asyncio.get_running_loop().time() + QUIET_S

    def _take(self, record: dict[str, Any], until: str | None) -> bool:
        """Note a record; returns whether it ends the read."""
        self._index += 1
        kind: str = record["type"]
        line = record_shape(record)
        if kind in _MERGED:
            # How many pieces a text has is the model's affair, not eve's.
            if not (self.seen and self.seen[-1] == line):
                self.seen.append(line)
        else:
            self.seen.append(line)
        if kind == "input.requested":
            self._requests += record["data"]["requests"]
        self._children = self._children or kind == "subagent.called"
        held = kind == "turn.waiting" and record["data"]["on"] == "input"
        return held or kind in ("session.waiting", until)


async def compare(
    http: aiohttp.ClientSession, case: Case, generation: Generation, real: str, scripted_url: str
) -> list[str]:
    """Lead a conversation with both servers; returns the differences."""
    theirs, ours = await asyncio.gather(
        Side(http, real, generation, "scene").play(case.scene, case.steps, schema=case.schema),
        Side(http, scripted_url, generation, "script").play(
            case.script, case.steps, schema=case.schema
        ),
    )
    return differences(_settled(theirs), _settled(ours))


def _settled(seen: list[str]) -> list[str]:
    """Leave out what follows a cancel by chance: pieces of text that were on their way."""
    out: list[str] = []
    for line in seen:
        while '"turn.cancelled"' in line and '"message.appended"' in out[-1]:
            out.pop()
        out.append(line)
    return out


def differences(real: Sequence[str], scripted_: Sequence[str]) -> list[str]:
    """Return the lines that differ, with their place."""
    found = [
        f"{place}:\n  real     {a}\n  scripted {b}"
        for place, (a, b) in enumerate(zip(real, scripted_, strict=False))
        if a != b
    ]
    if len(real) != len(scripted_):
        longer, name = (real, "real") if len(real) > len(scripted_) else (scripted_, "scripted")
        rest = longer[min(len(real), len(scripted_)) :]
        found.append(f"only {name}: " + "\n  ".join(rest))
    return found


REFUSALS: Sequence[tuple[str, bytes | None]] = (
    ("create", b"{not json"),
    ("create", b"[1]"),
    ("create", b'{"message":""}'),
    ("create", b'{"message":5}'),
    ("create", b'{"message":[]}'),
    ("create", b'{"message":[{"type":"image","image":"x","mediaType":"image/png"}]}'),
    ("create", b'{"message":[{"type":"text","text":""}]}'),
    ("create", b'{"message":[{"type":"file","data":"aGk="}]}'),
    ("create", b'{"message":"x","clientContext":7}'),
    ("create", b'{"message":"x","outputSchema":"no"}'),
    ("create", b'{"message":"x","capabilities":{"nope":true}}'),
    ("create", b'{"message":"x","forwardedPrincipal":{"current":{}}}'),
    ("session", b"{}"),
    ("session", b"{bad"),
    ("session", b'{"TOKEN":1,"inputResponses":[]}'),
    ("session", b'{"TOKEN":1,"inputResponses":[{"optionId":"a"}]}'),
    ("session", b'{"TOKEN":1,"inputResponses":[{"requestId":"r","extra":1}]}'),
    ("session", b'{"continuationToken":"eve:00000000-0000-4000-8000-000000000000","message":"x"}'),
    ("session", b'{"TOKEN":1,"message":""}'),
    ("session", b'{"TOKEN":1,"message":"","inputResponses":[]}'),
    ("unknown", b'{"message":"x"}'),
    ("cancel", b'{"turnId":""}'),
    ("cancel-unknown", None),
    ("stream?startIndex=abc", None),
    ("stream?startIndex=1.5", None),
    ("stream?startIndex=", None),
)
"""Requests that no server takes, as in `errors.json` and `stream-cursor.json`."""


async def compare_refusals(
    http: aiohttp.ClientSession, generation: Generation, real: str, scripted_url: str
) -> list[str]:
    """Send what must be refused to both; returns the differences, to the word."""
    theirs, ours = await asyncio.gather(
        _refusals(http, real, generation, "scene: plain"),
        _refusals(http, scripted_url, generation, "script: text"),
    )
    return differences(theirs, ours)


async def _refusals(
    http: aiohttp.ClientSession, url: str, generation: Generation, first: str
) -> list[str]:
    base = f"{url}/eve/v1/session"
    async with http.post(base, json={"message": first}) as response:
        created = await response.json()
    name, token = created["sessionId"], created.get("continuationToken", "")
    seen = []
    for what, body in REFUSALS:
        own = b"" if generation == "S2" else b'"continuationToken":"%s",' % token.encode()
        data = None if body is None else body.replace(b'"TOKEN":1,', own)
        method, path = "POST", base
        match what:
            case "session":
                path = f"{base}/{name}"
            case "unknown":
                path = f"{base}/wrun_01ARYZ6S41TSV4RRFFQ69G5FAV"
            case "cancel":
                path = f"{base}/{name}/cancel"
            case "cancel-unknown":
                path = f"{base}/wrun_01ARYZ6S41TSV4RRFFQ69G5FAV/cancel"
            case "create":
                pass
            case _:
                method, path = "GET", f"{base}/{name}/{what}"
        async with http.request(method, path, data=data) as response:
            answer = await response.json()
        if "sessionId" in answer:
            answer["sessionId"] = "..."
        seen.append(f"{what} {body!r}: {response.status} {json.dumps(answer, sort_keys=True)}")
    return seen


@asynccontextmanager
async def scripted(generation: Generation) -> AsyncIterator[str]:
    """Serve a scripted eve, and give its URL."""
    app = create_eve_app(variant=EveVariant(generation))
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
