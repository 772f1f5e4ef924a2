"""How a conversation goes on at another backend: what was said so far as text and files, and the
codec that gives it to the backend with the next message."""

from adapters.offline.moves.continuing import Continuing
from adapters.offline.moves.history import Carried, Historian, History

__all__ = ["Carried", "Continuing", "Historian", "History"]
