"""The hermes-agent dialect: JSON-RPC over a WebSocket, runs over SSE, and hooks."""
