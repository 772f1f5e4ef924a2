"""Scripted backends: fake agent servers of each dialect, for the demo and for the tests.

Each dialect has a module of its own that builds an aiohttp application; `BACKENDS` is the one list
of them, and `CALLERS` that of the dialects whose backends call us. What they share is the story
(`scripts`), the ways to break (`faults`), what their state has (`backend`), how they answer
(`serving`) and how they quote their sources (`templates`). They import nothing from the codecs.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from proxy.scripted.agui import create_agui_app
from proxy.scripted.engine import create_engine_app
from proxy.scripted.eve import create_eve_app
from proxy.scripted.eve_turns import EveVariant, Generation
from proxy.scripted.faults import Faults
from proxy.scripted.herm import create_herm_app
from proxy.scripted.hermes import play_gated
from proxy.scripted.managed_agents import create_managed_agents_app

__all__ = ["BACKENDS", "CALLERS", "CREATE", "ScriptedOptions"]


@dataclass(frozen=True, slots=True)
class ScriptedOptions:
    """What every scripted backend can be told.

    Args:
        key: the only credential that passes; anything passes without one.
        pace: the factor on the pauses inside scripts; 0 plays them without any.
        generation: which eve the scripted eve is; the others do not ask.
        faults: which requests break, and how; none without.
    """

    key: str | None = None
    pace: float = 1.0
    generation: Generation = "S2"
    faults: Faults | None = None


def _agui(options: ScriptedOptions) -> web.Application:
    return create_agui_app(key=options.key, pace=options.pace, faults=options.faults)


def _engine(options: ScriptedOptions) -> web.Application:
    return create_engine_app(key=options.key, pace=options.pace, faults=options.faults)


def _herm(options: ScriptedOptions) -> web.Application:
    return create_herm_app(key=options.key, pace=options.pace, faults=options.faults)


def _managed_agents(options: ScriptedOptions) -> web.Application:
    return create_managed_agents_app(key=options.key, pace=options.pace, faults=options.faults)


def _eve(options: ScriptedOptions) -> web.Application:
    variant = EveVariant(options.generation)
    return create_eve_app(
        key=options.key, pace=options.pace, variant=variant, faults=options.faults
    )


BACKENDS: Mapping[str, Callable[[ScriptedOptions], web.Application]] = {
    "agui": _agui,
    "engine": _engine,
    "eve": _eve,
    "herm": _herm,
    "managed-agents": _managed_agents,
}

CREATE: Mapping[str, Mapping[str, object]] = {
    "managed-agents": {"agent": "agent_demo", "environment_id": "env_demo"}
}
"""Dialect -> what a session there is made with, where frontends of other dialects name nothing."""

CALLERS: Mapping[str, Callable[[str], Coroutine[Any, Any, None]]] = {"hermes-agent": play_gated}
"""Dialect -> what plays one session of a backend that calls an address."""
