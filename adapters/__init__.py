"""Pure translations between five wire dialects and the canonical event log.

Values go in and values come out: no clock, socket, task, random number or logger lives here. The
import contracts in `pyproject.toml` hold that.
"""
