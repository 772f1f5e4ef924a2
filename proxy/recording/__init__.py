"""Captures of what passes: the recording of a session, and the captures of the server."""
