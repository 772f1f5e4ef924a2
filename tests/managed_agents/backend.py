"""What a service of Managed Agents has and lacks as a backend."""

from __future__ import annotations

from tests.pairs.backends import HELD, QUEUED, BackendProperties
from tests.pairs.cells import NATIVE, Carried

__all__ = ["BACKEND"]

BACKEND = BackendProperties(
    dialect="managed-agents",
    lacks="Managed Agents has no",
    questions=False,
    custom_tools=True,
    secrets=False,
    sign_ins=False,
    limits=False,
    child_agents=True,
    compactions=True,
    files=True,
    output_schema=False,
    compact=False,
    clear=False,
    interrupt="native",
    steer=QUEUED,
    withdraws=HELD,
    reasons=NATIVE,
    scopes=Carried("narrowed to once: Managed Agents has no scope"),
    skips=NATIVE,
    reset=Carried("the session is archived there and ends here"),
    title=NATIVE,
    archive=NATIVE,
    delete=NATIVE,
    reasons_aloud=False,
    servers=True,
    sizes=False,
    probed=("sessions",),
    unauthorized="authentication_error",
    failure="exhausted",
)
