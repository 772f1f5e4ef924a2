"""One live session: its log, its feeds, and the way to its backend and back.

`session` is the facade that the rest of the proxy uses, and says which modules there are.
"""

from proxy.session.accept import RESET_SECONDS
from proxy.session.core import SessionContext, SessionCore
from proxy.session.feeds import codec_of
from proxy.session.session import Session
from proxy.session.snapshots import SNAPSHOT_ENTRIES, told
from proxy.session.start_times import StartTimes

__all__ = [
    "RESET_SECONDS",
    "SNAPSHOT_ENTRIES",
    "Session",
    "SessionContext",
    "SessionCore",
    "StartTimes",
    "codec_of",
    "told",
]
