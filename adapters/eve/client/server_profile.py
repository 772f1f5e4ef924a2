"""Which eve it is, and so what it can do (eve page, section 1)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from adapters.eve import wire
from adapters.eve.client.state import EveClientState, Generation
from adapters.model import events as ev
from adapters.model.base import Ability, Response, Support
from adapters.wire.errors import ErrorCode, NotSupported
from adapters.wire.url_paths import is_segment

STEER_FROM = (0, 33, 0)
"""Section 5: the first release that knows `turnPolicy`."""

_RESOLVED_FROM = (0, 39, 1)
"""Section 9.4: the first release that says `input.resolved`."""

_HELD_FROM = (0, 70, 0)
"""Section 1: from here on no pause closes its turn."""

_STEER_NATIVE = Ability(Support.NATIVE, "`turnPolicy` steer while nothing is open (section 5.1)")

_STEER_QUEUED = Ability(
    Support.EMULATED, "queued as the next message: this eve does not steer (5.1)"
)

ABILITIES: dict[str, Ability] = {
    "create_session": Ability(Support.EMULATED, "made with or before its first message"),
    "send_message": Ability(Support.NATIVE),
    "steer": _STEER_QUEUED,
    "interrupt": Ability(Support.NATIVE),
    "answer": Ability(Support.NATIVE),
    "tool_result": Ability(Support.IMPOSSIBLE, "tools run on the eve server (section 8.1)"),
    "compact": Ability(Support.NATIVE),
    "clear": Ability(Support.NATIVE),
    "reset": Ability(Support.NATIVE),
    "archive": Ability(Support.EMULATED, "kept here"),
    "archive_thread": Ability(Support.IMPOSSIBLE, "a child belongs to its turn (section 10)"),
    "delete": Ability(Support.EMULATED, "erased here; an eve has no DELETE (section 2)"),
    "define_outcome": Ability(Support.IMPOSSIBLE, "an eve has no outcomes (section 3)"),
    "update_session": Ability(Support.EMULATED, "title and metadata are kept here"),
}
"""Until the generation is known; then `steer` is as it has it."""


def is_read(version: str) -> bool:
    """Say whether streams are read that are of a version, as a header names it."""
    is_number = re.fullmatch(r"[0-9]{1,4}", version) is not None
    return is_number and int(version) in wire.READ_STREAM_VERSIONS


def not_read(served: str) -> NotSupported:
    """Return the refusal of a server whose streams are not read."""
    oldest, newest = wire.READ_STREAM_VERSIONS[0], wire.READ_STREAM_VERSIONS[-1]
    return NotSupported(
        f"eve: the server serves stream version {served}; stream versions {oldest} to {newest} "
        "are read",
        code=ErrorCode.BACKEND_PROTOCOL,
    )


@dataclasses.dataclass(slots=True)
class ServerProfile:
    """What is known of the server."""

    state: EveClientState
    abilities: Mapping[str, Ability] = dataclasses.field(
        default_factory=lambda: ABILITIES, init=False
    )

    def know(self, generation: Generation, *, sure: bool = False) -> None:
        """Take the generation; what is surer stands."""
        known = self.state.generation
        if known is None or sure or (known[0] == "S" and generation == "S2"):
            self.state.generation = generation
        self.set_abilities()

    def know_version(self, text: object) -> None:
        """Take the version, and the generation that it says."""
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", text) if isinstance(text, str) else None
        if found is None:
            return
        version = [int(part) for part in found.groups()]
        self.state.version = version
        generation: Generation = "T" if version < [0, 31] else "S1" if version < [0, 69] else "S2"
        # What accepts S's requests is S, whatever version it names (section 1.1).
        if self.state.generation in (None, "S1", "S2") or generation == "T":
            self.know(generation, sure=self.state.generation is None or generation != "T")

    def set_abilities(self) -> None:
        """Say what this server can do."""
        steers = self.state.generation in ("S1", "S2") and self.at_least(STEER_FROM)
        self.abilities = {**ABILITIES, "steer": _STEER_NATIVE if steers else _STEER_QUEUED}

    def at_least(self, version: tuple[int, int, int]) -> bool:
        """Say whether the server is of this release or a later one; an unknown one is."""
        return self.state.version is None or tuple(self.state.version) >= version

    @property
    def explicit(self) -> bool:
        """Say whether the server itself says that a request is resolved."""
        generation = self.state.generation
        return generation == "S2" or (generation == "S1" and self.at_least(_RESOLVED_FROM))

    @property
    def folds(self) -> bool:
        """Say whether a pause closes the eve turn."""
        return not (self.state.generation == "S2" and self.at_least(_HELD_FROM))

    def learn(self, response: Response, body: dict[str, Any]) -> None:
        """Read the generation, the session and the token off an answer (sections 1 and 4.3)."""
        s = self.state
        session = body.get("sessionId") or response.headers.get(wire.SESSION_ID_HEADER)
        if s.session is None and isinstance(session, str) and is_segment(session):
            s.session = session
            s.lines[ev.MAIN].session = session
        token = body.get("continuationToken")
        if isinstance(token, str) and token:
            s.token = token
        if s.generation is None:
            if body.get("status") == "accepted":
                self.know("S1")
            elif token is not None or response.status == 200:
                self.know("T")
            else:
                self.know("S1")
