"""Replays a recorded session: as the backend that it was, or as the person who used it.

`cutting` cuts a log into a script: what the agent did and what a person did. `client` plays the
agent's part: to a session it is the client codec of a backend. What a person did is a cue there:
the replay waits for it, and knows it by what it means, not by its ids.
"""

from adapters.offline.replay.client import ReplayClient
from adapters.offline.replay.script import ReplayCue, ReplayScript, ReplayStep
from adapters.offline.replay.script_builder import script_of

__all__ = ["ReplayClient", "ReplayCue", "ReplayScript", "ReplayStep", "script_of"]
