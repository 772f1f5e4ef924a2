"""What a Herm has and lacks as a backend."""

from __future__ import annotations

from tests.pairs.backends import BackendProperties
from tests.pairs.cells import NATIVE, Carried

__all__ = ["BACKEND"]

BACKEND = BackendProperties(
    dialect="herm",
    lacks="Herm has no",
    questions=True,
    custom_tools=True,
    secrets=True,
    sign_ins=False,
    limits=False,
    child_agents=True,
    compactions=False,
    files=False,
    output_schema=False,
    compact=False,
    clear=False,
    interrupt="native",
    steer=NATIVE,
    withdraws=Carried("the turn that asks is interrupted, then the message is posted"),
    reasons=Carried("Herm has no place for a reason"),
    scopes=NATIVE,
    skips=NATIVE,
    reset=Carried("the session is archived there and ends here"),
    title=NATIVE,
    archive=NATIVE,
    delete=NATIVE,
    joins=True,
    titles=True,
    probed=("sessions",),
)
