"""Replays a capture over HTTP: as a backend that any frontend may use, or as a frontend that uses a
real backend."""
