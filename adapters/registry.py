"""The one list of dialects."""

from __future__ import annotations

from adapters.agui import routes as agui
from adapters.agui.server import AguiEncoder
from adapters.aisdk import routes as aisdk
from adapters.aisdk.server import AisdkEncoder
from adapters.contract.dialect import Dialect
from adapters.contract.faces import Face
from adapters.engine import routes as engine
from adapters.engine.captured import CAPTURED as ENGINE
from adapters.engine.client import EngineClient
from adapters.engine.probe import PROBE as PROBE_ENGINE
from adapters.engine.server import EngineEncoder
from adapters.eve import routes as eve
from adapters.eve.captured import CAPTURED as EVE
from adapters.eve.client import EveClient
from adapters.eve.probe import PROBE as PROBE_EVE
from adapters.eve.server import EveEncoder
from adapters.herm import routes as herm
from adapters.herm.captured import CAPTURED as HERM
from adapters.herm.client import HermClient
from adapters.herm.probe import PROBE as PROBE_HERM
from adapters.herm.server import HermEncoder

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        # No heartbeat is promised: a stream is opened again where it was read, and the backend
        # works on meanwhile.
        Dialect(
            "herm",
            HermEncoder,
            client=HermClient,
            face=herm.FACE,
            captured=HERM,
            probe=PROBE_HERM,
            silence_seconds=60.0,
        ),
        # Six heartbeats of 10 s from 0.57 on, and its lease; an older eve sends none, and is read
        # on where it was (sections 7.3 and 7.4).
        Dialect(
            "eve",
            EveEncoder,
            client=EveClient,
            face=eve.FACE,
            captured=EVE,
            probe=PROBE_EVE,
            silence_seconds=60.0,
        ),
        # Four heartbeats of about 15 s (section 17).
        Dialect(
            "engine",
            EngineEncoder,
            client=EngineClient,
            face=engine.FACE,
            captured=ENGINE,
            probe=PROBE_ENGINE,
            silence_seconds=60.0,
        ),
        Dialect("agui", AguiEncoder, face=agui.FACE, only="frontends"),
        Dialect("aisdk", AisdkEncoder, face=aisdk.FACE, only="frontends"),
        Dialect("managed-agents"),
        Dialect("hermes-agent"),
    )
}
"""Every dialect by its name, with the halves that are built."""


def faces() -> dict[str, Face]:
    """Return the faces that are built, by dialect."""
    return {name: known.face for name, known in DIALECTS.items() if known.face is not None}
