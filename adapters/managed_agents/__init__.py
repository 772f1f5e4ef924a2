"""The managed-agents dialect: sessions, threads and typed events over HTTP and SSE, without
resume."""
