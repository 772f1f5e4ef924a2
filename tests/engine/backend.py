"""What an Engine has and lacks as a backend."""

from __future__ import annotations

from tests.pairs.backends import ERASED, HELD, KEPT, QUEUED, BackendProperties
from tests.pairs.cells import NATIVE, Carried

__all__ = ["BACKEND"]

BACKEND = BackendProperties(
    dialect="engine",
    lacks="The Engine has no",
    questions=True,
    custom_tools=False,
    secrets=False,
    sign_ins=False,
    limits=False,
    child_agents=False,
    compactions=True,
    files=True,
    output_schema=False,
    compact=False,
    clear=False,
    interrupt="denies",
    steer=QUEUED,
    withdraws=HELD,
    reasons=NATIVE,
    scopes=Carried("narrowed to once: the Engine has no scope"),
    skips=Carried("words say it: an Engine has nothing that declines"),
    reset=Carried("the session ends here; the task is left alone"),
    title=KEPT,
    archive=KEPT,
    delete=ERASED,
    probed=("health", "pending", "replay"),
    probed_stream=True,
    unauthorized="INVALID_KEY",
)
