"""What an AG-UI agent has and lacks as a backend."""

from __future__ import annotations

from tests.pairs.backends import ERASED, HELD, KEPT, QUEUED, BackendProperties
from tests.pairs.cells import NATIVE, Carried

__all__ = ["BACKEND"]

BACKEND = BackendProperties(
    dialect="agui",
    lacks="This agent has no",
    questions=True,
    custom_tools=True,
    secrets=False,
    sign_ins=False,
    limits=False,
    child_agents=False,
    compactions=False,
    files=True,
    output_schema=False,
    results=True,
    compact=False,
    clear=False,
    interrupt="native",
    steer=QUEUED,
    withdraws=HELD,
    reasons=NATIVE,
    scopes=Carried("narrowed to once: an interrupt has no scope"),
    skips=NATIVE,
    reset=Carried("the session ends here; what the agent keeps, it keeps"),
    title=KEPT,
    archive=KEPT,
    delete=ERASED,
    reopens=False,
    lost="cannot be asked for the rest",
    probed=("run",),
    probed_open=False,
    probed_refused=True,
    unauthorized="",
    failure="agent_error",
)
