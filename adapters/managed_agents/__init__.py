"""The managed-agents dialect: sessions whose events are listed and streamed under the same ids."""
