"""How a conversation goes on at another backend: what was said so far as text and files, and the
codec that gives it to the backend with the next message."""

from adapters.offline.moves.handover import HandoverCodec
from adapters.offline.moves.history import ConversationHistory, HistoryPart, HistoryWriter

__all__ = ["ConversationHistory", "HandoverCodec", "HistoryPart", "HistoryWriter"]
