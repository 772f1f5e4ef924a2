"""The same dialect in and out: what a backend said reaches a frontend of its own dialect as it was.

Every recorded body goes through the canonical log and back into its own dialect. Frame by frame,
both are equal as JSON values, numbers exact, but for the members that MAPPING.md says are `masked:`
(ours also on this way).

An eve stream is recorded in pieces, by readers that came back with a cursor: the pieces of one
session, put together by their indices, are the body. Each is shown in the form that its server's
stream version means.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from adapters.offline.translate import TranslateOptions, make_sink, make_source
from proxy.config.matrix import mapping_of
from tests.support.each import each
from tests.test_mapping_used import ANY, ROOTS, frames_of
from tests.wire import FIXTURES, bodies, name_of

FORMS = {"21": "tokens", "26": "newest"}
"""Stream version that a server declares -> the form that says the same (eve page, section 1.1)."""

EVE = FIXTURES / "wire" / "eve"


# What eve's readers read, put together.


@functools.cache
def eve_reads() -> dict[str, tuple[str, int | None, str]]:
    """Return (session, first index or None where it counts from the end, form) of every body."""
    found = {}
    for path in sorted(EVE.rglob("*.json")):
        for exchange in json.loads(path.read_bytes())["exchanges"]:
            response = exchange.get("response") or {}
            if "bodyFile" not in response:
                continue
            headers = {name.lower(): value for name, value in response["headers"]}
            address = urlsplit(exchange["request"]["path"])
            start = int(parse_qs(address.query).get("startIndex", ["0"])[0])
            session = address.path.split("/")[-2]
            form = FORMS[headers["x-eve-stream-version"]]
            body = path.with_name(response["bodyFile"])
            found[name_of(body)] = (session, start if start >= 0 else None, form)
    return found


def records_of(body: Path) -> list[bytes]:
    """Return the lines of a body that are records: neither blank nor control."""
    lines = body.read_bytes().split(b"\n")
    return [line for line in lines if line.strip() and "type" in json.loads(line)]


@functools.cache
def eve_streams() -> dict[str, tuple[str, bytes]]:
    """Return name -> (form, body) of every session's stream, as far as readers saw it."""
    reads = eve_reads()
    streams: dict[tuple[str, str], tuple[str, dict[int, bytes]]] = {}
    for body in bodies("eve"):
        session, start, form = reads[name_of(body)]
        scenario = name_of(body).rpartition(".")[0]
        _, records = streams.setdefault((scenario, session), (form, {}))
        for number, record in enumerate(records_of(body) if start is not None else ()):
            assert start is not None
            assert records.setdefault(start + number, record) == record
    found = {}
    for (scenario, session), (form, records) in streams.items():
        if records:
            assert set(records) == set(range(len(records))), (scenario, session)
            found[f"{scenario} {session}"] = (
                form,
                b"".join(records[n] + b"\n" for n in sorted(records)),
            )
    return found


# Masks.


def prune(value: Any, homes: frozenset[str], masked: frozenset[str]) -> Any:
    """Return `value`, which tables name by `homes`, without what is masked."""
    if isinstance(value, list):
        inside = homes | {f"{home}[]" for home in homes}
        return [prune(item, inside, masked) for item in value]
    if not isinstance(value, dict):
        return value
    names = homes | {home.rpartition(".")[2].removesuffix("[]") for home in homes}
    kind = value.get("type")
    if isinstance(kind, str):
        # A block, a reason, an error: named by its own type, and by its place and type.
        names |= {kind} | {f"{home}.{kind}" for home in names}
    return {
        name: prune(item, places, masked)
        for name, item in value.items()
        if not (places := frozenset(f"{home}.{name}" for home in names)) & masked
    }


def repeated(dialect: str) -> set[str]:
    """Return the events that a backend may say again, which tables mask."""
    return {row.partition(".(")[0] for row in mapping_of(dialect).masked if "(repeated)" in row}


def shown(dialect: str, data: bytes) -> list[tuple[str, Any]]:
    """Return type and members of each frame, without what is masked."""
    masked = mapping_of(dialect).masked
    framing = "ndjson" if dialect == "eve" else "sse"
    found: list[tuple[str, Any]] = []
    said = []
    for name, payload, _ in frames_of(framing, data):
        if not isinstance(payload, dict):
            found.append((name, payload))
            continue
        inner = next((k for k in ("data", "payload") if isinstance(payload.get(k), dict)), None)
        kind = str(payload.get("type") or (payload[inner] if inner else {}).get("type") or name)
        if kind in masked:
            continue
        if kind in repeated(dialect):
            if (same := (kind, payload.get(inner or ""))) in said:
                continue
            said.append(same)
        roots = frozenset({*ROOTS, ANY} if inner else {*ROOTS, ANY, kind})
        frame = {}
        for member, item in payload.items():
            places = frozenset(f"{root}.{member}" for root in roots)
            if places & masked:
                continue
            homes = frozenset({kind, ANY, member}) if member == inner else places | {member}
            frame[member] = prune(item, homes, masked)
        found.append((kind, frame))
    return found


def through(dialect: str, data: bytes, form: str) -> bytes:
    """Return a body after its way through the log, in its own dialect again."""
    options = TranslateOptions(form=form)
    source, sink = make_source(dialect, options), make_sink(dialect, options)
    return b"".join(map(sink, [*source.feed(data), *source.close()]))


CONTINUED = {"07b-replay-after": "07a-interrupted"}
"""Bodies of an Engine that a reader got who came back -> the body that broke off before."""

UNDOCUMENTED = frozenset({"10-undocumented-forms"})
"""Bodies made of forms that the Herm page leaves open: the face writes the documented ones."""

ENDS = {
    "herm": {"session.status_idle"},
    "engine": {"thread_lifecycle"},
    "eve": {"session.waiting", "session.completed", "session.failed", "turn.waiting"},
}
"""Frames after which nothing is open. A body that ends elsewhere was cut by its reader or its
backend; after it the face says how the turn ended.
"""


def cases() -> Iterator[tuple[str, str, str, bytes]]:
    """Yield (dialect, name, form, body) of everything that is compared."""
    found = {name_of(body): body.read_bytes() for body in bodies("engine")}
    for name, data in found.items():
        yield "engine", name, "all", found.get(CONTINUED.get(name, ""), b"") + data
    for body in bodies("herm"):
        yield "herm", name_of(body), "all", body.read_bytes()
    for name, (form, data) in eve_streams().items():
        yield "eve", name, form, data


CASES = list(cases())


@each(("dialect", "name", "form", "body"), CASES, ids=[c[1] for c in CASES])
def test_a_backend_reaches_its_own_dialect_as_it_was(
    dialect: str, name: str, form: str, body: bytes
) -> None:
    source, made = shown(dialect, body), shown(dialect, through(dialect, body, form))
    if not source or source[-1][0] not in ENDS[dialect]:
        made = made[: len(source)]
    if name in UNDOCUMENTED:
        assert exactly(made) != exactly(source), "it is equal: take it off the list"
    else:
        assert exactly(made) == exactly(source)


def exactly(frames: list[tuple[str, Any]]) -> list[str]:
    """Return frames as texts: 1 and 1.0 and true are three."""
    return [json.dumps(frame, sort_keys=True) for frame in frames]


def test_every_body_of_an_eve_is_in_what_is_compared() -> None:
    streams = b"".join(data for _, data in eve_streams().values()).split(b"\n")
    known = set(streams)
    for body in bodies("eve"):
        assert set(records_of(body)) <= known, name_of(body)
