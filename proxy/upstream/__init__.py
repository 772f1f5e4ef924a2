"""Connections to backends: one request in `client`, when to try again in `reconnect`."""
