"""The one list of dialects."""

from __future__ import annotations

from adapters.agui import routes as agui
from adapters.agui.captured import CAPTURED as AGUI
from adapters.agui.captured import RECORDED_CALL as AGUI_CALL
from adapters.agui.client import AguiClient
from adapters.agui.probe import PROBE as PROBE_AGUI
from adapters.agui.server import AguiEncoder
from adapters.agui.wire import DELTAS as AGUI_DELTAS
from adapters.aisdk import routes as aisdk
from adapters.aisdk.server import AisdkEncoder
from adapters.aisdk.wire import DELTAS as AISDK_DELTAS
from adapters.captures.secrets import by_type
from adapters.contract.dialect import Dialect
from adapters.contract.faces import Face
from adapters.engine import routes as engine
from adapters.engine.captured import CAPTURED as ENGINE
from adapters.engine.captured import RECORDED_CALL as ENGINE_CALL
from adapters.engine.client import EngineClient
from adapters.engine.probe import PROBE as PROBE_ENGINE
from adapters.engine.server import EngineEncoder
from adapters.engine.wire import DELTAS as ENGINE_DELTAS
from adapters.eve import routes as eve
from adapters.eve.captured import CAPTURED as EVE
from adapters.eve.client import EveClient
from adapters.eve.probe import PROBE as PROBE_EVE
from adapters.eve.server import EveEncoder
from adapters.eve.wire import DELTAS as EVE_DELTAS
from adapters.herm import routes as herm
from adapters.herm.captured import CAPTURED as HERM
from adapters.herm.client import HermClient
from adapters.herm.probe import PROBE as PROBE_HERM
from adapters.herm.server import HermEncoder
from adapters.herm.wire import DELTAS as HERM_DELTAS
from adapters.hermes_agent.client import HermesHooksClient
from adapters.hermes_agent.deliveries import RECEIVER as RECEIVE_HERMES
from adapters.managed_agents import routes as managed_agents
from adapters.managed_agents.captured import CAPTURED as MANAGED_AGENTS
from adapters.managed_agents.client import ManagedAgentsClient
from adapters.managed_agents.probe import PROBE as PROBE_MANAGED_AGENTS
from adapters.managed_agents.server import ManagedAgentsEncoder
from adapters.managed_agents.wire import DELTAS as MANAGED_AGENTS_DELTAS

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
            deltas=HERM_DELTAS,
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
            deltas=EVE_DELTAS,
            silence_seconds=60.0,
            example_url="http://127.0.0.1:2000",
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
            EngineEncoder,
            client=EngineClient,
            face=engine.FACE,
            captured=ENGINE,
            probe=PROBE_ENGINE,
            deltas=ENGINE_DELTAS,
            session_members=("task_id",),
            recorded_call=ENGINE_CALL,
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
            AguiEncoder,
            client=AguiClient,
            face=agui.FACE,
            captured=AGUI,
            probe=PROBE_AGUI,
            deltas=AGUI_DELTAS,
            session_members=("threadId",),
            recorded_call=AGUI_CALL,
            silence_seconds=1800.0,
            example_url="http://127.0.0.1:8000/",
        ),
        Dialect("aisdk", AisdkEncoder, face=aisdk.FACE, only="frontends", deltas=AISDK_DELTAS),
        # Three keep-alives of about 25 s (live page, section 1).
        Dialect(
            "managed-agents",
            ManagedAgentsEncoder,
            client=ManagedAgentsClient,
            face=managed_agents.FACE,
            captured=MANAGED_AGENTS,
            probe=PROBE_MANAGED_AGENTS,
            deltas=MANAGED_AGENTS_DELTAS,
            silence_seconds=90.0,
            key_header="x-api-key",
            page_headers=("request-id", "x-should-retry"),
        ),
        # Its hooks are sent to us: such a backend has no address, and nobody asks it anything.
        Dialect(
            "hermes-agent",
            only="backends",
            client=HermesHooksClient,
            receiver=RECEIVE_HERMES,
            key_header=RECEIVE_HERMES.signature,
            url_schemes=(),
            other_urls=("hooks:",),
        ),
    )
}
"""Every dialect by its name, with the halves that are built."""

DELTAS = by_type(delta for dialect in DIALECTS.values() for delta in dialect.deltas)
"""The frames of all of them that have more of a text, by their type: what passes a recorder may be
of any."""


def faces() -> dict[str, Face]:
    """Return the faces that are built, by dialect."""
    return {name: known.face for name, known in DIALECTS.items() if known.face is not None}
