"""The one list of dialects."""

from __future__ import annotations

from adapters.base import Dialect
from adapters.engine.client import EngineClient
from adapters.engine.server import EngineEncoder
from adapters.eve.client import EveClient
from adapters.eve.server import EveEncoder
from adapters.herm.client import HermClient
from adapters.herm.server import HermEncoder

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("herm", encoder=HermEncoder, client=HermClient),
        Dialect("eve", encoder=EveEncoder, client=EveClient),
        Dialect("engine", encoder=EngineEncoder, client=EngineClient),
        Dialect("managed-agents"),
        Dialect("hermes-agent"),
    )
}
"""Every dialect by its name, with the halves that are built."""
