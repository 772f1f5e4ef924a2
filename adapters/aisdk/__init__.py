"""AI SDK UI, the message stream between `useChat` and its server, for `ai` 5 to 7: frontends only.

`MAPPING.md` says what it means here, `wire.py` what of it is written so that all releases take it.
"""
