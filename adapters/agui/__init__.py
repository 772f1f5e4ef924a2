"""AG-UI, the Agent-User Interaction protocol, for clients 0.0.47 to 1.0: frontends only.

`MAPPING.md` says what it means here, `wire.py` what of it is written so that all clients take it.
"""
