"""The golden matrix: every recorded conversation, as the canonical log and on every face.

A scenario is a conversation with an Engine that is played from `fixtures/wire`, or a recorded body
of another dialect that is translated. Its outcome is in `fixtures/golden/<scenario>/`:
`canonical.ndjson` is the log, and each file of `FACES` is what a frontend of that face reads.
`python -m tests.golden --write` writes them anew; without `--write` it prints what differs. The
diff is read in review: a golden never changes by itself.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from adapters.contract.step import stamp
from adapters.engine.client import EngineClient
from adapters.model import events as ev
from adapters.model.base import Call, CloseReason, EncoderContext, Response
from adapters.model.commands import AnswerInteraction, AnyCommand, SendMessage
from adapters.model.interactions import decide
from adapters.model.normalizer import Normalizer
from adapters.offline.translate import TranslateOptions, make_source
from adapters.registry import DIALECTS, faces
from adapters.wire.framing.sse import SseFrame, SseParser
from tests.wire import bodies, forms, name_of

REPOSITORY = Path(__file__).parents[2]
WIRE = REPOSITORY / "fixtures" / "wire"
GOLDEN = REPOSITORY / "fixtures" / "golden"

SESSION = "dgs_golden0000000000000000000"
START = 1_780_992_900_000
"""2026-06-09T08:15:00.000Z, the time at which the Engine's recordings begin."""


@dataclasses.dataclass(frozen=True)
class Face:
    """A dialect that the log is shown in, with the settings of its encoder."""

    dialect: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _file(dialect: str, form: str) -> str:
    """Return the name of the files of a form; the first one has the dialect's."""
    face = faces()[dialect]
    return f"{dialect}{'' if form == next(iter(face.forms)) else f'-{form}'}.{face.framing}"


FACES: dict[str, Face] = {
    _file(dialect, form): Face(dialect, settings) for dialect, form, settings in forms()
}
"""File name -> face."""


class Log:
    """The log of a session, made of raw events; entries come one millisecond after another."""

    def __init__(self) -> None:
        self.entries: list[ev.Entry] = []
        self._normalizer = Normalizer()
        self.add([ev.SessionStarted(thread_id=ev.MAIN)])

    @property
    def now(self) -> int:
        """Return the time of the newest entry, Unix milliseconds."""
        return START + len(self.entries) - 1

    @property
    def open(self) -> ev.InteractionRequested | None:
        """Return the interaction that waits and that nobody has answered."""
        waiting = self._normalizer.state.interactions.values()
        return next((i.event for i in waiting if i.claimed_by is None), None)

    def add(self, raw: Iterable[ev.Event]) -> None:
        """Take raw events."""
        state = self._normalizer.state
        for event in self._normalizer.feed(raw):
            self.entries += stamp(state, [event], START + state.seq, SESSION)

    def accept(self, command_id: str, command: AnyCommand) -> None:
        """Take an input of a frontend."""
        content = command.content if isinstance(command, SendMessage) else None
        request_id = command.request_id if isinstance(command, AnswerInteraction) else None
        accepted = ev.InputAccepted(
            thread_id=ev.MAIN,
            command_id=command_id,
            kind=command.KIND,
            content=content,
            request_id=request_id,
            by="key",
        )
        raw: list[ev.Event] = [accepted]
        if request_id is not None:
            raw.append(
                ev.InteractionAnswered(
                    thread_id=ev.MAIN, request_id=request_id, command_id=command_id, by="key"
                )
            )
        self.add(raw)


# Engine.


def engine(*bodies: str, answer: str | None = None) -> Callable[[], list[ev.Entry]]:
    """Return a scenario: the body of an execute, then those of replays.

    `answer` names a pair `http-hitl-respond-<answer>.*.json`: it is given when it is asked for.
    """
    return lambda: _engine(bodies, answer)


def _engine(bodies: tuple[str, ...], answer: str | None) -> list[ev.Entry]:
    frames = [_sse(WIRE / "engine" / body) for body in bodies]
    client = EngineClient({"task_id": _task(frames[0])})
    log = Log()
    message = SendMessage(content=(ev.Text(text="Please do."),), policy="reject")
    log.accept("cmd_1", message)
    call = client.submit("cmd_1", message)
    for number, body in enumerate(frames):
        if number:
            (call,) = client.streams()
        log.add(client.opened(call, Response(200), log.now))
        for frame in body:
            log.add(client.feed(call, frame, log.now))
            if answer is not None and log.open is not None:
                _answer(client, log, log.open, answer)
        log.add(client.closed(call, CloseReason.ENDED, log.now))
    now = log.now
    while client.wake_at is not None:
        now = max(now, client.wake_at)
        log.add(client.tick(now))
    return log.entries


def _answer(client: EngineClient, log: Log, asked: ev.InteractionRequested, name: str) -> None:
    pair = WIRE / "engine" / f"http-hitl-respond-{name}"
    body = json.loads(pair.with_suffix(".request.json").read_bytes())
    decision = {"yes": "allow", "no": "deny"}.get(body["answer"])
    given = AnswerInteraction(
        request_id=asked.request_id,
        decision=decision if asked.kind == "approval" else None,  # type: ignore[arg-type]
        option_ids=() if asked.kind == "approval" else (body["answer"],),
        reason=body.get("feedback"),
    )
    command = decide(given, asked)
    log.accept("cmd_2", command)
    call: Call = client.submit("cmd_2", command)
    response = Response(200, body=pair.with_suffix(".response.json").read_bytes())
    log.add(client.respond(call, response, log.now))


def _sse(path: Path) -> list[SseFrame]:
    return [f for f in SseParser().feed(path.read_bytes()) if isinstance(f, SseFrame)]


def _task(frames: list[SseFrame]) -> str:
    """Return the task that a body is of; its first frame names it."""
    return next((str(json.loads(f.data)["task_id"]) for f in frames if b"task_id" in f.data), "")


# Recorded bodies of the other dialects.


FOLDERS = {"managed-agents": ("live", "documented"), "agui": ("servers",)}
"""Dialect -> the folders whose bodies become goldens."""


def recorded() -> dict[str, Callable[[], list[ev.Entry]]]:
    """Return a scenario for every recorded body but of Engines; equal bodies are one. Where
    `FOLDERS` names some, only of these: what stands beside them shows the same again."""
    seen: set[bytes] = set()
    out: dict[str, Callable[[], list[ev.Entry]]] = {}
    for dialect in ("herm", "eve", "managed-agents", "hermes-agent", "agui"):
        for body in bodies(dialect):
            data = body.read_bytes()
            folder = body.relative_to(WIRE / dialect).parts[0]
            if data in seen or folder not in FOLDERS.get(dialect, (folder,)):
                continue
            seen.add(data)
            name = name_of(body)
            scenario = name if dialect == "eve" else f"{dialect}-{name.replace('/', '-')}"
            out[scenario] = functools.partial(_translated, dialect, data)
    return out


def _translated(dialect: str, data: bytes) -> list[ev.Entry]:
    source = make_source(dialect, TranslateOptions(session_id=SESSION))
    return [*source.feed(data), *source.close()]


SCENARIOS: dict[str, Callable[[], list[ev.Entry]]] = {
    "engine-01-plain-text": engine("01-plain-text.sse"),
    "engine-01b-short-form": engine("01b-plain-text-short-form.sse"),
    "engine-02-thinking-and-tool": engine("02-thinking-and-tool.sse"),
    "engine-03-permission-yes": engine("03-hitl-permission-yes.sse", answer="yes"),
    "engine-03-permission-elsewhere": engine("03-hitl-permission-yes.sse"),
    "engine-04-question": engine("04-hitl-question.sse", answer="question"),
    "engine-05-permission-no": engine("05-hitl-permission-denied.sse", answer="no"),
    "engine-06-error": engine("06-error-mid-stream.sse"),
    "engine-06b-error-and-errored": engine("06b-error-then-errored-lifecycle.sse"),
    "engine-06d-cut": engine("06d-abrupt-eof.sse"),
    "engine-07-cut": engine("07a-interrupted.sse"),
    "engine-07-replayed": engine("07a-interrupted.sse", "07c-replay-from-zero.sse"),
    "engine-07-gap": engine("07a-interrupted.sse", "07b-replay-after.sse"),
    "engine-07-expired": engine("07a-interrupted.sse", "07d-replay-expired-empty.sse"),
    "engine-08-long-turn": engine("08-long-turn.sse"),
    "engine-09-tolerance": engine("09-tolerance.sse"),
    "engine-10-likely-forms": engine("10-likely-forms.sse"),
    **recorded(),
}
"""Name -> what gives its log."""


# All of it.


def faces_of(entries: list[ev.Entry]) -> Iterator[tuple[str, bytes]]:
    """Yield file name and content of each golden of a log."""
    yield "canonical.ndjson", b"".join(entry.encode() + b"\n" for entry in entries)
    for name, face in FACES.items():
        create = DIALECTS[face.dialect].encoder
        assert create is not None, face.dialect
        encoder = create(EncoderContext(SESSION, b"golden", settings=face.settings))
        frames = [frame for entry in entries for frame in encoder.feed(entry)]
        yield name, b"".join(frame.data for frame in frames)


def goldens() -> Iterator[tuple[Path, bytes]]:
    """Yield path and content of every golden file, as the code makes them now."""
    for scenario, play in SCENARIOS.items():
        for name, content in faces_of(play()):
            yield GOLDEN / scenario / name, content


def stale() -> list[Path]:
    """Return the golden files that no scenario makes."""
    made = {GOLDEN / scenario / name for scenario in SCENARIOS for name in names()}
    return sorted(path for path in GOLDEN.rglob("*") if path.is_file() and path not in made)


def names() -> list[str]:
    """Return the file names of a scenario."""
    return ["canonical.ndjson", *FACES]
