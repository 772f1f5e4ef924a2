"""The one list of dialects."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from adapters.contract.dialect import Dialect

if TYPE_CHECKING:
    from adapters.captures.secrets import DeltaFormat
    from adapters.contract.faces import Face

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        # No heartbeat is promised: a stream is opened again where it was read, and the backend
        # works on meanwhile.
        Dialect(
            "herm",
            encoder="server:HermEncoder",
            client="client:HermClient",
            face="routes:FACE",
            captured="captured:CAPTURED",
            probe="probe:PROBE",
            deltas="wire:DELTAS",
            silence_seconds=60.0,
        ),
        # Six heartbeats of 10 s from 0.57 on, and its lease; an older eve sends none, and is read
        # on where it was (sections 7.3 and 7.4).
        Dialect(
            "eve",
            encoder="server:EveEncoder",
            client="client:EveClient",
            face="routes:FACE",
            captured="captured:CAPTURED",
            probe="probe:PROBE",
            deltas="wire:DELTAS",
            silence_seconds=60.0,
            example_url="http://127.0.0.1:2000",
            shaped_by=("form", "token_rotation"),
            page_headers=(
                "x-eve-session-id",
                "x-eve-stream-format",
                "x-eve-stream-tail-index",
                "x-eve-stream-version",
            ),
        ),
        # Four heartbeats of about 15 s (section 17).
        Dialect(
            "engine",
            encoder="server:EngineEncoder",
            client="client:EngineClient",
            face="routes:FACE",
            captured="captured:CAPTURED",
            probe="probe:PROBE",
            deltas="wire:DELTAS",
            session_members=("task_id",),
            recorded_call="captured:RECORDED_CALL",
            silence_seconds=60.0,
            chosen_names=True,
            backend_settings=frozenset({"interrupt", "task_ids_of"}),
            example_url="http://127.0.0.1:8000",
            key_header="X-Engine-Key",
        ),
        # Nothing is written while a tool runs, and to leave the body stops it: only what is dead is
        # to be left.
        Dialect(
            "agui",
            encoder="server:AguiEncoder",
            client="client:AguiClient",
            face="routes:FACE",
            captured="captured:CAPTURED",
            probe="probe:PROBE",
            deltas="wire:DELTAS",
            session_members=("threadId",),
            recorded_call="captured:RECORDED_CALL",
            silence_seconds=1800.0,
            example_url="http://127.0.0.1:8000/",
        ),
        Dialect(
            "aisdk",
            encoder="server:AisdkEncoder",
            face="routes:FACE",
            only="frontends",
            shaped_by=("ask_tool",),
            deltas="wire:DELTAS",
        ),
        # Three keep-alives of about 25 s (live page, section 1).
        Dialect(
            "managed-agents",
            encoder="server:ManagedAgentsEncoder",
            client="client:ManagedAgentsClient",
            face="routes:FACE",
            captured="captured:CAPTURED",
            probe="probe:PROBE",
            deltas="wire:DELTAS",
            silence_seconds=90.0,
            shaped_by=("ask_tool",),
            key_header="x-api-key",
            page_headers=("request-id", "x-should-retry"),
        ),
        # Its hooks are sent to us: such a backend has no address, and nobody asks it anything.
        Dialect(
            "hermes-agent",
            only="backends",
            client="client:HermesHooksClient",
            receiver="deliveries:RECEIVER",
            key_header="X-Hermes-Signature-256",
            url_schemes=(),
            other_urls=("hooks:",),
        ),
    )
}
"""Every dialect by its name, with the halves that are built."""


@functools.cache
def deltas() -> Mapping[str, DeltaFormat]:
    """Return the frames of all of them that have more of a text, by their type: what passes a
    recorder may be of any."""
    from adapters.captures.secrets import by_type

    return by_type(delta for dialect in DIALECTS.values() for delta in dialect.deltas or ())


class Faces(Mapping[str, "Face"]):
    """The faces that are built, by dialect. Each is imported when it is looked up; names are not
    looked up for that."""

    def __getitem__(self, name: str) -> Face:
        face = DIALECTS[name].face
        if face is None:
            raise KeyError(name)
        return face

    def __contains__(self, name: object) -> bool:
        return name in DIALECTS and DIALECTS[str(name)].has_face

    def __iter__(self) -> Iterator[str]:
        return (name for name, known in DIALECTS.items() if known.has_face)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def faces() -> Mapping[str, Face]:
    """Return the faces that are built, by dialect."""
    return Faces()
