"""The gateway hook: `HOOK.yaml` and `handler.py`, the folder that Hermes loads."""
