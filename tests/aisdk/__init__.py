"""Tests of the AI SDK UI dialect."""
