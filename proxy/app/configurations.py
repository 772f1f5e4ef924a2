"""Whether the processes that share a journal have the same configuration: one that has another
answers otherwise, and which of them answers is chance."""

from __future__ import annotations

import hashlib
import json
import logging

from proxy.base.errors import JournalError
from proxy.config.settings import Settings
from proxy.journal.base import SharedNode
from proxy.sessions.sessions import Sessions

LOOK_SECONDS = 1.0
"""How often the configurations of the others are looked at."""

_OWN = frozenset(
    {
        *("server", "limits", "log", "journal", "cluster"),
        *("retention", "capture", "otel", "listeners"),
    }
)
"""The tables that may differ. The others say what there is, who may use it and how it is shown."""

_log = logging.getLogger(__name__)


def configuration_hash(settings: Settings) -> str:
    """Return a hash of what all processes that share a journal must have in common. Neither
    credentials nor where they are found are in it, nor the order of what has a name."""
    tables = settings.model_dump(mode="json", exclude=set(_OWN))
    for name in ("backends", "routes", "keys"):
        tables[name] = sorted(tables[name], key=lambda one: one["name"])
    for backend in tables["backends"]:
        del backend["auth"]
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


async def watch_configurations(sessions: Sessions, node: SharedNode) -> None:
    """Compare the configuration of this process, `node`, with those of the others for as long as
    the server runs; the log warns of each that differs, once for each change."""
    known: dict[str, str] = {}
    while True:
        await sessions.clock.sleep(LOOK_SECONDS)
        try:
            nodes = await sessions.journal.nodes()
        except JournalError as error:
            _log.debug("the configurations of other processes are not known: %s", error.whole)
            continue
        differing = {
            one.url: f"{node.configuration} {one.configuration}"
            for one in nodes
            if one.number != node.number and one.configuration not in ("", node.configuration)
        }
        for url, pair in differing.items():
            if known.get(url) != pair:
                _log.warning(
                    "the process at %s, which shares the journal, has another configuration: "
                    "backends, routes, keys and faces must be the same at all",
                    url,
                    extra={"kind": "configuration_differs"},
                )
        for url in known.keys() - differing.keys():
            _log.info("no process at %s has another configuration any more", url)
        known = differing
        sessions.configurations_differ = bool(differing)
