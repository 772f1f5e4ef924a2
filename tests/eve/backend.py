"""What an eve has and lacks as a backend."""

from __future__ import annotations

from tests.pairs.backends import ERASED, KEPT, BackendProperties
from tests.pairs.cells import NATIVE, Carried

__all__ = ["BACKEND"]

BACKEND = BackendProperties(
    dialect="eve",
    lacks="This eve has no",
    questions=True,
    custom_tools=False,
    secrets=False,
    sign_ins=True,
    limits=True,
    child_agents=True,
    compactions=False,
    files=True,
    output_schema=True,
    compact=True,
    clear=True,
    interrupt="native",
    steer=NATIVE,
    withdraws=NATIVE,
    reasons=NATIVE,
    scopes=Carried("narrowed to once: eve has no scope"),
    skips=Carried("the turn is stopped where only options are taken, else words say it"),
    reset=NATIVE,
    title=KEPT,
    archive=KEPT,
    delete=ERASED,
    child_tools=True,
    probed=("health", "info"),
)
